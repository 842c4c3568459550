"""A learner's state directory as a short run leaves it: policies, a journal, a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.algorithms.interface import load_algorithm
from cloud_learner.config import JournalConfig, LearnerConfig
from cloud_learner.downlink.policy_log import PolicyLog
from cloud_learner.downlink.published import Published
from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.journal import Journal
from cloud_learner.journal.records import Entry
from cloud_learner.quantization.sample import probe_sample
from cloud_learner.state_dir import StateDir
from cloud_learner.training.brain import Brain
from cloud_learner.training.checkpoint import Checkpoint, CheckpointStore, newest_checkpoint
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.start import build_brain
from edge_agent.acting.actor import Actor
from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.policies.policy import Policy
from shoal.config import load_config
from shoal.envelope import ChunkKey
from shoal.layout import ObservationLayout
from shoal.policy import decode_bundle
from shoal.ranges import Ranges
from shoal.tensors import decode_tensors
from shoal.trajectory import encode_chunk

RUN_ID = bytes(range(16))
OTHER_RUN_ID = bytes(range(16, 32))
FLEET = "reef"


@dataclass(frozen=True)
class ShortRun:
    """Where a short run left what."""

    config: Path
    state: StateDir
    brain: Brain
    published: list[Published]


def short_run(
    directory: Path,
    *,
    env_id: str = "CartPole-v1",
    training: Mapping[str, str] | None = None,
    versions: int = 2,
    chunks: int = 3,
    signing_key: Ed25519PrivateKey | None = None,
    twin: str = "",
) -> ShortRun:
    """Has `pi-1` act in two runs, so many chunks of 8 steps of 3 environments for each version.

    Args:
        directory: An empty one.
        env_id: What it acts in.
        training: More lines of the learner's TOML, by table: `{"training.network": "..."}`.
        versions: Published, 10 updates apart.
        chunks: Of each run under each version.
        signing_key: Of the policies; one of its own if None.
        twin: `fp32` or `int8_dynamic`: the devices act with that twin; empty: as published.
    """
    config = directory / "learner.toml"
    lines = [f'fleet = "{FLEET}"', 'identity = "identity"', 'state_dir = "state"']
    for table, text in (training or {}).items():
        lines += [f"[{table}]", text]
    config.write_text("\n".join(lines))
    known = load_config(LearnerConfig, config, environ={})
    state = StateDir.open(known.state_dir, resume=False)
    with make_env(EnvConfig(env_id, num_envs=3, seed=1)) as environments:
        spec = environments.spec
    choice = load_algorithm(known.training.algorithm, known.training.settings)
    brain = build_brain(spec, known, choice)
    published: list[Published] = []
    policies: list[Policy] = []
    key = signing_key or Ed25519PrivateKey.generate()
    with PolicyLog(state.policies, key, FLEET) as log:
        for number in range(versions):
            _move_weights(brain, seed=number)
            quantized = brain.quantizer.quantize(
                brain.learner.policy, probe_sample(brain.learner.policy, seed=number)
            )
            graph = brain.quantizer.graphs[quantized.precision]
            float_graph = brain.quantizer.graphs["fp32"] if quantized.precision == "int8" else None
            made = log.publish(
                quantized,
                graph=graph,
                float_graph=float_graph,
                updates=10 * number,
                spec_fingerprint=spec.fingerprint,
                behaviour=brain.learner.behaviour,
            )
            tensors = decode_tensors(decode_bundle(made.bundle).tensors)
            layout = ObservationLayout.of(spec.observation)
            published.append(made)
            policy = Policy.load(graph, tensors, made.manifest, layout)
            if twin:
                assert float_graph is not None
                make = policy.twin if twin == "fp32" else policy.dynamic_twin
                policy = make(float_graph, tensors)
            policies.append(policy)
    brain.learner.resume_at(10 * (versions - 1))
    with Journal(state.journal, JournalConfig()) as journal:
        for run_id in (OTHER_RUN_ID, RUN_ID):
            journal.append_many(_entries(run_id, env_id, policies, chunks))
    CheckpointStore(state.checkpoints).save(
        Checkpoint(
            spec=spec,
            learner=brain.learner.state_dict(),
            quantizer=brain.quantizer.state_dict(),
            source={},
            cursor=Cursor(0, Ranges()),
            version=versions,
            recipe=brain.recipe,
        )
    )
    return ShortRun(config, state, brain, published)


def keep_no_trajectories(made: ShortRun) -> None:
    """Makes its newest checkpoint one of the mode `gradients`."""
    checkpoint = newest_checkpoint(made.state.checkpoints)
    assert checkpoint is not None
    live = {"weights": np.zeros(3, np.float32)}
    CheckpointStore(made.state.checkpoints).save(replace(checkpoint, source={"live": live}))


def _move_weights(brain: Brain, *, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for parameter in brain.learner.policy.parameters():
        moved = rng.normal(0.0, 0.3, tuple(parameter.shape)).astype(np.float32)
        parameter.data += parameter.new_tensor(moved)


def _entries(run_id: bytes, env_id: str, policies: list[Policy], chunks: int) -> list[Entry]:
    entries: list[Entry] = []
    with make_env(EnvConfig(env_id, num_envs=3, seed=1)) as environments:
        actor = Actor(environments, run_id=run_id, chunk_steps=8)
        for policy in policies:
            for _ in range(chunks):
                chunk = actor.rollout(policy)
                entries.append(
                    Entry(
                        ChunkKey("pi-1", run_id, len(entries)),
                        Disposition.TRAINED,
                        body=encode_chunk(chunk),
                        policy_version=policy.version,
                        transitions=chunk.transitions,
                        episodes=len(chunk.episodes),
                    )
                )
    return entries
