"""Topology: a checked plan as frozen plain data: components, their streams and subscriptions, and the settings.

    Topology
      components   by id, in the order in which they were given
        outputs    by stream: fields, direct or not, late or not
        inputs     (component, stream, grouping)
      order        every component after those from which it reads
      task_ids     component -> the ids of its tasks, numbered from 1 in the order of the components' ids, as in Storm

Law: a Topology is made by `TopologyBuilder.build`, which has checked everything; a driver need not check it again.

It is drawn as boxes and arrows, and so is the ExecutionPlan made of it (execution/plan.py); see topology/pictures.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean
from windowing.schema.types import Schema
from windowing.topology.bolts import ComponentKind, Declaration, WindowedBolt
from windowing.topology.components import InputSpout
from windowing.topology.config import ComponentConfig, TopologyConfig
from windowing.topology.decorators import declaration_of
from windowing.topology.groupings import Grouping
from windowing.topology.pictures import Arrow, Box, mermaid, svg_of
from windowing.windows.config import OnError


class TopologyError(ConfigError):
    """A topology cannot run as it is declared; `problems` are all its mistakes, one sentence each."""

    code = "TOPOLOGY"

    def __init__(self, name: str, problems: tuple[str, ...]) -> None:
        self.name, self.problems = name, problems
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(
            f"topology {name!r}: {problems[0]}"
            if len(problems) == 1
            else f"topology {name!r} has {len(problems)} mistakes:{lines}"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.problems)


def output_name(component: str, stream: str) -> str:
    """Return the name of a stream in results and for sinks: the component's name for its default stream.

    >>> output_name("count", "default"), output_name("count", "late")
    ('count', 'count.late')
    """
    return component if stream == DEFAULT_STREAM else f"{component}.{stream}"


def stream_name(component: str, stream: str) -> str:
    """Return the name of a component's stream in exchanges, and in the watermark of its subscribers.

    >>> stream_name("count", "default")
    'count:default'
    """
    return f"{component}:{stream}"


@dataclass(frozen=True, slots=True)
class OutputStream:
    """A stream. `direct`: its emitter names the task. `late`: of late tuples. `dead`: of dead letters (dead_letters.py)."""

    schema: Schema
    direct: bool = False
    late: bool = False
    dead: bool = False

    @property
    def own(self) -> bool:
        """Whether the component's code emits to it."""
        return not self.late and not self.dead


