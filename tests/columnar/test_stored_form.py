"""Row windows and columnar windows have one stored form: a run can be restored at any batch boundary, in either form.

The model is a run over rows that is never stopped. In the other run each batch is added as rows or as columns, and between two
batches the windows are stored and restored into a row manager or a columnar manager. In a topology `columnar=` is set or left out
at random at each restart, for the windowed bolt and for the bolt before it.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.columnar.test_columnar_turn import BATCHES, FORMS, SHAPES, bolt_over
from tests.execution.chains import Chain, clustered
from tests.execution.test_turn import Task, batches_of
from windowing.codec import dumps, loads
from windowing.columnar import ColumnarWindowManager, ColumnRows, Keys
from windowing.columnar.bolts import arrow_schema
from windowing.errors import ConfigError
from windowing.schema.types import Schema
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, windowed_bolt
from windowing.topology.plan import Topology
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Expired
from windowing.windows.manager import WindowManager
from windowing.windows.measures import count, millis

DDL = (
    "key string, at long, small int, tiny tinyint, half float, price decimal(10,2), since timestamp, day date, blob binary, "
    "flag boolean, parts array<int>, inner struct<a:int,b:string>"
)
SCHEMA = arrow_schema(Schema.parse(DDL))
UTC = datetime.UTC
ROW = st.tuples(
    st.sampled_from(["a", "b"]),
    st.integers(0, 40),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.none() | st.integers(-128, 127),
    st.none() | st.floats(width=32, allow_nan=False),
    st.none() | st.decimals(-(10**6), 10**6, places=2),
    st.none() | st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),
    st.none() | st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
    st.none() | st.binary(max_size=3),
    st.none() | st.booleans(),
    st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2),
    st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | st.text("xy", max_size=2)}),
)  # fmt: skip
ROWS = st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=4)
WINDOWS: list[dict[str, Any]] = [
    {"length": millis(20), "slide": millis(10)},
    {"length": count(3), "slide": count(2)},
    {"length": millis(15), "slide": count(2)},
    {"length": count(3), "slide": millis(10)},
]


def as_dicts(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


def as_table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist(as_dicts(rows), schema=SCHEMA)


# -- machines --------------------------------------------------------------------------------------------------------------------


def rows_in(view: Any) -> list[Any]:
    return view.to_pylist() if isinstance(view, pa.Table) else list(view)


def seen(effects: Any) -> list[Any]:
    """Return the content of the fired windows and the expired tuples, as rows."""
    found: list[Any] = []
    for effect in effects:
        if isinstance(effect, Activation):
            window = effect.window
            views = [rows_in(view) for view in (window.get(), window.get_new(), window.get_expired())]
            found.append((window.start_timestamp, window.end_timestamp, window.key, *views))
        elif isinstance(effect, Expired):
            found.append(("expired", list(effect.get() or ())))
    return found


def machine(kind: type[WindowManager], shape: int, keyed: bool) -> WindowManager:
    form = "arrow" if kind is ColumnarWindowManager else None
    config = WindowConfig.of(**WINDOWS[shape], timestamp="at", key="key" if keyed else None, columnar=form)
    return kind(config, sequenced=True)


def taken(running: WindowManager, rows: list[tuple[Any, ...]], in_columns: bool, keyed: bool) -> list[Any]:
    """Add a batch, as rows or as columns, and advance the watermark."""
    late = -1 if running.watermark is None else running.watermark
    rows = [row for row in rows if row[1] > late]
    times, keys, table = [row[1] for row in rows], [row[0] for row in rows], as_table(rows)
    found = []
    if in_columns:
        given_keys = Keys([table.column("key")]) if keyed else None
        found += [effect for _, effect in running.add_batch(ColumnRows(table), times, given_keys)]
    else:
        for row, at, key in zip(as_dicts(rows), times, keys, strict=True):
            found += running.add(row, at, key if keyed else None)
    return seen(found) + (seen(running.advance(max(times))) if times else [])


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), batches=ROWS, shape=st.integers(0, 3), keyed=st.booleans(), is_apart=st.booleans())
def test_a_run_that_switches_between_rows_and_columns_at_restores_matches_the_run_over_rows(
    data: Any, batches: list[Any], shape: int, keyed: bool, is_apart: bool
) -> None:
    model = machine(WindowManager, shape, keyed)
    running = machine(data.draw(st.sampled_from([WindowManager, ColumnarWindowManager])), shape, keyed)
    stored: dict[int, tuple[Any, ...]] = {}
    for rows in batches:
        is_columnar = isinstance(running, ColumnarWindowManager)
        late = -1 if running.watermark is None else running.watermark
        first = running.next_sequence
        stored |= enumerate([row for row in rows if row[1] > late], first)
        assert taken(running, rows, is_columnar and data.draw(st.booleans()), keyed) == taken(model, rows, False, keyed)
        running.check()
        kind = data.draw(st.sampled_from([WindowManager, ColumnarWindowManager]))
        held = sorted(running.held_sequences())
        saved = dumps(running.snapshot(events=not is_apart))
        running = machine(kind, shape, keyed)
        running.restore(loads(saved, "windows"))
        if is_apart and held:  # as on Spark: the driver keeps the tuples
            mine = [stored[number] for number in held]
            payloads = ColumnRows(as_table(mine)) if kind is ColumnarWindowManager else as_dicts(mine)
            running.load([row[0] for row in mine] if keyed else None, held, [row[1] for row in mine], payloads)
        running.check()
    assert seen(running.drain()) == seen(model.drain())
    assert asdict(running.tally) == asdict(model.tally)


def test_snapshots_with_the_former_machine_name_of_columnar_windows_can_be_restored() -> None:
    running = machine(ColumnarWindowManager, 0, False)
    saved = running.snapshot() | {"machine": "ColumnarWindowManager"}
    for kind in (ColumnarWindowManager, WindowManager):
        machine(kind, 0, False).restore(saved)


def test_a_stored_integer_beyond_64_bits_is_restored_as_rows_and_refused_as_columns() -> None:
    by_rows = machine(WindowManager, 0, False)
    list(by_rows.add({"n": 2**70}, 1))
    list(by_rows.add({"n": None}, 2))
    saved = dumps(by_rows.snapshot())
    again = machine(WindowManager, 0, False)
    again.restore(loads(saved, "windows"))
    assert seen(again.advance(10))[0][3] == [{"n": 2**70}, {"n": None}]
    columns = machine(ColumnarWindowManager, 0, False)
    with pytest.raises(ConfigError, match=r"column 'n' cannot hold 1180591620717411303424.*leave out columnar="):
        columns.restore(loads(saved, "windows"))
    assert columns.tally.pending == 0


def test_restored_columns_keep_their_types_even_if_all_values_are_null() -> None:
    running, again = machine(ColumnarWindowManager, 0, False), machine(ColumnarWindowManager, 0, False)
    list(running.add_batch(ColumnRows(as_table([("a", 1, *[None] * 10)])), [1]))
    again.restore(loads(dumps(running.snapshot()), "windows"))
    (shown,) = [effect.window.get() for effect in again.advance(10) if isinstance(effect, Activation)]
    assert shown.schema.equals(SCHEMA)


def test_batches_with_narrow_and_wide_column_types_are_combined_without_loss_of_precision() -> None:
    running = machine(ColumnarWindowManager, 0, False)
    narrow = pa.table({"n": pa.array([1, None], pa.int32()), "x": pa.array([0.5, 1.5], pa.float32())})
    list(running.add_batch(ColumnRows(narrow), [1, 2]))
    list(running.add_batch([{"n": 2**60 + 1, "x": 0.1}], [3]))
    (shown,) = [effect.window.get() for effect in running.advance(10) if isinstance(effect, Activation)]
    assert shown.to_pydict() == {"n": [1, None, 2**60 + 1], "x": [0.5, 1.5, 0.1]}


# -- windows alone, on Spark -----------------------------------------------------------------------------------------------------


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), drawn=BATCHES, shape=st.integers(0, len(SHAPES) - 1))
def test_a_windowed_task_continues_with_the_same_rows_when_columnar_changes_between_batches(
    data: Any, drawn: Any, shape: int
) -> None:
    model, running = Task(bolt_over(None, shape)), Task(bolt_over(None, shape))
    batches = [*batches_of(drawn), []]
    for number, batch in enumerate(batches):
        after = Task(bolt_over(data.draw(st.sampled_from(list(FORMS))), shape))
        after.metadata, after.chunks = running.metadata, running.chunks
        drain = number == len(batches) - 1
        assert after.run(batch, drain, now_ms=number).rows == model.run(batch, drain, now_ms=number).rows
        running = after


# -- topologies ------------------------------------------------------------------------------------------------------------------

OUTPUT = f"ends long, size long, {DDL}"


def shown_by_rows(window: Any) -> Any:
    size = 100 * len(window.get_expired()) + len(window.get_new())
    return [(window.end_timestamp, size, *row.get_values()) for row in window]


def shown_by_columns(window: Any) -> Any:
    rows = window.get()
    assert rows.schema.equals(SCHEMA), rows.schema
    assert window.get_expired().schema.equals(SCHEMA)
    size = 100 * len(window.get_expired()) + len(window.get_new())
    marks = {"ends": pa.array([window.end_timestamp] * len(rows)), "size": pa.array([size] * len(rows))}
    return pa.table({**marks, **dict(zip(rows.column_names, rows.columns, strict=True))})


def topology_of(
    shape: int, keyed: bool, spouts: int, before: str | None, windows: str | None, ackers: int = 0
) -> Topology:
    passed = (
        bolt(output=DDL)(lambda row: row.get_values())
        if before is None
        else bolt(output=DDL, columnar=before)(lambda b: b)
    )
    shown = windowed_bolt(
        **WINDOWS[shape],
        timestamp="at",
        key="key" if keyed else None,
        columnar=windows,
        late_stream="late",
        output=OUTPUT,
        name="window",
    )(lambda window: (shown_by_rows if windows is None else shown_by_columns)(window))
    builder = TopologyBuilder("stored").configure({"topology.acker.executors": ackers})
    declarer = None
    for number in range(spouts):
        builder.set_spout(f"in{number}", InputSpout(DDL))
        builder.set_bolt(f"before{number}", passed).shuffle_grouping(f"in{number}")
    declarer = builder.set_bolt("window", shown, 2)
    for number in range(spouts):
        declarer.fields_grouping(f"before{number}", "key")
    builder.set_bolt("behind", bolt(output=OUTPUT)(lambda row: row.get_values())).fields_grouping("window", "key")
    return builder.build()


@pytest.mark.parametrize("spouts", [1, 2])
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data(), batches=ROWS, shape=st.integers(0, 3), keyed=st.booleans(), acks=st.booleans())
def test_a_topology_continues_with_the_same_rows_when_columnar_of_its_bolts_changes_at_restarts(
    spouts: int, data: Any, batches: list[Any], shape: int, keyed: bool, acks: bool
) -> None:
    feeds = [{f"in{number}": rows[number::spouts] for number in range(spouts)} for rows in batches]
    model = Chain(topology_of(shape, keyed, spouts, None, None), 2, acks=acks)
    wanted = [model.run(fed) for fed in feeds] + [model.run({}, drain=True)]
    running = model = Chain(topology_of(shape, keyed, spouts, None, None), 2, acks=acks)
    found = []
    for fed in [*feeds, None]:
        forms = [data.draw(st.sampled_from([None, "arrow"])) for _ in range(2)]
        after = Chain(topology_of(shape, keyed, spouts, *forms), 2, acks=acks)
        for part in ("metadata", "chunks", "values", "batch"):
            setattr(after, part, getattr(running, part))
        found.append(after.run(fed or {}, drain=fed is None))
        running = after
    assert found == wanted


@settings(max_examples=settings().max_examples // 4)
@given(batches=ROWS, shape=st.integers(0, 3), ackers=st.integers(0, 1))
def test_columnar_windows_in_local_cluster_have_the_declared_column_types(
    batches: list[Any], shape: int, ackers: int
) -> None:
    fed = {"in0": batches}
    wanted = clustered(topology_of(shape, True, 1, None, None, ackers), fed)
    assert clustered(topology_of(shape, True, 1, None, "arrow", ackers), fed) == wanted


def totals_of(form: str | None) -> Topology:
    def by_rows(window: Any) -> Any:
        return window.end_timestamp, window.key, window.aggregate["n"], window.aggregate["total"]

    def by_columns(window: Any) -> Any:
        found = window.aggregate
        return found.append_column("ends", pa.array(np.full(len(found), window.end_timestamp)))

    totals = windowed_bolt(
        millis(20), millis(10), timestamp="at", key="key", aggregate={"n": agg.count(), "total": agg.sum("small")},
        columnar=form, output="ends long, key string, n long, total long",
    )(by_rows if form is None else by_columns)  # fmt: skip
    builder = TopologyBuilder("totals").configure({"topology.acker.executors": 0})
    builder.set_spout("in", InputSpout(DDL))
    builder.set_bolt("totals", totals).fields_grouping("in", "key")
    return builder.build()


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), batches=ROWS)
def test_aggregates_of_a_topology_continue_when_columnar_changes_at_restarts(data: Any, batches: list[Any]) -> None:
    model = Chain(totals_of(None))
    running = Chain(totals_of(None))
    for rows in [*batches, None]:
        after = Chain(totals_of(data.draw(st.sampled_from([None, "arrow"]))))
        for part in ("metadata", "chunks", "values", "batch"):
            setattr(after, part, getattr(running, part))
        fed: dict[str, Any] = {} if rows is None else {"in": rows}
        wanted = model.run(fed, drain=rows is None)
        assert after.run(fed, drain=rows is None) == wanted
        running = after


def test_a_null_in_a_stored_window_is_restored_as_null_as_rows_and_as_columns() -> None:
    row = ("a", 1, *[None] * 10)
    for before, after in ((None, "arrow"), ("arrow", None)):
        first, second = (Chain(topology_of(0, False, 1, None, form)) for form in (before, after))
        first.run({"in0": [row, ("a", 2, 7, *[None] * 9)]})
        second.metadata, second.chunks, second.batch = first.metadata, first.chunks, first.batch
        assert second.run({}, drain=True)["behind"][:2] == [(10, 2, *row), (10, 2, "a", 2, 7, *[None] * 9)]
