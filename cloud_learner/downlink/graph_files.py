"""The weightless graphs of a policy log: `graphs/<sha256>.onnx`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.durable_file import write_durably
from shoal.logs import get_logger
from shoal.policy import sha256

_log = get_logger("policy_log")


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """Graphs by their sha256, proven whenever they are read.

    graphs = GraphFiles(directory / "graphs")
    graphs.write(digest, graph)
    graphs.read(digest)               # or None
    """

    directory: Path

    def write(self, digest: bytes, graph: bytes) -> None:
        """Stores a graph, if it is not there already; it is on the disk when this returns.

        Raises:
            OSError: It cannot be written.
        """
        path = self._path(digest)
        if not path.exists() or path.read_bytes() != graph:
            write_durably(path, graph)

    def holds(self, digest: bytes) -> bool:
        """Whether the graph of that sha256 is there and can be read whole."""
        try:
            return sha256(self._path(digest).read_bytes()) == digest
        except OSError:
            return False

    def read(self, digest: bytes) -> bytes | None:
        """The graph of that sha256; None where it is missing or damaged.

        Raises:
            OSError: It cannot be read.
        """
        path = self._path(digest)
        try:
            graph = path.read_bytes()
        except FileNotFoundError:
            graph = b""
        if sha256(graph) == digest:
            return graph
        _log.error("graph_damaged", path=str(path), problem="missing, or not what was signed")
        return None

    def prune(self, keep: Collection[bytes]) -> None:
        """Removes all but those.

        Raises:
            OSError: One cannot be removed.
        """
        names = {digest.hex() for digest in keep}
        for path in list(self.directory.glob("*.onnx")):
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def _path(self, digest: bytes) -> Path:
        return self.directory / f"{digest.hex()}.onnx"
