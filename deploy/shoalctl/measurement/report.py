"""Figures of a measurement: medians, a table, the machine, one JSON envelope."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

Cell = str | int | float | bool | None
CPU_INFO = Path("/proc/cpuinfo")
MEM_INFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a measurement ran on.

    Attributes:
        load_1m: Load average of the minute before it began: near 0 on a quiet machine.
    """

    system: str
    processor: str
    cores: int
    memory_gib: float
    python: str
    load_1m: float
    when: str

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"{self.processor}, {self.cores} cores, {self.system}, Python {self.python},"
            f" load {self.load_1m:.2f} at the start"
        )


def this_machine() -> Machine:
    """Describe this machine, now."""
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_field(CPU_INFO, "model name") or platform.processor() or "unknown",
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(int((_field(MEM_INFO, "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        python=platform.python_version(),
        load_1m=round(os.getloadavg()[0], 2),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def versions(*distributions: str) -> dict[str, str]:
    """Versions of the distributions that are installed here."""
    found: dict[str, str] = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def median(values: Sequence[float]) -> float:
    """The middle value; nan of nothing. Infinity stands for a run that never got there."""
    return statistics.median(values) if values else float("nan")


def finite(value: float, digits: int = 3) -> float | None:
    """A rounded number as JSON can hold it: None where there is none."""
    return round(value, digits) if abs(value) < float("inf") else None


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns of text; numbers to the right, a missing value as a dash."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(headings), *texts]) for i in range(len(headings))]
    right = [all(not isinstance(row[i], str) for row in rows) for i in range(len(headings))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(headings), *texts]
    )


def envelope(schema: str, machine: Machine, body: dict[str, object]) -> str:
    """The one JSON document of a measurement."""
    return json.dumps({"schema": schema, "machine": asdict(machine), **body}, indent=2)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return cell


def _field(path: Path, name: str) -> str | None:
    if not path.exists():
        return None
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
