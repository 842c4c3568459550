"""Where a parameter server takes versions and graphs from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from cloud_learner.downlink.published import Published
from shoal.delegation import Delegation
from shoal.policy import Manifest


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """One version that is kept.

    Attributes:
        manifest: What was signed; its `digest` names the policy.
        bundle_bytes: Size of what a device downloads.
        fp32_bytes: Size of the same weights as fp32.
        delegation: Of the key that signed; None: the policy key itself did.
    """

    manifest: Manifest
    bundle_bytes: int
    fp32_bytes: int
    delegation: Delegation | None = None

    @classmethod
    def of(cls, published: Published) -> Self:
        """What is remembered of a version."""
        size = len(published.bundle)
        return cls(published.manifest, size, published.fp32_bytes, published.delegation)

    @property
    def graphs(self) -> tuple[bytes, ...]:
        """Digests of the graphs that it names."""
        twin = self.manifest.float_graph_digest
        return (self.manifest.graph_digest, twin) if twin else (self.manifest.graph_digest,)


class PolicySource(Protocol):
    """Published versions, proven whenever they are read: the `PolicyLog`, or what a relay holds.

    `get`, `graph` and `newest` may read a disk, and are called in a thread of their own; the others
    are called on the event loop and do no I/O.
    """

    def newest(self) -> Published | None:
        """The newest valid version; None when there is none yet."""

    def get(self, version: int) -> Published | None:
        """One version; None when it is not kept or is damaged."""

    def graph(self, digest: bytes) -> bytes | None:
        """A graph by its sha256; None when no kept version uses it or it is damaged."""

    def list(self) -> tuple[PolicyInfo, ...]:
        """The versions kept, newest first."""

    @property
    def highest_version(self) -> int:
        """The highest number given out so far; 0 for none."""
