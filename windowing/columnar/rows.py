"""Rows, timestamps and keys as columns: sequences whose items are made only when they are accessed.

    ColumnRows    rows[1] -> {"k": 2, "v": 0.5}    rows[1:] -> ColumnRows, the same memory    field_values("v") -> a list, no row
    Timestamps    bounds()    smallest and largest        outside(low, high)    those that are not between
    Keys          coded()     a number for each tuple, by first arrival, and the keys in that order
    tables        cut, encode_table --> bytes --decode_table-->    as Arrow IPC, in parts of a bounded size

Law: each compares equal to the list of its items. Cost: Arrow's and numpy's, a few ns a tuple.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from operator import itemgetter
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.errors import ConfigError, quote

Numbers = np.ndarray[Any, Any]


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the result of `column.to_pylist(maps_as_pydicts="strict")`: a map is a dict, and UTC is Python's own. Raises KeyError
    for a map that has a key twice.

    Cost: a tenth of that for dates and times, each of which takes Arrow 1 to 3 us, and for types without a map, because
    `maps_as_pydicts` makes Arrow convert value by value.
    """
    kind = column.type
    found: list[Any] | None = None
    if pa.types.is_date32(kind):
        found = _times_of(column, pa.int32(), "D")
    elif pa.types.is_timestamp(kind) and kind.unit != "ns":  # Arrow converts nanoseconds to pandas' class
        found = _times_of(column, pa.int64(), kind.unit, kind.tz)
    if found is None:
        found = column.to_pylist(maps_as_pydicts="strict" if "map<" in str(kind) else None)
    return found


_BOUNDS = {
    unit: tuple(
        int(np.datetime64(each).astype(f"M8[{unit}]").astype(np.int64)) for each in (datetime.min, datetime.max)
    )
    for unit in ("D", "s", "ms", "us")
}
"""The range that Python can represent, in each unit since 1970."""


def _times_of(
    column: pa.Array | pa.ChunkedArray, whole: pa.DataType, unit: str, zone_name: str | None = None
) -> list[Any] | None:
    """Return the dates or times of a column of whole numbers since 1970, None if Python cannot represent one of them."""
    missing = column.null_count
    numbers = np.asarray(column.cast(whole).fill_null(0) if missing else column.cast(whole)).astype(
        np.int64, copy=False
    )
    first, last = _BOUNDS[unit]
    if len(numbers) and not first <= numbers.min() <= numbers.max() <= last:
        return None
    values: list[Any]
    if zone_name is None:
        values = numbers.view(f"M8[{unit}]").tolist()
    else:
        zone: tzinfo = UTC if zone_name == "UTC" else pa.lib.string_to_tzinfo(zone_name)
        since = numbers.view(f"m8[{unit}]").tolist()
        try:
            in_utc = map(datetime(1970, 1, 1, tzinfo=zone).__add__, since)
            values = list(in_utc if zone is UTC else map(zone.fromutc, in_utc))
        except (OverflowError, ValueError):  # the local time is out of Python's range
            return None
    for position in np.flatnonzero(column.is_null()) if missing else ():
        values[position] = None
    return values


