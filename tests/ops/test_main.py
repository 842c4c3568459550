"""Ctrl-C while the command is loaded ends it as it does later: quietly, with 130."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
INTERRUPTED = """
import sys
from importlib import import_module

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

module, _, function = sys.argv.pop(2).partition(":")
sys.meta_path.insert(0, Interrupt())
getattr(import_module(module), function)()
"""


@pytest.mark.parametrize("loaded", ["shoalctl.cli", "typer", "shoal.errors"])
def test_ctrl_c_while_modules_are_loaded_ends_quietly_with_130(loaded: str) -> None:
    entry = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["scripts"]["shoal"]
    finished = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, loaded, entry],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "", "")
