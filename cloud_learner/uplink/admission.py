"""What to do with a chunk: the rules, as pure functions of values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from cloud_learner.journal.audit import Disposition
from shoal.errors import ChunkRejected
from shoal.policy import Manifest
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk
from shoal.validation import MAX_REWARD, check_rewards, validate_chunk


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A policy version this learner published.

    Attributes:
        updates: Optimiser updates when it was published.
        digest: Of its graph and tensors; None when only the count is still known.
        twin_digests: Of its twins, with which a device may act as well; none: it has none.
    """

    updates: int
    digest: bytes | None
    twin_digests: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> KnownVersion:
        """What its manifest says."""
        return cls(manifest.updates, manifest.digest, manifest.twin_digests)


class KnownVersions:
    """The policy versions that chunks may come from. Read from any thread.

    versions = KnownVersions(policy_log.updates_of, highest=policy_log.highest_version)
    versions.add(7, KnownVersion.of(manifest))
    """

    def __init__(self, updates_of: Callable[[int], int | None], *, highest: int) -> None:
        self._updates_of = updates_of
        self._versions: dict[int, KnownVersion] = {}
        self._order: list[int] = []
        self._highest = highest

    @property
    def highest(self) -> int:
        """The highest version ever published."""
        return self._highest

    def add(self, version: int, known: KnownVersion) -> None:
        """Adds a published version.

        One that was published again has fewer updates than those before it: chunks may be of it,
        and `oldest_within` goes by the others.
        """
        before = self._versions.get(version)
        self._versions[version] = known
        self._highest = max(self._highest, version)
        if before is None:
            at = bisect_left(self._order, version)
            self._order.insert(at, version)
            self._keep_order(at)

    def _keep_order(self, at: int) -> None:
        """Leaves out what has fewer updates than an earlier version."""
        order, versions = self._order, self._versions
        if at > 0 and versions[order[at]].updates < versions[order[at - 1]].updates:
            del order[at]
            return
        while at + 1 < len(order) and versions[order[at + 1]].updates < versions[order[at]].updates:
            del order[at + 1]

    def oldest_within(self, lowest_updates: int) -> int:
        """The oldest version that was published at so many updates or more; updates never shrink.

        Returns:
            0 when even the oldest that is known was, as those before it may have been as well.
        """
        order, versions = self._order, self._versions
        at = bisect_left(order, lowest_updates, key=lambda version: versions[version].updates)
        if at == 0:
            return 0
        return order[at] if at < len(order) else self._highest

    def find(self, version: int) -> KnownVersion | None:
        """What is known of a version; None when it was never published, or long forgotten."""
        known = self._versions.get(version)
        if known is None:
            updates = self._updates_of(version)
            known = KnownVersion(updates, None) if updates is not None else None
        return known


@dataclass(frozen=True, slots=True)
class Standard:
    """What chunks are held against.

    Attributes:
        spec: The spaces that are trained for.
        versions: The policy versions that exist.
        updates_now: The learner's optimiser updates.
        max_lag: Updates that a chunk may be behind.
        state_width: Numbers in the memory of the policy that is trained; 0 for none.
        refuses: Why no chunk is trained from here at all; empty: they are.
        max_reward: The largest reward that is trained from, of either sign.
    """

    spec: EnvSpec
    versions: KnownVersions
    updates_now: int
    max_lag: int
    state_width: int = 0
    refuses: str = ""
    max_reward: float = MAX_REWARD


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision about one chunk.

    Attributes:
        disposition: `trained` here means: admitted to replay, to be trained from once.
        reason: A slug; empty for an admitted chunk.
        detail: One line for a person; empty for an admitted chunk.
        version_updates: The learner's updates when the version that acted was published.
    """

    disposition: Disposition
    reason: str = ""
    detail: str = ""
    version_updates: int = 0


def reject(reason: str, detail: str) -> Verdict:
    """A verdict that a chunk must not be trained from, whenever it comes."""
    return Verdict(Disposition.REJECTED, reason, detail)


def decide(chunk: Chunk, standard: Standard) -> Verdict:
    """Decides about a chunk that is whole: admit it, call it expired, or reject it."""
    try:
        _check(chunk, standard)
    except ChunkRejected as error:
        return reject(error.reason, str(error))
    version = chunk.policy_version
    if not 1 <= version <= standard.versions.highest:
        return reject(
            "unknown_version",
            f"policy version {version} was never published here, the highest is "
            f"{standard.versions.highest}; was the learner's state_dir replaced? "
            "policies_after_version makes new versions higher than those of the devices",
        )
    known = standard.versions.find(version)
    if known is None:
        return Verdict(
            Disposition.EXPIRED, "lag", f"policy version {version} is too old to be remembered"
        )
    unfit = _misfit(chunk, known, standard.state_width)
    if unfit is not None:
        return unfit
    lag = standard.updates_now - known.updates
    if lag > standard.max_lag:
        return Verdict(
            Disposition.EXPIRED,
            "lag",
            f"{lag} updates behind, training.max_lag is {standard.max_lag}",
            known.updates,
        )
    return Verdict(Disposition.TRAINED, version_updates=known.updates)


def _check(chunk: Chunk, standard: Standard) -> None:
    if standard.refuses:
        raise ChunkRejected("mode", standard.refuses)
    validate_chunk(chunk, standard.spec)
    check_rewards(chunk.rewards, standard.max_reward)


def _misfit(chunk: Chunk, known: KnownVersion, state_width: int) -> Verdict | None:
    """Why a chunk cannot have been made by the version that it names."""
    version = chunk.policy_version
    acted = chunk.policy_digest
    if known.digest is not None and acted not in (known.digest, *known.twin_digests):
        return reject(
            "digest",
            f"policy version {version} has another digest than the policy that acted; "
            "the device holds a policy of another learner",
        )
    width = 0 if chunk.initial_state is None else chunk.initial_state.shape[1]
    if width != state_width:
        return reject(
            "state",
            f"the chunk's initial state has {width} numbers, the memory of policy version "
            f"{version} has {state_width}; update the device",
        )
    return None
