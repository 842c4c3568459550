"""`shoal pki delegate`: the policy key signs once in a while, and lies in a safe otherwise."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloud_learner.downlink.signing import load_signer
from shoal.identity import Identity
from shoalctl.cli import run
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.delegates import DelegationOffice

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    make_fleet(tmp_path / "fleet", FleetPlan("reef"), offline=tmp_path / "safe")
    return tmp_path / "fleet"


@pytest.fixture
def delegate(fleet: Path, tmp_path: Path, capsys: Capture) -> Callable[..., dict[str, Any]]:
    """Runs the command, and returns what it printed."""

    def run_it(*arguments: str) -> dict[str, Any]:
        key = str(tmp_path / "safe" / "policy.key")
        words = ["pki", "delegate", "--dir", str(fleet), "--policy-key", key, "-o", "json"]
        capsys.readouterr()
        assert run([*words, *arguments]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["schema"] == "shoal.v1.Delegation"
        (item,) = answer["items"]
        assert isinstance(item, dict)
        return item

    return run_it


def generation_of(fleet: Path) -> int:
    """Of what the learner would sign with."""
    held = load_signer(Identity.load(fleet / "identities" / "learner"), "reef").held
    return 0 if held is None else held.delegation.generation


def test_each_delegate_is_of_the_next_generation_and_is_the_learners_alone(
    fleet: Path, delegate: Callable[..., dict[str, Any]]
) -> None:
    assert generation_of(fleet) == 1
    for generation in (2, 3):
        item = delegate("--ttl", "30d")
        assert item["generation"] == generation_of(fleet) == generation
        assert item["not_after_unix_s"] - item["not_before_unix_s"] == 30 * 86_400 + 300
        assert item["purposes"] == ["policies"]
    path = fleet / "identities" / "learner" / "delegate.key"
    assert item["file"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_safe_remembers_the_generation_though_the_learners_file_is_lost(
    fleet: Path, delegate: Callable[..., dict[str, Any]]
) -> None:
    delegate()
    (fleet / "identities" / "learner" / "delegate.key").unlink()
    assert delegate()["generation"] == 3


def test_the_learners_file_remembers_it_though_the_safe_is_an_older_copy(
    tmp_path: Path, delegate: Callable[..., dict[str, Any]]
) -> None:
    delegate()
    (tmp_path / "safe" / "policy.generation").unlink()
    assert delegate()["generation"] == 3
    assert delegate("--generation", "9")["generation"] == 9
    assert delegate()["generation"] == 10


def test_a_machine_without_the_fleet_makes_one_to_carry_over(
    fleet: Path, tmp_path: Path, capsys: Capture
) -> None:
    safe, out = tmp_path / "safe", tmp_path / "delegate.key"
    words = ["pki", "delegate", "--dir", str(safe), "--policy-key", str(safe / "policy.key")]
    assert run([*words, "--out", str(out)]) == 0
    assert "Put it into the learner's identity" in capsys.readouterr().err
    out.rename(fleet / "identities" / "learner" / "delegate.key")
    assert generation_of(fleet) == 2


def test_what_the_learner_signs_by_is_shown_without_the_safe(
    fleet: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "safe").rename(tmp_path / "away")
    assert run(["pki", "delegation", "--dir", str(fleet)]) == 0
    assert "generation 1, until 2" in capsys.readouterr().out
    assert run(["pki", "delegation", "--dir", str(fleet), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["generation"] == 1
    (fleet / "identities" / "learner" / "delegate.key").write_text("00\n00\n")
    assert run(["pki", "delegation", "--dir", str(fleet)]) == 2
    assert "shoal pki delegate" in capsys.readouterr().err


def test_a_fleet_that_signs_with_the_policy_key_can_put_it_into_a_safe_later(
    tmp_path: Path, capsys: Capture
) -> None:
    fleet, safe = tmp_path / "old", tmp_path / "later"
    make_fleet(fleet, FleetPlan("reef"))
    assert generation_of(fleet) == 0
    assert run(["pki", "delegation", "--dir", str(fleet)]) == 2
    assert "the policy key itself" in capsys.readouterr().err
    safe.mkdir()
    (fleet / "policy.key").rename(safe / "policy.key")
    words = ["pki", "delegate", "--dir", str(fleet), "--policy-key", str(safe / "policy.key")]
    assert run(words) == 0
    left = fleet / "identities" / "learner" / "policy.key"
    assert f"Then remove {left}" in capsys.readouterr().err
    left.unlink()
    assert generation_of(fleet) == 1


def test_a_learners_identity_is_made_again_with_a_delegate(
    fleet: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = ["pki", "issue", "learner", "--dir", str(fleet), "--out", str(tmp_path / "again")]
    assert run(words) == 4
    assert "--policy-key" in capsys.readouterr().err
    assert run([*words, "--policy-key", str(tmp_path / "safe" / "policy.key")]) == 0
    held = load_signer(Identity.load(tmp_path / "again"), "reef").held
    assert held is not None
    assert held.delegation.generation == 2
    assert not (tmp_path / "again" / "policy.key").exists()


@pytest.mark.parametrize(
    ("spoil", "arguments", "code", "part"),
    [
        (lambda safe: (safe / "policy.key").unlink(), (), 4, "no such file"),
        (lambda safe: (safe / "policy.key").write_text("hello"), (), 2, "not a policy key"),
        (lambda safe: (safe / "policy.key").write_text("11" * 32), (), 2, "not the policy key of"),
        (lambda safe: (safe / "policy.key").chmod(0o644), (), 2, "chmod 600"),
        (lambda safe: (safe / "policy.generation").write_text("x"), (), 4, "shoal policy show"),
        (lambda safe: None, ("--generation", "1"), 4, "1 was given out before"),
        (lambda safe: None, ("--ttl", "soon"), 4, "--ttl"),
        (lambda safe: None, ("--out", "/nowhere/delegate.key"), 4, "--out"),
    ],
)
def test_a_mistake_is_one_clear_line_and_the_learner_keeps_what_it_has(
    fleet: Path,
    tmp_path: Path,
    capsys: Capture,
    *,
    spoil: Callable[[Path], object],
    arguments: tuple[str, ...],
    code: int,
    part: str,
) -> None:
    spoil(tmp_path / "safe")
    key = str(tmp_path / "safe" / "policy.key")
    assert run(["pki", "delegate", "--dir", str(fleet), "--policy-key", key, *arguments]) == code
    said = capsys.readouterr()
    assert part in said.err
    assert said.out == ""
    assert generation_of(fleet) == 1


def test_no_delegate_is_made_whose_generation_could_not_be_noted(
    fleet: Path, tmp_path: Path, capsys: Capture
) -> None:
    safe = tmp_path / "safe"
    (safe / "policy.generation.tmp").mkdir()  # as if it were read-only, which root never sees
    words = ["pki", "delegate", "--dir", str(fleet), "--policy-key", str(safe / "policy.key")]
    assert run(words) == 4
    assert "nothing was made" in capsys.readouterr().err
    assert generation_of(fleet) == 1


def test_an_office_that_was_handed_nothing_installed_begins_at_one(tmp_path: Path) -> None:
    pki = make_fleet(tmp_path / "fleet", FleetPlan("reef"))
    key = tmp_path / "fleet" / "policy.key"
    office = DelegationOffice(key, "reef", pki.policy_public_key)
    assert office.delegate(present=tmp_path / "none").delegation.generation == 1
