"""RULES: every mistake of a whole Trident topology, a function each, which yields a sentence for each place where it is made.

What is wrong with one step its operation says (`resolve`). The first line of a rule's docstring is its row in
docs/trident_streams.md (a test compares them). A rule looks only at facts that could be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from windowing.errors import ConfigError, shown
from windowing.topology.rules import name_problem
from windowing.topology.trident.facts import Facts
from windowing.topology.trident.graph import Source
from windowing.topology.trident.operations import Operation, Sink
from windowing.topology.trident.stateful import Persist, Query, StateSpec
from windowing.topology.trident.windowed import Window
from windowing.transactions.kinds import Guarantee, check_guarantee

__all__ = ["TRIDENT_RULES"]


def has_source(facts: Facts) -> Iterator[str]:
    """There is a stream."""
    if not any(isinstance(draft.what, Source) for draft in facts.drafts):
        yield "there is no stream, so there is nothing to work on; begin with new_stream(name, spout)"


def good_names(facts: Facts) -> Iterator[str]:
    """Streams, functions of DRPC and steps have names of letters, digits, `_`, `-`, `.`, a letter or `_` first, at most 63 long."""
    for draft in facts.drafts:
        if isinstance(draft.what, Source):
            what = "the name of a function of DRPC" if draft.what.is_drpc else "the name of a stream"
            problem = name_problem(draft.what.name, what)
        else:
            problem = None if draft.name is None else name_problem(draft.name, f"what {draft.called} is called")
        if problem is not None:
            yield problem


def distinct_names(facts: Facts) -> Iterator[str]:
    """No two streams, functions of DRPC or sinks have one name (a stream's progress is stored under it)."""
    sources = [draft.what for draft in facts.drafts if isinstance(draft.what, Source)]
    sinks = [draft.what.name for draft in facts.drafts if isinstance(draft.what, Sink)]
    for what, names in (
        ("stream", [source.name for source in sources if not source.is_drpc]),
        ("function of DRPC", [source.name for source in sources if source.is_drpc]),
        ("sink", sinks),
    ):
        for name, times in Counter(str(name).lower() for name in names).items():
            if times > 1:
                yield f"the name {shown(name)} is given to {times} {what}s; give each its own"


def positive_parallelism(facts: Facts) -> Iterator[str]:
    """A parallelism hint is a whole number above 0, and stands behind an operation or a spout, not behind a repartition."""
    for draft in facts.drafts:
        hint = draft.hint
        if hint is None:
            continue
        if type(hint) is not int or hint <= 0:
            yield f"{draft.called} has parallelism_hint({shown(hint)}); give a number of tasks, 1 or more"
        elif draft.is_partition:
            yield f"{draft.called} has parallelism_hint({hint}), but only moves tuples; put the hint behind what follows"


def good_states(facts: Facts) -> Iterator[str]:
    """A state is given as a StateFactory, or a StateSpec of one, with a whole number of partitions above 0 or none."""
    static = [(f"new_static_state ({name})", spec) for name, spec in facts.sketch.static_states.items()]
    written = [(draft.called, draft.what.spec) for draft in facts.drafts if isinstance(draft.what, Persist)]
    for where, spec in [*written, *static]:
        yield from _bad_spec(where, spec)


def one_writer(facts: Facts) -> Iterator[str]:
    """No two persists write one state: each has a state of its own name, or store."""
    seen: list[tuple[str, object]] = []
    for node, persist in facts.doing(Persist):
        factory = getattr(persist.spec.factory, "factory", persist.spec.factory)
        written = getattr(factory, "identity", factory)
        for other, known in seen:
            if type(known) is type(written) and known == written:
                yield f"{node.called} writes the same state as {other}: {shown(factory)}; give each a name of its own"
        seen.append((node.called, written))


def exactly_once(facts: Facts) -> Iterator[str]:
    """Each spout above a persist, with its state, counts exactly once, or as `accept=` says."""
    for node, persist in facts.doing(Persist):
        kind = persist.spec.kind
        for spout in facts.spouts_above(node.number):
            if spout.kind is None or kind is None or not isinstance(persist.spec.accept, Guarantee):
                continue
            try:
                check_guarantee(spout.kind, kind, accept=persist.spec.accept, names=(spout.title, persist.state))
            except ConfigError as problem:
                yield f"{node.called}: {problem.args[0]} in its StateSpec"


def windows_before_states(facts: Facts) -> Iterator[str]:
    """No window reads, by way of others, the new values of a state: they come in the commit phase, where no window is open."""
    for node, _ in facts.doing(Window):
        above = facts.graph.upstream(node.number)
        for persist, _operation in facts.doing(Persist):
            if persist.number in above:
                yield (
                    f"{node.called} stands behind the new values of {persist.called}, where only operators within a batch, "
                    "persists and sinks can follow; window the tuples before they are persisted"
                )


def drpc_alone(facts: Facts) -> Iterator[str]:
    """A stream of DRPC requests meets no stream of a spout and no other function's; a state is where they meet."""
    for component in facts.graph.components():
        inside = [spout for spout in facts.spouts if spout.number in component]
        functions = [spout for spout in inside if spout.kind is None]
        if functions and len(inside) > 1:
            others = ", ".join(spout.title for spout in inside if spout is not functions[0])
            yield (
                f"{functions[0].title} is merged or joined with {others}, but a request is no batch of another source; let one "
                "stream persist a state and ask it by state_query in the other"
            )


def drpc_only_asks(facts: Facts) -> Iterator[str]:
    """A stream of DRPC requests is not persisted, windowed or led to a sink: a request is no transaction."""
    kinds: tuple[type[Operation], ...] = (Persist, Window, Sink)
    for node, operation in facts.doing(Operation):
        if isinstance(operation, kinds):
            for spout in facts.spouts_above(node.number):
                if spout.kind is None:
                    yield f"{node.called} works on requests of {spout.title}, which are no transactions; let requests only ask"


def answers(facts: Facts) -> Iterator[str]:
    """A function of DRPC has a step that answers."""
    for spout in facts.spouts:
        read = [draft for draft in facts.drafts for source in draft.sources if source.number == spout.number]
        if spout.kind is None and not read:
            yield f"{spout.title} has no step that answers; add one behind new_drpc_stream({shown(spout.source.name)})"


def queried_states(facts: Facts) -> Iterator[str]:
    """What is queried is not what the query itself feeds, by way of the new values."""
    persists = {persist.state: node for node, persist in facts.doing(Persist)}
    for node, query in facts.doing(Query):
        writer = persists.get(query.state)
        if writer is not None and writer.number in facts.graph.upstream(node.number):
            yield (
                f"{node.called} asks the state that {writer.called} has just written, behind its new values; use the new values, "
                "or ask in another stream"
            )


TRIDENT_RULES: tuple[Callable[[Facts], Iterator[str]], ...] = (
    has_source,
    good_names,
    distinct_names,
    positive_parallelism,
    good_states,
    one_writer,
    exactly_once,
    windows_before_states,
    queried_states,
    drpc_alone,
    drpc_only_asks,
    answers,
)
"""All of them, in the order in which their sentences are reported."""


def _bad_spec(where: str, spec: StateSpec) -> Iterator[str]:
    if spec.kind is None:
        yield (
            f"{where} is given the state {shown(spec.factory)}; give a StateFactory: an object with kind, a StateType, and "
            "make_state(partition, partitions)"
        )
    if spec.partitions is not None and (type(spec.partitions) is not int or spec.partitions <= 0):
        yield f"{where} wants {shown(spec.partitions)} partitions; give a whole number, 1 or more, or None"
    if not isinstance(spec.accept, Guarantee):
        yield f"{where} has accept={shown(spec.accept)}; give a Guarantee, for example Guarantee.AT_LEAST_ONCE"
