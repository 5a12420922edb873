"""PagedWindowManager: windows larger than memory, with their tuples in pages; at most `max_events_in_memory` are in memory.

    position    0         1000      2000      3000    3400
    pages       [  away  ][  away  ][resident][tail     |    staged
                first, last, count of each are in memory    (at most a quarter of what may be in memory)

    settle      4 tuples after the last one: appended to the tail; 2 before it: each merged into the page that covers its time,
                or, if that page is away, it waits for it (at most as many as may be staged)
    get()       a sequence of positions; an iteration reads one page after the other

Laws
- The windows are those of WindowManager, tuple by tuple: a PagedBuffer returns the same tuples in the same order as a ListBuffer.
- A page that gets tuples out of order is read and written once for all tuples that wait for it, not for each.
- A search reads at most one page, and none where the first and last timestamps decide. Expiring whole pages reads none.
- A sequence is valid until its lease ends: for a window when its execute has returned, for expired tuples when the driver requests
  the next effect. Then it raises; it never gives other tuples. Each iterator pins one page at a time.
- A snapshot names pages in the store and holds no tuples: it is valid while the store holds these pages (see `committed`).

Source: Storm's `WindowState`, whose windows support iteration only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any, overload

from windowing.errors import StaleWindowError
from windowing.windows.config import WindowConfig
from windowing.windows.events import Effect, TupleWindow
from windowing.windows.guard import NO_EFFECTS, Guard, one_for_each
from windowing.windows.key_state import KeyState
from windowing.windows.manager import WindowManager
from windowing.windows.pages import Page, PageCache, PageRows, PageStore
from windowing.windows.queue import stable_order

PageRun = tuple[int, int]
"""Positions [low, high)."""
_last_of = attrgetter("last")


class Lease:
    """The lifetime of the sequences of one window, and the pages that their iterators have pinned."""

    __slots__ = ("_cache", "_pinned", "ended")

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self._pinned: list[Page] = []
        self.ended = False

    def pin(self, page: Page) -> PageRows:
        """Pin a page and return its rows; they stay in memory until `unpin` or the end of the lease."""
        rows = self._cache.pin(page)
        self._pinned.append(page)
        return rows

    def unpin(self, page: Page) -> None:
        """Unpin a page; ignored after the end of the lease."""
        if not self.ended:
            self._pinned.remove(page)
            self._cache.unpin(page)

    def end(self) -> None:
        """Unpin all pages; iterators that are not exhausted raise at their next page."""
        self.ended = True
        for page in self._pinned:
            self._cache.unpin(page)
        self._pinned.clear()


class PagedTuples(Sequence[Any]):
    """Tuples of a PagedBuffer as runs of positions, with `len`, indices, slices and repeated iteration, one page at a time.

    A slice without a step is lazy too. Raises StaleWindowError after the end of the lease; an iterator may first yield the rest of
    its page. Cost: an iteration reads each page once, an index at most one page.
    """

    __slots__ = ("_buffer", "_lease", "_runs", "_upto")

    def __init__(self, buffer: PagedBuffer, runs: Iterable[PageRun], lease: Lease) -> None:
        self._buffer = buffer
        self._runs = [run for run in runs if run[0] < run[1]]
        self._upto = list(accumulate(high - low for low, high in self._runs))
        self._lease = lease

    def __len__(self) -> int:
        return self._upto[-1] if self._upto else 0

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._buffer.read(self._runs, self._lease))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[each] for each in range(start, stop, step)]
            return PagedTuples(self._buffer, self._between(start, stop), self._lease)
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"tuple {index} of a window of {len(self)} tuples")
        [run] = self._between(at, at + 1)
        return next(chain.from_iterable(self._buffer.read([run], self._lease)))

    def _between(self, start: int, stop: int) -> Iterator[PageRun]:
        """Yield the runs of the items [start, stop)."""
        number = bisect_right(self._upto, start)
        while start < stop:
            low, high = self._runs[number]
            before = self._upto[number] - (high - low)
            end = min(stop, self._upto[number])
            yield low + start - before, low + end - before
            start, number = end, number + 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it equals lists, so like a list it has no hash

    def __repr__(self) -> str:
        return f"<{len(self)} tuples in pages>"


class PagedBuffer:
    """The Buffer of a window with its pages in a PageCache, which all keys of a task share.

    `page_tuples` is the number of tuples of a full page. A page that gets tuples out of order may grow to twice that size. Pages of
    a checkpoint keep their size.
    """

    sequenced = True

    def __init__(self, cache: PageCache, page_tuples: int) -> None:
        self.base = 0
        self.pages: list[Page] = []
        self._cache = cache
        self._page_tuples = page_tuples
        self._starts: list[int] = []  # the position of each page's first tuple
        self._end = 0
        self._staged = PageRows([], [], [])
        self._lease = Lease(cache)

    @property
    def end(self) -> int:
        return self._end

    @property
    def staged(self) -> Sequence[int]:
        return self._staged.timestamps

    # -- writing ---------------------------------------------------------------------------------------------------------

    def stage(self, timestamps: Sequence[int], payloads: Sequence[Any], first_sequence: int) -> None:
        self._staged.timestamps.extend(timestamps)
        self._staged.payloads.extend(payloads)
        self._staged.sequences.extend(range(first_sequence, first_sequence + len(timestamps)))

    def stage_one(self, timestamp: int, payload: Any, sequence: int) -> None:
        self._staged.timestamps.append(timestamp)
        self._staged.payloads.append(payload)
        self._staged.sequences.append(sequence)

    def settle(self) -> None:
        """Merge the staged tuples. Cost: that of the pages that change: the tail, and those of tuples out of order."""
        staged = self._staged
        if not staged.timestamps:
            return
        self.lend()
        self._staged = PageRows([], [], [])
        ordered = sorted(staged.timestamps)
        if ordered != staged.timestamps:
            pick = stable_order(staged.timestamps)
            staged = PageRows(ordered, list(pick(staged.payloads)), list(pick(staged.sequences)))
        behind = bisect_left(ordered, self.pages[-1].last) if self.pages else 0
        if behind:
            self._insert(_part(staged, 0, behind))
        self._append(staged, behind)

    def _append(self, rows: PageRows, at: int) -> None:
        """Append the rows from position `at` on after all others."""
        while at < len(rows.timestamps):
            room = self._page_tuples - self.pages[-1].count if self.pages else 0
            if room > 0:
                page, added = self.pages[-1], _part(rows, at, at + room)
                self._cache.merge(page, added)
            else:
                page, added = Page(), _part(rows, at, at + self._page_tuples)
                self._cache.admit(page, added)
                self._put(len(self.pages), page, self._end)
            at += len(added.timestamps)
            self._end = self._starts[-1] + page.count

    def _insert(self, rows: PageRows) -> None:
        """Merge rows, all before the last timestamp, into the pages that cover their times."""
        first = bisect_right(self.pages, rows.timestamps[0], key=_last_of)
        at, number = 0, first
        while at < len(rows.timestamps):
            number = bisect_right(self.pages, rows.timestamps[at], number, key=_last_of)
            page = self.pages[number]
            upto = bisect_left(rows.timestamps, page.last, at)
            self._cache.merge(page, _part(rows, at, upto))
            at = upto
            self._split(number)
        # The positions of all pages after the first one have moved.
        counts = (page.count for page in self.pages[first:])
        starts = list(accumulate(counts, initial=self._starts[first]))
        self._end = starts.pop()
        self._starts[first:] = starts

    def _split(self, number: int) -> None:
        """Split a page of more than twice the wanted size into pages of that size."""
        page = self.pages[number]
        if page.count <= 2 * self._page_tuples:
            return
        rest = self._cache.cut(page, self._page_tuples)
        for at in range(0, len(rest.timestamps), self._page_tuples):
            number += 1
            page = Page()
            self._cache.admit(page, _part(rest, at, at + self._page_tuples))
            self._put(number, page, 0)

    def _put(self, number: int, page: Page, start: int) -> None:
        self.pages.insert(number, page)
        self._starts.insert(number, start)

    def trim(self, position: int) -> None:
        """Drop the pages that end before `position`. Cost: O(1) a dropped page; none is read."""
        self.lend()
        gone = len(self.pages) if position >= self._end else bisect_right(self._starts, position) - 1
        if gone <= 0:
            return
        self._cache.discard(self.pages[:gone])
        del self.pages[:gone], self._starts[:gone]
        self.base = self._starts[0] if self.pages else self._end

    # -- searching -------------------------------------------------------------------------------------------------------

    def position_after(self, timestamp: int, low: int = 0, high: int | None = None) -> int:
        low, high = max(low, self.base), self._end if high is None else high
        number = bisect_right(self.pages, timestamp, key=_last_of)
        if number == len(self.pages):
            return max(low, high)
        page, start = self.pages[number], self._starts[number]
        if timestamp < page.first or start >= high or start + page.count <= low:
            found = start
        else:
            found = start + bisect_right(self._cache.rows(page).timestamps, timestamp)
        return max(low, min(found, high))

    def timestamp_at(self, position: int) -> int:
        number = bisect_right(self._starts, position) - 1
        page, at = self.pages[number], position - self._starts[number]
        if at == 0:
            return page.first
        return page.last if at == page.count - 1 else self._cache.rows(page).timestamps[at]

    # -- sequences for the bolt ------------------------------------------------------------------------------------------

    def lend(self) -> Lease:
        """End the lease of earlier sequences; return the lease of the next ones."""
        self._lease.end()
        self._lease = Lease(self._cache)
        return self._lease

    def slice(self, low: int, high: int, lease: Lease | None = None) -> PagedTuples:
        return PagedTuples(self, [(low, high)], lease or self._lease)

    def arrived_after(self, low: int, high: int, sequence: int, all_from: int) -> PagedTuples:
        border = max(min(all_from, high), low)
        return PagedTuples(self, [*self._picked(low, border, sequence, True), (border, high)], self._lease)

    def arrived_before(self, low: int, high: int, sequence: int) -> PagedTuples:
        return PagedTuples(self, self._picked(low, high, sequence, False), self._lease)

    def count_after(self, low: int, high: int, sequence: int) -> int:
        return sum(end - start for start, end in self._picked(low, high, sequence, True))

    def _picked(self, low: int, high: int, sequence: int, after: bool) -> Iterator[PageRun]:
        """Yield the runs of [low, high) that arrived at `sequence` or later (or before). Reads only pages with both kinds."""
        while low < high:
            number = bisect_right(self._starts, low) - 1
            page, start = self.pages[number], self._starts[number]
            end = min(start + page.count, high)
            if page.newest < sequence or page.oldest >= sequence:
                if (page.oldest >= sequence) is after:
                    yield low, end
            else:
                numbers = self._cache.rows(page).sequences[low - start : end - start]
                yield from _runs_of([(each >= sequence) is after for each in numbers], low)
            low = end

    def read(self, runs: Iterable[PageRun], lease: Lease) -> Iterator[list[Any]]:
        """Yield the tuples of the runs as one list a page; the page is pinned while its list is used."""
        for low, high in runs:
            while low < high:
                if lease.ended or low < self.base:
                    raise StaleWindowError(
                        "the tuples of a window were read after its execute had returned, or expired ones after the next "
                        "effect was taken; copy what you need while it runs: list(window.get())"
                    )
                number = bisect_right(self._starts, low) - 1
                page, start = self.pages[number], self._starts[number]
                end = min(start + page.count, high)
                payloads = lease.pin(page).payloads
                try:
                    yield payloads if end - low == page.count else payloads[low - start : end - start]
                finally:
                    lease.unpin(page)
                low = end

    # -- storing ---------------------------------------------------------------------------------------------------------

    def dump(self, position: int) -> dict[str, Any]:
        """Return the pages that are not trimmed, as plain data; they have been flushed. Cost: O(pages)."""
        return {"start": self.base, "pages": [page.plain() for page in self.pages]}

    def fill(self, data: dict[str, Any]) -> None:
        """Restore the buffer from a checkpoint. Cost: O(pages); none is read."""
        self.base = data["start"]
        self.pages = [Page.of(each) for each in data["pages"]]
        starts = list(accumulate((page.count for page in self.pages), initial=self.base))
        self._end = starts.pop()
        self._starts = starts

    def check(self) -> None:
        """Assert the invariants, without reading a page."""
        for page in self.pages:
            page.check()
        # The pages are adjacent and in order of time.
        assert [*self._starts, self._end] == list(accumulate((page.count for page in self.pages), initial=self.base))
        assert all(one.last <= two.first for one, two in pairwise(self.pages))
        assert len(set(map(len, self._staged))) == 1


def _part(rows: PageRows, start: int, stop: int) -> PageRows:
    return PageRows(rows.timestamps[start:stop], rows.payloads[start:stop], rows.sequences[start:stop])


def _runs_of(chosen: list[bool], first: int) -> Iterator[PageRun]:
    """Yield the runs of True; the first item has the position `first`."""
    edges = [at for at, (one, two) in enumerate(pairwise([False, *chosen, False])) if one is not two]
    return zip((first + at for at in edges[::2]), (first + at for at in edges[1::2]), strict=True)


# -- PagedWindowManager ----------------------------------------------------------------------------------------------------------


PAGE_TUPLES = 1_000
PAGES_IN_MEMORY = 10
_STAGED_PART = 4
"""A quarter of the tuples in memory may be staged, and as many may wait for their page: of many keys, or out of order, each
settling has a few tuples for each of many pages.
"""
_READ_AT_ONCE = 8
"""Pages of the normal size that must fit beside them: three iterators and a search read a page each, of up to twice that size."""


def page_tuples_for(max_events: int) -> int:
    """Return the number of tuples of a full page: 1,000, or fewer if ten such pages exceed `max_events`.

    >>> page_tuples_for(50_000), page_tuples_for(2_000)
    (1000, 200)
    """
    return min(PAGE_TUPLES, max_events // PAGES_IN_MEMORY)


class _PagedWindow(TupleWindow):
    """A window with tuples in pages; its lease ends when it is invalidated."""

    __slots__ = ("_lease",)

    def __init__(self, content: Any, start: int | None, end: int, key: Any) -> None:
        super().__init__(content, start, end, key)
        self._lease = content.buffer.lend()

    def invalidate(self) -> None:
        super().invalidate()
        self._lease.end()


class _PagedKeyState(KeyState):
    """A key whose expired tuples have a lease of their own."""

    __slots__ = ()

    def _getter(self, low: int, high: int) -> Callable[[], Sequence[Any]]:
        return partial(self.buffer.slice, low, high, self.buffer.lend())


class PagedWindowManager(WindowManager):
    """The windows of one task that need not fit into memory; pages that do not fit are in `store`.

    `max_events`, in tuples, defaults to the definition's `max_events_in_memory`; `page_tuples` is for tests. An error of the store
    (a full disk, a damaged page) is raised by the entry, and the machine is then spent.
    """

    kind = "PagedWindowManager"
    _state = _PagedKeyState
    not_done = ("semantics", "eviction", "trigger")

    def __init__(
        self, config: WindowConfig, store: PageStore, *, max_events: int | None = None, page_tuples: int | None = None
    ) -> None:
        super().__init__(config)
        limit = max_events or config.max_events_in_memory
        assert limit is not None, "the limit stands in the definition, or is given"
        self._page_tuples = page_tuples or page_tuples_for(limit)
        self._most_staged = max(self._page_tuples, limit // _STAGED_PART)
        most_waiting = max(min(limit // _STAGED_PART, limit - self._most_staged - _READ_AT_ONCE * self._page_tuples), 0)
        self.cache = PageCache(store, max(limit - self._most_staged, 1), most_waiting)
        self._buffer, self._made = partial(PagedBuffer, self.cache, self._page_tuples), _PagedWindow
        self.inbox = None
        self._unsettled: dict[Any, KeyState] = {}
        self._staged = 0

    @property
    def resident(self) -> int:
        """The number of tuples in memory now, with those that are staged or wait for their page."""
        return self.cache.resident + self.cache.waiting + self._staged

    # -- tuples ----------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        effects = super().add(payload, timestamp, key)
        if self._stepping is None:
            self._note(1, [key])
        return effects

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        if self._stepping is not None:
            return super().add_batch(payloads, timestamps, keys)
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        for start in range(0, len(timestamps), self._page_tuples):
            part = slice(start, start + self._page_tuples)
            of = None if keys is None else keys[part]
            super().add_batch(payloads[part], timestamps[part], of)
            self._note(len(timestamps[part]), [None] if of is None else of)
        return NO_EFFECTS

    def _note(self, tuples: int, keys: Sequence[Any]) -> None:
        """Count staged tuples of these keys, and settle all keys as soon as there are as many as may be staged."""
        self._staged += tuples
        for key in keys:
            self._unsettled[key] = self._states[key]
        if self._staged >= self._most_staged:
            with _spent_on_error(self.guard):
                for state in self._unsettled.values():
                    state.settle(self._by_window)
            self._settled()

    def _settled(self) -> None:
        self._unsettled.clear()
        self._staged = 0

    def _due_states(self, since: int | None, until: int) -> list[KeyState]:
        due = super()._due_states(since, until)
        self._settled()  # every key with staged tuples is touched
        return due

    def next_deadline_ms(self) -> int | None:
        deadline = super().next_deadline_ms()
        self._settled()
        return deadline

    # -- windows ---------------------------------------------------------------------------------------------------------

    def _forget(self, state: KeyState) -> None:
        super()._forget(state)
        _clear(state)

    def _end(self) -> Iterator[Effect]:
        states = list(self._states.values())
        yield from super()._end()
        for state in states:
            _clear(state)
        self._settled()

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def snapshot(self, events: bool = True, keys: bool = True) -> dict[str, Any]:
        """Return the machine as plain data that names pages; all its pages are durable in the store before it returns.

        Cost: O(tuples added since the last snapshot), 13 numbers a key and six a page, of all keys, also of those at rest (3 to 9
        us each). `events=False` leaves the pages out.
        """
        self.enter()
        with _spent_on_error(self.guard):
            self.next_deadline_ms()  # settles all keys
            self.cache.flush()
        data = super().snapshot(events, keys)
        data["cache"] = self.cache.prepared(self._pages())
        return data

    def committed(self) -> None:
        """The last snapshot is committed, so a restart uses it: delete the pages that it does not name."""
        self.cache.committed()

    def restore(self, data: dict[str, Any]) -> None:
        """Restore the machine's state from a snapshot, and delete all pages that it does not name. Cost: O(pages); none is read.

        Raises SnapshotError for another format (the state is then unchanged), CorruptStateError if a page is missing.
        """
        super().restore(data)
        with _spent_on_error(self.guard):
            self.cache.restore(data["cache"], [page.id for page in self._pages() if page.id is not None])
        self._settled()

    def _pages(self) -> list[Page]:
        return [page for state in self._states.values() for page in state.buffer.pages]

    def check(self) -> None:
        super().check()
        self.cache.check(self._pages())
        assert self._staged == sum(len(state.buffer.staged) for state in self._states.values())
        assert self._staged < self._most_staged


@contextmanager
def _spent_on_error(guard: Guard) -> Iterator[None]:
    try:
        yield
    except BaseException:
        guard.fail()
        raise


def _clear(state: KeyState) -> None:
    state.buffer.trim(state.buffer.end)
