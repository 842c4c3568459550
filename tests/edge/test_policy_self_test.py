"""What a policy must prove on its device before it acts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from strategies import rover_spec

from shoal.policy import Golden
from shoal.spaces import Discrete, EnvSpec, Tuple, unbounded

if TYPE_CHECKING:
    from policy_publisher import Publisher

    from edge_agent.environments.env import Environments

    Make = Callable[..., Environments]
from store_device import Device, accept, refuse


@pytest.fixture
def device(tmp_path: Path, publisher: Publisher) -> Iterator[Device]:
    made = Device(tmp_path / "policies", publisher)
    yield made
    made.stop()


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


def test_it_is_asked_whether_there_are_td_errors_though_one_of_the_same_graph_acts(
    tmp_path: Path, make_publisher: type[Publisher]
) -> None:
    publisher = make_publisher(spec=EnvSpec("box", unbounded((4,)), unbounded((2,))))
    device = Device(tmp_path, publisher)
    store = device.start()
    accept(store, publisher.publish(1))
    asking = dataclasses.replace(publisher, changes={"priority_gamma": 0.5})
    assert "TD errors" in str(refuse(store, asking.publish(2), "graph"))
    device.stop()
