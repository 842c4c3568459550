"""The machine under an agent: memory, temperature, throttling. Reads files, changes nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.checks.finding import Finding, Level

MIB: Final = 1024 * 1024
LOW_MEMORY_BYTES: Final = 96 * MIB
"""What an agent takes, about (`shoal bench footprint`); with less left, the next start may fail."""
HOT_C: Final = 75.0
"""A Raspberry Pi slows down from 80 degrees Celsius on."""
VCGENCMD_TIMEOUT_S: Final = 3.0
_THROTTLED: Final = Path("sys/devices/platform/soc/soc:firmware/get_throttled")
_NOW: Final = (
    (0x1, "the supply voltage is too low"),
    (0x2, "the clock rate is capped"),
    (0x4, "the processor is throttled"),
    (0x8, "it is at its soft temperature limit"),
)
_SINCE_BOOT: Final = 16
"""The same bits, this much further left: at any time since the start."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a machine tells of itself.

    for finding in Machine().look(): ...

    Attributes:
        root: Of its files; another one in tests.
        vcgencmd: The Raspberry Pi's own program; None: looked for on the PATH.
    """

    root: Path = Path("/")
    vcgencmd: str | None = None

    def look(self) -> tuple[Finding, Finding, Finding]:
        """Memory, temperature and throttling."""
        return (
            judge_memory(_read(self.root / "proc/meminfo"), _read(self.root / "proc/vmstat")),
            judge_temperature(self._temperatures()),
            judge_throttling(self._throttled()),
        )

    def _temperatures(self) -> dict[str, float]:
        """Degrees Celsius by the name of the sensor."""
        found: dict[str, float] = {}
        for zone in sorted((self.root / "sys/class/thermal").glob("thermal_zone*")):
            told = _read(zone / "temp").strip()
            if re.fullmatch(r"-?\d{1,7}", told):
                found[_read(zone / "type").strip() or zone.name] = int(told) / 1000
        return found

    def _throttled(self) -> int | None:
        """The Raspberry Pi's bits; None on another machine."""
        text = _read(self.root / _THROTTLED).strip()
        if not text:
            program = self.vcgencmd or shutil.which("vcgencmd")
            text = _run([program, "get_throttled"]).strip() if program else ""
        match = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]{1,8})", text)
        return int(match[1], 16) if match else None


def judge_memory(meminfo: str, vmstat: str) -> Finding:
    """What /proc/meminfo and /proc/vmstat mean."""
    name = "memory"
    values = {
        key: int(count) * 1024 for key, count in re.findall(r"(?m)^(\w+):\s+(\d+) kB", meminfo)
    }
    if "MemAvailable" not in values or "MemTotal" not in values:
        return Finding(name, Level.SKIPPED, "this machine does not tell")
    available, total = values["MemAvailable"], values["MemTotal"]
    match = re.search(r"(?m)^oom_kill (\d+)$", vmstat)
    killed = int(match[1]) if match else 0
    figures = {"available_bytes": available, "total_bytes": total, "oom_kills": killed}
    detail = f"{available // MIB} MiB of {total // MIB} MiB available"
    if available < LOW_MEMORY_BYTES:
        detail += "; an agent takes about so much: stop something, or lower env.num_envs"
        return Finding(name, Level.WARN, detail, figures=figures)
    if killed:
        detail += (
            f"; since the start the kernel has killed {killed} processes for want of memory:"
            " `journalctl -k` names them"
        )
        return Finding(name, Level.WARN, detail, figures=figures)
    return Finding(name, Level.OK, detail, figures=figures)


def judge_temperature(celsius: dict[str, float]) -> Finding:
    """What the sensors mean.

    Args:
        celsius: Degrees by the name of the sensor.
    """
    name = "temperature"
    if not celsius:
        return Finding(name, Level.SKIPPED, "this machine has no sensor that Linux shows")
    hottest = max(celsius, key=lambda each: celsius[each])
    figures = {"hottest_c": celsius[hottest]}
    detail = f"{celsius[hottest]:.0f} degrees Celsius ({hottest})"
    if celsius[hottest] >= HOT_C:
        detail += "; it soon slows down: give it air, or a heat sink"
        return Finding(name, Level.WARN, detail, figures=figures)
    return Finding(name, Level.OK, detail, figures=figures)


def judge_throttling(bits: int | None) -> Finding:
    """What a Raspberry Pi's `get_throttled` means.

    Args:
        bits: As the firmware gives them; None on another machine.
    """
    name = "throttling"
    if bits is None:
        return Finding(name, Level.SKIPPED, "only a Raspberry Pi tells")
    now = [meaning for bit, meaning in _NOW if bits & bit]
    before = [meaning for bit, meaning in _NOW if bits >> _SINCE_BOOT & bit]
    figures = {"bits": float(bits)}
    if not now and not before:
        return Finding(name, Level.OK, "never since the start", figures=figures)
    said = "now: " + ", ".join(now) if now else "not now, but since the start: " + ", ".join(before)
    cures = []
    if (bits | bits >> _SINCE_BOOT) & 0x1:
        cures.append("use a stronger power supply and a short cable")
    if (bits | bits >> _SINCE_BOOT) & 0xE:
        cures.append("cool it")
    return Finding(name, Level.WARN, f"{said}: {', '.join(cures)}", figures=figures)


def _read(path: Path) -> str:
    """A file's text; empty if it is not there, or not for us."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _run(command: list[str]) -> str:
    """What a program writes; empty if it fails."""
    try:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=VCGENCMD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
