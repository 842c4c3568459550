"""Sessions that are fed a policy's weights decide as those do that have them inside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_weights import int8_weights
from networks import ACTIONS, OBSERVATIONS, Case, make_case, of_kind, pixels

from cloud_learner.quantization.session import feeds
from edge_agent.policies.session import Session
from shoal.tensors import Array
from shoal.v1.onnx_pb2 import OnnxModel

FED = ("mlp", "lstm", "networks:own_torso")


def wrapped(tensors: dict[str, Array]) -> dict[str, onnxruntime.OrtValue]:
    lasting = {name: np.array(array, order="C") for name, array in tensors.items()}
    return {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in lasting.items()}


def graph_and_tensors(case: Case, seed: int) -> tuple[bytes, dict[str, Array]]:
    weights = int8_weights(case, seed)
    return weights.graph, weights.tensors


def decided(session: Session, case: Case) -> list[bytes]:
    """Every output for the sample of a case, as bytes."""
    sample = case.sample
    given_ = feeds(case.policy.observation, sample.observations, case.noise, sample.states)
    return [each.tobytes() for each in session.runtime.run(None, {**given_, **session.fed})]


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(FED),
    normalize=st.booleans(),
    action=st.sampled_from(sorted(ACTIONS)),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2),
)
def test_one_session_decides_for_every_version_as_each_ones_own_bit_for_bit(
    kind: str, action: str, seeds: list[int], *, normalize: bool
) -> None:
    case = make_case(
        OBSERVATIONS["vector"], ACTIONS[action], of_kind(kind, normalize=normalize), seed=seeds[0]
    )
    weights = int8_weights(case, seeds[0])
    fed = Session.open(weights.graph, wrapped(weights.tensors), precision="int8")
    assert fed is not None
    for seed in seeds:
        values = wrapped(int8_weights(case, seed).tensors)
        own = Session.build(weights.graph, values, precision="int8")
        assert decided(fed.feeding(values), case) == decided(own, case)


def test_one_of_wide_layers_decides_alike_on_one_row_and_on_many() -> None:
    case = make_case(
        OBSERVATIONS["vector"], ACTIONS["discrete"], replace(of_kind("mlp"), hidden=(256, 256))
    )
    graph, tensors = graph_and_tensors(case, 0)
    values = wrapped(tensors)
    fed = Session.open(graph, values, precision="int8")
    assert fed is not None
    own = Session.build(graph, values, precision="int8")
    for rows in (1, 7, len(case.noise)):
        sample = replace(
            case.sample,
            observations=case.sample.observations[:rows],
            states=case.sample.states[:rows],
        )
        few = replace(case, sample=sample, noise=case.noise[:rows])
        assert decided(fed, few) == decided(own, few)


def test_graphs_of_convolutions_or_floats_take_no_weights() -> None:
    case = make_case(pixels(3, 36, 40), ACTIONS["discrete"], of_kind("cnn"))
    graph, tensors = graph_and_tensors(case, 0)
    assert Session.open(graph, wrapped(tensors), precision="int8") is None
    case = make_case(OBSERVATIONS["vector"], ACTIONS["discrete"])
    graph, tensors = graph_and_tensors(case, 0)
    for precision in ("fp32", "int8_fp32_head"):
        assert Session.open(graph, wrapped(tensors), precision=precision) is None


def test_a_graph_that_wants_other_tensors_takes_none() -> None:
    graph, tensors = graph_and_tensors(make_case(OBSERVATIONS["vector"], ACTIONS["discrete"]), 0)
    missing = dict(list(tensors.items())[1:])
    assert Session.open(graph, wrapped(missing), precision="int8") is None
    assert Session.open(b"\xff" + graph, wrapped(tensors), precision="int8") is None


def test_what_is_inside_of_a_graph_stays_there() -> None:
    graph, tensors = graph_and_tensors(make_case(OBSERVATIONS["vector"], ACTIONS["discrete"]), 0)
    model = OnnxModel.FromString(graph)
    name, array = next((n, a) for n, a in tensors.items() if a.dtype == np.int8 and a.ndim)
    for each in model.graph.initializer:
        if each.name == name:
            each.raw_data, each.data_location = array.tobytes(), 0
            del each.external_data[:]
    others = wrapped({n: a for n, a in tensors.items() if n != name})
    fed = Session.open(model.SerializeToString(), others, precision="int8")
    assert fed is not None
    assert name not in {each.name for each in fed.runtime.get_inputs()}
