"""Wrong arguments: each is refused with an error of the library that names it, before anything runs."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DayTimeIntervalType,
    StructField,
    StructType,
    TimeType,
    YearMonthIntervalType,
)

import windowing
from windowing import Count, Duration, TopologyError, count, millis, seconds, sliding, spout, tumbling
from windowing.codec import decode_value, encode_value
from windowing.errors import BoltError, ConfigError, InvalidTimestampError, quote
from windowing.local import LocalCluster, LocalRun, TridentCluster, VirtualClock, explain, run_local, run_trident
from windowing.local.cluster import run_topology
from windowing.queues import KafkaTridentSpoutOpaque, RabbitQueue, RedisStream, Spooled, SqliteQueue
from windowing.schema.rows import RowError, record_of, row_of, rows_of
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.schema.types import Schema
from windowing.spark.assembly import names_of, require_carried, require_mapping, require_start
from windowing.spark.hadoop import checked_folder
from windowing.spark.query import WindowedStream, windowed
from windowing.spark.sinks import MemorySink, ParquetSink, require_sink
from windowing.spark.submit import submit
from windowing.spark.trident_submit import submit_trident
from windowing.stores import MemoryStore, PostgresStore, RedisStore, SqliteRecordStore, SqliteStore, map_state
from windowing.testing import Watch
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout, TopologyContext
from windowing.topology.config import TopologyConfig
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.decorators import bolt
from windowing.trident import FixedBatchSpout, MapGet, MapState, StateType, Sum, TridentRun, TridentTopology

ONE = Schema.parse("name string")
HUGE = 10**5000


class Polars:
    """Like a DataFrame of polars: iteration gives its columns."""

    __module__ = "polars.dataframe.frame"
    columns, shape = ("a", "b"), (1, 2)

    def __iter__(self) -> Any:
        return iter((["x"], ["y"]))


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class NoHash:
    def __hash__(self) -> int:
        raise RuntimeError("no hash")


FRAME = pd.DataFrame({"a": ["x"], "b": ["y"]})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (FRAME, r"a DataFrame of pandas, which gives the names of its columns.*from_pandas\(frame"),
        (Polars(), r"a DataFrame|a Polars of polars.*frame\.to_arrow\(\), or frame\.rows\(\)"),
        ({"x"}, "a set, whose order changes"),
        (frozenset({"x"}), "a set, whose order changes"),
        (NoRepr, "the class 'NoRepr', which is no list of rows"),
        ([FRAME], "got as one row a DataFrame of pandas"),
        (({"x"},), "wanted a str"),
        (b"x", "wanted a str"),
        ([b"x"], "wanted a str"),
        ({"a": 1}, "got a dict without name and with 'a' too"),
        (pa.table({"a": ["x"]}), "got a table of the columns 'a'"),
        (NoRepr(), "a NoRepr whose repr raised RuntimeError"),
        pytest.param(HUGE, "an int of 16610 bits", id="huge"),
    ],
)
def test_a_returned_value_that_is_not_a_row_is_refused_and_named(given: Any, said: str) -> None:
    with pytest.raises(RowError, match=said):
        list(rows_of(given, ONE, "default"))

    @tumbling(count(1), output="name string")
    def window_bolt(window: Any) -> Any:
        return given

    with pytest.raises(BoltError, match=said):
        run_local(window_bolt, [[{"n": 1}]])


def test_tuples_and_iterables_of_rows_are_accepted() -> None:
    word = Tuple(("storm", 3), Origin("split", 1, Fields("word", "count")))
    assert list(rows_of(word, Schema.parse("word string, count int"), "default")) == [("storm", 3)]
    assert row_of(word, Schema.parse("word string, count int"), "default") == ("storm", 3)
    for several in (
        ["a", "b"],
        iter("ab"),
        {"a": 1, "b": 2}.keys(),
        pd.Series(["a", "b"]),
        pa.table({"name": ["a", "b"]}),
    ):
        assert list(rows_of(several, ONE, "default")) == [("a",), ("b",)]


@tumbling(count(1), output="n long", key="k")
def keyed(window: Any) -> Any:
    return len(window)


@pytest.mark.parametrize("batches", [5, None, FRAME, "text", {"k": 1}, [FRAME], [{1, 2}], [5], 3.5])
def test_batches_that_are_not_lists_are_refused(batches: Any) -> None:
    with pytest.raises(ConfigError, match="run_local takes a list of batches, each a"):
        run_local(keyed, batches)


@pytest.mark.parametrize("rows", [FRAME, {"name": "a"}, 5, {1}])
def test_rows_of_a_spout_that_are_not_lists_are_refused(rows: Any) -> None:
    builder = TopologyBuilder("t")
    builder.set_spout("in", InputSpout("name string"))
    builder.set_bolt("out", bolt(output="name string")(lambda tuple: tuple["name"])).shuffle_grouping("in")
    with pytest.raises(ConfigError, match="InputSpout 'in' takes a list of batches, each a list of rows"):
        run_topology(builder.build(), {"in": [rows]})


def test_a_key_whose_hash_raises_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"key of bolt 'keyed' names field 'k'.*its __hash__ raised RuntimeError: no hash"
    ):
        run_local(keyed, [[{"k": NoHash()}]])


def test_a_source_value_whose_repr_raises_is_refused() -> None:
    @tumbling(count(1), output="n long", timestamp="at", source="k")
    def sourced(window: Any) -> Any:
        return len(window)

    with pytest.raises(
        ConfigError, match="source= names field 'k', which is <a NoRepr whose repr raised RuntimeError>"
    ):
        LocalRun(sourced).feed([{"k": NoRepr(), "at": 1}])


def test_a_key_whose_repr_raises_can_be_used_and_shown_in_dead_letters() -> None:
    for key in (NoRepr(), HUGE):
        assert run_local(keyed, [[{"k": key}]])["default"] == [(1,)]

    @tumbling(count(1), output="n long", key="k", on_error="dead_letter")
    def fails(window: Any) -> Any:
        raise ValueError("no")

    letters = run_local(fails, [[{"k": NoRepr()}], [{"k": HUGE}]])["dead_letters"]
    assert [letter[6] for letter in letters] == ["<a NoRepr whose repr raised RuntimeError>", "<an int of 16610 bits>"]
    assert json.loads(letters[1][7]) == [{"k": "<an int of 16610 bits>"}]
    letter = DeadLetter(component="b", task=0, error="e", tuples=[{NoRepr(): {1: HUGE}}])
    assert "16610 bits" in letter.row()[-1]


def test_ints_of_any_length_are_stored_and_shown() -> None:
    value = {"a": [HUGE, -HUGE, 1], "b": (HUGE,)}
    assert decode_value(encode_value(value), "a value") == value
    assert encode_value(HUGE) != encode_value(-HUGE)
    assert quote([HUGE]) == "<a list whose repr raised ValueError>"


# -- arguments of queries and runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [5, None, b"x", {"a": 1}, [1], ["a", None]])
def test_column_names_of_another_type_are_refused(given: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"grouping names columns, as a text or a list of texts, got .*; write grouping="
    ):
        names_of("grouping", given, "columns")


def test_start_arguments_of_another_type_are_refused() -> None:
    require_start("checkpoint", None)
    for call in (
        lambda: require_start(None, None),
        lambda: require_start("", None),
        lambda: require_start("c", 5),
        lambda: require_start("c", ""),
        lambda: checked_folder("control", 5),
        lambda: require_mapping("sources", [1]),
    ):
        with pytest.raises(ConfigError, match=r"(checkpoint|query_name|control|sources) is a .*, got .*; write "):
            call()


@pytest.mark.parametrize("kind", [TimeType(6), DayTimeIntervalType(), YearMonthIntervalType(), ArrayType(TimeType(6))])
def test_columns_of_unsupported_types_are_refused_by_name(kind: Any) -> None:
    schema = StructType([StructField("interval", BooleanType()), StructField("x", kind)])
    require_carried("input stream 'default'", StructType(schema.fields[:1]))
    with pytest.raises(ConfigError, match=r"column 'x' of input stream 'default' is .*, which does not travel"):
        require_carried("input stream 'default'", schema)


def test_a_file_sink_refuses_a_stream_with_a_column_named_batch_id() -> None:
    require_sink("default", MemorySink(), ["batch_id"])
    with pytest.raises(
        ConfigError, match="the sink of 'late' adds a column 'batch_id', and the stream has one called 'Batch_ID'"
    ):
        require_sink("late", ParquetSink("/tmp/out"), ["n", "Batch_ID"])


@pytest.mark.parametrize("measure", [count, millis])
def test_a_negative_window_length_of_too_many_digits_is_refused_with_its_bit_length(measure: Any) -> None:
    with pytest.raises(ConfigError, match="an int of 16610 bits"):
        measure(-HUGE)


class ClockOf:
    def __init__(self, now_ms: Any) -> None:
        self.now_ms = lambda: now_ms


_NO_CLOCK = r"clock is an object with now_ms\(\), got .*; write clock=VirtualClock\(1_000\)"
_NO_WHOLE = r"a clock stands at whole milliseconds since 1970, got .*; write VirtualClock\(1_000\)"


@pytest.mark.parametrize(
    ("clock", "wanted"),
    [
        *((odd, _NO_CLOCK) for odd in (0, 1_700_000_000_000, "now", VirtualClock, {}, NoRepr())),
        *((ClockOf(odd), _NO_WHOLE) for odd in (1_700_000_000_000.5, None, NoRepr())),
    ],
)
def test_an_invalid_clock_is_refused_by_every_driver(clock: Any, wanted: str) -> None:
    builder = TopologyBuilder("one")
    builder.set_spout("rows", InputSpout("name string"))
    trident = TridentTopology("one")
    trident.new_stream("rows", FixedBatchSpout("name string", 1, [("x",)])).sink("out")
    for start in (
        lambda: run_local(tumbling(count(1), name="none")(lambda window: None), [[1]], clock=clock),
        lambda: run_topology(builder.build(), {"rows": [["x"]]}, clock=clock),
        lambda: run_trident(trident, clock=clock),
    ):
        with pytest.raises(ConfigError, match=wanted):
            start()


@pytest.mark.parametrize("seed", [1.5, "7", [7], True])
def test_a_seed_of_another_type_is_refused(seed: Any) -> None:
    builder = TopologyBuilder("one")
    builder.set_spout("rows", InputSpout("name string"))
    with pytest.raises(ConfigError, match=r"seed is a whole number, or None .*; write seed=7"):
        run_topology(builder.build(), {"rows": [["x"]]}, seed=seed)


@pytest.mark.parametrize("streams", [3, (), None, ("a", 1), b"ab", {"a": 1}, iter("ab")])
def test_invalid_or_repeated_input_streams_are_refused(streams: Any) -> None:
    with pytest.raises(ConfigError, match="streams is a list of input streams, got"):
        run_local(tumbling(count(1), name="none")(lambda window: None), [[1]], streams=streams)
    with pytest.raises(ConfigError, match="streams names an input stream twice"):
        run_local(tumbling(count(1), name="none")(lambda window: None), [[1]], streams=("a", "a"))


@pytest.mark.parametrize("outputs", [3, True, {"rows": 1}, {"rows"}, str])
def test_outputs_of_another_type_are_refused(outputs: Any) -> None:
    builder = TopologyBuilder("one")
    builder.set_spout("rows", InputSpout("name string"))
    with pytest.raises(ConfigError, match="outputs is a list of names, got"):
        run_topology(builder.build(), {"rows": [["x"]]}, outputs=outputs)


@pytest.mark.parametrize("settings", [["topology.workers"], "topology.workers", 3, 0, "", object()])
def test_settings_that_are_not_a_mapping_are_a_topology_error(settings: Any) -> None:
    wanted = "configure takes a mapping of settings, got"
    for of_one in (True, False):
        builder = TopologyBuilder("one")
        spout = builder.set_spout("rows", InputSpout("name string"))
        (spout if of_one else builder).configure(settings)
        with pytest.raises(TopologyError, match=wanted):
            builder.build()
    topology = TridentTopology("one").configure(settings)
    topology.new_stream("rows", FixedBatchSpout("name string", 1, [("x",)])).sink("out")
    with pytest.raises(TopologyError, match=wanted):
        topology.build()
    with pytest.raises(ConfigError, match=wanted):
        TopologyConfig.of(settings)


@pytest.mark.parametrize(
    ("kind", "name", "written"),
    [
        ("WindowedQuery", "awaitTermination", "await_end()"),
        ("WindowedQuery", "lastProgress", "progress[-1]"),
        ("WindowedQuery", "isActive", "is_active"),
        ("WindowedStream", "writeStream", 'start({"default": ParquetSink("out")}, checkpoint="checkpoint")'),
        ("WindowedStream", "foreachBatch", 'start({"default": FunctionSink(f)}, checkpoint="checkpoint")'),
        ("WindowedStream", "outputMode", "nothing: each row of a window is appended once"),
        ("WindowedStream", "queryName", 'start(..., query_name="delays"), or arguments of the sink'),
        ("WindowedStream", "select", 'streams["default"].select, a DataFrame'),
    ],
)
def test_a_pyspark_name_on_a_query_or_stream_raises_an_error_with_the_name_to_use(kind, name, written):
    from windowing import spark

    made = object.__new__(getattr(spark, kind))
    with pytest.raises(AttributeError, match=re.escape(f"'{kind}' has no '{name}'; write {written}")):
        getattr(made, name)


def test_a_list_with_the_values_of_one_row_is_refused_and_a_tuple_suggested() -> None:
    two = Schema.parse("n long, s string")
    with pytest.raises(RowError, match=r"a list of values, \[1, 'a'\], .*; write one row as a tuple: \(1, 'a'\)"):
        list(rows_of([1, "a"], two, "default"))
    with pytest.raises(RowError, match="got the single value 2; give a tuple or a dict"):
        list(rows_of([(1, "a"), 2], two, "default"))
    with pytest.raises(RowError, match="got the single value 1; give a tuple or a dict"):
        list(rows_of([1, "a", "b"], two, "default"))
    assert list(rows_of(["a", "b"], ONE, "default")) == [("a",), ("b",)]


def test_a_missing_field_of_a_row_or_tuple_is_refused_and_similar_fields_are_suggested() -> None:
    row = record_of({"word": "moon"})
    with pytest.raises(AttributeError, match=r"'Row' has no 'n'; there are word$"):
        row.n  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no 'wrd'; did you mean 'word'\?$"):
        row.wrd  # noqa: B018
    tuple = Tuple(("moon", 1), Origin("split", 0, Fields("word", "at")))
    with pytest.raises(AttributeError, match=r"has no field 'wrd'; did you mean 'word'\?$"):
        tuple.wrd  # noqa: B018
    assert not hasattr(tuple, "_wrd")
    with pytest.raises(
        AttributeError, match=r"has no field 'get'; write tuple\[\"word\"\], or tuple\.as_dict\(\)\.get"
    ):
        tuple.get("n")


def test_a_missing_attribute_is_answered_once_in_a_traceback() -> None:
    """Python would add a suggestion of its own, which it looks for in `obj`."""
    with pytest.raises(AttributeError, match=r"has no 'newStream'; write new_stream\(\)$") as missing:
        TridentTopology("t").newStream  # type: ignore[attr-defined]  # noqa: B018
    assert (missing.value.name, missing.value.obj) == ("newStream", None)


@pytest.mark.parametrize(
    ("name", "said"), [("session_window", "sessions"), ("window", "@tumbling"), ("TaskContext", "TopologyContext")]
)
def test_an_import_by_the_name_of_another_library_is_answered_with_what_to_write(name: str, said: str) -> None:
    with pytest.raises(ImportError, match=f"windowing has no '{name}'; write .*{said}"):
        exec(f"from windowing import {name}")
    with pytest.raises(AttributeError, match=f"windowing has no '{name}'; write .*{said}"):
        getattr(windowing, name)


def test_sum_over_text_is_a_mistake_that_suggests_a_numeric_field() -> None:
    topology = TridentTopology("sums")
    rows = topology.new_stream("rows", InputSpout("word string, n long")).group_by("word")
    assert repr(rows) == "GroupedStream(Stream('step 1, spout rows'), 'word')"
    rows.persistent_aggregate(map_state(MemoryStore(), "sums"), "word", Sum(), "total long")
    with pytest.raises(
        TopologyError, match=r"Sum adds the numbers of one field, got word string; name a field of numbers"
    ):
        run_trident(topology, {"rows": [[("a", 1)]]}, clock=VirtualClock())


def test_a_storm_method_name_on_a_state_is_refused_and_the_name_here_suggested() -> None:
    state = map_state(MemoryStore(), "counts").make_state(0, 1)
    with pytest.raises(AttributeError, match=r"has no 'multiPut'; write multi_put\(\)"):
        state.multiPut([("a",)], [1])  # type: ignore[attr-defined]


def test_milliseconds_in_a_timestamp_field_are_refused_and_a_conversion_suggested() -> None:
    ends = Schema.parse("ends timestamp")
    with pytest.raises(
        RowError, match=r"got 5000, wanted a datetime .*, such as datetime\.fromtimestamp\(milliseconds / 1000"
    ):
        row_of((5000,), ends, "default")
    with pytest.raises(RowError, match=r"got '5', wanted a datetime of whole microseconds; give"):
        row_of(("5",), ends, "default")


def test_an_argument_in_another_spelling_is_refused_and_the_name_here_suggested() -> None:
    for given, wanted in (
        ("queryName", r"; did you mean 'query_name'\?$"),
        ("foo", "; there are checkpoint, discard, "),
    ):
        for start in (WindowedStream.start, submit, submit_trident):
            with pytest.raises(ConfigError, match=f"{start.__qualname__} has no argument '{given}'{wanted}"):
                start(**{given: "x"})  # type: ignore[call-arg, arg-type]
    calls: list[tuple[Any, str, str]] = [
        (windowed, "orderBy", "windowed has no argument 'orderBy'; did you mean 'order_by'"),
        (
            TopologyBuilder("t").set_bolt,
            "parallelism_hint",
            "TopologyBuilder.set_bolt has .*; did you mean 'parallelism'",
        ),
        (LocalCluster, "statePath", "LocalCluster has no argument 'statePath'; did you mean 'state_path'"),
        (TridentCluster, "statePath", "TridentCluster has no argument 'statePath'; did you mean 'state_path'"),
        (run_topology, "statePath", "run_topology has no argument 'statePath'; did you mean 'state_path'"),
        (run_trident, "Clock", "run_trident has no argument 'Clock'; did you mean 'clock'"),
        (run_local, "Drain", "run_local has no argument 'Drain'; did you mean 'drain'"),
    ]
    for call, argument, sentence in calls:
        with pytest.raises(ConfigError, match=sentence):
            call(**{argument: None})


@pytest.mark.parametrize(
    ("asked", "wanted"), [("collect", "rows"), ("toPandas", r"createDataFrame\(sink.rows, schema\)")]
)
def test_an_action_of_a_dataframe_on_a_memory_sink_is_refused_and_its_rows_suggested(asked: str, wanted: str) -> None:
    with pytest.raises(AttributeError, match=f"'MemorySink' has no '{asked}'; write .*{wanted}"):
        getattr(MemorySink(), asked)


def test_counts_of_no_windowed_bolt_and_a_watch_of_no_cluster_are_refused_by_name() -> None:
    @tumbling(count(1), output="n long")
    def ones(window: Any) -> int:
        return len(window)

    builder = TopologyBuilder("ones")
    builder.set_spout("rows", InputSpout("n long"))
    builder.set_bolt("ones", ones).global_grouping("rows")
    topology = builder.build()
    assert repr(builder) == "TopologyBuilder('ones')"
    result = run_topology(topology, {"rows": [[(1,)]]}, clock=VirtualClock())
    assert result.counts["ones"]["in"] == 1
    with pytest.raises(KeyError, match="'rows' is no windowed bolt of this run with counts, those are ones"):
        result.counts["rows"]
    with pytest.raises(
        ConfigError, match=r"Watch is given a LocalCluster, got Topology.*; write Watch\(LocalCluster\("
    ):
        Watch(topology)  # type: ignore[arg-type]
    with LocalCluster(topology, batches={"rows": []}, clock=VirtualClock()) as cluster:
        assert repr(cluster) == "LocalCluster('ones', 3 tasks, not started)"
    assert repr(cluster) == "LocalCluster('ones', 3 tasks, it was closed)"


class LackingState(MapState):
    """A map of which only one method is written."""

    def multi_get(self, keys: Any, as_of: int | None = None) -> list[Any]:
        return []


class LackingStates:
    kind = StateType.NON_TRANSACTIONAL

    def make_state(self, partition: int, partitions: int) -> LackingState:
        return LackingState()  # type: ignore[abstract]


def test_an_error_of_a_state_factory_names_the_state() -> None:
    topology = TridentTopology("asked")
    state = topology.new_static_state(LackingStates())
    topology.new_drpc_stream("count_of").state_query(state, "args", MapGet(), "n long")
    assert (repr(topology), repr(state)) == ("TridentTopology('asked')", "TridentState('state1')")
    for made in (lambda: TridentCluster(topology, clock=VirtualClock()), lambda: TridentRun(topology.build())):
        with pytest.raises(
            BoltError, match=r"the factory of state1 failed in make_state\(0, 1\): TypeError: .*test_misuse"
        ):
            made()


def test_a_config_asked_as_a_map_of_storm_is_refused_and_its_own_keys_suggested() -> None:
    config: Any = TopologyConfig.of({"app.host": "db"})
    for asked in (lambda: config["app.host"], lambda: "app.host" in config):
        with pytest.raises(
            ConfigError, match=r"a config is no mapping, .*; write config\.own\[.* and an attribute for a setting"
        ):
            asked()
    with pytest.raises(
        AttributeError, match=r"'TopologyConfig' has no 'get'; write config\.own for keys of your own; a setting"
    ):
        config.get("app.host")
    assert config.own["app.host"] == "db"


def test_run_topology_of_a_trident_topology_or_a_builder_is_refused_and_the_call_suggested() -> None:
    topology = TridentTopology("words")
    with pytest.raises(
        ConfigError, match=r"run_topology runs a Topology, got a TridentTopology; use run_trident\(topology"
    ):
        run_topology(topology, {})  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"got a TopologyBuilder; call its build\(\): run_topology\(builder.build\(\)\)"
    ):
        run_topology(TopologyBuilder("words"))  # type: ignore[arg-type]


def test_importing_storms_time_unit_is_refused_and_the_spans_here_suggested() -> None:
    with pytest.raises(
        ImportError, match=r"windowing has no 'TimeUnit'; write seconds\(10\), minutes\(5\) or millis\(100\)"
    ):
        exec("from windowing import TimeUnit")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Duration(seconds=5), r"Duration got an unexpected keyword argument 'seconds'; write .*seconds\(10\)"),
        (
            lambda: tumbling(lenght=seconds(1), output="n long"),
            "tumbling has no argument 'lenght'; did you mean 'length'",
        ),
        (
            lambda: tumbling(),
            "tumbling: missing a required argument: 'length'; its arguments are length, output=, direct=, name=, and options",
        ),
        (
            lambda: sliding(seconds(9), timestamp="at"),
            "sliding: missing a required argument: 'slide'; its arguments are length",
        ),
        (lambda: Count(), "Count missing 1 required positional argument: 'value'; write count"),
        (lambda: VirtualClock(start=5), "VirtualClock has no argument 'start'; did you mean 'start_ms'"),
        (
            lambda: VirtualClock().advance_time_secs(5),
            r"'VirtualClock' has no 'advance_time_secs'; write advance\(seconds",
        ),
        (
            lambda: LocalRun(keyed).advance(millis(1)),
            r"'LocalRun' has no 'advance'; write advance\(seconds\(1\)\) of a Virt",
        ),
        (
            lambda: run_local(keyed),
            "run_local: missing a required argument: 'batches'; its arguments are bolt, batches",
        ),
        (lambda: WindowedStream.start(object(), MemorySink()), "WindowedStream.start: missing .*'checkpoint'; its arg"),
        (lambda: submit(None, None, sources={}, sinks={}), "submit: missing a required argument: 'checkpoint'"),
        (
            lambda: submit(None, None, {}, {}, "checkpoint"),
            "too many .*; its arguments are topology, spark, sources=, sinks=",
        ),
        (lambda: ParquetSink("out").rows, r"'ParquetSink' has no 'rows'; write read\(spark\), a DataFrame"),
        (lambda: run_local(keyed, [[{"n": 1}]]), "bolt 'keyed': field 'k' is asked for, but a row has n"),
        (
            lambda: tumbling(count(2), gap=millis(5)),
            "option 'gap' of a window; write trigger= and eviction=, .*sessions",
        ),
        (
            lambda: tumbling(count(2), allowed_lateness=millis(5)),
            r"option 'allowed_lateness' .*; write lag=seconds\(5\)",
        ),
        (lambda: tumbling(count(2), group_by="k"), "option 'group_by' of a window; write key='user'$"),
        (lambda: tumbling(count(2), side_output="late"), "option 'side_output' of a window; write late_stream='late'$"),
        (
            lambda: tumbling(count(2), outputs="n long"),
            "option 'outputs' of a window; write output='user string, n long'",
        ),
        (lambda: tumbling(count(2), order_by="n"), r"option 'order_by' .*; write windowed\(bolt, rows, order_by="),
        (lambda: tumbling(count(2), checkpoint="c"), r"option 'checkpoint' .*; write .*start\(sinks, checkpoint="),
        (lambda: record_of({"k": 1}).get("n"), r"'Row' has no 'get'; write row\[\"word\"\], or row\._asdict\(\)\.get"),
        (lambda: TopologyContext("a").task_id, "'TopologyContext' has no 'task_id'; write context.task$"),
    ],
)
def test_a_call_as_another_library_has_it_is_answered_with_what_to_write(call: Any, said: str) -> None:
    with pytest.raises((ConfigError, AttributeError), match=said):
        call()


@pytest.mark.parametrize("given", ["2026-01-01", 1.5, None])
def test_the_error_about_an_unusable_timestamp_shows_its_value(given: Any) -> None:
    @tumbling(millis(5), timestamp="at", on_invalid="raise", output="n long")
    def strict(window: Any) -> Any:
        return len(window)

    with pytest.raises(InvalidTimestampError, match=f"timestamp 'at' is {re.escape(repr(given))}, wanted whole milli"):
        run_local(strict, [[{"at": 1}, {"at": given}]])


def test_an_updater_and_a_query_that_return_rows_are_refused() -> None:
    class Returns:
        def update_state(self, state: Any, tuples: Any, collector: Any) -> Any:
            return tuples

        def batch_retrieve(self, state: Any, tuples: Any) -> Any:
            return [1] * len(tuples)

        def execute(self, tuple: Any, result: Any, collector: Any) -> Any:
            return (result,)

    for write in (True, False):
        topology = TridentTopology("t")
        stream = topology.new_stream("s", InputSpout("word string"))
        if write:
            stream.partition_persist(map_state(MemoryStore(), "counts"), "word", Returns(), "n long")
        else:
            table = topology.new_static_state(map_state(MemoryStore(), "table"))
            stream.state_query(table, "word", Returns(), "n long").sink("out")
        with pytest.raises(BoltError, match="it takes a collector, yet it returned"):
            run_trident(topology, {"s": [[("to",)]]})


def test_a_misspelled_argument_is_answered_with_the_nearest() -> None:
    for call, said in (
        (lambda: bolt(columnr="arrow"), "bolt has no argument 'columnr'; did you mean 'columnar'?"),
        (lambda: spout(outputs="n long"), "spout has no argument 'outputs'; did you mean 'output'?"),
        (lambda: explain(None, timezone="UTC"), "explain has no argument 'timezone'; "),
        (lambda: map_state(None, "n", cach=3), "map_state has no argument 'cach'; did you mean 'cache'?"),
        (lambda: ParquetSink("out", mode="append"), "ParquetSink has no argument 'mode'; there are path"),
        (lambda: TridentTopology(Name="n"), "TridentTopology has no argument 'Name'; did you mean 'name'?"),
        (
            lambda: FixedBatchSpout("n long", batch_size=1),
            "FixedBatchSpout has no argument 'batch_size'; did you mean 'max",
        ),
        (
            lambda: FixedBatchSpout("n long", 1),
            "FixedBatchSpout: missing a required argument: 'rows'; its arguments are",
        ),
        (lambda: SqliteStore("n.db", timeout=1), "SqliteStore has no argument 'timeout'; did you mean 'timeout_s'?"),
        (lambda: SqliteRecordStore("n.db", timeout=1), "SqliteRecordStore has no argument 'timeout'; did you mean 'ti"),
        (
            lambda: PostgresStore("n", patience=1),
            "PostgresStore has no argument 'patience'; did you mean 'patience_s'?",
        ),
        (lambda: RedisStore("n", patience=1), "RedisStore has no argument 'patience'; did you mean 'patience_s'?"),
        (lambda: SqliteQueue("n", "n long", partition=2), "SqliteQueue has no argument 'partition'; did you mean 'pa"),
        (lambda: Spooled(None, path="n.db"), "Spooled has no argument 'path'; "),
        (
            lambda: RabbitQueue("n", "q", "n long", streams=True),
            "RabbitQueue has no argument 'streams'; did you mean 's",
        ),
        (
            lambda: RedisStream("n", "s", "n long", groups="g"),
            "RedisStream has no argument 'groups'; did you mean 'group'?",
        ),
        (
            lambda: KafkaTridentSpoutOpaque("n", "t", "n long", gap="skip"),
            "KafkaTridentSpoutOpaque has no argument 'gap'; ",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            call()  # type: ignore[no-untyped-call]
