"""The `shoal` command. Each sub-command is loaded when it is used, and not before."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from shoal.errors import ConfigError, ShoalError
from shoalctl.exit_codes import EXIT_BAD_ARGUMENTS, EXIT_BUG, EXIT_INTERRUPTED

EXTRAS = {
    "torch": "learner",
    "onnx": "learner",
    "tensorboard": "learner",
    "nats_server": "broker",
    "yaml": "ops",
    "minari": "export",
}
"""Which extra brings what an edge device does without."""


@dataclass(frozen=True, slots=True)
class Part:
    """A sub-command and where its Typer app lies.

    Attributes:
        name: What is typed after `shoal`.
        target: `module:attribute` of a `typer.Typer`.
        summary: Its line in `shoal --help`.
        panel: The heading it is listed under.
    """

    name: str
    target: str
    summary: str
    panel: str


TRY, RUN, WATCH = "Try it", "Run a fleet", "Watch a fleet"
PARTS = (
    Part("demo", "shoalctl.demo.cli:demo_app", "The whole system on this machine.", TRY),
    Part("bench", "shoalctl.bench:bench_app", "Measure Shoal beside its peers.", TRY),
    Part("pki", "shoalctl.pki.cli:pki_app", "Make a fleet's keys and certificates.", RUN),
    Part("flash", "shoalctl.flash.cli:flash_app", "Install devices: bundles, SSH, cards.", RUN),
    Part("broker", "shoalctl.broker.cli:broker_app", "Run the fleet's MQTT broker.", RUN),
    Part("learner", "cloud_learner.cli:learner_app", "Train, and publish policies.", RUN),
    Part("enroll", "shoalctl.enrollment.cli:enroll_app", "Let devices into a fleet, and out.", RUN),
    Part("agent", "edge_agent.cli:agent_app", "Act on a device.", RUN),
    Part("rollout", "shoalctl.rollout.cli:rollout_app", "Give devices a version in waves.", RUN),
    Part("relay", "shoalctl.relay_cli:relay_app", "Serve a site's devices from one watch.", RUN),
    Part("devices", "shoalctl.fleet.cli:devices_app", "See the devices and their health.", WATCH),
    Part("tasks", "shoalctl.tasks.cli:tasks_app", "See the tasks handed to devices.", WATCH),
    Part("policy", "shoalctl.policies.cli:policy_app", "See, keep, compare policies.", WATCH),
    Part("fleet", "shoalctl.fleet.cli:fleet_app", "Make a fleet, account for its chunks.", WATCH),
    Part(
        "reproduce",
        "shoalctl.reproduce_cli:reproduce_app",
        "Make a device's decisions again.",
        WATCH,
    ),
)

app = typer.Typer(
    name="shoal",
    help="Devices act with int8 policies, stream what happened, and a learner sends better ones.",
    epilog="Exit codes: 0 ok, 1 failed, 2 connection or auth, 3 timeout, 4 bad arguments or"
    " configuration (a file that is missing or in use, too), 5 a bug, 130 ended by Ctrl-C.",
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Devices act with int8 policies, stream what happened, and a learner sends better ones."""
    if version:
        from importlib import metadata

        typer.echo(f"shoal {metadata.version('shoal')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class _Lazy(TyperCommand):
    """Stands for a sub-command in `shoal --help`, and becomes it when it is invoked."""

    def __init__(self, part: Part) -> None:
        super().__init__(name=part.name, help=part.summary, rich_help_panel=part.panel)
        self._part = part

    def make_context(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - as inherited
        return _load(self._part).make_context(*args, **extra)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits with its code; errors are one line on stderr."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        arguments: What was typed after `shoal`.

    Returns:
        The exit code.
    """
    # gRPC would explain a refused connection in its own words before we can.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        result = _command().main(list(arguments), prog_name="shoal", standalone_mode=False)
    except ShoalError as error:
        _complain(str(error))
        return error.exit_code
    except typer.TyperException as error:
        return _bad_arguments(error)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the border of the process
        return _bug(error)
    return result if isinstance(result, int) else 0


def _command() -> TyperGroup:
    group = typer.main.get_command(app)
    if not isinstance(group, TyperGroup):
        raise TypeError(f"`shoal` must be a group of commands, it is a {type(group).__name__}")
    for part in PARTS:
        group.add_command(_Lazy(part))
    return group


def _load(part: Part) -> Any:  # noqa: ANN401 - a command of Typer's, whose class it doesn't publish
    module, _, attribute = part.target.partition(":")
    try:
        sub_app = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ConfigError(
            f"shoal {part.name} needs {error.name}, which is not installed: "
            f"pip install 'shoal[{extra}]'"
        ) from error
    sub_app._add_completion = False  # noqa: SLF001 - `shoal` itself offers it, once
    command = typer.main.get_command(sub_app)
    command.name = part.name
    return command


def _complain(message: str) -> None:
    typer.echo(f"shoal: {' '.join(message.split())}", err=True)


def _bad_arguments(error: typer.TyperException) -> int:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", "")
    if context is not None and option[1:2].isdecimal():
        pieces = context.command.collect_usage_pieces(context)
        if any("VERSION" in piece for piece in pieces):
            message = f"{option} is no policy version: give its number, such as 7 or v7, or latest"
    if "\n" in message.strip() or context is None:  # the help of a command that needs another word
        typer.echo(message, err=True)
    else:
        path = context.command_path
        _complain(f"{message.rstrip('.')}; see '{path} --help'")
    return EXIT_BAD_ARGUMENTS


def _bug(error: Exception) -> int:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="shoal-bug-", suffix=".log", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    _complain(f"a bug: {type(error).__name__}: {error} (please report it with {file.name})")
    return EXIT_BUG


if __name__ == "__main__":
    main()
