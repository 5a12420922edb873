"""Aggregators: the properties of `windowing/windows/aggregate.py`, on ints exactly, on floats bit for bit where promised."""

from __future__ import annotations

import builtins
import json
import math
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation, Rounded, localcontext
from fractions import Fraction
from functools import reduce
from inspect import isfunction
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import BoltError, ConfigError
from windowing.schema.rows import record_of
from windowing.windows import aggregate as agg
from windowing.windows.partials import Aggregation

BUILT_IN = [agg.count(), agg.count("f"), agg.sum("f"), agg.mean("f"), agg.min("f"), agg.max("f")]
VARIANCE = agg.fold(
    lambda: [0, 0, 0],
    lambda acc, n: acc if n is None else [acc[0] + 1, acc[1] + n, acc[2] + n * n],
    lambda a, b: [x + y for x, y in zip(a, b, strict=True)],
    lambda acc: acc[2] * acc[0] - acc[1] ** 2,
    field="f",
)
aggregators = st.sampled_from([*BUILT_IN, VARIANCE])
ints = st.lists(st.none() | st.integers())
numbers = st.lists(st.none() | st.integers() | st.floats() | st.booleans(), max_size=30)


def makers() -> dict[str, Any]:
    """Return the functions that make an aggregator, by name, with its class."""
    found = {name: get_type_hints(each).get("return") for name, each in vars(agg).items() if isfunction(each)}
    return {name: kind for name, kind in found.items() if hasattr(kind, "merge")}


def test_every_function_of_aggregate_is_tested_here_and_named_in_the_reference_and_in_the_error() -> None:
    assert set(makers().values()) == {type(each) for each in (*BUILT_IN, VARIANCE)}
    page = Path(__file__).parents[2] / "docs" / "reference" / "api" / "windowing.md"
    assert f"members: [{', '.join(makers())}, AggregateFunction]" in page.read_text(encoding="utf-8")
    with pytest.raises(AttributeError, match=f"there are {', '.join(sorted(makers()))};"):
        agg.other  # type: ignore[attr-defined] # noqa: B018 - the attribute is asked for


def one_by_one(aggregator: Any, acc: Any, values: list[Any]) -> Any:
    return reduce(aggregator.add, values, acc)


def exact(acc: Any) -> str:
    return repr(acc)  # tells -0.0 from 0.0, True from 1, and NaN equals NaN


@given(aggregators, ints, ints)
def test_merging_two_partials_equals_the_partial_of_all_values(
    aggregator: Any, left: list[Any], right: list[Any]
) -> None:
    a, b = (one_by_one(aggregator, aggregator.init(), part) for part in (left, right))
    before = exact((a, b))
    assert aggregator.merge(a, b) == one_by_one(aggregator, aggregator.init(), left + right)
    assert exact((a, b)) == before


@given(aggregators, ints, ints, ints)
def test_merge_is_associative_and_init_is_its_neutral_element(aggregator: Any, x: Any, y: Any, z: Any) -> None:
    a, b, c = (aggregator.add_many(aggregator.init(), part) for part in (x, y, z))
    merge = aggregator.merge
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, aggregator.init()) == a == merge(aggregator.init(), a)


@given(st.sampled_from(BUILT_IN), numbers, numbers)
def test_add_many_is_bit_identical_to_adding_one_by_one(aggregator: Any, first: list[Any], then: list[Any]) -> None:
    try:
        wanted = one_by_one(aggregator, one_by_one(aggregator, aggregator.init(), first), then)
    except OverflowError:  # an int too large for a float
        with pytest.raises(OverflowError):
            aggregator.add_many(aggregator.add_many(aggregator.init(), first), then)
        return
    acc = aggregator.add_many(aggregator.init(), first)
    before = exact(acc)
    assert exact(aggregator.add_many(acc, then)) == exact(wanted)
    assert exact(acc) == before


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_a_sum_of_floats_adds_from_left_to_right(values: list[float]) -> None:
    wanted = values[0]
    for value in values[1:]:
        wanted += value
    assert exact(agg.sum().add_many(None, values)) == exact(wanted)


@pytest.mark.parametrize("sequential", [True, False])
@given(values=numbers)
def test_both_implementations_of_sum_are_bit_identical(sequential: bool, values: list[Any]) -> None:
    if sequential and not agg._SUM_IS_SEQUENTIAL:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agg, "_SUM_IS_SEQUENTIAL", sequential)
        for aggregator in (agg.sum(), agg.mean()):
            try:
                wanted = exact(one_by_one(aggregator, None, values))
            except OverflowError:
                continue
            for at in range(len(values) + 1):
                assert exact(aggregator.add_many(aggregator.add_many(None, values[:at]), values[at:])) == wanted


