"""`shoal devices events --watch`: what happens, a line each, across restarts of the learner."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from shoal.errors import ConnectionFailed
from shoal.services import backoff
from shoal.v1 import events_pb2
from shoalctl.fleet.client import FleetClient
from shoalctl.output import Format, plain
from shoalctl.views.events import event_item, event_line

BACKOFF_BASE_S: Final = 0.5
BACKOFF_CAP_S: Final = 10.0


def watch_events(
    client: FleetClient,
    begun: events_pb2.ListEventsResponse,
    about: str,
    *,
    kinds: Sequence[str],
    how: Format,
    out: TextIO | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Writes what is known already, oldest first, then what comes; until Ctrl-C.

    Args:
        client: Asks the learner.
        begun: What was asked for before.
        about: Of this device only; empty: of all.
        kinds: Of these only; none: of all.
        how: JSON writes an object a line, everything else text.
        out: Where to; stdout if None.
        wait: Sleeps between attempts, seconds.

    Raises:
        ShoalError: The learner refuses; that it is away is waited out.
    """
    out = out or sys.stdout
    place, log_id = begun.newest_place, begun.log_id
    for event in reversed(begun.events):
        _write(event, how, out)
    rng, attempt, lost = random.Random(), 0, False
    while True:
        try:
            watched = client.watch_events(about, kinds=kinds, after_place=place, log_id=log_id)
            for each in watched:
                if lost:
                    sys.stderr.write("shoal: the learner is back\n")
                attempt, lost = 0, False
                place, log_id = each.event.place, each.log_id
                _write(each.event, how, out)
        except ConnectionFailed as error:
            if not lost:
                sys.stderr.write(f"shoal: {error}; trying again\n")
            lost = True
        wait(backoff(attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=rng))
        attempt += 1


def _write(event: events_pb2.FleetEvent, how: Format, out: TextIO) -> None:
    item = event_item(event)
    if how is Format.JSON:
        item = {"schema": "shoal.v1.FleetEvent", **item}
        out.write(json.dumps(plain(item), ensure_ascii=False, allow_nan=False) + "\n")
    else:
        out.write(event_line(item) + "\n")
    out.flush()
