"""Groupings: which task a tuple goes to, the same in every process and on Spark. Storm's ShuffleGroupingTest,
PartialKeyGroupingTest, RandomTwoTaskAssignmentCreatorTest, BalancedTargetSelectorTest and GroupingIntegrationTest are here,
written anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError, GroupingError
from windowing.schema.hashing import hashable, hasher_of, key_hash, key_hasher
from windowing.schema.types import Schema
from windowing.topology.groupings import (
    AllGrouping,
    CustomGrouping,
    DirectGrouping,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    LocalOrShuffleGrouping,
    NoneGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)

WORDS = Schema.parse("word string, n long")
KEYS = [f"key {number}" for number in range(1000)]


def sent(grouping: Grouping, tasks: int, tuples: Sequence[tuple[Any, ...]], seed: int = 0) -> list[Sequence[int]]:
    choose, state = grouping.targets(tasks, WORDS), grouping.start(tasks, seed)
    return [choose(values, state) for values in tuples]


def words(*keys: str) -> list[tuple[Any, ...]]:
    return [(key, 1) for key in keys]


@pytest.mark.parametrize("grouping", [ShuffleGrouping(), FieldsGrouping(("word",)), PartialKeyGrouping(("word",))])
def test_the_choosers_of_all_emitting_tasks_share_their_choices(grouping: Grouping) -> None:
    (one,), (other,) = sent(grouping, 9, words("a")), sent(grouping, 9, words("a"))
    assert one == other
    assert one is other, "a list for each pair of tasks would be quadratic"


@pytest.mark.parametrize("grouping", [ShuffleGrouping(), NoneGrouping(), LocalOrShuffleGrouping()])
@given(tasks=st.integers(1, 9), rounds=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_shuffle_sends_equally_many_tuples_to_each_task(
    grouping: Grouping, tasks: int, rounds: int, seed: int
) -> None:
    counts = Counter(task for (task,) in sent(grouping, tasks, words("a") * tasks * rounds, seed))
    assert counts == dict.fromkeys(range(tasks), rounds)


def test_shuffles_of_several_emitters_start_at_different_tasks() -> None:
    firsts = {sent(ShuffleGrouping(), 4, words("a"), seed)[0] for seed in range(4)}
    assert firsts == {(0,), (1,), (2,), (3,)}


def test_a_shuffle_continues_from_a_saved_state() -> None:
    choose, state = ShuffleGrouping().targets(3, WORDS), ShuffleGrouping().start(3, 2)
    first = [choose(("a", 1), state) for _ in range(4)]
    saved = list(state)
    rest = [choose(("a", 1), state) for _ in range(4)]
    assert first == [(2,), (0,), (1,), (2,)]
    assert [choose(("a", 1), saved) for _ in range(4)] == rest


def test_equal_keys_go_to_one_task_regardless_of_other_fields() -> None:
    grouping = FieldsGrouping(("word",))
    first = sent(grouping, 7, [(key, 1) for key in KEYS])
    again = sent(grouping, 7, [(key, 2) for key in reversed(KEYS)], seed=3)
    assert first == again[::-1]
    assert {task for (task,) in first} == set(range(7))


def test_keys_are_distributed_evenly_over_the_tasks() -> None:
    counts = Counter(task for (task,) in sent(FieldsGrouping(("word",)), 4, words(*KEYS)))
    assert all(180 <= count <= 320 for count in counts.values()), counts


def test_the_order_of_the_fields_is_part_of_the_key() -> None:
    tuples = [(key, number) for number, key in enumerate(KEYS)]
    assert sent(FieldsGrouping(("word", "n")), 8, tuples) != sent(FieldsGrouping(("n", "word")), 8, tuples)


def test_a_key_of_none_has_a_task_too() -> None:
    assert sent(FieldsGrouping(("word",)), 5, [(None, 1), (None, 2)]) == [(2,), (2,)]  # pmod(42, 5)


def test_the_task_of_a_key_does_not_depend_on_the_process() -> None:
    code = (
        "from windowing.topology.groupings import FieldsGrouping, PartialKeyGrouping\n"
        "from windowing.schema.types import Schema\n"
        "for kind in FieldsGrouping, PartialKeyGrouping:\n"
        "    grouping = kind(('w', 'd'))\n"
        "    choose, state = grouping.targets(50, Schema.parse('w string, d double')), grouping.start(50)\n"
        "    print([choose((f'k{n}', n / 3), state)[0] for n in range(100)])\n"
    )
    seen = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        seen.add(done.stdout)
    assert len(seen) == 1


@given(tasks=st.integers(2, 12), key=st.text())
def test_partial_key_uses_exactly_two_tasks_for_a_key(tasks: int, key: str) -> None:
    chosen = [task for (task,) in sent(PartialKeyGrouping(("word",)), tasks, words(key) * 10)]
    assert Counter(chosen) == {chosen[0]: 5, chosen[1]: 5}
    (alone,) = sent(FieldsGrouping(("word",)), tasks, words(key))[0]
    assert chosen[0] == alone, "the first candidate is the task that fields grouping gives"


def test_partial_key_uses_different_pairs_of_tasks_for_different_keys() -> None:
    pairs = {
        tuple(sorted({task for (task,) in sent(PartialKeyGrouping(("word",)), 6, words(key) * 2)})) for key in KEYS
    }
    assert len(pairs) == 15, "all pairs of 6 tasks"


def test_partial_key_chooses_the_less_loaded_of_two_tasks() -> None:
    choose = PartialKeyGrouping(("word",)).targets(3, WORDS)
    one, other = sorted({task for (task,) in (sent(PartialKeyGrouping(("word",)), 3, words("a") * 2))})
    state = PartialKeyGrouping(("word",)).start(3)
    state[one] = 5
    assert [choose(("a", 1), state) for _ in range(5)] == [(other,)] * 5
    assert state[one] == state[other] == 5


def test_partial_key_distributes_a_skewed_key() -> None:
    tuples = words(*(["hot"] * 1000), *KEYS)
    loads = Counter(task for (task,) in sent(PartialKeyGrouping(("word",)), 4, tuples))
    by_key = Counter(task for (task,) in sent(FieldsGrouping(("word",)), 4, tuples))
    assert max(loads.values()) <= 600 < 1000 < max(by_key.values())


def test_partial_key_with_one_task_always_uses_it() -> None:
    assert sent(PartialKeyGrouping(("word",)), 1, words("a", "b")) == [(0,), (0,)]


def test_all_grouping_sends_to_every_task_and_global_to_the_lowest() -> None:
    assert sent(AllGrouping(), 3, words("a")) == [(0, 1, 2)]
    assert sent(GlobalGrouping(), 3, words("a", "b")) == [(0,), (0,)]


def test_emit_on_a_direct_stream_is_an_error() -> None:
    with pytest.raises(GroupingError, match="call emit_direct"):
        sent(DirectGrouping(), 3, words("a"))


def test_a_custom_grouping_is_a_function_of_the_values_and_the_number_of_tasks() -> None:
    def by_number(values: Sequence[Any], tasks: int) -> int:
        return int(values[1]) % tasks

    class Twice:
        def choose_tasks(self, values: Sequence[Any], tasks: int) -> list[int]:
            return [0, tasks - 1]

    assert sent(CustomGrouping(by_number), 3, [("a", 4), ("b", 5)]) == [(1,), (2,)]
    assert sent(CustomGrouping(Twice()), 3, words("a")) == [(0, 2)]
    for wrong in (3, -1, True, "0", None):
        with pytest.raises(GroupingError, match=r"there is no task .*, tasks are counted from 0 to 2"):
            sent(CustomGrouping(lambda values, tasks, wrong=wrong: [2, wrong]), 3, words("a"))
    assert sent(CustomGrouping(lambda values, tasks: []), 3, words("a")) == [()]


@pytest.mark.parametrize("said", [3, -1, [0, 3], None, {0, 1}, "0", [True]])
def test_a_custom_grouping_that_returns_an_invalid_task_is_an_error(said: Any) -> None:
    with pytest.raises(GroupingError, match=r"custom\("):
        sent(CustomGrouping(lambda values, tasks: said), 3, words("a"))


def test_an_exception_of_a_custom_grouping_names_the_grouping_and_the_tuple() -> None:
    def by_name(values: Sequence[Any], tasks: int) -> int:
        return {"a": 0}[values[0]]

    with pytest.raises(GroupingError, match=r"by_name\) failed on \('b', 1\) with KeyError: 'b'; return") as found:
        sent(CustomGrouping(by_name), 3, [("a", 0), ("b", 1)])
    assert isinstance(found.value.__cause__, KeyError)


def test_a_key_value_of_the_wrong_type_is_an_error() -> None:
    wrong: list[tuple[str, Any]] = [
        ("bigint", "5"),
        ("bigint", 2**63),
        ("int", 2**31),
        ("string", 5),
        ("string", "\ud800"),
        ("boolean", 1),
        ("binary", "a"),
        ("date", 5),
        ("timestamp", 5),
        ("double", "a"),
        ("decimal(4,1)", 0.5),
        ("decimal(4,1)", Decimal("0.55")),
        ("decimal(4,1)", Decimal("1000")),
        ("decimal(4,1)", Decimal("1e999999")),
        ("decimal(4,1)", Decimal("NaN")),
        ("array<int>", 5),
        ("array<int>", ["5"]),
    ]
    for kind, value in wrong:
        with pytest.raises(GroupingError, match="a key of type"):
            hasher_of(kind)(value, 42)


def test_maps_and_structs_have_no_hash() -> None:
    for kind in ("map<string,int>", "struct<a:int>", "array<map<string, int>>"):
        assert hashable(kind) is not None
        with pytest.raises(ConfigError, match="cannot be part of a key"):
            hasher_of(kind)


def test_a_key_field_that_the_stream_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'wrod', the stream has word string, n bigint"):
        FieldsGrouping(("wrod",)).targets(3, WORDS)


def test_a_missing_xxhash_is_refused_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    hasher_of.cache_clear()
    key_hasher.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'windowing\[topology\]'"):
        FieldsGrouping(("word",)).targets(3, WORDS)


def test_zero_equals_minus_zero_and_nan_equals_nan_as_keys() -> None:
    minus_nan = float.fromhex("-0x1p+0") * float("nan")
    for kind in ("double", "float"):
        assert key_hash((kind,), (0.0,)) == key_hash((kind,), (-0.0,))
        assert key_hash((kind,), (float("nan"),)) == key_hash((kind,), (minus_nan,))


MOMENT = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
BY_TYPE: dict[str, list[Any]] = {
    "boolean": [None, True, False],
    "tinyint": [None, 0, -128, 127],
    "smallint": [None, 0, -32768, 32767],
    "int": [None, 0, 1, -1, 2**31 - 1, -(2**31)],
    "bigint": [None, 0, 1, -1, 2**63 - 1, -(2**63)],
    "float": [None, 0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf"), 1e-45],
    "double": [None, 0.0, -0.0, 1.1, -2.25, float("nan"), float("inf"), float("-inf"), 5e-324],
    "string": [None, "", "a", "storm", "Zürich", "雪", "😀", "a\0b", "x" * 31, "x" * 32, "x" * 100],
    "binary": [None, b"", b"\0", b"storm", bytes(range(256))],
    "date": [None, date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1583, 1, 1)],
    "timestamp": [
        None,
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
        MOMENT,
        MOMENT.astimezone(timezone(timedelta(hours=-5, minutes=-30))),
    ],
    "decimal(9,2)": [None, Decimal("0"), Decimal("-0.00"), Decimal("1.5"), Decimal("-9999999.99"), Decimal("1e3")],
    "decimal(18,0)": [None, Decimal(10**18 - 1), Decimal(-(10**18) + 1)],
    "decimal(38,10)": [None, Decimal("0"), Decimal("1.5"), Decimal("-1.28e-8"), Decimal("-1"), Decimal(10**27)],
    "decimal(38,0)": [Decimal(2**number + more) for number in (7, 8, 15, 63, 64, 120) for more in (-1, 0, 1)]
    + [Decimal(-(2**number) + more) for number in (7, 8, 15, 63, 64, 120) for more in (-1, 0, 1)],
    "array<bigint>": [None, [], [1, None, -3], [None]],
    "array<array<string>>": [None, [], [["a", None], None, []]],
}
