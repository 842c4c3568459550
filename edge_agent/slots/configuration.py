"""What a bundle says of a device's configuration, beside what the device has: never overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge_agent.slots.files import write_durably
from edge_agent.slots.layout import Layout

AGENT_NAME: Final = "agent.toml"
SEED_NAME: Final = "seed.json"
_BESIDE_IT: Final = ("policy.pub", SEED_NAME)


def lay(
    layout: Layout,
    source: Path,
    *,
    device: str = "",
    replace: bool = False,
    tell: Callable[[str], object] = lambda _line: None,
) -> None:
    """Takes the files of a bundle's `config/` that the device lacks; lays others beside its own.

    Args:
        layout: Where.
        source: The directory; a file that it lacks is left out.
        device: The name that the device enrols with; empty: as its seed says already.
        replace: Take the bundle's where they differ, and keep the device's as `NAME.before`.
        tell: Hears of what differs.

    Raises:
        OSError: Something can't be read or written.
    """
    wanted = {layout.config: source / AGENT_NAME}
    wanted |= {layout.config.parent / name: source / name for name in _BESIDE_IT}
    for target, path in wanted.items():
        if not path.exists():
            continue
        content, there = path.read_bytes(), target.read_bytes() if target.exists() else None
        if path.name == SEED_NAME:
            if device and there is not None and _name_in(there) not in ("", device):
                there = _named(there, device)
                write_durably(target, there)
            content = _named(content, device or _name_in(there))
        if there == content:
            target.with_name(f"{target.name}.new").unlink(missing_ok=True)
        elif there is None or replace:
            if there is not None:
                write_durably(target.with_name(f"{target.name}.before"), there)
            write_durably(target, content)
        else:
            write_durably(target.with_name(f"{target.name}.new"), content)
            tell(
                f"{target} differs from the bundle's and is kept; the bundle's lies beside it as "
                f"{target.name}.new"
            )


def _name_in(seed: bytes | None) -> str:
    """The name that a seed gives; a damaged one gives none, and differs from the bundle's."""
    try:
        table = json.loads(seed or b"{}")
    except ValueError:
        return ""
    return str(table.get("device", "")) if isinstance(table, dict) else ""


def _named(seed: bytes, device: str) -> bytes:
    """A seed with the name of this device in it."""
    return json.dumps({**json.loads(seed), "device": device}).encode() if device else seed
