"""A state has one writer, and its store must agree with the records: conflicts and losses are refused, nothing is reset."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stores.state_world import Add
from windowing import InputSpout
from windowing.acking.pending import RetryPolicy
from windowing.errors import (
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    FailedException,
    StateConflictError,
    SupersededError,
)
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.stores import MemoryStore, SqliteStore, map_state, snapshot_state
from windowing.stores.sqlite import SqliteRecordStore
from windowing.trident import Count, Max, Sum, TridentRun, TridentTopology, builtins
from windowing.trident.coordinator import CoordinatorConfig, OnFailure
from windowing.trident.fence import (
    LEDGER,
    TYPE_OF_KEY,
    AttemptLedger,
    Claim,
    Fence,
    Life,
    Owner,
    PartitionId,
    Progress,
    StatePlan,
    changed_meaning,
    kept_by,
    owned,
)
from windowing.trident.kinds import Guarantee, StateType, TransactionAttempt
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.state_operations import StateSpec
from windowing.trident.transactional_state import MemoryRecordStore

ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6)]
Store = Any


def counting(
    store: Store, rows: list[Any] = ROWS, *, name: str = "words", state: str = "counts", hint: int = 2, kind: Any = None
) -> TridentTopology:
    """Count words, two rows a batch."""
    topology = TridentTopology(name)
    stream = topology.new_stream("in", FixedBatchSpout("word string, n long", 2, rows))
    spec: Any = map_state(store, state, kind or StateType.OPAQUE)
    if kind is StateType.NON_TRANSACTIONAL:
        spec = StateSpec(spec, accept=Guarantee.AT_LEAST_ONCE)
    stream.group_by("word").persistent_aggregate(spec, None, Count(), "n long").parallelism_hint(hint)
    return topology


def run(topology: TridentTopology, **options: Any) -> Any:
    return run_trident(topology, clock=VirtualClock(), **options).states


def both(one: Any, other: Any) -> TridentTopology:
    topology = TridentTopology("both")
    words = topology.new_stream("in", FixedBatchSpout("word string, n long", 2, ROWS))
    words.group_by("word").persistent_aggregate(one, None, Count(), "n long")
    words.group_by("word").persistent_aggregate(other, "n", Sum(), "n long")
    return topology


# -- one writer --------------------------------------------------------------------------------------------------------


def test_two_persists_into_one_state_are_refused_however_it_is_addressed(tmp_path: Path) -> None:
    memory, file, link = MemoryStore(), tmp_path / "a.db", tmp_path / "b.db"
    link.symlink_to(file)
    for one, other in (
        (map_state(memory, "counts"), map_state(memory, "counts")),
        (map_state(SqliteStore(file), "counts"), map_state(SqliteStore(file, timeout_s=9), "counts", cache=5)),
        (map_state(SqliteStore(file), "counts"), map_state(SqliteStore(link), "counts")),
        (map_state(SqliteStore(file), "counts"), map_state(SqliteStore(tmp_path / "x" / ".." / "a.db"), "COUNTS")),
        (map_state(memory, "counts"), snapshot_state(memory, "counts").factory),
    ):
        with pytest.raises(ConfigError, match="writes the same state as"):
            both(one, other).build()
    both(map_state(memory, "counts"), map_state(memory, "sums")).build()
    both(map_state(memory, "counts"), map_state(MemoryStore(), "counts")).build()
    both(map_state(SqliteStore(file), "counts"), map_state(SqliteStore(tmp_path / "c.db"), "counts")).build()


def test_servers_are_distinguished_by_host_port_and_database_but_not_by_user() -> None:
    postgres = pytest.importorskip("windowing.stores.postgres").PostgresStore
    redis = pytest.importorskip("windowing.stores.redis").RedisStore
    same = [
        (postgres("postgresql://me:a@LOCALHOST/db"), postgres("host=127.0.0.1 port=5432 user=you dbname=db", 5)),
        (redis("redis://localhost"), redis("redis://:secret@127.0.0.1:6379/0", 5)),
        (redis("redis://localhost/1"), redis("redis://localhost?db=1")),
        (redis("unix:///tmp/r.sock"), redis("unix://:secret@/tmp/r.sock")),
    ]
    for one, other in same:
        assert one.identity("counts") == other.identity("counts") != one.identity("sums")
        with pytest.raises(ConfigError, match="writes the same state as"):
            both(map_state(one, "counts"), map_state(other, "counts")).build()
    urls = ["postgresql://h/a", "postgresql://h/b", "postgresql://i/a", "postgresql://h:1/a"]
    for one, other in pairwise(map(postgres, urls)):
        assert one.identity("counts") != other.identity("counts")
    for one, other in pairwise(map(redis, ["redis://h", "redis://i", "redis://h:1", "redis://h/1"])):
        assert one.identity("counts") != other.identity("counts")
    for store in (postgres("port=nonsense nonsense"), redis("nonsense://h")):
        assert store.identity("counts") == store.identity("counts")


class Alias:
    """A store whose address does not reveal that its rows are those of another store."""

    def __init__(self, store: Store) -> None:
        self.open = store.open


def test_two_persists_into_one_state_by_different_addresses_are_refused_at_the_fence() -> None:
    store = MemoryStore()
    with pytest.raises(
        SupersededError, match=r"counts\.2' came to the state counts/0, which 'both .*/counts' writes.*one writer"
    ):
        run(both(map_state(store, "counts"), map_state(Alias(store), "counts")))


def test_a_second_topology_on_a_state_is_refused_by_name_at_the_start(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    assert run(counting(store), state_path=tmp_path / "one.db")["state1"] == {("a",): 3, ("b",): 2, ("c",): 1}
    with pytest.raises(
        SupersededError, match=r"'others' is new, but state1 \(counts in SqliteStore.*'words [0-9a-f]+/counts'"
    ):
        run(counting(store, name="others"), state_path=tmp_path / "one.db")
    with pytest.raises(SupersededError, match="topology 'words' is new"):
        run(counting(store), state_path=tmp_path / "two.db")
    assert run(counting(store), state_path=tmp_path / "one.db")["state1"] == {("a",): 3, ("b",): 2, ("c",): 1}


def test_of_two_topologies_started_together_the_second_to_commit_is_refused() -> None:
    store = MemoryStore()
    with TridentCluster(counting(store), clock=VirtualClock()) as one:
        other = TridentCluster(counting(store, name="others"), clock=VirtualClock())
        one.activate()
        other.activate()
        one.run()
        with pytest.raises(SupersededError, match=r"'others .*' came to the state counts/\d, which 'words .*' writes"):
            other.run()
        assert one.values("state1") == {("a",): 3, ("b",): 2, ("c",): 1}


def test_a_manual_writer_is_refused_on_a_state_that_a_topology_writes() -> None:
    store, attempt = MemoryStore(), TransactionAttempt(9, 0)
    run(counting(store))
    by_hand = map_state(store, "counts").make_state(0, 2)
    by_hand.begin_commit(attempt)
    with pytest.raises(SupersededError, match="9:0 without an owner came to the state counts/0"):
        by_hand.multi_update([("a",)], [Add(1)])
    by_hand.rollback()
    read = [map_state(store, "counts").make_state(part, 2).multi_get([("a",)])[0] for part in (0, 1)]
    assert sorted(read, key=str) == [3, None], "reading is for everybody"


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_a_second_run_without_records_is_refused_and_changes_nothing(where: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if where == "memory" else SqliteStore(tmp_path / "s.db")
    first = run(counting(store))
    with pytest.raises(
        SupersededError, match=r"is new, but state1 .* by attempt \d:0 .*start with its records \(state_path="
    ):
        run(counting(store, [("d", 1)] * 9))
    with TridentCluster(counting(store)) as reader:
        assert reader.values("state1") == first["state1"], "a cluster that is not started only reads"


# -- losses are found --------------------------------------------------------------------------------------------------


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "file": (remove, "is at no batch, expected txid 3"),
    "tables": (lambda path: sql(path, "DROP TABLE counts", "DROP TABLE counts_fences"), "is at no batch, expected txid 3"),
    "truncated": (lambda path: sql(path, "DELETE FROM counts", "DELETE FROM counts_fences"), "no batch, expected txid 3"),
    "rows": (lambda path: sql(path, "DELETE FROM counts"), r"has 0 rows, expected [12] by its fence"),
    "table of rows": (lambda path: sql(path, "DROP TABLE counts"), r"has 0 rows, expected [12] by its fence"),
    "one row": (lambda path: sql(path, "DELETE FROM counts WHERE key IN (SELECT min(key) FROM counts)"), "rows, expected"),
    "fences": (lambda path: sql(path, "DELETE FROM counts_fences"), "is at no batch, expected txid 3"),
    "a partition": (
        lambda path: sql(path, "DELETE FROM counts WHERE partition = 1", "DELETE FROM counts_fences WHERE partition = 1"),
        "is at no batch, expected txid 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL], ids=lambda kind: kind.value)
def test_a_state_that_was_lost_since_its_last_batch_is_refused_at_the_start(
    damage: str, kind: Any, tmp_path: Path
) -> None:
    path, records = tmp_path / "states" / "s.db", tmp_path / "records.db"
    run(counting(SqliteStore(path), kind=kind), state_path=records)
    act, sentence = DAMAGES[damage]
    act(path)
    for _ in range(2):  # it stays an error, nothing was begun
        with pytest.raises(
            CorruptStateError, match=rf"the state counts/\d .*{sentence.rpartition('counts/1 ')[2]}.*back from one copy"
        ):
            run(counting(SqliteStore(path), [*ROWS, ("d", 1)], kind=kind), state_path=records)


def test_an_older_copy_of_a_state_or_of_the_records_is_refused(tmp_path: Path) -> None:
    path, records, copy = tmp_path / "s.db", tmp_path / "records.db", tmp_path / "copy"

    def put_back(name: str) -> None:
        remove(tmp_path / name)
        shutil.copy(copy / name, tmp_path / name)

    copy.mkdir()
    run(counting(SqliteStore(path), ROWS[:2]), state_path=records)
    for each in (path, records):
        sql(each)
        shutil.copy(each, copy)
    run(counting(SqliteStore(path)), state_path=records)
    newer = tmp_path / "newer"
    newer.mkdir()
    for each in (path, records):
        sql(each)
        shutil.copy(each, newer)
    put_back("s.db")
    with pytest.raises(CorruptStateError, match="the state counts/0 is at txid 1, expected txid 3"):
        run(counting(SqliteStore(path)), state_path=records)
    shutil.copy(newer / "s.db", path)
    put_back("records.db")
    with pytest.raises(
        SupersededError,
        match=r"partition counts/0, is at 3:0, but by the records txid 1 was committed last",
    ):
        run(counting(SqliteStore(path)), state_path=records)
    put_back("s.db")
    assert run(counting(SqliteStore(path)), state_path=records)["state1"] == {("a",): 3, ("b",): 2, ("c",): 1}


def test_a_memory_store_behind_the_records_is_refused() -> None:
    records = MemoryRecordStore()
    run(counting(MemoryStore()), records=records)
    with pytest.raises(CorruptStateError, match="the state counts/0 is at no batch, expected txid 3"):
        run(counting(MemoryStore(), [*ROWS, ("d", 1)]), records=records)


def test_a_state_that_is_lost_during_a_run_is_refused_at_the_next_commit() -> None:
    store = MemoryStore()
    with TridentCluster(counting(store, hint=1), clock=VirtualClock()) as cluster:
        while cluster.result.batches < 2:
            cluster.step()
        store.open(PartitionId("counts", 0, 1))._partition.fence = None
        store.open(PartitionId("counts", 0, 1))._partition.rows.clear()
        with pytest.raises(CorruptStateError, match="the state counts/0 is at no batch, expected txid 2"):
            cluster.run()


def test_a_lost_non_transactional_state_is_refused_too(tmp_path: Path) -> None:
    path, records = tmp_path / "s.db", tmp_path / "records.db"
    kind = StateType.NON_TRANSACTIONAL
    run(counting(SqliteStore(path), kind=kind), state_path=records)
    run(counting(SqliteStore(path), kind=kind), state_path=records)
    remove(path)
    with pytest.raises(
        CorruptStateError, match="the state counts/ledger has no sign that it was begun, but txid 3 is committed"
    ):
        run(counting(SqliteStore(path), [*ROWS, ("d", 1)], kind=kind), state_path=records)


@pytest.mark.parametrize("was", StateType)
@pytest.mark.parametrize("now", StateType)
def test_a_state_of_another_kind_is_refused_by_its_kind_and_not_as_lost(
    was: StateType, now: StateType, tmp_path: Path
) -> None:
    store, records = SqliteStore(tmp_path / "s.db"), tmp_path / "records.db"
    run(counting(store, kind=was), state_path=records)
    if was is now:
        run(counting(store, kind=now), state_path=records)
        return
    with pytest.raises(
        DefinitionChangedError, match=rf"kind of the state counts/.* is '{was.value}', now it is '{now.value}'"
    ):
        run(counting(store, kind=now), state_path=records)


class Longest:
    """A combiner of the user's."""

    def init(self, tuple: Any) -> int:
        return len(tuple[0])

    def combine(self, a: int, b: int) -> int:
        return max(a, b)

    def zero(self) -> int:
        return 0


