"""Spouts of batches: metadata made once, batches emitted and committed by attempt, partitions read on from their last end."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from windowing import seconds
from windowing.errors import ConfigError, CorruptStateError, FailedException
from windowing.schema.rows import RowError
from windowing.schema.types import Schema
from windowing.trident.coordinator import Readiness
from windowing.trident.executors import (
    Ack,
    Commit,
    EmitBatch,
    Fail,
    Report,
    Succeed,
    TridentSpoutCoordinator,
    TridentSpoutExecutor,
)
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.processors import TridentOutput
from windowing.trident.spouts import (
    BatchCoordinator,
    BatchSpoutExecutor,
    FixedBatchSpout,
    IBatchSpout,
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    OpaquePartitionedEmitter,
    OpaquePartitionedTridentSpoutExecutor,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTridentSpoutExecutor,
    RichSpoutBatchExecutor,
    SpoutBatch,
    SpoutContext,
)
from windowing.trident.transactional_state import MemoryRecordStore, RotatingTransactionalState, TransactionalState


def attempt(text: str) -> TransactionAttempt:
    txid, number = text.split(":")
    return TransactionAttempt(int(txid), int(number))


def batch(text: str, metadata: Any = None, after: str | None = None) -> SpoutBatch:
    return SpoutBatch(attempt(text), metadata, attempt(after) if after else None)


class Rows:
    """A collector that is a list."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def emit(self, values: Any) -> None:
        self.rows.append(values[0] if len(values) == 1 else tuple(values))


# -- TridentSpoutCoordinator ----------------------------------------------------------------------------------------------


class Numbers(BatchCoordinator):
    """Metadata is (end of the previous batch, own end); `end` is the end of the source."""

    def __init__(self) -> None:
        self.end = 0
        self.told: list[int] = []
        self.fails = False

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        if self.fails:
            raise FailedException("no answer from the source")
        return current or [previous[1] if previous else 0, self.end]

    def success(self, txid: int) -> None:
        self.told.append(txid)


class Coordinated:
    def __init__(self, store: MemoryRecordStore | None = None) -> None:
        self.store = store or MemoryRecordStore()
        self.numbers = Numbers()
        self.machine = TridentSpoutCoordinator(self.numbers, TransactionalState(self.store, "spout"))

    def batch(self, name: str, after: str | None = None, end: int = 0) -> Any:
        """Return the metadata that was sent, or the cause of the failure, or None if nothing was done."""
        self.numbers.end = end
        try:
            sent = self.machine.batch(attempt(name), attempt(after) if after else None)
        except FailedException as problem:
            return str(problem)
        if sent is None:
            return None
        assert (sent.attempt, sent.after) == (attempt(name), attempt(after) if after else None)
        return sent.metadata


def test_the_metadata_of_a_batch_is_made_from_that_of_the_previous_batch():
    spout = Coordinated()
    assert spout.batch("1:0", end=3) == [0, 3]
    assert spout.batch("2:0", after="1:0", end=5) == [3, 5]


def test_every_attempt_has_the_same_metadata_even_after_a_restart():
    spout = Coordinated()
    spout.batch("1:0", end=3)
    spout.batch("2:0", after="1:0", end=5)
    assert spout.batch("1:1", end=9) == [0, 3]
    again = Coordinated(spout.store)
    assert again.batch("1:2", end=9) == [0, 3]
    assert again.batch("2:1", after="1:2", end=9) == [3, 5]
    assert again.batch("3:0", after="2:1", end=9) == [5, 9]


def test_a_batch_before_the_metadata_of_its_predecessor_is_failed():
    spout = Coordinated()
    spout.batch("1:0", end=3)
    assert spout.batch("3:0", after="2:0", end=9) == "[FAILED] batch 3:0 came before 2:0, on which it rests"
    assert spout.batch("2:0", after="1:0", end=5) == [3, 5]
    assert spout.batch("3:1", after="2:0", end=9) == [5, 9]


def test_a_late_attempt_is_failed_and_a_repeated_one_is_emitted_once():
    spout = Coordinated()
    spout.batch("1:1", end=3)
    assert "1:1, which supersedes it" in spout.batch("1:0", end=3)
    assert spout.batch("1:1", end=3) is None


def test_success_removes_earlier_metadata_and_calls_the_spout_once():
    spout = Coordinated()
    for txid in range(1, 20):
        spout.batch(f"{txid}:0", after=f"{txid - 1}:0" if txid > 1 else None, end=txid)
        spout.machine.success(attempt(f"{txid}:0"))
        spout.machine.success(attempt(f"{txid}:0"))
        assert len(spout.store.blobs) <= 2
    assert spout.numbers.told == list(range(1, 20))


def test_a_finished_txid_is_never_begun_again():
    spout = Coordinated()
    for txid in (1, 2, 3):
        spout.batch(f"{txid}:0", end=txid)
        spout.machine.success(attempt(f"{txid}:0"))
    assert "it comes too late, or the coordinator's record was lost" in spout.batch("2:1", end=9)
    assert "it comes too late, or the coordinator's record was lost" in Coordinated(spout.store).batch("1:0", end=9)
    assert Coordinated(spout.store).batch("4:0", end=9) == [3, 9]


def test_a_batch_that_comes_after_the_success_of_a_later_one_is_failed_even_without_any_metadata():
    spout = Coordinated()
    spout.machine.success(attempt("2:0"))
    assert "batch 1:0 was asked for after 2 was: it comes too late, or the coordinator's record" in spout.batch("1:0")


