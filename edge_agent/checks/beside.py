"""What can be looked at while another agent acts: without a network, touching no hardware."""

from __future__ import annotations

from collections.abc import Sequence

from edge_agent.checks.finding import Finding, Level, fault
from edge_agent.config import AgentConfig
from edge_agent.environments.env import check_found
from edge_agent.gradients.worker import find_worker
from shoal.errors import ConfigError, ShoalError


def check_beside(config: AgentConfig) -> Sequence[Finding]:
    """Whether an agent of this installation would start with a configuration.

    It is what a fresh slot is asked while the agent of the other one runs on: that one may hold
    the environment's hardware, so the environment is found and not made.
    """
    findings = [_runtime(), _environment(config)]
    if config.mode == "gradients":
        findings.append(_gradients(config))
    return findings


def _runtime() -> Finding:
    name = "runtime"
    try:
        import onnxruntime  # noqa: PLC0415 - whether it can be is the question
    except ImportError as error:
        return fault(name, ConfigError(f"onnxruntime doesn't load here: {error}; install again"))
    return Finding(name, Level.OK, f"onnxruntime {onnxruntime.__version__}")


def _environment(config: AgentConfig) -> Finding:
    try:
        check_found(config.env.id)
    except ShoalError as error:
        return fault("environment", error)
    return Finding("environment", Level.OK, f"{config.env.id} is installed; it was not made")


def _gradients(config: AgentConfig) -> Finding:
    try:
        find_worker(config.gradients.worker)
    except ShoalError as error:
        return fault("gradients", error)
    return Finding("gradients", Level.OK, config.gradients.worker)
