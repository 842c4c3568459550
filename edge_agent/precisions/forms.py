"""The forms that a policy can act in: as published in int8, fp32, and int8 with dynamic ranges.

They come from files that `shoal learner export` wrote, or from the state directory of a learner or
of a device, which may be in use. Nothing is written, and neither torch nor onnx is needed.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

from edge_agent.policies.policy import Policy
from shoal.dynamic_twin import dynamic_twin, read_tensors
from shoal.errors import ConfigError, PolicyRejected, ShoalError
from shoal.float_twin import decode_reads, float_tensors
from shoal.layout import ObservationLayout
from shoal.policy import Manifest, check_digests, decode_bundle, decode_manifest, sha256
from shoal.spaces import EnvSpec
from shoal.tensors import Array, decode_tensors

FP32, STATIC, DYNAMIC = "fp32", "int8 static", "int8 dynamic"
FLOAT_GRAPH = "shoal.float_graph"
EXPLORES = "explore.threshold"
"""An initializer that only epsilon-greedy policies have."""
_LOOKS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a policy is read from.

    Attributes:
        name: For people.
        env_id: Of the environment it is for; empty where the source does not say.
        graph: Of the published form; a whole model where it has its weights inside.
        tensors: Every initializer of it.
        float_graph: Of the float twin; None where there is none.
        manifest: Of the version.
    """

    name: str
    env_id: str
    graph: bytes
    tensors: Mapping[str, Array]
    float_graph: bytes | None
    manifest: Manifest


@dataclass(slots=True, eq=False)
class Forms:
    """A policy in every form that could be made.

    Attributes:
        policies: By form.
        missing: By form, why it is not among them.
        values: Whether the distribution holds Q-values; None where that cannot be told.
    """

    policies: dict[str, Policy]
    missing: dict[str, str]
    values: bool | None


