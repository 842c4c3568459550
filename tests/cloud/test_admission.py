"""What becomes of a chunk is a pure rule of the chunk and of what the learner knows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim import SimDevice
from strategies import DIGEST, cartpole_spec, make_chunk

from cloud_learner.config import TrainingConfig
from cloud_learner.journal.audit import Decided, Disposition
from cloud_learner.uplink.admission import KnownVersion, KnownVersions, Standard, decide
from cloud_learner.uplink.arrivals import open_chunks
from shoal.errors import ConfigError
from shoal.trajectory import encode_chunk

TWIN = bytes(range(32, 64))
SPEC = cartpole_spec()
CHUNK = replace(make_chunk(SPEC), policy_version=1)
GOOD = encode_chunk(CHUNK)


def standard(*, updates_now: int = 0, max_lag: int = 10) -> Standard:
    versions = KnownVersions(lambda _: None, highest=0)
    versions.add(1, KnownVersion(0, DIGEST, (TWIN,)))
    return Standard(SPEC, versions, updates_now, max_lag)


@pytest.mark.parametrize(
    ("updates_now", "version", "digest", "expected", "reason"),
    [
        (0, 1, DIGEST, Disposition.TRAINED, ""),
        (10, 1, DIGEST, Disposition.TRAINED, ""),
        (11, 1, DIGEST, Disposition.EXPIRED, "lag"),
        (0, 0, DIGEST, Disposition.REJECTED, "unknown_version"),
        (0, 2, DIGEST, Disposition.REJECTED, "unknown_version"),
        (0, 1, bytes(32), Disposition.REJECTED, "digest"),
        (0, 1, TWIN, Disposition.TRAINED, ""),
    ],
)
def test_decides_by_version_digest_and_lag(
    updates_now: int, version: int, digest: bytes, expected: Disposition, reason: str
) -> None:
    device = SimDevice("pi-1")
    body = encode_chunk(replace(CHUNK, policy_version=version, policy_digest=digest))
    message = device.message(device.produce(body))
    held_against = standard(updates_now=updates_now)
    opened = open_chunks([message], held_against, lambda _: Decided(), max_bytes=1 << 20)
    entry = opened.arrivals[0].entry
    assert (entry.disposition, entry.reason) == (expected, reason)


def test_a_version_that_was_forgotten_makes_a_chunk_expire() -> None:
    versions = KnownVersions(lambda _: None, highest=9)
    device = SimDevice("pi-1")
    opened = open_chunks(
        [device.message(device.produce(GOOD))],
        Standard(SPEC, versions, 100, 10),
        lambda _: Decided(),
        max_bytes=1 << 20,
    )
    assert opened.arrivals[0].entry.disposition is Disposition.EXPIRED


def test_how_large_a_reward_may_be_is_for_the_learner_to_say() -> None:
    largest = float(np.abs(CHUNK.rewards).max())
    assert largest > 0
    for limit, reason in ((largest, ""), (largest * 0.99, "reward")):
        verdict = decide(CHUNK, replace(standard(), max_reward=limit))
        assert verdict.reason == reason
    assert f"a reward of size {largest:.3g} is over training.max_reward" in verdict.detail
    with pytest.raises(ConfigError, match=r"max_reward = 0.0 is out of range: use more than 0"):
        TrainingConfig(max_reward=0.0)
