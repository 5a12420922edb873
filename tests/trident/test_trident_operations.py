"""Random pipelines compared with a model of plain lists: the rows agree for any groups, partitions, pieces and attempts.

Every step takes tuples (k string, n long) and returns such tuples, so that any step can follow any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from windowing.errors import ConfigError
from windowing.schema.hashing import key_hash
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.trident import builtins as b
from windowing.trident.kinds import SpoutKind
from windowing.trident.operations import JoinType
from windowing.trident.planner import built, plan_of, resolve
from windowing.trident.streams import Stream, TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.windows.measures import count

Row = tuple[str, int]
Parts = list[list[Row]]
FIELDS = "k string, n long"


class Given:
    kind = SpoutKind.OPAQUE
    output = FIELDS


class Product:
    """A reducer: the order of the tuples does not matter, their number does."""

    def init(self) -> int:
        return 1

    def reduce(self, current: int, row: Any) -> int:
        return int(current * (2 * row.n + 1) % 1009)


class Middle:
    """An aggregator: the median, no row without tuples."""

    def init(self, batch_id: Any, collector: Any) -> list[int]:
        return []

    def aggregate(self, value: list[int], row: Any, collector: Any) -> None:
        value.append(row.n)

    def complete(self, value: list[int], collector: Any) -> None:
        if value:
            collector.emit((sorted(value)[len(value) // 2],))


AGGREGATORS: dict[str, tuple[Any, Callable[[list[int]], list[int]]]] = {
    "sum": (b.Sum(), lambda ns: [sum(ns)]),
    "max": (b.Max(), lambda ns: [max(ns)] if ns else [-1]),
    "product": (Product(), lambda ns: [_product(ns)]),
    "middle": (Middle(), lambda ns: [sorted(ns)[len(ns) // 2]] if ns else []),
}


def _product(ns: list[int]) -> int:
    result = 1
    for n in ns:
        result = result * (2 * n + 1) % 1009
    return result


def grown(row: Any) -> list[int]:
    return [row.n + 1, row.n * 2]


def branched(row: Any) -> list[Row]:
    return [(row.k, row.n), (f"{row.k}x"[:2], row.n - 1)] if row.n % 2 else []


def called(name: str) -> Callable[[Any], Row]:
    return lambda row: (name, -1 if row.n is None else row.n)


# -- steps of the Stream API: (stream, hint) -> stream -----------------------------------------------------------------

OUTER, INNER = JoinType.OUTER, JoinType.INNER
State = Callable[[], Any]


def real(stream: Stream, step: tuple[Any, ...], topology: TridentTopology, hint: Callable[[], int]) -> Stream:
    """Return the stream after one step; `hint` draws a parallelism for operations that need one."""
    name, *how = step
    if name == "each":
        made = stream.each("n", grown, "m long").project("k", "m").map(lambda row: (row.k, row.m), FIELDS)
    elif name == "filter":
        made = stream.filter(lambda row: row.n % how[0] != 0, "n")
    elif name == "flat_map":
        made = stream.flat_map(branched)
    elif name == "partition_by":
        made = stream.partition_by("k").filter(lambda row: True)
    elif name in ("shuffle", "global_", "batch_global", "broadcast", "identity_partition"):
        made = getattr(stream, name)().filter(lambda row: True)
    elif name == "aggregate":
        made = stream.aggregate("n", AGGREGATORS[how[0]][0], "n long").map(called("all"), FIELDS)
    elif name == "partition_aggregate":
        made = stream.partition_aggregate("n", AGGREGATORS[how[0]][0], "n long").map(called("part"), FIELDS)
    elif name == "group":
        made = stream.group_by("k").aggregate("n", AGGREGATORS[how[0]][0], "n long")
    elif name == "partition_group":
        made = stream.group_by("k").partition_aggregate("n", AGGREGATORS[how[0]][0], "n long").to_stream()
    elif name == "chain":
        chain = stream.group_by("k").chained_agg().aggregate(None, b.Count(), "c long")
        chain.aggregate("n", AGGREGATORS[how[0]][0], "s long")
        made = chain.chain_end().map(lambda row: (row.k, row.c * 10_000 + row.s), FIELDS)
    elif name == "min_by":
        made = stream.min_by("n").map(called("min"))
    elif name == "first":
        made = stream.apply_assembly(b.FirstN(2, "n")).map(called("first"))
    elif name == "merge":
        made = topology.merge(stream, several(stream, how[0], topology, hint))
    elif name == "join":
        other = several(stream, how[0], topology, hint).map(lambda row: (row.k, row.n), "k string, m long")
        joined = topology.join([stream, other], "k", kinds=list(how[1]))
        made = joined.map(lambda row: (row.k, (row.n or 0) * 3 + (row.m or 0)), FIELDS)
    elif name == "persist":
        state = stream.group_by("k").persistent_aggregate(map_state(MemoryStore(), "s"), "n", how[0], "n long")
        made = state.parallelism_hint(hint()).new_values_stream()
        return made
    elif name == "keyed":
        made = stream.group_by("k").tumbling_window(count(3), "n", b.Sum(), "n long", timestamp="n")
    else:
        windows = stream.global_().tumbling_window(count(3), "n", b.Sum(), "n long", timestamp="n")
        windows.parallelism_hint(hint())
        made = windows.map(called("window"), FIELDS)
    return made.parallelism_hint(hint())


def several(stream: Stream, steps: list[Any], topology: TridentTopology, hint: Callable[[], int]) -> Stream:
    for step in steps:
        stream = real(stream, step, topology, hint)
    return stream


# -- the same steps on lists: k partitions of rows ---------------------------------------------------------------------


def by_key(rows: list[Row]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for k, n in rows:
        found.setdefault(k, []).append(n)
    return found


class Model:
    """All groups have `tasks` tasks; `kept` holds what lasts from batch to batch, by the position of the step."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.kept: dict[Any, Any] = {}

    def several(self, parts: Parts, steps: list[Any], txid: int, at: tuple[int, ...] = ()) -> Parts:
        for number, step in enumerate(steps):
            parts = self.one(parts, step, txid, (*at, number))
            assume(sum(map(len, parts)) < 300)  # joins, merges and broadcasts multiply
        return parts

    def moved(self, parts: Parts, to: Callable[[Row], int]) -> Parts:
        return [[row for part in parts for row in part if to(row) == task] for task in range(self.tasks)]

    def home(self, row: Row) -> int:
        return key_hash(("string",), (row[0],)) % self.tasks

    def one(self, parts: Parts, step: tuple[Any, ...], txid: int, at: tuple[int, ...]) -> Parts:
        name, *how = step
        whole = [row for part in parts for row in part]
        if name == "each":
            return [[(k, m) for k, n in part for m in (n + 1, n * 2)] for part in parts]
        if name == "filter":
            return [[(k, n) for k, n in part if n % how[0] != 0] for part in parts]
        if name == "flat_map":
            return [[new for k, n in part if n % 2 for new in ((k, n), (f"{k}x"[:2], n - 1))] for part in parts]
        if name == "partition_by":
            return self.moved(parts, self.home)
        if name == "shuffle":
            spread: Parts = [[] for _ in parts]
            for task, part in enumerate(parts):
                for number, row in enumerate(part):
                    spread[(task + txid + number) % self.tasks].append(row)
            return spread
        if name == "global_":
            return self.moved(parts, lambda row: 0)
        if name == "batch_global":
            return self.moved(parts, lambda row: txid % self.tasks)
        if name == "broadcast":
            return [list(whole) for _ in parts]
        if name == "identity_partition":
            return parts
        if name == "aggregate":
            values = AGGREGATORS[how[0]][1]([n for _, n in whole])
            return [[("all", n) for n in values] if task == txid % self.tasks else [] for task in range(self.tasks)]
        if name == "partition_aggregate":
            return [[("part", n) for n in AGGREGATORS[how[0]][1]([n for _, n in part])] for part in parts]
        if name == "group":
            moved = self.moved(parts, self.home)
            return [[(k, v) for k, ns in by_key(part).items() for v in AGGREGATORS[how[0]][1](ns)] for part in moved]
        if name == "partition_group":
            return [[(k, v) for k, ns in by_key(part).items() for v in AGGREGATORS[how[0]][1](ns)] for part in parts]
        if name == "chain":
            found = by_key(whole).items()
            rows = [(k, len(ns) * 10_000 + v) for k, ns in found for v in AGGREGATORS[how[0]][1](ns)]
            return self.moved([rows], self.home)
        if name == "min_by":
            return [[("min", min(n for _, n in part))] if part else [] for part in parts]
        if name == "first":
            return [[("first", n) for n in sorted(n for _, n in whole)[:2]], *([[] for _ in range(self.tasks - 1)])]
        if name == "merge":
            other = self.several(parts, how[0], txid, at)
            return [mine + theirs for mine, theirs in zip(parts, other, strict=True)]
        if name == "join":
            return self.moved(
                [self.joined(whole, [row for part in self.several(parts, how[0], txid, at) for row in part], how[1])],
                self.home,
            )
        if name == "persist":
            return self.moved([self.persisted(whole, how[0], at)], self.home)
        if name == "keyed":
            return self.moved([self.windowed(whole, at, lambda k: k)], self.home)
        return [self.windowed(whole, at, lambda k: "window"), *([[] for _ in range(self.tasks - 1)])]

    @staticmethod
    def joined(left: list[Row], right: list[Row], kinds: Any) -> list[Row]:
        ours, theirs = by_key(left), by_key(right)
        rows = []
        for k in {**ours, **theirs}:
            mine = ours.get(k) or ([0] if kinds[0] is OUTER else [])
            other = theirs.get(k) or ([0] if kinds[1] is OUTER else [])
            rows += [(k, n * 3 + m) for n in mine for m in other]
        return rows

    def persisted(self, rows: list[Row], aggregator: Any, at: Any) -> list[Row]:
        stored = self.kept.setdefault(at, {})
        for k, ns in by_key(rows).items():
            if isinstance(aggregator, Product):
                stored[k] = stored.get(k, 1) * _product(ns) % 1009
            else:
                stored[k] = stored.get(k, 0) + sum(ns)
        return [(k, stored[k]) for k in by_key(rows)]

    def windowed(self, rows: list[Row], at: Any, key: Callable[[str], str]) -> list[Row]:
        """For each key three by three in the order of timestamps n; late if below the watermark, numbered when it rises."""
        kept = self.kept.setdefault(at, {"watermark": -10, "waiting": [], "left": {}})
        risen = max([*(n for _, n in rows), kept["watermark"]])
        kept["waiting"] += [(key(k), n) for k, n in rows if n >= kept["watermark"]]
        if risen > kept["watermark"]:
            for k, ns in by_key(kept["waiting"]).items():
                kept["left"][k] = kept["left"].get(k, []) + sorted(ns)
            kept["waiting"] = []
        kept["watermark"] = risen
        made = []
        for k, ns in kept["left"].items():
            fired = len(ns) // 3
            made += [(k, sum(ns[3 * number : 3 * number + 3])) for number in range(fired)]
            kept["left"][k] = ns[3 * fired :]
        return made


