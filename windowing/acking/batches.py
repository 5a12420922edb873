"""BatchLedger: the state of roots where messages arrive in batches and a root is a batch of a source (on Spark).

    batch 7   began root 7                 +----------------+
              partial (7, xor, +5 edges)   | root  xor edges|  --Acked-->  at the end of the batch after which no edge is left
              partial (5, xor, -3 edges)   |  5    ..   2   |
              failed  (6, "count")         |  6    ..   9   |  --Failed->  at the end of the batch in which a component failed it
                                           |  7    ..   5   |
                                           +----------------+
                   outcomes, until notified(batch)  <----+

Laws
- Every edge is counted twice: by the sender of the tuple (+1) and by the task that acked it (-1). For a root and a batch a task
  sends only the XOR of its edge ids and the sum of these numbers: a partial.
- A batch is complete: after it the value of a root is the XOR of the edges of tuples that are still held (in windows). So a root is
  acked in the first batch after which there are none. XOR and number are zero together; otherwise a message was lost or repeated,
  which is an error and never an early ack.
- A root is acked or failed, once. A fail wins. One with dead letters is acked when these are acked, and its outcome names them. A
  failed root is held until its last edge is gone.
- Batches arrive in ascending order, each once. The same batches give the same ledger, so a ledger can be rebuilt from a log of
  them.
- An outcome is kept until the driver has notified the source, which it does when the batch is committed, and may do twice.

There are no timeouts, because the transport loses no messages; a batch is repeated instead. (acker.py has timeouts.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from windowing.acking.acker import VALUE_MASK
from windowing.errors import UNREADABLE, AckError, damaged, quote

_VERSION = 1


class RootPartial(NamedTuple):
    """The partial of one task for a root in one batch; `failed` is the component that failed tuples of it, `given_up` the one that
    made dead letters of some.
    """

    root: int
    xor: int
    edges: int
    failed: str | None = None
    given_up: str | None = None


@dataclass(frozen=True)
class BatchRecord:
    """All messages of one batch. `begun`: the new roots, each with a payload (plain data) that is returned with its outcome.

    notified: the last batch whose outcomes the driver had given to the sources when it made this record; -1 for none.
    """

    batch: int
    begun: Mapping[int, Any]
    partials: tuple[RootPartial, ...]
    notified: int = -1

    def plain(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "batch": self.batch,
            "begun": [[root, payload] for root, payload in self.begun.items()],
            "partials": [list(partial) for partial in self.partials],
            "told": self.notified,
        }

    @classmethod
    def of(cls, data: Any) -> BatchRecord:
        """Return the record of plain data. Raises SnapshotError."""
        try:
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']}, wanted {_VERSION}")
            begun = {int(root): payload for root, payload in data["begun"]}
            return cls(data["batch"], begun, tuple(RootPartial(*each) for each in data["partials"]), data["told"])
        except UNREADABLE as problem:
            raise damaged(problem, "a record of a batch", "restore it from a copy") from problem


class RootOutcome(NamedTuple):
    """A root was acked in this batch, or failed by the component `failed`. `payload` is that of its begin. An acked root may have
    dead letters of the component `given_up`.
    """

    batch: int
    root: int
    failed: str | None
    payload: Any
    given_up: str | None = None


@dataclass(slots=True)
class _Root:
    payload: Any
    xor: int = 0
    edges: int = 0
    failed: str | None = None
    given_up: str | None = None


class BatchLedger:
    """The open roots, and the outcomes of the others. Cost of a batch: O(roots that it names); memory: O(open roots).

    >>> ledger = BatchLedger()
    >>> ledger.apply(BatchRecord(0, {10: "first"}, (RootPartial(10, 0b011, 2),)))
    >>> ledger.apply(BatchRecord(1, {11: "second"}, (RootPartial(10, 0b001, -1), RootPartial(10, 0b010, -1))))
    >>> [(outcome.root, outcome.payload) for outcome in ledger.outcomes(upto=1)]
    [(10, 'first'), (11, 'second')]
    >>> ledger.notified(1)
    >>> ledger.outcomes(upto=1), len(ledger)
    ([], 0)
    """

    def __init__(self) -> None:
        self.batch = -1
        """The last batch that was applied."""
        self.notified_upto = -1
        """The last batch whose outcomes were given to the sources."""
        self._roots: dict[int, _Root] = {}
        self._outcomes: list[RootOutcome] = []

    def apply(self, record: BatchRecord) -> None:
        """Apply a batch. Raises AckError for an impossible one; the ledger is then unchanged."""
        if record.batch != self.batch + 1:
            raise AckError(f"batch {record.batch} came after batch {self.batch}; batches are taken in order, each once")
        changed = self._changed(record)
        self.notified(record.notified)
        self.batch = record.batch
        for number, root in sorted(changed.items()):
            self._judge(number, root)

    def outcomes(self, upto: int) -> list[RootOutcome]:
        """Return the outcomes of batches up to this one that were not given yet, oldest first."""
        return [outcome for outcome in self._outcomes if outcome.batch <= upto]

    def notified(self, upto: int) -> None:
        """Record that all outcomes of batches up to this one were given."""
        self.notified_upto = max(self.notified_upto, upto)
        self._outcomes = [outcome for outcome in self._outcomes if outcome.batch > self.notified_upto]

    @property
    def open(self) -> tuple[int, ...]:
        """The roots that are neither acked nor failed, in the order in which they were begun."""
        return tuple(number for number, root in self._roots.items() if root.failed is None)

    @property
    def next_outcome(self) -> int | None:
        """The first batch with an outcome that was not given, None if there is none."""
        return self._outcomes[0].batch if self._outcomes else None

    def __len__(self) -> int:
        """Return how many roots are held, open or failed."""
        return len(self._roots)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def _changed(self, record: BatchRecord) -> dict[int, _Root]:
        """Return the state after the batch of each root that it names."""
        changed: dict[int, _Root] = {}
        for number, payload in record.begun.items():
            if number in self._roots:
                raise AckError(
                    f"batch {record.batch} begins root {quote(number)}, which is open; number roots by batch"
                )
            changed[number] = _Root(payload)
        for partial in record.partials:
            held = self._roots.get(partial.root)
            root = changed.get(partial.root) or (held and replace(held))
            if root is None or not 0 <= partial.xor <= VALUE_MASK:
                raise AckError(
                    f"batch {record.batch} says {quote(partial)}, but that root is not open, or the XOR not in [0, 2**64); "
                    "a tuple was acked twice, or the ledger is not of this run"
                )
            changed[partial.root] = root
            root.xor ^= partial.xor
            root.edges += partial.edges
            root.failed = root.failed or partial.failed
            root.given_up = root.given_up or partial.given_up
        for number, root in changed.items():
            if root.edges < 0 or (root.xor == 0) != (root.edges == 0):
                raise AckError(
                    f"after batch {record.batch} root {number} has {root.edges} edges whose XOR is {root.xor:#x}; they are zero "
                    "together unless a tuple was lost, or acked twice; nothing was acked"
                )
        return changed

    def _judge(self, number: int, root: _Root) -> None:
        before = self._roots.get(number)
        if root.failed is not None and (before is None or before.failed is None):
            self._outcomes.append(RootOutcome(self.batch, number, root.failed, root.payload))
        if root.edges:
            self._roots[number] = root
            return
        if root.failed is None:
            self._outcomes.append(RootOutcome(self.batch, number, None, root.payload, root.given_up))
        self._roots.pop(number, None)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return all state as plain data. Cost: O(open roots)."""
        return {
            "version": _VERSION,
            "batch": self.batch,
            "told": self.notified_upto,
            "roots": [
                [number, root.payload, root.xor, root.edges, root.failed, root.given_up]
                for number, root in self._roots.items()
            ],
            "news": [list(outcome) for outcome in self._outcomes],
        }

    def continued_ledger(self) -> BatchLedger:
        """Return the ledger for a new run that continues here: the earlier batches become batch 0, with pending outcomes."""
        outcome = [[0, *rest] for _, *rest in self.snapshot()["news"]]
        return BatchLedger.restored({**self.snapshot(), "batch": 0, "told": -1, "news": outcome})

    @classmethod
    def restored(cls, data: Any) -> BatchLedger:
        """Return the ledger of a snapshot. Raises SnapshotError."""
        ledger = cls()
        try:
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']}, wanted {_VERSION}")
            ledger.batch, ledger.notified_upto = data["batch"], data["told"]
            ledger._roots = {number: _Root(*rest) for number, *rest in data["roots"]}
            ledger._outcomes = [RootOutcome(*each) for each in data["news"]]
            ledger.check()
        except UNREADABLE as problem:
            raise damaged(problem, "a snapshot of the ledger", "restore it from a copy") from problem
        return ledger

    def check(self) -> None:
        for root in self._roots.values():
            # A held root has edges outstanding.
            assert root.edges > 0
            assert 0 < root.xor <= VALUE_MASK
        # Outcomes are in the order of their batches, and none of them was given.
        batches = [outcome.batch for outcome in self._outcomes]
        assert batches == sorted(batches)
        assert all(self.notified_upto < batch <= self.batch for batch in batches)
