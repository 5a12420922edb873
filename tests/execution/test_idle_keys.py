"""A turn loads only the keys that get a tuple or are due; its rows and its state are those of a turn that loads all keys."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import add
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.execution.chains import Chain
from tests.execution.test_turn import COLUMNS, OUTPUT, Task, batches_of, bolt_with, control, packet, rows_of, window_row
from windowing import count, millis
from windowing.codec import loads
from windowing.columnar import Keys
from windowing.columnar.rows import decode_table, encode_table
from windowing.errors import CorruptStateError
from windowing.schema.rows import record_of
from windowing.spark import state
from windowing.spark.operator import Stored
from windowing.spark.rows import NamedRows
from windowing.spark.state import SEQUENCE, TIMESTAMP, StoredIdleKeys, StoredTask, stored_keys, with_keys
from windowing.spark.window_turn import TaskStage
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt_of, windowed_bolt
from windowing.windows import aggregate as agg
from windowing.windows import panes
from windowing.windows.config import SkippedTuplesWarning
from windowing.windows.events import Expired
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.key_state import KeyState
from windowing.windows.panes import PaneKeyState, restored_cells

_EVENT_TIME: dict[str, Any] = {"timestamp": "ts", "key": "key"}
DEFINITIONS: list[dict[str, Any]] = [
    {"length": millis(7), "slide": millis(7), **_EVENT_TIME},
    {"length": millis(20), "slide": millis(5), "lag": millis(5), "lateness": "window", **_EVENT_TIME},
    {"length": millis(30), "slide": millis(10), "offset": millis(3), **_EVENT_TIME},
    {"length": count(3), "slide": count(2), **_EVENT_TIME},
    {"length": count(3), "slide": count(2), "key_ttl": millis(15), **_EVENT_TIME},
    {"length": millis(15), "slide": count(2), **_EVENT_TIME},
    {"length": count(2), "slide": millis(10), "repeat": True, "key_ttl": millis(40), **_EVENT_TIME},
    {"length": count(2), "slide": millis(10), **_EVENT_TIME},
    {"length": millis(20), "slide": millis(5), "key": "key"},
    {"length": count(3), "slide": count(2), "key": "key", "key_ttl": millis(15)},
    {"length": millis(40), "slide": millis(40), "lag": millis(9), **_EVENT_TIME},
]
DRAWN = st.lists(st.lists(st.tuples(st.integers(-8, 25), st.sampled_from("abcdef")), max_size=4), max_size=9)
Row = namedtuple("Row", ["id", "ts", "key", "v"])


def bolt_over_the_clock(**options: Any) -> Any:
    return bolt_of(windowed_bolt(name="probe", output=OUTPUT, **options)(lambda window: window_row(window)))


class Live:
    """The rows of a task whose machine never stops."""

    def __init__(self, bolt: Any) -> None:
        self.bolt, self.executor = bolt, WindowedBoltExecutor(bolt.config, component="probe")

    def run(self, batch: list[dict[str, Any]], drain: bool, now_ms: int) -> list[Any]:
        self.executor.set_clock(now_ms)
        found = (
            []
            if self.bolt.config.event_time
            else [row for effect in self.executor.turn() for row in self._rows(effect)]
        )
        stamps = [row["ts"] for row in batch] if self.bolt.config.event_time else None
        added = self.executor.add_batch([Row(**row) for row in batch], stamps, keys=[row["key"] for row in batch])
        found += [row for _, effect in added for row in self._rows(effect)]
        advance = self.executor.drain() if drain else self.executor.turn()
        return found + [row for effect in advance for row in self._rows(effect)]

    def _rows(self, effect: Any) -> Iterator[Any]:
        if hasattr(effect, "payloads"):
            yield from (("late", row._asdict() | {"reason": effect.reason.value}) for row in effect.payloads)
        elif hasattr(effect, "window"):
            yield "default", dict(zip(self.bolt.outputs["default"].names, window_row(effect.window), strict=True))


@pytest.mark.parametrize("options", DEFINITIONS)
@example(drawn=[[(0, "a"), (1, "b")], [(25, "b")], [], [(1, "a")], [(25, "c")]])
@example(drawn=[[(0, "a"), (0, "b"), (0, "a")], [(25, "c")], [(25, "c")], [(25, "a"), (25, "a")], [(25, "c")]])
@given(drawn=DRAWN)
def test_turns_that_load_only_due_keys_equal_a_machine_that_never_stopped(options: Any, drawn: Any) -> None:
    bolt = bolt_with(**options) if "timestamp" in options else bolt_over_the_clock(**options)
    task, live = Task(bolt), Live(bolt)
    for number, batch in enumerate([*batches_of(drawn), None]):
        now_ms = 10 * number
        result = task.run(batch or [], drain=batch is None, now_ms=now_ms)
        assert result.rows == live.run(batch or [], batch is None, now_ms)
        assert result.metrics["pending"] == live.executor.counts()["pending"]
    assert not task.chunks, "a drained task keeps no tuples"


@contextmanager
def loads_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yield the list of the loaded keys."""
    loaded: list[Any] = []
    restore = KeyState.restore
    with monkeypatch.context() as patch:
        patch.setattr(KeyState, "restore", lambda state, data: loaded.append(state.key) or restore(state, data))
        yield loaded


