"""The policies a device holds: what is accepted, what is current, what it falls back to."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.policies.offered import Offered, serialized
from edge_agent.policies.policy import Policy
from edge_agent.policies.policy_files import PolicyFile, PolicyFiles, trust_directory
from edge_agent.policies.precision import TWINS, PrecisionChooser, Proven
from edge_agent.policies.proof import Accepted, FetchGraph, Proof, Prover
from shoal.errors import PolicyRejected, ShoalError
from shoal.logs import get_logger
from shoal.policy import Golden, golden_tensors
from shoal.policy_delta import Base, Content
from shoal.spaces import EnvSpec

SWAPS_REMEMBERED: Final = 1024
_KEPT: Final = 2  # the current policy, and the one before

log = get_logger("policy_store")


@dataclass(frozen=True, slots=True)
class _Held:
    """A policy that was proven, its file, it or a twin that acts, and its bundle until saved."""

    policy: Policy
    file: PolicyFile
    acting: Policy
    golden: Golden
    delegation: bytes
    unsaved: Offered | None = None

    @classmethod
    def of(cls, proof: Proof, acting: Policy | None, unsaved: Offered | None = None) -> Self:
        """What was proven; None acts as it was published."""
        policy, golden = proof.proven.policy, proof.proven.golden
        return cls(policy, proof.file, acting or policy, golden, proof.delegation, unsaved)


class PolicyStore:
    """Accepts signed policies and says which one acts.

    with PolicyStore(directory, fleet="pond", public_key=key, spec=spec) as policies:
        policies.offer(bundle, fetch_graph)  # in a thread of its own
        chunk = actor.rollout(policies.current)

    Attributes:
        current: The policy that acts from the next chunk on; None before the first. Read it from
            any thread.
        swaps: Policies that became current since the start.
        swap_ms: How long each of the last ones took, from its bundle's arrival to being current.
        rejections: How many were refused, by reason; replaced, never changed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fleet: str,
        public_key: bytes,
        spec: EnvSpec,
        chooser: PrecisionChooser | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Loads the newest policy on disk that still proves itself.

        Args:
            directory: The store's own. Versions count per fleet and key, so each such trust has a
                directory in it.
            fleet: The device's fleet.
            public_key: Ed25519, 32 bytes: who may sign policies, or have a delegate sign them.
            spec: The spaces of the device's environment.
            chooser: Chooses between int8 and its twins; None: as published.
            clock: Unix seconds: whether a delegate may still sign.

        Raises:
            ShoalError: The directory cannot be made or read, or the key is not one.
        """
        self.current: Policy | None = None
        self.swaps = 0
        self.swap_ms: deque[float] = deque(maxlen=SWAPS_REMEMBERED)
        self.rejections: Counter[str] = Counter()
        self._chooser = chooser or PrecisionChooser("int8", spec=spec)
        self._held: list[_Held] = []  # newest first; one more than `_KEPT` until `save`
        self._offering = threading.Lock()
        self._changed = threading.Condition()
        self._wakes = 0
        self._listeners: tuple[Callable[[], object], ...] = ()
        try:
            root = Ed25519PublicKey.from_public_bytes(public_key)
            self._files = PolicyFiles(trust_directory(directory, fleet, public_key))
            on_disk = self._files.list()
            self._mark = self._files.generation_mark()
        except (OSError, ValueError) as error:
            raise ShoalError(
                f"policies {directory}: {error}; check state_dir and the identity's policy key"
            ) from error
        self._prover = Prover(fleet, root, spec, self._files, clock=clock)
        self._generation = self._mark.generation  # ahead of the disk until `save`
        self._newest = on_disk[0] if on_disk else None
        self._condemned = {file.manifest_digest for file in on_disk if file.condemned}
        self._load(on_disk)

    def __enter__(self) -> Self:
        """Hands over the store."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wakes whoever waits, and saves what was accepted last."""
        self.wake()
        self.save()

    def offer(self, data: Offered, fetch_graph: FetchGraph) -> Policy:
        """Does what `accept` does, and then `save`."""
        policy = self.accept(data, fetch_graph)
        self.save()
        return policy

    def accept(self, data: Offered, fetch_graph: FetchGraph) -> Policy:
        """Proves a policy and makes it current. Not for the control thread: takes milliseconds.

        It acts before it is on disk: `save` is to follow (decisions 0022, 0032).

        Args:
            data: A bundle, serialized or not; not trusted.
            fetch_graph: Gives the graph of a sha256 that is not on disk; its errors pass through.

        Returns:
            The policy, or a twin of it, which is current now; the same one again if it was
            already.

        Raises:
            PolicyRejected: The current policy stays. With the reason `size`, `malformed`,
                `signature`, `digest`, `fleet`, `fingerprint`, `rollback`, `condemned`, `graph` or
                `self_test`; or with one of `shoal.delegation`, of the delegate that signed it.
        """
        started = time.perf_counter()
        with self._offering:
            try:
                proof = self._prover.prove(data, fetch_graph, self._accepted())
            except PolicyRejected as rejected:
                self._count(rejected)
                raise
            proven = proof.proven
            if self._held and proof.file == self._held[0].file:
                chosen = None if self.lacks_twin else self._held[0].acting
            else:
                self._newest = proof.file
                self._rise_to(proof.generation)
                chosen = self._choose(proven, measure=False)
                held = _Held.of(proof, chosen, data)
                self._held = [held, *self._held[:_KEPT]]
                self.swap_ms.append((time.perf_counter() - started) * 1e3)
                self.swaps += 1
                self._become(held.acting)
        return chosen or self._refine(proven, fetch_graph)

    def save(self) -> None:
        """Has what was accepted survive a power cut, and only then removes what it replaces.

        Settles before that. On a full disk it acts all the same, until the next start; the next
        call tries again.
        """
        self.settle()
        with self._offering:
            self._held = self._held[:_KEPT]  # a session takes a while to end
            fresh = [(each.file, each.unsaved) for each in self._held if each.unsaved is not None]
            try:
                # First: else a power cut could leave a version without what it revoked.
                self._mark.rise_to(self._generation)
                if not fresh:
                    return
                self._files.mend_graphs()
                for file, unsaved in reversed(fresh):
                    self._files.write(file, serialized(unsaved))
                manifests = [each.policy.manifest for each in self._held]
                self._files.prune(
                    keep=[each.file for each in self._held],
                    graphs={d for m in manifests for d in (m.graph_digest, m.float_graph_digest)},
                )
            except OSError as error:
                version = 0 if self._newest is None else self._newest.version
                log.warning("policy_not_persisted", version=version, error=str(error))
                return
            self._held = [replace(each, unsaved=None) for each in self._held]

    def settle(self) -> None:
        """Has what acts decide as fast as it can: a version may act in a slower session at first.

        Not for the control thread, which takes up the faster one with its next chunk.
        """
        for held in self._held[:1]:
            if held.acting is not held.policy:
                continue  # its twin has a session of its own
            try:
                self._prover.settle(held.policy, held.golden)
            except PolicyRejected as rejected:
                version, problem = held.policy.version, str(rejected)
                log.warning("policy_not_settled", version=version, error=problem)

    def held(self, base: Base) -> Content | None:
        """What the bundle of a proven version that is held has in it; None where it is not here."""
        for each in tuple(self._held):
            if Base.of(each.policy.manifest) == base:
                golden = golden_tensors(each.golden)
                return Content(each.policy.tensors, golden, each.delegation)
        return None

    def refuse(self, rejected: PolicyRejected) -> None:
        """Counts a policy that was refused before it could be offered."""
        with self._offering:
            self._count(rejected)

    @contextmanager
    def listening(self, changed: Callable[[], object]) -> Iterator[None]:
        """Has `changed` called, by any thread, whenever another policy became current."""
        self._listeners = (*self._listeners, changed)
        try:
            yield
        finally:
            self._listeners = tuple(each for each in self._listeners if each is not changed)

    @property
    def lacks_twin(self) -> bool:
        """Whether the current policy may be better off as a twin, whose graph is not here.

        It is offered once more then, so that the graph can be fetched.
        """
        current = self.current
        if current is None or current.precision != "int8":
            return False
        digest = current.manifest.float_graph_digest
        return self._chooser.wants_twin(current.manifest) and not self._files.has_graph(digest)

    def condemn(self, policy: Policy, reason: str) -> Policy | None:
        """Gives up a policy that failed while acting: the one before is current again.

        Of a twin it gives up the twin: the int8 policy of that version is current then.

        Args:
            policy: Which; nothing happens if it is not current any more.
            reason: Counted and logged, such as `non_finite`.

        Returns:
            The current policy, None where there is no other.
        """
        with self._offering:
            published = self._held[0].policy if self._held else None
            if self._held and published is not policy is self._held[0].acting:
                self._count(
                    PolicyRejected(
                        reason, f"the {TWINS[policy.precision]} of policy {policy.version}"
                    )
                )
                self._chooser.condemn(policy)
                self._act_with(self._held[0].policy)
            elif published is policy:
                failed = self._held.pop(0)
                self._condemned.add(failed.file.manifest_digest)
                self._count(PolicyRejected(reason, f"policy {policy.version} failed while acting"))
                try:
                    self._files.condemn(failed.file.version, failed.file.manifest_digest)
                except OSError as error:
                    log.warning("policy_not_persisted", version=policy.version, error=str(error))
                self._become(self._held[0].acting if self._held else None)
            return self.current

    def wait_newer(self, version: int, timeout: float) -> Policy | None:
        """Waits until the current policy is newer than `version`.

        Args:
            version: 0 waits for any policy.
            timeout: Seconds.

        Returns:
            The current policy; None on timeout and after `wake`.
        """
        with self._changed:
            wakes = self._wakes
            self._changed.wait_for(lambda: self._newer(version) or self._wakes != wakes, timeout)
            return self._newer(version)

    def wake(self) -> None:
        """Ends every `wait_newer` in progress: for a process that stops."""
        with self._changed:
            self._wakes += 1
            self._changed.notify_all()

    def _newer(self, version: int) -> Policy | None:
        current = self.current
        return current if current is not None and current.version > version else None

    def _choose(self, proven: Proven, *, measure: bool) -> Policy | None:
        """What acts of a version, if that can be said without fetching anything, or measuring."""
        manifest = proven.policy.manifest
        wanted = self._chooser.wants_twin(manifest)
        if wanted and (measure or self._chooser.knows(manifest)):
            graph = self._files.read_graph(manifest.float_graph_digest)
            if graph is not None:
                return self._chooser.choose(proven, graph)
        self._chooser.as_published(proven.policy)
        return None if wanted else proven.policy

    def _refine(self, proven: Proven, fetch_graph: FetchGraph) -> Policy:
        """Has a twin act in place of an int8 policy that acts already, where it is to."""
        self.save()  # the graph may be long in coming
        manifest = proven.policy.manifest
        try:
            graph = self._files.graph(manifest.float_graph_digest, fetch_graph)
        except Exception as error:  # noqa: BLE001 whatever it is, int8 acts on
            return self._chooser.give_up(proven.policy, error)
        acting = self._chooser.choose(proven, graph)
        if acting is not proven.policy:
            with self._offering:
                if self._held and self._held[0].policy is proven.policy:
                    self._act_with(acting)
        return acting

    def _rise_to(self, generation: int) -> None:
        """Notes on disk, before it acts, that a policy revokes delegates: that may not be lost."""
        if generation > self._generation:
            self._generation = generation
            try:
                self._mark.rise_to(generation)
            except OSError as error:  # `save` tries again
                log.warning("generation_not_persisted", generation=generation, error=str(error))

    def _act_with(self, acting: Policy) -> None:
        """Changes the form in which the current version acts."""
        self._held[0] = replace(self._held[0], acting=acting)
        self._become(acting)

    def _become(self, policy: Policy | None) -> None:
        with self._changed:
            self.current = policy
            self._changed.notify_all()
        for changed in self._listeners:
            changed()
        if policy is not None:
            log.info(
                "policy_current",
                policy_version=policy.version,
                digest=policy.digest,
                precision=policy.precision,
                reason=policy.manifest.reason,
            )

    def _count(self, rejected: PolicyRejected) -> None:
        self.rejections = self.rejections + Counter([rejected.reason])
        log.warning("policy_rejected", reason=rejected.reason, message=str(rejected))

    def _load(self, on_disk: list[PolicyFile]) -> None:
        for file in on_disk:
            if file.condemned:
                continue
            try:
                data, accepted = self._read(file), self._accepted()
                proof = self._prover.prove(data, _no_graph, accepted, on_disk=file)
            except PolicyRejected as rejected:
                self._count(rejected)
                continue
            self._generation = max(self._generation, proof.generation)
            newest = not self._held
            chosen = self._choose(proof.proven, measure=True) if newest else None
            self._held.append(_Held.of(proof, chosen))
            if not newest:
                break
        if self._held:
            self._become(self._held[0].acting)

    def _read(self, file: PolicyFile) -> bytes:
        try:
            return self._files.read(file)
        except OSError as error:
            raise PolicyRejected("malformed", f"policy {file.version}: {error}") from error

    def _accepted(self) -> Accepted:
        acting = (self._held[0].file, self._held[0].policy) if self._held else None
        # Decisions are slower meanwhile: of those that come before the last is saved, none is fed.
        feeds = bool(self._held) and self._held[0].unsaved is None
        return Accepted(self._newest, self._generation, self._condemned, acting, feeds)


def _no_graph(digest: bytes) -> bytes:
    raise PolicyRejected("graph", f"graph {digest.hex()[:12]} is missing or damaged on this device")
