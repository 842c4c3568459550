"""The way of gradients: weights down, a gradient of the oldest waiting chunk, an update up.

It runs beside acting and holds nothing up: chunks wait in a queue, what fails is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from edge_agent.config import ServerConfig
from edge_agent.downlink.downlink import explain, open_channel
from edge_agent.events import Events
from edge_agent.gradients.config import GradientsConfig
from edge_agent.gradients.observed import Observed
from edge_agent.gradients.queue import GradientQueue, Waiting
from edge_agent.gradients.worker import GradientWorker
from shoal.episodes import Episode
from shoal.errors import ShoalError, UpdateRefused, WireError
from shoal.gradients import MAX_WEIGHTS_BYTES, Computed, Encoder, Weights, decode_weights
from shoal.identity import Identity
from shoal.layout import ObservationLayout
from shoal.moments import Moments
from shoal.policy import Assembler, PayloadPart
from shoal.services import backoff
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk
from shoal.v1 import device_pb2, trajectory_pb2, update_pb2
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1.parameter_server_pb2_grpc import ParameterServerStub

BACKOFF_BASE_S: Final = 0.1
WEIGHTS_DEADLINE_S: Final = 30.0
PUSH_DEADLINE_S: Final = 15.0
MAX_EPISODES: Final = 1024
"""Episodes that one update tells of; of more, the newest."""
_NEVER: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


@dataclass(slots=True)
class Counters:
    """What became of gradients in this run; read by any thread.

    Attributes:
        pushed: updates that the server answered.
        applied: those that it applied.
        bytes_up: bytes of gradients pushed, resends included.
        bytes_down: bytes of weights received.
        failed: gradients that were not finite, or too large for the server.
    """

    pushed: int = 0
    applied: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Turn:
    """The chunk whose turn it is.

    Attributes:
        waiting: it.
        begun: whether the worker has it.
        observed: whether its observations are in the run's statistics.
        told: whether an update told of its experience.
        done: passes over it.
    """

    waiting: Waiting
    begun: bool = False
    observed: bool = False
    told: bool = False
    done: int = 0


class GradientUplink:
    """Pushes a gradient of each chunk that waits.

    uplink = GradientUplink(server, identity, queue, worker, events, config, ...)
    await uplink.serve()

    Attributes:
        counters: what it did.
    """

    def __init__(
        self,
        server: ServerConfig,
        identity: Identity,
        queue: GradientQueue,
        worker: GradientWorker,
        events: Events,
        config: GradientsConfig,
        *,
        fleet: str,
        run_id: bytes,
        spec: EnvSpec,
        rng: random.Random | None = None,
    ) -> None:
        """Connects nothing yet.

        Args:
            server: the parameter server.
            identity: the device.
            queue: of chunks.
            worker: who computes.
            events: where trouble is told.
            config: how gradients travel.
            fleet: the device's fleet.
            run_id: 16 bytes.
            spec: the device's spaces.
            rng: of the backoff's jitter.
        """
        self.counters = Counters()
        self._server = server
        self._identity = identity
        self._queue = queue
        self._worker = worker
        self._events = events
        self._config = config
        self._fleet = fleet
        self._run_id = run_id
        self._layout = ObservationLayout.of(spec.observation)
        self._observed = Observed(self._layout)
        self._rng = rng or random.Random()
        self._encoder = Encoder(config.codec, share=config.top_k)
        self._weights: Weights | None = None
        self._computed_with: tuple[bytes, Mapping[str, object]] | None = None
        self._seq = 0
        self._turn: _Turn | None = None
        self._request: update_pb2.PushUpdateRequest | None = None
        self._trouble: str | None = None
        self._attempt = 0
        self._wake = asyncio.Event()

    async def serve(self) -> None:
        """Pushes for ever, whatever the server or the network do; ends only by being cancelled."""
        async with self._woken():
            while True:
                try:
                    async with open_channel(self._server, self._identity) as channel:
                        await self._push_forever(ParameterServerStub(channel))
                except grpc.aio.AioRpcError as error:
                    self._tell_trouble(explain(error))
                except ShoalError as error:
                    self._tell_trouble(str(error))
                except Exception as error:  # noqa: BLE001 a service border: acting goes on
                    self._tell_trouble(f"{type(error).__name__}: {error}")
                cap_s = self._server.backoff_cap_s
                await asyncio.sleep(
                    backoff(self._attempt, base_s=BACKOFF_BASE_S, cap_s=cap_s, rng=self._rng)
                )
                self._attempt += 1

    @contextlib.asynccontextmanager
    async def _woken(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._wake.set)

        with self._queue.listening(wake):
            yield

    async def _push_forever(self, server: ParameterServerStub) -> None:
        while True:
            # What the server did not answer goes first, the same again: it knows what it applied.
            if self._request is not None:
                await self._push(server, self._request)
                self._request = None
            if self._turn is None:
                self._turn = _Turn(await self._next())
            self._request = await self._compute(server, self._turn)
            self._turn.done += 1
            if self._turn.done >= self._config.passes:
                self._turn = None

    async def _next(self) -> Waiting:
        while True:
            self._wake.clear()
            waiting = self._queue.take()
            if waiting is not None:
                return waiting
            await self._wake.wait()

    async def _compute(
        self, server: ParameterServerStub, turn: _Turn
    ) -> update_pb2.PushUpdateRequest | None:
        """The next update of a chunk; None when its gradient is not finite."""
        weights = await self._newest_weights(server, turn.waiting.chunk.policy_version)
        if not turn.begun:
            await asyncio.to_thread(self._worker.begin, turn.waiting.chunk)
            turn.begun = True
        if not turn.observed and self._shares_statistics(weights):
            await asyncio.to_thread(self._observed.add, turn.waiting.chunk.observations[:-1])
            turn.observed = True
        computed = await asyncio.to_thread(self._worker.gradient)
        try:
            body = self._encoder.encode(computed.values)
        except UpdateRefused:
            self.counters.failed += 1
            return None
        request = self._update(turn, weights, computed, body)
        turn.told = True
        self._seq += 1
        return request

    def _update(
        self, turn: _Turn, weights: Weights, computed: Computed, body: bytes
    ) -> update_pb2.PushUpdateRequest:
        waiting = turn.waiting
        request = update_pb2.PushUpdateRequest(
            fleet=self._fleet,
            device_id=self._identity.name,
            run_id=self._run_id,
            seq=self._seq,
            layout_digest=weights.layout_digest,
            updates=weights.updates,
            policy_version=waiting.chunk.policy_version,
            codec=self._encoder.code,
            parameters=len(computed.values),
            body=body,
            metrics=computed.metrics,
        )
        if not turn.told:  # what a chunk is, its first update tells
            request.transitions = waiting.transitions
            request.episodes.extend(_episodes(waiting.episodes[-MAX_EPISODES:]))
            if (moments := self._moments(waiting.chunk)) is not None:
                request.moments.CopyFrom(moments)
            statistics = self._observed.statistics
            if statistics is not None and self._shares_statistics(weights):
                request.statistics.CopyFrom(statistics.to_pb())
        return request

    def _shares_statistics(self, weights: Weights) -> bool:
        """Whether the learner makes a normalizer of what devices tell, and this one may."""
        return weights.normalizer is not None and self._config.share_moments

    def _moments(self, chunk: Chunk) -> update_pb2.ObservationMoments | None:
        if not self._config.share_moments:
            return None
        moments = Moments.of(chunk.observations[:-1], self._layout)
        return None if moments is None else moments.to_pb()

    async def _newest_weights(self, server: ParameterServerStub, version: int) -> Weights:
        """The weights as they are now: the server sends none where they are those held.

        Args:
            server: that has them.
            version: that acted: observations are normalized as it did.
        """
        held = self._weights
        other = _version_of(held) not in (None, version)
        request = update_pb2.GetWeightsRequest(
            fleet=self._fleet,
            device_id=self._identity.name,
            have_updates=0 if held is None or other else held.updates,
            acted_version=version,
        )
        assembler = Assembler(MAX_WEIGHTS_BYTES)
        call = server.GetWeights(request, timeout=WEIGHTS_DEADLINE_S)
        payload: bytes | None = None
        try:
            async for part in call:
                payload = self._take(assembler, part)
        finally:
            call.cancel()
        self._heard()
        if payload is None:
            if held is None:
                raise WireError("the parameter server sent no weights, or only a part of them")
            return held
        weights = decode_weights(payload)
        await asyncio.to_thread(self._worker.take, weights)
        self._weights = weights
        begin_again = _version_of(held) != _version_of(weights)  # ratios are of one normalizer
        if self._computed_with not in (None, (weights.layout_digest, weights.setup)):
            self._encoder.forget()  # the parameters are others
            begin_again = True
        if begin_again and self._turn is not None:
            self._turn.begun = False
        self._computed_with = (weights.layout_digest, weights.setup)
        return weights

    def _take(self, assembler: Assembler, part: pb.Part) -> bytes | None:
        self.counters.bytes_down += len(part.data)
        return assembler.add(PayloadPart(part.total_bytes, part.offset, part.data))

    async def _push(
        self, server: ParameterServerStub, request: update_pb2.PushUpdateRequest
    ) -> None:
        self.counters.bytes_up += len(request.body)
        try:
            response = await server.PushUpdate(request, timeout=PUSH_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in _NEVER:
                self._request = None  # the same again would be refused again
                self.counters.failed += 1
            raise
        self._heard()
        self.counters.pushed += 1
        self.counters.applied += response.applied
        if response.reason == "layout":
            self._weights = None

    def _heard(self) -> None:
        self._attempt = 0
        if self._trouble is not None:
            self._trouble = None
            self._events.emit(device_pb2.SEVERITY_INFO, "gradients_back", "gradients flow again")

    def _tell_trouble(self, message: str) -> None:
        """Once for each new kind of trouble, not at every attempt."""
        if message != self._trouble:
            self._trouble = message
            self._events.emit(
                device_pb2.SEVERITY_WARNING,
                "gradients_held_up",
                f"{message}; acting goes on, the newest chunks wait for their gradients",
            )


def _version_of(weights: Weights | None) -> int | None:
    """Whose normalizer came with weights; None where none did."""
    if weights is None or weights.normalizer is None:
        return None
    return weights.normalizer.version


def _episodes(ended: Sequence[Episode]) -> list[trajectory_pb2.Episode]:
    return [
        trajectory_pb2.Episode(
            env=each.env, step=each.step, total_return=each.total_return, length=each.length
        )
        for each in ended
    ]
