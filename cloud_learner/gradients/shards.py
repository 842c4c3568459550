"""Optimisers over parts of one flat vector of parameters, each changed in place.

Below `THREADS_FROM` parameters gradients are applied in turn on the event loop; from there on each
shard is changed by a thread of its own, one gradient after the other (`threads` decides otherwise).
No lock is taken: whoever reads the weights while threads apply may see a gradient in part, as in
Niu et al. 2011, "Hogwild!".
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import numpy as np

from cloud_learner.gradients.settings import GradientsConfig
from shoal.errors import CheckpointError
from shoal.gradients import Floats

BLOCK: Final = 16_384
"""Parameters worked on at a time: what an update touches of them stays in the cache."""
THREADS_FROM: Final = 262_144
"""Parameters from which `threads = "auto"` gives each shard a thread of its own: see 0011."""
_BETAS: Final = (0.9, 0.999)


class Shard(Protocol):
    """Some of the parameters and their optimiser."""

    def apply(self, gradient: Floats, gain: float, rate: float) -> None:
        """Makes one update in place.

        Args:
            gradient: `[S]`, of these parameters; left as it is.
            gain: What to multiply it by.
            rate: The learning rate.
        """

    def state_dict(self) -> Mapping[str, Floats | int]:
        """A copy of all but the parameters."""

    def load_state_dict(self, state: Mapping[str, Floats | int]) -> None:
        """Goes on from a state."""


class Sgd:
    """Gradient descent with momentum: v = momentum v + g; p -= rate v."""

    def __init__(self, parameters: Floats, *, momentum: float) -> None:
        """Takes over a view of the parameters `[S]`."""
        self._parameters = parameters
        self._momentum = np.float32(momentum)
        self._velocity = np.zeros_like(parameters)
        self._scratch = np.empty(min(BLOCK, len(parameters)), np.float32)

    def apply(self, gradient: Floats, gain: float, rate: float) -> None:
        """Makes one update in place."""
        for start in range(0, len(gradient), BLOCK):
            part = slice(start, start + BLOCK)
            velocity, parameters = self._velocity[part], self._parameters[part]
            scratch = self._scratch[: len(velocity)]
            np.multiply(gradient[part], np.float32(gain), out=scratch)
            velocity *= self._momentum
            velocity += scratch
            np.multiply(velocity, np.float32(rate), out=scratch)
            parameters -= scratch

    def state_dict(self) -> Mapping[str, Floats | int]:
        """A copy of all but the parameters."""
        return {"velocity": self._velocity.copy()}

    def load_state_dict(self, state: Mapping[str, Floats | int]) -> None:
        """Goes on from a state."""
        self._velocity[:] = state["velocity"]


class Adam:
    """Kingma & Ba 2015, "Adam", algorithm 1, with the order of section 2's last paragraph."""

    def __init__(self, parameters: Floats, *, eps: float) -> None:
        """Takes over a view of the parameters `[S]`."""
        self._parameters = parameters
        self._eps = np.float32(eps)
        self._first = np.zeros_like(parameters)
        self._second = np.zeros_like(parameters)
        self._steps = 0
        self._scratch = np.empty(min(BLOCK, len(parameters)), np.float32)

    def apply(self, gradient: Floats, gain: float, rate: float) -> None:
        """Makes one update in place."""
        self._steps += 1
        keep_first, keep_second = (np.float32(beta) for beta in _BETAS)
        take_first, take_second = (np.float32(1.0 - beta) for beta in _BETAS)
        root = (1.0 - _BETAS[1] ** self._steps) ** 0.5
        # p -= a m / (sqrt(v) + e'), with the corrections of both moments moved into a and e'.
        step = np.float32(rate * root / (1.0 - _BETAS[0] ** self._steps))
        eps = np.float32(self._eps * root)
        for start in range(0, len(gradient), BLOCK):
            part = slice(start, start + BLOCK)
            first, second = self._first[part], self._second[part]
            parameters = self._parameters[part]
            scratch = self._scratch[: len(first)]
            np.multiply(gradient[part], np.float32(gain) * take_first, out=scratch)
            first *= keep_first
            first += scratch
            np.multiply(gradient[part], np.float32(gain), out=scratch)
            np.square(scratch, out=scratch)
            scratch *= take_second
            second *= keep_second
            second += scratch
            np.sqrt(second, out=scratch)
            scratch += eps
            np.divide(first, scratch, out=scratch)
            scratch *= step
            parameters -= scratch

    def state_dict(self) -> Mapping[str, Floats | int]:
        """A copy of all but the parameters."""
        return {"first": self._first.copy(), "second": self._second.copy(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Floats | int]) -> None:
        """Goes on from a state."""
        self._first[:] = state["first"]
        self._second[:] = state["second"]
        self._steps = int(state["steps"])


