"""The `shoal` command as a whole: quick, helpful, one line an error, the right exit code."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from shoal.errors import DeadlineExceeded, ShoalError
from shoalctl import cli
from shoalctl.bench import run_bench
from shoalctl.cli import PARTS, run

PROBE = """
import sys
from shoalctl.cli import run
code = run(sys.argv[2:])
heavy = {"torch", "onnx", "onnxruntime", "numpy", "grpc", "paho", "gymnasium", "cryptography",
         "edge_agent", "cloud_learner", "nats", "yaml"}
print("LOADED", *sorted(heavy & set(sys.modules)))
sys.exit(code != int(sys.argv[1]))
"""


def loaded_by(code: int, *arguments: str) -> set[str]:
    """Which heavy modules a command leaves loaded in a fresh interpreter."""
    finished = subprocess.run(
        [sys.executable, "-c", PROBE, str(code), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(finished.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ()),
        (0, ("--help",)),
        (0, ("devices", "ls", "--help")),
        (0, ("bench", "--help")),
        (0, ("demo", "--help")),
        (0, ("enroll", "--help")),
        (0, ("fleet", "init", "--help")),
        (4, ("policy", "show")),
        (4, ("nonsense",)),
        (4, ("devices", "ls")),
    ],
)
def test_help_and_mistakes_load_nothing_heavy(code: int, arguments: tuple[str, ...]) -> None:
    assert loaded_by(code, *arguments) == set()


@pytest.mark.parametrize("arguments", [("broker", "run"), ("pki", "issue", "pi-1")])
def test_an_operators_command_never_loads_torch(arguments: tuple[str, ...]) -> None:
    assert not loaded_by(0, *arguments, "--help") & {"torch", "onnx", "onnxruntime", "gymnasium"}


@pytest.mark.parametrize(
    "module",
    [
        "shoalctl.enrollment.server",
        "edge_agent.enrollment.renewal",
        "cloud_learner.serving.revocations",
    ],
)
def test_enrolment_needs_no_torch_on_either_side(module: str) -> None:
    program = f"import sys, {module}; print({{'torch', 'onnx'}} & {{*sys.modules}})"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "set()"


def test_help_lists_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(part.name in out and part.summary.split(",")[0] in out for part in PARTS)


def test_without_arguments_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: shoal" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["devices", "ls"],
        ["devices", "describe"],
        ["policy", "ls"],
        ["policy", "show"],
        ["fleet", "audit"],
        ["reproduce"],
        ["learner", "export"],
        ["broker", "run"],
        ["broker", "config"],
        ["pki", "init"],
        ["pki", "issue"],
        ["bench"],
    ],
)
def test_every_command_explains_itself(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: shoal {' '.join(arguments)}" in out
    assert len(out.splitlines()) > 6


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("shoal 0.")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["devcies"], "Did you mean 'devices'?"),
        (["devices"], "Missing command; see 'shoal devices --help'"),
        (["devices", "list"], "No such command 'list'"),
        (["devices", "ls", "--no"], "see 'shoal devices ls --help'"),
        (["devices", "ls"], "--identity"),
        (["devices", "ls", "-i", "x", "-o", "xml"], "'xml'"),
        (["devices", "ls", "-i", "x", "--timeout-s", "soon"], "--timeout-s"),
        (["devices", "describe", "-i", "x"], "DEVICE"),
        (["broker", "config", "emqx"], "emqx"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exits_with_4(
    arguments: list[str],
    part: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SHOAL_OPERATOR_IDENTITY", raising=False)
    assert run(arguments) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("shoal: ")
    assert part in captured.err


def offer(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes `shoal try` a command that fails."""
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    part = cli.Part("try", f"{__name__}:unused", "Fails.", cli.TRY)
    monkeypatch.setattr(cli, "PARTS", (part,))
    monkeypatch.setattr(cli, "_load", lambda _part: typer.main.get_command(app))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShoalError("it\nfailed"), 1),
        (DeadlineExceeded("it failed"), 3),
        (KeyboardInterrupt(), 130),
        (typer.Exit(7), 7),
    ],
)
def test_what_a_command_raises_decides_the_exit_code(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    offer(monkeypatch, error)
    assert run(["try"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    if isinstance(error, ShoalError):
        assert captured.err == "shoal: it failed\n"


def test_a_bug_is_one_line_with_a_file_that_holds_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    offer(monkeypatch, ZeroDivisionError("division by zero"))
    assert run(["try"]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("shoal: a bug: ZeroDivisionError: division by zero")
    (report,) = tmp_path.glob("shoal-bug-*.log")
    assert str(report) in lines[0]
    assert "Traceback" in report.read_text()


def test_a_missing_extra_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    part = cli.Part("try", "torch:app", "Needs torch.", cli.TRY)
    monkeypatch.setattr(cli, "PARTS", (part,))
    assert run(["try"]) == 4
    assert capsys.readouterr().err == (
        "shoal: shoal try needs torch, which is not installed: pip install 'shoal[learner]'\n"
    )


def test_a_fleets_keys_are_made_from_the_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pki = str(tmp_path / "pki")
    assert run(["pki", "init", "reef", "--dir", pki]) == 0
    for name in ("broker", "pi-1"):
        assert run(["pki", "issue", name, "--dir", pki]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert Path(last) == tmp_path / "pki" / "identities" / "pi-1"
    assert run(["pki", "issue", "Pi", "--dir", pki]) == 4
    assert run(["pki", "issue", "pi-2", "--dir", str(tmp_path / "nowhere")]) == 4
    assert all(line.startswith("shoal: ") for line in capsys.readouterr().err.splitlines())


def test_mosquittos_files_are_written_from_the_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pki = tmp_path / "pki"
    run(["pki", "init", "reef", "--dir", str(pki)])
    run(["pki", "issue", "broker", "--dir", str(pki), "--san", "shoal.example.org"])
    capsys.readouterr()
    arguments = ["--fleet", "reef", "--identity", str(pki / "identities" / "broker")]
    arguments += ["--state-dir", str(tmp_path / "state")]
    assert run(["broker", "config", "mosquitto", *arguments]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert "require_certificate true" in path.read_text()
    assert (tmp_path / "state" / "mosquitto.acl").exists()


def test_a_measurement_runs_in_its_own_process_with_its_arguments(tmp_path: Path) -> None:
    text = 'import sys\nif __name__ == "__main__":\n    sys.exit(sys.argv[1] == "-x" and 9)\n'
    (tmp_path / "learn.py").write_text(text)
    assert run_bench(tmp_path, "learn", ["-x"]) == 9


def test_an_unknown_measurement_names_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench", "nonsense"]) == 4
    assert "choose one of" in capsys.readouterr().err


def test_without_a_checkout_a_measurement_says_so(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="runs from a checkout"):
        run_bench(tmp_path, "learn", [])
