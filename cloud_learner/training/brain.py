"""Learner and quantizer of one pair of spaces."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.algorithms.interface import Choice, Setup
from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import TrainingConfig
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.training.learner import Learner
from cloud_learner.training.sources import kl_bound
from shoal.spaces import EnvSpec


@dataclass(frozen=True, slots=True)
class Brain:
    """What is trained, for one pair of spaces, and what it is made with."""

    spec: EnvSpec
    learner: Learner
    quantizer: Quantizer
    recipe: Recipe


def make_brain(spec: EnvSpec, training: TrainingConfig, choice: Choice, *, seed: int) -> Brain:
    """Builds it with fresh weights.

    Raises:
        WireError: The spaces are of a kind that no model is made for.
        ConfigError: The network cannot be built, or the algorithm cannot act in these spaces.
    """
    learner = Learner(choice.build(Setup(spec, training.network, seed)), name=choice.path)
    quantizer = Quantizer(
        learner.policy, kl_max=kl_bound(training, choice.data), dead_zone=training.dead_zone
    )
    return Brain(spec, learner, quantizer, Recipe.of(choice, training.network))
