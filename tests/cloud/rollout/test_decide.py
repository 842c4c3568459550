"""What comes next in a rollout: each pitfall of updates as a test, and the rules as properties."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import BAD, BEGUN, GOOD, PLAN, RUN, Play, active, fleet

from cloud_learner.rollout.decide import MAX_DEATHS, Outcome, Report, decide
from cloud_learner.rollout.plan import Kind, Plan, Wave, parse_waves
from cloud_learner.rollout.rollout import Enter, Progress, State

FAR_S = 10 * PLAN.wave_timeout_s


def test_waves_open_one_after_the_other_and_the_last_promotes_it() -> None:
    play = Play()
    assert len(play.step().members) == 1
    assert (play.all_say(GOOD).wave, len(play.rollout.members)) == (1, 2)
    assert (play.all_say(GOOD).wave, len(play.rollout.members)) == (2, 4)
    rollout = play.all_say(GOOD)
    assert rollout.state is State.PROMOTED
    assert rollout.reason == "4 of 4 devices acted on it"
    assert [note.name for note in rollout.history] == [
        "wave_2_opened",
        "wave_3_opened",
        "promoted",
    ]


def test_success_is_not_recorded_before_the_new_version_acted() -> None:
    """That it was offered, sent, or became current, is no success (hawkbit#3185)."""
    play = Play()
    play.step()
    play.all_say(BEGUN)
    assert play.rollout.wave == 0
    assert play.members(Progress.STARTED)
    assert not play.members(Progress.SUCCEEDED)


def test_a_bricked_device_is_not_proceeding_for_ever() -> None:
    """hawkbit#693."""
    play = Play()
    (canary,) = play.step().members
    play.all_say(BEGUN)
    play.absent.add(canary)
    rollout = play.step(after_s=FAR_S)
    assert rollout.members[canary].progress is Progress.FAILED
    assert "died on it" in rollout.reason
    assert rollout.state is State.ABORTED


def test_a_dead_device_is_counted_and_never_blocks() -> None:
    """flower PR#4968, openfl#981, FLIP PR#992."""
    play = Play(devices=fleet(4), absent={"pi-2"})
    play.step()
    for _ in range(3):
        play.all_say(GOOD)
    assert play.rollout.state is State.ACTIVE  # its time is not up
    rollout = play.step(after_s=FAR_S)
    assert rollout.state is State.PROMOTED
    assert play.members(Progress.TIMED_OUT) == {"pi-2"}
    assert rollout.members["pi-2"].reason == "was not there within 60 s"
    assert rollout.reason == "3 of 4 devices acted on it, 1 were not heard in time"


def test_a_canary_that_died_before_it_took_anything_is_replaced() -> None:
    play = Play()
    (canary,) = play.step().members
    play.absent.add(canary)
    rollout = play.step(after_s=FAR_S)
    assert rollout.wave == 0
    assert len(rollout.members) == 2
    assert play.members(Progress.TIMED_OUT) == {canary}


def test_devices_that_are_there_are_asked_before_those_that_are_not() -> None:
    for missing in fleet(4):
        others = set(fleet(4)) - {missing}
        plan = replace(PLAN, waves=parse_waves("3,100%"))
        play = Play(rollout=active(plan), absent={missing})
        assert set(play.step().members) == others


def test_a_fleet_of_which_nobody_acted_aborts_and_does_not_promote() -> None:
    play = Play(absent=set(fleet(4)))
    for _ in range(10):
        play.step(after_s=FAR_S)
    assert play.rollout.state is State.ABORTED
    assert play.rollout.reason == "none of 4 devices acted on it in time"


def test_a_failure_of_the_canary_aborts_at_once_and_says_who_and_why() -> None:
    play = Play()
    (canary,) = play.step().members
    rollout = play.all_say(BAD)
    assert rollout.state is State.ABORTED
    assert rollout.reason == f"1 of 1 devices failed, 5% may: {canary}: self_test"


def test_a_part_of_failures_within_the_bound_does_not_abort() -> None:
    plan = replace(PLAN, waves=parse_waves("100%"), max_failures=0.25)
    play = Play(rollout=active(plan))
    play.step()
    play.step({"pi-0": BAD})
    assert play.rollout.state is State.ACTIVE
    rollout = play.step(dict.fromkeys(("pi-1", "pi-2", "pi-3"), GOOD))
    assert rollout.state is State.PROMOTED
    assert play.members(Progress.FAILED) == {"pi-0"}


def test_fewer_failures_than_the_least_abort_only_when_the_wave_is_through() -> None:
    plan = replace(PLAN, waves=parse_waves("2,100%"), min_failures=2)
    play = Play(rollout=active(plan))
    first, second = sorted(play.step().members)
    assert play.step({first: BAD}).state is State.ACTIVE
    assert play.step({second: GOOD}).state is State.ABORTED


def test_a_power_blip_is_not_a_bad_version() -> None:
    """rauc#683: a run that begins anew once or twice goes on."""
    play = Play()
    (canary,) = play.step().members
    for run in range(MAX_DEATHS):
        rollout = play.step({canary: replace(BEGUN, run_id=bytes([run]) * 16)})
        assert rollout.members[canary].progress is Progress.STARTED
    assert rollout.members[canary].deaths == MAX_DEATHS - 1
    assert play.all_say(GOOD).members[canary].progress is Progress.SUCCEEDED


def test_a_device_that_dies_on_it_again_and_again_failed() -> None:
    play = Play()
    (canary,) = play.step().members
    for run in range(MAX_DEATHS + 1):
        play.step({canary: replace(BEGUN, run_id=bytes([run]) * 16)})
    assert play.rollout.state is State.ABORTED
    assert f"died {MAX_DEATHS} times on it" in play.rollout.reason


def test_an_update_of_the_agent_begins_a_new_run_and_that_is_no_death() -> None:
    play = Play(rollout=active(replace(PLAN, kind=Kind.AGENT, version="0.2.0")))
    (canary,) = play.step().members
    for run in range(MAX_DEATHS + 1):
        play.step({canary: replace(BEGUN, run_id=bytes([run]) * 16)})
    assert play.rollout.members[canary].deaths == 0


def test_a_slow_device_that_acts_is_late_and_not_dead() -> None:
    """A busy client is declared dead (NVFlare PR#2484)."""
    play = Play()
    (canary,) = play.step().members
    play.step({canary: replace(BEGUN, episodes=2)})
    rollout = play.step(after_s=FAR_S)
    assert rollout.members[canary].progress is Progress.TIMED_OUT
    assert rollout.members[canary].reason == "acted 2 of 3 episodes within 60 s"
    # It still counts when it gets there.
    assert play.step({canary: GOOD}).members[canary].progress is Progress.SUCCEEDED


def test_a_paused_rollout_asks_nobody_else_and_lets_no_time_run_out() -> None:
    play = Play()
    (canary,) = play.step().members
    play.pause()
    rollout = play.step(after_s=FAR_S)
    assert rollout.members[canary].progress is Progress.OFFERED
    rollout = play.step({canary: GOOD})
    assert (rollout.wave, set(rollout.members)) == (0, {canary})


def test_a_failure_while_it_is_paused_aborts_it() -> None:
    play = Play()
    play.step()
    play.pause()
    assert play.all_say(BAD).state is State.ABORTED


def test_what_a_device_says_after_the_end_is_kept_and_changes_nothing_else() -> None:
    play = Play(absent={"pi-2"})
    for _ in range(4):
        play.all_say(GOOD)
    play.step(after_s=FAR_S)
    rollout = play.step({"pi-2": GOOD})
    assert rollout.state is State.PROMOTED
    assert rollout.members["pi-2"].progress is Progress.SUCCEEDED


def test_a_device_that_went_back_says_so_once_it_was_aborted_and_not_before() -> None:
    left = Outcome(Progress.LEFT, "it limps", 0, RUN)
    play = Play()
    (canary,) = play.step().members
    play.all_say(BEGUN)
    assert play.step({canary: left}).members[canary].progress is Progress.STARTED
    play.rollout = play.rollout.after(Enter(State.ABORTED, "it limps"), play.now_s)
    assert play.step({canary: left}).members[canary].progress is Progress.LEFT
    assert play.step({canary: GOOD}).members[canary].progress is Progress.LEFT


def test_a_device_that_joins_is_placed_and_the_same_whoever_else_is_asked_first() -> None:
    plan = replace(PLAN, waves=parse_waves("2,100%"))
    play = Play(rollout=active(plan))
    before = set(play.step().members)
    play.devices = [*reversed(play.devices), "pi-late"]
    assert set(play.step().members) == before
    play.all_say(GOOD)
    assert play.members() == {*fleet(4), "pi-late"}
    play.devices.append("pi-later")
    assert "pi-later" in play.step().members  # all are in the last wave


def test_a_success_that_is_told_twice_or_followed_by_a_restart_stays() -> None:
    play = Play()
    (canary,) = play.step().members
    for said in (GOOD, GOOD, replace(BEGUN, run_id=bytes(16))):
        play.step({canary: said})
        assert play.rollout.members[canary].progress is Progress.SUCCEEDED


def test_a_device_that_fails_after_it_succeeded_counts_as_failed() -> None:
    play = Play()
    (canary,) = play.step().members
    play.step({canary: GOOD})
    play.step({canary: replace(BAD, reason="non_finite")})
    assert play.rollout.members[canary].progress is Progress.FAILED


OUTCOMES = st.sampled_from(
    [
        *(None, BEGUN, GOOD, BAD),
        Outcome(Progress.STARTED, "", 1, bytes(16)),
        Outcome(Progress.LEFT, "", 0, RUN),
    ]
)
WAVES = st.sampled_from(["100%", "1,100%", "1,10%,100%", "1,3,50%,100%", "25%,50%,100%"])


@given(
    count=st.integers(1, 12),
    waves=WAVES,
    max_failures=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    min_failures=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    script=st.lists(st.tuples(st.lists(OUTCOMES, min_size=12, max_size=12), st.floats(0, 100))),
)
def test_whatever_devices_do_waves_only_grow_and_it_comes_to_an_end(
    count: int,
    waves: str,
    max_failures: float,
    min_failures: int,
    seed: int,
    script: list[tuple[list[Outcome | None], float]],
) -> None:
    plan = replace(
        PLAN, waves=parse_waves(waves), max_failures=max_failures, min_failures=min_failures
    )
    rng = random.Random(seed)
    play = Play(rollout=active(plan), devices=fleet(count))
    for outcomes, after_s in script:
        before = play.rollout
        play.absent = {each for each in play.devices if rng.random() < 0.3}
        said = {
            device_id: outcome
            for device_id, outcome in zip(play.devices, outcomes, strict=False)
            if outcome is not None and device_id in before.members
        }
        after = play.step(said, after_s=after_s)
        assert before.members.keys() <= after.members.keys()
        assert before.wave <= after.wave
        assert not (before.state.ended and after.members.keys() - before.members.keys())
        assert not (before.state.ended and after.state is not before.state)
        for device_id, member in after.members.items():
            if member.progress is Progress.SUCCEEDED:
                earlier = before.members.get(device_id)
                kept = earlier is not None and earlier.progress is Progress.SUCCEEDED
                assert kept or said[device_id].progress is Progress.SUCCEEDED
        if after.state is State.PROMOTED and not before.state.ended:
            assert set(after.members) >= set(play.devices)
            assert all(member.progress.settled for member in after.members.values())
            assert after.count(Progress.SUCCEEDED) or max_failures == 1.0
    # Nobody says anything any more: time ends it, however it stands.
    play.absent = set(play.devices)
    for _ in range(count + len(plan.waves)):
        play.step(after_s=FAR_S)
    assert play.rollout.state.ended


@given(st.permutations(fleet(7)), st.sets(st.sampled_from(fleet(7))), st.integers(1, 2**62))
def test_who_comes_first_depends_on_nothing_but_the_names(
    order: list[str], absent: set[str], rollout_id: int
) -> None:
    rollout = active(replace(PLAN, waves=parse_waves("3,100%")), rollout_id)
    decided = [
        decide(rollout, {each: Report(each not in absent) for each in devices}, 1.0)
        for devices in (order, sorted(order))
    ]
    assert decided[0] == decided[1]


@given(st.integers(0, 5000), st.integers(1, 5000), st.floats(1e-4, 1.0))
def test_a_wave_has_at_least_one_device_and_never_more_than_there_are(
    devices: int, number: int, share: float
) -> None:
    for wave in (Wave(devices=number), Wave(share=share)):
        assert min(1, devices) <= wave.size(devices) <= devices
        assert wave.size(devices) <= wave.size(devices + 1)
    assert Wave(share=1.0).size(devices) == devices


def test_an_empty_fleet_waits_for_its_first_device() -> None:
    play = Play(devices=[])
    assert play.step(after_s=FAR_S).state is State.ACTIVE
    play.devices = ["pi-0"]
    assert set(play.step().members) == {"pi-0"}


@pytest.mark.parametrize("run_id", [RUN, b""])
def test_a_repeated_word_changes_nothing(run_id: bytes) -> None:
    play = Play()
    (canary,) = play.step().members
    said = {canary: replace(BEGUN, run_id=run_id)}
    play.step(said)
    before = play.rollout
    assert play.step(said, after_s=1.0) == before


def test_a_plan_for_a_part_of_the_fleet_knows_whom_it_is_for() -> None:
    plan = Plan(Kind.POLICY, "5", parse_waves("100%"), devices="pi-*, lab-?")
    assert [plan.is_for(each) for each in ("pi-1", "lab-2", "lab-22", "x")] == [
        True,
        True,
        False,
        False,
    ]
