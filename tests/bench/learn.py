"""Wall-clock from process start to a solved CartPole-v1: Shoal whole, beside its peers.

    python tests/bench/learn.py --seeds 3 --peers sb3_ppo,sample_factory_appo -o json
    python tests/bench/learn.py --suite classic --seeds 3 --out suite.json     # see suite.py

Everybody is measured the same way, by this program: from the moment it starts the contestant's
process, imports and all, to the moment the mean return of the last 100 *training* episodes reaches
the threshold. Runs are interleaved, so that a slow minute of the machine is everybody's.
README.md, beside this file, says how to read the result.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

from bench.child import run_child, say  # noqa: E402
from bench.peer_venv import PEERS_DIR, peer_python, prepare_peer  # noqa: E402
from bench.report import Machine, envelope, finite, median, table, this_machine, versions  # noqa: E402

SCHEMA = "shoal.v1.BenchLearn"
PEERS = ("sb3_ppo", "sample_factory_appo")
SHOAL = "shoal"
PROGRAMS = {
    "sb3_ppo": ("sb3", ("--algorithm", "ppo")),
    "sample_factory_appo": ("sample_factory_appo", ()),
}
"""By peer: its program, and the flags that make that program it."""
VARIANTS = {
    # torch's own choice of threads, and one: the better of the two counts.
    "sb3_ppo": (("1 thread", ("--threads", "1")), ("default threads", ("--threads", "0"))),
    # Its processes set one thread each by themselves.
    "sample_factory_appo": (
        ("tuned", ("--settings", "tuned")),
        ("example", ("--settings", "example")),
    ),
}
GRACE_S = 60.0
"""Seconds past its own timeout after which a contestant is stopped."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who is measured.

    Attributes:
        name: `shoal`, or the peer's file name.
        variant: What sets it apart from others of the same name; may be empty.
        command: Its command line, but for seed and timeout.
    """

    name: str
    variant: str
    command: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name and variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant with one seed.

    Attributes:
        solve_s: From process start to solved; None if it was not.
        trained_s: The same without the imports of its main process.
        env_steps: Environment steps until then.
        process_s: From process start to process end: closing down included.
    """

    contestant: str
    variant: str
    seed: int
    solve_s: float | None
    trained_s: float | None
    env_steps: int
    return_mean: float | None
    process_s: float
    note: str


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of one contestant; a median is None when the middle run was not solved."""

    contestant: str
    variant: str
    solved: int
    runs: int
    solve_s: float | None
    fastest_s: float | None
    slowest_s: float | None
    trained_s: float | None
    env_steps: int


def summarize(runs: Sequence[Run]) -> list[Summary]:
    """One line a contestant, in order of appearance. An unsolved run counts as infinitely long."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.contestant, run.variant), []).append(run)
    found = []
    for (contestant, variant), group in groups.items():
        times = [math.inf if run.solve_s is None else run.solve_s for run in group]
        trained = [math.inf if run.trained_s is None else run.trained_s for run in group]
        found.append(
            Summary(
                contestant=contestant,
                variant=variant,
                solved=sum(run.solve_s is not None for run in group),
                runs=len(group),
                solve_s=finite(median(times)),
                fastest_s=finite(min(times)),
                slowest_s=finite(max(times)),
                trained_s=finite(median(trained)),
                env_steps=int(median([run.env_steps for run in group])),
            )
        )
    return found


def better_peer(summaries: Sequence[Summary]) -> Summary | None:
    """The peer, in its best variant, with the shortest median; None if no median is solved."""
    solved = [s for s in summaries if s.contestant != SHOAL and s.solve_s is not None]
    return min(solved, key=lambda s: s.solve_s or math.inf, default=None)


def ratio_to_better_peer(summaries: Sequence[Summary]) -> float | None:
    """Shoal's median over the better peer's: below 1 Shoal is faster; None if either is missing."""
    peer = better_peer(summaries)
    ours = next((s for s in summaries if s.contestant == SHOAL), None)
    if peer is None or ours is None or ours.solve_s is None or peer.solve_s is None:
        return None
    return round(ours.solve_s / peer.solve_s, 3)


def order_of_runs(contestants: Sequence[Contestant], seeds: int) -> list[tuple[int, Contestant]]:
    """Every contestant once a seed, each round begun by another one."""
    return [
        (seed, contestants[(start + seed) % len(contestants)])
        for seed in range(seeds)
        for start in range(len(contestants))
    ]


def read_peer(line: str, contestant: Contestant, seed: int, started_s: float) -> Run:
    """A run from the line of JSON that a peer printed last; `process_s` is left at 0."""
    said = json.loads(line)
    solved = bool(said["solved"])
    return Run(
        contestant=contestant.name,
        variant=contestant.variant,
        seed=seed,
        solve_s=round(said["ended_at_s"] - started_s, 3) if solved else None,
        trained_s=round(said["ended_at_s"] - said["imported_at_s"], 3) if solved else None,
        env_steps=int(said["env_steps"]),
        return_mean=finite(float(said["return_mean"])),
        process_s=0.0,
        note=str(said["note"]),
    )


def read_shoal(
    line: str, contestant: Contestant, seed: int, started_s: float, process_s: float
) -> Run:
    """A run from the envelope of `shoal demo -o json`.

    Its `wall_s` counts from when the command had been loaded, at `started_monotonic_s`. Where an
    envelope does not say that, the whole process is counted, its closing down included.
    """
    said = json.loads(line)
    solved = bool(said["solved"])
    loaded_s = said.get("started_monotonic_s")
    whole_s = process_s if loaded_s is None else loaded_s - started_s + said["wall_s"]
    audit = "" if said["audit"]["balanced"] else "audit NOT balanced"
    return Run(
        contestant=contestant.name,
        variant=contestant.variant,
        seed=seed,
        solve_s=round(whole_s, 3) if solved else None,
        trained_s=round(said["wall_s"], 3) if solved else None,
        env_steps=int(said["env_steps"]),
        return_mean=finite(float(said["return_mean"])),
        process_s=round(process_s, 3),
        note=audit,
    )


