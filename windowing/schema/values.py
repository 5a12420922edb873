"""The values that a declared type accepts: a value is converted exactly, or refused; it is never cut, rounded or guessed.

| type | accepts | result |
|---|---|---|
| tinyint, smallint, int, bigint | whole numbers in its range, of any type (3, 3.0, numpy's) | int |
| float, double | floats; whole numbers that it represents exactly; a float that is too large for `float` is refused | float |
| decimal(p,s) | Decimals and whole numbers of no more digits | Decimal, s digits after the decimal point |
| boolean | True and False (numpy's too), no number | bool |
| string, binary | str; bytes, bytearray, memoryview | str, bytes |
| date | a date that is no datetime | the same |
| timestamp | a datetime to the microsecond; one without a zone is UTC | a datetime in UTC, with this zone |
| array, map, struct | list or tuple (numpy's arrays too); mapping; mapping or tuple with exactly these fields | list, dict, dict |

A tuple with names (a namedtuple, a Spark Row) is read by name if it has exactly the names of the struct, as a row is (`order_of`).
None is accepted everywhere except as the key of a map. Both runtimes use these rules, so a bolt that works in one process emits the
same values on Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache, lru_cache, partial
from numbers import Number
from operator import itemgetter
from typing import Any

from windowing.errors import quote
from windowing.schema.tuples import Tuple
from windowing.schema.types import WHOLE_BITS, FieldType

Converter = Callable[[Any], Any]
"""Converts a value to its type, or raises Misfit."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_DIGITS = 40  # more than any whole number of a type or timestamp has
_NAIVE_EPOCH = EPOCH.replace(tzinfo=None)


class InvalidTimestampWarning(UserWarning):
    """Rows went to the late stream as invalid because they have no usable timestamp: a field is missing, or the bolt's timestamp
    function failed on them."""


class Misfit(ValueError):
    """A value is not of the declared type; the text names the value, and the values that the type accepts."""

    def __init__(self, value: Any, wanted: str) -> None:
        missing = "; for a missing value write None: value if pd.notna(value) else None"
        super().__init__(f"got {quote(value)}, wanted {wanted}{missing if type(value).__name__ == 'NAType' else ''}")


@cache
def converters_of(types: tuple[str, ...]) -> tuple[Converter, ...]:
    """Return the converters of a schema's types, in order; cached by schema."""
    return tuple(converter_of(kind) for kind in types)


@cache
def converter_of(kind: str | FieldType) -> Converter:
    """Return the converter of one type, given in DDL. Cost of a value that already fits: about 0.05 us.

    >>> converter_of("bigint")(3.0), converter_of("double")(3), converter_of("decimal(5,2)")(3)
    (3, 3.0, Decimal('3.00'))
    >>> converter_of("array<int>")([1, 1.5])
    Traceback (most recent call last):
    windowing.schema.values.Misfit: got 1.5, wanted a whole number from -2147483648 to 2147483647
    """
    wanted = FieldType.parse(kind) if isinstance(kind, str) else kind
    if wanted.kind in WHOLE_BITS:
        return _whole(WHOLE_BITS[wanted.kind])
    if wanted.kind == "decimal":
        return _decimal(*wanted.digits)
    if wanted.kind == "array":
        inner = wanted.inner[0]
        return _array(converter_of(inner), _OF_FLOATS.get(inner.kind))
    if wanted.kind == "map":
        return _map(*map(converter_of, wanted.inner))
    if wanted.kind == "struct":
        return _struct(wanted.names, tuple(map(converter_of, wanted.inner)))
    return _SIMPLE[wanted.kind]


TIMESTAMP_BOUND = 2**62
"""A usable timestamp is in (-TIMESTAMP_BOUND, TIMESTAMP_BOUND), in milliseconds since 1970."""


def timestamp_of(value: Any) -> int | None:
    """Return a value as milliseconds since 1970, None if it is no usable timestamp.

    Whole numbers of any type are milliseconds, if they are within the bound. A datetime is converted from its own zone, a naive one
    and a date from UTC; the result is rounded down.

    >>> timestamp_of(datetime(1970, 1, 1, 0, 0, 1)), timestamp_of(7.0), timestamp_of(7.5), timestamp_of("soon")
    (1000, 7, None, None)
    """
    whole = value if type(value) is int else _milliseconds_of(_plain(value))
    return whole if whole is not None and -TIMESTAMP_BOUND < whole < TIMESTAMP_BOUND else None


