"""The normalizer where observations stay on devices: who made it, and whose version it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import NEST, make_case, of_kind
from strategies import RUN_ID, cartpole_spec

from cloud_learner.gradients.fleet_normalizer import KEPT_VERSIONS, FleetNormalizer
from cloud_learner.gradients.live import MAX_KEPT_PARTS, Live
from cloud_learner.gradients.settings import GradientsConfig
from cloud_learner.journal.audit import RunKey
from cloud_learner.models.normalizer import Normalizer
from cloud_learner.training.checkpoint import _with_arrays, _with_tensors
from shoal.acting_normalizer import ActingNormalizer
from shoal.errors import StatisticsRefused
from shoal.gradients import decode_weights
from shoal.observation_statistics import ObservationStatistics, numbers_of
from shoal.spaces import Discrete

NUMBERS = 3
ONE, TWO = RunKey("pi-1", RUN_ID), RunKey("pi-2", RUN_ID)
ROWS = np.random.default_rng(0).normal([1.0, -500.0, 0.0], [2.0, 1000.0, 1e-3], (60, NUMBERS))


def fresh() -> Normalizer:
    return Normalizer(np.ones(NUMBERS, np.bool_), np.ones(NUMBERS, np.float32))


def tell(
    fleet: FleetNormalizer,
    run: RunKey,
    rows: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    seq: int = 0,
) -> None:
    fleet.note(run, seq, ObservationStatistics.of(rows).to_pb())


def test_the_next_versions_normalizer_is_that_of_all_devices_observations() -> None:
    normalizer = fresh()
    fleet = FleetNormalizer(normalizer)
    fleet.follow()
    np.testing.assert_array_equal(normalizer.gain, np.ones(NUMBERS))
    tell(fleet, ONE, ROWS[:20])
    tell(fleet, TWO, ROWS[20:])
    np.testing.assert_array_equal(normalizer.gain, np.ones(NUMBERS), "only the next version's")
    fleet.follow()
    np.testing.assert_allclose(normalizer.shift, ROWS.mean(0), rtol=1e-6)
    np.testing.assert_allclose(1.0 / normalizer.gain, ROWS.std(0), rtol=1e-6)
    fleet.follow()
    assert float(normalizer.count) == len(ROWS), "a run counts once however often it is followed"


def test_it_equals_the_normalizer_that_sees_the_observations_themselves() -> None:
    """Nested observations: pixels, flags and one-hot columns pass as they are."""
    seeing, told = (make_case(NEST, Discrete(2), of_kind("mlp", normalize=True)) for _ in range(2))
    for case in (seeing, told):
        assert case.policy.normalizer is not None
        fresh_one = Normalizer(
            case.policy.normalizer.columns.numpy(), case.policy.normalizer.scale.numpy()
        )
        case.policy.normalizer.load_state_dict(fresh_one.state_dict())
    rows = seeing.sample.observations
    seeing.policy.observe(rows)
    normalizer = told.policy.normalizer
    assert normalizer is not None
    fleet = FleetNormalizer(normalizer)
    numbers = numbers_of(rows, told.policy.observation)
    tell(fleet, ONE, numbers[:100])
    tell(fleet, TWO, numbers[100:])
    fleet.follow()
    ours, theirs = (case.policy.features(torch.from_numpy(rows)).vector for case in (told, seeing))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_what_was_seen_before_counts_with_what_devices_tell() -> None:
    normalizer = fresh()
    normalizer.update(torch.from_numpy(ROWS[:30]).float())
    fleet = FleetNormalizer(normalizer)
    tell(fleet, ONE, ROWS[30:])
    fleet.follow()
    np.testing.assert_allclose(normalizer.shift, ROWS.mean(0), rtol=1e-4, atol=1e-6)
    assert float(normalizer.count) == len(ROWS)


def test_each_version_keeps_the_normalizer_that_it_was_made_with() -> None:
    normalizer = fresh()
    fleet = FleetNormalizer(normalizer)
    fleet.note_published(1)
    assert fleet.acting(1).version == 0
    wanted = {}
    for version in range(1, KEPT_VERSIONS + 4):
        tell(fleet, ONE, ROWS[: 2 + version % 50], seq=version) if version < 50 else None
        fleet.follow()
        fleet.note_published(version)
        wanted[version] = normalizer.shift.numpy().copy()
    for version in range(4, KEPT_VERSIONS + 4):
        assert fleet.acting(version).version == version
        np.testing.assert_array_equal(fleet.acting(version).shift, wanted[version])
    newest = KEPT_VERSIONS + 3
    assert fleet.acting(3).version == fleet.acting(0).version == newest, "of the old, the newest"
    assert fleet.acting(newest + 9).version == newest


def test_what_cannot_be_is_refused_and_the_rest_stays() -> None:
    normalizer = fresh()
    fleet = FleetNormalizer(normalizer)
    tell(fleet, ONE, ROWS)
    lying = ObservationStatistics.of(ROWS).to_pb()
    lying.count = 1 << 60
    with pytest.raises(StatisticsRefused):
        fleet.note(TWO, 0, lying)
    with pytest.raises(StatisticsRefused):
        tell(fleet, TWO, ROWS[:, :2])
    fleet.follow()
    np.testing.assert_allclose(normalizer.shift, ROWS.mean(0), rtol=1e-6)


def test_a_checkpoint_goes_on_with_the_same_statistics_and_versions() -> None:
    normalizer = fresh()
    fleet = FleetNormalizer(normalizer)
    for version in (1, 2):
        tell(fleet, ONE, ROWS[: 10 * version], seq=version)
        fleet.follow()
        fleet.note_published(version)
    other = fresh()
    other.load_state_dict(normalizer.state_dict())
    resumed = FleetNormalizer(other)
    resumed.load_state_dict(_with_arrays(_with_tensors(fleet.state_dict())))
    for each in (fleet, resumed):
        tell(each, ONE, ROWS[:40], seq=9)
        tell(each, TWO, ROWS[40:])
        each.follow()
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    for version in (1, 2):
        np.testing.assert_array_equal(resumed.acting(version).shift, fleet.acting(version).shift)
        np.testing.assert_array_equal(resumed.acting(version).gain, fleet.acting(version).gain)


def test_weights_travel_with_the_normalizer_asked_for_and_few_forms_of_them_are_kept() -> None:
    flat = np.arange(5, dtype=np.float32)
    live = Live(flat, bytes(32), cartpole_spec(), GradientsConfig(), setup={}, started_at=lambda: 3)
    floats = np.ones(4, np.float32)
    for version in range(1, 3 * MAX_KEPT_PARTS):
        acting = ActingNormalizer(version, floats * version, floats)
        payload = b"".join(part.data for part in live.parts(acting))
        come = decode_weights(payload).normalizer
        assert come is not None
        assert (come.version, float(come.shift[0])) == (version, float(version))
        assert live.parts(acting) is live.parts(acting)
        assert len(live._parts) <= MAX_KEPT_PARTS
    assert decode_weights(b"".join(part.data for part in live.parts())).normalizer is None
