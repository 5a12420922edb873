"""StatefulBoltExecutor and CheckpointTask: the order of hooks, states, record and acks; a kill at each step of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from windowing import millis
from windowing.errors import AckError, BoltError, CheckpointError, CorruptStateError, FailedException
from windowing.local.checkpoints import CheckPointState, CheckpointTask, StatefulBoltExecutor, StatefulBoltTask, TxState
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.stores.states import MemoryStateProvider
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout, StatefulBolt, TopologyContext
from windowing.topology.decorators import bolt


class Message:
    """A tuple in the inbox of the task; it also stands for its anchors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._anchors = self

    def __repr__(self) -> str:
        return self.name


class Logged:
    """A task, its state and its router in one; every call is in `log`."""

    context = TopologyContext("count")

    def __init__(self, *messages: Message) -> None:
        self.log: list[Any] = []
        self.router: Any = self
        self.refused = ""
        self.executor = StatefulBoltExecutor(self)  # type: ignore[arg-type]
        self.executor.states.append(self)
        self.executor.executed(messages)  # type: ignore[arg-type]

    def hook(self, method: str, *arguments: int) -> None:
        self.log.append((method, *arguments))
        if method == self.refused:
            raise BoltError(method) from FailedException("not now")

    def report(self, component: str, task: int, error: BaseException) -> None:
        self.log.append("reported")

    def init(self, txid: int) -> None:
        self.log.append(("init", txid))

    def prepare_commit(self, txid: int) -> None:
        self.log.append(("prepare", txid))

    def commit(self, txid: int) -> None:
        self.log.append(("commit", txid))

    def rollback(self) -> None:
        self.log.append("rollback")

    def ack_all(self, messages: Any, component: str) -> None:
        self.log += [("ack", message.name) for message in messages]

    def fail(self, message: Any, component: str, reason: str = "failed") -> None:
        self.log.append(("fail", message.name))

    def done(self, entry: Any, *arguments: Any) -> list[Any]:
        """Call a method of the executor; return what it did."""
        self.log.clear()
        agreed = entry(*arguments)
        self.executor.check()
        return [*self.log, *([] if agreed in (None, True) else ["refused"])]


A, B, C = (Message(name) for name in "abc")


# -- the equivalents of Storm's StatefulBoltExecutorTest ----------------------------------------------------------------


def test_a_rollback_restores_the_state_and_fails_the_tuples() -> None:  # testRollback
    task = Logged(A, B, C)
    task.executor.ack(A)  # type: ignore[arg-type]
    task.executor.prepare(0)
    task.executor.ack(B)  # type: ignore[arg-type]
    fails = [("fail", name) for name in "abc"]
    assert task.done(task.executor.roll_back) == [("pre_rollback",), "rollback", *fails]
    assert (task.executor.txid, task.executor.held()) == (-1, [])


def test_a_commit_commits_the_state_and_emits_the_acks() -> None:  # testCommit, testPrepareAndCommit
    task = Logged(A, B)
    task.executor.ack(A)  # type: ignore[arg-type]
    assert task.done(task.executor.prepare, 0) == [("prepare", 0)]
    task.executor.ack(B)  # type: ignore[arg-type]
    assert task.executor.prepared == (A,)
    assert task.done(task.executor.commit, 0) == [("commit", 0), ("ack", "a")]
    assert task.executor.prepared is None
    assert task.executor.held() == [B]


def test_a_start_finishes_a_recorded_commit_and_rolls_back_an_unrecorded_prepare() -> None:  # testCommitBeforeInitstate
    task = Logged()
    assert task.done(task.executor.recover, CheckPointState(3, TxState.COMMITTING), False) == [("commit", 3)]
    assert task.executor.txid == 3
    assert task.done(task.executor.recover, CheckPointState(3), False) == ["rollback"]
    assert task.executor.txid == 3


# -- beyond Storm's tests -----------------------------------------------------------------------------------------------


def test_acks_from_a_hook_are_part_of_the_checkpoint() -> None:
    task = Logged(A)
    hook = task.hook

    def acking(method: str, *arguments: int) -> None:
        hook(method, *arguments)
        if method == "pre_prepare":
            task.executor.ack(A)  # type: ignore[arg-type]

    task.hook = acking  # type: ignore[method-assign]
    assert task.executor.agrees("pre_prepare", 0)
    task.executor.prepare(0)
    assert ("ack", "a") in task.done(task.executor.commit, 0)


