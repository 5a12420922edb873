"""StatefulBoltExecutor: in which order a stateful task does what a checkpoint says, and when its acks take effect.

    tuple --execute--> open --ack by the bolt--> acked --PREPARE--> prepared --COMMIT--> Ack
                        |                          |                   |
                        +---------- ROLLBACK ------+-------------------+-----------> Fail, so that its spout sends it again

    INITSTATE  Init, then the tuples that came before it              PREPARE   Hook(pre_prepare), Prepare
    ROLLBACK   Hook(pre_rollback), Rollback, Fail, Init               COMMIT    Hook(pre_commit), Commit, Ack

Laws
- An ack goes out when the state that the tuple has changed is committed, not before: whatever is acked is in the committed state.
- After a rollback the bolt takes its state anew (in Storm it goes on with what it had in memory).
- A tuple is settled once. One that the bolt fails is failed at once; what it had changed by then stays.
- What cannot be done now, or a hook refuses, is refused: the coordinator hears it, and recovers. Nothing of it is done then.
- A commit that comes again is passed on, and neither hooks nor acks are repeated.

Effects come as an iterator: perform each before the next is taken, for a hook may ack tuples. Source: Storm's
`StatefulBoltExecutor`.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator
from typing import Any, NamedTuple

from windowing.errors import AckError, shown
from windowing.transactions.checkpoint import Action, Checkpoint

__all__ = [
    "Ack",
    "Commit",
    "Execute",
    "Fail",
    "Hook",
    "Init",
    "PassOn",
    "Prepare",
    "Refuse",
    "Rollback",
    "StatefulBoltExecutor",
]


class Execute(NamedTuple):
    """Hand the tuple to the bolt."""

    tuple: Any


class Hook(NamedTuple):
    """Call this method of the bolt, if it has it, with these arguments. FailedException: say so by `refused`."""

    method: str
    arguments: tuple[int, ...]


class Init(NamedTuple):
    """Check that the state is that of `txid`, and hand it to the bolt's `init_state`."""

    txid: int


class Prepare(NamedTuple):
    """`state.prepare_commit(txid)`."""

    txid: int


class Commit(NamedTuple):
    """`state.commit(txid)`."""

    txid: int


class Rollback(NamedTuple):
    """`state.rollback()`."""


class Ack(NamedTuple):
    """Now the acks of these tuples go out."""

    tuples: tuple[Any, ...]


class Fail(NamedTuple):
    """The trees of these tuples fail."""

    tuples: tuple[Any, ...]


class PassOn(NamedTuple):
    """Send the checkpoint to whoever reads from this task, and ack it."""

    checkpoint: Checkpoint


class Refuse(NamedTuple):
    """Fail the checkpoint."""

    checkpoint: Checkpoint


Effect = Execute | Hook | Init | Prepare | Commit | Rollback | Ack | Fail | PassOn | Refuse


