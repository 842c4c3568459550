"""The small programs that a host runs for us, and the commands that run them.

Each is safe to run again at any time: it does what is missing, and ends with the same on the disk.
They are Python of any version of these years, run in isolated mode (`-I`).
"""

from __future__ import annotations

import shlex
from typing import Final

BUSY_STATUS: Final = 75
DAMAGED_STATUS: Final = 65
LEASE_PATIENCE_S: Final = 45.0
"""A lock whose holder is not heard for so long ends: a link may die without a word."""
HEARTBEAT_S: Final = 10.0

_LEASE: Final = """
import fcntl, os, select, sys, time
path, who, patience_s = sys.argv[1:]
os.makedirs(os.path.dirname(path), exist_ok=True)
lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
for again in range(20):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except OSError:
        time.sleep(0.25)
else:
    print(os.pread(lock, 300, 0).decode("utf-8", "replace") or "another")
    sys.exit(75)
os.ftruncate(lock, 0)
os.pwrite(lock, who.encode(), 0)
print("held", flush=True)
while select.select([0], [], [], float(patience_s))[0] and os.read(0, 4096):
    pass
os.ftruncate(lock, 0)
"""

_UNPACK: Final = """
import hashlib, os, shutil, sys, tarfile
archive, digest, target = sys.argv[1:]
def fail(text):
    print(text, file=sys.stderr)
    sys.exit(65)
def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
above = os.path.dirname(target)
os.makedirs(above, mode=0o755, exist_ok=True)
for name in os.listdir(above):
    if name != os.path.basename(target):
        shutil.rmtree(os.path.join(above, name))
if os.path.isdir(target):
    sys.exit(0)
with open(archive, "rb") as file:
    found = hashlib.sha256()
    for piece in iter(lambda: file.read(1 << 20), b""):
        found.update(piece)
    if found.hexdigest() != digest:
        fail("the bundle that was uploaded is damaged")
    file.seek(0)
    staging = target + ".tmp"
    os.mkdir(staging, 0o755)
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for entry in tar:
            parts = entry.name.split("/")
            if entry.isdir():
                continue
            if not entry.isreg() or "" in parts or ".." in parts:
                fail("%r does not belong into a bundle" % entry.name)
            path = os.path.join(staging, entry.name)
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            with open(path, "xb") as out:
                shutil.copyfileobj(tar.extractfile(entry), out, 1 << 20)
                os.fchmod(out.fileno(), 0o755 if entry.mode & 0o100 else 0o644)
                out.flush()
                os.fsync(out.fileno())
    os.sync()
    os.rename(staging, target)
    sync(above)
"""

_ALONE: Final = """
import fcntl, os, signal, sys
path, patience_s, *command = sys.argv[1:]
os.makedirs(os.path.dirname(path), exist_ok=True)
lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
signal.alarm(int(patience_s))
fcntl.flock(lock, fcntl.LOCK_EX)
signal.alarm(0)
os.set_inheritable(lock, True)
os.execvp(command[0], command)
"""

_WRITE_ENROLMENT: Final = """
import os, sys
path = sys.argv[1]
token = sys.stdin.buffer.read(4096).strip()
if not token:
    print("no token came", file=sys.stderr)
    sys.exit(65)
above = os.path.dirname(path)
os.makedirs(above, mode=0o750, exist_ok=True)
staging = path + ".tmp"
if os.path.lexists(staging):
    os.unlink(staging)
descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
os.write(descriptor, token + b"\\n")
owner = os.stat(above)
os.fchown(descriptor, owner.st_uid, owner.st_gid)
os.fsync(descriptor)
os.close(descriptor)
os.replace(staging, path)
descriptor = os.open(above, os.O_RDONLY)
os.fsync(descriptor)
"""

_PREFIX_DIGEST: Final = """
import hashlib, os, sys
path, limit = sys.argv[1], int(sys.argv[2])
digest, left = hashlib.sha256(), limit
with open(path, "rb") as file:
    for piece in iter(lambda: file.read(min(left, 1 << 20)), b""):
        digest.update(piece)
        left -= len(piece)
print(limit - left, digest.hexdigest())
"""


def lease_command(lock: str, who: str) -> str:
    """Holds the lock of a host until its stdin ends, or is silent for too long."""
    return _python(_LEASE, lock, who, f"{LEASE_PATIENCE_S:g}")


def alone_command(lock: str, patience_s: float, command: str) -> str:
    """Runs a command when an earlier one, whose link was lost, has ended there."""
    return _python(_ALONE, lock, f"{patience_s:.0f}", *shlex.split(command))


def unpack_command(archive: str, sha256: str, target: str) -> str:
    """Checks a bundle and unpacks it, whole or not at all; other bundles there go."""
    return _python(_UNPACK, archive, sha256, target)


def token_command(path: str) -> str:
    """Writes the enrolment token that it reads from stdin, for its owner's eyes only."""
    return _python(_WRITE_ENROLMENT, path)


def prefix_digest_command(path: str, size_bytes: int) -> str:
    """Says how many of the first bytes of a file there are, and their sha256."""
    return _python(_PREFIX_DIGEST, path, str(size_bytes))


def _python(program: str, *arguments: str) -> str:
    return shlex.join(["python3", "-I", "-c", program.strip(), *arguments])
