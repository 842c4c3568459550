"""`GetWeights` and `PushUpdate` of the parameter server: the mode `gradients`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

import grpc

from cloud_learner.gradients.live import Live
from cloud_learner.gradients.rules import Outcome, judge
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.gradients.source import GradientSource
from cloud_learner.journal.audit import RunKey
from cloud_learner.serving.grpc_server import Context, require_device
from cloud_learner.training.stats import TrainingStats
from cloud_learner.uplink.throttle import Throttle
from shoal.episodes import Episode
from shoal.errors import StatisticsRefused, UpdateRefused, WireError
from shoal.gradients import Gradient, decode_gradient
from shoal.moments import Moments
from shoal.noise import RUN_ID_BYTES
from shoal.v1 import device_pb2, parameter_server_pb2
from shoal.v1 import update_pb2 as pb

MAX_EPISODES: Final = 65_536
MAX_METRICS: Final = 32
MAX_NAME: Final = 64
_TOO_MANY: Final = 1 << 62
TELL_AGAIN_S: Final = 60.0


class Told(Protocol):
    """What the fleet is told."""

    def note_chunk(self, device_id: str) -> None:
        """Something of a device's experience came."""

    def record(
        self,
        device_id: str,
        name: str,
        message: str,
        *,
        severity: device_pb2.Severity = ...,
        **fields: str,
    ) -> None:
        """An event of the learner about a device."""


