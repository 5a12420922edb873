"""A declared topology, the parts of it that can be resolved, and the rules: one function for each mistake that it can have.

`resolve_topology` never raises for a mistake of the author: a part that cannot be resolved is left out and reported in `problems`.
Then each function of RULES yields a sentence for each occurrence of its mistake, so all mistakes are reported together. A rule
checks only resolved parts, so that a mistake is not reported again for each of its consequences. The first line of a rule's
docstring is its row in docs/guides/topologies.md (a test compares them).
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import did_you_mean, is_whole
from windowing.schema.hashing import hashable, have_same_keys
from windowing.schema.tuples import Tuple
from windowing.schema.types import WHOLE_BITS, Schema
from windowing.topology import groupings
from windowing.topology.bolts import Declaration, WindowedBolt, class_of
from windowing.topology.components import _Component
from windowing.topology.config import (
    OUTSIDE_TRIDENT,
    ComponentConfig,
    Setting,
    TopologyConfig,
    read_settings,
    refused_settings,
    unordered_delays,
)
from windowing.topology.dead_letters import DEAD_LETTER_FIELDS, DEAD_LETTERS
from windowing.topology.decorators import declaration_of
from windowing.topology.plan import OutputStream, Subscription
from windowing.topology.user_code import TIMELESS, holds_times
from windowing.windows.aggregate import aggregated_fields
from windowing.windows.config import WindowConfig
from windowing.windows.measures import Count, Duration, Measure

REASON = "reason"
"""The field that a late stream adds to the fields of the late tuples."""


@dataclass(slots=True)
class ComponentDeclaration:
    """One component as it was written; none of it has been checked."""

    id: Any
    target: Any
    parallelism: Any
    is_spout: bool
    inputs: list[Subscription] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)

    @property
    def called(self) -> str:
        """The component's name in a sentence: "bolt 'count'"."""
        return f"{'spout' if self.is_spout else 'bolt'} {quote(self.id)}"


def stream_called(found: Subscription) -> str:
    """Return the name of a subscribed stream in a sentence: 'split', or 'split':'late'."""
    return quote(found.component) if found.stream == "default" else f"{quote(found.component)}:{quote(found.stream)}"


@dataclass(slots=True)
class ResolvedTopology:
    """The resolved parts of a topology; each mapping contains only entries that could be resolved.

    components: the first one of each id. declarations, configs: by id. outputs: by id and stream; the late stream of a bolt only if
    its inputs agree on the types of fields with the same name. order: None if there is a cycle. problems: a sentence for each part
    that could not be resolved.
    """

    components: dict[str, ComponentDeclaration]
    config: TopologyConfig
    declarations: dict[str, Declaration] = field(default_factory=dict)
    configs: dict[str, ComponentConfig] = field(default_factory=dict)
    outputs: dict[str, dict[str, OutputStream]] = field(default_factory=dict)
    cycles: list[list[str]] = field(default_factory=list)
    order: tuple[str, ...] | None = None
    problems: list[str] = field(default_factory=list)

    def bolts(self) -> Iterator[ComponentDeclaration]:
        return (component for component in self.components.values() if not component.is_spout)

    def windowed(self) -> Iterator[tuple[ComponentDeclaration, WindowedBolt]]:
        for name, declared in self.declarations.items():
            if declared.window is not None:
                yield self.components[name], declared.window

    def tasks(self, component: ComponentDeclaration) -> int:
        """Return the number of a component's tasks: its parallelism, at most `topology.max.task.parallelism`."""
        given, limit = component.parallelism, self.config.max_task_parallelism
        tasks = given if isinstance(given, int) else 1
        return tasks if limit is None else min(limit, tasks)

    def max_spout_pending(self, spout: str) -> int | None:
        """Return how many tuples of a task of a spout may be in flight, None for no limit: its own setting, or the topology's."""
        own = self.configs.get(spout)
        return (
            own.max_spout_pending
            if own is not None and "max_spout_pending" in own.given
            else self.config.max_spout_pending
        )

    def stream(self, found: Subscription) -> OutputStream | None:
        """Return the stream that a subscription reads, None if it is unknown."""
        return self.outputs.get(found.component, {}).get(found.stream)

    def above(self, component: ComponentDeclaration) -> Iterator[tuple[ComponentDeclaration, Subscription]]:
        """Yield every subscription between the spouts and a component, with the subscriber."""
        visited, ahead = {component.id}, [component]
        while ahead:
            reader = ahead.pop()
            for found in reader.inputs:
                yield reader, found
                if found.component in self.components and found.component not in visited:
                    visited.add(found.component)
                    ahead.append(self.components[found.component])


