"""A hook that raises FailedException refuses the checkpoint: a running cluster rolls back and continues, and loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windowing import count, millis, seconds, sliding, tumbling, windowed_bolt
from windowing.errors import BoltError, CheckpointError, DrainedCheckpointError, FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.queues import SqliteQueue
from windowing.stores.states import MemoryStateProvider
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout, Spout
from windowing.topology.decorators import bolt, spout


class Refusing:
    """A bolt whose hooks refuse as often as `refusals` says; its calls are in `life`."""

    refusals: dict[str, int]
    life: list[str]

    def init_state(self, state: Any) -> None:
        self.state = state
        self.life.append("init_state")

    def pre_prepare(self, txid: int) -> None:
        self.hook("pre_prepare")

    def pre_commit(self, txid: int) -> None:
        self.hook("pre_commit")

    def pre_rollback(self) -> None:
        self.hook("pre_rollback")

    def hook(self, name: str) -> None:
        left = self.refusals.get(name, 0)
        self.life.append(f"{name} refused" if left else name)
        if left:
            self.refusals[name] = left - 1
            raise FailedException("not now")


def counting(refusals: dict[str, int], life: list[str] | None = None) -> Any:
    told = [] if life is None else life

    @bolt(output="n long, times long")
    class Counting(Refusing):
        def __init__(self) -> None:
            self.refusals, self.life = refusals, told

        def execute(self, tuple: Any) -> Any:
            times = self.state.get(tuple["n"], 0) + 1
            self.state.put(tuple["n"], times)
            return tuple["n"], times

    return Counting


def topology_of(declared: Any, source: Any = None, tasks: int = 1, **settings: Any) -> Any:
    builder = TopologyBuilder("rollbacks").configure(**{"state_checkpoint_interval": seconds(10)} | settings)
    builder.set_spout("source", source or InputSpout("n long"))
    builder.set_bolt("count", declared, tasks).fields_grouping("source", "n")
    return builder.build()


def test_a_refused_prepare_is_rolled_back_and_its_tuples_are_replayed() -> None:
    life: list[str] = []
    states = MemoryStateProvider()
    topology = topology_of(counting({"pre_prepare": 1}, life))
    result = run_topology(topology, {"source": [[(1,), (1,)]]}, clock=VirtualClock(), states=states)
    undone = ["init_state", "pre_prepare refused", "pre_rollback", "init_state"]
    assert life == [*undone, "pre_prepare", "pre_commit", "pre_prepare", "pre_commit"]
    assert dict(states.state("count", 0).items()) == {1: 2}
    assert result["count"] == [(1, 1), (1, 2)] * 2  # emitted tuples stay emitted
    assert (result.acked, result.failures, result.checkpoints) == (2, 2, 2)
    assert [(each.component, str(each.error.__cause__)) for each in result.errors] == [("count", "[FAILED] not now")]


def test_a_running_cluster_rolls_back_and_replays_its_pending_tuples() -> None:
    @spout(output="n long")
    def numbers() -> Any:
        yield from (1, 1, 2)

    states = MemoryStateProvider()
    topology = topology_of(
        counting({"pre_prepare": 2}), numbers, state_checkpoint_interval=millis(500), retry_delay=millis(100)
    )
    with LocalCluster(topology, clock=VirtualClock(), states=states) as cluster:
        cluster.run_for(millis(510))
        assert (cluster.result.failures, cluster.result.acked, cluster.result.checkpoints) == (3, 0, 0)
        cluster.run_for(millis(500))
        assert (cluster.result.failures, cluster.result.acked, cluster.result.checkpoints) == (6, 0, 0)
        cluster.run_for(millis(500))
        assert (cluster.result.failures, cluster.result.acked, cluster.result.checkpoints) == (6, 3, 1)
    assert dict(states.state("count", 0).items()) == {1: 2, 2: 1}


def test_a_refused_commit_is_retried_and_fails_no_tuple() -> None:
    life: list[str] = []
    result = run_topology(topology_of(counting({"pre_commit": 2}, life)), {"source": [[(1,)]]}, clock=VirtualClock())
    again = ["pre_commit refused", "pre_commit refused", "pre_commit"]
    assert life[:5] == ["init_state", "pre_prepare", *again]
    assert (result["count"], result.acked, result.failures) == ([(1, 1)], 1, 0)


def test_a_refused_rollback_is_retried() -> None:
    life: list[str] = []
    result = run_topology(
        topology_of(counting({"pre_prepare": 1, "pre_rollback": 2}, life)), {"source": [[(1,)]]}, clock=VirtualClock()
    )
    assert life[1:6] == ["pre_prepare refused", *["pre_rollback refused"] * 2, "pre_rollback", "init_state"]
    assert (result["count"], result.acked, result.failures) == ([(1, 1), (1, 1)], 1, 1)


def test_a_hook_that_always_refuses_ends_the_cluster_after_max_attempts_refusals() -> None:
    topology = topology_of(counting({"pre_prepare": 100}), max_attempts=3)
    with LocalCluster(topology, batches={"source": [[(1,)]]}, clock=VirtualClock()) as cluster:
        with pytest.raises(CheckpointError, match="checkpoint 0 was refused at PREPARE, which makes 3 refusals"):
            cluster.run()
        assert len(cluster.result.errors) == 3


def test_the_count_of_refusals_restarts_with_each_commit() -> None:
    refusals = {"pre_prepare": 2}
    topology = topology_of(counting(refusals), max_attempts=3)
    with LocalCluster(topology, batches={"source": []}, clock=VirtualClock()) as cluster:
        for n in range(3):
            refusals["pre_prepare"] = 2
            cluster.run_batch({"source": [(n,)]})
        assert (cluster.result.checkpoints, cluster.result.acked) == (3, 3)


def test_any_other_error_of_a_hook_ends_the_cluster() -> None:
    @bolt()
    class Breaking:
        def init_state(self, state: Any) -> None: ...

        def execute(self, tuple: Any) -> None: ...

        def pre_prepare(self, txid: int) -> None:
            raise OSError("no disk")

    with pytest.raises(BoltError, match="bolt 'count' failed in pre_prepare: OSError: no disk"):
        run_topology(topology_of(Breaking), {"source": [[(1,)]]}, clock=VirtualClock())


def test_a_checkpoint_is_counted_when_its_commit_is_done() -> None:
    refusals: dict[str, int] = {}
    with LocalCluster(topology_of(counting(refusals)), batches={"source": []}, clock=VirtualClock()) as cluster:
        cluster.step()
        coordinator = cluster.task_set.coordinator
        assert coordinator is not None
        refusals["pre_commit"] = 1
        coordinator.take()
        assert (cluster.result.checkpoints, coordinator.refused is not None) == (0, True)
        coordinator.take()
        assert (cluster.result.checkpoints, coordinator.refused is not None) == (1, False)


@settings(max_examples=settings().max_examples // 2)
@given(
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=25),
    refusals=st.lists(st.sampled_from(["pre_prepare", "pre_commit", "pre_rollback"]), max_size=8),
    tasks=st.integers(1, 3),
    pages=st.booleans(),
    seed=st.one_of(st.none(), st.integers(0, 1000)),
)
def test_whichever_hook_refuses_states_and_windows_hold_each_tuple_once(
    rows: list[int], refusals: list[str], tasks: int, pages: bool, seed: int | None
) -> None:
    """A state that counts, and a checkpointed window that puts new tuples into its state, refuse now and then."""
    left = {"pre_prepare": 0, "pre_commit": 0, "pre_rollback": 0}
    for refusal in refusals:
        left[refusal] += 1
    kept = {"max_events_in_memory": 1000} if pages else {}

    @spout(output="id long, n long")
    class Source(Spout):
        def open(self, context: Any, collector: Any) -> None:
            super().open(context, collector)
            self.left = list(enumerate(rows))

        def next_tuple(self) -> None:
            if self.left:
                id, n = self.left.pop(0)
                self.collector.emit((id, n), message_id=id)

    @windowed_bolt(length=count(3), slide=count(2), output="ids array<long>", message_id="id", name="recent", **kept)
    class Recent(Refusing):
        def __init__(self) -> None:
            self.refusals, self.life = left, []

        def execute(self, window: Any) -> None:
            for row in window.get_new():
                self.state.put(row["id"], self.state.get(row["id"], 0) + 1)

    builder = TopologyBuilder("refusing").configure(
        state_checkpoint_interval=millis(100), max_spout_pending=15, max_attempts=None, retry_delay=millis(20)
    )
    builder.set_spout("source", Source)
    builder.set_bolt("count", counting(left), tasks).fields_grouping("source", "n")
    builder.set_bolt("recent", Recent, tasks).fields_grouping("source", "n")
    states = MemoryStateProvider()
    clock = VirtualClock()
    with LocalCluster(builder.build(), clock=clock, seed=seed, states=states) as cluster:
        for _ in range(3):
            cluster.run_for(millis(60))
        result = cluster.run()
    assert (result.acked, result.dead_letters, left) == (
        len(rows),
        [],
        dict.fromkeys(left, 0) | {"pre_rollback": left["pre_rollback"]},
    )
    counted: dict[int, int] = {}
    shown: dict[int, int] = {}
    for task in range(tasks):
        counted |= dict(states.state("count", task).items())
        shown |= dict(states.state("recent", task).items())
    assert counted == {n: rows.count(n) for n in rows}
    assert shown == dict.fromkeys(range(len(rows)), 1)


@pytest.mark.parametrize("pages", [False, True])
def test_a_drain_waits_for_a_recovery_whose_retry_is_pending(pages: bool) -> None:
    left = {"pre_prepare": 0, "pre_rollback": 0}
    kept = {"max_events_in_memory": 1000} if pages else {}

    @windowed_bolt(length=count(10), slide=count(10), output="ids array<long>", message_id="id", name="recent", **kept)
    class Recent(Refusing):
        def __init__(self) -> None:
            self.refusals, self.life = left, []

        def execute(self, window: Any) -> Any:
            return ([row["id"] for row in window.get()],)

    builder = TopologyBuilder("draining").configure(state_checkpoint_interval=seconds(10))
    builder.set_spout("source", InputSpout("id long"))
    builder.set_bolt("recent", Recent, 2).fields_grouping("source", "id")
    with LocalCluster(builder.build(), batches={"source": []}, clock=VirtualClock()) as cluster:
        cluster.run_batch({"source": [(id,) for id in range(6)]})
        left.update(pre_prepare=1, pre_rollback=2)
        coordinator: Any = cluster.task_set.coordinator
        coordinator.take()
        while cluster.step():
            pass
        assert coordinator.refused is not None, "its rollback was refused, and is tried again later"
        cluster.drain()
        assert (left["pre_rollback"], coordinator.refused is not None) == (0, False)
        assert sorted(id for (ids,) in cluster.result["recent"][-2:] for id in ids) == list(range(6))
        assert [task.executor.closed for task in cluster.task_set.windowed] == [True, True]


def test_without_max_attempts_a_hook_that_always_refuses_ends_the_cluster_too() -> None:
    topology = topology_of(counting({"pre_prepare": 10_000}), max_attempts=None)
    with (
        LocalCluster(topology, batches={"source": [[(1,)]]}, clock=VirtualClock()) as cluster,
        pytest.raises(
            CheckpointError, match=r"1000 refusals without a commit, as many as there may be without a limit"
        ),
    ):
        cluster.run()


@pytest.mark.parametrize("stored", [{"message_id": "n"}, {"max_events_in_memory": 1_000}])
def test_a_rollback_to_the_drain_of_the_same_run_is_not_reported_as_windows_of_an_earlier_run(stored: Any) -> None:
    refuses: list[bool] = []

    @sliding(count(2), count(2), output="n long", **stored)
    class Pairs:
        def init_state(self, state: Any) -> None:
            pass

        def execute(self, window: Any) -> int:
            return len(window)

        def pre_prepare(self, txid: int) -> None:
            if refuses and refuses.pop():
                raise FailedException("not now")

    states, batches = MemoryStateProvider(), {"source": [[(1,), (2,), (3,)]]}
    with LocalCluster(topology_of(Pairs), batches, clock=VirtualClock(), states=states) as cluster:
        result = cluster.run()
        refuses.append(True)
        assert not cluster.checkpoint()
        assert (result["count"], result.acked, result.late) == ([(2,), (1,)], 3, {})
        assert ["not now" in str(error.error) for error in result.errors] == [True]
    with LocalCluster(topology_of(Pairs), {"source": []}, clock=VirtualClock(), states=states) as cluster:
        assert [type(error.error) for error in cluster.run().errors] == [DrainedCheckpointError]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("kept", [{}, {"max_events_in_memory": 1_000}])
def test_rows_of_a_queue_in_order_are_not_late_after_rollbacks(kept, seed, tmp_path):
    """While what a rollback failed waits to be emitted again, newer rows would move the watermark past it."""

    def run(refusals):
        @tumbling(
            seconds(1),
            timestamp="at",
            message_id="id",
            watermark_interval=millis(1),
            output="until long, n long",
            **kept,
        )
        class Counts:
            def init_state(self, state):
                pass

            def execute(self, window):
                return window.end_timestamp, len(window)

            def pre_prepare(self, txid):
                if txid > 0 and refusals:
                    raise FailedException(refusals.pop())

        builder = TopologyBuilder("ordered").configure(enable_message_timeouts=False, max_attempts=3)
        builder.set_spout("rows", InputSpout("at long, id long"))
        builder.set_bolt("counts", Counts).global_grouping("rows")
        queue = SqliteQueue(tmp_path / f"{len(refusals)}.db", "at long, id long", max_rows=40)
        queue.put([(100 * n, n) for n in range(1_000)])
        sources, clock = {"rows": queue}, VirtualClock()
        with LocalCluster(
            builder.build(), sources=sources, clock=clock, seed=seed, states=MemoryStateProvider()
        ) as cluster:
            for _ in range(4):
                cluster.run_for(millis(2))
                cluster.task_set.coordinator.take()
            result = cluster.run()
        assert (result.late, result.dead_letters, len(queue), refusals) == ({}, [], 0, [])
        return dict(sorted(result["counts"], key=lambda row: row[1]))

    assert run([]) == run(["not now"]) == run(["not now"] * 2)
