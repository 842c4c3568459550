"""What came out when a device's decisions were made again, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoalctl.output import Item, Value

if TYPE_CHECKING:
    from cloud_learner.journal.reader import JournaledRun
    from cloud_learner.journal.reproduce import Report


def report_item(report: Report, run: JournaledRun) -> Item:
    """The result for programs."""
    first: Value = None
    if report.first is not None:
        difference = report.first
        first = {
            "device_id": run.key.device_id,
            "seq": difference.seq,
            "step": difference.step,
            "env": difference.env,
            "what": difference.what,
            "recorded": difference.recorded,
            "recomputed": difference.recomputed,
        }
    return {
        "device_id": run.key.device_id,
        "run_id": run.key.run_id.hex(),
        "chunks": report.chunks,
        "decisions": report.decisions,
        "differing": report.differing,
        "chunks_without_policy": report.without_policy,
        "versions_not_kept": None if report.versions_gone is None else list(report.versions_gone),
        "precisions": sorted(report.precisions),
        "first_chunk": run.first_seq,
        "reproduced": report.chunks > 0 and report.differing == 0,
        "first_difference": first,
    }


def gone_versions(item: Item) -> str:
    """Which policy versions could not be compared with."""
    gone = item["versions_not_kept"]
    if not isinstance(gone, list):
        return "none"
    low, high = gone
    return f"v{low}" if low == high else f"v{low} to v{high}"


def _rounding_lines(item: Item) -> list[str]:
    """What floats make of bit for bit: only policies that are int8 throughout do without."""
    precisions = item["precisions"]
    inexact = (
        [each for each in precisions if each != "int8"] if isinstance(precisions, list) else []
    )
    if not inexact:
        return []
    line = (
        f"  some acted in {', '.join(map(str, inexact))}: that comes out bit for bit only on a "
        "processor that rounds as the device's does"
    )
    if item["differing"]:
        line += ", so this need not be the device's fault; --tolerance 1e-4 compares less strictly"
        if "int8_dynamic" in inexact:
            line += " (of int8_dynamic try 0.01: what is rounded otherwise moves a whole unit)"
    return [line]


def report_text(item: Item) -> str:
    """The result for people."""
    who = f"{item['device_id']}, run {str(item['run_id'])[:8]}"
    what = f"{item['decisions']:,} decisions in {item['chunks']:,} chunks made again"
    lines = [f"{who}: {what}, {item['differing']:,} differ"]
    if item["chunks_without_policy"]:
        lines.append(
            f"  {item['chunks_without_policy']:,} chunks not compared: their policies are not kept "
            f"any more, {gone_versions(item)}; higher policies_retain_bytes in learner.toml keep "
            "more"
        )
    if item["first_chunk"]:
        lines.append(
            f"  the journal holds the run from chunk {item['first_chunk']} on, and counts episodes "
            "from there; a higher journal.retain_bytes in learner.toml keeps more"
        )
    lines += _rounding_lines(item)
    first = item["first_difference"]
    if isinstance(first, Mapping):
        where = f"chunk {first['seq']}, step {first['step']}, environment {first['env']}"
        lines += [
            f"  first: {where}: {first['what']}",
            f"    recorded   {first['recorded']}",
            f"    recomputed {first['recomputed']}",
        ]
    return "\n".join(lines)
