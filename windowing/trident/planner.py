"""The planner of Trident: resolves a declared topology, finds its mistakes, and makes a TridentPlan.

    resolve    GraphBuilder -> ResolvedTrident: nodes with their fields. A step that cannot be resolved gets no node, and the steps
               behind it are skipped, so that all independent mistakes are reported together, each once
    RULES      one function for each mistake that a topology as a whole can have; it yields a sentence for each occurrence. Mistakes
               of a single step are found by its operation. A rule's docstring begins with its row in docs/guides/trident_streams.md
    plan_of    groups, exchanges and parallelism:

    1 groups        operations that share a state together, then GraphGrouper.merge_fully; each spout by itself
    2 exchanges     one for every edge between groups: by the repartition on it, or identity without one
    3 parallelism   groups connected by identity exchanges have the same: the largest hint of their nodes, at most
                    topology.max.task.parallelism; a state with a fixed number of partitions decides it
    4 batch groups  connected nodes share their batches
    5 phases        operations that commit, and all behind them, work in the commit phase

Source: Storm's `TridentTopology.build`, `completeDRPC`, `getGroupParallelisms`.
"""

from __future__ import annotations

import graphlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from windowing.errors import ConfigError, quote
from windowing.execution.plan import Stage, numbered
from windowing.schema.hashing import have_same_keys
from windowing.schema.types import Schema, chosen
from windowing.topology.bolts import CallStyle, ComponentKind
from windowing.topology.config import (
    IN_TRIDENT,
    Setting,
    TopologyConfig,
    read_settings,
    refused_settings,
    unordered_delays,
)
from windowing.topology.decorators import declaration_of
from windowing.topology.groupings import AllGrouping, CustomGrouping, FieldsGrouping, GlobalGrouping
from windowing.topology.plan import TopologyError
from windowing.topology.rules import name_problem, own_settings
from windowing.trident.builtins import MapGet, TupleCollectionGet
from windowing.trident.fence import StatePlan
from windowing.trident.kinds import Guarantee, Phase, SpoutKind, check_guarantee
from windowing.trident.operations import Check, Each, Filter, FlatMap, Operation, Peek, SinkOperation
from windowing.trident.plan import (
    Drpc,
    Graph,
    GraphBuilder,
    GraphGrouper,
    Group,
    IndexedEdge,
    Node,
    PartitionNode,
    ProcessorNode,
    SpoutNode,
    StepDeclaration,
    StreamSource,
    TridentPlan,
    crossings,
    exchanges_of,
    meaning_of,
    united,
)
from windowing.trident.processors import Code, kind_of, never_returns, wrong_method
from windowing.trident.spouts import IBatchSpout
from windowing.trident.state_operations import AggregateUpdater, CombinerUpdater, Persist, Query, StateSpec
from windowing.trident.states import TypedJson
from windowing.trident.windows import LateTuples, WindowOperation
from windowing.windows.aggregate import short_title

_ARGS = Schema(("args",), ("string",))
_Operation = TypeVar("_Operation", bound=Operation)


@dataclass(slots=True)
class ResolvedTrident:
    """A resolved topology. graph: the steps that were resolved together with all their sources. problems: the mistakes of single
    steps.
    """

    declared: GraphBuilder
    config: TopologyConfig
    graph: Graph
    problems: list[str] = field(default_factory=list)

    @property
    def spouts(self) -> list[SpoutNode]:
        return [node for node in self.graph.nodes.values() if isinstance(node, SpoutNode)]

    def doing(self, kind: type[_Operation]) -> Iterator[tuple[ProcessorNode, _Operation]]:
        for node in self.graph.nodes.values():
            if isinstance(node, ProcessorNode) and isinstance(node.operation, kind):
                yield node, node.operation

    def spouts_above(self, number: int) -> list[SpoutNode]:
        """Return the sources of the tuples of a node."""
        above = self.graph.upstream(number)
        return [node for node in self.spouts if node.number in above]


def resolve(declared: GraphBuilder, settings: Iterable[Setting]) -> ResolvedTrident:
    """Resolve a declared topology. Cost: O(steps + fields)."""
    values, problems = read_settings(settings, "topology")
    config = TopologyConfig(**values)
    problems += [*refused_settings(config, IN_TRIDENT), *unordered_delays(config)]
    resolved = ResolvedTrident(declared, config, Graph.of([], []), problems=[*problems, *declared.problems])
    nodes: dict[int, Node] = {}
    edges: list[IndexedEdge] = []
    for step in declared.steps:
        node = _node(resolved, step, nodes)
        if node is not None:
            nodes[node.number] = node
            late = isinstance(step.what, LateTuples)
            edges += [IndexedEdge(source.number, node.number, index, late) for index, source in enumerate(step.sources)]
    resolved.graph = Graph.of(nodes.values(), edges)
    return resolved


