"""Windows of Trident on Spark, stored between batches: same rows, order and counts as windows that are never stored."""

from __future__ import annotations

import gc
import random
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.execution.test_trident_attempts import behind_stream
from windowing import TimeEvictionPolicy, count, millis, seconds
from windowing.codec import dumps, frame, unframe
from windowing.columnar.bolts import table_of
from windowing.columnar.rows import decode_table
from windowing.errors import BoltError, ConfigError, CorruptStateError
from windowing.execution.plan import Section, StageTask
from windowing.schema.types import Schema
from windowing.spark import state, trident_windows
from windowing.spark.dealing import TaskState
from windowing.spark.exchange import TASK_AND_CLOCK, ExchangeRow
from windowing.spark.operator import Stored
from windowing.spark.rescaling import _bolts_of, _windows_of
from windowing.spark.trident_stages import TridentSpoutStage, trident_turn
from windowing.topology.components import InputSpout
from windowing.topology.groupings import FieldsGrouping
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.trident.windows import WindowProcessor
from windowing.windows.eviction import Action, EvictionPolicy
from windowing.windows.queue import ListBuffer

FIELDS = "id long, ts long, key string, size double, day date, at timestamp, cost decimal(6,2), tags array<string>, \
more map<string, int>, inner struct<a: int, b: array<double>>, f float, raw binary, yes boolean, source int"
SCHEMA = Schema.parse(FIELDS)


def shown(window: Any) -> Any:
    """Return the whole window, with every value and its type."""
    parts = window.get(), window.get_new(), window.get_expired()
    texts = [[text_of(tuple(row)) for row in part] for part in parts]
    return *texts, window.start_timestamp, window.end_timestamp, text_of(window.key)


def text_of(value: Any) -> str:
    """Return values with their types; UTC is one zone, by either of Python's classes."""
    return repr(value).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


SHOWN = "held array<string>, new array<string>, old array<string>, since long, until long, of string"


