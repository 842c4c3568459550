"""Tables for people, one strict envelope for programs."""

import io
import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoalctl.output import (
    Column,
    Format,
    Listing,
    Value,
    duration,
    plain,
    size,
    write_envelope,
    write_listing,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
LISTING = Listing(
    schema="shoal.v1.ThingList",
    items=[{"name": "first", "age_s": 3.0}, {"name": "a much longer name", "age_s": None}],
    columns=(
        Column("NAME", lambda item: str(item["name"])),
        Column("SECRET", lambda item: "shown", wide=True),
        Column("AGE", lambda item: str(item["age_s"]), right=True),
    ),
    empty="nothing here",
)


def written(listing: Listing, how: Format) -> str:
    out = io.StringIO()
    write_listing(listing, how, out)
    return out.getvalue()


def test_a_table_without_a_terminal_has_one_whole_row_an_item() -> None:
    long = Listing("s", [{"name": "x" * 500, "age_s": 1}], LISTING.columns, "")
    lines = written(long, Format.TABLE).splitlines()
    assert len(lines) == 2
    assert "x" * 500 in lines[1]


def test_a_wide_table_shows_more_and_age_stays_last() -> None:
    assert written(LISTING, Format.TABLE).splitlines()[0].split() == ["NAME", "AGE"]
    assert written(LISTING, Format.WIDE).splitlines()[0].split() == ["NAME", "SECRET", "AGE"]


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    listing = Listing("s", [{"name": "[red]x[/red]", "age_s": 1}], LISTING.columns, "")
    assert "[red]x[/red]" in written(listing, Format.TABLE)


def test_an_empty_table_is_a_sentence_and_an_empty_envelope_is_whole() -> None:
    empty = Listing("shoal.v1.ThingList", [], LISTING.columns, "nothing here")
    assert written(empty, Format.TABLE) == "nothing here\n"
    assert json.loads(written(empty, Format.JSON)) == {"schema": "shoal.v1.ThingList", "items": []}


@pytest.mark.parametrize("how", [Format.JSON, Format.YAML])
def test_json_and_yaml_hold_the_same_envelope(how: Format) -> None:
    expected = {
        "schema": "shoal.v1.ThingList",
        "items": [{"name": "first", "age_s": 3.0}, {"name": "a much longer name", "age_s": None}],
    }
    # Every JSON text is YAML too.
    assert yaml.safe_load(written(LISTING, how)) == expected


@given(VALUES)
def test_whatever_is_written_is_strict_json(value: Value) -> None:
    out = io.StringIO()
    write_envelope("shoal.v1.Test", [{"value": value}], Format.JSON, out)

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    read = json.loads(out.getvalue(), parse_constant=refuse)
    assert read["items"][0]["value"] == plain(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (0, "0s"),
        (59.99, "59s"),
        (60, "1m"),
        (303, "5m3s"),
        (7200, "2h"),
        (7259, "2h"),
        (86399, "23h59m"),
        (270000, "3d3h"),
        (-0.5, "0s"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_duration_is_said_in_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (68_600, "68.6 KB"),
        (999_960, "1.0 MB"),
        (1_200_000_000, "1.2 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_a_size_is_said_in_its_own_unit(count: float | None, text: str) -> None:
    assert size(count) == text


def test_what_a_device_says_cannot_steer_the_terminal() -> None:
    listing = Listing(
        schema="shoal.v1.EventList",
        items=[{"name": "\x1b[31mred\x1b]0;pwn\x07\x1b[2J\nforged line\u202e"}],
        columns=[Column("NAME", lambda item: str(item["name"]))],
        empty="none",
    )
    out = io.StringIO()
    write_listing(listing, Format.TABLE, out)
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 2
    assert "\\x1b[31mred" in out.getvalue()
