"""What gRPC says of refused handshakes is read, and nothing else on stderr is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fleet_world import World
from hypothesis import given
from hypothesis import strategies as st
from sim import on_loop, until

from cloud_learner.serving.handshakes import Handshakes, read_line, tell_refused
from cloud_learner.uplink.throttle import Throttle

HEAD = b"I1130 02:46:12.440746    6533 ssl_transport_security.cc:2563] "
FAILED = HEAD + b"Handshake failed with error SSL_ERROR_SSL: error:100000c0:SSL routines:"
PROGRAM = """
import os, sys
from cloud_learner.serving.handshakes import Handshakes
with Handshakes.listening():
    os.write(2, b"from C\\n")
    os.write(2, b"I1130 02:46:12.440746    6533 some_file.cc:2563] gRPC talks\\n")
    print("from Python", file=sys.stderr)
    {last}
print("after", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (FAILED + b"OPENSSL_internal:PEER_DID_NOT_RETURN_A_CERTIFICATE: x\n", "no_certificate"),
        (FAILED + b"CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "foreign_certificate"),
        (FAILED + b"CERTIFICATE_VERIFY_FAILED: certificate has expired\n", "certificate_dates"),
        (FAILED + b"OPENSSL_internal:HTTP_REQUEST: x\n", "tls"),
        (HEAD + b"something else\n", ""),
        (b"E1130 02:46:12.440746    6533 a.cc:1] cannot bind\n", ""),
        (b"F1130 02:46:12.440746    6533 a.cc:1] Check failed\n", None),
        (b"Traceback (most recent call last):\n", None),
        (b"[W1130 02:46:12.440746 a.cpp:1] of torch\n", None),
    ],
)
def test_a_line_is_understood(line: bytes, reason: str | None) -> None:
    assert read_line(line) == reason


@given(st.binary(max_size=300))
def test_no_line_is_too_strange(line: bytes) -> None:
    read_line(line)


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("pass", ["from C", "from Python", "after"]),
        ("raise SystemExit(3)", ["from C", "from Python"]),
        ("os.abort()", ["from Python", "Fatal Python error: Aborted"]),
    ],
)
def test_the_rest_of_stderr_arrives_whatever_ends_the_process(
    last: str, shown: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(last=last))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False
    )
    assert "gRPC talks" not in done.stderr
    for text in shown:
        assert text in done.stderr


@on_loop
async def test_refused_handshakes_are_all_counted_and_told_now_and_then() -> None:
    world, handshakes, counters = World(), Handshakes(), Counter[str]()
    throttle = Throttle(60.0, clock=world.clock)
    for _ in range(3):
        handshakes._count("no_certificate")
    telling = asyncio.ensure_future(tell_refused(handshakes, world.fleet, counters, throttle))
    await until(lambda: counters["handshakes_refused_no_certificate"] == 3)
    await asyncio.to_thread(handshakes._count, "no_certificate")
    await until(lambda: counters["handshakes_refused_no_certificate"] == 4)
    telling.cancel()
    assert world.fleet.log.counters == {"learner.handshake_refused.no_certificate": 3}
