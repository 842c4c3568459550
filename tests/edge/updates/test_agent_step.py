from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.slots import transitions
from edge_agent.slots.state import Content, Moment, Name, Release, Slot, State, Trial
from edge_agent.updates.agent_step import AgentAsked, AgentSeen, Next, Result, Step, next_step
from edge_agent.updates.outcome import Progress

OLD, NEW = Release("0" * 64, "0.1.0-1", "0.1.0"), Release("1" * 64, "0.2.0-1", "0.2.0")
ASKED = AgentAsked(8, "0.2.0-1", bytes.fromhex(NEW.digest), 1000, bytes(32), "rollout 8, wave 1")
BACK = replace(ASKED, go_back=True)
NOW = Moment(0, "boot")
RUNNING = State(current=Name.A, a=Slot(Content.COMMITTED, OLD, "it acted 3 episodes"))
INSTALLED = RUNNING.put(Name.B, Slot(Content.INSTALLED, NEW))
ON_TRIAL = transitions.switch(INSTALLED, "rollout 8, wave 1", NOW)
COMMITTED = replace(
    ON_TRIAL.put(Name.B, Slot(Content.COMMITTED, NEW, "it acted 3 episodes")), trial=None
)
ROLLED_BACK = transitions.roll_back(ON_TRIAL, "it died 3 times in one boot", NOW)

STATES = [RUNNING, INSTALLED, ON_TRIAL, COMMITTED, ROLLED_BACK, State(), None]
RESULTS = [
    None,
    *(
        Result(digest, state, "why")
        for digest in (OLD.digest, NEW.digest)
        for state in ("trial", "refused", "failed")
    ),
]
SEEN = st.builds(
    AgentSeen,
    state=st.sampled_from(STATES),
    requested=st.sampled_from(["", OLD.digest, NEW.digest]),
    result=st.sampled_from(RESULTS),
    unpacked=st.booleans(),
    problem=st.sampled_from(["", "bad signature"]),
)


def test_a_bundle_is_fetched_then_asked_for_then_tried_and_a_success_once_it_is_committed() -> None:
    """Success recorded before the new version ran (hawkbit#3185)."""
    way = [
        AgentSeen(RUNNING),
        AgentSeen(RUNNING, unpacked=True),
        AgentSeen(RUNNING, requested=NEW.digest, unpacked=True),
        AgentSeen(INSTALLED, requested=NEW.digest, unpacked=True),
        AgentSeen(ON_TRIAL),
        AgentSeen(COMMITTED),
    ]
    steps = [next_step(ASKED, seen) for seen in way]
    assert [each.step for each in steps] == [
        Step.DOWNLOAD,
        Step.REQUEST,
        Step.WAIT,
        Step.WAIT,
        Step.WAIT,
        Step.NOTHING,
    ]
    assert [each.progress for each in steps] == [*[Progress.STARTED] * 5, Progress.SUCCEEDED]
    assert steps[-1].reason == "it acted 3 episodes"


def test_a_slot_that_was_left_is_a_failure_and_says_why() -> None:
    expected = Next(Step.NOTHING, Progress.FAILED, "rolled back: it died 3 times in one boot")
    assert next_step(ASKED, AgentSeen(ROLLED_BACK)) == expected


def test_what_the_launcher_or_the_proof_refused_is_a_failure_and_not_tried_again() -> None:
    for seen, reason in (
        (AgentSeen(RUNNING, result=Result(NEW.digest, "refused", "bad wheel")), "bad wheel"),
        (AgentSeen(RUNNING, problem="refused it: its signature"), "its signature"),
        (AgentSeen(None), "does not run from slots"),
    ):
        step = next_step(ASKED, seen)
        assert (step.step, step.progress) == (Step.NOTHING, Progress.FAILED)
        assert reason in step.reason


def test_what_became_of_another_bundle_says_nothing_of_this_one() -> None:
    seen = AgentSeen(RUNNING, requested=OLD.digest, result=Result(OLD.digest, "failed", "full"))
    assert next_step(ASKED, seen).step is Step.DOWNLOAD


def test_an_aborted_bundle_is_left_once_be_it_on_trial_or_committed() -> None:
    for state in (ON_TRIAL, COMMITTED):
        assert next_step(BACK, AgentSeen(state)).step is Step.LEAVE
        assert next_step(BACK, AgentSeen(state, requested=NEW.digest)).step is Step.WAIT
    for left in (RUNNING, INSTALLED, ROLLED_BACK, None):
        step = next_step(BACK, AgentSeen(left))
        assert (step.step, step.progress) == (Step.NOTHING, Progress.LEFT)
    assert "died 3 times" in next_step(BACK, AgentSeen(ROLLED_BACK)).reason


def test_the_only_bundle_of_a_device_is_not_left_for_nothing() -> None:
    """An update fails closed and leaves no agent (meta-balena#1869)."""
    only = State(current=Name.A, a=Slot(Content.COMMITTED, NEW, "it acted"))
    step = next_step(BACK, AgentSeen(only))
    assert (step.step, step.progress) == (Step.NOTHING, Progress.FAILED)


@given(SEEN, st.sampled_from([ASKED, BACK]))
def test_a_success_is_told_of_a_committed_slot_alone_and_nothing_is_asked_for_twice(
    seen: AgentSeen, asked: AgentAsked
) -> None:
    step = next_step(asked, seen)
    if step.progress is Progress.SUCCEEDED:
        assert seen.state is COMMITTED
    if step.step in (Step.REQUEST, Step.LEAVE):
        assert seen.requested != asked.name
    if step.step is Step.REQUEST:
        assert seen.unpacked
    if step.progress is Progress.FAILED:
        assert step.reason
        assert step.step is Step.NOTHING
    if asked.go_back:
        assert step.progress in (None, Progress.LEFT, Progress.FAILED)
    else:
        assert step.progress is not Progress.LEFT


def test_a_trial_that_follows_a_rollback_of_the_other_bundle_is_not_its_success() -> None:
    trial = Trial(5, "recovered", 0, "boot")
    state = State(current=Name.A, trial=trial, a=Slot(Content.INSTALLED, NEW))
    assert next_step(ASKED, AgentSeen(state)).progress is Progress.STARTED
