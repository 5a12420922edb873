"""PagedWindowManager: the WindowManager whose queues lie in pages, with at most `max_events_in_memory` tuples in memory.

    max_events_in_memory    pages of all keys, least recently used out first   |   one page's worth of staged tuples

Laws: those of WindowManager; the windows are the same, tuple by tuple. A snapshot names pages in the store instead of holding
tuples: it is good as long as the store has them (see `committed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from windowing.core.config import WindowConfig
from windowing.core.events import Effect
from windowing.core.guard import Guard, no_effects
from windowing.core.manager import WindowManager
from windowing.core.mixes import Firing
from windowing.core.paged import Lease, PagedBuffer
from windowing.core.pages import Page, PageCache, PageStore
from windowing.core.track import WindowTrack
from windowing.core.windows import TupleWindow, WindowContent

__all__ = ["PagedWindowManager", "page_tuples_for"]

PAGE_TUPLES = 1_000
PAGES_IN_MEMORY = 10


def page_tuples_for(max_events: int) -> int:
    """Return how many tuples make a page: 1,000, or fewer where not ten of those would fit.

    >>> page_tuples_for(50_000), page_tuples_for(2_000)
    (1000, 200)
    """
    return max(1, min(PAGE_TUPLES, max_events // PAGES_IN_MEMORY))


class _PagedWindow(TupleWindow):
    """A window whose tuples come out of pages until it is invalidated."""

    __slots__ = ("_lease",)

    def __init__(
        self, content: WindowContent, start_timestamp: int | None, end_timestamp: int, key: Any, *, lease: Lease
    ) -> None:
        super().__init__(content, start_timestamp, end_timestamp, key)
        self._lease = lease

    def invalidate(self) -> None:
        super().invalidate()
        self._lease.end()


class PagedWindowManager(WindowManager):
    """The windows of one task that need not fit into memory; the pages that do not are in `store`.

    `max_events`, in tuples, defaults to the definition's `max_events_in_memory`; `page_tuples` is there for tests. What the store
    raises (a full disk, a damaged page) comes out of the entry, and the machine is then spent.
    """

    kind = "PagedWindowManager"

    not_done = ("semantics", "eviction", "trigger")

    def __init__(
        self, config: WindowConfig, store: PageStore, *, max_events: int | None = None, page_tuples: int | None = None
    ) -> None:
        super().__init__(config, sequenced=True)
        limit = max_events or config.max_events_in_memory
        assert limit is not None, "the limit stands in the definition, or is given"
        self._page_tuples = page_tuples or page_tuples_for(limit)
        self.cache = PageCache(store, max(limit - self._page_tuples, 1))
        self._unsettled: dict[Any, WindowTrack] = {}
        self._staged = 0

    @property
    def resident(self) -> int:
        """How many tuples are in memory now, staged ones included."""
        return self.cache.resident + self._staged

    def _buffer(self) -> PagedBuffer:
        return PagedBuffer(self.cache, self._page_tuples)

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
        for start in range(0, len(timestamps), self._page_tuples):
            part = slice(start, start + self._page_tuples)
            of = None if keys is None else keys[part]
            super().add_batch(payloads[part], timestamps[part], of)
            self._note(len(timestamps[part]), [None] if of is None else of)
        return no_effects()

    def _note(self, tuples: int, keys: Sequence[Any]) -> None:
        """Bring what was staged into pages as soon as it would fill one."""
        self._staged += tuples
        for key in keys:
            self._unsettled[key] = self._tracks[key]
        if self._staged >= self._page_tuples:
            with _spent_on_error(self.guard):
                for track in self._unsettled.values():
                    track.settle(self._by_window)
            self._settled()

    def _settled(self) -> None:
        self._unsettled.clear()
        self._staged = 0

    def _due_tracks(self, until: int) -> list[WindowTrack]:
        due = super()._due_tracks(until)
        self._settled()  # what is staged was touched, and what was touched is due
        return due

    def next_deadline_ms(self) -> int | None:
        deadline = super().next_deadline_ms()
        self._settled()
        return deadline

    # -- windows ---------------------------------------------------------------------------------------------------------

    def _window(self, track: WindowTrack, firing: Firing) -> TupleWindow:
        make = partial(_PagedWindow, lease=_paged(track).lend())
        return track.fire(firing, self._mix.length_ms, self._sequence, self._tally, make=make)

    def _tuples(self, track: WindowTrack, low: int, high: int) -> Callable[[], Sequence[Any]]:
        buffer = _paged(track)
        return partial(buffer.slice, low, high, buffer.lend())

    def _forget(self, track: WindowTrack) -> None:
        super()._forget(track)
        _clear(track)

    def _end(self) -> Iterator[Effect]:
        tracks = list(self._tracks.values())
        yield from super()._end()
        for track in tracks:
            _clear(track)
        self._settled()

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data that names pages, after every page of it was made durable in the store.

        Cost: O(tuples that came since the last one), and six numbers a page. `events=False` leaves the pages out.
        """
        self.enter()
        with _spent_on_error(self.guard):
            for track in self._tracks.values():
                track.settle(self._by_window)
            self._settled()
            self.cache.flush()
        data = super().snapshot(events)
        data["cache"] = self.cache.prepared(self._pages())
        return data

    def committed(self) -> None:
        """Take note that the last snapshot is what a restart will begin with: pages that it does not name are deleted."""
        self.cache.committed()

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`, and delete all pages that it does not name. Cost: O(pages), none is read.

        Raises SnapshotError for another format (nothing has changed then), CorruptStateError if a page is missing.
        """
        super().restore(data)
        with _spent_on_error(self.guard):
            self.cache.restore(data["cache"], [page.id for page in self._pages() if page.id is not None])
        self._settled()

    def _pages(self) -> list[Page]:
        return [page for track in self._tracks.values() for page in _paged(track).pages]

    def check(self) -> None:
        """Assert what "correct" means, for every key and the cache."""
        super().check()
        self.cache.check(self._pages())
        assert self._staged == sum(len(track.buffer.staged) for track in self._tracks.values())
        assert self._staged < self._page_tuples


@contextmanager
def _spent_on_error(guard: Guard) -> Iterator[None]:
    try:
        yield
    except BaseException:
        guard.fail()
        raise


def _paged(track: WindowTrack) -> PagedBuffer:
    assert isinstance(track.buffer, PagedBuffer)
    return track.buffer


def _clear(track: WindowTrack) -> None:
    track.buffer.trim(track.buffer.end)
