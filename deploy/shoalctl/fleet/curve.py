"""`shoal fleet curve`: the learning curve of a learner's journal, as a chart in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shoal.errors import ConfigError, ShoalError
from shoalctl.views.chart import Level, Point, draw_chart, thin

if TYPE_CHECKING:
    from shoal.trajectory import Chunk

WINDOW: Final = 100
KEPT: Final = 4096
_ROWS: Final = 16


def curve(
    *,
    state: Annotated[
        Path, typer.Option("--state", help="A learner's state directory, in use or not.")
    ],
    threshold: Annotated[
        float | None, typer.Option(help="What counts as solved; by default the environment's.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="Whose published score is drawn, such as appo; by default the learner's."
        ),
    ] = None,
) -> None:
    """Draws the mean return of the last 100 episodes over environment steps.

    It is read from the journal, of a learner that runs or not, as far back as that goes; with the
    threshold of the environment and the published score.
    """
    from cloud_learner.journal.reader import JournalReader
    from cloud_learner.state_dir import StateDir
    from cloud_learner.training.published_score import published_score

    try:
        from cloud_learner.training.checkpoint import newest_checkpoint
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"shoal fleet curve needs {error.name}, which is not installed: "
            "pip install 'shoal[learner]'"
        ) from error

    directory = StateDir(state)
    with JournalReader(directory.journal) as journal:
        points = points_of(journal.arrivals(), before=journal.gone_steps())
    if not points:
        raise ShoalError(f"{directory.journal}: no episode has ended yet")
    checkpoint = newest_checkpoint(directory.checkpoints)
    levels = []
    title = "mean return of the last 100 episodes"
    if checkpoint is not None:
        spec, recipe = checkpoint.spec, checkpoint.recipe
        title += f", {spec.env_id}"
        threshold = spec.reward_threshold if threshold is None else threshold
        own = "" if recipe is None else recipe.algorithm.rpartition(":")[2].lower()
        score = published_score(spec.env_id, algorithm or own)
        if score is not None:
            title += f"; published: {score.text}"
            levels.append(Level(score.mean, "published", dotted=True))
    if threshold is not None:
        levels.append(Level(threshold, "threshold"))
    typer.echo(title)
    size = shutil.get_terminal_size((80, 24))
    braille = (sys.stdout.encoding or "").lower().startswith("utf")
    rows = min(_ROWS, size.lines - 2)
    for line in draw_chart(points, levels, width=size.columns, height=rows, braille=braille):
        typer.echo(line)
    last = points[-1]
    typer.echo(f"{last.value:.1f} after {last.steps:,.0f} steps")


def points_of(chunks: Iterable[Chunk], *, before: int = 0) -> list[Point]:
    """The mean return of the last episodes after each chunk in which one ended.

    Args:
        chunks: In the order in which they came.
        before: Environment steps before the first of them.
    """
    points: list[Point] = []
    window: deque[float] = deque(maxlen=WINDOW)
    steps, every, ended = before, 1, 0
    for chunk in chunks:
        steps += chunk.transitions
        if not chunk.episodes:
            continue
        window.extend(episode.total_return for episode in chunk.episodes)
        ended += 1
        if ended % every == 0:
            points.append(Point(steps, sum(window) / len(window)))
        if len(points) > KEPT:
            points, every = thin(points), 2 * every
    if window and points[-1:] != (last := [Point(steps, sum(window) / len(window))]):
        points += last
    return points
