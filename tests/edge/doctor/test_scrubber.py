"""Secrets that are known, or look like one, are in no text that leaves the device."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.doctor.scrubber import MIN_SECRET_CHARACTERS, REMOVED, Scrubber

LETTERS = st.characters(codec="utf-8", exclude_characters="[]")


@given(st.lists(st.text(LETTERS, min_size=MIN_SECRET_CHARACTERS)), st.lists(st.text(LETTERS)))
def test_no_known_secret_survives_wherever_it_stands(secrets: list[str], words: list[str]) -> None:
    scrubber = Scrubber(secrets)
    text = "".join(f"{word}{secret}" for word, secret in zip(words * 9, secrets, strict=False))
    scrubbed = scrubber.scrub(text)
    for secret in secrets:
        assert secret not in scrubbed.replace(REMOVED, "[]")
    assert scrubber.scrub_value({text: [text, 3, None]}) == {scrubbed: [scrubbed, 3, None]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2 user=me", f"password={REMOVED} user=me"),
        ('{"wifi_psk": "hunter 2", "a": 1}', f'{{"wifi_psk": {REMOVED}, "a": 1}}'),
        ("MY_API_KEY: abc", f"MY_API_KEY: {REMOVED}"),
        ("https://me:pw@host/path", f"https://{REMOVED}@host/path"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {REMOVED}"),
        (f"token 4873c1a0.{'x' * 43} given", f"token {REMOVED} given"),
        (
            "-----BEGIN EC PRIVATE KEY-----\nMHcC\nAQ\n-----END EC PRIVATE KEY-----\n.",
            f"{REMOVED}\n.",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMHcC that is cut", REMOVED),
        ("policy 7 (sha256 9f86d081884c7d65) acts", "policy 7 (sha256 9f86d081884c7d65) acts"),
        ("the token is not one of this fleet", "the token is not one of this fleet"),
    ],
)
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str, expected: str) -> None:
    assert Scrubber([]).scrub(text) == expected


@given(st.text(LETTERS, min_size=40), st.integers(20, 39))
def test_a_secret_that_was_cut_is_removed_too(secret: str, length: int) -> None:
    cut = secret[: max(length, len(secret) // 2)]
    assert cut not in Scrubber([secret]).scrub(f"said {cut}").replace(REMOVED, "[]")


@given(st.text(min_size=MIN_SECRET_CHARACTERS))
def test_a_secret_that_was_quoted_is_removed_too(secret: str) -> None:
    for quoted in (repr(secret)[1:-1], json.dumps(secret)[1:-1]):
        assert Scrubber([secret]).scrub(quoted) == REMOVED


def test_short_values_do_not_tear_holes_into_every_line() -> None:
    assert Scrubber(["1", "", "pi"]).scrub("pi-1 acts 11 times") == "pi-1 acts 11 times"
