"""How observations enter a network: images, and one vector of everything else.

Leaves that are images, where they are convolved, stay apart. All other leaves lie one after another
in a vector: numbers as they are, pixels to be scaled by 1/255, booleans as 0 and 1, and discrete
leaves one-hot. The same layout is read by torch here and by the policy graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.layout import Field, ObservationLayout
from shoal.spaces import Box, Discrete, MultiBinary, MultiDiscrete

PIXEL_SCALE: Final = 1.0 / 255.0
_IMAGE_AXES: Final = 3
_SMALLEST_IMAGE: Final = 3  # pixels of the shorter side: a kernel has to fit
_WIDEST_ONE_HOT: Final = 8192

VectorKind = Literal["number", "pixel", "flag", "one_hot"]


@dataclass(frozen=True, slots=True, eq=False)
class ImageLeaf:
    """A leaf that a conv stack reads.

    Attributes:
        field: Where it lies.
        channels: Its channels.
        height: Pixels.
        width: Pixels.
        channels_last: Whether it is `[H, W, C]` rather than `[C, H, W]`.
    """

    field: Field
    channels: int
    height: int
    width: int
    channels_last: bool


@dataclass(frozen=True, slots=True, eq=False)
class VectorLeaf:
    """A leaf that is part of the vector.

    Attributes:
        field: Where it lies.
        kind: What its elements are.
        width: Columns it takes.
        values: Of a one-hot leaf: how many values each element has.
    """

    field: Field
    kind: VectorKind
    width: int
    values: tuple[int, ...] = ()

    def element_of_column(self) -> NDArray[np.int64]:
        """Of a one-hot leaf, the element `[width]` that each column looks at."""
        return np.repeat(np.arange(len(self.values), dtype=np.int64), self.values)

    def value_of_column(self) -> NDArray[np.int64]:
        """Of a one-hot leaf, the value `[width]` for which each column is 1."""
        return np.concatenate([np.arange(n, dtype=np.int64) for n in self.values])


@dataclass(frozen=True, slots=True, eq=False)
class FeatureLayout:
    """What of an observation goes where.

    Attributes:
        images: Leaves for conv stacks, in order.
        vector: All others, in order.
    """

    images: tuple[ImageLeaf, ...]
    vector: tuple[VectorLeaf, ...]

    @classmethod
    def of(cls, layout: ObservationLayout, *, convolve: bool) -> FeatureLayout:
        """Sorts the leaves.

        Args:
            layout: Of the observation space.
            convolve: Whether images get a conv stack; else their pixels are part of the vector.

        Raises:
            ConfigError: A discrete leaf has too many values for a one-hot vector.
        """
        images: list[ImageLeaf] = []
        vector: list[VectorLeaf] = []
        for field in layout.fields:
            image = image_leaf(field) if convolve else None
            if image is not None:
                images.append(image)
            else:
                vector.append(_vector_leaf(field))
        return cls(tuple(images), tuple(vector))

    @property
    def width(self) -> int:
        """Columns of the vector."""
        return sum(leaf.width for leaf in self.vector)

    @property
    def all_pixels(self) -> bool:
        """Whether the vector is uint8 throughout: it then needs no quantization."""
        return bool(self.vector) and all(leaf.kind == "pixel" for leaf in self.vector)

    def columns(self, kind: VectorKind) -> NDArray[np.bool_]:
        """Which columns `[width]` of the vector are of a kind."""
        parts = [np.full(leaf.width, leaf.kind == kind) for leaf in self.vector]
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Observations, sorted.

    Attributes:
        images: uint8 `[*lead, C, H, W]` each.
        vector: float32 `[*lead, width]`; pixels not yet scaled.
    """

    images: tuple[Tensor, ...]
    vector: Tensor | None


