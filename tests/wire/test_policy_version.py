"""A policy version has one name for people, everywhere."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.policy_version import parse_policy_version


@given(st.integers(1, 10**18 - 1), st.sampled_from(["", "v"]))
def test_a_number_is_a_version_with_or_without_a_v(number: int, letter: str) -> None:
    assert parse_policy_version(f"{letter}{number}") == number


def test_the_latest_has_no_number() -> None:
    assert parse_policy_version("latest") is None


@given(st.text())
def test_whatever_is_typed_is_a_version_or_refused(text: str) -> None:
    number: int | None = 1
    with contextlib.suppress(ConfigError):
        number = parse_policy_version(text)
    assert number is None or 1 <= number < 10**18


@pytest.mark.parametrize(
    "text", ["0", "v0", "", "v", "vv1", "-1", "1.0", "Latest", "\u0663", " 7", "1" * 5000]
)
def test_these_are_no_versions(text: str) -> None:
    with pytest.raises(ConfigError, match="give its number, such as 7 or v7, or latest"):
        parse_policy_version(text)
