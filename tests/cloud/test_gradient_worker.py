"""What a device computes: the gradient that the learner's own step would descend."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from networks import own_torso
from strategies import cartpole_spec, make_chunk, rover_spec

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.differentiable import differentiable
from cloud_learner.algorithms.impala import IMPALA
from cloud_learner.algorithms.interface import Setup, load_algorithm
from cloud_learner.config import NetworkConfig, TrainingConfig
from cloud_learner.gradients.making import check_gradients
from cloud_learner.gradients.worker import make_worker
from cloud_learner.training.experience import Admitted, collate
from shoal.acting_normalizer import ActingNormalizer
from shoal.envelope import ChunkKey
from shoal.errors import ConfigError, WireError
from shoal.gradients import Weights, decode_weights, encode_weights
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk

SPEC = cartpole_spec()
APPO_PATH = "cloud_learner.algorithms.appo:APPO"
IMPALA_PATH = "cloud_learner.algorithms.impala:IMPALA"
ONE_UPDATE: dict[str, object] = {"epochs": 1, "minibatches": 1, "learning_rate": 1e-3}
SMALL = NetworkConfig(hidden=(16,))


def weights_of(
    spec: EnvSpec = SPEC,
    *,
    path: str = APPO_PATH,
    settings: dict[str, object] | None = None,
    network: NetworkConfig = SMALL,
    seed: int = 3,
) -> Weights:
    choice = load_algorithm(path, settings or {})
    algorithm = differentiable(choice.build(Setup(spec, network, seed)), path)
    setup = {
        "algorithm": path,
        "settings": asdict(choice.settings),  # type: ignore[call-overload]
        "network": asdict(network),
    }
    weights = Weights(algorithm.layout_digest, 5, algorithm.flat.copy(), setup)
    return decode_weights(encode_weights(weights))


def batch_of(chunk: Chunk) -> object:
    return collate([Admitted(ChunkKey("", b"", 0), 0, chunk, 0)], updates_now=0)


@pytest.mark.parametrize("spec", [SPEC, rover_spec()])
@pytest.mark.parametrize("path", [APPO_PATH, IMPALA_PATH])
def test_the_gradient_is_that_of_the_learners_own_loss(spec: EnvSpec, path: str) -> None:
    weights, chunk = weights_of(spec, path=path), make_chunk(spec)
    worker = make_worker(spec, allow=())
    worker.take(weights)
    worker.begin(chunk)
    computed = worker.gradient()
    choice = load_algorithm(path, {})
    algorithm = choice.build(Setup(spec, SMALL, seed=9))
    assert isinstance(algorithm, APPO)
    algorithm.flat[:] = weights.values
    targets = algorithm.prepare(batch_of(chunk))  # type: ignore[arg-type]
    loss = algorithm.loss(targets.columns).total
    wanted = torch.autograd.grad(loss, list(algorithm.model.parameters()), materialize_grads=True)
    flat = torch.cat([each.reshape(-1) for each in wanted]).numpy()
    np.testing.assert_allclose(computed.values, flat, rtol=1e-5, atol=1e-7)
    assert np.abs(flat).max() > 0
    assert set(computed.metrics) >= {"policy_loss", "value_loss", "entropy", "kl_staleness"}


def test_descending_it_as_the_learner_would_gives_the_learners_weights() -> None:
    """One update of `learn` with one minibatch, against Adam over the pushed gradient."""
    settings = ONE_UPDATE | {"max_grad_norm": 0.5}
    weights, chunk = weights_of(settings=settings), make_chunk(SPEC)
    worker = make_worker(SPEC, allow=())
    worker.take(weights)
    worker.begin(chunk)
    gradient = torch.from_numpy(worker.gradient().values.copy())
    parameters = torch.from_numpy(weights.values.copy()).requires_grad_()
    parameters.grad = gradient * min(1.0, 0.5 / float(gradient.norm()))
    torch.optim.Adam([parameters], lr=1e-3, eps=1e-5).step()
    learner = APPO(Setup(SPEC, SMALL, seed=1), APPO.Settings(**settings))  # type: ignore[arg-type]
    learner.flat[:] = weights.values
    learner.learn(batch_of(chunk))  # type: ignore[arg-type]
    np.testing.assert_allclose(parameters.detach().numpy(), learner.flat, atol=1e-6)


def test_passes_hold_near_the_policy_that_began_the_chunk() -> None:
    weights, worker = weights_of(), make_worker(SPEC, allow=())
    worker.take(weights)
    worker.begin(make_chunk(SPEC))
    first = worker.gradient()
    assert first.metrics["clip_fraction"] == 0.0
    moved = replace(weights, values=weights.values + np.float32(0.5))
    worker.take(moved)
    again = worker.gradient()
    assert again.metrics["kl"] > 0.0
    worker.begin(make_chunk(SPEC))
    assert worker.gradient().metrics["kl"] == pytest.approx(0.0, abs=1e-6)


def test_weights_change_only_where_they_are_taken() -> None:
    weights, worker = weights_of(), make_worker(SPEC, allow=())
    worker.take(weights)
    worker.begin(make_chunk(SPEC))
    before = copy.deepcopy(weights.values)
    one, two = worker.gradient().values.copy(), worker.gradient().values
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(weights.values, before)


def test_a_policy_with_memory_has_gradients_too() -> None:
    network = NetworkConfig(kind="lstm", hidden=(8,), memory=4)
    worker = make_worker(SPEC, allow=())
    worker.take(weights_of(network=network))
    chunk = make_chunk(SPEC)
    state = np.zeros((chunk.envs, 8), np.float32)
    worker.begin(replace(chunk, initial_state=state))
    assert np.isfinite(worker.gradient().values).all()


NORMALIZING = replace(SMALL, normalize=True)
ACTING = ActingNormalizer(
    7, np.array([0.5, -3.0, 0.0, 2.0], np.float32), np.array([2.0, 0.1, 1.0, 3.0], np.float32)
)
LATER = replace(ACTING, version=8, shift=ACTING.shift + np.float32(1.5))


def acted_with(weights: Weights, acting: ActingNormalizer) -> Chunk:
    """A chunk whose log-probabilities are of these weights, normalized as a version does."""
    choice = load_algorithm(APPO_PATH, {})
    algorithm = choice.build(Setup(SPEC, NORMALIZING, seed=9))
    assert isinstance(algorithm, APPO)
    algorithm.flat[:] = weights.values
    assert algorithm.policy.normalizer is not None
    algorithm.policy.normalizer.act_as(acting)
    chunk = make_chunk(SPEC)
    with torch.no_grad():
        params = algorithm.policy(torch.from_numpy(chunk.observations[:-1].copy()))
        actions = torch.from_numpy(chunk.actions.copy())
        log_probs = algorithm.policy.distribution.log_prob(params, actions)
    return replace(chunk, log_probs=log_probs.numpy())


def test_ratios_are_1_at_the_weights_that_acted_with_the_normalizer_of_their_version() -> None:
    weights = replace(weights_of(network=NORMALIZING), normalizer=ACTING)
    worker = make_worker(SPEC, allow=())
    worker.take(weights)
    worker.begin(acted_with(weights, ACTING))
    metrics = worker.gradient().metrics
    assert metrics["importance_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["kl_staleness"] == pytest.approx(0.0, abs=1e-6)
    worker.take(replace(weights, normalizer=LATER))
    worker.begin(acted_with(weights, ACTING))
    assert worker.gradient().metrics["kl_staleness"] > 1e-6, "another normalizer, another policy"
    worker.take(weights)
    worker.begin(acted_with(weights, ACTING))
    assert worker.gradient().metrics["kl_staleness"] == pytest.approx(0.0, abs=1e-6)


def test_the_gradient_is_that_of_the_learners_loss_on_what_the_version_saw() -> None:
    weights = replace(weights_of(network=NORMALIZING), normalizer=ACTING)
    worker = make_worker(SPEC, allow=())
    worker.take(weights)
    chunk = acted_with(weights, ACTING)
    worker.begin(chunk)
    seen = np.clip((chunk.observations - ACTING.shift) * ACTING.gain, -10, 10).astype(np.float32)
    finals = np.clip((chunk.final_observations - ACTING.shift) * ACTING.gain, -10, 10)
    plain = make_worker(SPEC, allow=())
    plain.take(replace(weights_of(network=SMALL), values=weights.values))
    plain.begin(replace(chunk, observations=seen, final_observations=finals.astype(np.float32)))
    np.testing.assert_allclose(
        worker.gradient().values, plain.gradient().values, rtol=1e-4, atol=1e-6
    )


def test_weights_without_the_normalizer_that_their_network_needs_are_refused() -> None:
    weights = weights_of(network=NORMALIZING)
    worker = make_worker(SPEC, allow=())
    with pytest.raises(WireError, match="a normalizer of 0 numbers"):
        worker.take(weights)
    narrow = replace(ACTING, shift=ACTING.shift[:3], gain=ACTING.gain[:3])
    with pytest.raises(WireError, match="of 3 numbers came, observations have 4"):
        worker.take(replace(weights, normalizer=narrow))
    with pytest.raises(WireError, match="observations have 0"):
        make_worker(SPEC, allow=()).take(replace(weights_of(), normalizer=ACTING))


def test_a_device_that_knows_of_no_normalizer_finds_other_weights_than_its_own() -> None:
    """It would compute at observations as they are; an old one compares parameters alone."""
    normalizing, plain = weights_of(network=NORMALIZING), weights_of(network=SMALL)
    assert normalizing.values.shape == plain.values.shape
    assert normalizing.layout_digest != plain.layout_digest


def test_what_does_not_fit_this_device_is_refused_with_what_to_do() -> None:
    worker = make_worker(SPEC, allow=())
    with pytest.raises(WireError, match="no weights"):
        worker.begin(make_chunk(SPEC))
    weights = weights_of()
    with pytest.raises(ConfigError, match="other spaces"):
        worker.take(weights_of(rover_spec()))
    with pytest.raises(WireError, match="names no algorithm"):
        worker.take(replace(weights, setup={}))
    with pytest.raises(WireError, match="weights: 99 came"):
        make_worker(SPEC, allow=()).take(replace(weights, values=np.zeros(99, np.float32)))
    with pytest.raises(ConfigError, match="clop"):
        worker.take(replace(weights, setup={**weights.setup, "settings": {"clop": 0.2}}))


@pytest.mark.parametrize(
    "network",
    [
        {"hidden": [10**12]},
        {"hidden": [10**6, 10**6]},
        {"hidden": [8], "kind": "lstm", "memory": 10**12},
        {"hidden": [8], "kind": "cnn", "filters": 10**12},
    ],
)
def test_a_network_larger_than_its_weights_is_refused_before_it_is_built(
    network: dict[str, object],
) -> None:
    weights = weights_of()
    setup = {**weights.setup, "network": network}
    with pytest.raises(WireError, match="too few"):
        make_worker(SPEC, allow=()).take(replace(weights, setup=setup))


@pytest.mark.parametrize(
    "path", ["os:system", "examples.reinforce:Reinforce", "cloud_learner.algorithmsx:A"]
)
def test_nothing_runs_that_the_device_did_not_allow(path: str) -> None:
    weights = weights_of()
    setup = {**weights.setup, "algorithm": path}
    with pytest.raises(ConfigError, match=r"set gradients\.allow"):
        make_worker(SPEC, allow=()).take(replace(weights, setup=setup))


def test_a_torso_of_ones_own_runs_with_leave_alone() -> None:
    assert own_torso is not None
    weights = weights_of(network=replace(SMALL, kind="networks:own_torso"))
    with pytest.raises(ConfigError, match="networks:own_torso"):
        make_worker(SPEC, allow=()).take(weights)
    worker = make_worker(SPEC, allow=("networks:own_torso",))
    worker.take(weights)
    worker.begin(make_chunk(SPEC))
    assert worker.gradient().values.shape == weights.values.shape


@pytest.mark.parametrize(
    ("training", "named"),
    [
        ({"network": NetworkConfig(quantization_aware=True)}, "quantization_aware"),
        ({"settings": {"normalize_rewards": True}}, "normalize_rewards"),
        ({"settings": {"learning_rate": 1e-3}}, "gradients.learning_rate"),
        ({"settings": {"max_grad_norm": 1.0}}, "gradients.clip_norm"),
        ({"max_lag": 3}, "gradients.max_lag"),
        ({"algorithm": "cloud_learner.algorithms.dqn:DQN"}, "rollouts"),
    ],
)
def test_what_this_mode_has_not_is_refused_by_name(training: dict[str, object], named: str) -> None:
    config = TrainingConfig(mode="gradients", **training)  # type: ignore[arg-type]
    choice = load_algorithm(config.algorithm, config.settings)
    with pytest.raises(ConfigError, match=named):
        check_gradients(config, choice)
    check_gradients(replace(config, mode="async"), choice)


def test_an_algorithm_without_gradients_is_refused_by_name() -> None:
    choice = load_algorithm("cloud_learner.algorithms.dqn:DQN", {})
    made = choice.build(Setup(SPEC, SMALL, seed=0))
    with pytest.raises(ConfigError, match="has no 'flat'"):
        differentiable(made, choice.path)
    assert IMPALA.data == "rollouts"