def kept(store: Store, by: Any, inputs: Any, aggregator: Any) -> TridentTopology:
    topology = TridentTopology("words")
    stream = topology.new_stream("in", FixedBatchSpout("word string, n long, m long", 2, [("a", 1, 2), ("b", 3, 4)]))
    spec = snapshot_state(store, "values") if by is None else map_state(store, "values")
    (stream if by is None else stream.group_by(*by)).persistent_aggregate(spec, inputs, aggregator, "result long")
    return topology


MEANINGS = {
    "another key": ((["word"], "n", Sum()), (["n"], "n", Sum()), "key of state1 .*is 'word', now it is 'n'"),
    "more fields": ((["n"], "n", Sum()), (["n", "m"], "n", Sum()), "key of state1 .*is 'n', now it is 'n, m'"),
    "another order": (
        (["n", "m"], "n", Sum()),
        (["m", "n"], "n", Sum()),
        "key of state1 .*is 'n, m', now it is 'm, n'",
    ),
    "another aggregator": (
        (["word"], "n", Sum()),
        (["word"], None, Count()),
        "aggregator of .*is 'Sum', now it is 'Count'",
    ),
    "another field": ((["word"], "n", Sum()), (["word"], "m", Sum()), "field of state1 .*is 'n', now it is 'm'"),
    "a field of one value": ((None, "n", Max()), (None, "m", Max()), "field of state1 .*is 'n', now it is 'm'"),
    "a key of a custom combiner": (
        (["word"], "word", Longest()),
        (["n"], "word", Longest()),
        "key of state1 .*is 'word'",
    ),
}


