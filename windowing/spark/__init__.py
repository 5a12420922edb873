"""The driver on Spark: the only folder that imports pyspark (extra `spark`).

session()                      a Spark session with the required settings, on the given master, else on this machine
configure(builder)             the required settings for a session of your own; check(spark, bolt) reports all its problems
windowed(bolt, df)             a bolt on streaming DataFrames -> WindowedStream -> WindowedQuery
submit(topology)               a topology as one query -> WindowedQuery
submit_trident(topology)       a Trident topology as one query, which commits its states exactly once; imported on first use
FileSink, ParquetSink, ...     the outputs of the streams of a query; Sink, the protocol of your own; OutputOwner
PostgresSink, KafkaSink        a typed table, a topic: each batch once (extras `postgres`, `kafka`); imported on first use
DeltaSink                      a Delta table: each batch once; imported on first use
kafka(spark, servers, topic)   a topic as a streaming DataFrame (extra `kafka`); imported on first use
rescale(old, new, tasks=64)    a new checkpoint with another number of tasks; imported on first use
PartitionedSpout, SqliteQueue  sources in Python, which may take acks; Root
MetricsListener, BatchMetrics  the metrics of each batch
"""

from typing import TYPE_CHECKING

from windowing.optional import getattr_of, installed, with_extra

try:
    from windowing.queues.spout import PartitionedSpout, Root
    from windowing.spark.metrics import BatchMetrics, MetricsListener
    from windowing.spark.query import WindowedStream, windowed
    from windowing.spark.running import WindowedQuery
    from windowing.spark.session import configure, require_session, session
    from windowing.spark.shipping import check
    from windowing.spark.sinks import FileSink, FunctionSink, MemorySink, NoopSink, OutputOwner, ParquetSink, Sink
    from windowing.spark.submit import submit
except ModuleNotFoundError as problem:
    raise with_extra(problem, __name__) from problem

if TYPE_CHECKING:
    from windowing.queues.sqlite_queue import SqliteQueue
    from windowing.spark.delta_sink import DeltaSink
    from windowing.spark.kafka_rows import KafkaSink, kafka
    from windowing.spark.postgres_sink import PostgresSink
    from windowing.spark.rescaling import rescale
    from windowing.spark.trident_submit import submit_trident

__all__ = [
    "BatchMetrics",
    "DeltaSink",
    "FileSink",
    "FunctionSink",
    "KafkaSink",
    "MemorySink",
    "MetricsListener",
    "NoopSink",
    "OutputOwner",
    "ParquetSink",
    "PartitionedSpout",
    "PostgresSink",
    "Root",
    "Sink",
    "SqliteQueue",
    "WindowedQuery",
    "WindowedStream",
    "check",
    "configure",
    "kafka",
    "require_session",
    "rescale",
    "session",
    "submit",
    "submit_trident",
    "windowed",
]

if not TYPE_CHECKING:
    __getattr__ = getattr_of(
        __name__,
        {
            "DeltaSink": "spark.delta_sink",
            "KafkaSink": "spark.kafka_rows",
            "PostgresSink": "spark.postgres_sink",
            "SqliteQueue": "queues.sqlite_queue",
            "kafka": "spark.kafka_rows",
            "rescale": "spark.rescaling",
            "submit_trident": "spark.trident_submit",
        },
    )
    __all__ = installed(
        __all__, {"KafkaSink": "confluent_kafka", "kafka": "confluent_kafka", "PostgresSink": "psycopg"}
    )
