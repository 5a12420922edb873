"""Plans cut into units: what works with the spout, between, and in the commit; run unit by unit they give what TridentRun gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trident.test_trident_operations import BATCHES, PARTED, Given, Row, assume_few, pipelines, several
from tests.trident.test_trident_stream_protocol import COMMITTING
from windowing.execution.stages import Section
from windowing.execution.trident_stages import TridentStage, TridentStages
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.trident import builtins as b
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.processors import ProcessorContext
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import ExchangeWriter, Subtopology, TridentRun
from windowing.windows.measures import count


def plan_of(steps: list[Any], tasks: int) -> TridentPlan:
    topology = TridentTopology("random")
    stream = topology.new_stream("in", Given()).parallelism_hint(tasks)
    several(stream, steps, topology, lambda: tasks).sink("out").parallelism_hint(tasks)
    return topology.build()


class UnitRun:
    """The slow, obvious driver of units: level by level, task by task; windows and states live from batch to batch."""

    def __init__(self, plan: TridentPlan) -> None:
        self.plan, self.units = plan, TridentStages(plan)
        self.units.check()
        states = {
            id: [state.spec.factory.make_state(part, state.partitions) for part in range(state.partitions)]
            for id, state in plan.states.items()
        }
        self.tasks = {
            id(unit): [self._task(unit, task, states) for task in range(unit.group.parallelism)]
            for unit in self.units.units
        }

    def _task(self, unit: TridentStage, task: int, states: Any) -> Subtopology:
        held = {id: states[id][task] for id in unit.states}
        made = Subtopology(self.plan, unit.group.id, task, held, nodes=unit.nodes, out=unit.out)
        made.prepare()
        return made

    def batch(self, txid: int, rows: list[Row]) -> list[Row]:
        facts = ProcessorContext(TransactionAttempt(txid, 0), as_of=txid - 1)
        waiting: dict[tuple[int, int], list[tuple[Any, list[Row]]]] = {}
        largest: dict[int, list[Any]] = {}
        sunk: list[Row] = []

        def send(link: Any, task: int, what: list[Row]) -> None:
            outlet = ExchangeWriter(self.plan, link, task).start_batch(facts)
            for target, part in outlet.route(what).items():
                waiting.setdefault((id(self.units.unit_of[link.id]), target), []).append((link, part))
            if outlet.largest:
                largest.setdefault(id(self.units.unit_of[link.id]), []).append((link, outlet.largest))

        spout = self.plan.spouts[0]
        parallelism = self.plan.group_of(spout.number).parallelism
        for task in range(parallelism):
            for link in self.units.out_of(spout.number):
                send(link, task, rows[task::parallelism])
        for unit in self.units.units:
            for number, task in enumerate(self.tasks[id(unit)]):
                batch = task.start_batch(self.plan.batch_groups[spout.number], facts)
                for link, part in waiting.pop((id(unit), number), []):
                    batch.execute(link, part)
                for link, told in largest.get(id(unit), []):
                    batch.observe(link, told)
                batch.finish_batch()
                batch.commit_batch()
                emitted = batch.take()
                for each, found in emitted.exchanges.items():
                    send(self.units.links[each], number, found)
                sunk += emitted.sinks.get("out", [])
        assert not waiting
        return sunk


@settings(deadline=None)
@given(COMMITTING | pipelines(PARTED), BATCHES, st.integers(1, 3))
def test_units_one_after_the_other_give_what_the_groups_give(
    steps: list[Any], batches: list[list[Row]], tasks: int
) -> None:
    assume_few(steps, batches, tasks)
    whole, cut = TridentRun(plan_of(steps, tasks)), UnitRun(plan_of(steps, tasks))
    for txid, rows in enumerate(batches, 1):
        assert sorted(cut.batch(txid, rows)) == sorted(whole.batch({"in": rows})["out"])


def test_sections_of_a_word_count() -> None:
    topology = TridentTopology("words")
    words = topology.new_stream("in", Given()).flat_map(lambda row: [(row.k, 1)])
    counts = words.group_by("k").persistent_aggregate(map_state(MemoryStore(), "c"), None, b.Count(), "n long")
    counts.parallelism_hint(2).new_values_stream().filter(lambda row: row.n > 1).sink("out")
    units = TridentStages(topology.build())
    units.check()
    assert [(unit.section.name, unit.level, unit.first, len(unit.nodes)) for unit in units.units] == [
        ("BATCH", 0, 0, 2),
        ("BATCH", 1, 0, 1),
        ("COMMIT", 2, 2, 3),
    ]
    assert units.levels(Section.STREAM) == []
    assert [place.task for place in units.on_level(2)] == [0, 1]


def test_what_leads_to_a_window_is_of_the_stream_and_what_follows_is_not() -> None:
    topology = TridentTopology("windows")
    rows = topology.new_stream("in", Given()).filter(lambda row: True)
    fired = rows.shuffle().map(lambda row: (row.k, row.n), "k string, n long").global_()
    sums = fired.tumbling_window(count(3), "n", b.Sum(), "n long", timestamp="n").map(lambda row: row.n, "n long")
    sums.shuffle().filter(lambda row: True).sink("out")
    rows.shuffle().filter(lambda row: True).sink("others")
    units = TridentStages(topology.build())
    units.check()
    assert units.levels(Section.STREAM)[-1] < units.levels(Section.BATCH)[0]
    assert {unit.section for unit in units.units if unit.keeps_window} == {Section.STREAM}
