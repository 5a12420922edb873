"""The `__getattr__` of the public packages: a name is imported on its first use, or refused with the extra or the name to use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from windowing.errors import by_name

_EXTRAS = {
    **dict.fromkeys(("pyspark", "pandas", "pyarrow", "numpy", "google"), "spark"),
    "psycopg": "postgres",
    "redis": "redis",
    "pika": "rabbitmq",
    "confluent_kafka": "kafka",
    "prometheus_client": "prometheus",
    "opentelemetry": "opentelemetry",
}
"""The extra of this library that installs a package."""


def with_extra(problem: ModuleNotFoundError, what: str) -> ModuleNotFoundError:
    """Return the error for `what`, which needs a package that is not installed: it names the extra that installs it.

    >>> str(with_extra(ModuleNotFoundError("No module named 'pika'", name="pika"), "windowing.queues.RabbitQueue"))
    "windowing.queues.RabbitQueue needs the package pika; pip install 'windowing[rabbitmq]'"
    """
    extra = _EXTRAS.get((problem.name or "").partition(".")[0])
    if extra is None:
        return problem
    return ModuleNotFoundError(
        f"{what} needs the package {problem.name}; pip install 'windowing[{extra}]'", name=problem.name
    )


def getattr_of(
    package: str, modules: Mapping[str, str] | None = None, instead: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. It imports the names in `modules` from their modules when they are first used. For
    other names of this library and of Storm its error says what to write; `instead` has what differs here.
    """
    own, answers = modules or {}, instead or {}

    def load(name: str) -> Any:
        if name not in own:
            is_first = name in import_module("windowing").__all__
            there = "windowing" if is_first else _package_of_names().get(name)
            here = by_name(_ELSEWHERE).get(name) if there is None else f"from {there} import {name}"
            write = answers.get(name, here)
            if write is None or find_spec(f"{package}.{name}"):
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            said = f"{package} has no {name!r}; write {write}"
            raise ImportError(said) if _is_imported() else AttributeError(said, name=name)
        try:
            return getattr(import_module(f"windowing.{own[name]}"), name)
        except ModuleNotFoundError as problem:
            raise with_extra(problem, f"{package}.{name}") from problem

    return load


def _is_imported() -> bool:
    """Return whether `from package import name` calls the `__getattr__`: it replaces the text of an AttributeError by its own."""
    caller = sys._getframe(2)
    while caller.f_code.co_name == "__getattr__" and caller.f_back is not None:  # one that calls `load`
        caller = caller.f_back
    return caller.f_code.co_name == "_handle_fromlist"  # of importlib


@cache
def _package_of_names() -> Mapping[str, str]:
    """Return the public package of each name, from their sources: to import them might need optional packages. Cost: 1 ms, once."""
    found = {}
    for package in ("local", "spark", "queues", "stores", "monitoring", "testing", "trident"):
        spec = find_spec(f"windowing.{package}")
        source = getattr(spec and spec.loader, "get_source", lambda module: None)(f"windowing.{package}") or ""
        names = source.partition("\n__all__ = [")[2].partition("]")[0]
        found.update(dict.fromkeys(re.findall(r'"(\w+)"', names), f"windowing.{package}"))
    return found


def library_version() -> str:
    """Return the version of this library as it is installed; "unknown" where it is not, as in a source tree or by --py-files."""
    from importlib.metadata import PackageNotFoundError, version  # takes longer than this module

    try:
        return version("windowing")
    except PackageNotFoundError:
        return "unknown"


def installed(names: Iterable[str], needed: Mapping[str, str]) -> list[str]:
    """Return the names whose package, by name in `needed`, is installed; `import *` would fail for another one."""
    return [name for name in names if name not in needed or find_spec(needed[name]) is not None]


# -- names of Storm ----------------------------------------------------------------------------------------------------------------

