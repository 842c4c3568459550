"""Refreshes: the bytes that bring a device to the newest version, made once for all of them."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Final

from cloud_learner.downlink.policy_source import PolicySource
from cloud_learner.downlink.published import Published
from shoal.errors import PolicyLogError, WireError
from shoal.logs import get_logger
from shoal.policy import PART_BYTES, Bundle, decode_bundle, sha256, split
from shoal.policy_delta import Base, PolicyDelta, compress_policy_delta, encode_policy_delta
from shoal.streams import LeaveRaw
from shoal.v1 import parameter_server_pb2 as pb

MAX_BASES: Final = 32
"""Deltas to one version that are made, from so many bases; devices with others get it whole."""

_log = get_logger("refresh")


@dataclass(frozen=True, slots=True)
class Refresh:
    """A version as it is sent to every device that has the same base.

    Attributes:
        version: Where it leads.
        fp32_bytes: Size of the same weights as fp32.
        kind: Whether it is a delta.
        parts: The payload, cut into messages.
        digest: sha256 of the payload.
        total_bytes: Of the payload.
    """

    version: int
    fp32_bytes: int
    kind: pb.PayloadKind
    parts: tuple[pb.Part, ...]
    digest: bytes
    total_bytes: int

    @classmethod
    def of(cls, published: Published, payload: bytes, kind: pb.PayloadKind) -> Refresh:
        """Cuts a payload."""
        digest = sha256(payload)
        named = digest if len(payload) > PART_BYTES else b""
        parts = [
            pb.Part(
                version=published.version,
                total_bytes=part.total_bytes,
                offset=part.offset,
                data=part.data,
                kind=kind,
                digest=named,
            )
            for part in split(payload)
        ]
        return cls(
            published.version, published.fp32_bytes, kind, tuple(parts), digest, len(payload)
        )

    def rest(self, digest: bytes, have_bytes: int) -> tuple[pb.Part, ...]:
        """The parts that a device lacks.

        Args:
            digest: Of the payload that it has a beginning of; of another one it needs all.
            have_bytes: How much of it.
        """
        if digest != self.digest or not 0 < have_bytes < self.total_bytes:
            return self.parts
        first, cut = divmod(have_bytes, PART_BYTES)
        begun = pb.Part()
        begun.CopyFrom(self.parts[first])
        begun.offset, begun.data = have_bytes, begun.data[cut:]
        return (begun, *self.parts[first + 1 :])


class Offer:
    """One version, whole and by what it differs from others. Used from the event loop.

    offer = Offer(published, policies)
    refresh = await offer.from_base(base)
    """

    def __init__(self, published: Published, policies: PolicySource) -> None:
        """Nothing is encoded yet.

        Args:
            published: The version.
            policies: Where bases are found.
        """
        self.version = published.version
        self.digest = published.digest
        self.fp32_bytes = published.fp32_bytes
        self.whole = Refresh.of(published, published.bundle, pb.PAYLOAD_KIND_UNSPECIFIED)
        self._published = published
        self._policies = policies
        self._made: dict[tuple[Base, bool], asyncio.Future[Refresh]] = {}

    async def from_base(self, base: Base | None, *, compressed: bool = False) -> Refresh:
        """What to send to a device that has a base: made by whoever asks first, for all.

        It is whole where nothing is saved, or the base is not kept.

        Args:
            base: What the device has; None: nothing, or it takes no delta.
            compressed: Whether it takes one as a zstd frame, which is shorter and sooner read.
        """
        if base is None:
            return self.whole
        making = self._made.get((base, compressed))
        if making is None:
            if len(self._made) >= MAX_BASES:
                return self.whole
            loop = asyncio.get_running_loop()
            make = functools.partial(_make, compressed=compressed)
            making = loop.run_in_executor(None, make, self._published, self._policies, base)
            self._made[base, compressed] = making
        # Whoever waits may leave; the others go on waiting for the same one.
        made = making.result() if making.done() else await asyncio.shield(making)
        return self.whole if made.total_bytes >= self.whole.total_bytes else made


def _make(published: Published, policies: PolicySource, base: Base, *, compressed: bool) -> Refresh:
    """Encodes, in a thread of its own; whole where it cannot."""
    whole = pb.PAYLOAD_KIND_UNSPECIFIED
    try:
        kept = policies.get(base.version)
        if kept is None or kept.digest != base.digest:
            return Refresh.of(published, published.bundle, whole)
        payload = _coded(
            decode_bundle(kept.bundle), decode_bundle(published.bundle), compressed=compressed
        )
    except (PolicyLogError, WireError) as error:
        _log.error("delta_not_made", policy_version=published.version, problem=str(error))
        return Refresh.of(published, published.bundle, whole)
    return Refresh.of(published, payload, pb.PAYLOAD_KIND_DELTA)


def _coded(base: Bundle, target: Bundle, *, compressed: bool) -> bytes:
    if compressed:
        return compress_policy_delta(PolicyDelta.between(base, target, packer=LeaveRaw()))
    return encode_policy_delta(PolicyDelta.between(base, target))
