"""Starts training from a policy that was exported in fp32."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

import torch
from google.protobuf.message import DecodeError
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn

from cloud_learner.models.features import PIXEL_SCALE
from cloud_learner.models.graph_heads import leaf_prefix
from cloud_learner.models.network import Affine
from cloud_learner.models.normalizer import Normalizer
from cloud_learner.models.plan import Conv
from cloud_learner.models.policy import Policy
from cloud_learner.models.policy_graph import build_graph
from cloud_learner.models.torso import DuelingHead
from shoal.errors import PolicyRejected, WireError
from shoal.spaces import EnvSpec
from shoal.tensors import Array
from shoal.v1 import space_pb2

_TRUSTED_ROWS: Final = 10_000.0
"""Rows that a file's normalizer counts for against what is observed from now on."""
_EXPORT: Final = "export one with `shoal learner export --precision fp32`"
_EQUAL: Final = 1e-4  # rows of one stream agree to within this


def policy_weights_from_onnx(data: bytes) -> dict[str, Array]:
    """Every initializer of a self-contained ONNX file, by name.

    Raises:
        PolicyRejected: With the reason `graph`: it is no ONNX file, or its weights are elsewhere.
    """
    try:
        model = ModelProto.FromString(data)
        found = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    # protobuf and onnx raise DecodeError, ValueError and TypeError without a shared base.
    except Exception as error:
        raise PolicyRejected(
            "graph", f"this is not a self-contained ONNX file; {_EXPORT}"
        ) from error
    if not any(name.startswith("weight.") for name in found):
        raise PolicyRejected("graph", f"this file has no weights of a policy in it; {_EXPORT}")
    return found


def fp32_weights_from_onnx(data: bytes) -> dict[str, Array]:
    """The same of a file that training can start from.

    Raises:
        PolicyRejected: With the reason `graph`: it is no such file, or not in fp32.
    """
    found = policy_weights_from_onnx(data)
    if any(name.startswith("weight.") and name.endswith(".scale") for name in found):
        raise PolicyRejected(
            "graph", f"this file is int8, and training starts from fp32; {_EXPORT}"
        )
    return found


def spec_from_onnx(data: bytes) -> EnvSpec | None:
    """The spaces that a file says its policy acts in; None where it says none.

    Raises:
        PolicyRejected: With the reason `graph`: what it says cannot be read.
    """
    said = {each.key: each.value for each in ModelProto.FromString(data).metadata_props}
    text = said.get("shoal.spec")
    if text is None:
        return None
    try:
        return EnvSpec.from_pb(space_pb2.EnvSpec.FromString(base64.b64decode(text, validate=True)))
    except (ValueError, DecodeError, WireError) as error:
        raise PolicyRejected("graph", f"this file's shoal.spec cannot be read ({error})") from error


def load_weights(policy: Policy, data: bytes) -> None:
    """Gives a policy the weights of a file that was exported from one like it.

    Scales that the file has folded into its layers are taken out again; the normalizer is copied.

    Raises:
        PolicyRejected: With the reason `graph`: it is of another architecture, or not in fp32; the
            message names what differs, and the policy is as it was.
    """
    tensors = fp32_weights_from_onnx(data)
    _compare(policy, tensors)
    found = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    layers = [_unfold(policy, place, found) for place in range(len(policy.plan.layers))]
    with torch.no_grad():
        for place, layer in enumerate(layers):
            _put(policy.network.layers[place], layer)
        if policy.network.age_bias is not None:
            policy.network.age_bias.copy_(found["age_bias"])
        if policy.log_std is not None:
            parts = [
                found[f"{leaf_prefix(policy.action, index)}log_std"]
                for index, choice in enumerate(policy.action.choices)
                if not choice.values
            ]
            policy.log_std.copy_(torch.cat(parts) - policy.log_half)
        if policy.normalizer is not None:
            _normalize(policy.normalizer, found["input.shift"], found["input.gain"])


def _compare(policy: Policy, tensors: Mapping[str, Array]) -> None:
    model = ModelProto.FromString(build_graph(policy, "fp32"))
    wanted = {each.name: list(each.dims) for each in model.graph.initializer}
    given = {name: list(array.shape) for name, array in tensors.items() if name != "noise.columns"}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise PolicyRejected(
                "graph",
                f"this file is of another architecture: {name} is {given.get(name, 'not there')} "
                f"in it, and {wanted.get(name, 'not there')} in the policy that is to be trained; "
                "compare [training.network], the algorithm and the spaces",
            )


def _unfold(policy: Policy, place: int, found: Mapping[str, Tensor]) -> Affine:
    """A layer's own weights `[out, in, ...]`."""
    network, plan = policy.network, policy.plan
    weight, bias = found[f"weight.{place}"], found[f"bias.{place}"]
    if isinstance(plan.layers[place], Conv):
        first = any(place == stack[0] for stack in plan.convs)
        return Affine(weight / PIXEL_SCALE if first else weight, bias)
    weight = weight.T
    if place == plan.trunk[0] and network.vector_scale is not None:
        own = network.vector_scale
        before = own.new_ones(weight.shape[1] - len(own))  # what the conv stacks give
        weight = weight / torch.cat((before, own))
    if place == plan.last and network.output_scale is not None:
        assert network.output_center is not None  # noqa: S101 - both or none
        weight = weight / network.output_scale.unsqueeze(-1)
        bias = (bias - network.output_center) / network.output_scale
    if isinstance(network.layers[place], DuelingHead):
        value = weight[:, : weight.shape[1] // 2]
        if not bool(torch.allclose(value, value[:1].expand_as(value), rtol=_EQUAL, atol=_EQUAL)):
            raise PolicyRejected(
                "graph", "this file's head has no dueling streams: set dueling = false"
            )
    return Affine(weight, bias)


def _put(module: nn.Module, layer: Affine) -> None:
    if isinstance(module, DuelingHead):
        value, advantage = layer.weight.chunk(2, 1)
        module.value.weight.copy_(value[:1])
        module.value.bias.copy_(layer.bias.mean().reshape(1))
        module.advantage.weight.copy_(advantage)
        module.advantage.bias.copy_(layer.bias - layer.bias.mean())
        return
    assert isinstance(module, nn.Linear | nn.Conv2d)  # noqa: S101 - the other kinds
    module.weight.copy_(layer.weight)
    assert module.bias is not None  # noqa: S101 - all of ours have one
    module.bias.copy_(layer.bias)


def _normalize(normalizer: Normalizer, shift: Tensor, gain: Tensor) -> None:
    normalizer.shift.copy_(shift)
    normalizer.gain.copy_(gain)
    normalizer.mean.copy_(shift)
    normalizer.squares.copy_(gain.double().pow(-2) * _TRUSTED_ROWS)
    normalizer.count.fill_(_TRUSTED_ROWS)
