"""What the tests of emulated devices share: what they need of this machine, and the built roots."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from device.root_cache import RootCache, usual_directory
from device.shell import SshKey

NEEDED = {
    "debootstrap": "debootstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "update-binfmts": "binfmt-support",
    "qemu-system-x86_64": "qemu-system-x86",
    "ssh": "openssh-client",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "mkfs.ext4": "e2fsprogs",
    "unshare": "util-linux",
}
"""Programs, and the packages of Debian that bring them."""


@pytest.fixture(scope="session")
def cache() -> RootCache:
    """Where the roots are."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    packages = sorted({NEEDED[name] for name in NEEDED if shutil.which(name, path=path) is None})
    if packages:
        pytest.fail(f"emulated devices need more: apt-get install {' '.join(packages)}")
    if os.geteuid() != 0:
        pytest.fail("emulated devices need root: roots are built, and namespaces made")
    return RootCache(usual_directory())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for gigabytes, which are gone in the end."""
    directory = tmp_path_factory.mktemp("device")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def key(workplace: Path) -> SshKey:
    """Who logs in."""
    return SshKey.make(workplace)
