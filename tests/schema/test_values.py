"""Conversion of values to a declared type: exact, or refused."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windowing.schema.rows import RowError, rows_converter
from windowing.schema.types import FieldType, Schema
from windowing.schema.values import Misfit, converter_of, nested_in, timestamp_of, with_copies

Pair = namedtuple("Pair", "x y")


class Level(IntEnum):
    HIGH = 3


class Colour(StrEnum):
    RED = "red"


NAN = float("nan")
ZONED = datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=2)))

ACCEPTED: list[tuple[str, Any, Any]] = [
    ("bigint", 3, 3),
    ("bigint", 3.0, 3),
    ("bigint", np.int16(3), 3),
    ("bigint", np.float32(3), 3),
    ("bigint", Decimal("3.0"), 3),
    ("bigint", Level.HIGH, 3),
    ("bigint", -(2**63), -(2**63)),
    ("tinyint", 127, 127),
    ("double", 1.5, 1.5),
    ("double", 3, 3.0),
    ("double", np.float32(0.5), 0.5),
    ("double", np.int64(2**53), 2.0**53),
    ("double", float("inf"), float("inf")),
    ("float", 0.5, 0.5),
    ("float", 0.1, 0.10000000149011612),
    ("float", 3, 3.0),
    ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(5,2)", 3, Decimal("3.00")),
    ("decimal(5,2)", np.int64(3), Decimal("3.00")),
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("string", "a\0ä", "a\0ä"),
    ("string", np.str_("a"), "a"),
    ("string", Colour.RED, "red"),
    ("binary", bytearray(b"a"), b"a"),
    ("binary", memoryview(b"a"), b"a"),
    ("date", date(2024, 2, 29), date(2024, 2, 29)),
    ("date", np.datetime64("2024-02-29"), date(2024, 2, 29)),
    ("timestamp", datetime(2024, 2, 29), datetime(2024, 2, 29, tzinfo=UTC)),
    ("timestamp", ZONED, ZONED),
    ("timestamp", pd.Timestamp(ZONED), ZONED),
    ("timestamp", np.datetime64("2024-02-29T12:00:00"), datetime(2024, 2, 29, 12, tzinfo=UTC)),
    ("timestamp", pd.Timestamp("2024-02-29"), datetime(2024, 2, 29, tzinfo=UTC)),
    ("timestamp", pd.NaT, None),
    ("array<bigint>", (1, None, 2.0), [1, None, 2]),
    ("array<double>", np.array([1.5, 2.0]), [1.5, 2.0]),
    ("map<string,array<int>>", {"a": [1]}, {"a": [1]}),
    ("struct<x:int,y:double>", Pair(1, 2), {"x": 1, "y": 2.0}),
    ("struct<x:int,y:double>", {"y": 2, "x": None}, {"x": None, "y": 2.0}),
]

REFUSED: list[tuple[str, Any]] = [
    *(("bigint", value) for value in (1.5, -1.9, NAN, float("inf"), True, np.bool_(True), "3", Decimal("1.5"), 2**63)),
    ("bigint", Decimal("1E+1000000")),
    *(("bigint", value) for value in (3j, [3], date(2024, 1, 1), np.datetime64(3, "ns"), np.array([1, 2]), object())),
    ("tinyint", 128),
    ("int", -(2**31) - 1),
    *(("double", value) for value in (2**53 + 1, 10**400, True, "1", Decimal("0.5"), None.__class__)),
    *(("float", value) for value in (1e300, -1e300, 2**24 + 1, 10**400, True, "1")),
    *(("decimal(5,2)", value) for value in (Decimal("1.234"), Decimal("1234"), 1000, 0.5, Decimal("NaN"), True, "1")),
    *(("decimal(5,2)", value) for value in (Decimal("Infinity"), Decimal("-sNaN"))),
    *(("boolean", value) for value in (0, 1, 1.0, "true", np.int8(1))),
    *(("string", value) for value in (b"a", 1, "\ud800", None.__class__)),
    *(("binary", value) for value in ("a", 1, [1])),
    *(("date", value) for value in (datetime(2024, 1, 1), 3, "2024-01-01")),
    *(("timestamp", value) for value in (date(2024, 1, 1), 3, 3.0, "2024-01-01", pd.Timestamp(1))),
    ("timestamp", datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))),
    ("timestamp", datetime.max.replace(tzinfo=timezone(timedelta(hours=-2)))),
    *(("array<bigint>", value) for value in ([1.5], {1}, "12", b"12", 3, {1: 2}, iter([1]))),
    *(("map<string,int>", value) for value in ({"a": 1.5}, {1: 1}, {None: 1}, [("a", 1)])),
    *(("struct<x:int,y:int>", value) for value in ((1,), {"x": 1}, {"x": 1, "y": 2, "z": 3}, {"x": 1, "z": 2}, [1, 2])),
]


@pytest.mark.parametrize(("kind", "value", "held"), ACCEPTED)
def test_a_value_that_a_type_holds_exactly_is_converted_to_that_type(kind: str, value: Any, held: Any) -> None:
    got = converter_of(kind)(value)
    assert got == held
    assert type(got) is type(held)


@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_any_other_value_is_refused_with_the_value_and_the_wanted_type(kind: str, value: Any) -> None:
    with pytest.raises(Misfit, match=r"^got .*, wanted "):
        converter_of(kind)(value)


def test_an_error_names_the_wrong_part_of_a_nested_value() -> None:
    with pytest.raises(Misfit, match=r"^got 1\.5, wanted a whole number"):
        converter_of("map<string,array<bigint>>")({"a": [1, 1.5]})


@pytest.mark.parametrize("kind", ["long", "double", "string", "timestamp", "boolean", "decimal(4,1)", "array<long>"])
def test_a_missing_value_of_pandas_is_refused_with_what_to_write(kind: str) -> None:
    with pytest.raises(
        Misfit, match=r"^got <NA>, wanted .*; for a missing value write None: value if pd\.notna\(value\) else None$"
    ):
        converter_of(kind)(pd.NA)


def test_a_map_with_arrays_or_structs_as_keys_is_refused() -> None:
    for kind, value in (("map<array<int>,int>", {(1, 2): 3}), ("map<struct<x: int>,int>", {(1,): 3})):
        assert converter_of(kind)({}) == {}
        with pytest.raises(Misfit, match="wanted a mapping whose keys are plain values, no arrays or structs"):
            converter_of(kind)(value)


def test_a_map_whose_keys_are_equal_as_values_of_their_type_is_refused() -> None:
    assert converter_of("map<double,string>")({0.1: "a", 0.1 + 2**-52: "b"}) == {0.1: "a", 0.1 + 2**-52: "b"}
    with pytest.raises(Misfit, match="wanted a mapping whose keys differ as values of their type too"):
        converter_of("map<float,string>")({0.1: "a", 0.1 + 2**-52: "b"})


def test_nan_stays_a_float_nan() -> None:
    for kind in ("double", "float"):
        assert converter_of(kind)(NAN) != converter_of(kind)(NAN)


def answer(convert: Callable[[], Any]) -> str:
    try:
        return repr(convert())
    except Misfit as problem:
        return str(problem)


FLOATS = st.floats() | st.sampled_from([3.4028235e38, 3.4028235677973366e38, -1e39, 1e-46, -0.0])


@given(
    st.sampled_from(["float", "double", "bigint"]),
    st.lists(FLOATS)
    | st.lists(FLOATS | st.sampled_from([None, 3, 2**53 + 1, 10**400, True, "1.5", np.float32(0.1), np.int64(7)])),
    st.sampled_from([list, tuple, np.array]),
)
def test_an_array_of_floats_is_converted_at_once_as_its_elements_are_one_by_one(
    kind: str, elements: list[Any], made: Callable[[Any], Any]
) -> None:
    one = converter_of(kind)
    value = made(elements)
    plain = value.tolist() if made is np.array else elements
    assert answer(lambda: converter_of(f"array<{kind}>")(value)) == answer(lambda: [one(each) for each in plain])


class Unknown(tzinfo):
    """A zone that does not know its offset, which is none."""

    def utcoffset(self, time: datetime | None) -> None:
        return None


ZONES = st.one_of(
    st.sampled_from([None, Unknown(), UTC, ZoneInfo("UTC"), ZoneInfo("America/Havana")]),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
)


@given(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES),
    st.sampled_from(["timestamp", "array<timestamp>", "map<timestamp,int>"]),
)
@example(datetime.min, "timestamp")
@example(datetime.max, "timestamp")
@example(datetime(2024, 11, 3, 0, 30, fold=1, tzinfo=ZoneInfo("America/Havana")), "timestamp")
def test_a_time_is_in_utc_with_its_zone_and_without_a_zone_it_is_of_utc(time: datetime, kind: str) -> None:
    """Else `.hour` of a field, and what it is compared with, would depend on whether an exchange is before the bolt."""
    given = {"timestamp": time, "array<timestamp>": [time], "map<timestamp,int>": {time: 1}}[kind]
    converted = converter_of(kind)(given)
    (found,) = [converted] if kind == "timestamp" else converted
    wanted = time.replace(tzinfo=UTC) if time.utcoffset() is None else time.astimezone(UTC)
    assert (found, found.isoformat(), found.tzname()) == (wanted, wanted.isoformat(), "UTC")
    assert converter_of(kind)(converted) == converted


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in ACCEPTED}))
def test_none_is_accepted_by_every_type(kind: str) -> None:
    assert converter_of(kind)(None) is None


@given(st.lists(st.sampled_from([each[:2] for each in (*ACCEPTED, *REFUSED)]), min_size=1, max_size=5))
def test_the_values_of_a_row_are_converted_as_each_is_by_itself(fields: list[tuple[str, Any]]) -> None:
    # An iterator is spent by a use.
    fields = [(kind, value) for kind, value in fields if not isinstance(value, Iterator)] or [("int", 1)]
    schema = Schema.parse(", ".join(f"f{number} {kind}" for number, (kind, _) in enumerate(fields)))
    convert, row = rows_converter(schema, "default"), tuple(value for _, value in fields)
    try:
        wanted = repr([tuple(converter_of(kind)(value) for kind, value in fields)])
    except Misfit as misfit:
        wanted = str(misfit)
    try:
        found = repr(list(convert(row)))
    except RowError as refused:
        found = str(refused)
    assert wanted in found


_NESTED = ("array<array<bigint>>", "map<string,array<int>>", "struct<x: array<int>, y: map<int,struct<z: int>>>")
_values = {
    "bigint": st.integers(0, 9),
    _NESTED[0]: st.lists(st.lists(st.integers(0, 9), max_size=2) | st.none(), max_size=3),
    _NESTED[1]: st.dictionaries(st.text(max_size=2), st.lists(st.integers(0, 9), max_size=2) | st.none(), max_size=3),
    _NESTED[2]: st.tuples(
        st.lists(st.integers(0, 9), max_size=2),
        st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 9)) | st.none(), max_size=2),
    ),
}


def containers(value: Any) -> list[Any]:
    if not isinstance(value, list | dict):
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [value, *(found for each in inner for found in containers(each))]


@given(st.data(), st.lists(st.sampled_from(sorted(_values)), min_size=1, max_size=4))
def test_copies_of_a_row_are_those_that_its_converters_make(data: st.DataObject, kinds: list[str]) -> None:
    converters = [converter_of(kind) for kind in kinds]
    row = tuple(convert(data.draw(_values[kind] | st.none())) for kind, convert in zip(kinds, converters, strict=True))
    wanted = tuple(convert(value) for convert, value in zip(converters, row, strict=True))
    copied = with_copies(row, nested_in(kinds))
    assert repr(copied) == repr(wanted)
    ours, theirs = containers([*copied])[1:], containers([*row])[1:]
    assert not {id(each) for each in ours} & {id(each) for each in theirs}


# The Arrow types of the declared types, as handed to Spark.
ARROW = {
    "tinyint": pa.int8(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(5,2)": pa.decimal128(5, 2),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "array<bigint>": pa.list_(pa.int64()),
    "struct<x:int,y:double>": pa.struct([("x", pa.int32()), ("y", pa.float64())]),
}
_anything = st.one_of(
    st.integers(-300, 300),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.decimals(allow_nan=None, places=2, min_value=-2000, max_value=2000),
    st.dates(),
    st.datetimes(),
    st.none(),
)


def in_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC, fold=0) if isinstance(value, datetime) else value


@given(
    st.sampled_from(sorted(ARROW)),
    st.one_of(
        _anything,
        st.lists(_anything, max_size=3),
        st.tuples(_anything, _anything),
        st.fixed_dictionaries({"x": _anything, "y": _anything}),
    ),
)
def test_a_converted_value_survives_arrow_unchanged(kind: str, value: Any) -> None:
    try:
        held = converter_of(kind)(value)
    except Misfit:
        return
    assert repr(in_utc(pa.array([held], ARROW[kind]).to_pylist()[0])) == repr(in_utc(held))
    # Nothing is lost: the converted value equals the given one, except for digits that a 32-bit float cannot hold.
    if kind != "float" and not isinstance(value, list | tuple | dict):
        assert held == in_utc(value) or (held != held and value != value)


def test_a_type_is_printed_in_normalised_form_and_read_back() -> None:
    written = "array<STRUCT<x: long, y decimal( 5 ,2)>>"
    assert str(FieldType.parse(written)) == "array<struct<x:bigint,y:decimal(5,2)>>"
    assert FieldType.parse(str(FieldType.parse(written))) == FieldType.parse(written)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (np.datetime64("1970-01-01T00:00:00.007999"), 7),
        (pd.Timestamp(7_999_999), 7),
        (pd.NaT, None),
        (np.bool_(1), None),
        (np.int64(2**62 - 1), 2**62 - 1),
        (2**62, None),
        (-(2**62), None),
        (Decimal(2) ** 62, None),
    ],
)
def test_a_timestamp_may_come_from_numpy_or_pandas_and_has_a_bound(value: Any, ms: int | None) -> None:
    assert timestamp_of(value) == ms
