"""Ranges and integers from version to version: what changes, and what does not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from networks import Case
from numpy.typing import NDArray
from quantize_cases import CASES, cartpole, layer, nudge, quantizer_for

from cloud_learner.models.integers import (
    hold_range,
    hold_sampled_range,
)
from cloud_learner.quantization import quantize
from cloud_learner.quantization.dead_zone import DeadZone
from cloud_learner.quantization.quantize import Quantizer
from shoal.errors import PolicyRejected
from shoal.policy import encode_golden
from shoal.tensors import encode_tensors


@given(
    st.lists(st.floats(0.0, 1e6, width=32), min_size=1, max_size=20),
)
def test_a_held_range_always_covers_what_is_needed_and_is_never_far_too_wide(
    needs: list[float],
) -> None:
    held = None
    for need in needs:
        held = hold_range(held, torch.tensor([need]))
        assert held[0] >= need
        assert held[0] > 0.0
        if need > 0.0:
            assert held[0] * 0.5 <= need


def test_a_range_moves_only_when_it_must() -> None:
    first = hold_range(None, torch.tensor([1.0, 2.0]))
    np.testing.assert_array_equal(first, [1.0, 2.0])
    np.testing.assert_array_equal(hold_range(first, torch.tensor([0.9, 1.3])), first)
    moved = hold_range(first, torch.tensor([1.01, 1.9]))
    assert moved[0] > 1.01
    assert moved[1] == 2.0
    np.testing.assert_array_equal(hold_range(moved, torch.tensor([1.01, 1.9])), moved)


def test_small_steps_of_training_change_few_integers() -> None:
    case = cartpole()
    quantizer = quantizer_for(case)
    versions = []
    for _ in range(3):
        versions.append(quantizer.quantize(case.policy, case.sample).tensors)
        with torch.no_grad():
            for parameter in case.policy.parameters():
                parameter.mul_(0.999)
    for before, after in pairwise(versions):
        same = np.mean(before["weight.1"] == after["weight.1"])
        assert same > 0.9
        np.testing.assert_array_equal(before["weight.1.scale"], after["weight.1.scale"])
        np.testing.assert_array_equal(before["input.gain"], after["input.gain"])


@pytest.mark.parametrize("name", ["cartpole", "nest", "attention"])
def test_equal_weights_give_equal_bytes_after_a_restart(name: str) -> None:
    case = CASES[name]()
    first = quantizer_for(case)
    first.quantize(case.policy, case.sample)
    with torch.no_grad():
        for parameter in case.policy.parameters():
            parameter.mul_(1.05)
    second = quantizer_for(case)
    second.load_state_dict(first.state_dict())
    before, after = (q.quantize(case.policy, case.sample) for q in (first, second))
    assert encode_tensors(dict(before.tensors)) == encode_tensors(dict(after.tensors))
    assert encode_golden(before.golden) == encode_golden(after.golden)


def test_a_refused_version_leaves_the_ranges_as_they_were() -> None:
    case = cartpole()
    quantizer = quantizer_for(case)
    quantizer.quantize(case.policy, case.sample)
    before = quantizer.state_dict()
    with torch.no_grad():
        layer(case, 0).weight.fill_(1e38)
    with pytest.raises(PolicyRejected):
        quantizer.quantize(case.policy, case.sample)
    after = quantizer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@given(
    hnp.arrays(np.float32, 40, elements=st.floats(-60, 60, width=32)),
    hnp.arrays(np.float32, (5, 40), elements=st.floats(-0.75, 0.75, width=32)),
    st.sampled_from([0.0, 0.25, 0.5]),
)
def test_integers_err_by_half_a_step_and_the_dead_zone_at_most(
    start: NDArray[np.float32], moves: NDArray[np.float32], width: float
) -> None:
    zone, units = DeadZone(width), torch.from_numpy(start)
    before = zone.settle("w", units)
    np.testing.assert_array_equal(before, units.round())
    for move in moves:
        units = units + torch.from_numpy(move)
        after = zone.settle("w", units)
        assert bool(((after - units).abs() <= 0.5 + width).all())
        moved = after != before
        assert bool((after[moved] == units[moved].round()).all())
        assert torch.equal(zone.settle("w", units), after)  # the same weights change nothing
        before = after


def changes(quantizer: Quantizer, case: Case) -> int:
    """How many weights change over some small updates."""
    before = quantizer.quantize(case.policy, case.sample).tensors
    changed = 0
    for seed in range(4):
        nudge(case, 1e-3, seed)
        after = quantizer.quantize(case.policy, case.sample).tensors
        changed += sum(int((after[n] != before[n]).sum()) for n in after if n.startswith("weight"))
        before = after
    return changed


def test_a_dead_zone_has_fewer_integers_change() -> None:
    plain, zoned = (
        changes(Quantizer(case.policy, kl_max=1.0, dead_zone=width), case)
        for case, width in ((cartpole(), 0.0), (cartpole(), 0.25))
    )
    assert zoned < 0.7 * plain


def drift(case: Case, steps: float) -> None:
    """Moves each weight matrix the same way, by parts of a step of its integers."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in case.policy.parameters():
            step = parameter.abs().max() / 63.0
            parameter.add_(torch.rand_like(parameter) * steps * step)


