"""One run of a suite: the whole system as `shoal demo`, then its last policy alone."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.child import Child, run_child, say
from bench.evaluate import Evaluation, Loss, evaluate, loss_of, open_policy
from bench.peer_venv import PEERS_DIR, peer_python
from bench.report import finite
from bench.same_weights import int8_of_checkpoint
from bench.suite_rows import Row

from shoalctl.demo.presets import preset_of

CHECKOUT = Path(__file__).resolve().parents[2]
GRACE_S = 120.0
EXPORT_S = 120.0
SHOAL, PEER = "shoal", "sb3"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run gave; what was not measured is None.

    Attributes:
        row: Name of the row.
        contestant: `shoal` or `sb3`.
        settings: A digest of all that the run was told but its seed: equal, and it is the same run.
        solved: Whether the bar was reached, as the row is judged.
        solved_steps: Environment steps when the mean of the last 100 training episodes reached it.
        solved_s: Wall-clock from process start until then.
        env_steps: Environment steps at the end.
        wall_s: Wall-clock from process start to the end of training.
        training_return: Mean of the last 100 training episodes at the end.
        evaluation_fp32: The last policy in fp32, greedy.
        evaluation_int8: The newest version as it was published.
        evaluation_same: The weights of `evaluation_fp32` in int8, where those were published in
            another precision, or not at all.
        int8_loss_percent: See `evaluate.Loss`, of equal weights.
        gap_quantization: Nats, of the last version.
        gap_staleness: Nats, of the last batch.
        lag: p50, p99 and max of the updates that trained chunks lagged.
        error: Why there is no result; empty if there is.
    """

    row: str
    contestant: str
    seed: int
    settings: str
    solved: bool = False
    solved_steps: int | None = None
    solved_s: float | None = None
    env_steps: int = 0
    wall_s: float | None = None
    training_return: float | None = None
    precision: str = ""
    evaluation_fp32: Evaluation | None = None
    evaluation_int8: Evaluation | None = None
    evaluation_same: Evaluation | None = None
    int8_loss_percent: float | None = None
    gap_quantization: float | None = None
    gap_staleness: float | None = None
    lag: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    error: str = ""

    @property
    def loss(self) -> Loss | None:
        """What int8 loses; None where it was not evaluated, or its episodes were not kept."""
        return _loss(self.evaluation_fp32, self.evaluation_same or self.evaluation_int8)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "RunRecord":
        """Reads what `asdict` gave."""
        names = ("evaluation_fp32", "evaluation_int8", "evaluation_same")
        evaluations = {
            name: None if told.get(name) is None else Evaluation.from_json(told[name])
            for name in names
        }
        known = {one.name: told[one.name] for one in fields(cls) if one.name in told}
        return cls(**{**known, **evaluations})


def demo_command(row: Row) -> list[str]:
    """The command of a row, but for its seed and directory."""
    command = ["demo", "-o", "json", "--env", row.env, "--algorithm", row.algorithm]
    command += ["--until-return", f"{row.bar:g}", "--stop-after-steps", str(row.steps)]
    command += ["--timeout-s", f"{row.timeout_s:g}", *row.flags]
    return [*command, "--go-on"] if row.judged == "evaluation" else command


def peer_command(row: Row, episodes: int) -> list[str]:
    """The command of the peer of a row, but for its seed."""
    command = ["--algorithm", row.peer, "--env", row.env, "--threshold", f"{row.bar:g}"]
    command += ["--timeout-s", f"{row.timeout_s:g}", "--threads", "1"]
    if row.judged == "evaluation":
        command += ["--steps", str(row.steps)]
    return [*command, "--evaluate", str(episodes)]


def settings_of(row: Row, contestant: str, episodes: int) -> str:
    """Names all that a run is told but its seed: the preset that its command stands for, too."""
    told: list[object] = [row.judged, episodes]
    if contestant == SHOAL:
        preset = preset_of(row.env, row.algorithm, gradients=row.gradients)
        told += [*demo_command(row), asdict(preset)]
    else:
        told += peer_command(row, episodes)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def run_row(row: Row, contestant: str, seed: int, episodes: int) -> RunRecord:
    """Runs a row once, and never raises for what the contestant does."""
    blank = RunRecord(row.name, contestant, seed, settings_of(row, contestant, episodes))
    if contestant == PEER:
        return _peer(row, blank, episodes)
    with tempfile.TemporaryDirectory(prefix="shoal-suite-") as scratch:
        directory = Path(scratch) / "demo"
        shoal = [sys.executable, "-m", "shoalctl.cli"]
        child = run_child(
            [*shoal, *demo_command(row), "--seed", str(seed), "--dir", str(directory)],
            row.timeout_s + GRACE_S,
            cwd=CHECKOUT,
        )
        if child.answer is None:
            return _failed(blank, child.failure)
        said = json.loads(child.answer)
        found: dict[str, Evaluation | None] = {}
        notes = [] if said["audit"]["balanced"] else ["audit NOT balanced"]
        for precision in ("fp32", "int8"):
            evaluation, problem = _evaluate(shoal, row, directory, precision, episodes)
            found[precision] = evaluation
            notes += [problem] if problem else []
        if row.rounds:
            found["same"], problem = _evaluate_same(row, directory, found, episodes)
            notes += [problem] if problem else []
    return _record(row, blank, child, said, found, "; ".join(notes))


