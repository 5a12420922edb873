"""The suite `memory`: bytes per buffered event in addition to the tuple itself, traced by tracemalloc.

The events exist before tracing begins, so only the window's own memory is traced. Columns are measured in total, with the values
and with Arrow's memory.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.events import events
from benchmarks.frame import Contender, Measured, Plan
from windowing import Count, Duration, WindowConfig, WindowedBoltExecutor, columnar, count, hours, seconds

EVENTS = 300_000
WARM = 1_000


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield one comparison: the memory of an open window in addition to the tuples."""
    makers: dict[str, Callable[[], WindowedBoltExecutor]] = {
        "Duration window": lambda: _executor(hours(1), seconds(1)),
        "Count window": lambda: _executor(count(2 * EVENTS), count(2 * EVENTS)),
        "Duration window, sequenced (as on Spark)": lambda: _executor(hours(1), seconds(1), sequenced=True),
        "Duration window, 100 keys": lambda: _executor(hours(1), seconds(1), key="key"),
        "Duration window, 10,000 keys": lambda: _executor(hours(1), seconds(1), key="key"),
    }
    contenders = [Contender("a list of them, by hand", _by_hand)]
    contenders.append(Contender("columnar, in all", _columns))
    contenders += [Contender(name, partial(_held, make, _keys(name))) for name, make in makers.items()]
    yield Plan(
        "buffered", "tuples of 3 in an open window: bytes beside the tuples", contenders, int, int(EVENTS * scale),
        unit="bytes per event", clock="tracemalloc",
    )  # fmt: skip


def _executor(
    length: Duration | Count, slide: Duration | Count, sequenced: bool = False, **options: Any
) -> WindowedBoltExecutor:
    config = WindowConfig.of(length=length, slide=slide, timestamp="at", **options)
    return WindowedBoltExecutor(config, sequenced=sequenced)


def _keys(name: str) -> int:
    return 10_000 if "10,000 keys" in name else 100


def _by_hand(number: int) -> Measured:
    rows = events(number).rows
    before = _traced()
    held = [*rows]
    return Measured(len(held), _since(before) / number)


def _held(make: Callable[[], WindowedBoltExecutor], keys: int, number: int) -> Measured:
    load = events(number, keys=keys)
    rows, batches = load.rows, load.batches
    before = _traced()
    executor = make()
    for index, (whose, stamps, _) in enumerate(batches):
        first = index * load.batch
        for _late in executor.add_batch(rows[first : first + load.batch], stamps, keys=_keyed(executor, whose)):
            raise AssertionError("nothing is late here")
        for _effect in executor.turn():
            pass
    bytes_held = _since(before)
    pending = executor.counts()["in"]
    return Measured(pending, bytes_held / number)


def _columns(number: int) -> Measured:
    """Return the total memory of a window of columns, with the values and with Arrow's memory."""
    if number > WARM:
        _columns(WARM)  # imports on first use are not memory of the events
    load = events(number)
    pieces = [slice(start, start + load.batch) for start in range(0, number, load.batch)]
    arrow, before = pa.total_allocated_bytes(), _traced()
    config = WindowConfig.of(length=hours(1), slide=seconds(1), timestamp="at", columnar="arrow")
    executor = WindowedBoltExecutor(config, columns=columnar.ColumnarMachines())
    for piece in pieces:
        table = pa.table({"k": load.keys[piece], "at": load.stamps[piece], "v": load.values[piece]})
        for _late in executor.add_batch(columnar.ColumnRows(table), load.stamps[piece]):
            raise AssertionError("nothing is late here")
        for _effect in executor.turn():
            pass
    del table, piece
    held = _since(before) + pa.total_allocated_bytes() - arrow
    return Measured(executor.counts()["in"], held / number)


def _keyed(executor: WindowedBoltExecutor, keys: list[int]) -> list[int] | None:
    return keys if executor.config.key else None


def _traced() -> int:
    gc.collect()
    tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


def _since(before: int) -> float:
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held
