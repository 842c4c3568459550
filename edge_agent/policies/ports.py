"""What a policy's graph takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

import onnxruntime

from shoal.errors import PolicyRejected
from shoal.layout import ObservationLayout
from shoal.policy import ACTION, LOG_PROB, NEXT_STATE, NOISE, OBSERVATION, STATE, Manifest

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
}


@dataclass(frozen=True, slots=True)
class Port:
    """Type of one input or output of a policy graph.

    Attributes:
        dtype: numpy name of the elements.
        shape: without the leading N.
    """

    dtype: str
    shape: tuple[int, ...]


def ports_of(session: onnxruntime.InferenceSession) -> dict[str, Port]:
    """Every input and output of a session, by name."""
    return {
        port.name: Port(_DTYPES.get(port.type, port.type), tuple(port.shape[1:]))
        for port in (*session.get_inputs(), *session.get_outputs())
    }


def check_names(
    session: onnxruntime.InferenceSession, manifest: Manifest, layout: ObservationLayout | None
) -> None:
    """Checks that a graph has the inputs and outputs of a policy, by their names.

    Raises:
        PolicyRejected: With the reason `graph`.
    """
    inputs = {port.name for port in session.get_inputs()}
    outputs = {port.name for port in session.get_outputs()}
    leaves = (
        [OBSERVATION]
        if layout is None
        else [field.input_name(OBSERVATION) for field in layout.fields]
    )
    wanted, gives = [*leaves, NOISE], [ACTION, LOG_PROB]
    if {STATE, NEXT_STATE} & (inputs | outputs):
        wanted.append(STATE)
        gives.append(NEXT_STATE)
    if inputs != set(wanted) or not outputs.issuperset(gives):
        raise PolicyRejected(
            "graph",
            f"the graph of policy version {manifest.version} takes {sorted(inputs)} and gives"
            f" {sorted(outputs)}: it must take {wanted} and give {gives}",
        )
    state = {port.name: port.shape for port in session.get_inputs()}.get(STATE, [0, 1])
    if len(state) != len("NS") or not isinstance(state[1], int) or state[1] < 1:
        raise PolicyRejected(
            "graph",
            f"the graph of policy version {manifest.version} takes a state {state}: it must be"
            " [N, S], with a number for S",
        )
