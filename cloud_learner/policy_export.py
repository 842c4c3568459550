"""Finds the policy that is to be exported: a version as it was published, or the newest weights."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloud_learner.config import LearnerConfig, TrainingConfig
from cloud_learner.downlink.kept_policies import KeptPolicies, KeptPolicy
from cloud_learner.state_dir import StateDir
from shoal.errors import ConfigError, ShoalError
from shoal.policy import Manifest
from shoal.spaces import EnvSpec
from shoal.tensors import Array

if TYPE_CHECKING:
    from cloud_learner.training.checkpoint import Checkpoint

FP32: Final = "fp32"
FLOAT_GRAPH: Final = "shoal.float_graph"
"""Metadata of an int8 file: the weightless fp32 graph that its float twin runs on, base64."""


@dataclass(frozen=True, slots=True, eq=False)
class Exportable:
    """A policy and where it came from.

    Attributes:
        graph: Weightless.
        tensors: Every initializer of it.
        precision: `int8`, `int8_fp32_head` or `fp32`.
        metadata: What the file will say of it.
        source: One line for people.
    """

    graph: bytes
    tensors: Mapping[str, Array]
    precision: str
    metadata: Mapping[str, str]
    source: str


def as_published(policy: KeptPolicy, spec: EnvSpec | None, precision: str) -> Exportable:
    """A version as devices have it.

    Args:
        policy: The version.
        spec: Of the spaces it acts in, if they are known.
        precision: What is asked for.

    Raises:
        ShoalError: It was published in another precision than the one asked for.
    """
    manifest = policy.manifest
    if (manifest.precision == FP32) != (precision == FP32):
        raise ShoalError(
            f"policy v{manifest.version} was published in {manifest.precision}, not in {precision}"
            + (
                ": its fp32 weights are only in the learner's checkpoint; give --config"
                if precision == FP32
                else ", as its gap was too wide or fp32 was asked for; give --precision fp32"
            )
        )
    source = f"policy v{manifest.version}, {manifest.updates} updates, as published"
    metadata = _metadata(manifest, spec)
    if policy.float_graph is not None:
        metadata[FLOAT_GRAPH] = base64.b64encode(policy.float_graph).decode()
    return Exportable(policy.graph, policy.tensors, manifest.precision, metadata, source)


def find_policy(
    state: StateDir, config: LearnerConfig | None, *, version: int | None, precision: str
) -> Exportable:
    """The policy to export from a learner's state directory, which the learner may have in use.

    Args:
        state: The directory.
        config: The learner's configuration, for a checkpoint that does not say of which network it
            is, or whose algorithm is not Shoal's own.
        version: None for the newest.
        precision: `int8`, or `fp32`: of what was published in int8, the checkpoint has it.

    Raises:
        ShoalError: There is no such version, or not in this precision.
        ConfigError: The checkpoint is needed, and so is a configuration.
    """
    from cloud_learner.training.checkpoint import newest_checkpoint  # noqa: PLC0415 - torch

    policies = KeptPolicies(state.policies)
    versions = policies.versions()
    if version is None and not versions:
        raise ShoalError(f"{state.policies}: no policy is published yet")
    policy = policies.read(versions[-1] if version is None else version)
    checkpoint = newest_checkpoint(state.checkpoints)
    if precision != FP32 or policy.manifest.precision == FP32:
        return as_published(policy, None if checkpoint is None else checkpoint.spec, precision)
    if checkpoint is None:
        raise ShoalError(f"{state.checkpoints}: no checkpoint is saved yet")
    training = _training_of(checkpoint, policy) if config is None else config.training
    return _from_checkpoint(checkpoint, training, policy, exactly=version is not None)


def _training_of(checkpoint: Checkpoint, policy: KeptPolicy) -> TrainingConfig:
    """What the checkpoint says that it was made with.

    Raises:
        ConfigError: It does not say, or that is code of others, which a configuration has to name.
    """
    recipe, manifest = checkpoint.recipe, policy.manifest
    lacking = "does not say of which network"
    if recipe is not None and not (named := recipe.foreign()):
        return TrainingConfig(
            algorithm=recipe.algorithm, network=recipe.network, settings=dict(recipe.settings)
        )
    if recipe is not None:
        lacking = f"is of {' and '.join(named)}, which is not Shoal's own and would run here"
    raise ConfigError(
        f"policy v{manifest.version} was published in {manifest.precision}; its fp32 weights are "
        f"in the checkpoint, which {lacking}: give the learner's --config"
    )


def _from_checkpoint(
    checkpoint: Checkpoint, training: TrainingConfig, policy: KeptPolicy, *, exactly: bool
) -> Exportable:
    from cloud_learner.algorithms.interface import load_algorithm  # noqa: PLC0415 - torch
    from cloud_learner.quantization.tensors import Ranges, make_tensors  # noqa: PLC0415
    from cloud_learner.training.brain import make_brain  # noqa: PLC0415 - the same

    wanted = policy.manifest.updates
    has = checkpoint.learner["updates"]
    if exactly and has != wanted:
        raise ShoalError(
            f"policy v{policy.manifest.version} is of {wanted} updates and the newest checkpoint of"
            f" {has}: its fp32 weights are gone; leave out --version to get those of the checkpoint"
        )
    choice = load_algorithm(training.algorithm, training.settings)
    brain = make_brain(checkpoint.spec, training, choice, seed=0)
    brain.learner.load_state_dict(checkpoint.learner)
    tensors = make_tensors(brain.learner.policy, FP32, Ranges())
    near = f"policy v{policy.manifest.version} is of {wanted}"
    source = f"the newest checkpoint, {has} updates ({near})"
    said = replace(policy.manifest, updates=has, precision=FP32, kl_quantization=0.0, agreement=1.0)
    metadata = _metadata(said, checkpoint.spec)
    for published in ("shoal.version", "shoal.digest"):
        del metadata[published]
    return Exportable(brain.quantizer.graphs[FP32], tensors, FP32, metadata, source)


def _metadata(manifest: Manifest, spec: EnvSpec | None) -> dict[str, str]:
    from cloud_learner.quantization.export import metadata_of  # noqa: PLC0415 - torch

    if spec is None or spec.fingerprint != manifest.spec_fingerprint:
        return {
            "shoal.fleet": manifest.fleet,
            "shoal.version": str(manifest.version),
            "shoal.updates": str(manifest.updates),
            "shoal.digest": manifest.digest.hex(),
            "shoal.precision": manifest.precision,
        }
    return metadata_of(manifest, spec)


def state_of(config: LearnerConfig | None, directory: Path | None) -> StateDir:
    """The state directory that is meant.

    Raises:
        ConfigError: Neither says which.
    """
    if directory is not None:
        return StateDir(directory)
    if config is None:
        raise ConfigError("give --state, --config or --server: whose policy or journal is it?")
    return StateDir(config.state_dir)
