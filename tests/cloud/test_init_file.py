"""Training that starts from a file: a policy exported in fp32, or a checkpoint."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from learner_state import ShortRun, short_run
from sim import on_loop, until
from strategies import RUN_ID

from cloud_learner.algorithms.dqn import DQN
from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.core import open_core
from cloud_learner.downlink.kept_policies import KeptPolicies, KeptPolicy
from cloud_learner.quantization.export import export_policy
from cloud_learner.state_dir import StateDir
from cloud_learner.training.brain import Brain
from cloud_learner.training.init_file import InitFile
from cloud_learner.training.start import build_brain, read_init
from cloud_learner.uplink.arrivals import Birth
from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.v1 import device_pb2 as pb
from shoalctl.cli import run

FP32 = {"training": "kl_quantization_max = 1e-12"}
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
KINDS = ("policy", "checkpoint")


def file_of(made: ShortRun, kind: str) -> Path:
    if kind == "checkpoint":
        (path,) = made.state.checkpoints.glob("*.checkpoint")
        return path
    return exported(made, "fp32")


def exported(made: ShortRun, precision: str) -> Path:
    out = made.config.parent / f"{precision}.onnx"
    words = ["--config", str(made.config), "-o", str(out), "--precision", precision]
    assert run(["learner", "export", *words]) == 0
    return out


def started_from(made: ShortRun, init: Path) -> LearnerConfig:
    """The same training from another seed, in a state directory of its own."""
    known = load_config(LearnerConfig, made.config, environ={})
    return replace(known, init=init, state_dir=made.config.parent / "again", seed=99)


def brain_of(config: LearnerConfig, spec: EnvSpec) -> Brain:
    choice = load_algorithm(config.training.algorithm, config.training.settings)
    return build_brain(spec, config, choice, read_init(config, choice))


async def first_version(config: LearnerConfig, *births: EnvSpec) -> KeptPolicy:
    """What a learner publishes first when these devices are born, of which the last one fits."""
    state = StateDir.open(config.state_dir, resume=True)
    async with AsyncExitStack() as stack:
        core = open_core(config, state, KEY, stack, rng=random.Random(0))
        fleet = core.parts.fleet
        async with asyncio.TaskGroup() as group:
            training = group.create_task(core.trainer.serve(core.restored))
            for number, spec in enumerate(births, start=1):
                status = pb.Status(device_id="pi-1", run_id=RUN_ID, state=pb.DEVICE_STATE_ONLINE)
                fleet.note_status(Birth(status, spec))
                if number < len(births):
                    await until(lambda: fleet.learner_state == "cannot_train")
            await until(lambda: core.trainer.standard() is not None)
            assert fleet.learner_state == "training"
            training.cancel()
    return KeptPolicies(state.policies).read(1)


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_the_first_version_is_the_policy_that_was_given(kind: str, tmp_path: Path) -> None:
    made = short_run(tmp_path, training=FP32)
    config = started_from(made, file_of(made, kind))
    given = made.published[-1].manifest
    first = await first_version(config, made.brain.spec)
    assert (first.manifest.precision, first.manifest.digest) == ("fp32", given.digest)
    fresh = replace(config, init=None, state_dir=tmp_path / "fresh")
    assert (await first_version(fresh, made.brain.spec)).manifest.digest != given.digest


def test_what_a_checkpoint_goes_on_from_goes_before_the_file_which_may_be_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = short_run(tmp_path, signing_key=KEY)
    config = replace(started_from(made, tmp_path / "gone"), state_dir=made.state.directory)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            core = open_core(config, made.state, KEY, stack, rng=random.Random(0))
            assert core.restored is not None
            assert core.restored.learner.updates == 10

    asyncio.run(scenario())
    assert "init_ignored" in caplog.messages


@pytest.mark.parametrize(
    ("training", "env_id"),
    [
        ({"training": 'algorithm = "cloud_learner.algorithms.dqn:DQN"'}, "CartPole-v1"),
        ({"training": 'algorithm = "cloud_learner.algorithms.sac:SAC"'}, "Pendulum-v1"),
        ({"training.network": 'kind = "lstm"\nhidden = [16]\nmemory = 8'}, "CartPole-v1"),
        ({"training.network": "normalize = true"}, "Acrobot-v1"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_every_algorithm_and_network_trains_can_be_started_from(
    kind: str, training: dict[str, str], env_id: str, tmp_path: Path
) -> None:
    made = short_run(tmp_path, env_id=env_id, training=training, chunks=1)
    if made.brain.learner.policy.normalizer is not None:
        rows = np.random.default_rng(0).normal(3.0, 2.0, (500, 6)).astype(np.float32)
        made.brain.learner.policy.observe(rows)
        init = tmp_path / "policy.onnx"
        init.write_bytes(export_policy(made.brain.learner.policy))
    else:
        init = file_of(made, kind)
    config = started_from(made, init)
    brain = brain_of(config, made.brain.spec)
    policies = brain.learner.policy, made.brain.learner.policy
    seen = np.random.default_rng(1).normal(size=(20, *policies[0].observation.shape))
    observations = torch.from_numpy(seen.astype(np.float32))
    with torch.no_grad():
        if policies[0].state_width:
            state = torch.zeros(20, policies[0].state_width)
            starts = torch.zeros(1, 20, dtype=torch.bool)
            ours, theirs = (
                policy.unroll(observations[None], state, starts).params for policy in policies
            )
        else:
            ours, theirs = (policy(observations) for policy in policies)
    if policies[0].head == "greedy":  # of action values a file may hold the differences alone
        ours, theirs = (values - values.mean(-1, keepdim=True) for values in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_target_network_begins_with_the_weights_of_the_file(tmp_path: Path) -> None:
    dqn = {"training": 'algorithm = "cloud_learner.algorithms.dqn:DQN"'}
    made = short_run(tmp_path, training=dqn, chunks=1)
    config = started_from(made, file_of(made, "policy"))
    algorithm = cast("DQN", brain_of(config, made.brain.spec).learner.algorithm)
    state = algorithm.state_dict()
    own = torch.cat([weights.detach().flatten() for weights in algorithm.policy.parameters()])
    torch.testing.assert_close(state["target"], own)


def test_a_checkpoint_brings_optimiser_critic_and_updates_and_a_policy_does_not(
    tmp_path: Path,
) -> None:
    made = short_run(tmp_path, chunks=1)
    whole = brain_of(started_from(made, file_of(made, "checkpoint")), made.brain.spec).learner
    torch.testing.assert_close(
        dict(whole.algorithm.state_dict()["model"]),
        dict(made.brain.learner.algorithm.state_dict()["model"]),
    )
    assert whole.updates == made.brain.learner.updates == 10
    bare = brain_of(started_from(made, file_of(made, "policy")), made.brain.spec).learner
    assert bare.updates == 0


def refused(config: LearnerConfig) -> str:
    """What a learner says before anything else of it starts."""
    state = StateDir.open(config.state_dir, resume=False)

    async def scenario() -> str:
        async with AsyncExitStack() as stack:
            with pytest.raises(ConfigError) as refusal:
                open_core(config, state, KEY, stack, rng=random.Random(0))
        return str(refusal.value)

    said = asyncio.run(scenario())
    assert str(config.init) in said
    assert not state.holds_a_run
    assert not state.journal.exists()
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_missing_or_damaged_is_refused(kind: str, tmp_path: Path) -> None:
    made = short_run(tmp_path, chunks=1)
    good = file_of(made, kind)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(good.read_bytes()[:-100])
    refused(started_from(made, damaged))
    assert "No such file" in refused(started_from(made, tmp_path / "missing"))
    assert "is a directory" in refused(started_from(made, tmp_path))
    for junk in (b"", b"junk", b"SHOALCP1"):
        damaged.write_bytes(junk)
        refused(started_from(made, damaged))


def test_an_int8_policy_is_refused_with_how_to_get_another(tmp_path: Path) -> None:
    made = short_run(tmp_path, chunks=1)
    said = refused(started_from(made, exported(made, "int8")))
    assert "int8" in said
    assert "--precision fp32" in said


def test_a_file_of_another_network_or_algorithm_is_refused_with_what_differs(
    tmp_path: Path,
) -> None:
    made = short_run(tmp_path, chunks=1)
    other = TrainingConfig(network=NetworkConfig(hidden=(8,)))
    for kind, part in (("policy", "bias.0 is [64]"), ("checkpoint", "hidden [64, 64]")):
        config = started_from(made, file_of(made, kind))
        assert part in refused(replace(config, training=other))
    dqn = TrainingConfig(algorithm="cloud_learner.algorithms.dqn:DQN")
    config = started_from(made, file_of(made, "checkpoint"))
    said = refused(replace(config, training=dqn))
    assert "is of cloud_learner.algorithms.appo:APPO" in said
    assert "asks for cloud_learner.algorithms.dqn:DQN" in said
    assert "give another file" in said


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_a_device_of_other_spaces_is_named_and_waited_past(kind: str, tmp_path: Path) -> None:
    made = short_run(tmp_path, chunks=1)
    config = started_from(made, file_of(made, kind))
    spec = made.brain.spec
    others = replace(spec, action=Discrete(3)), replace(spec, observation=unbounded((4,)))
    first = await first_version(config, *others, spec)
    assert first.manifest.spec_fingerprint == spec.fingerprint


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"action": Discrete(3)}, "actions are Discrete(2) in the file, Discrete(3) on the device"),
        (
            {"observation": unbounded((5,))},
            "observations are Box [4] float32 in the file, Box [5] float32 on the device",
        ),
        ({"observation": unbounded((4,))}, "Box [4] float32 with other bounds"),
    ],
)
def test_spaces_that_differ_are_named(change: dict[str, object], part: str, tmp_path: Path) -> None:
    made = short_run(tmp_path, chunks=1)
    config = started_from(made, file_of(made, "policy"))
    other = replace(made.brain.spec, **change)  # type: ignore[arg-type]
    choice = load_algorithm(config.training.algorithm, {})
    assert config.init is not None
    with pytest.raises(ConfigError) as refusal:
        build_brain(other, config, choice, InitFile.read(config.init))
    assert part in str(refusal.value)


@on_loop
async def test_a_policy_that_does_not_say_its_spaces_is_compared_when_a_device_is_born(
    tmp_path: Path,
) -> None:
    made = short_run(tmp_path, chunks=1)
    init = tmp_path / "bare.onnx"
    init.write_bytes(export_policy(made.brain.learner.policy))
    config = started_from(made, init)
    first = await first_version(
        config, replace(made.brain.spec, observation=unbounded((5,))), made.brain.spec
    )
    assert first.manifest.spec_fingerprint == made.brain.spec.fingerprint
