"""StatefulBoltTask: a bolt with a state that outlives it. Its tuples are acked when the checkpoint that holds them commits.

The machine (transactions/stateful.py) says what is to be done in which order; here it is done: the bolt's hooks and `execute`
are called, the state is prepared, committed, rolled back, acks and fails go out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from windowing.runtime.checkpoints import Gate, Links
from windowing.runtime.hub import Delivery, Hub, Outbox
from windowing.runtime.tasks import SYSTEM, BoltCollector, BoltTask
from windowing.topology.context import TaskContext
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component
from windowing.transactions.checkpoint import Checkpoint
from windowing.transactions.state import KeyValueState
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

__all__ = ["StatefulBoltTask"]


class StatefulBoltTask(BoltTask):
    """One task of a bolt with `init_state`, whether it acks by itself or not."""

    def __init__(
        self,
        hub: Hub,
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
        self.gate: Gate = Gate(self, links)
        self.executor = StatefulBoltExecutor()
        self.state = state
        self._by_itself = component.kind is ComponentKind.BOLT
        self._prepared = False

    def collector(self) -> BoltCollector | None:
        return BoltCollector(self) if self._by_itself else None

    # -- what comes ----------------------------------------------------------------------------------------------------

    def handle(self, message: Delivery) -> None:
        if message._origin.component != SYSTEM:
            self._perform(self.executor.execute(message))
        elif self.executor.initialised:
            self._call(message)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        self._perform(self.executor.checkpoint(checkpoint))

    def ack(self, message: Delivery) -> None:
        """Take note of the bolt's ack; it goes out when the checkpoint commits."""
        if message._origin.component != SYSTEM:
            self.executor.acked(message)

    def fail(self, message: Delivery) -> None:
        """Let the bolt's fail go out now."""
        if message._origin.component != SYSTEM:
            self._perform((self.executor.failed(message),))

    def is_settled(self, message: Delivery) -> bool:
        return not self.executor.is_open(message)

    # -- what is done --------------------------------------------------------------------------------------------------

    def _call(self, message: Delivery) -> None:
        if self._by_itself:
            self.attempt(message)
        else:
            super().handle(message)

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)

    def _perform_one(self, effect: Effect) -> None:
        if isinstance(effect, Execute):
            self._call(effect.tuple)
        elif isinstance(effect, Hook):
            self.caller.hook(effect.method, *effect.arguments)
        elif isinstance(effect, Init):
            self._init(effect.txid)
        elif isinstance(effect, Prepare):
            self.state.prepare_commit(effect.txid)
        elif isinstance(effect, Commit):
            self.state.commit(effect.txid)
        elif isinstance(effect, Rollback):
            self.state.rollback()
        elif isinstance(effect, Ack):
            for message in effect.tuples:
                self.hub.ack(message._anchors, self.context.component)
        elif isinstance(effect, Fail):
            for message in effect.tuples:
                self.hub.fail(message._anchors, self.context.component)
        elif isinstance(effect, PassOn):
            self.gate.pass_on(effect.checkpoint)
        else:
            assert isinstance(effect, Refuse)
            self.gate.refuse(effect.checkpoint)

    def _init(self, txid: int) -> None:
        self.state.require(txid)
        self.caller.hook("init_state", self.state)
        if not self._prepared:
            self._prepared = True
            self.caller.prepare(self.context, self.collector())
