"""Checkpoints of LocalCluster: snapshots of all states and windows, and the tasks of bolts whose state outlives the process.

The loop is single-threaded. Each bolt, in topological order, empties its inbox before its states are prepared. So the states of
all tasks form one consistent cut through the topology: no tuple that a bolt emitted before the cut, not even one emitted in
`pre_prepare`, is in flight behind it. A checkpoint is therefore one call.

    prepare n    each task: empty the inbox, pre_prepare                         refused --> roll back
    record       each task: prepare its states; COMMITTING n: from here on a restart continues from n
    commit n     each task: pre_commit                                           refused --> again, for tasks that are not done
    record       each task that agreed: commit its states, send acks; after all of them COMMITTED n
    roll back    each task: empty the inbox, pre_rollback, states of the last commit, fail tuples; then each: init_state
                                                                                 refused --> all again, later
    start        COMMITTING n: commit what is prepared; COMMITTED n: discard it; then every bolt gets its state, and the bolts of a
                 checkpoint that was COMMITTING get pre_commit again

Laws
- A tuple is acked after the state that it changed is committed: the effect of every acked tuple is in the committed states.
- The record is durable before the first state is committed. A state whose txid differs from the record's is refused at the start.
- Each of the two steps `record` is one transaction of a provider that has `transaction()`; no code of a user runs in it.
- Every task that takes part in a checkpoint gets `pre_commit` at least once; the record becomes COMMITTED only after all of them.
- The definition of the stored states is saved before the record of their first checkpoint. So a bolt that the definition lacks is
  new, and no checkpoint has data of it.
- After a rollback a bolt gets its state again by `init_state` (in Storm it keeps what it has in memory), and the tuples since the
  last commit fail. A tuple is acked or failed once; a tuple that the bolt fails is failed at once.
- A call that fails leaves nothing in the state, as in every runtime; but here one that has acked a tuple before leaves its writes.

Tasks with states
    StatefulBoltTask       init_state               a tuple is acked with the checkpoint that holds its changes
    RecoveredWindowTask    init_state, message_id=  a checkpoint holds the windows without their tuples; a tuple is acked with the
                                                    first checkpoint after it expired; emitted rows are anchored
    PagedWindowTask        max_events_in_memory=    a checkpoint also holds the tuples, in pages; a tuple is acked with the first
                                                    checkpoint that holds it, so its ack does not wait for the window; emitted rows
                                                    are not anchored

Source: Storm's `CheckpointSpout`, `StatefulBoltExecutor`, `StatefulWindowedBoltExecutor` and `PersistentWindowedBoltExecutor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from windowing.acking.acker import Anchors, Reason
from windowing.errors import (
    AckError,
    BoltError,
    CheckpointError,
    CorruptStateError,
    DrainedCheckpointError,
    FailedException,
    quote,
)
from windowing.execution.compatibility import same_json
from windowing.local.router import Delivery, Router
from windowing.local.tasks import BoltTask, Task, TaskParts
from windowing.local.windowed import MessageChannel, WindowedBoltTask
from windowing.schema.tuples import SYSTEM, Fields, Origin, Tuple
from windowing.stores.pages import PersistentWindow
from windowing.topology.components import TopologyContext
from windowing.topology.state import NEVER, CheckpointedState, KeyValueState, StateProvider, require_undo
from windowing.topology.window_task import FailTarget, WindowFailed
from windowing.windows.events import Expired, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.recovery import Absorbed, Missed, WindowRecovery

RECORD = "checkpoint"
"""The name of the durable record."""

DEFINITION = "definition"
"""The name of the record with the definition of the states (execution/compatibility.py)."""

_FORMAT = 1
_MOST_REFUSALS = 1_000


class TxState(Enum):
    """The phase of the last checkpoint in the durable record."""

    COMMITTED = "committed"
    COMMITTING = "committing"


_UNRECORDED = "preparing"
"""What 0.2.0 wrote before it prepared the states of a checkpoint, which a start rolls back to the checkpoint before."""


@dataclass(frozen=True, slots=True)
class CheckPointState:
    """The durable record: the last checkpoint, from which a restart continues, and its phase; -1 is before the first checkpoint."""

    txid: int = NEVER
    state: TxState = TxState.COMMITTED

    def plain(self) -> dict[str, Any]:
        return {"format": _FORMAT, "txid": self.txid, "state": self.state.value}

    @classmethod
    def of(cls, data: Any) -> CheckPointState:
        """Return the record of plain data; None gives the initial record. Raises CorruptStateError for damaged data."""
        if data is None:
            return cls()
        states = [_UNRECORDED, *(state.value for state in TxState)]
        if not isinstance(data, Mapping) or data.get("format") != _FORMAT or data.get("state") not in states:
            raise CorruptStateError(
                f"the checkpoint record is {quote(data)}, wanted format {_FORMAT} with txid and state; restore "
                "the state from a copy, or read it with the version that wrote it; nothing was reset"
            )
        txid = data.get("txid")
        if type(txid) is not int or txid < NEVER:
            raise CorruptStateError(
                f"the checkpoint record has txid {quote(txid)}, wanted a whole number from -1; restore the state from a copy; "
                "nothing was reset"
            )
        return cls(txid - 1) if data["state"] == _UNRECORDED else cls(txid, TxState(data["state"]))


# -- StatefulBoltExecutor --------------------------------------------------------------------------------------------------------


class StatefulBoltExecutor:
    """The states of one task, in the order in which they are prepared and committed, and the tuples whose acks wait for a commit.

    `txid` is that of the committed states. `prepared`: the tuples that the commit acks; None if none must follow.
    Cost: O(1) per tuple; all tuples since the last commit are kept.
    """

    def __init__(self, task: StatefulBoltTask | CheckpointedWindowTask) -> None:
        self.states: list[CheckpointedState] = []
        self.txid = NEVER
        self.task = task
        self._open: dict[Delivery, None] = {}
        self._acked: dict[Delivery, None] = {}
        self.prepared: tuple[Delivery, ...] | None = None

    # -- tuples --------------------------------------------------------------------------------------------------------

    def executed(self, tuples: Iterable[Delivery]) -> None:
        """Record tuples that are passed to the bolt or to its windows."""
        opened = self._open
        for message in tuples:
            opened[message] = None

    def ack(self, message: Delivery) -> None:
        """Record an ack; it is sent when the next checkpoint commits. Raises AckError for a tuple that is not open."""
        self._settle(message)
        self._acked[message] = None

    def fail(self, message: Delivery, reason: str = Reason.FAILED) -> None:
        """Fail a tuple at once. Raises AckError for a tuple that is not open."""
        self._settle(message)
        self.task.router.fail(message._anchors, self.task.context.component, reason)

    def is_open(self, message: Delivery) -> bool:
        """Whether the tuple was executed and has not been acked, failed or rolled back since."""
        return message in self._open

    def held(self) -> list[Delivery]:
        """Return the tuples that wait for the bolt's ack or for a commit."""
        return [*self._open, *self._acked, *(self.prepared or ())]

    def _settle(self, message: Delivery) -> None:
        if message not in self._open:
            raise AckError(
                f"{quote(message)} was acked or failed twice, or after a rollback had failed it; settle each tuple once, and "
                "forget the tuples at hand in pre_rollback"
            )
        del self._open[message]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def recover(self, record: CheckPointState, new: bool) -> None:
        """Bring the stored states to the checkpoint of the record, before the task opens. A `new` bolt has no data in it."""
        takes_part = record.state is TxState.COMMITTING and not new
        for state in self.states:
            if takes_part:
                state.commit(record.txid)
            else:
                state.rollback()
        self.txid = record.txid
        self.prepared = () if takes_part else None

    def agrees(self, method: str, *arguments: int) -> bool:
        """Call a hook of the bolt; return False if it refuses by a FailedException, which is added to the errors of the result."""
        try:
            self.task.hook(method, *arguments)
        except BoltError as problem:
            if not isinstance(problem.__cause__, FailedException):
                raise
            self.task.router.report(self.task.context.component, self.task.context.task_index, problem)
            return False
        return True

    def prepare(self, txid: int) -> None:
        for state in self.states:
            state.prepare_commit(txid)
        self.prepared, self._acked = tuple(self._acked), {}

    def commit(self, txid: int) -> None:
        for state in self.states:
            state.commit(txid)
        prepared, self.prepared, self.txid = self.prepared or (), None, txid
        acked = [message._anchors for message in prepared if message._anchors is not None]
        self.task.router.ack_all(acked, self.task.context.component)

    def roll_back(self) -> bool:
        """Restore the last commit and fail the tuples since then; `init` of the task must follow. Return False if it refuses."""
        if not self.agrees("pre_rollback"):
            return False
        for state in self.states:
            state.rollback()
        lost = [*(self.prepared or ()), *self._acked, *self._open]
        self.prepared, self._acked, self._open = None, {}, {}
        for message in lost:
            self.task.router.fail(message._anchors, self.task.context.component)
        return True

    def check(self) -> None:
        """Assert the invariant: each tuple is in exactly one of open, acked and prepared."""
        held = self.held()
        assert len(set(held)) == len(held)


