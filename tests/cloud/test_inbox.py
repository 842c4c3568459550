"""What came waits in lanes, bounded, and no device holds up another."""

from __future__ import annotations

import asyncio

from sim import TOPICS, on_loop

from cloud_learner.uplink.inbox import Lane, Message


@on_loop
async def test_a_lane_wakes_its_reader_from_another_thread() -> None:
    lane = Lane(4)
    message = Message("topic", b"payload")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(lane.take(8))
        await asyncio.to_thread(lane.offer, message)
        assert await taking == [message]
    assert len(lane) == 0


@on_loop
async def test_a_lane_gives_what_it_has_once_that_is_enough_or_less_becomes_enough() -> None:
    lane = Lane(8)
    lane.enough = 3
    messages = [Message("topic", bytes([at])) for at in range(5)]
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(lane.take(8))
        for message in messages[:2]:
            lane.offer(message)
            await asyncio.sleep(0)
        assert not taking.done()
        lane.offer(messages[2])
        assert await taking == messages[:3]
        lane.offer(messages[3])
        taking = group.create_task(lane.take(8))
        await asyncio.sleep(0)
        assert not taking.done()
        lane.enough = 1
        assert await taking == messages[3:4]
    lane.offer(messages[4])
    assert await lane.take(8) == messages[4:]


@on_loop
async def test_the_flood_of_one_device_neither_delays_nor_drops_the_chunks_of_others() -> None:
    lane = Lane(64)
    for number in range(100):
        lane.offer(Message(TOPICS.trajectory("pi-1"), b"%d" % number))
    others = [
        Message(TOPICS.trajectory(name), bytes([at])) for name in ("pi-2", "pi-3") for at in (0, 1)
    ]
    assert all(lane.offer(message) for message in others)
    assert (len(lane), lane.dropped) == (64, 36 + 4)
    taken = await lane.take(6)
    assert [message for message in taken if message in others] == [
        others[0],
        others[2],
        others[1],
        others[3],
    ]
    rest = [message.payload for message in [*taken, *await lane.take(64)] if message not in others]
    assert rest == [b"%d" % number for number in range(60)]
    assert len(lane) == 0
