"""Turns away who was revoked: at the start of a call, and in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from cryptography import x509

from cloud_learner.serving.grpc_server import Context, peer_name, refuse
from cloud_learner.serving.interceptor import Behaviour, CallInterceptor, responses_of
from shoal.errors import IdentityError
from shoal.identity import Identity
from shoal.logs import get_logger
from shoal.revocation import RevocationList

LOOK_S: Final = 1.0
"""How often the file is looked at: a revoked device is cut off this soon."""

_log = get_logger("revocations")


class Revocations:
    """The fleet's CRL, followed, and the calls that it ends.

    revocations = Revocations(Path("revoked.crl"), identity)
    async with GrpcServer(..., interceptors=revocations.interceptors) as server:
        await run_services({"grpc": server.serve, "revocations": revocations.follow})

    A list that can't be read or is not the fleet's changes nothing: the one before goes on, and
    that is said. A server that can't read the one that it is told of does not start.

    Attributes:
        counters: Calls that were `revoked_refused` and `revoked_ended`.
    """

    def __init__(
        self, path: Path | None, identity: Identity, *, counters: Counter[str] | None = None
    ) -> None:
        """Reads the list.

        Args:
            path: The CRL, PEM; None if nobody is revoked that way.
            identity: The server's, whose chain holds the CRL's issuer.
            counters: Where to count; a counter of its own if None.

        Raises:
            IdentityError: The list can't be read, or is not signed by the fleet's CA.
        """
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._path = path
        pems = identity.read_pems()
        self._chain = pems.cert + pems.ca
        self._seen: object = None
        self._refused: str | None = None
        self._list = RevocationList()
        self._calls: dict[int, set[asyncio.Event]] = {}  # by serial number
        self.interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (
            ()
            if path is None
            else (CallInterceptor(single=self._single, streaming=self._streaming),)
        )
        if path is not None:
            self._seen = _stamp(path)
            self._list = self._read(path)

    async def follow(self) -> None:
        """Looks at the file again and again; ends only by being cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._path is not None:
                self.look(self._path)

    def look(self, path: Path) -> None:
        """Reads the list if it changed, and ends the calls of whom it names."""
        stamp = _stamp(path)
        if stamp == self._seen:
            return
        try:
            self._list = self._read(path)
        except IdentityError as error:
            if self._refused != str(error):
                _log.error("revocation_list_kept", path=str(path), error=str(error))
            self._refused = str(error)
            return
        self._seen, self._refused = stamp, None
        _log.info("revocation_list_read", path=str(path), revoked=len(self._list.serials))
        for serial in self._list.serials & self._calls.keys():
            for ended in self._calls[serial]:
                ended.set()

    def is_revoked(self, serial: int | None) -> bool:
        """Whether a certificate is on the list."""
        return serial in self._list.serials

    @contextlib.contextmanager
    def calling(self, serial: int) -> Iterator[asyncio.Event]:
        """What is set when the caller is revoked, within the block."""
        ended = asyncio.Event()
        self._calls.setdefault(serial, set()).add(ended)
        try:
            yield ended
        finally:
            self._calls[serial].discard(ended)
            if not self._calls[serial]:
                del self._calls[serial]

    async def turn_away(self, context: Context, *, counter: str) -> NoReturn:
        """Ends a call of a device that was revoked."""
        self.counters[counter] += 1
        await refuse(
            context,
            grpc.StatusCode.UNAUTHENTICATED,
            f"the certificate of {peer_name(context)} was revoked: ask the fleet's operator",
        )

    def _read(self, path: Path) -> RevocationList:
        try:
            return RevocationList.read(path.read_bytes(), chain=self._chain)
        except OSError as error:
            raise IdentityError(f"can't read the revocation list {path}: {error}") from error

    def _single(self, behaviour: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> Any:  # noqa: ANN401
            if self.is_revoked(_serial(context)):
                await self.turn_away(context, counter="revoked_refused")
            return await behaviour(request, context)

        return call

    def _streaming(self, behaviour: Behaviour) -> Behaviour:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: ANN401
            serial = _serial(context)
            if self.is_revoked(serial):
                await self.turn_away(context, counter="revoked_refused")
            if serial is None:
                return
            responses = responses_of(behaviour, request, context)
            with self.calling(serial) as ended:
                async with contextlib.aclosing(_until(ended, responses)) as until:
                    async for response in until:
                        yield response
                if ended.is_set():
                    await self.turn_away(context, counter="revoked_ended")

        return call


async def _until(ended: asyncio.Event, responses: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401
    """What a call yields, until it or the event says that it is over."""
    over = asyncio.ensure_future(ended.wait())
    following: asyncio.Future[Any] | None = None
    try:
        while not ended.is_set():
            following = asyncio.ensure_future(anext(responses))
            await asyncio.wait({over, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            try:
                response = following.result()
            except StopAsyncIteration:
                return
            yield response
    finally:
        over.cancel()
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        await responses.aclose()


def _serial(context: Context) -> int | None:
    """The serial number of the caller's certificate; None without one."""
    pems = list(context.auth_context().get("x509_pem_cert", ()))
    if len(pems) != 1:
        return None
    return _serial_of(pems[0])


@functools.lru_cache(maxsize=4096)
def _serial_of(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


def _stamp(path: Path) -> object:
    """What changes when a file is replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
