"""Quantization: the arithmetic of the graph, and what is published for it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnxruntime.quantization.quant_utils import quantize_data

from cloud_learner.models.actor_critic import ActorCritic, build_model
from cloud_learner.quantization.quantize import (
    GOLDEN_ROWS,
    PRECISIONS,
    WEIGHT_MAX,
    Quantized,
    Quantizer,
    hold_range,
    open_session,
    quantize_weight,
)
from shoal.errors import PolicyRejected
from shoal.noise import noise_block
from shoal.policy import decode_golden, encode_golden
from shoal.spaces import Box, Discrete, EnvSpec, Space, noise_kind, unbounded, width
from shoal.tensors import Array, decode_tensors, encode_tensors

MAX_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A trained-looking network and observations for it."""

    spec: EnvSpec
    model: ActorCritic
    observations: Array
    noise: NDArray[np.float32]


def make_case(
    observation: Box, action: Space, *, hidden: tuple[int, ...] = (32, 32), seed: int = 0
) -> Case:
    spec = EnvSpec("Test-v0", observation, action)
    model = build_model(spec, hidden=hidden, seed=seed)
    torch.nn.init.normal_(
        model.policy_layers[-1].weight, std=0.3, generator=torch.Generator().manual_seed(seed)
    )
    for layer in model.policy_layers:
        torch.nn.init.normal_(layer.bias, std=0.1, generator=torch.Generator().manual_seed(seed))
    rng = np.random.default_rng(seed)
    shape = (300, *observation.shape)
    if observation.dtype.kind == "f":
        observations = (rng.normal(size=shape) * 3.0).astype(observation.dtype)
    elif observation.dtype.kind == "b":
        observations = rng.integers(0, 2, shape).astype(np.bool_)
    else:
        observations = rng.integers(0, 100, shape).astype(observation.dtype)
    noise = noise_block(bytes(range(16)), 0, 1, 300, action)[0]
    return Case(spec, model, observations, noise)


def cartpole() -> Case:
    return make_case(unbounded((4,)), Discrete(2), hidden=(64, 64))


def full(dtype: str, shape: tuple[int, ...], high: float) -> Box:
    return Box(np.zeros(shape, dtype), np.full(shape, high, dtype))


CASES: dict[str, Callable[[], Case]] = {
    "cartpole": cartpole,
    "three layers": lambda: make_case(unbounded((6,)), Discrete(5), hidden=(16, 24, 8)),
    "one layer": lambda: make_case(unbounded((6,)), Discrete(5), hidden=(16,)),
    "one action": lambda: make_case(unbounded((3,)), Discrete(1)),
    "float64": lambda: make_case(unbounded((4,), np.float64), Discrete(3)),
    "scalar": lambda: make_case(unbounded(()), Discrete(3)),
    "pixels": lambda: make_case(full("u1", (4, 5), 255), Discrete(3)),
    "int32": lambda: make_case(full("i4", (7,), 100), Discrete(3)),
    "bool": lambda: make_case(full("?", (7,), 1), Discrete(3)),
    "box": lambda: make_case(unbounded((4,)), full("f4", (2,), 4.0)),
    "box of one": lambda: make_case(unbounded((3,)), unbounded((1,))),
    "box matrix": lambda: make_case(unbounded((3,)), unbounded((2, 3))),
    "box scalar": lambda: make_case(unbounded((3,)), unbounded(())),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    return CASES[name]()


def quantizer_for(case: Case, kl_max: float = 1.0) -> Quantizer:
    return Quantizer(case.spec, case.model, kl_max=kl_max)


def run(graph: bytes, quantized: Quantized, case: Case) -> dict[str, Array]:
    session = open_session(graph, quantized.tensors)
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {"observation": case.observations, "noise": case.noise})
    return dict(zip(names, outputs, strict=True))


