"""Who was enrolled, with what, and what happened: one SQLite database beside the fleet's keys.

Commands and the server open it at the same time. Every change is one transaction that survives a
power cut once it returned; a token is counted in the transaction that uses it.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from shoal.errors import ConfigError
from shoalctl.enrollment.tokens import TokenRecord

PENDING, APPROVED, DENIED = "pending", "approved", "denied"
MAX_EVENTS: Final = 10_000
"""Events kept; beyond, the oldest go. Counters never do."""
MAX_MESSAGE_CHARACTERS: Final = 500
BUSY_TIMEOUT_S: Final = 10.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, device_id TEXT, uses INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0, created_s REAL NOT NULL, expires_s REAL NOT NULL,
    revoked INTEGER NOT NULL DEFAULT 0, "replace" INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS devices (
    device_id TEXT PRIMARY KEY, key_digest BLOB NOT NULL, enrolled_s REAL NOT NULL,
    enrolled_by TEXT NOT NULL, revoked_s REAL
) STRICT;
CREATE TABLE IF NOT EXISTS certificates (
    serial TEXT PRIMARY KEY, device_id TEXT NOT NULL, issued_s REAL NOT NULL,
    expires_s REAL NOT NULL, revoked_s REAL
) STRICT;
CREATE INDEX IF NOT EXISTS certificates_of ON certificates (device_id);
CREATE TABLE IF NOT EXISTS requests (
    device_id TEXT PRIMARY KEY, key_digest BLOB NOT NULL, address TEXT NOT NULL,
    created_s REAL NOT NULL, state TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, unix_s REAL NOT NULL, severity TEXT NOT NULL,
    name TEXT NOT NULL, device_id TEXT NOT NULL, message TEXT NOT NULL, fields TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS posted (id INTEGER PRIMARY KEY CHECK (id = 0), seq INTEGER NOT NULL)
STRICT;
"""

