"""What a device makes of a delta and what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_publisher import Publisher

from edge_agent.downlink.reconstruction import accept_delta
from edge_agent.policies.policy_store import PolicyStore
from shoal.errors import PolicyRejected
from shoal.policy import decode_bundle
from shoal.policy_delta import Base, PolicyDelta, encode_policy_delta
from shoal.tensors import encode_tensors


def open_store(directory: Path, publisher: Publisher) -> PolicyStore:
    return PolicyStore(
        directory, fleet="pond", public_key=publisher.public_key, spec=publisher.spec
    )


def delta(publisher: Publisher, base: int, target: int) -> bytes:
    before, after = (decode_bundle(publisher.publish(v).bundle) for v in (base, target))
    return encode_policy_delta(PolicyDelta.between(before, after))


def test_it_starts_from_what_acts_or_from_the_one_before_also_after_a_restart(
    tmp_path: Path, publisher: Publisher
) -> None:
    fetch = publisher.publish(1).fetch  # its graph is stored by then
    with open_store(tmp_path, publisher) as policies:
        for version in (1, 2):
            published = publisher.publish(version)
            policies.offer(published.bundle, published.fetch)
    with open_store(tmp_path, publisher) as policies:
        assert accept_delta(policies, delta(publisher, 1, 3), fetch).version == 3
        assert accept_delta(policies, delta(publisher, 3, 4), fetch).version == 4  # 3 is not saved
        policies.save()
        assert not policies.rejections
        with pytest.raises(PolicyRejected) as caught:
            accept_delta(policies, delta(publisher, 2, 5), fetch)
        assert caught.value.reason == "base"
        assert policies.rejections == {"base": 1}


def test_what_is_held_is_what_was_signed_though_the_files_are_gone(
    tmp_path: Path, publisher: Publisher
) -> None:
    published = publisher.publish(1)
    with open_store(tmp_path, publisher) as policies:
        policies.offer(published.bundle, published.fetch)
        base = Base.of(published.manifest)
        for path in tmp_path.glob("*/*.bundle"):
            path.unlink()
        held = policies.held(base)
        assert held is not None
        assert encode_tensors(held.tensors) == published.parts.tensors
        assert encode_tensors(held.golden) == published.parts.golden
        assert not any(array.flags.writeable for array in held.tensors.values())
        assert policies.held(Base(1, bytes(32))) is None
        assert policies.held(Base(2, base.digest)) is None


def test_listeners_hear_of_every_change_of_what_acts(tmp_path: Path, publisher: Publisher) -> None:
    heard: list[int] = []
    with open_store(tmp_path, publisher) as policies:

        def changed() -> None:
            heard.append(policies.current.version if policies.current is not None else 0)

        with policies.listening(changed):
            for version in (1, 2):
                published = publisher.publish(version)
                policy = policies.offer(published.bundle, published.fetch)
            policies.condemn(policy, "non_finite")
        published = publisher.publish(3)
        policies.offer(published.bundle, published.fetch)
    assert heard == [1, 2, 1]
