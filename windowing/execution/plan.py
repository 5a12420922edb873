"""ExecutionPlan: the input of a driver, as frozen plain data: stages, the exchanges between them, and sinks; and its compilers for
topologies and windowed bolts.

    sentences ×1: sentences, split
      split == fields(word) ==> count
    count ×4, stream, depth 1, tasks 0 to 3, windows: count
      count == global ==> report
    report ×1, stream, depth 2, task 4: report

    stage      operators that run together in each of its tasks
    task       one of the instances of a stage; it has its windows, and its part of the states
    exchange   the tuples of an operator on their way to another stage, with a grouping
    depth      a driver that passes a whole batch through the plan runs it depth by depth: a stage reads only stages above it.
               The stages of depth 0 run where their source is read, in tasks that the driver numbers
    section    the part of such a batch in which a stage runs

| section | its stages | why |
|---|---|---|
| STREAM | windows, and all stages before one; all of a topology | they keep data from batch to batch: the engine's state |
| BATCH | the other stages that do not read new state values | they may fail and be retried before anything is written |
| COMMIT | the writers of states, and the readers of their new values | all other work of the batch is complete |

Laws: a bolt is *keyed* if it matters which of its tasks gets a tuple: it has windows or a state, or a grouping chooses the task
(fields, partialKey, all, global, direct, custom). A keyed bolt begins a stage, after an exchange, and is in no other. Any other
bolt is *fused*: it runs where its tuples are made, in one stage or in several. A stage is one deeper than the deepest one that
makes one of its inputs, so rows flow only downwards for any shape of topology, and each component gets each tuple once. The other
laws are in `check`. The compiler of Trident is trident/planner.py with `TridentPlan.by_section`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.types import Schema
from windowing.topology.bolts import WindowedBolt
from windowing.topology.decorators import bolt_of
from windowing.topology.groupings import FieldsGrouping, GlobalGrouping, Grouping, ShuffleGrouping
from windowing.topology.pictures import Arrow, Box, mermaid, svg_of
from windowing.topology.plan import Component, Topology, output_name, required

Operator = str | int
"""The id of a component of a topology, or the number of a node of a Trident topology."""


class Section(IntEnum):
    """The section in which a stage runs; see above."""

    STREAM = 0
    BATCH = 1
    COMMIT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Operators that run together. component: the name of its tasks. first: the number of its first task.

    section: None if it runs in all of them, as a group of a Trident topology does in one process. states: those of which task i
    holds part i. batch_groups: for a Trident topology, those whose batches it processes.
    """

    id: str
    component: str
    operators: tuple[Any, ...]
    parallelism: int
    section: Section | None = Section.STREAM
    depth: int = 0
    first: int = 0
    is_spout: bool = False
    keeps_window: bool = False
    states: tuple[str, ...] = ()
    batch_groups: tuple[str, ...] = ()

    @property
    def tasks(self) -> range:
        """The numbers of its tasks; none at depth 0."""
        return range(self.first, self.first + (self.parallelism if self.depth else 0))


