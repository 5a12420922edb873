"""The Stream API: the effect of each operation of a Trident topology on its batches.

Among the tests are equivalents of Storm's TridentIntegrationTest, one for each of its tests of streams.
"""

from __future__ import annotations

import operator
import re
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from windowing.codec import dumps, loads
from windowing.errors import (
    BoltError,
    ConfigError,
    FailedException,
    GroupingError,
    InvalidTimestampError,
    SupersededError,
    WindowingError,
)
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.schema.values import InvalidTimestampWarning, stored_key
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.testing.replay import LosslessReplay, runs_of
from windowing.testing.strategies import cases
from windowing.topology.components import InputSpout, Spout
from windowing.topology.decorators import spout
from windowing.topology.user_code import ended_in
from windowing.trident import builtins as b
from windowing.trident.kinds import Guarantee, Phase, SpoutKind, StateType, TransactionAttempt
from windowing.trident.operations import JoinType
from windowing.trident.plan import ProcessorNode
from windowing.trident.processors import ProcessorContext
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import Stream, TridentState, TridentTopology
from windowing.trident.subtopology import ExchangeWriter, GroupBatch, TridentRun
from windowing.trident.transactional_state import MemoryRecordStore
from windowing.trident.windows import WindowOperation, changed_windows, window_changes
from windowing.windows.eviction import Action, EvictionContext, EvictionPolicy
from windowing.windows.measures import count, millis, seconds
from windowing.windows.trigger import TriggerPolicy


class Given:
    """A spout of batches whose rows the test gives."""

    def __init__(self, output: str, kind: SpoutKind = SpoutKind.TRANSACTIONAL) -> None:
        self.output, self.kind = output, kind


def split(row: Any) -> list[tuple[str]]:
    return [(word,) for word in row[0].split()]


def run_of(build: Callable[[Stream], Any], fields: str = "word string, n long", tasks: int = 2) -> TridentRun:
    """Return a run of one stream, called "in", that `build` continues; streams that it returns get a sink `out`."""
    topology = TridentTopology("test")
    built = build(topology.new_stream("in", Given(fields)).parallelism_hint(tasks))
    if isinstance(built, Stream):
        built.sink("out")
    plan = topology.build()
    plan.check()
    return TridentRun(plan)


def out(build: Callable[[Stream], Any], rows: Iterable[Any], fields: str = "word string, n long") -> list[Any]:
    return sorted(run_of(build, fields).batch({"in": rows})["out"], key=repr)


WORDS = [("a", 1), ("b", 2), ("a", 3)]


class Letters:
    """A function as an object, with prepare and cleanup."""

    log: ClassVar[list[str]] = []

    def prepare(self, context: Any) -> None:
        self.log.append(f"prepare {context.task} of {context.tasks}")

    def execute(self, row: Any, collector: Any) -> None:
        for letter in row.word:
            collector.emit((letter,))

    def cleanup(self) -> None:
        self.log.append("cleanup")


class Together:
    """A reducer: joins the values of one field, in their order."""

    def init(self) -> str:
        return ""

    def reduce(self, value: str, row: Any) -> str:
        return f"{value},{row[0]}" if value else str(row[0])


# -- one tuple at a time -----------------------------------------------------------------------------------------------


def test_each_appends_the_returned_values_and_emits_a_tuple_for_each_returned_row() -> None:
    def twice(row: Any) -> list[int]:
        return [row.n, row["n"] * 2]

    assert out(lambda s: s.each("n", twice, "m long"), [("a", 1)]) == [("a", 1, 1), ("a", 1, 2)]
    assert out(lambda s: s.each("n", lambda row: row.n if row.n > 1 else None, "m long"), [("a", 1)]) == []


def test_a_function_gets_the_named_fields_in_their_order() -> None:
    seen: list[Any] = []

    def see(row: Any) -> list[Any]:
        seen.append((row, row._fields))
        return []

    out(lambda s: s.each(("n", "word"), see, "x long"), [("a", 1)])
    assert seen == [((1, "a"), ("n", "word"))]


def test_a_function_may_be_an_object_with_a_collector_and_each_task_has_its_own_instance() -> None:
    Letters.log.clear()
    run = run_of(lambda s: s.each("word", Letters(), "letter string").project("letter"))
    assert sorted(run.batch({"in": [("ab", 1), ("c", 2)]})["out"]) == [("a",), ("b",), ("c",)]
    run.close()
    assert sorted(Letters.log) == ["cleanup", "cleanup", "prepare 0 of 2", "prepare 1 of 2"]


def test_cleanup_follows_a_prepare_that_raises() -> None:
    class Opens(Letters):
        log: ClassVar[list[str]] = []

        def prepare(self, context: Any) -> None:
            super().prepare(context)
            raise OSError("no connection")

        def cleanup(self) -> None:
            super().cleanup()
            raise AttributeError("connection")

    def built(stream: Stream) -> Stream:
        return stream.each("word", Letters(), "letter string").each("word", Opens(), "other string")

    topology = TridentTopology("test")
    built(topology.new_stream("in", Given("word string, n long")).parallelism_hint(1)).sink("out")
    for run in (lambda: run_of(built, tasks=1), lambda: run_trident(topology, batches={"in": [WORDS]})):
        Letters.log, Opens.log = [], []
        with pytest.raises(BoltError, match="failed in prepare: OSError: no connection"):
            run()
        assert (Letters.log, Opens.log) == (["prepare 0 of 1", "cleanup"], ["prepare 0 of 1", "cleanup"])


def test_a_prepare_that_fails_in_one_task_is_followed_by_the_cleanup_of_all_and_names_its_step() -> None:
    class Second(Letters):
        def prepare(self, context: Any) -> None:
            super().prepare(context)
            if context.task_index:
                raise FailedException("no connection")

    Letters.log.clear()
    with pytest.raises(FailedException, match=r"step 2, each.*Second failed in prepare: no connection"):
        run_of(lambda s: s.each("word", Second(), "letter string"))
    assert sorted(Letters.log) == ["cleanup", "cleanup", "prepare 0 of 2", "prepare 1 of 2"]


def test_each_without_output_filters_as_filter_does() -> None:
    assert out(lambda s: s.each("n", lambda row: row.n > 1), WORDS) == [("a", 3), ("b", 2)]
    assert out(lambda s: s.filter(lambda row: row.word == "b"), WORDS) == [("b", 2)]
    assert out(lambda s: s.filter(b.FilterNull(), "n"), [("a", None), ("b", 2)]) == [("b", 2)]
    assert out(lambda s: s.each(("n", "m"), b.Equals()), [(1, 1), (1, 2)], "n long, m long") == [(1, 1)]
    assert out(lambda s: s.each(("n", "m"), b.Negate(b.Equals())), [(1, 1), (1, 2)], "n long, m long") == [(1, 2)]


def test_negate_prepares_its_filter_and_refuses_one_that_is_a_coroutine() -> None:
    class Known:
        log: ClassVar[list[str]] = []

        def prepare(self, context: Any) -> None:
            self.known = {"a"}
            self.log.append("prepare")

        def keep(self, row: Any) -> bool:
            return row.word in self.known

        def cleanup(self) -> None:
            self.log.append("cleanup")

    async def later(row: Any) -> bool:
        return False

    run = run_of(lambda s: s.filter(b.Negate(Known())), tasks=1)
    assert run.batch({"in": WORDS})["out"] == [("b", 2)]
    run.close()
    assert Known.log == ["prepare", "cleanup"]
    with pytest.raises(ConfigError, match=r"'.*later' is async"):
        b.Negate(later)
    with pytest.raises(BoltError, match="coroutine"):
        out(lambda s: s.filter(b.Negate(lambda row: later(row))), WORDS)


