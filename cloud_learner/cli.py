"""`shoal learner`: run and resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

learner_app = typer.Typer(
    name="learner",
    help="Train from what the devices stream, and publish policies.",
    no_args_is_help=True,
)

Config = Annotated[Path, typer.Option("--config", help="TOML file; SHOAL_* variables override it.")]
StateDirectory = Annotated[
    Path | None, typer.Option("--state-dir", help="Where journal, policies and checkpoints lie.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Of weights and minibatches.")]
LogLevel = Annotated[
    str,
    typer.Option("--log-level", help="debug, info, warning or error.", envvar="SHOAL_LOG_LEVEL"),
]
_DEFAULT_CONFIG = Path("learner.toml")


@learner_app.command("run")
def run_command(
    config: Config = _DEFAULT_CONFIG,
    state_dir: StateDirectory = None,
    seed: Seed = None,
    log_level: LogLevel = "info",
) -> None:
    """Starts training in an empty state directory."""
    _run(config, state_dir, seed, log_level, resume=False)


@learner_app.command("resume")
def resume_command(
    config: Config = _DEFAULT_CONFIG,
    state_dir: StateDirectory = None,
    seed: Seed = None,
    log_level: LogLevel = "info",
) -> None:
    """Goes on exactly where the last checkpoint and the journal left off."""
    _run(config, state_dir, seed, log_level, resume=True)


def _run(
    config: Path, state_dir: Path | None, seed: int | None, log_level: str, *, resume: bool
) -> None:
    from cloud_learner.config import LearnerConfig
    from shoal.config import load_config
    from shoal.logs import setup_logging

    setup_logging(log_level)
    overrides = {"state_dir": state_dir.absolute() if state_dir is not None else None, "seed": seed}
    learner_config = load_config(LearnerConfig, config, overrides=overrides)

    from cloud_learner import app  # torch: only once the configuration is known to be good

    asyncio.run(app.run(learner_config, resume=resume))
