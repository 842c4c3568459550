from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from strategies import some_observations

from edge_agent.policies.binding import Binding
from edge_agent.policies.policy import Policy
from edge_agent.policies.ports import Port
from shoal.errors import PolicyRejected
from shoal.layout import ActionLayout, ObservationLayout
from shoal.noise import noise_block
from shoal.policy import policy_digest
from shoal.spaces import Box, Dict, Discrete, EnvSpec, Tuple, unbounded
from shoal.tensors import Array

if TYPE_CHECKING:
    from policy_publisher import Publisher

BOX_LIKE = EnvSpec("box", unbounded((2, 3), np.float64), unbounded((2, 2)))


def inputs(spec: EnvSpec, envs: int) -> tuple[Array, Array]:
    shape, dtype = spec.observation.shape, spec.observation.dtype  # type: ignore[union-attr]
    observations = np.random.default_rng(envs).normal(size=(envs, *shape)).astype(dtype)
    return observations, noise_block(bytes(16), envs, 1, envs, spec.action)[0]


def test_actions_and_log_probabilities_follow_from_the_distribution_and_the_noise(
    publisher: Publisher,
) -> None:
    policy = publisher.policy()
    observations, noise = inputs(publisher.spec, 64)
    (logits,) = policy.session.runtime.run(
        ["distribution"], {"observation": observations, "noise": noise}
    )
    decided = policy.act(observations, noise)
    assert decided.actions.dtype == np.int64
    assert np.array_equal(decided.actions, (logits + noise).argmax(axis=1))
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(
        decided.log_probs, log_softmax[np.arange(64), decided.actions], rtol=1e-5, atol=1e-6
    )
    assert set(decided.actions.tolist()) == {0, 1}


