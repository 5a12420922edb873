"""TopologyBuilder: the built topology, and every mistake that `build` finds; with equivalents of Storm's TopologyBuilderTest."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windowing import aggregate
from windowing.errors import ConfigError
from windowing.execution.plan import execution_plan
from windowing.schema.tuples import Fields
from windowing.topology.bolts import ComponentKind
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.config import KEYS
from windowing.topology.decorators import bolt, sliding, spout, tumbling
from windowing.topology.groupings import FieldsGrouping, ShuffleGrouping
from windowing.topology.plan import Topology, TopologyError
from windowing.topology.rules import RULES
from windowing.trident import FixedBatchSpout, TridentTopology
from windowing.windows.measures import count, hours, minutes, seconds

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "topologies.md"


@spout(output={"default": "sentence string, at long", "signals": "task int"}, direct="signals")
def sentences(collector: Any) -> None: ...


@bolt(output="word string, at long")
def split(tuple: Any) -> list[Any]:
    return [(word, tuple["at"]) for word in tuple["sentence"].split()]


@tumbling(seconds(10), timestamp="at", lag=seconds(5), late_stream="late", output="word string, n long")
def count_words(window: Any) -> None: ...


@bolt()
def report(tuple: Any) -> None: ...


@bolt(output="n long")
class Total:
    def init_state(self, state: Any) -> None: ...
    def execute(self, tuple: Any) -> None: ...


def word_count() -> TopologyBuilder:
    builder = TopologyBuilder("word_count")
    builder.set_spout("sentences", sentences)
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("counts", count_words, 4).fields_grouping("split", Fields("word"))
    builder.set_bolt("report", report).global_grouping("counts").none_grouping("counts", stream="late")
    return builder


def problems(builder: TopologyBuilder | TridentTopology) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        builder.build()
    return list(caught.value.problems)


def only_problem(builder: TopologyBuilder | TridentTopology, *words: str) -> None:
    found = problems(builder)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


# -- the topology


def test_a_topology_is_frozen_plain_data() -> None:
    topology = word_count().build()
    assert topology.name == "word_count"
    assert list(topology.components) == ["sentences", "split", "counts", "report"]
    assert [component.id for component in topology.spouts] == ["sentences"]
    assert [component.id for component in topology.bolts] == ["split", "counts", "report"]
    assert topology.component("counts").parallelism == 4
    assert topology.component("split").kind is ComponentKind.BASIC_BOLT
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology.name = "other"  # type: ignore[misc]
    with pytest.raises(ConfigError, match="did you mean 'split'"):
        topology.component("spilt")


def test_readers_returns_the_subscribers_of_a_stream_with_their_groupings() -> None:
    topology = word_count().build()
    ((reader, grouping),) = topology.readers("split")
    assert (reader.id, grouping) == ("counts", FieldsGrouping(("word",)))
    assert [(reader.id, str(grouping)) for reader, grouping in topology.readers("counts", "late")] == [
        ("report", "none")
    ]
    assert topology.readers("report") == ()


def test_a_late_stream_has_the_fields_of_the_input_and_a_reason() -> None:
    late = word_count().build().component("counts").outputs["late"]
    assert late.late
    assert late.schema.ddl == "word string, at bigint, reason string"


def test_every_component_is_ordered_after_its_inputs() -> None:
    builder = TopologyBuilder()
    builder.set_bolt("last", report).shuffle_grouping("middle").shuffle_grouping("first")
    builder.set_bolt("middle", split).shuffle_grouping("first")
    builder.set_spout("first", sentences)
    topology = builder.build()
    assert topology.order == ("first", "middle", "last")
    assert list(topology.components) == ["last", "middle", "first"]


def test_task_ids_are_numbered_from_1_in_the_order_of_component_names() -> None:
    assert word_count().build().task_ids == {
        "counts": range(1, 5),
        "report": range(5, 6),
        "sentences": range(6, 7),
        "split": range(7, 9),
    }


def test_build_changes_nothing_and_may_be_called_again() -> None:
    builder = word_count()
    assert execution_plan(builder.build()).explain() == execution_plan(builder.build()).explain()
    assert builder.build().to_mermaid() == builder.build().to_mermaid()
    builder.set_bolt("more", report).all_grouping("split")
    assert "more" in builder.build().components


def test_every_grouping_has_a_method_of_its_name() -> None:
    def first(values: Any, tasks: int) -> int:
        return 0

    builder = TopologyBuilder()
    builder.set_spout("s", sentences)
    builder.set_spout("t", InputSpout("sentence string, at long"))
    declarer = builder.set_bolt("b", report, 3)
    declarer.direct_grouping("s", stream="signals").shuffle_grouping("s")
    builder.set_bolt("c", report).fields_grouping("s", ["sentence", "at"]).partial_key_grouping("t", "sentence")
    builder.set_bolt("d", report).all_grouping("s").global_grouping("t")
    builder.set_bolt("e", report).none_grouping("s").local_or_shuffle_grouping("t")
    builder.set_bolt("f", report).custom_grouping("s", first).grouping("t", ShuffleGrouping())
    shown = [str(found.grouping) for component in builder.build().bolts for found in component.inputs]
    assert [re.sub("test_.*>.", "", text) for text in shown] == [
        "direct",
        "shuffle",
        "fields(sentence, at)",
        "partialKey(sentence)",
        "all",
        "global",
        "none",
        "localOrShuffle",
        "custom(first)",
        "shuffle",
    ]


def test_a_stateful_bolt_makes_the_topology_stateful() -> None:
    builder = word_count()
    assert not builder.build().stateful
    builder.set_bolt("total", Total).global_grouping("counts")
    topology = builder.build()
    assert topology.stateful
    assert [component.id for component in topology.bolts if component.stateful] == ["total"]


def test_max_task_parallelism_limits_every_component() -> None:
    topology = word_count().configure({"topology.max.task.parallelism": 2}).build()
    assert [component.parallelism for component in topology.components.values()] == [1, 2, 2, 1]


def test_a_rule_about_tasks_counts_no_more_of_them_than_max_task_parallelism() -> None:
    @tumbling(count(100), output="n long", message_id="at")
    class Held:
        def init_state(self, state: Any) -> None: ...
        def execute(self, window: Any) -> int:
            return len(window.get())

    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("split", split, 4).shuffle_grouping("s")
        builder.set_bolt("held", Held, 4).fields_grouping("split", "word")

    many, again = problems(a_spout_and(add).configure(max_spout_pending=200))
    assert "holds up to 800 tuples without an ack (length 100 + slide 100 in each of 4 tasks)" in many
    assert "bolt 'split' reads 's' by shuffle grouping with 4 tasks" in again
    assert (
        a_spout_and(add).configure(max_spout_pending=200, max_task_parallelism=1).build().component("held").parallelism
        == 1
    )


def test_the_number_of_tasks_may_be_set_later() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", sentences).set_num_tasks(3)
    assert builder.build().component("s").parallelism == 3


# -- the mistakes


def test_all_mistakes_are_reported_together() -> None:
    builder = TopologyBuilder("many").configure({"topology.mesage.timeout.secs": 5})
    builder.set_bolt("a", split, 0).fields_grouping("b", "wrod").shuffle_grouping("nobody")
    builder.set_bolt("b", split).shuffle_grouping("a")
    with pytest.raises(TopologyError) as caught:
        builder.build()
    assert len(caught.value.problems) == 5
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).startswith("[TOPOLOGY] topology 'many' has 5 mistakes:\n  - unknown key")


def test_a_single_mistake_is_in_the_first_line() -> None:
    builder = TopologyBuilder("one")
    builder.set_spout("s", sentences)
    builder.set_bolt("b", split).shuffle_grouping("s")
    builder.set_bolt("a", split).shuffle_grouping("nobody")
    with pytest.raises(TopologyError, match=r"^\[TOPOLOGY\] topology 'one': .*nobody") as caught:
        builder.build()
    assert len(caught.value.problems) == 1


def a_spout_and(add: Callable[[TopologyBuilder], object]) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("s", sentences)
    add(builder)
    return builder


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, None, "2"])
def test_a_parallelism_that_is_no_positive_whole_number_is_refused(parallelism: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", sentences, parallelism)
    builder.set_bolt("b", report, parallelism).shuffle_grouping("s")
    builder.set_bolt("w", tumbling(count(3), output="n long")(lambda_window()), parallelism).shuffle_grouping("s")
    assert [problem.split(";")[0] for problem in problems(builder)] == [
        f"{what} has parallelism={parallelism!r}" for what in ("spout 's'", "bolt 'b'", "bolt 'w'")
    ]


def lambda_window() -> Any:
    def three(window: Any) -> None: ...

    return three


def test_an_id_that_is_no_name_is_refused_with_a_valid_one() -> None:
    builder = TopologyBuilder()
    builder.set_spout("word reader", sentences)
    builder.set_spout("1st", sentences)
    builder.set_spout("__acker", sentences)
    builder.set_spout(None, sentences)  # type: ignore[arg-type]
    found = problems(builder)
    assert [re.findall("write for example (.*)", problem) for problem in found] == [
        ["'count'"],
        ["'word_reader'"],
        ["'c1st'"],
        [],
    ]
    assert "two underscores" in found[3]


def test_a_topology_name_that_is_no_name_is_refused_with_a_valid_one() -> None:
    builder = TopologyBuilder("word count")
    builder.set_spout("s", sentences)
    only_problem(builder, "the name of a topology", "'word_count'")


def test_an_id_that_is_given_twice_is_refused() -> None:
    builder = a_spout_and(lambda builder: builder.set_bolt("s", report).shuffle_grouping("s"))
    only_problem(builder, "the id 's' is given to 2 components")


def test_ids_that_differ_only_in_case_are_refused() -> None:
    only_problem(a_spout_and(lambda builder: builder.set_spout("S", sentences)), "'s' and 'S' differ only in")


def test_a_topology_without_a_spout_is_refused() -> None:
    only_problem(TopologyBuilder(), "there is no spout")


def test_a_spout_as_a_bolt_and_a_bolt_as_a_spout_are_refused() -> None:
    builder = a_spout_and(lambda builder: builder.set_bolt("b", sentences).shuffle_grouping("s"))
    only_problem(builder, "bolt 'b' is given 'sentences', which is a spout; use set_spout")
    builder = a_spout_and(lambda builder: builder.set_spout("t", report))
    only_problem(builder, "spout 't' is given 'report', which is a bolt; use set_bolt")


def test_an_undeclared_component_is_refused() -> None:
    builder = a_spout_and(lambda builder: builder.set_bolt("b", print).shuffle_grouping("s"))
    only_problem(builder, "bolt 'b': 'print' is not declared as a component", "@bolt")


def test_a_spout_with_an_input_and_a_bolt_without_one_are_refused() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", sentences).shuffle_grouping("b")
    builder.set_bolt("b", split)
    first, second = problems(builder)
    assert first.startswith("spout 's' is subscribed to 'b', but a spout only emits")
    assert second.startswith("bolt 'b' reads nothing")


def test_an_unknown_component_or_stream_as_input_is_refused_with_the_nearest_name() -> None:
    builder = TopologyBuilder()
    builder.set_spout("sentences", sentences)
    builder.set_bolt("b", report).shuffle_grouping("sentense").shuffle_grouping("sentences", stream="signal")
    builder.set_bolt("c", report).shuffle_grouping("b").shuffle_grouping(sentences)  # type: ignore[arg-type]
    found = problems(builder)
    assert found[0] == "bolt 'b' reads component 'sentense', which is not there; did you mean 'sentences'?"
    assert found[1].startswith("bolt 'c' reads component '<function sentences at")
    assert found[2] == "bolt 'b' reads stream 'sentences':'signal', which is not declared; did you mean 'signals'?"
    assert (
        found[3] == "bolt 'c' reads stream 'b', which is not declared; it declares none; add output= to its decorator"
    )


def test_an_undeclared_late_stream_as_input_is_refused() -> None:
    @tumbling(seconds(10), timestamp="at", output="n long")
    def without_late(window: Any) -> None: ...

    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("w", without_late).shuffle_grouping("s")
        builder.set_bolt("b", report).shuffle_grouping("w", stream="late")

    only_problem(a_spout_and(add), "'w':'late', which is not declared", "add late_stream='late' and a timestamp")


def test_a_grouping_on_a_late_stream_is_checked_against_its_fields() -> None:
    builder = word_count()
    builder.set_bolt("ok", report).fields_grouping("counts", ["word", "reason"], stream="late")
    builder.build()
    builder.set_bolt("no", report).fields_grouping("counts", "n", stream="late")
    only_problem(
        builder, "bolt 'no' groups 'counts':'late' by field 'n', which is not there; there are at, reason, word"
    )


def test_a_late_stream_of_different_inputs_has_the_fields_of_all_inputs() -> None:
    builder = word_count()
    builder.set_spout("prices", InputSpout("at long, price double"))
    builder.set_bolt("both", count_words).fields_grouping("split", "word").all_grouping("sentences")
    builder.set_bolt("ok", report).fields_grouping("both", ["word", "sentence"], stream="late")
    late = builder.build().component("both").outputs["late"].schema
    assert sorted(late.names[:-1]) == ["at", "sentence", "word"]
    assert late.names[-1] == "reason"
    builder.set_bolt("no", report).fields_grouping("both", "n", stream="late")
    only_problem(builder, "bolt 'no' groups 'both':'late' by field 'n', which is not there")


@pytest.mark.parametrize("other", ["word long, at long", "Word string, at long", "word string, at int"])
def test_a_late_stream_of_contradictory_inputs_is_refused_even_if_unread(other: str) -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", InputSpout("word string, at long"))
    builder.set_spout("b", InputSpout(other))

    @tumbling(seconds(10), timestamp="at", late_stream="late", output="n long")
    def late(window: Any) -> int:
        return len(window)

    builder.set_bolt("both", late).shuffle_grouping("a").shuffle_grouping("b")
    only_problem(
        builder,
        "bolt 'both' reads streams of different fields, so its late stream 'late' has no fields",
        "in 'a'",
        "in 'b'",
        "declare one name and one type",
    )


def test_a_late_stream_needs_inputs_without_a_field_reason() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", InputSpout("at long, Reason string"))
    builder.set_bolt("w", count_words).shuffle_grouping("s")
    only_problem(builder, "its late stream adds a field 'reason', which 's' has")


def test_a_stream_that_a_bolt_reads_twice_is_refused() -> None:
    builder = a_spout_and(lambda builder: builder.set_bolt("b", report).shuffle_grouping("s").all_grouping("s"))
    only_problem(builder, "bolt 'b' reads 's' twice")


def test_a_cycle_is_named_from_its_first_component_in_the_direction_of_the_data() -> None:
    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("a", split).shuffle_grouping("s").shuffle_grouping("c")
        builder.set_bolt("b", split).shuffle_grouping("a")
        builder.set_bolt("c", split).shuffle_grouping("b")
        builder.set_bolt("d", split).shuffle_grouping("d")

    found = problems(a_spout_and(add))
    assert [problem.split(" is ")[0] for problem in found] == ["a -> b -> c -> a", "d -> d"]


def test_a_reader_of_dead_letters_in_a_cycle_is_told_of_the_cycle_alone() -> None:
    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("a", split).shuffle_grouping("s").shuffle_grouping("b")
        builder.set_bolt("b", split).shuffle_grouping("a")
        builder.set_bolt("report", report).shuffle_grouping("b", "dead_letters")

    only_problem(a_spout_and(add), "a -> b -> a is a cycle")


def test_the_error_of_a_topology_survives_a_pickle() -> None:
    raised = TopologyError("words", ("there is no spout", "there is no bolt"))
    copied = pickle.loads(pickle.dumps(raised))
    assert (str(copied), copied.problems) == (str(raised), raised.problems)


def test_a_grouping_by_fields_that_the_stream_lacks_is_refused() -> None:
    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("a", report).fields_grouping("s", "sentense")
        builder.set_bolt("b", report).partial_key_grouping("s", ["at", "at"])
        builder.set_bolt("c", report).fields_grouping("s", [])
        builder.set_bolt("d", report).fields_grouping("s", 3)  # type: ignore[arg-type]

    assert problems(a_spout_and(add)) == [
        "bolt 'a' groups 's' by field 'sentense', which is not there; did you mean 'sentence'?",
        "bolt 'b' groups 's' by a field twice, at, at; name each field once",
        "bolt 'c' groups 's' by no field; name some, or use global_grouping (which is what Storm makes of it)",
        "bolt 'd' groups 's' by field '3', which is not there; there are at, sentence",
    ]


def test_a_grouping_by_fields_without_a_hash_is_refused() -> None:
    builder = TopologyBuilder()
    builder.set_spout("s", InputSpout("tags map<string,int>, place struct<x:int>, words array<string>"))
    builder.set_bolt("a", report).fields_grouping("s", ["tags", "place", "words"])
    first, second = problems(builder)
    assert "field 'tags' of type map<string,int>, which has no hash" in first
    assert "field 'place'" in second


@pytest.mark.parametrize("kind", ["array<string>", "map<string,bigint>", "struct<a:bigint>"])
def test_a_window_key_that_is_no_plain_value_is_refused(kind: str) -> None:
    @tumbling(count(2), key=("word", "tags"), output="n long")
    def sizes(window: Any) -> int:
        return len(window)

    builder = TopologyBuilder()
    builder.set_spout("s", InputSpout(f"word string, tags {kind}"))
    builder.set_spout("t", InputSpout(f"tags {kind}, word string"))
    builder.set_bolt("b", sizes).fields_grouping("s", "word").fields_grouping("t", "word")
    only_problem(builder, f"key of bolt 'b' names column 'tags', which is {kind}; give a column of plain values")


def test_key_fields_of_two_streams_whose_types_hash_differently_are_refused() -> None:
    builder = TopologyBuilder()
    builder.set_spout("a", InputSpout("user long, day int"))
    builder.set_spout("b", InputSpout("user int, day tinyint"))
    builder.set_bolt("day", report).fields_grouping("a", "day").fields_grouping("b", "day")
    builder.build()
    builder.set_bolt("user", report).fields_grouping("a", "user").fields_grouping("b", "user")
    only_problem(builder, "bolt 'user' reads 'a' and 'b' by user, which is bigint in one and int in the other")


def test_direct_groupings_and_direct_streams_require_each_other() -> None:
    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("a", report).direct_grouping("s")
        builder.set_bolt("b", report).shuffle_grouping("s", stream="signals")

    first, second = problems(a_spout_and(add))
    assert first.startswith("bolt 'a' reads 's' by direct grouping, but it is not declared direct")
    assert second.startswith("bolt 'b' reads 's':'signals' by shuffle grouping, but its emitter names the task")


def test_a_custom_grouping_that_is_not_callable_is_refused() -> None:
    builder = a_spout_and(lambda builder: builder.set_bolt("b", report).custom_grouping("s", "first"))
    only_problem(builder, "bolt 'b' groups 's' by 'first'; give a function of (values, tasks)")


def test_a_custom_grouping_with_a_prepare_that_nothing_calls_is_refused() -> None:
    class Prepared:
        def prepare(self, context: Any, stream: Any, targets: Any) -> None: ...
        def choose_tasks(self, values: Any, tasks: int) -> int:
            return 0

    builder = a_spout_and(lambda builder: builder.set_bolt("b", report).custom_grouping("s", Prepared()))
    (problem,) = problems(builder)
    assert (
        "it has prepare, which nothing calls; leave it out: choose_tasks(values, tasks) is given the number" in problem
    )


def test_a_custom_grouping_with_storms_arguments_is_refused() -> None:
    class Grouping:
        def choose_tasks(self, task_id: int, values: Any) -> Any: ...

    for given in (Grouping(), lambda task_id, values: [0], lambda values: [0]):
        builder = a_spout_and(lambda builder, given=given: builder.set_bolt("b", report).custom_grouping("s", given))
        (problem,) = problems(builder)
        assert "write a function of (values, tasks)" in problem


def test_a_grouping_with_storms_order_of_stream_and_fields_is_refused_with_the_order_here() -> None:
    for fields in (Fields("word"), ["word"], "word"):
        builder = a_spout_and(
            lambda builder, fields=fields: builder.set_bolt("b", report).fields_grouping("s", "default", fields)
        )
        (problem,) = problems(builder)
        assert problem.endswith("is not declared; the fields come first: ('s', fields, stream='default')")


def test_fields_of_a_grouping_one_by_one_are_refused_with_the_list_to_write() -> None:
    for name in ("fields_grouping", "partial_key_grouping"):
        builder = TopologyBuilder("one-by-one")
        builder.set_spout("s", InputSpout("word string, at long"))
        getattr(builder.set_bolt("b", report), name)("s", "word", "at")
        (problem,) = problems(builder)
        assert problem.endswith("'at', which is not declared; several fields are a list: ('s', ['word', 'at'])")


def test_a_window_field_that_an_input_stream_lacks_is_refused() -> None:
    read = {"n": aggregate.count(), "most": aggregate.max("size"), "last": aggregate.max("at")}

    @tumbling(seconds(1), timestamp="when", source="host", key=["word", "at"], aggregate=read, output="n long")
    def keyed(window: Any) -> None: ...

    found = problems(a_spout_and(lambda builder: builder.set_bolt("w", keyed).shuffle_grouping("s")))
    assert found == [
        "bolt 'w' has timestamp='when', a field that 's' has not; there are at, sentence",
        "bolt 'w' has source='host', a field that 's' has not; there are at, sentence",
        "bolt 'w' has key='word', a field that 's' has not; there are at, sentence",
        "bolt 'w' has aggregate='size', a field that 's' has not; there are at, sentence",
    ]


def test_a_window_timestamp_of_a_type_that_holds_none_is_refused() -> None:
    @tumbling(seconds(1), timestamp="sentence", output="n long")
    def timed(window: Any) -> None: ...

    only_problem(
        a_spout_and(lambda builder: builder.set_bolt("w", timed).shuffle_grouping("s")),
        "bolt 'w' has timestamp='sentence', which 's' declares string: no value of it is a timestamp; declare it long",
    )


def windowed(length: Any, slide: Any, **options: Any) -> Callable[[TopologyBuilder], object]:
    def shown(window: Any) -> None: ...

    declared = sliding(length, slide, output="n long", **options)(shown)
    return lambda builder: builder.set_bolt("w", declared).shuffle_grouping("s")


def test_a_time_window_must_fit_into_the_message_timeout() -> None:
    a_spout_and(windowed(seconds(20), seconds(10))).build()
    only_problem(
        a_spout_and(windowed(seconds(20), seconds(10.001))), "after up to 30001 ms (length 20000 + slide 10001)"
    )
    a_spout_and(windowed(seconds(20), count(100))).build()
    only_problem(a_spout_and(windowed(count(10), minutes(1))), "(slide 60000)", "fails after 30000 ms")
    a_spout_and(windowed(hours(1000), hours(1))).configure(message_timeout=hours(1001)).build()


def test_lag_and_watermark_interval_count_towards_the_message_timeout_too() -> None:
    late = windowed(seconds(20), seconds(5), timestamp="at", lag=seconds(4))
    a_spout_and(late).build()
    late = windowed(seconds(20), seconds(5), timestamp="at", lag=seconds(4), watermark_interval=seconds(2))
    only_problem(
        a_spout_and(late),
        "(length 20000 + slide 5000 + lag 4000 + watermark interval 2000)",
        "taking event time for the clock, as Storm does",
        "set topology.message.timeout.secs to 31 or more",
    )
    a_spout_and(windowed(count(3), count(3), timestamp="at", lag=hours(1))).build()


def test_without_timeouts_a_window_may_have_any_length() -> None:
    long = windowed(hours(1), hours(1))
    a_spout_and(long).configure({"topology.enable.message.timeouts": False}).build()
    a_spout_and(long).configure({"topology.acker.executors": 0}).build()


def test_a_count_window_must_fit_into_max_spout_pending_of_every_upstream_spout() -> None:
    three_and_two = windowed(count(3), count(2))
    a_spout_and(three_and_two).build()
    a_spout_and(three_and_two).configure(max_spout_pending=5).build()
    only_problem(
        a_spout_and(three_and_two).configure(max_spout_pending=4),
        "holds up to 5 tuples without an ack (length 3 + slide 2), but spout 's' stops at 4 in flight",
    )
    builder = TopologyBuilder()
    builder.set_spout("s", sentences).configure(max_spout_pending=2)
    builder.set_spout("other", sentences).configure(max_spout_pending=1)
    windowed(count(3), seconds(2))(builder)
    only_problem(builder, "(length 3), but spout 's' stops at 2")
    a_spout_and(three_and_two).configure(max_spout_pending=4, acker_executors=0).build()


def test_the_checkpoint_interval_must_fit_into_the_message_timeout() -> None:
    stateful = a_spout_and(lambda builder: builder.set_bolt("t", Total).shuffle_grouping("s"))
    stateful.configure({"topology.state.checkpoint.interval.ms": 30_000}).build()
    only_problem(
        stateful.configure(state_checkpoint_interval=minutes(1)), "bolt 't' acks at a checkpoint, every 60000 ms"
    )


def test_delays_of_retries_in_the_wrong_order_are_refused_also_in_trident() -> None:
    trident = TridentTopology("t")
    trident.new_stream("words", FixedBatchSpout("word string", 2, [("to",)])).sink("words")
    topology = a_spout_and(lambda builder: builder.set_bolt("t", Total).shuffle_grouping("s"))
    for declared in (topology, trident):
        declared.configure(retry_delay=seconds(10), retry_delay_max=seconds(10)).build()
        for longest in (seconds(9.999), hours(1)):
            sentence = f"waits 10000 ms at first and {longest.ms} ms at most; give windowing.retry.delay.max.ms a value"
            only_problem(declared.configure(retry_delay_max=longest), sentence)


def test_consequences_of_a_mistake_are_not_reported() -> None:
    def add(builder: TopologyBuilder) -> None:
        builder.set_bolt("a", print).shuffle_grouping("s")
        builder.set_bolt("b", report).fields_grouping("a", "word", stream="any")
        builder.set_bolt("c", count_words).fields_grouping("a", "word")
        builder.set_bolt("d", report).fields_grouping("c", "word", stream="late")

    only_problem(a_spout_and(add), "bolt 'a': 'print' is not declared")


# -- the documentation pages


def test_the_topologies_page_has_a_row_for_every_rule() -> None:
    page = DOCS.read_text(encoding="utf-8")
    rows = "\n".join(f"| {(rule.__doc__ or '').splitlines()[0]} |" for rule in RULES)
    assert rows in page, f"docs/guides/topologies.md should hold these rows:\n{rows}"


def test_the_example_of_the_topologies_page_runs_and_draws_what_the_page_shows() -> None:
    page = DOCS.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    topology = names["topology"]
    assert isinstance(topology, Topology)
    assert f"```mermaid\n{topology.to_mermaid()}```" in page
    assert f"```text\n{execution_plan(topology).explain()}```" in page


def test_the_settings_page_has_a_row_for_every_key() -> None:
    page = (DOCS.parents[1] / "reference" / "settings.md").read_text(encoding="utf-8")
    missing = [key.storm for key in KEYS if f"| `{key.storm}` | `{key.typed}` | {key.kind.wanted} |" not in page]
    assert not missing


def test_a_message_id_field_that_is_no_whole_number_is_refused_by_build() -> None:
    @tumbling(count(3), message_id="word")
    class Known:
        def init_state(self, state: Any) -> None: ...

        def execute(self, window: Any) -> None: ...

    builder = TopologyBuilder("ids")
    builder.set_spout("words", InputSpout("word string"))
    builder.set_bolt("known", Known).global_grouping("words")
    with pytest.raises(TopologyError, match="message_id of bolt 'known' names 'word', which is string"):
        builder.build()


def test_a_grouping_that_splits_the_keys_of_a_window_is_warned_of():
    @tumbling(count(3), key=("word", "at"), output="n long")
    def keyed(window: Any) -> None: ...

    def built(tasks: int, subscribe: Callable[[Any], object], declared: Any = keyed) -> None:
        builder = TopologyBuilder("keys")
        builder.set_spout("in", InputSpout("word string, at long, n long"))
        subscribe(builder.set_bolt("keyed", declared, tasks))
        builder.build()

    splitting: list[Callable[[Any], object]] = [
        lambda declarer: declarer.shuffle_grouping("in"),
        lambda declarer: declarer.none_grouping("in"),
        lambda declarer: declarer.local_or_shuffle_grouping("in"),
        lambda declarer: declarer.fields_grouping("in", "n"),
        lambda declarer: declarer.fields_grouping("in", ["word", "n"]),
    ]
    for subscribe in splitting:
        with pytest.warns(
            UserWarning, match=r"'keyed' has windows for each word, at, but 'in' is dealt to its 2 tasks by"
        ):
            built(2, subscribe)
        built(1, subscribe)
        built(2, subscribe, report)
    whole: list[Callable[[Any], object]] = [
        lambda declarer: declarer.fields_grouping("in", "word"),
        lambda declarer: declarer.fields_grouping("in", ["at", "word"]),
        lambda declarer: declarer.partial_key_grouping("in", "n"),
        lambda declarer: declarer.global_grouping("in"),
        lambda declarer: declarer.all_grouping("in"),
        lambda declarer: declarer.custom_grouping("in", lambda values, tasks: 0),
    ]
    for subscribe in whole:
        built(2, subscribe)


def test_a_field_with_the_name_of_an_attribute_of_a_tuple_is_warned_of():
    builder = TopologyBuilder("hidden")
    builder.set_spout("in", InputSpout("source_task long, word string, get_task string"))
    builder.set_bolt("out", report).shuffle_grouping("in")
    with pytest.warns(
        UserWarning, match=r"'out' reads the field 'source_task' of 'in' as tuple\['source_task'\] only"
    ) as caught:
        builder.build()
    assert len(caught) == 1


@pytest.mark.parametrize("given", [ShuffleGrouping, "shuffle", None, lambda values, tasks: 0])
def test_grouping_takes_a_grouping_object(given: Any) -> None:
    declarer = TopologyBuilder("grouped").set_bolt("report", report)
    with pytest.raises(
        ConfigError, match=r"grouping\(\) takes a grouping object, got .*; write shuffle_grouping\('s'\), say"
    ):
        declarer.grouping("s", given)
