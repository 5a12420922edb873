"""Rows: Record, the row that a bolt gets, the same in one process and on Spark; and the rows in the value that a bolt returned.

    row.delay        row["delay"]        row[2]        origin, delay = row        row._asdict()

Laws: `row[name]` finds every field, whatever its name; `row.name` finds it if the name is a Python identifier without a leading
underscore. A record is a tuple of its values, equal to any tuple with the same values, and never changes.

| returned                                | meaning                                                  |
|-----------------------------------------|----------------------------------------------------------|
| None                                    | no row                                                   |
| a tuple                                 | one row, value by value                                  |
| a namedtuple, a Spark Row, a record     | one row: by name if its names are the stream's, else value by value |
| a dict                                  | one row, by field name                                   |
| a str, bytes, number, date, ...         | one row of a stream with ONE field                       |
| a list, a generator, any other iterable | rows, each a tuple, a list, a dict or, of ONE field, a scalar |
| a pyarrow Table or RecordBatch, or one in a list | rows, its columns by field name                 |
| a Tuple that the bolt got               | one row, as a namedtuple                                 |
| a set, an awaitable, a class            | an error: no order, no value, no rows                    |
| a data frame of pandas, polars, ...     | an error: iterating it gives names of columns, or columns |

A row is refused if one of its names is that of a field at another place, and another is that of no field.
A None among rows is an error, since it may mean "no row" or "an empty value": leave it out, or write `(None,)`. Every value is
converted to its declared type, or the row is refused (values.py).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, repeat
from operator import attrgetter, call, itemgetter
from types import GeneratorType
from typing import Any, ClassVar

from windowing.errors import BoltError, describe_error, quote
from windowing.schema.checks import DEFAULT_STREAM, StormNames, did_you_mean, getters
from windowing.schema.tuples import Tuple
from windowing.schema.types import Schema
from windowing.schema.values import Misfit, converter_of, converters_of, order_in


class Record(StormNames):
    """The base class of all records; `record_type` makes the class for the fields of a stream.

    >>> row = record_type(("origin", "flight no"))("JFK", 7)
    >>> row.origin, row["origin"], row["flight no"], row[1]
    ('JFK', 'JFK', 7, 7)
    >>> row["orign"]
    Traceback (most recent call last):
    KeyError: "no field 'orign'; did you mean 'origin'?"
    """

    __slots__ = ()

    _by_name = True
    """Makes `reader_of` read fields by item, because attributes may have other names."""
    _positions: ClassVar[Mapping[str, int]]
    _elsewhere = getters("row") | {
        "getValues": "tuple(row)",
        "getFields": "row._fields",
        "as_dict": "row._asdict()",
        "get": 'row["word"], or row._asdict().get("word") for a field that may be missing',
        "contains": '"word" in row._fields',
        "source_component source_stream": "a field of your own that says it; only tuples of a topology know their source",
    }

    def __getitem__(self, key: Any) -> Any:
        if type(key) is not str:
            return super().__getitem__(key)  # type: ignore[misc]
        try:
            return super().__getitem__(self._positions[key])  # type: ignore[misc]
        except KeyError:
            raise KeyError(f"no field {key!r}; {did_you_mean(key, self._positions)}") from None

    def _asdict(self) -> dict[str, Any]:
        """Return the values by name; also names that are no identifiers."""
        return dict(zip(self._positions, self, strict=True))  # type: ignore[call-overload]


@lru_cache(maxsize=1024)
def record_type(names: tuple[str, ...]) -> Any:
    """Return the class of records with these fields, a namedtuple (`_make`, `_fields`). Equal names give the same class."""
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # the names are known at run time only
    positions = {name: position for position, name in enumerate(names)}
    return type("Row", (Record, base), {"__slots__": (), "_positions": positions, "__doc__": "A row of a stream."})


_TEXT = frozenset({str})


def record_of(row: Any) -> Any:
    """Return a mapping with text keys as a record; any other row unchanged.

    >>> record_of({"origin": "JFK", "delay": 3})
    Row(origin='JFK', delay=3)
    """
    if not (type(row) is dict or isinstance(row, Mapping)) or not _TEXT.issuperset(map(type, row)):
        return row
    return record_type(tuple(row))._make(row.values())


def record_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record that is stored, from which `record_of` makes it again; None for any other value."""
    return value._asdict() if isinstance(value, Record) else None


