"""`shoal devices events` on a real gRPC server with mutual TLS."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from shoal.errors import ConfigError
from shoal.identity import Identity
from shoal.v1 import device_pb2, events_pb2, events_pb2_grpc
from shoalctl.cli import run
from shoalctl.events.watch import watch_events
from shoalctl.fleet.client import FleetClient
from shoalctl.output import Format
from shoalctl.pki.pki import FleetPki, Role


def heard(place: int, name: str, **fields: str) -> events_pb2.FleetEvent:
    event = device_pb2.Event(
        device_id="pi-1",
        name=name,
        severity=device_pb2.SEVERITY_WARNING,
        message="said \x1b[2J",
        fields=fields,
        sent_unix_ms=1_700_000_000_000,
    )
    return events_pb2.FleetEvent(place=place, event=event, source="device", about="pi-1", age_s=3.0)


class FakeEvents(events_pb2_grpc.EventsServicer):
    """A log of two events, and watches that break off."""

    def __init__(self) -> None:
        self.asked: list[events_pb2.ListEventsRequest] = []
        self.watched: list[events_pb2.WatchEventsRequest] = []
        self.rounds: list[list[events_pb2.FleetEvent]] = []

    def ListEvents(  # noqa: N802 - the name in the proto
        self, request: events_pb2.ListEventsRequest, context: grpc.ServicerContext
    ) -> events_pb2.ListEventsResponse:
        self.asked.append(request)
        events = [heard(2, "policy_rejected", reason="signature", count="4"), heard(1, "hello")]
        return events_pb2.ListEventsResponse(
            events=events, counters={"device.hello": 1}, log_id=b"a" * 16, newest_place=2
        )

    def WatchEvents(  # noqa: N802 - the name in the proto
        self, request: events_pb2.WatchEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[events_pb2.WatchEventsResponse]:
        self.watched.append(request)
        for event in self.rounds.pop(0):
            yield events_pb2.WatchEventsResponse(event=event, log_id=b"a" * 16)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is stopping")


@dataclass
class Served:
    """A server of the fleet, and how an operator reaches it."""

    port: int
    fake: FakeEvents
    operator: Path
    options: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.options = ["--server", f"localhost:{self.port}", "--identity", str(self.operator)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    pki = FleetPki.create(tmp_path / "pki", "demo")
    learner = pki.issue("learner", Role.LEARNER)
    ca, cert, key = ((learner / f"{name}.pem").read_bytes() for name in ("ca", "cert", "key"))
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    fake = FakeEvents()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        events_pb2_grpc.add_EventsServicer_to_server(fake, server)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield Served(port, fake, pki.issue("operator", Role.OPERATOR))
        server.stop(None).wait()


def test_a_person_sees_one_row_an_event_and_nothing_that_steers_the_terminal(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "events", *served.options]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "NAME"
    assert header.split()[-1] == "AGE"
    assert first.split()[:5] == ["pi-1", "policy_rejected.signature", "warning", "device", "4"]
    assert second.split()[1] == "hello"
    assert "\x1b" not in first


def test_a_program_gets_one_envelope_with_counts(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["devices", "events", "-o", "json", *served.options]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.FleetEventList"
    assert envelope["counters"] == {"device.hello": 1}
    assert [item["name"] for item in envelope["items"]] == ["policy_rejected", "hello"]
    assert envelope["items"][0]["sent"] == "2023-11-14T22:13:20+00:00"


def test_what_is_asked_for_reaches_the_learner(served: Served) -> None:
    asked = ["pi-1", "--kind", "hello", "-k", "policy_rejected.signature", "--since", "1h"]
    assert run(["devices", "events", *asked, "--limit", "7", *served.options]) == 0
    request = served.fake.asked[0]
    assert (request.about, list(request.kinds)) == ("pi-1", ["hello", "policy_rejected.signature"])
    assert (request.max_age_s, request.limit) == (3600.0, 7)


def test_a_length_of_time_that_is_none_is_refused_by_its_flag(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["devices", "events", "--since", "yesterday", *served.options]) == ConfigError.exit_code
    )
    assert "--since 'yesterday': give a number and s, m, h or d" in capsys.readouterr().err


def test_a_watch_goes_on_after_the_learner_was_away_from_the_place_it_had_reached(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.fake.rounds = [[heard(3, "three")], [], [heard(4, "four")]]
    waits = iter(range(3))

    def wait(_: float) -> None:
        if next(waits) == 2:
            raise KeyboardInterrupt

    out = io.StringIO()
    with FleetClient(
        f"localhost:{served.port}", Identity.load(served.operator), timeout_s=20
    ) as client:
        begun = client.events()
        with pytest.raises(KeyboardInterrupt):
            watch_events(client, begun, "", kinds=(), how=Format.JSON, out=out, wait=wait)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["name"] for line in lines] == ["hello", "policy_rejected", "three", "four"]
    assert {line["schema"] for line in lines} == {"shoal.v1.FleetEvent"}
    assert [request.after_place for request in served.fake.watched] == [2, 3, 3]
    assert "trying again" in capsys.readouterr().err
