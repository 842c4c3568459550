"""Enrolment on the device: makes its key, trades a token for a certificate, and renews it.

The key is made here and never leaves. Until the answer came it waits in a directory beside the
identity's, so that a device that lost power, or the answer, asks again with the same key.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_agent.enrollment.address import Membership
from edge_agent.enrollment.pending_identity import (
    install,
    pending_directory,
    pending_key,
    private_key,
)
from edge_agent.enrollment.pinned_channel import PinnedChannel, fetch_root
from shoal.durable_file import write_durably
from shoal.endpoint import Endpoint
from shoal.enrollment import MAX_CHAIN_BYTES, enroll_proof, key_digest, prove, renew_proof
from shoal.errors import ConnectionFailed, DeadlineExceeded, IdentityError
from shoal.identity import CERT_FILE, KEY_FILE, PUBLIC_KEY_BYTES, Identity
from shoal.services import backoff
from shoal.topics import check_device_id
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub

CALL_TIMEOUT_S: Final = 20.0
BACKOFF_BASE_S: Final = 1.0
BACKOFF_CAP_S: Final = 60.0
MAX_RETRY_AFTER_S: Final = 300
_PUBLIC: Final = 0o644
_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,  # the challenge got too old: begin again
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)


class EnrollmentRefused(IdentityError):
    """The fleet said no, and will say so again."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a device is given to become a member of a fleet; none of it is a secret of the fleet.

    Attributes:
        device_id: The name it asks for.
        server: Where the enrolment service is.
        fingerprint: The sha256 of the fleet's CA, hexadecimal.
        token: Empty if an operator approves.
        identity: The directory that is made.
    """

    device_id: str
    server: Endpoint
    fingerprint: str
    token: str
    identity: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """A new certificate, and what time it is for the server.

    Attributes:
        enrolled: What came; None while an operator has to decide.
        skew_s: How far the server's clock is ahead of this device's, seconds.
        retry_after_s: When to ask again, if an operator has to decide.
    """

    enrolled: pb.Enrolled | None
    skew_s: float
    retry_after_s: int = 0


async def enroll(
    seed: Seed,
    *,
    wait_s: float,
    tell: Callable[[str], object],
    clock: Callable[[], float] = time.time,
    rng: random.Random | None = None,
) -> Membership:
    """Makes this device a member of a fleet; does nothing if it is one already.

    Args:
        seed: What it was given.
        wait_s: How long to keep trying: for the network, or for an operator.
        tell: Told in one line what is waited for, whenever that changes.
        clock: Wall clock, Unix seconds.
        rng: Of the jitter between attempts.

    Raises:
        IdentityError: The server is not the fleet's, or it refuses this device.
        ConnectionFailed: It could not be reached in time.
        DeadlineExceeded: No operator approved in time.
    """
    check_device_id(seed.device_id)
    if (seed.identity / CERT_FILE).exists():
        return _known(seed)
    key = await asyncio.to_thread(pending_key, pending_directory(seed.identity))
    rng, attempt, told = rng or random.Random(), 0, ""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            root = await asyncio.to_thread(fetch_root, seed.server, seed.fingerprint)
            answer = await _ask(seed, key, root, clock=clock)
        except ConnectionFailed as error:
            pause_s = backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=rng)
            attempt += 1
            failure: ConnectionFailed | DeadlineExceeded = error
            waits_for = str(error)
        else:
            if answer.enrolled is not None:
                membership = check_answer(answer.enrolled, key.public_key(), root, seed.device_id)
                if not membership.enrollment:
                    membership = replace(membership, enrollment=str(seed.server))
                await asyncio.to_thread(install, seed.identity, answer.enrolled, membership, root)
                return membership
            pause_s = float(answer.retry_after_s)
            failure = DeadlineExceeded(
                f"no operator approved {seed.device_id} within {wait_s:g} s: "
                f"`shoal enroll approve {seed.device_id}`, then try again"
            )
            shown = key_digest(key.public_key()).hex()[:16]
            waits_for = (
                f"waiting for an operator: `shoal enroll approve {seed.device_id}`, if "
                f"`shoal enroll requests` shows the key {shown}"
            )
        if waits_for != told:
            told = waits_for
            tell(told)
        if time.monotonic() + pause_s >= deadline_s:
            raise failure
        await asyncio.sleep(pause_s)


async def renew(
    identity: Identity,
    server: Endpoint,
    *,
    clock: Callable[[], float],
    due: Callable[[float], bool],
) -> Answer:
    """Asks for a certificate that ends later, for the same key, and puts it in place.

    The file is replaced as a whole: a power cut leaves the old certificate or the new one.

    Args:
        identity: Of this device.
        server: Where the enrolment service is.
        clock: Wall clock, Unix seconds.
        due: Whether to renew at a time of the server's, Unix seconds; if not, only that is asked.

    Returns:
        What came; nothing if it was not due.

    Raises:
        EnrollmentRefused: This device is no member any more.
        ConnectionFailed: The server can't be reached, or not now.
        IdentityError: A file of the identity can't be read, or the answer is not for it.
    """
    pems = identity.read_pems()
    certificate = x509.load_pem_x509_certificate(pems.cert)
    der = certificate.public_bytes(serialization.Encoding.DER)
    key = private_key(pems.key, identity.directory / KEY_FILE)
    root = pems.ca.decode("ascii")
    async with PinnedChannel(server, root) as channel:
        stub = EnrollmentStub(channel.grpc)
        begun = await _call(channel, server, stub.Begin, pb.BeginRequest())
        now_s = begun.server_unix_ms / 1000
        skew_s = now_s - clock()
        if not due(now_s):
            return Answer(None, skew_s)
        request = pb.RenewRequest(
            challenge=begun.challenge,
            certificate=der,
            proof=prove(key, renew_proof(begun.challenge, der)),
        )
        enrolled = (await _call(channel, server, stub.Renew, request)).enrolled
    check_answer(enrolled, key.public_key(), root, identity.name)
    path = identity.directory / CERT_FILE
    try:
        await asyncio.to_thread(write_durably, path, enrolled.certificate_chain, mode=_PUBLIC)
    except OSError as error:
        raise IdentityError(f"can't write {path}: {error.strerror}") from error
    return Answer(enrolled, skew_s)


async def ask_time(identity: Identity, server: Endpoint, *, timeout_s: float) -> float:
    """What time it is for the fleet, Unix seconds; whatever this device's clock says.

    Raises:
        ConnectionFailed: The server can't be reached in time.
        IdentityError: The identity can't be read.
    """
    root = identity.read_pems().ca.decode("ascii")
    try:
        async with asyncio.timeout(timeout_s), PinnedChannel(server, root) as channel:
            stub = EnrollmentStub(channel.grpc)
            begun = await _call(channel, server, stub.Begin, pb.BeginRequest())
    except TimeoutError as error:
        raise ConnectionFailed(f"enrollment server {server}: no answer") from error
    return float(begun.server_unix_ms) / 1000


def check_answer(
    enrolled: pb.Enrolled, key: ec.EllipticCurvePublicKey, root_pem: str, device_id: str
) -> Membership:
    """Checks that an answer is about this device, this key and this CA, before it is believed.

    Raises:
        IdentityError: It is not.
    """
    what = "the answer of the enrollment server"
    if len(enrolled.certificate_chain) > MAX_CHAIN_BYTES:
        raise IdentityError(f"{what} is too large: {len(enrolled.certificate_chain)} bytes")
    try:
        chain = x509.load_pem_x509_certificates(enrolled.certificate_chain)
        root = x509.load_pem_x509_certificate(root_pem.encode())
        for lower, upper in zip(chain, [*chain[1:], root], strict=True):
            lower.verify_directly_issued_by(upper)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise IdentityError(f"{what} does not chain to the fleet's CA ({error})") from error
    names = chain[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if [name.value for name in names] != [device_id] or chain[0].public_key() != key:
        raise IdentityError(f"{what} is not for {device_id} and its key")
    if len(enrolled.policy_public_key) != PUBLIC_KEY_BYTES:
        raise IdentityError(f"{what} has no key to verify policies with")
    addresses = enrolled.addresses
    return Membership(
        enrolled.fleet,
        device_id,
        addresses.broker,
        addresses.parameter_server,
        addresses.enrollment,
    )


def signing_request(key: ec.EllipticCurvePrivateKey, device_id: str) -> bytes:
    """A CSR for a name, DER."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device_id)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return csr.public_bytes(serialization.Encoding.DER)


