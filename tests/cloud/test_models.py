"""The actor-critic, and the plain arrays that leave it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cloud_learner.models.actor_critic import ActorCritic, build_model
from shoal.errors import ConfigError, WireError
from shoal.spaces import Box, Discrete, EnvSpec, Space, unbounded


def spec(observation: Space, action: Space) -> EnvSpec:
    return EnvSpec("Test-v0", observation, action)


def bounded(shape: tuple[int, ...], low: float, high: float) -> Box:
    return Box(np.full(shape, low, np.float32), np.full(shape, high, np.float32))


def pixels(shape: tuple[int, ...]) -> Box:
    return Box(np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8))


def run_arrays(model: ActorCritic, observations: NDArray[np.generic]) -> NDArray[np.float32]:
    """Means or logits, from the exported arrays alone."""
    weights = model.policy_weights()
    hidden = observations.reshape(len(observations), -1).astype(np.float32)
    for index, layer in enumerate(weights.layers):
        hidden = hidden @ layer.weight + layer.bias
        if index != len(weights.layers) - 1:
            hidden = np.maximum(hidden, 0.0)
    return hidden.astype(np.float32)


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second, other = (
        build_model(spec(unbounded((4,)), Discrete(2)), seed=s).state_dict() for s in (3, 3, 4)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["policy.0.weight"], other["policy.0.weight"])


@pytest.mark.parametrize("lead", [(), (5,), (3, 2)])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (2, 2, 3)])
def test_takes_observations_of_any_shape_under_any_leading_axes(
    shape: tuple[int, ...], lead: tuple[int, ...]
) -> None:
    model = build_model(spec(unbounded(shape), Discrete(3)), hidden=(8,))
    observations = torch.randn((*lead, *shape))
    assert model.distribution_params(observations).shape == (*lead, 3)
    assert model.value(observations).shape == lead


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.int8])
def test_takes_observations_in_the_environments_own_dtype(dtype: type[np.number]) -> None:
    box = Box(np.zeros(4, dtype), np.full(4, 100, dtype))
    model = build_model(spec(box, Discrete(2)), hidden=(8,))
    observations = np.arange(8, dtype=dtype).reshape(2, 4)
    params = model.distribution_params(torch.from_numpy(observations))
    assert params.dtype == torch.float32
    np.testing.assert_allclose(
        params.detach().numpy(), run_arrays(model, observations), rtol=1e-4, atol=1e-6
    )


def test_pixels_are_scaled_to_one_and_the_scale_is_in_the_exported_arrays() -> None:
    model = build_model(spec(pixels((3, 3)), Discrete(2)), hidden=(8, 8))
    observations = np.random.default_rng(0).integers(0, 256, (5, 3, 3)).astype(np.uint8)
    params = model.distribution_params(torch.from_numpy(observations)).detach().numpy()
    np.testing.assert_allclose(params, run_arrays(model, observations), rtol=1e-3, atol=1e-6)
    first = model.policy_layers[0].weight.detach().numpy().T
    np.testing.assert_allclose(model.policy_weights().layers[0].weight * 255.0, first, rtol=1e-5)


def test_means_are_in_the_environments_units_and_so_are_the_exported_arrays() -> None:
    model = build_model(spec(unbounded((4,)), bounded((2,), -1.0, 5.0)), hidden=(8,), seed=1)
    observations = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    params = model.distribution_params(torch.from_numpy(observations)).detach().numpy()
    np.testing.assert_allclose(params[:, :2], run_arrays(model, observations), atol=1e-5)
    np.testing.assert_allclose(params[:, :2], 2.0, atol=0.5)  # a fresh policy aims at the centre
    log_std = model.policy_weights().log_std
    assert log_std is not None
    np.testing.assert_allclose(params[:, 2:], np.broadcast_to(log_std, (6, 2)), rtol=1e-6)
    np.testing.assert_allclose(log_std, np.log(3.0) - 0.5, rtol=1e-5)


def test_unbounded_and_half_bounded_actions_are_not_scaled() -> None:
    low = np.array([-np.inf, 0.0, -2.0], np.float32)
    high = np.array([np.inf, np.inf, 2.0], np.float32)
    model = build_model(spec(unbounded((1,)), Box(low, high)), hidden=(4,))
    assert model.action_scale.tolist() == [1.0, 1.0, 2.0]
    assert model.action_center.tolist() == [0.0, 0.0, 0.0]


def test_the_spread_of_actions_stays_within_bounds_whatever_training_does() -> None:
    model = build_model(spec(unbounded((1,)), unbounded((1,))), hidden=(4,))
    assert model.log_std is not None
    for wanted, allowed in ((-100.0, -5.0), (100.0, 2.0)):
        torch.nn.init.constant_(model.log_std, wanted)
        assert model.distribution_params(torch.zeros(1)).detach()[1].item() == allowed


def test_exported_arrays_do_not_follow_later_training() -> None:
    model = build_model(spec(unbounded((4,)), Discrete(2)), hidden=(8,))
    weights = model.policy_weights()
    before = weights.layers[0].weight.copy()
    torch.nn.init.zeros_(model.policy_layers[0].weight)
    np.testing.assert_array_equal(weights.layers[0].weight, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_noticed(bad: float) -> None:
    model = build_model(spec(unbounded((4,)), unbounded((1,))), hidden=(8,))
    assert model.policy_weights().finite
    with torch.no_grad():
        model.policy_layers[0].bias[3] = bad
    assert not model.policy_weights().finite


@pytest.mark.parametrize("hidden", [(), (0,), (8, -1)])
def test_refuses_networks_that_make_no_sense(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"training\.hidden"):
        build_model(spec(unbounded((4,)), Discrete(2)), hidden=hidden)


def test_refuses_observations_that_are_not_a_box_by_name() -> None:
    with pytest.raises(WireError, match="Box"):
        build_model(spec(Discrete(4), Discrete(2)))
