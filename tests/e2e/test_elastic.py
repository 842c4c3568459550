"""Devices come and go while the whole system runs, and nobody waits for one that is lost.

Where learner and devices wait for each other, a version is made of what all devices made under the
one before, and of nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from demo_process import demo

from cloud_learner.journal.reader import JournalReader

NAMES = ("device-0", "device-1", "device-2")
FLEET = ("--devices", "3", "--envs", "4", "--chunk-steps", "16", "--ahead", "1")
END = ("--until-return", "1000", "--stop-after-steps", "12000", "--timeout-s", "150")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", [(), ("--sync",)], ids=["async", "sync"])
def test_devices_are_killed_and_join_again_and_training_goes_on(mode: tuple[str, ...]) -> None:
    with demo(*mode, *FLEET, *END) as running:
        running.wait_for("training")
        for name in ("device-0", "device-1", "device-0"):
            running.kill(name)
        envelope = running.finish()
    assert running.process.returncode == 0, running.lines[-20:]
    assert envelope["ended"] == "steps"
    assert envelope["restarts"] == {"device-0": 2, "device-1": 1}
    audit = envelope["audit"]
    assert audit["balanced"] is True
    assert audit["rejected"] == 0
    assert envelope["lag"]["max"] == 0 or not mode


@pytest.mark.timeout(240)
def test_synchronous_devices_wait_for_each_version_and_the_learner_for_each_of_their_chunks() -> (
    None
):
    with demo("--sync", *FLEET, *END, "--stop-after-steps", "5000") as running:
        envelope = running.finish()
        journal = running.directory / "learner" / "journal.db"
        arrived, made = versions_of_arrivals(journal), chunks_by_version(journal)
    assert running.process.returncode == 0, running.lines[-20:]
    # Every chunk of a version came before the first one of the next: none was made ahead, ...
    assert arrived == sorted(arrived)
    # ... and the next version did not come out before all devices had made theirs. At the start a
    # device takes part from the version on that finds it there.
    first = min(version for version, by in made.items() if set(by) == set(NAMES))
    whole = range(first, max(made))
    assert len(whole) > 8
    assert {version: made[version] for version in whole} == {
        version: dict.fromkeys(NAMES, 1) for version in whole
    }
    assert set(made) == set(range(1, max(made) + 1))
    # Each of them was trained from, under the version that made it.
    audit = envelope["audit"]
    assert audit["balanced"] is True
    assert (audit["dropped"], audit["rejected"], envelope["lag"]["max"]) == (0, 0, 0)
    assert audit["trained"] >= len(whole) * len(NAMES)


def versions_of_arrivals(journal: Path) -> list[int]:
    """Of each chunk, in the order in which they came."""
    with JournalReader(journal) as reader:
        return [chunk.policy_version for chunk in reader.arrivals()]


def chunks_by_version(journal: Path) -> Mapping[int, Mapping[str, int]]:
    """How many chunks each device made under each version."""
    made: defaultdict[int, Counter[str]] = defaultdict(Counter)
    with JournalReader(journal) as reader:
        for run in reader.runs():
            for item in reader.chunks(run.key):
                made[item.chunk.policy_version][run.key.device_id] += 1
    return made
