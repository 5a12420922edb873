"""StatefulBoltTask: a bolt with a state that outlives it. Its tuples are acked when the checkpoint that holds them commits."""

from __future__ import annotations

from collections import deque
from typing import Any

from windowing.runtime.checkpoints import Links
from windowing.runtime.hub import Delivery, Hub, Outbox
from windowing.runtime.keeper import Keeper
from windowing.runtime.tasks import BoltCollector, BoltTask
from windowing.topology.context import TaskContext
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component
from windowing.topology.tuples import SYSTEM
from windowing.transactions.checkpoint import Checkpoint
from windowing.transactions.state import KeyValueState

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
        self.keeper = Keeper(self, self, links)
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

    # -- what the keeper asks for --------------------------------------------------------------------------------------

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
