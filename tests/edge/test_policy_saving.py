"""What acts is saved a moment later: what that moment may cost, and what it may not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from policy_publisher import Publisher
from store_device import Device, accept, refuse, version_of


@pytest.fixture
def device(tmp_path: Path, publisher: Publisher) -> Iterator[Device]:
    made = Device(tmp_path / "policies", publisher)
    yield made
    made.stop()


def test_a_power_cut_before_a_policy_that_acts_is_saved_leaves_the_one_before(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    second = publisher.publish(2)
    store.accept(second.bundle, second.fetch)
    assert version_of(store) == 2
    disk = device.directory.with_name("as the power cut left it")
    shutil.copytree(device.directory, disk)
    refuse(store, publisher.publish(1), "rollback")  # what acts is never gone back behind
    device.stop()
    device.directory = disk
    store = device.start()
    assert version_of(store) == 1
    assert not store.rejections
    accept(store, second)  # the server sends it again


def test_what_acts_is_saved_before_what_it_replaces_is_removed(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    for version in (1, 2):
        accept(store, publisher.publish(version))
    for version in (3, 4, 5):  # latest wins: nobody may find the time to save each
        published = publisher.publish(version)
        store.accept(published.bundle, published.fetch)
    assert [int(path.name[:20]) for path in device.bundles] == [1, 2]
    store.save()
    assert [int(path.name[:20]) for path in device.bundles] == [4, 5]
    store.save()
    current = store.current
    assert current is not None
    store.condemn(current, "non_finite")
    assert version_of(store) == 4
    assert version_of(device.start()) == 4, "what it falls back to was saved too"


def test_a_policy_that_fails_before_it_is_saved_does_not_come_back(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    second = publisher.publish(2)
    bad = store.accept(second.bundle, second.fetch)
    store.condemn(bad, "non_finite")
    store.save()
    assert [int(path.name[:20]) for path in device.bundles] == [1]
    store = device.start()
    assert version_of(store) == 1
    refuse(store, second, "condemned")


def test_a_disk_that_can_be_written_again_gets_what_it_lacks(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    (trust,) = device.directory.iterdir()
    away = trust.rename(trust.with_name("away"))
    accept(store, publisher.publish(2))
    away.rename(trust)
    assert version_of(store) == 2
    store.save()
    assert [int(path.name[:20]) for path in device.bundles] == [1, 2]


def test_a_stop_saves_what_acts(device: Device, publisher: Publisher) -> None:
    store = device.start()
    published = publisher.publish(1)
    store.accept(published.bundle, published.fetch)
    assert not device.bundles
    assert version_of(device.start()) == 1
