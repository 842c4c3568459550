"""A network of your own: layers between the observation and the head.

    shoal demo --network examples.torso:tapered --set training.network.hidden=[96,24]

The function gets the number of inputs and the table `[training.network]`, and gives an
`nn.Sequential` of Linear, ReLU and Tanh. What it gives is trained, quantized to int8 and run by the
devices like any other; memory, normalizer and head are added by the learner.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from cloud_learner.config import NetworkConfig


def tapered(inputs: int, network: NetworkConfig) -> nn.Sequential:
    """Layers that narrow evenly from the first of `hidden` to the last, with tanh between."""
    first, last = network.hidden[0], network.hidden[-1]
    widths = [inputs, first, (first + last) // 2, last]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after)
        nn.init.orthogonal_(linear.weight, gain=5 / 3)  # what tanh asks for
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers)
