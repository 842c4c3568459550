"""The way to a server: its name, its port, its TLS, and how long each takes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cryptography import x509

from edge_agent.checks.finding import Finding, Level
from edge_agent.enrollment.validity import Dates, length
from shoal.errors import ConnectionFailed, DeadlineExceeded

DNS_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 5.0
SLOW_S: Final = 0.5
"""A way this long makes policies late and spools grow, be it as reliable as it may."""
ENDS_SOON_S: Final = 7 * 86_400.0
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python has no name for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """One of the fleet's servers.

    Attributes:
        name: What findings call it.
        host: Name or address.
        port: TCP.
        protocols: ALPN, as its clients offer it.
    """

    name: str
    host: str
    port: int
    protocols: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Way:
    """What several connections took, seconds each, and the server's certificate."""

    tcp_s: list[float] = field(default_factory=list)
    tls_s: list[float] = field(default_factory=list)
    certificate: x509.Certificate | None = None


async def resolve(server: Server) -> Finding:
    """Whether the host's name is known."""
    name = f"{server.name}_dns"
    try:
        ipaddress.ip_address(server.host)
    except ValueError:
        pass
    else:
        return Finding(name, Level.OK, f"{server.host} is an address: nothing to look up")
    began_s = time.monotonic()
    try:
        found = await in_daemon(
            lambda: socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM),
            timeout_s=DNS_TIMEOUT_S,
        )
    except TimeoutError:
        detail = f"{server.host}: no answer within {DNS_TIMEOUT_S:g} s; check /etc/resolv.conf"
        return Finding(name, Level.FAULT, detail, 3)
    except (OSError, UnicodeError) as error:
        detail = f"{server.host}: {error}; check the name, and /etc/resolv.conf"
        return Finding(name, Level.FAULT, detail, 2)
    taken_s = time.monotonic() - began_s
    addresses = sorted({str(each[4][0]) for each in found})
    detail = f"{server.host} is {', '.join(addresses[:4])}, known in {taken_s * 1000:.1f} ms"
    figures = {"dns_ms": taken_s * 1000}
    if taken_s > SLOW_S:
        detail += ": a slow name server; another one, or the address itself, is faster"
        return Finding(name, Level.WARN, detail, figures=figures)
    return Finding(name, Level.OK, detail, figures=figures)


async def travel(server: Server, context: ssl.SSLContext, samples: int) -> Way:
    """Connects several times and shakes hands, one after another.

    Args:
        server: Where to.
        context: A client's; what it says of dates is set aside, for the clock to be judged apart.
        samples: How often.

    Raises:
        ConnectionFailed: It can't be reached, or is not of this fleet, or not of that name.
        DeadlineExceeded: It did not answer in time.
    """
    context.verify_flags |= _NO_CHECK_TIME
    if server.protocols:
        context.set_alpn_protocols(list(server.protocols))
    way = Way()
    for _ in range(samples):
        try:
            await in_daemon(lambda: _travel_once(server, context, way), timeout_s=None)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{server}: no answer within {CONNECT_TIMEOUT_S:g} s; check host, port and firewall"
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"{server}: {explain(error)}") from error
    return way


def judge_way(server: Server, way: Way, now_s: float) -> Finding:
    """What it took, and what the server's certificate says.

    Args:
        server: Where to.
        way: What was measured.
        now_s: This device's clock, Unix seconds.
    """
    name = f"{server.name}_tls"
    tcp_s, tls_s = statistics.median(way.tcp_s), statistics.median(way.tls_s)
    times = len(way.tcp_s)
    figures = {"tcp_ms": tcp_s * 1000, "tls_ms": tls_s * 1000, "samples": float(times)}
    said = f"{server}: TCP {tcp_s * 1000:.1f} ms, TLS {tls_s * 1000:.1f} ms (median of {times})"
    if way.certificate is not None:
        dates = Dates.of(way.certificate)
        figures["certificate_left_s"] = dates.last_s - now_s
        if not dates.holds(now_s):
            early = now_s < dates.first_s
            detail = f"{said}; by this device's clock its certificate " + (
                f"begins in {length(dates.first_s - now_s)}: the clock is behind"
                if early
                else f"ended {length(now_s - dates.last_s)} ago: the clock is ahead, or the server"
                " needs another certificate"
            )
            return Finding(name, Level.FAULT, detail, 2, figures)
        left_s = dates.last_s - now_s
        said += f"; its certificate is valid for {length(left_s)}"
        if left_s < ENDS_SOON_S:
            return Finding(
                name, Level.WARN, f"{said}: have the operator issue another", figures=figures
            )
    if tcp_s > SLOW_S:
        detail = f"{said}; far away: policies come late, and chunks leave slowly"
        return Finding(name, Level.WARN, detail, figures=figures)
    return Finding(name, Level.OK, said, figures=figures)


def judge_round_trips(name: str, where: str, taken_s: Sequence[float], said: str) -> Finding:
    """What questions and answers took.

    Args:
        name: Of the finding.
        where: The server.
        taken_s: Seconds each.
        said: What the server's first answer was.
    """
    median_s = statistics.median(taken_s)
    figures = {"round_trip_ms": median_s * 1000, "samples": float(len(taken_s))}
    detail = f"{where} {said}; round trip {median_s * 1000:.1f} ms (median of {len(taken_s)})"
    level = Level.WARN if median_s > SLOW_S else Level.OK
    return Finding(name, level, detail, figures=figures)


def explain(error: OSError) -> str:
    """One line for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): check that ca.pem is this"
            " fleet's, and that the certificate names this host"
        )
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: check host and port, and that it runs"
    if isinstance(error, ssl.SSLError):
        return (
            f"it does not speak TLS as it should ({error.reason or error}): is it the right port?"
        )
    return f"{error.strerror or error}: check the network"


async def in_daemon(work: Callable[[], T], *, timeout_s: float | None) -> T:
    """Runs blocking work in a thread that never keeps the process from ending.

    Raises:
        TimeoutError: It took longer; the thread is left behind.
        Exception: What the work raised.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(value: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type] # it is one where there is no error

    def run() -> None:
        value, failure = None, None
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 handed to whoever waits
            failure = error
        try:
            loop.call_soon_threadsafe(finish, value, failure)
        except RuntimeError:  # the loop has ended: nobody waits any more
            return

    threading.Thread(target=run, name="doctor", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await done


def _travel_once(server: Server, context: ssl.SSLContext, way: Way) -> None:
    began_s = time.monotonic()
    with socket.create_connection((server.host, server.port), timeout=CONNECT_TIMEOUT_S) as plain:
        connected_s = time.monotonic()
        with context.wrap_socket(plain, server_hostname=server.host) as secure:
            way.tcp_s.append(connected_s - began_s)
            way.tls_s.append(time.monotonic() - connected_s)
            der = secure.getpeercert(binary_form=True)
    if der is not None:
        way.certificate = x509.load_der_x509_certificate(der)