def resolve_topology(
    name: Any, components: Sequence[ComponentDeclaration], settings: Iterable[Setting]
) -> ResolvedTopology:
    """Resolve the author's declarations. Cost: O(components + subscriptions), and one instance of a class with settings."""
    by_id: dict[str, list[ComponentDeclaration]] = {}
    problem = name_problem(name, "the name of a topology")
    problems = [] if problem is None else [problem]
    for component in components:
        if isinstance(component.id, str):
            by_id.setdefault(component.id, []).append(component)
        else:
            problems.append(f"the id of a component is a text, got {quote(component.id)}; write for example 'count'")
    for id, same in by_id.items():
        if len(same) > 1:
            problems.append(f"the id {quote(id)} is given to {len(same)} components; give each its own")
    values, wrong = read_settings(settings, "topology")
    first = {id: same[0] for id, same in by_id.items()}
    resolved = ResolvedTopology(first, TopologyConfig(**values), problems=[*problems, *wrong])
    for id, component in first.items():
        _declare(resolved, id, component)
    _sort(resolved)
    for name in resolved.order or ():
        if name in resolved.declarations:
            resolved.outputs[name] = _outputs(resolved, name)
    return resolved


def _declare(resolved: ResolvedTopology, name: str, component: ComponentDeclaration) -> None:
    try:
        declared = declaration_of(component.target)
        written = own_settings(declared)
    except ConfigError as problem:
        resolved.problems.append(f"{component.called}: {problem.args[0]}")
        return
    values, problems = read_settings([*written.items(), *component.settings], "spout" if component.is_spout else "bolt")
    resolved.declarations[name] = declared
    resolved.configs[name] = ComponentConfig.of(values)
    resolved.problems += [f"{component.called}: {problem}" for problem in problems]


def own_settings(declared: Declaration) -> Mapping[str, Any]:
    """Return the settings of a class by `get_component_configuration`; an instance is made to call it."""
    of_class = class_of(declared.target) if declared.is_class else None
    method = getattr(of_class, "get_component_configuration", None)
    if method is None or method is _Component.get_component_configuration or declared.target is None:
        return {}
    try:
        settings = declared.target().get_component_configuration()
    except Exception as problem:
        raise ConfigError(
            f"its get_component_configuration failed with {type(problem).__name__}: {problem}; "
            "it is called when the topology is built, before open() or prepare()"
        ) from problem
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"get_component_configuration returns a mapping, got {quote(settings)}; return {{key: value}}"
        )
    return settings


def _sort(resolved: ResolvedTopology) -> None:
    """Find the order of the components, or every cycle that prevents one."""
    edges = {
        name: [found.component for found in component.inputs if found.component in resolved.components]
        for name, component in resolved.components.items()
        if not component.is_spout
    }
    nodes = {name: edges.get(name, []) for name in resolved.components}
    while True:
        try:
            order = tuple(graphlib.TopologicalSorter(nodes).static_order())
        except graphlib.CycleError as found:
            cycle = found.args[1][:-1]  # in the direction of the data
            first = cycle.index(next(name for name in resolved.components if name in cycle))
            cycle = cycle[first:] + cycle[:first]
            resolved.cycles.append(cycle)
            nodes[cycle[0]] = [name for name in nodes[cycle[0]] if name != cycle[-1]]
            continue
        resolved.order = None if resolved.cycles else order
        return


def _outputs(resolved: ResolvedTopology, name: str) -> dict[str, OutputStream]:
    declared = resolved.declarations[name]
    outputs = {
        stream: OutputStream(schema, direct=stream in declared.direct) for stream, schema in declared.outputs.items()
    }
    late = None if declared.window is None else declared.window.config.late_stream
    if late is not None:
        read = [resolved.stream(found) for found in resolved.components[name].inputs]
        fields = _late_fields([stream.schema for stream in read if stream is not None])
        if fields is not None and read and None not in read:
            outputs[late] = OutputStream(fields, late=True)
    outputs[DEAD_LETTERS] = OutputStream(DEAD_LETTER_FIELDS, dead=True)
    return outputs


