"""Samples of the messages by which devices get into a fleet."""

from __future__ import annotations

from google.protobuf.message import Message
from strategies import DIGEST

from shoal.v1 import enrollment_pb2


def enrollment_samples() -> dict[str, Message]:
    """Every message of the service by name."""
    addresses = enrollment_pb2.Addresses(
        broker="farm.example.org:8883",
        parameter_server="farm.example.org:50051",
        enrollment="farm.example.org:8444",
    )
    enrolled = enrollment_pb2.Enrolled(
        fleet="farm",
        device_id="pi-1",
        certificate_chain=b"the device's certificate, then the intermediate's",
        ca=b"the root's certificate",
        policy_public_key=DIGEST,
        addresses=addresses,
    )
    return {
        "BeginRequest": enrollment_pb2.BeginRequest(fleet="farm"),
        "BeginResponse": enrollment_pb2.BeginResponse(
            challenge=DIGEST, server_unix_ms=1_700_000_000_000, fleet="farm"
        ),
        "EnrollRequest": enrollment_pb2.EnrollRequest(
            challenge=DIGEST,
            csr=b"a signing request",
            token="0badcafe.secret",
            proof=b"a signature",
        ),
        "EnrollResponse": enrollment_pb2.EnrollResponse(enrolled=enrolled),
        "EnrollResponse.waiting": enrollment_pb2.EnrollResponse(retry_after_s=5),
        "RenewRequest": enrollment_pb2.RenewRequest(
            challenge=DIGEST, certificate=b"the present certificate", proof=b"a signature"
        ),
        "RenewResponse": enrollment_pb2.RenewResponse(enrolled=enrolled),
        "Enrolled": enrolled,
        "Addresses": addresses,
    }
