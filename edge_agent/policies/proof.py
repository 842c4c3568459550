"""Every check of a policy that was offered, cheapest and least trusting first."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from edge_agent.policies.acceptance import check_acceptable
from edge_agent.policies.offered import Offered, content_of
from edge_agent.policies.policy import Policy, build, open_for
from edge_agent.policies.policy_files import PolicyFile, PolicyFiles
from edge_agent.policies.precision import Proven
from edge_agent.policies.self_test import check_ports, self_test
from shoal.errors import LimitExceeded, PolicyRejected, WireError
from shoal.layout import ObservationLayout
from shoal.policy import MAX_BUNDLE_BYTES, Bundle, Golden, decode_bundle, golden_of, sha256
from shoal.policy_delta import Unpacked
from shoal.policy_trust import prove_manifest
from shoal.spaces import EnvSpec

FetchGraph = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a device accepted before.

    Attributes:
        newest: The newest version, be it condemned; None: there was none.
        generation: The highest of delegates; 0: there was none.
        condemned: The sha256 of each manifest whose policy failed after it was accepted.
        acting: The file and the policy that acts, as published; None: none does.
        feeds: Whether the next one may act by a session that is fed its weights, until `settle`.
    """

    newest: PolicyFile | None
    generation: int
    condemned: Collection[bytes]
    acting: tuple[PolicyFile, Policy] | None
    feeds: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """A policy that stood every check.

    Attributes:
        proven: It.
        file: What names it.
        delegation: As in its bundle.
        generation: Of the delegate that signed; 0: the policy key did.
    """

    proven: Proven
    file: PolicyFile
    delegation: bytes
    generation: int


class Prover:
    """Checks policies for one device.

    prover = Prover(fleet, root, spec, files, clock=time.time)
    proof = prover.prove(data, fetch_graph, accepted)     # or raises PolicyRejected
    """

    def __init__(
        self,
        fleet: str,
        root: Ed25519PublicKey,
        spec: EnvSpec,
        files: PolicyFiles,
        *,
        clock: Callable[[], float],
    ) -> None:
        """Checks nothing yet.

        Args:
            fleet: The device's.
            root: The fleet's policy key: it, or a delegate of it, must have signed.
            spec: The spaces of the device's environment.
            files: Where graphs are, and are put.
            clock: Unix seconds: whether a delegate may still sign.
        """
        self._fleet = fleet
        self._root = root
        self._spec = spec
        self._files = files
        self._clock = clock

    def prove(
        self,
        data: Offered,
        fetch_graph: FetchGraph,
        accepted: Accepted,
        *,
        on_disk: PolicyFile | None = None,
    ) -> Proof:
        """Proves a policy.

        Args:
            data: A bundle, serialized or not; not trusted.
            fetch_graph: Gives the graph of a sha256 that is not on disk; its errors pass through.
            accepted: What was accepted before.
            on_disk: The file it was read from: it was accepted once, so no clock is asked; None: it
                came from elsewhere.

        Raises:
            PolicyRejected: See `PolicyStore.accept`.
        """
        try:
            bundle = data if isinstance(data, Unpacked) else _decoded(data)
            signed = prove_manifest(bundle, self._root)
            manifest = signed.manifest
            file = PolicyFile(manifest.version, sha256(bundle.manifest))
            content = content_of(bundle, manifest)
            tensors, golden = content.tensors, golden_of(content.golden)
            if accepted.acting is not None and accepted.acting[0] == file:
                proven = Proven(accepted.acting[1], tensors, golden)
                return Proof(proven, file, bundle.delegation, signed.generation)
            check_acceptable(
                manifest,
                file,
                fleet=self._fleet,
                fingerprint=self._spec.fingerprint,
                newest=accepted.newest,
                on_disk=on_disk,
                condemned=accepted.condemned,
            )
            if on_disk is None and file != accepted.newest:
                signed.check_current(now_s=self._clock(), newest_generation=accepted.generation)
            like = None if accepted.acting is None else accepted.acting[1]
            policy = Policy.load(
                self._files.graph(manifest.graph_digest, fetch_graph),
                tensors,
                manifest,
                ObservationLayout.of(self._spec.observation),
                like=like,
                fed=accepted.feeds,
            )
            if like is None or not policy.asks_as(like):  # which stood the very same check
                check_ports(policy, self._spec)
            self_test(policy, golden)
        except LimitExceeded as error:
            raise PolicyRejected("size", str(error)) from error
        except WireError as error:
            raise PolicyRejected("malformed", str(error)) from error
        return Proof(Proven(policy, tensors, golden), file, bundle.delegation, signed.generation)

    def settle(self, policy: Policy, golden: Golden) -> None:
        """Has a policy decide as fast as it can; or, if it does, the next one be fed.

        Args:
            policy: Proven.
            golden: Its golden vectors: no session acts that was not tested by them.

        Raises:
            PolicyRejected: The session in which it would be faster fails; it acts on as it does.
        """
        manifest = policy.manifest
        graph = self._files.read_graph(manifest.graph_digest)
        if graph is None:
            return
        if policy.session.fed:
            built = build(graph, policy.initializers, manifest)
            self_test(policy.running(built), golden)
            policy.session = built
        elif policy.feedable is None:
            policy.feedable = open_for(policy, graph, golden)


def _decoded(data: bytes) -> Bundle:
    return decode_bundle(data, max_bytes=MAX_BUNDLE_BYTES)
