from __future__ import annotations

from dataclasses import dataclass, field

from cloud_learner.config import AppetiteConfig
from cloud_learner.training.source import Backlog
from cloud_learner.uplink.appetite import Reading
from cloud_learner.uplink.appetite_broadcast import WINDOW_S, AppetiteBroadcast
from shoal.v1 import device_pb2 as pb
from shoal.v1 import trajectory_pb2
from shoal.wire import unframe

STEP = 100.0


@dataclass
class World:
    """A learner whose state the test sets, and what its devices hear."""

    limit_rate: bool = True
    now_s: float = 0.0
    waiting: float = 0.0
    consumed: float = 0.0
    made: int = 0
    oldest: int = 3
    present: dict[str, float] = field(default_factory=lambda: {"pi-1": 50.0, "pi-2": 50.0})
    heard: list[tuple[str, pb.Appetite]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broadcast = AppetiteBroadcast(
            AppetiteConfig(interval_s=1.0, limit_rate=self.limit_rate),
            read=lambda: Reading(self.now_s, Backlog(self.waiting, STEP, self.consumed), self.made),
            oldest_version=lambda: self.oldest,
            present=lambda: self.present,
            publish=lambda device, told: self.heard.append((device, unframe(pb.Appetite, told))),
        )

    def look(self, after_s: float) -> list[tuple[str, pb.Appetite]]:
        self.now_s += after_s
        self.heard.clear()
        self.broadcast.look()
        return self.heard

    def fall_behind(self) -> list[tuple[str, pb.Appetite]]:
        self.waiting, self.made, self.consumed = 10 * STEP, 1000, 100.0
        return self.look(0.25)


def test_every_present_device_is_told_at_the_interval() -> None:
    world = World()
    assert [device for device, _ in world.look(0.0)] == ["pi-1", "pi-2"]
    assert not world.look(0.25)
    world.present = {"pi-2": 50.0}
    told = world.look(0.75)
    assert [(device, each.oldest_version, each.steps_per_s) for device, each in told] == [
        ("pi-2", 3, 0.0)
    ]


def test_every_device_is_told_which_chunks_are_read() -> None:
    told = World().look(0.0)
    assert [list(each.codecs) for _, each in told] == [[trajectory_pb2.CODEC_COLUMNS]] * 2


def test_a_learner_that_falls_behind_says_so_at_once() -> None:
    world = World()
    world.look(0.0)
    told = world.fall_behind()
    assert {device for device, _ in told} == {"pi-1", "pi-2"}
    assert all(each.steps_per_s > 0 for _, each in told)
    assert world.broadcast.wanted_steps_per_s > 0


def test_a_learner_that_limits_no_rate_still_says_what_is_too_old() -> None:
    world = World(limit_rate=False)
    world.look(0.0)
    assert not world.fall_behind()
    assert [each.oldest_version for _, each in world.look(1.0)] == [3, 3]
    assert all(each.steps_per_s == 0.0 for _, each in world.heard)


def test_numbers_grow_and_name_the_learner_that_counts_them() -> None:
    world = World()
    seqs = [each.sent_seq for _ in range(5) for _, each in world.look(1.0)]
    assert seqs == sorted(set(seqs))
    assert seqs[0] == 1
    assert len({each.learner_run_id for _, each in world.look(1.0)}) == 1
    assert World().look(0.0)[0][1].learner_run_id != world.look(1.0)[0][1].learner_run_id


def test_only_recent_readings_are_kept() -> None:
    world = World()
    for _ in range(1000):
        world.look(0.25)
    assert len(world.broadcast._readings) <= WINDOW_S / 0.25 + 2
