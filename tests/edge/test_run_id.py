"""Runs are named at random, or from a seed for an experiment that can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.run_id import STARTS_FILE, new_run_id
from shoal.errors import ConfigError
from shoal.noise import RUN_ID_BYTES


def test_runs_without_a_seed_are_never_named_alike(tmp_path: Path) -> None:
    names = {new_run_id("pi-1", tmp_path, None) for _ in range(64)}
    assert len(names) == 64
    assert {len(name) for name in names} == {RUN_ID_BYTES}
    assert not (tmp_path / STARTS_FILE).exists()


def test_a_seeded_experiment_names_its_runs_alike_each_time_it_is_repeated(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    names = [[new_run_id("pi-1", where, 7) for _ in range(3)] for where in (first, again)]
    assert names[0] == names[1]
    assert len(set(names[0])) == 3, "a restart must not take the name of the run before it"


def test_devices_and_seeds_give_other_names(tmp_path: Path) -> None:
    named = {
        new_run_id(device, tmp_path / f"{device}-{seed}", seed)
        for device in ("pi-1", "pi-2")
        for seed in (0, 1)
    }
    assert len(named) == 4


def test_a_damaged_count_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / STARTS_FILE).write_text("many")
    with pytest.raises(ConfigError, match="fresh state_dir"):
        new_run_id("pi-1", tmp_path, 1)
