"""The measured shapes of windows, and their runs with this library: a window machine, driven by a plain loop.

rows       (key, timestamp, value)
Totals     for each key and end: the count and the sum                 found: (end, key, number, total)
Lists      a function is called with the window's list                 found: (reference, the function's return value)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.events import Events, events
from windowing import Activation, Count, Duration, WindowConfig, WindowedBoltExecutor, columnar, count, millis, seconds
from windowing import aggregate as agg

TURN_EVERY = 1_000
"""The number of events between two watermark advances, if the input is one event at a time."""

Function = Callable[..., Any]
Found = list[tuple[Any, ...]]


def glance(window: Sequence[float], *changes: Sequence[float]) -> tuple[float, ...]:
    """Read only the ends of the list: the window is measured, not the function."""
    return (len(window), window[0], window[-1], *map(len, changes))


def whole(*lists: Sequence[float]) -> tuple[int, ...]:
    """Return a hash of all elements of each list, in order."""
    return tuple(hash(tuple(each)) for each in lists)


@dataclass(frozen=True)
class Shape:
    """A window over the seeded events. `changes`: the function gets the new and the expired elements too."""

    name: str
    about: str
    length: Count | Duration
    slide: Count | Duration
    size: int
    checked: int
    totals: bool = False
    changes: bool = False
    disorder_ms: int = 0

    def load(self, number: int) -> Events:
        """Return the events of a round."""
        return events(number, disorder_ms=self.disorder_ms)

    def config(self) -> WindowConfig:
        """Return the window definition that a user would write."""
        options: dict[str, Any] = {"key": "key", "aggregate": (agg.count(), agg.sum())} if self.totals else {}
        if self.totals:
            options["aggregate"] = {"number": agg.count(), "total": agg.sum()}
        return WindowConfig.of(
            length=self.length, slide=self.slide, timestamp="at", lag=millis(self.disorder_ms), **options
        )


SHAPES = (
    Shape("1", "tumbling 1 s per key, count and sum", seconds(1), seconds(1), 300_000, 30_500, totals=True),
    Shape("2", "sliding 10 s/1 s per key, count and sum", seconds(10), seconds(1), 300_000, 30_500, totals=True),
    Shape("3", "count 1,000/100, the list, new and expired", count(1000), count(100), 400_000, 30_000, changes=True),
    Shape("4", "sliding 60 s/1 s, 50 ms out of order, the list", seconds(60), seconds(1), 200_000, 70_500, disorder_ms=50),
    Shape("1,000", "count 1,000 tumbling, the list", count(1000), count(1000), 400_000, 30_000),
    Shape("10,000/100", "count 10,000/100, the list", count(10_000), count(100), 100_000, 30_000),
    Shape("1,000/1", "count 1,000/1, the list", count(1000), count(1), 40_000, 5_000),
)  # fmt: skip


def in_batches(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the run of this library: `add_batch` and a watermark advance for each batch; at the end the drain."""
    config, key = shape.config(), shape.totals

    def run(load: Events) -> Found:
        executor = WindowedBoltExecutor(config)
        found: Found = []
        for keys, stamps, values in load.batches:
            for _ in executor.add_batch(values, stamps, keys=keys if key else None):
                raise AssertionError("nothing is late here")
            found.extend(_fired(shape, executor.turn(), function))
        found.extend(_fired(shape, executor.drain(), function))
        return found

    return run


