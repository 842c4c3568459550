"""Certificates and reports carry what the fleet needs, within bounds."""

from __future__ import annotations

import platform
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.policies.precision import Choice
from edge_agent.spool.run_ledger import RunLedger
from edge_agent.status import (
    MAX_RUNS,
    MAX_SPANS,
    Certifier,
    Vitals,
    ledger_entry,
    page,
    percentile,
    rss_bytes,
    telemetry,
    version_of,
)
from shoal.ranges import Ranges
from shoal.spaces import Discrete, EnvSpec, unbounded
from shoal.v1 import device_pb2 as pb
from shoal.wire import MAX_CONTROL_BYTES, frame, unframe

RUN = bytes(range(16))
SPEC = EnvSpec("counting", unbounded((4,)), Discrete(2), reward_threshold=9.0)
VITALS = Vitals(
    uptime_s=2.5,
    env_steps=640,
    episodes=3,
    deadline_misses=1,
    steps_per_s=256.0,
    control_hz_achieved=32.0,
    active_version=7,
    active_digest=b"d" * 32,
    swaps=2,
    swap_ms=(3.0, 1.0, 2.0),
    policy_rejections=4,
    rss_bytes=5,
    bytes_up=6,
    bytes_down=8,
    spool_bytes=9,
    resent_chunks=10,
    learner_ack_age_s=-1.0,
    ledger=(RunLedger(RUN, 5, Ranges.of([3, 4]), Ranges.of([1])),),
    choice=Choice("fp32", "measured", {"int8": 20.5, "fp32": 12.5}),
)


def test_a_certificate_carries_the_run_the_spaces_and_the_machine() -> None:
    status = Certifier("pi-1", RUN, SPEC, 8, clock=lambda: 12.5)(pb.DEVICE_STATE_ONLINE, "born")
    read = unframe(pb.Status, frame(status))
    assert (read.device_id, read.run_id, read.envs, read.reason) == ("pi-1", RUN, 8, "born")
    assert read.sent_unix_ms == 12_500
    assert EnvSpec.from_pb(read.env_spec).fingerprint == SPEC.fingerprint
    assert read.hardware.machine == platform.machine()
    assert read.hardware.memory_bytes > 0


def test_a_report_says_all_that_was_measured() -> None:
    report = telemetry("pi-1", RUN, VITALS, now_s=1.0)
    assert report.swap_ms_p99 == 3.0
    assert report.learner_ack_age_s == -1.0
    assert (report.active_version, report.active_digest) == (7, b"d" * 32)
    assert (report.active_precision, report.precision_reason) == ("fp32", "measured")
    assert (report.int8_us, report.fp32_us, report.int8_dynamic_us) == (20.5, 12.5, 0.0)
    assert report.ledger[0].produced == 5
    assert Ranges.from_pb(report.ledger[0].spooled) == Ranges.of([3, 4])
    assert Ranges.from_pb(report.ledger[0].dropped) == Ranges.of([1])


def test_a_report_fits_whatever_the_disk_did() -> None:
    torn = Ranges.from_spans((n, n + 1) for n in range(0, 40_000, 2))
    runs = [RunLedger(n.to_bytes(16, "big"), 40_000, torn, torn) for n in range(5000)]
    report = frame(telemetry("pi-1", RUN, replace(VITALS, ledger=page(runs, 3)), now_s=1.0))
    assert len(report) <= MAX_CONTROL_BYTES


def test_a_ledger_that_is_torn_is_reported_as_a_superset() -> None:
    torn = Ranges.from_spans((n, n + 1) for n in range(0, 4 * MAX_SPANS, 2))
    entry = ledger_entry(RunLedger(RUN, 4 * MAX_SPANS, torn, Ranges()))
    assert len(entry.spooled) == MAX_SPANS
    assert not torn.difference(Ranges.from_pb(entry.spooled))


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_every_run_is_reported_in_its_turn_and_the_present_one_always(runs: int, turn: int) -> None:
    ledger = [RunLedger(n.to_bytes(16, "big")) for n in range(runs)]
    turns = -(-runs // (MAX_RUNS - 1)) + 1
    pages = [page(ledger, turn + k) for k in range(turns)]
    assert all(len(each) <= MAX_RUNS and each[-1] == ledger[-1] for each in pages)
    assert {run.run_id for each in pages for run in each} == {run.run_id for run in ledger}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values_and_enough_lie_below(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_a_percentile_of_nothing_is_zero() -> None:
    assert percentile([], 0.99) == 0.0


def test_what_is_not_installed_has_an_unknown_version() -> None:
    assert version_of("no-such-distribution") == "unknown"
    assert version_of("numpy")


def test_a_process_knows_its_memory() -> None:
    assert rss_bytes() > 1_000_000
