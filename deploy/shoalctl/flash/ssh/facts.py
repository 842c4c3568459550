"""What one script finds out about a host. It changes nothing.

The script is POSIX sh and runs in dash and in busybox. Every fact is one line, `key=value`; a line
that is missing or odd is a fact that is not known, never a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shoal.errors import FlashFailed

MAX_FACTS_BYTES = 256 << 10
_MARK = "shoal-facts"
_VERSION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6}){0,3}")

FACTS_SCRIPT = r"""
# Facts for `shoal flash ssh`; nothing is changed.
# $1 prefix, $2 state directory, $3 staging directory or ""
export LC_ALL=C
prefix=$1 state=$2 staging=$3
say() { printf '%s=%s\n' "$1" "$(printf '%s' "$2" | tr '\n' ' ')"; }
have() { command -v "$1" >/dev/null 2>&1; }
[ -n "$staging" ] || staging=$HOME/.cache/shoal/flash

echo "shoal-facts=1"
as=
privilege=none
if [ "$(id -u)" = 0 ]; then privilege=root
elif have sudo; then
  if sudo -n true >/dev/null 2>&1; then privilege=sudo as="sudo -n"; else privilege=password; fi
fi
say privilege "$privilege"
say user "$(id -un)"
say staging "$staging"
say hostname "$(hostname 2>/dev/null || uname -n)"
say system "$( (. /etc/os-release && printf '%s' "$PRETTY_NAME") 2>/dev/null)"
say machine "$(uname -m)"
say clock "$(date +%s)"

libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
[ -n "$libc" ] || libc=$(ldd --version 2>&1 | head -n 1)
say libc "$libc"
for name in python3 python3.11 python3.12 python3.13 python3.14; do
  have "$name" && "$name" -I -c '
import platform, struct, sys
def has(name):
    try:
        __import__(name)
    except ImportError:
        return 0
    return 1
print("python.%s=%d.%d.%d %s %d %d %d" % ((sys.argv[1],) + sys.version_info[:3] + (
    platform.python_implementation(), struct.calcsize("P") * 8, has("venv"), has("ensurepip"))))
if platform.libc_ver()[0]:
    print("libc=" + " ".join(platform.libc_ver()))
' "$name" 2>/dev/null </dev/null
done

say memory_total_kb "$(awk '/^MemTotal:/ {print $2}' /proc/meminfo 2>/dev/null)"
say memory_available_kb "$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo 2>/dev/null)"

# The file system that a path is on, or will be.
disk() {
  at=$2
  while ! $as test -d "$at" && [ "$at" != / ]; do at=$(dirname "$at"); done
  say "disk_$1" "$(df -Pk "$at" 2>/dev/null | awk 'NR > 1 {print $(NF-2), $1; exit}')"
  if $as test -w "$at"; then say "writable_$1" 1; else say "writable_$1" 0; fi
}
disk prefix "$prefix"
disk state "$state"
disk staging "$staging"

[ -d /run/systemd/system ] && have systemctl && say systemd 1
have systemctl && systemctl -q is-enabled shoal-agent.service 2>/dev/null </dev/null && say unit 1
if $as test -s "$state/identity/cert.pem"; then say enrolled 1; else say enrolled 0; fi
if $as test -s "$state/enrolment-token"; then say token 1; else say token 0; fi
for file in "$staging"/*.tar "$staging"/*.part; do
  [ -f "$file" ] && say "staged.${file##*/}" "$(wc -c <"$file")"
done
say unpacked "$($as ls -1 "$prefix/flash" 2>/dev/null)"
if [ -e "$prefix/flash.lock" ] && have python3; then
  say lock "$($as python3 -I -c '
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDONLY)
for again in range(20):  # the lock of one that was cut off ends in a moment
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        sys.exit()
    except OSError:
        time.sleep(0.25)
