"""The pure parts of the measurements: the criterion, medians, the ratio, the table."""

import json
import math

import pytest
from bench.learn import (
    Contestant,
    Run,
    better_peer,
    order_of_runs,
    ratio_to_better_peer,
    read_peer,
    read_shoal,
    summarize,
)
from bench.peers.contest import SolveDetector
from bench.report import finite, median, table
from hypothesis import given
from hypothesis import strategies as st

SHOAL = Contestant("shoal", "", ("shoal", "demo"))
ONE_THREAD = Contestant("sb3_ppo", "1 thread", ("python", "sb3_ppo.py"))
DEFAULT = Contestant("sb3_ppo", "default threads", ("python", "sb3_ppo.py"))
OTHER = Contestant("sample_factory_appo", "", ("python", "sample_factory_appo.py"))


def run(contestant: Contestant, solve_s: float | None, seed: int = 0) -> Run:
    return Run(
        contestant=contestant.name,
        variant=contestant.variant,
        seed=seed,
        solve_s=solve_s,
        trained_s=None if solve_s is None else solve_s - 1.0,
        env_steps=1000,
        return_mean=475.0,
        process_s=20.0,
        note="",
    )


def test_is_not_solved_before_the_window_is_full() -> None:
    detector = SolveDetector(475.0, window=3)
    assert not detector.add(500.0)
    assert not detector.add(500.0)
    assert detector.add(500.0)


def test_is_solved_at_exactly_the_threshold() -> None:
    detector = SolveDetector(475.0, window=2)
    detector.add(450.0)
    assert detector.add(500.0)


def test_stays_solved_after_worse_episodes() -> None:
    detector = SolveDetector(10.0, window=1)
    assert detector.add(10.0)
    assert detector.add(0.0)
    assert detector.episodes == 2


@given(
    returns=st.lists(st.integers(0, 500), min_size=1, max_size=300),
    window=st.integers(1, 120),
    threshold=st.integers(0, 500),
)
def test_is_solved_when_any_full_window_has_the_mean(
    returns: list[int], window: int, threshold: int
) -> None:
    detector = SolveDetector(float(threshold), window=window)
    for one in returns:
        detector.add(float(one))
    windows = (returns[i : i + window] for i in range(len(returns) - window + 1))
    assert detector.solved == any(sum(part) >= threshold * window for part in windows)
    last = returns[-window:]
    assert detector.mean == pytest.approx(sum(last) / len(last))


def test_a_run_that_was_not_solved_counts_as_infinitely_long() -> None:
    two_of_three = summarize([run(SHOAL, 8.0), run(SHOAL, None), run(SHOAL, 6.0)])[0]
    assert (two_of_three.solved, two_of_three.runs) == (2, 3)
    assert (two_of_three.solve_s, two_of_three.fastest_s) == (8.0, 6.0)
    assert two_of_three.slowest_s is None
    one_of_three = summarize([run(SHOAL, 8.0), run(SHOAL, None), run(SHOAL, None)])[0]
    assert one_of_three.solve_s is None


def test_the_better_variant_of_the_better_peer_is_the_measure() -> None:
    summaries = summarize(
        [run(SHOAL, 6.0), run(ONE_THREAD, 8.0), run(DEFAULT, 12.0), run(OTHER, 9.0)]
    )
    peer = better_peer(summaries)
    assert peer is not None
    assert (peer.contestant, peer.variant) == ("sb3_ppo", "1 thread")
    assert ratio_to_better_peer(summaries) == 0.75


@pytest.mark.parametrize(
    "runs",
    [
        [run(SHOAL, 6.0)],
        [run(ONE_THREAD, 6.0)],
        [run(SHOAL, None), run(ONE_THREAD, 6.0)],
        [run(SHOAL, 6.0), run(ONE_THREAD, None)],
    ],
)
def test_gives_no_ratio_unless_both_have_solved(runs: list[Run]) -> None:
    assert ratio_to_better_peer(summarize(runs)) is None


@given(st.integers(1, 5), st.integers(1, 6))
def test_each_round_runs_every_contestant_once_and_begins_with_the_next(
    contestants: int, seeds: int
) -> None:
    everyone = [Contestant(f"peer-{i}", "", ()) for i in range(contestants)]
    order = order_of_runs(everyone, seeds)
    assert len(set(order)) == len(order) == contestants * seeds
    assert [seed for seed, _ in order] == sorted(seed for seed, _ in order)
    firsts = [order[seed * contestants][1] for seed in range(seeds)]
    assert firsts == [everyone[seed % contestants] for seed in range(seeds)]


def test_a_peer_is_measured_from_the_start_of_its_process() -> None:
    line = json.dumps(
        {
            "solved": True,
            "imported_at_s": 102.5,
            "ended_at_s": 110.0,
            "env_steps": 66_344,
            "episodes": 249,
            "return_mean": 475.2,
            "note": "",
        }
    )
    found = read_peer(line, ONE_THREAD, 1, started_s=100.0)
    assert (found.solve_s, found.trained_s, found.env_steps) == (10.0, 7.5, 66_344)


def demo_envelope(**fields: object) -> str:
    said = {"solved": True, "wall_s": 7.0, "env_steps": 90_000, "return_mean": 480.0}
    return json.dumps({**said, "audit": {"balanced": True}, **fields})


def test_shoal_is_measured_from_the_start_of_its_process() -> None:
    line = demo_envelope(started_monotonic_s=100.5)
    found = read_shoal(line, SHOAL, 0, started_s=100.0, process_s=9.0)
    assert (found.solve_s, found.trained_s, found.process_s) == (7.5, 7.0, 9.0)


def test_shoal_counts_to_the_end_of_its_process_where_its_start_is_unknown() -> None:
    found = read_shoal(demo_envelope(), SHOAL, 0, started_s=100.0, process_s=9.0)
    assert found.solve_s == 9.0


def test_an_audit_that_does_not_balance_is_noted() -> None:
    line = demo_envelope(audit={"balanced": False})
    assert "NOT" in read_shoal(line, SHOAL, 0, started_s=0.0, process_s=9.0).note


def test_an_unsolved_run_has_no_time() -> None:
    line = demo_envelope(solved=False, started_monotonic_s=100.5)
    found = read_shoal(line, SHOAL, 0, started_s=100.0, process_s=200.0)
    assert (found.solve_s, found.trained_s) == (None, None)


def test_a_number_that_json_cannot_hold_becomes_none() -> None:
    assert [finite(x) for x in (1.23456, math.inf, -math.inf, math.nan)] == [1.235] + [None] * 3


def test_the_median_of_nothing_is_no_number() -> None:
    assert math.isnan(median([]))
    assert median([3.0, 1.0, 2.0]) == 2.0


def test_a_table_aligns_numbers_to_the_right_and_shows_what_is_missing() -> None:
    assert table(
        ("run", "s", "steps", "ok"), [("shoal", 7.5, 90_000, True), ("x", None, 5, False)]
    ).splitlines() == [
        "run       s   steps   ok",
        "shoal  7.50  90,000  yes",
        "x         -       5   no",
    ]