def test_negate_of_a_class_makes_an_instance_for_each_task_as_filter_does() -> None:
    class First:
        def __init__(self) -> None:
            self.seen = 0

        def keep(self, row: Any) -> bool:
            self.seen += 1
            return self.seen == 1

    assert out(lambda s: s.filter(First), WORDS) == [("a", 1), ("b", 2)]
    assert out(lambda s: s.filter(b.Negate(First)), WORDS) == [("a", 3)]
    assert out(lambda s: s.filter(b.Negate(b.Negate(First))), WORDS) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (3, "3 is no function and has no keep"),
        (Letters, "has no keep; give a function of .tuple., or an object with keep"),
        (b.Negate, "class '.*Negate'.* cannot be called with .*; each task makes its own without arguments"),
        (lambda row, collector: True, "takes a collector, but its answer is what it returns"),
    ],
)
def test_negate_refuses_what_is_no_filter(wrong: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        b.Negate(wrong)


@pytest.mark.parametrize("named", [operator.attrgetter("n"), Mock(spec=[], return_value=1), lambda *row: row[0].n])
def test_a_condition_needs_no_signature_that_python_can_read(named: Any) -> None:
    assert sorted(out(lambda s: s.filter(named), WORDS)) == sorted(WORDS)
    assert out(lambda s: s.filter(b.Negate(named)), WORDS) == []
    assert sorted(out(lambda s: s.peek(named), WORDS)) == sorted(WORDS)
    assert out(lambda s: s.map(named, "n long"), [("a", 1)]) == [(1,)]
    if type(named) is operator.attrgetter and sys.version_info >= (3, 13):
        return  # there its signature can be read
    with pytest.raises(ConfigError, match=r"a function takes .tuple. or .tuple, collector.; "):
        out(lambda s: s.each("n", named, "key long"), WORDS)


def test_each_of_none_gives_the_function_all_fields() -> None:
    def both(row: Any) -> str:
        return f"{row.word}{row.n}"

    assert out(lambda s: s.each(None, both, "key string"), [("a", 1)]) == [("a", 1, "a1")]
    assert out(lambda s: s.each(None, lambda row: row.n > 1), WORDS) == [("a", 3), ("b", 2)]
    assert out(lambda s: s.group_by("word").each(None, both, "key string").to_stream(), [("a", 1)]) == [("a", 1, "a1")]


@pytest.mark.parametrize(
    "build",
    [
        lambda s, function: s.filter(function),
        lambda s, function: s.filter(b.Negate(function)),
        lambda s, function: s.peek(function),
    ],
)
def test_a_condition_that_returns_a_generator_is_an_error_and_keeps_no_tuple(build: Any) -> None:
    def yielding(row: Any) -> Any:
        yield row.n > 1

    with pytest.raises(BoltError, match=r"it returned <generator object .*>, whose body nobody runs"):
        out(lambda s: build(s, lambda row: yielding(row)), WORDS)


def test_map_replaces_each_tuple_and_keeps_the_fields_if_no_output_is_named() -> None:
    assert out(lambda s: s.map(lambda row: (row.word * 2, row.n)), [("a", 1)]) == [("aa", 1)]
    assert out(lambda s: s.map(lambda row: row.n + 0.5, "half double"), [("a", 1)]) == [(1.5,)]


def test_flat_map_replaces_a_tuple_by_any_number_of_rows() -> None:
    assert out(lambda s: s.flat_map(split, "word string"), ["to be", ""], "sentence string") == [("be",), ("to",)]


def test_peek_calls_a_function_and_passes_the_tuples_on() -> None:
    seen: list[Any] = []
    assert out(lambda s: s.peek(seen.append), WORDS) == sorted(WORDS)
    assert sorted(seen) == sorted(WORDS)


def test_debug_writes_to_the_given_function(capsys: pytest.CaptureFixture[str]) -> None:
    out(lambda s: s.each("n", b.Debug()), [("a", 1)])
    assert capsys.readouterr().out == "DEBUG: Row(n=1)\n"
    lines: list[str] = []
    assert out(lambda s: s.each("n", b.Debug(lines.append, "n")), [("a", 1)]) == [("a", 1)]
    assert lines == ["n: Row(n=1)"]
    with pytest.raises(
        ConfigError, match=r"Debug calls a function of a text, got 'words'; write Debug\(print, 'words'\)"
    ):
        b.Debug("words")  # type: ignore[arg-type]  # Storm's Debug takes the label alone


def test_project_keeps_the_named_fields_in_the_named_order() -> None:
    assert out(lambda s: s.project("n", "word"), [("a", 1)]) == [(1, "a")]
    assert out(lambda s: s.project(("n",)), [("a", 1)]) == [(1,)]


def test_a_value_of_the_wrong_type_is_an_error_that_names_the_step_and_the_tuple() -> None:
    with pytest.raises(
        BoltError, match=r"step 2, map with <lambda> emitted a wrong row on Row\(word='a', n=1\): field 'x'"
    ):
        out(lambda s: s.map(lambda row: row.word, "x long"), [("a", 1)])


def test_an_error_in_a_function_names_step_tuple_and_line_and_a_failed_exception_is_passed_on() -> None:
    def bad(row: Any) -> int:
        return 1 // 0

    with pytest.raises(
        BoltError, match=r"step 2, each\(n\) with .*bad failed on .*ZeroDivisionError.*test_trident_stream.py"
    ):
        out(lambda s: s.each("n", bad, "m long"), [("a", 1)])

    def fails(row: Any) -> int:
        raise FailedException("again")

    with pytest.raises(FailedException, match="again"):
        out(lambda s: s.each("n", fails, "m long"), [("a", 1)])


# -- partitioning ------------------------------------------------------------------------------------------------------


def tasks_of_tuples(build: Callable[[Stream], Stream], tasks: int = 3, rows: Iterable[Any] = WORDS) -> list[Any]:
    """Return (task, word, n) of each tuple after a repartition into `tasks` partitions, for two batches of the same rows."""

    class Where:
        def prepare(self, context: Any) -> None:
            self.task = context.task

        def execute(self, row: Any) -> int:
            return int(self.task)

    run = run_of(
        lambda s: build(s).each("n", Where(), "task long").parallelism_hint(tasks).project("task", "word", "n"), tasks=2
    )
    return [sorted(run.batch({"in": rows})["out"]) for _ in range(2)]


def test_partition_by_sends_equal_keys_to_one_partition() -> None:
    first, second = tasks_of_tuples(lambda s: s.partition_by("word"))
    assert first == second
    assert len({task for task, word, _ in first if word == "a"}) == 1


def test_global_sends_all_to_the_first_partition_and_batch_global_each_batch_to_another() -> None:
    assert [{task for task, *_ in batch} for batch in tasks_of_tuples(lambda s: s.global_())] == [{0}, {0}]
    assert [{task for task, *_ in batch} for batch in tasks_of_tuples(lambda s: s.batch_global())] == [{1}, {2}]


def test_broadcast_sends_every_tuple_to_all_partitions() -> None:
    assert tasks_of_tuples(lambda s: s.broadcast())[0] == sorted((task, *row) for task in range(3) for row in WORDS)


def test_shuffle_distributes_tuples_evenly() -> None:
    tasks = [task for task, *_ in tasks_of_tuples(lambda s: s.shuffle(), rows=[("a", n) for n in range(12)])[0]]
    assert [tasks.count(task) for task in range(3)] == [4, 4, 4]
    assert len(tasks_of_tuples(lambda s: s.local_or_shuffle())[0]) == 3


def test_a_shuffle_starts_at_another_task_in_each_batch_and_continues_from_piece_to_piece() -> None:
    plan = run_of(lambda s: s.shuffle().partition_aggregate(None, b.Count(), "n long").parallelism_hint(3)).plan
    contexts = [ProcessorContext(TransactionAttempt(txid, 0)) for txid in (1, 2, 3)]
    batches = [ExchangeWriter(plan, 1, context) for context in contexts]
    assert [batch.route(plan.exchanges[0], [("a", 0)]) for batch in batches] == [
        {2: [("a", 0)]},
        {0: [("a", 0)]},
        {1: [("a", 0)]},
    ]
    run = run_of(lambda s: s.shuffle().partition_aggregate(None, b.Count(), "n long").parallelism_hint(3), tasks=1)
    run.piece = 1
    assert run.batch({"in": [("a", n) for n in range(6)]})["out"] == [(2,), (2,), (2,)]


def test_a_custom_partition_calls_a_function_of_values_and_partitions() -> None:
    assert tasks_of_tuples(lambda s: s.partition(lambda values, tasks: values[1] % tasks))[0] == [
        (0, "a", 3),
        (1, "a", 1),
        (2, "b", 2),
    ]


def test_a_custom_partition_that_fails_or_names_no_partition_is_an_error_that_names_the_step_before_it() -> None:
    def fails(values: Any, partitions: int) -> int:
        return 7 // (values[0] != "b")

    run = run_of(lambda s: s.filter(lambda row: True).partition(fails).map(lambda row: row))
    for rows, text in (([("b", 1)], "failed on .*ZeroDivisionError"), ([("a", 1)], "there is no task 7")):
        with pytest.raises(GroupingError, match=rf"behind step 2, filter\(\) with .*: custom\(.*{text}"):
            run.batch({"in": rows})


def test_an_identity_partition_keeps_tuples_in_their_partition() -> None:
    assert tasks_of_tuples(lambda s: s.identity_partition(), tasks=2)[0] == [(0, "a", 1), (0, "a", 3), (1, "b", 2)]


# -- aggregates of a batch ---------------------------------------------------------------------------------------------


class Concat:
    """An Aggregator that emits during the batch, and at its end."""

    def init(self, batch_id: Any, collector: Any) -> list[str]:
        return []

    def aggregate(self, value: list[str], row: Any, collector: Any) -> None:
        value.append(row[0])
        if row[0] == "now":
            collector.emit(("at once",))

    def complete(self, value: list[str], collector: Any) -> None:
        collector.emit(("+".join(sorted(value)),))


class Product:
    """A ReducerAggregator."""

    def init(self) -> int:
        return 1

    def reduce(self, current: int, row: Any) -> int:
        return int(current * row[0])


def test_aggregate_emits_one_row_for_a_batch_even_for_an_empty_one() -> None:
    run = run_of(lambda s: s.aggregate(None, b.Count(), "n long").parallelism_hint(3))
    assert [run.batch({"in": rows})["out"] for rows in (WORDS, [], WORDS[:1])] == [[(3,)], [(0,)], [(1,)]]


@pytest.mark.parametrize(
    ("aggregator", "inputs", "output", "of_words", "of_nothing"),
    [
        (b.Count(), None, "x long", 3, 0),
        (b.Sum(), "n", "x long", 6, 0),
        (b.Min(), "n", "x long", 1, None),
        (b.Max(), "n", "x long", 3, None),
        (Product(), "n", "x long", 6, 1),
        (Concat(), "word", "x string", "a+a+b", ""),
    ],
)
def test_aggregators_of_all_kinds_over_a_batch(
    aggregator: Any, inputs: str | None, output: str, of_words: Any, of_nothing: Any
) -> None:
    run = run_of(lambda s: s.aggregate(inputs, aggregator, output).parallelism_hint(2))
    assert run.batch({"in": WORDS})["out"] == [(of_words,)]
    assert run.batch({"in": []})["out"] == [(of_nothing,)]


def test_grouped_aggregates_emit_a_row_for_each_key_and_none_for_an_empty_batch() -> None:
    assert out(lambda s: s.group_by("word").aggregate("n", b.Sum(), "total long"), WORDS) == [("a", 4), ("b", 2)]
    assert out(lambda s: s.group_by("word").aggregate("n", Product(), "total long"), WORDS) == [("a", 3), ("b", 2)]
    assert out(lambda s: s.group_by("word").aggregate("n", b.Sum(), "total long"), []) == []


def test_an_aggregator_may_emit_rows_during_the_batch() -> None:
    made = out(lambda s: s.aggregate("word", Concat(), "x string"), [("now", 1), ("a", 2)])
    assert made == [("a+now",), ("at once",)]


class Prepared(Concat):
    """An aggregator whose prepare keeps the context."""

    log: ClassVar[list[str]] = []

    def prepare(self, context: Any) -> None:
        self.task = context.task_index
        self.log.append(f"prepare {context.task_index} of {context.tasks}")

    def complete(self, value: list[str], collector: Any) -> None:
        collector.emit((f"{self.task}: {'+'.join(sorted(value))}",))

    def cleanup(self) -> None:
        self.log.append(f"cleanup {self.task}")


@pytest.mark.parametrize(
    "aggregated",
    [
        lambda s: s.partition_aggregate("word", Prepared(), "x string"),
        lambda s: s.chained_agg().partition_aggregate("word", Prepared(), "x string").chain_end(),
        lambda s: s.tumbling_window(count(2), "word", Prepared(), "x string", timestamp="n"),
    ],
)
def test_each_task_prepares_its_own_copy_of_an_aggregator_and_cleans_it_up(aggregated: Any) -> None:
    Prepared.log.clear()
    run = run_of(aggregated)
    assert run.batch({"in": [("a", 1), ("b", 2), ("c", 3), ("d", 4)]})["out"] == [("0: a+c",), ("1: b+d",)]
    run.close()
    assert sorted(Prepared.log) == ["cleanup 0", "cleanup 1", "prepare 0 of 2", "prepare 1 of 2"]


def test_an_aggregator_without_prepare_and_cleanup_is_not_copied() -> None:
    held = Concat()
    held.lock = threading.Lock()  # type: ignore[attr-defined]
    assert out(lambda s: s.aggregate("word", held, "x string"), [("a", 1)]) == [("a",)]


def test_an_aggregator_that_cannot_be_prepared_is_an_error_that_names_its_step() -> None:
    class Unasked(Concat):
        def prepare(self) -> None: ...

    class Closed(Concat):
        def prepare(self, context: Any) -> None:
            raise OSError("no such host")

    with pytest.raises(ConfigError, match=r"step 2, aggregate Unasked: .*Unasked.prepare .*context"):
        run_of(lambda s: s.partition_aggregate("word", Unasked(), "x string"))
    with pytest.raises(BoltError, match=r"step 2, aggregate Closed failed in prepare: OSError: no such host"):
        run_of(lambda s: s.partition_aggregate("word", Closed(), "x string"))


def test_partition_aggregate_emits_a_row_for_each_partition() -> None:
    rows = [("a", 1), ("b", 2), ("a", 4)]
    assert out(lambda s: s.partition_aggregate("n", b.Sum(), "x long"), rows) == [(2,), (5,)]
    grouped = out(lambda s: s.group_by("word").partition_aggregate("n", b.Sum(), "x long").to_stream(), rows)
    assert grouped == [("a", 5), ("b", 2)]
    assert out(lambda s: s.partition_aggregate("n", b.Sum(), "x long"), []) == [(0,), (0,)]


def test_partition_aggregate_of_a_grouped_stream_keeps_the_groups() -> None:
    rows = [("a", 1), ("b", 2), ("b", 4), ("a", 3)]
    found = out(
        lambda s: (
            s.group_by("word")
            .partition_aggregate("n", Together(), "x string")
            .each("x", lambda x: (len(x),), "size long")
            .partition_aggregate(None, b.Count(), "rows long")
            .aggregate("rows", b.Sum(), "rows long")
        ),
        rows,
    )
    assert found == [("a", 2), ("b", 2)], "a row for each group; one for the whole batch if the groups were lost"
    with pytest.raises(AttributeError, match=r"'GroupedStream' has no 'sink'; write to_stream\(\)\.sink"):
        run_of(lambda s: s.group_by("word").partition_aggregate("n", b.Sum(), "x long").sink("x"))


def test_a_named_window_has_its_late_stream_and_another_stream_says_what_has_one() -> None:
    def named(stream: Stream) -> Any:
        window = stream.tumbling_window(seconds(2), None, b.Count(), "n long", timestamp="n").name("w")
        return window.late_stream().sink("late")

    run_of(named)
    with pytest.raises(
        AttributeError, match=r"'Stream' has no 'late_stream'; write windows = stream.window\(...\), and"
    ):
        run_of(lambda s: s.shuffle().late_stream())


def test_map_of_none_names_filter_and_flat_map() -> None:
    with pytest.raises(
        BoltError, match=r"step 2, map with .*: it returned None, and map makes one row .*; use filter, or"
    ):
        out(lambda s: s.map(lambda row: row if row.n > 3 else None), [("a", 1)])


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("filter", "each(inputs, condition), which keeps the groups"),
        ("max_by", "aggregate(None, MaxBy('amount'), output), of each group"),
        ("minBy", "aggregate(None, MinBy('amount'), output), of each group"),
        ("flat_map", "to_stream().flat_map, without groups"),
    ],
)
def test_a_method_that_groups_lack_is_answered_with_one_that_keeps_them_if_there_is_one(
    name: str, way_out: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"'GroupedStream' has no '{name}'; write {way_out}")):
        run_of(lambda s: getattr(s.group_by("word"), name))


