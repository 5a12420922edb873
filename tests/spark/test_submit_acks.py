"""submit() with spouts that take acks: a batch is acked when its whole tuple tree is processed and committed, not before."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from windowing.acking.batches import BatchLedger, BatchRecord, RootPartial
from windowing.errors import CheckpointError, CorruptStateError, DefinitionChangedError, FailedException, SourceError
from windowing.queues import Root
from windowing.spark import MemorySink, ParquetSink, SqliteQueue, submit
from windowing.spark.acks import AckLog
from windowing.spark.hadoop import Folder
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, tumbling
from windowing.topology.plan import Topology
from windowing.windows.measures import count, millis, seconds

pytestmark = pytest.mark.python_source

WORDS = "word string, at long"


def told_by(checkpoint: Path) -> tuple[type[SqliteQueue], list[tuple[int, str, list[int]]]]:
    """Return a queue class that records each call, and the list of its calls: (batch, call, batches committed at that time)."""
    told: list[tuple[int, str, list[int]]] = []

    def note(root: Root, what: str) -> None:
        commits = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
        told.append((root.batch, what, sorted(commits)))

    class Noting(SqliteQueue):
        def ack(self, root: Root) -> None:
            note(root, "ack")
            super().ack(root)

        def fail(self, root: Root, component: str) -> None:
            note(root, f"fail {component}")
            super().fail(root, component)

        def give_up(self, root: Root, component: str) -> None:
            note(root, f"give up {component}")
            SqliteQueue.ack(self, root)

    return Noting, told


def counts(on_error: str = "raise", with_total: bool = False, **settings: Any) -> Topology:
    @tumbling(
        seconds(10), timestamp="at", key="word", on_error=on_error, name="count", output="word string, end long, n long"
    )
    def count(window: Any) -> Any:
        if window.key == "bad":
            raise ValueError("no such word")
        return window.key, window.end_timestamp, len(window)

    @tumbling(seconds(20), timestamp="end", output="end long, words long")
    def total(window: Any) -> Any:
        return window.end_timestamp, sum(row.n for row in window)

    builder = TopologyBuilder("counts")
    builder.configure({"topology.enable.message.timeouts": False, **settings})
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("count", count, 2).fields_grouping("words", "word")
    if with_total:
        builder.set_bolt("total", total).global_grouping("count")
    return builder.build()


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Callable[..., dict[str, list[tuple[Any, ...]]]]:
    def run(topology: Topology, source: Any, **options: Any) -> dict[str, list[tuple[Any, ...]]]:
        sinks = {name: MemorySink() for name in ("count", "total") if name in topology.components}
        checkpoint = str(tmp_path / "checkpoint")
        given = {"sources": {"words": source}, "sinks": sinks, "checkpoint": checkpoint, "partitions": 1}
        query = submit(topology, spark, **given, **options)
        query.await_end(200)
        return {name: [tuple(row) for row in sink.rows] for name, sink in sinks.items()}

    return run


def test_a_batch_is_acked_after_its_last_window_has_fired_and_is_committed_also_over_a_restart(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    kind, told = told_by(tmp_path / "checkpoint")
    queue = kind(tmp_path / "queue.db", WORDS, max_rows=2)
    rows = [("cow", 1_000), ("moon", 9_000), ("cow", 25_000), ("moon", 3_000), ("cow", 45_000)]
    queue.put(rows[:4])
    topology = counts(with_total=True)
    found = start(topology, queue)
    assert sorted(found["count"]) == [("cow", 10_000, 1), ("moon", 10_000, 1)]
    assert told == [], "(0, 10] has fired, and what it emitted waits in (0, 20] of the next bolt"
    assert queue.rows() == rows[:4]
    queue.put(rows[4:])
    found = start(topology, queue, drain=True)
    assert found["total"] == [(20_000, 2), (40_000, 1), (60_000, 1)]
    assert told == [(0, "ack", [0, 1, 2]), (1, "ack", [0, 1, 2, 3]), (2, "ack", [0, 1, 2, 3])]
    assert len(queue) == 0


def test_a_batch_with_a_dead_letter_is_given_up_after_the_dead_letter_was_processed(
    spark: SparkSession, tmp_path: Path
) -> None:
    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        if tuple.word == "bad":
            raise FailedException("not this one")
        return tuple.word

    @tumbling(count(2), output="errors string")
    def pairs(window: Any) -> Any:
        return " ".join(letter.error for letter in window)

    checkpoint = tmp_path / "checkpoint"
    noting, told = told_by(checkpoint)
    queue = noting(tmp_path / "queue.db", WORDS, max_rows=2)
    queue.put([("cow", 1), ("bad", 2), ("moon", 3), ("moon", 4), ("bad", 5), ("cow", 6)])
    builder = TopologyBuilder("letters").configure(max_attempts=2, retry_delay=millis(0))
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("picky", picky).shuffle_grouping("words")
    builder.set_bolt("pairs", pairs).global_grouping("picky", "dead_letters")
    sinks = {name: MemorySink() for name in ("picky", "pairs")}
    given = {"sources": {"words": queue}, "sinks": sinks, "checkpoint": str(checkpoint), "partitions": 1}
    submit(builder.build(), spark, **given).await_end(200)
    assert [row[0] for row in sinks["pairs"].rows] == [" ".join(["FailedException: [FAILED] not this one"] * 2)]
    assert sorted(each[:2] for each in told) == [(0, "give up picky"), (1, "ack"), (2, "give up picky")]
    assert len(queue) == 0


def test_an_older_copy_of_a_checkpoint_and_a_recreated_queue_are_refused(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1_000)])
    start(counts(**{"topology.acker.executors": 0}), queue)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, tmp_path / "copy")
    queue.put([("moon", 2_000)])
    start(counts(**{"topology.acker.executors": 0}), queue)
    assert len(queue) == 0
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    with pytest.raises(CheckpointError, match=r"acked up to offset 2 .* read up to 1: it is an older copy"):
        start(counts(**{"topology.acker.executors": 0}), queue)
    (tmp_path / "queue.db").rename(tmp_path / "kept.db")
    anew = SqliteQueue(tmp_path / "queue.db", WORDS)
    anew.put([("moon", 70_000)] * 5)
    with pytest.raises(CheckpointError, match=r"reads another SqliteQueue at .*queue.db than this checkpoint has read"):
        start(counts(**{"topology.acker.executors": 0}), anew)
    assert len(anew) == 5
    (tmp_path / "kept.db").rename(tmp_path / "queue.db")
    shutil.rmtree(checkpoint)
    queue.put([("cow", 60_000)])
    assert start(counts(), queue, drain=True)["count"] == [("cow", 60_000, 1)], "a new checkpoint takes what is left"


def test_a_failed_window_fails_its_batch_and_the_queue_replays_it(start: Callable[..., Any], tmp_path: Path) -> None:
    kind, told = told_by(tmp_path / "checkpoint")
    queue = kind(tmp_path / "queue.db", WORDS, max_rows=2, partitions=2, max_attempts=2)
    queue.put([("bad", 1_000), ("cow", 2_000), ("cow", 11_000), ("moon", 12_000)])
    start(counts(on_error="fail"), queue)
    assert told == [(0, "fail count", [0, 1])]
    assert queue.rows() == [("cow", 11_000), ("moon", 12_000), ("bad", 1_000), ("cow", 2_000)], "for another attempt"
    with pytest.raises(DefinitionChangedError, match=r"spouts with their streams were .*when done.*, now .*at once"):
        start(counts(on_error="skip", **{"topology.acker.executors": 0}), queue)


def test_an_exception_in_ack_ends_the_query_and_the_ack_is_repeated_at_the_next_start(
    spark: SparkSession, start: Callable[..., Any], tmp_path: Path
) -> None:
    class Broken(SqliteQueue):
        def ack(self, root: Root) -> None:
            raise OSError("the disk is full")

    queue = Broken(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1_000)])
    sentence = r"spout 'words:default' raised in ack of batch 0: OSError: the disk is full; repair it and start again"
    with pytest.raises(SourceError, match=sentence):
        start(counts(**{"topology.acker.executors": 0}), queue)
    assert queue.rows() == [("cow", 1_000)]

    def emptied() -> bool:
        deadline = time.monotonic() + 120
        while len(queue) and time.monotonic() < deadline:
            time.sleep(0.1)
        return len(queue) == 0

    sources = {"words": SqliteQueue(tmp_path / "queue.db", WORDS)}
    options = {"sinks": {"count": MemorySink()}, "checkpoint": str(tmp_path / "checkpoint"), "trigger": millis(200)}
    query = submit(counts(**{"topology.acker.executors": 0}), spark, sources=sources, **options)
    try:
        assert queue.rows() == [], "told again at the start; without ackers a batch is acked when it is committed"
        queue.put([("moon", 2_000)])
        assert emptied(), "told while the query waits for more"
    finally:
        query.stop()


def test_a_spout_can_be_read_as_a_streaming_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", "n long, told map<string, array<double>>", partitions=3, max_rows=6)
    queue.put([(n, {"half": [n / 2]}) for n in range(10)])
    query = queue.stream(spark).writeStream.format("memory").queryName("queued").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    found = sorted((row.n, row.told) for row in spark.table("queued").collect())
    assert found == [(n, {"half": [n / 2]}) for n in range(10)]
    assert len(queue) == 10, "nobody acks for a DataFrame"


def record(batch: int) -> BatchRecord:
    """Return a record whose root is acked at once in every second batch, and stays pending in the others."""
    partials = (RootPartial(batch << 16, 1, 1),) if batch % 2 else ()
    return BatchRecord(batch, {batch << 16: [{"0": batch}, {"0": batch + 1}]}, partials, batch - 2)


def test_the_ack_log_is_compacted_without_loss_and_its_damage_is_named(spark: SparkSession, tmp_path: Path) -> None:
    log, ledger = AckLog(Folder(spark, str(tmp_path)) / "windowing" / "acks"), BatchLedger()
    for batch in range(53):
        log.compact(ledger)
        ledger.apply(record(batch))
        log.write(record(batch))
        if batch in (0, 48, 49, 50, 51):
            assert log.ledger(batch).snapshot() == ledger.snapshot()
    folder = tmp_path / "windowing" / "acks"
    assert sorted(path.name[10:] for path in folder.glob("0*")) == ["49.snapshot", "50.batch", "51.batch", "52.batch"]
    before = log.ledger(51).snapshot()
    (folder / "000000000052.batch").unlink()
    assert log.ledger(51).snapshot() == before, "a batch that was not committed is not looked at"
    with pytest.raises(CorruptStateError, match=r"000000000052.batch is missing"):
        log.ledger(52)
    for name in ("000000000049.snapshot", "000000000050.batch"):
        content = (folder / name).read_bytes()
        (folder / f".{name}.crc").unlink()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CorruptStateError, match=name):
            log.ledger(51)
        (folder / name).write_bytes(content)
    assert log.ledger(51).snapshot() == before
    assert [news.batch for news in log.ledger(51).outcomes(51)] == [50], (
        "the record of batch 51 says that all up to 49 was told"
    )
    log.told(51)
    assert log.ledger(51).outcomes(51) == []


def test_the_queue_example_of_the_spark_guide_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text(encoding="utf-8")
    (example,) = [each for each in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "SqliteQueue(" in each]
    moved = re.sub(r'"(data|out)/', rf'"{tmp_path}/\1/', example)
    exec(compile(moved, "spark.md", "exec"), {"__name__": "spark_md"})
    assert capsys.readouterr().out == "[('over and over', 25000)]\n"
    counted = sorted(
        (row.word, row.ends, row.n) for row in ParquetSink(str(tmp_path / "out" / "count")).read(spark).collect()
    )
    assert counted == [
        *[(word, 10_000, 1) for word in ("cow", "jumped", "moon")],
        *[("moon", 20_000, 1), ("over", 10_000, 1), ("the", 10_000, 2), ("the", 20_000, 1)],
    ]
