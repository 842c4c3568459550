"""An enrolment service for tests: a real fleet, a real database, real TLS, in this process.

async with Office.open(tmp_path / "fleet") as office:
    membership = await office.enroll("pi-1", token=office.token())
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cloud_learner.serving.grpc_server import GrpcServer
from edge_agent.enrollment.address import Membership
from edge_agent.enrollment.enrollment import Seed, enroll
from shoal.endpoint import Endpoint
from shoal.identity import Identity
from shoalctl.enrollment.authority import Authority
from shoalctl.enrollment.challenges import Challenges
from shoalctl.enrollment.config import EnrollmentConfig, load_enrollment
from shoalctl.enrollment.service import EnrollmentService
from shoalctl.enrollment.store import EnrollmentStore
from shoalctl.enrollment.tokens import TokenRecord, new_token
from shoalctl.fleet.init import FleetPlan, make_fleet
from shoalctl.pki.pki import FleetPki

HOST = "127.0.0.1"


@dataclass
class Clock:
    """A wall clock that tests move; it also runs."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Office:
    """The service and what it works on."""

    config: EnrollmentConfig
    pki: FleetPki
    store: EnrollmentStore
    authority: Authority
    challenges: Challenges
    clock: Clock
    address: Endpoint

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        directory: Path,
        *,
        change: Callable[[EnrollmentConfig], EnrollmentConfig] | None = None,
    ) -> AsyncIterator[Office]:
        """Makes a fleet if there is none, and serves its enrolment."""
        if not directory.exists():  # noqa: ASYNC240 - a test has time
            make_fleet(directory, FleetPlan("reef"))
        config = load_enrollment(directory)
        config = change(config) if change else config
        clock = Clock()
        pki = FleetPki.load(directory, clock=lambda: datetime.fromtimestamp(clock(), UTC))
        challenges = Challenges(clock=time.monotonic)
        identity = Identity.load(config.identity)
        with EnrollmentStore(config.database) as store:
            authority = Authority(config, pki, store, redeem=challenges.redeem, clock=clock)
            service = EnrollmentService(
                config,
                authority,
                challenges,
                ca=identity.read_pems().ca,
                policy_public_key=pki.policy_public_key,
                clock=clock,
            )
            async with GrpcServer(
                HOST, 0, identity, [service], client_certificates=False
            ) as server:
                address = Endpoint(HOST, server.port)
                yield cls(config, pki, store, authority, challenges, clock, address)

    def token(
        self,
        *,
        device: str | None = None,
        uses: int = 1,
        ttl_s: float = 60.0,
        replace_it: bool = False,
    ) -> str:
        token, now_s = new_token(), self.clock()
        record = TokenRecord(
            token.id,
            token.digest,
            device,
            uses,
            0,
            now_s,
            now_s + ttl_s,
            revoked=False,
            replace=replace_it,
        )
        self.store.add_token(record)
        return token.text

    def seed(self, identity: Path, *, token: str = "", name: str | None = None) -> Seed:
        return Seed(
            name or identity.name, self.address, self.pki.fingerprint, token, identity.absolute()
        )

    async def enroll(
        self, identity: Path, *, token: str = "", name: str | None = None, wait_s: float = 0.0
    ) -> Membership:
        """Enrols as a device does; it does not try again unless told to wait."""
        seed = self.seed(identity, token=token, name=name)
        return await enroll(seed, wait_s=wait_s, tell=lambda _line: None)

    def at(self, server: Endpoint) -> Seed:
        return replace(self.seed(Path("unused")), server=server)

    def events(self) -> list[str]:
        """What happened, the newest last: `name`, or `name.reason`."""
        found = self.store.events(limit=1000)
        return [
            f"{each.name}.{each.fields['reason']}" if "reason" in each.fields else each.name
            for each in reversed(found)
        ]
