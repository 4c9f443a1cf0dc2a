"""The paper cloud and its SDK in one: machines that stand in an SQLite file, and its moods."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

MACHINES = """
CREATE TABLE IF NOT EXISTS machines
    (id TEXT PRIMARY KEY, token TEXT, rank INTEGER, body TEXT, reason TEXT, shown_at REAL)
"""
KNOBS = "CREATE TABLE IF NOT EXISTS knobs (name TEXT PRIMARY KEY, value)"


ZONES = ("desk-a", "desk-b")


class Price(NamedTuple):
    """A row of the price list."""

    name: str
    cpus: int
    memory_bytes: int
    price: float
    spot_price: float


PRICES = (Price("sheet", 1, 1 << 30, 1.0, 0.3), Price("stack", 8, 16 << 30, 8.0, 2.4))


class PaperError(Exception):
    """What the cloud answers in place of a result: its code."""


class PaperCloud:
    def __init__(self, path: str) -> None:
        self.path = path

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("BEGIN IMMEDIATE")
            for table in (MACHINES, KNOBS):
                database.execute(table)
            yield database
            database.execute("COMMIT")

    def launch(self, token: str, body: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        with self.transaction() as database:
            fault = knob(database, "create")
            if fault not in (None, "lost answer"):
                raise PaperError(fault)
            if not rows(database, "token = ?", token):
                room = knob(database, "room", 1000) - len(rows(database, "reason IS NULL"))
                if room < body["min_nodes"]:
                    raise PaperError("full")
                shown_at = knob(database, "now", 0.0) + knob(database, "lag", 0.0)
                for rank in range(min(room, body["num_nodes"])):
                    machine = (f"{token}#{rank}", token, rank, json.dumps(body), None, shown_at)
                    database.execute("INSERT INTO machines VALUES (?, ?, ?, ?, ?, ?)", machine)
            made = rows(database, "token = ?", token)
            if fault is not None:
                database.execute("DELETE FROM knobs WHERE name = 'create'")
        if fault is not None:
            raise PaperError("unwell")
        return made

    def machines(self) -> Sequence[tuple[Any, ...]]:
        with self.transaction() as database:
            fault = knob(database, "list")
            if fault is not None:
                raise PaperError(fault)
            return rows(database, "shown_at <= ?", knob(database, "now", 0.0))

    def end(self, machine_id: str, reason: str) -> bool:
        with self.transaction() as database:
            done = database.execute(
                "UPDATE machines SET reason = ? WHERE id = ? AND reason IS NULL", (reason, machine_id)
            )
            return done.rowcount > 0

    def body(self, machine_id: str) -> Any:
        """Return what stands in the books for a machine."""
        with self.transaction() as database:
            ((_, _, text, _),) = rows(database, "id = ?", machine_id)
        return json.loads(text)

    def turn(self, name: str, value: object) -> None:
        with self.transaction() as database:
            database.execute("DELETE FROM knobs WHERE name = ?", (name,))
            if value is not None:
                database.execute("INSERT INTO knobs VALUES (?, ?)", (name, value))


def rows(database: sqlite3.Connection, where: str, *values: object) -> Sequence[tuple[Any, ...]]:
    found = database.execute(f"SELECT id, rank, body, reason FROM machines WHERE {where} ORDER BY id", values)
    return found.fetchall()


def knob(database: sqlite3.Connection, name: str, default: Any = None) -> Any:
    found = database.execute("SELECT value FROM knobs WHERE name = ?", (name,)).fetchone()
    return default if found is None else found[0]
