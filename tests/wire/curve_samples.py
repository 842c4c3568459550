"""Samples of what operators are told of the learning curve; see `samples.py`."""

from __future__ import annotations

from google.protobuf.message import Message

from shoal.v1 import curve_pb2


def curve_samples() -> dict[str, Message]:
    return {
        "GetCurveRequest": curve_pb2.GetCurveRequest(fleet="reef"),
        "CurvePoint": curve_pb2.CurvePoint(env_steps=2048, return_mean=31.5),
        "LearningCurve": curve_pb2.LearningCurve(
            points=[
                curve_pb2.CurvePoint(env_steps=2048, return_mean=31.5),
                curve_pb2.CurvePoint(env_steps=4096, return_mean=-7.25),
            ],
            env_id="CartPole-v1",
            reward_threshold=475.0,
            algorithm="cloud_learner.algorithms.appo:APPO",
        ),
    }