WIDE = Context(prec=200)
decimals = st.lists(
    st.none()
    | st.integers(-(10**38), 10**38)
    | st.decimals(allow_nan=False, allow_infinity=False, places=2)
    | st.builds(
        lambda digits, scale: Decimal(digits).scaleb(-scale, WIDE), st.integers(-(10**38), 10**38), st.integers(0, 38)
    ),
    max_size=12,
)


contexts = st.builds(Context, st.integers(1, 50), traps=st.sampled_from([[], [Inexact], [Rounded, InvalidOperation]]))


@given(st.sampled_from([agg.sum("f"), agg.mean("f")]), decimals, decimals, decimals, contexts, st.booleans())
def test_sums_of_decimals_are_exact_in_any_grouping_and_whatever_the_context_rounds_and_traps(
    aggregator: Any, x: list[Any], y: list[Any], z: list[Any], context: Context, sequential: bool
) -> None:
    whole = [*x, *y, *z]
    with localcontext(context), pytest.MonkeyPatch.context() as patch:
        patch.setattr(agg, "_SUM_IS_SEQUENTIAL", sequential and agg._SUM_IS_SEQUENTIAL)
        a, b, c = (aggregator.add_many(None, part) for part in (x, y, z))
        found = [
            one_by_one(aggregator, None, whole),
            aggregator.add_many(None, whole),
            aggregator.add_many(aggregator.add_many(a, y), z),
            aggregator.merge(aggregator.merge(a, b), c),
            aggregator.merge(a, aggregator.merge(b, c)),
        ]
        present = [value for value in whole if value is not None]
        if isinstance(aggregator, agg.Summed) and present:
            found += aggregator.of_each([present])
    assert len(set(map(exact, found))) == 1
    if present:
        total = found[0] if isinstance(aggregator, agg.Summed) else found[0][0]
        assert Fraction(total) == builtins.sum(map(Fraction, present))
        assert isinstance(total, Decimal) == any(isinstance(value, Decimal) for value in present)
    else:
        assert found[0] is None


def test_a_mean_of_decimals_is_rounded_to_28_digits_and_to_38_if_the_sum_has_more() -> None:
    def mean(*values: str) -> str:
        aggregator = agg.mean("f")
        with localcontext(Context(prec=3)):
            return str(aggregator.result(aggregator.add_many(None, list(map(Decimal, values)))))

    assert mean("1.00", "0", "0") == "0." + 28 * "3"
    wide = "123456789012345678901234567890.12"
    assert mean(wide) == mean(wide, wide, wide) == wide
    assert mean(wide, "0.01") == "61728394506172839450617283945.065"
    assert mean("1" + 30 * "0", "0", "0") == 30 * "3" + "." + 8 * "3"
    assert mean("NaN", "1") == "NaN"
    assert mean("Infinity", "1") == "Infinity"


def test_a_sum_of_decimals_that_cannot_be_exact_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a sum of Decimals has more than 2000 digits"):
        agg.sum("f").add_many(None, [Decimal("1E+3000"), Decimal("0.1")])


@given(st.permutations([1, 2.5, -3, math.nan, math.inf, None]))
def test_min_and_max_rank_nan_highest_in_any_order_of_values(values: list[Any]) -> None:
    for at in range(len(values) + 1):
        assert agg.min().add_many(agg.min().add_many(None, values[:at]), values[at:]) == -3
        assert math.isnan(agg.max().add_many(agg.max().add_many(None, values[:at]), values[at:]))
    without = [value for value in values if value != value or value is None]
    assert math.isnan(agg.min().add_many(None, without))
    assert agg.min().merge(math.nan, 1) == agg.min().merge(1, math.nan) == 1


@given(aggregators, ints)
def test_an_accumulator_is_plain_data(aggregator: Any, values: list[Any]) -> None:
    acc = aggregator.add_many(aggregator.init(), values)
    assert json.loads(json.dumps(acc)) == acc
    assert aggregator.result(json.loads(json.dumps(acc))) == aggregator.result(acc)


def test_none_is_ignored_as_in_sql() -> None:
    values = [None, 4, None, 2]
    results = [agg.result(agg.add_many(agg.init(), values)) for agg in BUILT_IN]
    assert results == [4, 2, 6, 3.0, 2, 4]


def test_without_values_only_counts_return_a_number() -> None:
    for values in ([], [None]):
        results = [agg.result(agg.add_many(agg.init(), values)) for agg in BUILT_IN]
        assert results == [len(values), 0, None, None, None, None]