def owned(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return a table that no other code can change; it is copied if its memory may be that of a numpy array or a DataFrame.

    pandas 3 hands out its memory as read-only, and writes it all the same: a table made of a DataFrame is known by its metadata.

    >>> totals = np.array([1, 2])
    >>> kept = owned(pa.table({"total": totals}))
    >>> totals += 10
    >>> kept.to_pylist()
    [{'total': 1}, {'total': 2}]
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    mutable = any(buffer is not None and buffer.is_mutable for chunk in chunks for buffer in chunk.buffers())
    if not mutable and b"pandas" not in (table.schema.metadata or {}):
        return table
    copy = pa.BufferOutputStream()
    with pa.ipc.new_stream(copy, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(copy.getvalue()).read_all()


# -- Tables as bytes --------------------------------------------------------------------------------------------------------------


PART_BYTES = 16 << 20
"""The size at which rows are cut into parts for Spark, which holds a part as one array of bytes, more than once."""
_WITH_THREADS = 1 << 20
"""Arrow compresses in several threads from so many bytes on; for a small table their start costs five times as much as the rest."""


def encode_table(table: pa.Table | pa.RecordBatch, compression: str = "lz4") -> bytes:
    """Return a table as an Arrow IPC stream with compressed buffers."""
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=table.nbytes > _WITH_THREADS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def decode_table(data: bytes | None) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    found = data or b""
    options = pa.ipc.IpcReadOptions(use_threads=len(found) > _WITH_THREADS)
    with pa.ipc.open_stream(pa.BufferReader(found), options=options) as reader:
        return reader.read_all()


def cut(table: pa.Table, most_rows: int | None = None) -> Iterator[pa.Table]:
    """Yield the consecutive parts of a table: each has at most `most_rows` rows, and PART_BYTES unless it is a single row."""
    step = most_rows or max(table.num_rows, 1)
    for start in range(0, table.num_rows, step):
        ahead = [table.slice(start, step)]
        while ahead:
            part = ahead.pop()
            if part.nbytes > PART_BYTES and part.num_rows > 1:
                half = part.num_rows // 2
                ahead += [part.slice(half), part.slice(0, half)]
            else:
                yield part


# -- Timestamps, keys -------------------------------------------------------------------------------------------------------------


class Timestamps(Sequence[int]):
    """Milliseconds since 1970, one for each tuple and none missing.

    >>> stamps = Timestamps(np.array([5, 3, 9]))
    >>> stamps.bounds(), stamps.outside(4, 8), list(stamps.take([0, 2]))
    ((3, 9), [(1, 3), (2, 9)], [5, 9])
    """

    __slots__ = ("array",)

    def __init__(self, array: Numbers) -> None:
        self.array = array.astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        return self.array[index].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest of at least one timestamp."""
        return int(self.array.min()), int(self.array.max())

    def outside(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return position and value of each timestamp below `low` or above `high`."""
        positions = np.flatnonzero((self.array < low) | (self.array > high))
        return list(zip(positions.tolist(), self.array[positions].tolist(), strict=True))

    def take(self, positions: Sequence[int]) -> Timestamps:
        """Return the timestamps at these positions."""
        return Timestamps(self.array[np.asarray(positions, dtype=np.int64)])


def numbers_of(timestamps: Sequence[int] | Numbers) -> Numbers:
    """Return timestamps, or other whole numbers, as an array of 64 bits."""
    return timestamps.array if isinstance(timestamps, Timestamps) else np.asarray(timestamps, dtype=np.int64)


class Keys(Sequence[Any]):
    """The key of each tuple: the value of one column, or a tuple of several. Raises ConfigError for a column that is not
    `codable`.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        wrong = next((column.type for column in columns if not codable(column.type)), None)
        if wrong is not None:
            raise ConfigError(
                f"Keys takes columns of whole numbers, texts, bytes, booleans, dates and timestamps in UTC, got one of {wrong}; "
                "give a list of the keys"
            )
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        columns = [values_of(column) for column in self._columns]
        return iter(columns[0] if len(columns) == 1 else list(zip(*columns, strict=True)))

    def take(self, positions: Sequence[int] | Numbers) -> Keys:
        """Return the keys at these positions."""
        chosen = pa.array(np.asarray(positions, dtype=np.int64))
        return Keys([column.take(chosen) for column in self._columns])

    def among(self, keys: Sequence[Any]) -> Numbers:
        """Return the positions of the tuples that have one of `keys`.

        Cost: Arrow's for each tuple, and for keys of several columns that of a Python tuple for each one whose parts all occur.

        >>> Keys([pa.chunked_array([["b", "a", None, "b"]])]).among(["b", None]).tolist()
        [0, 2, 3]
        >>> both = Keys([pa.chunked_array([["a", "a", "b", "b"]]), pa.chunked_array([[1, 2, 1, 2]])])
        >>> both.among([("a", 1), ("b", 2)]).tolist()
        [0, 3]
        """
        parts = [keys] if len(self._columns) == 1 else zip(*keys, strict=True)
        masks = [
            pc.is_in(column, value_set=pa.array(part, column.type)).to_numpy()
            for column, part in zip(self._columns, parts, strict=True)
        ]
        positions: Numbers = np.flatnonzero(np.logical_and.reduce(masks))
        if len(masks) == 1:
            return positions
        wanted = set(keys)
        return positions[[key in wanted for key in self.take(positions)]]

    def coded(self) -> tuple[Numbers, list[Any]]:
        """Return a number for each tuple, and the keys of the numbers, in order of first arrival.

        >>> numbers, keys = Keys([pa.chunked_array([["b", "a", "b"]]), pa.chunked_array([[1, 1, 1]])]).coded()
        >>> numbers.tolist(), keys
        ([0, 1, 0], [('b', 1), ('a', 1)])
        """
        numbers, first = _coded_column(self._columns[0])
        if len(self._columns) == 1:
            return numbers, values_of(first)
        # `numbers` is the number of each row's key so far; `coded` renumbers them after each column, so that they stay small.
        chosen = [np.arange(len(first))]
        dictionaries = [first]
        for column in self._columns[1:]:
            of_column, dictionary = _coded_column(column)
            size = max(len(dictionary), 1)
            numbers, distinct = coded(numbers * size + of_column)
            chosen = [each[distinct // size] for each in chosen] + [distinct % size]
            dictionaries.append(dictionary)
        parts = [values_of(each.take(pa.array(at))) for each, at in zip(dictionaries, chosen, strict=True)]
        return numbers, list(zip(*parts, strict=True))


def codable(kind: pa.DataType) -> bool:
    """Return whether two values of an Arrow type are equal for Arrow exactly if they are equal for Python.

    Excluded: floats (NaN, -0.0), dictionaries (which may contain a value twice), units finer than Python's (nanoseconds), zones
    with daylight saving time, and nested types.
    """
    plain = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary, pa.types.is_date32)
    if pa.types.is_timestamp(kind):
        return kind.unit != "ns" and kind.tz in (None, "UTC")
    return any(test(kind) for test in plain) or pa.types.is_decimal128(kind) or pa.types.is_null(kind)


def coded(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return a number for each whole number of `values`, by first arrival, and the values of the numbers.

    >>> [each.tolist() for each in coded(np.array([7, 3, 7]))]
    [[0, 1, 0], [7, 3]]
    """
    count = len(values)
    if not (values[1:] < values[:-1]).any():  # in ascending order: five times faster than by hashes
        rises = np.append(True, values[1:] > values[:-1])[:count]
        return np.cumsum(rises) - 1, values[rises]
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width > 4 * count:
        found = pa.array(values).dictionary_encode()
        return found.indices.to_numpy().astype(np.int64), found.dictionary.to_numpy()
    # Close to each other, as places of keys are: at half the cost by a table of their first positions.
    places = values - low
    first = np.full(width, count)
    first[places[::-1]] = np.arange(count - 1, -1, -1)
    distinct = np.flatnonzero(first < count)
    distinct = distinct[np.argsort(first[distinct])]
    numbers = np.empty(width, dtype=np.int64)
    numbers[distinct] = np.arange(len(distinct))
    return numbers[places], distinct + low


def _coded_column(column: pa.ChunkedArray) -> tuple[Numbers, pa.Array]:
    found = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    if isinstance(found, pa.ChunkedArray):  # the result in some versions
        found = found.unify_dictionaries().combine_chunks()
    return found.indices.to_numpy().astype(np.int64), found.dictionary


# -- ColumnRows ------------------------------------------------------------------------------------------------------------------


UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""The exceptions of Arrow for values that cannot be a column."""

MakeRows = Callable[[pa.Table], Sequence[Any]]
"""Makes the row objects of a table, in order."""


def dicts_of(table: pa.Table) -> Sequence[Any]:
    """Return the rows of a table as dicts."""
    rows: list[Any] = table.to_pylist()
    return rows


class Shared:
    """A table with its names and the numpy arrays of its columns, each made once for all slices."""

    __slots__ = ("_arrays", "_names", "table")

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._names: list[str] | None = None
        self._arrays: dict[str, np.ndarray[Any, Any] | None] = {}

    @property
    def names(self) -> list[str]:
        """The names of the columns; Arrow takes 3 us for them."""
        if self._names is None:
            self._names = self.table.column_names
        return self._names

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return a whole column, read-only; for numbers without nulls it is the table's own memory. None if Python cannot hold a
        value of it, such as a text that is not UTF-8, or a map with a key twice.

        A table in several chunks is replaced by one in a single chunk. Cost: that copy, once.
        """
        if name not in self._arrays:
            values = column_named(self.table, name)
            if values.num_chunks > 1:
                self.table = self.table.combine_chunks()
                values = self.table.column(name)
            try:
                self._arrays[name] = _read_only(values)
            except (*UNFIT, KeyError):
                self._arrays[name] = None
        return self._arrays[name]


_WHOLE_FLOATS = 2**53
"""Up to here every whole number is a float."""


def _read_only(values: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any]
    if "map<" in str(values.type) or _loses_digits(values):  # of a map Arrow makes lists of pairs
        found = np.fromiter(values_of(values), object, len(values))
    else:
        one = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        found = one.to_numpy(zero_copy_only=False)
    found.flags.writeable = False
    return found


def _loses_digits(values: pa.ChunkedArray, beside_null: bool = False) -> bool:
    """Return whether there are whole numbers beside a null that are not the same as floats, which Arrow would make of them; also in
    lists and structs. beside_null: whether there are nulls in Arrow's array that are not in the values.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        return any(_loses_digits(each, beside_null) for each in values.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        # A null of a list of fixed size has items, which are null.
        has_nulls = pa.types.is_fixed_size_list(kind) and values.null_count > 0
        return _loses_digits(pc.list_flatten(values), beside_null or has_nulls)
    if not (values.null_count or beside_null) or not pa.types.is_integer(kind):
        return False
    bounds: dict[str, int | None] = pc.min_max(values).as_py()
    return any(bound is not None and abs(bound) > _WHOLE_FLOATS for bound in bounds.values())


class ColumnRows(Sequence[Any]):
    """The rows of an Arrow table; `make` makes row objects of it, dicts by default.

    >>> rows = ColumnRows(pa.table({"k": [1, 2, 3]}))
    >>> len(rows[1:]), rows[1:][0], rows.field_values("k")
    (2, {'k': 2}, [1, 2, 3])
    """

    __slots__ = ("_count", "_low", "_names", "_shared", "make")

    def __init__(
        self,
        table: pa.Table | Shared,
        make: MakeRows = dicts_of,
        low: int = 0,
        count: int | None = None,
        names: list[str] | None = None,
    ) -> None:
        self._shared = table if isinstance(table, Shared) else Shared(table)
        self._low, self._names, self.make = low, names, make
        self._count: int = self._shared.table.num_rows if count is None else count

    @property
    def table(self) -> pa.Table:
        """The rows as a table, without a copy."""
        whole = self._shared.table
        rows = whole if self._count == whole.num_rows else whole.slice(self._low, self._count)
        return rows if self._names is None else rows.select(self._names)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self._shared.names if self._names is None else self._names

    def select(self, names: Sequence[str]) -> ColumnRows:
        """Return the rows with only these columns, in the same memory; both share the numpy arrays of columns."""
        return ColumnRows(self._shared, dicts_of, self._low, self._count, list(names))

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column as a read-only numpy array: a view. Raises ConfigError if there is no such column, and Arrow's errors if
        Python cannot hold a value of these rows.
        """
        whole = self._shared.array(name)
        return (
            _read_only(column_named(self.table, name)) if whole is None else whole[self._low : self._low + self._count]
        )

    @classmethod
    def of(cls, payloads: Sequence[Any], make: MakeRows = dicts_of, types: pa.Schema | None = None) -> ColumnRows:
        """Return tuples as columns: an Arrow table or batch unchanged, mappings and records by their fields. types: the types of
        the columns; by default those of the values.

        Raises ConfigError for tuples without named fields, or with different ones, and for values that cannot be a column. Cost:
        none for columns, a conversion for rows.
        """
        if isinstance(payloads, ColumnRows):
            return payloads
        if isinstance(payloads, pa.RecordBatch):
            return cls(pa.Table.from_batches([payloads]), make)
        return cls(payloads if isinstance(payloads, pa.Table) else _table(payloads, types), make)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRows: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(range(start, stop, step))
            return ColumnRows(self._shared, self.make, self._low + start, max(stop - start, 0), self._names)
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"row {index} of {len(self)} rows")
        return self.make(self.table.slice(at, 1))[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make(self.table))

    def take(self, positions: Sequence[int] | np.ndarray[Any, Any]) -> ColumnRows:
        """Return the rows at these positions, in that order. Cost: a copy."""
        return ColumnRows(self.table.take(pa.array(np.asarray(positions, dtype=np.int64))), self.make)

    def field_values(self, name: str) -> list[Any]:
        """Return one column as a list. Raises ConfigError if there is no such column."""
        return values_of(column_named(self.table, name))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to a list, so as little a key as a list

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self.table.column_names)}>"


