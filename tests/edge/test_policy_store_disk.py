"""What a policy store keeps on disk, and what it makes of it after a restart."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.errors import ConnectionFailed, ShoalError
from shoal.policy import encode_bundle
from shoal.spaces import Discrete, EnvSpec, unbounded

if TYPE_CHECKING:
    from policy_publisher import Publisher

    from edge_agent.environments.env import Environments

    Make = Callable[..., Environments]
from store_device import Device, accept, refuse, version_of


@pytest.fixture
def device(tmp_path: Path, publisher: Publisher) -> Iterator[Device]:
    made = Device(tmp_path / "policies", publisher)
    yield made
    made.stop()


def test_a_failed_fetch_is_no_rejection_and_the_next_offer_succeeds(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    published = publisher.publish(1)

    def unreachable(digest: bytes) -> bytes:
        raise ConnectionFailed("parameter server unreachable")

    with pytest.raises(ConnectionFailed):
        store.offer(published.bundle, unreachable)
    assert not store.rejections
    accept(store, published)


def test_a_restarted_device_acts_at_once_with_the_policy_it_had(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    accept(store, publisher.publish(2))
    before = store.current
    store = device.start()
    assert before is not None
    assert store.current is not None
    assert store.current is not before
    assert (store.current.version, store.current.digest) == (2, before.digest)
    assert store.swaps == 0


def test_only_the_current_policy_and_the_one_before_are_kept(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    for version in range(1, 6):
        accept(store, publisher.publish(version))
    assert [int(path.name[:20]) for path in device.bundles] == [4, 5]
    assert len(list(device.directory.glob("*/graphs/*"))) == 1


def test_policies_can_be_read_by_nobody_else(device: Device, publisher: Publisher) -> None:
    accept(device.start(), publisher.publish(1))
    paths = [path for path in device.directory.rglob("*") if path.is_file()]
    assert len(paths) == 2
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused_and_the_previous_policy_used(
    kept: float, device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    newest = publisher.publish(2)
    accept(store, newest)
    path = device.bundle(2)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    store = device.start()
    assert version_of(store) == 1
    assert sum(store.rejections.values()) == 1
    # The damaged version still counts against a rollback, and may come whole again.
    refuse(store, publisher.publish(2, weights=publisher.weights(seed=99)), "rollback")
    accept(store, newest)
    store = device.start()
    assert version_of(store) == 2


def test_a_flipped_bit_in_any_file_is_refused(device: Device, publisher: Publisher) -> None:
    accept(device.start(), publisher.publish(1))
    for path in [path for path in device.directory.rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 4
        path.write_bytes(flipped)
        store = device.start()
        assert version_of(store) == 0
        assert sum(store.rejections.values()) == 1
        path.write_bytes(whole)
    assert version_of(device.start()) == 1


def test_a_graph_that_is_lost_while_a_device_runs_is_there_again_with_the_next_policy(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    for version, damage in ((2, b""), (3, None)):
        (graph,) = device.directory.glob("*/graphs/*")
        whole = graph.read_bytes()
        if damage is None:
            graph.unlink()
        else:
            graph.write_bytes(damage)
        published = publisher.publish(version)
        accept(store, published)
        assert published.fetches == 0
        assert graph.read_bytes() == whole
    assert version_of(device.start()) == 3


def test_a_damaged_graph_is_fetched_again(device: Device, publisher: Publisher) -> None:
    accept(device.start(), publisher.publish(1))
    (graph,) = device.directory.glob("*/graphs/*")
    graph.write_bytes(b"")
    store = device.start()
    assert version_of(store) == 0
    again = publisher.publish(2)
    accept(store, again)
    assert again.fetches == 1


def test_a_file_that_was_renamed_to_a_newer_version_is_refused(
    device: Device, publisher: Publisher
) -> None:
    accept(device.start(), publisher.publish(1))
    path = device.bundle(1)
    path.rename(path.with_name("0" * 19 + "9" + path.name[20:]))
    store = device.start()
    assert version_of(store) == 0
    assert store.rejections["malformed"] == 1


def test_a_power_cut_in_the_middle_of_writing_leaves_the_policy_before(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    half = publisher.publish(2)
    leftover = device.bundle(1).with_name("0123456789abcdef.tmp")
    leftover.write_bytes(half.bundle[: len(half.bundle) // 2])
    graph_leftover = leftover.parent / "graphs" / "00.tmp"
    graph_leftover.write_bytes(b"half")
    store = device.start()
    assert version_of(store) == 1
    assert not leftover.exists()
    assert not graph_leftover.exists()
    assert not store.rejections
    accept(store, half)


def test_a_power_cut_between_the_graph_and_the_bundle_costs_nothing(
    device: Device, publisher: Publisher
) -> None:
    accept(device.start(), publisher.publish(1))
    device.bundle(1).unlink()
    store = device.start()
    assert version_of(store) == 0
    again = publisher.publish(1)
    accept(store, again)
    assert again.fetches == 0


def test_a_disk_that_cannot_be_written_does_not_stop_a_policy_from_acting(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    shutil.rmtree(device.directory)
    accept(store, publisher.publish(2))
    refuse(store, publisher.publish(2, weights=publisher.weights(seed=9)), "rollback")


def test_another_fleet_or_key_begins_with_nothing_and_counts_its_own_versions(
    device: Device, publisher: Publisher, make_publisher: type[Publisher]
) -> None:
    accept(device.start(), publisher.publish(50))
    for other in (make_publisher(fleet="lake", key=publisher.key), make_publisher()):
        store = device.start(fleet=other.fleet, public_key=other.public_key)
        assert version_of(store) == 0
        accept(store, other.publish(1))
    store = device.start()
    assert version_of(store) == 50


def test_other_spaces_after_a_restart_refuse_the_stored_policy(
    device: Device, publisher: Publisher
) -> None:
    accept(device.start(), publisher.publish(1))
    store = device.start(spec=EnvSpec("other", unbounded((3,)), Discrete(2)))
    assert version_of(store) == 0
    assert store.rejections["fingerprint"] == 1


def test_a_bad_directory_or_key_says_what_to_check(tmp_path: Path, publisher: Publisher) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ShoalError, match="check state_dir"):
        Device(tmp_path / "file", publisher).start()
    with pytest.raises(ShoalError, match="policy key"):
        Device(tmp_path / "policies", publisher).start(public_key=b"short")


def test_the_bundle_on_disk_is_the_one_that_was_offered(
    device: Device, publisher: Publisher
) -> None:
    published = publisher.publish(1)
    accept(device.start(), published)
    assert device.bundle(1).read_bytes() == encode_bundle(published.parts)
