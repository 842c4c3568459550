"""Fetches one published policy from a running learner, and proves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

from cloud_learner.downlink.kept_policies import KeptPolicy
from cloud_learner.downlink.published import Published, read_policy
from shoal.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    IdentityError,
    PolicyRejected,
    ShoalError,
    WireError,
)
from shoal.identity import Identity
from shoal.policy import (
    MAX_BUNDLE_BYTES,
    MAX_GRAPH_BYTES,
    Assembler,
    PayloadPart,
    decode_bundle,
    decode_manifest,
    sha256,
)
from shoal.tensors import decode_tensors
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc

_REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,
}

_ADVICE = "is --identity the operator's of its fleet?"


@dataclass(frozen=True, slots=True, eq=False)
class FetchedPolicy:
    """A version as it is published, proven, and its graphs.

    Attributes:
        published: The version.
        graph: The weightless ONNX graph.
        float_graph: Of its float twin; None where there is none.
    """

    published: Published
    graph: bytes
    float_graph: bytes | None


def fetch_policy(
    server: str, identity: Identity, *, version: int, timeout_s: float = 30.0, advice: str = _ADVICE
) -> KeptPolicy:
    """One version, ready to be run; arguments and errors are those of `fetch_published`."""
    fetched = fetch_published(server, identity, version=version, timeout_s=timeout_s, advice=advice)
    tensors = decode_tensors(decode_bundle(fetched.published.bundle).tensors)
    return KeptPolicy(fetched.published.manifest, fetched.graph, tensors, fetched.float_graph)


def fetch_published(
    server: str, identity: Identity, *, version: int, timeout_s: float = 30.0, advice: str = _ADVICE
) -> FetchedPolicy:
    """One version, its signature and every hash checked.

    Args:
        server: `host:port` of the learner.
        identity: The operator's.
        version: 0 for the newest.
        timeout_s: For all of it.
        advice: What to look at when it cannot be reached.

    Raises:
        ConnectionFailed: The learner cannot be reached, or refused us.
        DeadlineExceeded: It took too long.
        IdentityError: The identity names no fleet, or holds no key to verify policies with.
        ShoalError: There is no such version, or it is not what was signed.
    """
    if identity.policy_public_key is None:
        raise IdentityError(f"{identity.directory}: no policy.pub to verify policies with")
    pems = identity.read_pems()
    fleet = _fleet_of(identity, pems.ca)
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    with grpc.secure_channel(server, credentials, (("grpc.enable_http_proxy", 0),)) as channel:
        stub = rpc.ParameterServerStub(channel)
        try:
            asked = pb.GetPolicyRequest(fleet=fleet, version=version)
            parts = stub.GetPolicy(asked, timeout=timeout_s)
            data = _whole(parts, MAX_BUNDLE_BYTES)
            offered = decode_manifest(decode_bundle(data).manifest)
            key = Ed25519PublicKey.from_public_bytes(identity.policy_public_key)
            published = read_policy(data, key, version or offered.version)
            manifest = published.manifest
            wanted = pb.GetGraphRequest(fleet=fleet, digest=manifest.graph_digest)
            graph = _whole(stub.GetGraph(wanted, timeout=timeout_s), MAX_GRAPH_BYTES)
            float_graph = None
            if manifest.float_graph_digest:
                wanted = pb.GetGraphRequest(fleet=fleet, digest=manifest.float_graph_digest)
                float_graph = _whole(stub.GetGraph(wanted, timeout=timeout_s), MAX_GRAPH_BYTES)
        except grpc.RpcError as error:
            raise _explained(error, server, advice) from error
        except (WireError, PolicyRejected) as error:
            raise ShoalError(f"{server}: {error}") from error
    if sha256(graph) != manifest.graph_digest:
        raise ShoalError(f"{server}: the graph of policy {manifest.version} is not what was signed")
    if float_graph is not None and sha256(float_graph) != manifest.float_graph_digest:
        raise ShoalError(
            f"{server}: the float graph of policy {manifest.version} is not what was signed"
        )
    return FetchedPolicy(published, graph, float_graph)


def _whole(parts: Iterable[pb.Part], max_bytes: int) -> bytes:
    assembler = Assembler(max_bytes)
    for part in parts:
        payload = assembler.add(PayloadPart(part.total_bytes, part.offset, part.data))
        if payload is not None:
            return payload
    raise WireError("the answer ended before it was whole")


def _fleet_of(identity: Identity, ca: bytes) -> str:
    names = x509.load_pem_x509_certificate(ca).subject.get_attributes_for_oid(
        NameOID.ORGANIZATION_NAME
    )
    if len(names) != 1:
        raise IdentityError(f"{identity.directory}: the subject of ca.pem names no fleet")
    return str(names[0].value)


def _explained(error: grpc.RpcError, server: str, advice: str) -> ShoalError:
    failed = cast("grpc.Call", error)  # every error of a call is the call as well
    code, details = failed.code(), failed.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{server} did not answer in time")
    if code in _REFUSALS:
        return ConnectionFailed(
            f"cannot get a policy from {server}: is the learner running there, and {advice} "
            f"({details})"
        )
    return ShoalError(f"{server}: {details}")
