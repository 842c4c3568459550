"""What a relay holds: policies that others signed, proven as a device proves them, on its disk.

    <fleet>-<key>/00000000000000000007-<sha256 of the manifest>.bundle
    <fleet>-<key>/00000000000000000002.generation     the highest of delegates
    <fleet>-<key>/graphs/<sha256>.onnx     also of float twins
    <fleet>-<key>/lock                     held while a process has the store open

A name holds the version, so that even a damaged file counts against a rollback.
"""

from __future__ import annotations

import builtins
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cloud_learner.downlink.graph_files import GraphFiles
from cloud_learner.downlink.log_directory import disk_errors, take_lock
from cloud_learner.downlink.policy_source import PolicyInfo
from cloud_learner.downlink.published import Published, read_policy
from shoal.delegation import check_current
from shoal.durable_file import remove_leftovers, write_durably
from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.generation_mark import GenerationMark
from shoal.logs import get_logger
from shoal.policy import (
    MAX_GRAPH_BYTES,
    check_manifest,
    decode_bundle,
    decode_golden,
    decode_manifest,
    sha256,
)
from shoal.policy_delta import Base, Content, decode_policy_delta, no_base

FetchGraph = Callable[[bytes], bytes]
"""Gives the graph of a sha256; its errors pass through."""
_NAME = re.compile(r"(\d{20})-([0-9a-f]{64})\.bundle", re.ASCII)
_ADVICE = "give the relay a state_dir it may write, with room in it"
_log = get_logger("relay_store")


@dataclass(frozen=True, slots=True, order=True)
class _File:
    """One version on disk, as its name says."""

    version: int
    manifest_digest: bytes

    @property
    def name(self) -> str:
        return f"{self.version:020d}-{self.manifest_digest.hex()}.bundle"


class RelayStore:
    """Accepts signed policies of a fleet, whatever they act in, and gives them out again proven.

    A `PolicySource`. Thread-safe; one process at a time.

        with RelayStore(state_dir / "policies", key, "reef", keep=8) as store:
            published = store.accept(bundle, fetch_graph)     # or raises PolicyRejected
    """

    def __init__(
        self,
        directory: Path,
        public_key: bytes,
        fleet: str,
        *,
        keep: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens or makes the store, and proves what is there.

        Args:
            directory: Where it lives; versions count per fleet and key, so each has its own.
            public_key: Ed25519, 32 bytes: who may sign policies, or have a delegate sign them.
            fleet: Whose policies are accepted.
            keep: Versions that stay on disk, the newest always among them.
            clock: Unix seconds: whether a delegate may still sign.

        Raises:
            PolicyLogError: It cannot be read or written, or another process has it open.
        """
        self._key = Ed25519PublicKey.from_public_bytes(public_key)
        self._fleet = fleet
        self._keep = max(1, keep)
        self._clock = clock
        self._directory = directory / f"{fleet}-{sha256(public_key).hex()[:16]}"
        self._graphs = GraphFiles(graphs := self._directory / "graphs")
        self._accepting = threading.Lock()
        with disk_errors(self._directory, advice=_ADVICE):
            graphs.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = take_lock(self._directory, whose="relay", what="policy store")
            for path in (self._directory, graphs):
                remove_leftovers(path)
            files = self._files()
            self._mark = GenerationMark(self._directory)
        self._newest = files[0] if files else None
        self._entries: Mapping[int, PolicyInfo] = {}
        self._held: dict[int, _File] = {}
        self._load(files)

    def __enter__(self) -> Self:
        """Returns the open store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the store up, so that another process may open it."""
        os.close(self._lock)

    def accept(self, data: bytes, fetch_graph: FetchGraph) -> Published:
        """Proves a policy and makes it durable. Takes milliseconds, and a fetch per new graph.

        Args:
            data: A serialized bundle, not trusted.
            fetch_graph: For graphs that are not here yet.

        Raises:
            PolicyRejected: With the reason `size`, `malformed`, `signature`, `digest`, `fleet` or
                `rollback`, or with one of `shoal.delegation`; what is held stays as it is.
            PolicyLogError: The disk refused; what is held stays as it is.
        """
        with self._accepting, disk_errors(self._directory, advice=_ADVICE):
            published, file = self._prove(data)
            for digest in PolicyInfo.of(published).graphs:
                if not self._graphs.holds(digest):
                    self._graphs.write(digest, _checked(fetch_graph(digest), digest))
            if published.delegation is not None:
                self._mark.rise_to(published.delegation.generation)
            write_durably(self._directory / file.name, data)
            self._newest = file
            self._held[file.version] = file
            self._keep_newest({**self._entries, published.version: PolicyInfo.of(published)})
        _log.info(
            "policy_accepted",
            policy_version=published.version,
            digest=published.digest,
            bundle_bytes=len(data),
        )
        return published

    def accept_delta(self, data: bytes, fetch_graph: FetchGraph) -> Published:
        """Proves a policy that came as a delta exactly as one that came whole.

        Args:
            data: A serialized `PolicyDelta`, not trusted.
            fetch_graph: As for `accept`.

        Raises:
            PolicyRejected: As `accept`; or with the reason `base`, what it starts from is not here,
                or `delta`, it is malformed.
            PolicyLogError: The disk refused.
        """
        try:
            delta = decode_policy_delta(data)
            base = self.get(delta.base.version)
            if base is None or Base.of(base.manifest) != delta.base:
                raise no_base(delta.base)
            whole = delta.restore(Content.of(decode_bundle(base.bundle)))
        except WireError as error:
            raise PolicyRejected("delta", f"a policy delta cannot be used: {error}") from error
        return self.accept(whole, fetch_graph)

    # ------------------------------------------------------------------------ as a policy source

    def newest(self) -> Published | None:
        """The newest version that still proves itself; None when there is none."""
        for info in self.list():
            published = self.get(info.manifest.version)
            if published is not None:
                return published
        return None

    def get(self, version: int) -> Published | None:
        """One version, read from disk and proven; None when it is not kept or is damaged."""
        file = self._held.get(version)
        return None if file is None else self._read(file)

    def graph(self, digest: bytes) -> bytes | None:
        """A graph by its sha256; None when no kept version uses it or it is damaged."""
        if all(digest not in info.graphs for info in self._entries.values()):
            return None
        try:
            return self._graphs.read(digest)
        except OSError:
            return None

    def list(self) -> tuple[PolicyInfo, ...]:
        """The versions kept, newest first."""
        entries = self._entries
        return tuple(entries[version] for version in sorted(entries, reverse=True))

    @property
    def highest_version(self) -> int:
        """The highest version ever accepted here; 0 for none."""
        return 0 if self._newest is None else self._newest.version

    # ---------------------------------------------------------------------------------- the proof

    def _prove(self, data: bytes) -> tuple[Published, _File]:
        try:
            signed = decode_bundle(data)
            offered = decode_manifest(signed.manifest)
            published = read_policy(data, self._key, offered.version)
            decode_golden(signed.golden)
        except LimitExceeded as error:
            raise PolicyRejected("size", str(error)) from error
        except WireError as error:
            raise PolicyRejected("malformed", str(error)) from error
        manifest = published.manifest
        file = _File(manifest.version, sha256(signed.manifest))
        # The very policy that was newest may come again: its file may be damaged by now.
        again = file == self._newest
        check_manifest(
            manifest,
            fleet=self._fleet,
            fingerprint=manifest.spec_fingerprint,  # a relay acts in no spaces of its own
            newest_seen=manifest.version - 1 if again else self.highest_version,
        )
        if published.delegation is not None and not again:
            now_s, newest = self._clock(), self._mark.generation
            check_current(published.delegation, now_s=now_s, newest_generation=newest)
        return published, file

    # ----------------------------------------------------------------------------------- the disk

    def _load(self, files: builtins.list[_File]) -> None:
        entries: dict[int, PolicyInfo] = {}
        for file in files[: self._keep]:
            published = self._read(file)
            if published is not None:
                entries[file.version] = PolicyInfo.of(published)
                self._held[file.version] = file
        self._entries = entries

    def _read(self, file: _File) -> Published | None:
        path = self._directory / file.name
        try:
            data = path.read_bytes()
            published = read_policy(data, self._key, file.version)
        except (OSError, WireError, PolicyRejected) as error:
            _log.error(
                "policy_skipped", policy_version=file.version, path=str(path), problem=str(error)
            )
            return None
        if not all(map(self._graphs.holds, PolicyInfo.of(published).graphs)):
            _log.error("policy_skipped", policy_version=file.version, problem="no graph")
            return None
        return published

    def _keep_newest(self, entries: Mapping[int, PolicyInfo]) -> None:
        """Forgets the oldest; a file that cannot be deleted costs space, nothing else."""
        kept = {version: entries[version] for version in sorted(entries)[-self._keep :]}
        graphs = {digest for info in kept.values() for digest in info.graphs}
        self._entries = kept
        self._held = {version: self._held[version] for version in kept}
        try:
            for file in self._files():
                if self._held.get(file.version) != file:
                    (self._directory / file.name).unlink(missing_ok=True)
            self._graphs.prune(graphs)
        except OSError as error:
            _log.warning("policy_prune_failed", directory=str(self._directory), problem=str(error))

    def _files(self) -> builtins.list[_File]:
        """All versions on disk, newest first."""
        matches = (_NAME.fullmatch(path.name) for path in self._directory.iterdir())
        found = [_File(int(match[1]), bytes.fromhex(match[2])) for match in matches if match]
        return sorted(found, reverse=True)


def _checked(graph: bytes, digest: bytes) -> bytes:
    if len(graph) > MAX_GRAPH_BYTES:
        raise PolicyRejected("size", f"a graph has more than {MAX_GRAPH_BYTES} bytes")
    if sha256(graph) != digest:
        raise PolicyRejected("digest", "a graph is not the one that was signed")
    return graph
