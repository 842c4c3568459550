"""The virtual environments of the peers, each its own."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from bench.child import say

PEERS_DIR = Path(__file__).resolve().parent / "peers"


def peer_python(program: str) -> Path:
    """The interpreter of a peer's own virtual environment."""
    return PEERS_DIR / ".venvs" / program / "bin" / "python"


def prepare_peer(program: str) -> None:
    """Make a peer's virtual environment, unless it holds what its requirements say already.

    Args:
        program: Name of a file under `peers/`, which has a file of requirements.
    """
    requirements = PEERS_DIR / f"requirements-{program}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    home = PEERS_DIR / ".venvs" / program
    stamp = home / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    say(f"making {home} (a minute or two, the first time)")
    venv.create(home, with_pip=True, clear=True)
    subprocess.run(
        [str(peer_python(program)), "-m", "pip", "install", "--quiet", "-r", str(requirements)],
        check=True,
        stdout=sys.stderr,
    )
    stamp.write_text(digest, encoding="utf-8")