def _record(
    row: Row,
    blank: RunRecord,
    child: Child,
    said: Mapping[str, Any],
    found: Mapping[str, Evaluation | None],
    note: str,
) -> RunRecord:
    fp32, int8, same = found["fp32"], found["int8"], found.get("same")
    loss = _loss(fp32, same or int8)
    solved_at = said["solved_at"]
    before_s = said["started_monotonic_s"] - child.started_s
    judged_by = int8 or fp32
    by_evaluation = judged_by is not None and judged_by.mean >= row.bar
    gaps = said["quantization"]
    return RunRecord(
        row=row.name,
        contestant=SHOAL,
        seed=blank.seed,
        settings=blank.settings,
        solved=said["solved"] if row.judged == "training" else by_evaluation,
        solved_steps=solved_at["env_steps"] if solved_at else None,
        solved_s=round(solved_at["wall_s"] + before_s, 3) if solved_at else None,
        env_steps=said["env_steps"],
        wall_s=round(said["wall_s"] + before_s, 3),
        training_return=said["return_mean"],
        precision=gaps["precision"],
        evaluation_fp32=fp32,
        evaluation_int8=int8,
        evaluation_same=same,
        int8_loss_percent=None if loss is None else finite(loss.percent),
        gap_quantization=gaps["kl_quantization"],
        gap_staleness=max(0.0, gaps["kl_staleness"]),
        lag=said["lag"],
        note=note,
    )


def _evaluate(
    shoal: list[str], row: Row, directory: Path, precision: str, episodes: int
) -> tuple[Evaluation | None, str]:
    """The evaluation, or why there is none."""
    policy = directory / f"{precision}.onnx"
    command = ["learner", "export", "--config", str(directory / "learner.toml")]
    command += ["--format", "onnx", "--precision", precision, "-o", str(policy)]
    if precision == "int8" and not row.rounds:
        return None, ""  # nothing was published in int8
    child = run_child([*shoal, *command], EXPORT_S, cwd=CHECKOUT)
    if not policy.exists():
        return None, f"no {precision} export: {child.failure}"
    try:
        return evaluate(open_policy(policy), row.env, episodes=episodes), ""
    except Exception as error:  # noqa: BLE001 - a policy that cannot act is a result, too
        return None, f"{precision} does not act: {type(error).__name__}: {error}"


def _evaluate_same(
    row: Row, directory: Path, found: Mapping[str, Evaluation | None], episodes: int
) -> tuple[Evaluation | None, str]:
    """The fp32 policy's weights in int8, unless it was these that were published."""
    fp32, int8 = found["fp32"], found["int8"]
    if fp32 is None or (int8 is not None and int8.updates == fp32.updates):
        return None, ""
    try:
        session = int8_of_checkpoint(directory / "learner.toml")
        return evaluate(session, row.env, episodes=episodes), ""
    except Exception as error:  # noqa: BLE001 - as above
        return None, f"no int8 of the checkpoint: {type(error).__name__}: {error}"


def _loss(fp32: Evaluation | None, int8: Evaluation | None) -> Loss | None:
    return None if fp32 is None or int8 is None else loss_of(fp32, int8)


def _peer(row: Row, blank: RunRecord, episodes: int) -> RunRecord:
    command = [str(peer_python(PEER)), str(PEERS_DIR / f"{PEER}.py"), *peer_command(row, episodes)]
    child = run_child([*command, "--seed", str(blank.seed)], row.timeout_s + GRACE_S)
    if child.answer is None:
        return _failed(blank, child.failure)
    said = json.loads(child.answer)
    mean, std = said["evaluation_mean"], said["evaluation_std"]
    found = None if mean is None else Evaluation(mean, std, episodes)
    by_evaluation = found is not None and found.mean >= row.bar
    took_s = round(said["ended_at_s"] - child.started_s, 3)
    return RunRecord(
        row=row.name,
        contestant=PEER,
        seed=blank.seed,
        settings=blank.settings,
        solved=said["solved"] if row.judged == "training" else by_evaluation,
        solved_steps=said["env_steps"] if said["solved"] else None,
        solved_s=took_s if said["solved"] else None,
        env_steps=said["env_steps"],
        wall_s=took_s,
        training_return=finite(said["return_mean"]),
        precision="fp32",
        evaluation_fp32=found,
        note=said["note"],
    )


def _failed(blank: RunRecord, why: str) -> RunRecord:
    say(f"{blank.row} seed {blank.seed}: {why}")
    return RunRecord(**{**asdict(blank), "error": why[:300]})
