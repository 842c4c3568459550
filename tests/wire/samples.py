"""One sample of every message, and the writer of golden files.

To add a golden, add a sample below (under a new name, such as `Status.2`, when a message gained
fields) and run

    PYTHONPATH=tests python tests/wire/samples.py

It writes `golden/NAME.bin`, the bytes as they travel, and `golden/NAME.txtpb`, what they must be
read as. It never touches a file that exists: what was once written has to decode for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import Message
from strategies import DIGEST, RUN_ID, cartpole_spec, make_chunk, make_envelope, rover_spec
from wire.column_samples import column_chunk, column_samples
from wire.curve_samples import curve_samples
from wire.delegation_samples import delegation_samples
from wire.enrollment_samples import enrollment_samples
from wire.event_samples import fleet_event_samples
from wire.fleet_samples import (
    dispatch_samples,
    event_sample,
    fleet_samples,
    status_sample,
    telemetry_sample,
)
from wire.onnx_samples import onnx_samples
from wire.policies_samples import policies_samples
from wire.rollout_samples import rollout_samples
from wire.slot_samples import slot_samples
from wire.update_samples import updates

from shoal import zstd
from shoal.delta import encode_delta
from shoal.envelope import encode_envelope
from shoal.policy import (
    Bundle,
    Golden,
    Manifest,
    decode_bundle,
    decode_manifest,
    encode_bundle,
    encode_golden,
    encode_manifest,
    sha256,
)
from shoal.policy_delta import PolicyDelta, encode_policy_delta
from shoal.tensors import Array, encode_tensors
from shoal.trajectory import encode_chunk
from shoal.v1 import (
    columns_pb2,
    curve_pb2,
    delegation_pb2,
    device_pb2,
    dispatcher_pb2,
    enrollment_pb2,
    events_pb2,
    fleet_pb2,
    onnx_pb2,
    parameter_server_pb2,
    policies_pb2,
    policy_pb2,
    rollout_pb2,
    slot_pb2,
    space_pb2,
    statistics_pb2,
    tensor_pb2,
    trajectory_pb2,
    update_pb2,
)
from shoal.wire import frame, parse, unframe

GOLDEN = Path(__file__).with_name("golden")
MODULES = (
    columns_pb2,
    curve_pb2,
    delegation_pb2,
    device_pb2,
    dispatcher_pb2,
    enrollment_pb2,
    events_pb2,
    fleet_pb2,
    parameter_server_pb2,
    policies_pb2,
    policy_pb2,
    rollout_pb2,
    onnx_pb2,
    slot_pb2,
    space_pb2,
    statistics_pb2,
    tensor_pb2,
    trajectory_pb2,
    update_pb2,
)
FRAMED = {
    "TensorSetDelta",
    "TrajectoryEnvelope",
    "Status",
    "Telemetry",
    "Event",
    "Ack",
    "Appetite",
}


def message_types() -> dict[str, type[Message]]:
    """Every message of the wire contract by name."""
    return {
        name: getattr(module, name)
        for module in MODULES
        for name in module.DESCRIPTOR.message_types_by_name
    }


def _chunk_of_a_policy_with_memory() -> bytes:
    chunk = make_chunk(rover_spec())
    return encode_chunk(
        replace(
            chunk,
            initial_state=np.linspace(-1, 1, chunk.envs * 3, dtype=np.float32).reshape(-1, 3),
            priorities=np.abs(chunk.log_probs),
        )
    )


def _golden_of_a_policy_with_memory() -> bytes:
    states = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    return encode_golden(
        Golden(
            observations=np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4),
            noise=np.zeros((2, 2), np.float32),
            actions=np.array([0, 1], np.int64),
            log_probs=np.array([-0.5, -0.75], np.float32),
            states=states,
            next_states=states * 0.5,
        )
    )


def _policy() -> tuple[bytes, bytes, bytes, bytes]:
    tensors = encode_tensors(
        {
            "hidden.weight": np.arange(-8, 8, dtype=np.int8).reshape(4, 4),
            "scale": np.full((), 0.25, np.float32),
        }
    )
    golden = encode_golden(
        Golden(
            observations=np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4),
            noise=np.zeros((2, 2), np.float32),
            actions=np.array([0, 1], np.int64),
            log_probs=np.array([-0.5, -0.75], np.float32),
        )
    )
    manifest = encode_manifest(
        Manifest(
            fleet="farm",
            version=7,
            updates=112,
            graph_digest=sha256(b"graph"),
            graph_bytes=5,
            tensors_digest=sha256(tensors),
            tensors_bytes=len(tensors),
            golden_digest=sha256(golden),
            spec_fingerprint=cartpole_spec().fingerprint,
            precision="int8",
            created_unix_ms=1_700_000_000_000,
            kl_quantization=0.00125,
            reason="publish",
        )
    )
    return (
        manifest,
        encode_bundle(Bundle(manifest, bytes(range(64)), tensors, golden)),
        tensors,
        golden,
    )


def _delta_tensors() -> tuple[bytes, bytes]:
    """Tensors, and the same after some steps: coded by gaps, differences and whole."""
    base: dict[str, Array] = {
        "bias": np.arange(8, dtype=np.int32),
        "gone": np.zeros(2, np.float32),
        "weight": np.arange(-50, 50, dtype=np.int8),
    }
    target = {
        "bias": base["bias"] - 3,
        "new": np.full((), 0.25, np.float32),
        "weight": base["weight"] + (np.arange(100) % 17 == 0).astype(np.int8),
    }
    return encode_tensors(base), encode_delta(base, target)


def _tensor_delta() -> tensor_pb2.TensorDelta:
    tensors = unframe(tensor_pb2.TensorSetDelta, _delta_tensors()[1]).tensors
    return next(each for each in tensors if each.name == "new")


def _policy_delta() -> bytes:
    bundle = decode_bundle(_policy()[1])
    manifest = replace(decode_manifest(bundle.manifest), version=8)
    target = replace(bundle, manifest=encode_manifest(manifest))
    return encode_policy_delta(PolicyDelta.between(bundle, target))


def _manifest_that_asks_for_more() -> bytes:
    manifest = replace(
        decode_manifest(_policy()[0]), noise_correlation=0.75, agreement=0.96875, priority_gamma=0.5
    )
    return encode_manifest(manifest)


def _manifest_with_a_float_twin() -> bytes:
    return encode_manifest(
        replace(decode_manifest(_policy()[0]), float_graph_digest=sha256(b"float graph"))
    )


def _messages() -> dict[str, Message]:
    spec, status, telemetry = cartpole_spec().to_pb(), status_sample(), telemetry_sample()
    measured = device_pb2.Telemetry()
    measured.CopyFrom(telemetry)
    measured.active_precision = "fp32"
    measured.precision_reason = "measured for 8 environments: int8 20.5 µs, fp32 12.5 µs"
    measured.int8_us, measured.fp32_us = 20.5, 12.5
    held_back = device_pb2.Telemetry()
    held_back.CopyFrom(telemetry)
    held_back.wanted_steps_per_s, held_back.oldest_version = 406.25, 5
    aged = device_pb2.RunLedger()
    aged.CopyFrom(telemetry.ledger[0])
    aged.expired.append(tensor_pb2.Span(start=6, stop=9))
    rover = rover_spec().to_pb()
    items = {item.key: item for item in rover.observation.dict.items}
    run_ack = device_pb2.RunAck(run_id=RUN_ID, settled=[tensor_pb2.Span(start=0, stop=36)])
    return {
        **fleet_samples(),
        **enrollment_samples(),
        **fleet_event_samples(),
        **curve_samples(),
        **policies_samples(telemetry),
        **rollout_samples(),
        **updates(telemetry),
        **onnx_samples(),
        **slot_samples(status, telemetry),
        "Status": status,
        "Hardware": status.hardware,
        "Telemetry": telemetry,
        "Telemetry.2": measured,
        "Telemetry.3": held_back,
        "RunLedger": telemetry.ledger[0],
        "RunLedger.2": aged,
        "Appetite": device_pb2.Appetite(
            oldest_version=12, steps_per_s=812.5, sent_seq=31, learner_run_id=RUN_ID
        ),
        "Appetite.2": device_pb2.Appetite(
            oldest_version=12,
            sent_seq=32,
            learner_run_id=RUN_ID,
            codecs=[trajectory_pb2.CODEC_COLUMNS],
        ),
        **column_samples(),
        **dispatch_samples(),
        "Device.2": fleet_pb2.Device(device_id="pi-1", task="short-pole (7)"),
        "Event": event_sample(),
        "RunAck": run_ack,
        "Ack": device_pb2.Ack(device_id="pi-1", runs=[run_ack]),
        "EnvSpec": spec,
        "EnvSpec.nested": rover,
        "DictSpace": rover.observation.dict,
        "NamedSpace": items["camera"],
        "TupleSpace": items["arm"].space.tuple,
        "MultiBinarySpace": items["doors"].space.multi_binary,
        "MultiDiscreteSpace": items["grid"].space.multi_discrete,
        "Space": spec.observation,
        "BoxSpace": spec.observation.box,
        "DiscreteSpace": spec.action.discrete,
        "Tensor": spec.observation.box.low,
        "Span": tensor_pb2.Span(start=3, stop=9),
        "Episode": trajectory_pb2.Episode(env=1, step=3, total_return=21.5, length=22),
        "WatchRequest": parameter_server_pb2.WatchRequest(
            fleet="farm", device_id="pi-1", have_version=6, have_digest=DIGEST
        ),
        "GetGraphRequest": parameter_server_pb2.GetGraphRequest(fleet="farm", digest=DIGEST),
        "GetPolicyRequest": parameter_server_pb2.GetPolicyRequest(fleet="farm", version=7),
        "Part": parameter_server_pb2.Part(version=7, total_bytes=9, offset=3, data=b"shoals"),
        "WatchRequest.2": parameter_server_pb2.WatchRequest(
            fleet="farm",
            device_id="pi-1",
            have_version=6,
            have_digest=DIGEST,
            accepts_delta=True,
            partial_digest=DIGEST,
            partial_bytes=262_144,
        ),
        "WatchRequest.3": parameter_server_pb2.WatchRequest(
            fleet="farm",
            device_id="pi-1",
            have_version=7,
            have_digest=DIGEST,
            accepts_delta=True,
            accepts_compressed_delta=True,
        ),
        "Part.2": parameter_server_pb2.Part(
            version=7,
            total_bytes=9,
            offset=3,
            data=b"shoals",
            kind=parameter_server_pb2.PAYLOAD_KIND_DELTA,
            digest=DIGEST,
        ),
        "ReportActiveRequest": parameter_server_pb2.ReportActiveRequest(
            fleet="farm",
            device_id="pi-1",
            run_id=RUN_ID,
            version=7,
            digest=DIGEST,
            handled_version=8,
        ),
        "FollowRequest": parameter_server_pb2.FollowRequest(
            watch=parameter_server_pb2.WatchRequest(fleet="farm", device_id="pi-1", have_version=7)
        ),
        "FollowRequest.2": parameter_server_pb2.FollowRequest(
            active=parameter_server_pb2.ReportActiveRequest(
                run_id=RUN_ID, version=7, digest=DIGEST, handled_version=8
            )
        ),
        "ReportActiveResponse": parameter_server_pb2.ReportActiveResponse(),
        "TensorDelta": _tensor_delta(),
    }


def _bytes() -> dict[str, bytes]:
    manifest, bundle, tensors, golden = _policy()
    chunk = encode_chunk(make_chunk(cartpole_spec()))
    return {
        "TrajectoryEnvelope": encode_envelope(make_envelope(chunk)),
        "TrajectoryEnvelope.columns": encode_envelope(make_envelope(column_chunk())),
        "TrajectoryChunk": chunk,
        "TrajectoryChunk.memory": _chunk_of_a_policy_with_memory(),
        "PolicyManifest": manifest,
        "PolicyManifest.2": _manifest_that_asks_for_more(),
        "PolicyManifest.3": _manifest_with_a_float_twin(),
        "PolicyBundle": bundle,
        "PolicyDelta": _policy_delta(),
        "TensorSet": tensors,
        "TensorSetDelta": _delta_tensors()[1],
        "TensorSet.golden": golden,
        "TensorSet.golden_memory": _golden_of_a_policy_with_memory(),
    }


def samples() -> dict[str, bytes]:
    """Every message by name, as it travels."""
    encoded = {
        name: (
            frame(message)
            if name.partition(".")[0] in FRAMED
            else message.SerializeToString(deterministic=True)
        )
        for name, message in _messages().items()
    }
    plain = _bytes()
    policy = fleet_pb2.PolicyInfo.FromString(encoded["PolicyInfo"])
    return {**encoded, **plain, **delegation_samples(plain["PolicyBundle"], policy)}


def decode(name: str, data: bytes) -> Message:
    """The message that `data` is, by the name of its sample."""
    kind = name.partition(".")[0]
    cls = message_types()[kind]
    if kind in FRAMED:
        return unframe(cls, data, max_bytes=1 << 20)
    if kind == "TrajectoryChunk":
        data = zstd.decompress(data, zstd.content_size(data) or 0)
    return parse(cls, data)


def write_missing() -> Iterator[Path]:
    """Writes the golden files that are not there yet, and names them."""
    for name, data in samples().items():
        binary, text = GOLDEN / f"{name}.bin", GOLDEN / f"{name}.txtpb"
        if not binary.exists():
            GOLDEN.mkdir(exist_ok=True)
            binary.write_bytes(data)
            text.write_text(text_format.MessageToString(decode(name, data)), encoding="utf-8")
            yield binary


if __name__ == "__main__":
    for path in write_missing():
        print(path)  # noqa: T201 this is a program
