"""`shoal flash image` as tests type it, and a bundle for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from bundles import CONTENTS, PUBLIC, write_bundle

from shoalctl.cli import run


def flash(*arguments: str | Path) -> int:
    return run(["flash", "image", *(str(argument) for argument in arguments)])


def a_bundle(directory: Path, contents: Mapping[str, bytes] = CONTENTS) -> Path:
    """A bundle of the fleet in `directory/fleet`, which is where it is looked for."""
    (directory / "fleet").mkdir(exist_ok=True)
    (directory / "fleet/policy.pub").write_text(f"{PUBLIC.hex()}\n")
    write_bundle(directory / "wheels.tar", contents)
    return directory / "wheels.tar"


def refused(
    capsys: pytest.CaptureFixture[str], code: int, words: str, *arguments: str | Path
) -> None:
    assert flash(*arguments) == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
