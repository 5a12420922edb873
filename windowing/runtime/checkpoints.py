"""Checkpoints in a cluster: who begins them, how they travel, and where each task cuts its input.

    CheckpointTask --Barrier--> bolts that read spouts --Barrier--> bolts that read those --> ...
          ^                            |                                  |
          +--------- Report -----------+---------- Report ----------------+      all bolt tasks have reported: acked

A bolt of a topology with state has a Gate: it holds tuples back from a barrier on, until each upstream task has shown it. So what
a checkpoint holds is one cut through the whole topology, the same for every task.

Laws: every bolt task reports each checkpoint once, as done or as refused; one refusal fails it, and the coordinator rolls back, or
commits again; a state's txid is that of the record, or nothing runs.
Source: Storm's `CheckpointSpout` and `CheckpointTupleForwarder`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from windowing.errors import CheckpointError
from windowing.runtime.hub import Delivery, Hub
from windowing.runtime.tasks import Task
from windowing.topology.context import TaskContext
from windowing.topology.plan import Topology
from windowing.topology.tuples import SYSTEM
from windowing.transactions.barriers import Aligned, AlignedBarrier, Delivered
from windowing.transactions.checkpoint import Action, Checkpoint, CheckpointSpout, CheckPointState, Emit
from windowing.transactions.checkpoint import Effect as SpoutEffect
from windowing.transactions.state import StateProvider

__all__ = ["COORDINATOR", "RECORD", "Barrier", "CheckpointTask", "Gate", "Links", "Report", "links_of"]

COORDINATOR = ("__checkpoint", 0)
"""The channel of the barriers that the coordinator sends, and of what spouts emit: their tuples are cut by those."""

_MOST_REFUSALS = 1_000

RECORD = "checkpoint"
"""The name of the durable record."""


class Barrier(NamedTuple):
    """A checkpoint as it travels; `channel` is the upstream task that sent it."""

    channel: tuple[str, int]
    checkpoint: Checkpoint


class Report(NamedTuple):
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
        self._links.reports.append(Report(self._task.id, checkpoint, True))

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Report that the checkpoint cannot be done."""
        self._links.reports.append(Report(self._task.id, checkpoint, False))

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
        hub: Hub,
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

    def handle(self, message: Report) -> None:
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
        if message.checkpoint.action is Action.COMMIT:
            self.hub.result.checkpoints += 1
            self._refusals = 0
        self.rollbacks += message.checkpoint.action is Action.ROLLBACK

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
            if isinstance(effect, Emit):
                self._missing = set(self._tasks)
                for inbox in self._roots:
                    inbox.append(Barrier(COORDINATOR, effect.checkpoint))
            else:
                self.provider.save_record(RECORD, effect.record.plain())
