"""The measurement of what statistics cost: that it still runs, and adds up."""

from __future__ import annotations

from bench.statistics_cost import measure


def test_every_cost_is_measured_and_what_devices_tell_is_less_than_what_they_observed() -> None:
    row = measure(4, 3)
    assert min(row.learner_us, row.step_us, row.merge_us, row.device_us) > 0
    assert 16 * 4 < row.told_bytes < row.chunk_bytes
