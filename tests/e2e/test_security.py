"""Every attack is refused, counted, and seen in `shoal devices events`: one row each.

All of it real: broker, enrolment and learner are processes, attacks come over TLS, and what is seen
is what an operator's command prints.
"""

from __future__ import annotations

import hashlib
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from brokers import HOST
from bundles import CONTENTS, PUBLIC, write_bundle
from cryptography.hazmat.primitives.asymmetric import ec
from policy_attacks import POLICY_ATTACKS
from security_site import FLEET, Site, run

from edge_agent.enrollment.enrollment import signing_request
from edge_agent.enrollment.pinned_channel import PinnedChannel
from edge_agent.events import Events
from edge_agent.updates.agent_step import AgentAsked
from edge_agent.updates.update_files import UpdateFiles
from shoal.endpoint import Endpoint
from shoal.enrollment import enroll_proof, prove
from shoal.errors import BundleRefused
from shoal.identity import Identity
from shoal.topics import Topics
from shoal.v1 import device_pb2, enrollment_pb2, fleet_pb2, fleet_pb2_grpc
from shoal.v1 import parameter_server_pb2 as server_pb2
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub
from shoal.wire import frame

TOPICS = Topics(FLEET)
Attack = Callable[[Site], None]


@dataclass(frozen=True)
class Row:
    """An attack, the counter that grows, and the device that it is told about."""

    attack: Attack
    counter: str
    about: str = ""


# ---------------------------------------------------------------------------------- on the broker


def knock(name: str, identity: Callable[[Site], Path | None]) -> Attack:
    """Connects to the broker, and is not let in."""

    def attack(site: Site) -> None:
        assert not site.connect(name, identity(site), lambda client: client.subscribe("a"))

    return attack


def publish_as_another(site: Site) -> None:
    event = device_pb2.Event(device_id="pi-2", run_id=bytes(16), name="forged_by_topic")

    def publish(client: object) -> None:
        client.send(TOPICS.event("pi-2"), frame(event))  # type: ignore[attr-defined]
        client.lost.wait(1.0)  # type: ignore[attr-defined]

    site.connect("pi-1", site.identity("pi-1"), publish)
    assert not [e for e in site.events()["items"] if e["name"] == "forged_by_topic"]


def listen_to_another(site: Site) -> None:
    granted: list[bool] = []
    site.connect(
        "pi-1", site.identity("pi-1"), lambda c: granted.append(c.subscribe(TOPICS.down("pi-2")))
    )
    assert granted in ([], [False])


def speak_as_another_on_its_own_topic(site: Site) -> None:
    event = device_pb2.Event(device_id="pi-2", run_id=bytes(16), name="forged_by_name")
    site.connect(
        "pi-1", site.identity("pi-1"), lambda c: c.publish(TOPICS.event("pi-1"), frame(event))
    )
    assert not [e for e in site.events()["items"] if e["name"] == "forged_by_name"]


def revoked(site: Site, name: str) -> Path:
    site.shoal("enroll", "revoke", name, "--dir", str(site.pki.directory))
    return site.identity(name)


def revoked_at_the_broker(site: Site) -> None:
    identity = revoked(site, "pi-3")
    until_s = time.monotonic() + 60.0
    while site.connect("pi-3", identity, lambda _: None):  # within seconds
        assert time.monotonic() < until_s
    assert not site.connect("pi-3", identity, lambda _: None)  # and from then on


# ------------------------------------------------------------------------------ on the gRPC port


