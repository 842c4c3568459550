"""Whom the broker refused, as events: each kind at once, then once an interval with a count."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.errors import ConfigError
from shoal.topics import check_device_id
from shoal.v1 import device_pb2 as pb
from shoalctl.broker.refusals import BrokerRefusal
from shoalctl.events.tally import Tally

BROKER: Final = "broker"
TELL_AGAIN_S: Final = 10.0
MAX_WAITING: Final = 1024
"""Events that wait for a connection; beyond, the oldest are given up. Their counts are in the
broker's log."""
_OF_A_RUN: Final = re.compile(r"-[0-9a-f]{8}$")
"""What an agent adds to its name in the id of a client: the beginning of its run's."""
_SAID: Final = {
    "no_certificate": "a client without a certificate",
    "foreign_certificate": "a client whose certificate is of another CA",
    "certificate_dates": "a client whose certificate has expired, or is not valid yet",
    "tls": "a client that does not speak TLS as it should",
    "not_admitted": "a client that was revoked, or never enrolled",
    "topic": "a message or a subscription outside of the client's own topics",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is told together."""

    reason: str
    address: str
    about: str


class BrokerOutbox:
    """The events of a broker's process.

    outbox = BrokerOutbox()
    server = NatsServer(..., on_refused=outbox.note)
    await run_services({"events": EventPost(outbox, ...).serve})
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Has nothing to tell.

        Args:
            clock: Monotonic seconds.
            wall_clock: Unix seconds, for people.
        """
        self._tally: Tally[_Kind, str] = Tally(
            TELL_AGAIN_S, other=_Kind("other", "", ""), clock=clock
        )
        self._clock = clock
        self._wall_clock = wall_clock
        self._run_id = os.urandom(16)
        self._seq = 0
        self._waiting: deque[pb.Event] = deque(maxlen=MAX_WAITING)
        self._noted = asyncio.Event()

    def note(self, refusal: BrokerRefusal, message: str) -> None:
        """Somebody was refused.

        Args:
            refusal: Whom, and why.
            message: The broker's own line.
        """
        self._tally.add(_Kind(refusal.reason, refusal.address, claimed_name(refusal)), message)
        self._noted.set()

    async def wait(self) -> Sequence[pb.Event]:
        """The oldest that wait, as soon as there are some."""
        while True:
            self._noted.clear()
            self._waiting.extend(self._event(*due) for due in self._tally.take_due())
            if self._waiting:
                return list(self._waiting)
            next_s = self._tally.next_due_s()
            wait_s = None if next_s is None else max(0.0, next_s - self._clock())
            try:
                async with asyncio.timeout(wait_s):
                    await self._noted.wait()
            except TimeoutError:
                continue

    def settle(self, event: pb.Event) -> None:
        """The broker has it."""
        if self._waiting and self._waiting[0] is event:
            self._waiting.popleft()

    def _event(self, kind: _Kind, count: int, message: str) -> pb.Event:
        self._seq += 1
        said = _SAID.get(kind.reason, "clients of many kinds")
        fields = {"reason": kind.reason, "count": str(count), "address": kind.address}
        if kind.about:
            fields["device_id"] = kind.about
        return pb.Event(
            device_id=BROKER,
            run_id=self._run_id,
            event_seq=self._seq,
            sent_unix_ms=int(self._wall_clock() * 1000),
            severity=pb.SEVERITY_WARNING,
            name="client_refused",
            fields={key: value for key, value in fields.items() if value},
            message=f"refused {said}: {message}"[:400],
        )


def claimed_name(refusal: BrokerRefusal) -> str:
    """The device that a refused client says it is; empty if it names none."""
    try:
        return check_device_id(_OF_A_RUN.sub("", refusal.name))
    except ConfigError:
        return ""
