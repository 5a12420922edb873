"""Checkpoints in LocalCluster: the task that begins them, and the tasks that keep states and windows by them.

Checkpoints in a cluster: who begins them, how they travel, and where each task cuts its input.

    CheckpointTask --Barrier--> bolts that read spouts --Barrier--> bolts that read those --> ...
          ^                            |                                  |
          +--------- CheckpointReport -+---------- CheckpointReport ------+      all bolt tasks have reported: acked

A bolt of a topology with state has a Gate: it holds tuples back from a barrier on, until each upstream task has shown it. So what
a checkpoint holds is one cut through the whole topology, the same for every task.

Laws: every bolt task reports each checkpoint once, as done or as refused; one refusal fails it, and the coordinator rolls back, or
commits again; a state's txid is that of the record, or nothing runs.
Source: Storm's `CheckpointSpout` and `CheckpointTupleForwarder`.

CheckpointDriver: does for one task what a StatefulBoltExecutor says: states are prepared and committed, acks wait for the commit.

    gate --tuple--> execute --> task.take(tuple) ... task calls ack(tuple) or fail(tuple), at once or much later
         --checkpoint---------> hooks, states, acks and fails, in the machine's order; then the checkpoint is passed on

Law: whatever is acked is in the committed states of the task, or came after them and is failed by a rollback.

StatefulBoltTask: a bolt with a state that outlives it. Its tuples are acked when the checkpoint that holds them commits.

Windowed bolts whose windows outlive the process: by ids of tuples that come again, or with the tuples on disk.

    RecoveredWindowTask    init_state, message_id=         a checkpoint has the windows without their tuples; a tuple is acked with
                                                           the checkpoint that knows that it expired; emits are anchored
    PagedWindowTask        max_events_in_memory=           a checkpoint has the tuples too, in pages; a tuple is acked with the
                           (with init_state or without)    checkpoint that holds it, as an ack no longer depends on the window;
                                                           so emits are not anchored

Laws: nothing is taken, fired or drained before the task has its states; states and windows are those of one checkpoint.
Source: Storm's `StatefulWindowedBoltExecutor` and `PersistentWindowedBoltExecutor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from windowing.errors import BoltError, CheckpointError, DrainedCheckpointError, FailedException, quote
from windowing.execution.checkpoints import (
    Aligned,
    AlignedBarrier,
    Checkpoint,
    CheckpointAction,
    CheckpointSpout,
    CheckPointState,
    CommitState,
    Delivered,
    EmitCheckpoint,
    ExecuteTuple,
    FailTuples,
    Hook,
    Init,
    PassOn,
    Prepare,
    Refuse,
    ReleaseAcks,
    Rollback,
    StatefulBoltExecutor,
    StatefulEffect,
)
from windowing.execution.checkpoints import CheckpointEffect as SpoutEffect
from windowing.local.router import Delivery, Outbox, Router
from windowing.local.tasks import BoltCollector, BoltTask, Task
from windowing.local.windowed import MessageChannel, WindowedBoltTask
from windowing.schema.tuples import SYSTEM, Fields, Origin, Tuple
from windowing.stores.pages import PersistentWindow
from windowing.topology.components import TaskContext
from windowing.topology.decorators import ComponentKind
from windowing.topology.plan import Component, Topology
from windowing.topology.state import KeyValueState, StateProvider
from windowing.topology.window_task import FailTarget, WindowFailed
from windowing.windows.events import Expired, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.recovery import Absorbed, Missed, WindowRecovery

__all__ = [
    "COORDINATOR",
    "RECORD",
    "Barrier",
    "CheckpointDriver",
    "CheckpointReport",
    "CheckpointTask",
    "CheckpointedTask",
    "CheckpointedWindowTask",
    "Gate",
    "Keeping",
    "Links",
    "PagedWindowTask",
    "RecoveredWindowTask",
    "StatefulBoltTask",
    "links_of",
]


COORDINATOR = ("__checkpoint", 0)
"""The channel of the barriers that the coordinator sends, and of what spouts emit: their tuples are cut by those."""

_MOST_REFUSALS = 1_000

RECORD = "checkpoint"
"""The name of the durable record."""


class Barrier(NamedTuple):
    """A checkpoint as it travels; `channel` is the upstream task that sent it."""

    channel: tuple[str, int]
    checkpoint: Checkpoint


class CheckpointReport(NamedTuple):
    """What a bolt task tells the coordinator."""

    task: int
    checkpoint: Checkpoint
    done: bool


class Links(NamedTuple):
    """A bolt task's place among the checkpoints: who sends them to it, to whom it sends them, and where it reports."""

    channels: frozenset[tuple[str, int]]
    downstream: list[deque[Any]]
    reports: deque[Any]


