"""Golden vectors: what devices prove a policy by."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import ACTIONS, Case, make_case
from quantize_cases import CASES, cartpole, nudge, quantizer_for

from cloud_learner.quantization.golden import GOLDEN_BYTES, GOLDEN_ROWS, clear_rows, golden_rows
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.session import feeds, open_session
from shoal.layout import ActionLayout
from shoal.policy import decode_golden, encode_golden
from shoal.spaces import unbounded
from shoal.tensors import decode_tensors, encode_tensors

MAX_BYTES = 1 << 24


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    return CASES[name]()


def test_golden_vectors_hold_bit_for_bit_in_a_session_from_bytes_alone(case: Case) -> None:
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    tensors = decode_tensors(encode_tensors(dict(quantized.tensors)), max_bytes=MAX_BYTES)
    golden = decode_golden(encode_golden(quantized.golden))
    session = open_session(bytes(quantizer.graphs[quantized.precision]), tensors)
    assert 1 <= len(golden.observations) <= GOLDEN_ROWS
    assert golden.noise.shape[1] == ActionLayout.of(case.spec.action).noise_width
    assert (golden.states is not None) == bool(case.policy.state_width)
    given = feeds(case.policy.observation, golden.observations, golden.noise, golden.states)
    names = ["action", "log_prob", *([] if golden.states is None else ["next_state"])]
    expected = [golden.actions, golden.log_probs, golden.next_states]
    for found, wanted in zip(session.run(names, given), expected, strict=False):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["cartpole", "multi-discrete", "nest"])
def test_golden_actions_do_not_hang_on_a_rounding_error(name: str) -> None:
    case = CASES[name]()
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    golden = quantized.golden
    session = open_session(quantizer.graphs["int8"], quantized.tensors)
    for shift in (-3e-4, 3e-4):
        noise = golden.noise + np.float32(shift) * (np.arange(golden.noise.shape[1]) % 2)
        given = feeds(case.policy.observation, golden.observations, noise.astype(np.float32))
        (actions,) = session.run(["action"], given)
        if case.policy.action.discrete:
            np.testing.assert_array_equal(actions, golden.actions)
        else:
            np.testing.assert_array_equal(actions[:, 2:], golden.actions[:, 2:])


@given(st.integers(0, 2**24))
def test_golden_observations_weigh_little_but_are_never_too_few(row_bytes: int) -> None:
    rows = golden_rows(row_bytes)
    assert 4 <= rows <= GOLDEN_ROWS
    assert rows == 4 or rows * row_bytes <= GOLDEN_BYTES


def test_golden_actions_of_a_greedy_policy_hang_neither_on_values_nor_on_the_threshold() -> None:
    case = CASES["greedy"]()
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.policy, case.sample)
    golden = quantized.golden
    for shift in (-5e-4, 5e-4):
        tensors = dict(quantized.tensors)
        tensors["explore.threshold"] = tensors["explore.threshold"] + np.float32(shift)
        given = feeds(case.policy.observation, golden.observations, golden.noise)
        session = open_session(quantizer.graphs["int8"], tensors)
        np.testing.assert_array_equal(session.run(["action"], given)[0], golden.actions)


def test_golden_rows_look_at_each_whole_number_of_a_mixed_action() -> None:
    case = make_case(unbounded((4,)), ACTIONS["dict"])  # a Box of 2, then 2, 3, 4, 2 and 3 values
    starts, columns = (4, 6, 9, 13, 15), (2, 4, 7, 11, 13)
    distribution = np.zeros((6, 18), np.float32)
    distribution[:, list(starts)] = 1.0  # each element's first value is ahead
    noise = np.zeros((6, 16), np.float32)
    for row, (start, column) in enumerate(zip(starts, columns, strict=True)):
        distribution[row, start] = 0.0
        noise[row, column] = 1e-5
    clear = clear_rows(case.policy, distribution, noise)
    assert clear.tolist() == [False] * 5 + [True]


def test_golden_vectors_ask_the_same_over_versions_and_their_decisions_stay_clear() -> None:
    case = cartpole()
    quantizer = Quantizer(case.policy, kl_max=1.0)
    asked = []
    for seed in range(16):
        golden = quantizer.quantize(case.policy, case.sample).golden
        asked.append(golden.observations)
        session = open_session(
            quantizer.graphs["int8"], quantizer.quantize(case.policy, case.sample).tensors
        )
        given = feeds(case.policy.observation, golden.observations, golden.noise)
        (distribution,) = session.run(["distribution"], given)
        assert clear_rows(case.policy, distribution, golden.noise).all()
        nudge(case, 0.02, seed)
    kept = sum(np.array_equal(a, b) for a, b in pairwise(asked))
    assert kept >= 10
