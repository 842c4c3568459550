"""A policy version as it differs from one that the device holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shoal.delta import decode_delta, encode_delta
from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    SIGNATURE_BYTES,
    Bundle,
    Manifest,
    check_hashes,
    decode_manifest,
    encode_bundle,
)
from shoal.streams import Packer, pack_each
from shoal.tensors import Array, decode_tensors, encode_tensors, tensor_pieces
from shoal.v1 import policy_pb2 as pb
from shoal.v1 import tensor_pb2
from shoal.wire import parse, unframe
from shoal.zstd import ZstdError, compress_blocks, content_size, decompress, is_frame

DIGEST_BYTES = 32
_LEAST_BLOCK_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Base:
    """Names a policy that another is told by.

    Attributes:
        version: Its number; golden vectors hang on it.
        digest: Its manifest's `digest`, 32 bytes: graph and tensors hang on it.
    """

    version: int
    digest: bytes

    @classmethod
    def of(cls, manifest: Manifest) -> Base:
        """What names the policy of a manifest."""
        return cls(manifest.version, manifest.digest)


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a bundle holds, decoded.

    Attributes:
        tensors: Every initializer, by name.
        golden: The golden vectors, by name.
        delegation: As in the bundle.
    """

    tensors: Mapping[str, Array]
    golden: Mapping[str, Array]
    delegation: bytes = b""

    @classmethod
    def of(cls, bundle: Bundle) -> Content:
        """Decodes a bundle.

        Raises:
            WireError: It is malformed.
        """
        tensors, golden = decode_tensors(bundle.tensors), decode_tensors(bundle.golden)
        return cls(tensors, golden, bundle.delegation)


@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """A bundle that is not serialized: what is in it can be hashed without.

    Attributes:
        manifest: As in a `Bundle`.
        signature: Likewise.
        content: Nothing of it is trusted before `check_digests`.
    """

    manifest: bytes
    signature: bytes
    content: Content

    @property
    def delegation(self) -> bytes:
        """As in a `Bundle`."""
        return self.content.delegation

    def check_digests(self, manifest: Manifest) -> None:
        """Checks that it holds what its manifest names.

        Raises:
            PolicyRejected: With the reason `digest`.
        """
        check_hashes(
            manifest, tensors=_hash(self.content.tensors), golden=_hash(self.content.golden)
        )

    def bundle(self) -> bytes:
        """The serialized bundle."""
        return encode_bundle(
            Bundle(
                manifest=self.manifest,
                signature=self.signature,
                tensors=encode_tensors(self.content.tensors),
                golden=encode_tensors(self.content.golden),
                delegation=self.delegation,
            )
        )


def _hash(tensors: Mapping[str, Array]) -> bytes:
    hashed = hashlib.sha256()
    for piece in tensor_pieces(tensors):
        hashed.update(piece)
    return hashed.digest()


@dataclass(frozen=True, slots=True)
class PolicyDelta:
    """What turns the bundle of one version into that of another.

    Attributes:
        manifest: Of the version it leads to, exactly the bytes that were signed.
        signature: As in its bundle.
        base: The version it starts from.
        tensors: What `encode_delta` gave.
        golden: The same, of the golden vectors.
        delegation: As in its bundle; empty where `same_delegation` is set.
        same_delegation: Whether the delegation is the base's: it is not sent once a version.
    """

    manifest: bytes
    signature: bytes
    base: Base
    tensors: bytes
    golden: bytes
    delegation: bytes = b""
    same_delegation: bool = False

    @classmethod
    def between(cls, base: Bundle, target: Bundle, *, packer: Packer = pack_each) -> PolicyDelta:
        """Codes one version by another.

        Args:
            base: The one.
            target: The other.
            packer: How streams are written; `compress_policy_delta` wants a `LeaveRaw`.

        Raises:
            WireError: A bundle is malformed.
        """
        same = bool(target.delegation) and target.delegation == base.delegation
        return cls(
            manifest=target.manifest,
            signature=target.signature,
            base=Base.of(decode_manifest(base.manifest)),
            tensors=_between(base.tensors, target.tensors, packer),
            golden=_between(base.golden, target.golden, packer),
            delegation=b"" if same else target.delegation,
            same_delegation=same,
        )

    def unpack(self, base: Content) -> Unpacked:
        """The bundle of the version it leads to.

        It is not trusted yet, and no more than whoever sent the delta; but tensors and golden
        vectors are those that were signed if their digests are.

        Args:
            base: What the bundle of `self.base` holds.

        Raises:
            LimitExceeded: It would be larger than any policy.
            WireError: It is malformed, or not against this base.
        """
        tensors = decode_delta(base.tensors, self.tensors, max_bytes=MAX_BUNDLE_BYTES)
        golden = decode_delta(base.golden, self.golden, max_bytes=MAX_BUNDLE_BYTES)
        size = sum(array.nbytes for each in (tensors, golden) for array in each.values())
        if size > MAX_BUNDLE_BYTES:
            raise LimitExceeded(f"policy delta: {size} bytes, the limit is {MAX_BUNDLE_BYTES}")
        delegation = base.delegation if self.same_delegation else self.delegation
        return Unpacked(self.manifest, self.signature, Content(tensors, golden, delegation))

    def restore(self, base: Content) -> bytes:
        """The same, serialized; raises what `unpack` does."""
        return self.unpack(base).bundle()


