"""Memory, size and cold start of the agent, beside the same actor on torch.

    python tests/bench/footprint.py --repeats 5 -o json

The agent runs whole: `shoal agent run` with mutual TLS to the embedded broker and to a parameter
server. A cold start is from the start of its process to the first step of its environment, with a
policy on its disk, or none and one on the server. README.md, beside this file, says more.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

from bench.child import now_s, say  # noqa: E402
from bench.fleet_site import FLEET, HOST, Site, running_site  # noqa: E402
from bench.footprint_policy import WEIGHTS_FILE, publish_apart, serve_policies  # noqa: E402
from bench.footprint_size import (  # noqa: E402
    SIZE_BAR_MB,
    Size,
    fresh_sizes,
    installed_size,
)
from bench.part import Part  # noqa: E402
from bench.report import Machine, envelope, median, table, this_machine, versions  # noqa: E402

SCHEMA = "shoal.v1.BenchFootprint"
AGENT, ON_DISK, FROM_SERVER = "shoal agent", "policy on disk", "policy from the server"
TORCH = "the same actor on torch"
LIBRARIES = "its libraries alone"
RSS_BAR_MB, START_BAR_S = 100.0, 1.5
DEVICE = "bench-0"
START_TIMEOUT_S = 60.0
LOOK_S = 0.005
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Start:
    """One process, from its start on.

    Attributes:
        actor: Who acts.
        start: Where its policy came from.
        first_action_s: From the process's start to the first step of its environment.
        cpu_s: Processor time until then, all threads: a busy machine changes it less.
        rss_mb: Resident memory after `settle_s`, in 10^6 bytes.
        private_mb: Of that, what is no page of a library's file: the process's own.
        pss_mb: Where each page that others have as well counts for its part: what one more agent
            costs a machine that has some. Those of this bench use the same libraries.
        threads: Of the process, then.
    """

    actor: str
    start: str
    first_action_s: float
    cpu_s: float
    rss_mb: float
    private_mb: float
    pss_mb: float
    threads: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when every bar is met."""
    parser = argparse.ArgumentParser(prog="shoal bench footprint", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", default="64,64", help="widths of the network")
    parser.add_argument("--envs", type=int, default=1, help="environments of the device")
    parser.add_argument("--settle-s", type=float, default=8.0, help="before memory is read")
    parser.add_argument("--quick", action="store_true", help="one repeat, and no fresh venv")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", dest="format")
    given = parser.parse_args(arguments)
    repeats, settle_s = (1, 3.0) if given.quick else (given.repeats, given.settle_s)
    machine = this_machine()
    starts: list[Start] = []
    with (
        tempfile.TemporaryDirectory(dir=HERE) as name,
        running_site(Path(name), (DEVICE,)) as site,
        _served(site, Path(name), given.hidden) as server_port,
    ):
        directory = Path(name)
        for repeat in range(repeats):
            state = directory / f"state-{repeat}"
            config = write_config(directory, site, server_port, state, given.envs)
            command: tuple[str, ...]
            command = (sys.executable, "-m", "shoalctl.cli", "agent", "run", "--config", config)
            starts += [
                _start(AGENT, start, command, directory, settle_s)
                for start in (FROM_SERVER, ON_DISK)
            ]
            command = (
                *(sys.executable, "-c", "from bench.footprint_libraries import main; main()"),
                *(FLEET, str(site.identity(DEVICE)), str(site.port), str(server_port)),
                str(directory / "probe"),
            )
            starts.append(_start(LIBRARIES, FROM_SERVER, command, directory, settle_s))
            state = directory / f"torch-{repeat}"
            state.mkdir()
            command = (
                *(sys.executable, "-c", "from bench.footprint_torch import main; main()"),
                *(FLEET, str(site.identity(DEVICE)), str(site.port), str(state)),
                *(str(directory / WEIGHTS_FILE), str(directory / "probe"), str(given.envs)),
            )
            starts.append(_start(TORCH, ON_DISK, command, directory, settle_s))
    say("measuring sizes")
    sizes = [] if given.quick else fresh_sizes(AGENT)
    sizes += [
        installed_size(AGENT, "shoal", bar_mb=SIZE_BAR_MB),
        installed_size(TORCH, "shoal", "torch", less=("onnxruntime",)),
    ]
    report = envelope(
        SCHEMA,
        machine,
        {
            "versions": versions("shoal", "onnxruntime", "torch", "grpcio", "numpy"),
            "starts": [asdict(start) for start in starts],
            "sizes": [asdict(size) for size in sizes],
            "medians": medians_of(starts),
            "to_torch": ratios_to_torch(starts),
            "bars": {"first_action_s": START_BAR_S, "rss_mb": RSS_BAR_MB, "size_mb": SIZE_BAR_MB},
            "met": met(starts, sizes),
        },
    )
    if given.out is not None:
        given.out.write_text(report + "\n", encoding="utf-8")
    sys.stdout.write((report if given.format == "json" else text_of(machine, starts, sizes)) + "\n")
    return 0 if met(starts, sizes) else 1


def write_config(directory: Path, site: Site, server_port: int, state: Path, envs: int) -> str:
    """Writes an agent's configuration and returns its path."""
    path = directory / "agent.toml"
    path.write_text(
        f'fleet = "{FLEET}"\n'
        f'identity = "{site.identity(DEVICE)}"\n'
        f'state_dir = "{state}"\n'
        "[env]\n"
        'id = "bench.footprint_env:ProbedCartPole"\n'
        f"num_envs = {envs}\n"
        f'kwargs = {{ probe = "{directory / "probe"}" }}\n'
        f'[broker]\nhost = "{HOST}"\nport = {site.port}\n'
        f'[parameter_server]\nhost = "{HOST}"\nport = {server_port}\n',
        "utf-8",
    )
    return str(path)


def _start(
    actor: str, start: str, command: Sequence[str], directory: Path, settle_s: float
) -> Start:
    probe, log = directory / "probe", directory / "stderr.log"
    probe.unlink(missing_ok=True)
    with log.open("wb") as errors:
        started_s = now_s()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=HERE.parent,
            start_new_session=True,
        )
    try:
        while not probe.exists():
            if process.poll() is not None or now_s() - started_s > START_TIMEOUT_S:
                raise SystemExit(f"{actor} did not act:\n{log.read_text('utf-8')[-2000:]}")
            time.sleep(LOOK_S)
        seen = psutil.Process(process.pid)
        used = seen.cpu_times()
        first_s = float(probe.read_text("utf-8")) - started_s
        time.sleep(settle_s)
        memory, threads = seen.memory_full_info(), seen.num_threads()
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    rss, private = memory.rss, memory.rss - memory.shared  # `shared`: Linux's file and shm pages
    found = Start(
        *(actor, start, round(first_s, 3), round(used.user + used.system, 2)),
        *(round(rss / 1e6, 1), round(private / 1e6, 1), round(memory.pss / 1e6, 1), threads),
    )
    say(f"{actor}, {start}: {found.first_action_s:.2f} s, {found.rss_mb:.0f} MB")
    return found


