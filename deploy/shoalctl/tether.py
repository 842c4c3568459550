"""Ties a child process's life to its parent's, so that `kill -9` of the parent leaves no orphan.

Run by path as a script, before the child's own program: it asks the kernel for a signal at the
parent's death (Linux; elsewhere it only starts the program) and turns into that program, so the
process id stays the same.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tethered(arguments: Sequence[str]) -> list[str]:
    """The command line that runs `arguments` and ends with the calling process.

    Start it from a thread that lives as long as the process: the kernel watches the thread.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *arguments]


def main(parent: int, arguments: list[str]) -> None:
    """Ties this process to its parent, then becomes the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            return
    os.execv(arguments[0], arguments)  # noqa: S606 - becoming the program is the purpose


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