class Remembering(EvictionPolicy):
    """A user's policy, whose state has rows: it expires all but the last four tuples."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def track(self, event: Any) -> None:
        if not event.is_watermark:
            self.last = [*self.last, event.payload][-4:]

    def evict(self, event: Any) -> Action:
        return Action.PROCESS if event.payload.id in [row.id for row in self.last] else Action.EXPIRE

    def get_state(self) -> Any:
        return self.last

    def restore_state(self, state: Any) -> None:
        self.last = state


def windows_of(made: Any, options: dict[str, Any]) -> Any:
    options = dict(options)
    length, slide = options.pop("length"), options.pop("slide")
    by = options.pop("by", ())
    stream = made.group_by(*by) if by else made
    return stream.window(length, slide, None, shown, SHOWN, **options)


EVENT: dict[str, Any] = {"timestamp": "ts"}
DEFINITIONS: list[dict[str, Any]] = [
    {"length": millis(7), "slide": millis(7), **EVENT},
    {"length": millis(20), "slide": millis(5), "lag": millis(5), "lateness": "window", **EVENT},
    {"length": millis(20), "slide": millis(5), "lateness": "window", "by": ("key",), **EVENT},
    {"length": count(3), "slide": count(2), **EVENT},
    {"length": count(3), "slide": count(2), "by": ("key",), "key_ttl": millis(15), **EVENT},
    {"length": millis(15), "slide": count(2), "by": ("size",), **EVENT},
    {"length": millis(15), "slide": millis(5), "by": ("key", "at"), **EVENT},
    {"length": millis(15), "slide": millis(5), "by": ("tags",), **EVENT},
    {"length": millis(15), "slide": millis(15), "by": ("cost", "day"), "offset": millis(3), **EVENT},
    {"length": count(2), "slide": millis(10), "by": ("key",), "repeat": True, "key_ttl": millis(40), **EVENT},
    {"length": millis(12), "slide": millis(12), "source": "source", "idle_timeout": millis(20), **EVENT},
    {"length": millis(12), "slide": millis(4), "max_future": millis(40), **EVENT},
    {"length": millis(12), "slide": millis(4), "by": ("yes",), "timestamp": lambda row: row.ts // 2},
    {"length": millis(20), "slide": millis(5), "by": ("key",)},
    {"length": count(3), "slide": count(1), "by": ("key",)},
    {"length": count(4), "slide": count(3)},
    {"slide": millis(10), "length": None, "eviction": Remembering, "by": ("key",), **EVENT},
    {"length": millis(20), "slide": millis(10), "eviction": lambda: TimeEvictionPolicy(15), **EVENT},
    {"length": count(5), "slide": millis(10), "eviction": lambda: TimeEvictionPolicy(25), "by": ("key",), **EVENT},
]


def topology_of(definitions: Iterable[dict[str, Any]], tasks: int = 1) -> TridentTopology:
    """Return a topology with these windows, all of one stream. Those without a key are merged, and so in one task."""
    topology, merged = TridentTopology("stored"), []
    rows = topology.new_stream("rows", InputSpout(FIELDS))
    for number, definition in enumerate(definitions):
        windows = windows_of(rows, definition).parallelism_hint(tasks)
        if "by" in definition:
            windows.sink(f"out{number}")
        else:
            merged.append(windows)
        if "timestamp" in definition:
            windows.late_stream().sink(f"late{number}")
    if merged:
        (topology.merge(*merged) if len(merged) > 1 else merged[0]).sink("merged")
    return topology


class OnSpark:
    """The windows of a topology as Spark's operator runs them: only bytes survive a batch."""

    def __init__(self, topology: TridentTopology) -> None:
        self.plan = topology.build().by_section()
        self.shipped: Any = SimpleNamespace(value=self.plan)
        self.metadata: dict[int, bytes] = {}
        self.chunks: dict[int, dict[bytes, bytes]] = {}
        self.number = 0
        self.written = 0
        self.counts = Counter[str]()

    @property
    def tasks(self) -> list[StageTask]:
        return [task for depth in self.plan.depths(Section.STREAM) for task in self.plan.tasks_at(depth)]

    def batch(self, rows: list[Any], now_ms: int, drain: bool = False, seed: int = 0, attempts: int = 1) -> Any:
        """Run a batch; return the rows of each sink, in their order."""
        chance, names = random.Random(seed), [f"c{at}" for at in range(len(SCHEMA.names))]
        clock = pa.repeat(pa.scalar(now_ms, pa.int64()), len(rows))
        given = pa.RecordBatch.from_arrays(
            [*(column.combine_chunks() for column in table_of(rows, SCHEMA).columns), clock],
            names=[*names, TASK_AND_CLOCK],
        )
        spout = TridentSpoutStage(self.shipped, self.plan.spouts[0].number, keep=False)
        wire = [
            ExchangeRow(*row.values()) for sent in spout.pack(iter([given]), 0, self.number) for row in sent.to_pylist()
        ]
        kind = "drain" if drain else "tick"
        wire += [ExchangeRow(task.number, kind, "", 0, 0, now_ms, None, 0, None) for task in self.tasks]
        for task in self.tasks:
            own = [row for row in wire if row.target == task.number]
            stored = Stored(self.metadata.get(task.number), self.chunks.setdefault(task.number, {}).get)
            for _ in range(attempts):
                chance.shuffle(own)
                result = trident_turn(self.shipped, task.number, own, stored, self.number)
            for key in result.drops:
                del self.chunks[task.number][key]
            self.chunks[task.number].update(result.puts)
            assert result.metadata is not None
            self.metadata[task.number] = result.metadata
            self.written = len(result.metadata) + sum(map(len, result.puts.values()))
            wire = [row for row in wire if row.target != task.number] + list(result.output)
            (done,) = result.done
            self.counts.update({"fired": done.windows_fired, "expired": done.expired, "skipped": done.skipped})
            self.counts.update({f"late {reason}": number for reason, number in done.late.items()})
            self.counts[f"pending {task.number}"] = done.pending or 0
        self.number += 1
        wire = behind_stream(self.shipped, wire, TransactionAttempt(self.number, 0), chance)
        assert {row.target for row in wire} == {-1}
        sinks: dict[str, list[Any]] = {name: [] for name in self.plan.sinks}
        for row in sorted(wire, key=lambda row: (row.upstream, row.sequence)):
            if row.kind == "out":
                columns = decode_table(row.data).columns
                sinks[row.stream] += zip(
                    *(column.to_pylist(maps_as_pydicts="strict") for column in columns), strict=True
                )
        return sinks

    def stored_by_an_earlier_version(self, run: TridentRun) -> None:
        """Replace what is stored by the windows of `run`, as an earlier version wrote them."""
        for task in self.tasks:
            windows = run.tasks[task.stage.id][task.task].windows()
            kept = {
                str(number): {"txid": self.number, "windows": window.snapshot()["now"]}
                for number, window in windows.items()
            }
            self.metadata[task.number], self.chunks[task.number] = frame(b"WNDT", dumps(kept)), {}


