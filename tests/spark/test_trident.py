"""submit_trident(): with the same input batches a topology has the same states and sinks in one process and on Spark."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.execution.test_trident_attempts import each_stage_executed_the_tuples_emitted_to_it
from tests.test_times import ALL, AT, FORMS, TIMES, given_as, shown_of
from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    FailedException,
    ReportedFailedException,
    SupersededError,
)
from windowing.local import VirtualClock
from windowing.local.trident_cluster import run_trident
from windowing.spark import FunctionSink, MemorySink, SqliteQueue, hadoop, submit_trident
from windowing.stores.factory import map_state, snapshot_state
from windowing.stores.memory import MemoryStore
from windowing.stores.sqlite import SqliteStore
from windowing.topology.components import InputSpout
from windowing.trident import builtins as b
from windowing.trident.coordinator import OnFailure
from windowing.trident.kinds import Guarantee, StateType
from windowing.trident.operations import JoinType
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import count, seconds

SALES = "shop string, item string, n long, at long"
DAYS = [
    [("mall", "pen", 3, 1_000), ("port", "pen", 1, 2_000), ("mall", "ink", 2, 2_500), ("mall", "pen", 4, 11_000)],
    [("port", "ink", 7, 12_000), ("mall", "pen", 1, 9_000), ("port", "pen", 2, 25_000)],
    [("mall", "ink", 5, 26_000), ("mall", "pen", 5, 31_000), ("zoo", "nut", 9, 40_000)],
]
STOCK = [[("pen", "box"), ("ink", "jar")], [("pen", "box")], [("nut", "bag")]]

Make = Callable[[Any], TridentTopology]


def values_in(topology: TridentTopology) -> dict[str, Any]:
    """Return the content of the states of a topology."""
    found = {}
    for id, state in topology.build().states.items():
        parts = [state.factory.make_state(part, state.partitions) for part in range(state.partitions)]
        whole = hasattr(parts[0], "items")
        found[id] = {key: value for part in parts for key, value in part.items()} if whole else parts[0].get()
        for part in parts:
            part.close()
    return found


@pytest.fixture
def on_spark(spark: SparkSession, feed: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Run a topology over batches by stream, one micro-batch each; return the rows of each sink by batch."""

    def run(
        topology: TridentTopology, batches: dict[str, Sequence[Any]], discard: Any = (), **options: Any
    ) -> dict[str, dict[int, list[Any]]]:
        plan = topology.build()
        sources = {}
        for spout in plan.spouts:
            name, schema = str(spout.source.name), spout.schema
            fed = [[dict(zip(schema.names, row, strict=True)) for row in rows] for rows in batches[name]]
            sources[name] = feed(schema.ddl, name=f"in/{name}").add(*fed).read()
        dead = [f"{name}.dead_letters" for name in batches] if "on_failure" in options else []
        sinks = {name: MemorySink() for name in [*plan.sinks, *dead] if name not in discard}
        checkpoint = str(tmp_path / "checkpoint")
        query = submit_trident(
            topology, spark, sources=sources, sinks=sinks, checkpoint=checkpoint, discard=discard, **options
        )
        assert query.await_end(200)
        if "on_failure" not in options:  # the metrics of a skipped batch are incomplete
            each_stage_executed_the_tuples_emitted_to_it(plan.by_section(), query.metrics().components())
        run.reported = {each.batch_id: each.reported for each in query.progress}  # type: ignore[attr-defined]
        return {
            name: {batch: sorted(map(tuple, rows)) for batch, rows in sink.batches.items()}
            for name, sink in sinks.items()
        }

    return run


