"""The forms that a policy can act in: as published in int8, fp32, and int8 with dynamic ranges.

They come from files that `shoal learner export` wrote, or from the state directory of a learner or
of a device. Nothing here needs torch; onnx is needed to read weights out of a file and for dynamic
ranges, and where it is missing those forms are not available.
"""

import base64
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from edge_agent.policies.policy import Policy
from shoal.errors import PolicyRejected, ShoalError
from shoal.float_twin import decode_reads, float_tensors
from shoal.layout import ObservationLayout
from shoal.policy import Manifest, check_digests, decode_bundle, decode_manifest, sha256
from shoal.spaces import EnvSpec
from shoal.tensors import Array, decode_tensors

FP32, STATIC, DYNAMIC = "fp32", "int8 static", "int8 dynamic"
FLOAT_GRAPH = "shoal.float_graph"
NO_ONNX = "needs onnx, which is not installed here"
EXPLORES = "explore.threshold"
"""An initializer that only epsilon-greedy policies have."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a policy is read from.

    Attributes:
        name: For people.
        env_id: Of the environment it is for; empty where the source does not say.
        graph: Of the published form; a whole model where it has its weights inside.
        tensors: Every initializer of it; None where they are inside.
        float_graph: Of the float twin; None where there is none.
        manifest: Of the version.
    """

    name: str
    env_id: str
    graph: bytes
    tensors: Mapping[str, Array] | None
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
        ShoalError: It is not one that `learner export` wrote.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ShoalError(
            f"{path}: {error.strerror}; give a file of `shoal learner export`, or a learner's "
            "state directory with --state"
        ) from error
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has classes of its own without a shared base
        raise ShoalError(f"{path}: {str(error).splitlines()[0]}") from error
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
    return Source(str(path), env_id, data, _weights(data), float_graph, manifest)


def read_state(directory: Path, version: int | None) -> Source:
    """A published version from the state directory of a learner or of a device.

    Raises:
        ShoalError: There is none, or it is damaged.
    """
    found = {
        int(path.name.partition(".")[0].partition("-")[0]): path
        for path in directory.glob("policies/*/*.bundle")
    }
    if not found:
        raise ShoalError(f"{directory}: no policy here; give a learner's or a device's state_dir")
    chosen = max(found) if version is None else version
    if chosen not in found:
        raise ShoalError(
            f"{directory}: no policy v{chosen}: there are v{min(found)} to v{max(found)}"
        )
    path = found[chosen]
    graphs = next(
        place for place in (path.parent / "graphs", path.parent.parent / "graphs") if place.is_dir()
    )
    bundle = decode_bundle(path.read_bytes())
    manifest = decode_manifest(bundle.manifest)
    check_digests(manifest, bundle)
    graph = _graph(graphs, manifest.graph_digest)
    if graph is None:
        raise ShoalError(f"{graphs}: the graph of policy v{chosen} is missing or damaged")
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
        inside = source.tensors is None or _whole(source)
        policy = Policy.load(
            source.graph, {} if inside else source.tensors or {}, source.manifest, layout
        )
        forms.policies[FP32 if source.manifest.precision == FP32 else STATIC] = policy
        if source.tensors is not None:
            forms.values = EXPLORES in source.tensors
    if STATIC not in forms.policies:
        forms.missing[STATIC] = "fp32 has no ranges of int8: give what was published in int8"
    float_model = _fp32(sources, forms)
    if FP32 not in forms.policies:
        forms.missing.setdefault(FP32, "it was published without a float twin: give its fp32 file")
    if float_model is None:
        forms.missing[DYNAMIC] = (
            NO_ONNX if onnx_missing() else "there is no fp32 form to make it of"
        )
    else:
        manifest = sources[0].manifest
        forms.policies[DYNAMIC] = Policy.load(_dynamic(float_model), {}, manifest, layout)
    return forms


def onnx_missing() -> bool:
    """Whether onnx is not installed, as on a device."""
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        return True
    return False


def _fp32(sources: Sequence[Source], forms: Forms) -> bytes | None:
    """Adds the fp32 form; gives it as a model with its weights inside, where onnx is there."""
    for source in sources:
        if source.manifest.precision == FP32:
            return _inlined(source.graph, source.tensors or {}, whole=_whole(source))
    source = sources[0]
    if source.float_graph is None:
        return None
    if source.tensors is None:
        forms.missing[FP32] = f"reading weights {NO_ONNX}: give --state, or its fp32 file too"
        return None
    int8 = forms.policies[STATIC]
    try:
        forms.policies[FP32] = int8.twin(source.float_graph, source.tensors)
    except PolicyRejected as error:
        forms.missing[FP32] = str(error)
        return None
    reads = decode_reads(int8.session.get_modelmeta().custom_metadata_map)
    return _inlined(source.float_graph, float_tensors(source.tensors, reads), whole=False)


def _whole(source: Source) -> bool:
    """Whether the graph has its weights inside."""
    return source.manifest.tensors_bytes == 0


def _graph(directory: Path, digest: bytes) -> bytes | None:
    path = directory / f"{digest.hex()}.onnx"
    data = path.read_bytes() if path.is_file() else b""
    return data if digest and sha256(data) == digest else None


def _weights(data: bytes) -> dict[str, Array] | None:
    if onnx_missing():
        return None
    from onnx import ModelProto, numpy_helper

    model = ModelProto.FromString(data)
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def _inlined(graph: bytes, tensors: Mapping[str, Array], *, whole: bool) -> bytes | None:
    if onnx_missing():
        return None
    if whole:
        return graph
    from onnx import ModelProto, TensorProto

    model = ModelProto.FromString(graph)
    for initializer in model.graph.initializer:
        initializer.raw_data = np.ascontiguousarray(tensors[initializer.name]).tobytes()
        initializer.data_location = TensorProto.DEFAULT
        del initializer.external_data[:]
    data: bytes = model.SerializeToString()
    return data


def _dynamic(model: bytes) -> bytes:
    """onnxruntime's own quantization with ranges found at every run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as name:
        before, after = Path(name) / "fp32.onnx", Path(name) / "int8.onnx"
        before.write_bytes(model)
        logging.disable(logging.WARNING)  # it recommends a step that changes nothing here
        try:
            quantize_dynamic(before, after, weight_type=QuantType.QInt8, reduce_range=True)
        finally:
            logging.disable(logging.NOTSET)
        return after.read_bytes()
