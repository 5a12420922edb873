"""Keeper: does for one task what a StatefulBoltExecutor says: states are prepared and committed, acks wait for the commit.

    gate --tuple--> execute --> task.take(tuple) ... task calls ack(tuple) or fail(tuple), at once or much later
         --checkpoint---------> hooks, states, acks and fails, in the machine's order; then the checkpoint is passed on

Law: whatever is acked is in the committed states of the task, or came after them and is failed by a rollback.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from windowing.errors import BoltError, FailedException
from windowing.runtime.checkpoints import Gate, Links
from windowing.runtime.hub import Delivery
from windowing.runtime.tasks import Task
from windowing.transactions.checkpoint import Checkpoint
from windowing.transactions.stateful import (
    Ack,
    Commit,
    Effect,
    Execute,
    Fail,
    Hook,
    Init,
    PassOn,
    Prepare,
    Refuse,
    Rollback,
    StatefulBoltExecutor,
)

__all__ = ["Keeper", "Keeping", "Kept"]


class Kept(Protocol):
    """What a checkpoint prepares, commits, rolls back: a key-value state, a window on disk."""

    def prepare_commit(self, txid: int) -> None: ...
    def commit(self, txid: int) -> None: ...
    def rollback(self) -> None: ...


class Keeping(Protocol):
    """What a task with a Keeper does by itself."""

    def take(self, message: Delivery) -> None:
        """Hand a tuple to the bolt, or to its windows."""

    def hook(self, method: str, *arguments: int) -> None:
        """Call a method that the bolt may have."""

    def init(self, txid: int) -> None:
        """Begin, at the start and after a rollback, with the states of checkpoint `txid`."""


class Keeper:
    """The states of one task, in the order in which they are prepared and committed, and the tuples that wait for that."""

    def __init__(self, task: Task, keeping: Keeping, links: Links) -> None:
        self.gate = Gate(task, links)
        self.executor = StatefulBoltExecutor()
        self.states: list[Kept] = []
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

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)

    def _perform_one(self, effect: Effect) -> None:
        if isinstance(effect, Execute):
            self._keeping.take(effect.tuple)
        elif isinstance(effect, Hook):
            self._call(effect)
        elif isinstance(effect, Init):
            self._keeping.init(effect.txid)
        elif isinstance(effect, Prepare):
            for state in self.states:
                state.prepare_commit(effect.txid)
        elif isinstance(effect, Commit):
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

    def _settle(self, effect: Ack | Fail) -> None:
        settle = self._task.hub.ack if isinstance(effect, Ack) else self._task.hub.fail
        for message in effect.tuples:
            settle(message._anchors, self._task.context.component)

    def held(self) -> list[Any]:
        """Return the tuples that wait: for the first state, for the bolt, for a commit."""
        return self.executor.tuples()
