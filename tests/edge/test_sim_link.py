"""Whatever the network and the machines do, every chunk is accounted for, and once."""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sim_link import Faults, SimDevice, World

from shoal.ranges import Ranges

STEPS = 25
HEALED_STEPS = 200
FAULTS = st.builds(
    Faults,
    loss=st.floats(0, 0.6),
    duplication=st.floats(0, 0.6),
    longest_delay_s=st.floats(0, 15),
    device_restart=st.sampled_from([0.0, 0.15]),
    learner_restart=st.floats(0, 0.4),
    reconnection=st.floats(0, 0.3),
)


def _accounted(world: World, device: SimDevice) -> None:
    """produced = settled + in flight + dropped, for each run, at any moment."""
    for run in device.spool.ledger():
        settled = world.learner.settled(device.device_id, run.run_id)
        everything = settled.union(run.spooled).union(run.dropped)
        assert everything == Ranges.upto(run.produced)


@settings(max_examples=25)
@given(st.integers(0, 2**32), FAULTS, st.sampled_from([100, 300, 2**20]))
def test_every_chunk_is_settled_once_or_counted_as_dropped(
    seed: int, faults: Faults, max_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(random.Random(seed), faults)
        with contextlib.closing(world):
            for n in range(2):
                world.add_device(Path(directory) / f"{n}.sqlite", max_bytes=max_bytes)
            for _ in range(STEPS):
                world.step(produce=True)
                for device in world.devices:
                    _accounted(world, device)
            world.heal()
            for _ in range(HEALED_STEPS):
                world.step(produce=False)
            for device in world.devices:
                _accounted(world, device)
                assert not any(run.spooled for run in device.spool.ledger())
                dropped = {
                    (run.run_id, seq) for run in device.spool.ledger() for seq in run.dropped
                }
                for key, body in device.produced.items():
                    if key in world.learner.journal:
                        assert world.learner.journal[key] == body
                    else:
                        assert (key.run_id, key.seq) in dropped
            produced = {key for device in world.devices for key in device.produced}
            assert set(world.learner.journal) <= produced


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_a_faultless_network_carries_each_chunk_once(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(random.Random(seed), Faults())
        with contextlib.closing(world):
            device = world.add_device(Path(directory) / "spool.sqlite")
            for _ in range(STEPS):
                world.step(produce=True)
            assert len(world.learner.journal) == len(device.produced) == STEPS
            assert world.learner.duplicates == 0