class StageTask(NamedTuple):
    """Task number `task` of a stage; `number` is its number among all tasks of the plan, depth by depth."""

    number: int
    stage: Stage
    task: int

    @property
    def component(self) -> str:
        """The name of the task."""
        return self.stage.component


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The tuples of an operator on their way from a stage to another. stage: empty if they come from outside the plan.

    targets: the operators that read them, each with the number of its input. schema: empty for tuples from outside. late:
    they are the late tuples of a window. to_window: every task of the target also gets their largest timestamps. batch_group: for a
    Trident topology, the one to whose batches they belong.
    """

    id: int
    source: Any
    stage: str
    target: str
    grouping: Any
    schema: Schema
    targets: tuple[tuple[Any, int], ...]
    stream: str = DEFAULT_STREAM
    late: bool = False
    to_window: bool = False
    batch_group: str = ""


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Stages by id, each after those that it reads; exchanges by id; sinks: the operator of each output stream, by name.

    >>> from windowing import InputSpout, TopologyBuilder, bolt, execution_plan
    >>> @bolt(output="word string")
    ... def split(tuple):
    ...     return tuple["sentence"].split()
    >>> @bolt(output="word string, n long")
    ... def count(tuple): ...
    >>> builder = TopologyBuilder("words")
    >>> _ = builder.set_spout("sentences", InputSpout("sentence string"))
    >>> _ = builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    >>> _ = builder.set_bolt("count", count, 4).fields_grouping("split", "word")
    >>> print(execution_plan(builder.build()).explain(), end="")
    plan words: 2 stages, 1 exchange
    sentences ×1, stream
        sentences
        split
      split == fields(word) ==> count
    count ×4, stream, depth 1, tasks 0 to 3
        count
          out as count
    """

    name: str
    stages: Mapping[str, Stage]
    exchanges: tuple[Exchange, ...]
    sinks: Mapping[str, Any]

    # -- stages and tasks ----------------------------------------------------------------------------------------------

    def stage_of(self, operator: Operator) -> Stage:
        """Return the first stage that contains an operator. Cost: O(stages)."""
        return next(stage for stage in self.stages.values() if operator in stage.operators)

    @cached_property
    def tasks(self) -> tuple[StageTask, ...]:
        """All tasks, by number."""
        return tuple(
            StageTask(number, stage, task) for stage in self.stages.values() for task, number in enumerate(stage.tasks)
        )

    def depths(self, section: Section) -> list[int]:
        """Return the depths below 0 at which a section has stages, ascending."""
        return sorted({stage.depth for stage in self.stages.values() if stage.depth and stage.section is section})

    def tasks_at(self, depth: int) -> tuple[StageTask, ...]:
        """Return the tasks of all stages of a depth, by number."""
        return tuple(task for task in self.tasks if task.stage.depth == depth)

    def has_states_at(self, depth: int) -> bool:
        """Return whether a stage of a depth has a state."""
        return any(stage.states for stage in self.stages.values() if stage.depth == depth)

    @property
    def widest(self) -> int:
        """The largest number of tasks at one depth, at least 1."""
        return max((len(self.tasks_at(stage.depth)) for stage in self.stages.values()), default=0) or 1

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def into(self, stage: str) -> tuple[Exchange, ...]:
        """Return the exchanges that lead to a stage."""
        return tuple(exchange for exchange in self.exchanges if exchange.target == stage)

    def out_of(self, stage: str) -> tuple[Exchange, ...]:
        """Return the exchanges that lead away from a stage."""
        return tuple(exchange for exchange in self.exchanges if exchange.stage == stage)

    # -- text and drawings ---------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return stages, operators, exchanges and sinks as text, for a person."""
        counts = ((len(self.stages), "stage"), (len(self.exchanges), "exchange"))
        lines = [f"plan {self.name}: " + ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)]
        outside = [exchange for exchange in self.exchanges if not exchange.stage]
        lines += [f"  {self._arrow(exchange)}" for exchange in outside]
        for stage in self.stages.values():
            lines.append(", ".join([f"{stage.id} ×{stage.parallelism}", *self._notes(stage)]))
            for operator in stage.operators:
                lines.append(f"    {self.line_of(operator)}")
                lines += [f"      out as {name}" for name, source in self.sinks.items() if source == operator]
            lines += [f"  {self._arrow(exchange)}" for exchange in self.out_of(stage.id)]
        return "\n".join(lines) + "\n"

    def to_mermaid(self) -> str:
        """Return a drawing of stages and exchanges as Mermaid text; the same for the same plan.

        Sources are rounded, stages with windows have double sides, those with a state are cylinders; late tuples, and exchanges in
        the commit phase of Trident, are dotted.
        """
        return mermaid(self.boxes(), self.arrows())

    def _repr_svg_(self) -> str:
        """Return the representation for notebooks."""
        return svg_of(self.boxes(), self.arrows())

    def boxes(self) -> Iterator[Box]:
        """Yield the box of each stage, and of each source outside the plan."""
        for source in sorted({exchange.source for exchange in self.exchanges if not exchange.stage}):
            yield Box(source, (source,), "spout")
        for stage in self.stages.values():
            shape = (
                "spout" if stage.is_spout else "state" if stage.states else "window" if stage.keeps_window else "bolt"
            )
            head = stage.id if stage.parallelism == 1 else f"{stage.id} ×{stage.parallelism}"
            titles = [self.title(operator) for operator in stage.operators if operator != stage.id]
            yield Box(stage.id, (head, *titles), shape)

    def arrows(self) -> Iterator[Arrow]:
        """Yield the arrow of each exchange."""
        for exchange in self.exchanges:
            yield Arrow(
                exchange.stage or exchange.source, exchange.target, str(exchange.grouping), self.is_apart(exchange)
            )

    def title(self, operator: Operator) -> str:
        """Return the name of an operator in drawings."""
        return str(operator)

    def line_of(self, operator: Operator) -> str:
        """Return the line of `explain` for an operator."""
        return str(operator)

    def is_apart(self, exchange: Exchange) -> bool:
        """Return whether an exchange is drawn dotted."""
        return exchange.late

    def _arrow(self, exchange: Exchange) -> str:
        late = ", late tuples" if exchange.late else ""
        return f"{exchange.source} == {exchange.grouping} ==> {exchange.target}{late}"

    def _notes(self, stage: Stage) -> Iterator[str]:
        if stage.section is not None:
            yield stage.section.name.lower()
            if stage.depth:
                yield f"depth {stage.depth}"
                yield f"tasks {stage.first} to {stage.tasks[-1]}" if stage.parallelism > 1 else f"task {stage.first}"
        yield from stage.batch_groups
        if stage.section is not None:
            yield from ("windows",) if stage.keeps_window else ()
            yield from stage.states

    def check(self) -> None:
        """Assert the invariants."""
        assert all(id == stage.id for id, stage in self.stages.items())
        position = {id: number for number, id in enumerate(self.stages)}
        for number, exchange in enumerate(self.exchanges):
            assert exchange.id == number
            target = self.stages[exchange.target]
            # The target stage of an exchange contains the operators that read it.
            assert {operator for operator, _ in exchange.targets} <= set(target.operators)
            if not exchange.stage:
                continue
            source = self.stages[exchange.stage]
            assert exchange.source in source.operators
            # Exchanges lead down, and never to an earlier section.
            assert position[source.id] < position[target.id]
            assert target.depth > source.depth or (source.is_spout and target.depth == 0)
            if source.section is not None and target.section is not None:
                assert source.section <= target.section
        # Sections share no depth, and tasks are numbered without gaps.
        sections = {stage.depth: stage.section for stage in self.stages.values() if stage.depth}
        assert all(stage.section is sections[stage.depth] for stage in self.stages.values() if stage.depth)
        assert [task.number for task in self.tasks] == list(range(len(self.tasks)))
        # A stage with a window or a state has numbered tasks.
        assert all(stage.depth for stage in self.stages.values() if stage.keeps_window or stage.states)


