"""ColumnarBoltTask: a task of a bolt with `columnar=` in LocalCluster. It hands the tuples of its inbox to the bolt as batches.

    inbox  a b c | d | e f        untracked rows of one stream: one batch        a tracked tuple: a batch of its own

Rows that the bolt emits for a batch are anchored to all tuples of the batch. A tracked tuple has its own tree, so it is a batch of
its own. With `acker_executors=0` no tuple is tracked, and a batch is a run of tuples of one stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from windowing.columnar.bolts import ColumnarCaller, table_of
from windowing.errors import FailedException, ReportedFailedException
from windowing.local.router import Delivery
from windowing.local.tasks import BoltTask, TaskParts
from windowing.schema.rows import rows_of
from windowing.schema.types import Schema


class ColumnarBoltTask(BoltTask):
    """A task whose bolt takes batches. It gets no ticks. `schemas` are the fields of its inputs, by component and stream.

    Cost: one call of the bolt per batch, and the conversion of each row to Arrow and back.
    """

    def __init__(self, parts: TaskParts, schemas: Mapping[tuple[str, str], Schema]) -> None:
        super().__init__(parts, None)
        self._schemas = schemas
        self._columnar = self.caller = ColumnarCaller(parts.component)

    def arrive(self, arrived: list[Delivery]) -> None:
        for _, run in groupby(arrived, key=_tree):
            self._take(list(run))

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
                self.outbox[stream].send(row, anchors)
        for message in batch:
            self.ack(message)


def _tree(message: Delivery) -> tuple[str, str, int]:
    """Return the key by which consecutive tuples form one batch."""
    origin = message._origin
    return origin.component, origin.stream, 0 if message._anchors is None else id(message)


def _rows(table: Any, schema: Schema, stream: str) -> list[tuple[Any, ...]]:
    return list(rows_of(table, schema, stream))
