from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import EnvConfig
from edge_agent.environments.env import EnvironmentFault, Environments, make_env
from shoal.errors import EnvironmentFailed
from shoal.spaces import Box, Discrete

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.conftest import Counting

    Make = Callable[..., Environments]

ZEROS = np.zeros(1, np.int64)

MODULE = """
import gymnasium, numpy
class Small(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, size=1):
        if size > 9:
            raise ValueError("size is at most 9")
    def reset(self, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        return numpy.zeros(2, numpy.float32), 0.0, False, False, {}
def not_an_environment():
    return 3
gymnasium.register("Registered-v0", entry_point=Small)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "field_environments.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(gymnasium.registry, "Registered-v0", raising=False)
    monkeypatch.delitem(sys.modules, "field_environments", raising=False)
    return "field_environments"


def test_a_three_step_environment_gives_exactly_three_steps(
    make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy(3)
    with make_environments(copy) as environments:
        environments.reset()
        steps = [environments.step(ZEROS) for _ in range(9)]
        assert copy.steps == 9
        assert copy.episode == 3
        assert [bool(step.endings) for step in steps] == [False, False, True] * 3
        assert [e.length for step in steps for e in step.endings] == [3, 3, 3]


def test_the_final_observation_is_the_true_last_one_though_the_environment_reuses_its_array(
    make_copy: type[Counting], make_environments: Make
) -> None:
    with make_environments(make_copy(3), make_copy(2)) as environments:
        environments.reset()
        environments.step(np.zeros(2, np.int64))
        second = environments.step(np.zeros(2, np.int64))
        assert [(e.env, e.final_observation.tolist()) for e in second.endings] == [
            (1, [0, 2, 2, 0])
        ]
        assert second.observations.tolist() == [[0, 2, 2, 0], [1, 0, 10, 0]]
        third = environments.step(np.zeros(2, np.int64))
        assert second.endings[0].final_observation.tolist() == [0, 2, 2, 0]
        assert third.endings[0].final_observation.tolist() == [0, 3, 3, 0]
        assert third.observations.tolist() == [[1, 0, 10, 0], [1, 1, 11, 0]]


def test_truncation_and_termination_stay_apart_and_last_one_step(
    make_copy: type[Counting], make_environments: Make
) -> None:
    with make_environments(make_copy(2), make_copy(2, truncates=True)) as environments:
        environments.reset()
        flags = []
        for _ in range(4):
            step = environments.step(np.zeros(2, np.int64))
            flags.append((step.terminated.tolist(), step.truncated.tolist()))
        quiet, ends = ([False, False],) * 2, ([True, False], [False, True])
        assert flags == [quiet, ends, quiet, ends]


def test_a_time_limit_truncates_at_exactly_its_step() -> None:
    with make_env(
        EnvConfig("Pendulum-v1", num_envs=2, seed=0, kwargs={"max_episode_steps": 5})
    ) as environments:
        environments.reset()
        for t in range(1, 11):
            step = environments.step(np.zeros((2, 1), np.float32))
            assert step.truncated.tolist() == [t % 5 == 0] * 2
            assert not step.terminated.any()
            assert [e.length for e in step.endings] == [5, 5] * (t % 5 == 0)
        assert environments.spec.max_episode_steps == 5


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    steps=st.integers(1, 25),
    reward=st.floats(-1e6, 1e6),
)
def test_returns_and_lengths_are_those_of_a_plain_loop(
    lengths: list[int], steps: int, reward: float
) -> None:
    from edge.conftest import Counting, counting

    environments = counting(*(Counting(length, reward=reward) for length in lengths))
    environments.reset()
    ended: dict[int, list[tuple[float, int]]] = {n: [] for n in range(len(lengths))}
    for _ in range(steps):
        for ending in environments.step(np.zeros(len(lengths), np.int64)).endings:
            ended[ending.env].append((ending.total_return, ending.length))
    for n, length in enumerate(lengths):
        # In float64, and as Python adds: not through the float32 of the columns.
        assert ended[n] == [(sum([reward] * length), length)] * (steps // length)


def test_matches_a_plain_loop_over_cartpole() -> None:
    rng = np.random.default_rng(0)
    with make_env(EnvConfig("CartPole-v1", num_envs=1, seed=7)) as environments:
        observations = environments.reset().copy()
        plain = gymnasium.make("CartPole-v1")
        seed = np.random.SeedSequence(7, spawn_key=(0,)).generate_state(1)[0]
        observation, _ = plain.reset(seed=int(seed))
        for _ in range(500):
            assert np.array_equal(observations[0], observation)
            action = int(rng.integers(2))
            step = environments.step(np.array([action]))
            observation, reward, terminated, truncated, _ = plain.step(action)
            assert step.rewards[0] == reward
            assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
            if terminated or truncated:
                assert np.array_equal(step.endings[0].final_observation, observation)
                observation, _ = plain.reset()
            observations = step.observations
        plain.close()


def test_box_actions_are_clipped_to_the_bounds_and_the_raw_ones_left_alone(
    make_copy: type[Counting], make_environments: Make
) -> None:
    space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
    copy = make_copy(3, action_space=space)
    with make_environments(copy) as environments:
        environments.reset()
        raw = np.array([[-3.5, 9.0]], np.float32)
        environments.step(raw)
        assert copy.taken[0].tolist() == [-1, 5]
        assert copy.taken[0].dtype == np.float32
        assert raw.tolist() == [[-3.5, 9.0]]
        environments.step(np.array([[0.5, 2]], np.float32))
        assert copy.taken[0].tolist() == [-1, 5], "an environment may keep what it was given"


def test_an_unbounded_box_is_not_clipped_and_keeps_its_dtype(
    make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy(action_space=spaces.Box(-np.inf, np.inf, (1,), np.float64))
    with make_environments(copy) as environments:
        environments.reset()
        environments.step(np.array([[1e30]], np.float32))
        assert copy.taken[0].dtype == np.float64
        assert copy.taken[0] == np.float32(1e30)


def test_discrete_actions_count_from_zero_and_the_environment_gets_its_own_numbers(
    make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy(action_space=spaces.Discrete(3, start=-1))
    with make_environments(copy) as environments:
        environments.reset()
        environments.step(np.array([0]))
        environments.step(np.array([2]))
        assert copy.taken == [-1, 1]
        assert environments.spec.action == Discrete(3, start=-1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64])
def test_observations_keep_the_dtype_of_their_space(
    dtype: type[np.generic], make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy()
    copy.observation_space = spaces.Box(0, 100, (4,), dtype)
    copy._observation = np.zeros(4, dtype)
    with make_environments(copy) as environments:
        assert environments.reset().dtype == dtype
        step = environments.step(ZEROS)
        assert step.observations.dtype == dtype
        assert step.observations.tolist() == [[0, 1, 1, 0]]
        observation = environments.spec.observation
        assert isinstance(observation, Box)
        assert observation.dtype == dtype


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(1, np.float32), np.zeros((4, 1), np.float32), 0.0, None, np.zeros(4, np.complex64)],
)
def test_an_observation_outside_its_space_is_named_and_never_stretched(
    wrong: object, make_copy: type[Counting], make_environments: Make
) -> None:
    copy = make_copy()
    with make_environments(copy) as environments:
        environments.reset()
        copy._observe = lambda: wrong  # type: ignore[assignment,return-value,method-assign]
        with pytest.raises(EnvironmentFailed, match="counting"):
            environments.step(ZEROS)
        with pytest.raises(EnvironmentFailed, match="counting"):
            environments.reset()


def test_an_error_of_the_environment_says_which_copy_and_what(
    make_copy: type[Counting], make_environments: Make
) -> None:
    def jam() -> None:
        raise RuntimeError("motor jammed")

    with make_environments(make_copy(), make_copy(on_step=jam)) as environments:
        environments.reset()
        with pytest.raises(
            EnvironmentFault, match=r"counting \(copy 1\) raised RuntimeError in step: motor"
        ) as caught:
            environments.step(np.zeros(2, np.int64))
        assert caught.value.exit_code == 1, "the arguments were good"


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Text(4), "Text is not supported"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph is not supported"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence is not supported"),
        (spaces.OneOf((spaces.Discrete(2),)), "OneOf is not supported"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(4)))}), "a.1 in it, a T"),
        (spaces.Dict({1: spaces.Discrete(2)}), "Dict with a key that is no text"),  # type: ignore[dict-item]
        (spaces.Dict({}), "a dict space needs unique"),
        (spaces.Tuple(()), "a tuple space needs one"),
        (
            spaces.Box(0, 1, (2,), np.longdouble),
            "a box of dtype .* gymnasium.wrappers.DtypeObservation",
        ),
        (spaces.Box(0, 1, (0,)), r"a box of shape \(0,\) has no element: leave it out"),
        (spaces.Dict({"arm": spaces.Tuple([spaces.Box(0, 1, (2, 0))])}), "arm.0: a box of shape"),
    ],
)
def test_unsupported_spaces_are_refused_by_name_and_path(
    space: spaces.Space[object], said: str, make_copy: type[Counting], make_environments: Make
) -> None:
    acting = make_copy(action_space=space)
    with pytest.raises(EnvironmentFailed, match=f"counting has an action space .*: {said}"):
        make_environments(acting)
    seeing = make_copy()
    seeing.observation_space = space
    with pytest.raises(EnvironmentFailed, match=f"an observation space .*: {said}") as caught:
        make_environments(seeing)
    assert "\n" not in str(caught.value)


def test_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(EnvironmentFailed, match=r'"cartpol-v1" \(did you mean "CartPole-v1"\?\)'):
        make_env(EnvConfig("cartpol-v1"))


def test_an_environment_that_is_out_of_date_is_made_without_a_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_env(EnvConfig("CartPole-v0", num_envs=2)).close()
    assert caught == []


def test_an_environment_is_made_from_a_module_and_an_attribute(module: str) -> None:
    with make_env(EnvConfig(f"{module}:Small", num_envs=2, kwargs={"size": 2})) as environments:
        assert environments.reset().shape == (2, 2)
        assert environments.spec.env_id == f"{module}:Small"
        assert environments.spec.reward_threshold is None


def test_an_environment_is_made_from_a_module_that_registers_it(module: str) -> None:
    with make_env(EnvConfig(f"{module}:Registered-v0")) as environments:
        assert environments.reset().shape == (1, 2)


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("no_such_module:Env", "no_such_module.*cannot be imported"),
        ("field_environments:Smal", r'no environment "Smal" \(did you mean "Small"\?\)'),
        ("field_environments:not_an_environment", "must return a gymnasium.Env"),
    ],
)
def test_what_is_wrong_with_a_module_is_said_in_one_line(
    env_id: str, said: str, module: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=said) as caught:
        make_env(EnvConfig(env_id))
    assert "\n" not in str(caught.value)


def test_a_module_that_is_missing_says_where_it_was_searched(module: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        make_env(EnvConfig("no_such_module:Env"))
    assert f"searched: the current directory ({Path.cwd()}) and the installed packages" in str(
        caught.value
    )
    (tmp_path / f"{module}_more.py").write_text("import a_package_it_needs")
    with pytest.raises(EnvironmentFailed, match="a_package_it_needs") as caught:
        make_env(EnvConfig(f"{module}_more:Env"))
    assert "searched" not in str(caught.value), "the module itself is there"


def test_wrong_keyword_arguments_are_shown(module: str) -> None:
    with pytest.raises(EnvironmentFailed, match=r"'size': 10.*size is at most 9"):
        make_env(EnvConfig(f"{module}:Small", kwargs={"size": 10}))
    with pytest.raises(EnvironmentFailed, match="sighs"):
        make_env(EnvConfig(f"{module}:Small", kwargs={"sighs": 1}))


def test_the_same_seed_gives_the_same_episodes_and_no_two_copies_share_any() -> None:
    def first(seed: int) -> list[list[float]]:
        with make_env(EnvConfig("CartPole-v1", num_envs=4, seed=seed)) as environments:
            observations: list[list[float]] = environments.reset().tolist()
            return observations

    assert first(0) == first(0)
    rows = [tuple(row) for seed in range(4) for row in first(seed)]
    assert len(set(rows)) == 16, "nor do devices whose seeds are neighbours"


def test_only_the_first_reset_is_seeded(make_copy: type[Counting], make_environments: Make) -> None:
    copy = make_copy(1)
    with make_environments(copy) as environments:
        environments.reset()
        environments.step(ZEROS)
        environments.reset()
        assert copy.seeds[0] is not None
        assert copy.seeds[1:] == [None, None]


def test_a_reset_begins_the_statistics_anew(
    make_copy: type[Counting], make_environments: Make
) -> None:
    with make_environments(make_copy(2)) as environments:
        environments.reset()
        environments.step(ZEROS)
        environments.reset()
        environments.step(ZEROS)
        (ending,) = environments.step(ZEROS).endings
        assert (ending.length, ending.total_return) == (2, 2.0)


def test_the_spec_says_threshold_limit_and_spaces() -> None:
    with make_env(EnvConfig("CartPole-v1")) as environments:
        spec = environments.spec
        assert (spec.reward_threshold, spec.max_episode_steps) == (475.0, 500)
        assert spec.action == Discrete(2)
        assert len(spec.fingerprint) == 32


def test_every_copy_is_closed(make_copy: type[Counting], make_environments: Make) -> None:
    copies = [make_copy(), make_copy()]
    with make_environments(*copies):
        pass
    assert [copy.closed for copy in copies] == [True, True]


def test_neither_torch_nor_onnx_is_imported_to_act() -> None:
    code = (
        "import sys, edge_agent.environments.env, edge_agent.acting.actor\n"
        "import edge_agent.policies.policy, edge_agent.policies.policy_store\n"
        "print([name for name in ('torch', 'onnx', 'tensorboard') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
