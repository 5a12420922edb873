"""WindowedBoltTask: a task of a windowed bolt in a cluster. It acks a tuple when the tuple expires from its last window.

    inbox --> WindowTask --WindowEmitted--> rows that the bolt emitted, anchored to all tuples of the window
                         --WindowFailed---> the tuples fail, or the window becomes a dead letter, or the error is in the result
                         --Late-----------> a row on the late stream, anchored to the late tuple; then the tuple is acked
                         --Expired--------> the tuple is acked, unless it failed before

Watermark turns: on event time every `watermark_interval` of the clock, or when the loop calls `turn`, after each batch;
on processing time when a window is due. Windows that outlive the process are in checkpoints.py. Source: the part of Storm's
`WindowedBoltExecutor` with emits, acks and timers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from windowing.acking.acker import Anchors, anchored
from windowing.errors import describe_error
from windowing.local.router import Delivery
from windowing.local.tasks import ComponentTask, TaskParts, unsettled
from windowing.schema.types import Schema
from windowing.topology.plan import Component, stream_name
from windowing.topology.user_code import EmittedRow, warn_of
from windowing.topology.window_task import FailTarget, WindowEmitted, WindowFailed, WindowTask
from windowing.windows.config import OnError, WindowConfig
from windowing.windows.events import Expired, Late, TupleWindow
from windowing.windows.executor import ColumnMachines, WindowedBoltExecutor
from windowing.windows.recovery import WindowRecovery

MessageChannel = tuple[str, str, int]
"""The scope in which message ids are unique: a component, its stream, its task."""


def view_of(config: WindowConfig, schemas: Collection[Schema] = ()) -> Callable[[TupleWindow], TupleWindow] | None:
    """Return the function that converts a window of rows into the form of `columnar=`; None for a bolt without `columnar=`.

    The runtimes keep rows because they ack them one by one; Arrow is loaded only for a bolt with `columnar=`. schemas: the fields
    of the streams that the bolt reads; if they are all the same, the columns have the declared types, as on Spark.
    """
    if config.columnar is None:
        return None
    from windowing.columnar import viewed
    from windowing.columnar.bolts import arrow_schema

    read = list(map(arrow_schema, schemas))
    declared = read[0] if read and all({*each} == {*read[0]} for each in read) else None
    return lambda window: viewed(window, config.columnar, declared)


def machines_of(config: WindowConfig) -> ColumnMachines | None:
    """Return the columnar machines for a bolt with `columnar=`, else None; their queues hold rows."""
    if config.columnar is None:
        return None
    from windowing.columnar import ColumnarMachines

    return ColumnarMachines(None)


def streams_of(component: Component) -> dict[tuple[str, str], str]:
    """Return the executor's names of the streams that a bolt reads, by component and stream."""
    return {(found.component, found.stream): stream_name(found.component, found.stream) for found in component.inputs}