class NeverStored:
    """The same plan in memory; its windows get the values that Arrow gives, as those on Spark."""

    def __init__(self, topology: TridentTopology) -> None:
        self.run = TridentRun(topology.build().by_section())
        self.counts = Counter[str]()

    def batch(self, rows: list[Any], now_ms: int, drain: bool = False) -> Any:
        columns = table_of(rows, SCHEMA).columns
        read = list(zip(*(column.to_pylist(maps_as_pydicts="strict") for column in columns), strict=True))
        before = self._counted()
        found = self.run.batch({"rows": read}, now_ms, drain)
        after = self._counted()
        self.counts.update({name: after[name] - before[name] for name in after if not name.startswith("pending")})
        self.counts.update({name: after[name] - self.counts[name] for name in after if name.startswith("pending")})
        return found

    def _counted(self) -> Counter[str]:
        found = Counter[str]()
        for task in self.run.plan.tasks:
            made = self.run.tasks[task.stage.id][task.task]
            if made.windows():
                counts, late = made.window_counts()
                found.update({name: counts[name] for name in ("fired", "expired", "skipped")})
                found.update({f"late {reason}": number for reason, number in late.items()})
                found[f"pending {task.number}"] = counts["pending"]
        return found


def row_of(draw: Any, id: int, now: int) -> tuple[Any, ...]:
    ts = draw(st.one_of(st.none(), st.integers(now - 20, now + 30), st.integers(0, 200)))
    key = draw(st.sampled_from(["a", "b", "ü", "", None]))
    size = draw(st.sampled_from([1.5, 0.0, -0.0, float("nan"), None]))
    at = draw(st.sampled_from([None, datetime(2024, 3, 1, 12, tzinfo=UTC), datetime(1969, 1, 1, 0, 0, 0, 7, UTC)]))
    tags = draw(st.sampled_from([None, [], ["x", None], ["y"]]))
    more = draw(st.sampled_from([None, {}, {"p": 1, "a": None}]))
    inner = draw(st.sampled_from([None, {"a": None, "b": None}, {"a": 3, "b": [0.5, float("nan"), None]}]))
    cost = draw(st.sampled_from([None, Decimal("1.50"), Decimal("-0.01")]))
    day = None if at is None else at.date()
    raw, yes = draw(st.sampled_from([None, b"", b"\x00\xff"])), draw(st.sampled_from([None, True, False]))
    f = draw(st.sampled_from([None, 0.1, 3.0]))
    return id, ts, key, size, day, at, cost, tags, more, inner, f, raw, yes, id % 2


@st.composite
def histories(draw: Any) -> Any:
    definitions = draw(st.lists(st.sampled_from(DEFINITIONS), min_size=1, max_size=3))
    now, id, batches = 0, 0, []
    for _ in range(draw(st.integers(1, 6))):
        now += draw(st.integers(0, 25))
        size = draw(st.integers(1, 6))
        rows = [row_of(draw, id + at, now) for at in range(size)]
        id += size
        batches.append((now, rows, draw(st.integers(1, 2)), draw(st.sampled_from([0, 8, 20, 500]))))
    return definitions, batches, draw(st.integers(0, 7)), draw(st.booleans())


@given(histories(), st.integers(0, 99))
def test_rows_order_and_counts_are_those_of_windows_that_are_never_stored(history: Any, seed: int) -> None:
    definitions, batches, old_at, drains = history
    topology = topology_of(definitions)
    spark, memory = OnSpark(topology), NeverStored(topology)
    for number, (now, rows, attempts, few) in enumerate(batches):
        # An earlier version stored the rows in a policy's state as tuples without names.
        if number == old_at and number and all(each.get("eviction") is not Remembering for each in definitions):
            spark.stored_by_an_earlier_version(memory.run)
        drain = drains and number == len(batches) - 1
        with warnings.catch_warnings(), at_most(few):
            warnings.simplefilter("ignore")
            found, wanted = spark.batch(rows, now, drain, seed, attempts), memory.batch(rows, now, drain)
        for name, each in wanted.items():
            assert repr(found[name]) == repr(each), f"{name}, batch {number}\nstored {found[name]}\nnever  {each}"
        assert +spark.counts == +memory.counts