class StatefulBoltExecutor:
    """One task. `execute` and `checkpoint` come from its barrier, `acked` and `failed` from the bolt.

    A tuple here is any value that can be told from others by its hash, and is not compared by content. Cost: O(1) a tuple;
    between two commits all executed tuples are kept.

    >>> task = StatefulBoltExecutor()
    >>> list(task.execute("a")), [type(e).__name__ for e in task.checkpoint(Checkpoint(1, -1, Action.INITSTATE))]
    ([], ['Init', 'Execute', 'PassOn'])
    >>> task.acked("a")
    >>> [type(e).__name__ for e in task.checkpoint(Checkpoint(1, 0, Action.PREPARE))]
    ['Hook', 'Prepare', 'PassOn']
    >>> [type(e).__name__ for e in task.checkpoint(Checkpoint(1, 0, Action.COMMIT))]
    ['Hook', 'Commit', 'Ack', 'PassOn']
    """

    def __init__(self) -> None:
        self.initialised = False
        self._early: list[Any] = []
        self._open: dict[Hashable, None] = {}
        self._acked: dict[Hashable, None] = {}
        self._prepared: tuple[Any, ...] = ()
        self._preparing: int | None = None
        self._refused = False

    @property
    def held(self) -> int:
        """How many tuples wait: for the first state, for the bolt's ack, or for a commit."""
        return len(self._early) + len(self._open) + len(self._acked) + len(self._prepared)

    def tuples(self) -> list[Any]:
        """Return the tuples that wait, whatever for."""
        return [*self._early, *self._open, *self._acked, *self._prepared]

    def execute(self, tuple: Any) -> Iterator[Effect]:
        """Take a tuple; it waits until the task has its state."""
        if not self.initialised:
            self._early.append(tuple)
            return iter(())
        self._open[tuple] = None
        return iter((Execute(tuple),))

    def acked(self, tuple: Any) -> None:
        """Take note that the bolt is done with a tuple. Raises AckError for one that is not open."""
        self._settle(tuple)
        self._acked[tuple] = None

    def failed(self, tuple: Any) -> Fail:
        """Take note that the bolt failed a tuple, which takes effect at once. Raises AckError for one that is not open."""
        self._settle(tuple)
        return Fail((tuple,))

    def is_open(self, tuple: Any) -> bool:
        """Whether the tuple was handed to the bolt, and neither settled by it nor taken back by a rollback."""
        return tuple in self._open

    def refused(self) -> None:
        """Take note that the hook raised FailedException; while Hook is performed."""
        self._refused = True

    def _settle(self, tuple: Any) -> None:
        if tuple not in self._open:
            raise AckError(
                f"{shown(tuple)} was acked or failed twice, or after a rollback had failed it; settle each tuple once, and "
                "forget the tuples at hand in pre_rollback"
            )
        del self._open[tuple]

    def checkpoint(self, checkpoint: Checkpoint) -> Iterator[Effect]:
        """Do what an aligned checkpoint says."""
        do = {
            Action.INITSTATE: self._initialise,
            Action.PREPARE: self._prepare,
            Action.COMMIT: self._commit,
            Action.ROLLBACK: self._roll_back,
        }[checkpoint.action]
        if checkpoint.action is Action.PREPARE and not self.initialised:
            # The task began in the middle of a checkpoint: the recovery that follows gives it its state.
            yield Refuse(checkpoint)
            return
        self._refused = False
        yield from do(checkpoint.txid)
        yield Refuse(checkpoint) if self._refused else PassOn(checkpoint)

    def _ask(self, method: str, *arguments: int) -> Generator[Effect, None, bool]:
        """Call a hook; return whether it agreed."""
        yield Hook(method, arguments)
        return not self._refused

    def _initialise(self, txid: int) -> Iterator[Effect]:
        if self.initialised:
            return
        yield Init(txid)
        self.initialised = True
        early, self._early = self._early, []
        for tuple in early:
            yield from self.execute(tuple)

    def _prepare(self, txid: int) -> Iterator[Effect]:
        if (yield from self._ask("pre_prepare", txid)):
            yield Prepare(txid)
            self._prepared = (*self._prepared, *self._acked)
            self._acked, self._preparing = {}, txid

    def _commit(self, txid: int) -> Iterator[Effect]:
        if self.initialised and self._preparing != txid:
            return
        if self.initialised and not (yield from self._ask("pre_commit", txid)):
            return
        yield Commit(txid)
        prepared, self._prepared, self._preparing = self._prepared, (), None
        if prepared:
            yield Ack(prepared)

    def _roll_back(self, txid: int) -> Iterator[Effect]:
        if not self.initialised:
            yield Rollback()
            return
        if not (yield from self._ask("pre_rollback")):
            return
        yield Rollback()
        lost = (*self._prepared, *self._acked, *self._open)
        self._prepared, self._acked, self._open, self._preparing = (), {}, {}, None
        if lost:
            yield Fail(lost)
        yield Init(txid - 1)

    def check(self) -> None:
        """Assert what "correct" means."""
        # Tuples wait for the first state, or there is one.
        assert not (self.initialised and self._early)
        assert self.initialised or not (self._open or self._acked or self._prepared)
        # Nothing is both.
        assert len({*self._open, *self._acked, *self._prepared}) == self.held - len(self._early)
        # Acks wait for a commit only between a prepare and it.
        assert self._preparing is not None or not self._prepared
