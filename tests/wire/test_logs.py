"""Events go to stderr, as lines for people or JSON for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from shoal.logs import get_logger, setup_logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger("shoal")
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    captured = capsys.readouterr()
    assert captured.out == "", "stdout belongs to results"
    return [json.loads(line) for line in captured.err.splitlines()]


def test_writes_one_json_object_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    log = get_logger("ingest").bind(device_id="pi-1")
    log.warning("chunk_rejected", reason="lag\nor worse", seq=4, run_id=b"\x01\xff")
    (event,) = lines(capsys)
    assert event.pop("time")
    assert event == {
        "level": "warning",
        "logger": "ingest",
        "event": "chunk_rejected",
        "device_id": "pi-1",
        "reason": "lag\nor worse",
        "seq": 4,
        "run_id": "01ff",
    }


def test_leaves_out_what_is_below_its_level(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("warning")
    log = get_logger("x")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [event["event"] for event in lines(capsys)] == ["c", "d"]


def test_binding_makes_a_new_logger(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    log = get_logger("x")
    log.bind(seq=1).info("with")
    log.info("without")
    assert ["seq" in event for event in lines(capsys)] == [True, False]


def test_setting_up_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    setup_logging()
    get_logger("x").info("once")
    assert len(lines(capsys)) == 1


def test_a_terminal_gets_lines_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    setup_logging()
    get_logger("spool").info("chunk_dropped", reason="full", seq=3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("info    spool: chunk_dropped reason=full seq=3")