def links_of(topology: Topology, component: str, inboxes: dict[str, list[deque[Any]]], reports: deque[Any]) -> Links:
    """Return the links of a bolt's tasks."""
    channels: set[tuple[str, int]] = set()
    for found in topology.component(component).inputs:
        upstream = topology.component(found.component)
        channels |= {COORDINATOR} if upstream.is_spout else {(upstream.id, at) for at in range(upstream.parallelism)}
    readers = [bolt.id for bolt in topology.bolts if any(found.component == component for found in bolt.inputs)]
    return Links(frozenset(channels), [inbox for id in readers for inbox in inboxes[id]], reports)


class Gate:
    """In front of one bolt task: tuples and barriers go in as they come, out of it as the checkpoint wants them."""

    def __init__(self, task: Task, links: Links) -> None:
        self._task = task
        self._links = links
        self._barrier = AlignedBarrier(links.channels)
        self._channels = links.channels

    def take(self, message: Any) -> None:
        """Take one message of the inbox."""
        if type(message) is Barrier:
            effects = self._barrier.arrived(message.channel, message.checkpoint, message)
        elif message._origin.component == SYSTEM:
            self._task.handle(message)  # a tick comes from no task
            return
        else:
            effects = self._barrier.offer(self._channel(message), message)
        for effect in effects:
            if isinstance(effect, Delivered):
                self._task.handle(effect.message)
            elif isinstance(effect, Aligned):
                self._task.checkpoint(effect.checkpoint)
            # What is superseded is nobody's any more: the coordinator waits for the newer attempt.

    def waiting(self) -> list[Delivery]:
        """Return the tuples that are held back."""
        return [message for message in self._barrier.waiting() if type(message) is not Barrier]

    def pass_on(self, checkpoint: Checkpoint) -> None:
        """Send the checkpoint on, and report it as done."""
        context = self._task.context
        for inbox in self._links.downstream:
            inbox.append(Barrier((context.component, context.task_index), checkpoint))
        self._links.reports.append(CheckpointReport(self._task.id, checkpoint, True))

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Report that the checkpoint cannot be done."""
        self._links.reports.append(CheckpointReport(self._task.id, checkpoint, False))

    def _channel(self, message: Delivery) -> tuple[str, int]:
        channel = (message._origin.component, message._origin.task)
        return channel if channel in self._channels else COORDINATOR


class CheckpointTask(Task):
    """The coordinator. `roots` are the inboxes of the bolt tasks that read a spout, `tasks` the ids of all bolt tasks.

    `rollbacks` counts those that are done. There may be as many refusals without a commit as a message has attempts, and no more
    than 1,000: who asks for no limit of attempts does not ask for a run that never ends.
    """

    def __init__(
        self,
        hub: Router,
        context: TaskContext,
        id: int,
        inbox: deque[Any],
        provider: StateProvider,
        roots: list[deque[Any]],
        tasks: Iterable[int],
    ) -> None:
        super().__init__(hub, context, id, inbox)
        self.provider = provider
        self.spout = CheckpointSpout(
            context.config.state_checkpoint_interval_ms, CheckPointState.of(provider.record(RECORD))
        )
        self._roots = roots
        self._tasks = frozenset(tasks)
        self._missing: set[int] = set()
        self._refusals = 0
        self.rollbacks = 0

    @property
    def busy(self) -> bool:
        """Whether a checkpoint, or a recovery, is under way."""
        return self.spout.waits_for is not None

    def open(self) -> None:
        self._perform(self.spout.start(self.hub.now_ms))

    def request(self) -> None:
        """Begin a checkpoint now, or as soon as what is under way is done."""
        self._perform(self.spout.request(self.hub.now_ms))

    def handle(self, message: CheckpointReport) -> None:
        if message.checkpoint != self.spout.waits_for:
            return
        if not message.done:
            self._refused(message.checkpoint)
            self._perform(self.spout.fail(message.checkpoint, self.hub.now_ms))
            return
        self._missing.discard(message.task)
        if self._missing:
            return
        self._perform(self.spout.ack(message.checkpoint, self.hub.now_ms))
        if message.checkpoint.action is CheckpointAction.COMMIT:
            self.hub.result.checkpoints += 1
            self._refusals = 0
        self.rollbacks += message.checkpoint.action is CheckpointAction.ROLLBACK

    def tick(self) -> None:
        self._perform(self.spout.tick(self.hub.now_ms))

    def next_deadline_ms(self) -> int | None:
        return self.spout.next_deadline_ms()

    def _refused(self, checkpoint: Checkpoint) -> None:
        """Take note of a refusal. Raises CheckpointError when there were as many in a row as a message has attempts, or 1,000."""
        self._refusals += 1
        limit = self.context.config.max_attempts
        if self._refusals >= (limit or _MOST_REFUSALS):
            allowed = "there may be without a limit of attempts" if limit is None else "windowing.max.attempts allows"
            raise CheckpointError(
                f"checkpoint {checkpoint.txid} was refused at {checkpoint.action.name}, which makes {self._refusals} refusals "
                f"without a commit, as many as {allowed}; result.errors has what the hooks raised: repair that, and start again; "
                "the states are those of the last commit"
            )

    def _perform(self, effects: Iterable[SpoutEffect]) -> None:
        for effect in effects:
            if isinstance(effect, EmitCheckpoint):
                self._missing = set(self._tasks)
                for inbox in self._roots:
                    inbox.append(Barrier(COORDINATOR, effect.checkpoint))
            else:
                self.provider.save_record(RECORD, effect.record.plain())


# -- CheckpointDriver ------------------------------------------------------------------------------------------------------------


class CheckpointedTask(Protocol):
    """What a checkpoint prepares, commits, rolls back: a key-value state, a window on disk."""

    def prepare_commit(self, txid: int) -> None: ...
    def commit(self, txid: int) -> None: ...
    def rollback(self) -> None: ...


class Keeping(Protocol):
    """What a checkpointed task does by itself."""

    def take(self, message: Delivery) -> None:
        """Hand a tuple to the bolt, or to its windows."""

    def hook(self, method: str, *arguments: int) -> None:
        """Call a method that the bolt may have."""

    def init(self, txid: int) -> None:
        """Begin, at the start and after a rollback, with the states of checkpoint `txid`."""


class CheckpointDriver:
    """The states of one task, in the order in which they are prepared and committed, and the tuples that wait for that."""

    def __init__(self, task: Task, keeping: Keeping, links: Links) -> None:
        self.gate = Gate(task, links)
        self.executor = StatefulBoltExecutor()
        self.states: list[CheckpointedTask] = []
        self._task = task
        self._keeping = keeping

    @property
    def initialised(self) -> bool:
        """Whether the task has its states."""
        return self.executor.initialised

    def execute(self, message: Delivery) -> None:
        """Take a tuple; the task gets it now, or as soon as it has its states."""
        self._perform(self.executor.execute(message))

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Do what an aligned checkpoint says."""
        self._perform(self.executor.checkpoint(checkpoint))

    def ack(self, message: Delivery) -> None:
        """Take note of an ack; it goes out when the checkpoint that is prepared next commits."""
        self.executor.acked(message)

    def fail(self, message: Delivery) -> None:
        """Let a fail go out now."""
        self._perform((self.executor.failed(message),))

    def is_open(self, message: Delivery) -> bool:
        """Whether the tuple was taken and neither acked nor failed, nor taken back by a rollback."""
        return self.executor.is_open(message)

    def _perform(self, effects: Iterable[StatefulEffect]) -> None:
        for effect in effects:
            self._perform_one(effect)

    def _perform_one(self, effect: StatefulEffect) -> None:
        if isinstance(effect, ExecuteTuple):
            self._keeping.take(effect.tuple)
        elif isinstance(effect, Hook):
            self._call(effect)
        elif isinstance(effect, Init):
            self._keeping.init(effect.txid)
        elif isinstance(effect, Prepare):
            for state in self.states:
                state.prepare_commit(effect.txid)
        elif isinstance(effect, CommitState):
            for state in self.states:
                state.commit(effect.txid)
        elif isinstance(effect, Rollback):
            for state in self.states:
                state.rollback()
        elif isinstance(effect, PassOn):
            self.gate.pass_on(effect.checkpoint)
        elif isinstance(effect, Refuse):
            self.gate.refuse(effect.checkpoint)
        else:
            self._settle(effect)

    def _call(self, hook: Hook) -> None:
        """Call a hook; a FailedException refuses the checkpoint, and is told whoever looks at the result."""
        try:
            self._keeping.hook(hook.method, *hook.arguments)
        except BoltError as problem:
            if not isinstance(problem.__cause__, FailedException):
                raise
            context = self._task.context
            self._task.hub.report(context.component, context.task_index, problem)
            self.executor.refused()

    def _settle(self, effect: ReleaseAcks | FailTuples) -> None:
        settle = self._task.hub.ack if isinstance(effect, ReleaseAcks) else self._task.hub.fail
        for message in effect.tuples:
            settle(message._anchors, self._task.context.component)

    def held(self) -> list[Any]:
        """Return the tuples that wait: for the first state, for the bolt, for a commit."""
        return self.executor.tuples()


