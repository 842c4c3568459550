"""What an installation takes on the disk: a device's, as `pip install` leaves it."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
SIZE_BAR_MB: Final = 220.0
GLIBCS: Final = ("2_28", "2_27", "2_26", "2_24", "2_17")
"""The manylinux platforms of wheels that Debian 10 and newer take."""


@dataclass(frozen=True, slots=True)
class Size:
    """What an installation takes on the disk, in 10^6 bytes.

    Attributes:
        actor: Whose.
        mb: Of all files.
        largest: The largest packages, by name.
        bar_mb: What it must not exceed; None where nothing is said.
    """

    actor: str
    mb: float
    largest: dict[str, float]
    bar_mb: float | None = None


def fresh_sizes(actor: str) -> list[Size]:
    """Installs the base package, as a device does, here and for aarch64, and weighs both.

    The bar is for what `pip install` adds, its bytecode too. pip itself, and setuptools in Pythons
    that bring it, are in every virtual environment; with them, there is no bar.
    """
    with _temporary() as directory:
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        packages = next((directory / "lib").glob("python*/site-packages"))
        brought = {path.name for path in packages.iterdir()}
        _pip(directory / "bin" / "python", "install", str(CHECKOUT))
        by_name = {path.name: _weigh(path) for path in packages.iterdir()}
        ours = {name: size for name, size in by_name.items() if name not in brought}
        whole = _weigh(directory)
    with _temporary() as directory:
        _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(directory), str(CHECKOUT))
        (wheel,) = directory.glob("*.whl")
        packages = directory / "packages"
        platforms = [f"--platform=manylinux_{glibc}_aarch64" for glibc in GLIBCS]
        _pip(
            sys.executable,
            *("install", "--target", str(packages), "--no-compile", "--only-binary=:all:"),
            *(*platforms, "--platform=manylinux2014_aarch64", str(wheel)),
        )
        arm = {path.name: _weigh(path) for path in packages.iterdir()}
    return [
        _size(f"{actor}, what a fresh venv gains", ours, SIZE_BAR_MB),
        Size(f"{actor}, that venv whole, with pip", _mb(whole), _largest(by_name)),
        _size(f"{actor}, the same on aarch64, without bytecode", arm, SIZE_BAR_MB),
    ]


def installed_size(
    actor: str, *roots: str, less: Sequence[str] = (), bar_mb: float | None = None
) -> Size:
    """What distributions and all that they need weigh, as they are installed here."""
    by_name: dict[str, int] = {}
    for name in closure(roots) - set(less):
        files = metadata.distribution(name).files or ()
        by_name[name] = sum(
            file.locate().stat().st_size  # type: ignore[attr-defined] # a path of importlib's
            for file in files
            if file.locate().is_file()  # type: ignore[attr-defined]
        )
    return _size(f"{actor}, its packages here", by_name, bar_mb)


def closure(roots: Sequence[str]) -> set[str]:
    """Distributions and what they need, extras left out."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for text in needed:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


@contextmanager
def _temporary() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="shoal-footprint-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _pip(python: str | Path, command: str, *arguments: str) -> None:
    constraints = CHECKOUT / "constraints.txt"
    subprocess.run(
        [python, "-m", "pip", command, "-qq", "--constraint", constraints, *arguments], check=True
    )


def _weigh(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_weigh(each) for each in path.iterdir())


def _size(actor: str, by_name: dict[str, int], bar_mb: float | None) -> Size:
    return Size(actor, _mb(sum(by_name.values())), _largest(by_name), bar_mb)


def _mb(size: int) -> float:
    return round(size / 1e6, 1)


def _largest(by_name: dict[str, int]) -> dict[str, float]:
    heaviest = sorted(by_name.items(), key=lambda item: -item[1])[:8]
    return {name: _mb(size) for name, size in heaviest}
