"""Every space, end to end: from the environment through the actor, a chunk and the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edge.worlds import World, any_space, flat, starts
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_publisher import Publisher

from edge_agent.acting.actor import Actor
from edge_agent.environments.env import Environments
from shoal.layout import ActionLayout, ObservationLayout
from shoal.noise import noise_block
from shoal.tensors import Array
from shoal.trajectory import Chunk, decode_chunk, encode_chunk
from shoal.validation import validate_chunk

RUN = bytes(range(16))
CAMERA = spaces.Box(0, 255, (4, 4, 3), np.uint8)
ROVER = spaces.Dict(
    {
        "arm": spaces.Tuple((spaces.Discrete(4, start=-1), spaces.Box(-2, 2, (3,), np.float64))),
        "camera": CAMERA,
        "grid": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]])),
        "doors": spaces.MultiBinary(3),
    }
)
WHEELS = spaces.Box(-1, 1, (2,), np.float32)
DRIVE = spaces.Dict(
    {
        "gears": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        "horn": spaces.Tuple((spaces.Discrete(2, start=7), spaces.MultiBinary([2, 1]))),
        "steps": spaces.Box(-3, 3, (1,), np.int32),
        "wheels": WHEELS,
    }
)


def act(
    worlds: list[World], *, steps: int = 7, chunks: int = 2
) -> tuple[Environments, list[Chunk]]:
    """Chunks as a learner would read them."""
    with Environments("world", worlds, seed=0) as environments:
        policy = Publisher(spec=environments.spec).policy()
        actor = Actor(environments, run_id=RUN, chunk_steps=steps)
        found = [decode_chunk(encode_chunk(actor.rollout(policy))) for _ in range(chunks)]
        for chunk in found:
            validate_chunk(chunk, environments.spec)
    return environments, found


def leaves_at(environments: Environments, rows: Array) -> list[Array]:
    return list(ObservationLayout.of(environments.spec.observation).unpack(rows).values())


@settings(max_examples=30)
@given(seen=any_space(), done=any_space(), envs=st.integers(1, 2), truncates=st.booleans())
def test_every_space_is_seen_and_acted_in_without_a_value_or_step_changed(
    seen: spaces.Space[Any], done: spaces.Space[Any], envs: int, *, truncates: bool
) -> None:
    worlds = [World(seen, done, length=3, truncates=truncates) for _ in range(envs)]
    environments, chunks = act(worlds)
    for n, world in enumerate(worlds):
        k = 0
        for chunk in chunks:
            finals = dict(zip(chunk.final_index.tolist(), chunk.final_observations, strict=True))
            for t in range(chunk.steps):
                episode, at = divmod(k, 3)
                rows = [(chunk.observations[t, n], world.episodes[episode][at])]
                if at == 2:
                    rows.append((finals[t * envs + n], world.episodes[episode][3]))
                for row, given_in in rows:
                    for got, want, start in zip(
                        leaves_at(environments, row), flat(given_in), starts(seen), strict=True
                    ):
                        assert np.array_equal(got, want - start)
                        assert got.dtype == want.dtype or want.dtype.kind != "f"
                assert chunk.truncated[t, n] == (truncates and at == 2)
                assert chunk.terminated[t, n] == (not truncates and at == 2)
                k += 1
        assert len(world.taken) == k, "not a step more or less"
        assert [e.length for c in chunks for e in c.episodes if e.env == n] == [3] * (k // 3)


@pytest.mark.parametrize("envs", [1, 3])
def test_every_leaf_of_a_dict_reaches_the_input_of_its_name(envs: int) -> None:
    """Against the graph itself, fed leaf by leaf from what the environment gave."""
    worlds = [World(ROVER, DRIVE, length=4) for _ in range(envs)]
    environments, chunks = act(worlds, steps=9, chunks=1)
    policy = Publisher(spec=environments.spec).policy()
    noise = noise_block(RUN, 0, 9, envs, environments.spec.action)
    (chunk,) = chunks
    for t in range(chunk.steps):
        episode, at = divmod(t, 4)
        given_in = [world.episodes[episode][at] for world in worlds]
        feed = {
            "observation.arm.0": np.array([g["arm"][0] + 1 for g in given_in], np.int64),
            "observation.arm.1": np.stack([g["arm"][1] for g in given_in]),
            "observation.camera": np.stack([g["camera"] for g in given_in]),
            "observation.doors": np.stack([g["doors"] for g in given_in]),
            "observation.grid": np.stack([g["grid"] for g in given_in]) - ROVER["grid"].start,  # type: ignore[attr-defined]
            "noise": noise[t],
        }
        action, log_prob = policy.session.runtime.run(["action", "log_prob"], feed)
        assert np.array_equal(chunk.actions[t], action)
        assert np.array_equal(chunk.log_probs[t], log_prob)


def test_actions_of_a_dict_are_recorded_raw_and_changed_only_at_the_environment() -> None:
    world = World(ROVER, DRIVE, length=50)
    environments, (chunk,) = act([world], steps=50, chunks=1)
    layout = ActionLayout.of(environments.spec.action)
    assert [choice.path for choice in layout.choices] == [
        "gears",
        "horn.0",
        "horn.1",
        "steps",
        "wheels",
    ]
    assert chunk.actions.shape == (50, 1, 10)
    assert np.abs(chunk.actions[..., -2:]).max() > 1.5
    assert (chunk.actions[..., 7] != np.rint(chunk.actions[..., 7])).any()
    for numbers, taken in zip(chunk.actions[:, 0], world.taken, strict=True):
        assert taken["gears"].tolist() == numbers[:4].reshape(2, 2).tolist()
        assert taken["horn"][0] == numbers[4] + 7
        assert taken["horn"][1].tolist() == numbers[5:7].reshape(2, 1).tolist()
        assert taken["steps"] == np.clip(np.rint(numbers[7]), -3, 3)
        assert np.array_equal(taken["wheels"], np.clip(numbers[8:], -1, 1))


def test_truncation_of_a_dict_keeps_the_true_last_observation_and_not_the_resets() -> None:
    world = World(ROVER, DRIVE, length=3, truncates=True)
    environments, chunks = act([world], steps=3, chunks=1)
    (chunk,) = chunks
    assert chunk.truncated[:, 0].tolist() == [False, False, True]
    assert not chunk.terminated.any()
    last = leaves_at(environments, chunk.final_observations[0])
    first = leaves_at(environments, chunk.observations[3, 0])
    for got, want, start in zip(last, flat(world.episodes[0][3]), starts(ROVER), strict=True):
        assert np.array_equal(got, want - start)
    for got, want, start in zip(first, flat(world.episodes[1][0]), starts(ROVER), strict=True):
        assert np.array_equal(got, want - start)


@pytest.mark.parametrize(
    "space",
    [
        CAMERA,
        spaces.Dict({"camera": CAMERA, "speed": spaces.Box(-1, 1, (2,), np.float64)}),
        spaces.Tuple((spaces.Box(-1, 1, (1,), np.float16), CAMERA)),
    ],
    ids=["image", "dict", "tuple"],
)
def test_images_stay_uint8_and_float64_stays_float64_all_the_way(space: spaces.Space[Any]) -> None:
    world = World(space, spaces.Discrete(2))
    environments, chunks = act([world], chunks=1)
    got = leaves_at(environments, chunks[0].observations[0, 0])
    want = flat(world.episodes[0][0])
    assert [leaf.dtype for leaf in got] == [leaf.dtype for leaf in want]
    assert [leaf.tobytes() for leaf in got] == [leaf.tobytes() for leaf in want]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Discrete(3), spaces.Dict({"a": spaces.Dict({"b": WHEELS})}))),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5], [1, 2]]), start=np.full((3, 2), 2)),
        spaces.MultiBinary([2, 3]),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Box(-1, 1, (), np.float32),
        spaces.Tuple((spaces.Discrete(2),)),
    ],
    ids=str,
)
def test_spaces_that_others_refuse_with_a_riddle_work(space: spaces.Space[Any]) -> None:
    """SB3#1140, #1713: Tuple, nested Dict, MultiDiscrete of two axes."""
    worlds = [World(space, space, length=5) for _ in range(2)]
    _, chunks = act(worlds, steps=8, chunks=2)
    assert sum(len(chunk.episodes) for chunk in chunks) == 6