def test_chained_aggregators_emit_the_cross_product_of_their_rows() -> None:
    def chain(stream: Stream) -> Stream:
        declared = stream.chained_agg().aggregate(None, b.Count(), "n long").aggregate("n", b.Sum(), "total long")
        return declared.aggregate("word", Concat(), "words string").chain_end()

    assert out(chain, [("now", 1), ("a", 2)]) == [(2, 3, "a+now"), (2, 3, "at once")]


def test_chained_combiners_run_before_the_exchange() -> None:
    def chain(stream: Stream) -> Stream:
        grouped = stream.group_by("word").chained_agg()
        return grouped.aggregate(None, b.Count(), "n long").aggregate("n", b.Max(), "most long").chain_end()

    run = run_of(chain)
    assert [exchange.schema.names for exchange in run.plan.exchanges] == [("word", "n"), ("word", "n", "most")]
    assert sorted(run.batch({"in": WORDS})["out"]) == [("a", 2, 3), ("b", 1, 2)]


def test_an_aggregator_without_an_output_keeps_the_names_of_its_input_fields() -> None:
    assert out(lambda s: s.aggregate("n", b.Sum()).map(lambda row: (row.n,), "n long"), WORDS) == [(6,)]
    assert sorted(out(lambda s: s.group_by("word").aggregate("n", b.Max()), WORDS)) == [("a", 3), ("b", 2)]
    both = out(lambda s: s.chained_agg().aggregate("n", b.Sum()).aggregate("word", Together()).chain_end(), WORDS)
    assert both in ([(6, "a,b,a")], [(6, "a,a,b")])


def test_a_chain_with_combiners_sends_input_fields_and_init_values_only() -> None:
    def chain(stream: Stream) -> Stream:
        wide = (
            stream.each("n", lambda row: (row.n * 2, "x" * 100), "twice long, text string")
            .group_by("word")
            .chained_agg()
        )
        wide = wide.aggregate(None, b.Count(), "n long").aggregate("n", b.Max(), "most long")
        return wide.aggregate("twice", Together(), "all string").chain_end()

    run = run_of(chain)
    assert [exchange.schema.names for exchange in run.plan.exchanges] == [
        ("word", "n"),
        ("word", "twice", "init_0", "init_1"),
    ]
    assert sorted(run.batch({"in": [("a", 1), ("b", 2)]})["out"]) == [("a", 1, 1, "2"), ("b", 1, 2, "4")]
    assert run.batch({"in": []})["out"] == []


def test_a_chain_with_combiners_over_an_empty_batch_emits_their_zeros() -> None:
    def chain(stream: Stream) -> Stream:
        return (
            stream.chained_agg().aggregate("n", b.Sum(), "n long").aggregate("n", Together(), "all string").chain_end()
        )

    assert out(chain, []) == [(0, "")]


def test_the_init_fields_of_a_chain_never_clash_with_field_names() -> None:
    def chain(stream: Stream) -> Stream:
        renamed = stream.map(lambda row: (row.word, row.n), "Init_0 string, n long").chained_agg()
        return renamed.aggregate("n", b.Sum(), "n long").aggregate("Init_0", Together(), "init_0 string").chain_end()

    assert out(chain, [("a", 1), ("b", 2)]) == [(3, "a,b")]


