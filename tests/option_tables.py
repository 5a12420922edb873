"""The effect of each option that no driver looks up, in each runtime: the rest of the tables of windowing/execution/support.py."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isfunction

from windowing import queues, spark
from windowing.execution.support import SPOUT_PARALLELISM, WORKS, Cell, Refused, Runtime
from windowing.topology.builder import Declarer
from windowing.trident import streams

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
    "set_spout parallelism": SPOUT_PARALLELISM,
    **dict.fromkeys(("set_bolt parallelism", "set_num_tasks", "configure", "add_configuration"), _BOTH),
}
"""The options of `set_spout` and `set_bolt`, and of the declarers that they return. `set_num_tasks` sets the parallelism too; the
settings of one component are in SETTINGS.
"""

GROUPINGS: Mapping[str, Mapping[Runtime, Cell]] = {name: _BOTH for name in vars(Declarer) if name.endswith("_grouping")}
"""The groupings that the declarer of a bolt has."""

_DECLARE = (
    *(streams.Stream, streams.GroupedStream, streams.WindowOutput, streams.TridentState),
    *(streams.AggregableStream, streams.ChainedAggregatorDeclarer, streams.TridentTopology),
)
_OPERATIONS = {name for each in _DECLARE for name, what in vars(each).items() if isfunction(what) and name[0] != "_"}
TRIDENT_OPERATIONS: Mapping[str, Mapping[Runtime, Cell]] = {
    **{name: {Runtime.TRIDENT: WORKS, Runtime.SUBMIT_TRIDENT: WORKS} for name in sorted(_OPERATIONS - {"build"})},
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
    "restarts": (Runtime.LOCAL,),
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
    for name in spark.__all__
    if name.endswith("Sink") and name != "Sink"
}
"""The classes of `windowing.spark` for `sinks=`."""

_DATA_FRAME = Refused("is a PartitionedSpout in one process")

SOURCES: Mapping[str, Mapping[Runtime, Cell]] = {
    **{
        name: dict.fromkeys((Runtime.CLUSTER, Runtime.TRIDENT, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT), WORKS)
        for name in queues.__all__
        if isinstance(kind := getattr(queues, name), type) and issubclass(kind, queues.PartitionedSpout)
    },
    "streaming DataFrame": {Runtime.CLUSTER: _DATA_FRAME, Runtime.TRIDENT: _DATA_FRAME, **dict.fromkeys(_SPARK, WORKS)},
}
"""The values of `sources=`, of `windowing.queues` and of Spark; `windowed` reads a DataFrame, which a PartitionedSpout provides."""
