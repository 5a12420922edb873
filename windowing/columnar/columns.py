"""Timestamps and keys of tuples that lie in columns: sequences, whose values are made when somebody asks for them.

    Timestamps    bounds()    smallest and largest        outside(low, high)    which are not between
    Keys          coded()     a number for each tuple, by first arrival, and the keys in that order

Law: each equals the list of its values. Cost: Arrow's and numpy's, a few ns a tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.errors import ConfigError

__all__ = ["Keys", "Timestamps", "codable", "coded"]

Numbers = np.ndarray[Any, Any]


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
        """Return the smallest and the largest, of at least one."""
        return int(self.array.min()), int(self.array.max())

    def outside(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return position and value of each that is below `low` or above `high`."""
        positions = np.flatnonzero((self.array < low) | (self.array > high))
        return list(zip(positions.tolist(), self.array[positions].tolist(), strict=True))

    def take(self, positions: Sequence[int]) -> Timestamps:
        """Return those at these positions."""
        return Timestamps(self.array[np.asarray(positions, dtype=np.int64)])


class Keys(Sequence[Any]):
    """The key of each tuple: the value of one column, or a tuple of several. Columns are `codable`, or ConfigError is raised."""

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
        columns = [column.to_pylist() for column in self._columns]
        return iter(columns[0] if len(columns) == 1 else list(zip(*columns, strict=True)))

    def take(self, positions: Sequence[int]) -> Keys:
        """Return those at these positions."""
        chosen = pa.array(np.asarray(positions, dtype=np.int64))
        return Keys([column.take(chosen) for column in self._columns])

    def coded(self) -> tuple[Numbers, list[Any]]:
        """Return a number for each tuple, and the keys that the numbers stand for, in order of first arrival.

        >>> numbers, keys = Keys([pa.chunked_array([["b", "a", "b"]]), pa.chunked_array([[1, 1, 1]])]).coded()
        >>> numbers.tolist(), keys
        ([0, 1, 0], [('b', 1), ('a', 1)])
        """
        numbers, first = _coded_column(self._columns[0])
        if len(self._columns) == 1:
            return numbers, first.to_pylist()
        # Row by row the number of the key so far, made small again after each column.
        chosen = [np.arange(len(first))]
        dictionaries = [first]
        for column in self._columns[1:]:
            of_column, dictionary = _coded_column(column)
            size = max(len(dictionary), 1)
            numbers, distinct = coded(numbers * size + of_column)
            chosen = [each[distinct // size] for each in chosen] + [distinct % size]
            dictionaries.append(dictionary)
        parts = [each.take(pa.array(at)).to_pylist() for each, at in zip(dictionaries, chosen, strict=True)]
        return numbers, list(zip(*parts, strict=True))


def codable(kind: pa.DataType) -> bool:
    """Return whether two values of an Arrow type are the same key for Arrow if, and only if, they are for Python.

    Not floats (NaN, -0.0), dictionaries (which may hold a value twice), what is finer than Python's own (nanoseconds), zones with
    a summer time, nor what is nested.
    """
    plain = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary, pa.types.is_date32)
    if pa.types.is_timestamp(kind):
        return kind.unit != "ns" and kind.tz in (None, "UTC")
    return any(test(kind) for test in plain) or pa.types.is_decimal128(kind) or pa.types.is_null(kind)


def coded(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return a number for each whole number of `values`, by first arrival, and what the numbers stand for.

    >>> [each.tolist() for each in coded(np.array([7, 3, 7]))]
    [[0, 1, 0], [7, 3]]
    """
    found = pa.array(values).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), found.dictionary.to_numpy()


def _coded_column(column: pa.ChunkedArray) -> tuple[Numbers, pa.Array]:
    found = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    if isinstance(found, pa.ChunkedArray):  # as some versions give it
        found = found.unify_dictionaries().combine_chunks()
    return found.indices.to_numpy().astype(np.int64), found.dictionary