def task_with_keys(keys: int, **options: Any) -> Task:
    """Return a task that has a tuple of each key at 1 ms, and of the first ones another at 12 ms."""
    task = Task(bolt_with(**{"length": millis(10), "slide": millis(10), **_EVENT_TIME, "lag": millis(9), **options}))
    task.run(rows_of([*((1, f"k{key}") for key in range(keys)), *((12, f"k{key}") for key in range(3))], 0))
    return task


def test_only_keys_with_a_tuple_or_a_due_window_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_with_keys(1000)
    with loads_counted(monkeypatch) as loaded:
        assert task.run(rows_of([(13, "k7"), (14, "new"), (3, "k9")], 2000)).rows == []
        assert loaded == ["k7", "k9"]
        loaded.clear()
        assert task.run([]).rows == []
        assert loaded == []
        fired = task.run(rows_of([(19, "k5")], 3000)).rows
    assert len(fired) == 1000
    assert [row["key"] for _, row in fired] == [f"k{key}" for key in range(1000)], "by first arrival, not as loaded"
    assert {row["key"]: len(row["ids"]) for _, row in fired if len(row["ids"]) > 1} == {"k9": 2}
    with loads_counted(monkeypatch) as loaded:
        drained = task.run([], drain=True).rows
    assert [row["key"] for _, row in drained] == ["k0", "k1", "k2", "k5", "k7", "new"]
    assert sorted(loaded) == sorted({row["key"] for _, row in drained})


def test_the_tuples_of_a_key_are_loaded_when_a_window_of_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    tuples = StoredIdleKeys.tuples
    monkeypatch.setattr(StoredIdleKeys, "tuples", lambda stored, keys: asked.append(keys) or tuples(stored, keys))
    task = task_with_keys(1000)
    assert task.run(rows_of([(13, "k7"), (14, "new"), (3, "k9")], 2000)).rows == []
    assert asked == []
    fired = task.run(rows_of([(19, "k5")], 3000)).rows
    assert {row["key"]: row["ids"] for _, row in fired if len(row["ids"]) > 1} == {"k9": [9, 2002]}
    assert [len(keys) for keys in asked] == [1000]
    asked.clear()
    task_with_keys(5, lateness="window").run(rows_of([(13, "k3")], 2000))
    assert asked == [["k3"]], "a tuple may come into a window that has fired"


