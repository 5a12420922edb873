"""Names, argument orders and entry points of Storm are refused with the equivalent here."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import windowing
from tests.execution.chains import chained
from windowing import (
    BasicBolt,
    Bolt,
    Count,
    Duration,
    InputSpout,
    Spout,
    TopologyBuilder,
    Values,
    bolt,
    count,
    execution_plan,
    sliding,
    spout,
    tumbling,
    windowed_bolt,
)
from windowing.errors import BoltError, ConfigError, WindowingError
from windowing.local import (
    LocalCluster,
    LocalRun,
    TridentCluster,
    VirtualClock,
    explain,
    run_local,
    run_topology,
    run_trident,
    to_png,
    to_svg,
)
from windowing.schema.checks import StormNames, emit_advice, missing
from windowing.schema.rows import record_type
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.schema.types import Schema
from windowing.stores.states import MemoryStateStore
from windowing.topology.components import TopologyContext
from windowing.topology.decorators import declaration_of
from windowing.topology.plan import Topology, TopologyError
from windowing.topology.state import BufferedState
from windowing.trident import TridentTopology
from windowing.trident.processors import TridentOutput
from windowing.trident.spouts import FixedBatchSpout

FIELDS = "word string, n long"
STREAMS = {"default": FIELDS, "slow": FIELDS}
ROWS = {"in": [[("cow", 1)]]}
Use = Callable[[Any, Any], Any]


def topology_of(made: Any, name: str = "test") -> Topology:
    builder = TopologyBuilder(name)
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("bolt", made).shuffle_grouping("in")
    return builder.build()


def basic(use: Use) -> Topology:
    @bolt(output=STREAMS)
    def basic(tuple: Any, collector: Any) -> None:
        use(tuple, collector)

    return topology_of(basic)


def rich(use: Use) -> Topology:
    class Rich(Bolt):
        def execute(self, tuple: Any) -> None:
            use(tuple, self.collector)
            self.collector.ack(tuple)

    return topology_of(bolt(output=STREAMS)(Rich))


def windowed(use: Use) -> Topology:
    @tumbling(count(1), output=STREAMS)
    def windowed(window: Any, collector: Any) -> None:
        use(window, collector)

    return topology_of(windowed)


def source(use: Use) -> Topology:
    class Source(Spout):
        def next_tuple(self) -> None:
            use(None, self.collector)

    @bolt
    def reads(tuple: Any) -> None: ...

    builder = TopologyBuilder("test")
    builder.set_spout("in", spout(output=STREAMS)(Source))
    builder.set_bolt("bolt", reads).shuffle_grouping("in")
    return builder.build()


def in_a_cluster(topology: Topology) -> Any:
    batches = ROWS if topology.components["in"].declaration.target is None else None
    return run_topology(topology, batches, clock=VirtualClock())


def on_a_chain(topology: Topology) -> Any:
    """As on Spark, without Spark: its tasks and its collectors."""
    return chained(topology, ROWS)


def error_of(run: Callable[[Topology], Any], topology: Topology) -> str:
    with pytest.raises(WindowingError) as caught:
        run(topology)
    return str(caught.value)


RUNS = pytest.mark.parametrize("run", [in_a_cluster, on_a_chain])

# -- argument orders of emit -------------------------------------------------------------------------------------------


@RUNS
@pytest.mark.parametrize("make", [basic, rich, windowed])
def test_several_values_in_emit_are_refused_with_the_tuple_to_write(run: Any, make: Any) -> None:
    text = error_of(run, make(lambda tuple, collector: collector.emit("moon", 3)))
    assert "emit takes one row, got 2 values without a name: ('moon', 3); give one tuple: emit(('moon', 3))" in text
    assert "give one tuple: emit(('moon', 3, 4))" in error_of(run, make(lambda tuple, out: out.emit("moon", 3, 4)))


@RUNS
@pytest.mark.parametrize("make", [basic, rich, windowed])
def test_a_stream_as_first_argument_of_emit_is_refused_with_the_keyword_to_write(run: Any, make: Any) -> None:
    text = error_of(run, make(lambda tuple, collector: collector.emit("slow", Values("moon", 3))))
    assert "write emit(('moon', 3), stream='slow')" in text


@RUNS
def test_anchors_as_first_argument_of_emit_are_refused_with_the_keyword_to_write(run: Any) -> None:
    assert "; write emit(('moon', 3), anchors=tuple)" in error_of(
        run, rich(lambda tuple, out: out.emit(tuple, ("moon", 3)))
    )
    several = rich(lambda tuple, out: out.emit("slow", [tuple], ["moon", 3]))
    assert "; write emit(['moon', 3], anchors=tuple, stream='slow')" in error_of(run, several)
    direct = rich(lambda tuple, out: out.emit_direct(0, tuple, ["moon", 3]))
    assert "; write emit_direct(task, ['moon', 3], anchors=tuple)" in error_of(run, direct)


@RUNS
def test_an_emit_in_storms_order_on_an_undeclared_stream_says_both_what_to_write_and_what_to_declare(run: Any) -> None:
    undeclared = "stream 'other' is not declared, there are default, slow; add it to output={...}"
    values = Values("moon", 3)
    text = error_of(run, rich(lambda tuple, out: out.emit("other", tuple, values)))
    assert f"; write emit(('moon', 3), anchors=tuple, stream='other'); {undeclared}" in text
    text = error_of(run, basic(lambda tuple, out: out.emit("other", tuple, values)))
    assert f"; write emit(('moon', 3), stream='other') (it is anchored by itself); {undeclared}" in text
    text = error_of(run, windowed(lambda window, out: out.emit("other", window.get(), values)))
    assert f"; write emit(('moon', 3), stream='other') (it is anchored by itself); {undeclared}" in text
    text = error_of(run, rich(lambda tuple, out: out.emit("other", values)))
    assert f"; write emit(('moon', 3), stream='other'); {undeclared}" in text
    assert "; if it is a value of the row, write emit(('other', ('moon', 3)))" in text
    assert "give one tuple: emit(('other', [3]))" in error_of(run, rich(lambda tuple, out: out.emit("other", [3])))


@RUNS
def test_anchors_in_a_basic_bolt_are_refused_because_it_anchors_itself(run: Any) -> None:
    text = error_of(run, basic(lambda tuple, out: out.emit(tuple, ("moon", 3))))
    assert "; write emit(('moon', 3)) (it is anchored by itself)" in text


def test_a_positional_message_id_is_refused_with_the_keyword_to_write() -> None:
    text = error_of(in_a_cluster, source(lambda _, out: out.emit(("moon", 3), 7)))
    assert "; write emit(('moon', 3), message_id=7)" in text
    text = error_of(in_a_cluster, source(lambda _, out: out.emit("slow", ("moon", 3), 7)))
    assert "; write emit(('moon', 3), message_id=7, stream='slow')" in text
    assert "give one tuple: emit(('moon', 3))" in error_of(in_a_cluster, source(lambda _, out: out.emit("moon", 3)))


def test_collectors_of_trident_refuse_several_values_too() -> None:
    out = TridentOutput(Schema.parse(FIELDS))
    with pytest.raises(BoltError, match=r"give one tuple: emit\(\('moon', 3\)\)"):
        out.rows_of(lambda collector: collector.emit("moon", 3))


def test_a_positional_message_id_of_a_spout_in_trident_is_refused_with_the_keyword_to_write() -> None:
    class Single(Spout):
        def next_tuple(self) -> None:
            self.collector.emit(("moon", 3), 7)  # type: ignore[misc]

    topology = TridentTopology("single")
    topology.new_stream("in", spout(output=FIELDS)(Single)).sink("out")
    with pytest.raises(WindowingError, match=r"write emit\(\('moon', 3\), message_id=7\)"):
        run_trident(topology, clock=VirtualClock())


@RUNS
@pytest.mark.parametrize("make", [basic, windowed])
def test_an_undeclared_stream_that_may_be_a_value_is_refused_with_both_ways(run: Any, make: Any) -> None:
    text = error_of(run, make(lambda tuple, out: out.emit("moon", "late")))
    assert "stream 'late' is not declared, there are default, slow; add it to output={...}; if it is a value" in text
    assert "write emit(('moon', 'late'))" in text
    assert "if it is a value" not in error_of(run, make(lambda tuple, out: out.emit(("moon", 3), "late")))


def test_an_ambiguous_emit_of_a_row_and_a_value_is_refused_without_guessing() -> None:
    assert emit_advice((("moon",), 3), ["default"]).endswith(
        "; name what is no value of the row: emit(('moon',), stream=...)"
    )


def test_a_row_before_its_anchor_is_refused_with_the_name_of_the_argument() -> None:
    anchor = Tuple((1,), Origin("words", 0, Fields("n"), "default"))
    assert emit_advice((("moon", 3), anchor), ["default"], "anchors").endswith(
        "; write emit(('moon', 3), anchors=tuple)"
    )


def test_an_emit_anchored_to_the_rows_of_a_window_is_refused_with_the_row_alone_in_one_process_too() -> None:
    @tumbling(count(1), output="n long")
    def anchored(window: Any, out: Any) -> None:
        out.emit(window.get(), (1,))

    with pytest.raises(BoltError, match=r"write emit\(\(1,\)\) \(it is anchored by itself\)"):
        run_local(anchored, [[{"word": "to"}]])


# -- names in camelCase ------------------------------------------------------------------------------------------------


def message_of(asked: Callable[[], Any]) -> str:
    with pytest.raises(AttributeError) as caught:
        asked()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("getInteger", "tuple[0]"),
        ("getString", "tuple[0]"),
        ("getValue", "tuple[0]"),
        ("getStringByField", 'tuple["word"]'),
        ("getLongByField", 'tuple["word"]'),
        ("getValueByField", 'tuple["word"]'),
        ("get_value", "tuple[0]"),
        ("get_string_by_field", 'tuple["word"]'),
        ("getValues", "get_values()"),
        ("getFields", "get_fields()"),
        ("getMessageId", "get_message_id()"),
        ("getSourceComponent", "source_component"),
        ("getSourceStreamId", "source_stream"),
        ("getSourceTask", "source_task"),
        ("get_source_task", "source_task"),
        ("get_word", "word"),
        ("get_source_component", "source_component"),
        ("size", "len(tuple)"),
        ("contains", '"word" in tuple.get_fields()'),
        ("fieldIndex", 'tuple.get_fields().index("word")'),
    ],
)
def test_a_java_method_of_a_tuple_is_refused_with_the_python_way(name: str, write: str) -> None:
    tuple = Tuple(("cow", 1), Origin("in", 0, Fields("word", "n")))
    assert message_of(lambda: getattr(tuple, name)) == f"a tuple of in:default[0] has no field {name!r}; write {write}"


def test_a_java_method_of_fields_is_refused_with_the_python_way() -> None:
    fields = Fields("word", "n")
    for name, write in (
        ("size", "len(fields)"),
        ("get", "fields.names[0]"),
        ("fieldIndex", 'fields.index("word")'),
        ("toList", "list(fields)"),
    ):
        assert message_of(lambda name=name: getattr(fields, name)) == f"'Fields' has no {name!r}; write {write}"  # type: ignore[misc]
    assert copy.deepcopy(fields) == fields


def test_a_field_with_the_name_of_a_java_method_is_found_and_the_tuple_can_be_copied() -> None:
    tuple = Tuple((1, 2), Origin("in", 0, Fields("getInteger", "size")))
    assert (tuple.getInteger, tuple.size) == (1, 2)
    assert copy.copy(tuple).get_values() == (1, 2)
    assert message_of(lambda: tuple.wrod) == (
        "a tuple of in:default[0] has no field 'wrod'; there are getInteger, size"
    )


def test_a_java_method_of_a_trident_row_is_refused_with_the_python_way() -> None:
    row = record_type(("word", "n"))("cow", 1)
    assert message_of(lambda: row.getString) == "'Row' has no 'getString'; write row[0]"
    assert message_of(lambda: row.source_component).startswith(
        "'Row' has no 'source_component'; write a field of your own"
    )
    assert message_of(lambda: row.getLongByField) == "'Row' has no 'getLongByField'; write row[\"word\"]"
    assert message_of(lambda: row.get_long_by_field) == "'Row' has no 'get_long_by_field'; write row[\"word\"]"
    assert message_of(lambda: row.getValues) == "'Row' has no 'getValues'; write tuple(row)"
    odd = record_type(("_id", "class"))(1, 2)
    assert message_of(lambda: odd._id) == "'Row' has no '_id'; write row['_id']"
    assert message_of(lambda: getattr(odd, "class")) == "'Row' has no 'class'; write row['class']"
    assert copy.deepcopy(row) == row
    assert not hasattr(row, "column_names")


def test_a_java_method_of_a_window_is_refused_with_the_python_name() -> None:
    found: list[str] = []

    @tumbling(count(1))
    def asks(window: Any) -> None:
        for name in ("getNew", "getExpired", "getStartTimestamp", "getIter", "gett"):
            found.append(message_of(lambda name=name: getattr(window, name)))  # type: ignore[misc]

    LocalRun(asks).feed([{"word": "cow"}])
    assert [text.partition("; ")[2] for text in found] == [
        "write get_new()",
        "write get_expired()",
        "write start_timestamp",
        "write iter(window)",
        "did you mean 'get'?",
    ]


@RUNS
def test_a_java_method_of_a_collector_is_refused_with_the_python_name(run: Any) -> None:
    assert "has no 'emitDirect'; write emit_direct()" in error_of(run, basic(lambda tuple, out: out.emitDirect))
    assert "has no 'emitDirect'; write emit_direct()" in error_of(run, rich(lambda tuple, out: out.emitDirect))
    assert "has no 'resetTimeout'; write reset_timeout()" in error_of(run, rich(lambda tuple, out: out.resetTimeout))
    assert "has no 'reportError'; write report_error()" in error_of(run, rich(lambda tuple, out: out.reportError))


def test_a_java_method_of_a_spout_collector_or_context_is_refused_with_the_python_name() -> None:
    assert "has no 'emitDirect'; write emit_direct()" in error_of(in_a_cluster, source(lambda _, out: out.emitDirect))
    context = TopologyContext("count", 1, 4)
    assert message_of(lambda: context.getThisTaskIndex).endswith("; write context.task_index")
    assert message_of(lambda: context.getThisComponentId).endswith("; write context.component")
    assert context._replace(task_index=2).task == 2
    for name in (
        *("getThisOutputFieldsForStreams", "getComponentCommon", "getTaskToComponent", "getCodeDir", "getPIDDir"),
        *("getNodeToHost", "registerMetricSet", "getRegisteredMetricByName", "getHooks"),
    ):
        assert f"has no {name!r}; write " in message_of(lambda name=name: getattr(context, name))  # type: ignore[misc]


def test_a_java_method_of_a_builder_or_stream_is_refused_with_the_python_name() -> None:
    builder = TopologyBuilder("test")
    spout = builder.set_spout("in", InputSpout(FIELDS))
    topology = TridentTopology("test")
    stream = topology.new_stream("in", InputSpout(FIELDS))
    grouped = stream.group_by("word")
    state = topology.new_static_state(None)
    for owner, name, write in [
        (builder, "setBolt", "set_bolt()"),
        (builder, "createTopology", "build()"),
        (spout, "shuffleGrouping", "shuffle_grouping()"),
        (spout, "setNumTasks", "set_num_tasks()"),
        (topology, "newStream", "new_stream()"),
        (topology, "newDRPCStream", "new_drpc_stream()"),
        (stream, "flatMap", "flat_map()"),
        (stream, "groupBy", "group_by()"),
        (stream, "parallelismHint", "parallelism_hint()"),
        (grouped, "persistentAggregate", "persistent_aggregate()"),
        (grouped.chained_agg(), "chainEnd", "chain_end()"),
        (state, "newValuesStream", "new_values_stream()"),
    ]:
        assert message_of(lambda owner=owner, name=name: getattr(owner, name)).endswith(f"; write {write}")  # type: ignore[misc]
    assert message_of(lambda: stream.eachh).endswith("; did you mean 'each'?")


def test_a_missing_name_with_an_underscore_gets_no_suggestion() -> None:
    assert str(missing(StormNames, "_repr_html_")) == "'StormNames' has no '_repr_html_'"


# -- decorators without parentheses ------------------------------------------------------------------------------------


def test_a_bare_bolt_decorator_declares_a_bolt_without_output() -> None:
    seen: list[Any] = []

    @bolt
    def keeps(tuple: Any) -> None:
        seen.append(tuple["word"])

    @bolt
    class Keeps(Bolt):
        def execute(self, tuple: Any) -> None:
            seen.append(tuple["n"])
            self.collector.ack(tuple)

    for made in (keeps, Keeps):
        assert not declaration_of(made).outputs
        assert in_a_cluster(topology_of(made)).acked == 1
    assert seen == ["cow", 1]


def test_a_bare_bolt_that_returns_rows_is_refused_with_output_to_add() -> None:
    @bolt
    def returns(tuple: Any) -> Any:
        return tuple["word"]

    assert "add output=" in error_of(in_a_cluster, topology_of(returns))


def test_a_decorator_without_its_arguments_is_refused_with_their_names() -> None:
    def made() -> None: ...

    for decorate, wanted in [
        (lambda: spout(made), r"@spout on '.*made' does not name the fields of its rows; write @spout\(output="),
        (lambda: spout(), r"@spout does not name the fields"),
        (
            lambda: spout("word string"),
            r"@spout of 'word string' does not name the fields of its rows; write @spout\(output=",
        ),
        (lambda: bolt("word string"), r"@bolt got 'word string' without a name; write @bolt\(output="),
        (lambda: windowed_bolt(made), r"write @windowed_bolt\(...\) with a length"),  # type: ignore[arg-type]
        (lambda: tumbling(made), r"write @tumbling\(...\) with a length"),  # type: ignore[arg-type]
        (lambda: sliding(made, count(1)), r"write @sliding\(...\) with a length"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ConfigError, match=wanted):
            decorate()  # type: ignore[no-untyped-call]


def test_a_bolt_that_is_acked_by_itself_says_so_when_it_acks() -> None:
    for method, end in [
        ("ack", "write nothing: the tuple is acked when execute returns; a subclass of Bolt acks by itself"),
        ("fail", "write raise FailedException(...)"),
        ("report_error", "write raise ReportedFailedException(...)"),
    ]:
        topology = basic(lambda tuple, collector, method=method: getattr(collector, method)(tuple))  # type: ignore[misc]
        with pytest.raises(BoltError) as caught, LocalCluster(topology, batches=ROWS) as cluster:
            cluster.run()
        assert end in str(caught.value)


# -- entry points, settings, names -------------------------------------------------------------------------------------


def test_a_cluster_without_its_topology_is_refused_with_the_call_to_write() -> None:
    topology = basic(lambda tuple, collector: None)
    for given, wanted in [
        ((), "got None; give builder.build()"),
        (("word-count",), "got 'word-count'; give builder.build()"),
    ]:
        with pytest.raises(ConfigError, match="LocalCluster runs a Topology") as caught:
            LocalCluster(*given)  # type: ignore[arg-type]
        assert wanted in str(caught.value)
    with pytest.raises(
        ConfigError, match=r"got a TopologyBuilder; call its build\(\): LocalCluster\(builder.build\(\)\)"
    ):
        LocalCluster(TopologyBuilder("test"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"got a TridentTopology; use TridentCluster\(topology, ...\)"):
        LocalCluster(TridentTopology("test"))  # type: ignore[arg-type]
    plan = TridentTopology("test")
    plan.new_stream("words", InputSpout("word string")).sink("words")
    with pytest.raises(ConfigError, match=r"got a TridentPlan; use TridentCluster\(topology, ...\)"):
        LocalCluster(plan.build())  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="TridentCluster runs a TridentTopology or its plan, its first argument, got None"
    ):
        TridentCluster()
    for bolts in (topology, TopologyBuilder("test")):
        with pytest.raises(ConfigError, match=r"got one of bolts; use LocalCluster\(builder.build\(\), ...\)"):
            TridentCluster(bolts)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"got <function .*; add it to a TopologyBuilder .* runs with run_local\(bolt, batches\)"
    ):
        LocalCluster(chained)  # type: ignore[arg-type]
    with LocalCluster(topology, batches=ROWS) as cluster:
        for name in ("submit_topology", "submitTopology"):
            text = message_of(lambda name=name: getattr(cluster, name))  # type: ignore[misc]
            assert (
                "write with LocalCluster(topology) as cluster: cluster.run(). Name and settings are TopologyBuilder"
                in text
            )
        for name in ("kill_topology", "killTopology", "shutdown"):
            text = message_of(lambda name=name: getattr(cluster, name))  # type: ignore[misc]
            assert text.endswith("write close(), or leave the with block")


def test_settings_without_effect_are_accepted_with_one_warning() -> None:
    def configured() -> TopologyBuilder:
        builder = TopologyBuilder("word-count").configure({"topology.workers": 3, "topology.stats.sample.rate": 1.0})
        builder.set_spout("in", InputSpout(FIELDS))
        builder.set_bolt("bolt", bolt(lambda tuple: None)).shuffle_grouping("in").configure(
            {"topology.component.cpu.pcore.percent": 9}
        )
        return builder

    with pytest.warns(UserWarning, match="topology 'word-count': settings without effect: ") as caught:
        topology = configured().build()
    assert len(caught) == 1
    for error_of in (
        "topology.workers (LocalCluster is one process; ",
        "topology.stats.sample.rate (",
        "topology.component.cpu.",
    ):
        assert error_of in str(caught[0].message)
    assert topology.config.own == {"topology.workers": 3, "topology.stats.sample.rate": 1.0}
    trident = TridentTopology("word-count").configure({"topology.workers": 3})
    trident.new_stream("in", FixedBatchSpout("n long", 1, [(1,)])).sink("out")
    with pytest.warns(UserWarning, match=r"topology\.workers \(LocalCluster is one process"):
        trident.build()


def test_settings_with_an_effect_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        basic(lambda tuple, collector: None)


def test_topologies_and_components_may_have_names_as_in_storms_examples(tmp_path: Any) -> None:
    @bolt(output=FIELDS)
    class Counts:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> Any:
            self.state.put("n", self.state.get("n", 0) + tuple["n"])
            return tuple["word"], self.state.get("n")

    @tumbling(count(2), max_events_in_memory=1_000, output="n long")
    def pairs(window: Any) -> Any:
        return sum(row["n"] for row in window)

    builder = TopologyBuilder("word-count.v2")
    builder.set_spout("sentence-spout", InputSpout(FIELDS))
    builder.set_bolt("count.bolt-1", Counts).shuffle_grouping("sentence-spout")
    builder.set_bolt("pairs-1", pairs).shuffle_grouping("count.bolt-1")
    topology = builder.build()
    rows = [[("cow", 1), ("cow", 2)], [("cow", 3), ("cow", 4)]]
    for fed, wanted in ((rows[:1], [(4,)]), (rows[1:], [(16,)])):
        found = run_topology(
            topology, {"sentence-spout": fed}, clock=VirtualClock(), state_path=tmp_path / "states.db", drain=False
        )
        assert found["pairs-1"] == wanted
    assert "c_sentence_2d_spout" in topology.to_mermaid()
    assert "c_count_2e_bolt_2d_1" in topology.to_mermaid()


def test_a_trident_topology_may_have_names_as_in_storms_examples(tmp_path: Any) -> None:
    topology = TridentTopology("word-count.v2")
    words = topology.new_stream("sentence-spout.1", FixedBatchSpout("n long", 1, [(1,), (2,)])).name("each-one")
    words.filter(lambda row: True).tumbling_window(count(2), "n", TotalOf(), "n long").sink("out")
    assert run_trident(topology, clock=VirtualClock(), state_path=tmp_path / "records.db")["out"] == [(3,)]
    assert "c_spout_sentence_2d_spout_2e_1" in topology.build().to_mermaid()


class TotalOf:
    def init(self) -> int:
        return 0

    def reduce(self, value: int, row: Any) -> int:
        return value + int(row[0])


@pytest.mark.parametrize("name", ["1st", "a b", "a/b", "-a", ".a", "", "x" * 64, 3, "ä"])
def test_an_invalid_name_is_refused_with_a_valid_one(name: Any) -> None:
    builder = TopologyBuilder(name)
    builder.set_spout("in", InputSpout(FIELDS))
    with pytest.raises(
        TopologyError, match=r"name of letters, digits, '_', '-' and '\.' .*write for example '[A-Za-z]"
    ):
        builder.build()


def test_a_component_named_like_a_stream_of_another_is_refused() -> None:
    builder = TopologyBuilder("test")
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("in.slow", bolt(lambda tuple: None)).shuffle_grouping("in")
    with pytest.raises(TopologyError, match=r"bolt 'in\.slow' is called like a stream of 'in'"):
        builder.build()


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("BaseWindowedBolt", "@sliding"),
        ("BaseRichBolt", "Bolt"),
        ("BaseBasicBolt", "BasicBolt"),
        ("IRichSpout", "Spout"),
        ("LocalCluster", "from windowing.local import LocalCluster"),
        ("Config", ".configure("),
    ],
)
def test_importing_a_class_of_storm_is_refused_with_the_equivalent(name: str, write: str) -> None:
    with pytest.raises(ImportError, match=f"windowing has no '{name}'; write .*{re.escape(write)}"):
        exec(f"from windowing import {name}")
    assert not hasattr(windowing, "another")


@pytest.mark.parametrize(("measure", "name"), [(Duration, "seconds"), (Duration, "of"), (Count, "of")])
def test_a_measure_in_storms_spelling_is_refused_with_the_equivalent(measure: type, name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"'{measure.__name__}' has no '{name}'; write count\(100\), seconds\(10\)"
    ):
        getattr(measure, name)


def test_what_is_no_plan_is_not_drawn_and_the_error_says_how_to_draw_it() -> None:
    @tumbling(count(1), output="n long")
    def one(window: Any) -> Any:
        return len(window)

    for draw in (to_svg, to_png):
        with pytest.raises(
            ConfigError, match=rf"{draw.__name__} draws a Topology or an .*; write {draw.__name__}\(execution_plan\("
        ):
            draw(one)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"got a TimeLine; write its \.svg\(\)"):
        to_svg(explain(one, [{"n": 1}]))  # type: ignore[arg-type]


def test_a_window_and_a_result_asked_as_in_pandas_are_answered_with_what_to_write() -> None:
    asked = []

    @tumbling(count(1), output="n long")
    def one(window: Any) -> Any:
        assert (window[0].n, list(window[-1:]), window["n"]) == (1, list(window), [1])
        for name in ("size", "getIterator", "to_pandas", "rows"):
            with pytest.raises(AttributeError) as answer:
                getattr(window, name)
            asked.append(str(answer.value).partition("; ")[2])
        return 1

    result = run_local(one, [[{"n": 1}]])
    assert asked[:2] == ["write len(window)", "write iter(window)"]
    assert asked[3] == "write get()"
    assert asked[2].startswith('write columnar="arrow" in the bolt')
    with pytest.raises(AttributeError, match=r"'LocalResult' has no 'default'; write rows, or result\[\"default\"\]"):
        result.default  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        *("ShellBolt", "JoinBolt", "BaseTaskHook", "CountMetric", "CustomStreamGrouping", "PartialKeyGrouping"),
        *("LinearDRPCTopologyBuilder", "DRPCSpout", "DRPCClient", "StreamBuilder", "ConfigurableTopology"),
        *(
            "TimeCacheMap",
            "TestWordSpout",
            "MockedSources",
            "TransactionalTopologyBuilder",
            "JdbcInsertBolt",
            "KafkaBolt",
        ),
        *(
            "Flux",
            "BaseTickTupleAwareRichBolt",
            "GlobalStreamId",
            "InvalidTopologyException",
            "KafkaSpoutConfig",
            "RecordTranslator",
        ),
        *("DefaultEvictionContext", "TriggerHandler", "State", "Window", "MessageId", "BoltDeclarer", "KinesisSpout"),
        *("RedisLookupBolt", "WindowedOutputCollector", "InMemoryKeyValueState", "EsIndexBolt"),
        *("RedisKeyValueStateProvider", "WorkerTopologyContext", "CheckpointSpout", "BaseWindowConfig"),
        *("CombinerAggregator", "ReducerAggregator", "StateFactory", "StateUpdater", "QueryFunction", "Debug"),
    ],
)
def test_a_class_of_storm_without_a_counterpart_is_answered_with_what_takes_its_place(name: str) -> None:
    with pytest.raises(ImportError, match=f"windowing has no '{name}'; write "):
        exec(f"from windowing import {name}")


def test_a_getter_of_storm_in_snake_case_is_answered_like_the_one_in_camel_case() -> None:
    row = Tuple((1,), Origin("words", 0, Fields("n"), "default"))
    with pytest.raises(AttributeError, match="has no field 'get_source_stream_id'; write source_stream"):
        row.get_source_stream_id  # noqa: B018 - the access itself is the call
    with pytest.raises(AttributeError, match=r"has no field 'values'; write get_values\(\)"):  # as in streamparse
        row.values  # noqa: B018


@pytest.mark.parametrize(
    ("call", "write"),
    [
        (
            lambda row, collector: collector.emit("moon", anchors=row),
            "leave it out: the rows are anchored by themselves",
        ),
        (lambda row, collector: collector.emit("moon", streamId="slow"), "write stream='slow'"),
        (lambda row, collector: collector.emit("moon", message_id=3), "emit takes one row, and stream=... ("),
        (lambda row, collector: setattr(row, "word", "moon"), "a tuple cannot be changed: emit a new row"),
    ],
)
def test_a_wrong_keyword_of_emit_and_a_change_of_a_tuple_are_answered_with_what_to_write(call: Any, write: str) -> None:
    with pytest.raises(BoltError, match=re.escape(write)):
        run_topology(basic(call), ROWS)


def test_a_wrong_keyword_of_the_emit_of_a_bolt_or_a_spout_is_answered_with_the_right_one() -> None:
    def fails(keyword: str, value: Any) -> str:
        @bolt(output="word string")
        class Emits(Bolt):
            def prepare(self, context: Any, collector: Any) -> None:
                self.collector = collector

            def execute(self, row: Any) -> None:
                self.collector.emit("moon", **{keyword: value})

        builder = TopologyBuilder("words")
        builder.set_spout("words", InputSpout("word string"))
        builder.set_bolt("emits", Emits).shuffle_grouping("words")
        with pytest.raises(BoltError) as caught:
            run_topology(builder.build(), {"words": [[("cow",)]]})
        return str(caught.value)

    assert "; write anchors=tuple (" in fails("anchor", None)
    assert "; write stream='slow' (" in fails("stream_id", "slow")
    assert "; emit takes one row, and anchors=..., stream=... (" in fails("message_id", 3)
    assert "anchored to is a tuple that execute was handed, got None" in fails("anchors", None)

    @spout(output="word string")
    class Words(Spout):
        def open(self, context: Any, collector: Any) -> None:
            self.collector = collector

        def next_tuple(self) -> None:
            self.collector.emit("moon", messageId=3)

    builder = TopologyBuilder("words")
    builder.set_spout("words", Words)
    with pytest.raises(BoltError, match=r"'messageId'.*; emit takes one row, and message_id=\.\.\., stream=\.\.\. \("):
        run_topology(builder.build())


def test_settings_metrics_and_hooks_in_storms_spelling_are_answered_with_what_to_write() -> None:
    for name, write in (
        ("setMaxSpoutPending", "configure(max_spout_pending=1000)"),
        ("set_debug", "configure(debug=True)"),
        ("setNumWorkers", "configure({'topology.workers': 3}), which has no effect"),
        ("setMessageTimeoutSecs", "configure(message_timeout=seconds(30))"),
        ("put", "configure({'topology.max.spout.pending': 1000})"),
        ("registerMetricsConsumer", "serve_prometheus(ClusterMetrics(cluster).now)"),
    ):
        with pytest.raises(AttributeError, match=re.escape(f"has no '{name}'; write {write}")):
            getattr(TopologyBuilder("words"), name)
    for name in ("registerMetric", "register_counter", "addTaskHook"):
        with pytest.raises(AttributeError, match=rf"'TopologyContext' has no '{name}'; write .* of your own"):
            getattr(TopologyContext("words"), name)
    for name, write in (
        ("getThisSources", "what the component has to know of its topology in its constructor"),
        ("get_component_output_fields", "what the component has to know of its topology in its constructor"),
        ("getTaskData", "an attribute of your own in prepare or open"),
        ("getThisWorkerPort", "context.task; there are no workers of Storm"),
        ("getComponentId", "context.component for the own component, tuple.source_component for that of a tuple"),
    ):
        with pytest.raises(AttributeError, match=f"'TopologyContext' has no '{name}'; write {write}"):
            getattr(TopologyContext("words"), name)
    with pytest.raises(
        AttributeError, match="there are component, component_tasks, config, task, task_ids, task_index"
    ):
        TopologyContext("words").zzz  # noqa: B018 - the access itself is the call
    with pytest.raises(AttributeError, match=r"has no 'getOrDefault'; write get\(key, default\)"):
        BufferedState(MemoryStateStore("words")).getOrDefault  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no 'remove'; write delete\(key\)"):
        BufferedState(MemoryStateStore("words")).remove  # type: ignore[attr-defined]  # noqa: B018
    builder = TopologyBuilder("words").configure({"TOPOLOGY_MESSAGE_TIMEOUT_SECS": 30})
    with pytest.raises(
        TopologyError,
        match=r"unknown key 'TOPOLOGY_MESSAGE_TIMEOUT_SECS'; did you mean 'topology.message.timeout.secs'",
    ):
        builder.build()


_WITHOUT_EFFECT = """
    topology.tuple.serializer topology.disable.loadaware topology.disable.loadaware.messaging
    topology.upstream.feedback.enable topology.localityaware.higher.bound
    topology.testing.always.try.serialize topology.backpressure.enable topology.users topology.readonly.users
    topology.readonly.groups topology.version topology.multilang.serializer topology.workers
    topology.component.resources.map topology.acker.resources.onheap.memory.mb topology.acker.cpu.pcore.percent
    topology.metrics.consumer.cpu.pcore.percent topology.enable.v2.metrics.tick topology.worker.max.heap.size.mb
    topology.scheduler.strategy topology.ras.constraints topology.ras.one.executor.per.worker topology.spread.components
    topology.event.logger.register topology.eventlogger.executors topology.serialized.message.size.metrics
    topology.state.synchronization.timeout.secs topology.stats.sample.rate topology.builtin.metrics.bucket.size.secs
    topology.fall.back.on.java.serialization topology.classpath.beginning topology.environment
    topology.executor.receive.buffer.size topology.transfer.batch.size topology.producer.batch.size
    topology.batch.flush.interval.millis topology.flush.tuple.freq.millis topology.error.throttle.interval.secs
    topology.max.error.report.per.interval topology.submitter.user topology.auto-credentials
    topology.shellbolt.max.pending topology.subprocess.timeout.secs topology.logging.sensitivity topology.logging.config
    topology.priority topology.isolate.machines topology.spout.wait.park.microsec topology.bolt.wait.strategy
    topology.min.replication.count topology.max.replication.wait.time.sec topology.spout.recvq.skips
    topology.v2.metrics.tick.interval.seconds topology.enable.send.iconnection.metrics
    topology.trident.windowing.cache.tuple.limit topology.bolts.outgoing.overflow.buffer.enable
    storm.zookeeper.servers nimbus.seeds supervisor.slots.ports ui.port drpc.servers worker.childopts logviewer.port
    pacemaker.host java.library.path