def encode_policy_delta(delta: PolicyDelta) -> bytes:
    """Serializes a delta."""
    return pb.PolicyDelta(
        manifest=delta.manifest,
        signature=delta.signature,
        base_version=delta.base.version,
        base_digest=delta.base.digest,
        tensors=delta.tensors,
        golden=delta.golden,
        delegation=delta.delegation,
        same_delegation=delta.same_delegation,
    ).SerializeToString(deterministic=True)


def compress_policy_delta(delta: PolicyDelta) -> bytes:
    """Serializes a delta whose streams were left raw into one zstd frame, where that is shorter.

    Each long stream is coded by itself there, which takes fewer bytes than a frame each; and who
    reads it needs one context rather than some sixteen.
    """
    data = encode_policy_delta(delta)
    cuts, at = [0], 0
    for coded in (delta.tensors, delta.golden):
        for tensor in unframe(tensor_pb2.TensorSetDelta, coded, max_bytes=len(coded)).tensors:
            at = data.index(tensor.data, at)
            for size in tensor.stream_bytes:
                # Of what is short, several go into one block: its head takes bytes too.
                cuts += [cut for cut in (at, at + size) if cut - cuts[-1] >= _LEAST_BLOCK_BYTES]
                at += size
    frame = compress_blocks([data[start:end] for start, end in pairwise([*cuts, len(data)])])
    return frame if len(frame) < len(data) else data


def decode_policy_delta(data: bytes, *, max_bytes: int = MAX_BUNDLE_BYTES) -> PolicyDelta:
    """Reads a delta, be it compressed; nothing in it is trusted yet, and no tensor was decoded.

    Raises:
        LimitExceeded: `data`, or what a frame says that it holds, is longer than `max_bytes`.
        WireError: It is malformed.
    """
    data = _opened(data, max_bytes)
    if len(data) > max_bytes:
        raise LimitExceeded(f"policy delta: {len(data)} bytes, the limit is {max_bytes}")
    message = parse(pb.PolicyDelta, data)
    if len(message.signature) != SIGNATURE_BYTES or len(message.base_digest) != DIGEST_BYTES:
        raise WireError(
            f"policy delta: the signature must be {SIGNATURE_BYTES} bytes, the base's digest "
            f"{DIGEST_BYTES}"
        )
    return PolicyDelta(
        manifest=message.manifest,
        signature=message.signature,
        base=Base(message.base_version, message.base_digest),
        tensors=message.tensors,
        golden=message.golden,
        delegation=message.delegation,
        same_delegation=message.same_delegation,
    )


def _between(base: bytes, target: bytes, packer: Packer) -> bytes:
    return encode_delta(decode_tensors(base), decode_tensors(target), packer=packer)


def _opened(data: bytes, max_bytes: int) -> bytes:
    """What a compressed delta holds; any other as it is."""
    if not is_frame(data):
        return data
    try:
        size = content_size(data)
        if size is None or size > max_bytes:
            raise LimitExceeded(f"policy delta: {size} bytes in a frame, the limit is {max_bytes}")
        return decompress(data, size)
    except (ZstdError, MemoryError) as error:
        raise WireError(f"policy delta: cannot be decompressed ({error})") from error


def no_base(base: Base) -> PolicyRejected:
    """What a device answers that does not hold the base: the reason is `base`."""
    return PolicyRejected(
        "base",
        f"a delta starts from policy {base.version} ({base.digest.hex()[:12]}), which is not "
        "here: the whole policy is needed",
    )
