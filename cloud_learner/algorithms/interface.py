"""What an algorithm is to the learner, and how one is found by its dotted path."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from cloud_learner.config import NetworkConfig
from cloud_learner.models.policy import Policy
from cloud_learner.training.experience import Batch, Transitions
from shoal.config import read_table
from shoal.errors import ConfigError
from shoal.spaces import EnvSpec

DataKind = Literal["rollouts", "transitions"]
State = Mapping[str, Any]
"""Tensors, numbers, text, and dicts and lists of them: what `torch.save` keeps without code."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What an algorithm is built for.

    Attributes:
        spec: The spaces.
        network: The network's kind and size.
        seed: Of weights and of everything drawn at random.
    """

    spec: EnvSpec
    network: NetworkConfig
    seed: int


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What an algorithm asks of devices, beyond the policy itself.

    Attributes:
        noise_correlation: Of one step's normal noise with the next step's, 0 to 1.
        priority_gamma: Discount of the TD errors that devices report; 0 asks for none.
    """

    noise_correlation: float = 0.0
    priority_gamma: float = 0.0


class Algorithm(Protocol):
    """Holds the weights and changes them in `learn`, and nowhere else.

    Optional, where an algorithm has them:

    * `behaviour: Behaviour`, which goes into every manifest;
    * `observe(fresh: Fresh) -> None`, for transitions: sees every chunk once, before it is drawn
      from; left out, `policy.observe` sees the observations;
    * `errors`, for transitions: the |TD error| `[M]` of each row of the last `learn`, from which
      prioritized replay takes its priorities; None while there are none;
    * `note_given_weights() -> None`: called once when the policy's weights were set from a file,
      for what follows them, such as a target network;
    * `skipped: int`: updates that were left out since a loss or gradient was not finite;
    * `flat`, `layout_digest`, `gradient` and `note_updates`, for rollouts: with them devices can
      compute its gradients, see `cloud_learner.algorithms.differentiable`;
    * fields of `Settings` named like those of `Sampling` shape what replay of transitions gives.

    Attributes:
        Settings: A frozen dataclass; the table `[training.settings]` is read into it.
        data: `rollouts`: whole chunks, each trained from once; `transitions`: drawn from a store.
        policy: What is quantized and published.
    """

    Settings: ClassVar[type[Any]]
    data: ClassVar[DataKind]
    policy: Policy

    def __init__(self, setup: Setup, settings: Any) -> None:  # noqa: ANN401 - of its own class
        """Builds the networks; equal seeds give equal weights.

        Raises:
            ConfigError: The algorithm cannot act in these spaces, or not with this network.
        """

    @property
    def updates(self) -> int:
        """Optimiser updates since these weights began: the unit of lag."""

    def learn(self, batch: Any) -> Mapping[str, float]:  # noqa: ANN401 - `Batch` or `Transitions`
        """Trains from a `Batch` or from `Transitions`; returns scalars by name."""

    def state_dict(self) -> State:
        """A copy of everything training goes on from."""

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another network.
        """


Experience = Batch | Transitions


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm as the configuration chose it.

    Attributes:
        path: `module:Class`.
        make: The class.
        settings: Its settings, checked.
    """

    path: str
    make: type[Algorithm]
    settings: object

    @property
    def data(self) -> DataKind:
        """What it trains from."""
        return self.make.data

    def build(self, setup: Setup) -> Algorithm:
        """Builds it for a pair of spaces.

        Raises:
            ConfigError: It cannot act in them, or lacks what only an instance can show.
        """
        made = self.make(setup, self.settings)
        for name in ("policy", "updates"):
            if not hasattr(made, name):
                raise ConfigError(f"training.algorithm = {self.path!r} sets no {name!r} when built")
        return made


def load_algorithm(path: str, settings: Mapping[str, object]) -> Choice:
    """Finds an algorithm and reads its settings.

    Args:
        path: `module:Class`; the module lies beside the installed ones or in the current directory.
        settings: The table `[training.settings]`.

    Raises:
        ConfigError: There is no such class, it lacks a part of `Algorithm`, or a setting is
            unknown, of the wrong type or out of its range.
    """
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it: a user's own module lies beside them
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"training.algorithm = {path!r} cannot be loaded ({error}); name it as module:Class"
        ) from error
    _check(path, made)
    make = cast("type[Algorithm]", made)
    return Choice(path, make, read_table(make.Settings, settings, key="training.settings"))


def _check(path: str, made: object) -> None:
    """Refuses by name what is no algorithm, before anything starts."""
    where = f"training.algorithm = {path!r}"
    if not isinstance(made, type):
        raise ConfigError(f"{where} is not a class")
    settings = getattr(made, "Settings", None)
    if not isinstance(settings, type) or not dataclasses.is_dataclass(settings):
        raise ConfigError(f"{where} has no dataclass 'Settings', for [training.settings]")
    if getattr(made, "data", None) not in ("rollouts", "transitions"):
        raise ConfigError(f'{where} has no \'data\': set it to "rollouts" or "transitions"')
    for method in ("learn", "state_dict", "load_state_dict"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(f"{where} has no method {method!r}")
    for name in ("policy", "updates"):
        if not _declares(made, name):
            raise ConfigError(f"{where} has no {name!r}: set it in __init__")


def _declares(made: type, name: str) -> bool:
    """Whether a class has an attribute, names it in an annotation, or sets it in `__init__`."""
    if hasattr(made, name):
        return True
    for each in made.__mro__:
        code = getattr(each.__dict__.get("__init__"), "__code__", None)
        if name in inspect.get_annotations(each) or name in getattr(code, "co_names", ()):
            return True
    return False
