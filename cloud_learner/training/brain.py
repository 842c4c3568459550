"""Learner and quantizer of one pair of spaces."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.training.learner import Learner
from shoal.spaces import EnvSpec


@dataclass(frozen=True, slots=True)
class Brain:
    """What is trained, for one pair of spaces."""

    spec: EnvSpec
    learner: Learner
    quantizer: Quantizer
