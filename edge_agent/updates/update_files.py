"""The directory `updates/` of a device: bundles that come in parts, requests and their results.

<digest>.part     what came of a bundle so far, as a file
<digest>/         the bundle, unpacked: every byte of it was proven
rollout.json      what all this is about
request.json      what the launcher is asked to do; it removes it
result.json       what became of that; it writes it
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edge_agent.slots import codec
from edge_agent.slots.state import State
from edge_agent.updates.agent_step import AgentAsked, AgentSeen, Result
from shoal.bundle_archive import unpack
from shoal.durable_file import write_durably
from shoal.errors import BundleRefused

SCHEMA: Final = 1
MAX_FILE_BYTES: Final = 4096
ROOM: Final = 3
"""Times its size that must be free for a bundle: it is fetched, unpacked and copied."""
_PIECE_BYTES: Final = 1 << 20


class UpdateFiles:
    """Reads and writes them. Not for the event loop, but for the small ones.

    files = UpdateFiles(state_dir / "updates", slots=Path(os.environ["SHOAL_SLOTS_FILE"]))
    files.begin(asked)
    seen = files.look(asked, problem="")
    """

    def __init__(self, directory: Path, *, slots: Path | None) -> None:
        """Touches nothing yet.

        Args:
            directory: Made when it is needed.
            slots: The state of the slots; None: this agent does not run from slots.
        """
        self._directory = directory
        self._slots = slots

    def look(self, asked: AgentAsked, *, problem: str) -> AgentSeen:
        """What is so.

        Raises:
            OSError: The state of the slots cannot be read.
        """
        request, result = self._table("request.json"), self._table("result.json")
        return AgentSeen(
            state=self._state(),
            requested=str(request.get("digest", "")),
            result=Result(*(str(result.get(key, "")) for key in ("digest", "state", "reason")))
            if result
            else None,
            unpacked=self.unpacked(asked).is_dir(),
            problem=problem,
        )

    def begin(self, asked: AgentAsked) -> None:
        """Leaves nothing of what was asked for before; goes on where it is the same.

        Raises:
            OSError: The disk refuses.
        """
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"schema": SCHEMA, "rollout": asked.rollout_id, "digest": asked.name}
        if self._table("rollout.json") != about:
            # What became of it in another rollout does not count in this one.
            (self._directory / "result.json").unlink(missing_ok=True)
            write_durably(self._directory / "rollout.json", json.dumps(about).encode())
        for path in self._directory.iterdir():
            stem = path.name.removesuffix(".part").removeprefix(".").removesuffix(".unpacking")
            if _is_digest(stem) and stem != asked.name:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def clean(self) -> None:
        """Removes every bundle: it is installed, or of no more use.

        Raises:
            OSError: The disk refuses.
        """
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if _is_digest(path.name.removesuffix(".part")):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def part(self, asked: AgentAsked) -> Path:
        """What came of a bundle so far."""
        return self._directory / f"{asked.name}.part"

    def unpacked(self, asked: AgentAsked) -> Path:
        """The bundle, once it is whole."""
        return self._directory / asked.name

    def lacks_room(self, asked: AgentAsked) -> str:
        """Why there is no room for a bundle; empty: there is.

        Raises:
            OSError: The disk refuses.
        """
        free = shutil.disk_usage(self._directory).free + _size(self.part(asked))
        if free >= ROOM * asked.bundle_bytes:
            return ""
        return (
            f"{free} bytes are free in {self._directory}, the bundle needs "
            f"{ROOM * asked.bundle_bytes}: free some"
        )

    def unpack(self, asked: AgentAsked, public_key: bytes) -> None:
        """Proves what was fetched and unpacks it; what is not proven is removed.

        Raises:
            BundleRefused: It is not what was asked for, or not the fleet's.
            OSError: The disk refuses.
        """
        part = self.part(asked)
        try:
            self._prove(asked, public_key)
        except BundleRefused:
            part.unlink(missing_ok=True)
            raise
        part.unlink(missing_ok=True)

    def request(self, asked: AgentAsked) -> None:
        """Asks the launcher to install a bundle and to switch to it, or to leave it.

        Raises:
            OSError: The disk refuses.
        """
        request: dict[str, object] = {
            "schema": SCHEMA,
            "bundle": asked.name,
            "digest": asked.name,
            "reason": asked.reason,
        }
        if asked.go_back:
            request["rollback"] = True
        write_durably(self._directory / "request.json", json.dumps(request).encode())

    def _prove(self, asked: AgentAsked, public_key: bytes) -> None:
        directory = self.unpacked(asked)
        if _sha256(self.part(asked)) != asked.bundle_digest:
            raise BundleRefused("digest", f"bundle {asked.version} is not what was announced")
        manifest = unpack(self.part(asked), directory, public_key)
        if manifest.digest != asked.name:
            shutil.rmtree(directory)
            raise BundleRefused("digest", f"bundle {asked.version} has another manifest")

    def _state(self) -> State | None:
        if self._slots is None:
            return None
        try:
            return codec.decode(self._slots.read_bytes()[: codec.MAX_BYTES + 1])
        except codec.Malformed as error:
            raise OSError(f"{self._slots}: {error}") from error

    def _table(self, name: str) -> Mapping[str, object]:
        """A small file; what is none, or damaged, says nothing."""
        try:
            with (self._directory / name).open("rb") as file:
                found = json.loads(file.read(MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def slots_file() -> Path | None:
    """The state of the slots that the launcher tells of; None: no launcher started this agent."""
    told = os.environ.get("SHOAL_SLOTS_FILE")
    return Path(told) if told else None


def _is_digest(name: str) -> bool:
    return len(name) == 2 * hashlib.sha256().digest_size and set(name) <= set("0123456789abcdef")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sha256(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.digest()
