"""Chunks of experience: their values, their bytes, and what makes one consistent in itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal import zstd
from shoal.column_body import (
    check_column_body,
    is_column_body,
    read_column_body,
    write_column_body,
)
from shoal.columns import OPTIONAL
from shoal.envelope import content_size_of
from shoal.episodes import Episode, Episodes, check_episodes, episodes_of, read_episodes
from shoal.errors import LimitExceeded, WireError
from shoal.packing import Packing
from shoal.tensors import Array, encode_tensor, read_tensor
from shoal.v1 import columns_pb2
from shoal.v1 import trajectory_pb2 as pb
from shoal.wire import take_fields

MAX_BODY_BYTES = 64 * 1024 * 1024  # a chunk once decompressed
DIGEST_BYTES = 32
_ZSTD_LEVEL = 1
_COLUMNS: Final = {
    field.name: field.number
    for field in pb.TrajectoryChunk.DESCRIPTOR.fields
    if field.message_type is pb.TrajectoryChunk.DESCRIPTOR.fields_by_name["rewards"].message_type
}
"""The numbers of the tensors of a chunk, by name."""
_COLUMN_NUMBERS: Final = frozenset(_COLUMNS.values())
_MAY_LACK: Final = (*OPTIONAL, "episode_returns", "episode_lengths")
_DTYPES: Final = {
    "log_probs": np.dtype("f4"),
    "rewards": np.dtype("f4"),
    "terminated": np.dtype("b1"),
    "truncated": np.dtype("b1"),
    "final_index": np.dtype("i4"),
    "initial_state": np.dtype("f4"),
    "priorities": np.dtype("f4"),
}
_TOLD: Final = (
    *("observations", "actions", "log_probs", "rewards", "terminated", "truncated"),
    *("initial_state", "priorities", "final_observations"),
)
"""Where each episode ended follows from two of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """T consecutive steps of N environments of one run, under one policy version.

    Attributes:
        spec_fingerprint: 32 bytes, of the spaces.
        policy_version: The version that acted.
        policy_digest: 32 bytes, of the graph and tensors that were loaded.
        first_step: Vector steps of this run before the chunk.
        observations: `[T+1, N, ...]` as their `ObservationLayout` has it: in the environment's
            dtype, or packed. Where an episode ended at t, `observations[t+1, n]` is the first of
            the next one.
        actions: `[T, N, ...]` as their `ActionLayout` has it: int64 counted from 0, or float32 as
            sampled, not clipped.
        log_probs: `[T, N]` float32, log-density of `actions` under the graph that sampled.
        rewards: `[T, N]` float32.
        terminated: `[T, N]` bool; the future is worth nothing.
        truncated: `[T, N]` bool; the future is worth the value of the final observation.
        final_index: `[K]` int32, `t * N + n` of each end of an episode, increasing.
        final_observations: `[K, ...]`, the true last observation of each.
        episodes: One for each end, in the same order.
        initial_state: `[N, S]` float32, of a policy with memory, before the first step; None
            without memory.
        priorities: `[T, N]` float32, 0 or more: |TD error| as the device saw it; None where the
            manifest asks for none.
    """

    spec_fingerprint: bytes
    policy_version: int
    policy_digest: bytes
    first_step: int
    observations: Array
    actions: Array
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_index: NDArray[np.int32]
    final_observations: Array
    episodes: Sequence[Episode]
    initial_state: NDArray[np.float32] | None = None
    priorities: NDArray[np.float32] | None = None

    @property
    def steps(self) -> int:
        """T."""
        return int(self.rewards.shape[0])

    @property
    def envs(self) -> int:
        """N."""
        return int(self.rewards.shape[1])

    @property
    def transitions(self) -> int:
        """T * N."""
        return int(self.rewards.size)


def encode_chunk(chunk: Chunk) -> bytes:
    """Serializes and compresses a chunk: the body of an envelope that every learner reads.

    Raises:
        WireError: Its episodes are not those that ended at `final_index`.
    """
    episodes = episodes_of(chunk.episodes, chunk.final_index, chunk.rewards)
    message = pb.TrajectoryChunk(
        spec_fingerprint=chunk.spec_fingerprint,
        policy_version=chunk.policy_version,
        policy_digest=chunk.policy_digest,
        first_step=chunk.first_step,
        observations=encode_tensor("", chunk.observations),
        actions=encode_tensor("", chunk.actions),
        log_probs=encode_tensor("", chunk.log_probs),
        rewards=encode_tensor("", chunk.rewards),
        terminated=encode_tensor("", chunk.terminated),
        truncated=encode_tensor("", chunk.truncated),
        final_index=encode_tensor("", chunk.final_index),
        final_observations=encode_tensor("", chunk.final_observations),
        episode_returns=encode_tensor("", episodes.returns),
        episode_lengths=encode_tensor("", episodes.lengths),
    )
    for name in OPTIONAL:
        if (array := getattr(chunk, name)) is not None:
            getattr(message, name).CopyFrom(encode_tensor("", array))
    raw = message.SerializeToString(deterministic=True)
    return zstd.compress(raw, level=_ZSTD_LEVEL, checksum=True)


def encode_columns(chunk: Chunk, packing: Packing) -> bytes:
    """Serializes a chunk as columns: the body of an envelope of `CODEC_COLUMNS`.

    Args:
        chunk: Consistent in itself.
        packing: Decides how each column lies there.

    Raises:
        WireError: It is not consistent in itself.
    """
    episodes = episodes_of(chunk.episodes, chunk.final_index, chunk.rewards)
    _check_columns(chunk, episodes)
    arrays = {name: array for name in _TOLD if (array := getattr(chunk, name)) is not None}
    arrays |= {"episode_returns": episodes.returns, "episode_lengths": episodes.lengths}
    head = columns_pb2.ColumnChunk(
        spec_fingerprint=chunk.spec_fingerprint,
        policy_version=chunk.policy_version,
        policy_digest=chunk.policy_digest,
        first_step=chunk.first_step,
        ends=len(chunk.final_index),
    )
    return write_column_body(head, arrays, packing.pack(arrays))


