"""The same queries in Spark SQL, the base of the suites `yahoo` and `nexmark`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from benchmarks.spark.stage import spark
from benchmarks.spark.topologies import ADS, campaign_of

Frames = Mapping[str, Any]


def _timed(frame: Any) -> Any:
    """Add the timestamp for native windows: a millisecond earlier, see native.py."""
    return frame.withColumn("ts", F.timestamp_millis(F.col("at") - 1)).withWatermark("ts", "0 seconds")


def _ends(window: str = "window") -> Any:
    return F.unix_millis(f"{window}.end").alias("ends")


def yahoo(frames: Frames) -> Any:
    """Filter, join with a table, count."""
    table = spark().createDataFrame([(ad, campaign_of(ad)) for ad in range(ADS)], "ad long, campaign long")
    views = _timed(frames["ads"]).where("kind = 'view'").join(F.broadcast(table), "ad")
    counts = views.groupBy(F.window("ts", "10 seconds"), "campaign").agg(F.count("*").alias("n"))
    return counts.select(_ends(), "campaign", "n")


def q5(frames: Frames) -> Any:
    """Count in sliding windows, then keep the most of each window."""
    bids = _timed(frames["bids"])
    counts = bids.groupBy(F.window("ts", "10 seconds", "5 seconds"), "auction").agg(F.count("*").alias("n"))
    rows = F.collect_list(F.struct("n", "auction")).alias("rows")
    lists = counts.groupBy("window").agg(rows, F.max("n").alias("most"))
    hottest = lists.select(_ends(), "most", F.explode("rows").alias("row")).where("row.n = most")
    return hottest.select("ends", "row.auction", "row.n")


def q7(frames: Frames) -> Any:
    """Take the largest struct of each window."""
    best = F.max(F.struct("price", "auction", "bidder")).alias("best")
    found = _timed(frames["bids"]).groupBy(F.window("ts", "10 seconds")).agg(best)
    return found.select(_ends(), "best.price", "best.auction", "best.bidder")


def q8(frames: Frames) -> Any:
    """Merge people and sellers into one stream, and keep the windows that have both."""
    people = frames["people"].select("id", "name", "at")
    sellers = frames["auctions"].select(F.col("seller").alias("id"), F.lit(None).cast("string").alias("name"), "at")
    both = _timed(people.unionByName(sellers)).groupBy(F.window("ts", "10 seconds"), "id")
    found = both.agg(F.max("name").alias("name"), F.count_if(F.col("name").isNull()).alias("opened"))
    return found.where("name IS NOT NULL AND opened > 0").select(_ends(), "id", "name")


NATIVE: dict[str, Callable[[Frames], Any]] = {"Yahoo": yahoo, "NEXMark 5": q5, "NEXMark 7": q7, "NEXMark 8": q8}
