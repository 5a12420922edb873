"""The effect of each option in each runtime, as one table. docs/reference/options.md is generated from it; drivers log by it.

    WORKS              it has the documented effect
    Refused(sentence)  an error with this sentence, before anything runs
    Without(reason)    it has no effect there; a driver that gets it logs that once, at its start

Law: no option is ignored silently. tests/test_options.py checks the options of decorators, groupings, settings, Trident's
operations and the arguments of each start, and fails for one without a row. An argument without a cell does not exist in that
runtime.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from windowing.errors import ConfigError, quote
from windowing.topology.bolts import WindowedBolt, class_of, fields_set
from windowing.topology.config import (
    IN_TRIDENT,
    KEYS,
    OUTSIDE_TRIDENT,
    WINDOWS_OUTSIDE_TRIDENT,
    ComponentConfig,
    TopologyConfig,
    read_settings,
)
from windowing.topology.declaration import own_settings
from windowing.topology.decorators import Declaration
from windowing.topology.plan import Component
from windowing.windows.config import WindowConfig
from windowing.windows.measures import Count

__all__ = [
    "COMPONENT_OPTIONS",
    "COORDINATED",
    "DECLARER_OPTIONS",
    "GROUPINGS",
    "SETTINGS",
    "SINKS",
    "SOURCES",
    "START_OPTIONS",
    "TRIDENT_OPERATIONS",
    "WINDOW_OPTIONS",
    "WORKS",
    "LostFieldsWarning",
    "Refused",
    "Runtime",
    "Without",
    "announce",
    "announce_bolt",
    "lost_fields",
    "settings_without_effect",
    "tasks_without_effect",
    "windows_without_effect",
]


class LostFieldsWarning(UserWarning):
    """A bolt assigns to its own fields while it runs, but on Spark its instance lives for one batch only."""


class Runtime(Enum):
    """The runtimes of a declaration; LOCAL is `run_local` and LocalRun."""

    LOCAL = "run_local"
    CLUSTER = "LocalCluster"
    TRIDENT = "TridentCluster"
    WINDOWED = "Spark windowed"
    SUBMIT = "Spark submit"
    SUBMIT_TRIDENT = "Spark submit_trident"


class Refused(NamedTuple):
    """An error that contains `sentence`."""

    sentence: str


class Without(NamedTuple):
    """No effect, with the reason."""

    reason: str


WORKS = "works"
Cell = str | Refused | Without

_EVERYWHERE: tuple[Cell, ...] = (WORKS, WORKS, WORKS, WORKS)
_TRIDENT = (Runtime.TRIDENT, Runtime.SUBMIT_TRIDENT)
_BY_BATCH = Without("windows advance after each micro-batch; trigger= sets how often")
_STORED = Without("windows are stored with their tuples, so a restart waits for none")
_IN_STORE = Refused("on Spark a turn has all live tuples of its task in memory")

_WINDOWS: dict[str, tuple[Cell, ...]] = {
    **dict.fromkeys(
        ("length", "slide", "output", "name", "timestamp", "lag", "late_stream", "offset", "lateness", "repeat"),
        _EVERYWHERE,
    ),
    **dict.fromkeys(
        ("max_repeats", "source", "idle_timeout", "max_future", "key", "key_ttl", "on_invalid"), _EVERYWHERE
    ),
    **dict.fromkeys(("semantics", "aggregate", "eviction", "trigger", "columnar"), _EVERYWHERE),
    "watermark_interval": (WORKS, WORKS, _BY_BATCH, _BY_BATCH),
    "on_error": (
        WORKS,
        WORKS,
        Refused("on_error='fail', which fails tuples back to their spout, and none of its spouts takes acks"),
        WORKS,
    ),
    "max_events_in_memory": (WORKS, WORKS, _IN_STORE, _IN_STORE),
    "message_id": (WORKS, WORKS, WORKS, WORKS),
    "recovery_timeout": (Without("a run has no restart"), WORKS, _STORED, _STORED),
}
_WINDOWS_RUN_IN = (Runtime.LOCAL, Runtime.CLUSTER, Runtime.WINDOWED, Runtime.SUBMIT)

_OF_BOLTS = {
    **{option: Refused(why) for option, why in WINDOWS_OUTSIDE_TRIDENT.items()},
    "on_error": Refused("here a batch fails whole, by a FailedException; write on_error='raise' or 'skip'"),
    "columnar": Refused("here a window is rows; leave it out"),
}
_ELSEWHERE = ("output", "name")
"""The options that a Trident window has in another form: `output` is an argument of its own, and `.name()` gives the name."""

WINDOW_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    option: {
        **dict(zip(_WINDOWS_RUN_IN, cells, strict=True)),
        **({} if option in _ELSEWHERE else dict.fromkeys(_TRIDENT, _OF_BOLTS.get(option, WORKS))),
    }
    for option, cells in _WINDOWS.items()
}
"""The options of @windowed_bolt, @tumbling and @sliding, and of `window` in Trident."""

_NO_SPOUTS = Refused("is Python code that cannot be asked for a batch again")

COMPONENT_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    "@spout output": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: _NO_SPOUTS},
    "@spout direct": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: _NO_SPOUTS},
    "@bolt output": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS},
    "@bolt direct": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS},
    "@bolt columnar": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS},
}
"""The options of @spout and @bolt."""

_PARTITIONS = Without(
    "Spark reads a source in its own partitions; tuples of partition p have the task number p % parallelism"
)

DECLARER_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    "set_spout parallelism": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: _PARTITIONS},
    "set_bolt parallelism": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS},
    **{
        name: {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS}
        for name in ("set_num_tasks", "configure", "add_configuration")
    },
}
"""The options of `set_spout` and `set_bolt`, and of the declarers that they return. `set_num_tasks` sets the parallelism too; the
settings of one component are in SETTINGS.
"""

_CUT = Without("the trigger and the source decide how much is in flight")
_WHOLE = Without("a batch succeeds or is repeated as a whole, and has no timeout")
_NO_ACKER = Without("only whole batches are acked")
_CHECKPOINTS = Without("states are committed with each batch")
_SPARK_STORE = Without("states are in Spark's state store, in the checkpoint")
_SPARK_WAITS = Without("Spark itself waits for its sources")
_SPARK_CUTS = Without("the trigger and the source decide the size of batches")
_NO_LOG = Without("only LocalCluster logs each tuple")

_REFUSED = None
"""A kind of topology that has no such setting; topology/config.py has the reason."""

_SETTINGS: dict[str, tuple[Cell | None, ...]] = {
    "message_timeout": (WORKS, WORKS, _WHOLE, _WHOLE),
    # Windows longer than the timeout need False (topology/rules.py), and on Spark there are no timeouts.
    "enable_message_timeouts": (WORKS, WORKS, WORKS, WORKS),
    "max_spout_pending": (WORKS, WORKS, _CUT, _CUT),
    "acker_executors": (WORKS, _REFUSED, WORKS, _REFUSED),
    "acker_rotation": (WORKS, _REFUSED, _NO_ACKER, _REFUSED),
    "max_attempts": (WORKS, WORKS, WORKS, WORKS),
    "retry_delay": (WORKS, WORKS, WORKS, WORKS),
    "retry_delay_max": (WORKS, WORKS, WORKS, WORKS),
    "tick_tuple_freq": (
        WORKS,
        _REFUSED,
        Refused("asks for tick tuples, which a Spark query does not send"),
        _REFUSED,
    ),
    "state_checkpoint_interval": (WORKS, _REFUSED, _CHECKPOINTS, _REFUSED),
    "state_provider": (WORKS, _REFUSED, _SPARK_STORE, _REFUSED),
    "max_task_parallelism": (WORKS, WORKS, WORKS, WORKS),
    "sleep_spout_wait": (WORKS, _REFUSED, _SPARK_WAITS, _REFUSED),
    "batch_emit_interval": (_REFUSED, WORKS, _REFUSED, _SPARK_CUTS),
    "max_batch_size": (_REFUSED, WORKS, _REFUSED, _SPARK_CUTS),
    "debug": (WORKS, _REFUSED, _NO_LOG, _REFUSED),
}
_SETTINGS_OF = (Runtime.CLUSTER, Runtime.TRIDENT, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT)

_MISPLACED = {
    Runtime.CLUSTER: OUTSIDE_TRIDENT,
    Runtime.SUBMIT: OUTSIDE_TRIDENT,
    Runtime.TRIDENT: IN_TRIDENT,
    Runtime.SUBMIT_TRIDENT: IN_TRIDENT,
}
_ATTRIBUTES = {key.typed: key.attribute for key in KEYS}

SETTINGS: Mapping[str, Mapping[Runtime, Cell]] = {
    setting: {
        runtime: Refused(_MISPLACED[runtime].sentence(_ATTRIBUTES[setting])) if cell is _REFUSED else cell
        for runtime, cell in zip(_SETTINGS_OF, cells, strict=True)
    }
    for setting, cells in _SETTINGS.items()
}
"""The settings of a topology, by typed name."""

_GROUPINGS = ("shuffle", "none", "local_or_shuffle", "fields", "partial_key", "all", "global", "direct", "custom")

GROUPINGS: Mapping[str, Mapping[Runtime, Cell]] = {
    f"{name}_grouping": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS} for name in _GROUPINGS
}
"""The groupings that the declarer of a bolt has."""

_STEPS = ("each", "filter", "map", "flat_map", "peek", "project", "name", "parallelism_hint", "apply_assembly", "sink")
_REPARTITIONS = (
    "partition_by",
    "shuffle",
    "local_or_shuffle",
    "global_",
    "batch_global",
    "broadcast",
    "identity_partition",
)
_AGGREGATES = (
    "partition_aggregate",
    "aggregate",
    "chained_agg",
    "chain_end",
    "min_by",
    "max_by",
    "group_by",
    "to_stream",
)
_TRIDENT_WINDOWS = ("window", "tumbling_window", "sliding_window", "late_stream")
_STATES = ("partition_persist", "persistent_aggregate", "state_query", "new_values_stream", "new_static_state")
_STREAMS = ("new_stream", "merge", "join", "configure")
_OPERATIONS = (
    *_STEPS,
    *_REPARTITIONS,
    "partition",
    "repartition",
    *_AGGREGATES,
    *_TRIDENT_WINDOWS,
    *_STATES,
    *_STREAMS,
)

TRIDENT_OPERATIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    **{name: {Runtime.TRIDENT: WORKS, Runtime.SUBMIT_TRIDENT: WORKS} for name in _OPERATIONS},
    "new_drpc_stream": {Runtime.TRIDENT: WORKS, Runtime.SUBMIT_TRIDENT: Refused("a Spark query takes no requests")},
}
"""The methods that declare a Trident topology, of all its objects."""

COORDINATED = ("max_spout_pending", "batch_emit_interval", "max_attempts", "retry_delay", "retry_delay_max")
"""The settings of a Trident topology that `coordination=` replaces."""
_BY_COORDINATION = Without("coordination= is given and replaces it")

_WITH_BATCHES = (Runtime.CLUSTER, Runtime.TRIDENT)
_CLUSTERS = (Runtime.LOCAL, *_WITH_BATCHES)
_SPARK = (Runtime.WINDOWED, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT)
_STARTS: dict[str, tuple[Runtime, ...]] = {
    "batches": _CLUSTERS,
    "clock": _CLUSTERS,
    "drain": tuple(Runtime),
    "streams": (Runtime.LOCAL,),
    "seed": _WITH_BATCHES,
    "state_path": _WITH_BATCHES,
    "outputs": (Runtime.CLUSTER,),
    "states": (Runtime.CLUSTER,),
    "coordination": (Runtime.TRIDENT,),
    "records": (Runtime.TRIDENT, Runtime.SUBMIT_TRIDENT),
    "source": (Runtime.WINDOWED,),
    "sources": (*_WITH_BATCHES, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT),
    "sinks": (Runtime.TRIDENT, *_SPARK),
    **dict.fromkeys(("checkpoint", "trigger", "discard", "query_name"), _SPARK),
    **dict.fromkeys(("tasks", "grouping", "order_by", "control"), (Runtime.WINDOWED,)),
    "partitions": (Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT),
    "on_failure": (Runtime.SUBMIT_TRIDENT,),
}

START_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    option: dict.fromkeys(runtimes, WORKS) for option, runtimes in _STARTS.items()
}
"""The arguments that start a runtime: of run_local; of LocalCluster and run_topology; of TridentCluster and run_trident; of
`windowed` and its `start`; of submit; of submit_trident.
"""

_FUNCTIONS = Refused("give a function of (txid, rows)")

SINKS: Mapping[str, Mapping[Runtime, Cell]] = {
    name: {Runtime.TRIDENT: _FUNCTIONS, **dict.fromkeys(_SPARK, WORKS)}
    for name in (
        "DeltaSink",
        "FileSink",
        "FunctionSink",
        "KafkaSink",
        "MemorySink",
        "NoopSink",
        "ParquetSink",
        "PostgresSink",
    )
}
"""The classes of `windowing.spark` for `sinks=`."""

_DATA_FRAME = Refused("is a PartitionedSpout in one process")

SOURCES: Mapping[str, Mapping[Runtime, Cell]] = {
    **{
        name: dict.fromkeys((Runtime.CLUSTER, Runtime.TRIDENT, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT), WORKS)
        for name in ("PartitionedSpout", "RedisStream", "Spooled", "SqliteQueue")
    },
    "streaming DataFrame": {Runtime.CLUSTER: _DATA_FRAME, Runtime.TRIDENT: _DATA_FRAME, **dict.fromkeys(_SPARK, WORKS)},
}
"""The values of `sources=`, of `windowing.queues` and of Spark; `windowed` reads a DataFrame, which a PartitionedSpout provides."""


def settings_without_effect(
    runtime: Runtime, config: TopologyConfig, components: Iterable[Component] = (), *, coordinated: bool = False
) -> Iterator[str]:
    """Yield a sentence for each setting of a topology or a component that differs from its default and has no effect in a runtime.
    coordinated: it is started with `coordination=`.
    """
    yield from _without_effect(runtime, config, {key.attribute for key in KEYS}, coordinated=coordinated)
    for component in components:
        yield from _without_effect(runtime, component.config, component.config.given, f" of {component.id!r}")


def _without_effect(
    runtime: Runtime,
    config: TopologyConfig | ComponentConfig,
    given: Collection[str],
    of: str = "",
    *,
    coordinated: bool = False,
) -> Iterator[str]:
    usual = TopologyConfig()
    for key in KEYS:
        cell = _BY_COORDINATION if coordinated and key.typed in COORDINATED else SETTINGS[key.typed][runtime]
        if key.attribute not in given or not isinstance(cell, Without):
            continue
        if getattr(config, key.attribute) != getattr(usual, key.attribute):
            yield f"{key.storm}{of} has no effect in {runtime.value}: {cell.reason}"


def tasks_without_effect(runtime: Runtime, components: Iterable[Component]) -> Iterator[str]:
    """Yield a sentence for each component whose number of tasks is given but has no effect in a runtime."""
    for component in components:
        option = "set_spout parallelism" if component.is_spout else "set_bolt parallelism"
        cell = DECLARER_OPTIONS[option].get(runtime)
        if isinstance(cell, Without) and component.parallelism != 1:
            yield f"parallelism={component.parallelism} of {component.id!r} has no effect in {runtime.value}: {cell.reason}"


def windows_without_effect(runtime: Runtime, bolt: WindowedBolt) -> Iterator[str]:
    """Yield a sentence for each option of a windowed bolt that is given but has no effect in a runtime."""
    usual = WindowConfig(length=Count(1), slide=Count(1))
    for option, cells in WINDOW_OPTIONS.items():
        cell = cells.get(runtime)
        attribute = option if hasattr(usual, option) else f"{option}_ms"
        if isinstance(cell, Without) and getattr(bolt.config, attribute) != getattr(usual, attribute):
            yield f"{option}= of bolt {bolt.name!r} has no effect in {runtime.value}: {cell.reason}"


def announce(
    runtime: Runtime,
    log: Callable[..., object],
    name: str,
    config: TopologyConfig,
    components: Iterable[Component] = (),
    *,
    coordinated: bool = False,
) -> None:
    """Log the options of a topology without effect in a runtime, and warn of fields that are lost; called once, at the start.

    log: takes a format and its arguments, like the methods of a logger. coordinated: it is started with `coordination=`.
    """
    known = list(components)
    sentences = list(settings_without_effect(runtime, config, known, coordinated=coordinated))
    sentences += tasks_without_effect(runtime, known)
    for component in known:
        if component.window is not None:
            sentences += windows_without_effect(runtime, component.window)
        if runtime is Runtime.SUBMIT and not component.is_spout:
            _warn_of_lost_fields(component.id, component.declaration, component.stateful)
    for sentence in sentences:
        log("topology %r: %s", name, sentence)


def announce_bolt(runtime: Runtime, log: Callable[..., object], bolt: WindowedBolt) -> None:
    """Log the same for a windowed bolt that runs alone. Raises ConfigError for one that requests tick tuples."""
    for sentence in (*windows_without_effect(runtime, bolt), *_own_without_effect(bolt)):
        log("%s", sentence)
    if runtime is Runtime.WINDOWED:
        _warn_of_lost_fields(bolt.name, bolt, bolt.stateful)


def _own_without_effect(bolt: WindowedBolt) -> Iterator[str]:
    """Yield a sentence for each setting of a bolt itself, because settings have an effect only in a topology."""
    settings = own_settings(bolt)
    values, _ = read_settings(settings.items(), "bolt")
    if ComponentConfig.of(values).tick_tuple_freq_ms is not None:
        raise ConfigError(
            f"bolt {bolt.name!r} asks for ticks (topology.tick.tuple.freq.secs), but it is handed windows, and a tick is a tuple; "
            "leave it out: a window over the clock fires in time by itself"
        )
    for name in settings:
        yield (
            f"bolt {bolt.name!r} sets {quote(name)} (get_component_configuration), which has no effect here: the bolt runs alone, "
            "and a setting is one of a component of a topology"
        )


def _warn_of_lost_fields(title: str, declared: Declaration | WindowedBolt, stateful: bool) -> None:
    lost = lost_fields(title, declared.target if declared.is_class else None, stateful)
    if lost is not None:
        warnings.warn(lost, LostFieldsWarning, stacklevel=4)


def lost_fields(title: str, target: Any, stateful: bool) -> str | None:
    """Return the sentence about a bolt whose fields are lost on Spark, None if none are."""
    of_class = None if stateful else class_of(target)
    fields = [] if of_class is None else fields_set(of_class)
    if not fields:
        return None
    named = ", ".join(f"self.{name}" for name in fields)
    return (
        f"bolt {title!r} sets {named} in execute, and on Spark an instance lives for one batch: the next one begins without; "
        "keep what is to last in a state (init_state(self, state), then state.put(key, value)), and silence LostFieldsWarning "
        "where it need not last"
    )
