"""Memory, temperature and throttling, of machines that are nothing but files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.checks.finding import Finding, Level
from edge_agent.doctor.machine import Machine, judge_memory, judge_temperature, judge_throttling

MEMINFO = "MemTotal:        947712 kB\nMemFree: 1 kB\nMemAvailable:   {available} kB\n"


def look(root: Path, vcgencmd: str | None = None) -> dict[str, Finding]:
    return {each.name: each for each in Machine(root, vcgencmd).look()}


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_machine_that_tells_nothing_has_nothing_wrong(tmp_path: Path) -> None:
    found = look(tmp_path, vcgencmd=str(tmp_path / "none"))
    assert {each.level for each in found.values()} == {Level.SKIPPED}
    assert found["throttling"].detail == "only a Raspberry Pi tells"


def test_a_raspberry_pi_is_read_from_its_files(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO.format(available=500_000))
    put(tmp_path, "sys/class/thermal/thermal_zone0/temp", "81500\n")
    put(tmp_path, "sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
    put(tmp_path, "sys/class/thermal/thermal_zone1/temp", "garbage\n")
    put(tmp_path, "sys/devices/platform/soc/soc:firmware/get_throttled", "50005\n")
    found = look(tmp_path)
    assert found["memory"].level is Level.OK
    assert found["temperature"].level is Level.WARN
    assert "82 degrees Celsius (cpu-thermal)" in found["temperature"].detail
    assert found["temperature"].figures == {"hottest_c": 81.5}
    assert found["throttling"].level is Level.WARN
    assert found["throttling"].detail == (
        "now: the supply voltage is too low, the processor is throttled: use a stronger power"
        " supply and a short cable, cool it"
    )


@pytest.mark.parametrize("said", ["throttled=0x50000", "not a number", ""])
def test_the_pis_own_program_is_asked_where_there_is_no_file(tmp_path: Path, said: str) -> None:
    program = tmp_path / "vcgencmd"
    program.write_text(f"#!/bin/sh\ntest $1 = get_throttled && echo '{said}'\n")
    program.chmod(0o755)
    found = look(tmp_path, str(program))["throttling"]
    if said.startswith("throttled"):
        assert found.detail.startswith(
            "not now, but since the start: the supply voltage is too low"
        )
    else:
        assert found.level is Level.SKIPPED


def test_a_program_that_fails_is_no_answer(tmp_path: Path) -> None:
    program = tmp_path / "vcgencmd"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert look(tmp_path, str(program))["throttling"].level is Level.SKIPPED


@given(st.integers(0, 2**32 - 1))
def test_every_pattern_of_bits_has_a_meaning_or_none(bits: int) -> None:
    finding = judge_throttling(bits)
    known = bits & 0xF or bits >> 16 & 0xF
    assert (finding.level is Level.WARN) == bool(known)
    assert finding.ok


def test_little_memory_and_killed_processes_are_warned_of() -> None:
    low = judge_memory(MEMINFO.format(available=50_000), "")
    assert low.level is Level.WARN
    assert "48 MiB of 925 MiB available" in low.detail
    killed = judge_memory(MEMINFO.format(available=500_000), "pgfault 3\noom_kill 2\n")
    assert killed.level is Level.WARN
    assert "has killed 2 processes" in killed.detail


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.floats(-40.0, 150.0), min_size=1))
def test_the_hottest_sensor_counts(celsius: dict[str, float]) -> None:
    finding = judge_temperature(celsius)
    assert finding.figures == {"hottest_c": max(celsius.values())}
    assert (finding.level is Level.WARN) == (max(celsius.values()) >= 75.0)
