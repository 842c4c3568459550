"""The layers of each kind of network, with their initial weights."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor, nn

from cloud_learner.config import NetworkConfig
from cloud_learner.models.features import FeatureLayout, ImageLeaf
from cloud_learner.models.plan import Activation, Attention, Conv, Dense, Lstm, Memory, Plan
from shoal.errors import ConfigError

_HIDDEN_GAIN: Final = math.sqrt(2.0)
_LARGE_IMAGE: Final = 64  # pixels of the shorter side
_MIDDLE_IMAGE: Final = 32
_SMALL_IMAGE: Final = 12
_CALM_SIDE: Final = 11  # pixels at which a stack need not halve any more
_LAST_KERNEL: Final = 3


class DuelingHead(nn.Module):
    """Value and advantage streams (Wang et al. 2016, equation 9) as one dense layer.

    Its inputs are the value stream's and, behind them, the advantage stream's hidden units.
    """

    def __init__(self, width: int, actions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.value = linear(width, 1, 1.0, generator)
        self.advantage = linear(width, actions, 1.0, generator)

    @property
    def weight(self) -> Tensor:
        """`[actions, 2 * width]`: V + A - mean(A)."""
        advantage = self.advantage.weight - self.advantage.weight.mean(0, keepdim=True)
        value = self.value.weight.expand(len(advantage), -1)
        return torch.cat((value, advantage), 1)

    @property
    def bias(self) -> Tensor:
        """`[actions]`."""
        return self.value.bias + self.advantage.bias - self.advantage.bias.mean()


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A plan and the modules that hold the weights of its layers, place by place."""

    plan: Plan
    modules: list[nn.Module]


def build_layers(
    features: FeatureLayout,
    network: NetworkConfig,
    *,
    outputs: int,
    gain: float,
    generator: torch.Generator,
    extra: int = 0,
    with_memory: bool = True,
    dueling: bool = False,
) -> Built:
    """Plans a network and draws its weights.

    Args:
        features: How observations enter.
        network: What the user asked for.
        outputs: Of the last layer.
        gain: Of the last layer's initial weights.
        generator: Draws the weights; torch's global generator is left alone.
        extra: Further inputs.
        with_memory: Whether the kinds with memory have it here; else only their dense layers.
        dueling: Whether the head consists of two streams.

    Raises:
        ConfigError: The network's kind cannot be built for these observations.
    """
    memory = memory_of(network) if with_memory else None
    draft = _Draft(generator)
    convs = tuple(draft.conv_stack(image, network.filters) for image in features.images)
    joined = draft.flat + features.width + extra
    streams = 2 * network.hidden[-1]
    if ":" in network.kind:
        trunk = draft.own_torso(joined, network)
        if dueling:
            raise ConfigError("a torso of your own has no dueling streams: set dueling = false")
    else:
        split = dueling and memory is None
        widths = (*network.hidden[:-1], streams) if split else network.hidden
        trunk = draft.dense_stack(joined, widths)
    width = draft.outputs
    projection: int | None = None
    if memory is not None:
        projection = draft.memory(width, memory)
        width = memory.units if isinstance(memory, Lstm) else width + memory.units
    head: tuple[int, ...] = ()
    if dueling:
        if memory is not None:
            head = draft.dense_stack(width, (streams,))
        head = (*head, draft.dueling(network.hidden[-1], outputs))
    else:
        head = (draft.dense(width, outputs, gain, "none"),)
    plan = Plan(features, extra, tuple(draft.shapes), convs, trunk, memory, projection, head)
    return Built(plan, draft.modules)


def memory_of(network: NetworkConfig) -> Memory | None:
    """The memory of a kind of network."""
    if network.kind == "lstm":
        return Lstm(network.memory)
    if network.kind == "attention":
        return Attention(network.memory, network.window)
    return None


def convolves(network: NetworkConfig) -> bool:
    """Whether images get a conv stack."""
    return network.kind in {"auto", "cnn", "lstm", "attention"}


def linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """A dense layer with orthogonal weights (Saxe et al. 2014) and no bias at first."""
    with torch.random.fork_rng(devices=[]):  # it draws weights, which are drawn again below
        layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class _Draft:
    """Layers as they are added."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self.shapes: list[Dense | Conv] = []
        self.modules: list[nn.Module] = []
        self.flat = 0  # numbers that the conv stacks give
        self.outputs = 0  # of the layer added last

    def dense(self, inputs: int, outputs: int, gain: float, activation: Activation) -> int:
        module = linear(inputs, outputs, gain, self._generator)
        return self._add(Dense(inputs, outputs, activation), module, outputs)

    def dense_stack(self, inputs: int, widths: tuple[int, ...]) -> tuple[int, ...]:
        places = []
        for width in widths:
            places.append(self.dense(inputs, width, _HIDDEN_GAIN, "relu"))
            inputs = width
        return tuple(places)

    def conv_stack(self, image: ImageLeaf, filters: int) -> tuple[int, ...]:
        places = []
        stack = conv_stack(image.channels, image.height, image.width, filters=filters)
        for shape in stack:
            with torch.random.fork_rng(devices=[]):  # as in `linear`
                module = nn.Conv2d(shape.inputs, shape.outputs, shape.kernel, shape.stride)
            nn.init.orthogonal_(module.weight, _HIDDEN_GAIN, generator=self._generator)
            nn.init.zeros_(cast("Tensor", module.bias))
            places.append(self._add(shape, module, shape.outputs))
        last = self.shapes[places[-1]]
        assert isinstance(last, Conv)  # noqa: S101 - a stack has one layer or more
        self.flat += last.outputs * last.height * last.width
        return tuple(places)

    def memory(self, inputs: int, memory: Memory) -> int:
        units = memory.units
        if isinstance(memory, Lstm):
            module = linear(inputs + units, 4 * units, 1.0, self._generator)
            with torch.no_grad():  # remembers at first (Jozefowicz et al. 2015, section 2.2)
                module.bias[units : 2 * units] = 1.0
            return self._add(Dense(inputs + units, 4 * units, "none"), module, 4 * units)
        return self.dense(inputs, 3 * units, 1.0, "none")

    def dueling(self, width: int, actions: int) -> int:
        module = DuelingHead(width, actions, self._generator)
        return self._add(Dense(2 * width, actions, "none"), module, actions)

    def own_torso(self, inputs: int, network: NetworkConfig) -> tuple[int, ...]:
        made = _call(network, inputs, self._generator)
        places: list[int] = []
        for module in made:
            if isinstance(module, nn.Linear):
                if module.in_features != inputs:
                    raise ConfigError(
                        f"network.kind = {network.kind!r}: a Linear takes {module.in_features} "
                        f"inputs where {inputs} come"
                    )
                if module.bias is None:
                    raise ConfigError(f"network.kind = {network.kind!r}: a Linear has no bias")
                inputs = module.out_features
                places.append(self._add(Dense(module.in_features, inputs, "none"), module, inputs))
            elif isinstance(module, nn.ReLU | nn.Tanh) and self._may_activate(places):
                shape = self.shapes[places[-1]]
                assert isinstance(shape, Dense)  # noqa: S101 - as added above
                activation: Activation = "relu" if isinstance(module, nn.ReLU) else "tanh"
                self.shapes[places[-1]] = Dense(shape.inputs, shape.outputs, activation)
            elif not isinstance(module, nn.Identity):
                raise ConfigError(
                    f"network.kind = {network.kind!r}: {type(module).__name__} cannot be exported "
                    "to devices here; use Linear, each with a ReLU or Tanh behind it or none"
                )
        if not places:
            raise ConfigError(f"network.kind = {network.kind!r} has no Linear layer")
        return tuple(places)

    def _may_activate(self, places: list[int]) -> bool:
        if not places:
            return False
        shape = self.shapes[places[-1]]
        return isinstance(shape, Dense) and shape.activation == "none"

    def _add(self, shape: Dense | Conv, module: nn.Module, outputs: int) -> int:
        self.shapes.append(shape)
        self.modules.append(module)
        self.outputs = outputs
        return len(self.shapes) - 1


def conv_stack(channels: int, height: int, width: int, *, filters: int = 32) -> list[Conv]:
    """Convolutions for an image; 84 x 84 and 32 filters give those of Mnih et al. 2015.

    Large kernels with a stride first, then halvings until the shorter side is 11 pixels or less,
    then one layer that looks at neighbours, where there is room for it.
    """
    side = min(height, width)
    if side >= _LARGE_IMAGE:
        kernels = [(8, 4, filters)]
    elif side >= _MIDDLE_IMAGE:
        kernels = [(4, 2, filters)]
    else:
        kernels = [(3, 2 if side >= _SMALL_IMAGE else 1, filters)]
    side = _after(side, kernels[0][0], kernels[0][1])
    while side > _CALM_SIDE:
        kernels.append((4, 2, 2 * filters))
        side = _after(side, 4, 2)
    if side >= _LAST_KERNEL:
        kernels.append((_LAST_KERNEL, 1, 2 * filters))
    stack = []
    for kernel, stride, outputs in kernels:
        height, width = _after(height, kernel, stride), _after(width, kernel, stride)
        stack.append(Conv(channels, outputs, kernel, stride, height, width))
        channels = outputs
    return stack


def _after(side: int, kernel: int, stride: int) -> int:
    return (side - kernel) // stride + 1


def _call(network: NetworkConfig, inputs: int, generator: torch.Generator) -> nn.Sequential:
    """Calls a user's function with a global generator of its own, seeded from ours."""
    module_name, _, name = network.kind.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"network.kind = {network.kind!r} cannot be loaded ({error}); name it module:function"
        ) from error
    seed = int(torch.randint(1 << 62, (1,), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the fork: the one outside is untouched
        made = function(inputs, network)
    if not isinstance(made, nn.Sequential):
        raise ConfigError(
            f"network.kind = {network.kind!r} gave a {type(made).__name__}: it must give an "
            "nn.Sequential of Linear, ReLU and Tanh"
        )
    return made
