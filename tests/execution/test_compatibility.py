"""The logs of a checkpoint and the comparison of stored definitions, without Spark.

Through a checkpoint on Spark: tests/spark/test_definition.py, test_topology_definition.py; in one process:
tests/local/test_cluster_restarts.py.
"""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from windowing.errors import CheckpointError, CorruptStateError, DefinitionChangedError
from windowing.execution.compatibility import (
    MOST_TASKS,
    DefinitionLocation,
    compare,
    compare_rows,
    missing_in_logs,
    parsed,
    read,
    read_log,
)
from windowing.topology.bolts import FREE

WHERE = DefinitionLocation("what is stored does not fit", "the record")


@pytest.mark.parametrize(
    ("planned", "done", "missing"),
    [
        ({0}, set(), []),
        ({0}, {0}, []),
        (set(), {0}, ["offsets/0"]),
        ({0, 1}, {0}, []),
        ({0, 1}, {0, 1}, []),
        ({0, 1}, {1}, []),
        ({0, 1}, set(), ["commits/0"]),
        ({1}, {0}, ["offsets/0"]),
        ({1}, {1}, ["offsets/0"]),
        ({1}, set(), ["offsets/0", "commits/0"]),
        ({6, 7}, {6}, []),
        ({6, 7}, {5}, ["commits/6"]),
        ({5, 7}, {6}, ["offsets/6"]),
        ({6}, {5, 6, 7}, ["offsets/7"]),
    ],
)
def test_the_last_two_batches_were_planned_and_each_follows_a_commit(
    planned: set[int], done: set[int], missing: list[str]
) -> None:
    assert list(missing_in_logs(planned, done, lambda: pytest.fail("there are batches"))) == missing


@pytest.mark.parametrize("has_state", [False, True])
def test_a_state_without_a_batch_has_lost_its_logs(has_state: bool) -> None:
    assert list(missing_in_logs(set(), set(), lambda: has_state)) == ["offsets/0"] * has_state


@pytest.mark.parametrize("damaged", [b"", b"v1", b"x1\n{}", b"v\n{}", b"vx\n{}", b"v1\n{", b"v1\n" + b"[" * 100_000])
def test_a_damaged_file_of_a_log_is_named(damaged: bytes) -> None:
    log: Any = SimpleNamespace(read=lambda name: damaged, of=lambda name: f"offsets/{name}")
    with pytest.raises(CorruptStateError, match="offsets/7 is damaged; put the file back from a copy"):
        read_log(log, 7)


def test_a_checkpoint_that_is_written_in_order_lacks_nothing_and_one_file_less_of_the_last_two_batches_is_found() -> (
    None
):
    for last in range(1, 4):
        planned, done = set(range(last + 1)), set(range(last))
        assert list(missing_in_logs(planned, done, lambda: True)) == []
        assert list(missing_in_logs(planned, {*done, last}, lambda: True)) == []
        assert list(missing_in_logs(planned - {last - 1}, done, lambda: True)) == [f"offsets/{last - 1}"]
        assert list(missing_in_logs(planned, done - {last - 1}, lambda: True)) == [f"commits/{last - 1}"]
        for gone in combinations(range(last - 1), 1):  # older ones are deleted in time
            assert list(missing_in_logs(planned - {*gone}, done - {*gone}, lambda: True)) == []


# -- definitions -----------------------------------------------------------------------------------------------------------


def definition(**changed: Any) -> dict[str, Any]:
    """Return the definition of a bolt with two input streams, with some fields changed."""
    free = dict.fromkeys(FREE) | {"message_id": None}
    whole = {
        "format": 1,
        "bolt": {"fixed": {"name": "work", "length": 5}, "free": free},
        "tasks": 3,
        "grouping": ["k"],
        "inputs": {"default": [["k", "string", True], ["n", "bigint", True]]},
        "order_by": [],
        "packing": {"parallelism": 2},
    }
    return whole | changed


def test_equal_definitions_may_go_on_also_with_a_half_done_batch() -> None:
    compare(definition(), definition(), WHERE, lambda: pytest.fail("it does not matter"))
    compare_rows(definition(), definition(), WHERE, 7, (pytest.fail("it does not matter") for _ in "a"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tasks": 4}, "tasks was 3, now 4 (`windowing rescale` makes a checkpoint with 4)"),
        ({"grouping": "shuffle"}, 'grouping was ["k"], now "shuffle"'),
        ({"inputs": {}}, "the input streams were default, now "),
        ({"inputs": {"default": [["k", "string", True]]}}, "column 'n' (bigint) of input stream 'default' is gone"),
        ({"inputs": {"default": [["k", "int", True], ["n", "bigint", True]]}},
         "column 'k' of input stream 'default' was string, now int"),
        ({"inputs": {"default": [*definition()["inputs"]["default"], ["m", "int", False]]}},
         "column 'm' (int) of input stream 'default' is new, and must be nullable"),
        ({"bolt": {**definition()["bolt"], "fixed": {"name": "work", "length": 6}}}, "length of bolt 'work' was 5, now 6"),
    ],
)  # fmt: skip
def test_a_change_of_what_is_stored_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionChangedError) as raised:
        compare(definition(), definition(**changed), WHERE)
    assert f"what is stored does not fit: {said}" in str(raised.value)


