"""Enrolment over real TLS: who becomes a member of the fleet, who does not, and what is seen."""

from __future__ import annotations

import asyncio
import errno
import json
import stat
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from office import HOST, Office

from edge_agent.enrollment.address import Endpoint, Membership
from edge_agent.enrollment.enrollment import EnrollmentRefused, enroll, renew, signing_request
from edge_agent.enrollment.pinned_channel import PinnedChannel
from shoal.durable_file import write_durably
from shoal.enrollment import enroll_proof, prove, renew_proof
from shoal.errors import ConnectionFailed, DeadlineExceeded, IdentityError
from shoal.identity import Identity
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub
from shoalctl.cli import run as command
from shoalctl.enrollment.store import APPROVED, DENIED
from shoalctl.pki import FleetPki, Role

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


def test_a_token_buys_a_certificate_for_a_key_that_never_left_the_device(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            membership = await office.enroll(tmp_path / "pi-1", token=office.token())
            assert membership == Membership(
                "reef", "pi-1", "127.0.0.1:8883", "127.0.0.1:50051", "127.0.0.1:8444"
            )
            assert Membership.load(tmp_path / "pi-1") == membership
            identity = Identity.load(tmp_path / "pi-1")
            assert identity.name == "pi-1"
            assert identity.policy_public_key == office.pki.policy_public_key
            lifetime = certificate_of(tmp_path / "pi-1").not_valid_after_utc - datetime.now(UTC)
            assert timedelta(days=29) < lifetime <= timedelta(days=30)
            assert (office.config.devices_file).read_text() == "pi-1\n"
            assert office.events() == ["enrolled"]
            held = [each.read_bytes() for each in (tmp_path / "fleet").rglob("*") if each.is_file()]
            secret = (tmp_path / "pi-1" / "key.pem").read_bytes()
            assert not any(secret in each for each in held)

    run(scenario())


def test_an_identity_is_readable_by_its_owner_only_and_nothing_else_is_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "device" / "pi-1", token=office.token())

    run(scenario())
    identity = tmp_path / "device" / "pi-1"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o700
    assert stat.S_IMODE((identity / "key.pem").stat().st_mode) == 0o600
    assert list(identity.parent.iterdir()) == [identity]


def test_a_device_that_is_enrolled_does_not_enrol_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            token = office.token(uses=2)
            first = await office.enroll(tmp_path / "pi-1", token=token)
            before = certificate_of(tmp_path / "pi-1")
            assert await office.enroll(tmp_path / "pi-1", token=token) == first
            assert certificate_of(tmp_path / "pi-1") == before
            assert office.events() == ["enrolled"]

    run(scenario())


