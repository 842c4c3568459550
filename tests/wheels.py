"""Wheels for tests: a name, a version, what they need, and no code worth the name."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    requires_python: str | None = None,
    content: str = "",
) -> Path:
    """Writes a wheel that pip takes."""
    directory.mkdir(parents=True, exist_ok=True)
    plain = name.replace("-", "_").replace(".", "_")
    folder = f"{plain}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {need}" for need in requires]
    lines += [f"Requires-Python: {requires_python}"] if requires_python else []
    wheel = ["Wheel-Version: 1.0", "Generator: tests", "Root-Is-Purelib: true", f"Tag: {tag}"]
    files = {
        f"{plain}.py": content,
        f"{folder}/METADATA": "\n".join(lines) + "\n",
        f"{folder}/WHEEL": "\n".join(wheel) + "\n",
    }
    record = "".join(f"{path},sha256={_hash(text)},{len(text)}\n" for path, text in files.items())
    files[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n"
    path = directory / f"{plain}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in files.items():
            archive.writestr(zipfile.ZipInfo(entry, (2024, 5, 6, 7, 8, 10)), text)
    return path


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
