"""Bundles whose agent is a few lines: it says that it is up, acts, and says that it acted.

What a bundle with the real agent does is for `make test-device` to say: it takes minutes.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

AGENT = '''
"""A stand-in for the agent: what it does is in the file `behaviour` beside it."""
import json, os, pathlib, socket, sys, time, tomllib

HERE = pathlib.Path(__file__).parent
BEHAVIOUR = (HERE / "behaviour.txt").read_text().split()

def tell(*lines):
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto("\\n".join(lines).encode(), address)

def acted(config):
    table = tomllib.loads(pathlib.Path(config).read_text())
    state_dir = pathlib.Path(table["state_dir"])
    with open(state_dir / "acts.txt", "a") as file:
        file.write(f"{os.environ['SHOAL_SLOT']} {BEHAVIOUR[0]} {os.getpid()}\\n")
    slots = json.loads(pathlib.Path(os.environ["SHOAL_SLOTS_FILE"]).read_text())
    if slots["trial"] is None or "silent" in BEHAVIOUR:
        return
    word = {"schema": 1, "trial": slots["trial"]["number"], "episodes": 3, "chunks": 1,
            "policy_version": 7}
    temporary = state_dir / ".trial-acted.tmp"
    temporary.write_text(json.dumps(word))
    temporary.replace(state_dir / "trial-acted.json")

def main():
    words = sys.argv[1:]
    if "--version" in words:
        print("shoal", BEHAVIOUR[0])
        return 3 if "unhealthy" in BEHAVIOUR else 0
    if words[:2] == ["agent", "check"]:
        return 1 if "misfit" in BEHAVIOUR else 0
    if words[:2] == ["agent", "enroll"]:
        identity = pathlib.Path(words[words.index("--identity") + 1])
        identity.mkdir()
        (identity / "cert.pem").write_text("a certificate")
        return 0
    config = words[words.index("--config") + 1]
    if "dies" in BEHAVIOUR:
        return 5
    tell("READY=1", "STATUS=up")
    if "held" in BEHAVIOUR:
        tell("X_SHOAL_HELD=no policy")
    elif "idle" not in BEHAVIOUR:
        acted(config)
        tell("STATUS=acting")
    if "leaves" in BEHAVIOUR:
        return 0
    while "hangs" not in BEHAVIOUR:
        tell("WATCHDOG=1")
        time.sleep(0.1)
    time.sleep(3600)
'''


def wheel(directory: Path, version: str, *behaviour: str) -> Path:
    """A wheel of a `shoal` that behaves in one of these ways: unhealthy, misfit, dies, silent,
    held, idle, leaves, hangs."""
    files = {
        "stand_in/__init__.py": AGENT,
        "stand_in/behaviour.txt": " ".join([version, *behaviour]),
        f"shoal-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: shoal\nVersion: {version}\n"
        ),
        f"shoal-{version}.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"shoal-{version}.dist-info/entry_points.txt": (
            "[console_scripts]\nshoal = stand_in:main\n"
        ),
    }
    record = f"shoal-{version}.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    path = directory / f"shoal-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def bundle(
    directory: Path,
    version: str,
    *behaviour: str,
    state_dir: Path,
    boot: Mapping[str, bytes] | None = None,
    trial: Mapping[str, float] | None = None,
) -> Path:
    """An unpacked bundle with that agent."""
    (directory / "wheels").mkdir(parents=True)
    (directory / "config").mkdir()
    wheel(directory / "wheels", version, *behaviour)
    rules = "".join(f"{key} = {value}\n" for key, value in (trial or {}).items())
    (directory / "config" / "agent.toml").write_text(f'state_dir = "{state_dir}"\n[trial]\n{rules}')
    (directory / "config" / "policy.pub").write_text("00" * 32 + "\n")
    if boot is not None:
        (directory / "boot").mkdir()
        for name, content in boot.items():
            (directory / "boot" / name).write_bytes(content)
    return finish(directory, version)


def finish(directory: Path, version: str) -> Path:
    """Writes the manifest of what lies in a directory."""
    manifest = directory / "manifest.json"
    manifest.unlink(missing_ok=True)
    files = [
        {
            "path": str(path.relative_to(directory)),
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]
    table = {"schema": 1, "version": version, "shoal_version": version, "files": files}
    manifest.write_text(json.dumps(table, sort_keys=True, separators=(",", ":")))
    return directory


def digest(directory: Path) -> str:
    """What a bundle is known by."""
    return hashlib.sha256((directory / "manifest.json").read_bytes()).hexdigest()
