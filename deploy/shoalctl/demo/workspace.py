"""The demo's directory: a fleet's keys, and a configuration for each of its processes."""

from __future__ import annotations

import json
import math
import os
import pwd
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.config import Flag, load_config
from shoal.errors import ConfigError, ShoalError
from shoal.spaces import EnvSpec
from shoalctl.broker.broker import BrokerConfig, write_mosquitto_files
from shoalctl.demo.presets import (
    DEFAULT_ALGORITHM,
    GRADIENT_PRESETS,
    PRESETS,
    preset_of,
    training_tables,
)
from shoalctl.demo.processes import Program
from shoalctl.pki.pki import FleetPki, Role

if TYPE_CHECKING:
    from cloud_learner.algorithms.interface import Choice
    from cloud_learner.config import LearnerConfig

FLEET = "demo"
HOST = "127.0.0.1"
_OF_A_BRAIN = ("training.settings", "training.network", "training.algorithm")


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What a demo is made of.

    Attributes:
        envs: Environments a device steps.
        chunk_steps: Steps in a chunk, T.
        ahead: Chunks an actor records under one policy version before it waits for the next; 0: it
            never waits.
        mosquitto: Run an installed Mosquitto in place of the embedded broker.
        algorithm: The short name of one that comes with Shoal, or `module:Class`.
        env_kwargs: Keyword arguments of the environment's constructor.
        learner: Keys of the learner's configuration, dotted, and what flags say of them.
        pace_timeout_s: How long an actor waits for the next version.
        repeatable: Whether what actors do follows from the seed: their noise too, and no choice
            by what is faster.
        gradients: The table `[gradients]` of devices that push gradients; None: they send
            trajectories.
        own_env_kwargs: More of these for single devices, by name.
    """

    env_id: str
    devices: int
    seed: int
    envs: int = 8
    chunk_steps: int = 32
    ahead: int = 2
    mosquitto: bool = False
    algorithm: str = DEFAULT_ALGORITHM
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    learner: Mapping[str, Flag] = field(default_factory=dict)
    pace_timeout_s: float = 1.0
    repeatable: bool = False
    gradients: Mapping[str, object] | None = None
    own_env_kwargs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(f"device-{number}" for number in range(self.devices))


@dataclass(frozen=True, slots=True)
class Workspace:
    """Everything the demo's processes read, and where they write.

    Attributes:
        operator: The identity that reads the fleet's views.
        server: `host:port` of the learner's gRPC services.
        broker_port: Where MQTT is served.
    """

    directory: Path
    operator: Path
    server: str
    broker_port: int
    broker: Program
    learner: Program
    agents: tuple[Program, ...]

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.directory / "logs"


def make_workspace(directory: Path, plan: DemoPlan, spec: EnvSpec | None = None) -> Workspace:
    """Makes the keys and writes the configurations.

    Args:
        directory: Where.
        plan: What the flags say.
        spec: What the devices act in, for the learner to be held against; None: unknown.

    Raises:
        ConfigError: The directory holds a demo already or cannot be written, or a flag sets
            something that the learner does not have.
    """
    pki = FleetPki.create(directory / "pki", FLEET)
    identities = {
        str(role): pki.issue(role, role) for role in (Role.BROKER, Role.LEARNER, Role.OPERATOR)
    }
    for device_id in plan.device_ids:
        identities[device_id] = pki.issue(device_id, Role.DEVICE)
    (directory / "logs").mkdir()
    mqtt_port, grpc_port = _free_ports(2)

    configs: dict[str, dict[str, dict[str, object]]] = {
        "broker": {
            "": {
                "fleet": FLEET,
                "identity": identities["broker"],
                "state_dir": directory / "broker",
                "host": HOST,
                "port": mqtt_port,
                "devices": list(plan.device_ids),
            }
        },
        "learner": {
            "": {
                "fleet": FLEET,
                "identity": identities["learner"],
                "state_dir": directory / "learner",
                "seed": plan.seed,
            },
            "broker": {"host": HOST, "port": mqtt_port},
            "server": {"host": HOST, "port": grpc_port},
            **training_tables(
                preset_of(plan.env_id, plan.algorithm, gradients=plan.gradients is not None),
                plan.algorithm,
                envs_in_fleet=plan.devices * plan.envs,
                chunk_steps=plan.chunk_steps,
                ahead=plan.ahead,
            ),
        },
    }
    if plan.gradients is not None:
        configs["learner"]["training"]["mode"] = "gradients"
    check_learner(_write(directory / "learner.toml", configs["learner"]), plan, spec)
    for key, flag in plan.learner.items():
        table, _, name = key.rpartition(".")
        configs["learner"].setdefault(table, {})[name] = flag.value
    for number, device_id in enumerate(plan.device_ids):
        env_kwargs = {**plan.env_kwargs, **plan.own_env_kwargs.get(device_id, {})}
        configs[device_id] = {
            "": {
                "fleet": FLEET,
                "identity": identities[device_id],
                "state_dir": directory / device_id,
                **({} if plan.gradients is None else {"mode": "gradients"}),
            },
            **({} if plan.gradients is None else {"gradients": dict(plan.gradients)}),
            "env": {
                "id": plan.env_id,
                "num_envs": plan.envs,
                "seed": (plan.seed * 1000 + number) * plan.envs,
            },
            **({"env.kwargs": env_kwargs} if env_kwargs else {}),
            "actor": {
                "chunk_steps": plan.chunk_steps,
                "max_chunks_per_policy": plan.ahead,
                "pace_timeout_s": plan.pace_timeout_s,
                **({"seed": plan.seed, "precision": "int8"} if plan.repeatable else {}),
            },
            **({"dispatch": {"enabled": True}} if "tasks" in plan.learner else {}),
            "broker": {"host": HOST, "port": mqtt_port},
            # A few devices beside the learner: nobody is hurt when they ask for it often.
            "parameter_server": {"host": HOST, "port": grpc_port, "backoff_cap_s": 0.2},
        }
    paths = {name: _write(directory / f"{name}.toml", tables) for name, tables in configs.items()}
    return Workspace(
        directory=directory,
        operator=identities["operator"],
        server=f"{HOST}:{grpc_port}",
        broker_port=mqtt_port,
        broker=_mosquitto(paths["broker"])
        if plan.mosquitto
        else Program("broker", ("broker", "run", "--config", str(paths["broker"]))),
        learner=Program(
            "learner",
            ("learner", "run", "--config", str(paths["learner"])),
            ("learner", "resume", "--config", str(paths["learner"])),
        ),
        agents=tuple(
            Program(name, ("agent", "run", "--config", str(paths[name])))
            for name in plan.device_ids
        ),
    )


def check_learner(path: Path, plan: DemoPlan, spec: EnvSpec | None = None) -> None:
    """Reads the learner's configuration with what flags say of it, before anything is started.

    Args:
        path: The configuration without the flags.
        plan: The flags.
        spec: What the devices act in; None: unknown.

    Raises:
        ConfigError: A key is unknown, a value of the wrong type or out of its range, the algorithm
            does not go with the rest or with the spaces, the network cannot be built, or what
            training starts from cannot be used.
    """
    from cloud_learner.config import LearnerConfig

    config = load_config(LearnerConfig, path, environ={}, overrides=plan.learner)
    training = config.training
    if (training.mode == "gradients") != (plan.gradients is not None):
        raise ConfigError(
            f"--set training.mode={training.mode}: learner and devices must agree, so give "
            f"--mode {'gradients' if training.mode == 'gradients' else 'trajectories'}"
        )
    own = any(key.startswith(_OF_A_BRAIN) for key in plan.learner)
    presets = PRESETS if plan.gradients is None else GRADIENT_PRESETS
    tried = (plan.env_id, plan.algorithm) in presets and not plan.env_kwargs
    usual = training.mode == "async" or (training.mode == "gradients" and not plan.learner)
    if tried and not own and config.init is None and usual:
        return  # presets are tested: torch need not be loaded to look at them again
    from cloud_learner.algorithms.interface import load_algorithm
    from cloud_learner.gradients.making import check_gradients
    from cloud_learner.training.sources import check_training

    choice = load_algorithm(training.algorithm, training.settings)
    check_training(training, choice)
    check_gradients(training, choice)
    if config.init is not None:
        from cloud_learner.training.start import read_init

        read_init(config, choice)
    if spec is not None:
        _check_spaces(spec, config, choice)


def _check_spaces(spec: EnvSpec, config: LearnerConfig, choice: Choice) -> None:
    """Builds what is to be trained, and throws it away."""
    from cloud_learner.gradients.making import live_of
    from cloud_learner.training.start import build_brain

    try:
        brain = build_brain(spec, config, choice)
        if config.training.mode == "gradients":
            live_of(brain, config)
    except ShoalError as error:
        raise ConfigError(f"{choice.path} cannot train in {spec.env_id}: {error}") from error


def _mosquitto(config: Path) -> Program:
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if program is None:
        raise ConfigError(
            "mosquitto is not installed: apt-get install mosquitto, or leave --broker"
        )
    user = pwd.getpwuid(os.getuid()).pw_name  # Mosquitto would leave root's account otherwise
    files = write_mosquitto_files(load_config(BrokerConfig, config, environ={}), user=user)
    return Program("broker", ("-c", str(files.config)), program=program)


def _write(path: Path, tables: dict[str, dict[str, object]]) -> Path:
    lines: list[str] = []
    for table, values in tables.items():
        if table:
            lines.append(f"\n[{table}]")
        lines.extend(f"{_key(key)} = {_toml(value)}" for key, value in values.items())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _toml(key)


def _toml(value: object) -> str:
    # Strings, finite numbers and flat lists are written the same way in JSON and in TOML.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_toml(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _free_ports(count: int) -> list[int]:
    holders = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports
