"""The files of `deploy/edge`, which devices are given: where they lie, and what is in them."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import ConfigError

_MARK = "install.sh"


def edge_directory() -> Path:
    """`deploy/edge`: in a checkout as it is there, in an installation within the package.

    Raises:
        ConfigError: It is not there.
    """
    package = Path(__file__).parents[1]
    for place in (package / "edge", package.parent / "edge"):
        if (place / _MARK).is_file():
            return place
    raise ConfigError(f"{package / 'edge'} is missing: install Shoal again")


def edge_text(name: str, directory: Path | None = None) -> str:
    """The text of one of these files.

    Args:
        name: Of the file.
        directory: Where it lies; None: `edge_directory()`.

    Raises:
        ConfigError: It is not there.
    """
    path = (directory or edge_directory()) / name
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; install Shoal again") from error
