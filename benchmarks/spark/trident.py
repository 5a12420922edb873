"""The suite `trident`: a persistent count on Spark against what a user would write by hand, into the same store.

By hand: `groupBy().agg()` in `foreachBatch`, then one transaction that adds the counts and stores the batch id, so that a replayed
batch adds nothing. Trident: `group_by().persistent_aggregate(...)` into an opaque state of two partitions. Both use the same
checkpoint file manager. After each query the totals in the store are compared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.frame import Contender, Measured, Plan
from benchmarks.records import Missing
from benchmarks.spark import native, ours
from benchmarks.spark.stage import FILES_A_BATCH, Input, checkpoint, figures, in_order, scratch, spark
from benchmarks.state import servers
from windowing import InputSpout
from windowing.spark import submit_trident
from windowing.stores import map_state, store_of
from windowing.trident import Count, TridentTopology

SIZES = ((100_000, 12), (1_000, 25))
WORDS = 1_000
DDL = "word string, n long"
PARTITIONS = 2
Totals = dict[str, int]


class Tally(Count):
    """A user-defined combiner: it is called in Python for each tuple."""


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield a comparison for each store and batch size; `scale` shortens the queries."""
    stores = {"SQLite": f"{scratch()}/totals.db", **{k: v for k, v in servers().items() if k == "PostgreSQL"}}
    for store, address in stores.items():
        for rows, batches in SIZES:
            yield _plan(store, address, rows, max(3, int(batches * scale)), () if "PostgreSQL" in stores else _ABSENT)


_ABSENT = (Missing("PostgreSQL", "does not run; make services"),)


def _plan(store: str, address: str, rows: int, batches: int, missing: tuple[Missing, ...]) -> Plan:
    about = f"words counted, {WORDS:,} different ones, {batches} batches; by hand: files by rename too"
    contenders = [
        Contender("by hand", partial(measured, by_hand, address)),
        Contender("Trident", partial(measured, partial(by_trident, Count()), address)),
        Contender("Trident, a combiner of one's own", partial(measured, partial(by_trident, Tally()), address)),
    ]
    return Plan(
        f"{rows:,} rows a batch into {store}", about, contenders, lambda size: staged(rows, batches), rows * batches,
        unit="rows/s", clock="wall time of whole batches after the first", missing=missing, warmups=1,
    )  # fmt: skip


@cache
def staged(rows: int, batches: int) -> Input:
    """Write seeded words, `batches` of `rows` each."""
    folder = scratch() / f"words-{rows}-{batches}"
    folder.mkdir()
    random = np.random.default_rng(1)
    words = np.array([f"word-{number}" for number in range(WORDS)])
    for number in range(batches * FILES_A_BATCH):
        part = rows // FILES_A_BATCH
        table = pa.table({"word": words[random.integers(0, WORDS, part)], "n": random.integers(0, 1000, part)})
        pq.write_table(table, folder / f"part-{number:05d}.parquet")
    in_order(folder)
    return Input(str(folder), rows, batches)


def measured(
    start: Callable[[Input, str, str], tuple[Any, Callable[[], Totals]]], address: str, load: Input
) -> Measured:
    """Run a query into a new state; return rows per second, and the content of the store at the end."""
    begun: list[Any] = []

    def query() -> Any:
        running, totals = start(load, address, f"bench_{uuid4().hex[:12]}")
        begun.extend((running, totals))
        return running

    found = figures(load, query)
    jobs = spark().sparkContext.statusTracker().getJobIdsForGroup(str(begun[0].runId))
    notes = {**found.notes, "jobs a batch": len(jobs) / load.batches}
    return replace(found, result=sorted(begun[1]().items()), notes=notes)


# -- Trident ---------------------------------------------------------------------------------------------------------------------


def by_trident(aggregator: Any, load: Input, address: str, name: str) -> tuple[Any, Callable[[], Totals]]:
    """Start the topology."""
    state = map_state(store_of(address), name)
    topology = TridentTopology(name)
    words = topology.new_stream("words", InputSpout(DDL)).group_by("word")
    words.persistent_aggregate(state, None, aggregator, "n long").parallelism_hint(PARTITIONS)

    def totals() -> Totals:
        found: Totals = {}
        for partition in range(PARTITIONS):
            with closing(state.make_state(partition, PARTITIONS)) as part:
                found |= {word: number for (word,), number in part.items()}
        return found

    query = submit_trident(topology, spark(), sources={"words": _stream(load)}, checkpoint=checkpoint())
    return ours.Ended(query), totals


# -- by hand ---------------------------------------------------------------------------------------------------------------------


def by_hand(load: Input, address: str, name: str) -> tuple[Any, Callable[[], Totals]]:
    """Start the query that adds the counts in foreachBatch."""
    table = InSqlite(address, name) if "://" not in address else InPostgres(address, name)

    def add(rows: Any, batch: int) -> None:
        table.add(batch, [tuple(row) for row in rows.groupBy("word").count().collect()])

    return native.started(_stream(load).writeStream.foreachBatch(add), native.RENAMED), table.totals


class InSqlite:
    """Totals in a file; one row has the id of the last batch."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(f"CREATE TABLE {name} (word TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID")
        self._db.execute(f"CREATE TABLE {name}_batches (last INTEGER NOT NULL)")
        self._db.execute(f"INSERT INTO {name}_batches VALUES (-1)")

    def add(self, batch: int, counts: list[tuple[str, int]]) -> None:
        """Add the counts of a batch, once."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if self._db.execute(f"SELECT last FROM {self._name}_batches").fetchone()[0] >= batch:
                return
            upsert = f"INSERT INTO {self._name} VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET n = n + excluded.n"
            self._db.executemany(upsert, counts)
            self._db.execute(f"UPDATE {self._name}_batches SET last = ?", (batch,))

    def totals(self) -> Totals:
        """Return all counts."""
        return dict(self._db.execute(f"SELECT word, n FROM {self._name}"))

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class InPostgres:
    """The same in PostgreSQL, with one statement for all rows of a batch."""

    def __init__(self, url: str, name: str) -> None:
        import psycopg

        self._name = name
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute(f"CREATE TABLE {name} (word text PRIMARY KEY, n bigint NOT NULL)")
        self._db.execute(f"CREATE TABLE {name}_batches (last bigint NOT NULL)")
        self._db.execute(f"INSERT INTO {name}_batches VALUES (-1)")

    def add(self, batch: int, counts: list[tuple[str, int]]) -> None:
        """Add the counts of a batch, once."""
        with self._db.transaction():
            found = self._db.execute(f"SELECT last FROM {self._name}_batches FOR UPDATE").fetchone()
            if found is None or found[0] >= batch:
                return
            upsert = (
                f"INSERT INTO {self._name} AS held SELECT * FROM unnest(%s::text[], %s::bigint[]) "
                "ON CONFLICT (word) DO UPDATE SET n = held.n + excluded.n"
            )
            self._db.execute(upsert, ([word for word, _ in counts], [number for _, number in counts]))
            self._db.execute(f"UPDATE {self._name}_batches SET last = %s", (batch,))

    def totals(self) -> Totals:
        """Return all counts."""
        return dict(self._db.execute(f"SELECT word, n FROM {self._name}").fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def _stream(load: Input) -> Any:
    return spark().readStream.schema(DDL).option("maxFilesPerTrigger", FILES_A_BATCH).parquet(load.folder)
