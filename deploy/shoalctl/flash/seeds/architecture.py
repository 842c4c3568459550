"""Which processor's programs an image holds, told from the files of its boot partition."""

from __future__ import annotations

from shoal.errors import FlashFailed
from shoalctl.flash.seeds.settings import Bundle
from shoalctl.flash.seeds.support import BootFiles

ARMHF = "armhf"
_EFI_LOADERS = {"bootaa64.efi": "aarch64", "bootx64.efi": "x86_64", "bootarm.efi": ARMHF}
_KERNEL_ENDINGS = {"-arm64": "aarch64", "-amd64": "x86_64", "-armmp": ARMHF}
_KERNELS_32_BIT = frozenset({"kernel.img", "kernel7.img", "kernel7l.img"})
_KERNELS_64_BIT = frozenset({"kernel8.img", "kernel_2712.img"})


def architecture_of(boot: BootFiles) -> str | None:
    """The processor, as `uname -m` says it, or `armhf`; None if nothing tells.

    Raspberry Pi OS of 32 bits carries the 64-bit kernel too: what tells is that the 32-bit ones are
    there. Elsewhere the EFI loader's name tells, or that of a kernel of Debian's.
    """
    if boot.names & _KERNELS_32_BIT:
        return ARMHF
    if boot.names & _KERNELS_64_BIT:
        return "aarch64"
    found = {_EFI_LOADERS[name] for name in boot.loaders if name in _EFI_LOADERS}
    found |= {
        arch
        for name in boot.names
        for ending, arch in _KERNEL_ENDINGS.items()
        if name.startswith("vmlinuz-") and name.endswith(ending)
    }
    return found.pop() if len(found) == 1 else None


def check_bundle_fits(bundle: Bundle | None, boot: BootFiles) -> None:
    """Checks that what the device is to install runs with the image.

    Raises:
        FlashFailed: It does not.
    """
    arch = architecture_of(boot)
    if bundle is None or arch is None or arch == bundle.arch:
        return
    if arch == ARMHF:
        raise FlashFailed(
            f"this image is a 32-bit one, and bundle {bundle.version} is for {bundle.arch}: use "
            "the 64-bit image"
        )
    raise FlashFailed(
        f"this image is for {arch}, and bundle {bundle.version} is for {bundle.arch}: make a "
        f"bundle with --arch {arch}, or use the other image"
    )