def one_at_a_time(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the run of this library: `add` for each event, a watermark advance after each 1,000; at the end the drain."""
    config, key = shape.config(), shape.totals

    def run(load: Events) -> Found:
        executor = WindowedBoltExecutor(config)
        add = partial(_keyed, executor) if key else partial(_unkeyed, executor)
        found: Found = []
        for start in range(0, len(load), TURN_EVERY):
            add(load.rows[start : start + TURN_EVERY])
            found.extend(_fired(shape, executor.turn(), function))
        found.extend(_fired(shape, executor.drain(), function))
        return found

    return run


def in_columns(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the run of `columnar="numpy"`: batches are Arrow tables, the function gets arrays; at the end the drain."""
    config = replace(shape.config(), columnar="numpy")

    def run(load: Events) -> Found:
        executor = WindowedBoltExecutor(config, columns=columnar.ColumnarMachines())
        found: Found = []
        for (_, stamps, _), rows in zip(load.batches, columns(load), strict=True):
            for _ in executor.add_batch(rows, stamps):
                raise AssertionError("nothing is late here")
            found.extend(_viewed(shape, executor.turn(), function))
        found.extend(_viewed(shape, executor.drain(), function))
        return found

    return run


def totals_in_columns(shape: Shape, _: Function) -> Callable[[Events], Found]:
    """Return the run of `aggregate=` with `columnar="arrow"`: one table of all keys per end, whose rows are the result."""
    aggregate = {"number": agg.count(), "total": agg.sum("v")}
    config = replace(shape.config(), columnar="arrow", aggregate=aggregate)

    def run(load: Events) -> Found:
        executor = WindowedBoltExecutor(config, columns=columnar.ColumnarMachines())
        found: Found = []
        for rows, stamps, keys in columns_by_key(load):
            for _ in executor.add_batch(rows, stamps, keys=keys):
                raise AssertionError("nothing is late here")
            found.extend(_of_tables(executor.turn()))
        found.extend(_of_tables(executor.drain()))
        return found

    return run


@lru_cache(maxsize=2)
def columns(load: Events) -> list[columnar.ColumnRows]:
    """Return the batches as Arrow tables; this is not measured."""
    return [columnar.ColumnRows(pa.table({"v": values})) for _, _, values in load.batches]


@lru_cache(maxsize=2)
def columns_by_key(load: Events) -> list[tuple[columnar.ColumnRows, columnar.Timestamps, columnar.Keys]]:
    """Return the batches as columns, including the keys and the timestamps."""
    return [
        (
            columnar.ColumnRows(pa.table({"v": values})),
            columnar.Timestamps(np.array(stamps)),
            columnar.Keys([pa.chunked_array([keys])]),
        )
        for keys, stamps, values in load.batches
    ]


def _viewed(shape: Shape, effects: Iterable[Any], function: Function) -> Found:
    windows = (effect.window for effect in effects if type(effect) is Activation)
    if shape.changes:
        return [
            (w.end_timestamp, function(*(part["v"] for part in (w.get(), w.get_new(), w.get_expired()))))
            for w in windows
        ]
    return [(window.end_timestamp, function(window.column("v"))) for window in windows]


def _of_tables(effects: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for effect in effects:
        if type(effect) is Activation:
            columns = [column.to_pylist() for column in effect.window.aggregate.columns]
            yield from zip(repeat(effect.window.end_timestamp), *columns, strict=False)


def _keyed(executor: WindowedBoltExecutor, rows: Iterable[tuple[int, int, float]]) -> None:
    for key, stamp, value in rows:
        for _ in executor.add(value, stamp, key=key):
            raise AssertionError("nothing is late here")


def _unkeyed(executor: WindowedBoltExecutor, rows: Iterable[tuple[int, int, float]]) -> None:
    for _, stamp, value in rows:
        for _ in executor.add(value, stamp):
            raise AssertionError("nothing is late here")


def _fired(shape: Shape, effects: Iterable[Any], function: Function) -> Found:
    windows = (effect.window for effect in effects if type(effect) is Activation)
    if shape.totals:
        return [_totals(window) for window in windows]
    if shape.changes:
        return [(w.end_timestamp, function(w.get(), w.get_new(), w.get_expired())) for w in windows]
    return [(window.end_timestamp, function(window.get())) for window in windows]


def _totals(window: Any) -> tuple[Any, ...]:
    found = window.aggregate
    return window.end_timestamp, window.key, found["number"], found["total"]
