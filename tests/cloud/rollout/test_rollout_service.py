"""Rollouts over real gRPC: who may ask, what devices may say, and what they are offered."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import grpc
import grpc.aio
import pytest
from policy_logs import FINGERPRINT, GRAPH, policy, seed_of
from rollout_cloud import DEADLINE_S, FLEET, PLAN_PB, Cloud, Devices, report, rollout_cloud
from sim import on_loop

from cloud_learner.rollout.messages import plan_of
from cloud_learner.rollout.plan import Plan
from cloud_learner.rollout.rollout import Progress, State
from cloud_learner.rollout.rollouts import GRACE_S
from shoal.errors import ConfigError, PolicyLogError, RolloutError
from shoal.v1 import rollout_pb2 as pb

PLAN = plan_of(PLAN_PB)
STARTED = pb.ROLLOUT_PROGRESS_STARTED
SUCCEEDED = pb.ROLLOUT_PROGRESS_SUCCEEDED
FAILED = pb.ROLLOUT_PROGRESS_FAILED
NAMES = ("pi-1", "pi-2", "pi-3")


def plan_with(*, version: str = "1", waves: tuple[pb.RolloutWave, ...] = ()) -> Plan:
    message = pb.RolloutPlan(version=version, waves=waves)
    changed = pb.RolloutPlan()
    changed.CopyFrom(PLAN_PB)
    if waves:
        changed.ClearField("waves")
    changed.MergeFrom(message)
    return plan_of(changed)


WHOLE = plan_with(waves=(pb.RolloutWave(share=1.0),))


def canary_of(cloud: Cloud) -> str:
    rollout = cloud.rollouts.find(0)
    assert rollout is not None
    (canary,) = rollout.members
    return canary


@on_loop
async def test_devices_in_a_wave_get_the_candidate_and_the_others_are_held_while_it_learns_on(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        rollout = await cloud.rollouts.start(PLAN)
        versions = rollout.versions
        assert (versions.source, versions.baseline, versions.candidate) == (1, 2, 3)
        canary = canary_of(cloud)
        cloud.publish(50)
        cloud.publish(60)
        offered = {each: cloud.offered(each) for each in NAMES}
        assert offered == {each: 3 if each == canary else 2 for each in NAMES}
        assert await report(cloud, canary, SUCCEEDED) is grpc.StatusCode.OK
        assert {cloud.offered(each) for each in NAMES} == {3}
        for each in set(NAMES) - {canary}:
            assert await report(cloud, each, SUCCEEDED) is grpc.StatusCode.OK
        ended = cloud.rollouts.find(0)
        assert ended is not None
        assert ended.state is State.PROMOTED
        assert {cloud.offered(each) for each in NAMES} == {5}  # the newest again
        assert {2, 3} <= set(cloud.noted)  # chunks may be of them


@on_loop
async def test_an_aborted_policy_is_taken_back_as_old_tensors_under_a_new_version(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        rollout = await cloud.rollouts.start(PLAN)
        canary = canary_of(cloud)
        assert await report(cloud, canary, STARTED, episodes=0) is grpc.StatusCode.OK
        assert await report(cloud, canary, FAILED, reason="self_test") is grpc.StatusCode.OK
        ended = cloud.rollouts.find(0)
        assert ended is not None
        assert (ended.state, ended.versions.undo) == (State.ABORTED, 4)
        assert f"{canary}: self_test" in ended.reason
        assert {cloud.offered(each) for each in NAMES} == {4}
        back, before = cloud.log.get(4), cloud.log.get(rollout.versions.baseline)
        assert back is not None
        assert before is not None
        assert seed_of(back) == seed_of(before)
        assert back.manifest.updates == before.manifest.updates
        assert "rollout 1: back" in back.manifest.reason
        told = [each for each in cloud.devices.events if each.startswith(canary)]
        assert [each.split()[1] for each in told] == [
            "rollout_offered:",
            "rollout_started:",
            "rollout_failed:",
        ]


@on_loop
async def test_a_switch_has_a_reason_that_the_device_s_events_and_the_status_tell(
    tmp_path: Path,
) -> None:
    """A switch happened and nobody can say why (rauc#643)."""
    async with rollout_cloud(tmp_path) as cloud:
        await cloud.rollouts.start(PLAN)
        canary = canary_of(cloud)
        await report(cloud, canary, STARTED, episodes=0)
        rollout = await cloud.rollouts.enter(0, State.ABORTED, "it limps")
        assert rollout.reason == "it limps"
        assert [note.name for note in rollout.history] == ["started", "active", "aborted"]
        offered, _, aborted = (each for each in cloud.devices.events if each.startswith(canary))
        assert "it walks further" in offered
        assert "it goes back: it limps" in aborted


@on_loop
async def test_a_killed_learner_goes_on_where_it_was_and_holds_devices_before_any_asks(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        await cloud.rollouts.start(PLAN)
        canary = canary_of(cloud)
        await report(cloud, canary, SUCCEEDED)
        before = cloud.rollouts.find(0)
        devices = cloud.devices
    async with rollout_cloud(tmp_path, devices=devices) as cloud:
        after = cloud.rollouts.find(0)
        assert after is not None
        assert before is not None
        assert (after.members, after.history) == (before.members, before.history)
        assert {cloud.offered(each) for each in NAMES} == {3}
        assert cloud.offered("pi-new") == 2
        for each in NAMES:
            await report(cloud, each, SUCCEEDED)
        await cloud.pass_time(GRACE_S)
        after = cloud.rollouts.find(0)
        assert after is not None
        assert after.state is State.PROMOTED


@on_loop
async def test_a_learner_that_was_away_lets_no_device_s_time_run_out(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        await cloud.rollouts.start(PLAN)
    devices = Devices()  # nobody is heard of yet
    async with rollout_cloud(tmp_path, devices=devices) as cloud:
        await cloud.pass_time(GRACE_S)
        rollout = cloud.rollouts.find(0)
        assert rollout is not None
        assert {each.progress for each in rollout.members.values()} == {Progress.OFFERED}
        await cloud.pass_time(PLAN.wave_timeout_s)
        rollout = cloud.rollouts.find(0)
        assert rollout is not None
        assert rollout.count(Progress.TIMED_OUT) == 1


@pytest.mark.parametrize("published", [0, 1])
@on_loop
async def test_a_learner_killed_while_it_starts_one_offers_its_candidate_to_nobody(
    tmp_path: Path, published: int
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        cloud.store.create(cloud.rollouts.draft(PLAN))
        if published:
            cloud.log.publish_again(1, "rollout 1: candidate")
    async with rollout_cloud(tmp_path) as cloud:
        assert {cloud.offered(each) for each in NAMES} == {2}
        await cloud.rollouts.look()
        rollout = cloud.rollouts.find(0)
        assert rollout is not None
        assert (rollout.state, rollout.versions.undone) == (State.ABORTED, True)
        offered = cloud.log.get(cloud.offered("pi-1"))
        assert offered is not None
        assert seed_of(offered) == 1  # of the baseline
        await cloud.rollouts.start(PLAN)


@on_loop
async def test_a_full_disk_refuses_a_rollout_and_takes_nothing_back_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise PolicyLogError("disk full")

    async with rollout_cloud(tmp_path) as cloud:
        await cloud.rollouts.start(PLAN)
        with monkeypatch.context() as patch:
            patch.setattr(cloud.log, "publish_again", full)
            await cloud.rollouts.enter(0, State.ABORTED, "it limps")
            await cloud.rollouts.look()
            # The candidate is the newest of the log, and nobody gets it.
            assert {cloud.offered(each) for each in NAMES} == {2}
            with pytest.raises(ConfigError, match="still being undone"):
                await cloud.rollouts.start(PLAN)
        await cloud.rollouts.look()
        assert {cloud.offered(each) for each in NAMES} == {4}


@on_loop
async def test_what_the_disk_refused_is_not_acknowledged_and_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        await cloud.rollouts.start(PLAN)
        canary = canary_of(cloud)

        def full(*_: object) -> None:
            raise cloud.store._failure(sqlite3.OperationalError("disk full"))

        with monkeypatch.context() as patch:
            patch.setattr(cloud.store, "save", full)
            assert await report(cloud, canary, SUCCEEDED) is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(RolloutError):
                await cloud.rollouts.enter(0, State.ABORTED, "")
            rollout = cloud.rollouts.find(0)
            assert rollout is not None
            assert rollout.members[canary].progress is Progress.OFFERED
        assert await report(cloud, canary, SUCCEEDED) is grpc.StatusCode.OK


@on_loop
async def test_neither_version_of_a_rollout_is_deleted_however_many_are_published(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path, keep=2) as cloud:
        rollout = await cloud.rollouts.start(PLAN)
        used = {rollout.versions.baseline, rollout.versions.candidate, 1}
        for updates in range(10, 20):
            cloud.publish(updates)
        kept = {info.manifest.version for info in cloud.log.list()}
        assert kept == {*used, 12, 13}
    async with rollout_cloud(tmp_path, keep=2) as cloud:
        assert used <= {info.manifest.version for info in cloud.log.list()}
        await cloud.rollouts.enter(0, State.ABORTED, "")
        cloud.publish(20)
        assert not used & {info.manifest.version for info in cloud.log.list()}


@on_loop
async def test_the_newest_can_be_rolled_out_and_the_one_before_holds_the_others(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        rollout = await cloud.rollouts.start(plan_with(version="2"))
        assert rollout.versions.baseline_source == 1
        # Devices have version 2 already: what holds them has to be above it.
        assert (rollout.versions.baseline, rollout.versions.candidate) == (3, 4)


@pytest.mark.parametrize("form", ["published", "float twin", "dynamic twin"])
@on_loop
async def test_a_device_succeeds_in_whichever_form_it_acts_with_the_candidate(
    tmp_path: Path, form: str
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        made = cloud.log.publish(
            policy(7), graph=GRAPH, updates=9, spec_fingerprint=FINGERPRINT, float_graph=b"float"
        )
        cloud.server.announce(made)
        rollout = await cloud.rollouts.start(plan_with(version=str(made.version)))
        candidate = cloud.log.get(rollout.versions.candidate)
        assert candidate is not None
        manifest = candidate.manifest
        digests = dict(
            zip(
                ("published", "float twin", "dynamic twin"),
                (manifest.digest, *manifest.twin_digests),
                strict=True,
            )
        )
        canary = canary_of(cloud)
        assert await report(cloud, canary, SUCCEEDED, digest=digests[form]) is grpc.StatusCode.OK


@on_loop
async def test_only_the_operator_rolls_out(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        async with cloud.stub("pi-1") as stub:
            for call, request in (
                (stub.StartRollout, pb.StartRolloutRequest(fleet=FLEET, plan=PLAN_PB)),
                (stub.ListRollouts, pb.ListRolloutsRequest(fleet=FLEET)),
                (stub.CommandRollout, pb.CommandRolloutRequest(fleet=FLEET)),
                (stub.ListBundles, pb.ListBundlesRequest(fleet=FLEET)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(request, timeout=DEADLINE_S)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        async with cloud.stub("operator") as stub:
            request = pb.StartRolloutRequest(fleet=FLEET, plan=PLAN_PB, dry_run=True)
            shown = await stub.StartRollout(request, timeout=DEADLINE_S)
            assert (len(shown.members), cloud.rollouts.find(0)) == (1, None)
            started = await stub.StartRollout(
                pb.StartRolloutRequest(fleet=FLEET, plan=PLAN_PB), timeout=DEADLINE_S
            )
            assert [each.device_id for each in started.members] == [
                each.device_id for each in shown.members
            ]


@on_loop
async def test_a_device_speaks_for_itself_and_of_what_it_really_runs(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        await cloud.rollouts.start(PLAN)
        canary = canary_of(cloud)
        other = next(each for each in NAMES if each != canary)
        precondition = grpc.StatusCode.FAILED_PRECONDITION
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert await report(cloud, other, SUCCEEDED, claims=canary) is denied
        assert await report(cloud, other, SUCCEEDED) is precondition  # it is in no wave
        assert await report(cloud, canary, SUCCEEDED, digest=bytes(32)) is precondition
        assert await report(cloud, canary, SUCCEEDED, digest=b"") is precondition
        assert await report(cloud, canary, SUCCEEDED, episodes=2) is precondition
        assert await report(cloud, canary, pb.ROLLOUT_PROGRESS_TIMED_OUT) is precondition
        assert await report(cloud, canary, SUCCEEDED, rollout_id=1) is grpc.StatusCode.OK
        assert cloud.counters["outcomes_refused"] == 5


@on_loop
async def test_a_device_hears_what_it_is_to_run_as_soon_as_that_changes(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud, cloud.stub("pi-1") as stub:
        request = pb.WatchDirectiveRequest(fleet=FLEET, device_id="pi-1")
        watch = stub.WatchDirective(request, timeout=DEADLINE_S)
        assert await watch.read() == pb.Directive()
        rollout = await cloud.rollouts.start(WHOLE)
        directive = await watch.read()
        assert isinstance(directive, pb.Directive)
        assert (directive.policy.version, directive.policy.episodes) == (3, 3)
        assert directive.policy.rollout_id == rollout.rollout_id
        await cloud.rollouts.enter(0, State.ABORTED, "")
        assert await watch.read() == pb.Directive()


@on_loop
async def test_a_watched_rollout_is_told_when_it_changes_and_no_more_after_its_end(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud, cloud.stub("operator") as stub:
        rollout = await cloud.rollouts.start(PLAN)
        watch = stub.WatchRollout(pb.WatchRolloutRequest(fleet=FLEET), timeout=DEADLINE_S)
        changes = aiter(watch)
        first = await anext(changes)
        await cloud.pass_time(GRACE_S + 1)  # time alone is no news
        await cloud.rollouts.enter(rollout.rollout_id, State.ABORTED, "enough")
        states = [each.state async for each in changes]
        assert states[-1] == pb.ROLLOUT_STATE_ABORTED
        assert first.state == pb.ROLLOUT_STATE_ACTIVE


@on_loop
async def test_many_devices_may_tell_at_once_and_none_is_lost(tmp_path: Path) -> None:
    devices = Devices()
    names = [f"pi-{number}" for number in range(40)]
    devices.add(*names)
    async with rollout_cloud(tmp_path, devices=devices) as cloud:
        await cloud.rollouts.start(WHOLE)
        for each in names:
            cloud.identity(each)
        codes = await asyncio.gather(*(report(cloud, each, SUCCEEDED) for each in names))
        assert set(codes) == {grpc.StatusCode.OK}
        rollout = cloud.rollouts.find(0)
        assert rollout is not None
        assert rollout.count(Progress.SUCCEEDED) == 40
        assert rollout.state is State.PROMOTED


@on_loop
async def test_a_word_about_an_ended_one_does_not_let_go_of_the_next(tmp_path: Path) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        first = await cloud.rollouts.start(PLAN)
        canary = canary_of(cloud)
        digests = {info.manifest.version: info.manifest.digest for info in cloud.log.list()}
        for each in (canary, *sorted(set(NAMES) - {canary})):
            await report(cloud, each, SUCCEEDED)
        second = await cloud.rollouts.start(PLAN)
        held = {each: cloud.offered(each) for each in NAMES}
        assert set(held.values()) == {second.versions.baseline, second.versions.candidate}
        digest = digests[first.versions.candidate]
        await report(cloud, canary, FAILED, rollout_id=first.rollout_id, digest=digest)
        assert {each: cloud.offered(each) for each in NAMES} == held


@on_loop
async def test_a_learner_whose_devices_wait_for_each_version_refuses_to_hold_them(
    tmp_path: Path,
) -> None:
    async with rollout_cloud(tmp_path) as cloud:
        cloud.rollouts._policies_refused = "every device acts with the newest"
        with pytest.raises(ConfigError, match="every device acts with the newest"):
            await cloud.rollouts.start(PLAN)
