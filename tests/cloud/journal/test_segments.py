"""Segments: what is named is there for ever, whatever fails between."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import cartpole_spec, make_chunk

from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.frames import body_in, frame_of
from cloud_learner.journal.records import Entry
from cloud_learner.journal.segment_reader import SegmentReader
from cloud_learner.journal.segments import Extent, Segments, name_of
from shoal.envelope import ChunkKey, Envelope, decode_envelope, encode_envelope
from shoal.errors import WireError
from shoal.trajectory import encode_chunk

KEYS = st.builds(
    ChunkKey,
    st.text("abc-19", min_size=1, max_size=9),
    st.binary(min_size=16, max_size=16),
    st.integers(0, (1 << 62) - 1),
)


class Refused(Exception):
    """The index did not commit."""


def named(segments: Segments, frames: Sequence[bytes]) -> Sequence[Extent]:
    written = segments.write(frames)
    with segments.naming(written):
        return written.extents


@given(KEYS, st.binary(min_size=1, max_size=300))
def test_a_body_comes_back_out_of_the_frame_that_is_made_for_it(key: ChunkKey, body: bytes) -> None:
    frame = frame_of(Entry(key, Disposition.TRAINED, body))
    assert body_in(frame, key) == body


def test_a_frame_that_came_is_kept_as_it_is() -> None:
    key = ChunkKey("pi-1", bytes(16), 7)
    came = encode_envelope(Envelope(key, encode_chunk(make_chunk(cartpole_spec())), 3))
    body = decode_envelope(came).body
    assert frame_of(Entry(key, Disposition.TRAINED, body, frame=came)) is came
    assert body_in(came, key) == body


@given(KEYS, st.binary(min_size=1, max_size=300), st.data())
def test_a_frame_that_is_torn_or_changed_anywhere_is_never_served(
    key: ChunkKey, body: bytes, data: st.DataObject
) -> None:
    frame = frame_of(Entry(key, Disposition.TRAINED, body))
    at = data.draw(st.integers(0, len(frame) - 1))
    changed = bytearray(frame)
    changed[at] ^= data.draw(st.integers(1, 255))
    for damaged in (frame[:at], frame[:at] + bytes(len(frame) - at), bytes(changed)):
        if damaged != frame:
            with pytest.raises(WireError):
                body_in(damaged, key)


@given(KEYS, KEYS, st.binary(min_size=1, max_size=30))
def test_the_frame_of_another_chunk_is_never_served(
    key: ChunkKey, other: ChunkKey, body: bytes
) -> None:
    frame = frame_of(Entry(key, Disposition.TRAINED, body))
    if key != other:
        with pytest.raises(WireError, match="there"):
            body_in(frame, other)


FRAMES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4)


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.one_of(
            FRAMES,
            st.tuples(st.sampled_from(["disk", "index", "index, again"]), FRAMES),
            st.sampled_from(["restart", "delete"]),
        ),
        max_size=12,
    )
)
def test_what_was_named_is_there_through_any_history(
    tmp_path_factory: pytest.TempPathFactory, acts: list[object]
) -> None:
    directory = tmp_path_factory.mktemp("segments") / "journal.db-segments"
    segments = Segments(directory, segment_bytes=60)
    there: dict[Extent, bytes] = {}
    doubtful: dict[Extent, bytes] = {}  # their commit failed, and a crash may find it done
    tried: list[bytes] = []
    for act in acts:
        match act:
            case "restart":
                segments.close()
                segments = Segments(directory, segment_bytes=60)
            case "delete":
                oldest = min((extent.segment for extent in there), default=0)
                assert segments.delete({oldest} - {0}) == {oldest} - {0}
                there = {each: frame for each, frame in there.items() if each.segment != oldest}
                doubtful.clear()
            case ("disk", list(frames)):
                if frames != tried:  # those are on the disk already
                    _disk_full(segments, frames)
            case (str(how), list(frames)):
                written = segments.write(frames)
                with pytest.raises(Refused), segments.naming(written):
                    raise Refused
                doubtful, tried = dict(zip(written.extents, frames, strict=True)), frames
                if how == "index, again":
                    there.update(zip(named(segments, frames), frames, strict=True))
            case list(frames):
                there.update(zip(named(segments, frames), frames, strict=True))
        with SegmentReader(directory) as reader:
            for extent, frame in (there | doubtful).items():
                assert reader.read(extent) == frame
    segments.close()


def _disk_full(segments: Segments, frames: Sequence[bytes]) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            segments.write(frames)


def test_frames_whose_naming_failed_are_not_written_a_second_time(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "s", segment_bytes=1000)
    first = segments.write([b"one", b"two"])
    with pytest.raises(Refused), segments.naming(first):
        raise Refused
    assert named(segments, [b"one", b"two"]) == first.extents
    assert segments.total_bytes == len(b"onetwo")
    segments.close()


def test_a_full_segment_is_followed_by_another_and_a_group_stays_together(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "s", segment_bytes=10)
    assert {extent.segment for extent in named(segments, [b"123456"] * 3)} == {1}
    assert {extent.segment for extent in named(segments, [b"1"])} == {2}
    segments.close()


def test_only_the_learner_may_read_segments(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "s", segment_bytes=10)
    named(segments, [b"secret"])
    segments.close()
    assert stat.S_IMODE((tmp_path / "s" / name_of(1)).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_writes_everything_however_little_the_system_takes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: whole(fd, [data[0][:3]], at))
    segments = Segments(tmp_path / "s", segment_bytes=1000)
    frames = [b"a", b"bcdefgh", b"ijk"]
    extents = named(segments, frames)
    segments.close()
    with SegmentReader(tmp_path / "s") as reader:
        assert [reader.read(extent) for extent in extents] == frames


def test_a_directory_that_holds_other_files_is_read_past_them(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "7.segment").write_text("no segment of ours")
    segments = Segments(tmp_path, segment_bytes=10)
    assert segments.numbers == frozenset()
    segments.close()
