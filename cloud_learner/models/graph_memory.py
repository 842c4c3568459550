"""One step of memory in a policy graph: from `state` to `next_state`, all in float32.

`cloud_learner.models.memory` does the same over many steps in torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from cloud_learner.models.graph_writer import GraphWriter
from cloud_learner.models.memory import MASKED
from cloud_learner.models.plan import Attention, Lstm
from shoal.policy import NEXT_STATE, STATE


@dataclass(frozen=True, slots=True)
class LstmState:
    """Names of `h` and `c`, `[N, units]` each."""

    hidden: str
    cell: str


def split_state(writer: GraphWriter, memory: Lstm) -> LstmState:
    """Takes the state of an LSTM apart."""
    units = memory.units
    return LstmState(*writer.split(STATE, [units, units], ["memory.before", "cell.before"]))


def write_lstm(writer: GraphWriter, memory: Lstm, gates: str, before: LstmState) -> str:
    """One step of an LSTM; gives `h` after it.

    Args:
        writer: Takes the nodes.
        memory: Its shape.
        gates: `input | forget | output | candidate` `[N, 4 units]`, before their activations.
        before: The state.
    """
    units = memory.units
    three, candidate = writer.split(gates, [3 * units, units], ["gates.three", "gates.last"])
    opened = writer.node("Sigmoid", [three], "gates.open")
    enter, forget, leave = writer.split(
        opened, [units] * 3, ["gate.enter", "gate.forget", "gate.leave"]
    )
    fresh = writer.node("Tanh", [candidate], "candidate")
    kept = writer.node("Mul", [forget, before.cell], "cell.kept")
    added = writer.node("Mul", [enter, fresh], "cell.added")
    after = writer.node("Add", [kept, added], "cell.after")
    shown = writer.node("Tanh", [after], "cell.shown")
    output = writer.node("Mul", [leave, shown], "memory.after")
    writer.node("Concat", [output, after], NEXT_STATE, axis=1)
    return output


def write_attention(writer: GraphWriter, memory: Attention, projected: str) -> str:
    """One step of attention; gives what was looked up, `[N, units]`.

    Args:
        writer: Takes the nodes.
        memory: Its shape.
        projected: `query | key | value` of this step, `[N, 3 units]`.
    """
    units, window = memory.units, memory.window
    back = window - 1
    query, key, fresh = writer.split(projected, [units] * 3, ["query", "key", "value"])
    old_keys, old_values, flags = writer.split(
        STATE, [back * units, back * units, back], ["keys.old", "values.old", "flags.old"]
    )
    keys = writer.node("Concat", [old_keys, key], "keys", axis=1)
    values = writer.node("Concat", [old_values, fresh], "values", axis=1)
    pads = [writer.whole(0, 0, 0, 1), writer.number(1.0)]
    seen = writer.node("Pad", [flags, *pads], "flags")
    column = writer.shape(query, (units, 1), "query.column")
    stacked = writer.shape(keys, (window, units), "keys.rows")
    scores = writer.node("MatMul", [stacked, column], "scores.column")
    flat = writer.shape(scores, (window,), "scores.flat")
    scaled = writer.node("Mul", [flat, writer.number(units**-0.5)], "scores.scaled")
    bias = writer.tensor("age_bias", TensorProto.FLOAT, window)
    aged = writer.node("Add", [scaled, bias], "scores.aged")
    mask = writer.node("Cast", [seen], "flags.mask", to=TensorProto.BOOL)
    masked = writer.node("Where", [mask, aged, writer.number(MASKED)], "scores.masked")
    weights = writer.node("Softmax", [masked], "attention", axis=1)
    row = writer.shape(weights, (1, window), "attention.row")
    looked = writer.shape(values, (window, units), "values.rows")
    mixed = writer.node("MatMul", [row, looked], "memory.row")
    output = writer.shape(mixed, (units,), "memory.after")
    state = [
        writer.columns(keys, units, window * units, "keys.next"),
        writer.columns(values, units, window * units, "values.next"),
        writer.columns(seen, 1, window, "flags.next"),
    ]
    writer.node("Concat", state, NEXT_STATE, axis=1)
    return output
