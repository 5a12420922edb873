"""Checkpoints of a topology: the barrier of a task, the coordinator, and what a task with a state does for them.

AlignedBarrier: where a checkpoint cuts the input of one task that reads several others.

    channel a  1 2 |P| 3 4          delivered  1 2 5 6    then P    then 3 4
    channel b  5 6 . . . . |P| 7    a is held back from its barrier on, until b has shown it too

What comes before the barrier of every channel is in the checkpoint, and nothing else. (Storm counts the barriers too, but goes on
with tuples from channels that have shown theirs: those are in the state, yet after a failure they come again.)

Laws
- A message is delivered once; messages of one channel stay in order; held ones come out in the order in which they arrived.
- A checkpoint is aligned when every channel has shown it, once.
- A greater attempt ends the alignment of a smaller one, whose barriers count no more (in Storm they do: the next attempt of the
  same txid fires too early). What comes of a smaller attempt later is superseded at once.
- Nothing is held while no checkpoint is being aligned.

Source: Storm's `BaseStatefulBoltExecutor`; the alignment is that of Chandy and Lamport's snapshots, as Flink has it.

CheckpointSpout: when the state of a topology is prepared, committed and rolled back, as a table.

    COMMITTED --interval--> PREPARING --all prepared--> COMMITTING --all committed--> COMMITTED     txid n, n, n
    COMMITTED <--ack-- INITIALISING <--ack-- ROLLING_BACK (a prepare failed) | RECOMMITTING (a commit failed)

Every start begins with a recovery too: what the durable record says was under way is undone (PREPARING) or done to its end
(COMMITTING), then the bolts are told to take their states.

Laws
- `TRANSITIONS` is all that can happen, and `ACTIONS` is what a phase sends and waits for.
- The record is durable before the checkpoint that rests on it is sent: a Save always comes before its Emit.
- A checkpoint is its (attempt, txid, action), and each is sent once: after a failure, and at every start, the attempt is another,
  greater one. An ack or fail of anything else than the one that is waited for changes nothing (in Storm any of them resets the
  progress).
- A txid is committed everywhere before the next is prepared anywhere.

Source: Storm's `CheckpointSpout` and `CheckPointState`.

StatefulBoltExecutor: in which order a stateful task does what a checkpoint says, and when its acks take effect.

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

from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from windowing.errors import AckError, CheckpointError, ConfigError, CorruptStateError, quote

__all__ = [
    "ACTIONS",
    "MIN_INTERVAL_MS",
    "STARTS",
    "TRANSITIONS",
    "Aligned",
    "AlignedBarrier",
    "CheckPointState",
    "Checkpoint",
    "CheckpointAction",
    "CheckpointCause",
    "CheckpointPhase",
    "CheckpointSpout",
    "CheckpointTransition",
    "CommitState",
    "Delivered",
    "EmitCheckpoint",
    "ExecuteTuple",
    "FailTuples",
    "Hook",
    "Init",
    "PassOn",
    "Prepare",
    "Refuse",
    "ReleaseAcks",
    "Rollback",
    "SaveCheckpoint",
    "StatefulBoltExecutor",
    "Superseded",
    "TxState",
    "mermaid",
]


BarrierChannel = Hashable
"""An upstream task, as the driver names it: (component, task), say. Messages of one channel come in order."""


class Delivered(NamedTuple):
    """Execute this message now."""

    channel: BarrierChannel
    message: Any


class Aligned(NamedTuple):
    """Every channel has shown the checkpoint: do what it says, send it on, then ack `messages` (or fail them)."""

    checkpoint: Checkpoint
    messages: tuple[Any, ...]


class Superseded(NamedTuple):
    """These barrier messages count no more: fail them, nobody waits for their ack."""

    messages: tuple[Any, ...]


BarrierEffect = Delivered | Aligned | Superseded


class AlignedBarrier:
    """The inputs of one task: offer every message, perform the effects that come back, in order.

    `channels` are all upstream tasks that send the checkpoint on. Cost: O(1) a message, the held ones are kept in memory.

    >>> from windowing.execution.checkpoints import CheckpointAction
    >>> barrier, prepare = AlignedBarrier(["a", "b"]), Checkpoint(1, 0, CheckpointAction.PREPARE)
    >>> barrier.arrived("a", prepare, "P"), barrier.offer("a", 3), barrier.offer("b", 6)
    ((), (), (Delivered(channel='b', message=6),))
    >>> [type(effect).__name__ for effect in barrier.arrived("b", prepare, "P")]
    ['Aligned', 'Delivered']
    """

    def __init__(self, channels: Iterable[BarrierChannel]) -> None:
        self.channels = frozenset(channels)
        if not self.channels:
            raise ConfigError(
                "a barrier needs at least one upstream task, got none; a task without input has no barrier"
            )
        self._shown: dict[BarrierChannel, Any] = {}
        self._checkpoint: Checkpoint | None = None
        self._done: Checkpoint | None = None
        self._attempt = -1
        self._held: list[tuple[BarrierChannel, Checkpoint | None, Any]] = []

    @property
    def aligning(self) -> Checkpoint | None:
        """The checkpoint that some channels have shown and others not, None between two."""
        return self._checkpoint

    @property
    def held(self) -> int:
        """How many messages are held back."""
        return len(self._held)

    def waiting(self) -> list[Any]:
        """Return the messages that are held back, in order of arrival."""
        return [message for _, _, message in self._held]

    def offer(self, channel: BarrierChannel, message: Any) -> tuple[BarrierEffect, ...]:
        """Take a tuple of a channel."""
        return tuple(self._take(channel, None, message))

    def arrived(self, channel: BarrierChannel, checkpoint: Checkpoint, message: Any) -> tuple[BarrierEffect, ...]:
        """Take the barrier of a channel; `message` is what carries it, and comes back to be acked or failed.

        Raises CheckpointError for a channel that was not declared, and for one that leaves a checkpoint out.
        """
        if channel not in self.channels:
            known = ", ".join(sorted(map(quote, self.channels)))
            raise CheckpointError(
                f"a checkpoint came from {quote(channel)}, but the upstream tasks are {known}; declare all of them"
            )
        if checkpoint.attempt <= self._attempt:
            return tuple(self._take(channel, checkpoint, message))
        self._attempt = checkpoint.attempt
        ended = (Superseded(tuple(self._shown.values())),) if self._shown else ()
        return (*ended, *self._open(), *self._take(channel, checkpoint, message))

    def _take(self, channel: BarrierChannel, checkpoint: Checkpoint | None, message: Any) -> Iterator[BarrierEffect]:
        if checkpoint is not None and (checkpoint.attempt < self._attempt or checkpoint == self._done):
            yield Superseded((message,))
        elif channel in self._shown:
            self._held.append((channel, checkpoint, message))
        elif checkpoint is None:
            yield Delivered(channel, message)
        else:
            yield from self._show(channel, checkpoint, message)

    def _show(self, channel: BarrierChannel, checkpoint: Checkpoint, message: Any) -> Iterator[BarrierEffect]:
        if self._checkpoint not in (None, checkpoint):
            raise CheckpointError(
                f"{quote(channel)} sent {quote(checkpoint)} while {quote(self._checkpoint)} is being aligned, in one attempt; "
                "a channel must pass on every checkpoint, in order"
            )
        self._checkpoint = checkpoint
        self._shown[channel] = message
        if len(self._shown) == len(self.channels):
            self._done = checkpoint
            yield Aligned(checkpoint, tuple(self._shown.values()))
            yield from self._open()

    def _open(self) -> Iterator[BarrierEffect]:
        """Open all channels, and take what was held once more, as if it arrived now."""
        held, self._held = self._held, []
        self._shown, self._checkpoint = {}, None
        for channel, checkpoint, message in held:
            yield from self._take(channel, checkpoint, message)

    def check(self) -> None:
        """Assert what "correct" means."""
        # A checkpoint is being aligned while some channels, but not all, have shown it.
        assert (self._checkpoint is None) == (not self._shown)
        assert len(self._shown) < len(self.channels)
        # Only what came behind a barrier is held.
        assert all(channel in self._shown for channel, _, _ in self._held)
        # No attempt is aligned but the newest.
        assert self._checkpoint is None or self._checkpoint.attempt == self._attempt


# -- CheckpointSpout -------------------------------------------------------------------------------------------------------------


MIN_INTERVAL_MS = 100
_FORMAT = 1


class CheckpointAction(Enum):
    """What a checkpoint tells every stateful task to do."""

    INITSTATE = "initstate"
    PREPARE = "prepare"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class TxState(Enum):
    """How far the last checkpoint is, as the durable record has it."""

    COMMITTED = "committed"
    PREPARING = "preparing"
    COMMITTING = "committing"


class CheckpointPhase(Enum):
    """What the machine is at. The last three are recovery."""

    COMMITTED = "committed"
    PREPARING = "preparing"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling_back"
    RECOMMITTING = "recommitting"
    INITIALISING = "initialising"


class CheckpointCause(Enum):
    """What happens to the machine; ACK and FAIL are those of the checkpoint that it waits for."""

    DUE = "due"
    ACK = "ack"
    FAIL = "fail"


class CheckpointTransition(NamedTuple):
    """What follows: the next phase, how the txid moves, and whether its checkpoint waits for one interval."""

    then: CheckpointPhase
    step: int = 0
    later: bool = False


_IDLE, _PREPARING, _COMMITTING = CheckpointPhase.COMMITTED, CheckpointPhase.PREPARING, CheckpointPhase.COMMITTING
_BACK, _AGAIN, _INIT = CheckpointPhase.ROLLING_BACK, CheckpointPhase.RECOMMITTING, CheckpointPhase.INITIALISING

TRANSITIONS: dict[tuple[CheckpointPhase, CheckpointCause], CheckpointTransition] = {
    (_IDLE, CheckpointCause.DUE): CheckpointTransition(_PREPARING, +1),
    (_PREPARING, CheckpointCause.ACK): CheckpointTransition(_COMMITTING),
    (_PREPARING, CheckpointCause.FAIL): CheckpointTransition(_BACK),
    (_COMMITTING, CheckpointCause.ACK): CheckpointTransition(_IDLE),
    (_COMMITTING, CheckpointCause.FAIL): CheckpointTransition(_AGAIN),
    (_BACK, CheckpointCause.ACK): CheckpointTransition(_INIT, -1),
    (_BACK, CheckpointCause.FAIL): CheckpointTransition(
        _BACK, later=True
    ),  # a recovery that fails is tried again, but not in a hot loop
    (_BACK, CheckpointCause.DUE): CheckpointTransition(_BACK),
    (_AGAIN, CheckpointCause.ACK): CheckpointTransition(_INIT),
    (_AGAIN, CheckpointCause.FAIL): CheckpointTransition(_AGAIN, later=True),
    (_AGAIN, CheckpointCause.DUE): CheckpointTransition(_AGAIN),
    (_INIT, CheckpointCause.ACK): CheckpointTransition(_IDLE),
    (_INIT, CheckpointCause.FAIL): CheckpointTransition(_INIT, later=True),
    (_INIT, CheckpointCause.DUE): CheckpointTransition(_INIT),
}

STARTS = {TxState.COMMITTED: _INIT, TxState.PREPARING: _BACK, TxState.COMMITTING: _AGAIN}
"""Where a machine begins, by its record."""

ACTIONS = {
    _PREPARING: CheckpointAction.PREPARE,
    _COMMITTING: CheckpointAction.COMMIT,
    _BACK: CheckpointAction.ROLLBACK,
    _AGAIN: CheckpointAction.COMMIT,
    _INIT: CheckpointAction.INITSTATE,
}
"""What each phase sends and waits for; COMMITTED waits for the interval."""

_SAVED = {
    _IDLE: TxState.COMMITTED,
    _INIT: TxState.COMMITTED,
    _PREPARING: TxState.PREPARING,
    _BACK: TxState.PREPARING,
    _COMMITTING: TxState.COMMITTING,
    _AGAIN: TxState.COMMITTING,
}


class Checkpoint(NamedTuple):
    """What travels on the checkpoint streams, and by what it is acked or failed. A greater attempt supersedes a smaller."""

    attempt: int
    txid: int
    action: CheckpointAction


@dataclass(frozen=True, slots=True)
class CheckPointState:
    """The durable record: how far the checkpoint `txid` is. -1 is before the first."""

    txid: int = -1
    state: TxState = TxState.COMMITTED
    attempt: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {"format": _FORMAT, "txid": self.txid, "state": self.state.value, "attempt": self.attempt}

    @classmethod
    def of(cls, data: Any) -> CheckPointState:
        """Return the record of plain data, the first one for None. Raises CorruptStateError: nothing starts from -1 again."""
        if data is None:
            return cls()
        states = [state.value for state in TxState]
        if not isinstance(data, Mapping) or data.get("format") != _FORMAT or data.get("state") not in states:
            raise CorruptStateError(
                f"the checkpoint record is {quote(data)}, wanted format {_FORMAT} with txid, state and attempt; restore "
                "the state from a copy, or read it with the version that wrote it; nothing was reset"
            )
        txid, attempt = data.get("txid"), data.get("attempt")
        if type(txid) is not int or type(attempt) is not int or txid < -1 or attempt < 0:
            raise CorruptStateError(
                f"the checkpoint record has txid {quote(txid)} and attempt {quote(attempt)}, wanted whole numbers from -1 "
                "and from 0; restore the state from a copy; nothing was reset"
            )
        return cls(txid, TxState(data["state"]), attempt)


class SaveCheckpoint(NamedTuple):
    """Make the record durable before the next effect is performed."""

    record: CheckPointState


class EmitCheckpoint(NamedTuple):
    """Send the checkpoint to every task that begins a checkpoint stream; its tree is acked or failed by it."""

    checkpoint: Checkpoint


CheckpointEffect = SaveCheckpoint | EmitCheckpoint


class CheckpointSpout:
    """The coordinator of one topology. Its methods return effects, to be performed in order; each has changed the machine wholly.

    `record` is what was saved last (None: never), `interval_ms` the time from one prepare to the next, at least 100. `stale`
    counts acks and fails of what was not waited for.

    >>> spout = CheckpointSpout(interval_ms=1000)
    >>> effects = spout.start(now_ms=0); effects[-1].checkpoint.action.name
    'INITSTATE'
    >>> spout.ack(effects[-1].checkpoint, now_ms=5), spout.next_deadline_ms()
    ((), 1000)
    >>> [type(effect).__name__ for effect in spout.tick(1000)], spout.waits_for
    (['SaveCheckpoint', 'EmitCheckpoint'], Checkpoint(attempt=1, txid=0, action=<CheckpointAction.PREPARE: 'prepare'>))
    """

    def __init__(self, interval_ms: int = 1000, record: CheckPointState | None = None) -> None:
        if interval_ms < MIN_INTERVAL_MS:
            raise ConfigError(
                f"checkpoints come every {MIN_INTERVAL_MS} ms at most, got an interval of {interval_ms} ms; give "
                "topology.state.checkpoint.interval.ms a greater one"
            )
        self.record = record or CheckPointState()
        self.phase = STARTS[self.record.state]
        self.waits_for: Checkpoint | None = None
        self.stale = 0
        self._interval_ms = interval_ms
        self._due_ms: int | None = None
        self._next_ms = 0
        self._asked = False
        self._started = False

    @property
    def recovering(self) -> bool:
        """Whether the states are being brought back to the last checkpoint."""
        return self.phase in (_BACK, _AGAIN, _INIT)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, None while an ack or fail is waited for."""
        return self._due_ms

    def start(self, now_ms: int) -> tuple[CheckpointEffect, ...]:
        """Begin, once: recover what the record says."""
        assert not self._started, "a machine starts once; build another from the record"
        self._started = True
        self._next_ms = now_ms + self._interval_ms
        return self._send(self.record.txid, self.record.attempt + 1)

    def tick(self, now_ms: int) -> tuple[CheckpointEffect, ...]:
        """Take note of the time: begin a checkpoint, or try a recovery again, if it is due."""
        if self._due_ms is None or now_ms < self._due_ms:
            return ()
        return self._move(CheckpointCause.DUE, now_ms)

    def request(self, now_ms: int) -> tuple[CheckpointEffect, ...]:
        """Begin a checkpoint now, or as soon as what is under way is done: before a shutdown, say."""
        self._asked = True
        if self.phase is _IDLE and self._started:
            self._due_ms = now_ms
        return self.tick(now_ms)

    def ack(self, checkpoint: Checkpoint, now_ms: int) -> tuple[CheckpointEffect, ...]:
        """Take note that every task has done what the checkpoint says."""
        return self._settle(checkpoint, CheckpointCause.ACK, now_ms)

    def fail(self, checkpoint: Checkpoint, now_ms: int) -> tuple[CheckpointEffect, ...]:
        """Take note that a task could not do it, or that it was lost on the way."""
        return self._settle(checkpoint, CheckpointCause.FAIL, now_ms)

    def _settle(self, checkpoint: Checkpoint, cause: CheckpointCause, now_ms: int) -> tuple[CheckpointEffect, ...]:
        if checkpoint != self.waits_for:
            self.stale += 1
            return ()
        return self._move(cause, now_ms)

    def _move(self, cause: CheckpointCause, now_ms: int) -> tuple[CheckpointEffect, ...]:
        row = TRANSITIONS[self.phase, cause]
        if row.then is _PREPARING:
            self._next_ms, self._asked = now_ms + self._interval_ms, False
        self.phase, self._due_ms, self.waits_for = row.then, None, None
        txid = self.record.txid + row.step
        attempt = self.record.attempt + (cause is CheckpointCause.FAIL)
        if row.then is _IDLE:
            self._due_ms = now_ms if self._asked else self._next_ms
        elif row.later:
            self._due_ms = now_ms + self._interval_ms
        else:
            return self._send(txid, attempt)
        return self._save(txid, attempt)

    def _send(self, txid: int, attempt: int) -> tuple[CheckpointEffect, ...]:
        saved = self._save(txid, attempt)
        self.waits_for = Checkpoint(attempt, txid, ACTIONS[self.phase])
        return (*saved, EmitCheckpoint(self.waits_for))

    def _save(self, txid: int, attempt: int) -> tuple[CheckpointEffect, ...]:
        record = replace(self.record, txid=txid, state=_SAVED[self.phase], attempt=attempt)
        if record == self.record:
            return ()
        self.record = record
        return (SaveCheckpoint(record),)

    def check(self) -> None:
        """Assert what "correct" means."""
        # The record says what the phase is at.
        assert self.record.state is _SAVED[self.phase]
        # The machine waits for one thing: the ack of the phase's checkpoint, or a time.
        assert not self._started or (self.waits_for is None) != (self._due_ms is None)
        if self.waits_for is not None:
            assert self.waits_for == (self.record.attempt, self.record.txid, ACTIONS[self.phase])