def test_box_actions_keep_their_shape_and_are_not_clipped(make_publisher: type[Publisher]) -> None:
    policy = make_publisher(spec=BOX_LIKE).policy()
    observations, noise = inputs(BOX_LIKE, 32)
    (mean,) = policy.session.runtime.run(
        ["distribution"], {"observation": observations, "noise": noise}
    )
    decided = policy.act(observations, noise)
    assert decided.actions.shape == (32, 2, 2)
    np.testing.assert_allclose(decided.actions.reshape(32, 4), mean + 3 * noise, rtol=1e-6)
    want = (-0.5 * noise**2 - np.log(3) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(decided.log_probs, want, rtol=1e-5)


@pytest.mark.parametrize("spec", [EnvSpec("d", unbounded((4,)), Discrete(3)), BOX_LIKE])
@pytest.mark.parametrize("envs", [1, 2, 8])
def test_a_binding_decides_as_a_plain_run_does_bit_for_bit(
    spec: EnvSpec, envs: int, make_publisher: type[Publisher]
) -> None:
    policy = make_publisher(spec=spec).policy()
    observations, noise = inputs(spec, envs)
    binding = Binding(policy, observations)
    for k in range(3):
        observations *= k
        binding.noise[...] = noise + k
        binding.run()
        decided = policy.act(observations, noise + np.float32(k))
        assert binding.action.tobytes() == decided.actions.tobytes()
        assert binding.log_prob.tobytes() == decided.log_probs.tobytes()
        assert binding.finite()


@pytest.mark.parametrize("envs", [1, 2, 100])
def test_a_binding_notices_nan_and_infinity(envs: int, publisher: Publisher) -> None:
    observations = np.ones((envs, 4), np.float32)
    for bad in (np.nan, np.inf):
        binding = Binding(publisher.policy(gain=np.float32(bad)), observations)
        binding.run()
        assert not binding.finite()


def test_large_finite_numbers_are_finite(make_publisher: type[Publisher]) -> None:
    policy = make_publisher(spec=BOX_LIKE).policy(gain=np.float32(1e30))
    binding = Binding(policy, np.ones((2, 2, 3)))
    binding.run()
    assert np.abs(binding.action).max() > 1e25
    assert binding.finite()


def test_a_binding_refuses_observations_of_another_kind(publisher: Publisher) -> None:
    policy = publisher.policy()
    for wrong in (
        np.zeros((2, 5), np.float32),
        np.zeros((2, 4), np.float64),
        np.zeros((2, 8), np.float32)[:, ::2],
    ):
        with pytest.raises(PolicyRejected) as caught:
            Binding(policy, wrong)
        assert caught.value.reason == "graph"


def test_a_policy_outlives_the_tensors_it_was_loaded_from(publisher: Publisher) -> None:
    weights = publisher.weights()
    manifest = publisher.publish(1, weights=weights).manifest
    tensors = {name: array.copy() for name, array in weights.tensors.items()}
    policy = Policy.load(weights.graph, tensors, manifest)
    observations, noise = inputs(publisher.spec, 8)
    before = policy.act(observations, noise)
    for array in tensors.values():
        array.fill(0)
    tensors.clear()
    gc.collect()
    after = policy.act(observations, noise)
    assert before.log_probs.tobytes() == after.log_probs.tobytes()


def test_what_two_versions_share_is_wrapped_once_and_both_decide_as_if_alone(
    publisher: Publisher,
) -> None:
    weights = publisher.weights()
    manifest = publisher.publish(1, weights=weights).manifest
    first = Policy.load(weights.graph, weights.tensors, manifest)
    name = next(name for name, array in first.tensors.items() if array.dtype == np.int8)
    changed = first.tensors[name] // 2
    tensors = {**first.tensors, name: changed}
    second = Policy.load(weights.graph, tensors, manifest, like=first)
    alone = Policy.load(weights.graph, tensors, manifest)
    shared = {n for n, value in second.initializers.items() if value is first.initializers[n]}
    assert shared == set(tensors) - {name}
    assert second.ports == alone.ports
    changed.fill(0)  # it was not theirs to keep: nobody said that it lasts
    observations, noise = inputs(publisher.spec, 8)
    ours, theirs = second.act(observations, noise), alone.act(observations, noise)
    assert ours.log_probs.tobytes() == theirs.log_probs.tobytes()
    assert ours.log_probs.tobytes() != first.act(observations, noise).log_probs.tobytes()


def test_without_the_optimiser_it_decides_bit_for_bit_as_with_it(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = publisher.weights()
    manifest = publisher.publish(1, weights=weights).manifest
    assert manifest.precision == "int8"
    observations, noise = inputs(publisher.spec, 64)
    plain = Policy.load(weights.graph, weights.tensors, manifest).act(observations, noise)
    monkeypatch.setattr("edge_agent.policies.session._WORTH_OPTIMISING", (b"",))
    optimised = Policy.load(weights.graph, weights.tensors, manifest).act(observations, noise)
    assert plain.actions.tobytes() == optimised.actions.tobytes()
    assert plain.log_probs.tobytes() == optimised.log_probs.tobytes()


def test_it_says_its_version_and_the_digest_of_what_it_loaded(publisher: Publisher) -> None:
    policy = publisher.policy(version=9)
    assert policy.version == 9
    manifest = policy.manifest
    assert policy.digest == policy_digest(manifest.graph_digest, manifest.tensors_digest)
    assert policy.ports["observation"] == Port("float32", (4,))
    assert policy.ports["noise"] == Port(
        "float32", (ActionLayout.of(publisher.spec.action).noise_width,)
    )
    assert policy.ports["action"] == Port("int64", ())


def test_a_tensor_the_graph_does_not_know_is_refused(publisher: Publisher) -> None:
    with pytest.raises(PolicyRejected, match="does not load") as caught:
        publisher.policy(extra=np.zeros(3, np.float32))
    assert caught.value.reason == "graph"


@pytest.mark.parametrize("name", ["w0", "gain", "in_zero"])
def test_a_missing_tensor_is_refused(name: str, publisher: Publisher) -> None:
    weights = publisher.weights()
    manifest = publisher.publish(1, weights=weights).manifest
    del weights.tensors[name]
    with pytest.raises(PolicyRejected) as caught:
        Policy.load(weights.graph, weights.tensors, manifest)
    assert caught.value.reason == "graph"


def test_a_tensor_of_another_shape_or_dtype_is_refused(publisher: Publisher) -> None:
    for wrong in (np.zeros((5, 8), np.int8), np.zeros((4, 8), np.float32)):
        with pytest.raises(PolicyRejected) as caught:
            publisher.policy(w0=wrong)
        assert caught.value.reason == "graph"
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("graph", [b"", b"not a graph", bytes(64)])
def test_what_is_no_graph_is_refused(graph: bytes, publisher: Publisher) -> None:
    manifest = replace(publisher.publish(1).manifest, graph_bytes=len(graph))
    with pytest.raises(PolicyRejected) as caught:
        Policy.load(graph, publisher.weights().tensors, manifest)
    assert caught.value.reason == "graph"


NESTED = EnvSpec(
    "nested",
    Dict((("camera", Box(np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 255, np.uint8))),
          ("pose", Tuple((unbounded((3,), np.float64), Discrete(4)))))),
    Tuple((Discrete(3), unbounded((2,)))),
)  # fmt: skip


@pytest.mark.parametrize("memory", [0, 3])
@pytest.mark.parametrize("envs", [1, 2, 5])
def test_a_binding_of_packed_rows_and_a_state_decides_as_a_plain_run_does(
    envs: int, memory: int, make_publisher: type[Publisher]
) -> None:
    policy = make_publisher(spec=NESTED, memory=memory).policy()
    assert policy.memory == memory
    rng = np.random.default_rng(envs)
    rows = some_observations(NESTED.observation, (envs,), rng)
    binding = Binding(policy, rows)
    for k in range(3):
        rows[...] = some_observations(NESTED.observation, (envs,), rng)
        noise = noise_block(bytes(16), k, 1, envs, NESTED.action)[0]
        states = rng.random((envs, memory), np.float32) if memory else None
        if states is not None:
            binding.state[...] = states
        binding.noise[...] = noise
        binding.run()
        decided = policy.act(rows, noise, states)
        assert binding.action.tobytes() == decided.actions.tobytes()
        assert binding.log_prob.tobytes() == decided.log_probs.tobytes()
        if states is not None:
            assert decided.next_states is not None
            assert binding.next_state.tobytes() == decided.next_states.tobytes()
            assert binding.state.tobytes() == states.tobytes(), "a run leaves the state as it is"


def test_packed_rows_of_another_width_are_refused(make_publisher: type[Publisher]) -> None:
    policy = make_publisher(spec=NESTED).policy()
    width = ObservationLayout.of(NESTED.observation).shape[0]
    for wrong in (np.zeros((2, width + 1), np.uint8), np.zeros((2, width), np.int8)):
        with pytest.raises(PolicyRejected, match="packed rows"):
            Binding(policy, wrong)


def test_a_graph_with_other_inputs_than_the_observations_leaves_is_refused(
    make_publisher: type[Publisher],
) -> None:
    for theirs, ours in ((NESTED, BOX_LIKE), (BOX_LIKE, NESTED)):
        publisher = make_publisher(spec=theirs)
        weights = publisher.weights()
        manifest = publisher.publish(1, weights=weights).manifest
        layout = ObservationLayout.of(ours.observation)
        with pytest.raises(PolicyRejected, match="it must take") as caught:
            Policy.load(weights.graph, weights.tensors, manifest, layout)
        assert caught.value.reason == "graph"
