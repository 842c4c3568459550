"""How two policy versions differ, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoalctl.output import NOTHING, Item, Value, size
from shoalctl.views.cells import number
from shoalctl.views.policies import policy_item

if TYPE_CHECKING:
    from cloud_learner.downlink.published import Published
    from shoal.v1 import fleet_pb2
    from shoalctl.policies.difference import Difference

_NAME_WIDTH = 24


def difference_item(
    first: Published,
    second: Published,
    found: Difference,
    known: Sequence[fleet_pb2.PolicyInfo],
) -> dict[str, Value]:
    """The difference for programs; `known` is what the learner says of the two."""
    decisions: Value = None
    if found.decisions is not None:
        decisions = {
            "rows": found.decisions.rows,
            "agreement": found.decisions.agreement,
            "kl": found.decisions.kl,
        }
    return {
        "versions": [policy_item(each) for each in known],
        "same_graph": found.same_graph,
        "same_tensors": first.manifest.tensors_digest == second.manifest.tensors_digest,
        "delta_bytes": found.delta_bytes,
        "bundle_bytes": len(second.bundle),
        "decisions": decisions,
        "tensors": [
            {
                "name": tensor.name,
                "numbers": tensor.numbers,
                "changed": tensor.changed,
                "largest_change": tensor.largest,
                "integers": tensor.integers,
            }
            for tensor in found.tensors
        ],
    }


def difference_lines(item: Item) -> list[str]:
    """The difference for people; tensors that are the same are counted, not listed."""
    first, second = _items(item["versions"])
    lines = [
        f"{'':<12}{'v' + str(first['version']):>14}{'v' + str(second['version']):>14}",
        _row("updates", first, second, "updates", "{:,.0f}"),
        f"{'precision':<12}{first['precision']:>14}{second['precision']:>14}",
        _row("quant. gap", first, second, "kl_quantization", "{:.2e}"),
        _row("stale. gap", first, second, "kl_staleness", "{:.2e}"),
        _row("agreement", first, second, "agreement", "{:.1%}"),
        "",
        _refresh(item),
        _decisions(item),
    ]
    if item["same_graph"]:
        lines += ["", *_tensors(_items(item["tensors"]))]
    return lines


def _items(value: Value) -> list[Item]:
    assert isinstance(value, list)  # noqa: S101 - as made above
    return value


def _row(title: str, first: Item, second: Item, key: str, form: str) -> str:
    told = [
        NOTHING if each[key] is None else form.format(number(each[key])) for each in (first, second)
    ]
    return f"{title:<12}{told[0]:>14}{told[1]:>14}"


def _refresh(item: Item) -> str:
    whole = size(number(item["bundle_bytes"]))
    if item["delta_bytes"] is None:
        return f"refresh     {whole}, whole: they are of two graphs"
    return f"refresh     {size(number(item['delta_bytes']))} as a delta, {whole} whole"


def _decisions(item: Item) -> str:
    decisions = item["decisions"]
    if not isinstance(decisions, dict):
        return "decisions   not compared: no device is known that acts in what both are for"
    return (
        f"decisions   {decisions['agreement']:.1%} alike, KL {decisions['kl']:.2e} nats, on "
        f"{decisions['rows']} golden observations"
    )


def _tensors(tensors: Sequence[Item]) -> list[str]:
    changed = [each for each in tensors if number(each["changed"])]
    lines = [f"{'TENSOR':<{_NAME_WIDTH}}{'NUMBERS':>10}{'CHANGED':>10}{'LARGEST':>16}"]
    for each in changed:
        largest = number(each["largest_change"])
        told = f"{largest:,.0f} units" if each["integers"] else f"{largest:.3g}"
        lines.append(
            f"{each['name']!s:<{_NAME_WIDTH}}{number(each['numbers']):>10,.0f}"
            f"{number(each['changed']):>10.1%}{told:>16}"
        )
    same = len(tensors) - len(changed)
    if not changed:
        return [f"all {same} tensors are the same"]
    return [*lines, f"{same} more tensors are the same"] if same else lines
