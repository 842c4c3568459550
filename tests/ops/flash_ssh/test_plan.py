"""What is left to do: from facts and slots to a list, whatever state a host is in."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import PUBLIC
from host_facts import FIT
from hypothesis import given
from hypothesis import strategies as st
from ssh_hosts import fake_bundle

from edge_agent.slots.state import State
from shoal.errors import FlashFailed
from shoalctl.flash.ssh.facts import Facts, Privilege
from shoalctl.flash.ssh.offline_bundle import OfflineBundle
from shoalctl.flash.ssh.plan import Places, Step, plan
from shoalctl.flash.ssh.remote import as_root
from shoalctl.flash.ssh.trial import Standing, Verdict, read_slots, standing_of

PLACES = Places()
RUNS = replace(FIT, unit=True, enrolled=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> OfflineBundle:
    return OfflineBundle.open(fake_bundle(tmp_path_factory.mktemp("b") / "b.tar"), PUBLIC)


def steps(
    facts: Facts, standing: Standing, bundle: OfflineBundle, *, token: bool = False
) -> list[Step]:
    actions = plan(facts, standing, bundle, PLACES, reason="why", token=token, wait=True)
    return [action.step for action in actions]


def test_a_blank_host_is_set_up_whole(bundle: OfflineBundle) -> None:
    wanted = [Step.UPLOAD, Step.UNPACK, Step.TOKEN, Step.INSTALL, Step.CLEAN, Step.WAIT]
    assert steps(FIT, Standing(Verdict.ABSENT), bundle, token=True) == wanted


def test_an_update_is_installed_and_switched_to(bundle: OfflineBundle) -> None:
    standing = Standing(Verdict.ABSENT, running="1.0")
    wanted = [Step.UPLOAD, Step.UNPACK, Step.INSTALL, Step.SWITCH, Step.CLEAN, Step.WAIT]
    assert steps(RUNS, standing, bundle) == wanted


def test_what_is_there_already_is_not_done_again(bundle: OfflineBundle) -> None:
    absent = Standing(Verdict.ABSENT, running="1.0")
    uploaded = replace(RUNS, staged={f"{bundle.sha256}.tar": bundle.size_bytes})
    unpacked = replace(RUNS, unpacked=frozenset({bundle.sha256}))
    installed = Standing(Verdict.INSTALLED, "b", running="1.0")
    on_trial = Standing(Verdict.ON_TRIAL, "b", running="2.0")
    committed = Standing(Verdict.COMMITTED, "b", running="2.0")
    assert steps(uploaded, absent, bundle)[0] is Step.UNPACK
    assert steps(unpacked, absent, bundle)[0] is Step.INSTALL
    assert steps(RUNS, installed, bundle) == [Step.SWITCH, Step.WAIT]
    assert steps(RUNS, on_trial, bundle) == [Step.WAIT]
    assert steps(RUNS, committed, bundle) == []
    assert steps(unpacked, committed, bundle) == [Step.CLEAN]


def test_a_first_installation_whose_unit_is_missing_is_done_again(bundle: OfflineBundle) -> None:
    half = replace(RUNS, unit=False)
    on_trial = Standing(Verdict.ON_TRIAL, "a", running="1.0")
    assert steps(half, on_trial, bundle)[-3:] == [Step.INSTALL, Step.CLEAN, Step.WAIT]


def test_a_token_alone_restarts_the_agent_that_enrols_with_it(bundle: OfflineBundle) -> None:
    committed = Standing(Verdict.COMMITTED, "b", running="2.0")
    waiting = replace(RUNS, enrolled=False)
    assert steps(waiting, committed, bundle, token=True) == [Step.TOKEN, Step.RESTART]


def test_another_prefix_keeps_everything_below_it(bundle: OfflineBundle) -> None:
    places = Places("/srv/shoal", systemd=False)
    actions = plan(
        FIT,
        Standing(Verdict.ABSENT),
        bundle,
        places,
        reason="why",
        token=True,
        wait=True,
        device_id="arm-1",
    )
    text = "\n".join(action.command for action in actions)
    assert "--no-units --no-user" in text
    assert not any(word in text for word in ("/opt/shoal", "/var/lib/shoal", "/etc/shoal"))


@given(st.text(st.characters(exclude_characters="\0")))
def test_a_command_reaches_root_word_by_word(text: str) -> None:
    command = shlex.join(["echo", text])
    words = shlex.split(as_root(command, Privilege.SUDO))
    assert words[:4] == ["sudo", "-n", "sh", "-c"]
    assert shlex.split(words[4]) == ["echo", text]


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
def test_no_reason_breaks_out_of_its_quotes(reason: str) -> None:
    bundle = _BUNDLE
    actions = plan(
        RUNS,
        Standing(Verdict.INSTALLED, "b", running="1.0"),
        bundle,
        PLACES,
        reason=reason,
        token=False,
        wait=False,
    )
    assert shlex.split(actions[0].command)[1:] == ["switch", "--reason", reason]


_BUNDLE = OfflineBundle(Path("b.tar"), "0" * 64, 1, None)  # type: ignore[arg-type]


def test_slots_that_nobody_can_read_are_an_error_for_people() -> None:
    with pytest.raises(FlashFailed, match="shoal-slots status"):
        read_slots('{"schema": 99}')
    assert read_slots(" \n") == State()


def test_an_empty_host_has_no_bundle() -> None:
    assert standing_of(State(), "0" * 64) == Standing(Verdict.ABSENT)
