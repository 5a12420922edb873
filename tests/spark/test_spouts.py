"""PartitionedSpout as a source of Spark, and SqliteQueue, without a JVM."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windowing.errors import CheckpointError, ConfigError, CorruptStateError, SourceError
from windowing.queues import PartitionedSpout, Root, SqliteQueue, sqlite_queue
from windowing.queues.spout import Offsets
from windowing.schema.types import Schema
from windowing.spark.failures import WorkerError
from windowing.spark.spouts import (
    ReadAllAvailable,
    ReadMaxRows,
    SpoutReader,
    batch_of,
    refuse_other,
)


class Numbers(PartitionedSpout):
    """Partitions of integers: the row at offset n is n."""

    fields = "n long"

    def __init__(self, **ends: int) -> None:
        self.ends, self.begins = ends, dict.fromkeys(ends, 0)
        self.committed: list[Offsets] = []

    def initial(self) -> Offsets:
        return self.begins

    def latest(self) -> Offsets:
        return self.ends

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start + 1, end + 1), pa.int32())})

    def commit(self, end: Offsets) -> None:
        self.committed.append(end)


def reader_of(spout: PartitionedSpout) -> SpoutReader:
    return SpoutReader(spout, Schema.parse(spout.fields), "numbers")


def rows_of(reader: SpoutReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = reader.partitions(start, end)
    return [n for part in parts for batch in reader.read(part) for n in batch.column("n").to_pylist()]


def test_a_spout_takes_acks_if_its_class_defines_them() -> None:
    assert not Numbers(a=3).takes_acks
    assert SqliteQueue.takes_acks.fget(object.__new__(SqliteQueue))  # type: ignore[attr-defined]


def test_a_spout_without_fields_is_refused_before_spark_is_used() -> None:
    class Fieldless(Numbers):
        fields = ""

    with pytest.raises(ConfigError, match="a schema is a text of fields"):
        Fieldless(a=1).stream(None)  # type: ignore[arg-type]


def test_batches_are_limited_by_max_rows_and_defined_by_the_offset_log_alone() -> None:
    reader = reader_of(Numbers(a=3, b=7))
    at = reader.initialOffset()
    assert rows_of(reader, at, at) == []
    batches = []
    while (end := reader.latestOffset(at, ReadMaxRows(4))) != at:
        assert batch_of(end, "numbers") == (at["to"], end["to"])
        assert batch_of(end, "others") is None
        assert reader.reportLatestOffset() == {"spout": "numbers", "from": {}, "to": {"a": 3, "b": 7}}, "for the lag"
        batches.append(rows_of(reader, at, end))
        reader.commit(end)
        at = end
    assert batches == [[1, 2, 1, 2], [3, 3, 4], [5, 6, 7]]
    assert reader.latestOffset(at, ReadAllAvailable()) is at
    assert rows_of(reader, at, at) == [], "asked when another source has something"
    assert reader._spout.committed[-1] == {"a": 3, "b": 7}  # type: ignore[attr-defined]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12), min_size=1),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=4),
    st.none() | st.integers(1, 7),
)
def test_every_row_is_read_once_while_partitions_grow_between_batches(
    ends: dict[str, int], more: list[tuple[str, int]], rows: int | None
) -> None:
    spout = Numbers(**ends)
    reader, found, bound = reader_of(spout), [], ReadAllAvailable() if rows is None else ReadMaxRows(rows)
    at, growing = reader.initialOffset(), iter(more)
    while True:
        end = reader.latestOffset(at, bound)
        if end == at:
            step = next(growing, None)
            if step is None:
                break
            spout.ends = {**spout.ends, step[0]: spout.ends.get(step[0], 0) + step[1]}
            spout.begins = dict.fromkeys(spout.ends, 0)
            continue
        parts = reader.partitions(at, end)
        taken = [(part.partition, n) for part in parts for b in reader.read(part) for n in b.column("n").to_pylist()]  # type: ignore[attr-defined]
        assert taken, "a batch that Spark makes has something to read"
        assert rows is None or len(taken) <= max(rows, len(spout.ends))
        found += taken
        at = end
    assert sorted(found) == sorted((name, n) for name, end in spout.ends.items() for n in range(1, end + 1))


def test_an_available_now_run_ends_at_the_offsets_of_its_start() -> None:
    spout = Numbers(a=5)
    reader = reader_of(spout)
    reader.prepareForTriggerAvailableNow()
    spout.ends, spout.begins = {"a": 9, "b": 2}, {"a": 0, "b": 0}
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    assert end["to"]["a"] == 5
    assert rows_of(reader, at, end) == [1, 2, 3, 4, 5]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ends": {"a": 2}}, "ends at offset 2, and the query has read up to 3: rows were lost"),
        ({"ends": {"a": 3.5}}, "wanted a whole number for each partition"),
        ({"ends": [3]}, "wanted a whole number for each partition"),
        ({"ends": {"a": 3, "b": 1}}, "partition 'b' is in latest.* not in initial"),
    ],
)
def test_invalid_offsets_of_a_spout_are_a_source_error(change: dict[str, Any], sentence: str) -> None:
    spout = Numbers(a=3)
    reader = reader_of(spout)
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    vars(spout).update(change)
    with pytest.raises(WorkerError, match=sentence) as found:
        reader.latestOffset(at, ReadAllAvailable())
    assert isinstance(found.value.__cause__, SourceError)


@pytest.mark.parametrize(
    ("given_rows", "sentence"),
    [
        ([1, 2], "its read yields pyarrow RecordBatches, such as pyarrow.RecordBatch.from_pylist"),
        (pa.RecordBatch.from_pydict({"m": [1]}), "gave columns m; its fields are n"),
        (pa.RecordBatch.from_pydict({"n": ["x"]}), "a value that is not of its field"),
    ],
)
def test_rows_that_do_not_match_the_fields_are_an_error(given_rows: Any, sentence: str) -> None:
    class Wrong(Numbers):
        def read(self, partition: str, start: int, end: int) -> Iterator[Any]:
            yield given_rows

    reader = reader_of(Wrong(a=1))
    at = reader.initialOffset()
    with pytest.raises(WorkerError, match=sentence):
        rows_of(reader, at, reader.latestOffset(at, ReadAllAvailable()))


# -- the queue --------------------------------------------------------------------------------------------------------------


def taken(queue: SqliteQueue, start: Offsets, end: Offsets) -> list[Any]:
    root = Root(0, start, end)
    parts = [queue.read(name, *bounds) for name, bounds in sorted(root.ranges.items())]
    return sorted(row["n"] for part in parts for batch in part for row in batch.to_pylist())


def test_offsets_of_a_queue_increase_also_after_it_was_empty(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long", partitions=2)
    assert queue.initial() == queue.latest() == {"0": 0, "1": 0}
    assert queue.put([(1,), (2,), (3,)]) == 3
    assert queue.latest() == {"0": 3, "1": 3}
    root = Root(0, queue.initial(), queue.latest())
    assert taken(queue, root.start, root.end) == [1, 2, 3]
    queue.ack(root)
    queue.ack(root)
    assert len(queue) == 0
    assert queue.initial() == queue.latest() == {"0": 3, "1": 3}
    queue.put([(4,)])
    assert taken(queue, root.end, queue.latest()) == [4]


def test_a_failed_root_is_replayed_and_becomes_a_dead_letter_after_its_last_attempt(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long", max_attempts=2)
    queue.put([(1,), (2,)])
    first = Root(0, {"0": 0}, {"0": 2})
    queue.fail(first, "count")
    queue.fail(first, "count")
    assert queue.rows() == [(1,), (2,)], "once, whatever is told twice"
    queue.put([(3,)])
    queue.fail(Root(1, {"0": 2}, {"0": 5}), "count")
    assert queue.dead == [(1,), (2,)]
    assert queue.rows() == [(3,)]
    assert queue.latest() == {"0": 6}


def test_a_checkpoint_older_than_the_acks_is_refused_by_name(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long", partitions=2)
    queue.put([(n,) for n in range(6)])
    start = queue.initial()
    queue.begin("one", None)
    queue.ack(Root(1, {"0": 2, "1": 2}, {"0": 4, "1": 4}))
    for read in (None, {"0": 2, "1": 2}, {"0": 4, "1": 2}):
        with pytest.raises(CheckpointError, match=r"acked up to offset 4 .* older copy.* begin with a new checkpoint"):
            queue.begin("one", read)
    queue.begin("one", {"0": 4, "1": 4})
    with pytest.raises(CheckpointError, match="acked up to offset 4"):
        queue.begin("one", {"0": 2, "1": 2})
    # Failed rows are appended at the end again, where an older checkpoint reads them too.
    queue.fail(Root(2, {"0": 4, "1": 4}, {"0": 6, "1": 6}), "count")
    queue.begin("one", {"0": 4, "1": 4})
    assert taken(queue, {"0": 4, "1": 4}, queue.latest()) == [4, 5]
    # A new query reads the remaining rows; the old query would miss the rows that the new one has acked.
    queue.begin("two", None)
    queue.begin("two", start)
    assert taken(queue, start, queue.latest()) == [0, 1, 4, 5]
    with pytest.raises(CheckpointError, match="another query reads the queue"):
        queue.begin("one", {"0": 4, "1": 4})


def test_a_query_whose_queue_another_one_has_taken_over_acks_and_fails_nothing_any_more(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long")
    queue.put([(n,) for n in range(4)])
    root = Root(1, {"0": 0}, {"0": 2})
    queue.begin("one", None)
    other = SqliteQueue(tmp_path / "q.db", "n long")
    other.ack(Root(0, {"0": 0}, {"0": 1}))  # by a program that has no query
    other.begin("two", None)
    for use in (lambda: queue.ack(root), lambda: queue.fail(root, "count"), lambda: queue.give_up(root, "count")):
        with pytest.raises(
            SourceError, match=r"another query has begun to read the queue .*q\.db since.*nothing was acked"
        ):
            use()
    assert queue.rows() == [(1,), (2,), (3,)]
    other.ack(root)
    queue.begin("three", None)
    queue.ack(Root(2, {"0": 2}, {"0": 4}))
    assert (queue.rows(), queue.dead) == ([], [])


def test_the_ack_of_an_older_root_after_that_of_a_newer_one_forgets_no_ack(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long")
    queue.put([(n,) for n in range(6)])
    queue.begin("one", None)
    queue.ack(Root(2, {"0": 2}, {"0": 4}))
    queue.ack(Root(1, {"0": 0}, {"0": 2}))
    with pytest.raises(CheckpointError, match="acked up to offset 4"):
        queue.begin("one", {"0": 2})
    assert queue.rows() == [(4,), (5,)]


def test_rows_are_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windowing.queues.sqlite_queue._ROWS_PER_BATCH", 3)
    queue = SqliteQueue(tmp_path / "q.db", "n long", partitions=2)
    queue.put([(n,) for n in range(1, 21)])
    start, end = queue.initial(), queue.latest()
    assert taken(queue, start, end) == list(range(1, 21))
    assert [batch.num_rows for batch in queue.read("1", 0, 20)] == [3, 3, 3, 1]


def test_an_older_copy_of_a_queue_is_refused_if_one_partition_was_read_further_than_it_knows(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long", partitions=2)
    queue.put([(n,) for n in range(4)])
    queue.begin("one", None)
    assert queue.latest() == {"0": 4, "1": 4}
    root = Root(1, {"0": 0, "1": 0}, {"0": 2, "1": 9})
    for use in (lambda: queue.ack(root), lambda: queue.fail(root, "count"), lambda: queue.begin("one", root.end)):
        with pytest.raises(SourceError, match="it was read up to number 4, and its query has read up to 9"):
            use()
    assert queue.rows() == [(0,), (1,), (2,), (3,)]


def test_an_older_copy_of_a_queue_whose_new_rows_have_numbers_that_were_read_is_refused(tmp_path: Path) -> None:
    path, copy = tmp_path / "q.db", tmp_path / "copy.db"
    running = SqliteQueue(path, "n long")
    running.begin("one", None)
    running.put([(n,) for n in range(4)])
    assert running.latest() == {"0": 4}
    running.put([(4,)])
    shutil.copy(path, copy)
    running.put([(5,)])
    assert running.latest() == {"0": 6}
    shutil.copy(copy, path)
    producer = SqliteQueue(path, "n long")
    producer.put([(n,) for n in range(10, 13)])
    root, rows = Root(1, {"0": 4}, {"0": 6}), producer.rows()
    for use in (
        running.latest,
        lambda: running.ack(root),
        lambda: running.fail(root, "count"),
        lambda: SqliteQueue(path, "n long").begin("one", {"0": 6}),
    ):
        with pytest.raises(
            SourceError, match=r"q\.db is an older copy: it was read up to number 4, .* up to 6.*begin with a new"
        ):
            use()
    assert producer.rows() == rows
    new = SqliteQueue(path, "n long")
    new.begin("two", None)
    assert taken(new, new.initial(), new.latest()) == [0, 1, 2, 3, 4, 10, 11, 12]
    running.begin("three", None)
    assert running.latest() == {"0": 8}


def test_a_poll_without_new_rows_waits_for_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_queue, "_WAIT_S", 0.1)
    queue = SqliteQueue(path := tmp_path / "q.db", "n long")
    queue.put([(1,)])
    queue.begin("one", None)
    assert queue.latest() == {"0": 1}
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert queue.latest() == {"0": 1}


def test_rows_and_options_that_do_not_fit_a_queue_are_refused(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", "n long")
    for rows in ([(1,), ("x",)], [(1,), (2, 3)]):
        with pytest.raises(ConfigError, match="takes rows of n bigint"):
            queue.put(rows)
    words = SqliteQueue(tmp_path / "words.db", "word string")
    for row in ("cow", {"word": "cow"}):
        with pytest.raises(ConfigError, match=r"takes a list of rows, got .*cow.*; write put\(\[row, row\]\)"):
            words.put(row)
    assert len(queue) == len(words) == 0
    with pytest.raises(ConfigError, match="was made with fields 'n bigint', now 'm bigint'"):
        SqliteQueue(tmp_path / "q.db", "m long")
    with pytest.raises(ConfigError, match="was made with partitions '1', now '2'"):
        SqliteQueue(tmp_path / "q.db", "n long", partitions=2)
    with pytest.raises(ConfigError, match="max_rows of a queue is a whole number"):
        SqliteQueue(tmp_path / "q.db", "n long", max_rows=0)
    (tmp_path / "other.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptStateError, match=r"other\.db is damaged, or not ours: file is not a database"):
        SqliteQueue(tmp_path / "other.db", "n long")


def test_a_recreated_queue_is_refused_with_the_checkpoint_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    old = SqliteQueue(path, "n long")
    old.put([(n,) for n in range(300)])
    reader = reader_of(old)
    begun = reader.initialOffset()
    read = reader.latestOffset(begun, ReadAllAvailable())
    assert SqliteQueue(path, "n long").identity == old.identity, "opened again it is the same queue"
    reader_of(SqliteQueue(path, "n long")).partitions(begun, read)
    shutil.copy(path, tmp_path / "copy.db")
    path.unlink()
    new = SqliteQueue(path, "n long")
    new.put([(n,) for n in range(500)])
    sentence = r"spout 'numbers' reads another SqliteQueue at .*q\.db than this checkpoint has read.*begin with a new checkpoint"
    for use in (
        lambda: reader_of(new).latestOffset(read, ReadAllAvailable()),
        lambda: reader_of(new).partitions(begun, read),
        lambda: refuse_other(read, new, "numbers"),
    ):
        with pytest.raises((CheckpointError, WorkerError), match=sentence):
            use()
    with pytest.raises(SourceError, match="is not the one that was opened: its file was made anew since"):
        old.put([(1,)])
    shutil.copy(tmp_path / "copy.db", path)
    assert reader_of(SqliteQueue(path, "n long")).latestOffset(read, ReadAllAvailable()) is read
    legacy = {name: part for name, part in read.items() if name != "source"}
    assert reader_of(old).latestOffset(legacy, ReadAllAvailable()) is legacy, (
        "written by an earlier version: taken over"
    )


def uses(queue: SqliteQueue) -> list[Callable[[], Any]]:
    """Return a call of each operation of a queue with the rows 0 to 9."""
    root = Root(0, {"0": 0}, {"0": 10})
    return [
        lambda: queue.put([(10, "x")]), lambda: len(queue), queue.rows, lambda: queue.dead, queue.initial, queue.latest,
        lambda: list(queue.read("0", 0, 10)), lambda: queue.begin("me", None), lambda: queue.ack(root),
        lambda: queue.fail(root, "count"), lambda: SqliteQueue(queue.path, "n long, text string"),
    ]  # fmt: skip


def a_queue(path: Path) -> SqliteQueue:
    queue = SqliteQueue(path, "n long, text string")
    queue.put([(n, f"text {n} ") for n in range(10)])
    return queue


def test_a_locked_full_or_deleted_queue_file_is_a_source_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_queue, "_WAIT_S", 0.05)
    queue = a_queue(tmp_path / "q.db")
    with closing(sqlite3.connect(queue.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for use in uses(queue):
            with pytest.raises(SourceError, match=r"q\.db is locked by another process for more than 0\.05 s"):
                use()
    kept = Path(queue.path).read_bytes()
    Path(queue.path).unlink()
    for use in uses(queue)[:-1]:
        with pytest.raises(SourceError, match=r"q\.db is gone: its file was deleted or moved; put it back from a copy"):
            use()
    assert not Path(queue.path).exists(), "nothing is made anew in silence"
    Path(queue.path).write_bytes(kept)
    make_durable = sqlite_queue.make_durable

    def full(db: sqlite3.Connection, patience_s: float) -> None:
        make_durable(db, patience_s)
        db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")

    monkeypatch.setattr(sqlite_queue, "make_durable", full)
    with pytest.raises(SourceError, match=r"cannot be read or written: database or disk is full; look at the disk"):
        queue.put([(10, "".join(map(str, range(20_000))))])
    monkeypatch.undo()
    assert queue.put([(10, "x")]) == 1
    assert [n for n, _ in queue.rows()] == list(range(11))
    monkeypatch.setattr(
        SqliteQueue, "_fill", lambda _, db: db.executescript("PRAGMA max_page_count = 1; CREATE TABLE a (b)")
    )
    with pytest.raises(
        SourceError, match=r"new\.db cannot be read or written: database or disk is full; look at the disk"
    ):
        SqliteQueue(tmp_path / "new.db", "n long")
    with pytest.raises(SourceError, match="cannot be opened"):
        SqliteQueue(tmp_path / "q.db" / "below" / "q.db", "n long")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE queue SET row = CAST(replace(row, 'text 3', 'text 4') AS BLOB)",
        "UPDATE queue SET attempt = 4 WHERE id = 4",
        "UPDATE queue SET row = (SELECT row FROM queue WHERE id = 9) WHERE id = 4",
        "UPDATE queue SET row = CAST(row AS TEXT)",
        "UPDATE meta SET value = '99' WHERE name = 'last'",
        "UPDATE meta SET value = 'me' WHERE name = 'fields'",
        "DELETE FROM meta WHERE name = 'crc'",
        "DELETE FROM meta WHERE name = 'identity'",
        "DELETE FROM meta",
        "DROP TABLE queue",
    ],
)
def test_a_changed_row_or_metadata_of_a_queue_is_detected(tmp_path: Path, change: str) -> None:
    queue = a_queue(tmp_path / "q.db")
    with closing(sqlite3.connect(queue.path)) as db, db:
        db.execute(change)
    with pytest.raises((CorruptStateError, SourceError), match=r"q\.db is (damaged|not the one)"):
        list(queue.read("0", 0, 10))
    if "meta" in change:
        with pytest.raises(CorruptStateError, match="is damaged"):
            SqliteQueue(queue.path, "n long, text string")


def test_a_flipped_bit_in_a_queue_is_detected_or_has_no_effect(tmp_path: Path) -> None:
    queue = a_queue(tmp_path / "q.db")
    whole, rows, path = Path(queue.path).read_bytes(), queue.rows(), Path(queue.path)
    chance = random.Random(1)
    spots = chance.sample([at for at, byte in enumerate(whole) if byte], 120)
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :] for at in spots]
    refused = 0
    for content in [*flipped, *(whole[:cut] for cut in range(0, len(whole), 2048))]:
        path.write_bytes(content)
        try:
            queue.begin("me", None)
            assert queue.latest() == {"0": 10}
            assert [tuple(row.values()) for batch in queue.read("0", 0, 10) for row in batch.to_pylist()] == rows
        except (CorruptStateError, SourceError):
            refused += 1
    assert refused > 40


def test_a_queue_of_an_earlier_version_gets_an_identity_and_checksums(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "q.db")) as db, db:
        db.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, attempt INTEGER NOT NULL, row BLOB NOT NULL);"
            "CREATE TABLE dead (id INTEGER PRIMARY KEY, component TEXT NOT NULL, row BLOB NOT NULL);"
            "INSERT INTO meta VALUES ('fields', 'n bigint'), ('partitions', '1'), ('query', 'me'), ('acked', '{\"0\": 2}');"
            "INSERT INTO queue VALUES (1, 1, x'5b315d'), (3, 2, x'5b335d'), (9, 1, x'5b395d'); DELETE FROM queue WHERE id = 9;"
            "INSERT INTO dead VALUES (2, 'count', x'5b325d')"
        )
    queue = SqliteQueue(tmp_path / "q.db", "n long")
    assert (queue.rows(), queue.dead, queue.initial(), queue.latest()) == ([(1,), (3,)], [(2,)], {"0": 0}, {"0": 9})
    with pytest.raises(CheckpointError, match="acked up to offset 2"):
        queue.begin("me", {"0": 1})
    assert queue.identity is not None
    assert SqliteQueue(tmp_path / "q.db", "n long").identity == queue.identity


@pytest.mark.parametrize("path", [None, 7, "", b"q.db", "a\0b"], ids=repr)
def test_an_invalid_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="the path of a queue is text or a Path, got"):
        SqliteQueue(path, "n long")


values = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "x": st.none() | st.floats(allow_nan=False),
        "raw": st.none() | st.binary(),
        "day": st.none() | st.dates(),
        "many": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1)),
    }
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 3)
@given(st.lists(values, max_size=5), st.integers(1, 3))
def test_rows_of_a_queue_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], partitions: int) -> None:
    fields = "text string, x double, raw binary, day date, many array<long>"
    queue = SqliteQueue(tmp_path_factory.mktemp("q") / "q.db", fields, partitions=partitions)
    queue.put(rows)
    names = ("text", "x", "raw", "day", "many")
    assert queue.rows() == [tuple(row[name] for name in names) for row in rows]
    latest = queue.latest()
    found = [row for name in latest for batch in queue.read(name, 0, latest[name]) for row in batch.to_pylist()]
    assert len(found) == len(rows)
    assert all(row in rows for row in found)
