"""A topology as Mermaid text, SVG and PNG."""

from __future__ import annotations

import io
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from windowing.errors import ConfigError
from windowing.execution.plan import execution_plan
from windowing.local.drawing import to_png, to_svg
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, sliding, windowed_bolt
from windowing.topology.pictures import Arrow, Box, placed
from windowing.topology.plan import Topology
from windowing.windows.measures import count, minutes, seconds
from windowing.windows.trigger import CountTriggerPolicy


@windowed_bolt(seconds(90), minutes(1), timestamp="at", late_stream="late", output="n long")
class Windowed:
    def init_state(self, state: Any) -> None: ...
    def execute(self, window: Any) -> None: ...


@sliding(count(4), count(2), output="n long")
def last_four(window: Any) -> None: ...


@bolt()
def end(tuple: Any) -> None: ...


def plan() -> Topology:
    builder = TopologyBuilder("plan").configure(enable_message_timeouts=False)
    builder.set_spout("events", InputSpout("at long, word string"))
    builder.set_bolt("sums", Windowed, 2).fields_grouping("events", ["at", "word"])
    builder.set_bolt("four", last_four).global_grouping("events")
    last = builder.set_bolt("end", end).shuffle_grouping("sums").none_grouping("sums", stream="late")
    last.all_grouping("events").custom_grouping("four", lambda values, tasks: 0)
    return builder.build()


def test_the_mermaid_text_shows_kinds_windows_tasks_groupings_and_late_streams() -> None:
    assert plan().to_mermaid() == (
        "flowchart LR\n"
        '    c_events(["events"])\n'
        '    c_sums[("sums ×2<br/>window 90 s / 1 min")]\n'
        '    c_four[["four<br/>window 4 tuples / 2 tuples"]]\n'
        '    c_end["end"]\n'
        '    c_events -- "fields(at, word)" --> c_sums\n'
        '    c_events -- "global" --> c_four\n'
        '    c_sums -- "shuffle" --> c_end\n'
        '    c_sums -. "late: none" .-> c_end\n'
        '    c_events -- "all" --> c_end\n'
        '    c_four -- "custom(plan.#lt;locals#gt;.#lt;lambda#gt;)" --> c_end\n'
    )


def test_a_trigger_of_ones_own_stands_in_place_of_the_slide() -> None:
    @windowed_bolt(count(4), trigger=lambda: CountTriggerPolicy(3), output="n long")
    def bursts(window: Any) -> None: ...

    builder = TopologyBuilder("plan")
    builder.set_spout("events", InputSpout("at long"))
    builder.set_bolt("bursts", bursts).global_grouping("events")
    assert "bursts<br/>window 4 tuples / trigger" in builder.build().to_mermaid()


def test_the_same_topology_gives_the_same_svg_with_every_name_in_it() -> None:
    svg = to_svg(plan())
    assert svg == to_svg(plan())
    text = "".join(ElementTree.fromstring(svg.encode()).itertext())
    for word in ("events", "sums ×2", "window 90 s / 1 min", "four", "end", "fields(at, word)", "late: none"):
        assert word in text


def test_arrows_between_the_same_two_boxes_are_drawn_side_by_side() -> None:
    points = {each.arrow.label: each.points for each in placed(plan().boxes(), plan().arrows())[1]}
    upper, lower = points["shuffle"], points["late: none"]
    assert [y + 14 for _, y in upper] == [y for _, y in lower]
    assert [x for x, _ in upper] == [x for x, _ in lower]
    labels = {
        text.text: (text.attrib["x"], text.attrib["y"])
        for text in ElementTree.fromstring(to_svg(plan()).encode()).iter("{http://www.w3.org/2000/svg}text")
    }
    assert labels["shuffle"] != labels["late: none"]


def test_an_arrow_passes_a_column_at_a_place_where_no_box_is() -> None:
    boxes, arrows, width, height = placed(plan().boxes(), plan().arrows())
    (passing,) = (each.points for each in arrows if each.arrow.label == "all")
    assert len(passing) == 4
    (left, y), (right, same_y) = passing[1:3]
    assert y == same_y
    for each in boxes:
        if each.box.name in ("sums", "four"):
            assert left <= each.x - each.width / 2 < each.x + each.width / 2 <= right
            assert abs(each.y - y) > each.height / 2
        assert each.width / 2 <= each.x <= width - each.width / 2
        assert each.height / 2 <= each.y <= height - each.height / 2


def test_a_box_is_beside_its_inputs_in_whichever_order_the_boxes_are_given() -> None:
    boxes = [Box(name, (name,), "bolt") for name in ("upper", "lower", "of lower", "of upper")]
    arrows = [Arrow("lower", "of lower", ""), Arrow("upper", "of upper", "")]
    down = {each.box.name: each.y for each in placed(boxes, arrows)[0]}
    assert down["upper"] == down["of upper"] < down["lower"] == down["of lower"]


def test_the_head_of_an_arrow_is_visible_before_its_box() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    builder = TopologyBuilder("two")
    builder.set_spout("a", InputSpout("n long"))
    builder.set_bolt("b", bolt()(lambda tuple: None)).shuffle_grouping("a")
    for dpi in (150, 200):
        dark = imread(io.BytesIO(to_png(builder.build(), dpi=dpi)))[:, :, 0] < 0.5
        tall = [int(column.sum()) for column in dark.T]
        edge = next(at for at, high in enumerate(tall) if high > dpi // 4)
        assert max(tall[edge - dpi // 10 : edge]) >= dpi // 25, "a line alone is one or two dots high"


def test_to_png_returns_a_png_file() -> None:
    pytest.importorskip("matplotlib")
    assert to_png(plan(), dpi=40).startswith(b"\x89PNG\r\n")


def test_a_missing_matplotlib_is_refused_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'windowing\[draw\]'"):
        to_png(plan())


def test_the_stages_of_an_execution_plan_are_drawn_too() -> None:
    text = "".join(ElementTree.fromstring(to_svg(execution_plan(plan())).encode()).itertext())
    for word in ("events", "sums ×2", "four", "end", "fields(at, word)", "all"):
        assert word in text