def _late_fields(inputs: Sequence[Schema]) -> Schema | None:
    """Return the fields of all inputs, each once, and the reason; None if two inputs have different types for one name."""
    fields: dict[str, tuple[str, str]] = {}
    for schema in inputs:
        for name, kind in schema.kinds.items():
            if fields.setdefault(name.lower(), (name, kind)) != (name, kind):
                return None
    names, types = zip(*fields.values(), (REASON, "string"), strict=True)
    return Schema(names, types)


# -- rules of windows ------------------------------------------------------------------------------------------------------------


def nested(option: str, called: str, name: str, kind: str) -> str | None:
    """Return the sentence about an option that names a field of a nested type, None for a plain type."""
    if not kind.startswith(("array", "map", "struct")):
        return None
    return f"{option} of {called} names column {name!r}, which is {kind}; give a column of plain values"


def no_id(called: str, name: str, kind: str) -> str | None:
    """Return the sentence about a message_id that is not a whole number, None for one that is."""
    if kind in WHOLE_BITS:
        return None
    return (
        f"message_id of {called} names {name!r}, which is {kind}; give a field of whole numbers that rise, an offset at the "
        "source, say"
    )


def fields_named(config: WindowConfig) -> Iterator[tuple[str, str]]:
    """Yield each option of a window that names a field, with the field."""
    for option in ("timestamp", "source", "message_id"):
        name = getattr(config, option)
        if isinstance(name, str):
            yield option, name
    yield from (("key", name) for name in config.key or ())
    aggregated = () if config.aggregate is None else aggregated_fields(config.aggregate)
    yield from (("aggregate", name) for name in aggregated if name is not None)


def fields_of_windows(resolved: ResolvedTopology) -> Iterator[str]:
    """The fields that a window names (timestamp, source, message_id, key, aggregate) are in every stream that its bolt reads."""
    for component, config, found, kinds in _inputs_of_windows(resolved):
        for option, name in fields_named(config):
            if name not in kinds:
                hint = did_you_mean(name, kinds)
                yield f"{component.called} has {option}={name!r}, a field that {stream_called(found)} has not; {hint}"


def plain_keys(resolved: ResolvedTopology) -> Iterator[str]:
    """The fields of a window's key are not arrays, maps or structs."""
    named = (
        nested("key", component.called, name, kinds[name])
        for component, config, _, kinds in _inputs_of_windows(resolved)
        for name in config.key or ()
        if name in kinds
    )
    yield from dict.fromkeys(filter(None, named))


def whole_ids(resolved: ResolvedTopology) -> Iterator[str]:
    """The message_id of a window is a whole number."""
    named = (
        no_id(component.called, config.message_id, kinds[config.message_id])
        for component, config, _, kinds in _inputs_of_windows(resolved)
        if config.message_id is not None and config.message_id in kinds
    )
    yield from dict.fromkeys(filter(None, named))


def times_of_windows(resolved: ResolvedTopology) -> Iterator[str]:
    """The timestamp of a window is a number, a date or a time."""
    for component, config, found, kinds in _inputs_of_windows(resolved):
        name = config.timestamp
        if isinstance(name, str) and name in kinds and not holds_times(kinds[name]):
            yield f"{component.called} has timestamp={name!r}, which {stream_called(found)} declares {kinds[name]}: {TIMELESS}"


def windows_within_timeout(resolved: ResolvedTopology) -> Iterator[str]:
    """Length + slide + lag + watermark interval of a time window in memory are at most the message timeout, if there is one."""
    config = resolved.config
    for component, bolt in resolved.windowed() if config.timeouts else ():
        window = bolt.config
        if window.max_events_in_memory is not None:
            continue  # its tuples are acked by the next checkpoint
        in_time = [(what, measure.ms) for what, measure in _sizes(window) if isinstance(measure, Duration)]
        spans = [*in_time]
        if window.event_time:
            spans += [("lag", window.lag_ms), ("watermark interval", window.watermark_interval_ms)]
        if bolt.stateful:
            spans += [("checkpoint interval", config.state_checkpoint_interval_ms)]
        held = sum(ms for _, ms in spans)
        if held > config.message_timeout_ms and in_time:
            clock = "taking event time for the clock, as Storm does; " if window.event_time else ""
            yield (
                f"{component.called} acks a tuple when it expires, after up to {held} ms "
                f"({' + '.join(f'{what} {ms}' for what, ms in spans)}), but it fails after {config.message_timeout_ms} ms; "
                f"{clock}set topology.message.timeout.secs to {-(-held // 1000)} or more, or "
                "topology.enable.message.timeouts to False"
            )


