"""A device that offers policies to its store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge_agent.policies.policy_store import PolicyStore
from shoal.errors import PolicyRejected

if TYPE_CHECKING:
    from policy_publisher import Published, Publisher

    from edge_agent.environments.env import Environments

    Make = Callable[..., Environments]


class Device:
    """A device's state directory, and stores opened on it one after another."""

    def __init__(self, directory: Path, publisher: Publisher) -> None:
        self.directory = directory
        self._publisher = publisher
        self._stack = ExitStack()

    def start(self, **changes: object) -> PolicyStore:
        self.stop()
        trust: dict[str, object] = {
            "fleet": self._publisher.fleet,
            "public_key": self._publisher.public_key,
            "spec": self._publisher.spec,
            **changes,
        }
        return self._stack.enter_context(
            PolicyStore(self.directory, **trust)  # type: ignore[arg-type]
        )

    def stop(self) -> None:
        self._stack.close()

    @property
    def bundles(self) -> list[Path]:
        return sorted(self.directory.glob("*/*.bundle"))

    def bundle(self, version: int) -> Path:
        (path,) = self.directory.glob(f"*/{version:020d}-*.bundle")
        return path


def accept(store: PolicyStore, published: Published) -> None:
    policy = store.offer(published.bundle, published.fetch)
    assert store.current is policy
    assert policy.version == published.manifest.version


def refuse(store: PolicyStore, published: Published, reason: str) -> PolicyRejected:
    current, before = store.current, store.rejections[reason]
    with pytest.raises(PolicyRejected) as caught:
        store.offer(published.bundle, published.fetch)
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)
    assert store.current is current
    assert store.rejections[reason] == before + 1
    return caught.value


def version_of(store: PolicyStore) -> int:
    return 0 if store.current is None else store.current.version
