"""PersistentWindowedBoltExecutor: windows on disk, checkpoints, restarts; with the equivalents of Storm's test of that name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.stores.memory_pages import MemoryPages
from tests.windows.histories import by_op
from tests.windows.lossless_model import LosslessModel
from windowing.codec import dumps, loads
from windowing.errors import CheckpointError, ConfigError, CorruptStateError, DefinitionChangedError, SnapshotError
from windowing.local.checkpoints import CheckPointState, StatefulBoltExecutor
from windowing.local.run import LocalRun
from windowing.stores.pages import PersistentWindow, SqlitePages
from windowing.testing.replay import LosslessReplay, config_of
from windowing.testing.strategies import cases
from windowing.topology.components import TopologyContext
from windowing.topology.decorators import sliding
from windowing.topology.state import NEVER
from windowing.windows import deduplicator
from windowing.windows.config import WindowConfig
from windowing.windows.deduplicator import block_numbers
from windowing.windows.events import Activation, Expired, Late
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Duration, count, millis, seconds
from windowing.windows.paged_manager import PagedWindowManager
from windowing.windows.persistent import PersistentWindowedBoltExecutor


def config(**declared: Any) -> WindowConfig:
    return WindowConfig.of(
        **{"length": count(10), "slide": count(5), "timestamp": "ts", "max_events_in_memory": 1000} | declared
    )


def started(store: Any = None, manifest: Any = None, **declared: Any) -> PersistentWindowedBoltExecutor:
    executor = PersistentWindowedBoltExecutor(config(**declared), store or MemoryPages())
    executor.restore(manifest)
    return executor


def windows(effects: Any) -> list[list[Any]]:
    return [list(effect.window.get()) for effect in effects if isinstance(effect, Activation)]


@dataclass(eq=False)
class Message:
    """A tuple in the inbox of the task; its payload stands for its anchors."""

    payload: Any
    timestamp: int

    @property
    def _anchors(self) -> Any:
        return self.payload


class Task:
    """A task in a topology with checkpoints: a StatefulBoltExecutor over a PersistentWindow. It is also the router."""

    context = TopologyContext("count")

    def __init__(self, path: Path | None = None, **declared: Any) -> None:
        self.window = PersistentWindow(config(**declared), SqlitePages(path), ("default",), "bolt")
        self.router: Any = self
        self.executor = StatefulBoltExecutor(self)
        self.executor.states.append(self.window)
        self.windows: list[Any] = []
        self.late: list[Any] = []
        self.acked: list[Any] = []
        self.failed: list[Any] = []

    def open(self) -> None:
        committed = self.window.pages.committed()
        self.executor.recover(CheckPointState(NEVER if committed is None else committed[0]), new=False)
        self.init(self.executor.txid)

    def init(self, txid: int) -> None:
        self.window.init(txid)

    def hook(self, method: str, *arguments: int) -> None:
        assert method in ("pre_prepare", "pre_commit", "pre_rollback")

    def ack_all(self, payloads: list[Any], component: str) -> None:
        self.acked += payloads

    def fail(self, payload: Any, component: str, reason: str = "failed") -> None:
        self.failed.append(payload)

    def execute(self, payload: Any, timestamp: int) -> None:
        message: Any = Message(payload, timestamp)
        self.executor.executed([message])
        self.show(self.window.executor.add(payload, timestamp))
        self.executor.ack(message)

    def turn(self) -> None:
        self.show(self.window.executor.turn())

    def prepare(self) -> None:
        self.executor.prepare(self.executor.txid + 1)
        self.executor.check()

    def commit(self) -> None:
        self.executor.commit(self.executor.txid + 1)
        self.executor.check()

    def roll_back(self) -> None:
        assert self.executor.roll_back()
        self.init(self.executor.txid)
        self.executor.check()

    def show(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Activation):
                self.windows.append(list(effect.window.get()))
            elif isinstance(effect, Late):
                self.late += effect.payloads


@contextmanager
def window_in(path: Path) -> Iterator[Any]:
    """The window in a file, which is closed at the end."""
    window = Task(path).window
    with closing(window.pages):
        yield window


# -- Storm's own tests -------------------------------------------------------------------------------------------------


def test_a_tuple_is_acked_once_by_the_commit_of_its_checkpoint():  # testExecuteTuple
    task = Task()
    task.open()
    task.execute("a", 1)
    task.turn()
    assert task.acked == []
    task.prepare()
    task.execute("b", 2)
    assert task.acked == []
    task.commit()
    assert task.acked == ["a"]
    task.prepare()
    task.commit()
    assert (task.acked, task.executor.held()) == (["a", "b"], [])


def test_a_late_tuple_goes_to_the_late_stream_and_is_acked_once():  # testExecuteLatetuple
    task = Task(length=millis(10), slide=millis(10))
    task.open()
    task.execute("a", 20)
    task.turn()
    task.execute("late", 5)
    assert task.late == ["late"]
    task.prepare()
    task.commit()
    assert task.acked == ["a", "late"]


def test_a_window_can_be_iterated_three_times_and_its_pages_are_saved():  # testActivation
    store = MemoryPages()
    executor = started(store, length=count(5), slide=count(5))
    list(executor.add_batch(list("abcde"), [1, 2, 3, 4, 5]))
    [activation] = [effect for effect in executor.turn() if isinstance(effect, Activation)]
    assert activation.window.end_timestamp == 5
    executor = started(store, length=count(5), slide=count(5))
    list(executor.add_batch(list("abcde"), [1, 2, 3, 4, 5]))
    for effect in executor.turn():
        if isinstance(effect, Activation):
            for _ in range(3):
                assert list(effect.window) == list("abcde")
            assert list(effect.window.get_new()) == list("abcde")  # Storm refuses
            assert list(effect.window.get_expired()) == []
    manifest = executor.prepare()
    [track] = manifest["executor"]["manager"]["tracks"]
    assert [page[1] for page in track["pages"]] == [5]
    assert (track["horizon"], track["mark"]) == (5, 5)
    assert manifest["executor"]["generator"]["watermark"] == 5


def test_a_window_of_20_000_tuples_with_half_of_them_in_memory_is_complete():  # testCacheEviction
    executor = started(length=count(20_000), slide=count(5_000), max_events_in_memory=10_000)
    tuples = list(range(20_000))
    seen = []
    for start in range(0, 20_000, 500):
        list(executor.add_batch(tuples[start : start + 500], tuples[start : start + 500]))
        for effect in executor.turn():
            if isinstance(effect, Activation):
                seen.append([list(effect.window), list(effect.window.get_new())])
    assert seen == [[tuples[:end], tuples[end - 5_000 : end]] for end in (5_000, 10_000, 15_000, 20_000)]
    cache = executor.pages.cache
    evicted = sum(page.rows is None for state in executor.pages._states.values() for page in state.buffer.pages)
    assert evicted >= 10
    assert cache.peak <= 10_000
    executor.check()


def test_a_rollback_before_the_first_state_starts_with_an_empty_window():  # testRollbackBeforeInit
    task = Task()
    with pytest.raises(CheckpointError, match=r"before its state; call restore\(manifest\)"):
        list(task.window.executor.add("a", 1))
    with pytest.raises(CheckpointError, match="before its state"):
        task.turn()
    with pytest.raises(CheckpointError, match="before its state"):
        task.window.prepare_commit(0)
    task.open()
    task.execute("a", 1)
    assert task.window.executor.counts()["in"] == 1


def test_a_rollback_undoes_the_tuples_since_the_commit_and_fails_them():  # testRollbackAfterInit
    task = Task(length=count(4), slide=count(2))
    task.open()
    for n in (1, 2, 3):
        task.execute(n, n)
    task.turn()
    task.prepare()
    task.commit()
    task.execute(4, 4)
    task.prepare()
    task.commit()
    named = task.window.pages.ids()
    assert len(named) == 1
    for n in (5, 6):
        task.execute(n, n)
    task.turn()
    task.prepare()
    task.execute(7, 7)
    task.roll_back()
    assert task.window.pages.ids() == named
    assert (task.acked, task.failed) == ([1, 2, 3, 4], [5, 6, 7])
    task.windows.clear()
    for n in (5, 6):
        task.execute(n, n)
    task.turn()
    assert task.windows == [[1, 2, 3, 4], [3, 4, 5, 6]]
    task.window.executor.check()


def test_a_restart_continues_from_the_committed_checkpoint_or_commits_the_prepared_one(tmp_path):
    with window_in(tmp_path / "count-0") as window:
        window.init(NEVER)
        list(window.executor.add("a", 1))
        window.prepare_commit(0)
        window.commit(0)
        list(window.executor.add("b", 2))
        window.prepare_commit(1)
    with window_in(tmp_path / "count-0") as window:
        assert window.pages.committed()[0] == 0
        window.rollback()
        window.init(0)
        assert window.executor.counts()["in"] == 1
        list(window.executor.add_batch(["b", "c"], [2, 3]))
        window.prepare_commit(1)
    with window_in(tmp_path / "count-0") as window:
        window.commit(1)
        window.commit(1)
        window.init(1)
        assert window.executor.counts()["in"] == 3
        with pytest.raises(CheckpointError, match=r"count-0 holds checkpoint 1, the coordinator goes on from 7"):
            window.init(7)
        with pytest.raises(
            CheckpointError, match=r"holds checkpoint 1, the coordinator has no checkpoint: its record is m"
        ):
            window.init(NEVER)
    with (
        window_in(tmp_path / "other-0") as window,
        pytest.raises(CheckpointError, match=r"other-0 is missing or empty, the coordinator goes on from 7;"),
    ):
        window.init(7)


# -- what Storm loses in a restart -------------------------------------------------------------------------------------


def test_after_a_restart_a_tuple_is_as_late_as_before():
    store = MemoryPages()
    executor = started(store, length=seconds(1), slide=seconds(1), lag=Duration(10), late_stream="late")
    list(executor.add("a", 5_000))
    list(executor.turn())
    manifest = executor.prepare()
    executor.committed()
    again = started(store, manifest, length=seconds(1), slide=seconds(1), lag=Duration(10), late_stream="late")
    assert again.watermark == 4_990
    [late] = again.add("b", 4_989)
    assert isinstance(late, Late)
    assert again.counts() == {**executor.counts(), "in": 2, "late": 1}


def test_new_and_expired_tuples_continue_after_a_restart():
    store = MemoryPages()
    executor = started(store, length=count(4), slide=count(2))
    list(executor.add_batch([1, 2, 3, 4], [1, 2, 3, 4]))
    assert windows(executor.turn()) == [[1, 2], [1, 2, 3, 4]]
    manifest = executor.prepare()
    again = started(store, manifest, length=count(4), slide=count(2))
    list(again.add_batch([5, 6], [5, 6]))
    for effect in again.turn():
        if isinstance(effect, Activation):
            window = effect.window
            assert [list(window), list(window.get_new()), list(window.get_expired())] == [[3, 4, 5, 6], [5, 6], [1, 2]]
        elif isinstance(effect, Expired):
            assert list(effect.get() or ()) == [3, 4]


# -- duplicates --------------------------------------------------------------------------------------------------------


def feed(executor: Any, ids: Any, channel: str = "a") -> None:
    for n in ids:
        list(executor.add(f"{channel}{n}", n, channel=channel, message_id=n))


def shown(executor: Any) -> list[Any]:
    return [each for window in windows(executor.drain()) for each in window]


def test_replayed_tuples_of_a_checkpoint_are_skipped_after_a_restart():
    store = MemoryPages()
    executor = started(store, length=count(100), slide=count(100))
    feed(executor, range(1, 6))
    feed(executor, range(1, 3), "b")
    manifest = json.loads(json.dumps(executor.prepare()))
    executor.committed()
    again = started(store, manifest, length=count(100), slide=count(100))
    feed(again, range(2, 8))
    feed(again, range(1, 4), "b")
    feed(again, range(1, 2), "c")
    assert again.duplicates == 6
    assert sorted(shown(again)) == sorted(["a1", "a2", "a3", "a4", "a5", "a6", "a7", "b1", "b2", "b3", "c1"])


def test_duplicates_in_a_batch_are_skipped_as_one_by_one():
    store = MemoryPages()
    executor = started(store, length=millis(10), slide=millis(10))
    feed(executor, range(1, 6))
    list(executor.turn())
    manifest = executor.prepare()
    again = started(store, manifest, length=millis(10), slide=millis(10))
    effects = again.add_batch(
        list("efgh"), [5, 6, 3, 8], stream=["default"] * 4, channels=["a", "a", "b", "a"], message_ids=[5, 6, 1, 8]
    )
    assert [(at, effect.payloads) for at, effect in effects] == [(2, ["g"])]
    assert (again.duplicates, shown(again)) == (1, ["a1", "a2", "a3", "a4", "a5", "f", "h"])


def test_a_tuple_that_arrives_after_greater_ids_is_accepted_once_before_and_after_a_restart():
    executor = started()
    feed(executor, (1, 2, 4, 3, 4))
    assert (executor.duplicates, executor.counts()["in"]) == (1, 4)
    manifest = executor.prepare()
    again = started(executor.pages.cache.store, manifest)
    feed(again, (4, 7, 3, 6, 6))
    assert (again.duplicates, again.counts()["in"]) == (4, 6)


def test_ids_in_blocks_are_in_the_manifest_of_their_checkpoint_and_one_without_blocks_is_continued(monkeypatch):
    monkeypatch.setattr(deduplicator, "BLOCK", 4)
    executor = started(length=count(90), slide=count(90))
    feed(executor, range(0, 60, 2))
    manifest = loads(dumps(executor.prepare()), "a manifest")
    executor.committed()
    assert (manifest["format"], len(manifest["id_blocks"])) == (3, 6)
    of_before = {**manifest, "format": 2, "message_ids": executor._known.plain()}  # as 0.2.0 stored it
    del of_before["id_blocks"]
    for stored in (manifest, loads(dumps(of_before), "a manifest")):
        again = started(executor.pages.cache.store, stored, length=count(90), slide=count(90))
        feed(again, (4, 5, 59, 61, 5))
        assert (again.duplicates, again.counts()["in"]) == (2, 33)
        assert [id for _, ids in again._known.plain() for id in accumulate(ids[1:])] == [
            *range(0, 5, 2),
            5,
            *range(6, 59, 2),
            59,
            61,
        ]
    after = again.prepare()
    assert {*map(repr, after["id_blocks"])} == {*map(repr, again.prepare()["id_blocks"])}
    feed(again, [7])  # into a block that is stored
    for manifest in (after, again.prepare()):
        numbers = [number for _, number, _ in manifest["id_blocks"]]
        assert sorted(numbers) == sorted(block_numbers(manifest["message_ids"][0][1]))


def test_a_batch_needs_one_message_id_per_tuple():
    with pytest.raises(ConfigError, match="message_ids"):
        started().add_batch(["a", "b"], [1, 2], message_ids=[1])


def test_without_message_ids_a_replayed_tuple_is_a_second_tuple():
    executor = started()
    list(executor.add("a", 1))
    again = started(executor.pages.cache.store, executor.prepare())
    list(again.add("a", 1))
    assert shown(again) == ["a", "a"]


def test_a_message_id_that_is_no_whole_number_is_refused():
    for wrong in ("7", 7.0, True):
        with pytest.raises(ConfigError, match="a whole number that rises on each channel"):
            list(started().add("a", 1, message_id=wrong))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_persistent_window_without_max_events_in_memory_is_refused():
    with pytest.raises(ConfigError, match="declare max_events_in_memory=50_000"):
        PersistentWindowedBoltExecutor(WindowConfig.of(length=count(5)), MemoryPages())
    with pytest.raises(ConfigError, match="give pages= a PageStore"):
        WindowedBoltExecutor(config())


def test_a_manifest_of_another_window_is_refused_and_loses_no_page():
    store = MemoryPages()
    executor = started(store)
    list(executor.add_batch([1, 2], [1, 2]))
    manifest = executor.prepare()
    held = store.ids()
    with pytest.raises(DefinitionChangedError, match=r"length=\{'count': 10\}, now it is \{'count': 11\}"):
        started(store, manifest, length=count(11))
    with pytest.raises(DefinitionChangedError, match=r"slide=\{'count': 5\}, now it is \{'ms': 5\}"):
        started(store, manifest, slide=millis(5))
    for wrong in ({}, [], {"machine": "WindowedBoltExecutor"}):
        with pytest.raises(SnapshotError, match="a manifest of `prepare` was wanted"):
            started(store, wrong)
    with pytest.raises(SnapshotError, match="format 7"):
        started(store, {**manifest, "format": 7})
    assert store.ids() == held
    assert started(store, manifest, max_events_in_memory=5000, lag=seconds(1)).counts()["in"] == 2


def test_a_damaged_page_is_named_when_it_is_read(tmp_path):
    with SqlitePages(tmp_path / "count-0.pages") as store:
        executor = started(store, length=count(5000), slide=count(5000))
        list(executor.add_batch(list(range(5000)), list(range(5000))))
        store._db.execute("UPDATE page SET body = zeroblob(100) WHERE id = 3")
        with pytest.raises(CorruptStateError, match=r"count-0.pages: page 3 is not ours.*nothing was reset"):
            windows(executor.turn())


def test_a_local_run_keeps_tuples_beyond_the_limit_in_a_temporary_file():
    @sliding(
        count(3000), count(1000), timestamp="at", output="total long, new long, gone long", max_events_in_memory=1000
    )
    def total(window: Any) -> Any:
        parts = window.get(), window.get_new(), window.get_expired()
        return tuple(sum(row["n"] for row in part) for part in parts)

    run = LocalRun(total)
    run.feed({"n": n, "at": n} for n in range(5000))
    emitted = [values for _, values in run.turn()]
    ends = range(1000, 6000, 1000)
    assert emitted == [
        (
            sum(range(max(end - 3000, 0), end)),
            sum(range(end - 1000, end)),
            sum(range(max(end - 4000, 0), max(end - 3000, 0))),
        )
        for end in ends
    ]
    assert run.result.acked == 3000
    assert run.executor.manager.cache.peak <= 1000
    run.close()


# -- executor, store and checkpoints, in any order -----------------------------------------------------------------------

EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
)
DELTAS = st.sampled_from([0, 1, -1, 2, 5, -3, 10, -10, 30])


class PersistentReplay(LosslessReplay):
    def __init__(self, case: dict[str, Any], sizes: tuple[int, int]) -> None:
        self.sizes = sizes
        self.store = MemoryPages()
        self.first = True
        super().__init__(case, config_of(case, max_events_in_memory=1000))

    def build(self) -> PersistentWindowedBoltExecutor:
        executor = PersistentWindowedBoltExecutor(self.config, self.store, self.streams)
        page_tuples, max_events = self.sizes
        executor.use(PagedWindowManager(self.config, self.store, max_events=max_events, page_tuples=page_tuples))
        if self.first:
            executor.restore(None)
        self.first = False
        return executor

    def _events(self, index: int, effect: Any) -> Any:
        for event in super()._events(index, effect):
            yield [*event[:2], list(event[2])] if event[1] == "expire" else event


class CheckpointsBesideModel(RuleBasedStateMachine):
    """Tuples, turns, prepares, commits, rollbacks and crashes. The model is a run that never stops: after a loss it is fed again
    with the tuples that the source would replay, those after the checkpoint."""

    @initialize(
        case=cases(mix=None, max_steps=0, drains=False, **EITHER), sizes=st.tuples(st.integers(1, 3), st.integers(1, 8))
    )
    def declare(self, case: dict[str, Any], sizes: tuple[int, int]) -> None:
        self.case = {**case, "ops": []}
        self.run = PersistentReplay(self.case, sizes)
        self.ops: list[list[Any]] = []
        self.ids = 0
        self.front = self.clock = case["clock_start_ms"]
        self.committed: tuple[Any, int] = (None, 0)
        self.prepared: tuple[Any, int] | None = None

    @rule(deltas=st.lists(st.tuples(DELTAS, st.sampled_from("abc"), st.integers(0, 2)), min_size=1, max_size=6))
    def add(self, deltas: list[tuple[int, str, int]]) -> None:
        self.apply([self.tuple_op(*each) for each in deltas])

    @rule()
    def turn(self) -> None:
        self.apply([["watermark"] if self.case["event_time"] else ["tick"]])

    @rule(delta=st.sampled_from([1, 2, 7, 30]))
    def move_the_clock(self, delta: int) -> None:
        self.clock += delta
        self.apply([["clock", self.clock]])

    @rule()
    @precondition(lambda self: self.ids > 8)
    def drain(self) -> None:
        self.apply([["drain"]])

    @rule()
    def prepare(self) -> None:
        self.prepared = (json.dumps(self.run.executor.prepare()), len(self.ops))

    @rule()
    @precondition(lambda self: self.prepared)
    def commit(self) -> None:
        self.committed, self.prepared = self.prepared, None
        self.run.executor.committed()

    @rule(killed=st.booleans(), after_prepare=st.booleans())
    def lose_everything_since_a_checkpoint(self, killed: bool, after_prepare: bool) -> None:
        """A rollback, in the same process or a new one; or the coordinator reports that the prepared checkpoint counts."""
        if after_prepare and self.prepared:
            self.committed = self.prepared
        self.prepared = None
        saved, at = self.committed
        if killed:
            self.run.executor = self.run.build()
        self.run.executor.restore(None if saved is None else json.loads(saved))
        if saved is None:
            self.run.executor.set_clock(self.case["clock_start_ms"])
            if self.case["event_time"]:
                list(self.run.executor.turn())
        again, self.ops = self.ops[at:], self.ops[:at]
        for op in again:
            self.apply([op])

    @invariant()
    def everything_is_consistent(self) -> None:
        if hasattr(self, "run"):
            self.run.executor.check()

    def tuple_op(self, delta: int, key: str, source: int) -> list[Any]:
        self.ids += 1
        options = {"key": key} if self.case.get("keyed") else {}
        event_time = self.case["event_time"]
        if self.case.get("source"):
            options["source"] = source % 2
        if event_time is None:
            return ["add", self.ids, *([options] if options else [])]
        timestamp = self.front + delta
        self.front = max(self.front, timestamp)
        name = event_time["streams"][source % len(event_time["streams"])]
        return ["tuple", name, self.ids, timestamp, *([options] if options else [])]

    def apply(self, ops: list[list[Any]]) -> None:
        first = len(self.ops)
        self.ops += ops
        model = LosslessModel(self.case)
        for index, op in enumerate(self.ops):
            model.apply(index, op)
        expected = by_op(event for event in model.events if event[0] >= first)
        assert by_op(self.run.feed(first, ops)) == expected


TestCheckpointsBesideModel = CheckpointsBesideModel.TestCase
TestCheckpointsBesideModel.settings = settings(stateful_step_count=30)


def test_a_manifest_without_one_of_its_blocks_of_ids_is_damaged(monkeypatch):
    monkeypatch.setattr(deduplicator, "BLOCK", 4)
    executor = started(length=count(90), slide=count(90))
    feed(executor, range(0, 60, 2))
    manifest = executor.prepare()
    executor.committed()
    again = started(
        executor.pages.cache.store,
        {**manifest, "id_blocks": manifest["id_blocks"][1:]},
        length=count(90),
        slide=count(90),
    )
    with pytest.raises(
        CorruptStateError, match=r"of the message ids of .* is missing; restore the checkpoint from a copy"
    ):
        feed(again, [1])
