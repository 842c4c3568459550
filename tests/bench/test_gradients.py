"""The pure parts of `shoal bench gradients`."""

import argparse
from dataclasses import replace

from bench.gradients import Case, Result, cases, median_of, ratios

RESULT = Result("push", "int8", 1, 9155, 9299, 100, 0, 0, 1000.0, 2.0, 9.0, 20.0)


def test_a_median_is_taken_of_figures_and_a_sum_of_counts() -> None:
    rounds = [replace(RESULT, p99_ms=p99, refused=1) for p99 in (5.0, 30.0, 7.0)]
    together = median_of(rounds)
    assert (together.p99_ms, together.calls, together.refused) == (7.0, 300, 3)


def test_every_case_has_the_one_that_it_stands_beside() -> None:
    options = argparse.Namespace(rate=10.0, codecs="float32,int8", shards=4, policies=5.0)
    found = cases(options)
    assert found[0] == Case("bare call", "float32", 1, bare=True, rate=10.0)
    of = {(case.name, case.shards): case for case in found}
    assert ("full speed", 1) in of
    assert ("full speed", 4) in of
    medians = [
        replace(
            RESULT,
            p50_ms=1.0 if case.bare else 2.0 + 3.0 * case.relayed,
            p99_ms=3.0 if case.bare else 6.0,
            updates_per_s=100.0 * case.shards,
        )
        for case in found
    ]
    assert ratios(found, medians) == {
        "p50_push_over_bare": 2.0,
        "p99_push_over_bare": 2.0,
        "p50_relayed_over_push": 2.5,
        "throughput_shards_over_one": 4.0,
        "throughput_shards_over_one_large_net": 4.0,
    }
