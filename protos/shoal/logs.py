"""Logs: an event name and key=values. JSON lines when nobody watches."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass, field

Field = str | int | float | bool | bytes | None
_FIELDS = "shoal_fields"


@dataclass(frozen=True, slots=True)
class Logger:
    """Writes events.

    log = get_logger("ingest").bind(device_id="pi-1")
    log.warning("chunk_rejected", reason="fingerprint", seq=4)
    """

    name: str
    fields: dict[str, Field] = field(default_factory=dict)

    def bind(self, **fields: Field) -> Logger:
        """A logger that adds these fields to each event."""
        return Logger(self.name, {**self.fields, **fields})

    def debug(self, event: str, **fields: Field) -> None:
        """For whoever is looking for a fault."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Field) -> None:
        """Something went as it should."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        """Something was lost, refused or late, and the process goes on."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Field) -> None:
        """Something needs a person."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Field]) -> None:
        logger = logging.getLogger(f"shoal.{self.name}")
        if logger.isEnabledFor(level):
            logger.log(level, event, extra={_FIELDS: {**self.fields, **fields}})


def get_logger(name: str) -> Logger:
    """The logger of one module."""
    return Logger(name)


def setup_logging(level: str = "INFO") -> None:
    """Sends events to stderr: lines for people on a terminal, else one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter() if sys.stderr.isatty() else _JsonFormatter())
    root = logging.getLogger("shoal")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, str | int | float | bool | None]:
    found = getattr(record, _FIELDS, {})
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in found.items()}


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        pairs = " ".join(f"{key}={value!s}" for key, value in _fields(record).items())
        stamp = self.formatTime(record, "%H:%M:%S")
        name = record.name.removeprefix("shoal.")
        return (
            f"{stamp} {record.levelname.lower():7} {name}: {record.getMessage()} {pairs}".rstrip()
        )


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("shoal."),
            "event": record.getMessage(),
        }
        return json.dumps({**head, **_fields(record)}, default=str)
