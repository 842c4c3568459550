"""Policies of every kind, to quantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from networks import ACTIONS, NEST, Case, bounded, make_case, of_kind, pixels
from torch import nn

from cloud_learner.config import NetworkConfig
from cloud_learner.quantization.quantize import Quantizer
from shoal.spaces import Box, Discrete, unbounded


def dense(*hidden: int) -> NetworkConfig:
    return NetworkConfig(hidden=hidden)


def cartpole(seed: int = 0) -> Case:
    return make_case(unbounded((4,)), Discrete(2), dense(64, 64), seed=seed)


def layer(case: Case, place: int) -> nn.Linear:
    found = case.policy.network.layers[place]
    assert isinstance(found, nn.Linear)
    return found


def full(dtype: str, shape: tuple[int, ...], high: float) -> Box:
    return Box(np.zeros(shape, dtype), np.full(shape, high, dtype))


CASES: dict[str, Callable[[], Case]] = {
    "cartpole": cartpole,
    "three layers": lambda: make_case(unbounded((6,)), Discrete(5), dense(16, 24, 8)),
    "one layer": lambda: make_case(unbounded((6,)), Discrete(5), dense(16)),
    "one action": lambda: make_case(unbounded((3,)), Discrete(1)),
    "float64": lambda: make_case(unbounded((4,), np.float64), Discrete(3)),
    "scalar": lambda: make_case(unbounded(()), Discrete(3)),
    "pixels": lambda: make_case(full("u1", (4, 5), 255), Discrete(3)),
    "int32": lambda: make_case(full("i4", (7,), 100), Discrete(3)),
    "bool": lambda: make_case(full("?", (7,), 1), Discrete(3)),
    "box": lambda: make_case(unbounded((4,)), full("f4", (2,), 4.0)),
    "box of one": lambda: make_case(unbounded((3,)), unbounded((1,))),
    "box matrix": lambda: make_case(unbounded((3,)), unbounded((2, 3))),
    "box scalar": lambda: make_case(unbounded((3,)), unbounded(())),
    "normalized": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("mlp", normalize=True)),
    "multi-discrete": lambda: make_case(unbounded((3,)), ACTIONS["2-D multi-discrete"]),
    "squash": lambda: make_case(unbounded((3,)), bounded((2,), -1.0, 2.0), head="squash"),
    "greedy": lambda: make_case(unbounded((3,)), Discrete(4), head="greedy", dueling=True),
    "image": lambda: make_case(pixels(20, 20, 2), Discrete(3)),
    "nest": lambda: make_case(NEST, ACTIONS["dict"]),
    "lstm": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("lstm")),
    "attention": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("attention")),
    "nest lstm": lambda: make_case(NEST, ACTIONS["dict"], of_kind("lstm", normalize=True)),
    "own torso": lambda: make_case(unbounded((4,)), Discrete(3), of_kind("networks:own_torso")),
}


def quantizer_for(case: Case, kl_max: float = 1.0) -> Quantizer:
    return Quantizer(case.policy, kl_max=kl_max)


def nudge(case: Case, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in case.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