# -- CheckpointTask --------------------------------------------------------------------------------------------------------------


class CheckpointTask(Task):
    """Takes the checkpoints of a cluster. `bolts` are the tasks of all bolts, in topological order.

    A checkpoint begins an interval after the previous one has ended. So one that takes longer than that leaves time for tuples.

    `refused`: the step that was refused and will be tried again, else None.
    The number of consecutive refusals is limited to the number of attempts of a message, or to 1,000 if attempts have no limit, so
    that a run always ends. `definition`: the definition of the states.
    """

    def __init__(
        self,
        router: Router,
        context: TopologyContext,
        provider: StateProvider,
        bolts: Sequence[Task],
        definition: Mapping[str, Any],
    ) -> None:
        super().__init__(router, context, 0, deque())
        self._interval_ms = context.config.state_checkpoint_interval_ms
        self.record = CheckPointState.of(provider.record(RECORD))
        self._provider = provider
        self._transaction: Callable[[], AbstractContextManager[Any]] = getattr(provider, "transaction", nullcontext)
        self._definition, self._is_defined = definition, False
        self._bolts = [
            (bolt, bolt.stateful if isinstance(bolt, StatefulBoltTask | CheckpointedWindowTask) else None)
            for bolt in bolts
        ]
        self._executors = [executor for _, executor in self._bolts if executor is not None]
        self.refused: Callable[[], None] | None = None
        self._refusals = 0
        self._due_ms = 0

    def open(self) -> None:
        definition = self._provider.record(DEFINITION)
        stored = {} if definition is None else definition["bolts"]
        self._is_defined = same_json(definition, self._definition)
        with self._transaction():
            for bolt, executor in self._bolts:
                if executor is not None:
                    executor.recover(self.record, new=bolt.context.component not in stored)
        self._due_ms = self.router.now_ms + self._interval_ms
        if self.record.state is TxState.COMMITTING:
            self._again(self._commit, at_once=True)

    def tick(self) -> None:
        self.take()

    def next_deadline_ms(self) -> int | None:
        return self._due_ms

    def take(self) -> None:
        """Take a checkpoint now, or retry the step that was refused."""
        (self.refused or self._prepare)()

    def _emptied(self) -> Iterator[StatefulBoltExecutor]:
        """Yield the executors in topological order, each after its inbox, with all that the bolts before it emitted, is empty."""
        for bolt, executor in self._bolts:
            bolt.step(None)
            if executor is not None:
                yield executor

    def _prepare(self) -> None:
        txid = self.record.txid + 1
        if not all(executor.agrees("pre_prepare", txid) for executor in self._emptied()):
            self._count_refusal(txid, "PREPARE")
            self._roll_back()
            return
        with self._transaction():
            for executor in self._executors:
                executor.prepare(txid)
            if not self._is_defined:
                self._provider.save_record(DEFINITION, self._definition)
                self._is_defined = True
            self._save(txid, TxState.COMMITTING)
        self._commit()

    def _commit(self) -> None:
        txid = self.record.txid
        # A refused commit is retried in a later round; messages that are in the inboxes then belong to the next checkpoint.
        prepared = [executor for executor in self._executors if executor.prepared is not None]
        agreed = [executor for executor in prepared if executor.agrees("pre_commit", txid)]
        with self._transaction():
            for executor in agreed:
                executor.commit(txid)
            if agreed == prepared:
                self._save(txid, TxState.COMMITTED)
        if agreed != prepared:
            self._count_refusal(txid, "COMMIT")
            self._again(self._commit, at_once=self.refused is None)
            return
        self.router.result.checkpoints += 1
        self._refusals = 0
        self._done()

    def _roll_back(self) -> None:
        self.router.restarts += 1
        done = [(executor, executor.roll_back()) for executor in self._emptied()]
        for executor, agreed in done:
            if agreed:
                executor.task.init(executor.txid)
        if not all(agreed for _, agreed in done):
            self._count_refusal(self.record.txid + 1, "ROLLBACK")
            self._again(self._roll_back)
            return
        self.router.rollbacks += 1
        self._done()

    def _again(self, step: Callable[[], None], at_once: bool = False) -> None:
        """Schedule a refused step to be retried, at once or after an interval."""
        self.refused = step
        self._due_ms = self.router.now_ms + (0 if at_once else self._interval_ms)

    def _done(self) -> None:
        self.refused, self._due_ms = None, self.router.clock.now_ms() + self._interval_ms

    def _save(self, txid: int, state: TxState) -> None:
        self.record = CheckPointState(txid, state)
        self._provider.save_record(RECORD, self.record.plain())

    def _count_refusal(self, txid: int, action: str) -> None:
        """Count a refusal. Raises CheckpointError at the limit of consecutive refusals."""
        self._refusals += 1
        limit = self.context.config.max_attempts
        if self._refusals >= (limit or _MOST_REFUSALS):
            held = self.record.state is TxState.COMMITTING
            goes_on = (
                f"checkpoint {txid} is recorded, and is committed then"
                if held
                else "the states are those of the last commit"
            )
            allowed = "there may be without a limit of attempts" if limit is None else "windowing.max.attempts allows"
            raise CheckpointError(
                f"checkpoint {txid} was refused at {action}, which makes {self._refusals} refusals without a commit, as many as "
                f"{allowed}; result.errors has what the hooks raised: repair that, and start again; {goes_on}"
            )


