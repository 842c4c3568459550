"""Whether a bundle may be installed on a host: rules over facts, each with what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.errors import FlashFailed
from shoalctl.flash.ssh.facts import Facts, Privilege
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.output import duration, size

INSTALLED_RATIO: Final = 4.0
"""Installed bytes to those of the wheels: 208 MB from 53 MB, as measured on aarch64."""
DISK_MARGIN_BYTES: Final = 64 << 20
"""Left for the spool and the logs of what runs already."""
MIN_MEMORY_BYTES: Final = 192 << 20
"""What pip needs to unpack the largest wheel, and the agent to act beside it."""
MAX_CLOCK_DIFFERENCE_S: Final = 300.0
MACHINES: Final[Mapping[str, str]] = {"arm64": "aarch64", "amd64": "x86_64"}
"""How some systems call what others call differently."""


class Reason(StrEnum):
    """Why a host is refused."""

    PRIVILEGE = "privilege"
    ARCHITECTURE = "architecture"
    PYTHON = "python"
    VENV = "venv"
    GLIBC = "glibc"
    DISK = "disk"
    MEMORY = "memory"
    CLOCK = "clock"
    SYSTEMD = "systemd"
    LOCKED = "locked"
    ON_TRIAL = "on_trial"
    READ_ONLY = "read_only"


WAIVABLE: Final = (Reason.CLOCK, Reason.DISK, Reason.MEMORY)
"""What is an estimate, or will mend itself: `--allow` lets it pass."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason, and a sentence that says what to do."""

    reason: Reason
    detail: str


class HostRefused(FlashFailed):
    """A host is not fit for its bundle; nothing was changed on it."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(refusal.detail for refusal in refusals))
        self.refusals = tuple(refusals)


def arch_of(facts: Facts) -> str:
    """The architecture of a host as bundles name it."""
    return MACHINES.get(facts.machine, facts.machine)


def choose_bundle(facts: Facts, bundles: Mapping[str, OfflineBundle]) -> OfflineBundle:
    """The bundle for a host.

    Args:
        facts: What is known of it.
        bundles: By architecture.

    Raises:
        HostRefused: None is for it.
    """
    arch = arch_of(facts)
    if arch not in bundles:
        have = ", ".join(sorted(bundles))
        raise HostRefused(
            [
                Refusal(
                    Reason.ARCHITECTURE,
                    f"it is {arch or 'of an unknown architecture'} and the bundle is for {have}: "
                    f"make one with `shoal flash bundle --arch {arch or 'ARCH'}`",
                )
            ]
        )
    return bundles[arch]


def judge(
    facts: Facts,
    bundle: OfflineBundle,
    *,
    now_s: float,
    systemd: bool,
    allow: Collection[Reason] = (),
    other_on_trial: bool = False,
) -> tuple[Refusal, ...]:
    """Why a bundle may not be installed on a host; nothing if it may.

    Args:
        facts: What is known of the host.
        bundle: For its architecture.
        now_s: Unix time here, when the facts were found.
        systemd: Whether the host must have it.
        allow: Reasons that do not count; only waivable ones are heeded.
        other_on_trial: Whether another bundle is on trial there.
    """
    found = [
        *judge_privilege(facts),
        *_python(facts, bundle),
        *_glibc(facts, bundle),
        *_disk(facts, bundle),
        *_memory(facts),
        *_clock(facts, now_s),
        *_system(facts, systemd=systemd),
        *_lock(facts),
        *_trial(other_on_trial=other_on_trial),
    ]
    waived = set(allow) & set(WAIVABLE)
    return tuple(refusal for refusal in found if refusal.reason not in waived)


def judge_privilege(facts: Facts) -> Iterator[Refusal]:
    """Why the login user can't become root; nothing if it can."""
    if facts.privilege is Privilege.NONE:
        yield Refusal(
            Reason.PRIVILEGE,
            f"{facts.user} is not root and there is no sudo: log in as root, or install sudo",
        )
    elif facts.privilege is Privilege.PASSWORD:
        yield Refusal(
            Reason.PRIVILEGE,
            f"sudo asks {facts.user} for a password: run this at a terminal, or log in as root",
        )


