"""A window on pages equals the window in a list: the same tuples in the same order, with a bounded number of them in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.memory_pages import MemoryPages
from tests.windows.histories import by_op
from tests.windows.lossless_model import ModelMix
from windowing.errors import ConfigError, CorruptStateError, MachineSpentError, SnapshotError, StaleWindowError
from windowing.testing.replay import LosslessReplay
from windowing.testing.strategies import cases
from windowing.windows.config import Lateness, WindowConfig
from windowing.windows.events import Activation, Expired
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import count, millis
from windowing.windows.paged_manager import PagedBuffer, PagedWindowManager
from windowing.windows.pages import PageCache, PageRows
from windowing.windows.queue import ListBuffer

EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
)
EVERY_MIX = pytest.mark.parametrize("mix", list(ModelMix))
SIZES = st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(0, 6))
"""Tuples per page, tuples in memory (down to less than one page), tuples that wait for pages that are away."""


class PagedReplay(LosslessReplay):
    """A replay whose windows are on pages; `restart` continues from a checkpoint in a new executor."""

    def __init__(
        self, case: dict[str, Any], page_tuples: int, max_events: int, waiting: int | None = None, **options: Any
    ) -> None:
        self.sizes = (page_tuples, max_events)
        self.waiting = waiting
        self.store = MemoryPages()
        self.peak = 0
        super().__init__(case, **options)

    def build(self) -> WindowedBoltExecutor:
        executor = super().build()
        page_tuples, max_events = self.sizes
        manager = PagedWindowManager(self.config, self.store, max_events=max_events, page_tuples=page_tuples)
        if self.waiting is not None:
            manager.cache.most_waiting = self.waiting
        executor.use(manager)
        return executor

    @property
    def manager(self) -> PagedWindowManager:
        assert isinstance(self.executor.manager, PagedWindowManager)
        return self.executor.manager

    def restart(self, committed: bool = True) -> None:
        saved = json.dumps(self.executor.snapshot())
        if committed:
            self.manager.committed()
        self.executor = self.build()
        self.executor.restore(json.loads(saved))
        self.executor.check()
        assert json.dumps(self.executor.snapshot()) == saved

    def _events(self, index: int, effect: Any) -> Iterator[list[Any]]:
        for event in super()._events(index, effect):
            yield [*event[:2], list(event[2])] if event[1] == "expire" else event


def events_of(case: dict[str, Any], run: LosslessReplay, after: Callable[[int], None] = lambda index: None) -> Any:
    events = []
    for index, op in enumerate(case["ops"]):
        events += run.feed(index, [op])
        run.executor.check()
        after(index)
    return by_op(events)


def numbered(low: int, high: int) -> PageRows:
    return PageRows(list(range(low, high)), [f"t{n}" for n in range(low, high)], list(range(low, high)))


# -- paged equals listed -----------------------------------------------------------------------------------------------


@EVERY_MIX
@given(data=st.data(), sizes=SIZES)
def test_windows_on_pages_equal_windows_in_lists(mix, data, sizes):
    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 30}))
    paged, listed = PagedReplay(case, *sizes), LosslessReplay(case)
    assert events_of(case, paged) == events_of(case, listed)
    assert paged.executor.counts() == listed.executor.counts()


@given(case=cases(mix=ModelMix.DURATION_DURATION, **{**EITHER, "event_time": True, "lateness": "window"}), sizes=SIZES)
def test_a_tuple_may_be_inserted_into_a_fired_range_on_an_evicted_page(case, sizes):
    paged, listed = PagedReplay(case, *sizes), LosslessReplay(case)
    assert events_of(case, paged) == events_of(case, listed)
    assert paged.executor.counts() == listed.executor.counts()


@EVERY_MIX
@given(data=st.data(), sizes=SIZES)
def test_stopped_anywhere_and_resumed_from_a_manifest_the_windows_are_the_same(mix, data, sizes):
    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24}))
    stops = data.draw(st.sets(st.integers(0, max(len(case["ops"]) - 1, 0)), max_size=5))
    run = PagedReplay(case, *sizes)
    events = events_of(case, run, lambda index: run.restart() if index in stops else None)
    assert events == events_of(case, LosslessReplay(case))


@EVERY_MIX
@given(data=st.data(), sizes=SIZES)
def test_after_a_crash_the_last_committed_manifest_still_has_all_its_pages(mix, data, sizes):
    """Pages that are evicted, replaced, trimmed or prepared after a commit do not change those of the commit."""
    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24}))
    ops = case["ops"]
    commit, crash = sorted(data.draw(st.tuples(*[st.integers(0, len(ops))] * 2)))
    run = PagedReplay(case, *sizes)
    for index in range(commit):
        run.feed(index, [ops[index]])
    saved = json.dumps(run.executor.snapshot())
    run.manager.committed()
    for index in range(commit, crash):
        run.feed(index, [ops[index]])
        if data.draw(st.booleans()):
            run.executor.snapshot()  # prepared, never committed
    run.executor = run.build()
    run.executor.restore(json.loads(saved))
    run.executor.check()
    after = [event for index in range(commit, len(ops)) for event in run.feed(index, [ops[index]])]
    listed = LosslessReplay(case)
    expected = [event for index, op in enumerate(ops) for event in listed.feed(index, [op])]
    assert by_op(after) == by_op(event for event in expected if event[0] >= commit)


@given(case=cases(mix=None, **{**EITHER, "max_steps": 24}), sizes=SIZES)
def test_windows_on_pages_fed_in_batches_equal_tuples_one_by_one(case, sizes):
    from windowing.testing.replay import runs_of

    run, events = PagedReplay(case, *sizes), []
    for first, ops in runs_of({**case, "batched": True}):
        events += run.feed(first, ops)
        run.executor.check()
    assert by_op(events) == events_of(case, LosslessReplay(case))


# -- memory ------------------------------------------------------------------------------------------------------------


@EVERY_MIX
@given(data=st.data(), page_tuples=st.integers(1, 4), pages=st.integers(5, 9))
def test_there_are_never_more_tuples_in_memory_than_the_limit(mix, data, page_tuples, pages):
    """Three concurrent iterators pin three pages, one more is in use, one page's worth is staged."""
    limit = pages * 2 * page_tuples
    seen = []

    def nested(window: Any) -> list[Any]:
        for triple in zip(window, window.get_new(), window.get(), strict=False):
            seen.append((triple, run.manager.resident))
        return [list(window.get()), list(window.get_new()), list(window.get_expired())]

    case = data.draw(cases(mix=mix, **{**EITHER, "max_steps": 40, "keyed": False}))
    run = PagedReplay(case, page_tuples, limit, record_window=nested)
    events_of(case, run, lambda index: seen.append((None, run.manager.resident)))
    assert all(resident <= limit for _, resident in seen)
    assert run.manager.cache.peak <= limit - page_tuples
    assert run.manager.cache.pinned == 0


