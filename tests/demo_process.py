"""A real `shoal demo` in a process of its own, for end-to-end tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil


@dataclass(slots=True)
class DemoProcess:
    """One running demo: its processes by name, and the lines it wrote so far."""

    process: subprocess.Popen[str]
    directory: Path
    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def read_lines(self) -> None:
        """Collects what the demo says until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, text: str, *, since: int = 0, timeout_s: float = 60.0) -> int:
        """Waits until a line after the first `since` holds `text`; gives how many there are."""
        with self._news:
            found = self._news.wait_for(
                lambda: (
                    any(text in line for line in self.lines[since:])
                    or self.process.poll() is not None
                ),
                timeout_s,
            )
            assert found, f"no line with {text!r}: {self.lines[-20:]}"
            assert any(text in line for line in self.lines[since:]), self.lines[-20:]
            return len(self.lines)

    def pid_of(self, name: str) -> int:
        """The process id of one program of the demo, by the name of its configuration."""
        for child in psutil.Process(self.process.pid).children():
            files = {Path(part).name for part in child.cmdline()}
            if f"{name}.toml" in files or (name == "broker" and "mosquitto.conf" in files):
                return child.pid
        raise AssertionError(f"{name} is not running")

    def kill(self, name: str) -> None:
        """kill -9 of one program and of what it started, and waits until the demo saw it."""
        seen = len(self.lines)
        victim = psutil.Process(self.pid_of(name))
        for process in [*victim.children(recursive=True), victim]:
            os.kill(process.pid, signal.SIGKILL)
        self.wait_for(f"{name} ended with SIGKILL", since=seen)

    def descendants(self) -> list[psutil.Process]:
        """Every process that the demo or its children started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self, timeout_s: float = 240.0) -> dict[str, Any]:
        """Waits for the end and gives the envelope; the exit code is in `process.returncode`."""
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        self.process.wait(timeout_s)
        assert output, f"no envelope (exit {self.process.returncode}): {self.lines[-20:]}"
        envelope = json.loads(output)
        assert isinstance(envelope, dict)
        return envelope


@contextmanager
def demo(*arguments: str) -> Iterator[DemoProcess]:
    """Starts `shoal demo -o json` with these arguments in an empty directory of its own."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "shoalctl.cli",
                "demo",
                "-o",
                "json",
                "--dir",
                str(Path(scratch) / "demo"),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        running = DemoProcess(process, Path(scratch) / "demo")
        reader = threading.Thread(target=running.read_lines, daemon=True)
        reader.start()
        try:
            yield running
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
            reader.join(5)
