"""The normalizer: its statistics, what it leaves alone, and that it travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import NEST, make_case, of_kind

from cloud_learner.models.actor_critic import build_actor_critic
from cloud_learner.models.normalizer import NORMALIZED_MAX, Normalizer
from cloud_learner.models.policy import build_policy
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import Sample
from shoal.spaces import Discrete, EnvSpec, unbounded

SPEC = EnvSpec("Test-v0", unbounded((3,)), Discrete(2))


def fresh(width: int = 3) -> Normalizer:
    return Normalizer(np.ones(width, np.bool_), np.ones(width, np.float32))


@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    scale=st.sampled_from([1e-2, 1.0, 1e4]),
)
def test_statistics_merged_from_parts_are_those_of_the_whole(
    seed: int, cuts: list[int], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.normal(3.0, 2.0, (sum(cuts) + 1, 3)) * scale).astype(np.float32)
    normalizer, start = fresh(), 0
    for cut in [*cuts, 1]:
        normalizer.update(torch.from_numpy(rows[start : start + cut]))
        start += cut
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(normalizer.shift, wide.mean(0), rtol=1e-5)
    np.testing.assert_allclose(1.0 / normalizer.gain, wide.std(0), rtol=1e-4)


def test_normalized_numbers_have_mean_0_and_variance_1_and_are_bounded() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(50.0, 7.0, (5000, 3))).float()
    normalizer = fresh()
    normalizer.update(rows)
    seen = normalizer(rows)
    torch.testing.assert_close(seen.mean(0), torch.zeros(3), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(seen.std(0), torch.ones(3), atol=1e-3, rtol=0.0)
    assert normalizer(torch.full((3,), 1e9)).tolist() == [NORMALIZED_MAX] * 3


def test_nothing_seen_changes_nothing() -> None:
    normalizer, rows = fresh(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(normalizer(rows), rows)
    normalizer.update(torch.zeros(0, 3))
    torch.testing.assert_close(normalizer(rows), rows)


def test_a_column_that_never_changes_is_harmless() -> None:
    normalizer = fresh()
    normalizer.update(torch.full((100, 3), 7.0))
    assert normalizer(torch.full((3,), 7.0)).tolist() == [0.0, 0.0, 0.0]
    assert normalizer(torch.full((3,), 7.1)).isfinite().all()


def test_only_numbers_are_normalized() -> None:
    case = make_case(NEST, Discrete(2), of_kind("mlp", normalize=True))
    rows = torch.from_numpy(case.sample.observations)
    plain = build_policy(case.spec, of_kind("mlp"), head="sample", seed=0)
    ours, raw = case.policy.features(rows).vector, plain.features(rows).vector
    assert ours is not None
    assert raw is not None
    features = plain.plan.features
    pixels = torch.from_numpy(features.columns("pixel"))
    others = torch.from_numpy(features.columns("one_hot") | features.columns("flag"))
    torch.testing.assert_close(ours[:, pixels], raw[:, pixels] / 255.0)
    torch.testing.assert_close(ours[:, others], raw[:, others])
    numbers = ours[:, torch.from_numpy(features.columns("number"))]
    assert abs(float(numbers.mean())) < 0.2
    assert float(numbers.std()) == pytest.approx(1.0, abs=0.2)


def test_a_space_without_numbers_has_no_normalizer() -> None:
    spec = EnvSpec("Test-v0", Discrete(4), Discrete(2))
    policy = build_policy(spec, of_kind("auto", normalize=True), head="sample", seed=0)
    assert policy.normalizer is None
    policy.observe(np.zeros((3,), np.int64))


def test_the_critic_sees_through_the_policys_normalizer() -> None:
    model = build_actor_critic(SPEC, of_kind("auto", normalize=True), seed=0)
    rows = np.random.default_rng(0).normal(100.0, 5.0, (64, 3)).astype(np.float32)
    before = model.value(torch.from_numpy(rows))
    model.policy.observe(rows)
    assert not torch.equal(before, model.value(torch.from_numpy(rows)))


def test_the_normalizer_is_part_of_the_state_and_goes_on_where_it_was() -> None:
    rng = np.random.default_rng(0)
    first, second = (
        build_policy(SPEC, of_kind("auto", normalize=True), head="sample", seed=s) for s in (0, 1)
    )
    first.observe(rng.normal(5.0, 2.0, (50, 3)).astype(np.float32))
    second.load_state_dict(first.state_dict())
    rows = rng.normal(5.0, 2.0, (50, 3)).astype(np.float32)
    first.observe(rows)
    second.observe(rows)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["auto", "lstm", "attention"])
def test_the_published_policy_is_the_trained_one_with_all_that_shapes_it(kind: str) -> None:
    """Normalizer far from the identity, bounded actions, nested observations, memory."""
    case = make_case(NEST, unbounded((2,)), of_kind(kind, normalize=True))
    rows = case.sample.observations
    leaves = case.policy.observation.unpack(rows)
    far = case.policy.observation.pack({**leaves, "arm": leaves["arm"] * 30.0 + 1e3})
    case.policy.observe(far)
    case.policy.observe(far)
    sample = Sample(far, case.sample.states)
    quantized = Quantizer(case.policy, kl_max=1.0).quantize(case.policy, sample)
    assert quantized.precision == "int8"
    assert quantized.kl_quantization < 0.02
    precise = Quantizer(case.policy, kl_max=1e-7).quantize(case.policy, sample)
    assert precise.precision == "fp32"
    assert precise.kl_quantization < 1e-7
    assert "input.shift" in quantized.tensors
