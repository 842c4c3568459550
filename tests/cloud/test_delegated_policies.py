"""A learner that signs by a delegation: its log, the relays that hold it, and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_logs import GRAPH, KEY, NOW_S, delegate, open_log, policy, publish

from cloud_learner.downlink.delegation_watch import (
    LAST_WARNING_S,
    check_signer,
    warnings_due,
    watch_delegation,
)
from cloud_learner.downlink.published import Published
from cloud_learner.downlink.signing import Signer
from cloud_learner.relay.relay_store import RelayStore
from shoal.delegation import Delegation, Purpose, sign_delegation
from shoal.errors import IdentityError, PolicyLogError, PolicyRejected
from shoal.policy import decode_bundle, encode_bundle
from shoal.v1 import device_pb2

DAY_S = 86_400


# ----------------------------------------------------------------------------------------- the log


def test_a_log_goes_on_from_the_policy_key_to_a_delegate_and_to_the_next(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        first = publish(log, 16)
    for generation in (1, 2):
        with open_log(tmp_path, delegate=delegate(generation)) as log:
            published = publish(log, 16 * (generation + 1))
            assert published.delegation == delegate(generation)[1].delegation
            assert log.newest() == published
            assert log.get(1) == first
            again = log.publish_again(1, "rollback")
            assert again.delegation == published.delegation
    with open_log(tmp_path) as log:  # back to the policy key, which is above all
        signed_by = [info.delegation and info.delegation.generation for info in log.list()]
        assert signed_by == [2, 2, 1, 1, None]
        assert log.publish_again(2, "rollback").delegation is None


def test_an_older_delegate_than_the_logs_is_refused_at_the_start(tmp_path: Path) -> None:
    with open_log(tmp_path, delegate=delegate(2)) as log:
        publish(log, 16)
    with pytest.raises(PolicyLogError, match=r"of generation 2, and this learner's is of 1.*shoal"):
        open_log(tmp_path, delegate=delegate(1))


def test_a_delegate_whose_time_is_over_publishes_nothing_and_its_policies_stay(
    tmp_path: Path,
) -> None:
    with open_log(tmp_path, delegate=delegate(1)) as log:
        published = publish(log, 16)
    with open_log(tmp_path, delegate=delegate(1, lasts_s=0)) as log:
        assert log.newest() == published
        with pytest.raises(PolicyLogError, match=r"shoal pki delegate.*restart"):
            log.publish(policy(1), graph=GRAPH, updates=32, spec_fingerprint=bytes(32))
        with pytest.raises(PolicyLogError, match="ended"):
            log.publish_again(1, "rollback")
        assert log.highest_version == 1
    with open_log(tmp_path, delegate=delegate(2)) as log:
        assert publish(log, 32).version == 2


def test_a_learner_does_not_start_with_a_delegation_that_no_device_would_accept() -> None:
    key, held = delegate(1)
    check_signer(Signer(key, held), NOW_S)
    check_signer(Signer(KEY), 0.0)
    with pytest.raises(IdentityError, match="shoal pki delegate"):
        check_signer(Signer(key, held), NOW_S + 1001.0)
    with pytest.raises(IdentityError, match="clock"):
        check_signer(Signer(key, held), NOW_S - 1.0)


# ------------------------------------------------------------------------------------------ relays


def relay(directory: Path, *, now_s: float = NOW_S) -> RelayStore:
    root = KEY.public_key().public_bytes_raw()
    return RelayStore(directory, root, "reef", keep=8, clock=lambda: now_s)


def no_graph(_: bytes) -> bytes:
    return GRAPH


def refused(store: RelayStore, data: bytes) -> str:
    before = store.newest()
    with pytest.raises(PolicyRejected) as caught:
        store.accept(data, no_graph)
    assert store.newest() == before
    return caught.value.reason


def test_a_relay_holds_to_generations_and_dates_as_a_device_does(tmp_path: Path) -> None:
    made: list[Published] = []
    for generation in (1, 2, 3):
        with open_log(tmp_path / "log", delegate=delegate(generation)) as log:
            made += [publish(log, 16), publish(log, 16)]
    with relay(tmp_path / "relay") as store:
        assert store.accept(made[0].bundle, no_graph) == made[0]
        assert store.accept(made[2].bundle, no_graph) == made[2]
        late = relay(tmp_path / "late", now_s=NOW_S + 2000.0)
        with late:
            assert refused(late, made[2].bundle) == "delegation_expired"
    with relay(tmp_path / "relay", now_s=NOW_S + 2000.0) as store:
        assert store.newest() == made[2]  # what it holds it gives on
        assert refused(store, made[3].bundle) == "delegation_expired"
        assert store.accept(made[2].bundle, no_graph) == made[2]
    with relay(tmp_path / "relay") as store:
        with open_log(tmp_path / "stolen", delegate=delegate(1), after_version=9) as thief:
            assert refused(store, publish(thief, 16).bundle) == "delegation_revoked"
        assert store.accept(made[4].bundle, no_graph) == made[4]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fleet": "pond"}, "delegation_fleet"),
        ({"purposes": frozenset({Purpose.BUNDLES})}, "delegation_purpose"),
        ({"public_key": bytes(32)}, "signature"),
    ],
)
def test_a_relay_refuses_what_a_delegate_may_not_sign(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with open_log(tmp_path / "log", delegate=delegate(1)) as log:
        bundle = decode_bundle(publish(log, 16).bundle)
    other = replace(delegate(1)[1].delegation, **changes)  # type: ignore[arg-type]
    with relay(tmp_path / "relay") as store:
        forged = replace(bundle, delegation=sign_delegation(other, KEY))
        assert refused(store, encode_bundle(forged)) == reason
        assert refused(store, encode_bundle(replace(bundle, delegation=b""))) == "signature"


# ----------------------------------------------------------------------------------------- its end


@given(st.integers(1, 10 * 365 * DAY_S), st.floats(-1.0, 2.0))
def test_warnings_grow_as_the_end_comes_and_none_is_given_early(lasts_s: int, at: float) -> None:
    delegation = Delegation("reef", bytes(32), 1, 0, lasts_s)
    now_s = at * lasts_s
    due = warnings_due(delegation, now_s)
    assert (due > 0) == (lasts_s - now_s <= lasts_s / 3)
    assert warnings_due(delegation, now_s - lasts_s / 100) <= due <= 20


def test_a_half_years_delegation_is_warned_of_two_months_before_and_then_more_often() -> None:
    delegation = Delegation("reef", bytes(32), 1, 0, 180 * DAY_S)
    left = (61, 59, 29, 14, 7, 3, 1, 0)
    due = [warnings_due(delegation, (180 - days) * DAY_S) for days in left]
    assert due == [0, 1, 2, 3, 4, 5, 6, 11]
    assert warnings_due(delegation, 180 * DAY_S - LAST_WARNING_S + 1) == 11


@dataclass
class Told:
    """What a fleet was told."""

    events: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)

    def record(
        self,
        device_id: str,
        name: str,
        message: str,
        *,
        severity: device_pb2.Severity = device_pb2.SEVERITY_WARNING,
    ) -> None:
        assert (device_id, severity) == ("learner", device_pb2.SEVERITY_WARNING)
        self.events.append(f"{name}: {message}")

    def raise_condition(self, name: str, message: str) -> None:
        self.conditions.append(f"{name}: {message}")


def test_the_fleet_is_told_once_for_each_warning_and_that_it_ended() -> None:
    delegation, told = Delegation("reef", bytes(32), 1, 0, 180 * DAY_S), Told()
    days = iter([0, 100, 130, 131, 160, 179, 180, 181])

    async def scenario() -> None:
        await watch_delegation(delegation, told, look_s=0.0, clock=lambda: next(days) * DAY_S)

    with pytest.raises(RuntimeError):  # the days are used up
        asyncio.run(scenario())
    assert len(told.events) == 4
    assert all("shoal pki delegate" in event for event in [*told.events, *told.conditions])
    assert [condition.partition(":")[0] for condition in told.conditions] == ["delegation_ended"]