def mermaid() -> str:
    """Return the table as a mermaid state diagram, for the docs.

    >>> print(mermaid().splitlines()[1].strip())
    [*] --> initialising: record COMMITTED / INITSTATE
    """

    def sends(phase: CheckpointPhase) -> str:
        return f" / {ACTIONS[phase].name}" if phase in ACTIONS else ""

    lines = ["stateDiagram-v2"]
    for state, phase in STARTS.items():
        lines.append(f"    [*] --> {phase.value}: record {state.name}{sends(phase)}")
    for (phase, cause), row in TRANSITIONS.items():
        moves = f", txid {row.step:+d}" if row.step else ""
        effect = " / wait" if row.later else sends(row.then)
        lines.append(f"    {phase.value} --> {row.then.value}: {cause.value}{moves}{effect}")
    return "\n".join(lines)


# -- StatefulBoltExecutor --------------------------------------------------------------------------------------------------------


class ExecuteTuple(NamedTuple):
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


class CommitState(NamedTuple):
    """`state.commit(txid)`."""

    txid: int


class Rollback(NamedTuple):
    """`state.rollback()`."""


class ReleaseAcks(NamedTuple):
    """Now the acks of these tuples go out."""

    tuples: tuple[Any, ...]


class FailTuples(NamedTuple):
    """The trees of these tuples fail."""

    tuples: tuple[Any, ...]


