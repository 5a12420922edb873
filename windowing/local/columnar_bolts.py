"""A task of a bolt with `columnar=` in LocalCluster: what lies in its inbox, as batches.

    inbox  a b c | d | e f        rows of one stream that nobody tracks: one batch        a tracked tuple: a batch of its own

What is emitted on a batch is anchored to all its rows: so a tracked tuple, whose tree is its own, comes alone. With
`acker_executors=0` nothing is tracked, and a batch is all that has come of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from windowing.columnar.bolts import ColumnarCaller, table_of
from windowing.errors import FailedException, ReportedFailedException
from windowing.local.router import Delivery
from windowing.local.tasks import BoltTask, TaskParts
from windowing.schema.rows import rows_of
from windowing.schema.types import Schema

__all__ = [
    "ColumnarBoltTask",
]


class ColumnarBoltTask(BoltTask):
    """A bolt that is handed batches; it gets no ticks. `schemas` are the fields of its inputs, by component and stream.

    Cost: a call of the bolt a batch, and a conversion of each row both ways.
    """

    def __init__(self, parts: TaskParts, schemas: Mapping[tuple[str, str], Schema]) -> None:
        super().__init__(parts, None)
        self._schemas = schemas
        self._columnar = self.caller = ColumnarCaller(parts.component)

    def arrive(self, arrived: list[Delivery]) -> None:
        for batch in _batches(arrived):
            self._take(batch)

    def _take(self, batch: list[Delivery]) -> None:
        origin = batch[0]._origin
        table = table_of([message._values for message in batch], self._schemas[origin.component, origin.stream])
        try:
            emitted = self._columnar.execute_batch(table, origin.stream, _rows)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                self.report_error(problem)
            for message in batch:
                self.fail(message)
                self.lose(message, problem)
            return
        anchors = [message._anchors for message in batch if message._anchors is not None]
        for stream, rows in emitted:
            for row in rows:
                self.outbox.send(stream, row, anchors)
        for message in batch:
            self.ack(message)


def _batches(messages: Iterable[Delivery]) -> Iterator[list[Delivery]]:
    for _, run in groupby(messages, key=_tree):
        yield list(run)


def _tree(message: Delivery) -> tuple[str, str, int]:
    """Return what the tuples of one batch have in common."""
    origin = message._origin
    return origin.component, origin.stream, 0 if message._anchors is None else id(message)


def _rows(table: Any, schema: Schema, stream: str) -> list[tuple[Any, ...]]:
    return list(rows_of(table, schema, stream))
