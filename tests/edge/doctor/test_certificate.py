"""A device's certificate: its chain, its use, and how long it lives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509

from edge_agent.checks.finding import Finding, Level
from edge_agent.doctor.certificate import judge_certificate
from edge_agent.enrollment.validity import Dates
from shoalctl.pki.pki import FleetPki, Role


def read(path: Path) -> Sequence[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return FleetPki.create(tmp_path / "pki", "reef").issue("pi-1", Role.DEVICE)


def judge(chain: Sequence[x509.Certificate], ca: Path, at: float, *, renews: bool) -> Finding:
    """At a part of the certificate's life."""
    dates = Dates.of(chain[0])
    now_s = dates.first_s + at * (dates.last_s - dates.first_s)
    return judge_certificate(chain, read(ca), now_s, renews=renews)


def test_a_young_certificate_of_the_fleet_is_fine(mine: Path) -> None:
    finding = judge(read(mine / "cert.pem"), mine / "ca.pem", 0.1, renews=True)
    assert finding.level is Level.OK
    assert "chains to the fleet's CA; valid until" in finding.detail


@pytest.mark.parametrize(
    ("server", "says"),
    [("it", "see whether the enrollment server answers"), ("", "nothing renews it")],
)
def test_one_that_should_have_been_renewed_says_who_should_have(
    mine: Path, server: str, says: str
) -> None:
    finding = judge(read(mine / "cert.pem"), mine / "ca.pem", 0.9, renews=bool(server))
    assert finding.level is Level.WARN
    assert says in finding.detail


@pytest.mark.parametrize("at", [-0.1, 1.1])
def test_dates_that_do_not_hold_are_left_to_the_clock(mine: Path, at: float) -> None:
    finding = judge(read(mine / "cert.pem"), mine / "ca.pem", at, renews=True)
    assert finding.level is Level.WARN
    assert "not by this device's clock: see there" in finding.detail


def test_one_of_another_fleet_is_a_fault(mine: Path, tmp_path: Path) -> None:
    other = FleetPki.create(tmp_path / "other", "reef").issue("pi-1", Role.DEVICE)
    finding = judge(read(other / "cert.pem"), mine / "ca.pem", 0.1, renews=True)
    assert (finding.level, finding.exit_code) == (Level.FAULT, 2)
    assert "they are of two fleets: enrol anew" in finding.detail


def test_a_chain_with_a_stranger_in_it_is_a_fault(mine: Path, tmp_path: Path) -> None:
    other = FleetPki.create(tmp_path / "other", "reef").issue("pi-1", Role.DEVICE)
    mixed = [read(mine / "cert.pem")[0], *read(other / "cert.pem")[1:]]
    finding = judge(mixed, other / "ca.pem", 0.1, renews=True)
    assert "did not issue one another" in finding.detail
