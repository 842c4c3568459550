"""What each device is told to run, read off all rollouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bundles import PUBLIC, write_bundle
from rollout_cloud import FLEET, Devices
from rollouts import PLAN

from cloud_learner.rollout.bundles import BundleStore
from cloud_learner.rollout.directive import Directives
from cloud_learner.rollout.plan import Kind, Plan
from cloud_learner.rollout.rollout import Member, Progress, Rollout, State

AGENT = replace(PLAN, kind=Kind.AGENT, version="0.2.0-1")
NEWER = replace(AGENT, version="0.3.0-1")


def rollout(
    number: int, plan: Plan, state: State, progress: Progress | None, reason: str = ""
) -> Rollout:
    members = {} if progress is None else {"pi-1": Member("pi-1", 1, 0.0, progress)}
    return Rollout(number, plan, state=state, members=members, reason=reason, wave=1)


@pytest.fixture
def bundles(tmp_path: Path) -> BundleStore:
    store = BundleStore(tmp_path / "bundles", fleet=FLEET, public_key=PUBLIC)
    for version in (AGENT.version, NEWER.version):
        path = tmp_path / f"{version}.tar"
        write_bundle(path, arch="x86_64", version=version)
        with store.receiving() as incoming:
            incoming.write(path.read_bytes())
            store.keep(incoming)
    return store


def told(bundles: BundleStore, *rollouts: Rollout) -> tuple[str, bool]:
    """The version that the device is to run, and whether it is to leave it."""
    devices = Devices()
    devices.add("pi-1")
    newest_first = sorted(rollouts, key=lambda each: -each.rollout_id)
    directives = Directives(lambda: newest_first, bundles, devices)
    directive = directives.of("pi-1", digest_of=lambda _: b"")
    return directive.agent.bundle.version, directive.agent.go_back


@pytest.mark.parametrize(
    ("state", "progress", "expected"),
    [
        (State.ACTIVE, None, ""),
        (State.ACTIVE, Progress.OFFERED, "0.2.0-1"),
        (State.ACTIVE, Progress.SUCCEEDED, "0.2.0-1"),
        (State.PAUSED, Progress.STARTED, "0.2.0-1"),
        (State.ACTIVE, Progress.FAILED, ""),
        (State.PROMOTED, Progress.SUCCEEDED, ""),
        (State.PROMOTED, Progress.TIMED_OUT, "0.2.0-1"),
        (State.PROMOTED, None, ""),
    ],
)
def test_a_device_in_a_wave_is_told_and_one_that_is_through_is_left_alone(
    bundles: BundleStore, state: State, progress: Progress | None, expected: str
) -> None:
    assert told(bundles, rollout(1, AGENT, state, progress)) == (expected, False)


def test_a_device_of_an_aborted_one_goes_back_unless_it_did_so_by_itself(
    bundles: BundleStore,
) -> None:
    for progress in (Progress.STARTED, Progress.SUCCEEDED, Progress.TIMED_OUT):
        assert told(bundles, rollout(1, AGENT, State.ABORTED, progress)) == ("0.2.0-1", True)
    for progress in (Progress.FAILED, Progress.LEFT):
        assert told(bundles, rollout(1, AGENT, State.ABORTED, progress)) == ("", False)


def test_the_newest_in_which_a_device_was_asked_counts(bundles: BundleStore) -> None:
    """Restarted node is "connected" but never gets work (flower#4844): it is told every time."""
    late = rollout(1, AGENT, State.PROMOTED, Progress.TIMED_OUT)
    newer = rollout(2, NEWER, State.ACTIVE, Progress.OFFERED)
    assert told(bundles, late, newer) == ("0.3.0-1", False)
    assert told(bundles, late, rollout(2, NEWER, State.ACTIVE, None)) == ("0.2.0-1", False)
    done = rollout(2, NEWER, State.PROMOTED, Progress.SUCCEEDED)
    assert told(bundles, late, done) == ("", False)
