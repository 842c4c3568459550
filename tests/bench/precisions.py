"""What each precision of one policy costs on this machine, and how far it is from fp32.

    shoal bench actor --policy policy.onnx --envs 8
    shoal bench actor --state /var/lib/shoal --env CartPole-v1

fp32, int8 static (as devices act with it) and int8 dynamic (onnxruntime's own, made from fp32):
the time of one decision for 1 and for N observations, on bound arrays as the control loop has it,
the part of the observations where the greedy action is that of fp32, and the mean KL(fp32 || form).
The observations are those that the fp32 form (else int8) meets in the environment.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from bench.policy_forms import (
    DYNAMIC,
    FP32,
    STATIC,
    Forms,
    Source,
    forms_of,
    read_file,
    read_state,
)
from bench.report import Cell, Machine, envelope, finite, table, this_machine, versions
from numpy.typing import NDArray

from edge_agent.config import EnvConfig
from edge_agent.environments.env import Environments, make_env
from edge_agent.policies.parity import alike, repeated
from edge_agent.policies.policy import Binding, Policy
from edge_agent.policies.precision import faster_of
from shoal.errors import ConfigError, ShoalError
from shoal.layout import ActionLayout
from shoal.noise import RUN_ID_BYTES, noise_block
from shoal.policy import DISTRIBUTION, NOISE, OBSERVATION, STATE
from shoal.tensors import Array

SCHEMA = "shoal.v1.BenchPrecisions"
ORDER = (FP32, STATIC, DYNAMIC)
BLOCK = 50
"""Decisions of one form before the next has its turn."""
_TINY = 1e-8

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a policy is asked: observations `[M, ...]`, noise `[M, width]`, states `[M, S]`."""

    observations: Array
    noise: Floats
    states: Floats | None


@dataclass(frozen=True, slots=True)
class Line:
    """One form for one number of observations.

    Attributes:
        p50_us: Of one decision; None where there is no such form.
        agreement: Part of the rows with the greedy action of fp32; None without fp32.
        kl: Nats, the mean of KL(fp32 || form); None without fp32.
        note: Why a figure is missing.
    """

    precision: str
    envs: int
    p50_us: float | None
    p99_us: float | None
    agreement: float | None
    kl: float | None
    note: str = ""


