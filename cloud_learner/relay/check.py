"""Looks at all that a relay needs, and starts nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from cloud_learner.downlink.policy_client import fetch_policy
from cloud_learner.relay.app import load_identity, policy_key
from cloud_learner.relay.config import RelayConfig
from cloud_learner.relay.relay_store import RelayStore
from shoal.errors import ConnectionFailed, ShoalError
from shoal.identity import Identity

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one thing.

    Attributes:
        name: What was looked at.
        detail: One line for a person.
        exit_code: 0 when it is well.
    """

    name: str
    detail: str
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        """Whether it is well."""
        return self.exit_code == 0


def check(config: RelayConfig) -> list[Finding]:
    """Identity, state directory, port and upstream, in this order."""
    return [
        _find("identity", lambda: _identity(config)),
        _find("state_dir", lambda: _state_dir(config)),
        _find("port", lambda: _port(config)),
        _find("upstream", lambda: _upstream(config)),
    ]


def _find(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, look())
    except ShoalError as error:
        return Finding(name, str(error), error.exit_code)


def _identity(config: RelayConfig) -> str:
    identity = load_identity(config)
    policy_key(identity)
    return f"{identity.name}, of {config.identity}"


def _state_dir(config: RelayConfig) -> str:
    key = policy_key(Identity.load(config.identity))
    with RelayStore(
        config.state_dir / "policies", key, config.fleet, keep=config.policies_kept
    ) as store:
        kept = [info.manifest.version for info in store.list()]
    return f"policies {kept[-1]} to {kept[0]} are here" if kept else "no policy is here yet"


def _port(config: RelayConfig) -> str:
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return f"{host}:{port} is free"
    except OSError as error:
        raise ConnectionFailed(
            f"cannot listen on {host}:{port}: {error.strerror}; set server.host and server.port "
            "to free ones"
        ) from error


def _upstream(config: RelayConfig) -> str:
    host = f"[{config.upstream.host}]" if ":" in config.upstream.host else config.upstream.host
    where = f"{host}:{config.upstream.port}"
    identity = Identity.load(config.identity)
    advice = "are upstream.host and upstream.port right, and is `identity` of the same fleet?"
    newest = fetch_policy(where, identity, version=0, timeout_s=TIMEOUT_S, advice=advice)
    return f"{where} offers policy {newest.manifest.version}, proven"