AGGREGATES: list[dict[str, Any]] = [
    {"length": count(3), "slide": count(3), **_EVENT_TIME},
    {"length": count(4), "slide": count(2), "lag": millis(5), **_EVENT_TIME},
    {"length": count(3), "slide": count(2), "key_ttl": millis(15), **_EVENT_TIME},
    {"length": count(2), "slide": count(3), **_EVENT_TIME},
    {"length": count(3), "slide": count(2), "key": "key", "key_ttl": millis(15)},
    {"length": count(3), "slide": count(2), "key": "key"},
    {"length": millis(7), "slide": millis(7), **_EVENT_TIME},
    {"length": millis(20), "slide": millis(5), "lag": millis(5), "lateness": "window", **_EVENT_TIME},
    {"length": millis(30), "slide": millis(20), "offset": millis(3), **_EVENT_TIME},
    {"length": millis(6), "slide": millis(10), "lag": millis(4), **_EVENT_TIME},
    {"length": millis(6), "slide": millis(10), "lateness": "window", **_EVENT_TIME},
    {"length": millis(20), "slide": millis(5), "key": "key"},
    {"length": millis(5), "slide": millis(20), "key": "key"},
]


def states_of(stored: bytes, what: str) -> Any:
    manager: dict[str, Any] = {"tracks": []}
    with_keys(manager, stored, what)
    return manager["tracks"]


def keys_of(task: Task) -> Any:
    """All keys of a task, by first arrival; those of panes of time, then the cells of each pane."""
    stored = StoredTask.of(task.metadata, "it")
    manager = loads(stored.executor or b"", "it", record_of)["manager"]
    if stored.keys is not None:
        with_keys(manager, stored.keys, "it")
    if "tracks" in manager:
        return manager["tracks"]
    return manager["keys"], [[end, shown, restored_cells(*cells)] for end, shown, *cells in manager["panes"]]


def ids_of(whole: bool) -> Any:
    """The ids of rows. whole: read from whole rows, which are stored while an earlier timestamp may still come."""
    value = (lambda row: row.id) if whole else (lambda id: id)
    return agg.fold(list, lambda acc, row: [*acc, value(row)], add, field=None if whole else "id")


def totals_of(options: dict[str, Any], whole: bool = False) -> Any:
    """A bolt whose windows have partials in place of tuples."""
    functions = {"ids": ids_of(whole), "total": agg.sum("v")}
    with catch_warnings(action="ignore", category=SkippedTuplesWarning):
        marked = windowed_bolt(
            name="probe", output="key string, n long, ids array<long>, total double", aggregate=functions, **options
        )
    return bolt_of(marked(lambda window: (window.key, len(window), window.aggregate["ids"], window.aggregate["total"])))


