"""The tensors of a policy graph, made from trained weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cloud_learner.models.exploring import EpsilonGreedy
from cloud_learner.models.features import PIXEL_SCALE
from cloud_learner.models.graph_heads import leaf_prefix, squash_offset
from cloud_learner.models.graph_layers import Precision
from cloud_learner.models.heads import action_range
from cloud_learner.models.integers import (
    SIGNED_MAX,
    SIGNED_ZERO,
    UNIT_SCALE,
    activation_scale,
    channel_reach,
    hold_range,
    hold_sampled_range,
    input_gain,
    quantize_affine,
)
from cloud_learner.models.network import Affine
from cloud_learner.models.plan import Attention, Lstm, flow
from cloud_learner.models.policy import Policy
from cloud_learner.quantization.dead_zone import BIAS_STEP, DeadZone
from shoal.tensors import Array

_LOG_TAU: Final = math.log(2.0 * math.pi)


class Ranges:
    """Ranges by name, held from version to version.

    >>> ranges = Ranges()
    >>> reach = ranges.cover("weight.0", needed)       # float32 [C]

    Attributes:
        held: The ranges.
        low: How long samples have needed far less of them; see `hold_sampled_range`.
    """

    def __init__(
        self, held: Mapping[str, Tensor] | None = None, low: Mapping[str, Tensor] | None = None
    ) -> None:
        self.held: dict[str, Tensor] = dict(held or {})
        self.low: dict[str, Tensor] = dict(low or {})

    def cover(self, name: str, needed: Tensor) -> Tensor:
        """The range to use: as it was, unless it no longer fits what is needed."""
        self.held[name] = hold_range(self.held.get(name), needed)
        return self.held[name]

    def cover_sample(self, name: str, needed: Tensor) -> None:
        """The same where what is needed is what a sample needs."""
        self.held[name], self.low[name] = hold_sampled_range(
            self.held.get(name), needed, self.low.get(name)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What is known of numbers on their way through the graph; see `graph_layers.Piece`.

    Attributes:
        key: Names their scale and zero point.
        width: Columns.
        scale: float32 `[]` or `[width]`, what one unit stands for.
        zero: The zero point of the units.
        float_scale: What their float32 form is still to be multiplied by.
        native: Whether they come as units.
    """

    key: str
    width: int
    scale: Tensor
    zero: int
    float_scale: Tensor | float | None = None
    native: bool = False


Pieces = tuple[Piece, ...]


def make_tensors(
    policy: Policy,
    precision: Precision,
    ranges: Ranges,
    *,
    shift: Tensor | None = None,
    zone: DeadZone | None = None,
) -> dict[str, Array]:
    """Every initializer of the policy's graph at a precision.

    Args:
        policy: What was trained.
        precision: Names the graph.
        ranges: Of inputs and activations, and of weights so far: these may move here.
        shift: float32 `[outputs]`, added to the bias of the last layer.
        zone: The integers of the version before, which may move here; None: round all.
    """
    with torch.no_grad():
        runner = TensorRunner(policy, precision, ranges, shift=shift, zone=zone)
        flow(policy.plan, runner)
        return runner.tensors | _head_tensors(policy)


