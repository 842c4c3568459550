"""Makes a whole policy of one that the device holds, and what changed since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from edge_agent.policies.policy import Policy
from shoal.errors import PolicyRejected, WireError
from shoal.policy_delta import Base, Content, Unpacked, decode_policy_delta, no_base

MENDED_BY_WHOLE: Final = frozenset({"base", "delta", "digest", "malformed", "size"})
"""Reasons of a delta's refusal that the whole policy may not share."""


class Held(Protocol):
    """What is needed of a policy store."""

    def held(self, base: Base) -> Content | None:
        """What the bundle of a version that is held has in it."""

    def refuse(self, rejected: PolicyRejected) -> None:
        """Counts a policy that was refused before it could be offered."""

    def accept(self, data: bytes | Unpacked, fetch_graph: Callable[[bytes], bytes]) -> Policy:
        """Proves a policy and makes it current, or raises PolicyRejected."""


def accept_delta(policies: Held, data: bytes, fetch_graph: Callable[[bytes], bytes]) -> Policy:
    """Proves a policy that came as a delta exactly as one that came whole, and makes it current.

    Args:
        policies: What the device holds.
        data: A serialized `PolicyDelta`, not trusted.
        fetch_graph: As for `PolicyStore.accept`.

    Raises:
        PolicyRejected: As `PolicyStore.accept`; or with the reason `base`, what it starts from is
            not here, or `delta`, it is malformed.
    """
    try:
        bundle = _whole(policies, data)
    except PolicyRejected as rejected:
        policies.refuse(rejected)
        raise
    return policies.accept(bundle, fetch_graph)


def _whole(policies: Held, data: bytes) -> Unpacked:
    try:
        delta = decode_policy_delta(data)
        base = policies.held(delta.base)
        if base is None:
            raise no_base(delta.base)
        return delta.unpack(base)
    except WireError as error:
        raise PolicyRejected("delta", f"a policy delta cannot be used: {error}") from error
