"""Whom the embedded broker turns away is said with a reason and counted."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from brokers import FLEET, Client, Nats, RefusedError, nats_broker
from hypothesis import given
from hypothesis import strategies as st

from shoal.identity import Identity
from shoal.topics import Topics
from shoalctl.broker.refusals import BrokerRefusal, read_refusal
from shoalctl.pki.pki import FleetPki, Role

TLS = "TLS handshake error: tls: "
UNVERIFIED = f"{TLS}failed to verify certificate: x509: certificate"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"10.0.0.7:45381 - mid:5 - {TLS}client didn't provide a certificate",
            BrokerRefusal("no_certificate", "10.0.0.7", ""),
        ),
        (
            f"[::1]:4 - mid:6 - {UNVERIFIED} signed by unknown authority (CN=pi-1 SHA-256: 3f31)",
            BrokerRefusal("foreign_certificate", "[::1]", "pi-1"),
        ),
        (
            f"10.0.0.7:4 - mid:7 - {UNVERIFIED} has expired or is not yet valid: (CN=pi-1 SHA-256:",
            BrokerRefusal("certificate_dates", "10.0.0.7", "pi-1"),
        ),
        (
            "10.0.0.7:4 - mid:8 - TLS handshake error: EOF",
            BrokerRefusal("tls", "10.0.0.7", ""),
        ),
        (
            '10.0.0.7:4 - mid:9 - "pi-9-44921d50" - authentication error',
            BrokerRefusal("not_admitted", "10.0.0.7", "pi-9-44921d50"),
        ),
        (
            '10.0.0.7:4 - mid:10 - "pi-1-78" - Publish Violation - Subject "shoal.v1.a.b"',
            BrokerRefusal("topic", "10.0.0.7", "pi-1-78"),
        ),
        ('10.0.0.7:4 - mid:9 - "pi-9" - unable to connect: authentication error', None),
        ("JetStream out of space", None),
        ("", None),
    ],
)
def test_a_line_of_the_log_is_understood(message: str, expected: BrokerRefusal | None) -> None:
    assert read_refusal(message) == expected


@given(st.text(max_size=200))
def test_no_line_is_too_strange(message: str) -> None:
    read_refusal(message)


def try_to(broker: Nats, name: str, identity: Path | None = None) -> None:
    context = Identity.load(identity).ssl_context() if identity else None
    with suppress(RefusedError), Client(broker, name, context=context) as client:
        topics = Topics(FLEET)
        client.publish(topics.event("pi-2"), b"spoofed")
        client.subscribe(topics.down("pi-2"))


def test_every_kind_of_refusal_is_an_event_with_a_reason_and_a_count(tmp_path: Path) -> None:
    foreign = FleetPki.create(tmp_path / "foreign", FLEET).issue("pi-1", Role.DEVICE)
    with nats_broker(tmp_path, devices=["pi-1"]) as broker:
        (foreign / "ca.pem").write_bytes((broker.pki.directory / "ca.pem").read_bytes())
        long_ago = datetime.now(UTC) - timedelta(days=60)
        expired = FleetPki.load(broker.pki.directory, clock=long_ago.astimezone).issue(
            "pi-1", Role.DEVICE, directory=tmp_path / "expired", lifetime=timedelta(days=10)
        )
        try_to(broker, "pi-1", foreign)
        try_to(broker, "pi-1", expired)
        try_to(broker, "pi-9")
        try_to(broker, "pi-9")
        try_to(broker, "pi-1")
        broker.process.wait_for_line('"reason": "topic", "address": "127.0.0.1", "count": 2')
        lines = [json.loads(line) for line in broker.process.lines if "client_refused" in line]
    counts = {(line["reason"], line["count"]) for line in lines}
    assert {
        ("foreign_certificate", 1),
        ("certificate_dates", 1),
        ("not_admitted", 1),
        ("not_admitted", 2),
        ("topic", 1),
        ("topic", 2),
    } <= counts
    assert {line["level"] for line in lines} == {"warning"}
