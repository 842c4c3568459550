"""`shoal fleet curve`: the learning curve of a learner, as a chart in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from shoal.errors import ConfigError, ConnectionFailed, ShoalError
from shoalctl.reading import reading
from shoalctl.views.chart import Level, Point, draw_chart

if TYPE_CHECKING:
    from shoal.trajectory import Chunk
    from shoalctl.fleet.client import FleetClient

WINDOW: Final = 100
DEFAULT_SERVER: Final = "127.0.0.1:50051"
WATCH_S: Final = 2.0
"""Between two charts of `--watch`."""
_SHARE: Final = 0.1
"""Of its time that a watch may spend on reading a journal."""
_ROWS: Final = 16
NO_TRAJECTORIES: Final = (
    'training.mode = "gradients" keeps no trajectories: devices send gradients, and the journal '
    "stays empty; a running learner tells the curve, `shoal fleet curve --server`"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """What there is to draw.

    Attributes:
        points: Mean return over environment steps.
        env_id: Empty: not known yet.
        threshold: What counts as solved; None: nothing does.
        algorithm: Its short name, or the class's; empty: not known yet.
        about: Whose it is, for a message.
        empty: Why there are no points, where there are none.
    """

    points: list[Point]
    env_id: str = ""
    threshold: float | None = None
    algorithm: str = ""
    about: str = field(default="", compare=False)
    empty: str = field(default="no episode has ended yet", compare=False)


def curve(
    *,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="A learner's state directory, in use or not."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "-s",
            envvar="SHOAL_OPERATOR_SERVER",
            help=f"Or a running learner, host:port. (default: {DEFAULT_SERVER})",
        ),
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
    threshold: Annotated[
        float | None, typer.Option(help="What counts as solved; by default the environment's.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="Whose published score is drawn, such as appo; by default the learner's."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw it again and again, until Ctrl-C.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="How long the learner's answer may take.")
    ] = 10.0,
) -> None:
    """Draws the mean return of the last 100 episodes over environment steps.

    With --state it is read from the journal, of a learner that runs or not, as far back as that
    goes; with --server a running learner tells it since it was started, in every mode. With the
    threshold of the environment and the published score.
    """
    with _source(state, server, identity, timeout_s, watch=watch) as read:
        if watch:
            watch_curve(read, lambda found: lines_of(found, threshold, algorithm))
            return
        found = read()
    if not found.points:
        raise ShoalError(f"{found.about}: {found.empty}")
    for line in lines_of(found, threshold, algorithm):
        typer.echo(line)


@contextmanager
def _source(
    state: Path | None, server: str | None, identity: Path | None, timeout_s: float, *, watch: bool
) -> Iterator[Callable[[], Curve]]:
    """What reads the curve as it is now."""
    if state is not None:
        journaled = _Journaled(state)
        yield journaled.read if watch else lambda: journaled.read(progress=True)
        return
    if identity is None:
        raise ConfigError(
            "give --state, a learner's state directory; or --identity, the operator's, and --server"
        )
    from shoal.identity import Identity
    from shoalctl.fleet.client import FleetClient

    where = server or DEFAULT_SERVER
    with FleetClient(where, Identity.load(identity), timeout_s=timeout_s) as client:
        yield lambda: _told(client, where)


def _told(client: FleetClient, where: str) -> Curve:
    """What a running learner tells."""
    told = client.curve()
    return Curve(
        [Point(each.env_steps, each.return_mean) for each in told.points],
        told.env_id,
        told.reward_threshold if told.HasField("reward_threshold") else None,
        _short(told.algorithm),
        where,
    )


class _Journaled:
    """What a learner's state directory holds."""

    def __init__(self, path: Path) -> None:
        from cloud_learner.state_dir import StateDir

        self._directory = StateDir(path)

    def read(self, *, progress: bool = False) -> Curve:
        """The curve, as far back as the journal goes; on request stderr says how far it is."""
        from cloud_learner.journal.reader import JournalReader

        try:
            from cloud_learner.training.checkpoint import newest_checkpoint
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"shoal fleet curve --state needs {error.name}, which is not installed: "
                "pip install 'shoal[learner]'; --server needs nothing more"
            ) from error
        with JournalReader(self._directory.journal) as journal:
            chunks: Iterable[Chunk] = journal.arrivals()
            if progress:
                total = sum(run.chunks for run in journal.runs())
                chunks = reading(chunks, "chunks", total=total)
            points = points_of(chunks, before=journal.gone_steps())
        about = str(self._directory.journal)
        checkpoint = newest_checkpoint(self._directory.checkpoints)
        if checkpoint is None:
            return Curve(points, about=about)
        spec, recipe = checkpoint.spec, checkpoint.recipe
        algorithm = "" if recipe is None else _short(recipe.algorithm)
        if checkpoint.of_gradients:
            return Curve(
                points, spec.env_id, spec.reward_threshold, algorithm, about, NO_TRAJECTORIES
            )
        return Curve(points, spec.env_id, spec.reward_threshold, algorithm, about)


