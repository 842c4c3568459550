"""A fleet, and a directory of wheels that stand for those of the package index."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version
from wheels import make_wheel

from shoalctl.flash.bundle import command
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.bundle.wheel import Wheel
from shoalctl.flash.bundle.wheelhouse import Wheelhouse
from shoalctl.fleet.init import FleetPlan, make_fleet


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shoal's own wheel, built once."""
    house = Wheelhouse(tmp_path_factory.mktemp("built"), say=lambda _line: None)
    return command.own_wheel(house, lambda _line: None).path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    make_fleet(tmp_path / "fleet", FleetPlan("reef", ("fleet.example.org",)))
    return tmp_path / "fleet"


@pytest.fixture
def index(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels of all that Shoal needs, and of pip; the real index is not there."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    directory = tmp_path / "wheels"
    kept = directory / "built" / "own"
    kept.mkdir(parents=True)
    wheel = Wheel.read(own)
    monkeypatch.setattr(command, "own_wheel", lambda _house, _say: wheel)
    for need in wheel.needs(Target.parse("aarch64", "3.11"), frozenset()):
        versions = [Version(part.version) for part in need.specifier if part.operator != "<"]
        for arch in ("aarch64", "x86_64") if need.name in {"numpy", "onnxruntime"} else ("",):
            tag = f"cp311-cp311-manylinux_2_27_{arch}" if arch else "py3-none-any"
            make_wheel(directory, need.name, str(versions[0]), tag=tag)
    make_wheel(directory, "pip", "26.3")
    return directory
