"""The suites `yahoo` and `nexmark`: public benchmarks as topologies, against Spark SQL with the same checkpoint file manager.
Both are checked against plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.events import START_MS
from benchmarks.frame import Contender, Disagreement, Measured, Plan
from benchmarks.spark import native, sql
from benchmarks.spark.ours import Ended
from benchmarks.spark.stage import checkpoint, figures, in_order, rows_of, scratch, spark
from benchmarks.spark.topologies import ADS, QUERIES, Found, Query
from windowing.spark import FunctionSink, NoopSink, submit

ROWS, BATCHES = 100_000, 4
CHECKED_ROWS = 20_000
STEP_MS = 2
LATER_MS = 10**8


@dataclass(frozen=True)
class Tables:
    """The rows of each spout as files, `batches` of `rows` each (over all spouts)."""

    folder: Path
    rows: int
    batches: int
    last_ms: int

    def frames(self, query: Query) -> dict[str, Any]:
        """Return each spout's rows as a streaming DataFrame, with one batch per trigger."""
        return {
            name: spark().readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(self.folder / name))
            for name, ddl in query.spouts.items()
        }

    def rows_by_spout(self, query: Query) -> dict[str, list[tuple[Any, ...]]]:
        """Return each spout's rows as tuples."""
        found = {}
        for name in query.spouts:
            files = sorted((self.folder / name).glob("*.parquet"))
            found[name] = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
        return found


def yahoo(scale: float = 1.0) -> Iterator[Plan]:
    """Yield the query of the Yahoo benchmark."""
    return _plans("yahoo", scale)


def nexmark(scale: float = 1.0) -> Iterator[Plan]:
    """Yield queries 5, 7 and 8."""
    return _plans("nexmark", scale)


def _plans(suite: str, scale: float) -> Iterator[Plan]:
    rows = max(1_000, int(ROWS * scale))
    for query in QUERIES[suite]:
        columns = replace(query, topology=query.columnar)
        contenders = [
            Contender("native", partial(natively, query), check=partial(exact, query, _native), compared=False),
            Contender("topology", partial(as_topology, query), check=partial(exact, query, _submitted), compared=False),
            Contender(
                "topology, columnar",
                partial(as_topology, columns),
                check=partial(exact, columns, _submitted),
                compared=False,
            ),
        ]
        yield Plan(
            query.name, query.about, contenders, partial(_workload, query.name, rows), rows * BATCHES, CHECKED_ROWS,
            unit="rows/s", clock="wall time of whole batches", warmups=1,
        )  # fmt: skip


def _workload(name: str, rows: int, size: int) -> Tables:
    return tables(name, CHECKED_ROWS // 2, 2, True) if size == CHECKED_ROWS else tables(name, rows, BATCHES, False)


@cache
def tables(name: str, rows: int, batches: int, closed: bool) -> Tables:
    """Write seeded rows; `closed` adds a batch with much later timestamps, which closes their windows."""
    folder = scratch() / f"{name}-{rows}-{batches}-{closed}".replace(" ", "-")
    random = np.random.default_rng(5)
    for batch in range(batches):
        for spout, columns in generated(name, random, rows, START_MS + batch * rows * STEP_MS).items():
            _write(folder / spout / f"part-{batch:05d}.parquet", columns)
    last = START_MS + batches * rows * STEP_MS
    if closed:
        for spout, columns in generated(name, random, 50, last + LATER_MS).items():
            _write(folder / spout / "part-99999.parquet", columns)
    for spout in folder.iterdir():
        in_order(spout)
    return Tables(folder, rows, batches, last)


def generated(name: str, random: Any, rows: int, start_ms: int) -> dict[str, dict[str, Any]]:
    """Return the columns of each spout: a row every STEP_MS, in NEXMark's proportions (1 person to 3 auctions)."""
    at = start_ms + 1 + STEP_MS * np.arange(rows)
    if name == "Yahoo":
        kinds = np.array(["view", "click", "purchase"])[random.integers(0, 3, rows)]
        return {
            "ads": {
                "user": random.integers(0, 10**6, rows),
                "ad": random.integers(0, ADS, rows),
                "kind": kinds,
                "at": at,
            }
        }
    if name != "NEXMark 8":
        hot = random.integers(0, 100, rows) * (random.random(rows) < 0.5)
        auctions = hot + random.integers(0, 1000, rows)
        prices = random.integers(1, 10**6, rows)
        return {"bids": {"auction": auctions, "bidder": random.integers(0, 1000, rows), "price": prices, "at": at}}
    person = np.arange(rows) % 4 == 0
    number = np.cumsum(person) + start_ms // STEP_MS
    ids, sellers = number[person], number[~person] - random.integers(0, 3_000, int((~person).sum()))
    return {
        "people": {"id": ids, "name": np.char.add("person-", ids.astype(str)), "at": at[person]},
        "auctions": {"id": np.arange(len(sellers)) + start_ms, "seller": sellers, "at": at[~person]},
    }


def _write(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)


def natively(query: Query, load: Tables) -> Measured:
    """Run Spark SQL into the `noop` sink."""
    return figures(load, lambda: _native(query, load, None))


def as_topology(query: Query, load: Tables) -> Measured:
    """Run the topology into the `noop` sink."""
    return figures(load, lambda: _submitted(query, load, None))


def exact(query: Query, start: Callable[[Query, Tables, Any], Any], load: Tables) -> Found:
    """Return the rows of all windows that end in time, or raise Disagreement if plain Python has other rows."""
    found = rows_of(lambda keep: start(query, load, keep), load.last_ms)
    wanted = [row for row in query.plain(load.rows_by_spout(query)) if row[0] <= load.last_ms + 10**7]
    if found != wanted:
        raise Disagreement(f"{query.name}: plain Python finds {len(wanted)} rows, {start.__name__[1:]} {len(found)}")
    return found


def _native(query: Query, load: Tables, keep: Callable[[Any, int], None] | None) -> Any:
    writer = sql.NATIVE[query.name](load.frames(query)).writeStream
    writer = writer.format("noop") if keep is None else writer.foreachBatch(keep)
    return native.started(writer, native.RENAMED)


def _submitted(query: Query, load: Tables, keep: Callable[[Any, int], None] | None) -> Any:
    sinks = {query.sink: NoopSink() if keep is None else FunctionSink(keep)}
    return Ended(submit(query.topology(), spark(), sources=load.frames(query), sinks=sinks, checkpoint=checkpoint()))
