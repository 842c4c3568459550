"""Checkpoints: whole or passed over, never half."""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cloud_learner.algorithms.appo import APPO
from cloud_learner.algorithms.interface import Setup, load_algorithm
from cloud_learner.algorithms.recipe import Recipe
from cloud_learner.config import NetworkConfig
from cloud_learner.quantization.quantize import Quantizer
from cloud_learner.quantization.sample import Sample, sample_of
from cloud_learner.training.checkpoint import Checkpoint, CheckpointStore, check_recipe
from cloud_learner.training.cursor import Cursor
from cloud_learner.training.experience import Batch
from cloud_learner.training.learner import Learner
from shoal.errors import CheckpointError
from shoal.ranges import Ranges
from shoal.spaces import Box, Discrete, EnvSpec
from shoal.tensors import encode_tensors

HIGH = np.array([4.8, np.inf, 0.4, np.inf], np.float32)
SPEC = EnvSpec("Test-v0", Box(-HIGH, HIGH), Discrete(2), reward_threshold=475.0)


def new_learner(seed: int = 0) -> Learner:
    algorithm = APPO(Setup(SPEC, NetworkConfig(hidden=(8,)), seed), APPO.Settings())
    return Learner(algorithm, name="cloud_learner.algorithms.appo:APPO")


def make_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    none = np.zeros((8, 4), np.bool_)
    return Batch(
        observations=rng.normal(size=(9, 4, 4)).astype(np.float32),
        actions=rng.integers(0, 2, (8, 4)),
        log_probs=np.full((8, 4), -0.7, np.float32),
        rewards=rng.normal(size=(8, 4)).astype(np.float32),
        terminated=none,
        truncated=none,
        final_index=np.empty(0, np.int32),
        final_observations=np.empty((0, 4), np.float32),
        initial_state=np.zeros((4, 0), np.float32),
        starts=none,
        lags=np.zeros(4, np.int64),
        positions=(seed,),
    )


def checkpoint_of(learner: Learner, quantizer: Quantizer, *, position: int = 7) -> Checkpoint:
    return Checkpoint(
        spec=SPEC,
        learner=learner.state_dict(),
        quantizer=quantizer.state_dict(),
        source={"limiter": {"inserted": 5, "credit": 0.5}},
        cursor=Cursor(position, Ranges.of([3, 5])),
        version=11,
    )


RECIPE = Recipe.of(
    load_algorithm("cloud_learner.algorithms.appo:APPO", {}), NetworkConfig(hidden=(8,))
)


@dataclass(frozen=True, slots=True)
class Trained:
    """A learner after a few steps, and its quantizer after a version."""

    learner: Learner
    quantizer: Quantizer
    checkpoint: Checkpoint = field(repr=False)


@pytest.fixture
def trained() -> Trained:
    learner = new_learner()
    quantizer = Quantizer(learner.policy)
    for seed in range(3):
        learner.step(make_batch(seed))
    quantizer.quantize(learner.policy, sample_of(learner.policy, make_batch(0)))
    return Trained(learner, quantizer, checkpoint_of(learner, quantizer))


def positions(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_everything_comes_back(tmp_path: Path, trained: Trained) -> None:
    CheckpointStore(tmp_path / "c").save(trained.checkpoint)
    back = CheckpointStore(tmp_path / "c").newest()
    assert back is not None
    assert back.spec.fingerprint == SPEC.fingerprint
    assert back.spec.reward_threshold == 475.0
    assert back.cursor == trained.checkpoint.cursor
    assert back.version == 11
    assert back.learner["updates"] == trained.learner.updates
    assert back.source == trained.checkpoint.source


def test_training_and_publishing_go_on_bit_for_bit(tmp_path: Path, trained: Trained) -> None:
    CheckpointStore(tmp_path / "c").save(trained.checkpoint)
    back = CheckpointStore(tmp_path / "c").newest()
    assert back is not None
    resumed = new_learner(seed=5)
    resumed.load_state_dict(back.learner)
    quantizer = Quantizer(resumed.policy)
    quantizer.load_state_dict(back.quantizer)
    for seed in range(3, 6):
        batch = make_batch(seed)
        trained.learner.step(batch)
        resumed.step(batch)
    for ours, theirs in zip(
        trained.learner.policy.parameters(), resumed.policy.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    observations = make_batch(9).observations.reshape(-1, 4)
    sample = Sample(observations, np.zeros((len(observations), 0), np.float32))
    before = trained.quantizer.quantize(trained.learner.policy, sample).tensors
    after = quantizer.quantize(resumed.policy, sample).tensors
    assert encode_tensors(dict(before)) == encode_tensors(dict(after))


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "c").newest() is None


def test_keeps_the_newest_few(tmp_path: Path, trained: Trained) -> None:
    store = CheckpointStore(tmp_path / "c", keep=2)
    paths = [store.save(trained.checkpoint) for _ in range(4)]
    assert positions(tmp_path / "c") == [path.name for path in paths[-2:]]


def test_numbers_go_on_after_a_restart(tmp_path: Path, trained: Trained) -> None:
    first = CheckpointStore(tmp_path / "c").save(trained.checkpoint)
    second = CheckpointStore(tmp_path / "c").save(trained.checkpoint)
    assert second.name > first.name


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "garbage"])
def test_a_damaged_one_is_passed_over_for_the_one_before(
    tmp_path: Path, trained: Trained, damage: str
) -> None:
    store = CheckpointStore(tmp_path / "c")
    store.save(checkpoint_of(trained.learner, trained.quantizer, position=1))
    newest = store.save(checkpoint_of(trained.learner, trained.quantizer, position=2))
    data = newest.read_bytes()
    middle = len(data) // 2
    newest.write_bytes(
        {
            "cut": data[:middle],
            "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "empty": b"",
            "garbage": os.urandom(200),
        }[damage]
    )
    back = CheckpointStore(tmp_path / "c").newest()
    assert back is not None
    assert back.cursor.position == 1


