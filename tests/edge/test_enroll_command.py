"""The token on a device: read, and wiped once it was used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_agent.enrollment import enrollment
from edge_agent.enrollment.address import Membership
from edge_agent.enrollment.command import read_token, run_enroll, wipe
from shoal.endpoint import Endpoint
from shoal.errors import ConfigError, ConnectionFailed, IdentityError


def test_a_token_is_read_without_its_line_end_and_a_wiped_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0badcafe.secret\n")
    assert read_token(path) == "0badcafe.secret"
    wipe(path)
    assert not path.exists()
    assert read_token(path) == ""
    wipe(path)


def test_a_wiped_token_is_overwritten_where_it_lay(tmp_path: Path) -> None:
    path, other = tmp_path / "token", tmp_path / "the same file"
    path.write_text("0badcafe.secret")
    other.hardlink_to(path)
    wipe(path)
    assert other.read_bytes() == bytes(15)


@pytest.mark.parametrize("content", ["ü", "x" * 129])
def test_what_is_no_token_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match="token"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"server": "fleet.local"}, "--server"),
        ({"server": "fleet.local:0"}, "--server"),
        ({"ca_fingerprint": "abc"}, "fingerprint"),
        ({"name": "learner"}, "reserved"),
        ({"token": "a", "token_file": Path("b")}, "one of them"),
    ],
)
def test_a_wrong_flag_is_one_clear_error(
    tmp_path: Path, changes: dict[str, object], part: str
) -> None:
    flags: dict[str, object] = {
        "server": "127.0.0.1:1",
        "ca_fingerprint": "0" * 64,
        "identity": tmp_path / "identity",
        "name": "pi-1",
        "token": "",
        "token_file": None,
        "wait_s": 0.0,
    }
    with pytest.raises(ConfigError, match=part):
        run_enroll(**{**flags, **changes})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_is_waited_for_is_told_when_it_changes_and_not_at_each_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(["away", "away", "too many", "away", "away"])

    def fail(_server: Endpoint, _fingerprint: str) -> str:
        if (failure := next(failures, None)) is None:
            raise IdentityError("not the fleet's")
        raise ConnectionFailed(failure)

    monkeypatch.setattr(enrollment, "fetch_root", fail)
    monkeypatch.setattr(enrollment, "backoff", lambda *_given, **_more: 0.0)
    seed = enrollment.Seed(
        server=Endpoint("127.0.0.1", 1),
        fingerprint="0" * 64,
        device_id="pi-1",
        token="",
        identity=tmp_path / "identity",
    )
    told: list[str] = []
    with pytest.raises(IdentityError):
        asyncio.run(enrollment.enroll(seed, wait_s=3600.0, tell=told.append))
    assert told == ["away", "too many", "away"]


def test_a_membership_is_read_as_it_was_written(tmp_path: Path) -> None:
    membership = Membership("reef", "pi-1", enrollment="[::1]:8444")
    (tmp_path / "fleet.json").write_bytes(membership.dump())
    assert Membership.load(tmp_path) == membership


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"fleet": "reef"}', '{"what": 1}'])
def test_a_damaged_membership_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.json").write_text(text)
    with pytest.raises(IdentityError, match="damaged"):
        Membership.load(tmp_path)
    assert Membership.load(tmp_path / "nowhere") is None