def test_a_device_that_missed_the_answer_asks_again_with_its_key_and_the_used_token(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            token = office.token()
            await office.enroll(tmp_path / "pi-1", token=token)
            # As if power had gone before the answer was written.
            pending = tmp_path / ".pi-1.enrolling"
            (tmp_path / "pi-1").rename(pending)
            (pending / "cert.pem").unlink()
            await office.enroll(tmp_path / "pi-1", token=token)
            assert Identity.load(tmp_path / "pi-1").name == "pi-1"
            assert office.events() == ["enrolled", "enrolled_again"]
            (record,) = office.store.tokens()
            assert record.used == 1

    run(scenario())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("unknown", "token_unknown"),
        ("malformed", "token_unknown"),
        ("of another secret", "token_unknown"),
        ("used", "token_used"),
        ("expired", "token_expired"),
        ("revoked", "token_revoked"),
        ("for another device", "token_of_another"),
    ],
)
def test_a_token_that_is_not_good_is_refused_counted_and_an_event(
    tmp_path: Path, kind: str, reason: str
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            token = office.token(device="pi-2" if kind == "for another device" else None)
            match kind:
                case "unknown":
                    token = "0badcafe." + token.partition(".")[2]
                case "malformed":
                    token = "let me in"
                case "of another secret":
                    token = f"{token.partition('.')[0]}.{'A' * 43}"
                case "used":
                    await office.enroll(tmp_path / "first", token=token)
                case "expired":
                    office.clock.ahead_s = 61.0
                case "revoked":
                    office.store.revoke_token(token.partition(".")[0])
            with pytest.raises(EnrollmentRefused, match=reason):
                await office.enroll(tmp_path / "pi-1", token=token)
            assert not (tmp_path / "pi-1").exists()
            assert office.store.device("pi-1") is None
            assert office.events()[-1] == f"refused.{reason}"
            assert office.store.counters()[f"refused.{reason}"] == 1

    run(scenario())


def test_the_second_device_of_one_name_is_refused_and_its_token_is_not_used(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            token = office.token(uses=2)
            await office.enroll(tmp_path / "pi-1", token=token)
            with pytest.raises(EnrollmentRefused, match="enrolled already, with another key"):
                await office.enroll(tmp_path / "other" / "pi-1", token=token)
            assert office.events() == ["enrolled", "refused.name_taken"]
            (record,) = office.store.tokens()
            assert record.used == 1

    run(scenario())


@pytest.mark.parametrize("by_hand", ["issued", "listed"])
def test_the_name_of_a_device_that_was_made_by_hand_is_taken_too(
    tmp_path: Path, by_hand: str
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            if by_hand == "issued":
                office.pki.issue("pi-1", Role.DEVICE)
            else:
                office.config.devices_file.write_text("pi-1\n")
            with pytest.raises(EnrollmentRefused, match="enrolled already, with another key"):
                await office.enroll(tmp_path / "pi-1", token=office.token())
            token = office.token(device="pi-1", replace_it=True)
            await office.enroll(tmp_path / "pi-1", token=token)
            assert office.events() == ["refused.name_taken", "enrolled"]
            assert len(office.store.revoked()) == (by_hand == "issued")

    run(scenario())


def test_a_device_that_was_made_by_hand_can_be_revoked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            issued = certificate_of(office.pki.issue("pi-1", Role.DEVICE))
            assert office.authority.revoke("pi-1") == 1
            assert set(office.store.revoked()) == {issued.serial_number}

    run(scenario())


def test_a_token_that_may_replace_takes_a_name_and_ends_the_certificates_before(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            serial = certificate_of(tmp_path / "pi-1").serial_number
            token = office.token(device="pi-1", replace_it=True)
            await office.enroll(tmp_path / "new" / "pi-1", token=token)
            assert set(office.store.revoked()) == {serial}
            crl = x509.load_pem_x509_crl(office.config.revocation_list.read_bytes())
            assert [each.serial_number for each in crl] == [serial]
            with pytest.raises(EnrollmentRefused, match="no member"):
                await always_renew(office, tmp_path / "pi-1")
            await always_renew(office, tmp_path / "new" / "pi-1")

    run(scenario())


@pytest.mark.parametrize("name", ["learner", "operator", "broker", "server", "Pi", "a/b", "#", "+"])
def test_a_request_for_a_reserved_or_malformed_name_is_refused_whatever_the_token(
    tmp_path: Path, name: str
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            error = await refusal(office, name, office.token())
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert office.events() == ["refused.name"]
            assert office.store.tokens()[0].used == 0

    run(scenario())


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


def test_a_recorded_enrolment_is_worth_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            request = await ask(office, "pi-1", office.token(uses=5))
            assert (await send(office, request)).HasField("enrolled")
            with pytest.raises(grpc.aio.AioRpcError, match="answered before"):
                await send(office, request)
            assert office.events() == ["enrolled", "refused.challenge"]

    run(scenario())


def test_a_challenge_that_was_never_given_out_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await refusal(office, "pi-1", office.token(), challenge=bytes(32))
            assert office.events() == ["refused.challenge"]

    run(scenario())


def test_a_request_for_a_key_that_its_sender_does_not_hold_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            error = await refusal(office, "pi-1", office.token(), signer=new_key())
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert office.events() == ["refused.proof"]
            assert office.store.tokens()[0].used == 0

    run(scenario())


def test_a_token_can_not_be_taken_from_one_request_into_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            request = await ask(office, "pi-1", "")
            request.token = office.token()
            with pytest.raises(grpc.aio.AioRpcError, match="not signed by the key"):
                await send(office, request)

    run(scenario())


@pytest.mark.parametrize("csr", [b"", b"not a request", bytes(4097)])
def test_a_malformed_request_is_refused(tmp_path: Path, csr: bytes) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            error = await refusal(office, "pi-1", office.token(), csr=csr)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert office.events() == ["refused.malformed"]

    run(scenario())


def test_a_server_of_another_ca_is_told_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            seed = office.seed(tmp_path / "pi-1", token=office.token())
            wrong = replace(seed, fingerprint="0" * 64)
            with pytest.raises(IdentityError, match="fingerprint is wrong; no token was sent"):
                await enroll(wrong, wait_s=0.0, tell=lambda _line: None)
            assert office.events() == []
            # The key waits for a better seed.
            assert not (tmp_path / "pi-1").exists()
            assert (await enroll(seed, wait_s=0.0, tell=lambda _line: None)).device_id == "pi-1"

    run(scenario())


def test_a_pinned_ca_whose_server_serves_another_host_is_not_trusted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            root = (office.config.directory / "ca.pem").read_text()
            elsewhere = Endpoint("127.0.0.2", office.address.port)
            async with PinnedChannel(elsewhere, root) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await EnrollmentStub(channel.grpc).Begin(pb.BeginRequest(), timeout=20)
                assert channel.failure is not None

    run(scenario())


def test_a_server_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            seed = office.seed(tmp_path / "pi-1")
        with pytest.raises(ConnectionFailed, match="nothing listens there"):
            await enroll(seed, wait_s=0.0, tell=lambda _line: None)

    run(scenario())


def test_a_device_without_a_token_waits_until_an_operator_approves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded, match="shoal enroll approve pi-1"):
                await office.enroll(tmp_path / "pi-1")
            (request,) = office.store.requests()
            told: list[str] = []
            with pytest.raises(DeadlineExceeded):
                await enroll(office.seed(tmp_path / "pi-1"), wait_s=0.0, tell=told.append)
            assert request.key_digest.hex()[:16] in told[-1]
            assert (request.device_id, request.state, request.address) == ("pi-1", "pending", HOST)
            office.authority.decide("pi-1", APPROVED)
            await office.enroll(tmp_path / "pi-1")
            assert Identity.load(tmp_path / "pi-1").name == "pi-1"
            assert office.events() == ["requested", "approved", "enrolled"]
            assert office.store.requests() == []

    run(scenario())


def test_operators_commands_work_beside_the_running_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shoal(*arguments: str) -> str:
        assert command(["enroll", *arguments, "--dir", str(tmp_path / "fleet")]) == 0
        return capsys.readouterr().out

    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            assert "pi-1  pending" in await asyncio.to_thread(shoal, "requests")
            await asyncio.to_thread(shoal, "approve", "pi-1")
            await office.enroll(tmp_path / "pi-1")
            assert "pi-1  member  operator" in await asyncio.to_thread(shoal, "ls")
            token = (await asyncio.to_thread(shoal, "token", "create", "--ttl", "5m")).strip()
            with pytest.raises(EnrollmentRefused):
                await office.enroll(tmp_path / "other" / "pi-1", token=token)
            said = json.loads(await asyncio.to_thread(shoal, "events", "-o", "json"))
            assert said["counters"]["refused.name_taken"] == 1
            newest = said["items"][0]
            assert (newest["device_id"], newest["reason"]) == ("pi-1", "name_taken")

    run(scenario())


def test_an_approval_is_for_the_key_that_asked_and_for_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            office.authority.decide("pi-1", APPROVED)
            with pytest.raises(EnrollmentRefused, match="another device waits"):
                await office.enroll(tmp_path / "thief" / "pi-1")
            await office.enroll(tmp_path / "pi-1")
            assert office.events()[-2:] == ["refused.name_requested", "enrolled"]

    run(scenario())


def test_a_denied_device_is_turned_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            office.authority.decide("pi-1", DENIED)
            with pytest.raises(EnrollmentRefused, match="denied"):
                await office.enroll(tmp_path / "pi-1")

    run(scenario())


def test_requests_are_bounded_and_forgotten_after_a_day(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, max_requests=1)
        ) as office:
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-1")
            with pytest.raises(ConnectionFailed, match="too many devices wait"):
                await office.enroll(tmp_path / "pi-2")
            office.clock.ahead_s = 86_401.0
            with pytest.raises(DeadlineExceeded):
                await office.enroll(tmp_path / "pi-2")
            assert [each.device_id for each in office.store.requests()] == ["pi-2"]

    run(scenario())


def test_a_fleet_may_admit_nobody_without_a_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, max_requests=0)
        ) as office:
            with pytest.raises(EnrollmentRefused, match="nobody without a token"):
                await office.enroll(tmp_path / "pi-1")
            assert office.events() == ["refused.token_missing"]
            await office.enroll(tmp_path / "pi-1", token=office.token())

    run(scenario())


def test_an_address_that_asks_too_often_is_slowed_down_and_makes_no_events(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, requests_per_minute=0.001)
        ) as office:
            root = (office.config.directory / "ca.pem").read_text()
            async with PinnedChannel(office.address, root) as channel:
                stub = EnrollmentStub(channel.grpc)

                async def flood() -> None:
                    for _ in range(100):
                        await stub.Begin(pb.BeginRequest(), timeout=20)

                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await flood()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert office.events() == []

    run(scenario())