def test_the_metadata_stays_until_the_spout_has_taken_the_success():
    spout = Coordinated()
    for txid in (1, 2):
        spout.batch(f"{txid}:0", end=txid)
    again = Coordinated(spout.store)

    def lost(txid: int) -> None:
        raise OSError("the source cannot be reached")

    again.numbers.success = lost  # type: ignore[method-assign]
    with pytest.raises(OSError, match="cannot be reached"):
        again.machine.success(attempt("2:0"))
    kept = RotatingTransactionalState(TransactionalState(spout.store, "spout"), "meta")
    assert kept.txids() == [1, 2], "a restart finds what it still has to ack"


def test_a_spout_that_cannot_make_metadata_fails_the_batch_and_is_asked_again_by_the_next_attempt():
    spout = Coordinated()
    spout.numbers.fails = True
    assert spout.batch("1:0") == "[FAILED] no answer from the source"
    spout.numbers.fails = False
    assert spout.batch("1:1", end=2) == [0, 2]


def test_metadata_whose_write_may_have_arrived_is_written_again_by_the_next_attempt():
    class Deaf(MemoryRecordStore):
        deaf = False

        def write(self, changes: Any, expected: Any) -> bool:
            written = super().write(changes, expected)
            if self.deaf:
                raise FailedException("no answer")
            return written

    spout = Coordinated(store := Deaf())
    spout.numbers.initialize_transaction = lambda txid, previous, current: spout.numbers.end  # type: ignore[method-assign]
    assert spout.batch("1:0", end=1) == 1
    store.deaf = True
    assert spout.batch("1:1", end=2) == "[FAILED] no answer"
    store.deaf = False
    assert "was written by somebody else" in spout.batch("1:2", end=1)
    assert spout.batch("1:3", end=1) == 1
    assert TransactionalState(store, "spout").read("meta/1") == 1


def test_damaged_metadata_stops_the_start():
    spout = Coordinated()
    spout.batch("1:0", end=3)
    spout.store.blobs["spout/meta/1"] = b"{}"
    with pytest.raises(CorruptStateError, match="spout/meta/1"):
        Coordinated(spout.store)


# -- TridentSpoutExecutor -------------------------------------------------------------------------------------------------


class Executed:
    """A task of a spout whose emitter sends `emits` to each target, and fails at `fails`."""

    def __init__(self, *targets: str) -> None:
        self.machine = TridentSpoutExecutor(targets)
        self.emits = 2
        self.fails: type[Any] | None = None
        self.cause = ""

    def do(self, effects: Any) -> list[str]:
        words = []
        for effect in effects:
            match effect:
                case EmitBatch(each, skip):
                    words.append(f"emit {each.attempt}" + (f" to the dead letters: {skip}" if skip else ""))
                    for target in self.machine.targets * self.emits if not skip else ():
                        self.machine.emitted(each.attempt, target)
                case Commit(name) | Succeed(name):
                    words.append(f"{type(effect).__name__.lower()} {name}")
                case Report(_, target, sent, message):
                    words.append(f"tell {target} {sent} by {message}")
                case Ack(message) | Fail(message):
                    words.append(f"{type(effect).__name__.lower()} {message}")
            if type(effect) is self.fails:
                self.machine.failed(effect.batch.attempt if type(effect) is EmitBatch else effect.attempt, "x")
        self.machine.check()
        return words

    def batch(self, name: str, skip: str | None = None, message: str = "b") -> list[str]:
        return self.do(self.machine.batch(batch(name), skip, message))

    def commit(self, name: str) -> list[str]:
        return self.do(self.machine.commit(attempt(name), "c"))

    def success(self, name: str) -> list[str]:
        return self.do(self.machine.success(attempt(name)))


def test_a_batch_is_emitted_reported_to_each_target_and_acked():
    assert Executed("x", "y").batch("1:0") == ["emit 1:0", "tell x 2 by b", "tell y 2 by b", "ack b"]


def test_a_batch_that_cannot_be_emitted_is_failed_and_not_reported():  # T4: in Storm it is reported as a success
    task = Executed("x")
    task.fails = EmitBatch
    assert task.batch("1:0") == ["emit 1:0", "fail b"]
    assert task.commit("1:0") == ["fail c"]
    task.fails = None
    assert task.batch("1:1") == ["emit 1:1", "tell x 2 by b", "ack b"]


def test_a_skipped_batch_goes_to_the_dead_letters_and_its_targets_get_no_tuples():
    assert Executed("x").batch("1:2", skip="y") == ["emit 1:2 to the dead letters: y", "tell x 0 by b", "ack b"]


def test_only_the_last_emitted_attempt_is_committed():
    task = Executed()
    assert task.commit("1:0") == ["fail c"]
    task.batch("1:0")
    task.batch("1:1")
    assert task.commit("1:0") == ["fail c"]
    assert task.commit("1:1") == ["commit 1:1", "ack c"]
    assert task.commit("1:1") == []


def test_a_failed_commit_is_not_retried_under_the_same_attempt():
    task = Executed()
    task.batch("1:0")
    task.fails = Commit
    assert task.commit("1:0") == ["commit 1:0", "fail c"]
    task.fails = None
    assert task.commit("1:0") == ["fail c"]
    task.batch("1:1")
    assert task.commit("1:1") == ["commit 1:1", "ack c"]


def test_a_task_that_died_after_the_batch_fails_the_commit():
    Executed().batch("1:0")
    assert Executed().commit("1:0") == ["fail c"]


def test_a_late_attempt_is_failed_and_a_repeated_one_is_done_once():
    task = Executed()
    task.batch("1:1")
    assert task.batch("1:0") == ["fail b"]
    assert task.batch("1:1") == []
    assert task.success("1:1") == ["succeed 1:1"]
    assert task.success("1:1") == []
    assert task.batch("1:2") == ["fail b"]


def test_success_removes_all_earlier_batches():
    task = Executed()
    for txid in range(1, 50):
        task.batch(f"{txid}:0")
        task.batch(f"{txid + 1}:0")
        task.success(f"{txid}:0")
        assert len(task.machine._emissions) == 1


