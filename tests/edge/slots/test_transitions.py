"""How slots change: whatever happens in whatever order, there is an agent to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.slots import codec, transitions
from edge_agent.slots.state import (
    MAX_HISTORY,
    Content,
    Happening,
    Moment,
    Name,
    Refused,
    Release,
    State,
)
from edge_agent.slots.transitions import End

NOW = Moment(1_700_000_000, "boot 1")
ONE, TWO, THREE = (Release(digit * 64, f"{digit}.0", "0.1.0") for digit in "123")
DEAD = End(died=True, reason="it ended with code 5")


def installed(state: State, release: Release, now: Moment = NOW) -> State:
    return transitions.finish_install(transitions.start_install(state, release, now), release, now)


def committed(state: State) -> State:
    assert state.trial is not None
    return transitions.commit(state, state.trial.number, "it acted 3 episodes", NOW)


def on_trial() -> State:
    """Slot a acted once and is what is gone back to; slot b is on trial."""
    first = committed(transitions.switch(installed(State(), ONE), "set up", NOW))
    return transitions.switch(installed(first, TWO), "rollout 7, wave 2", NOW)


def test_success_is_recorded_only_once_the_new_version_acted() -> None:
    state = on_trial()
    assert state.slot(Name.B).content is Content.INSTALLED
    assert transitions.begin_run(state, NOW).slot(Name.B).content is Content.INSTALLED
    assert committed(state).slot(Name.B).content is Content.COMMITTED


def test_an_act_of_another_trial_commits_nothing() -> None:
    state = on_trial()
    assert state.trial is not None
    assert transitions.commit(state, state.trial.number - 1, "late", NOW) is state


def test_too_many_deaths_in_one_boot_go_back_and_say_why() -> None:
    state = on_trial()
    for _ in range(3):
        state = transitions.end_run(transitions.begin_run(state, NOW), DEAD, NOW)
    assert (state.current, state.trial) == (Name.A, None)
    assert state.slot(Name.B).content is Content.CONDEMNED
    assert "code 5" in state.slot(Name.B).reason
    assert state.history[-1].happening is Happening.ROLLED_BACK
    assert "code 5" in state.history[-1].reason


@given(st.lists(st.booleans(), max_size=30))
def test_repeated_power_cuts_burn_no_boot_counter(notes_its_end: list[bool]) -> None:
    state = on_trial()
    for boot, noted in enumerate(notes_its_end):
        now = Moment(NOW.unix_s, f"boot {boot + 2}")
        state = transitions.begin_run(state, now)
        if noted:  # one death in that boot, and then the power is cut
            state = transitions.begin_run(transitions.end_run(state, DEAD, now), now)
    assert state.current is Name.B
    assert state.trial is not None
    assert state.trial.deaths <= 1


def test_a_launcher_that_was_killed_counts_as_a_death_in_the_same_boot() -> None:
    state = transitions.begin_run(on_trial(), NOW)
    state = transitions.begin_run(state, NOW)
    assert state.trial is not None
    assert state.trial.deaths == 1


def test_a_failing_version_with_nothing_to_go_back_to_is_started_again_and_again() -> None:
    state = transitions.switch(installed(State(), ONE), "set up", NOW)
    for _ in range(2 * MAX_HISTORY):
        state = transitions.end_run(transitions.begin_run(state, NOW), DEAD, NOW)
    assert state.current is Name.A
    assert state.slot(Name.A).content is Content.INSTALLED
    with pytest.raises(Refused, match="nothing to go back to"):
        transitions.roll_back(state, "by hand", NOW)


def test_an_installation_never_touches_what_a_trial_goes_back_to() -> None:
    with pytest.raises(Refused, match="rollback"):
        transitions.start_install(on_trial(), THREE, NOW)


def test_a_failed_installation_leaves_the_running_slot_as_it_is() -> None:
    first = committed(transitions.switch(installed(State(), ONE), "set up", NOW))
    failed = transitions.fail_install(transitions.start_install(first, TWO, NOW), "no room", NOW)
    assert (failed.current, failed.slot(Name.A)) == (Name.A, first.slot(Name.A))
    assert failed.slot(Name.B).content is Content.EMPTY
    assert failed.history[-1].reason == "no room"
    with pytest.raises(Refused, match="install"):
        transitions.switch(failed, "anyway", NOW)


def test_an_older_version_that_acted_is_on_trial_again_when_it_is_switched_to() -> None:
    state = transitions.switch(committed(on_trial()), "back to 1.0 by a rollout", NOW)
    assert state.current is Name.A
    assert state.trial is not None
    assert state.fallback is Name.B


def test_a_slot_whose_files_are_gone_is_left_for_the_other() -> None:
    state = transitions.begin_run(on_trial(), NOW, broken="venv/bin/shoal is missing")
    assert state.current is Name.A
    assert "missing" in state.history[-1].reason


def test_an_expired_trial_goes_back_and_a_trial_that_is_over_does_not() -> None:
    state = on_trial()
    assert state.trial is not None
    assert transitions.expire(state, state.trial.number, "it did not act", NOW).current is Name.A
    done = committed(state)
    assert transitions.expire(done, state.trial.number, "it did not act", NOW) is done


Step = Callable[[State, Moment], State]


def _commit(state: State, now: Moment) -> State:
    return state if state.trial is None else transitions.commit(state, state.trial.number, "", now)


def _expire(state: State, now: Moment) -> State:
    return state if state.trial is None else transitions.expire(state, state.trial.number, "", now)


STEPS: dict[str, Step] = {
    "start 1": lambda state, now: transitions.start_install(state, ONE, now),
    "start 2": lambda state, now: transitions.start_install(state, TWO, now),
    "finish 1": lambda state, now: transitions.finish_install(state, ONE, now),
    "finish 2": lambda state, now: transitions.finish_install(state, TWO, now),
    "fail": lambda state, now: transitions.fail_install(state, "no room", now),
    "switch": lambda state, now: transitions.switch(state, "a rollout", now),
    "commit": _commit,
    "roll back": lambda state, now: transitions.roll_back(state, "by hand", now),
    "begin": transitions.begin_run,
    "begin broken": lambda state, now: transitions.begin_run(state, now, broken="gone"),
    "die": lambda state, now: transitions.end_run(state, DEAD, now),
    "stop": lambda state, now: transitions.end_run(state, End(died=False, reason=""), now),
    "expire": _expire,
    "refuse": lambda state, now: transitions.refuse(state, "not the fleet's", now),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2)), max_size=40))
def test_whatever_happens_there_is_an_agent_to_run_and_a_reason_for_each_switch(
    steps: list[tuple[str, int]],
) -> None:
    state = State()
    for name, boot in steps:
        before = state
        try:
            state = STEPS[name](state, Moment(7, f"boot {boot}"))
        except Refused:
            continue
        assert codec.decode(codec.encode(state)) == state
        if before.current is not None:
            assert state.current is not None
        if state.current is not None:
            assert state.slot(state.current).content.runnable
            assert state.slot(state.current).release is not None
        if (state.current, state.trial is None) != (before.current, before.trial is None):
            assert state.entries > before.entries
        if state.trial is None and state.current is not None:
            assert state.slot(state.current).content is Content.COMMITTED
        if before.trial is not None and before.fallback is not None and state.trial == before.trial:
            assert state.slot(state.spare) == before.slot(before.spare)  # what it goes back to
        assert len(state.history) <= MAX_HISTORY
        assert [entry.number for entry in state.history] == list(
            range(state.entries - len(state.history) + 1, state.entries + 1)
        )


@given(st.binary(max_size=200))
def test_bytes_that_are_no_state_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(codec.Malformed):
        codec.decode(data)


@given(st.data())
def test_a_damaged_state_is_refused_or_another_whole_one(data: st.DataObject) -> None:
    good = codec.encode(on_trial())
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    try:
        state = codec.decode(bad)
    except codec.Malformed:
        return
    assert codec.decode(codec.encode(state)) == state


def test_where_the_file_is_lost_what_lies_in_the_slots_speaks() -> None:
    found = {Name.A: ONE, Name.B: TWO}
    state = transitions.recover(found, Name.B, "slots.json is damaged", NOW)
    assert (state.current, state.fallback) == (Name.B, Name.A)
    assert state.history[-1].happening is Happening.RECOVERED
    assert transitions.recover({}, None, "missing", NOW) == State()
    assert transitions.recover({Name.A: ONE}, Name.B, "missing", NOW).current is Name.A


def test_reasons_are_one_line_and_bounded() -> None:
    state = transitions.switch(installed(State(), ONE), "why\n" * 1000, NOW)
    assert len(state.history[-1].reason) <= 300
    assert "\n" not in state.history[-1].reason
    assert replace(state, history=()).entries == state.entries


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2**33)), max_size=30))
def test_a_wrong_clock_changes_no_decision(steps: list[tuple[str, int]]) -> None:
    right = wrong = State()
    for name, unix_s in steps:
        try:
            right = STEPS[name](right, NOW)
        except Refused:
            with pytest.raises(Refused):
                STEPS[name](wrong, Moment(unix_s, NOW.boot_id))
            continue
        wrong = STEPS[name](wrong, Moment(unix_s, NOW.boot_id))
        assert (wrong.current, wrong.a, wrong.b) == (right.current, right.a, right.b)
        assert (wrong.trial is None) is (right.trial is None)
