"""What lies where in the learner's state directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths of everything a learner keeps.

    state = StateDir.open(config.state_dir, resume=False)
    with Journal(state.journal, config.journal) as journal: ...
    """

    directory: Path

    @classmethod
    def open(cls, directory: Path, *, resume: bool) -> StateDir:
        """Makes the directory, or checks what is there.

        Args:
            directory: `state_dir` of the configuration.
            resume: Whether to go on with what is there.

        Raises:
            ConfigError: It cannot be made, or holds a run that nobody asked to resume.
        """
        state = cls(directory)
        if state.holds_a_run and not resume:
            raise ConfigError(
                f"state_dir {directory} holds a run already: go on with it by "
                "`shoal learner resume`, or give another state_dir"
            )
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"state_dir {directory}: {error.strerror or error}; give a directory that this "
                "user can write"
            ) from error
        return state

    @property
    def holds_a_run(self) -> bool:
        """Whether a learner published or saved anything here before."""
        return any(
            place.is_dir() and any(place.iterdir())
            for place in (self.policies / "versions", self.checkpoints)
        )

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.directory / "journal.db"

    @property
    def policies(self) -> Path:
        """The policy log."""
        return self.directory / "policies"

    @property
    def active(self) -> Path:
        """What each device acts with, as far as it said."""
        return self.directory / "active_policies.txt"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints."""
        return self.directory / "checkpoints"

    @property
    def snapshots(self) -> Path:
        """Checkpoints that an operator asked for, by name."""
        return self.directory / "snapshots"

    @property
    def pins(self) -> Path:
        """The policy versions that no retention deletes."""
        return self.directory / "pinned_policies.txt"

    @property
    def tensorboard(self) -> Path:
        """What TensorBoard reads."""
        return self.directory / "tensorboard"

    @property
    def tasks(self) -> Path:
        """The tasks' file."""
        return self.directory / "tasks.db"

    @property
    def rollouts(self) -> Path:
        """The rollouts' file."""
        return self.directory / "rollouts.db"

    @property
    def events(self) -> Path:
        """What happened in the fleet."""
        return self.directory / "events.db"

    @property
    def bundles(self) -> Path:
        """The agents' bundles that devices fetch."""
        return self.directory / "bundles"