# -- tasks with states -----------------------------------------------------------------------------------------------------------


class StatefulBoltTask(BoltTask):
    """One task of a bolt with `init_state`, whether or not the bolt acks its tuples itself."""

    def __init__(self, parts: TaskParts, tick_ms: int | None, state: KeyValueState) -> None:
        super().__init__(parts, tick_ms)
        self.stateful = StatefulBoltExecutor(self)
        self.stateful.states.append(state)
        self.state, self.hook = state, self.caller.hook
        self._execute: Callable[[Delivery], Any]
        # Of the call of the bolt: its tuple, whether it has failed that, and whether it has acked any tuple.
        self._at_hand: Delivery | None = None
        self._failed = self._acked = False

    def open(self) -> None:
        require_undo(self.context.called("bolt"), self.state)
        super().open()
        self._execute, self._call = self._call, self._called
        self.init(self.stateful.txid)
        self.caller.prepare(self.context, self.collector())

    def init(self, txid: int) -> None:
        self.state.require(txid)
        self.hook("init_state", self.state)

    def _called(self, message: Delivery) -> Any:
        """Call the bolt; undo what a call that fails its tuple leaves in the state."""
        if message._origin.component != SYSTEM:
            self.stateful.executed((message,))
        self._at_hand, self._failed, self._acked = message, False, False
        self.state.begin()
        returned = self._execute(message)
        if self._failed:
            self._undo()
        return returned

    def _undo(self) -> None:
        if not self._acked:  # else they may be the writes of a tuple that does not come again
            self.state.undo()

    def failed(self, messages: Sequence[Delivery], problem: FailedException) -> None:
        super().failed(messages, problem)
        self._undo()

    def ack_all(self, done: Sequence[Delivery]) -> None:
        """Record the acks of a basic bolt; they are sent when the checkpoint commits."""
        for message in done:
            if message._origin.component != SYSTEM:
                self.stateful.ack(message)

    def ack(self, message: Delivery) -> None:
        """Record the bolt's own ack."""
        if message._origin.component != SYSTEM:
            self.stateful.ack(message)
            self._acked = True

    def fail(self, message: Delivery, reason: str = Reason.FAILED) -> None:
        if message._origin.component != SYSTEM:
            self.stateful.fail(message, reason)
        self._failed = self._failed or message is self._at_hand

    def is_settled(self, message: Delivery) -> bool:
        return not self.stateful.is_open(message)


