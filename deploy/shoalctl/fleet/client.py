"""Asks a fleet's server what it knows, as its operator: the `Fleet` service over mutual TLS."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NoReturn, Self, TypeVar, cast

import grpc
from cryptography import x509

from shoal.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    IdentityError,
    ShoalError,
)
from shoal.identity import Identity
from shoal.v1 import (
    curve_pb2,
    curve_pb2_grpc,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    events_pb2,
    events_pb2_grpc,
    fleet_pb2,
    fleet_pb2_grpc,
)
from shoalctl.pki.certificates import fleet_of

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_PORT = 65535

Response = TypeVar("Response")


class FleetClient:
    """An operator's questions to one fleet. The fleet is the one whose CA made the identity.

    with FleetClient("learner.example.org:50051", Identity.load(path), timeout_s=10) as fleet:
        fleet.devices()
    """

    def __init__(self, server: str, identity: Identity, *, timeout_s: float) -> None:
        """Prepares a channel; the first question connects it.

        Args:
            server: `host:port` of the learner's gRPC endpoint.
            identity: The operator's.
            timeout_s: How long an answer may take, connecting included.

        Raises:
            ConfigError: The address is not `host:port`, or the time not positive.
            IdentityError: A file of the identity is missing or names no fleet.
        """
        check_address(server)
        if not timeout_s > 0:
            raise ConfigError(f"--timeout-s {timeout_s}: it must be over 0")
        pems = identity.read_pems()
        try:
            self.fleet = fleet_of(x509.load_pem_x509_certificate(pems.ca))
        except ValueError as error:
            raise IdentityError(f"{identity.directory}: {error}; issue it again") from error
        self._server = server
        self._timeout_s = timeout_s
        self._channel = grpc.secure_channel(
            server,
            grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert),
            options=[
                ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._stub = fleet_pb2_grpc.FleetStub(self._channel)
        self._dispatcher = dispatcher_pb2_grpc.DispatcherStub(self._channel)
        self._curves = curve_pb2_grpc.CurvesStub(self._channel)
        self._events = events_pb2_grpc.EventsStub(self._channel)

    def __enter__(self) -> Self:
        """Connects at the first question."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the channel."""
        self._channel.close()

    def devices(self) -> fleet_pb2.ListDevicesResponse:
        """Every device; raises ShoalError as all questions do."""
        request = fleet_pb2.ListDevicesRequest(fleet=self.fleet)
        return self._ask(self._stub.ListDevices, request, fleet_pb2.ListDevicesResponse)

    def device(self, device_id: str) -> fleet_pb2.DescribeDeviceResponse:
        """One device and its events."""
        request = fleet_pb2.DescribeDeviceRequest(fleet=self.fleet, device_id=device_id)
        return self._ask(self._stub.DescribeDevice, request, fleet_pb2.DescribeDeviceResponse)

    def curve(self) -> curve_pb2.LearningCurve:
        """How the mean return went since the learner started."""
        request = curve_pb2.GetCurveRequest(fleet=self.fleet)
        return self._ask(self._curves.GetCurve, request, curve_pb2.LearningCurve)

    def policies(self) -> fleet_pb2.ListPoliciesResponse:
        """Every policy version, newest first."""
        request = fleet_pb2.ListPoliciesRequest(fleet=self.fleet)
        return self._ask(self._stub.ListPolicies, request, fleet_pb2.ListPoliciesResponse)

    def audit(self) -> fleet_pb2.AuditResponse:
        """What became of every chunk."""
        request = fleet_pb2.AuditRequest(fleet=self.fleet)
        return self._ask(self._stub.Audit, request, fleet_pb2.AuditResponse)

    def tasks(self) -> dispatcher_pb2.ListTasksResponse:
        """Every task, in the order of their ids."""
        request = dispatcher_pb2.ListTasksRequest(fleet=self.fleet)
        return self._ask(self._dispatcher.ListTasks, request, dispatcher_pb2.ListTasksResponse)

    def events(
        self, about: str = "", *, kinds: Sequence[str] = (), max_age_s: float = 0.0, limit: int = 0
    ) -> events_pb2.ListEventsResponse:
        """What happened, newest first.

        Args:
            about: To this device only; empty: to all.
            kinds: Of these only, each a name or NAME.REASON; none: of all.
            max_age_s: No longer ago, in seconds; 0: however long.
            limit: No more than so many; 0: as many as the server gives.
        """
        request = events_pb2.ListEventsRequest(
            fleet=self.fleet, about=about, kinds=kinds, max_age_s=max_age_s, limit=limit
        )
        return self._ask(self._events.ListEvents, request, events_pb2.ListEventsResponse)

    def watch_events(
        self,
        about: str = "",
        *,
        kinds: Sequence[str] = (),
        after_place: int = 0,
        log_id: bytes = b"",
    ) -> Iterator[events_pb2.WatchEventsResponse]:
        """What happens, oldest first, until the learner stops, or is lost.

        Args:
            about: To this device only; empty: to all.
            kinds: Of these only; none: of all.
            after_place: The place of the last one seen.
            log_id: The log that it was of.

        Raises:
            ShoalError: The watch ended; a ConnectionFailed is worth another.
        """
        request = events_pb2.WatchEventsRequest(
            fleet=self.fleet, about=about, kinds=kinds, after_place=after_place, log_id=log_id
        )
        try:
            yield from self._events.WatchEvents(request)
        except grpc.RpcError as error:
            self._explain(error)

    def _ask(self, call: Callable[..., object], request: object, kind: type[Response]) -> Response:
        try:
            response = call(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            self._explain(error)
        if not isinstance(response, kind):
            raise TypeError(f"expected a {kind.__name__}, got a {type(response).__name__}")
        return response

    def _explain(self, error: grpc.RpcError) -> NoReturn:
        failed = cast("grpc.Call", error)  # every error of a unary call is its call as well
        code, details = failed.code(), failed.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise DeadlineExceeded(
                f"{self._server} did not answer within {self._timeout_s:g} s; "
                "give it more with --timeout-s"
            ) from error
        if code is grpc.StatusCode.UNAVAILABLE and "CERTIFICATE_VERIFY_FAILED" in details:
            raise ConnectionFailed(
                f"the server at {self._server} is not of the fleet of --identity ({self.fleet}): "
                "give another, or another --server"
            ) from error
        if code is grpc.StatusCode.UNIMPLEMENTED or "ALPN" in details:
            raise ConnectionFailed(
                f"what answers at {self._server} is not the learner's parameter server, or an older"
                " one that cannot do this: give the address of `parameter_server`, not that of a"
                f" broker, a relay or of enrollment ({details.rpartition(': ')[2].strip('[]. ')})"
            ) from error
        if code is grpc.StatusCode.UNAVAILABLE:
            reason = details.removesuffix(": OK").rpartition(": ")[2].strip("[]. ")
            raise ConnectionFailed(
                f"cannot reach the learner at {self._server}: is it running there, and is "
                f"--identity of its fleet ({self.fleet})? ({reason})"
            ) from error
        if code in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}:
            raise ConnectionFailed(f"{self._server} refused us: {details}") from error
        if code in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}:
            raise ConfigError(details) from error
        if code is grpc.StatusCode.NOT_FOUND:
            raise ShoalError(details) from error
        raise ShoalError(f"{self._server} failed ({code.name}): {details}") from error


def check_address(server: str) -> str:
    """Returns `host:port` if it is one.

    Raises:
        ConfigError: It is not.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT or "/" in host:
        raise ConfigError(f"--server {server!r}: give host:port, e.g. 127.0.0.1:50051")
    return server
