"""The ledger of the acker: what may happen to a root, as a table, and how a root is held, as one integer.

    UNKNOWN   not held
    OPEN      init has come, edges are outstanding
    EARLY     acks came before their init
    DOOMED    a fail came before its init
    CLOSED    failed; kept for one more timeout, so that what the rest of the tree still sends is known to be late

    bits   0..63      64..65   66..81               82..105   106...
           value      state    last seen component  task      deadline in ms (0 with rotation)

Laws: `TRANSITIONS` is all that can happen; a pair that is not in it is an error. The state OPEN is 0, so a root whose value
and state are both 0 is complete. A closed root keeps no value that matters. An acked root leaves nothing: by the laws of
anchors.py no message of a complete tree is still under way.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = [
    "MAX_COMPONENTS",
    "MAX_TASK",
    "TRANSITIONS",
    "WITH_ROTATION",
    "Acked",
    "Cause",
    "Cell",
    "Failed",
    "Reason",
    "Row",
    "State",
    "mermaid",
    "pack",
    "unpack",
]


class Reason(Enum):
    """Why a tree failed: somebody said so, or its time was over."""

    FAILED = "failed"
    TIMEOUT = "timeout"


class Acked(NamedTuple):
    """Every edge of the tree was acked and none failed: tell the spout task. A NamedTuple, for one is made per root."""

    root: int
    task: int


class Failed(NamedTuple):
    """The tree failed: tell the spout task. `seen` is the component that sent the last message of it, if any told."""

    root: int
    task: int
    reason: Reason
    seen: str | None


class State(Enum):
    """What the ledger knows of a root."""

    UNKNOWN = "unknown"
    OPEN = "open"
    EARLY = "early"
    DOOMED = "doomed"
    CLOSED = "closed"


class Cause(Enum):
    """What happens to a root. The two zeros are an init and an ack after which the value is zero."""

    INIT = "init"
    INIT_ZERO = "init, value 0"
    ACK = "ack"
    ACK_ZERO = "ack, value 0"
    FAIL = "fail"
    RESET = "reset"
    DEADLINE = "deadline"


class Row(NamedTuple):
    """What follows: the next state, the effect (Failed with a reason), and whether a new timeout begins."""

    then: State
    effect: type[Acked] | Reason | None = None
    renews: bool = False


_U, _O, _E, _D, _C = State.UNKNOWN, State.OPEN, State.EARLY, State.DOOMED, State.CLOSED

TRANSITIONS: dict[tuple[State, Cause], Row] = {
    (_U, Cause.INIT): Row(_O, renews=True),
    (_U, Cause.INIT_ZERO): Row(_U, Acked),  # a spout's tuple that nobody receives
    (_U, Cause.ACK): Row(_E, renews=True),
    (_U, Cause.ACK_ZERO): Row(_E, renews=True),
    (_U, Cause.FAIL): Row(_D, renews=True),
    (_U, Cause.RESET): Row(_U),  # nothing to reset yet; the init that may follow has a whole timeout anyway
    (_O, Cause.ACK): Row(_O),
    (_O, Cause.ACK_ZERO): Row(_U, Acked),
    (_O, Cause.FAIL): Row(_C, Reason.FAILED, renews=True),
    (_O, Cause.RESET): Row(_O, renews=True),
    (_O, Cause.DEADLINE): Row(_C, Reason.TIMEOUT, renews=True),
    (_E, Cause.INIT): Row(_O, renews=True),
    (_E, Cause.INIT_ZERO): Row(_U, Acked),
    (_E, Cause.ACK): Row(_E),
    (_E, Cause.ACK_ZERO): Row(_E),
    (_E, Cause.FAIL): Row(_D, renews=True),  # remembered for T since the fail, as in Storm, not since the first ack
    (_E, Cause.RESET): Row(_E, renews=True),
    (_E, Cause.DEADLINE): Row(_U),  # its init was lost: who sent it knows no ack, and times out on its own
    (_D, Cause.INIT): Row(_C, Reason.FAILED, renews=True),  # a fail wins over a zero; in Storm the zero wins
    (_D, Cause.INIT_ZERO): Row(_C, Reason.FAILED, renews=True),
    (_D, Cause.ACK): Row(_D),
    (_D, Cause.ACK_ZERO): Row(_D),
    (_D, Cause.FAIL): Row(_D, renews=True),
    (_D, Cause.RESET): Row(_D, renews=True),
    (_D, Cause.DEADLINE): Row(_U),
    (_C, Cause.ACK): Row(_C),
    (_C, Cause.ACK_ZERO): Row(_C),
    (_C, Cause.FAIL): Row(_C),
    (_C, Cause.RESET): Row(_C),
    (_C, Cause.DEADLINE): Row(_U),
}

WITH_ROTATION: dict[tuple[State, Cause], Row] = {**TRANSITIONS, (_E, Cause.INIT): Row(_O)}
"""The transitions of an acker with rotation: as in Storm an entry keeps the age that it had before its init."""

VALUE_MASK = (1 << 64) - 1
STATE_SHIFT, SEEN_SHIFT, TASK_SHIFT, DEADLINE_SHIFT = 64, 66, 82, 106
MAX_COMPONENTS = (1 << (TASK_SHIFT - SEEN_SHIFT)) - 1
MAX_TASK = (1 << (DEADLINE_SHIFT - TASK_SHIFT)) - 1
STATE_MASK = 3 << STATE_SHIFT
SEEN_MASK = MAX_COMPONENTS << SEEN_SHIFT
TASK_MASK = MAX_TASK << TASK_SHIFT
BELOW_DEADLINE = (1 << DEADLINE_SHIFT) - 1
UNSEEN, UNSTATED = ~SEEN_MASK, ~STATE_MASK

STATES = (State.OPEN, State.EARLY, State.DOOMED, State.CLOSED)
STATE_BITS = {state: number << STATE_SHIFT for number, state in enumerate(STATES)}


class Cell(NamedTuple):
    """A root as the ledger holds it; `seen` is the number of a component, 0 for none."""

    state: State
    value: int
    task: int
    seen: int
    deadline_ms: int


def pack(cell: Cell) -> int:
    """Return the integer of a cell: 48 bytes, where an object of its own with its fields takes 130.

    >>> unpack(pack(Cell(State.DOOMED, value=2**64 - 1, task=7, seen=3, deadline_ms=1_700_000_000_000)))
    Cell(state=<State.DOOMED: 'doomed'>, value=18446744073709551615, task=7, seen=3, deadline_ms=1700000000000)
    """
    return (
        cell.value
        | STATE_BITS[cell.state]
        | cell.seen << SEEN_SHIFT
        | cell.task << TASK_SHIFT
        | cell.deadline_ms << DEADLINE_SHIFT
    )


def unpack(cell: int) -> Cell:
    """Return the cell of an integer."""
    return Cell(
        state_of(cell),
        cell & VALUE_MASK,
        (cell & TASK_MASK) >> TASK_SHIFT,
        (cell & SEEN_MASK) >> SEEN_SHIFT,
        deadline_of(cell),
    )


def state_of(cell: int) -> State:
    """Return the state of a held root."""
    return STATES[(cell & STATE_MASK) >> STATE_SHIFT]


def deadline_of(cell: int) -> int:
    """Return the deadline of a held root, 0 with rotation."""
    return cell >> DEADLINE_SHIFT


def mermaid() -> str:
    """Return the table as a mermaid state diagram, for the docs.

    >>> print(mermaid().splitlines()[2].strip())
    unknown --> open: init
    """
    edges: dict[tuple[State, State, str], list[str]] = {}
    for (state, cause), row in TRANSITIONS.items():
        if isinstance(row.effect, Reason):
            effect = f" / Failed({row.effect.name})"
        elif row.effect is Acked:
            effect = " / Acked"
        else:
            effect = " / new timeout" if row.renews and state is row.then else ""
        edges.setdefault((state, row.then, effect), []).append(cause.value.replace(", value 0", " to 0"))
    lines = ["stateDiagram-v2", "    [*] --> unknown"]
    for (state, then, effect), causes in edges.items():
        lines.append(f"    {state.value} --> {then.value}: {', '.join(causes)}{effect}")
    return "\n".join(lines)
