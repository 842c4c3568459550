"""A ring of transitions in memory: every observation once, in the environment's own dtype.

The steps of one environment of one chunk lie in consecutive slots, and what an action led to lies
in the slot after it. Where an episode ended, that is a slot of its own with the true final
observation; where a chunk ended, one with its last observation. Such a *border* holds no
transition and is never drawn, and no n-step return goes beyond one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from cloud_learner.training.experience import Admitted, Transitions
from cloud_learner.training.sum_tree import SumTree
from shoal.errors import ConfigError
from shoal.layout import ActionLayout, ObservationLayout
from shoal.spaces import EnvSpec
from shoal.tensors import Array
from shoal.trajectory import Chunk

_BORDER, _GOES_ON, _TERMINATED, _TRUNCATED = range(4)
_NEVER: Final = -1
_ROW_BYTES: Final = 1 + 4 + 8 + 8
"""Of a slot: kind, reward, the version's updates, stamp."""
_TREE_BYTES: Final = 4 * 8
"""Of a slot, at most: its leaf in the sum tree, whose leaves are a power of two, and its nodes."""
_MIN_ERROR: Final = 1e-6  # whatever was predicted perfectly is drawn again some day


def slot_bytes(spec: EnvSpec, *, prioritized: bool) -> int:
    """Bytes that a ring takes for each slot, in spaces."""
    observation, action = ObservationLayout.of(spec.observation), ActionLayout.of(spec.action)
    seen = observation.dtype.itemsize * math.prod(observation.shape)
    done = np.dtype(action.dtype).itemsize * math.prod(action.shape)
    return seen + done + _ROW_BYTES + prioritized * _TREE_BYTES


class RingState(TypedDict):
    """What a checkpoint keeps; the transitions themselves come back from the journal.

    Attributes:
        written: Slots ever written.
        held: `[K, 3]` journal position, first slot ever and version's updates of each chunk.
        draws: Draws ever made.
        priorities: `[slots]` in the order of writing, of those still there; empty when uniform.
        largest: The largest priority so far.
    """

    written: int
    held: NDArray[np.int64]
    draws: int
    priorities: NDArray[np.float64]
    largest: float


@dataclass(frozen=True, slots=True)
class Held:
    """A chunk in the ring.

    Attributes:
        position: In the journal.
        first: Its first slot, counted over all ever written.
        slots: How many it takes.
        version_updates: Of the version that acted.
    """

    position: int
    first: int
    slots: int
    version_updates: int


