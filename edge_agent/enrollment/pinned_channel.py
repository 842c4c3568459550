"""A channel to a server that is known by its CA alone, whatever this device's clock says.

gRPC checks a server's certificate against the clock and can't be told a fingerprint. A device that
was just flashed has neither a right clock nor the CA. So the TLS is made here: the root is taken
from the server's chain and must have the sha256 that was pinned; chain and host are checked against
it, dates are not. gRPC speaks through it, over a socket that only this account can open.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc.aio

from shoal.endpoint import Endpoint
from shoal.errors import ConnectionFailed, IdentityError

CONNECT_TIMEOUT_S: Final = 10.0
PUMP_BYTES: Final = 64 * 1024
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python has no name for."""
_PEM_ENCODING: Final = 1


def fetch_root(server: Endpoint, fingerprint: str) -> str:
    """The root of a server's chain, PEM; blocks.

    Args:
        server: Where it is.
        fingerprint: The sha256 that the root must have, hexadecimal.

    Raises:
        ConnectionFailed: The server can't be reached or does not speak TLS.
        IdentityError: No certificate of its chain has that fingerprint: it is not the fleet's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # nothing is said over this connection, and nothing believed
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    address = (server.host, server.port)
    try:
        with (
            socket.create_connection(address, timeout=CONNECT_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=server.host) as secure,
        ):
            chain = _chain(secure)
    except OSError as error:
        raise ConnectionFailed(f"enrollment server {server}: {explain(error)}") from error
    for der in chain:
        if hashlib.sha256(der).hexdigest() == fingerprint:
            return ssl.DER_cert_to_PEM_cert(der)
    raise IdentityError(
        f"enrollment server {server}: its CA does not have the fingerprint {fingerprint}: it is "
        "not this fleet's, or the fingerprint is wrong; no token was sent"
    )


def _chain(secure: ssl.SSLSocket) -> list[bytes]:
    """What the server sent, DER; public from Python 3.13 on."""
    public = getattr(secure, "get_unverified_chain", None)
    if public is not None:
        return [bytes(each) for each in public() or ()]
    inner: Any = getattr(secure, "_sslobj")  # noqa: B009 - mypy knows that it is private
    found = inner.get_unverified_chain() or ()
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes(_PEM_ENCODING)) for each in found]


class PinnedChannel:
    """A gRPC channel to a server of a given root; `failure` says why a call found nobody.

    async with PinnedChannel(server, root_pem) as channel:
        await EnrollmentStub(channel.grpc).Begin(request, timeout=10)
    """

    def __init__(self, server: Endpoint, root_pem: str) -> None:
        """Connects nothing yet.

        Args:
            server: Where to.
            root_pem: The only CA that is trusted.
        """
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.load_verify_locations(cadata=root_pem)
        self._context.verify_flags |= _NO_CHECK_TIME
        self._context.set_alpn_protocols(["h2"])
        self._directory: Path | None = None
        self._listener: asyncio.Server | None = None
        self._pumping: set[asyncio.Task[None]] = set()
        self.failure: str | None = None
        self.grpc: grpc.aio.Channel

    async def __aenter__(self) -> Self:
        """Opens the socket; the first call connects."""
        self._directory = Path(tempfile.mkdtemp(prefix="shoal-"))  # mode 0700
        path = self._directory / "enrollment"
        self._listener = await asyncio.start_unix_server(self._tunnel, path)
        options = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
        self.grpc = grpc.aio.insecure_channel(f"unix:{path}", options=options)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes everything."""
        await self.grpc.close(None)
        if self._listener is not None:
            self._listener.close()
        for pumping in self._pumping:
            pumping.cancel()
        await asyncio.gather(*self._pumping, return_exceptions=True)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _tunnel(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is one
        self._pumping.add(task)
        try:
            await self._carry(near, back)
        except asyncio.CancelledError:
            pass  # the channel is being closed; asyncio would log that its callback was cancelled
        finally:
            back.close()
            self._pumping.discard(task)

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                far, forth = await asyncio.open_connection(
                    self._server.host,
                    self._server.port,
                    ssl=self._context,
                    server_hostname=self._server.host,
                )
        except OSError as error:
            self.failure = explain(error)
            return
        self.failure = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(near, forth))
                group.create_task(_pump(far, back))
        except* OSError as errors:
            self.failure = explain(_first(errors))
        finally:
            forth.transport.abort()  # nothing is left to say, and nobody waits for a farewell


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(PUMP_BYTES):
        sink.write(data)
        await sink.drain()
    sink.close()


def _first(errors: BaseExceptionGroup[OSError]) -> OSError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def explain(error: OSError) -> str:
    """One line for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); check CA and host"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; check host and port, and that `shoal enroll serve` runs"
    if isinstance(error, TimeoutError):
        return "it does not answer; check the network"
    return str(error) or type(error).__name__
