"""Turns and local runs of bolts over columns: the rows of a bolt over rows, and on Spark no row object on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_turn import OUTPUT, Task, batches_of
from windowing import count, millis, windowed_bolt
from windowing.core import aggregate as agg
from windowing.errors import BoltError, ConfigError
from windowing.runtime import run_local
from windowing.spark.rows import NamedRows
from windowing.topology.decorators import bolt_of

SHAPES: list[dict[str, Any]] = [
    {"length": millis(20), "slide": millis(5), "timestamp": "ts"},
    {"length": millis(10), "slide": millis(10), "timestamp": "ts", "key": "key"},
    {"length": count(4), "slide": count(3), "timestamp": "ts"},
    {"length": count(3), "slide": millis(5), "timestamp": "ts", "key": "key"},
    {"length": millis(15), "slide": count(2), "timestamp": "ts"},
    {"length": count(4), "slide": count(2)},
]
SHAPE = pytest.mark.parametrize("shape", range(len(SHAPES)))
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 25), st.sampled_from("ab")), max_size=6), min_size=1, max_size=5)


def by_rows(window: Any) -> Any:
    views = [[row.id for row in rows] for rows in (window.get(), window.get_new(), window.get_expired())]
    return None if window.key is None else str(window.key), window.end_timestamp, *views, sum(r.v for r in window.get())


def by_arrow(window: Any) -> Any:
    views = [table.column("id").to_pylist() for table in (window.get(), window.get_new(), window.get_expired())]
    key = None if window.key is None else str(window.key)
    return key, window.end_timestamp, *views, sum(window.column("v").to_pylist())


def by_numpy(window: Any) -> Any:
    views = [found["id"].tolist() for found in (window.get(), window.get_new(), window.get_expired())]
    key = None if window.key is None else str(window.key)
    return key, window.end_timestamp, *views, sum(window.column("v").tolist())


FORMS: dict[str | None, Any] = {None: by_rows, "arrow": by_arrow, "numpy": by_numpy}


def bolt_over(form: str | None, shape: int) -> Any:
    options = {"name": "probe", "output": OUTPUT, "columnar": form, **SHAPES[shape]}
    if "timestamp" in options:
        options["late_stream"] = "late"
    return bolt_of(windowed_bolt(**options)(lambda window: FORMS[form](window)))


def refuse_rows(*_: Any) -> Any:
    raise AssertionError("a row was made")


@SHAPE
@settings(max_examples=30)
@given(drawn=BATCHES)
def test_a_turn_over_columns_gives_the_rows_of_one_over_rows(shape, drawn):
    tasks = {form: Task(bolt_over(form, shape)) for form in FORMS}
    batches = [*batches_of(drawn), []]
    for number, batch in enumerate(batches):
        drain = number == len(batches) - 1
        results = {form: task.run(batch, drain, now_ms=number) for form, task in tasks.items()}
        assert results["arrow"].rows == results["numpy"].rows == results[None].rows
        assert results["arrow"].metrics == results[None].metrics
        assert len(tasks["arrow"].chunks) == len(tasks[None].chunks)


@pytest.mark.parametrize("aggregate", [None, {"n": agg.count(), "s": agg.sum("v")}])
@pytest.mark.parametrize("key", [None, "key"])
def test_on_spark_a_bolt_over_columns_or_with_an_aggregate_makes_no_row(monkeypatch, aggregate, key):
    form = "numpy" if aggregate is None else None

    @windowed_bolt(
        millis(10), millis(5), timestamp="ts", key=key, columnar=form, aggregate=aggregate, output="n long, s double"
    )
    def total(window):
        if aggregate is not None:
            return window.aggregate["n"], window.aggregate["s"]
        return len(window), float(window.column("v").sum())

    rows = [{"id": n, "ts": 2 * n, "key": "ab"[n % 2], "v": float(n)} for n in range(20)]
    task = Task(bolt_of(total))
    monkeypatch.setattr(NamedRows, "payloads", refuse_rows)
    found = []
    for start in (0, 7, 14):
        found += task.run(rows[start : start + 7]).rows
    found += task.run([], drain=True).rows
    windows = [
        [row["v"] for row in rows if end - 10 < row["ts"] <= end and row["key"] in keys]
        for end in range(0, 50, 5)
        for keys in (("a", "b") if key else ("ab",))
    ]
    expected = [(len(window), sum(window)) for window in windows if window]
    assert sorted((row["n"], row["s"]) for _, row in found) == sorted(expected)


@pytest.mark.parametrize("form", ["arrow", "numpy"])
@pytest.mark.parametrize("shape", range(len(SHAPES) - 1))  # the last one is over the clock
def test_a_local_run_over_columns_gives_the_rows_of_one_over_rows(form, shape):
    rows = [{"id": n, "ts": (n * 7) % 40 // 2 + n, "key": "ab"[n % 3 == 0], "v": n * 0.5} for n in range(30)]
    results = [run_local(bolt_over(each, shape), [rows[:11], rows[11:]]) for each in (None, form)]
    assert results[0].rows == results[1].rows
    assert results[0].rows


def test_a_view_that_is_kept_is_stale_in_a_local_run_too():
    kept: list[Any] = []

    @windowed_bolt(count(2), count(2), columnar="arrow", output="n long")
    def keep(window):
        kept.append(window)
        return window.column("v").length()

    assert run_local(keep, [[{"v": 1}, {"v": 2}]]).rows == {"default": [(2,)]}
    with pytest.raises(Exception, match="after its execute had returned"):
        kept[0].get()


def test_a_column_that_is_not_there_fails_the_bolt_by_name():
    @windowed_bolt(count(1), count(1), columnar="arrow", output="n long")
    def sum_of(window):
        return window.column("delay").length()

    with pytest.raises(BoltError, match="has no column 'delay', it has 'v'"):
        run_local(sum_of, [[{"v": 1}]])


def test_what_fails_tuples_one_by_one_does_not_go_with_columns():
    for on_error in ("fail", "dead_letter"):
        with pytest.raises(ConfigError, match="lists the tuples of a window one by one"):
            windowed_bolt(count(1), columnar="arrow", on_error=on_error, output="n long")(len)
