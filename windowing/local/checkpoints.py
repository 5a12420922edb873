"""Checkpoints of LocalCluster: snapshots of all states and windows, and the tasks of bolts that outlive their process.

One process, one loop: if each bolt, in topological order, takes what lies in its inbox before its states are prepared, the states
of all tasks are one cut through the topology: of what a bolt has emitted, in `pre_prepare` too, nothing is on its way behind it.
So a checkpoint is one call, and what it holds is the same for every task.

    prepare n    each task: its inbox, pre_prepare, its states prepared     refused --> roll back
    record       COMMITTING n: a start goes on from n from here on
    commit n     each task: pre_commit, its states committed, acks          refused --> once more, where it is not done
    record       COMMITTED n
    roll back    each task: its inbox, pre_rollback, its states as of the last commit, fails; then each: init_state
                                                                            refused --> all once more, later
    start        COMMITTING n: what is prepared is committed; COMMITTED n: it is gone; then bolts get their states, and those of a
                 checkpoint that was COMMITTING pre_commit, as if they had refused it

Laws
- An ack goes out when the state that the tuple has changed is committed: whatever is acked is in the committed states.
- The record is durable before the first state is committed. A state's txid is that of the record, or nothing runs.
- Whoever takes part in a checkpoint hears its pre_commit, once or more: the record says COMMITTED when all have.
- The definition of what is stored is saved before the record of the first checkpoint of it: a bolt that it lacks is new, and no
  checkpoint has anything of it.
- After a rollback a bolt gets its state anew (in Storm it goes on with what it had in memory), and the tuples since the last commit
  fail. A tuple is settled once; one that the bolt itself fails is failed at once, and what it changed by then stays.

Tasks with states
    StatefulBoltTask       init_state               a tuple is acked with the checkpoint that holds what it changed
    RecoveredWindowTask    init_state, message_id=  a checkpoint has the windows without their tuples; a tuple is acked with the
                                                    checkpoint that knows that it expired; emits are anchored
    PagedWindowTask        max_events_in_memory=    a checkpoint has the tuples too, in pages; a tuple is acked with the checkpoint
                                                    that holds it, so that an ack does not depend on the window: emits are not
                                                    anchored

Source: Storm's `CheckpointSpout`, `StatefulBoltExecutor`, `StatefulWindowedBoltExecutor` and `PersistentWindowedBoltExecutor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol

from windowing.errors import (
    AckError,
    BoltError,
    CheckpointError,
    CorruptStateError,
    DrainedCheckpointError,
    FailedException,
    quote,
)
from windowing.execution.compatibility import same
from windowing.local.router import Delivery, Router
from windowing.local.tasks import BoltCollector, BoltTask, Task, TaskParts
from windowing.local.windowed import MessageChannel, WindowedBoltTask
from windowing.schema.tuples import SYSTEM, Fields, Origin, Tuple
from windowing.stores.pages import PersistentWindow
from windowing.topology.components import TaskContext
from windowing.topology.decorators import ComponentKind
from windowing.topology.state import NEVER, KeyValueState, StateProvider
from windowing.topology.window_task import FailTarget, WindowFailed
from windowing.windows.events import Expired, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.recovery import Absorbed, Missed, WindowRecovery

__all__ = [
    "DEFINITION",
    "RECORD",
    "CheckPointState",
    "CheckpointTask",
    "CheckpointedWindowTask",
    "PagedWindowTask",
    "RecoveredWindowTask",
    "StatefulBoltExecutor",
    "StatefulBoltTask",
    "TxState",
]


RECORD = "checkpoint"
"""The name of the durable record."""

DEFINITION = "definition"
"""The name of the record of what the states are of (execution/compatibility.py)."""

_FORMAT = 1
_MOST_REFUSALS = 1_000


class TxState(Enum):
    """How far the last checkpoint is, as the durable record has it; PREPARING is in records of earlier versions."""

    COMMITTED = "committed"
    PREPARING = "preparing"
    COMMITTING = "committing"


@dataclass(frozen=True, slots=True)
class CheckPointState:
    """The durable record: how far the checkpoint `txid` is. -1 is before the first."""

    txid: int = NEVER
    state: TxState = TxState.COMMITTED

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {"format": _FORMAT, "txid": self.txid, "state": self.state.value}

    @classmethod
    def of(cls, data: Any) -> CheckPointState:
        """Return the record of plain data, the first one for None. Raises CorruptStateError: nothing starts from -1 again."""
        if data is None:
            return cls()
        states = [state.value for state in TxState]
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
        return cls(txid, TxState(data["state"]))

    @property
    def committed(self) -> int:
        """The txid that a start goes on from."""
        return self.txid - 1 if self.state is TxState.PREPARING else self.txid


# -- StatefulBoltExecutor --------------------------------------------------------------------------------------------------------


class _Checkpointed(Protocol):
    """What is prepared, committed and rolled back: a key-value state, the windows of a task."""

    def prepare_commit(self, txid: int) -> None: ...
    def commit(self, txid: int) -> None: ...
    def rollback(self) -> None: ...


class _StatefulTask(Protocol):
    """What a task does by itself."""

    router: Router
    context: TaskContext

    def hook(self, method: str, *arguments: int) -> None:
        """Call a method that the bolt may have."""

    def init(self, txid: int) -> None:
        """Begin once more with the states of checkpoint `txid`."""


class StatefulBoltExecutor:
    """One task's states, in the order in which they are prepared and committed, and its tuples whose acks wait for that.

    `txid` is that of the committed states. What a hook refuses by a FailedException is not done: the entry returns False.
    Cost: O(1) a tuple; between two commits all executed tuples are kept.
    """

    def __init__(self, task: _StatefulTask) -> None:
        self.states: list[_Checkpointed] = []
        self.txid = NEVER
        self._task = task
        self._open: dict[Delivery, None] = {}
        self._acked: dict[Delivery, None] = {}
        self._prepared: tuple[Delivery, ...] | None = None

    # -- tuples --------------------------------------------------------------------------------------------------------

    def executed(self, tuples: Iterable[Delivery]) -> None:
        """Take note that tuples are handed to the bolt, or to its windows."""
        self._open.update(dict.fromkeys(tuples))

    def ack(self, message: Delivery) -> None:
        """Take note of an ack; it goes out when the next checkpoint commits. Raises AckError for a tuple that is not open."""
        self._settle(message)
        self._acked[message] = None

    def fail(self, message: Delivery) -> None:
        """Let a fail go out now. Raises AckError for a tuple that is not open."""
        self._settle(message)
        self._task.router.fail(message._anchors, self._task.context.component)

    def is_open(self, message: Delivery) -> bool:
        """Whether the tuple was executed and neither acked nor failed, nor taken back by a rollback."""
        return message in self._open

    def held(self) -> list[Delivery]:
        """Return the tuples that wait: for the bolt's ack, or for a commit."""
        return [*self._open, *self._acked, *(self._prepared or ())]

    def _settle(self, message: Delivery) -> None:
        if message not in self._open:
            raise AckError(
                f"{quote(message)} was acked or failed twice, or after a rollback had failed it; settle each tuple once, and "
                "forget the tuples at hand in pre_rollback"
            )
        del self._open[message]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def recover(self, record: CheckPointState, new: bool) -> None:
        """Make the stored states those that the record says, before the task opens; a `new` one has no part in it."""
        takes_part = record.state is TxState.COMMITTING and not new
        for state in self.states:
            if takes_part:
                state.commit(record.txid)
            else:
                state.rollback()
        self.txid = record.committed
        self._prepared = () if takes_part else None

    def prepare(self, txid: int) -> bool:
        """Make the states as they are durable under `txid`."""
        if not self._agrees("pre_prepare", txid):
            return False
        for state in self.states:
            state.prepare_commit(txid)
        self._prepared, self._acked = tuple(self._acked), {}
        return True

    def commit(self, txid: int) -> bool:
        """Make what is prepared current, and let the acks out; nothing happens where that is done."""
        if self._prepared is None:
            return True
        if not self._agrees("pre_commit", txid):
            return False
        for state in self.states:
            state.commit(txid)
        prepared, self._prepared, self.txid = self._prepared, None, txid
        for message in prepared:
            self._task.router.ack(message._anchors, self._task.context.component)
        return True

    def roll_back(self) -> bool:
        """Become what was committed last, and fail the tuples since; `begin_again` comes next."""
        if not self._agrees("pre_rollback"):
            return False
        for state in self.states:
            state.rollback()
        lost = [*(self._prepared or ()), *self._acked, *self._open]
        self._prepared, self._acked, self._open = None, {}, {}
        for message in lost:
            self._task.router.fail(message._anchors, self._task.context.component)
        return True

    def begin_again(self) -> None:
        """Hand the bolt its states once more, when those of all tasks are as they were."""
        self._task.init(self.txid)

    def _agrees(self, method: str, *arguments: int) -> bool:
        """Call a hook; a FailedException refuses, and is in the result for whoever looks there."""
        try:
            self._task.hook(method, *arguments)
        except BoltError as problem:
            if not isinstance(problem.__cause__, FailedException):
                raise
            self._task.router.report(self._task.context.component, self._task.context.task_index, problem)
            return False
        return True

    def check(self) -> None:
        """Assert what "correct" means: no tuple is both open and acked, and none waits twice."""
        held = self.held()
        assert len(set(held)) == len(held)


