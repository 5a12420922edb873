"""Changes of a definition between two starts on one checkpoint, store or record: the accepted ones, and the refused ones."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windowing.errors import CheckpointError, ConfigError, CorruptStateError, DefinitionChangedError, WindowingError
from windowing.execution.compatibility import (
    FORMAT as FORMAT_IN_ONE_PROCESS,
)
from windowing.execution.compatibility import (
    KINDS,
    MOST_TASKS,
    Definition,
    DefinitionLocation,
    compare,
    compare_rows,
    differences,
    of_bolt,
    of_states,
    of_topology,
    parsed,
    read,
)
from windowing.spark.checkpoint import FORMAT, Checkpoint
from windowing.spark.context import execution_context
from windowing.spark.control import task_labels
from windowing.spark.rescaling import _change_of
from windowing.topology.bolts import WindowedBolt
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, bolt_of, tumbling, windowed_bolt
from windowing.topology.plan import Topology
from windowing.trident.builtins import Sum
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.streams import TridentTopology, planned
from windowing.windows import aggregate as agg
from windowing.windows.eviction import CountEvictionPolicy
from windowing.windows.measures import count, seconds
from windowing.windows.trigger import CountTriggerPolicy


@bolt(output="word string, at long")
def split(tuple: Any) -> Any: ...


@bolt(output="word string, at long, size long")
def split_more(tuple: Any) -> Any: ...


@bolt(output="word string, at int")
def split_other(tuple: Any) -> Any: ...


@bolt(output="word string")
def split_less(tuple: Any) -> Any: ...


@bolt(output="n long")
class Total:
    def init_state(self, state: Any) -> None: ...
    def execute(self, tuple: Any) -> Any: ...


def counting(
    length: int = 10, lag: int = 0, late: str | None = None, timestamp: str | None = "at", output: str = "n long"
) -> Any:
    ahead = {} if timestamp is None else {"timestamp": timestamp, "lag": seconds(lag)}

    @tumbling(seconds(length), late_stream=late, name="count", output=output, **ahead)
    def count(window: Any) -> Any: ...

    return count


PACKED: Definition = {"format": FORMAT, "library": "1.0", "order_by": [], "packing": {"parallelism": 2}}


def topology(
    split: Any = split,
    count: Any = None,
    tasks: int = 2,
    by: str = "word",
    name: str = "split",
    total: str = "total",
    more: Callable[[TopologyBuilder], Any] = lambda builder: None,
    spouts: tuple[str, ...] = ("lines", "words"),
) -> Topology:
    builder = TopologyBuilder("test")
    builder.configure({"topology.enable.message.timeouts": False})
    for spout in spouts:
        builder.set_spout(spout, InputSpout("line string, at long"))
    builder.set_bolt(name, split, 3).shuffle_grouping("lines")
    builder.set_bolt("count", count or counting(), tasks).fields_grouping(name, by)
    builder.set_bolt(total, Total).global_grouping("count")
    more(builder)
    return builder.build()


def definition(partitions: int = 2, **changed: Any) -> Definition:
    built = topology(**changed)
    known = execution_context(built)
    return plain(PACKED | of_topology(built, known.plan, known.windows, partitions))


def plain(data: Definition) -> Definition:
    return dict(json.loads(json.dumps(data)))


def stored_bolt(declared: Any = None, order_by: tuple[str, ...] = (), **changed: Any) -> Definition:
    found: WindowedBolt = bolt_of(declared or counting())
    options: dict[str, Any] = {"tasks": 2, "grouping": ("word",), "inputs": {"a": [["word", "string", True]]}} | changed
    return plain(PACKED | of_bolt(found.definition(), order_by=order_by, **options))


def windowed(
    length: int = 4, lag: int = 0, tasks: int = 1, late: bool = False, by: str | None = "n", spout: str = "in"
) -> Any:
    topology = TridentTopology("windowed")
    stream = topology.new_stream(spout, FixedBatchSpout("k string, n long", 3, [("a", 1)])).group_by("k")
    windows = stream.tumbling_window(
        count(length), "n", Sum(), "total long", timestamp=by, **({} if by is None else {"lag": seconds(lag)})
    )
    windows.parallelism_hint(tasks).sink("out")
    if late:
        windows.late_stream().sink("late")
    return planned(topology, "a test")


def stored_trident(partitions: int = 2, **changed: Any) -> Definition:
    return plain(PACKED | windowed(**changed).by_section().stream(partitions, {"id": "x"}))


@pytest.mark.parametrize(
    "changed",
    [
        {"count": counting(lag=5, late="late")},
        {"count": counting(output="n long, m long")},
        {"split": split_more},
        {"more": lambda builder: builder.set_bolt("also", split).shuffle_grouping("lines")},
        {"more": lambda builder: builder.set_bolt("also", split, 4).shuffle_grouping("count")},
    ],
)
def test_changes_of_free_options_new_fields_and_fused_bolts_are_accepted(changed: dict[str, Any]) -> None:
    assert list(differences(definition(), definition(**changed))) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"count": counting(length=20)}, 'length of bolt \'count\' was {"ms": 10000}, now {"ms": 20000}'),
        ({"count": counting(output="m long")}, "field 'n' (bigint) of count:default into bolt 'total' is gone"),
        ({"tasks": 3}, "tasks of bolt 'count' was 2, now 3 (`windowing rescale` makes a checkpoint with 3)"),
        ({"by": "at"}, "the grouping of split:default into bolt 'count' was"),
        ({"name": "cut"}, "bolt 'count' read split:default, now cut:default"),
        ({"split": split_other}, "field 'at' of split:default into bolt 'count' was bigint, now int"),
        ({"split": split_less, "count": counting(timestamp=None)}, "timestamp of bolt 'count' was"),
        ({"total": "sum"}, "the bolts behind exchanges were, level by level,"),
        ({"partitions": 4}, "partitions were 2, now 4 (`windowing rescale` makes a checkpoint with 4)"),
        ({"spouts": ("words", "lines")}, "the spouts with their streams were"),
        (
            {"more": lambda builder: builder.set_bolt("also", Total).shuffle_grouping("lines")},
            'the bolts behind exchanges were, level by level, [["count"], ["total"]], now [["also", "count"], ["total"]]',
        ),
    ],
)
def test_a_change_that_stored_windows_and_states_depend_on_is_refused_by_name(
    changed: dict[str, Any], sentence: str
) -> None:
    first = next(differences(definition(), definition(**changed)))
    assert first.startswith(sentence), first


def test_a_removed_field_is_refused_by_name() -> None:
    found = list(differences(definition(split=split_more), definition(split=split)))
    assert found == ["field 'size' (bigint) of split:default into bolt 'count' is gone"]


HERE = DefinitionLocation("checkpoint here", "here", format=FORMAT)
RECORD = DefinitionLocation("the states here", "here", copy="restore the store", record=True)
RECORDED = ("bolts", "windows")
"""The kinds that the runtimes in one process store."""


def test_an_incomplete_or_foreign_definition_is_refused() -> None:
    whole = definition()
    assert read(whole, HERE) == whole
    for part in ("spouts", "partitions", "levels", "free"):
        lacking = whole | {"topology": {name: value for name, value in whole["topology"].items() if name != part}}
        with pytest.raises(
            CorruptStateError, match="here is an incomplete definition of a windowing query; put back a"
        ):
            read(lacking, HERE)
    for nothing in ([], None, 3, "text", {"format": FORMAT}, {}):
        with pytest.raises(CorruptStateError, match="here is no definition of a windowing query"):
            read(nothing, HERE)


BOLT: dict[str, Any] = {
    "format": FORMAT, "order_by": [], "packing": {}, "bolt": {"fixed": {}, "free": {}}, "inputs": {}, "tasks": 2, "grouping": "all",
}  # fmt: skip
TRIDENT: dict[str, Any] = {
    "format": FORMAT,
    "order_by": [],
    "packing": {},
    "trident": {"name": "t", "streams": [], "partitions": 2, "stream": [], "states": None},
}


def nested(depth: int) -> bytes:
    return json.dumps(BOLT)[:-1].encode() + b', "x": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize("number", [10_000_000, 0, -1, 1.5, True, None, "2", [2]], ids=str)
def test_a_damaged_number_of_tasks_or_partitions_is_named(number: Any) -> None:
    for damaged, name in (
        (BOLT | {"tasks": number}, "tasks"),
        (TRIDENT | {"trident": TRIDENT["trident"] | {"partitions": number}}, "partitions"),
    ):
        with pytest.raises(
            CorruptStateError, match=rf"^\[CORRUPT\] here says that {name} is .*, wanted .* put back a copy$"
        ):
            parsed(json.dumps(damaged).encode(), HERE)


@pytest.mark.parametrize("depth", [50, 900, 5_000, 1_000_000])
def test_a_too_deeply_nested_definition_is_refused(depth: int) -> None:
    with pytest.raises(CorruptStateError, match="here is no definition of a windowing query"):
        parsed(nested(depth), HERE)
    assert parsed(nested(30), HERE)["tasks"] == 2


@pytest.mark.parametrize("part", [{"inputs": {"a": 3}}, {"inputs": {"a": [[1]]}}, {"packing": None}])
def test_a_definition_with_a_part_of_another_shape_is_named(part: dict[str, Any]) -> None:
    wanted = BOLT | {"inputs": {"a": [["k", "string", True]]}, "bolt": {"fixed": {"name": "b"}, "free": {}}}
    with pytest.raises(CorruptStateError, match="here is no definition"):
        parsed(json.dumps(wanted | part).encode(), HERE)
    if "packing" not in part:
        with pytest.raises(CorruptStateError, match="here is no definition"):
            compare(wanted | part, wanted, HERE)


def test_more_tasks_than_a_shuffle_can_have_are_refused_before_spark_is_used() -> None:
    nobody: Any = None
    for tasks, partitions in ((10_000_000, 2), (2, 10_000_000), (MOST_TASKS + 1, 1)):
        with pytest.raises(ConfigError, match="a shuffle has 100000 at most; give fewer"):
            task_labels(nobody, tasks, partitions)


# -- the table ---------------------------------------------------------------------------------------------------------

STORED: dict[str, Callable[..., Definition]] = {
    "bolt": stored_bolt,
    "topology": definition,
    "trident": stored_trident,
    "bolts": lambda **changed: plain(of_states(topology(**changed))),
    "windows": lambda **changed: plain({"format": FORMAT_IN_ONE_PROCESS} | windowed(**changed).windows()),
}


def test_every_field_of_a_definition_has_a_comparison_rule() -> None:
    assert set(STORED) == set(KINDS)
    for kind, made in STORED.items():
        stored, rows = made(), {rule.field for rule in (*KINDS[kind].rules, *KINDS[kind].rows)}
        parts = {row.partition(".")[0] for row in rows if "." in row}
        fields = {f"{part}.{name}" for part in parts for name in stored[part]} | (set(stored) - parts)
        assert fields == rows | {"format", "library"} & set(stored), kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_equals_itself_and_every_field_is_required(kind: str) -> None:
    stored = STORED[kind]()
    place = RECORD if kind in RECORDED else HERE
    for replay in (False, True):
        assert list(differences(stored, STORED[kind](), replay)) == []
    assert read(stored, place) == stored
    for rule in KINDS[kind].rules:
        part, _, name = rule.field.rpartition(".")
        if name != kind:
            short = plain(stored)
            del (short[part] if part else short)[name]
            with pytest.raises(CorruptStateError):
                read(short, place)


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_of_another_kind_is_refused_and_its_writer_is_named(kind: str) -> None:
    for other in KINDS.keys() - {kind}:
        (sentence,) = differences(STORED[other](), STORED[kind]())
        assert sentence == f"it was written by {KINDS[other].writer}, not by {KINDS[kind].writer}"


@pytest.mark.parametrize(
    ("kind", "changed", "sentence"),
    [
        ("trident", {"length": 5}, 'what keeps or feeds windows of the Trident topology was [["b'),
        ("trident", {"tasks": 3}, 'what keeps or feeds windows of the Trident topology was [["b'),
        (
            "trident",
            {"partitions": 3},
            "the number of partitions of the Trident topology was 2, now 3 (`windowing rescale`",
        ),
        (
            "trident",
            {"spout": "other"},
            'the streams of the Trident topology was [["in", "k string, n bigint"]], now [["other", ',
        ),
        ("trident", {"lag": 3, "late": True}, ""),
        (
            "windows",
            {"length": 5},
            'length of b_0, step 3, window 4 tuples / 4 tuples with Sum was {"count": 4}, now {"count": 5}',
        ),
        (
            "windows",
            {"by": None},
            'timestamp of b_0, step 3, window 4 tuples / 4 tuples with Sum was {"field": "n"}, now',
        ),
        ("windows", {"tasks": 3}, "tasks of b_0, step 3, window 4 tuples / 4 tuples with Sum was 1, now 3"),
        ("windows", {"lag": 3, "late": True}, ""),
        ("bolts", {"count": counting(length=20)}, ""),
        (
            "bolts",
            {"total": "sum"},
            "bolt 'total' has stored states, and now there is none of that name that keeps any",
        ),
        ("bolt", {"tasks": 3}, "tasks was 2, now 3"),
        ("bolt", {"declared": counting(length=20)}, 'length of bolt \'count\' was {"ms": 10000}, now {"ms": 20000}'),
        ("bolt", {"declared": counting(lag=5)}, ""),
        ("bolt", {"declared": counting(output="m int")}, ""),
        ("bolt", {"inputs": {"a": []}}, "column 'word' (string) of input stream 'a' is gone"),
        ("bolt", {"inputs": {"b": []}}, "the input streams were a, now b"),
        ("bolt", {"inputs": {"a": [["word", "string", True], ["n", "int", True]]}}, ""),
    ],
)
def test_a_changed_definition_is_refused_or_accepted_by_its_rules(
    kind: str, changed: dict[str, Any], sentence: str
) -> None:
    first = next(differences(STORED[kind](), STORED[kind](**changed)), "")
    assert first.startswith(sentence), first
    assert bool(first) == bool(sentence), first


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "output": ({}, {"output": "n long, m long"}),
    "semantics": ({}, {"semantics": "storm"}),
    "length": ({}, {"length": count(4)}),
    "slide": ({}, {"slide": seconds(1)}),
    "timestamp": ({}, {"timestamp": "size"}),
    "offset": ({}, {"offset": seconds(1)}),
    "lateness": ({}, {"lateness": "window"}),
    "repeat": ({"length": count(4)}, {"length": count(4), "repeat": True}),
    "key": ({}, {"key": "word"}),
    "source": ({}, {"source": "word"}),
    "aggregate": ({}, {"aggregate": {"n": agg.count()}}),
    "eviction": ({}, {"eviction": partial(CountEvictionPolicy, 4)}),
    "trigger": ({"slide": None}, {"slide": None, "trigger": partial(CountTriggerPolicy, 3)}),
    "lag": ({}, {"lag": seconds(1)}),
    "late_stream": ({}, {"late_stream": "late"}),
    "idle_timeout": ({}, {"idle_timeout": seconds(1)}),
    "max_future": ({}, {"max_future": seconds(1)}),
    "max_repeats": ({"length": count(4), "repeat": True}, {"length": count(4), "repeat": True, "max_repeats": 9}),
    "key_ttl": ({"length": count(4), "key": "word"}, {"length": count(4), "key": "word", "key_ttl": seconds(9)}),
    "watermark_interval": ({}, {"watermark_interval": seconds(9)}),
    "on_error": ({}, {"on_error": "skip"}),
    "on_invalid": ({}, {"on_invalid": "raise"}),
    "columnar": ({}, {"columnar": "arrow"}),
    "recovery_timeout": ({"message_id": "at"}, {"message_id": "at", "recovery_timeout": seconds(9)}),
    "message_id": ({"message_id": "at"}, {"message_id": "size"}),
    "max_events_in_memory": ({}, {"max_events_in_memory": 1_000}),
}


def options_in(page: str, first: str) -> set[str]:
    """Return the words of the first cell of the row of a page that begins with `first`."""
    (row,) = (line for line in Path(page).read_text().splitlines() if line.startswith(f"| {first}"))
    return set(re.findall(r"\w+", row.split(" | ")[0]))


@pytest.mark.parametrize("option", OPTIONS)
def test_the_manual_names_each_option_among_those_that_are_refused_or_accepted_when_changed(option: str) -> None:
    def changed(options: dict[str, Any]) -> Any:
        given: dict[str, Any] = {"length": seconds(4), "slide": seconds(2), "timestamp": "at", "output": "n long"}

        @windowed_bolt(name="count", **given | options)
        class Counts:
            def init_state(self, state: Any) -> None: ...
            def execute(self, window: Any) -> Any: ...

        return Counts

    old, new = OPTIONS[option]
    on_spark = list(differences(stored_bolt(changed(old)), stored_bolt(changed(new))))
    refused, accepted = (options_in("docs/operate/upgrade.md", row) for row in ("name, semantics,", "lag, "))
    if option == "message_id":
        refused |= options_in("docs/operate/upgrade.md", "message_id")
    if option == "output":
        accepted |= options_in("docs/operate/upgrade.md", "output fields")
    if option != "max_events_in_memory":  # not on Spark
        assert (option in refused, option in accepted) == (bool(on_spark), not on_spark)
    builders = [TopologyBuilder("test") for _ in (old, new)]
    for builder, each in zip(builders, (old, new), strict=True):
        builder.set_spout("lines", InputSpout("word string, at long, size long"))
        builder.set_bolt("count", changed(each)).global_grouping("lines")
    in_one_process = list(differences(*(plain(of_states(builder.build())) for builder in builders)))
    refused, accepted = (options_in("docs/guides/state.md", row) for row in ("another `length`", "another `lag`"))
    assert option in (refused if in_one_process else accepted)
    assert option == "max_events_in_memory" or (option in refused) != (option in accepted)


@pytest.mark.parametrize(("kind", "of"), [("bolt", ""), ("topology", " of bolt 'count'")])
def test_message_ids_of_another_field_are_refused_because_the_remembered_ones_are_not_its(kind: str, of: str) -> None:
    def identified(field: str | None) -> Definition:
        found = STORED[kind]()
        free = found["bolt"]["free"] if kind == "bolt" else found["topology"]["free"]["count"]
        free["message_id"] = field
        return found

    for was, is_now in (("id", "id"), (None, "id"), ("id", None)):
        assert list(differences(identified(was), identified(is_now))) == []
    (sentence,) = differences(identified("id"), identified("n"))
    assert sentence == f'message_id{of} was "id", now "n"'


@pytest.mark.parametrize(
    ("stored", "wanted", "sentence"),
    [
        ({}, {"order_by": ("word",)}, 'order_by was [], now ["word"]'),
        ({"order_by": ["word"]}, {}, 'order_by was ["word"], now []'),
        (
            {"packing": {"parallelism": 9}},
            {},
            "parallelism was 9, now 2, and without order_by rows would arrive in another",
        ),
        ({"packing": {"parallelism": 9}, "order_by": ["word"]}, {"order_by": ("word",)}, ""),
        ({"inputs": {"a": []}}, {"grouping": "shuffle"}, "the columns of input stream 'a' were [], now [\"word\"]"),
        ({"inputs": {"a": []}, "order_by": ["word"]}, {"order_by": ("word",)}, "the columns of input stream 'a' were"),
        ({"inputs": {"a": []}}, {}, ""),
    ],
)
def test_changes_of_the_row_order_are_refused_only_while_a_batch_is_pending(
    stored: Definition, wanted: dict[str, Any], sentence: str
) -> None:
    new = stored_bolt(**wanted)
    old = new | {"order_by": []} | stored
    compare(old, new, HERE, lambda: None)
    compare(old, new, HERE)
    if not sentence:
        compare(old, new, HERE, lambda: 7)
        return
    with pytest.raises(CheckpointError) as refused:
        compare(old, new, HERE, lambda: 7)
    said = f"checkpoint here: batch 7 was left half done and has to be made again exactly, but {sentence}"
    assert said in str(refused.value)
    assert str(refused.value).endswith("; start once as before to finish it")


@pytest.mark.parametrize(("kind", "of"), [("bolt", ""), ("topology", " of bolt 'count'")])
@pytest.mark.parametrize("option", ["lag_ms", "idle_timeout_ms", "max_future_ms", "key_ttl_ms", "message_id"])
def test_options_that_decide_the_rows_are_refused_only_while_a_target_keeps_those_of_a_half_done_batch(
    option: str, kind: str, of: str
) -> None:
    stored, wanted = STORED[kind](), STORED[kind]()
    free = wanted["bolt"]["free"] if kind == "bolt" else wanted["topology"]["free"]["count"]
    was, free[option] = free[option], 5000
    compare(stored, wanted, HERE, lambda: 7)
    said = (
        rf"batch 7 .*in the sink of stream 'a' for good, .*: {option}{of} was {was or 'null|0'}, now 5000; start once"
    )
    with pytest.raises(CheckpointError, match=said):
        compare_rows(stored, wanted, HERE, 7, ["the sink of stream 'a'"])
    free |= {option: was, "on_error": "skip", "on_invalid": "raise", "max_repeats": 9, "late_stream": "late"}
    compare_rows(stored, wanted, HERE, 7, ["the sink of stream 'a'"])


def test_a_trident_definition_of_an_older_version_has_no_options_of_windows_to_compare() -> None:
    stored, wanted = STORED["trident"](), STORED["trident"]()
    ((_, free),) = wanted["trident"]["free"].items()
    free["lag_ms"] = 5000
    with pytest.raises(CheckpointError, match=r"lag_ms of bolt 'window_\d+' was 0, now 5000"):
        compare_rows(stored, wanted, HERE, 7, ["state1"])
    compare_rows(stored, wanted, HERE, 7, [])
    del stored["trident"]["free"]
    assert read(stored, HERE) == stored
    compare(stored, wanted, HERE, lambda: 7)
    compare_rows(stored, wanted, HERE, 7, ["state1"])


def test_a_changed_definition_is_refused_before_the_row_order_of_a_replay_is_compared() -> None:
    stored = stored_bolt(order_by=("word",), inputs={"a": [["word", "string", True]]})
    wanted = stored_bolt(order_by=("word",), inputs={"b": [["word", "string", True]], "c": []})
    with pytest.raises(
        DefinitionChangedError, match="checkpoint here: the input streams were a, now b, c; restore the old"
    ):
        compare(stored, wanted, HERE, lambda: 7)


def test_all_refused_changes_are_named_in_one_error() -> None:
    stored = stored_bolt(inputs={"a": [["word", "string", True], ["n", "int", True]]})
    wanted = stored_bolt(counting(length=20), tasks=3, grouping="all", inputs={"a": [["word", "int", True]]})
    with pytest.raises(DefinitionChangedError) as refused:
        compare(stored, wanted, HERE, lambda: 7)
    assert str(refused.value) == (
        '[INCOMPATIBLE] checkpoint here: length of bolt \'count\' was {"ms": 10000}, now {"ms": 20000}; '
        'slide of bolt \'count\' was {"ms": 10000}, now {"ms": 20000}; '
        "tasks was 2, now 3 (`windowing rescale` makes a checkpoint with 3); "
        'grouping was ["word"], now "all"; '
        "column 'word' of input stream 'a' was string, now int (.withColumn('word', F.col('word').cast('string')) gives it as "
        "before); column 'n' (int) of input stream 'a' is gone "
        "(.withColumn('n', F.lit(None).cast('int')) gives it as null); "
        "restore the old definition"
    )
    many = {"a": [[f"c{n}", "string", True] for n in range(100)]}
    with pytest.raises(
        DefinitionChangedError,
        match=r"column 'c19' \(string\) .* is gone .* gives it as null\); and there are more; restore",
    ):
        compare(stored_bolt(inputs=many), stored_bolt(inputs={"a": []}), HERE)


def test_a_change_is_named_also_beside_a_damaged_part() -> None:
    stored = stored_bolt() | {"tasks": 3, "inputs": {"a": 3}}
    with pytest.raises(DefinitionChangedError, match=r"checkpoint here: tasks was 3, now 2 .*; restore"):
        compare(stored, stored_bolt(), HERE)


def test_an_unreadable_record_is_refused_and_shown() -> None:
    for damaged in ({"format": 2}, [], None, STORED["bolts"]() | {"format": 2}, {"format": 1, "name": "test"}):
        with pytest.raises(
            CorruptStateError, match=r"^\[CORRUPT\] here is .*, which this version cannot read; restore the store"
        ):
            read(damaged, RECORD)
    with pytest.raises(CorruptStateError, match="which this version cannot read"):
        compare({"format": 1, "name": "test", "bolts": {"total": 3}}, STORED["bolts"](), RECORD)


OLD = json.loads((Path(__file__).parents[1] / "data" / "definitions.json").read_bytes())
"""The stored definitions of the same plans in format 1."""


@pytest.mark.parametrize("kind", OLD)
def test_format_1_is_refused_for_spark_checkpoints_and_accepted_for_local_states(kind: str) -> None:
    if kind in RECORDED:
        assert STORED[kind]() == read(OLD[kind], RECORD)
        return
    place = HERE._replace(older=", then begin anew")
    with pytest.raises(
        DefinitionChangedError,
        match=r"here has format 1, this version reads 2; drain it with the version '1\.0' that wrote it, then begin anew$",
    ):
        read(OLD[kind], place)
    with pytest.raises(DefinitionChangedError, match=r"has format 3, .* use the version '1\.0' that wrote it$"):
        read(OLD[kind] | {"format": 3}, place)


# -- any damage ------------------------------------------------------------------------------------------------------------------


class LocalFolder:
    """A Folder of a checkpoint without a JVM."""

    def __init__(self, spark: Any, path: Any) -> None:
        self._path = Path(path)

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(None, self._path / name)

    @property
    def path(self) -> str:
        return str(self._path)

    def of(self, name: str) -> str:
        return str(self._path / name)

    def names(self) -> list[str]:
        return sorted(each.name for each in self._path.iterdir()) if self._path.exists() else []

    def exists(self, name: str) -> bool:
        return (self._path / name).exists()

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self._path / name).write_bytes(content)

    def create(self, name: str, content: bytes) -> bool:
        self.write(name, content)
        return True


ONE_CORE: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1, master="spark://here"))
WHOLE: dict[str, tuple[Definition, Definition]] = {
    "topology": (definition(), definition()),
    "trident": (stored_trident(), stored_trident()),
    "an undone start": (stored_bolt(tasks=3) | {"before": {"batch": 0, "definition": stored_bolt()}}, stored_bolt()),
}
"""By kind a stored definition, and that of the next start."""
GONE = object()


def paths(part: Any, *above: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a definition."""
    names = part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    for name in names:
        yield (*above, name)
        yield from paths(part[name], *above, name)


