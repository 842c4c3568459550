"""What a device of the mode `gradients` computes with: the algorithm's own loss, in torch.

A device loads it by its dotted path; it needs `pip install shoal[train]`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from cloud_learner.algorithms.differentiable import Differentiable, differentiable
from cloud_learner.algorithms.interface import Setup
from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import NetworkConfig
from cloud_learner.models.normalizer import Normalizer
from cloud_learner.training.experience import Admitted, collate
from shoal.acting_normalizer import ActingNormalizer
from shoal.envelope import ChunkKey
from shoal.errors import ConfigError, WireError
from shoal.gradients import Computed, Weights
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk


class Worker:
    """Computes gradients of chunks at the weights that it took last.

    >>> worker = Worker(spec, allow=())
    >>> worker.take(weights)
    >>> worker.begin(chunk)
    >>> worker.gradient().values             # [P]; and again, at newer weights
    """

    def __init__(self, spec: EnvSpec, *, allow: Sequence[str] = ()) -> None:
        """Waits for weights.

        Args:
            spec: The device's spaces.
            allow: Dotted paths of algorithms and torsos, beyond Shoal's own, that the learner may
                name: what it names is imported and runs here.
        """
        torch.set_num_threads(1)
        self._spec = spec
        self._allow = frozenset(allow)
        self._setup: Mapping[str, object] | None = None
        self._algorithm: Differentiable | None = None
        self._normalizer: Normalizer | None = None
        self._targets: object = None

    def take(self, weights: Weights) -> None:
        """Takes over weights, and builds what they are of if that changed.

        Raises:
            ConfigError: The learner trains with what this device has not, or may not run.
            WireError: The weights are not of what the learner says.
        """
        if self._algorithm is None or weights.setup != self._setup:
            self._algorithm = self._build(weights.setup, len(weights.values))
            self._setup, self._targets = weights.setup, None
        algorithm = self._algorithm
        if algorithm.layout_digest != weights.layout_digest:
            raise ConfigError(
                "the learner's parameters are laid out otherwise than here: its network is for "
                "other spaces than this device's environment has, or one side is of another version"
            )
        if algorithm.flat.shape != weights.values.shape:
            raise WireError(
                f"weights: {weights.values.size} came, the network has {algorithm.flat.size}"
            )
        self._normalize_as(weights.normalizer)
        algorithm.flat[:] = weights.values
        algorithm.note_updates(weights.updates)

    def _normalize_as(self, acting: ActingNormalizer | None) -> None:
        """Has the networks see observations as the version did that acted.

        Raises:
            WireError: The learner sent no normalizer, or one of other observations.
        """
        normalizer = self._normalizer
        told = 0 if acting is None else len(acting.shift)
        wanted = 0 if normalizer is None else normalizer.numbers
        if told != wanted:
            raise WireError(
                f"weights: a normalizer of {told} numbers came, observations have {wanted} to "
                "normalize"
            )
        if normalizer is not None and acting is not None:
            normalizer.act_as(acting)

    def begin(self, chunk: Chunk) -> None:
        """Begins with a chunk: its targets are as of the weights taken last.

        Raises:
            WireError: No weights were taken.
        """
        if self._algorithm is None:
            raise WireError("no weights were taken yet")
        only = Admitted(ChunkKey("", b"", 0), 0, chunk, 0)
        self._targets = self._algorithm.prepare(collate([only], updates_now=0))

    def gradient(self) -> Computed:
        """The gradient of that chunk's loss at the weights taken last.

        Raises:
            WireError: No chunk was begun since the network was built.
        """
        if self._algorithm is None or self._targets is None:
            raise WireError("no chunk was begun with these weights")
        return self._algorithm.gradient(self._targets)

    def _build(self, setup: Mapping[str, object], parameters: int) -> Differentiable:
        recipe = Recipe.from_json(setup, source="weights of the learner")
        for path in recipe.foreign():
            if path not in self._allow:
                raise ConfigError(
                    f"the learner trains with {path!r}, which is not Shoal's own: to run it on "
                    f'this device, set gradients.allow = ["{path}"]'
                )
        _require_size(recipe.network, parameters)
        made = recipe.choice().build(Setup(self._spec, recipe.network, seed=0))
        self._normalizer = made.policy.normalizer
        return differentiable(made, recipe.algorithm)


def _require_size(network: NetworkConfig, parameters: int) -> None:
    """Refuses what would need more memory than the weights that came, before it is built.

    Raises:
        WireError: Two layers that follow each other, or a memory, alone have more parameters.
    """
    fewest = [*network.hidden, *(a * b for a, b in itertools.pairwise(network.hidden))]
    if network.kind in ("lstm", "attention"):
        fewest.append(network.memory)
    if network.kind == "cnn":
        fewest.append(network.filters)
    if max(fewest) > parameters:
        raise WireError(f"weights: {parameters} are too few for the network they are said to be of")


def make_worker(spec: EnvSpec, *, allow: Sequence[str]) -> Worker:
    """What a device calls."""
    return Worker(spec, allow=allow)
