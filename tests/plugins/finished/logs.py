"""Log lines of the paper cloud: a table in its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import msgspec
from cloudspot_paper.provisioner import open_cloud, translated
from cloudspot_paper.sdk import PaperError, knob

from cloudspot.interfaces import LogSink, check_stream
from cloudspot.model import LogRecord

LINES = """
CREATE TABLE IF NOT EXISTS lines
    (store TEXT, job TEXT, stream TEXT, seq INTEGER, time TEXT, source TEXT, text BLOB,
     PRIMARY KEY (store, job, stream, seq))
"""


class PaperLogSink(LogSink):
    def __init__(self, options: msgspec.Struct, job_id: str, *, store_url: str) -> None:
        self._log = (store_url, job_id)

    @contextmanager
    def _table(self, call: str) -> Iterator[sqlite3.Connection]:
        with open_cloud().transaction() as database:
            database.execute(LINES)
            fault = knob(database, call)
            if fault not in (None, "lost answer"):
                raise PaperError(fault)
            yield database
            if fault is not None:
                database.execute("DELETE FROM knobs WHERE name = ?", (call,))
                database.execute("COMMIT")
                raise PaperError("unwell")

    def write(self, records: Sequence[LogRecord]) -> None:
        for one in records:
            check_stream(one.stream)

        def insert() -> None:
            with self._table("write lines") as table:
                table.executemany(
                    "INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (*self._log, one.stream, one.seq, one.time.isoformat(), one.source, one.text.encode())
                        for one in records
                    ],
                )

        translated(insert)

    def streams(self) -> Sequence[str]:
        def select() -> list[str]:
            with self._table("read lines") as table:
                query = "SELECT DISTINCT stream FROM lines WHERE store = ? AND job = ? ORDER BY stream"
                return [name for (name,) in table.execute(query, self._log)]

        return translated(select)

    def read(self, stream: str, *, after: int = -1) -> Iterator[LogRecord]:
        def select() -> list[tuple[int, str, str, bytes]]:
            with self._table("read lines") as table:
                query = (
                    "SELECT seq, time, source, text FROM lines"
                    " WHERE store = ? AND job = ? AND stream = ? AND seq > ? ORDER BY seq"
                )
                return table.execute(query, (*self._log, stream, after)).fetchall()

        for seq, time, source, text in translated(select):
            at = datetime.fromisoformat(time)
            yield LogRecord(stream=stream, seq=seq, time=at, source=source, text=text.decode())