def damaged(kind: str, path: tuple[Any, ...], value: Any) -> bytes:
    """Return the content of a file that has another value at a path, or lacks it."""
    part = found = copy.deepcopy(WHOLE[kind][0])
    *above, name = path
    for each in above:
        part = part[each]
    if value is GONE:
        del part[name]
    else:
        part[name] = value
    return json.dumps(found).encode()


def uses(checkpoint: Checkpoint, wanted: Definition) -> Iterator[Callable[[], Any]]:
    """Yield what a start, and `rescale`, do with a stored definition."""
    tasks: Any = 3 if "bolt" in wanted else {"count": 3} if "topology" in wanted else None
    yield lambda: checkpoint.keep(wanted, checkpoint.compared(wanted), ["a table"])
    yield checkpoint.stored_tasks
    yield lambda: checkpoint.await_cores(lambda: True)
    if tasks is not None:
        yield lambda: _change_of(checkpoint, checkpoint, tasks, None, None, 3 if "topology" in wanted else None)


FILES = st.sampled_from(list(WHOLE)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.one_of(
            st.builds(
                partial(damaged, kind),
                st.sampled_from(list(paths(WHOLE[kind][0]))),
                st.sampled_from([GONE, None, 7, -1.5, "x", True, [], {}, [["a"]], {"a": 1}]),
            ),
            st.integers(0, 400).map(lambda size: json.dumps(WHOLE[kind][0]).encode()[:size]),
        ),
    )
)


