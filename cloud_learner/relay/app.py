"""The relay's composition root: one watch upstream, many devices downstream."""

from __future__ import annotations

from cloud_learner.relay.active_reports import ActiveReports
from cloud_learner.relay.config import RelayConfig
from cloud_learner.relay.relay_server import RelayServer
from cloud_learner.relay.relay_store import RelayStore
from cloud_learner.relay.upstream import Upstream
from cloud_learner.serving.grpc_server import GrpcServer
from shoal.errors import IdentityError
from shoal.identity import POLICY_KEY_FILE, Identity
from shoal.services import run_services
from shoal.topics import check_device_id


async def run(config: RelayConfig) -> None:
    """Runs the relay until SIGTERM or SIGINT.

    Raises:
        ShoalError: Identity, state directory or port cannot be used. Nothing that upstream or the
            network do ends a relay.
    """
    identity = Identity.load(config.identity)
    check_device_id(identity.name)
    key = policy_key(identity)
    with RelayStore(
        config.state_dir / "policies", key, config.fleet, keep=config.policies_kept
    ) as store:
        reports = ActiveReports()
        relay = RelayServer(store, fleet=config.fleet, note_active=reports.note)
        upstream = Upstream(
            config.upstream,
            identity,
            store,
            reports,
            fleet=config.fleet,
            on_policy=relay.announce,
        )
        async with GrpcServer(config.server.host, config.server.port, identity, [relay]) as server:
            await run_services(
                {"grpc": server.serve, "upstream": upstream.follow, "reports": upstream.forward}
            )


def policy_key(identity: Identity) -> bytes:
    """The key that policies must be signed with, 32 bytes.

    Raises:
        IdentityError: The identity holds none.
    """
    if identity.policy_public_key is None:
        raise IdentityError(
            f"{identity.directory / POLICY_KEY_FILE}: missing; a relay needs it to verify policies"
        )
    return identity.policy_public_key