class Shards:
    """All parameters, cut into shards of equal size.

    shards = Shards(flat, config)
    shards.apply(gradient, gain=1.0, rate=1e-3)          # in this thread
    await shards.apply_in_threads(gradient, gain=1.0, rate=1e-3)

    With threads each shard has one of its own, which alone changes it: several gradients are on
    their way at a time, and each shard takes them in the order in which they came to it.
    """

    def __init__(self, flat: Floats, config: GradientsConfig) -> None:
        """Takes over the parameters.

        Args:
            flat: `[P]` float32; it is changed in place.
            config: How many shards, which optimiser.
        """
        self.flat = flat
        count = min(config.shards, len(flat))
        edges = [len(flat) * n // count for n in range(count + 1)]
        self._parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
        self._shards: list[Shard] = [_shard(flat[part], config) for part in self._parts]
        self._config = config
        self._threads: list[ThreadPoolExecutor] = []

    @property
    def threaded(self) -> bool:
        """Whether gradients are worth a thread for each shard."""
        always = self._config.threads == "always"
        auto = self._config.threads == "auto" and len(self.flat) >= THREADS_FROM
        return always or auto

    def apply(self, gradient: Floats, *, gain: float, rate: float) -> None:
        """Applies a gradient `[P]`, shard after shard."""
        for part, shard in zip(self._parts, self._shards, strict=True):
            shard.apply(gradient[part], gain, rate)

    async def apply_in_threads(self, gradient: Floats, *, gain: float, rate: float) -> None:
        """Applies a gradient `[P]`, all shards at a time."""
        if not self._threads:
            self._threads = [ThreadPoolExecutor(1, f"shard-{n}") for n in range(len(self._shards))]
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(
                loop.run_in_executor(thread, shard.apply, gradient[part], gain, rate)
                for thread, shard, part in zip(
                    self._threads, self._shards, self._parts, strict=True
                )
            )
        )

    def close(self) -> None:
        """Ends the threads."""
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        self._threads = []

    def state_dict(self) -> dict[str, object]:
        """A copy of the optimisers' state, joined: another number of shards may go on from it."""
        states = [shard.state_dict() for shard in self._shards]
        return {"optimiser": self._config.optimiser, **_joined(states)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a state.

        Raises:
            CheckpointError: It is of another optimiser or another network.
        """
        if state.get("optimiser") != self._config.optimiser:
            raise CheckpointError(
                f"the checkpoint is of gradients.optimiser = {state.get('optimiser')!r}, it is "
                f"{self._config.optimiser!r} now: set it back, or use another state_dir"
            )
        fields = {name: value for name, value in state.items() if name != "optimiser"}
        for part, shard in zip(self._parts, self._shards, strict=True):
            own: dict[str, Floats | int] = {}
            for name, value in fields.items():
                if isinstance(value, np.ndarray):
                    if value.shape != self.flat.shape:
                        raise CheckpointError(
                            f"the checkpoint has {value.size} parameters, this network has "
                            f"{self.flat.size}: resume with the training.network it was made with"
                        )
                    own[name] = value[part]
                else:
                    own[name] = int(value)  # type: ignore[call-overload] # as it was saved
            shard.load_state_dict(own)


def _shard(parameters: Floats, config: GradientsConfig) -> Shard:
    if config.optimiser == "adam":
        return Adam(parameters, eps=config.adam_eps)
    return Sgd(parameters, momentum=config.momentum)


def _joined(states: Sequence[Mapping[str, Floats | int]]) -> dict[str, object]:
    joined: dict[str, object] = {}
    for name, first in states[0].items():
        values = [state[name] for state in states]
        joined[name] = (
            np.concatenate([np.asarray(value) for value in values])
            if isinstance(first, np.ndarray)
            else first
        )
    return joined
