"""The int8 scheme: how ranges become scales, and weights become integers.

Weights are symmetric per output channel, activations u8, biases s32 in the scale of the product,
which is the scheme of onnxruntime's own static quantizer. Weights take 7 bits: kernels without VNNI
add pairs of u8 * s8 products in 16 bits and would saturate with 8, so the same policy would act
differently on two machines. Ranges are held while they fit, so that few integers change between
versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from cloud_learner.models.normalizer import NORMALIZED_MAX
from cloud_learner.models.plan import Attention, Conv, Dense, Plan

WEIGHT_MAX: Final = 64  # 255 * (64 + 64) fits 16 bits with its sign
UNSIGNED_MAX: Final = 255.0  # of activations behind a ReLU, and pixels
SIGNED_MAX: Final = 127.0  # of numbers of either sign, whose zero point is `SIGNED_ZERO`
SIGNED_ZERO: Final = 128
UNIT_SCALE: Final = 1.0 / SIGNED_MAX  # of numbers that lie within -1 and 1 by what they are
HEADROOM: Final = 1.1  # a range that moves takes this much more than it needs
_SLACK: Final = 0.6  # and is held until it needs less than this part of itself
_PATIENCE: Final = 16  # versions in a row that must need less, where needs are those of a sample
_INT32: Final = torch.iinfo(torch.int32)

Rounding = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class IntegerAffine:
    """A layer in integers, held in floating-point tensors.

    Attributes:
        weight: Whole numbers within `WEIGHT_MAX`, `[out, ...]`.
        bias: Whole numbers, `[out]`, in units of `scale`; float64.
        scale: float32 `[out]`, what one unit of a product stands for.
        weight_scale: float32 `[out]`, what one unit of a weight stands for.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    weight_scale: Tensor


def quantize_affine(
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    reach: Tensor,
    rounding: Rounding = torch.round,
    bias_rounding: Rounding | None = None,
) -> IntegerAffine:
    """A layer in integers.

    Args:
        weight: float32 `[out, ...]`.
        bias: float32 `[out]`.
        input_scale: float32 `[]`, what one unit of the input stands for.
        reach: float32 `[out]`, the magnitude that becomes `WEIGHT_MAX`.
        rounding: To even; another one may pass gradients.
        bias_rounding: Of the bias, float64 `[out]`; left out, it is rounded as weights are.
    """
    scale = weight_scale(reach)
    units = weight / scale.reshape((-1, *(1,) * (weight.dim() - 1)))
    product = input_scale * scale
    return IntegerAffine(
        weight=_within(rounding(units), -WEIGHT_MAX, WEIGHT_MAX),
        bias=_within(
            (bias_rounding or rounding)(bias.double() / product.double()), _INT32.min, _INT32.max
        ),
        scale=product,
        weight_scale=scale,
    )


def _within(values: Tensor, low: int, high: int) -> Tensor:
    """Values within bounds.

    Where gradients pass, ranges were moved to hold all weights a moment ago, so that bounds change
    nothing, and the backward pass of `clamp` is dear.
    """
    return values if values.requires_grad else values.clamp(low, high)


def weight_scale(reach: Tensor) -> Tensor:
    """float32 `[out]`, what one unit of a weight stands for; never 0."""
    scale = reach / WEIGHT_MAX
    return torch.where(scale < torch.finfo(torch.float32).tiny, 1.0, scale)


def channel_reach(weight: Tensor) -> Tensor:
    """The largest magnitude `[out]` of each output channel's weights `[out, ...]`."""
    return weight.detach().abs().flatten(1).amax(1)


def hold_range(held: Tensor | None, reach: Tensor) -> Tensor:
    """Moves ranges only where they no longer fit.

    Args:
        held: float32 `[C]`, what was used before; None at first.
        reach: float32 `[C]`, what is needed now.

    Returns:
        float32 `[C]`: as held, or where that is too small or far too large, the need with some
        headroom; exactly the need at first. Never 0.
    """
    needed = torch.where(reach > 0.0, reach, 1.0)
    if held is None:
        return needed
    moves = (needed > held) | (needed < held * _SLACK)
    return torch.where(moves, needed * HEADROOM, held)


