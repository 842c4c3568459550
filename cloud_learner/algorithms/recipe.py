"""What training is made with: algorithm, settings and network, as plain JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from cloud_learner.algorithms.interface import Choice, load_algorithm
from cloud_learner.config import NetworkConfig
from shoal.config import read_table
from shoal.errors import WireError

_OWN: Final = "cloud_learner.algorithms."
"""Modules whose classes need nobody's leave: those that come with Shoal."""
_IMAGES: Final = frozenset({"auto", "cnn"})
_PLAIN: Final = frozenset({"auto", "mlp"})
_MEMORIES: Final = frozenset({"lstm", "attention"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """Names an algorithm and describes its network; there is no code in it.

    >>> recipe = Recipe.of(choice, config.training.network)
    >>> Recipe.from_json(recipe.to_json()).choice().build(Setup(spec, recipe.network, seed=0))

    Attributes:
        algorithm: `module:Class`.
        settings: Of the algorithm, each of them.
        network: Its kind and size.
    """

    algorithm: str
    settings: Mapping[str, object]
    network: NetworkConfig

    @classmethod
    def of(cls, choice: Choice, network: NetworkConfig) -> Self:
        """What a configuration asks for."""
        settings = dataclasses.asdict(choice.settings)  # type: ignore[call-overload] # a dataclass
        return cls(choice.path, settings, network)

    @classmethod
    def from_json(cls, value: Mapping[str, object], *, source: str) -> Self:
        """Reads what `to_json` gave, of whoever says so; imports nothing.

        Args:
            value: An object of JSON.
            source: Who said so, for messages.

        Raises:
            WireError: A part is missing.
            ConfigError: The network is none that this version knows.
        """
        path, settings, network = (value.get(key) for key in ("algorithm", "settings", "network"))
        if not isinstance(path, str) or not isinstance(settings, dict):
            raise WireError(f"{source}: the setup names no algorithm, or no settings")
        if not isinstance(network, dict):
            raise WireError(f"{source}: the setup describes no network")
        return cls(path, settings, read_table(NetworkConfig, network, key="network", source=source))

    def to_json(self) -> dict[str, object]:
        """An object of JSON."""
        return {
            "algorithm": self.algorithm,
            "settings": dict(self.settings),
            "network": dataclasses.asdict(self.network),
        }

    def choice(self) -> Choice:
        """The algorithm with its settings; imports it.

        Raises:
            ConfigError: It is not there, or a setting is none of its own.
        """
        return load_algorithm(self.algorithm, self.settings)

    def foreign(self) -> list[str]:
        """Which code it names that is not Shoal's own: dotted paths."""
        own = self.algorithm.startswith(_OWN) and self.algorithm.count(":") == 1
        named = [] if own else [self.algorithm]
        return named + ([self.network.kind] if ":" in self.network.kind else [])

    def trains_as(self, other: Recipe) -> bool:
        """Whether the weights of one can be those of the other: settings may change."""
        return self.algorithm == other.algorithm and _same(self.network, other.network)

    def __str__(self) -> str:
        """For people: the algorithm and all that its network has beyond the usual."""
        network, usual = self.network, NetworkConfig()
        parts = [f"kind {network.kind!r}", f"hidden {list(network.hidden)}"]
        parts += [
            f"{key} {value}"
            for key, value in dataclasses.asdict(network).items()
            if key not in ("kind", "hidden") and value != getattr(usual, key)
        ]
        return f"{self.algorithm} with a network of {', '.join(parts)}"


def _same(one: NetworkConfig, other: NetworkConfig) -> bool:
    """Whether two networks may have the same weights; what spaces decide is not told apart."""
    kinds = {one.kind, other.kind}
    if len(kinds) > 1 and not (kinds <= _IMAGES or kinds <= _PLAIN):
        return False
    if (one.hidden, one.normalize) != (other.hidden, other.normalize):
        return False
    if kinds == {"cnn"} and one.filters != other.filters:
        return False
    if kinds <= _MEMORIES and one.memory != other.memory:
        return False
    return kinds != {"attention"} or one.window == other.window
