"""The HTML and SVG of topologies, plans, runs and metrics in a notebook: well-formed, with every text escaped."""

from __future__ import annotations

import inspect
from xml.etree import ElementTree

import pytest
from pyspark import cloudpickle

from windowing import InputSpout, TopologyBuilder, bolt, execution_plan, millis, tumbling
from windowing.execution.metrics import FiredWindow, RunMetrics, TaskMetrics
from windowing.local import LocalCluster, TridentCluster, VirtualClock, run_local
from windowing.local.metrics import ClusterMetrics
from windowing.topology.pictures import Arrow, Box, html_table, svg_of
from windowing.trident import Count, FixedBatchSpout, TridentTopology

HOSTILE = "<script>alert('&')</script>"


@bolt(output="word string, at long")
def split(tuple):
    return [(word, tuple["at"]) for word in tuple["sentence"].split()]


@tumbling(millis(10), timestamp="at", late_stream="late", output="n long")
def tens(window):
    return len(window)


def topology():
    builder = TopologyBuilder("words")
    builder.set_spout("sentences", InputSpout("sentence string, at long"))
    builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    builder.set_bolt("tens", tens).fields_grouping("split", "word")
    return builder.build()


def texts(markup):
    return [text.strip() for text in ElementTree.fromstring(markup).itertext() if text.strip()]


@pytest.mark.parametrize("made", [topology, lambda: execution_plan(topology()), lambda: execution_plan(tens)])
def test_a_topology_and_a_plan_are_drawn_with_each_box_and_each_arrow(made):
    found = made()
    picture = ElementTree.fromstring(found._repr_svg_())
    names = [node.tag.split("}")[1] for node in picture.iter()]
    assert names.count("rect") == len(list(found.boxes()))
    assert names.count("g") == len(list(found.boxes())) + len(list(found.arrows()))
    assert "tens" in " ".join(picture.itertext())
    assert found._repr_svg_() == made()._repr_svg_()


def test_boxes_are_right_of_their_inputs_and_do_not_overlap():
    boxes = [Box(name, (name,), "bolt") for name in "abcd"]
    arrows = [Arrow("a", "b", ""), Arrow("b", "d", ""), Arrow("a", "c", ""), Arrow("a", "d", "")]
    picture = ElementTree.fromstring(svg_of(boxes, arrows))
    places = [(float(node.get("x")), float(node.get("y"))) for node in picture.iter() if node.tag.endswith("rect")]
    a, b, c, d = places
    assert a[0] < b[0] == c[0] < d[0]
    assert b[1] < c[1]
    assert len(set(places)) == 4


def test_a_decorated_function_or_class_has_html_and_behaves_as_before():
    assert texts(tens._repr_html_()) == [
        "windowed bolt tens",
        "windows",
        "10 ms every 10 ms, by at",
        "stream default",
        "n bigint",
    ]
    assert tens([1, 2]) == 2
    assert cloudpickle.loads(cloudpickle.dumps(split))._repr_html_() == split._repr_html_()

    @bolt(output="word string")
    class Parent:
        def execute(self, tuple): ...

    @bolt(output="word string")
    class Child(Parent): ...

    @bolt
    class Drawn:
        def execute(self, tuple): ...

        def _repr_html_(self):
            return "mine"

    assert texts(Child._repr_html_())[0].endswith("Child")
    assert texts(Parent._repr_html_())[0].endswith("Parent")
    assert inspect.ismethod(Child._repr_html_)  # Jupyter shows the HTML of a class only if it is a bound method
    assert Drawn()._repr_html_() == "mine"


def test_every_text_is_escaped():
    box = Box("a", (HOSTILE, HOSTILE), "bolt")
    picture = svg_of([box], [Arrow("a", "a", HOSTILE)])
    table = html_table(HOSTILE, (HOSTILE,), [[HOSTILE], [None], [1234]])
    run = RunMetrics(name=HOSTILE, at_ms=0, tasks=(TaskMetrics(HOSTILE, 0, executed=1),))
    for markup in (picture, table, run._repr_html_()):
        assert "<script" not in markup
        ElementTree.fromstring(markup)
    assert texts(table) == [HOSTILE, HOSTILE, HOSTILE, "1,234"]


def test_the_result_of_a_run_shows_its_counts():
    batches = {"sentences": [[("to be", 1), ("or", 25)], [("late", 2)]]}
    with LocalCluster(topology(), batches=batches, clock=VirtualClock(0)) as cluster:
        metrics = ClusterMetrics(cluster)
        result = cluster.run()
        shown = texts(metrics._repr_html_())
    assert texts(result._repr_html_())[:7] == ["run", "what", "how many", "acked", "3", "failures", "0"]
    assert "late of tens: late" in texts(result._repr_html_())
    at = shown.index("tens")
    assert shown[at : at + 6] == ["tens", "3", "4", "4", "0", "1"]  # emitted: two windows, a late tuple


def test_the_results_of_trident_and_of_a_single_bolt_show_their_counts():
    trident = TridentTopology("words")
    words = trident.new_stream("words", FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)]))
    words.group_by("word").aggregate(None, Count(), "n long").sink("counts")
    with TridentCluster(trident, clock=VirtualClock()) as cluster:
        shown = texts(cluster.run()._repr_html_())
    assert shown[3:9] == ["batches", "2", "failures", "0", "sink counts", "3"]
    alone = texts(run_local(tens, [[{"at": 1}, {"at": 25}], [{"at": 2}]])._repr_html_())
    assert alone[alone.index("late") + 1] == "1"


def test_the_repr_of_metrics_has_no_windows_and_rows():
    shown = TaskMetrics(
        "tens", 0, {"default": 2}, windows=(FiredWindow(10, "(5,)"),), late_rows=(("late", "{'at': 3}"),)
    )
    assert "emitted={'default': 2}" in repr(shown)
    assert "FiredWindow" not in repr(shown)
    assert "'at'" not in repr(shown)


def test_the_repr_of_a_result_has_some_of_its_rows():
    rows = [{"at": 100 * at} for at in range(1000)]
    alone = run_local(tens, [rows])
    assert repr(alone).startswith("LocalResult(rows={'default': [")
    assert len(repr(alone)) < 1500
    with LocalCluster(
        topology(), batches={"sentences": [[("to be", at)] for at in range(300)]}, clock=VirtualClock(0)
    ) as cluster:
        text = repr(cluster.run())
    assert text.startswith("ClusterResult(outputs={")
    assert "acked=300" in text
    assert len(text) < 1500
    trident = TridentTopology("words")
    trident.new_stream("words", FixedBatchSpout("word string", 200, [("to",)] * 1000)).sink("words")
    with TridentCluster(trident, clock=VirtualClock()) as cluster:
        text = repr(cluster.run())
    assert text.startswith("TridentResult(sinks={'words': [")
    assert "batches=5" in text
    assert len(text) < 1500
