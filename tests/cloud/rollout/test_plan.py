from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.rollout.messages import plan_of, plan_pb
from cloud_learner.rollout.plan import (
    Kind,
    Plan,
    Wave,
    parse_duration,
    parse_share,
    parse_waves,
)
from shoal.errors import ConfigError
from shoal.v1 import rollout_pb2 as pb

PLAN = Plan(Kind.POLICY, "5", parse_waves("1,10%,100%"))


def test_waves_are_numbers_and_shares_as_they_are_typed() -> None:
    waves = parse_waves("1, 5,10%,100%")
    assert waves == (Wave(1), Wave(5), Wave(share=0.1), Wave(share=1.0))
    assert [str(wave) for wave in waves] == ["1", "5", "10%", "100%"]


@pytest.mark.parametrize("text", ["", "0", "-1", "0%", "101%", "ten", "1,,100%", "nan%", "5.5"])
def test_what_is_no_wave_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="such as"):
        parse_waves(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"waves": parse_waves("1,10%")}, "the last wave '10%' .*100%"),
        ({"waves": parse_waves("5,2,100%")}, "wave '2' .*more than 5"),
        ({"waves": parse_waves("50%,10%,100%")}, "wave '10%' .*more than 50%"),
        ({"waves": parse_waves("10%,5,100%")}, "numbers before shares"),
        ({"waves": ()}, "waves 0"),
        ({"version": ""}, "version ''"),
        ({"version": "v5"}, "policy 'v5' .*its number"),
        ({"version": "0"}, "policy '0'"),
        ({"episodes": 0}, "episodes 0 .*1 or more"),
        ({"wave_timeout_s": 0.0}, "wave-timeout"),
        ({"wave_timeout_s": float("nan")}, "wave-timeout"),
        ({"max_failures": 1.5}, "max-failures"),
        ({"min_failures": 0}, "min-failures"),
        ({"reason": "x" * 301}, "300 characters"),
    ],
)
def test_a_plan_that_cannot_be_says_what_to_give(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(PLAN, **changes)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("0.5d", 43_200.0)]
)
def test_lengths_of_time_are_read_as_people_say_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 minutes", "-5m", "1h30"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="10m"):
        parse_duration(text)


def test_shares_are_read_with_and_without_a_sign() -> None:
    assert (parse_share("5%"), parse_share("0.05")) == (0.05, 0.05)
    with pytest.raises(ConfigError, match="5%"):
        parse_share("some")


@given(
    st.sampled_from(Kind),
    st.integers(1, 10**9),
    st.sampled_from(["100%", "1,100%", "3,7,12.5%,100%"]),
    st.integers(1, 10**6),
    st.floats(0.001, 86_400.0),
    st.floats(0.0, 1.0),
    st.text(max_size=20),
)
def test_a_plan_is_the_same_after_the_wire(
    kind: Kind,
    version: int,
    waves: str,
    episodes: int,
    timeout_s: float,
    failures: float,
    reason: str,
) -> None:
    plan = Plan(kind, str(version), parse_waves(waves), episodes, timeout_s, failures, 2)
    plan = replace(plan, devices="pi-*", reason=reason)
    sent = plan_pb(plan).SerializeToString()
    assert plan_of(pb.RolloutPlan.FromString(sent)) == plan


def test_a_plan_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="of a policy or of an agent"):
        plan_of(pb.RolloutPlan())