def test_a_renewal_gives_the_same_key_a_certificate_that_ends_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, certificate_lifetime_h=1.0)
        ) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            before, key = certificate_of(tmp_path / "pi-1"), device_key(tmp_path / "pi-1")
            await always_renew(office, tmp_path / "pi-1")
            after = certificate_of(tmp_path / "pi-1")
            assert after.serial_number != before.serial_number
            assert after.public_key() == before.public_key() == key.public_key()
            assert after.not_valid_after_utc >= before.not_valid_after_utc
            assert Identity.load(tmp_path / "pi-1").name == "pi-1"
            assert office.events() == ["enrolled", "renewed"]

    run(scenario())


def test_a_revoked_certificate_is_not_renewed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            assert office.authority.revoke("pi-1") == 1
            with pytest.raises(
                EnrollmentRefused, match="revoked: pi-1, with this key, is no member"
            ):
                await always_renew(office, tmp_path / "pi-1")
            assert office.config.devices_file.read_text() == ""
            assert office.events() == ["enrolled", "revoked", "refused.revoked"]

    run(scenario())


def test_a_revoked_name_is_not_given_away_by_an_ordinary_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            office.authority.revoke("pi-1")
            with pytest.raises(EnrollmentRefused, match="was revoked, with another key"):
                await office.enroll(tmp_path / "new" / "pi-1", token=office.token())
            token = office.token(device="pi-1", replace_it=True)
            await office.enroll(tmp_path / "new" / "pi-1", token=token)
            assert office.config.devices_file.read_text() == "pi-1\n"

    run(scenario())


