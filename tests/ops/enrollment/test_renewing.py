"""Renewal over real TLS: which certificates are renewed, and which are not."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import serialization
from enrolling import always_renew, certificate_of, device_key, new_key, run
from office import Office

from edge_agent.enrollment.enrollment import EnrollmentRefused
from edge_agent.enrollment.pinned_channel import PinnedChannel
from shoal.enrollment import prove, renew_proof
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoal.v1 import enrollment_pb2 as pb
from shoal.v1.enrollment_pb2_grpc import EnrollmentStub
from shoalctl.pki.pki import FleetPki, Role


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
