"""Kills the policy store at each step that reaches the disk; run as a program.

    python tests/policy_faults.py DIRECTORY OPERATION

prints, as JSON lines, every step before which it was killed, and which version then acted in a
fresh process: at once, and after the newest policy was sent again. Each process is a fork of this
one, so that what takes long to import is imported once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from killer import Killer
from policy_publisher import Publisher

from edge_agent.acting.actor import Actor
from edge_agent.environments.env import Environments
from edge_agent.policies.policy_store import PolicyStore
from shoal.errors import PolicyRejected

FAILED = 99


class Still(gymnasium.Env[object, object]):
    """Nothing moves."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[object, dict[str, object]]:
        return np.zeros(4, np.float32), {}

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
        return np.zeros(4, np.float32), 0.0, False, False, {}


@dataclass(frozen=True)
class Device:
    """A store's directory, and what its fleet publishes."""

    directory: Path
    publisher: Publisher

    def store(self) -> PolicyStore:
        return PolicyStore(
            self.directory,
            fleet=self.publisher.fleet,
            public_key=self.publisher.public_key,
            spec=self.publisher.spec,
        )


def offer(*versions: int) -> Callable[[Device], None]:
    def do(device: Device) -> None:
        with device.store() as policies:
            for version in versions:
                published = device.publisher.publish(version)
                policies.offer(published.bundle, published.fetch)

    return do


def accept(*versions: int) -> Callable[[Device], None]:
    """They act, one after the other, and are saved together at the end."""

    def do(device: Device) -> None:
        with device.store() as policies:
            for version in versions:
                published = device.publisher.publish(version)
                policies.accept(published.bundle, published.fetch)

    return do


def condemn(device: Device) -> None:
    with device.store() as policies:
        assert policies.current is not None
        policies.condemn(policies.current, "non_finite")


def tidy(device: Device) -> None:
    """A start after a power cut that left files half written."""
    (inside,) = device.directory.iterdir()
    (inside / "00000000000000000009-half.bundle.tmp").write_bytes(b"half")
    (inside / "graphs" / "half.onnx.tmp").write_bytes(b"half")
    with device.store():
        pass


@dataclass(frozen=True)
class Operation:
    """What is interrupted, after what, and which versions may act then (0: none does)."""

    before: Callable[[Device], None]
    do: Callable[[Device], None]
    after: tuple[int, ...]
    revoked: Callable[[Device], int] | None = None  # what acts once a revoked delegate had a try


def delegated(*offers: tuple[int, int]) -> Callable[[Device], None]:
    """Offers versions that delegates of some generation signed."""

    def do(device: Device) -> None:
        with device.store() as policies:
            for version, generation in offers:
                publisher = device.publisher.delegating(generation)
                published = publisher.publish(version)
                policies.offer(published.bundle, published.fetch)

    return do


def old_delegate(device: Device) -> int:
    """The version that acts once a delegate of generation 1 offered version 3."""
    with suppress(PolicyRejected):
        delegated((3, 1))(device)
    return act(device)


OPERATIONS = {
    "first": Operation(offer(), offer(1), (0, 1)),
    "second": Operation(offer(1), offer(2), (1, 2)),
    "third": Operation(offer(1, 2), offer(3), (2, 3)),
    "two_at_once": Operation(offer(1), offer(2, 3), (1, 2, 3)),
    "late": Operation(offer(1), accept(2, 3, 4), (1, 3, 4)),
    "condemn": Operation(offer(1, 2), condemn, (1, 2)),
    "rotation": Operation(delegated((1, 1)), delegated((2, 2)), (1, 2), old_delegate),
    "start": Operation(offer(1, 2), tidy, (2,)),
}


def act(device: Device) -> int:
    """The version that acts a chunk; 0: there is none."""
    with device.store() as policies:
        if policies.current is None:
            return 0
        with Environments("still", [Still()], seed=0) as environments:
            actor = Actor(environments, run_id=bytes(16), chunk_steps=4)
            return actor.rollout(policies.current).policy_version


def forked(work: Callable[[], object]) -> int:
    """What a process that does this returns, as its status; negative: the signal that killed it."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            result = work()
            status = result if isinstance(result, int) else 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def interrupt(device: Device, operation: Operation, at: int, *, power_cut: bool) -> None:
    """Does it until a step, or to its end."""
    with Killer(at, power_cut).watching():
        operation.do(device)


def resend(device: Device) -> int:
    """The version that acts once the newest was sent again."""
    offer(4)(device)
    return act(device)


def table(directory: Path, operation: Operation, publisher: Publisher) -> list[dict[str, object]]:
    """Every case of an operation."""
    original = Device(directory / "before", publisher)
    assert forked(lambda: operation.before(original)) == 0
    rows: list[dict[str, object]] = []
    for power_cut in (False, True):
        for step in range(1000):
            device = Device(directory / f"case-{step}-{power_cut}", publisher)
            if original.directory.exists():
                shutil.copytree(original.directory, device.directory)
            work = partial(interrupt, device, operation, step, power_cut=power_cut)
            ended = forked(work)
            if ended == 0:
                break
            assert ended == -signal.SIGKILL, ended
            row = {"acted": forked(partial(act, device))}
            if operation.revoked is not None:
                row["revoked"] = forked(partial(operation.revoked, device))
            row["then"] = forked(partial(resend, device))
            rows.append({"step": step, "power_cut": power_cut, **row})
            shutil.rmtree(device.directory)
    return rows


def main(arguments: list[str]) -> int:
    directory, operation = Path(arguments[0]), OPERATIONS[arguments[1]]
    for row in table(directory, operation, Publisher()):
        sys.stdout.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
