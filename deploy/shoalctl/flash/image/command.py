"""`shoal flash image`: checks, asks, and lets the flasher work. Constructs what it needs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ConfigError, FlashFailed
from shoalctl.flash.image.block_io import BlockIo, OsBlockIo
from shoalctl.flash.image.confirm import check_consent, check_expectations, parse_size
from shoalctl.flash.image.fat import check_installed
from shoalctl.flash.image.flasher import Flashed, Flasher, FlashInterrupted
from shoalctl.flash.image.journal import FlashJournal
from shoalctl.flash.image.progress import progress_on
from shoalctl.flash.image.source import ImageSource
from shoalctl.flash.image.stages import Progress, Stage
from shoalctl.flash.image.staging import Staged, stage
from shoalctl.flash.image.target import Target, check_target, check_unchanged, find_target
from shoalctl.flash.seeds.settings import DeviceSettings
from shoalctl.flash.seeds.support import SeedFormat

JOURNAL_SUFFIX = ".flash-journal"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SIDECAR_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FlashOptions:
    """What was typed after `shoal flash image`; secrets are in `settings`, which hides them."""

    image: Path
    to: Path
    settings: DeviceSettings = field(default_factory=DeviceSettings)
    sha256: str | None = None
    image_sha256: str | None = None
    seed_as: str | None = None
    size: str | None = None
    yes: bool = False
    expect_serial: str | None = None
    expect_size: str | None = None
    allow_internal: bool = False
    resume: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class FlashReport:
    """What `shoal flash image` did, or would do.

    Attributes:
        target: Where to.
        staged: What.
        file_sha256: Of the image file.
        sha256_compared: Whether a digest was known and is the same.
        instance_id: What the device was given; None without seeds.
        flashed: How it went; None for a dry run.
    """

    target: Target
    staged: Staged
    file_sha256: str
    sha256_compared: bool
    instance_id: str | None
    flashed: Flashed | None


def run_flash(
    options: FlashOptions,
    *,
    ask: Callable[[str, str], None] | None,
    io: BlockIo | None = None,
    progress: Progress | None = None,
) -> FlashReport:
    """Writes an image.

    Args:
        options: What was typed.
        ask: Asks a person to type an answer, and raises if it isn't typed; None without a person.
        io: The operating system, unless a test puts faults before it.
        progress: Who hears how it goes; stderr if nobody else.

    Raises:
        ConfigError: An argument is wrong, or the target is refused. Nothing was written.
        FlashFailed: It did not work; the text says in which state the target is.
        FlashInterrupted: Ctrl-C; the same.
    """
    if not options.settings.is_empty:
        check_installed()
    source = ImageSource.open(options.image)
    target = find_target(
        options.to, file_bytes=None if options.size is None else parse_size(options.size)
    )
    if target.path == options.image.resolve():
        raise ConfigError("--image and --to are the same file: nothing was written")
    needed = source.size_bytes or 0
    check_target(target, required_bytes=needed, allow_internal=options.allow_internal)
    journal = _journal(options, target)
    _confirm(options, target, ask)
    with ExitStack() as stack:
        shown = progress or stack.enter_context(progress_on(sys.stderr))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-flash-")))
        return _flash(options, source, target, journal, directory, io or OsBlockIo(), shown)


def _flash(
    options: FlashOptions,
    source: ImageSource,
    target: Target,
    journal: FlashJournal,
    directory: Path,
    io: BlockIo,
    progress: Progress,
) -> FlashReport:
    try:
        file_sha256, compared = _checked(options, source, progress)
        progress.begin(Stage.PREPARE, None)
        staged = stage(
            source,
            options.settings,
            directory,
            instance_id=journal.instance_id,
            seed_format=_seed_format(options.seed_as),
            advance=progress.advance,
        )
    except KeyboardInterrupt as error:
        raise FlashInterrupted(f"interrupted: nothing was written to {target.path}") from error
    check_target(
        target,
        required_bytes=staged.required_bytes,
        allow_internal=options.allow_internal,
    )
    expected = _digest("--image-sha256", options.image_sha256)
    flashed = None
    if not options.dry_run:
        check_unchanged(target)
        if not options.resume:
            journal.remove()
        flashed = Flasher(io, progress).flash(
            staged, target, journal, resume=options.resume, expected_sha256=expected
        )
    instance_id = journal.instance_id if staged.seeds else None
    return FlashReport(
        target, staged, file_sha256, compared or expected is not None, instance_id, flashed
    )


def _confirm(options: FlashOptions, target: Target, ask: Callable[[str, str], None] | None) -> None:
    """Makes sure that this target is meant."""
    if options.resume and target.disk is None:
        return  # its journal lies beside it: it was confirmed when this flash began
    expected = options.expect_serial is not None or options.expect_size is not None
    if target.exists:
        check_expectations(
            target, expect_serial=options.expect_serial, expect_size=options.expect_size
        )
    if options.dry_run:
        return
    asked = check_consent(target, yes=options.yes, expected=expected, interactive=ask is not None)
    if asked and ask is not None:
        name = target.path.name
        ask(
            f"Everything on {target.description} will be lost.\n"
            f"Type its name, {name}, to write {options.image.name} to it",
            name,
        )


def _checked(options: FlashOptions, source: ImageSource, progress: Progress) -> tuple[str, bool]:
    """The digest of the image file, and whether it was compared with a known one."""
    expected = _digest("--sha256", options.sha256) or _sidecar(options.image)
    progress.begin(Stage.CHECK, source.file_bytes)
    found = source.sha256(progress.advance)
    if expected not in {None, found}:
        raise FlashFailed(
            f"{options.image} has the sha256 {found}, and {expected} was expected: "
            "download it again; nothing was written"
        )
    return found, expected is not None


def _sidecar(image: Path) -> str | None:
    """The digest in `IMAGE.sha256`, as `sha256sum` writes it, if that file is there."""
    path = image.with_name(f"{image.name}.sha256")
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_SIDECAR_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    words = [line.split() for line in lines if line.strip()]
    named = [line[0] for line in words if len(line) > 1 and line[1].lstrip("*") == image.name]
    only = [words[0][0]] if len(words) == 1 else []
    for digest in (*named, *only):
        return _digest(str(path), digest)
    raise ConfigError(f"{path} doesn't say the digest of {image.name}: remove it, or give --sha256")


def _journal(options: FlashOptions, target: Target) -> FlashJournal:
    path = _journal_path(target)
    if options.resume:
        return FlashJournal.load(path, target.identity)
    name = options.settings.hostname or "device"
    return FlashJournal(path, target.identity, f"{name}-{uuid.uuid4().hex}")


def _journal_path(target: Target) -> Path:
    if target.disk is None:
        return target.path.with_name(f"{target.path.name}{JOURNAL_SUFFIX}")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", target.disk.serial or target.disk.name)
    return Path(home) / "shoal" / "flash" / f"{name}.json"


def _seed_format(name: str | None) -> SeedFormat | None:
    if name is None:
        return None
    try:
        return SeedFormat(name)
    except ValueError as error:
        raise ConfigError(f"--seed-as {name!r}: use {' or '.join(list(SeedFormat))}") from error


def _digest(option: str, value: str | None) -> str | None:
    if value is None:
        return None
    digest = value.strip().lower()
    if not _SHA256.fullmatch(digest):
        raise ConfigError(f"{option}: a sha256 has 64 hexadecimal digits")
    return digest
