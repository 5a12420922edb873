"""BatchLedger: which roots are done, where messages come a batch at a time and a root is a batch of a source (on Spark).

    batch 7   began root 7                 +----------------+
              partial (7, xor, +5 edges)   | root  xor edges|  --Acked-->  at the end of the batch after which no edge is left
              partial (5, xor, -3 edges)   |  5    ..   2   |
              failed  (6, "count")         |  6    ..   9   |  --Failed->  at the end of the batch in which somebody failed it
                                           |  7    ..   5   |
                                           +----------------+
                   news, until notified(batch)  <--------+

Laws
- Every edge comes twice: from who sent the tuple (+1) and from who was done with it (-1). A sender says of a root in one batch only
  the XOR of its edge ids and the sum of these numbers: a partial.
- A batch is whole: after it the value of a root is the XOR of the edges of tuples that wait somewhere (in windows). So a root is
  acked in the first batch after which there is none. XOR and number are zero together; if not, something was lost or came
  twice, and that is an error, never an early ack.
- A root is acked or failed, once. A fail wins. One with dead letters is acked when those are done with; its news says so. A failed
  root stays until its last edge is gone, then it leaves nothing.
- Batches come in ascending order, each once. The same batches give the same ledger, so a ledger is what a log of them folds to.
- News is kept until the driver has notified the source of it: it does so when the batch is committed, and may do so twice.

No timeouts: what carries the messages loses none, it makes a batch again instead. (acker.py has them.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from windowing.acking.acker import VALUE_MASK
from windowing.errors import UNREADABLE, AckError, damaged, quote

__all__ = [
    "BatchLedger",
    "BatchRecord",
    "News",
    "RootPartial",
]


_VERSION = 1


class RootPartial(NamedTuple):
    """What one task says of a root in one batch; `failed` is the component that failed tuples of it, `given_up` the one that made
    dead letters of some.
    """

    root: int
    xor: int
    edges: int
    failed: str | None = None
    given_up: str | None = None


@dataclass(frozen=True)
class BatchRecord:
    """What one batch says. `begun`: the new roots, with what the driver wants back with their news (plain data).

    notified: the batch up to which the driver has given all news to the sources before it handed this record over; -1 for none.
    """

    batch: int
    begun: Mapping[int, Any]
    partials: tuple[RootPartial, ...]
    notified: int = -1

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data."""
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


class News(NamedTuple):
    """A root was acked, or failed by the component `failed`, in this batch. `payload` is what it was begun with. An acked one may
    have dead letters of the component `given_up`.
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
    """The open roots and the news of them. Cost of a batch: O(roots that it names); memory: O(open roots).

    >>> ledger = BatchLedger()
    >>> ledger.take(BatchRecord(0, {10: "first"}, (RootPartial(10, 0b011, 2),)))
    >>> ledger.take(BatchRecord(1, {11: "second"}, (RootPartial(10, 0b001, -1), RootPartial(10, 0b010, -1))))
    >>> [(news.root, news.payload) for news in ledger.news(upto=1)]
    [(10, 'first'), (11, 'second')]
    >>> ledger.notified(1)
    >>> ledger.news(upto=1), len(ledger)
    ([], 0)
    """

    def __init__(self) -> None:
        self.batch = -1
        """The last batch that was taken."""
        self.notified_upto = -1
        """The batch up to which the sources were notified."""
        self._roots: dict[int, _Root] = {}
        self._news: list[News] = []

    def take(self, record: BatchRecord) -> None:
        """Take what a batch says. Raises AckError where it cannot be right; the ledger is unchanged then."""
        if record.batch != self.batch + 1:
            raise AckError(f"batch {record.batch} came after batch {self.batch}; batches are taken in order, each once")
        changed = self._changed(record)
        self.notified(record.notified)
        self.batch = record.batch
        for number, root in sorted(changed.items()):
            self._judge(number, root)

    def news(self, upto: int) -> list[News]:
        """Return the news of batches up to this one, oldest first, that was not yet given."""
        return [news for news in self._news if news.batch <= upto]

    def notified(self, upto: int) -> None:
        """Take note that all news of batches up to this one was given."""
        self.notified_upto = max(self.notified_upto, upto)
        self._news = [news for news in self._news if news.batch > self.notified_upto]

    @property
    def open(self) -> tuple[int, ...]:
        """The roots that are neither acked nor failed, in the order in which they were begun."""
        return tuple(number for number, root in self._roots.items() if root.failed is None)

    @property
    def next_news(self) -> int | None:
        """The first batch that has news to be given, None if there is none."""
        return self._news[0].batch if self._news else None

    def __len__(self) -> int:
        """Return how many roots are held, open or failed."""
        return len(self._roots)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def _changed(self, record: BatchRecord) -> dict[int, _Root]:
        """Return the roots as they are after the batch, those that it names."""
        changed: dict[int, _Root] = {}
        for number, payload in record.begun.items():
            if number in self._roots:
                raise AckError(
                    f"batch {record.batch} begins root {quote(number)}, which is open; number roots by batch"
                )
            changed[number] = _Root(payload)
        for partial in record.partials:
            root = changed.get(partial.root) or self._copy(partial.root)
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

    def _copy(self, number: int) -> _Root | None:
        held = self._roots.get(number)
        return None if held is None else replace(held)

    def _judge(self, number: int, root: _Root) -> None:
        before = self._roots.get(number)
        if root.failed is not None and (before is None or before.failed is None):
            self._news.append(News(self.batch, number, root.failed, root.payload))
        if root.edges:
            self._roots[number] = root
            return
        if root.failed is None:
            self._news.append(News(self.batch, number, None, root.payload, root.given_up))
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
            "news": [list(news) for news in self._news],
        }

    def begun_anew(self) -> BatchLedger:
        """Return the ledger of a run that goes on from here, whose batch 0 is all that was before: what is news is its news."""
        news = [[0, *rest] for _, *rest in self.snapshot()["news"]]
        return BatchLedger.restored({**self.snapshot(), "batch": 0, "told": -1, "news": news})

    @classmethod
    def restored(cls, data: Any) -> BatchLedger:
        """Return the ledger of a snapshot. Raises SnapshotError."""
        ledger = cls()
        try:
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']}, wanted {_VERSION}")
            ledger.batch, ledger.notified_upto = data["batch"], data["told"]
            ledger._roots = {number: _Root(*rest) for number, *rest in data["roots"]}
            ledger._news = [News(*each) for each in data["news"]]
            ledger.check()
        except UNREADABLE as problem:
            raise damaged(problem, "a snapshot of the ledger", "restore it from a copy") from problem
        return ledger

    def check(self) -> None:
        """Assert what always holds. Cost: O(open roots)."""
        for root in self._roots.values():
            # What is held waits for edges.
            assert root.edges > 0
            assert 0 < root.xor <= VALUE_MASK
        # News is in the order of its batches, and none of it was given.
        batches = [news.batch for news in self._news]
        assert batches == sorted(batches)
        assert all(self.notified_upto < batch <= self.batch for batch in batches)
