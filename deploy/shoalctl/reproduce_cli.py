"""`shoal reproduce`: makes a device's decisions again, from the learner's journal."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.errors import ConfigError, PolicyLogError, PolicyNotKept, ShoalError
from shoalctl.fleet.curve import NO_TRAJECTORIES
from shoalctl.output import Format, write_envelope, write_listing
from shoalctl.reading import reading
from shoalctl.views.reproduction import gone_versions, report_item, report_text

if TYPE_CHECKING:
    from cloud_learner.downlink.kept_policies import KeptPolicies
    from cloud_learner.journal.episodes import WholeEpisode
    from cloud_learner.journal.reader import JournaledChunk, JournaledRun, JournalReader
    from cloud_learner.journal.reproduce import Report, Reproduction, RunnablePolicy
    from shoal.spaces import EnvSpec

reproduce_app = typer.Typer()


class Output(StrEnum):
    """How the result is written."""

    TEXT = "text"
    JSON = "json"


@reproduce_app.command()
def reproduce(
    *,
    state: Annotated[
        Path, typer.Option("--state", help="A learner's state directory, in use or not.")
    ],
    device: Annotated[str, typer.Option(help="Whose decisions.")],
    run: Annotated[
        str | None, typer.Option(help="Beginning of the run's id; by default the newest run.")
    ] = None,
    episode: Annotated[
        int | None, typer.Option(help="Only this episode of the run; 0 is the first.", min=0)
    ] = None,
    seq: Annotated[int | None, typer.Option(help="Only this chunk of the run.", min=0)] = None,
    episodes: Annotated[
        bool, typer.Option("--episodes", help="Only list the whole episodes that are journaled.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            help="How far floats may be off, relative and absolute, where the device's processor "
            "rounds otherwise than this one. 0 compares bit for bit.",
            min=0.0,
        ),
    ] = 0.0,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="json: one envelope on stdout.")
    ] = Output.TEXT,
) -> None:
    """Makes a device's journaled decisions again, and compares them bit for bit.

    Observations come from the journal, noise from run and step, weights from the policy log: each
    action and log-probability has to come out as the device recorded it. Exits with 1 and the first
    difference if one does not: that device is broken, or it lies.
    """
    if episode is not None and seq is not None:
        raise ConfigError("give --episode or --seq, not both")
    if episodes and (episode is not None or seq is not None):
        raise ConfigError("--episodes lists all of a run: leave --episode and --seq out")
    from cloud_learner.downlink.kept_policies import KeptPolicies
    from cloud_learner.journal.reader import JournalReader
    from cloud_learner.journal.reproduce import Reproduction
    from cloud_learner.state_dir import StateDir
    from cloud_learner.training.checkpoint import newest_checkpoint

    place = StateDir(state)
    with JournalReader(place.journal) as journal:
        runs = journal.runs()
        if not runs:
            checkpoint = newest_checkpoint(place.checkpoints)
            if checkpoint is not None and checkpoint.of_gradients:
                raise ShoalError(f"{place.journal}: {NO_TRAJECTORIES}")
        chosen = choose_run(runs, device, run)
        if episodes:
            there = frozenset(KeptPolicies(place.policies).versions())
            _list_episodes(journal, chosen, there, output)
            return
        checkpoint = newest_checkpoint(place.checkpoints)
        if checkpoint is None:
            raise ShoalError(f"{place.checkpoints}: no checkpoint is saved yet: it has the spaces")
        reproduction = Reproduction(
            checkpoint.spec,
            chosen.key.run_id,
            _Policies(KeptPolicies(place.policies), checkpoint.spec).get,
            tolerance=tolerance,
        )
        _compare(reproduction, journal, chosen, episode=episode, seq=seq)
    _tell(reproduction.report, chosen, output)


def _compare(
    reproduction: Reproduction,
    journal: JournalReader,
    run: JournaledRun,
    *,
    episode: int | None,
    seq: int | None,
) -> None:
    """Compares one episode, one chunk, or all that is there of a run."""
    from cloud_learner.journal.reproduce import steps_of

    if episode is not None:
        wanted = _episode(journal, run, episode)
        found = journal.chunks(run.key, first_seq=wanted.first.seq)
        total = wanted.last.seq - wanted.first.seq + 1
        for item in reading(found, "chunks", total=total):
            if item.seq > wanted.last.seq:
                break
            reproduction.add(item, steps_of(wanted, item))
    else:
        total = run.chunks if seq is None else 1
        for item in reading(_chunks(journal, run, seq), "chunks", total=total):
            reproduction.add(item)


def _list_episodes(
    journal: JournalReader, run: JournaledRun, there: frozenset[int], output: Output
) -> None:
    """Writes the whole episodes of a run, and whether the policies that acted are kept."""
    from cloud_learner.journal.reproduce import whole_episodes
    from shoalctl.views.episodes import episode_list

    episodes = whole_episodes(reading(journal.chunks(run.key), "chunks", total=run.chunks))
    listing = episode_list(episodes, there, empty=f"no whole episode is journaled{_gone_text(run)}")
    write_listing(listing, Format.JSON if output is Output.JSON else Format.TABLE)


def choose_run(runs: list[JournaledRun], device: str, run: str | None) -> JournaledRun:
    """The run that is meant.

    Args:
        runs: Those in the journal, the newest last.
        device: Whose.
        run: The beginning of its id in hexadecimal; None for the device's newest.

    Raises:
        ShoalError: There is none, or there are several.
    """
    own = [one for one in runs if one.key.device_id == device]
    if not own:
        known = ", ".join(sorted({one.key.device_id for one in runs})) or "no device"
        raise ShoalError(f"the journal holds no chunk of {device!r}: it has those of {known}")
    if run is None:
        return own[-1]
    found = [one for one in own if one.key.run_id.hex().startswith(run.lower())]
    if len(found) != 1:
        what = "several runs begin" if found else "no run begins"
        known = ", ".join(one.key.run_id.hex() for one in own)
        raise ShoalError(f"{what} with {run!r}: {device} has {known}")
    return found[0]


class _Policies:
    """The policies of a log, each loaded once."""

    def __init__(self, kept: KeptPolicies, spec: EnvSpec) -> None:
        self._kept = kept
        self._spec = spec
        self._there = frozenset(kept.versions())
        self._loaded: dict[tuple[int, bytes], RunnablePolicy | None] = {}

    def get(self, version: int, digest: bytes) -> RunnablePolicy | None:
        """What acted, ready to run: a version, or a twin of it where the digest is the twin's.

        Returns:
            None if it is not kept any more.

        Raises:
            PolicyLogError: It is damaged.
        """
        if version > max(self._there, default=0):  # published since this began
            self._there = frozenset(self._kept.versions())
        if version not in self._there:
            return None
        if (version, digest) not in self._loaded:  # chunks come in order of versions
            self._loaded = {(version, digest): self._load(version, digest)}
        return self._loaded[version, digest]

    def _load(self, version: int, digest: bytes) -> RunnablePolicy | None:
        from cloud_learner.journal.reproduce import RunnablePolicy
        from cloud_learner.quantization.session import (
            open_dynamic_twin,
            open_session,
            open_twin,
        )

        try:
            policy = self._kept.read(version)
        except PolicyNotKept:  # the learner deleted it since this began
            return None
        manifest = policy.manifest
        if manifest.spec_fingerprint != self._spec.fingerprint:
            raise PolicyLogError(f"policy v{version} acts in other spaces than the journal's")
        opens = {manifest.twin_digest: open_twin, manifest.dynamic_twin_digest: open_dynamic_twin}
        precisions = {manifest.twin_digest: "fp32", manifest.dynamic_twin_digest: "int8_dynamic"}
        twin = digest in manifest.twin_digests
        if not twin:
            session = open_session(policy.graph, policy.tensors)
        elif policy.float_graph is not None:
            session = opens[digest](policy.graph, policy.tensors, policy.float_graph)
        else:
            return None
        names = [port.name for port in session.get_outputs()]
        return RunnablePolicy(
            digest=digest if twin else manifest.digest,
            precision=precisions[digest] if twin else manifest.precision,
            noise_correlation=manifest.noise_correlation,
            decide=lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True)),
        )


def _episode(journal: JournalReader, run: JournaledRun, number: int) -> WholeEpisode:
    from cloud_learner.journal.reproduce import nth_episode

    chunks = reading(journal.chunks(run.key), "chunks", total=run.chunks)
    found = nth_episode(chunks, number)
    if found is None:
        raise ShoalError(
            f"run {run.key.run_id.hex()[:8]} of {run.key.device_id} has no whole episode {number} "
            f"in the journal{_gone_text(run)}"
        )
    return found


def _chunks(journal: JournalReader, run: JournaledRun, seq: int | None) -> Iterator[JournaledChunk]:
    if seq is None:
        yield from journal.chunks(run.key)
        return
    item = next(journal.chunks(run.key, first_seq=seq), None)
    if item is None or item.seq != seq:
        near = "" if item is None else f"; the next that is there is {item.seq}"
        raise ShoalError(
            f"run {run.key.run_id.hex()[:8]} of {run.key.device_id} has no chunk {seq} in the "
            f"journal{near}{_gone_text(run) if seq < run.first_seq else ''}"
        )
    yield item


def _gone_text(run: JournaledRun) -> str:
    """What the journal lacks of the beginning of a run; empty if it has it."""
    if run.first_seq == 0:
        return ""
    return (
        f"; it holds the run from chunk {run.first_seq} on (journal.retain_bytes in learner.toml "
        "keeps more), and counts episodes from there"
    )


def _tell(report: Report, run: JournaledRun, output: Output) -> None:
    item = report_item(report, run)
    if output is Output.JSON:
        write_envelope("shoal.v1.Reproduction", [item], Format.JSON)
    else:
        typer.echo(report_text(item))
    if report.chunks == 0:
        raise ShoalError(
            f"nothing could be compared: the policy versions that acted, {gone_versions(item)}, "
            "are not kept any more; a run with higher policies_retain_bytes in learner.toml keeps "
            "them"
        )
    if report.differing:
        raise ShoalError(
            f"{run.key.device_id} recorded {report.differing} decisions that do not come out again"
        )
