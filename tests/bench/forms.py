"""What a decision costs in each form a device may act in, by kind and size of the network.

    python tests/bench/forms.py                  # every network; about a minute
    python tests/bench/forms.py --quick          # two of them, few decisions
    python tests/bench/forms.py -o json

fp32 (float twin), int8 static (as published) and int8 dynamic (dynamic twin), for 1 observation and
for 8, on bound arrays as the control loop has it, in turn; parity is that with fp32. Weights are
drawn, not trained: times do not depend on them, and parity hardly. The last column is what
`actor.precision = "auto"` would make of the times.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a program
    sys.path.insert(0, str(HERE.parent))

from networks import Case, make_case, pixels  # noqa: E402

from cloud_learner.config import NetworkConfig  # noqa: E402
from cloud_learner.quantization.quantize import Quantizer  # noqa: E402
from edge_agent.precisions.comparison import Line, Rows, measure  # noqa: E402
from edge_agent.precisions.forms import Source, forms_of  # noqa: E402
from shoal.layout import ActionLayout  # noqa: E402
from shoal.policy import Manifest, sha256  # noqa: E402
from shoal.spaces import Discrete, Space, unbounded  # noqa: E402
from shoalctl.measurement.precisions import verdict_of  # noqa: E402
from shoalctl.measurement.report import Cell, envelope, table, this_machine, versions  # noqa: E402

ENVS: Final = 8
CALLS: Final = 2000
QUICK: Final = ("64", "2x512")
NETWORKS: Final[dict[str, tuple[Space, NetworkConfig]]] = {
    "64": (unbounded((8,)), NetworkConfig(hidden=(64,))),
    "2x64": (unbounded((8,)), NetworkConfig(hidden=(64, 64))),
    "256": (unbounded((24,)), NetworkConfig(hidden=(256,))),
    "2x256": (unbounded((24,)), NetworkConfig(hidden=(256, 256))),
    "512": (unbounded((64,)), NetworkConfig(hidden=(512,))),
    "2x512": (unbounded((64,)), NetworkConfig(hidden=(512, 512))),
    "2x1024": (unbounded((64,)), NetworkConfig(hidden=(1024, 1024))),
    "CNN 84x84x4": (pixels(84, 84, 4), NetworkConfig()),
    "LSTM 256": (unbounded((24,)), NetworkConfig(kind="lstm", hidden=(256,))),
}

_HEADINGS: Final = (
    "network",
    "envs",
    "fp32 us",
    "static us",
    "dynamic us",
    "static KL",
    "dyn. KL",
    "auto",
)


def source_of(case: Case) -> Source:
    """A policy as it would be published."""
    quantizer = Quantizer(case.policy, kl_max=np.inf)
    quantized = quantizer.quantize(case.policy, case.sample)
    graph, float_graph = quantizer.graphs["int8"], quantizer.graphs["fp32"]
    manifest = Manifest(
        fleet="bench",
        version=1,
        updates=0,
        graph_digest=sha256(graph),
        graph_bytes=len(graph),
        tensors_digest=bytes(32),
        tensors_bytes=1,
        golden_digest=bytes(32),
        spec_fingerprint=case.spec.fingerprint,
        precision="int8",
        created_unix_ms=0,
        kl_quantization=0.0,
        reason="bench",
        float_graph_digest=sha256(float_graph),
    )
    return Source("drawn", "", graph, quantized.tensors, float_graph, manifest)


def lines_of(name: str, calls: int) -> list[Line]:
    """The forms of one network, for 1 observation and for `ENVS`."""
    space, network = NETWORKS[name]
    case = make_case(space, Discrete(4), network)
    forms = forms_of([source_of(case)], case.spec)
    states = case.sample.states if case.sample.states.shape[1] else None
    rows = Rows(case.sample.observations, case.noise, states)
    return measure(forms, rows, ActionLayout.of(case.spec.action), ENVS, calls)


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two networks, few decisions")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    given = parser.parse_args(arguments)
    machine = this_machine()
    rows: list[list[Cell]] = []
    found = []
    for name in QUICK if given.quick else NETWORKS:
        calls = CALLS // 10 if given.quick or name.startswith("CNN") else CALLS
        lines = lines_of(name, calls)
        found.append({"network": name, "lines": [asdict(line) for line in lines]})
        for envs in (1, ENVS):
            at = [line for line in lines if line.envs == envs]
            times = [line.p50_us for line in at]
            gaps = [None if line.kl is None else f"{line.kl:.1e}" for line in at[1:]]
            rows.append([name, envs, *times, *gaps, verdict_of(lines, envs).rpartition(" ")[2]])
    body: dict[str, object] = {
        "versions": versions("shoal", "onnxruntime", "numpy"),
        "networks": found,
    }
    document = envelope("shoal.v1.BenchForms", machine, body) + "\n"
    if given.out is not None:
        given.out.write_text(document, encoding="utf-8")
    text = f"{machine.text}\n\n{table(_HEADINGS, rows)}\n"
    sys.stdout.write(document if given.output == "json" else text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
