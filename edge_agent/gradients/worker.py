"""What computes gradients on a device: found by its dotted path, as environments are."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from edge_agent.environments.env import one_line
from shoal.errors import ConfigError
from shoal.gradients import Computed, Weights
from shoal.spaces import EnvSpec
from shoal.trajectory import Chunk


class GradientWorker(Protocol):
    """Computes in one thread at a time."""

    def take(self, weights: Weights) -> None:
        """Takes over weights, or raises `ShoalError`."""

    def begin(self, chunk: Chunk) -> None:
        """Begins with a chunk at the weights taken last."""

    def gradient(self) -> Computed:
        """The gradient of that chunk's loss at the weights taken last."""


class MakeWorker(Protocol):
    """What `gradients.worker` names."""

    def __call__(self, spec: EnvSpec, *, allow: Sequence[str]) -> GradientWorker:
        """A worker for some spaces."""


def find_worker(path: str) -> MakeWorker:
    """Imports what computes gradients.

    Args:
        path: `module:attr`.

    Raises:
        ConfigError: It cannot be imported: it is not there, or needs what is not installed.
    """
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        how = (
            "pip install 'shoal[train]'"
            if missing in ("torch", "cloud_learner")
            else "install it, or correct gradients.worker"
        )
        raise ConfigError(
            f'mode = "gradients" computes on this device, and {missing} is not installed: {how}'
        ) from error
    except Exception as error:
        raise ConfigError(
            f'gradients.worker = "{path}" cannot be imported: '
            f"{type(error).__name__}: {one_line(error)}"
        ) from error
    if not callable(found):
        raise ConfigError(f'gradients.worker = "{path}" cannot be called: name a module:function')
    return cast("MakeWorker", found)
