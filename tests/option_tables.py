"""The effect of each option of each declaration and start in each runtime.

WORKS              it has the documented effect
Refused(sentence)  an error with this sentence, before anything runs
Without(reason)    it has no effect there; a driver that gets it logs that once, at its start (windowing/execution/support.py)

A row has no cell for a runtime without the option. A Trident window has `output` and `name` in another form: the first as an
argument of its own, the second by `.name()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from windowing.execution.support import (
    SETTINGS_WITHOUT_EFFECT,
    SPOUT_TASKS_ON_SPARK,
    WINDOWS_WITHOUT_EFFECT,
    Runtime,
)
from windowing.topology.config import IN_TRIDENT, KEYS, OUTSIDE_TRIDENT, WINDOWS_OUTSIDE_TRIDENT, Key


class Refused(NamedTuple):
    """An error that contains `sentence`."""

    sentence: str


class Without(NamedTuple):
    """No effect, with the reason."""

    reason: str


WORKS = "works"
Cell = str | Refused | Without

_WINDOWS_RUN_IN = (Runtime.LOCAL, Runtime.CLUSTER, Runtime.WINDOWED, Runtime.SUBMIT)
_TRIDENT = (Runtime.TRIDENT, Runtime.SUBMIT_TRIDENT)
_IN_STORE = Refused("on Spark a turn has all live tuples of its task in memory")
_NO_SPOUT = Refused("on_error='fail', which fails tuples back to their spout, and none of its spouts takes acks")

_REFUSED_IN_TRIDENT = {
    **{option: Refused(why) for option, why in WINDOWS_OUTSIDE_TRIDENT.items()},
    "on_error": Refused("here a batch fails whole, by a FailedException; write on_error='raise' or 'skip'"),
    "columnar": Refused("here a window is rows; leave it out"),
}
_REFUSED_WINDOWS: Mapping[Runtime, Mapping[str, Refused]] = {
    Runtime.WINDOWED: {"on_error": _NO_SPOUT, "max_events_in_memory": _IN_STORE},
    Runtime.SUBMIT: {"max_events_in_memory": _IN_STORE},
    Runtime.TRIDENT: _REFUSED_IN_TRIDENT,
    Runtime.SUBMIT_TRIDENT: _REFUSED_IN_TRIDENT,
}

_WINDOWS = (
    *("length", "slide", "output", "name", "timestamp", "lag", "late_stream", "offset", "lateness", "repeat"),
    *("max_repeats", "source", "idle_timeout", "max_future", "key", "key_ttl", "on_invalid", "semantics", "aggregate"),
    *("eviction", "trigger", "columnar", "watermark_interval", "on_error", "max_events_in_memory", "message_id"),
    "recovery_timeout",
)


def _window_cell(runtime: Runtime, option: str) -> Cell:
    if option in _REFUSED_WINDOWS.get(runtime, {}):
        return _REFUSED_WINDOWS[runtime][option]
    reason = WINDOWS_WITHOUT_EFFECT.get(runtime, {}).get(option)
    return WORKS if reason is None else Without(reason)


WINDOW_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    option: {
        runtime: _window_cell(runtime, option)
        for runtime in (*_WINDOWS_RUN_IN, *(() if option in ("output", "name") else _TRIDENT))
    }
    for option in _WINDOWS
}
"""The options of @windowed_bolt, @tumbling and @sliding, and of `window` in Trident."""

_SETTINGS = (
    *("message_timeout", "enable_message_timeouts", "max_spout_pending", "acker_executors", "acker_rotation"),
    *("max_attempts", "retry_delay", "retry_delay_max", "tick_tuple_freq", "state_checkpoint_interval"),
    *("state_provider", "max_task_parallelism", "sleep_spout_wait", "batch_emit_interval", "max_batch_size", "debug"),
)
_NO_TICKS = Refused("asks for tick tuples, which a Spark query does not send")


def _setting_cell(runtime: Runtime, key: Key) -> Cell:
    misplaced = IN_TRIDENT if runtime in _TRIDENT else OUTSIDE_TRIDENT
    if key.attribute in misplaced.reasons:
        return Refused(misplaced.sentence(key.attribute))
    if runtime is Runtime.SUBMIT and key.typed == "tick_tuple_freq":
        return _NO_TICKS
    reason = SETTINGS_WITHOUT_EFFECT.get(runtime, {}).get(key.typed)
    return WORKS if reason is None else Without(reason)


SETTINGS: Mapping[str, Mapping[Runtime, Cell]] = {
    key.typed: {
        runtime: _setting_cell(runtime, key)
        for runtime in (Runtime.CLUSTER, Runtime.TRIDENT, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT)
    }
    for key in KEYS
    if key.typed in _SETTINGS
}
"""The settings of a topology, by typed name."""

_BOTH: Mapping[Runtime, Cell] = {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: WORKS}
_SPARK = (Runtime.WINDOWED, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT)
_NO_SPOUTS = Refused("is Python code that cannot be asked for a batch again")

COMPONENT_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    "@spout output": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: _NO_SPOUTS},
    "@spout direct": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: _NO_SPOUTS},
    **dict.fromkeys(("@bolt output", "@bolt direct", "@bolt columnar"), _BOTH),
}
"""The options of @spout and @bolt."""

DECLARER_OPTIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    "set_spout parallelism": {Runtime.CLUSTER: WORKS, Runtime.SUBMIT: Without(SPOUT_TASKS_ON_SPARK)},
    **dict.fromkeys(("set_bolt parallelism", "set_num_tasks", "configure", "add_configuration"), _BOTH),
}
"""The options of `set_spout` and `set_bolt`, and of the declarers that they return. `set_num_tasks` sets the parallelism too; the
settings of one component are in SETTINGS.
"""

_GROUPINGS = ("shuffle", "none", "local_or_shuffle", "fields", "partial_key", "all", "global", "direct", "custom")
GROUPINGS: Mapping[str, Mapping[Runtime, Cell]] = {f"{name}_grouping": _BOTH for name in _GROUPINGS}
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

_WITH_BATCHES = (Runtime.CLUSTER, Runtime.TRIDENT)
_CLUSTERS = (Runtime.LOCAL, *_WITH_BATCHES)
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