@pytest.mark.parametrize("what", MEANINGS)
def test_a_state_whose_values_would_get_another_meaning_is_refused_by_name(what: str, tmp_path: Path) -> None:
    was, now, sentence = MEANINGS[what]
    store, records = SqliteStore(tmp_path / "s.db"), tmp_path / "records.db"
    first = run(kept(store, *was), state_path=records)
    with pytest.raises(
        DefinitionChangedError, match=rf"the {sentence}.*; keep it as it was, also by name, or give the state"
    ):
        run(kept(store, *now), state_path=records)
    assert run(kept(store, *was), state_path=records) == first


@pytest.mark.parametrize(
    ("partitions", "types", "accepted"),
    [
        (1, ("int", "long", "smallint"), True),
        (2, ("smallint", "int", "tinyint"), True),
        (1, ("decimal(10,2)", "decimal(20,2)"), True),
        (2, ("decimal(10,2)", "decimal(18,2)"), True),
        (2, ("decimal(20,2)", "decimal(38,2)"), True),
        (2, ("int", "long"), False),  # Spark's hash of an int is another than that of a long
        (1, ("int", "string"), False),
        (1, ("long", "double"), False),
        (2, ("decimal(10,2)", "decimal(20,2)"), False),  # up to 18 digits are hashed as a long
        (2, ("array<smallint>", "array<int>"), True),
        (2, ("array<int>", "array<long>"), False),
        (1, ("array<int>", "array<long>", "array<byte>"), True),
        (1, ("decimal(10,2)", "decimal(10,4)"), False),
    ],
)
def test_a_key_of_another_type_is_refused_if_it_would_be_another_key_or_in_another_partition(
    partitions: int, types: tuple[str, ...], accepted: bool, tmp_path: Path
) -> None:
    store, records = SqliteStore(tmp_path / "s.db"), tmp_path / "records.db"
    values = {"string": "1", "double": 1.0}

    def counted(kind: str, batches: int) -> Any:
        topology = TridentTopology("words")
        spec = StateSpec(map_state(store, "values"), partitions)
        stream = topology.new_stream("in", InputSpout(f"key {kind}"))
        stream.group_by("key").persistent_aggregate(spec, None, Count(), "n long")
        value = [1] if "array" in kind else Decimal(1) if "dec" in kind else values.get(kind, 1)
        given = [[(value,)]] * batches
        return run_trident(topology, {"in": given}, clock=VirtualClock(), state_path=records).states["state1"]

    counted(types[0], 1)
    if accepted:
        for batches, kind in enumerate(types[1:], 2):
            assert [*counted(kind, batches).values()] == [batches]
        return
    sentence = (
        r"the type of the key of state1 .* is '.*', now it is '.*': its keys would be others, or be sent to other part"
    )
    with pytest.raises(DefinitionChangedError, match=sentence):
        counted(types[1], 2)


