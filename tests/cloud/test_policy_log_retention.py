"""Which versions a policy log keeps."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from policy_logs import FINGERPRINT, GRAPH, bundle_path, open_log, policy, publish

from cloud_learner.downlink.policy_log import MAX_IN_USE, PolicyLog
from shoal.errors import PolicyLogError
from shoal.policy import MAX_GRAPH_BYTES, sha256


def test_old_versions_are_pruned_and_the_newest_never_is(tmp_path: Path) -> None:
    with open_log(tmp_path, keep=3) as log:
        publish(log, 0, graph=b"an earlier graph")
        for updates in range(16, 96, 16):
            publish(log, updates)
        assert [info.manifest.version for info in log.list()] == [6, 5, 4]
        assert log.get(1) is None
        assert log.updates_of(1) == 0
        assert log.graph(sha256(b"an earlier graph")) is None
    assert len(list((tmp_path / "versions").iterdir())) == 3
    assert [path.stem for path in (tmp_path / "graphs").iterdir()] == [sha256(GRAPH).hex()]
    with open_log(tmp_path, keep=1) as log:
        assert (log.updates_of(2), log.updates_of(6)) == (16, 80)
        assert publish(log, 96).version == 7
        assert [info.manifest.version for info in log.list()] == [7]


def test_the_graph_of_a_float_twin_is_served_and_kept_as_long_as_a_version_names_it(
    tmp_path: Path,
) -> None:
    float_graph = b"its float graph"
    digest = sha256(float_graph)
    with open_log(tmp_path, keep=2) as log:
        twinned = log.publish(
            policy(),
            graph=GRAPH,
            updates=1,
            spec_fingerprint=FINGERPRINT,
            float_graph=float_graph,
        )
        assert twinned.manifest.float_graph_digest == digest
        assert log.graph(digest) == float_graph
        publish(log, 2)
    with open_log(tmp_path, keep=2) as log:
        assert log.graph(digest) == float_graph
        publish(log, 3)
        assert log.graph(digest) is None
    assert not (tmp_path / "graphs" / f"{digest.hex()}.onnx").exists()


def test_a_version_is_whole_without_the_graph_of_its_float_twin(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        made = log.publish(
            policy(), graph=GRAPH, updates=1, spec_fingerprint=FINGERPRINT, float_graph=b"float"
        )
        (tmp_path / "graphs" / f"{sha256(b'float').hex()}.onnx").unlink()
        assert log.newest() == made
        assert log.graph(sha256(b"float")) is None
        with pytest.raises(PolicyLogError, match="mark its initializers external"):
            log.publish(
                policy(),
                graph=GRAPH,
                updates=1,
                spec_fingerprint=FINGERPRINT,
                float_graph=bytes(MAX_GRAPH_BYTES + 1),
            )


def kept(log: PolicyLog) -> list[int]:
    return [info.manifest.version for info in log.list()]


def test_a_version_that_a_device_has_is_never_deleted_until_it_has_another(tmp_path: Path) -> None:
    in_use = {1}
    with open_log(tmp_path, keep=2, in_use=lambda: in_use) as log:
        first = publish(log, 1, b"its own graph")
        for updates in range(2, 6):
            publish(log, updates)
        assert kept(log) == [5, 4, 1]
        assert log.get(1) == first
        assert log.graph(sha256(b"its own graph")) is not None
        in_use.clear()
        in_use.add(5)
        publish(log, 6)
        assert kept(log) == [6, 5]
        assert not bundle_path(tmp_path, 1).exists()


def test_what_devices_have_is_kept_over_a_restart(tmp_path: Path) -> None:
    with open_log(tmp_path, keep=2, in_use=lambda: {1}) as log:
        for updates in range(4):
            publish(log, updates)
    with open_log(tmp_path, keep=2, in_use=lambda: {1, 99}) as log:
        assert kept(log) == [4, 3, 1]


def test_of_too_many_old_versions_in_use_the_oldest_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shoal"):
        with open_log(tmp_path, keep=1, in_use=lambda: range(1000)) as log:
            for updates in range(MAX_IN_USE + 3):
                publish(log, updates)
            assert kept(log) == list(range(MAX_IN_USE + 3, 2, -1))
        assert "policies_in_use_deleted" in [record.getMessage() for record in caplog.records]


def test_some_versions_stay_however_far_back_and_a_restart_keeps_them(tmp_path: Path) -> None:
    with open_log(tmp_path, keep=2, keep_per_doubling=1) as log:
        for updates in range(20):
            publish(log, updates)
        assert kept(log) == [20, 19, 18, 16, 8]
        assert log.get(8) is not None
    with open_log(tmp_path, keep=2, keep_per_doubling=1) as log:
        publish(log, 20)
        assert kept(log) == [21, 20, 18, 16, 8]