_ELSEWHERE = {
    "BaseWindowedBolt IWindowedBolt": "@windowed_bolt, @tumbling or @sliding",
    "BaseStatefulWindowedBolt IStatefulWindowedBolt": "StatefulWindowedBolt, with @sliding or @tumbling",
    "BaseRichSpout IRichSpout ISpout RichSpout": "Spout, with @spout",
    "BaseRichBolt IRichBolt IBolt": "Bolt, with @bolt",
    "BaseBasicBolt IBasicBolt": "BasicBolt, with @bolt",
    "BaseStatefulBolt IStatefulBolt": "StatefulBolt, with @bolt",
    "InMemoryKeyValueState": "KeyValueState, which init_state gets",
    "InMemoryKeyValueStateProvider": (
        "LocalCluster(topology, state_path=...), or a StateProvider of your own in states=; on Spark the checkpoint has the states"
    ),
    "CheckpointSpout CheckpointTupleForwarder": (
        "nothing: a cluster takes its checkpoints itself, every topology.state.checkpoint.interval.ms"
    ),
    "WorkerTopologyContext GeneralTopologyContext": "TopologyContext, which prepare and open get",
    "ITuple TupleImpl MessageId": "Tuple, and tuple.get_message_id()",
    "Window TupleWindowImpl": "TupleWindow",
    "WindowedOutputCollector": "collector as the second argument of execute",
    "BoltDeclarer SpoutDeclarer InputDeclarer": "what set_bolt and set_spout of a TopologyBuilder return",
    "ILocalCluster": "from windowing.local import LocalCluster",
    "StormSubmitter": "from windowing.spark import submit",
    "Config": "TopologyBuilder(name).configure({...})",
    "StormTopology": "Topology",
    "InvalidTopologyException WrongTopologyException": "TopologyError",
    "BaseTickTupleAwareRichBolt": "Bolt, with @bolt, and is_tick(tuple)",
    "Flux FluxBuilder FluxShellBolt": "a Python function that returns TopologyBuilder(name).configure({...}).build()",
    "GlobalStreamId": "tuple.source_component and tuple.source_stream",
    "TupleUtils": "is_tick",
    "TimeUnit": "seconds(10), minutes(5) or millis(100)",
    "Utils": "collector.sleep(millis(100)) in a spout, in place of Utils.sleep(100)",
    "OutputFieldsDeclarer": 'output="word string, n long" of the decorator',
    "TimestampExtractor TupleFieldTimestampExtractor": "timestamp= of the bolt: a field or a function",
    "ShellBolt ShellSpout": "@bolt or @spout: components are Python, and call subprocess for another program",
    "JoinBolt": "@tumbling(..., timestamp=...) that reads both streams, and join the rows of its window by row.source_component",
    "DefaultEvictionContext": "EvictionContext",
    "TriggerHandler": "TriggerPolicy: it returns which windows are due, as a list of EvictionContext",
    "CustomStreamGrouping": "custom_grouping(component, function) with a function of (values, tasks)",
    "BaseTaskHook ITaskHook": "code of your own in prepare and execute; there are no hooks of tasks",
    "IMetric CountMetric MultiCountMetric ReducedMetric IMetricsConsumer LoggingMetricsConsumer": (
        "a counter of the client of your exporter, in prepare; what tasks count is in windowing.monitoring, as RunMetrics"
    ),
    "KafkaSpoutConfig FirstPollOffsetStrategy ProcessingGuarantee KafkaSpoutRetryService RecordTranslator": (
        "the arguments of KafkaSpout of windowing.queues; the manual has them in 'Coming from Storm'"
    ),
    "JmsSpout KinesisSpout EventHubSpout PulsarSpout MqttSpout RMQSpout": (
        "a subclass of MessageSource, in Spooled(...), or of PartitionedSpout; all are in windowing.queues"
    ),
    "RedisLookupBolt JdbcLookupBolt AbstractRedisBolt AbstractJdbcBolt": "a BasicBolt of your own that connects in prepare",
    "LocalDRPC DRPCClient": "TridentCluster(topology).ask('count_of', 'to be') of windowing.local",
    "LinearDRPCTopologyBuilder DRPCSpout ReturnResults CoordinatedBolt BaseBatchBolt IBatchBolt": (
        "new_drpc_stream(function) of a windowing.trident.TridentTopology, which a TridentCluster answers in one process"
    ),
    "TransactionalTopologyBuilder BaseTransactionalBolt ICommitter": (
        "TridentTopology of windowing.trident, whose states count each tuple once"
    ),
    "Testing MockedSources CompleteTopologyParam": (
        "run_topology(topology, {'words': [[row, row]]}) of windowing.local: the rows replace the spout"
    ),
    "StreamBuilder": "TopologyBuilder, or TridentTopology of windowing.trident, whose streams have map, filter, join and window",
    "ConfigurableTopology": "a function that returns TopologyBuilder(name).configure({...}), and call build()",
    "TimeCacheMap": "RotatingMap, and call rotate() at each tick: it returns what has expired",
    "Constants": "is_tick(tuple) for ticks",
    "TestWordSpout FeederSpout FixedTupleSpout FeederBatchSpout FeederCommitterBatchSpout": (
        "InputSpout('word string'), and give its rows to run_topology or run_trident of windowing.local"
    ),
    (
        "MemoryMapState LRUMemoryMapState RedisMapState RedisState JdbcState JdbcMapState HBaseMapState HBaseState "
        "CassandraMapState MemcachedState"
    ): "map_state(store, 'counts') of windowing.stores, with a MemoryStore, SqliteStore, PostgresStore or RedisStore",
    "SlidingCountWindow TumblingCountWindow SlidingDurationWindow TumblingDurationWindow BaseWindowConfig": (
        "stream.sliding_window(count(9), count(3), ...) or tumbling_window(seconds(10), ...)"
    ),
    "WindowsStoreFactory InMemoryWindowsStoreFactory HBaseWindowsStoreFactory": "nothing: windows need no store of their own",
    "Function BaseFunction": "a function of (row), or a class with execute(row, collector)",
    "Filter BaseFilter": "a function of (row), or a class with keep(row)",
    "MapFunction FlatMapFunction Consumer Predicate": "a function of (row)",
    "MultiReducer GroupedMultiReducer": "topology.join([a, b], ...) or topology.merge(a, b)",
    "JoinOutFieldsMode": "nothing: a joined row has the key once, then the other fields of each stream (COMPACT)",
    "Assembly": "stream.apply_assembly(function) with a function of (stream)",
    "TridentOperationContext": "def prepare(self, context): context.task_index and context.tasks",
    "FirstNSorted FirstNSortedAgg": "FirstN(3, 'delay', reverse=True) of windowing.trident",
    "CachedMap CachedBatchReadsMap": "map_state(store, 'counts', cache=5000) of windowing.stores",
    "MemoryTransactionalSpout": "FixedBatchSpout of windowing.trident",
    "WindowLifecycleListener": "nothing: a window's function is called when it fires, and its tuples are acked when they expire",
    "RedisKeyValueState RedisKeyValueStateProvider HBaseKeyValueState": (
        "def init_state(self, state) of a StatefulBolt; LocalCluster(..., state_path='states.db') stores the states"
    ),
    "TridentKafkaState TridentKafkaStateFactory HdfsState HdfsStateFactory": (
        "stream.sink('out'), and a sink of windowing.spark in sinks=, such as KafkaSink or ParquetSink"
    ),
    "TridentTuple": "row[0] or row['word'] of the row that a function gets",
    "OpaqueValue TransactionalValue": "StateRow, with the txid, the value and the one before it",
    "OpaqueTridentKafkaSpout TransactionalTridentKafkaSpout KafkaTridentSpoutConfig": (
        "KafkaTridentSpoutOpaque or KafkaTridentSpoutTransactional of windowing.queues, with its arguments"
    ),
    (
        "JdbcInsertBolt HdfsBolt KafkaBolt RedisStoreBolt HBaseBolt CassandraWriterBolt MongoInsertBolt "
        "EsIndexBolt SolrUpdateBolt"
    ): "a sink of windowing.spark in sinks=, such as PostgresSink, ParquetSink or KafkaSink; in one process a bolt of your own",
    "PartialKeyGrouping ShuffleGrouping FieldsGrouper LoadAwareShuffleGrouping JitterAwareStreamGrouping": (
        "set_bolt(id, bolt).partial_key_grouping(component, fields), or shuffle_grouping(component)"
    ),
    "session_window": "@windowed_bolt(trigger=..., eviction=...); the manual has sessions in 'Custom policies'",
    "window": "@tumbling(hours(1), timestamp='at') or @sliding",
    "TaskContext": "TopologyContext",
    **{
        name: f"from windowing.trident import {here}"
        for name, here in {
            "BaseAggregator": "Aggregator",
            "BaseQueryFunction": "QueryFunction",
            "BaseStateUpdater": "StateUpdater",
            "IBackingMap": "BackingMap",
            "ReadOnlyState": "State",
        }.items()
    },
}
"""What to write in place of names that no package has."""
