"""Every error Shoal raises on purpose, and the exit code each one means.

ShoalError
├── WireError                 bytes that came from elsewhere are not what they must be
│   ├── UnsupportedVersion    a newer or unknown major version
│   ├── LimitExceeded         larger than a stated limit; nothing was allocated
│   ├── ChunkRejected         well-formed, but not a chunk this learner can train from
│   ├── UpdateRefused         a gradient that must not be applied
│   └── StatisticsRefused     what a device told of its observations, and cannot be
├── ConfigError               a file, variable or flag is wrong
├── EnvironmentFailed         the environment cannot be made or breaks its contract
├── IdentityError             a certificate, key or name is missing, unreadable or refused
│   └── IdentityMissing       the directory that is configured is not there
├── ConnectionFailed          a server cannot be reached or refused us
├── DeadlineExceeded          it did not happen in time
├── PolicyRejected            a policy was not accepted; the one before stays
├── SpoolError                the device's disk queue
│   └── SpoolInUse            another process holds it
├── JournalError              the learner's durable record
│   └── JournalMissing        there is none where the configuration says
├── CheckpointError           a checkpoint cannot be written or restored
├── PolicyLogError            the log of published policies
│   ├── PolicyLogMissing      there is none where the configuration says
│   └── PolicyLogInUse        another process holds it
├── TaskStoreError            the learner's tasks cannot be read or written
├── RolloutError              a rollout cannot be started, or not be read or written
├── BundleRefused             what a device should be installed from is damaged or not the fleet's
├── FlashFailed               an image could not be read, or a card not be written or verified
└── ServiceEnded              a service of a process ended when none should
"""

from __future__ import annotations

from typing import ClassVar


class ShoalError(Exception):
    """The root. `str(error)` is one line for a person: what, where, and what to do."""

    exit_code: ClassVar[int] = 1


class WireError(ShoalError):
    """Bytes from elsewhere are malformed."""


class UnsupportedVersion(WireError):
    """The message was written in a major version this program does not speak."""


class LimitExceeded(WireError):
    """A stated size is over its limit. Nothing of that size was allocated."""


class ChunkRejected(WireError):
    """A well-formed chunk that cannot be trained from.

    Attributes:
        reason: A slug: `fingerprint`, `shape`, `dtype`, `non_finite`, `size` or `index`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UpdateRefused(WireError):
    """A gradient that must not be applied.

    Attributes:
        reason: A slug: `malformed`, `non_finite` or `layout`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StatisticsRefused(WireError):
    """Statistics of observations that must not be merged with those of others.

    Attributes:
        reason: A slug: `shape`, `count`, `non_finite`, `negative`, `range`, `backwards` or `ended`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConfigError(ShoalError):
    """A configuration file, a `SHOAL_*` variable or a flag is wrong."""

    exit_code = 4


class EnvironmentFailed(ShoalError):
    """The environment is unknown, cannot be made, or breaks its contract."""

    exit_code = 4


class IdentityError(ShoalError):
    """A certificate, key or name is missing, unreadable or refused."""

    exit_code = 2


class IdentityMissing(IdentityError):
    """There is no identity where the configuration says: it is wrong, as if a file were missing."""

    exit_code = 4


class ConnectionFailed(ShoalError):
    """A server cannot be reached, or it refused us."""

    exit_code = 2


class DeadlineExceeded(ShoalError):
    """It did not happen in the time given."""

    exit_code = 3


class PolicyRejected(ShoalError):
    """A policy was not accepted; the one before it stays in use.

    Attributes:
        reason: A slug such as `signature`, `digest`, `rollback`, `fleet`, `self_test`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SpoolError(ShoalError):
    """The device's disk queue cannot be opened or written."""


class SpoolInUse(SpoolError):
    """Another process holds it: this one was configured to share what can't be shared."""

    exit_code = 4


class JournalError(ShoalError):
    """The learner's durable record cannot be opened or written."""


class JournalMissing(JournalError):
    """There is no journal where the command or the configuration says."""

    exit_code = 4


class CheckpointError(ShoalError):
    """A checkpoint cannot be written or restored."""


class PolicyLogError(ShoalError):
    """The log of published policies cannot be opened or written."""


class PolicyLogMissing(PolicyLogError):
    """There is no log of policies where the command or the configuration says."""

    exit_code = 4


class PolicyNotKept(PolicyLogError):
    """A policy version is not kept any more, or never was."""


class PolicyLogInUse(PolicyLogError):
    """Another process holds it: this one was configured to share what can't be shared."""

    exit_code = 4


class TaskStoreError(ShoalError):
    """The learner's tasks cannot be read or written."""


class EventStoreError(ShoalError):
    """The events of the fleet cannot be read or written."""


class RolloutError(ShoalError):
    """A rollout cannot be started or steered, or its record not be read or written."""


class BundleRefused(ShoalError):
    """A bundle is damaged, was tampered with, or is not for this fleet; nothing was installed.

    Attributes:
        reason: A slug: `malformed`, `schema`, `signature`, `digest`, `files`, `path`, `limit` or
            `fleet`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FlashFailed(ShoalError):
    """An image could not be read, or a card could not be written or verified."""


class ServiceEnded(ShoalError):
    """A service of a process ended when none should."""
