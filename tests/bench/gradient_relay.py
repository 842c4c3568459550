"""A site's relay in a process of its own, in front of the server of `shoal bench gradients`."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import free_port

FLEET = "bench"
NAME = "site-a"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


@contextmanager
def relaying(directory: Path, upstream: int) -> Iterator[int]:
    """The port of a relay that runs until the block ends.

    Args:
        directory: With the fleet's `pki`, in which `NAME` is a relay; gets its files.
        upstream: Port of the learner's endpoint.
    """
    port = free_port()
    config = directory / "relay.toml"
    config.write_text(
        f'fleet = "{FLEET}"\n'
        f'identity = "{directory / "pki" / "identities" / NAME}"\n'
        f'state_dir = "{directory / "relay"}"\n'
        f'upstream = {{ host = "127.0.0.1", port = {upstream} }}\n'
        f'server = {{ host = "127.0.0.1", port = {port} }}\n',
        "utf-8",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "shoalctl.cli", "relay", "run", "--config", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(port, process)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("the relay did not start")