def records_of(rows: Sequence[Any]) -> list[Any]:
    """Return `record_of` of each row, for dicts with the same keys at half its cost.

    >>> records_of([{"origin": "JFK"}, 7])
    [Row(origin='JFK'), 7]
    """
    # Of two rows or less the checks cost more than they save.
    if len(rows) > 2 and {dict}.issuperset(map(type, rows)) and _TEXT.issuperset(map(type, chain.from_iterable(rows))):
        names = set(map(tuple, rows))
        if len(names) == 1:
            return list(map(tuple.__new__, repeat(record_type(names.pop())), map(dict.values, rows)))
    return list(map(record_of, rows))


# -- fields of rows ----------------------------------------------------------------------------------------------------------------


def field_names(row: Any) -> Collection[str]:
    """Return the names of the fields of a Tuple, a Record or a mapping, in order.

    >>> list(field_names(record_of({"origin": "JFK", "flight no": 7})))
    ['origin', 'flight no']
    """
    if isinstance(row, Record):
        return row._positions
    return row.get_fields() if isinstance(row, Tuple) else row


def columns_of(rows: Sequence[Any], names: Sequence[str]) -> Sequence[Iterable[Any]] | None:
    """Return these fields of records or tuples of one type, a column each; None for other rows. Cost: C speed."""
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else object
    if not issubclass(kind, Record | Tuple) or not kind._positions.keys() >= set(names):
        return None
    return [read_each(kind, name, rows) for name in names]


