"""The local driver: rows in, rows out, without Spark; and its handling of bolts that fail."""

from __future__ import annotations

import warnings
from collections import Counter, namedtuple
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given

from windowing import LateReason, SkippedTuplesWarning, count, minutes, seconds, sliding, tumbling, windowed_bolt
from windowing.errors import BoltError, ConfigError, FailedException, StaleWindowError, WindowingError
from windowing.local import LocalRun, VirtualClock, run_local
from windowing.schema.types import Schema
from windowing.testing.replay import config_of, replay
from windowing.testing.strategies import cases
from windowing.topology.bolts import CallStyle, WindowedBolt
from windowing.topology.components import TopologyContext
from windowing.windows import aggregate as agg
from windowing.windows.events import TupleWindow

Word = namedtuple("Word", "word at")


@tumbling(seconds(10), timestamp="at", late_stream="late", output="end long, word string, n long")
def word_count(window):
    found = Counter(row.word for row in window)
    return [(window.end_timestamp, word, n) for word, n in sorted(found.items())]


def words(text: str, *at: int) -> list[Word]:
    return [Word(word, second * 1000) for word, second in zip(text.split(), at, strict=True)]


# -- rows in, rows out -------------------------------------------------------------------------------------------------


def test_words_are_counted_per_window():
    result = run_local(word_count, [words("to be or not", 1, 4, 7, 12), words("to be", 14, 15)])
    assert result["default"] == [
        (10_000, "be", 1),
        (10_000, "or", 1),
        (10_000, "to", 1),
        (20_000, "be", 1),
        (20_000, "not", 1),
        (20_000, "to", 1),
    ]
    assert result.counts == {
        "in": 6,
        "shown": 6,
        "skipped": 0,
        "pending": 0,
        "expired": 6,
        "late": 0,
        "fired": 2,
    }
    assert result.acked == 6


def test_a_late_row_goes_to_the_late_stream_with_its_reason():
    result = run_local(word_count, [words("a b", 1, 25), words("c d", 3, 26)])
    assert result.late == [(Word("c", 3_000), LateReason.LATE)]
    assert result.acked == result.counts["in"] == 4


def test_all_rows_of_a_batch_are_judged_by_the_watermark_before_the_batch():
    assert run_local(word_count, [words("a b c", 25, 3, 26)]).late == []


def test_without_a_drain_open_windows_stay_pending():
    result = run_local(word_count, [words("a b", 1, 12)], drain=False)
    assert [row[1] for row in result["default"]] == ["a"]
    assert result.counts["pending"] == 1


def test_a_drain_fires_the_last_partial_window_and_closes_the_run():
    @tumbling(count(3), timestamp="at", output="words string")
    def three(window):
        return " ".join(row.word for row in window)

    run = LocalRun(three)
    run.feed(words("a b c d", 1, 2, 3, 4))
    assert run.turn() == [("default", ("a b c",))]
    assert run.drain() == [("default", ("d",))]
    assert run.drain() == run.turn() == []
    run.feed(words("e", 9))
    assert run.result.late == [(Word("e", 9_000), LateReason.CLOSED)]


def test_a_dict_is_read_as_a_record_and_any_other_row_as_it_is():
    @tumbling(count(3), timestamp="at", output="kinds string")
    def kinds(window):
        return " ".join(type(row).__name__ for row in window)

    rows = [{"at": 1}, Word("b", 2), SimpleNamespace(at=3)]
    assert run_local(kinds, [rows])["default"] == [("Row Word SimpleNamespace",)]


def test_the_watermark_waits_for_every_input_stream():
    run = LocalRun(word_count, streams=("left", "right"))
    run.feed(words("a b", 1, 12), "left")
    assert run.turn() == []
    run.feed(words("c", 11), "right")
    assert [row[1] for _, row in run.turn()] == ["a"]


def test_a_batch_of_several_streams_is_a_mapping_of_stream_to_rows():
    batches = [{"left": words("a b", 1, 12), "right": words("c", 11)}]
    result = run_local(word_count, batches, drain=False, streams=("left", "right"))
    assert [row[1] for row in result["default"]] == ["a"]


def test_each_source_has_its_own_watermark():
    @tumbling(seconds(1), timestamp="at", source="partition", output="n long")
    def size(window):
        return len(window)

    run = LocalRun(size)
    run.feed([{"at": 500, "partition": 0}, {"at": 9_000, "partition": 1}])
    assert run.turn() == []
    run.feed([{"at": 1_200, "partition": 0}])
    assert run.turn() == [("default", (1,))]


