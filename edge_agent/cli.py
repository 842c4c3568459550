"""`shoal agent`: act on a device, or check that it could."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edge_agent.checks.finding import Finding, Level, exit_code
from edge_agent.command.flags import keyword_arguments, overrides, set_flags
from edge_agent.command.options import (
    BrokerOption,
    ConfigOption,
    EnvArgument,
    EnvOption,
    EnvsOption,
    FleetOption,
    HzOption,
    IdentityOption,
    IntervalOption,
    KwargsOption,
    LevelOption,
    ModeOption,
    Output,
    OutputOption,
    PrefixOption,
    SeedOption,
    ServerOption,
    SetOption,
    StateOption,
)
from edge_agent.config import ActorConfig, AgentConfig, EnvConfig
from shoal.config import Flag, load_config
from shoal.errors import ConfigError
from shoal.logs import setup_logging

agent_app = typer.Typer(help="Act on a device.", no_args_is_help=True)


@agent_app.command("run")
def run_command(
    *,
    config: ConfigOption = None,
    fleet: FleetOption = None,
    identity: IdentityOption = None,
    state_dir: StateOption = None,
    env: EnvOption = None,
    num_envs: EnvsOption = None,
    seed: SeedOption = None,
    broker: BrokerOption = None,
    server: ServerOption = None,
    mode: ModeOption = None,
    update_interval: IntervalOption = None,
    settings: SetOption = None,
    log_level: LevelOption = "info",
) -> None:
    """Act, stream what happened, take better policies; until SIGTERM or Ctrl-C."""
    flags = overrides(
        fleet=fleet,
        identity=identity,
        state_dir=state_dir,
        env=env,
        num_envs=num_envs,
        seed=seed,
        broker=broker,
        server=server,
        mode=mode,
        update_interval=update_interval,
        settings=settings,
    )
    loaded = load_config(AgentConfig, config, overrides=flags)
    if update_interval is not None and loaded.mode != "gradients":
        raise ConfigError(
            f"--update-interval is of gradients, and this device sends {loaded.mode}: add"
            " --mode gradients"
        )
    setup_logging(log_level)
    from edge_agent.agent import run

    asyncio.run(run(loaded))


@agent_app.command("check")
def check_command(
    *,
    environment: EnvArgument = None,
    kwargs: KwargsOption = None,
    control_hz: HzOption = None,
    config: ConfigOption = None,
    fleet: FleetOption = None,
    identity: IdentityOption = None,
    state_dir: StateOption = None,
    env: EnvOption = None,
    num_envs: EnvsOption = None,
    seed: SeedOption = None,
    broker: BrokerOption = None,
    server: ServerOption = None,
    settings: SetOption = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only what disturbs no agent that acts meanwhile.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look at all that an agent needs, or at an environment alone; start nothing.

    With ENV: whether it keeps its contract. Without: identity, clock, environment, spool, broker
    and server of a configuration.
    """
    findings: Sequence[Finding]
    if environment is not None:
        fleet_flags = (config, fleet, identity, state_dir, env, broker, server, settings)
        if any(flag is not None for flag in fleet_flags):
            raise ConfigError(
                f"{environment} is looked at alone, with --kwargs, --num-envs, --seed and"
                " --control-hz: leave it out to check a configuration"
            )
        from edge_agent.checks.env_check import check_environment

        copies = 1 if num_envs is None else num_envs
        alone = EnvConfig(environment, copies, seed, keyword_arguments(kwargs))
        rate = ActorConfig(control_hz=control_hz).control_hz
        findings = check_environment(alone, control_hz=rate)
        _print(findings, output)
        raise typer.Exit(exit_code(findings))
    if kwargs:
        raise ConfigError("--kwargs goes with ENV: write them under [env.kwargs] of the file")
    from edge_agent.checks.beside import check_beside
    from edge_agent.checks.check import check

    flags = overrides(
        fleet=fleet,
        identity=identity,
        state_dir=state_dir,
        env=env,
        num_envs=num_envs,
        seed=seed,
        broker=broker,
        server=server,
        settings=settings,
    )
    if control_hz is not None:
        flags["actor.control_hz"] = Flag("--control-hz", control_hz)
    try:
        loaded = load_config(AgentConfig, config, overrides=flags)
    except ConfigError as error:
        if config is not None or fleet is not None:
            raise
        what = "an environment" if env is None else env
        raise ConfigError(
            f"{error}; to look at {what} alone: shoal agent check {env or 'ENV'}"
        ) from error
    findings = check_beside(loaded) if offline else asyncio.run(check(loaded))
    _print(findings, output)
    raise typer.Exit(exit_code(findings))


