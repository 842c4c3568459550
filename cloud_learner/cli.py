"""`shoal learner`: run, resume and export."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ConfigError, ShoalError
from shoal.policy_version import parse_policy_version

if TYPE_CHECKING:
    from cloud_learner.policy_export import Exportable
    from cloud_learner.state_dir import StateDir

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
ShardCount = Annotated[
    int | None,
    typer.Option(
        "--shards", help='Of the parameters, each with an optimiser; for mode = "gradients".'
    ),
]
LogLevel = Annotated[
    str,
    typer.Option("--log-level", help="debug, info, warning or error.", envvar="SHOAL_LOG_LEVEL"),
]
_DEFAULT_CONFIG = Path("learner.toml")


class ExportFormat(StrEnum):
    """What is exported."""

    ONNX = "onnx"
    MINARI = "minari"


class ExportPrecision(StrEnum):
    """In what the weights are exported."""

    INT8 = "int8"
    FP32 = "fp32"


@learner_app.command("run")
def run_command(
    config: Config = _DEFAULT_CONFIG,
    state_dir: StateDirectory = None,
    seed: Seed = None,
    init: Annotated[
        Path | None,
        typer.Option(
            "--init", help="Start from a policy exported in fp32, or from a checkpoint's file."
        ),
    ] = None,
    shards: ShardCount = None,
    log_level: LogLevel = "info",
) -> None:
    """Starts training in an empty state directory."""
    flags = {"state_dir": state_dir, "seed": seed, "init": init, "gradients.shards": shards}
    _run(config, flags, log_level, resume=False)


@learner_app.command("resume")
def resume_command(
    config: Config = _DEFAULT_CONFIG,
    state_dir: StateDirectory = None,
    seed: Seed = None,
    shards: ShardCount = None,
    log_level: LogLevel = "info",
) -> None:
    """Goes on exactly where the last checkpoint and the journal left off."""
    flags = {"state_dir": state_dir, "seed": seed, "gradients.shards": shards}
    _run(config, flags, log_level, resume=True)


@learner_app.command("export")
def export_command(
    *,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File of the policy, or directory of the dataset.")
    ],
    what: Annotated[
        ExportFormat,
        typer.Option("--format", help="onnx: a policy. minari: the episodes of the journal."),
    ] = ExportFormat.ONNX,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state", "--state-dir", help="A learner's state directory, in use or not."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The learner's TOML file: says state_dir, and the network for fp32."),
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", "-s", help="Or a running learner, host:port.")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(
            "--identity",
            "-i",
            envvar="SHOAL_OPERATOR_IDENTITY",
            help="Identity directory of the fleet's operator, for --server.",
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(help="Policy version: 7, v7, or latest, the default.", metavar="VERSION"),
    ] = None,
    precision: Annotated[
        ExportPrecision | None,
        typer.Option(help="int8, the default: as devices run it. fp32: as it was trained."),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Without the input noise: always the greedy action."),
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="Id of the Minari dataset; by default shoal/journal-v0.")
    ] = None,
) -> None:
    """Writes a policy as one ONNX file that needs nothing else, or the journal as a dataset.

    A policy takes `observation` and `noise` (zeros for the deterministic action), with memory also
    `state` (zeros at the start of an episode), and gives `action` and `log_prob`.
    """
    from cloud_learner.config import LearnerConfig
    from shoal.config import load_config

    if what is ExportFormat.MINARI:
        for flag, given in (
            ("--precision", precision),
            ("--version", version),
            ("--deterministic", deterministic or None),
        ):
            if given is not None:
                raise ConfigError(f"{flag} is of a policy: leave it out with --format minari")
    precision = precision or ExportPrecision.INT8
    number = None if version is None else parse_policy_version(version)
    known = None if config is None else load_config(LearnerConfig, config)
    if server is not None:
        if what is not ExportFormat.ONNX:
            raise ConfigError("--server has policies only: export the journal with --state")
        policy = _fetch(server, identity, number or 0, precision)
    else:
        from cloud_learner.policy_export import find_policy, state_of

        state = state_of(known, state_dir)
        if what is ExportFormat.MINARI:
            _export_journal(state, out, dataset)
            return
        policy = find_policy(state, known, version=number, precision=precision)
    _write_policy(policy, out, deterministic=deterministic)


def _fetch(
    server: str, identity: Path | None, version: int, precision: ExportPrecision
) -> Exportable:
    from cloud_learner.downlink.policy_client import fetch_policy
    from cloud_learner.policy_export import as_published
    from shoal.identity import Identity

    if identity is None:
        raise ConfigError("--server needs --identity, the operator's identity directory")
    policy = fetch_policy(server, Identity.load(identity), version=version)
    return as_published(policy, None, precision)


def _write_policy(policy: Exportable, out: Path, *, deterministic: bool) -> None:
    from cloud_learner.quantization.export import export_onnx

    model = export_onnx(
        policy.graph, policy.tensors, metadata=policy.metadata, deterministic=deterministic
    )
    try:
        out.write_bytes(model)
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}; give another --out") from error
    typer.echo(f"{out}: {policy.source}, {policy.precision}, {len(model)} bytes", err=True)


def _export_journal(state: StateDir, out: Path, dataset: str | None) -> None:
    try:
        import minari  # noqa: F401 - an extra: say so before the journal is read
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--format minari needs Minari, which is not installed: pip install 'shoal[export]'"
        ) from error
    from cloud_learner.journal.export import DATASET, export_minari
    from cloud_learner.journal.reader import JournalReader
    from cloud_learner.journal.whole import Whole
    from cloud_learner.training.checkpoint import newest_checkpoint

    checkpoint = newest_checkpoint(state.checkpoints)
    if checkpoint is None:
        kind = ShoalError if state.directory.is_dir() else ConfigError
        raise kind(f"{state.checkpoints}: no checkpoint is saved yet, which has the spaces")
    with JournalReader(state.journal) as journal:
        whole = Whole(journal, checkpoint.spec)
        exported = export_minari(out, whole, checkpoint.spec, dataset=dataset or DATASET)
    typer.echo(
        f"{out}: {exported.episodes} episodes, {exported.steps} steps; {whole.left_out} steps left "
        "out, of episodes whose beginning or end is not in the journal",
        err=True,
    )


def _run(
    config: Path, flags: Mapping[str, Path | int | None], log_level: str, *, resume: bool
) -> None:
    from cloud_learner.config import LearnerConfig
    from cloud_learner.serving.handshakes import Handshakes
    from shoal.config import Flag, load_config
    from shoal.logs import setup_logging

    overrides: dict[str, object] = {
        key: value.absolute() if isinstance(value, Path) else value for key, value in flags.items()
    }
    shards = flags.get("gradients.shards")
    overrides["gradients.shards"] = Flag("--shards", shards)
    learner_config = load_config(LearnerConfig, config, overrides=overrides)
    mode = learner_config.training.mode
    if shards is not None and mode != "gradients":
        raise ConfigError(
            f"--shards is of the weights that gradients change, and training.mode is {mode!r}: set "
            'mode = "gradients" under [training], or leave --shards out'
        )
    with Handshakes.listening() as handshakes:
        setup_logging(log_level)
        from cloud_learner import app  # torch: only once the configuration is known to be good

        asyncio.run(app.run(learner_config, resume=resume, handshakes=handshakes))