def windows_within_pending(resolved: ResolvedTopology) -> Iterator[str]:
    """Length + slide of a count window in memory, times its tasks, are at most the max spout pending of every spout above."""
    for component, bolt in resolved.windowed() if resolved.config.acker_executors > 0 else ():
        window = bolt.config
        if window.max_events_in_memory is not None:
            continue
        counts = [(what, measure.value) for what, measure in _sizes(window) if isinstance(measure, Count)]
        shared = not all(
            isinstance(found.grouping, groupings.AllGrouping | groupings.GlobalGrouping) for found in component.inputs
        )
        tasks = resolved.tasks(component) if shared else 1  # else every task, or one task, gets all tuples
        held = sum(value for _, value in counts) * tasks
        each = f" in each of {tasks} tasks" if tasks > 1 else ""
        above = {found.component for _, found in resolved.above(component)}
        for spout in (name for name, found in resolved.components.items() if found.is_spout and name in above):
            pending = resolved.max_spout_pending(spout)
            if pending is not None and held > pending:
                yield (
                    f"{component.called} holds up to {held} tuples without an ack "
                    f"({' + '.join(f'{what} {value}' for what, value in counts)}{each}), but spout {spout!r} stops at "
                    f"{pending} in flight, so no window might ever be full; set topology.max.spout.pending to {held} or more"
                )


def _sizes(window: WindowConfig) -> list[tuple[str, Measure | None]]:
    return [("length", window.length), ("slide", window.slide)]


_NO_TICKS_OF_BATCHES = "it is handed batches of its inputs, and a tick is a tuple; leave it out, or leave out columnar="
_NO_TICKS = "a window over the clock fires in time by itself"
NO_TICKS_OF_WINDOWS = f"it is handed windows, and a tick is a tuple; leave it out: {_NO_TICKS}"


def ticks_of_bolts(resolved: ResolvedTopology) -> Iterator[str]:
    """A bolt over windows or batches sets no ticks, and a topology that sets them has a bolt of another kind."""
    windowed = [name for name, declared in resolved.declarations.items() if declared.window is not None]
    columnar = [name for name, declared in resolved.declarations.items() if declared.columnar is not None]
    for names, why in (
        (columnar, _NO_TICKS_OF_BATCHES),
        (windowed, f"{NO_TICKS_OF_WINDOWS}, or give ticks to a bolt behind it"),
    ):
        for name in names:
            if resolved.configs[name].tick_tuple_freq_ms is not None:
                yield f"{resolved.components[name].called} asks for ticks (topology.tick.tuple.freq.secs), but {why}"
    bolts = [component.id for component in resolved.bolts()]
    if resolved.config.tick_tuple_freq_ms is not None and bolts and all(name in windowed + columnar for name in bolts):
        handed = "a windowed one, and those are handed windows"
        if any(name in columnar for name in bolts):
            handed = "a windowed or a columnar one, and those are handed windows and batches"
        yield f"topology.tick.tuple.freq.secs asks for ticks, but every bolt is {handed}; leave it out: {_NO_TICKS}"


def _inputs_of_windows(
    resolved: ResolvedTopology,
) -> Iterator[tuple[ComponentDeclaration, WindowConfig, Subscription, dict[str, str]]]:
    """Yield each known stream that a windowed bolt reads: the bolt, its windows, the subscription, the types of the fields."""
    for component, bolt in resolved.windowed():
        for found in component.inputs:
            stream = resolved.stream(found)
            if stream is not None:
                yield component, bolt.config, found, stream.schema.kinds


# -- rules of windows that survive their process ---------------------------------------------------------------------------------


