"""What the tests of the command share: an image, and a directory of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from flash_images import TRIXIE, make_image


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture(scope="module")
def trixie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("trixie") / "raspios.img", TRIXIE)