@pytest.fixture
def same(on_spark: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Run a topology on both runtimes, compare states and sinks, and return both."""

    def check(make: Make, drain: bool = False, **batches: Sequence[Any]) -> Any:
        found: dict[str, dict[int, list[Any]]] = {}
        local = make(SqliteStore(tmp_path / "local.db"))
        wanted: dict[str, dict[int, list[Any]]] = {name: {} for name in local.build().sinks}

        def sink(name: str) -> Callable[[int, Any], None]:
            return lambda txid, rows: wanted[name].update({txid - 1: sorted(rows)} if rows else {})

        result = run_trident(
            local, batches, clock=VirtualClock(), drain=drain, sinks={name: sink(name) for name in wanted}
        )
        spark = make(SqliteStore(tmp_path / "spark.db"))
        found = on_spark(spark, batches, drain=drain)
        assert found == wanted
        assert values_in(spark) == result.states
        return result.states, found

    return check


class Latest:
    """A ReducerAggregator, which needs every tuple of its key."""

    def init(self) -> int:
        return 0

    def reduce(self, value: int, row: Any) -> int:
        return max(value, row[0])


class TaskOf:
    """An Aggregator that is prepared: emits the index of its task."""

    def prepare(self, context: Any) -> None:
        self.context = context

    def init(self, batch_id: Any, collector: Any) -> Any:
        return None

    def aggregate(self, value: Any, row: Any, collector: Any) -> None: ...

    def complete(self, value: Any, collector: Any) -> None:
        collector.emit((self.context.task_index,))


def sales(topology: TridentTopology) -> Any:
    return topology.new_stream("sales", InputSpout(SALES))


def test_all_kinds_of_states_chained_aggregates_repartitions_and_joins_are_the_same_on_both_runtimes(same: Any) -> None:
    def make(store: Any) -> TridentTopology:
        topology = TridentTopology("many")
        source = sales(topology).parallelism_hint(2)
        for kind in StateType:
            spec = StateSpec(map_state(store, f"items_{kind.name.lower()}", kind), accept=Guarantee.BEST_EFFORT)
            counts = source.group_by("item").persistent_aggregate(spec, "n", b.Sum(), "n long")
            counts.parallelism_hint(2).new_values_stream().filter(lambda row: row.n > 2).sink(
                f"large_{kind.name.lower()}"
            )
        source.persistent_aggregate(snapshot_state(store, "all"), "n", b.Sum(), "n long")
        rows = source.shuffle().filter(lambda row: row.n < 9).parallelism_hint(2)
        rows = rows.partition_by("shop").map(lambda row: row, SALES).parallelism_hint(2).shuffle()
        chain = rows.group_by("shop").chained_agg().aggregate(None, b.Count(), "c long")
        per_shop = chain.aggregate("n", b.Sum(), "s long").chain_end()
        per_shop.global_().batch_global().max_by("s").sink("best")
        per_shop.sink("shops")
        rows.partition_aggregate(None, TaskOf(), "task long").parallelism_hint(2).sink("tasks")
        mixed = source.group_by("item").chained_agg().aggregate("n", b.Sum(), "s long")
        mixed.aggregate("at", Latest(), "at long").chain_end().parallelism_hint(2).sink("items")
        stock = topology.new_stream("stock", InputSpout("item string, pack string"))
        joined = topology.join(
            [source.project("item", "shop", "n"), stock], "item", kinds=[JoinType.INNER, JoinType.OUTER]
        )
        joined.parallelism_hint(2).sink("packs")
        joined.filter(lambda row: row.pack is not None).group_by("pack").persistent_aggregate(
            map_state(store, "packs"), "n", b.Sum(), "n long"
        )
        return topology

    items = {("pen",): 16, ("ink",): 14, ("nut",): 9}
    states, _ = same(make, sales=DAYS, stock=STOCK)
    assert list(states.values()) == [items, items, items, 39, {("box",): 11, ("jar",): 2, ("bag",): 9}]


def test_a_state_query_reads_the_values_committed_before_the_batch(same: Any) -> None:
    def make(store: Any) -> TridentTopology:
        topology = TridentTopology("two")
        rows = sales(topology).parallelism_hint(2)
        items = rows.group_by("item").persistent_aggregate(map_state(store, "items"), "n", b.Sum(), "n long")
        items.parallelism_hint(2)
        rows.aggregate("n", b.Sum(), "n long").sink("totals")
        rows.persistent_aggregate(snapshot_state(store, "all"), "n", b.Sum(), "n long")
        known = rows.partition_by("item").state_query(items, "item", b.MapGet(), "before long")
        known.project("shop", "item", "n", "before").sink("known")
        return topology

    states, _ = same(make, sales=DAYS)
    assert states == {"state1": {("pen",): 16, ("ink",): 14, ("nut",): 9}, "state2": 39}


def test_times_in_any_form_are_the_same_for_steps_groups_states_and_sinks_of_both_runtimes(same: Any) -> None:
    def make(store: Any) -> TridentTopology:
        topology = TridentTopology("times")
        forms = topology.new_stream("forms", InputSpout("form string"))
        rows = forms.map(lambda row: given_as(row.form), TIMES)
        rows.each(None, lambda row: (shown_of(row),), "seen string").project("at", "seen").sink("seen")
        rows.tumbling_window(count(len(FORMS)), None, latest, "last timestamp, seen string").sink("windows")
        state = map_state(store, "last")
        rows.group_by("at").persistent_aggregate(state, "at", b.Max(), "last timestamp").parallelism_hint(2)
        return topology

    def latest(window: Any) -> Any:
        return [(max(row.at for row in window), "".join(map(shown_of, window)))]

    states, sinks = same(make, forms=[[(form,) for form in FORMS]] * 2)
    assert states == {"state1": {(AT,): AT}}
    assert sinks["seen"] == {batch: [(AT, ALL)] * len(FORMS) for batch in (0, 1)}
    assert sinks["windows"] == {batch: [(AT, ALL * len(FORMS))] for batch in (0, 1)}


def test_windowed_counts_with_late_tuples_are_persisted(same: Any) -> None:
    def make(store: Any) -> TridentTopology:
        topology = TridentTopology("windowed")
        per_shop = sales(topology).filter(lambda row: row.n > 0).group_by("shop")
        windows = per_shop.tumbling_window(seconds(10), "n", b.Sum(), "n long", timestamp="at").parallelism_hint(2)
        windows.late_stream().project("shop", "at", "reason").sink("late")
        windows.sink("fired")
        windows.group_by("shop").persistent_aggregate(map_state(store, "shops"), "n", b.Sum(), "n long")
        return topology

    states, _ = same(make, drain=True, sales=DAYS)
    assert states == {"state1": {("mall",): 19, ("port",): 10, ("zoo",): 9}}, "the one of 9,000 is late"


def test_processing_time_windows_count_windows_and_windows_after_an_aggregation_have_every_tuple(same: Any) -> None:
    """The function of a count window gets records, also for tuples of an earlier batch."""

    def make(store: Any) -> TridentTopology:
        topology = TridentTopology("windows")
        rows = sales(topology)
        words = rows.flat_map(lambda row: [(row.shop,), (row.item,)], "word string")
        windows = words.tumbling_window(seconds(1), None, b.Count(), "n long")
        windows.persistent_aggregate(snapshot_state(store, "all"), "n", b.Sum(), "n long")
        rows.tumbling_window(count(5), None, named, "items string, n long").sink("named")
        sums = rows.aggregate("n", b.Sum(), "n long")
        sums.sliding_window(count(2), count(1), "n", b.Sum(), "n long").sink("pairs")
        return topology

    def named(window: Any) -> Any:
        return [("+".join(row.item for row in window), len(window.get_new()))]

    states, sinks = same(make, drain=True, sales=DAYS)
    assert states == {"state1": 2 * sum(map(len, DAYS))}
    assert sinks["named"] == {1: [("pen+pen+ink+pen+ink", 5)], 2: [("pen+pen+ink+pen+nut", 5)]}
    assert sinks["pairs"] == {0: [(10,)], 1: [(20,)], 2: [(29,)], 3: [(19,)]}


class Fails:
    """Fails the first `times` times that it gets an item, counted over all processes."""

    def __init__(self, folder: Path, times: int, item: str = "nut") -> None:
        self.folder, self.times, self.item = folder, times, item

    def __call__(self, row: Any) -> bool:
        if row.item == self.item:
            seen = len(list(self.folder.glob("failed*")))
            if seen < self.times:
                (self.folder / f"failed{seen}").touch()
                raise FailedException(f"no more {self.item}")
        return True


def test_a_failed_batch_is_retried_and_counts_once_in_states_and_windows(on_spark: Any, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("before", "after", "behind")}
    for folder in places.values():
        folder.mkdir()
    topology = TridentTopology("failing").configure(retry_delay=seconds(0), max_attempts=9)
    rows = sales(topology).filter(Fails(places["before"], 2))
    kept = rows.partition_by("shop").filter(Fails(places["after"], 2))
    store = SqliteStore(tmp_path / "states.db")
    new = (
        kept.group_by("item")
        .persistent_aggregate(map_state(store, "items"), "n", b.Sum(), "n long")
        .new_values_stream()
    )
    new.filter(Fails(places["behind"], 2)).sink("new")
    rows.persistent_aggregate(snapshot_state(store, "all"), "n", b.Sum(), "n long")
    rows.sliding_window(count(4), count(2), "n", b.Sum(), "n long").sink("fired")
    found = on_spark(topology, {"sales": DAYS})
    assert {name: len(list(folder.glob("failed*"))) for name, folder in places.items()} == dict.fromkeys(places, 2)
    assert values_in(topology) == {"state1": {("pen",): 16, ("ink",): 14, ("nut",): 9}, "state2": 39}
    assert found["new"][2] == [("ink", 14), ("nut", 9), ("pen", 16)]
    assert [row for rows in found["fired"].values() for (row,) in rows] == [4, 10, 14, 15, 21]


def test_errors_reported_by_operations_are_logged_and_counted_once_per_batch(
    on_spark: Any, tmp_path: Path, caplog: Any
) -> None:
    fails = Fails(tmp_path, 1)

    def told(row: Any) -> bool:
        try:
            return fails(row)
        except FailedException as problem:
            raise ReportedFailedException("not this time") from problem

    def telling(row: Any, collector: Any) -> None:
        if row.n == 3:
            collector.report_error(ValueError("a three"))
        collector.emit(row.n)

    topology = TridentTopology("telling").configure(retry_delay=seconds(0))
    sales(topology).each("n", telling, "m long").partition_by("shop").filter(told).sink("out")
    found = on_spark(topology, {"sales": DAYS})
    assert len(found["out"][2]) == 3
    assert on_spark.reported == {0: 1, 1: 0, 2: 1}
    lines = [each.getMessage() for each in caplog.records if "reports" in each.getMessage()]
    assert len(lines) == 2
    assert "batch 1: " in lines[0]
    assert lines[0].endswith("reports (1 times) ValueError: a three")
    assert "not this time" in lines[1]


def test_a_batch_over_max_attempts_is_skipped_and_its_partial_commits_are_undone(on_spark: Any, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("source", "shuffle", "commit")}
    for folder in places.values():
        folder.mkdir()
    topology = TridentTopology("failing").configure(retry_delay=seconds(0), max_attempts=2)
    kept = sales(topology).filter(Fails(places["source"], 99, "nut"))
    kept = kept.partition_by("shop").filter(Fails(places["shuffle"], 99, "ink"))
    state = map_state(SqliteStore(tmp_path / "states.db"), "items")
    sums = kept.group_by("item").persistent_aggregate(state, "n", b.Sum(), "n long")
    sums.new_values_stream().filter(Fails(places["commit"], 99, "pen")).sink("new")
    good = [("zoo", "oil", 2, 0), ("mall", "oil", 3, 0)]
    bad = [[("mall", "oil", 100, 0), ("zoo", item, 7, 0)] for item in ("nut", "ink", "pen")]
    found = on_spark(topology, {"sales": [good, *bad, good]}, on_failure=OnFailure.SKIP)
    assert all(any(folder.iterdir()) for folder in places.values()), "each place has failed a batch"
    assert values_in(topology) == {"state1": {("oil",): 10}}, "the three batches between are undone"
    assert found["sales.dead_letters"] == {number: sorted(rows) for number, rows in enumerate(bad, 1)}
    assert found["new"] == {0: [("oil", 5)], 4: [("oil", 10)]}


def test_a_state_fed_by_the_new_values_of_another_commits_complete_attempts_only(on_spark: Any, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "states.db")
    topology = TridentTopology("behind").configure(retry_delay=seconds(0))
    rows = sales(topology)
    kinds = (StateType.OPAQUE, StateType.TRANSACTIONAL)
    for kind in kinds:
        (tmp_path / kind.value).mkdir()
        items = map_state(store, f"items_{kind.name.lower()}", kind)
        new = rows.group_by("item").persistent_aggregate(items, "n", b.Sum(), "n long").parallelism_hint(2)
        changed = new.new_values_stream().filter(Fails(tmp_path / kind.value, 1)).shuffle()
        changed.persistent_aggregate(
            snapshot_state(store, f"changes_{kind.name.lower()}", kind), None, b.Count(), "n long"
        )
    on_spark(topology, {"sales": DAYS})
    assert [len(list((tmp_path / kind.value).glob("failed*"))) for kind in kinds] == [1, 1]
    states = list(values_in(topology).values())
    assert sorted(states, key=repr) == [*[2 + 2 + 3] * 2, *[{("pen",): 16, ("ink",): 14, ("nut",): 9}] * 2]


def test_functions_with_closures_of_megabytes_run_after_a_source_in_a_window_and_in_a_commit(
    on_spark: Any, tmp_path: Path
) -> None:
    table = os.urandom(2 << 20)
    topology = TridentTopology("large")
    sized = sales(topology).map(lambda row: (row.n + len(table),), "n long")
    windows = sized.tumbling_window(count(2), "n", b.Sum(), "n long").map(lambda row: (row.n + len(table),), "n long")
    windows.persistent_aggregate(snapshot_state(SqliteStore(tmp_path / "large.db"), "all"), "n", b.Sum(), "n long")
    on_spark(topology, {"sales": DAYS[:1]})
    assert values_in(topology) == {"state1": 3 + 1 + 2 + 4 + 6 * (2 << 20)}


def test_a_batch_over_max_attempts_ends_the_query(on_spark: Any, tmp_path: Path) -> None:
    topology = TridentTopology("failing").configure(retry_delay=seconds(0), max_attempts=2)
    sales(topology).filter(Fails(tmp_path, 99, "pen")).sink("out")
    with pytest.raises(
        FailedException, match=r"batch 1 failed 2 times.*: step 2, filter.* no more pen.*on_failure=OnFailure.SKIP"
    ):
        on_spark(topology, {"sales": DAYS})


def test_a_state_in_a_file_that_an_executor_does_not_see_is_refused_with_a_store_to_give(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hadoop, "is_local", lambda master: False)
    monkeypatch.setattr(hadoop, "_unseen", lambda wanted, executor: [(what, "other", "gone") for what in wanted])
    topology = TridentTopology("sums")
    state = snapshot_state(SqliteStore(tmp_path / "states.db"), "all")
    sales(topology).persistent_aggregate(state, "n", b.Sum(), "n long")
    refused = r"state1 of .*, in .*states\.db, is on .* on other does not see \(gone\).*; give PostgresStore\(url\) or RedisStore"
    with pytest.raises(ConfigError, match=refused):
        submit_trident(topology, spark, sources={"sales": feed(SALES).read()}, checkpoint=str(tmp_path / "checkpoint"))


def test_a_topology_that_cannot_run_on_spark_is_refused_before_the_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    def submit(topology: TridentTopology, **options: Any) -> Any:
        return submit_trident(topology, spark, checkpoint=str(tmp_path / "no"), **{"sources": {}, **options})

    topology = TridentTopology("memory")
    sales(topology).persistent_aggregate(snapshot_state(MemoryStore(), "all"), "n", b.Sum(), "n long")
    with pytest.raises(ConfigError, match=r"MemoryStore.*give SqliteStore"):
        submit(topology)
    topology = TridentTopology("asked")
    topology.new_drpc_stream("ask").map(lambda row: row.args, "args string")
    with pytest.raises(ConfigError, match=r"DRPC.*TridentCluster"):
        submit(topology)
    topology = TridentTopology("plain")
    sales(topology).sink("out")
    with pytest.raises(ConfigError, match="stream 'sales' has no source"):
        submit(topology)
    with pytest.raises(ConfigError, match="no stream; did you mean 'sales'"):
        submit(topology, sources={"sale": None})
    given = {"sales": spark.readStream.schema(SALES).parquet(str(tmp_path))}
    with pytest.raises(ConfigError, match=r"the sink .out. .* is given nothing"):
        submit(topology, sources=given)
    with pytest.raises(ConfigError, match="no batch is skipped"):
        submit(topology, sources=given, sinks={"sales.dead_letters": MemorySink(), "out": MemorySink()})
    with pytest.raises(ConfigError, match=r"is OnFailure\.STOP or OnFailure\.SKIP, got 'stop'; write OnFailure\.STOP"):
        submit(topology, sources=given, sinks={"out": MemorySink()}, on_failure="stop")
    for kind, windowed, why in (
        (StateType.TRANSACTIONAL, False, "only an opaque"),
        (StateType.OPAQUE, True, "windows"),
    ):
        topology = TridentTopology("skipping")
        rows = sales(topology)
        rows = rows.tumbling_window(count(2), None, b.Count(), "n long") if windowed else rows
        state = snapshot_state(SqliteStore(tmp_path / "s.db"), "all", kind)
        rows.persistent_aggregate(state, "n", b.Sum(), "n long")
        with pytest.raises(ConfigError, match=why):
            submit(topology, sources={"sales": None}, on_failure=OnFailure.SKIP)
    topology = TridentTopology("unknown")
    sales(topology).partition_persist(Unclaimed(), None, Puts())
    with pytest.raises(ConfigError, match="has no claim_attempt"):
        submit(topology, sources={"sales": spark.readStream.format("rate").load()})
    assert not (tmp_path / "no").exists()


class Unclaimed:
    kind = StateType.OPAQUE

    def make_state(self, partition: int, partitions: int) -> Any:
        raise AssertionError("nothing runs")


class Puts:
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        raise AssertionError("nothing runs")


def test_a_new_checkpoint_on_states_with_batches_is_refused(on_spark: Any, spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("again")
    state = snapshot_state(SqliteStore(tmp_path / "states.db"), "all")
    sales(topology).persistent_aggregate(state, "n", b.Sum(), "n long")
    on_spark(topology, {"sales": DAYS[:1]})
    source = spark.readStream.schema(SALES).parquet(str(tmp_path / "in" / "sales"))
    with pytest.raises(
        SupersededError,
        match=r"is new, but state1 .* holds batches already: partition .* was written by attempt 1:0 of another run",
    ):
        submit_trident(topology, spark, sources={"sales": source}, checkpoint=str(tmp_path / "other"))
    assert values_in(topology) == {"state1": 10}


def test_a_lost_or_outdated_state_is_refused_and_an_added_state_begins_with_the_next_batch(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    file, older, newer = (tmp_path / name for name in ("states.db", "older.db", "newer.db"))
    definition, days = tmp_path / "checkpoint" / "windowing" / "definition.json", feed(SALES)

    def topology(*states: str) -> TridentTopology:
        made = TridentTopology("kept")
        rows = sales(made)
        for state in states:
            kept = map_state(SqliteStore(file), state)
            rows.group_by("item").persistent_aggregate(kept, None, b.Count(), "n long").parallelism_hint(2)
        return made

    def submit(*states: str) -> Any:
        options: dict[str, Any] = {"sources": {"sales": days.read()}, "checkpoint": str(tmp_path / "checkpoint")}
        return submit_trident(topology(*states), spark, **options)

    def run(day: int, *states: str) -> Any:
        days.add([dict(zip(("shop", "item", "n", "at"), row, strict=True)) for row in DAYS[day]])
        assert submit(*states).await_end(200)
        return values_in(topology(*states))

    def refused(sentence: str, *statements: str) -> None:
        """Damage the store; check that the start is refused and changes nothing; then repair the store."""
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)
        before = definition.read_bytes()
        with pytest.raises(CorruptStateError, match=sentence):
            submit("counts")
        assert definition.read_bytes() == before
        shutil.copy(newer, file)

    assert run(0, "counts") == {"state1": {("pen",): 3, ("ink",): 1}}
    shutil.copy(file, older)
    found = {"state1": {("pen",): 2, ("ink",): 1}, "state2": {("pen",): 5, ("ink",): 2}}
    assert run(1, "joined", "counts") == found, "a state that joins begins with the next batch"
    shutil.copy(file, newer)
    file.unlink()
    refused(
        r"state counts/ledger is at no batch, expected txid 2: .* lost .*Put states and records \(or checkpoint\) back"
    )
    shutil.copy(older, file)
    refused("the state counts/ledger is at txid 1, expected txid 2")
    refused("the state counts/1 is at no batch, expected txid 2", "DELETE FROM counts_fences WHERE partition = 1")
    refused(r"the state counts/\d has 0 rows, expected [12] by its fence", "DELETE FROM counts")
    whole = definition.read_text()
    stored = json.loads(whole)
    for damaged in ({**stored, "trident": {**stored["trident"], "partitions": 10_000_000}}, None):
        definition.write_text("[" * 100_000 if damaged is None else json.dumps(damaged))
        refused(r"definition\.json")
    definition.write_text(whole)
    assert run(2, "counts") == {"state1": {("pen",): 6, ("ink",): 3, ("nut",): 1}}


def test_another_lag_or_key_over_a_half_done_batch_is_refused_where_a_state_keeps_the_batch(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    fed = [[dict(zip(("shop", "item", "n", "at"), row, strict=True)) for row in rows] for rows in DAYS]
    source, checkpoint = feed(SALES).add(*fed), tmp_path / "checkpoint"

    def run(lag_s: int, sink: Any, by: str = "shop", drain: bool = False) -> Any:
        topology = TridentTopology("windowed")
        per_shop = sales(topology).group_by("shop")
        windows = per_shop.tumbling_window(seconds(10), "n", b.Sum(), "n long", timestamp="at", lag=seconds(lag_s))
        windows.sink("fired")
        state = map_state(SqliteStore(tmp_path / "states.db"), "shops", StateType.TRANSACTIONAL)
        windows.group_by(by).persistent_aggregate(state, "n", b.Sum(), "total long")
        query = submit_trident(
            topology,
            spark,
            sources={"sales": source.read()},
            sinks={"fired": sink},
            checkpoint=str(checkpoint),
            drain=drain,
        )
        assert query.await_end(200)
        return values_in(topology)

    def full(rows: Any, batch: int) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        run(0, FunctionSink(full))
    said = r"batch 0 .* in state1 \(shops in SqliteStore.* for good.* lag_ms of bolt 'window_\d+' was 0, now 90000; start once"
    with pytest.raises(CheckpointError, match=said):
        run(90, MemorySink())
    with pytest.raises(
        DefinitionChangedError, match=r"key of state1 \(shops in .* is 'shop', now it is 'n': its values"
    ):
        run(0, MemorySink(), by="n")
    run(0, MemorySink())
    assert run(90, MemorySink(), drain=True) == {"state1": {("mall",): 19, ("port",): 10, ("zoo",): 9}}


@pytest.mark.python_source
def test_a_queue_gets_an_ack_for_each_committed_batch(spark: SparkSession, tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", SALES, max_rows=2)
    queue.put([row for day in DAYS for row in day])
    topology = TridentTopology("queued")
    state = snapshot_state(SqliteStore(tmp_path / "states.db"), "all")
    sales(topology).persistent_aggregate(state, "n", b.Sum(), "n long")
    query = submit_trident(topology, spark, sources={"sales": queue}, checkpoint=str(tmp_path / "checkpoint"))
    assert query.await_end(200)
    assert values_in(topology) == {"state1": 39}
    assert len(queue) == 0