@contextmanager
def at_most(few: int) -> Iterator[None]:
    """Let so many tuples and keys stay in a snapshot."""
    before, trident_windows.FEW = trident_windows.FEW, few
    try:
        yield
    finally:
        trident_windows.FEW = before


def held(tuples: int, keys: int) -> OnSpark:
    """Return windows that hold so many tuples of so many keys."""
    definition: dict[str, Any] = {"length": seconds(900), "slide": seconds(900), "timestamp": "ts"}
    spark = OnSpark(topology_of([{**definition, "by": ("key",)} if keys else definition]))
    rest = (None,) * 9
    spark.batch([(at, 1_000 + at, f"key {at % max(keys, 1)}", 0.5, None, *rest) for at in range(tuples)], 0)
    return spark


@pytest.mark.parametrize("keys", [0, 4_000])
def test_a_batch_writes_its_new_tuples_and_not_those_that_are_held(keys: int) -> None:
    spark = held(20_000, keys)
    whole = spark.written
    for number in range(3):
        spark.batch([(number, 50_000 + number, "key 7", 0.5, *(None,) * 10)], 0)
        assert spark.written < (70_000 if keys else 6_000) < whole, "the table of keys is written whole"


def test_a_batch_loads_only_the_keys_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, loaded = held(4_000, 2_000), list[Any]()
    states = state._states

    def counting(table: Any, keys: Any, what: str) -> Any:
        loaded.extend(keys)
        return states(table, keys, what)

    monkeypatch.setattr(state, "_states", counting)
    spark.batch([(0, 50_000, "key 7", 0.5, *(None,) * 10)], 0)
    assert loaded == ["key 7"]


def test_the_tuples_of_a_turn_are_freed_at_its_end_without_the_cycle_collector() -> None:
    spark = held(600, 0)
    gc.collect()
    gc.disable()
    try:
        spark.batch([(0, 50_000, "key 7", 0.5, *(None,) * 10)], 0)
        left = [each for each in gc.get_objects() if type(each) in (WindowProcessor, ListBuffer)]
    finally:
        gc.enable()
    assert not left


