"""The agent's side: it says that it goes on while it does, and that it acted once it has."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.events import Events
from edge_agent.slots import codec, transitions
from edge_agent.slots.rules import Charge, Heard, Rules, end_of, has_acted, parse
from edge_agent.slots.state import Moment, Name, Release, State
from edge_agent.slots.supervisor import code_of
from edge_agent.supervision.heart import Heart, RestingClock
from edge_agent.supervision.notifier import Notifier
from edge_agent.supervision.slot_events import SlotEvents
from edge_agent.supervision.slot_file import SlotFile
from edge_agent.supervision.supervision import held
from edge_agent.supervision.trial_witness import TrialWitness
from shoal.episodes import Episode
from shoal.trajectory import Chunk
from shoal.v1 import slot_pb2 as pb

NOW = Moment(1_700_000_000, "boot 1")


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Kept:
    chunks: list[Chunk] = field(default_factory=list)

    def __call__(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(20.0)
        yield found


def test_a_control_thread_that_neither_acts_nor_waits_is_not_felt() -> None:
    heart = Heart(clock=Clock())
    heart.beat()
    assert heart.felt(0)
    assert not heart.felt(0)
    assert heart.felt(1)
    assert not heart.felt(1)


def test_a_wait_that_was_meant_is_felt_until_its_time_is_over() -> None:
    clock = Clock()
    heart = Heart(clock=clock)
    heart.felt(0)
    heart.rest(10.0)
    clock.now_s = 9.0
    assert heart.felt(0)
    clock.now_s = 11.0
    assert not heart.felt(0)


def test_an_actor_that_waits_for_its_deadline_rests() -> None:
    heart = Heart()
    heart.felt(0)
    stop = threading.Event()
    stop.set()
    RestingClock(heart).wait(3600.0, stop)
    assert heart.felt(0)


def test_what_is_said_arrives_on_one_line_each(listener: socket.socket, tmp_path: Path) -> None:
    Notifier(str(tmp_path / "notify")).tell("READY=1", "STATUS=two\nlines")
    assert listener.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_a_listener_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "nobody")).tell("READY=1")
    Notifier("@shoal-nobody").tell("READY=1")
    Notifier.from_environ({}).tell("READY=1")


@given(st.binary(max_size=300))
def test_any_datagram_is_read(datagram: bytes) -> None:
    assert all("=" not in key for key in parse(datagram))


def test_a_ping_puts_off_the_end_and_silence_does_not() -> None:
    heard = Heard(0.0)
    assert not heard.hung(200.0, watchdog_s=120.0, start_s=240.0)  # it still starts
    heard = heard.hear(b"READY=1", 10.0)
    assert not heard.hung(129.0, watchdog_s=120.0, start_s=240.0)
    assert heard.hear(b"STATUS=acting", 129.0).hung(131.0, watchdog_s=120.0, start_s=240.0)
    assert not heard.hear(b"WATCHDOG=1", 129.0).hung(131.0, watchdog_s=120.0, start_s=240.0)
    assert heard.hear(b"X_SHOAL_HELD=no policy", 20.0).held == "no policy"


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=20))
def test_only_time_in_which_it_could_have_acted_is_charged(spans: list[tuple[float, bool]]) -> None:
    charge = Charge()
    for passed_s, waits in spans:
        charge = charge.go_on(7, passed_s, held=waits)
    assert charge.used_s == pytest.approx(sum(s for s, waits in spans if not waits))
    assert charge.go_on(8, 1.0, held=False).used_s == pytest.approx(1.0)  # another trial


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 10))
def test_acting_is_episodes_or_chunks_where_no_episode_ends(
    episodes: int, chunks: int, acts: int
) -> None:
    enough = has_acted(episodes=episodes, chunks=chunks, acts=acts)
    assert enough == (episodes >= acts or (episodes == 0 and chunks >= acts))


@pytest.mark.parametrize(
    ("result", "code", "status", "died", "expired"),
    [
        ("success", "exited", "0", False, False),
        ("success", "exited", "75", False, False),
        ("exit-code", "exited", "5", True, False),
        ("exit-code", "exited", "76", False, True),
        ("watchdog", "killed", "ABRT", True, False),
        ("oom-kill", "killed", "KILL", True, False),
        ("timeout", "killed", "TERM", True, False),
    ],
)
def test_what_systemd_says_of_an_end(
    *, result: str, code: str, status: str, died: bool, expired: bool
) -> None:
    told = {"SERVICE_RESULT": result, "EXIT_CODE": code, "EXIT_STATUS": status}
    end, up = end_of(told)
    assert (end.died, up) == (died, expired)
    assert end.reason


def test_rules_are_read_from_the_configuration_and_nonsense_is_passed_over(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    assert Rules.read(config) == Rules()
    config.write_text("[trial]\nacts = 5\ndeadline_s = 60\ndeaths = -1\n")
    assert Rules.read(config) == replace(Rules(), acts=5, deadline_s=60.0)
    for broken in ("trial = 3", "[trial", '[trial]\nacts = "many"'):
        config.write_text(broken)
        assert Rules.read(config) == Rules()


@pytest.mark.parametrize(
    ("has_policy", "rejected", "has_task", "said"),
    [
        (True, 0, True, ""),
        (False, 0, True, "no policy"),  # the cloud is away
        (False, 2, True, ""),  # it refuses what it is offered: that is its own doing
        (True, 3, True, ""),
        (True, 0, False, "no task"),
    ],
)
def test_who_is_to_blame_for_not_acting(
    *, has_policy: bool, rejected: int, has_task: bool, said: str
) -> None:
    assert held(has_policy=has_policy, rejected=rejected, has_task=has_task) == said


def chunk(make_chunk: Chunk, episodes: int) -> Chunk:
    return replace(make_chunk, episodes=tuple(Episode(0, 0, 1.0, 1) for _ in range(episodes)))


def test_a_trial_is_passed_once_and_only_by_acting(tmp_path: Path) -> None:
    from strategies import cartpole_spec, make_chunk

    sample = make_chunk(cartpole_spec())
    witness, kept = TrialWitness(tmp_path, acts=3), Kept()
    keep = witness.seeing(kept)
    keep(chunk(sample, 1))
    keep(chunk(sample, 1))
    assert not witness.testify(7)
    assert not (tmp_path / "trial-acted.json").exists()
    keep(chunk(sample, 1))
    assert witness.testify(7)
    assert not witness.testify(7)
    word = json.loads((tmp_path / "trial-acted.json").read_bytes())
    assert (word["trial"], word["episodes"], word["chunks"]) == (7, 3, 3)
    assert len(kept.chunks) == 3


def history() -> State:
    release = Release("ab" * 32, "2.0", "0.1.0")
    state = transitions.start_install(State(), release, NOW)
    state = transitions.finish_install(state, release, NOW)
    return transitions.switch(state, "rollout 7, wave 2", NOW)


def test_each_switch_is_told_once_with_its_reason_also_over_restarts(tmp_path: Path) -> None:
    state = history()
    events = Events("pi-1", bytes(16), clock=lambda: 0.0)
    SlotEvents(tmp_path, events).tell(state.history)
    (told,) = events.take()
    assert told.name == "slot_switched"
    assert told.fields["because"] == "rollout 7, wave 2"
    assert told.fields["bundle_version"] == "2.0"
    again = SlotEvents(tmp_path, events)
    again.tell(state.history)
    assert not events.take()
    again.tell(transitions.commit(state, 2, "it acted 3 episodes", NOW).history)
    assert [event.name for event in events.take()] == ["slot_committed"]


def test_a_device_that_was_set_up_anew_is_told_of_again(tmp_path: Path) -> None:
    (tmp_path / "slot-events-told").write_text("900\n")
    events = Events("pi-1", bytes(16), clock=lambda: 0.0)
    SlotEvents(tmp_path, events).tell(history().history)
    assert [event.name for event in events.take()] == ["slot_switched"]


def test_the_report_names_slot_bundle_and_trial(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"
    path.write_bytes(codec.encode(history()))
    slots = SlotFile.from_environ({"SHOAL_SLOTS_FILE": str(path), "SHOAL_SLOT": "a"})
    slots.refresh()
    report = slots.report("no policy")
    assert report is not None
    assert (report.slot, report.bundle_version, report.held) == ("a", "2.0", "no policy")
    assert report.trial == pb.TRIAL_STATE_ON_TRIAL
    assert report.digest.hex() == "ab" * 32
    assert "rollout 7" in report.last
    path.write_bytes(b"{")
    slots.refresh()
    assert slots.report() is not None  # what is known stays known
    assert SlotFile.from_environ({"SHOAL_SLOT": "c"}).report() is None
    other = SlotFile(path, Name.B)
    other.refresh()
    assert other.report() is None


@pytest.mark.parametrize(
    ("status", "code"), [(0, 70), (5, 5), (74, 70), (75, 70), (76, 70), (-9, 137), (-6, 134)]
)
def test_an_agent_cannot_speak_for_its_launcher(status: int, code: int) -> None:
    assert code_of(status) == code
