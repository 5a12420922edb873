"""Partial aggregation in columns: combiners applied to an Arrow batch without a Python tuple per row.

    k  JFK LGA JFK   --dictionary-->  codes 0 1 0, keys (JFK,) (LGA,)
    v   3   5   4    --added by code to the values of the slot-->  (JFK,) 7, (LGA,) 5   written back to the slot

It is used for steps right behind a source that compute a count, sum, minimum or maximum of whole numbers (a sum of doubles too),
without a key or by keys of text, whole numbers and booleans. All other steps process rows. So does a batch with a null in a key,
with a value that Python cannot hold, or with a sum that could exceed 64 bits: `add` then returns False and changes nothing.

Law: after a batch the slot holds exactly the values, in the same order, that `AggregateProcessor.execute` computes for the same
tuples; the tests use it as the model. So consecutive batches may use either path, and a repeated attempt gives the same rows.
(Doubles are added one after the other in arrival order, never as a sum of partial sums.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowing.schema.types import Schema
from windowing.spark.unreadable import unreadable_in
from windowing.trident.builtins import Count, Max, Min, Sum
from windowing.trident.fields import Row
from windowing.trident.operations import Aggregate, AggregationStage, Operation
from windowing.trident.processors import NOTHING, AggregateSlot

__all__ = [
    "ColumnFold",
    "all_readable",
]


Codes = npt.NDArray[np.int64]
_Fold = Callable[[Any, Codes, Sequence[Any]], "list[Any] | None"]
"""(column, code of each row, start value of each key) -> the new values; None if the batch must be processed by rows."""

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_KEYS = ("string", "boolean", *_INTEGERS)
_LARGEST = 2**63 - 1


class ColumnFold:
    """The partial aggregation of one node. Cost of a batch: some passes of numpy over it, and in Python O(1) for each key."""

    def __init__(self, key: Sequence[int] | None, parts: Sequence[tuple[int, _Fold]]) -> None:
        self._key, self._parts = key, parts

    @classmethod
    def of(cls, operation: Operation, schema: Schema) -> ColumnFold | None:
        """Return the fold of an operation for tuples of this schema, None if the operation needs rows."""
        if not isinstance(operation, Aggregate) or operation.stage is not AggregationStage.PARTIAL:
            return None
        types = dict(zip(schema.names, schema.types, strict=True))
        parts = []
        for part in operation.parts:
            read = part.inputs[0] if part.inputs else None
            fold = _fold_of(type(part.aggregator), None if read is None else types[read])
            if fold is None:
                return None
            parts.append((0 if read is None else schema.names.index(read), fold))
        if operation.group is None:
            return cls(None, parts)
        if not all(types[name] in _KEYS for name in operation.group):
            return None
        return cls([schema.names.index(name) for name in operation.group], parts)

    def add(self, slot: AggregateSlot, batch: pa.RecordBatch) -> bool:
        """Add all tuples of a non-empty batch to the slot and return True, or none of them and return False."""
        if self._key is None:
            codes, keys = np.zeros(batch.num_rows, np.int64), [()]
            entries: list[list[Any] | None] = [[(), slot.value]]
        else:
            found = _grouped([batch.column(position) for position in self._key])
            if found is None:
                return False
            codes, keys = found
            entries = [slot.keys.get(key) for key in keys]
        chained = len(self._parts) > 1
        values = []
        for number, (position, fold) in enumerate(self._parts):
            starts = [NOTHING if entry is None else _value(entry[1], number, chained) for entry in entries]
            folded = fold(batch.column(position), codes, starts)
            if folded is None:
                return False
            values.append(folded)
        made = map(list, zip(*values, strict=True)) if chained else iter(values[0])
        if self._key is None:
            slot.value = next(made)
        else:
            slot.keys.update((key, [key, value]) for key, value in zip(keys, made, strict=True))
        return True


def all_readable(batch: pa.RecordBatch) -> bool:
    """Return whether Python can hold every value of a batch."""
    return all(unreadable_in(column) is None for column in batch.columns)


def _value(value: Any, number: int, chained: bool) -> Any:
    return value[number] if chained and value is not NOTHING else value


def _grouped(columns: Sequence[Any]) -> tuple[Codes, list[Row]] | None:
    """Return the code of each row's key, and the keys in order of first occurrence; None if a key field is null."""
    codes, keys = _encoded(columns[0]) or (None, [])
    for column in columns[1:]:
        found = _encoded(column)
        if codes is None or found is None:
            return None
        # Both codes as one number; encoded again for each column, so that many columns do not exceed 64 bits.
        both = pa.array(codes * len(found[1]) + found[0]).dictionary_encode()
        codes = both.indices.to_numpy().astype(np.int64)
        pairs = (divmod(pair, len(found[1])) for pair in both.dictionary.to_pylist())
        keys = [keys[first] + found[1][second] for first, second in pairs]
    return None if codes is None else (codes, keys)


def _encoded(column: Any) -> tuple[Codes, list[Row]] | None:
    if column.null_count:
        return None
    encoded = column.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), [(value,) for value in encoded.dictionary.to_pylist()]


# -- the combiners ---------------------------------------------------------------------------------------------------------------


def _fold_of(aggregator: type, kind: str | None) -> _Fold | None:
    if aggregator is Count:
        return _counted
    if kind in _INTEGERS:
        return _OF_INTEGERS.get(aggregator)
    return _sum_of_doubles if aggregator is Sum and kind in ("float", "double") else None


def _counted(column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    added = np.bincount(codes, minlength=len(starts)).tolist()
    return [more if start is NOTHING else start + more for start, more in zip(starts, added, strict=True)]


def _sum_of_integers(column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    values = (column.fill_null(0) if column.null_count else column).to_numpy().astype(np.int64)
    known = [0 if start is NOTHING else start for start in starts]
    bound = max(-int(values.min()), int(values.max())) * len(values) + max(map(abs, known))
    if bound > _LARGEST:
        return None
    total = np.array(known, np.int64)
    np.add.at(total, codes, values)
    found: list[Any] = total.tolist()
    return found


def _sum_of_doubles(column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    if column.null_count or not all(start is NOTHING or type(start) is float for start in starts):
        return None  # None counts as the whole number 0
    # -0.0 is the neutral element: adding it changes no value, not even 0.0 or -0.0.
    total = np.array([-0.0 if start is NOTHING else start for start in starts], np.float64)
    with np.errstate(all="ignore"):
        np.add.at(total, codes, column.to_numpy().astype(np.float64))
    found: list[Any] = total.tolist()
    return found


def _least(column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    return _extreme(np.minimum, _LARGEST, column, codes, starts)


def _greatest(column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    return _extreme(np.maximum, -_LARGEST - 1, column, codes, starts)


def _extreme(better: np.ufunc, worst: int, column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    if column.null_count or None in starts:
        return None
    best = np.array([worst if start is NOTHING else start for start in starts], np.int64)
    better.at(best, codes, column.to_numpy().astype(np.int64))
    found: list[Any] = best.tolist()
    return found


_OF_INTEGERS: Mapping[type, _Fold] = {Sum: _sum_of_integers, Min: _least, Max: _greatest}
