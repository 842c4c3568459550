"""A directory that a wheel is built from: what counts in it, its digest, and a copy to build in.

Building happens in a copy, since some build backends leave their own files beside the sources and
would pack stale ones the next time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from shoal.errors import ConfigError
from shoalctl.flash.bundle.pip import PipFailed, Say, run_pip

MAX_TREE_BYTES = 512 << 20
_IGNORED = (
    *("__pycache__", "*.pyc", "*.egg-info", ".git", ".venv*", ".venvs", ".tox", ".nox"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".import_linter_cache"),
)
_IGNORED_ON_TOP = ("build", "dist", "venv", "env")


def tree_digest(root: Path, only: Sequence[str] = ()) -> str:
    """The sha256 of what counts in a directory, by names and contents.

    Args:
        root: The directory.
        only: What of it is looked at; empty: all.

    Raises:
        ConfigError: It can't be read, or is too large to be sources.
    """
    digest, total = hashlib.sha256(), 0
    try:
        for path in _files(root, only):
            content = path.read_bytes()
            total += len(content)
            if total > MAX_TREE_BYTES:
                raise ConfigError(
                    f"{root}: over {MAX_TREE_BYTES >> 20} MiB; build a wheel of it, and give that"
                )
            name = str(path.relative_to(root)).encode("utf-8", "surrogateescape")
            digest.update(hashlib.sha256(name).digest() + hashlib.sha256(content).digest())
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    return digest.hexdigest()


def build_wheel(
    root: Path, scratch: Path, say: Say, *, only: Sequence[str] = (), backend: str | None = None
) -> Path:
    """Builds a wheel, in a copy.

    Args:
        root: A directory with a pyproject.toml or a setup.py.
        scratch: An empty directory.
        say: Told what happens.
        only: What of it is needed; empty: all.
        backend: A module that builds it; if it is installed here, nothing is fetched for that.

    Raises:
        ConfigError: It is no project, or it does not build.
        ConnectionFailed: What it builds with can't be fetched.
    """
    import importlib.util

    if not any((root / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise ConfigError(f"{root} has no pyproject.toml and no setup.py: nothing to build there")
    copy, out = scratch / "tree", scratch / "built"
    shutil.copytree(
        root,
        copy,
        symlinks=True,
        ignore=lambda place, names: _ignored(names, only, on_top=Path(place) == root),
    )
    if not only and (root / ".git").exists():  # where the version comes from its tags
        (copy / ".git").symlink_to((root / ".git").resolve())
    here = backend is not None and importlib.util.find_spec(backend) is not None
    isolation = ("--no-build-isolation",) if here else ()
    say(f"building a wheel of {root}")
    try:
        run_pip(("wheel", "--no-deps", *isolation, "--wheel-dir", out, copy), say)
    except PipFailed as error:
        raise ConfigError(f"{root} does not build: {error}") from error
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise ConfigError(f"{root} built {len(wheels)} wheels where it should be one")
    return wheels[0]


def _files(root: Path, only: Sequence[str]) -> Iterator[Path]:
    for directory, folders, names in os.walk(root):
        on_top = Path(directory) == root
        folders[:] = sorted(set(folders) - _ignored(folders, only, on_top=on_top))
        for name in sorted(set(names) - _ignored(names, only, on_top=on_top)):
            path = Path(directory, name)
            if path.is_file():
                yield path


def _ignored(names: list[str], only: Sequence[str], *, on_top: bool) -> set[str]:
    patterns = (*_IGNORED, *_IGNORED_ON_TOP) if on_top else _IGNORED
    ignored = {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
    return ignored | (set(names) - set(only) if on_top and only else set())