print(os.pread(lock, 300, 0).decode("utf-8", "replace") or "another")
' "$prefix/flash.lock" 2>/dev/null)"
fi
if $as test -f "$prefix/slots.json"; then say slots "$($as cat "$prefix/slots.json")"; fi
echo "shoal-facts=end"
"""


class Privilege(StrEnum):
    """How the login user becomes root."""

    ROOT = "root"
    SUDO = "sudo"
    PASSWORD = "password"  # noqa: S105 - sudo asks for one
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter.

    Attributes:
        command: What it is called by.
        version: As `3.11.2`.
        kind: `CPython`.
        bits: 32 or 64: a 64-bit kernel may run a 32-bit system.
        venv: Whether it can make virtual environments.
        ensurepip: Whether it can put pip into them.
    """

    command: str
    version: str
    kind: str
    bits: int
    venv: bool
    ensurepip: bool

    @property
    def minor(self) -> str:
        """As `3.11`."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that a path is on.

    Attributes:
        device: What is mounted; equal for two paths on one file system.
        free_bytes: What is left; None: not known.
        writable: Whether it can be written at all.
    """

    device: str
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a host. None: it could not be found out.

    Attributes:
        privilege: How the login user becomes root.
        user: The login user.
        staging: Where the bundle is uploaded to, absolute.
        hostname: Its own name.
        system: What its operating system calls itself.
        machine: As `uname -m` says.
        clock_s: Unix time.
        pythons: Its interpreters, `python3` first.
        glibc: Version; None with another C library.
        libc: What the C library calls itself.
        memory_total_bytes: Of the machine.
        memory_available_bytes: Without swapping.
        disks: By `prefix`, `state` and `staging`.
        systemd: Whether it was booted with it.
        unit: Whether it starts the agent when it boots.
        enrolled: Whether it has a certificate.
        token: Whether an enrolment token waits there.
        staged: Sizes of the files that were uploaded, bytes, by name; `.part` is not whole.
        unpacked: Digests of the bundles that are unpacked.
        lock: Who flashes it at this moment; empty: nobody.
        slots: The persisted state of its slots, JSON; empty without one.
    """

    privilege: Privilege
    user: str
    staging: str
    hostname: str
    system: str
    machine: str
    clock_s: float | None
    pythons: tuple[Python, ...]
    glibc: str | None
    libc: str
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    disks: Mapping[str, Disk]
    systemd: bool
    unit: bool
    enrolled: bool
    token: bool
    staged: Mapping[str, int]
    unpacked: frozenset[str]
    lock: str
    slots: str

    def is_unpacked(self, sha256: str) -> bool:
        """Whether a bundle is unpacked there."""
        return sha256 in self.unpacked

    def is_uploaded(self, sha256: str) -> bool:
        """Whether a bundle file is there whole."""
        return f"{sha256}.tar" in self.staged

    def part_bytes(self, sha256: str) -> int:
        """How much of a bundle file is there, if its upload was cut off."""
        return self.staged.get(f"{sha256}.part", 0)


def parse_facts(text: str) -> Facts:
    """The facts in what the script printed.

    Raises:
        FlashFailed: The script did not run to its end.
    """
    found: dict[str, str] = {}
    complete = False
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if key == _MARK:
            complete = value == "end"
            if not complete:
                found.clear()  # what a login script printed before
        elif equals and not complete:
            found[key] = value.strip()
    if not complete:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise FlashFailed(
            f"the host did not answer what it is; its last line was {last[:200]!r}: "
            "does its login shell run `sh -s`?"
        )
    libc = found.get("libc", "")
    version = _VERSION.search(libc) if "musl" not in libc.lower() else None
    is_glibc = any(word in libc.lower() for word in ("glibc", "gnu", "ldd ("))
    clock = _number(found.get("clock"))
    return Facts(
        privilege=_privilege(found.get("privilege", "")),
        user=found.get("user", ""),
        staging=found.get("staging", ""),
        hostname=found.get("hostname", ""),
        system=found.get("system", ""),
        machine=found.get("machine", ""),
        clock_s=None if clock is None else float(clock),
        pythons=tuple(_pythons(found)),
        glibc=version[0] if version and is_glibc else None,
        libc=libc,
        memory_total_bytes=_kib(found.get("memory_total_kb")),
        memory_available_bytes=_kib(found.get("memory_available_kb")),
        disks={name: _disk(found, name) for name in ("prefix", "state", "staging")},
        systemd=found.get("systemd") == "1",
        unit=found.get("unit") == "1",
        enrolled=found.get("enrolled") == "1",
        token=found.get("token") == "1",
        staged=_staged(found),
        unpacked=frozenset(found.get("unpacked", "").split()),
        lock=found.get("lock", ""),
        slots=found.get("slots", ""),
    )


def _privilege(value: str) -> Privilege:
    return Privilege(value) if value in set(Privilege) else Privilege.NONE


def _pythons(found: Mapping[str, str]) -> Iterator[Python]:
    for key, value in found.items():
        words = value.split()
        if not key.startswith("python.") or len(words) != 5:  # noqa: PLR2004 - as printed
            continue
        version, kind, bits, venv, ensurepip = words
        if _VERSION.fullmatch(version):
            command = key.removeprefix("python.")
            number = _number(bits) or 0
            yield Python(command, version, kind, number, venv == "1", ensurepip == "1")


def _number(value: str | None) -> int | None:
    if value and value.isascii() and value.isdecimal() and len(value) <= 18:  # noqa: PLR2004
        return int(value)
    return None


def _kib(value: str | None) -> int | None:
    number = _number(value)
    return None if number is None else number * 1024


def _staged(found: Mapping[str, str]) -> dict[str, int]:
    sizes = {key: _number(value) for key, value in found.items() if key.startswith("staged.")}
    return {key.removeprefix("staged."): value for key, value in sizes.items() if value is not None}


def _disk(found: Mapping[str, str], name: str) -> Disk:
    free, _, device = found.get(f"disk_{name}", "").partition(" ")
    return Disk(device, _kib(free), found.get(f"writable_{name}") == "1")
