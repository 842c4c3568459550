"""The weightless ONNX graph of a policy, for each precision.

A graph depends on the spaces, the shape of the network, the head and the precision alone: its bytes
are the same for every version, and every initializer is external, to be handed to onnxruntime by
name. Sampling and log-probability are inside, and so are the normalizer, the scales of actions and
one step of the memory: a device needs nothing but observations, noise and the state.

Inputs: `observation`, or `observation.PATH` for each leaf of a nested space; `noise` f32
`[N, width]`; with memory `state` f32 `[N, S]`. Outputs: `action`, `log_prob` f32 `[N]`,
`distribution` f32 `[N, P]`; with memory `next_state` f32 `[N, S]`. The int8 graph says in its
metadata what its layers read: `shoal.float_twin` makes the fp32 graph's tensors by it.
"""

from __future__ import annotations

from typing import Final

from onnx import TensorProto, helper

from cloud_learner.models.graph_heads import write_head
from cloud_learner.models.graph_layers import GraphRunner, Precision
from cloud_learner.models.graph_writer import GraphWriter, port
from cloud_learner.models.plan import flow
from cloud_learner.models.policy import Policy
from shoal.float_twin import READS, encode_reads
from shoal.policy import (
    ACTION,
    DISTRIBUTION,
    LOG_PROB,
    NEXT_STATE,
    NOISE,
    OBSERVATION,
    STATE,
)

PRECISIONS: Final[tuple[Precision, ...]] = ("int8", "int8_fp32_head", "fp32")


def build_graph(policy: Policy, precision: Precision) -> bytes:
    """Builds the graph of a policy's architecture at one precision; its weights do not matter.

    `GraphRunner` and `write_head` say which initializers it has.
    """
    writer, plan = GraphWriter(), policy.plan
    runner = GraphRunner(writer, plan, precision, normalized=policy.normalizer is not None)
    (outputs,) = flow(plan, runner)
    assert outputs.floats is not None  # noqa: S101 - the last layer gives float32
    write_head(writer, policy.action, policy.head, outputs.floats)
    action = policy.action
    inputs = [
        port(
            field.input_name(OBSERVATION),
            helper.np_dtype_to_tensor_dtype(field.dtype.newbyteorder("=")),
            *field.shape,
        )
        for field in policy.observation.fields
    ]
    inputs.append(port(NOISE, TensorProto.FLOAT, action.noise_width))
    outputs_ = [
        port(ACTION, TensorProto.INT64 if action.discrete else TensorProto.FLOAT, *action.shape),
        port(LOG_PROB, TensorProto.FLOAT),
        port(DISTRIBUTION, TensorProto.FLOAT, policy.distribution.parameters),
    ]
    if plan.state_width:
        inputs.append(port(STATE, TensorProto.FLOAT, plan.state_width))
        outputs_.append(port(NEXT_STATE, TensorProto.FLOAT, plan.state_width))
    metadata = {}
    if precision == "int8":
        metadata[READS] = encode_reads([runner.reads[place] for place in range(len(plan.layers))])
    return writer.serialize(inputs, outputs_, metadata)
