"""`shoal flash bundle`: signed, whole, the same every time, the second time without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from wheels import make_wheel

from edge_agent.slots.bundle import check_files as launcher_checks
from edge_agent.slots.bundle import read_manifest as launcher_reads
from shoal.bundle import check_files, read_manifest
from shoal.bundle_archive import unpack
from shoalctl.cli import run
from shoalctl.flash.bundle import wheelhouse
from shoalctl.flash.bundle.fleet_trust import fleet_public_key
from shoalctl.flash.bundle.parts import Parts
from shoalctl.flash.edge_files import edge_directory


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bundle(*arguments: str | Path) -> int:
    typed = ["flash", "bundle", "--wheels", "wheels", *(str(each) for each in arguments)]
    return run(typed if "--arch" in typed else [*typed, "--arch", "aarch64"])


def refused(
    capsys: pytest.CaptureFixture[str], code: int, words: str, *arguments: str | Path
) -> None:
    assert bundle(*arguments) == code
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
    assert list(Path().glob("*.tar")) == []


@pytest.mark.usefixtures("index")
def test_a_bundle_holds_what_a_device_is_installed_from(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle("--env", "Acrobot-v1", "--offline", "-o", "json") == 0
    said = capsys.readouterr()
    (item,) = json.loads(said.out)["items"]
    assert json.loads(said.out)["schema"] == "shoal.v1.BundleReport"
    public_key = fleet_public_key(fleet)
    manifest = unpack(Path(item["file"]), tmp_path / "there", public_key)
    assert manifest == read_manifest(tmp_path / "there", public_key)
    check_files(tmp_path / "there", manifest)
    launcher_checks(tmp_path / "there", launcher_reads(tmp_path / "there"))
    assert (manifest.fleet, manifest.arch, manifest.python) == ("reef", "aarch64", "3.11")
    assert manifest.min_glibc == "2.27"
    assert manifest.enrollment == "fleet.example.org:8444"
    assert manifest.digest == item["digest"]
    assert item["file"] == f"shoal-bundle-{manifest.version}-aarch64-cp311.tar"
    paths = [file.path for file in manifest.files]
    for path in (
        *("install.sh", "boot/__main__.py", "config/agent.toml", "config/policy.pub"),
        *("config/seed.json", "units/shoal-agent.service"),
    ):
        assert path in paths
    wheels = [path for path in paths if path.startswith("wheels/")]
    assert [path for path in wheels if "numpy" in path] == [
        "wheels/numpy-2.0-cp311-cp311-manylinux_2_27_aarch64.whl"
    ]
    assert not [path for path in wheels if "torch" in path]
    assert {"pip 26.3", "shoal 0.1.0"} <= set(item["packages"])
    installer = (tmp_path / "there/install.sh").read_text()
    assert "arch=aarch64\npython=3.11\nglibc=2.27\n" in installer
    assert "@" not in installer.replace('"$@"', "")


@pytest.mark.usefixtures("index", "fleet")
def test_an_environment_whose_module_is_in_no_wheel_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = make_wheel(tmp_path / "mine", "my-env")
    assert bundle("--offline", "--env", "my_envs:Reef", "--with", str(mine)) == 4
    assert "no wheel of the bundle holds the module my_envs" in capsys.readouterr().err
    assert list(Path().glob("*.tar")) == []
    assert bundle("--offline", "--env", "my_env:Reef", "--with", str(mine)) == 0


@pytest.mark.usefixtures("index", "fleet")
def test_the_same_inputs_make_the_same_bytes_and_other_ones_another_version() -> None:
    for name in ("one", "two"):
        assert bundle("--offline", "--out", f"{name}.tar") == 0
    assert bundle("--offline", "--env", "Acrobot-v1", "--out", "three.tar") == 0
    one, two, three = (Path(f"{name}.tar").read_bytes() for name in ("one", "two", "three"))
    assert one == two
    assert one != three
    assert Path("one.tar").stat().st_mode & 0o777 == 0o644
    versions = {unpack(Path(f"{name}.tar"), Path(name), None).version for name in ("one", "three")}
    assert len(versions) == 2


@pytest.mark.usefixtures("index", "fleet")
def test_the_second_time_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle("--offline", "--out", "one.tar") == 0

    def fail(_arguments: Sequence[str | Path], _say: object) -> None:
        raise AssertionError("pip was asked")

    monkeypatch.setattr(wheelhouse, "run_pip", fail)
    assert bundle("--out", "two.tar") == 0
    assert "from before" in capsys.readouterr().err
    assert Path("one.tar").read_bytes() == Path("two.tar").read_bytes()


@pytest.mark.usefixtures("fleet")
def test_a_kept_wheel_that_was_changed_is_looked_for_again(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle("--offline", "--out", "one.tar") == 0
    make_wheel(index, "gymnasium", "1.0", content="changed = True")
    assert bundle("--offline", "--out", "two.tar") == 0
    assert "from before" not in capsys.readouterr().err
    assert Path("one.tar").read_bytes() != Path("two.tar").read_bytes()


@pytest.mark.usefixtures("index", "fleet")
def test_a_date_that_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert bundle("--offline", "--version", "7", "--out", "x.tar") == 0
    manifest = unpack(Path("x.tar"), Path("x"), None)
    assert (manifest.created, manifest.version) == ("2001-09-09T01:46:40Z", "7")


@pytest.mark.usefixtures("fleet")
def test_the_users_packages_go_along_with_what_they_need(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index, "gpio", "3.1", tag="cp311-cp311-manylinux_2_17_aarch64")
    make_wheel(index, "only-on-a-pc", "1.0")
    needs = ("gpio>=3; platform_machine == 'aarch64'", "only-on-a-pc; platform_machine == 'x86_64'")
    wheel = make_wheel(tmp_path / "mine", "my-env", "2.0", requires=needs)
    assert bundle("--offline", "--with", wheel, "-o", "json") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert {"my-env 2.0", "gpio 3.1"} <= set(item["packages"])
    assert not [package for package in item["packages"] if "on-a-pc" in package]


@pytest.mark.usefixtures("index", "fleet")
def test_a_package_that_does_not_run_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pc = make_wheel(tmp_path / "mine", "my-env", tag="cp311-cp311-manylinux_2_28_x86_64")
    refused(capsys, 4, "does not run on aarch64", "--offline", "--with", pc)
    newer = make_wheel(tmp_path / "mine", "my-env", requires_python=">=3.12")
    refused(capsys, 4, "needs Python >=3.12", "--offline", "--with", newer)
    heavy = make_wheel(tmp_path / "mine", "my-env", requires=["torch>=2"])
    refused(capsys, 4, "needs torch", "--offline", "--with", heavy)
    make_wheel(tmp_path / "wheels", "torch", "2.6")
    make_wheel(tmp_path / "wheels", "heavy", requires=["torch>=2"])
    deep = make_wheel(tmp_path / "mine", "my-env", requires=["heavy"])
    refused(capsys, 4, "needs torch, which an agent", "--offline", "--with", deep)
    lonely = make_wheel(tmp_path / "mine", "my-env", requires=["no-such-package"])
    refused(capsys, 4, "no wheel of no-such-package", "--offline", "--with", lonely)


@pytest.mark.usefixtures("fleet")
def test_a_dependency_without_a_wheel_for_the_target_is_named(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(index.glob("onnxruntime-*aarch64.whl")).unlink()
    refused(capsys, 4, "no wheel of onnxruntime", "--offline")
    assert bundle("--offline", "--arch", "x86_64") == 0


@pytest.mark.usefixtures("fleet")
def test_without_a_network_the_first_bundle_says_what_to_do(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    next(index.glob("onnxruntime-*aarch64.whl")).unlink()
    refused(capsys, 2, "the package index can't be reached")


@pytest.mark.usefixtures("index", "fleet")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--arch", "sparc"), 4, "aarch64 or x86_64"),
        (("--python", "3.10"), 4, "needs Python"),
        (("--python", "2"), 4, "such as 3.11"),
        (("--fleet", "elsewhere"), 4, "shoal fleet init"),
        (("--with", "./nothing"), 4, "no such directory or wheel"),
        (("--with", "!"), 4, "a directory, a wheel, or a requirement"),
        (("--config", "none.toml"), 4, "No such file"),
        (("--version", "../x"), 1, "version"),
        (("--constraint", "none.txt"), 4, "none.txt"),
        (("--policy-key", "none.key"), 4, "no signing key"),
        (("--out", "fleet/policy.pub/x"), 4, "can't write"),
        (("--nonsense",), 4, "No such option"),
    ],
)
def test_bad_arguments_are_explained(
    arguments: Sequence[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, code, words, "--offline", *arguments)


@pytest.mark.usefixtures("index", "fleet")
def test_a_dry_run_finds_everything_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--offline", "--dry-run", "-o", "json", "--out", "x.tar") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert not item["written"]
    assert not Path("x.tar").exists()
    assert bundle("--offline", "-o", "json", "--out", "x.tar") == 0
    (written,) = json.loads(capsys.readouterr().out)["items"]
    assert written == {**item, "written": True}


def test_parts_are_those_of_this_shoal() -> None:
    parts = Parts.load()
    assert {"__init__.py", "__main__.py", "cli.py"} <= set(parts.boot)
    assert set(parts.units) == {path.name for path in (edge_directory() / "systemd").iterdir()}
