from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.updates.acted import Acting
from edge_agent.updates.outcome import Progress
from edge_agent.updates.policy_outcome import (
    CHUNKS_FOR_AN_EPISODE,
    PolicyAsked,
    PolicySeen,
    policy_outcome,
    worth_telling,
)

DIGEST, TWIN = b"d" * 32, b"t" * 32
ASKED = PolicyAsked(7, 12, DIGEST, episodes=3)
VERSIONS = st.integers(0, 20)
ACTINGS = st.builds(Acting, VERSIONS, st.just(TWIN), st.integers(0, 200), st.integers(0, 9))
SEEN = st.builds(
    PolicySeen,
    current=VERSIONS,
    was_current=st.booleans(),
    refused=VERSIONS,
    refused_reason=st.just("self_test"),
    given_up=st.sampled_from(["", "non_finite"]),
    acting=ACTINGS,
)


def test_a_policy_that_came_and_acts_is_no_success_before_it_acted_the_episodes() -> None:
    """Success recorded before the new version ran (hawkbit#3185, rauc-hawkbit-updater#161)."""
    for acting in (Acting(), Acting(12, DIGEST, 5, 2), Acting(11, DIGEST, 900, 90)):
        outcome = policy_outcome(ASKED, PolicySeen(current=12, acting=acting))
        assert outcome is not None
        assert outcome.progress is Progress.STARTED


def test_a_success_names_the_form_of_the_policy_that_really_acted() -> None:
    outcome = policy_outcome(ASKED, PolicySeen(current=12, acting=Acting(12, TWIN, 5, 3)))
    assert outcome is not None
    assert (outcome.progress, outcome.digest, outcome.episodes) == (Progress.SUCCEEDED, TWIN, 3)


def test_where_no_episode_ends_chunks_stand_for_them() -> None:
    chunks = 3 * CHUNKS_FOR_AN_EPISODE
    for count, progress in ((chunks - 1, Progress.STARTED), (chunks, Progress.SUCCEEDED)):
        seen = PolicySeen(current=12, acting=Acting(12, DIGEST, count, 0))
        outcome = policy_outcome(ASKED, seen)
        assert outcome is not None
        assert outcome.progress is progress
    # One that ends says how long they are: no chunk stands for the others.
    outcome = policy_outcome(ASKED, PolicySeen(current=12, acting=Acting(12, DIGEST, chunks, 1)))
    assert outcome is not None
    assert outcome.progress is Progress.STARTED


def test_a_refusal_and_a_policy_that_was_given_up_are_failures_with_their_reason() -> None:
    refused = PolicySeen(current=11, refused=12, refused_reason="it does not reproduce")
    given_up = PolicySeen(current=11, was_current=True, given_up="non_finite")
    for seen, reason in ((refused, "it does not reproduce"), (given_up, "non_finite")):
        outcome = policy_outcome(ASKED, seen)
        assert outcome is not None
        assert outcome.progress is Progress.FAILED
        assert reason in outcome.reason
    assert policy_outcome(ASKED, PolicySeen(current=13, was_current=True)) is None
    assert policy_outcome(ASKED, PolicySeen(current=11)) is None


@given(SEEN)
def test_a_success_is_only_ever_of_the_version_that_acts_and_acted(seen: PolicySeen) -> None:
    outcome = policy_outcome(ASKED, seen)
    if outcome is not None and outcome.progress is Progress.SUCCEEDED:
        assert seen.current == seen.acting.version == ASKED.version
        enough = seen.acting.episodes >= ASKED.episodes
        assert enough or seen.acting.chunks >= ASKED.episodes * CHUNKS_FOR_AN_EPISODE
    if outcome is not None and outcome.progress is Progress.FAILED:
        assert seen.current < ASKED.version


@pytest.mark.parametrize(("episodes", "words"), [(3, 4), (100, 12)])
def test_every_step_is_told_but_not_every_episode(episodes: int, words: int) -> None:
    asked, told, count = replace(ASKED, episodes=episodes), None, 0
    for done in range(episodes + 1):
        seen = PolicySeen(current=12, acting=Acting(12, DIGEST, done, done))
        for _ in range(2):
            outcome = policy_outcome(asked, seen)
            assert outcome is not None
            if worth_telling(outcome, told, asked):
                told, count = outcome, count + 1
    assert count <= words
    assert told is not None
    assert told.progress is Progress.SUCCEEDED