def _node(resolved: ResolvedTrident, step: StepDeclaration, nodes: dict[int, Node]) -> Node | None:
    """Return the node of a step, or None if the step or one before it has a mistake."""
    common: dict[str, Any] = {
        "number": step.number,
        "title": step.title,
        "name": step.name if isinstance(step.name, str) else None,
        "hint": step.hint if type(step.hint) is int and step.hint > 0 else None,
    }
    if isinstance(step.what, StreamSource):
        try:
            schema, kind = _spout(step.what)
        except ConfigError as problem:
            resolved.problems.append(f"{step.called}: {problem.args[0]}")
            return None
        return SpoutNode(schema=schema, source=step.what, kind=kind, **common)
    inputs = tuple(_carried(source, step, nodes) for source in step.sources)
    if not inputs or None in inputs:
        return None
    known = tuple(schema for schema in inputs if schema is not None)
    check = Check(step.called, known, resolved.problems)
    if isinstance(step.what, Operation):
        made = step.what.resolve(check)
        return None if made is None else ProcessorNode(schema=made[0], operation=made[1], inputs=known, **common)
    good = _good_partition(check, step.what)
    return PartitionNode(schema=known[0], grouping=step.what, **common) if good else None


def _carried(source: StepDeclaration, step: StepDeclaration, nodes: dict[int, Node]) -> Schema | None:
    """Return the input fields from a source; for late tuples these are the input fields of the window."""
    window = nodes.get(source.number)
    if isinstance(step.what, LateTuples) and isinstance(window, ProcessorNode):
        return window.inputs[0]
    return None if window is None else window.schema


def _spout(source: StreamSource) -> tuple[Schema, SpoutKind | None]:
    """Return the fields and the kind of a source; None for requests of DRPC."""
    if source.is_drpc:
        return _ARGS, None
    kind = getattr(source.spout, "kind", None)
    if isinstance(kind, SpoutKind):
        if isinstance(source.spout, type):
            raise ConfigError(f"{source.spout.__name__} is a class; give an instance")
        return _fields_of_batches(source), kind
    has = {name for name in ("emit_batch", "get_emitter", "next_tuple") if callable(getattr(source.spout, name, None))}
    if has and "next_tuple" not in has:
        raise ConfigError(
            f"{quote(source.spout)} is a spout of batches without a kind; write kind = SpoutKind.TRANSACTIONAL in its class if a "
            "replayed batch holds the same rows, also after a restart, SpoutKind.NON_TRANSACTIONAL if not"
        )
    if isinstance(source.spout, str):
        raise ConfigError(f"its spout is the text {quote(source.spout)}; write new_stream('sentences', spout)")
    declared = declaration_of(source.spout)
    if not declared.is_spout or "default" not in declared.outputs:
        raise ConfigError(
            f"{declared.name!r} is no spout with a stream 'default'; give a spout, of tuples or of batches"
        )
    _refuse_settings(own_settings(declared))
    schema = declared.outputs["default"]
    written = Schema.parse(source.output) if isinstance(source.output, str) else source.output
    if written is not None and written != schema:
        raise ConfigError(
            f"{declared.name!r} declares its fields, {schema.ddl}, so output={quote(source.output)} has no effect; leave it out"
        )
    fed = declared.kind is ComponentKind.INPUT  # its driver passes in the same batch again
    return schema, SpoutKind.TRANSACTIONAL if fed else SpoutKind.NON_TRANSACTIONAL


def _fields_of_batches(source: StreamSource) -> Schema:
    """Return the fields of a spout of batches."""
    written = source.output if source.output is not None else getattr(source.spout, "output", "")
    if not written:
        raise ConfigError(
            f"{quote(source.spout)} does not say its fields; write new_stream(name, spout, 'word string')"
        )
    schema = written if isinstance(written, Schema) else Schema.parse(written)
    if hasattr(source.spout, "emit_batch"):
        problem = wrong_method(source.spout, {"emit_batch": ("txid", "collector")})
        if problem is not None:
            raise ConfigError(problem)
    says = getattr(source.spout, "get_component_configuration", None)
    _refuse_settings((says() if callable(says) else None) or {})
    return schema


