"""The learner's configuration: frozen dataclasses, filled from TOML, ``SHOAL_*`` and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from cloud_learner.dispatch.config import DispatchConfig, TaskConfig
from cloud_learner.gradients.settings import GradientsConfig
from shoal.errors import ConfigError
from shoal.validation import MAX_REWARD

_MAX_PORT = 65_535
_MAX_KEEPALIVE_S = 3600
_MIN_FILE_BYTES = 262_144
_MIN_POLICIES = 2
_TOO_HIGH_VERSION = 1 << 61
UNBOUNDED_LAG: Final = -1
"""``max_lag`` of a learner that trains from chunks of any age."""


def require(ok: bool, key: str, value: object, allowed: str) -> None:  # noqa: FBT001 - a guard
    """Checks a value of a configuration.

    Raises:
        ConfigError: It is not `ok`; the message names key, value and what is allowed.
    """
    if not ok:
        raise ConfigError(f"{key} = {value!r} is out of range: use {allowed}")


def _require_port(key: str, port: int, *, lowest: int) -> None:
    require(lowest <= port <= _MAX_PORT, key, port, f"a port from {lowest} to 65535")


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
        require(bool(self.host), "host", self.host, "a host name or an address")
        require(bool(self.client_id), "client_id", self.client_id, "a non-empty name")
        _require_port("port", self.port, lowest=1)
        require(
            1 <= self.keepalive_s <= _MAX_KEEPALIVE_S, "keepalive_s", self.keepalive_s, "1 to 3600"
        )
        require(
            0 < self.backoff_base_s <= self.backoff_cap_s,
            "backoff_base_s",
            self.backoff_base_s,
            f"more than 0, at most backoff_cap_s ({self.backoff_cap_s})",
        )
        require(
            self.session_renewal_s > 0,
            "session_renewal_s",
            self.session_renewal_s,
            "more than 0",
        )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the learner's gRPC services (ParameterServer, Fleet) listen.

    ``revocation_list`` is the fleet's CRL, followed while the learner runs: whom it names is turned
    away, open calls included.
    """

    host: str = "127.0.0.1"
    port: int = 50_051
    revocation_list: Path | None = None

    def __post_init__(self) -> None:
        require(bool(self.host), "host", self.host, "a host name or an address")
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
            require(value >= 1, f"{key}", value, "1 or more")
        require(self.ack_repeat_s > 0, "ack_repeat_s", self.ack_repeat_s, "more than 0")
        require(
            self.ack_repeat_window_s >= 0,
            "ack_repeat_window_s",
            self.ack_repeat_window_s,
            "0 or more",
        )


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """How much the journal keeps.

    ``retain_bytes`` bounds the bodies of chunks that are trained and checkpointed, or expired: the
    oldest go first and their keys stay; the disk is free again once a whole segment has gone.
    ``max_file_bytes`` is a hard cap on the file and its segments (0 = none); at the cap the
    journal refuses to grow exactly as on a full disk.
    """

    retain_bytes: int = 1_073_741_824
    max_file_bytes: int = 0

    def __post_init__(self) -> None:
        require(self.retain_bytes >= 0, "retain_bytes", self.retain_bytes, "0 or more")
        require(
            self.max_file_bytes == 0 or self.max_file_bytes >= _MIN_FILE_BYTES,
            "max_file_bytes",
            self.max_file_bytes,
            "0 (no cap) or 262144 and more",
        )


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Which network is trained; ``[training.network]``.

    ``kind`` is ``mlp``, ``cnn`` (a conv stack for every image, then dense layers), ``lstm`` or
    ``attention`` (the same with memory behind it), or ``module:function``: a torso of your own,
    called with ``(inputs, network)``, giving an ``nn.Sequential`` of Linear, ReLU and Tanh.
    ``auto`` is ``cnn`` where an observation has an image in it, else ``mlp``. ``hidden`` are the
    widths of the dense layers (behind a conv stack one of 512 is usual), ``filters`` those of the
    first layer of a conv stack, whose later layers have twice as many, ``memory`` is the
    number of LSTM units, or the width of keys and values of the attention, which looks back over
    ``window`` steps, the present one included. ``normalize`` shifts and scales numbers that are
    observed to mean 0 and variance 1; where gradients are pushed, by what devices tell of them
    (their ``gradients.share_moments``). ``quantization_aware`` trains the int8 policy itself.
    """

    kind: str = "auto"
    hidden: tuple[int, ...] = (64, 64)
    filters: int = 32
    memory: int = 64
    window: int = 16
    normalize: bool = False
    quantization_aware: bool = False

    def __post_init__(self) -> None:
        require(
            self.kind in {"auto", "mlp", "cnn", "lstm", "attention"} or ":" in self.kind,
            "kind",
            self.kind,
            "auto, mlp, cnn, lstm, attention or a path module:function",
        )
        require(
            len(self.hidden) >= 1 and all(width >= 1 for width in self.hidden),
            "hidden",
            self.hidden,
            "one or more widths of 1 or more",
        )
        require(self.filters >= 1, "filters", self.filters, "1 or more")
        require(self.memory >= 1, "memory", self.memory, "1 or more")
        require(self.window > 1, "window", self.window, "2 or more steps")


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What is trained, from how much, and how often it is published.

    ``algorithm`` names a class, which says whether it trains from rollouts, each once, or from
    transitions, drawn many times; ``settings`` are its own. ``batch_steps`` (of rollouts) and
    ``replay_steps`` count transitions; ``publish_interval`` and ``max_lag`` count optimiser
    updates. Left out, ``max_lag`` is 128 for rollouts and unbounded for transitions, -1 is
    unbounded; ``replay_steps`` is 65,536 and 1,000,000, and ``replay_bytes`` bounds the memory of
    transitions: of large observations it holds fewer. ``publish_interval = 0`` publishes after
    every batch of rollouts, and every 100 updates from transitions. A learner that is about to wait
    for data publishes what it has, and while it only stores transitions a version for whatever
    came, so that devices which pace themselves by versions never stall. While two batches of
    rollouts or more wait, up to ``catch_up_batches`` are trained between publications.
    ``kl_quantization_max`` nats are what int8 may cost, or the next precision is published: left
    out, 0.01 for rollouts, whose importance weights feel it, and 0.1 for transitions, whose
    algorithms have none. ``dead_zone`` is how far beyond its cell, in steps, a weight goes before
    its integer moves: fewer integers change from version to version, so refreshes are smaller; 0
    rounds to the nearest. A chunk with a reward over ``max_reward``, of either sign, is rejected:
    squares of its returns would be no float32 numbers any more.

    ``mode = "lockstep"`` is deterministic: a batch is the ``lockstep_chunks`` chunks that each of
    ``lockstep_devices`` devices made under the newest version, in the order of their names. Where
    transitions are trained from, these go into replay and the updates that they pay for are made.
    ``mode = "sync"`` is the synchronous baseline: a batch is the ``lockstep_chunks`` chunks of each
    device that is present, however many there are; who is lost is waited for no longer, who comes
    takes part from the next version on.

    ``mode = "gradients"``: devices with the same mode compute gradients and push them, see
    ``[gradients]``; no trajectories come here.
    """

    algorithm: str = "cloud_learner.algorithms.appo:APPO"
    network: NetworkConfig = field(default_factory=NetworkConfig)
    settings: dict[str, object] = field(default_factory=dict)
    mode: Literal["async", "sync", "lockstep", "gradients"] = "async"
    batch_steps: int = 2048
    publish_interval: int = 0
    max_lag: int | None = None
    catch_up_batches: int = 4
    replay_steps: int | None = None
    replay_bytes: int = 2_147_483_648
    lockstep_devices: int = 1
    lockstep_chunks: int = 1
    threads: int = 1
    kl_quantization_max: float | None = None
    dead_zone: float = 0.25
    max_reward: float = MAX_REWARD

    def __post_init__(self) -> None:
        require(self.batch_steps >= 1, "batch_steps", self.batch_steps, "1 or more")
        require(self.publish_interval >= 0, "publish_interval", self.publish_interval, "0 or more")
        require(self.catch_up_batches >= 1, "catch_up_batches", self.catch_up_batches, "1 or more")
        require(
            self.max_lag is None or self.max_lag >= UNBOUNDED_LAG,
            "max_lag",
            self.max_lag,
            "0 or more updates, -1 for unbounded, or leave it out",
        )
        require(
            self.replay_steps is None or self.replay_steps >= self.batch_steps,
            "replay_steps",
            self.replay_steps,
            f"batch_steps ({self.batch_steps}) or more",
        )
        require(self.replay_bytes >= 1 << 20, "replay_bytes", self.replay_bytes, "1048576 or more")
        for key in ("threads", "lockstep_devices", "lockstep_chunks"):
            count: int = getattr(self, key)
            require(count >= 1, key, count, "1 or more")
        require(":" in self.algorithm, "algorithm", self.algorithm, "a path module:Class")
        require(
            self.kl_quantization_max is None or self.kl_quantization_max > 0.0,
            "kl_quantization_max",
            self.kl_quantization_max,
            "more than 0 nats",
        )
        require(0.0 <= self.dead_zone <= 1.0, "dead_zone", self.dead_zone, "0 to 1 step")
        require(self.max_reward > 0.0, "max_reward", self.max_reward, "more than 0")

    @property
    def waits_for_devices(self) -> bool:
        """Whether each version waits for what devices make under the one before."""
        return self.mode in ("sync", "lockstep")


