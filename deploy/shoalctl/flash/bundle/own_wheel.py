"""Shoal's own wheel, as it runs here: built from the checkout, or packed from what is installed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shoal.errors import ConfigError

DISTRIBUTION = "shoal"
CHECKOUT_PARTS = (
    *("pyproject.toml", "README.md", "LICENSE"),
    *("edge_agent", "cloud_learner", "protos", "deploy"),
)
"""What a wheel is built from."""
_DATE = (2020, 2, 2, 0, 0, 0)
_NOT_OURS = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "uv_cache.json")
"""What an installer adds to the .dist-info directory."""


def find_checkout() -> Path | None:
    """The source tree that this Shoal runs from; None if it is installed.

    Raises:
        ConfigError: It is neither.
    """
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "Shoal is not installed here, so that no wheel of it can be made: pip install -e . in "
            "its checkout"
        ) from error
    found = json.loads(text) if text else {}
    if not found.get("dir_info", {}).get("editable"):
        return None
    checkout = Path(unquote(urlsplit(str(found.get("url"))).path))
    if not (checkout / "pyproject.toml").is_file():
        raise ConfigError(f"Shoal runs from {checkout}, which is not there any more: install anew")
    return checkout


def pack_installed(directory: Path) -> Path:
    """Makes a wheel of the Shoal that is installed here; the same files make the same bytes.

    Raises:
        ConfigError: A file is missing or was changed since it was installed.
    """
    distribution = metadata.distribution(DISTRIBUTION)
    folder = next(
        (
            str(file).partition("/")[0]
            for file in distribution.files or ()
            if ".dist-info/" in str(file)
        ),
        None,
    )
    if folder is None:
        raise ConfigError("the installed Shoal has no list of its files: install it with pip")
    contents: dict[str, bytes] = {}
    for file in distribution.files or ():
        name = file.as_posix()
        if name.startswith("../") or "__pycache__" in name or file.name in _NOT_OURS:
            continue
        try:
            content = file.read_binary()
        except OSError as error:
            raise ConfigError(f"the installed Shoal lacks {name}: install it again") from error
        if file.hash is not None and file.hash.value != _hash(content):
            raise ConfigError(
                f"{file.locate()} was changed since Shoal was installed: install it again, or work "
                "in a checkout (pip install -e .)"
            )
        contents[name] = content
    version = distribution.version
    path = directory / f"{DISTRIBUTION}-{version}-py3-none-any.whl"
    record = f"{folder}/RECORD"
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerows(
        (name, f"sha256={_hash(contents[name])}", len(contents[name])) for name in sorted(contents)
    )
    writer.writerow((record, "", ""))
    contents[record] = rows.getvalue().encode()
    with zipfile.ZipFile(path, "w") as wheel:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, contents[name])
    return path


def _hash(content: bytes) -> str:
    """As RECORD has it."""
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
