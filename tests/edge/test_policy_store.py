from __future__ import annotations

import dataclasses
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import rover_spec

from edge_agent import policy_files, policy_store
from edge_agent.actor import Actor
from edge_agent.policy_store import PolicyStore
from shoal.errors import ConnectionFailed, PolicyRejected, ShoalError
from shoal.policy import Golden, encode_bundle
from shoal.spaces import Discrete, EnvSpec, Tuple, unbounded

if TYPE_CHECKING:
    from edge.conftest import Counting
    from policy_publisher import Published, Publisher

    from edge_agent.env import Environments

    Make = Callable[..., Environments]

WAIT_S = 30.0


class Device:
    """A device's state directory, and stores opened on it one after another."""

    def __init__(self, directory: Path, publisher: Publisher) -> None:
        self.directory = directory
        self._publisher = publisher
        self._stack = ExitStack()

    def start(self, **changes: object) -> PolicyStore:
        self.stop()
        trust: dict[str, object] = {
            "fleet": self._publisher.fleet,
            "public_key": self._publisher.public_key,
            "spec": self._publisher.spec,
            **changes,
        }
        return self._stack.enter_context(
            PolicyStore(self.directory, **trust)  # type: ignore[arg-type]
        )

    def stop(self) -> None:
        self._stack.close()

    @property
    def bundles(self) -> list[Path]:
        return sorted(self.directory.glob("*/*.bundle"))

    def bundle(self, version: int) -> Path:
        (path,) = self.directory.glob(f"*/{version:020d}-*.bundle")
        return path


@pytest.fixture
def device(tmp_path: Path, publisher: Publisher) -> Iterator[Device]:
    made = Device(tmp_path / "policies", publisher)
    yield made
    made.stop()


def accept(store: PolicyStore, published: Published) -> None:
    policy = store.offer(published.bundle, published.fetch)
    assert store.current is policy
    assert policy.version == published.manifest.version


def refuse(store: PolicyStore, published: Published, reason: str) -> PolicyRejected:
    current, before = store.current, store.rejections[reason]
    with pytest.raises(PolicyRejected) as caught:
        store.offer(published.bundle, published.fetch)
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)
    assert store.current is current
    assert store.rejections[reason] == before + 1
    return caught.value


def version_of(store: PolicyStore) -> int:
    return 0 if store.current is None else store.current.version


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
    monkeypatch.setattr(policy_store, "MAX_BUNDLE_BYTES", len(published.bundle) - 1)
    refuse(store, published, "size")
    assert published.fetches == 0
    monkeypatch.setattr(policy_store, "MAX_BUNDLE_BYTES", len(published.bundle))
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