@dataclass(frozen=True, slots=True)
class AppetiteConfig:
    """What devices are told of what the learner can use.

    Every ``interval_s`` each learns the oldest policy version whose chunks are within ``max_lag``,
    and expires what is older before it is sent. ``limit_rate`` also tells them how many transitions
    a second are wanted while the learner cannot use all that they make.
    """

    interval_s: float = 1.0
    limit_rate: bool = True

    def __post_init__(self) -> None:
        require(self.interval_s > 0, "interval_s", self.interval_s, "more than 0")


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Everything ``shoal learner run`` needs.

    >>> config = load_config(LearnerConfig, Path("learner.toml"))
    >>> config.training.batch_steps
    2048

    ``init`` is a file that training starts from: a policy that was exported in fp32, or a
    checkpoint. A policy brings weights and normalizer; a checkpoint all that the algorithm had,
    optimiser and critic too, and its updates are counted on, which schedules follow. Versions,
    journal and replay start anew either way. A checkpoint in ``state_dir`` goes before it.

    ``policies_kept`` versions stay, more while all have no more than ``policies_retain_bytes``, so
    that decisions can be made again (`shoal reproduce`), and of those before
    ``policies_per_doubling`` for each doubling of the distance, so that a rollout can go far back.

    ``policies_after_version`` is for a fleet whose learner lost its ``state_dir``: new policy
    versions are above it, as devices accept nothing below what they hold.
    """

    fleet: str
    identity: Path
    state_dir: Path
    seed: int = 0
    init: Path | None = None
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    ingest: IngestConfig = field(default_factory=IngestConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    gradients: GradientsConfig = field(default_factory=GradientsConfig)
    appetite: AppetiteConfig = field(default_factory=AppetiteConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    tasks: tuple[TaskConfig, ...] = ()
    checkpoint_interval_s: float = 2.0
    policies_kept: int = 64
    policies_retain_bytes: int = 67_108_864
    policies_per_doubling: int = 4
    policies_after_version: int = 0
    tensorboard: bool = True

    def __post_init__(self) -> None:
        require(bool(self.fleet), "fleet", self.fleet, "the fleet's name")
        require(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        require(
            self.checkpoint_interval_s >= 0.0,
            "checkpoint_interval_s",
            self.checkpoint_interval_s,
            "0 (at every publish) or more",
        )
        require(
            self.policies_kept >= _MIN_POLICIES, "policies_kept", self.policies_kept, "2 or more"
        )
        require(
            self.policies_retain_bytes >= 0,
            "policies_retain_bytes",
            self.policies_retain_bytes,
            "0 or more",
        )
        require(
            self.policies_per_doubling >= 0,
            "policies_per_doubling",
            self.policies_per_doubling,
            "0 (none) or more",
        )
        require(
            0 <= self.policies_after_version < _TOO_HIGH_VERSION,
            "policies_after_version",
            self.policies_after_version,
            "0 to 2^61 - 1, the highest version that a device holds",
        )
