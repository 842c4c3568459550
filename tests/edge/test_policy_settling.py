"""A version acts at once by a session that is fed its weights, and by one of its own soon after."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from int8_weights import int8_weights
from networks import Case, make_case
from policy_graphs import Weights
from policy_publisher import CARTPOLE_LIKE, Published, Publisher
from store_device import Device, accept, refuse

from cloud_learner.config import NetworkConfig
from edge_agent.acting.actor import Actor
from edge_agent.policies import proof
from edge_agent.policies.policy import Policy
from edge_agent.policies.policy_store import PolicyStore
from edge_agent.policies.session import Session
from shoal.errors import PolicyRejected

if TYPE_CHECKING:
    from edge.conftest import Counting

    from edge_agent.environments.env import Environments

    Make = Callable[..., Environments]


@dataclasses.dataclass
class Learned(Publisher):
    """Publishes graphs as a learner makes them."""

    def weights(self, seed: int = 0) -> Weights:
        return int8_weights(case_of(self.hidden), seed)


@functools.lru_cache
def case_of(hidden: tuple[int, ...]) -> Case:
    config = NetworkConfig(hidden=hidden)
    return make_case(CARTPOLE_LIKE.observation, CARTPOLE_LIKE.action, config)


@pytest.fixture
def publisher() -> Publisher:
    return Learned()


@pytest.fixture
def device(tmp_path: Path, publisher: Publisher) -> Iterator[Device]:
    made = Device(tmp_path / "policies", publisher)
    yield made
    made.stop()


def take(store: PolicyStore, published: Published) -> Policy:
    """Accepted, and neither settled nor saved."""
    return store.accept(published.bundle, published.fetch)


def test_the_next_version_is_fed_and_has_a_session_of_its_own_once_settled(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    published = publisher.publish(2)
    policy = take(store, published)
    assert store.current is policy
    assert policy.session.fed
    golden = publisher.golden(policy)
    store.settle()
    assert store.current is policy
    assert not policy.session.fed
    alone = Policy.load(published.graph, policy.tensors, policy.manifest)
    for each in (policy, alone):
        decided = each.act(golden.observations, golden.noise)
        assert decided.actions.tobytes() == golden.actions.tobytes()
        assert decided.log_probs.tobytes() == golden.log_probs.tobytes()


def test_every_version_is_fed_to_one_session(device: Device, publisher: Publisher) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    runtimes = set()
    for version in (2, 3, 4):
        policy = take(store, publisher.publish(version))
        assert policy.session.fed
        runtimes.add(id(policy.session.runtime))
        store.save()
        assert not policy.session.fed
    assert len(runtimes) == 1


def test_a_version_that_comes_before_the_last_is_saved_is_not_fed(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    assert take(store, publisher.publish(2)).session.fed
    store.settle()
    assert not take(store, publisher.publish(3)).session.fed


def test_the_first_version_of_a_graph_is_not_fed(device: Device, publisher: Publisher) -> None:
    store = device.start()
    assert not take(store, publisher.publish(1)).session.fed
    store.save()
    wider = Learned(fleet=publisher.fleet, key=publisher.key, hidden=(12,))
    assert not take(store, wider.publish(2)).session.fed


def test_a_fed_version_that_does_not_reproduce_its_golden_vectors_is_refused(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    golden = publisher.golden(publisher.policy(version=2, seed=2))
    actions = golden.actions.copy()
    actions[0] ^= 1
    lies = dataclasses.replace(golden, actions=actions)
    refuse(store, publisher.publish(2, golden=lies), "self_test")


def test_tensors_that_do_not_fit_the_graph_are_refused_as_if_none_were_fed(
    device: Device, publisher: Publisher
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    weights = publisher.weights(seed=2)
    golden = publisher.golden(publisher.policy(version=2, seed=2))
    name = next(n for n, each in weights.tensors.items() if each.ndim == 2)
    array = weights.tensors[name]
    one_more = np.concatenate([array, array[:1]])
    for tensors in (
        {n: each for n, each in weights.tensors.items() if n != name},
        {**weights.tensors, "another": array},
        {**weights.tensors, name: one_more},
        {**weights.tensors, name: array.astype(np.int32)},
    ):
        misfit = Weights(weights.graph, tensors)
        refuse(store, publisher.publish(2, weights=misfit, golden=golden), "graph")


def test_the_actor_takes_up_the_faster_session_with_its_next_chunk(
    device: Device, publisher: Publisher, make_environments: Make, make_copy: type[Counting]
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    policy = take(store, publisher.publish(2))
    with make_environments(make_copy()) as environments:
        actor = Actor(environments, run_id=bytes(16), chunk_steps=4)
        actor.rollout(policy)
        first = actor._bound
        store.settle()
        actor.rollout(policy)
        second = actor._bound
    assert first is not None
    assert second is not None
    assert first[1].session.fed
    assert second[1].session is policy.session
    assert not policy.session.fed


def test_a_session_that_decides_otherwise_does_not_replace_the_one_that_acts(
    device: Device, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = device.start()
    accept(store, publisher.publish(1))
    policy = take(store, publisher.publish(2))
    before = policy.session

    def wrong(*args: object) -> None:
        raise PolicyRejected("self_test", "it decides otherwise")

    with monkeypatch.context() as patch:
        patch.setattr(proof, "self_test", wrong)
        store.settle()
    assert store.current is policy
    assert policy.session is before
    store.settle()
    assert not policy.session.fed


def test_a_session_that_does_not_decide_bit_for_bit_as_its_own_is_never_fed(
    device: Device, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = publisher.policy(seed=9)
    opened = Session.open(publisher.weights().graph, other.initializers, precision="int8")
    monkeypatch.setattr(Session, "open", lambda *_, **__: opened)
    store = device.start()
    accept(store, publisher.publish(1))
    assert not take(store, publisher.publish(2)).session.fed


def test_a_graph_that_cannot_be_fed_is_built_for_every_version(
    device: Device, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Session:
        raise RuntimeError("no such input")

    monkeypatch.setattr(Session, "open", broken)
    store = device.start()
    accept(store, publisher.publish(1))
    assert not take(store, publisher.publish(2)).session.fed
