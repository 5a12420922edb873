"""The driver on Spark: the only folder that imports pyspark.

session()            a Spark session with all that windowed bolts need
windowed(bolt, df)   a bolt on streaming DataFrames: its streams, or one query with a sink per stream
submit(topology)     a topology as one query
submit_trident(...)  a Trident topology as one query, which commits its states exactly once
PartitionedSpout     a source of rows in Python, which may take acks
"""

from windowing.spark.metrics import BatchMetrics, MetricsListener
from windowing.spark.query import WindowedStream, windowed
from windowing.spark.running import WindowedQuery
from windowing.spark.session import require_session, session
from windowing.spark.sinks import FileSink, FunctionSink, MemorySink, NoopSink, ParquetSink, Sink
from windowing.spark.spouts import PartitionedSpout, Root
from windowing.spark.sqlite_queue import SqliteQueue
from windowing.spark.submit import submit
from windowing.spark.trident_submit import submit_trident

__all__ = [
    "BatchMetrics",
    "FileSink",
    "FunctionSink",
    "MemorySink",
    "MetricsListener",
    "NoopSink",
    "ParquetSink",
    "PartitionedSpout",
    "Root",
    "Sink",
    "SqliteQueue",
    "WindowedQuery",
    "WindowedStream",
    "require_session",
    "session",
    "submit",
    "submit_trident",
    "windowed",
]