def test_when_none_is_whole_it_says_so_instead_of_starting_anew(
    tmp_path: Path, trained: Trained
) -> None:
    store = CheckpointStore(tmp_path / "c")
    store.save(trained.checkpoint).write_bytes(b"rot")
    with pytest.raises(CheckpointError, match="none of the 1"):
        store.newest()


def test_leftovers_of_a_crash_and_foreign_files_are_ignored(
    tmp_path: Path, trained: Trained
) -> None:
    store = CheckpointStore(tmp_path / "c")
    saved = store.save(trained.checkpoint)
    (tmp_path / "c" / f"{saved.name}.tmp").write_bytes(b"half")
    (tmp_path / "c" / "notes.checkpoint").write_bytes(b"hello")
    again = CheckpointStore(tmp_path / "c")
    assert again.newest() is not None
    assert positions(tmp_path / "c") == sorted([saved.name, "notes.checkpoint"])


def test_is_readable_by_its_owner_alone(tmp_path: Path, trained: Trained) -> None:
    saved = CheckpointStore(tmp_path / "c").save(trained.checkpoint)
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_refuses_leaves_the_earlier_ones(tmp_path: Path, trained: Trained) -> None:
    store = CheckpointStore(tmp_path / "c")
    saved = store.save(trained.checkpoint)
    blocked = tmp_path / "c" / "0000000002.checkpoint.tmp"
    blocked.mkdir()  # opening it for writing fails, as a full disk would
    with pytest.raises(CheckpointError, match="cannot write"):
        store.save(trained.checkpoint)
    blocked.rmdir()
    assert store.newest() is not None
    assert positions(tmp_path / "c") == [saved.name]
    store.save(trained.checkpoint)


def test_a_place_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="state_dir"):
        CheckpointStore(tmp_path / "file" / "c")


class Evil:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("pwned",)


def test_nothing_in_a_checkpoint_can_run_code(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    monkeypatch.chdir(tmp_path)
    saved = CheckpointStore(tmp_path / "c").save(trained.checkpoint)
    buffer = io.BytesIO()
    torch.save({"learner": Evil()}, buffer)
    for payload in (buffer.getvalue(), pickle.dumps(Evil(), protocol=2)):
        saved.write_bytes(b"SHOALCP1" + hashlib.sha256(payload).digest() + payload)
        with pytest.raises(CheckpointError):
            CheckpointStore(tmp_path / "c").newest()
    assert not (tmp_path / "pwned").exists()


def test_one_that_lacks_a_field_is_refused(tmp_path: Path, trained: Trained) -> None:
    state = dict(trained.checkpoint.learner)
    del state["algorithm"]
    lacking = Checkpoint(
        spec=SPEC,
        learner=state,  # type: ignore[arg-type]
        quantizer={},
        source={},
        cursor=Cursor(0, Ranges.of([])),
        version=0,
    )
    CheckpointStore(tmp_path / "c").save(lacking)
    with pytest.raises(CheckpointError):
        CheckpointStore(tmp_path / "c").newest()


def test_it_says_what_the_learner_was_made_with(tmp_path: Path, trained: Trained) -> None:
    CheckpointStore(tmp_path / "c").save(replace(trained.checkpoint, recipe=RECIPE))
    found = CheckpointStore(tmp_path / "c").newest()
    assert found is not None
    assert found.recipe is not None
    assert found.recipe.choice() == RECIPE.choice()
    check_recipe(found, RECIPE)
    other = replace(RECIPE, network=NetworkConfig(hidden=(16, 16)))
    with pytest.raises(CheckpointError, match=r"hidden \[8\].*asks for.*hidden \[16, 16\]"):
        check_recipe(found, other)


def test_a_file_of_before_it_was_said_still_loads(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def without(fields: dict[str, object], file: io.BytesIO) -> None:
        save({name: value for name, value in fields.items() if name != "recipe"}, file)

    monkeypatch.setattr(torch, "save", without)
    CheckpointStore(tmp_path / "c").save(replace(trained.checkpoint, recipe=RECIPE))
    found = CheckpointStore(tmp_path / "c").newest()
    assert found is not None
    assert found.recipe is None
    check_recipe(found, RECIPE)
