"""Enrolment over real TLS: who becomes a member under which name; what a power cut leaves."""

from __future__ import annotations

import errno
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from enrolling import always_renew, certificate_of, refusal, run
from office import Office

from edge_agent.enrollment.address import Membership
from edge_agent.enrollment.enrollment import EnrollmentRefused
from shoal.durable_file import write_durably
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoalctl.pki.pki import FleetPki, Role


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
