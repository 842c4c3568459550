"""Where a device reaches its fleet, as it was told when it was enrolled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from shoal.errors import IdentityError

MEMBERSHIP_FILE = "fleet.json"


@dataclass(frozen=True, slots=True)
class Membership:
    """What a device knows of its fleet beside its identity; `host:port` each, empty if unknown."""

    fleet: str
    device_id: str
    broker: str = ""
    parameter_server: str = ""
    enrollment: str = ""

    @classmethod
    def load(cls, identity: Path) -> Self | None:
        """Reads it from an identity directory; None if the identity was not made by enrolment.

        Raises:
            IdentityError: The file is damaged.
        """
        path = identity / MEMBERSHIP_FILE
        try:
            found = json.loads(path.read_text("utf-8"))
            return cls(**{key: str(value) for key, value in found.items()})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise IdentityError(f"{path}: damaged ({error}); remove it, or enrol anew") from error

    def dump(self) -> bytes:
        """The file's content."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"