@agent_app.command("doctor")
def doctor_command(
    *,
    config: ConfigOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Leave the network out.")] = False,
    samples: Annotated[
        int, typer.Option(min=1, max=100, help="How often each way is measured.")
    ] = 5,
    prefix: PrefixOption = Path("/opt/shoal"),
    settings: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find out what is wrong with a device: machine, clock, disk, network, environment.

    Starts nothing and disturbs no running agent. Exits with 1 after a fault, 2 if the fleet can't
    be reached or refuses the device, 3 if it does not answer in time, 4 if the configuration is
    wrong; warnings alone exit with 0.
    """
    from edge_agent.doctor.command import run_doctor
    from edge_agent.doctor.doctor import Examination

    loaded = load_config(AgentConfig, config, overrides=set_flags(settings))
    how = Examination(offline=offline, samples=samples, prefix=prefix)
    findings = run_doctor(loaded, how, as_json=output is Output.JSON)
    raise typer.Exit(exit_code(findings))


@agent_app.command("diag")
def diag_command(
    *,
    out: Annotated[Path, typer.Option("--out", help="The archive to write, .tar.gz.")],
    config: ConfigOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Leave the network out.")] = False,
    prefix: PrefixOption = Path("/opt/shoal"),
    settings: SetOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Collect what helps to find a fault, without secrets, in one archive that you alone may read.

    What the doctor finds, the configuration without its texts, versions, slots, the numbers and
    digests of policies, the state of the spool, and the last lines of the agent's log. No key, no
    token, no environment variable; what they hold is removed wherever it turns up.
    """
    from edge_agent.doctor.diag import run_diag
    from edge_agent.doctor.doctor import Examination

    loaded = load_config(AgentConfig, config, overrides=set_flags(settings))
    how = Examination(offline=offline, prefix=prefix)
    run_diag(loaded, how, out, as_json=output is Output.JSON)


@agent_app.command("enroll")
def enroll_command(
    *,
    server: Annotated[
        str, typer.Option("--server", help="The enrolment service.", metavar="HOST:PORT")
    ],
    ca_fingerprint: Annotated[
        str, typer.Option(help="The sha256 of the fleet's CA: `shoal enroll fingerprint`.")
    ],
    identity: Annotated[Path, typer.Option(help="The identity directory to make.")] = Path(
        "identity"
    ),
    name: Annotated[
        str | None, typer.Option("--name", help="The device id. (default: the host's name)")
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            envvar="SHOAL_ENROLL_TOKEN", help="A one-time token; none: wait for approval."
        ),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token; wiped once it was used.")
    ] = None,
    wait_s: Annotated[
        float, typer.Option(help="How long to try, for the network or for an operator.")
    ] = 600.0,
) -> None:
    """Make this device a member of a fleet: its key is made here, and never leaves.

    Does nothing if it is one already.
    """
    from edge_agent.enrollment.command import run_enroll

    run_enroll(
        server=server,
        ca_fingerprint=ca_fingerprint,
        identity=identity,
        name=name,
        token=token,
        token_file=token_file,
        wait_s=wait_s,
    )


def _print(findings: Sequence[Finding], output: Output) -> None:
    if output is Output.JSON:
        items = [each.as_item() for each in findings]
        typer.echo(json.dumps({"schema": "shoal.v1.AgentCheck", "items": items}))
        return
    for each in findings:
        loud = each.level in (Level.WARN, Level.FAULT)
        level = each.level.upper() if loud else each.level.lower()
        typer.echo(f"{level:9}{each.name:18}{each.detail}")
