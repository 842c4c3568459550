"""The learner's gRPC endpoint: mutual TLS, who is calling, and an orderly stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Protocol, Self

import grpc
import grpc.aio

from shoal.errors import ConfigError, ConnectionFailed
from shoal.identity import RELAY_URI, Identity
from shoal.logs import get_logger
from shoal.topics import check_device_id

# The message types differ by call and nothing here looks at them.
Context = grpc.aio.ServicerContext[Any, Any]

STOP_GRACE_S = 2.0
"""How long calls may go on after a stop; watches end at once, since clients connect again."""
MAX_CONCURRENT_RPCS = 20_000
"""Over this, calls are refused with RESOURCE_EXHAUSTED: one watch a device, and room for more."""
MAX_REQUEST_BYTES = 64 * 1024
"""Every request is a few names and digests."""
OTHER_FLEET: Final = "this server is of fleet"
"""What the caller of another fleet is told begins with."""

OPTIONS: Final = (
    # Two servers on one port would share its connections silently: fail instead.
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 64),  # per connection
    ("grpc.server_handshake_timeout_ms", 20_000),
    # A lost device is noticed within 90 s. A slow one is not killed: its transport answers pings
    # without the interpreter, it has a minute to do so, and its own pings are never an offence.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 60_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

_log = get_logger("grpc_server")


class Service(Protocol):
    """What the endpoint serves."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service's calls."""

    def stop_streams(self) -> None:
        """Ends every endless stream, so that stopping does not wait for one."""


class GrpcServer:
    """Serves gRPC services over mutual TLS; only holders of the fleet CA's certificates get in.

    async with GrpcServer("0.0.0.0", 50051, identity, [parameter_server, fleet_service]) as server:
        await server.serve()
    """

    def __init__(
        self,
        host: str,
        port: int,
        identity: Identity,
        services: Sequence[Service],
        *,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        interceptors: Sequence[grpc.aio.ServerInterceptor[Any, Any]] = (),
        client_certificates: bool = True,
    ) -> None:
        """Prepares an endpoint; entering the context binds it.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 picks a free one.
            identity: The server's certificate, its key and the CA that clients must come from.
            services: What to serve.
            max_request_bytes: Larger requests are refused before they are read.
            interceptors: Look at every call before its service does.
            client_certificates: Whether callers must have a certificate; without, callers have
                no name, and what is served must ask who they are itself.
        """
        self._max_request_bytes = max_request_bytes
        self._address = f"[{host}]" if ":" in host else host
        self._port = port
        self._identity = identity
        self._services = services
        self._interceptors = interceptors
        self._client_certificates = client_certificates
        self._server: grpc.aio.Server | None = None
        self._stopped = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    async def __aenter__(self) -> Self:
        """Binds the port and starts serving.

        Raises:
            ConnectionFailed: The port is in use or the address is not this machine's.
            IdentityError: A certificate or key cannot be read.
        """
        pems = self._identity.read_pems()
        # The root goes with the chain where callers know no more of it than its fingerprint.
        credentials = (
            grpc.ssl_server_credentials(
                [(pems.key, pems.cert)], root_certificates=pems.ca, require_client_auth=True
            )
            if self._client_certificates
            else grpc.ssl_server_credentials([(pems.key, pems.cert + pems.ca)])
        )
        server = grpc.aio.server(
            interceptors=self._interceptors,
            options=(*OPTIONS, ("grpc.max_receive_message_length", self._max_request_bytes)),
            maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS,
        )
        for service in self._services:
            service.add_to(server)
        address = f"{self._address}:{self._port}"
        try:
            self._port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConnectionFailed(
                f"cannot listen on {address}: the port is in use, or the address is not this "
                "machine's: set server.host and server.port to free ones"
            ) from error
        await server.start()
        self._server = server
        _log.info("grpc_listening", host=self._address, port=self._port)
        return self

    async def serve(self) -> None:
        """Serves until cancelled, or until the context is left."""
        await self._stopped.wait()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the streams, lets short calls finish, and gives the port back."""
        self._stopped.set()
        for service in self._services:
            service.stop_streams()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)


def peer_name(context: Context) -> str:
    """The common name of the caller's certificate; empty when the certificate has none."""
    names = list(context.auth_context().get("x509_common_name", ()))
    return names[0].decode("utf-8", "replace") if len(names) == 1 else ""


def peer_is_relay(context: Context) -> bool:
    """Whether the caller's certificate is a relay's, who may speak of the devices behind it."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return RELAY_URI.encode() in names


async def refuse(context: Context, code: grpc.StatusCode, problem: str) -> NoReturn:
    """Ends a call with a status and one line for a person, and logs who was refused."""
    _log.warning("call_refused", peer=peer_name(context), code=code.name, problem=problem)
    await context.abort(code, problem)
    raise AssertionError("abort raises")  # its stub says NoReturn, its body is compiled


async def require_fleet(context: Context, asked: str, served: str) -> None:
    """Ends the call unless it is meant for the fleet that is served here."""
    if asked != served:
        await refuse(
            context,
            grpc.StatusCode.FAILED_PRECONDITION,
            f"{OTHER_FLEET} {served!r}, the call is for fleet {asked[:80]!r}: set "
            "`fleet`, or the server's address, right",
        )


async def require_device(context: Context, device_id: str, asked: str, served: str) -> str:
    """Ends the call unless it is of a device of the fleet that is served here.

    A device speaks under its own name; a relay, by its certificate, for those behind it.

    Args:
        context: Of the call.
        device_id: Of whom the call says that it is.
        asked: The fleet that it is meant for.
        served: The fleet that is served here.

    Returns:
        The device.
    """
    name = peer_name(context)
    if device_id != name and not peer_is_relay(context):
        await refuse(
            context,
            grpc.StatusCode.PERMISSION_DENIED,
            f"the certificate is of {name!r}, the call says {device_id[:80]!r}: a device speaks "
            "under its own name",
        )
    try:
        check_device_id(name)
        check_device_id(device_id)
    except ConfigError as error:
        await refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
    await require_fleet(context, asked, served)
    return device_id
