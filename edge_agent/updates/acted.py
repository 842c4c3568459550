"""How much was acted under the present policy: what says that a policy works here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.trajectory import Chunk


@dataclass(frozen=True, slots=True)
class Acting:
    """What was acted under one policy version in this run.

    Attributes:
        version: Of the policy; 0: nothing was acted.
        digest: Of the form of it that really acted, 32 bytes.
        chunks: Made under it.
        episodes: That ended under it.
    """

    version: int = 0
    digest: bytes = b""
    chunks: int = 0
    episodes: int = 0


class Acted:
    """Counts chunks and episodes of the version that acts. Written by the control thread alone.

    acted = Acted()
    act_forever(..., keep=acted.counting(way.keep))
    acted.now.episodes
    """

    def __init__(self) -> None:
        self.now = Acting()
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[], object], ...] = ()

    def counting(self, keep: Callable[[Chunk], object]) -> Callable[[Chunk], None]:
        """Does what `keep` does, and counts."""

        def both(chunk: Chunk) -> None:
            keep(chunk)
            self.note(chunk)

        return both

    def note(self, chunk: Chunk) -> None:
        """Counts a chunk."""
        before = self.now
        if before.version != chunk.policy_version or before.digest != chunk.policy_digest:
            before = Acting(chunk.policy_version, chunk.policy_digest)
        self.now = Acting(
            before.version,
            before.digest,
            before.chunks + 1,
            before.episodes + len(chunk.episodes),
        )
        for listener in self._listeners:
            listener()

    @contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Calls `listener`, from the control thread, after each chunk, within the block."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)