def decode_chunk(
    body: bytes | memoryview, *, max_bytes: int = MAX_BODY_BYTES, checked: bool = False
) -> Chunk:
    """Reads what `encode_chunk` or `encode_columns` wrote; arrays are read-only.

    Args:
        body: Of an envelope.
        max_bytes: Of its columns once they are open.
        checked: Whether a checksum around the body was found to match already.

    Raises:
        LimitExceeded: It says it is larger than `max_bytes`; it was not opened.
        WireError: It is damaged, malformed or inconsistent in itself.
    """
    if is_column_body(body):
        if not checked:
            check_column_body(body)
        return _decode_columns(body, max_bytes)
    message, columns = take_fields(
        pb.TrajectoryChunk, _decompress(body, max_bytes), _COLUMN_NUMBERS
    )
    _check_digests(message.policy_digest, message.spec_fingerprint)
    arrays = {
        name: read_tensor(columns.get(number, b""))
        for name, number in _COLUMNS.items()
        if number in columns or name not in _MAY_LACK
    }
    episodes = read_episodes(
        message.episodes,
        ends=arrays["final_index"],
        rewards=arrays["rewards"],
        returns=arrays.pop("episode_returns", None),
        lengths=arrays.pop("episode_lengths", None),
    )
    chunk = Chunk(
        spec_fingerprint=message.spec_fingerprint,
        policy_version=message.policy_version,
        policy_digest=message.policy_digest,
        first_step=message.first_step,
        episodes=episodes,
        **arrays,
    )
    _check_columns(chunk, episodes)
    return chunk


def _decode_columns(body: bytes | memoryview, max_bytes: int) -> Chunk:
    head, arrays = read_column_body(body, max_bytes=max_bytes)
    _check_digests(head.policy_digest, head.spec_fingerprint)
    _check_counters(head.first_step, head.policy_version)
    (ends,) = (arrays["terminated"] | arrays["truncated"]).ravel().nonzero()
    if len(ends) != head.ends:
        raise WireError(f"chunk: {head.ends} episodes and {len(ends)} ends of an episode")
    final_index = ends.astype(np.int32)
    final_index.flags.writeable = False
    episodes = Episodes(
        final_index,
        envs=arrays["rewards"].shape[1],
        returns=arrays.pop("episode_returns"),
        lengths=arrays.pop("episode_lengths"),
    )
    check_episodes(episodes, len(ends))
    return Chunk(
        spec_fingerprint=head.spec_fingerprint,
        policy_version=head.policy_version,
        policy_digest=head.policy_digest,
        first_step=head.first_step,
        final_index=final_index,
        episodes=episodes,
        **arrays,
    )


def _check_digests(*digests: bytes) -> None:
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise WireError(f"chunk: digests must be {DIGEST_BYTES} bytes")


def _check_counters(*counters: int) -> None:
    if max(counters) >= 1 << 62:
        raise WireError("chunk: a counter is out of range")


def _check_columns(chunk: Chunk, episodes: Episodes) -> None:
    for name, dtype in _DTYPES.items():
        array = getattr(chunk, name)
        if array is not None and array.dtype != dtype:
            raise WireError(f"chunk: {name} must be {dtype}, not {array.dtype}")
    lead = chunk.rewards.shape
    if chunk.rewards.ndim != len("TN") or 0 in lead:
        raise WireError(f"chunk: rewards must be [T, N], not {lead}")
    for name in ("log_probs", "terminated", "truncated", "priorities"):
        column = getattr(chunk, name)
        if column is not None and column.shape != lead:
            raise WireError(f"chunk: {name} are {column.shape}, rewards are {lead}")
    if chunk.actions.shape[:2] != lead:
        raise WireError(f"chunk: actions are {chunk.actions.shape}, rewards are {lead}")
    if chunk.observations.shape[:2] != (lead[0] + 1, lead[1]):
        raise WireError(f"chunk: observations are {chunk.observations.shape}, rewards are {lead}")
    _check_state(chunk)
    _check_counters(chunk.first_step, chunk.policy_version)
    _check_ends(chunk, episodes)


def _check_state(chunk: Chunk) -> None:
    state = chunk.initial_state
    if state is None:
        return
    if state.ndim != len("NS") or state.shape[0] != chunk.envs or not state.size:
        raise WireError(f"chunk: initial_state must be [N, S] with N = {chunk.envs}, S > 0")


def _check_ends(chunk: Chunk, episodes: Episodes) -> None:
    (ends,) = (chunk.terminated | chunk.truncated).ravel().nonzero()
    if ends.shape != chunk.final_index.shape or (ends != chunk.final_index).any():
        raise WireError("chunk: final_index must name each end of an episode, in order")
    if chunk.final_observations.shape[:1] != ends.shape:
        raise WireError("chunk: there must be one final observation for each end of an episode")
    if chunk.final_observations.shape[1:] != chunk.observations.shape[2:]:
        raise WireError("chunk: final observations must be shaped like observations")
    check_episodes(episodes, len(ends))


def _decompress(body: bytes | memoryview, max_bytes: int) -> bytes:
    size = content_size_of(body)
    if size > max_bytes:
        raise LimitExceeded(f"chunk: {size} bytes once decompressed, the limit is {max_bytes}")
    try:
        return zstd.decompress(body, size)
    except (zstd.ZstdError, MemoryError) as error:
        raise WireError(f"chunk: cannot be decompressed ({error})") from error
