"""Plans by section: stream, batch and commit; run stage by stage they give the result of TridentRun."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trident.test_trident_operations import BATCHES, PARTED, Given, Row, assume_few, pipelines, several
from tests.trident.test_trident_stream_protocol import COMMITTING
from windowing.errors import ConfigError
from windowing.execution.plan import Section, Stage, execution_plan
from windowing.local.trident_cluster import TridentCluster
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.trident import builtins as b
from windowing.trident.kinds import Guarantee, Phase, StateType, TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.processors import ProcessorContext
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import ExchangeWriter, GroupBatch, Subtopology, TridentRun
from windowing.windows.measures import count


def plan_of(steps: list[Any], tasks: int) -> TridentPlan:
    topology = TridentTopology("random")
    stream = topology.new_stream("in", Given()).parallelism_hint(tasks)
    several(stream, steps, topology, lambda: tasks).sink("out").parallelism_hint(tasks)
    return topology.build()


class StageRun:
    """The slow reference driver of stages: one stage after the other, task by task; windows and states last from batch to batch."""

    def __init__(self, plan: TridentPlan) -> None:
        self.plan = plan
        plan.check()
        states = {
            id: [state.factory.make_state(part, state.partitions) for part in range(state.partitions)]
            for id, state in plan.states.items()
        }
        self.tasks = {
            id: [self._task(stage, task, states) for task in range(stage.parallelism)]
            for id, stage in plan.stages.items()
            if not stage.is_spout
        }

    def _task(self, stage: Stage, task: int, states: Any) -> Subtopology:
        made = Subtopology(self.plan, stage.id, task, {id: states[id][task] for id in stage.states})
        made.prepare()
        return made

    def batch(self, txid: int, rows: list[Row]) -> list[Row]:
        facts = ProcessorContext(TransactionAttempt(txid, 0), as_of=txid - 1)
        waiting: dict[tuple[str, int], list[tuple[Any, list[Row]]]] = {}
        largest: dict[str, list[Any]] = {}
        sunk: list[Row] = []

        def send(exchange: Any, task: int, what: list[Row]) -> None:
            outlet = ExchangeWriter(self.plan, task, facts)
            for target, part in outlet.route(exchange, what).items():
                waiting.setdefault((exchange.target, target), []).append((exchange, part))
            if outlet.largest:
                largest.setdefault(exchange.target, []).append((exchange, outlet.largest[exchange.id]))

        spout = self.plan.spouts[0]
        source = self.plan.stage_of(spout.number)
        for task in range(source.parallelism):
            for exchange in self.plan.out_of(source.id):
                send(exchange, task, rows[task :: source.parallelism])
        for stage, tasks in self.tasks.items():
            for number, task in enumerate(tasks):
                batch = GroupBatch(task, self.plan.batch_groups[spout.number], facts)
                for exchange, part in waiting.pop((stage, number), []):
                    batch.execute(exchange, part)
                for exchange, told in largest.get(stage, []):
                    batch.observe(exchange, told)
                batch.finish(Phase.PROCESS)
                batch.finish(Phase.COMMIT)
                emitted = batch.take()
                for each, found in emitted.exchanges.items():
                    send(self.plan.exchanges[each], number, found)
                sunk += emitted.sinks.get("out", [])
        assert not waiting
        return sunk


@settings(deadline=None)
@given(COMMITTING | pipelines(PARTED), BATCHES, st.integers(1, 3))
def test_running_stage_by_stage_equals_running_the_groups(
    steps: list[Any], batches: list[list[Row]], tasks: int
) -> None:
    assume_few(steps, batches, tasks)
    whole, cut = TridentRun(plan_of(steps, tasks)), StageRun(plan_of(steps, tasks).by_section())
    for txid, rows in enumerate(batches, 1):
        assert sorted(cut.batch(txid, rows)) == sorted(whole.batch({"in": rows})["out"])


def test_a_word_count_has_batch_and_commit_sections() -> None:
    topology = TridentTopology("words")
    words = topology.new_stream("in", Given()).flat_map(lambda row: [(row.k, 1)])
    counts = words.group_by("k").persistent_aggregate(map_state(MemoryStore(), "c"), None, b.Count(), "n long")
    counts.parallelism_hint(2).new_values_stream().filter(lambda row: row.n > 1).sink("out")
    plan = execution_plan(topology)
    plan.check()
    assert [
        (stage.id, stage.section, stage.depth, list(stage.tasks), len(stage.operators))
        for stage in plan.stages.values()
        if not stage.is_spout
    ] == [
        ("b_0", Section.BATCH, 0, [], 2),
        ("b_1", Section.COMMIT, 1, [0, 1], 4),
    ]
    assert plan.depths(Section.STREAM) == []
    assert [(task.component, task.task) for task in plan.tasks_at(1)] == [("b_1", 0), ("b_1", 1)]


class Tally(b.Count):
    """A user-defined combiner: it may fail an attempt."""


@pytest.mark.parametrize(
    ("kind", "aggregator", "key", "together"),
    [
        (StateType.OPAQUE, b.Count(), "k", True),
        (StateType.TRANSACTIONAL, b.Count(), "k", True),
        (StateType.NON_TRANSACTIONAL, b.Count(), "k", False),
        (StateType.OPAQUE, Tally(), "k", True),
        (StateType.OPAQUE, b.Count(), None, False),
    ],
)
def test_combining_by_key_runs_in_the_commit_section_of_a_state_that_distinguishes_attempts(
    kind: StateType, aggregator: Any, key: str | None, together: bool
) -> None:
    topology = TridentTopology("words")
    words = topology.new_stream("in", Given())
    grouped = words if key is None else words.group_by(key)
    state = StateSpec(map_state(MemoryStore(), "c", kind), accept=Guarantee.BEST_EFFORT)
    grouped.persistent_aggregate(state, None, aggregator, "n long")
    plan = execution_plan(topology)
    plan.check()
    assert [stage.section for stage in plan.stages.values() if stage.depth] == (
        [Section.COMMIT] if together else [Section.BATCH, Section.COMMIT]
    )


def test_operations_before_a_window_are_in_the_stream_section_and_those_after_it_are_not() -> None:
    topology = TridentTopology("windows")
    rows = topology.new_stream("in", Given()).filter(lambda row: True)
    fired = rows.shuffle().map(lambda row: (row.k, row.n), "k string, n long").global_()
    sums = fired.tumbling_window(count(3), "n", b.Sum(), "n long", timestamp="n").map(lambda row: row.n, "n long")
    sums.shuffle().filter(lambda row: True).sink("out")
    rows.shuffle().filter(lambda row: True).sink("others")
    plan = execution_plan(topology.build())
    plan.check()
    assert plan.depths(Section.STREAM)[-1] < plan.depths(Section.BATCH)[0]
    assert {stage.section for stage in plan.stages.values() if stage.keeps_window} == {Section.STREAM}


def test_an_operation_with_several_readers_in_a_later_section_has_one_exchange_to_all_of_them() -> None:
    topology = TridentTopology("two")
    rows = topology.new_stream("in", Given()).shuffle().map(lambda row: (row.k, row.n), "k string, n long")
    for name in ("a", "b"):
        rows.partition_persist(map_state(MemoryStore(), name), "n", Updates())
    plan = topology.build()
    cut = plan.by_section()
    cut.check()
    assert [len(stage.operators) for stage in plan.stages.values()] == [1, 3]
    (inner,) = [each for each in cut.exchanges if cut.stages[each.stage].component == "b_0"]
    assert [number for number, _ in inner.targets] == list(cut.stages[inner.target].operators)


class Updates:
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


def test_a_plan_by_section_is_refused_by_the_runners() -> None:
    topology = TridentTopology("shown")
    topology.new_stream("in", Given()).sink("out")
    with pytest.raises(
        ConfigError, match=r"the plan of 'shown' as execution_plan\(\) shows it.*what its build\(\) returns"
    ):
        TridentCluster(execution_plan(topology))
