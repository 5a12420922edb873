"""What `aggregate=` makes of many groups of tuples at once: partials, as core/partials.py makes them one value at a time.

    groups    0  1  0  0          value   3.0  5.0  None  4.0
    partials  [3, 7.0]  [1, 5.0]           how many tuples, then what is summed (count, mean, min and max likewise)

Law: to the last bit what `Aggregation.add_many` gives for the values of each group in order: a sum of floats begins with what the
cell holds and goes on from left to right (numpy's bincount does). Where numpy would give something else there is no answer:
None, for values that are not numbers, sums that may not fit 64 bits, -0.0, and NaN in min and max.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowing.columnar.rows import column
from windowing.core.aggregate import Aggregator, Averaged, Counted, Largest, Smallest, Summed, field_of
from windowing.core.partials import Aggregation, Partial

__all__ = ["partials_of"]

Numbers = np.ndarray[Any, Any]
Before = list[Any] | None
"""The accumulator that each group has so far (None: none), or None if no group has one."""
_MOST = 2**63


class _Column(NamedTuple):
    """The values of a field that are not None, the group of each, and how many each group has; whether they are floats."""

    values: Numbers
    groups: Numbers
    counts: Numbers
    floats: bool


def partials_of(
    aggregation: Aggregation, table: pa.Table, groups: Numbers, held: Sequence[Partial | None]
) -> list[Partial] | None:
    """Return the partial of each group with the rows of `table` added, None where only a row at a time gives what is right.

    groups: the group of each row. held: what there is of each group so far; it stays as it is. Raises ConfigError for a field
    that the table has not.
    """
    count = len(held)
    sizes = np.bincount(groups, minlength=count).tolist()
    anything = any(held)
    known: dict[str, _Column | None] = {}
    found: list[list[Any]] = []
    for at, (_, part) in enumerate(aggregation.parts, start=1):
        field = field_of(part)
        if field is None:
            return None
        if field not in known:
            known[field] = _read(column(table, field), groups, count)
        before = [None if cell is None else cell[at] for cell in held] if anything else None
        after = _added(part, known[field], before)
        if after is None:
            return None
        found.append(after)
    if anything:
        sizes = [size if cell is None else cell[0] + size for cell, size in zip(held, sizes, strict=True)]
    return list(map(list, zip(sizes, *found, strict=True)))


def _read(values: pa.ChunkedArray, groups: Numbers, count: int) -> _Column | None:
    floats = pa.types.is_float32(values.type) or pa.types.is_float64(values.type)
    if not floats and not pa.types.is_signed_integer(values.type):
        return None
    if values.null_count:
        groups = groups[values.is_valid().to_numpy()]
        values = values.drop_null()
    numbers = values.to_numpy().astype(np.float64 if floats else np.int64, copy=False)
    return _Column(numbers, groups, np.bincount(groups, minlength=count), floats)


def _added(part: Aggregator, column: _Column | None, before: Before) -> list[Any] | None:
    """Return the accumulator of each group after its values."""
    if column is None:
        return None
    kind = type(part)
    if kind is Counted:
        counts: list[int] = column.counts.tolist()
        return counts if before is None else [(acc or 0) + count for acc, count in zip(before, counts, strict=True)]
    if kind is Summed:
        return _summed(column, before)
    if kind is Averaged:
        return _averaged(column, before)
    if kind is Smallest or kind is Largest:
        return _extreme(part, column, before)
    return None


def _summed(column: _Column, before: Before) -> list[Any] | None:
    values, groups, counts, floats = column
    if not _is_exact(values, floats) or not _of_type(before, floats):
        return None
    if not floats:
        totals = np.zeros(len(counts), dtype=np.int64)
        np.add.at(totals, groups, values)
        return _joined(before, counts, totals.tolist(), lambda acc, total: acc + total)
    begun = {group: acc for group, acc in enumerate(before or ()) if acc is not None}
    if begun:
        groups = np.concatenate([list(begun), groups])
        values = np.concatenate([np.array(list(begun.values()), dtype=np.float64), values])
    totals = np.bincount(groups, weights=values, minlength=len(counts))
    return _joined(before, counts, totals.tolist(), lambda _, total: total)


def _of_type(before: Before, floats: bool) -> bool:
    """Whether all accumulators are numbers as the column has them; from a batch of another type they may not be."""
    return before is None or set(map(type, before)) <= {float if floats else int, type(None)}


def _is_exact(values: Numbers, floats: bool) -> bool:
    """Whether numpy's sums are Python's: no whole number overflows, and no -0.0 becomes 0.0."""
    if not len(values):
        return True
    if floats:
        return not bool(np.any(np.signbit(values) & (values == 0.0)))
    return max(-int(values.min()), int(values.max())) * len(values) < _MOST


def _averaged(column: _Column, before: Before) -> list[Any] | None:
    sums = _summed(column, before and [None if acc is None else acc[0] for acc in before])
    if sums is None:
        return None
    counts = column.counts.tolist()
    if before is not None:
        counts = [count if acc is None else acc[1] + count for acc, count in zip(before, counts, strict=True)]
    return [None if total is None else [total, count] for total, count in zip(sums, counts, strict=True)]


def _extreme(part: Aggregator, column: _Column, before: Before) -> list[Any] | None:
    values, groups, counts, floats = column
    if not _of_type(before, floats):
        return None
    if floats and bool(np.any(np.isnan(values) | (np.signbit(values) & (values == 0.0)))):
        return None
    smallest = type(part) is Smallest
    worst = (
        (np.inf if smallest else -np.inf) if floats else np.iinfo(np.int64).max if smallest else np.iinfo(np.int64).min
    )
    found = np.full(len(counts), worst, dtype=values.dtype)
    (np.minimum if smallest else np.maximum).at(found, groups, values)
    return _joined(before, counts, found.tolist(), part.merge)


def _joined(before: Before, counts: Numbers, found: list[Any], join: Any) -> list[Any]:
    """Return what there was where a group got no value, what was found where there was nothing, and else both as one."""
    if before is None:
        return (
            found
            if counts.all()
            else [new if count else None for count, new in zip(counts.tolist(), found, strict=True)]
        )
    return [
        acc if not count else new if acc is None else join(acc, new)
        for acc, count, new in zip(before, counts.tolist(), found, strict=True)
    ]