@pytest.mark.parametrize("stored", [7, None, ["int"], "decimal", "decimal(x,2)", "array", "array<"])
def test_a_damaged_type_of_a_key_is_another_type(stored: Any) -> None:
    changed = changed_meaning({TYPE_OF_KEY: stored}, {TYPE_OF_KEY: "int"}, 2)
    assert [*changed] == [(TYPE_OF_KEY, stored, "int")]


def test_custom_aggregators_and_records_without_meanings_are_not_compared(tmp_path: Path) -> None:
    store, path = SqliteStore(tmp_path / "s.db"), tmp_path / "records.db"
    run(kept(store, ["word"], "n", Sum()), state_path=path)
    run(kept(store, ["word"], "word", Longest()), state_path=path)
    run(kept(store, ["word"], "n", Sum()), state_path=path)
    life = Life.of({"format": 1, "id": "words", "since": {"values": 1}}, "")
    (state,) = kept(store, ["n"], "n", Sum()).build().written
    unread = [state._replace(factory=SimpleNamespace(name="values"))]
    found, _ = owned(life, unread, Progress.of("x", 3, None), claims=False)
    assert Life.of(found.plain(), "") == found
    assert found.meanings == {"values": {"key": "n", "type of the key": "bigint", "aggregator": "Sum", "field": "n"}}
    owned(found, [unread[0]._replace(meaning={"key": "word"})], Progress.of("x", 0, None), claims=False)  # no batch
    with pytest.raises(DefinitionChangedError):
        owned(found, [unread[0]._replace(meaning={"key": "word"})], Progress.of("x", 0, 0), claims=False)


