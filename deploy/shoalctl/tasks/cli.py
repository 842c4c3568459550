"""`shoal tasks`: what the learner hands to devices, and what became of it."""

from __future__ import annotations

import typer

from shoalctl.fleet.cli import IdentityPath, Output, Server, Timeout, fleet_client
from shoalctl.fleet.curve import DEFAULT_SERVER
from shoalctl.output import Format, write_listing

tasks_app = typer.Typer()


@tasks_app.callback()
def tasks() -> None:
    """See the tasks that a learner hands to devices, and what became of each."""


@tasks_app.command("ls")
def list_tasks(
    *,
    identity: IdentityPath,
    server: Server = DEFAULT_SERVER,
    output: Output = Format.TABLE,
    timeout_s: Timeout = 10.0,
) -> None:
    """List the tasks. AGE is the time since a task changed its state, or since the learner started.

    STEPS/S is what the device of a running task makes now, and what a task that is done made.
    """
    from shoalctl.tasks.views import task_list

    with fleet_client(server, identity, timeout_s) as client:
        response = client.tasks()
    write_listing(task_list(response.tasks), output)
