"""The weights that pushed gradients change, and how devices get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Self

import numpy as np

from cloud_learner.algorithms.differentiable import Differentiable, differentiable
from cloud_learner.gradients.rules import Verdict, learning_rate
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.shards import Shards
from cloud_learner.training.brain import Brain
from shoal.acting_normalizer import ActingNormalizer
from shoal.errors import CheckpointError
from shoal.gradients import Floats, Weights, encode_weights
from shoal.policy import split
from shoal.spaces import EnvSpec
from shoal.v1 import parameter_server_pb2 as pb

MAX_KEPT_PARTS: Final = 4
"""Normalizers with which weights are kept as they travel: what devices act with at a time."""


class Live:
    """One flat vector of parameters apart from the learner's networks, which follow it.

    live = Live.of(brain, config)
    await live.apply(gradient, judge(lag, norm, config))
    live.put_into(brain)           # before a policy is published

    Attributes:
        spec: The spaces.
        layout_digest: Of the parameters.
        shards: Change them.
    """

    def __init__(
        self,
        flat: Floats,
        layout_digest: bytes,
        spec: EnvSpec,
        config: GradientsConfig,
        *,
        setup: Mapping[str, object],
        started_at: Callable[[], int],
    ) -> None:
        """Takes over a vector.

        Args:
            flat: `[P]`, its own copy.
            layout_digest: 32 bytes.
            spec: The spaces.
            config: How gradients are applied.
            setup: What gradients are computed with, as JSON has it.
            started_at: Updates before the first of these; asked once, when that is to be known.
        """
        self.spec = spec
        self.layout_digest = layout_digest
        self.shards = Shards(flat, config)
        self._config = config
        self._setup = setup
        self._started_at = started_at
        self._base: int | None = None
        self._applied = 0
        self._parts: dict[int, tuple[pb.Part, ...]] = {}
        self._parts_of: int | None = None

    @classmethod
    def of(cls, brain: Brain, config: GradientsConfig) -> Self:
        """The weights of a brain.

        Raises:
            ConfigError: Devices cannot compute the gradients of its algorithm.
        """
        algorithm = _of(brain, brain.recipe.algorithm)
        return cls(
            algorithm.flat.copy(),
            algorithm.layout_digest,
            brain.spec,
            config,
            setup=brain.recipe.to_json(),
            started_at=lambda: brain.learner.updates,
        )

    @property
    def parameters(self) -> int:
        """P."""
        return len(self.shards.flat)

    @property
    def updates(self) -> int:
        """Optimiser updates since training began."""
        if self._base is None:
            self._base = self._started_at()
        return self._base + self._applied

    async def apply(self, gradient: Floats, verdict: Verdict) -> None:
        """Applies a gradient `[P]` that was judged; counted before it is through all shards."""
        rate = learning_rate(self._config, self.updates) * verdict.rate
        self._applied += 1
        if self.shards.threaded:
            await self.shards.apply_in_threads(gradient, gain=verdict.gain, rate=rate)
        else:
            self.shards.apply(gradient, gain=verdict.gain, rate=rate)

    def parts(self, normalizer: ActingNormalizer | None = None) -> tuple[pb.Part, ...]:
        """The weights as they travel; the same for all who ask between two updates.

        Args:
            normalizer: Of the version that whoever asks acted with; None where there is none.
        """
        updates, version = self.updates, 0 if normalizer is None else normalizer.version
        if self._parts_of != updates:
            self._parts, self._parts_of = {}, updates
        if version not in self._parts:
            payload = encode_weights(
                Weights(self.layout_digest, updates, self.shards.flat, self._setup, normalizer)
            )
            if len(self._parts) == MAX_KEPT_PARTS:
                del self._parts[next(iter(self._parts))]
            self._parts[version] = tuple(
                pb.Part(total_bytes=part.total_bytes, offset=part.offset, data=part.data)
                for part in split(payload)
            )
        return self._parts[version]

    def put_into(self, brain: Brain) -> None:
        """Has a brain's networks be these weights, and its learner count as many updates."""
        updates = self.updates
        _of(brain, "the algorithm").flat[:] = self.shards.flat
        brain.learner.follow(updates)

    def state_dict(self) -> dict[str, object]:
        """A copy of weights and optimisers."""
        return {
            "flat": self.shards.flat.copy(),
            "updates": self.updates,
            "shards": self.shards.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a state.

        Raises:
            CheckpointError: It is of another network or another optimiser.
        """
        shards = state["shards"]
        assert isinstance(shards, Mapping)  # noqa: S101 - as it was saved
        try:
            self.shards.flat[:] = np.asarray(state["flat"], np.float32)
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint's weights are not {self.parameters}: resume with the "
                "training.network it was made with"
            ) from error
        self.shards.load_state_dict(shards)
        self._base, self._applied = max(int(state["updates"]), self._started_at()), 0  # type: ignore[call-overload]


def _of(brain: Brain, path: str) -> Differentiable:
    return differentiable(brain.learner.algorithm, path)
