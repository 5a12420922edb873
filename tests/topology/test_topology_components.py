"""@spout, @bolt and other components of a topology; Fields, Values, Tuple."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError
from windowing.local.router import Delivery
from windowing.schema.tuples import Fields, Origin, Tuple, Values, tuple_type
from windowing.spark.context import Arrival
from windowing.topology.bolts import CallStyle, ComponentKind
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, Bolt, InputSpout, Spout, StatefulBolt, StatefulWindowedBolt
from windowing.topology.decorators import bolt, bolt_of, declaration_of, spout, tumbling, windowed_bolt
from windowing.topology.plan import TopologyError
from windowing.windows.measures import count, seconds


def refused(declare: Callable[[], Any], *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declare()
    for word in words:
        assert word in str(caught.value)


# -- decorators


def test_a_decorated_function_or_class_is_returned_unchanged() -> None:
    def numbers() -> Any:
        yield 1

    def double(tuple: Any) -> Any:
        return tuple["n"] * 2

    class Echo:
        def execute(self, tuple: Any) -> Any:
            return tuple["n"]

    assert spout(output="n long")(numbers) is numbers
    assert bolt(output="n long")(double) is double
    assert bolt(output="n long")(Echo) is Echo
    assert double({"n": next(numbers())}) == 2
    assert Echo().execute({"n": 3}) == 3


def test_a_function_spout_returns_rows_or_takes_a_collector() -> None:
    def rows() -> Any: ...
    def with_default(start: int = 0) -> Any: ...
    def collecting(collector: Any) -> None: ...

    styles = [declaration_of(spout(output="n long")(f)).style for f in (rows, with_default, collecting)]
    assert styles == [CallStyle.ROWS, CallStyle.ROWS, CallStyle.COLLECTOR]


def test_a_function_bolt_returns_rows_or_takes_a_collector_and_is_acked_by_the_driver() -> None:
    def rows(tuple: Any) -> Any: ...
    def collecting(tuple: Any, collector: Any) -> None: ...

    declared = [declaration_of(bolt(output="n long")(f)) for f in (rows, collecting)]
    assert [one.kind for one in declared] == [ComponentKind.BASIC_BOLT] * 2
    assert [one.style for one in declared] == [CallStyle.ROWS, CallStyle.COLLECTOR]


def test_a_class_that_inherits_from_bolt_acks_its_tuples_itself() -> None:
    @bolt(output="n long")
    class Rich(Bolt):
        def execute(self, tuple: Any) -> None:
            self.collector.ack(tuple)

    @bolt(output="n long")
    class Basic(BasicBolt):
        def execute(self, tuple: Any, collector: Any) -> None: ...

    assert declaration_of(Rich).kind is ComponentKind.BOLT
    assert declaration_of(Basic).kind is ComponentKind.BASIC_BOLT


@pytest.mark.parametrize(("mark", "base"), [(bolt(), StatefulBolt), (windowed_bolt(count(3)), StatefulWindowedBolt)])
def test_a_stateful_bolt_whose_init_state_was_not_written_is_refused(mark: Any, base: type[Any]) -> None:
    methods = {"start": lambda self, state: None, "execute": lambda self, given: None}
    with pytest.raises(ConfigError, match="class 'Written' lacks init_state; write what its base class leaves open"):
        mark(type("Written", (base,), methods))


def test_a_class_with_init_state_is_stateful() -> None:
    @bolt(output="n long")
    class Rich(StatefulBolt):
        def init_state(self, state: Any) -> None: ...
        def execute(self, tuple: Any) -> None: ...

    @bolt()
    class Plain:
        def init_state(self, state: Any) -> None: ...
        def execute(self, tuple: Any) -> None: ...

    @windowed_bolt(count(3), output="n long")
    class Windowed(StatefulWindowedBolt):
        def init_state(self, state: Any) -> None: ...
        def execute(self, window: Any) -> None: ...

    @tumbling(count(3), output="n long")
    class Stateless:
        def execute(self, window: Any) -> None: ...

    assert [declaration_of(one).stateful for one in (Rich, Plain, Windowed, Stateless)] == [True, True, True, False]
    assert declaration_of(Windowed).kind is ComponentKind.WINDOWED_BOLT


def test_the_parameters_of_ack_and_fail_decide_whether_a_spout_gets_its_values() -> None:
    @spout(output="n long")
    class Numbers(Spout):
        def next_tuple(self) -> None: ...
        def ack(self, message_id: Any, values: Any) -> None: ...
        def fail(self, message_id: Any) -> None: ...

    assert declaration_of(Numbers).values_back == {"ack"}

    class Noted(Numbers):
        ack = staticmethod(set[Any]().add)  # Python knows no signature of it

    assert declaration_of(spout(output="n long")(Noted)).values_back == frozenset()

    class Wrong(Spout):
        def next_tuple(self) -> None: ...
        def ack(self) -> None: ...

    refused(lambda: spout(output="n long")(Wrong), "Wrong.ack", "write def ack(self, message_id)")


@pytest.mark.parametrize("method", ["open", "next_tuple", "ack", "fail", "close"])
@pytest.mark.parametrize("arguments", [1, 2])
def test_a_method_of_a_spout_that_yields_is_refused_because_nothing_of_it_would_run(
    method: str, arguments: int
) -> None:
    def yields(self: Any) -> Any:
        yield

    def with_message(self: Any, message_id: Any) -> Any:
        yield

    def with_two(self: Any, first: Any, second: Any) -> Any:
        yield

    by_message = with_message if arguments == 1 else with_two
    written = {"open": with_two, "ack": by_message, "fail": by_message}.get(method, yields)
    wrong = type("Wrong", (), {"next_tuple": lambda self: None, method: written})
    refused(lambda: spout(output="n long")(wrong), f"'Wrong.{method}' has a yield, so a call of it runs nothing")


@pytest.mark.parametrize("method", ["prepare", "init_state", "pre_commit", "cleanup"])
@pytest.mark.parametrize("mark", [bolt(output="n long"), tumbling(count(1), output="n long")])
def test_a_hook_of_a_bolt_that_yields_is_refused_because_nothing_of_it_would_run(mark: Any, method: str) -> None:
    def yields(self: Any) -> Any:
        yield

    def with_one(self: Any, given: Any) -> Any:
        yield

    methods = {"execute": lambda self, given: 0, "init_state": lambda self, state: None}
    wrong = type("Wrong", (), {**methods, method: yields if method == "cleanup" else with_one})
    refused(lambda: mark(wrong), f"'Wrong.{method}' has a yield, so a call of it runs nothing")


def test_declaring_a_component_twice_is_refused() -> None:
    @bolt(output="n long")
    def marked(tuple: Any) -> Any: ...

    @spout(output="n long")
    def source() -> Any: ...

    @tumbling(count(3), output="n long")
    def windowed(window: Any) -> Any: ...

    refused(lambda: bolt()(marked), "'test_", "is already declared as a bolt; keep one decorator")
    refused(lambda: spout(output="n long")(windowed), "is already declared as a bolt")
    refused(lambda: tumbling(count(3), output="n long")(marked), "is already declared as a bolt")
    refused(lambda: bolt()(source), "is already declared as a spout")


def test_a_function_or_class_that_cannot_be_a_component_is_refused() -> None:
    async def later(tuple: Any) -> None: ...
    def three(tuple: Any, collector: Any, more: Any) -> None: ...
    def yielding(collector: Any) -> Any:
        yield 1

    class Empty: ...

    class Lacking(Spout): ...

    class Executing(Spout):
        def execute(self, window: Any) -> None: ...

    class Unmarked:
        def next_tuple(self) -> None: ...

    class Windowed(StatefulWindowedBolt): ...

    class Later:
        async def __call__(self, tuple: Any) -> None: ...

    class Handed(Bolt):
        def prepare(self, context: Any) -> None: ...  # type: ignore[override]
        def execute(self, tuple: Any) -> None: ...

    class StormsPrepare:
        def prepare(self, conf: Any, context: Any, collector: Any) -> None: ...
        def execute(self, tuple: Any) -> None: ...

    refused(lambda: bolt()(later), "is async, but a tuple is handed out")
    refused(lambda: bolt()(Later()), "is async, but a tuple is handed out")
    refused(lambda: bolt()(three), "a bolt takes (tuple) or (tuple, collector)")
    refused(lambda: bolt()(3), "a bolt is a function or a class, got 3")
    refused(lambda: bolt()(Empty), "has no execute(self, tuple)")
    for mark in (bolt(), tumbling(count(3))):
        refused(functools.partial(mark, Lacking), "Lacking' is a Spout, which is no bolt; mark it with @spout")
        refused(functools.partial(mark, Executing), "Executing' is a Spout, which is no bolt; mark it with @spout")
        refused(functools.partial(mark, Unmarked), "has no execute(self, ", "; mark it with @spout")
    refused(lambda: bolt()(Windowed), "mark it with @windowed_bolt")
    refused(lambda: bolt()(Handed), "write def prepare(self, context, collector)")
    refused(lambda: bolt()(StormsPrepare), "write def prepare(self, context)", "the second argument of execute")
    refused(lambda: tumbling(count(3))(StormsPrepare), "write def prepare(self, context); the collector is the second")
    refused(lambda: spout(output="n long")(Empty), "has no next_tuple")
    refused(lambda: spout(output="n long")(Lacking), "lacks next_tuple")
    refused(lambda: spout(output="n long")(three), "a spout takes ()")
    refused(lambda: spout(output="n long")(later), "is async, but a turn is handed out")
    refused(lambda: spout(output="n long")(Later()), "is async, but a turn is handed out")
    refused(lambda: spout(output="n long")(yielding), "yields rows and takes a collector too")
    refused(lambda: spout(output={"other": "n long"})(lambda: 0), "add 'default' to output")


def test_direct_must_name_streams_of_output() -> None:
    refused(lambda: bolt(output="n long", direct="tasks"), "stream 'tasks', which output does not")
    refused(lambda: bolt(direct="tasks"), "there is no output")
    nothing: Any = None
    for wrong in (True, 7, nothing):
        refused(lambda given=wrong: bolt(output="n long", direct=given), f"got {wrong!r}; write direct='default'")  # type: ignore[misc]
        refused(lambda given=wrong: spout(output="n long", direct=given), f"got {wrong!r}; write direct='default'")  # type: ignore[misc]
    nested: Any = [["default"]]
    refused(lambda: bolt(output="n long", direct=nested), "stream ['default'], which output does not")
    refused(
        lambda: bolt(output="n long", direct="default")(lambda tuple: 0), "on a direct stream each row needs a task"
    )
    declared = declaration_of(bolt(output="n long", direct=["default"])(lambda tuple, collector: None))
    assert declared.direct == {"default"}


# -- arguments and instances


@bolt(output="n long")
class Add:
    def __init__(self, more: int) -> None:
        self.more = more

    def execute(self, tuple: Any) -> int:
        return int(tuple["n"]) + self.more

    def get_component_configuration(self) -> dict[str, Any]:
        return {"topology.tick.tuple.freq.secs": self.more, "app.more": self.more}


@tumbling(count(3), output="n long")
class Windowed:
    def __init__(self, more: int = 0) -> None:
        self.more = more

    def execute(self, window: Any) -> int:
        return len(window) + self.more


def test_a_class_gets_its_arguments_by_partial_or_as_an_instance() -> None:
    for gives in (functools.partial(Add, 3), functools.partial(Add, more=3), Add(3)):
        declared = declaration_of(gives)
        assert declared.is_class
        assert declared.target is not None
        first, second = declared.target(), declared.target()
        assert first is not second
        assert first.execute({"n": 1}) == 4
    refused(lambda: declaration_of(Add), "give an instance, or functools.partial")
    refused(lambda: declaration_of(functools.partial(Add)), "fill in what is missing")


def test_a_windowed_class_gets_its_arguments_in_the_same_way() -> None:
    for gives in (functools.partial(Windowed, 3), Windowed(3)):
        declared = declaration_of(gives)
        assert declared.window is not None
        assert declared.window.is_class
        assert declared.window.target().more == 3


def test_an_instance_is_copied_in_its_current_state() -> None:
    gives = Add(3)
    declared = declaration_of(gives)
    gives.more = 100
    assert declared.target is not None
    assert declared.target().more == 3

    gives.lock = threading.Lock()  # type: ignore[attr-defined]
    refused(lambda: declaration_of(gives), "cannot be copied for each task", "open files and connections in open()")


def test_a_function_gets_its_arguments_by_name() -> None:
    @bolt(output="n long")
    def add(tuple: Any, more: int = 0) -> int:
        return int(tuple["n"]) + more

    declared = declaration_of(functools.partial(add, more=3))
    assert declared.target is not None
    assert declared.target({"n": 1}) == 4
    refused(lambda: declaration_of(functools.partial(add, 3)), "fill in arguments by name")


def test_settings_of_a_declarer_override_those_of_the_component() -> None:
    builder = TopologyBuilder().configure(debug=True)
    builder.set_spout("s", InputSpout("n long"))
    declarer = builder.set_bolt("add", Add(3)).shuffle_grouping("s")
    topology = builder.build()
    assert topology.component("add").config.tick_tuple_freq_ms == 3000
    assert topology.component("add").config.own == {"app.more": 3}
    assert topology.config_of("add").tick_tuple_freq_ms == 3000
    assert topology.config_of("add").debug is True
    assert topology.config_of("s").tick_tuple_freq_ms is None
    declarer.add_configuration("topology.tick.tuple.freq.secs", 0.25)
    assert builder.build().component("add").config.tick_tuple_freq_ms == 250


def test_a_get_component_configuration_that_fails_or_returns_no_mapping_is_a_mistake_of_the_component() -> None:
    given: Any = None

    @bolt()
    class Configured(Bolt):
        def execute(self, tuple: Any) -> None: ...
        def get_component_configuration(self) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

    builder = TopologyBuilder()
    builder.set_spout("s", InputSpout("n long"))
    builder.set_bolt("b", Configured).shuffle_grouping("s")
    builder.build()
    given = OSError("no file")
    with pytest.raises(TopologyError, match="bolt 'b': its get_component_configuration failed with OSError: no file"):
        builder.build()
    given = ["topology.debug"]
    with pytest.raises(
        TopologyError, match=r"bolt 'b': get_component_configuration returns a mapping, got \['topology.debug'\]"
    ):
        builder.build()


def test_a_subclass_of_a_component_needs_its_own_declaration() -> None:
    class More(Add): ...

    refused(lambda: declaration_of(More(1)), "is not declared as a component (a class that it inherits from is)")


# -- tuples


def word(values: tuple[Any, ...] = ("storm", 3)) -> Tuple:
    return Tuple(values, Origin("split", 4, Fields("word", "n"), "fast"), {7: 1})


def test_a_tuple_gives_its_values_by_position_name_and_attribute() -> None:
    one = word()
    assert (one[0], one["n"], one.word) == ("storm", 3, "storm")
    assert list(one) == ["storm", 3]
    assert one.select(Fields("n", "word")) == (3, "storm")
    assert one.as_dict() == one._asdict() == {"word": "storm", "n": 3}
    assert (len(one), one.get_fields(), one.get_values()) == (2, Fields("word", "n"), ("storm", 3))


def test_a_tuple_has_its_source_component_stream_and_task() -> None:
    one = word()
    assert (one.source_component, one.source_stream, one.source_task) == ("split", "fast", 4)
    assert one.get_message_id() == {7: 1}
    assert repr(one).startswith("Tuple(split:fast[4], ")


def test_a_field_may_have_the_name_of_an_attribute_of_a_tuple() -> None:
    names = ("origin", "values", "fields", "ids", "count", "message_id", "select")
    one = Tuple(tuple(range(len(names))), Origin("flights", 1, Fields(names)))
    assert [one[name] for name in names] == list(range(len(names)))
    assert [getattr(one, name) for name in names[:-1]] == list(range(len(names) - 1))


NAMES = ["a", "b", "count", "index", "edge", "phase", "roots", "origin", "values", "select", "as_dict", "_x"]


@pytest.mark.parametrize("kind", [Tuple, Delivery, Arrival])
@given(st.lists(st.sampled_from(NAMES), unique=True))
def test_the_tuple_class_of_some_fields_equals_the_generic_class(kind: Any, names: list[str]) -> None:
    values, origin = tuple(f"value of {name}" for name in names), Origin("flights", 1, Fields(names))
    plain, fast = kind(values, origin, {}), tuple_type(kind, tuple(names))(values, origin, {})
    width = len(names)
    keys = [*names, *range(-width - 1, width + 2), slice(1, None), "not there", None]
    assert [outcome(lambda key=key: fast[key]) for key in keys] == [outcome(lambda key=key: plain[key]) for key in keys]
    for name in [*names, "not_there", "getValue"]:
        found, wanted = outcome(lambda name=name: getattr(fast, name)), outcome(lambda name=name: getattr(plain, name))
        assert callable(found) or found == wanted
    assert type(fast) is type(copy.copy(fast)) is tuple_type(kind, tuple(names))
    assert pickle.loads(pickle.dumps(fast)).as_dict() == fast.as_dict() == plain.as_dict()
    assert isinstance(fast, kind)


def outcome(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception as problem:
        return repr(problem)


def test_a_field_may_have_the_name_of_a_runtimes_attribute() -> None:
    names = ("phase", "roots", "edge", "anchors")
    for kind in (Delivery, Arrival):
        one = tuple_type(kind, names)((1, 2, 3, 4), Origin("flights", 1, Fields(names)), {})
        assert (one.phase, one.roots, one.edge, one.anchors) == (1, 2, 3, 4)


def test_tuples_are_equal_only_to_themselves() -> None:
    one, other = word(), word()
    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_a_tuple_can_be_copied() -> None:
    assert copy.copy(word()).as_dict() == pickle.loads(pickle.dumps(word())).as_dict() == word().as_dict()


def test_a_missing_field_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no field 'wrod'; did you mean 'word'\?"):
        word()["wrod"]
    with pytest.raises(AttributeError, match="has no field 'wrod'"):
        word().wrod  # noqa: B018


def test_fields_are_distinct_names() -> None:
    assert Fields("a", "b") == Fields(["a", "b"])
    assert hash(Fields("a")) == hash(Fields("a"))
    assert repr(Fields("a", "b")) == "Fields('a', 'b')"
    refused(lambda: Fields("a", "a"), "a field stands twice in a, a")
    refused(lambda: Fields("a b"), "a field's name must be a name")


def test_values_are_a_tuple() -> None:
    assert Values("storm", 3) == ("storm", 3)
    assert Values() == ()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_a_copy_of_values_has_the_same_values(copied: Any) -> None:
    for values in (Values("storm", 3), Values("storm"), Values(("nested",)), Values()):
        assert copied(values) == values
        assert type(copied(values)) is Values


def test_a_declared_function_that_a_class_holds_is_not_given_the_object():
    @tumbling(seconds(1), timestamp="at", output="n long")
    def size(window):
        return len(window)

    class Case:
        bound, free = size, staticmethod(size)

    refused(
        lambda: bolt(output="n long")(staticmethod(len)),
        "is a staticmethod below its decorator; write @staticmethod above",
    )
    refused(lambda: bolt_of(Case().bound), "was read from an object", "hold it in the class as staticmethod")
    assert bolt_of(Case().free).name == bolt_of(Case.bound).name == "size"


def test_a_generic_class_is_a_bolt_with_its_types_in_brackets_too():
    item = TypeVar("item")

    @bolt(output="n long")
    class Sizes(Generic[item]):
        def execute(self, row):
            return (row.n,)

    assert declaration_of(Sizes[int]).target is Sizes
