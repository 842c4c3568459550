"""What an algorithm of rollouts needs beyond `Algorithm` so that devices can compute gradients."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol, cast

from torch import nn

from cloud_learner.algorithms.interface import Algorithm
from cloud_learner.models.normalizer import Normalizer
from cloud_learner.training.experience import Batch
from shoal.errors import ConfigError
from shoal.gradients import Computed, Floats


class Differentiable(Protocol):
    """An algorithm whose gradient is computed in one place and applied in another.

    Attributes:
        flat: `[P]` float32, every parameter that is trained, actor and critic: a view, so that what
            is written here is what the networks are.
        layout_digest: 32 bytes, of names, shapes and order of those parameters, and of what is
            normalized.
    """

    @property
    def flat(self) -> Floats: ...  # noqa: D102 - see above
    @property
    def layout_digest(self) -> bytes: ...  # noqa: D102 - see above

    def prepare(self, batch: Batch) -> Any:  # noqa: ANN401 - its own
        """What the gradients of a batch are computed from: targets, as of the present weights."""

    def gradient(self, targets: Any) -> Computed:  # noqa: ANN401 - what `prepare` gave
        """The gradient of the loss at the present weights, which stay as they are."""

    def note_updates(self, updates: int) -> None:
        """Tells how many updates the weights have had: schedules follow them."""


def differentiable(algorithm: Algorithm, path: str) -> Differentiable:
    """The algorithm, if it is one.

    Raises:
        ConfigError: It is not.
    """
    missing = [
        name
        for name in ("flat", "layout_digest", "prepare", "gradient", "note_updates")
        if not hasattr(algorithm, name)
    ]
    if missing:
        raise ConfigError(
            f"training.mode = 'gradients' needs an algorithm whose gradient devices can compute, "
            f"and {path} has no {missing[0]!r}: use cloud_learner.algorithms.appo:APPO or "
            "impala:IMPALA, or see cloud_learner.algorithms.differentiable"
        )
    return cast("Differentiable", algorithm)


def layout_digest(model: nn.Module) -> bytes:
    """The digest of the parameters' names, shapes and order, and of who normalizes what.

    A device that does not know of normalizers finds another digest, and computes nothing.
    """
    layout = hashlib.sha256(b"shoal parameters v1\n")
    for name, parameter in model.named_parameters():
        layout.update(f"{name} {'x'.join(map(str, parameter.shape))}\n".encode())
    for name, module in model.named_modules():
        if isinstance(module, Normalizer):
            layout.update(f"{name} normalizer {module.numbers}\n".encode())
    return layout.digest()