def gaps(case: Case, **settings: float) -> tuple[list[float], set[str], int]:
    """Of versions that drift: each gap, all precisions, and how many integers changed."""
    quantizer = Quantizer(case.policy, **settings)
    found: list[float] = []
    precisions: set[str] = set()
    changed, before = 0, quantizer.quantize(case.policy, case.sample)
    for _ in range(12):
        drift(case, 0.1)
        after = quantizer.quantize(case.policy, case.sample)
        found.append(after.kl_quantization)
        precisions.add(after.precision)
        changed += sum(
            int((each != before.tensors[name]).sum())
            for name, each in after.tensors.items()
            if each.dtype == np.int8 and before.precision == after.precision
        )
        before = after
    return found, precisions, changed


def test_integers_that_waited_are_rounded_before_a_version_falls_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited, _, _ = gaps(cartpole(), kl_max=1.0, dead_zone=0.5)
    rounded, _, most = gaps(cartpole(), kl_max=1.0, dead_zone=0.0)
    assert max(rounded) < 0.5 * max(waited)
    bound = 0.8 * max(waited)
    kept, precisions, changed = gaps(cartpole(), kl_max=bound, dead_zone=0.5)
    assert precisions == {"int8"}
    assert max(kept) <= bound
    assert changed < most  # they waited all the same where they could
    monkeypatch.setattr(quantize, "RENEWED_OVER", np.inf)
    assert gaps(cartpole(), kl_max=bound, dead_zone=0.5)[1] != {"int8"}


def with_wide_ranges(case: Case, kl_max: float) -> Quantizer:
    """A quantizer that holds ranges just short of so wide that they would be given up."""
    before = Quantizer(case.policy, kl_max=1.0)
    before.quantize(case.policy, case.sample)
    state = {
        name: each * 1.6 if "/" not in name else each for name, each in before.state_dict().items()
    }
    quantizer = Quantizer(case.policy, kl_max=kl_max)
    quantizer.load_state_dict(state)
    return quantizer


def test_ranges_that_became_wide_are_narrowed_before_a_version_falls_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = cartpole()
    wide = with_wide_ranges(case, 1.0).quantize(case.policy, case.sample).kl_quantization
    bound = 0.8 * wide
    narrowed = with_wide_ranges(case, bound).quantize(case.policy, case.sample)
    assert narrowed.precision == "int8"
    assert narrowed.kl_quantization <= 0.8 * wide
    assert not narrowed.refused
    monkeypatch.setattr(quantize, "RENEWED_OVER", np.inf)
    assert with_wide_ranges(case, bound).quantize(case.policy, case.sample).refused


def test_integers_go_on_waiting_where_rounding_them_would_gain_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited, _, free = gaps(cartpole(), kl_max=1.0, dead_zone=0.25)
    bound = 1.1 * max(waited)  # the last versions are over half of it
    assert gaps(cartpole(), kl_max=bound, dead_zone=0.25)[2] > free
    monkeypatch.setattr(quantize, "RENEWED_IS_BETTER", 0.0)
    assert gaps(cartpole(), kl_max=bound, dead_zone=0.25) == (waited, {"int8"}, free)


@pytest.mark.parametrize("name", ["cartpole", "image", "lstm", "nest"])
def test_a_quantizer_that_goes_on_elsewhere_gives_the_same_bytes(name: str) -> None:
    case = CASES[name]()
    here = Quantizer(case.policy, kl_max=1.0, dead_zone=0.25)
    for seed in range(3):
        here.quantize(case.policy, case.sample)
        nudge(case, 1e-3, seed)
    there = Quantizer(case.policy, kl_max=1.0, dead_zone=0.25)
    there.load_state_dict(here.state_dict())
    for seed in range(3):
        ours, theirs = (each.quantize(case.policy, case.sample) for each in (here, there))
        assert encode_tensors(dict(ours.tensors)) == encode_tensors(dict(theirs.tensors))
        assert encode_golden(ours.golden) == encode_golden(theirs.golden)
        nudge(case, 1e-3, seed)


def test_a_range_of_samples_shrinks_only_after_many_that_needed_less() -> None:
    held, low = hold_sampled_range(None, torch.tensor([1.0, 1.0]), None)
    small = torch.tensor([0.1, 0.9])
    steps = 0
    while held[0] == 1.0:
        held, low = hold_sampled_range(held, small, low)
        steps += 1
    assert steps == 16
    np.testing.assert_allclose(held, [0.11, 1.0])
    held, low = hold_sampled_range(held, torch.tensor([2.0, 1.0]), low)
    assert held[0] == pytest.approx(2.2)  # and grows at once
    for _ in range(15):
        held, low = hold_sampled_range(held, small, low)
    held, low = hold_sampled_range(held, torch.tensor([2.0, 1.0]), low)
    held, low = hold_sampled_range(held, small, low)
    assert held[0] == pytest.approx(2.2)  # one that needs it starts the count afresh
