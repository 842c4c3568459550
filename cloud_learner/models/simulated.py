"""A network run in torch as its int8 graph will run it, with gradients.

Quantization-aware training (Jacob et al. 2018, section 3): every value is rounded to the integer
that the device will have, and gradients pass the rounding as if it were not there (the
straight-through estimator, Bengio et al. 2013). Products of integers are added in float32, which
is exact up to 2^24; beyond, and in the activations of memory, it is near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from cloud_learner.models.features import PIXEL_SCALE, Features
from cloud_learner.models.integers import (
    SIGNED_MAX,
    SIGNED_ZERO,
    UNIT_SCALE,
    UNSIGNED_MAX,
    HeldRanges,
    IntegerAffine,
    activation_scale,
    channel_reach,
    hold_range,
    input_gain,
    quantize_affine,
)
from cloud_learner.models.memory import Remembered, unroll_attention, unroll_lstm
from cloud_learner.models.network import Affine, Network, Past, less_mean
from cloud_learner.models.plan import Attention

_BELOW_HALF: Final = 0.49999


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Whole numbers on their way through a network, less their zero point.

    Attributes:
        data: `[*lead, width]` or `[R, C, H, W]`, float32.
        scale: float32 `[]` or `[width]`, what one unit stands for.
    """

    data: Tensor
    scale: Tensor