def column_named(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column by name. Raises ConfigError if there is none."""
    if name not in table.column_names:
        there = ", ".join(map(quote, table.column_names))
        raise ConfigError(f"the window has no column {quote(name)}, it has {there}; name one of them")
    return table.column(name)


def column_of(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return values as a column of this type, or of the one that Arrow finds for them; times with a zone are in UTC, not in that
    of the first one.

    Raises one of `UNFIT`; a TypeError for values that Arrow would change: times beside dates, texts beside bytes.
    """
    column = pa.array(values, kind)
    if kind is None and is_changed(values, column.type):
        raise TypeError(f"values of several types as {column.type}")
    with_zone = pa.types.is_timestamp(column.type) and column.type.tz is not None
    return column.cast(pa.timestamp(column.type.unit, "UTC")) if with_zone else column


def is_changed(values: Iterable[Any], found: pa.DataType) -> bool:
    """Return whether Arrow has changed one of these values, which it found to be a column of this type."""
    if pa.types.is_list(found):
        return is_changed((each for value in values if value is not None for each in value), found.value_type)
    changed = datetime if pa.types.is_date32(found) else str if pa.types.is_binary(found) else None
    return changed is not None and any(
        issubclass(kind, changed) and kind.__name__ != "NaTType" for kind in set(map(type, values))
    )


def first_misfit(values: Sequence[Any], kind: pa.DataType | None = None) -> int:
    """Return the position of the first value that `column_of` refuses beside the values before it (for this type).

    >>> first_misfit([None, 3, 2.5, "a", 4])
    3
    """

    def refused(count: int) -> bool:
        try:
            column_of(values[:count], kind)
        except UNFIT:
            return True
        return False

    return bisect_left(range(1, len(values) + 1), True, key=refused)


def _table(payloads: Sequence[Any], types: pa.Schema | None) -> pa.Table:
    """Return tuples with named fields as a table. Raises ConfigError unless all rows have the fields of the first one."""
    rows = _as_mappings(payloads)
    names = list(rows[0]) if len(rows) else [] if types is None else types.names
    known = {} if types is None else dict(zip(types.names, types.types, strict=True))
    try:
        columns = {name: list(map(itemgetter(name), rows)) for name in names}
    except KeyError:
        raise _different_fields(rows) from None
    if any(map(len(names).__ne__, map(len, rows))):
        raise _different_fields(rows)
    return pa.table({name: _column(name, values, known.get(name)) for name, values in columns.items()})


def _as_mappings(payloads: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    kinds = set(map(type, payloads))
    if kinds <= {dict}:
        return payloads
    fields = {kind: _fields_of(kind) for kind in kinds}
    unnamed = [kind for kind, found in fields.items() if found is None]
    if unnamed:
        odd = next(row for row in payloads if type(row) in unnamed)
        raise ConfigError(
            f"columnar= needs tuples with named fields, got {quote(odd)}; send dicts or records, or leave out columnar="
        )
    return [fields[type(row)](row) for row in payloads]


def _fields_of(kind: type) -> Any:
    return dict if issubclass(kind, Mapping) else getattr(kind, "_asdict", None) or getattr(kind, "as_dict", None)


def _different_fields(rows: Sequence[Mapping[str, Any]]) -> ConfigError:
    odd = next(row for row in rows if row.keys() != rows[0].keys())
    first, other = (", ".join(map(quote, row)) or "none" for row in (rows[0], odd))
    return ConfigError(
        f"columnar= wants the same fields in every row: the first row has {first}, another one {other}: {quote(dict(odd))}; write "
        "None where a row has no value, or leave out columnar="
    )


def _column(name: str, values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        return column_of(values, kind)
    except UNFIT as problem:
        at = first_misfit(values, kind)
        beside = next((f" beside {quote(value)}" for value in values[:at] if value is not None), "")
        raise ConfigError(
            f"column {name!r} cannot hold {quote(values[at])}{beside}, wanted numbers of 64 bits, texts, or other plain values of "
            "one type; give every row such a value, or leave out columnar="
        ) from problem