def test_a_keyed_bolt_has_separate_windows_per_key():
    @tumbling(count(2), timestamp="at", key="word", output="word string, n long")
    def pairs(window):
        return (window.key, len(window))

    result = run_local(pairs, [words("a b a b b a", 1, 2, 3, 4, 5, 6)])
    assert result["default"] == [("a", 2), ("b", 2), ("b", 1), ("a", 1)]


@pytest.mark.parametrize("nan", [float, np.float64, np.float32, np.float16, Decimal])
@pytest.mark.parametrize("key", ["k", ("k", "m")])
def test_all_nan_of_any_type_are_one_key(nan, key):
    @tumbling(count(2), key=key, output="n long")
    def pairs(window):
        return len(window)

    assert run_local(pairs, [[{"k": nan("nan"), "m": 1}, {"k": nan("nan"), "m": 1}]])["default"] == [(2,)]


def test_a_composite_key_is_a_tuple_in_which_nan_equals_nan():
    @tumbling(count(2), timestamp="at", key=("a", "b"), output="key string, n long")
    def pairs(window):
        return (repr(window.key), len(window))

    rows = [{"at": 1, "a": 1, "b": float("nan")}, {"at": 2, "a": 1, "b": float("nan")}]
    assert run_local(pairs, [rows])["default"] == [("(1, nan)", 2)]


def test_a_bolt_with_a_collector_emits_to_several_streams():
    @tumbling(count(2), timestamp="at", output={"default": "n long", "words": "word string"})
    def split(window, collector):
        collector.emit(len(window))
        for row in window:
            collector.emit(row.word, stream="words")

    result = run_local(split, [words("a b", 1, 2)])
    assert result.rows == {"default": [(2,)], "words": [("a",), ("b",)]}


def test_a_class_bolt_gets_prepare_with_its_context_and_then_cleanup():
    told = []

    @tumbling(count(1), timestamp="at", output="n long")
    class Sized:
        def prepare(self, context):
            told.append(context)

        def execute(self, window):
            return len(window)

        def cleanup(self):
            told.append("cleanup")

    run_local(Sized, [words("a b", 1, 2)])
    assert told == [TopologyContext("Sized", 0, 1), "cleanup"]


def test_a_window_returns_its_new_and_expired_tuples():
    @sliding(count(2), count(1), timestamp="at", output="new string, expired string")
    def changes(window):
        return tuple(" ".join(r.word for r in part) for part in (window.get_new(), window.get_expired()))

    assert run_local(changes, [words("a b c", 1, 2, 3)])["default"] == [("a", ""), ("b", ""), ("c", "a")]


def test_reading_a_window_after_execute_is_a_stale_window_error():
    kept = []

    @tumbling(count(1), timestamp="at", output="n long")
    def keeper(window):
        kept.append(window)

    run_local(keeper, [words("a", 1)])
    with pytest.raises(StaleWindowError):
        kept[0].get()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_of_ones_own_may_stand_at_a_whole_number_of_numpy(restarts):
    times = iter(range(5_000, 50_000, 700))

    @tumbling(seconds(1), output="end long, n long")
    def counted(window):
        return window.end_timestamp, len(window)

    clock = SimpleNamespace(now_ms=lambda: np.int64(next(times)))
    result = run_local(counted, [[{"n": 1}], [{"n": 2}], [{"n": 3}]], clock=clock, restarts=restarts)
    assert [n for _, n in result["default"]] == [1, 1, 1]
    assert {type(end) for end, _ in result["default"]} == {int}


def test_a_clock_of_ones_own_that_goes_on_in_fractions_is_refused():
    times = iter([5_000, 5_000, 5_700.5])
    run = LocalRun(word_count, clock=SimpleNamespace(now_ms=lambda: next(times)))
    run.feed(words("to be", 1, 4))
    with pytest.raises(ConfigError, match=r"whole milliseconds since 1970, got 5700\.5"):
        run.turn()


def test_batches_may_come_from_a_generator_that_advances_the_clock():
    clock = VirtualClock(1_000)

    def batches():
        yield [{"word": "a"}]
        clock.advance(minutes(1))
        yield [{"word": "b"}, {"word": "c"}]

    @tumbling(seconds(10), output="end long, n long")
    def size(window):
        return (window.end_timestamp, len(window))

    assert run_local(size, batches(), clock=clock)["default"] == [(10_000, 1), (70_000, 2)]


# -- a bolt that fails -------------------------------------------------------------------------------------------------


def failing(on_error: str, kind=ValueError, **options):
    @sliding(count(2), count(1), timestamp="at", on_error=on_error, output="words string", **options)
    def joined(window):
        if any(row.word == "bad" for row in window):
            raise kind("a bad word")
        return "".join(row.word for row in window)

    return joined


