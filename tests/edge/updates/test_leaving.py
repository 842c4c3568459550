"""What the launcher does when the agent asks to leave a bundle: a rollout of it was aborted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.slots import transitions
from edge_agent.slots.layout import Layout
from edge_agent.slots.state import Content, Moment, Name, Release, Slot, State
from edge_agent.slots.store import Store
from edge_agent.slots.update import Updater
from edge_agent.updates.agent_step import AgentAsked
from edge_agent.updates.update_files import UpdateFiles

OLD, NEW = Release("0" * 64, "0.1.0-1", "0.1.0"), Release("1" * 64, "0.2.0-1", "0.2.0")
NOW = Moment(0, "boot")
BEFORE = State(
    current=Name.A,
    a=Slot(Content.COMMITTED, OLD, "it acted"),
    b=Slot(Content.INSTALLED, NEW),
)
ON_TRIAL = transitions.switch(BEFORE, "rollout 8, wave 1 of 2", NOW)
COMMITTED = replace(ON_TRIAL.put(Name.B, Slot(Content.COMMITTED, NEW, "it acted")), trial=None)


def asked(release: Release) -> AgentAsked:
    return AgentAsked(
        8,
        release.bundle_version,
        bytes.fromhex(release.digest),
        10,
        bytes(32),
        "rollout 8 was aborted: it limps",
        go_back=True,
    )


def leave(tmp_path: Path, state: State, release: Release) -> tuple[State, dict[str, str]]:
    """The agent's request, and what the launcher makes of it."""
    layout = Layout.of(tmp_path)
    layout.updates.mkdir(parents=True)
    store = Store(layout)
    store.change(lambda _before, _now: state)
    UpdateFiles(layout.updates, slots=layout.state_file).request(asked(release))
    Updater(layout, store).apply()
    assert not layout.request.exists()
    return store.read(), json.loads(layout.result.read_text())


@pytest.mark.parametrize("state", [ON_TRIAL, COMMITTED])
def test_the_slot_before_runs_again_and_the_history_says_why(tmp_path: Path, state: State) -> None:
    after, result = leave(tmp_path, state, NEW)
    assert after.current is Name.A
    assert after.slot(Name.B).content is Content.CONDEMNED
    assert "rollout 8 was aborted: it limps" in after.history[-1].reason
    assert (result["state"], result["digest"]) == ("left", NEW.digest)


def test_a_bundle_that_does_not_run_is_left_already(tmp_path: Path) -> None:
    after, result = leave(tmp_path, COMMITTED, OLD)
    assert (after.current, result["state"]) == (Name.B, "left")


def test_the_only_slot_that_works_is_never_left_for_nothing(tmp_path: Path) -> None:
    only = State(current=Name.B, b=Slot(Content.COMMITTED, NEW, "it acted"))
    after, result = leave(tmp_path, only, NEW)
    assert after.current is Name.B
    assert result["state"] == "refused"
    assert "nothing to go back to" in result["reason"]