_DEVICES: Final = """
SELECT device_id, key_digest, enrolled_s, enrolled_by, revoked_s, coalesce(
    (SELECT max(expires_s) FROM certificates c WHERE c.device_id = d.device_id), 0.0
) FROM devices d"""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A name that was given away.

    Attributes:
        device_id: The name.
        key_digest: The sha256 of the key that holds it.
        enrolled_s: Unix time.
        enrolled_by: `token ID`, `operator`, or `certificate` (it had one from elsewhere).
        revoked_s: Unix time; None while it is a member.
        expires_s: When the last of its certificates ends, Unix time.
    """

    device_id: str
    key_digest: bytes
    enrolled_s: float
    enrolled_by: str
    revoked_s: float | None
    expires_s: float


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A device without a token that waits for an operator; `state`: pending, approved or denied."""

    device_id: str
    key_digest: bytes
    address: str
    created_s: float
    state: str


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened."""

    seq: int
    unix_s: float
    severity: str
    name: str
    device_id: str
    message: str
    fields: Mapping[str, str]


class EnrollmentStore:
    """The database; usable from any thread, and by several processes.

    with EnrollmentStore(directory / "enrollment.sqlite") as store, store.transaction():
        store.use_token(token_id)
    """

    def __init__(self, path: Path) -> None:
        """Opens the database, or makes it; only its owner may read it.

        Raises:
            ConfigError: It can't be opened.
        """
        self._lock = threading.RLock()
        try:
            path.touch(mode=0o600, exist_ok=True)
            self._db = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"can't open {path}: {error}") from error

    def __enter__(self) -> Self:
        """Is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the database."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block happens, durably, or nothing of it; other writers wait."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # ---------------------------------------------------------------------------------- tokens

    def add_token(self, record: TokenRecord) -> None:
        """Keeps a new token."""
        self._do(
            "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(record.id, record.digest, record.device_id, record.uses, record.used),
            *(record.created_s, record.expires_s, int(record.revoked), int(record.replace)),
        )

    def token(self, token_id: str) -> TokenRecord | None:
        """A token by its id."""
        found = self._read("SELECT * FROM tokens WHERE id = ?", token_id)
        return _token(found[0]) if found else None

    def tokens(self) -> Sequence[TokenRecord]:
        """All, the newest first."""
        return [_token(row) for row in self._read("SELECT * FROM tokens ORDER BY created_s DESC")]

    def use_token(self, token_id: str) -> None:
        """Counts a use."""
        self._do("UPDATE tokens SET used = used + 1 WHERE id = ?", token_id)

    def revoke_token(self, token_id: str) -> bool:
        """Takes a token back; whether there is one."""
        return self._do("UPDATE tokens SET revoked = 1 WHERE id = ?", token_id) > 0

    # --------------------------------------------------------------------------------- devices

    def put_device(self, device_id: str, key_digest: bytes, *, now_s: float, by: str) -> None:
        """Gives a name to a key, whoever had it before."""
        self._do(
            "INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?, NULL)",
            *(device_id, key_digest, now_s, by),
        )

    def device(self, device_id: str) -> DeviceRecord | None:
        """Who has a name."""
        found = self._read(f"{_DEVICES} WHERE device_id = ?", device_id)
        return DeviceRecord(*found[0]) if found else None

    def devices(self) -> Sequence[DeviceRecord]:
        """All, sorted by name."""
        return [DeviceRecord(*row) for row in self._read(f"{_DEVICES} ORDER BY device_id")]

    def add_certificate(
        self, serial: int, device_id: str, *, issued_s: float, expires_s: float
    ) -> None:
        """Notes a certificate, so that it can be revoked."""
        self._do(
            "INSERT OR IGNORE INTO certificates VALUES (?, ?, ?, ?, NULL)",
            *(f"{serial:x}", device_id, issued_s, expires_s),
        )

    def revoke_certificates(self, device_id: str, *, now_s: float) -> int:
        """Revokes all certificates of a name; returns how many."""
        return self._do(
            "UPDATE certificates SET revoked_s = ? WHERE device_id = ? AND revoked_s IS NULL",
            *(now_s, device_id),
        )

    def revoke_device(self, device_id: str, *, now_s: float) -> None:
        """Notes that a name is not a member any more."""
        self._do("UPDATE devices SET revoked_s = ? WHERE device_id = ?", now_s, device_id)

    def is_revoked(self, serial: int) -> bool:
        """Whether a certificate was revoked."""
        statement = "SELECT 1 FROM certificates WHERE serial = ? AND revoked_s IS NOT NULL"
        return bool(self._read(statement, f"{serial:x}"))

    def revoked(self, *, ended_after_s: float = 0.0) -> Mapping[int, float]:
        """Serial numbers of revoked certificates, and since when, Unix time.

        Args:
            ended_after_s: Leaves out those that had ended by then, which nobody trusts anyway.
        """
        statement = "SELECT serial, revoked_s FROM certificates WHERE revoked_s IS NOT NULL"
        rows = self._read(f"{statement} AND expires_s > ?", ended_after_s)
        return {int(serial, 16): since_s for serial, since_s in rows}

    # -------------------------------------------------------------------------------- requests

    def put_request(self, request: RequestRecord) -> None:
        """Keeps a request, or changes it."""
        self._do(
            "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?)",
            *(request.device_id, request.key_digest, request.address),
            *(request.created_s, request.state),
        )

    def request(self, device_id: str) -> RequestRecord | None:
        """The request for a name."""
        found = self._read("SELECT * FROM requests WHERE device_id = ?", device_id)
        return RequestRecord(*found[0]) if found else None

    def requests(self) -> Sequence[RequestRecord]:
        """All, the oldest first."""
        rows = self._read("SELECT * FROM requests ORDER BY created_s")
        return [RequestRecord(*row) for row in rows]

    def drop_request(self, device_id: str) -> None:
        """Forgets a request."""
        self._do("DELETE FROM requests WHERE device_id = ?", device_id)

    def drop_requests_before(self, unix_s: float) -> int:
        """Forgets those that nobody decided; returns how many."""
        return self._do("DELETE FROM requests WHERE created_s < ?", unix_s)

    # ---------------------------------------------------------------------------------- events

    def add_event(
        self, name: str, message: str, *, severity: str, device_id: str, now_s: float, **fields: str
    ) -> None:
        """Notes what happened, and counts it by name and reason."""
        counter = f"{name}.{fields['reason']}" if "reason" in fields else name
        self.count(counter)
        self._do(
            "INSERT INTO events (unix_s, severity, name, device_id, message, fields)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            *(now_s, severity, name, device_id[:63], message[:MAX_MESSAGE_CHARACTERS]),
            json.dumps(fields, sort_keys=True),
        )
        self._do("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?", MAX_EVENTS)

    def events(self, *, device_id: str | None = None, limit: int = 100) -> Sequence[EventRecord]:
        """The newest first."""
        rows = self._read(
            "SELECT * FROM events WHERE ? IS NULL OR device_id = ? ORDER BY seq DESC LIMIT ?",
            *(device_id, device_id, limit),
        )
        return [_event(*row) for row in rows]

    def unposted_events(self, *, limit: int) -> Sequence[EventRecord]:
        """What the fleet was not told yet, the oldest first."""
        rows = self._read(
            "SELECT * FROM events WHERE seq > coalesce((SELECT seq FROM posted), 0)"
            " ORDER BY seq LIMIT ?",
            limit,
        )
        return [_event(*row) for row in rows]

    def set_posted(self, seq: int) -> None:
        """The fleet was told of all events up to one."""
        self._do("INSERT OR REPLACE INTO posted VALUES (0, ?)", seq)

    def count(self, name: str) -> None:
        """Counts one more."""
        self._do(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1", name
        )

    def counters(self) -> Mapping[str, int]:
        """All counts since the fleet was made."""
        return dict(self._read("SELECT name, count FROM counters ORDER BY name"))

    def _do(self, statement: str, *values: object) -> int:
        with self._lock:
            return self._db.execute(statement, values).rowcount

    def _read(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()


def _token(row: tuple[Any, ...]) -> TokenRecord:
    token_id, digest, device_id, uses, used, created_s, expires_s, revoked, replace = row
    return TokenRecord(
        token_id,
        digest,
        device_id,
        uses,
        used,
        created_s,
        expires_s,
        revoked=bool(revoked),
        replace=bool(replace),
    )


def _event(
    seq: int, unix_s: float, severity: str, name: str, device_id: str, message: str, fields: str
) -> EventRecord:
    return EventRecord(seq, unix_s, severity, name, device_id, message, json.loads(fields))
