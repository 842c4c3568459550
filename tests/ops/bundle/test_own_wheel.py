"""Shoal's own wheel, and wheels of the user's sources."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoalctl.flash.bundle.own_wheel import CHECKOUT_PARTS, find_checkout, pack_installed
from shoalctl.flash.bundle.source_tree import build_wheel, tree_digest
from shoalctl.flash.bundle.wheel import Wheel

CHECKOUT = Path(__file__).parents[3]


def silent(_line: str) -> None:
    pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(
        CHECKOUT, tmp_path_factory.mktemp("own"), silent, only=CHECKOUT_PARTS, backend="hatchling"
    )


@pytest.fixture
def installed(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], metadata.Distribution]:
    """An installation of the wheel in a directory, which is the one that is found."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", tmp_path / "site", built], check=True)
    (found,) = metadata.distributions(path=[str(tmp_path / "site")])
    monkeypatch.setattr(metadata, "distribution", lambda _name: found)
    return lambda: found


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


def test_a_checkout_is_built_into_a_wheel_with_all_that_devices_are_given(built: Path) -> None:
    wheel, found = Wheel.read(built), names(built)
    assert wheel.name == "shoal"
    assert "numpy" in {need.name for need in wheel.requires}
    for file in ("edge_agent/agent.py", "shoalctl/cli.py", "shoalctl/edge/install.sh"):
        assert file in found
    assert not [name for name in found if name.startswith("test") or "__pycache__" in name]


def test_this_shoal_runs_from_a_checkout() -> None:
    assert find_checkout() == CHECKOUT


@pytest.mark.usefixtures("installed")
def test_an_installed_shoal_is_packed_again_as_it_is(built: Path, tmp_path: Path) -> None:
    assert find_checkout() is None
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    packed, again = pack_installed(tmp_path / "one"), pack_installed(tmp_path / "two")
    assert packed.read_bytes() == again.read_bytes()
    assert names(packed) == names(built)
    assert Wheel.read(packed).requires == Wheel.read(built).requires
    into = tmp_path / "again"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*command, into, packed], check=True)
    assert (into / "edge_agent/agent.py").read_bytes() == (
        CHECKOUT / "edge_agent/agent.py"
    ).read_bytes()
    assert (into / "bin/shoal").exists()


def test_an_installation_that_was_changed_or_is_incomplete_is_refused(
    installed: Callable[[], metadata.Distribution], tmp_path: Path
) -> None:
    path = Path(str(installed().locate_file("edge_agent/agent.py")))
    path.write_text(path.read_text() + "# changed\n")
    with pytest.raises(ConfigError, match=r"agent.py was changed"):
        pack_installed(tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"lacks edge_agent/agent.py"):
        pack_installed(tmp_path)


def test_a_shoal_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigError, match="not installed here"):
        find_checkout()


# ------------------------------------------------------------------------------- source trees


def project(directory: Path) -> Path:
    directory.mkdir()
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "my-env"\nversion = "2.0"\n'
    )
    (directory / "my_env.py").write_text("class Reef: ...\n")
    return directory


def everything(directory: Path) -> list[tuple[str, bytes]]:
    return sorted((str(path), path.read_bytes()) for path in directory.rglob("*") if path.is_file())


def test_building_leaves_nothing_in_the_sources_and_packs_nothing_stale(tmp_path: Path) -> None:
    root, scratch = project(tmp_path / "my_env"), tmp_path / "scratch"
    (root / "build/lib").mkdir(parents=True)
    (root / "build/lib/old.py").write_text("")
    before = everything(root)
    scratch.mkdir()
    wheel = build_wheel(root, scratch, silent, backend="hatchling")
    assert everything(root) == before
    assert (Wheel.read(wheel).name, str(Wheel.read(wheel).version)) == ("my-env", "2.0")
    assert "my_env.py" in names(wheel)
    assert not [name for name in names(wheel) if "old" in name]


def test_the_digest_of_a_tree_changes_with_what_counts_only(tmp_path: Path) -> None:
    root = project(tmp_path / "my_env")
    digest = tree_digest(root)
    for ignored in ("__pycache__/x.pyc", "build/y", ".git/HEAD", "my_env.egg-info/z"):
        (root / ignored).parent.mkdir(parents=True)
        (root / ignored).write_text("x")
    assert tree_digest(root) == digest
    (root / "data").mkdir()
    (root / "data/build").write_text("counts, below the top")
    with_data = tree_digest(root)
    assert with_data != digest
    (root / "my_env.py").write_text("class Reef: pass\n")
    assert tree_digest(root) != with_data
    assert tree_digest(root, ["pyproject.toml"]) != tree_digest(root)


def test_what_does_not_build_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "scratch").mkdir()
    with pytest.raises(ConfigError, match=r"no pyproject.toml"):
        build_wheel(tmp_path / "empty", tmp_path / "scratch", silent)
    root = project(tmp_path / "my_env")
    (root / "pyproject.toml").write_text((root / "pyproject.toml").read_text() + "nonsense")
    with pytest.raises(ConfigError, match=r"my_env does not build"):
        build_wheel(root, tmp_path / "scratch", silent, backend="hatchling")
