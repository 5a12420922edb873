"""The metrics of a query on Spark equal those of LocalCluster, also after a restart; its live page; the names of its jobs."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.execution.test_task_metrics import BATCHES, counted, topology
from windowing import InputSpout, millis, tumbling
from windowing.cli.stored import LocalFiles, metrics_in, page_of
from windowing.local import LocalCluster, VirtualClock
from windowing.local.metrics import ClusterMetrics
from windowing.spark import MemorySink, submit, submit_trident, windowed
from windowing.trident import Sum, TridentTopology


def described(spark: SparkSession) -> list[str]:
    """Return the descriptions of the jobs so far, as Spark's UI shows them."""
    jobs: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # type: ignore[union-attr]
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return [text.get() for text in found if text.isDefined()]


def test_errors_of_skipped_windows_are_in_the_progress_of_a_bolt_alone(
    spark: SparkSession, feed: Any, tmp_path: Path
) -> None:
    @tumbling(millis(10), timestamp="at", on_error="skip", output="n long")
    def unlucky(window: Any) -> int:
        if any(row.at == 13 for row in window):
            raise ValueError("13")
        return len(window)

    given, sink = feed("at long"), MemorySink()
    given.add([{"at": at} for at in (1, 13, 25)])
    query = windowed(unlucky, given.read(), order_by="at").start(
        {"default": sink}, checkpoint=str(tmp_path / "checkpoint"), drain=True
    )
    assert query.await_end(180)
    assert [tuple(row) for row in sink.rows] == [(1,), (1,)]
    assert [sum(each.reported for each in query.progress), query.metrics().components()["unlucky"].reported] == [1, 1]


def test_the_windows_of_a_trident_query_have_a_watermark_in_the_metrics_the_progress_and_status(
    spark: SparkSession, feed: Any, tmp_path: Path
) -> None:
    trident = TridentTopology("sums")
    rows = trident.new_stream("rows", InputSpout("n long, at long, door string"))
    options = {"timestamp": "at", "source": "door"}
    rows.tumbling_window(millis(10), "n", Sum(), "total long", **options).sink("sums")
    given, checkpoint = feed("n long, at long, door string"), str(tmp_path / "checkpoint")
    given.add([{"n": 1, "at": 41, "door": "front"}, {"n": 2, "at": 12, "door": "back"}])
    query = submit_trident(
        trident, spark, sources={"rows": given.read()}, sinks={"sums": MemorySink()}, checkpoint=checkpoint
    )
    assert query.await_end(180)
    (windows,) = (each for each in query.metrics().tasks if each.slowest is not None)
    assert (windows.watermark_ms, str(windows.slowest)) == (12, "stream default, source back")
    last = query.progress[-1]
    assert (last.watermark_ms, last.lag_ms, last.tasks) == (12, windows.watermark_lag_ms, 1)
    (stored,) = (each for each in metrics_in(LocalFiles(Path(checkpoint))).tasks if each.slowest is not None)
    assert stored == windows


def test_a_query_with_a_restart_has_the_metrics_of_local_cluster_and_shows_them_on_its_page(
    spark: SparkSession, feed: Any, tmp_path: Path
) -> None:
    given = feed("sentence string, at long")
    rows = [[{"sentence": sentence, "at": at} for sentence, at in batch] for batch in BATCHES]
    checkpoint = str(tmp_path / "checkpoint")

    def started(drain: bool) -> Any:
        sinks = {name: MemorySink() for name in ("tens", "tens.late", "tens.dead_letters")}
        query = submit(
            topology(), spark, sources={"sentences": given.read()}, sinks=sinks, checkpoint=checkpoint, drain=drain
        )
        assert query.await_end(180)
        return query

    given.add(*rows[:1])
    first = started(drain=False)
    assert first.metrics().components()["split"].executed == len(BATCHES[0])
    given.add(*rows[1:])
    second = started(drain=True)
    run = second.metrics()
    with LocalCluster(topology(), batches={"sentences": BATCHES}, clock=VirtualClock(0)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
    whole = counted(metrics.now())
    for name in ("sentences", "split", "upper"):  # the counters of a run begin at zero
        one, two = counted(first.metrics())[name], counted(run)[name]
        for each, total in whole[name].items():
            if isinstance(total, dict):
                assert {key: one[each].get(key, 0) + two[each].get(key, 0) for key in total} == total
            else:
                assert one[each] + two[each] == total
    assert counted(run)["tens"]["windows_fired"] == whole["tens"]["windows_fired"]
    assert counted(run)["tens"]["late"] == whole["tens"]["late"]
    assert run.components()["tens"].pending == 0
    assert run.batch == 3
    assert run.phases["addBatch"] > 0
    with second.ui() as page:
        second_shown = json.loads(urllib.request.urlopen(f"{page.url}now", timeout=10).read())
    with page_of(LocalFiles(Path(checkpoint)), 0) as page:  # as another process sees it
        left = json.loads(urllib.request.urlopen(f"{page.url}now", timeout=10).read())
    for part in ("name", "batch", "boxes", "edges", "components"):
        assert left[part] == second_shown[part]
    assert {edge["label"] for edge in second_shown["edges"]} == {"shuffle", "fields(word)", "global"}
    jobs = described(spark)
    assert any(text.startswith("words, batch 3: evaluates sentences") for text in jobs)
    assert any(text == "words, batch 2: writes tens" for text in jobs)
