"""What a parameter server takes: the latency of `PushUpdate`, and how many updates a second.

    python tests/bench/gradients.py                 # 100 agents, 10 updates a second each
    python tests/bench/gradients.py --quick -o json

Agents are multiplexed in a few processes, with a connection and a certificate each; the server is
the learner's, in a process of its own; in one case it publishes policies meanwhile, in the others
it does nothing else.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402 - see above
from bench.child import say  # noqa: E402
from bench.gradient_relay import NAME, relaying  # noqa: E402
from bench.report import envelope, median, table, this_machine, versions  # noqa: E402

SCHEMA = "shoal.bench.Gradients"
BAR_MS, GOAL_MS = 15.0, 5.0
CONNECT_S = 0.05  # for each agent of a process, before all begin
# As `shoal demo` has it: a pool of threads in each process only gets in the way of the others.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LARGE = (1024, 1024)  # hidden widths of the network that shards are worth their threads for


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement.

    Attributes:
        name: For people.
        codec: How gradients travel.
        shards: Of the parameters.
        bare: Whether the server only answers.
        rate: Updates a second of each agent; 0: as fast as they are answered.
        threads: `gradients.threads`.
        hidden: Widths of the network.
        policies_per_s: Published meanwhile.
        relayed: Whether a site's relay stands between agents and server.
    """

    name: str
    codec: str
    shards: int
    bare: bool
    rate: float
    threads: str = "auto"
    hidden: tuple[int, ...] = (64, 64)
    policies_per_s: float = 0.0
    relayed: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What one measurement gave; latencies in milliseconds."""

    name: str
    codec: str
    shards: int
    parameters: int
    body_bytes: int
    calls: int
    refused: int
    late: int
    updates_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


def cases(options: argparse.Namespace) -> list[Case]:
    """What is measured, in this order, once a round."""
    rate, codecs = options.rate, options.codecs.split(",")
    at_rate = [Case("bare call", codecs[0], 1, bare=True, rate=rate)]
    at_rate += [Case("push", codec, 1, bare=False, rate=rate) for codec in codecs]
    at_rate += [Case("push", codecs[0], options.shards, bare=False, rate=rate)]
    at_rate += [
        Case("publishing", codecs[0], 1, bare=False, rate=rate, policies_per_s=options.policies)
    ]
    at_rate += [Case("through a relay", codecs[0], 1, bare=False, rate=rate, relayed=True)]
    full = [
        Case("full speed", codecs[0], shards, bare=False, rate=0.0)
        for shards in (1, options.shards)
    ]
    large = [
        Case("large net", "int8", shards, bare=False, rate=0.0, hidden=LARGE)
        for shards in (1, options.shards)
    ]
    return [*at_rate, Case("bare, full speed", codecs[0], 1, bare=True, rate=0.0), *full, *large]


def run_case(
    case: Case, directory: Path, names: Sequence[str], options: argparse.Namespace
) -> Result:
    """Starts a server and agents, and waits for their end."""
    names = names[: options.large_agents] if case.hidden == LARGE else names
    with ExitStack() as running:
        port, parameters = running.enter_context(serving(case, directory))
        if case.relayed:
            port = running.enter_context(relaying(directory, port))
        start_s = time.monotonic() + 2.0 + CONNECT_S * len(names)
        parts = [tuple(names[n :: options.processes]) for n in range(options.processes)]
        loads = [
            {
                "directory": str(directory),
                "port": port,
                "names": part,
                "rate": case.rate,
                "seconds": options.seconds,
                "codec": case.codec,
                "start_s": start_s,
            }
            for part in parts
            if part
        ]
        children = [_child("agents", load) for load in loads]
        answers = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    latencies = np.array([ms for answer in answers for ms in answer["latencies_ms"]])
    if not latencies.size:
        raise SystemExit(f"{case.name}: no call was answered in the measured time")
    return Result(
        name=case.name,
        codec=case.codec,
        shards=case.shards,
        parameters=parameters,
        body_bytes=answers[0]["body_bytes"],
        calls=int(latencies.size),
        refused=sum(answer["refused"] for answer in answers),
        late=sum(answer["late"] for answer in answers),
        updates_per_s=round(latencies.size / options.seconds, 1),
        p50_ms=round(float(np.percentile(latencies, 50)), 3),
        p99_ms=round(float(np.percentile(latencies, 99)), 3),
        max_ms=round(float(latencies.max()), 3),
    )


@contextmanager
def serving(case: Case, directory: Path) -> Iterator[tuple[int, int]]:
    """A server's port, and how many parameters its network has; it ends with the block."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        (Path(scratch) / "pki").symlink_to(directory / "pki")
        server = _child(
            "endpoint",
            {
                "directory": scratch,
                "hidden": case.hidden,
                "shards": case.shards,
                "threads": case.threads,
                "bare": case.bare,
                "policies_per_s": case.policies_per_s,
            },
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise SystemExit("the server did not start: see what it said above")
            said = json.loads(line)
            yield said["port"], said["parameters"]
        finally:
            server.communicate()  # closes its input, which ends it


def median_of(results: Sequence[Result]) -> Result:
    """Each figure's median over rounds of one case."""
    first = asdict(results[0])
    for key in ("updates_per_s", "p50_ms", "p99_ms", "max_ms"):
        first[key] = round(median([getattr(result, key) for result in results]), 3)
    for key in ("calls", "refused", "late"):
        first[key] = sum(getattr(result, key) for result in results)
    return Result(**first)


def measure(options: argparse.Namespace) -> tuple[list[Case], list[list[Result]]]:
    """All cases, in so many rounds."""
    from shoalctl.pki.pki import FleetPki, Role

    found = cases(options)
    results: list[list[Result]] = [[] for _ in found]
    names = [f"agent-{number}" for number in range(options.agents)]
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        say(f"issuing {len(names)} certificates")
        pki = FleetPki.create(directory / "pki", "bench")
        pki.issue("learner", Role.LEARNER)
        pki.issue(NAME, Role.RELAY)
        for name in names:
            pki.issue(name, Role.DEVICE)
        for round_ in range(options.rounds):
            for place, case in enumerate(found):
                result = run_case(case, directory, names, options)
                results[place].append(result)
                say(
                    f"round {round_ + 1}: {case.name}, {case.codec}, {case.shards} shards: "
                    f"p50 {result.p50_ms:.2f} ms, p99 {result.p99_ms:.2f} ms, "
                    f"{result.updates_per_s:.0f}/s"
                )
    return found, results


def ratios(found: Sequence[Case], medians: Sequence[Result]) -> dict[str, float]:
    """What the figures say beside each other."""
    pairs = list(zip(found, medians, strict=True))
    bare = next(m for c, m in pairs if c.bare and c.rate)
    push = next(m for c, m in pairs if not c.bare and c.rate)
    relayed = next(m for c, m in pairs if c.relayed)
    full = [m.updates_per_s for c, m in pairs if c.name == "full speed"]
    large = [m.updates_per_s for c, m in pairs if c.name == "large net"]
    return {
        "p50_push_over_bare": round(push.p50_ms / bare.p50_ms, 2),
        "p99_push_over_bare": round(push.p99_ms / bare.p99_ms, 2),
        "p50_relayed_over_push": round(relayed.p50_ms / push.p50_ms, 2),
        "throughput_shards_over_one": round(full[1] / full[0], 2),
        "throughput_shards_over_one_large_net": round(large[1] / large[0], 2),
    }


def main(arguments: Sequence[str]) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="shoal bench gradients", description=__doc__.split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2, help="that agents are spread over")
    parser.add_argument("--rate", type=float, default=10.0, help="updates a second of each agent")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, of each case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=4, help="beside one")
    parser.add_argument("--policies", type=float, default=5.0, help="a second, where it publishes")
    parser.add_argument("--codecs", default="float32,int8,top_k")
    parser.add_argument("--large-agents", type=int, default=8, help="for the large network")
    parser.add_argument("--quick", action="store_true", help="one round of 3 seconds")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 3.0
    machine = this_machine()
    found, results = measure(options)
    medians = [median_of(rounds) for rounds in results]
    at_rate = [
        m
        for c, m in zip(found, medians, strict=True)
        if c.rate and not c.bare and not c.policies_per_s and not c.relayed
    ]
    worst_ms = max(m.p99_ms for m in at_rate)
    body: dict[str, object] = {
        "versions": versions("shoal", "grpcio", "numpy", "torch"),
        "agents": options.agents,
        "rate_per_agent": options.rate,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "p99_ms": worst_ms,
        "bar_ms": BAR_MS,
        "goal_ms": GOAL_MS,
        "within_bar": worst_ms <= BAR_MS,
        "ratios": ratios(found, medians),
        "cases": [
            {**asdict(m), "rate_per_agent": c.rate, "rounds": [asdict(r) for r in rounds]}
            for c, m, rounds in zip(found, medians, results, strict=True)
        ],
    }
    document = envelope(SCHEMA, machine, body) + "\n"
    if options.out is not None:
        options.out.write_text(document, encoding="utf-8")
    if options.output == "json":
        sys.stdout.write(document)
        return 0
    headings = ("case", "codec", "shards", "bytes", "updates/s", "p50 ms", "p99 ms", "max ms")
    rows = [
        (m.name, m.codec, m.shards, m.body_bytes, m.updates_per_s, m.p50_ms, m.p99_ms, m.max_ms)
        for m in medians
    ]
    verdict = "within" if worst_ms <= BAR_MS else "OVER"
    said = ", ".join(f"{name} {value}" for name, value in ratios(found, medians).items())
    sys.stdout.write(
        f"{machine.text}\n{options.agents} agents, {options.rate:g} updates/s each, medians of "
        f"{options.rounds} rounds of {options.seconds:g} s\n\n{table(headings, rows)}\n\n"
        f"{said}\nworst p99 of a push at that rate {worst_ms:.2f} ms, {verdict} the bar of "
        f"{BAR_MS:g} ms (goal {GOAL_MS:g})\n"
    )
    return 0


def _child(role: str, told: dict[str, object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "gradients.py"), f"--as-{role}", json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ONE_THREAD | os.environ,
    )


def _as_child(role: str, told: str) -> int:
    fields = json.loads(told)
    if role == "--as-endpoint":
        from bench.gradient_endpoint import Endpoint, serve

        fields["hidden"] = tuple(fields["hidden"])
        asyncio.run(serve(Endpoint(**fields)))
        return 0
    from bench.gradient_agents import Load, push_all

    fields["names"] = tuple(fields["names"])
    pushed = asyncio.run(push_all(Load(**fields)))
    sys.stdout.write(json.dumps(asdict(pushed)) + "\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--as-"):
        sys.exit(_as_child(sys.argv[1], sys.argv[2]))
    sys.exit(main(sys.argv[1:]))