def test_times_of_another_zone_are_those_of_utc_in_the_batch_of_their_tuples_too() -> None:
    here = datetime(2024, 3, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    topology = TridentTopology("zones")
    rows = topology.new_stream("rows", InputSpout(FIELDS)).map(
        lambda row: (row.ts, here, [here]), "ts long, at timestamp, ats array<timestamp>"
    )
    rows.window(
        count(2),
        count(1),
        None,
        lambda window: [(str([row.at.isoformat() for row in window]),)],
        "text string",
        timestamp="ts",
    ).sink("out")
    spark = OnSpark(topology)
    texts = [text for at in (1, 2, 3) for (text,) in spark.batch([(at, at, *(None,) * 12)], 0)["out"]]
    assert texts[-1] == str(["2024-03-01T07:00:00+00:00"] * 2)
    assert len(set(texts[-2:])) == 1, "a stored time, and one of this batch"


# -- What an earlier version has stored ------------------------------------------------------------------------------------------


def test_a_last_window_far_behind_is_taken_over_from_an_earlier_version() -> None:
    definition = {"length": count(1), "slide": seconds(1), "timestamp": "ts", "by": ("key",)}
    topology = topology_of([definition])
    spark, memory = OnSpark(topology), NeverStored(topology)
    first = [(1, 1, "a", *(None,) * 11)]
    more = [(at, 1_500, "a", *(None,) * 11) for at in range(2, 3_000)]
    batches = [
        first,
        [(1, 1_001, "b", *(None,) * 11)],
        more,
        [(3_000, 2_500, "a", *(None,) * 11)],
        [(3_001, 3_500, "b", *(None,) * 11)],
    ]
    for number, rows in enumerate(batches):
        if number == 4:
            spark.stored_by_an_earlier_version(memory.run)
        assert repr(spark.batch(rows, 0)["out0"]) == repr(memory.batch(rows, 0)["out0"])


def test_an_earlier_version_refuses_the_windows_of_this_one() -> None:
    spark = held(3, 0)
    (metadata,) = spark.metadata.values()
    with pytest.raises(
        CorruptStateError, match="windows has format 2, this library reads 1; use the version that wrote it"
    ):
        unframe(b"WNDT", metadata, "windows")


def test_windows_without_those_of_a_step_are_refused() -> None:
    two = OnSpark(topology_of([DEFINITIONS[0], DEFINITIONS[3]]))
    one = held(3, 0)
    (task,) = (task.number for task in two.tasks)  # both windows are in it
    (two.metadata[task],), (two.chunks[task],) = one.metadata.values(), one.chunks.values()
    with pytest.raises(
        CorruptStateError, match=r"the windows of .*, task 0 lack those of step \d+; put the checkpoint back"
    ):
        two.batch([(1, 1, *(None,) * 12)], 0)


def test_a_policy_whose_state_is_not_plain_data_is_named() -> None:
    class Odd(Remembering):
        def get_state(self) -> Any:
            return object()

    spark = OnSpark(topology_of([{"slide": millis(10), "length": None, "eviction": Odd, **EVENT}]))
    with pytest.raises(BoltError, match=r"bolt 'window_\d+' cannot be stored: .*object"):
        spark.batch([(1, 1, *(None,) * 12)], 0)


# -- Another number of tasks -----------------------------------------------------------------------------------------------------


def with_tasks(topology: TridentTopology, stopped: OnSpark) -> OnSpark:
    """Return the windows of a topology with other numbers of tasks, in the state of stopped ones, as `rescale` distributes them."""
    found, states = OnSpark(topology), dict[str, list[TaskState]]()
    for stage in {task.stage.id for task in stopped.tasks}:
        numbers = [task.number for task in stopped.tasks if task.stage.id == stage]
        states[stage] = [TaskState(stopped.metadata.get(at), stopped.chunks.get(at, {}), {}) for at in numbers]
    for bolt in _bolts_of(found.plan):
        first = found.plan.stages[bolt.name].first
        for task, each in enumerate(_windows_of(stopped.plan, bolt, states[bolt.name]), first):
            found.chunks[task] = dict(each.chunks)
            if each.metadata is not None:
                found.metadata[task] = each.metadata
    return found


KEYED = [each for each in DEFINITIONS if "by" in each and "eviction" not in each]


@st.composite
def rescaled_histories(draw: Any) -> Any:
    definition, old = draw(st.sampled_from(KEYED)), draw(st.booleans())
    batches = [
        (10 * number, [row_of(draw, 10 * number + at, 10 * number) for at in range(draw(st.integers(1, 6)))])
        for number in range(draw(st.integers(2, 5)))
    ]
    return (
        definition,
        old,
        draw(st.sampled_from([0, 500])),
        batches,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, len(batches) - 1)),
    )


@given(rescaled_histories())
def test_windows_of_keys_continue_in_other_tasks_as_if_nothing_had_happened(history: Any) -> None:
    definition, old, few, batches, before, after, stop = history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark, memory = OnSpark(topology_of([definition], before)), NeverStored(topology_of([definition], before))
        for number, (now, rows) in enumerate(batches):
            if number == stop:
                if old:
                    spark.stored_by_an_earlier_version(memory.run)
                spark = with_tasks(topology_of([definition], after), spark)
            with at_most(few):
                found, wanted = spark.batch(rows, now), memory.batch(rows, now)
            for name, each in wanted.items():
                assert sorted(map(repr, found[name])) == sorted(map(repr, each)), f"{name}, batch {number}"