class PassOn(NamedTuple):
    """Send the checkpoint to whoever reads from this task, and ack it."""

    checkpoint: Checkpoint


class Refuse(NamedTuple):
    """Fail the checkpoint."""

    checkpoint: Checkpoint


StatefulEffect = (
    ExecuteTuple | Hook | Init | Prepare | CommitState | Rollback | ReleaseAcks | FailTuples | PassOn | Refuse
)


class StatefulBoltExecutor:
    """One task. `execute` and `checkpoint` come from its barrier, `acked` and `failed` from the bolt.

    A tuple here is any value that can be told from others by its hash, and is not compared by content. Cost: O(1) a tuple;
    between two commits all executed tuples are kept.

    >>> task = StatefulBoltExecutor()
    >>> list(task.execute("a")), [type(e).__name__ for e in task.checkpoint(Checkpoint(1, -1, CheckpointAction.INITSTATE))]
    ([], ['Init', 'ExecuteTuple', 'PassOn'])
    >>> task.acked("a")
    >>> [type(e).__name__ for e in task.checkpoint(Checkpoint(1, 0, CheckpointAction.PREPARE))]
    ['Hook', 'Prepare', 'PassOn']
    >>> [type(e).__name__ for e in task.checkpoint(Checkpoint(1, 0, CheckpointAction.COMMIT))]
    ['Hook', 'CommitState', 'ReleaseAcks', 'PassOn']
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

    def execute(self, tuple: Any) -> Iterator[StatefulEffect]:
        """Take a tuple; it waits until the task has its state."""
        if not self.initialised:
            self._early.append(tuple)
            return iter(())
        self._open[tuple] = None
        return iter((ExecuteTuple(tuple),))

    def acked(self, tuple: Any) -> None:
        """Take note that the bolt is done with a tuple. Raises AckError for one that is not open."""
        self._settle(tuple)
        self._acked[tuple] = None

    def failed(self, tuple: Any) -> FailTuples:
        """Take note that the bolt failed a tuple, which takes effect at once. Raises AckError for one that is not open."""
        self._settle(tuple)
        return FailTuples((tuple,))

    def is_open(self, tuple: Any) -> bool:
        """Whether the tuple was handed to the bolt, and neither settled by it nor taken back by a rollback."""
        return tuple in self._open

    def refused(self) -> None:
        """Take note that the hook raised FailedException; while Hook is performed."""
        self._refused = True

    def _settle(self, tuple: Any) -> None:
        if tuple not in self._open:
            raise AckError(
                f"{quote(tuple)} was acked or failed twice, or after a rollback had failed it; settle each tuple once, and "
                "forget the tuples at hand in pre_rollback"
            )
        del self._open[tuple]

    def checkpoint(self, checkpoint: Checkpoint) -> Iterator[StatefulEffect]:
        """Do what an aligned checkpoint says."""
        do = {
            CheckpointAction.INITSTATE: self._initialise,
            CheckpointAction.PREPARE: self._prepare,
            CheckpointAction.COMMIT: self._commit,
            CheckpointAction.ROLLBACK: self._roll_back,
        }[checkpoint.action]
        if checkpoint.action is CheckpointAction.PREPARE and not self.initialised:
            # The task began in the middle of a checkpoint: the recovery that follows gives it its state.
            yield Refuse(checkpoint)
            return
        self._refused = False
        yield from do(checkpoint.txid)
        yield Refuse(checkpoint) if self._refused else PassOn(checkpoint)

    def _ask(self, method: str, *arguments: int) -> Generator[StatefulEffect, None, bool]:
        """Call a hook; return whether it agreed."""
        yield Hook(method, arguments)
        return not self._refused

    def _initialise(self, txid: int) -> Iterator[StatefulEffect]:
        if self.initialised:
            return
        yield Init(txid)
        self.initialised = True
        early, self._early = self._early, []
        for tuple in early:
            yield from self.execute(tuple)

    def _prepare(self, txid: int) -> Iterator[StatefulEffect]:
        if (yield from self._ask("pre_prepare", txid)):
            yield Prepare(txid)
            self._prepared = (*self._prepared, *self._acked)
            self._acked, self._preparing = {}, txid

    def _commit(self, txid: int) -> Iterator[StatefulEffect]:
        if self.initialised and self._preparing != txid:
            return
        if self.initialised and not (yield from self._ask("pre_commit", txid)):
            return
        yield CommitState(txid)
        prepared, self._prepared, self._preparing = self._prepared, (), None
        if prepared:
            yield ReleaseAcks(prepared)

    def _roll_back(self, txid: int) -> Iterator[StatefulEffect]:
        if not self.initialised:
            yield Rollback()
            return
        if not (yield from self._ask("pre_rollback")):
            return
        yield Rollback()
        lost = (*self._prepared, *self._acked, *self._open)
        self._prepared, self._acked, self._open, self._preparing = (), {}, {}, None
        if lost:
            yield FailTuples(lost)
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
