"""Acker: says of each tuple tree, exactly once, that it was acked or that it failed.

    spout  --init(root, e1 ^ e2)-->  +-------+
    bolt   --ack(root, e1 ^ e3)--->  | value |  --Acked-->  spout task      when the value is zero
    bolt   --fail(root)----------->  |  XOR  |  --Failed->  spout task      at a fail, or when the timeout is over
    clock  --tick(now)------------>  +-------+

Laws
- Every edge id comes twice: from who made the edge (init, or the ack of the tuple it was anchored to) and from who acked it. So
  the value is zero when every edge was acked, and before that only with probability 2**-64, in any order of arrival.
- A root is acked or failed, once, and only after its init. A fail wins, whatever the value is or becomes.
- The timeout T begins with the init, and anew with each reset: the first tick with now >= begin + T fails the root. With
  `rotation=n` (Storm: 3) ticks rotate n buckets instead, and a root fails in ((n-1) * T, n * T] after its begin, which is
  Storm's: its first message, an ack that comes before the init included, or its last reset.
- What is held: open roots; acks that came before their init, for T after the first; a fail that came before its init, for T after
  the last; failed roots, for T after they failed. An acked root leaves nothing at once. So T after the last effect or early
  message (2T after the last init) the ledger is empty.
- A message for a failed root is `late`: counted, without effect. One that comes after that T begins an entry that nobody
  completes, and that leaves silently T later (`orphaned`): no effect is possible without an init, and no root begins twice.
- XOR cannot tell a message that comes twice: it undoes the first. Who sends acks once for each tuple (anchors.py), over a
  channel that does not repeat, or that repeats with a number that the driver drops by, keeps this law.
- An entry has changed the machine wholly when it returns; its effects are data. A driver may enter again while it performs
  them, and one that drops them has lost them.

Time comes in with each message, and never falls: a smaller `now_ms` counts as the largest seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windowing.acking.ledger import (
    BELOW_DEADLINE,
    DEADLINE_SHIFT,
    MAX_COMPONENTS,
    MAX_TASK,
    SEEN_MASK,
    SEEN_SHIFT,
    STATE_BITS,
    STATE_MASK,
    TASK_MASK,
    TASK_SHIFT,
    TRANSITIONS,
    UNSEEN,
    UNSTATED,
    VALUE_MASK,
    WITH_ROTATION,
    Acked,
    Cause,
    Cell,
    Failed,
    Reason,
    Row,
    State,
    deadline_of,
    pack,
    state_of,
    unpack,
)
from windowing.acking.timeouts import Timeouts, timeouts_of
from windowing.errors import AckError, SnapshotError, shown

__all__ = ["Acker", "Tally"]

_VERSION = 1
_NOTHING: Iterator[Any] = iter(())


class Tally:
    """What became of the roots: inited == acked + failed + timed_out + open, at any time.

    `late` counts messages for roots that had failed, `orphaned` roots whose init never came.
    """

    __slots__ = ("acked", "failed", "inited", "late", "orphaned", "timed_out")

    def __init__(self) -> None:
        self.inited = self.acked = self.failed = self.timed_out = 0
        self.late = self.orphaned = 0

    @property
    def open(self) -> int:
        """Roots that were begun and are neither acked nor failed."""
        return self.inited - self.acked - self.failed - self.timed_out

    def snapshot(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def restore(self, data: dict[str, int]) -> None:
        for name in self.__slots__:
            setattr(self, name, data[name])


class Acker:
    """The ledger of one acker task. Cost: O(1) a message, four times a dict and an XOR; 171 bytes a root with its id.

    Root ids are whole numbers, XOR values in [0, 2**64), both chosen by the driver; tasks are numbers too. `seen` is the
    component that sends a message. Source: Storm's `Acker`; fails win here, late messages leave nothing, deadlines are exact.

    >>> acker = Acker(timeout_ms=30_000)
    >>> list(acker.init(1, 0b01 ^ 0b10, 4, 0))
    []
    >>> list(acker.ack(1, 0b01 ^ 0b100, 5, seen="split")), list(acker.ack(1, 0b10, 6, seen="log"))
    ([], [])
    >>> list(acker.ack(1, 0b100, 7, seen="count")), len(acker)
    ([Acked(root=1, task=4)], 0)
    """

    def __init__(self, timeout_ms: int = 30_000, rotation: int | None = None) -> None:
        self.tally = Tally()
        self._timeout_ms = timeout_ms
        self._rotation = rotation
        self._now_ms = 0
        self._names: list[str | None] = [None]
        self._seen_bits: dict[str, int] = {}
        self._held: Timeouts[int, int] = timeouts_of(timeout_ms, rotation, deadline_of)
        self._transitions = TRANSITIONS if rotation is None else WITH_ROTATION

    # -- messages ------------------------------------------------------------------------------------------------------

    def init(self, root: int, xor: int, task: int, now_ms: int) -> Iterator[Acked | Failed]:
        """Begin a tree: the spout `task` emitted tuples whose edge ids give `xor`. Raises AckError if it was begun before."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if not 0 <= xor <= VALUE_MASK or not 0 <= task <= MAX_TASK:
            self._refuse(xor, task)
        held = self._held
        cell = held.get(root)
        if cell is None and xor:
            self.tally.inited += 1
            now_ms = self._now_ms
            held.put(root, held.deadline(now_ms) << DEADLINE_SHIFT | task << TASK_SHIFT | xor, now_ms)
            return _NOTHING
        cell = xor if cell is None else cell ^ xor
        cause = Cause.INIT if cell & VALUE_MASK else Cause.INIT_ZERO
        state, row = self._row(root, cause)
        self.tally.inited += 1
        return self._follow(root, (cell & ~TASK_MASK) | task << TASK_SHIFT, state, row)

    def ack(self, root: int, xor: int, now_ms: int, seen: str | None = None) -> Iterator[Acked | Failed]:
        """Take the ack of one tuple: its own edge id, XOR the ids of the edges that were anchored to it."""
        if now_ms > self._now_ms:
            self._now_ms = now_ms
        if not 0 <= xor <= VALUE_MASK:
            self._refuse(xor)
        held = self._held
        cell = held.get(root)
        if cell is None or cell & STATE_MASK:
            return self._ack_unless_open(root, xor, seen)
        if seen is None:
            cell ^= xor
        else:
            bits = self._seen_bits.get(seen)
            cell = cell & UNSEEN ^ (xor | (self._met(seen) if bits is None else bits))
        if cell & VALUE_MASK:
            held.replace(root, cell)
            return _NOTHING
        held.remove(root)
        self.tally.acked += 1
        return iter((Acked(root, (cell & TASK_MASK) >> TASK_SHIFT),))

    def fail(self, root: int, now_ms: int, seen: str | None = None) -> Iterator[Acked | Failed]:
        """Take the fail of a tuple: the tree of `root` fails, now or when its init comes."""
        self._now_ms = max(self._now_ms, now_ms)
        cell = self._held.get(root) or 0
        state, row = self._row(root, Cause.FAIL)
        return self._follow(root, self._marked(cell, seen), state, row)

    def reset_timeout(self, root: int, now_ms: int) -> Iterator[Acked | Failed]:
        """Give an open tree a whole timeout from now on.

        Storm's acker also tells the spout's task, for its own timeout. Here a driver whose `SpoutPending` has one resets it too.
        """
        self._now_ms = max(self._now_ms, now_ms)
        cell = self._held.get(root) or 0
        state, row = self._row(root, Cause.RESET)
        return self._follow(root, cell, state, row)

    def tick(self, now_ms: int) -> Iterator[Acked | Failed]:
        """Fail what is overdue, oldest first, and forget what is needed no more. Cost: O(1) for each of them."""
        self._now_ms = max(self._now_ms, now_ms)
        effects: list[Acked | Failed] = []
        for root, cell in self._held.expire(self._now_ms):
            state = state_of(cell)
            effects.extend(self._follow(root, cell, state, self._transitions[state, Cause.DEADLINE]))
        return iter(effects)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, None if nothing is held. Cost: O(1)."""
        return self._held.next_deadline_ms()

    def last_seen(self, root: int) -> str | None:
        """Return the component that sent the last message of an open or failed tree, None if there is none."""
        cell = self._held.get(root)
        return None if cell is None else self._name(cell)

    def __len__(self) -> int:
        """Return how many roots are held, open or not."""
        return len(self._held)

    # -- transitions ---------------------------------------------------------------------------------------------------

    def _row(self, root: int, cause: Cause) -> tuple[State, Row]:
        cell = self._held.get(root)
        state = State.UNKNOWN if cell is None else state_of(cell)
        row = self._transitions.get((state, cause))
        if row is None:
            raise AckError(
                f"init of root {shown(root)}, which is {state.value} already; every emission of a spout needs a root id "
                "of its own, a replay too"
            )
        return state, row

    def _ack_unless_open(self, root: int, xor: int, seen: str | None) -> Iterator[Acked | Failed]:
        cell = (self._held.get(root) or 0) ^ xor
        state, row = self._row(root, Cause.ACK if cell & VALUE_MASK else Cause.ACK_ZERO)
        return self._follow(root, self._marked(cell, seen), state, row)

    def _follow(self, root: int, cell: int, state: State, row: Row) -> Iterator[Acked | Failed]:
        """Bring `root` from `state` to where the row says, and return the effect."""
        if row.then is not State.UNKNOWN:
            self._hold(root, (cell & UNSTATED) | STATE_BITS[row.then], row.renews)
        elif self._held.get(root) is not None:
            self._held.remove(root)
        self._count(state, row)
        if row.effect is None:
            return _NOTHING
        task = (cell & TASK_MASK) >> TASK_SHIFT
        if isinstance(row.effect, Reason):
            return iter((Failed(root, task, row.effect, self._name(cell)),))
        return iter((Acked(root, task),))

    def _hold(self, root: int, cell: int, renews: bool) -> None:
        held = self._held
        if renews:
            deadline_ms = held.deadline(self._now_ms)
            held.put(root, (cell & BELOW_DEADLINE) | deadline_ms << DEADLINE_SHIFT, self._now_ms)
        else:
            held.replace(root, cell)

    def _count(self, state: State, row: Row) -> None:
        tally = self.tally
        if row.effect is Acked:
            tally.acked += 1
        elif row.effect is Reason.FAILED:
            tally.failed += 1
        elif row.effect is Reason.TIMEOUT:
            tally.timed_out += 1
        elif state is State.CLOSED and row.then is State.CLOSED:
            tally.late += 1
        elif state in (State.EARLY, State.DOOMED) and row.then is State.UNKNOWN:
            tally.orphaned += 1

    # -- components ----------------------------------------------------------------------------------------------------

    def _met(self, seen: str) -> int:
        """Return the bits of a component, which get a number when it is first seen."""
        bits = self._seen_bits.get(seen)
        if bits is None:
            if len(self._names) > MAX_COMPONENTS:
                raise AckError(
                    f"component {shown(seen)} is one more than the {MAX_COMPONENTS} that an acker tells apart; `seen` is "
                    "the name of a component, not of a tuple"
                )
            bits = self._seen_bits[seen] = len(self._names) << SEEN_SHIFT
            self._names.append(seen)
        return bits

    def _marked(self, cell: int, seen: str | None) -> int:
        return cell if seen is None else cell & UNSEEN | self._met(seen)

    def _name(self, cell: int) -> str | None:
        return self._names[(cell & SEEN_MASK) >> SEEN_SHIFT]

    def _refuse(self, xor: int, task: int = 0) -> None:
        raise AckError(
            f"an XOR of edge ids is in [0, 2**64) and a task in [0, {MAX_TASK}], got xor={shown(xor)}, task={shown(task)}; "
            "draw edge ids with getrandbits(64), and take Java's negative ones & (2**64 - 1)"
        )

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return all state as plain data: roots as [root, state, value, task, seen, deadline_ms], oldest first. Cost: O(roots)."""
        return {
            "version": _VERSION,
            "machine": "acker",
            "rotation": self._rotation,
            "now_ms": self._now_ms,
            "next_rotation_ms": self._held.next_rotation_ms,
            "components": self._names[1:],
            "tally": self.tally.snapshot(),
            "buckets": [[_row_of(root, cell) for root, cell in bucket] for bucket in self._held.buckets()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Become the acker of `snapshot`. The timeout may have changed: a shorter one holds for the old roots too.

        Raises SnapshotError if the rotation differs, or the data is not a snapshot.
        """
        wanted = [_VERSION, "acker", self._rotation]
        if not isinstance(data, dict) or [data.get(name) for name in ("version", "machine", "rotation")] != wanted:
            raise SnapshotError(
                f"the snapshot is {shown(data)}, this acker wants version, machine, rotation = {shown(wanted)}; "
                "restore it into an acker with the same rotation="
            )
        restored = Acker(self._timeout_ms, self._rotation)
        try:
            restored._load(data)
        except (KeyError, TypeError, ValueError, IndexError, AssertionError) as damage:
            raise SnapshotError(f"the snapshot is damaged ({damage!r}); restore the one before it") from damage
        self.__dict__.update(restored.__dict__)

    def _load(self, data: dict[str, Any]) -> None:
        self._now_ms = data["now_ms"]
        for name in data["components"]:
            self._met(name)
        self.tally.restore(data["tally"])
        latest_ms = self._held.deadline(self._now_ms)
        buckets = [[_item_of(row, latest_ms) for row in bucket] for bucket in data["buckets"]]
        self._held.load(buckets, data["next_rotation_ms"], self._now_ms)
        self.check()

    def check(self) -> None:
        """Assert what always holds. Cost: O(roots)."""
        self._held.check()
        cells = [unpack(cell) for bucket in self._held.buckets() for _, cell in bucket]
        # What was begun and has had no effect is open, and nothing else is.
        assert self.tally.open == sum(cell.state is State.OPEN for cell in cells)
        for cell in cells:
            # An open root has edges outstanding; one without an init has no task yet.
            assert cell.value or cell.state is not State.OPEN
            assert not cell.task or cell.state in (State.OPEN, State.CLOSED)
            # Components are known by name; nothing lives longer than a timeout.
            assert cell.seen < len(self._names)
            assert cell.deadline_ms <= self._held.deadline(self._now_ms)


def _row_of(root: int, packed: int) -> list[Any]:
    cell = unpack(packed)
    return [root, cell.state.value, *cell[1:]]


def _item_of(row: list[Any], latest_ms: int) -> tuple[int, int]:
    root, state, value, task, seen, deadline_ms = row
    # A number that is too large would reach into its neighbours' bits.
    assert 0 <= value <= VALUE_MASK
    assert 0 <= task <= MAX_TASK
    assert 0 <= seen <= MAX_COMPONENTS
    assert deadline_ms >= 0
    return root, pack(Cell(State(state), value, task, seen, min(deadline_ms, latest_ms)))