@pytest.fixture(scope="module")
def cells_apart() -> Iterator[None]:
    """Also a few cells are stored apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "FEW_CELLS", 2)
        yield


@pytest.mark.usefixtures("cells_apart")
@pytest.mark.parametrize("options", AGGREGATES)
@given(drawn=DRAWN, whole=st.booleans())
def test_turns_that_load_only_keys_with_a_tuple_have_the_panes_of_turns_that_load_all(
    options: Any, whole: bool, drawn: Any
) -> None:
    task, every = Task(totals_of(options, whole)), Task(totals_of(options, whole))
    for number, batch in enumerate([*batches_of(drawn), None]):
        if every.metadata is not None:  # the deadlines of other options are ignored, so all keys are loaded
            every.metadata = replace(StoredTask.of(every.metadata, "the state"), deadlines="of others").stored()
        lazy, eager = (each.run(batch or [], drain=batch is None, now_ms=10 * number) for each in (task, every))
        assert (lazy.rows, lazy.metrics) == (eager.rows, eager.metrics)
        keys = [keys_of(task), keys_of(every)]
        assert keys[0] == keys[1]


def test_an_idle_key_with_panes_of_counts_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(totals_of({"length": count(3), "slide": count(3), **_EVENT_TIME}))
    task.run(rows_of([(1, f"k{key}") for key in range(1000)], 0))
    assert task.run([]).rows == []
    restored: list[Any] = []
    restore = PaneKeyState.restore
    monkeypatch.setattr(PaneKeyState, "restore", lambda state, data: restored.append(state.key) or restore(state, data))
    monkeypatch.setattr(PaneKeyState, "snapshot", _counted(PaneKeyState.snapshot, saved := []))
    fired = task.run(rows_of([(12, "k7"), (13, "new"), (14, "k9"), (14, "k7")], 2000)).rows
    assert [(row["key"], row["n"]) for _, row in fired] == [("k7", 3)]
    assert (restored, saved) == (["k7", "k9"], ["k7", "k9", "new"])
    assert task.run(rows_of([(20, "other")], 3000)).rows == []
    assert (restored, saved[3:]) == (["k7", "k9"], ["other"])


def test_an_idle_key_with_panes_of_time_is_not_decoded_until_its_window_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    task, decoded, texts = (
        Task(totals_of({"length": millis(10), "slide": millis(10), **_EVENT_TIME})),
        [],
        state._decoded,
    )
    monkeypatch.setattr(state, "_decoded", lambda column, what: decoded.append(len(column)) or texts(column, what))
    monkeypatch.setattr(panes, "FEW_CELLS", 100)
    task.run(rows_of([(1, f"k{key}") for key in range(1000)], 0))
    assert task.run(rows_of([(4, "k7"), (5, "new"), (6, "k9"), (6, "k7")], 2000)).rows == []
    assert decoded == [2, 2], "the keys, and the accumulators in JSON"
    fired = task.run(rows_of([(11, "k7")], 3000)).rows
    assert [(row["key"], row["n"]) for _, row in fired if row["n"] > 1] == [("k7", 3), ("k9", 2)]
    assert [row["key"] for _, row in fired] == [*(f"k{key}" for key in range(1000)), "new"]
    assert StoredTask.of(task.metadata, "it").keys is None, "one key is stored with the rest"


@pytest.mark.usefixtures("cells_apart")
def test_keys_that_are_equal_and_written_in_different_ways_are_shown_as_in_one_process() -> None:
    options = {"length": millis(20), "slide": millis(5), "timestamp": "ts", "key": "v"}
    function = agg.count()
    marked = windowed_bolt(name="probe", output="key string, n long", aggregate=function, **options)
    bolt = bolt_of(marked(lambda window: (repr(window.key), window.aggregate)))
    task, live = Task(bolt), WindowedBoltExecutor(bolt.config)
    for batch in ([(7, 0.0), (1, -0.0), (2, 1.0), (3, 2.0)], [], [(8, -0.0), (11, 0.0)], [(40, -0.0)]):
        rows = [{"id": 0, "ts": ts, "key": "a", "v": value} for ts, value in batch]
        list(live.add_batch(rows, [ts for ts, _ in batch], keys=[value for _, value in batch]))
        shown = [
            {"key": repr(effect.window.key), "n": len(effect.window)}
            for effect in live.turn()
            if hasattr(effect, "window")
        ]
        assert [row for _, row in task.run(rows).rows] == shown


@pytest.mark.usefixtures("cells_apart")
def test_accumulators_of_any_kind_are_stored_beside_those_of_another_kind() -> None:
    """As numbers of 64 bits, larger ones, floats, lists and None: in one column, and each returned as it was."""
    last = agg.fold(lambda: None, lambda acc, v: v, lambda a, b: a if b is None else b, field="v")
    given: list[list[Any]] = [
        [1, 2, 3, None],
        [2**70, None, 1, 5],
        [None] * 4,
        [0.5, -0.0, 2, 7],
        [[1], True, "a", b"b"],
    ]
    bolt = windowed_bolt(
        millis(90), millis(90), timestamp="ts", key="key", name="probe", output="n long", aggregate=last
    )
    config = bolt_of(bolt(lambda window: 1)).config
    whole = WindowedBoltExecutor(config)
    stored: pa.Table | None = None
    for number, values in enumerate(given):
        rows = [{"v": value, "key": f"k{number}{at}"} for at, value in enumerate(values)]
        apart = WindowedBoltExecutor(config)
        for each in (whole, apart):
            list(each.add_batch(rows, [1] * len(rows), keys=[row["key"] for row in rows]))
        stored = decode_table(stored_keys(stored, apart.manager.loaded()))
    manager = {"panes": [[90, 0, 20]]}
    with_keys(manager, encode_table(stored), "it")
    [[_, _, *cells]] = manager["panes"]
    [[_, _, *expected]] = whole.manager.snapshot()["panes"]
    shown = [sorted(restored_cells(*each).items()) for each in (cells, expected)]
    assert repr(shown[0]) == repr(shown[1])


def _counted(snapshot: Any, into: list[Any]) -> Any:
    return lambda state, events: into.append(state.key) or snapshot(state, events)


def test_a_key_of_several_fields_is_loaded_with_its_own_tuples_only() -> None:
    options = {**_EVENT_TIME, "length": millis(10), "slide": millis(10), "lag": millis(9), "key": ("key", "ts")}
    task = Task(bolt_with(**options))
    task.run(rows_of([(1, "a"), (2, "a"), (1, "b"), (2, "b")], 0))
    task.run(rows_of([(1, "a"), (2, "b")], 4))
    fired = task.run([], drain=True).rows
    assert [(row["key"], row["ids"]) for _, row in fired] == [
        (str(("a", 1)), [0, 4]),
        (str(("a", 2)), [1]),
        (str(("b", 1)), [2]),
        (str(("b", 2)), [3, 5]),
    ]


def test_a_turn_with_few_of_many_keys_decodes_only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    task, decoded, texts = task_with_keys(1000), [], state._decoded
    with monkeypatch.context() as patch:
        patch.setattr(state, "_decoded", lambda column, what: decoded.append(len(column)) or texts(column, what))
        patch.delattr(Keys, "coded")
        patch.setattr(KeyState, "snapshot", property(lambda _: pytest.fail("the snapshot of a key is stored nowhere")))
        assert task.run(rows_of([(13, "k7"), (14, "new"), (3, "k9")], 2000)).rows == []
    assert decoded == [2]
    assert len(task.run(rows_of([(19, "k5")], 3000)).rows) == 1000


def test_a_stored_key_is_returned_once() -> None:
    executor = WindowedBoltExecutor(bolt_with(**DEFINITIONS[0]).config, sequenced=True)
    list(executor.add_batch(["it", "another"], [1, 1], keys=[("a", 1), "another"]))
    assert executor.manager.numbered is not None
    stored = stored_keys(None, executor.manager.numbered.loaded())
    found = StoredIdleKeys(stored, None, None, list, "the state")
    loaded = found.of([("a", 1), "new"])
    assert loaded is not None
    assert [each["key"] for each in loaded.states] == [("a", 1)]
    assert found.of([("a", 1)]) is None
    assert found.left().column("key").to_pylist() == ['"another"']


@pytest.mark.parametrize("key", [0.0, math.nan])
def test_a_key_without_tuples_is_found_by_every_float_that_equals_it(key: float) -> None:
    builder = TopologyBuilder("floats").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout("id long, ts long, key double"))
    with pytest.warns(SkippedTuplesWarning):
        second = windowed_bolt(name="second", length=count(1), slide=count(2), output="ids array<long>", **_EVENT_TIME)
    builder.set_bolt("second", second(lambda window: ([row["id"] for row in window],))).global_grouping("in")
    chain = Chain(builder.build())
    assert "second" not in chain.run({"in": [(1, 1, key)]})
    assert not any(chain.chunks.values())
    assert chain.run({"in": [(2, 2, -key)]}, drain=True)["second"] == [([2],)]


def test_equal_keys_of_streams_with_other_types_are_one_key() -> None:
    builder = TopologyBuilder("numbers").configure({"topology.enable.message.timeouts": False})
    for name, kind in (("doubles", "double"), ("longs", "long"), ("flags", "boolean")):
        builder.set_spout(name, InputSpout(f"id long, ts long, key {kind}"))
    # The first tuple of a key is in no window, so the state has keys and no tuples.
    with pytest.warns(SkippedTuplesWarning):
        second = windowed_bolt(name="second", length=count(1), slide=count(2), output="ids array<long>", **_EVENT_TIME)
    bolt = builder.set_bolt("second", second(lambda window: ([row["id"] for row in window],)))
    for name in ("doubles", "longs", "flags"):
        bolt.global_grouping(name)
    chain = Chain(builder.build())
    first = {
        "doubles": [(key, 1, float(key)) for key in range(1, 10)],
        "longs": [(77, 1, 77)],
        "flags": [(0, 1, False)],
    }
    assert "second" not in chain.run(first)
    assert not any(chain.chunks.values())
    assert "second" not in chain.run({"longs": [(33, 2, 3)]})
    ids = chain.run({"doubles": [(770, 2, 77.0)], "flags": [(11, 2, True)]}, drain=True)["second"]
    assert sorted(ids) == [([11],), ([33],), ([770],)]


def test_the_state_of_an_older_version_is_read() -> None:
    """Written by the version before keys were stored separately; the file lists the rows that each of its tasks then emitted."""
    found = json.loads((Path(__file__).parents[1] / "data" / "state_without_keys.json").read_text())
    for number, old in enumerate(found):
        task = Task(bolt_with(**DEFINITIONS[number]))
        task.metadata = base64.b64decode(old["metadata"])
        task.chunks = {base64.b64decode(key): base64.b64decode(data) for key, data in old["chunks"].items()}
        rows = [task.run(batch, drain=not batch, now_ms=old["now_ms"]).rows for batch in old["batches"]]
        assert json.loads(json.dumps(rows)) == old["rows"], DEFINITIONS[number]
        assert any(rows)


def test_stored_deadlines_of_other_options_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, Any] = {"length": count(9), "slide": count(9), "lag": millis(9), **_EVENT_TIME}
    task = task_with_keys(5, **counted)
    changed = Task(bolt_with(**counted, key_ttl=millis(100)))
    changed.metadata, changed.chunks = task.metadata, task.chunks
    with loads_counted(monkeypatch) as loaded:
        changed.run(rows_of([(13, "k1")], 100))
    assert loaded == ["k0", "k1", "k2", "k3", "k4"]


def test_a_deadline_beyond_64_bits_is_never_reached() -> None:
    options: dict[str, Any] = {"length": count(3), "slide": count(2), "key_ttl": millis(sys.maxsize), **_EVENT_TIME}
    task = Task(bolt_with(**options))
    for number, (ts, key) in enumerate([(1, "a"), (2**61, "b"), (2**62 - 1, "c")]):
        assert task.run(rows_of([(ts, key)], number)).rows == []
    assert [(row["key"], row["ids"]) for _, row in task.run([], drain=True).rows] == [
        ("a", [0]),
        ("b", [1]),
        ("c", [2]),
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (b"no Arrow", "state of bolt 'probe', task 0 has keys that are no Arrow stream: .*; nothing was reset"),
        (None, "state of bolt 'probe', task 0 has keys with the columns x, wanted key, ordinal, .*; nothing was reset"),
    ],
)
def test_keys_that_cannot_be_read_are_an_error(keys: bytes | None, message: str) -> None:
    task = task_with_keys(3)
    assert task.metadata is not None
    stored = StoredTask.of(task.metadata, "the state")
    assert [each["key"] for each in states_of(stored.keys or b"", "the state")] == ["k0", "k1", "k2"]
    if keys is None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])):
            pass
        keys = bytes(sink.getvalue())
    task.metadata = replace(stored, keys=keys).stored()
    with pytest.raises(CorruptStateError, match=message):
        task.run([])


def test_keys_with_a_column_of_an_earlier_version_are_read() -> None:
    task = task_with_keys(3)
    assert task.metadata is not None
    stored = StoredTask.of(task.metadata, "the state")
    table = decode_table(stored.keys)
    with_more = table.append_column("born", pa.array([0, 1, 2]))
    task.metadata = replace(stored, keys=encode_table(with_more)).stored()
    assert states_of(encode_table(with_more), "the state") == states_of(stored.keys or b"", "the state")
    task.run(rows_of([(1_000, "k1")], 100))


def test_a_key_of_any_type_is_stored_as_its_value() -> None:
    keys = ["a", "1", 1, None, ("a", 2), ("a", "2"), 'quote " and \\, comma', "\N{SNAKE}", b"\x00\xff", "x" * 10_000]
    executor = WindowedBoltExecutor(bolt_with(**DEFINITIONS[0]).config, sequenced=True)
    list(executor.add_batch([str(key) for key in keys], [1] * len(keys), keys=keys))
    machine = executor.manager.numbered
    assert machine is not None
    found = states_of(stored_keys(None, machine.loaded()), "the state")
    assert [each["key"] for each in found] == keys
    assert found == [{name: each[name] for name in found[0]} for each in machine.snapshot(events=False)["tracks"]]


def test_a_drain_expires_keys_by_first_arrival_in_any_order_of_loading() -> None:
    config = bolt_with(**DEFINITIONS[0]).config
    first = WindowedBoltExecutor(config, sequenced=True)
    list(first.add_batch([*"abc"], [1, 1, 1], keys=[*"abc"]))
    machine, again = first.manager.numbered, WindowedBoltExecutor(config, sequenced=True)
    assert machine is not None
    assert again.manager.numbered is not None
    snapshot = first.snapshot(events=False)
    snapshot["manager"]["tracks"] = []
    again.restore(snapshot)
    rows = pa.table({"key": [*"abc"], TIMESTAMP: [1, 1, 1], SEQUENCE: [0, 1, 2]})
    columns = Keys([rows.column("key")])
    stored = stored_keys(None, machine.loaded())
    again.manager.numbered.idle = StoredIdleKeys(stored, rows, columns, lambda table: table["key"].to_pylist(), "it")
    list(again.add_batch(["c", "d", "b"], [2, 2, 2], keys=["c", "d", "b"]))
    assert [effect.key for effect in again.drain() if isinstance(effect, Expired)] == [*"abcd"]


_DAY = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, 2, None, -3]),
        (pa.float64(), [1.5, math.nan, None, -0.0]),
        (pa.bool_(), [True, False, None, True]),
        (pa.binary(), [b"a", b"\xff", None, b""]),
        (pa.date32(), [date(2026, 1, 1), date(2026, 1, 2), None, date(1, 1, 1)]),
        (pa.timestamp("us", "UTC"), [_DAY, _DAY + timedelta(seconds=1), None, _DAY + timedelta(days=1)]),
        (pa.decimal128(6, 2), [Decimal("1.10"), Decimal("-0.01"), None, Decimal("9.99")]),
    ],
)
@pytest.mark.parametrize("names", [("key",), ("key", "v")])
def test_a_key_of_any_type_is_found_again_with_its_window(
    kind: pa.DataType, values: list[Any], names: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"length": millis(10), "slide": millis(10), "timestamp": "ts", "key": names}
    marked = windowed_bolt(name="probe", output="ids array<long>", **options)
    stage = TaskStage(bolt_of(marked(lambda window: ([row.id for row in window],))), NamedRows(COLUMNS))
    task = Task(stage.bolt)
    shown = []
    for number, chosen in enumerate([[0, 1, 2, 3], [2], [1, 0], [], [3, 1]]):
        rows = pa.table(
            {
                "id": pa.array([10 * number + at for at in chosen], pa.int64()),
                "ts": pa.array([1] * len(chosen), pa.int64()),
                "key": pa.array([values[at] for at in chosen], kind),
                "v": pa.array([0.5] * len(chosen), pa.float64()),
            }
        )
        sent = [packet(rows.append_column(TIMESTAMP, rows["ts"]))] if chosen else []
        found = stage.turn(
            0, Stored(task.metadata, task.chunks.get), [*sent, control("drain" if number == 4 else "tick")]
        )
        task.metadata, task.chunks = found.metadata, {**task.chunks, **found.puts}
        shown += [ids for _, (ids,) in found.rows]
    merged = [[0, 3, 20, 43], [1, 21, 41], [2, 12]]  # True occurs twice among the booleans
    assert shown == (merged if kind == pa.bool_() else [[0, 20], [1, 21, 41], [2, 12], [3, 43]])
