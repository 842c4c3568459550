"""Policies that a device must refuse, pushed to one by a server of its fleet."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

from brokers import free_port
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from policy_publisher import Publisher
from policy_server import device as following
from policy_server import served
from security_site import FLEET, Site

from edge_agent.events import Events
from shoal.delegation import Purpose, decode_delegation, encode_delegation
from shoal.policy import decode_bundle, encode_bundle
from shoal.v1 import device_pb2
from shoal.v1.delegation_pb2 import SignedDelegation
from shoalctl.pki.key_files import read_policy_key

Attack = Callable[[Site], None]


def hand_out(
    bad: Callable[[Publisher], bytes],
    *,
    signed_by: Callable[[Publisher], Publisher] = lambda publisher: publisher,
) -> Attack:
    """A server of the fleet pushes a policy to a device, which goes on with the one it has."""

    def attack(site: Site) -> None:
        key = read_policy_key(site.pki.directory / "policy.key")
        assert key is not None
        publisher = Publisher(fleet=FLEET, key=key)

        async def scenario() -> Events:
            good, signing = signed_by(publisher).publish(5), cast("Any", publisher)
            port = free_port()
            async with AsyncExitStack() as stack:
                server = await stack.enter_async_context(served(site.pki, port))
                store = site.directory / f"policies-{port}"
                it = await stack.enter_async_context(following(site.pki, port, store, signing))
                server.graphs[good.manifest.graph_digest] = good.graph
                server.push(good.bundle, 5)
                await it.event("policy_swapped")
                server.push(bad(publisher), 6)
                refused = await it.event("policy_rejected")
                assert it.policies.current is not None
                assert it.policies.current.version == 5
            told = Events("pi-1", random.randbytes(16), clock=time.time)
            told.emit(
                device_pb2.SEVERITY_WARNING,
                "policy_rejected",
                refused["message"],
                reason=refused["reason"],
            )
            return told

        site.tell(asyncio.run(asyncio.wait_for(scenario(), 90)), "pi-1")

    return attack


def tampered(publisher: Publisher) -> bytes:
    bundle = decode_bundle(publisher.publish(6).bundle)
    weights = bytearray(bundle.tensors)
    weights[-1] ^= 1
    return encode_bundle(replace(bundle, tensors=bytes(weights)))


def of_another_signer(publisher: Publisher) -> bytes:
    stranger = Publisher(fleet=FLEET, key=Ed25519PrivateKey.generate())
    return stranger.publish(6).bundle


def older(publisher: Publisher) -> bytes:
    return publisher.publish(4).bundle


def undelegated(publisher: Publisher) -> bytes:
    """Of a key that the policy key never heard of, beside a delegation of another."""
    delegated = publisher.delegating(9)
    assert delegated.delegate is not None
    stranger = (Ed25519PrivateKey.generate(), delegated.delegate[1])
    return replace(publisher, delegate=stranger).publish(6).bundle


def delegated(**changes: Any) -> Callable[[Publisher], bytes]:  # noqa: ANN401 - of a delegation
    """Of a delegate of generation 3, unless it is told otherwise."""
    generation = changes.pop("generation", 3)
    return lambda publisher: publisher.delegating(generation, **changes).publish(6).bundle


def tampered_delegation(publisher: Publisher) -> bytes:
    """Whose generation was raised after it was signed."""
    bundle = decode_bundle(delegated()(publisher))
    signed = SignedDelegation.FromString(bundle.delegation)
    raised = replace(decode_delegation(signed.delegation), generation=4)
    signed.delegation = encode_delegation(raised)
    return encode_bundle(replace(bundle, delegation=signed.SerializeToString()))


def delegate_of(generation: int) -> Callable[[Publisher], Publisher]:
    """What a fleet's policies are signed with before the attack."""
    return lambda publisher: publisher.delegating(generation)


POLICY_ATTACKS: dict[str, tuple[Attack, str]] = {
    "a tampered policy": (hand_out(tampered), "digest"),
    "a policy of another signer": (hand_out(of_another_signer), "signature"),
    "an older policy": (hand_out(older), "rollback"),
    "a policy of an undelegated key": (hand_out(undelegated), "signature"),
    "a policy of a delegate whose time is over": (
        hand_out(delegated(begins_s=-7200.0, lasts_s=3600.0)),
        "delegation_expired",
    ),
    "a policy of a delegate whose time has not come": (
        hand_out(delegated(begins_s=3600.0)),
        "delegation_early",
    ),
    "a policy of a revoked delegate": (
        hand_out(delegated(generation=2), signed_by=delegate_of(3)),
        "delegation_revoked",
    ),
    "a delegation of another fleet": (hand_out(delegated(fleet="reef")), "delegation_fleet"),
    "a delegation for another purpose": (
        hand_out(delegated(purposes=frozenset({Purpose.BUNDLES}))),
        "delegation_purpose",
    ),
    "a tampered delegation": (
        hand_out(tampered_delegation, signed_by=delegate_of(3)),
        "delegation",
    ),
}
"""The attack, and the reason of its refusal, by what it is."""
