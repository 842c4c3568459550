"""The learning curve since the learner started, as operators read it: `shoal.v1.Curves`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc.aio

from cloud_learner.fleet.service import require_operator
from cloud_learner.serving.grpc_server import Context
from cloud_learner.training.learning_curve import LearningCurve
from cloud_learner.training.stats import TrainingStats
from shoal.spaces import EnvSpec
from shoal.v1 import curve_pb2 as pb
from shoal.v1 import curve_pb2_grpc as rpc

SAMPLE_S: Final = 1.0
"""Between two looks at the returns: what a view needs, and training does not feel."""


class CurveService(rpc.CurvesServicer):
    """Notes how the returns go, whatever the training's mode, and serves that to operators.

    service = CurveService(stats, spec_of, "module:APPO", fleet="reef")
    await run_services({"curve": service.serve, ...})
    """

    def __init__(
        self,
        stats: TrainingStats,
        spec: Callable[[], EnvSpec | None],
        algorithm: str,
        *,
        fleet: str,
    ) -> None:
        """Begins with what a learner that resumes knows already.

        Args:
            stats: Of the training.
            spec: What is trained for; None before a device was there.
            algorithm: Its dotted path.
            fleet: The fleet served.
        """
        self._stats = stats
        self._spec = spec
        self._algorithm = algorithm
        self._fleet = fleet
        self._curve = LearningCurve()
        self._episodes = 0
        self.sample()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the calls."""
        rpc.add_CurvesServicer_to_server(self, server)

    def stop_streams(self) -> None:
        """There are none."""

    async def serve(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.sample()

    def sample(self) -> None:
        """Notes where the returns are now, if an episode ended since."""
        if self._stats.window and self._stats.episodes != self._episodes:
            self._episodes = self._stats.episodes
            self._curve.note(self._stats.env_steps, self._stats.return_mean)

    async def GetCurve(  # noqa: N802 - the name in the proto
        self, request: pb.GetCurveRequest, context: Context
    ) -> pb.LearningCurve:
        """The curve until now."""
        await require_operator(context, request.fleet, self._fleet)
        self.sample()
        spec = self._spec()
        return pb.LearningCurve(
            points=[
                pb.CurvePoint(env_steps=point.env_steps, return_mean=point.return_mean)
                for point in self._curve.points
            ],
            env_id="" if spec is None else spec.env_id,
            reward_threshold=None if spec is None else spec.reward_threshold,
            algorithm=self._algorithm,
        )