class SimulatedRunner:
    """Runs a network as its int8 graph will.

    >>> runner = SimulatedRunner(network, ranges, features, normalized=False)
    >>> outputs = flow(network.plan, runner).data      # float32
    """

    def __init__(
        self,
        network: Network,
        ranges: HeldRanges,
        features: Features,
        *,
        normalized: bool,
        past: Past | None = None,
        relative: bool = False,
        rounded: dict[int, IntegerAffine] | None = None,
    ) -> None:
        """Takes the inputs.

        Args:
            network: What to run.
            ranges: As they were held when a version was published.
            features: `[*lead, ...]`; with memory `lead` is `[T, B]`.
            normalized: Whether the vector went through a normalizer.
            past: For a memory.
            relative: Whether the graph has the outputs less their mean, which stays in float32.
            rounded: Dense layers in integers by place: those there are taken, others put there.
        """
        self._network = network
        self._plan = network.plan
        self._ranges = ranges
        self._features = features
        self._normalized = normalized
        self._past = past
        self._relative = relative
        self._rounded = {} if rounded is None else rounded
        self.remembered: Remembered | None = None

    def image(self, index: int) -> Units:
        """Pixels are units already."""
        image = self._features.images[index]
        pixels = image.reshape(-1, *image.shape[-3:]).to(torch.float32)
        return Units(pixels, pixels.new_tensor(PIXEL_SCALE))

    def conv(self, place: int, value: Units) -> Units:
        """Convolves integers."""
        layer = self._integers(place, self._network.affine(place).weight, value.scale)
        stride = self._plan.conv(place).stride
        total = functional.conv2d(value.data, layer.weight, layer.bias.float(), stride)
        scale = activation_scale(self._plan, place, self._ranges.reach(f"output.{place}"))
        units = total * (layer.scale / scale).view(-1, 1, 1)
        return Units(bounded_round(units, 0.0, UNSIGNED_MAX), scale)

    def flatten(self, value: Units) -> Units:
        """Rows `[*lead, C * H * W]`."""
        lead = self._features.images[0].shape[:-3]
        return Units(value.data.reshape((*lead, -1)), value.scale)

    def vector(self) -> Units:
        """The vector, each column with a scale of its own."""
        vector, own = self._features.vector, self._network.vector_scale
        assert vector is not None  # noqa: S101 - flow asks only where there is one
        if self._plan.features.all_pixels:
            return Units(vector, vector.new_tensor(PIXEL_SCALE))
        gain = input_gain(self._ranges.reach("input"), normalized=self._normalized)
        return Units(_signed(vector * gain), 1.0 / gain if own is None else own / gain)

    def extra(self) -> Units:
        """No policy has any."""
        raise TypeError("only a critic has extra inputs, and it is not exported")

    def join(self, values: Sequence[Units]) -> Units:
        """Side by side, each column with a scale of its own."""
        scales = [value.scale.expand(value.data.shape[-1]) for value in values]
        return Units(torch.cat([value.data for value in values], -1), torch.cat(scales))

    def dense(self, place: int, value: Units) -> Units:
        """Multiplies integers."""
        layer = self._folded(place, value)
        total = functional.linear(value.data, layer.weight, layer.bias.float())
        if place == self._plan.last:
            outputs = total * layer.scale
            if self._relative:
                whole = self._network.affine(place)
                mean = functional.linear(
                    value.data * value.scale, whole.weight.mean(0, keepdim=True)
                )
                outputs = outputs + mean + whole.bias.mean()
            return Units(outputs, total.new_ones(()))
        activation = self._plan.dense(place).activation
        if activation == "tanh":
            return _within_one((total * layer.scale).tanh())
        scale = activation_scale(self._plan, place, self._ranges.reach(f"output.{place}"))
        units = total * (layer.scale / scale)
        if activation == "relu":
            return Units(bounded_round(units, 0.0, UNSIGNED_MAX), scale)
        return Units(_signed(units), scale)

    def remember(self, place: int, value: Units) -> Units:
        """Runs the memory: products in integers, everything between them in float32."""
        past, memory = self._past, self._plan.memory
        assert past is not None  # noqa: S101 - whoever runs a memory gives it one
        if isinstance(memory, Attention):
            layer = self._folded(place, value)
            total = functional.linear(value.data, layer.weight, layer.bias.float())
            bias = self._network.age_bias
            assert bias is not None  # noqa: S101 - as built
            self.remembered = unroll_attention(
                memory, total * layer.scale, bias, past.state, past.starts
            )
            scale = (self._ranges.reach("memory") / SIGNED_MAX).reshape(())
            outputs = Units(_signed(self.remembered.outputs / scale), scale)
            return self.join((value, outputs))
        width = value.data.shape[-1]
        own = value.data.new_tensor(UNIT_SCALE)
        scales = torch.cat((value.scale.expand(width), own.expand(past.state.shape[-1] // 2)))
        weight = self._network.affine(place).weight * scales
        gates = self._integers(place, weight, own.new_ones(()))
        entering = functional.linear(value.data, gates.weight[:, :width], gates.bias.float())
        recurrent = gates.weight[:, width:].T
        self.remembered = unroll_lstm(
            lambda step, hidden: (
                torch.addmm(entering[step], _signed(hidden / own), recurrent) * gates.scale
            ),
            len(past.starts),
            past.state,
            past.starts,
        )
        return _within_one(self.remembered.outputs)

    def _folded(self, place: int, value: Units) -> IntegerAffine:
        """A dense layer in integers; scales of single columns go into the weights."""
        if place in self._rounded:
            return self._rounded[place]
        weight = self._affine(place).weight
        if value.scale.dim() == 0:
            layer = self._integers(place, weight, value.scale)
        else:
            layer = self._integers(place, weight * value.scale, value.scale.new_ones(()))
        self._rounded[place] = layer
        return layer

    def _integers(self, place: int, weight: Tensor, input_scale: Tensor) -> IntegerAffine:
        reach = hold_range(self._ranges.reach(f"weight.{place}"), channel_reach(weight))
        bias = self._affine(place).bias
        return quantize_affine(weight, bias, input_scale, reach, straight_round)

    def _affine(self, place: int) -> Affine:
        """The weights of a layer as the graph has them."""
        layer = self._network.affine(place)
        return less_mean(layer) if self._relative and place == self._plan.last else layer


def straight_round(values: Tensor) -> Tensor:
    """Rounds to even; its gradient is that of the identity. Exact: the difference is."""
    if not values.requires_grad:
        return values.round()
    return values + (values.round() - values).detach()


def bounded_round(values: Tensor, low: float, high: float) -> Tensor:
    """Whole numbers within bounds; gradients are 0 beyond.

    Bounds are applied first, almost half a unit further out, by what is cheapest: the backward pass
    of `clamp` costs four times as much.
    """
    return straight_round(functional.hardtanh(values, low - _BELOW_HALF, high + _BELOW_HALF))


def _signed(values: Tensor) -> Tensor:
    return bounded_round(values, -SIGNED_ZERO, SIGNED_MAX)


def _within_one(values: Tensor) -> Units:
    scale = values.new_tensor(UNIT_SCALE)
    return Units(_signed(values / scale), scale)
