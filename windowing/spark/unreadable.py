"""Values that Spark can hold and Python cannot: dates and timestamps outside the years 1 to 9999, text that is not UTF-8, maps with
duplicate keys, or with arrays or structs as keys.

    Arrow column  --python_values--> [date, Unreadable, date]    an unreadable value becomes an Unreadable, all others Python values
    Arrow columns --tuples_in------> tuple, Held, tuple          raises UnreadableValueError for that field, and for no other
    values        --arrow_column---> Arrow column                an Unreadable becomes its original value again, for the late stream

Laws: an unreadable value that is never read has no effect, and is output unchanged. Fields that are read before a tuple enters a
window (its timestamp, key, source, the fields of `aggregate=`) are checked in columns (`unreadable_in`), and an unreadable value
makes the row invalid. A row whose unreadable value a bolt reads in a window is invalid too. Cost without unreadable values: only
the check of these columns (dates and timestamps: minimum and maximum; text: one pass over its bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.columnar import ColumnRows
from windowing.columnar.manager import ColumnContent
from windowing.columnar.rows import values_of
from windowing.errors import BoltError, UnreadableValueError, printable, quote, with_causes
from windowing.schema.rows import record_type
from windowing.schema.tuples import Tuple
from windowing.windows.events import ListContent, TupleWindow

_UNFIT = (OverflowError, ValueError, KeyError, TypeError)
"""The errors of dates, of texts (UnicodeDecodeError is a ValueError), of maps with a repeated key, or with a key without a hash."""
_DAYS = -719_162, 2_932_896
_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_INNER = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)


class Unreadable:
    """A placeholder for a value that Python cannot hold; `name` is its field."""

    __slots__ = ("name", "scalar")

    def __init__(self, scalar: pa.Scalar, name: str) -> None:
        self.scalar, self.name = scalar, name

    @property
    def raw(self) -> Any:
        """The raw value: days, microseconds, the bytes of a text; None for a nested value."""
        kind = self.scalar.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self.scalar.as_buffer().to_pybytes()
        return None if pa.types.is_nested(kind) else self.scalar.value

    def refuse(self) -> UnreadableValueError:
        """Return the error for reading the value."""
        error = UnreadableValueError(
            f"field {self.name!r} holds {self!r}, which Python cannot; filter or cast such values in Spark, or leave the field out"
        )
        error.field = self.name
        return error

    def __repr__(self) -> str:
        kind = self.scalar.type
        if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
            return f"{'date' if pa.types.is_date32(kind) else 'timestamp'} {self.scalar.cast(pa.string()).as_py()}"
        return f"text {quote(self.raw, 60)}" if self.raw is not None else f"a value of {printable(str(kind), 60)}"


class Held(tuple[Any, ...]):
    """The values of a row with an Unreadable among them; reading that value raises UnreadableValueError."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if type(found) is tuple:  # a slice
            return Held(found) if any(type(each) is Unreadable for each in found) else found
        return _checked(found)

    def __iter__(self) -> Iterator[Any]:
        return map(_checked, super().__iter__())


def _checked(value: Any) -> Any:
    if type(value) is Unreadable:
        raise value.refuse()
    return value


@lru_cache(maxsize=256)
def held_record_type(names: tuple[str, ...]) -> Any:
    """Return the Held subclass of the record type of these fields."""
    base = record_type(names)
    attributes = {field: property(_getter(position)) for position, field in enumerate(base._fields)}
    return type("Row", (Held, base), {"__slots__": (), **attributes})


def _getter(position: int) -> Callable[[Any], Any]:
    return lambda row: _checked(tuple.__getitem__(row, position))


def held(row: Any, fields: Collection[str] | None = None) -> bool:
    """Return whether a row, a Record or a Tuple, holds an unreadable value in one of these fields (None: in any)."""
    values = row._values if isinstance(row, Tuple) else row
    return isinstance(values, tuple) and any(
        type(each) is Unreadable and (fields is None or each.name in fields) for each in tuple.__iter__(values)
    )


def asked_unreadable(problem: BaseException) -> bool:
    """Return whether an error was caused by reading an unreadable value, of a row or, through Arrow, of a column."""
    kinds = UnreadableValueError, OverflowError, UnicodeDecodeError, pa.ArrowException
    return any(isinstance(each, kinds) for each in with_causes(problem))


def asked_field(problem: BaseException) -> str | None:
    """Return the field whose unreadable value was read; None if unknown."""
    return next((each.field for each in with_causes(problem) if isinstance(each, UnreadableValueError)), None)


def plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the raw values of a row, Unreadable ones included."""
    return tuple(tuple.__iter__(values))


def python_values(column: Any, name: str) -> list[Any]:
    """Return a column as Python values, with an Unreadable for each unreadable value; or the result of an earlier call as it is.
    Cost: that of `values_of`.
    """
    if isinstance(column, list):
        return column
    try:
        found = values_of(column)
    except _UNFIT:
        found = _Mixed(_value(scalar, name) for scalar in column)
    return found


class _Mixed(list[Any]):
    """The values of a column with an Unreadable among them."""


def _value(scalar: pa.Scalar, name: str) -> Any:
    try:
        return scalar.as_py(maps_as_pydicts="strict")
    except _UNFIT:
        return Unreadable(scalar, name)


def tuples_in(
    columns: Iterable[Any],
    names: Iterable[str],
    make: Callable[[Any], Any] | None = None,
    make_held: Callable[[Any], Any] = Held,
) -> Iterator[Any]:
    """Return the rows of columns of Arrow or of `python_values` as tuples, those with an Unreadable as Held; `make` and `make_held`
    make other rows of them.

    Cost: that of `python_values`; a check of each value only if one is unreadable.
    """
    values = [python_values(column, name) for column, name in zip(columns, names, strict=True)]
    rows = zip(*values, strict=True)
    if any(type(column) is _Mixed for column in values):
        plain = make or tuple
        return (make_held(row) if any(type(each) is Unreadable for each in row) else plain(row) for row in rows)
    return rows if make is None else map(make, rows)


def tuple_at(columns: Iterable[Any], names: Iterable[str], positions: Sequence[int], number: int) -> Any:
    """Return one of the rows at these positions of Arrow columns, as `tuples_in` does, with values of its own."""
    return next(tuples_in([column.slice(positions[number], 1) for column in columns], names))


def records_in(columns: Iterable[Any], names: tuple[str, ...]) -> Iterator[Any]:
    """Return the rows of Arrow columns as Records; reading an unreadable value of one raises UnreadableValueError."""
    make = partial(tuple.__new__, record_type(names))  # `_make` would count the values of each row
    return tuples_in(columns, names, make, lambda row: held_record_type(names)._make(row))


def any_unreadable(columns: Iterable[Sequence[Any]]) -> bool:
    """Return whether columns of `python_values` hold an Unreadable. Cost: O(columns)."""
    return any(type(column) is _Mixed for column in columns)


def arrow_column(bolt: str, stream: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Return the emitted values of a field as an Arrow array. Raises BoltError for a value that is not of the field's type."""
    array = _array(values, field.type)
    if array is None:
        wrong = next(value for value in values if _array([value], field.type) is None)
        raise BoltError(
            f"bolt {bolt!r} emitted {quote(wrong)} as field {field.name!r} of stream {stream!r}, which is "
            f"declared {field.type}; emit that type, or change the declaration"
        )
    return array


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return the values as an Arrow array, None if Arrow refuses them. They have their declared types (schema/rows.py), or are
    values that Python cannot hold.
    """
    for array in (pa.array, arrow_values):
        try:
            return array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return None


def arrow_values(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Return values, Unreadable ones included, as an Arrow array. Raises as `pa.array`."""
    return pa.array([each.scalar.cast(kind) if type(each) is Unreadable else each for each in values], kind)


# -- checks of columns ---------------------------------------------------------------------------------------------------


def unreadable_in(column: Any) -> np.ndarray[Any, Any] | None:
    """Return a mask of the values of a column that Python cannot hold, None without such values."""
    kind = column.type
    if pa.types.is_date32(kind):
        return _outside(column.cast(pa.int32()), *_DAYS)
    if pa.types.is_timestamp(kind):
        low, high = (bound * _PER_SECOND[kind.unit] // 1_000_000 for bound in _MICROS)
        return _outside(column.cast(pa.int64()), low, high)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return _one_by_one(column)
        return None
    if any(test(kind) for test in _INNER):
        return _one_by_one(column)
    return None


def any_of(masks: Iterable[np.ndarray[Any, Any] | None]) -> np.ndarray[Any, Any] | None:
    """Return the union of the masks, None if all are None."""
    found = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(found) if found else None


def _outside(numbers: Any, low: int, high: int) -> np.ndarray[Any, Any] | None:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (low <= ends["min"] and ends["max"] <= high):
        return None
    wrong = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
    return np.asarray(pc.fill_null(wrong, False))


def _one_by_one(column: Any) -> np.ndarray[Any, Any] | None:
    wrong = np.fromiter((type(each) is Unreadable for each in python_values(column, "")), bool, len(column))
    return wrong if bool(wrong.any()) else None


# -- windows without such rows -------------------------------------------------------------------------------------------


def readable_window(window: TupleWindow, fields: Collection[str] | None) -> tuple[TupleWindow, list[Any]] | None:
    """Return a window without the rows that hold an unreadable value in one of these fields (None: in any), and the new rows among
    those removed; None if all its rows are readable.

    For a bolt with `columnar=` the rows stay columns.
    """
    content: Any = window._live()
    inside: Any = content._content if isinstance(content, ColumnContent) else content
    parts = [_parted(rows, fields) for rows in (inside.current(), inside.new(), inside.expired())]
    if not any(len(lost) for _, lost in parts):
        return None
    found: Any = ListContent(*(kept for kept, _ in parts))  # type: ignore[arg-type]  # rows in columns are sequences too
    if isinstance(content, ColumnContent):
        found = content.over(found)
    return TupleWindow(found, window.start_timestamp, window.end_timestamp, window.key), list(parts[1][1])


def _parted(rows: Sequence[Any], fields: Collection[str] | None) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the readable rows, and the unreadable ones."""
    if not isinstance(rows, ColumnRows):
        return [row for row in rows if not held(row, fields)], [row for row in rows if held(row, fields)]
    wrong = any_of(map(unreadable_in, rows.table.columns))
    wrong = np.zeros(len(rows), dtype=bool) if wrong is None else wrong
    return rows.take(np.flatnonzero(~wrong)), rows.take(np.flatnonzero(wrong))