class TransitionRing:
    """Keeps the newest transitions and draws from them, uniformly or by priority.

    Prioritized as in Schaul et al. 2016, "Prioritized experience replay", and Horgan et al. 2018,
    whose actors say the first priorities. Each draw's randomness depends on seed and number alone.

    >>> ring = TransitionRing(100_000, seed=0)
    >>> ring.insert(admitted)
    >>> ring.draw(256, n_step=3, gamma=0.99, beta=1.0, updates_now=40)
    """

    def __init__(self, capacity: int, *, seed: int, alpha: float = 0.0) -> None:
        """Memory is taken with the first chunk, which says dtypes and shapes.

        Args:
            capacity: Slots; between half of them and nearly all hold transitions.
            seed: Of the draws.
            alpha: How much priorities count: 0 draws uniformly.
        """
        self._capacity = capacity
        self._seed = seed
        self._alpha = alpha
        self._tree = SumTree(capacity) if alpha > 0.0 else None
        self._largest = 1.0
        self._written = 0
        self._draws = 0
        self._size = 0
        self._held: deque[Held] = deque()
        self._kinds = np.full(capacity, _BORDER, np.uint8)
        self._rewards = np.zeros(capacity, np.float32)
        self._updates = np.zeros(capacity, np.int64)
        self._stamps = np.full(capacity, _NEVER, np.int64)
        self._observations: Array = np.empty(0, np.uint8)
        self._actions: Array = np.empty(0, np.uint8)

    @property
    def size(self) -> int:
        """Transitions that can be drawn."""
        return self._size

    def insert(self, item: Admitted) -> None:
        """Puts a chunk in, over the oldest slots."""
        slots = self._write(item.chunk, self._written, item.version_updates)
        self._held.append(Held(item.position, self._written, slots, item.version_updates))
        self._written += slots
        while self._held[0].first + self._held[0].slots <= self._written - self._capacity:
            self._held.popleft()

    def draw(
        self, rows: int, *, n_step: int, gamma: float, beta: float, updates_now: int
    ) -> Transitions:
        """Draws transitions with replacement.

        Args:
            rows: M, how many.
            n_step: Steps that each may span; fewer where an episode or a chunk ends before.
            gamma: Discount a step.
            beta: How far importance weights undo the priorities, 0 to 1.
            updates_now: The learner's updates, for the lags.
        """
        key = np.array([self._seed % 2**64, self._draws], np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        self._draws += 1
        if self._tree is None:
            slots, weights = self._uniform(rows, rng), np.ones(rows, np.float32)
        else:
            slots, weights = self._prioritized(self._tree, rows, beta, rng)
        last, steps = slots, np.ones(rows, np.int64)
        rewards = self._rewards[slots].astype(np.float64)
        for step in range(1, n_step):
            following = (last + 1) % self._capacity
            goes_on = self._kinds[following] != _BORDER  # a border is never left again
            last = np.where(goes_on, following, last)
            rewards += np.where(goes_on, gamma**step * self._rewards[following], 0.0)
            steps += goes_on
        terminated = self._kinds[last] == _TERMINATED
        return Transitions(
            observations=self._observations[slots],
            actions=self._actions[slots],
            rewards=rewards.astype(np.float32),
            next_observations=self._observations[(last + 1) % self._capacity],
            discounts=np.where(terminated, 0.0, gamma**steps).astype(np.float32),
            weights=weights,
            slots=slots,
            stamps=self._stamps[slots],
            lags=updates_now - self._updates[slots],
        )

    def prioritize(self, drawn: Transitions, errors: NDArray[np.floating]) -> None:
        """Sets priorities to |TD errors| `[M]`; slots written anew since the draw stay as they are.

        Errors that are not finite are passed over.
        """
        if self._tree is None:
            return
        same = (self._stamps[drawn.slots] == drawn.stamps) & np.isfinite(errors)
        self._put(self._tree, drawn.slots[same], np.abs(errors[same]))

    def state_dict(self) -> RingState:
        """Everything but the transitions."""
        held = [(each.position, each.first, each.version_updates) for each in self._held]
        priorities = np.zeros(0)
        if self._tree is not None:
            priorities = self._tree.get(self._slots_from(self._oldest, self._written))
        return RingState(
            written=self._written,
            held=np.array(held, np.int64).reshape(-1, 3),
            draws=self._draws,
            priorities=priorities,
            largest=self._largest,
        )

    def load_state_dict(self, state: RingState, chunks: Mapping[int, Chunk]) -> None:
        """Fills an empty ring as it was: every transition in its own slot.

        Args:
            state: Of a ring, of any capacity.
            chunks: By journal position; slots of those that are missing stay empty.
        """
        self._written, self._draws = state["written"], state["draws"]
        for position, first, version_updates in state["held"].tolist():
            chunk = chunks.get(position)
            if chunk is not None:
                taken = self._write(chunk, first, version_updates)
                self._held.append(Held(position, first, taken, version_updates))
        self._largest = state["largest"]
        saved = state["priorities"][-(self._written - self._oldest) :]
        if self._tree is not None and saved.size == self._written - self._oldest:
            slots = self._slots_from(self._oldest, self._written)
            self._tree.put(slots, np.where(self._kinds[slots] == _BORDER, 0.0, saved))

    # -------------------------------------------------------------------------------- writing

    @property
    def _oldest(self) -> int:
        return max(0, self._written - self._capacity)

    def _slots_from(self, first: int, stop: int) -> NDArray[np.int64]:
        return np.arange(first, stop) % self._capacity

    def _write(self, chunk: Chunk, first: int, version_updates: int) -> int:
        """Writes a chunk, environment by environment, from a slot on; how many slots it takes."""
        if not self._observations.size:
            self._observations = _column(self._capacity, chunk.observations)
            self._actions = _column(self._capacity, chunk.actions)
        steps, envs = chunk.steps, chunk.envs
        ended = (chunk.terminated | chunk.truncated).T.reshape(-1)
        border = ended.copy()
        border[steps - 1 :: steps] = True
        places = np.arange(steps * envs) + np.cumsum(border) - border
        borders = places[border] + 1
        count = steps * envs + borders.size
        kinds = np.full(count, _BORDER, np.uint8)
        kinds[places] = np.select(
            [chunk.terminated.T.reshape(-1), ended], [_TERMINATED, _TRUNCATED], _GOES_ON
        )
        stamps = np.arange(first, first + count)
        # Of a chunk that is larger than the ring, or was half overwritten, only the rest goes in.
        fits = stamps >= max(first + count, self._written) - self._capacity
        slots = stamps % self._capacity
        kept, kept_at = fits[places], fits[borders]
        self._size -= int(np.count_nonzero(self._kinds[slots[fits]] != _BORDER))
        self._kinds[slots[fits]] = kinds[fits]
        self._stamps[slots[fits]] = stamps[fits]
        self._updates[slots[fits]] = version_updates
        into, at = slots[places][kept], slots[borders][kept_at]
        self._observations[into] = _by_env(chunk.observations[:-1])[kept]
        self._observations[at] = _after_borders(chunk, ended[border])[kept_at]
        self._actions[into] = _by_env(chunk.actions)[kept]
        self._rewards[into] = _by_env(chunk.rewards)[kept]
        self._size += into.size
        if self._tree is not None:
            self._tree.put(at, np.zeros(at.size))
            if chunk.priorities is None:
                self._tree.put(into, np.full(into.size, self._largest))
            else:
                self._put(self._tree, into, _by_env(chunk.priorities)[kept])
        return count

    def _put(self, tree: SumTree, slots: NDArray[np.int64], errors: NDArray[np.floating]) -> None:
        values = (errors.astype(np.float64) + _MIN_ERROR) ** self._alpha
        tree.put(slots, values)
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    # -------------------------------------------------------------------------------- drawing

    def _uniform(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        filled = self._written - self._oldest
        found = np.empty(0, np.int64)
        while found.size < rows:
            wanted = (rows - found.size) * filled // self._size + 1
            tried = (self._oldest + rng.integers(0, filled, wanted)) % self._capacity
            found = np.concatenate((found, tried[self._kinds[tried] != _BORDER]))
        return found[:rows]

    def _prioritized(
        self, tree: SumTree, rows: int, beta: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        sums = (np.arange(rows) + rng.random(rows)) * (tree.total / rows)  # one from each stratum
        slots = tree.find(sums)
        probabilities = tree.get(slots) / tree.total
        weights = (probabilities * self._size) ** -beta
        return slots, (weights / weights.max()).astype(np.float32)


def _column(capacity: int, like: Array) -> Array:
    """Room for a column `[T, N, ...]`; the system gives the memory as it is written."""
    shape, dtype = (capacity, *like.shape[2:]), like.dtype.newbyteorder("=")
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise ConfigError(
            f"there is no memory for {capacity} transitions of {dtype}{list(shape[1:])}: lower "
            "training.replay_steps"
        ) from error


def _by_env(column: Array) -> Array:
    """`[T, N, ...]` as rows `[N * T, ...]`: one environment after another."""
    return np.swapaxes(column, 0, 1).reshape(-1, *column.shape[2:])


def _after_borders(chunk: Chunk, ended: NDArray[np.bool_]) -> Array:
    """The observations of the borders: final ones where `ended`, else the chunk's last."""
    step, env = np.divmod(chunk.final_index.astype(np.int64), chunk.envs)
    found = np.empty((ended.size, *chunk.observations.shape[2:]), chunk.observations.dtype)
    found[ended] = chunk.final_observations[np.argsort(env * chunk.steps + step)]
    lasts = ~(chunk.terminated[-1] | chunk.truncated[-1])
    found[~ended] = chunk.observations[-1][lasts]
    return found