def contestants_of(peers: Sequence[str], extra: Sequence[str]) -> list[Contestant]:
    """Shoal first, then each peer in its variants.

    Args:
        peers: Keys of `PROGRAMS`.
        extra: More flags for `shoal demo`.
    """
    shoal = Path(sys.executable).with_name("shoal")
    found = [Contestant(SHOAL, "", (str(shoal), "demo", "-o", "json", *extra))]
    for peer in peers:
        name, always = PROGRAMS[peer]
        program = (str(peer_python(name)), str(PEERS_DIR / f"{name}.py"), *always)
        found += [Contestant(peer, name, (*program, *flags)) for name, flags in VARIANTS[peer]]
    return found


def run_once(contestant: Contestant, seed: int, timeout_s: float) -> Run:
    """Start a contestant, wait for it, and read what it says."""
    command = [*contestant.command, "--seed", str(seed), "--timeout-s", f"{timeout_s:g}"]
    child = run_child(command, timeout_s + GRACE_S)
    if child.answer is None:
        return _failed(contestant, seed, child.process_s, child.failure)
    if contestant.name == SHOAL:
        return read_shoal(child.answer, contestant, seed, child.started_s, child.process_s)
    run = read_peer(child.answer, contestant, seed, child.started_s)
    return Run(**{**asdict(run), "process_s": round(child.process_s, 3)})


def _failed(contestant: Contestant, seed: int, process_s: float, note: str) -> Run:
    return Run(
        contestant=contestant.name,
        variant=contestant.variant,
        seed=seed,
        solve_s=None,
        trained_s=None,
        env_steps=0,
        return_mean=None,
        process_s=round(process_s, 3),
        note=note[:200],
    )


def text_of(machine: Machine, runs: Sequence[Run], summaries: Sequence[Summary]) -> str:
    """What a person reads."""
    peer, ratio = better_peer(summaries), ratio_to_better_peer(summaries)
    each = [
        (f"{r.contestant} {r.variant}".strip(), r.seed, r.solve_s, r.trained_s, r.env_steps, r.note)
        for r in runs
    ]
    whole = [
        (
            f"{s.contestant} {s.variant}".strip(),
            f"{s.solved}/{s.runs}",
            s.solve_s,
            s.fastest_s,
            s.slowest_s,
            s.trained_s,
            s.env_steps,
        )
        for s in summaries
    ]
    verdict = "no ratio: Shoal or every peer has no solved median"
    if peer is not None and ratio is not None:
        label = f"{peer.contestant} {peer.variant}".strip()
        verdict = f"ratio to the better peer ({label}): {ratio:.2f} (below 1, Shoal is faster)"
    return "\n\n".join(
        (
            machine.text,
            table(("run", "seed", "solve s", "no imports s", "env steps", "note"), each),
            table(
                (
                    "medians",
                    "solved",
                    "solve s",
                    "fastest",
                    "slowest",
                    "no imports s",
                    "env steps",
                ),
                whole,
            ),
            verdict,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether Shoal solved every seed."""
    words = sys.argv[1:] if arguments is None else arguments
    if any(word.partition("=")[0] == "--suite" for word in words):
        from bench.suite import main as suite

        return suite(words)
    parser = argparse.ArgumentParser(prog="shoal bench learn", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, ... (default 3)")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help=f'of {", ".join(PEERS)}, or "none" (default all)'
    )
    parser.add_argument("--timeout-s", type=float, default=180.0, help="for each run")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    parser.add_argument("--skip-shoal", action="store_true", help="measure the peers alone")
    if {"-h", "--help"} & set(words):
        from bench.suite import main as suite

        parser.print_help()
        sys.stdout.write("\nWith --suite it measures what the learning is worth:\n\n")
        return suite(["--help"])
    given, demo_flags = parser.parse_known_args(arguments)
    peers = [name for name in given.peers.split(",") if name not in ("", "none")]
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        parser.error(f"unknown peer {unknown[0]}: use {', '.join(PEERS)}, or none")
    if given.seeds < 1:
        parser.error(f"--seeds {given.seeds}: use 1 or more")
    for peer in peers:
        prepare_peer(PROGRAMS[peer][0])
    machine = this_machine()
    contestants = contestants_of(peers, demo_flags)[1 if given.skip_shoal else 0 :]
    runs: list[Run] = []
    for seed, contestant in order_of_runs(contestants, given.seeds):
        run = run_once(contestant, seed, given.timeout_s)
        runs.append(run)
        took = "NOT solved" if run.solve_s is None else f"{run.solve_s:.1f} s"
        say(f"seed {seed}  {contestant.label}: {took}, {run.env_steps:,} steps {run.note}".rstrip())
    summaries = summarize(runs)
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "torch", "onnxruntime", "gymnasium", "numpy"),
            "runs": [asdict(run) for run in runs],
            "medians": [asdict(summary) for summary in summaries],
            "ratio_to_better_peer": ratio_to_better_peer(summaries),
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = document if given.format == "json" else text_of(machine, runs, summaries)
    sys.stdout.write(text + "\n")
    return 0 if all(run.solve_s is not None for run in runs if run.contestant == SHOAL) else 1


if __name__ == "__main__":
    sys.exit(main())
