"""What is shown of a fleet: every value, with its age, from the server's own messages."""

import io
import json

import pytest

from shoal.errors import ShoalError
from shoal.v1 import device_pb2, fleet_pb2, slot_pb2
from shoalctl.output import Format, Listing, write_listing
from shoalctl.views.audit import audit_list
from shoalctl.views.devices import (
    describe,
    device_detail,
    device_item,
    device_list,
    event_list,
)
from shoalctl.views.policies import describe_policy, policy_item, policy_list, policy_of

RUN = bytes(range(16))
DIGEST = bytes(range(32))


def device(device_id: str = "pi-1", **fields: float) -> fleet_pb2.Device:
    return fleet_pb2.Device(
        device_id=device_id,
        health=fleet_pb2.HEALTH_OFFLINE_LOST,
        reasons=["the broker said so"],
        lag_updates=37,
        status_age_s=fields.get("status_age_s", 61.0),
        telemetry_age_s=fields.get("telemetry_age_s", 2.0),
        chunk_age_s=fields.get("chunk_age_s", 3.0),
        bytes_down_sent=70_000,
        status=device_pb2.Status(
            device_id=device_id,
            run_id=RUN,
            state=device_pb2.DEVICE_STATE_OFFLINE_LOST,
            agent_version="0.1.0",
            hardware=device_pb2.Hardware(
                machine="aarch64", model="Raspberry Pi 5", cpus=4, memory_bytes=8_000_000_000
            ),
            env_spec={"env_id": "CartPole-v1"},
            envs=8,
        ),
        telemetry=device_pb2.Telemetry(
            device_id=device_id,
            run_id=RUN,
            active_version=12,
            active_digest=DIGEST,
            env_steps=4096,
            episodes=20,
            steps_per_s=1234.6,
            swaps=11,
            swap_ms_p99=4.25,
            rss_bytes=90_000_000,
            learner_ack_age_s=fields.get("learner_ack_age_s", -1.0),
        ),
        audit=fleet_pb2.Audit(produced=16, trained=12, in_flight=4, balanced=True),
    )


def table(listing: Listing, how: Format = Format.TABLE) -> list[list[str]]:
    out = io.StringIO()
    write_listing(listing, how, out)
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_device_is_one_row_with_its_name_first_and_its_age_last() -> None:
    header, row = table(device_list([device()]))
    assert (header[0], header[-1]) == ("NAME", "AGE")
    assert row == ["pi-1", "offline_lost", "v12", "37", "4096", "1235", "20", "4", "2s"]


def test_what_a_device_reported_since_its_telemetry_is_what_it_acts_with() -> None:
    newer = device()
    newer.active_version, newer.active_digest = 13, bytes(32)
    assert device_item(newer)["active_version"] == 13
    assert device_item(newer)["active_digest"] == bytes(32).hex()


def test_a_device_that_was_not_heard_since_the_learner_started_acts_with_nobody_knows_what() -> (
    None
):
    unheard, heard = device(telemetry_age_s=-1.0), device()
    for each in (unheard, heard):
        each.telemetry.Clear()
    assert [table(device_list([each]))[1][2] for each in (unheard, heard)] == ["-", "none"]


def test_the_wide_table_says_why_and_which_digest_is_really_loaded() -> None:
    out = io.StringIO()
    write_listing(device_list([device()]), Format.WIDE, out)
    assert "the broker said so" in out.getvalue()
    assert DIGEST.hex()[:12] in out.getvalue()


def test_the_precision_that_acts_is_shown_with_what_was_measured() -> None:
    measuring = device()
    measuring.telemetry.active_precision = "fp32"
    measuring.telemetry.precision_reason = "measured for 8 environments"
    measuring.telemetry.int8_us, measuring.telemetry.fp32_us = 20.25, 12.5
    item = device_item(measuring)
    assert (item["active_precision"], item["int8_us"], item["fp32_us"]) == ("fp32", 20.25, 12.5)
    header, row = table(device_list([measuring]), Format.WIDE)
    assert row[header.index("PRECISION")] == "fp32"
    assert {"20.2", "12.5"} <= set(row)
    lines = describe(device_detail(fleet_pb2.DescribeDeviceResponse(device=measuring)))
    assert any("fp32: measured for 8 environments" in line for line in lines)
    assert device_item(device())["fp32_us"] is None