def integer_outputs(tensors: dict[str, Array], observations: Array) -> NDArray[np.float32]:
    """The policy's outputs by integer arithmetic, as the graph's documentation says it."""
    inputs = observations.reshape(len(observations), -1).astype(np.float32) * tensors["input.gain"]
    scale, zero = tensors["input.scale"], int(tensors["input.zero"])
    units = np.clip(np.rint(inputs / scale) + zero, 0, 255).astype(np.int64)
    last = max(int(n.split(".")[1]) for n in tensors if n.startswith("bias."))
    for index in range(last + 1):
        key = f"weight.{index}"
        total = (units - zero) @ tensors[key].astype(np.int64) + tensors[f"bias.{index}"]
        scales = scale * tensors[f"{key}.scale"]
        if index == last:
            outputs: NDArray[np.float32] = total.astype(np.float32) * scales
            return outputs
        scale, zero = tensors[f"output.{index}.scale"], int(tensors[f"output.{index}.zero"])
        rounded = np.rint(total.astype(np.float32) * (scales / scale))
        units = np.clip(rounded + zero, 0, 255).astype(np.int64)
    raise AssertionError("there is no last layer")


def test_int8_is_integer_arithmetic_bit_for_bit(case: Case) -> None:
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.model, case.observations)
    assert quantized.precision == "int8"
    outputs = run(quantizer.graphs["int8"], quantized, case)
    expected = integer_outputs(dict(quantized.tensors), case.observations)
    np.testing.assert_array_equal(outputs["distribution"][:, : expected.shape[1]], expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_sampling_and_log_probability_are_those_of_the_distribution(
    case: Case, precision: str
) -> None:
    outputs = run_at(case, precision)
    distribution = torch.from_numpy(outputs["distribution"])
    actions = outputs["action"]
    if noise_kind(case.spec.action) == "gumbel":
        assert actions.dtype == np.int64
        assert actions.shape == (300,)
        np.testing.assert_array_equal(
            actions, np.argmax(outputs["distribution"] + case.noise, axis=1)
        )
    else:
        assert actions.dtype == np.float32
        assert isinstance(case.spec.action, Box)
        assert actions.shape == (300, *case.spec.action.shape)
        mean, log_std = np.split(outputs["distribution"], 2, axis=1)
        np.testing.assert_allclose(
            actions.reshape(mean.shape), mean + np.exp(log_std) * case.noise, rtol=1e-5, atol=1e-5
        )
    expected = case.model.distribution.log_prob(distribution, torch.from_numpy(actions))
    np.testing.assert_allclose(outputs["log_prob"], expected, rtol=1e-3, atol=2e-3)


def run_at(case: Case, precision: str) -> dict[str, Array]:
    """A graph's outputs, with the precisions before it refused."""
    quantizer = quantizer_for(case)
    quantizer.quantize(case.model, case.observations)
    weights = case.model.policy_weights()
    named = next(p for p in PRECISIONS if p == precision)
    session = open_session(quantizer.graphs[named], quantizer._tensors(weights, named))
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {"observation": case.observations, "noise": case.noise})
    return dict(zip(names, outputs, strict=True))


def test_fp32_is_the_model(case: Case) -> None:
    outputs = run_at(case, "fp32")
    with torch.no_grad():
        params = case.model.distribution_params(torch.from_numpy(case.observations))
    np.testing.assert_allclose(outputs["distribution"], params, rtol=1e-3, atol=1e-3)


def test_int8_is_near_the_model(case: Case) -> None:
    quantized = quantizer_for(case).quantize(case.model, case.observations)
    assert 0.0 <= quantized.kl_quantization < 0.02


@given(
    seed=st.integers(0, 10_000),
    inputs=st.integers(1, 20),
    outputs=st.integers(1, 9),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
)
def test_weights_are_those_of_onnxruntimes_own_quantizer(
    seed: int, inputs: int, outputs: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.normal(size=(inputs, outputs)) * scale).astype(np.float32)
    ours = quantize_weight(weight)
    for channel in range(outputs):
        zero, their_scale, values = quantize_data(
            weight[:, channel], onnx.TensorProto.INT8, symmetric=True, reduce_range=True
        )
        assert int(zero) == 0
        assert ours.scale[channel] == np.float32(their_scale)
        np.testing.assert_array_equal(ours.values[:, channel], values)


