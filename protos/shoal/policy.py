"""Policies on the wire: manifest, bundle, golden vectors, parts, and the rules of acceptance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.tensors import Array, decode_tensors, encode_tensors
from shoal.v1 import policy_pb2 as pb
from shoal.wire import parse

MAX_BUNDLE_BYTES = 128 * 1024 * 1024
MAX_GRAPH_BYTES = 4 * 1024 * 1024
MAX_MANIFEST_BYTES = 64 * 1024
PART_BYTES = 256 * 1024
SIGNATURE_BYTES = 64
SIGNING_CONTEXT: Final = b"shoal policy manifest v1\x00"
DYNAMIC_CONTEXT: Final = b"shoal dynamic twin v1\x00"
"""Another number for another rule: `shoal.dynamic_twin` has that of this one."""
PRECISIONS: Final = ("int8", "int8_fp32_head", "fp32")
# Inputs of every policy graph: an observation of several leaves has one input for each of them,
# named by `Field.input_name(OBSERVATION)`; the state is there only where a policy has memory.
OBSERVATION, NOISE, STATE = "observation", "noise", "state"
# And its outputs; the next state is there only where the state is.
ACTION, LOG_PROB, DISTRIBUTION, NEXT_STATE = "action", "log_prob", "distribution", "next_state"

_GOLDEN: Final = {"actions", "log_probs", "noise", "observations"}
_GOLDEN_MEMORY: Final = {"next_states", "states"}


def sha256(data: bytes) -> bytes:
    """The digest by which graphs, tensors and policies are named."""
    return hashlib.sha256(data).digest()


@lru_cache(64)
def policy_digest(graph_digest: bytes, tensors_digest: bytes) -> bytes:
    """What names a policy: a hash of the two things it consists of."""
    return sha256(graph_digest + tensors_digest)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is signed about one policy version.

    Attributes:
        updates: Optimiser updates of the learner at publication.
        graph_digest: sha256 of the weightless ONNX graph.
        tensors_digest: sha256 of the serialized tensors.
        golden_digest: sha256 of the serialized golden vectors.
        spec_fingerprint: Of the spaces it acts in.
        precision: One of `PRECISIONS`.
        created_unix_ms: The learner's wall clock, for people only.
        kl_quantization: Nats, KL(fp32 || as published) on recent observations.
        reason: Why it was published: `publish`, `resume`, ...
        noise_correlation: Of a step's normal noise with the next step's, 0 to 1: `noise_block`'s.
        agreement: Part of recent observations, 0 to 1, where fp32 and as published choose alike.
        priority_gamma: Discount, 0 to 1, of the TD errors that devices report with their chunks;
            0 asks for none.
        float_graph_digest: sha256 of the graph of its float twin (`shoal.float_twin`); empty where
            there is none.
    """

    fleet: str
    version: int
    updates: int
    graph_digest: bytes
    graph_bytes: int
    tensors_digest: bytes
    tensors_bytes: int
    golden_digest: bytes
    spec_fingerprint: bytes
    precision: str
    created_unix_ms: int
    kl_quantization: float
    reason: str
    noise_correlation: float = 0.0
    agreement: float = 0.0
    priority_gamma: float = 0.0
    float_graph_digest: bytes = b""

    @property
    def digest(self) -> bytes:
        """The digest of the policy: 32 bytes."""
        return policy_digest(self.graph_digest, self.tensors_digest)

    @property
    def twin_digest(self) -> bytes:
        """The digest of its float twin: 32 bytes; empty where there is none.

        The twin's tensors follow from those that were signed, which therefore name them.
        """
        if not self.float_graph_digest:
            return b""
        return policy_digest(self.float_graph_digest, self.tensors_digest)

    @property
    def dynamic_twin_digest(self) -> bytes:
        """The digest of its dynamic twin: 32 bytes; empty where there is none."""
        if not self.float_graph_digest:
            return b""
        return policy_digest(DYNAMIC_CONTEXT + self.float_graph_digest, self.tensors_digest)

    @property
    def twin_digests(self) -> tuple[bytes, ...]:
        """Of every form but the published one in which it may act; none where it has no twins."""
        if not self.float_graph_digest:
            return ()
        return self.twin_digest, self.dynamic_twin_digest


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """Inputs, and the outputs that a session must give for them.

    Attributes:
        observations: `[M, *shape]` of the `ObservationLayout`: packed where a chunk's are.
        noise: float32 `[M, width]`.
        actions: `[M, ...]`.
        log_probs: float32 `[M]`.
        states: float32 `[M, S]`, before; None for a policy without memory.
        next_states: float32 `[M, S]`, after; None exactly when `states` is.
    """

    observations: Array
    noise: NDArray[np.float32]
    actions: Array
    log_probs: NDArray[np.float32]
    states: NDArray[np.float32] | None = None
    next_states: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """Everything of a policy version but the graph.

    Attributes:
        manifest: The serialized manifest, exactly the bytes that were signed.
        signature: Ed25519 over `SIGNING_CONTEXT + manifest`, of the policy key or a delegate.
        tensors: What `encode_tensors` gave.
        golden: What `encode_golden` gave.
        delegation: What `sign_delegation` gave, of the key that signed; empty: the policy key did.
    """

    manifest: bytes
    signature: bytes
    tensors: bytes
    golden: bytes
    delegation: bytes = b""


