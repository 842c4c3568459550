"""Steps a second of a device's whole loop, beside the bare loop that does nothing but act.

    python tests/bench/actor.py --envs 8 --repeats 7 -o json

The device's loop acts, records, encodes and spools to the disk; what was spooled leaves it again a
few chunks later, as when a learner acknowledges. The bare loop is `session.run` and `env.step` with
the same policy on as many copies of the environment, its noise drawn beforehand; a second one runs
the session on bound arrays, as the device does. They are measured in turn, in one process.
README.md, beside this file, says how to read the result.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from bench.report import Machine, envelope, median, table, this_machine, versions

from cloud_learner.config import NetworkConfig
from cloud_learner.models.policy import Policy as Trained
from cloud_learner.models.policy import build_policy
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import Sample
from edge_agent.acting.actor import Actor
from edge_agent.config import EnvConfig
from edge_agent.environments.env import make_env
from edge_agent.events import Events
from edge_agent.policies.binding import Binding
from edge_agent.policies.policy import Policy
from edge_agent.spool.spool import Spool
from shoal.layout import ObservationLayout
from shoal.noise import RUN_ID_BYTES, noise_block
from shoal.packing import Packing
from shoal.policy import ACTION, LOG_PROB, NOISE, OBSERVATION, Manifest, sha256
from shoal.ranges import Ranges
from shoal.spaces import Box, Discrete, EnvSpec
from shoal.tensors import Array, encode_tensors
from shoal.trajectory import encode_columns

HERE = Path(__file__).resolve().parent
SCHEMA = "shoal.v1.BenchActor"
ACKNOWLEDGED_AFTER_CHUNKS = 8
SPOOL_BYTES = 64 * 1024 * 1024
CALLS = 2000
"""Decisions timed at once, so that the clock costs nothing."""
KL_MAX = {"int8": math.inf, "fp32": -1.0}
"""Bounds that make the quantizer take the first precision it tries, or the last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        envs: N, copies of the environment in either loop.
        chunk_steps: T.
        steps: Vector steps of one repeat.
    """

    env: str
    envs: int
    hidden: tuple[int, ...]
    precision: str
    chunk_steps: int
    steps: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Loop:
    """Environment steps a second of one loop, in each repeat, and in the middle one."""

    name: str
    median_steps_per_s: float
    steps_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """Time of one decision for N observations.

    Attributes:
        session_us: One `session.run`; for torch, one forward pass, sample and log-probability.
        bound_us: The same on arrays bound beforehand, as the device's loop has it.
    """

    precision: str
    envs: int
    session_us: float
    bound_us: float | None


class Subject:
    """An environment's spaces and one network for them, in every form it can act in."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        with make_env(EnvConfig(plan.env, num_envs=1, seed=0)) as environments:
            self.spec: EnvSpec = environments.spec
            self.observations = _observations(plan.env, rows=512)
        network = NetworkConfig(hidden=plan.hidden)
        self.model: Trained = build_policy(self.spec, network, head="sample", seed=0)

    def policy(self, precision: str) -> Policy:
        quantizer = Quantizer(self.model, kl_max=KL_MAX[precision])
        no_states = np.zeros((len(self.observations), 0), np.float32)
        quantized = quantizer.quantize(self.model, Sample(self.observations, no_states))
        graph, tensors = quantizer.graphs[quantized.precision], encode_tensors(quantized.tensors)
        manifest = Manifest(
            fleet="bench",
            version=1,
            updates=0,
            graph_digest=sha256(graph),
            graph_bytes=len(graph),
            tensors_digest=sha256(tensors),
            tensors_bytes=len(tensors),
            golden_digest=bytes(32),
            spec_fingerprint=self.spec.fingerprint,
            precision=quantized.precision,
            created_unix_ms=0,
            kl_quantization=quantized.kl_quantization,
            reason="bench",
        )
        layout = ObservationLayout.of(self.spec.observation)
        return Policy.load(graph, quantized.tensors, manifest, layout)


