"""Keeps a device's certificate valid, and says what is wrong when it can't."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from cryptography import x509

from edge_agent.enrollment.address import Membership
from edge_agent.enrollment.enrollment import EnrollmentRefused, renew
from edge_agent.enrollment.validity import Dates, Diagnosis, Trouble, diagnose
from edge_agent.events import Events
from shoal.endpoint import Endpoint
from shoal.errors import IdentityError, ShoalError
from shoal.identity import Identity
from shoal.services import Service, backoff
from shoal.v1 import device_pb2 as pb

LOOK_S: Final = 30.0
"""How often the clock is looked at: it may be set at any moment, and nothing tells."""
BACKOFF_BASE_S: Final = 5.0
BACKOFF_CAP_S: Final = 600.0


class Renewer:
    """Renews a certificate at two thirds of its lifetime, and watches clock and dates.

    renewer = Renewer(identity, events)
    await run_services({"identity": renewer.serve, "downlink": renewer.restarting(follow), ...})

    An identity that was not enrolled over the network has no server to ask: it is only watched.

    Attributes:
        renewals: Certificates that were replaced in this run.
        trouble: Why this device can't prove who it is just now.
    """

    def __init__(
        self,
        identity: Identity,
        events: Events,
        *,
        on_renewed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """Looks at the certificate.

        Args:
            identity: Of this device.
            events: Where trouble, and its end, is told.
            on_renewed: Called on the event loop when the certificate was replaced.
            clock: Wall clock, Unix seconds.
            rng: Of the jitter.

        Raises:
            IdentityError: The identity can't be read.
            ConfigError: It holds an address that is none.
        """
        membership = Membership.load(identity.directory)
        self.renewals = 0
        self.trouble = Trouble.NONE
        self._server = (
            Endpoint.parse(membership.enrollment, what="the enrollment server")
            if membership is not None and membership.enrollment
            else None
        )
        self._identity = identity
        self._events = events
        self._on_renewed = on_renewed
        self._clock = clock
        self._rng = rng or random.Random()
        self._renewed = asyncio.Event()
        self._attempt = 0
        self._failure = ""
        self._refused = False
        self._serial = 0
        self._read()

    async def serve(self) -> None:
        """Watches and renews for ever; ends only by being cancelled."""
        while True:
            wait_s = await self.look()
            await asyncio.sleep(wait_s)

    async def look(self) -> float:
        """Renews if it is time to, and says what is wrong; returns seconds until the next look."""
        try:
            self._read()
        except IdentityError as error:
            self._tell_failure(str(error))
        now_s = self._clock()
        skew_s: float | None = None
        wait_s = LOOK_S
        due = now_s >= self._renewal_s or not self._dates.holds(now_s)
        if due and self._server is not None and not self._refused:
            try:
                skew_s = await self._renew(self._server)
                self._attempt = 0
            except EnrollmentRefused as error:
                self._refused = True  # it will not change its mind: a restart asks again
                self._tell(pb.SEVERITY_ERROR, "renewal_refused", str(error))
            except ShoalError as error:
                self._tell_failure(str(error))
                wait_s = max(
                    wait_s,
                    backoff(
                        self._attempt, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng
                    ),
                )
                self._attempt += 1
        if skew_s is None and due and self.trouble is Trouble.CLOCK:
            return wait_s  # nobody said anything new about the clock
        self._say(diagnose(self._dates, self._clock(), skew_s))
        return wait_s

    def restarting(self, service: Service) -> Service:
        """A service that is ended and begun again when the certificate was replaced."""

        async def run() -> None:
            while True:
                renewed = self._renewed

                async def wait() -> None:
                    await renewed.wait()  # noqa: B023 - of this round, which the group ends

                async def begin() -> None:
                    await service()

                async with asyncio.TaskGroup() as group:
                    running, waiting = group.create_task(begin()), group.create_task(wait())
                    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
                    running.cancel()
                    waiting.cancel()
                if not renewed.is_set():
                    return

        return run

    async def _renew(self, server: Endpoint) -> float:
        # By the server's clock: this device's may be wrong, and then there is nothing to renew.
        answer = await renew(
            self._identity,
            server,
            clock=self._clock,
            due=lambda now_s: now_s >= self._renewal_s or not self._dates.holds(now_s),
        )
        if answer.enrolled is not None:
            self.renewals += 1
            self._failure = ""
            self._read()
            self._tell(
                pb.SEVERITY_INFO,
                "certificate_renewed",
                "the certificate was renewed; connections are made again with it",
                not_after_unix_s=self._dates.last_s,
            )
            self._renewed.set()
            self._renewed = asyncio.Event()
            self._on_renewed()
        return answer.skew_s

    def _read(self) -> None:
        """Looks at the certificate on the disk, which somebody else may have replaced."""
        try:
            certificate = x509.load_pem_x509_certificate(self._identity.read_pems().cert)
        except ValueError as error:
            raise IdentityError(f"{self._identity.directory}: {error}; enrol anew") from error
        if certificate.serial_number == self._serial:
            return
        self._serial = certificate.serial_number
        self._dates = Dates.of(certificate)
        self._renewal_s = self._dates.renewal_s(self._rng.random())

    def _say(self, found: Diagnosis) -> None:
        if found.trouble is self.trouble:
            return
        self.trouble = found.trouble
        if found.trouble is Trouble.NONE:
            self._tell(
                pb.SEVERITY_INFO, "identity_valid", "clock and certificate go together again"
            )
        else:
            self._tell(pb.SEVERITY_WARNING, str(found.trouble), found.message)

    def _tell_failure(self, message: str) -> None:
        """Once for each new kind of failure, not at every attempt."""
        if message != self._failure:
            self._failure = message
            self._tell(pb.SEVERITY_WARNING, "renewal_failed", f"{message}; it is tried again")

    def _tell(self, severity: pb.Severity, name: str, message: str, **fields: str | float) -> None:
        self._events.emit(severity, name, message, **fields)
