"""The downlink: watches the parameter server, offers each policy to the store, says what acts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import grpc.aio

from edge_agent.config import ServerConfig
from edge_agent.downlink.policy_stream import PolicyStream
from edge_agent.downlink.reconstruction import MENDED_BY_WHOLE, Held, accept_delta
from edge_agent.events import Events
from edge_agent.policies.policy import Policy
from shoal.delegation import CLOCK_REASONS
from shoal.errors import ConnectionFailed, DeadlineExceeded, PolicyRejected, ShoalError, WireError
from shoal.identity import Identity
from shoal.logs import get_logger
from shoal.policy import MAX_BUNDLE_BYTES, MAX_GRAPH_BYTES, Assembler, PayloadPart
from shoal.services import backoff
from shoal.v1 import device_pb2
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

BACKOFF_BASE_S: Final = 0.25
GRAPH_DEADLINE_S: Final = 30.0
REPORT_AGAIN_S: Final = 5.0
"""Within which a report that failed is made again."""
CLOCK_AGAIN_S: Final = 60.0
"""After which a policy is asked for again that was refused because of a clock."""
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # our backoff is the only one
    ("grpc.enable_retries", 0),
)

log = get_logger("downlink")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A policy that was not accepted.

    Attributes:
        version: Which.
        problem: Why, for people.
        reason: Why, in a word.
    """

    version: int
    problem: str
    reason: str = ""


