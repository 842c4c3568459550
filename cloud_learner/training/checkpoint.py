"""Checkpoints: everything that training goes on from, as of one moment, on disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Final, cast

import numpy as np
import torch

from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.learner import LearnerState
from shoal.durable_file import remove_leftovers, sync_directory, write_durably
from shoal.errors import CheckpointError, ConfigError, WireError
from shoal.logs import get_logger
from shoal.ranges import Ranges
from shoal.spaces import EnvSpec
from shoal.v1 import space_pb2

KEEP: Final = 3
_MAGIC: Final = b"SHOALCP1"
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
SUFFIX: Final = ".checkpoint"
_log = get_logger("checkpoint")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What is saved together.

    Attributes:
        spec: The spaces that are trained for.
        learner: `Learner.state_dict()`.
        quantizer: `Quantizer.state_dict()`.
        source: `Source.state_dict()`.
        cursor: Which journal positions the weights already hold.
        version: The highest policy version published.
        recipe: What the learner was made with; None in a file of before it was kept.
    """

    spec: EnvSpec
    learner: LearnerState
    quantizer: Mapping[str, torch.Tensor]
    source: Mapping[str, object]
    cursor: Cursor
    version: int
    recipe: Recipe | None = None

    @property
    def of_gradients(self) -> bool:
        """Whether devices sent gradients: then no trajectories are journaled."""
        return "live" in self.source


class CheckpointStore:
    """A directory of checkpoints, each verified by its hash; a torn or rotten one is passed over.

    >>> store = CheckpointStore(directory)
    >>> store.save(checkpoint)
    >>> store.newest()        # None before the first
    """

    def __init__(self, directory: Path, *, keep: int = KEEP) -> None:
        """Opens the directory, and makes it if need be.

        Args:
            directory: Whose parent exists.
            keep: How many of the newest stay.

        Raises:
            CheckpointError: The directory cannot be made or read.
        """
        self._directory = directory
        self._keep = keep
        try:
            if not directory.is_dir():
                directory.mkdir(mode=0o700)
                sync_directory(directory.parent)
            remove_leftovers(directory)
            self._next = max(map(_number, self._paths()), default=0) + 1
        except OSError as error:
            raise _cannot("use", directory, error) from error

    def save(self, checkpoint: Checkpoint) -> Path:
        """Writes a checkpoint; on return it survives a power cut. Then the oldest go.

        Raises:
            CheckpointError: The disk is full, read-only or broken; earlier ones are untouched.
        """
        path = self._directory / f"{self._next:010d}{SUFFIX}"
        write_checkpoint(path, encode_checkpoint(checkpoint))
        self._next += 1
        try:
            for old in self._paths()[: -self._keep]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise _cannot("write", path, error) from error
        return path

    def newest(self) -> Checkpoint | None:
        """The newest one that is whole; None if there never was any.

        Raises:
            CheckpointError: There are some, and none is whole.
        """
        return newest_checkpoint(self._directory)

    def _paths(self) -> list[Path]:
        return _paths(self._directory)


