"""A relay at a site, whole, in front of a learner that a test has.

async with relay_site(cloud.pki, cloud.port, tmp_path / "site") as port: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
from brokers import free_port
from bundles import PUBLIC

from cloud_learner.config import ServerConfig
from cloud_learner.relay.app import run
from cloud_learner.relay.config import RelayConfig, UpstreamConfig
from shoal.identity import POLICY_KEY_FILE, Identity
from shoalctl.pki.pki import FleetPki, Role

FLEET = "reef"


@asynccontextmanager
async def relay_site(
    pki: FleetPki, upstream: int, directory: Path, *, name: str = "site-a", port: int = 0
) -> AsyncIterator[int]:
    """Runs one, and says on which port."""
    keys = pki.directory / "identities" / name
    if not keys.exists():
        pki.issue(name, Role.RELAY)
        (keys / POLICY_KEY_FILE).write_text(PUBLIC.hex(), "ascii")
    served = port or free_port()
    config = RelayConfig(
        FLEET,
        keys,
        directory,
        UpstreamConfig("127.0.0.1", upstream, backoff_cap_s=0.05),
        ServerConfig("127.0.0.1", served),
    )
    running = asyncio.ensure_future(run(config))
    try:
        yield served
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def calling(pki: FleetPki, name: str, port: int) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of whoever is named."""
    role = Role.RELAY if name.startswith("site-") else Role.DEVICE
    keys = pki.directory / "identities" / name
    pems = Identity(keys if keys.exists() else pki.issue(name, role), name, None).read_pems()
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100))
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        yield channel
