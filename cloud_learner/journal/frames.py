"""How a chunk lies in a segment: the framed envelope that it came in, checksum and key included."""

from __future__ import annotations

from typing import Final

from cloud_learner.journal.records import Entry
from shoal.envelope import ChunkKey, codec_of
from shoal.errors import WireError
from shoal.v1 import trajectory_pb2 as pb
from shoal.wire import frame_around, unframe_fields

_BODY: Final = pb.TrajectoryEnvelope.BODY_FIELD_NUMBER


def frame_of(entry: Entry) -> bytes:
    """The frame of an entry that has a body: as it came, or made here."""
    if entry.frame:
        return entry.frame
    key = entry.key
    before = pb.TrajectoryEnvelope(
        device_id=key.device_id, run_id=key.run_id, seq=key.seq, codec=codec_of(entry.body)
    )
    return frame_around(before, _BODY, entry.body, pb.TrajectoryEnvelope())


def body_in(frame: bytes, key: ChunkKey) -> memoryview:
    """The body of a chunk, a view into its frame.

    Raises:
        WireError: The frame is torn or damaged, or is that of another chunk.
    """
    message, found = unframe_fields(pb.TrajectoryEnvelope, frame, (_BODY,), max_bytes=len(frame))
    if (message.device_id, message.run_id, message.seq) != (key.device_id, key.run_id, key.seq):
        raise WireError(f"the journal has chunk {message.seq} of {message.device_id[:80]} there")
    return found.get(_BODY, memoryview(b""))
