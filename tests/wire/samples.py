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
from wire.update_samples import updates

from shoal import zstd
from shoal.delta import encode_delta
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
from shoal.trajectory import encode_chunk, encode_envelope
from shoal.v1 import (
    device_pb2,
    dispatcher_pb2,
    enrollment_pb2,
    fleet_pb2,
    parameter_server_pb2,
    policy_pb2,
    space_pb2,
    tensor_pb2,
    trajectory_pb2,
    update_pb2,
)
from shoal.wire import frame, parse, unframe

GOLDEN = Path(__file__).with_name("golden")
MODULES = (
    device_pb2,
    dispatcher_pb2,
    enrollment_pb2,
    fleet_pb2,
    parameter_server_pb2,
    policy_pb2,
    space_pb2,
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


def _status() -> device_pb2.Status:
    return device_pb2.Status(
        device_id="pi-1",
        run_id=RUN_ID,
        state=device_pb2.DEVICE_STATE_ONLINE,
        sent_unix_ms=1_700_000_000_000,
        agent_version="0.1.0",
        python_version="3.11.7",
        onnxruntime_version="1.22.0",
        hardware=device_pb2.Hardware(
            machine="aarch64", model="Raspberry Pi 5", cpus=4, memory_bytes=8 << 30
        ),
        env_spec=cartpole_spec().to_pb(),
        envs=8,
        reason="started",
    )


def _telemetry() -> device_pb2.Telemetry:
    ledger = device_pb2.RunLedger(
        run_id=RUN_ID,
        produced=40,
        spooled=[tensor_pb2.Span(start=36, stop=40)],
        dropped=[tensor_pb2.Span(start=0, stop=2), tensor_pb2.Span(start=5, stop=6)],
    )
    return device_pb2.Telemetry(
        device_id="pi-1",
        run_id=RUN_ID,
        sent_unix_ms=1_700_000_000_000,
        uptime_s=12.5,
        env_steps=10_240,
        episodes=93,
        steps_per_s=812.5,
        active_version=7,
        active_digest=DIGEST,
        swaps=6,
        swap_ms_p99=3.5,
        deadline_misses=1,
        rss_bytes=90 << 20,
        bytes_up=123_456,
        bytes_down=65_432,
        spool_bytes=4_096,
        resent_chunks=2,
        ledger=[ledger],
        policy_rejections=1,
        learner_ack_age_s=0.25,
        control_hz_achieved=49.5,
    )


def _event() -> device_pb2.Event:
    return device_pb2.Event(
        device_id="pi-1",
        run_id=RUN_ID,
        event_seq=3,
        sent_unix_ms=1_700_000_000_000,
        severity=device_pb2.SEVERITY_WARNING,
        name="policy_rejected",
        fields={"reason": "signature"},
        message="policy 8 was refused: its signature is not the fleet's",
    )


def _fleet() -> dict[str, Message]:
    audit = fleet_pb2.Audit(
        produced=40, trained=30, expired=2, dropped=3, rejected=1, in_flight=4, balanced=True
    )
    device = fleet_pb2.Device(
        device_id="pi-1",
        health=fleet_pb2.HEALTH_ONLINE,
        status=_status(),
        status_age_s=10.5,
        telemetry=_telemetry(),
        telemetry_age_s=0.5,
        chunk_age_s=0.125,
        audit=audit,
        lag_updates=4,
        bytes_down_sent=65_432,
        reasons=["spool filling"],
    )
    recorded = fleet_pb2.RecordedEvent(event=_event(), age_s=2.5)
    policy = fleet_pb2.PolicyInfo(
        version=7,
        digest=DIGEST,
        graph_digest=DIGEST,
        updates=112,
        precision="int8",
        kl_quantization=0.00125,
        created_unix_ms=1_700_000_000_000,
        bundle_bytes=6_400,
        devices_active=4,
        reason="publish",
        age_s=1.5,
    )
    measured = fleet_pb2.PolicyInfo()
    measured.CopyFrom(policy)
    measured.agreement = 0.9375
    measured.kl_staleness = 0.0025
    measured.tensors_bytes, measured.fp32_bytes = 6_144, 24_576
    measured.active_devices.extend(["pi-1", "pi-2"])
    device_audit = fleet_pb2.DeviceAudit(device_id="pi-1", audit=audit, telemetry_age_s=0.5)
    training = fleet_pb2.Training(
        env_steps=10_240,
        episodes=93,
        return_mean=110.5,
        return_window=93,
        length_mean=110.5,
        updates=112,
        policy_version=7,
        lag_p50=4,
        lag_p99=12,
        lag_max=16,
        precision="int8",
        kl_quantization=0.00125,
        kl_staleness=0.0025,
        bytes_up=123_456,
        bytes_down=65_432,
        bytes_down_fp32=261_728,
        uptime_s=12.5,
        steps_per_s=3_250,
        entropy=0.5,
        value_loss=12.5,
        policy_loss=-0.03125,
        explained_variance=0.75,
        replay_steps=512,
        audit=audit,
        devices_online=4,
        learner_state="training",
        counters={"duplicates": 2},
    )
    return {
        "Audit": audit,
        "Device": device,
        "ListDevicesRequest": fleet_pb2.ListDevicesRequest(fleet="farm"),
        "ListDevicesResponse": fleet_pb2.ListDevicesResponse(devices=[device]),
        "RecordedEvent": recorded,
        "DescribeDeviceRequest": fleet_pb2.DescribeDeviceRequest(fleet="farm", device_id="pi-1"),
        "DescribeDeviceResponse": fleet_pb2.DescribeDeviceResponse(
            device=device, events=[recorded]
        ),
        "PolicyInfo": policy,
        "PolicyInfo.2": measured,
        "ListPoliciesRequest": fleet_pb2.ListPoliciesRequest(fleet="farm"),
        "ListPoliciesResponse": fleet_pb2.ListPoliciesResponse(policies=[policy]),
        "AuditRequest": fleet_pb2.AuditRequest(fleet="farm"),
        "DeviceAudit": device_audit,
        "AuditResponse": fleet_pb2.AuditResponse(total=audit, devices=[device_audit]),
        "WatchTrainingRequest": fleet_pb2.WatchTrainingRequest(fleet="farm", interval_ms=500),
        "Training": training,
    }


def _dispatch() -> dict[str, Message]:
    task = dispatcher_pb2.Task(
        task_id=7,
        env_id="CartPole-v1",
        env_kwargs=b'{"sutton_barto_reward": true}',
        seed=3,
        max_episodes=50,
        max_steps=10_000,
        name="short-pole",
    )
    info = dispatcher_pb2.TaskInfo(
        task=task,
        state=dispatcher_pb2.TASK_STATE_DONE,
        stage=1,
        device_id="pi-1",
        attempts=2,
        failures=1,
        losses=1,
        episodes=50,
        steps=9_500,
        return_mean=190.5,
        steps_per_s=812.5,
        reason="EnvironmentFault: no rail",
        age_s=3.5,
    )
    return {
        "Task": task,
        "TaskInfo": info,
        "NextTaskRequest": dispatcher_pb2.NextTaskRequest(
            fleet="farm",
            device_id="pi-1",
            run_id=RUN_ID,
            finished_task_id=7,
            failed=True,
            reason="EnvironmentFault: no rail",
            episodes=50,
            steps=9_500,
            return_mean=190.5,
        ),
        "NextTaskResponse": dispatcher_pb2.NextTaskResponse(has_task=True, task=task, retry_s=2.5),
        "ListTasksRequest": dispatcher_pb2.ListTasksRequest(fleet="farm"),
        "ListTasksResponse": dispatcher_pb2.ListTasksResponse(tasks=[info]),
    }


def _enrollment() -> dict[str, Message]:
    addresses = enrollment_pb2.Addresses(
        broker="farm.example.org:8883",
        parameter_server="farm.example.org:50051",
        enrollment="farm.example.org:8444",
    )
    enrolled = enrollment_pb2.Enrolled(
        fleet="farm",
        device_id="pi-1",
        certificate_chain=b"the device's certificate, then the intermediate's",
        ca=b"the root's certificate",
        policy_public_key=DIGEST,
        addresses=addresses,
    )
    return {
        "BeginRequest": enrollment_pb2.BeginRequest(fleet="farm"),
        "BeginResponse": enrollment_pb2.BeginResponse(
            challenge=DIGEST, server_unix_ms=1_700_000_000_000, fleet="farm"
        ),
        "EnrollRequest": enrollment_pb2.EnrollRequest(
            challenge=DIGEST,
            csr=b"a signing request",
            token="0badcafe.secret",
            proof=b"a signature",
        ),
        "EnrollResponse": enrollment_pb2.EnrollResponse(enrolled=enrolled),
        "EnrollResponse.waiting": enrollment_pb2.EnrollResponse(retry_after_s=5),
        "RenewRequest": enrollment_pb2.RenewRequest(
            challenge=DIGEST, certificate=b"the present certificate", proof=b"a signature"
        ),
        "RenewResponse": enrollment_pb2.RenewResponse(enrolled=enrolled),
        "Enrolled": enrolled,
        "Addresses": addresses,
    }


def _messages() -> dict[str, Message]:
    spec, status, telemetry = cartpole_spec().to_pb(), _status(), _telemetry()
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
        **_fleet(),
        **updates(telemetry),
        **_enrollment(),
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
        **_dispatch(),
        "Device.2": fleet_pb2.Device(device_id="pi-1", task="short-pole (7)"),
        "Event": _event(),
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
        "ReportActiveResponse": parameter_server_pb2.ReportActiveResponse(),
        "TensorDelta": _tensor_delta(),
    }


def _bytes() -> dict[str, bytes]:
    manifest, bundle, tensors, golden = _policy()
    chunk = encode_chunk(make_chunk(cartpole_spec()))
    return {
        "TrajectoryEnvelope": encode_envelope(make_envelope(chunk)),
        "TrajectoryChunk": chunk,
        "TrajectoryChunk.2": chunk,  # episodes as columns
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
    return {**encoded, **_bytes()}


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
