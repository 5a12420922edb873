"""Edges: the executor's side of acks, in topologies with a spout that takes acks.

    root    a batch of one source                   root_of(batch 7, source 0) = 7 << 16 | 0
    edge    one tuple sent to one task              a 64-bit number, computed from (batch, upstream, position, task)
    origin  a tuple's roots                         rows of a window have the roots of all its tuples

    StageWriter: made(edges, roots) --+
                                      +--> sums by root --rows()--> one exchange row "ack" per upstream and batch
    task: done(tuples) ---------------+

Laws: edge ids are computed, not random, so a repeated batch has the same ids. Every tuple with roots that is sent to a task is
counted exactly twice in the life of a query: by its upstream, and by the task when the tuple is done. It is done when it has
expired, when it is late, or, for a bolt without windows, at the end of the batch. Equal sets of roots are the same object within a
batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.acking.batches import RootPartial
from windowing.columnar.rows import decode_table, encode_table

EDGE, ROOTS = "__edge", "__roots"
SOURCE_BITS = 16
NO_ROOTS: tuple[int, ...] = ()
_SCHEMA = pa.schema(
    {"root": pa.int64(), "xor": pa.uint64(), "edges": pa.int64(), "failed": pa.string(), "given_up": pa.string()}
)
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Roots = tuple[int, ...]


def root_of(batch: int, source: int) -> int:
    """Return the root number of a batch of a source; `source` numbers the streams of spouts from 0."""
    return batch << SOURCE_BITS | source


def merged(roots: Iterable[Roots]) -> Roots:
    """Return the roots of a row that is anchored to tuples with these roots: each once, ascending.

    >>> merged([(1,), (1, 4), (3,)])
    (1, 3, 4)
    """
    different = set(roots)
    if len(different) == 1:
        return different.pop()
    return tuple(sorted({root for each in different for root in each}))


def edge_ids(batch: int, upstream: int, task: int, positions: Any) -> Any:
    """Return the edge ids (uint64, never 0) of the tuples that an upstream sent to a task: one for each position."""
    seed = 0
    for part in (batch, upstream, task):
        seed = _mixed((seed + _GOLDEN) ^ part)
    mixed = np.asarray(positions, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        mixed = mixed * np.uint64(_GOLDEN) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.where(mixed == 0, np.uint64(1), mixed)


def _mixed(number: int) -> int:
    """SplitMix64's finalizer. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""
    number &= _MASK
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


class Partials:
    """The partials of one upstream in one batch, by root. Cost: a dict access and an XOR per tuple."""

    def __init__(self) -> None:
        self._sums: dict[Roots, list[int]] = {}
        self._failed: dict[int, str] = {}
        self._given_up: dict[int, str] = {}

    def made(self, edges: Any, roots: Sequence[Roots]) -> None:
        """Record tuples that are sent to a task. Vectorised if all have the same roots, as those of a spout have."""
        if len(roots) and all(each is roots[0] for each in roots):
            self._add([(int(np.bitwise_xor.reduce(edges)), roots[0])], len(roots))
        else:
            self._add(zip(edges.tolist(), roots, strict=True), 1)

    def done(self, tuples: Iterable[Any]) -> None:
        """Record tuples (Arrivals) that are done in this task."""
        self._add(((tuple._edge, tuple._roots) for tuple in tuples), -1)

    def fail(self, roots: Roots, component: str) -> None:
        """Record that a component failed a tuple with these roots."""
        for root in roots:
            self._failed.setdefault(root, component)

    def give_up(self, roots: Roots, component: str) -> None:
        """Record that a component sent a tuple with these roots to the dead letters."""
        for root in roots:
            self._given_up.setdefault(root, component)

    def table(self) -> bytes | None:
        """Return all partials as Arrow bytes, by root; None if there are none."""
        found: dict[int, list[Any]] = {}
        for roots, (xor, edges) in self._sums.items():
            for root in roots:
                partial = found.setdefault(root, [0, 0])
                partial[0] ^= xor
                partial[1] += edges
        for root in (*self._failed, *self._given_up):
            found.setdefault(root, [0, 0])
        if not found:
            return None
        rows = [(root, *found[root], self._failed.get(root), self._given_up.get(root)) for root in sorted(found)]
        columns = zip(_SCHEMA, zip(*rows, strict=True), strict=True)
        return encode_table(pa.table([pa.array(values, field.type) for field, values in columns], schema=_SCHEMA))

    def _add(self, tuples: Iterable[tuple[int, Roots]], count: int) -> None:
        sums = self._sums
        for edge, roots in tuples:
            if roots:
                found = sums.get(roots)
                if found is None:
                    found = sums[roots] = [0, 0]
                found[0] ^= edge
                found[1] += count


def partials_of(tables: Iterable[bytes]) -> tuple[RootPartial, ...]:
    """Merge the partials of all upstreams of a batch; return one per root, by root."""
    found: dict[int, RootPartial] = {}
    for data in tables:
        columns = [column.to_pylist() for column in decode_table(data).columns]
        for partial in map(RootPartial._make, zip(*columns, strict=True)):
            before = found.get(partial.root, RootPartial(partial.root, 0, 0))
            # The named component must not depend on the order of the upstreams.
            failed = min((name for name in (before.failed, partial.failed) if name is not None), default=None)
            given_up = min((name for name in (before.given_up, partial.given_up) if name is not None), default=None)
            sums = before.xor ^ partial.xor, before.edges + partial.edges
            found[partial.root] = RootPartial(partial.root, *sums, failed, given_up)
    return tuple(found[root] for root in sorted(found))


def packed_roots(roots: Sequence[Roots]) -> Any:
    """Return roots as a column of bytes, eight per root."""
    known: dict[Roots, bytes] = {}
    for each in roots:
        if each not in known:
            known[each] = b"".join(root.to_bytes(8, "big") for root in each)
    return pa.array([known[each] for each in roots], pa.binary())


def unpacked_roots(column: Any, known: dict[bytes, Roots]) -> list[Roots]:
    """Return the roots of a column of `packed_roots`; `known` makes equal ones the same object."""
    known.setdefault(b"", NO_ROOTS)
    found = []
    for data in column.to_pylist():
        roots = known.get(data or b"")
        if roots is None:
            roots = tuple(int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8))
            known[data] = roots
        found.append(roots)
    return found
