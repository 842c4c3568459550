"""Where roots are kept that take minutes to build: each is there whole, or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SHOAL_DEVICE_CACHE"


def usual_directory() -> Path:
    """`$SHOAL_DEVICE_CACHE`, or `shoal/device` in the user's cache."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "shoal" / "device"


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Waits until nobody else holds a lock, then holds it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class RootCache:
    """A directory of what was built; what is in it is only read.

    >>> root = RootCache(usual_directory()).get("aarch64", recipe, build)  # build(directory)

    Attributes:
        directory: Made when it is first used.
    """

    directory: Path

    def get(self, name: str, recipe: str, build: Callable[[Path], None]) -> Path:
        """What was built by a recipe; another recipe of that name is thrown away.

        Args:
            name: Of what is built.
            recipe: Everything that it follows from.
            build: Fills an empty directory.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
        place = self.directory / f"{name}-{digest}"
        with alone(self.directory / f"{name}.lock"):
            if place.exists():
                return place
            for other in self.directory.glob(f"{name}-*"):
                shutil.rmtree(other)
            building = self.directory / f"{name}-building"
            building.mkdir()
            build(building)
            building.rename(place)
            return place
