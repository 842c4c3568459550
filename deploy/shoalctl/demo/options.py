"""What the flags of `shoal demo` say, and what follows from them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from shoal.config import Flag
from shoal.errors import ConfigError
from shoalctl.demo.presets import Preset, algorithm_path, default_algorithm, preset_of
from shoalctl.demo.workspace import DemoPlan

_WHILE_IT_LASTS_S = 86_400.0  # where devices wait for the next version, it may take long
_FP32_ONLY_KL = 1e-12  # nats: a gap that no int8 policy keeps, so that every version is fp32


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What is run, and until when.

    Attributes:
        until_return: Mean return that counts as solved; None for the environment's own threshold.
        directory: Where keys, logs and state are kept; None for a directory that is removed.
        stop_after_steps: Environment steps after which it ends, solved or not; None: it does not.
        go_on: Whether it goes on, once solved, to one of the other ends.
    """

    plan: DemoPlan
    until_return: float | None
    timeout_s: float
    as_json: bool
    directory: Path | None
    stop_after_steps: int | None = None
    go_on: bool = False


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The flags that shape a plan; None where one was not given.

    Attributes:
        precision: `int8` or `fp32`.
        init: What training starts from.
        lockstep: Whether learner and devices wait for each other, so that a run can be repeated.
        sync: Whether they do, and devices may come and go.
        gradients: Whether devices push gradients in place of trajectories.
        update_interval: Environment steps of a device between two gradients.
        shards: Of the parameters, each with an optimiser.
        sets: `key=value` of the learner's configuration.
        env_sets: `key=value` of the environment's constructor.
    """

    env: str
    seed: int
    mosquitto: bool
    algorithm: str | None
    devices: int | None
    envs: int | None
    chunk_steps: int | None
    ahead: int | None
    network: str | None
    max_lag: int | None
    precision: str | None
    init: Path | None
    lockstep: bool
    sync: bool
    sets: Sequence[str]
    env_sets: Sequence[str]
    gradients: bool = False
    update_interval: int | None = None
    shards: int | None = None


def make_plan(flags: PlanFlags) -> DemoPlan:
    """The plan that flags ask for; a preset says the rest.

    Raises:
        ConfigError: The algorithm is unknown, or a `key=value` malformed.
    """
    algorithm = flags.algorithm or default_algorithm(flags.env)
    algorithm_path(algorithm)
    _check_gradients(flags, algorithm)
    preset = preset_of(flags.env, algorithm, gradients=flags.gradients)
    devices = preset.devices if flags.devices is None else flags.devices
    ahead = preset.ahead if flags.ahead is None else flags.ahead
    mode = "lockstep" if flags.lockstep else "sync" if flags.sync else ""
    if mode and flags.ahead is None:
        ahead = max(1, ahead)
    if flags.lockstep and flags.sync:
        raise ConfigError("--lockstep with --sync: give one of them")
    if mode and ahead == 0:
        raise ConfigError(f"--{mode} with --ahead 0: a device that never waits keeps no step")
    return DemoPlan(
        env_id=flags.env,
        devices=devices,
        seed=flags.seed,
        envs=preset.envs if flags.envs is None else flags.envs,
        chunk_steps=preset.chunk_steps if flags.chunk_steps is None else flags.chunk_steps,
        ahead=ahead,
        mosquitto=flags.mosquitto,
        algorithm=algorithm,
        env_kwargs=dict(_pair("--env-set", text) for text in flags.env_sets),
        learner=(_waiting_keys(mode, devices, ahead) if mode else {}) | _learner_keys(flags),
        pace_timeout_s=_WHILE_IT_LASTS_S if mode else preset.pace_timeout_s,
        repeatable=flags.lockstep,
        gradients=_device_gradients(flags, preset) if flags.gradients else None,
    )


def _waiting_keys(mode: str, devices: int, ahead: int) -> dict[str, Flag]:
    keys: dict[str, object] = {"mode": mode, "lockstep_chunks": ahead}
    if mode == "lockstep":
        keys["lockstep_devices"] = devices
    return {f"training.{key}": Flag(f"--{mode}", value) for key, value in keys.items()}


def _check_gradients(flags: PlanFlags, algorithm: str) -> None:
    if flags.gradients and flags.lockstep:
        raise ConfigError("--lockstep with --mode gradients: updates come as they come there")
    if flags.gradients and flags.sync:
        raise ConfigError("--sync with --mode gradients: no version waits for devices there")
    if flags.gradients and algorithm in ("dqn", "sac"):
        raise ConfigError(
            f"--algorithm {algorithm} with --mode gradients: it trains from transitions; use appo "
            "or impala, or leave --mode"
        )
    if flags.gradients and flags.chunk_steps is not None:
        raise ConfigError("--chunk-steps with --mode gradients: give --update-interval")
    for flag, value in (
        ("--update-interval", flags.update_interval),
        ("--shards", flags.shards),
    ):
        if value is not None and not flags.gradients:
            raise ConfigError(f"{flag} goes with --mode gradients")


def _device_gradients(flags: PlanFlags, preset: Preset) -> dict[str, object]:
    keys = dict(preset.gradients)
    if flags.update_interval is not None:
        keys["update_interval"] = flags.update_interval
    return keys


def _learner_keys(flags: PlanFlags) -> dict[str, Flag]:
    keys: dict[str, Flag] = {}
    if flags.network is not None:
        keys["training.network.kind"] = Flag("--network", flags.network)
    if flags.max_lag is not None:
        table = "gradients" if flags.gradients else "training"
        keys[f"{table}.max_lag"] = Flag("--max-lag", flags.max_lag)
    if flags.shards is not None:
        keys["gradients.shards"] = Flag("--shards", flags.shards)
    if flags.precision == "fp32":
        keys |= _fp32_only()
    if flags.init is not None:
        keys["init"] = Flag("--init", flags.init.absolute())
    for text in flags.sets:
        key, value = _pair("--set", text)
        keys[key] = Flag(f"--set {key}", value)
    return keys


def _fp32_only() -> dict[str, Flag]:
    from cloud_learner.config import TrainingConfig

    if "precision" in {field.name for field in fields(TrainingConfig)}:
        return {"training.precision": Flag("--precision", "fp32")}
    return {"training.kl_quantization_max": Flag("--precision", _FP32_ONLY_KL)}


def _pair(flag: str, text: str) -> tuple[str, object]:
    """`key=value`; the value is read as TOML, and as text where it is none."""
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise ConfigError(f"{flag} {text!r}: give key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def check_options(options: DemoOptions) -> DemoOptions:
    """Returns the options if they make sense.

    Raises:
        ConfigError: A number is out of its range.
    """
    for flag, value, low, high in (
        ("--devices", options.plan.devices, 1, 64),
        ("--envs", options.plan.envs, 1, 1024),
        ("--chunk-steps", options.plan.chunk_steps, 1, 65_536),
        ("--ahead", options.plan.ahead, 0, 1024),
        ("--seed", options.plan.seed, 0, 1_000_000),
        ("--update-interval", _update_interval(options.plan), 1, 1 << 20),
        ("--timeout-s", options.timeout_s, 1, 7 * 86_400),
        ("--stop-after-steps", options.stop_after_steps or 1, 1, 10**12),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{flag} {value:g}: use {low} to {high}")
    return options


def _update_interval(plan: DemoPlan) -> int:
    """That of a plan's devices; 1 where they push no gradients, or leave it to the default."""
    interval = (plan.gradients or {}).get("update_interval", 1)
    return interval if isinstance(interval, int) else 1