@pytest.mark.parametrize(("limit", "waiting"), [(1_000, 0), (10_000, 0), (14_000, 2_500), (50_000, 12_500)])
def test_a_quarter_of_the_limit_is_staged_and_what_waits_leaves_room_for_eight_pages(limit, waiting):
    config = WindowConfig.of(length=count(10), slide=count(10), max_events_in_memory=limit)
    cache = PagedWindowManager(config, MemoryPages()).cache
    assert (cache.limit, cache.most_waiting) == (limit - limit // 4, waiting)


def test_only_the_pages_of_pinned_iterators_may_exceed_the_limit():
    cache = PageCache(MemoryPages(), 4)
    buffer = PagedBuffer(cache, 2)
    buffer.stage(*numbered(0, 20)[:2], 0)
    buffer.settle()
    iterators = [iter(buffer.slice(low, 20)) for low in range(0, 20, 2)]
    firsts = [next(each) for each in iterators]
    assert (cache.resident, cache.pinned) == (20, 20)
    assert firsts == [f"t{n}" for n in range(0, 20, 2)]
    del iterators
    assert cache.pinned == 0
    assert next(iter(buffer.slice(5, 6))) == "t5"
    assert cache.resident <= 4


def test_the_least_recently_used_page_is_evicted_first():
    cache = PageCache(MemoryPages(), 6)
    buffer = PagedBuffer(cache, 2)
    buffer.stage(*numbered(0, 6)[:2], 0)
    buffer.settle()
    assert buffer.slice(0, 6)[0] == "t0"
    buffer.stage(*numbered(6, 8)[:2], 6)
    buffer.settle()
    assert [page.rows is not None for page in buffer.pages] == [True, False, True, True]


# -- reads and writes --------------------------------------------------------------------------------------------------


class CountingPages(MemoryPages):
    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []
        self.writes: list[int] = []

    def write(self, page_id: int, rows: PageRows) -> None:
        super().write(page_id, rows)
        self.writes.append(page_id)

    def read(self, page_id: int) -> PageRows:
        self.reads.append(page_id)
        return super().read(page_id)


def manager_of(store: MemoryPages, page_tuples: int = 10, max_events: int = 100, **window: Any) -> PagedWindowManager:
    config = WindowConfig.of(timestamp="ts", **window)
    return PagedWindowManager(config, store, max_events=max_events, page_tuples=page_tuples)


def add(manager: PagedWindowManager, *timestamps: int) -> None:
    assert not list(manager.add_batch([f"t{n}" for n in timestamps], timestamps))


def test_a_batch_with_more_tuples_than_timestamps_is_refused_whole():
    manager = manager_of(MemoryPages(), length=count(5), slide=count(5))
    for payloads, timestamps in ((range(15), range(10)), (range(15), range(12))):
        with pytest.raises(ConfigError, match=r"got 15 tuples and 1[02] timestamps"):
            manager.add_batch(payloads, timestamps)
    assert manager.tally.accepted == 0


def test_expiring_whole_pages_reads_none_of_them():
    store = CountingPages()
    manager = manager_of(store, length=millis(1000), slide=millis(1000))
    add(manager, *range(1, 1001), 2500)
    store.reads.clear()
    windows, expired = [], 0
    for effect in manager.advance(2400):
        if isinstance(effect, Activation):
            windows.append(len(effect.window))
        else:
            expired += effect.count
    assert (windows, expired, store.reads) == ([1000], 1000, [])
    assert list(manager.advance(5000))
    manager.snapshot()
    assert len(store.ids()) <= 1
    assert store.reads == []


@pytest.mark.parametrize("key", [None, "k"])
def test_tuples_out_of_order_or_of_many_keys_are_staged_so_that_a_page_is_rewritten_for_several_at_once(key):
    store = CountingPages()
    manager = manager_of(store, 100, 2_000, length=millis(10_000), slide=millis(10_000), key=key)
    times = [1 + 7_919 * n % 8_000 for n in range(8_000)]  # each time once, all over the window
    for at in range(0, len(times), 40):
        part = times[at : at + 40]
        assert not list(manager.add_batch(part, part, None if key is None else [n % 60 for n in part]))
        assert manager.resident <= 2_000
    assert len(store.writes) < len(times) // 8
    manager.check()


def test_a_page_is_rewritten_for_several_tuples_out_of_order_also_if_the_windows_advance_after_each_few():
    store = CountingPages()
    manager = manager_of(store, 100, 2_000, length=millis(8_000), slide=millis(8_000))
    times = [1 + 7_919 * n % 8_000 for n in range(8_000)]  # each time once, all over the window
    for at in range(0, len(times), 40):
        add(manager, *times[at : at + 40])
        assert not list(manager.advance(at - 10_000))
        assert manager.resident <= 2_000
    manager.check()
    assert len(store.reads) < len(times) // 8
    assert len(store.writes) < len(times) // 8
    [window] = [list(effect.window) for effect in manager.advance(9_000) if isinstance(effect, Activation)]
    assert window == [f"t{n}" for n in range(1, 8_001)]


def test_a_window_of_three_fifths_of_the_limit_stays_in_memory():
    store = CountingPages()
    manager = manager_of(store, 1_000, 20_000, length=count(12_000), slide=count(1_000))
    for at in range(0, 30_000, 1_000):
        add(manager, *range(at, at + 1_000))
        for effect in manager.advance(at + 999):
            if isinstance(effect, Activation):
                assert len(list(effect.window.get())) == min(at + 1_000, 12_000)
    assert store.reads == []


def test_a_sliding_window_reads_only_the_pages_that_are_asked_for():
    store = CountingPages()
    manager = manager_of(store, length=count(1000), slide=count(10))
    add(manager, *range(1000))
    for _ in manager.advance(999):
        pass
    store.reads.clear()
    add(manager, *range(1000, 1010))
    for effect in manager.advance(1009):
        if isinstance(effect, Activation):
            assert len(effect.window.get()) == 1000
            assert list(effect.window.get_new()) == [f"t{n}" for n in range(1000, 1010)]
            assert store.reads == []
            assert list(effect.window.get_expired()) == [f"t{n}" for n in range(10)]
            assert len(store.reads) == 1
            assert effect.window.get()[500] == "t510"
            assert len(store.reads) == 2


ENDS = st.none() | st.integers(-70, 70)
SLICES = st.builds(slice, ENDS, ENDS, st.none() | st.sampled_from([-3, -1, 1, 2]))


@given(st.sets(st.integers(0, 49)), st.lists(SLICES, max_size=3), st.integers(-70, 70))
def test_the_tuples_of_a_window_have_the_items_and_slices_of_a_list(late, slices, at):
    """New tuples between those that an earlier window has shown are several runs of the queue."""
    manager = manager_of(CountingPages(), 16, length=millis(1000), slide=millis(50), lateness=Lateness.WINDOW)
    add(manager, *range(0, 51))
    list(manager.advance(50))
    add(manager, *late, *range(51, 60))
    for effect in manager.advance(100):
        if isinstance(effect, Activation):
            rows, model = effect.window.get_new(), [f"t{n}" for n in [*sorted(late), *range(51, 60)]]
            for part in slices:
                rows, model = rows[part], model[part]
                assert (list(rows), len(rows)) == (model, len(model))
            if -len(model) <= at < len(model):
                assert rows[at] == model[at]
            else:
                with pytest.raises(IndexError):
                    rows[at]


def test_a_checkpoint_writes_only_pages_that_changed():
    store = CountingPages()
    manager = manager_of(store, length=count(10_000), slide=count(10_000))
    add(manager, *range(0, 2000, 2))
    manager.snapshot()
    manager.committed()
    store.writes.clear()
    manager.snapshot()
    assert store.writes == []
    add(manager, 501, 503, 2001)  # two into one page in the middle, one behind the tail
    manager.snapshot()
    assert len(store.writes) == 2


def test_a_page_of_a_checkpoint_is_deleted_by_the_commit_of_the_next_one():
    store = MemoryPages()
    manager = manager_of(store, length=count(20), slide=count(20))
    add(manager, *range(30))
    named = {page[0] for page in manager.snapshot()["tracks"][0]["pages"]}
    manager.committed()
    add(manager, *range(30, 60))
    for _ in manager.advance(59):
        pass
    assert named <= set(store.ids())
    later = {page[0] for page in manager.snapshot()["tracks"][0]["pages"]}
    assert named <= set(store.ids())
    manager.committed()
    assert set(store.ids()) == later
    assert not named & later


def test_pages_of_a_killed_run_are_deleted_at_the_start():
    store = MemoryPages()
    manager = manager_of(store, length=count(1000), slide=count(1000))
    add(manager, *range(100))
    saved = manager.snapshot()
    manager.committed()
    add(manager, *range(100, 900))
    again = manager_of(store, length=count(1000), slide=count(1000))
    again.restore(saved)
    assert set(store.ids()) == {page[0] for page in saved["tracks"][0]["pages"]}
    add(again, *range(100, 1000))
    again.check()


def test_removed_keys_leave_no_page():
    store = MemoryPages()
    manager = manager_of(store, page_tuples=2, max_events=6, length=millis(10), slide=millis(10), key="k")
    for at in range(1, 200):
        list(manager.add(f"t{at}", at, at % 7))
    for _ in manager.advance(1000):
        pass
    assert manager.snapshot()["tracks"] == []
    assert (store.ids(), manager.resident) == ([], 0)


# -- windows are lazy, and valid until execute returns -----------------------------------------------------------------


def test_a_window_can_be_iterated_three_times_sliced_and_indexed():
    manager = manager_of(MemoryPages(), page_tuples=7, max_events=20, length=count(100), slide=count(50))
    add(manager, *range(150))
    tuples = [f"t{n}" for n in range(150)]
    shown = 0
    for effect in manager.advance(149):
        if not isinstance(effect, Activation):
            continue
        window, high = effect.window, effect.window.end_timestamp + 1
        low = max(high - 100, 0)
        shown += 1
        for _ in range(3):
            assert list(window.get()) == tuples[low:high] == list(window)
        held = window.get()
        assert held == tuples[low:high]
        assert held[3:-4] == tuples[low:high][3:-4]
        assert held[10:40][5:7] == tuples[low:high][10:40][5:7]
        assert held[::-9] == tuples[low:high][::-9]
        assert (held[0], held[-1], len(held[5:5])) == (tuples[low], tuples[high - 1], 0)
        assert f"t{high - 3}" in held
        assert list(reversed(held)) == tuples[low:high][::-1]
        with pytest.raises(IndexError, match="window of"):
            held[len(held)]
    assert shown == 3


def test_after_execute_a_sequence_raises_and_never_returns_other_tuples():
    manager = manager_of(MemoryPages(), length=millis(100), slide=millis(100))
    add(manager, *range(1, 301))
    kept, halfway = [], []
    for effect in manager.advance(300):
        if isinstance(effect, Activation):
            kept += [effect.window.get(), effect.window.get_new(), effect.window.get_expired()]
            halfway.append(iter(effect.window))
            assert next(halfway[-1])
    assert len(kept) == 9
    for sequence in filter(len, kept):
        with pytest.raises(StaleWindowError):
            list(sequence)
    for iterator in halfway:
        with pytest.raises(StaleWindowError, match="copy what you need"):
            list(iterator)
    assert manager.cache.pinned == 0


def test_expired_tuples_are_readable_until_the_next_effect_is_taken():
    manager = manager_of(MemoryPages(), length=count(100), slide=count(100))
    add(manager, *range(300))
    runs = []
    for effect in manager.advance(299):
        if isinstance(effect, Expired):
            gone = effect.get()
            assert list(gone or ()) == [f"t{n}" for n in range(effect.count)]
            runs.append(gone)
    assert [len(run) for run in runs] == [300]
    with pytest.raises(StaleWindowError):
        list(runs[0])


# -- failures ----------------------------------------------------------------------------------------------------------


class FullDisk(MemoryPages):
    room = 5

    def write(self, page_id: int, rows: PageRows) -> None:
        if len(self.ids()) >= self.room:
            raise OSError(28, "No space left on device")
        super().write(page_id, rows)


def test_a_failing_store_spends_the_machine_and_a_restore_frees_it():
    store = FullDisk()
    manager = manager_of(store, length=count(1000), slide=count(1000))
    add(manager, *range(20))
    saved = manager.snapshot()
    manager.committed()
    with pytest.raises(OSError, match="No space left"):
        add(manager, *range(20, 500))
    with pytest.raises(MachineSpentError):
        add(manager, 500)
    manager.restore(saved)
    store.room = 1000
    add(manager, *range(20, 1000))
    assert [list(e.window) for e in manager.advance(999) if isinstance(e, Activation)] == [
        [f"t{n}" for n in range(1000)]
    ]


def test_a_missing_page_is_named_at_restore_and_nothing_is_deleted():
    store = MemoryPages()
    manager = manager_of(store, length=count(1000), slide=count(1000))
    add(manager, *range(100))
    saved = manager.snapshot()
    gone = saved["tracks"][0]["pages"][3][0]
    store.drop([gone])
    held = set(store.ids())
    with pytest.raises(CorruptStateError, match=f"page {gone} is missing"):
        manager_of(store, length=count(1000), slide=count(1000)).restore(saved)
    assert set(store.ids()) == held


def test_a_snapshot_of_a_window_in_memory_is_refused_and_deletes_nothing():
    store = MemoryPages()
    manager = manager_of(store, length=count(10), slide=count(10))
    add(manager, *range(100))
    manager.snapshot()
    held = store.ids()
    other = LosslessReplay(
        {"length": {"count": 10}, "slide": {"count": 10}, "event_time": None, "clock_start_ms": 0, "ops": []}
    )
    with pytest.raises(SnapshotError, match="PagedWindowManager"):
        manager.restore(other.executor.manager.snapshot())
    assert store.ids() == held


# -- the buffer alone, compared with the list ----------------------------------------------------------------------------

RUNS = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=9), min_size=1, max_size=12)


