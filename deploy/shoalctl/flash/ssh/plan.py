"""What has to be done on a host, as a list: the same that `--dry-run` prints is then run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from shoalctl.flash.ssh.facts import Facts, Privilege
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.flash.ssh.remote import as_root
from shoalctl.flash.ssh.scripts import (
    alone_command,
    lease_command,
    token_command,
    unpack_command,
)
from shoalctl.flash.ssh.trial import Standing, Verdict

DEFAULT_PREFIX: Final = "/opt/shoal"
STATE_DIRECTORY: Final = "/var/lib/shoal"
AGENT_UNIT: Final = "shoal-agent.service"
INSTALL_TIMEOUT_S: Final = 1800.0
"""A Raspberry Pi Zero 2 on a slow card unpacks for minutes."""
COMMAND_TIMEOUT_S: Final = 120.0


class Step(StrEnum):
    """What is done on a host, in this order."""

    CONNECT = "connect"
    PREFLIGHT = "preflight"
    LOCK = "lock"
    UPLOAD = "upload"
    UNPACK = "unpack"
    TOKEN = "token"  # noqa: S105 - the name of a step
    INSTALL = "install"
    SWITCH = "switch"
    RESTART = "restart"
    WAIT = "wait"
    CLEAN = "clean"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    Attributes:
        step: What it is.
        says: What it does, for people.
        command: What the host runs as it is sent; empty for the transfer of a file.
        root: Whether root runs it.
        timeout_s: How long it may take.
        switches: Whether another slot is current afterwards.
    """

    step: Step
    says: str
    command: str = ""
    root: bool = True
    timeout_s: float = COMMAND_TIMEOUT_S
    switches: bool = False

    def shown(self, privilege: Privilege) -> str:
        """The command as it is sent."""
        return as_root(self.command, privilege) if self.root else self.command


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on a host.

    Attributes:
        prefix: Where the slots are.
        staging: Where the bundle is uploaded to; empty: below the login user's home.
        systemd: Whether systemd runs the agent.
    """

    prefix: str = DEFAULT_PREFIX
    staging: str = ""
    systemd: bool = True

    @property
    def state(self) -> str:
        """What the agent owns; under another prefix than the system's own it lies below it."""
        own = self.prefix == DEFAULT_PREFIX
        return STATE_DIRECTORY if own else f"{self.prefix}/state"

    @property
    def lock(self) -> str:
        """Held by the flash that is at work."""
        return f"{self.prefix}/flash.lock"

    @property
    def work_lock(self) -> str:
        """Held by what unpacks or installs, also when its link was lost."""
        return f"{self.prefix}/flash.work"

    @property
    def slots(self) -> str:
        """The command that changes slots."""
        return f"{self.prefix}/bin/shoal-slots"

    @property
    def token(self) -> str:
        """Where an enrolment token waits."""
        return f"{self.state}/enrolment-token"

    def unpacked(self, bundle: OfflineBundle) -> str:
        """Where a bundle is unpacked."""
        return f"{self.prefix}/flash/{bundle.sha256}"


def uploaded(facts: Facts, bundle: OfflineBundle) -> str:
    """Where a bundle is when it is there whole."""
    return str(PurePosixPath(facts.staging) / f"{bundle.sha256}.tar")


def lock_action(places: Places, who: str) -> Action:
    """Takes the lock of a host."""
    return Action(Step.LOCK, "lock it against other flashes", lease_command(places.lock, who))


def plan(
    facts: Facts,
    standing: Standing,
    bundle: OfflineBundle,
    places: Places,
    *,
    reason: str,
    token: bool,
    wait: bool,
    device_id: str | None = None,
) -> tuple[Action, ...]:
    """What is left to do until a host runs a bundle; nothing if it does.

    Args:
        facts: What is known of the host.
        standing: How the bundle stands in its slots.
        bundle: The bundle.
        places: Where things are on it.
        reason: Why, for its history.
        token: Whether there is an enrolment token for it.
        wait: Whether to wait until the bundle has acted.
        device_id: The name it enrols with; None: its host name.
    """
    actions: list[Action] = []
    if token and not facts.enrolled:
        actions.append(
            Action(
                Step.TOKEN,
                f"write the enrolment token to {places.token}, mode 0600",
                token_command(places.token),
            )
        )
    # A first installation that was cut off is done again: it is one whole only at its end.
    first = standing.running is None or (places.systemd and not facts.unit)
    if first:
        setup = _set_up(bundle, places, reason, device_id)
        actions = [*_bring(facts, bundle, places), *actions, setup]
    elif standing.verdict in {Verdict.ABSENT, Verdict.ROLLED_BACK}:
        actions = [*_bring(facts, bundle, places), *actions, _install(bundle, places)]
    if not first and standing.verdict not in {Verdict.ON_TRIAL, Verdict.COMMITTED}:
        actions.append(_switch(places, reason))
    if [action.step for action in actions] == [Step.TOKEN] and places.systemd:
        actions.append(restart_action())  # it enrols when it starts
    leftover = facts.is_uploaded(bundle.sha256) or facts.is_unpacked(bundle.sha256)
    if leftover or any(action.step is Step.UNPACK for action in actions):
        actions.append(_clean(facts, bundle, places))
    if wait and (first or standing.verdict is not Verdict.COMMITTED):
        actions.append(
            Action(
                Step.WAIT,
                "wait until the agent has acted on trial, or was rolled back",
                slots_command(places),
            )
        )
    return tuple(actions)