# -- intact states are accepted ----------------------------------------------------------------------------------------


def test_batches_without_tuples_and_partitions_without_keys_are_accepted(tmp_path: Path) -> None:
    store, records = SqliteStore(tmp_path / "s.db"), tmp_path / "records.db"
    topology = TridentTopology("sparse")
    long = topology.new_stream("long", FixedBatchSpout("word string, n long", 1, ROWS))
    short = topology.new_stream("short", FixedBatchSpout("word string, n long", 1, ROWS[:1]))
    long.filter(lambda row: False).group_by("word").persistent_aggregate(
        map_state(store, "none"), None, Count(), "n long"
    )
    short.group_by("word").persistent_aggregate(map_state(store, "few"), None, Count(), "n long").parallelism_hint(3)
    for _ in range(3):
        assert run(topology, state_path=records) == {"state1": {}, "state2": {("a",): 1}}


def test_a_state_may_be_added_to_a_topology_but_not_removed_and_added_again(tmp_path: Path) -> None:
    store, records = SqliteStore(tmp_path / "s.db"), tmp_path / "records.db"

    def topology(rows: list[Any], *states: str) -> TridentTopology:
        made = TridentTopology("growing")
        words = made.new_stream("in", FixedBatchSpout("word string, n long", 2, rows))
        for state in states:
            words.group_by("word").persistent_aggregate(map_state(store, state), None, Count(), "n long")
        return made

    run(topology(ROWS[:2], "old"), state_path=records)
    found = run(topology(ROWS, "new", "old"), state_path=records)
    assert found == {"state1": {("a",): 2, ("b",): 1, ("c",): 1}, "state2": {("a",): 3, ("b",): 2, ("c",): 1}}
    assert run(topology(ROWS, "old", "new"), state_path=records)["state1"] == found["state2"], (
        "known by name, not by place"
    )
    run(topology([*ROWS, ("d", 1)], "new"), state_path=records)
    with pytest.raises(
        SupersededError, match=r"state2 \(old in .* holds batches up to 3:0 of this topology.*without it to txid 4"
    ):
        run(topology(ROWS, "new", "old"), state_path=records)


def test_a_run_that_skipped_a_batch_or_stopped_at_one_can_be_continued(tmp_path: Path) -> None:
    records, fails = tmp_path / "records.db", [True]

    def topology(rows: list[Any]) -> TridentTopology:
        def check(row: Any) -> bool:
            if row.word == "bad" and fails:
                raise FailedException("bad")
            return True

        made = TridentTopology("failing")
        words = made.new_stream("in", FixedBatchSpout("word string, n long", 1, rows)).filter(check)
        words.group_by("word").persistent_aggregate(
            map_state(store, "counts"), None, Count(), "n long"
        ).parallelism_hint(2)
        return made

    store = SqliteStore(tmp_path / "s.db")
    rows = [("a", 1), ("bad", 1), ("b", 1), ("bad", 2), ("c", 1)]
    stops, skips = (CoordinatorConfig(2, 0, retry=RetryPolicy(2, first_ms=1), on_failure=how) for how in OnFailure)
    with pytest.raises(FailedException, match="batch 2:2 failed 2 times"):
        run(topology(rows), state_path=records, coordination=stops)
    assert run(topology(rows[:4]), state_path=records, coordination=skips)["state1"] == {("a",): 1, ("b",): 1}
    fails.clear()
    assert run(topology(rows), state_path=records, coordination=stops)["state1"] == {("a",): 1, ("b",): 1, ("c",): 1}


