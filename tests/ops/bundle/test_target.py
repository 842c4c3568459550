"""What a bundle is for, and which wheels run there."""

from __future__ import annotations

import pytest
from packaging.utils import parse_wheel_filename

from shoal.errors import ConfigError
from shoalctl.flash.bundle.target import Target, glibc_of

PI = Target.parse("aarch64", "3.11")


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp311-cp311-manylinux_2_28_aarch64", True),
        ("cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64", True),
        ("cp36-abi3-manylinux2014_aarch64", True),
        ("cp311-cp311-linux_aarch64", True),
        ("cp311-cp311-manylinux_2_34_aarch64", False),
        ("cp312-cp312-manylinux_2_28_aarch64", False),
        ("cp312-abi3-manylinux_2_28_aarch64", False),
        ("cp311-cp311-manylinux_2_28_x86_64", False),
        ("cp311-cp311-musllinux_1_2_aarch64", False),
        ("cp311-cp311-macosx_11_0_arm64", False),
        ("cp311-cp311t-manylinux_2_28_aarch64", False),
    ],
)
def test_a_wheel_fits_by_its_tags(tag: str, *, fits: bool) -> None:
    assert bool(parse_wheel_filename(f"x-1.0-{tag}.whl")[3] & PI.tags) is fits


def test_older_names_of_platforms_are_known_on_a_pc() -> None:
    pc = Target.parse("x86_64", "3.12")
    for platform in ("manylinux1_x86_64", "manylinux2010_x86_64", "manylinux_2_5_x86_64"):
        assert platform in pc.platforms
    assert pc.short == "cp312"
    assert "manylinux_2_36_x86_64" in Target.parse("x86_64", "3.12", "2.36").platforms


def test_names_that_others_use_for_a_processor_are_understood() -> None:
    assert Target.parse("arm64", "3.11") == PI
    assert Target.parse("amd64", "3.11").arch == "x86_64"


@pytest.mark.parametrize(
    ("arch", "python", "glibc", "words"),
    [
        ("armv7l", "3.11", "2.28", "aarch64 or x86_64"),
        ("aarch64", "3", "2.28", "such as 3.11"),
        ("aarch64", "3.11.2", "2.28", "such as 3.11"),
        ("aarch64", "3.11", "2.5", "2.17 or newer"),
        ("aarch64", "3.11", "musl", "2.17 or newer"),
    ],
)
def test_what_is_not_known_is_refused_with_what_to_give(
    arch: str, python: str, glibc: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Target.parse(arch, python, glibc)


@pytest.mark.parametrize(
    ("tag", "glibc"),
    [
        ("py3-none-any", None),
        ("cp311-cp311-manylinux_2_28_aarch64", "2.28"),
        ("cp311-cp311-manylinux2014_aarch64.manylinux_2_28_aarch64", "2.17"),
        ("cp311-cp311-manylinux1_x86_64", "2.5"),
    ],
)
def test_a_wheel_says_the_oldest_c_library_that_it_runs_with(tag: str, glibc: str | None) -> None:
    assert glibc_of(parse_wheel_filename(f"x-1.0-{tag}.whl")[3]) == glibc


def test_markers_are_those_of_the_target_and_not_of_this_machine() -> None:
    markers = Target.parse("aarch64", "3.13").markers("train")
    assert markers["platform_machine"] == "aarch64"
    assert markers["python_version"] == "3.13"
    assert markers["extra"] == "train"
