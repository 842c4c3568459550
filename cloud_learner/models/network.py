"""A network with its weights, and how torch runs it in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloud_learner.models.features import PIXEL_SCALE, Features
from cloud_learner.models.memory import Remembered, unroll_attention, unroll_lstm
from cloud_learner.models.plan import Activation, Attention, Plan, flow
from cloud_learner.models.torso import Built


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """Weights of one layer: `[out, in]` or `[out, in, kernel, kernel]`, and bias `[out]`."""

    weight: Tensor
    bias: Tensor


def less_mean(layer: Affine) -> Affine:
    """A layer whose outputs have the mean of all of them taken away."""
    return Affine(layer.weight - layer.weight.mean(0), layer.bias - layer.bias.mean())


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """What a memory starts from: the state `[B, S]`, and `starts`, bool `[T, B]`."""

    state: Tensor
    starts: Tensor


class Network(nn.Module):
    """The layers of a plan.

    >>> network = Network(build_layers(...))
    >>> outputs = run(network, features)
    """

    vector_scale: Tensor | None
    output_scale: Tensor | None
    output_center: Tensor | None

    def __init__(
        self,
        built: Built,
        *,
        scale_vector: bool = True,
        output_scale: Tensor | None = None,
        output_center: Tensor | None = None,
    ) -> None:
        """Holds the modules.

        Args:
            built: The plan and its modules.
            scale_vector: Whether pixels in the vector come unscaled; not behind a normalizer.
            output_scale: `[outputs]`, what outputs are multiplied by.
            output_center: `[outputs]`, what is then added to them.
        """
        super().__init__()
        self.plan = built.plan
        self.layers = nn.ModuleList(built.modules)
        self.age_bias: nn.Parameter | None = None
        if isinstance(self.plan.memory, Attention):
            self.age_bias = nn.Parameter(torch.zeros(self.plan.memory.window))
        pixels = self.plan.features.columns("pixel")
        scale = None
        if scale_vector and pixels.any():
            scale = torch.from_numpy(np.where(pixels, PIXEL_SCALE, 1.0).astype(np.float32))
        self.register_buffer("vector_scale", scale, persistent=False)
        self.register_buffer("output_scale", output_scale, persistent=False)
        self.register_buffer("output_center", output_center, persistent=False)

    def affine(self, place: int) -> Affine:
        """The weights of a layer; the last one's give outputs in their own units."""
        layer = self.layers[place]
        weight, bias = cast("Tensor", layer.weight), cast("Tensor", layer.bias)
        if place != self.plan.last or self.output_scale is None or self.output_center is None:
            return Affine(weight, bias)
        return Affine(
            weight * self.output_scale.unsqueeze(-1),
            torch.addcmul(self.output_center, bias, self.output_scale),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """Numbers on their way through a network.

    Attributes:
        data: `[*lead, width]` or `[R, C, H, W]`.
        scale: What they are still to be multiplied by, if anything: a layer folds it into its
            weights, which costs less.
    """

    data: Tensor
    scale: Tensor | float | None = None


Watch = Callable[[str, Tensor], None]


class FloatRunner:
    """Runs a network in float32.

    >>> runner = FloatRunner(network, features, past=Past(state, starts))
    >>> outputs = flow(network.plan, runner).data
    >>> runner.remembered                     # what its memory gave
    """

    def __init__(
        self,
        network: Network,
        features: Features,
        *,
        past: Past | None = None,
        extra: Tensor | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Takes the inputs.

        Args:
            network: What to run.
            features: `[*lead, ...]`; with memory `lead` is `[T, B]`.
            past: For a memory.
            extra: `[*lead, extra]`.
            watch: Is shown every value that the int8 graph quantizes, by name.
        """
        self._network = network
        self._plan = network.plan
        self._features = features
        self._past = past
        self._extra = extra
        self._watch = watch
        self.remembered: Remembered | None = None

    def image(self, index: int) -> Signal:
        """An image, float32, scaled later."""
        image = self._features.images[index]
        return Signal(image.reshape(-1, *image.shape[-3:]).to(torch.float32), PIXEL_SCALE)

    def conv(self, place: int, value: Signal) -> Signal:
        """Convolves."""
        layer = self._network.affine(place)
        weight = layer.weight if value.scale is None else layer.weight * value.scale
        stride = self._plan.conv(place).stride
        data = functional.conv2d(value.data, weight, layer.bias, stride).relu()
        self._show(f"output.{place}", data)
        return Signal(data)

    def flatten(self, value: Signal) -> Signal:
        """Rows `[*lead, C * H * W]`."""
        lead = self._features.images[0].shape[:-3]
        return Signal(value.data.reshape((*lead, -1)))

    def vector(self) -> Signal:
        """The vector, normalized already."""
        vector = self._features.vector
        assert vector is not None  # noqa: S101 - flow asks only where there is one
        self._show("input", vector)
        return Signal(vector, self._network.vector_scale)

    def extra(self) -> Signal:
        """The further inputs."""
        assert self._extra is not None  # noqa: S101 - flow asks only where there is one
        return Signal(self._extra)

    def join(self, values: Sequence[Signal]) -> Signal:
        """Side by side, scaled."""
        parts = [v.data if v.scale is None else v.data * v.scale for v in values]
        return Signal(torch.cat(parts, -1))

    def dense(self, place: int, value: Signal) -> Signal:
        """Multiplies."""
        layer = self._network.affine(place)
        weight = layer.weight if value.scale is None else layer.weight * value.scale
        shape = self._plan.dense(place)
        data = activate(functional.linear(value.data, weight, layer.bias), shape.activation)
        if place != self._plan.last:
            self._show(f"output.{place}", data)
        return Signal(data)

    def remember(self, place: int, value: Signal) -> Signal:
        """Runs the memory over all steps."""
        layer, past, data = self._network.affine(place), self._past, value.data
        assert past is not None  # noqa: S101 - whoever runs a memory gives it one
        if isinstance(self._plan.memory, Attention):
            projected = functional.linear(data, layer.weight, layer.bias)
            bias = self._network.age_bias
            assert bias is not None  # noqa: S101 - as built
            self.remembered = unroll_attention(
                self._plan.memory, projected, bias, past.state, past.starts
            )
            self._show("memory", self.remembered.outputs)
            return Signal(torch.cat((data, self.remembered.outputs), -1))
        width = data.shape[-1]
        entering = functional.linear(data, layer.weight[:, :width], layer.bias)
        recurrent = layer.weight[:, width:].T
        self.remembered = unroll_lstm(
            lambda step, hidden: torch.addmm(entering[step], hidden, recurrent),
            len(past.starts),
            past.state,
            past.starts,
        )
        return Signal(self.remembered.outputs)

    def _show(self, name: str, data: Tensor) -> None:
        if self._watch is not None:
            self._watch(name, data)


def run(network: Network, features: Features, extra: Tensor | None = None) -> Tensor:
    """Outputs `[*lead, outputs]` of a network without memory."""
    return flow(network.plan, FloatRunner(network, features, extra=extra)).data


def activate(data: Tensor, activation: Activation) -> Tensor:
    """Applies an activation."""
    if activation == "relu":
        return data.relu()
    return data.tanh() if activation == "tanh" else data


def no_past(plan: Plan, lead: Sequence[int], like: Tensor) -> Past:
    """The beginning of episodes, `[T, B]` of them, for one memory."""
    state = like.new_zeros((lead[-1], plan.state_width), dtype=torch.float32)
    return Past(state, torch.zeros(tuple(lead), dtype=torch.bool, device=like.device))
