"""A tethered child ends with its parent, however the parent ends."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from shoalctl.tether import tethered

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell of deaths")

PARENT = """
import subprocess, sys
from shoalctl.tether import tethered
child = subprocess.Popen(tethered([sys.executable, "-c", "input()"]), stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


def test_a_tethered_child_dies_when_its_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert psutil.wait_procs([child], 20)[1] == []


def test_a_tethered_child_is_the_program_itself_with_its_exit_code() -> None:
    code = "import os, sys; print(os.getpid()); sys.exit(7)"
    with subprocess.Popen(
        tethered([sys.executable, "-c", code]), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.communicate()[0].strip() == str(child.pid)
    assert child.returncode == 7


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    command = tethered([sys.executable, "-c", "print('started')"])
    command[command.index(str(os.getpid()))] = "1"
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout == ""
