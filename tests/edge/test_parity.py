"""What a twin is held against before it acts, and how the time of a decision is taken."""

from __future__ import annotations

import numpy as np
import pytest
from twin_devices import CASE, SPEC, Learner

from cloud_learner.quantization.quantize import Quantizer
from edge_agent.policies.parity import LOOKS, alike, check_parity, times_us
from edge_agent.policies.policy import Policy
from shoal.errors import PolicyRejected
from shoal.layout import ActionLayout, ObservationLayout
from shoal.policy import Golden
from shoal.spaces import Box, Dict, Discrete, unbounded


def test_a_dynamic_twin_is_held_against_int8_for_as_many_rows_as_it_decides_for_at_once() -> None:
    quantized = Quantizer(CASE.policy, kl_max=np.inf)
    tensors = quantized.quantize(CASE.policy, CASE.sample).tensors
    learner = Learner(quantized)
    manifest = learner.publish(1).manifest
    policy = Policy.load(
        quantized.graphs["int8"], tensors, manifest, ObservationLayout.of(SPEC.observation)
    )
    twin = policy.dynamic_twin(quantized.graphs["fp32"], tensors)
    observations = CASE.sample.observations[:8].copy()
    observations[7] *= 1e6  # one row alone that stretches the range of all
    noise = CASE.noise[:8]
    asked = policy.act(observations, noise)
    golden = Golden(observations, noise, asked.actions, asked.log_probs)
    action = ActionLayout.of(SPEC.action)
    check_parity(policy, twin, golden, action, envs=1)
    assert not np.array_equal(
        twin.act(observations, noise).log_probs[:7], twin.act(observations[:7], noise[:7]).log_probs
    )
    float_twin_of = policy.twin(quantized.graphs["fp32"], tensors)
    check_parity(policy, float_twin_of, golden, action, envs=1)
    broken = Golden(observations, noise, asked.actions, asked.log_probs + np.float32(1.0))
    with pytest.raises(PolicyRejected, match="does not decide like int8"):
        check_parity(policy, twin, broken, action, envs=1)


class TimedRuns:
    """Takes so long on a clock of its own."""

    def __init__(self, name: str, run_s: float, clock: list[float]) -> None:
        self.name, self.runs = name, 0
        self._run_s, self._clock = run_s, clock

    def run(self) -> None:
        self.runs += 1
        self._clock[0] += self._run_s


def test_a_form_that_is_much_slower_is_told_after_a_few_runs() -> None:
    now_s = [0.0]
    forms = [TimedRuns("a", 2e-5, now_s), TimedRuns("b", 1e-5, now_s)]
    slow = TimedRuns("slow", 0.02, now_s)
    assert times_us([*forms, slow], lambda: now_s[0]) == pytest.approx([20.0, 10.0, 20_000.0])
    assert slow.runs == LOOKS
    assert min(form.runs for form in forms) > 10 * LOOKS


def test_actions_are_alike_when_whole_numbers_are_equal_and_others_near() -> None:
    box = Box(np.full(2, -1, np.float32), np.full(2, 1, np.float32))
    layout = ActionLayout.of(Dict((("arm", box), ("grip", Discrete(3)))))
    ours = np.array([[0.5, 0.5, 2], [0.5, 0.5, 2], [0.5, 0.5, 2]], np.float32)
    theirs = np.array([[0.51, 0.49, 2], [0.5, 0.5, 1], [0.5, 0.6, 2]], np.float32)
    assert alike(layout, ours, theirs).tolist() == [True, False, False]
    wide = ActionLayout.of(unbounded((1,)))
    many = np.linspace(-1000, 1000, 9, dtype=np.float32)[:, None]
    assert alike(wide, many, many + 10).all()
    assert not alike(wide, many, many + 100).any()
