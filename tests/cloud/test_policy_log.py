"""Policy logs of small policies."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_logs import GRAPH, KEY, bundle_path, open_log, publish

from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from shoal.errors import PolicyLogError
from shoal.policy import MAX_GRAPH_BYTES, sha256


@contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_was_published_is_there_after_a_restart(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert log.newest() is None
        assert log.list() == ()
        first, second = publish(log, 16), publish(log, 32)
    with open_log(tmp_path) as log:
        assert log.newest() == second
        assert log.get(1) == first
        assert log.get(3) is None
        assert [info.manifest.version for info in log.list()] == [2, 1]
        assert log.list()[0].bundle_bytes == len(second.bundle)
        assert (log.updates_of(1), log.updates_of(2), log.updates_of(3)) == (16, 32, None)
        assert log.graph(sha256(GRAPH)) == GRAPH
        assert second.manifest.created_unix_ms == 1_700_000_500


def test_versions_only_increase_across_restarts(tmp_path: Path) -> None:
    versions = []
    for updates in range(4):
        with open_log(tmp_path) as log:
            versions.append(publish(log, updates).version)
            versions.append(publish(log, updates).version)
    assert versions == list(range(1, 9))


def test_a_lost_log_goes_on_above_the_version_it_is_told(tmp_path: Path) -> None:
    with open_log(tmp_path, after_version=500) as log:
        assert publish(log, 16).version == 501


def test_a_number_is_not_reused_though_its_files_vanish(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        publish(log, 16)
        publish(log, 32)
    bundle_path(tmp_path, 2).unlink()
    with open_log(tmp_path) as log:
        assert publish(log, 32).version == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data())
def test_a_damaged_newest_entry_is_skipped_and_its_number_stays_used(
    caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with open_log(directory) as log:
            first, _ = publish(log, 16), publish(log, 32)
        path = bundle_path(directory, 2)
        damaged = bytearray(path.read_bytes())
        if data.draw(st.booleans(), label="truncated"):
            del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
        else:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.ERROR, "shoal"), open_log(directory) as log:
            assert log.newest() == first
            assert log.get(2) is None
            third = publish(log, 48)
            assert third.version == 3
            assert log.newest() == third
        assert [record.getMessage() for record in caplog.records] == ["policy_skipped"]


def test_an_entry_that_is_damaged_while_the_log_is_open_is_not_served(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        first, _ = publish(log, 16), publish(log, 32)
        bundle_path(tmp_path, 2).write_bytes(b"")
        assert log.get(2) is None
        assert log.newest() == first


def test_a_damaged_graph_hides_its_versions_until_it_is_published_again(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        publish(log, 16)
    (tmp_path / "graphs" / f"{sha256(GRAPH).hex()}.onnx").write_bytes(b"other bytes")
    with open_log(tmp_path) as log:
        assert log.newest() is None
        assert log.graph(sha256(GRAPH)) is None
        second = publish(log, 32)
        assert log.newest() == second
        assert log.graph(sha256(GRAPH)) == GRAPH


def test_what_a_crash_left_half_written_is_removed(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        publish(log, 16)
    for leftover in ("versions/00000002.bundle.tmp", "graphs/00.onnx.tmp", "updates.log.tmp"):
        (tmp_path / leftover).write_bytes(b"half")
    with open_log(tmp_path) as log:
        assert not list(tmp_path.rglob("*.tmp"))
        assert publish(log, 32).version == 2


CRASHING_WRITER = """
import json, os, shutil, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from policy_logs import open_log, publish, seed_of
base, directory, said = (Path({place!r}) / name for name in ("base", "log", "said"))
MODULES = ("policy_log.py", "durable_file.py", "version_index.py")
os.fsync = lambda descriptor: None  # a killed process loses nothing the kernel has: be quick

