"""Which hosts are refused and why: rules over facts, the script that finds them, and real hosts."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import PUBLIC
from host_facts import FIT, GIB, NOW_S, PYTHON
from hypothesis import given
from hypothesis import strategies as st
from ssh_hosts import SshHost, fake_bundle, flash, items, needs_sshd

from shoal.errors import FlashFailed
from shoalctl.flash.ssh.facts import FACTS_SCRIPT, Disk, Facts, Privilege, parse_facts
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.flash.ssh.preflight import (
    DISK_MARGIN_BYTES,
    WAIVABLE,
    HostRefused,
    Reason,
    choose_bundle,
    judge,
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> OfflineBundle:
    path = tmp_path_factory.mktemp("bundle") / "one.tar"
    return OfflineBundle.open(
        fake_bundle(path, arch="aarch64", python="3.11", min_glibc="2.28"), PUBLIC
    )


def reasons(facts: Facts, bundle: OfflineBundle, *, systemd: bool = True) -> list[Reason]:
    found = judge(facts, bundle, now_s=NOW_S, systemd=systemd)
    assert all(refusal.detail for refusal in found)
    return [refusal.reason for refusal in found]


def test_a_fit_host_is_not_refused(bundle: OfflineBundle) -> None:
    assert reasons(FIT, bundle) == []


def python(**values: object) -> Facts:
    return replace(FIT, pythons=(replace(PYTHON, **values),))  # type: ignore[arg-type]


def disks(**values: object) -> Facts:
    disk = replace(FIT.disks["prefix"], **values)  # type: ignore[arg-type]
    return replace(FIT, disks={**FIT.disks, "prefix": disk})


UNFIT = {
    "no way to be root": (replace(FIT, privilege=Privilege.NONE), Reason.PRIVILEGE),
    "sudo asks, nobody types": (replace(FIT, privilege=Privilege.PASSWORD), Reason.PRIVILEGE),
    "no python": (replace(FIT, pythons=()), Reason.PYTHON),
    "an older python": (python(version="3.9.2"), Reason.PYTHON),
    "a newer python": (python(version="3.13.1"), Reason.PYTHON),
    "another python": (python(kind="PyPy"), Reason.PYTHON),
    "32 bits on a 64-bit kernel": (python(bits=32), Reason.ARCHITECTURE),
    "no venv": (python(venv=False), Reason.VENV),
    "no pip for a venv": (python(ensurepip=False), Reason.VENV),
    "an older glibc": (replace(FIT, glibc="2.27"), Reason.GLIBC),
    "musl": (replace(FIT, glibc=None, libc="musl libc (aarch64)"), Reason.GLIBC),
    "a full disk": (disks(free_bytes=DISK_MARGIN_BYTES), Reason.DISK),
    "a disk that can't be written": (disks(writable=False), Reason.READ_ONLY),
    "no memory": (replace(FIT, memory_available_bytes=64 << 20), Reason.MEMORY),
    "a clock from 1970": (replace(FIT, clock_s=1000.0), Reason.CLOCK),
    "a clock ahead": (replace(FIT, clock_s=NOW_S + 3600), Reason.CLOCK),
    "no systemd": (replace(FIT, systemd=False), Reason.SYSTEMD),
    "another flash": (replace(FIT, lock="ann@desk"), Reason.LOCKED),
}


@pytest.mark.parametrize(("facts", "reason"), UNFIT.values(), ids=UNFIT.keys())
def test_an_unfit_host_is_refused_for_one_reason(
    facts: Facts, reason: Reason, bundle: OfflineBundle
) -> None:
    assert reasons(facts, bundle) == [reason]


@pytest.mark.parametrize(("facts", "reason"), UNFIT.values(), ids=UNFIT.keys())
def test_only_what_is_an_estimate_can_be_allowed(
    facts: Facts, reason: Reason, bundle: OfflineBundle
) -> None:
    found = judge(facts, bundle, now_s=NOW_S, systemd=True, allow=set(Reason))
    assert bool(found) is (reason not in WAIVABLE)


def test_glibc_versions_are_compared_as_numbers(bundle: OfflineBundle) -> None:
    assert reasons(replace(FIT, glibc="2.100"), bundle) == []
    assert reasons(replace(FIT, glibc="2.4"), bundle) == [Reason.GLIBC]


def test_a_host_without_systemd_is_fit_where_something_else_runs_the_agent(
    bundle: OfflineBundle,
) -> None:
    assert reasons(replace(FIT, systemd=False), bundle, systemd=False) == []


def test_a_second_interpreter_of_the_right_version_will_do(bundle: OfflineBundle) -> None:
    old = replace(PYTHON, version="3.9.2")
    beside = replace(PYTHON, command="python3.11")
    assert reasons(replace(FIT, pythons=(old, beside)), bundle) == []


def test_a_bundle_with_a_pip_of_its_own_needs_none_on_the_host(tmp_path: Path) -> None:
    path = fake_bundle(tmp_path / "pip.tar", arch="aarch64", python="3.11", pip=True)
    assert reasons(python(ensurepip=False), OfflineBundle.open(path, PUBLIC)) == []


def test_what_came_before_is_not_needed_again_on_the_disk(tmp_path: Path) -> None:
    bundle = OfflineBundle.open(
        fake_bundle(tmp_path / "b.tar", arch="aarch64", python="3.11", size=100 << 20), PUBLIC
    )
    separate = {
        "prefix": Disk("/dev/sda1", 8 * GIB, writable=True),
        "state": Disk("/dev/sda1", 8 * GIB, writable=True),
        "staging": Disk("/dev/sda2", 80 << 20, writable=True),
    }
    assert reasons(replace(FIT, disks=separate), bundle) == [Reason.DISK]
    part = {f"{bundle.sha256}.part": 90 << 20}
    assert reasons(replace(FIT, disks=separate, staged=part), bundle) == []


def test_a_host_of_an_architecture_without_a_bundle_is_told_which_to_make(
    bundle: OfflineBundle,
) -> None:
    assert choose_bundle(replace(FIT, machine="arm64"), {"aarch64": bundle}) is bundle
    with pytest.raises(HostRefused, match="shoal flash bundle --arch riscv64"):
        choose_bundle(replace(FIT, machine="riscv64"), {"aarch64": bundle})


SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell) is not None]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_finds_the_facts_of_this_machine_in_every_shell(
    shell: str, tmp_path: Path
) -> None:
    words = [shell, "sh"] if shell == "busybox" else [shell]
    done = subprocess.run(
        [*words, "-s", "--", str(tmp_path / "opt"), str(tmp_path / "opt" / "state"), ""],
        input=FACTS_SCRIPT,
        text=True,
        capture_output=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
    )
    facts = parse_facts(done.stdout)
    assert done.stderr == ""
    assert abs((facts.clock_s or 0) - time.time()) < 60
    assert facts.glibc is not None
    assert facts.pythons[0].command == "python3"
    assert facts.memory_available_bytes
    assert facts.staging == f"{tmp_path}/.cache/shoal/flash"
    assert all(disk.free_bytes and disk.writable for disk in facts.disks.values())
    assert (facts.slots, facts.lock, facts.unpacked) == ("", "", frozenset())
    assert [path.name for path in tmp_path.iterdir()] == ["fleet"]  # as it was before


def test_what_a_login_script_prints_before_is_not_believed() -> None:
    text = "Welcome!\nmachine=evil\nshoal-facts=1\nmachine=aarch64\nshoal-facts=end\nmachine=x\n"
    assert parse_facts(text).machine == "aarch64"


@given(st.text(st.characters(codec="utf-8")))
def test_any_answer_is_facts_or_an_error_for_people(text: str) -> None:
    for answer in (text, f"shoal-facts=1\n{text}\nshoal-facts=end\n"):
        try:
            parse_facts(answer)
        except FlashFailed as error:
            assert "did not answer" in str(error)  # noqa: PT017 - one of two outcomes


KEYS = st.sampled_from(
    ["machine", "clock", "python.python3", "disk_prefix", "memory_available_kb", "staged.a.part"]
)
VALUES = st.text(st.characters(codec="ascii", exclude_characters="\n\r\v\f\x1c\x1d\x1e"))


@given(st.dictionaries(KEYS, VALUES))
def test_an_odd_value_is_a_fact_that_is_not_known(values: dict[str, str]) -> None:
    lines = "".join(f"{key}={value}\n" for key, value in values.items())
    facts = parse_facts(f"shoal-facts=1\n{lines}shoal-facts=end\n")
    assert facts.clock_s is None or facts.clock_s >= 0
    assert all(size >= 0 for size in facts.staged.values())


HIDES = {
    "a missing python": ("python3", "exit 127", "python"),
    "another architecture": ("uname", "echo riscv64", "architecture"),
    "a clock from 1970": ("date", "echo 1000", "clock"),
}


@needs_sshd
@pytest.mark.parametrize(("program", "script", "reason"), HIDES.values(), ids=HIDES.keys())
def test_a_real_host_is_refused_and_nothing_is_changed_on_it(
    program: str,
    script: str,
    reason: str,
    host: SshHost,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host.pretend(program, script)
    assert flash(host, fake_bundle(tmp_path / "one.tar"), "-o", "json") == 1
    (item,) = items(capsys.readouterr().out)
    assert (item["outcome"], item["refusals"]) == ("refused", [reason])
    assert not host.prefix.exists()
    assert not host.staging.exists()


@needs_sshd
def test_what_may_be_allowed_is_allowed_by_name(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.pretend("date", "echo 1000")
    bundle = fake_bundle(tmp_path / "one.tar")
    assert flash(host, bundle, "--allow", "clock") == 0
    assert flash(host, bundle, "--allow", "python") == 4
    assert "clock, disk, memory" in capsys.readouterr().err


@needs_sshd
def test_a_shell_that_is_none_is_an_error_for_people(
    host: SshHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.pretend("sh", "echo This account is not available.; exit 1")
    assert flash(host, fake_bundle(tmp_path / "one.tar")) == 1
    assert "This account is not available." in capsys.readouterr().err