class CheckpointedWindowTask(WindowedBoltTask):
    """The common base of windowed bolts whose windows outlive the process. `state`: that of a stateful bolt, else None."""

    def __init__(
        self,
        parts: TaskParts,
        *,
        executor: WindowedBoltExecutor,
        state: KeyValueState | None,
        recovery: WindowRecovery | None = None,
    ) -> None:
        super().__init__(parts, executor=executor, recovery=recovery)
        self.stateful = StatefulBoltExecutor(self)
        self.state, self.hook = state, self.windows.runner.hook
        if state is not None:
            self.stateful.states.append(state)

    def open(self) -> None:
        if self._begin(self.stateful.txid):
            self.report_error(
                DrainedCheckpointError(
                    f"the windows of bolt {self.context.component!r} were drained in the run that wrote the checkpoint, so "
                    "whatever is new is late, with the reason closed; begin with new states, or end a run that is to go on with "
                    "run(drain=False)"
                )
            )
        self.windows.open(self.context, self.state)
        self.windows.turned_ms = self.router.now_ms

    def init(self, txid: int) -> None:
        self._begin(txid)
        if self.state is not None:
            self.hook("init_state", self.state)

    def _begin(self, txid: int) -> bool:
        if self.state is not None:
            self.state.require(txid)
        return self.resume(txid)

    def resume(self, txid: int) -> bool:
        """Restore the windows of checkpoint `txid`; return whether they had been drained."""
        raise NotImplementedError

    def arrive(self, arrived: list[Delivery]) -> None:
        self.stateful.executed(arrived)
        super().arrive(arrived)

    def repeated(self) -> int:
        """Return how many repeated tuples the windows have recognized by their ids, in earlier runs too."""
        raise NotImplementedError

    def perform(self, effects: Iterator[Any]) -> None:
        super().perform(effects)
        found, component, total = self.repeated(), self.context.component, self.router.result.duplicates
        if found != self.duplicates:
            total[component] = total.get(component, 0) + found - self.duplicates
            self.duplicates = found

    def ack(self, rows: Iterable[Any]) -> None:
        for message in map(self.delivery, rows):
            if self.stateful.is_open(message):
                self.stateful.ack(message)

    def fail(self, rows: Sequence[Any], reason: str) -> None:
        for message in map(self.delivery, rows):
            if self.stateful.is_open(message):
                self.stateful.fail(message, reason)