# -- StatefulBoltTask ------------------------------------------------------------------------------------------------------------


class StatefulBoltTask(BoltTask):
    """One task of a bolt with `init_state`, whether it acks by itself or not."""

    def __init__(
        self,
        hub: Router,
        context: TaskContext,
        id: int,
        inbox: deque[Any],
        outbox: Outbox,
        component: Component,
        tick_ms: int | None,
        links: Links,
        state: KeyValueState,
    ) -> None:
        super().__init__(hub, context, id, inbox, outbox, component, tick_ms)
        self.keeper = CheckpointDriver(self, self, links)
        self.keeper.states.append(state)
        self.gate = self.keeper.gate
        self.state = state
        self._by_itself = component.kind is ComponentKind.BOLT
        self._prepared = False

    def collector(self) -> BoltCollector | None:
        return BoltCollector(self) if self._by_itself else None

    # -- what comes ----------------------------------------------------------------------------------------------------

    def handle(self, message: Delivery) -> None:
        if message._origin.component != SYSTEM:
            self.keeper.execute(message)
        elif self.keeper.initialised:
            self.take(message)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self.keeper.checkpoint(checkpoint)

    def ack(self, message: Delivery) -> None:
        """Take note of the bolt's ack; it goes out when the checkpoint commits."""
        if message._origin.component != SYSTEM:
            self.keeper.ack(message)

    def fail(self, message: Delivery) -> None:
        """Let the bolt's fail go out now."""
        if message._origin.component != SYSTEM:
            self.keeper.fail(message)

    def is_settled(self, message: Delivery) -> bool:
        return not self.keeper.is_open(message)

    # -- what the task asks for ---------------------------------------------------------------------------------------

    def take(self, message: Delivery) -> None:
        """Call the bolt."""
        if self._by_itself:
            self.attempt(message)
        else:
            super().handle(message)

    def hook(self, method: str, *arguments: int) -> None:
        """Call a method that the bolt may have."""
        self.caller.hook(method, *arguments)

    def init(self, txid: int) -> None:
        """Hand the bolt its state as of `txid`, and prepare it the first time."""
        self.state.require(txid)
        self.caller.hook("init_state", self.state)
        if not self._prepared:
            self._prepared = True
            self.caller.prepare(self.context, self.collector())