# -- CheckpointTask --------------------------------------------------------------------------------------------------------------


class CheckpointTask(Task):
    """Takes the checkpoints of a cluster, one interval apart. `bolts` are the tasks of all bolts, in topological order.

    `recovering` says whether a commit or a rollback was refused and is to be tried again; `rollbacks` counts those that are done.
    There may be as many refusals without a commit as a message has attempts, and no more than 1,000: who asks for no limit of
    attempts does not ask for a run that never ends. definition: what the states are of.
    """

    def __init__(
        self,
        router: Router,
        context: TaskContext,
        provider: StateProvider,
        bolts: Sequence[Task],
        definition: Mapping[str, Any],
    ) -> None:
        super().__init__(router, context, 0, deque())
        self._interval_ms = context.config.state_checkpoint_interval_ms
        self.record = CheckPointState.of(provider.record(RECORD))
        self.rollbacks = 0
        self._provider = provider
        self._definition, self._is_defined = definition, False
        self._bolts = [
            (bolt, bolt.stateful if isinstance(bolt, StatefulBoltTask | CheckpointedWindowTask) else None)
            for bolt in bolts
        ]
        self._executors = [executor for _, executor in self._bolts if executor is not None]
        self._refused: Callable[[], None] | None = None
        self._refusals = 0
        self._next_ms = self._due_ms = 0

    @property
    def recovering(self) -> bool:
        return self._refused is not None

    def open(self) -> None:
        definition = self._provider.record(DEFINITION)
        stored = {} if definition is None else definition["bolts"]
        self._is_defined = same(definition, self._definition)
        for bolt, executor in self._bolts:
            if executor is not None:
                executor.recover(self.record, new=bolt.context.component not in stored)
        self._next_ms = self._due_ms = self.router.now_ms + self._interval_ms
        if self.record.state is TxState.COMMITTING:
            self._again(self._commit, at_once=True)
        elif self.record.state is TxState.PREPARING:
            self._save(self.record.committed, TxState.COMMITTED)

    def tick(self) -> None:
        self.take()

    def next_deadline_ms(self) -> int | None:
        return self._due_ms

    def take(self) -> None:
        """Take a checkpoint now, or do once more what was refused."""
        (self._refused or self._prepare)()

    def _emptied(self) -> Iterator[StatefulBoltExecutor]:
        """Yield what has states, bolt by bolt, each when its inbox is empty: of what those before it emitted meanwhile, too."""
        for bolt, executor in self._bolts:
            bolt.step(None)
            if executor is not None:
                yield executor

    def _prepare(self) -> None:
        self._next_ms = self.router.now_ms + self._interval_ms
        txid = self.record.txid + 1
        if all(executor.prepare(txid) for executor in self._emptied()):
            if not self._is_defined:
                self._provider.save_record(DEFINITION, self._definition)
                self._is_defined = True
            self._save(txid, TxState.COMMITTING)
            self._commit()
        else:
            self._count_refusal(txid, "PREPARE")
            self._roll_back()

    def _commit(self) -> None:
        txid = self.record.txid
        # A refused commit is tried again in a later round, and what lies in the inboxes then is of the next checkpoint.
        if [executor for executor in self._executors if not executor.commit(txid)]:
            self._count_refusal(txid, "COMMIT")
            self._again(self._commit, at_once=self._refused is None)
            return
        self._save(txid, TxState.COMMITTED)
        self.router.result.checkpoints += 1
        self._refusals = 0
        self._done()

    def _roll_back(self) -> None:
        done = [(executor, executor.roll_back()) for executor in self._emptied()]
        for executor, agreed in done:
            if agreed:
                executor.begin_again()
        if not all(agreed for _, agreed in done):
            self._count_refusal(self.record.txid + 1, "ROLLBACK")
            self._again(self._roll_back)
            return
        self.rollbacks += 1
        self._done()

    def _again(self, step: Callable[[], None], at_once: bool = False) -> None:
        """Do a step that was refused once more, but not in a hot loop."""
        self._refused = step
        self._due_ms = self.router.now_ms + (0 if at_once else self._interval_ms)

    def _done(self) -> None:
        self._refused, self._due_ms = None, self._next_ms

    def _save(self, txid: int, state: TxState) -> None:
        self.record = CheckPointState(txid, state)
        self._provider.save_record(RECORD, self.record.plain())

    def _count_refusal(self, txid: int, action: str) -> None:
        """Raises CheckpointError when there were as many in a row as a message has attempts, or 1,000."""
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
    """One task of a bolt with `init_state`, whether it acks by itself or not."""

    def __init__(self, parts: TaskParts, tick_ms: int | None, state: KeyValueState) -> None:
        super().__init__(parts, tick_ms)
        self.stateful = StatefulBoltExecutor(self)
        self.stateful.states.append(state)
        self.state = state
        self._by_itself = parts.component.kind is ComponentKind.BOLT

    def open(self) -> None:
        super().open()
        self.init(self.stateful.txid)
        self.caller.prepare(self.context, self.collector())

    def collector(self) -> BoltCollector | None:
        return BoltCollector(self) if self._by_itself else None

    def init(self, txid: int) -> None:
        """Hand the bolt its state as of `txid`."""
        self.state.require(txid)
        self.hook("init_state", self.state)

    def hook(self, method: str, *arguments: Any) -> None:
        """Call a method that the bolt may have."""
        self.caller.hook(method, *arguments)

    def handle(self, message: Delivery) -> None:
        if message._origin.component != SYSTEM:
            self.stateful.executed((message,))
        if self._by_itself:
            self.attempt(message)
        else:
            super().handle(message)

    def ack(self, message: Delivery) -> None:
        """Take note of the bolt's ack; it goes out when the checkpoint commits."""
        if message._origin.component != SYSTEM:
            self.stateful.ack(message)

    def fail(self, message: Delivery) -> None:
        """Let the bolt's fail go out now."""
        if message._origin.component != SYSTEM:
            self.stateful.fail(message)

    def is_settled(self, message: Delivery) -> bool:
        return not self.stateful.is_open(message)


