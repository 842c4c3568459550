"""Self-contained ONNX files: what they do alone, and training that starts from one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from networks import ACTIONS, KINDS, OBSERVATIONS, Case, make_case, of_kind
from torch import nn

from cloud_learner.models.heads import Head
from cloud_learner.models.policy import Policy, build_policy
from cloud_learner.models.torso import DuelingHead
from cloud_learner.quantization.export import export_onnx, export_policy, metadata_of
from cloud_learner.quantization.initial import load_weights
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.session import feeds
from shoal.errors import PolicyRejected
from shoal.policy import Manifest
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.tensors import Array

CASES: list[tuple[str, str, str, Head]] = [
    *((o, k, "dict", "sample") for o, k in itertools.product(["vector", "nest"], KINDS)),
    ("vector", "auto", "discrete", "sample"),
    ("nest", "mlp", "box matrix", "sample"),
    ("vector", "auto", "box", "squash"),
    ("image", "auto", "discrete", "greedy"),
    ("vector", "lstm", "discrete", "greedy"),
]


def make(which: tuple[str, str, str, Head], *, seed: int = 0, normalize: bool = True) -> Case:
    observation, kind, action, head = which
    return make_case(
        OBSERVATIONS[observation],
        ACTIONS[action],
        of_kind(kind, normalize=normalize),
        head=head,
        seed=seed,
        dueling=head == "greedy",
    )


def run_alone(data: bytes, case: Case, *, noise: bool) -> dict[str, Array]:
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    given = feeds(case.policy.observation, case.sample.observations, case.noise, case.sample.states)
    if not noise:
        del given["noise"]
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


@pytest.mark.parametrize("which", CASES)
def test_a_file_alone_does_what_the_published_policy_does(
    which: tuple[str, str, str, Head],
) -> None:
    case = make(which)
    quantizer = Quantizer(case.policy, kl_max=10.0)
    quantized = quantizer.quantize(case.policy, case.sample)
    graph = quantizer.graphs[quantized.precision]
    expected = case.run(quantizer, quantized.precision, tensors=quantized.tensors)
    found = run_alone(export_onnx(graph, quantized.tensors), case, noise=True)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    greedy = case.run(quantizer, quantized.precision, greedy=True, tensors=quantized.tensors)
    without = export_onnx(graph, quantized.tensors, deterministic=True)
    assert "noise" not in {port.name for port in onnx.ModelProto.FromString(without).graph.input}
    found = run_alone(without, case, noise=False)
    for name, value in greedy.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_file_says_what_is_in_it() -> None:
    case = make(CASES[0])
    quantizer = Quantizer(case.policy, kl_max=10.0)
    quantized = quantizer.quantize(case.policy, case.sample)
    digest = bytes(32)
    manifest = Manifest(
        fleet="reef",
        version=7,
        updates=70,
        graph_digest=digest,
        graph_bytes=1,
        tensors_digest=digest,
        tensors_bytes=1,
        golden_digest=digest,
        spec_fingerprint=case.spec.fingerprint,
        precision=quantized.precision,
        created_unix_ms=0,
        kl_quantization=quantized.kl_quantization,
        reason="publish",
    )
    data = export_onnx(
        quantizer.graphs["int8"], quantized.tensors, metadata=metadata_of(manifest, case.spec)
    )
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    said = session.get_modelmeta().custom_metadata_map
    assert said["shoal.version"] == "7"
    assert said["shoal.precision"] == "int8"
    assert said["shoal.digest"] == manifest.digest.hex()
    assert said["shoal.spec_fingerprint"] == case.spec.fingerprint.hex()


def test_tensors_of_another_version_are_refused_by_name() -> None:
    case = make(CASES[0])
    quantizer = Quantizer(case.policy, kl_max=10.0)
    tensors = dict(quantizer.quantize(case.policy, case.sample).tensors)
    del tensors["bias.1"]
    with pytest.raises(PolicyRejected, match=r"bias\.1") as caught:
        export_onnx(quantizer.graphs["int8"], tensors)
    assert caught.value.reason == "graph"


def other(case: Case) -> Policy:
    """A policy like that of a case, with other weights."""
    dueling = case.policy.head == "greedy"
    return build_policy(
        case.spec, case.policy.config, head=case.policy.head, seed=99, dueling=dueling
    )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("which", CASES)
def test_training_starts_from_a_file_exactly_where_its_policy_was(
    which: tuple[str, str, str, Head],
    normalize: bool,  # noqa: FBT001 - a parameter
) -> None:
    case = make(which, normalize=normalize)
    made = other(case)
    load_weights(made, export_policy(case.policy))
    again = Case(made, case.sample, case.noise)
    torch.testing.assert_close(again.asked(), case.asked(), atol=1e-5, rtol=1e-5)
    if case.policy.head != "greedy":  # streams may be split in other ways
        for name, value in case.policy.state_dict().items():
            if "normalizer" not in name:
                torch.testing.assert_close(made.state_dict()[name], value, atol=1e-6, rtol=1e-5)


def test_a_normalizer_from_a_file_goes_on_learning() -> None:
    case = make(CASES[0])
    made = other(case)
    load_weights(made, export_policy(case.policy))
    assert made.normalizer is not None
    assert case.policy.normalizer is not None
    torch.testing.assert_close(made.normalizer.shift, case.policy.normalizer.shift)
    before = made.normalizer.shift.clone()
    made.observe(np.full((10, 4), 1e3, np.float32))
    assert (made.normalizer.shift > before).all()
    assert (made.normalizer.shift < 2.0).all()


@pytest.mark.parametrize(
    ("kind", "hidden", "says"),
    [
        ("auto", (8,), r"bias\.\d is \["),
        ("lstm", (32, 16), r"bias\.2"),
        ("attention", (32, 16), "age_bias"),
    ],
)
def test_a_file_of_another_architecture_is_refused_by_what_differs(
    kind: str, hidden: tuple[int, ...], says: str
) -> None:
    spec = EnvSpec("Test-v0", unbounded((4,)), Discrete(2))
    ours = build_policy(spec, of_kind("auto"), head="sample", seed=0)
    theirs = build_policy(spec, replace(of_kind(kind), hidden=hidden), head="sample", seed=1)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(PolicyRejected, match=says) as caught:
        load_weights(ours, export_policy(theirs))
    assert caught.value.reason == "graph"
    assert all(torch.equal(before[name], value) for name, value in ours.state_dict().items())


def test_an_int8_file_and_what_is_no_file_are_refused() -> None:
    case = make(CASES[0])
    quantizer = Quantizer(case.policy, kl_max=10.0)
    quantized = quantizer.quantize(case.policy, case.sample)
    data = export_onnx(quantizer.graphs["int8"], quantized.tensors)
    with pytest.raises(PolicyRejected, match="int8"):
        load_weights(case.policy, data)
    for junk in (b"", b"junk", data[: len(data) // 2], quantizer.graphs["fp32"]):
        with pytest.raises(PolicyRejected):
            load_weights(case.policy, junk)


def test_a_plain_head_is_not_taken_for_dueling_streams() -> None:
    case = make(("vector", "lstm", "discrete", "greedy"))
    plain = build_policy(case.spec, case.policy.config, head="greedy", seed=1, dueling=True)
    head = plain.network.layers[plain.plan.last]
    assert isinstance(head, DuelingHead)
    wide = nn.Linear(head.weight.shape[1], head.weight.shape[0])
    plain.network.layers[plain.plan.last] = wide
    with pytest.raises(PolicyRejected, match="dueling"):
        load_weights(case.policy, export_policy(plain))
