"""A client of Spark Connect, without a JVM: windows as DataFrames, and the calls that need a JVM. Arguments: server, folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from windowing import InputSpout, TopologyBuilder, seconds, tumbling
from windowing.errors import ConfigError, SessionError
from windowing.queues import SqliteQueue
from windowing.spark import NoopSink, ParquetSink, check, require_session, rescale, submit, submit_trident, windowed
from windowing.trident import TridentTopology

server, home = sys.argv[1], Path(sys.argv[2])
home.mkdir()
spark: SparkSession = SparkSession.builder.remote(server).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
spark.conf.set("spark.sql.shuffle.partitions", "2")
large = b"x" * (1 << 20)


@tumbling(seconds(1), timestamp="ts", key="k", late_stream="late", output="k string, n long")
def counted(window: Any) -> tuple[str, int]:
    assert len(large) == 1 << 20  # too large for a closure that is sent inline; Connect has no broadcasts
    return window.key[0], len(window)


def read() -> DataFrame:
    return spark.readStream.schema("k string, ts long").option("maxFilesPerTrigger", 1).parquet(f"{home}/in")


def run(rows: DataFrame, name: str) -> list[tuple[Any, ...]]:
    stream = rows.writeStream.format("parquet").option("checkpointLocation", f"{home}/{name}-checkpoint")
    query = stream.trigger(availableNow=True).start(f"{home}/{name}")
    query.awaitTermination(120)
    assert query.exception() is None
    return sorted(tuple(row) for row in spark.read.parquet(f"{home}/{name}").collect())


def windows_are_dataframes_and_drain_by_the_control_folder() -> None:
    for batch in ([("a", 100), ("a", 200), ("b", 2500)], [("a", 50), ("b", 9500)]):
        spark.createDataFrame(batch, "k string, ts long").coalesce(1).write.mode("append").parquet(f"{home}/in")
    commands = spark.createDataFrame([("drain",)], "kind string").where("kind = 'none'")
    commands.write.json(f"{home}/control")
    stream = windowed(counted, read(), tasks=2, control=f"{home}/control")
    assert run(stream["default"], "out") == [("a", 2), ("b", 1)]
    assert run(stream["late"], "late") == [("a", 50, "late")]
    spark.createDataFrame([("drain",)], "kind string").write.mode("append").json(f"{home}/control")
    assert run(stream["default"], "out") == [("a", 2), ("b", 1), ("b", 1)]


def the_default_number_of_tasks_is_the_parallelism_of_the_server() -> None:
    assert windowed(counted, read()).tasks == 2


def a_bolt_with_a_large_closure_or_a_client_only_module_is_refused_before_a_query() -> None:
    huge = bytes(20 << 20)
    only_here = ModuleType("only_here")
    exec("def of(window): return ('k', 1)", only_here.__dict__)
    sys.modules["only_here"] = only_here

    @tumbling(seconds(1), timestamp="ts", key="k", output="k string, n long")
    def heavy(window: Any) -> tuple[str, int]:
        return "k", len(huge)

    foreign = tumbling(seconds(1), timestamp="ts", key="k", output="k string, n long")(only_here.of)
    with pytest.raises(ConfigError, match=r"'heavy' closes over too much .*Spark Connect: .* takes 20 MiB, .* most 16"):
        _ = windowed(heavy, read(), tasks=2).streams
    with pytest.raises(SessionError, match=r"no module 'only_here', which is imported here"):
        _ = windowed(foreign, read(), tasks=2).streams
    with pytest.raises(SessionError, match=r"bolt 'of' cannot be loaded .*No module named 'only_here'"):
        check(spark, foreign)


def settings_that_could_lose_data_are_refused() -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    with pytest.raises(SessionError, match=r"timeZone is 'Europe/Vienna', wanted UTC"):
        windowed(counted, read())
    with pytest.raises(SessionError, match=r"timeZone is 'Europe/Vienna', wanted UTC"):
        check(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    check(spark, counted)


def calls_that_need_the_driver_s_jvm_are_refused_by_name() -> None:
    builder = TopologyBuilder("counts")
    builder.set_spout("rows", InputSpout("k string, ts long"))
    builder.set_bolt("counted", counted).fields_grouping("rows", "k")
    topology, sinks = builder.build(), {"counted": NoopSink()}
    queue = SqliteQueue(f"{home}/queue", "v long")
    doors: dict[str, Callable[[], object]] = {
        "start": lambda: windowed(counted, read(), tasks=2).start(NoopSink(), f"{home}/c", discard="late"),
        "submit": lambda: submit(topology, spark, sources={"rows": read()}, sinks=sinks, checkpoint=f"{home}/c"),
        "submit_trident": lambda: submit_trident(TridentTopology(), spark, checkpoint=f"{home}/c"),
        "rescale": lambda: rescale(f"{home}/old", f"{home}/new", tasks=3, spark=spark),
        "require_session": lambda: require_session(spark),
        "sink": lambda: ParquetSink(f"{home}/out").read(spark),
    }
    if not pyspark.__version__.startswith("4.1."):  # Spark 4.1 has no data sources in Python
        doors["spout"] = lambda: queue.stream(spark)
    before = sorted(path.name for path in home.iterdir())
    for name, door in doors.items():
        with pytest.raises(SessionError, match=r"Spark Connect") as refused:
            door()
        assert "windowing.spark.session()" in str(refused.value), name
    assert sorted(path.name for path in home.iterdir()) == before  # nothing was created


windows_are_dataframes_and_drain_by_the_control_folder()
the_default_number_of_tasks_is_the_parallelism_of_the_server()
a_bolt_with_a_large_closure_or_a_client_only_module_is_refused_before_a_query()
settings_that_could_lose_data_are_refused()
calls_that_need_the_driver_s_jvm_are_refused_by_name()
spark.stop()