def device_loop(subject: Subject, policy: Policy) -> float:
    """Environment steps a second, until all is on the disk."""
    plan, run_id = subject.plan, os.urandom(RUN_ID_BYTES)
    events = Events("bench", run_id, clock=time.time)
    chunks = max(1, plan.steps // plan.chunk_steps)
    with (
        tempfile.TemporaryDirectory(dir=HERE) as directory,  # a real disk, where /tmp may be memory
        make_env(EnvConfig(plan.env, num_envs=plan.envs, seed=0)) as environments,
        Spool(
            Path(directory) / "spool.sqlite", max_bytes=SPOOL_BYTES, run_id=run_id, events=events
        ) as spool,
    ):
        actor = Actor(environments, run_id=run_id, chunk_steps=plan.chunk_steps)
        packing = Packing()
        actor.rollout(policy)
        started_s = time.perf_counter()
        for _ in range(chunks):
            chunk = actor.rollout(policy)
            seq = spool.append(encode_columns(chunk, packing), chunk.policy_version)
            if seq >= ACKNOWLEDGED_AFTER_CHUNKS:
                spool.discard(run_id, Ranges.of([seq - ACKNOWLEDGED_AFTER_CHUNKS]))
        if not spool.flush(timeout_s=60.0):
            raise SystemExit("the spool did not reach the disk within a minute")
        return chunks * plan.chunk_steps * plan.envs / (time.perf_counter() - started_s)


def bare_loop(subject: Subject, policy: Policy, *, bound: bool) -> float:
    """Environment steps a second of nothing but `session.run` and `env.step`.

    Args:
        bound: Whether the session runs on arrays bound beforehand, as it does on a device.
    """
    plan, spec = subject.plan, subject.spec
    copies: list[gymnasium.Env[Any, Any]] = [
        gymnasium.make(plan.env, disable_env_checker=True) for _ in range(plan.envs)
    ]
    noise = noise_block(bytes(RUN_ID_BYTES), 0, plan.steps, plan.envs, spec.action)
    decode = _decoder(spec)
    observations = np.stack([copy.reset(seed=n)[0] for n, copy in enumerate(copies)])
    run, outputs, binding = (
        policy.session.runtime.run,
        [ACTION, LOG_PROB],
        Binding(policy, observations),
    )
    started_s = time.perf_counter()
    for t in range(plan.steps):
        if bound:
            binding.noise[...] = noise[t]
            binding.run()
            actions = binding.action
        else:
            actions, _ = run(outputs, {OBSERVATION: observations, NOISE: noise[t]})
        for n, action in enumerate(decode(actions)):
            observation, _, terminated, truncated, _ = copies[n].step(action)
            if terminated or truncated:
                observation, _ = copies[n].reset()
            observations[n] = observation
    took_s = time.perf_counter() - started_s
    for copy in copies:
        copy.close()
    return plan.steps * plan.envs / took_s


def decide(subject: Subject, precision: str, envs: int, repeats: int) -> Decision:
    """Time one decision for `envs` observations."""
    rows = np.resize(subject.observations, (envs, *subject.observations.shape[1:]))
    if precision == "torch":
        eager_us = _median_us(_eager(subject.model, torch.from_numpy(rows)), repeats)
        return Decision("fp32, torch eager", envs, eager_us, None)
    policy = subject.policy(precision)
    noise = noise_block(bytes(RUN_ID_BYTES), 0, 1, envs, subject.spec.action)[0]
    binding, outputs = Binding(policy, rows), [ACTION, LOG_PROB]

    def bound() -> None:
        binding.noise[...] = noise
        binding.run()

    feeds = {OBSERVATION: rows, NOISE: noise}
    session_us = _median_us(lambda: policy.session.runtime.run(outputs, feeds), repeats)
    return Decision(precision, envs, session_us, _median_us(bound, repeats))


def _eager(model: Trained, rows: torch.Tensor) -> Callable[[], object]:
    distribution, discrete = model.distribution, model.log_std is None

    def act() -> object:
        with torch.inference_mode():
            params = model(rows)
            if discrete:
                actions = torch.multinomial(params.softmax(-1), 1).squeeze(-1)
            else:
                mean, log_std = params.chunk(2, -1)
                actions = torch.normal(mean, log_std.exp())
            return actions.numpy(), distribution.log_prob(params, actions).numpy()

    return act


def _median_us(act: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        started_s = time.perf_counter()
        for _ in range(CALLS):
            act()
        times.append((time.perf_counter() - started_s) / CALLS * 1e6)
    return round(median(times[1:]), 2)  # the first one warms up


def _observations(env: str, rows: int) -> Array:
    copy: gymnasium.Env[Any, Any] = gymnasium.make(env, disable_env_checker=True)
    copy.action_space.seed(0)
    found = [copy.reset(seed=0)[0]]
    while len(found) < rows:
        observation, _, terminated, truncated, _ = copy.step(copy.action_space.sample())
        found.append(copy.reset()[0] if terminated or truncated else observation)
    copy.close()
    stacked: Array = np.stack(found)
    return stacked


def _decoder(spec: EnvSpec) -> Callable[[Array], Sequence[object]]:
    action = spec.action
    if isinstance(action, Discrete):
        start = action.start
        return lambda actions: (actions + start).tolist() if start else actions.tolist()
    if not isinstance(action, Box):
        raise SystemExit(f"{spec.env_id}: this measurement acts in Discrete and Box only")
    low, high = action.low, action.high
    return lambda actions: list(np.clip(actions, low, high))


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of repeats that ran one after the other."""
    return round(median([a / b for a, b in zip(ours, theirs, strict=True)]), 3)


def loop_of(name: str, steps_per_s: Sequence[float]) -> Loop:
    """The repeats of one loop."""
    return Loop(name, round(median(steps_per_s)), tuple(round(x) for x in steps_per_s))


def text_of(
    machine: Machine,
    plan: Plan,
    loops: Sequence[Loop],
    ratios: Mapping[str, float],
    decisions: Sequence[Decision],
) -> str:
    """What a person reads."""
    rows = [
        (
            loop.name,
            int(loop.median_steps_per_s),
            int(min(loop.steps_per_s)),
            int(max(loop.steps_per_s)),
            ratios.get(loop.name),
        )
        for loop in loops
    ]
    what = (
        f"{plan.env}, {plan.envs} environments, network {plan.hidden}, {plan.precision}:"
        f" {plan.repeats} repeats of {plan.steps:,} steps, chunks of {plan.chunk_steps}"
    )
    return "\n\n".join(
        (
            machine.text,
            what,
            table(("loop", "env steps/s", "slowest", "fastest", "device to this"), rows),
            table(
                ("decision", "envs", "us by session.run", "us bound"),
                [(d.precision, d.envs, d.session_us, d.bound_us) for d in decisions],
            ),
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="shoal bench actor", description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=8, help="copies of the environment, N")
    parser.add_argument("--hidden", default="64,64", help="widths of the network")
    parser.add_argument("--precision", choices=tuple(KL_MAX), default="int8", help="of the loops")
    parser.add_argument("--chunk-steps", type=int, default=32, help="T")
    parser.add_argument("--steps", type=int, default=6400, help="vector steps of a repeat")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    plan = Plan(
        env=given.env,
        envs=given.envs,
        hidden=tuple(int(width) for width in given.hidden.split(",")),
        precision=given.precision,
        chunk_steps=given.chunk_steps,
        steps=given.steps,
        repeats=given.repeats,
    )
    machine = this_machine()
    torch.set_num_threads(1)
    subject = Subject(plan)
    policy = subject.policy(plan.precision)
    bare, bare_bound, device = [], [], []
    for repeat in range(plan.repeats):
        sys.stderr.write(f"repeat {repeat + 1} of {plan.repeats}\n")
        bare.append(bare_loop(subject, policy, bound=False))
        device.append(device_loop(subject, policy))
        bare_bound.append(bare_loop(subject, policy, bound=True))
    ratios = {"bare": ratio_of(device, bare), "bare, bound": ratio_of(device, bare_bound)}
    decisions = [
        decide(subject, precision, envs, plan.repeats)
        for envs in sorted({1, plan.envs})
        for precision in (*KL_MAX, "torch")
    ]
    loops = (
        loop_of("bare", bare),
        loop_of("bare, bound", bare_bound),
        loop_of("device", device),
    )
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "torch", "onnxruntime", "gymnasium", "numpy"),
            "plan": asdict(plan),
            "loops": [asdict(loop) for loop in loops],
            "ratio_to_bare": ratios["bare"],
            "ratio_to_bare_bound": ratios["bare, bound"],
            "decisions": [asdict(decision) for decision in decisions],
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = text_of(machine, plan, loops, ratios, decisions)
    sys.stdout.write((document if given.format == "json" else text) + "\n")
    return 0