def test_a_channel_of_zeros_is_harmless() -> None:
    weight = np.zeros((4, 2), np.float32)
    weight[:, 1] = 1.0
    quantized = quantize_weight(weight)
    assert np.isfinite(quantized.scale).all()
    assert not quantized.values[:, 0].any()


def test_no_kernel_can_saturate_on_pairs_of_products() -> None:
    quantizer, case = quantizer_for(cartpole()), cartpole()
    tensors = quantizer.quantize(case.model, case.observations).tensors
    for name, tensor in tensors.items():
        if tensor.dtype == np.int8:
            assert np.abs(tensor.astype(np.int64)).max() <= WEIGHT_MAX, name
    assert 255 * 2 * WEIGHT_MAX < 2**15


def test_graphs_do_not_change_with_weights_or_versions() -> None:
    case, other = cartpole(), make_case(unbounded((4,)), Discrete(2), hidden=(64, 64), seed=9)
    quantizer = quantizer_for(case)
    before = dict(quantizer.graphs)
    quantizer.quantize(case.model, case.observations)
    quantizer.quantize(other.model, other.observations)
    assert quantizer.graphs == before == quantizer_for(other).graphs
    assert len({hashlib.sha256(graph).digest() for graph in before.values()}) == len(PRECISIONS)
    assert max(map(len, before.values())) < 4096


def test_graphs_hold_no_weights_and_are_valid(case: Case) -> None:
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.model, case.observations)
    for precision, graph in quantizer.graphs.items():
        proto = onnx.ModelProto.FromString(graph)
        initializers = proto.graph.initializer
        assert all(t.data_location == onnx.TensorProto.EXTERNAL for t in initializers)
        assert not any(t.raw_data for t in initializers)
        if precision == quantized.precision:
            assert {t.name for t in initializers} == set(quantized.tensors)
            for tensor in initializers:
                assert tuple(tensor.dims) == quantized.tensors[tensor.name].shape


def test_golden_vectors_hold_bit_for_bit_in_a_session_from_bytes_alone(case: Case) -> None:
    quantizer = quantizer_for(case)
    quantized = quantizer.quantize(case.model, case.observations)
    tensors = decode_tensors(encode_tensors(dict(quantized.tensors)), max_bytes=MAX_BYTES)
    golden = decode_golden(encode_golden(quantized.golden))
    session = open_session(bytes(quantizer.graphs[quantized.precision]), tensors)
    actions, log_probs = session.run(
        ["action", "log_prob"], {"observation": golden.observations, "noise": golden.noise}
    )
    assert 1 <= len(golden.observations) <= GOLDEN_ROWS
    assert golden.noise.shape[1] == width(case.spec.action)
    np.testing.assert_array_equal(actions, golden.actions)
    np.testing.assert_array_equal(log_probs, golden.log_probs)


def test_golden_actions_do_not_hang_on_a_rounding_error() -> None:
    case = cartpole()
    quantizer = quantizer_for(case)
    golden = quantizer.quantize(case.model, case.observations).golden
    case = Case(case.spec, case.model, golden.observations, golden.noise)
    quantized = quantizer.quantize(case.model, golden.observations)
    perturbed = run(quantizer.graphs["int8"], quantized, case)["distribution"] + golden.noise
    gaps = np.abs(perturbed[:, 0] - perturbed[:, 1])
    assert gaps.min() > 1e-4


def test_a_single_observation_is_enough() -> None:
    case = cartpole()
    quantized = quantizer_for(case).quantize(case.model, case.observations[:1])
    assert len(quantized.golden.observations) == 1