def test_a_tuple_that_the_bolt_fails_is_failed_at_once_and_only_once() -> None:
    task = Logged(A)
    assert task.done(task.executor.fail, A) == [("fail", "a")]
    task.executor.prepare(0)
    assert task.done(task.executor.roll_back) == [("pre_rollback",), "rollback"]


def test_acking_a_tuple_twice_or_after_a_rollback_is_an_error() -> None:
    task = Logged(A, B)
    task.executor.ack(A)  # type: ignore[arg-type]
    task.executor.roll_back()
    for late in (A, B):
        assert not task.executor.is_open(late)  # type: ignore[arg-type]
        with pytest.raises(AckError, match="forget the tuples at hand in pre_rollback"):
            task.executor.ack(late)  # type: ignore[arg-type]


def test_a_hook_that_refuses_is_reported_and_a_rollback_that_it_refuses_is_not_done() -> None:
    task = Logged(A)
    for hook, txids in (("pre_prepare", (0,)), ("pre_commit", (0,)), ("pre_rollback", ())):
        task.refused = hook
        assert task.done(task.executor.agrees, hook, *txids) == [(hook, *txids), "reported", "refused"]
    assert task.done(task.executor.roll_back) == [("pre_rollback",), "reported", "refused"]
    assert task.executor.held() == [A]


# -- the checkpoint record ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        "x",
        {"format": 2, "txid": 1, "state": "committed"},
        {"format": 1, "txid": 1, "state": "done"},
        *({"format": 1, "txid": txid, "state": "committed"} for txid in (-2, "1", None, True)),
    ],
)
def test_a_damaged_checkpoint_record_is_an_error_and_resets_nothing(data: Any) -> None:
    with pytest.raises(CorruptStateError, match="nothing was reset"):
        CheckPointState.of(data)


def test_a_checkpoint_record_is_plain_data_and_is_read_back_equal() -> None:
    record = CheckPointState(7, TxState.COMMITTING)
    assert CheckPointState.of(record.plain()) == record
    assert CheckPointState.of(None) == CheckPointState(-1, TxState.COMMITTED)


def test_a_checkpoint_that_0_2_0_was_preparing_is_read_as_the_one_before() -> None:
    found = CheckPointState.of({"format": 1, "txid": 4, "state": "preparing", "attempt": 2})
    assert found == CheckPointState(3, TxState.COMMITTED)


# -- CheckpointTask -----------------------------------------------------------------------------------------------------


def topology(tasks: int = 2, kind: Any = None, added: bool = False, **settings: Any) -> Any:
    @bolt(output="n long")
    class Counting:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> Any:
            self.state.put(tuple["n"], self.state.get(tuple["n"], 0) + 1)
            return tuple["n"]

    builder = TopologyBuilder("counting").configure(**{"state_checkpoint_interval": millis(100)} | settings)
    builder.set_spout("source", InputSpout("n long"))
    builder.set_bolt("first", kind or Counting, tasks).fields_grouping("source", "n")
    builder.set_bolt("second", Counting).global_grouping("first")
    if added:
        builder.set_bolt("third", Counting).global_grouping("second")
    return builder.build()


def coordinator_of(cluster: LocalCluster) -> CheckpointTask:
    found = cluster.task_set.coordinator
    assert found is not None
    return found


def test_checkpoints_are_one_interval_apart_even_after_a_delay() -> None:
    clock = VirtualClock()
    with LocalCluster(topology(), clock=clock, batches={"source": []}) as cluster:
        cluster.step()
        coordinator = coordinator_of(cluster)
        due = []
        for late_ms in (0, 30, 0):
            due.append(coordinator.next_deadline_ms())
            clock.set((due[-1] or 0) + late_ms)
            cluster.step()
        assert due == [100, 200, 330]
        assert cluster.result.checkpoints == 3


def test_a_checkpoint_that_takes_longer_than_the_interval_leaves_an_interval_for_tuples() -> None:
    clock = VirtualClock()

    @bolt(output="n long")
    class Slow:
        def init_state(self, state: Any) -> None:
            pass

        def pre_prepare(self, txid: int) -> None:
            clock.advance(millis(250))

        def execute(self, tuple: Any) -> Any:
            return tuple["n"]

    with LocalCluster(topology(1, Slow), clock=clock, batches={"source": []}) as cluster:
        cluster.step()
        clock.set(100)
        rounds = 0
        while clock.now_ms() < 1_400:
            rounds += 1
            cluster.step()
            clock.advance(millis(10))
        assert (rounds, cluster.result.checkpoints) == (31, 4)