def dealt(rows: list[Row], tasks: int) -> Parts:
    """Return a batch as the tasks of a spout emit it."""
    return [rows[task::tasks] for task in range(tasks)]


def assume_few(steps: list[Any], batches: list[list[Row]], tasks: int) -> None:
    """Give up where there are too many rows: each join squares them."""
    model = Model(tasks)
    for txid, rows in enumerate(batches, 1):
        model.several(dealt(rows, tasks), steps, txid)


# -- strategies --------------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(sorted(AGGREGATORS))
SIMPLE = st.one_of(
    st.just(("each",)),
    st.tuples(st.just("filter"), st.integers(2, 4)),
    st.just(("flat_map",)),
    st.sampled_from([(name,) for name in ("partition_by", "shuffle", "global_", "batch_global", "identity_partition")]),
    st.tuples(st.just("aggregate"), KINDS),
    st.tuples(st.just("group"), KINDS),
    st.tuples(st.just("chain"), KINDS),
    st.just(("first",)),
)
PARTED = st.one_of(
    st.just(("broadcast",)),
    st.tuples(st.just("partition_aggregate"), KINDS),
    st.tuples(st.just("partition_group"), KINDS),
    st.just(("min_by",)),
)


def joins(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, max_size=2)
    kinds = st.tuples(*[st.sampled_from([INNER, OUTER])] * 2)
    return st.one_of(st.tuples(st.just("merge"), few), st.tuples(st.just("join"), few, kinds))