def ids_find_their_windows(resolved: ResolvedTopology) -> Iterator[str]:
    """With message_id= a repeated tuple takes the same way: shuffle and partial-key groupings lead to one task only."""
    for component, bolt in resolved.windowed():
        for reader, found in resolved.above(component) if bolt.config.message_id is not None else ():
            tasks = resolved.tasks(reader)
            if found.grouping.start(2) and tasks != 1:  # what has a state chooses by earlier tuples
                yield (
                    f"{component.called} knows tuples again by message_id={quote(bolt.config.message_id)}, but "
                    f"{reader.called} reads {quote(found.component)} by {found.grouping} grouping with {tasks} "
                    "tasks, so that a tuple that comes again may go to another one; use fields_grouping, or one task"
                )


def ids_come_again(resolved: ResolvedTopology) -> Iterator[str]:
    """With message_id= there is an acker, so that tuples are sent again."""
    for component, bolt in resolved.windowed() if resolved.config.acker_executors == 0 else ():
        if bolt.config.message_id is not None and bolt.stateful:
            yield (
                f"{component.called} waits after a restart for tuples that were not acked, but without an acker all are; set "
                "topology.acker.executors to 1 or more"
            )


def disks_feed_disks(resolved: ResolvedTopology) -> Iterator[str]:
    """No window in memory reads from a window on disk, directly or through other bolts, because no spout sends its rows again."""
    on_disk = {each.id for each, bolt in resolved.windowed() if bolt.config.max_events_in_memory is not None}
    for component, _ in resolved.windowed():
        if component.id not in on_disk:
            for disk in sorted(on_disk & {found.component for _, found in resolved.above(component)}):
                yield (
                    f"{component.called} keeps in memory what comes from {quote(disk)}, whose window is on disk and whose "
                    "tuples were acked: after a crash nobody sends that again; give it max_events_in_memory= too"
                )


# -- RULES -----------------------------------------------------------------------------------------------------------------------


_CALLED = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def name_problem(name: object, what: str) -> str | None:
    """Return the problem with `name` as a name, None for a good one.

    Topologies, components and streams of batches have names as in Storm's examples, with `-` and `.`, because no driver makes
    columns or tables of them. Names that become one (fields, streams, states, a windowed bolt alone) are identifiers:
    `checked_name`.
    """
    if isinstance(name, str) and _CALLED.fullmatch(name):
        return None
    better = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:62] if isinstance(name, str) else ""
    better = better if better[:1].isalpha() else f"c{better}" if better else "word_count"
    return (
        f"{what} is a name of letters, digits, '_', '-' and '.' that begins with a letter or '_', at most 63 long, "
        f"got {quote(name)}; write for example {better!r}"
    )


def good_names(resolved: ResolvedTopology) -> Iterator[str]:
    """An id has letters, digits, `_`, `-`, `.`, a letter or `_` first, and at most 63 characters; `__` first is reserved."""
    for name, component in resolved.components.items():
        problem = name_problem(name, f"the id of a {'spout' if component.is_spout else 'bolt'}")
        if problem is not None:
            yield problem
        elif name.startswith("__"):
            yield f"{component.called} begins with two underscores, as only the driver's own components do; rename it"
        elif (owner := name.rpartition(".")[0]) in resolved.components:
            yield f"{component.called} is called like a stream of {owner!r}, whose rows a run gives as {name!r}; rename one of them"


def distinct_names(resolved: ResolvedTopology) -> Iterator[str]:
    """No two ids differ only in upper and lower case."""
    first: dict[str, str] = {}
    for name in resolved.components:
        other = first.setdefault(name.lower(), name)
        if other != name:
            yield f"{quote(other)} and {quote(name)} differ only in upper and lower case; rename one of them"


def has_spout(resolved: ResolvedTopology) -> Iterator[str]:
    """The topology has at least one spout."""
    if not any(component.is_spout for component in resolved.components.values()):
        yield "there is no spout, so there is nothing to work on; add one with set_spout(id, spout)"


def right_kind(resolved: ResolvedTopology) -> Iterator[str]:
    """`set_spout` is given a spout, `set_bolt` a bolt."""
    for name, declared in resolved.declarations.items():
        component = resolved.components[name]
        if declared.is_spout != component.is_spout:
            is_now = "spout" if declared.is_spout else "bolt"
            yield f"{component.called} is given {declared.name!r}, which is a {is_now}; use set_{is_now}"


