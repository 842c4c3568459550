"""Chunks of experience: their values, their bytes, and what makes one consistent in itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal import zstd
from shoal.episodes import Episode, Episodes, check_episodes, episodes_of, read_episodes
from shoal.errors import LimitExceeded, WireError
from shoal.noise import RUN_ID_BYTES
from shoal.tensors import Array, encode_tensor, read_tensor
from shoal.v1 import trajectory_pb2 as pb
from shoal.wire import frame_around, take_fields, unframe_fields

MAX_ENVELOPE_BYTES = 1024 * 1024  # a broker's usual limit; 96 KiB is what chunks should aim for
MAX_BODY_BYTES = 64 * 1024 * 1024  # a chunk once decompressed
DIGEST_BYTES = 32
_ZSTD_LEVEL = 1
_OPTIONAL: Final = ("initial_state", "priorities")


_COLUMNS: Final = {
    field.name: field.number
    for field in pb.TrajectoryChunk.DESCRIPTOR.fields
    if field.message_type is pb.TrajectoryChunk.DESCRIPTOR.fields_by_name["rewards"].message_type
}
"""The numbers of the tensors of a chunk, by name."""
_COLUMN_NUMBERS: Final = frozenset(_COLUMNS.values())
_MAY_LACK: Final = (*_OPTIONAL, "episode_returns", "episode_lengths")
_DTYPES: Final = {
    "log_probs": np.dtype("f4"),
    "rewards": np.dtype("f4"),
    "terminated": np.dtype("b1"),
    "truncated": np.dtype("b1"),
    "final_index": np.dtype("i4"),
    "initial_state": np.dtype("f4"),
    "priorities": np.dtype("f4"),
}
_BODY: Final = pb.TrajectoryEnvelope.BODY_FIELD_NUMBER


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


@dataclass(frozen=True, slots=True, order=True)
class ChunkKey:
    """What names a chunk for ever."""

    device_id: str
    run_id: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """A chunk on its way.

    Attributes:
        key: Who made it, and its number.
        body: What `encode_chunk` gave; of a message that was read, a view into it.
        oldest_seq: Nothing of this run below it will be sent again.
    """

    key: ChunkKey
    body: bytes | memoryview
    oldest_seq: int


def encode_chunk(chunk: Chunk) -> bytes:
    """Serializes and compresses a chunk: the body of an envelope.

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
    for name in _OPTIONAL:
        if (array := getattr(chunk, name)) is not None:
            getattr(message, name).CopyFrom(encode_tensor("", array))
    raw = message.SerializeToString(deterministic=True)
    return zstd.compress(raw, level=_ZSTD_LEVEL, checksum=True)


def decode_chunk(body: bytes | memoryview, *, max_bytes: int = MAX_BODY_BYTES) -> Chunk:
    """Reads what `encode_chunk` wrote; arrays are read-only.

    Raises:
        LimitExceeded: It says it is larger than `max_bytes`; it was not decompressed.
        WireError: It is malformed or inconsistent in itself.
    """
    message, columns = take_fields(
        pb.TrajectoryChunk, _decompress(body, max_bytes), _COLUMN_NUMBERS
    )
    if len(message.policy_digest) != DIGEST_BYTES or len(message.spec_fingerprint) != DIGEST_BYTES:
        raise WireError(f"chunk: digests must be {DIGEST_BYTES} bytes")
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


def encode_envelope(envelope: Envelope) -> bytes:
    """Frames an envelope.

    Raises:
        LimitExceeded: It is larger than `MAX_ENVELOPE_BYTES`.
    """
    data = frame_around(
        pb.TrajectoryEnvelope(
            device_id=envelope.key.device_id,
            run_id=envelope.key.run_id,
            seq=envelope.key.seq,
            codec=pb.CODEC_ZSTD,
            raw_bytes=_content_size(envelope.body),
        ),
        _BODY,
        envelope.body,
        pb.TrajectoryEnvelope(oldest_seq=envelope.oldest_seq),
    )
    if len(data) > MAX_ENVELOPE_BYTES:
        raise LimitExceeded(
            f"chunk: {len(data)} bytes, the limit is {MAX_ENVELOPE_BYTES}; lower chunk_steps"
        )
    return data


def decode_envelope(data: bytes) -> Envelope:
    """Reads a framed envelope; the body is not decompressed.

    Raises:
        WireError: The frame, the codec or the key is wrong.
    """
    message, found = unframe_fields(
        pb.TrajectoryEnvelope, data, (_BODY,), max_bytes=MAX_ENVELOPE_BYTES
    )
    if message.codec != pb.CODEC_ZSTD:
        raise WireError(f"chunk: unknown codec {message.codec}; update this program")
    if len(message.run_id) != RUN_ID_BYTES:
        raise WireError(f"chunk: run_id must be {RUN_ID_BYTES} bytes, not {len(message.run_id)}")
    if max(message.seq, message.oldest_seq) >= 1 << 62 or message.oldest_seq > message.seq:
        raise WireError(f"chunk: seq {message.seq}, oldest_seq {message.oldest_seq}")
    key = ChunkKey(message.device_id, message.run_id, message.seq)
    return Envelope(key=key, body=found.get(_BODY, b""), oldest_seq=message.oldest_seq)


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
    if chunk.first_step >= 1 << 62 or chunk.policy_version >= 1 << 62:
        raise WireError("chunk: a counter is out of range")
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


def _content_size(body: bytes | memoryview) -> int:
    try:
        size = zstd.content_size(body)
    except zstd.ZstdError as error:
        raise WireError(f"chunk: not a zstd frame ({error})") from error
    if size is None:
        raise WireError("chunk: the zstd frame does not say its size")
    if not zstd.has_checksum(body):
        raise WireError("chunk: the zstd frame has no checksum; a damaged one could pass for good")
    return size


def _decompress(body: bytes | memoryview, max_bytes: int) -> bytes:
    size = _content_size(body)
    if size > max_bytes:
        raise LimitExceeded(f"chunk: {size} bytes once decompressed, the limit is {max_bytes}")
    try:
        return zstd.decompress(body, size)
    except (zstd.ZstdError, MemoryError) as error:
        raise WireError(f"chunk: cannot be decompressed ({error})") from error
