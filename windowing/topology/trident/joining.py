"""Joins: the tuples of one batch from several streams that have one key, put together.

    left   (1, a) (1, b) (2, c)          key  left  right
    right  (1, x) (3, y)                 1    a     x
                                         1    b     x
    left OUTER                           3    None  y       the left side may be missing
    right OUTER                          2    c     None    the right side may be missing

Laws: a key of which every INNER side has a tuple gives the cross product of its sides, an empty OUTER side counting as one row of
None; any other key gives nothing. Keys come in the order in which they were first seen, a key with None joins nothing but itself,
as in Storm. A join sees one batch: tuples of different batches never meet.
Source: Storm's `JoinerMultiReducer`, `JoinType`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import chain, product
from typing import Any

from windowing.topology.schema import Schema
from windowing.topology.trident.fields import Row, key_picker, picker
from windowing.topology.trident.processors import Batch, TridentProcessor

__all__ = ["JoinProcessor", "JoinType"]


class JoinType(Enum):
    """What a side of a join does to keys that it has not: INNER drops them, OUTER fills in None."""

    INNER = "inner"
    OUTER = "outer"


class JoinProcessor(TridentProcessor):
    """Keeps the tuples of a batch by key and side, and joins them at its end. Cost: memory for the batch, then its output.

    schemas, keys: of each side; kinds: INNER or OUTER for each.
    """

    def __init__(
        self, schemas: tuple[Schema, ...], keys: tuple[tuple[str, ...], ...], kinds: tuple[JoinType, ...]
    ) -> None:
        self._kinds = kinds
        sides = list(zip(schemas, keys, strict=True))
        rests = [tuple(name for name in schema.names if name not in key) for schema, key in sides]
        self._keys: list[Callable[[Row], Any]] = [key_picker(schema, key) for schema, key in sides]
        self._shown = [picker(schema, key) for schema, key in sides]
        self._rests = [picker(schema, rest) for (schema, _), rest in zip(sides, rests, strict=True)]
        self._missing = [[(None,) * len(rest)] for rest in rests]

    def start_batch(self, batch: Batch) -> dict[Any, tuple[Row, list[list[Row]]]]:
        return {}

    def execute(self, slot: dict[Any, tuple[Row, list[list[Row]]]], rows: list[Row], source: int = 0) -> list[Row]:
        key_of, shown, rest = self._keys[source], self._shown[source], self._rests[source]
        for row in rows:
            key = key_of(row)
            found = slot.get(key)
            if found is None:
                found = slot[key] = shown(row), [[] for _ in self._kinds]
            found[1][source].append(rest(row))
        return []

    def finish_batch(self, slot: dict[Any, tuple[Row, list[list[Row]]]]) -> list[Row]:
        return [
            (*key, *chain.from_iterable(match))
            for key, sides in slot.values()
            for match in product(*map(self._side, sides, self._kinds, self._missing))
        ]

    @staticmethod
    def _side(rows: list[Row], kind: JoinType, missing: list[Row]) -> list[Row]:
        return missing if not rows and kind is JoinType.OUTER else rows
