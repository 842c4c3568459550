"""What `shoal agent check` looks at: everything an agent needs, without starting one."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509

from edge_agent.actor import Actor, Control
from edge_agent.agent import policy_key
from edge_agent.config import AgentConfig
from edge_agent.connection import Address, Connection
from edge_agent.downlink import reach
from edge_agent.env import make_env
from edge_agent.events import Events
from edge_agent.spool import Spool
from shoal.errors import IdentityError, ShoalError
from shoal.identity import Identity
from shoal.noise import RUN_ID_BYTES
from shoal.topics import Topics, check_device_id

REACH_TIMEOUT_S = 5.0
TRIAL_STEPS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found.

    Attributes:
        name: what was looked at.
        ok: whether an agent could use it.
        detail: one line for a person: what is there, or what is wrong and what to do.
        exit_code: 0, or the code of the error.
    """

    name: str
    ok: bool
    detail: str
    exit_code: int


async def check(config: AgentConfig) -> Sequence[Finding]:
    """Looks at everything, one thing after another; a fault never hides the next one."""
    looks: dict[str, Callable[[], Awaitable[str]]] = {
        "identity": lambda: _identity(config),
        "clock": lambda: _clock(config),
        "environment": lambda: _environment(config),
        "spool": lambda: _spool(config),
        "broker": lambda: _broker(config),
        "parameter_server": lambda: _parameter_server(config),
    }
    return [await _look(name, look) for name, look in looks.items()]


def exit_code(findings: Sequence[Finding]) -> int:
    """The code of the first fault, or 0."""
    return next((finding.exit_code for finding in findings if not finding.ok), 0)


async def _look(name: str, look: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(name, ok=True, detail=await look(), exit_code=0)
    except ShoalError as error:
        return Finding(name, ok=False, detail=str(error), exit_code=error.exit_code)


async def _identity(config: AgentConfig) -> str:
    identity = Identity.load(config.identity)
    check_device_id(identity.name)
    policy_key(identity)
    return f"{identity.name}, in {config.identity}"


async def _clock(config: AgentConfig) -> str:
    identity = Identity.load(config.identity)
    certificate = x509.load_pem_x509_certificate(identity.read_pems().cert)
    now = datetime.now(UTC)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < first:
        raise IdentityError(
            f"it is {now:%Y-%m-%d %H:%M} UTC here, and the certificate is valid from "
            f"{first:%Y-%m-%d %H:%M}: set the clock"
        )
    if now > last:
        raise IdentityError(
            f"the certificate expired at {last:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} here: renew it, or set the clock"
        )
    return f"{now:%Y-%m-%d %H:%M} UTC, certificate valid until {last:%Y-%m-%d}"


async def _environment(config: AgentConfig) -> str:
    with make_env(config.env) as envs:
        actor = Actor(
            envs,
            run_id=bytes(RUN_ID_BYTES),
            chunk_steps=1,
            control=Control(safe_action=config.actor.safe_action),
        )
        actor.safe_steps(TRIAL_STEPS)
        spec = envs.spec
    return (
        f"{spec.env_id} x {envs.num_envs}: {spec.observation} -> {spec.action}; "
        f"{TRIAL_STEPS} steps taken"
    )


async def _spool(config: AgentConfig) -> str:
    events = Events("check", bytes(RUN_ID_BYTES), clock=lambda: 0.0)
    with Spool(
        config.spool_path,
        max_bytes=config.spool.max_bytes,
        run_id=bytes(RUN_ID_BYTES),
        events=events,
    ) as spool:
        waiting = sum(run.spooled.count() for run in spool.ledger())
        return f"{config.spool_path}: {waiting} chunks wait, {spool.size_bytes} bytes"


async def _broker(config: AgentConfig) -> str:
    identity = Identity.load(config.identity)
    broker = config.broker
    tls: ssl.SSLContext = identity.ssl_context()
    client_id = f"{identity.name}-check"
    connection = await Connection.open(
        Address(broker.host, broker.port, broker.keepalive_s, client_id, tls),
        None,
        on_message=lambda _topic, _payload: None,
        on_lost=lambda: None,
    )
    try:
        await connection.subscribe(Topics(config.fleet).ack(identity.name), qos=0)
    finally:
        connection.close()
    return f"{broker.host}:{broker.port} accepts {identity.name}"


async def _parameter_server(config: AgentConfig) -> str:
    identity = Identity.load(config.identity)
    server = config.parameter_server
    version = await reach(server, identity, fleet=config.fleet, timeout_s=REACH_TIMEOUT_S)
    newest = f"its newest policy is version {version}" if version else "no policy is published yet"
    return f"{server.host}:{server.port} answers {identity.name}; {newest}"