def _milliseconds_of(value: Any) -> int | None:
    if isinstance(value, datetime):
        if value != value:  # pandas' NaT
            return None
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return (aware - EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days * 86_400_000
    return _as_whole(value)


Order = Callable[[Any], Sequence[Any] | None]
"""Returns the values of a row with names in the order of the fields; None if the names contradict them."""


@lru_cache(maxsize=1024)
def order_of(names: tuple[str, ...], fields: tuple[str, ...]) -> Order | None:
    """Return the order of rows with these names, as many as there are fields. Rows with the names of the fields are read by name,
    others by position (None: they are in order). If a name is that of a field at another position, neither is possible.

    >>> by_name = order_of(("n", "origin"), ("origin", "n"))
    >>> by_name((3, "JFK")), order_of(("x", "y"), ("origin", "n")), order_of(("n", "airport"), ("origin", "n"))((3, "JFK"))
    (('JFK', 3), None, None)
    """
    places = [fields.index(name) if name in fields else place for place, name in enumerate(names)]
    if places == list(range(len(fields))):
        return None
    if set(names) == set(fields):
        return itemgetter(*map(names.index, fields))
    return lambda row: None


@lru_cache(maxsize=1024)
def order_in(kind: Any, fields: tuple[str, ...]) -> Order | None:
    """Return the order of rows of a type. A record's or a namedtuple's class has the names; a Spark Row has names of its own."""
    names = getattr(kind, "_positions", None) or getattr(kind, "_fields", None)
    if names is not None:
        return order_of(tuple(names), fields)
    has_own = issubclass(kind, Tuple) or (issubclass(kind, tuple) and kind.__dictoffset__)
    return partial(_by_own_names, fields) if has_own else None


def _by_own_names(fields: tuple[str, ...], row: Any) -> Sequence[Any] | None:
    names = row.get_fields() if isinstance(row, Tuple) else getattr(row, "__fields__", fields)  # of a Spark Row
    order = order_of(tuple(names), fields)
    return tuple(row) if order is None else order(row)


def stored_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the key of these values, which have their declared types, in a state. -0.0 becomes 0.0, in arrays too, because keys
    compare them as equal.

    >>> stored_key(["a", -0.0, [1.0, -0.0]])
    ('a', 0.0, [1.0, 0.0])
    """
    key = []
    for value in values:
        if isinstance(value, list):
            value = list(stored_key(value))
        elif isinstance(value, Decimal):
            value = abs(value) if value.is_zero() else value
        elif isinstance(value, float) and value == 0:
            value = 0.0
        key.append(value)
    return tuple(key)


# -- copies of lists and dicts ---------------------------------------------------------------------------------------

_CONTAINERS = frozenset({list, dict})
"""What the values of arrays, maps and structs are."""


def nested_in(types: Iterable[str]) -> list[int]:
    """Return the positions of the types whose values are lists or dicts.

    >>> nested_in(["int", "array<int>", "struct<n int>"])
    [1, 2]
    """
    return [at for at, kind in enumerate(types) if kind.startswith(("array", "map", "struct"))]


def with_copies(values: Iterable[Any], nested: Iterable[int]) -> tuple[Any, ...]:
    """Return values of declared types with copies of those at the positions `nested_in`: lists and dicts of their own, inner ones
    too. Half the cost of converting them again.
    """
    copies = list(values)
    for at in nested:
        copies[at] = _copy_of(copies[at])
    return tuple(copies)


def _copy_of(value: Any) -> Any:
    if type(value) is list:
        return value.copy() if _CONTAINERS.isdisjoint(map(type, value)) else [*map(_copy_of, value)]
    if type(value) is dict:
        inner = value.values()
        is_flat = _CONTAINERS.isdisjoint(map(type, inner))
        return value.copy() if is_flat else dict(zip(value, map(_copy_of, inner), strict=True))
    return value


# -- converters, one for each type ---------------------------------------------------------------------------------


def _whole(bits: int) -> Converter:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        if value is None:
            return None
        number = _as_whole(_plain(value))
        if number is None or not low <= number <= high:
            raise Misfit(value, f"a whole number from {low} to {high}")
        return number

    return convert


def _double(value: Any) -> Any:
    if type(value) is float or value is None:
        return value
    number = _as_float(_plain(value))
    if number is None:
        raise Misfit(value, "a float, or a whole number that a double holds exactly")
    return number


def _float(value: Any) -> Any:
    if value is None:
        return None
    number = _as_float(_plain(value))
    try:
        near = None if number is None else struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        near = None
    if near is None or (not isinstance(value, float) and near != number):
        raise Misfit(value, "a float of 32 bits, or a whole number that it holds exactly; declare it double")
    return near


def _decimal(precision: int, scale: int) -> Converter:
    unit = Decimal(1).scaleb(-scale)
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])

    def convert(value: Any) -> Any:
        if value is None:
            return None
        number = value if isinstance(value, Decimal) else _as_integer(_plain(value))
        try:
            if number is not None and (result := exact.quantize(Decimal(number), unit)).is_finite():
                return result
        except DecimalException:
            pass
        raise Misfit(value, f"a Decimal or a whole number that decimal({precision},{scale}) holds exactly")

    return convert


def _boolean(value: Any) -> Any:
    if value is True or value is False or value is None:
        return value
    plain = _plain(value)
    if plain is not True and plain is not False:
        raise Misfit(value, "True or False")
    return plain


def _string(value: Any) -> Any:
    if type(value) is str and value.isascii():
        return value
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(value, "text without half a surrogate pair") from None
        return str.__str__(value)
    raise Misfit(value, "a str")


def _binary(value: Any) -> Any:
    if type(value) is bytes or value is None:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misfit(value, "bytes")


def _date(value: Any) -> Any:
    if type(value) is date or value is None:
        return value
    plain = _plain(value)
    if isinstance(plain, date) and not isinstance(plain, datetime):
        return plain
    raise Misfit(value, "a date; of a datetime, its .date()")


def _timestamp(value: Any) -> Any:
    if type(value) is datetime:
        zone = value.tzinfo
        if zone is UTC:
            return value
        if zone is None:
            return EPOCH + (value - _NAIVE_EPOCH)  # a fifth of the time of `replace`
        return value if getattr(zone, "key", None) == "UTC" else _in_utc(value)  # Arrow's zone of nested times
    if value is None:
        return None
    plain = _plain(value)
    if isinstance(plain, datetime) and plain != plain:  # pandas' NaT
        return None
    if not isinstance(plain, datetime) or getattr(plain, "nanosecond", None):
        of_number = ", such as datetime.fromtimestamp(milliseconds / 1000, UTC)" if type(plain) is int else ""
        raise Misfit(value, f"a datetime of whole microseconds{of_number}")
    to_plain = getattr(plain, "to_pydatetime", None)
    return _in_utc(plain if to_plain is None else to_plain())


def _in_utc(value: datetime) -> datetime:
    if value.utcoffset() is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise Misfit(value, "a datetime of whole microseconds, in UTC in the years 1 to 9999") from None


def _floats(values: Sequence[float]) -> list[float]:
    """Return floats as those of 32 bits. Raises OverflowError."""
    form = f"<{len(values)}f"
    return list(struct.unpack(form, struct.pack(form, *values)))


_OF_FLOATS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {"float": _floats, "double": list}
_FLOATS = frozenset((float,))


def _array(element: Converter, of_floats: Callable[[Sequence[float]], list[float]] | None) -> Converter:
    """element: converts an element. of_floats: what it makes of floats, all at once."""

    def convert(value: Any) -> Any:
        if value is None:
            return None
        found = value.tolist() if getattr(value, "shape", ()) and hasattr(value, "tolist") else value
        if not isinstance(found, list | tuple):
            raise Misfit(value, "a list")
        if of_floats is not None and _FLOATS.issuperset(map(type, found)):
            with suppress(OverflowError):
                return of_floats(found)
        return [element(each) for each in found]

    return convert


def _map(key: Converter, item: Converter) -> Converter:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping) or None in value:
            raise Misfit(value, "a mapping without the key None")
        try:
            found = {key(each): item(value[each]) for each in value}
        except TypeError as problem:  # a list or a dict has no hash
            raise Misfit(value, "a mapping whose keys are plain values, no arrays or structs") from problem
        if len(found) < len(value):
            raise Misfit(value, "a mapping whose keys differ as values of their type too")
        return found

    return convert


def _struct(names: tuple[str, ...], members: tuple[Converter, ...]) -> Converter:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping) and value.keys() == set(names):
            found: Any = [value[name] for name in names]
        elif isinstance(value, tuple) and len(value) == len(names):
            order = order_in(type(value), names)
            found = value if order is None else order(value)
        else:
            found = None
        if found is None:
            raise Misfit(value, f"a mapping or a tuple of {', '.join(names)}")
        return {name: member(each) for name, member, each in zip(names, members, found, strict=True)}

    return convert


_SIMPLE: dict[str, Converter] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
}


# -- numbers of other kinds ------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return the Python value of a numpy scalar, recognised by its shape; any other value unchanged."""
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    plain = value.item()
    # numpy returns a datetime or a timedelta in nanoseconds as an int; keep the scalar instead.
    return value if isinstance(plain, int) and value.dtype.kind in "mM" else plain


def _as_integer(value: Any) -> int | None:
    """Return an int as a plain int; None for any other value, True and False included."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int(value)


def _as_whole(value: Any) -> int | None:
    """Return a number without a fraction as an int; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, Number):
        return None
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() > _MOST_DIGITS:
        return None  # int() of Decimal("1E+1000000") takes minutes, and no type holds it
    try:
        number = int(value)  # type: ignore[call-overload]
    except (ValueError, OverflowError, TypeError):  # NaN, infinity, a complex number
        return None
    return int(number) if number == value else None


def _as_float(value: Any) -> float | None:
    """Return a float as a plain float, and an int if a float represents it exactly; None for any other value."""
    if isinstance(value, float):
        return float(value)
    number = _as_integer(value)
    try:
        result = None if number is None else float(number)
    except OverflowError:
        return None
    return result if result == number else None