@settings(max_examples=settings().max_examples * 4)
@given(FILES)
@example(("an undone start", damaged("an undone start", ("before",), 7)))
@example(("an undone start", damaged("an undone start", ("before",), None)))
@example(("an undone start", damaged("an undone start", ("before", "definition"), GONE)))
@example(("trident", damaged("trident", ("packing",), None)))
@example(("topology", damaged("topology", ("packing", "parallelism"), "x")))
@example(("topology", damaged("topology", ("topology", "levels", 0, 0, 0), [])))
@example(("topology", damaged("topology", ("topology", "spouts"), None)))
@example(("an undone start", damaged("an undone start", ("before", "definition", "bolt", "fixed", "key"), 7)))
def test_a_damaged_definition_is_refused_in_a_sentence_that_names_the_file_or_harms_nothing(
    case: tuple[str, bytes],
) -> None:
    kind, content = case
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr("windowing.spark.checkpoint.Folder", LocalFolder)
        patched.setattr("windowing.spark.checkpoint._setting", lambda spark, name: None)
        file = Path(folder) / "windowing/definition.json"
        for path, text in (
            (file, ""),
            (file.parents[1] / "metadata", '{"id": "5f0c4a34-9a1c-4a7e-8f0f-000000000001"}'),
            (file.parents[1] / "offsets/0", "v1\n{}\n-"),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for use in uses(Checkpoint(ONE_CORE, folder), WHOLE[kind][1]):
            file.write_bytes(content)
            refused: list[WindowingError] = []
            try:
                use()
            except WindowingError as error:
                refused.append(error)
            assert not refused or file.read_bytes() == content
            for error in refused:
                if isinstance(error, CorruptStateError):
                    assert re.search(f"{file} .*; put back a copy", str(error))
