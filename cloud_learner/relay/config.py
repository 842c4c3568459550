"""A relay's configuration: frozen dataclasses, filled from TOML, ``SHOAL_*`` and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cloud_learner.config import ServerConfig, require
from cloud_learner.gradients.settings import MAX_UPDATE_BYTES
from cloud_learner.serving.grpc_server import MAX_REQUEST_BYTES
from shoal.topics import check_fleet

_MAX_PORT = 65_535
_MIN_KEPT, _MAX_KEPT = 2, 1024
_MAX_BACKOFF_S = 3600.0


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """Where policies come from: the learner's parameter server, or another relay."""

    host: str
    port: int = 50_051
    backoff_cap_s: float = 10.0

    def __post_init__(self) -> None:
        require(bool(self.host.strip()), "host", self.host, "a host name or an address")
        require(1 <= self.port <= _MAX_PORT, "port", self.port, "a port from 1 to 65535")
        require(
            0 < self.backoff_cap_s <= _MAX_BACKOFF_S,
            "backoff_cap_s",
            self.backoff_cap_s,
            "more than 0 and at most 3600 seconds",
        )


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Everything ``shoal relay run`` needs.

    ``identity`` is one of the role ``relay``: its certificate both watches upstream and is trusted
    by devices. ``policies_kept`` versions stay on disk, the newest always among them. A request of
    more than ``max_update_bytes`` is not read: at least as many as `gradients.max_update_bytes` of
    the learner, where that takes gradients.

    >>> load_config(RelayConfig, Path("relay.toml")).upstream.port
    50051
    """

    fleet: str
    identity: Path
    state_dir: Path
    upstream: UpstreamConfig
    server: ServerConfig = field(default_factory=ServerConfig)
    policies_kept: int = 8
    max_update_bytes: int = MAX_UPDATE_BYTES

    def __post_init__(self) -> None:
        check_fleet(self.fleet)
        require(
            _MIN_KEPT <= self.policies_kept <= _MAX_KEPT,
            "policies_kept",
            self.policies_kept,
            f"{_MIN_KEPT} to {_MAX_KEPT}",
        )
        require(
            self.max_update_bytes >= MAX_REQUEST_BYTES,
            "max_update_bytes",
            self.max_update_bytes,
            f"{MAX_REQUEST_BYTES} or more",
        )