def flip(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    array.view(np.uint32)[3] ^= 1


def test_int8_layers_must_decide_alike_and_only_the_last_bits_of_what_follows_may_differ(
    device: Device, publisher: Publisher
) -> None:
    golden = publisher.golden(publisher.policy(seed=1))
    actions = golden.actions.copy()
    actions[0] ^= 1
    for changed in (
        dataclasses.replace(golden, actions=actions),
        dataclasses.replace(golden, log_probs=golden.log_probs + np.float32(5e-5)),
        dataclasses.replace(golden, states=golden.noise, next_states=golden.noise),
    ):
        refuse(device.start(), publisher.publish(1, golden=changed), "self_test")
    log_probs = golden.log_probs.copy()
    flip(log_probs)
    changed = dataclasses.replace(golden, log_probs=log_probs)
    accept(device.start(), publisher.publish(1, golden=changed))


@pytest.mark.parametrize("precision", ["int8_fp32_head", "fp32"])
def test_layers_in_fp32_may_round_differently_but_not_decide_differently(
    precision: str, device: Device, publisher: Publisher
) -> None:
    store = device.start()
    golden = publisher.golden(publisher.policy(seed=1))
    actions = golden.actions.copy()
    actions[0] ^= 1
    log_probs = golden.log_probs + np.float32(1e-2)
    for changed in (
        dataclasses.replace(golden, actions=actions),
        dataclasses.replace(golden, log_probs=log_probs),
        dataclasses.replace(golden, log_probs=np.full_like(log_probs, np.nan)),
    ):
        published = publisher.publish(1, golden=changed, precision=precision)
        refuse(store, published, "self_test")
    log_probs = golden.log_probs.copy()
    flip(log_probs)
    changed = dataclasses.replace(golden, log_probs=log_probs)
    accept(store, publisher.publish(1, golden=changed, precision=precision))


def test_golden_vectors_of_another_shape_or_dtype_fail_the_self_test(
    device: Device, publisher: Publisher
) -> None:
    golden = publisher.golden(publisher.policy(seed=1))
    for changed in (
        dataclasses.replace(golden, observations=golden.observations[:, :3]),
        dataclasses.replace(golden, observations=golden.observations.astype(np.float64)),
        dataclasses.replace(golden, actions=golden.actions.astype(np.int32)),
        dataclasses.replace(golden, actions=golden.actions[:, None]),
    ):
        refuse(device.start(), publisher.publish(1, golden=changed), "self_test")


def test_no_golden_vectors_prove_nothing(device: Device, publisher: Publisher) -> None:
    golden = publisher.golden(publisher.policy(seed=1))
    names = ("observations", "noise", "actions", "log_probs")
    rows = {name: getattr(golden, name)[:0] for name in names}
    refuse(device.start(), publisher.publish(1, golden=Golden(**rows)), "malformed")


def test_weights_that_give_nan_fail_the_self_test_though_the_golden_vectors_agree(
    device: Device, publisher: Publisher
) -> None:
    weights = publisher.weights()
    weights.tensors["gain"] = np.asarray(np.float32(np.nan))
    refuse(device.start(), publisher.publish(1, weights=weights), "self_test")


def test_tensors_that_do_not_fit_the_graph_are_refused(
    device: Device, publisher: Publisher
) -> None:
    right = publisher.weights()
    golden = publisher.golden(publisher.policy())
    wrong = dataclasses.replace(right, tensors={**right.tensors, "more": np.zeros(4, np.int8)})
    refuse(device.start(), publisher.publish(1, weights=wrong, golden=golden), "graph")


def test_a_graph_for_other_arrays_than_the_spaces_is_refused(
    device: Device, publisher: Publisher, make_publisher: type[Publisher]
) -> None:
    store = device.start()
    for spec in (
        EnvSpec("wider", unbounded((5,)), Discrete(2)),
        EnvSpec("double", unbounded((4,), np.float64), Discrete(2)),
        EnvSpec("more", unbounded((4,)), Discrete(3)),
        EnvSpec("box", unbounded((4,)), unbounded((2,))),
    ):
        liar = make_publisher(spec=spec, key=publisher.key)
        published = liar.publish(1, spec_fingerprint=publisher.spec.fingerprint)
        refuse(store, published, "graph")


@pytest.mark.parametrize("memory", [0, 3])
def test_a_policy_for_nested_spaces_proves_itself_on_packed_golden_vectors(
    memory: int, tmp_path: Path, make_publisher: type[Publisher]
) -> None:
    rover = make_publisher(spec=rover_spec(), memory=memory)
    device = Device(tmp_path / "policies", rover)
    accept(device.start(), rover.publish(1))
    golden = rover.golden(rover.policy(version=2, seed=2))
    observations = golden.observations.copy()
    observations[0, :24] = 0  # the arm's three numbers
    refuse(
        device.start(),
        rover.publish(2, golden=dataclasses.replace(golden, observations=observations)),
        "self_test",
    )
    accept(device.start(), rover.publish(3))
    device.stop()


def test_a_policy_with_memory_must_remember_here_what_it_remembered_there(
    tmp_path: Path, make_publisher: type[Publisher]
) -> None:
    publisher = make_publisher(memory=2)
    device = Device(tmp_path / "policies", publisher)
    golden = publisher.golden(publisher.policy(seed=1))
    assert golden.states is not None
    assert golden.next_states is not None
    for changed in (
        dataclasses.replace(golden, next_states=golden.next_states + np.float32(1e-4)),
        dataclasses.replace(golden, states=golden.states[:, :1], next_states=golden.states[:, :1]),
        dataclasses.replace(golden, states=None, next_states=None),
    ):
        refuse(device.start(), publisher.publish(1, golden=changed), "self_test")
    accept(device.start(), publisher.publish(1, golden=golden))
    device.stop()


def test_a_policy_that_asks_for_td_errors_needs_one_discrete_action(
    tmp_path: Path, make_publisher: type[Publisher]
) -> None:
    asks = {"priority_gamma": 0.5}
    for spec, refused in (
        (EnvSpec("one", unbounded((4,)), Discrete(3)), False),
        (EnvSpec("box", unbounded((4,)), unbounded((2,))), True),
        (EnvSpec("two", unbounded((4,)), Tuple((Discrete(3),))), True),
    ):
        publisher = make_publisher(spec=spec, changes=asks)
        device = Device(tmp_path / spec.env_id, publisher)
        if refused:
            error = refuse(device.start(), publisher.publish(1), "graph")
            assert "TD errors" in str(error)
        else:
            accept(device.start(), publisher.publish(1))
        device.stop()


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
