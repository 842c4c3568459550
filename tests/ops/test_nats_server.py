"""When a running NATS server is told new permissions, and when it is left alone."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from brokers import FLEET, WAIT_S, broker_config

from shoal.errors import ConfigError
from shoalctl.broker.broker import find_nats_server, write_nats_config
from shoalctl.broker.nats_server import NatsServer
from shoalctl.pki.pki import FleetPki

Look = Callable[[str], str]


def follow(tmp_path: Path, looks: list[Look]) -> list[str]:
    """Runs a server that is shown `looks`, the last one again and again.

    Returns:
        Its configuration before, and once the last look was seen three times.
    """
    pki = FleetPki.create(tmp_path / "pki", FLEET)
    path = write_nats_config(broker_config(tmp_path, pki, ["pi-1"]))
    before = path.read_text()

    async def scenario() -> str:
        enough = asyncio.Event()
        shown = 0

        def render() -> str:
            nonlocal shown
            shown += 1
            if shown >= len(looks) + 3:
                enough.set()
            return looks[min(shown, len(looks)) - 1](before)

        lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        server = NatsServer(
            find_nats_server(), path, lock, address="", render=render, check_s=0.001
        )
        async with asyncio.timeout(WAIT_S):
            tasks = [asyncio.ensure_future(run()) for run in (server.serve, server.follow_changes)]
            await enough.wait()
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        os.close(lock)
        return path.read_text()

    return [before, asyncio.run(scenario())]


def same(text: str) -> str:
    return text


def more(text: str) -> str:
    return f"{text}# more\n"


def emptied(text: str) -> str:
    del text
    return "# half written\n"


def malformed(text: str) -> str:
    del text
    raise ConfigError("line 1")


def test_a_change_that_stays_is_told(tmp_path: Path) -> None:
    before, after = follow(tmp_path, [same, more])
    assert after == more(before)


def test_a_file_that_is_being_written_is_not_taken_for_a_change(tmp_path: Path) -> None:
    before, after = follow(tmp_path, [same, emptied, same])
    assert after == before


def test_what_is_malformed_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    before, after = follow(tmp_path, [same, malformed, malformed, malformed])
    assert after == before
    before, after = follow(tmp_path / "again", [same, malformed, malformed, more])
    assert after == more(before)


def test_once_a_disk_that_was_full_has_room_the_server_is_started_again(tmp_path: Path) -> None:
    pki = FleetPki.create(tmp_path / "pki", FLEET)
    path = write_nats_config(broker_config(tmp_path, pki, ["pi-1"]))

    async def scenario() -> list[int]:
        lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        server = NatsServer(
            find_nats_server(), path, lock, address="", render=path.read_text, check_s=0.001
        )
        pids: list[int] = []
        async with asyncio.timeout(WAIT_S):
            tasks = [asyncio.ensure_future(run()) for run in (server.serve, server.follow_disk)]
            for _ in range(2):
                await server._ready.wait()
                assert server._process is not None
                pids.append(server._process.pid)
                if len(pids) == 1:
                    server._heed(
                        "[1] 2026/01/01 00:00:00.000000 [WRN] JetStream failed to store a msg on "
                        "stream '$G > $MQTT_msgs': write 2.blk: no space left on device"
                    )
                    while not server._starts_again:  # noqa: ASYNC110 - set behind a process
                        await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        os.close(lock)
        return pids

    first, second = asyncio.run(scenario())
    assert first != second