def test_an_init_that_raises_names_its_step_and_the_tuple() -> None:
    class Divides(b.Sum):
        def init(self, row: Any) -> int:
            if row[0] == 1:
                raise GeneratorExit
            return 6 // int(row[0])

    def chain(stream: Stream) -> Stream:
        return (
            stream.chained_agg()
            .aggregate("n", Divides(), "n long")
            .aggregate("n", Together(), "all string")
            .chain_end()
        )

    with pytest.raises(BoltError, match=r"step 2, init Divides, Together failed on \('zero', 0\): ZeroDivisionError"):
        run_of(chain).batch({"in": [("zero", 0)]})
    with pytest.raises(GeneratorExit) as ended:
        run_of(chain).batch({"in": [("one", 1)]})
    assert "step 2, init Divides, Together failed on ('one', 1): GeneratorExit" in str(ended_in(ended.value))


def test_min_by_and_max_by_emit_the_whole_tuple_of_each_partition() -> None:
    rows = [("a", 5), ("b", None), ("c", 2), ("d", 9)]
    assert out(lambda s: s.global_().min_by("n"), rows) == [("c", 2)]
    assert out(lambda s: s.global_().max_by("n"), rows) == [("d", 9)]
    assert out(lambda s: s.global_().max_by("n", key=lambda n: -n), rows) == [("c", 2)]
    assert out(lambda s: s.max_by("n"), rows) == [("a", 5), ("d", 9)]
    assert out(lambda s: s.global_().min_by("n"), []) == []


def test_min_by_and_max_by_without_a_field_compare_whole_tuples_by_a_key() -> None:
    rows = [("abc", 2), ("d", 9), ("ef", 2), ("g", 5)]
    assert out(lambda s: s.global_().min_by(None, key=lambda row: (row.n, len(row.word))), rows) == [("ef", 2)]
    assert out(lambda s: s.global_().max_by(None, key=lambda row: row.n * len(row["word"])), rows) == [("d", 9)]
    for call in (lambda s: s.min_by(None), lambda s: s.max_by(None)):
        with pytest.raises(ConfigError, match=r"neither a field nor a key= to compare by; write M..By\('amount'\)"):
            out(call, rows)


def test_first_n_emits_the_first_n_tuples_of_the_batch() -> None:
    rows = [("a", 5), ("b", None), ("c", 2), ("d", 9)]
    assert len(out(lambda s: s.apply_assembly(b.FirstN(3)), rows)) == 3
    assert out(lambda s: s.apply_assembly(b.FirstN(2, "n")), rows) == [("a", 5), ("c", 2)]
    assert out(lambda s: s.apply_assembly(b.FirstN(3, "n", reverse=True)), rows) == [("a", 5), ("c", 2), ("d", 9)]


# -- several streams ---------------------------------------------------------------------------------------------------


def two(build: Callable[[TridentTopology, Stream, Stream], Stream], left: list[Any], right: list[Any]) -> list[Any]:
    topology = TridentTopology("two")
    first = topology.new_stream("left", Given("k long, a string")).parallelism_hint(2)
    second = topology.new_stream("right", Given("key long, b string"))
    build(topology, first, second).sink("out")
    return sorted(TridentRun(topology.build()).batch({"left": left, "right": right})["out"], key=repr)


def test_merge_uses_the_field_names_of_the_first_stream_or_given_ones() -> None:
    assert two(lambda t, x, y: t.merge(x, y), [(1, "a")], [(2, "b")]) == [(1, "a"), (2, "b")]
    assert two(lambda t, x, y: t.merge(x, y, names=("id", "c")).project("c"), [(1, "a")], [(2, "b")]) == [
        ("a",),
        ("b",),
    ]


INNER, OUTER = JoinType.INNER, JoinType.OUTER
LEFT, RIGHT = [(1, "a"), (1, "b"), (2, "c")], [(1, "x"), (3, "y")]
BOTH = [(1, "a", "x"), (1, "b", "x")]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (INNER, BOTH),
        ([INNER, OUTER], [*BOTH, (2, "c", None)]),
        ([OUTER, INNER], [*BOTH, (3, None, "y")]),
        (OUTER, [*BOTH, (2, "c", None), (3, None, "y")]),
    ],
)
def test_a_join_matches_keys_within_a_batch_with_none_for_missing_sides(kinds: Any, expected: list[Any]) -> None:
    assert two(lambda t, x, y: t.join([x, y], ["k", "key"], kinds=kinds), LEFT, RIGHT) == expected


def test_the_output_fields_of_a_join_begin_with_the_key() -> None:
    joined = two(lambda t, x, y: t.join([x, y], ["k", "key"], ("id", "l", "r")).project("r", "id"), LEFT, RIGHT)
    assert joined == [("x", 1), ("x", 1)]


def test_tuples_of_different_batches_never_join() -> None:
    topology = TridentTopology()
    left, right = topology.new_stream("l", Given("k long")), topology.new_stream("r", Given("k long"))
    topology.join([left, right], "k").sink("out")
    run = TridentRun(topology.build())
    assert [run.batch(rows)["out"] for rows in ({"l": [1]}, {"r": [1]}, {"l": [2], "r": [2]})] == [[], [], [(2,)]]


def test_three_streams_join_and_one_stream_joins_itself() -> None:
    topology = TridentTopology()
    base = topology.new_stream("in", Given("k long"))
    sides = [base.map(lambda row, by=by: (row.k, row.k * by), f"k long, x{by} long") for by in (2, 3, 4)]
    topology.join(sides, "k", kinds=[INNER, OUTER, INNER]).sink("out")
    assert TridentRun(topology.build()).batch({"in": [1, 2]})["out"] == [(1, 2, 3, 4), (2, 4, 6, 8)]


def test_several_operations_may_read_one_stream() -> None:
    def build(stream: Stream) -> None:
        stream.project("word").sink("words")
        stream.project("n").sink("numbers")

    run = run_of(build)
    made = run.batch({"in": [("a", 1)]})
    assert made == {"words": [("a",)], "numbers": [(1,)]}


# -- state -------------------------------------------------------------------------------------------------------------


def stored(run: TridentRun, state: str = "state1") -> dict[Any, Any]:
    return {key: value for partition in run.states[state] for key, value in partition.items()}


def counts(name: str = "counts") -> Any:
    return map_state(MemoryStore(), name)


def test_persistent_aggregate_stores_the_aggregate_of_all_batches_and_emits_the_new_values() -> None:
    def build(stream: Stream) -> Stream:
        state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
        return state.parallelism_hint(3).new_values_stream()

    run = run_of(build)
    assert sorted(run.batch({"in": WORDS})["out"]) == [("a", 4), ("b", 2)]
    assert sorted(run.batch({"in": [("a", 1)]})["out"]) == [("a", 5)]
    assert stored(run) == {("a",): 5, ("b",): 2}


def test_a_persisted_reducer_reduces_tuple_by_tuple() -> None:
    run = run_of(
        lambda s: s.group_by("word").persistent_aggregate(counts(), "n", Product(), "x long").new_values_stream()
    )
    assert sorted(run.batch({"in": WORDS})["out"]) == [("a", 3), ("b", 2)]
    assert run.batch({"in": [("a", 5)]})["out"] == [("a", 15)]


@pytest.mark.parametrize(("aggregator", "values"), [(b.Sum(), [6, 6, 16]), (Product(), [6, 6, 60])])
def test_a_persistent_aggregate_without_keys_is_one_value(aggregator: Any, values: list[int]) -> None:
    topology = TridentTopology()
    state = topology.new_stream("in", Given("word string, n long")).parallelism_hint(2)
    held = state.persistent_aggregate(counts(), "n", aggregator, "x long")
    topology.new_drpc_stream("now").state_query(held, None, b.SnapshotGet(), "x long").project("x")
    run = TridentRun(topology.build())
    found = []
    for rows in (WORDS, [], [("z", 10)]):
        run.batch({"in": rows})
        found += [value for (value,) in run.ask("now", "")]
    assert found == values


def test_a_retried_batch_counts_once() -> None:
    run = run_of(
        lambda s: s.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long").new_values_stream()
    )
    run.begin({"in": WORDS})  # dropped in the processing phase
    run.begin({"in": WORDS}, attempt=1).commit()
    again = run.begin({"in": WORDS}, attempt=2).commit()
    assert sorted(again["out"]) == [("a", 4), ("b", 2)]
    assert stored(run) == {("a",): 4, ("b",): 2}


def test_states_and_windows_do_not_change_before_the_commit() -> None:
    def build(stream: Stream) -> None:
        stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long").new_values_stream().sink("new")
        stream.global_().tumbling_window(count(2), "n", b.Sum(), "total long", timestamp="n").sink("windows")

    run = run_of(build)
    flight = run.begin({"in": WORDS})
    assert (stored(run), flight.sinks) == ({}, {"new": [], "windows": []})
    flight.commit()
    assert (stored(run), sorted(flight.sinks["new"])) == ({("a",): 4, ("b",): 2}, [("a", 4), ("b", 2)])
    assert flight.sinks["windows"] == [(3,)]


