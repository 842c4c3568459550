"""What each precision of one policy costs on this machine, and how far it is from fp32.

    shoal bench actor --policy policy.onnx --envs 8
    shoal bench actor --config /etc/shoal/agent.toml
    shoal bench actor --state /var/lib/shoal --env CartPole-v1

fp32, int8 static (as published) and int8 dynamic (ranges found at every run, made of fp32), the
forms in which a device may act: the time of one decision for 1 and for N observations, on bound
arrays as the control loop has it, the part of the observations where the greedy action is that of
fp32, and the mean KL(fp32 || form). The observations are those that the fp32 form (else int8) meets
in a copy of the environment.
Nothing is written, and an agent may act meanwhile. It needs neither a checkout nor torch nor onnx.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from edge_agent.config import AgentConfig, EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.policies.parity import AGREEMENT_MIN
from edge_agent.policies.precision import DYNAMIC as INT8_DYNAMIC
from edge_agent.policies.precision import FP32 as FLOAT
from edge_agent.policies.precision import INT8, fastest_of
from edge_agent.precisions.comparison import Line, collect, measure
from edge_agent.precisions.forms import (
    DYNAMIC,
    FP32,
    STATIC,
    Source,
    forms_of,
    read_file,
    read_state,
)
from shoal.config import load_config
from shoal.errors import ConfigError
from shoal.layout import ActionLayout
from shoal.policy_version import parse_policy_version
from shoalctl.measurement.report import Cell, Machine, envelope, table, this_machine, versions

SCHEMA = "shoal.v1.BenchPrecisions"
OF_A_POLICY = ("--policy", "--state", "--config")
"""With one of these `shoal bench actor` measures a policy."""
_ACTS_AS = {STATIC: INT8, FP32: FLOAT, DYNAMIC: INT8_DYNAMIC}
_ENVS = 8
_RANGES = (
    ("--envs", "envs", 1, 1024),
    ("--rows", "rows", 1, 1_000_000),
    ("--calls", "calls", 1, 10_000_000),
)


def asks_for_a_policy(arguments: Sequence[str]) -> bool:
    """Whether these arguments of `shoal bench actor` are for `main`."""
    return any(argument.partition("=")[0] in OF_A_POLICY for argument in arguments)


def text_of(machine: Machine, source: str, lines: Sequence[Line], verdict: str) -> str:
    """What a person reads."""
    rows: list[list[Cell]] = [
        [
            line.precision,
            line.envs,
            line.p50_us,
            line.p99_us,
            None if line.agreement is None else f"{100 * line.agreement:.1f} %",
            None if line.kl is None else f"{line.kl:.2e}",
            line.note,
        ]
        for line in lines
    ]
    headings = ("precision", "envs", "p50 us", "p99 us", "agrees", "KL nats", "")
    return "\n\n".join((machine.text, source, table(headings, rows), verdict))


def verdict_of(lines: Sequence[Line], envs: int) -> str:
    """What `actor.precision = "auto"` would make of it, if its golden rows say what these say."""
    at = {line.precision: line for line in lines if line.envs == envs}
    times_us, unlike = {}, []
    for form, precision in _ACTS_AS.items():
        line = at.get(form)
        if line is None or line.p50_us is None:
            continue
        if precision != INT8 and line.agreement is not None and line.agreement < AGREEMENT_MIN:
            unlike.append(form)
        else:
            times_us[precision] = line.p50_us
    if INT8 not in times_us or len(times_us) == 1:
        verdict = 'actor.precision = "auto" would act with what was published'
    else:
        choice = fastest_of(times_us, envs=envs)
        verdict = f'actor.precision = "auto" would act with {choice.precision}'
    return verdict + "".join(f"; {form} decides too differently" for form in unlike)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as the rest of the command does."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"bench actor: {message}; see 'shoal bench actor --help'")


def main(arguments: Sequence[str]) -> None:
    """Measures and prints.

    Raises:
        ShoalError: There is nothing that can be measured.
    """
    given = _parser().parse_args(arguments)
    for flag, name, low, high in _RANGES:
        value = getattr(given, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{flag} {value}: use {low} to {high}")
    wanted = _wanted(given)
    machine = this_machine()
    with make_env(wanted.env) as environments:
        spec = environments.spec
        forms = forms_of(wanted.sources, spec)
        acting = forms.policies.get(FP32) or forms.policies[STATIC]
        rows = collect(environments, acting, given.rows)
    action, envs = ActionLayout.of(spec.action), wanted.env.num_envs
    lines = measure(forms, rows, action, envs, given.calls)
    names = ", ".join(source.name for source in wanted.sources)
    source = f"{names}: v{wanted.sources[0].manifest.version} in {wanted.env.id}"
    verdict = verdict_of(lines, envs)
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "onnxruntime", "numpy"),
            "source": source,
            "rows": len(rows.observations),
            "precisions": [asdict(line) for line in lines],
            "auto": verdict,
        },
    )
    if given.out is not None:
        try:
            given.out.write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{given.out}: {error.strerror}; give another --out") from error
    text = text_of(machine, source, lines, verdict)
    sys.stdout.write((document if given.format == "json" else text) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="shoal bench actor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--policy",
        type=Path,
        action="append",
        help="file of `shoal learner export`, int8 or fp32; twice to give both",
    )
    parser.add_argument("--state", type=Path, help="or the state_dir of a learner or of a device")
    parser.add_argument("--config", type=Path, help="or a device's agent.toml: what it acts with")
    parser.add_argument(
        "--version",
        type=parse_policy_version,
        help="with a state_dir: 7, v7, or latest, the default",
    )
    parser.add_argument("--env", help="which environment; by default what file or config say")
    parser.add_argument("--envs", type=int, help="copies of it, N; by default the device's, else 8")
    parser.add_argument("--rows", type=int, default=512, help="observations for the parity")
    parser.add_argument("--calls", type=int, default=2000, help="decisions timed of each")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    return parser


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is measured, and in which environment."""

    sources: Sequence[Source]
    env: EnvConfig


def _wanted(given: argparse.Namespace) -> _Wanted:
    if sum((bool(given.policy), given.state is not None, given.config is not None)) != 1:
        raise ConfigError("bench actor: give --policy, --state or --config, one of them")
    if given.policy and given.version is not None:
        raise ConfigError("bench actor: --version goes with --state or --config")
    env: EnvConfig | None = None
    if given.config is not None:
        device = load_config(AgentConfig, given.config)
        sources = [read_state(device.state_dir, given.version, trust=f"{device.fleet}-*")]
        env = device.env
    elif given.state is not None:
        sources = [read_state(given.state, given.version)]
    else:
        sources = [read_file(path) for path in given.policy]
    env_id = given.env or (sources[0].env_id if env is None else env.id)
    if not env_id:
        raise ConfigError(
            "bench actor: give --env, the environment that it is for: that is not said here"
        )
    if ":" in env_id and given.env is None:
        raise ConfigError(
            f"bench actor: {env_id} may be hardware, which this would drive beside the agent: "
            "give --env, that one or a simulation of the same spaces"
        )
    kwargs = env.kwargs if env is not None and env.id == env_id else {}
    envs = given.envs or (_ENVS if env is None else env.num_envs)
    return _Wanted(sources, EnvConfig(env_id, num_envs=envs, seed=0, kwargs=kwargs))
