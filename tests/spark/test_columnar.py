"""On Spark a columnar bolt, or one with aggregate=, has the same windows and late rows as a bolt over rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.execution.chains import chained
from tests.spark.test_query import batches, late_rows, plain_windows
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
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
    # Adds in the order of arrival, as the plain computation does.
    return window.key, window.end_timestamp, len(window), sum(window.column("v").tolist())


@sliding(seconds(4), seconds(2), aggregate={"n": agg.count(), "total": agg.sum("v")}, **DECLARED)
def by_panes(window: Any) -> Any:
    found = window.aggregate
    return window.key, window.end_timestamp, found["n"], found["total"]


@sliding(seconds(4), seconds(2), columnar="arrow", aggregate={"n": agg.count(), "total": agg.sum("v")}, **DECLARED)
def by_tables(window: Any) -> Any:
    found = window.aggregate
    return found.append_column("end", pa.repeat(window.end_timestamp, len(found)))


def check(bolt: Any, fed: list[list[dict[str, Any]]], rows: list[tuple[Any, ...]], late: list[tuple[Any, ...]]) -> None:
    expected_late = late_rows(fed, 1000)
    expected = plain_windows([row for batch in fed for row in batch if row not in expected_late])
    assert expected_late, "the test needs late rows"
    found = {(k, end): (n, total) for k, end, n, total in rows}
    assert {place: n for place, (n, _) in found.items()} == {place: n for place, (n, _) in expected.items()}
    for place, (_, total) in found.items():
        # Panes are merged one by one: the same numbers are added in another order.
        assert total == expected[place][1] or (bolt is not by_columns and abs(total - expected[place][1]) < 1e-9)
    assert Counter(late) == Counter((row["k"], row["ts"], row["v"], "late") for row in expected_late)


def test_columnar_windows_with_aggregates_match_a_plain_computation(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    fed = batches(3, 80)
    done = run(by_tables, feed().add(*fed).read(), tasks=2, drain=True)
    check(by_tables, fed, done.rows(), done.rows("late"))


def test_columnar_and_aggregating_bolts_match_a_plain_computation_in_the_stages_of_a_topology() -> None:
    builder = TopologyBuilder("columnar").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("rows", InputSpout("k string, ts long, v double"))
    bolts = {bolt.__name__: bolt for bolt in (by_columns, by_panes, by_tables)}
    for name, bolt in bolts.items():
        builder.set_bolt(name, bolt, 2).fields_grouping("rows", "k")
    fed = batches(3, 80)
    out = chained(builder.build(), {"rows": [[tuple(row.values()) for row in batch] for batch in fed]})
    for name, bolt in bolts.items():
        rows, late = ([row for batch in out for row in batch.get(stream, [])] for stream in (name, f"{name}.late"))
        check(bolt, fed, rows, late)