def test_keys_are_in_the_tasks_of_their_hashes_and_a_key_elsewhere_is_refused() -> None:
    definition: dict[str, Any] = {"length": count(2), "slide": count(2), "timestamp": "ts", "by": ("key",)}
    spark = OnSpark(topology_of([definition], 2))
    keys = [f"key {number}" for number in range(20)]
    spark.batch([(at, 3, key, *(None,) * 11) for at, key in enumerate(keys)], 0)
    moved = with_tasks(topology_of([definition], 3), spark)
    choose = FieldsGrouping(("key",)).targets(3, Schema.parse("key string"))
    for task in moved.tasks:
        tables = [decode_table(unframe(b"WNDC", chunk, "chunk")) for chunk in moved.chunks[task.number].values()]
        found = [key for table in tables for key in table.column("key").to_pylist()]
        assert sorted(found) == sorted(key for key in keys if choose((key,), []) == (task.task,))
    one, other = (task.number for task in spark.tasks)
    for of in (spark.metadata, spark.chunks):
        of[one], of[other] = of[other], of[one]  # type: ignore[index]
    refused = r"key 'key \d+' of step \d+, window .* is in task 0, where .* cannot be told .*another name or store"
    with pytest.raises(ConfigError, match=refused):
        with_tasks(topology_of([definition], 3), spark)


@pytest.mark.parametrize("by", ["each partition", "key elsewhere"])
def test_windows_that_belong_to_a_task_keep_their_number_of_tasks(by: str) -> None:
    def topology(tasks: int) -> TridentTopology:
        made = TridentTopology("sales")
        rows = made.new_stream("rows", InputSpout(FIELDS)).partition_by("size")
        options = {} if by == "each partition" else {"key": "key"}
        windows = rows.window(count(2), count(2), None, lambda window: [(len(window),)], "n long", **options)
        windows.parallelism_hint(tasks).sink("out")
        return made

    spark = OnSpark(topology(2))
    spark.batch([(1, 1, "a", 0.5, *(None,) * 10)], 0)
    same = with_tasks(topology(2), spark)
    assert (same.metadata, same.chunks) == (spark.metadata, spark.chunks)
    with pytest.raises(ConfigError, match=r"the windows of step \d+, window 2 tuples .* belong to a task"):
        with_tasks(topology(3), spark)


def test_tasks_that_have_not_run_have_nothing_to_move() -> None:
    spark = OnSpark(topology_of([KEYED[0]], 2))
    assert with_tasks(topology_of([KEYED[0]], 3), spark).metadata == {}


def test_keys_that_a_batch_does_not_load_stay_in_chunks_until_it_does() -> None:
    spark = OnSpark(topology_of([{"length": millis(100), "slide": millis(100), "timestamp": "ts", "by": ("key",)}]))
    (task,) = (task.number for task in spark.tasks)
    with at_most(0):
        spark.batch([(at, at + 1, "ab"[at % 2], *(None,) * 11) for at in range(6)], 0)
    spark.batch([(6, 6, "a", *(None,) * 11)], 0)
    assert spark.chunks[task], "key b is idle"
    found = spark.batch([(7, 7, "a", *(None,) * 11), (8, 8, "b", *(None,) * 11)], 0, drain=True)["out0"]
    assert [len(row[0]) for row in found] == [5, 4]
    assert not spark.chunks[task]


def test_tuples_of_one_time_keep_their_order_in_the_chunks_of_an_earlier_version() -> None:
    topology = topology_of([{"length": millis(100), "slide": millis(100), "timestamp": "ts"}])
    spark, memory = OnSpark(topology), NeverStored(topology)
    for number in range(4):
        rows = [(10 * number + at, 7, *(None,) * 12) for at in range(4)]
        if number == 1:
            spark.stored_by_an_earlier_version(memory.run)
        with at_most(0):
            found, wanted = spark.batch(rows, 0, drain=number == 3), memory.batch(rows, 0, drain=number == 3)
    assert repr(found["merged"]) == repr(wanted["merged"])
    assert len(found["merged"][0][0]) == 16


def test_many_tuples_go_to_chunks_and_few_come_back() -> None:
    spark = OnSpark(topology_of([{"length": millis(1_000), "slide": millis(1_000), "timestamp": "ts"}]))
    (task,) = (task.number for task in spark.tasks)
    rows = [(at, at, *(None,) * 12) for at in range(600)]
    spark.batch(rows[:400], 0)
    assert not spark.chunks[task]
    spark.batch(rows[400:], 0)
    assert len(spark.chunks[task]) == 1
    spark.batch([*rows[500:], (0, 2_000, *(None,) * 12)], 0)
    assert not spark.chunks[task]