class CheckpointedWindowTask(WindowedBoltTask):
    """What both kinds of windows that outlive the process share; `state` is that of a bolt that has one."""

    def __init__(
        self,
        parts: TaskParts,
        by_hand: bool,
        *,
        executor: WindowedBoltExecutor,
        state: KeyValueState | None,
        recovery: WindowRecovery | None = None,
    ) -> None:
        super().__init__(parts, by_hand, executor=executor, recovery=recovery)
        self.stateful = StatefulBoltExecutor(self)
        self.state = state
        if state is not None:
            self.stateful.states.append(state)

    def open(self) -> None:
        self._begin(self.stateful.txid)
        self.windows.open(self.context, self.state)
        self.windows.timer.start(self.router.now_ms)

    def init(self, txid: int) -> None:
        """Go back to the windows and the state of checkpoint `txid`."""
        self._begin(txid)
        if self.state is not None:
            self.hook("init_state", self.state)

    def hook(self, method: str, *arguments: Any) -> None:
        """Call a method that the bolt may have."""
        self.windows.runner.hook(method, *arguments)

    def _begin(self, txid: int) -> None:
        if self.state is not None:
            self.state.require(txid)
        if self.resume(txid):
            self.report_error(
                DrainedCheckpointError(
                    f"the windows of bolt {self.context.component!r} were drained in the run that wrote the checkpoint, so "
                    "whatever is new is late, with the reason closed; begin with new states, or end a run that is to go on with "
                    "run(drain=False)"
                )
            )

    def resume(self, txid: int) -> bool:
        """Make the windows those of checkpoint `txid`; return whether they had been drained."""
        raise NotImplementedError

    def arrive(self, arrived: list[Delivery]) -> None:
        self.stateful.executed(arrived)
        super().arrive(arrived)

    def ack(self, rows: Iterable[Any]) -> None:
        for message in map(self.delivery, rows):
            if self.stateful.is_open(message):
                self.stateful.ack(message)

    def fail(self, rows: Iterable[Any]) -> None:
        for message in map(self.delivery, rows):
            if self.stateful.is_open(message):
                self.stateful.fail(message)


