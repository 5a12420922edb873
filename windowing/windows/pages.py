"""Pages of tuples: a bounded number of tuples is in memory, the other pages are in a PageStore.

    changed --write--> stored as n        an eviction, or a flush before a checkpoint
    stored as n --a tuple is added--> changed: n is an older version, dropped when no checkpoint names it
    resident --evict--> away --rows()--> resident        least recently used first; a page that is being read is pinned

Laws
- A stored page never changes: a changed page is written under a new id, and ids only grow.
- resident <= max(limit, pinned), where the one page in use counts as pinned. `peak` is the largest value so far.
- A page that the last committed checkpoint names is dropped from the store only after a later one, which does not, is committed.
- Dropping pages does not read their rows.

Source: Storm's `WindowState` and `SimpleWindowPartitionCache`, which evicts the newest unpinned partition first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from windowing.errors import CorruptStateError, WindowingError
from windowing.windows.queue import stable_order

_SWEEP_AT = 64


class PageRows(NamedTuple):
    """The tuples of one page in (timestamp, arrival) order, as parallel lists; `sequences` are their arrival numbers."""

    timestamps: list[int]
    payloads: list[Any]
    sequences: list[int]


class PageStore(Protocol):
    """The store of the pages that are not in memory. One task writes it. A page that cannot be read raises an error with its id."""

    @abstractmethod
    def write(self, page_id: int, rows: PageRows) -> None:
        """Store a page under an unused id; durable after the next `flush`. The store keeps no reference to the lists."""

    @abstractmethod
    def read(self, page_id: int) -> PageRows:
        """Return a page as it was written, in new lists. Raises CorruptStateError if it is damaged or missing."""

    @abstractmethod
    def drop(self, page_ids: Collection[int]) -> None:
        """Delete pages; unknown ids are ignored."""

    @abstractmethod
    def flush(self) -> None:
        """Make all writes durable."""

    @abstractmethod
    def ids(self) -> Iterable[int]:
        """Return the ids of all pages, including those that a killed run left behind."""


class CheckpointedPages(PageStore, Protocol):
    """A PageStore that also keeps the manifests of its task's checkpoints: a committed one and a prepared one.

    task_ids: by component, the current ids of the tasks that a topology's tuples come from; they are not stored.
    """

    name: str
    task_ids: Mapping[str, range]

    @abstractmethod
    def prepare(self, txid: int, manifest: Any) -> None:
        """Store a manifest beside the committed one; durable on return."""

    @abstractmethod
    def commit(self, txid: int) -> None:
        """Make the prepared manifest the committed one; durable on return, idempotent."""

    @abstractmethod
    def rollback(self) -> None:
        """Delete the prepared manifest, if there is one."""

    @abstractmethod
    def committed(self) -> tuple[int, Any] | None:
        """Return (txid, manifest) of the committed checkpoint, None before the first."""

    @abstractmethod
    def close(self) -> None:
        """Close the store; writes that were not flushed are lost."""


class Page:
    """The description of a page, also while its rows are away; `rows` is None then.

    `first`, `last` are its smallest and largest timestamps, `oldest`, `newest` its smallest and largest sequence numbers. `id`
    is None until it is stored. `changed`: the stored version differs from the rows. `named`: a checkpoint names `id`.
    `waiting`: tuples that came while the rows were away, in order of arrival; the description includes them.
    """

    __slots__ = ("changed", "count", "first", "id", "last", "named", "newest", "oldest", "pins", "rows", "waiting")

    def __init__(self) -> None:
        self.id: int | None = None
        self.rows: PageRows | None = None
        self.waiting: PageRows | None = None
        self.count = 0
        self.first = self.last = self.oldest = self.newest = 0
        self.changed = False
        self.named = False
        self.pins = 0

    def plain(self) -> list[int]:
        """Return the page as plain data, as a checkpoint stores it."""
        assert self.id is not None
        assert not self.changed
        assert self.waiting is None
        return [self.id, self.count, self.first, self.last, self.oldest, self.newest]

    @classmethod
    def of(cls, data: Iterable[int]) -> Page:
        """Return the page described by `plain`; its rows are away."""
        page = cls()
        page.id, page.count, page.first, page.last, page.oldest, page.newest = data
        page.named = True
        return page

    def put(self, added: PageRows) -> None:
        """Insert tuples into the rows by timestamp, behind equal ones. Cost: O(added) if all are after the others, or O(page)."""
        assert self.rows is not None
        if all(one <= two for one, two in pairwise([self.rows.timestamps[-1], *added.timestamps])):
            for held, more in zip(self.rows, added, strict=True):
                held.extend(more)
        else:
            joined = PageRows(*(held + more for held, more in zip(self.rows, added, strict=True)))
            pick = stable_order(joined.timestamps)
            self.rows = PageRows(*(list(pick(column)) for column in joined))
        self.changed = True

    def include(self, added: PageRows) -> None:
        """Update the description for tuples that are added to the page, in order of time."""
        self.count += len(added.timestamps)
        self.first, self.last = min(self.first, added.timestamps[0]), max(self.last, added.timestamps[-1])
        self.oldest, self.newest = min(self.oldest, *added.sequences), max(self.newest, *added.sequences)

    def describe(self) -> None:
        """Derive the description from the rows. Cost: O(page)."""
        assert self.rows is not None
        timestamps, _, sequences = self.rows
        self.count, self.first, self.last = len(timestamps), timestamps[0], timestamps[-1]
        self.oldest, self.newest = min(sequences), max(sequences)
        self.changed = True

    def check(self) -> None:
        assert self.count > 0
        assert self.first <= self.last
        assert self.oldest <= self.newest
        # A page that is not in memory is stored, in its current version.
        assert self.rows is not None or (self.id is not None and not self.changed)
        assert self.pins == 0 or self.rows is not None
        # Tuples wait only for rows that are away.
        assert self.waiting is None or (self.rows is None and self.waiting.timestamps)
        if self.rows is not None:
            timestamps, payloads, sequences = self.rows
            assert len(timestamps) == len(payloads) == len(sequences) == self.count
            keys = list(zip(timestamps, sequences, strict=True))
            assert keys == sorted(keys)
            assert (timestamps[0], timestamps[-1]) == (self.first, self.last)
            assert (min(sequences), max(sequences)) == (self.oldest, self.newest)


class PageCache:
    """The pages of one task, of all its keys: which of them are in memory, and which stored versions can be dropped.

    `limit`, of the tuples of pages in memory and of those that wait for pages, and `most_waiting`, of the latter, are in tuples.
    """

    def __init__(self, store: PageStore, limit: int, most_waiting: int = 0) -> None:
        self.store = store
        self.limit, self.most_waiting = limit, most_waiting
        self.resident = 0
        self.waiting = 0
        self.peak = 0
        self.pinned = 0
        self.failure: WindowingError | None = None
        """The last error of the store since `restore`, which may have been raised in code of the user that read a window."""
        self._next_id = 0
        # Not dicts: those search their first entry past all that were deleted before it.
        self._recent = OrderedDict[Page, None]()  # resident pages, the least recently used first
        self._awaited = OrderedDict[Page, None]()  # pages for which tuples wait, the longest first
        self._unnamed: list[int] = []  # stored versions that were replaced and that no checkpoint names
        self._replaced: list[int] = []  # named by a checkpoint, and replaced since the last one was prepared
        self._superseded: list[int] = []  # named by a checkpoint older than the one that was prepared last

    # -- rows ------------------------------------------------------------------------------------------------------------

    def rows(self, page: Page) -> PageRows:
        """Return the rows of a page, read from the store if they are away. They are valid until the next call of the cache."""
        if page.rows is not None:
            self._recent.move_to_end(page)
            return page.rows
        assert page.id is not None
        self.make_room(page.count)
        with self._recorded():
            rows = self.store.read(page.id)
            self._check_count(page, rows)
        page.rows = rows
        self._enter(page)
        waiting = self._no_longer_waiting(page)
        if waiting is not None:
            page.put(waiting)
        return page.rows

    def _no_longer_waiting(self, page: Page) -> PageRows | None:
        """Take the tuples that wait for a page, None if there are none."""
        waiting = page.waiting
        if waiting is not None:
            page.waiting = None
            self.waiting -= len(waiting.timestamps)
            del self._awaited[page]
        return waiting

    def _check_count(self, page: Page, rows: PageRows) -> None:
        stored = page.count - (0 if page.waiting is None else len(page.waiting.timestamps))
        if not len(rows.timestamps) == len(rows.payloads) == len(rows.sequences) == stored:
            raise CorruptStateError(
                f"page {page.id} has {len(rows.timestamps)} tuples, wanted {stored}; restore the store and its "
                "checkpoint from one copy, nothing was reset"
            )

    def admit(self, page: Page, rows: PageRows) -> None:
        """Add a new page with these rows; the page owns the lists from then on."""
        self.make_room(len(rows.timestamps))
        page.rows = rows
        page.describe()
        self._enter(page)

    def merge(self, page: Page, added: PageRows) -> None:
        """Merge tuples into a page by timestamp; they arrived after all its tuples, and the page owns the lists from then on.

        Tuples for a page that is away wait until it is read, or too many wait. Cost: that of `put`; O(added) if it is away.
        """
        if page.rows is not None:
            self.rows(page)
            self.make_room(len(added.timestamps), keep=page)
            page.put(added)
            page.include(added)
            self._count(len(added.timestamps))
            return
        page.include(added)
        if page.waiting is None:
            page.waiting = added
            self._awaited[page] = None
        else:
            for held, more in zip(page.waiting, added, strict=True):
                held.extend(more)
        self.waiting += len(added.timestamps)
        while self.waiting > self.most_waiting:
            self.rows(next(iter(self._awaited)))
        self.make_room(0)

    def cut(self, page: Page, at: int) -> PageRows:
        """Remove the tuples from position `at` on from a page, and return them."""
        rows = self.rows(page)
        removed = PageRows(*(held[at:] for held in rows))
        for held in rows:
            del held[at:]
        page.describe()
        self._count(-len(removed.timestamps))
        return removed

    def make_room(self, tuples: int, keep: Page | None = None) -> None:
        """Evict pages until `tuples` more fit, or only pinned pages are left. Cost: O(pages that are pinned or evicted)."""
        while self.resident + self.waiting + tuples > self.limit:
            page = next((each for each in self._recent if not each.pins and each is not keep), None)
            if page is None:
                return
            self._evict(page)

    def _evict(self, page: Page) -> None:
        self._write(page)
        page.rows = None
        del self._recent[page]
        self._count(-page.count)

    def _enter(self, page: Page) -> None:
        self._recent[page] = None
        self._count(page.count)

    def _count(self, tuples: int) -> None:
        self.resident += tuples
        if self.resident > self.peak:
            self.peak = self.resident

    def pin(self, page: Page) -> PageRows:
        """Pin a page and return its rows; they stay in memory until `unpin`."""
        rows = self.rows(page)
        if not page.pins:
            self.pinned += page.count
        page.pins += 1
        return rows

    def unpin(self, page: Page) -> None:
        """Unpin a page; ignored after a restore."""
        if page.pins:
            page.pins -= 1
            if not page.pins:
                self.pinned -= page.count
                self.make_room(0)

    # -- the store -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        except WindowingError as problem:
            self.failure = problem
            raise

    def _write(self, page: Page) -> None:
        if not page.changed:
            return
        assert page.rows is not None
        replaced, page_id = page.id, self._next_id
        with self._recorded():
            self.store.write(page_id, page.rows)
        self._next_id += 1
        page.id, page.changed, named, page.named = page_id, False, page.named, False
        if replaced is not None:
            self._release(replaced, named)

    def _release(self, page_id: int, named: bool) -> None:
        (self._replaced if named else self._unnamed).append(page_id)
        if len(self._unnamed) >= _SWEEP_AT:
            self._sweep()

    def _sweep(self) -> None:
        if self._unnamed:
            with self._recorded():
                self.store.drop(self._unnamed)
            self._unnamed = []

    def discard(self, pages: Iterable[Page]) -> None:
        """Drop pages, none of them pinned. Cost: O(1) a page; none is read."""
        for page in pages:
            if page.rows is not None:
                page.rows = None
                del self._recent[page]
                self._count(-page.count)
            self._no_longer_waiting(page)
            if page.id is not None:
                self._release(page.id, page.named)

    def flush(self) -> None:
        """Write every page that has changed and make the store durable; resident pages stay in memory.

        Cost: O(resident), and a read of each page for which tuples wait.
        """
        while self._awaited:
            self.rows(next(iter(self._awaited)))
        for page in self._recent:
            self._write(page)
        self._sweep()
        self.store.flush()

    def prepared(self, pages: Iterable[Page]) -> dict[str, int]:
        """Mark all pages of the task as named by the checkpoint in preparation; return the cache's part of its data."""
        for page in pages:
            page.named = True
        self._superseded += self._replaced
        self._replaced = []
        return {"next_id": self._next_id}

    def committed(self) -> None:
        """The last prepared checkpoint is committed: drop the pages that only older ones name."""
        if self._superseded:
            self.store.drop(self._superseded)
            self._superseded = []
        self.store.flush()

    def restore(self, data: dict[str, int], named: Collection[int]) -> None:
        """Start with the pages of a checkpoint; drop all other pages. No page is read.

        Raises CorruptStateError if one of them is missing; then no page is dropped.
        """
        held = set(self.store.ids())
        missing = sorted(set(named) - held)
        if missing:
            raise CorruptStateError(
                f"page {missing[0]} is missing from the store, and so are {len(missing) - 1} others that the checkpoint names; "
                "restore the store and its checkpoint from one copy, nothing was reset"
            )
        self.store.drop(held - set(named))
        self.store.flush()
        for page in self._recent:  # an iterator from before the restore may still unpin one
            page.rows, page.pins = None, 0
        self.resident = self.pinned = self.waiting = 0
        self.failure = None
        self._next_id = data["next_id"]
        self._recent.clear()
        self._awaited.clear()
        self._unnamed, self._replaced, self._superseded = [], [], []

    def check(self, pages: Collection[Page]) -> None:
        """Assert the invariants; `pages` are all of the task's. Cost: O(pages and resident tuples)."""
        for page in pages:
            page.check()
        resident = [page for page in pages if page.rows is not None]
        # `_recent` contains each resident page once, and the counters are sums over them.
        assert set(self._recent) == set(resident)
        assert self.resident == sum(page.count for page in resident)
        assert self.pinned == sum(page.count for page in resident if page.pins)
        awaited = {page: len(page.waiting.timestamps) for page in pages if page.waiting is not None}
        assert set(self._awaited) == set(awaited)
        assert self.waiting == sum(awaited.values()) <= self.most_waiting
        # The bound on memory.
        biggest = max((page.count for page in resident), default=0)
        assert self.resident <= max(self.limit - self.waiting, self.pinned + biggest)
        # Every stored page is in the store, under an id of its own.
        stored = [page.id for page in pages if page.id is not None]
        assert len(stored) == len(set(stored))
        assert set(stored) | set(self._replaced) | set(self._superseded) <= set(self.store.ids())
        assert all(each < self._next_id for each in stored)