def hold_sampled_range(
    held: Tensor | None, reach: Tensor, low: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `hold_range`, of a need that is only that of a sample.

    Many samples hold nothing large; the next one may. So a range gives way to a smaller one only
    when many in a row would have fitted.

    Args:
        held: float32 `[C]`; None at first.
        reach: float32 `[C]`, what this sample needs.
        low: float32 `[2, C]`, as it was returned before: how many samples in a row have needed far
            less than is held, and the most that any of these needed. None at first.

    Returns:
        The range, float32 `[C]`, and `low` for the next time.
    """
    if held is None or low is None:
        return hold_range(held, reach), torch.zeros(2, len(reach))
    needs_less = reach < held * _SLACK
    count = torch.where(needs_less, low[0] + 1.0, 0.0)
    most = torch.where(needs_less, torch.maximum(low[1], reach), 0.0)
    ripe = count >= _PATIENCE
    wanted = torch.where(needs_less, torch.where(ripe, most, held), reach)
    count, most = (torch.where(ripe, 0.0, each) for each in (count, most))
    return hold_range(held, wanted), torch.stack([count, most])


def input_gain(reach: Tensor, *, normalized: bool) -> Tensor:
    """float32 `[vector]`, units that 1 of each observed (or normalized) number takes."""
    held = reach.clamp(max=NORMALIZED_MAX) if normalized else reach
    return SIGNED_MAX / held


def activation_scale(plan: Plan, place: int, reach: Tensor) -> Tensor:
    """float32 `[]`, what one unit of a hidden layer's activations stands for."""
    layer = plan.layers[place]
    signed = isinstance(layer, Dense) and layer.activation != "relu"
    if isinstance(layer, Dense) and layer.activation == "tanh":
        return torch.tensor(UNIT_SCALE)
    return (reach / (SIGNED_MAX if signed else UNSIGNED_MAX)).reshape(())


def range_widths(plan: Plan) -> dict[str, int]:
    """Every range that a plan needs, by name: of the inputs, of activations and of weights."""
    widths: dict[str, int] = {}
    if plan.features.vector and not plan.features.all_pixels:
        widths["input"] = plan.features.width
    for place, layer in enumerate(plan.layers):
        widths[f"weight.{place}"] = layer.outputs
        calm = isinstance(layer, Conv) or layer.activation != "tanh"
        if calm and place not in (plan.last, plan.projection):
            widths[f"output.{place}"] = 1
    if isinstance(plan.memory, Attention):
        widths["memory"] = 1
    return widths


class HeldRanges(nn.Module):
    """The ranges of the last published version, held by a policy that is trained in integers.

    They are part of its `state_dict`.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._names = list(range_widths(plan))
        for name, width in range_widths(plan).items():
            self.register_buffer(_buffer(name), torch.zeros(width))
        self.register_buffer("held", torch.zeros((), dtype=torch.bool))
        self._ready: bool | None = False

    held: Tensor

    @property
    def ready(self) -> bool:
        """Whether a version was published yet."""
        if self._ready is None:
            self._ready = bool(self.held)
        return self._ready

    def hold(self, ranges: Mapping[str, Tensor]) -> None:
        """Takes over the ranges that a version was published with."""
        for name in self._names:
            self.get_buffer(_buffer(name)).copy_(ranges[name])
        self.held.fill_(value=True)
        self._ready = True

    def reach(self, name: str) -> Tensor:
        """The range of a name."""
        reach = self._buffers[_buffer(name)]
        assert reach is not None  # noqa: S101 - as it was registered
        return reach

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._ready = None  # looked up when it is next asked for


def _buffer(name: str) -> str:
    return name.replace(".", "_")
