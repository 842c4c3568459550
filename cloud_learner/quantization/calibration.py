"""Ranges of inputs and activations, from what a policy gives for recent observations."""

from __future__ import annotations

import torch
from torch import Tensor

from cloud_learner.models.features import Features
from cloud_learner.models.integers import HEADROOM
from cloud_learner.models.network import FloatRunner, Past
from cloud_learner.models.plan import Dense, flow
from cloud_learner.models.policy import Policy
from cloud_learner.quantization.sample import Sample
from cloud_learner.quantization.tensors import Ranges


def calibrate(policy: Policy, rows: Sample, ranges: Ranges) -> Tensor:
    """Moves the ranges of inputs and activations, and gives the fp32 distribution `[M, P]`."""
    plan = policy.plan

    def cover(name: str, data: Tensor) -> None:
        if name == "input":
            if not plan.features.all_pixels:
                ranges.cover_sample(name, data.abs().flatten(0, -2).amax(0))
            return
        layer = plan.layers[int(name.partition(".")[2])] if name != "memory" else None
        if isinstance(layer, Dense) and layer.activation == "tanh":
            return
        reach = torch.maximum(data.amax(), -data.amin())  # reads twice, but writes nothing
        ranges.cover_sample(name, reach.reshape(1))

    observations, past = _inputs(policy, rows)
    features: Features = policy.features(observations)
    outputs = flow(plan, FloatRunner(policy.network, features, past=past, watch=cover)).data
    params = policy.params(outputs)
    return params if past is None else params[0]


def fresh_ranges(policy: Policy, rows: Sample) -> Ranges:
    """Ranges of inputs and activations that owe nothing to earlier versions, with some headroom."""
    ranges = Ranges()
    calibrate(policy, rows, ranges)
    ranges.held = {name: reach * HEADROOM for name, reach in ranges.held.items()}
    return ranges


def answer(policy: Policy, rows: Sample) -> Tensor:
    """What a policy gives `[M, P]`."""
    observations, past = _inputs(policy, rows)
    if past is None:
        params: Tensor = policy(observations)
        return params
    return policy.unroll(observations, past.state, past.starts).params[0]


def _inputs(policy: Policy, rows: Sample) -> tuple[Tensor, Past | None]:
    """Rows as torch takes them: `[M, *obs]`, or with memory one step of M environments."""
    observations = torch.from_numpy(rows.observations)
    if not policy.state_width:
        return observations, None
    starts = torch.zeros(1, len(rows.observations), dtype=torch.bool)
    return observations.unsqueeze(0), Past(torch.from_numpy(rows.states), starts)
