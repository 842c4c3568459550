"""The shape of a network, without weights, and the one order in which its layers are run.

Everything that runs a network walks `flow`: torch while training, torch with simulated integers,
the writer of ONNX graphs, and the maker of their tensors. So what is exported cannot differ from
what is trained in its structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from cloud_learner.models.features import FeatureLayout

Activation = Literal["relu", "tanh", "none"]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Dense:
    """An affine layer, `y = activation(x @ weight.T + bias)`."""

    inputs: int
    outputs: int
    activation: Activation = "relu"


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution without padding, ReLU behind it.

    Attributes:
        inputs: Channels.
        outputs: Channels.
        kernel: Pixels of its side.
        stride: Pixels.
        height: Pixels of what it gives.
        width: Pixels of what it gives.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Lstm:
    """Long short-term memory (Hochreiter & Schmidhuber 1997); its state is `h | c`.

    Attributes:
        units: F, the width of `h`, which the critic reads.
    """

    units: int

    @property
    def state_width(self) -> int:
        """S."""
        return 2 * self.units


@dataclass(frozen=True, slots=True)
class Attention:
    """One head of attention over the last embeddings (Vaswani et al. 2017, section 3.2).

    Its state holds, oldest first, the keys, the values and a valid flag of `window - 1` steps.

    Attributes:
        units: F, the width of keys, values and of what it gives, which the critic reads.
        window: Steps it looks back, the present one included.
    """

    units: int
    window: int

    @property
    def state_width(self) -> int:
        """S."""
        return (self.window - 1) * (2 * self.units + 1)


Memory = Lstm | Attention


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a network consists of.

    Attributes:
        features: How observations enter.
        extra: Further inputs behind them: what the critic reads of the memory, or actions.
        layers: All layers that have weights, in the order of `flow`.
        convs: For each image, the places of its conv layers in `layers`.
        trunk: Places of the dense layers before the memory.
        memory: The memory, if there is one.
        projection: Place of the memory's one dense layer.
        head: Places of the dense layers behind; the last has no activation.
    """

    features: FeatureLayout
    extra: int
    layers: tuple[Dense | Conv, ...]
    convs: tuple[tuple[int, ...], ...]
    trunk: tuple[int, ...]
    memory: Memory | None
    projection: int | None
    head: tuple[int, ...]

    @property
    def state_width(self) -> int:
        """S, 0 without memory."""
        return 0 if self.memory is None else self.memory.state_width

    @property
    def last(self) -> int:
        """Place of the last layer."""
        return self.head[-1]

    @property
    def products(self) -> int:
        """Multiplications that one observation costs."""
        return sum(
            layer.inputs * layer.outputs
            if isinstance(layer, Dense)
            else layer.inputs * layer.outputs * layer.kernel**2 * layer.height * layer.width
            for layer in self.layers
        )

    def dense(self, place: int) -> Dense:
        """The dense layer at a place."""
        layer = self.layers[place]
        if not isinstance(layer, Dense):
            raise TypeError(f"layer {place} is not dense")
        return layer

    def conv(self, place: int) -> Conv:
        """The conv layer at a place."""
        layer = self.layers[place]
        if not isinstance(layer, Conv):
            raise TypeError(f"layer {place} is not a convolution")
        return layer


class Runner(Protocol[V]):
    """What each step of `flow` does to a value, by whoever runs the network."""

    def image(self, index: int) -> V:
        """An image as it is observed."""

    def conv(self, place: int, value: V) -> V:
        """A convolution and its ReLU."""

    def flatten(self, value: V) -> V:
        """`[C, H, W]` as one row."""

    def vector(self) -> V:
        """Everything else that is observed."""

    def extra(self) -> V:
        """The further inputs."""

    def join(self, values: Sequence[V]) -> V:
        """Rows side by side."""

    def dense(self, place: int, value: V) -> V:
        """A dense layer and its activation."""

    def remember(self, place: int, value: V) -> V:
        """The memory: what goes on to the head."""


def flow(plan: Plan, runner: Runner[V]) -> V:
    """Runs a network and gives its outputs."""
    parts: list[V] = []
    for index, convs in enumerate(plan.convs):
        value = runner.image(index)
        for place in convs:
            value = runner.conv(place, value)
        parts.append(runner.flatten(value))
    if plan.features.vector:
        parts.append(runner.vector())
    if plan.extra:
        parts.append(runner.extra())
    value = parts[0] if len(parts) == 1 else runner.join(parts)
    for place in plan.trunk:
        value = runner.dense(place, value)
    if plan.projection is not None:
        value = runner.remember(plan.projection, value)
    for place in plan.head:
        value = runner.dense(place, value)
    return value
