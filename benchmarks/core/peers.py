"""Other libraries on the shapes that they support; each is used as its manual shows.

bytewax   its windows are [start, end), ours (end - length, end]: its timestamps are a millisecond earlier. Its event clock advances
          with the system's time, which makes events late; here its clock is fixed, which is in its favour.
streamz   count windows, one event at a time; every window is a tuple.
river     a rolling window, one event at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from benchmarks.core.shapes import Found, Function, Shape
from benchmarks.events import START_MS, Events
from benchmarks.frame import Contender
from benchmarks.machine import installed
from benchmarks.records import Missing
from windowing import Count, Duration

START = datetime.fromtimestamp(START_MS / 1000, UTC)
HOW = 'not installed; pip install "windowing[bench]"'


def of_batches(shape: Shape, glance: Function, exact: Function) -> tuple[list[Contender], list[Missing]]:
    """Return the peers with batches as input."""
    if isinstance(shape.length, Count):
        return [], [Missing("bytewax", "has no count windows")]
    if not installed("bytewax"):
        return [], [Missing("bytewax", HOW)]
    share = 0.35 if shape.disorder_ms else 0.25
    return [Contender("bytewax", bytewax(shape, glance), share, bytewax(shape, exact))], []


def of_events(shape: Shape, glance: Function, exact: Function) -> tuple[list[Contender], list[Missing]]:
    """Return the peers with one event at a time as input."""
    contenders, missing = [], []
    for name, share, make in (("streamz", 0.1, streamz), ("river", 0.5, river)):
        if isinstance(shape.length, Duration):
            missing.append(Missing(name, "has no time windows with fixed ends"))
        elif shape.changes:
            missing.append(Missing(name, "gives no new and expired elements"))
        elif not installed(name):
            missing.append(Missing(name, HOW))
        else:
            contenders.append(Contender(name, make(shape, glance), share, make(shape, exact)))
    return contenders, missing


@lru_cache(maxsize=2)
def _rows(load: Events, keyed: bool) -> list[tuple[str, datetime, float]]:
    """Return the events in the format of bytewax; this is not measured."""
    start = START - timedelta(milliseconds=START_MS + 1)
    return [(str(key) if keyed else "all", start + timedelta(milliseconds=at), value) for key, at, value in load.rows]


def bytewax(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return a dataflow with one worker: fold_window for totals, collect_window for lists."""
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, cluster_main

    assert isinstance(shape.length, Duration)
    assert isinstance(shape.slide, Duration)
    length, slide = timedelta(milliseconds=shape.length.ms), timedelta(milliseconds=shape.slide.ms)
    clock: Any = win.EventClock(
        ts_getter=lambda row: row[1],
        wait_for_system_duration=timedelta(milliseconds=shape.disorder_ms),
        now_getter=lambda: START,
    )
    windower: Any = win.SlidingWindower(length=length, offset=slide, align_to=START)

    def run(load: Events) -> Found:
        found: list[tuple[str, tuple[int, Any]]] = []
        flow = Dataflow("bench")
        rows = op.input("in", flow, TestingSource(_rows(load, shape.totals), batch_size=load.batch))
        keyed = op.key_on("key", rows, lambda row: row[0])
        if shape.totals:
            windows = win.fold_window(
                "totals", keyed, clock, windower, lambda: (0, 0.0), lambda t, row: (t[0] + 1, t[1] + row[2]), _merged
            )
        else:
            windows = win.collect_window("lists", keyed, clock, windower)
        op.output("out", windows.down, TestingSink(found))
        cluster_main(flow, [], 0)
        return [_found(shape, key, number, content, function) for key, (number, content) in found]

    return run


def _merged(one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
    return one[0] + other[0], one[1] + other[1]


def _found(shape: Shape, key: str, number: int, content: Any, function: Function) -> tuple[Any, ...]:
    assert isinstance(shape.length, Duration)
    assert isinstance(shape.slide, Duration)
    end = START_MS + number * shape.slide.ms + shape.length.ms
    return (end, int(key), *content) if shape.totals else (end, function([row[2] for row in content]))


def streamz(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the stream: `partition` for a tumbling window, else every `slide`-th window of `sliding_window`."""
    from streamz import Stream

    assert isinstance(shape.length, Count)
    assert isinstance(shape.slide, Count)
    length, slide = shape.length.value, shape.slide.value

    def run(load: Events) -> Found:
        found: Found = []
        number = 0
        source = Stream()

        def slid(window: tuple[tuple[int, float], ...]) -> None:
            nonlocal number
            number += 1
            if number % slide == 0:
                taken(window)

        def taken(window: tuple[tuple[int, float], ...]) -> None:
            found.append((window[-1][0], function([value for _, value in window])))

        if length == slide:
            source.partition(length).sink(taken)
        else:
            source.sliding_window(length, return_partial=True).sink(slid)
        for _, stamp, value in load.rows:
            source.emit((stamp, value))
        return found

    return run


def river(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the loop over a `Rolling` sum; its window is read at each slide."""
    from river import stats, utils

    assert isinstance(shape.length, Count)
    assert isinstance(shape.slide, Count)
    length, slide = shape.length.value, shape.slide.value

    def run(load: Events) -> Found:
        found: Found = []
        rolling = utils.Rolling(stats.Sum, window_size=length)
        for number, (_, stamp, value) in enumerate(load.rows, start=1):
            rolling.update(value)
            if number % slide == 0:
                found.append((stamp, function([value for (value,), _ in rolling.window])))
        return found

    return run