def test_partition_persist_passes_each_partition_to_the_updater_and_commits_every_partition_in_every_batch() -> None:
    log: list[Any] = []

    class Logged:
        kind = counts().kind

        def make_state(self, partition: int, partitions: int) -> Any:
            return Log(partition)

    class Log:
        def __init__(self, partition: int) -> None:
            self.partition = partition

        def begin_commit(self, attempt: Any) -> None:
            log.append((self.partition, "begin", str(attempt)))

        def commit(self, attempt: Any) -> None:
            log.append((self.partition, "commit", str(attempt)))

    class Updater:
        def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
            log.append((state.partition, [tuple(row) for row in tuples]))
            collector.emit((len(tuples),))

    run = run_of(lambda s: s.partition_persist(Logged(), "n", Updater(), "rows long").new_values_stream())
    assert run.batch({"in": [("a", 1), ("b", 2), ("c", 3)]})["out"] == [(2,), (1,)]
    assert log == [
        *[(0, "begin", "1:0"), (0, [(1,), (3,)]), (0, "commit", "1:0")],
        *[(1, "begin", "1:0"), (1, [(2,)]), (1, "commit", "1:0")],
    ]
    log.clear()
    run.batch({"in": []})
    assert [entry[1] for entry in log] == ["begin", "commit"] * 2  # as Storm, an updater is called for tuples only


def test_state_query_reads_once_per_batch_and_sees_the_previously_committed_batches() -> None:
    topology = TridentTopology()
    stream = topology.new_stream("in", Given("word string, n long"))
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
    stream.group_by("word").state_query(state, "word", b.MapGet(), "before long").to_stream().sink("out")
    run = TridentRun(topology.build())
    assert sorted(run.batch({"in": WORDS})["out"]) == [("a", 1, None), ("a", 3, None), ("b", 2, None)]
    assert run.batch({"in": [("a", 1)]})["out"] == [("a", 1, 4)]
    assert run.begin({"in": [("a", 2)]}).commit()["out"] == [("a", 2, 5)]
    again = run.begin({"in": [("a", 7), ("b", 1)]}, attempt=1)
    assert sorted(again.commit()["out"]) == [("a", 7, 5), ("b", 1, 2)], "a replay asks what the first attempt asked"


def test_a_query_of_all_keys_sees_the_previously_committed_batches_also_in_a_replay() -> None:
    topology = TridentTopology()
    stream = topology.new_stream("in", Given("word string, n long"))
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
    asked = stream.aggregate(None, b.Count(), "n long").state_query(
        state, None, b.TupleCollectionGet(), "word string, total long"
    )
    asked.project("word", "total").sink("out")
    run = TridentRun(topology.build())
    assert run.batch({"in": WORDS})["out"] == []
    for attempt in range(2):
        assert run.begin({"in": [("a", 1), ("c", 1)]}, attempt).commit()["out"] == [("a", 4), ("b", 2)]


def test_a_query_may_name_an_earlier_txid_itself() -> None:
    class Change(b.MapGet):
        def batch_retrieve(self, state: Any, tuples: Any) -> Any:
            keys = [tuple(row) for row in tuples]
            now, before = state.multi_get(keys), state.multi_get(keys, as_of=1)
            return [(new or 0) - (old or 0) for new, old in zip(now, before, strict=True)]

    topology = TridentTopology()
    stream = topology.new_stream("in", Given("word string, n long"))
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
    stream.state_query(state, "word", Change(), "change long").sink("out")
    run = TridentRun(topology.build())
    for _ in range(2):
        run.batch({"in": [("a", 3)]})
    assert run.batch({"in": [("a", 1)]})["out"] == [("a", 1, 3)]


def test_a_static_state_is_read_independently_of_the_txids_of_its_writer() -> None:
    stored = map_state(MemoryStore(), "counts")
    writer = TridentTopology("writer")
    writer.new_stream("in", Given("word string")).group_by("word").persistent_aggregate(
        stored, None, b.Count(), "n long"
    )
    writing = TridentRun(writer.build())
    for _ in range(5):
        writing.batch({"in": ["a"]})
    reader = TridentTopology("reader")
    state = reader.new_static_state(stored)
    reader.new_stream("asked", Given("word string")).state_query(state, "word", b.MapGet(), "n long").sink("out")
    reading = TridentRun(reader.build())
    assert reading.batch({"asked": ["a", "b"]})["out"] == [("a", 5), ("b", None)]
    writing.batch({"in": ["a"]})
    assert reading.batch({"asked": ["a"]})["out"] == [("a", 6)]


class StormState:
    """A state with the methods of Storm's interface, and no others."""

    def begin_commit(self, attempt: Any) -> None: ...
    def commit(self, attempt: Any) -> None: ...
    def multi_get(self, keys: Any) -> list[Any]:
        return [len(word) for (word,) in keys]


class StormStates:
    kind = StateType.NON_TRANSACTIONAL

    def make_state(self, partition: int, partitions: int) -> Any:
        return StormState()


def test_a_state_needs_only_the_methods_of_storms_interface() -> None:
    class Written:
        def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
            collector.emit((len(tuples),))

    topology = TridentTopology()
    stream = topology.new_stream("in", Given("word string"))
    stream.state_query(topology.new_static_state(StormStates()), "word", b.MapGet(), "n long").sink("asked")
    kept = StateSpec(StormStates(), accept=Guarantee.AT_LEAST_ONCE)
    stream.partition_persist(kept, "word", Written(), "n long").new_values_stream().sink("written")
    run = TridentRun(topology.build())
    assert run.batch({"in": ["a", "bcd"]}) == {"asked": [("a", 1), ("bcd", 3)], "written": [(2,)]}
    run.close()
    result = run_trident(topology, {"in": [["a"], ["bc", "d"]]}, clock=VirtualClock())
    assert (result["asked"], result["written"]) == ([("a", 1), ("bc", 2), ("d", 1)], [(1,), (2,)])
    assert result.states == {}, "nothing shows what is in them"
    with (
        TridentCluster(topology, batches={"in": []}, clock=VirtualClock()) as cluster,
        pytest.raises(ConfigError, match="neither items"),
    ):
        cluster.values("state1")


def test_a_state_with_the_methods_of_storms_interface_is_written_and_queried_in_one_topology() -> None:
    class OfOne(StormState):
        def get(self, key: str, default: int = 0) -> int:
            return len(key) or default

    class OfOnes(StormStates):
        def make_state(self, partition: int, partitions: int) -> Any:
            return OfOne()

    class GetOne(b.MapGet):
        def batch_retrieve(self, state: Any, tuples: Any) -> Any:
            return [state.get(row.word, default=7) for row in tuples]

    class Written:
        def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...

    topology = TridentTopology()
    stream = topology.new_stream("in", Given("word string"))
    state = stream.partition_persist(StateSpec(OfOnes(), accept=Guarantee.AT_LEAST_ONCE), "word", Written())
    stream.state_query(state, "word", b.MapGet(), "n long").state_query(state, "word", GetOne(), "m long").sink("out")
    assert TridentRun(topology.build()).batch({"in": ["abc", ""]})["out"] == [("abc", 3, 3), ("", 0, 7)]


def test_a_query_of_a_grouped_stream_returns_a_stream_without_groups_as_in_storm() -> None:
    topology = TridentTopology()
    grouped = topology.new_stream("in", Given("word string")).group_by("word").name("asked")
    answers = grouped.state_query(topology.new_static_state(counts()), "word", b.MapGet(), "n long")
    answers.to_stream().aggregate(None, b.Count(), "tuples long").sink("out")
    plan = topology.build()
    assert TridentRun(plan).batch({"in": ["a", "b", "a"]})["out"] == [(3,)]
    assert any("asked" in stage for stage in plan.stages)


def test_nan_equals_nan_as_a_key_and_lists_may_be_keys() -> None:
    nan = float("nan")
    rows = [(nan, [1, 2]), (float("nan"), [1, 2]), (0.0, [3]), (-0.0, [3])]
    grouped = out(lambda s: s.group_by("x", "ys").aggregate(None, b.Count(), "n long"), rows, "x double, ys array<int>")
    assert [(str(x).lstrip("-"), ys, n) for x, ys, n in grouped] == [("0.0", [3], 2), ("nan", [1, 2], 2)]


def test_a_spout_of_tuples_may_have_a_method_of_a_spout_of_batches() -> None:
    @spout(output="word string")
    class Words(Spout):
        def next_tuple(self) -> None:
            """Emit nothing."""

        def emit_batch(self, words: Any) -> None:
            """Help."""

    topology = TridentTopology("words")
    topology.new_stream("words", Words).peek(print)
    assert topology.build().spouts


def test_minus_zero_equals_zero_as_a_key_of_a_state() -> None:
    def build(stream: Stream) -> Stream:
        return stream.group_by("x").persistent_aggregate(counts(), None, b.Count(), "n long").new_values_stream()

    run = run_of(build, "x double")
    assert [run.batch({"in": [zero]})["out"] for zero in (0.0, -0.0)] == [[(0.0, 1)], [(0.0, 2)]]
    run = run_of(build, "x decimal(3,2)")
    zeros = Decimal(0), Decimal("-0.00"), Decimal("0.00")
    assert [run.batch({"in": [(zero,)]})["out"][0][1] for zero in zeros] == [1, 2, 3]
    assert stored_key([Decimal("sNaN")])[0].is_snan()
    run = run_of(build, "x array<double>")
    assert [run.batch({"in": [([zero],)]})["out"] for zero in (0.0, -0.0)] == [[([0.0], 1)], [([0.0], 2)]]


