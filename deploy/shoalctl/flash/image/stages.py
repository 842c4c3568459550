"""The stages of a flash, in their order, and whoever wants to hear of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Stage(StrEnum):
    """What a flash is doing. Nothing on the target changes before `ERASE`."""

    CHECK = "check"
    """The image file is hashed, and compared if a digest is known."""
    PREPARE = "prepare"
    """The boot partition is unpacked on this machine and seeded there."""
    ERASE = "erase"
    """What made the target bootable is overwritten with zeros."""
    WRITE = "write"
    """Everything but the partition table is written."""
    VERIFY = "verify"
    """Everything is read back, past the page cache, and compared."""
    SEEDS = "seeds"
    """The seed files are read from the target by their names, and compared."""
    COMMIT = "commit"
    """The partition table is written, block 0 last, and read back."""

    @property
    def touches_target(self) -> bool:
        """Whether the target may not be bootable when a flash ends here."""
        return self not in {Stage.CHECK, Stage.PREPARE}


class Progress(Protocol):
    """Hears how a flash goes."""

    def begin(self, stage: Stage, total_bytes: int | None) -> None:
        """A stage begins; `total_bytes` is None where nobody can know it."""
        ...

    def advance(self, count_bytes: int) -> None:
        """So much more of the stage is done."""
        ...