def test_the_first_state_of_a_topology_that_ran_without_one_begins_with_the_next_batch(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")

    def words(batches: int, *states: str) -> Any:
        topology = TridentTopology("words")
        stream = topology.new_stream("in", FixedBatchSpout("word string, n long", 2, ROWS[: 2 * batches]))
        for state in states:
            stream.group_by("word").persistent_aggregate(map_state(store, state), None, Count(), "n long")
        stream.sink("all")
        return run(topology, state_path=tmp_path / "records.db")

    assert words(1) == {}
    assert words(2, "first") == {"state1": {("a",): 1, ("c",): 1}}
    assert words(3, "first", "second") == {
        "state1": {("a",): 2, ("b",): 1, ("c",): 1},
        "state2": {("a",): 1, ("b",): 1},
    }


def test_a_state_without_an_owner_is_refused_by_new_records_and_taken_over_by_those_that_know_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "all.db"
    run(counting(SqliteStore(path), ROWS[:2]), state_path=path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for partition, record in db.execute("SELECT partition, record FROM counts_fences").fetchall():
            plain = Fence.of(record, PartitionId("counts", partition, 2))._replace(owner="", rows=None).record()
            db.execute("UPDATE counts_fences SET record = ? WHERE partition = ?", (plain, partition))
    refused = r"is new, but state1 .* of another run, without an owner\. Both count.*; if version 0\.1 wrote them, let 0\.2\.0 run"
    with pytest.raises(SupersededError, match=refused):
        run(counting(SqliteStore(path)), state_path=tmp_path / "new.db")
    assert run(counting(SqliteStore(path)), state_path=path)["state1"] == {("a",): 3, ("b",): 2, ("c",): 1}
    assert all(fence is None or fence.owner for _, fence, _ in map_state(SqliteStore(path), "counts").stored(2))


@pytest.mark.parametrize("factory_of", [map_state, snapshot_state])
def test_a_ledger_with_lost_claims_or_of_another_owner_gives_no_attempt(factory_of: Any) -> None:
    store, owner = MemoryStore(), Owner("me/counts", since=2)
    mine = factory_of(store, "counts").owned_by(owner)
    assert [str(mine.claim_attempt(txid, 1)) for txid in (2, 2, 3)] == ["2:0", "2:1", "3:0"]
    with pytest.raises(CorruptStateError, match="the state counts/ledger is at txid 3, expected txid 4"):
        mine.claim_attempt(5, 1)
    with pytest.raises(SupersededError, match="'you/counts' came to the state counts/ledger, which 'me/counts' writes"):
        factory_of(store, "counts").owned_by(Owner("you/counts")).claim_attempt(4, 1)
    store.open(PartitionId("counts", LEDGER, 1))._partition.fence = None
    with pytest.raises(CorruptStateError, match="is at no batch, expected txid 3"):
        mine.claim_attempt(4, 1)
    with closing(AttemptLedger(store.open(PartitionId("sums", LEDGER, 1)), StateType.OPAQUE, "json")) as ledger:
        ledger.mark()
        ledger.mark()
        assert str(ledger.claim(1)) == "1:0"


@pytest.mark.parametrize("data", [7, {}, {"format": 2, "id": "a", "since": {}}, {"format": 1, "id": "", "since": {}},
                                  {"format": 1, "id": 7, "since": {}},
                                  {"format": 1, "id": "a", "since": {"s": 0}}, {"format": 1, "id": "a", "since": []},
                                  {"format": 1, "id": "a", "since": {}, "meanings": {"s": 1}}])  # fmt: skip
def test_a_damaged_owner_record_is_an_error(data: Any) -> None:
    with pytest.raises(CorruptStateError, match="record of the states' owner"):
        Life.of(data, "new")
    assert Life.of(None, "new") == Life("new")
    life = Life("a", {"s": 3})
    assert Life.of(life.plain(), "new") == life


# -- the comparison of records and fences, without a run ------------------------------------------------------------------


def begun_state(
    store: Store, txid: int, kind: StateType = StateType.OPAQUE, parts: tuple[int, ...] = (0, 1)
) -> StatePlan:
    """Return a state of two partitions, of which `parts` were written by a batch of the life "me", and its ledger claimed."""
    state = StatePlan("state1", map_state(store, "counts", kind), 2)
    mine = state.factory.owned_by(Owner("me/counts", since=txid))
    mine.claim_attempt(txid, 2)
    for part in parts:
        with closing(mine.make_state(part, 2)) as rows:
            rows.begin_commit(TransactionAttempt(txid, 0))
            rows.multi_update([("a", part)], [Add(1)])
            rows.commit(TransactionAttempt(txid, 0))
    return state


def compared(state: StatePlan, committed: int, since: int = 1, *, claims: bool = True) -> Owner:
    life, progress = Life("me", {"counts": since}), Progress.unnumbered("query", committed, True)
    return owned(life, [state], progress, claims=claims)[1]["state1"]


def test_a_ledger_that_is_lost_beside_whole_partitions_is_refused_where_attempts_are_claimed_in_it() -> None:
    store = MemoryStore()
    state = begun_state(store, 1)
    assert compared(state, 1) == Owner("me/counts")
    store.open(PartitionId("counts", LEDGER, 2))._partition.fence = None
    assert compared(state, 1, claims=False) == Owner("me/counts")
    with pytest.raises(CorruptStateError, match="the state counts/ledger is at no batch, expected txid 1"):
        compared(state, 1)


def test_the_ledger_of_a_non_transactional_state_shows_that_batches_are_lost_where_attempts_are_claimed_in_it() -> None:
    state = begun_state(MemoryStore(), 3, StateType.NON_TRANSACTIONAL)
    compared(state, 3)
    compared(state, 5, claims=False)
    with pytest.raises(CorruptStateError, match="the state counts/ledger is at txid 3, expected txid 5"):
        compared(state, 5)


def test_the_mark_of_a_non_transactional_state_is_no_batch_of_another_run() -> None:
    state = StatePlan("state1", map_state(MemoryStore(), "counts", StateType.NON_TRANSACTIONAL), 2)
    state.factory.mark(2)
    for claims in (False, True):
        owned(Life("new"), [state], Progress.unnumbered("query", 0, False), claims=claims)
    # Nor are attempts that Spark has claimed, where none are claimed: no batch of such a state is counted once.
    claimed = begun_state(MemoryStore(), 3, StateType.NON_TRANSACTIONAL)
    owned(Life("new"), [claimed], Progress.unnumbered("topology", 0, False), claims=False)
    with pytest.raises(SupersededError, match="query is new, but state1"):
        owned(Life("new"), [claimed], Progress.unnumbered("query", 0, False), claims=True)


@pytest.mark.parametrize("claims", [False, True])
def test_a_known_state_of_which_no_batch_is_committed_yet_has_lost_nothing(claims: bool) -> None:
    state = StatePlan("state1", map_state(MemoryStore(), "counts"), 2)
    assert compared(state, 3, since=4, claims=claims) == Owner("me/counts", since=4)
    with pytest.raises(CorruptStateError, match="expected txid 4"):
        compared(state, 4, since=4, claims=claims)


def test_rows_are_counted_from_the_first_batch_of_a_partition_unless_there_were_rows_without_a_fence() -> None:
    store = MemoryStore()
    state = begun_state(store, 1, parts=(0,))
    assert compared(state, 0).counts
    store.open(PartitionId("counts", 0, 2))._partition.fence = None
    assert not compared(state, 0).counts
    unknown = StatePlan("state1", SimpleNamespace(name="counts", kind=StateType.OPAQUE), 2)
    assert not compared(unknown, 0).counts


def test_only_a_transactional_state_keeps_what_an_earlier_attempt_at_a_batch_has_written() -> None:
    def kept(txid: int, **options: Any) -> list[str]:
        return list(kept_by([begun_state(MemoryStore(), 2, **options)], txid))

    assert kept(2, kind=StateType.TRANSACTIONAL) == ["state1 (counts in MemoryStore())"]
    assert kept(2, kind=StateType.TRANSACTIONAL, parts=(1,)) == ["state1 (counts in MemoryStore())"]
    assert kept(2, kind=StateType.TRANSACTIONAL, parts=()) == []  # the ledger is no partition
    assert [kept(txid, kind=StateType.TRANSACTIONAL) for txid in (1, 3)] == [[], []]
    assert kept(2, kind=StateType.OPAQUE) == []
    assert list(kept_by([StatePlan("own", SimpleNamespace(kind=StateType.TRANSACTIONAL), 1)], 2)) == []


def test_equal_fences_are_equal_bytes_and_fences_without_an_owner_keep_the_old_format() -> None:
    place = PartitionId("counts", 0, 1)
    plain = Fence(TransactionAttempt(1, 0), StateType.OPAQUE, "json", place)
    full = plain._replace(owner="me/counts", rows=3)
    assert b"owner" not in plain.record()
    assert b"rows" not in plain.record()
    assert [Fence.of(each.record(), place) for each in (plain, full)] == [plain, full]
    rows = MemoryStore().open(place)
    assert rows.multi_put({}, Claim(None, plain)) is None
    assert rows.multi_put({}, Claim(plain, full)) is None
    assert Progress.unnumbered("x", 3, False).begun.txid == 3


def test_a_record_file_keeps_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    run(counting(SqliteStore(tmp_path / "s.db")), state_path=path)
    with closing(SqliteRecordStore(path)) as records:
        assert "words/master/life" in records.paths("words/")


def test_a_state_in_memory_beside_records_in_a_file_is_refused_as_no_later_run_could_continue(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"state1 of topology 'words' lies in a MemoryStore, which is lost .*; give Sqlite"
    ):
        run(counting(MemoryStore()), state_path=tmp_path / "r.db")
    assert not [*tmp_path.iterdir()]
    assert run(counting(MemoryStore()), records=MemoryRecordStore())["state1"] == {("a",): 3, ("b",): 2, ("c",): 1}


def test_rows_of_an_older_non_transactional_state_are_kept_when_it_becomes_opaque(
    tmp_path: Path,
) -> None:
    store, records = SqliteStore(tmp_path / "s.db"), tmp_path / "opaque.db"
    run(counting(store, kind=StateType.NON_TRANSACTIONAL))
    with pytest.raises(DefinitionChangedError, match="the kind of the state counts/ledger is 'non-transactional', now"):
        run(counting(store), state_path=records)
    sql(tmp_path / "s.db", "DELETE FROM counts_fences")  # older versions left no mark
    for _ in range(2):
        assert run(counting(store), state_path=records)["state1"] == {("a",): 6, ("b",): 4, ("c",): 2}


def test_a_second_trident_run_over_a_state_is_refused_unless_it_gives_the_next_txid(tmp_path: Path) -> None:
    plan = counting(SqliteStore(tmp_path / "s.db"), hint=1).build()
    with closing(TridentRun(plan)) as first:
        first.batch({"in": ROWS[:2]})
        first.batch({"in": ROWS[2:]})
    with closing(TridentRun(plan)) as second:
        with pytest.raises(
            SupersededError, match=r"a TridentRun of topology 'words' is new, but state1 .* by attempt 2:0"
        ):
            second.batch({"in": ROWS})
        second.begin({"in": ROWS[:1]}, txid=3).commit()
        assert dict(second.states["state1"][0].items()) == {("a",): 4, ("b",): 2, ("c",): 1}


def test_a_cache_that_missed_batches_of_another_life_of_its_task_is_no_lost_state() -> None:
    store, owner = MemoryStore(), Owner("words/counts")
    held_up, other = (map_state(store, "counts", cache=2).owned_by(owner).make_state(0, 1) for _ in range(2))

    def commit(state: Any, txid: int) -> None:
        attempt = TransactionAttempt(txid, 0)
        state.begin_commit(attempt)
        state.multi_update(["a"], [Add(txid)])
        state.commit(attempt)

    commit(held_up, 1)
    commit(other, 2)
    with pytest.raises(StateConflictError, match="written to by somebody else"):
        commit(held_up, 3)
    commit(held_up, 3)
    assert held_up.multi_get(["a"]) == [6]


def test_every_combiner_of_the_library_is_part_of_the_meaning_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    class Product(Sum):
        __module__ = builtins.__name__

    monkeypatch.setattr(builtins, "Product", Product, raising=False)
    ours = {kind for kind in vars(builtins).values() if callable(getattr(kind, "combine", None))}
    assert {Count, Sum, Max, Product} < ours
    for kind in ours:
        (state,) = kept(MemoryStore(), ["word"], "n", kind()).build().written
        assert state.meaning["aggregator"] == kind.__name__
