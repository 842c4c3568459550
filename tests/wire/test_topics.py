"""Topics are built and parsed the same way for ever."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import NAMES

from shoal.errors import ConfigError, WireError
from shoal.topics import (
    DOWN_KINDS,
    PARTITIONS,
    RESERVED_NAMES,
    UP_KINDS,
    Topic,
    Topics,
    check_device_id,
    check_fleet,
    parse_topic,
    partition_of,
)


def matches(pattern: str, topic: str) -> bool:
    """MQTT's own rule for a filter with `+` alone."""
    left, right = pattern.split("/"), topic.split("/")
    return len(left) == len(right) and all(a in ("+", b) for a, b in zip(left, right, strict=True))


@given(NAMES, NAMES)
def test_what_is_built_parses_back(fleet: str, device: str) -> None:
    topics = Topics(fleet)
    for kind, topic in {
        "trajectory": topics.trajectory(device),
        "status": topics.status(device),
        "telemetry": topics.telemetry(device),
        "event": topics.event(device),
    }.items():
        assert parse_topic(topic) == Topic(fleet, partition_of(device), device, "up", kind)
        assert matches(topics.all_up(), topic), "the learner hears it"
        assert not matches(topics.down(device), topic), "the device does not"
    ack = topics.ack(device)
    assert parse_topic(ack) == Topic(fleet, partition_of(device), device, "down", "ack")
    assert matches(topics.down(device), ack)
    assert not matches(topics.all_up(), ack)


@given(NAMES, NAMES, NAMES)
def test_a_device_hears_only_what_is_for_itself(fleet: str, device: str, other: str) -> None:
    assume(device != other)
    assert not matches(Topics(fleet).down(other), Topics(fleet).ack(device))


@given(NAMES)
def test_the_partition_is_one_of_sixteen(device: str) -> None:
    assert partition_of(device) in {f"{number:02d}" for number in range(PARTITIONS)}


def test_partitions_never_change() -> None:
    assert Topics("farm").trajectory("pi-1") == "shoal/v1/farm/10/pi-1/up/trajectory"
    assert [partition_of(f"device-{n}") for n in range(4)] == ["06", "03", "08", "04"]


@given(st.text())
def test_any_text_parses_or_is_a_wire_error(text: str) -> None:
    try:
        topic = parse_topic(text)
    except WireError:
        return
    assert f"shoal/v1/{topic.fleet}/{topic.partition}/{topic.device_id}/" in text


PARTS = st.sampled_from(
    ["shoal", "v1", "v2", "farm", "pi-1", "10", "00", "up", "down", "ack", "status", "", "+", "#"]
)


@given(st.lists(PARTS, min_size=5, max_size=8))
def test_near_misses_parse_back_to_themselves_or_are_wire_errors(parts: list[str]) -> None:
    text = "/".join(parts)
    try:
        topic = parse_topic(text)
    except WireError:
        return
    way = UP_KINDS if topic.direction == "up" else DOWN_KINDS
    assert topic.kind in way
    assert text == (
        f"shoal/v1/{topic.fleet}/{topic.partition}/{topic.device_id}/{topic.direction}/{topic.kind}"
    )


@pytest.mark.parametrize(
    "topic",
    [
        "shoal/v1/farm/00/pi-1/up/trajectory",  # another device's partition
        "shoal/v2/farm/10/pi-1/up/trajectory",
        "shoal/v1/farm/10/pi-1/up/ack",
        "shoal/v1/farm/10/pi-1/down/trajectory",
        "shoal/v1/farm/10/pi-1/sideways/ack",
        "shoal/v1/farm/10/pi-1/up/trajectory/more",
        "shoal/v1/Farm/12/pi-1/up/trajectory",
        "shoal/v1/farm/10/pi-1/up/trajectory\n",
        "shoal/v1/farm\n/12/pi-1/up/trajectory",
        "$SYS/v1/farm/10/pi-1/up/trajectory",
    ],
)
def test_refuses_a_topic_that_is_not_ours(topic: str) -> None:
    with pytest.raises(WireError):
        parse_topic(topic)


@pytest.mark.parametrize(
    "name", ["", "-a", "A", "a_b", "a.b", "a/b", "+", "#", "a" * 64, "é", "a\n"]
)
def test_refuses_a_bad_name_and_says_what_is_allowed(name: str) -> None:
    for check in (check_device_id, check_fleet):
        with pytest.raises(ConfigError, match="1-63 of a-z"):
            check(name)
    with pytest.raises(ConfigError):
        Topics(name)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_refuses_a_reserved_device_id(name: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        check_device_id(name)
