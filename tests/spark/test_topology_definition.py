"""What may change between two starts of a topology on one checkpoint, and what is refused, with which sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from windowing.errors import ConfigError, CorruptStateError
from windowing.execution.stages import stages_of
from windowing.spark import definition as checkpoints
from windowing.spark.context import wired
from windowing.spark.control import MOST_TASKS, task_labels
from windowing.spark.topology_definition import described, differences, is_whole
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, tumbling
from windowing.windows.measures import seconds


@bolt(output="word string, at long")
def split(tuple: Any) -> Any: ...


@bolt(output="word string, at long, size long")
def split_more(tuple: Any) -> Any: ...


@bolt(output="word string, at int")
def split_other(tuple: Any) -> Any: ...


@bolt(output="word string")
def split_less(tuple: Any) -> Any: ...


@bolt(output="n long")
class Total:
    def init_state(self, state: Any) -> None: ...
    def execute(self, tuple: Any) -> Any: ...


def counting(length: int = 10, lag: int = 0, late: str | None = None, timestamp: str | None = "at") -> Any:
    ahead = {} if timestamp is None else {"timestamp": timestamp, "lag": seconds(lag)}

    @tumbling(seconds(length), late_stream=late, name="count", output="n long", **ahead)
    def count(window: Any) -> Any: ...

    return count


def definition(
    split: Any = split,
    count: Any = None,
    tasks: int = 2,
    by: str = "word",
    name: str = "split",
    total: str = "total",
    partitions: int = 2,
    more: Callable[[TopologyBuilder], Any] = lambda builder: None,
    spouts: tuple[str, ...] = ("lines", "words"),
) -> dict[str, Any]:
    builder = TopologyBuilder("test")
    builder.configure({"topology.enable.message.timeouts": False})
    for spout in spouts:
        builder.set_spout(spout, InputSpout("line string, at long"))
    builder.set_bolt(name, split, 3).shuffle_grouping("lines")
    builder.set_bolt("count", count or counting(), tasks).fields_grouping(name, by)
    builder.set_bolt(total, Total).global_grouping("count")
    more(builder)
    return dict(json.loads(json.dumps(described(wired(stages_of(builder.build())), partitions))))


@pytest.mark.parametrize(
    "changed",
    [
        {"count": counting(lag=5, late="late")},
        {"split": split_more},
        {"more": lambda builder: builder.set_bolt("also", split).shuffle_grouping("lines")},
        {"more": lambda builder: builder.set_bolt("also", split, 4).shuffle_grouping("count")},
    ],
)
def test_free_parts_new_fields_and_fused_bolts_may_change(changed: dict[str, Any]) -> None:
    assert list(differences(definition(), definition(**changed))) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"count": counting(length=20)}, 'length of bolt \'count\' was {"ms": 10000}, now {"ms": 20000}'),
        ({"tasks": 3}, "tasks of bolt 'count' was 2, now 3"),
        ({"by": "at"}, "the grouping of split:default into bolt 'count' was"),
        ({"name": "cut"}, "bolt 'count' read split:default, now cut:default"),
        ({"split": split_other}, "field 'at' of split:default into bolt 'count' was bigint, now int"),
        ({"split": split_less, "count": counting(timestamp=None)}, "timestamp of bolt 'count' was"),
        ({"total": "sum"}, "the bolts behind exchanges were, level by level,"),
        ({"partitions": 4}, "partitions were 2, now 4"),
        ({"spouts": ("words", "lines")}, "the spouts with their streams were"),
        (
            {"more": lambda builder: builder.set_bolt("also", Total).shuffle_grouping("lines")},
            'the bolts behind exchanges were, level by level, [["count"], ["total"]], now [["also", "count"], ["total"]]',
        ),
    ],
)
def test_what_stored_windows_and_states_depend_on_is_refused_by_name(changed: dict[str, Any], sentence: str) -> None:
    first = next(differences(definition(), definition(**changed)))
    assert first.startswith(sentence), first


def test_a_field_that_is_gone_is_refused_by_name() -> None:
    found = list(differences(definition(split=split_more), definition(split=split)))
    assert found == ["field 'size' (bigint) of split:default into bolt 'count' is gone"]


def test_a_definition_is_whole_or_it_is_not() -> None:
    whole = definition()
    assert is_whole(whole)
    for part in ("spouts", "partitions", "levels", "free"):
        assert not is_whole({name: value for name, value in whole.items() if name != part})
    assert not is_whole([])


BOLT: dict[str, Any] = {
    "format": 1, "order_by": [], "packing": {}, "bolt": {"fixed": {}}, "inputs": {}, "tasks": 2, "grouping": "all",
}  # fmt: skip
TRIDENT: dict[str, Any] = {
    "format": 1, "order_by": [], "packing": {}, "trident": {"streams": [], "partitions": 2, "stream": []},
}  # fmt: skip


def nested(depth: int) -> bytes:
    return json.dumps(BOLT)[:-1].encode() + b', "x": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize("number", [10_000_000, 0, -1, 1.5, True, None, "2", [2]], ids=str)
def test_a_damaged_number_of_tasks_or_partitions_is_named(number: Any) -> None:
    for damaged, name in (
        (BOLT | {"tasks": number}, "tasks"),
        (TRIDENT | {"trident": TRIDENT["trident"] | {"partitions": number}}, "partitions"),
    ):
        with pytest.raises(
            CorruptStateError, match=rf"^\[CORRUPT\] here says that {name} is .*, wanted .* put back a copy$"
        ):
            checkpoints._parsed(json.dumps(damaged).encode(), "here")


@pytest.mark.parametrize("depth", [50, 900, 5_000, 1_000_000])
def test_a_definition_that_lies_too_deep_is_named(depth: int) -> None:
    with pytest.raises(CorruptStateError, match="here is no definition of a windowing query"):
        checkpoints._parsed(nested(depth), "here")
    assert checkpoints._parsed(nested(30), "here")["tasks"] == 2


@pytest.mark.parametrize("part", [{"inputs": {"a": 3}}, {"inputs": {"a": [[1]]}}, {"grouping": None}])
def test_a_definition_with_a_part_of_another_shape_is_named(part: dict[str, Any]) -> None:
    wanted = BOLT | {"inputs": {"a": [["k", "string", True]]}, "bolt": {"fixed": {"name": "b"}}}
    stored = checkpoints._parsed(json.dumps(wanted | part).encode(), "here")
    if part != {"grouping": None}:
        with pytest.raises(CorruptStateError, match="here is no definition"):
            checkpoints._difference(stored, wanted, "here")
    else:
        assert "grouping was null" in str(checkpoints._difference(stored, wanted, "here"))


def test_more_tasks_than_a_shuffle_can_have_are_refused_before_spark_is_asked() -> None:
    nobody: Any = None
    for tasks, partitions in ((10_000_000, 2), (2, 10_000_000), (MOST_TASKS + 1, 1)):
        with pytest.raises(ConfigError, match="a shuffle has 100000 at most; give fewer"):
            task_labels(nobody, tasks, partitions)