def _refuse_settings(settings: Mapping[str, Any]) -> None:
    if settings:
        raise ConfigError(
            f"its get_component_configuration says {', '.join(map(str, settings))}, but a stream of Trident has no settings of its "
            "own; give them to TridentTopology.configure, and let it return None"
        )


def _good_partition(check: Check, grouping: Any) -> bool:
    """Note the mistakes of a repartition; return whether there are none."""
    if isinstance(grouping, FieldsGrouping):
        return check.key(check.inputs[0], grouping.fields, ", or use global_()") is not None
    if isinstance(grouping, CustomGrouping):
        mistake = grouping.mistake()
        if mistake is not None:
            check.note(f"it partitions by {quote(grouping.choose)}; {mistake}")
            return False
    return True


# -- RULES -----------------------------------------------------------------------------------------------------------------------


def has_source(resolved: ResolvedTrident) -> Iterator[str]:
    """The topology has at least one stream."""
    if not any(isinstance(step.what, StreamSource) for step in resolved.declared.steps):
        yield "there is no stream, so there is nothing to work on; begin with new_stream(name, spout)"


def good_names(resolved: ResolvedTrident) -> Iterator[str]:
    """Names of streams, DRPC functions and steps have letters, digits, `_`, `-`, `.`, a letter or `_` first, at most 63."""
    for step in resolved.declared.steps:
        if isinstance(step.what, StreamSource):
            what = "the name of a function of DRPC" if step.what.is_drpc else "the name of a stream"
            problem = name_problem(step.what.name, what)
        else:
            problem = None if step.name is None else name_problem(step.name, f"what {step.called} is called")
        if problem is not None:
            yield problem


def distinct_names(resolved: ResolvedTrident) -> Iterator[str]:
    """No two streams, DRPC functions or sinks have the same name (a stream's progress is stored under it)."""
    sources = [step.what for step in resolved.declared.steps if isinstance(step.what, StreamSource)]
    sinks = [step.what.name for step in resolved.declared.steps if isinstance(step.what, SinkOperation)]
    for what, names in (
        ("streams", [source.name for source in sources if not source.is_drpc]),
        ("functions of DRPC", [source.name for source in sources if source.is_drpc]),
        ("sinks", sinks),
    ):
        for name, times in Counter(str(name).lower() for name in names).items():
            if times > 1:
                yield f"the name {quote(name)} is given to {times} {what}; give each its own"


def positive_parallelism(resolved: ResolvedTrident) -> Iterator[str]:
    """A parallelism hint is a whole number above 0, and follows an operation or a spout, not a repartition."""
    for step in resolved.declared.steps:
        hint = step.hint
        if hint is None:
            continue
        if type(hint) is not int or hint <= 0:
            yield f"{step.called} has parallelism_hint({quote(hint)}); give a number of tasks, 1 or more"
        elif step.is_partition:
            yield f"{step.called} has parallelism_hint({hint}), but only moves tuples; put the hint behind what follows"


def good_states(resolved: ResolvedTrident) -> Iterator[str]:
    """A state is given as a StateFactory, or a StateSpec of one, with a whole number of partitions above 0 or none."""
    static = [(f"new_static_state ({name})", spec) for name, spec in resolved.declared.static_states.items()]
    written = [(step.called, step.what.spec) for step in resolved.declared.steps if isinstance(step.what, Persist)]
    for where, spec in [*written, *static]:
        if spec.kind is None:
            yield (
                f"{where} is given the state {quote(spec.factory)}; give a StateFactory: map_state(SqliteStore('counts.db'), "
                "'counts') of windowing.stores, or an object with kind, a StateType, and make_state(partition, partitions)"
            )
        elif problem := wrong_method(spec.factory, {"make_state": ("partition", "partitions")}):
            yield f"{where} is given a state whose {problem}"
        if spec.partitions is not None and (type(spec.partitions) is not int or spec.partitions <= 0):
            yield f"{where} wants {quote(spec.partitions)} partitions; give a whole number, 1 or more, or None"
        if not isinstance(spec.accept, Guarantee):
            yield f"{where} has accept={quote(spec.accept)}; give a Guarantee, for example Guarantee.AT_LEAST_ONCE"


