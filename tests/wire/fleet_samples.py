"""Samples of what devices say of themselves, of the fleet and of tasks; see `samples.py`."""

from __future__ import annotations

from google.protobuf.message import Message
from strategies import DIGEST, RUN_ID, cartpole_spec

from shoal.v1 import device_pb2, dispatcher_pb2, fleet_pb2, tensor_pb2


def status_sample() -> device_pb2.Status:
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


def telemetry_sample() -> device_pb2.Telemetry:
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


def event_sample() -> device_pb2.Event:
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


def fleet_samples() -> dict[str, Message]:
    audit = fleet_pb2.Audit(
        produced=40, trained=30, expired=2, dropped=3, rejected=1, in_flight=4, balanced=True
    )
    device = fleet_pb2.Device(
        device_id="pi-1",
        health=fleet_pb2.HEALTH_ONLINE,
        status=status_sample(),
        status_age_s=10.5,
        telemetry=telemetry_sample(),
        telemetry_age_s=0.5,
        chunk_age_s=0.125,
        audit=audit,
        lag_updates=4,
        bytes_down_sent=65_432,
        reasons=["spool filling"],
    )
    recorded = fleet_pb2.RecordedEvent(event=event_sample(), age_s=2.5)
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


def dispatch_samples() -> dict[str, Message]:
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