def test_no_tuple_is_between_two_bolts_when_states_are_prepared() -> None:
    """A tuple waits before the first bolt; the checkpoint holds it in both bolts, and acks it."""
    states = MemoryStateProvider()
    with LocalCluster(topology(), clock=VirtualClock(), batches={"source": []}, states=states) as cluster:
        cluster.step()
        cluster._feed({"source": [(7,)]})
        cluster.task_set.spouts[0].step(None)
        coordinator_of(cluster).take()
        counted = [states.state(name, task).store.items() for name, task in (("first", 0), ("first", 1), ("second", 0))]
        assert [len(list(items)) for items in counted] in ([1, 0, 1], [0, 1, 1])
        cluster.step()
        cluster.step()
        assert cluster.result.acked == 1


def test_a_commit_that_is_refused_twice_is_retried_after_an_interval_and_no_task_commits_twice() -> None:
    hooks: list[Any] = []

    @bolt(output="n long")
    class Refusing(StatefulBolt):
        def prepare(self, context: Any, collector: Any) -> None:
            super().prepare(context, collector)
            self.task = context.task_index

        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> None:
            self.collector.ack(tuple)

        def pre_commit(self, txid: int) -> None:
            hooks.append(self.task)
            if self.task == 1 and hooks.count(1) < 3:
                raise FailedException("not now")

    clock = VirtualClock()
    with LocalCluster(topology(kind=Refusing), clock=clock, batches={"source": []}) as cluster:
        cluster.step()
        coordinator = coordinator_of(cluster)
        coordinator.take()
        assert coordinator.next_deadline_ms() == clock.now_ms(), "at once"
        cluster.step()
        assert coordinator.next_deadline_ms() == clock.now_ms() + 100, "not in a hot loop"
        assert (coordinator.refused is not None, cluster.result.checkpoints) == (True, 0)
        clock.advance(millis(100))
        cluster.step()
        assert (coordinator.refused is not None, cluster.result.checkpoints) == (False, 1)
    assert hooks == [0, 1, 1, 1]


class Killed(BaseException):
    """The death of the process."""


