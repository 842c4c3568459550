"""`shoal reproduce`: a device's real decisions come out again, and a forged one is found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from learner_state import OTHER_RUN_ID, RUN_ID, ShortRun, keep_no_trajectories, short_run

from cloud_learner.downlink.kept_policies import KeptPolicies, KeptPolicy
from cloud_learner.journal.reader import JournalReader
from cloud_learner.training.checkpoint import newest_checkpoint
from shoal.errors import PolicyLogError
from shoal.trajectory import Chunk, encode_chunk
from shoalctl.cli import run
from shoalctl.reproduce_cli import _Policies

LSTM = {"training.network": 'kind = "lstm"\nhidden = [16]\nmemory = 8'}
SAC = {
    "training": 'algorithm = "cloud_learner.algorithms.sac:SAC"',
    "training.settings": "noise_correlation = 0.9",
}
DQN = {"training": 'algorithm = "cloud_learner.algorithms.dqn:DQN"'}


def reproduce(made: ShortRun, *more: str) -> int:
    return run(["reproduce", "--state", str(made.state.directory), "--device", "pi-1", *more])


class GrowingLog:
    """A policy log whose learner publishes on."""

    def __init__(self) -> None:
        self.newest = 1

    def versions(self) -> list[int]:
        return list(range(1, self.newest + 1))

    def read(self, version: int) -> KeptPolicy:
        raise PolicyLogError(f"v{version} was looked up")


def test_a_version_that_is_published_while_it_reads_is_looked_up_too(tmp_path: Path) -> None:
    made = short_run(tmp_path)
    checkpoint = newest_checkpoint(made.state.checkpoints)
    assert checkpoint is not None
    log = GrowingLog()
    policies = _Policies(log, checkpoint.spec)  # type: ignore[arg-type] # a fake
    assert policies.get(2, b"") is None
    log.newest = 2
    with pytest.raises(PolicyLogError, match="v2 was looked up"):
        policies.get(2, b"")


def forge(made: ShortRun, seq: int, change: Callable[[Chunk], Chunk]) -> None:
    """Changes a chunk of the newest run, as a device that lies would have sent it."""
    with JournalReader(made.state.journal) as reader:
        run = next(each.key for each in reader.runs() if each.key.run_id == RUN_ID)
        item = next(reader.chunks(run, first_seq=seq))
    forged = encode_chunk(change(item.chunk))
    connection = sqlite3.connect(made.state.journal)
    connection.execute(
        "UPDATE chunks SET body = ?, segment = NULL WHERE run = ? AND seq = ?",
        (forged, RUN_ID, seq),
    )
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("env_id", "training"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("examples.cartpole_positions:CartPolePositions", LSTM),
        ("Pendulum-v1", SAC),
        ("CartPole-v1", DQN),
    ],
)
def test_every_decision_of_an_honest_device_comes_out_again_bit_for_bit(
    env_id: str,
    training: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = short_run(tmp_path, env_id=env_id, training=training)
    assert reproduce(made, "-o", "json") == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "shoal.v1.Reproduction"
    (item,) = envelope["items"]
    assert item["run_id"] == RUN_ID.hex()  # the newest
    assert (item["chunks"], item["decisions"]) == (6, 6 * 8 * 3)
    assert item["reproduced"] is True
    assert item["first_difference"] is None


@pytest.mark.parametrize("twin", ["fp32", "int8_dynamic"])
@pytest.mark.parametrize(
    ("env_id", "training"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {"training": "kl_quantization_max = 10.0"}),
        ("examples.cartpole_positions:CartPolePositions", LSTM),
        ("CartPole-v1", DQN),
    ],
)
def test_so_does_every_decision_of_a_twin_and_it_says_which_that_was(
    env_id: str,
    training: dict[str, str],
    twin: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = short_run(tmp_path, env_id=env_id, training=training, twin=twin)
    assert reproduce(made, "-o", "json") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["chunks"], item["reproduced"]) == (6, True)
    assert item["precisions"] == [twin]


def test_decisions_of_a_dynamic_twin_that_differ_need_not_be_the_devices_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, twin="int8_dynamic")
    assert reproduce(made) == 0
    assert "acted in int8_dynamic: that comes out bit for bit only on" in capsys.readouterr().out
    forge(made, 4, lambda chunk: replace(chunk, log_probs=chunk.log_probs * np.float32(1.001)))
    assert reproduce(made) == 1
    assert "need not be the device's fault" in capsys.readouterr().out
    assert reproduce(made, "--tolerance", "0.01") == 0


def test_a_twin_is_not_taken_for_its_int8_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, twin="fp32")
    digest = made.published[1].digest
    forge(made, 5, lambda chunk: replace(chunk, policy_digest=digest))
    assert reproduce(made, "--seq", "5") == 1
    assert "log_prob" in capsys.readouterr().out
    assert reproduce(made, "--seq", "4") == 0


def test_a_twin_whose_graph_is_gone_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, twin="fp32")
    digest = made.published[0].manifest.float_graph_digest
    (made.state.policies / "graphs" / f"{digest.hex()}.onnx").unlink()
    assert reproduce(made) == 1
    assert "nothing could be compared" in capsys.readouterr().err


def test_a_forged_action_is_found_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)

    def lie(chunk: Chunk) -> Chunk:
        actions = chunk.actions.copy()
        actions[5, 2] = 1 - actions[5, 2]
        return replace(chunk, actions=actions)

    forge(made, 4, lie)
    assert reproduce(made) == 1
    captured = capsys.readouterr()
    assert "first: chunk 4, step 5, environment 2: action" in captured.out
    assert captured.err == "shoal: pi-1 recorded 1 decisions that do not come out again\n"
    assert reproduce(made, "--seq", "3") == 0
    assert reproduce(made, "--seq", "4", "-o", "json") == 1
    first = json.loads(capsys.readouterr().out.partition("\n")[2])["items"][0]["first_difference"]
    assert (first["device_id"], first["seq"], first["step"], first["env"]) == ("pi-1", 4, 5, 2)
    assert {first["recorded"], first["recomputed"]} == {"0", "1"}


def test_a_log_probability_that_is_off_by_a_bit_is_found_unless_it_is_tolerated(
    tmp_path: Path,
) -> None:
    made = short_run(tmp_path)

    def round_otherwise(chunk: Chunk) -> Chunk:
        return replace(chunk, log_probs=np.nextafter(chunk.log_probs, np.float32(-9)))

    forge(made, 1, round_otherwise)
    assert reproduce(made) == 1
    assert reproduce(made, "--tolerance", "1e-5") == 0


def test_a_version_that_did_not_act_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)
    forge(made, 0, lambda chunk: replace(chunk, policy_version=2))
    assert reproduce(made, "--seq", "0") == 1
    assert "policy_digest" in capsys.readouterr().out


def test_one_episode_is_compared_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = short_run(tmp_path, chunks=8)
    assert reproduce(made, "--episode", "1", "-o", "json") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert 0 < item["decisions"] < 16 * 8
    assert reproduce(made, "--episode", "9999") == 1
    assert "has no whole episode 9999" in capsys.readouterr().err


def test_whole_episodes_are_listed_with_what_they_can_be_compared_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, chunks=8)
    assert reproduce(made, "--episodes", "-o", "json") == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["episode"] for item in items] == list(range(len(items)))
    assert all(item["policies_kept"] and item["steps"] > 0 for item in items)
    assert reproduce(made, "--episode", str(len(items) - 1)) == 0
    capsys.readouterr()
    assert reproduce(made, "--episode", str(len(items))) == 1
    assert reproduce(made, "--episodes", "--seq", "1") == 4
    capsys.readouterr()
    (made.state.policies / "versions" / "00000001.bundle").unlink()
    assert reproduce(made, "--episodes") == 0
    assert "not any more" in capsys.readouterr().out


def test_a_policy_that_is_deleted_while_this_reads_counts_as_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)
    real = KeptPolicies.read

    def prune_and_read(self: KeptPolicies, version: int) -> KeptPolicy:
        (made.state.policies / "versions" / "00000001.bundle").unlink(missing_ok=True)
        return real(self, version)

    monkeypatch.setattr(KeptPolicies, "read", prune_and_read)
    assert reproduce(made) == 0
    assert "their policies are not kept any more, v1;" in capsys.readouterr().out


def test_an_earlier_run_is_named_by_the_beginning_of_its_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)
    assert reproduce(made, "--run", OTHER_RUN_ID.hex()[:6]) == 0
    assert f"run {OTHER_RUN_ID.hex()[:8]}" in capsys.readouterr().out
    assert reproduce(made, "--run", "ffff") == 1
    assert "no run begins with 'ffff'" in capsys.readouterr().err
    assert reproduce(made, "--run", "") == 1
    assert "several runs begin" in capsys.readouterr().err


def test_chunks_whose_policy_is_gone_are_counted_and_never_pass_for_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path)
    (made.state.policies / "versions" / "00000001.bundle").unlink()
    assert reproduce(made) == 0
    said = capsys.readouterr().out
    assert "3 chunks not compared: their policies are not kept any more, v1;" in said
    assert "policies_retain_bytes" in said
    (made.state.policies / "versions" / "00000002.bundle").unlink()
    assert reproduce(made) == 1
    error = capsys.readouterr().err
    assert "nothing could be compared: the policy versions that acted, v1 to v2, are not" in error
    assert "policies_retain_bytes" in error
    assert reproduce(made, "-o", "json") == 1
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["versions_not_kept"] == [1, 2]
    assert item["reproduced"] is False


def test_a_run_whose_beginning_left_the_journal_says_from_where_episodes_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, chunks=8)
    assert reproduce(made) == 0
    assert "counts episodes" not in capsys.readouterr().out
    connection = sqlite3.connect(made.state.journal)
    connection.execute("DELETE FROM chunks WHERE run = ? AND seq < 5", (RUN_ID,))
    connection.commit()
    connection.close()
    assert reproduce(made, "--episode", "0") == 0
    assert "from chunk 5 on, and counts episodes from there" in capsys.readouterr().out
    for asked in (("--episode", "9999"), ("--seq", "2")):
        assert reproduce(made, *asked) == 1
        assert "from chunk 5 on (journal.retain_bytes" in capsys.readouterr().err
    assert reproduce(made, "-o", "json") == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["first_chunk"], item["versions_not_kept"]) == (5, None)


@pytest.mark.parametrize(
    ("more", "code", "part"),
    [
        (("--seq", "3", "--episode", "1"), 4, "not both"),
        (("--seq", "600"), 1, "has no chunk 600"),
        (("--tolerance", "-1"), 4, "--tolerance"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    more: tuple[str, ...],
    code: int,
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reproduce(short_run(tmp_path, chunks=1), *more) == code
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert part in captured.err


def test_a_device_nobody_knows_names_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, chunks=1)
    assert run(["reproduce", "--state", str(made.state.directory), "--device", "pi-9"]) == 1
    assert "it has those of pi-1" in capsys.readouterr().err


def test_a_learner_of_gradients_says_that_it_keeps_no_trajectories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = short_run(tmp_path, chunks=0)
    assert reproduce(made) == 1
    assert "holds no chunk of 'pi-1'" in capsys.readouterr().err
    keep_no_trajectories(made)
    assert reproduce(made) == 1
    assert 'training.mode = "gradients" keeps no trajectories' in capsys.readouterr().err
    assert run(["fleet", "curve", "--state", str(made.state.directory)]) == 1
    assert 'training.mode = "gradients" keeps no trajectories' in capsys.readouterr().err


def test_a_directory_without_a_journal_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "--state", str(tmp_path), "--device", "pi-1"]) == 4
    assert "no journal here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