def test_one_time_in_two_zones_or_without_one_is_one_key_of_a_state_in_every_batch() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    there, naive = noon.astimezone(timezone(timedelta(hours=2))), noon.replace(tzinfo=None)

    def build(stream: Stream) -> Stream:
        state = stream.group_by("at").persistent_aggregate(counts(), None, b.Count(), "n long")
        return stream.group_by("at").state_query(state, "at", b.MapGet(), "n long").project("n")

    run = run_of(build, "at timestamp")
    assert [run.batch({"in": [at]})["out"] for at in (there, noon, naive)] == [[(None,)], [(1,)], [(2,)]]
    assert [repr(key) for part in run.states["state1"] for (key,), _ in part.items()] == [repr(noon)]


def test_a_persisted_reducer_may_have_a_list_as_key() -> None:
    def build(stream: Stream) -> Stream:
        return stream.group_by("ys").persistent_aggregate(counts(), "n", Product(), "x long").new_values_stream()

    run = run_of(build, "ys array<double>, n long")
    assert run.batch({"in": [([1.0, -0.0], 2), ([1.0, 0.0], 3)]})["out"] == [([1.0, 0.0], 6)]
    assert run.batch({"in": [([1.0, 0.0], 5)]})["out"] == [([1.0, 0.0], 30)]


def test_min_and_max_skip_none_and_rank_nan_highest() -> None:
    rows = [(None,), (2.0,), (float("nan"),), (1.0,)]
    for aggregator, expected in ((b.Min(), "1.0"), (b.Max(), "nan")):
        ((found,),) = out(lambda s, agg=aggregator: s.aggregate("x", agg, "y double"), rows, "x double")
        assert str(found) == expected
    assert out(lambda s: s.global_().min_by("x"), [(None,), (2.0,)], "x double") == [(2.0,)]
    assert out(lambda s: s.aggregate("x", b.Sum(), "y double"), [(None,), (2.0,)], "x double") == [(2.0,)]


def test_a_superseded_error_of_a_state_is_passed_on_unchanged() -> None:
    run = run_of(
        lambda s: s.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long").new_values_stream()
    )
    run.batch({"in": WORDS})
    run.batch({"in": WORDS})
    with pytest.raises(SupersededError):
        run.begin({"in": WORDS}, txid=1).commit()


def test_each_task_has_its_own_updater_instance() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
            self.calls += 1
            collector.emit((self.calls,))

    run = run_of(lambda s: s.partition_persist(counts(), "n", Counting(), "calls long").new_values_stream())
    assert [run.batch({"in": WORDS})["out"] for _ in range(2)] == [[(1,), (1,)], [(2,), (2,)]]


class Kept:
    """An updater and a query function whose prepare keeps the context."""

    def prepare(self, context: Any) -> None:
        self.task = context.task_index

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        collector.emit((self.task,))

    def batch_retrieve(self, state: Any, tuples: Any) -> Any:
        return [self.task] * len(tuples)

    def execute(self, row: Any, result: Any, collector: Any) -> None:
        collector.emit((result,))


@pytest.mark.parametrize("given", [Kept(), Kept])
def test_an_updater_and_a_query_function_may_be_a_class_of_which_each_task_makes_an_instance(given: Any) -> None:
    run = run_of(lambda s: s.partition_persist(counts(), "n", given, "task long").new_values_stream())
    assert run.batch({"in": WORDS})["out"] == [(0,), (1,)]
    topology = TridentTopology()
    state = topology.new_static_state(counts())
    topology.new_stream("in", Given("word string")).state_query(state, "word", given, "task long").sink("out")
    assert TridentRun(topology.build()).batch({"in": ["a"]})["out"] == [("a", 0)]


def test_an_updater_that_raises_in_prepare_or_cannot_be_copied_is_an_error_that_names_its_step() -> None:
    class Closed(Kept):
        def prepare(self, context: Any) -> None:
            raise OSError("no such host")

    held = Kept()
    held.lock = threading.Lock()  # type: ignore[attr-defined]
    for updater, text in (
        (Closed(), "step 2, persist state1 with .*Closed failed in prepare: OSError: no such host"),
        (
            held,
            r"step 2, persist state1 with Kept failed when it was copied for its task \(open files and connections in pre",
        ),
    ):
        with pytest.raises(BoltError, match=text):
            run_of(lambda s, each=updater: s.partition_persist(counts(), "n", each))  # type: ignore[misc]


def test_an_updater_that_raises_is_an_error_that_names_the_attempt_of_the_batch() -> None:
    class Full(Kept):
        def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
            raise OSError("no room")

    run = run_of(lambda s: s.global_().partition_persist(counts(), "n", Full(), "task long").new_values_stream())
    with pytest.raises(BoltError, match=r"failed on the 3 tuples of batch 1:0: OSError: no room"):
        run.batch({"in": WORDS})


def test_a_query_with_fewer_answers_than_tuples_is_an_error() -> None:
    class Forgetful(b.MapGet):
        def batch_retrieve(self, state: Any, tuples: Any) -> Any:
            return []

    topology = TridentTopology()
    state = topology.new_static_state(counts())
    topology.new_stream("in", Given("word string")).state_query(state, "word", Forgetful(), "n long").sink("out")
    with pytest.raises(BoltError, match="was asked for 1 tuples and gave 0 answers"):
        TridentRun(topology.build()).batch({"in": ["a"]})


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_tumbling_count_window_continues_across_batches() -> None:
    run = run_of(lambda s: s.global_().tumbling_window(count(3), "n", b.Sum(), "total long", timestamp="n"))
    batches = [[("a", 1), ("b", 2)], [("c", 3), ("d", 4)], [("e", 5), ("f", 6), ("g", 7)]]
    assert [run.batch({"in": rows})["out"] for rows in batches] == [[], [(6,)], [(15,)]]


def test_a_sliding_window_of_event_time_has_a_late_stream() -> None:
    topology = TridentTopology()
    stream = topology.new_stream("in", Given("word string, at long")).parallelism_hint(2)
    windows = stream.global_().sliding_window(seconds(10), seconds(5), "word", b.Count(), "n long", timestamp="at")
    windows.sink("out")
    windows.late_stream().sink("late")
    run = TridentRun(topology.build())
    assert run.batch({"in": [("a", 1000), ("b", 6000), ("c", 12_000)]}) == {"out": [(1,), (2,)], "late": []}
    assert run.batch({"in": [("d", 2000), ("e", 21_000)]}) == {"out": [(2,), (1,)], "late": [("d", 2000, "late")]}


def test_the_output_of_windows_per_group_begins_with_the_key() -> None:
    run = run_of(lambda s: s.group_by("word").tumbling_window(count(2), "n", b.Sum(), "total long", timestamp="n"))
    made = run.batch({"in": [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]})["out"]
    assert sorted(made) == [("a", 4), ("b", 6)]


def test_a_window_may_be_processed_by_a_function_of_the_window() -> None:
    def ends(window: Any) -> tuple[int, str]:
        return window.end_timestamp, "".join(row.word for row in window)

    run = run_of(lambda s: s.global_().tumbling_window(seconds(1), None, ends, "end long, words string", timestamp="n"))
    assert run.batch({"in": [("a", 10), ("b", 999), ("c", 1000), ("d", 2500)]})["out"] == [(1000, "abc")]


def test_a_window_without_a_timestamp_uses_the_clock_of_the_driver() -> None:
    run = run_of(lambda s: s.global_().tumbling_window(seconds(10), "n", b.Sum(), "total long"))
    assert run.batch({"in": WORDS}, now_ms=1000)["out"] == []
    assert run.batch({"in": WORDS}, now_ms=9000)["out"] == []
    assert run.batch({"in": []}, now_ms=20_000)["out"] == [(12,)]


def test_a_window_over_the_clock_that_is_due_fires_before_the_tuples_of_a_batch() -> None:
    def gone(window: Any) -> tuple[str, int]:
        return window.key, len(window.get_expired())

    run = run_of(
        lambda s: s.global_().window(seconds(10), seconds(10), None, gone, output="word string, gone long", key="word")
    )
    run.batch({"in": [("a", 1), ("b", 1)]}, now_ms=1_000)
    assert run.batch({"in": [("b", 2), ("a", 2)]}, now_ms=12_000)["out"] == [("a", 0), ("b", 0)]
    # Both keys had no tuples left at 10 s, so they begin anew with the next tuple.
    assert run.batch({"in": []}, now_ms=30_000)["out"] == [("b", 0), ("a", 0)]


def test_all_tasks_of_a_window_share_one_watermark() -> None:
    def build(stream: Stream) -> Stream:
        grouped = stream.group_by("word")
        return grouped.tumbling_window(seconds(1), "n", b.Count(), "n long", timestamp="n").parallelism_hint(5)

    run = run_of(build)
    run.batch({"in": [(word, 100) for word in "abcdefgh"]})
    assert sorted(run.batch({"in": [("z", 5500)]})["out"]) == [(word, 1) for word in "abcdefgh"]


def test_a_retried_batch_enters_its_windows_once() -> None:
    run = run_of(lambda s: s.global_().tumbling_window(count(4), "n", b.Sum(), "total long", timestamp="n"))
    run.begin({"in": WORDS})
    assert run.begin({"in": WORDS}, attempt=1).commit()["out"] == []
    assert run.begin({"in": WORDS}, attempt=2).commit()["out"] == []
    assert run.begin({"in": [("z", 10)]}, txid=2).commit()["out"] == [(16,)]
    assert run.begin({"in": [("z", 20)]}, txid=2, attempt=1).commit()["out"] == [(26,)]


