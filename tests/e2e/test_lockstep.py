"""The whole system in lockstep: the same seed gives the same policies, bit for bit."""

from __future__ import annotations

import pytest
from demo_process import demo

FLEET = ("--devices", "2", "--envs", "4", "--chunk-steps", "16", "--ahead", "1")
END = ("--stop-after-steps", "1500", "--timeout-s", "100")


SAC = ("--env", "Pendulum-v1", "--algorithm", "sac", "--network", "mlp")
SMALL = ("training.network.hidden=[16]", "training.settings.learning_starts=200")


def digests_of_sac(seed: int) -> dict[str, str]:
    """The same where transitions are drawn many times, from a small network."""
    sets = [word for each in SMALL for word in ("--set", each)]
    with demo("--lockstep", "--seed", str(seed), *SAC, *sets, *FLEET, *END) as running:
        envelope = running.finish()
        assert running.process.returncode == 0
    audit = envelope["audit"]
    assert audit["balanced"] is True
    assert (audit["expired"], audit["rejected"]) == (0, 0)
    found: dict[str, str] = envelope["policy_digests"]
    return found


def digests_of(seed: int) -> dict[str, str]:
    """The digest of every version of a short run."""
    with demo("--lockstep", "--seed", str(seed), *FLEET, *END) as running:
        envelope = running.finish()
        assert running.process.returncode == 0
    audit = envelope["audit"]
    assert audit["balanced"] is True
    assert (audit["expired"], audit["rejected"]) == (0, 0)
    assert envelope["lag"]["max"] == 0
    assert len(envelope["policy_digests"]) > 8
    found: dict[str, str] = envelope["policy_digests"]
    return found


@pytest.mark.timeout(300)
def test_two_runs_with_one_seed_give_the_same_policies_and_another_seed_gives_others() -> None:
    first, second, other = digests_of(5), digests_of(5), digests_of(6)
    common = first.keys() & second.keys()
    assert len(common) > 8
    assert {v: first[v] for v in common} == {v: second[v] for v in common}
    assert len(set(first.values())) == len(first)
    assert not set(first.values()) & set(other.values())


@pytest.mark.timeout(300)
def test_so_it_is_where_transitions_are_trained_from() -> None:
    first, second = digests_of_sac(5), digests_of_sac(5)
    common = first.keys() & second.keys()
    assert len(common) > 8
    assert {v: first[v] for v in common} == {v: second[v] for v in common}
    assert len({first[v] for v in common}) > len(common) // 2
