"""A cluster in one process that several threads call: requests, runs, close."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Barrier, Event, Lock, get_ident
from typing import Any

import pytest

from windowing.errors import BoltError, FailedException, WindowingError
from windowing.local import LocalCluster, TridentCluster, VirtualClock
from windowing.local.loop import LoopedCluster, Turns
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, spout
from windowing.trident import Count, MapGet, StateSpec, StateUpdater, TridentTopology
from windowing.trident.coordinator import CoordinatorConfig
from windowing.trident.kinds import Guarantee, StateType
from windowing.trident.spouts import FixedBatchSpout
from windowing.windows.measures import hours, millis, seconds

WAIT_S = 60.0
"""Nothing waits so long, unless it hangs."""


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


@contextmanager
def threads(count: int) -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(count) as pool:
        yield pool.submit


def waiting(cluster: LoopedCluster) -> int:
    return len(cluster.turns._waiting)


def even(
    kind: StateType = StateType.OPAQUE, combine: Callable[[str], Any] = str, cycle: bool = True
) -> TridentTopology:
    """Counts words; each batch has each of four words once, so that all counts are equal between two batches."""
    topology = TridentTopology("even").configure(batch_emit_interval=millis(0), retry_delay=millis(10))
    words = topology.new_stream("words", FixedBatchSpout("word string", 4, [(word,) for word in "abcd"], cycle=cycle))
    state = StateSpec(map_state(MemoryStore(), "counts", kind), accept=Guarantee.AT_LEAST_ONCE)
    checked = words.partition_by("word").filter(lambda row: combine(row.word)).parallelism_hint(2)
    counts = checked.group_by("word").persistent_aggregate(state, None, Count(), "n long").parallelism_hint(2)
    asked = topology.new_drpc_stream("count_of").flat_map(lambda row: row.args.split(), output="word string")
    asked.partition_by("word").state_query(counts, "word", MapGet(), "n long").project("n")
    return topology


@pytest.mark.parametrize("kind", StateType)
@pytest.mark.parametrize("max_pending", [1, 3])
def test_requests_of_many_threads_beside_a_run_see_whole_batches_only(kind: StateType, max_pending: int) -> None:
    def asks(cluster: TridentCluster) -> list[Any]:
        found = []
        while len(found) < 40:
            counts = cluster.ask("count_of", "a b c d")
            assert len(counts) == 4
            assert len(set(counts)) == 1
            found.append(counts[0][0] or 0)
        return found

    coordination = CoordinatorConfig(max_pending, 0)
    with threads(5) as start, TridentCluster(even(kind), coordination=coordination, seed=5) as cluster:
        run = start(cluster.run_for, hours(1))
        for asked in [start(asks, cluster) for _ in range(4)]:
            found = asked.result(WAIT_S)
            assert found == sorted(found)
            assert found[0] < found[-1]
        cluster.close()
        assert run.result(WAIT_S).batches > 0


def test_requests_without_a_pause_do_not_stop_a_stream_nor_the_end_of_its_run() -> None:
    with threads(4) as start, TridentCluster(even(), clock=VirtualClock()) as cluster:
        cluster.step()

        def asks(over: Event) -> int:
            count = 0
            while not over.is_set():
                cluster.ask("count_of", "a")
                count += 1
            return count

        over = Event()
        asked = [start(asks, over) for _ in range(3)]
        for _ in range(3):  # between the runs a thread that asks runs the loop
            before = cluster.result.batches
            assert cluster.run_for(millis(20)).batches >= before + 5
        over.set()
        assert all(each.result(WAIT_S) > 0 for each in asked)


def test_a_request_wakes_a_run_that_sleeps() -> None:
    with threads(1) as start, TridentCluster(even(cycle=False)) as cluster:
        run = start(cluster.run_for, hours(1))
        until(lambda: cluster.result.batches == 1)
        for _ in range(20):
            assert cluster.ask("count_of", "a") == [(1,)]
        cluster.close()
        assert run.result(WAIT_S).batches == 1


class Held:
    """Lets one call wait within a round."""

    def __init__(self) -> None:
        self.began, self.goes_on = Event(), Event()

    def __call__(self, word: str) -> bool:
        if not self.began.is_set():
            self.began.set()
            assert self.goes_on.wait(WAIT_S)
        return True


def test_the_thread_of_the_run_calls_all_user_code() -> None:
    seen = set()
    held = Held()

    def note(row: Any) -> Any:
        seen.add(get_ident())
        return row.args

    topology = even(combine=held)
    topology.new_drpc_stream("who").map(note, output="word string")
    with threads(4) as start, TridentCluster(topology) as cluster:
        run = start(lambda: (get_ident(), cluster.run_for(hours(1))))
        assert held.began.wait(WAIT_S)
        asked = [start(cluster.ask, "who", word) for word in "ab"]
        until(lambda: waiting(cluster) == 2)
        held.goes_on.set()
        assert [each.result(WAIT_S) for each in asked] == [[("a",)], [("b",)]]
        cluster.close()
        assert seen == {run.result(WAIT_S)[0]}


def test_an_exception_of_a_query_fails_only_its_request() -> None:
    def length(row: Any) -> int:
        if row.args == "fails":
            raise FailedException("not this one")
        return len(row.args) // (row.args != "wrong")

    topology = even(cycle=False)
    topology.new_drpc_stream("length_of").shuffle().each("args", length, "n long").project("n")
    with threads(1) as start, TridentCluster(topology) as cluster:
        for ask in (cluster.ask, lambda *request: start(cluster.ask, *request).result(WAIT_S)):
            with pytest.raises(BoltError, match=r"length failed on .*wrong.*: ZeroDivisionError") as found:
                ask("length_of", "wrong")
            assert found.value.__notes__ == ["In group 'b_2', on a request."]
            with pytest.raises(FailedException, match=r"request . of length_of: .*not this one"):
                ask("length_of", "fails")
            assert ask("length_of", "ab") == [(2,)]
        assert cluster.run().batches == 1
        assert cluster._router.answers == {}


def test_an_exception_of_a_partitioning_of_a_request_fails_only_the_request() -> None:
    def choose(row: Any, tasks: int) -> int:
        return int(row[0])

    for behind_a_step in (False, True):
        topology = even(cycle=False)
        asked = topology.new_drpc_stream("part")
        if behind_a_step:
            asked = asked.shuffle().map(lambda row: row.args, output="args string")
        asked.partition(choose).map(lambda row: row.args, output="args string").parallelism_hint(2)
        with TridentCluster(topology, clock=VirtualClock()) as cluster:
            with pytest.raises(WindowingError, match="invalid literal"):
                cluster.ask("part", "x")
            assert cluster.ask("part", "1") == [("1",)]
            assert cluster.run().batches == 1
            assert cluster._router.answers == {}


def test_a_request_while_a_commit_has_failed_in_a_part_of_a_state_reads_what_is_committed() -> None:
    failures = {"fails": 3}

    class Add(StateUpdater):
        def prepare(self, context: Any) -> None:
            self.task = context.task_index

        def update_state(self, state: Any, rows: Any, collector: Any) -> None:
            keys = [(row.word,) for row in rows]
            state.multi_put(keys, [(was or 0) + 1 for was in state.multi_get(keys)])
            if self.task == 1 and state.multi_get(keys)[0] == 2 and failures["fails"]:
                failures["fails"] -= 1
                raise FailedException("no")

    for seed in range(4):
        failures["fails"] = 3
        topology = TridentTopology("half").configure(batch_emit_interval=millis(0), retry_delay=millis(10))
        spout = FixedBatchSpout("word string", 4, [(word,) for word in "abcdabcdabcd"])
        words = topology.new_stream("words", spout).partition_by("word")
        counts = words.partition_persist(map_state(MemoryStore(), "counts"), "word", Add()).parallelism_hint(2)
        asked = topology.new_drpc_stream("count_of").flat_map(lambda row: row.args.split(), output="word string")
        asked.partition_by("word").state_query(counts, "word", MapGet(), "n long").project("n")
        seen = []
        with TridentCluster(topology, clock=VirtualClock(), seed=seed) as cluster:
            while cluster.result.batches < 3:
                if not cluster.step():
                    cluster.run_for(millis(20))
                found = cluster.ask("count_of", "a b c d")
                assert len(set(found)) == 1
                assert found[0][0] in (cluster.result.batches, None)
                seen.append(cluster.values("state1"))
        assert any(len(set(values.values())) == 2 for values in seen)
        assert failures["fails"] == 0


def test_close_refuses_requests_that_wait_and_ends_the_run() -> None:
    held = Held()
    with threads(4) as start, TridentCluster(even(combine=held)) as cluster:
        run = start(cluster.run_for, hours(1))
        assert held.began.wait(WAIT_S)
        closed = start(cluster.close)
        until(lambda: waiting(cluster) == 1)
        asked = start(cluster.ask, "count_of", "a")
        until(lambda: waiting(cluster) == 2)
        held.goes_on.set()
        with pytest.raises(WindowingError, match="'even' is over: it was closed; make another TridentCluster"):
            asked.result(WAIT_S)
        assert closed.result(WAIT_S) is None
        assert run.result(WAIT_S) is cluster.result


def test_run_raises_if_another_thread_closes_the_cluster() -> None:
    held = Held()
    with threads(2) as start, TridentCluster(even(combine=held)) as cluster:
        run = start(cluster.run)
        assert held.began.wait(WAIT_S)
        closed = start(cluster.close)
        until(lambda: waiting(cluster) == 1)
        held.goes_on.set()
        closed.result(WAIT_S)
        with pytest.raises(WindowingError, match="is over: it was closed"):
            run.result(WAIT_S)


def test_the_end_of_a_run_answers_the_requests_that_wait() -> None:
    held = Held()
    with threads(4) as start, TridentCluster(even(combine=held, cycle=False)) as cluster:
        run = start(cluster.step)
        assert held.began.wait(WAIT_S)
        asked = [start(cluster.ask, "count_of", "a") for _ in range(3)]
        until(lambda: waiting(cluster) == 3)
        held.goes_on.set()
        assert run.result(WAIT_S)
        assert {each.result(WAIT_S)[0] for each in asked} == {(1,)}


def test_an_error_of_a_batch_ends_the_run_and_the_requests_that_wait() -> None:
    held = Held()

    def fails(word: str) -> bool:
        held(word)
        raise ValueError(word)

    for method in ("run", "step"):
        held = Held()
        with threads(3) as start, TridentCluster(even(combine=fails)) as cluster:
            run = start(getattr(cluster, method))
            assert held.began.wait(WAIT_S)
            asked = [start(cluster.ask, "count_of", "a") for _ in range(2)]
            until(lambda: waiting(cluster) == 2)
            held.goes_on.set()
            with pytest.raises(BoltError, match="ValueError"):
                run.result(WAIT_S)
            for each in asked:
                with pytest.raises(WindowingError, match="is over: it ended with BoltError"):
                    each.result(WAIT_S)


def test_an_error_of_a_batch_during_a_request_is_raised_by_the_run() -> None:
    class Fails(StateUpdater):
        def update_state(self, state: Any, rows: Any, collector: Any) -> None:
            raise ValueError("in the commit")

    held, topology = Held(), TridentTopology("fails").configure(batch_emit_interval=millis(0))
    words = topology.new_stream("words", FixedBatchSpout("word string", 1, [("a",)])).filter(lambda row: held(row.word))
    words.partition_persist(map_state(MemoryStore(), "counts"), "word", Fails())
    topology.new_drpc_stream("echo").map(lambda row: row.args, output="word string")
    with threads(3) as start, TridentCluster(topology) as cluster:
        run = start(cluster.run)
        assert held.began.wait(WAIT_S)
        asked = [start(cluster.ask, "echo", "a") for _ in range(2)]
        until(lambda: waiting(cluster) == 2)
        held.goes_on.set()  # before it answers, the batch is committed
        with pytest.raises(BoltError, match="in the commit"):
            run.result(WAIT_S)
        for each in asked:
            with pytest.raises(WindowingError, match="is over: it ended with BoltError"):
                each.result(WAIT_S)


def test_calls_that_were_taken_and_not_done_come_before_later_ones_when_the_loop_is_left() -> None:
    turns, order = Turns(), list[str]()
    assert turns.enter(None) is None

    def wait(start: Callable[..., Future[Any]], name: str) -> Future[Any]:
        before = len(turns._waiting)
        call = start(turns.done, partial(order.append, name), WAIT_S)
        until(lambda: len(turns._waiting) > before)
        return call

    with threads(3) as start:
        calls = [wait(start, "a"), wait(start, "b")]
        taken = turns.arrived()
        calls.append(wait(start, "c"))
        turns.put_back(taken)
        assert turns.arrival.is_set()
        turns.leave()
        for call in calls:
            call.result(WAIT_S)
    assert order == ["a", "b", "c"]


def test_a_request_within_a_round_is_refused() -> None:
    clusters: list[TridentCluster] = []
    topology = even(combine=lambda word: clusters[0].ask("count_of", word))
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        clusters.append(cluster)
        with pytest.raises(BoltError, match=r"ask\(\) was called by user code within a round of topology 'even'"):
            cluster.run()


def test_a_request_of_a_thread_for_which_user_code_waits_ends_in_time() -> None:
    clusters: list[TridentCluster] = []
    found = []

    def asks(word: str) -> bool:
        with threads(1) as start:
            found.append(start(clusters[0].ask, "count_of", word).exception(WAIT_S))
        return True

    topology = even(combine=lambda word: word != "a" or asks(word), cycle=False).configure(message_timeout=seconds(1))
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        clusters.append(cluster)
        assert cluster.run().batches == 1
    assert "request 'a' of count_of: no answer within topology.message.timeout.secs (1 s)" in str(found)


# -- LocalCluster ------------------------------------------------------------------------------------------------------


def built(function: Any, given: Any = None) -> Any:
    builder = TopologyBuilder("shared")
    builder.set_spout("in", given or InputSpout("n long"))
    builder.set_bolt("bolt", bolt(output="n long")(function)).shuffle_grouping("in")
    return builder.build()


@spout(output="n long")
def numbers(collector: Any) -> None:
    collector.emit((1,))


def test_run_batch_of_many_threads_take_turns() -> None:
    inside = Lock()

    def alone(row: Any) -> Any:
        assert inside.acquire(blocking=False)
        time.sleep(0.0001)
        inside.release()
        return row["n"]

    batches = [range(100 * number, 100 * number + 10) for number in range(12)]
    with threads(6) as start, LocalCluster(built(alone)) as cluster:
        gate = Barrier(6)

        def feed(thread: int) -> None:
            gate.wait(WAIT_S)
            for batch in batches[thread::6]:
                cluster.run_batch({"in": [(n,) for n in batch]})

        for fed in [start(feed, thread) for thread in range(6)]:
            fed.result(WAIT_S)
        rows = cluster.run()["bolt"]
        found = [tuple(n for (n,) in rows[begin : begin + 10]) for begin in range(0, 120, 10)]
        assert sorted(found) == [tuple(batch) for batch in batches]  # each batch whole


def test_a_local_cluster_that_another_thread_closes_ends_run_for_and_raises_in_run() -> None:
    held = Held()
    with threads(2) as start, LocalCluster(built(lambda row: held("") and row["n"], numbers)) as cluster:
        run = start(cluster.run_for, hours(1))
        assert held.began.wait(WAIT_S)
        closed = start(cluster.close)
        until(lambda: waiting(cluster) == 1)
        held.goes_on.set()
        closed.result(WAIT_S)
        assert run.result(WAIT_S) is cluster.result
        with pytest.raises(WindowingError, match="is over: it was closed"):
            cluster.run()


@pytest.mark.parametrize("method", ["step", "run_for"])
def test_user_code_that_closes_the_cluster_ends_it_after_the_round(method: str) -> None:
    clusters: list[LocalCluster] = []

    def stop(row: Any) -> Any:
        clusters[0].close()
        return row["n"]

    with LocalCluster(built(stop, numbers), clock=VirtualClock()) as cluster:
        clusters.append(cluster)
        cluster.step() if method == "step" else cluster.run_for(hours(1))
        assert 0 < len(cluster.result["bolt"]) <= 100
        with pytest.raises(WindowingError, match="is over: it was closed"):
            cluster.step()


def test_a_spout_is_paused_and_resumed_by_another_thread() -> None:
    with threads(1) as start, LocalCluster(built(lambda row: row["n"], numbers)) as cluster:
        run = start(cluster.run_for, hours(1))
        until(lambda: cluster.result["bolt"])
        cluster.deactivate()
        until(lambda: not cluster.pending)
        count = len(cluster.result["bolt"])
        time.sleep(0.02)
        assert len(cluster.result["bolt"]) == count
        cluster.activate()
        until(lambda: len(cluster.result["bolt"]) > count)
        cluster.close()
        run.result(WAIT_S)


# -- Turns -------------------------------------------------------------------------------------------------------------


def test_one_thread_at_a_time_has_the_loop_and_every_call_is_done() -> None:
    turns, inside, done = Turns(), Lock(), []

    def work(number: int) -> int:
        assert inside.acquire(blocking=False)
        done.append(number)
        inside.release()
        return number

    def calls(first: int) -> None:
        for number in range(first, first + 100):
            assert turns.done(partial(work, number), WAIT_S) == number

    def leads(first: int) -> None:
        for number in range(first, first + 100):
            waiting = turns.enter(None)
            if waiting is not None:
                assert turns.wait(waiting, WAIT_S)
            work(number)
            for call in turns.arrived():
                assert call.work is not None
                call.result = call.work()
                call.ready.set()
            turns.leave()

    with threads(6) as start:
        for each in [start(task, 1000 * n) for n, task in enumerate([calls, calls, calls, leads, leads, calls])]:
            each.result(WAIT_S)
    assert sorted(done) == [1000 * n + number for n in range(6) for number in range(100)]
    assert turns.owner is None