# -- windows on disk -------------------------------------------------------------------------------------------------------------


class CheckpointedWindowTask(WindowedBoltTask):
    """What both share: a CheckpointDriver, and the state of a bolt that has one."""

    def __init__(
        self,
        *place: Any,
        executor: WindowedBoltExecutor,
        links: Links,
        state: KeyValueState | None,
        recovery: WindowRecovery | None = None,
    ) -> None:
        super().__init__(*place, executor=executor, recovery=recovery)
        self.keeper = CheckpointDriver(self, self, links)
        self.gate = self.keeper.gate
        self.state = state
        self._opened = False
        if state is not None:
            self.keeper.states.append(state)

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.windows.timer.start(self.hub.now_ms)

    def handle(self, message: Delivery) -> None:
        self.keeper.execute(message)

    def take(self, message: Delivery) -> None:
        """Take a tuple that the CheckpointDriver has noted."""
        super().handle(message)

    def hook(self, method: str, *arguments: int) -> None:
        """Call a method that the bolt may have."""
        self.windows.runner.hook(method, *arguments)

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
            self.windows.open(self.context, self.state)
        elif self.state is not None:
            self.windows.runner.hook("init_state", self.state)

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
            f"the windows of bolt {self.context.component!r} were drained in the run that wrote the checkpoint, so whatever is "
            "new is late, with the reason closed; begin with new states, or end a run that is to go on with run(drain=False)"
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


