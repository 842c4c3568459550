"""The float twin of every kind of policy: made from its integers, and close to what they decide."""

from __future__ import annotations

import numpy as np
import pytest
from networks import ACTIONS, KINDS, NEST, OBSERVATIONS, Case, bounded, make_case, of_kind

from cloud_learner.models.normalizer import NORMALIZED_MAX
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.session import feeds, open_session, open_twin
from shoal.float_twin import CLIPPED_AT, decode_reads, float_tensors
from shoal.policy import DISTRIBUTION, NEXT_STATE
from shoal.spaces import Discrete, Space, unbounded
from shoal.tensors import Array

WITHIN = 0.04
"""Of the spread of an output: what int8 activations, which the twin does not have, cost at most."""


def both_forms(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Outputs of the int8 policy and of its twin."""
    quantizer = Quantizer(case.policy, kl_max=np.inf)
    quantized = quantizer.quantize(case.policy, case.sample)
    assert quantized.precision == "int8"
    graph = quantizer.graphs["int8"]
    given = feeds(case.policy.observation, case.sample.observations, case.noise, case.sample.states)
    outputs = []
    for session in (
        open_session(graph, quantized.tensors),
        open_twin(graph, quantized.tensors, quantizer.graphs["fp32"]),
    ):
        names = [port.name for port in session.get_outputs()]
        outputs.append(dict(zip(names, session.run(names, given), strict=True)))
    return outputs[0], outputs[1]


def assert_close(case: Case) -> None:
    int8, twin = both_forms(case)
    for name in {DISTRIBUTION, NEXT_STATE} & set(int8):
        spread = int8[name].std() + 1e-6
        assert np.abs(int8[name] - twin[name]).mean() < WITHIN * spread, name


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(OBSERVATIONS))
def test_a_twin_decides_nearly_like_its_int8_policy(name: str, kind: str, normalize: bool) -> None:  # noqa: FBT001
    assert_close(make_case(OBSERVATIONS[name], Discrete(3), of_kind(kind, normalize=normalize)))


@pytest.mark.parametrize("action", list(ACTIONS.values()), ids=list(ACTIONS))
def test_so_it_does_in_every_action_space(action: Space) -> None:
    assert_close(make_case(NEST, action))


def test_so_it_does_with_every_head() -> None:
    assert_close(make_case(unbounded((3,)), bounded((2,), -1.0, 2.0), head="squash"))
    assert_close(make_case(unbounded((3,)), Discrete(4), head="greedy", dueling=True))


def test_the_twin_clips_where_normalized_numbers_end() -> None:
    assert CLIPPED_AT == NORMALIZED_MAX
    case = make_case(unbounded((4,)), Discrete(3), of_kind("mlp", normalize=True))
    case.sample.observations[::2] *= 1e4
    assert_close(case)


def test_only_int8_graphs_say_what_their_layers_read() -> None:
    case = make_case(unbounded((4,)), Discrete(3))
    quantizer = Quantizer(case.policy, kl_max=np.inf)
    tensors = quantizer.quantize(case.policy, case.sample).tensors
    metadata = open_session(quantizer.graphs["int8"], tensors).get_modelmeta()
    reads = decode_reads(metadata.custom_metadata_map)
    assert [[(read.key, read.width) for read in layer] for layer in reads] == [
        [("input", 4)],
        [("output.0", 32)],
        [("output.1", 16)],
    ]
    made = float_tensors(tensors, reads)
    fp32 = open_session(quantizer.graphs["fp32"], made).get_modelmeta()
    assert not fp32.custom_metadata_map