def read_file(path: Path) -> Source:
    """A policy from an ONNX file with its weights inside.

    Raises:
        ConfigError: There is no such file.
        ShoalError: It is not one that `learner export` wrote.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: give a file, or --state for a state_dir")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; give another --policy") from error
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has classes of its own without a shared base
        raise ShoalError(
            f"{path} is no ONNX model: give a file that `shoal learner export` wrote"
        ) from error
    said = session.get_modelmeta().custom_metadata_map
    if "shoal.precision" not in said or len(session.get_inputs()) == 1:
        raise ShoalError(f"{path}: export it with `shoal learner export`, not --deterministic")
    float_graph = base64.b64decode(said[FLOAT_GRAPH]) if FLOAT_GRAPH in said else None
    manifest = Manifest(
        fleet=said.get("shoal.fleet", "bench"),
        version=int(said.get("shoal.version", "1")),
        updates=int(said.get("shoal.updates", "0")),
        graph_digest=sha256(data),
        graph_bytes=len(data),
        tensors_digest=sha256(data),
        tensors_bytes=0,
        golden_digest=bytes(32),
        spec_fingerprint=bytes.fromhex(said.get("shoal.spec_fingerprint", "")),
        precision=said["shoal.precision"],
        created_unix_ms=0,
        kl_quantization=0.0,
        reason="bench",
        float_graph_digest=b"" if float_graph is None else sha256(float_graph),
    )
    env_id = said.get("shoal.env_id", "")
    return Source(str(path), env_id, data, read_tensors(data), float_graph, manifest)


def read_state(directory: Path, version: int | None, *, trust: str = "*") -> Source:
    """A published version from the state directory of a learner or of a device, in use or not.

    Args:
        directory: The state_dir.
        version: None for the newest, which is what a device acts with.
        trust: Pattern of the directory of a fleet and its key; of several, that written last.

    Raises:
        ConfigError: There is none, or not that version.
        ShoalError: It is damaged.
    """
    path, data = _bundle(directory, version, trust)
    graphs = next(
        (p for p in (path.parent / "graphs", path.parent.parent / "graphs") if p.is_dir()),
        path.parent / "graphs",
    )
    bundle = decode_bundle(data)
    manifest = decode_manifest(bundle.manifest)
    check_digests(manifest, bundle)
    graph = _graph(graphs, manifest.graph_digest)
    if graph is None:
        raise ShoalError(f"{graphs}: the graph of v{manifest.version} is missing or damaged")
    float_graph = _graph(graphs, manifest.float_graph_digest)
    return Source(f"{path}", "", graph, decode_tensors(bundle.tensors), float_graph, manifest)


def forms_of(sources: Sequence[Source], spec: EnvSpec) -> Forms:
    """Every form that can be made of one policy.

    Args:
        sources: A published version, its fp32 export, or both.
        spec: The spaces it acts in.

    Raises:
        ShoalError: It is for other spaces.
    """
    layout = ObservationLayout.of(spec.observation)
    forms = Forms({}, {}, None)
    for source in sources:
        if source.manifest.spec_fingerprint not in (b"", spec.fingerprint):
            raise ShoalError(
                f"{source.name}: it acts in other spaces than {spec.env_id}; give --env"
            )
        tensors = {} if _whole(source) else source.tensors
        policy = Policy.load(source.graph, tensors, source.manifest, layout)
        forms.policies[FP32 if source.manifest.precision == FP32 else STATIC] = policy
        forms.values = EXPLORES in source.tensors
    if STATIC not in forms.policies:
        forms.missing[STATIC] = "fp32 has no ranges of int8: give what was published in int8"
    floats = next((s for s in sources if s.manifest.precision == FP32), sources[0])
    is_float = floats.manifest.precision == FP32
    graph = floats.graph if is_float else floats.float_graph
    weights = None if graph is None else _fp32(floats, forms)
    if FP32 not in forms.policies:
        why = "it was published without a float twin: give its fp32 file"
        if floats.manifest.float_graph_digest and floats.float_graph is None:
            why = (
                'its fp32 graph comes only with actor.precision = "auto": or give an exported file'
            )
        forms.missing.setdefault(FP32, why)
    if graph is None or weights is None:
        forms.missing[DYNAMIC] = "there is no fp32 form to make it of"
    else:
        manifest = sources[0].manifest
        forms.policies[DYNAMIC] = Policy.load(dynamic_twin(graph, weights), {}, manifest, layout)
    return forms


def _fp32(source: Source, forms: Forms) -> Mapping[str, Array] | None:
    """The tensors of the fp32 form; adds that form where it is the twin of what is int8."""
    if source.manifest.precision == FP32:
        return source.tensors
    int8 = forms.policies[STATIC]
    assert source.float_graph is not None  # noqa: S101 - the caller looked
    try:
        forms.policies[FP32] = int8.twin(source.float_graph, source.tensors)
    except PolicyRejected as error:
        forms.missing[FP32] = str(error)
        return None
    reads = decode_reads(int8.session.runtime.get_modelmeta().custom_metadata_map)
    return float_tensors(source.tensors, reads)


def _whole(source: Source) -> bool:
    """Whether the graph has its weights inside."""
    return source.manifest.tensors_bytes == 0


def _bundle(directory: Path, version: int | None, trust: str) -> tuple[Path, bytes]:
    """The file of a version and its bytes, though whoever owns the directory may replace it."""
    for _ in range(_LOOKS):
        written: dict[Path, dict[int, Path]] = {}
        try:
            places = sorted(directory.glob(f"policies/{trust}"), key=lambda p: p.stat().st_mtime)
            for place in places:
                for path in place.glob("*.bundle"):
                    number = int(path.name.partition(".")[0].partition("-")[0])
                    written.setdefault(place, {})[number] = path
            if not written:
                break
            found = next(reversed(written.values()))
            chosen = max(found) if version is None else version
            if chosen not in found:
                raise ConfigError(
                    f"{directory}: no policy v{chosen}: there are v{min(found)} to v{max(found)}"
                )
            return found[chosen], found[chosen].read_bytes()
        except FileNotFoundError:  # a newer one came meanwhile
            continue
        except OSError as error:
            raise ConfigError(
                f"{directory}: {error.strerror or error}: run it as who owns it"
            ) from error
    raise ConfigError(f"{directory}: no policy here; give a learner's or a device's state_dir")


def _graph(directory: Path, digest: bytes) -> bytes | None:
    path = directory / f"{digest.hex()}.onnx"
    data = path.read_bytes() if path.is_file() else b""
    return data if digest and sha256(data) == digest else None
