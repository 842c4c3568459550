"""What tests of enrolment share: keys, certificates, and requests made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from office import Office

from edge_agent.enrollment.enrollment import renew, signing_request
from edge_agent.enrollment.pinned_channel import PinnedChannel
from shoal.enrollment import enroll_proof, prove
from shoal.identity import Identity
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub

DEADLINE_S = 100.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def certificate_of(identity: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((identity / "cert.pem").read_bytes())


def device_key(identity: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key((identity / "key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


async def always_renew(office: Office, identity: Path) -> None:
    await renew(
        Identity.load(identity), office.address, clock=office.clock, due=lambda _now_s: True
    )


async def ask(
    office: Office,
    name: str,
    token: str,
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    signer: ec.EllipticCurvePrivateKey | None = None,
    csr: bytes | None = None,
    challenge: bytes | None = None,
) -> pb.EnrollRequest:
    """A request to enrol, made by hand; what is not given is as it must be."""
    key = key or new_key()
    challenge = office.challenges.issue() if challenge is None else challenge
    csr = signing_request(key, name) if csr is None else csr
    proof = prove(signer or key, enroll_proof(challenge, csr, token))
    return pb.EnrollRequest(challenge=challenge, csr=csr, token=token, proof=proof)


async def send(office: Office, request: pb.EnrollRequest) -> pb.EnrollResponse:
    root = office.config.directory / "ca.pem"
    async with PinnedChannel(office.address, root.read_text()) as channel:
        response: pb.EnrollResponse = await EnrollmentStub(channel.grpc).Enroll(request, timeout=20)
    return response


async def refusal(
    office: Office,
    name: str,
    token: str,
    **wrong: Any,  # noqa: ANN401 - as `ask` has them
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(office, await ask(office, name, token, **wrong))
    return caught.value
