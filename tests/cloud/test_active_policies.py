"""What each device acts with: remembered, bounded, and over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cloud_learner.downlink.active_policies import ActivePolicies
from shoal.policy_delta import Base

DIGESTS = st.binary(min_size=32, max_size=32)


@given(
    st.lists(st.tuples(st.sampled_from(["pi-1", "pi-2", "pi-3"]), st.integers(0, 9), DIGESTS)),
)
def test_the_last_word_of_each_device_holds(said: list[tuple[str, int, bytes]]) -> None:
    active = ActivePolicies()
    last: dict[str, Base] = {}
    for device_id, version, digest in said:
        last[device_id] = Base(version, digest)
        active.note(device_id, last[device_id])
    has = {device_id: base for device_id, base in last.items() if base.version}
    assert active.versions() == {base.version for base in has.values()}
    for device_id in last:
        found = active.of(device_id)
        assert (None if found is None else found.base) == has.get(device_id)


def test_of_too_many_devices_those_silent_for_longest_are_forgotten() -> None:
    active = ActivePolicies(max_devices=2)
    for device_id, version in (("pi-1", 1), ("pi-2", 2), ("pi-1", 3), ("pi-3", 4)):
        active.note(device_id, Base(version, bytes(32)))
    assert active.versions() == {3, 4}
    assert active.of("pi-2") is None


def test_it_is_known_after_a_restart_but_for_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "active_policies.txt"
    active = ActivePolicies(path)
    active.note("pi-1", Base(7, bytes(range(32))), bytes(16))
    active.note("pi-2", Base(8, bytes(32)))
    active.save()
    path.write_text("no line\n" + path.read_text("ascii") + "pi-3 9 00", "ascii")
    again = ActivePolicies(path)
    assert again.versions() == {7, 8}
    found = again.of("pi-1")
    assert found is not None
    assert found.base == Base(7, bytes(range(32)))


def test_the_last_word_is_saved_when_the_learner_stops(tmp_path: Path) -> None:
    path = tmp_path / "active_policies.txt"

    async def scenario() -> None:
        active = ActivePolicies(path)
        saving = asyncio.ensure_future(active.save_often())
        await asyncio.sleep(0)
        active.note("pi-1", Base(7, bytes(32)))
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)

    asyncio.run(scenario())
    assert ActivePolicies(path).versions() == {7}


def test_a_disk_that_refuses_is_no_failure(tmp_path: Path) -> None:
    active = ActivePolicies(tmp_path / "not" / "there")
    active.note("pi-1", Base(7, bytes(32)))
    active.save()
    assert active.versions() == {7}
