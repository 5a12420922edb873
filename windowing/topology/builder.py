"""TopologyBuilder: collects spouts and bolts by id, and their subscriptions; `build` checks everything and returns the plan.

    builder = TopologyBuilder("word_count")
    builder.set_spout("sentences", sentences)
    builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    builder.set_bolt("count", count, 2).fields_grouping("split", "word")
    topology = builder.build()

Laws: no method before `build` raises or checks its arguments; `build` reports all mistakes together, changes nothing, and
may be called again. Source: Storm's `TopologyBuilder`, `BoltDeclarer`, `SpoutDeclarer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

from windowing.errors import ConfigError, quote, warn
from windowing.schema.checks import DEFAULT_STREAM, StormNames, given_names, spelled
from windowing.schema.tuples import Names
from windowing.topology import groupings
from windowing.topology.config import Setting, settings_of, without_effect
from windowing.topology.plan import Component, Subscription, Topology, TopologyError
from windowing.topology.rules import RULES, ComponentDeclaration, hidden_fields, resolve_topology, split_keys


class Declarer(StormNames):
    """The result of `set_spout` and `set_bolt`: declares a component's inputs and settings; its methods return itself.

    A grouping method names a component and one of its streams; docs/guides/topologies.md describes the groupings.
    """

    __slots__ = ("_component",)

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "addConfigurations": "configure({'topology.debug': True})",
        "setDebug": "configure(debug=True)",
        "setMaxSpoutPending": "configure(max_spout_pending=1000)",
        "setMaxTaskParallelism": "configure(max_task_parallelism=4) of the TopologyBuilder",
        "setCPULoad setCpuLoad setMemoryLoad addResource addResources addSharedMemory": (
            "nothing: components have no resources of their own; on Spark the session has them (spark.executor.memory)"
        ),
        (
            "withWindow withTumblingWindow withTimestampField withTimestampExtractor withLag withWatermarkInterval "
            "withLateTupleStream withMessageIdField withPersistence withMaxEventsInMemory"
        ): "the window above the bolt: @sliding(length, slide, timestamp=..., lag=..., late_stream=...) or @tumbling(length)",
    }

    def __init__(self, component: ComponentDeclaration) -> None:
        self._component = component

    def fields_grouping(self, component: str, fields: Names, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe; tuples with equal values of these fields go to one task."""
        return self.grouping(component, groupings.FieldsGrouping(given_names(fields)), stream)

    def partial_key_grouping(self, component: str, fields: Names, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe; tuples with equal values of these fields go to one of two tasks, the less loaded one."""
        return self.grouping(component, groupings.PartialKeyGrouping(given_names(fields)), stream)

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe; each task gets the same number of tuples."""
        return self.grouping(component, groupings.ShuffleGrouping(), stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe as by shuffle; in Storm only to tasks in the emitter's own worker, and there are no such workers here."""
        return self.grouping(component, groupings.LocalOrShuffleGrouping(), stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe with any grouping; it is a shuffle."""
        return self.grouping(component, groupings.NoneGrouping(), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe; every task gets every tuple."""
        return self.grouping(component, groupings.AllGrouping(), stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe; task 0 gets every tuple."""
        return self.grouping(component, groupings.GlobalGrouping(), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe to a stream on which the emitter names the task."""
        return self.grouping(component, groupings.DirectGrouping(), stream)

    def custom_grouping(
        self, component: str, grouping: Callable[[Any, Any], Any] | object, stream: str = DEFAULT_STREAM
    ) -> Declarer:
        """Subscribe with a function of (values, tasks) that returns the index of a task, or several."""
        return self.grouping(component, groupings.CustomGrouping(grouping), stream)

    def grouping(self, component: str, grouping: groupings.Grouping, stream: str = DEFAULT_STREAM) -> Declarer:
        """Subscribe to a stream with a grouping object. Raises ConfigError for anything else."""
        if not isinstance(grouping, groupings.Grouping):
            raise ConfigError(
                f"grouping() takes a grouping object, got {quote(grouping)}; write shuffle_grouping({quote(component)}), say, "
                "and custom_grouping for a function of (values, tasks)"
            )
        component, stream = given_names((component, stream))
        self._component.inputs.append(Subscription(component, stream, grouping))
        return self

    def configure(self, settings: Mapping[str, Any] | None = None, /, *stray: Any, **typed: Any) -> Declarer:
        """Set options of this component only, by Storm's keys or typed names; a later setting wins."""
        self._component.settings += settings_of(settings, typed, stray)
        return self

    def add_configuration(self, key: str, value: Any) -> Declarer:
        """Set one option of this component by its key, as in Storm."""
        return self.configure({key: value})

    def set_num_tasks(self, tasks: int) -> Declarer:
        """Set the number of tasks, like `parallelism`."""
        self._component.parallelism = tasks
        return self

    def __repr__(self) -> str:
        return f"Declarer({self._component.id!r})"


class TopologyBuilder(StormNames):
    """Collects a topology. `name` is used in messages, drawings and checkpoints.

    >>> from windowing import bolt, spout
    >>> @spout(output="sentence string")
    ... def sentences():
    ...     yield "the cow jumped over the moon"
    >>> @bolt(output="word string")
    ... def split(tuple):
    ...     return tuple["sentence"].split()
    >>> builder = TopologyBuilder("words")
    >>> builder.set_spout("sentences", sentences).configure(max_spout_pending=100)
    Declarer('sentences')
    >>> builder.set_bolt("split", split, parallelism=2).shuffle_grouping("sentences")
    Declarer('split')
    >>> print(builder.build().to_mermaid(), end="")
    flowchart LR
        c_sentences(["sentences"])
        c_split["split ×2"]
        c_sentences -- "shuffle" --> c_split
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "createTopology": "build()",
        "setDebug": "configure(debug=True)",
        "setMaxSpoutPending": "configure(max_spout_pending=1000)",
        "setMaxTaskParallelism": "configure(max_task_parallelism=4)",
        "setMessageTimeoutSecs": "configure(message_timeout=seconds(30))",
        "setNumAckers": "configure(acker_executors=1)",
        "setNumWorkers": "configure({'topology.workers': 3}), which has no effect: LocalCluster is one process",
        "put": "configure({'topology.max.spout.pending': 1000}), or configure(max_spout_pending=1000)",
        "addWorkerHook": "code of your own in prepare and open; there are no workers of Storm",
        "addSharedMemory": "nothing: on Spark the session has the memory (spark.executor.memory)",
        "registerMetricsConsumer": "serve_prometheus(ClusterMetrics(cluster).now), both of windowing.monitoring",
        "to_mermaid": "build().to_mermaid()",
        "boxes": "build(), which returns what to_svg and to_png draw",
    }

    def __init__(self, name: str = "topology") -> None:
        self.name = name
        self._components: list[ComponentDeclaration] = []
        self._settings: list[Setting] = []

    def __repr__(self) -> str:
        return f"TopologyBuilder({self.name!r})"

    @spelled
    def set_spout(self, id: str, spout: Any, parallelism: int = 1) -> Declarer:
        """Add a spout under an id; `parallelism` is its number of tasks."""
        return self._add(ComponentDeclaration(id, spout, parallelism, is_spout=True))

    @spelled
    def set_bolt(self, id: str, bolt: Any, parallelism: int = 1) -> Declarer:
        """Add a bolt under an id; declare its inputs on the result."""
        return self._add(ComponentDeclaration(id, bolt, parallelism, is_spout=False))

    def configure(self, settings: Mapping[str, Any] | None = None, /, *stray: Any, **typed: Any) -> TopologyBuilder:
        """Set options of the whole topology, by Storm's keys or typed names; a later setting wins.

        >>> builder = TopologyBuilder().configure({"topology.message.timeout.secs": 60}, max_spout_pending=1000)
        """
        self._settings += settings_of(settings, typed, stray)
        return self

    def build(self) -> Topology:
        """Return the plan, or raise TopologyError with a sentence for every mistake. Cost: O(components + groupings)."""
        resolved = resolve_topology(self.name, self._components, self._settings)
        problems = [*resolved.problems, *(problem for rule in RULES for problem in rule(resolved))]
        if problems:
            raise TopologyError(self.name if isinstance(self.name, str) else quote(self.name), tuple(problems))
        assert resolved.order is not None
        components = {
            id: Component(
                id=id,
                declaration=replace(resolved.declarations[id], name=id),
                parallelism=resolved.tasks(component),
                outputs=resolved.outputs[id],
                inputs=tuple(component.inputs),
                config=resolved.configs[id],
            )
            for id, component in resolved.components.items()
        }
        topology = Topology(name=self.name, components=components, order=resolved.order, config=resolved.config)
        for sentence in chain(split_keys(resolved), hidden_fields(resolved)):
            warn(f"topology {self.name!r}: {sentence}")
        idle = without_effect([*topology.config.own, *(key for each in resolved.configs.values() for key in each.own)])
        if idle is not None:
            warn(f"topology {self.name!r}: settings {idle}")
        return topology

    def _add(self, component: ComponentDeclaration) -> Declarer:
        self._components.append(component)
        return Declarer(component)