@dataclass(frozen=True, slots=True)
class PayloadPart:
    """A slice of a large payload; `digest` is the payload's sha256, empty where it is not told."""

    total_bytes: int
    offset: int
    data: bytes
    digest: bytes = b""


def encode_manifest(manifest: Manifest) -> bytes:
    """Serializes a manifest; these are the bytes to sign."""
    return pb.PolicyManifest(
        **{name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
    ).SerializeToString(deterministic=True)


def decode_manifest(data: bytes) -> Manifest:
    """Reads a manifest.

    Raises:
        WireError: It is malformed, or a field is out of its range.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise LimitExceeded(f"manifest: {len(data)} bytes, the limit is {MAX_MANIFEST_BYTES}")
    message = parse(pb.PolicyManifest, data)
    manifest = Manifest(**{name: getattr(message, name) for name in Manifest.__dataclass_fields__})
    for name in ("graph_digest", "tensors_digest", "golden_digest", "spec_fingerprint"):
        if len(getattr(manifest, name)) != hashlib.sha256().digest_size:
            raise WireError(f"manifest: {name} must be 32 bytes")
    if len(manifest.float_graph_digest) not in (0, hashlib.sha256().digest_size):
        raise WireError("manifest: float_graph_digest must be empty, or 32 bytes")
    if manifest.precision not in PRECISIONS:
        raise WireError(f"manifest: unknown precision {manifest.precision[:40]!r}")
    if not 1 <= manifest.version < 1 << 62 or manifest.updates >= 1 << 62:
        raise WireError("manifest: version or updates out of range")
    if not 0 <= manifest.kl_quantization < math.inf:
        raise WireError("manifest: kl_quantization must be finite, 0 or more")
    for name in ("noise_correlation", "agreement", "priority_gamma"):
        if not 0 <= getattr(manifest, name) <= 1:
            raise WireError(f"manifest: {name} must be from 0 to 1")
    return manifest


def golden_tensors(golden: Golden) -> dict[str, Array]:
    """Golden vectors by name, those that there are."""
    columns = {name: getattr(golden, name) for name in Golden.__dataclass_fields__}
    return {name: array for name, array in columns.items() if array is not None}


def encode_golden(golden: Golden) -> bytes:
    """Serializes golden vectors."""
    return encode_tensors(golden_tensors(golden))


def decode_golden(data: bytes) -> Golden:
    """Reads golden vectors.

    Raises:
        WireError: They are malformed, or do not all have the same number of rows.
    """
    return golden_of(decode_tensors(data, max_bytes=MAX_BUNDLE_BYTES))


def golden_of(tensors: Mapping[str, Array]) -> Golden:
    """Golden vectors from what `golden_tensors` gave.

    Raises:
        WireError: One is missing, unknown or of a wrong dtype, or their rows differ in number.
    """
    if set(tensors) not in (_GOLDEN, _GOLDEN | _GOLDEN_MEMORY):
        raise WireError("golden vectors: a tensor is missing or unknown")
    rows = {tensor.shape[:1] for tensor in tensors.values()}
    if len(rows) != 1 or rows & {(), (0,)}:
        raise WireError("golden vectors: the tensors must have the same number of rows, 1 or more")
    for name in {"noise", "log_probs", *_GOLDEN_MEMORY} & set(tensors):
        if tensors[name].dtype != np.float32:
            raise WireError(f"golden vectors: {name} must be float32")
    if len({tensors[name].shape for name in _GOLDEN_MEMORY & set(tensors)}) > 1:
        raise WireError("golden vectors: states and next_states must have one shape")
    return Golden(**tensors)


def encode_bundle(bundle: Bundle) -> bytes:
    """Serializes a bundle."""
    return pb.PolicyBundle(
        manifest=bundle.manifest,
        signature=bundle.signature,
        tensors=bundle.tensors,
        golden=bundle.golden,
        delegation=bundle.delegation,
    ).SerializeToString(deterministic=True)


def decode_bundle(data: bytes, *, max_bytes: int = MAX_BUNDLE_BYTES) -> Bundle:
    """Reads a bundle; nothing in it is trusted yet.

    Raises:
        LimitExceeded: `data` is longer than `max_bytes`.
        WireError: It is malformed.
    """
    if len(data) > max_bytes:
        raise LimitExceeded(f"policy: {len(data)} bytes, the limit is {max_bytes}")
    message = parse(pb.PolicyBundle, data)
    if len(message.signature) != SIGNATURE_BYTES:
        raise WireError(f"policy: the signature must be {SIGNATURE_BYTES} bytes")
    return Bundle(
        message.manifest, message.signature, message.tensors, message.golden, message.delegation
    )


def check_digests(manifest: Manifest, bundle: Bundle) -> None:
    """Checks that a bundle holds what its manifest names.

    Raises:
        PolicyRejected: With the reason `digest`.
    """
    check_hashes(manifest, tensors=sha256(bundle.tensors), golden=sha256(bundle.golden))


def check_hashes(manifest: Manifest, *, tensors: bytes, golden: bytes) -> None:
    """Checks that the serialized tensors and golden vectors, hashed, are those that were signed.

    Raises:
        PolicyRejected: With the reason `digest`.
    """
    for name, digest, signed in (
        ("tensors", tensors, manifest.tensors_digest),
        ("golden vectors", golden, manifest.golden_digest),
    ):
        if digest != signed:
            raise PolicyRejected(
                "digest", f"policy {manifest.version}: the {name} are not those that were signed"
            )


def check_manifest(manifest: Manifest, *, fleet: str, fingerprint: bytes, newest_seen: int) -> None:
    """The rules of acceptance, apart from signature and hashes.

    Args:
        manifest: What was offered, its signature already verified.
        fleet: The device's fleet.
        fingerprint: Of the device's own spaces.
        newest_seen: The highest version this device ever accepted; 0 for none.

    Raises:
        PolicyRejected: With the reason `fleet`, `fingerprint` or `rollback`.
    """
    if manifest.fleet != fleet:
        raise PolicyRejected(
            "fleet",
            f"policy {manifest.version} is for fleet {manifest.fleet[:63]!r}, "
            f"this device is in {fleet!r}",
        )
    if manifest.spec_fingerprint != fingerprint:
        raise PolicyRejected(
            "fingerprint",
            f"policy {manifest.version} acts in other spaces than this device's environment",
        )
    if manifest.version <= newest_seen:
        raise PolicyRejected(
            "rollback",
            f"policy {manifest.version} is not newer than {newest_seen}, which was accepted before",
        )


def split(data: bytes, part_bytes: int = PART_BYTES) -> Iterator[PayloadPart]:
    """Cuts a payload into parts; an empty one still gives one part."""
    for offset in range(0, max(len(data), 1), part_bytes):
        yield PayloadPart(len(data), offset, data[offset : offset + part_bytes])


class Assembler:
    """Puts the parts of one payload together again; a stream that broke off may be gone on with.

    assembler = Assembler(MAX_BUNDLE_BYTES)
    for part in stream:
        if (payload := assembler.add(part)) is not None: ...
    """

    def __init__(self, max_bytes: int) -> None:
        """Accepts payloads of at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._payload = bytearray()
        self._total = 0
        self._digest = b""

    @property
    def partial_digest(self) -> bytes:
        """The digest of the payload that was begun; empty where none was, or it was not told."""
        return self._digest if self._payload else b""

    @property
    def partial_bytes(self) -> int:
        """How much there is of that payload; 0 where its digest is not known."""
        return len(self._payload) if self._digest else 0

    def add(self, part: PayloadPart) -> bytes | None:
        """Takes the next part; a part at offset 0 starts afresh.

        Returns:
            The payload once it is complete, else None.

        Raises:
            LimitExceeded: The payload says it is larger than the limit.
            WireError: A part is missing, overlaps, goes beyond the end or is of another payload, or
                the whole is not what its digest says. Nothing is kept then.
        """
        try:
            return self._add(part)
        except WireError:
            self._begin(0, b"")
            raise

    def _add(self, part: PayloadPart) -> bytes | None:
        if part.offset == 0:
            self._begin(part.total_bytes, part.digest)
        if part.total_bytes > self._max_bytes:
            raise LimitExceeded(f"{part.total_bytes} bytes, the limit is {self._max_bytes}")
        have = len(self._payload)
        if (part.total_bytes, part.offset, part.digest) != (self._total, have, self._digest):
            raise WireError(
                f"part at {part.offset} of {part.total_bytes}: expected {have} of {self._total}"
            )
        if have + len(part.data) > self._total or (not part.data and self._total):
            raise WireError(f"part at {part.offset} is empty or goes beyond {self._total} bytes")
        self._payload += part.data
        if len(self._payload) < self._total:
            return None
        payload, digest = bytes(self._payload), self._digest
        self._begin(0, b"")
        if digest and sha256(payload) != digest:
            raise WireError("a payload is not what its digest says")
        return payload

    def _begin(self, total: int, digest: bytes) -> None:
        self._payload, self._total, self._digest = bytearray(), total, digest
