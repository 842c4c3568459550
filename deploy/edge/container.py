"""What a container of the agent runs: enrols this device once, then runs the agent and watches it.

    container.py --config /etc/shoal/agent.toml    enrol if need be, then `shoal agent run`
    container.py --health                          0 if the agent said lately that it is alive

The agent tells it what it tells systemd elsewhere (sd_notify): from that a health check reads, and
an agent that is silent for too long is ended. Only the standard library; works on a read-only root.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import FrameType

RUN = Path(os.environ.get("SHOAL_RUN_DIR", "/run/shoal"))
TOKEN = Path(os.environ.get("SHOAL_ENROLMENT_TOKEN_FILE", "/run/secrets/enrolment-token"))
SILENT_S = float(os.environ.get("SHOAL_WATCHDOG_S", "120"))
"""After how long a silence an agent counts as hung, in seconds."""
MAX_SEED_BYTES = 4096
TICK_S = 1.0
STOP_S = 25.0
EXIT_BAD_ARGUMENTS, EXIT_HUNG = 4, 70


class Stopped(Exception):
    """SIGTERM or SIGINT came."""


def health() -> int:
    """Whether the agent was heard of lately."""
    try:
        age_s = time.time() - (RUN / "alive").stat().st_mtime
    except OSError:
        print("the agent was not heard of yet")
        return 1
    print(f"the agent was heard of {age_s:.0f} s ago")
    return 0 if age_s < SILENT_S else 1


def enrol(config: Path) -> None:
    """Makes this device a member of its fleet if it is none, however long that takes.

    The token is read where it lies; the secret itself can't be wiped from within, and is used up.
    """
    with config.open("rb") as file:
        identity = config.parent / str(tomllib.load(file)["identity"])
    seed_file = config.parent / "seed.json"
    if (identity / "cert.pem").exists() or not seed_file.exists():
        return
    with seed_file.open("rb") as file:
        seed = json.loads(file.read(MAX_SEED_BYTES))
    command = [
        *("shoal", "agent", "enroll", "--server", f"{seed['host']}:{seed['port']}"),
        *("--ca-fingerprint", seed["ca_fingerprint"], "--identity", str(identity)),
    ]
    token = read_token()
    environment = {**os.environ, **({"SHOAL_ENROLL_TOKEN": token} if token else {})}
    while True:
        with subprocess.Popen(command, env=environment) as child:
            if _waited(child) == 0:
                return
        (RUN / "alive").touch()  # it waits for its fleet, and is not ill
        time.sleep(15)


def read_token() -> str:
    """The one-time token; empty where there is none.

    Raises:
        PermissionError: It belongs to another user; the message says what to do.
    """
    try:
        return TOKEN.read_text().strip() if TOKEN.is_file() else ""
    except PermissionError as error:
        raise PermissionError(
            f"{TOKEN} can't be read by user {os.getuid()}, which this container runs as: give it "
            f"the file (chown {os.getuid()} enrolment-token; chmod 0400 enrolment-token)"
        ) from error


def run(arguments: list[str]) -> int:
    """Runs the agent; returns its exit code."""
    address = RUN / "notify"
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as heard:
        heard.bind(str(address))
        heard.settimeout(TICK_S)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(address),
            "WATCHDOG_USEC": str(int(SILENT_S * 1e6)),
        }
        with subprocess.Popen(["shoal", "agent", "run", *arguments], env=environment) as child:
            try:
                return _watched(child, heard)
            except Stopped:
                return _ended(child)


def _watched(child: subprocess.Popen[bytes], heard: socket.socket) -> int:
    last_s = time.monotonic()
    while (code := child.poll()) is None:
        try:
            fields = heard.recv(4096).split(b"\n")
        except TimeoutError:
            fields = []
        if {b"READY=1", b"WATCHDOG=1"} & set(fields):
            last_s = time.monotonic()
            (RUN / "alive").touch()
        if time.monotonic() - last_s > SILENT_S:
            print(f"the agent was silent for {SILENT_S:.0f} s: ended", file=sys.stderr)
            child.send_signal(signal.SIGABRT)
            _ended(child)
            return EXIT_HUNG
    return code if code >= 0 else 128 - code


def _waited(child: subprocess.Popen[bytes]) -> int:
    try:
        return child.wait()
    except Stopped:
        _ended(child)
        raise


def _ended(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        code = child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    return code if code >= 0 else 128 - code


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped


def main(arguments: list[str]) -> int:
    """Runs the command."""
    if arguments == ["--health"]:
        return health()
    if arguments[:1] not in (["--config"], ["-c"]) or not arguments[1:]:
        print(__doc__, file=sys.stderr)
        return EXIT_BAD_ARGUMENTS
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        enrol(Path(arguments[1]))
        return run(arguments)
    except Stopped:
        return 0
    except (OSError, ValueError, KeyError) as error:
        problem = error if isinstance(error, PermissionError) else f"{arguments[1]}: {error!r}"
        print(problem, file=sys.stderr)
        return EXIT_BAD_ARGUMENTS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
