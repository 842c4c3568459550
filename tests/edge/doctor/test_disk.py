"""Room on the disk, and how full the spool is; nothing is left behind, nobody is disturbed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.checks.finding import Level
from edge_agent.config import AgentConfig, EnvConfig, SpoolConfig
from edge_agent.doctor.disk import MIB, Room, judge_room, look_at_disk, look_at_spool
from edge_agent.events import Events
from edge_agent.spool.spool import Spool

ROOM = Room(free_bytes=1000 * MIB, free_inodes=1000, sync_s=0.001)


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig("demo", tmp_path / "nobody", tmp_path / "state", EnvConfig("CartPole-v1"))


def spool(config: AgentConfig) -> Spool:
    config.state_dir.mkdir()
    events = Events("pi-1", bytes(16), clock=lambda: 0.0)
    return Spool(config.spool_path, max_bytes=1 << 20, run_id=bytes(16), events=events)


def test_a_disk_with_room_is_measured_and_left_as_it_was(
    config: AgentConfig, tmp_path: Path
) -> None:
    finding = look_at_disk(config)
    assert finding.level in (Level.OK, Level.WARN)
    assert finding.figures["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("room", "level", "says"),
    [
        (ROOM, Level.OK, "1000 MiB free"),
        (replace(ROOM, free_inodes=None), Level.OK, "1000 MiB free"),
        (replace(ROOM, free_bytes=MIB), Level.FAULT, "make room, else nothing can be kept"),
        (replace(ROOM, free_inodes=3), Level.FAULT, "3 more files fit"),
        (replace(ROOM, free_bytes=100 * MIB), Level.WARN, "may grow by 246 MiB"),
        (replace(ROOM, sync_s=0.9), Level.WARN, "a slow or worn card"),
    ],
)
def test_room_is_judged(room: Room, level: Level, says: str) -> None:
    finding = judge_room(Path("/var/lib/shoal"), room, 256 * MIB, 10 * MIB)
    assert finding.level is level
    assert says in finding.detail
    assert (finding.exit_code == 1) == (level is Level.FAULT)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_a_fault(config: AgentConfig) -> None:
    config.state_dir.mkdir(mode=0o500)
    assert look_at_disk(config).level is Level.FAULT


def test_no_spool_is_no_fault(config: AgentConfig) -> None:
    assert look_at_spool(config).detail.endswith("none yet; the agent makes it")


def test_a_spool_in_use_is_measured_from_outside_and_goes_on(config: AgentConfig) -> None:
    with spool(config) as running:
        running.append(b"x" * 1000, 1)
        finding = look_at_spool(config)
        assert finding.level is Level.OK
        assert "in use by a running agent" in finding.detail
        assert finding.figures["used_bytes"] > 1000
        assert running.append(b"x" * 1000, 1) == 1


def test_a_spool_that_is_nearly_full_is_warned_of(config: AgentConfig) -> None:
    with spool(config) as running:
        for _ in range(60):
            running.append(b"x" * 1024, 1)
    finding = look_at_spool(replace(config, spool=SpoolConfig(max_bytes=65_536)))
    assert finding.level is Level.WARN
    assert "60 chunks wait, 0.1 of 0 MiB: soon the oldest are dropped" in finding.detail
    assert finding.figures == {"used_bytes": 61_440.0, "max_bytes": 65_536.0, "chunks": 60.0}
