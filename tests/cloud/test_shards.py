"""Optimisers over parts of one vector: the same sums as one optimiser, in place, without locks."""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sim import on_loop

from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.shards import BLOCK, THREADS_FROM, Shards
from shoal.errors import CheckpointError
from shoal.gradients import Floats

Optimiser = Literal["adam", "sgd"]
OPTIMISERS: list[Optimiser] = ["adam", "sgd"]


def gradients(count: int, size: int, seed: int = 0) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size).astype(np.float32) for _ in range(count)]


def start(size: int) -> Floats:
    return np.linspace(-1, 1, size, dtype=np.float32)


def torch_reference(optimiser: Optimiser, size: int, steps: list[Floats], rate: float) -> Floats:
    parameters = torch.from_numpy(start(size)).requires_grad_()
    made: torch.optim.Optimizer = (
        torch.optim.Adam([parameters], lr=rate, eps=1e-5)
        if optimiser == "adam"
        else torch.optim.SGD([parameters], lr=rate, momentum=0.9)
    )
    for gradient in steps:
        parameters.grad = torch.from_numpy(gradient.copy())
        made.step()
    result: Floats = parameters.detach().numpy()
    return result


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("size", [3, 1000, 2 * BLOCK + 7])
def test_agrees_with_the_optimiser_of_torch(optimiser: Optimiser, shards: int, size: int) -> None:
    steps = gradients(12, size)
    mine = Shards(start(size), GradientsConfig(shards=shards, optimiser=optimiser))
    for gradient in steps:
        mine.apply(gradient, gain=1.0, rate=1e-2)
    np.testing.assert_allclose(
        mine.flat, torch_reference(optimiser, size, steps, 1e-2), rtol=2e-5, atol=2e-6
    )


@given(st.integers(1, 60), st.integers(1, 9), st.sampled_from(OPTIMISERS), st.floats(0.01, 1.0))
def test_how_it_is_cut_makes_no_difference(
    size: int, shards: int, optimiser: Optimiser, gain: float
) -> None:
    whole = Shards(start(size), GradientsConfig(optimiser=optimiser))
    cut = Shards(start(size), GradientsConfig(shards=shards, optimiser=optimiser))
    for gradient in gradients(4, size):
        whole.apply(gradient, gain=gain, rate=0.1)
        cut.apply(gradient, gain=gain, rate=0.1)
    np.testing.assert_array_equal(whole.flat, cut.flat)


def test_the_gradient_given_is_left_as_it_is_and_may_be_read_only() -> None:
    (gradient,) = gradients(1, 10)
    before = gradient.copy()
    gradient.flags.writeable = False
    for optimiser in OPTIMISERS:
        Shards(start(10), GradientsConfig(optimiser=optimiser)).apply(gradient, gain=0.5, rate=0.1)
    np.testing.assert_array_equal(gradient, before)


@on_loop
async def test_in_threads_every_shard_takes_every_gradient_in_its_order() -> None:
    size, steps = 5000, gradients(20, 5000)
    inline = Shards(start(size), GradientsConfig(shards=4))
    threaded = Shards(start(size), GradientsConfig(shards=4, threads="always"))
    assert threaded.threaded
    for gradient in steps:
        inline.apply(gradient, gain=1.0, rate=1e-2)
    await asyncio.gather(
        *(threaded.apply_in_threads(gradient, gain=1.0, rate=1e-2) for gradient in steps)
    )
    threaded.close()
    np.testing.assert_array_equal(inline.flat, threaded.flat)


def test_threads_are_for_large_networks_unless_told_otherwise() -> None:
    assert not Shards(start(100), GradientsConfig()).threaded
    large = np.zeros(THREADS_FROM, np.float32)
    assert Shards(large, GradientsConfig()).threaded
    assert not Shards(large, GradientsConfig(threads="never")).threaded


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_goes_on_from_a_checkpoint_with_another_number_of_shards(optimiser: Optimiser) -> None:
    steps = gradients(8, 50)
    whole = Shards(start(50), GradientsConfig(shards=3, optimiser=optimiser))
    for gradient in steps[:4]:
        whole.apply(gradient, gain=1.0, rate=0.1)
    resumed = Shards(whole.flat.copy(), GradientsConfig(shards=5, optimiser=optimiser))
    resumed.load_state_dict(whole.state_dict())
    for gradient in steps[4:]:
        whole.apply(gradient, gain=1.0, rate=0.1)
        resumed.apply(gradient, gain=1.0, rate=0.1)
    np.testing.assert_array_equal(whole.flat, resumed.flat)


def test_a_checkpoint_of_another_optimiser_or_network_is_refused() -> None:
    state = Shards(start(50), GradientsConfig(optimiser="sgd")).state_dict()
    with pytest.raises(CheckpointError, match="optimiser"):
        Shards(start(50), GradientsConfig()).load_state_dict(state)
    with pytest.raises(CheckpointError, match="50 parameters"):
        Shards(start(51), GradientsConfig(optimiser="sgd")).load_state_dict(state)