STORY = "a bad b c", 1, 2, 3, 4


def test_on_error_raise_names_bolt_window_and_cause_and_emits_nothing():
    run = LocalRun(failing("raise"))
    run.feed(words(*STORY))
    with pytest.raises(BoltError, match=r"bolt 'joined' failed on TupleWindow\(end=2000\): ValueError: a bad word"):
        run.turn()
    assert run.result["default"] == []
    with pytest.raises(WindowingError, match="the run of bolt 'joined' is over: it ended with BoltError"):
        run.turn()


def test_on_error_skip_drops_the_window_and_counts_the_failure():
    result = run_local(failing("skip"), [words(*STORY)])
    assert result["default"] == [("a",), ("bc",)]
    assert (result.failures, result.acked, result.failed, result.dead_letters) == (2, 4, [], [])


@pytest.mark.parametrize(("on_error", "outcome"), [("skip", "it is skipped"), ("fail", "its tuples fail")])
def test_the_first_errors_of_skipped_and_failed_windows_are_logged_as_on_spark(on_error, outcome, caplog):
    result = run_local(failing(on_error), [words("bad " * 9, *range(9))])
    assert result.failures == 9
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 8
    assert lines[0].startswith("bolt 'joined' failed on TupleWindow(end=0): ValueError: a bad word (")
    assert lines[0].endswith(f"); {outcome}")


def test_a_plain_failed_exception_and_a_dead_letter_are_not_logged(caplog):
    run_local(failing("fail", kind=FailedException), [words(*STORY)])
    run_local(failing("dead_letter"), [words(*STORY)])
    assert caplog.records == []


def test_failures_that_are_not_logged_leave_room_for_an_error(caplog):
    @tumbling(count(1), timestamp="at", on_error="fail", output="words string")
    def fails(window):
        raise FailedException("again") if window.get()[0].word == "bad" else ValueError("wrong")

    assert run_local(fails, [words("bad " * 9 + "worse", *range(10))]).failures == 10
    (line,) = caplog.records
    assert "ValueError: wrong" in line.getMessage()


def test_on_error_dead_letter_keeps_the_window_with_its_tuples():
    result = run_local(failing("dead_letter"), [words(*STORY)])
    assert result["default"] == [("a",), ("bc",)]
    first, second = result.dead_letters
    assert (first.window_start, first.window_end, first.window_key) == (None, 2_000, None)
    assert [row.word for row in first.tuples] == ["a", "bad"]
    assert [row.word for row in second.tuples] == ["bad", "b"]
    assert isinstance(first.error.__cause__, ValueError)


def test_on_error_fail_fails_each_tuple_once_keeps_it_in_other_windows_and_never_acks_it():
    result = run_local(failing("fail"), [words(*STORY)])
    assert result["default"] == [("a",), ("bc",)]  # b failed, and is still in the next window
    assert [row.word for row in result.failed] == ["a", "bad", "b"]
    assert result.acked == 1  # c


def test_rows_that_are_one_object_fail_and_expire_separately():
    same = Word("bad", 1_000)
    result = run_local(failing("fail"), [[same, same, same]])
    assert result.failed == [same, same, same]
    assert result.acked == 0


def test_of_identical_objects_as_many_stay_unacked_as_have_failed():
    @sliding(count(4), count(2), timestamp="at", on_error="fail", output="n long")
    def picky(window):
        if any(row.word == "bad" for row in window):
            raise ValueError
        return len(window)

    same, a, b, bad, c = (Word(word, 1_000) for word in ("same", "a", "b", "bad", "c"))
    result = run_local(picky, [[same, a, same, same, b, bad, same, c]])
    assert result.failed == [same, same, b, bad, same, c]  # the first of the four objects was in neither window
    assert result.acked == 2  # it, and a


def test_a_failed_call_emits_nothing():
    @tumbling(count(1), timestamp="at", on_error="skip", output="n long")
    def half(window, collector):
        collector.emit(1)
        raise ValueError

    assert run_local(half, [words("a", 1)])["default"] == []


def test_an_error_in_cleanup_does_not_hide_the_first_error():
    @tumbling(count(1), timestamp="at", output="n long")
    class Doubly:
        def execute(self, window):
            raise ValueError("first")

        def cleanup(self):
            raise ValueError("second")

    with pytest.raises(BoltError, match="first"):
        run_local(Doubly, [words("a", 1)])


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_wrong_streams_batches_and_bolts_are_refused_with_the_fix():
    with pytest.raises(ConfigError, match=r"rows came on stream 'left', the declared ones are default; write streams="):
        LocalRun(word_count).feed([], "left")
    with pytest.raises(ConfigError, match=r"declared ones are left, right; write feed\(rows, 'left'\)"):
        LocalRun(word_count, streams=("left", "right")).feed([])
    with pytest.raises(ConfigError, match=r"streams is a list of input streams, got the text 'left'"):
        LocalRun(word_count, streams="left")
    with pytest.raises(ConfigError, match="a batch without stream names came to a bolt with the input streams a, b"):
        run_local(word_count, [words("a", 1)], streams=("a", "b"))
    with pytest.raises(ConfigError, match="is not declared as a bolt"):
        run_local(len, [])