def test_min_and_max_work_on_any_comparable_values() -> None:
    days = [date(2013, 1, 2), date(2013, 1, 1), date(2013, 1, 3)]
    assert (agg.min().add_many(None, days), agg.max().add_many(None, days)) == (date(2013, 1, 1), date(2013, 1, 3))
    assert agg.max().add_many(None, ["a", "c", "b"]) == "c"
    assert agg.min().add_many(None, [Decimal("NaN"), Decimal(1)]) == Decimal(1)


@given(st.lists(st.sampled_from([0, False, -0.0, Decimal(0), 1, 1.0, True, Decimal(1)]), min_size=1), st.integers(0, 8))
def test_of_equal_values_min_and_max_keep_the_first(values: list[Any], cut: int) -> None:
    for aggregator, first in ((agg.min(), min), (agg.max(), max)):
        wanted, empty = exact(first(values)), aggregator.init()
        assert exact(reduce(aggregator.add, values, empty)) == wanted
        left, right = (aggregator.add_many(empty, part) for part in (values[:cut], values[cut:]))
        assert exact(aggregator.add_many(left, values[cut:])) == wanted
        assert exact(aggregator.merge(left, right)) == wanted


def test_sum_and_mean_refuse_text_in_every_call() -> None:
    for aggregator in (agg.sum(), agg.mean()):
        for call in (lambda a=aggregator: a.add(None, "x"), lambda a=aggregator: a.add_many(None, ["x", "y"])):
            with pytest.raises(TypeError, match="adds numbers, got 'x'"):
                call()
        for call in (lambda a=aggregator: a.add(a.add(None, 1), "x"), lambda a=aggregator: a.add_many(None, [1, "x"])):
            with pytest.raises(TypeError):
                call()


def test_a_user_defined_aggregator_needs_only_four_methods() -> None:
    class Longest:
        def init(self) -> int:
            return 0

        def add(self, acc: int, value: str) -> int:
            return max(acc, len(value))

        def merge(self, a: int, b: int) -> int:
            return max(a, b)

        def result(self, acc: int) -> int:
            return acc

    own: Any = Longest()
    assert agg.is_aggregator(own)
    assert not agg.is_aggregator(Longest)
    assert agg.field_of(own) is None
    assert Aggregation(own).fold(["to", "be"]) == 2
    assert agg.spec_of(own)["kind"].endswith("Longest")


def test_a_fold_gets_every_value_and_a_new_accumulator_each_time() -> None:
    seen = agg.fold(list, lambda acc, value: [*acc, value], lambda a, b: a + b, len)
    assert seen.result(seen.add_many(seen.init(), [1, None])) == 2
    assert seen.init() == []
    assert seen.init() is not seen.init()


def test_a_fold_needs_functions_as_arguments() -> None:
    start: Any = 0
    with pytest.raises(ConfigError, match=r"got init=0; write init=lambda"):
        agg.fold(start, max, max)


def test_a_field_must_be_a_name() -> None:
    for maker in (agg.count, agg.sum, agg.mean, agg.min, agg.max):
        assert maker("delay").field == "delay"
        assert maker().field is None
        for wrong in (3, "", [1]):
            with pytest.raises(ConfigError, match=f"write agg.{maker.__name__}"):
                maker(wrong)  # type: ignore[arg-type]


def test_the_spec_of_an_aggregator_is_json_with_names() -> None:
    spec = agg.spec_of({"flights": agg.count(), "mean_delay": agg.mean("dep_delay"), "own": VARIANCE})
    assert json.loads(json.dumps(spec)) == spec
    assert spec == {
        "flights": {"kind": "count", "field": None},
        "mean_delay": {"kind": "mean", "field": "dep_delay"},
        "own": {
            "kind": "fold",
            "field": "f",
            "parameters": {"start": "<lambda>", "step": "<lambda>", "join": "<lambda>", "finish": "<lambda>"},
        },
    }
    assert agg.spec_of(agg.sum("x")) == {"kind": "sum", "field": "x"}


def test_pythons_built_in_functions_are_not_replaced() -> None:
    assert (builtins.sum, builtins.min, builtins.max) == (sum, min, max)


@pytest.mark.parametrize("aggregator", [agg.sum(), agg.mean()])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sum_of_whole_tuples_is_refused_with_the_way_out(aggregator: Any, count: int) -> None:
    rows = [record_of({"n": n, "at": n}) for n in range(count)]
    for made in (lambda: Aggregation(aggregator).of(rows), lambda: Aggregation(aggregator).of_each([rows])):
        with pytest.raises(
            BoltError, match=r"a sum adds numbers, got Row\(n=0, at=0\); give a field that holds numbers"
        ):
            made()
    with pytest.raises(TypeError, match="a sum adds numbers"):
        aggregator.add(None, rows[0])