def watch_curve(
    read: Callable[[], Curve],
    lines: Callable[[Curve], list[str]],
    *,
    out: TextIO | None = None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Shows the curve again whenever it went on: in place on a terminal, else a line each.

    Args:
        read: The curve now; it may take a while, which the next waits for longer.
        lines: Of a chart; the last says where it is.
        out: Where to; stdout if None.
        wait: Sleeps, in seconds.
        clock: Monotonic seconds.

    Raises:
        ShoalError: It cannot be read; a learner that is away is waited for.
    """
    out = out or sys.stdout
    shown, lost = Curve([]), False
    with _screen(out) as show:
        while True:
            began_s = clock()
            try:
                found = read()
            except ConnectionFailed as error:
                if not lost:
                    sys.stderr.write(f"shoal: {error}; trying again\n")
                found, lost = shown, True
            else:
                lost = False
            if found.points and found != shown:
                shown = found
                show(lines(found))
            wait(max(WATCH_S, (clock() - began_s) / _SHARE))


@contextmanager
def _screen(out: TextIO) -> Iterator[Callable[[list[str]], None]]:
    """What shows lines in the place of those before, or the last of them where that cannot be."""
    if not out.isatty():

        def write(lines: list[str]) -> None:
            out.write(f"{lines[-1]}\n")
            out.flush()

        yield write
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=out), auto_refresh=False) as live:
        yield lambda lines: live.update(Text("\n".join(lines)), refresh=True)


def lines_of(found: Curve, threshold: float | None, algorithm: str | None) -> list[str]:
    """The chart, its title above and where it is below.

    Args:
        found: What is drawn.
        threshold: What counts as solved; None: what the environment says.
        algorithm: Whose published score is drawn; None: the learner's own.
    """
    from cloud_learner.training.published_score import published_score

    levels = []
    title = "mean return of the last 100 episodes"
    if found.env_id:
        title += f", {found.env_id}"
        score = published_score(found.env_id, algorithm or found.algorithm)
        if score is not None:
            title += f"; published: {score.text}"
            levels.append(Level(score.mean, "published", dotted=True))
    goal = found.threshold if threshold is None else threshold
    if goal is not None:
        levels.append(Level(goal, "threshold"))
    size = shutil.get_terminal_size((80, 24))
    chart = draw_chart(
        found.points,
        levels,
        width=size.columns,
        height=min(_ROWS, size.lines - 2),
        braille=(sys.stdout.encoding or "").lower().startswith("utf"),
    )
    last = found.points[-1]
    return [title, *chart, f"{last.value:.1f} after {last.steps:,.0f} steps"]


def points_of(chunks: Iterable[Chunk], *, before: int = 0) -> list[Point]:
    """The mean return of the last episodes after each chunk in which one ended.

    Args:
        chunks: In the order in which they came.
        before: Environment steps before the first of them.
    """
    from cloud_learner.training.learning_curve import LearningCurve

    curve = LearningCurve()
    window: deque[float] = deque(maxlen=WINDOW)
    steps = before
    for chunk in chunks:
        steps += chunk.transitions
        if chunk.episodes:
            window.extend(episode.total_return for episode in chunk.episodes)
            curve.note(steps, sum(window) / len(window))
    if window and curve.points[-1].env_steps != steps:
        curve.note(steps, sum(window) / len(window))
    return [Point(each.env_steps, each.return_mean) for each in curve.points]


def _short(path: str) -> str:
    return path.rpartition(":")[2].lower()
