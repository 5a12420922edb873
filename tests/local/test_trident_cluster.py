"""TridentCluster: five kinds of spouts, concurrent batches, retries, windows, requests, restarts."""

from __future__ import annotations

import base64
import random
import re
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.local.test_trident_cluster_random import patient
from tests.work import lines_of
from windowing.acking.acker import AckedRoots, Failed, Reason
from windowing.acking.pending import RetryPolicy
from windowing.errors import (
    BoltError,
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    DrainedCheckpointError,
    FailedException,
    SupersededError,
    WindowingError,
)
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.local.trident_tasks import GroupTask
from windowing.stores.factory import map_state, snapshot_state
from windowing.stores.memory import MemoryStore
from windowing.topology.components import InputSpout
from windowing.topology.decorators import spout
from windowing.topology.plan import TopologyError
from windowing.trident import Count, MapGet, SnapshotGet, StateSpec, Sum, TridentTopology
from windowing.trident.coordinator import CoordinatorConfig, OnFailure, Readiness
from windowing.trident.kinds import Guarantee, SpoutKind, StateType, TransactionAttempt
from windowing.trident.spouts import (
    BatchCoordinator,
    CommitterEmitter,
    Emitter,
    FixedBatchSpout,
    IBatchSpout,
    ICommitterTridentSpout,
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    ITridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from windowing.trident.transactional_state import MemoryRecordStore, TransactionalState
from windowing.windows.key_state import KeyState
from windowing.windows.measures import count, millis, seconds

WORDS = [("to",), ("be",), ("or",), ("not",), ("to",), ("be",)]
COUNTS = {("be",): 2, ("not",): 1, ("or",): 1, ("to",): 2}


def counting(
    given: Any, kind: StateType = StateType.OPAQUE, accept: Guarantee = Guarantee.EXACTLY_ONCE
) -> TridentTopology:
    topology = TridentTopology("words")
    state = StateSpec(map_state(MemoryStore(), "counts", kind), accept=accept)
    stream = topology.new_stream("words", given)
    stream.group_by("word").persistent_aggregate(state, None, Count(), "n long").parallelism_hint(2)
    return topology


def fixed(size: int = 2, rows: Any = WORDS) -> FixedBatchSpout:
    return FixedBatchSpout("word string", size, rows)


def passing(check: Callable[[str], Any], size: int = 2) -> TridentTopology:
    """Words that each pass `check` and go to the sink "out"."""
    topology = TridentTopology("checked")
    topology.new_stream("words", fixed(size)).filter(lambda row: check(row.word) or True).sink("out")
    return topology


def run(topology: TridentTopology, **options: Any) -> Any:
    return run_trident(topology, clock=VirtualClock(), **options)


class Fails:
    """Fails a number of times, then no more."""

    def __init__(self, times: int, on: str = "or") -> None:
        self.times, self.on, self.calls = times, on, 0

    def __call__(self, word: str) -> None:
        if word == self.on:
            self.calls += 1
            if self.calls <= self.times:
                raise FailedException(f"attempt {self.calls}")


# -- spouts ------------------------------------------------------------------------------------------------------------


class Rows:
    """Emits WORDS one by one, and the failed ones again at the end."""

    heard: ClassVar[list[tuple[str, Any]]] = []

    def open(self, context: Any, collector: Any) -> None:
        self.waiting, self.collector = deque(enumerate(WORDS)), collector
        self.heard.clear()

    def next_tuple(self) -> None:
        if self.waiting:
            number, row = self.waiting.popleft()
            self.collector.emit(row, message_id=number)

    def ack(self, message_id: int) -> None:
        self.heard.append(("ack", message_id))

    def fail(self, message_id: int) -> None:
        self.heard.append(("fail", message_id))
        self.waiting.append((message_id, WORDS[message_id]))


RichSpout = spout(output="word string")(Rows)


@spout(output="word string")
def rows() -> Any:
    yield from WORDS


@spout(output="word string")
def endless(collector: Any) -> None:
    collector.emit(("to",), message_id=1)


class Metadata(BatchCoordinator):
    """Batch n is rows [from, to) of WORDS."""

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= 3 else Readiness.ENDED

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        begin = previous["to"] if previous else 0
        return current or {"from": begin, "to": begin + 2}


class Reading(CommitterEmitter):
    def __init__(self, log: list[str], context: Any) -> None:
        self.log, self.context = log, context

    def emit_batch(self, batch: Any, collector: Any) -> None:
        mine = WORDS[batch.metadata["from"] : batch.metadata["to"]][self.context.task :: self.context.tasks]
        for row in mine:
            collector.emit(row)

    def commit(self, attempt: Any) -> None:
        self.log.append(f"commit {attempt}")

    def success(self, attempt: Any) -> None:
        self.log.append(f"success {attempt}")


class WithMetadata(ITridentSpout):
    kind, output = SpoutKind.TRANSACTIONAL, "word string"

    def __init__(self) -> None:
        self.log: list[str] = []

    def get_coordinator(self, context: Any) -> BatchCoordinator:
        return Metadata()

    def get_emitter(self, context: Any) -> Emitter:
        return Reading(self.log, context)


class Committer(WithMetadata, ICommitterTridentSpout):
    def get_emitter(self, context: Any) -> CommitterEmitter:
        return Reading(self.log, context)


class Chance:
    def randrange(self, most: int) -> int:
        return most - 1


AT_LEAST = Guarantee.AT_LEAST_ONCE


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("given", [fixed(), WithMetadata(), Committer()], ids=["batches", "metadata", "committer"])
def test_spouts_of_batches_count_every_row(given: Any, seed: int | None) -> None:
    result = run(counting(given), seed=seed, coordination=patient(3))
    assert result.states == {"state1": COUNTS}
    assert result.batches == 3


@pytest.mark.parametrize("given", [RichSpout, rows], ids=["class", "function"])
def test_rows_of_spouts_of_single_tuples_are_cut_into_batches_until_none_is_left(given: Any) -> None:
    result = run(counting(given, accept=AT_LEAST))
    assert result.states == {"state1": COUNTS}


def test_a_spout_of_single_tuples_that_emits_to_another_stream_ends_the_run() -> None:
    emitted: list[Any] = []

    @spout(output={"default": "word string", "errors": "word string"})
    def noisy(collector: Any) -> None:
        if not emitted:
            emitted.append(collector.emit(("to",), stream="errors"))

    with pytest.raises(ConfigError, match="to the stream 'errors'; a batch has the stream 'default' only"):
        run(counting(noisy, accept=AT_LEAST))


class Source(PartitionedCoordinator, PartitionedEmitter):
    """Partitions of numbered rows, with an end; the size of a new batch is random, also when it is retried."""

    output = "k string, n long"

    def __init__(self, sizes: dict[str, int], chance: Any) -> None:
        self.sizes, self.chance = sizes, chance
        self.read = dict.fromkeys(sizes, 0)

    def get_coordinator(self) -> Source:
        return self

    def get_emitter(self) -> Source:
        return self

    def get_partitions_for_batch(self) -> list[str]:
        return sorted(self.sizes)

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= 12 else Readiness.ENDED

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        most = self.sizes[partition] - start
        end = start + (most if attempt.txid == 12 else min(most, self.chance.randrange(4)))
        self.emit_partition_batch(attempt, collector, partition, [start, end])
        return [start, end]

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        for number in range(*metadata):
            collector.emit((f"{partition}{number}", 1))


class Transactional(Source, IPartitionedTridentSpout):
    pass


class Opaque(Source, IOpaquePartitionedTridentSpout):
    pass


@pytest.mark.parametrize("kind", [Transactional, Opaque])
def test_a_stream_of_partitions_under_a_new_name_is_read_again_with_a_warning(kind: Any) -> None:
    def ran(records: Any, *names: str) -> list[Any]:
        topology = TridentTopology("rows")
        for name in names:
            topology.new_stream(name, kind({"x": 2}, Chance())).sink(name)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run(topology, records=records, coordination=patient(1))
        return [str(each.message) for each in found]

    records = MemoryRecordStore()
    assert ran(records, "old") == ran(records, "old", "added") == ran(records, "old") == []
    assert ran(MemoryRecordStore(), "new") == []
    [told] = ran(records, "new")
    assert told == (
        "topology 'rows': stream 'new' is read from its beginning, and the records have the progress of 'old', which is not "
        "there any more; if it was renamed its tuples count twice: give it its old name"
    )


def test_a_state_under_a_new_name_begins_empty_with_a_warning() -> None:
    def told_of(records: Any, batches: int, *names: str) -> list[str]:
        topology = TridentTopology("words")
        words = topology.new_stream("words", InputSpout("word string")).group_by("word")
        for name in names:
            words.persistent_aggregate(map_state(store, name), None, Count(), "n long")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            run(topology, batches={"words": [["to"]] * batches}, records=records)
        return [str(each.message) for each in found]

    store, records = MemoryStore(), MemoryRecordStore()
    for batches, names in enumerate((["old"], ["old", "added"], ["old"], ["old"])):
        assert told_of(records, batches, *names) == []
    [told] = told_of(records, 5, "new")
    assert told == (
        "topology 'words': the state 'old', written up to txid 3, is not written any more, and 'new' begins empty with txid 4; if "
        "it was renamed, put records (or checkpoint) and states back from one copy, and give it its old name"
    )
    assert told_of(records, 6, "new") == []


@pytest.mark.parametrize("kind", [Transactional, Opaque])
def test_partitioned_spouts_are_read_to_their_end(kind: Any) -> None:
    topology = TridentTopology("rows")
    stream = topology.new_stream("in", kind({"x": 5, "y": 2}, Chance())).parallelism_hint(2)
    stream.group_by("k").persistent_aggregate(map_state(MemoryStore(), "s"), "n", Sum(), "n long")
    [state] = run(topology, coordination=patient(2)).states.values()
    assert sorted(key for (key,) in state) == ["x0", "x1", "x2", "x3", "x4", "y0", "y1"]
    assert set(state.values()) == {1}


def test_a_list_in_a_key_is_a_tuple_in_the_contents_of_a_state() -> None:
    topology = TridentTopology("lists")
    stream = topology.new_stream("in", InputSpout("k array<array<int>>"))
    stream.group_by("k").persistent_aggregate(map_state(MemoryStore(), "s"), None, Count(), "n long")
    batches = {"in": [[([[1], [2, 3]],), ([[1], [2, 3]],)], [([],)]]}
    assert list(run(topology, batches=batches).states.values()) == [{(((1,), (2, 3)),): 2, ((),): 1}]


def test_a_commit_that_wakes_after_a_retry_without_its_partition_leaves_out_no_row_of_it() -> None:
    class Suspended(BaseException):
        pass

    class Records(MemoryRecordStore):
        """The first commit of rows of partition y is a write of a process that is suspended, and goes on after the fourth batch."""

        late: Any = None

        def write(self, changes: Any, expected: Any) -> bool:
            if self.late is None and any(path.endswith("/partitions/y/1") for path in changes):
                self.late = changes, expected
                raise Suspended
            return super().write(changes, expected)

    records, answers = Records(), []

    class Moving(Opaque):
        def get_partitions_for_batch(self) -> list[str]:
            if records.late is None:
                return ["x", "y"]
            answers.append(records.write(*records.late) if len(answers) == 4 else None)
            return ["x"] if len(answers) <= 4 else ["x", "y"]

    def rows() -> TridentTopology:
        topology = TridentTopology("rows")
        stream = topology.new_stream("in", Moving({"x": 9, "y": 9}, random.Random(0)))
        stream.group_by("k").persistent_aggregate(map_state(store, "s"), "n", Sum(), "n long")
        return topology

    store = MemoryStore()
    with suppress(Suspended):
        run(rows(), records=records)
    assert records.late is not None
    [state] = run(rows(), records=records).states.values()
    assert sorted(key for (key,) in state) == [f"{part}{number}" for part in "xy" for number in range(9)]
    assert set(state.values()) == {1}
    assert answers[4] is False, "the late commit is refused"


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_records_without_that_of_the_coordinator_are_refused_before_the_first_batch(batches: int) -> None:
    def to_sink(number: int) -> TridentTopology:
        topology = TridentTopology("sunk")
        topology.new_stream("words", fixed(1, WORDS[:number])).sink("out")
        return topology

    records, clock = MemoryRecordStore(), VirtualClock()
    run(to_sink(batches), records=records)
    records.write({"sunk/master/coordinator": None}, {})
    with pytest.raises(CheckpointError, match="batches of its spouts and lack sunk/master/coordinator"):
        run_trident(to_sink(batches + 1), records=records, clock=clock)
    assert clock.now_ms() == 0


def test_a_batch_spout_is_opened_before_is_ready_is_called() -> None:
    class Opened(IBatchSpout):
        kind, output = SpoutKind.TRANSACTIONAL, "word string"

        def open(self, context: Any) -> None:
            self.rows = WORDS

        def is_ready(self, txid: int) -> Readiness:
            return Readiness.READY if txid <= len(self.rows) else Readiness.ENDED

        def emit_batch(self, txid: int, collector: Any) -> None:
            collector.emit(self.rows[txid - 1])

    assert run(counting(Opened())).states == {"state1": COUNTS}


def test_a_batch_spout_whose_is_ready_answers_as_in_storm_is_an_error_and_not_an_empty_run() -> None:
    class Storms(IBatchSpout):
        output = "word string"

        def is_ready(self, txid: int) -> Any:
            return txid < 3

        def emit_batch(self, txid: int, collector: Any) -> None:
            collector.emit(("to",))

    with pytest.raises(
        ConfigError, match=r"is a spout of batches without a kind; write kind = SpoutKind\.TRANSACTIONAL"
    ):
        counting(Storms()).build()
    Storms.kind = SpoutKind.TRANSACTIONAL
    with pytest.raises(BoltError, match=r"is_ready returned True; return Readiness\.READY, WAIT .* or ENDED$"):
        run_trident(counting(Storms()), clock=VirtualClock())
    topology = TridentTopology("two")
    with pytest.raises(ConfigError, match=r"join takes a list of streams, got .*; write join\(\[one, other\]"):
        topology.join(topology.new_stream("one", fixed(1)), topology.new_stream("other", fixed(1)), "word")  # type: ignore[arg-type]


def test_an_error_of_a_spout_of_batches_names_the_spout_and_its_line() -> None:
    class Closed(IBatchSpout):
        kind = SpoutKind.TRANSACTIONAL
        output = "word string"

        def is_ready(self, txid: int) -> Any:
            raise OSError("no host")

        def emit_batch(self, txid: int, collector: Any) -> None:
            collector.emit(("to",))

    with pytest.raises(
        BoltError, match=r"spout 'words' failed in is_ready: OSError: no host \(.*test_trident_cluster.py:\d+\)$"
    ):
        run_trident(counting(Closed()), clock=VirtualClock())


def test_a_batch_spout_that_yields_its_rows_is_an_error_and_not_an_empty_batch() -> None:
    class Yielding(IBatchSpout):
        kind = SpoutKind.TRANSACTIONAL
        output = "word string"

        def is_ready(self, txid: int) -> Readiness:
            return Readiness.READY if txid < 3 else Readiness.ENDED

        def emit_batch(self, txid: int, collector: Any) -> Any:
            yield "to"

    class Returning(Yielding):
        def emit_batch(self, txid: int, collector: Any) -> Any:
            return super().emit_batch(txid, collector)

    with pytest.raises(
        TopologyError, match=r"spout words: .*Yielding.emit_batch is a generator .*; give a plain function"
    ):
        run_trident(counting(Yielding()), clock=VirtualClock())
    with pytest.raises(BoltError, match=r"spout 'words' .*it returned <generator object .*, whose body nobody runs"):
        run_trident(counting(Returning()), clock=VirtualClock())

    class Lists(Yielding):
        def emit_batch(self, txid: int, collector: Any) -> Any:
            return [("to",)]

    class EmitsLists(ITridentSpout):
        output, kind = "word string", SpoutKind.TRANSACTIONAL

        def get_coordinator(self, context: Any) -> Any:
            return Ready()

        def get_emitter(self, context: Any) -> Any:
            return Returns()

    class Ready(BatchCoordinator):
        def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
            return txid

        def is_ready(self, txid: int) -> Readiness:
            return Readiness.READY if txid == 1 else Readiness.ENDED

    class Returns(Emitter):
        def emit_batch(self, batch: Any, collector: Any) -> Any:
            return [("to",)]

    for given in (Lists(), EmitsLists()):
        with pytest.raises(
            BoltError, match=r"spout 'words' .*it takes a collector, yet it returned \[\('to',\)\]; emit rows"
        ):
            run_trident(counting(given), clock=VirtualClock())


def test_an_error_of_a_sink_names_it_with_the_batch_and_a_failed_exception_is_no_retry() -> None:
    def full(txid: int, rows: Any) -> None:
        raise OSError("the disk is full")

    def failing(txid: int, rows: Any) -> None:
        raise FailedException("again")

    topology = TridentTopology("words")
    topology.new_stream("words", FixedBatchSpout("word string", 2, [("to",)])).sink("out")
    with pytest.raises(OSError, match="full") as caught:
        run_trident(topology, clock=VirtualClock(), sinks={"out": full})
    [note] = [each for each in caught.value.__notes__ if "sink" in each]
    assert note == "In sink 'out' of 'words', on the rows of batch 1, which is committed and is not tried again."
    with pytest.raises(BoltError, match=r"sink 'out' failed on the rows of batch 1, which is committed .*again"):
        run_trident(topology, clock=VirtualClock(), sinks={"out": failing})


def test_an_aggregator_that_returns_what_it_should_change_or_emit_is_an_error_and_not_a_wrong_row() -> None:
    class Mutable:
        def init(self, batch_id: Any, collector: Any) -> list[int]:
            return [0]

        def aggregate(self, value: Any, row: Any, collector: Any) -> Any:
            value[0] += 1
            return value

        def complete(self, value: Any, collector: Any) -> Any:
            collector.emit((value[0],))

    class Immutable(Mutable):
        def aggregate(self, value: Any, row: Any, collector: Any) -> Any:
            return [value[0] + 1]

    class Completes(Mutable):
        def complete(self, value: Any, collector: Any) -> Any:
            return (value[0],)

    def counted(aggregator: Any) -> Any:
        topology = TridentTopology("count")
        topology.new_stream("words", InputSpout("word string")).aggregate("word", aggregator, "n long").sink("n")
        return run_trident(topology, {"words": [[("to",), ("be",)]]}, clock=VirtualClock())["n"]

    assert counted(Mutable()) == [(2,)]
    with pytest.raises(
        BoltError, match=r"aggregate Immutable .*its aggregate returned \[1\], .*; change init.s value in place"
    ):
        counted(Immutable())
    with pytest.raises(
        BoltError, match=r"aggregate Completes .*it takes a collector, yet it returned \(2,\); emit rows"
    ):
        counted(Completes())


def test_an_ended_stream_emits_empty_batches_until_the_others_have_ended() -> None:
    topology = TridentTopology("two")
    long, short = topology.new_stream("long", fixed(1)), topology.new_stream("short", fixed(2, [("be",), ("to",)]))
    topology.join([long, short.map(lambda row: (row.word, 1), "word string, n long")], "word").sink("both")
    topology.new_stream("alone", fixed(3)).sink("alone")
    result = run(topology, coordination=patient(3))
    assert result["both"] == [("to", 1)], "words meet in one batch only"
    assert (result["alone"], result.batches) == (WORDS, 6)


def test_a_committer_spout_gets_commits_in_txid_order_each_before_its_success() -> None:
    given = Committer()
    run(counting(given), coordination=patient(3))
    assert [each for each in given.log if each.startswith("commit")] == ["commit 1:0", "commit 2:0", "commit 3:0"]
    for txid in "123":
        assert given.log.index(f"commit {txid}:0") < given.log.index(f"success {txid}:0")


def test_a_spout_that_is_no_committer_gets_success_only() -> None:
    given = WithMetadata()
    run(counting(given))
    assert given.log == ["success 1:0", "success 2:0", "success 3:0"]


def test_single_tuples_are_acked_after_the_commit_and_failed_before_the_next_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = Fails(1, on="not")
    topology = TridentTopology("single")
    topology.new_stream("words", RichSpout).filter(lambda row: fails(row.word) or True).sink("out")
    result = run(topology, coordination=patient(1))
    assert Rows.heard == [*(("fail", number) for number in range(6)), *(("ack", number) for number in range(6))]
    assert result["out"] == WORDS
    assert result.failures == 1
    (logged,) = caplog.messages
    assert logged.startswith("topology 'single': attempt 1:0 at a batch failed: b_0, task 0: ")


def test_failed_rows_of_a_function_spout_are_emitted_again() -> None:
    fails = Fails(2, on="not")
    topology = TridentTopology("single")
    topology.new_stream("words", rows).filter(lambda row: fails(row.word) or True).sink("out")
    assert sorted(run(topology, coordination=patient(2))["out"]) == sorted(WORDS)


def test_run_for_ends_although_the_spout_never_does() -> None:
    topology = TridentTopology("endless")
    topology.new_stream("words", endless).partition_aggregate(None, Count(), "n long").sink("out")
    clock = VirtualClock()
    with TridentCluster(topology, clock=clock) as cluster:
        result = cluster.run_for(seconds(0.02))
    assert clock.now_ms() == 20
    assert len(result["out"]) >= 10
    assert {n for (n,) in result["out"]} == {1000}, "a batch is full at a thousand rows"


def test_an_input_spout_without_batches_or_sources_is_refused() -> None:
    topology = counting(InputSpout("word string"), accept=AT_LEAST)
    with pytest.raises(
        ConfigError, match=r"give rows in batches= \(--rows FILE of the command line\), or a source in sources="
    ):
        run(topology)
    assert run(topology, batches={"words": [WORDS[:4], WORDS[4:]]}).states == {"state1": COUNTS}


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        (
            {"words": ["abc"]},
            r"stream 'words' takes a list of batches, each a list of rows, got 'abc'; write .*\[\[row, row\]\]",
        ),
        ({"words": [{"word": "a", "n": 1}]}, r"got {'word': 'a', 'n': 1}; write \[row, row\], and \[\[row, row\]\]"),
        ([["abc"]], r"batches= is a mapping by the name of each stream, got \[\['abc'\]\]"),
        (
            {"words": [["a"], ["b", ("c", 1)]]},
            r"stream 'words', batch 1, row 1 \(counted from 0\): .* got 2 values: \('c', 1\)",
        ),
        ({"word": [["a"]]}, "there is no stream 'word'; did you mean 'words'"),
    ],
)
def test_a_batch_that_is_no_list_of_rows_or_does_not_fit_is_refused(batches: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(counting(InputSpout("word string"), accept=AT_LEAST), batches=batches)


# -- concurrent batches, failures --------------------------------------------------------------------------------------


def test_the_master_ignores_acks_and_fails_of_another_life() -> None:
    with TridentCluster(counting(fixed()), clock=VirtualClock(), coordination=patient(1)) as cluster:
        assert cluster.step()
        for answer in (AckedRoots([7]), Failed(7, 1, Reason.FAILED, None)):
            cluster.task_set.master.handle(answer)
        assert (cluster.run().failures, cluster.values("state1")) == (0, COUNTS)


def test_a_recreated_task_keeps_the_inbox_but_no_batches() -> None:
    plan = counting(fixed()).build()
    with TridentCluster(plan, clock=VirtualClock(), coordination=patient(1)) as cluster:
        task_set, [id] = cluster.task_set, [(group.id, 1) for group in plan.stages.values() if group.states]
        before = task_set.tasks[task_set.ids.index(id)]
        while not before.executor._tracked:
            cluster.step()
        again = task_set.make(id)
        assert again.inbox is before.inbox
        assert not again.executor._tracked
        assert again.id == before.id


@pytest.mark.parametrize(("pending", "widest"), [(1, 1), (3, 3)])
def test_max_pending_batches_are_processed_concurrently(pending: int, widest: int) -> None:
    seen: list[int] = []
    with TridentCluster(
        passing(lambda word: None, size=1), clock=VirtualClock(), seed=3, coordination=patient(pending)
    ) as cluster:
        while cluster.step():
            seen.append(len(cluster.task_set.master.machine.under_way))
        assert cluster.result["out"] == WORDS
    assert max(seen) == widest


def test_a_failed_exception_in_a_function_retries_the_batch() -> None:
    fails = Fails(2)
    result = run(passing(fails), coordination=patient(3))
    assert fails.calls == 3
    assert result["out"] == WORDS
    assert (result.batches, result.failures, result.dead_letters) == (3, 2, [])


def test_an_error_of_users_code_has_a_note_with_the_task_and_the_batch_or_request() -> None:
    def length(row: Any) -> int:
        return len(row[0]) // (row[0] != "or")

    topology = TridentTopology("noted")
    words = topology.new_stream("words", FixedBatchSpout("word string", 1, [("to",), ("or",)]))
    words.shuffle().each("word", length, "n long").parallelism_hint(2).sink("out")
    topology.new_drpc_stream("length_of").each("args", length, "n long")
    with TridentCluster(topology, clock=VirtualClock()) as cluster, pytest.raises(BoltError) as found:
        cluster.run()
    assert re.fullmatch(r"In task [01] of group 'b_\d', on batch 2:0, which is not committed\.", *found.value.__notes__)
    with TridentCluster(topology, clock=VirtualClock()) as cluster, pytest.raises(BoltError) as found:
        cluster.ask("length_of", "or")
    assert re.fullmatch(r"In group 'b_\d', on a request\.", *found.value.__notes__)


def test_a_batch_that_failed_too_often_ends_the_run_and_a_restart_tries_it_once_more() -> None:
    fails = Fails(3)
    retry = CoordinatorConfig(1, 0, retry=RetryPolicy(3, first_ms=10))
    records, topology = MemoryRecordStore(), passing(fails)
    with pytest.raises(
        FailedException,
        match=r"batch 2:2 failed 3 times, at last because of b_0, task 0: step 2, filter.*: .*attempt 3",
    ):
        run(topology, coordination=retry, records=records)
    assert run(topology, coordination=retry, records=records)["out"] == WORDS[2:]


def test_a_skipped_batch_goes_to_the_dead_letters() -> None:
    retry = CoordinatorConfig(1, 0, retry=RetryPolicy(2, first_ms=10), on_failure=OnFailure.SKIP)
    result = run(passing(Fails(99)), coordination=retry)
    assert result["out"] == [*WORDS[:2], *WORDS[4:]]
    [letter] = result.dead_letters
    assert (letter.txid, letter.stream, letter.rows) == (2, "words", WORDS[2:4])
    assert "attempt 2" in letter.cause


def test_a_skipped_batch_goes_to_the_sink_of_the_dead_letters_before_the_record_says_so(tmp_path: Path) -> None:
    retry = CoordinatorConfig(1, 0, retry=RetryPolicy(2, first_ms=10), on_failure=OnFailure.SKIP)
    written: list[tuple[int, Any]] = []
    records, full = tmp_path / "records.db", True

    def keep(txid: int, rows: Any) -> None:
        if full and rows:
            raise OSError("no space")
        written.append((txid, rows))

    with pytest.raises(OSError, match="no space") as raised:
        run(passing(Fails(99)), coordination=retry, state_path=records, sinks={"words.dead_letters": keep})
    assert "In sink 'words.dead_letters' of 'checked', on the rows of batch 2" in raised.value.__notes__[0]
    full = False
    result = run(passing(Fails(99)), coordination=retry, state_path=records, sinks={"words.dead_letters": keep})
    assert written == [(1, []), (2, WORDS[2:4]), (3, [])]
    assert [letter.rows for letter in result.dead_letters] == [WORDS[2:4]]


def test_a_skipped_batch_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    retry = CoordinatorConfig(1, 0, retry=RetryPolicy(1), on_failure=OnFailure.SKIP)
    run(passing(Fails(99)), coordination=retry)
    assert "batch 2 is skipped, its 2 tuples are dead letters: b_0, task 0: step 2, filter" in caplog.text


@pytest.mark.parametrize("tracked", [False, True])
def test_a_row_that_a_function_changes_in_place_is_emitted_again_as_it_was(tracked: bool) -> None:
    @spout(output="tags array<long>")
    def untracked() -> Any:
        yield from [([],), ([],), ([],)]

    @spout(output="tags array<long>")
    class Tracked:
        sent = 0

        def open(self, context: Any, collector: Any) -> None:
            self.collector = collector

        def next_tuple(self) -> None:
            if self.sent < 3:
                self.sent += 1
                self.collector.emit(([],), message_id=self.sent)

    def mark(row: Any) -> int:
        row.tags.append(99)
        return len(row.tags)

    fails = Fails(1, on="1")
    topology = TridentTopology("marked").configure(retry_delay=millis(1))
    marked = topology.new_stream("lists", Tracked if tracked else untracked).each("tags", mark, "marks long")
    marked.filter(lambda row: fails(str(row.marks)) or True).project("marks").sink("out")
    result = run(topology)
    assert (result["out"], result.failures) == ([(1,), (1,), (1,)], 1)


def test_dead_letters_are_those_of_the_committed_attempt() -> None:
    class Shaky(Committer):
        def get_emitter(self, context: Any) -> CommitterEmitter:
            return ShakyReading(self.log, context)

    class ShakyReading(Reading):
        def commit(self, attempt: Any) -> None:
            super().commit(attempt)
            if self.log.count(f"commit {attempt}") and str(attempt) == "2:2":
                raise FailedException("the first commit that skips fails")

    given, fails = Shaky(), Fails(99)
    topology = TridentTopology("shaky")
    topology.new_stream("words", given).filter(lambda row: fails(row.word) or True).sink("out")
    retry = CoordinatorConfig(1, 0, retry=RetryPolicy(2, first_ms=10), on_failure=OnFailure.SKIP)
    result = run(topology, coordination=retry)
    assert given.log == [
        "commit 1:0",
        "success 1:0",
        "commit 2:2",
        "commit 2:3",
        "success 2:3",
        "commit 3:0",
        "success 3:0",
    ]
    assert [letter.rows for letter in result.dead_letters] == [WORDS[2:4]]
    assert result["out"] == [*WORDS[:2], *WORDS[4:]]


def test_the_emit_interval_and_the_batch_size_follow_the_settings() -> None:
    @spout(output="n long")
    def numbers() -> Any:
        yield from range(7)

    topology = TridentTopology("cut").configure({"topology.trident.batch.emit.interval.millis": 500}, max_batch_size=3)
    topology.new_stream("numbers", numbers).aggregate(None, Count(), "n long").sink("sizes")
    clock = VirtualClock()
    assert run_trident(topology, clock=clock)["sizes"][:3] == [(3,), (3,), (1,)]
    assert clock.now_ms() >= 3 * 500


def test_retries_of_a_failed_batch_wait_retry_delay() -> None:
    topology = passing(Fails(2)).configure(max_attempts=4, retry_delay=seconds(3))
    clock = VirtualClock()
    run_trident(topology, clock=clock)
    assert clock.now_ms() == 3_000 + 6_000


def test_a_batch_beyond_its_timeout_is_retried() -> None:
    failures = 0
    for seed in range(4):
        clock, slow = VirtualClock(), ["or"]

        def wait(word: str, clock: VirtualClock = clock, slow: list[str] = slow) -> None:
            if word in slow:
                slow.remove(word)
                clock.advance(seconds(40))

        topology = TridentTopology("slow")
        words = topology.new_stream("words", FixedBatchSpout("word string", 2, WORDS))
        words.filter(lambda row: wait(row.word) or True).shuffle().filter(lambda row: True).sink("out")
        result = run_trident(topology, clock=clock, seed=seed, coordination=patient(2))
        assert result["out"] == WORDS
        failures += result.failures
    assert failures, "the clock went on before all acks came"


def test_with_the_system_clock_retries_wait_until_they_are_due() -> None:
    fails = Fails(2)
    retry = CoordinatorConfig(2, interval_ms=2, retry=RetryPolicy(None, first_ms=5))
    assert run_trident(passing(fails), coordination=retry)["out"] == WORDS
    assert fails.calls == 3


def test_any_other_error_ends_the_cluster_and_names_operation_tuple_and_line() -> None:
    topology = TridentTopology("broken")
    topology.new_stream("words", fixed()).map(lambda row: 1 // 0, "n long").sink("out")
    cluster = TridentCluster(topology, clock=VirtualClock())
    with pytest.raises(BoltError, match=r"map.*word='to'.*ZeroDivisionError.*test_trident_cluster.py"):
        cluster.run()
    with pytest.raises(WindowingError, match="is over: it ended with BoltError; make another TridentCluster"):
        cluster.step()


def test_an_error_in_a_spout_names_the_spout() -> None:
    class Broken(IBatchSpout):
        kind, output = SpoutKind.TRANSACTIONAL, "word string"

        def emit_batch(self, txid: int, collector: Any) -> None:
            raise KeyError("offset")

    with pytest.raises(BoltError, match="spout 'words' failed on batch 1:0: KeyError: 'offset'"):
        run(counting(Broken()))


@pytest.mark.parametrize(
    ("method", "where"), [("get_partitions_for_batch", "on the metadata of 1:0"), ("close", "in close")]
)
def test_an_error_in_the_coordinator_of_a_spout_names_the_spout(method: str, where: str) -> None:
    class Broken(Transactional):
        def get_emitter(self) -> Any:
            return Transactional(self.sizes, self.chance)

    def fails(self: Any) -> Any:
        raise KeyError("offset")

    setattr(Broken, method, fails)
    topology = TridentTopology("broken")
    topology.new_stream("words", Broken({"p": 3}, random.Random(1))).sink("out")
    with pytest.raises(BoltError, match=rf"spout 'words' failed {where}: KeyError: 'offset' \(.*:\d+\)"):
        run(topology)


def test_a_deactivated_cluster_commits_the_pending_batches_and_begins_none() -> None:
    with TridentCluster(passing(lambda word: None), clock=VirtualClock(), coordination=patient(2)) as cluster:
        cluster.step()
        cluster.deactivate()
        cluster.run()
        assert cluster.result["out"] == WORDS[:4]
        cluster.activate()
        assert cluster.run()["out"] == WORDS


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> list[Any]:
        seen: list[Any] = []
        result = run(passing(seen.append, size=1), seed=seed, coordination=patient(4))
        return [*seen, result["out"]]

    assert trace(5) == trace(5)


# -- sinks and requests ------------------------------------------------------------------------------------------------


def test_a_sink_gets_rows_only_when_their_batch_commits() -> None:
    fails, taken = Fails(2, on="be"), list[Any]()
    topology = TridentTopology("late")
    topology.new_stream("words", fixed(6)).sink("seen").filter(lambda row: fails(row.word) or True).sink("out")
    result = run(topology, sinks={"seen": lambda txid, rows: taken.append((txid, rows))})
    assert fails.calls == 4
    assert taken == [(1, WORDS)]
    assert result["out"] == WORDS
    assert list(result) == ["out"]
    with pytest.raises(KeyError, match="'seen' is no sink whose rows are kept, those are out"):
        result["seen"]


def test_a_sink_never_gets_rows_of_a_failed_attempt() -> None:
    class Moving(IBatchSpout):
        kind, output, emitted = SpoutKind.OPAQUE, "n long", 0

        def is_ready(self, txid: int) -> Readiness:
            return Readiness.READY if txid <= 2 else Readiness.ENDED

        def emit_batch(self, txid: int, collector: Any) -> None:
            Moving.emitted += 1
            collector.emit((Moving.emitted,))

    fails = Fails(2, on="")
    topology = TridentTopology("moving")
    rows = topology.new_stream("in", Moving()).map(lambda row: row.n, "n long")
    rows.sink("seen")
    rows.global_().filter(lambda row: fails("") or True).sink("out")
    result = run(topology, coordination=patient(1))
    assert result["seen"] == result["out"] == [(3,), (4,)]


def asking() -> TridentTopology:
    topology = TridentTopology("asked")
    words = topology.new_stream("words", fixed())
    counts = words.group_by("word").persistent_aggregate(map_state(MemoryStore(), "counts"), None, Count(), "n long")
    counts.parallelism_hint(2)
    total = words.persistent_aggregate(snapshot_state(MemoryStore(), "total"), None, Count(), "n long")
    asked = topology.new_drpc_stream("count_of").flat_map(lambda row: row.args.split(), output="word string")
    asked.partition_by("word").state_query(counts, "word", MapGet(), "n long").project("word", "n")
    topology.new_drpc_stream("total").state_query(total, None, SnapshotGet(), "n long").project("n")
    return topology


def test_a_request_is_answered_from_the_states() -> None:
    with TridentCluster(asking(), clock=VirtualClock()) as cluster:
        cluster.run()
        assert sorted(cluster.ask("count_of", "to be sure"), key=str) == [("be", 2), ("sure", None), ("to", 2)]
        assert cluster.ask("total", "") == [(6,)]
        assert cluster.values("state1") == COUNTS
        assert cluster.values("state2") == 6


def test_a_request_reads_committed_values_and_begins_no_batch() -> None:
    with TridentCluster(asking(), clock=VirtualClock()) as cluster:
        assert cluster.ask("count_of", "to") == [("to", None)]
        assert cluster.task_set.master.begun == 0
        while cluster.result.batches < 1:
            cluster.step()
        assert cluster.ask("count_of", "to") == [("to", 1)]
        cluster.run()
        assert cluster.ask("count_of", "to") == [("to", 2)]


def test_a_topology_with_only_requests_answers_from_static_states() -> None:
    other = map_state(MemoryStore(), "other")
    written, first = other.make_state(0, 1), TransactionAttempt(1, 0)
    written.begin_commit(first)
    written.multi_put([("to",)], [7])
    written.commit(first)
    topology = TridentTopology("static")
    state = topology.new_static_state(other)
    topology.new_drpc_stream("get").state_query(state, "args", MapGet(), "n long").project("n")
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        assert cluster.run().batches == 0
        assert cluster.ask("get", "to") == [(7,)]


def test_a_request_has_no_txid() -> None:
    class Who:
        def init(self, batch_id: Any, collector: Any) -> Any:
            return batch_id

        def aggregate(self, batch_id: Any, row: Any, collector: Any) -> None:
            collector.emit((str(batch_id),))

        def complete(self, batch_id: Any, collector: Any) -> None:
            pass

    topology = asking()
    topology.new_drpc_stream("who").partition_aggregate("args", Who(), "id string")
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        assert [cluster.ask("who", "")[0][0] for _ in range(2)] == ["('request', 1)", "('request', 2)"]


def test_an_answered_request_leaves_no_held_batch() -> None:
    with TridentCluster(asking(), clock=VirtualClock()) as cluster:
        cluster.deactivate()
        cluster.ask("count_of", "to be")
        cluster.step()
        assert not any(task.executor._tracked for task in cluster.task_set.tasks if isinstance(task, GroupTask))


def test_a_failed_request_raises_its_cause_and_the_next_one_is_answered() -> None:
    topology = asking()
    fails = Fails(1, on="to")
    topology.new_drpc_stream("picky").map(lambda row: fails(row.args) or row.args, "word string")
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        with pytest.raises(FailedException, match=r"request 1 of picky: .*attempt 1"):
            cluster.ask("picky", "to")
        assert cluster.ask("picky", "to") == [("to",)]
        with pytest.raises(ConfigError, match=r"there is no function 'count_off'; .*count_of"):
            cluster.ask("count_off", "to")


def test_a_request_whose_argument_is_no_text_is_refused_and_the_cluster_goes_on() -> None:
    with TridentCluster(asking(), clock=VirtualClock()) as cluster:
        for given in (3, None, ["to"]):
            with pytest.raises(ConfigError, match=r"ask\('count_of', ...\) is given .*; give one text"):
                cluster.ask("count_of", given)  # type: ignore[arg-type]
        assert cluster.ask("count_of", "to") == [("to", None)]


def test_a_failed_request_leaves_no_rows_of_tasks_that_answer_later() -> None:
    def refuse(row: Any) -> Any:
        raise FailedException("no")

    for seed in range(20):
        topology = TridentTopology("late")
        asked = topology.new_drpc_stream("asked")
        asked.shuffle().map(refuse)
        slow = asked.shuffle().map(lambda row: row.args)
        for _ in range(3):
            slow = slow.shuffle().map(lambda row: row.args)
        with TridentCluster(topology, clock=VirtualClock(), seed=seed) as cluster:
            with pytest.raises(FailedException, match="no"):
                cluster.ask("asked", "to")
            while cluster.step():
                pass
            assert cluster._router.answers == {}


class KeepsItsCollector:
    """User code of every kind that emits to the collector of its first call."""

    def __init__(self) -> None:
        self.kept: Any = None

    def emit(self, collector: Any, row: Any) -> None:
        self.kept = self.kept or collector
        self.kept.emit(row)

    def execute(self, row: Any, collector: Any) -> None:
        self.emit(collector, (row.word.upper(),))

    def update_state(self, state: Any, rows: Any, collector: Any) -> None:
        for row in rows:
            self.emit(collector, (row.word.upper(),))

    def init(self, batch_id: Any, collector: Any) -> list[str]:
        self.kept = self.kept or collector
        return []

    def aggregate(self, value: list[str], row: Any, collector: Any) -> None:
        value.append(row.word)
        self.kept.emit((row.word.upper(),))

    def complete(self, value: list[str], collector: Any) -> None:
        self.kept.emit(("".join(value),))


class KeepsItInQueries(KeepsItsCollector):
    def batch_retrieve(self, state: Any, rows: Any) -> list[Any]:
        return [None] * len(rows)

    def execute(self, row: Any, result: Any, collector: Any) -> None:  # type: ignore[override]
        self.emit(collector, (row.word.upper(),))


class KeptInSpout(IBatchSpout):
    kind, output, kept = SpoutKind.TRANSACTIONAL, "word string", None

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= 3 else Readiness.ENDED

    def emit_batch(self, txid: int, collector: Any) -> None:
        self.kept = self.kept or collector
        for (word,) in WORDS[2 * txid - 2 : 2 * txid]:
            self.kept.emit((word,))


def test_a_collector_may_be_kept_it_is_the_same_for_all_calls_of_a_task() -> None:
    topology = TridentTopology("kept")
    words = topology.new_stream("words", KeptInSpout())
    words.sink("spout")
    words.each("word", KeepsItsCollector(), "upper string").project("upper").sink("function")
    words.aggregate("word", KeepsItsCollector(), "upper string").sink("aggregator")
    words.group_by("word").aggregate("word", KeepsItsCollector(), "upper string").sink("groups")
    state = words.partition_persist(map_state(MemoryStore(), "kept"), "word", KeepsItsCollector(), "upper string")
    state.new_values_stream().sink("updater")
    words.broadcast().state_query(state, "word", KeepsItInQueries(), "upper string").project("upper").sink("query")
    result = run(topology)
    upper = [(word.upper(),) for (word,) in WORDS]
    assert result["spout"] == WORDS
    assert result["function"] == result["updater"] == result["query"] == upper
    assert result["aggregator"] == [*upper[:2], ("tobe",), *upper[2:4], ("ornot",), *upper[4:], ("tobe",)]
    assert sorted(result["groups"]) == sorted([row for (w,) in WORDS for row in ((w, w), (w, w.upper()))])


def test_an_emit_between_two_calls_is_an_error() -> None:
    kept: list[Any] = []
    topology = TridentTopology("kept")
    words = topology.new_stream("words", fixed())

    def keep(row: Any, collector: Any) -> None:
        kept.append(collector)

    words.each("word", keep, "upper string").sink("function")
    words.filter(lambda row: kept and kept[0].emit(("late",)))
    with pytest.raises(BoltError, match=r"\('late',\) was emitted when the call was over; emit while the function"):
        run(topology)


def test_rows_that_a_spout_of_batches_returns_are_refused() -> None:
    class Returns(KeptInSpout):
        def emit_batch(self, txid: int, collector: Any) -> Any:
            return [("to",)]

    topology = TridentTopology("returns")
    topology.new_stream("words", Returns()).sink("out")
    with pytest.raises(BoltError, match=r"spout 'words' .* on batch 1:0: it takes a collector, yet it returned"):
        run(topology)


@pytest.mark.parametrize("fails_at", ["upstream", "window"])
def test_a_failed_exception_in_a_timestamp_function_fails_the_batch(
    fails_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def stamp(row: Any) -> int:
        nonlocal calls
        calls += row.n == 3
        if row.n == 3 and calls == (1 if fails_at == "upstream" else 2):
            raise FailedException("the lookup failed")
        return int(row.n)

    topology = TridentTopology("stamped").configure(retry_delay=millis(1))
    words = topology.new_stream("words", FixedBatchSpout("word string, n long", 3, [("to", 1), ("be", 3), ("or", 9)]))
    words.group_by("word").tumbling_window(millis(4), "n", Sum(), "total long", timestamp=stamp).sink("totals")
    result = run(topology)
    assert sorted(result["totals"]) == [("be", 3), ("or", 9), ("to", 1)]
    assert result.failures == 1
    assert ("spout 'words': the lookup failed" in caplog.text) is (fails_at == "upstream")


# -- windows and restarts ----------------------------------------------------------------------------------------------


def windowed(rows: Any, length: int = 4, name: str = "windowed") -> TridentTopology:
    topology = TridentTopology(name)
    stream = topology.new_stream("in", FixedBatchSpout("n long", 3, rows))
    stream.tumbling_window(count(length), "n", Sum(), "total long", timestamp="n").sink("out")
    return topology


NUMBERS = [(number,) for number in range(1, 11)]


def test_the_last_batch_drains_the_open_windows() -> None:
    assert run(windowed(NUMBERS))["out"] == [(10,), (26,), (19,)]


LATE = [[("a", 1_000)], [("b", 12_000)], [("c", 3_000), ("d", 4_000)], [("e", 30_000)]]


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("seed", [None, 3])
def test_late_tuples_are_counted_whether_or_not_a_stream_reads_them(read: bool, seed: int | None) -> None:
    topology, failures = TridentTopology("late").configure(retry_delay=millis(0)), [1]

    def flaky(row: Any) -> bool:
        if failures and row.word == "d":
            failures.pop()
            raise FailedException("once")
        return True

    stream = topology.new_stream("words", InputSpout("word string, at long")).filter(flaky)
    windows = stream.tumbling_window(seconds(10), None, Count(), "n long", timestamp="at").sink("windows")
    if read:
        windows = stream.tumbling_window(seconds(10), None, Count(), "n long", timestamp="at")
        windows.late_stream().sink("late")
    result = run_trident(topology, {"words": LATE}, clock=VirtualClock(), seed=seed)
    assert result.failures == 1
    assert sum(result.late.values()) == (4 if read else 2)  # of one window, or of two
    assert {reason for _, reason in result.late} == {"late"}
    assert result.sinks.get("late", []) == ([("c", 3_000, "late"), ("d", 4_000, "late")] if read else [])
    assert "late of" in result._repr_html_()


def test_late_tuples_are_those_of_the_committed_attempts() -> None:
    topology, failures = TridentTopology("late").configure(retry_delay=millis(0)), [1]

    def flaky(row: Any) -> bool:
        if failures:
            failures.pop()
            raise FailedException("behind the window, so that its attempt has late tuples already")
        return True

    stream = topology.new_stream("words", InputSpout("word string, at long"))
    windows = stream.tumbling_window(seconds(10), None, Count(), "n long", timestamp="at")
    windows.late_stream().shuffle().filter(flaky).parallelism_hint(2).sink("late")
    result = run_trident(topology, {"words": LATE}, clock=VirtualClock())
    assert (result.failures, list(result.late.values()), len(result["late"])) == (1, [2], 2)


def test_windows_over_single_tuples_are_drained_when_the_spout_ends() -> None:
    topology = TridentTopology("windowed")
    windows = topology.new_stream("words", rows).tumbling_window(count(4), "word", Count(), "n long")
    windows.sink("out")
    assert run(topology)["out"] == [(4,), (2,)]


def test_without_drain_windows_stay_open_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "windows.db"
    assert run(windowed(NUMBERS[:6]), state_path=path, drain=False)["out"] == [(10,)]
    assert run(windowed(NUMBERS), state_path=path)["out"] == [(26,), (19,)]


@pytest.mark.parametrize("before", ["run_for", "step", "run"])
def test_run_drains_windows_whose_input_has_ended_before(before: str) -> None:
    with TridentCluster(windowed(NUMBERS), clock=VirtualClock()) as cluster:
        if before == "run_for":
            cluster.run_for(seconds(1))
        elif before == "run":
            cluster.run(drain=False)
        while before == "step" and cluster.step():
            pass
        assert cluster.result["out"] == [(10,), (26,)]
        assert cluster.run()["out"] == [(10,), (26,), (19,)]
        assert cluster.run().batches == 5, "a second run has nothing to do"


@pytest.mark.parametrize("before", ["run_for", "run"])
def test_run_emits_what_a_spout_of_single_tuples_has_got_since_it_emitted_nothing(before: str) -> None:
    waiting = ["to", "be"]

    @spout(output="word string")
    class Words:
        def open(self, context: Any, collector: Any) -> None:
            self.collector = collector

        def next_tuple(self) -> None:
            if waiting:
                self.collector.emit(waiting.pop(0))

    topology = TridentTopology("words")
    windows = topology.new_stream("words", Words).tumbling_window(count(2), "word", Count(), "n long")
    windows.sink("out")
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        _ = cluster.run_for(seconds(1)) if before == "run_for" else cluster.run(drain=False)
        waiting += ["or", "not", "to"]
        assert cluster.run()["out"] == [(2,), (2,), (1,)]
        waiting += ["be"]
        assert cluster.run()["out"] == [(2,), (2,), (1,)], "the windows are closed"


def test_rows_of_batches_that_are_committed_are_not_read_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rows(given: list[list[str]]) -> list[Any]:
        topology = TridentTopology("days")
        topology.new_stream("words", InputSpout("word string")).sink("out")
        return run_trident(topology, {"words": given}, state_path=tmp_path / "r.db")["out"]

    assert rows([["to"], ["be"]]) == [("to",), ("be",)]
    assert not caplog.messages
    assert rows([["or"], ["not"]]) == []
    assert "topology 'days': the first 2 lists of a stream are not read ('words' has 2): the n-th list" in caplog.text
    assert rows([["to"], ["be"], ["or"]]) == [("or",)]
    assert "the first 2 lists of a stream are not read ('words' has 3)" in caplog.text


def test_drained_windows_refuse_new_batches_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "windows.db"
    run(windowed(NUMBERS[:6]), state_path=path)
    assert run(windowed(NUMBERS[:6]), state_path=path)["out"] == [], "nothing is left to be done"
    with pytest.raises(DrainedCheckpointError, match=r"were drained by batch 3 .* begin with new records"):
        run(windowed(NUMBERS), state_path=path)


def test_a_drain_that_was_planned_and_never_sent_is_given_up_if_the_spout_has_more() -> None:
    class Killed(MemoryRecordStore):
        """The process is killed behind the write that plans the last batch, which is the third."""

        def write(self, changes: Any, expected: Any) -> bool:
            done = super().write(changes, expected)
            if any(path.endswith("/stamps/3") for path in changes):
                raise KeyboardInterrupt
            return done

    killed = Killed()
    with pytest.raises(KeyboardInterrupt):
        run(windowed(NUMBERS[:6]), records=killed)
    records = MemoryRecordStore()
    records.write(killed.blobs, {})
    result = run(windowed(NUMBERS), records=records)
    assert (result["out"], result.batches) == ([(26,), (19,)], 3), "the rows of batches 3 and 4, and the drain"


@pytest.mark.parametrize("behind", ["the spout", "another group"])
def test_all_tasks_of_a_window_share_one_watermark(behind: str) -> None:
    topology = TridentTopology("watermark")
    stream = topology.new_stream("in", InputSpout("k string, n long"))
    if behind == "another group":
        stream = stream.shuffle().filter(lambda row: True).parallelism_hint(2)
    windows = stream.group_by("k").tumbling_window(count(1), "n", Sum(), "n long", timestamp="n").parallelism_hint(3)
    windows.sink("out")
    windows.late_stream().project("k", "n").sink("late")
    rows = [[("a", 9)], [(key, 5) for key in "abcdef"], [(key, 9) for key in "abcdef"]]
    result = run(topology, batches={"in": rows})
    assert sorted(result["late"]) == [(key, 5) for key in "abcdef"]
    assert sorted(result["out"]) == [("a", 9), *((key, 9) for key in "abcdef")]


class Written(MemoryRecordStore):
    """Records the sizes of what is written for windows."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, changes: Any, expected: Any) -> bool:
        self.sizes += [sum(len(blob or b"") for path, blob in changes.items() if "/windows/" in path)]
        return super().write(changes, expected)


def test_a_commit_writes_what_a_batch_has_changed_in_a_window_and_rarely_all_of_it() -> None:
    """In disorder, so that tuples arrive between those that are held."""
    numbers, records = [[(n + 5,), (n,)] for n in range(0, 8_000, 10)], Written()
    topology = TridentTopology("windowed")
    stream = topology.new_stream("in", InputSpout("n long"))
    stream.tumbling_window(count(5_000), "n", Sum(), "total long", timestamp="n", lag=millis(20)).sink("out")
    run(
        topology,
        batches={"in": [[row for rows in numbers[:700] for row in rows], *numbers[700:]]},
        records=records,
        drain=False,
    )
    sizes = [size for size in records.sizes if size]
    assert len(sizes) == 101
    assert sizes[0] > 5_000, "the first batch, whole"
    assert max(sizes[2:]) < 1_000


@pytest.mark.parametrize("fails", [0, 1])
def test_a_batch_copies_the_keys_that_it_changes_and_no_others(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, failing, snapshot = list[str](), Fails(fails, "key 7"), KeyState.snapshot

    def counted(key: KeyState, events: bool) -> dict[str, Any]:
        copied.append(key.key)
        return snapshot(key, events)

    monkeypatch.setattr(KeyState, "snapshot", counted)
    topology = TridentTopology("windowed")
    stream = topology.new_stream("in", InputSpout("k string, n long")).group_by("k")
    pairs = stream.tumbling_window(count(2), "n", Sum(), "total long", timestamp="n")
    pairs.filter(lambda row: failing(row.k) or True).sink("out")
    batches = [[(f"key {n}", 1) for n in range(500)], [("key 7", 2), ("key 8", 2), ("new", 2)]]
    found: dict[int, Any] = {}

    def sink(txid: int, rows: Any) -> None:
        found[txid] = Counter(copied), rows
        copied.clear()

    assert (
        run(topology, batches={"in": batches}, drain=False, coordination=patient(1), sinks={"out": sink}).failures
        == fails
    )
    copies, rows = found[2]
    assert rows == [("key 7", 3), ("key 8", 3)]
    assert copies.keys() == {"key 7", "key 8", "new"}
    assert max(copies.values()) <= 2


_BEFORE_CHANGES = (
    "c-p;^!EW0y42HYIUWC|DK<wDn!N+1fZl?h~1V*69Od~{=JV~C@1qSv=JMH;K*{$a_>ADR?eTW(Q7fJp6Za%*Mbn)iu$M?g<@Vx!Df=-#rc33UOz%MrIWRWZ~U`Gf"
    "CRY9?2u)(c$2*nZTU5fxk%Agi<rwnD`=Dx<2)#3VpvJKWj6c}-f?wMmB?o|vr5s+kV4@Jg6YU`2OZ-w^Az~ko@jl|)bb(Jzg5A}l3`Y!emQeqS05mMlxQ7*;_gY6"
    "Xgo$bsR?N!qZ*`7)`A@?4N)e-hcwM?t^tO?0C){W;j!s8H3bMCBDU+wr++AsLfOA8;?qp4ImVM#gW9?B0>t)nS%92&up3x4=#u)`>%>Os{Min@v8rEJMED$|HNZA"
    "CRs{EmJhw2ek!tF$b8_9(YJlglVq{xa2%L-iztTQulI+#q>M*YPS|E{$SZXi$>GK)dl8y{D~t+d4U0)bCrQTapdNcI(<tzQw^;P~ldzIshB|$jG4B-m5Bt)}H`iqK|"
    "P~L-1-O@;{KspCyscNX#b^(}~3VKS|^#B=Q-F`HaN;l*If=68Tdk@^d7zoLw^hVmv<1<!5r2XL9^iSmyu0GXG1K`|>C7m(a-"
)
"""The windows after batch 2 of NUMBERS, as version 0.2.0 stored them."""


@pytest.mark.parametrize("is_committed", [True, False])
def test_windows_that_an_earlier_version_has_stored_are_read(is_committed: bool) -> None:
    records, found = MemoryRecordStore(), list[tuple[int, Any]]()

    def fails(txid: int, rows: Any) -> None:
        if (txid, is_committed) == (2, False):
            raise OSError("the disk is full")

    with suppress(OSError):
        run(windowed(NUMBERS[:6]), records=records, drain=False, sinks={"out": fails})
    (name,) = (path for path in records.blobs if path.endswith("/windows/b_0/0/3"))
    earlier = zlib.decompress(base64.b85decode(_BEFORE_CHANGES))
    records.write({name: earlier, f"{name}/1": None, f"{name}/2": None}, {})
    for _ in range(2):
        run(windowed(NUMBERS), records=records, sinks={"out": lambda txid, rows: found.append((txid, rows))})
    assert found == [(2, [(10,)]), (3, [(26,)]), (4, []), (5, [(19,)])][is_committed:]
    if is_committed:
        assert not any(path.endswith("/2") for path in records.blobs if path.startswith(name))


def test_changes_of_windows_before_those_that_were_stored_whole_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windowing.trident.windows._WHOLE_AFTER", 2)
    records = MemoryRecordStore()
    run(windowed([(number,) for number in range(1, 61)]), records=records, drain=False)
    assert len([path for path in records.blobs if "/windows/b_0/0/3" in path]) <= 4


def test_windows_whose_changes_are_not_all_there_are_refused() -> None:
    records = MemoryRecordStore()
    run(windowed(NUMBERS[:9]), records=records, drain=False)
    (lost,) = (path for path in records.blobs if path.endswith("/windows/b_0/0/3/2"))
    records.write({lost: None}, {})
    with pytest.raises(
        CorruptStateError, match=r"begin with batch 1, and .* of the batches \[1, 3\]; put the store back"
    ):
        run(windowed(NUMBERS), records=records)


def test_windows_over_the_clock_use_the_time_of_a_batchs_first_attempt() -> None:
    fails, clock = Fails(1, on="x"), VirtualClock(100)
    topology = TridentTopology("clock")
    words = topology.new_stream("words", fixed(1, [("a",), ("x",), ("b",)])).filter(lambda row: fails(row.word) or True)
    words.tumbling_window(seconds(1), "word", Count(), "n long").sink("out")
    retry = CoordinatorConfig(1, interval_ms=900, retry=RetryPolicy(None, first_ms=5_000))
    result = run_trident(topology, clock=clock, coordination=retry)
    assert result["out"] == [(2,), (1,)], "a at 100, x at 1000, though it was emitted again at 6000; b later"
    assert clock.now_ms() > 6_000


def test_a_changed_window_definition_is_refused() -> None:
    records = MemoryRecordStore()
    run(windowed([], length=3), records=records, drain=False)  # a run without a batch stores nothing
    run(windowed(NUMBERS[:6]), records=records, drain=False)
    with pytest.raises(DefinitionChangedError, match=r"the windows kept for topology 'windowed'.*nothing was reset"):
        run(windowed(NUMBERS, length=5), records=records)


def test_a_changed_window_is_refused_part_by_part() -> None:
    records = MemoryRecordStore()
    run(windowed(NUMBERS[:6]), records=records, drain=False)
    with pytest.raises(DefinitionChangedError) as refused:
        run(windowed(NUMBERS, length=5), records=records)
    assert str(refused.value).removeprefix("[INCOMPATIBLE] ") == (
        "the windows kept for topology 'windowed': "
        'length of b_0, step 3, window 4 tuples / 4 tuples with Sum was {"count": 4}, now {"count": 5}; '
        'slide of b_0, step 3, window 4 tuples / 4 tuples with Sum was {"count": 4}, now {"count": 5}; '
        "restore the old topology, or begin with new records and new states; nothing was reset"
    )


@pytest.mark.parametrize(
    ("before", "order", "said"),
    [
        (["wa"], ["f", "wa"], "b_1, step 5, {a} was b_0, step 3: put new branches behind the window, and keep"),
        (["wa"], ["wa", "f"], None),
        (
            ["wa", "wb"],
            ["f", "wa", "wb"],
            "b_1, step 5, {a} was b_0, step 3: put .* b_2, step 8, {b} was b_1, step 6: put",
        ),
        (
            ["wa"],
            ["named"],
            "b_0_totals, step 3, {a} was b_0, step 3: put new .*, and keep the order of branches and .name",
        ),
        (["wa"], ["counted"], "b_0, step 3, {a} is now window 4 tuples / 4 tuples with Count"),
        (["wa", "wb"], ["wa"], "b_1, step 6, {b} is gone"),
        (["wa"], ["wa", "wb"], "b_1, step 6, {b} is new"),
        (["wa"], ["wa", "wa"], "b_1, step 6, {a} is new"),
    ],
)
def test_a_window_whose_step_has_another_number_is_named_with_both(
    before: list[str], order: list[str], said: str | None
) -> None:
    def topology(branches: list[str]) -> TridentTopology:
        made = TridentTopology("branches")
        stream = made.new_stream("numbers", InputSpout("n long"))
        declare: dict[str, Callable[[], Any]] = {
            "f": lambda: stream.filter(lambda row: True),
            "wa": lambda: stream.tumbling_window(count(4), "n", Sum(), "total long"),
            "wb": lambda: stream.tumbling_window(count(5), "n", Sum(), "total long"),
            "named": lambda: stream.name("totals").tumbling_window(count(4), "n", Sum(), "total long"),
            "counted": lambda: stream.tumbling_window(count(4), "n", Count(), "total long"),
        }
        for number, branch in enumerate(branches):
            declare[branch]().sink(f"out{number}")
        return made

    records = MemoryRecordStore()
    for branches, rows in ((before, NUMBERS[:3]), (order, NUMBERS[:6])):
        batches = {"numbers": [[row] for row in rows]}
        if said is None or branches is before:
            run(topology(branches), batches=batches, records=records, drain=False)
            continue
        wanted = said.format(a="window 4 tuples / 4 tuples with Sum", b="window 5 tuples / 5 tuples with Sum")
        with pytest.raises(DefinitionChangedError, match=f"kept for topology 'branches': {wanted}"):
            run(topology(branches), batches=batches, records=records, drain=False)


def test_a_window_definition_without_a_format_as_0_2_0_stored_it_is_compared() -> None:
    records = MemoryRecordStore()
    run(windowed(NUMBERS[:6]), records=records, drain=False)
    state = TransactionalState(records, "windowed/master")
    state.write({"definition": state.read("definition")["windows"]})
    with pytest.raises(DefinitionChangedError, match="the windows kept for topology 'windowed'"):
        run(windowed(NUMBERS, length=5), records=records)
    run(windowed(NUMBERS), records=records)


@pytest.mark.parametrize("kind", [StateType.TRANSACTIONAL, StateType.OPAQUE])
def test_another_lag_is_refused_while_a_transactional_state_keeps_a_half_done_batch(kind: StateType) -> None:
    """The state keeps the windows of the first attempt, and would count those that the second one fires later again."""
    rows, store, records = [("a", 1000), ("a", 9000), ("a", 9500), ("a", 25_000)], MemoryStore(), MemoryRecordStore()

    def life(lag_s: int, sink: Any = lambda txid, rows: None) -> Any:
        topology = TridentTopology("windowed")
        stream = topology.new_stream("in", FixedBatchSpout("word string, at long", 2, rows)).group_by("word")
        fired = stream.tumbling_window(seconds(1), "at", Count(), "n long", timestamp="at", lag=seconds(lag_s))
        fired.sink("fired")
        fired.group_by("word").persistent_aggregate(map_state(store, "counts", kind), "n", Sum(), "total long")
        return run_trident(topology, clock=VirtualClock(), records=records, sinks={"fired": sink}).states

    def full(txid: int, rows: Any) -> None:
        if txid == 2:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        life(0, full)
    if kind is StateType.TRANSACTIONAL:
        said = (
            r"batch 2 was left half done, and its rows are in state1 \(counts .* lag_ms of .*window.* was 0, now 90000"
        )
        with pytest.raises(CheckpointError, match=said):
            life(90)
        life(0)
    assert life(90) == {"state1": {("a",): 4}}


def test_a_restarted_run_continues_after_its_last_batch(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    with TridentCluster(passing(lambda word: None), clock=VirtualClock(), state_path=path) as cluster:
        while cluster.result.batches < 2:
            cluster.step()
    assert run(passing(lambda word: None), state_path=path)["out"] == WORDS[4:]


@pytest.mark.parametrize("where", ["memory", "file"])
def test_of_two_clusters_on_one_store_the_older_one_is_superseded(tmp_path: Path, where: str) -> None:
    kept: dict[str, Any] = {"records": MemoryRecordStore()} if where == "memory" else {"state_path": tmp_path / "a.db"}
    one, other = (TridentCluster(passing(lambda word: None), clock=VirtualClock(), **kept) for _ in range(2))
    one.step()
    other.run()
    with pytest.raises(SupersededError, match="saved by another coordinator"):
        one.run()


# -- mistakes ----------------------------------------------------------------------------------------------------------


def generating(txid: int, rows: Any) -> Any:
    yield rows


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batches": {"wods": []}}, "there is no stream 'wods'; .*words"),
        ({"sinks": {"oud": print}}, "there is no sink 'oud'; .*out"),
        (
            {"sinks": [print]},
            r"sinks= is a mapping of sinks to functions of \(txid, rows\), got \[<built-in function print>\]; "
            r"write sinks=\{'out': write\}",
        ),
        ({"sinks": {"out": 1}}, r"the sink out is given 1; give a function of \(txid, rows\)"),
        (
            {"sinks": {"out": lambda rows: None}},
            r"which takes \(rows\): too many .*; write a function of \(txid, rows\)",
        ),
        (
            {"sinks": {"out": generating}},
            r"which is a generator \(it has a yield\), whose body such a call does not run",
        ),
        ({"records": MemoryRecordStore(), "state_path": "x.db"}, "both records= and state_path='x.db'; leave one out"),
        (
            {"coordination": {"max_pending": 2}},
            r"coordination= is a CoordinatorConfig, got \{'max_pending': 2\}; write",
        ),
        (
            {"records": "x.db"},
            r"records is a store of records, got 'x.db'; give SqliteRecordStore\(path\), of windowing",
        ),
    ],
)
def test_wrong_arguments_of_a_cluster_are_refused_with_the_fix(options: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        TridentCluster(passing(lambda word: None), **options)


def test_a_spout_object_that_cannot_emit_is_refused() -> None:
    class Silent:
        kind, output = SpoutKind.TRANSACTIONAL, "word string"

    with pytest.raises(ConfigError, match="says its kind and emits nothing; give an IBatchSpout"):
        TridentCluster(counting(Silent()))


def lines_to_make_a_cluster_of(streams):
    """Return how many lines of Python run while a TridentCluster of so many streams, each with a state, is made."""
    topology = TridentTopology("wide")
    for number in range(streams):
        stream = topology.new_stream(f"words{number}", FixedBatchSpout("word string", 1, []))
        stream.group_by("word").persistent_aggregate(map_state(MemoryStore(), f"s{number}"), None, Count(), "n long")
    cluster, lines = lines_of(partial(TridentCluster, topology.build(), clock=VirtualClock()))
    cluster.close()
    return lines


def test_the_work_to_make_a_cluster_grows_by_the_square_of_its_streams_at_most():
    lines_to_make_a_cluster_of(1)  # imports
    assert lines_to_make_a_cluster_of(40) < 5 * lines_to_make_a_cluster_of(20)


def test_of_failed_attempts_at_a_batch_only_the_last_one_keeps_what_it_gave():
    topology = TridentTopology("down")
    words = topology.new_stream("words", FixedBatchSpout("n long", 100, [(n,) for n in range(100)]))
    words.sink("rows")

    def down(row):
        raise FailedException("down")

    words.shuffle().filter(down).sink("others")
    patience = CoordinatorConfig(interval_ms=0, retry=RetryPolicy(None, 100, 100))
    with TridentCluster(topology, clock=VirtualClock(), coordination=patience) as cluster:
        cluster.run_for(seconds(10))
        held = cluster._router._held
        assert cluster.result.failures > 50
        assert len(held) <= 2
        assert max(attempt.attempt for attempt in held) >= cluster.result.failures - 1


@pytest.mark.parametrize(
    ("ats", "said"),
    [
        (
            [1_717_200_000, 1_717_200_005],
            "bolt 'window_3': its first timestamp is 1717200000, which as milliseconds since 1970",
        ),
        (
            [None, None],
            "bolt 'window_3': no row has a timestamp in 'at', which is None in all of them; such rows are invalid",
        ),
        ([None, 1_717_200_000_000], None),
    ],
)
def test_a_run_in_one_process_warns_of_timestamps_in_seconds_and_of_none_at_all(
    ats: list[Any], said: str | None
) -> None:
    topology = TridentTopology("times")
    stream = topology.new_stream("rows", InputSpout("at long"))
    stream.tumbling_window(seconds(10), None, Count(), "n long", timestamp="at").sink("counts")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run_trident(topology, {"rows": [[(at,)] for at in ats]}, clock=VirtualClock())
    told = [str(each.message) for each in found]
    assert [text[: len(said or "")] for text in told] == ([] if said is None else [said])


def test_late_tuples_without_a_reader_are_logged_in_one_process(caplog: pytest.LogCaptureFixture) -> None:
    def run(late: bool) -> list[str]:
        caplog.clear()
        topology = TridentTopology("late")
        window = topology.new_stream("rows", InputSpout("at long")).tumbling_window(
            seconds(10), None, Count(), "n long", timestamp="at"
        )
        window.sink("counts")
        if late:
            window.late_stream().sink("late")
        result = run_trident(topology, {"rows": [[(50_000,)], [(1_000,)], [(2_000,)]]}, clock=VirtualClock())
        assert sum(result.late.values()) == 2
        return [record.getMessage().split(" (")[0] for record in caplog.records]

    assert run(late=True) == []
    assert run(late=False) == ["'late': 1 late or unusable tuples went nowhere"] * 2