def newest_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest one of a directory that is whole, which a learner may have in use; None: no one.

    Raises:
        CheckpointError: There are some, and none is whole.
    """
    paths = _paths(directory)
    for path in reversed(paths):
        try:
            return read_checkpoint(path)
        except (OSError, CheckpointError) as error:
            _log.warning("checkpoint_passed_over", path=str(path), error=str(error))
    if paths:
        raise CheckpointError(
            f"none of the {len(paths)} checkpoints in {directory} is whole: restore one from a "
            "backup, or move them away: then the weights start anew, while versions and updates "
            "are counted on from the policy log"
        )
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """One file.

    Raises:
        CheckpointError: It is not whole, or of another program.
        OSError: It cannot be read.
    """
    return _decode(path.read_bytes())


def check_recipe(
    checkpoint: Checkpoint, asked: Recipe, *, otherwise: str = "use another state_dir"
) -> None:
    """Refuses to go on with another network or algorithm, before anything is built.

    Args:
        checkpoint: What was saved.
        asked: What the configuration asks for.
        otherwise: What else to do about it than to set that back.

    Raises:
        CheckpointError: The checkpoint is of another; both are named.
    """
    saved = checkpoint.recipe
    if saved is not None and not saved.trains_as(asked):
        raise CheckpointError(
            f"the checkpoint is of {saved}, and the configuration asks for {asked}: set "
            f"training.algorithm and training.network back, or {otherwise}"
        )


def is_checkpoint(data: bytes) -> bool:
    """Whether a file begins like one."""
    return data.startswith(_MAGIC)


def _paths(directory: Path) -> list[Path]:
    """Oldest first."""
    named = (path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal())
    return sorted(named, key=_number)


def _number(path: Path) -> int:
    return int(path.stem)


def write_checkpoint(path: Path, data: bytes) -> None:
    """Writes what `encode_checkpoint` gave; on return it survives a power cut.

    Raises:
        CheckpointError: The disk is full, read-only or broken.
    """
    try:
        write_durably(path, data)
    except OSError as error:
        raise _cannot("write", path, error) from error


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """What a file of it holds."""
    buffer = io.BytesIO()
    torch.save(
        {
            "spec": checkpoint.spec.to_pb().SerializeToString(deterministic=True),
            "learner": dict(checkpoint.learner),
            "quantizer": dict(checkpoint.quantizer),
            "source": _with_tensors(checkpoint.source),
            "position": checkpoint.cursor.position,
            "waiting": [list(span) for span in checkpoint.cursor.waiting.spans],
            "version": checkpoint.version,
            "recipe": _json_of(checkpoint.recipe),
        },
        buffer,
    )
    payload = buffer.getvalue()
    return _MAGIC + hashlib.sha256(payload).digest() + payload


def _decode(data: bytes) -> Checkpoint:
    """Reads a checkpoint; nothing in it can run code.

    Raises:
        CheckpointError: It is torn, rotten or of another kind.
    """
    head = len(_MAGIC) + _DIGEST_BYTES
    payload = data[head:]
    if not data.startswith(_MAGIC) or hashlib.sha256(payload).digest() != data[len(_MAGIC) : head]:
        raise CheckpointError("it is not a whole checkpoint")
    try:
        fields = torch.load(io.BytesIO(payload), weights_only=True)
        return Checkpoint(
            spec=EnvSpec.from_pb(space_pb2.EnvSpec.FromString(fields["spec"])),
            learner=_learner_state(fields["learner"]),
            quantizer=fields["quantizer"],
            source=_with_arrays(fields["source"]),
            cursor=Cursor(
                fields["position"], Ranges.from_spans((a, b) for a, b in fields["waiting"])
            ),
            version=fields["version"],
            recipe=_recipe_of(fields.get("recipe", "")),
        )
    except (UnpicklingError, LookupError, TypeError, ValueError, RuntimeError, WireError) as error:
        message = str(error).partition("\n")[0][:200]
        raise CheckpointError(f"it was written by another program ({message})") from error


def _json_of(recipe: Recipe | None) -> str:
    return "" if recipe is None else json.dumps(recipe.to_json(), sort_keys=True, default=str)


def _recipe_of(text: str) -> Recipe | None:
    """The inverse; None, too, of a network that this version does not know."""
    if not text:
        return None
    try:
        return Recipe.from_json(json.loads(text), source="the checkpoint")
    except ConfigError:
        return None


def _with_tensors(state: Mapping[str, object]) -> dict[str, object]:
    """Arrays become tensors, which `torch.save` keeps without code."""
    return {
        name: _with_tensors(value)
        if isinstance(value, Mapping)
        else torch.from_numpy(value.copy())
        if isinstance(value, np.ndarray)
        else value
        for name, value in state.items()
    }


def _with_arrays(state: Mapping[str, object]) -> dict[str, object]:
    """The inverse."""
    return {
        name: _with_arrays(value)
        if isinstance(value, Mapping)
        else value.numpy()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in state.items()
    }


def _learner_state(fields: Mapping[str, object]) -> LearnerState:
    missing = LearnerState.__required_keys__ ^ fields.keys()
    if missing:
        raise CheckpointError(f"it was written by another program (fields {sorted(missing)})")
    return cast("LearnerState", dict(fields))


def _cannot(verb: str, path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot {verb} {path}: {os.strerror(error.errno) if error.errno else error}; "
        "free space, or point state_dir at a disk that this user can write"
    )