def test_of_two_lives_of_a_coordinator_only_one_writes_the_metadata():
    old = Coordinated()
    old.batch("1:0", end=3)
    new = Coordinated(old.store)
    assert new.batch("2:1", end=5) == [3, 5]
    assert "was written by somebody else since it was read here" in old.batch("2:0", end=4)
    assert old.batch("2:2", end=4) == [3, 5]


# -- rows by txid ---------------------------------------------------------------------------------------------------------


def rows_of(emitter: Any, each: SpoutBatch) -> list[Any]:
    rows = Rows()
    emitter.emit_batch(each, rows)
    return rows.rows


def letters_of(emitter: Any, each: SpoutBatch) -> list[str]:
    rows = TridentOutput(Schema.parse("letter string"))
    return [letter for (letter,) in rows.rows_of(emitter.emit_batch, each)]


def context(store: MemoryRecordStore | None = None, task: int = 0, tasks: int = 1) -> SpoutContext:
    return SpoutContext(TransactionalState(store or MemoryRecordStore(), "spout/emitter"), task, tasks)


def fixed(cycle: bool = False) -> FixedBatchSpout:
    return FixedBatchSpout("letter string", 3, [(letter,) for letter in "abcdefg"], cycle)


def test_a_fixed_spout_emits_its_rows_and_then_ends():
    spout = BatchSpoutExecutor(fixed())
    coordinator, emitter = spout.get_coordinator(context()), spout.get_emitter(context())
    assert [rows_of(emitter, batch(f"{txid}:0")) for txid in (1, 2, 3, 4)] == [
        ["a", "b", "c"],
        ["d", "e", "f"],
        ["g"],
        [],
    ]
    assert [coordinator.is_ready(txid).name for txid in (1, 3, 4)] == ["READY", "READY", "ENDED"]
    assert FixedBatchSpout("letter string", 3, []).is_ready(1) is Readiness.ENDED


def test_a_cycling_fixed_spout_starts_over_with_a_new_batch():
    spout = fixed(cycle=True)
    assert [spout.rows_of(txid) for txid in (3, 4)] == [[("g",)], [("a",), ("b",), ("c",)]]
    assert spout.is_ready(1_000_000) is Readiness.READY


def test_a_fixed_spout_emits_the_same_rows_in_every_attempt_in_any_order_and_after_a_restart():
    emitter, again = (
        BatchSpoutExecutor(fixed()).get_emitter(context()),
        BatchSpoutExecutor(fixed()).get_emitter(context()),
    )
    rows_of(emitter, batch("1:0"))
    emitter.success(attempt("1:0"))
    assert rows_of(again, batch("2:1")) == rows_of(emitter, batch("2:0")) == ["d", "e", "f"]


def test_a_batch_spout_gets_ack_for_its_batches():
    class Letters(IBatchSpout):
        def emit_batch(self, txid: int, collector: Any) -> None:
            collector.emit((f"{txid}",))

        def ack(self, txid: int) -> None:
            self.acked = txid

    spout = Letters()
    BatchSpoutExecutor(spout).get_emitter(context()).success(attempt("7:1"))
    assert spout.acked == 7


@pytest.mark.parametrize("size", [0, True, 1.5])
def test_an_invalid_batch_size_is_refused(size):
    with pytest.raises(ConfigError, match="size is a whole number from 1"):
        FixedBatchSpout("x string", size, [])


@pytest.mark.parametrize(
    "arguments", [(("the cow",), ("the moon",)), ("the cow", "the moon"), (["cow"],), ([("cow",)], 1)]
)
def test_the_rows_of_a_fixed_spout_in_storms_form_are_refused(arguments):
    with pytest.raises(ConfigError, match=r"takes one list of rows.*write FixedBatchSpout\('word string', 2, \["):
        FixedBatchSpout("sentence string", 3, *arguments)
    with pytest.raises(AttributeError, match="no 'setCycle'; write cycle=True"):
        fixed().setCycle(True)


def test_the_rows_of_a_fixed_spout_come_from_anything_that_yields_them():
    assert FixedBatchSpout("x string", 2, zip("abc")).rows_of(1) == [("a",), ("b",)]


# -- a spout of single tuples ---------------------------------------------------------------------------------------------