def fitting_tables(resolved: ResolvedTrident) -> Iterator[str]:
    """A `state_table` has a column for each field of the key, and one for the aggregate, that can hold their values."""
    for node, persist in resolved.doing(Persist):
        updater, misfit = persist.updater.target, getattr(getattr(persist.spec.factory, "codec", None), "misfit", None)
        if isinstance(updater, AggregateUpdater) and misfit is not None:
            keys = len(persist.group)
            # What a reducer returns is stored as it is, not as a value of the declared type.
            value = node.schema.names[keys:] if isinstance(updater, CombinerUpdater) else ()
            problem = misfit(chosen(node.schema, persist.group), node.schema.of(value))
            if problem is not None:
                yield f"{node.called} {problem}"


def one_writer(resolved: ResolvedTrident) -> Iterator[str]:
    """No two persists write the same state: each state has its own name, or its own store."""
    seen: list[tuple[str, object]] = []
    for node, persist in resolved.doing(Persist):
        factory = getattr(persist.spec.factory, "factory", persist.spec.factory)
        written = getattr(factory, "identity", factory)
        for other, known in seen:
            if type(known) is type(written) and known == written:
                state = quote(getattr(factory, "name", factory))
                yield f"{node.called} writes the same state as {other}: {state}; give each a name of its own"
        seen.append((node.called, written))


def exactly_once(resolved: ResolvedTrident) -> Iterator[str]:
    """Each spout above a persist counts exactly once with its state, or as weakly as `accept=` allows."""
    for node, persist in resolved.doing(Persist):
        kind = persist.spec.kind
        for spout in resolved.spouts_above(node.number):
            if spout.kind is None or kind is None or not isinstance(persist.spec.accept, Guarantee):
                continue
            try:
                check_guarantee(spout.kind, kind, accept=persist.spec.accept, names=(spout.title, persist.state))
            except ConfigError as problem:
                yield f"{node.called}: {problem.args[0]} in its StateSpec"


def windows_before_states(resolved: ResolvedTrident) -> Iterator[str]:
    """No window reads the new values of a state, even indirectly: in their phase, the commit phase, windows take no tuples."""
    for node, _ in resolved.doing(WindowOperation):
        above = resolved.graph.upstream(node.number)
        for persist, _operation in resolved.doing(Persist):
            if persist.number in above:
                yield (
                    f"{node.called} stands behind the new values of {persist.called}, where only operators within a batch, "
                    "persists and sinks can follow; window the tuples before they are persisted"
                )


def drpc_alone(resolved: ResolvedTrident) -> Iterator[str]:
    """A stream of DRPC requests meets no stream of a spout or of another function; they share a state instead."""
    for component in resolved.graph.components():
        inside = [spout for spout in resolved.spouts if spout.number in component]
        functions = [spout for spout in inside if spout.kind is None]
        if functions and len(inside) > 1:
            others = ", ".join(spout.title for spout in inside if spout is not functions[0])
            yield (
                f"{functions[0].title} is merged or joined with {others}, but a request is no batch of another source; let one "
                "stream persist a state and ask it by state_query in the other"
            )


def drpc_only_asks(resolved: ResolvedTrident) -> Iterator[str]:
    """A stream of DRPC requests is not persisted, windowed or sent to a sink, because a request is not a transaction."""
    kinds: tuple[type[Operation], ...] = (Persist, WindowOperation, SinkOperation)
    for node, operation in resolved.doing(Operation):
        if isinstance(operation, kinds):
            for spout in resolved.spouts_above(node.number):
                if spout.kind is None:
                    yield f"{node.called} works on requests of {spout.title}, which are no transactions; let requests only ask"


def answers(resolved: ResolvedTrident) -> Iterator[str]:
    """A DRPC function has a step that gives the answer."""
    for spout in (spout for spout in resolved.spouts if spout.kind is None):
        behind, answered = {spout.number}, False
        for step in resolved.declared.steps:  # in order: a step is behind those that it reads
            if not behind.isdisjoint(source.number for source in step.sources):
                behind.add(step.number)
                answered = answered or isinstance(step.what, Operation)
        if not answered:
            yield f"{spout.title} has no step that answers; add one behind new_drpc_stream({quote(spout.source.name)})"


