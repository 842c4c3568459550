"""The lock of a host: held over the connection, and gone with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncssh

from shoal.errors import FlashFailed
from shoalctl.flash.ssh.plan import Action
from shoalctl.flash.ssh.preflight import HostRefused, Reason, Refusal
from shoalctl.flash.ssh.remote import LinkLost, Remote
from shoalctl.flash.ssh.scripts import BUSY_STATUS, HEARTBEAT_S

T = TypeVar("T")
_ANSWER_S = 30.0


async def under_lock(remote: Remote, action: Action, work: Callable[[], Awaitable[T]]) -> T:
    """Holds the lock of a host while something is done there; what is done ends with the lock.

    Args:
        remote: The host.
        action: How the lock is taken.
        work: What to do.

    Raises:
        HostRefused: Another flash holds the lock.
        LinkLost: The connection, and with it the lock, was lost.
        FlashFailed: The lock can't be made.
    """
    process = await remote.open(action.command, root=action.root)
    try:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = (await process.stdout.readline()).decode("utf-8", "replace").strip()
        except (TimeoutError, OSError, asyncssh.Error) as error:
            raise LinkLost(f"{remote.host.name} did not answer: {error}") from error
        if answer != "held":
            await _refuse(process, answer)
        tasks = asyncio.ensure_future(work()), asyncio.ensure_future(_beat(process))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise LinkLost(f"the lock of {remote.host.name} was lost, and the link with it")
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        process.close()


async def _refuse(process: asyncssh.SSHClientProcess[bytes], answer: str) -> None:
    errors = (await process.stderr.read(4096)).decode("utf-8", "replace").strip()
    await process.wait_closed()
    if process.returncode == BUSY_STATUS:
        raise HostRefused([Refusal(Reason.LOCKED, f"another flash is at work there: {answer}")])
    said = errors.splitlines()[-1] if errors else answer
    raise FlashFailed(f"can't lock the host: {said or f'status {process.returncode}'}")


async def _beat(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """Says that we are there, until the holder ends."""
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await process.wait_closed()
        except TimeoutError:
            process.stdin.write(b".")
        else:
            return
