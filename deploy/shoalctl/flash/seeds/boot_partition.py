"""A boot partition outside its image: looked at, seeded, and checked again on the card."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.errors import FlashFailed
from shoalctl.flash.image.fat import FatHeader, FatVolume
from shoalctl.flash.seeds import kernel_command_line
from shoalctl.flash.seeds.cloud_init import cloud_init_files
from shoalctl.flash.seeds.first_boot import BUNDLE_NAME, DIGEST_NAME, DIRECTORY, TOKEN_NAME
from shoalctl.flash.seeds.first_run import FIRST_RUN_NAME, first_run_script
from shoalctl.flash.seeds.settings import DeviceSettings
from shoalctl.flash.seeds.support import CIDATA, BootFiles, Family, SeedFormat, Support

_COMMAND_LINE, _ISSUE = "cmdline.txt", "issue.txt"
_LOADERS = ("efi", "boot")


@dataclass(frozen=True, slots=True)
class SeedFile:
    """A file that must be on the card in the end.

    Attributes:
        name: Its path in the boot partition.
        sha256: Its digest, in hexadecimal.
    """

    name: str
    sha256: str


def look(volume: FatVolume, header: FatHeader) -> BootFiles:
    """What is seen of a boot partition.

    Raises:
        FlashFailed: Its file system is damaged.
    """
    names = frozenset(name.lower() for name in volume.names())

    def text(name: str) -> str:
        return volume.read(name).decode("utf-8", "replace") if name in names else ""

    directory, loaders = "", names
    for part in _LOADERS:
        directory = f"{directory}/{part}".lstrip("/")
        loaders = frozenset(
            name.lower() for name in (volume.names(directory) if part in loaders else ())
        )
    return BootFiles(header.label, names, text(_ISSUE), text(_COMMAND_LINE), loaders)


def seed(
    volume: FatVolume,
    header: FatHeader,
    boot: BootFiles,
    support: Support,
    settings: DeviceSettings,
    instance_id: str,
) -> tuple[SeedFile, ...]:
    """Writes the seed files of a device, in the place of those of an earlier flash.

    Args:
        volume: The boot partition, on this machine.
        header: What its first sector says.
        boot: What was seen of it.
        support: How the image is seeded.
        settings: What the device is told.
        instance_id: Unique to this flash.

    Returns:
        What was written.

    Raises:
        FlashFailed: The image can't be seeded, or its boot partition is full or damaged.
    """
    if support.format is None:
        raise FlashFailed(f"this image can't be told its settings: {support.reason}")
    if support.format is SeedFormat.CLOUD_INIT:
        files = cloud_init_files(
            settings, support.family, instance_id=instance_id, volume_id=header.volume_id
        )
    else:
        files = {FIRST_RUN_NAME: first_run_script(settings, volume_id=header.volume_id)}
    line = _command_line(boot, support, settings, instance_id)
    if line is not None:
        files[_COMMAND_LINE] = line.encode()
    if support.needs_label:
        volume.set_label(CIDATA.upper())
    for stale in {DIRECTORY, FIRST_RUN_NAME} & boot.names:
        volume.remove(stale)
    written = [_written(volume, name, content) for name, content in files.items()]
    return (*written, *_own_files(volume, settings))


def check(volume: FatVolume, seeds: Sequence[SeedFile], done: Callable[[], None]) -> None:
    """Checks that every seed file is on the card as it should be.

    Args:
        volume: The boot partition, on the card.
        seeds: What was written.
        done: Called after each file.

    Raises:
        FlashFailed: One is missing or differs.
    """
    for file in seeds:
        if volume.sha256(file.name) != file.sha256:
            raise FlashFailed(f"{file.name} on the card is not what was written")
        done()


def _own_files(volume: FatVolume, settings: DeviceSettings) -> tuple[SeedFile, ...]:
    bundle, token = settings.bundle, settings.token
    if not bundle and not token:
        return ()
    volume.make_directory(DIRECTORY)
    written = []
    if bundle:
        line = f"{bundle.sha256}  {BUNDLE_NAME}\n".encode()
        written.append(_written(volume, f"{DIRECTORY}/{DIGEST_NAME}", line))
        name = f"{DIRECTORY}/{BUNDLE_NAME}"
        volume.write(name, bundle.path)
        written.append(SeedFile(name, bundle.sha256))
    if token:
        written.append(_written(volume, f"{DIRECTORY}/{TOKEN_NAME}", f"{token}\n".encode()))
    return tuple(written)


def _written(volume: FatVolume, name: str, content: bytes) -> SeedFile:
    volume.write(name, content)
    return SeedFile(name, hashlib.sha256(content).hexdigest())


def _command_line(
    boot: BootFiles, support: Support, settings: DeviceSettings, instance_id: str
) -> str | None:
    """The changed kernel command line; None if it stays as it is, or there is none."""
    if not boot.cmdline.strip():
        return None
    line = boot.cmdline
    if support.format is SeedFormat.FIRST_RUN:
        line = kernel_command_line.with_first_run(line)
    else:
        line = kernel_command_line.with_instance_id(line, instance_id)
    if settings.wifi and support.family is Family.RASPBERRY_PI_OS:
        line = kernel_command_line.with_country(line, settings.wifi.country)
    return None if line == boot.cmdline else line
