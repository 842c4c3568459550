"""Means over seeds, a table for people, and one for docs/learning.md."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.evaluate import Evaluation
from bench.report import Cell, table
from bench.suite_rows import LAG, Row
from bench.suite_run import PEER, SHOAL, RunRecord, settings_of

from cloud_learner.training.published_score import published_score


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean, the standard deviation over seeds, and of how many."""

    mean: float
    std: float
    count: int

    def text(self, digits: int = 1) -> str:
        """Mean and deviation for people; one run has no deviation."""
        spread = f" ± {self.std:,.{digits}f}" if self.count > 1 else ""
        return f"{self.mean:,.{digits}f}{spread}"


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Over the runs that have a value; None if none has."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else 0.0
    return Spread(statistics.fmean(known), std, len(known))


@dataclass(frozen=True, slots=True)
class Line:
    """A row and its good runs, by contestant."""

    row: Row
    shoal: Sequence[RunRecord]
    peer: Sequence[RunRecord]


def lines_of(
    rows: Sequence[Row], runs: Sequence[RunRecord], *, episodes: int | None = None
) -> list[Line]:
    """Rows that have a run with the settings they have now.

    Args:
        rows: Which.
        runs: All that the file holds.
        episodes: Evaluated for each policy; None for what each row says.
    """
    lines = [
        Line(row, *(_good(row, runs, contestant, episodes) for contestant in (SHOAL, PEER)))
        for row in rows
    ]
    return [line for line in lines if line.shoal or line.peer]


def _good(
    row: Row, runs: Sequence[RunRecord], contestant: str, episodes: int | None
) -> list[RunRecord]:
    settings = settings_of(row, contestant, episodes or row.episodes)
    wanted = (row.name, contestant, settings, "")
    return [run for run in runs if (run.row, run.contestant, run.settings, run.error) == wanted]


HEADINGS = (
    "row",
    "bar",
    "reached",
    "steps to it",
    "seconds to it",
    "training return",
    "fp32, greedy",
    "int8, greedy",
    "int8 loss",
    "s.e.",
    "gap quant.",
    "gap stale.",
    "lag p50/p99/max",
)


def cells_of(line: Line) -> list[str]:
    """What a row came to."""
    runs = line.shoal
    return [
        line.row.name,
        f"{line.row.bar:g} in {line.row.steps:,}",
        f"{sum(run.solved for run in runs)} of {len(runs)}",
        _text(runs, lambda run: run.solved_steps, 0),
        _text(runs, lambda run: run.solved_s),
        _text(runs, lambda run: run.training_return),
        _text(runs, lambda run: _mean(run.evaluation_fp32)),
        _text(runs, lambda run: _mean(run.evaluation_int8)),
        _text(runs, lambda run: run.int8_loss_percent, 2, " %"),
        _error(runs),
        _text(runs, lambda run: run.gap_quantization, 5),
        _text(runs, lambda run: run.gap_staleness, 5),
        _lag(runs),
    ]


def text_of(lines: Sequence[Line]) -> str:
    """A table for people, the peers and the published scores below."""
    rows: list[Sequence[Cell]] = [cells_of(line) for line in lines if line.shoal]
    beside = [_beside(line) for line in lines if _beside(line)[1:] != ["-", "-", "-", "-"]]
    parts = [table(HEADINGS, rows)] if rows else []
    if beside:
        parts.append(table(BESIDE_HEADINGS, beside))
    return "\n\n".join(parts) or "no run yet"


BESIDE_HEADINGS = (
    "row",
    "published",
    "peer reached",
    "peer steps, seconds to it",
    "peer, greedy",
)


def _beside(line: Line) -> list[str]:
    published = published_score(line.row.env, line.row.algorithm)
    runs = line.peer
    reached = f"{sum(run.solved for run in runs)} of {len(runs)}" if runs else "-"
    steps, seconds = (
        _text(runs, lambda run: run.solved_steps, 0),
        _text(runs, lambda run: run.solved_s),
    )
    return [
        line.row.name,
        "-" if published is None else f"{published.mean:g} ({published.algorithm})",
        reached,
        "-" if not runs else f"{steps}, {seconds}",
        _text(runs, lambda run: _mean(run.evaluation_fp32)),
    ]


def markdown_of(lines: Sequence[Line]) -> str:
    """The tables of docs/learning.md."""
    lag = {row.name for row in LAG}
    classic = [line for line in lines if line.row.name not in lag and line.shoal]
    swept = [line for line in lines if line.row.name in lag and line.shoal]
    parts = []
    if classic:
        headings = ["", *HEADINGS[1:], *BESIDE_HEADINGS[1:]]
        cells = [[line.row.title, *cells_of(line)[1:], *_beside(line)[1:]] for line in classic]
        parts.append(_markdown(headings, cells))
    if swept:
        cells = [[line.row.title, *cells_of(line)[2:]] for line in swept]
        parts.append(_markdown(["CartPole-v1, APPO", *HEADINGS[2:]], cells))
    return "\n\n".join(parts)


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(headings) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def _text(
    runs: Sequence[RunRecord],
    value: Callable[[RunRecord], float | None],
    digits: int = 1,
    unit: str = "",
) -> str:
    spread = spread_of(value(run) for run in runs)
    return "-" if spread is None else f"{spread.text(digits)}{unit}"


def _error(runs: Sequence[RunRecord]) -> str:
    """The standard error of the mean loss of these very policies: of their episodes, not seeds."""
    lost = [run for run in runs if run.int8_loss_percent is not None]
    errors = [loss.error for run in lost if (loss := run.loss) is not None]
    if not errors or len(errors) < len(lost):
        return "-"
    return f"{math.hypot(*errors) / len(errors):.2f} %"


def _mean(evaluation: Evaluation | None) -> float | None:
    return None if evaluation is None else evaluation.mean


def _lag(runs: Sequence[RunRecord]) -> str:
    spreads = [spread_of(run.lag.get(name) for run in runs) for name in ("p50", "p99", "max")]
    return "/".join("-" if spread is None else f"{spread.mean:.0f}" for spread in spreads)
