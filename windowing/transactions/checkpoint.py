"""CheckpointSpout: when the state of a topology is prepared, committed and rolled back, as a table.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from windowing.errors import ConfigError, CorruptStateError, shown

__all__ = [
    "ACTIONS",
    "MIN_INTERVAL_MS",
    "STARTS",
    "TRANSITIONS",
    "Action",
    "Cause",
    "CheckPointState",
    "Checkpoint",
    "CheckpointSpout",
    "Emit",
    "Phase",
    "Row",
    "Save",
    "TxState",
    "mermaid",
]

MIN_INTERVAL_MS = 100
_FORMAT = 1


class Action(Enum):
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


class Phase(Enum):
    """What the machine is at. The last three are recovery."""

    COMMITTED = "committed"
    PREPARING = "preparing"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling_back"
    RECOMMITTING = "recommitting"
    INITIALISING = "initialising"


class Cause(Enum):
    """What happens to the machine; ACK and FAIL are those of the checkpoint that it waits for."""

    DUE = "due"
    ACK = "ack"
    FAIL = "fail"


class Row(NamedTuple):
    """What follows: the next phase, how the txid moves, and whether its checkpoint waits for one interval."""

    then: Phase
    step: int = 0
    later: bool = False


_IDLE, _PREPARING, _COMMITTING = Phase.COMMITTED, Phase.PREPARING, Phase.COMMITTING
_BACK, _AGAIN, _INIT = Phase.ROLLING_BACK, Phase.RECOMMITTING, Phase.INITIALISING

TRANSITIONS: dict[tuple[Phase, Cause], Row] = {
    (_IDLE, Cause.DUE): Row(_PREPARING, +1),
    (_PREPARING, Cause.ACK): Row(_COMMITTING),
    (_PREPARING, Cause.FAIL): Row(_BACK),
    (_COMMITTING, Cause.ACK): Row(_IDLE),
    (_COMMITTING, Cause.FAIL): Row(_AGAIN),
    (_BACK, Cause.ACK): Row(_INIT, -1),
    (_BACK, Cause.FAIL): Row(_BACK, later=True),  # a recovery that fails is tried again, but not in a hot loop
    (_BACK, Cause.DUE): Row(_BACK),
    (_AGAIN, Cause.ACK): Row(_INIT),
    (_AGAIN, Cause.FAIL): Row(_AGAIN, later=True),
    (_AGAIN, Cause.DUE): Row(_AGAIN),
    (_INIT, Cause.ACK): Row(_IDLE),
    (_INIT, Cause.FAIL): Row(_INIT, later=True),
    (_INIT, Cause.DUE): Row(_INIT),
}

STARTS = {TxState.COMMITTED: _INIT, TxState.PREPARING: _BACK, TxState.COMMITTING: _AGAIN}
"""Where a machine begins, by its record."""

ACTIONS = {
    _PREPARING: Action.PREPARE,
    _COMMITTING: Action.COMMIT,
    _BACK: Action.ROLLBACK,
    _AGAIN: Action.COMMIT,
    _INIT: Action.INITSTATE,
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
    action: Action


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
                f"the checkpoint record is {shown(data)}, wanted format {_FORMAT} with txid, state and attempt; restore "
                "the state from a copy, or read it with the version that wrote it; nothing was reset"
            )
        txid, attempt = data.get("txid"), data.get("attempt")
        if type(txid) is not int or type(attempt) is not int or txid < -1 or attempt < 0:
            raise CorruptStateError(
                f"the checkpoint record has txid {shown(txid)} and attempt {shown(attempt)}, wanted whole numbers from -1 "
                "and from 0; restore the state from a copy; nothing was reset"
            )
        return cls(txid, TxState(data["state"]), attempt)


class Save(NamedTuple):
    """Make the record durable before the next effect is performed."""

    record: CheckPointState


class Emit(NamedTuple):
    """Send the checkpoint to every task that begins a checkpoint stream; its tree is acked or failed by it."""

    checkpoint: Checkpoint


Effect = Save | Emit


class CheckpointSpout:
    """The coordinator of one topology. Entries return effects, to be performed in order; each has changed the machine wholly.

    `record` is what was saved last (None: never), `interval_ms` the time from one prepare to the next, at least 100. `stale`
    counts acks and fails of what was not waited for.

    >>> spout = CheckpointSpout(interval_ms=1000)
    >>> effects = spout.start(now_ms=0); effects[-1].checkpoint.action.name
    'INITSTATE'
    >>> spout.ack(effects[-1].checkpoint, now_ms=5), spout.next_deadline_ms()
    ((), 1000)
    >>> [type(effect).__name__ for effect in spout.tick(1000)], spout.waits_for
    (['Save', 'Emit'], Checkpoint(attempt=1, txid=0, action=<Action.PREPARE: 'prepare'>))
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

    def start(self, now_ms: int) -> tuple[Effect, ...]:
        """Begin, once: recover what the record says."""
        assert not self._started, "a machine starts once; build another from the record"
        self._started = True
        self._next_ms = now_ms + self._interval_ms
        return self._send(self.record.txid, self.record.attempt + 1)

    def tick(self, now_ms: int) -> tuple[Effect, ...]:
        """Take note of the time: begin a checkpoint, or try a recovery again, if it is due."""
        if self._due_ms is None or now_ms < self._due_ms:
            return ()
        return self._move(Cause.DUE, now_ms)

    def request(self, now_ms: int) -> tuple[Effect, ...]:
        """Begin a checkpoint now, or as soon as what is under way is done: before a shutdown, say."""
        self._asked = True
        if self.phase is _IDLE and self._started:
            self._due_ms = now_ms
        return self.tick(now_ms)

    def ack(self, checkpoint: Checkpoint, now_ms: int) -> tuple[Effect, ...]:
        """Take note that every task has done what the checkpoint says."""
        return self._settle(checkpoint, Cause.ACK, now_ms)

    def fail(self, checkpoint: Checkpoint, now_ms: int) -> tuple[Effect, ...]:
        """Take note that a task could not do it, or that it was lost on the way."""
        return self._settle(checkpoint, Cause.FAIL, now_ms)

    def _settle(self, checkpoint: Checkpoint, cause: Cause, now_ms: int) -> tuple[Effect, ...]:
        if checkpoint != self.waits_for:
            self.stale += 1
            return ()
        return self._move(cause, now_ms)

    def _move(self, cause: Cause, now_ms: int) -> tuple[Effect, ...]:
        row = TRANSITIONS[self.phase, cause]
        if row.then is _PREPARING:
            self._next_ms, self._asked = now_ms + self._interval_ms, False
        self.phase, self._due_ms, self.waits_for = row.then, None, None
        txid = self.record.txid + row.step
        attempt = self.record.attempt + (cause is Cause.FAIL)
        if row.then is _IDLE:
            self._due_ms = now_ms if self._asked else self._next_ms
        elif row.later:
            self._due_ms = now_ms + self._interval_ms
        else:
            return self._send(txid, attempt)
        return self._save(txid, attempt)

    def _send(self, txid: int, attempt: int) -> tuple[Effect, ...]:
        saved = self._save(txid, attempt)
        self.waits_for = Checkpoint(attempt, txid, ACTIONS[self.phase])
        return (*saved, Emit(self.waits_for))

    def _save(self, txid: int, attempt: int) -> tuple[Effect, ...]:
        record = replace(self.record, txid=txid, state=_SAVED[self.phase], attempt=attempt)
        if record == self.record:
            return ()
        self.record = record
        return (Save(record),)

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

    def sends(phase: Phase) -> str:
        return f" / {ACTIONS[phase].name}" if phase in ACTIONS else ""

    lines = ["stateDiagram-v2"]
    for state, phase in STARTS.items():
        lines.append(f"    [*] --> {phase.value}: record {state.name}{sends(phase)}")
    for (phase, cause), row in TRANSITIONS.items():
        moves = f", txid {row.step:+d}" if row.step else ""
        effect = " / wait" if row.later else sends(row.then)
        lines.append(f"    {phase.value} --> {row.then.value}: {cause.value}{moves}{effect}")
    return "\n".join(lines)
