"""What `shoal agent check` looks at: everything an agent needs, without starting one."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from cryptography import x509

from edge_agent.actor import safe_actions
from edge_agent.agent import policy_key
from edge_agent.config import ActorConfig, AgentConfig
from edge_agent.connection import Address, Connection
from edge_agent.downlink import reach
from edge_agent.env import EnvironmentFault, Environments, make_env, one_line
from edge_agent.spool_look import look
from edge_agent.trial import Trial, attempt
from shoal.errors import IdentityError, ShoalError
from shoal.identity import Identity
from shoal.spaces import Discrete, observation_box
from shoal.topics import Topics, check_device_id

REACH_TIMEOUT_S = 5.0
_SPACE_CHARACTERS = 120


class Level(StrEnum):
    """How a look ended.

    `warn` does not keep an agent from running; `skipped` was not looked at, as what it needs has a
    fault of its own.
    """

    OK = "ok"
    WARN = "warn"
    FAULT = "fault"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look found.

    Attributes:
        name: what was looked at.
        level: whether an agent could use it.
        detail: one line for a person: what is there, or what is wrong and what to do.
        exit_code: 0, or the code of the error.
    """

    name: str
    level: Level
    detail: str
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        """Whether an agent could use it."""
        return self.level in (Level.OK, Level.WARN)


async def check(config: AgentConfig) -> Sequence[Finding]:
    """Looks at everything, one thing after another; a fault never hides the next one."""
    found = [await _look("identity", lambda: _identity(config))]
    try:
        identity = Identity.load(config.identity)
    except ShoalError:
        identity = None
    findings = [*found, await _clock(identity)]
    findings += _environment(config)
    findings.append(await _look("spool", lambda: _spool(config)))
    if identity is None:
        return [*findings, _skipped("broker"), _skipped("parameter_server")]
    known = identity
    findings.append(await _look("broker", lambda: _broker(config, known)))
    findings.append(await _look("parameter_server", lambda: _parameter_server(config, known)))
    return findings


def exit_code(findings: Sequence[Finding]) -> int:
    """The code of the first fault, or 0."""
    return next((each.exit_code for each in findings if each.level is Level.FAULT), 0)


async def _look(name: str, look_at: Callable[[], Awaitable[Finding | str]]) -> Finding:
    try:
        found = await look_at()
    except ShoalError as error:
        return _fault(name, error)
    return found if isinstance(found, Finding) else Finding(name, Level.OK, found)


def _fault(name: str, error: ShoalError) -> Finding:
    return Finding(name, Level.FAULT, str(error), error.exit_code)


def _skipped(name: str, needs: str = "identity") -> Finding:
    return Finding(name, Level.SKIPPED, f"it needs the {needs}, which has a fault")


async def _identity(config: AgentConfig) -> str:
    identity = Identity.load(config.identity)
    check_device_id(identity.name)
    policy_key(identity)
    return f"{identity.name}, in {config.identity}"


async def _clock(identity: Identity | None) -> Finding:
    if identity is None:
        return _skipped("clock")
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


def _environment(config: AgentConfig) -> Sequence[Finding]:
    try:
        with make_env(config.env) as envs:
            return [*_tried(envs, config), _safe_action(envs, config.actor)]
    except ShoalError as error:
        rest = ("step_time", "safe_action")
        return [_fault("environment", error), *(_skipped(name, "environment") for name in rest)]


def _tried(envs: Environments, config: AgentConfig) -> Sequence[Finding]:
    name, spec = "environment", envs.spec
    try:
        trial = attempt(envs.copies, observation_box(spec), seed=config.env.seed or 0)
    except EnvironmentFault as error:
        fault = EnvironmentFault(f"{spec.env_id}: {error}")
        return [_fault(name, fault), _skipped("step_time", name)]
    spaces = (envs.copies[0].observation_space, envs.copies[0].action_space)
    seen, does = (one_line(space, _SPACE_CHARACTERS) for space in spaces)
    detail = (
        f"{spec.env_id} x {envs.num_envs}: {seen} -> {does}; {trial.steps} steps taken,"
        f" {trial.episodes} episodes ended"
    )
    level = Level.WARN if trial.warnings else Level.OK
    finding = Finding(name, level, "; ".join([*trial.warnings, detail]))
    return [finding, step_time(trial, envs.num_envs, config.actor.control_hz)]


def step_time(trial: Trial, envs: int, control_hz: float | None) -> Finding:
    """Whether the environments alone leave time for a policy.

    Args:
        trial: how long they took.
        envs: how many are stepped one after another.
        control_hz: the rate to hold, steps of all environments a second; None: any.
    """
    took = f"one step takes {trial.step_ms:.3g} ms"
    took += f" ({envs} environments, one after another)" if envs > 1 else ""
    if control_hz is None:
        return Finding("step_time", Level.OK, f"{took}, without the policy; no control_hz is set")
    allowed_ms = 1000 / control_hz
    allows = f"control_hz = {control_hz:g} allows {allowed_ms:.3g} ms"
    if trial.step_ms > allowed_ms:
        advice = "lower actor.control_hz" + (" or env.num_envs" if envs > 1 else "")
        return Finding("step_time", Level.FAULT, f"{took}, {allows}: {advice}", exit_code=1)
    return Finding("step_time", Level.OK, f"{took}, without the policy; {allows}")


def _safe_action(envs: Environments, actor: ActorConfig) -> Finding:
    name, space = "safe_action", envs.spec.action
    try:
        action = safe_actions(space, actor.safe_action, 1)[0]
    except ShoalError as error:
        return _fault(name, error)
    shown = one_line((action + space.start if isinstance(space, Discrete) else action).tolist())
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
