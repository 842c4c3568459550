from __future__ import annotations

from dataclasses import dataclass

from cloud_learner.downlink.version_jumps import (
    JUMP_INTERVAL_S,
    MAX_JUMP,
    MAX_VERSION_BELIEVED,
    VersionJumps,
)


@dataclass
class World:
    highest: int = 1
    now_s: float = 0.0
    woken: int = 0

    def __post_init__(self) -> None:
        self.jumps = VersionJumps(
            highest=lambda: self.highest, wake=self.wake, clock=lambda: self.now_s
        )

    def wake(self) -> None:
        self.woken += 1


def test_a_version_above_the_highest_makes_a_jump_due_over_the_highest_that_was_reported() -> None:
    world = World()
    assert world.jumps.note(1) == ""
    assert world.woken == 0
    assert "1437" in world.jumps.note(1437)
    world.jumps.note(1400)
    assert world.jumps.due
    assert world.woken == 2
    assert world.jumps.take() == 1437


def test_a_lying_device_cannot_use_the_versions_up() -> None:
    world = World()
    for lie in (1 + MAX_JUMP + 1, 1 << 62):
        assert f"policies_after_version = {lie}" in world.jumps.note(lie)
        assert not world.jumps.due
    world.highest = MAX_VERSION_BELIEVED - 1
    assert "policies_after_version" in world.jumps.note(MAX_VERSION_BELIEVED)
    assert not world.jumps.due


def test_jumps_keep_their_distance_in_time() -> None:
    world = World()
    world.jumps.note(10)
    world.highest = world.jumps.take() + 1
    world.now_s = JUMP_INTERVAL_S - 1.0
    world.jumps.note(20)
    assert not world.jumps.due
    world.now_s = JUMP_INTERVAL_S
    world.jumps.note(20)
    assert world.jumps.due
