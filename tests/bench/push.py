"""What a refresh of weights costs: bytes, from publication to acting, and processor time.

    shoal bench push                        all of it: about 10 minutes
    shoal bench push --quick                20 agents, 100 watchers, few versions: about a minute
    shoal bench push --only bytes,cost -o json
    shoal bench push --only latency --agents 1,10,25,50,100

Bytes are counted while LunarLander-v3 is really learned by APPO with a network of 2 x 256, in one
process and without network. Latencies are of policies that a real parameter server pushes over
gRPC with mutual TLS to real policy stores, several devices to a process, and to watchers, of which
those of one process restore and hash each delta once and build no session. Beside them: a stream of
as many bytes and nothing else. README.md, beside this file, says how to read the result.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from bench.child import say  # noqa: E402
from bench.push_bytes import Bytes, count_bytes, unchanged_bytes  # noqa: E402
from bench.push_cost import Cost, cost_of  # noqa: E402
from bench.push_latency import Latency, Round, latency_of, ratios_to_bare  # noqa: E402
from bench.report import Cell, envelope, table, this_machine, versions  # noqa: E402

SCHEMA: Final = "shoal.v1.BenchPush"
PARTS: Final = ("bytes", "cost", "latency")
LATENCY_BAR_MS: Final = 150.0


def rounds_of(*, quick: bool, agents: Sequence[int] = ()) -> list[Round]:
    """Whom policies are pushed to: so many agents, or what is measured where none are named."""
    if agents:
        versions = 5 if quick else 20
        return [Round("agents", n, min(n, 2), versions=versions, interval_s=1.0) for n in agents]
    if quick:
        return [
            Round("agents", 1, 1, versions=5, interval_s=0.5),
            Round("agents", 20, 2, versions=5, interval_s=0.5),
            Round("watchers", 100, 2, versions=5, interval_s=0.5),
            Round("bare", 100, 2, versions=5, interval_s=0.5),
        ]
    return [
        Round("agents", 1, 1, versions=100, interval_s=0.2),
        Round("agents", 100, 2, versions=20, interval_s=1.0),
        Round("bare", 100, 2, versions=20, interval_s=1.0),
        Round("watchers", 1000, 2, versions=10, interval_s=5.0),
        Round("bare", 1000, 2, versions=10, interval_s=5.0),
    ]


def text_of(
    counted: Bytes | None,
    unchanged: Mapping[str, int] | None,
    costs: list[Cost],
    latencies: list[Latency],
    cores: int,
) -> str:
    """For people."""
    said: list[str] = []
    if counted is not None:
        rows: list[list[Cell]] = [
            ["fp32 tensors", counted.fp32, 1.0],
            ["int8 policy, whole", counted.whole, counted.fp32 / counted.whole],
            ["refresh, median", counted.median, counted.fp32 / counted.median],
            ["refresh, mean", counted.mean, counted.fp32 / counted.mean],
            ["entropy of the steps, median", counted.entropy, counted.fp32 / counted.entropy],
        ]
        learned = (
            f"LunarLander-v3, 2 x 256, {counted.refreshes} refreshes, return"
            f" {counted.return_mean:.0f}, {counted.changed:.0%} of the integers change"
        )
        said += [
            learned,
            table(("bytes of a refresh", "bytes", "fp32 to this"), rows),
        ]
    if unchanged is not None:
        direct, delegated = unchanged["direct"], unchanged["delegated"]
        said.append(
            f"a refresh of unchanged weights: {direct} bytes, {delegated} signed by a delegate"
        )
    if costs:
        rows = [[c.network, c.quantize_ms, c.sign_ms, c.encode_ms, c.total_ms] for c in costs]
        said.append(table(("network (median ms)", "quantize", "sign", "encode", "all"), rows))
    if latencies:
        rows = [
            [
                *(each.kind, each.devices, each.payload_bytes, each.p50_ms, each.p99_ms),
                *(each.missed, each.device_cpu_ms, each.server_cpu_ms),
            ]
            for each in latencies
        ]
        heads = (
            *("published to active", "devices", "bytes", "p50 ms", "p99 ms"),
            *("skipped", "cpu ms of each device", "of the server"),
        )
        said.append(table(heads, rows))
        within = [e.devices for e in latencies if e.kind == "agents" and e.p99_ms <= LATENCY_BAR_MS]
        said.append(
            f"agents of this machine's {cores} cores within {LATENCY_BAR_MS:g} ms (p99):"
            f" {max(within, default=0)} of those tried"
        )
    return "\n\n".join(said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="shoal bench push",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--only", default=",".join(PARTS), help="of bytes, cost, latency")
    parser.add_argument("--dead-zone", type=float, default=0.25)
    parser.add_argument("--seconds", type=float, help="how long to learn (default 300; quick 30)")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    parser.add_argument(
        "--agents",
        help="so many agents, one after the other (such as 1,10,25,50,100), and nothing beside",
    )
    given = parser.parse_args(arguments)
    agents = [int(number) for number in given.agents.split(",")] if given.agents else []
    parts = given.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only: choose of {', '.join(PARTS)}")
    machine = this_machine()
    torch.set_num_threads(1)
    seconds = given.seconds or (30.0 if given.quick else 300.0)
    counted, unchanged = None, None
    costs: list[Cost] = []
    latencies: list[Latency] = []
    if "bytes" in parts:
        say(f"learning LunarLander-v3 for {seconds:g} s")
        counted = count_bytes(seconds, given.dead_zone, given.learning_rate, given.seed)
        unchanged = {
            "direct": unchanged_bytes(),
            "delegated": unchanged_bytes(by_delegate=True),
        }
    if "cost" in parts:
        for network in ("mlp 2x256", "nature cnn"):
            say(f"quantizing {network}")
            costs.append(cost_of(network, 5 if given.quick else 30, given.dead_zone))
    if "latency" in parts:
        for each in rounds_of(quick=given.quick, agents=agents):
            say(f"pushing {each.versions} versions to {each.devices} {each.kind}")
            with tempfile.TemporaryDirectory() as directory:
                latencies.append(asyncio.run(latency_of(each, Path(directory), given.dead_zone)))
    document = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions(
                "shoal", "torch", "onnxruntime", "grpcio", "numpy", "backports.zstd"
            ),
            "plan": {
                "quick": given.quick,
                "dead_zone": given.dead_zone,
                "learning_rate": given.learning_rate,
                "seconds": seconds,
                "seed": given.seed,
            },
            "bytes": None if counted is None else counted.as_json(),
            "unchanged_bytes": None if unchanged is None else unchanged["direct"],
            "unchanged_delegated_bytes": None if unchanged is None else unchanged["delegated"],
            "cost": [each.as_json() for each in costs],
            "latency": [each.as_json() for each in latencies],
            "latency_to_bare": ratios_to_bare(latencies),
        },
    )
    if given.out is not None:
        given.out.write_text(document + "\n", encoding="utf-8")
    text = f"{machine.text}\n\n{text_of(counted, unchanged, costs, latencies, machine.cores)}"
    sys.stdout.write((document if given.format == "json" else text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