async def _ask(
    seed: Seed, key: ec.EllipticCurvePrivateKey, root: str, *, clock: Callable[[], float]
) -> Answer:
    csr = signing_request(key, seed.device_id)
    async with PinnedChannel(seed.server, root) as channel:
        stub = EnrollmentStub(channel.grpc)
        begun = await _call(channel, seed.server, stub.Begin, pb.BeginRequest())
        request = pb.EnrollRequest(
            challenge=begun.challenge,
            csr=csr,
            token=seed.token,
            proof=prove(key, enroll_proof(begun.challenge, csr, seed.token)),
        )
        response = await _call(channel, seed.server, stub.Enroll, request)
    skew_s = begun.server_unix_ms / 1000 - clock()
    if response.HasField("enrolled"):
        return Answer(response.enrolled, skew_s)
    return Answer(None, skew_s, max(1, min(response.retry_after_s, MAX_RETRY_AFTER_S)))


async def _call(channel, server: Endpoint, method, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - stubs have no types
    try:
        return await method(request, timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        details = (error.details() or error.code().name.lower()).splitlines()[0][:300]
        where = f"enrollment server {server}"
        if error.code() in _TRANSIENT:
            raise ConnectionFailed(f"{where}: {channel.failure or details}") from error
        raise EnrollmentRefused(f"{where} refuses: {details}") from error


def _known(seed: Seed) -> Membership:
    """The membership that an identity directory holds already."""
    identity = Identity.load(seed.identity)
    if identity.name != seed.device_id:
        raise IdentityError(
            f"{seed.identity} is the identity of {identity.name}, not of {seed.device_id}: move it "
            "away to enrol anew"
        )
    return Membership.load(seed.identity) or Membership("", identity.name)
