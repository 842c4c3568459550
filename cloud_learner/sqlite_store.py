"""A small SQLite file of the learner's: every write is on the disk when its call returns."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from shoal.errors import ShoalError


class SqliteStore:
    """What the stores of single things build on; one connection, usable from any thread.

    class TaskStore(SqliteStore):
        what, tables, schema_version, refusal = "tasks", "CREATE TABLE ...", 1, TaskStoreError

    Attributes:
        what: What it holds, for messages.
        tables: Statements that make its tables in a new file.
        schema_version: Of these tables; a file with a higher one is refused.
        refusal: The error that it raises.
    """

    what: ClassVar[str]
    tables: ClassVar[str]
    schema_version: ClassVar[int]
    refusal: ClassVar[type[ShoalError]]

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            ShoalError: It cannot be opened, or a newer program wrote it; of the store's own kind.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.executescript(
                    f"BEGIN; {self.tables} PRAGMA user_version = {self.schema_version}; COMMIT;"
                )
        except sqlite3.Error as error:
            raise self._failure(error) from error
        if version > self.schema_version:
            self._db.close()
            raise self.refusal(
                f"{path} has schema {version}, this program knows {self.schema_version}; "
                "update it, or use another state_dir"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._db.close()

    def _failure(self, error: sqlite3.Error) -> ShoalError:
        return self.refusal(f"{self.what} {self._path}: {error}; free disk space or check the file")
