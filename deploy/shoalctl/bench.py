"""`shoal bench`: runs the measurements that lie in a checkout, beside its tests.

That of a policy's precisions is installed everywhere: a device is where it matters.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = {"async": "async_sync"}
"""Measurements whose name is not that of their file: Python has other use for it."""

bench_app = typer.Typer()


@bench_app.command(
    # Whatever follows the name, `--help` too, is the measurement's own.
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
)
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which measurement, e.g. learn or actor.")],
) -> None:
    """Measure Shoal beside its peers, in one run on this machine.

    What follows the name goes to the measurement: `shoal bench learn --help` explains it. From a
    checkout, but for `shoal bench actor` with --policy, --state or --config: the precisions of a
    policy are measured wherever Shoal is installed.
    """
    from shoalctl.measurement import precisions

    if name == "actor" and precisions.asks_for_a_policy(context.args):
        precisions.main(context.args)
        return
    code = run_bench(CHECKOUT / "tests" / "bench", name, context.args)
    raise typer.Exit(code)


def run_bench(directory: Path, name: str, arguments: list[str]) -> int:
    """Runs one measurement in a process of its own.

    Args:
        directory: Where the measurements lie.
        name: Of the measurement, mostly that of its file without `.py`.
        arguments: For the measurement.

    Returns:
        Its exit code.

    Raises:
        ConfigError: There is no such measurement, or no checkout.
    """
    names = {file: name for name, file in FILES.items()}
    files = {path.stem for path in directory.glob("*.py") if _is_measurement(path)}
    known = sorted(names.get(file, file) for file in files)
    if not known:
        raise ConfigError(
            f"no measurements in {directory}: `shoal bench` runs from a checkout of Shoal, with "
            "`pip install -e '.[learner,broker,ops]'`; anywhere runs `shoal bench actor` with "
            "--policy, --state or --config"
        )
    if name not in known:
        raise ConfigError(f"shoal bench {name}: choose one of {', '.join(known)}")
    return subprocess.run(
        [sys.executable, directory / f"{FILES.get(name, name)}.py", *arguments], check=False
    ).returncode


def _is_measurement(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text("utf-8")