"""
_REFUSED = """
    topology.tasks topology.name topology.kryo.register topology.skip.missing.kryo.registrations
    topology.state.kryo.register topology.state.provider.config topology.blobstore.map topology.auto.task.hooks
    topology.transactional.id topology.bolts.window.length.count
"""


def test_each_setting_of_a_storm_topology_is_accepted_without_effect_or_refused_with_its_reason() -> None:
    accepted, refused = _WITHOUT_EFFECT.split(), _REFUSED.split()
    builder = TopologyBuilder("words").configure(dict.fromkeys(accepted, "1"))
    builder.set_spout("words", InputSpout("word string"))
    with pytest.warns(UserWarning, match="settings without effect: ") as caught:
        builder.build()
    (told,) = [str(each.message) for each in caught]
    assert all(f"{name} (" in told for name in accepted)
    builder.configure(dict.fromkeys(refused, "1"))
    with pytest.raises(TopologyError) as problems:
        builder.build()
    assert [problem.partition(" has no meaning here: ")[0] for problem in problems.value.problems] == refused


def test_settings_resources_and_windows_on_a_component_are_answered_with_where_they_are_set() -> None:
    builder = TopologyBuilder("words")
    declarer = builder.set_spout("words", InputSpout("word string"))
    for name, write in (
        ("setDebug", r"configure\(debug=True\)"),
        ("set_max_spout_pending", r"configure\(max_spout_pending=1000\)"),
        ("setMaxTaskParallelism", r"configure\(max_task_parallelism=4\) of the TopologyBuilder"),
        ("addConfigurations", r"configure\(\{'topology.debug': True\}\)"),
        ("setCPULoad", "nothing: components have no resources of their own"),
        ("set_memory_load", "nothing: components have no resources of their own"),
        ("withTumblingWindow", "the window above the bolt: @sliding"),
        ("withTimestampExtractor", "the window above the bolt: @sliding"),
        ("withPersistence", "the window above the bolt: @sliding"),
    ):
        with pytest.raises(AttributeError, match=f"'Declarer' has no '{name}'; write {write}"):
            getattr(declarer, name)
    stream = TridentTopology("words").new_stream("words", InputSpout("word string"))
    for name, write in (
        ("min", r"min_by\('amount'\), or min_by\(None, key=...\)"),
        ("max", r"max_by\('amount'\), or max_by\(None, key=...\)"),
        ("multi_reduce", "join"),
        ("late_stream", r"windows = stream.window\(...\), and windows.late_stream"),
        ("setCPULoad", "nothing: steps have no resources of their own"),
    ):
        with pytest.raises(AttributeError, match=f"'Stream' has no '{name}'; write {write}"):
            getattr(stream, name)
    with pytest.raises(AttributeError, match="'TridentTopology' has no 'multiReduce'; write join"):
        TridentTopology("words").multiReduce  # type: ignore[attr-defined]  # noqa: B018 - as in Storm, where it is one of the topology


def test_the_rows_of_a_result_are_named_where_the_other_kind_of_run_has_them() -> None:
    topology = TridentTopology("words")
    topology.new_stream("words", InputSpout("word string")).sink("out")
    with pytest.raises(AttributeError, match=r"'TridentResult' has no 'outputs'; write sinks, or result\[\"counts\"\]"):
        run_trident(topology, {"words": [[("cow",)]]}).outputs  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'ClusterResult' has no 'sinks'; write outputs, or result\[\"count\"\]"):
        run_topology(basic(lambda tuple, collector: None), ROWS).sinks  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        *("IBackingMap", "ReadOnlyState", "FeederBatchSpout", "HBaseMapState", "FirstNSorted", "HdfsState"),
        *("JoinOutFieldsMode", "MultiReducer", "Assembly", "TridentOperationContext", "CachedMap", "FirstNSortedAgg"),
        *("HBaseState", "MemoryTransactionalSpout", "RedisKeyValueState", "WindowLifecycleListener", "RMQSpout"),
        *("OpaqueValue", "InputSpout", "map_state", "run_trident"),
    ],
)
def test_a_class_of_trident_without_a_counterpart_is_answered_with_what_takes_its_place(name: str) -> None:
    with pytest.raises(ImportError, match=rf"windowing\.trident has no '{name}'; write "):
        exec(f"from windowing.trident import {name}")


def test_a_builder_in_place_of_its_topology_and_an_average_are_answered_with_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"has no 'boxes'; write build\(\), which returns what to_svg"):
        to_svg(TopologyBuilder("words"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"got a TopologyBuilder; call its build\(\): execution_plan\(builder\.build"):
        execution_plan(TopologyBuilder("words"))
    with pytest.raises(AttributeError, match=r"aggregate has no 'avg'; write mean\(field\)"):
        windowing.aggregate.avg("n")
    with pytest.raises(AttributeError, match=r"aggregate has no 'last'; write window\.get\(\)\[-1\]"):
        windowing.aggregate.last("n")
    with pytest.raises(AttributeError, match=r"aggregate has no 'median'; there are count, .* as a fold\("):
        windowing.aggregate.median("n")


def test_a_run_of_one_bolt_that_shall_be_saved_names_what_can_be() -> None:
    @tumbling(count(1), output="n long")
    def one(window: Any) -> Any:
        return 1

    for name in ("snapshot", "restore"):
        with pytest.raises(
            AttributeError, match=f"'LocalRun' has no '{name}'; write LocalCluster.* WindowedBoltExecutor"
        ):
            getattr(LocalRun(one), name)


def test_a_list_for_an_array_field_and_a_dict_of_streams_are_answered_with_what_to_return() -> None:
    @tumbling(count(1), output="words array<string>")
    def words(window: Any) -> Any:
        return ["to", "be"]

    with pytest.raises(BoltError, match=r"got 'to', wanted a list; put a value .* into a tuple: \(value,\)"):
        run_local(words, [[{"word": "to"}]])

    @tumbling(count(1), output={"default": "n long", "slow": "n long"})
    def both(window: Any) -> Any:
        return {"default": [(1,)], "slow": [(2,)]}

    with pytest.raises(
        BoltError, match=r"to emit rows to several streams, take a collector: emit\(row, stream='slow'\)"
    ):
        run_local(both, [[{"word": "to"}]])


@pytest.mark.parametrize(
    ("mark", "base", "name", "write"),
    [
        (spout(output=FIELDS), Spout, "nextTuple", "next_tuple"),
        (bolt(output=FIELDS), BasicBolt, "getComponentConfiguration", "get_component_configuration"),
        (bolt(output=FIELDS), Bolt, "declareOutputFields", "output=.* of the decorator"),
        (bolt(output=FIELDS), object, "initState", "init_state"),
        (tumbling(count(1)), object, "preCommit", "pre_commit"),
        (tumbling(count(1)), object, "getTimestampExtractor", 'timestamp="field", .* over the clock'),
        (
            tumbling(count(1)),
            object,
            "withWindow",
            r"the window as arguments .*@windowed_bolt\(length=\.\.\.\), which slides by each",
        ),
        (tumbling(count(1)), object, "withLateTupleStream", "lag=, .*late_stream= or message_id= as an argument"),
        (tumbling(count(1)), object, "withTimestampField", 'timestamp="field", .* over the clock'),
        (tumbling(count(1)), object, "maxEventsInMemory", "max_events_in_memory=100_000 as an argument"),
        (bolt(output=FIELDS), Bolt, "declare_output_fields", "output=.* of the decorator"),
        (bolt(output=FIELDS), BasicBolt, "clean_up", "cleanup, or begin its name with _"),
        (tumbling(count(1)), object, "pre_comit", "pre_commit, or begin its name with _"),
        (spout(output=FIELDS), Spout, "giveup", "give_up, or begin its name with _"),
    ],
)
def test_a_method_with_storms_name_that_is_never_called_is_refused(
    mark: Any, base: type[Any], name: str, write: str
) -> None:
    methods = {name: lambda self, *given: None, "execute": lambda self, tuple: None, "next_tuple": lambda self: None}
    with pytest.raises(ConfigError, match=f"class '.*Written' has {name}, which nothing calls; write {write}"):
        mark(type("Written", (base,), methods))


def test_a_helper_with_nearly_the_name_of_a_hook_is_accepted_beside_the_hook() -> None:
    @spout(output=FIELDS)
    class Numbers:
        def next_tuple(self) -> Any:
            return next(iter(self.next_tuples()), None)

        def next_tuples(self) -> Any:
            return [1]

    assert declaration_of(Numbers)


def test_a_field_of_a_tick_is_refused_with_the_test_for_a_tick() -> None:
    tick = Tuple((5.0,), Origin("__system", -1, Fields("secs"), "__tick"))
    assert (tick["secs"], tick.secs) == (5.0, 5.0)
    for use in (lambda: tick["word"], lambda: tick.word):
        with pytest.raises((ConfigError, AttributeError), match=r"a tick has no field 'word'; test is_tick\(tuple\)"):
            use()


def test_a_subclass_of_a_users_own_answers_too_and_may_have_a_base_with_arguments() -> None:
    class Started:
        start_ms: int

        def __init_subclass__(cls, start_ms: int, **given: Any) -> None:
            super().__init_subclass__(**given)
            cls.start_ms = start_ms

    class Own(VirtualClock, Started, start_ms=3):
        pass

    assert Own.start_ms == 3
    for name in ("advanceTime", "advance_time"):
        with pytest.raises(AttributeError, match=re.escape(f"'Own' has no '{name}'; write advance(seconds(1))")):
            getattr(Own(), name)