def queried_states(resolved: ResolvedTrident) -> Iterator[str]:
    """A query does not follow the new values of the state that it reads."""
    persists = {persist.state: node for node, persist in resolved.doing(Persist)}
    for node, query in resolved.doing(Query):
        writer = persists.get(query.state)
        if writer is not None and writer.number in resolved.graph.upstream(node.number):
            yield (
                f"{node.called} asks the state that {writer.called} has just written, behind its new values; use the new values, "
                "or ask in another stream"
            )


def returning_functions(resolved: ResolvedTrident) -> Iterator[str]:
    """A filter, or a function of `each`, `flat_map` or windows, that other steps read returns or yields a value somewhere."""
    for node, step in resolved.doing(Operation):
        nothing, way_out = "has no rows", "return or yield its rows"
        match step:
            case Filter():
                code, nothing = step.function, "keeps no tuple"
                way_out = "return whether the tuple is kept, or write peek(...)"
            case Each() | FlatMap():
                code, way_out = step.function, f"{way_out}, or write peek(...)"
            case WindowOperation() if kind_of(step.spec.aggregator) is None:
                code = Code(step.spec.aggregator, None, CallStyle.ROWS)
            case _:
                continue
        if resolved.graph.out_edges[node.number] and never_returns(code):
            yield f"{node.called}: it {nothing}, because {short_title(code.target)!r} never returns a value; {way_out}"


def same_keys(resolved: ResolvedTrident) -> Iterator[str]:
    """A query by `MapGet` asks by as many fields as the key of its state has, of the same types."""
    for node, query in resolved.doing(Query):
        for writer, persist in resolved.doing(Persist):
            if query.state != persist.state or not persist.group or not _asks_equal_keys(query, persist):
                continue
            key = chosen(writer.schema, persist.group)
            asked = node.inputs[0] if query.inputs is None else chosen(node.inputs[0], query.inputs)
            if not have_same_keys(asked.types, key.types, tasks=1):
                way_out = f"name as many fields as the key has, in its order: {', '.join(key.names)}"
                if len(asked) == len(key):
                    pairs = zip(asked.names, key.names, asked.types, key.types, strict=True)
                    old, new, kind = next((a, b, k) for a, b, t, k in pairs if not have_same_keys([t], [k], tasks=1))
                    made = f".each({quote(old)}, lambda row: [...], {quote(f'{new} {kind}')})"
                    way_out = f"ask by fields of these types, made by {made}, for one"
                yield (
                    f"{node.called} asks {query.state} by {asked.ddl}, but its keys are {key.ddl}, so no key is ever equal; "
                    f"{way_out}"
                )


def _asks_equal_keys(query: Query, persist: Persist) -> bool:
    """Return whether a query finds only keys that have the types of its own: by MapGet's own method, and in typed JSON."""
    function = query.function.target
    method = getattr(function, "batch_retrieve", None)
    return (
        isinstance(persist.updater.target, AggregateUpdater)
        and getattr(method, "__func__", method) is MapGet.batch_retrieve
        and type(getattr(persist.spec.factory, "codec", None)) is TypedJson
    )


TRIDENT_RULES: tuple[Callable[[ResolvedTrident], Iterator[str]], ...] = (
    has_source,
    good_names,
    distinct_names,
    positive_parallelism,
    good_states,
    fitting_tables,
    one_writer,
    exactly_once,
    windows_before_states,
    queried_states,
    same_keys,
    returning_functions,
    drpc_alone,
    drpc_only_asks,
    answers,
)
"""All rules, in the order in which their sentences are reported."""


# -- the planner -----------------------------------------------------------------------------------------------------------------


def built(name: str, declared: GraphBuilder, settings: Iterable[Setting]) -> TridentPlan:
    """Return the plan of a declared topology. Raises TopologyError with a sentence for every mistake."""
    resolved = resolve(declared, settings)
    problem = name_problem(name, "the name of a topology")
    problems = [*([] if problem is None else [problem]), *resolved.problems]
    for rule in TRIDENT_RULES:
        problems += rule(resolved)
    if not problems:
        plan = plan_of(name, resolved, problems)
    if problems:
        raise TopologyError(name if isinstance(name, str) else quote(name), tuple(problems))
    return plan


def unread(graph: Graph) -> list[str]:
    """Return the names of the steps whose rows go to no other step, sink, state or request; not those of `filter` and `peek`, whose
    functions may be there for their effects.
    """
    asked = {node.number for node in graph.nodes.values() if isinstance(node, SpoutNode) and node.kind is None}
    return [
        node.called
        for number, node in graph.nodes.items()
        if not graph.out_edges[number] and asked.isdisjoint({number, *graph.upstream(number)})
        if not (isinstance(node, ProcessorNode) and isinstance(node.operation, SinkOperation | Persist | Filter | Peek))
    ]


