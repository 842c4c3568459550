"""A device that offers policies to its store."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.acting.actor import Actor
from edge_agent.policies import policy_files, proof
from shoal.errors import PolicyRejected

if TYPE_CHECKING:
    from edge.conftest import Counting
    from policy_publisher import Published, Publisher

    from edge_agent.environments.env import Environments

    Make = Callable[..., Environments]
from store_device import Device, accept, refuse, version_of

WAIT_S = 30.0


@pytest.fixture
def device(tmp_path: Path, publisher: Publisher) -> Iterator[Device]:
    made = Device(tmp_path / "policies", publisher)
    yield made
    made.stop()


def no_fetch(digest: bytes) -> bytes:
    raise AssertionError(f"asked for graph {digest.hex()}")


def test_an_accepted_policy_is_current_and_says_what_was_loaded(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    assert version_of(store) == 0
    published = publisher.publish(1)
    accept(store, published)
    assert store.current is not None
    assert store.current.digest == published.manifest.digest
    assert (store.swaps, len(store.swap_ms)) == (1, 1)
    assert not store.rejections


def test_versions_that_were_skipped_are_not_missed(device: Device, publisher: Publisher) -> None:
    store = device.start()
    for version in (1, 5, 6, 40):
        accept(store, publisher.publish(version))
    assert store.swaps == 4


def test_the_graph_is_fetched_once_for_all_its_versions(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    first, second = publisher.publish(1), publisher.publish(2)
    accept(store, first)
    accept(store, second)
    assert (first.fetches, second.fetches) == (1, 0)
    accept(device.start(), publisher.publish(3))
    assert second.fetches == 0


def test_more_bytes_than_the_limit_are_refused_before_they_are_read(
    device: Device, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = device.start()
    published = publisher.publish(1)
    monkeypatch.setattr(proof, "MAX_BUNDLE_BYTES", len(published.bundle) - 1)
    refuse(store, published, "size")
    assert published.fetches == 0
    monkeypatch.setattr(proof, "MAX_BUNDLE_BYTES", len(published.bundle))
    accept(store, published)


def test_a_graph_over_the_limit_is_refused(
    device: Device, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = device.start()
    published = publisher.publish(1)
    monkeypatch.setattr(policy_files, "MAX_GRAPH_BYTES", len(published.graph) - 1)
    refuse(store, published, "size")


def test_a_policy_signed_by_a_foreign_key_is_refused(
    device: Device, publisher: Publisher, foreign: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    refuse(store, foreign.publish(2), "signature")


def test_a_signature_of_another_manifest_is_refused(device: Device, publisher: Publisher) -> None:
    first, second = publisher.publish(1), publisher.publish(2)
    second.parts = dataclasses.replace(second.parts, signature=first.parts.signature)
    refuse(device.start(), second, "signature")


def test_a_signature_without_its_context_is_refused(device: Device, publisher: Publisher) -> None:
    published = publisher.publish(1)
    bare = publisher.key.sign(published.parts.manifest)
    published.parts = dataclasses.replace(published.parts, signature=bare)
    refuse(device.start(), published, "signature")


@pytest.mark.parametrize("part", ["tensors", "golden"])
def test_a_part_that_is_not_the_one_that_was_signed_is_refused(
    part: str, device: Device, publisher: Publisher
) -> None:
    published, other = publisher.publish(1), publisher.publish(2)
    published.parts = dataclasses.replace(published.parts, **{part: getattr(other.parts, part)})
    refuse(device.start(), published, "digest")


def test_a_graph_that_is_not_the_one_that_was_signed_is_refused_and_not_kept(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    published = publisher.publish(1)
    right = published.graph
    published.graph = right + b"\x00"
    refuse(store, published, "digest")
    published.graph = right
    accept(store, published)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_mutated_bytes_are_rejected_and_nothing_else_happens(
    data: st.DataObject, device: Device, publisher: Publisher
) -> None:
    store = device.start()
    whole = bytearray(publisher.publish(1).bundle)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    with pytest.raises(PolicyRejected):
        store.offer(bytes(whole), no_fetch)
    assert version_of(store) == 0
    assert device.bundles == []


def test_a_policy_for_another_fleet_is_refused(device: Device, publisher: Publisher) -> None:
    refuse(device.start(), publisher.publish(1, fleet="lake"), "fleet")


def test_a_policy_for_other_spaces_is_refused(device: Device, publisher: Publisher) -> None:
    refuse(device.start(), publisher.publish(1, spec_fingerprint=bytes(32)), "fingerprint")


def test_an_older_version_is_refused_though_it_was_signed(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    old = publisher.publish(3)
    accept(store, old)
    accept(store, publisher.publish(7))
    refuse(store, old, "rollback")
    refuse(store, publisher.publish(6), "rollback")
    store = device.start()
    refuse(store, publisher.publish(6), "rollback")


def test_a_second_policy_of_the_same_version_is_refused(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(7))
    refuse(store, publisher.publish(7, weights=publisher.weights(seed=99)), "rollback")


def test_a_server_frozen_at_the_current_version_changes_nothing(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    published = publisher.publish(7)
    accept(store, published)
    current = store.current
    for _ in range(3):
        assert store.offer(published.bundle, no_fetch) is current
    assert (store.swaps, sum(store.rejections.values())) == (1, 0)


def test_a_rollback_is_old_tensors_under_a_new_version(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    weights = publisher.weights(seed=1)
    first = publisher.publish(1, weights=weights)
    accept(store, first)
    accept(store, publisher.publish(2))
    accept(store, publisher.publish(3, weights=weights, reason="rollback"))
    assert store.current is not None
    assert store.current.digest == first.manifest.digest


def test_a_policy_that_failed_while_acting_gives_way_to_the_one_before_for_good(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    first, second = publisher.publish(1), publisher.publish(2)
    accept(store, first)
    good = store.current
    accept(store, second)
    bad = store.current
    assert bad is not None
    assert store.condemn(bad, "non_finite") is good
    assert store.condemn(bad, "non_finite") is good, "not the one before as well"
    assert store.rejections["non_finite"] == 1
    refuse(store, second, "condemned")
    store = device.start()
    assert version_of(store) == 1
    refuse(store, second, "condemned")
    accept(store, publisher.publish(3))


def test_with_nothing_to_fall_back_to_there_is_no_policy(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    assert store.current is not None
    assert store.condemn(store.current, "non_finite") is None
    assert version_of(store) == 0
    assert version_of(device.start()) == 0


def test_a_swap_waits_for_the_next_chunk(
    device: Device,
    publisher: Publisher,
    make_copy: type[Counting],
    make_environments: Make,
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    second = publisher.publish(2)
    copy = make_copy(3)
    copy._on_step = lambda: accept(store, second) if copy.steps == 3 else None
    with make_environments(copy) as environments:
        actor = Actor(environments, run_id=bytes(16), chunk_steps=8)
        chunks = []
        for _ in range(2):
            assert store.current is not None
            chunks.append(actor.rollout(store.current))
    assert [chunk.policy_version for chunk in chunks] == [1, 2]
    for chunk, published in zip(chunks, (publisher.publish(1), second), strict=True):
        assert chunk.policy_digest == published.manifest.digest


def test_who_waits_is_woken_by_a_newer_version(device: Device, publisher: Publisher) -> None:
    store = device.start()
    assert store.wait_newer(0, timeout=0) is None
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(store.wait_newer(1, timeout=WAIT_S)))
    waiter.start()
    accept(store, publisher.publish(1))
    assert store.wait_newer(0, timeout=WAIT_S) is store.current
    accept(store, publisher.publish(2))
    waiter.join(WAIT_S)
    assert got == [store.current]


def test_who_waits_is_woken_when_the_process_stops(device: Device) -> None:
    store = device.start()
    got: list[object] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        got.append(store.wait_newer(0, timeout=WAIT_S))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert begun.wait(WAIT_S)
    while waiter.is_alive():
        store.wake()
        waiter.join(0.01)
    assert got == [None]


def test_offers_from_two_threads_leave_the_newest_current(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    offers = [publisher.publish(version) for version in range(1, 9)]

    def offer(mine: list[Published]) -> None:
        for published in mine:
            with suppress(PolicyRejected):  # where the other thread was first
                store.offer(published.bundle, published.fetch)

    threads = [threading.Thread(target=offer, args=(offers[k::2],)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert version_of(store) == 8
    assert store.swaps + store.rejections["rollback"] == 8