class TensorRunner:
    """Makes the initializers that `GraphRunner` names, in the same steps."""

    def __init__(
        self,
        policy: Policy,
        precision: Precision,
        ranges: Ranges,
        *,
        shift: Tensor | None = None,
        zone: DeadZone | None = None,
    ) -> None:
        self._policy = policy
        self._zone = zone or DeadZone(0.0)
        self._shift = shift
        self._network = policy.network
        self._plan = policy.plan
        self._normalizer = policy.normalizer
        self._precision = precision
        self._ranges = ranges
        self.tensors: dict[str, Array] = {}

    def image(self, index: int) -> Pieces:
        """Pixels are units already."""
        channels = self._plan.features.images[index].channels
        scale = torch.tensor(PIXEL_SCALE)
        return (Piece(f"image.{index}", channels, scale, 0, PIXEL_SCALE, native=True),)

    def conv(self, place: int, value: Pieces) -> Pieces:
        """A convolution's weights."""
        (piece,) = value
        layer, key = self._policy.acting_affine(place), f"output.{place}"
        if not self._integer(place):
            self._floats(place, Affine(_scaled(layer.weight, piece.float_scale), layer.bias))
            return (Piece(key, self._plan.conv(place).outputs, torch.ones(()), 0),)
        self._read(value)
        self._integers(place, layer, piece.scale, None)
        output = self._activation(place)
        self._scalars(output.key, output.scale, output.zero)
        return (output,)

    def flatten(self, value: Pieces) -> Pieces:
        """As many columns as numbers."""
        (piece,) = value
        layer = self._plan.conv(int(piece.key.partition(".")[2]))
        width = layer.outputs * layer.height * layer.width
        return (Piece(piece.key, width, piece.scale, piece.zero, native=piece.native),)

    def vector(self) -> Pieces:
        """What turns observed numbers into units."""
        width, own = self._plan.features.width, self._network.vector_scale
        if self._plan.features.all_pixels and self._precision != "fp32":
            return (Piece("input", width, torch.tensor(PIXEL_SCALE), 0, own, native=True),)
        normalizer = self._normalizer
        if normalizer is not None:
            self.tensors["input.shift"] = _array(normalizer.shift)
        if self._precision == "fp32":
            if normalizer is not None:
                self.tensors["input.gain"] = _array(normalizer.gain)
            return (Piece("input", width, torch.ones(()), 0, own),)
        gain = input_gain(self._ranges.held["input"], normalized=normalizer is not None)
        self.tensors["input.gain"] = _array(gain if normalizer is None else gain * normalizer.gain)
        scale = 1.0 / gain if own is None else own / gain
        return (Piece("input", width, scale, SIGNED_ZERO, own),)

    def extra(self) -> Pieces:
        """No policy has any."""
        raise TypeError("only a critic has extra inputs, and it is not exported")

    def join(self, values: Sequence[Pieces]) -> Pieces:
        """Pieces are put together where they are read."""
        return tuple(piece for value in values for piece in value)

    def dense(self, place: int, value: Pieces) -> Pieces:
        """A dense layer's weights."""
        self._linear(place, value)
        output = self._activation(place)
        if output.native:
            self._scalars(output.key, output.scale, output.zero)
        return (output,)

    def remember(self, place: int, value: Pieces) -> Pieces:
        """The weights of the memory's one dense layer, and its scales."""
        memory = self._plan.memory
        if isinstance(memory, Lstm):
            hidden = Piece("memory", memory.units, torch.tensor(UNIT_SCALE), SIGNED_ZERO)
            self._linear(place, (*value, hidden))
            return (hidden,)
        assert isinstance(memory, Attention)  # noqa: S101 - the other kind
        self._linear(place, value)
        bias = self._network.age_bias
        assert bias is not None  # noqa: S101 - as built
        self.tensors["age_bias"] = _array(bias)
        scale = torch.ones(())
        if self._precision != "fp32":
            scale = (self._ranges.held["memory"] / SIGNED_MAX).reshape(())
        return (*value, Piece("memory", memory.units, scale, SIGNED_ZERO))

    def _activation(self, place: int) -> Piece:
        """What a layer gives."""
        layer, key = self._plan.layers[place], f"output.{place}"
        if place == self._plan.last or not self._integer(place):
            return Piece(key, layer.outputs, torch.ones(()), 0)
        tanh = getattr(layer, "activation", "relu") == "tanh"
        signed = getattr(layer, "activation", "relu") != "relu"
        reach = torch.ones(1) if tanh else self._ranges.held[key]
        scale = activation_scale(self._plan, place, reach)
        zero = SIGNED_ZERO if signed else 0
        return Piece(key, layer.outputs, scale, zero, native=not tanh)

    def _integer(self, place: int) -> bool:
        if self._precision == "int8_fp32_head":
            return place != self._plan.last
        return self._precision == "int8"

    def _linear(self, place: int, value: Pieces) -> None:
        layer = self._policy.acting_affine(place)
        if self._shift is not None and place == self._plan.last:
            layer = Affine(layer.weight, layer.bias + self._shift)
        if not self._integer(place):
            for piece in value:
                if piece.native:
                    self._scalars(piece.key, piece.scale, piece.zero)
            (first, *others) = value
            scale = first.float_scale if not others else self._float_scales(value)
            self._floats(place, Affine(_scaled(layer.weight, scale), layer.bias))
            return
        self._read(value)
        if len(value) == 1 and value[0].scale.dim() == 0:
            self._integers(place, layer, value[0].scale, None)
            return
        scales = torch.cat([piece.scale.expand(piece.width) for piece in value])
        folded = Affine(layer.weight * scales, layer.bias)
        zeros = None
        if len(value) > 1:
            zeros = torch.cat([torch.full((p.width,), float(p.zero)) for p in value]).double()
        self._integers(place, folded, torch.ones(()), zeros)

    def _float_scales(self, value: Pieces) -> Tensor | None:
        if all(piece.float_scale is None for piece in value):
            return None
        return torch.cat(
            [torch.ones(p.width) * (1.0 if p.float_scale is None else p.float_scale) for p in value]
        )

    def _read(self, value: Pieces) -> None:
        """The scales that an integer layer and what quantizes for it look at."""
        for piece in value:
            if len(value) == 1 or not piece.native:
                scale = piece.scale if piece.scale.dim() == 0 else torch.ones(())
                self._scalars(piece.key, scale, piece.zero)
        if len(value) > 1:
            self._scalars("joined", torch.ones(()), 0)

    def _scalars(self, key: str, scale: Tensor, zero: int) -> None:
        self.tensors[f"{key}.scale"] = _array(scale)
        self.tensors[f"{key}.zero"] = np.array(zero, np.uint8)

    def _floats(self, place: int, layer: Affine) -> None:
        dense = layer.weight.dim() == 2  # noqa: PLR2004 - `[out, in]`
        self.tensors[f"weight.{place}"] = _array(layer.weight.T if dense else layer.weight)
        self.tensors[f"bias.{place}"] = _array(layer.bias)

    def _integers(
        self, place: int, layer: Affine, input_scale: Tensor, zeros: Tensor | None
    ) -> None:
        """Adds a layer in integers; `zeros` `[in]` are the zero points of joined pieces."""
        key = f"weight.{place}"
        reach = self._ranges.cover(key, channel_reach(layer.weight))
        few = place == self._plan.last  # biases, and corrected by what is measured
        made = quantize_affine(
            layer.weight,
            layer.bias,
            input_scale,
            reach,
            rounding=partial(self._zone.settle, key),
            bias_rounding=(
                torch.round if few else partial(self._zone.settle, f"bias.{place}", step=BIAS_STEP)
            ),
        )
        bias = made.bias
        if zeros is not None:
            bias = bias - made.weight.double() @ zeros
        dense = layer.weight.dim() == 2  # noqa: PLR2004 - `[out, in]`
        weight = made.weight.to(torch.int8)
        self.tensors |= {
            key: _array(weight.T if dense else weight),
            f"{key}.scale": _array(made.weight_scale),
            f"{key}.zero": np.zeros(len(made.weight_scale), np.int8),
            f"bias.{place}": _array(bias.to(torch.int32)),
        }