def plan_of(name: str, resolved: ResolvedTrident, problems: list[str], merge: bool = True) -> TridentPlan:
    """Return the plan of a resolved graph; mistakes that appear only between groups are added to `problems`.

    `merge=False` leaves every operation in a group of its own, which gives the same results at a higher cost.
    """
    planner = _Planner(resolved, merge)
    order = planner.order(problems)
    sizes = planner.parallelism(problems)
    problems += planner.stray_queries(sizes)
    return planner.plan(name, order, sizes)


class _Planner:
    """The steps of planning."""

    def __init__(self, resolved: ResolvedTrident, merge: bool) -> None:
        self.resolved = resolved
        self.graph: Graph = resolved.graph
        self.phases = _phases(self.graph)
        self.states = _states(resolved)
        beside = [nodes for _, nodes in self.states.values()]
        together = {number for numbers in beside for number in numbers}
        single = [node.number for node in self.graph.nodes.values() if isinstance(node, ProcessorNode)]
        initial = [*beside, *((number,) for number in single if number not in together)]
        grouper = GraphGrouper(self.graph, sorted(united(initial), key=min))
        if merge:
            grouper.merge_fully()
        self.groups: list[Group] = sorted([*((spout.number,) for spout in resolved.spouts), *grouper.groups])
        self.of = {number: group for group in self.groups for number in group}
        self.crossings = crossings(self.graph, self.of)

    def order(self, problems: list[str]) -> list[Group]:
        """Return the groups in topological order; a cycle, which only states can cause, is noted."""
        reads: dict[Group, list[Group]] = {group: [] for group in self.groups}
        for crossing in self.crossings:
            reads[crossing.target].append(self.of[crossing.source])
        try:
            return list(graphlib.TopologicalSorter(reads).static_order())
        except graphlib.CycleError as found:
            steps = [self.graph.nodes[number] for group in found.args[1][1:] for number in group]
            asked = ", ".join(node.called for node in steps if isinstance(node.operation, Persist | Query))
            problems.append(
                f"the operations beside a state run together, and so {asked} would wait for each other; ask the state in another "
                "stream, or use its new values"
            )
            return self.groups

    def parallelism(self, problems: list[str]) -> dict[Group, int]:
        """Return the number of tasks of each group; contradictory requests are noted."""
        joined = [
            (self.of[crossing.source], crossing.target)
            for crossing in self.crossings
            if crossing.by is None or self.graph.nodes[crossing.by].is_identity
        ]
        sizes: dict[Group, int] = {}
        for members in united([*joined, *((group,) for group in self.groups)]):
            size = self._size(members, problems)
            sizes.update(dict.fromkeys(members, size))
        return sizes

    def _size(self, members: set[Group], problems: list[str]) -> int:
        numbers = sorted(number for group in members for number in group)
        nodes = [self.graph.nodes[number] for number in numbers]
        limit = self.resolved.config.max_task_parallelism
        hints = [node for node in nodes if node.hint is not None]
        size = max([node.hint or 1 for node in hints], default=1)
        size = size if limit is None else min(size, limit)
        wanted = ((id, spec.partitions) for id, (spec, beside) in self.states.items() if beside & set(numbers))
        fixed = {partitions: id for id, partitions in wanted if partitions is not None}
        if len(fixed) > 1:
            states = ", ".join(f"{id} wants {partitions} partitions" for partitions, id in fixed.items())
            problems.append(
                f"{states}, but nothing between them moves tuples; put a repartition between, or give them one number"
            )
        size = next(iter(fixed), size)
        spouts = (node for node in nodes if isinstance(node, SpoutNode))
        single = [node for node in spouts if node.kind is None or isinstance(node.source.spout, IBatchSpout)]
        if single and size > 1:
            asking = next((node for node in hints if node.hint == size), None)
            why = ", ".join(fixed.values()) or "a hint" if asking is None else asking.called
            problems.append(f"{why} asks for {size} tasks, but {self._of_one_task(single[0], nodes, asking)}")
        return size

    def _of_one_task(self, spout: SpoutNode, nodes: list[Node], asking: Node | None) -> str:
        """Return why the group of a spout cannot have several tasks, which a node, or a state of the group (None), asks for."""
        if asking is spout:
            return "such a spout has one; leave out the hint; a step behind .shuffle(), or .partition_by(key), may have several"
        behind = [node for node in nodes if spout in self._brought_by(node.number)]
        merged = next((node.called for node in behind if len(self.graph.in_edges[node.number]) > 1), None)
        is_behind = asking in behind if asking else any(isinstance(node.operation, Persist | Query) for node in behind)
        between = "them" if is_behind or merged is None else f"it and {merged},"
        return f"{spout.title} has one and nothing between {between} moves tuples; put .shuffle(), or .partition_by(key), between"

    def stray_queries(self, sizes: dict[Group, int]) -> Iterable[str]:
        """Yield a sentence for each query whose tuples do not reach the partition of their key."""
        for node, query in self.resolved.doing(Query):
            partitions = sizes[self.of[node.number]]
            if partitions == 1:
                continue
            asks = f"{node.called} asks {query.state}, which has"
            static = self.resolved.declared.static_states.get(query.state)
            if hasattr(static and static.factory, "store") and _asks_by(query, MapGet):
                for by in self._brought_by(node.number):
                    if isinstance(by, SpoutNode) or not isinstance(by.grouping, _WITH_THE_KEY):
                        yield (
                            f"{asks} {partitions} partitions by its key, but its tuples come there by "
                            f"{by.title if isinstance(by, SpoutNode) else by.grouping}; put .partition_by(...) of fields of the "
                            "types of the key, or .broadcast(), before it"
                        )
            for writer, persist in self.resolved.doing(Persist):
                if query.state != persist.state or not isinstance(persist.updater.target, AggregateUpdater):
                    continue
                key = chosen(writer.schema, persist.group)
                kept, put = _kept_and_put(key, partitions, query)
                for stray in filter(None, (_strays(by, key, node, query) for by in self._brought_by(node.number))):
                    yield f"{asks} {kept}, but its tuples come there by {stray}; put {put} before it"

    def _brought_by(self, number: int) -> Iterable[SpoutNode | PartitionNode]:
        """Yield the last repartitions before a node, and the sources that have none before it."""
        ahead, seen = [number], {number}
        while ahead:
            for edge in self.graph.in_edges[ahead.pop()]:
                source = self.graph.nodes[edge.source]
                if isinstance(source, SpoutNode) or (isinstance(source, PartitionNode) and not source.is_identity):
                    yield source
                elif edge.source not in seen:
                    seen.add(edge.source)
                    ahead.append(edge.source)

    def plan(self, name: str, order: list[Group], sizes: dict[Group, int]) -> TridentPlan:
        batch_groups = {
            number: f"bg{position}"
            for position, inside in enumerate(self.graph.components())
            for number in sorted(inside)
        }
        ids = self._ids(order)
        written = {persist.state: meaning_of(persist) for _, persist in self.resolved.doing(Persist)}
        states = {
            id: StatePlan(id, spec.factory, sizes[group], ids[group], id in written, written.get(id, {}))
            for id, (spec, beside) in self.states.items()
            for group in [self.of[min(beside)]]
        }
        for id, spec in self.resolved.declared.static_states.items():
            states.setdefault(id, StatePlan(id, spec.factory, spec.partitions or 1))
        position = {group: number for number, group in enumerate(order)}
        ordered = sorted(
            self.crossings,
            key=lambda found: (position[self.of[found.source]], position[found.target], found.source, found.by or 0),
        )
        stage_of = {number: ids[group] for number, group in self.of.items()}
        exchanges = exchanges_of(self.graph, ordered, stage_of, batch_groups)
        depth: dict[str, int] = {}
        for id in map(ids.__getitem__, order):
            # The depth is missing (0) only in a cycle, which is refused.
            depth[id] = 1 + max((depth.get(found.stage, 0) for found in exchanges if found.target == id), default=-1)
        stages = [
            Stage(
                id=ids[group],
                component=ids[group],
                operators=group,
                parallelism=sizes[group],
                section=None,
                depth=depth[ids[group]],
                is_spout=isinstance(self.graph.nodes[group[0]], SpoutNode),
                keeps_window=any(self.graph.nodes[number].keeps_window for number in group),
                states=tuple(id for id, state in states.items() if state.group == ids[group]),
                batch_groups=tuple(sorted({batch_groups[number] for number in group})),
            )
            for group in order
        ]
        return TridentPlan(
            name=name,
            graph=self.graph,
            stages=numbered(stages),
            exchanges=exchanges,
            phases=self.phases,
            batch_groups=batch_groups,
            states=states,
            drpc=self._functions(),
            sinks={str(sink.name): node.number for node, sink in self.resolved.doing(SinkOperation)},
            config=self.resolved.config,
        )

    def _functions(self) -> dict[str, Drpc]:
        """Return the functions of DRPC by name; the last step of each makes its answers."""
        found = {}
        for spout in (spout for spout in self.resolved.spouts if spout.kind is None):
            component = next(inside for inside in self.graph.components() if spout.number in inside)
            last = max(number for number in component if isinstance(self.graph.nodes[number], ProcessorNode))
            found[str(spout.source.name)] = Drpc(str(spout.source.name), spout.number, last)
        return found

    def _ids(self, order: list[Group]) -> dict[Group, str]:
        """Return the ids of groups: the name of a spout; for other groups a number and the author's names."""
        ids: dict[Group, str] = {}
        bolts = 0
        for group in order:
            first = self.graph.nodes[group[0]]
            if isinstance(first, SpoutNode):
                name = f"{'drpc' if first.kind is None else 'spout'}_{first.source.name}"
                ids[group] = name if len(name) <= 63 else f"{name[:50]}_{first.number}"
                continue
            names = dict.fromkeys(self.graph.nodes[number].name for number in group)
            ids[group] = "_".join(["b", str(bolts), *(re.sub(r"\W", "_", name) for name in names if name)])[:63]
            bolts += 1
        return ids


