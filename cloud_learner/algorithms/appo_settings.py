"""The hyper-parameters of APPO."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.algorithms.optimiser import OptimiserSettings
from cloud_learner.config import require


@dataclass(frozen=True, slots=True)
class AppoSettings(OptimiserSettings):
    """Hyper-parameters of APPO.

    Attributes:
        gamma: Discount a step.
        trace_lambda: Decay of the traces: GAE's lambda.
        rho_bar: Upper bound of importance weights.
        c_bar: Upper bound of what of them is carried back a step.
        clip: How far an action's probability may move in one batch; inf: any distance.
        dual_clip: Bounds the loss of one bad action at this many times its cost; None: not.
        entropy_coef: Weight of the entropy bonus.
        final_entropy_coef: After `anneal_updates`; None: constant.
        kl_coef: Weight of a penalty KL(proximal || current).
        kl_target: Passes over a batch stop once KL(current || proximal) is over 1.5 times this, in
            nats; None: never.
        value_coef: Weight of the value loss.
        value_loss: huber, mse or clipped.
        normalize_advantages: To mean 0 and deviation 1 in each batch.
        epochs: Passes over a batch.
        minibatches: Updates a pass.
        burn_in: Steps at the start of a chunk that only warm up a policy's memory.
        init_critic_updates: Updates in which only the critic learns, after the policy was given by
            a file that has none.
        reward_scale: Rewards are multiplied by this, by the learner alone.
        normalize_rewards: Divides them by the running deviation of their discounted sum.
    """

    gamma: float = 0.99
    trace_lambda: float = 0.95
    rho_bar: float = 1.0
    c_bar: float = 1.0
    clip: float = 0.2
    dual_clip: float | None = None
    entropy_coef: float = 0.005
    final_entropy_coef: float | None = None
    kl_coef: float = 0.0
    kl_target: float | None = None
    value_coef: float = 0.5
    value_loss: str = "huber"
    normalize_advantages: bool = True
    epochs: int = 4
    minibatches: int = 4
    burn_in: int = 0
    init_critic_updates: int = 500
    reward_scale: float = 1.0
    normalize_rewards: bool = False

    def __post_init__(self) -> None:
        OptimiserSettings.__post_init__(self)
        for key in ("gamma", "trace_lambda"):
            require(0.0 <= getattr(self, key) <= 1.0, key, getattr(self, key), "0 to 1")
        for key in ("rho_bar", "c_bar", "clip"):
            require(getattr(self, key) > 0.0, key, getattr(self, key), "more than 0")
        for key in ("entropy_coef", "kl_coef", "value_coef", "burn_in", "init_critic_updates"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "0 or more")
        for key in ("epochs", "minibatches"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        for key, lowest in (("dual_clip", 1.0), ("kl_target", 0.0), ("final_entropy_coef", -1e-9)):
            value = getattr(self, key)
            allowed = f"more than {max(lowest, 0.0):g}, or leave it out"
            require(value is None or value > lowest, key, value, allowed)
        require(self.reward_scale > 0.0, "reward_scale", self.reward_scale, "more than 0")
        require(
            self.value_loss in {"mse", "clipped", "huber"},
            "value_loss",
            self.value_loss,
            "mse, clipped or huber",
        )