class RecoveredWindowTask(CheckpointedWindowTask):
    """One task of a stateful windowed bolt in memory. `rows`: the state in which a checkpoint stores the windows.

    Raises ConfigError for a bolt without message_id. After a restart, tuples of stored windows that do not arrive again in time are
    reported as an error of the bolt.
    """

    def __init__(self, parts: TaskParts, executor: WindowedBoltExecutor, state: Any, rows: KeyValueState) -> None:
        self.recovery = WindowRecovery(executor, _plain, partial(_tuple, task_ids=parts.context.task_ids))
        super().__init__(parts, executor=executor, state=state, recovery=self.recovery)
        self.rows = rows
        self.stateful.states.append(self)

    # -- the windows as a state of the task ----------------------------------------------------------------------------

    def prepare_commit(self, txid: int) -> None:
        """Store the changes of the windows; tuples that arrived again and have already expired are acked with this checkpoint."""
        put, delete, absorbed = self.recovery.changes()
        for row, value in put.items():
            self.rows.put(row, value)
        for row in delete:
            self.rows.delete(row)
        self.ack(absorbed.payloads)
        self.rows.prepare_commit(txid)

    def commit(self, txid: int) -> None:
        self.rows.commit(txid)

    def rollback(self) -> None:
        self.rows.rollback()

    def resume(self, txid: int) -> bool:
        self.rows.require(txid)
        self.recovery.begin(self.rows.items(), self.router.now_ms)
        return self.recovery.drained

    # -- tuples and turns ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now_ms = self.router.now_ms
        deadline_ms = self.recovery.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.step(None)
            self.perform(self.windows.perform(self.recovery.tick(now_ms)))
        deadline_ms = super().next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            super().tick()

    def next_deadline_ms(self) -> int | None:
        deadlines = (self.recovery.next_deadline_ms(), super().next_deadline_ms())
        return min((ms for ms in deadlines if ms is not None), default=None)

    def offered(self, arrived: list[Delivery]) -> tuple[Sequence[Any], list[MessageChannel] | None]:
        return arrived, list(map(_channel, arrived))

    def repeated(self) -> int:
        return self.recovery.duplicates

    def perform_one(self, effect: Any) -> None:
        if isinstance(effect, Absorbed):
            self.ack(effect.payloads)
        elif isinstance(effect, Missed):
            self.report_error(
                CheckpointError(
                    f"bolt {self.context.component!r} waited {self.config.recovery_timeout_ms} ms after its restart for "
                    f"{len(effect.identities)} tuples that were in its windows, and they did not come again: "
                    f"{quote(effect.identities[:5])}; no window shows them any more; give recovery_timeout= more time, or use a "
                    "source that sends again what was not acked"
                )
            )
        else:
            super().perform_one(effect)

    def expired(self, effect: Expired) -> None:
        # Tuples that were acked before the restart come from the store and are no deliveries.
        self.ack(row for row in effect.get() or () if isinstance(row, Delivery))