def positive_parallelism(resolved: ResolvedTopology) -> Iterator[str]:
    """The parallelism is a whole number above 0."""
    for component in resolved.components.values():
        tasks = component.parallelism
        if not is_whole(tasks, 1):
            yield f"{component.called} has parallelism={quote(tasks)}; give the number of its tasks, 1 or more"


def no_input_of_spouts(resolved: ResolvedTopology) -> Iterator[str]:
    """A spout reads no stream."""
    for component in resolved.components.values():
        if component.is_spout and component.inputs:
            found = component.inputs[0]
            yield (
                f"{component.called} is subscribed to {stream_called(found)}, but a spout only emits; "
                "make it a bolt, or leave out the grouping"
            )


def input_of_bolts(resolved: ResolvedTopology) -> Iterator[str]:
    """A bolt reads at least one stream."""
    for component in resolved.bolts():
        if not component.inputs:
            yield f"{component.called} reads nothing; say what it reads, for example .shuffle_grouping('sentences')"


def known_components(resolved: ResolvedTopology) -> Iterator[str]:
    """A bolt reads only components of the topology."""
    for component, found in _subscriptions(resolved):
        if found.component not in resolved.components:
            hint = did_you_mean(found.component, [name for name in resolved.components if name != component.id])
            yield f"{component.called} reads component {quote(found.component)}, which is not there; {hint}"


def known_streams(resolved: ResolvedTopology) -> Iterator[str]:
    """A bolt reads only streams that their component declares; a late stream needs late_stream=."""
    for component, found in _subscriptions(resolved):
        declared = resolved.declarations.get(found.component)
        if declared is None or found.stream in (DEAD_LETTERS, *resolved.outputs.get(found.component, declared.outputs)):
            continue
        if declared.window is not None and found.stream == declared.window.config.late_stream:
            continue  # its fields are unknown: see late_streams
        hint = _how_to_read(found, declared)
        yield f"{component.called} reads stream {stream_called(found)}, which is not declared; {hint}"


def _how_to_read(found: Subscription, declared: Declaration) -> str:
    """Return what to write for a subscription to a stream that its component does not declare."""
    window = declared.window
    late = None if window is None else window.config.late_stream
    streams = [*declared.outputs, *([] if late is None else [late])]
    first = next(iter(getattr(found.grouping, "fields", ())), None)
    if first in streams:  # fields_grouping("split", "late", Fields("word")), the order of Storm
        return f"the fields come first: ({found.component!r}, fields, stream={first!r})"
    if first is not None and any(found.stream in schema.names for schema in declared.outputs.values()):
        return (
            f"several fields are a list: ({found.component!r}, [{first!r}, {found.stream!r}])"  # ("split", "word", "n")
        )
    hint = did_you_mean(found.stream, streams) if streams else "it declares none; add output= to its decorator"
    if window is not None and late is None:
        hint += f", or for late tuples add late_stream={quote(found.stream)} and a timestamp to {window.name!r}"
    return hint


def no_own_dead_letters(resolved: ResolvedTopology) -> Iterator[str]:
    """No component declares a stream `dead_letters`, which every component has for its dead letters."""
    for name, declared in resolved.declarations.items():
        late = None if declared.window is None else declared.window.config.late_stream
        for stream in (*declared.outputs, late or ""):
            if stream.lower() == DEAD_LETTERS:
                yield f"{resolved.components[name].called} has a stream {stream!r}, where dead letters go; give it another name"


def one_subscription(resolved: ResolvedTopology) -> Iterator[str]:
    """A bolt reads a stream once, by one grouping."""
    for component in resolved.bolts():
        read = set()
        for found in component.inputs:
            stream = (found.component, found.stream)
            if stream in read:
                yield f"{component.called} reads {stream_called(found)} twice; keep one grouping (Storm would keep the last)"
            read.add(stream)


def no_cycle(resolved: ResolvedTopology) -> Iterator[str]:
    """No component reads its own output, directly or through other components."""
    for cycle in resolved.cycles:
        yield (
            f"{' -> '.join([*cycle, cycle[0]])} is a cycle, in which a tuple tree might never be complete; "
            "leave out one of these groupings, or send what goes round through an outer queue"
        )


