"""A learner that trains in one process; all of it real but the network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sim import until
from strategies import RUN_ID, cartpole_spec, make_chunk

from cloud_learner.config import LearnerConfig, NetworkConfig, TrainingConfig
from cloud_learner.core import Core, open_core
from cloud_learner.journal.audit import Disposition
from cloud_learner.journal.records import Entry
from cloud_learner.state_dir import StateDir
from cloud_learner.training.experience import Admitted
from cloud_learner.uplink.admission import decide
from cloud_learner.uplink.arrivals import Birth
from shoal.envelope import ChunkKey
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk, encode_chunk
from shoal.v1 import device_pb2 as pb

SPEC = cartpole_spec()
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
BATCH, CHUNKS = 16, 12


def config_in(directory: Path, *, checkpoint_interval_s: float = 0.0) -> LearnerConfig:
    return LearnerConfig(
        fleet="demo",
        identity=directory,
        state_dir=directory,
        training=TrainingConfig(
            batch_steps=BATCH,
            network=NetworkConfig(hidden=(8,)),
            max_lag=10_000,
            settings={"epochs": 2, "minibatches": 2},
        ),
        checkpoint_interval_s=checkpoint_interval_s,
        tensorboard=False,
    )


@asynccontextmanager
async def learning(
    config: LearnerConfig, *, kill: bool = False, births: tuple[EnvSpec, ...] = (SPEC,)
) -> AsyncIterator[Core]:
    """A learner that trains; at the end it is stopped, or killed so that nothing is saved."""
    torch.set_num_threads(1)
    state = StateDir.open(config.state_dir, resume=True)
    async with AsyncExitStack() as stack:
        core = open_core(config, state, KEY, stack, rng=random.Random(0))
        for spec in births:
            core.parts.fleet.note_status(Birth(birth(), spec))
        async with asyncio.TaskGroup() as group:
            training = group.create_task(core.trainer.serve(core.restored))
            await until(lambda: core.trainer.standard() is not None)
            yield core
            core.trainer._midway = core.trainer._midway or kill
            training.cancel()


def birth() -> pb.Status:
    return pb.Status(
        device_id="pi-1", run_id=RUN_ID, state=pb.DEVICE_STATE_ONLINE, env_spec=SPEC.to_pb()
    )


def chunk_of(core: Core, seq: int) -> Chunk:
    known = core.parts.versions.find(1)
    assert known is not None
    assert known.digest is not None
    return replace(make_chunk(SPEC, seed=seq), policy_version=1, policy_digest=known.digest)


def take_in(core: Core, seqs: range) -> None:
    """Does what ingest does with chunks, in this order."""
    standard = core.trainer.standard()
    assert standard is not None
    for seq in seqs:
        key, chunk = ChunkKey("pi-1", RUN_ID, seq), chunk_of(core, seq)
        verdict = decide(chunk, standard)
        assert verdict.disposition is Disposition.TRAINED
        entry = Entry(key, verdict.disposition, encode_chunk(chunk), 1, chunk.transitions)
        (position,) = core.parts.journal.append_many([entry])
        if position is not None:
            core.parts.replay.add([Admitted(key, position, chunk, verdict.version_updates)])


async def until_trained(core: Core, batches: int) -> None:
    await until(lambda: core.parts.counters["batches"] >= batches)


def weights(core: Core) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    assert core.trainer._brain is not None
    parameters = core.trainer._brain.learner.policy.parameters()
    return np.concatenate([p.detach().numpy().ravel() for p in parameters])


async def until_newer(core: Core, version: int) -> None:
    await until(lambda: core.parts.parameter_server.offered_version > version)
