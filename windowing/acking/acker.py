"""The acker: it reports exactly once for each tuple tree that it was acked or that it failed; and the anchors of tuples.

    spout emits a, b:   a {root: e1}   b {root: e2}      init(root, e1 ^ e2)           +-------+
    bolt anchors c to a:               c {root: e3}      a creates edge e3             | value |  --Acked-->  when it is zero
    bolt acks a:                                         ack(root, e1 ^ e3)  ------->  |  XOR  |  --Failed->  at a fail, or when
    bolt acks c:                                         ack(root, e3)                 +-------+              the timeout has passed

The possible events of a root are a table, `TRANSITIONS`; a pair that is not in it is an error. A root is stored as one integer
(48 bytes; an object with the same fields takes 130):

    UNKNOWN   not held
    OPEN      init has arrived, edges are outstanding           bits   0..63   64..65   66..81         82..105   106...
    EARLY     acks arrived before their init                           value   state    component of   task      deadline in ms
    DOOMED    a fail arrived before its init                                            last message             (0 with rotation)
    CLOSED    failed; held for one more timeout, so that messages of the rest of the tree are recognised as late

Laws
- Every edge id arrives twice: from the task that created the edge (in the init, or the ack of the tuple it was anchored to) and
  from the task that acked it. So the value is zero when every edge was acked, and before that only with probability 2**-64, in any
  order of arrival. Edge ids come from the driver's seeded generator: 64 bits, none of them 0.
- Each delivery of a tuple (to one task) has its own anchors. It is acked or failed once, and all tuples anchored to it are emitted
  before that. Anchors refuses repeated acks, because XOR cannot: a repeated message cancels the first. Channels do not repeat
  messages, or repeat them with a number by which the driver drops them.
- A root is acked or failed, once, and only after its init. A fail wins, whatever the value is or becomes.
- The timeout T begins with the init, and again with each reset: the first tick with now >= begin + T fails the root. With
  `rotation=n` (Storm: 3) ticks rotate n buckets instead, and a root fails in ((n-1) * T, n * T] after its begin. As in Storm, the
  begin is then its first message, also an ack before the init, or its last reset.
- The ledger holds: open roots; acks before their init, for T after the first; a fail before its init, for T after
  the last; failed roots, for T after they failed. An acked root is removed at once. So T after the last effect or early
  message (2T after the last init) the ledger is empty.
- A message for a failed root is `late`: it is counted and has no effect. One that arrives after that T begins an entry that is
  never completed and is removed without effect T later (`orphaned`): there is no effect without an init, and no root begins twice.
- When an entry returns, its change to the machine is complete; its effects are data. A driver may enter again while it performs
  them; effects that it drops are lost.

Each message carries the time, which never falls: a `now_ms` smaller than the largest so far counts as that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum, StrEnum
from typing import NamedTuple

from windowing.acking.timeouts import Timeouts, timeouts_of
from windowing.errors import AckError, quote


class Reason(StrEnum):
    """Why a tree failed: a task failed it, or its timeout passed."""

    FAILED = "failed"
    TIMEOUT = "timeout"


class Acked(NamedTuple):
    """Every edge of the tree was acked and none failed: notify the spout task. A NamedTuple, because one is made for each root."""

    root: int
    task: int


class AckedRoots(NamedTuple):
    """An Acked for each of several trees of one spout task, in this order."""

    roots: list[int]


class Failed(NamedTuple):
    """The tree failed: notify the spout task. `seen` is the component that sent its last message, if known.

    reason: a Reason, in whose place a driver can put the text of the exception that failed the tuple.
    """

    root: int
    task: int
    reason: str
    seen: str | None


class RootState(Enum):
    """The state of a root in the ledger."""

    UNKNOWN = "unknown"
    OPEN = "open"
    EARLY = "early"
    DOOMED = "doomed"
    CLOSED = "closed"


class RootEvent(Enum):
    """An event of a root. The two zeros are an init and an ack after which the value is zero."""

    INIT = "init"
    INIT_ZERO = "init, value 0"
    ACK = "ack"
    ACK_ZERO = "ack, value 0"
    FAIL = "fail"
    RESET = "reset"
    DEADLINE = "deadline"


class RootTransition(NamedTuple):
    """A row of the table: the next state, the effect (Failed with a reason), and whether a new timeout begins."""

    then: RootState
    effect: type[Acked] | Reason | None = None
    renews: bool = False


_U, _O, _E, _D, _C = RootState.UNKNOWN, RootState.OPEN, RootState.EARLY, RootState.DOOMED, RootState.CLOSED

TRANSITIONS: dict[tuple[RootState, RootEvent], RootTransition] = {
    (_U, RootEvent.INIT): RootTransition(_O, renews=True),
    (_U, RootEvent.INIT_ZERO): RootTransition(_U, Acked),  # a spout's tuple without a receiver
    (_U, RootEvent.ACK): RootTransition(_E, renews=True),
    (_U, RootEvent.ACK_ZERO): RootTransition(_E, renews=True),
    (_U, RootEvent.FAIL): RootTransition(_D, renews=True),
    (_U, RootEvent.RESET): RootTransition(_U),  # nothing to reset; a later init begins with a whole timeout anyway
    (_O, RootEvent.ACK): RootTransition(_O),
    (_O, RootEvent.ACK_ZERO): RootTransition(_U, Acked),
    (_O, RootEvent.FAIL): RootTransition(_C, Reason.FAILED, renews=True),
    (_O, RootEvent.RESET): RootTransition(_O, renews=True),
    (_O, RootEvent.DEADLINE): RootTransition(_C, Reason.TIMEOUT, renews=True),
    (_E, RootEvent.INIT): RootTransition(_O, renews=True),
    (_E, RootEvent.INIT_ZERO): RootTransition(_U, Acked),
    (_E, RootEvent.ACK): RootTransition(_E),
    (_E, RootEvent.ACK_ZERO): RootTransition(_E),
    (_E, RootEvent.FAIL): RootTransition(_D, renews=True),  # held for T since the fail, as in Storm, not the first ack
    (_E, RootEvent.RESET): RootTransition(_E, renews=True),
    # Its init was lost: the spout gets no effect, and times out by itself.
    (_E, RootEvent.DEADLINE): RootTransition(_U),
    # A fail wins over a zero; in Storm the zero wins.
    (_D, RootEvent.INIT): RootTransition(_C, Reason.FAILED, renews=True),
    (_D, RootEvent.INIT_ZERO): RootTransition(_C, Reason.FAILED, renews=True),
    (_D, RootEvent.ACK): RootTransition(_D),
    (_D, RootEvent.ACK_ZERO): RootTransition(_D),
    (_D, RootEvent.FAIL): RootTransition(_D, renews=True),
    (_D, RootEvent.RESET): RootTransition(_D, renews=True),
    (_D, RootEvent.DEADLINE): RootTransition(_U),
    (_C, RootEvent.ACK): RootTransition(_C),
    (_C, RootEvent.ACK_ZERO): RootTransition(_C),
    (_C, RootEvent.FAIL): RootTransition(_C),
    (_C, RootEvent.RESET): RootTransition(_C),
    (_C, RootEvent.DEADLINE): RootTransition(_U),
}

WITH_ROTATION: dict[tuple[RootState, RootEvent], RootTransition] = {
    **TRANSITIONS,
    (_E, RootEvent.INIT): RootTransition(_O),
}
"""The transitions of an acker with rotation: as in Storm an entry keeps its age when its init arrives."""

VALUE_MASK = (1 << 64) - 1
STATE_SHIFT, SEEN_SHIFT, TASK_SHIFT, DEADLINE_SHIFT = 64, 66, 82, 106
MAX_COMPONENTS = (1 << (TASK_SHIFT - SEEN_SHIFT)) - 1
MAX_TASK = (1 << (DEADLINE_SHIFT - TASK_SHIFT)) - 1
STATE_MASK = 3 << STATE_SHIFT
SEEN_MASK = MAX_COMPONENTS << SEEN_SHIFT
TASK_MASK = MAX_TASK << TASK_SHIFT
BELOW_DEADLINE = (1 << DEADLINE_SHIFT) - 1
UNSEEN, UNSTATED = ~SEEN_MASK, ~STATE_MASK

STATES = (RootState.OPEN, RootState.EARLY, RootState.DOOMED, RootState.CLOSED)
STATE_BITS = {state: number << STATE_SHIFT for number, state in enumerate(STATES)}


def state_of(cell: int) -> RootState:
    """Return the state of a held root."""
    return STATES[(cell & STATE_MASK) >> STATE_SHIFT]


def deadline_of(cell: int) -> int:
    """Return the deadline of a held root, 0 with rotation."""
    return cell >> DEADLINE_SHIFT


# -- Anchors ---------------------------------------------------------------------------------------------------------------------


class Anchors:
    """The edges of one delivered tuple, an edge id in each of its trees; an unanchored tuple has none.

    roots: the trees; tuples that are anchored to the same tuple share its `roots`, so their memory does not grow with the trees.
    settled: whether it was acked or failed; a driver that tolerates a second ack tests it before.

    >>> edges = iter([0b001, 0b010, 0b100])
    >>> first = Anchors({7: next(edges)})
    >>> child = anchored([first], lambda: next(edges))
    >>> first.ack(), child.ack()
    ([(7, 3)], [(7, 2)])
    """

    __slots__ = ("_child_edges", "_edge", "roots", "settled")

    roots: Collection[int]

    def __init__(self, edges: dict[int, int]) -> None:
        for edge in edges.values():
            if not 0 < edge < 1 << 64:
                raise AckError(f"an edge id is in (0, 2**64), got {quote(edge)}; draw it with getrandbits(64), 0 again")
        self.roots = edges
        self._edge: int | None = None  # the same id in each tree; None if `roots` is a dict with an id for each
        self._child_edges = 0
        self.settled = False

    @property
    def edges(self) -> dict[int, int]:
        """The edge ids by root. Cost: O(trees)."""
        if self._edge is None:
            assert isinstance(self.roots, dict)
            return self.roots
        return dict.fromkeys(self.roots, self._edge)

    def child(self, edge: int) -> Anchors:
        """Return the anchors of a tuple emitted to one task and anchored to this tuple only: `anchored` for a single anchor."""
        if self.settled:
            self.require_open()
        self._child_edges ^= edge
        return edge_in(self.roots, edge)

    def make(self, edge: int) -> None:
        """Record an edge to a tuple that is anchored to this one."""
        self.require_open()
        self._child_edges ^= edge

    def require_open(self) -> None:
        """Raise AckError if the tuple was acked or failed, because no tuple can be anchored to it any more."""
        if self.settled:
            raise AckError(
                f"a tuple was anchored to one that was acked or failed before (roots {quote(list(self.roots))}); "
                "emit first, then ack"
            )

    def ack(self) -> list[tuple[int, int]]:
        """Settle the tuple; return (root, xor) for each ack message. Raises AckError the second time."""
        return acks_of((self,))

    def fail(self) -> list[int]:
        """Settle the tuple; return the roots that fail. Raises AckError the second time."""
        self._settle()
        return list(self.roots)

    def _settle(self) -> None:
        if self.settled:
            raise AckError(
                f"a tuple was acked or failed twice (roots {quote(list(self.roots))}); settle each tuple once, "
                "a BasicBolt does it by itself"
            )
        self.settled = True


_new_anchors = Anchors.__new__
_NO_ROOTS: Collection[int] = ()


def edge_in(roots: Collection[int], edge: int) -> Anchors:
    """Return the anchors of a tuple with one edge, which was just drawn and is not checked, in all of these trees. Cost: O(1)."""
    anchors = _new_anchors(Anchors)
    anchors.roots = roots
    anchors._edge = edge
    anchors._child_edges = 0
    anchors.settled = False
    return anchors


def anchored(anchors: Iterable[Anchors], next_edge: Callable[[], int]) -> Anchors:
    """Return the anchors of a tuple emitted to one task and anchored to `anchors`, each of which gets a new edge.

    Cost: one edge id per anchor and an XOR per root of it. Source: Storm's `BoltOutputCollectorImpl.boltEmit`.
    """
    edges: dict[int, int] = {}
    for anchor in anchors:
        edge = next_edge()
        anchor.make(edge)
        for root in anchor.roots:
            edges[root] = edges.get(root, 0) ^ edge
    return Anchors(edges)


def acks_of(tuples: Iterable[Anchors]) -> list[tuple[int, int]]:
    """Settle tuples; return (root, xor) for each ack message. Raises AckError for a tuple that was settled before.

    Successive tuples with the same `roots`, such as the rows of a window, are acked together: one message per root, with the XOR of
    their values. Cost: O(tuples + messages).
    """
    acks: list[tuple[int, int]] = []
    append, roots, xor = acks.append, _NO_ROOTS, 0
    for anchors in tuples:
        if anchors.settled:
            anchors._settle()
        anchors.settled = True
        edge, child_edges = anchors._edge, anchors._child_edges
        if edge is None:
            acks += [(root, own ^ child_edges) for root, own in anchors.edges.items()]
            continue
        if anchors.roots is not roots:
            for root in roots:
                append((root, xor))
            roots, xor = anchors.roots, 0
        xor ^= edge ^ child_edges
    for root in roots:
        append((root, xor))
    return acks


# -- Acker -----------------------------------------------------------------------------------------------------------------------


_NOTHING: Iterator[Acked | Failed] = iter(())


class AckerCounts:
    """Counts of roots by outcome: inited == acked + failed + timed_out + open, at any time.

    `late` counts messages for roots that had failed, `orphaned` roots whose init never arrived.
    """

    __slots__ = ("acked", "failed", "inited", "late", "orphaned", "timed_out")

    def __init__(self) -> None:
        self.inited = self.acked = self.failed = self.timed_out = 0
        self.late = self.orphaned = 0

    @property
    def open(self) -> int:
        """The number of roots that were begun and are neither acked nor failed."""
        return self.inited - self.acked - self.failed - self.timed_out


class Acker:
    """The ledger of one acker task. Cost: O(1) a message, four dict accesses and an XOR; 171 bytes a root with its id.

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
        self.tally = AckerCounts()
        self._now_ms = 0
        self._names: list[str | None] = [None]
        self._seen_bits: dict[str, int] = {}
        self._held: Timeouts[int, int] = timeouts_of(timeout_ms, rotation, deadline_of)
        self._transitions = TRANSITIONS if rotation is None else WITH_ROTATION

    # -- messages ------------------------------------------------------------------------------------------------------

    def init(self, root: int, xor: int, task: int, now_ms: int) -> Iterator[Acked | Failed]:
        """Begin a tree: the XOR of the edges that the spout `task` emitted is `xor`. Raises AckError if it was begun before."""
        return iter(self.init_all(((root, xor),), task, now_ms))

    def ack(self, root: int, xor: int, now_ms: int, seen: str | None = None) -> Iterator[Acked | Failed]:
        """Process the ack of one tuple: `xor` is its own edge id, XOR the ids of the edges anchored to it."""
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
            cell = cell & UNSEEN ^ (xor | (self._component_bits(seen) if bits is None else bits))
        if cell & VALUE_MASK:
            held.replace(root, cell)
            return _NOTHING
        held.remove(root)
        self.tally.acked += 1
        return iter((Acked(root, (cell & TASK_MASK) >> TASK_SHIFT),))

    def init_all(self, inits: Iterable[tuple[int, int]], task: int, now_ms: int) -> list[Acked | Failed]:
        """Process `init` for each (root, xor) of a batch that the spout `task` emitted; return the effects, in order."""
        self._now_ms = max(self._now_ms, now_ms)
        effects: list[Acked | Failed] = []
        held, tally = self._held, self.tally
        get, add = held.get, held.add
        new = held.deadline(self._now_ms) << DEADLINE_SHIFT | task << TASK_SHIFT
        for root, value in inits:
            if not 0 <= value <= VALUE_MASK or not 0 <= task <= MAX_TASK:
                self._refuse(value, task)
            cell = get(root)
            if cell is not None or not value:
                cell = value ^ (cell or 0)
                cause = RootEvent.INIT if cell & VALUE_MASK else RootEvent.INIT_ZERO
                effects += self._enter(root, (cell & ~TASK_MASK) | task << TASK_SHIFT, cause)
            elif add is not None:
                add(root, new | value)
            else:
                held.put(root, new | value, self._now_ms)
            tally.inited += 1
        return effects

    def ack_all(self, acks: Iterable[tuple[int, int]], now_ms: int, seen: str | None = None) -> dict[int, list[int]]:
        """Process `ack` for each (root, xor) of a batch from one component; return the acked roots by task, in order."""
        self._now_ms = max(self._now_ms, now_ms)
        get, replace, remove = self._held.get, self._held.replace, self._held.remove
        kept, bits = (-1, 0) if seen is None else (UNSEEN, self._component_bits(seen))
        found: dict[int, list[int]] = {}
        for root, value in acks:
            cell = get(root)
            if not 0 <= value <= VALUE_MASK:
                self._refuse(value)
            if cell is None or cell & STATE_MASK:
                self._ack_unless_open(root, value, seen)  # a root that is not open has no effect here
                continue
            cell = cell & kept ^ (value | bits)
            if cell & VALUE_MASK:
                replace(root, cell)
                continue
            remove(root)
            self.tally.acked += 1
            task = (cell & TASK_MASK) >> TASK_SHIFT
            if task in found:
                found[task].append(root)
            else:
                found[task] = [root]
        return found

    def fail(self, root: int, now_ms: int, seen: str | None = None) -> Iterator[Acked | Failed]:
        """Process the fail of a tuple: the tree of `root` fails, now or when its init arrives."""
        self._now_ms = max(self._now_ms, now_ms)
        return self._enter(root, self._with_component(self._held.get(root) or 0, seen), RootEvent.FAIL)

    def reset_timeout(self, root: int, now_ms: int) -> Iterator[Acked | Failed]:
        """Restart the timeout of an open tree.

        Storm's acker also notifies the spout's task, for its own timeout. Here a driver whose `SpoutPending` has one resets it too.
        """
        self._now_ms = max(self._now_ms, now_ms)
        return self._enter(root, self._held.get(root) or 0, RootEvent.RESET)

    def tick(self, now_ms: int) -> Iterator[Acked | Failed]:
        """Fail overdue roots, oldest first, and remove entries that are no longer needed. Cost: O(1) for each of them."""
        self._now_ms = max(self._now_ms, now_ms)
        effects: list[Acked | Failed] = []
        for root, cell in self._held.expire(self._now_ms):
            state = state_of(cell)
            effects.extend(self._follow(root, cell, state, self._transitions[state, RootEvent.DEADLINE]))
        return iter(effects)

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next deadline, None if no root is held. Cost: O(1)."""
        return self._held.next_deadline_ms()

    def __len__(self) -> int:
        """Return how many roots are held, open or not."""
        return len(self._held)

    # -- transitions ---------------------------------------------------------------------------------------------------

    def _enter(self, root: int, cell: int, cause: RootEvent) -> Iterator[Acked | Failed]:
        """Take the transition of `root` at an event, after which it has the value and the task of `cell`."""
        held = self._held.get(root)
        state = RootState.UNKNOWN if held is None else state_of(held)
        row = self._transitions.get((state, cause))
        if row is None:
            raise AckError(
                f"init of root {quote(root)}, which is {state.value} already; every emission of a spout needs a root id "
                "of its own, a replay too"
            )
        return self._follow(root, cell, state, row)

    def _ack_unless_open(self, root: int, xor: int, seen: str | None) -> Iterator[Acked | Failed]:
        cell = (self._held.get(root) or 0) ^ xor
        cause = RootEvent.ACK if cell & VALUE_MASK else RootEvent.ACK_ZERO
        return self._enter(root, self._with_component(cell, seen), cause)

    def _follow(self, root: int, cell: int, state: RootState, row: RootTransition) -> Iterator[Acked | Failed]:
        """Change `root` from `state` as the row says, and return the effect."""
        if row.then is not RootState.UNKNOWN:
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

    def _count(self, state: RootState, row: RootTransition) -> None:
        tally = self.tally
        if row.effect is Acked:
            tally.acked += 1
        elif row.effect is Reason.FAILED:
            tally.failed += 1
        elif row.effect is Reason.TIMEOUT:
            tally.timed_out += 1
        elif state is RootState.CLOSED and row.then is RootState.CLOSED:
            tally.late += 1
        elif state in (RootState.EARLY, RootState.DOOMED) and row.then is RootState.UNKNOWN:
            tally.orphaned += 1

    # -- components ----------------------------------------------------------------------------------------------------

    def _component_bits(self, seen: str) -> int:
        """Return the bits of a component, which is numbered at its first message."""
        bits = self._seen_bits.get(seen)
        if bits is None:
            if len(self._names) > MAX_COMPONENTS:
                raise AckError(
                    f"component {quote(seen)} is one more than the {MAX_COMPONENTS} that an acker tells apart; `seen` is "
                    "the name of a component, not of a tuple"
                )
            bits = self._seen_bits[seen] = len(self._names) << SEEN_SHIFT
            self._names.append(seen)
        return bits

    def _with_component(self, cell: int, seen: str | None) -> int:
        return cell if seen is None else cell & UNSEEN | self._component_bits(seen)

    def _name(self, cell: int) -> str | None:
        return self._names[(cell & SEEN_MASK) >> SEEN_SHIFT]

    def _refuse(self, xor: int, task: int = 0) -> None:
        raise AckError(
            f"an XOR of edge ids is in [0, 2**64) and a task in [0, {MAX_TASK}], got xor={quote(xor)}, task={quote(task)}; "
            "draw edge ids with getrandbits(64), and take Java's negative ones & (2**64 - 1)"
        )

    def check(self) -> None:
        """Assert the invariants. Cost: O(roots)."""
        self._held.check()
        cells = [cell for bucket in self._held.buckets() for _, cell in bucket]
        # A root is open exactly if it was begun and has had no effect.
        assert self.tally.open == sum(state_of(cell) is RootState.OPEN for cell in cells)
        for cell in cells:
            state = state_of(cell)
            # An open root has edges outstanding; a root without an init has no task yet.
            assert cell & VALUE_MASK or state is not RootState.OPEN
            assert not cell & TASK_MASK or state in (RootState.OPEN, RootState.CLOSED)
            # Components have names; no deadline is later than a timeout from now.
            assert (cell & SEEN_MASK) >> SEEN_SHIFT < len(self._names)
            assert deadline_of(cell) <= self._held.deadline(self._now_ms)
