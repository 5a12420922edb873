"""BoltRunner: the rows that a bolt may emit, the errors of its failures, and their handling by on_error."""

from __future__ import annotations

import functools
import traceback
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from windowing.errors import BoltError, StaleWindowError
from windowing.topology.decorators import bolt_of, windowed_bolt
from windowing.topology.user_code import BoltRunner, Collector, Emission
from windowing.windows.events import ListContent, TupleWindow
from windowing.windows.measures import Count

PAIR = "origin string, n long"
Pair = namedtuple("Pair", "origin n")


def window_of(*tuples: Any, key: Any = None) -> TupleWindow:
    return TupleWindow(ListContent(list(tuples), list(tuples), []), 10, 20, key)


def runner_of(target: Any, output: Any = PAIR, **options: Any) -> BoltRunner:
    runner = BoltRunner(bolt_of(windowed_bolt(Count(3), output=output, name="count", **options)(target)))
    runner.open()
    return runner


def rows(returned: Any, output: str = PAIR) -> list[tuple[Any, ...]]:
    emissions = runner_of(lambda window: returned, output).run(window_of(1))
    assert all(stream == "default" for stream, _ in emissions)
    return [values for _, values in emissions]


def failure(target: Any, *words: str, output: Any = PAIR, window: TupleWindow | None = None) -> BoltError:
    with pytest.raises(BoltError) as caught:
        runner_of(target, output).run(window or window_of(1))
    for word in ("bolt 'count'", "TupleWindow(start=10, end=20", *words):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def wrong(returned: Any, *words: str, output: Any = PAIR) -> None:
    failure(lambda window: returned, "emitted a wrong row", *words, output=output)


def test_none_emits_no_row() -> None:
    assert rows(None) == rows([]) == rows(iter(())) == []


def test_a_tuple_or_a_dict_is_one_row() -> None:
    assert rows(("JFK", 3)) == rows(Pair("JFK", 3)) == rows({"n": 3, "origin": "JFK"}) == [("JFK", 3)]


def test_a_tuple_of_tuples_is_one_row_if_it_fits() -> None:
    pair = "x string, y int"
    assert rows((("JFK", 1), ("LGA", 2)), f"a struct<{pair}>, b struct<{pair}>") == [
        ({"x": "JFK", "y": 1}, {"x": "LGA", "y": 2})
    ]
    wrong((("JFK", 1), ("LGA", 2), ("EWR", 3)), "got 3 values", "give a list for several")


def test_any_other_iterable_is_a_sequence_of_rows() -> None:
    made = [("JFK", 3), ["LGA", 2], {"origin": "EWR", "n": 1}]
    wanted = [("JFK", 3), ("LGA", 2), ("EWR", 1)]
    assert rows(made) == rows(iter(made)) == rows(deque(made)) == rows(row for row in made) == wanted
    assert rows({"JFK": 3}.items()) == [("JFK", 3)]


def test_a_scalar_is_a_row_of_a_stream_with_one_field() -> None:
    assert rows("JFK", "origin string") == rows(["JFK"], "origin string") == [("JFK",)]
    assert rows(b"ab", "raw binary") == [(b"ab",)]
    assert rows(3, "n int") == rows((3,), "n int") == rows({"n": 3}, "n int") == [(3,)]
    assert rows(range(3), "n int") == [(0,), (1,), (2,)]


def test_a_list_value_must_be_in_a_tuple() -> None:
    assert rows(([1, 2],), "n array<int>") == rows([([1, 2],)], "n array<int>") == [([1, 2],)]
    wrong([[1, 2]], "got 2 values", "put a value that is itself a list or a dict into a tuple", output="n array<int>")


def test_a_row_that_does_not_fit_is_refused_with_the_wanted_fields_and_the_row() -> None:
    fields = "stream 'default' has 2 fields (origin string, n bigint)"
    wrong(("JFK",), fields, "got 1 value: ('JFK',)")
    wrong([("JFK", 3), ("LGA", 2, 1)], fields, "got 3 values")
    wrong("JFK", fields, "single value 'JFK'", "give a tuple or a dict")
    wrong({"origin": "JFK"}, fields, "without n")
    wrong({"origin": "JFK", "n": 3, "m": 4}, fields, "with 'm' too")
    wrong({"Origin": "JFK", "n": 3}, fields, "without origin and with 'Origin' too")
    wrong([("JFK", 3), None], fields, "got None as a row", "(None,)")
    wrong({("JFK", 3)}, "a set, whose order changes", "sorted(...)")


