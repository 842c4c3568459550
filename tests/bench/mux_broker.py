"""`shoal broker run` that also lets a few sessions speak for many devices: for `scale` alone.

Ten thousand sessions do not fit on a small machine together with what is measured, so devices that
only report share sessions. No fleet has such a grant.
"""

from collections.abc import Iterable

from shoalctl import cli
from shoalctl.broker import broker
from shoalctl.broker.files import Grant, grants

MUX = "mux"
SESSIONS = 8


def mux_names() -> tuple[str, ...]:
    """The names of the sessions that many devices share."""
    return tuple(f"{MUX}-{number}" for number in range(SESSIONS))


def with_mux(fleet: str, device_ids: Iterable[str]) -> tuple[Grant, ...]:
    """The fleet's grants, where a shared session may publish for every device."""
    anybody = f"shoal/v1/{fleet}/+/+/up/+"
    return tuple(
        Grant(grant.name, anybody, grant.subscribe) if grant.name.startswith(f"{MUX}-") else grant
        for grant in grants(fleet, device_ids)
    )


def main() -> None:
    """Runs the broker with the arguments of the command line."""
    broker.grants = with_mux  # type: ignore[attr-defined] # in place of the fleet's own rule
    cli.main()
