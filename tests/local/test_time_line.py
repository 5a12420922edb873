"""The time line of a run shows its events, and its drawings are well-formed and contain no unescaped data."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing import (
    ConfigError,
    EvictionContext,
    TopologyBuilder,
    TriggerPolicy,
    aggregate,
    count,
    seconds,
    sliding,
    tumbling,
    windowed_bolt,
)
from windowing.local import explain, run_local, to_png
from windowing.local import time_line as module
from windowing.local.time_line import (
    InputEnded,
    TimeLine,
    TupleArrived,
    TupleLate,
    TupleRepeated,
    TuplesExpired,
    WatermarkRose,
    WindowFired,
)
from windowing.local.time_line_drawing import cut, width_of


def ids(rows):
    return [row["n"] for row in rows]


def collected(length, slide, **options):
    """Return a bolt that emits the content of each window."""

    @windowed_bolt(length, slide, output="ends long, held string, fresh string, gone string", name="collect", **options)
    def collect(window):
        parts = (window.get(), window.get_new(), window.get_expired())
        return window.end_timestamp, *(" ".join(map(str, ids(part))) for part in parts)

    return collect


def of_type(line, kind):
    return [event for event in line.events if type(event) is kind]


def batches_of(draw_from):
    return [
        [{"n": 10 * at + i, "at": ms, "k": key} for i, (ms, key) in enumerate(rows)]
        for at, rows in enumerate(draw_from)
    ]


def problem_of(bolt, batches) -> str | None:
    """Return the first difference between the time line and the run, None if there is none."""
    line, result = explain(bolt, batches), run_local(bolt, batches)
    arrived = of_type(line, TupleArrived)
    rows = [row["n"] for batch in batches for row in batch]
    name = dict(enumerate(rows))
    windows = [
        (event.end_ms, *(" ".join(str(name[n]) for n in part) for part in (event.held, event.new, event.expired)))
        for event in of_type(line, WindowFired)
    ]
    if windows != result["default"]:
        return f"windows {windows} {result['default']}"
    if [row for event in of_type(line, WindowFired) for _, row in event.emitted] != result["default"]:
        return "emitted"
    late = [(name[event.number], event.reason) for event in of_type(line, TupleLate)]
    if late != [(row.row["n"], row.reason.value) for row in result.late]:
        return f"late {late}"
    expired = Counter(number for event in of_type(line, TuplesExpired) for number in event.numbers)
    accepted = {event.number for event in arrived} - {event.number for event in of_type(line, TupleLate)}
    if expired != Counter(accepted):
        return f"expired {expired}"
    if len(arrived) != len(rows):
        return "arrived"
    return None


rows_in_time = st.lists(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("ab")), min_size=1, max_size=6), max_size=6
)
windows = st.sampled_from(
    [
        (seconds(0.01), seconds(0.005), {}),
        (seconds(0.01), seconds(0.01), {"lag": seconds(0.004), "key": "k"}),
        (seconds(0.004), seconds(0.01), {"late_stream": "late"}),
        (count(3), count(2), {"key": "k"}),
        (count(2), seconds(0.01), {"lag": seconds(0.002)}),
        (seconds(0.01), count(3), {}),
    ]
)


@pytest.mark.filterwarnings("ignore::windowing.SkippedTuplesWarning")
@given(windows, rows_in_time)
def test_a_time_line_shows_the_events_of_the_run(window, rows):
    length, slide, options = window
    assert problem_of(collected(length, slide, timestamp="at", **options), batches_of(rows)) is None


MANY = [[(1, "a"), (14, "b"), (3, "a")], [(2, "a"), (22, "a")], [(4, "b"), (40, "b"), (41, "b")]]


@pytest.mark.parametrize(
    "bug", ["an expiry is noted twice", "a late tuple is not noted", "new is what is held", "emits nothing"]
)
def test_a_planted_bug_in_the_recorder_is_found(monkeypatch, bug):
    watch = module._WatchedTask
    noted, answered = watch._noted, watch._answered

    def wrong(self, effect):
        kind = type(effect).__name__
        before = len(self.events)
        if bug == "a late tuple is not noted" and kind == "Late":
            self._gone(effect.payloads, newest=True)
            return effect
        found = noted(self, effect)
        if bug == "an expiry is noted twice" and kind == "Expired":
            self.events.append(self.events[-1])
        if bug == "new is what is held" and kind == "Activation":
            fired = self.events[-1]
            self.events[before:] = [*self.events[before:-1], module.replace(fired, new=fired.held)]
        return found

    monkeypatch.setattr(watch, "_noted", wrong)
    if bug == "emits nothing":
        monkeypatch.setattr(watch, "_noted", noted)
        monkeypatch.setattr(watch, "_answered", lambda self, effect: None)
    bolt = collected(seconds(0.01), seconds(0.005), timestamp="at")
    assert problem_of(bolt, batches_of(MANY)) is not None
    monkeypatch.setattr(watch, "_noted", noted)
    monkeypatch.setattr(watch, "_answered", answered)
    assert problem_of(bolt, batches_of(MANY)) is None


def test_rows_of_a_flat_list_are_judged_one_by_one():
    bolt = collected(seconds(0.01), seconds(0.01), timestamp="at")
    rows = [{"n": 1, "at": 30}, {"n": 2, "at": 4}]
    assert [event.number for event in of_type(explain(bolt, rows), TupleLate)] == [1]
    assert of_type(explain(bolt, [rows]), TupleLate) == []


def test_the_title_names_a_trigger_of_its_own_in_place_of_a_slide():
    class AtEach(TriggerPolicy):
        def track(self, event):
            return None if event.is_watermark else [EvictionContext(event.timestamp)]

    at_each = windowed_bolt(count(3), timestamp="at", trigger=AtEach, output="n long", name="at_each")(lambda window: 1)
    assert explain(at_each, [{"at": 1}]).about == "3 tuples at each trigger, by at"
    one = windowed_bolt(count(3), timestamp="at", output="n long", name="one")(lambda window: 1)
    assert explain(one, [{"at": 1}]).about == "3 tuples every 1 tuple, by at"
    with pytest.raises(ConfigError, match="every is a span of time, got 5"):
        explain(one, [{"at": 1}], every=5)


def test_a_bolt_that_is_handed_the_aggregates_of_all_keys_has_no_tuples_to_explain():
    options = {
        "timestamp": "at",
        "key": "k",
        "aggregate": {"n": aggregate.count()},
        "columnar": "arrow",
        "output": "n long",
    }
    sums = tumbling(seconds(1), **options, name="sums")(lambda window: [])
    with pytest.raises(
        ConfigError, match=r"explain shows tuples, and bolt 'sums' keeps none: .* explain it without columnar="
    ):
        explain(sums, [{"k": 1, "at": 1}])


def test_a_mix_of_rows_and_lists_of_rows_is_refused():
    with pytest.raises(ConfigError, match="rows, or lists of rows, got some of both"):
        explain(collected(count(2), count(2)), [{"n": 1}, [{"n": 2}]])


def test_a_row_object_that_is_fed_twice_is_two_tuples():
    @sliding(count(2), count(1), output="n long")
    def two(window):
        return len(window)

    line = explain(two, [7, 7, 7])
    assert [event.held for event in of_type(line, WindowFired)] == [(0,), (0, 1), (1, 2)]
    assert sorted(n for event in of_type(line, TuplesExpired) for n in event.numbers) == [0, 1, 2]


def test_a_window_with_an_aggregate_shows_its_tuples():
    @tumbling(seconds(1), timestamp="at", aggregate=aggregate.sum("n"), output="total long")
    def total(window):
        return window.aggregate

    line = explain(total, [{"n": 3, "at": 100}, {"n": 4, "at": 200}])
    (fired,) = of_type(line, WindowFired)
    assert fired.held == (0, 1)
    assert fired.emitted == (("default", (7,)),)


def test_windows_over_the_clock_advance_it_before_each_batch():
    @tumbling(seconds(2), output="n long")
    def counted(window):
        return len(window)

    line = explain(counted, [{"n": n} for n in range(4)])
    assert [event.at_ms for event in of_type(line, TupleArrived)] == [1000, 2000, 3000, 4000]
    assert sum(len(event.held) for event in of_type(line, WindowFired)) == 4


def test_storms_windows_are_explained_without_a_drain_which_is_refused_before_the_bolt_is_called():
    called = []

    @tumbling(seconds(2), semantics="storm", output="n long")
    def noted(window):
        called.append(len(window))
        return len(window)

    rows = [{"n": n} for n in range(5)]
    for run in (run_local, explain):
        with pytest.raises(ConfigError, match="write drain=False"):
            run(noted, [rows])
    assert called == []
    line = explain(noted, rows, drain=False)
    assert [len(event.held) for event in of_type(line, WindowFired)] == called == [2, 2]


def test_a_repeated_tuple_is_marked():
    @tumbling(count(2), message_id="id", output="n long")
    def counted(window):
        return len(window)

    line = explain(counted, [{"id": 1}, {"id": 1}, {"id": 2}])
    assert of_type(line, TupleRepeated) == [TupleRepeated(1)]
    assert "here before: #2" in line.text()


def test_the_time_line_has_watermark_advances_and_the_end_of_the_input():
    line = explain(collected(seconds(1), seconds(1), timestamp="at", lag=seconds(1)), [{"n": 1, "at": 5000}])
    assert of_type(line, WatermarkRose) == [WatermarkRose(4000)]
    assert [type(event) for event in line.events].index(InputEnded) == 2


def test_a_window_on_which_the_bolt_failed_has_the_error_and_the_next_one_its_rows():
    @tumbling(count(2), on_error="skip", output="n long")
    def picky(window):
        if 1 in window.get():
            raise ValueError("no ones")
        return len(window)

    line = explain(picky, [0, 1, 2, 3])
    failed, fired = of_type(line, WindowFired)
    assert (failed.emitted, "ValueError: no ones" in failed.failure) == ((), True)
    assert (fired.failure, len(fired.emitted)) == (None, 1)
    assert line.text().count("the bolt failed: ") == 1


# -- drawings ----------------------------------------------------------------------------------------------------------------------


HOSTILE = "<script>alert(1)</script> & \x1b[31m \n ]]> \udc80 値段 é\u0301" + "x" * 500


def worded():
    @sliding(seconds(10), seconds(5), timestamp="at", late_stream="late", output="n long")
    def words(window):
        return len(window)

    return words


def lines() -> list[TimeLine]:
    bolt = worded()
    many = [{"word": f"w{n}", "at": 400 * n % 9000 + 300 * n} for n in range(150)]
    return [
        explain(bolt, []),
        explain(bolt, [], drain=False),
        explain(bolt, [{"word": "one", "at": 3}]),
        explain(
            bolt, [{"word": HOSTILE, "at": 1_763_863_200_000}, {"word": "none", "at": None}, {"word": "", "at": 5}]
        ),
        explain(bolt, [{"word": "a", "at": 1}, {"word": "far", "at": 10**15}, {"word": "b", "at": 2}]),
        explain(bolt, many),
        explain(bolt, [many]),
        explain(bolt, [{"at": -5}, {"at": 6_000}]),
    ]


@pytest.mark.parametrize("at", range(8))
def test_an_svg_is_well_formed_with_title_and_description_and_stays_within_its_size(at):
    svg = ElementTree.fromstring(lines()[at].svg())
    tags = [each.tag.rpartition("}")[2] for each in svg]
    assert tags[:2] == ["title", "desc"]
    assert set(tags) <= {"title", "desc", "style", "rect", "line", "text", "circle", "path"}
    width, height = (float(svg.get(side)) for side in ("width", "height"))
    for each in svg:
        x, y = float(each.get("x") or 0), float(each.get("y") or 0)
        assert 0 <= x <= width, ElementTree.tostring(each)
        assert 0 <= y <= height, ElementTree.tostring(each)


@pytest.mark.parametrize("at", range(8))
def test_a_text_has_no_control_characters_and_keeps_its_width(at):
    text = lines()[at].text(90)
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(width_of, text.split("\n"))) <= 90


def test_data_never_becomes_markup():
    svg = lines()[3].svg()
    assert "<script>" not in svg
    assert "&lt;script&gt;" in svg
    assert "\x1b" not in svg


def test_the_name_of_a_file_and_names_of_a_plot_are_answered_with_what_to_write():
    line = lines()[2]
    for draw in (line.png, lambda file: to_png(TopologyBuilder("words"), file)):
        with pytest.raises(ConfigError, match=r"got dpi='windows\.png'; give 150, say, .*write_bytes"):
            draw("windows.png")
    for name, write in (("show", r"print\(line\)"), ("save", r"pathlib\.Path\('windows\.svg'\)\.write_text")):
        with pytest.raises(AttributeError, match=f"'TimeLine' has no '{name}'; write {write}"):
            getattr(line, name)


def test_png_returns_a_png_file():
    assert lines()[2].png().startswith(b"\x89PNG")


def test_a_notebook_shows_the_svg():
    line = lines()[2]
    assert line._repr_svg_() == line.svg()
    assert str(line) == line.text()


def test_a_text_shows_new_earlier_expired_and_late_tuples():
    rows = [{"word": word, "at": at} for word, at in (("to", 1000), ("be", 8000), ("or", 16_000), ("not", 2000))]
    text = explain(worded(), rows).text()
    assert "(0 s, 10 s] · new: be · before: to" in text
    assert "expired: to" in text
    assert "late, watermark 16 s: not 2 s" in text


def test_labels_of_a_batch_do_not_overlap():
    many = [{"word": f"w{n}", "at": 1_000 * n} for n in range(30)]
    svg = ElementTree.fromstring(explain(worded(), [many]).svg())
    labels: dict[str, list[tuple[float, float]]] = {}
    for each in svg:
        if (
            each.tag.endswith("text")
            and each.get("class") == "ink"
            and (each.text or "").startswith("w")
            and each.text != "watermark"
        ):
            x, wide = float(each.get("x")), 6.9 * len(each.text)
            span = (x - wide, x) if each.get("text-anchor") == "end" else (x, x + wide)
            labels.setdefault(each.get("y"), []).append(span)
    assert sum(map(len, labels.values())) == 30
    for spans in labels.values():
        spans.sort()
        assert all(left[1] <= right[0] for left, right in pairwise(spans))


def test_a_truncated_text_ends_with_an_ellipsis():
    assert cut("値段値段", 5) == "値段…"
    assert cut("word", 4) == "word"


def test_a_repeated_message_that_is_the_same_object_is_shown_as_repeated():
    row = {"n": 1, "at": 5}
    bolt = collected(seconds(1), seconds(1), timestamp="at", message_id="n")
    line = explain(bolt, [[row, row], [row, {"n": 2, "at": 6}]])
    assert of_type(line, TupleRepeated) == [TupleRepeated(1), TupleRepeated(2)]
    assert [event.held for event in of_type(line, WindowFired)] == [(0, 3)]
