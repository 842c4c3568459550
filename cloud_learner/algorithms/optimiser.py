"""Adam over one flat tensor of parameters, safe against numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from cloud_learner.config import require
from shoal.errors import CheckpointError

_BETAS: Final = (0.9, 0.999)


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """How an optimiser steps; settings of algorithms extend this.

    Attributes:
        learning_rate: At the start.
        final_learning_rate: After `anneal_updates`, linearly; None: constant.
        anneal_updates: Updates until then; 0: constant.
        max_grad_norm: Gradients longer than this are shortened to it; inf: never.
        adam_eps: Adam's epsilon.
    """

    learning_rate: float = 1e-3
    final_learning_rate: float | None = None
    anneal_updates: int = 0
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5

    def __post_init__(self) -> None:
        for key in ("learning_rate", "adam_eps", "max_grad_norm"):
            require(getattr(self, key) > 0.0, key, getattr(self, key), "more than 0")
        final = self.final_learning_rate
        require(final is None or final >= 0.0, "final_learning_rate", final, "0 or more")
        require(
            self.anneal_updates >= 0, "anneal_updates", self.anneal_updates, "0 (constant) or more"
        )


class OptimiserState(TypedDict):
    """What a checkpoint keeps beside the weights."""

    first_moment: Tensor
    second_moment: Tensor
    adam_steps: int
    updates: int
    skipped: int


class Optimiser:
    """Descends losses.

    The parameters live in one flat tensor and the model's own are views of it, so norm, finite
    check and Adam cost one operation each however many layers there are.

    >>> optimiser = Optimiser(model.parameters(), OptimiserSettings())
    >>> optimiser.descend(loss)      # the gradient's norm; None when nothing could be done

    Attributes:
        flat: `[P]`, all parameters.
        leaves: What losses are functions of: the parameters, or their stacks.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], settings: OptimiserSettings, *, copies: int = 1
    ) -> None:
        """Takes over the parameters.

        Args:
            parameters: Of one module, or of equal ones, one after another.
            settings: How to step.
            copies: How many equal modules there are; with more than one, losses are functions of
                `leaves`, see `stacked`.
        """
        self._settings = settings
        own = list(parameters)
        self.flat = flatten(own)
        self._copies = copies
        self.leaves: Sequence[Tensor] = own if copies == 1 else stacked(self.flat, own, copies)
        # The function and not the class `torch.optim.Adam`, which loads the compiler: a second.
        self._first_moment = torch.zeros_like(self.flat, requires_grad=False)
        self._second_moment = torch.zeros_like(self.flat, requires_grad=False)
        self._adam_steps = torch.zeros(())
        self._updates = 0
        self._skipped = 0

    @property
    def updates(self) -> int:
        """Losses that were descended."""
        return self._updates

    @property
    def skipped(self) -> int:
        """Losses that were passed over: they or their gradients were not finite."""
        return self._skipped

    @property
    def learning_rate(self) -> float:
        """What the schedule says now."""
        settings = self._settings
        if settings.final_learning_rate is None:
            return settings.learning_rate
        return annealed(
            settings.learning_rate,
            settings.final_learning_rate,
            self._updates,
            settings.anneal_updates,
        )

    def descend(self, loss: Tensor, *, learning_rate: float | None = None) -> float | None:
        """Makes one update.

        Args:
            loss: A scalar.
            learning_rate: None takes what the schedule says.

        Returns:
            The gradient's norm before clipping. None when loss or gradient is not finite: nothing
            was changed, and it is counted.
        """
        flat = self.gradient(loss)
        return self.step(flat, loss.item(), learning_rate=learning_rate)

    def step(
        self, flat: Tensor, loss: float, *, learning_rate: float | None = None
    ) -> float | None:
        """As `descend`, with a gradient `[P]` that is known already; it may be overwritten."""
        norm = float(torch.linalg.vector_norm(flat))
        if not norm < math.inf or not math.isfinite(loss):
            self._skipped += 1
            return None
        if norm > self._settings.max_grad_norm:
            flat.mul_(self._settings.max_grad_norm / norm)
        with torch.no_grad():
            adam(
                [self.flat],
                [flat],
                [self._first_moment],
                [self._second_moment],
                [],
                [self._adam_steps],
                fused=True,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=self.learning_rate if learning_rate is None else learning_rate,
                weight_decay=0.0,
                eps=self._settings.adam_eps,
                maximize=False,
            )
        self._updates += 1
        return norm

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient `[P]` of a loss, in the order of `flat`."""
        gradients = torch.autograd.grad(loss, self.leaves, materialize_grads=True)
        each = [gradient.reshape(self._copies, -1) for gradient in gradients]
        return torch.cat(each, 1).reshape(-1)

    def restart(self) -> None:
        """Forgets the moments of earlier gradients; the count of updates goes on."""
        self._first_moment.zero_()
        self._second_moment.zero_()
        self._adam_steps.zero_()

    def note_updates(self, updates: int) -> None:
        """Takes over a count of updates that were made elsewhere: schedules follow it."""
        self._updates = updates

    def state_dict(self) -> OptimiserState:
        """A copy of everything but the weights."""
        return OptimiserState(
            first_moment=self._first_moment.clone(),
            second_moment=self._second_moment.clone(),
            adam_steps=int(self._adam_steps),
            updates=self._updates,
            skipped=self._skipped,
        )

    def load_state_dict(self, state: OptimiserState) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another network.
        """
        if state["first_moment"].shape != self.flat.shape:
            raise CheckpointError(
                f"the checkpoint holds {state['first_moment'].numel()} weights, this network has "
                f"{self.flat.numel()}: resume with the training.network it was made with"
            )
        self._first_moment.copy_(state["first_moment"])
        self._second_moment.copy_(state["second_moment"])
        self._adam_steps.fill_(state["adam_steps"])
        self._updates = state["updates"]
        self._skipped = state["skipped"]


def flatten(parameters: list[nn.Parameter]) -> Tensor:
    """Moves parameters into one new leaf tensor of which they become views."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    flat.requires_grad = True
    offset = 0
    for parameter in parameters:
        end = offset + parameter.numel()
        parameter.data = flat.detach()[offset:end].view_as(parameter)
        offset = end
    return flat


def stacked(flat: Tensor, parameters: Sequence[Tensor], copies: int) -> list[Tensor]:
    """The parameters `[*shape]` of equal modules as leaves `[copies, *shape]`.

    They are views of `flat`, so the order in which it, a gradient and a checkpoint hold them is
    that of one module after another.

    Args:
        flat: `[P]`, as `flatten` gave it.
        parameters: Of the modules, one after another.
        copies: How many modules.
    """
    rows = flat.detach().view(copies, -1)
    leaves, offset = [], 0
    for parameter in parameters[: len(parameters) // copies]:
        end = offset + parameter.numel()
        leaves.append(rows[:, offset:end].view(copies, *parameter.shape).requires_grad_())
        offset = end
    return leaves


def annealed(start: float, final: float, done: int, total: int) -> float:
    """A value that moves linearly from start to final while `done` goes from 0 to `total`."""
    return start if total == 0 else start + min(1.0, done / total) * (final - start)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters and buffers, for a state."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def load_weights(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Puts them back, in place.

    Raises:
        CheckpointError: They are of another network.
    """
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            "the checkpoint is of another network: resume with the training.network it was made "
            f"with ({' '.join(str(error).split())[:300]})"
        ) from error