def keys_of_fields(resolved: ResolvedTopology) -> Iterator[str]:
    """A grouping by fields names fields of the stream, each once, whose types have a hash (no map, no struct)."""
    for component, found in _subscriptions(resolved):
        stream = resolved.stream(found)
        if not isinstance(found.grouping, groupings.FieldsGrouping):
            continue
        names = found.grouping.fields
        what = f"{component.called} groups {stream_called(found)} by"
        if not names:
            yield f"{what} no field; name some, or use global_grouping (which is what Storm makes of it)"
        elif len(set(names)) < len(names):
            yield f"{what} a field twice, {', '.join(names)}; name each field once"
        if stream is not None:
            kinds = stream.schema.kinds
            for name in dict.fromkeys(names):
                if name not in kinds:
                    yield f"{what} field {quote(name)}, which is not there; {did_you_mean(name, kinds)}"
                elif (reason := hashable(kinds[name])) is not None:
                    yield f"{what} field {name!r} of type {kinds[name]}, which has no hash: {reason}"


def same_keys(resolved: ResolvedTopology) -> Iterator[str]:
    """If a bolt reads two streams by the same fields, equal values of these fields have the same hash in both."""
    for component in resolved.bolts():
        first: dict[tuple[str, ...], tuple[Subscription, list[str]]] = {}
        for found in component.inputs:
            stream = resolved.stream(found)
            if not isinstance(found.grouping, groupings.FieldsGrouping) or stream is None:
                continue
            names = found.grouping.fields
            if not set(names) <= set(stream.schema.names):
                continue
            kinds = list(stream.schema.of(names).types)
            other, expected = first.setdefault(names, (found, kinds))
            if not have_same_keys(kinds, expected):
                yield (
                    f"{component.called} reads {stream_called(other)} and {stream_called(found)} by {', '.join(names)}, which is "
                    f"{', '.join(expected)} in one and {', '.join(kinds)} in the other, so equal keys would not meet; "
                    "declare the same types"
                )


def direct_streams(resolved: ResolvedTopology) -> Iterator[str]:
    """A direct grouping reads a stream that is declared direct, and such a stream is read by no other grouping."""
    for component, found in _subscriptions(resolved):
        stream = resolved.stream(found)
        if stream is None:
            continue
        if isinstance(found.grouping, groupings.DirectGrouping) and not stream.direct:
            way_out = f"declare it with direct={found.stream!r}, or use another grouping"
            yield f"{component.called} reads {stream_called(found)} by direct grouping, but it is not declared direct; {way_out}"
        elif stream.direct and not isinstance(found.grouping, groupings.DirectGrouping):
            yield (
                f"{component.called} reads {stream_called(found)} by {found.grouping} grouping, but its emitter names the task of "
                "each tuple; use direct_grouping"
            )


def callable_custom(resolved: ResolvedTopology) -> Iterator[str]:
    """A custom grouping is a function of (values, tasks), or has choose_tasks(values, tasks)."""
    for component, found in _subscriptions(resolved):
        if isinstance(found.grouping, groupings.CustomGrouping):
            mistake = found.grouping.mistake()
            if mistake is not None:
                yield f"{component.called} groups {stream_called(found)} by {quote(found.grouping.choose)}; {mistake}"


def late_streams(resolved: ResolvedTopology) -> Iterator[str]:
    """The inputs of a bolt with a late stream have no field `reason`, and one type for each field name."""
    for component, bolt in resolved.windowed():
        late = bolt.config.late_stream
        if late is None:
            continue
        read = [(found, stream) for found in component.inputs if (stream := resolved.stream(found)) is not None]
        for found, stream in read:
            if REASON in map(str.lower, stream.schema.names):
                yield f"{component.called}: its late stream adds a field 'reason', which {stream_called(found)} has; rename it"
        yield from _alike_by_name(component, late, read)


