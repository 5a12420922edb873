"""The suite `spark`: rows per second of keyed windows against native `window()`, and of a Python function over all rows.

Both write to the `noop` sink, with the same state store (RocksDB, changelog) and as many shuffle partitions as cores. Before the
measurement the results are checked exactly on a small input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.frame import Contender, Plan
from benchmarks.spark import native, ours
from benchmarks.spark.stage import CHECKED, checked_input, staged

MILLION, THOUSANDS = 1_000_000, 100_000
BATCHES, MANY, FEW = 4, 40, 3
NAMES = {MILLION: "1M", THOUSANDS: "100k"}


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield a comparison for each window and batch size; `scale` shortens the queries of 40 batches."""
    many = max(BATCHES + 1, int(MANY * scale))
    for rows, batches in ((MILLION, BATCHES), (THOUSANDS, many)):
        first = rows == MILLION
        more = [_set(1, "files by rename", native.RENAMED)]
        if first:
            more.append(_set(1, "state in memory", native.IN_MEMORY))
        yield _totals("tumbling 1 s", 1, rows, batches, more, warm=first)
        yield _totals("sliding 10 s/1 s", 10, rows, batches, [_by_hand(10)] if first else [])
        yield _totals("sliding 60 s/1 s", 60, rows, batches, [])
    yield _totals("sliding 600 s/1 s", 600, THOUSANDS, FEW, [_in_large_batches(600)])
    yield from _over_rows()


def _totals(name: str, seconds: int, rows: int, batches: int, more: list[Contender], warm: bool = False) -> Plan:
    query = partial(native.totals, length_ms=1000 * seconds, slide_ms=1000)
    bolt, tables = ours.totals(1000 * seconds, 1000), ours.tables(1000 * seconds, 1000)
    contenders = [
        _contender("native", native, query),
        _contender("windowing", ours, bolt),
        _contender("windowing, columnar", ours, tables),
        *more,
    ]
    about = "count and sum per key, 100 keys; columnar: a table for all keys at an end"
    return _plan(f"{name}, {NAMES[rows]}", about, contenders, rows, batches, warm)


def _over_rows() -> Iterator[Plan]:
    """Yield windows of ten seconds against native, and of a minute without native, which would take minutes."""
    query = partial(native.over_rows, length_ms=10_000, slide_ms=1000)
    contenders = [_contender("native", native, query), _contender("windowing", ours, ours.over_rows(10_000, 1000))]
    about = "a Python function reads every row of a window, over all keys; native: collect_list and a UDF"
    yield _plan("function over rows, 10 s/1 s, 100k", about, contenders, THOUSANDS, BATCHES, warm=True)
    alone = [_contender("windowing", ours, ours.over_rows(60_000, 1000))]
    for rows in (MILLION, THOUSANDS):
        name = f"function over rows, 60 s/1 s, {NAMES[rows]}"
        yield _plan(name, "the same, a minute long", alone, rows, BATCHES)


def _by_hand(seconds: int) -> Contender:
    query = partial(native.by_hand, length_ms=1000 * seconds, slide_ms=1000)
    return _contender("applyInPandasWithState, by hand", native, query)


def _in_large_batches(seconds: int) -> Contender:
    """Return the checked bolt with 1,000,000 rows per batch, for which native would take minutes."""
    run = ours.timed(ours.totals(1000 * seconds, 1000))
    return Contender(f"windowing, {NAMES[MILLION]}", lambda _: run(staged(MILLION, BATCHES)), compared=False)


def _set(seconds: int, name: str, settings: Mapping[str, str]) -> Contender:
    """Return native with other settings."""
    query = partial(native.totals, length_ms=1000 * seconds, slide_ms=1000)
    return Contender(f"native, {name}", native.timed(query, settings), check=native.exact(query), compared=False)


def _contender(name: str, module: Any, query: Any) -> Contender:
    return Contender(name, module.timed(query), check=module.exact(query), compared=False)


def _plan(name: str, about: str, contenders: list[Contender], rows: int, batches: int, warm: bool = False) -> Plan:
    def workload(size: int) -> Any:
        return checked_input() if size == CHECKED else staged(rows, batches)

    return Plan(
        name, about, contenders, workload, rows * batches, CHECKED, unit="rows/s",
        clock="wall time of whole batches", warmups=int(warm),
    )  # fmt: skip
