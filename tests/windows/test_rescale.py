"""rescaled: a run that is stopped anywhere, given to other tasks and continued equals, per key, the uninterrupted run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.codec import dumps, loads
from windowing.columnar import ColumnarMachines
from windowing.errors import CheckpointError, ConfigError, DrainedCheckpointError
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.deduplicator import Deduplicator
from windowing.windows.events import Activation, Late
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Count, count, millis
from windowing.windows.rescale import require_keyed, rescaled, union_of_ids

KEYS = "abcdef"
NAMED = "bolt 'words'", "keep its number of tasks"
Batch = list[tuple[int, str]]


def task_of(key: str, tasks: int) -> int:
    return KEYS.index(key) % tasks


class Tasks:
    """The tasks of a bolt: each row goes to the task of its key, each task gets the largest timestamps of all."""

    def __init__(self, config: WindowConfig, tasks: int, in_columns: bool) -> None:
        self.config, self.in_columns = config, in_columns
        self.executors = [self._new() for _ in range(tasks)]
        self.seen: dict[str, list[Any]] = {}

    def _new(self) -> WindowedBoltExecutor:
        return WindowedBoltExecutor(
            self.config, sequenced=True, columns=ColumnarMachines() if self.in_columns else None
        )

    def rescale(self, tasks: int) -> None:
        """Store the tasks as a checkpoint does, redistribute them, read them back."""
        old = [loads(dumps(each.snapshot()), "a task") for each in self.executors]
        new = rescaled(old, tasks, task_of, *NAMED)
        self.executors = [self._new() for _ in range(tasks)]
        for executor, data in zip(self.executors, new, strict=True):
            executor.restore(loads(dumps(data), "a task"))
            executor.check()
        # Stores by arrival number: there is a tuple under each number, and a new number is unused.
        machines = [each.manager.numbered for each in self.executors]
        numbers = [number for each in machines if each is not None for number in each.held_sequences()]
        assert len(set(numbers)) == len(numbers)
        assert all(each is None or each.next_sequence > max(numbers, default=-1) for each in machines)

    def feed(self, first: int, batch: Batch, now_ms: int) -> None:
        for task, executor in enumerate(self.executors):
            executor.set_clock(now_ms)
            own = [
                (first + at, ts, key) for at, (ts, key) in enumerate(batch) if task_of(key, len(self.executors)) == task
            ]
            payloads = [{"id": id, "k": key, "v": id % 7} for id, _, key in own]
            times = [ts for _, ts, _ in own] if self.config.event_time else None
            self._note(effect for _, effect in executor.add_batch(payloads, times, keys=[key for _, _, key in own]))
            for mark in self.marks(batch):
                executor.track("default", mark)
            self._note(executor.turn())
            executor.check()

    def marks(self, batch: Batch) -> list[int]:
        return [max(ts for ts, _ in batch)] if batch and self.config.event_time else []

    def drain(self) -> None:
        for executor in self.executors:
            self._note(executor.drain())
            executor.check()

    def _note(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Activation):
                window = effect.window
                found = [window.aggregate] if self.config.aggregate is not None else []
                found += (
                    [] if self.config.aggregate is not None else [window.get(), window.get_new(), window.get_expired()]
                )
                seen = ("window", window.start_timestamp, window.end_timestamp, len(window), found)
                self.seen.setdefault(window.key, []).append(seen)
            elif isinstance(effect, Late):
                for payload in effect.payloads:
                    self.seen.setdefault(payload["k"], []).append(("late", payload["id"]))
            else:
                self.seen.setdefault(effect.key, []).append(("expired", effect.count))

    def counts(self) -> Counter[str]:
        return sum((Counter(each.counts()) for each in self.executors), Counter())


def measures() -> st.SearchStrategy[Any]:
    return st.integers(1, 6).map(count) | st.integers(1, 12).map(millis)


@st.composite
def configs(draw: st.DrawFn, lateness: str) -> WindowConfig:
    given: dict[str, Any] = {"length": draw(measures()), "slide": draw(measures()), "key": ("k",)}
    if lateness == "window":
        slide = draw(st.integers(1, 6))
        given |= {"length": millis(slide * draw(st.integers(2, 4))), "slide": millis(slide), "lateness": "window"}
    elif Count in map(type, (given["length"], given["slide"])) and draw(st.booleans()):
        given["key_ttl"] = millis(draw(st.integers(5, 40)))
    if draw(st.booleans()):
        given["aggregate"] = {"n": agg.count(), "v": agg.sum("v")}
    if lateness == "window" or draw(st.integers(0, 3)):
        given |= {"timestamp": "ts", "lag": millis(draw(st.integers(0, 8)))}
    return WindowConfig.of(**given)


ROWS = st.lists(st.tuples(st.integers(-12, 12), st.sampled_from(KEYS)), min_size=3, max_size=12)
BATCHES = st.lists(
    st.tuples(ROWS, st.sampled_from((0, 0, 1, 2, 3, 5)), st.sampled_from((0, 2, 7))), min_size=4, max_size=9
)
"""Rows; the number of tasks before them (0: unchanged); the pause after them."""


@pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")
@pytest.mark.parametrize("lateness", ["watermark", "window"])
@given(st.data(), BATCHES, st.integers(1, 4), st.booleans())
def test_a_redistributed_run_fires_the_windows_of_the_uninterrupted_run(
    lateness: str, data: st.DataObject, batches: list[tuple[Batch, int, int]], tasks: int, in_columns: bool
) -> None:
    config = data.draw(configs(lateness))
    plain, dealt = Tasks(config, tasks, in_columns), Tasks(config, tasks, in_columns)
    id = now = 0
    for batch, to, pause in batches:
        if to:
            dealt.rescale(to)
            assert dealt.counts() == plain.counts()
        rows = [(now + ts, key) for ts, key in batch]
        for run in (plain, dealt):
            run.feed(id, rows, now)
        assert dealt.seen == plain.seen
        id, now = id + len(batch), now + pause
    for run in (plain, dealt):
        run.drain()
    assert dealt.seen == plain.seen
    assert dealt.counts() == plain.counts()


@pytest.mark.parametrize(
    ("options", "first", "then"),
    [
        # (0, 10] was fired without the tuple of 6, (5, 15] is still to come.
        ({"length": millis(10), "slide": millis(5), "lateness": "window"}, [(7, "b"), (12, "a")], [(6, "b")]),
        # A window of two was fired, the third tuple waits for a fourth.
        ({"length": count(2), "slide": count(2), "aggregate": agg.count()}, [(1, "b"), (2, "b")], [(3, "b"), (4, "a")]),
    ],
)
def test_unfired_tuples_stay_pending_in_the_task_of_their_key(
    options: dict[str, Any], first: Batch, then: Batch
) -> None:
    config = WindowConfig.of(key=("k",), timestamp="ts", **options)
    plain, dealt = Tasks(config, 1, in_columns=False), Tasks(config, 1, in_columns=False)
    for run in (plain, dealt):
        run.feed(0, first, 0)
        run.feed(2, then, 0)
    dealt.rescale(2)
    assert [each.counts()["pending"] for each in dealt.executors] == [1, 1]
    for run in (plain, dealt):
        run.drain()
    assert dealt.seen == plain.seen
    assert dealt.counts() == plain.counts()


# -- Refusals --------------------------------------------------------------------------------------------------------------------


BY_KEY = WindowConfig.of(length=count(2), slide=count(2), key=("k",), timestamp="ts")


def snapshots(config: WindowConfig = BY_KEY) -> list[dict[str, Any]]:
    tasks = Tasks(config, 2, in_columns=False)
    tasks.feed(0, [(1, "a"), (2, "b")], 0)
    return [each.snapshot() for each in tasks.executors]


@pytest.mark.parametrize(
    ("key", "has_policies", "why"),
    [(None, False, "no key="), (("k",), True, r"policies of its own \(trigger=, eviction=\)")],
)
def test_windows_that_belong_to_a_task_keep_their_number_of_tasks(key: Any, has_policies: bool, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"bolt 'words' has {why}.*keep its number of tasks"):
        require_keyed(key, has_policies, *NAMED)


def test_drained_windows_are_refused() -> None:
    with pytest.raises(DrainedCheckpointError, match="bolt 'words' were drained"):
        rescaled([{**each, "closed": True} for each in snapshots()], 3, task_of, *NAMED)


def test_tasks_of_different_batches_are_refused() -> None:
    later = Tasks(BY_KEY, 2, in_columns=False)
    later.feed(0, [(9, "b")], 0)
    with pytest.raises(CheckpointError, match="not those of one batch"):
        rescaled([snapshots()[0], later.executors[1].snapshot()], 3, task_of, *NAMED)


def test_a_key_in_another_task_than_its_own_is_refused() -> None:
    one, other = snapshots()
    for old in ([other, one], [None, one], [one, one]):
        with pytest.raises(
            ConfigError,
            match=r"key '[ab]' of bolt 'words' is in task \d, where tuples with this key are not sent.*; keep its number",
        ):
            rescaled(old, 3, task_of, *NAMED)
    assert [*map(keys, rescaled([None, other], 3, task_of, *NAMED))] == [[], ["b"], []]


def keys(executor: dict[str, Any]) -> list[Any]:
    return [state["key"] for state in executor["manager"]["tracks"]]


def test_different_clocks_become_the_latest() -> None:
    old = snapshots()
    for now, each in zip((5, 3), old, strict=True):
        mark = [*each["generator"]["marks"][0][:3], now]
        each |= {"now": now, "generator": {**each["generator"], "first_now_ms": now, "marks": [mark]}}
    for new in rescaled(old, 3, task_of, *NAMED):
        generator = new["generator"]
        assert (new["now"], generator["first_now_ms"], generator["marks"]) == (5, 3, [["default", None, 2, 5]])


def test_rescaling_without_tasks_is_refused() -> None:
    with pytest.raises(CheckpointError, match="nothing to deal out"):
        rescaled([None], 3, task_of, *NAMED)


@given(st.lists(st.lists(st.tuples(st.integers(-5, 60), st.sampled_from("st"))), min_size=1, max_size=4))
def test_each_new_task_has_the_processed_ids_of_all_old_tasks(of_tasks: list[list[tuple[int, str]]]) -> None:
    old = [Deduplicator("bolt") for _ in of_tasks]
    for known, ids in zip(old, of_tasks, strict=True):
        known.new_positions([id for id, _ in ids], [channel for _, channel in ids])
    new = Deduplicator("bolt")
    new.restore(loads(dumps(union_of_ids(each.plain() for each in old)), "ids"))
    for channel in "st":
        told = {id for ids in of_tasks for id, of in ids if of == channel}
        fresh = new.new_positions(list(range(-5, 61)), [channel] * 66)
        assert {id - 5 for id in fresh} == set(range(-5, 61)) - told


def test_ids_that_an_old_task_remembers_only_as_a_range_stay_known() -> None:
    forgot, other = [["s", [10, 12]]], [["s", [5, 7, 4]]]  # all up to 10, and 12; all up to 5, and 7 and 11
    for old in ([forgot, other], [other, forgot]):
        new = Deduplicator("bolt")
        new.restore(union_of_ids(old))
        assert new.new_positions([4, 6, 7, 9, 10, 11, 12, 13], ["s"] * 8) == [7]
