"""A relay's way upstream: one watch for a whole site, and what its devices act with."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio

from cloud_learner.downlink.published import Published
from cloud_learner.relay.active_reports import ActiveReport, ActiveReports
from cloud_learner.relay.config import UpstreamConfig
from cloud_learner.relay.relay_store import RelayStore
from shoal.delegation import CLOCK_REASONS
from shoal.errors import PolicyRejected, ShoalError, WireError
from shoal.identity import Identity
from shoal.logs import get_logger
from shoal.noise import RUN_ID_BYTES
from shoal.policy import MAX_BUNDLE_BYTES, MAX_GRAPH_BYTES, Assembler, PayloadPart
from shoal.services import backoff
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

BACKOFF_BASE_S: Final = 0.25
GRAPH_DEADLINE_S: Final = 60.0
REPORT_DEADLINE_S: Final = 10.0
CLOCK_AGAIN_S: Final = 60.0
"""After which a policy is asked for again that was refused because of a clock."""
REPORTS_AT_ONCE: Final = 32
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # our backoff is the only one
    ("grpc.max_reconnect_backoff_ms", 10_000),  # of a channel that calls of many devices share
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_NOT_WANTED: Final = frozenset(
    {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)
"""Answers to a report that another try would not change."""
_State = grpc.ChannelConnectivity
_log = get_logger("upstream")


def open_channel(config: UpstreamConfig, identity: Identity) -> grpc.aio.Channel:
    """A channel that proves who both sides are.

    Raises:
        IdentityError: A certificate or key cannot be read.
    """
    pems = identity.read_pems()
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    host = f"[{config.host}]" if ":" in config.host else config.host
    return grpc.aio.secure_channel(f"{host}:{config.port}", credentials, options=OPTIONS)


class Upstream:
    """Follows the newest policy for a site, whatever the network does.

    upstream = Upstream(config, identity, store, reports, fleet="reef", on_policy=server.announce)
    await run_services({"upstream": upstream.follow, "reports": upstream.forward, ...})

    Attributes:
        bytes_down: Payload bytes received since the start.
        connected: Whether the watch stands.
        refused: Policies and graphs that were not accepted.
        reports_refused: Reports that upstream does not want.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        identity: Identity,
        store: RelayStore,
        reports: ActiveReports,
        *,
        fleet: str,
        on_policy: Callable[[Published], None],
        rng: random.Random | None = None,
    ) -> None:
        """Connects nothing yet.

        Args:
            config: Where.
            identity: The relay's.
            store: Where policies are offered.
            reports: What devices act with.
            fleet: The relay's fleet.
            on_policy: Told of each version that was accepted.
            rng: Of the backoff's jitter.
        """
        self.bytes_down = 0
        self.connected = False
        self.refused = 0
        self.reports_refused = 0
        self._config = config
        self._identity = identity
        self._store = store
        self._reports = reports
        self._fleet = fleet
        self._on_policy = on_policy
        self._rng = rng or random.Random()
        self._attempt = 0
        self._assembler = Assembler(MAX_BUNDLE_BYTES)
        self._needs_whole = False
        self._run_id = os.urandom(RUN_ID_BYTES)
        self._trouble: str | None = None
        self._unwanted: str | None = None

    async def follow(self) -> None:
        """Watches for ever; devices are served from the disk meanwhile. Ends by being cancelled."""
        while True:
            try:
                async with open_channel(self._config, self._identity) as channel:
                    if await _is_reached(channel):
                        self._heard()
                    server = ParameterServerStub(channel)
                    while await self._watch(server):  # or it says why not
                        pass
                self._tell_trouble("the watch ended")
            except grpc.aio.AioRpcError as error:
                self._tell_trouble(explain(error))
            except ShoalError as error:
                self._tell_trouble(str(error))
            except Exception as error:  # noqa: BLE001 a service border: devices are served on
                self._tell_trouble(f"{type(error).__name__}: {error}")
            finally:
                self.connected = False
            await self._pause(self._attempt)
            self._attempt += 1

    async def forward(self) -> None:
        """Tells upstream what devices act with, for ever; ends only by being cancelled."""
        attempt = 0
        while True:
            try:
                async with open_channel(self._config, self._identity) as channel:
                    stub = ParameterServerStub(channel)
                    while True:
                        batch = await self._reports.take(REPORTS_AT_ONCE)
                        await self._report(stub, batch)
                        attempt = 0
            except grpc.aio.AioRpcError as error:
                _log.debug("reports_wait", problem=explain(error), waiting=len(self._reports))
            except ShoalError as error:
                self._tell_trouble(str(error))
            await self._pause(attempt)
            attempt += 1

    async def _pause(self, attempt: int) -> None:
        cap_s = self._config.backoff_cap_s
        await asyncio.sleep(backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=cap_s, rng=self._rng))

    async def _watch(self, server: ParameterServerStub) -> bool:
        """Watches until upstream ends it, or it is to be watched in another way: True then."""
        newest = await asyncio.to_thread(self._store.newest)
        request = pb.WatchRequest(
            fleet=self._fleet,
            device_id=self._identity.name,
            have_version=newest.version if newest is not None else 0,
            have_digest=newest.digest if newest is not None else b"",
            accepts_delta=not self._needs_whole,
            partial_digest=self._assembler.partial_digest,
            partial_bytes=self._assembler.partial_bytes,
            accepts_compressed_delta=True,
        )
        call = server.Watch(request)
        try:
            async with asyncio.timeout(None) as patience:
                async for part in call:
                    payload = self._take(self._assembler, part)
                    if payload is None:
                        continue
                    delta = part.kind == pb.PAYLOAD_KIND_DELTA
                    if delta and not request.accepts_delta:
                        raise WireError("upstream sent a delta that was not asked for")
                    patience.reschedule(None)
                    clock = await self._offer(server, payload, delta=delta)
                    if self._needs_whole == request.accepts_delta:
                        return True
                    if clock:  # it may be right by then, and nothing else would have it sent again
                        again_s = asyncio.get_running_loop().time() + CLOCK_AGAIN_S
                        patience.reschedule(again_s)
        except TimeoutError:
            if not patience.expired():
                raise
            return True
        finally:
            call.cancel()  # else an error of ours would leave the stream open on the server
        return False

    def _heard(self) -> None:
        self._attempt, self.connected = 0, True
        self._trouble = None
        _log.info("upstream_connected", host=self._config.host, port=self._config.port)

    async def _offer(self, server: ParameterServerStub, payload: bytes, *, delta: bool) -> bool:
        """Offers a policy to the store; whether a clock is why it was refused."""
        loop = asyncio.get_running_loop()

        def fetch_graph(digest: bytes) -> bytes:  # in the thread that proves the policy
            return asyncio.run_coroutine_threadsafe(self._graph(server, digest), loop).result()

        accept = self._store.accept_delta if delta else self._store.accept
        try:
            published = await asyncio.to_thread(accept, payload, fetch_graph)
        except PolicyRejected as error:
            self.refused += 1
            clock = error.reason in CLOCK_REASONS
            # Until one is accepted: else both could go round for ever.
            self._needs_whole |= delta and not clock
            _log.warning("policy_rejected", reason=error.reason, problem=str(error))
            return clock
        self._needs_whole = False
        self._on_policy(published)
        # It acts with nothing, but holds it: the next delta may start from there.
        held = ActiveReport(self._identity.name, self._run_id, published.version, published.digest)
        self._reports.note(held)
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
        raise WireError(f"graph {digest.hex()[:12]}: upstream sent only a part of it")

    def _take(self, assembler: Assembler, part: pb.Part) -> bytes | None:
        self.bytes_down += len(part.data)
        return assembler.add(PayloadPart(part.total_bytes, part.offset, part.data, part.digest))

    async def _report(self, server: ParameterServerStub, batch: list[ActiveReport]) -> None:
        """Tells them one after the other; those that could not be told wait again."""
        for at, report in enumerate(batch):
            request = pb.ReportActiveRequest(
                fleet=self._fleet,
                device_id=report.device_id,
                run_id=report.run_id,
                version=report.version,
                digest=report.digest,
            )
            try:
                await server.ReportActive(request, timeout=REPORT_DEADLINE_S)
            except BaseException as error:
                if isinstance(error, grpc.aio.AioRpcError) and error.code() in _NOT_WANTED:
                    self._count_unwanted(error)
                    continue
                for left in batch[at:]:
                    self._reports.give_back(left)
                raise

    def _count_unwanted(self, error: grpc.aio.AioRpcError) -> None:
        self.reports_refused += 1
        why = explain(error)
        if why != self._unwanted:
            self._unwanted = why
            _log.warning("report_refused", problem=why)

    def _tell_trouble(self, message: str) -> None:
        """Once for each new kind of trouble, not at every attempt."""
        if message != self._trouble:
            self._trouble = message
            where = f"{self._config.host}:{self._config.port}"
            _log.warning(
                "upstream_lost",
                problem=f"{where}: {message}; devices get policy "
                f"{self._store.highest_version} from here meanwhile",
            )


async def _is_reached(channel: grpc.aio.Channel) -> bool:
    """Waits until a channel is ready or failed: a watch with nothing new says nothing."""
    ended = (_State.READY, _State.TRANSIENT_FAILURE, _State.SHUTDOWN)
    state = channel.get_state(try_to_connect=True)
    while state not in ended:
        await channel.wait_for_state_change(state)
        state = channel.get_state()
    return state is _State.READY


def explain(error: grpc.aio.AioRpcError) -> str:
    """One line for a person."""
    details = error.details() or "no details"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not trusted; check ca.pem, the host and this machine's clock"
    if error.code() == grpc.StatusCode.UNAVAILABLE and "refused" in details:
        return "nothing listens there; check upstream.host and upstream.port"
    return f"{error.code().name.lower()}: {details.splitlines()[0][:300]}"
