"""The rules of enrolment that need no network: tokens, challenges, the database."""

from __future__ import annotations

import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoalctl.enrollment.challenges import LIFETIME_S, MAX_ADDRESSES, MAX_OPEN, Challenges, Throttle
from shoalctl.enrollment.cli import parse_duration
from shoalctl.enrollment.refusal import EnrollmentRefused, Reason
from shoalctl.enrollment.store import MAX_EVENTS, EnrollmentStore, RequestRecord
from shoalctl.enrollment.tokens import TokenRecord, judge_token, new_token, parse_token

NOW_S = 1_000_000.0


class Ticking:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(name: str = "0badcafe", digest: bytes = b"", **changes: object) -> TokenRecord:
    good = TokenRecord(name, digest, None, 1, 0, NOW_S, NOW_S + 60.0, revoked=False, replace=False)
    return replace(good, **changes)  # type: ignore[arg-type]


def test_a_token_is_read_as_it_was_written_and_no_two_are_alike() -> None:
    tokens = [new_token() for _ in range(100)]
    assert [parse_token(each.text) for each in tokens] == tokens
    assert len({each.secret for each in tokens}) == 100


@given(st.text(max_size=200))
def test_what_is_no_token_is_never_read_as_one(text: str) -> None:
    found = parse_token(text)
    assert found is None or found.text == text.strip()


@given(
    uses=st.integers(1, 5),
    used=st.integers(0, 5),
    revoked=st.booleans(),
    now_s=st.floats(NOW_S, NOW_S + 120.0),
    named=st.none() | st.sampled_from(["pi-1", "pi-2"]),
    right=st.booleans(),
)
def test_a_token_is_good_only_if_everything_about_it_is(
    *, uses: int, used: int, revoked: bool, now_s: float, named: str | None, right: bool
) -> None:
    token = new_token()
    known = record(
        token.id,
        token.digest if right else b"another",
        uses=uses,
        used=used,
        revoked=revoked,
        device_id=named,
    )
    good = right and used < uses and not revoked and now_s < known.expires_s and named != "pi-2"
    if good:
        assert judge_token(token, known, "pi-1", now_s=now_s) == known
    else:
        with pytest.raises(EnrollmentRefused) as caught:
            judge_token(token, known, "pi-1", now_s=now_s)
        assert token.secret not in str(caught.value)
        assert right or caught.value.reason is Reason.TOKEN_UNKNOWN


def test_a_challenge_is_good_once_and_for_a_minute() -> None:
    clock = Ticking()
    challenges = Challenges(clock=clock)
    first, second = challenges.issue(), challenges.issue()
    assert challenges.redeem(first)
    assert not challenges.redeem(first)
    clock.now_s = LIFETIME_S + 1.0
    assert not challenges.redeem(second)
    assert not challenges.redeem(bytes(32))


def test_open_challenges_are_bounded_and_the_oldest_goes() -> None:
    challenges = Challenges(clock=Ticking())
    oldest = challenges.issue()
    newer = [challenges.issue() for _ in range(MAX_OPEN)]
    assert not challenges.redeem(oldest)
    assert challenges.redeem(newer[0])


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=200))
def test_an_address_never_gets_more_than_its_burst_and_its_rate(pauses: list[float]) -> None:
    clock = Ticking()
    throttle = Throttle(per_minute=30.0, burst=5, clock=clock)
    admitted = 0
    for pause_s in pauses:
        clock.now_s += pause_s
        admitted += throttle.admit("10.0.0.7")
    assert 1 <= admitted <= 5 + clock.now_s * 0.5 + 1e-6


def test_one_address_does_not_slow_another_and_few_are_remembered() -> None:
    throttle = Throttle(per_minute=1.0, burst=1, clock=Ticking())
    assert throttle.admit("10.0.0.7")
    assert not throttle.admit("10.0.0.7")
    assert throttle.admit("10.0.0.8")
    for number in range(MAX_ADDRESSES + 10):
        throttle.admit(f"address-{number}")
    assert len(throttle._buckets) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("text", "expected"), [("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("7d", 604_800.0)]
)
def test_a_length_of_time_is_read(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "h", "1", "0h", "-1h", "1.5h", "1w", "one hour", "²h"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--ttl"):
        parse_duration(text)


# ------------------------------------------------------------------------------------ the database


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "enrollment.sqlite"
    request = RequestRecord("pi-2", b"key", "10.0.0.7", NOW_S, "pending")
    with EnrollmentStore(path) as store:
        store.add_token(record(device_id="pi-1", replace=True))
        store.put_device("pi-1", b"key", now_s=NOW_S, by="token 0badcafe")
        store.add_certificate(2**159 + 1, "pi-1", issued_s=NOW_S, expires_s=NOW_S + 9.0)
        store.put_request(request)
        store.add_event(
            "refused", "no", severity="warning", device_id="pi-3", now_s=NOW_S, reason="proof"
        )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with EnrollmentStore(path) as store:
        assert store.tokens() == [record(device_id="pi-1", replace=True)]
        device = store.device("pi-1")
        assert device is not None
        assert (device.expires_s, device.revoked_s) == (NOW_S + 9.0, None)
        assert store.requests() == [request]
        (event,) = store.events(device_id="pi-3")
        assert (event.name, event.fields) == ("refused", {"reason": "proof"})
        assert store.counters() == {"refused.proof": 1}
        assert store.revoke_certificates("pi-1", now_s=NOW_S) == 1
        assert store.revoked() == {2**159 + 1: NOW_S}


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with EnrollmentStore(tmp_path / "db") as store:
        store.add_token(record())

        def fail() -> None:
            with store.transaction():
                store.use_token("0badcafe")
                store.put_device("pi-1", b"key", now_s=NOW_S, by="token")
                raise EnrollmentRefused(Reason.PROOF, "no")

        with pytest.raises(EnrollmentRefused):
            fail()
        assert store.tokens()[0].used == 0
        assert store.devices() == []


def test_a_token_is_never_used_more_often_than_it_may_be_however_many_ask_at_once(
    tmp_path: Path,
) -> None:
    path, token = tmp_path / "db", new_token()
    granted: list[str] = []
    with EnrollmentStore(path) as store:
        store.add_token(record(token.id, token.digest, uses=3))

    def ask(name: str) -> None:
        with EnrollmentStore(path) as mine:  # a connection of its own, as another process has
            try:
                with mine.transaction():
                    judge_token(token, mine.token(token.id), name, now_s=NOW_S)
                    mine.use_token(token.id)
            except EnrollmentRefused:
                return
            granted.append(name)

    threads = [threading.Thread(target=ask, args=(f"pi-{number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 3
    with EnrollmentStore(path) as store:
        assert store.tokens()[0].used == 3


def test_events_are_bounded_and_counters_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoalctl.enrollment.store.MAX_EVENTS", 5)
    assert MAX_EVENTS > 5
    with EnrollmentStore(tmp_path / "db") as store:
        for number in range(8):
            store.add_event(
                "refused", f"{number}", severity="warning", device_id="", now_s=NOW_S, reason="rate"
            )
        assert [each.message for each in store.events()] == ["7", "6", "5", "4", "3"]
        assert store.counters() == {"refused.rate": 8}


def test_what_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"something else entirely" * 100)
    with pytest.raises(ConfigError, match="can't open"):
        EnrollmentStore(tmp_path / "db")
