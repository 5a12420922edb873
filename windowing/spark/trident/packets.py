"""Packets: what one sender of a Trident topology sends in one batch, as rows of the wire.

    target   kind     stream      value               data
    4        rows     id of link  how many            tuples for place 4, as Arrow bytes
    4        max      id of link  largest timestamp   -          (source: whose; for every task of a window)
    4        begin    -           -                   -          the batch has begun: what place 4 is told even without tuples
    -1       out      sink        how many            tuples of a sink
    -1       input    sink        how many            tuples of a source, kept where a batch may be skipped
    -1       failed   component   -                   why the attempt fails
    -1       reported component   how many            what users' code reported, stopping nothing (sequence: in which attempt)
    -1       done     -           place               the place has worked
    -1       metric   component   a number            -          (source: its name)

`sender` is an upstream partition, or a place (from `PLACES` on). Law: a place takes its rows in the order of (link, sender,
sequence), so what it makes of a batch does not depend on how a shuffle brought them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from windowing.errors import told as describe
from windowing.spark.arrow_types import arrow_schema
from windowing.spark.output import arrow_column
from windowing.spark.state import decode_table, encode_table
from windowing.spark.wire import Row
from windowing.topology.schema import Schema
from windowing.topology.trident.outlets import Outlet, OutletBatch
from windowing.topology.trident.plan import Exchange
from windowing.topology.trident.processors import Batch
from windowing.topology.trident.subtopology import Emitted
from windowing.topology.trident.units import TridentUnits

__all__ = ["Packets", "packed", "reports", "told", "unpacked"]

Values = tuple[Any, ...]
_PACKET_ROWS = 50_000
_TOLD = 20
"""So many reported errors of a place travel with their text."""


def packed(who: str, schema: Schema, rows: Sequence[Values]) -> bytes:
    """Return tuples as Arrow bytes. Raises BoltError for a value that is not of its declared type."""
    if not schema.names:
        return b""
    fields = arrow_schema(schema)
    columns = zip(fields, zip(*rows, strict=True), strict=True)
    return encode_table(
        pa.Table.from_arrays([arrow_column(who, "default", field, column) for field, column in columns], schema=fields)
    )


def unpacked(row: Row) -> list[Values]:
    """Return the tuples of a row of the wire."""
    if not row.data:
        return [()] * row.value
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in decode_table(row.data).columns]
    return list(zip(*columns, strict=True))


def told(kind: str, stream: str, value: int = 0, text: str | None = None, source: str | None = None) -> Row:
    """Return a row that is meant for the driver."""
    return Row(-1, kind, stream, 0, 0, 0, source, value, None if text is None else text.encode())


def reports(stream: str, errors: Sequence[BaseException], attempt: int = 0) -> list[Row]:
    """Return the rows that tell the driver of errors which users' code has reported: how many, and what the first ones say."""
    rows = [told("reported", stream, 1, text=describe(error)) for error in errors[:_TOLD]]
    if len(errors) > _TOLD:
        rows.append(told("reported", stream, len(errors) - _TOLD, text="more of them"))
    return [row._replace(sequence=attempt) for row in rows]


class Packets:
    """`task`: of the group that sends; `sender`: its number on the wire. Cost: one choice a tuple, and a copy of it into Arrow."""

    def __init__(self, units: TridentUnits, task: int, sender: int, batch: Batch, now: int) -> None:
        self._units, self._task, self._sender, self._batch, self._now = units, task, sender, batch, now
        self._outlets: dict[int, OutletBatch] = {}
        self._parts: dict[tuple[int, int], list[Values]] = {}
        self._out: dict[tuple[str, str], tuple[Schema, list[Values]]] = {}
        self._sequence = 0

    def send(self, link: Exchange, rows: list[Values]) -> None:
        """Send tuples over a link."""
        outlet = self._outlets.get(link.id)
        if outlet is None:
            outlet = self._outlets[link.id] = Outlet(self._units.plan, link, self._task).start_batch(self._batch)
        first = self._units.unit_of[link.id].first
        for task, part in outlet.route(rows).items():
            self._parts.setdefault((first + task, link.id), []).extend(part)

    def emit(self, emitted: Emitted) -> None:
        """Send what a unit has emitted."""
        for link, rows in emitted.exchanges.items():
            self.send(self._units.links[link], rows)
        for sink, rows in emitted.sinks.items():
            self.put("out", sink, self._units.plan.graph.nodes[self._units.plan.sinks[sink]].schema, rows)

    def put(self, kind: str, stream: str, schema: Schema, rows: Iterable[Values]) -> None:
        """Send tuples past all places."""
        self._out.setdefault((kind, stream), (schema, []))[1].extend(rows)

    def drop(self) -> None:
        """Forget what was sent since the last call of `take`."""
        self._parts.clear()
        self._out.clear()

    def take(self) -> Iterator[Row]:
        """Yield what was sent since the last call."""
        for (place, link), rows in sorted(self._parts.items()):
            yield from self._cut(place, "rows", str(link), self._units.links[link].schema, rows)
        for (kind, stream), (schema, rows) in sorted(self._out.items()):
            yield from self._cut(-1, kind, stream, schema, rows)
        self.drop()

    def finish(self) -> Iterator[Row]:
        """Yield the last rows, and what every task of a window has to know of the timestamps."""
        yield from self.take()
        for link, outlet in sorted(self._outlets.items()):
            unit = self._units.unit_of[link]
            for place in range(unit.first, unit.first + unit.group.parallelism) if outlet.largest else ():
                for source in sorted(outlet.largest, key=lambda each: (each is not None, each or "")):
                    yield self._row(place, "max", str(link), outlet.largest[source], None, source)

    def begin(self, places: Iterable[int]) -> Iterator[Row]:
        """Yield what tells places that the batch has begun."""
        return (self._row(place, "begin", "") for place in places)

    def _cut(self, target: int, kind: str, stream: str, schema: Schema, rows: list[Values]) -> Iterator[Row]:
        for start in range(0, len(rows), _PACKET_ROWS):
            part = rows[start : start + _PACKET_ROWS]
            yield self._row(target, kind, stream, len(part), packed(stream, schema, part))

    def _row(
        self, target: int, kind: str, stream: str, value: int = 0, data: bytes | None = None, source: str | None = None
    ) -> Row:
        self._sequence += 1
        return Row(target, kind, stream, self._sender, self._sequence, self._now, source, value, data)
