"""Whether a loaded policy does on this machine what it did where it was made."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.policies.policy import Policy
from edge_agent.policies.ports import Port
from shoal.errors import PolicyRejected
from shoal.layout import ActionLayout, ObservationLayout
from shoal.policy import (
    ACTION,
    DISTRIBUTION,
    LOG_PROB,
    NEXT_STATE,
    NOISE,
    OBSERVATION,
    STATE,
    Golden,
)
from shoal.spaces import Discrete, EnvSpec
from shoal.tensors import Array

INT8_TOLERANCE: Final = 1e-5
"""Relative and absolute, for the float outputs of graphs whose layers are all int8: these decide
alike on every processor, and only the functions after them (exp, log, tanh) may round otherwise."""
FLOAT_TOLERANCE: Final = 1e-4
"""The same, for graphs with fp32 layers."""


def check_ports(policy: Policy, spec: EnvSpec) -> None:
    """Checks that a graph takes and gives what the spaces ask for.

    Raises:
        PolicyRejected: With the reason `graph`.
    """
    action = ActionLayout.of(spec.action)
    wanted = {
        field.input_name(OBSERVATION): Port(field.dtype.name, field.shape)
        for field in ObservationLayout.of(spec.observation).fields
    }
    wanted |= {
        NOISE: Port("float32", (action.noise_width,)),
        ACTION: Port(action.dtype.name, action.shape),
        LOG_PROB: Port("float32", ()),
    }
    if policy.memory:
        wanted[STATE] = wanted[NEXT_STATE] = Port("float32", (policy.memory,))
    if policy.manifest.priority_gamma > 0:
        if not isinstance(spec.action, Discrete):
            raise PolicyRejected(
                "graph",
                f"policy {policy.version} asks for TD errors, which only one Discrete action has",
            )
        wanted[DISTRIBUTION] = Port("float32", (action.noise_width,))
    for name, port in wanted.items():
        if policy.ports.get(name) != port:
            raise PolicyRejected(
                "graph",
                f"policy {policy.version}: {name} is {policy.ports.get(name)}, it must be {port}",
            )


def self_test(policy: Policy, golden: Golden) -> None:
    """Checks that a policy decides on this machine as it did on the learner's.

    Integers must be equal, floats within `INT8_TOLERANCE` or `FLOAT_TOLERANCE`.

    Raises:
        PolicyRejected: With the reason `self_test`.
    """
    try:
        decided = policy.act(golden.observations, golden.noise, golden.states)
    # onnxruntime raises ValueError, RuntimeError and classes of its own without a shared base, and
    # golden vectors of another width cannot be unpacked.
    except Exception as error:
        raise PolicyRejected(
            "self_test", f"policy {policy.version} does not run: {type(error).__name__}"
        ) from error
    tolerance = INT8_TOLERANCE if policy.manifest.precision == "int8" else FLOAT_TOLERANCE
    for name, got, want in (
        ("actions", decided.actions, golden.actions),
        ("log-probabilities", decided.log_probs, golden.log_probs),
        ("states", decided.next_states, golden.next_states),
    ):
        if got is not None and not np.isfinite(got).all():
            raise PolicyRejected("self_test", f"policy {policy.version} gives NaN or infinity")
        if not _agree(got, want, tolerance):
            raise PolicyRejected(
                "self_test",
                f"policy {policy.version} gives other {name} here than on the learner;"
                " compare the onnxruntime versions and processors",
            )


def _agree(got: Array | None, want: Array | None, tolerance: float) -> bool:
    if got is None or want is None:
        return got is want
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if got.tobytes() == want.tobytes():
        return True
    return got.dtype.kind == "f" and bool(np.allclose(got, want, rtol=tolerance, atol=tolerance))
