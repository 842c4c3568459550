"""The directory that wheels are kept in, so that the next bundle needs no network.

It holds wheels by their file names, wheels that were built here by the digest of their sources, and
for each question that was answered, which wheels the answer was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from shoal.durable_file import write_durably
from shoal.errors import ConfigError
from shoalctl.flash.bundle.pip import PipFailed, Say, run_pip
from shoalctl.flash.bundle.resolution import NEVER, closure
from shoalctl.flash.bundle.target import Target
from shoalctl.flash.bundle.wheel import Wheel, distribution_name

_BUILT, _ANSWERS, _SCRATCH = "built", "answers", "scratch"
_ROUNDS = 5
_ANSWER_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for.

    Attributes:
        target: For whom.
        given: Wheels that go in as they are.
        requirements: What else is asked for, as pip writes it.
        constraints: Lines of pip's constraints files.
    """

    target: Target
    given: tuple[Wheel, ...]
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The same question has the same key; the contents of given wheels do not matter for it."""
        asked = {
            "schema": _ANSWER_SCHEMA,
            "target": [self.target.arch, self.target.python, self.target.glibc],
            "given": sorted(
                [wheel.name, str(wheel.version), sorted(str(need) for need in wheel.requires)]
                for wheel in self.given
            ),
            "requirements": sorted(self.requirements),
            "constraints": sorted(self.constraints),
        }
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    @property
    def roots(self) -> list[Requirement]:
        """Where the walk begins."""
        return [
            *(Requirement(wheel.name) for wheel in self.given),
            *(Requirement(text) for text in self.requirements),
        ]


class Wheelhouse:
    """Wheels on the disk.

    house = Wheelhouse(Path("~/.cache/shoal/wheels").expanduser(), say=print)
    wheels = house.answer(question, offline=False, refresh=False)
    """

    def __init__(self, directory: Path, say: Say) -> None:
        """Makes the directory.

        Raises:
            ConfigError: It can't be made.
        """
        self._directory = directory
        self._say = say
        try:
            for name in (_BUILT, _ANSWERS):
                (directory / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--wheels {directory}: {error.strerror}") from error

    def built(self, digest: str, build: Callable[[Path], Path]) -> Wheel:
        """A wheel of sources with a digest: kept from before, or built now.

        Args:
            digest: Of the sources.
            build: Builds it in a directory.
        """
        place = self._directory / _BUILT / digest[:32]
        kept = sorted(place.glob("*.whl"))
        if not kept:
            with self.scratch() as scratch:
                wheel = build(scratch)
                place.mkdir(exist_ok=True)
                wheel.replace(place / wheel.name)
            kept = sorted(place.glob("*.whl"))
        return Wheel.read(kept[0])

    def answer(self, question: Question, *, offline: bool, refresh: bool) -> tuple[Wheel, ...]:
        """All wheels that a device needs, the given ones among them, by name.

        Args:
            question: What is asked for.
            offline: Whether the package index is left alone.
            refresh: Whether an earlier answer doesn't count.

        Raises:
            ConfigError: There is no such set of wheels, or not here.
            ConnectionFailed: The package index can't be reached.
            ShoalError: pip failed.
        """
        kept = None if refresh else self._kept(question)
        if kept is None:
            kept = self._ask(question, offline=offline)
            self._keep(question, kept)
        chosen = closure(question.roots, [*question.given, *kept], question.target)
        return tuple(sorted(chosen.wheels.values(), key=lambda wheel: wheel.name))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory on the same disk, gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix=f".{_SCRATCH}-", dir=self._directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _answer_file(self, question: Question) -> Path:
        return self._directory / _ANSWERS / f"{question.key}.json"

    def _kept(self, question: Question) -> list[Wheel] | None:
        """An earlier answer, if its wheels are still here and unchanged."""
        try:
            kept = json.loads(self._answer_file(question).read_bytes())
            wheels = [Wheel.read(self._directory / Path(name).name) for name in kept]
        except (OSError, ValueError, TypeError, ConfigError):
            return None
        if any(kept[wheel.path.name] != wheel.sha256 for wheel in wheels):
            return None
        self._say(f"{len(wheels)} wheels are in {self._directory} from before")
        return wheels

    def _keep(self, question: Question, wheels: Sequence[Wheel]) -> None:
        kept: Mapping[str, str] = {wheel.path.name: wheel.sha256 for wheel in wheels}
        content = json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n"
        write_durably(self._answer_file(question), content)

    def _ask(self, question: Question, *, offline: bool) -> list[Wheel]:
        wanted = list(question.requirements)
        closure(question.roots, question.given, question.target)  # what can be said before asking
        for _ in range(_ROUNDS):
            with self.scratch() as scratch:
                found = self._download(question, wanted, scratch, offline=offline)
                chosen = closure(question.roots, [*question.given, *found], question.target)
                if not chosen.missing:
                    given = {wheel.name for wheel in question.given}
                    return [
                        self._take_in(wheel)
                        for name, wheel in chosen.wheels.items()
                        if name not in given
                    ]
            wanted += [_without_marker(requirement) for requirement in chosen.missing]
        missing = ", ".join(str(requirement) for requirement in chosen.missing)
        raise ConfigError(f"pip does not bring {missing}, though it was asked {_ROUNDS} times")

    def _download(
        self, question: Question, wanted: Sequence[str], scratch: Path, *, offline: bool
    ) -> list[Wheel]:
        target = question.target
        constraints = scratch / "constraints.txt"
        never = [f"{name}<0" for name in sorted(NEVER)]
        constraints.write_text("".join(f"{line}\n" for line in (*question.constraints, *never)))
        out = scratch / "wheels"
        self._say(f"looking for the wheels of {target.description}")
        try:
            run_pip(
                (
                    *("download", "--only-binary=:all:", "--dest", out, "--progress-bar", "off"),
                    *("--python-version", target.python, "--implementation", "cp"),
                    *(f"--platform={platform}" for platform in target.platforms),
                    *("--find-links", self._directory, "--constraint", constraints),
                    *("--retries", "2", "--timeout", "20"),
                    *(("--no-index",) if offline else ()),
                    *(wheel.path for wheel in question.given),
                    *wanted,
                ),
                self._say,
            )
        except PipFailed as error:
            heavy = next((name for name in sorted(NEVER) if f"{name}<0" in error.output), None)
            if heavy is not None:
                raise ConfigError(
                    f"something that was asked for needs {heavy}, which an agent does without: "
                    "look with `pip install --dry-run`, and do without it on devices"
                ) from error
            if error.missing is None:
                raise
            where = f"in {self._directory}" if offline else "at the package index"
            raise ConfigError(
                f"no wheel of {error.missing} for {target.description} {where}: "
                + (
                    "leave --offline away once"
                    if offline
                    else "build one on such a device and give it with --with, or do without it"
                )
            ) from error
        given = {wheel.name for wheel in question.given}
        found = [Wheel.read(path) for path in sorted(out.glob("*.whl"))]
        return [wheel for wheel in found if wheel.name not in given]

    def _take_in(self, wheel: Wheel) -> Wheel:
        place = self._directory / wheel.path.name
        wheel.path.replace(place)
        return Wheel.read(place)


def _without_marker(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{distribution_name(requirement.name)}{extras}{requirement.specifier}"
