"""On Spark a bolt over columns, or with aggregate=, has the windows and the late rows of one over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.spark.test_query import batches, late_rows, plain_windows
from windowing.topology.decorators import sliding
from windowing.windows import aggregate as agg
from windowing.windows.measures import seconds

DECLARED: dict[str, Any] = {
    "timestamp": "ts",
    "lag": seconds(1),
    "key": "k",
    "late_stream": "late",
    "output": "k string, end long, n long, total double",
}


@sliding(seconds(4), seconds(2), columnar="numpy", **DECLARED)
def by_columns(window: Any) -> Any:
    # From left to right, as the plain computation adds.
    return window.key, window.end_timestamp, len(window), sum(window.column("v").tolist())


@sliding(seconds(4), seconds(2), aggregate={"n": agg.count(), "total": agg.sum("v")}, **DECLARED)
def by_panes(window: Any) -> Any:
    found = window.aggregate
    return window.key, window.end_timestamp, found["n"], found["total"]


@sliding(seconds(4), seconds(2), columnar="arrow", aggregate={"n": agg.count(), "total": agg.sum("v")}, **DECLARED)
def by_tables(window: Any) -> Any:
    found = window.aggregate
    return found.append_column("end", pa.repeat(window.end_timestamp, len(found)))


def test_windows_over_columns_and_over_panes_are_those_of_a_plain_computation(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    fed = batches(3, 80)
    late = late_rows(fed, 1000)
    expected = plain_windows([row for rows in fed for row in rows if row not in late])
    assert late, "the test needs late rows"
    for bolt in (by_columns, by_panes, by_tables):
        name = bolt.__name__
        done = run(
            bolt, feed(name=name).add(*fed).read(), tasks=2, drain=True, checkpoint=str(tmp_path / f"{name}-checkpoint")
        )
        found = {(k, end): (n, total) for k, end, n, total in done.rows()}
        assert {place: n for place, (n, _) in found.items()} == {place: n for place, (n, _) in expected.items()}
        for place, (_, total) in found.items():
            # Panes are added up pane by pane: the same numbers in another order.
            assert total == expected[place][1] or (bolt is not by_columns and abs(total - expected[place][1]) < 1e-9)
        assert Counter(done.rows("late")) == Counter((row["k"], row["ts"], row["v"], "late") for row in late)
