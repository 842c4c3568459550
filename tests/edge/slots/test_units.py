"""The units that `shoal flash` installs: hardened, and what systemd itself says of them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "deploy" / "edge" / "systemd"
MOST_EXPOSURE = {"shoal-agent.service": 1.5, "shoal-update.service": 2.0}
UNKNOWN_BEFORE_254 = ("RestartSteps", "RestartMaxDelaySec")


def section(unit: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / unit).read_text())
    return dict(parser[name])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "notify"),
        ("User", "shoal"),
        ("Restart", "always"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("StateDirectory", "shoal"),
        ("PrivateTmp", "yes"),
        ("CapabilityBoundingSet", ""),
        ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6"),
    ],
)
def test_the_agent_is_confined(key: str, value: str) -> None:
    assert section("shoal-agent.service", "Service")[key] == value


def test_the_agent_has_limits_a_watchdog_and_growing_pauses() -> None:
    service = section("shoal-agent.service", "Service")
    assert {"MemoryMax", "CPUQuota", "WatchdogSec", "RestartSteps", "RestartMaxDelaySec"} <= set(
        service
    )
    assert section("shoal-agent.service", "Unit")["StartLimitIntervalSec"] == "0"  # never gives up


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@needs_systemd
@pytest.mark.parametrize("unit", MOST_EXPOSURE)
def test_systemd_finds_the_units_little_exposed(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze can't do it: {done.stderr[-200:]}")
    assert float(found[1]) <= MOST_EXPOSURE[unit]


@needs_systemd
def test_systemd_reads_the_units_without_complaint() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(UNITS.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [
        line
        for line in done.stderr.splitlines()
        if str(UNITS) in line or line.startswith("shoal-")
        if not any(key in line for key in UNKNOWN_BEFORE_254)
        if "is not executable" not in line  # nothing is installed here
    ]
    assert not complaints
