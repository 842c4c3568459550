"""Quantization-aware training: what is trained is the int8 policy."""

from __future__ import annotations

import pytest
import torch
from networks import ACTIONS, OBSERVATIONS, Case, make_case, of_kind

from cloud_learner.models.heads import Head
from cloud_learner.models.policy import build_policy
from cloud_learner.models.simulated import bounded_round, straight_round
from cloud_learner.quantization.quantize import Quantizer

CASES: list[tuple[str, str, str, Head]] = [
    ("vector", "auto", "discrete", "sample"),
    ("vector", "auto", "box", "sample"),
    ("vector", "auto", "box", "squash"),
    ("vector", "auto", "discrete", "greedy"),
    ("vector", "networks:own_torso", "discrete", "sample"),
    ("ram", "mlp", "discrete", "sample"),
    ("image", "auto", "discrete", "greedy"),
    ("nest", "auto", "dict", "sample"),
    ("vector", "lstm", "box", "sample"),
    ("nest", "lstm", "dict", "sample"),
    ("nest", "attention", "dict", "sample"),
]


def make(case: tuple[str, str, str, Head], *, aware: bool) -> Case:
    observation, kind, action, head = case
    return make_case(
        OBSERVATIONS[observation],
        ACTIONS[action],
        of_kind(kind, normalize=True, quantization_aware=aware),
        head=head,
    )


def train(case: Case) -> None:
    """A few steps in any direction."""
    observations = torch.from_numpy(case.sample.observations).unsqueeze(0)
    starts = torch.zeros(1, len(case.noise), dtype=torch.bool)
    for _ in range(5):
        unrolled = case.policy.unroll(observations, torch.from_numpy(case.sample.states), starts)
        case.policy.zero_grad()
        torch.autograd.backward(unrolled.params.square().mean())
        with torch.no_grad():
            for parameter in case.policy.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=1e-2)


@pytest.mark.parametrize("which", CASES)
def test_the_trained_policy_is_the_published_one(which: tuple[str, str, str, Head]) -> None:
    gaps = []
    for aware in (False, True):
        case = make(which, aware=aware)
        quantizer = Quantizer(case.policy, kl_max=10.0)
        quantizer.quantize(case.policy, case.sample)
        train(case)
        quantized = quantizer.quantize(case.policy, case.sample)
        assert quantized.precision == "int8"
        gaps.append(quantized.kl_quantization)
    plain, aware_ = gaps
    assert plain > 1e-7
    assert aware_ < plain / 100.0
    assert aware_ < 1e-6


@pytest.mark.parametrize("observation", ["vector", "image"])
def test_of_relative_values_the_differences_are_trained_in_integers_and_the_mean_is_not(
    observation: str,
) -> None:
    found: list[tuple[float, float]] = []
    for relative in (False, True):
        case = make((observation, "auto", "discrete", "greedy"), aware=True)
        plain = make((observation, "auto", "discrete", "greedy"), aware=False)
        case.policy.relative_values = relative
        for each in (case.policy, plain.policy):
            with torch.no_grad():  # values that move together, and little between actions
                last = each.network.affine(each.plan.last)
                last.weight.add_(last.weight[:1].clone() * 50.0)
        quantizer = Quantizer(case.policy, kl_max=10.0)
        quantized = quantizer.quantize(case.policy, case.sample)
        assert quantized.kl_quantization < 1e-6
        ours, exact = case.asked(), plain.asked()
        off = ours - ours.mean(-1, keepdim=True) - exact + exact.mean(-1, keepdim=True)
        mean_off = (ours - exact).mean(-1).abs().max() / exact.abs().max()
        found.append((float(off.abs().mean()), float(mean_off)))
    (absolute, _), (close, mean_gap) = found
    assert close < absolute / 3.0
    assert mean_gap < 0.1


def test_until_a_version_was_published_it_is_trained_in_fp32() -> None:
    case = make(CASES[0], aware=True)
    plain = make(CASES[0], aware=False)
    assert torch.equal(case.asked(), plain.asked())
    Quantizer(case.policy, kl_max=10.0).quantize(case.policy, case.sample)
    assert not torch.equal(case.asked(), plain.asked())


def test_the_ranges_are_part_of_the_state() -> None:
    case = make(CASES[0], aware=True)
    Quantizer(case.policy, kl_max=10.0).quantize(case.policy, case.sample)
    other = build_policy(case.spec, case.policy.config, head="sample", seed=9)
    assert other.ranges is not None
    ready = [other.ranges.ready]
    other.load_state_dict(case.policy.state_dict())
    ready.append(other.ranges.ready)
    assert ready == [False, True]
    assert torch.equal(Case(other, case.sample, case.noise).asked(), case.asked())


@pytest.mark.parametrize("which", CASES)
def test_every_weight_gets_a_gradient_through_the_rounding(
    which: tuple[str, str, str, Head],
) -> None:
    case = make(which, aware=True)
    Quantizer(case.policy, kl_max=10.0).quantize(case.policy, case.sample)
    observations = torch.from_numpy(case.sample.observations).unsqueeze(0)
    starts = torch.zeros(1, len(case.noise), dtype=torch.bool)
    state = torch.from_numpy(case.sample.states)
    params = case.policy.unroll(observations, state, starts).params
    torch.autograd.backward(params.square().sum())
    for name, parameter in case.policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_rounding_is_exact_and_its_gradient_is_that_of_the_identity() -> None:
    values = torch.linspace(-70.0, 300.0, 10_001, requires_grad=True)
    rounded = straight_round(values)
    assert torch.equal(rounded, values.round())
    (gradient,) = torch.autograd.grad(rounded.sum(), values)
    assert torch.equal(gradient, torch.ones_like(values))


@pytest.mark.parametrize("bounds", [(0.0, 255.0), (-128.0, 127.0)])
def test_bounds_of_units_are_those_of_clamp_and_no_gradient_passes_beyond(
    bounds: tuple[float, float],
) -> None:
    values = torch.linspace(-300.0, 300.0, 9_973, requires_grad=True)
    low, high = bounds
    units = bounded_round(values, low, high)
    wanted = straight_round(values).clamp(low, high)
    assert torch.equal(units, wanted)
    ours, theirs = (torch.autograd.grad(each.sum(), values)[0] for each in (units, wanted))
    assert torch.equal(ours, theirs)
    assert torch.equal(bounded_round(values.detach(), low, high), units.detach())
    assert bounded_round(torch.tensor([float("nan")]), low, high).isnan().all()


@pytest.mark.parametrize("which", CASES[:6])
def test_while_weights_are_fixed_they_are_rounded_once_and_then_anew(
    which: tuple[str, str, str, Head],
) -> None:
    case = make(which, aware=True)
    policy = case.policy
    Quantizer(policy, kl_max=10.0).quantize(policy, case.sample)
    observations = torch.from_numpy(case.sample.observations)
    weights = list(policy.parameters())
    plain = policy(observations)
    wanted = torch.autograd.grad(plain.square().sum(), weights)
    with policy.fixed_weights():
        first = policy(observations)
        with torch.no_grad():
            second = policy(observations)
    assert torch.equal(first, plain)
    assert torch.equal(second, plain)
    got = torch.autograd.grad(first.square().sum(), weights)
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        for weight in weights:
            weight.mul_(0.5)
    assert not torch.equal(policy(observations), plain)