def shake_hands(identity: Callable[[Site], Path | None]) -> Attack:
    """Opens TLS on the learner's port; the server ends it, and nothing is answered."""

    def attack(site: Site) -> None:
        context = ssl.create_default_context(cafile=str(site.identity("pi-1") / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        mine = identity(site)
        if mine is not None:
            context.load_cert_chain(mine / "cert.pem", mine / "key.pem")
        answer = b""
        with (
            suppress(ssl.SSLError, ConnectionError),
            socket.create_connection((HOST, site.server_port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secure,
        ):
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            answer = secure.recv(100)
        assert answer == b""

    return attack


def call(
    name: str, ask: Callable[[grpc.aio.Channel], Awaitable[object]], code: grpc.StatusCode
) -> Attack:
    """Calls the learner as a member of the fleet, and is refused."""

    def attack(site: Site) -> None:
        async def scenario() -> None:
            pems = Identity.load(site.identity(name)).read_pems()
            keys = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
            own = (("grpc.use_local_subchannel_pool", 1),)
            address = f"{HOST}:{site.server_port}"
            async with grpc.aio.secure_channel(address, keys, own) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await forever(lambda: ask(channel))
                assert caught.value.code() is code

        run(scenario())

    return attack


async def forever(ask: Callable[[], Awaitable[object]]) -> None:
    """Until it is refused: the list of who was revoked is read within a second."""
    while True:
        await ask()


async def report_as_another(channel: grpc.aio.Channel) -> object:
    request = server_pb2.ReportActiveRequest(fleet=FLEET, device_id="pi-2", run_id=bytes(16))
    return await ParameterServerStub(channel).ReportActive(request, timeout=60)


async def report_as_pi_4(channel: grpc.aio.Channel) -> object:
    request = server_pb2.ReportActiveRequest(fleet=FLEET, device_id="pi-4", run_id=bytes(16))
    return await ParameterServerStub(channel).ReportActive(request, timeout=60)


async def read_the_fleet(channel: grpc.aio.Channel) -> object:
    request = fleet_pb2.ListDevicesRequest(fleet=FLEET)
    return await fleet_pb2_grpc.FleetStub(channel).ListDevices(request, timeout=60)


def revoked_at_the_learner(site: Site) -> None:
    revoked(site, "pi-4")
    call("pi-4", report_as_pi_4, grpc.StatusCode.UNAUTHENTICATED)(site)


# ---------------------------------------------------------------------------------- at enrolment


def enrol_twice(*, replayed: bool) -> Attack:
    """Sends a request again that was answered; or the same token, for another device."""

    def attack(site: Site) -> None:
        token = site.shoal("enroll", "token", "create", "--dir", str(site.pki.directory))
        names = ("pi-7", "pi-7") if replayed else ("pi-8", "pi-9")

        async def scenario() -> None:
            root = (site.pki.directory / "ca.pem").read_text()
            server = Endpoint(HOST, site.enroll_port)
            async with PinnedChannel(server, root) as channel:
                stub = EnrollmentStub(channel.grpc)
                first = await request_of(stub, names[0], token)
                assert (await stub.Enroll(first, timeout=60)).HasField("enrolled")
                again = first if replayed else await request_of(stub, names[1], token)
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Enroll(again, timeout=60)

        run(scenario())

    return attack


async def request_of(stub: EnrollmentStub, name: str, token: str) -> enrollment_pb2.EnrollRequest:
    key = ec.generate_private_key(ec.SECP256R1())
    begun = await stub.Begin(enrollment_pb2.BeginRequest(), timeout=60)
    csr = signing_request(key, name)
    proof = prove(key, enroll_proof(begun.challenge, csr, token))
    return enrollment_pb2.EnrollRequest(
        challenge=begun.challenge, csr=csr, token=token, proof=proof
    )


# ------------------------------------------------------------------- what a device is handed out


def tampered_bundle(site: Site) -> None:
    path, updates = site.directory / "agent.tar", site.directory / "updates"
    manifest = write_bundle(path, CONTENTS, arch="x86_64", version="0.2.0-1", fleet=FLEET)
    data = bytearray(path.read_bytes())
    at = data.index(CONTENTS["wheels/shoal-0.1.0-py3-none-any.whl"])
    data[at] ^= 1
    files = UpdateFiles(updates, slots=None)
    asked = asked_for(manifest.digest, bytes(data))
    files.begin(asked)
    files.part(asked).write_bytes(data)
    with pytest.raises(BundleRefused) as caught:
        files.unpack(asked, PUBLIC)
    events = Events("pi-2", random.randbytes(16), clock=time.time)
    refusal = caught.value
    events.emit(device_pb2.SEVERITY_ERROR, "bundle_refused", str(refusal), reason=refusal.reason)
    site.tell(events, "pi-2")


def asked_for(digest: str, data: bytes) -> AgentAsked:
    return AgentAsked(
        rollout_id=1,
        version="0.2.0-1",
        digest=bytes.fromhex(digest),
        bundle_bytes=len(data),
        bundle_digest=hashlib.sha256(data).digest(),
        reason="an attack",
        go_back=False,
    )


ROWS = {
    "no certificate, broker": Row(
        knock("pi-1", lambda _: None), "broker.client_refused.no_certificate"
    ),
    "foreign CA, broker": Row(
        knock("pi-1", Site.foreign), "broker.client_refused.foreign_certificate", "pi-1"
    ),
    "expired certificate, broker": Row(
        knock("pi-1", Site.expired), "broker.client_refused.certificate_dates", "pi-1"
    ),
    "revoked, broker": Row(revoked_at_the_broker, "broker.client_refused.not_admitted", "pi-3"),
    "another device's topic, publish": Row(
        publish_as_another, "broker.client_refused.topic", "pi-1"
    ),
    "another device's topic, subscribe": Row(
        listen_to_another, "broker.client_refused.topic", "pi-1"
    ),
    "another device's name on its own topic": Row(
        speak_as_another_on_its_own_topic, "learner.wrong_sender", "pi-1"
    ),
    "no certificate, gRPC": Row(
        shake_hands(lambda _: None), "learner.handshake_refused.no_certificate"
    ),
    "foreign CA, gRPC": Row(
        shake_hands(Site.foreign), "learner.handshake_refused.foreign_certificate"
    ),
    "expired certificate, gRPC": Row(
        shake_hands(Site.expired), "learner.handshake_refused.certificate_dates"
    ),
    "revoked, gRPC": Row(revoked_at_the_learner, "learner.call_refused.revoked", "pi-4"),
    "another device's name, gRPC": Row(
        call("pi-1", report_as_another, grpc.StatusCode.PERMISSION_DENIED),
        "learner.call_refused.not_permitted",
        "pi-1",
    ),
    "a device that reads the fleet": Row(
        call("pi-2", read_the_fleet, grpc.StatusCode.PERMISSION_DENIED),
        "learner.call_refused.not_permitted",
        "pi-2",
    ),
    "a replayed enrolment": Row(enrol_twice(replayed=True), "enrollment.refused.challenge"),
    "a used token": Row(enrol_twice(replayed=False), "enrollment.refused.token_used", "pi-9"),
    **{
        name: Row(attack, f"device.policy_rejected.{reason}", "pi-1")
        for name, (attack, reason) in POLICY_ATTACKS.items()
    },
    "a tampered bundle": Row(tampered_bundle, "device.bundle_refused.digest", "pi-2"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site.open(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.mark.timeout(400)
@pytest.mark.parametrize("attack", ROWS)
def test_an_attack_is_refused_counted_and_seen(attack: str, site: Site) -> None:
    row = ROWS[attack]
    before = site.count(row.counter)
    row.attack(site)
    site.wait_for(row.counter, more_than=before)
    seen = site.wait_to_see(row.counter.partition(".")[2], row.about)
    assert {item["source"] for item in seen} == {row.counter.partition(".")[0]}
    assert all(item["severity"] in {"warning", "error"} for item in seen)
