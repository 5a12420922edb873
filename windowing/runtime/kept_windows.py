"""Windowed bolts whose windows outlive the process: by ids of tuples that come again, or with the tuples on disk.

    RecoveredWindowTask    init_state, message_id=         a checkpoint has the windows without their tuples; a tuple is acked with
                                                           the checkpoint that knows that it expired; emits are anchored
    PagedWindowTask        max_events_in_memory=           a checkpoint has the tuples too, in pages; a tuple is acked with the
                           (with init_state or without)    checkpoint that holds it, as an ack no longer depends on the window;
                                                           so emits are not anchored

Laws: nothing is taken, fired or drained before the task has its states; states and windows are those of one checkpoint.
Source: Storm's `StatefulWindowedBoltExecutor` and `PersistentWindowedBoltExecutor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from windowing.core.events import Expired
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.recovery import Absorbed, Missed, WindowRecovery
from windowing.core.windows import TupleWindow
from windowing.errors import BoltError, CheckpointError, DrainedCheckpointError, shown
from windowing.runtime.checkpoints import Links
from windowing.runtime.hub import Delivery
from windowing.runtime.keeper import Keeper
from windowing.runtime.persistent import PersistentWindow
from windowing.runtime.rows import field_of
from windowing.runtime.windowed import Columns, WindowedBoltTask
from windowing.topology.context import TaskContext
from windowing.topology.tuples import Fields, Origin, Tuple
from windowing.transactions.checkpoint import Checkpoint
from windowing.transactions.state import KeyValueState

__all__ = ["KeptWindowTask", "PagedWindowTask", "RecoveredWindowTask"]

Channel = tuple[str, str, int]


class KeptWindowTask(WindowedBoltTask):
    """What both share: a Keeper, and the state of a bolt that has one."""

    def __init__(self, *place: Any, executor: WindowedBoltExecutor, links: Links, state: KeyValueState | None) -> None:
        super().__init__(*place, executor=executor)
        self.keeper = Keeper(self, self, links)
        self.gate = self.keeper.gate
        self.state = state
        self._opened = False
        if state is not None:
            self.keeper.states.append(state)

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.timer.start(self.hub.now_ms)

    def handle(self, message: Delivery) -> None:
        self.keeper.execute(message)

    def take(self, message: Delivery) -> None:
        """Take a tuple that the keeper has noted."""
        super().handle(message)

    def hook(self, method: str, *arguments: int) -> None:
        """Call a method that the bolt may have."""
        self.runner.hook(method, *arguments)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.let_in()
        self.keeper.checkpoint(checkpoint)
        self.let_in()  # what had waited for the first state

    def init(self, txid: int) -> None:
        """Begin with the windows and the state of checkpoint `txid`."""
        if self.state is not None:
            self.state.require(txid)
        if self.resume(txid):
            self.report(DrainedCheckpointError(self._drained_before()))
        if not self._opened:
            self._opened = True
            self.runner.open(self.context, self.state)
        elif self.state is not None:
            self.runner.hook("init_state", self.state)

    def resume(self, txid: int) -> bool:
        """Make the windows those of checkpoint `txid`; return whether they had been drained."""
        raise NotImplementedError

    def tick(self) -> None:
        if self.keeper.initialised:
            super().tick()

    def turn(self) -> None:
        if self.keeper.initialised:
            super().turn()

    def drain(self) -> None:
        if self.keeper.initialised:
            super().drain()

    def next_deadline_ms(self) -> int | None:
        return super().next_deadline_ms() if self.keeper.initialised else None

    def _drained_before(self) -> str:
        return (
            f"the windows of bolt {self.bolt.name!r} were drained in the run that wrote the checkpoint, so whatever is new is "
            "late, with the reason closed; begin with new states, or end a run that is to go on with run(drain=False)"
        )

    # -- acks ----------------------------------------------------------------------------------------------------------

    def ack(self, rows: Iterable[Any]) -> None:
        for row in rows:
            message = self.delivery(row)
            if self.keeper.is_open(message):
                self.keeper.ack(message)

    def fail(self, rows: Iterable[Any]) -> None:
        for row in rows:
            message = self.delivery(row)
            if self.keeper.is_open(message):
                self.keeper.fail(message)


class RecoveredWindowTask(KeptWindowTask):
    """One task of a stateful windowed bolt in memory; `rows` is where a checkpoint has its windows.

    Raises ConfigError for a bolt without message_id. What does not come again in time is reported as an error of the bolt.
    """

    def __init__(self, *place: Any, executor: WindowedBoltExecutor, links: Links, state: Any, rows: Any) -> None:
        context: TaskContext = place[1]
        self.recovery = WindowRecovery(executor, _plain, partial(_tuple, task_ids=context.task_ids))
        super().__init__(*place, executor=executor, links=links, state=state)
        self.rows: KeyValueState = rows
        self.keeper.states.append(self)

    # -- the windows as a state of the task ----------------------------------------------------------------------------

    def prepare_commit(self, txid: int) -> None:
        """Store what changed; tuples that came again and are gone meanwhile are acked with it."""
        put, delete, absorbed = self.recovery.changes()
        for row, value in put.items():
            self.rows.put(row, value)
        for row in delete:
            self.rows.delete(row)
        self.ack(absorbed.payloads)
        self.rows.prepare_commit(txid)

    def commit(self, txid: int) -> None:
        """Make what was stored current."""
        self.rows.commit(txid)

    def rollback(self) -> None:
        """Forget what was stored; `init` comes next."""
        self.rows.rollback()

    def resume(self, txid: int) -> bool:
        self.rows.require(txid)
        self.recovery.begin(self.rows.items(), self.hub.now_ms)
        return self.recovery.drained

    # -- tuples and turns ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        deadline_ms = self.recovery.next_deadline_ms()
        if self.keeper.initialised and deadline_ms is not None and deadline_ms <= self.hub.now_ms:
            self.step(None)
            self.perform(self.recovery.tick(self.hub.now_ms))
        super().tick()

    def next_deadline_ms(self) -> int | None:
        awaited_ms, turn_ms = self.recovery.next_deadline_ms(), super().next_deadline_ms()
        if awaited_ms is None:
            return turn_ms
        return awaited_ms if turn_ms is None else min(awaited_ms, turn_ms)

    def arrive(self, arrived: list[Delivery]) -> None:
        if self.recovery.recovering:
            self.perform(self.offered(arrived, self._columns(arrived)))
        else:
            super().arrive(arrived)

    def offered(self, arrived: list[Delivery], columns: Columns) -> Iterator[Any]:
        timestamps, stream, keys, sources = columns
        id_field, now_ms = self.config.message_id, self.hub.now_ms
        assert id_field is not None
        for at, message in enumerate(arrived):
            yield from self.recovery.offer(
                message,
                _channel(message),
                field_of(message, id_field),
                None if timestamps is None else timestamps[at],
                now_ms=now_ms,
                stream=stream if isinstance(stream, str) else stream[at],
                key=None if keys is None else keys[at],
                source=None if sources is None else sources[at],
            )

    def turned(self) -> Iterator[Any]:
        return self.recovery.turn(self.hub.now_ms)

    def drained(self) -> Iterator[Any]:
        return self.recovery.drain(self.hub.now_ms)

    def perform_one(self, effect: Any) -> None:
        if isinstance(effect, Absorbed):
            self.ack(effect.payloads)
        elif isinstance(effect, Missed):
            self.report(CheckpointError(self._missed(effect)))
        else:
            super().perform_one(effect)

    def expired(self, effect: Expired) -> None:
        # What was acked before the restart came out of the store, and is no delivery.
        self.ack(row for row in effect.get() or () if isinstance(row, Delivery))

    def _missed(self, effect: Missed) -> str:
        ms = self.config.recovery_timeout_ms
        return (
            f"bolt {self.bolt.name!r} waited {ms} ms after its restart for {len(effect.identities)} tuples that were in its "
            f"windows, and they did not come again: {shown(effect.identities[:5])}; no window shows them any more; give "
            "recovery_timeout= more time, or use a source that sends again what was not acked"
        )


class PagedWindowTask(KeptWindowTask):
    """One task of a windowed bolt whose tuples lie in pages."""

    def __init__(self, *place: Any, window: PersistentWindow, links: Links, state: KeyValueState | None) -> None:
        super().__init__(*place, executor=window.executor, links=links, state=state)
        self.window = window
        self.keeper.states.append(window)
        self._brought: dict[Tuple, Delivery] = {}

    def resume(self, txid: int) -> bool:
        self.window.init(txid)
        return self.executor.closed

    def arrive(self, arrived: list[Delivery]) -> None:
        super().arrive(arrived)
        self._brought = {}
        self.ack(arrived)

    def offered(self, arrived: list[Delivery], columns: Columns) -> Iterator[Any]:
        # What is stored has no anchors: they mean nothing after a restart, and would be in memory with the page.
        self._brought = {Tuple(message._values, message._origin): message for message in arrived}
        timestamps, stream, keys, sources = columns
        id_field = self.config.message_id
        effects = self.window.executor.add_batch(
            list(self._brought),
            timestamps,
            stream=stream,
            keys=keys,
            sources=sources,
            channels=[_channel(message) for message in arrived],
            message_ids=None if id_field is None else [field_of(message, id_field) for message in arrived],
        )
        return (effect for _, effect in effects)

    def delivery(self, row: Any) -> Delivery:
        return row if isinstance(row, Delivery) else self._brought[row]

    def expired(self, effect: Expired) -> None:
        """Nothing is left to do: the tuples were acked when a checkpoint held them."""

    def anchors_of(self, window: TupleWindow) -> Sequence[Any]:
        return ()

    def fail_window(self, window: TupleWindow, error: BoltError) -> None:
        """Stop: the window's tuples may have been acked, so that no source would send them again."""
        raise error


def _channel(message: Delivery) -> Channel:
    origin = message._origin
    return origin.component, origin.stream, origin.task


def _plain(message: Tuple) -> Any:
    origin = message._origin
    return [origin.component, origin.task, origin.stream, list(origin.fields.names), list(message.get_values())]


def _tuple(data: Any, task_ids: Mapping[str, range]) -> Tuple:
    component, task, stream, fields, values = data
    return Tuple(tuple(values), Origin(component, task, Fields(*fields), stream, task_ids))
