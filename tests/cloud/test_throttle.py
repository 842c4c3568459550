from __future__ import annotations

from cloud_learner.uplink.throttle import MAX_KEYS, Throttle


def test_each_kind_is_told_once_per_interval_with_the_count_since_then() -> None:
    now_s = [0.0]
    throttle = Throttle(10.0, clock=lambda: now_s[0])
    assert [throttle.count_to_tell("a", 2) for _ in range(4)] == [2, 0, 0, 0]
    assert throttle.count_to_tell("b") == 1
    now_s[0] = 10.0
    assert throttle.count_to_tell("a", 1) == 7
    assert throttle.count_to_tell("a", 1) == 0


def test_the_kinds_remembered_are_bounded() -> None:
    throttle = Throttle(10.0, clock=lambda: 0.0)
    for kind in range(MAX_KEYS + 1):
        throttle.count_to_tell(kind)
    assert throttle.count_to_tell(MAX_KEYS) == 0
    assert throttle.count_to_tell(0) == 1