class GradientService:
    """Decides about pushed gradients and applies them, on the event loop of the server.

    service = GradientService(source, stats, fleet_view, config, fleet="reef")
    response = await service.push(request, context)

    Small gradients are decoded and applied where they arrive: handing them to a thread costs more
    than they do (decision 0011). Large ones go to a thread for each shard.
    """

    def __init__(
        self,
        source: GradientSource,
        stats: TrainingStats,
        told: Told,
        config: GradientsConfig,
        *,
        fleet: str,
        newest_version: Callable[[], int] = lambda: 0,
    ) -> None:
        """Serves the weights of a source.

        Args:
            source: Weights, counts, and which updates came.
            stats: Where experience is counted.
            told: The view of the fleet.
            config: The bounds.
            fleet: The fleet served.
            newest_version: Of the policies published.
        """
        self._source = source
        self._stats = stats
        self._told = told
        self._config = config
        self._fleet = fleet
        self._newest_version = newest_version
        self._throttle = Throttle(TELL_AGAIN_S)

    async def weights(
        self, request: pb.GetWeightsRequest, context: Context
    ) -> AsyncIterator[parameter_server_pb2.Part]:
        """The weights as they are now, in parts; none when the device holds them."""
        await require_device(context, request.device_id, request.fleet, self._fleet)
        live = await self._require_live(context)
        if request.have_updates == live.updates and request.have_updates:
            return
        normalizer = self._source.normalizer
        acting = None if normalizer is None else normalizer.acting(request.acted_version)
        for part in live.parts(acting):
            yield part

    async def push(self, request: pb.PushUpdateRequest, context: Context) -> pb.PushUpdateResponse:
        """Applies a gradient, or says why not."""
        device_id = await require_device(context, request.device_id, request.fleet, self._fleet)
        live = await self._require_live(context)
        self._stats.note_bytes(len(request.body))
        lag = live.updates - request.updates
        try:
            outcome = await self._take(device_id, request, live, lag)
        except UpdateRefused as error:
            outcome = Outcome(error.reason)
            self._tell(device_id, outcome, str(error))
        except WireError as error:
            outcome = Outcome.MALFORMED
            self._tell(device_id, outcome, str(error))
        if outcome is not Outcome.APPLIED:
            self._source.tally.note(device_id, outcome)
        applied = outcome is Outcome.APPLIED
        return pb.PushUpdateResponse(
            applied=applied,
            reason="" if applied else outcome.value,
            updates=live.updates,
            lag_updates=max(0, lag),
            newest_version=self._newest_version(),
        )

    async def _take(
        self, device_id: str, request: pb.PushUpdateRequest, live: Live, lag: int
    ) -> Outcome:
        """Decides about an update and does it; up to `apply` nothing is awaited.

        Raises:
            WireError: It is malformed; nothing of it was counted.
        """
        if len(request.run_id) != RUN_ID_BYTES or request.seq >= _TOO_MANY:
            raise WireError("update: run_id must be 16 bytes, and seq below 2^62")
        episodes, moments = _episodes(request), self._moments(request)
        if not self._source.seen.note(RunKey(device_id, request.run_id), request.seq):
            return Outcome.DUPLICATE
        self._stats.note_experience(request.transitions, episodes)
        self._told.note_chunk(device_id)
        self._note_statistics(device_id, request)
        gradient = _decode(request, live)
        verdict = judge(lag, gradient.norm, self._config)
        if verdict.outcome is not Outcome.APPLIED:
            if verdict.outcome is Outcome.NORM:
                self._tell(
                    device_id,
                    Outcome.NORM,
                    f"a gradient of norm {gradient.norm:.3g} is over gradients.max_norm "
                    f"({self._config.max_norm:g})",
                )
            return verdict.outcome
        self._source.tally.note_applied(
            device_id,
            lag=lag,
            transitions=request.transitions,
            metrics={"gradient_norm": gradient.norm, **_metrics(request)},
        )
        applying = live.apply(gradient.values, verdict)
        self._source.note_applied(moments)
        await applying
        return Outcome.APPLIED

    def _note_statistics(self, device_id: str, request: pb.PushUpdateRequest) -> None:
        """Takes in what a device told of its observations, whatever becomes of the gradient."""
        normalizer = self._source.normalizer
        if normalizer is None:
            return
        if not request.HasField("statistics"):
            if request.transitions:  # else an earlier update told of the chunk
                self._tell_withheld(device_id)
            return
        try:
            run = RunKey(device_id, request.run_id)
            normalizer.note(run, request.seq, request.statistics)
        except StatisticsRefused as error:
            self._source.tally.note_statistics_refused(error.reason)
            told = self._throttle.count_to_tell(("statistics_refused", device_id, error.reason), 1)
            if told:
                self._told.record(
                    device_id,
                    "statistics_refused",
                    f"{error}; its observations do not go into the normalizer",
                    reason=error.reason,
                    count=str(told),
                )

    def _tell_withheld(self, device_id: str) -> None:
        told = self._throttle.count_to_tell(("statistics_withheld", device_id), 1)
        if told:
            self._told.record(
                device_id,
                "statistics_withheld",
                "it tells nothing of its observations, and training.network.normalize = true: "
                "the normalizer knows those of other devices alone; set gradients.share_moments = "
                "true on it",
                count=str(told),
            )

    def _moments(self, request: pb.PushUpdateRequest) -> Moments | None:
        layout = self._source.layout
        if layout is None or not request.HasField("moments"):
            return None
        return Moments.from_pb(request.moments, layout)

    def _tell(self, device_id: str, outcome: Outcome, problem: str) -> None:
        told = self._throttle.count_to_tell(("update_refused", device_id, outcome.value), 1)
        if told:
            self._told.record(
                device_id, "update_refused", problem, reason=outcome.value, count=str(told)
            )

    async def _require_live(self, context: Context) -> Live:
        live = self._source.live
        if live is None:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "no weights yet: the learner waits for its first device",
            )
            raise AssertionError("abort raises")
        return live


def _decode(request: pb.PushUpdateRequest, live: Live) -> Gradient:
    if request.layout_digest != live.layout_digest or request.parameters != live.parameters:
        raise UpdateRefused(
            "layout",
            f"a gradient of {request.parameters} parameters in another layout than the "
            f"{live.parameters} trained here: get the weights anew",
        )
    return decode_gradient(request.codec, request.parameters, request.body)


def _episodes(request: pb.PushUpdateRequest) -> list[Episode]:
    if len(request.episodes) > MAX_EPISODES or request.transitions >= 1 << 40:
        raise WireError("update: more episodes or transitions than one update can be of")
    found = [Episode(e.env, e.step, e.total_return, e.length) for e in request.episodes]
    for each in found:
        if not math.isfinite(each.total_return) or not 1 <= each.length < _TOO_MANY:
            raise WireError("update: an episode's return or length is out of range")
    return found


def _metrics(request: pb.PushUpdateRequest) -> dict[str, float]:
    """Those that make sense, at most `MAX_METRICS`."""
    return {
        name: value
        for name, value in list(request.metrics.items())[:MAX_METRICS]
        if len(name) <= MAX_NAME and name.isidentifier() and math.isfinite(value)
    }
