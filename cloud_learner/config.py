"""The learner's configuration: frozen dataclasses, filled from TOML, ``SHOAL_*`` and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import ConfigError

_MAX_PORT = 65_535
_MAX_KEEPALIVE_S = 3600
_MIN_FILE_BYTES = 65_536
_MIN_POLICIES = 2
_TOO_HIGH_VERSION = 1 << 61


def _require(ok: bool, key: str, value: object, allowed: str) -> None:  # noqa: FBT001 - a guard
    if not ok:
        raise ConfigError(f"{key} = {value!r} is out of range: use {allowed}")


def _require_port(key: str, port: int, *, lowest: int) -> None:
    _require(lowest <= port <= _MAX_PORT, key, port, f"a port from {lowest} to 65535")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Where the MQTT broker is and how the learner keeps its session with it.

    ``client_id`` is stable: the broker queues QoS 1 messages for it while the learner restarts.
    """

    host: str = "127.0.0.1"
    port: int = 8883
    client_id: str = "shoal-learner"
    keepalive_s: int = 30
    backoff_base_s: float = 0.1
    backoff_cap_s: float = 5.0
    session_renewal_s: float = 60.0

    def __post_init__(self) -> None:
        _require(bool(self.host), "host", self.host, "a host name or an address")
        _require(bool(self.client_id), "client_id", self.client_id, "a non-empty name")
        _require_port("port", self.port, lowest=1)
        _require(
            1 <= self.keepalive_s <= _MAX_KEEPALIVE_S, "keepalive_s", self.keepalive_s, "1 to 3600"
        )
        _require(
            0 < self.backoff_base_s <= self.backoff_cap_s,
            "backoff_base_s",
            self.backoff_base_s,
            f"more than 0, at most backoff_cap_s ({self.backoff_cap_s})",
        )
        _require(
            self.session_renewal_s > 0,
            "session_renewal_s",
            self.session_renewal_s,
            "more than 0",
        )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the learner's gRPC services (ParameterServer, Fleet) listen."""

    host: str = "127.0.0.1"
    port: int = 50_051

    def __post_init__(self) -> None:
        _require(bool(self.host), "host", self.host, "a host name or an address")
        _require_port("port", self.port, lowest=0)


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """Bounds of the way from the broker into the journal.

    When ``max_queued_messages`` wait, the newest is dropped and counted: its device sends it again.
    """

    max_queued_messages: int = 4096
    max_batch_messages: int = 256
    max_message_bytes: int = 1_048_576
    ack_repeat_s: float = 1.0
    ack_repeat_window_s: float = 5.0

    def __post_init__(self) -> None:
        for key in ("max_queued_messages", "max_batch_messages", "max_message_bytes"):
            value: int = getattr(self, key)
            _require(value >= 1, f"{key}", value, "1 or more")
        _require(self.ack_repeat_s > 0, "ack_repeat_s", self.ack_repeat_s, "more than 0")
        _require(
            self.ack_repeat_window_s >= 0,
            "ack_repeat_window_s",
            self.ack_repeat_window_s,
            "0 or more",
        )


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """How much the journal keeps.

    ``retain_bytes`` bounds the bodies of chunks that are trained and checkpointed, or expired: the
    oldest go first and their keys stay. ``max_file_bytes`` is a hard cap on the file (0 = none);
    at the cap the journal refuses to grow exactly as on a full disk.
    """

    retain_bytes: int = 1_073_741_824
    max_file_bytes: int = 0

    def __post_init__(self) -> None:
        _require(self.retain_bytes >= 0, "retain_bytes", self.retain_bytes, "0 or more")
        _require(
            self.max_file_bytes == 0 or self.max_file_bytes >= _MIN_FILE_BYTES,
            "max_file_bytes",
            self.max_file_bytes,
            "0 (no cap) or 65536 and more",
        )


@dataclass(frozen=True, slots=True)
class AppoConfig:
    """Hyper-parameters of APPO (see ``cloud_learner.algorithms.appo``)."""

    gamma: float = 0.99
    trace_lambda: float = 0.95
    rho_bar: float = 1.0
    c_bar: float = 1.0
    clip: float = 0.2
    dual_clip: float | None = None
    entropy_coef: float = 0.005
    value_coef: float = 0.5
    value_loss: str = "huber"
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        for key in ("gamma", "trace_lambda"):
            value: float = getattr(self, key)
            _require(0.0 <= value <= 1.0, f"{key}", value, "0 to 1")
        for key in ("rho_bar", "c_bar", "clip"):
            value = getattr(self, key)
            _require(value > 0.0, f"{key}", value, "more than 0")
        for key in ("entropy_coef", "value_coef"):
            value = getattr(self, key)
            _require(value >= 0.0, f"{key}", value, "0 or more")
        _require(
            self.dual_clip is None or self.dual_clip > 1.0,
            "dual_clip",
            self.dual_clip,
            "more than 1, or leave it out",
        )
        _require(
            self.value_loss in {"mse", "clipped", "huber"},
            "value_loss",
            self.value_loss,
            "mse, clipped or huber",
        )


@dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """How one batch becomes optimiser updates: Adam over ``epochs`` x ``minibatches``."""

    learning_rate: float = 1e-3
    final_learning_rate: float | None = None
    anneal_updates: int = 0
    adam_eps: float = 1e-5
    epochs: int = 4
    minibatches: int = 4
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        for key in ("learning_rate", "adam_eps", "max_grad_norm"):
            value: float = getattr(self, key)
            _require(value > 0.0, f"{key}", value, "more than 0")
        for key in ("epochs", "minibatches"):
            count: int = getattr(self, key)
            _require(count >= 1, f"{key}", count, "1 or more")
        _require(
            self.anneal_updates >= 0,
            "anneal_updates",
            self.anneal_updates,
            "0 (constant) or more",
        )


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What is trained, from how much, and how often it is published.

    ``batch_steps`` and ``replay_steps`` count transitions; ``publish_interval`` and ``max_lag``
    count optimiser updates (``publish_interval = 0`` publishes after every batch). While two
    batches or more wait, up to ``catch_up_batches`` are trained between publications, so that
    devices which pace themselves by policy versions let the learner catch up.
    """

    batch_steps: int = 2048
    publish_interval: int = 0
    max_lag: int = 128
    catch_up_batches: int = 4
    replay_steps: int = 65_536
    threads: int = 1
    algorithm: str = "cloud_learner.algorithms.appo:APPO"
    hidden: tuple[int, ...] = (64, 64)
    kl_quantization_max: float = 0.01
    appo: AppoConfig = field(default_factory=AppoConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        _require(self.batch_steps >= 1, "batch_steps", self.batch_steps, "1 or more")
        _require(
            self.publish_interval >= 0,
            "publish_interval",
            self.publish_interval,
            "0 (each batch) or more",
        )
        _require(self.catch_up_batches >= 1, "catch_up_batches", self.catch_up_batches, "1 or more")
        _require(self.max_lag >= 0, "max_lag", self.max_lag, "0 or more updates")
        _require(
            self.replay_steps >= self.batch_steps,
            "replay_steps",
            self.replay_steps,
            f"batch_steps ({self.batch_steps}) or more",
        )
        _require(self.threads >= 1, "threads", self.threads, "1 or more")
        _require(":" in self.algorithm, "algorithm", self.algorithm, "a path module:Class")
        _require(
            len(self.hidden) >= 1 and all(width >= 1 for width in self.hidden),
            "hidden",
            self.hidden,
            "one or more widths of 1 or more",
        )
        _require(
            self.kl_quantization_max > 0.0,
            "kl_quantization_max",
            self.kl_quantization_max,
            "more than 0 nats",
        )


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Everything ``shoal learner run`` needs.

    >>> config = load_config(LearnerConfig, Path("learner.toml"))
    >>> config.training.max_lag
    128

    ``policies_after_version`` is for a fleet whose learner lost its ``state_dir``: new policy
    versions are above it, as devices accept nothing below what they hold.
    """

    fleet: str
    identity: Path
    state_dir: Path
    seed: int = 0
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint_interval_s: float = 2.0
    policies_kept: int = 64
    policies_after_version: int = 0
    tensorboard: bool = True

    def __post_init__(self) -> None:
        _require(bool(self.fleet), "fleet", self.fleet, "the fleet's name")
        _require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        _require(
            self.checkpoint_interval_s >= 0.0,
            "checkpoint_interval_s",
            self.checkpoint_interval_s,
            "0 (at every publish) or more",
        )
        _require(
            self.policies_kept >= _MIN_POLICIES, "policies_kept", self.policies_kept, "2 or more"
        )
        _require(
            0 <= self.policies_after_version < _TOO_HIGH_VERSION,
            "policies_after_version",
            self.policies_after_version,
            "0 to 2^61 - 1, the highest version that a device holds",
        )
