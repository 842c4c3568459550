"""Which processor an image is for, told from its boot partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import FlashFailed
from shoalctl.flash.seeds.architecture import architecture_of, check_bundle_fits
from shoalctl.flash.seeds.settings import Bundle
from shoalctl.flash.seeds.support import BootFiles


def boot(*names: str, loaders: tuple[str, ...] = ()) -> BootFiles:
    return BootFiles("bootfs", frozenset(names), loaders=frozenset(loaders))


@pytest.mark.parametrize(
    ("files", "arch"),
    [
        (boot("kernel8.img", "kernel_2712.img"), "aarch64"),
        (boot("kernel.img", "kernel7.img", "kernel7l.img", "kernel8.img"), "armhf"),
        (boot("efi", loaders=("bootx64.efi", "grubx64.efi")), "x86_64"),
        (boot("efi", loaders=("bootaa64.efi",)), "aarch64"),
        (boot("efi", loaders=("bootaa64.efi", "bootx64.efi")), None),
        (boot("vmlinuz-6.1.0-31-amd64"), "x86_64"),
        (boot("vmlinuz-6.1.0-31-cloud-arm64"), "aarch64"),
        (boot("vmlinuz-6.1.0-31-armmp"), "armhf"),
        (boot("user-data"), None),
    ],
)
def test_the_processor_is_told_by_kernels_and_loaders(files: BootFiles, arch: str | None) -> None:
    assert architecture_of(files) == arch


def test_only_what_is_known_to_differ_is_refused() -> None:
    bundle = Bundle(Path("bundle"), "0" * 64, "aarch64", "1.0")
    check_bundle_fits(None, boot("vmlinuz-6.1.0-31-amd64"))
    check_bundle_fits(bundle, boot("user-data"))
    check_bundle_fits(bundle, boot("kernel8.img"))
    for files, words in ((boot("kernel7.img"), "32-bit"), (boot("vmlinuz-1-amd64"), "x86_64")):
        with pytest.raises(FlashFailed, match=words):
            check_bundle_fits(bundle, files)
