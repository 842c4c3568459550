"""A device writes columns once its learner reads them, and as every learner reads until then."""

from __future__ import annotations

from strategies import cartpole_spec, make_chunk
from wire.test_trajectory import assert_equal

from edge_agent.spool.chunk_encoder import ChunkEncoder
from edge_agent.uplink.appetite import Appetite, Wanted
from shoal.envelope import codec_of
from shoal.trajectory import decode_chunk
from shoal.v1 import device_pb2
from shoal.v1 import trajectory_pb2 as pb

RUN, OTHER = bytes([1]) * 16, bytes([2]) * 16
CHUNK = make_chunk(cartpole_spec())


def said(run: bytes, seq: int, *codecs: int) -> Wanted:
    message = device_pb2.Appetite(learner_run_id=run, sent_seq=seq, codecs=codecs)  # type: ignore[arg-type]
    return Wanted.from_pb(message)


def test_the_form_is_the_one_that_the_learner_reads() -> None:
    appetite = Appetite(lapse_s=0.0)  # whose rate is never heeded
    encoder = ChunkEncoder("balanced", lambda: appetite.codecs)
    assert codec_of(encoder.encode(CHUNK)) == pb.CODEC_ZSTD
    appetite.note(said(RUN, 1, pb.CODEC_COLUMNS, 77))
    assert codec_of(encoder.encode(CHUNK)) == pb.CODEC_COLUMNS
    appetite.note(said(OTHER, 1))  # an older learner took its place
    assert codec_of(encoder.encode(CHUNK)) == pb.CODEC_ZSTD


def test_what_the_learner_reads_does_not_lapse_with_its_silence() -> None:
    now_s = [0.0]
    appetite = Appetite(lapse_s=1.0, clock=lambda: now_s[0])
    appetite.note(said(RUN, 1, pb.CODEC_COLUMNS))
    now_s[0] = 100.0
    assert appetite.codecs == {pb.CODEC_COLUMNS}


def test_both_forms_hold_the_same_chunk() -> None:
    for compression in ("balanced", "smallest"):
        for codecs in ((), (pb.CODEC_COLUMNS,)):
            encoder = ChunkEncoder(compression, lambda codecs=codecs: codecs)  # type: ignore[misc]
            assert_equal(decode_chunk(encoder.encode(CHUNK)), CHUNK)
