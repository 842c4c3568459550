"""A published policy version as a value: how one is signed, and how one is read back and proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from cloud_learner.downlink.signing import HeldDelegation
from shoal.delegation import Delegation
from shoal.errors import PolicyLogError, PolicyRejected
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    SIGNING_CONTEXT,
    Bundle,
    Golden,
    Manifest,
    check_digests,
    decode_bundle,
    encode_bundle,
    encode_golden,
    encode_manifest,
    sha256,
)
from shoal.policy_trust import prove_manifest
from shoal.tensors import Array, decode_tensors, encode_tensors

FP32_BYTES = 4
DERIVED = frozenset({"scale", "zero", "zero_point", "gain", "std", "offset"})
"""Last parts of the names of tensors that fp32 weights would not bring along."""


class QuantizedPolicy(Protocol):
    """What is published; `cloud_learner.quantization.quantize.Quantized` is one.

    It is a protocol so that the parameter server's side of the house never imports torch.
    """

    @property
    def precision(self) -> str:
        """`int8`, `int8_fp32_head` or `fp32`."""

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Every initializer of the graph, by name."""

    @property
    def golden(self) -> Golden:
        """Inputs, and the exact outputs a device must reproduce."""

    @property
    def kl_quantization(self) -> float:
        """KL(fp32 || as published), in nats."""

    @property
    def agreement(self) -> float:
        """Part of recent observations where both choose alike."""


class AskedBehaviour(Protocol):
    """What devices are asked for; `cloud_learner.algorithms.interface.Behaviour` is one."""

    @property
    def noise_correlation(self) -> float:
        """Of one step's normal noise with the next step's, 0 to 1."""

    @property
    def priority_gamma(self) -> float:
        """Discount of the TD errors that devices report; 0 asks for none."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a manifest says beside the policy itself.

    Attributes:
        fleet: The fleet it is for.
        version: Its number; versions only increase.
        updates: Optimiser updates of the weights.
        spec_fingerprint: Of the spaces it acts in, 32 bytes.
        created_unix_ms: The learner's wall clock, for people only.
        reason: Why it was published: `publish`, `resume`, `rollback`.
        noise_correlation: As the algorithm asks.
        priority_gamma: As the algorithm asks.
    """

    fleet: str
    version: int
    updates: int
    spec_fingerprint: bytes
    created_unix_ms: int
    reason: str
    noise_correlation: float = 0.0
    priority_gamma: float = 0.0


@dataclass(frozen=True, slots=True)
class Published:
    """A signed version, as devices receive it.

    Attributes:
        manifest: What was signed.
        bundle: The serialized `shoal.policy.Bundle`, ready to be sent in parts.
        fp32_bytes: Size of the same weights as fp32, for comparison.
        delegation: Of the key that signed; None: the policy key itself did.
    """

    manifest: Manifest
    bundle: bytes
    fp32_bytes: int
    delegation: Delegation | None = None

    @property
    def version(self) -> int:
        """Its number."""
        return self.manifest.version

    @property
    def digest(self) -> bytes:
        """Names graph and tensors together; a device reports it for what it loaded."""
        return self.manifest.digest