def test_a_change_of_the_order_of_rows_is_refused_only_while_a_batch_is_half_done() -> None:
    def other(batch: int | None, **changed: Any) -> None:
        compare(definition(), definition(**changed), WHERE, lambda: batch)

    turned = {"default": definition()["inputs"]["default"][::-1]}
    for changed, said in (
        ({"packing": {"parallelism": 3}}, "parallelism was 2, now 3"),
        ({"order_by": ["n"]}, 'order_by was [], now ["n"]'),
        ({"order_by": ["n"], "inputs": turned}, "the columns of input stream 'default' were"),
    ):
        other(None, **changed)
        with pytest.raises(CheckpointError, match="batch 7 was left half done") as raised:
            other(7, **changed)
        assert said in str(raised.value)
    other(7, inputs=turned)  # without an order and a shuffle the order of columns decides nothing


def test_other_windows_are_refused_while_a_half_done_batch_is_kept_somewhere_for_good() -> None:
    deciding = [option for option, decides_rows in FREE.items() if decides_rows]
    assert deciding
    assert len(deciding) < len(FREE)
    for option in FREE:
        free = {**definition()["bolt"]["free"], option: 9}
        wanted = definition(bolt={**definition()["bolt"], "free": free})
        compare_rows(definition(), wanted, WHERE, 7, [])
        if option not in deciding:
            compare_rows(definition(), wanted, WHERE, 7, ["the table t"])
            continue
        with pytest.raises(CheckpointError, match=f"in the table t and x for good.*{option} was null, now 9"):
            compare_rows(definition(), wanted, WHERE, 7, ["the table t", "x"])
        older = {name: value for name, value in definition()["bolt"]["free"].items() if name != option}
        stored = definition(bolt={**definition()["bolt"], "free": older})
        compare_rows(stored, wanted, WHERE, 7, ["the table t"])  # it had no such option


def test_no_more_than_twenty_changes_are_named() -> None:
    many = {"default": [[f"c{n}", "int", True] for n in range(21)]}
    for count, more in ((20, False), (21, True)):
        with pytest.raises(DefinitionChangedError) as raised:
            compare(definition(inputs={"default": many["default"][:count]}), definition(inputs={"default": []}), WHERE)
        assert ("and there are more" in str(raised.value)) == more
        assert str(raised.value).count("is gone") == 20


@pytest.mark.parametrize("number", [0, MOST_TASKS + 1, -1, True, 2.0, "2"])
def test_a_stored_number_of_tasks_that_cannot_be_one_is_damage(number: Any) -> None:
    assert read(definition(tasks=MOST_TASKS), WHERE)["tasks"] == MOST_TASKS
    with pytest.raises(CorruptStateError, match=r"says that tasks is .*, wanted a whole number from 1 to"):
        read(definition(tasks=number), WHERE)


def test_a_definition_without_a_field_of_its_kind_or_nested_too_deep_is_damage() -> None:
    for name in ("bolt", "tasks", "grouping", "inputs", "order_by", "packing"):
        with pytest.raises(CorruptStateError, match=r"the record is (an incomplete|no) definition"):
            read({field: value for field, value in definition().items() if field != name}, WHERE)
    deep: Any = []
    for _ in range(45):
        deep = [deep]
    with pytest.raises(CorruptStateError, match="more than 40 deep"):
        read(definition(order_by=deep), WHERE)
    for content in (b"", b"[", b"7", b"[" * 100_000):
        with pytest.raises(CorruptStateError, match="is no definition of a windowing query"):
            parsed(content, WHERE)


@pytest.mark.parametrize(("number", "said"), [(0, "drain it with the version 'v'"), (2, "use the version 'v'")])
def test_another_format_names_the_version_that_wrote_it(number: int, said: str) -> None:
    with pytest.raises(DefinitionChangedError, match=f"has format {number}, this version reads 1; {said}"):
        read(definition(format=number, library="v"), WHERE)