class PagedWindowTask(CheckpointedWindowTask):
    """One task of a windowed bolt whose tuples are stored in pages."""

    fail_target = FailTarget.RUN

    def __init__(self, parts: TaskParts, window: PersistentWindow, state: KeyValueState | None) -> None:
        super().__init__(parts, executor=window.executor, state=state)
        self.window = window
        self.stateful.states.append(window)
        self._brought: dict[Tuple, Delivery] = {}

    def resume(self, txid: int) -> bool:
        self.window.init(txid)
        return self.executor.closed

    def arrive(self, arrived: list[Delivery]) -> None:
        super().arrive(arrived)
        self._brought = {}
        self.ack(arrived)

    def offered(self, arrived: list[Delivery]) -> tuple[Sequence[Any], list[MessageChannel] | None]:
        # Stored tuples have no anchors: anchors are meaningless after a restart, and would be kept in memory with the page.
        self._brought = {Tuple(message._values, message._origin): message for message in arrived}
        return list(self._brought), list(map(_channel, arrived))

    def repeated(self) -> int:
        return self.window.executor.duplicates

    def delivery(self, row: Any) -> Delivery:
        return row if isinstance(row, Delivery) else self._brought[row]

    def expired(self, effect: Expired) -> None:
        """Do nothing: the tuples were acked with the checkpoint that stored them."""

    def anchors_of(self, window: TupleWindow) -> Sequence[Anchors]:
        return ()

    def fail_window(self, failed: WindowFailed) -> None:
        """Raise: the window's tuples may have been acked already, so no source would emit them again."""
        raise failed.error


def _channel(message: Delivery) -> MessageChannel:
    origin = message._origin
    return origin.component, origin.stream, origin.task


def _plain(message: Tuple) -> Any:
    origin = message._origin
    return [origin.component, origin.task, origin.stream, list(origin.fields.names), list(message.get_values())]


def _tuple(data: Any, task_ids: Mapping[str, range]) -> Tuple:
    component, task, stream, fields, values = data
    return Tuple(tuple(values), Origin(component, task, Fields(*fields), stream, task_ids))