@contextmanager
def _served(site: Site, directory: Path, hidden: str) -> Iterator[int]:
    widths = [int(width) for width in hidden.split(",")]
    maker = Part(publish_apart, site.identity("learner"), directory, widths)
    maker.hear()
    maker.end()
    server = Part(serve_policies, site.identity("learner"), directory)
    try:
        yield server.hear()
    finally:
        server.tell("end")
        server.end()


def medians_of(starts: Sequence[Start]) -> dict[str, dict[str, float]]:
    """By actor and start: seconds to the first action, and memory."""
    kinds = dict.fromkeys((each.actor, each.start) for each in starts)
    return {
        f"{actor}, {start}": {
            name: median([getattr(s, name) for s in starts if (s.actor, s.start) == (actor, start)])
            for name in ("first_action_s", "cpu_s", "rss_mb", "private_mb", "pss_mb")
        }
        for actor, start in kinds
    }


def ratios_to_torch(starts: Sequence[Start]) -> dict[str, float]:
    """Of the medians with a policy on the disk: the agent's to those of the same actor on torch."""
    medians = medians_of(starts)
    ours, theirs = medians[f"{AGENT}, {ON_DISK}"], medians[f"{TORCH}, {ON_DISK}"]
    return {name: round(value / theirs[name], 3) for name, value in ours.items()}


def met(starts: Sequence[Start], sizes: Sequence[Size]) -> bool:
    """Whether the agent is within every bar."""
    ours = [value for name, value in medians_of(starts).items() if name.startswith(AGENT)]
    return all(
        value["first_action_s"] <= START_BAR_S and value["rss_mb"] <= RSS_BAR_MB for value in ours
    ) and all(size.bar_mb is None or size.mb <= size.bar_mb for size in sizes)


def text_of(machine: Machine, starts: Sequence[Start], sizes: Sequence[Size]) -> str:
    """What a person reads."""
    rows: list[tuple[str | float, ...]] = [
        (name, *value.values()) for name, value in medians_of(starts).items()
    ]
    size_rows = [
        (size.actor, size.mb, ", ".join(f"{name} {mb:.0f}" for name, mb in size.largest.items()))
        for size in sizes
    ]
    bars = (
        f"bars: first action {START_BAR_S} s, memory {RSS_BAR_MB:.0f} MB, size {SIZE_BAR_MB:.0f} MB"
    )
    return "\n\n".join(
        (
            machine.text,
            table(
                (
                    *("median", "first action s", "of it CPU s"),
                    *("memory MB", "of it private MB", "proportional MB"),
                ),
                rows,
            ),
            table(("size", "MB", "largest, MB"), size_rows),
            bars,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