def test_a_certificate_of_another_ca_is_not_renewed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            foreign = FleetPki.create(tmp_path / "foreign", "reef")
            identity = foreign.issue("pi-1", Role.DEVICE)
            (identity / "ca.pem").write_bytes((tmp_path / "fleet" / "ca.pem").read_bytes())
            with pytest.raises(EnrollmentRefused, match="not one of this fleet"):
                await always_renew(office, identity)
            assert office.events() == ["refused.foreign_certificate"]

    run(scenario())


def test_a_certificate_of_a_service_is_not_renewed_as_a_device(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            with pytest.raises(EnrollmentRefused, match="reserved"):
                await always_renew(office, tmp_path / "fleet" / "identities" / "operator")
            assert office.events() == ["refused.name"]

    run(scenario())


def test_a_renewal_by_another_key_than_the_certificates_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            der = certificate_of(tmp_path / "pi-1").public_bytes(serialization.Encoding.DER)
            challenge = office.challenges.issue()
            request = pb.RenewRequest(
                challenge=challenge,
                certificate=der,
                proof=prove(new_key(), renew_proof(challenge, der)),
            )
            root = (office.config.directory / "ca.pem").read_text()
            async with PinnedChannel(office.address, root) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="not signed by the key"):
                    await EnrollmentStub(channel.grpc).Renew(request, timeout=20)
            assert office.events()[-1] == "refused.proof"

    run(scenario())


