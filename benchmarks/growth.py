"""The suite `growth`: the cost of an event as one parameter grows, and the cost of a trigger as unrelated data grows.

Only the last `MEASURED` events are measured; the windows are filled before, outside the measured time. If work comes in blocks
(aggregates are merged once per length), a whole block of events is measured. Each point of a curve is a contender, so the points of
a curve run alternately; the ratio is to the first point.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.events import START_MS, events
from benchmarks.frame import NS, Contender, Measured, Plan, quiet
from windowing import Activation, Duration, WindowConfig, WindowedBoltExecutor, count, millis, seconds
from windowing import aggregate as agg

MEASURED = 50_000
BATCH = 10_000
SLIDE_MS = 100
OFTEN = 50
"""The slide of count windows with aggregates: half of the shortest length, because a tumbling window merges nothing. (Time windows
may overlap at most 10,000 times, so there the shortest length is tumbling.)
"""

FAR_MS = 10**12
TOTALS = {"number": agg.count(), "total": agg.sum()}
LENGTHS = (100, 1_000, 10_000, 100_000, 1_000_000)

Take = Callable[[Any], float]


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield the curves."""
    measured = max(BATCH, int(MEASURED * scale) // BATCH * BATCH)
    lengths = [length for length in LENGTHS if length <= 10**6 * scale] if scale < 1 else LENGTHS
    yield _curve(
        "length, aggregate", "sliding, an event a ms, slide 100 ms, count and sum", "length in events", measured,
        {x: _filled(_totals(x), x, block=x) for x in lengths},
    )  # fmt: skip
    yield _curve(
        "length, Count aggregate", "count windows, slide 50, count and sum", "length in events", measured,
        {x: _filled(_counted(x), x, block=x) for x in lengths},
    )  # fmt: skip
    yield _curve(
        "length, new and expired", "sliding, slide 100 ms, the function reads what is new and expired", "length in events",
        measured, {x: _filled(_rows(x), x, take=_changes) for x in lengths},
    )  # fmt: skip
    yield _curve(
        "length, whole list", "sliding, slide a tenth of the length, the function gets the list", "length in events", measured,
        {x: _filled(_rows(x, slide_ms=x // 10), x, take=_list) for x in lengths if x <= 10 * measured // 2},
    )  # fmt: skip
    keys = [10**power for power in range(7) if 10**power <= 10**6 * scale]
    yield _curve(
        "keys", "tumbling 1 s of event time per key, count and sum", "keys", measured,
        {x: _filled(_tumbling(), 0, keys=x) for x in keys},
    )  # fmt: skip
    disorders = (0, 10, 100, 1_000, 10_000)
    yield _curve(
        "disorder, rows", "sliding 60 s/1 s, new and expired", "ms out of order", measured,
        {x: _filled(_rows(60_000, 1_000, lag_ms=x), 60_000, take=_changes, disorder_ms=x) for x in disorders},
    )  # fmt: skip
    yield _curve(
        "disorder, aggregate", "sliding 60 s/1 s, count and sum", "ms out of order", measured,
        {x: _filled(_totals(60_000, 1_000, lag_ms=x), 60_000, disorder_ms=x) for x in disorders},
    )  # fmt: skip
    yield _curve(
        "open windows, aggregate", "sliding, slide 1 s, count and sum", "windows that hold an event", measured,
        {x: _filled(_totals(1_000 * x, 1_000), 1_000 * x) for x in (1, 6, 60, 600) if x <= 600 * scale or x == 1},
    )  # fmt: skip
    yield from _triggers(scale)


def _curve(name: str, about: str, axis: str, measured: int, points: dict[int, Callable[[int], Measured]]) -> Plan:
    contenders = [Contender(f"{x:,}", point, x=x, compared=False) for x, point in points.items()]
    return Plan(name, about, contenders, int, measured, axis=axis)


def _filled(
    config: WindowConfig, fill: int, take: Take | None = None, keys: int = 0, disorder_ms: int = 0, block: int = 0
) -> Callable[[int], Measured]:
    """Return a run that fills windows with `fill` events and measures the events after them, at least one `block`."""
    taken = _aggregate if take is None else take

    def run(measured: int) -> Measured:
        number = max(measured, _whole(block))
        load = events(_whole(fill) + number, keys=max(keys, 1), disorder_ms=disorder_ms, seed=2)
        executor = WindowedBoltExecutor(config)
        before, after = load.batches[: _whole(fill) // BATCH], load.batches[_whole(fill) // BATCH :]
        _feed(executor, before, bool(keys), lambda window: 0.0)
        with quiet():
            started = time.process_time()
            total = _feed(executor, after, bool(keys), taken)
            seconds_taken = time.process_time() - started
        return Measured(total, seconds_taken / number * NS)

    return run


def _whole(fill: int) -> int:
    return -(-fill // BATCH) * BATCH


def _feed(executor: WindowedBoltExecutor, batches: Iterable[Any], keyed: bool, take: Take) -> float:
    total = 0.0
    for keys, stamps, values in batches:
        for _ in executor.add_batch(values, stamps, keys=keys if keyed else None):
            raise AssertionError("nothing is late here")
        for effect in executor.turn():
            if type(effect) is Activation:
                total += take(effect.window)
    return total


def _aggregate(window: Any) -> float:
    return float(window.aggregate["total"])


def _changes(window: Any) -> float:
    return len(window.get_new()) + len(window.get_expired())


def _list(window: Any) -> float:
    held: Sequence[float] = window.get()
    return len(held) + held[-1]


def _totals(length_ms: int, slide_ms: int = SLIDE_MS, lag_ms: int = 0) -> WindowConfig:
    return WindowConfig.of(
        length=Duration(length_ms), slide=Duration(slide_ms), timestamp="at", lag=millis(lag_ms), aggregate=TOTALS
    )


def _counted(length: int) -> WindowConfig:
    return WindowConfig.of(length=count(length), slide=count(OFTEN), timestamp="at", aggregate=TOTALS)


def _rows(length_ms: int, slide_ms: int = SLIDE_MS, lag_ms: int = 0) -> WindowConfig:
    return WindowConfig.of(length=Duration(length_ms), slide=Duration(slide_ms), timestamp="at", lag=millis(lag_ms))


def _tumbling() -> WindowConfig:
    return WindowConfig.of(length=seconds(1), slide=seconds(1), timestamp="at", key="key", aggregate=TOTALS)


# -- triggers: data outside the window that fires must cost nothing ---------------------------------------------------


def _triggers(scale: float) -> Iterator[Plan]:
    buffered = [10**power for power in range(2, 7) if 10**power <= 10**6 * scale]
    yield Plan(
        "trigger, buffered events",
        "a turn that fires one window of 1,000 events, while others lie in the future",
        [Contender(f"{x:,}", partial(_one_window, x), x=x, compared=False) for x in buffered],
        int, 1, unit="us per turn", axis="events outside the window",
    )  # fmt: skip
    for name, options in (("rows", {}), ("aggregate", {"aggregate": TOTALS})):
        yield Plan(
            f"trigger, keys, {name}",
            "a turn that closes the windows of 100 keys, while the others' are open",
            [Contender(f"{x:,}", partial(_hundred_keys, x, options), x=x, compared=False) for x in buffered],
            int, 1, unit="us per turn", axis="keys",
        )  # fmt: skip


def _one_window(buffered: int, _: int) -> Measured:
    """Add `buffered` events far in the future; then, ten times, fire a window of 1,000."""
    config = WindowConfig.of(length=seconds(1), slide=seconds(1), timestamp="at", lag=Duration(FAR_MS * 2))
    executor = WindowedBoltExecutor(config)
    manager = executor.manager
    ahead = [START_MS + FAR_MS + event for event in range(buffered)]
    _drop(manager.add_batch(ahead, ahead))
    return _turns(manager, None, 10)


def _hundred_keys(keys: int, options: dict[str, Any], _: int) -> Measured:
    """Open a window of each key; then, ten times, close those of 100 keys."""
    config = WindowConfig.of(length=seconds(1), slide=seconds(1), timestamp="at", key="key", **options)
    manager = WindowedBoltExecutor(config).manager
    ahead = [START_MS + FAR_MS] * keys
    _drop(manager.add_batch(ahead, ahead, range(keys)))
    return _turns(manager, 100, 10)


def _turns(manager: Any, keys: int | None, turns: int) -> Measured:
    """Fire a second of 1,000 events, `turns` times; the advance before them, which sorts once, is not measured."""
    stamps = list(range(START_MS + 1, START_MS + 1000 * (turns + 1) + 1))
    _drop(manager.add_batch(stamps, stamps, None if keys is None else [event % keys for event in range(len(stamps))]))
    taken: list[float] = []
    shown = 0
    with quiet():
        for turn in range(turns + 1):
            started = time.process_time()
            for effect in manager.advance(START_MS + 1000 * (turn + 1)):
                if type(effect) is Activation:
                    shown += len(effect.window)
            taken.append(time.process_time() - started)
    assert shown == len(stamps), f"{shown} events were shown, {len(stamps)} came in time"
    return Measured(shown, statistics.median(taken[1:]) * 1e6)


def _drop(effects: Iterable[Any]) -> None:
    for _ in effects:
        raise AssertionError("nothing is done with a tuple when it is added")
