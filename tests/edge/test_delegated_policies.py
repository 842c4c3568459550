"""A device takes what a delegate of the policy key signed, as long as that key says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from brokers import free_port
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mqtt_learner import asyncs
from policy_publisher import Publisher
from policy_server import DEVICE, FLEET, device, served
from store_device import Device, accept, refuse, version_of

from shoal.delegation import Purpose
from shoal.policy import encode_bundle
from shoal.policy_delta import Base, Content, PolicyDelta
from shoalctl.pki.pki import FleetPki, Role

PUBLISHER = Publisher()


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path / "policies", PUBLISHER)
    yield made
    made.stop()


def marks(it: Device) -> list[int]:
    return [int(path.stem) for path in it.directory.glob("*/*.generation")]


def test_a_delegates_policies_are_accepted_and_outlive_its_end_and_a_restart(it: Device) -> None:
    accept(it.start(), PUBLISHER.publish(1))
    delegate = PUBLISHER.delegating(1)
    store = it.start()
    accept(store, delegate.publish(2))
    accept(store, delegate.publish(3))
    later = it.start(clock=lambda: time.time() + 1e6)
    assert version_of(later) == 3
    rejected = refuse(later, delegate.publish(4), "delegation_expired")
    assert "shoal pki delegate" in str(rejected)
    assert "set this clock" in str(rejected)
    accept(later, PUBLISHER.publish(5))  # the policy key itself needs no leave


def test_a_policy_that_was_accepted_may_come_again_though_its_delegate_ended(it: Device) -> None:
    published = PUBLISHER.delegating(1).publish(2)
    accept(it.start(), published)
    it.bundle(2).write_bytes(b"damaged")
    store = it.start(clock=lambda: time.time() + 1e6)
    assert store.current is None
    accept(store, published)


def test_a_new_generation_revokes_those_before_it_for_ever(it: Device) -> None:
    first, second = PUBLISHER.delegating(1), PUBLISHER.delegating(2)
    store = it.start()
    accept(store, first.publish(1))
    accept(store, second.publish(2))
    refuse(store, first.publish(3), "delegation_revoked")
    accept(store, PUBLISHER.publish(3))
    accept(store, PUBLISHER.publish(4))  # nothing of the second delegate is on the disk now
    refuse(it.start(), first.publish(5), "delegation_revoked")
    assert marks(it) == [2]
    accept(it.start(), second.publish(5))


def test_a_generation_is_on_disk_before_its_policy_is(it: Device) -> None:
    store = it.start()
    accept(store, PUBLISHER.delegating(1).publish(1))
    published = PUBLISHER.delegating(2).publish(2)
    store.accept(published.bundle, published.fetch)
    assert (marks(it), [int(path.name[:20]) for path in it.bundles]) == ([2], [1])


def test_a_generation_stays_though_its_policy_failed_before_it_was_on_disk(it: Device) -> None:
    first, second = PUBLISHER.delegating(1), PUBLISHER.delegating(2)
    store = it.start()
    accept(store, first.publish(1))
    published = second.publish(2)
    failing = store.accept(published.bundle, published.fetch)
    store.condemn(failing, "non_finite")
    refuse(it.start(), first.publish(3), "delegation_revoked")


def test_a_mark_that_was_removed_is_known_again_from_the_policies(it: Device) -> None:
    accept(it.start(), PUBLISHER.delegating(3).publish(1))
    for path in it.directory.glob("*/*.generation"):
        path.unlink()
    refuse(it.start(), PUBLISHER.delegating(2).publish(2), "delegation_revoked")


@pytest.mark.parametrize(
    ("publisher", "reason"),
    [
        (PUBLISHER.delegating(1, root=Ed25519PrivateKey.generate()), "delegation"),
        (PUBLISHER.delegating(1, fleet="reef"), "delegation_fleet"),
        (PUBLISHER.delegating(1, purposes=frozenset({Purpose.BUNDLES})), "delegation_purpose"),
        (PUBLISHER.delegating(1, begins_s=3600.0), "delegation_early"),
        (PUBLISHER.delegating(1, begins_s=-7200.0, lasts_s=3600.0), "delegation_expired"),
        (Publisher(delegate=(Ed25519PrivateKey.generate(), b"")), "signature"),
        (Publisher(delegate=(Ed25519PrivateKey.generate(), b"none")), "malformed"),
        (Publisher(delegate=(Ed25519PrivateKey.generate(), bytes(2000))), "size"),
    ],
)
def test_what_the_policy_key_did_not_say_is_refused_and_the_policy_stays(
    it: Device, publisher: Publisher, reason: str
) -> None:
    store = it.start()
    accept(store, PUBLISHER.publish(1))
    refuse(store, publisher.publish(2), reason)
    assert marks(it) == []


def test_a_delta_finds_the_delegation_at_its_base(it: Device) -> None:
    delegate = PUBLISHER.delegating(1)
    one, two = delegate.publish(1), delegate.publish(2)
    store = it.start()
    accept(store, one)
    held = store.held(Base.of(one.manifest))
    assert isinstance(held, Content)
    delta = PolicyDelta.between(one.parts, two.parts)
    assert delta.same_delegation
    assert delta.restore(held) == encode_bundle(two.parts)


@asyncs
async def test_a_clock_that_is_set_right_ends_the_refusal_and_it_is_told_once(
    tmp_path: Path,
) -> None:
    pki = FleetPki.create(tmp_path / "pki", FLEET)
    pki.issue("server", Role.SERVER)
    pki.issue(DEVICE, Role.DEVICE)
    publisher, port = Publisher(fleet=FLEET), free_port()
    signing = cast("Any", publisher)
    ahead_s = [1e6]

    def clock() -> float:
        return time.time() + ahead_s[0]

    async with (
        served(pki, port) as server,
        device(pki, port, tmp_path / "p", signing, clock=clock, clock_again_s=0.01) as it,
    ):
        published = publisher.delegating(1).publish(1)
        server.graphs[published.manifest.graph_digest] = published.graph
        server.push(published.bundle, 1)
        refused = await it.event("policy_rejected")
        assert refused["reason"] == "delegation_expired"
        for times in range(2, 5):  # it asks again, and is refused again
            await server.watched(times)
            server.push(published.bundle, 1)
        await server.watched(5)
        ahead_s[0] = 0.0
        server.push(published.bundle, 1)
        await it.event("policy_swapped")
        assert "policy_rejected" not in it.seen[1:]
        assert it.policies.rejections["delegation_expired"] == 4