def test_a_device_that_slept_through_its_certificate_renews_it_within_the_grace(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Office.open(
            tmp_path / "fleet",
            change=lambda config: replace(config, certificate_lifetime_h=1.0, renewal_grace_h=24.0),
        ) as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            office.clock.ahead_s = 20 * 3600.0
            await always_renew(office, tmp_path / "pi-1")
            office.clock.ahead_s = 50 * 3600.0
            with pytest.raises(EnrollmentRefused, match="--replace"):
                await always_renew(office, tmp_path / "pi-1")
            assert office.events()[-1] == "refused.expired"

    run(scenario())


def test_a_certificate_from_elsewhere_is_adopted_when_it_is_renewed_and_can_be_revoked(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            identity = office.pki.issue("pi-9", Role.DEVICE)
            await always_renew(office, identity)
            assert office.authority.revoke("pi-9") == 2

    run(scenario())


def test_what_a_crash_left_undone_is_done_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            await office.enroll(tmp_path / "pi-2", token=office.token())
            office.authority.revoke("pi-2")
            office.config.devices_file.write_text("pi-2\nby-hand\n")
            office.config.revocation_list.write_bytes(b"")
            office.authority.reconcile()
            assert office.config.devices_file.read_text() == "by-hand\npi-1\n"
            crl = x509.load_pem_x509_crl(office.config.revocation_list.read_bytes())
            assert [each.serial_number for each in crl] == [
                certificate_of(tmp_path / "pi-2").serial_number
            ]

    run(scenario())


def test_enrolment_works_though_the_devices_clock_is_wrong(tmp_path: Path) -> None:
    """The server's certificate is not valid yet by the device's clock: that is a year behind."""

    async def scenario() -> None:
        future = datetime.now(UTC) + timedelta(days=365)
        async with Office.open(tmp_path / "fleet") as office:
            identity = tmp_path / "future"
            pki = FleetPki.load(tmp_path / "fleet", clock=lambda: future)
            pki.issue("server", Role.SERVER, directory=identity, lifetime=timedelta(days=1))
        async with Office.open(
            tmp_path / "fleet", change=lambda config: replace(config, identity=identity)
        ) as office:
            assert (await office.enroll(tmp_path / "pi-1", token=office.token())).fleet == "reef"

    run(scenario())


@pytest.mark.parametrize("write", range(1, 5))
def test_a_power_cut_at_any_write_of_an_enrolment_is_mended_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    writes = 0

    def failing(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        nonlocal writes
        writes += 1
        if writes == write:
            path.with_name(f"{path.name}.tmp").write_bytes(data[: len(data) // 2])
            raise OSError(errno.EIO, "the power went")
        write_durably(path, data, mode=mode)

    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            token = office.token()
            monkeypatch.setattr("edge_agent.enrollment.pending_identity.write_durably", failing)
            with pytest.raises(IdentityError, match="the power went"):
                await office.enroll(tmp_path / "pi-1", token=token)
            assert not (tmp_path / "pi-1").exists()
            monkeypatch.undo()
            await office.enroll(tmp_path / "pi-1", token=token)
            assert Identity.load(tmp_path / "pi-1").name == "pi-1"
            assert not list((tmp_path / "pi-1").glob("*.tmp"))
            assert office.store.tokens()[0].used == 1

    run(scenario())


def test_a_power_cut_while_a_certificate_is_replaced_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        path.with_name(f"{path.name}.tmp").write_bytes(data[: len(data) // 2])
        raise OSError(errno.EIO, "the power went")

    async def scenario() -> None:
        async with Office.open(tmp_path / "fleet") as office:
            await office.enroll(tmp_path / "pi-1", token=office.token())
            before = certificate_of(tmp_path / "pi-1")
            monkeypatch.setattr("edge_agent.enrollment.enrollment.write_durably", failing)
            with pytest.raises(IdentityError, match="the power went"):
                await always_renew(office, tmp_path / "pi-1")
            assert certificate_of(tmp_path / "pi-1") == before
            assert Identity.load(tmp_path / "pi-1").name == "pi-1"
            monkeypatch.undo()
            await always_renew(office, tmp_path / "pi-1")
            assert certificate_of(tmp_path / "pi-1") != before

    run(scenario())
