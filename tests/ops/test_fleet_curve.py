"""`shoal fleet curve`: the chart of what a learner's journal holds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from learner_state import short_run
from strategies import cartpole_spec, make_chunk

from shoal.errors import ConnectionFailed
from shoal.v1 import curve_pb2, curve_pb2_grpc
from shoalctl.cli import run
from shoalctl.fleet.curve import Curve, lines_of, points_of, watch_curve
from shoalctl.pki.pki import FleetPki, Role
from shoalctl.views.chart import Point


def test_the_curve_of_a_journal_is_drawn_with_both_levels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = short_run(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    capsys.readouterr()
    assert run(["fleet", "curve", "--state", str(made.state.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 22
    assert "CartPole-v1" in lines[0]
    assert any("threshold 475" in line for line in lines)
    assert any("published 500" in line for line in lines)
    assert all(len(line) <= 80 for line in lines[1:])
    assert lines[-1].endswith("steps")


def test_without_a_journal_it_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "curve", "--state", str(tmp_path)]) == 4
    assert "no journal here" in capsys.readouterr().err


def test_steps_count_from_what_the_journal_has_no_more() -> None:
    chunk = make_chunk(cartpole_spec())
    points = points_of([chunk] * 3, before=1000)
    assert points[0].steps == 1000 + chunk.transitions
    assert points[-1].steps == 1000 + 3 * chunk.transitions
    mean = sum(e.total_return for e in chunk.episodes) / len(chunk.episodes)
    assert points[-1].value == pytest.approx(mean)


def test_steps_since_the_last_episode_count() -> None:
    chunk = make_chunk(cartpole_spec())
    points = points_of([chunk, replace(chunk, episodes=())])
    assert [p.steps for p in points] == [chunk.transitions, 2 * chunk.transitions]
    assert points[0].value == points[1].value


class FakeCurves(curve_pb2_grpc.CurvesServicer):
    """A learner whose curve a test makes longer."""

    def __init__(self) -> None:
        self.points = [(2048, 21.5), (4096, 240.0)]

    def GetCurve(  # noqa: N802 - the name in the proto
        self, request: curve_pb2.GetCurveRequest, context: grpc.ServicerContext
    ) -> curve_pb2.LearningCurve:
        assert request.fleet == "demo"
        return curve_pb2.LearningCurve(
            points=[curve_pb2.CurvePoint(env_steps=s, return_mean=m) for s, m in self.points],
            env_id="CartPole-v1",
            reward_threshold=475.0,
            algorithm="cloud_learner.algorithms.appo:APPO",
        )


@dataclass
class Served:
    """A learner that serves a curve, and how an operator asks it."""

    fake: FakeCurves
    options: list[str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    learner = pki.issue("learner", Role.LEARNER)
    ca, cert, key = ((learner / f"{name}.pem").read_bytes() for name in ("ca", "cert", "key"))
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    fake = FakeCurves()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        curve_pb2_grpc.add_CurvesServicer_to_server(fake, server)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        operator = pki.issue("operator", Role.OPERATOR)
        yield Served(fake, ["--server", f"localhost:{port}", "--identity", str(operator)])
        server.stop(None).wait()


def test_a_running_learner_tells_its_curve(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["fleet", "curve", *served.options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "CartPole-v1; published: 500" in lines[0]
    assert any("threshold 475" in line for line in lines)
    assert lines[-1] == "240.0 after 4,096 steps"
    served.fake.points = []
    assert run(["fleet", "curve", *served.options]) == 1
    assert "no episode has ended yet" in capsys.readouterr().err


def test_without_a_learner_or_its_directory_it_says_what_to_give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_OPERATOR_IDENTITY", raising=False)
    assert run(["fleet", "curve"]) == 4
    assert "give --state, a learner's state directory; or --identity" in capsys.readouterr().err


def test_a_watch_shows_what_went_on_and_waits_for_a_learner_that_is_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = ConnectionFailed("cannot reach the learner")
    first, second = Curve([Point(10, 1.0)]), Curve([Point(10, 1.0), Point(20, 2.0)])
    answers: list[Curve | ConnectionFailed] = [Curve([]), first, first, away, away, second]
    found = iter(answers)
    waited: list[float] = []
    out, now = io.StringIO(), iter(range(0, 1000, 5))

    def read() -> Curve:
        each = next(found, None)
        if each is None:
            raise KeyboardInterrupt
        if isinstance(each, ConnectionFailed):
            raise each
        return each

    with pytest.raises(KeyboardInterrupt):
        watch_curve(
            read,
            lambda curve: ["a chart", f"{curve.points[-1].value:g}"],
            out=out,
            wait=waited.append,
            clock=lambda: float(next(now)),
        )
    assert out.getvalue().splitlines() == ["1", "2"]  # a line for each change, no chart
    assert capsys.readouterr().err.count("cannot reach the learner; trying again") == 1
    assert waited == [50.0] * 6  # what takes 5 s to read is read no more often than this


def test_a_watch_draws_in_place_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    curves = iter([Curve([Point(10, 1.0)]), Curve([Point(20, 2.0)])])

    def read() -> Curve:
        try:
            return next(curves)
        except StopIteration:
            raise KeyboardInterrupt from None

    out = Terminal()
    with pytest.raises(KeyboardInterrupt):
        watch_curve(read, lambda c: lines_of(c, 475.0, None), out=out, wait=lambda _: None)
    assert out.getvalue().count("threshold 475") >= 2
    assert "\x1b[" in out.getvalue()
