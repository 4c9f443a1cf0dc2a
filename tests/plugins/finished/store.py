"""Object stores at ``paper://``: the path of an SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from typing import Any

from cloudspot.errors import CloudspotError, ObjectExists, ObjectMissing
from cloudspot.interfaces import Data, ObjectStore, Upload, check_key
from cloudspot.model import ObjectMeta, ObjectPage

TABLE = "CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, data BLOB, modified REAL)"


class PaperStore(ObjectStore):
    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        path = self.url.partition("://")[2]
        with closing(sqlite3.connect(path, timeout=60)) as database, database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute(TABLE)
            yield database

    def _one(self, key: str, what: str, *values: int) -> Any:
        check_key(key)
        with self._table() as table:
            found = table.execute(f"SELECT {what} FROM objects WHERE key = ?", (*values, key)).fetchone()
        if found is None:
            raise ObjectMissing(f"{self.url}: there is no {key}")
        return found[0]

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        check_key(key)
        how = "INSERT" if if_absent else "INSERT OR REPLACE"
        try:
            with self._table() as table:
                table.execute(f"{how} INTO objects VALUES (?, ?, ?)", (key, bytes(data), time.time()))
        except sqlite3.IntegrityError as error:
            raise ObjectExists(f"{self.url}: {key} exists") from error

    def get(self, key: str) -> bytes:
        return self._one(key, "data")

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"start and length must not be negative: {start}, {length}")
        return self._one(key, "coalesce(substr(data, ?, ?), x'')", start + 1, length)

    def head(self, key: str) -> ObjectMeta:
        modified_at = datetime.fromtimestamp(self._one(key, "modified"), timezone.utc)
        return ObjectMeta(key=key, size=self._one(key, "length(data)"), modified_at=modified_at)

    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        if limit < 1:
            raise ValueError(f"limit must be positive: {limit}")
        query = (
            "SELECT key, length(data), modified FROM objects"
            " WHERE substr(key, 1, ?) = ? AND key > ? ORDER BY key LIMIT ?"
        )
        with self._table() as table:
            found = table.execute(query, (len(prefix), prefix, after or "", limit + 1)).fetchall()
        objects = tuple(
            ObjectMeta(key=key, size=size, modified_at=datetime.fromtimestamp(modified, timezone.utc))
            for key, size, modified in found[:limit]
        )
        return ObjectPage(objects=objects, next_after=objects[-1].key if len(found) > limit else None)

    def delete(self, key: str) -> None:
        check_key(key)
        with self._table() as table:
            table.execute("DELETE FROM objects WHERE key = ?", (key,))

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        check_key(key)
        return PaperUpload(self, key, if_absent=if_absent)

    def presign_get(self, key: str, *, seconds: float) -> str:
        check_key(key)
        raise CloudspotError(f"{self.url}: paper presigns no URL; give machines the file")


class PaperUpload(Upload):
    def __init__(self, store: PaperStore, key: str, *, if_absent: bool) -> None:
        self._store, self._key, self._if_absent = store, key, if_absent
        self._data: bytearray | None = bytearray()

    def _open(self) -> bytearray:
        if self._data is None:
            raise ValueError("the upload was committed or aborted")
        return self._data

    def write(self, data: Data) -> None:
        self._open().extend(data)

    def commit(self) -> None:
        data, self._data = self._open(), None
        self._store.put(self._key, data, if_absent=self._if_absent)

    def abort(self) -> None:
        self._data = None
