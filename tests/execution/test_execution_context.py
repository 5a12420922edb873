"""The execution context of a topology: the components that can receive tuples with roots."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError
from windowing.queues import SqliteQueue
from windowing.spark.context import ExecutionContext, execution_context
from windowing.spark.sinks import MemorySink
from windowing.spark.submit import _given, sinks_of
from windowing.spark.trident_submit import _inputs, _sink_streams
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt
from windowing.topology.plan import Topology
from windowing.trident.coordinator import OnFailure
from windowing.trident.streams import TridentTopology


@bolt(output="n long")
def same(tuple: Any) -> Any:
    return tuple.n


def reaches(topology: Topology, name: str, spouts: set[str]) -> bool:
    """The slow model: some path upstream ends at one of the spouts."""
    return name in spouts or any(reaches(topology, read.component, spouts) for read in topology.components[name].inputs)


@given(st.data())
def test_components_downstream_of_a_spout_that_takes_acks_are_rooted(data: st.DataObject) -> None:
    builder = TopologyBuilder("random")
    names = ["s0", "s1"]
    for name in names:
        builder.set_spout(name, InputSpout("n long"))
    for number in range(data.draw(st.integers(1, 6))):
        declarer = builder.set_bolt(f"b{number}", same)
        for read in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
            declarer.shuffle_grouping(read)
        names.append(f"b{number}")
    taking = data.draw(st.sets(st.sampled_from(["s0", "s1"])))
    topology = builder.build()
    wiring = execution_context(topology, acks={(name, "default"): number for number, name in enumerate(sorted(taking))})
    assert wiring.rooted == {name for name in names[2:] if reaches(topology, name, taking)}


def test_a_plan_of_many_diamonds_is_traversed_once(monkeypatch: Any) -> None:
    builder = TopologyBuilder("diamonds")
    builder.set_spout("top", InputSpout("n long"))
    above = "top"
    for number in range(40):
        for side in "lr":
            builder.set_bolt(f"{side}{number}", same).shuffle_grouping(above)
        builder.set_bolt(f"d{number}", same).shuffle_grouping(f"l{number}").shuffle_grouping(f"r{number}")
        above = f"d{number}"
    wiring = execution_context(builder.build(), acks={("other", "default"): 0})
    asked: list[str] = []
    ask = ExecutionContext.component
    monkeypatch.setattr(ExecutionContext, "component", lambda self, name: asked.append(name) or ask(self, name))
    assert [above in wiring.rooted for _ in range(10)] == [False] * 10
    assert len(asked) <= 3 * 40 + 1, "2^40 ways lead up"


def test_a_sink_on_a_discarded_stream_is_refused_with_the_same_error_everywhere() -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("words", InputSpout("word string"))
    words = TridentTopology("words")
    words.new_stream("words", InputSpout("word string")).sink("words")
    sinks: dict[str, Any] = {"words": MemorySink()}
    for door in (
        lambda: sinks_of(builder.build(), sinks, ("words",)),
        lambda: _sink_streams(words.build(), sinks, ("words",), OnFailure.STOP),
    ):
        with pytest.raises(ConfigError, match="'words' has a sink and stands in discard; leave out one of them"):
            door()


def test_one_queue_for_two_spouts_or_streams_is_refused_on_spark_as_in_one_process(tmp_path: Path) -> None:
    queue, spark = SqliteQueue(tmp_path / "queue.db", "word string"), cast(Any, None)
    sources = {"a": queue, "b": SqliteQueue(tmp_path / "queue.db", "word string")}
    builder, words = TopologyBuilder("words"), TridentTopology("words")
    for name in sources:
        builder.set_spout(name, InputSpout("word string"))
        words.new_stream(name, InputSpout("word string")).sink(f"rows_{name}")
    for door, what in (
        (lambda: _given(builder.build(), sources), "spout"),
        (lambda: _inputs(spark, words.build(), sources, None), "stream"),
    ):
        with pytest.raises(
            ConfigError, match=f"{what} 'b' and {what} 'a' have the same source, a SqliteQueue that forgets"
        ):
            door()
    assert set(_given(builder.build(), {**sources, "b": SqliteQueue(tmp_path / "b.db", "word string")}).values()) > {
        queue
    }