WINDOW = st.sampled_from([("window",), ("keyed",)])
PERSIST = st.tuples(st.just("persist"), st.sampled_from([b.Sum(), Product()]))
ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 20)), max_size=12)
BATCHES = st.lists(ROWS, min_size=1, max_size=3)


def pipelines(*more: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Steps without a state, a window or none, steps, a persist or none, steps: the only order in which all of them are allowed."""
    step = st.one_of(SIMPLE, *more)
    step = st.one_of(step, step, step, joins(step))
    some = st.lists(step, max_size=3)
    window, persist = st.lists(WINDOW, max_size=1), st.lists(PERSIST, max_size=1)
    return st.tuples(some, window, some, persist, some).map(lambda pieces: [each for piece in pieces for each in piece])


def run_of(steps: list[Any], hint: Callable[[], int], merge: bool = True, piece: int | None = None) -> TridentRun:
    topology = TridentTopology("random")
    stream = topology.new_stream("in", Given()).parallelism_hint(hint())
    several(stream, steps, topology, hint).sink("out").parallelism_hint(hint())
    if merge:
        return TridentRun(topology.build(), piece)
    built("random", topology._builder, [])
    return TridentRun(plan_of("random", resolve(topology._builder, []), [], merge=False), piece)


SHUFFLED = [("shuffle",), ("partition_aggregate", "product"), ("broadcast",), ("partition_group", "sum")]
FOUR = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]


@settings(deadline=None)
@example(SHUFFLED, [FOUR, FOUR[:3], FOUR[:1]], 3, False, 1, [0, 1, 2])
@example(
    [("window",), ("merge", [("each",)]), ("persist", b.Sum())], [FOUR, [("a", 9)], FOUR], 2, True, None, [2, 2, 2]
)
@given(
    pipelines(PARTED),
    BATCHES,
    st.integers(1, 3),
    st.booleans(),
    st.none() | st.integers(1, 3),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
)
def test_a_pipeline_equals_the_same_steps_on_lists(
    steps: list[Any], batches: list[list[Row]], tasks: int, merge: bool, piece: int | None, retries: list[int]
) -> None:
    run, model = run_of(steps, lambda: tasks, merge, piece), Model(tasks)
    run.plan.check()
    for txid, rows in enumerate(batches, 1):
        expected = sorted(row for part in model.several(dealt(rows, tasks), steps, txid) for row in part)
        for attempt in range(retries[txid - 1]):
            tried = run.begin({"in": rows}, attempt, txid)
            if attempt:  # the first one is dropped before it commits, another one after
                tried.commit()
        found = run.begin({"in": rows}, retries[txid - 1], txid).commit()["out"]
        assert sorted(found) == expected


@settings(deadline=None)
@given(pipelines(), BATCHES, st.data())
def test_the_number_of_partitions_changes_no_row(
    steps: list[Any], batches: list[list[Row]], data: st.DataObject
) -> None:
    assume_few(steps, batches, 1)
    one, many = run_of(steps, lambda: 1), run_of(steps, lambda: data.draw(st.integers(1, 4)))
    many.plan.check()
    for rows in batches:
        expected = one.batch({"in": rows})["out"]
        assert sorted(many.batch({"in": rows})["out"]) == sorted(expected)


@settings(deadline=None)
@given(pipelines(PARTED), BATCHES, st.integers(1, 3), st.randoms(use_true_random=False))
def test_batches_processed_concurrently_commit_in_order_with_the_same_rows(
    steps: list[Any], batches: list[list[Row]], tasks: int, chance: Any
) -> None:
    run, model = run_of(steps, lambda: tasks), Model(tasks)
    expected = [model.several(dealt(rows, tasks), steps, txid) for txid, rows in enumerate(batches, 1)]
    flights = dict.fromkeys(chance.sample(range(1, len(batches) + 1), len(batches)))
    for txid in flights:
        flights[txid] = run.begin({"in": batches[txid - 1]}, txid=txid)
    for txid in sorted(flights):
        assert sorted(flights[txid].commit()["out"]) == sorted(row for part in expected[txid - 1] for row in part)


@pytest.mark.parametrize("made", [b.Min, b.Max])
def test_storm_s_minimum_and_maximum_of_whole_tuples_name_what_they_are_here(made: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"is {made.__name__.lower()}_by\('n'\) of a stream; {made.__name__}\(\) takes no field"
    ):
        made("n")