def _alike_by_name(
    component: ComponentDeclaration, late: str, read: list[tuple[Subscription, OutputStream]]
) -> Iterator[str]:
    first: dict[str, tuple[Subscription, str, str]] = {}
    for found, stream in read:
        for name, kind in stream.schema.kinds.items():
            other, called, expected = first.setdefault(name.lower(), (found, name, kind))
            if (called, expected) != (name, kind):
                yield (
                    f"{component.called} reads streams of different fields, so its late stream {late!r} has no fields of its own: "
                    f"{called!r} is {expected} in {stream_called(other)}, {name!r} is {kind} in {stream_called(found)}; declare "
                    f"one name and one type, or leave out late_stream= (late tuples are counted)"
                )


def checkpoints_within_timeout(resolved: ResolvedTopology) -> Iterator[str]:
    """With a stateful bolt, or a window on disk, the checkpoint interval is at most the message timeout, if there is one."""
    config = resolved.config
    stateful = [name for name, declared in resolved.declarations.items() if declared.checkpointed]
    if stateful and config.timeouts and config.state_checkpoint_interval_ms > config.message_timeout_ms:
        yield (
            f"bolt {stateful[0]!r} acks at a checkpoint, every {config.state_checkpoint_interval_ms} ms, but a tuple fails "
            f"after {config.message_timeout_ms} ms; lower topology.state.checkpoint.interval.ms, or raise "
            "topology.message.timeout.secs"
        )


def ordered_delays(resolved: ResolvedTopology) -> Iterator[str]:
    """The longest delay of a retry is at least the first one, and less than an hour."""
    yield from unordered_delays(resolved.config)


def settings_of_batches(resolved: ResolvedTopology) -> Iterator[str]:
    """The two settings of batches are for Trident topologies."""
    yield from refused_settings(resolved.config, OUTSIDE_TRIDENT)


RULES: tuple[Callable[[ResolvedTopology], Iterator[str]], ...] = (
    good_names,
    distinct_names,
    has_spout,
    right_kind,
    positive_parallelism,
    no_input_of_spouts,
    input_of_bolts,
    known_components,
    known_streams,
    no_own_dead_letters,
    one_subscription,
    no_cycle,
    keys_of_fields,
    same_keys,
    direct_streams,
    callable_custom,
    late_streams,
    fields_of_windows,
    plain_keys,
    whole_ids,
    times_of_windows,
    windows_within_timeout,
    windows_within_pending,
    ticks_of_bolts,
    ordered_delays,
    settings_of_batches,
    checkpoints_within_timeout,
    ids_find_their_windows,
    ids_come_again,
    disks_feed_disks,
)
"""All rules, in the order in which their sentences are reported."""


def split_keys(resolved: ResolvedTopology) -> Iterator[str]:
    """Yield a sentence for each input of a window with key= whose grouping leads one key to several tasks.

    It is no mistake, as the windows of parts of a key may be wanted. A partial-key grouping says so; a direct or custom one may be
    right.
    """
    splits = groupings.ShuffleGrouping | groupings.FieldsGrouping
    for component, bolt in resolved.windowed():
        key, tasks = bolt.config.key or (), resolved.tasks(component)
        for found in component.inputs if key and tasks > 1 else ():
            by = found.grouping
            is_whole = isinstance(by, groupings.PartialKeyGrouping) or {*getattr(by, "fields", "*")} <= {*key}
            if isinstance(by, splits) and not is_whole:
                yield (
                    f"{component.called} has windows for each {', '.join(key)}, but {stream_called(found)} is dealt to its {tasks} "
                    f"tasks by {by} grouping, so a window holds only what of a key came to its task; write fields_grouping("
                    f"{found.component!r}, {list(key)}), or for windows of such parts partial_key_grouping"
                )


def hidden_fields(resolved: ResolvedTopology) -> Iterator[str]:
    """Yield a sentence for each field that has the name of an attribute of Tuple, which `tuple.name` gives in its place."""
    for component, found in _subscriptions(resolved):
        stream = resolved.stream(found)
        for name in () if stream is None else stream.schema.names:
            if not name.startswith("_") and hasattr(Tuple, name):
                yield (
                    f"{component.called} reads the field {name!r} of {stream_called(found)} as tuple[{name!r}] only: tuple.{name} "
                    "is an attribute of Storm's Tuple; give the field another name"
                )


def _subscriptions(resolved: ResolvedTopology) -> Iterator[tuple[ComponentDeclaration, Subscription]]:
    return ((component, found) for component in resolved.bolts() for found in component.inputs)
