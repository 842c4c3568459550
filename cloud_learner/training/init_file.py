"""The file that training starts from in place of random weights: a policy, or a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cloud_learner.quantization.initial import (
    fp32_weights_from_onnx,
    load_weights,
    spec_from_onnx,
)
from cloud_learner.training.brain import Brain
from cloud_learner.training.checkpoint import (
    Checkpoint,
    is_checkpoint,
    read_checkpoint,
)
from shoal.errors import CheckpointError, ConfigError, PolicyRejected
from shoal.spaces import Box, Discrete, EnvSpec, Space


@dataclass(frozen=True, slots=True, eq=False)
class InitFile:
    """What was read of it.

    >>> init = InitFile.read(config.init)
    >>> init.put_into(build_brain(spec, config, choice))

    Attributes:
        path: Where it lies.
        spec: The spaces that it is for; None where it does not say.
        policy: The ONNX file.
        checkpoint: Or the checkpoint.
    """

    path: Path
    spec: EnvSpec | None
    policy: bytes | None = None
    checkpoint: Checkpoint | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file that `shoal learner export` wrote, or one of a learner's `checkpoints`.

        Raises:
            ConfigError: It is missing, damaged, of another kind, or a policy that is not in fp32.
        """
        try:
            data = path.read_bytes()
            if is_checkpoint(data):
                checkpoint = read_checkpoint(path)
                return cls(path, checkpoint.spec, checkpoint=checkpoint)
            fp32_weights_from_onnx(data)
            return cls(path, spec_from_onnx(data), policy=data)
        except IsADirectoryError as error:
            raise ConfigError(
                f"init = {path} is a directory: name a policy.onnx, or a file in the `checkpoints` "
                "of a state_dir"
            ) from error
        except OSError as error:
            raise ConfigError(f"init = {path}: {error.strerror or error}") from error
        except (CheckpointError, PolicyRejected) as error:
            raise ConfigError(f"init = {path}: {error}") from error

    def put_into(self, brain: Brain) -> None:
        """Has fresh weights begin with those of the file.

        Of a policy that is weights and normalizer; what else an algorithm has is fresh. Of a
        checkpoint it is all that the algorithm has, its count of updates with it, which schedules
        follow, and the ranges of quantization.

        Raises:
            ConfigError: It is of other spaces, another algorithm or another network. `brain` is of
                no use then.
        """
        self._check_spaces(brain.spec)
        try:
            if self.checkpoint is not None:
                brain.learner.load_state_dict(self.checkpoint.learner)
                brain.quantizer.load_state_dict(self.checkpoint.quantizer)
            elif self.policy is not None:
                load_weights(brain.learner.policy, self.policy)
                brain.learner.note_given_weights()
        except (CheckpointError, PolicyRejected) as error:
            raise ConfigError(f"init = {self.path}: {error}") from error

    def _check_spaces(self, spec: EnvSpec) -> None:
        if self.spec is None or self.spec.fingerprint == spec.fingerprint:
            return
        parts = (
            ("observations", self.spec.observation, spec.observation),
            ("actions", self.spec.action, spec.action),
        )
        differing = "; ".join(
            f"{what} are {_pair(ours, theirs)}"
            for what, ours, theirs in parts
            if ours.canonical() != theirs.canonical()
        )
        raise ConfigError(
            f"init = {self.path} is for {self.spec.env_id!r} and the fleet acts in "
            f"{spec.env_id!r}: {differing}"
        )


def _pair(ours: Space, theirs: Space) -> str:
    first, second = _text(ours), _text(theirs)
    if first == second:
        return f"{first} with other bounds or parts"
    return f"{first} in the file, {second} on the device"


def _text(space: Space) -> str:
    match space:
        case Box():
            return f"Box {list(space.shape)} {space.dtype}"
        case Discrete():
            return f"Discrete({space.n})"
        case _:
            return type(space).__name__