def test_a_value_is_converted_to_its_declared_type() -> None:
    got = rows([("JFK", 3.0), (None, np.int64(2)), ("LGA", True + 1)])
    assert got == [("JFK", 3), (None, 2), ("LGA", 2)]
    assert [type(n) for _, n in got] == [int, int, int]


def test_a_value_of_another_type_is_refused_with_field_type_and_value() -> None:
    declared = "field 'n' of stream 'default' is declared bigint"
    wrong(("JFK", "text"), declared, "got 'text', wanted a whole number", "change the declaration")
    wrong(("JFK", 1.5), declared, "got 1.5, wanted a whole number")
    wrong({"origin": "JFK", "n": True}, declared, "got True")
    wrong(([1, 1.5],), "declared array<int>", "got 1.5, wanted a whole number", output="n array<int>")


def test_a_value_of_another_type_is_refused_with_the_window_and_the_line() -> None:
    def collects(window: TupleWindow, collector: Collector) -> None:
        collector.emit(("JFK", 1))
        collector.emit(("JFK", "text"))

    def returns(window: TupleWindow) -> Any:
        return "JFK", "text"

    for target, line in ((collects, 2), (returns, 0)):
        with pytest.raises(BoltError) as found:
            runner_of(target).run(window_of(1))
        place = f"({__file__}:{target.__code__.co_firstlineno + line})"
        for word in ("bolt 'count'", "TupleWindow(start=10, end=20", "got 'text'", place):
            assert word in str(found.value)


def test_an_awaitable_is_refused() -> None:
    async def later() -> int:
        return 1

    wrong(later(), "which nobody awaits")
    failure(lambda window, collector: later(), "which nobody awaits")


def test_a_generator_is_exhausted_while_the_window_is_valid() -> None:
    def each(window: TupleWindow) -> Iterator[tuple[str, int]]:
        for tuple_ in window:
            yield "JFK", tuple_

    window = window_of(1, 2)
    emissions = runner_of(each).run(window)
    window.invalidate()
    assert emissions == [("default", ("JFK", 1)), ("default", ("JFK", 2))]


def test_a_collector_emits_to_every_declared_stream_in_order() -> None:
    def collects(window: TupleWindow, collector: Collector) -> None:
        collector.emit(("JFK", 1))
        collector.emit("LGA", stream="slow")
        collector.emit({"n": 2, "origin": "EWR"})

    wanted: list[Emission] = [("default", ("JFK", 1)), ("slow", ("LGA",)), ("default", ("EWR", 2))]
    assert runner_of(collects, {"default": PAIR, "slow": "origin string"}).run(window_of(1)) == wanted


def test_a_collector_refuses_undeclared_streams_and_wrong_rows() -> None:
    failure(lambda window, collector: collector.emit(1, stream="slw"), "'slw' is not declared, there are default")
    failure(lambda window, collector: collector.emit(("JFK",)), "got 1 value", "test_runner.py:")
    failure(lambda window, collector: ("JFK", 1), "yet it returned ('JFK', 1)", "return nothing")
    late = runner_of(lambda window, collector: collector.emit(1, stream="late"), timestamp="ts", late_stream="late")
    with pytest.raises(BoltError, match="'late' is the late stream, which takes late tuples only"):
        late.run(window_of(1))


def test_a_collector_is_closed_when_the_call_returns() -> None:
    kept: list[Collector] = []
    runner = runner_of(lambda window, collector: kept.append(collector))
    assert runner.run(window_of(1)) == []
    with pytest.raises(BoltError, match=r"emitted .* after its execute had returned"):
        kept[0].emit(("JFK", 1))


def test_a_failed_call_emits_nothing() -> None:
    def fails(window: TupleWindow, collector: Collector) -> None:
        collector.emit(("JFK", len(window)))
        if len(window) == 1:
            raise ValueError("one")

    runner = runner_of(fails)
    with pytest.raises(BoltError, match="ValueError: one"):
        runner.run(window_of(1))
    assert runner.run(window_of(1, 2)) == [("default", ("JFK", 2))]


def test_a_failure_names_bolt_window_cause_and_line() -> None:
    def helper(value: str) -> int:
        return int(value)

    def fails(window: TupleWindow) -> Any:
        return helper("x")

    error = failure(fails, "bolt 'count' failed on TupleWindow(start=10, end=20): ValueError: invalid literal")
    line = helper.__code__.co_firstlineno + 1
    assert str(error).endswith(f" ({__file__}:{line})")
    assert isinstance(error.__cause__, ValueError)
    assert "int(value)" in "".join(traceback.format_exception(error))