def sign_policy(
    quantized: QuantizedPolicy,
    graph: bytes,
    circumstances: Circumstances,
    key: Ed25519PrivateKey,
    *,
    float_graph: bytes | None = None,
    held: HeldDelegation | None = None,
) -> Published:
    """Makes the bundle of a version: manifest, signature, tensors and golden vectors.

    Args:
        quantized: Tensors, golden vectors and how they came to be.
        graph: The weightless graph of the tensors.
        circumstances: What the manifest says beside.
        key: Signs it.
        float_graph: Of the float twin; None: there is none.
        held: By whose leave the key signs; None: it is the policy key itself.

    Raises:
        PolicyLogError: The bundle is larger than a device accepts.
    """
    tensors = encode_tensors(quantized.tensors)
    golden = encode_golden(quantized.golden)
    manifest = Manifest(
        fleet=circumstances.fleet,
        version=circumstances.version,
        updates=circumstances.updates,
        graph_digest=sha256(graph),
        graph_bytes=len(graph),
        tensors_digest=sha256(tensors),
        tensors_bytes=len(tensors),
        golden_digest=sha256(golden),
        spec_fingerprint=circumstances.spec_fingerprint,
        precision=quantized.precision,
        created_unix_ms=circumstances.created_unix_ms,
        kl_quantization=quantized.kl_quantization,
        reason=circumstances.reason,
        noise_correlation=circumstances.noise_correlation,
        agreement=quantized.agreement,
        priority_gamma=circumstances.priority_gamma,
        float_graph_digest=b"" if float_graph is None else sha256(float_graph),
    )
    bundle = _signed(manifest, tensors, golden, key, held)
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise PolicyLogError(
            f"policy version {circumstances.version} has {len(bundle)} bytes, devices accept "
            f"{MAX_BUNDLE_BYTES}: use a smaller model"
        )
    size = fp32_bytes(quantized.tensors)
    return Published(manifest, bundle, size, None if held is None else held.delegation)


def sign_again(
    published: Published,
    circumstances: Circumstances,
    key: Ed25519PrivateKey,
    *,
    held: HeldDelegation | None = None,
) -> Published:
    """Makes the bundle of a version that has the tensors and golden vectors of an earlier one.

    Args:
        published: The earlier one.
        circumstances: Its number, when and why; of the rest the earlier one's is kept.
        key: Signs it.
        held: By whose leave, as for `sign_policy`.
    """
    manifest = replace(
        published.manifest,
        version=circumstances.version,
        created_unix_ms=circumstances.created_unix_ms,
        reason=circumstances.reason,
    )
    before = decode_bundle(published.bundle, max_bytes=MAX_BUNDLE_BYTES)
    bundle = _signed(manifest, before.tensors, before.golden, key, held)
    delegation = None if held is None else held.delegation
    return Published(manifest, bundle, published.fp32_bytes, delegation)


def _signed(
    manifest: Manifest,
    tensors: bytes,
    golden: bytes,
    key: Ed25519PrivateKey,
    held: HeldDelegation | None,
) -> bytes:
    signed = encode_manifest(manifest)
    signature = key.sign(SIGNING_CONTEXT + signed)
    delegation = b"" if held is None else held.signed
    return encode_bundle(Bundle(signed, signature, tensors, golden, delegation))


def read_policy(data: bytes, key: Ed25519PublicKey, version: int) -> Published:
    """Reads a bundle back and proves it: signature, digests, and that it is the version asked for.

    No clock is asked: a delegate's time may be over.

    Args:
        data: A serialized bundle, not trusted.
        key: The fleet's policy key: it, or a delegate of it, must have signed.
        version: Which one it has to be.

    Raises:
        WireError: The bytes are malformed.
        PolicyRejected: With the reason `signature`, `digest` or `version`, or one of those of
            `shoal.policy_trust.prove_manifest`.
    """
    bundle = decode_bundle(data, max_bytes=MAX_BUNDLE_BYTES)
    signed = prove_manifest(bundle, key)
    manifest = signed.manifest
    check_digests(manifest, bundle)
    if manifest.version != version:
        raise PolicyRejected(
            "version", f"policy {version}: its manifest says version {manifest.version}"
        )
    return Published(manifest, data, fp32_bytes(decode_tensors(bundle.tensors)), signed.delegation)


def fp32_bytes(tensors: Mapping[str, Array]) -> int:
    """Bytes of the same weights as fp32: four for each weight and bias, none for the rest.

    Weights and biases are the tensors with axes whose name (`weight.0.scale`) does not end in a
    part of `DERIVED`.
    """
    return sum(
        FP32_BYTES * array.size
        for name, array in tensors.items()
        if array.ndim and name.rpartition(".")[2] not in DERIVED
    )
