"""The same actor on torch: the device's environments, spool and uplink, and torch to decide.

Started by `shoal bench footprint`, with the paths as arguments. It has no downlink, so no gRPC.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from bench.stream_device import DeviceCertificate
from torch import nn

from edge_agent.config import BrokerConfig, EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.events import Events
from edge_agent.spool.spool import Spool
from edge_agent.uplink.uplink import Uplink
from shoal.episodes import Episode
from shoal.identity import Identity
from shoal.noise import RUN_ID_BYTES
from shoal.services import in_thread, run_services
from shoal.topics import Topics
from shoal.trajectory import Chunk, encode_chunk


def load(weights: Path) -> nn.Sequential:
    """The network whose weights were left there."""
    with np.load(weights) as arrays:
        layers: list[nn.Module] = []
        for number in range(len(arrays.files) // 2):
            weight, bias = arrays[f"w{number}"], arrays[f"b{number}"]
            dense = nn.Linear(weight.shape[1], weight.shape[0])
            dense.load_state_dict(
                {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
            )
            layers += [dense, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


async def run(
    fleet: str, identity_dir: Path, port: int, state: Path, weights: Path, probe: str, envs: int
) -> None:
    """Acts until SIGTERM."""
    torch.set_num_threads(1)
    identity = Identity.load(identity_dir)
    run_id = os.urandom(RUN_ID_BYTES)
    events = Events(identity.name, run_id, clock=time.time)
    config = EnvConfig(
        "bench.footprint_env:ProbedCartPole", num_envs=envs, seed=0, kwargs={"probe": probe}
    )
    with (
        make_env(config) as environments,
        Spool(state / "spool.sqlite", max_bytes=2**28, run_id=run_id, events=events) as spool,
    ):
        spec = environments.spec.to_pb().SerializeToString()
        async with Uplink(
            BrokerConfig("127.0.0.1", port),
            identity,
            spool,
            events,
            topics=Topics(fleet),
            certificate=DeviceCertificate(identity.name, run_id, spec),
            run_id=run_id,
        ) as uplink:

            def act(stop: threading.Event) -> None:
                network = load(weights)
                observations = environments.reset().copy()
                step = 0
                while not stop.is_set():
                    columns, ends = [], []
                    for t in range(64):
                        with torch.inference_mode():
                            logits = network(torch.from_numpy(observations))
                            actions = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
                            log_probs = logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]
                        found = environments.step(actions.numpy())
                        columns.append(
                            (
                                observations,
                                actions.numpy(),
                                log_probs.numpy(),
                                found.rewards.copy(),
                                found.terminated.copy(),
                                found.truncated.copy(),
                            )
                        )
                        ends += [(t, ending) for ending in found.endings]
                        observations = found.observations.copy()
                    seen, acted, log_prob, rewards, terminated, truncated = (
                        np.stack(column) for column in zip(*columns, strict=True)
                    )
                    finals = [ending.final_observation for _, ending in ends]
                    chunk = Chunk(
                        spec_fingerprint=environments.spec.fingerprint,
                        policy_version=1,
                        policy_digest=bytes(32),
                        first_step=step,
                        observations=np.concatenate((seen, observations[None])),
                        actions=acted,
                        log_probs=log_prob,
                        rewards=rewards,
                        terminated=terminated,
                        truncated=truncated,
                        final_index=np.array([t * envs + e.env for t, e in ends], np.int32),
                        final_observations=np.array(finals, np.float32).reshape(
                            len(ends), *seen.shape[2:]
                        ),
                        episodes=tuple(
                            Episode(e.env, t, e.total_return, e.length) for t, e in ends
                        ),
                    )
                    spool.append(encode_chunk(chunk), 1)
                    step += 64

            await run_services({"act": in_thread(act), "uplink": uplink.serve})


def main() -> None:
    """Runs it with the arguments of the command line."""
    fleet, identity, port, state, weights, probe, envs = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            run(fleet, Path(identity), int(port), Path(state), Path(weights), probe, int(envs))
        )
