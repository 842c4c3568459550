"""Which wheels belong together on a target, whatever machine asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from wheels import make_wheel

from shoal.errors import ConfigError
from shoalctl.flash.bundle.resolution import closure
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.bundle.wheel import Wheel

PI = Target.parse("aarch64", "3.11")
ROOT = [Requirement("root")]


def wheels(directory: Path, **needs: tuple[str, ...]) -> list[Wheel]:
    """Wheels by name, each with what it needs."""
    return [
        Wheel.read(make_wheel(directory, name, requires=requires))
        for name, requires in needs.items()
    ]


def test_what_is_needed_is_taken_and_what_is_not_stays_away(tmp_path: Path) -> None:
    found = wheels(tmp_path, root=("one",), one=("two",), two=("root",), spare=())
    chosen = closure(ROOT, found, PI)
    assert sorted(chosen.wheels) == ["one", "root", "two"]
    assert chosen.missing == ()


def test_markers_are_evaluated_for_the_target(tmp_path: Path) -> None:
    found = wheels(
        tmp_path,
        root=(
            "arm; platform_machine == 'aarch64'",
            "pc; platform_machine == 'x86_64'",
            "old; python_version < '3.11'",
            "new; python_version >= '3.11'",
            "windows; sys_platform == 'win32'",
        ),
    )
    assert {str(need.name) for need in closure(ROOT, found, PI).missing} == {"arm", "new"}
    newer = closure(ROOT, found, Target.parse("x86_64", "3.10"))
    assert {need.name for need in newer.missing} == {"pc", "old"}


def test_extras_are_followed_where_they_are_asked_for(tmp_path: Path) -> None:
    found = wheels(
        tmp_path,
        root=("one[more]", "plain"),
        one=("two; extra == 'more'",),
        plain=("three; extra == 'more'",),
    )
    assert [need.name for need in closure(ROOT, found, PI).missing] == ["two"]


def test_names_are_compared_in_their_normal_form(tmp_path: Path) -> None:
    found = wheels(tmp_path, root=("Back_Ports.zstd>=1",))
    found.append(Wheel.read(make_wheel(tmp_path, "backports.zstd", "1.8.0")))
    found[-1] = Wheel.read(make_wheel(tmp_path, "back-ports.zstd", "1.8.0"))
    assert sorted(closure(ROOT, found, PI).wheels) == ["back-ports-zstd", "root"]


def test_versions_that_contradict_each_other_are_refused_with_who_wants_what(
    tmp_path: Path,
) -> None:
    found = wheels(tmp_path, root=("one<1",), one=())
    with pytest.raises(ConfigError, match=r"root 1.0 needs one<1, and one 1.0"):
        closure(ROOT, found, PI)


def test_torch_never_goes_to_a_device(tmp_path: Path) -> None:
    found = wheels(tmp_path, root=("env",), env=("torch>=2",), torch=())
    with pytest.raises(ConfigError, match=r"env 1.0 needs torch"):
        closure(ROOT, found, PI)


def test_a_wheel_for_another_machine_or_python_is_refused(tmp_path: Path) -> None:
    wrong = Wheel.read(make_wheel(tmp_path, "root", tag="cp311-cp311-manylinux_2_28_x86_64"))
    with pytest.raises(ConfigError, match="does not run on aarch64"):
        closure(ROOT, [wrong], PI)
    wrong = Wheel.read(make_wheel(tmp_path, "root", requires_python=">=3.12"))
    with pytest.raises(ConfigError, match=r"needs Python >=3.12"):
        closure(ROOT, [wrong], PI)


@pytest.mark.parametrize("name", ["x.whl", "x-1.0-py3-none-any.whl", "x-1.0.tar.gz"])
def test_what_is_no_wheel_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\3\4")
    with pytest.raises(ConfigError, match=name):
        Wheel.read(tmp_path / name)
    with pytest.raises(ConfigError, match="No such file"):
        Wheel.read(tmp_path / "none-1.0-py3-none-any.whl")
