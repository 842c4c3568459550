"""The weightless graph computes what torch computes, for every head, torso and space."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
import torch
from networks import ACTIONS, KINDS, NEST, OBSERVATIONS, Case, make_case, of_kind, pixels

from cloud_learner.models.exploring import EpsilonGreedy
from cloud_learner.models.graph_layers import Precision
from cloud_learner.models.heads import Head
from cloud_learner.models.policy_graph import PRECISIONS, build_graph
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.session import feeds, open_session
from cloud_learner.quantization.tensors import make_tensors
from shoal.noise import noise_block
from shoal.spaces import Box, Discrete, Space, unbounded

HEADS: list[tuple[Head, str]] = [
    *(("sample", name) for name in ACTIONS),
    ("greedy", "discrete"),
    ("greedy", "one choice"),
    ("squash", "box"),
]
# A head sees only what comes out of a torso: the whole product is for the cheapest observation.
FEW_HEADS: list[tuple[Head, str]] = [("sample", "discrete"), ("sample", "dict"), ("squash", "box")]
COMBINATIONS = list(
    dict.fromkeys(
        [
            *itertools.product(["vector"], KINDS, HEADS),
            *itertools.product(["nest"], ["auto", "lstm"], HEADS),
            *itertools.product(["nest"], KINDS, FEW_HEADS),
            *itertools.product(OBSERVATIONS, ["auto", "mlp"], [HEADS[0], HEADS[-1]]),
        ]
    )
)


def make(observation: str, kind: str, head: Head, action: str, *, normalize: bool) -> Case:
    return make_case(
        OBSERVATIONS[observation],
        ACTIONS[action],
        of_kind(kind, normalize=normalize),
        head=head,
        dueling=head == "greedy" and ":" not in kind,
    )


def quantizer_of(case: Case) -> Quantizer:
    quantizer = Quantizer(case.policy, kl_max=100.0)
    quantizer.quantize(case.policy, case.sample)
    return quantizer


@pytest.mark.parametrize(
    ("observation", "kind", "head", "action"), [(o, k, *h) for o, k, h in COMBINATIONS]
)
def test_a_graph_is_its_policy_at_every_precision(
    observation: str, kind: str, head: Head, action: str
) -> None:
    case = make(observation, kind, head, action, normalize=True)
    quantizer = quantizer_of(case)
    params, state = case.stepped()
    for precision in PRECISIONS:
        tensors = make_tensors(case.policy, precision, quantizer._ranges)
        session = open_session(quantizer.graphs[precision], tensors)
        outputs = case.run_in(session)
        near = 1e-4 if precision == "fp32" else 0.15
        spread = float(params.abs().max()) + 1e-6
        apart = np.abs(outputs["distribution"] - params.numpy()).max()
        assert apart <= near * spread, precision
        if case.policy.state_width:
            assert np.abs(outputs["next_state"] - state.numpy()).max() <= near * max(
                1.0, float(state.abs().max())
            )
        check_decisions(case, outputs)
        check_greedy(case, case.run_in(session, greedy=True))


def check_decisions(case: Case, outputs: dict[str, np.ndarray]) -> None:
    """Actions and log-probabilities follow from distribution and noise."""
    policy = case.policy
    params = torch.from_numpy(outputs["distribution"])
    actions = torch.from_numpy(outputs["action"])
    assert actions.shape[1:] == policy.action.shape
    assert outputs["action"].dtype == policy.action.dtype
    if policy.head == "squash":
        sampled = policy.distribution.rsample(params, torch.from_numpy(case.noise))  # type: ignore[attr-defined]
        torch.testing.assert_close(actions, sampled.action, atol=1e-5, rtol=1e-5)
        expected = sampled.log_prob
    else:
        expected = policy.distribution.log_prob(params, actions)
    np.testing.assert_allclose(outputs["log_prob"], expected, rtol=1e-3, atol=2e-3)


def check_greedy(case: Case, outputs: dict[str, np.ndarray]) -> None:
    """Noise of zeros gives the mode."""
    mode = case.policy.distribution.mode(torch.from_numpy(outputs["distribution"]))
    np.testing.assert_allclose(outputs["action"], mode, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_graph_holds_no_weights_and_names_every_tensor(kind: str, precision: Precision) -> None:
    case = make("nest", kind, "sample", "dict", normalize=True)
    quantizer = quantizer_of(case)
    graph = onnx.ModelProto.FromString(quantizer.graphs[precision]).graph
    assert all(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer)
    assert not any(t.raw_data for t in graph.initializer)
    tensors = make_tensors(case.policy, precision, quantizer._ranges)
    assert {t.name: tuple(t.dims) for t in graph.initializer} == {
        name: array.shape for name, array in tensors.items()
    }


def test_a_graph_has_one_input_for_each_leaf_and_a_state_only_with_memory() -> None:
    for kind, more in (("auto", set()), ("attention", {"state"})):
        case = make("nest", kind, "sample", "dict", normalize=False)
        graph = onnx.ModelProto.FromString(build_graph(case.policy, "int8")).graph
        leaves = {f"observation.{path}" for path in ("arm", "camera", "grid", "more.0", "more.1")}
        assert {port.name for port in graph.input} == leaves | {"noise"} | more
        assert ("next_state" in {port.name for port in graph.output}) == bool(more)


def test_graphs_do_not_change_with_weights_or_statistics() -> None:
    for kind in KINDS:
        first, second = (
            make_case(NEST, ACTIONS["dict"], of_kind(kind, normalize=True), seed=s) for s in (0, 1)
        )
        for precision in PRECISIONS:
            assert build_graph(first.policy, precision) == build_graph(second.policy, precision)


def test_images_stay_uint8_until_the_graph_and_are_convolved_as_they_are() -> None:
    case = make("image", "auto", "sample", "discrete", normalize=False)
    graph = onnx.ModelProto.FromString(build_graph(case.policy, "int8")).graph
    kinds = [node.op_type for node in graph.node]
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert kinds[0] == "QLinearConv"
    assert "Cast" not in kinds
    assert "QuantizeLinear" not in kinds


def frequencies(
    observation: Space, action: Space, rows: int, head: Head = "sample"
) -> tuple[Case, dict[str, np.ndarray]]:
    """Many decisions at one observation."""
    case = make_case(observation, action, head=head)
    quantizer = quantizer_of(case)
    tensors = make_tensors(case.policy, "int8", quantizer._ranges)
    session = open_session(quantizer.graphs["int8"], tensors)
    same = np.repeat(case.sample.observations[:1], rows, axis=0)
    noise = noise_block(bytes(range(16)), 5, 1, rows, action)[0]
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, feeds(case.policy.observation, same, noise))
    return case, dict(zip(names, outputs, strict=True))


@pytest.mark.parametrize(
    "name", ["discrete", "2-D multi-discrete", "multi-binary", "discrete tuple", "dict"]
)
def test_a_graph_samples_discrete_actions_with_the_right_frequencies(name: str) -> None:
    rows = 40_000
    case, outputs = frequencies(unbounded((4,)), ACTIONS[name], rows)
    flat = outputs["action"].reshape(rows, -1)
    start = 0
    for choice in case.policy.action.choices:
        for place, values in enumerate(choice.values):
            logits = outputs["distribution"][0, start : start + values]
            wanted = np.exp(logits) / np.exp(logits).sum()
            taken = flat[:, choice.start + place].astype(np.int64)
            found = np.bincount(taken, minlength=values) / rows
            np.testing.assert_allclose(found, wanted, atol=0.01)
            start += values
        if not choice.values:
            start += 2 * choice.size


def test_a_graph_samples_numbers_with_the_right_moments() -> None:
    rows = 40_000
    _, outputs = frequencies(unbounded((4,)), ACTIONS["dict"], rows)
    mean, log_std = outputs["distribution"][0, :2], outputs["distribution"][0, 2:4]
    taken = outputs["action"][:, :2]
    np.testing.assert_allclose(taken.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(taken.std(0), np.exp(log_std), rtol=0.02)


def test_a_squashing_graph_fills_its_bounds_and_never_leaves_them() -> None:
    _, outputs = frequencies(unbounded((4,)), ACTIONS["box"], 20_000, head="squash")
    assert outputs["action"].min() >= -2.0
    assert outputs["action"].max() <= 1.0
    mean, log_std = np.split(outputs["distribution"][0], 2)
    inner = np.random.default_rng(1).normal(mean, np.exp(log_std), (20_000, 2))
    expected = -0.5 + 1.5 * np.tanh(inner)
    np.testing.assert_allclose(outputs["action"].mean(0), expected.mean(0), atol=0.05)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5, 1.0])
def test_a_greedy_graph_explores_as_often_as_epsilon_says(epsilon: float) -> None:
    rows = 40_000
    case = make_case(unbounded((4,)), Discrete(4), head="greedy")
    case.policy.epsilon = epsilon
    quantizer = quantizer_of(case)
    session = open_session(
        quantizer.graphs["int8"], make_tensors(case.policy, "int8", quantizer._ranges)
    )
    same = np.repeat(case.sample.observations[:1], rows, axis=0)
    noise = noise_block(bytes(range(16)), 5, 1, rows, Discrete(4))[0]
    given = feeds(case.policy.observation, same, noise)
    actions, log_probs, values = session.run(["action", "log_prob", "distribution"], given)
    best = int(values[0].argmax())
    found = np.bincount(actions, minlength=4) / rows
    wanted = np.full(4, epsilon / 4)
    wanted[best] += 1.0 - epsilon
    np.testing.assert_allclose(found, wanted, atol=0.01)
    np.testing.assert_allclose(np.exp(log_probs), wanted[actions], atol=1e-5)
    given = feeds(case.policy.observation, same, np.zeros_like(noise))
    assert set(session.run(["action"], given)[0].tolist()) == {best}


def test_epsilon_travels_with_each_version_and_not_with_the_graph() -> None:
    case = make_case(unbounded((4,)), Discrete(4), head="greedy")
    quantizer = quantizer_of(case)
    graph = build_graph(case.policy, "int8")
    thresholds = []
    for epsilon in (0.5, 0.1):
        case.policy.epsilon = epsilon
        assert build_graph(case.policy, "int8") == graph
        tensors = make_tensors(case.policy, "int8", quantizer._ranges)
        thresholds.append(float(tensors["explore.threshold"]))
        assert thresholds[-1] == pytest.approx(EpsilonGreedy(4, epsilon).threshold)
    assert thresholds[0] < thresholds[1]


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_a_graph_run_step_by_step_remembers_like_the_unrolled_policy(kind: str) -> None:
    case = make_case(pixels(12, 12, 1), Discrete(3), of_kind(kind))
    quantizer = quantizer_of(case)
    tensors = make_tensors(case.policy, "fp32", quantizer._ranges)
    session = open_session(quantizer.graphs["fp32"], tensors)
    steps, lanes = 8, 4
    observations = case.sample.observations[: steps * lanes].reshape(steps, lanes, 12, 12, 1)
    starts = np.zeros((steps, lanes), np.bool_)
    starts[3, 1] = starts[5, 2] = starts[6, 2] = True
    state = np.zeros((lanes, case.policy.state_width), np.float32)
    with torch.no_grad():
        unrolled = case.policy.unroll(
            torch.from_numpy(observations), torch.from_numpy(state), torch.from_numpy(starts)
        )
    for step in range(steps):
        state = np.where(starts[step][:, None], np.float32(0.0), state)  # as a device does
        np.testing.assert_allclose(unrolled.states[step], state, atol=1e-5)
        given = feeds(case.policy.observation, observations[step], case.noise[:lanes], state)
        distribution, state = session.run(["distribution", "next_state"], given)
        np.testing.assert_allclose(unrolled.params[step], distribution, atol=1e-5)
    np.testing.assert_allclose(unrolled.state, state, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_wide_unsigned_observations_and_actions_go_through_a_graph(dtype: type[np.number]) -> None:
    box = Box(np.zeros(3, dtype), np.full(3, 9, dtype))
    case = make_case(box, box, of_kind("mlp", normalize=False), head="sample", dueling=False)
    quantizer = quantizer_of(case)
    params, _ = case.stepped()
    for precision in PRECISIONS:
        tensors = make_tensors(case.policy, precision, quantizer._ranges)
        outputs = case.run_in(open_session(quantizer.graphs[precision], tensors))
        assert outputs["distribution"].shape == tuple(params.shape), precision