class WindowedBoltTask(ComponentTask):
    """One task of a windowed bolt. Cost: that of the windows, and for each one that emits rows an edge for each of its tuples.

    `executor`: the windows; default is a new executor in memory. `schemas`: the fields of the streams that the bolt reads.
    """

    fail_target = FailTarget.TUPLES

    def __init__(
        self,
        parts: TaskParts,
        *,
        executor: WindowedBoltExecutor | None = None,
        recovery: WindowRecovery | None = None,
        schemas: Collection[Schema] = (),
    ) -> None:
        super().__init__(parts)
        router, component = parts.router, parts.component
        assert component.window is not None
        bolt = component.window
        self.config = bolt.config
        self.turns_by_batch = router.in_batches and self.config.event_time
        self._streams = streams_of(component)
        self.executor = executor or WindowedBoltExecutor(
            self.config,
            tuple(self._streams.values()),
            component.id,
            keep_tuples=bool(router.ackers),
            columns=machines_of(self.config),
        )
        view = view_of(self.config, schemas)
        self.windows = WindowTask(bolt, self.executor, self.fail_target, recovery=recovery, view=view)
        late = component.outputs.get(self.config.late_stream or "")
        self._late_fields = () if late is None else late.schema.names[:-1]  # the last is the reason
        self._warned = False
        self._counts: dict[str, int] = {}
        self.duplicates = 0  # recognized by message_id=, which only windows that outlive the process do

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.windows.open(self.context)
        self.windows.turned_ms = self.router.now_ms

    def tick(self) -> None:
        """Make a turn, after handling the tuples that arrived before it."""
        self.step(None)
        self.turn()

    def turn(self) -> None:
        """Make a watermark turn (on processing time: a tick)."""
        self.perform(self.windows.turn(self.router.now_ms))

    def drain(self) -> None:
        self.step(None)
        self.perform(self.windows.drain())

    def next_deadline_ms(self) -> int | None:
        return None if self.turns_by_batch or self.executor.manager.closed else self.windows.next_deadline_ms()

    def close(self) -> None:
        self.windows.close()

    # -- the work ------------------------------------------------------------------------------------------------------

    def arrive(self, arrived: list[Delivery]) -> None:
        if self.windows.fires_first() and self.windows.is_due(self.router.now_ms):
            self.turn()
        names = self._streams
        streams: str | list[str] = next(iter(names.values()))
        if len(names) > 1:
            streams = [names[row._origin.component, row._origin.stream] for row in arrived]
        columns = self.windows.columns(arrived, streams)
        if columns.problem is not None and not self._warned:
            self._warned = True
            warn_of(columns.problem)
        rows, channels = self.offered(arrived)
        self.perform(self.windows.add(rows, columns, self.router.now_ms, channels))

    def offered(self, arrived: list[Delivery]) -> tuple[Sequence[Any], list[MessageChannel] | None]:
        """Return the rows to offer to the windows, and the channel of each if the windows deduplicate by message id."""
        return arrived, None

    def perform(self, effects: Iterator[Any]) -> None:
        """Perform the effects of the windows in order, each before the next one is taken."""
        for effect in effects:
            self.perform_one(effect)
        counts, before = self.executor.counts(), self._counts
        total = self.router.result.counts.setdefault(self.context.component, dict.fromkeys(counts, 0))
        for name, count in counts.items():
            total[name] += count - before.get(name, 0)
        self._counts = counts

    def perform_one(self, effect: Any) -> None:
        if isinstance(effect, WindowEmitted):
            self._emit(effect)
        elif isinstance(effect, Expired):
            self.expired(effect)
        elif isinstance(effect, Late):
            self._late(effect.payloads, effect.reason.value)
        else:
            assert isinstance(effect, WindowFailed)
            self._failed(effect)

    # -- windows -------------------------------------------------------------------------------------------------------

    def _emit(self, emitted: WindowEmitted) -> None:
        """Send the rows of a window, anchored to all of its tuples.

        Several rows that bolts read are anchored to one tuple in between, which is anchored to the window's tuples and is acked
        after the rows are sent. So the cost of a row does not depend on the number of tuples.
        """
        read = sum(self.outbox[stream].has_bolts for stream, _ in emitted.emissions)
        anchors = self.anchors_of(emitted.window) if read else ()
        in_between = len(anchors) > 1 and read > 1
        if in_between:
            anchors = [anchored(anchors, self.router.edge)]
        for stream, values in emitted.emissions:
            if type(values) is EmittedRow:
                self.outbox[stream].send(values.values, anchors, values.task)
            else:
                self.outbox[stream].send(values, anchors)
        if in_between:
            self.router.ack_all(anchors, None)

    def anchors_of(self, window: TupleWindow) -> Sequence[Anchors]:
        """Return the anchors for rows that a window emits."""
        return unsettled(window.get()) if self.router.ackers else ()

    def _failed(self, failed: WindowFailed) -> None:
        if failed.action is OnError.FAIL:
            self.fail_window(failed)
        elif failed.action is OnError.DEAD_LETTER:
            letter = self.windows.dead_letter(failed.window, failed.error)
            self.send_dead_letter(letter, self.anchors_of(failed.window))
        else:
            self.report_error(failed.error)

    def fail_window(self, failed: WindowFailed) -> None:
        """Fail each tuple of the window once. The tuple stays in its other windows and is not acked later. Untracked ones, which no
        spout sends again, become a dead letter.
        """
        if failed.report:
            self.report_error(failed.error)
        rows = failed.window.get()
        self.fail(rows, describe_error(failed.error))
        untracked = [row for row in rows if row._anchors is None]
        if untracked:
            letter = self.windows.dead_letter(failed.window, failed.error)
            self.send_dead_letter(replace(letter, tuples=untracked))

    def _late(self, rows: Sequence[Any], reason: str) -> None:
        where = (self.context.component, reason)
        self.router.result.late[where] = self.router.result.late.get(where, 0) + len(rows)
        late_stream = self.config.late_stream
        if late_stream is None or not self.outbox[late_stream].is_read:
            self.router.late_log.add(len(rows), time.monotonic())
        if late_stream is not None:
            for row in rows:
                delivery = self.delivery(row)
                values = map(delivery.as_dict().get, self._late_fields)  # a field that only other inputs have is None
                self.outbox[late_stream].send((*values, reason), unsettled((delivery,)))
        self.ack(rows)

    # -- acks ----------------------------------------------------------------------------------------------------------

    def delivery(self, row: Any) -> Delivery:
        """Return the delivery of a tuple that was offered in this step."""
        assert isinstance(row, Delivery)
        return row

    def expired(self, effect: Expired) -> None:
        """Settle tuples that no later window can hold."""
        self.ack(effect.get() or ())

    def ack(self, rows: Iterable[Any]) -> None:
        """Ack the tuples that were neither acked nor failed."""
        self.router.ack_all(unsettled(rows), self.context.component)

    def fail(self, rows: Sequence[Any], reason: str) -> None:
        """Fail the tuples that were neither acked nor failed."""
        for anchors in unsettled(rows):
            self.router.fail(anchors, self.context.component, reason)