def test_a_closed_run_refuses_every_step():
    with LocalRun(word_count) as run:
        run.feed(words("a", 1))
    for step in (run.turn, run.tick, run.drain, lambda: run.feed([])):
        with pytest.raises(WindowingError, match="is over: it was closed; make another LocalRun"):
            step()


# -- the same as the window machine itself -----------------------------------------------------------------------------


def bolt_of_case(case) -> WindowedBolt:
    def seen(window: TupleWindow):
        return [[row["id"] for row in part] for part in (window.get(), window.get_new(), window.get_expired())] + [
            window.end_timestamp
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedTuplesWarning)
        config = config_of(case)
    schema = Schema.parse("ids array<long>, new array<long>, expired array<long>, reference long")
    target = lambda window: tuple(seen(window))  # noqa: E731
    return WindowedBolt(name="seen", config=config, outputs={"default": schema}, target=target, style=CallStyle.ROWS)


@given(cases(keyed=None, key_ttl=None, drains=None, offset=None, lateness=None, source=None, idle=None, future=None))
def test_a_local_run_fires_the_windows_of_the_window_machine(case):
    clock = VirtualClock(case["clock_start_ms"])
    streams = case["event_time"]["streams"] if case["event_time"] else ("default",)
    run = LocalRun(bolt_of_case(case), streams=streams, clock=clock)
    run.turn()
    for op in case["ops"]:
        more = op[-1] if isinstance(op[-1], dict) else {}
        match op:
            case ["clock", ms]:
                clock.set(ms)
            case ["add", number, *_]:
                run.feed([{"id": number, **more}])
            case ["tuple", stream, number, ts, *_]:
                run.feed([{"id": number, "ts": ts, **more}], stream)
            case ["drain"]:
                run.drain()
            case _:
                run.turn()
    # Over the clock, a feed first fires the windows that are due.
    ops = [each for op in case["ops"] for each in ([["tick"], op] if op[0] == "add" else [op])]
    events = replay({**case, "ops": ops})
    assert [list(row) for row in run.result["default"]] == [event[2:] for event in events if event[1] == "activate"]
    assert [late.row["id"] for late in run.result.late] == [event[2] for event in events if event[1] == "late"]
    assert run.result.acked == sum(len(event[2]) for event in events if event[1] == "expire") + len(run.result.late)


def test_a_window_with_an_aggregate_fails_without_its_tuples():
    @tumbling(count(2), timestamp="at", aggregate=agg.count(), on_error="dead_letter", output="n long")
    def broken(window):
        raise ValueError(window.aggregate)

    result = run_local(broken, [words("a b", 1, 2)])
    assert [letter.tuples for letter in result.dead_letters] == [None]


@pytest.mark.parametrize("size", [count(2), seconds(2)])
def test_on_error_fail_fails_the_tuples_of_a_window_with_an_aggregate(size):
    @tumbling(size, timestamp="at", aggregate=agg.count(), on_error="fail", output="n long")
    def broken(window):
        if window.aggregate == 2:
            raise ValueError(window.aggregate)

    result = run_local(broken, [words("a b c", 1, 2, 3)])
    assert ([row.word for row in result.failed], result.acked) == (["a", "b"], 1)


@windowed_bolt(length=seconds(4), slide=seconds(2), timestamp="at", output="n long")
def sized(window):
    return len(window)


def test_a_decorated_function_can_still_be_called():
    class Content:
        def __len__(self):
            return 3

    assert sized(TupleWindow(Content(), 0, 4)) == 3


def test_a_run_says_how_far_it_is():
    @tumbling(seconds(10), timestamp="at")
    def sees(window):
        """Nothing."""

    run = LocalRun(sees, clock=VirtualClock())
    assert repr(run) == "LocalRun('sees', 0 tuples in, 0 pending, running)"
    run.feed([{"at": 1_000}, {"at": 12_000}])
    run.turn()
    assert repr(run) == "LocalRun('sees', 2 tuples in, 1 pending, running)"
    run.close()
    assert repr(run).endswith(", 1 pending, it was closed)")
