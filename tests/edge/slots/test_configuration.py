"""A device's configuration and a bundle's: what is taken, kept, and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_agent.slots.configuration import lay
from edge_agent.slots.layout import Layout

SEED = b'{"host": "fleet.example.org", "port": 8444}\n'


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout.of(tmp_path / "prefix")
    layout.config.parent.mkdir(parents=True)
    return layout


def bundle(tmp_path: Path, agent: str) -> Path:
    source = tmp_path / "config"
    source.mkdir(exist_ok=True)
    (source / "agent.toml").write_text(agent)
    (source / "seed.json").write_bytes(SEED)
    return source


def test_what_a_device_lacks_is_taken(layout: Layout, tmp_path: Path) -> None:
    lay(layout, bundle(tmp_path, "a = 1"))
    assert layout.config.read_text() == "a = 1"
    assert layout.seed.read_bytes() == SEED


def test_what_differs_is_kept_and_the_bundles_lies_beside_it_until_they_agree(
    layout: Layout, tmp_path: Path
) -> None:
    said: list[str] = []
    layout.config.write_text("mine = 1")
    lay(layout, bundle(tmp_path, "a = 1"), tell=said.append)
    beside = layout.config.with_name("agent.toml.new")
    assert (layout.config.read_text(), beside.read_text()) == ("mine = 1", "a = 1")
    assert [line.split()[0] for line in said] == [str(layout.config)]
    lay(layout, bundle(tmp_path, "mine = 1"), tell=said.append)
    assert not beside.exists()
    assert len(said) == 1


def test_what_differs_is_replaced_when_asked_and_the_old_one_is_kept(
    layout: Layout, tmp_path: Path
) -> None:
    layout.config.write_text("mine = 1")
    lay(layout, bundle(tmp_path, "a = 1"), replace=True)
    assert layout.config.read_text() == "a = 1"
    assert layout.config.with_name("agent.toml.before").read_text() == "mine = 1"


def test_the_name_of_a_device_is_no_difference_and_may_be_given_anew(
    layout: Layout, tmp_path: Path
) -> None:
    said: list[str] = []
    for name, held in (("arm-1", "arm-1"), ("", "arm-1"), ("arm-2", "arm-2")):
        lay(layout, bundle(tmp_path, "a = 1"), device=name, tell=said.append)
        assert json.loads(layout.seed.read_bytes()) == {**json.loads(SEED), "device": held}
    assert not said
    assert [path.name for path in layout.seed.parent.glob("*.new")] == []


def test_a_damaged_seed_is_kept_and_differs(layout: Layout, tmp_path: Path) -> None:
    layout.seed.write_bytes(b"{")
    lay(layout, bundle(tmp_path, "a = 1"), device="arm-1")
    assert layout.seed.read_bytes() == b"{"
    assert layout.seed.with_name("seed.json.new").exists()
