"""The way of gradients against a real gRPC server with mutual TLS: it never dies, nor holds up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from brokers import WAIT_S
from gradient_device import DEVICE, FLEET, PARAMETERS, SPEC, world
from mqtt_learner import asyncs
from strategies import RUN_ID, make_chunk

from edge_agent.gradients.config import GradientsConfig
from edge_agent.gradients.worker import find_worker
from shoal.errors import ConfigError
from shoal.gradients import Weights, decode_gradient
from shoal.layout import ObservationLayout
from shoal.moments import Moments


@asyncs
async def test_a_gradient_of_each_chunk_is_pushed_at_the_newest_weights(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.endpoint.start()
        for number in range(3):
            here.put()
            await here.server.until(number + 1)
        first, *_, last = here.server.pushed
        assert [update.seq for update in here.server.pushed] == [0, 1, 2]
        assert [update.updates for update in here.server.pushed] == [1, 2, 3]
        assert (first.fleet, first.device_id, first.run_id) == (FLEET, DEVICE, RUN_ID)
        assert (first.transitions, len(first.episodes), first.policy_version) == (8, 2, 7)
        assert dict(first.metrics) == {"entropy": 0.5}
        values = decode_gradient(last.codec, last.parameters, last.body).values
        np.testing.assert_array_equal(values, np.full(PARAMETERS, 3, np.float32))
        moments = Moments.from_pb(first.moments, ObservationLayout.of(SPEC.observation))
        wanted = make_chunk(SPEC, seed=7).observations[:-1].reshape(-1, 4)
        np.testing.assert_allclose(moments.mean, wanted.mean(0), rtol=1e-6)


@asyncs
async def test_observations_never_leave_and_moments_only_with_leave(tmp_path: Path) -> None:
    async with world(tmp_path, share_moments=False) as here:
        await here.endpoint.start()
        here.put()
        await here.server.until(1)
        (update,) = here.server.pushed
        assert not update.HasField("moments")
        observed = make_chunk(SPEC, seed=7).observations
        sent = update.SerializeToString()
        assert all(observed[t].tobytes() not in sent for t in range(len(observed)))


@asyncs
async def test_passes_give_as_many_gradients_and_the_first_tells_of_the_chunk(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, passes=3) as here:
        await here.endpoint.start()
        here.put(2)
        await here.server.until(6)
        assert [update.transitions for update in here.server.pushed] == [8, 0, 0, 8, 0, 0]
        assert [len(update.episodes) for update in here.server.pushed] == [2, 0, 0, 2, 0, 0]
        assert [update.updates for update in here.server.pushed] == [1, 2, 3, 4, 5, 6]
        assert len(here.worker.begun) == 2


@asyncs
async def test_an_update_whose_answer_was_lost_is_sent_again_the_same(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.answers = ["lost", "duplicate"]
        await here.endpoint.start()
        here.put(2)
        await here.server.until(3)
        lost, again, after = here.server.pushed
        assert lost == again
        assert after.seq == 1
        assert "gradients_held_up" in here.told()


@asyncs
async def test_an_update_that_is_too_large_for_the_server_is_given_up_and_told(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        here.server.answers = ["too large"]
        await here.endpoint.start()
        here.put(2)
        await here.server.until(2)
        assert [update.seq for update in here.server.pushed] == [0, 1]
        assert here.uplink.counters.failed == 1
        assert "gradients_held_up" in here.told()


@asyncs
async def test_acting_goes_on_while_no_server_answers(tmp_path: Path) -> None:
    async with world(tmp_path, queue_chunks=2) as here:
        for _ in range(50):
            here.put()
            await asyncio.sleep(0)
        await here.endpoint.start()
        await here.server.until(2)
        assert here.queue.dropped >= 47
        told = sum(update.transitions for update in here.server.pushed)
        assert told + 8 * len(here.queue) == 8 * 50 or len(here.server.pushed) > 2


@asyncs
async def test_a_gradient_that_is_not_finite_is_counted_and_not_sent(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.worker.bad = 1
        await here.endpoint.start()
        here.put(2)
        await here.server.until(1)
        (update,) = here.server.pushed
        assert update.seq == 0
        assert here.uplink.counters.failed == 1


@asyncs
async def test_weights_in_another_layout_are_taken_after_a_refusal(tmp_path: Path) -> None:
    async with world(tmp_path, codec="int8") as here:
        await here.endpoint.start()
        here.put()
        await here.server.until(1)
        here.server.digest, here.server.answers = bytes(range(32)), ["layout"]
        here.server.parameters = 2 * PARAMETERS
        here.put(2)
        await here.server.until(3)
        assert here.server.pushed[2].layout_digest == bytes(range(32))
        assert here.server.pushed[2].parameters == 2 * PARAMETERS


@asyncs
async def test_what_the_worker_refuses_is_told_and_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        heard = asyncio.Event()

        def refuse(weights: Weights) -> None:
            del weights
            raise ConfigError("not here")

        here.worker.take = refuse  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        await here.endpoint.start()
        with here.events.listening(lambda: loop.call_soon_threadsafe(heard.set)):
            here.put()
            async with asyncio.timeout(WAIT_S):
                await heard.wait()
        (event,) = here.events.take()
        assert (event.name, event.message.partition(";")[0]) == ("gradients_held_up", "not here")


def test_a_worker_is_found_by_its_path_or_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without_torch.py").write_text("raise ModuleNotFoundError('no', name='torch')\n")
    (tmp_path / "broken_worker.py").write_text("raise RuntimeError('broken')\n")
    (tmp_path / "good_worker.py").write_text("def make(spec, *, allow): ...\nNUMBER = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert callable(find_worker("good_worker:make"))
    for path, message in (
        ("without_torch:make", r"pip install 'shoal\[train\]'"),
        ("broken_worker:make", "RuntimeError: broken"),
        ("nowhere_at_all:make", "correct gradients.worker"),
        ("good_worker:made", "cannot be imported"),
        ("good_worker:NUMBER", "cannot be called"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_worker(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("update_interval", 0),
        ("passes", 0),
        ("top_k", 0.0),
        ("queue_chunks", 0),
        ("worker", "no path"),
        ("allow", ("no path",)),
    ],
)
def test_a_setting_out_of_its_range_is_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        GradientsConfig(**{key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interval", "passes", "envs", "steps"), [(50, 1, 1, 50), (50, 4, 8, 25), (10, 1, 8, 2)]
)
def test_a_chunk_is_as_long_as_its_gradients_are_apart(
    interval: int, passes: int, envs: int, steps: int
) -> None:
    assert GradientsConfig(update_interval=interval, passes=passes).chunk_steps(envs) == steps
