"""Figures of a measurement: as the installed `shoal bench actor --policy` has them."""

from shoalctl.measurement.report import (
    Cell,
    Machine,
    envelope,
    finite,
    median,
    table,
    this_machine,
    versions,
)

__all__ = [
    "Cell",
    "Machine",
    "envelope",
    "finite",
    "median",
    "table",
    "this_machine",
    "versions",
]