def read_each(kind: type, field: str, rows: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over a field of these rows, all of type `kind`. Cost: C speed."""
    if issubclass(kind, Tuple) and field in kind._positions:
        return map(itemgetter(kind._positions[field]), map(attrgetter("_values"), rows))
    return map(reader_of(kind, field), rows)


@lru_cache(maxsize=256)
def reader_of(kind: type, *fields: str) -> Callable[[Any], Any]:
    """Return a function from a tuple of type `kind` to its field, or to a tuple of several fields."""
    if issubclass(kind, Record) and kind._positions.keys() >= set(fields):
        # An item of a record is found by a call of Python code, an attribute is not; one of them may have another name.
        own: Sequence[str] = kind._fields  # type: ignore[attr-defined]  # of its namedtuple
        return attrgetter(*(own[kind._positions[field]] for field in fields))
    by_name = issubclass(kind, Mapping) or getattr(kind, "_by_name", False)
    return itemgetter(*fields) if by_name else attrgetter(*fields)


# -- rows that a bolt returned ---------------------------------------------------------------------------------------------------


_SCALARS = (str, bytes, bytearray, memoryview)
_VALUES = frozenset({str, bytes, int, float, bool})
_BY_POSITION = (tuple, list, Tuple)


class RowError(BoltError):
    """A row does not fit its stream; the runner converts it to a BoltError that names the bolt and the window."""


def rows_of(returned: Any, schema: Schema, stream: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that a bolt returned, one after the other as its iterable produces them.

    >>> list(rows_of([("JFK", 3), {"n": 2, "origin": "LGA"}], Schema.parse("origin string, n int"), "default"))
    [('JFK', 3), ('LGA', 2)]
    >>> list(rows_of("JFK", Schema.parse("origin string"), "default"))
    [('JFK',)]
    """
    if returned is None:
        return
    if isinstance(returned, tuple):  # the most common case; the checks below are slow for a record
        yield row_of(returned, schema, stream)
        return
    if type(returned) not in _LISTED:
        refuse_awaitable(returned)
        problem = no_rows(returned)
        if problem is not None:
            raise RowError(f"it returned {problem}")
        if isinstance(returned, (Mapping, Tuple, *_SCALARS)) or not (
            isinstance(returned, Iterable) or is_table(returned)
        ):
            yield row_of(returned, schema, stream)
            return
    yield from _rows_in(returned, schema, stream, row_converter(schema, stream))


_LISTED = (list, GeneratorType)
"""The usual types of several rows."""


def _rows_in(
    returned: Any, schema: Schema, stream: str, converted: Callable[[Any], tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of an iterable, or of a table; `converted`: of `row_converter`."""
    for row in [returned] if is_table(returned) else returned:
        if is_table(row):
            yield from _rows_of_table(row, schema, stream)
        else:
            try:
                fitting = converted(row)
            except RowError as problem:
                raise _one_row_as_list(returned, schema) or problem from None
            yield fitting


def _one_row_as_list(returned: Any, schema: Schema) -> RowError | None:
    """Return the error for a list of the values of one row, which was meant as the row; None for any other object."""
    rows = (tuple, list, Mapping, Tuple)
    if (
        type(returned) is not list
        or not 1 < len(returned) == len(schema)
        or any(isinstance(value, rows) for value in returned)
    ):
        return None
    return RowError(
        f"it returned a list of values, {quote(returned)}, and a list holds several rows; write one row as a tuple: "
        f"{quote(tuple(returned))}"
    )


def no_rows(given: Any) -> str | None:
    """Return the problem with an object that has no rows, or no order of rows, and what to give instead; None for any other.

    >>> no_rows({3}), no_rows([3])
    ('a set, whose order changes from run to run, {3}; give sorted(...)', None)
    """
    if isinstance(given, set | frozenset):
        return f"a set, whose order changes from run to run, {quote(given)}; give sorted(...)"
    if isinstance(given, type):
        return f"the class {given.__name__!r}, which is no list of rows; give an instance, or a list of tuples"
    if is_frame(given):
        library = type(given).__module__.partition(".")[0]
        return (
            f"a {type(given).__name__} of {library}, which gives the names of its columns, or columns, where rows are wanted; give "
            f"{_FRAMES.get(library, 'a pyarrow Table, or a list of tuples')}"
        )
    return None


_FRAMES = {
    "pandas": "pyarrow.Table.from_pandas(frame, preserve_index=False), or list(frame.itertuples(index=False, name=None))",
    "polars": "frame.to_arrow(), or frame.rows()",
}


_DICTS = {"pandas": 'frame.to_dict("records")', "polars": "frame.to_dicts()", "pyarrow": "table.to_pylist()"}


def how_to_list(given: Any) -> str | None:
    """Return the sentence with the call that makes rows with names of a data frame or an Arrow table; None for any other object."""
    library = type(given).__module__.partition(".")[0]
    if library not in _DICTS or not (is_frame(given) or is_table(given)):
        return None
    return f"a {type(given).__name__} of {library}; {_DICTS[library]} is the list of its rows"


def is_frame(given: Any) -> bool:
    """Return whether this is a data frame of another library, which cannot be imported here; Arrow's tables are none."""
    if is_table(given):
        return False
    return hasattr(given, "__dataframe__") or (hasattr(given, "columns") and hasattr(given, "shape"))


def _rows_of_table(table: Any, schema: Schema, stream: str) -> Iterator[tuple[Any, ...]]:
    names = list(table.column_names)
    if sorted(names) != sorted(schema.names):
        there = ", ".join(map(quote, names))
        raise RowError(f"{_wanted(schema, stream)}, got a table of the columns {there}; rename, add or drop columns")
    try:
        rows = table.to_pylist(maps_as_pydicts="strict")
    except _UNREADABLE as problem:
        raise _unreadable_column(table, stream) from problem
    for row in rows:
        yield row_of(row, schema, stream)


_UNREADABLE = (OverflowError, ValueError, KeyError, TypeError)
"""The exceptions of Arrow for values that Python cannot hold: a time or date, a text that is not UTF-8, a map with a key twice."""


def _unreadable_column(table: Any, stream: str) -> RowError:
    for field in table.schema:
        try:
            table.column(field.name).to_pylist(maps_as_pydicts="strict")
        except _UNREADABLE as problem:
            return RowError(
                f"field {field.name!r} of stream {stream!r} has, in a column of {field.type}, a value that Python cannot hold "
                f"({describe_error(problem)}); a date or time is in the years 1 to 9999, a text is UTF-8, a map has a key once"
            )
    raise AssertionError("each column can be read, the table cannot")


def is_table(returned: Any) -> bool:
    """Return whether this is an Arrow table; the class cannot be imported here."""
    if isinstance(returned, _BY_POSITION):  # a record or a Tuple would compute a sentence for each missing attribute
        return False
    return hasattr(returned, "column_names") and hasattr(returned, "to_pylist")


def refuse_rows(returned: Any) -> None:
    """Raise RowError if a bolt without output returned something; a generator is run, and may yield nothing."""
    if returned is None:
        return
    refuse_awaitable(returned)
    for row in returned if isinstance(returned, Iterator) else (returned,):
        raise RowError(f"it declares no output, yet it returned {quote(row)}; add output=... to its declaration")


def refuse_returned(returned: Any, who: str = "takes a collector", instead: str = "") -> None:
    """Raise RowError if code that emits to a collector returned a value. who, instead: parts of the error."""
    if returned is not None:
        refuse_awaitable(returned)
        raise RowError(f"it {who}, yet it returned {quote(returned)}; emit rows and return nothing{instead}")


def refuse_unsent(returned: Any) -> None:
    """Raise RowError for what a `next_tuple` returned that emitted nothing: rows, or a body that did not run."""
    refuse_awaitable(returned)
    if isinstance(returned, Iterable):
        raise RowError(
            f"it emitted nothing, and returned {quote(returned)}; emit rows to the collector and return nothing"
        )


def refuse_awaitable(returned: Any) -> None:
    """Raise RowError for a coroutine or the like, because a window is valid during one plain call only."""
    if isinstance(returned, Awaitable | AsyncIterable):
        close = getattr(returned, "close", None)
        if close is not None:
            close()  # otherwise Python warns of a coroutine that was never awaited
        raise RowError(f"it returned {quote(returned)}, which nobody awaits; make the function a plain one")


def row_of(row: Any, schema: Schema, stream: str) -> tuple[Any, ...]:
    """Return a row as a tuple of converted values in the order of the schema, or raise RowError. Cost: 0.5 us for three values."""
    converters = converters_of(schema.types)
    values = row if type(row) is tuple and len(row) == len(converters) else _in_order(row, schema, stream)
    try:
        return tuple(map(call, converters, values))
    except Misfit:
        raise RowError(_misfit(values, schema, stream)) from None


def row_converter(schema: Schema, stream: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return `row_of` for one stream, for callers with many rows. Cost: half of it for a row of one value."""
    converters = converters_of(schema.types)
    width = len(converters)
    first = converters[0] if width == 1 else None

    def converted(row: Any) -> tuple[Any, ...]:
        if type(row) is tuple and len(row) == width:
            values: Sequence[Any] = row
        elif first is not None and type(row) in _VALUES:
            values = (row,)
        elif type(row) is dict:
            values = _by_name(row, schema, stream)
        else:
            values = _in_order(row, schema, stream)
        try:
            return tuple(map(call, converters, values)) if first is None else (first(values[0]),)
        except Misfit:
            raise RowError(_misfit(values, schema, stream)) from None

    return converted


def rows_converter(schema: Schema, stream: str) -> Callable[[Any], Sequence[tuple[Any, ...]]]:
    """Return a function that lists `rows_of` a returned value, for callers with many. Cost: a third of that of `rows_of`, or less;
    two or three values are converted without `map`, in half the time.
    """
    to = converters_of(schema.types)
    width = len(to)
    few: dict[int, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
        2: lambda row: (to[0](row[0]), to[1](row[1])),
        3: lambda row: (to[0](row[0]), to[1](row[1]), to[2](row[2])),
    }
    convert = few.get(width)
    row = cache(lambda: row_converter(schema, stream))
    kinds = frozenset({dict}) if width != 1 else _VALUES | {dict}

    def converted(returned: Any) -> Sequence[tuple[Any, ...]]:
        kind = type(returned)
        if kind is not tuple or len(returned) != width:
            if returned is None:
                return ()
            if kind in kinds:
                return (row()(returned),)
            if kind is list:
                try:
                    return list(map(row(), returned))
                except RowError:  # a table among the rows, or an error that says more about the list
                    return list(_rows_in(returned, schema, stream, row()))
            if kind is GeneratorType:
                return list(_rows_in(returned, schema, stream, row()))
            return list(rows_of(returned, schema, stream))
        try:
            return (tuple(map(call, to, returned)) if convert is None else convert(returned),)
        except Misfit:
            raise RowError(_misfit(returned, schema, stream)) from None

    return converted


def _in_order(row: Any, schema: Schema, stream: str) -> Sequence[Any]:
    if isinstance(row, _BY_POSITION):
        values = row.get_values() if isinstance(row, Tuple) else row
        if len(values) != len(schema):
            raise RowError(
                f"{_wanted(schema, stream)}, got {_counted(len(values), 'value')}: {quote(values)}{_hint(values, schema)}"
            )
        order = None if isinstance(row, list) else order_in(type(row), schema.names)  # type: ignore[arg-type]
        found = values if order is None else order(row)
        if found is None:
            raise RowError(
                f"{_wanted(schema, stream)}, got {quote(row)}, whose names are not these, and one of them is that of a field at "
                "another place; give a dict by name, or tuple(row) by position"
            )
        return found
    if isinstance(row, Mapping):
        return _by_name(row, schema, stream)
    if row is None:
        raise RowError(
            f"{_wanted(schema, stream)}, got None as a row; leave it out, or write (None,) for an empty value"
        )
    if type(row) not in _VALUES and is_frame(row):
        raise RowError(f"{_wanted(schema, stream)}, got as one row {no_rows(row)}")
    if len(schema) != 1:
        raise RowError(f"{_wanted(schema, stream)}, got the single value {quote(row)}; give a tuple or a dict")
    return (row,)


def _misfit(values: Sequence[Any], schema: Schema, stream: str) -> str:
    """Return the sentence about the first value that does not fit its field."""
    for name, kind, value in zip(schema.names, schema.types, values, strict=True):
        try:
            converter_of(kind)(value)
        except Misfit as misfit:
            as_rows = len(schema) == 1 and kind.startswith("array") and not isinstance(value, list | tuple | set)
            hint = _AS_ONE_VALUE if as_rows else "; give such a value, or change the declaration"
            return f"field {name!r} of stream {stream!r} is declared {kind}: {misfit}{hint}"
    return f"stream {stream!r} takes no such row"


def _by_name(row: Mapping[Any, Any], schema: Schema, stream: str) -> tuple[Any, ...]:
    missing = [name for name in schema.names if name not in row]
    if missing or len(row) != len(schema):
        extra = [key for key in row if key not in schema.names]
        problems = []
        if missing:
            problems.append("without " + ", ".join(missing))
        if extra:
            problems.append("with " + ", ".join(map(quote, extra)) + " too")
        raise RowError(
            f"{_wanted(schema, stream)}, got a dict {' and '.join(problems)}: {quote(dict(row))}{_hint(row, schema)}"
        )
    return tuple(row[name] for name in schema.names)


_AS_ONE_VALUE = "; put a value that is itself a list or a dict into a tuple: (value,)"


def _wanted(schema: Schema, stream: str) -> str:
    return f"stream {stream!r} has {_counted(len(schema), 'field')} ({schema.ddl})"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _hint(row: Any, schema: Schema) -> str:
    if isinstance(row, tuple) and row and all(isinstance(item, tuple | list | Mapping) for item in row):
        return "; a tuple is one row: give a list for several"
    if len(schema) == 1 and schema.types[0].startswith(("array", "map", "struct")):
        return _AS_ONE_VALUE
    if isinstance(row, Mapping) and DEFAULT_STREAM in row:
        return "; to emit rows to several streams, take a collector: emit(row, stream='slow')"
    return "; give a value for each of its fields, and nothing else"
