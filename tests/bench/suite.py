"""Every row of a suite through the whole system, over seeds, into a file that can be gone on with.

    shoal bench learn --suite classic --seeds 3 --out suite.json
    shoal bench learn --suite classic --rows cartpole,lag-0 --out suite.json --peers
    shoal bench learn --suite classic --out suite.json --seeds 0 --markdown      # what there is

Each run is broker, learner and devices as processes of their own (`shoal demo`). Then its last
policy is exported, in fp32 and in int8, and acts greedily for 100 episodes or more by onnxruntime
alone.
A run that the file holds already, with the same settings and seed, is not made again. README.md,
beside this file, says how to read the result.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.child import say
from bench.peer_venv import prepare_peer
from bench.report import Machine, this_machine, versions
from bench.suite_report import lines_of, markdown_of, text_of
from bench.suite_rows import SUITES, Row, choose
from bench.suite_run import PEER, SHOAL, RunRecord, run_row, settings_of

SCHEMA = "shoal.v1.BenchSuite"


@dataclass(slots=True)
class Results:
    """The runs so far, in a file that is whole at any moment.

    >>> results = Results.open(Path("suite.json"))
    >>> results.add(record)
    """

    path: Path | None
    machine: Machine
    runs: list[RunRecord]

    @classmethod
    def open(cls, path: Path | None) -> "Results":
        """Reads a file that an earlier suite wrote, if it is there.

        Raises:
            ValueError: It is another kind of file.
        """
        if path is None or not path.exists():
            return cls(path, this_machine(), [])
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if told.get("schema") != SCHEMA:
            raise ValueError(f"{path} is no file of a suite (schema {told.get('schema')})")
        runs = [RunRecord.from_json(run) for run in told["runs"]]
        return cls(path, this_machine(), runs)

    def has(self, row: Row, contestant: str, seed: int, episodes: int) -> bool:
        """Whether a run is there that has a result, and was told the same."""
        wanted = (row.name, contestant, seed, settings_of(row, contestant, episodes))
        return any(
            (run.row, run.contestant, run.seed, run.settings) == wanted and not run.error
            for run in self.runs
        )

    def add(self, record: RunRecord) -> None:
        """Adds a run, in place of an earlier one of that row and seed, and writes the file."""
        key = (record.row, record.contestant, record.seed)
        kept = [run for run in self.runs if (run.row, run.contestant, run.seed) != key]
        self.runs = [*kept, record]
        if self.path is not None:
            temporary = self.path.with_name(f"{self.path.name}.tmp")
            temporary.write_text(self.document() + "\n", encoding="utf-8")
            temporary.replace(self.path)

    def document(self) -> str:
        """The envelope."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "machine": asdict(self.machine),
                "versions": versions("shoal", "torch", "onnxruntime", "gymnasium", "numpy"),
                "runs": [asdict(run) for run in self.runs],
            },
            indent=2,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, print, and say by the exit code whether every run reached its bar."""
    parser = argparse.ArgumentParser(
        prog="shoal bench learn --suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suite", choices=tuple(SUITES), required=True)
    parser.add_argument("--rows", default="", help="names, or what they begin with: a,b")
    parser.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, ... (default 3)")
    parser.add_argument(
        "--episodes", type=int, help="evaluated for each policy (default: 100 to 1000)"
    )
    parser.add_argument("--peers", action="store_true", help="Stable-Baselines3 beside, too")
    parser.add_argument("--out", type=Path, help="the file: gone on with if it is there")
    parser.add_argument("--markdown", action="store_true", help="print tables for the docs")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    try:
        rows = choose(given.suite, [name for name in given.rows.split(",") if name])
        results = Results.open(given.out)
    except ValueError as error:
        parser.error(str(error))
    contestants = (SHOAL, PEER) if given.peers else (SHOAL,)
    if given.peers and given.seeds:
        prepare_peer(PEER)
    for seed in range(given.seeds):
        for row in rows:
            episodes = given.episodes or row.episodes
            for contestant in contestants:
                if contestant == PEER and not row.peer:
                    continue
                if results.has(row, contestant, seed, episodes):
                    continue
                record = run_row(row, contestant, seed, episodes)
                results.add(record)
                say(_line(record))
    names = {row.name for row in rows}
    lines = lines_of(rows, results.runs, episodes=given.episodes)
    if given.format == "json":
        sys.stdout.write(results.document() + "\n")
    elif given.markdown:
        sys.stdout.write(markdown_of(lines) + "\n")
    else:
        sys.stdout.write(f"{results.machine.text}\n\n{text_of(lines)}\n")
    ours = [run for run in results.runs if run.row in names and run.contestant == SHOAL]
    return 0 if ours and all(run.solved for run in ours) else 1


def _line(record: RunRecord) -> str:
    head = f"{record.row} {record.contestant} seed {record.seed}:"
    if record.error:
        return f"{head} {record.error}"
    greedy = record.evaluation_int8 or record.evaluation_fp32
    return (
        f"{head} {'reached' if record.solved else 'NOT reached'}, {record.env_steps:,} steps, "
        f"{record.wall_s or 0:.0f} s, training {record.training_return}, "
        f"greedy {'-' if greedy is None else round(greedy.mean, 1)} {record.note}".rstrip()
    )
