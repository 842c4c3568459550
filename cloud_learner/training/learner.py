"""The learner: `step(batch)` is the only thing that changes weights."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor
from torch.optim.adam import adam

from cloud_learner.algorithms.interface import Algorithm, Targets
from cloud_learner.config import OptimiserConfig
from cloud_learner.models.actor_critic import ActorCritic
from cloud_learner.training.replay import Batch
from shoal.errors import CheckpointError

_BETAS = (0.9, 0.999)


class LearnerState(TypedDict):
    """Everything that training goes on from, for `torch.save`."""

    weights: Tensor
    first_moment: Tensor
    second_moment: Tensor
    optimiser_steps: int
    updates: int
    skipped: int
    generator: Tensor


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one step did.

    Attributes:
        updates: Optimiser updates since training began.
        values: Scalars by name, averaged over the minibatches that were applied.
    """

    updates: int
    values: Mapping[str, float]


class Learner:
    """Trains a model with Adam, `epochs` passes over each batch in `minibatches` parts.

    The parameters live in one flat tensor and the model's own are views of it, so norm, finite
    check and Adam cost one operation each however many layers there are.

    >>> learner = Learner(model, APPO(AppoConfig()), seed=0, config=OptimiserConfig())
    >>> learner.step(batch).values["policy_loss"]
    """

    def __init__(
        self, model: ActorCritic, algorithm: Algorithm, *, seed: int, config: OptimiserConfig
    ) -> None:
        self.model = model
        self._algorithm = algorithm
        self._config = config
        self._parameters = list(model.parameters())
        self._flat = _flatten(self._parameters)
        # The function and not the class `torch.optim.Adam`, which loads the compiler: a second.
        self._first_moment = torch.zeros_like(self._flat, requires_grad=False)
        self._second_moment = torch.zeros_like(self._flat, requires_grad=False)
        self._optimiser_steps = torch.zeros(())
        self._generator = torch.Generator().manual_seed(seed)
        self._updates = 0
        self._skipped = 0

    @property
    def updates(self) -> int:
        """Optimiser updates since training began: the unit of lag."""
        return self._updates

    @property
    def skipped(self) -> int:
        """Minibatches since training began whose loss or gradient was not finite."""
        return self._skipped

    def resume_at(self, updates: int) -> None:
        """Sets the update counter forward, so that versions never seem newer than the learner."""
        self._updates = max(self._updates, updates)

    def step(self, batch: Batch) -> StepMetrics:
        """Trains on one batch.

        A minibatch whose loss or gradient is not finite changes nothing and is counted.
        """
        began = time.perf_counter()
        learning_rate = self._learning_rate()
        targets = self._algorithm.prepare(self.model, batch)
        sums: dict[str, Tensor] = {}
        applied, skipped_before, norm_sum = 0, self._skipped, 0.0
        for _ in range(self._config.epochs):
            for columns in self._minibatches(targets):
                loss = self._algorithm.loss(self.model, columns)
                norm = self._descend(loss.total, learning_rate)
                if norm is None:
                    continue
                applied += 1
                norm_sum += norm
                for name, value in loss.metrics.items():
                    sums[name] = sums[name] + value if name in sums else value
        reviewed = self._algorithm.review(self.model, targets)
        values = {
            name: value.item() for name, value in (*targets.metrics.items(), *reviewed.items())
        }
        values |= {name: value.item() / applied for name, value in sums.items()}
        elapsed = time.perf_counter() - began
        values |= {
            "gradient_norm": norm_sum / max(applied, 1),
            "learning_rate": learning_rate,
            "skipped": float(self._skipped - skipped_before),
            "step_ms": elapsed * 1e3,
            "transitions_per_s": batch.transitions / elapsed,
            "lag_mean": float(batch.lags.mean()),
            "lag_max": float(batch.lags.max()),
        }
        return StepMetrics(updates=self._updates, values=values)

    def state_dict(self) -> LearnerState:
        """A copy of everything training goes on from."""
        return LearnerState(
            weights=self._flat.detach().clone(),
            first_moment=self._first_moment.clone(),
            second_moment=self._second_moment.clone(),
            optimiser_steps=int(self._optimiser_steps),
            updates=self._updates,
            skipped=self._skipped,
            generator=self._generator.get_state(),
        )

    def load_state_dict(self, state: LearnerState) -> None:
        """Goes on from a state, bit for bit.

        Raises:
            CheckpointError: It is of another network.
        """
        if state["weights"].shape != self._flat.shape:
            raise CheckpointError(
                f"the checkpoint holds {state['weights'].numel()} weights, this network has "
                f"{self._flat.numel()}: resume with the training.hidden it was made with"
            )
        with torch.no_grad():
            self._flat.copy_(state["weights"])
            self._first_moment.copy_(state["first_moment"])
            self._second_moment.copy_(state["second_moment"])
            self._optimiser_steps.fill_(state["optimiser_steps"])
        self._updates = state["updates"]
        self._skipped = state["skipped"]
        self._generator.set_state(state["generator"])

    def _learning_rate(self) -> float:
        config = self._config
        if config.final_learning_rate is None or config.anneal_updates == 0:
            return config.learning_rate
        done = min(1.0, self._updates / config.anneal_updates)
        return config.learning_rate + done * (config.final_learning_rate - config.learning_rate)

    def _minibatches(self, targets: Targets) -> list[dict[str, Tensor]]:
        parts = min(self._config.minibatches, targets.rows)
        if parts == 1:
            return [dict(targets.columns)]
        order = torch.randperm(targets.rows, generator=self._generator)
        shuffled = {name: column[order] for name, column in targets.columns.items()}
        split = {name: column.tensor_split(parts) for name, column in shuffled.items()}
        return [{name: pieces[i] for name, pieces in split.items()} for i in range(parts)]

    def _descend(self, loss: Tensor, learning_rate: float) -> float | None:
        """One update; None, and nothing changed, if it is not finite."""
        gradients = torch.autograd.grad(loss, self._parameters)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        norm = float(torch.linalg.vector_norm(flat))
        if not norm < float("inf") or not torch.isfinite(loss):
            self._skipped += 1
            return None
        if norm > self._config.max_grad_norm:
            flat.mul_(self._config.max_grad_norm / norm)
        with torch.no_grad():
            adam(
                [self._flat],
                [flat],
                [self._first_moment],
                [self._second_moment],
                [],
                [self._optimiser_steps],
                fused=True,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=learning_rate,
                weight_decay=0.0,
                eps=self._config.adam_eps,
                maximize=False,
            )
        self._updates += 1
        return norm


def _flatten(parameters: list[torch.nn.Parameter]) -> Tensor:
    """Moves parameters into one new leaf tensor of which they become views."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    flat.requires_grad = True
    offset = 0
    for parameter in parameters:
        end = offset + parameter.numel()
        parameter.data = flat.detach()[offset:end].view_as(parameter)
        offset = end
    return flat
