"""What of a flash has reached the target for certain, so that an interrupted one can go on.

Nothing in it is trusted: a piece is skipped only when its digest is that of what would be written,
and everything is read back and compared in any case.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from shoal.durable_file import write_durably
from shoal.errors import ConfigError

SCHEMA = "shoal.v1.FlashJournal"


@dataclass(slots=True)
class FlashJournal:
    """The journal of one flash, a file of its own.

    Attributes:
        path: Where it is kept.
        target: Which disk or file it is about.
        instance_id: The instance that the device was given; a resumed flash gives the same.
        digests: Of each piece that is on the target for certain, in order; None where it is not.
    """

    path: Path
    target: str
    instance_id: str
    digests: list[str | None] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, target: str) -> FlashJournal:
        """Reads the journal of an interrupted flash.

        Raises:
            ConfigError: There is none, it is damaged, or it is about another target.
        """
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(
                f"there is no interrupted flash of {target} to resume: leave --resume out"
            ) from error
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the journal {path} can't be read ({error}): leave --resume out to start again"
            ) from error
        fields = document if isinstance(document, dict) else {}
        digests = fields.get("digests")
        sane = (
            fields.get("schema") == SCHEMA
            and isinstance(fields.get("instance_id"), str)
            and isinstance(digests, list)
            and all(digest is None or isinstance(digest, str) for digest in digests)
        )
        if not sane:
            raise ConfigError(f"the journal {path} is damaged: leave --resume out to start again")
        if fields.get("target") != target:
            raise ConfigError(
                f"the journal {path} is about {fields.get('target')}, and this is {target}: "
                "put that one in, or leave --resume out to start again"
            )
        return cls(path, target, str(fields["instance_id"]), list(digests or ()))

    def holds(self, index: int, digest: str) -> bool:
        """Whether piece `index` is on the target with that content."""
        return index < len(self.digests) and self.digests[index] == digest

    def record(self, first: int, digests: Collection[str]) -> None:
        """Notes that pieces from index `first` on are on the target, which has been synced.

        Raises:
            OSError: The journal can't be written.
        """
        missing = first + len(digests) - len(self.digests)
        self.digests += [None] * max(0, missing)
        self.digests[first : first + len(digests)] = digests
        self._write()

    def forget(self, indices: Collection[int]) -> None:
        """Notes that pieces are not as they should be, so that they are written again.

        Raises:
            OSError: The journal can't be written.
        """
        for index in indices:
            if index < len(self.digests):
                self.digests[index] = None
        self._write()

    def remove(self) -> None:
        """Ends the journal: there is nothing to resume."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _write(self) -> None:
        document = {
            "schema": SCHEMA,
            "target": self.target,
            "instance_id": self.instance_id,
            "digests": self.digests,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(self.path, json.dumps(document).encode())
