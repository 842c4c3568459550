"""One nats-server process: started, heeded, reloaded, stopped."""

import asyncio
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from shoal.errors import ConfigError, ConnectionFailed, ServiceEnded
from shoal.logs import get_logger
from shoalctl.broker.refusals import BrokerRefusal, read_refusal
from shoalctl.tether import tethered

STOP_TIMEOUT_S = 5.0
"""How long the server may take to stop before it is killed."""
MAX_LINE_BYTES = 1024 * 1024
SETTLE_S = 0.05
"""A change counts when it is the same twice: an editor empties a file before it writes it."""

ROOM_BYTES = 8 * 1024 * 1024
"""Free on its disk before a server that ran out of it is started again."""

_LINE = re.compile(r"\[\d+\] \S+ \S+ \[(?P<level>\w+)\] ?(?P<message>.*)")
_LISTENING = re.compile(r"Listening for MQTT clients on \w+://(?P<address>.*:\d+)$")
_NOT_STORED = re.compile(r"failed to store .*no space left on device")
"""After that the server stores nothing more in that file, however much space is freed."""

_log = get_logger("broker")


class NatsServer:
    """One nats-server process and the permissions it has been told.

    server = NatsServer(program, path, lock, address="0.0.0.0:8883", render=text, check_s=1.0)
    await run_services({"nats": server.serve, "permissions": server.follow_changes})

    Attributes:
        refused: Clients, messages and subscriptions that were turned away, by reason.
    """

    def __init__(
        self,
        program: Path,
        path: Path,
        lock: int,
        *,
        address: str,
        render: Callable[[], str],
        check_s: float,
        on_refused: Callable[[BrokerRefusal, str], object] = lambda _refusal, _message: None,
    ) -> None:
        """Prepares a server; `serve` starts it.

        Args:
            program: The nats-server program.
            path: Its configuration file, written already.
            lock: A file descriptor it inherits, so that its directory stays locked while it lives.
            address: Where it was told to listen, for messages.
            render: The configuration as it should be now; raises ConfigError if there is none.
            check_s: How often `render` is asked, beside every `reload_soon`.
            on_refused: Called with whom it turned away, and its own line about that.
        """
        self.refused: Counter[str] = Counter()
        self._program = program
        self._path = path
        self._lock = lock
        self._address = address
        self._render = render
        self._check_s = check_s
        self._on_refused = on_refused
        self._told = path.read_text("utf-8")
        self._refused: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._listening = address
        self._ready = asyncio.Event()
        self._look = asyncio.Event()
        self._ran_out = asyncio.Event()
        self._starts_again = False

    @property
    def port(self) -> int:
        """Where MQTT clients reach it, once it is ready."""
        return int(self._listening.rpartition(":")[2])

    def reload_soon(self) -> None:
        """Has the configuration rendered again now."""
        self._look.set()

    async def serve(self) -> None:
        """Runs the server until cancelled, then stops it.

        Raises:
            ConnectionFailed: It can't listen where it should.
            ServiceEnded: It died.
        """
        while True:
            code, last_error = await self._run()
            if not self._starts_again:
                self._explain_death(code, last_error)
            self._starts_again = False

    async def follow_disk(self) -> None:
        """Starts the server again once a disk that was full has room: until then it stores nothing.

        Devices and learner come back to it, as after any restart; what it had acknowledged it has.
        """
        while True:
            await self._ran_out.wait()
            while shutil.disk_usage(self._path.parent).free < ROOM_BYTES:  # noqa: ASYNC110 - a disk tells nobody
                await asyncio.sleep(self._check_s)
            _log.warning("broker_starts_again", reason="its disk was full, and has room again")
            self._ready.clear()
            self._starts_again = True
            if self._process is not None:
                await _stop(self._process)
            await self._ready.wait()
            self._ran_out.clear()

    async def _run(self) -> tuple[int | None, str]:
        """Runs it once; how it ended, and what it said last that went wrong."""
        process = await asyncio.create_subprocess_exec(
            *tethered([str(self._program), "-c", str(self._path)]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # Ctrl-C reaches this process, which stops the server in order
            pass_fds=(self._lock,),
        )
        self._process = process
        last_error = ""
        try:
            assert process.stderr is not None  # noqa: S101 - it is a pipe, as asked above
            async for line in process.stderr:
                last_error = self._heed(line.decode("utf-8", "replace").rstrip()) or last_error
            await process.wait()
        finally:
            await _stop(process)
        return process.returncode, last_error

    async def follow_changes(self) -> None:
        """Keeps the server told what `render` says; no client is dropped for it.

        If there is nothing to tell, that is reported, and permissions stay as they were.
        """
        await self._ready.wait()
        while True:
            self._look.clear()
            await self._reload_if_changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_s):
                    await self._look.wait()

    async def _reload_if_changed(self) -> None:
        found = self._rendered()
        if found == self._told:
            self._refused = None
            return
        await asyncio.sleep(SETTLE_S)
        if str(self._rendered()) != str(found):
            self._look.set()  # somebody is writing it right now
            return
        try:
            if isinstance(found, ConfigError):
                raise found
            write_text(self._path, found)
        except ConfigError as error:
            if self._refused != str(error):  # once, not at every look
                _log.error("permissions_kept", error=str(error))
            self._refused = str(error)
            return
        self._told, self._refused = found, None
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    def _rendered(self) -> str | ConfigError:
        try:
            return self._render()
        except ConfigError as error:
            return error

    def _heed(self, line: str) -> str | None:
        """Acts on a line of the server's log; returns what went wrong, if something did."""
        match = _LINE.match(line)
        level, message = (match["level"], match["message"]) if match else ("ERR", line)
        if listening := _LISTENING.search(message):
            self._listening = listening["address"]
        elif message == "Server is ready":
            self._ready.set()
            host, _, port = self._listening.rpartition(":")
            _log.info("broker_ready", host=host, port=int(port))
        elif message.startswith("Reloaded server configuration"):
            _log.info("permissions_reloaded")
        if level in {"INF", "DBG", "TRC"}:
            _log.debug("nats", message=message)
            return None
        if _NOT_STORED.search(message):
            self._ran_out.set()
        refusal = read_refusal(message)
        if refusal is None:
            _log.warning("nats", message=message)
        else:
            self.refused[refusal.reason] += 1
            self._on_refused(refusal, message)
            _log.warning(
                "client_refused",
                reason=refusal.reason,
                address=refusal.address,
                count=self.refused[refusal.reason],
                name=refusal.name,
                message=message,
            )
        return message if level in {"FTL", "ERR"} else None

    def _explain_death(self, code: int | None, last_error: str) -> NoReturn:
        if "address already in use" in last_error:
            raise ConnectionFailed(
                f"cannot listen on {self._address}: the port is in use; stop what holds it, "
                "or choose another with --port"
            )
        if "listen" in last_error and not self._ready.is_set():
            reason = last_error.rpartition(": ")[2]
            raise ConnectionFailed(
                f"cannot listen on {self._address}: {reason}; choose another with --host and --port"
            )
        raise ServiceEnded(
            f"nats-server ended with code {code}" + (f": {last_error}" if last_error else "")
        )


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        _log.warning("broker_killed", after_s=STOP_TIMEOUT_S)
        process.kill()
        await process.wait()


def write_text(path: Path, text: str) -> None:
    """Replaces a file as a whole.

    Raises:
        ConfigError: It can't be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror}") from error
