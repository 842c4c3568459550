"""What an operator may set on a device: frozen dataclasses, checked where they are made.

`shoal.config.load_config(AgentConfig, path)` fills them from TOML, then `SHOAL_*`, then flags.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_agent.gradients.config import GradientsConfig
from edge_agent.slots.rules import Rules
from shoal.errors import ConfigError
from shoal.topics import check_fleet

MIN_SPOOL_BYTES = 64 * 1024
"""The smallest spool worth having, in bytes: less may not hold even one chunk."""
MAX_PORT = 65535
MAX_ENVS = 4096
MAX_CHUNK_STEPS = 65536
MAX_WINDOW_CHUNKS = 1024
_RULES = Rules()


def _within(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{name} is {value}: give a value between {low} and {high}")


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """The environments a device steps.

    Attributes:
        id: a gymnasium id ("CartPole-v1") or "module:attr" naming a callable that makes one.
        num_envs: how many copies are stepped together; N.
        seed: seed of the first copy (copy n gets seed + n); None draws from the system.
        kwargs: keyword arguments for the environment's constructor.
    """

    id: str
    num_envs: int = 1
    seed: int | None = None
    kwargs: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        if not self.id.strip():
            raise ConfigError('id is empty: name an environment, such as "CartPole-v1"')
        _within("num_envs", self.num_envs, 1, MAX_ENVS)
        if self.seed is not None:
            _within("seed", self.seed, 0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """How a device acts.

    Attributes:
        chunk_steps: T, steps in a chunk.
        control_hz: rate of control in steps a second; None acts as fast as it can.
        before_policy: what to do until the first policy arrives: "wait", or step "safe_action".
        safe_action: the action of one environment, numbers in its own terms, leaf after leaf; None
            means the first value of what is discrete, and zero within the bounds of a Box.
        max_chunks_per_policy: chunks to record under one version before waiting for a newer one;
            0 never waits.
        pace_timeout_s: how long that wait may last, in seconds; acting then goes on regardless.
        seed: of the noise that samples actions, for experiments that can be repeated; None draws it
            anew at each start.
        precision: "int8" acts as published, "fp32" with the float twin of what was published in
            int8, "int8_dynamic" with its dynamic twin, int8 whose ranges are found at every
            decision; "auto" with whichever of these is the fastest on this device and decides like
            int8. `shoal bench actor --config` shows what each costs here.
        appetite_lapse_s: seconds without a word of the learner after which what it wanted (a rate,
            and chunks of recent versions only) no longer counts; 0 never heeds it. A device with a
            `control_hz` never acts more slowly for it.
    """

    chunk_steps: int = 64
    control_hz: float | None = None
    before_policy: Literal["wait", "safe_action"] = "wait"
    safe_action: list[float] | None = None
    max_chunks_per_policy: int = 0
    pace_timeout_s: float = 1.0
    seed: int | None = None
    precision: Literal["auto", "int8", "fp32", "int8_dynamic"] = "int8"
    appetite_lapse_s: float = 10.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        _within("chunk_steps", self.chunk_steps, 1, MAX_CHUNK_STEPS)
        if self.control_hz is not None:
            _within("control_hz", self.control_hz, 0.001, 100_000.0)
        if self.before_policy not in ("wait", "safe_action"):
            raise ConfigError(
                f'before_policy is "{self.before_policy}": give "wait" or "safe_action"'
            )
        if self.precision not in ("auto", "int8", "fp32", "int8_dynamic"):
            raise ConfigError(
                f'precision is "{self.precision}": give "auto", "int8", "fp32" or "int8_dynamic"'
            )
        if self.safe_action is not None and not all(math.isfinite(x) for x in self.safe_action):
            raise ConfigError("safe_action has a non-finite number: give finite numbers")
        _within("max_chunks_per_policy", self.max_chunks_per_policy, 0, 2**31 - 1)
        _within("pace_timeout_s", self.pace_timeout_s, 0.0, 86_400.0)
        _within("appetite_lapse_s", self.appetite_lapse_s, 0.0, 86_400.0)
        if self.seed is not None:
            _within("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    """The bounded queue on the device's disk.

    Attributes:
        max_bytes: bytes of chunk bodies it may hold; beyond, the oldest chunks are dropped.
        compression: "balanced" leaves what compresses badly as it is, so that chunks are made and
            opened with the least work; "smallest" saves each byte, for links that are paid by it.
    """

    max_bytes: int = 256 * 1024 * 1024
    compression: Literal["balanced", "smallest"] = "balanced"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        _within("max_bytes", self.max_bytes, MIN_SPOOL_BYTES, 2**50)
        if self.compression not in ("balanced", "smallest"):
            raise ConfigError(f'compression is "{self.compression}": give "balanced" or "smallest"')


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Where trajectories go.

    Attributes:
        host: name or address of the MQTT broker, as its certificate has it.
        port: its TLS port.
        keepalive_s: MQTT keepalive in seconds; the broker fires the last will after 1.5 of them.
        window_chunks: W, chunks sent and not yet acknowledged by the learner at any one time.
        ack_timeout_s: seconds without an acknowledgement after which a chunk is sent again; it
            doubles with each resend of that chunk, up to a minute.
        learner_lost_s: seconds without any acknowledgement, while chunks wait, after which the
            learner is reported lost.
    """

    host: str = "127.0.0.1"
    port: int = 8883
    keepalive_s: int = 20
    window_chunks: int = 8
    ack_timeout_s: float = 5.0
    learner_lost_s: float = 15.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        _check_address(self.host, self.port)
        _within("keepalive_s", self.keepalive_s, 1, 65535)
        _within("window_chunks", self.window_chunks, 1, MAX_WINDOW_CHUNKS)
        _within("ack_timeout_s", self.ack_timeout_s, 0.05, 3600.0)
        _within("learner_lost_s", self.learner_lost_s, 0.1, 86_400.0)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where policies come from.

    Attributes:
        host: name or address of the parameter server, as its certificate has it.
        port: its gRPC port.
        backoff_cap_s: the longest wait, in seconds, before another attempt to reach it.
    """

    host: str = "127.0.0.1"
    port: int = 8443
    backoff_cap_s: float = 10.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        _check_address(self.host, self.port)
        _within("backoff_cap_s", self.backoff_cap_s, 0.01, 3600.0)


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """Whether the learner says which environments are stepped.

    Attributes:
        enabled: whether tasks are asked for; else the device steps its own `env`, always.
        env_ids: what a task may name besides the device's own `env.id`: as with that, code of this
            machine is run.
    """

    enabled: bool = False
    env_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialConfig:
    """When a slot that was switched to counts as working; the launcher reads it too.

    Attributes:
        acts: episodes to act, or as many chunks if no episode ends in these.
        deadline_s: seconds of running without that, the network not to blame, until the slot
            before is gone back to.
        deaths: of the agent in one boot, until then.
    """

    acts: int = _RULES.acts
    deadline_s: float = _RULES.deadline_s
    deaths: int = _RULES.deaths

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        _within("acts", self.acts, 1, 10_000)
        _within("deadline_s", self.deadline_s, 1.0, 30 * 86_400.0)
        _within("deaths", self.deaths, 1, 1_000)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything one device's agent is told.

        config = load_config(AgentConfig, Path("agent.toml"))

    Attributes:
        fleet: name of the fleet.
        identity: directory with ca.pem, cert.pem, key.pem and policy.pub.
        state_dir: directory the agent owns: its spool and its policies.
        telemetry_interval_s: seconds between two telemetry messages.
        mode: what leaves the device: "trajectories", or only "gradients" computed from them.
        gradients: how those are computed and pushed.
        trial: what a freshly installed version must do.
    """

    fleet: str
    identity: Path
    state_dir: Path
    env: EnvConfig
    actor: ActorConfig = field(default_factory=ActorConfig)
    spool: SpoolConfig = field(default_factory=SpoolConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    parameter_server: ServerConfig = field(default_factory=ServerConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    telemetry_interval_s: float = 1.0
    mode: Literal["trajectories", "gradients"] = "trajectories"
    gradients: GradientsConfig = field(default_factory=GradientsConfig)
    trial: TrialConfig = field(default_factory=TrialConfig)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value is out of its range.
        """
        check_fleet(self.fleet)
        _within("telemetry_interval_s", self.telemetry_interval_s, 0.05, 3600.0)

    @property
    def spool_path(self) -> Path:
        """The spool's file."""
        return self.state_dir / "spool.sqlite"

    @property
    def policies_dir(self) -> Path:
        """The directory of the policy store."""
        return self.state_dir / "policies"

    @property
    def updates_dir(self) -> Path:
        """Where bundles of the agent itself come in."""
        return self.state_dir / "updates"


def _check_address(host: str, port: int) -> None:
    if not host.strip():
        raise ConfigError("host is empty: give a name or an address")
    _within("port", port, 1, MAX_PORT)
