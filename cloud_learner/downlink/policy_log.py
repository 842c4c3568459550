"""The append-only, signed record of every policy version: the only source of what devices run.

    versions/00000007.bundle   manifest, signature, tensors and golden vectors of version 7
    graphs/<sha256>.onnx       the weightless graphs those versions name, of float twins too
    updates.log                optimiser updates by version, also of versions already pruned
    lock                       held while a process has the log open

A version is published when its file has been renamed into place and the directory synced. What a
crash leaves before that is a temporary file or nothing, so a number is seen by others only once it
is durable, and a number that was seen is never given out again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_learner.downlink.active_policies import InUse
from cloud_learner.downlink.graph_files import GraphFiles
from cloud_learner.downlink.log_directory import (
    bundle_path,
    bundle_versions,
    disk_errors,
    take_lock,
    versions_directory,
)
from cloud_learner.downlink.policy_source import PolicyInfo
from cloud_learner.downlink.published import (
    AskedBehaviour,
    Circumstances,
    Published,
    QuantizedPolicy,
    read_policy,
    sign_again,
    sign_policy,
)
from cloud_learner.downlink.retention import landmarks, newest_within
from cloud_learner.downlink.signing import HeldDelegation
from cloud_learner.downlink.version_index import VersionIndex
from shoal.durable_file import remove_leftovers, sync_directory, write_durably
from shoal.errors import PolicyLogError, PolicyRejected, WireError
from shoal.logs import get_logger
from shoal.policy import MAX_GRAPH_BYTES

MAX_VERSION = 2**62 - 1
"""The highest version that a manifest may carry."""
DEFAULT_KEPT = 64
"""Versions whose tensors stay on disk when nothing else is asked for."""
_log = get_logger("policy_log")


class PolicyLog:
    """Publishes policy versions durably and reads them back proven.

    Thread-safe; one process at a time. Damaged entries are skipped, with a line in the log, and
    their numbers stay used.

        with PolicyLog(state_dir / "policies", signing_key, "reef") as log:
            published = log.publish(quantized, graph=graph, updates=16, spec_fingerprint=...)
    """

    def __init__(
        self,
        directory: Path,
        signing_key: Ed25519PrivateKey,
        fleet: str,
        *,
        held: HeldDelegation | None = None,
        keep: int = DEFAULT_KEPT,
        retain_bytes: int = 0,
        keep_per_doubling: int = 0,
        after_version: int = 0,
        in_use: InUse = frozenset,
        pinned: InUse = frozenset,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens or creates the log, and verifies what is there.

        Args:
            directory: Where the log lives; made when absent.
            signing_key: Signs every manifest.
            fleet: The fleet the policies are for.
            held: By whose leave; None: devices hold the public half of `signing_key`.
            keep: Versions whose tensors stay on disk, the newest always among them.
            retain_bytes: More of them stay, the newest, while all together have no more bytes,
                up to `MAX_RETAINED`.
            keep_per_doubling: Of those before, how many stay for each doubling of the distance:
                see `landmarks`.
            after_version: New versions are higher than this one too, such as the version counter
                of a checkpoint: it protects a fleet whose log was lost.
            in_use: Says which versions devices have: they are kept, however old.
            pinned: Says which versions are kept however many there are: a rollout is about them.
            clock: Wall clock in seconds, for people, and for the end of a delegation.

        Raises:
            PolicyLogError: The log cannot be read or written, is in use, is another fleet's, or a
                later delegate signed in it.
        """
        self._directory = directory
        self._graphs = GraphFiles(graphs := directory / "graphs")
        self._key = signing_key
        self._held = held
        self._root = signing_key.public_key() if held is None else held.root
        self._fleet = fleet
        self._keep = max(1, keep)
        self._retain_bytes = retain_bytes
        self._keep_per_doubling = keep_per_doubling
        self._in_use = in_use
        self._pinned = pinned
        self._clock = clock
        self._publishing = threading.Lock()
        with disk_errors(directory), ExitStack() as on_failure:
            for path in (directory, versions := versions_directory(directory), graphs):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = take_lock(directory)
            on_failure.callback(os.close, self._lock)
            leftovers = sum(map(remove_leftovers, (directory, versions, graphs)))
            if leftovers:
                _log.warning("policy_write_interrupted", leftovers=leftovers)
            self._index = VersionIndex.load(directory / "updates.log")
            found = bundle_versions(directory)
            self._entries: Mapping[int, PolicyInfo] = {}
            self._prune(self._load(found))
            # A process may have died between renaming a version into place and syncing: from here
            # on it is offered to devices, so it has to survive a power cut.
            for path in (versions, graphs, directory, directory.parent):
                sync_directory(path)
            on_failure.pop_all()
        self._highest = max(after_version, self._index.highest, *found, 0)

    def __enter__(self) -> Self:
        """Returns the open log."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the log up, so that another process may open it."""
        self.close()

    def close(self) -> None:
        """Gives the log up; closing twice is harmless. Reading goes on working."""
        with self._publishing:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    # -------------------------------------------------------------------------------- publishing

    def publish(
        self,
        quantized: QuantizedPolicy,
        *,
        graph: bytes,
        updates: int,
        spec_fingerprint: bytes,
        behaviour: AskedBehaviour | None = None,
        reason: str = "publish",
        float_graph: bytes | None = None,
    ) -> Published:
        """Signs a quantized policy and makes it durable under the next version.

        When this returns, the version survives a crash and a power cut. When it raises, the
        version is not offered to anybody and its number is not used again.

        Args:
            quantized: Tensors, golden vectors and how they came to be.
            graph: The weightless ONNX graph of the tensors.
            updates: Optimiser updates of the weights; never fewer than the newest version's.
            spec_fingerprint: Of the spaces the policy acts in, 32 bytes.
            behaviour: What devices are asked for, beside acting; None: nothing.
            reason: Why it was published: `publish`, `resume`, `rollback`.
            float_graph: The weightless graph of its float twin; None: there is none.

        Raises:
            PolicyLogError: It is too large, `updates` went backwards, or the disk refused.
        """
        with self._publishing, disk_errors(self._directory):
            self._check(updates, [graph] if float_graph is None else [graph, float_graph])
            self._highest += 1  # used up, whatever happens below
            circumstances = Circumstances(
                fleet=self._fleet,
                version=self._highest,
                updates=updates,
                spec_fingerprint=spec_fingerprint,
                created_unix_ms=int(self._clock() * 1000),
                reason=reason,
                noise_correlation=behaviour.noise_correlation if behaviour else 0.0,
                priority_gamma=behaviour.priority_gamma if behaviour else 0.0,
            )
            published = sign_policy(
                quantized, graph, circumstances, self._key, float_graph=float_graph, held=self._held
            )
            self._graphs.write(published.manifest.graph_digest, graph)
            if float_graph is not None:
                self._graphs.write(published.manifest.float_graph_digest, float_graph)
            return self._keep_version(published)

    def publish_again(self, version: int, reason: str) -> Published:
        """Makes a version durable once more under the next number: devices only go up.

        It has the optimiser updates that it had: its lag is what it is.

        Raises:
            PolicyLogError: It is not kept, or the disk refused.
        """
        before = self.get(version)
        if before is None:
            raise PolicyLogError(f"{self._directory}: policy version {version} is not kept")
        with self._publishing, disk_errors(self._directory):
            self._check(self._most_updates(), [])
            self._highest += 1
            circumstances = Circumstances(
                self._fleet,
                self._highest,
                before.manifest.updates,
                before.manifest.spec_fingerprint,
                int(self._clock() * 1000),
                reason,
            )
            again = sign_again(before, circumstances, self._key, held=self._held)
            return self._keep_version(again)

    def _keep_version(self, published: Published) -> Published:
        write_durably(bundle_path(self._directory, published.version), published.bundle)
        manifest, info = published.manifest, PolicyInfo.of(published)
        self._index.append(published.version, manifest.updates)
        self._prune({**self._entries, published.version: info})
        _log.info(
            "policy_published",
            policy_version=published.version,
            updates=manifest.updates,
            precision=manifest.precision,
            bundle_bytes=info.bundle_bytes,
            reason=manifest.reason,
        )
        return published

    def skip_to(self, version: int) -> None:
        """From now on new versions are higher than this one too."""
        with self._publishing:
            self._highest = max(self._highest, version)

    def _check(self, updates: int, graphs: Sequence[bytes]) -> None:
        if self._lock < 0:
            raise PolicyLogError(f"{self._directory}: the policy log is closed")
        if self._highest >= MAX_VERSION:
            raise PolicyLogError(f"{self._directory}: there is no version above {MAX_VERSION}")
        if self._held is not None and (problem := self._held.problem(self._clock())):
            raise PolicyLogError(problem)
        largest = max(map(len, graphs), default=0)
        if largest > MAX_GRAPH_BYTES:
            raise PolicyLogError(
                f"the policy graph has {largest} bytes, devices accept {MAX_GRAPH_BYTES}: mark "
                "its initializers external"
            )
        most = self._most_updates()
        if updates < most:
            raise PolicyLogError(
                f"{self._directory}: a version here has {most} optimiser updates, the next cannot "
                f"have {updates}, or lag would be wrong: resume counting from the higher of "
                "checkpoint and log"
            )

    def _most_updates(self) -> int:
        return max((info.manifest.updates for info in self._entries.values()), default=0)

    def _prune(self, entries: Mapping[int, PolicyInfo]) -> None:
        """Keeps the newest versions, those that devices have, and some of all others.

        A file that cannot be deleted costs space, nothing else.
        """
        versions = sorted(entries)
        sizes = {version: entries[version].bundle_bytes for version in versions}
        wanted = sorted(
            {
                *newest_within(sizes, keep=self._keep, retain_bytes=self._retain_bytes),
                *landmarks(
                    versions, newest=max(versions, default=0), per_doubling=self._keep_per_doubling
                ),
                *set(self._in_use()).union(self._pinned()).intersection(versions),
            }
        )
        kept = {version: entries[version] for version in wanted}
        graphs = {digest for info in kept.values() for digest in info.graphs}
        self._entries = kept
        try:
            for version in bundle_versions(self._directory):
                # Old, or damaged and superseded. Damage above the newest keeps its number used.
                if version not in kept and version < max(kept, default=0):
                    bundle_path(self._directory, version).unlink(missing_ok=True)
            if kept:
                self._graphs.prune(graphs)
        except OSError as error:
            _log.warning("policy_prune_failed", directory=str(self._directory), problem=str(error))

    # ----------------------------------------------------------------------------------- reading

    def newest(self) -> Published | None:
        """The newest valid version, read from disk and proven; None when there is none yet.

        Raises:
            PolicyLogError: The disk cannot be read.
        """
        seen: list[int] = []
        while True:
            versions = [info.manifest.version for info in self.list()]
            if versions == seen:  # every one is damaged
                return None
            seen = versions  # if all are gone by the time they are read, there are newer ones
            for version in versions:
                published = self.get(version)
                if published is not None:
                    return published

    def get(self, version: int) -> Published | None:
        """One version, read from disk and proven; None when it is not kept or is damaged.

        Raises:
            PolicyLogError: The disk cannot be read.
        """
        if version not in self._entries:
            return None
        with disk_errors(self._directory):
            return self._read(version)

    def graph(self, digest: bytes) -> bytes | None:
        """A graph by its sha256, proven; None when no kept version uses it or it is damaged.

        Raises:
            PolicyLogError: The disk cannot be read.
        """
        if all(digest not in info.graphs for info in self._entries.values()):
            return None
        with disk_errors(self._directory):
            return self._graphs.read(digest)

    def list(self) -> tuple[PolicyInfo, ...]:
        """The versions kept, newest first."""
        entries = self._entries
        return tuple(entries[version] for version in sorted(entries, reverse=True))

    def updates_of(self, version: int) -> int | None:
        """Optimiser updates at the publication of a version, pruned or not; None: unknown."""
        return self._index.updates_of(version)

    @property
    def highest_version(self) -> int:
        """The highest number given out so far; 0 for none. The next is higher."""
        return self._highest

    # ---------------------------------------------------------------------------------- the disk

    def _load(self, versions: Sequence[int]) -> dict[int, PolicyInfo]:
        entries: dict[int, PolicyInfo] = {}
        for version in versions:
            published = self._read(version)
            if published is None:
                continue
            manifest = published.manifest
            if manifest.fleet != self._fleet:
                raise PolicyLogError(
                    f"{bundle_path(self._directory, version)}: a policy of fleet "
                    f"{manifest.fleet!r}, this learner is of {self._fleet!r}: set `fleet` right "
                    "or use another state_dir"
                )
            if self._held is not None and (older := self._held.older(published.delegation)):
                raise PolicyLogError(f"{bundle_path(self._directory, version)}: {older}")
            entries[version] = PolicyInfo.of(published)
            self._index.append(version, manifest.updates)
        return entries

    def _read(self, version: int) -> Published | None:
        path = bundle_path(self._directory, version)
        try:
            published = read_policy(path.read_bytes(), self._root, version)
        except FileNotFoundError:
            return None  # pruned meanwhile
        except (WireError, PolicyRejected) as error:
            _log.error("policy_skipped", policy_version=version, path=str(path), problem=str(error))
            return None
        if self._graphs.read(published.manifest.graph_digest) is None:
            _log.error("policy_skipped", policy_version=version, path=str(path), problem="no graph")
            return None
        return published
