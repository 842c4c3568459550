"""Versions that are published again: old tensors under a new number."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_logs import open_log, publish, seed_of

from shoal.errors import PolicyLogError


def test_old_tensors_get_a_new_number_a_signature_and_their_own_updates(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for updates in (3, 7):
            publish(log, updates)
        again = log.publish_again(1, "rollback: it limps")
        assert (again.version, again.manifest.updates) == (3, 3)
        assert again.manifest.reason == "rollback: it limps"
        first = log.get(1)
        assert first is not None
        assert again.digest == first.digest
        read = log.get(3)  # proven: signature and digests
        assert read is not None
        assert seed_of(read) == 3
        assert log.updates_of(3) == 3


def test_training_goes_on_from_the_most_updates_and_not_from_the_newest_version(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path) as log:
        publish(log, 7)
        publish(log, 9)
        log.publish_again(1, "rollback")
    with open_log(tmp_path) as log:
        with pytest.raises(PolicyLogError, match="9 optimiser updates"):
            publish(log, 8)
        assert publish(log, 9).version == 4


def test_a_version_that_is_gone_cannot_be_published_again(tmp_path: Path) -> None:
    with open_log(tmp_path, keep=1) as log:
        publish(log, 1)
        publish(log, 2)
        with pytest.raises(PolicyLogError, match="version 1 is not kept"):
            log.publish_again(1, "rollback")


def test_pinned_versions_stay_however_old_and_however_many(tmp_path: Path) -> None:
    pinned = {1, 3}
    with open_log(tmp_path, keep=2, pinned=lambda: pinned) as log:
        for updates in range(80):
            publish(log, updates)
        assert [info.manifest.version for info in log.list()] == [80, 79, 3, 1]
        pinned.clear()
        publish(log, 90)
        assert [info.manifest.version for info in log.list()] == [81, 80]