def test_a_failure_in_a_generator_partial_class_or_object_names_its_line() -> None:
    def yields(window: TupleWindow) -> Iterator[Any]:
        yield "JFK", 1
        raise KeyError("k")

    def limited(window: TupleWindow, limit: int) -> Any:
        raise KeyError("k")

    class Fails:
        def execute(self, window: TupleWindow) -> Any:
            raise KeyError("k")

    class Calls:
        def __call__(self, window: TupleWindow) -> Any:
            raise KeyError("k")

    for target in (yields, functools.partial(limited, limit=1), Fails, Calls()):
        failure(target, "KeyError: 'k' (", f"{__file__}:")


def test_a_failure_inside_a_library_names_the_line_of_the_bolt() -> None:
    def stale(window: TupleWindow) -> Any:
        window.invalidate()
        return list(window)

    error = failure(stale, "StaleWindowError", f"({__file__}:{stale.__code__.co_firstlineno + 2})")
    assert isinstance(error.__cause__, StaleWindowError)


def test_sys_exit_is_a_failure_and_keyboard_interrupt_is_not() -> None:
    def leaves(window: TupleWindow) -> Any:
        raise SystemExit(3)

    def interrupted(window: TupleWindow) -> Any:
        raise KeyboardInterrupt

    failure(leaves, "SystemExit: 3")
    with pytest.raises(KeyboardInterrupt):
        runner_of(interrupted, on_error="skip").run(window_of(1))


def test_an_error_is_one_printable_line_for_any_data() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def raising(problem: BaseException) -> Callable[[TupleWindow], Any]:
        def fails(window: TupleWindow) -> Any:
            raise problem

        return fails

    error = failure(
        raising(ValueError("a\nb\x1b[31m\u202e\ud800" + "x" * 2000)), "ValueError: a\\nb\\x1b[31m\\u202e\\ud800x"
    )
    assert len(str(error)) < 1000
    failure(raising(ValueError()), "ValueError (")
    failure(raising(Silent()), "(its message cannot be made)")
    failure(raising(ValueError("no")), window=window_of(1, key="k\u202e" * 500))


def test_a_class_gets_prepare_at_open_and_cleanup_at_close() -> None:
    seen: list[Any] = []

    class Lives:
        def __init__(self) -> None:
            self.calls = 0

        def prepare(self, context: Any) -> None:
            seen.append(("prepare", context))

        def execute(self, window: TupleWindow) -> Any:
            self.calls += 1
            return "JFK", self.calls

        def cleanup(self) -> None:
            seen.append("cleanup")

    runner = BoltRunner(bolt_of(windowed_bolt(Count(3), output=PAIR)(Lives)))
    runner.open({"task": 1})
    assert runner.run(window_of(1)) + runner.run(window_of(2)) == [("default", ("JFK", 1)), ("default", ("JFK", 2))]
    runner.close()
    runner.close()
    assert seen == [("prepare", {"task": 1}), "cleanup"]
    runner.open()
    assert runner.run(window_of(1)) == [("default", ("JFK", 1))]


def test_a_runner_must_be_opened_exactly_once_before_it_runs() -> None:
    runner = BoltRunner(
        bolt_of(windowed_bolt(Count(3), output=PAIR, name="count", on_error="skip")(lambda window: None))
    )
    with pytest.raises(BoltError, match="'count' is not open; call open"):
        runner.run(window_of(1))
    runner.close()
    runner.open()
    with pytest.raises(BoltError, match="already open"):
        runner.open()


def test_a_failure_in_prepare_or_cleanup_names_the_method_and_cleanup_follows_a_failed_prepare() -> None:
    cleaned = []

    class Fails:
        def prepare(self, context: Any) -> None:
            if not context:
                raise ValueError("no context")

        def execute(self, window: TupleWindow) -> None: ...

        def cleanup(self) -> None:
            cleaned.append(self)
            raise SystemExit

    runner = BoltRunner(bolt_of(windowed_bolt(Count(3), output=PAIR)(Fails)))
    with pytest.raises(
        BoltError, match=r"bolt 'Fails' failed in prepare: ValueError: no context \(.*test_runner.py:\d+\)"
    ):
        runner.open()
    assert len(cleaned) == 1
    runner.open("context")
    with pytest.raises(BoltError, match="bolt 'Fails' failed in cleanup: SystemExit"):
        runner.close()
    runner.close()
    assert len(cleaned) == 2