def die_at_line(number):
    left = number
    def trace(frame, event, argument):
        nonlocal left
        if not frame.f_code.co_filename.endswith(MODULES):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os._exit(9)
        return trace
    sys.settrace(trace)

def write():
    with open_log(directory, keep=2) as log:
        # Another graph, so that one is written and, once the last old version goes, one is pruned.
        published = publish(log, 48, graph=b"another graph")
        said.write_text(json.dumps([published.version, 48]) + "\\n")  # what the world was told

def check():
    told = [[1, 16], [2, 32]]
    told += [json.loads(line) for line in said.read_text().splitlines()]
    last, updates = told[-1]
    with open_log(directory, keep=2) as log:
        newest = log.newest()
        assert newest.version >= last
        for version, updates in told:
            assert log.updates_of(version) == updates
        if newest.version - last < 2:
            assert seed_of(log.get(last)) == updates
        assert len(log.list()) == 2
        assert all(log.graph(info.manifest.graph_digest) for info in log.list())
        assert publish(log, 80).version > max(last, newest.version)
    assert not list(directory.rglob("*.tmp"))

with open_log(base, keep=2) as log:
    publish(log, 16), publish(log, 32)
crashes, status = 0, 9
while status == 9:
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(base, directory)
    said.write_text("")
    child = os.fork()
    if child == 0:
        die_at_line(crashes)
        write()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    crashes += status == 9
    check()
print(json.dumps([crashes, status]))
"""


def test_a_crash_at_any_line_loses_no_version_and_reuses_none(tmp_path: Path) -> None:
    """Kills the writer at each line of the log's code, while opening, publishing and pruning."""
    script = CRASHING_WRITER.format(tests=str(Path(__file__).parents[1]), place=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    crashes, status = json.loads(done.stdout)
    assert status == 0
    assert crashes > 100


def test_a_full_disk_fails_the_publication_and_nothing_else(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        first = publish(log, 16)
        with files_limited_to(64), pytest.raises(PolicyLogError, match="free space"):
            publish(log, 32)
        assert log.newest() == first
        assert not list(tmp_path.rglob("*.tmp"))
        third = publish(log, 32)
        assert third.version == 3
    with open_log(tmp_path) as log:
        assert log.newest() == third


def test_updates_may_stand_still_but_not_go_back(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        publish(log, 32)
        assert publish(log, 32).version == 2
        with pytest.raises(PolicyLogError, match="resume counting from the higher"):
            publish(log, 31)


def test_a_graph_that_devices_would_refuse_is_not_published(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(PolicyLogError, match="mark its initializers external"):
            publish(log, 16, graph=bytes(MAX_GRAPH_BYTES + 1))
        assert publish(log, 16).version == 1


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(PolicyLogError, match="another learner"):
            open_log(tmp_path)
        publish(log, 16)
    open_log(tmp_path).close()


def test_a_closed_log_publishes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(PolicyLogError, match="closed"):
        publish(log, 16)


def test_the_log_of_another_fleet_is_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        publish(log, 16)
    with pytest.raises(PolicyLogError, match="of fleet 'reef', this learner is of 'atoll'"):
        PolicyLog(tmp_path, KEY, "atoll")
    open_log(tmp_path).close()


def test_versions_of_an_earlier_policy_key_are_skipped(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        publish(log, 16)
    with PolicyLog(tmp_path, Ed25519PrivateKey.generate(), "reef") as log:
        assert log.newest() is None
        assert publish(log, 16).version == 2


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PolicyLogError, match="check the disk"):
        open_log(tmp_path / "file" / "log")


def test_publishing_and_reading_from_many_threads_agree(tmp_path: Path) -> None:
    seen: list[Published] = []
    with open_log(tmp_path, keep=4) as log:

        def work() -> None:
            for _ in range(8):
                seen.append(publish(log, 16))
                assert log.newest() is not None
                assert len(log.list()) <= 4

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(published.version for published in seen) == list(range(1, 33))
        assert log.highest_version == 32