class Queue:
    """A queue: an emitted message waits for its ack, and is emitted again when it is failed."""

    def __init__(self, letters: str) -> None:
        self.waiting = list(letters)
        self.acked = ""
        self.failed = ""
        self.calls = 0

    def open(self, opened_with: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        self.calls += 1
        if self.waiting:
            letter = self.waiting.pop(0)
            self.collector.emit((letter,), message_id=letter)

    def ack(self, message_id: str) -> None:
        self.acked += message_id

    def fail(self, message_id: str) -> None:
        self.failed += message_id
        self.waiting.append(message_id)

    def close(self) -> None:
        self.waiting = []


def test_a_batch_of_a_rich_spout_ends_when_it_is_full_or_nothing_is_left():  # T8: in Storm only until the first full batch
    queue = Queue("abcde")
    emitter = RichSpoutBatchExecutor(queue, max_batch_size=3).get_emitter(context())
    assert [letters_of(emitter, batch(f"{txid}:0")) for txid in (1, 2, 3)] == [["a", "b", "c"], ["d", "e"], []]
    assert queue.calls == 3 + 3 + 1


def test_a_batch_of_a_rich_spout_ends_when_the_spout_sleeps():
    class Sleepy(Queue):
        def next_tuple(self) -> None:
            super().next_tuple()
            if self.calls == 2:
                self.collector.sleep(seconds(1))

    emitter = RichSpoutBatchExecutor(Sleepy("abcde"), max_batch_size=3).get_emitter(context())
    assert [letters_of(emitter, batch(f"{txid}:0")) for txid in (1, 2)] == [["a", "b"], ["c", "d", "e"]]


def test_a_rich_spout_gets_its_acks_when_the_batch_is_committed():
    queue = Queue("abcd")
    emitter = RichSpoutBatchExecutor(queue, max_batch_size=2).get_emitter(context())
    letters_of(emitter, batch("1:0"))
    letters_of(emitter, batch("2:0"))
    assert queue.acked == ""
    emitter.success(attempt("1:0"))
    assert queue.acked == "ab"
    emitter.success(attempt("2:0"))
    assert (queue.acked, queue.failed) == ("abcd", "")


def test_a_rich_spout_gets_its_fails_when_the_batch_is_retried_even_much_later():  # T9: in Storm it never is
    queue = Queue("abc")
    emitter = RichSpoutBatchExecutor(queue, max_batch_size=2).get_emitter(context())
    letters_of(emitter, batch("1:0"))
    assert letters_of(emitter, batch("1:1")) == ["c", "a"]
    assert queue.failed == "ab"
    emitter.success(attempt("1:1"))
    assert (queue.acked, queue.waiting) == ("ca", ["b"])


def test_a_lost_success_is_made_up_by_the_next_one():
    queue = Queue("abcd")
    emitter = RichSpoutBatchExecutor(queue, max_batch_size=2).get_emitter(context())
    letters_of(emitter, batch("1:0"))
    letters_of(emitter, batch("2:0", after="1:0"))
    emitter.success(attempt("2:0"))
    assert queue.acked == "abcd"


def test_a_rich_spout_gets_no_ack_for_a_batch_that_another_life_may_have_emitted():  # found by the simulator
    queue = Queue("abcd")
    emitter = RichSpoutBatchExecutor(queue, max_batch_size=2).get_emitter(context())
    letters_of(emitter, batch("1:0"))
    emitter.success(attempt("1:1"))
    assert (queue.acked, queue.failed) == ("", "ab")
    letters_of(emitter, batch("2:0"))
    letters_of(emitter, batch("3:0"))
    emitter.success(attempt("3:0"))
    assert (queue.acked, queue.failed) == ("ab", "abcd"), "3:0 rested on some 2, nobody here knows on which"


def test_a_rich_spout_may_take_the_values_in_ack_or_have_neither_ack_nor_fail():
    class WithValues(Queue):
        def ack(self, message_id: str, values: Any) -> None:
            self.acked += f"{message_id}={values}"

        fail: Any = None

    queue = WithValues("a")
    emitter = RichSpoutBatchExecutor(queue, 1_000).get_emitter(context())
    letters_of(emitter, batch("1:0"))
    letters_of(emitter, batch("1:1"))
    queue.waiting = ["b"]
    letters_of(emitter, batch("2:0"))
    emitter.success(attempt("2:0"))
    assert queue.acked == "b=('b',)"


def test_a_rich_spout_gets_the_values_that_it_has_emitted_also_if_it_uses_its_list_again():
    class OneList(Queue):
        row: ClassVar[list[str]] = [""]

        def next_tuple(self) -> None:
            if self.waiting:
                self.row[0] = self.waiting.pop(0)
                self.collector.emit(self.row, message_id=self.row[0])

        def fail(self, message_id: str, values: Any) -> None:
            self.failed += f"{message_id}={values}"

    queue = OneList("ab")
    emitter = RichSpoutBatchExecutor(queue, 1_000).get_emitter(context())
    assert letters_of(emitter, batch("1:0")) == ["a", "b"]
    letters_of(emitter, batch("1:1"))
    assert queue.failed == "a=('a',)b=('b',)"


def test_a_rich_spout_that_returns_rows_in_place_of_emitting_them_is_an_error():
    class Returning(Queue):
        def next_tuple(self) -> Any:
            return ["a"]

    emitter = RichSpoutBatchExecutor(Returning(""), 1_000).get_emitter(context())
    with pytest.raises(RowError, match=r"it emitted nothing, and returned \['a'\]; emit rows to the collector"):
        letters_of(emitter, batch("1:0"))


def test_a_rich_spout_that_emits_outside_of_next_tuple_is_refused():
    queue = Queue("a")
    RichSpoutBatchExecutor(queue, 1_000).get_emitter(context())
    with pytest.raises(ConfigError, match=r"outside of next_tuple\(\)"):
        queue.collector.emit(("a",))
    with pytest.raises(ConfigError, match="batches have no direct streams"):
        queue.collector.emit_direct(3, ("a",))


def test_a_rich_spout_that_emits_to_another_stream_is_refused_because_no_batch_has_it():
    class Errors(Queue):
        def next_tuple(self) -> None:
            self.collector.emit(("bad",), stream="errors", message_id=1)

    emitter = RichSpoutBatchExecutor(Errors("a"), 1_000).get_emitter(context())
    with pytest.raises(ConfigError, match="to the stream 'errors'; a batch has the stream 'default' only"):
        letters_of(emitter, batch("1:0"))


# -- partitions -----------------------------------------------------------------------------------------------------------


class Topic(PartitionedCoordinator, PartitionedEmitter):
    """Partitions that grow: a batch has the available rows, at most two. Metadata is [from, to)."""

    def __init__(self, **partitions: str) -> None:
        self.partitions = partitions
        self.calls: list[str] = []

    def get_partitions_for_batch(self) -> list[str]:
        return list(self.partitions)

    def emit_partition_batch_new(self, each: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        metadata = [start, min(start + 2, len(self.partitions[partition]))]
        self.calls.append(f"new {each} {partition}")
        self.emit(collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, each: TransactionAttempt, collector: Any, partition: str, metadata: Any) -> None:
        self.calls.append(f"again {each} {partition}")
        self.emit(collector, partition, metadata)

    def emit(self, collector: Any, partition: str, metadata: Any) -> None:
        for letter in self.partitions[partition][slice(*metadata)]:
            if letter == "!":
                raise FailedException("cannot read !")
            collector.emit((letter,))


class TopicSpout(IPartitionedTridentSpout, IOpaquePartitionedTridentSpout):
    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def get_coordinator(self) -> PartitionedCoordinator:
        return self.topic

    def get_emitter(self) -> PartitionedEmitter:
        return self.topic


Executor = type[PartitionedTridentSpoutExecutor] | type[OpaquePartitionedTridentSpoutExecutor]
TRANSACTIONAL, OPAQUE = PartitionedTridentSpoutExecutor, OpaquePartitionedTridentSpoutExecutor


class Read:
    """One task that reads a topic; `store` outlives it."""

    def __init__(
        self, executor: Executor, topic: Topic, store: MemoryRecordStore, task: int = 0, tasks: int = 1
    ) -> None:
        self.emitter: Any = executor(TopicSpout(topic)).get_emitter(context(store, task, tasks))
        self.topic, self.store = topic, store

    def batch(self, name: str, after: str | None = None, partitions: list[str] | None = None) -> str:
        each = batch(name, list(self.topic.partitions) if partitions is None else partitions, after)
        coordinator = TransactionalState(self.store, "spout/coordinator")
        listed = dict([coordinator.entry(f"meta/{each.attempt.txid}", each.metadata)])
        MemoryRecordStore.write(self.store, listed, {})
        return "".join(rows_of(self.emitter, each))

    def done(self, name: str) -> None:
        if hasattr(self.emitter, "commit"):
            self.emitter.commit(attempt(name))
        self.emitter.success(attempt(name))


@pytest.fixture
def store() -> MemoryRecordStore:
    return MemoryRecordStore()


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_a_batch_starts_at_the_end_of_the_previous_one(executor, store):
    read = Read(executor, Topic(p="abcdef", q="xyz"), store)
    assert read.batch("1:0") == "abxy"
    assert read.batch("2:0", after="1:0") == "cdz"
    read.done("1:0")
    assert read.batch("3:0", after="2:0") == "ef"


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_a_task_reads_its_share_of_the_partitions(executor, store):
    topic = Topic(p="ab", q="xy", r="mn")
    assert [Read(executor, topic, store, task, tasks=2).batch("1:0") for task in (0, 1)] == ["abmn", "xy"]


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_after_a_restart_a_spout_continues_after_the_committed_batches(executor, store):
    topic = Topic(p="abcdef")
    read = Read(executor, topic, store)
    read.batch("1:0")
    read.done("1:0")
    assert Read(executor, topic, store).batch("2:0") == "cd"


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_a_batch_emitted_before_its_predecessor_is_failed(executor, store):
    read = Read(executor, Topic(p="abcdef"), store)
    read.batch("1:0")
    with pytest.raises(FailedException, match="batch 3:0 came before 2:0, on which it rests"):
        read.batch("3:0", after="2:0")
    assert read.batch("2:0", after="1:0") == "cd"
    assert read.batch("3:1", after="2:0") == "ef"


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_a_lost_coordinator_record_is_an_error_and_no_restart_from_the_beginning(executor, store):
    topic = Topic(p="abcdefgh")
    read = Read(executor, topic, store)
    for txid in (1, 2, 3):
        read.batch(f"{txid}:0")
        read.done(f"{txid}:0")
    with pytest.raises(FailedException, match="the coordinator's record was lost"):
        Read(executor, topic, store).batch("1:0")


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_the_stored_metadata_does_not_grow(executor, store):
    read = Read(executor, Topic(p="abcdef" * 20, q="xyz"), store)
    for txid in range(1, 50):
        read.batch(f"{txid}:0")
        read.done(f"{txid}:0")
        assert len([path for path in store.blobs if "/partitions/" in path]) <= 4


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_the_stored_metadata_does_not_grow_either_with_another_list_of_partitions_in_each_batch(executor, store):
    read = Read(executor, Topic(p="abcdef" * 20, q="xyz" * 40), store)
    for txid in range(1, 50):
        read.batch(f"{txid}:0", partitions=["p", "q"] if txid % 2 else ["q", "p"])
        read.done(f"{txid}:0")
        assert len([path for path in store.blobs if "/partitions/" in path]) <= 6


class Counted(MemoryRecordStore):
    """Counts the paths that are read, listed and written."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def read(self, path: str) -> bytes | None:
        self.calls["read"] += 1
        return super().read(path)

    def write(self, changes: Any, expected: Any) -> bool:
        self.calls["written"] += len(changes)
        return super().write(changes, expected)

    def paths(self, prefix: str) -> list[str]:
        found = super().paths(prefix)
        self.calls["listed"] += len(found)
        return found


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_partitions_that_are_gone_go_on_where_they_were_and_cost_later_batches_nothing(executor):
    store, costs = Counted(), []
    read = Read(executor, Topic(**{f"p{number}": "abcdef" for number in range(60)}), store)
    for txid in range(1, 60):
        store.calls.clear()
        assert read.batch(f"{txid}:0", partitions=[f"p{txid}"]) == "ab"
        read.done(f"{txid}:0")
        costs.append(store.calls.copy())
        assert sum(map(len, read.emitter._partitions._known.values())) == 1
    assert [cost for cost in costs if cost != costs[0]] == []
    assert read.batch("60:0", partitions=["p7"]) == "cd"
    store.calls.clear()
    read.batch("60:1", partitions=["p8"])
    assert store.calls["written"] <= 1, "nothing of other partitions is deleted"


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_a_new_partition_is_read_from_its_beginning(executor, store):
    topic = Topic(p="abcdef")
    read = Read(executor, topic, store)
    read.batch("1:0")
    topic.partitions["q"] = "xy"
    assert read.batch("2:0", after="1:0") == "cdxy"


@pytest.mark.parametrize("executor", [TRANSACTIONAL, OPAQUE])
def test_a_partition_assigned_to_another_task_is_read_there_after_all_earlier_batches_are_done(executor, store):
    topic = Topic(p="abcdef", q="uvwxyz")
    tasks = [Read(executor, topic, store, task, tasks=2) for task in (0, 1)]
    assert [each.batch("1:0") for each in tasks] == ["ab", "uv"]
    for each in tasks:
        each.done("1:0")
    assert tasks[0].batch("2:0") == "cd"
    with pytest.raises(
        FailedException, match="batch 3:0 came before 2:0, on which it rests, was read in partition 'q'"
    ):
        tasks[0].batch("3:0", after="2:0", partitions=["q", "p"])
    assert tasks[1].batch("2:0") == "wx"
    for each in tasks:
        each.done("2:0")
    assert [each.batch("3:1", partitions=["q", "p"]) for each in tasks] == ["yz", "ef"]
    for each in tasks:
        each.done("3:1")
    topic.partitions |= {"p": "abcdefgh", "q": "uvwxyz12"}
    assert [each.batch("4:0") for each in tasks] == ["gh", "12"]


# -- transactional partitions ---------------------------------------------------------------------------------------------


def test_every_attempt_at_a_batch_has_the_same_rows_even_after_a_restart(store):
    topic = Topic(p="abc", q="x")
    read = Read(TRANSACTIONAL, topic, store)
    read.batch("1:0")
    read.batch("2:0", after="1:0")
    topic.partitions |= {"p": "abcdef", "q": "xyz"}
    assert read.batch("1:1") == "abx"
    again = Read(TRANSACTIONAL, topic, store)
    assert again.batch("1:2") == "abx"
    assert again.batch("2:1", after="1:2") == "c"
    assert again.batch("3:0", after="2:1") == "deyz"
    assert topic.calls[-6:-2] == ["again 1:2 p", "again 1:2 q", "again 2:1 p", "again 2:1 q"]


def test_the_partitions_of_a_transactional_batch_are_those_of_its_first_attempt():
    topic = Topic(p="ab")
    coordinator = TRANSACTIONAL(TopicSpout(topic)).get_coordinator(context())
    opaque = OPAQUE(TopicSpout(topic)).get_coordinator(context())
    first = coordinator.initialize_transaction(1, None, None)
    topic.partitions["q"] = "x"
    assert coordinator.initialize_transaction(1, None, first) == ["p"]
    assert opaque.initialize_transaction(1, None, first) == ["p", "q"]
    assert coordinator.initialize_transaction(2, first, None) == ["p", "q"]


def test_the_metadata_of_any_number_of_partitions_is_one_write(store):
    writes = []
    write = store.write
    store.write = lambda changes, expected: writes.append(len(changes)) or write(changes, expected)
    Read(TRANSACTIONAL, Topic(**dict.fromkeys("pqrstu", "abc")), store).batch("1:0")
    assert writes == [6]


def test_an_attempt_that_failed_half_way_leaves_no_metadata(store):
    topic = Topic(p="ab", q="!")
    read = Read(TRANSACTIONAL, topic, store)
    with pytest.raises(FailedException, match="cannot read !"):
        read.batch("1:0")
    topic.partitions["q"] = "xy"
    assert (read.batch("1:1"), topic.calls[-2:]) == ("abxy", ["new 1:1 p", "new 1:1 q"])


def test_after_a_restart_with_other_tasks_each_partition_is_read_with_its_stored_metadata_or_anew(store):
    topic = Topic(p="ab", q="xy")
    Read(TRANSACTIONAL, topic, store, task=0, tasks=2).batch("1:0")
    topic.partitions = {"p": "abcd", "q": "xyz"}
    assert Read(TRANSACTIONAL, topic, store).batch("1:1") == "abxy"
    assert topic.calls == ["new 1:0 p", "again 1:1 p", "new 1:1 q"]


def test_of_two_lives_of_a_task_only_one_writes_the_end_of_a_batch(store):
    old = Read(TRANSACTIONAL, Topic(p="abc"), store)
    old.batch("1:0")
    new = Read(TRANSACTIONAL, Topic(p="abcd"), store)
    assert new.batch("2:1") == "cd"
    with pytest.raises(FailedException, match="was written by somebody else"):
        old.batch("2:0")
    assert old.batch("2:2") == "c", "the old life reads what the new one wrote: [2, 4)"
    assert Read(TRANSACTIONAL, Topic(p="abcdef"), store).batch("3:0") == "ef"


def test_a_batch_that_another_life_emits_meanwhile_keeps_its_rows(store):  # found by the simulator
    topic = Topic(p="abc")
    old, new = Read(TRANSACTIONAL, topic, store), Read(TRANSACTIONAL, topic, store)
    old.batch("1:0")
    paths, listed = store.paths, []

    def meanwhile(prefix: str) -> list[str]:
        listed.append(prefix)
        if len(listed) == 2:
            assert (new.batch("2:1"), new.batch("3:1", after="2:1")) == ("c", "")
            topic.partitions["p"] = "abcdef"
        return paths(prefix)

    store.paths = meanwhile
    with pytest.raises(FailedException, match="batch 3:0 came before 2:0"):
        old.batch("3:0", after="2:0")
    assert new.batch("3:2", after="2:1") == old.batch("3:3", after="2:1")


def test_a_life_that_missed_a_batch_reads_the_stored_end_before_it_continues(store):
    topic = Topic(p="ab")
    new = Read(TRANSACTIONAL, topic, store)
    new.batch("1:0")
    old = Read(TRANSACTIONAL, topic, store)
    old.batch("1:1")
    assert old.batch("2:0", after="1:1") == ""
    topic.partitions["p"] = "abc"
    assert old.batch("3:0", after="2:0") == "c"
    topic.partitions["p"] = "abcd"
    assert new.batch("3:1", after="2:1") == "c"


# -- opaque partitions ----------------------------------------------------------------------------------------------------


def test_an_opaque_replay_may_have_other_rows_and_the_next_batch_starts_at_its_end(store):
    topic = Topic(p="a")
    read = Read(OPAQUE, topic, store)
    assert read.batch("1:0") == "a"
    assert read.batch("2:0", after="1:0") == ""
    topic.partitions["p"] = "abcde"
    assert read.batch("1:1") == "ab"
    with pytest.raises(FailedException, match="came before 1:0"):
        read.batch("2:1", after="1:0")
    assert read.batch("2:1", after="1:1") == "cd"


def test_a_repeated_commit_starts_at_the_end_of_the_previous_batch(store):  # T10: Storm deletes the place first
    topic = Topic(p="abcdef")
    read = Read(OPAQUE, topic, store)
    read.batch("1:0")
    read.done("1:0")
    read.batch("2:0")
    read.emitter.commit(attempt("2:0"))
    again = Read(OPAQUE, topic, store)
    assert again.batch("2:1") == "cd"
    again.done("2:1")
    assert again.batch("3:0") == "ef"


def test_only_the_last_read_attempt_is_committed(store):
    read = Read(OPAQUE, Topic(p="abcdef"), store)
    read.batch("1:0")
    read.batch("1:1")
    with pytest.raises(FailedException, match="batch 1:0 cannot be committed"):
        read.emitter.commit(attempt("1:0"))
    read.done("1:1")


def test_uncommitted_rows_are_read_again_even_of_a_partition_that_disappeared_meanwhile(store):
    topic = Topic(p="ab", q="xy")
    read = Read(OPAQUE, topic, store)
    assert read.batch("1:0") == "abxy"
    assert read.batch("1:1", partitions=["p"]) == "ab"
    read.done("1:1")
    assert Read(OPAQUE, topic, store).batch("2:0") == "xy"


def test_a_commit_of_an_old_life_does_not_overwrite_that_of_the_new_one(store):
    topic = Topic(p="a")
    old = Read(OPAQUE, topic, store)
    assert old.batch("1:0") == "a"
    topic.partitions["p"] = "abcd"
    new = Read(OPAQUE, topic, store)
    assert new.batch("1:1") == "ab"
    new.done("1:1")
    with pytest.raises(FailedException, match="another life of this task went on meanwhile"):
        old.emitter.commit(attempt("1:0"))
    assert Read(OPAQUE, topic, store).batch("2:0") == "cd"


def test_a_commit_of_an_old_life_with_outdated_metadata_in_memory_is_refused(store):
    topic = Topic(p="abcdefghi")
    new = Read(OPAQUE, topic, store)
    for name in ("1:0", "2:0"):
        new.batch(name)
        new.done(name)
    old = Read(OPAQUE, Topic(p="abcde"), store)
    assert old.batch("3:0") == "e"
    assert new.batch("3:1") == "ef"
    new.emitter.commit(attempt("3:1"))
    assert Read(OPAQUE, topic, store).batch("4:0") == "gh"
    with pytest.raises(FailedException, match="was written by somebody else"):
        old.emitter.commit(attempt("3:0"))
    with pytest.raises(FailedException, match="another life of this task went on meanwhile"):
        old.emitter.commit(attempt("3:0"))
    assert Read(OPAQUE, topic, store).batch("4:1") == "gh"


def test_a_commit_whose_predecessor_was_changed_by_another_life_is_refused(store):
    topic = Topic(p="a")
    old = Read(OPAQUE, topic, store)
    old.batch("1:0")
    old.emitter.commit(attempt("1:0"))
    new = Read(OPAQUE, topic, store)
    topic.partitions["p"] = "abcdef"
    assert new.batch("1:1") == "ab"
    assert old.batch("1:2") == "ab"
    old.done("1:2")
    stale = Read(OPAQUE, topic, store)
    assert new.batch("2:0") == "bc", "new still has the end of 1:0 in memory"
    with pytest.raises(FailedException, match="was written by somebody else"):
        new.emitter.commit(attempt("2:0"))
    with pytest.raises(FailedException, match="another life of this task went on meanwhile"):
        new.emitter.commit(attempt("2:0"))
    assert new.batch("2:1") == stale.batch("2:2") == "cd"


def test_an_opaque_task_that_died_fails_the_commit_and_the_next_batch(store):  # T10: in Storm a null pointer
    topic = Topic(p="abcdef")
    Read(OPAQUE, topic, store).batch("1:0")
    again = Read(OPAQUE, topic, store)
    with pytest.raises(FailedException, match="this task has not emitted it, or has died since"):
        again.emitter.commit(attempt("1:0"))
    with pytest.raises(FailedException, match="on which it rests, or this task has died since"):
        again.batch("2:0", after="1:0")
    assert again.batch("1:1") == "ab"


def test_partitions_that_change_between_emit_and_commit_are_committed_as_they_were_read(store):  # T10
    topic = Topic(p="abcd", q="xyz")
    read = Read(OPAQUE, topic, store)
    assert read.batch("1:0") == "abxy"
    del topic.partitions["q"]
    assert read.batch("2:0", after="1:0") == "cd"
    read.done("1:0")
    read.done("2:0")
    topic.partitions["q"] = "xyz"
    assert Read(OPAQUE, topic, store).batch("3:0") == "z"


def test_a_partition_that_the_last_attempt_did_not_list_is_read_again_from_where_the_batch_before_ended(store):
    topic = Topic(p="abcdef", q="uvwxyz")
    read = Read(OPAQUE, topic, store)
    assert read.batch("1:0") == "abuv"
    read.done("1:0")
    assert read.batch("2:0") == "cdwx"
    read.emitter.commit(attempt("2:0"))  # another task fails the attempt
    del topic.partitions["q"]
    again = Read(OPAQUE, topic, store)
    assert again.batch("2:1") == "cd"
    topic.partitions["q"] = "uvwxyz"
    assert again.batch("3:0", after="2:1") == "efwx"
    again.done("2:1")
    assert Read(OPAQUE, topic, store).batch("3:1") == "efwx"


def test_a_repeated_commit_starts_at_the_end_of_the_last_batch_that_listed_the_partition(store):
    # Found by the simulator.
    read = Read(OPAQUE, Topic(p="abcdefgh", q="stuvwxyz"), store)
    for name, partitions in (("1:0", ["p", "q"]), ("2:0", ["p"])):
        read.batch(name, partitions=partitions)
        read.done(name)
    assert read.batch("3:0") == "efuv"
    read.emitter.commit(attempt("3:0"))  # another task fails the attempt
    assert read.batch("3:1") == "efuv"
    read.done("3:1")
    assert read.batch("4:0") == "ghwx"


class Suspending(MemoryRecordStore):
    """The next write that `holds` chooses is that of a process that is suspended: `late` performs it."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: Any = lambda changes: False

    def write(self, changes: Any, expected: Any) -> bool:
        if self.holds(changes):
            self.holds, self.late = lambda changes: False, lambda: self.write(changes, expected)
            raise InterruptedError
        return super().write(changes, expected)


@pytest.mark.parametrize("batches", [1, 4])
def test_a_commit_that_is_performed_after_an_attempt_without_its_partition_is_refused(batches):
    store, topic = Suspending(), Topic(p="abcdef", q="uvwxyz")
    old = Read(OPAQUE, topic, store, 1, 2)
    assert old.batch("1:0") == "uv"
    store.holds = lambda changes: "spout/emitter/partitions/q/1" in changes
    with pytest.raises(InterruptedError):
        old.emitter.commit(attempt("1:0"))
    new = Read(OPAQUE, topic, store)
    for txid in range(1, 1 + batches):
        new.batch(f"{txid}:1", partitions=["p"])
        new.done(f"{txid}:1")
    if batches > 1:
        store.write({"spout/coordinator/meta/1": None}, {})
    assert store.late() is False
    assert Read(OPAQUE, topic, store).batch("5:1", partitions=["q"]) == "uv"


def test_a_partition_that_is_listed_again_keeps_its_commit_from_an_attempt_that_lacked_it_and_is_late():
    store, topic = Suspending(), Topic(p="abcdef", q="uvwxyz")
    read = Read(OPAQUE, topic, store)
    assert read.batch("1:0") == "abuv"
    read.emitter.commit(attempt("1:0"))
    old = Read(OPAQUE, topic, store)
    store.holds = lambda changes: changes.get("spout/emitter/partitions/q/1", b"") is None
    with pytest.raises(InterruptedError):
        old.batch("1:1", partitions=["p"])
    new = Read(OPAQUE, topic, store)
    assert new.batch("1:2") == "abuv"
    new.done("1:2")
    assert store.late() is False
    assert Read(OPAQUE, topic, store).batch("2:0") == "cdwx"


def test_the_partitions_of_a_batch_must_be_different_texts():
    for wrong in (["p", "p"], [1], [("a", 1)], "pq", None):
        topic = Topic()
        topic.get_partitions_for_batch = lambda wrong=wrong: wrong
        with pytest.raises(
            ConfigError, match=r"a batch are different texts, got .*from Topic.get_partitions_for_batch"
        ):
            TRANSACTIONAL(TopicSpout(topic)).get_coordinator(context()).initialize_transaction(1, None, None)


@pytest.mark.parametrize("dealt", [["p"], ["p", "q", "q"], ["p", "r"]])
@pytest.mark.parametrize("kind", [OPAQUE, TRANSACTIONAL])
def test_an_emitter_that_does_not_deal_each_partition_to_one_task_is_refused(kind, dealt, store):
    read = Read(kind, Topic(p="ab", q="cd"), store)
    read.emitter._emitter.partitions_of = lambda partitions, task, tasks: dealt
    with pytest.raises(
        ConfigError, match=r"partitions_of deals \['p', 'q'\] to 1 tasks as .*; give each partition to one"
    ):
        read.batch("1:0")


def test_an_opaque_emitter_needs_only_emit_partition_batch_new():
    class Once(OpaquePartitionedEmitter):
        def emit_partition_batch_new(self, each: Any, collector: Any, partition: str, last: Any) -> Any:
            collector.emit((partition,))
            return (last or 0) + 1

    once = Once()
    assert once.partitions_of(["a", "b", "c"], 1, 2) == ["b"]
    assert once.emit_partition_batch_new(attempt("1:0"), Rows(), "a", None) == 1


def test_an_emitter_that_yields_the_rows_of_a_repeated_batch_is_an_error():
    class Yielding(Topic):
        def emit_partition_batch(self, each: TransactionAttempt, collector: Any, partition: str, metadata: Any) -> Any:
            yield from super().partitions[partition][slice(*metadata)]

    reading = Read(TRANSACTIONAL, Yielding(p="abcd"), MemoryRecordStore())
    assert reading.batch("1:0") == "ab"
    with pytest.raises(RowError, match=r"it returned <generator object .*, whose body nobody runs"):
        reading.batch("1:1")
