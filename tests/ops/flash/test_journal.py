"""The journal of a flash: what was noted is found again, and nothing else is believed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoalctl.flash.image.journal import FlashJournal

TARGET = "Ultra 4C53 32000000000"
DIGESTS = st.lists(st.text("0123456789abcdef", min_size=32, max_size=32), max_size=6)


@given(groups=st.lists(DIGESTS, max_size=4), forgotten=st.sets(st.integers(0, 30)))
def test_what_is_noted_is_found_again(groups: list[list[str]], forgotten: set[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "state" / "journal"
        journal = FlashJournal(path, TARGET, "pi-1-77")
        everything: list[str] = []
        journal.record(0, ())
        for group in groups:
            journal.record(len(everything), group)
            everything += group
        journal.forget(forgotten)
        again = FlashJournal.load(path, TARGET)
        assert again.instance_id == "pi-1-77"
        for index, digest in enumerate(everything):
            assert again.holds(index, digest) == (index not in forgotten)
        assert not again.holds(len(everything), "0" * 32)
        again.remove()
        assert not path.exists()


def test_the_journal_of_another_disk_is_refused(tmp_path: Path) -> None:
    FlashJournal(tmp_path / "journal", TARGET, "x").record(0, ())
    with pytest.raises(ConfigError, match="is about Ultra 4C53"):
        FlashJournal.load(tmp_path / "journal", "Ultra 9999 32000000000")


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"schema": "shoal.v1.FlashJournal", "digests": [1]}']
)
def test_a_damaged_journal_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text(content)
    with pytest.raises(ConfigError, match="leave --resume out"):
        FlashJournal.load(tmp_path / "journal", TARGET)
