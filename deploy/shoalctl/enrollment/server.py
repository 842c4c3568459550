"""The enrolment server: puts its parts together and runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cloud_learner.serving.grpc_server import GrpcServer
from edge_agent.uplink.connection import Address
from shoal.endpoint import Endpoint
from shoal.identity import Identity
from shoal.services import Service, run_services
from shoal.topics import Topics
from shoalctl.enrollment.authority import Authority
from shoalctl.enrollment.challenges import Challenges
from shoalctl.enrollment.config import EnrollmentConfig
from shoalctl.enrollment.service import EnrollmentService
from shoalctl.enrollment.store import EnrollmentStore
from shoalctl.events.enrollment_outbox import EnrollmentOutbox
from shoalctl.events.post import KEEPALIVE_S, EventPost
from shoalctl.pki.pki import FleetPki


async def run_enrollment(
    config: EnrollmentConfig, *, on_ready: Callable[[int], object] = lambda _port: None
) -> None:
    """Serves enrolment until SIGTERM or SIGINT.

    Args:
        config: Of the fleet.
        on_ready: Told the port once it is listened on.

    Raises:
        ShoalError: A key, a file or the port can't be used.
    """
    pki = FleetPki.load(config.directory)
    identity = Identity.load(config.identity)
    challenges = Challenges(clock=time.monotonic)
    with EnrollmentStore(config.database) as store:
        authority = Authority(config, pki, store, redeem=challenges.redeem, clock=time.time)
        authority.reconcile()
        service = EnrollmentService(
            config,
            authority,
            challenges,
            ca=identity.read_pems().ca,
            policy_public_key=pki.policy_public_key,
        )
        async with GrpcServer(
            config.host, config.port, identity, [service], client_certificates=False
        ) as server:
            on_ready(server.port)
            services: dict[str, Service] = {"grpc": server.serve}
            if config.addresses.broker:
                outbox = EnrollmentOutbox(store, run_id=bytes.fromhex(pki.fingerprint)[:16])
                broker = Endpoint.parse(config.addresses.broker, what="addresses.broker")
                post = EventPost(outbox, Topics(config.fleet), lambda: _as_server(broker, identity))
                services["events"] = post.serve
            await run_services(services)


def _as_server(broker: Endpoint, identity: Identity) -> Address:
    """The broker, as the enrolment server; the identity may have been renewed."""
    client_id = f"{identity.name}-{os.getpid()}"
    tls = identity.ssl_context()
    return Address(broker.host, broker.port, KEEPALIVE_S, client_id, tls, identity.name)
