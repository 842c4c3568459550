"""What was decided outlives the learner; nothing here is closed before it is opened again."""

from __future__ import annotations

import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import BAD, BEGUN, GOOD, PLAN, Play, active, fleet

from cloud_learner.rollout.decide import Outcome
from cloud_learner.rollout.plan import parse_waves
from cloud_learner.rollout.rollout import Enter, PolicyVersions, Rollout, State
from cloud_learner.rollout.store import KEPT, RolloutStore
from shoal.errors import RolloutError

OUTCOMES: st.SearchStrategy[Outcome | None] = st.sampled_from([None, BEGUN, GOOD, BAD])


def loaded(path: Path) -> list[Rollout]:
    with RolloutStore(path) as store:
        return store.load()


@given(
    waves=st.sampled_from(["100%", "1,100%", "1,50%,100%"]),
    script=st.lists(
        st.tuples(st.lists(OUTCOMES, min_size=5, max_size=5), st.floats(0, 100)), max_size=8
    ),
)
def test_what_is_read_after_any_step_is_what_was_saved(
    waves: str, script: list[tuple[list[Outcome | None], float]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rollouts.db"
        plan = replace(PLAN, waves=parse_waves(waves), max_failures=0.5)
        with RolloutStore(path) as store:
            play = Play(rollout=store.create(replace(active(plan), rollout_id=0)))
            play.devices = fleet(5)
            for outcomes, after_s in script:
                before = play.rollout
                said = {
                    name: outcome
                    for name, outcome in zip(play.devices, outcomes, strict=True)
                    if outcome is not None and name in before.members
                }
                play.step(said, after_s=after_s)
                store.save(before, play.rollout)
                assert loaded(path) == [play.rollout]  # beside the one that is open


def test_numbers_are_never_given_out_twice(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with RolloutStore(path) as store:
        first = store.create(Rollout(0, PLAN))
        store.save(first, first.after(Enter(State.ABORTED, "no"), 0.0))
    with RolloutStore(path) as store:
        assert store.create(Rollout(0, PLAN)).rollout_id == first.rollout_id + 1


def test_the_oldest_that_ended_are_forgotten_and_none_that_goes_on(tmp_path: Path) -> None:
    with RolloutStore(tmp_path / "rollouts.db") as store:
        going = store.create(active())
        for _ in range(KEPT + 5):
            one = store.create(Rollout(0, PLAN))
            store.save(one, one.after(Enter(State.PROMOTED, "all"), 0.0))
        kept = [each.rollout_id for each in store.load()]
        assert kept[0] == going.rollout_id
        assert len(kept) <= KEPT + 1


def test_versions_are_pinned_while_a_rollout_goes_on_or_is_not_undone(tmp_path: Path) -> None:
    versions = PolicyVersions(source=2, baseline_source=9, baseline=9, candidate=10)
    path = tmp_path / "rollouts.db"
    with RolloutStore(path) as store:
        rollout = store.create(replace(active(), versions=versions))
        assert store.pinned() == {2, 9, 10}
        aborted = rollout.after(Enter(State.ABORTED, "it limps"), 1.0)
        store.save(rollout, aborted)
        assert store.pinned() == {2, 9, 10}
    with RolloutStore(path) as store:
        store.load()
        assert store.pinned() == {2, 9, 10}
        undone = replace(aborted, versions=replace(versions, undo=11, undone=True))
        store.save(aborted, undone)
        assert store.pinned() == frozenset()


def test_a_disk_that_refuses_a_damaged_row_and_a_newer_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with RolloutStore(path) as store:
        store.create(active())
        store._db.execute("UPDATE rollouts SET state = 'sideways'")
        with pytest.raises(RolloutError, match="damaged"):
            store.load()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(RolloutError, match="schema 9"):
        RolloutStore(path)
    with pytest.raises(RolloutError, match="rollouts"):
        RolloutStore(tmp_path / "missing" / "rollouts.db")