def test_a_batch_that_failed_in_a_window_function_leaves_the_windows_unchanged() -> None:
    failing = [True]

    def once(window: Any) -> int:
        if failing.pop() if failing else False:
            raise FailedException("once")
        return sum(row.n for row in window)

    run = run_of(lambda s: s.global_().tumbling_window(count(2), None, once, "total long", timestamp="n"))
    with pytest.raises(FailedException, match="once"):
        run.begin({"in": WORDS}).commit()
    assert run.begin({"in": WORDS}, attempt=1).commit()["out"] == [(3,)]


def test_an_error_in_a_window_names_its_step_and_the_line_of_the_users_code() -> None:
    def fails(window: Any) -> Any:
        raise ValueError("no")

    class Fails(b.Sum):
        def combine(self, a: Any, b: Any) -> Any:
            raise ValueError("no")

    for aggregator in (fails, Fails()):
        run = run_of(
            lambda s, each=aggregator: s.tumbling_window(count(2), "n", each, "x long", timestamp="n"), tasks=1
        )  # type: ignore[misc]
        text = r"step 3, window 2 tuples / 2 tuples with .*[fF]ails failed on TupleWindow\(.*\): ValueError: no \(.*test_trident_st"
        with pytest.raises(BoltError, match=text):
            run.batch({"in": WORDS})


def test_the_error_of_a_skipped_window_is_reported_and_the_other_windows_emit() -> None:
    def picky(window: Any) -> int:
        total = sum(row.n for row in window)
        if total == 3:
            raise ValueError("not three")
        return total

    run = run_of(
        lambda s: s.global_().tumbling_window(count(2), None, picky, "total long", timestamp="n", on_error="skip")
    )
    assert run.batch({"in": [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]})["out"] == [(7,)]
    [error] = run.errors
    assert "ValueError: not three" in str(error)


def test_tuples_without_a_timestamp_are_late_as_invalid_and_every_tuple_is_counted() -> None:
    def build(stream: Stream) -> Stream:
        windows = stream.global_().tumbling_window(count(2), "n", b.Sum(), "total long", timestamp="n")
        return windows.late_stream().project("word", "reason")

    run = run_of(build)
    assert run.batch({"in": [("a", 5), ("b", None)]})["out"] == [("b", "invalid")]
    assert run.batch({"in": [("c", 1)]})["out"] == [("c", "late")]
    ((window,),) = [task.windows().values() for tasks in run.tasks.values() for task in tasks if task.windows()]
    assert window.counts() == {"in": 3, "shown": 0, "skipped": 0, "pending": 1, "expired": 0, "late": 2, "fired": 0}


@pytest.mark.filterwarnings("ignore::windowing.schema.values.InvalidTimestampWarning")
@pytest.mark.parametrize("timestamp", ["n", lambda row: row.n])
def test_a_timestamp_that_is_no_time_does_not_move_the_watermark(timestamp: Any) -> None:
    def build(stream: Stream) -> Stream:
        windows = stream.global_().tumbling_window(count(1), "n", b.Sum(), "total long", timestamp=timestamp)
        return windows.late_stream().project("word", "reason")

    run = run_of(build)
    late = run.batch({"in": [("a", 5), ("b", 2**63 - 1), ("c", -(2**62))]})["out"]
    assert sorted(late) == [("b", "invalid"), ("c", "invalid")]
    assert run.batch({"in": [("d", 6)]})["out"] == []


def test_a_timestamp_function_that_fails_is_a_warning_or_an_error_with_its_cause() -> None:
    def soon(row: Any) -> Any:
        return {1: 1, 2: "soon"}[row.n]

    def run(on_invalid: str) -> TridentRun:
        options: Any = {"timestamp": soon, "on_invalid": on_invalid}
        return run_of(
            lambda s: (
                s.global_().tumbling_window(count(1), "n", b.Sum(), "total long", **options).late_stream().project("n")
            )
        )

    late = run("late")
    with pytest.warns(
        InvalidTimestampWarning,
        match=r"function '.*soon' gave 'soon' for Row\(word='b', n=2\); wanted .*; such rows are inv",
    ) as caught:
        assert late.batch({"in": [("a", 1), ("b", 2)]})["out"] == [(2,)]
    assert caught[0].filename == __file__
    assert late.batch({"in": [("a", 1)]})["out"] == [], "this batch has no failure, so it has no warning"
    with pytest.raises(
        InvalidTimestampError, match=r"failed in the timestamp function '.*soon' on .*: KeyError: 3"
    ) as raised:
        run("raise").batch({"in": [("c", 3)]})
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_partition_without_tuples_sends_no_partial_result() -> None:
    run = run_of(lambda s: s.aggregate(None, b.Count(), "n long"))
    (task, idle) = run.tasks[run.plan.into(run.plan.stage_of(run.plan.sinks["out"]).id)[0].stage]
    sent = []
    for each, rows in ((task, WORDS), (idle, [])):
        batch = GroupBatch(each, "bg0", ProcessorContext(TransactionAttempt(1, 0)))
        batch.execute(run.plan.exchanges[0], rows)
        batch.finish(Phase.PROCESS)
        sent.append(list(batch.take().exchanges.values()))
    assert sent == [[[(3,)]], []]


@pytest.mark.parametrize(
    ("add", "length", "slide"),
    [
        (lambda s, *how: s.tumbling_window(count(5), *how), {"count": 5}, {"count": 5}),
        (lambda s, *how: s.tumbling_window(seconds(5), *how), {"ms": 5000}, {"ms": 5000}),
        (lambda s, *how: s.sliding_window(count(5), count(2), *how), {"count": 5}, {"count": 2}),
        (lambda s, *how: s.sliding_window(seconds(5), seconds(2), *how), {"ms": 5000}, {"ms": 2000}),
        (lambda s, *how: s.window(seconds(5), count(2), *how), {"ms": 5000}, {"count": 2}),
        (lambda s, *how: s.group_by("word").sliding_window(count(5), seconds(2), *how), {"count": 5}, {"ms": 2000}),
    ],
)
def test_storm_window_configs_are_compiled_to_length_and_slide(
    add: Any, length: dict[str, int], slide: dict[str, int]
) -> None:
    plan = run_of(lambda s: add(s, "n", b.Sum(), "total long")).plan
    (node,) = [node for node in plan.graph.nodes.values() if isinstance(node.operation, WindowOperation)]
    assert isinstance(node, ProcessorNode)
    assert isinstance(node.operation, WindowOperation)
    fixed = node.operation.bolt(node).definition()["fixed"]
    assert (fixed["length"], fixed["slide"]) == (length, slide)


def test_a_plan_is_picklable_with_the_users_functions() -> None:
    run = run_of(
        lambda s: s.each("n", lambda row: row.n * 3, "m long").group_by("word").aggregate("m", b.Sum(), "x long")
    )
    there = TridentRun(cloudpickle.loads(cloudpickle.dumps(run.plan)))
    assert sorted(there.batch({"in": WORDS})["out"]) == [("a", 12), ("b", 6)]


def test_windows_refuse_a_commit_out_of_txid_order() -> None:
    run = run_of(lambda s: s.global_().tumbling_window(count(2), "n", b.Sum(), "total long", timestamp="n"))
    earlier, later = run.begin({"in": WORDS}, txid=1), run.begin({"in": WORDS}, txid=2)
    later.commit()
    with pytest.raises(
        WindowingError, match="was asked to commit batch 1 after batch 2; commit in the order of the txids"
    ):
        earlier.commit()


def test_draining_fires_the_open_windows() -> None:
    run = run_of(lambda s: s.global_().tumbling_window(count(2), "n", b.Sum(), "total long", timestamp="n"))
    assert run.begin({"in": WORDS}, drain=True).commit()["out"] == [(3,), (3,)]
    assert run.begin({"in": WORDS}, attempt=1).commit()["out"] == [(3,)]


def test_a_window_may_share_its_tasks_with_a_stream_of_another_spout() -> None:
    """The query places the window of one stream in the group of the state, which the other stream writes."""
    topology = TridentTopology()
    stored, asked = (topology.new_stream(name, Given("word string, n long")) for name in ("stored", "asked"))
    state = stored.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "n long")
    windows = asked.partition_by("word").tumbling_window(
        count(1), None, lambda w: [("a", len(w.get()))], "word string, n long", timestamp="n"
    )
    windows.state_query(state, "word", b.MapGet(), "known long").sink("out")
    plan = topology.build()
    assert any(len(stage.batch_groups) == 2 for stage in plan.stages.values())
    run = TridentRun(plan)
    assert run.batch({"stored": WORDS})["out"] == []
    assert run.batch({"asked": WORDS[:2]})["out"] == [("a", 1, 4), ("a", 1, 4)]


def test_windows_are_restored_from_plain_data_in_another_run() -> None:
    def build(stream: Stream) -> Stream:
        return stream.global_().tumbling_window(count(4), "n", b.Sum(), "total long", timestamp="n")

    first, second = run_of(build), run_of(build)
    first.batch({"in": WORDS})
    for group, tasks in first.tasks.items():
        for task, other in zip(tasks, second.tasks[group], strict=True):
            for number, window in task.windows().items():
                other.windows()[number].restore(window.snapshot())
    assert second.begin({"in": [("z", 10)]}, txid=2).commit()["out"] == [(16,)]


