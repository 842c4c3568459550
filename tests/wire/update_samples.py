"""Samples of the messages of the mode `gradients`, for `samples.py`."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import Message
from strategies import DIGEST, RUN_ID

from shoal.acting_normalizer import ActingNormalizer
from shoal.observation_statistics import ObservationStatistics
from shoal.v1 import device_pb2, fleet_pb2, trajectory_pb2, update_pb2


def updates(telemetry: device_pb2.Telemetry) -> dict[str, Message]:
    """Every message of `update.proto`, and what others say of updates.

    Args:
        telemetry: Of a device that pushes none.
    """
    pushing = device_pb2.Telemetry()
    pushing.CopyFrom(telemetry)
    pushing.updates_pushed, pushing.updates_applied = 40, 38
    pushing.gradient_chunks_dropped = 3
    moments = update_pb2.ObservationMoments(
        count=256,
        mean=np.array([0.5, -1.0], "<f4").tobytes(),
        variance=np.array([0.25, 1.0], "<f4").tobytes(),
        low=np.array([-2.0, -4.0], "<f4").tobytes(),
        high=np.array([2.0, 3.0], "<f4").tobytes(),
    )
    update = update_pb2.PushUpdateRequest(
        fleet="farm",
        device_id="pi-1",
        run_id=RUN_ID,
        seq=12,
        layout_digest=DIGEST,
        updates=110,
        policy_version=7,
        transitions=256,
        codec=update_pb2.GRADIENT_CODEC_INT8,
        parameters=3,
        body=np.array([0.25], "<f4").tobytes() + bytes([1, 127, 255]),
        episodes=[trajectory_pb2.Episode(env=1, step=3, total_return=21.5, length=22)],
        metrics={"policy_loss": -0.03125},
        moments=moments,
    )
    return {
        "Telemetry.gradients": pushing,
        "Device.gradients": fleet_pb2.Device(device_id="pi-1", gradients={"applied": 38, "lag": 2}),
        "ObservationMoments": moments,
        "PushUpdateRequest": update,
        "PushUpdateResponse": update_pb2.PushUpdateResponse(
            applied=False, reason="lag", updates=400, lag_updates=290, newest_version=9
        ),
        "GetWeightsRequest": update_pb2.GetWeightsRequest(
            fleet="farm", device_id="pi-1", have_updates=108
        ),
        **_statistics(update),
        "Weights": update_pb2.Weights(
            layout_digest=DIGEST,
            updates=110,
            values=np.array([0.5, -1.0, 2.0], "<f4").tobytes(),
            setup=b'{"algorithm": "cloud_learner.algorithms.appo:APPO"}',
        ),
    }


def _statistics(update: update_pb2.PushUpdateRequest) -> dict[str, Message]:
    """What goes up and down where observations are normalized.

    Args:
        update: Of a device that tells no statistics.
    """
    statistics = ObservationStatistics(
        512, np.array([0.5, -1000.0]), np.array([128.0, 2.5e8])
    ).to_pb()
    acting = ActingNormalizer(
        7, np.array([0.5, -1000.0], np.float32), np.array([2.0, 0.25], np.float32)
    )
    telling = update_pb2.PushUpdateRequest()
    telling.CopyFrom(update)
    telling.statistics.CopyFrom(statistics)
    return {
        "ObservationStatistics": statistics,
        "ActingNormalizer": acting.to_pb(),
        "PushUpdateRequest.statistics": telling,
        "GetWeightsRequest.acted_version": update_pb2.GetWeightsRequest(
            fleet="farm", device_id="pi-1", have_updates=108, acted_version=7
        ),
        "Weights.normalizer": update_pb2.Weights(
            layout_digest=DIGEST,
            updates=110,
            values=np.array([0.5, -1.0, 2.0], "<f4").tobytes(),
            setup=b'{"algorithm": "cloud_learner.algorithms.appo:APPO"}',
            normalizer=acting.to_pb(),
        ),
    }