def _python(facts: Facts, bundle: OfflineBundle) -> Iterator[Refusal]:
    wanted, arch = bundle.manifest.python, bundle.manifest.arch
    first = next((each for each in facts.pythons if each.command == "python3"), None)
    if first is None:
        yield Refusal(
            Reason.PYTHON,
            "it has no python3 that runs: `apt-get install python3 python3-venv` (or its kin)",
        )
        return
    python = next((each for each in facts.pythons if each.minor == wanted), None)
    if python is None:
        yield Refusal(
            Reason.PYTHON,
            f"its python3 is {first.version} and the bundle is for {wanted}: make one with "
            f"`shoal flash bundle --arch {arch} --python {first.minor}`",
        )
        return
    if python.kind != "CPython":
        yield Refusal(
            Reason.PYTHON,
            f"its {python.command} is {python.kind}, and the wheels of a bundle are for CPython",
        )
    if python.bits != 64:  # noqa: PLR2004 - bits
        yield Refusal(
            Reason.ARCHITECTURE,
            f"its kernel is {arch_of(facts)}, but its {python.command} has {python.bits} bits: "
            "install a 64-bit system",
        )
    # A bundle of today brings its own pip.
    brings_pip = any(file.path.startswith("wheels/pip-") for file in bundle.manifest.files)
    if not python.venv or not (python.ensurepip or brings_pip):
        yield Refusal(
            Reason.VENV,
            f"its {python.command} cannot make virtual environments: "
            "`apt-get install python3-venv`",
        )


def _glibc(facts: Facts, bundle: OfflineBundle) -> Iterator[Refusal]:
    wanted = bundle.manifest.min_glibc
    if facts.glibc is None:
        yield Refusal(
            Reason.GLIBC,
            f"its C library is {facts.libc[:60] or 'not known'}, and the wheels need glibc "
            f"{wanted} or newer: use a system with glibc, such as Debian",
        )
    elif _numbers(facts.glibc) < _numbers(wanted):
        yield Refusal(
            Reason.GLIBC,
            f"its glibc is {facts.glibc} and the wheels need {wanted}: use a newer system",
        )


def _disk(facts: Facts, bundle: OfflineBundle) -> Iterator[Refusal]:
    sha256, whole = bundle.sha256, facts.is_uploaded(bundle.sha256)
    unpacked = 0 if facts.is_unpacked(sha256) else bundle.manifest.total_bytes
    installed = int(bundle.manifest.total_bytes * INSTALLED_RATIO)
    left = max(0, bundle.size_bytes - facts.part_bytes(sha256))
    uploaded = 0 if whole or not unpacked else left
    needs: dict[str, int] = {}
    paths: dict[str, str] = {}
    for name, count in (("prefix", unpacked + installed), ("staging", uploaded), ("state", 0)):
        disk = facts.disks[name]
        if not disk.writable:
            yield Refusal(
                Reason.READ_ONLY,
                f"the file system of its {name} directory ({disk.device or 'not known'}) can't be "
                "written: remount it, or choose another directory",
            )
        needs[disk.device] = needs.get(disk.device, 0) + count
        paths.setdefault(disk.device, name)
    for device, needed in needs.items():
        free = facts.disks[paths[device]].free_bytes
        if needed and free is not None and free < needed + DISK_MARGIN_BYTES:
            yield Refusal(
                Reason.DISK,
                f"{device} has {size(free)} free and about {size(needed + DISK_MARGIN_BYTES)} are "
                "needed: remove something (`apt-get clean`), or pass --allow disk",
            )


def _memory(facts: Facts) -> Iterator[Refusal]:
    available = facts.memory_available_bytes
    if available is not None and available < MIN_MEMORY_BYTES:
        yield Refusal(
            Reason.MEMORY,
            f"{size(available)} of memory are free and {size(MIN_MEMORY_BYTES)} are needed: stop "
            "something, or pass --allow memory",
        )


def _clock(facts: Facts, now_s: float) -> Iterator[Refusal]:
    if facts.clock_s is None:
        return
    ahead_s = facts.clock_s - now_s
    if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield Refusal(
            Reason.CLOCK,
            f"its clock is {duration(abs(ahead_s))} {way} this machine's, and certificates would "
            "not be valid there: `timedatectl set-ntp true`, or pass --allow clock",
        )


def _system(facts: Facts, *, systemd: bool) -> Iterator[Refusal]:
    if systemd and not facts.systemd:
        yield Refusal(
            Reason.SYSTEMD,
            "it was not booted with systemd: pass --no-systemd, and start "
            "`/opt/shoal/bin/shoal-slots run` by what it has instead",
        )


def _lock(facts: Facts) -> Iterator[Refusal]:
    if facts.lock:
        yield Refusal(
            Reason.LOCKED,
            f"another flash is at work there ({facts.lock[:200]}): wait for its end; the lock of "
            "one that was cut off ends within a minute",
        )


def _trial(*, other_on_trial: bool) -> Iterator[Refusal]:
    if other_on_trial:
        yield Refusal(
            Reason.ON_TRIAL,
            "another bundle is on trial there: wait until it has acted, or go back first with "
            "`shoal flash rollback`",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
