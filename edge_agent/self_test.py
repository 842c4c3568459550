"""Whether a loaded policy does on this machine what it did where it was made."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.policy import Policy, Port
from shoal.errors import PolicyRejected
from shoal.policy import ACTION, LOG_PROB, NOISE, OBSERVATION, Golden
from shoal.spaces import EnvSpec, action_dtype, action_shape, observation_box, width
from shoal.tensors import Array

FLOAT_TOLERANCE: Final = 1e-4
"""Relative and absolute, for the outputs of graphs with fp32 layers."""


def check_ports(policy: Policy, spec: EnvSpec) -> None:
    """Checks that a graph takes and gives what the spaces ask for.

    Raises:
        PolicyRejected: With the reason `graph`.
    """
    box = observation_box(spec)
    wanted = {
        OBSERVATION: Port(box.dtype.name, box.shape),
        NOISE: Port("float32", (width(spec.action),)),
        ACTION: Port(action_dtype(spec.action).name, action_shape(spec.action)),
        LOG_PROB: Port("float32", ()),
    }
    for name, port in wanted.items():
        if policy.ports[name] != port:
            raise PolicyRejected(
                "graph",
                f"policy {policy.version}: {name} is {policy.ports[name]}, it must be {port}",
            )


def self_test(policy: Policy, golden: Golden) -> None:
    """Checks that a policy decides on this machine as it did on the learner's.

    Bit for bit, where all layers are int8. Where some are fp32, processors may round differently:
    integer actions must still be equal, and floats within `FLOAT_TOLERANCE`.

    Raises:
        PolicyRejected: With the reason `self_test`.
    """
    try:
        decided = policy.act(golden.observations, golden.noise)
    # onnxruntime raises ValueError, RuntimeError and classes of its own without a shared base.
    except Exception as error:
        raise PolicyRejected(
            "self_test", f"policy {policy.version} does not run: {type(error).__name__}"
        ) from error
    if not (np.isfinite(decided.log_probs).all() and np.isfinite(decided.actions).all()):
        raise PolicyRejected("self_test", f"policy {policy.version} gives NaN or infinity")
    tolerance = 0.0 if policy.manifest.precision == "int8" else FLOAT_TOLERANCE
    for name, got, want in (
        ("actions", decided.actions, golden.actions),
        ("log-probabilities", decided.log_probs, golden.log_probs),
    ):
        if not _agree(got, want, tolerance):
            raise PolicyRejected(
                "self_test",
                f"policy {policy.version} gives other {name} here than on the learner;"
                " compare the onnxruntime versions and processors",
            )


def _agree(got: Array, want: Array, tolerance: float) -> bool:
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if got.dtype.kind != "f" or tolerance == 0.0:
        return got.tobytes() == want.tobytes()
    return bool(np.allclose(got, want, rtol=tolerance, atol=tolerance))