def _phases(graph: Graph) -> dict[int, Phase]:
    phases: dict[int, Phase] = {}
    for number, node in graph.nodes.items():  # in the order of the graph: sources come before their readers
        late = any(phases[edge.source] is Phase.COMMIT for edge in graph.in_edges[number])
        commits = node.operation is not None and node.operation.committer
        phases[number] = Phase.COMMIT if late or commits else Phase.PROCESS
    return phases


def _states(resolved: ResolvedTrident) -> dict[str, tuple[StateSpec, set[int]]]:
    """Return the spec of each state that a node uses, and the nodes that write or query it."""
    specs = dict(resolved.declared.static_states)
    beside: dict[str, set[int]] = {}
    for node, persist in resolved.doing(Persist):
        specs[persist.state] = persist.spec
        beside.setdefault(persist.state, set()).add(node.number)
    for node, query in resolved.doing(Query):
        beside.setdefault(query.state, set()).add(node.number)
    return {id: (specs[id], beside[id]) for id in sorted(beside, key=lambda id: int(id.removeprefix("state")))}


_WITH_THE_KEY = (FieldsGrouping, CustomGrouping, AllGrouping)
"""The groupings that may bring a tuple to the partition of its key."""


def _kept_and_put(key: Schema, partitions: int, query: Query) -> tuple[str, str]:
    """Return how a written state is divided into partitions, and what brings the tuples of a query to the right one."""
    if not key:
        return f"its one value in the first of {partitions} partitions", ".global_()"
    by_key = ".partition_by(...) of such fields, or .broadcast(),"
    return f"{partitions} partitions by {key.ddl}", ".broadcast()" if _asks_by(query, TupleCollectionGet) else by_key


def _strays(by: SpoutNode | PartitionNode, key: Schema, node: ProcessorNode, query: Query) -> str | None:
    """Return what sends tuples to other partitions than that of their key, or of the value without a key; None if nothing does."""
    if isinstance(by, SpoutNode):
        return by.title
    if isinstance(by.grouping, (CustomGrouping, AllGrouping if key else GlobalGrouping)):
        return None
    if not isinstance(by.grouping, FieldsGrouping):
        return str(by.grouping)
    fields, held = chosen(by.schema, by.grouping.fields), node.inputs[0].names
    if not have_same_keys(fields.types, key.types) or _asks_by(query, TupleCollectionGet):
        return fields.ddl
    asked = held if query.inputs is None else query.inputs
    if _asks_by(query, MapGet) and set(fields.names) <= set(held) and asked != fields.names:
        return f"{fields.ddl} and ask for the key {', '.join(asked)}"
    return None


def _asks_by(query: Query, kind: type) -> bool:
    function = query.function.target
    return isinstance(function, kind) or function is kind
