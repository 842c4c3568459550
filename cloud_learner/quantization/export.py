"""One self-contained ONNX file from a policy, which onnxruntime alone runs.

The file has the inputs and outputs of the policy graph (see `cloud_learner.models.policy_graph`):
observations and noise in, action and log-probability out, and the state where there is memory.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper

from cloud_learner.models.graph_layers import Precision
from cloud_learner.models.policy import Policy
from cloud_learner.models.policy_graph import build_graph
from cloud_learner.quantization.tensors import Ranges, make_tensors
from shoal.errors import PolicyRejected
from shoal.policy import NOISE, Manifest
from shoal.spaces import EnvSpec
from shoal.tensors import Array

_ROWS = "noise.rows"


def export_onnx(
    graph: bytes,
    tensors: Mapping[str, Array],
    *,
    metadata: Mapping[str, str] | None = None,
    deterministic: bool = False,
) -> bytes:
    """Puts the tensors of a published policy into its graph.

    Args:
        graph: The weightless graph.
        tensors: Every initializer of it.
        metadata: Goes into the file's `metadata_props`; see `metadata_of`.
        deterministic: Whether to leave the noise out: the file then always gives the greedy action.

    Raises:
        PolicyRejected: With the reason `graph`: graph and tensors do not fit together.
    """
    model = ModelProto.FromString(graph)
    for initializer in model.graph.initializer:
        array = tensors.get(initializer.name)
        if array is None or tuple(initializer.dims) != array.shape:
            raise PolicyRejected(
                "graph",
                f"the graph wants {initializer.name} {list(initializer.dims)}, and the policy has "
                f"{'none' if array is None else list(array.shape)}: they are of two versions",
            )
        dtype = helper.tensor_dtype_to_np_dtype(initializer.data_type)
        initializer.raw_data = np.ascontiguousarray(array, dtype.newbyteorder("<")).tobytes()
        initializer.data_location = TensorProto.DEFAULT
        del initializer.external_data[:]
    if deterministic:
        _leave_noise_out(model)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    checker.check_model(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def export_policy(
    policy: Policy,
    *,
    metadata: Mapping[str, str] | None = None,
    deterministic: bool = False,
) -> bytes:
    """A policy as it is trained, in fp32: what `load_weights` reads again.

    Args:
        policy: Its weights.
        metadata: As for `export_onnx`.
        deterministic: As for `export_onnx`.
    """
    precision: Precision = "fp32"
    return export_onnx(
        build_graph(policy, precision),
        make_tensors(policy, precision, Ranges()),
        metadata=metadata,
        deterministic=deterministic,
    )


def metadata_of(manifest: Manifest, spec: EnvSpec) -> dict[str, str]:
    """What a file says of the policy in it.

    `shoal.spec` is an `EnvSpec` message, base64; digests are in hexadecimal.
    """
    return {
        "shoal.fleet": manifest.fleet,
        "shoal.version": str(manifest.version),
        "shoal.updates": str(manifest.updates),
        "shoal.digest": manifest.digest.hex(),
        "shoal.precision": manifest.precision,
        "shoal.kl_quantization": repr(manifest.kl_quantization),
        "shoal.agreement": repr(manifest.agreement),
        "shoal.env_id": spec.env_id,
        "shoal.spec_fingerprint": manifest.spec_fingerprint.hex(),
        "shoal.spec": base64.b64encode(spec.to_pb().SerializeToString(deterministic=True)).decode(),
    }


def _leave_noise_out(model: ModelProto) -> None:
    """Makes the noise inside: as many rows of zeros as there are observations."""
    (noise,) = (value for value in model.graph.input if value.name == NOISE)
    width = noise.type.tensor_type.shape.dim[1].dim_value
    model.graph.input.remove(noise)
    columns = helper.make_tensor("noise.columns", TensorProto.INT64, [1], [width])
    model.graph.initializer.append(columns)
    zeros = [
        helper.make_node("Shape", [model.graph.input[0].name], [_ROWS], start=0, end=1),
        helper.make_node("Concat", [_ROWS, columns.name], ["noise.shape"], axis=0),
        helper.make_node("ConstantOfShape", ["noise.shape"], [NOISE]),
    ]
    nodes = [*zeros, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