def test_the_slot_that_runs_is_shown_with_its_trial_and_what_last_happened() -> None:
    trying = device()
    trying.telemetry.slot.CopyFrom(
        slot_pb2.SlotReport(
            slot="b",
            bundle_version="0.2.0",
            trial=slot_pb2.TRIAL_STATE_ON_TRIAL,
            held="no policy",
            last="switched b: rollout 7, wave 2",
        )
    )
    item = device_item(trying)
    assert (item["slot"], item["slot_trial"], item["bundle_version"]) == ("b", "on_trial", "0.2.0")
    (line,) = [
        line
        for line in describe(device_detail(fleet_pb2.DescribeDeviceResponse(device=trying)))
        if "0.2.0" in line
    ]
    for said in ("on trial", "held: no policy", "rollout 7, wave 2"):
        assert said in line
    assert device_item(device())["slot_trial"] == ""


def test_what_never_happened_is_never_and_null() -> None:
    item = device_item(device(telemetry_age_s=-1.0, status_age_s=-1.0, chunk_age_s=-1.0))
    assert item["telemetry_age_s"] is None
    assert item["status_age_s"] is None
    assert item["chunk_age_s"] is None
    assert item["learner_ack_age_s"] is None
    assert table(device_list([device(telemetry_age_s=-1.0)]))[1][-1] == "never"


def test_counters_are_numbers_and_bytes_are_hexadecimal_for_programs() -> None:
    item = json.loads(json.dumps(device_item(device())))
    assert item["env_steps"] == 4096
    assert item["active_digest"] == DIGEST.hex()
    assert item["run_id"] == RUN.hex()
    assert item["health"] == "offline_lost"
    assert item["audit"]["balanced"] is True


def test_a_device_that_only_just_appeared_is_shown_too() -> None:
    unknown = fleet_pb2.Device(
        device_id="pi-1", telemetry_age_s=-1.0, status_age_s=-1.0, chunk_age_s=-1.0
    )
    assert table(device_list([unknown]))[1][:3] == ["pi-1", "unspecified", "-"]
    assert describe(device_detail(fleet_pb2.DescribeDeviceResponse(device=unknown)))


def test_a_description_gives_each_fact_an_age() -> None:
    lines = describe(device_detail(fleet_pb2.DescribeDeviceResponse(device=device())))
    by_title = {line[:15].strip(): line[15:] for line in lines}
    assert by_title["Policy"] == f"v12 ({DIGEST.hex()[:12]})  [2s ago]"
    assert by_title["Environment"] == "CartPole-v1 x 8  [1m1s ago]"
    assert by_title["Hardware"] == "Raspberry Pi 5, 4 CPUs, 8.0 GB  [1m1s ago]"
    assert by_title["Learner heard"] == "never  [2s ago]"
    assert by_title["Last chunk"] == "3s ago"
    assert "they do NOT add up" not in by_title["Chunks"]


def test_a_description_says_when_chunks_do_not_add_up() -> None:
    lost = device()
    lost.audit.balanced = False
    lines = describe(device_detail(fleet_pb2.DescribeDeviceResponse(device=lost)))
    assert any("they do NOT add up" in line for line in lines)


def test_a_description_says_what_became_of_gradients_where_there_were_any() -> None:
    pushing = fleet_pb2.Device(device_id="pi-1")
    assert not any(line.startswith("Gradients") for line in _described(pushing))
    pushing.gradients.update({"applied": 38, "non_finite": 2})
    pushing.telemetry.updates_pushed, pushing.telemetry.gradient_chunks_dropped = 40, 3
    (line,) = (each for each in _described(pushing) if each.startswith("Gradients"))
    assert "38 applied, 2 non-finite; 3 chunks given up on the device" in line


def _described(device: fleet_pb2.Device) -> list[str]:
    return describe(device_detail(fleet_pb2.DescribeDeviceResponse(device=device)))


def test_events_are_listed_with_their_ages() -> None:
    event = device_pb2.Event(
        name="policy_rejected",
        severity=device_pb2.SEVERITY_WARNING,
        message="signature does not match",
        fields={"version": "3"},
    )
    response = fleet_pb2.DescribeDeviceResponse(
        device=device(), events=[fleet_pb2.RecordedEvent(event=event, age_s=90.0)]
    )
    item = device_detail(response)
    assert table(event_list(item))[1] == [
        *("policy_rejected", "warning", "signature", "does", "not", "match", "1m30s")
    ]
    assert json.loads(json.dumps(item))["events"][0]["fields"] == {"version": "3"}


