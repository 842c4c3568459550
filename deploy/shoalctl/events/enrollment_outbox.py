"""What happened at enrolment, as events of the fleet: read from its database, each posted once.

Commands that an operator types write to the same database, so it is looked at again and again. An
event that is posted twice, as after a crash, has the same number, and the learner keeps one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from shoal.v1 import device_pb2 as pb
from shoalctl.enrollment.store import EnrollmentStore, EventRecord

SERVER: Final = "server"
LOOK_S: Final = 1.0
BATCH: Final = 100
_SEVERITIES: Final = {"warning": pb.SEVERITY_WARNING, "error": pb.SEVERITY_ERROR}


class EnrollmentOutbox:
    """The events of an enrolment database that the fleet was not told of.

    outbox = EnrollmentOutbox(store, run_id=bytes.fromhex(pki.fingerprint)[:16])
    await run_services({"events": EventPost(outbox, ...).serve})
    """

    def __init__(self, store: EnrollmentStore, *, run_id: bytes, look_s: float = LOOK_S) -> None:
        """Looks at nothing yet.

        Args:
            store: The database.
            run_id: 16 bytes, the same for ever for one database.
            look_s: How often to look.
        """
        self._store = store
        self._run_id = run_id
        self._look_s = look_s

    async def wait(self) -> Sequence[pb.Event]:
        """The oldest that wait, as soon as there are some."""
        while True:
            found = await asyncio.to_thread(self._store.unposted_events, limit=BATCH)
            if found:
                return [fleet_event(each, self._run_id) for each in found]
            await asyncio.sleep(self._look_s)

    def settle(self, event: pb.Event) -> None:
        """The broker has it."""
        self._store.set_posted(event.event_seq)


def fleet_event(record: EventRecord, run_id: bytes) -> pb.Event:
    """An event of the database as the fleet is told of it."""
    fields = {**record.fields}
    if record.device_id:
        fields["device_id"] = record.device_id
    return pb.Event(
        device_id=SERVER,
        run_id=run_id,
        event_seq=record.seq,
        sent_unix_ms=int(record.unix_s * 1000),
        severity=_SEVERITIES.get(record.severity, pb.SEVERITY_INFO),
        name=record.name,
        fields=fields,
        message=record.message,
    )