def numbered(stages: Iterable[Stage]) -> dict[str, Stage]:
    """Return stages by id, with their tasks numbered consecutively in this order."""
    found: dict[str, Stage] = {}
    first = 0
    for stage in stages:
        found[stage.id] = replace(stage, first=first)
        first += len(found[stage.id].tasks)
    return found


# -- compilers -------------------------------------------------------------------------------------------------------------------


_OUTSIDE = Schema((), ())


def execution_plan(given: Any) -> ExecutionPlan:
    """Return the plan of a Topology, a TridentTopology (or its plan) or a windowed bolt, for a driver that passes a whole batch
    through it, as Spark does; `explain()` and `to_mermaid()` show it.

    Raises ConfigError or TopologyError for any other object, or for one with a mistake.
    """
    if isinstance(given, Topology) or hasattr(given, "set_bolt"):
        return plan_of_topology(required(given, "execution_plan"))
    built = given.build() if hasattr(given, "new_stream") else given
    if hasattr(built, "by_section"):
        plan: ExecutionPlan = built.by_section()
        return plan
    return plan_of_bolt(bolt_of(given))


def plan_of_bolt(
    bolt: WindowedBolt,
    parallelism: int = 1,
    grouping: str | tuple[str, ...] | None = None,
    inputs: Iterable[str] = (DEFAULT_STREAM,),
) -> ExecutionPlan:
    """Return the plan of a windowed bolt that runs alone, with one stage. grouping: "global", "shuffle", or columns; None: its key.

    >>> from windowing import count, tumbling
    >>> @tumbling(count(2), timestamp="n", key="word", output="n long")
    ... def sums(window): ...
    >>> print(execution_plan(sums).explain(), end="")
    plan sums: 1 stage, 1 exchange
      default == fields(word) ==> sums
    sums ×1, stream, depth 1, task 0, windows
        sums
          out as default
    """
    chosen = (bolt.config.key or "global") if grouping is None else grouping
    by: Grouping = FieldsGrouping(chosen) if isinstance(chosen, tuple) else GlobalGrouping()
    by = ShuffleGrouping() if chosen == "shuffle" else by
    stage = Stage(
        id=bolt.name,
        component=bolt.name,
        operators=(bolt.name,),
        parallelism=parallelism,
        depth=1,
        keeps_window=True,
        states=(bolt.name,) if bolt.stateful else (),
    )
    exchanges = [
        Exchange(
            id=number,
            source=stream,
            stage="",
            target=bolt.name,
            grouping=by,
            schema=_OUTSIDE,
            targets=((bolt.name, number),),
            to_window=True,
        )
        for number, stream in enumerate(inputs)
    ]
    late = bolt.config.late_stream
    sinks = dict.fromkeys([*bolt.outputs, *([] if late is None else [late])], bolt.name)
    return ExecutionPlan(name=bolt.name, stages={bolt.name: stage}, exchanges=tuple(exchanges), sinks=sinks)


