"""The way of gradients against a real gRPC server with mutual TLS: it never dies, nor holds up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from brokers import WAIT_S, free_port
from mqtt_learner import asyncs
from strategies import RUN_ID, cartpole_spec, make_chunk

from edge_agent.config import ServerConfig
from edge_agent.events import Events
from edge_agent.gradients.config import GradientsConfig
from edge_agent.gradients.queue import GradientQueue
from edge_agent.gradients.uplink import GradientUplink
from edge_agent.gradients.worker import find_worker
from shoal.acting_normalizer import ActingNormalizer
from shoal.errors import ConfigError
from shoal.gradients import Computed, Weights, decode_gradient, encode_weights
from shoal.identity import Identity
from shoal.layout import ObservationLayout
from shoal.moments import Moments
from shoal.observation_statistics import ObservationStatistics
from shoal.policy import split
from shoal.trajectory import Chunk
from shoal.v1 import parameter_server_pb2 as pb
from shoal.v1 import parameter_server_pb2_grpc as rpc
from shoal.v1 import update_pb2
from shoalctl.pki.pki import FleetPki, Role

FLEET, DEVICE = "pond", "pi-1"
SPEC = cartpole_spec()
PARAMETERS = 300
Context = grpc.aio.ServicerContext[Any, Any]


class Server(rpc.ParameterServerServicer):
    """Counts updates, and answers as a test says."""

    def __init__(self) -> None:
        self.updates = 1
        self.digest = bytes(32)
        self.parameters = PARAMETERS
        self.normalizes = False
        self.asked: list[int] = []
        self.acted: list[int] = []
        self.pushed: list[update_pb2.PushUpdateRequest] = []
        self.answers: list[str] = []
        """Of the next updates: "" applies, "lost" applies and fails, else why it is refused."""
        self._changed = asyncio.Condition()

    async def until(self, pushed: int) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.pushed) >= pushed)

    async def GetWeights(  # noqa: N802 - the name in the proto
        self, request: update_pb2.GetWeightsRequest, context: Context
    ) -> AsyncIterator[pb.Part]:
        self.asked.append(request.have_updates)
        self.acted.append(request.acted_version)
        if request.have_updates == self.updates:
            return
        values = np.full(self.parameters, self.updates, np.float32)
        acting = None
        if self.normalizes:
            floats = np.full(4, request.acted_version, np.float32)
            acting = ActingNormalizer(request.acted_version, floats, floats)
        weights = Weights(self.digest, self.updates, values, {"algorithm": "a:B"}, acting)
        for p in split(encode_weights(weights), 500):
            yield pb.Part(total_bytes=p.total_bytes, offset=p.offset, data=p.data)

    async def PushUpdate(  # noqa: N802 - the name in the proto
        self, request: update_pb2.PushUpdateRequest, context: Context
    ) -> update_pb2.PushUpdateResponse:
        answer = self.answers.pop(0) if self.answers else ""
        async with self._changed:
            self.pushed.append(request)
            self._changed.notify_all()
        if answer in ("", "lost"):
            self.updates += 1
        if answer == "too large":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max")
        if answer == "lost":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return update_pb2.PushUpdateResponse(
            applied=answer == "", reason=answer, updates=self.updates
        )


@dataclass
class Worker:
    """Computes the weights themselves, or what a test says."""

    taken: list[Weights] = field(default_factory=list)
    begun: list[Chunk] = field(default_factory=list)
    bad: int = 0
    """Gradients that will not be finite."""

    def take(self, weights: Weights) -> None:
        self.taken.append(weights)

    def begin(self, chunk: Chunk) -> None:
        self.begun.append(chunk)

    def gradient(self) -> Computed:
        values = self.taken[-1].values * 1.0
        if self.bad:
            self.bad -= 1
            values[0] = np.nan
        return Computed(values, {"entropy": 0.5})


@dataclass
class World:
    """A device beside a server."""

    server: Server
    worker: Worker
    queue: GradientQueue
    uplink: GradientUplink
    events: Events
    endpoint: grpc.aio.Server

    def put(self, chunks: int = 1) -> None:
        for _ in range(chunks):
            self.queue.put(make_chunk(SPEC, seed=7))

    def told(self) -> list[str]:
        return [event.name for event in self.events.take()]


@asynccontextmanager
async def world(directory: Path, **config: Any) -> AsyncIterator[World]:  # noqa: ANN401 - settings
    pki = FleetPki.create(directory / "pki", FLEET)
    pems = Identity(pki.issue("learner", Role.LEARNER), "learner", None).read_pems()
    server, port = Server(), free_port()
    endpoint = grpc.aio.server()
    rpc.add_ParameterServerServicer_to_server(server, endpoint)
    keys = grpc.ssl_server_credentials(
        [(pems.key, pems.cert)], root_certificates=pems.ca, require_client_auth=True
    )
    endpoint.add_secure_port(f"127.0.0.1:{port}", keys)
    settings = GradientsConfig(**{"passes": 1, "codec": "float32", **config})
    queue, worker = GradientQueue(settings.queue_chunks), Worker()
    events = Events(DEVICE, RUN_ID, clock=lambda: 0.0)
    uplink = GradientUplink(
        ServerConfig("127.0.0.1", port, backoff_cap_s=0.05),
        Identity(pki.issue(DEVICE, Role.DEVICE), DEVICE, None),
        queue,
        worker,
        events,
        settings,
        fleet=FLEET,
        run_id=RUN_ID,
        spec=SPEC,
    )
    serving = asyncio.ensure_future(uplink.serve())
    try:
        yield World(server, worker, queue, uplink, events, endpoint)
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        await endpoint.stop(0)


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
async def test_a_learner_that_normalizes_is_told_of_all_observations_so_far(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, passes=2) as here:
        here.server.normalizes = True
        await here.endpoint.start()
        rows = np.zeros((0, 4))
        for number in range(3):
            here.queue.put(chunk := make_chunk(SPEC, seed=number))
            await here.server.until(2 * number + 2)
            rows = np.concatenate([rows, chunk.observations[:-1].reshape(-1, 4)])
            first, second = here.server.pushed[-2:]
            told = ObservationStatistics.from_pb(first.statistics, numbers=4)
            assert told.count == len(rows)
            np.testing.assert_allclose(told.mean, rows.mean(0), rtol=1e-9)
            np.testing.assert_allclose(told.squares / told.count, rows.var(0), rtol=1e-9)
            assert not second.HasField("statistics"), "a chunk's first update tells of it"


@asyncs
async def test_weights_are_asked_for_with_the_normalizer_of_the_version_that_acted(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        here.server.normalizes = True
        here.server.answers = ["lag", "lag", "lag"]  # so that the weights stay the same
        await here.endpoint.start()
        for number, version in enumerate((7, 7, 8)):
            here.queue.put(replace(make_chunk(SPEC), policy_version=version))
            await here.server.until(number + 1)
        assert here.server.acted == [7, 7, 8]
        assert here.server.asked == [0, 1, 0], "those that are held come with another normalizer"
        taken = [weights.normalizer.version for weights in here.worker.taken if weights.normalizer]
        assert taken == [7, 8]


@asyncs
@pytest.mark.parametrize("normalizes", [False, True])
async def test_statistics_go_only_where_they_are_asked_for_and_with_leave(
    tmp_path: Path,
    normalizes: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with world(tmp_path, share_moments=not normalizes) as here:
        here.server.normalizes = normalizes
        await here.endpoint.start()
        here.put(2)
        await here.server.until(2)
        assert not any(update.HasField("statistics") for update in here.server.pushed)


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
