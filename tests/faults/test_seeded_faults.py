"""Every fault of the table can be made, and is noticed by the test that stands beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from seeded_faults import FAULTS, PITFALLS, Fault

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("cloud_learner", "deploy", "edge_agent", "examples", "protos", "tests")
TESTS_FAILED = 1  # pytest's exit code: others mean that no test was run, or not to its end
every_fault = pytest.mark.parametrize(
    "fault",
    FAULTS,
    ids=[f"{number}-{Path(fault.file).stem}" for number, fault in enumerate(FAULTS)],
)


def test_every_pitfall_has_a_fault() -> None:
    assert {fault.pitfall for fault in FAULTS} == set(PITFALLS)


@every_fault
def test_a_fault_can_be_made_at_one_place_and_its_test_exists(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text("utf-8").count(fault.before) == 1
    assert fault.before != fault.after
    file, _, name = fault.test.partition("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source and its tests, which take nothing from the original."""
    directory = tmp_path_factory.mktemp("faults")
    for name in COPIED:
        ignored = shutil.ignore_patterns(".venvs", "*.onnx.tmp")
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def run(copied: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    paths = (copied, copied / "protos", copied / "deploy")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
        + [f"tests/{test}" for test in tests],
        cwd=copied,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_without_a_fault_all_of_the_tests_pass_in_the_copy(copied: Path) -> None:
    done = run(copied, *dict.fromkeys(fault.test for fault in FAULTS))
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.faults
@pytest.mark.timeout(300)
@every_fault
def test_a_fault_is_noticed_by_its_test(copied: Path, fault: Fault) -> None:
    file = copied / fault.file
    source = file.read_text("utf-8")
    file.write_text(source.replace(fault.before, fault.after), "utf-8")
    try:
        done = run(copied, fault.test)
    finally:
        file.write_text(source, "utf-8")
    assert done.returncode == TESTS_FAILED, done.stdout[-4000:]
    assert fault.test in done.stdout
