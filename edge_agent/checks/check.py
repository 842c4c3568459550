"""What `shoal agent check` looks at: everything an agent needs, without starting one."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from cryptography import x509

from edge_agent.acting.safe_action import own_terms, safe_actions
from edge_agent.agent import policy_key
from edge_agent.checks.env_check import step_time
from edge_agent.checks.finding import Finding, Level, fault, skipped
from edge_agent.checks.signers import signers
from edge_agent.checks.trial import attempt
from edge_agent.config import ActorConfig, AgentConfig
from edge_agent.downlink.downlink import reach
from edge_agent.environments.env import EnvironmentFault, Environments, make_env, one_line
from edge_agent.gradients.worker import find_worker
from edge_agent.spool.spool_look import look
from edge_agent.uplink.connection import Address, Connection
from shoal.errors import IdentityError, ShoalError
from shoal.identity import Identity
from shoal.spaces import Discrete
from shoal.topics import Topics, check_device_id

REACH_TIMEOUT_S = 5.0
_SPACE_CHARACTERS = 120


async def check(config: AgentConfig) -> Sequence[Finding]:
    """Looks at everything, one thing after another; a fault never hides the next one."""
    found = [await _look("identity", lambda: _identity(config))]
    try:
        identity = Identity.load(config.identity)
    except ShoalError:
        identity = None
    findings = [*found, await _clock(identity)]
    findings += look_at_environment(config)
    if config.mode == "gradients":
        findings.append(await _look("gradients", lambda: _gradients(config)))
    findings.append(await _look("spool", lambda: _spool(config)))
    if identity is None:
        return [*findings, skipped("broker"), skipped("parameter_server")]
    known = identity
    findings.append(await _look("broker", lambda: _broker(config, known)))
    findings.append(await _look("parameter_server", lambda: _parameter_server(config, known)))
    return findings


async def _look(name: str, look_at: Callable[[], Awaitable[Finding | str]]) -> Finding:
    try:
        found = await look_at()
    except ShoalError as error:
        return fault(name, error)
    return found if isinstance(found, Finding) else Finding(name, Level.OK, found)


async def _identity(config: AgentConfig) -> str:
    identity = Identity.load(config.identity)
    check_device_id(identity.name)
    key = policy_key(identity)
    taken = signers(config.policies_dir, fleet=config.fleet, public_key=key)
    return f"{identity.name}, in {config.identity}; {taken}"


async def _clock(identity: Identity | None) -> Finding:
    if identity is None:
        return skipped("clock")
    return await _look("clock", lambda: _certificate_dates(identity))


async def _certificate_dates(identity: Identity) -> str:
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


def look_at_environment(config: AgentConfig) -> Sequence[Finding]:
    """The environment of a configuration, its pace, and the action that is safe in it."""
    try:
        with make_env(config.env) as envs:
            return [*_tried(envs, config), _safe_action(envs, config.actor)]
    except ShoalError as error:
        rest = ("step_time", "safe_action")
        return [fault("environment", error), *(skipped(name, "environment") for name in rest)]


def _tried(envs: Environments, config: AgentConfig) -> Sequence[Finding]:
    name, spec = "environment", envs.spec
    try:
        trial = attempt(envs.copies, spec.observation, seed=config.env.seed or 0)
    except EnvironmentFault as error:
        named = EnvironmentFault(f"{spec.env_id}: {error}")
        return [fault(name, named), skipped("step_time", name)]
    spaces = (envs.copies[0].observation_space, envs.copies[0].action_space)
    seen, does = (one_line(space, _SPACE_CHARACTERS) for space in spaces)
    detail = (
        f"{spec.env_id} x {envs.num_envs}: {seen} -> {does}; {trial.steps} steps taken,"
        f" {trial.episodes} episodes ended"
    )
    level = Level.WARN if trial.warnings else Level.OK
    finding = Finding(name, level, "; ".join([*trial.warnings, detail]))
    return [finding, step_time(trial, envs.num_envs, config.actor.control_hz)]


def _safe_action(envs: Environments, actor: ActorConfig) -> Finding:
    name, space = "safe_action", envs.spec.action
    try:
        action = safe_actions(space, actor.safe_action, 1)[0]
    except ShoalError as error:
        return fault(name, error)
    numbers = own_terms(space, action)
    shown = one_line(numbers[0] if isinstance(space, Discrete) else numbers)
    used = actor.before_policy == "safe_action"
    detail = (
        f'before_policy = "safe_action" takes action {shown} until there is a policy'
        if used
        else "nothing acts before there is a policy;"
        f' before_policy = "safe_action" would take action {shown}'
    )
    if actor.safe_action is None and isinstance(space, Discrete):
        # Zero brought within the bounds is a fair guess for a Box; the first of n choices is none.
        level = Level.WARN if used else Level.OK
        return Finding(name, level, f"{detail}; set actor.safe_action if that moves something")
    return Finding(name, Level.OK, detail)


async def _gradients(config: AgentConfig) -> str:
    gradients = config.gradients
    find_worker(gradients.worker)
    return (
        f"{gradients.worker} computes {gradients.passes} of each chunk of "
        f"{gradients.chunk_steps(config.env.num_envs)} steps, pushed as {gradients.codec}"
    )


async def _spool(config: AgentConfig) -> Finding | str:
    path = config.spool_path
    seen = look(path)
    if not seen.exists:
        return f"{path}: none yet; the agent makes it"
    if seen.in_use:
        return f"{path}: in use by a running agent"
    if seen.damaged:
        detail = f"{path}: damaged; the agent sets it aside and begins a new one"
        return Finding("spool", Level.WARN, detail)
    return f"{path}: {seen.chunks} chunks wait, {seen.size_bytes} bytes"


async def _broker(config: AgentConfig, identity: Identity) -> str:
    broker = config.broker
    tls: ssl.SSLContext = identity.ssl_context()
    client_id = f"{identity.name}-check"
    connection = await Connection.open(
        Address(broker.host, broker.port, broker.keepalive_s, client_id, tls, identity.name),
        None,
        on_message=lambda _topic, _payload: None,
        on_lost=lambda: None,
    )
    try:
        await connection.subscribe(Topics(config.fleet).ack(identity.name), qos=0)
    finally:
        connection.close()
    return f"{broker.host}:{broker.port} accepts {identity.name}"


async def _parameter_server(config: AgentConfig, identity: Identity) -> str:
    server = config.parameter_server
    version = await reach(server, identity, fleet=config.fleet, timeout_s=REACH_TIMEOUT_S)
    newest = f"its newest policy is version {version}" if version else "no policy is published yet"
    return f"{server.host}:{server.port} answers {identity.name}; {newest}"
