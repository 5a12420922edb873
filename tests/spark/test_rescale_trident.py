"""rescale of Trident: states and keyed windows are moved to other partitions, and each batch still counts once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.spark.test_rescale import by_key
from tests.spark.test_trident import values_in
from windowing.cli import commands
from windowing.errors import CheckpointError, ConfigError, CorruptStateError, DefinitionChangedError
from windowing.local import VirtualClock, run_trident
from windowing.spark import MemorySink, SqliteQueue, failpoints, submit_trident
from windowing.spark.rescaling import rescale
from windowing.stores.factory import map_state, snapshot_state
from windowing.stores.sqlite import SqliteStore
from windowing.topology.components import InputSpout
from windowing.trident import builtins as b
from windowing.trident.kinds import Guarantee, StateType
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import seconds

SALES = "shop string, item string, n long, at long"
SHOPS = ["mall", "port", "zoo", "quay", None]
ITEMS = ["pen", "ink", "nut"]


def topology(store: Any, *, sums: int = 2, windows: int = 2, largest: int = 1) -> TridentTopology:
    """Return a topology with keyed states of each kind, a value state, and windows for each shop whose rows are counted too."""
    made = TridentTopology("sales")
    sales = made.new_stream("sales", InputSpout(SALES))
    loose = StateSpec(map_state(store, "largest", StateType.NON_TRANSACTIONAL), largest, Guarantee.AT_LEAST_ONCE)
    strict = StateSpec(map_state(store, "sums", StateType.TRANSACTIONAL), sums)
    new = sales.group_by("shop", "item").persistent_aggregate(strict, "n", b.Sum(), "total long").new_values_stream()
    new.sink("new")
    sales.group_by("item").persistent_aggregate(loose, "n", b.Max(), "most long")
    sales.persistent_aggregate(snapshot_state(store, "rows"), None, b.Count(), "rows long")
    by_shop = sales.group_by("shop").window(
        seconds(4), seconds(2), "n", b.Sum(), "n long", timestamp="at", lag=seconds(1)
    )
    by_shop.parallelism_hint(windows).sink("windows")
    by_shop.late_stream().sink("late")
    counted = map_state(store, "counted")
    by_shop.group_by("shop").persistent_aggregate(StateSpec(counted, sums + 1), None, b.Count(), "n long")
    return made


def batch(number: int) -> list[dict[str, Any]]:
    """Return fifteen sales, one for each item in each shop, and a late one."""
    rows = [
        {"shop": SHOPS[at % 5], "item": ITEMS[at % 3], "n": at * number + 1, "at": 200 * (15 * number + at)}
        for at in range(15)
    ]
    return [*rows, {"shop": "mall", "item": "pen", "n": 1, "at": 1_000 * (number - 6)}]


@pytest.fixture
def start(spark: SparkSession) -> Callable[..., dict[str, list[tuple[Any, ...]]]]:
    def run(made: TridentTopology, source: Any, checkpoint: str, **options: Any) -> dict[str, list[tuple[Any, ...]]]:
        sinks = {name: MemorySink() for name in made.build().sinks}
        query = submit_trident(made, spark, sources={"sales": source}, sinks=sinks, checkpoint=checkpoint, **options)
        assert query.await_end(300)
        return {name: [tuple(row) for row in sink.rows] for name, sink in sinks.items()}

    return run


JOB = """
from pathlib import Path
from tests.spark.test_rescale_trident import topology
from windowing.stores.sqlite import SqliteStore