class Encoder(nn.Module):
    """Sorts observations `[*lead, *obs]` as a chunk holds them into features.

    >>> features = Encoder(layout, FeatureLayout.of(layout, convolve=True))(observations)
    """

    def __init__(self, layout: ObservationLayout, plan: FeatureLayout) -> None:
        super().__init__()
        self._layout = layout
        self.plan = plan
        for index, leaf in enumerate(plan.vector):
            if leaf.kind == "one_hot":
                element = torch.from_numpy(leaf.element_of_column())
                value = torch.from_numpy(leaf.value_of_column())
                self.register_buffer(f"element_{index}", element, persistent=False)
                self.register_buffer(f"value_{index}", value, persistent=False)

    def forward(self, observations: Tensor) -> Features:
        """Sorts; the dtype of images is kept, everything else becomes float32."""
        lead = observations.shape[: observations.dim() - len(self._layout.shape)]
        images = tuple(
            _channels_first(self._leaf(observations, image.field, lead), image)
            for image in self.plan.images
        )
        parts = [
            self._columns(self._leaf(observations, leaf.field, lead), leaf, index, lead)
            for index, leaf in enumerate(self.plan.vector)
        ]
        if not parts:
            return Features(images, None)
        return Features(images, parts[0] if len(parts) == 1 else torch.cat(parts, -1))

    def _leaf(self, observations: Tensor, field: Field, lead: torch.Size) -> Tensor:
        if not self._layout.packed:
            return observations
        raw = observations[..., field.offset : field.offset + field.size_bytes]
        if field.dtype != np.uint8:
            raw = raw.clone(memory_format=torch.contiguous_format).view(_torch_dtype(field))
        return raw.reshape((*lead, *field.shape))

    def _columns(self, value: Tensor, leaf: VectorLeaf, index: int, lead: torch.Size) -> Tensor:
        axes = len(leaf.field.shape)
        flat = value if axes == 1 else value.reshape((*lead, math.prod(leaf.field.shape)))
        if leaf.kind == "one_hot":
            elements = flat.to(torch.int64)
            if len(leaf.values) > 1:
                elements = elements.index_select(-1, self.get_buffer(f"element_{index}"))
            return (elements == self.get_buffer(f"value_{index}")).to(torch.float32)
        return flat if flat.dtype == torch.float32 else flat.to(torch.float32)


def image_leaf(field: Field) -> ImageLeaf | None:
    """The leaf as an image, if it is one: a uint8 Box of 3 axes.

    The channels are its first axis where that is shorter than the last, else the last.
    """
    if field.dtype != np.uint8 or len(field.shape) != _IMAGE_AXES:
        return None
    channels_last = field.shape[0] >= field.shape[2]
    if channels_last:
        height, width, channels = field.shape
    else:
        channels, height, width = field.shape
    if min(height, width) < _SMALLEST_IMAGE:
        return None
    return ImageLeaf(field, channels, height, width, channels_last)


def _vector_leaf(field: Field) -> VectorLeaf:
    size = math.prod(field.shape)
    match field.space:
        case Discrete():
            values: tuple[int, ...] = (field.space.n,)
        case MultiDiscrete():
            values = tuple(field.space.nvec.ravel().tolist())
        case MultiBinary():
            return VectorLeaf(field, "flag", size)
        case Box():
            kinds: dict[str, VectorKind] = {"u1": "pixel", "b1": "flag"}
            return VectorLeaf(field, kinds.get(field.dtype.str[1:], "number"), size)
    if sum(values) > _WIDEST_ONE_HOT:
        raise ConfigError(
            f"observation {field.path or 'space'!r} has {sum(values)} values: one-hot they would "
            f"take more than {_WIDEST_ONE_HOT} columns; observe it as numbers (a Box) instead"
        )
    return VectorLeaf(field, "one_hot", sum(values), values)


def _channels_first(value: Tensor, image: ImageLeaf) -> Tensor:
    return value.movedim(-1, -3) if image.channels_last else value


def _torch_dtype(field: Field) -> torch.dtype:
    native = np.zeros(1, field.dtype.newbyteorder("="))
    return torch.from_numpy(native).dtype