def collect(environments: Environments, policy: Policy, count: int) -> Rows:
    """What a policy meets: at least `count` observations, and the states that it had at them."""
    envs, spec = environments.num_envs, environments.spec
    steps = -(-count // envs)
    noise = noise_block(bytes(RUN_ID_BYTES), 0, steps, envs, spec.action)
    observations: list[Array] = []
    states: list[Floats] = []
    state: Floats | None = np.zeros((envs, policy.memory), np.float32) if policy.memory else None
    seen = environments.reset()
    for t in range(steps):
        observations.append(seen.copy())
        decided = policy.act(observations[-1], noise[t], state)
        step = environments.step(decided.actions)
        seen = step.observations
        if state is not None and decided.next_states is not None:
            states.append(state)
            state = decided.next_states.copy()
            state[step.terminated | step.truncated] = 0.0
    return Rows(
        np.concatenate(observations),
        np.concatenate(list(noise)),
        np.concatenate(states) if states else None,
    )


def distribution_of(policy: Policy, rows: Rows) -> Floats:
    """Parameters `[M, P]`."""
    feeds: dict[str, Array] = {NOISE: rows.noise}
    assert policy.layout is not None
    leaves = policy.layout.unpack(rows.observations)
    feeds |= {f.input_name(OBSERVATION): leaves[f.path] for f in policy.layout.fields}
    if rows.states is not None:
        feeds[STATE] = rows.states
    (found,) = policy.session.run([DISTRIBUTION], feeds)
    params: Floats = found
    return params


def divergence(action: ActionLayout, ours: Array, theirs: Array, *, values: bool) -> float:
    """Nats, the mean of KL(ours || theirs) over parameters `[M, P]`.

    Args:
        action: How actions lie.
        ours: Logits of every discrete element, and mean | log deviation of every Box, in order.
        theirs: Likewise.
        values: They are Q-values: softmax(Q / spread) is compared, spread the mean over the rows
            of the deviation of Q between the actions, as the learner's quantization gap has it.
    """
    p, q = ours.astype(np.float64), theirs.astype(np.float64)
    if values:
        spread = p.std(axis=1).mean() + _TINY
        p, q = p / spread, q / spread
    total, start = np.zeros(len(p)), 0
    for choice in action.choices:
        for n in choice.values:
            own = slice(start, start + n)
            log_p, log_q = _log_softmax(p[:, own]), _log_softmax(q[:, own])
            total += (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
            start += n
        if not choice.values:
            n = choice.size
            mean, wide = slice(start, start + n), slice(start + n, start + 2 * n)
            apart = (p[:, mean] - q[:, mean]) ** 2 + np.exp(2 * p[:, wide])
            each = q[:, wide] - p[:, wide] + apart / (2 * np.exp(2 * q[:, wide])) - 0.5
            total += each.sum(axis=1)
            start += 2 * n
    return max(0.0, float(total.mean()))


def parity(forms: Forms, rows: Rows, action: ActionLayout) -> dict[str, tuple[float, float]]:
    """Agreement and KL of each form, against fp32."""
    if FP32 not in forms.policies:
        return {}
    quiet = np.zeros_like(rows.noise)
    greedy = {
        name: policy.act(rows.observations, quiet, rows.states).actions
        for name, policy in forms.policies.items()
    }
    params = {name: distribution_of(policy, rows) for name, policy in forms.policies.items()}
    return {
        name: (
            float(alike(action, greedy[FP32], greedy[name]).mean()),
            divergence(action, params[FP32], params[name], values=bool(forms.values)),
        )
        for name in forms.policies
    }


def latencies(
    policies: Mapping[str, Policy], rows: Rows, envs: int, calls: int
) -> dict[str, tuple[float, float]]:
    """µs of one decision for `envs` observations, p50 and p99, the forms in turn."""
    bindings = {name: _bound(policy, rows, envs) for name, policy in policies.items()}
    times: dict[str, list[int]] = {name: [] for name in policies}
    for turn in range(max(1, calls // BLOCK) + 1):
        for name, binding in bindings.items():
            for _ in range(BLOCK):
                since = time.perf_counter_ns()
                binding.run()
                took = time.perf_counter_ns() - since
                if turn:  # the first one warms up
                    times[name].append(took)
    return {
        name: (float(np.percentile(taken, 50)) / 1e3, float(np.percentile(taken, 99)) / 1e3)
        for name, taken in times.items()
    }


def measure(forms: Forms, rows: Rows, action: ActionLayout, envs: int, calls: int) -> list[Line]:
    """Every form, for 1 observation and for `envs`."""
    lines = []
    near = parity(forms, rows, action)
    for count in sorted({1, envs}):
        timed = latencies(forms.policies, rows, count, calls)
        for name in ORDER:
            if name not in timed:
                note = f"n/a: {forms.missing.get(name, 'not made')}"
                lines.append(Line(name, count, None, None, None, None, note))
                continue
            p50_us, p99_us = timed[name]
            agreement, kl = near.get(name, (None, None))
            lines.append(
                Line(name, count, round(p50_us, 2), round(p99_us, 2), _short(agreement), _short(kl))
            )
    return lines


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
    """What `actor.precision = "auto"` would make of it."""
    times = {line.precision: line.p50_us for line in lines if line.envs == envs}
    static, fp32 = times.get(STATIC), times.get(FP32)
    if static is None or fp32 is None:
        return 'actor.precision = "auto" would act with what was published'
    choice = faster_of(static, fp32, envs=envs)
    return f'actor.precision = "auto" would act with {choice.precision}'


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="shoal bench actor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--policy",
        type=Path,
        action="append",
        help="file of `shoal learner export`, int8 or fp32; twice to give both",
    )
    parser.add_argument("--state", type=Path, help="or the state_dir of a learner or of a device")
    parser.add_argument("--version", type=int, help="with --state; by default the newest")
    parser.add_argument("--env", help="which environment; by default what the file says")
    parser.add_argument("--envs", type=int, default=8, help="copies of the environment, N")
    parser.add_argument("--rows", type=int, default=512, help="observations for the parity")
    parser.add_argument("--calls", type=int, default=2000, help="decisions timed of each")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except ShoalError as error:
        sys.stderr.write(f"shoal bench actor: {error}\n")
        return 1


def _run(given: argparse.Namespace) -> int:
    sources = _sources(given.policy, given.state, given.version)
    env_id = given.env or sources[0].env_id
    if not env_id:
        raise ConfigError("give --env: a state directory does not say which environment it is for")
    machine = this_machine()
    with make_env(EnvConfig(env_id, num_envs=given.envs, seed=0)) as environments:
        spec = environments.spec
        forms = forms_of(sources, spec)
        acting = forms.policies.get(FP32) or forms.policies[STATIC]
        rows = collect(environments, acting, given.rows)
    lines = measure(forms, rows, ActionLayout.of(spec.action), given.envs, given.calls)
    source = f"{', '.join(s.name for s in sources)}: v{sources[0].manifest.version} in {env_id}"
    verdict = verdict_of(lines, given.envs)
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "onnxruntime", "onnx", "numpy"),
            "source": source,
            "rows": len(rows.observations),
            "precisions": [asdict(line) for line in lines],
            "auto": verdict,
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = text_of(machine, source, lines, verdict)
    sys.stdout.write((document if given.format == "json" else text) + "\n")
    return 0


def _sources(
    files: Sequence[Path] | None, state: Path | None, version: int | None
) -> Sequence[Source]:
    if bool(files) == (state is not None):
        raise ConfigError("give --policy or --state, one of the two")
    if state is not None:
        return [read_state(state, version)]
    return [read_file(path) for path in files or ()]


def _bound(policy: Policy, rows: Rows, envs: int) -> Binding:
    binding = policy.bind(repeated(rows.observations[:envs], envs))
    binding.noise[...] = repeated(rows.noise[:envs], envs)
    if rows.states is not None:
        binding.state[...] = repeated(rows.states[:envs], envs)
    return binding


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probs


def _short(value: float | None) -> float | None:
    return None if value is None else finite(value, 9)