def slots_command(places: Places) -> str:
    """Reads the persisted state of the slots."""
    return shlex.join(["cat", f"{places.prefix}/slots.json"])


def rollback_action(places: Places, reason: str) -> Action:
    """Goes back to the other slot."""
    return Action(
        Step.ROLLBACK,
        "go back to the slot beside the running one",
        shlex.join([places.slots, *_prefix(places), "rollback", "--reason", reason]),
        switches=True,
    )


def restart_action() -> Action:
    """Lets the unit run what is current now."""
    return Action(
        Step.RESTART,
        f"restart {AGENT_UNIT}",
        shlex.join(["systemctl", "restart", "--no-block", AGENT_UNIT]),
    )


def _bring(facts: Facts, bundle: OfflineBundle, places: Places) -> list[Action]:
    actions = []
    archive = uploaded(facts, bundle)
    there = facts.is_unpacked(bundle.sha256)
    if not there and not facts.is_uploaded(bundle.sha256):
        left = max(0, bundle.size_bytes - facts.part_bytes(bundle.sha256))
        actions.append(
            Action(
                Step.UPLOAD,
                f"upload {bundle.path.name}, {left} of {bundle.size_bytes} bytes, to {archive}",
                root=False,
            )
        )
    if not there:
        actions.append(
            Action(
                Step.UNPACK,
                f"check it and unpack it to {places.unpacked(bundle)}",
                alone_command(
                    places.work_lock,
                    INSTALL_TIMEOUT_S,
                    unpack_command(archive, bundle.sha256, places.unpacked(bundle)),
                ),
                timeout_s=2 * INSTALL_TIMEOUT_S,
            )
        )
    return actions


def _install(bundle: OfflineBundle, places: Places) -> Action:
    command = shlex.join([places.slots, *_prefix(places), "install", places.unpacked(bundle)])
    return Action(
        Step.INSTALL,
        "install it into the slot beside the running one, and check its health",
        alone_command(places.work_lock, INSTALL_TIMEOUT_S, command),
        timeout_s=2 * INSTALL_TIMEOUT_S,
    )


def _set_up(bundle: OfflineBundle, places: Places, reason: str, device_id: str | None) -> Action:
    options = [*_prefix(places), "--reason", reason]
    if device_id is not None:
        options += ["--device", device_id]
    if not places.systemd:
        options.append("--no-units")
    if places.prefix != DEFAULT_PREFIX:
        options.append("--no-user")  # an installation of its own, for who runs it
    token = f"SHOAL_ENROLMENT_TOKEN_FILE={places.token}"
    command = shlex.join(["env", token, "sh", f"{places.unpacked(bundle)}/install.sh", *options])
    return Action(
        Step.INSTALL,
        "install the agent for the first time: user, configuration, units, slot",
        alone_command(places.work_lock, INSTALL_TIMEOUT_S, command),
        timeout_s=2 * INSTALL_TIMEOUT_S,
        switches=True,
    )


def _switch(places: Places, reason: str) -> Action:
    return Action(
        Step.SWITCH,
        "switch to it, on trial; the old slot is kept",
        shlex.join([places.slots, *_prefix(places), "switch", "--reason", reason]),
        switches=True,
    )


def _clean(facts: Facts, bundle: OfflineBundle, places: Places) -> Action:
    return Action(
        Step.CLEAN,
        "remove the upload; what is installed stays",
        shlex.join(["rm", "-rf", "--", f"{places.prefix}/flash", uploaded(facts, bundle)]),
    )


def _prefix(places: Places) -> list[str]:
    return [] if places.prefix == DEFAULT_PREFIX else ["--prefix", places.prefix]