class RecoveredWindowTask(CheckpointedWindowTask):
    """One task of a stateful windowed bolt in memory; `rows` is where a checkpoint has its windows.

    Raises ConfigError for a bolt without message_id. What does not come again in time is reported as an error of the bolt.
    """

    def __init__(
        self, parts: TaskParts, by_hand: bool, executor: WindowedBoltExecutor, state: Any, rows: KeyValueState
    ) -> None:
        self.recovery = WindowRecovery(executor, _plain, partial(_tuple, task_ids=parts.context.task_ids))
        super().__init__(parts, by_hand, executor=executor, state=state, recovery=self.recovery)
        self.rows = rows
        self.stateful.states.append(self)

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
        self.recovery.begin(self.rows.items(), self.router.now_ms)
        return self.recovery.drained

    # -- tuples and turns ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        deadline_ms = self.recovery.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.router.now_ms:
            self.step(None)
            self.perform(self.windows.perform(self.recovery.tick(self.router.now_ms)))
        super().tick()

    def next_deadline_ms(self) -> int | None:
        deadlines = (self.recovery.next_deadline_ms(), super().next_deadline_ms())
        return min((ms for ms in deadlines if ms is not None), default=None)

    def offered(self, arrived: list[Delivery]) -> tuple[Sequence[Any], list[MessageChannel] | None]:
        return arrived, list(map(_channel, arrived))

    def perform_one(self, effect: Any) -> None:
        if isinstance(effect, Absorbed):
            self.ack(effect.payloads)
        elif isinstance(effect, Missed):
            self.report_error(CheckpointError(self._missed(effect)))
        else:
            super().perform_one(effect)

    def expired(self, effect: Expired) -> None:
        # What was acked before the restart came out of the store, and is no delivery.
        self.ack(row for row in effect.get() or () if isinstance(row, Delivery))

    def _missed(self, effect: Missed) -> str:
        ms = self.config.recovery_timeout_ms
        return (
            f"bolt {self.context.component!r} waited {ms} ms after its restart for {len(effect.identities)} tuples that were in "
            f"its windows, and they did not come again: {quote(effect.identities[:5])}; no window shows them any more; give "
            "recovery_timeout= more time, or use a source that sends again what was not acked"
        )


class PagedWindowTask(CheckpointedWindowTask):
    """One task of a windowed bolt whose tuples lie in pages."""

    fail_target = FailTarget.RUN

    def __init__(self, parts: TaskParts, by_hand: bool, window: PersistentWindow, state: KeyValueState | None) -> None:
        super().__init__(parts, by_hand, executor=window.executor, state=state)
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
        # What is stored has no anchors: they mean nothing after a restart, and would be in memory with the page.
        self._brought = {Tuple(message._values, message._origin): message for message in arrived}
        return list(self._brought), list(map(_channel, arrived))

    def delivery(self, row: Any) -> Delivery:
        return row if isinstance(row, Delivery) else self._brought[row]

    def expired(self, effect: Expired) -> None:
        """Nothing is left to do: the tuples were acked when a checkpoint held them."""

    def anchors_of(self, window: TupleWindow) -> Sequence[Any]:
        return ()

    def fail_window(self, failed: WindowFailed) -> None:
        """Stop: the window's tuples may have been acked, so that no source would send them again."""
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
