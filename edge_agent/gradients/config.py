"""`[gradients]` of a device: what it computes and pushes where `mode = "gradients"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from shoal.errors import ConfigError

DEFAULT_WORKER: Final = "cloud_learner.gradients.worker:make_worker"
MAX_UPDATE_INTERVAL: Final = 1 << 20
MAX_QUEUE_CHUNKS: Final = 1024
MAX_PASSES: Final = 64


@dataclass(frozen=True, slots=True)
class GradientsConfig:
    """How a device computes gradients; needs the extra `train`.

    Attributes:
        update_interval: environment steps, of all the device's environments together, between two
            gradients that it pushes.
        passes: gradients computed from each step, at newer weights each time: a chunk has
            `update_interval * passes` steps, in place of `actor.chunk_steps`, and gives as many
            gradients as there are passes.
        codec: how gradients travel: "float32", "int8" or "top_k"; what the latter two lose goes
            into the next gradient.
        top_k: of "top_k", the part of the parameters that travels.
        queue_chunks: chunks that wait for the gradient at most; the oldest goes when one more
            comes, and is counted.
        share_moments: whether mean, variance and range of each element of the observations go with
            the gradients, for the learner to calibrate int8 with and, where it normalizes
            observations, to make the normalizer of. Observations never do.
        allow: dotted paths of algorithms and torsos, beyond Shoal's own, that the learner may have
            this device run.
        worker: what computes: `module:attr`, called with the spaces and `allow`.
    """

    update_interval: int = 50
    passes: int = 4
    codec: Literal["float32", "int8", "top_k"] = "int8"
    top_k: float = 0.05
    queue_chunks: int = 4
    share_moments: bool = True
    allow: tuple[str, ...] = ()
    worker: str = DEFAULT_WORKER

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        for name, value, low, high in (
            ("update_interval", self.update_interval, 1, MAX_UPDATE_INTERVAL),
            ("passes", self.passes, 1, MAX_PASSES),
            ("top_k", self.top_k, 1e-6, 1.0),
            ("queue_chunks", self.queue_chunks, 1, MAX_QUEUE_CHUNKS),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}: give a value between {low} and {high}")
        for path in (self.worker, *self.allow):
            if ":" not in path:
                raise ConfigError(f'worker and allow name "{path}": give a path module:attr')

    def chunk_steps(self, envs: int) -> int:
        """Steps T in a chunk of so many environments, rounded up."""
        return -(-self.update_interval * self.passes // envs)
