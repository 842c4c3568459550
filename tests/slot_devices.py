"""Devices that run from slots, as on a card: the real launcher, and agents of this working copy.

A bundle's wheel is a few lines that find this working copy: installing the real ones takes minutes.
"""

from __future__ import annotations

import platform
import site
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundles import write_bundle
from child_process import Process
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge_agent.slots import codec
from edge_agent.slots.state import State
from shoal.bundle_archive import unpack

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_BROKEN: Final = """
import sys
def main():
    if "--version" in sys.argv:
        print("shoal broken")
        return 0
    return 0 if sys.argv[1:3] == ["agent", "check"] else 5
"""


def write_release(
    path: Path, version: str, *, fleet: str, key: Ed25519PrivateKey, broken: bool = False
) -> None:
    """Writes a signed bundle whose agent is this working copy's, or dies when it is to act."""
    wheel = path.with_suffix(".whl")
    _write_wheel(wheel, version, broken=broken)
    contents = {
        "config/policy.pub": key.public_key().public_bytes_raw().hex().encode() + b"\n",
        f"wheels/shoal-{version}-py3-none-any.whl": wheel.read_bytes(),
    }
    write_bundle(
        path,
        contents,
        key=key,
        fleet=fleet,
        version=version,
        shoal_version=version,
        arch=platform.machine(),
        python=PYTHON,
    )


def _write_wheel(path: Path, version: str, *, broken: bool) -> None:
    found = [REPOSITORY, REPOSITORY / "protos", REPOSITORY / "deploy", *site.getsitepackages()]
    info = f"shoal-{version}.dist-info"
    start = "broken_agent:main" if broken else "shoalctl.cli:main"
    files = {
        "working_copy.pth": "".join(f"{each}\n" for each in found),
        "broken_agent.py": _BROKEN,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: shoal\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\nshoal = {start}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@dataclass
class SlotDevice:
    """A prefix with two slots.

    device = SlotDevice(tmp_path / "pi-1")
    device.set_up(config_text, tmp_path / "old.tar", public_key)
    with device.run(): ...
    """

    prefix: Path

    def slots(self, *words: str) -> None:
        """`shoal-slots`, to its end."""
        subprocess.run(self._command(*words), check=True, timeout=120, capture_output=True)

    def set_up(self, config: str, bundle: Path, public_key: bytes) -> None:
        """What a card or `shoal flash ssh` does."""
        (self.prefix / "etc").mkdir(parents=True)
        self.state_dir.mkdir()
        (self.prefix / "etc" / "agent.toml").write_text(config)
        (self.prefix / "etc" / "policy.pub").write_text(public_key.hex() + "\n")
        unpack(bundle, self.prefix / "first", None)
        self.slots("install", str(self.prefix / "first"))
        self.slots("switch", "--reason", "set up", "--no-restart")

    def start(self) -> Process:
        """The launcher, which runs the agent."""
        return Process(self._command("run"))

    @property
    def state_dir(self) -> Path:
        return self.prefix / "state"

    @property
    def state(self) -> State:
        return codec.decode((self.prefix / "slots.json").read_bytes())

    @property
    def version(self) -> str:
        """Of the bundle in the current slot; with a `?` while it is on trial."""
        state = self.state
        assert state.current is not None
        release = state.slot(state.current).release
        assert release is not None
        return release.bundle_version + ("?" if state.trial is not None else "")

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "edge_agent.slots", "--prefix", str(self.prefix), *words]
