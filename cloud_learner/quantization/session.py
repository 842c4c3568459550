"""A policy graph in onnxruntime, where it is made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from shoal.dynamic_twin import dynamic_twin
from shoal.float_twin import decode_reads, float_tensors
from shoal.layout import ObservationLayout
from shoal.policy import NOISE, OBSERVATION, STATE
from shoal.tensors import Array


def open_session(graph: bytes, tensors: Mapping[str, Array]) -> ort.InferenceSession:
    """A single-threaded CPU session over a weightless graph and its tensors."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    values = [ort.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for a in tensors.values()]
    if values:
        options.add_external_initializers(list(tensors), values)
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def open_twin(
    graph: bytes, tensors: Mapping[str, Array], float_graph: bytes
) -> ort.InferenceSession:
    """A session of the float twin of an int8 policy, as devices make it.

    Raises:
        PolicyRejected: With the reason `float_twin`: it has none.
    """
    return open_session(float_graph, _twin_tensors(graph, tensors))


def open_dynamic_twin(
    graph: bytes, tensors: Mapping[str, Array], float_graph: bytes
) -> ort.InferenceSession:
    """A session of the dynamic twin of an int8 policy, as devices make it.

    Raises:
        PolicyRejected: With the reason `float_twin`: it has none.
    """
    return open_session(dynamic_twin(float_graph, _twin_tensors(graph, tensors)), {})


def _twin_tensors(graph: bytes, tensors: Mapping[str, Array]) -> dict[str, Array]:
    metadata = open_session(graph, tensors).get_modelmeta().custom_metadata_map
    return float_tensors(tensors, decode_reads(metadata))


def feeds(
    layout: ObservationLayout,
    observations: Array,
    noise: NDArray[np.float32],
    states: NDArray[np.float32] | None = None,
) -> dict[str, Array]:
    """The inputs of a policy graph.

    Args:
        layout: Of the observation space.
        observations: `[N, *obs]`, as chunks hold them.
        noise: `[N, noise_width]`.
        states: `[N, S]`; None or S = 0 without memory.
    """
    leaves = layout.unpack(observations)
    given = {field.input_name(OBSERVATION): leaves[field.path] for field in layout.fields}
    given[NOISE] = noise
    if states is not None and states.shape[1]:
        given[STATE] = states
    return given
