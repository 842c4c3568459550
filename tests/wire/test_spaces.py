"""Spaces travel whole, and their fingerprint tells them apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cartpole_spec, specs

from shoal.errors import WireError
from shoal.spaces import (
    Box,
    Discrete,
    EnvSpec,
    Space,
    action_dtype,
    action_shape,
    noise_kind,
    observation_box,
    width,
)
from shoal.v1 import space_pb2 as pb


def same(left: Space, right: Space) -> bool:
    if isinstance(left, Box) and isinstance(right, Box):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and np.array_equal(left.low, right.low)
            and np.array_equal(left.high, right.high)
        )
    return left == right


@given(specs())
def test_a_specification_round_trips(spec: EnvSpec) -> None:
    data = spec.to_pb().SerializeToString()
    back = EnvSpec.from_pb(pb.EnvSpec.FromString(data))
    assert back.fingerprint == spec.fingerprint
    assert same(back.observation, spec.observation)
    assert same(back.action, spec.action)
    assert (back.env_id, back.reward_threshold, back.max_episode_steps) == (
        spec.env_id,
        spec.reward_threshold,
        spec.max_episode_steps,
    )


@given(specs(), specs())
def test_fingerprints_are_equal_exactly_when_both_spaces_are(left: EnvSpec, right: EnvSpec) -> None:
    equal = same(left.observation, right.observation) and same(left.action, right.action)
    assert (left.fingerprint == right.fingerprint) == equal


@given(specs())
def test_names_and_thresholds_leave_the_fingerprint_alone(spec: EnvSpec) -> None:
    other = dataclasses.replace(spec, env_id="other", reward_threshold=1.0, max_episode_steps=3)
    assert other.fingerprint == spec.fingerprint


def test_fingerprints_never_change() -> None:
    assert cartpole_spec().fingerprint.hex() == (
        "4156f2088c2480f725a813e95e47de1348432b209885ad977a24e223e1ef3d1a"
    )


def test_byte_order_in_memory_leaves_the_fingerprint_alone() -> None:
    high = np.array([1, 2], "<f4")
    little = Box(-high, high)
    big = Box((-high).astype(">f4"), high.astype(">f4"))
    assert little.canonical() == big.canonical()


@pytest.mark.parametrize(
    ("space", "kind", "size", "dtype", "shape"),
    [
        (Discrete(4), "gumbel", 4, "int64", ()),
        (Box(np.zeros((2, 3), "f4"), np.ones((2, 3), "f4")), "normal", 6, "float32", (2, 3)),
        (Box(np.zeros((), "f8"), np.ones((), "f8")), "normal", 1, "float32", ()),
    ],
)
def test_says_how_actions_are_sampled_and_kept(
    space: Space, kind: str, size: int, dtype: str, shape: tuple[int, ...]
) -> None:
    assert noise_kind(space) == kind
    assert width(space) == size
    assert action_dtype(space) == np.dtype(dtype)
    assert action_shape(space) == shape


@pytest.mark.parametrize("n", [0, -1, 2**40])
def test_refuses_a_discrete_space_of_impossible_size(n: int) -> None:
    with pytest.raises(WireError):
        Discrete(n)


def test_refuses_bounds_that_do_not_agree() -> None:
    with pytest.raises(WireError, match="one shape"):
        Box(np.zeros(2, np.float32), np.zeros(3, np.float32))
    with pytest.raises(WireError, match="one shape"):
        Box(np.zeros(2, np.float32), np.zeros(2, np.float64))
    with pytest.raises(WireError, match="not supported"):
        Box(np.zeros(2, np.complex64), np.zeros(2, np.complex64))


def test_refuses_a_specification_without_spaces() -> None:
    with pytest.raises(WireError, match="missing"):
        EnvSpec.from_pb(pb.EnvSpec(env_id="x"))


@given(st.binary(max_size=200))
def test_any_bytes_make_a_specification_or_a_wire_error(data: bytes) -> None:
    message = pb.EnvSpec()
    try:
        message.ParseFromString(data)
    except Exception:  # noqa: BLE001 only what parses is of interest here
        return
    try:
        EnvSpec.from_pb(message)
    except WireError:
        return


def test_observations_must_be_a_box() -> None:
    spec = cartpole_spec()
    assert observation_box(spec).shape == (4,)
    with pytest.raises(WireError, match="Box"):
        observation_box(dataclasses.replace(spec, observation=Discrete(3)))