def test_policies_of_a_window_get_rows_by_field_also_after_a_restore_from_plain_data() -> None:
    class Odd(EvictionPolicy):
        def evict(self, event: Any) -> Action:
            return Action.PROCESS if event.get().n % 2 else Action.KEEP

    class Stop(TriggerPolicy):
        def track(self, event: Any) -> Any:
            return None if event.is_watermark or event.get()["word"] != "c" else [EvictionContext(event.timestamp)]

    def build(stream: Stream) -> Stream:
        options: Any = {"timestamp": "n", "eviction": Odd, "trigger": Stop}
        return stream.global_().window(count(9), None, "n", b.Sum(), "total long", **options)

    first, second = run_of(build), run_of(build)
    assert first.batch({"in": [*WORDS, ("c", 5)]})["out"] == [(9,)]
    for group, tasks in first.tasks.items():
        for task, other in zip(tasks, second.tasks[group], strict=True):
            for number, window in task.windows().items():
                other.windows()[number].restore(loads(dumps(window.snapshot()), "windows"))
    assert second.begin({"in": [("c", 7)]}, txid=2).commit()["out"] == [(16,)]


@settings(max_examples=settings().max_examples * 2)
@given(
    cases(keyed=None, key_ttl=None, drains=None, idle=None, source=None, repeat=None, big_gaps=False)
    | cases("D/D", event_time=True, lateness="window", keyed=None, drains=None),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_the_changes_of_windows_give_the_windows_after_a_batch(case: dict[str, Any], size: int, payloads: int) -> None:
    """Few different payloads: a tuple that has arrived may equal one that was there."""
    place = 2 if case["event_time"] else 1
    case["ops"] = [
        [*op[:place], op[place] % payloads, *op[place + 1 :]] if op[0] in ("add", "tuple") else op for op in case["ops"]
    ]
    runs, replay = list(runs_of(case)), LosslessReplay(case)
    stored = loads(dumps(replay.executor.snapshot()), "windows")
    for start in range(0, len(runs), size):
        before, marked = replay.executor.snapshot(), replay.executor.mark()
        for first, ops in runs[start : start + size]:
            replay.feed(first, ops)
        now = replay.executor.snapshot()
        assert dumps(window_changes(*replay.executor.changed(marked))) == dumps(window_changes(before, now))
        stored = changed_windows(stored, loads(dumps(window_changes(before, now)), "changes"))
        assert stored == loads(dumps(now), "windows")


def test_a_batch_writes_only_the_keys_with_policies_that_it_has_changed() -> None:
    class Third(TriggerPolicy):
        seen = 0

        def track(self, event: Any) -> Any:
            self.seen += not event.is_watermark
            return [EvictionContext(event.timestamp)] if self.seen % 3 == 0 and not event.is_watermark else None

        def get_state(self) -> int:
            return self.seen

        def restore_state(self, state: Any) -> None:
            self.seen = state

    run = run_of(
        lambda s: s.group_by("word").window(count(9), None, "n", b.Sum(), "t long", timestamp="n", trigger=Third),
        tasks=1,
    )
    [window] = [each for tasks in run.tasks.values() for task in tasks for each in task.windows().values()]
    run.batch({"in": [("a", 1), ("b", 2), ("c", 3)]})
    stored = window.snapshot()["now"]
    for rows, keys in (([("b", 4)], ["b"]), ([("c", 5), ("a", 5)], ["a", "c"]), ([], [])):
        run.batch({"in": rows})
        changes = window_changes(*window.changed())
        assert [track["key"] for track in changes["manager"]["tracks"]] == keys
        stored = changed_windows(stored, loads(dumps(changes), "changes"))
        assert dumps(stored) == dumps(window.snapshot()["now"])


def test_tuples_that_come_and_leave_a_window_in_one_batch_leave_the_stored_tuples_in_order() -> None:
    batches = [
        [("a", 1), ("b", 4), ("c", 5), ("m", 15), ("x", 16), ("y", 16)],
        [("d", 11), ("e", 12), ("f", 13), ("g", 13), ("h", 13), ("p", 23)],
        [("q", 40), ("r", 41), ("s", 42)],
    ]

    def lives(*ends: int) -> list[Any]:
        rows, records = [], MemoryRecordStore()
        for end in ends:
            topology = TridentTopology("fives")
            words = topology.new_stream("in", InputSpout("v string, t long")).global_()
            fives = words.tumbling_window(
                count(5), None, lambda w: "".join(row.v for row in w.get()), "x string", timestamp="t", lag=millis(5)
            )
            fives.sink("out")
            rows += run_trident(topology, {"in": batches[:end]}, clock=VirtualClock(), records=records, drain=end == 3)[
                "out"
            ]
        return rows

    assert lives(2, 3) == lives(3) == [("abcde",), ("fghmx",), ("ypqrs",)]


def test_persists_and_windows_after_a_window_process_its_output() -> None:
    def build(stream: Stream) -> Stream:
        windows = stream.global_().tumbling_window(count(2), "n", b.Sum(), "total long", timestamp="n")
        return (
            windows.map(lambda row: ("all", row.total), "k string, total long")
            .group_by("k")
            .persistent_aggregate(counts(), "total", b.Sum(), "sum long")
            .new_values_stream()
        )

    run = run_of(build)
    assert run.batch({"in": WORDS})["out"] == [("all", 3)]
    assert run.batch({"in": [("z", 10)]})["out"] == [("all", 16)]


# -- Storm's TridentIntegrationTest ------------------------------------------------------------------------------------


def word_counts(topology: TridentTopology) -> tuple[Stream, TridentState]:
    words = topology.new_stream("words", Given("sentence string")).each("sentence", split, "word string")
    return words, words.group_by("word").persistent_aggregate(counts(), None, b.Count(), "count long").parallelism_hint(
        6
    )


def test_storm_word_count() -> None:
    topology = TridentTopology()
    _, state = word_counts(topology)
    asked = topology.new_drpc_stream("words_of").each("args", split, "word string").group_by("word")
    got = asked.state_query(state, "word", b.MapGet(), "count long").each("count", b.FilterNull())
    got.aggregate("count", b.Sum(), "sum long").project("sum")
    run = TridentRun(topology.build())
    run.batch({"words": ["hello the man said", "the"]})
    assert [run.ask("words_of", text) for text in ("the", "hello")] == [[(2,)], [(1,)]]
    run.batch({"words": ["the man on the moon", "where are you"]})
    assert [run.ask("words_of", text) for text in ("the", "man", "man where you the")] == [[(4,)], [(2,)], [(8,)]]


def test_storm_memory_map_get_tuples() -> None:
    topology = TridentTopology()
    _, state = word_counts(topology)
    asked = topology.new_drpc_stream("all_tuples").broadcast()
    asked.state_query(state, "args", b.TupleCollectionGet(), "word string, count long").project("word", "count")
    run = TridentRun(topology.build())
    run.batch({"words": ["hello the man said", "the"]})
    assert sorted(run.ask("all_tuples", "man")) == [("hello", 1), ("man", 1), ("said", 1), ("the", 2)]


def test_storm_count_agg() -> None:
    topology = TridentTopology()
    asked = topology.new_drpc_stream("numwords").each("args", split, "word string")
    asked.aggregate(None, b.Count(), "count long").parallelism_hint(2).project("count")
    run = TridentRun(topology.build())
    assert [run.ask("numwords", "the") for _ in range(100)] == [[(1,)]] * 100
    assert run.ask("numwords", "") == [(0,)]
    assert run.ask("numwords", "1 2 3 4 5 6 7 8") == [(8,)]


def test_storm_split_merge() -> None:
    topology = TridentTopology()
    asked = topology.new_drpc_stream("splitter")
    words = asked.each("args", split, "word string").project("word")
    length = asked.each("args", lambda row: str(len(row.args)), "len string").project("len")
    topology.merge(words, length)
    run = TridentRun(topology.build())
    assert sorted(run.ask("splitter", "the man")) == [("7",), ("man",), ("the",)]
    assert sorted(run.ask("splitter", "hello")) == [("5",), ("hello",)]


def test_storm_multiple_groupings_of_one_stream() -> None:
    topology = TridentTopology()
    asked = topology.new_drpc_stream("tester")
    words = asked.each("args", lambda row: 1, "one long").group_by("args")
    first, second = (words.aggregate("one", b.Count(), "count long") for _ in range(2))
    topology.merge(first, second)
    run = TridentRun(topology.build())
    assert run.ask("tester", "the") == [("the", 1), ("the", 1)]
    assert run.ask("tester", "aaaaa") == [("aaaaa", 1), ("aaaaa", 1)]


def test_storm_multi_repartition() -> None:
    topology = TridentTopology()
    asked = topology.new_drpc_stream("tester").each("args", split, "word string").local_or_shuffle().shuffle()
    asked.aggregate(None, b.Count(), "count long").project("count")
    run = TridentRun(topology.build())
    assert [run.ask("tester", text) for text in ("the man", "aaa")] == [[(2,)], [(1,)]]


def test_storm_word_count_through_many_empty_batches() -> None:
    topology = TridentTopology()
    word_counts(topology)
    run = TridentRun(topology.build())
    for rows in ([], ["hello the man said"], [], [], ["the", "man the"], [], []):
        run.batch({"words": rows})
    assert stored(run) == {("hello",): 1, ("the",): 3, ("man",): 2, ("said",): 1}


def test_a_stream_may_begin_with_a_spout_of_tuples() -> None:
    @spout(output="word string")
    def words() -> Any:
        yield "a"

    topology = TridentTopology()
    topology.new_stream("words", words).sink("out")
    assert TridentRun(topology.build()).batch({"words": ["a"]})["out"] == [("a",)]