class Policies(Held, Protocol):
    """What the downlink needs of a policy store."""

    @property
    def current(self) -> Policy | None:
        """The policy that acts."""

    @property
    def lacks_twin(self) -> bool:
        """Whether that policy is to be offered once more."""

    def listening(self, changed: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        """Has `changed` called, by any thread, whenever another policy became current."""


def open_channel(config: ServerConfig, identity: Identity) -> grpc.aio.Channel:
    """A channel that proves who both sides are.

    Raises:
        IdentityError: a certificate or key cannot be read.
    """
    pems = identity.read_pems()
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    host = f"[{config.host}]" if ":" in config.host else config.host
    return grpc.aio.secure_channel(f"{host}:{config.port}", credentials, options=OPTIONS)


class Downlink:
    """The way of policies to the device.

    A policy comes whole, or as what changed since one that is held. Where a delta cannot be used,
    that is told, and the whole policy asked for.

    downlink = Downlink(config, identity, policies, events, fleet="pond")
    await run_services({"downlink": downlink.follow, "active": downlink.report_active})

    Attributes:
        bytes_down: payload bytes received in this run; read by any thread.
        refusal: the policy that was refused last; None: none was.
    """

    def __init__(
        self,
        config: ServerConfig,
        identity: Identity,
        policies: Policies,
        events: Events,
        *,
        fleet: str,
        run_id: bytes = b"",
        rng: random.Random | None = None,
        clock_again_s: float = CLOCK_AGAIN_S,
    ) -> None:
        """Connects nothing yet.

        Args:
            config: the parameter server.
            identity: the device.
            policies: where they are offered.
            events: where refusals are told.
            fleet: the device's fleet.
            run_id: of this process.
            rng: of the backoff's jitter.
            clock_again_s: after which a policy is asked for again that a clock had refused.
        """
        self._clock_again_s = clock_again_s
        self.bytes_down = 0
        self.refusal: Refusal | None = None
        self._config = config
        self._identity = identity
        self._policies = policies
        self._events = events
        self._fleet = fleet
        self._rng = rng or random.Random()
        self._trouble: str | None = None
        self._attempt = 0
        self._routine = False
        self._run_id = run_id
        self._assembler = Assembler(MAX_BUNDLE_BYTES)
        self._needs_whole = False
        self._handled_version = 0
        self._proving = False  # what acts is about to change
        self._stream: PolicyStream | None = None
        self._tell_active = asyncio.Event()

    async def follow(self) -> None:
        """Watches for ever, whatever the server or the network do; ends only by being cancelled."""
        while True:
            try:
                async with open_channel(self._config, self._identity) as channel:
                    server = ParameterServerStub(channel)
                    self._stream = PolicyStream(server, opened=self._tell_active.set)
                    while await self._watch(self._stream):
                        pass
                self._tell_trouble("the parameter server ended the watch")
            except grpc.aio.AioRpcError as error:
                self._tell_trouble(explain(error))
            except ShoalError as error:
                self._tell_trouble(str(error))
            except Exception as error:  # noqa: BLE001 a service border: acting goes on
                self._tell_trouble(f"{type(error).__name__}: {error}")
            finally:
                self._stream = None
            cap_s = self._config.backoff_cap_s
            await asyncio.sleep(
                backoff(self._attempt, base_s=BACKOFF_BASE_S, cap_s=cap_s, rng=self._rng)
            )
            self._attempt += 1

    async def report_active(self) -> None:
        """Tells the server for ever what acts, whenever that changes; the newest goes, at once."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in any thread
            if self._proving:
                return  # whoever proves it tells, once it is known what was handled
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._tell_active.set)

        with self._policies.listening(changed):
            while True:
                await self._tell_active.wait()
                self._tell_active.clear()
                stream = self._stream
                if stream is None or self._proving:
                    continue  # the next connection tells, or whoever proves it
                try:
                    await stream.report(self._active())
                except (asyncio.CancelledError, grpc.aio.UsageError):
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # Its stream ended under it: the next one tells.
                except grpc.aio.AioRpcError as error:
                    log.warning("active_not_reported", problem=explain(error))
                    await asyncio.sleep(self._rng.uniform(0.0, REPORT_AGAIN_S))
                    if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                        self._tell_active.set()

    def _active(self) -> pb.ReportActiveRequest:
        current = self._policies.current
        return pb.ReportActiveRequest(
            fleet=self._fleet,
            device_id=self._identity.name,
            run_id=self._run_id,
            version=current.version if current is not None else 0,
            digest=current.manifest.digest if current is not None else b"",
            handled_version=self._handled_version,
        )

    async def _watch(self, stream: PolicyStream) -> bool:
        """Watches until the server ends it, or it is to be watched in another way: True then."""
        current = None if self._policies.lacks_twin else self._policies.current
        request = pb.WatchRequest(
            fleet=self._fleet,
            device_id=self._identity.name,
            have_version=current.version if current is not None else 0,
            have_digest=current.manifest.digest if current is not None else b"",
            accepts_delta=not self._needs_whole,
            partial_digest=self._assembler.partial_digest,
            partial_bytes=self._assembler.partial_bytes,
            accepts_compressed_delta=True,
        )
        try:
            async with (
                asyncio.timeout(None) as patience,
                contextlib.aclosing(stream.parts(request)) as parts,
            ):
                async for part in parts:
                    self._heard()
                    payload = self._take(self._assembler, part)
                    if payload is None:
                        continue
                    delta = part.kind == pb.PAYLOAD_KIND_DELTA
                    if delta and not request.accepts_delta:
                        raise WireError("the parameter server sent a delta that was not asked for")
                    patience.reschedule(None)
                    clock = await self._offer(stream.server, payload, part.version, delta=delta)
                    if self._needs_whole == request.accepts_delta:
                        return True
                    if clock:  # it may be right by then, and nothing else would have it sent again
                        again_s = asyncio.get_running_loop().time() + self._clock_again_s
                        patience.reschedule(again_s)
        except TimeoutError:
            if not patience.expired():
                raise
            return True
        return False

    def _heard(self) -> None:
        self._attempt = 0
        if self._trouble is not None:
            self._trouble, self._routine = None, False
            self._tell(device_pb2.SEVERITY_INFO, "parameter_server_back", "policies flow again")

    async def _offer(
        self, server: ParameterServerStub, payload: bytes, version: int, *, delta: bool
    ) -> bool:
        """Offers a policy to the store; whether a clock is why it was refused."""
        loop = asyncio.get_running_loop()

        def fetch_graph(digest: bytes) -> bytes:  # in the thread that proves the policy
            return asyncio.run_coroutine_threadsafe(self._graph(server, digest), loop).result()

        accept = functools.partial(accept_delta, self._policies) if delta else self._policies.accept
        self._proving = True
        try:
            policy = await asyncio.to_thread(accept, payload, fetch_graph)
        except PolicyRejected as error:
            self._routine = False
            mended = delta and error.reason in MENDED_BY_WHOLE
            self._needs_whole |= mended  # until one is accepted: else both could go round for ever
            clock = error.reason in CLOCK_REASONS
            last, refusal = self.refusal, Refusal(version, str(error), error.reason)
            if not mended:
                self.refusal = refusal
            told = last is not None and (last.version, last.reason) == (version, error.reason)
            if not (clock and told):
                name = "delta_refused" if mended else "policy_rejected"
                self._tell(device_pb2.SEVERITY_WARNING, name, str(error), reason=error.reason)
            return clock
        finally:
            self._proving = False
            self._handled_version = version
            self._tell_active.set()  # what acts, be it the same: the server waits for it
        self._needs_whole = False
        if not self._routine:  # telemetry tells of the many swaps that follow
            self._routine = True
            self._tell(
                device_pb2.SEVERITY_INFO,
                "policy_swapped",
                f"policy {policy.version} acts from the next chunk on",
                policy_version=policy.version,
                digest=policy.digest.hex(),
            )
        return False

    async def _graph(self, server: ParameterServerStub, digest: bytes) -> bytes:
        assembler = Assembler(MAX_GRAPH_BYTES)
        request = pb.GetGraphRequest(fleet=self._fleet, digest=digest)
        call = server.GetGraph(request, timeout=GRAPH_DEADLINE_S)
        try:
            async for part in call:
                graph = self._take(assembler, part)
                if graph is not None:
                    return graph
        finally:
            call.cancel()
        raise WireError(f"graph {digest.hex()[:12]}: the parameter server sent only a part of it")

    def _take(self, assembler: Assembler, part: pb.Part) -> bytes | None:
        self.bytes_down += len(part.data)
        return assembler.add(PayloadPart(part.total_bytes, part.offset, part.data, part.digest))

    def _tell(
        self, severity: device_pb2.Severity, name: str, message: str, **fields: str | float
    ) -> None:
        self._events.emit(severity, name, message, **fields)

    def _tell_trouble(self, message: str) -> None:
        """Once for each new kind of trouble, not at every attempt."""
        if message != self._trouble:
            self._trouble = message
            where = f"parameter server {self._config.host}:{self._config.port}"
            self._tell(
                device_pb2.SEVERITY_WARNING,
                "parameter_server_lost",
                f"{where}: {message}; the present policy acts on",
            )


async def reach(config: ServerConfig, identity: Identity, *, fleet: str, timeout_s: float) -> int:
    """Checks that the parameter server answers this device.

    Returns:
        The version of its newest policy; 0 if it has published none.

    Raises:
        ConnectionFailed: it cannot be reached, or it refuses this device or its fleet.
        DeadlineExceeded: it did not answer in time.
    """
    where = f"parameter server {config.host}:{config.port}"
    async with open_channel(config, identity) as channel:
        request = pb.GetPolicyRequest(fleet=fleet)
        try:
            call = ParameterServerStub(channel).GetPolicy(request, timeout=timeout_s)
            async for part in call:
                call.cancel()
                return int(part.version)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise DeadlineExceeded(f"{where}: no answer within {timeout_s:g} s") from error
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise ConnectionFailed(f"{where}: {explain(error)}") from error
    return 0


def explain(error: grpc.aio.AioRpcError) -> str:
    """One line for a person."""
    details = error.details() or "no details"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not trusted; check ca.pem, the host and this device's clock"
    if error.code() == grpc.StatusCode.UNAVAILABLE and "refused" in details:
        return "nothing listens there; check host and port, and that the learner runs"
    return f"{error.code().name.lower()}: {details.splitlines()[0][:300]}"


def explain_unknown(error: grpc.aio.AioRpcError, where: str, what: str) -> str:
    """One line for a person about a call that a server does not know; a relay says it itself."""
    details = error.details() or ""
    if details and not details.startswith("Method not"):
        return details.splitlines()[0][:300]
    return f"the server at {where} knows no {what}: update it"
