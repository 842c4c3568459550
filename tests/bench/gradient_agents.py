"""The pushing side of `shoal bench gradients`: many agents in one process, a connection each."""

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import numpy as np

from edge_agent.downlink.downlink import OPTIONS
from shoal.gradients import CODECS, Codec, Encoder, Weights, decode_weights
from shoal.identity import Identity
from shoal.v1 import update_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

FLEET = "bench"
WARM_UP_S = 1.0
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What the agents of one process do.

    Attributes:
        directory: Where identities are.
        port: Of the server.
        names: Of the agents.
        rate: Updates a second of each; 0: the next as soon as the last was answered.
        seconds: How long is measured, after a warm-up.
        codec: How gradients travel.
        start_s: The monotonic clock at which all processes begin.
    """

    directory: str
    port: int
    names: tuple[str, ...]
    rate: float
    seconds: float
    codec: Codec
    start_s: float


@dataclass(slots=True)
class Pushed:
    """What was measured.

    Attributes:
        latencies_ms: Of each call within the measured time.
        refused: Updates that were not applied.
        late: Calls that began over 50 ms after their time: the pushing side could not keep up.
        body_bytes: Of one gradient.
    """

    latencies_ms: list[float] = field(default_factory=list)
    refused: int = 0
    late: int = 0
    body_bytes: int = 0


async def push_all(load: Load) -> Pushed:
    """Runs the agents."""
    pushed = Pushed()
    async with asyncio.TaskGroup() as group:
        for name in load.names:
            group.create_task(_agent(name, load, pushed))
    return pushed


async def _agent(name: str, load: Load, pushed: Pushed) -> None:
    pems = Identity.load(Path(load.directory) / "pki" / "identities" / name).read_pems()
    keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    rng = random.Random(name)
    async with grpc.aio.secure_channel(f"127.0.0.1:{load.port}", keys, options=OPTIONS) as channel:
        server = ParameterServerStub(channel)
        request = await _first(server, name, load.codec)
        pushed.body_bytes = len(request.body)
        await asyncio.sleep(max(0.0, load.start_s - time.monotonic()))
        due = load.start_s + (rng.random() / load.rate if load.rate else 0.0)
        measured, end = load.start_s + WARM_UP_S, load.start_s + WARM_UP_S + load.seconds
        while (now := time.monotonic()) < end:
            if load.rate:
                if due >= end:
                    return
                await asyncio.sleep(max(0.0, due - now))
            began = time.monotonic()
            answer = await server.PushUpdate(request, timeout=DEADLINE_S)
            took_ms = (time.monotonic() - began) * 1e3
            request.seq += 1
            request.updates = answer.updates
            if began >= measured:
                pushed.latencies_ms.append(took_ms)
                pushed.refused += not answer.applied
                pushed.late += load.rate > 0 and began - due > 0.05
            due += 1.0 / load.rate if load.rate else 0.0


async def _first(server: ParameterServerStub, name: str, codec: Codec) -> pb.PushUpdateRequest:
    weights = await _weights(server, name)
    rng = np.random.default_rng(len(name))
    gradient = rng.normal(0.0, 1e-3, len(weights.values)).astype(np.float32)
    return pb.PushUpdateRequest(
        fleet=FLEET,
        device_id=name,
        run_id=os.urandom(16),
        layout_digest=weights.layout_digest,
        updates=weights.updates,
        transitions=256,
        codec=CODECS[codec],
        parameters=len(gradient),
        body=Encoder(codec, share=0.05).encode(gradient),
        metrics={"policy_loss": 0.1, "value_loss": 0.2, "entropy": 0.6},
    )


async def _weights(server: ParameterServerStub, name: str) -> Weights:
    call = server.GetWeights(pb.GetWeightsRequest(fleet=FLEET, device_id=name), timeout=DEADLINE_S)
    payload = bytearray()
    async for part in call:
        payload += part.data
    return decode_weights(bytes(payload))