def test_a_policy_is_one_row() -> None:
    policy = fleet_pb2.PolicyInfo(
        version=7,
        digest=DIGEST,
        updates=140,
        precision="int8",
        kl_quantization=1.25e-4,
        devices_active=3,
        reason="interval",
        bundle_bytes=68_600,
        age_s=4.0,
    )
    assert table(policy_list([policy]))[1] == [
        *("v7", DIGEST.hex()[:12], "140", "int8", "1.25e-04", "3", "interval", "-", "4s")
    ]
    assert policy_item(policy)["version"] == 7


def two_policies() -> list[fleet_pb2.PolicyInfo]:
    shown = fleet_pb2.PolicyInfo(
        version=7,
        digest=DIGEST,
        graph_digest=DIGEST,
        updates=140,
        precision="int8",
        kl_quantization=1.25e-4,
        kl_staleness=3.5e-3,
        agreement=0.996,
        created_unix_ms=1_700_000_000_000,
        tensors_bytes=17_200,
        fp32_bytes=68_600,
        bundle_bytes=18_000,
        devices_active=2,
        active_devices=["pi-1", "pi-4"],
        reason="publish",
        age_s=64.0,
    )
    return [fleet_pb2.PolicyInfo(version=12), shown]


def test_a_policy_is_described_with_its_sizes_its_gaps_and_who_runs_it() -> None:
    lines = describe_policy(policy_item(policy_of(two_policies(), 7)))
    by_title = {line[:15].strip(): line[15:] for line in lines if line[:15].strip()}
    assert by_title["Created"] == "2023-11-14 22:13:20+00:00 (1m4s ago)"
    assert by_title["Size"] == "weights 17.2 KB (68.6 KB as fp32), a device downloads 18.0 KB"
    assert by_title["Gap"] == "by quantization 1.25e-04 nats"
    assert any(line.strip() == "by staleness 3.50e-03 nats" for line in lines)
    assert by_title["Agreement"].startswith("99.6 %")
    assert by_title["Digest"] == DIGEST.hex()
    assert by_title["Devices"] == "pi-1, pi-4"


def test_a_gap_that_was_not_measured_is_a_dash_and_null() -> None:
    item = policy_item(policy_of(two_policies(), 12))
    assert item["kl_staleness"] is None
    assert any(line.strip() == "by staleness -" for line in describe_policy(item))
    assert any(line.endswith("none runs it") for line in describe_policy(item))


def test_a_version_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ShoalError, match=r"no policy v9: v7 to v12 are kept, the nearest is v7"):
        policy_of(two_policies(), 9)
    with pytest.raises(ShoalError, match="no policy was published yet"):
        policy_of([], 1)


def test_an_audit_ends_with_the_total_and_the_oldest_age() -> None:
    def entry(name: str, age_s: float) -> fleet_pb2.DeviceAudit:
        audit = fleet_pb2.Audit(produced=5, trained=5, balanced=True)
        return fleet_pb2.DeviceAudit(device_id=name, audit=audit, telemetry_age_s=age_s)

    total = fleet_pb2.Audit(produced=10, trained=9, balanced=False)
    listing = audit_list(
        fleet_pb2.AuditResponse(total=total, devices=[entry("pi-1", 9.0), entry("pi-2", 1.0)])
    )
    header, first, _, last = table(listing)
    assert header == [
        *("NAME", "PRODUCED", "TRAINED", "EXPIRED", "DROPPED", "REJECTED", "IN-FLIGHT"),
        *("BALANCED", "AGE"),
    ]
    assert first == ["pi-1", "5", "5", "0", "0", "0", "0", "yes", "9s"]
    assert last == ["TOTAL", "10", "9", "0", "0", "0", "0", "NO", "9s"]
    out = io.StringIO()
    write_listing(listing, Format.JSON, out)
    envelope = json.loads(out.getvalue())
    assert envelope["schema"] == "shoal.v1.Audit"
    assert envelope["total"]["balanced"] is False
    assert [item["device_id"] for item in envelope["items"]] == ["pi-1", "pi-2"]