@given(runs=RUNS, sizes=SIZES, data=st.data())
def test_every_answer_of_the_buffer_equals_that_of_the_list(runs, sizes, data):
    cache = PageCache(MemoryPages(), sizes[1], sizes[2])
    paged, listed, arrived = PagedBuffer(cache, sizes[0]), ListBuffer(sequenced=True), 0
    for run in runs:
        for buffer in (paged, listed):
            buffer.stage(run, [f"{at}-{arrived + n}" for n, at in enumerate(run)], arrived)
            buffer.settle()
        arrived += len(run)
        paged.check()
        cache.check(paged.pages)
        assert (paged.end, len(paged.staged)) == (listed.end, len(listed.staged))
        low, high = sorted(data.draw(st.tuples(*[st.integers(0, listed.end)] * 2)))
        at, since = data.draw(st.integers(-1, 41)), data.draw(st.integers(0, arrived))
        assert paged.slice(low, high) == listed.slice(low, high)
        assert paged.position_after(at) == listed.position_after(at)
        assert paged.position_after(at, low, high) == listed.position_after(at, low, high)
        assert paged.arrived_after(low, high, since, low + 2) == listed.arrived_after(low, high, since, low + 2)
        assert paged.arrived_before(low, high, since) == listed.arrived_before(low, high, since)
        if low < listed.end:
            assert paged.timestamp_at(low) == listed.timestamp_at(low)
