from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relay_policies import FLEET, GRAPH, TWIN_GRAPH, graph_of, published_by

from cloud_learner.downlink.published import Published
from cloud_learner.relay.relay_store import RelayStore
from shoal.errors import PolicyLogError, PolicyRejected, WireError
from shoal.policy import (
    MAX_GRAPH_BYTES,
    SIGNING_CONTEXT,
    decode_bundle,
    decode_manifest,
    encode_bundle,
    encode_manifest,
    sha256,
)
from shoal.policy_delta import PolicyDelta, encode_policy_delta

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def opened(path: Path, *, keep: int = 4, fleet: str = FLEET) -> RelayStore:
    return RelayStore(path / "relay", KEY.public_key().public_bytes_raw(), fleet, keep=keep)


def versions_of(store: RelayStore) -> list[int]:
    return [info.manifest.version for info in store.list()]


def bundle_files(path: Path) -> list[Path]:
    return sorted((path / "relay").glob("*/*.bundle"))


def no_graph(digest: bytes) -> bytes:
    raise AssertionError(f"asked for {digest.hex()}")


def signed(published: Published, key: Ed25519PrivateKey, **changes: object) -> bytes:
    """The same policy with a manifest that says something else, signed by `key`."""
    bundle = decode_bundle(published.bundle)
    manifest = encode_manifest(replace(decode_manifest(bundle.manifest), **changes))  # type: ignore[arg-type]
    signature = key.sign(SIGNING_CONTEXT + manifest)
    return encode_bundle(replace(bundle, manifest=manifest, signature=signature))


def test_what_was_accepted_is_served_with_its_graphs_and_outlives_a_restart(tmp_path: Path) -> None:
    one, two = published_by(KEY, tmp_path / "log", 2)
    with opened(tmp_path) as store:
        assert (store.newest(), store.highest_version, store.list()) == (None, 0, ())
        store.accept(one.bundle, graph_of)
        assert store.accept(two.bundle, no_graph) == two  # the graphs are here already
    with opened(tmp_path) as store:
        assert store.newest() == two
        assert (store.get(1), store.get(3)) == (one, None)
        assert versions_of(store) == [2, 1]
        assert store.graph(sha256(GRAPH)) == GRAPH
        assert store.graph(sha256(TWIN_GRAPH)) == TWIN_GRAPH
        assert store.graph(bytes(32)) is None


def test_an_older_policy_or_another_of_the_same_version_is_refused_even_after_a_restart(
    tmp_path: Path,
) -> None:
    one, two = published_by(KEY, tmp_path / "log", 2)
    with opened(tmp_path) as store:
        store.accept(two.bundle, graph_of)
    with opened(tmp_path) as store:
        for older in (one.bundle, signed(two, KEY, reason="rollback")):
            with pytest.raises(PolicyRejected, match="not newer") as refused:
                store.accept(older, no_graph)
            assert refused.value.reason == "rollback"
        assert store.newest() == two


def test_a_damaged_newest_file_counts_against_a_rollback_and_may_come_again(tmp_path: Path) -> None:
    one, two = published_by(KEY, tmp_path / "log", 2)
    with opened(tmp_path) as store:
        store.accept(one.bundle, graph_of)
        store.accept(two.bundle, graph_of)
    bundle_files(tmp_path)[-1].write_bytes(b"damaged")
    with opened(tmp_path) as store:
        assert store.newest() == one
        assert store.highest_version == two.version
        with pytest.raises(PolicyRejected, match="not newer"):
            store.accept(signed(two, KEY, reason="another"), graph_of)
        assert store.accept(two.bundle, no_graph) == two
        assert store.newest() == two


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda policy: signed(policy, STRANGER), "signature"),
        (lambda policy: signed(policy, KEY, fleet="other"), "fleet"),
        (lambda policy: signed(policy, KEY, tensors_digest=bytes(32)), "digest"),
        (lambda policy: policy.bundle[:-1], "malformed"),
        (lambda _: b"", "malformed"),
    ],
)
def test_what_a_device_would_refuse_is_refused_and_nothing_changes(
    tmp_path: Path, forge: Callable[[Published], bytes], reason: str
) -> None:
    (one,) = published_by(KEY, tmp_path / "log", 1)
    with opened(tmp_path) as store:
        with pytest.raises(PolicyRejected) as refused:
            store.accept(forge(one), graph_of)
        assert refused.value.reason == reason
        assert store.newest() is None
        assert bundle_files(tmp_path) == []


@pytest.mark.parametrize("graph", [b"another graph", bytes(MAX_GRAPH_BYTES + 1)])
def test_a_graph_that_is_not_the_one_that_was_signed_is_refused(
    tmp_path: Path, graph: bytes
) -> None:
    (one,) = published_by(KEY, tmp_path / "log", 1)
    with opened(tmp_path) as store:
        with pytest.raises(PolicyRejected):
            store.accept(one.bundle, lambda _: graph)
        assert store.newest() is None


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flipped")
    (one,) = published_by(KEY, path / "log", 1)
    data = bytearray(one.bundle)
    data[at % len(data)] ^= 1 << bit
    with opened(path) as store, pytest.raises((PolicyRejected, WireError)):
        store.accept(bytes(data), graph_of)


def test_only_the_newest_are_kept_and_graphs_that_none_of_them_uses_leave(tmp_path: Path) -> None:
    policies = published_by(KEY, tmp_path / "log", 5)
    with opened(tmp_path, keep=2) as store:
        for published in policies:
            store.accept(published.bundle, graph_of)
        assert versions_of(store) == [5, 4]
        assert len(bundle_files(tmp_path)) == 2
        assert store.get(3) is None


def test_a_store_that_is_open_is_not_opened_twice(tmp_path: Path) -> None:
    said = "another relay has this policy store open: stop it"
    with opened(tmp_path), pytest.raises(PolicyLogError, match=said):
        opened(tmp_path)


def test_a_delta_is_accepted_only_from_what_is_here_and_gives_what_was_signed(
    tmp_path: Path,
) -> None:
    one, two = published_by(KEY, tmp_path / "log", 2)
    delta = encode_policy_delta(
        PolicyDelta.between(decode_bundle(one.bundle), decode_bundle(two.bundle))
    )
    with opened(tmp_path) as store:
        with pytest.raises(PolicyRejected) as refused:
            store.accept_delta(delta, graph_of)
        assert refused.value.reason == "base"
        store.accept(one.bundle, graph_of)
        assert store.accept_delta(delta, no_graph) == two
        assert store.newest() == two


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_flipped_bit_of_a_delta_is_noticed_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flipped")
    one, two = published_by(KEY, path / "log", 2)
    data = bytearray(
        encode_policy_delta(
            PolicyDelta.between(decode_bundle(one.bundle), decode_bundle(two.bundle))
        )
    )
    data[at % len(data)] ^= 1 << bit
    with opened(path) as store:
        store.accept(one.bundle, graph_of)
        try:
            accepted = store.accept_delta(bytes(data), graph_of)
        except PolicyRejected:
            assert store.newest() == one
        else:
            assert accepted == two  # what was signed, whatever way it came
