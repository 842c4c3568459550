"""What a device decided is made again, bit for bit; what was changed since is found, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.journal.episodes import EpisodeJoiner
from cloud_learner.journal.reader import JournaledChunk
from cloud_learner.journal.reproduce import (
    Report,
    Reproduction,
    RunnablePolicy,
    nth_episode,
    recompute,
    steps_of,
)
from shoal.policy import ACTION, LOG_PROB, NEXT_STATE, NOISE, OBSERVATION, STATE
from shoal.tensors import Array
from shoal.trajectory import Chunk

SPEC = cartpole_spec()
DIGEST = bytes(range(32))
WEIGHT = np.linspace(-0.02, 0.02, 8, dtype=np.float32).reshape(4, 2)


def decide(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Gumbel-max over two logits; with a state, its sum is added to the first."""
    logits = inputs[OBSERVATION].astype(np.float32) @ WEIGHT
    outputs: dict[str, Array] = {}
    if STATE in inputs:
        logits[:, 0] += inputs[STATE].sum(axis=1)
        outputs[NEXT_STATE] = np.tanh(inputs[STATE] + inputs[OBSERVATION][:, :2] / 100)
    action = (logits + inputs[NOISE]).argmax(axis=1)
    chosen = np.take_along_axis(logits, action[:, None], axis=1)[:, 0]
    log_prob = chosen - np.logaddexp(logits[:, 0], logits[:, 1])
    return outputs | {ACTION: action, LOG_PROB: log_prob}


POLICY = RunnablePolicy(DIGEST, noise_correlation=0.0, decide=decide)


def run_of(chunks: int, *, memory: bool = False) -> list[Chunk]:
    """A run as an honest device records it."""
    made: list[Chunk] = []
    state: NDArray[np.float32] | None = np.zeros((2, 2), np.float32) if memory else None
    for index in range(chunks):
        blank = replace(
            make_chunk(SPEC, seed=index),
            policy_digest=DIGEST,
            first_step=4 * index,
            initial_state=state,
        )
        again = recompute(blank, RUN_ID, SPEC, POLICY)
        made.append(replace(blank, actions=again.actions, log_probs=again.log_probs))
        state = again.state
    return made


def report_of(
    run: list[Chunk], policy: RunnablePolicy | None = POLICY, *, tolerance: float = 0.0
) -> Report:
    reproduction = Reproduction(SPEC, RUN_ID, lambda version, digest: policy, tolerance=tolerance)
    for seq, chunk in enumerate(run):
        reproduction.add(JournaledChunk(seq, chunk))
    return reproduction.report


@pytest.mark.parametrize("memory", [False, True])
def test_an_honest_device_decided_what_comes_out_again(memory: bool) -> None:  # noqa: FBT001
    report = report_of(run_of(3, memory=memory))
    assert (report.chunks, report.decisions, report.differing) == (3, 24, 0)
    assert report.first is None


def test_an_action_that_the_policy_did_not_choose_is_found_where_it_is() -> None:
    run = run_of(3)
    actions = run[1].actions.copy()
    actions[2, 1] = 1 - actions[2, 1]
    run[1] = replace(run[1], actions=actions)
    report = report_of(run)
    assert report.differing == 1
    assert report.first is not None
    assert (report.first.seq, report.first.step, report.first.env) == (1, 2, 1)
    assert report.first.what == "action"
    assert {report.first.recorded, report.first.recomputed} == {"0", "1"}


def test_one_bit_of_a_log_probability_is_seen_and_a_tolerance_lets_it_pass() -> None:
    run = run_of(2)
    log_probs = run[1].log_probs.copy()
    log_probs[3, 0] = np.nextafter(log_probs[3, 0], np.float32(-1e9))
    run[1] = replace(run[1], log_probs=log_probs)
    report = report_of(run)
    assert report.first is not None
    assert (report.first.what, report.first.step, report.first.env) == ("log_prob", 3, 0)
    assert report.first.recorded != report.first.recomputed
    assert report_of(run, tolerance=1e-5).differing == 0


def test_a_tolerance_is_never_for_integers() -> None:
    run = run_of(1)
    run[0] = replace(run[0], actions=1 - run[0].actions)
    assert report_of(run, tolerance=10.0).differing == 8


def test_noise_of_another_run_or_another_step_gives_other_decisions() -> None:
    (chunk,) = run_of(1)
    assert report_of([replace(chunk, first_step=4)]).differing > 0
    reproduction = Reproduction(SPEC, bytes(16), lambda version, digest: POLICY)
    reproduction.add(JournaledChunk(0, chunk))
    assert reproduction.report.differing > 0


def test_a_policy_that_is_not_the_one_recorded_is_a_difference_of_the_whole_chunk() -> None:
    report = report_of(run_of(1), replace(POLICY, digest=bytes(32)))
    assert report.differing == report.decisions == 8
    assert report.first is not None
    assert report.first.what == "policy_digest"
    assert report.first.recorded == DIGEST.hex()


def test_a_chunk_whose_policy_is_not_kept_is_counted_and_not_compared() -> None:
    report = report_of(run_of(2), None)
    assert (report.without_policy, report.chunks, report.decisions) == (2, 0, 0)


def test_a_memory_that_does_not_go_on_where_it_was_is_found() -> None:
    run = run_of(3, memory=True)
    state = run[2].initial_state
    assert state is not None
    other = state.copy()
    other[1, 0] += 1.0
    forged = replace(run[2], initial_state=other)
    again = recompute(forged, RUN_ID, SPEC, POLICY)
    run[2] = replace(forged, actions=again.actions, log_probs=again.log_probs)
    report = report_of(run)
    assert report.first is not None
    assert (report.first.what, report.first.seq, report.first.env) == ("state", 2, 1)


def test_a_memory_that_does_not_begin_with_zeros_is_found() -> None:
    (chunk,) = run_of(1, memory=True)
    forged = replace(chunk, initial_state=np.ones((2, 2), np.float32))
    again = recompute(forged, RUN_ID, SPEC, POLICY)
    report = report_of([replace(forged, actions=again.actions, log_probs=again.log_probs)])
    assert report.first is not None
    assert report.first.what == "state"


def test_a_memory_is_zero_where_an_episode_ended() -> None:
    run = run_of(1, memory=True)
    again = recompute(run[0], RUN_ID, SPEC, POLICY)
    assert again.state is not None
    ended = run[0].terminated[-1] | run[0].truncated[-1]
    assert ended.any()
    assert not again.state[ended].any()


def test_only_the_steps_of_one_episode_are_compared_when_it_is_asked_for() -> None:
    run = run_of(3)
    items = [JournaledChunk(seq, chunk) for seq, chunk in enumerate(run)]
    joiner = EpisodeJoiner()
    whole = [episode for item in items for episode in joiner.add(item.seq, item.chunk)]
    for number, wanted in enumerate(whole):
        found = nth_episode(items, number)
        assert found is not None
        assert (found.first, found.last, found.env) == (wanted.first, wanted.last, wanted.env)
        reproduction = Reproduction(SPEC, RUN_ID, lambda version, digest: POLICY)
        for item in items:
            reproduction.add(item, steps_of(found, item))
        assert reproduction.report.decisions == found.length
    assert nth_episode(items, len(whole)) is None
