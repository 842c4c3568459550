"""An environment package of a user's, as wheels made on the spot: one that works, one that doesn't.

Both step CartPole-v1. The second passes every check, and fails where it acts: what an update that
was tried at a desk looks like.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

ENV_ID = "reef_env:make"
GOOD, BROKEN = "1.0.0", "2.0.0"
FAULT = "the arm's driver speaks another protocol"

_GOOD_SOURCE = """\
import gymnasium


def make():
    return gymnasium.make("CartPole-v1")
"""
_BROKEN_SOURCE = f"""\
import os

import gymnasium


class Arm(gymnasium.Wrapper):
    def step(self, action):
        if "SHOAL_SLOT" in os.environ:  # as the launcher starts it
            raise RuntimeError("{FAULT}")
        return self.env.step(action)


def make():
    return Arm(gymnasium.make("CartPole-v1"))
"""


def reef_env_wheel(directory: Path, version: str) -> Path:
    """The wheel of a version.

    Args:
        directory: Where it goes.
        version: `GOOD` or `BROKEN`.
    """
    info = f"reef_env-{version}.dist-info"
    files = {
        "reef_env.py": _GOOD_SOURCE if version == GOOD else _BROKEN_SOURCE,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: reef-env\nVersion: {version}\n"
        "Requires-Dist: gymnasium\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: reef\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    records = [f"{name},{_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,", ""])
    path = directory / f"reef_env-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return path


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