def plan_of_topology(topology: Topology) -> ExecutionPlan:
    """Return the plan of a topology. Cost: one pass over the subscriptions for each stage."""
    runs_in: dict[str, tuple[str, ...]] = {}
    depth: dict[str, int] = {}
    for name in topology.order:
        component = topology.components[name]
        read = list(dict.fromkeys(stage for found in component.inputs for stage in runs_in[found.component]))
        if component.is_spout or is_keyed(component):
            runs_in[name] = (name,)
            depth[name] = 1 + max((depth[stage] for stage in read), default=-1)
        else:
            runs_in[name] = tuple(read)
    stages = numbered(
        _stage(topology, name, depth[name], tuple(each for each in topology.order if name in runs_in[each]))
        for name in sorted(depth, key=depth.__getitem__)
    )
    sinks = {
        output_name(name, stream): name
        for name in topology.order
        for stream in topology.components[name].outputs
        if topology.ends(topology.components[name], stream)
    }
    exchanges = tuple(_exchanges(topology, stages))
    return ExecutionPlan(name=topology.name, stages=stages, exchanges=exchanges, sinks=sinks)


def is_keyed(component: Component) -> bool:
    """Return whether it matters which of a component's tasks gets a tuple."""
    if component.is_spout:
        return False
    chooses_task = any(not isinstance(found.grouping, ShuffleGrouping) for found in component.inputs)
    return component.window is not None or component.stateful or chooses_task


def _stage(topology: Topology, name: str, depth: int, operators: tuple[str, ...]) -> Stage:
    component = topology.components[name]
    return Stage(
        id=name,
        component=name,
        operators=operators,
        parallelism=component.parallelism,
        section=Section.STREAM,
        depth=depth,
        is_spout=component.is_spout,
        keeps_window=component.window is not None,
        states=(name,) if component.stateful else (),
    )


def _exchanges(topology: Topology, stages: dict[str, Stage]) -> Iterator[Exchange]:
    leading = [
        (stage.id, name, stream, target)
        for stage in stages.values()
        for name in stage.operators
        for stream in topology.components[name].outputs
        for target in stages
        if any((found.component, found.stream) == (name, stream) for found in topology.components[target].inputs)
    ]
    for number, (stage, name, stream, target) in enumerate(leading):
        reader, output = topology.components[target], topology.components[name].outputs[stream]
        read = [(found.component, found.stream) for found in reader.inputs].index((name, stream))
        yield Exchange(
            id=number,
            source=name,
            stage=stage,
            target=target,
            grouping=reader.inputs[read].grouping,
            schema=output.schema,
            targets=((target, read),),
            stream=stream,
            late=output.late,
            to_window=reader.window is not None,
        )
