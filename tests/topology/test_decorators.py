"""@windowed_bolt, @tumbling, @sliding: what they accept and refuse, and that they return their target unchanged."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import windowing
from windowing.errors import BoltError, ConfigError
from windowing.local import run_local
from windowing.schema.types import Schema
from windowing.topology import decorators
from windowing.topology.bolts import STATE_METHODS, CallStyle, WindowedBolt
from windowing.topology.components import BasicBolt, Bolt, Spout, StatefulBolt, StatefulWindowedBolt
from windowing.topology.decorators import bolt_of, declaration_of, sliding, tumbling, windowed_bolt
from windowing.windows import aggregate as agg
from windowing.windows.config import SkippedTuplesWarning
from windowing.windows.events import ListContent, TupleWindow
from windowing.windows.measures import Count, minutes, seconds
from windowing.windows.trigger import CountTriggerPolicy

three: Callable[[Any], Any] = tumbling(Count(3), output="n long")


def window_of(*tuples: Any) -> TupleWindow:
    return TupleWindow(ListContent(list(tuples), list(tuples), []), None, 7)


def refused(declare: Callable[[], Any], *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declare()
    for word in words:
        assert word in str(caught.value)


def plain(window: TupleWindow) -> int:
    return len(window)


@windowed_bolt(Count(3), output="n long")
def at_the_top(window: TupleWindow) -> int:
    return len(window)


def test_a_decorated_function_or_class_is_returned_unchanged() -> None:
    def total(window: TupleWindow) -> int:
        return sum(window)

    assert three(total) is total
    assert total(window_of(1, 2)) == 3

    class Total:
        def execute(self, window: TupleWindow) -> int:
            return sum(window)

    assert three(Total) is Total
    assert Total().execute(window_of(1, 2)) == 3


def test_a_declaration_is_collected_into_a_bolt() -> None:
    @windowed_bolt(
        length=minutes(60),
        slide=minutes(15),
        timestamp="departure",
        lag=minutes(1),
        late_stream="late",
        output={"slow": "origin string", "default": "origin string, flights long"},
    )
    def count_flights(window: TupleWindow) -> None: ...

    bolt = bolt_of(count_flights)
    assert (bolt.name, bolt.target, bolt.style, bolt.is_class) == (
        "count_flights",
        count_flights,
        CallStyle.ROWS,
        False,
    )
    assert list(bolt.outputs) == ["default", "slow"]
    assert bolt.outputs["default"] == Schema(("origin", "flights"), ("string", "bigint"))
    assert (bolt.config.slide, bolt.config.lag_ms, bolt.config.late_stream) == (minutes(15), 60_000, "late")
    assert bolt_of(bolt) is bolt


def test_tumbling_slides_by_its_length_and_sliding_by_its_slide() -> None:
    assert bolt_of(tumbling(Count(3), output="n int")(lambda_named("a"))).config.slide == Count(3)
    assert bolt_of(sliding(Count(3), seconds(2), output="n int")(lambda_named("b"))).config.slide == seconds(2)
    assert bolt_of(windowed_bolt(Count(3), output="n int")(lambda_named("c"))).config.slide == Count(1)
    options: dict[str, Any] = {"slide": Count(1)}
    refused(lambda: tumbling(Count(3), output="n int", **options), "slides by its length", "@sliding")


def lambda_named(name: str) -> Callable[[TupleWindow], int]:
    def function(window: TupleWindow) -> int:
        return len(window)

    function.__name__ = name
    return function


def test_the_calling_style_is_read_from_the_signature() -> None:
    def rows(window: TupleWindow, threshold: int = 3, *, verbose: bool = False) -> Iterator[int]:
        yield threshold

    def collects(window: TupleWindow, out: Any) -> None: ...

    def may_collect(window: TupleWindow, collector: Any = None) -> None: ...

    assert [bolt_of(three(f)).style for f in (rows, collects, may_collect)] == [
        CallStyle.ROWS,
        CallStyle.COLLECTOR,
        CallStyle.COLLECTOR,
    ]


def test_a_class_may_have_execute_of_any_kind_of_method() -> None:
    class Collects:
        def __init__(self, size: int = 3) -> None: ...
        def prepare(self, context: Any) -> None: ...
        def execute(self, window: TupleWindow, collector: Any) -> None: ...
        def cleanup(self) -> None: ...

    class Static:
        @staticmethod
        def execute(window: TupleWindow) -> None: ...

    class OfTheClass:
        @classmethod
        def execute(cls, window: TupleWindow) -> None: ...

    bolts = [bolt_of(three(c)) for c in (Collects, Static, OfTheClass)]
    assert [bolt.style for bolt in bolts] == [CallStyle.COLLECTOR, CallStyle.ROWS, CallStyle.ROWS]
    assert all(bolt.is_class for bolt in bolts)


def test_a_class_that_cannot_be_a_bolt_is_refused() -> None:
    class Nothing: ...

    class PreparesAlone:
        def prepare(self) -> None: ...
        def execute(self, window: TupleWindow) -> None: ...

    class Waits:
        async def execute(self, window: TupleWindow) -> None: ...

    class NoSelf:
        def execute() -> None: ...  # type: ignore[misc]

    refused(lambda: three(Nothing), "Nothing' has no execute", "execute(self, window)")
    refused(lambda: three(PreparesAlone), "PreparesAlone.prepare", "def prepare(self, context)")
    refused(lambda: three(Waits), "is async")
    refused(lambda: three(NoSelf), "a bolt takes (window) or (window, collector)")


def test_a_class_over_windows_inherits_from_no_other_bolt() -> None:
    class Acking(windowing.Bolt):
        def execute(self, tuple: Any) -> None: ...

    refused(lambda: three(Acking), "Acking' inherits from Bolt", "from nothing, or from StatefulWindowedBolt")
    refused(lambda: type("Mine", (WindowedBolt,), {}), "'Mine' inherits from WindowedBolt", "@windowed_bolt")


def test_a_function_that_cannot_be_called_with_a_window_is_refused() -> None:
    forms = "a bolt takes (window) or (window, collector)"

    def nothing() -> None: ...
    def too_much(window: Any, collector: Any, more: Any) -> None: ...
    def keyword(window: Any, *, threshold: int) -> None: ...
    def anything(*arguments: Any, **options: Any) -> None: ...
    def both(window: Any, collector: Any) -> Iterator[int]:
        yield 1

    async def waits(window: Any) -> None: ...
    async def streams(window: Any) -> Any:
        yield 1

    for function in (nothing, too_much):
        refused(lambda function=function: three(function), "cannot be called with a window", forms)
    refused(lambda: three(keyword), "needs keyword arguments", forms)
    refused(lambda: three(anything), "functools.wraps", forms)
    refused(lambda: three(both), "yields rows and takes a collector", forms)
    refused(lambda: three(waits), "is async")
    refused(lambda: three(streams), "is async")
    refused(lambda: three(7), "a bolt is a function or a class", "got 7")


def test_declaring_a_bolt_twice_is_refused() -> None:
    def once(window: TupleWindow) -> None: ...

    three(once)
    refused(lambda: three(once), "once' is already declared as a bolt")


def test_a_subclass_needs_its_own_declaration() -> None:
    @three
    class Parent:
        def execute(self, window: TupleWindow) -> None: ...

    class Child(Parent): ...

    refused(lambda: bolt_of(Child), "Child' is not declared as a bolt", "inherits")
    assert bolt_of(three(Child)).name == "Child"
    assert bolt_of(Parent).name == "Parent"


@three
class Over:
    """Counts the tuples over a limit; `seen` has the size of each window."""

    def __init__(self, limit: int, seen: list[int] | None = None) -> None:
        self.limit, self.seen = limit, seen if seen is not None else []

    def execute(self, window: TupleWindow) -> int:
        self.seen.append(len(window))
        return sum(n > self.limit for n in window)


def test_a_class_gets_arguments_by_a_partial_or_as_an_instance() -> None:
    for target in (Over(2), functools.partial(Over, 2), functools.partial(Over, limit=2)):
        assert (bolt_of(target).name, bolt_of(target).is_class, bolt_of(target).outputs) == (
            "Over",
            True,
            bolt_of(three(lambda_named("same"))).outputs,
        )
        assert run_local(target, [[1, 2, 3], [4, 5, 6]])["default"] == [(1,), (3,)]
    refused(lambda: bolt_of(Over), "(limit: 'int'", "give an instance, or functools.partial")
    refused(lambda: bolt_of(functools.partial(Over)), "with these arguments", "fill in what is missing")
    refused(lambda: bolt_of(Plain()), "'Plain' is not declared as a bolt", "inherits")


def test_each_task_has_a_copy_of_a_given_instance_in_its_first_state() -> None:
    given = Over(2)
    bolt = bolt_of(given)
    given.limit = 7
    one, other = bolt.target(), bolt.target()
    assert (one.limit, other.limit) == (2, 2)
    assert run_local(bolt, [[1, 2, 3]])["default"] == [(1,)]
    assert (given.seen, one.seen) == ([], [])
    refused(lambda: bolt_of(Over(2, seen=(n for n in ()))), "cannot be copied for each task")  # type: ignore[arg-type]


class Plain(Over):
    def __init__(self) -> None:
        super().__init__(1)


def test_a_partial_of_a_declared_function_fills_in_arguments_by_name() -> None:
    @three
    def over(window: TupleWindow, limit: int = 0) -> int:
        return sum(n > limit for n in window)

    assert run_local(functools.partial(over, limit=2), [[1, 2, 3]])["default"] == [(1,)]
    refused(lambda: bolt_of(functools.partial(over, 2)), "fills in the argument that the driver gives", "by name")
    refused(lambda: bolt_of(functools.partial(plain, limit=2)), "'plain' is not declared as a bolt")


def test_an_error_in_a_copied_bolt_names_its_line() -> None:
    @three
    class Fails:
        def execute(self, window: TupleWindow) -> int:
            return 1 // 0

    for target in (Fails, Fails(), functools.partial(Fails)):
        with pytest.raises(BoltError, match=r"bolt 'Fails' failed on .*test_decorators.py:\d+"):
            run_local(target, [[1, 2, 3]])


def test_an_undeclared_function_is_refused() -> None:
    refused(lambda: bolt_of(plain), "'plain' is not declared as a bolt", "@windowed_bolt(")
    above = "stands on no function or class yet; write @tumbling(...), say, in the line above one"
    refused(lambda: bolt_of(tumbling(Count(3))), above)
    refused(lambda: declaration_of(windowing.bolt(output="n long")), above)
    refused(lambda: bolt_of(3), "a bolt is a function or a class with @windowed_bolt(", "got 3;")
    refused(lambda: run_local([[1, 2, 3]], plain), "got [[1, 2, 3]]; the bolt comes first", "run_local(bolt, batches)")  # type: ignore[arg-type]
    refused(lambda: bolt_of(windowing.TopologyBuilder("t")), "A topology runs in LocalCluster, or on Spark by submit")
    refused(
        lambda: bolt_of(windowing.bolt(lambda row: None)),
        "or a bolt without windows",
        "run it in a topology",
    )


def test_a_decorator_without_parentheses_is_refused() -> None:
    bare: list[Any] = [windowed_bolt, tumbling]
    for decorator in bare:
        refused(lambda decorator=decorator: decorator(plain), "'plain' without saying which windows", "(...)")


def test_output_is_checked_when_a_bolt_is_declared() -> None:
    refused(lambda: windowed_bolt(Count(3), output="n lng"), "did you mean 'long'?")
    refused(
        lambda: windowed_bolt(
            Count(3), timestamp="ts", late_stream="late", output={"default": "n int", "Late": "n int"}
        ),
        "late_stream='late' is also a stream of output",
    )
    refused(lambda: windowed_bolt(Count(3), output={"slow": "n int"})(plain), "add 'default' to output")


def test_a_bolt_without_output_emits_nothing() -> None:
    seen: list[int] = []

    @windowed_bolt(Count(2), Count(2))
    def notes(window: TupleWindow) -> None:
        seen.append(len(window))

    @windowed_bolt(Count(2), Count(2))
    def yields_nothing(window: TupleWindow) -> Iterator[int]:
        seen.append(len(window))
        yield from ()

    @windowed_bolt(Count(2), Count(2))
    def collects(window: TupleWindow, collector: Any) -> None:
        collector.emit((1,))

    assert bolt_of(notes).outputs == {}
    assert (run_local(notes, [[1, 2, 3]]).rows, run_local(yields_nothing, [[1, 2, 3]]).rows) == ({}, {})
    assert seen == [2, 1, 2, 1]
    for bolt in (windowed_bolt(Count(2))(lambda_named("counts")), three_of_nothing):
        with pytest.raises(BoltError, match=r"it declares no output, yet it returned (None|1); add output="):
            run_local(bolt, [[1]])
    with pytest.raises(BoltError, match="stream 'default' is not declared, there are none; add output="):
        run_local(collects, [[1, 2]])


@windowed_bolt(Count(1))
def three_of_nothing(window: TupleWindow) -> Iterator[None]:
    yield None


def test_dead_letters_is_refused_as_a_stream_of_a_bolt_that_sends_dead_letters() -> None:
    own: list[dict[str, Any]] = [
        {"output": {"default": "n int", "Dead_Letters": "n int"}},
        {"output": "n int", "timestamp": "ts", "late_stream": "dead_letters"},
    ]
    for options in own:
        refused(
            lambda options=options: windowed_bolt(Count(3), on_error="dead_letter", **options), "give that one another"
        )
        windowed_bolt(Count(3), on_error="skip", **options)


def test_a_function_with_a_collector_needs_no_default_stream() -> None:
    def collects(window: TupleWindow, collector: Any) -> None: ...

    assert list(bolt_of(windowed_bolt(Count(3), output={"slow": "n int"})(collects)).outputs) == ["slow"]


def test_an_invalid_window_is_refused_when_it_is_declared() -> None:
    options: dict[str, Any] = {"lte_stream": "late"}
    refused(lambda: windowed_bolt(Count(3), output="n int", **options), "did you mean 'late_stream'?")
    refused(lambda: sliding(seconds(3), seconds(0), output="n int"), "slide must be positive")


def test_a_warning_has_the_line_of_the_declaration() -> None:
    for declare in (windowed_bolt, sliding):
        with pytest.warns(SkippedTuplesWarning) as caught:
            declare(Count(1), Count(2), output="n int")
        assert caught[0].filename == __file__


def test_a_lambda_needs_a_name() -> None:
    refused(lambda: three(lambda window: 1), "a lambda has no name", "name='")
    named = windowed_bolt(Count(3), output="n int", name="one")(lambda window: 1)
    assert (bolt_of(named).name, named(None)) == ("one", 1)
    refused(lambda: windowed_bolt(Count(3), output="n int", name="../one")(lambda window: 1), "must be a name")


def test_a_partial_has_the_name_of_its_function() -> None:
    def over(window: TupleWindow, limit: int) -> int:
        return sum(n > limit for n in window)

    target = three(functools.partial(over, limit=2))
    assert (bolt_of(target).name, bolt_of(target).style, target(window_of(1, 3))) == ("over", CallStyle.ROWS, 1)
    refused(lambda: three(functools.partial(lambda window, limit: 1, limit=2)), "a lambda has no name")


def test_a_wrapped_function_is_inspected_through_its_wrapper() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

        return wrapper

    def collects(window: TupleWindow, collector: Any) -> None: ...

    inside = three(logged(collects))
    assert (bolt_of(inside).name, bolt_of(inside).style) == ("collects", CallStyle.COLLECTOR)
    outside = logged(three(lambda_named("outside")))
    assert bolt_of(outside).target is outside


def test_a_callable_object_needs_a_name_and_a_method_is_refused() -> None:
    class Calls:
        def __call__(self, window: TupleWindow) -> int:
            return 1

        def method(self, window: TupleWindow) -> int:
            return 1

    refused(lambda: three(Calls()), "a Calls has no name")
    assert bolt_of(windowed_bolt(Count(3), output="n int", name="calls")(Calls())).name == "calls"
    refused(lambda: three(Calls().method), "cannot be marked", "wrap it in a function")


def test_a_bolt_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(bolt_of(at_the_top))) == bolt_of(at_the_top)


def definition(**declared: Any) -> dict[str, Any]:
    found = bolt_of(
        windowed_bolt(name="count", **{"length": seconds(4), "output": "n long"} | declared)(lambda window: 1)
    )
    text = json.dumps(found.definition())
    again: dict[str, Any] = json.loads(text)
    assert again == found.definition()
    return again


def test_a_definition_is_plain_data_in_two_parts() -> None:
    assert definition(slide=Count(2), timestamp="ts", key="k", aggregate={"n": agg.count()}, lag=seconds(1)) == {
        "fixed": {
            "name": "count",
            "semantics": "lossless",
            "length": {"ms": 4000},
            "slide": {"count": 2},
            "timestamp": {"field": "ts"},
            "offset_ms": 0,
            "lateness": "watermark",
            "repeat": False,
            "key": ["k"],
            "source": None,
            "aggregate": {"n": {"kind": "count", "field": None}},
            "eviction": None,
            "trigger": None,
            "outputs": {"default": [["n", "bigint"]]},
        },
        "free": {
            "lag_ms": 1000,
            "watermark_interval_ms": 1000,
            "late_stream": None,
            "idle_timeout_ms": None,
            "max_future_ms": None,
            "max_repeats": 10_000,
            "key_ttl_ms": None,
            "on_error": "raise",
            "on_invalid": "late",
            "max_events_in_memory": None,
            "message_id": None,
            "recovery_timeout_ms": 30_000,
            "columnar": None,
        },
    }


def test_every_field_of_the_config_is_in_one_part_of_the_definition() -> None:
    parts = definition()
    named = {key.removesuffix("_ms") for part in parts.values() for key in part} - {"name", "outputs"}
    config = bolt_of(at_the_top).config
    assert named == {field.removesuffix("_ms") for field in type(config).__dataclass_fields__}


def test_a_function_is_stored_in_a_definition_by_its_name() -> None:
    found = definition(timestamp=plain, trigger=functools.partial(CountTriggerPolicy, 3))
    assert (found["fixed"]["timestamp"], found["fixed"]["trigger"]) == ({"function": "plain"}, "CountTriggerPolicy")


def test_a_bolt_is_frozen() -> None:
    with pytest.raises(AttributeError):
        bolt_of(at_the_top).name = "other"  # type: ignore[misc]
    assert isinstance(bolt_of(at_the_top), WindowedBolt)


def test_a_message_id_requires_a_bolt_with_a_state() -> None:
    @windowed_bolt(length=Count(2), message_id="id", output="n long")
    def stateless(window: TupleWindow) -> int:
        return len(window)

    with pytest.raises(ConfigError, match="has no init_state"):
        declaration_of(stateless)


def test_a_misspelled_hook_is_found_whichever_base_class_has_it() -> None:
    """A hook that a base class gets must be in `_HOOKS`, or here: a helper of a user's may well have nearly such a name."""
    bases = (Spout, Bolt, BasicBolt, StatefulBolt, StatefulWindowedBolt)
    written = {name for base in bases for name in dir(base) if name[0] != "_"}
    near_to_helpers = {"open", "prepare", "execute", "activate", "deactivate", "ack", "fail", "close"}
    assert written - set(decorators._HOOKS) == near_to_helpers


def test_every_hook_of_a_state_is_called_in_both_drivers_and_for_windows() -> None:
    """`init_state` is called where an instance is made; on Spark a batch is never rolled back, but repeated by new instances."""
    library = Path(windowing.__file__).parent
    hooks = {method for method, _ in STATE_METHODS} - {"init_state"}
    for file, needed in (
        ("local/checkpoints.py", hooks),
        ("spark/tasks.py", hooks - {"pre_rollback"}),
        ("topology/window_task.py", hooks - {"pre_rollback"}),
    ):
        text = (library / file).read_text(encoding="utf-8")
        assert {hook for hook in needed if f'"{hook}"' not in text} == set(), file
