"""Opening what the broker delivered: whatever it is, the outcome is a value and never a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cloud_learner.journal.audit import Decided, Disposition, RunKey, RunReport
from cloud_learner.journal.records import Entry
from cloud_learner.uplink.admission import Standard, Verdict, decide, reject
from cloud_learner.uplink.inbox import Message
from shoal.envelope import Envelope, decode_envelope
from shoal.errors import UnsupportedVersion, WireError
from shoal.noise import RUN_ID_BYTES
from shoal.spaces import EnvSpec
from shoal.topics import Topic, parse_topic
from shoal.trajectory import Chunk, decode_chunk
from shoal.v1 import device_pb2 as pb
from shoal.wire import unframe

LEARNER: Final = "learner"
"""Whom events are about when no device can be named."""

P = TypeVar("P", pb.Status, pb.Telemetry, pb.Event)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that is not even a message of ours.

    Attributes:
        device_id: The device of its topic, or `learner`.
        name: A slug for the counter and the event.
        detail: One line for a person.
    """

    device_id: str
    name: str
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A chunk that can be named, and what was decided about it.

    Attributes:
        entry: The decision, for the journal.
        oldest_seq: Nothing of the run below it will be sent again.
        chunk: What it holds; None for a rejected one and for a duplicate.
        version_updates: Of the policy version that acted.
        detail: Why, for a person.
    """

    entry: Entry
    oldest_seq: int
    chunk: Chunk | None
    version_updates: int
    detail: str

    @property
    def run(self) -> RunKey:
        """The run it is of."""
        return RunKey(self.entry.key.device_id, self.entry.key.run_id)


@dataclass(frozen=True, slots=True)
class OpenedChunks:
    """What a number of trajectory messages held."""

    arrivals: Sequence[Arrival]
    refusals: Sequence[Refusal]


@dataclass(frozen=True, slots=True)
class Birth:
    """A status and, if it holds one that can be read, the environment's spec."""

    status: pb.Status
    spec: EnvSpec | None


@dataclass(frozen=True, slots=True)
class Report:
    """A telemetry message and the ledgers in it."""

    telemetry: pb.Telemetry
    runs: dict[RunKey, RunReport]


@dataclass(frozen=True, slots=True)
class OpenedReports:
    """What a number of other messages held, each kind in its order of arrival."""

    statuses: list[Birth] = field(default_factory=list)
    telemetries: list[Report] = field(default_factory=list)
    events: list[pb.Event] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def open_chunks(
    messages: Sequence[Message],
    standard: Standard,
    decided: Callable[[RunKey], Decided],
    *,
    max_bytes: int,
) -> OpenedChunks:
    """Opens trajectory messages and decides about each chunk.

    Args:
        messages: As they came.
        standard: What chunks are held against.
        decided: What was decided about a run before; such chunks are not opened again.
        max_bytes: The largest message to look into.
    """
    arrivals: list[Arrival] = []
    refusals: list[Refusal] = []
    for message in messages:
        try:
            topic = _topic_of(message, max_bytes)
            envelope = decode_envelope(message.payload)
            _check_sender(topic, envelope.key.device_id)
        except WireError as error:
            refusals.append(_refusal(message, error))
            continue
        run = RunKey(envelope.key.device_id, envelope.key.run_id)
        if decided(run).contains(envelope.key.seq):
            arrivals.append(_duplicate(envelope))
        else:
            arrivals.append(_arrival(envelope, message.payload, standard))
    return OpenedChunks(arrivals, refusals)


def open_reports(messages: Sequence[Message]) -> OpenedReports:
    """Opens status, telemetry and event messages."""
    opened = OpenedReports()
    for message in messages:
        try:
            topic = parse_topic(message.topic)
            match topic.kind:
                case "status" if not message.payload:
                    pass  # a retained status was cleared: the device is no longer of this fleet
                case "status":
                    opened.statuses.append(_birth(_read(pb.Status, topic, message)))
                case "telemetry":
                    opened.telemetries.append(_report(_read(pb.Telemetry, topic, message)))
                case "event":
                    opened.events.append(_read(pb.Event, topic, message))
                case _:
                    pass  # kinds that this learner has no use for
        except WireError as error:
            opened.refusals.append(_refusal(message, error))
    return opened


def _arrival(envelope: Envelope, frame: bytes, standard: Standard) -> Arrival:
    chunk: Chunk | None = None
    try:
        chunk = decode_chunk(envelope.body, checked=True)  # by the frame
        verdict = decide(chunk, standard)
    except WireError as error:
        verdict = reject("malformed", str(error))
    if verdict.disposition is Disposition.REJECTED or chunk is None:
        return _settled_without_chunk(envelope, verdict)
    entry = Entry(
        key=envelope.key,
        disposition=verdict.disposition,
        body=envelope.body,
        policy_version=chunk.policy_version,
        transitions=chunk.transitions,
        episodes=len(chunk.episodes),
        reason=verdict.reason,
        frame=frame,
    )
    return Arrival(entry, envelope.oldest_seq, chunk, verdict.version_updates, verdict.detail)


def _settled_without_chunk(envelope: Envelope, verdict: Verdict) -> Arrival:
    entry = Entry(envelope.key, verdict.disposition, reason=verdict.reason)
    return Arrival(entry, envelope.oldest_seq, None, 0, verdict.detail)


def _duplicate(envelope: Envelope) -> Arrival:
    """The journal has this key already and leaves it as it is, whatever the entry says."""
    return _settled_without_chunk(envelope, reject("duplicate", ""))


def _birth(status: pb.Status) -> Birth:
    return Birth(status, EnvSpec.from_pb(status.env_spec) if status.HasField("env_spec") else None)


def _report(telemetry: pb.Telemetry) -> Report:
    runs: dict[RunKey, RunReport] = {}
    for ledger in telemetry.ledger:
        if len(ledger.run_id) != RUN_ID_BYTES:
            raise WireError(f"telemetry: a run_id of {len(ledger.run_id)} bytes")
        runs[RunKey(telemetry.device_id, ledger.run_id)] = RunReport.from_pb(ledger)
    return Report(telemetry, runs)


def _read(cls: type[P], topic: Topic, message: Message) -> P:
    read = unframe(cls, message.payload)
    _check_sender(topic, read.device_id)
    if len(read.run_id) != RUN_ID_BYTES:
        raise WireError(f"{topic.kind}: run_id must be {RUN_ID_BYTES} bytes")
    return read


class _WrongSenderError(WireError):
    """A message that names another device than its topic."""


def _check_sender(topic: Topic, device_id: str) -> None:
    if topic.device_id != device_id:
        raise _WrongSenderError(
            f"the topic is of {topic.device_id!r}, the message says {device_id[:80]!r}"
        )


def _topic_of(message: Message, max_bytes: int) -> Topic:
    if len(message.payload) > max_bytes:
        raise WireError(
            f"{len(message.payload)} bytes, ingest.max_message_bytes is {max_bytes}; "
            "lower the device's chunk_steps"
        )
    return parse_topic(message.topic)


def _refusal(message: Message, error: WireError) -> Refusal:
    try:
        device_id = parse_topic(message.topic).device_id
    except WireError:
        device_id = LEARNER
    name = {_WrongSenderError: "wrong_sender", UnsupportedVersion: "unsupported_wire_version"}.get(
        type(error), "garbage"
    )
    return Refusal(device_id, name, str(error))
