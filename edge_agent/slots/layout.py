"""Where things lie on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_agent.slots.state import Name

PREFIX: Final = Path("/opt/shoal")
STATE_DIRECTORY: Final = Path("/var/lib/shoal")
CONFIG: Final = Path("/etc/shoal/agent.toml")
UNITS: Final = Path("/etc/systemd/system")
AGENT_UNIT, UPDATE_PATH_UNIT = "shoal-agent.service", "shoal-update.path"
USER: Final = "shoal"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one installation.

    layout = Layout.of(Path("/opt/shoal"))
    layout.command(Name.A)  # /opt/shoal/slots/a/venv/bin/shoal

    Attributes:
        prefix: What is installed; root's.
        state_dir: What the agent owns.
        config: The agent's configuration; the fleet's key and the enrolment seed lie beside it.
    """

    prefix: Path
    state_dir: Path
    config: Path

    @classmethod
    def of(
        cls, prefix: Path, *, state_dir: Path | None = None, config: Path | None = None
    ) -> Layout:
        """The paths of a prefix; under another than the system's own all lies below it."""
        own = prefix == PREFIX
        return cls(
            prefix,
            state_dir or (STATE_DIRECTORY if own else prefix / "state"),
            config or (CONFIG if own else prefix / "etc" / "agent.toml"),
        )

    @property
    def state_file(self) -> Path:
        """The persisted state."""
        return self.prefix / "slots.json"

    @property
    def state_lock(self) -> Path:
        """Held while the state changes."""
        return self.prefix / ".slots.lock"

    @property
    def install_lock(self) -> Path:
        """Held while a bundle is installed."""
        return self.prefix / ".install.lock"

    @property
    def current(self) -> Path:
        """A link to the slot in use."""
        return self.prefix / "current"

    @property
    def boot(self) -> Path:
        """A link to the launcher in use, a directory for `python3 -I`."""
        return self.prefix / "boot"

    @property
    def boots(self) -> Path:
        """Launchers by their digest."""
        return self.prefix / "boots"

    @property
    def wrapper(self) -> Path:
        """The command."""
        return self.prefix / "bin" / "shoal-slots"

    @property
    def incoming(self) -> Path:
        """Where a bundle of another user's is copied to before it is believed."""
        return self.prefix / "incoming"

    def slot(self, name: Name) -> Path:
        """A slot."""
        return self.prefix / "slots" / name

    def venv(self, name: Name) -> Path:
        """The installation in a slot."""
        return self.slot(name) / "venv"

    def command(self, name: Name) -> Path:
        """The `shoal` of a slot."""
        return self.venv(name) / "bin" / "shoal"

    def python(self, name: Name) -> Path:
        """The Python of a slot."""
        return self.venv(name) / "bin" / "python"

    def manifest(self, name: Name) -> Path:
        """The manifest of the bundle in a slot."""
        return self.slot(name) / "manifest.json"

    def broken(self, name: Name) -> str:
        """Why a slot can't be started, as far as its files say; empty if it can."""
        if not self.command(name).is_file():
            return f"{self.command(name)} is missing"
        return ""

    @property
    def policy_key(self) -> Path:
        """Who may sign bundles."""
        return self.config.parent / "policy.pub"

    @property
    def seed(self) -> Path:
        """Where to enrol."""
        return self.config.parent / "seed.json"

    @property
    def identity(self) -> Path:
        """Who this device is."""
        return self.state_dir / "identity"

    @property
    def told(self) -> tuple[str, ...]:
        """How to tell the agent where these lie; nothing where its configuration has them right."""
        if self.prefix == PREFIX:
            return ()
        return ("--identity", str(self.identity), "--state-dir", str(self.state_dir))

    @property
    def token(self) -> Path:
        """The one-time enrolment token."""
        return self.state_dir / "enrolment-token"

    @property
    def acted(self) -> Path:
        """What the agent writes when it acted on trial."""
        return self.state_dir / "trial-acted.json"

    @property
    def charged(self) -> Path:
        """How much of a trial's time is used up."""
        return self.state_dir / "trial-time.json"

    @property
    def updates(self) -> Path:
        """Where the agent puts bundles."""
        return self.state_dir / "updates"

    @property
    def request(self) -> Path:
        """Which of them it wants to be installed."""
        return self.updates / "request.json"

    @property
    def result(self) -> Path:
        """What became of that."""
        return self.updates / "result.json"
