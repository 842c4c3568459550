"""Checkpoints that an operator asks for: under names of their own, and never deleted here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cloud_learner.training.checkpoint import (
    SUFFIX,
    Checkpoint,
    encode_checkpoint,
    write_checkpoint,
)
from shoal.errors import CheckpointError, ConfigError
from shoal.v1 import policies_pb2 as pb

MAX_SNAPSHOTS: Final = 64
"""In one state_dir, so that they alone never fill a disk."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)

Ask = Callable[[Callable[[Checkpoint], object]], object]
"""Has a function called with a checkpoint, on the event loop, as soon as all is consistent."""


class Snapshots:
    """A directory of checkpoints by name; `init` of a configuration begins with one.

    snapshots = Snapshots(state.snapshots, trainer.when_at_rest)
    await snapshots.take("before-the-storm", dry_run=False)
    """

    def __init__(self, directory: Path, ask: Ask, *, max_snapshots: int = MAX_SNAPSHOTS) -> None:
        """Takes none yet.

        Args:
            directory: Of the snapshots; made when the first is taken.
            ask: See `Ask`; raises ConfigError where nothing is trained yet.
            max_snapshots: See `MAX_SNAPSHOTS`.
        """
        self._directory = directory
        self._ask = ask
        self._max_snapshots = max_snapshots
        self._taking = asyncio.Lock()

    async def take(self, name: str, *, dry_run: bool) -> pb.Snapshot:
        """Writes a checkpoint; on return it survives a power cut.

        Args:
            name: Of the file; empty: u and the updates.
            dry_run: Whether nothing is written.

        Raises:
            ConfigError: There is nothing yet, or the name is taken or none.
            CheckpointError: The disk refuses.
        """
        if name and not _NAME.fullmatch(name):
            raise ConfigError(
                f"a snapshot cannot be called {name[:80]!r}: use up to 63 letters, digits, dots, "
                "dashes and underscores, the first a letter or a digit"
            )
        async with self._taking:
            if name:
                await asyncio.to_thread(self._check, name)
            found: asyncio.Future[Checkpoint] = asyncio.get_running_loop().create_future()
            self._ask(lambda made: None if found.done() else found.set_result(made))
            checkpoint = await found
            updates = checkpoint.learner["updates"]
            name = name or f"u{updates}"
            path = self._path(name)
            size = await asyncio.to_thread(self._write, name, checkpoint, dry_run)
            return pb.Snapshot(
                name=name,
                path=str(path.absolute()),
                bytes=size,
                updates=updates,
                policy_version=checkpoint.version,
                env_id=checkpoint.spec.env_id,
            )

    def _write(self, name: str, checkpoint: Checkpoint, dry_run: bool) -> int:  # noqa: FBT001 - for a thread
        self._check(name)
        data = encode_checkpoint(checkpoint)
        if not dry_run:
            try:
                self._directory.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise CheckpointError(f"{self._directory}: {error.strerror or error}") from error
            write_checkpoint(self._path(name), data)
        return len(data)

    def _check(self, name: str) -> None:
        try:
            taken = {path.stem for path in self._directory.glob(f"*{SUFFIX}")}
        except OSError as error:
            raise CheckpointError(f"{self._directory}: {error.strerror or error}") from error
        if name in taken:
            raise ConfigError(
                f"{self._path(name)} is there already: give another name, or move it away"
            )
        if len(taken) >= self._max_snapshots:
            raise ConfigError(
                f"{self._directory} holds {len(taken)} snapshots, as many as may be: move some "
                "away, or delete them"
            )

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{SUFFIX}"
