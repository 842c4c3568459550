"""The pure parts of `shoal bench async`: the spreads, the plans, the ratios."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from bench.async_sync import MODES, Fleet, Run, plan_of, step_times, summarize, text_of
from bench.real_time import RealTimeCartPole
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.config import LearnerConfig
from edge_agent.config import AgentConfig
from shoal.config import load_config
from shoalctl.demo.workspace import make_workspace


@given(st.integers(1, 64), st.floats(0.0, 2.0), st.floats(0.1, 100.0))
def test_a_log_normal_spread_lies_evenly_around_its_median(
    devices: int, sigma: float, median_ms: float
) -> None:
    times = step_times(f"lognormal-{sigma}", devices, median_ms)
    assert times == sorted(times)
    logs = [math.log(ms / median_ms) for ms in times]
    assert sum(logs) == pytest.approx(0.0, abs=1e-6 * devices)
    if devices > 1 and sigma > 0.01:
        assert max(logs) == pytest.approx(-min(logs))


def test_the_other_spreads_are_what_they_say() -> None:
    assert step_times("equal", 3, 8.0) == [8.0, 8.0, 8.0]
    assert step_times("straggler", 3, 8.0) == [8.0, 8.0, 80.0]
    assert step_times("two-kinds", 3, 8.0) == [8.0, 8.0, 32.0]
    for unknown in ("lognormal", "lognormal-", "lognormal-x", "evenly"):
        with pytest.raises(ValueError, match="straggler"):
            step_times(unknown, 3, 8.0)


def test_both_modes_differ_in_nothing_but_who_waits_for_whom(tmp_path: Path) -> None:
    fleet, found = Fleet(devices=2), {}
    for mode in MODES:
        workspace = make_workspace(tmp_path / mode, plan_of(fleet, "straggler", mode, 3))
        overrides = plan_of(fleet, "straggler", mode, 3).learner
        learner = load_config(
            LearnerConfig, workspace.directory / "learner.toml", environ={}, overrides=overrides
        )
        agents = [
            load_config(AgentConfig, workspace.directory / f"{name}.toml", environ={})
            for name in ("device-0", "device-1")
        ]
        assert [agent.env.kwargs for agent in agents] == [{"step_ms": 4.0}, {"step_ms": 40.0}]
        found[mode] = (learner.training, agents[0].actor.max_chunks_per_policy)
    (sync, sync_ahead), (asynchronous, async_ahead) = (found[mode] for mode in MODES)
    assert (sync.mode, sync.lockstep_chunks, sync_ahead) == ("sync", 2, 2)
    assert (asynchronous.mode, async_ahead) == ("async", 0)
    assert sync.settings == asynchronous.settings
    assert sync.batch_steps == asynchronous.batch_steps == 2 * 2 * 4 * 32


def run(mode: str, steps_per_s: float, solved: int | None, spread: str = "equal") -> Run:
    took = None if solved is None else solved / steps_per_s
    return Run(spread, mode, 0, steps_per_s, solved, took, 9, 0.0, 0.0, balanced=True)


def test_the_ratios_are_of_medians_and_missing_where_it_was_not_solved() -> None:
    runs = [
        *(run("sync", rate, 1000) for rate in (90.0, 100.0, 500.0)),
        *(run("async", rate, 1200) for rate in (400.0, 500.0, 600.0)),
        run("sync", 10.0, None, "straggler"),
        run("async", 80.0, 900, "straggler"),
    ]
    equal, straggler = summarize(runs, Fleet())
    assert (equal.steps_per_s_ratio, equal.solved_steps_ratio) == (5.0, 1.2)
    assert (straggler.steps_per_s_ratio, straggler.solved_steps_ratio) == (8.0, None)
    assert straggler.slowest_to_fastest == 10.0
    assert "5.00" in text_of([equal, straggler])


def test_a_step_in_real_time_is_a_step_of_the_same_environment() -> None:
    env = RealTimeCartPole(step_ms=0.0)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert env.step(0)[1] == 1.0
    env.close()