def test_falls_back_head_first_then_throughout_and_says_what_it_refused() -> None:
    case = cartpole()
    whole = quantizer_for(case).quantize(case.model, case.observations)
    strict = quantizer_for(case, kl_max=-1.0).quantize(case.model, case.observations)
    assert strict.precision == "fp32"
    assert list(strict.refused) == ["int8", "int8_fp32_head"]
    head_gap = strict.refused["int8_fp32_head"]
    assert strict.refused["int8"] == whole.kl_quantization > head_gap > strict.kl_quantization
    between = math.sqrt(whole.kl_quantization * head_gap)
    middle = quantizer_for(case, kl_max=between).quantize(case.model, case.observations)
    assert middle.precision == "int8_fp32_head"
    assert list(middle.refused) == ["int8"]
    assert middle.kl_quantization == head_gap


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_never_published(bad: float) -> None:
    case = cartpole()
    with torch.no_grad():
        case.model.policy_layers[1].weight[3, 4] = bad
    with pytest.raises(PolicyRejected) as caught:
        quantizer_for(case).quantize(case.model, case.observations)
    assert caught.value.reason == "non_finite"


def test_finite_weights_whose_outputs_overflow_are_never_published() -> None:
    case = cartpole()
    with torch.no_grad():
        for layer in case.model.policy_layers:
            layer.weight.fill_(1e30)
    quantizer = quantizer_for(case)
    with pytest.raises(PolicyRejected) as caught:
        quantizer.quantize(case.model, case.observations)
    assert caught.value.reason == "non_finite"
    mended = quantizer.quantize(cartpole().model, case.observations)
    assert mended.precision == "int8"
    assert mended.kl_quantization < 0.01


def test_features_of_very_different_ranges_each_keep_their_resolution() -> None:
    case = cartpole()
    ranges = np.array([1e-3, 1.0, 1e3, 1e5], np.float32)
    with torch.no_grad():
        case.model.policy_layers[0].weight.div_(torch.from_numpy(ranges))
    quantized = quantizer_for(case).quantize(case.model, case.observations * ranges)
    assert quantized.precision == "int8"
    assert quantized.kl_quantization < 0.01


@given(
    st.lists(st.floats(0.0, 1e6, width=32), min_size=1, max_size=20),
)
def test_a_held_range_always_covers_what_is_needed_and_is_never_far_too_wide(
    needs: list[float],
) -> None:
    held = None
    for need in needs:
        reach = np.array([need], np.float32)
        held = hold_range(held, reach)
        assert held[0] >= need
        assert held[0] > 0.0
        if need > 0.0:
            assert held[0] * 0.5 <= need


def test_a_range_moves_only_when_it_must() -> None:
    first = hold_range(None, np.array([1.0, 2.0], np.float32))
    np.testing.assert_array_equal(first, [1.0, 2.0])
    np.testing.assert_array_equal(hold_range(first, np.array([0.9, 1.3], np.float32)), first)
    moved = hold_range(first, np.array([1.01, 1.9], np.float32))
    assert moved[0] > 1.01
    assert moved[1] == 2.0


def test_small_steps_of_training_change_few_integers() -> None:
    case = cartpole()
    quantizer = quantizer_for(case)
    versions = []
    for _ in range(3):
        versions.append(quantizer.quantize(case.model, case.observations).tensors)
        with torch.no_grad():
            for parameter in case.model.policy.parameters():
                parameter.mul_(0.999)
    for before, after in pairwise(versions):
        same = np.mean(before["weight.1"] == after["weight.1"])
        assert same > 0.9
        np.testing.assert_array_equal(before["weight.1.scale"], after["weight.1.scale"])
        np.testing.assert_array_equal(before["input.gain"], after["input.gain"])


def test_equal_weights_give_equal_bytes_after_a_restart() -> None:
    case = cartpole()
    first = quantizer_for(case)
    first.quantize(case.model, case.observations)
    with torch.no_grad():
        case.model.policy_layers[0].weight.mul_(1.05)
    second = quantizer_for(case)
    second.load_state_dict(first.state_dict())
    before, after = (q.quantize(case.model, case.observations * 0.8) for q in (first, second))
    assert encode_tensors(dict(before.tensors)) == encode_tensors(dict(after.tensors))
    assert encode_golden(before.golden) == encode_golden(after.golden)
