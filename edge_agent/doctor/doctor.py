"""What `shoal agent doctor` looks at: the machine, the clock, the way to the fleet, and the agent.

It starts no agent, and disturbs none that runs: what that holds is looked at from outside.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from cryptography import x509

from edge_agent.agent import policy_key
from edge_agent.checks.check import look_at_environment
from edge_agent.checks.finding import Finding, Level, fault, skipped
from edge_agent.checks.signers import signers
from edge_agent.config import AgentConfig
from edge_agent.doctor.certificate import judge_certificate
from edge_agent.doctor.clocks import Clock, judge_clock, synchronized
from edge_agent.doctor.disk import look_at_disk, look_at_spool
from edge_agent.doctor.machine import Machine
from edge_agent.doctor.network import (
    Server,
    judge_round_trips,
    judge_way,
    resolve,
    travel,
)
from edge_agent.downlink.downlink import open_channel, reach
from edge_agent.enrollment.address import Membership
from edge_agent.enrollment.enrollment import ask_time
from edge_agent.enrollment.validity import Dates
from edge_agent.slots import codec
from edge_agent.slots.layout import PREFIX
from edge_agent.slots.state import State
from edge_agent.spool.spool_look import look
from edge_agent.uplink.connection import Address, Connection
from shoal.endpoint import Endpoint
from shoal.errors import ConnectionFailed, DeadlineExceeded, IdentityError, ShoalError
from shoal.identity import Identity
from shoal.topics import Topics, check_device_id

SAMPLES: Final = 5
REACH_TIMEOUT_S: Final = 5.0
MAX_SLOTS_BYTES: Final = 1024 * 1024
_PING: Final = "/shoal.v1.ParameterServer/Ping"
"""Is not served: that answer costs a server nothing, and takes one round trip."""


@dataclass(frozen=True, slots=True)
class Examination:
    """How thoroughly to look.

    Attributes:
        offline: Whether to leave the network out.
        samples: How often each way is measured.
        prefix: Where slots are installed.
        machine: What is under the agent.
        clock: Wall clock, Unix seconds.
    """

    offline: bool = False
    samples: int = SAMPLES
    prefix: Path = PREFIX
    machine: Machine = field(default_factory=Machine)
    clock: Callable[[], float] = time.time


async def examine(config: AgentConfig, how: Examination) -> AsyncIterator[Finding]:
    """Looks at one thing after another; a fault never hides the next one.

    Args:
        config: Of the agent.
        how: How thoroughly.
    """
    identity, finding = _identity(config)
    yield finding
    chain = _chain(identity)
    yield _certificate(identity, chain, how.clock())
    yield await _clock(identity, chain, how)
    yield look_at_disk(config)
    for finding in how.machine.look():
        yield finding
    slots = look_at_slots(how.prefix)
    if slots is not None:
        yield slots
    yield look_at_spool(config)
    for finding in _environment(config):
        yield finding
    if how.offline:
        return
    async for finding in _network(config, identity, how):
        yield finding


def look_at_slots(prefix: Path) -> Finding | None:
    """What is installed beside what; None where nothing is installed in slots."""
    name, path = "slots", prefix / "slots.json"
    try:
        with path.open("rb") as file:
            state = codec.decode(file.read(MAX_SLOTS_BYTES + 1))
    except FileNotFoundError:
        return None
    except PermissionError:
        return Finding(name, Level.SKIPPED, f"{path}: this user may not read it")
    except (OSError, ValueError) as error:
        detail = f"{path}: damaged ({error}); `shoal-slots status` says more"
        return Finding(name, Level.FAULT, detail, 1)
    return judge_slots(state)


def judge_slots(state: State) -> Finding:
    """What runs, and whether it is on trial."""
    name = "slots"
    if state.current is None:
        return Finding(name, Level.WARN, "no slot was switched to yet")
    release = state.slot(state.current).release
    version = release.bundle_version if release is not None else "nothing"
    said = f"{version} runs, in slot {state.current}"
    if state.trial is None:
        return Finding(name, Level.OK, said)
    deaths = state.trial.deaths
    said += f", on trial ({state.trial.reason})"
    if not deaths:
        return Finding(name, Level.OK, said)
    detail = f"{said}: its agent died {deaths} times; it is gone back on if that goes on"
    return Finding(name, Level.WARN, detail, figures={"deaths": float(deaths)})


def _identity(config: AgentConfig) -> tuple[Identity | None, Finding]:
    try:
        identity = Identity.load(config.identity)
        check_device_id(identity.name)
        key = policy_key(identity)
    except ShoalError as error:
        return None, fault("identity", error)
    taken = signers(config.policies_dir, fleet=config.fleet, public_key=key)
    detail = f"{identity.name}, in {config.identity}; {taken}"
    return identity, Finding("identity", Level.OK, detail)


def _chain(identity: Identity | None) -> Sequence[x509.Certificate]:
    return () if identity is None else x509.load_pem_x509_certificates(identity.read_pems().cert)


def _certificate(
    identity: Identity | None, chain: Sequence[x509.Certificate], now_s: float
) -> Finding:
    if identity is None:
        return skipped("certificate")
    try:
        roots = x509.load_pem_x509_certificates(identity.read_pems().ca)
        renews = _enrollment(identity) is not None
    except (ShoalError, ValueError) as error:
        return fault("certificate", IdentityError(str(error)))
    return judge_certificate(chain, roots, now_s, renews=renews)


async def _clock(
    identity: Identity | None, chain: Sequence[x509.Certificate], how: Examination
) -> Finding:
    skew_s = None
    if identity is not None and not how.offline:
        try:
            server = _enrollment(identity)
            if server is not None:
                told_s = await ask_time(identity, server, timeout_s=REACH_TIMEOUT_S)
                skew_s = told_s - how.clock()
        except ShoalError:
            skew_s = None  # the network's findings say why
    dates = Dates.of(chain[0]) if chain else None
    return judge_clock(Clock(how.clock(), synchronized(), skew_s), dates)


def _enrollment(identity: Identity) -> Endpoint | None:
    membership = Membership.load(identity.directory)
    if membership is None or not membership.enrollment:
        return None
    return Endpoint.parse(membership.enrollment, what="the enrollment server")


def _environment(config: AgentConfig) -> Sequence[Finding]:
    """Not while an agent has it: hardware has one master."""
    try:
        in_use = look(config.spool_path).in_use
    except ShoalError as error:
        # Whether an agent moves the hardware can't be seen, as without permission: leave it alone.
        detail = f"nothing tells whether a running agent has it ({error}); run this as root"
        return [Finding("environment", Level.SKIPPED, detail)]
    if in_use:
        detail = "a running agent has it; it is not opened twice"
        return [Finding("environment", Level.SKIPPED, detail)]
    return look_at_environment(config)


async def _network(
    config: AgentConfig, identity: Identity | None, how: Examination
) -> AsyncIterator[Finding]:
    broker = Server("broker", config.broker.host, config.broker.port)
    learner = Server("server", config.parameter_server.host, config.parameter_server.port, ("h2",))
    for server, ask in (
        (broker, lambda known: _broker(config, known, how.samples)),
        (learner, lambda known: _parameter_server(config, known, how.samples)),
    ):
        named = await resolve(server)
        yield named
        answers = "broker" if server is broker else "parameter_server"
        if identity is None or named.level is Level.FAULT:
            needs = "identity" if identity is None else named.name
            yield skipped(f"{server.name}_tls", needs)
            yield skipped(answers, needs)
            continue
        way = await _way(server, identity, how)
        yield way
        if way.level is Level.FAULT:
            yield skipped(answers, way.name)
            continue
        yield await _asked(answers, ask, identity)


async def _asked(
    name: str, ask: Callable[[Identity], Awaitable[Finding]], identity: Identity
) -> Finding:
    try:
        return await ask(identity)
    except ShoalError as error:
        return fault(name, error)


async def _way(server: Server, identity: Identity, how: Examination) -> Finding:
    try:
        way = await travel(server, identity.ssl_context(), how.samples)
    except ShoalError as error:
        return fault(f"{server.name}_tls", error)
    return judge_way(server, way, how.clock())


async def _broker(config: AgentConfig, identity: Identity, samples: int) -> Finding:
    """Subscribing to its own acknowledgements is what an agent may always do."""
    broker, topic = config.broker, Topics(config.fleet).ack(identity.name)
    client_id = f"{identity.name}-doctor"
    address = Address(
        broker.host,
        broker.port,
        broker.keepalive_s,
        client_id,
        identity.ssl_context(),
        identity.name,
    )
    connection = await Connection.open(
        address, None, on_message=lambda _topic, _payload: None, on_lost=lambda: None
    )
    taken_s = []
    try:
        for _ in range(samples):
            began_s = time.monotonic()
            await connection.subscribe(topic, qos=0)
            taken_s.append(time.monotonic() - began_s)
    finally:
        connection.close()
    where = f"{broker.host}:{broker.port}"
    return judge_round_trips("broker", where, taken_s, f"accepts {identity.name}")


async def _parameter_server(config: AgentConfig, identity: Identity, samples: int) -> Finding:
    server = config.parameter_server
    version = await reach(server, identity, fleet=config.fleet, timeout_s=REACH_TIMEOUT_S)
    newest = f"its newest policy is version {version}" if version else "no policy is published yet"
    taken_s = []
    async with open_channel(server, identity) as channel:
        ping = channel.unary_unary(_PING, request_serializer=None, response_deserializer=None)
        for turn in range(samples + 1):
            began_s = time.monotonic()
            try:
                await ping(b"", timeout=REACH_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                _check_answered(error, f"parameter server {server.host}:{server.port}")
            if turn:  # the first one connects
                taken_s.append(time.monotonic() - began_s)
    said = f"answers {identity.name}; {newest}"
    return judge_round_trips("parameter_server", f"{server.host}:{server.port}", taken_s, said)


def _check_answered(error: grpc.aio.AioRpcError, where: str) -> None:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise DeadlineExceeded(f"{where}: no answer within {REACH_TIMEOUT_S:g} s") from error
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        raise ConnectionFailed(f"{where}: {error.details()}") from error
