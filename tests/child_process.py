"""Child processes of tests, and what they say. Signals go only to processes started here."""

import signal
import subprocess
import threading
from collections.abc import Sequence

WAIT_S = 20.0
"""How long a test waits for what must come; never how long it takes."""


class Process:
    """A child process and the lines it writes to stderr."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="stderr", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ended(self) -> bool:
        return self._child.poll() is not None

    def wait_for_line(self, part: str, *, start: int = 0, timeout_s: float = WAIT_S) -> str:
        """The first line from `start` on that holds `part`; fails if it doesn't come."""

        def found() -> str | None:
            return next((line for line in self.lines[start:] if part in line), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, timeout_s)
            line = found()
        assert line is not None, f"never said {part!r}:\n" + "\n".join(self.lines)
        return line

    def wait_until_ready(self, part: str) -> None:
        """Waits for a line that holds `part`; leaves no process behind if it doesn't come."""
        try:
            self.wait_for_line(part)
        except BaseException:
            self.stop()
            raise

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it ended and everything it wrote was read."""
        code = self._child.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def stop(self) -> int:
        """Ends it in order, or by force if it does not obey."""
        self._child.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self.wait()

    def _read(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as lines:
            for line in lines:
                with self._news:
                    self.lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