here = Path(__file__).parent
before = topology(SqliteStore(here / "0.db"))
after = topology(SqliteStore(here / "1.db"), sums=3, windows=3, largest=2)
"""


def test_a_rescaled_trident_topology_continues_with_the_same_results(
    feed: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    batches = [batch(number) for number in range(4)]
    whole = topology(SqliteStore(tmp_path / "plain.db"))
    plain = run_trident(whole, {"sales": batches}, clock=VirtualClock())
    source = feed(SALES)
    (tmp_path / "job.py").write_text(JOB)
    before = topology(SqliteStore(tmp_path / "0.db"))
    found = start(before, source.add(*batches[:2]).read(), str(tmp_path / "0"))
    held = values_in(before)

    given = [f"--{when}={tmp_path / 'job.py'}:{when}" for when in ("before", "after")]
    called = CliRunner().invoke(commands, ["rescale", str(tmp_path / "0"), str(tmp_path / "1"), *given])
    assert called.exit_code == 0, called.output
    assert values_in(before) == held
    after = topology(SqliteStore(tmp_path / "1.db"), sums=3, windows=3, largest=2)
    assert values_in(after) == held

    for name, rows in start(after, source.add(*batches[2:]).read(), str(tmp_path / "1"), drain=True).items():
        found[name] += rows
    assert values_in(after) == values_in(whole)
    assert len(found["late"]) > 1
    assert len(found["windows"]) > 20
    for name, width in (("new", 2), ("windows", 1), ("late", 1)):
        assert by_key(found[name], width) == by_key(plain[name], width), name
    with pytest.raises(CheckpointError, match=r"was rescaled into file:.*1, which goes on in its place"):
        start(before, source.read(), str(tmp_path / "0"))


class Killed(BaseException):
    """A BaseException, which no code under test catches, in place of SIGKILL."""


@pytest.mark.crash
def test_a_rescale_killed_at_any_failpoint_is_detected_and_can_be_repeated(
    spark: SparkSession, feed: Callable[..., Any], start: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    before = topology(SqliteStore(tmp_path / "0.db"))
    after = topology(SqliteStore(tmp_path / "1.db"), sums=1, windows=3, largest=3)
    source = feed(SALES).add(batch(0), batch(1))
    start(before, source.read(), old)
    held = values_in(before)
    for point in failpoints.RESCALE_NAMES:

        def die(name: str, number: int, point: str = point) -> None:
            if name == point:
                raise Killed

        monkeypatch.setattr(failpoints, "hit", die)
        with pytest.raises(Killed):
            rescale(old, new, before=before, after=after, spark=spark)
        monkeypatch.undo()
        assert values_in(before) == held
        if point == "before_rescale":
            assert not Path(new).exists()
            continue
        with pytest.raises(CheckpointError, match=f"{new} is half made: a rescale of file:{old} into it"):
            start(after, source.read(), new)
        if point == "after_moved_states":  # the old query continues, and is rescaled later
            start(before, source.add(batch(2)).read(), old)
            held = values_in(before)
    rescale(old, new, before=before, after=after, spark=spark)
    assert values_in(after) == held
    start(after, source.add(batch(3)).read(), new, drain=True)
    whole = topology(SqliteStore(tmp_path / "plain.db"))
    start(whole, source.read(), str(tmp_path / "plain"), drain=True)
    assert values_in(after) == values_in(whole)


@pytest.mark.crash
def test_a_rescale_with_wrong_topologies_or_stores_is_refused_before_anything_is_written(
    spark: SparkSession, feed: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    store, other, third = (SqliteStore(tmp_path / name) for name in ("0.db", "1.db", "2.db"))
    before = topology(store)
    start(before, feed(SALES).add(batch(0)).read(), old)
    renamed = TridentTopology("else")
    renamed.new_stream("sales", InputSpout(SALES)).sink("all")
    for given, error, sentence in (
        (
            {"tasks": 3},
            ConfigError,
            "is that of a Trident topology, whose numbers of tasks are in the topology: give before=",
        ),
        ({"before": before}, ConfigError, "give before=, as it was started, and after="),
        ({"before": before, "after": topology(store, sums=3)}, ConfigError, "is the state of the old one, sums in"),
        (
            {"before": renamed, "after": topology(other)},
            DefinitionChangedError,
            "before=: what keeps .*; give the topology as it was",
        ),
        (
            {"before": before, "after": renamed},
            DefinitionChangedError,
            "after=: what keeps .*; rescale changes numbers",
        ),
        ({"before": topology(other), "after": topology(third)}, CorruptStateError, "what was committed there is lost"),
    ):
        with pytest.raises(error, match=sentence):
            rescale(old, new, spark=spark, **given)  # type: ignore[arg-type]
    assert not Path(new).exists()
    assert not values_in(topology(other))["state1"]


@pytest.mark.crash
@pytest.mark.python_source
def test_a_rescaled_query_continues_the_queue_of_the_old_one_and_acks_it(
    spark: SparkSession, start: Callable[..., Any], tmp_path: Path
) -> None:
    def made(name: str, sums: int) -> TridentTopology:
        return topology(SqliteStore(tmp_path / f"{name}.db"), sums=sums)

    queue = SqliteQueue(tmp_path / "queue.db", SALES, max_rows=5)
    rows = [tuple(row.values()) for number in range(4) for row in batch(number)]
    queue.put(rows[:20])
    start(made("0", 2), queue, str(tmp_path / "0"))
    assert len(queue) == 0
    rescale(str(tmp_path / "0"), str(tmp_path / "1"), before=made("0", 2), after=made("1", 3), spark=spark)
    queue.put(rows[20:])
    start(made("1", 3), queue, str(tmp_path / "1"), drain=True)
    assert len(queue) == 0
    plain = SqliteQueue(tmp_path / "plain_queue.db", SALES, max_rows=5)
    plain.put(rows)
    start(made("plain", 2), plain, str(tmp_path / "plain"), drain=True)
    assert values_in(made("1", 3)) == values_in(made("plain", 2))