@dataclass(frozen=True, slots=True)
class Subscription:
    """An input of a component: a stream of another component, by a grouping."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One spout or bolt. `declaration` says how it is made and called; its name is the id. `parallelism`: the number of tasks."""

    id: str
    declaration: Declaration
    parallelism: int
    outputs: Mapping[str, OutputStream]
    inputs: tuple[Subscription, ...]
    config: ComponentConfig

    def sources_of_streams(self, given: Any, wanted: str) -> Mapping[str, Any]:
        """Return the source of each stream of an InputSpout, from a mapping of them or the source of the default stream.

        wanted: what a source is called. Raises ConfigError for a stream without a source, and for a source without a stream.
        """
        streams: Mapping[str, Any] = given if isinstance(given, Mapping) else {DEFAULT_STREAM: given}
        own = self.declaration.outputs
        for stream in own:
            if stream not in streams:
                raise ConfigError(
                    f"spout {self.id!r} has a stream {stream!r} without a source; give a mapping of its streams to {wanted}"
                )
        for stream in streams:
            if stream not in own:
                raise ConfigError(
                    f"the source of spout {self.id!r} is for no stream of it; {did_you_mean(str(stream), own)}"
                )
        return streams

    @property
    def kind(self) -> ComponentKind:
        return self.declaration.kind

    @property
    def is_spout(self) -> bool:
        return self.declaration.is_spout

    @property
    def stateful(self) -> bool:
        return self.declaration.stateful

    @property
    def checkpointed(self) -> bool:
        return self.declaration.checkpointed

    @property
    def window(self) -> WindowedBolt | None:
        return self.declaration.window


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A checked plan, which a driver can run in one process or on Spark. Without slots, for what is computed once."""

    name: str
    components: Mapping[str, Component]
    order: tuple[str, ...]
    config: TopologyConfig

    @property
    def spouts(self) -> tuple[Component, ...]:
        """The sources, in the order in which they were declared."""
        return tuple(component for component in self.components.values() if component.is_spout)

    @property
    def bolts(self) -> tuple[Component, ...]:
        """The bolts, in the order in which they were declared."""
        return tuple(component for component in self.components.values() if not component.is_spout)

    @property
    def stateful(self) -> bool:
        """Whether a bolt has a state or a window on disk, so that there are checkpoints (Storm's `$checkpointspout`)."""
        return any(component.checkpointed for component in self.components.values())

    @cached_property
    def task_ids(self) -> Mapping[str, range]:
        """The ids of each component's tasks: 1, 2, ... through the components by id. Source: `StormCommon.stormTaskInfo`."""
        first, ids = 1, {}
        for name in sorted(self.components):
            ids[name] = range(first, first + self.components[name].parallelism)
            first = ids[name].stop
        return ids

    def component(self, name: str) -> Component:
        """Return a component by its id. Raises ConfigError, which names the nearest id."""
        if name not in self.components:
            raise ConfigError(f"there is no component {quote(name)}; {did_you_mean(str(name), self.components)}")
        return self.components[name]

    def fed(self, names: Iterable[Any], *, whole: bool = False) -> Topology:
        """Return the plan for a driver that gets the rows of these spouts from outside: a spout of the user's own becomes an
        InputSpout of the same fields, which nothing makes or calls. Source: `MockedSources` of Storm's `Testing`.

        whole: batches come whole, so a max spout pending of the spout has no meaning. Raises ConfigError for a spout with a direct
        stream.
        """
        given, fed = set(names), {}
        for spout in self.spouts:
            if spout.id in given and spout.kind is not ComponentKind.INPUT:
                if spout.declaration.direct:
                    stream = quote(min(spout.declaration.direct))
                    raise ConfigError(
                        f"spout {spout.id!r} names the tasks of its direct stream {stream}, which rows from outside cannot; read "
                        "the stream by custom_grouping, without direct=, or give no rows for this spout"
                    )
                declaration = declaration_of(InputSpout(spout.declaration.outputs))
                config = replace(spout.config, max_spout_pending=None) if whole else spout.config
                fed[spout.id] = replace(spout, declaration=declaration, config=config)
        return replace(self, components={**self.components, **fed}) if fed else self

    def stream(self, subscription: Subscription) -> OutputStream:
        """Return the stream that a subscription reads."""
        return self.components[subscription.component].outputs[subscription.stream]

    def schemas_read_by(self, component: Component) -> dict[tuple[str, str], Schema]:
        """Return the fields of a component's inputs, by (component, stream)."""
        read = [(found.component, found.stream) for found in component.inputs]
        return {(name, stream): self.components[name].outputs[stream].schema for name, stream in read}

    def readers(self, component: str, stream: str = DEFAULT_STREAM) -> tuple[tuple[Component, Grouping], ...]:
        """Return the subscribers of a stream, each with its grouping, in the order of the components."""
        return self._readers.get((component, stream), ())

    @cached_property
    def _readers(self) -> Mapping[tuple[str, str], tuple[tuple[Component, Grouping], ...]]:
        found: dict[tuple[str, str], list[tuple[Component, Grouping]]] = {}
        for reader in self.components.values():
            for each in reader.inputs:
                found.setdefault((each.component, each.stream), []).append((reader, each.grouping))
        return {read: tuple(readers) for read, readers in found.items()}

    def ends(self, component: Component, stream: str) -> bool:
        """Return whether a stream is an output of the plan: it has no subscriber, and it is a stream to which the component's code
        emits, its late stream, or the dead letters of a bolt with `on_error="dead_letter"`.
        """
        window = component.window
        is_kept = window is not None and window.config.on_error is OnError.DEAD_LETTER
        return (is_kept or not component.outputs[stream].dead) and not self.readers(component.id, stream)

    def config_of(self, component: str) -> TopologyConfig:
        """Return the settings of a component: the topology's, overridden by its own."""
        own = self.components[component].config
        values = {name: getattr(own, name) for name in own.given}
        return replace(self.config, own={**self.config.own, **own.own}, **values)

    def to_mermaid(self) -> str:
        """Return a drawing of the plan as Mermaid text (which GitHub and most wikis render); the same for the same plan.

        Spouts are rounded, windowed bolts have double sides, stateful ones are cylinders, late streams and dead letters are dotted.
        """
        return mermaid(self.boxes(), self.arrows())

    def _repr_svg_(self) -> str:
        return svg_of(self.boxes(), self.arrows())

    def boxes(self) -> Iterator[Box]:
        """Yield the box of each component, in the order in which data flows."""
        for name in self.order:
            component = self.components[name]
            window = component.window
            lines = [name if component.parallelism == 1 else f"{name} ×{component.parallelism}"]
            if window is not None:
                lines.append(f"window {window.config.measures}")
            shape = "window" if window is not None else "spout" if component.is_spout else "bolt"
            yield Box(name, tuple(lines), "state" if component.stateful else shape)

    def arrows(self) -> Iterator[Arrow]:
        """Yield the arrow of each subscription, in the order in which data flows."""
        for name in self.order:
            for found in self.components[name].inputs:
                stream = "" if found.stream == DEFAULT_STREAM else f"{found.stream}: "
                yield Arrow(found.component, name, f"{stream}{found.grouping}", not self.stream(found).own)


def required(given: Any, runner: str) -> Topology:
    """Return `given` if it is a Topology, else raise ConfigError that says what to pass; Storm also takes a name and a conf."""
    if isinstance(given, Topology):
        return given
    if hasattr(given, "set_bolt"):
        raise ConfigError(
            f"{runner} takes a Topology, got a TopologyBuilder; call its build(): {runner}(builder.build())"
        )
    if hasattr(given, "new_drpc_stream") or hasattr(given, "drpc"):
        trident = {"submit": "submit_trident", "LocalCluster": "TridentCluster", "run_topology": "run_trident"}[runner]
        raise ConfigError(f"{runner} runs a Topology, got a {type(given).__name__}; use {trident}(topology, ...)")
    if callable(given):
        raise ConfigError(
            f"{runner} runs a Topology, got {quote(given)}; add it to a TopologyBuilder and give builder.build(). A windowed bolt "
            "alone runs with run_local(bolt, batches), or on Spark with windowed(bolt, df)"
        )
    raise ConfigError(
        f"{runner} runs a Topology, its first argument, got {quote(given)}; give builder.build(). The name of a topology is an "
        "argument of TopologyBuilder, and its settings are those of builder.configure({...})"
    )
