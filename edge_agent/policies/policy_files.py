"""Where a device keeps its policies: files that a power cut leaves whole, the old or the new.

    00000000000000000007-<sha256 of the manifest>.bundle     proven, ready to load
    00000000000000000006-<...>.bundle                        the one before
    00000000000000000005-<...>.condemned                     accepted once, then failed: empty
    00000000000000000002.generation                          the highest of delegates: empty
    graphs/<sha256>.onnx

A name holds the version, so that even a damaged file counts against a rollback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.durable_file import remove_leftovers, write_durably
from shoal.errors import PolicyRejected
from shoal.generation_mark import GenerationMark
from shoal.logs import get_logger
from shoal.policy import MAX_BUNDLE_BYTES, MAX_GRAPH_BYTES, sha256

log = get_logger("policy_files")
_NAME = re.compile(r"(\d{20})-([0-9a-f]{64})\.(bundle|condemned)")


@dataclass(frozen=True, slots=True, order=True)
class PolicyFile:
    """One version on disk, as its name says.

    Attributes:
        manifest_digest: sha256 of the serialized manifest.
        condemned: It failed after it was accepted, and may not come back.
    """

    version: int
    manifest_digest: bytes
    condemned: bool = False

    @property
    def name(self) -> str:
        """The file's name."""
        kind = "condemned" if self.condemned else "bundle"
        return f"{self.version:020d}-{self.manifest_digest.hex()}.{kind}"


class PolicyFiles:
    """The directory of one trust: a fleet and its signing key.

    files = PolicyFiles(Path("policies"))
    files.write(PolicyFile(7, sha256(manifest)), bundle)
    """

    def __init__(self, directory: Path) -> None:
        """Makes the directory and removes what a power cut left half written.

        Raises:
            OSError: It cannot be made or read.
        """
        self._directory = directory
        self._graphs = directory / "graphs"
        self._proven: dict[bytes, bytes] = {}  # graphs by sha256; read once, and mended from here
        for path in (self._directory, self._graphs):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(path)

    def list(self) -> list[PolicyFile]:
        """All versions, newest first."""
        return list_files(self._directory)

    def generation_mark(self) -> GenerationMark:
        """The highest generation of delegates that was accepted.

        Raises:
            OSError: The directory cannot be read.
        """
        return GenerationMark(self._directory)

    def read(self, file: PolicyFile) -> bytes:
        """A bundle's bytes; one more than the limit at most.

        Raises:
            OSError: It cannot be read.
        """
        return _read(self._directory / file.name, MAX_BUNDLE_BYTES)

    def write(self, file: PolicyFile, data: bytes) -> None:
        """Stores a bundle; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written; what was there before is as it was.
        """
        write_durably(self._directory / file.name, data)

    def condemn(self, version: int, manifest_digest: bytes) -> None:
        """Marks a version as one that may not come back.

        Raises:
            OSError: It cannot be written.
        """
        write_durably(
            self._directory / PolicyFile(version, manifest_digest, condemned=True).name, b""
        )
        (self._directory / PolicyFile(version, manifest_digest).name).unlink(missing_ok=True)

    def read_graph(self, digest: bytes) -> bytes | None:
        """The graph of that sha256, or None where it is absent or damaged."""
        known = self._proven.get(digest)
        if known is None:
            known = self._graph_on_disk(digest)
            if known is not None:
                self._proven[digest] = known
        return known

    def graph(self, digest: bytes, fetch_graph: Callable[[bytes], bytes]) -> bytes:
        """The graph of that sha256; where it is not here it is fetched, proven and stored.

        Raises:
            PolicyRejected: With the reason `size` or `digest`: what was fetched is not it. Errors
                of `fetch_graph` pass through.
        """
        cached = self.read_graph(digest)
        if cached is not None:
            return cached
        graph = fetch_graph(digest)
        if len(graph) > MAX_GRAPH_BYTES:
            raise PolicyRejected("size", f"a graph has more than {MAX_GRAPH_BYTES} bytes")
        if sha256(graph) != digest:
            raise PolicyRejected("digest", "a policy's graph is not the one that was signed")
        self._proven[digest] = graph
        try:
            self.write_graph(digest, graph)
        except OSError as error:
            log.warning("graph_not_persisted", digest=digest.hex(), error=str(error))
        return graph

    def mend_graphs(self) -> None:
        """Writes those graphs again that are damaged or gone by now.

        Raises:
            OSError: One cannot be written.
        """
        for digest, graph in tuple(self._proven.items()):
            if self._graph_on_disk(digest) is None:
                self.write_graph(digest, graph)

    def has_graph(self, digest: bytes) -> bool:
        """Whether the graph of that sha256 is there, be it damaged."""
        return (self._graphs / f"{digest.hex()}.onnx").exists()

    def write_graph(self, digest: bytes, data: bytes) -> None:
        """Stores a graph; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written.
        """
        write_durably(self._graphs / f"{digest.hex()}.onnx", data)

    def _graph_on_disk(self, digest: bytes) -> bytes | None:
        try:
            data = _read(self._graphs / f"{digest.hex()}.onnx", MAX_GRAPH_BYTES)
        except OSError:
            return None
        return data if sha256(data) == digest else None

    def prune(self, *, keep: Collection[PolicyFile], graphs: Collection[bytes]) -> None:
        """Removes all versions but those to keep and any newer ones, and all graphs but `graphs`.

        Raises:
            OSError: A file cannot be removed.
        """
        newest = max((file.version for file in keep), default=0)
        for file in self.list():
            if file not in keep and file.version <= newest:
                (self._directory / file.name).unlink(missing_ok=True)
        known = tuple(self._proven.items())  # another thread may be adding one
        self._proven = {digest: graph for digest, graph in known if digest in graphs}
        names = {f"{digest.hex()}.onnx" for digest in graphs}
        for name in _names(self._graphs):
            if name not in names:
                (self._graphs / name).unlink(missing_ok=True)


def _names(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)


def trust_directory(directory: Path, fleet: str, public_key: bytes) -> Path:
    """The directory of one trust: versions count per fleet and policy key.

    Args:
        directory: Of all trusts.
        fleet: The device's.
        public_key: The policy key, 32 bytes.
    """
    return directory / f"{fleet}-{sha256(public_key).hex()[:16]}"


def list_files(directory: Path) -> list[PolicyFile]:
    """All versions in the directory of one trust, newest first.

    Raises:
        OSError: It cannot be read.
    """
    found = []
    for name in _names(directory):
        match = _NAME.fullmatch(name)
        if match:
            version, digest, kind = match.groups()
            found.append(PolicyFile(int(version), bytes.fromhex(digest), kind == "condemned"))
    return sorted(found, reverse=True)
