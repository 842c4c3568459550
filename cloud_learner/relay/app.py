"""The relay's composition root: one watch upstream, many devices downstream."""

from __future__ import annotations

from cloud_learner.relay.active_reports import ActiveReports
from cloud_learner.relay.bundle_relay import BUNDLES_KEPT, BundleRelay
from cloud_learner.relay.candidates import CANDIDATES_KEPT, Candidates, SitePolicies
from cloud_learner.relay.channel_pool import ChannelPool
from cloud_learner.relay.config import RelayConfig
from cloud_learner.relay.dispatch_relay import DispatchRelay
from cloud_learner.relay.gradient_relay import GradientRelay
from cloud_learner.relay.relay_server import RelayServer
from cloud_learner.relay.relay_store import RelayStore
from cloud_learner.relay.rollout_relay import RolloutRelay
from cloud_learner.relay.upstream import Upstream
from cloud_learner.rollout.bundles import BundleStore
from cloud_learner.serving.grpc_server import GrpcServer, Service
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
    identity = load_identity(config)
    fleet, key = config.fleet, policy_key(identity)
    with (
        RelayStore(config.state_dir / "policies", key, fleet, keep=config.policies_kept) as store,
        RelayStore(config.state_dir / "candidates", key, fleet, keep=CANDIDATES_KEPT) as tried,
    ):
        reports, pool, policies = (
            ActiveReports(),
            ChannelPool(config.upstream, identity),
            SitePolicies(store, tried),
        )
        relay = RelayServer(
            policies,
            fleet=fleet,
            note_active=reports.note,
            gradients=GradientRelay(pool, fleet=fleet),
        )
        kept = BundleStore(
            config.state_dir / "bundles", fleet=fleet, public_key=key, keep=BUNDLES_KEPT
        )
        bundles = BundleRelay(pool, kept, fleet=fleet)
        candidates = Candidates(pool, policies, tried, relay.assign, fleet=fleet)
        services: list[Service] = [
            relay,
            RolloutRelay(pool, candidates, bundles, fleet=fleet),
            DispatchRelay(pool, fleet=fleet),
        ]
        upstream = Upstream(
            config.upstream,
            identity,
            store,
            reports,
            fleet=fleet,
            on_policy=relay.announce,
        )
        async with (
            pool,
            GrpcServer(
                config.server.host,
                config.server.port,
                identity,
                services,
                max_request_bytes=config.max_update_bytes,
            ) as server,
        ):
            await run_services(
                {
                    "grpc": server.serve,
                    "upstream": upstream.follow,
                    "reports": upstream.forward,
                    "bundles": bundles.serve,
                }
            )


def load_identity(config: RelayConfig) -> Identity:
    """The identity of a relay.

    Raises:
        ConfigError: Its name cannot be a relay's.
        IdentityError: It cannot be used, or is of another role.
    """
    identity = Identity.load(config.identity)
    check_device_id(identity.name)
    if not identity.is_relay():
        raise IdentityError(
            f"{identity.directory}: the certificate of {identity.name!r} is no relay's, devices "
            f"would refuse it: issue one by `shoal pki issue {identity.name} --relay --san HOST`, "
            "HOST being the name or address by which devices reach this machine"
        )
    return identity


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
