from __future__ import annotations

from cloud_learner.journal.audit import Decided, RunKey
from cloud_learner.uplink.acks import MAX_ACK_BYTES, MAX_FRAMES, MAX_RUNS_HEARD, Acks
from shoal.ranges import MAX_SPANS, Ranges
from shoal.v1 import device_pb2 as pb
from shoal.wire import MAX_CONTROL_BYTES, unframe

FAR = (1 << 62) - 1


def run_of(number: int, device_id: str = "pi-1") -> RunKey:
    return RunKey(device_id, number.to_bytes(16, "big"))


def sparse(count: int) -> Ranges:
    """The largest set of its size: each number a span of its own, and of many bytes."""
    return Ranges.of(FAR - 2 * at for at in range(1, count + 1))


def told(payloads: list[bytes]) -> dict[RunKey, Ranges]:
    by_run: dict[RunKey, Ranges] = {}
    for payload in payloads:
        for answer in unframe(pb.Ack, payload).runs:
            run = RunKey("pi-1", answer.run_id)
            by_run[run] = by_run.get(run, Ranges()).union(Ranges.from_pb(answer.settled))
    return by_run


def test_no_frame_is_larger_than_devices_and_brokers_take_whatever_was_decided() -> None:
    decided = Decided(rejected=sparse(500))
    acks = Acks(lambda _: decided)
    runs = [run_of(number) for number in range(1000)]
    payloads = acks.messages(runs)["pi-1"]
    assert len(payloads) == MAX_FRAMES
    assert max(map(len, payloads)) <= MAX_ACK_BYTES < MAX_CONTROL_BYTES


def test_a_run_that_does_not_fit_into_one_frame_is_told_in_several() -> None:
    settled = sparse(MAX_SPANS)
    acks = Acks(lambda _: Decided(trained=settled))
    payloads = acks.messages([run_of(1)])["pi-1"]
    assert len(payloads) > 1
    assert told(payloads) == {run_of(1): settled}


def test_the_run_that_was_heard_last_is_told_first() -> None:
    settled = sparse(MAX_SPANS)
    acks = Acks(lambda _: Decided(trained=settled))
    runs = [run_of(number) for number in range(5)]
    for run in [*runs, runs[0]]:
        acks.heard(run, oldest_seq=0, now_s=0.0)
    answers = told(acks.messages(runs)["pi-1"])
    assert answers[runs[0]] == answers[runs[4]] == settled
    assert runs[1] not in answers


def test_the_runs_remembered_of_one_device_are_bounded_and_push_out_no_other_device() -> None:
    acks = Acks(lambda _: Decided())
    other = run_of(1, "pi-2")
    acks.heard(other, oldest_seq=0, now_s=0.0)
    for number in range(2 * MAX_RUNS_HEARD):
        acks.heard(run_of(number), oldest_seq=0, now_s=0.0)
    due = acks.due(0.0, every_s=0.0, window_s=1.0)
    assert len(due) == MAX_RUNS_HEARD + 1
    assert other in due
    assert due[-1] == run_of(2 * MAX_RUNS_HEARD - 1)


def test_a_run_is_told_again_after_longer_and_longer_waits_until_it_is_forgotten() -> None:
    acks = Acks(lambda _: Decided())
    acks.heard(run_of(1), oldest_seq=0, now_s=0.0)
    seconds = range(20)
    told_at = [now for now in seconds if acks.due(float(now), every_s=1.0, window_s=10.0)]
    assert told_at == [1, 3, 7]


def test_a_run_that_is_heard_again_begins_anew() -> None:
    acks = Acks(lambda _: Decided())
    for now in (0.0, 1.5, 3.0):
        acks.heard(run_of(1), oldest_seq=0, now_s=now)
        assert not acks.due(now + 0.9, every_s=1.0, window_s=10.0)
        assert acks.due(now + 1.1, every_s=1.0, window_s=10.0) == [run_of(1)]