class DyingStates(MemoryStateProvider):
    """Each write is in `writes`; before write number `left` the process dies."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.writes: list[str] = []

    def state(self, component: str, task: int, name: str = "state") -> Any:
        fresh = f"{component}/{task}/{name}" not in self._states
        state: Any = super().state(component, task, name)
        if fresh:
            for method in ("prepare_commit", "commit"):
                setattr(state, method, self.watched(getattr(state, method), method))
        return state

    def save_record(self, name: str, data: Any) -> None:
        self.watched(super().save_record, str(data.get("state", name)))(name, data)

    def watched(self, call: Any, what: str) -> Any:
        def watched(*arguments: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            self.writes.append(what)
            return call(*arguments)

        return watched


def test_the_checkpoint_record_is_durable_before_the_first_state_is_committed() -> None:
    states = DyingStates()
    with LocalCluster(topology(), clock=VirtualClock(), batches={"source": []}, states=states) as cluster:
        cluster.step()
        states.writes.clear()
        coordinator_of(cluster).take()
    assert states.writes == [*["prepare_commit"] * 3, "definition", "committing", *["commit"] * 3, "committed"]


@pytest.mark.parametrize("tasks", [1, 20])
def test_a_checkpoint_in_a_file_is_two_transactions_and_a_start_after_a_kill_one_more(
    tmp_path: Path, tasks: int
) -> None:
    def commits(cluster: LocalCluster, do: Callable[[], object]) -> int:
        done: list[str] = []
        states: Any = cluster._states
        states.file._db.set_trace_callback(done.append)
        with suppress(Killed):
            do()
        return done.count("COMMIT")

    def killed(txid: int) -> None:
        raise Killed

    path, rows = tmp_path / "states.db", [(n,) for n in range(50)]
    with LocalCluster(topology(tasks), clock=VirtualClock(), batches={"source": []}, state_path=path) as cluster:
        cluster.run_batch({"source": rows})
        cluster._feed({"source": rows})
        assert commits(cluster, cluster.checkpoint) == 2
        coordinator_of(cluster)._executors[-1].commit = killed  # type: ignore[method-assign]
        cluster._feed({"source": rows})
        assert commits(cluster, cluster.checkpoint) == 1, "the record COMMITTING"
    with LocalCluster(topology(tasks), clock=VirtualClock(), batches={"source": []}, state_path=path) as cluster:
        assert commits(cluster, cluster.step) == 2, "the states, and the record COMMITTED behind pre_commit"
        counted = [dict(task.state.items()) for task in cluster.tasks if isinstance(task, StatefulBoltTask)]
        assert sum(sum(times.values()) for times in counted) == 2 * 3 * len(rows)


@pytest.mark.parametrize("write", range(8))
def test_after_a_kill_at_any_write_of_a_checkpoint_all_states_restart_with_one_txid(write: int) -> None:
    states = DyingStates()
    with LocalCluster(topology(), clock=VirtualClock(), batches={"source": [[(1,), (2,)]]}, states=states) as cluster:
        cluster.run(drain=False)
        before = cluster.result.checkpoints
        cluster._feed({"source": [(1,), (2,)]})
        cluster.task_set.spouts[0].step(None)
        states.left = write
        with pytest.raises(Killed):
            coordinator_of(cluster).take()
    states.left = -1
    recorded = write > 3  # the fourth write is the record that decides
    with LocalCluster(topology(), clock=VirtualClock(), batches={"source": []}, states=states) as cluster:
        cluster.step()
        tasks = [task for task in cluster.tasks if isinstance(task, StatefulBoltTask)]
        assert {task.stateful.txid for task in tasks} == {before - 1 + recorded}
        times = [times for task in tasks for _, times in task.state.items()]
        assert times == [1 + recorded] * 4
        assert coordinator_of(cluster).record == CheckPointState(before - 1 + recorded)


@pytest.mark.parametrize("write", range(10))
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_bolt_added_after_a_kill_at_any_write_starts_empty_and_the_others_continue(
    checkpoints: int, write: int
) -> None:
    """Also if the restart dies at any of its writes: with the bolt and without it the states belong to one checkpoint."""
    states = DyingStates()
    with LocalCluster(topology(), clock=VirtualClock(), batches={"source": []}, states=states) as cluster:
        cluster.step()
        for _ in range(checkpoints):
            coordinator_of(cluster).take()
        cluster._feed({"source": [(1,), (2,)]})
        cluster.task_set.spouts[0].step(None)
        states.left, states.writes = write, []
        with suppress(Killed):
            coordinator_of(cluster).take()
    counted = int("committing" in states.writes)
    for second in range(3):  # the second process dies in its first writes, the third continues
        states.left = second if second < 2 else -1
        with (
            suppress(Killed),
            LocalCluster(topology(added=True), clock=VirtualClock(), batches={"source": []}, states=states) as cluster,
        ):
            cluster.step()
            if second == 2:
                assert coordinator_of(cluster).record == CheckPointState(checkpoints + counted - 1)
                cluster._feed({"source": [(3,)]})
                cluster.step()
                assert cluster.checkpoint()
    wanted = {1: counted, 2: counted, 3: 1}
    assert dict(states.state("second", 0).items()) == {n: times for n, times in wanted.items() if times}
    assert dict(states.state("third", 0).items()) == {3: 1}


@pytest.mark.parametrize("write", range(10))
def test_each_task_gets_pre_commit_of_every_recorded_checkpoint_even_after_a_kill_at_any_write(write: int) -> None:
    heard: list[Any] = []

    @bolt(output="n long")
    class Hearing(StatefulBolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.task, self.collector = context.task_index, collector

        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> None:
            self.collector.ack(tuple)

        def pre_commit(self, txid: int) -> None:
            heard.append((self.task, txid))

    states = DyingStates()
    with LocalCluster(topology(kind=Hearing), clock=VirtualClock(), batches={"source": []}, states=states) as cluster:
        cluster.step()
        states.left, states.writes = write, []
        with suppress(Killed):
            coordinator_of(cluster).take()
    states.left = -1
    with LocalCluster(topology(kind=Hearing), clock=VirtualClock(), batches={"source": []}, states=states) as cluster:
        cluster.step()
        assert coordinator_of(cluster).record == CheckPointState(0 if "committing" in states.writes else -1)
    assert set(heard) == ({(0, 0), (1, 0)} if "committing" in states.writes else set())
    done = write == 9
    assert len(heard) <= 2 * (2 - done), "twice at most, once where all was done"


def test_a_start_that_cannot_finish_a_commit_reports_the_recorded_checkpoint() -> None:
    @bolt(output="n long")
    class Refusing(StatefulBolt):
        def init_state(self, state: Any) -> None:
            self.state = state

        def prepare(self, context: Any, collector: Any) -> None:
            self.collector = collector

        def execute(self, tuple: Any) -> None:
            self.collector.ack(tuple)

        def pre_commit(self, txid: int) -> None:
            raise FailedException("not now")

    states = MemoryStateProvider()
    for _ in range(2):
        plan = topology(kind=Refusing, max_attempts=3)
        with (
            LocalCluster(plan, clock=VirtualClock(), batches={"source": [[(1,)]]}, states=states) as cluster,
            pytest.raises(CheckpointError, match="checkpoint 0 is recorded, and is committed then"),
        ):
            cluster.run()
        assert states.record("checkpoint")["state"] == "committing"


def test_states_with_another_txid_than_the_record_are_refused() -> None:
    states = MemoryStateProvider()
    with LocalCluster(topology(), clock=VirtualClock(), batches={"source": [[(1,)]]}, states=states) as cluster:
        cluster.run()
    states.save_record("checkpoint", CheckPointState(0).plain())
    with (
        LocalCluster(topology(), clock=VirtualClock(), batches={"source": []}, states=states) as cluster,
        pytest.raises(CorruptStateError, match="but the topology goes on from 0"),
    ):
        cluster.step()
    states.save_record("checkpoint", CheckPointState(7, TxState.COMMITTING).plain())
    with (
        LocalCluster(topology(), clock=VirtualClock(), batches={"source": []}, states=states) as cluster,
        pytest.raises(CheckpointError, match="was told to commit txid 7"),
    ):
        cluster.step()


@bolt(output="n long")
class Buffering(StatefulBolt):
    """Emits its buffer in pre_prepare, as a batching writer does, and keeps in its state what it has emitted."""

    refuses = ""

    def init_state(self, state: Any) -> None:
        self.state: Any = state
        self.held: list[Any] = []

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        self.collector = collector

    def execute(self, tuple: Any) -> None:
        self.held.append(tuple)

    def pre_prepare(self, txid: int) -> None:
        for tuple in self.held:
            self.collector.emit((tuple["n"],), anchors=tuple)
            self.collector.ack(tuple)
            self.state.put(tuple["n"], True)
        self.held = []
        if Buffering.refuses == "first":
            Buffering.refuses = ""
            raise FailedException("not now")


@bolt(output="n long, times long")
class Behind:
    def init_state(self, state: Any) -> None:
        self.state: Any = state

    def execute(self, tuple: Any) -> Any:
        times = self.state.get(tuple["n"], 0) + 1
        self.state.put(tuple["n"], times)
        return tuple["n"], times

    def pre_prepare(self, txid: int) -> None:
        if Buffering.refuses == "second":
            Buffering.refuses = ""
            raise FailedException("not now")


def buffered(provider: MemoryStateProvider, **batches: Any) -> LocalCluster:
    builder = TopologyBuilder("buffered").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("first", Buffering).global_grouping("in")
    builder.set_bolt("second", Behind).global_grouping("first")
    return LocalCluster(builder.build(), clock=VirtualClock(), states=provider, **batches)


def test_tuples_that_a_hook_emits_are_in_the_downstream_states_of_the_same_checkpoint() -> None:
    provider = DyingStates()
    with buffered(provider, batches={"in": []}) as cluster:
        cluster.step()
        cluster._feed({"in": [(1,), (2,)]})
        for _ in range(2):
            cluster.task_set.spouts[0].step(None)
        provider.left = 4  # two states are prepared, and recorded as committing
        with pytest.raises(Killed):
            coordinator_of(cluster).take()
    provider.left = -1
    with buffered(provider, batches={"in": []}) as cluster:
        cluster.run()
    assert dict(provider.state("first", 0).items()) == {1: True, 2: True}
    assert dict(provider.state("second", 0).items()) == {1: 1, 2: 1}


@pytest.mark.parametrize("who", ["first", "second"])
def test_tuples_that_a_hook_emitted_before_a_refused_prepare_are_rolled_back(who: str) -> None:
    Buffering.refuses = who
    provider = MemoryStateProvider()
    with buffered(provider, batches={"in": [[(1,), (2,)]]}) as cluster:
        result = cluster.run()
    assert Buffering.refuses == ""
    assert sorted(set(result["second"])) == [(1, 1), (2, 1)]
    assert dict(provider.state("second", 0).items()) == {1: 1, 2: 1}
