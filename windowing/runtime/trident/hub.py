"""What the tasks of a Trident cluster share: messages, trees, and what batches gave before they are committed.

    master --$batch--> coordinator --metadata--> emitter --tuples, reports--> group task --> group task
      |    --$commit-> committer emitters, group tasks that commit                    |
      |    --$success> all                                                            +-- rows of sinks: held here until the
      +<------------- acker: the tree of each $batch and $commit was acked, or failed      commit of their attempt is acked

Law: everything between tasks goes through inboxes, first in, first out; a row of a sink comes out once, with its batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windowing.acking.anchors import Anchors
from windowing.errors import shown
from windowing.runtime.hub import INIT, Hub, ReportedError
from windowing.topology.trident.coordination import TaskId
from windowing.topology.trident.fields import Row
from windowing.topology.trident.outlets import Outlet
from windowing.topology.trident.plan import Exchange, TridentPlan
from windowing.topology.trident.processors import Batch
from windowing.transactions import batch_effects as effects
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.spouts import SpoutBatch

__all__ = [
    "Begun",
    "Commit",
    "DeadBatch",
    "Emission",
    "Piece",
    "Reported",
    "Sending",
    "Success",
    "TridentHub",
    "TridentResult",
    "Tuples",
]


class Piece(NamedTuple):
    """What travels over an exchange, and from which task: rows, or (rows None) what all tasks of a window are told of the time."""

    exchange: Exchange
    task: int
    rows: list[Row] | None
    largest: dict[str | None, int] | None


class Begun(NamedTuple):
    """A `$batch`, to the coordinator of a spout."""

    attempt: TransactionAttempt
    after: TransactionAttempt | None
    skip: str | None
    anchors: Anchors


class Emission(NamedTuple):
    """What a spout's tasks are to emit."""

    batch: SpoutBatch
    skip: str | None
    anchors: Anchors


class Tuples(NamedTuple):
    """Pieces of one upstream task; `first` is the number of the first."""

    batch: effects.Batch
    sender: TaskId
    first: int
    pieces: Sequence[Piece]


class Reported(NamedTuple):
    """What an upstream task says: so many pieces, and that was all."""

    batch: effects.Batch
    sender: TaskId
    sent: int
    anchors: Anchors


class Commit(NamedTuple):
    """A `$commit`."""

    batch: effects.Batch
    anchors: Anchors


class Success(NamedTuple):
    """A `$success`."""

    batch: effects.Batch


class DeadBatch(NamedTuple):
    """Rows of a batch that failed too often: one task's part of it."""

    txid: int
    stream: str
    task: int
    cause: str
    rows: list[Row]


@dataclass(slots=True)
class TridentResult:
    """What came of a run so far.

    sinks: the rows of each sink that no function takes, of committed batches only, in the order of their txids. batches: how many
    were committed. failures: attempts that failed, those not counted that only rested on one. dead_letters: what was skipped.
    errors: what spouts and operations reported, by `report_error` or a ReportedFailedException, in attempts that failed too.
    states: what `run_trident` found in the states at the end, by id: the items of a map, or the value.
    """

    sinks: dict[str, list[Row]] = field(default_factory=dict)
    batches: int = 0
    failures: int = 0
    dead_letters: list[DeadBatch] = field(default_factory=list)
    errors: list[ReportedError] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, sink: str) -> list[Row]:
        """Return the rows of a sink."""
        if sink not in self.sinks:
            raise KeyError(f"{shown(sink)} is no sink whose rows are kept, those are {', '.join(self.sinks) or 'none'}")
        return self.sinks[sink]