def _head_tensors(policy: Policy) -> dict[str, Array]:
    family = policy.distribution
    if isinstance(family, EpsilonGreedy):
        return {
            "explore.threshold": np.array(family.threshold, np.float32),
            "log_prob.greedy": np.array(family.log_greedy, np.float32),
            "log_prob.other": np.array(family.log_other, np.float32),
        }
    if policy.head == "squash":
        span = action_range(policy.action)
        return {
            "action.half": span.half,
            "action.center": span.center,
            "log_prob.offset": np.array(squash_offset(span.half), np.float32),
        }
    log_std = policy.acting_log_std()
    tensors: dict[str, Array] = {}
    if log_std is None:
        return tensors
    start = 0
    for index, choice in enumerate(policy.action.choices):
        if choice.values:
            continue
        own = _array(log_std[start : start + choice.size])
        start += choice.size
        prefix = leaf_prefix(policy.action, index)
        offset = -float(own.sum(dtype=np.float64)) - 0.5 * _LOG_TAU * choice.size
        tensors |= {
            f"{prefix}log_std": own,
            f"{prefix}std": np.exp(own),
            f"{prefix}log_prob.offset": np.array(offset, np.float32),
        }
    return tensors


def _scaled(weight: Tensor, scale: Tensor | float | None) -> Tensor:
    return weight if scale is None else weight * scale


def _array(tensor: Tensor) -> Array:
    """A copy of its own, in C order."""
    return np.array(tensor.detach().cpu().numpy(), order="C")
