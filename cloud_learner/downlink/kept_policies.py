"""Reads the policies in a learner's state directory beside the learner: nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cloud_learner.downlink.log_directory import bundle_path, bundle_versions
from shoal.errors import PolicyLogError, PolicyLogMissing, PolicyNotKept, PolicyRejected, WireError
from shoal.policy import Manifest, check_digests, decode_bundle, decode_manifest, sha256
from shoal.tensors import Array, decode_tensors


@dataclass(frozen=True, slots=True, eq=False)
class KeptPolicy:
    """A policy version, ready to be run.

    Attributes:
        manifest: What was signed of it.
        graph: The weightless ONNX graph.
        tensors: Every initializer of the graph.
        float_graph: Of its float twin; None where there is none, or it is gone.
    """

    manifest: Manifest
    graph: bytes
    tensors: Mapping[str, Array]
    float_graph: bytes | None = None


class KeptPolicies:
    """The versions in a policy log that another process may have open.

    Hashes are checked, signatures are not: whoever can write this directory can sign as well.

    >>> policies = KeptPolicies(state.policies)
    >>> policies.read(policies.versions()[-1]).manifest.precision
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def versions(self) -> list[int]:
        """The versions that are there, lowest first.

        Raises:
            PolicyLogMissing: There is no such directory.
            PolicyLogError: It cannot be read.
        """
        try:
            return bundle_versions(self._directory)
        except OSError as error:
            kind = PolicyLogMissing if isinstance(error, FileNotFoundError) else PolicyLogError
            raise kind(
                f"{self._directory}: no policies here ({error.strerror}); give the state_dir of a "
                "learner"
            ) from error

    def read(self, version: int) -> KeptPolicy:
        """One version.

        Raises:
            PolicyNotKept: It is not there; a learner that is at work may just have deleted it.
            PolicyLogError: It is damaged.
        """
        path = bundle_path(self._directory, version)
        try:
            bundle = decode_bundle(path.read_bytes())
            manifest = decode_manifest(bundle.manifest)
            check_digests(manifest, bundle)
            graph = self._graph_path(manifest.graph_digest).read_bytes()
            tensors = decode_tensors(bundle.tensors)
        except FileNotFoundError:
            raise PolicyNotKept(self._missing(version)) from None
        except OSError as error:
            raise PolicyLogError(f"{path}: {error.strerror or error}") from error
        except (WireError, PolicyRejected) as error:
            raise PolicyLogError(f"{path}: {error}") from error
        if sha256(graph) != manifest.graph_digest:
            raise PolicyLogError(f"{path}: its graph is not what was signed")
        return KeptPolicy(manifest, graph, tensors, self._float_graph(manifest))

    def _float_graph(self, manifest: Manifest) -> bytes | None:
        """A policy is complete without it."""
        try:
            graph = self._graph_path(manifest.float_graph_digest).read_bytes()
        except OSError:
            return None
        return graph if sha256(graph) == manifest.float_graph_digest else None

    def _graph_path(self, digest: bytes) -> Path:
        return self._directory / "graphs" / f"{digest.hex()}.onnx"

    def _missing(self, version: int) -> str:
        kept = self.versions()
        if not kept:
            return f"{self._directory}: no policy is published yet"
        nearest = min(kept, key=lambda one: abs(one - version))
        return (
            f"policy version {version} is not kept in {self._directory}: the nearest of those "
            f"from {kept[0]} to {kept[-1]} is {nearest} (policies_retain_bytes keeps more)"
        )