class TridentHub(Hub):
    """The time, the ids and the acker's inbox of a Hub, and the batches that are under way.

    stamps: of each txid what its tasks are told (its time, whether it drains). answers: of requests that are under way.
    """

    __slots__ = ("_causes", "_dead", "_rows", "answers", "inboxes", "stamps", "trident")

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ackers=1)
        self.inboxes: dict[TaskId, deque[Any]] = {}
        self.stamps: dict[int, tuple[int, bool]] = {}
        self.answers: dict[effects.Batch, list[Row]] = {}
        self.trident = TridentResult()
        self._causes: dict[int, str] = {}
        self._rows: dict[TransactionAttempt, dict[str, list[Row]]] = {}
        self._dead: dict[TransactionAttempt, list[DeadBatch]] = {}

    @property
    def errors(self) -> list[ReportedError]:
        return self.trident.errors

    def batch(self, attempt: TransactionAttempt) -> Batch:
        """Return what processors are told of a batch. One that is over has no stamp, and what comes of it does not count."""
        now_ms, drains = self.stamps.get(attempt.txid, (self.now_ms, False))
        return Batch(attempt, now_ms, as_of=attempt.txid - 1, drain=drains)

    # -- trees ---------------------------------------------------------------------------------------------------------

    def plant(self, owner: int, posts: Sequence[Callable[[Anchors], None]]) -> int:
        """Begin a tree with one message for each of `posts`; its end is told to the task `owner`. Return the root."""
        root, xor = self.edge(), 0
        for post in posts:
            edge = self.edge()
            xor ^= edge
            post(Anchors({root: edge}))
        self.tell(root, (INIT, root, xor, owner))
        self._causes[root] = ""
        return root

    def fell(self, root: int) -> str:
        """Take note that a tree has ended; return why it failed, if somebody said it."""
        return self._causes.pop(root)

    def refuse(self, anchors: Anchors, component: str, cause: str) -> None:
        """Settle a message: its tree fails, and this is why; the first cause of a tree is kept."""
        for root in anchors.edges:
            if self._causes.get(root) == "":
                self._causes[root] = cause
        self.fail(anchors, component)

    # -- what batches gave ---------------------------------------------------------------------------------------------

    def hold(self, attempt: TransactionAttempt, sinks: dict[str, list[Row]]) -> None:
        """Keep rows of sinks until their attempt is committed."""
        held = self._rows.setdefault(attempt, {})
        for name, rows in sinks.items():
            held.setdefault(name, []).extend(rows)

    def bury(self, attempt: TransactionAttempt, dead: DeadBatch) -> None:
        """Keep the dead letters of an attempt until it is committed."""
        self._dead.setdefault(attempt, []).append(dead)

    def release(self, attempt: TransactionAttempt) -> dict[str, list[Row]]:
        """Return the rows of an attempt that is committed, and forget those of other attempts at it."""
        rows = self._rows.get(attempt, {})
        self.trident.dead_letters += self._dead.get(attempt, [])
        self._rows = {each: held for each, held in self._rows.items() if each.txid > attempt.txid}
        self._dead = {each: held for each, held in self._dead.items() if each.txid > attempt.txid}
        return rows


class Sending:
    """What one task sends in one attempt: rows over its exchanges, and at the end what windows are told of the time."""

    def __init__(
        self,
        hub: TridentHub,
        plan: TridentPlan,
        me: TaskId,
        outlets: Sequence[Outlet],
        batch: effects.Batch,
        facts: Batch,
        number: Callable[[TaskId], int],
    ) -> None:
        self._hub, self._plan, self._me, self._batch, self._number = hub, plan, me, batch, number
        self._outlets = {
            outlet.exchange.id: (outlet.exchange, outlet.start_batch(facts))
            for outlet in outlets
            if outlet.exchange.batch_group == batch.group
        }

    def rows(self, exchange: int, rows: list[Row]) -> None:
        """Send rows over an exchange."""
        found, outlet = self._outlets[exchange]
        for task, part in outlet.route(rows).items():
            self._post((found.target_group, task), Piece(found, self._me[1], part, None))

    def everywhere(self, rows: list[Row]) -> None:
        """Send rows over all exchanges, as a spout does."""
        for exchange in self._outlets:
            self.rows(exchange, rows)

    def tell_time(self) -> None:
        """Tell all tasks of each window what was sent to any of them."""
        for exchange, outlet in self._outlets.values():
            for task in range(self._plan.group(exchange.target_group).parallelism if outlet.largest else 0):
                self._post((exchange.target_group, task), Piece(exchange, self._me[1], None, outlet.largest))

    def _post(self, target: TaskId, piece: Piece) -> None:
        self._hub.inboxes[target].append(Tuples(self._batch, self._me, self._number(target), (piece,)))
