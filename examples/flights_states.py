"""The states of flights_trident.py: how they are kept, and the check of all that they hold against Spark SQL.

    state            key        value                          Spark SQL over the same files
    flights          carrier    flights                        count(*)
    minutes          carrier    minutes of delay, added up     sum(delay)
    delayed          carrier    flights over 15 minutes late   count_if(delay > 15)

Each has PARTITIONS partitions; its fence says which attempt at which batch has written a partition last.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flights_check import Report, output_of, read_arrived, read_staged, same
from flights_folder import Folder
from flights_job import DELAYED_MINUTES
from pyspark.sql import SparkSession

from windowing.stores import MapStateFactory, SqliteStore, Store, map_state

QUERY = "carriers"
PARTITIONS = 2

REFERENCE = {
    "flights": "SELECT carrier, count(*) AS n FROM arrived GROUP BY carrier",
    "minutes": "SELECT carrier, sum(delay) AS n FROM arrived GROUP BY carrier",
    "delayed": f"SELECT carrier, count(*) AS n FROM arrived WHERE delay > {DELAYED_MINUTES} GROUP BY carrier",
}

RUNNING = """
    SELECT batch, carrier, sum(count(*)) OVER (PARTITION BY carrier ORDER BY batch) AS flights
    FROM arrived GROUP BY batch, carrier"""

BATCHES = "SELECT batch, batch + 1 AS txid, count(*) AS flights FROM arrived GROUP BY batch"


@dataclass(frozen=True)
class States:
    """The three states in a store; `run` is part of their names where the store may hold those of other runs."""

    store: Store
    run: str = ""

    def __str__(self) -> str:
        where = str(self.store.path) if isinstance(self.store, SqliteStore) else str(self.store)
        return f"{where}, named ..._{self.run}" if self.run else where

    def state(self, name: str) -> MapStateFactory:
        """Return an opaque state: a batch that comes again, even with other rows, takes the place of what it was."""
        return map_state(self.store, f"{name}_{self.run}" if self.run else name)

    def values(self, name: str) -> dict[str, int]:
        """Return what a state holds, by carrier."""
        return {carrier: value for part in self._partitions(name) for (carrier,), value in part.items()}

    def attempts(self) -> Counter[str]:
        """Return how many partitions of all states each attempt has written last, like `{"7:0": 6}`."""
        fences = [part.backing.multi_get([]).fence for name in REFERENCE for part in self._partitions(name)]
        return Counter("none" if fence is None else str(fence.attempt) for fence in fences)

    def _partitions(self, name: str) -> Iterator[Any]:
        for partition in range(PARTITIONS):
            with contextlib.closing(self.state(name).make_state(partition, PARTITIONS)) as part:
                yield part


def check(spark: SparkSession, folder: Folder, states: States) -> Report:
    """Compare the states and both sinks with Spark SQL. Raises Difference, with the first rows that differ."""
    report = Report()
    with contextlib.ExitStack() as kept:
        rows = read_staged(spark, folder, kept)
        read_arrived(spark, folder, QUERY, report)
        for name, query in REFERENCE.items():
            values = states.values(name)
            held = spark.createDataFrame([*values.items()], "carrier string, n long")
            same(f"state {name}: values", held, spark.sql(query), ("carrier",))
            report.add(f"state {name} equals Spark SQL: {len(values)} carriers, {sum(values.values()):,} in all")
        for name, query, key in (("running", RUNNING, "carrier"), ("batches", BATCHES, "txid")):
            reference = spark.sql(query)
            written = output_of(spark, folder, QUERY, name, reference).withColumnRenamed("batch_id", "batch")
            same(f"sink {name}: rows", written.select(reference.columns), reference, ("batch", key))
            report.add(f"sink {name} equals Spark SQL: {reference.count():,} rows, each in its batch")
    report.add(f"{rows:,} flights went in, and {sum(states.values('flights').values()):,} were counted")
    return report