class RecoveredWindowTask(CheckpointedWindowTask):
    """One task of a stateful windowed bolt in memory; `rows` is where a checkpoint has its windows.

    Raises ConfigError for a bolt without message_id. What does not come again in time is reported as an error of the bolt.
    """

    def __init__(self, *place: Any, executor: WindowedBoltExecutor, links: Links, state: Any, rows: Any) -> None:
        context: TaskContext = place[1]
        self.recovery = WindowRecovery(executor, _plain, partial(_tuple, task_ids=context.task_ids))
        super().__init__(*place, executor=executor, links=links, state=state, recovery=self.recovery)
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
            self.perform(self.windows.perform(self.recovery.tick(self.hub.now_ms)))
        super().tick()

    def next_deadline_ms(self) -> int | None:
        awaited_ms, turn_ms = self.recovery.next_deadline_ms(), super().next_deadline_ms()
        if awaited_ms is None:
            return turn_ms
        return awaited_ms if turn_ms is None else min(awaited_ms, turn_ms)

    def offered(self, arrived: list[Delivery]) -> tuple[Sequence[Any], list[MessageChannel] | None]:
        return arrived, list(map(_channel, arrived))

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
            f"bolt {self.context.component!r} waited {ms} ms after its restart for {len(effect.identities)} tuples that were in "
            f"its windows, and they did not come again: {quote(effect.identities[:5])}; no window shows them any more; give "
            "recovery_timeout= more time, or use a source that sends again what was not acked"
        )


class PagedWindowTask(CheckpointedWindowTask):
    """One task of a windowed bolt whose tuples lie in pages."""

    fail_target = FailTarget.RUN

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
