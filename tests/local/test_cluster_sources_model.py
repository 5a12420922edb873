"""What LocalCluster(sources=) owes a source, with random batches, failures, pauses and kills; the model is counts for each row.

A row is known by its offset, which the source gives once: a row that is delivered again after `fail` has a new one. So in one
cluster each offset is emitted once, and its row is executed until it succeeds or has no attempts left. A spout has one stream, or
two with a source for each, whose partitions have other names.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing import InputSpout, TopologyBuilder, bolt, count, millis, tumbling
from windowing.errors import FailedException
from windowing.local import LocalCluster, VirtualClock
from windowing.queues import PartitionedSpout, Root
from windowing.queues.spout import Offsets
from windowing.stores.states import MemoryStateProvider
from windowing.topology.plan import Topology

Rows = list[tuple[int, bool, float]]
"""For each offset its partition, whether there is a row, and how many times it fails."""

PARTITIONS = 5  # of a source
DELIVERIES = 2  # of a row by a source that takes acks


class Life:
    """What one cluster has done, by row, and what it has told its source, by root."""

    def __init__(self) -> None:
        self.read: Counter[int] = Counter()
        self.failures: Counter[int] = Counter()
        self.passed: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        """The dead letters that a bolt has read."""
        self.ended: list[Root] = []
        self.failed: list[tuple[Root, int]] = []
        """Each with how many rows had been emitted then."""
        self.cluster: LocalCluster | None = None

    @property
    def letters(self) -> Counter[int]:
        """The rows whose last attempt has failed."""
        assert self.cluster is not None
        return Counter(letter.values[0] for letter in self.cluster.result.dead_letters)


class Files(PartitionedSpout):
    """Takes no acks, and begins again where it was told `commit`. `rows`: by partition and offset whether there is a row."""

    fields = "n long"

    def __init__(self, max_rows: int | None, in_one_batch: bool) -> None:
        self.max_rows, self.in_one_batch = max_rows, in_one_batch
        self.rows: dict[str, list[bool]] = {}
        self.committed: dict[str, int] = {}
        self.faults: dict[int, float] = {}
        """How many times the row fails from now on."""
        self.safe: set[int] = set()
        """The rows that were done and will not be given again."""
        self.later: list[Rows] = []
        """What arrives when the source is asked for its end, call by call."""
        self.life = Life()

    def arrive(self, rows: Rows) -> None:
        for partition, is_row, faults in rows:
            self.put(str(partition), is_row, faults)

    def put(self, partition: str, is_row: bool, faults: float) -> None:
        self.rows.setdefault(partition, []).append(is_row)
        self.faults[int(partition) * 1000 + len(self.rows[partition])] = faults

    def numbers(self, ranges: dict[str, tuple[int, int]]) -> list[int]:
        """The rows of a range of offsets (start, end] by partition."""
        return [
            int(name) * 1000 + at
            for name, (start, end) in ranges.items()
            for at in range(start + 1, end + 1)
            if self.rows[name][at - 1]
        ]

    def left(self) -> list[int]:
        """The rows that a new cluster would read."""
        return self.numbers({name: (self.initial()[name], at) for name, at in self.ends().items()})

    def initial(self) -> Offsets:
        return {name: self.committed.get(name, 0) for name in self.rows}

    def latest(self) -> Offsets:
        if self.later:
            self.arrive(self.later.pop())
        return self.ends()

    def ends(self) -> Offsets:
        return {name: len(rows) for name, rows in self.rows.items()}

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        numbers = self.numbers({partition: (start, end)})
        self.life.read.update(numbers)
        for some in [numbers] if self.in_one_batch else [[], *([n] for n in numbers), []]:
            yield pa.RecordBatch.from_pydict({"n": pa.array(some, pa.int64())})

    def fail(self, root: Root, component: str) -> None:
        assert root not in self.life.ended, "a root fails once"
        self.life.ended.append(root)
        assert set(self.numbers(root.ranges)) & set(self.life.letters)

    def commit(self, end: Offsets) -> None:
        new = {name: (self.committed.get(name, 0), at) for name, at in end.items()}
        assert all(before <= at for before, at in new.values())
        assert end != self.committed
        self.require_done(self.numbers(new))
        self.safe.update(n for n in self.numbers(new) if self.life.done[n])
        self.committed = dict(end)

    def require_done(self, numbers: list[int]) -> None:
        life = self.life
        assert [n for n in numbers if life.done[n] + life.letters[n] != 1] == []

    def require_all(self) -> None:
        """Nothing is left, and nothing was done twice."""
        self.require_done([n for n in self.life.read if str(n // 1000) in self.rows])
        assert self.committed == self.ends()
        assert set(self.life.read.values()) <= {1}


class Queue(Files):
    """Takes acks, and forgets rows that are acked; the rows of a root that fails come again at the end of their partition."""

    def __init__(self, max_rows: int | None, in_one_batch: bool) -> None:
        super().__init__(max_rows, in_one_batch)
        self.deliveries: Counter[int] = Counter()

    def begin(self, query: str, end: Offsets | None) -> None:
        self.committed = {}

    def ack(self, root: Root) -> None:
        numbers = self.ended(root)
        assert [n for n in numbers if self.life.done[n] != 1] == [], "acked before it was done"
        self.safe.update(numbers)
        self.forget(numbers)

    def give_up(self, root: Root, component: str) -> None:
        numbers = self.ended(root)
        assert [n for n in numbers if self.life.done[n] + self.life.taken[n] != 1] == []
        assert any(self.life.taken[n] for n in numbers)
        self.safe.update(n for n in numbers if self.life.done[n])
        self.forget(numbers)

    def fail(self, root: Root, component: str) -> None:
        numbers = self.ended(root)
        assert any(self.life.letters[n] and not self.life.taken[n] for n in numbers)
        self.forget(numbers)
        for n in numbers:
            if self.deliveries[n] + 1 < DELIVERIES:
                partition = str(n // 1000)
                self.put(partition, True, self.faults[n])
                self.deliveries[int(partition) * 1000 + len(self.rows[partition])] = self.deliveries[n] + 1
        assert self.life.cluster is not None
        self.life.failed.append((root, self.life.cluster._emissions()))

    def ended(self, root: Root) -> list[int]:
        assert root not in self.life.ended, "each root ends with one call"
        self.life.ended.append(root)
        return self.numbers(root.ranges)

    def forget(self, numbers: list[int]) -> None:
        for n in numbers:
            self.rows[str(n // 1000)][n % 1000 - 1] = False

    def require_done(self, numbers: list[int]) -> None:
        assert numbers == [], "committed before it was acked"

    def commit(self, end: Offsets) -> None:
        super().commit(end)
        ended = Counter(
            (name, at)
            for root in self.life.ended
            for name, (start, last) in root.ranges.items()
            for at in range(start + 1, last + 1)
        )
        assert set(ended.values()) <= {1}, "each offset is in one root"
        assert all((name, at) in ended for name, last in end.items() for at in range(1, last + 1))

    def require_all(self) -> None:
        assert not any(any(rows) for rows in self.rows.values())
        assert self.committed == self.ends()
        assert set(self.life.read.values()) <= {1}


class Run:
    """The sources of a spout's streams, and one cluster after the other that reads them."""

    def __init__(
        self,
        sources: list[Files],
        kind: str,
        letters: str,
        tasks: int,
        attempts: int,
        pending: int | None,
        seed: int | None,
    ) -> None:
        self.kind, self.attempts, self.seed = kind, attempts, seed
        self.sources = dict(zip(("default", "more"), sources, strict=False))
        self.states = MemoryStateProvider() if kind == "state" else None
        self.state: Any = None
        self.topology = self.made(letters, tasks, pending)
        self.begin()

    def made(self, letters: str, tasks: int, pending: int | None) -> Topology:
        run, sources = self, [*self.sources.values()]

        @bolt(output="n long")
        def picky(row: Any) -> Any:
            n = row["n"]
            faults = sources[(n // 1000 - 1) // PARTITIONS].faults
            if faults[n] > 0:
                faults[n] -= 1
                run.life.failures[n] += 1
                raise FailedException("not now")
            run.life.passed[n] += 1
            return n

        @bolt(output="n long")
        def bolts(row: Any) -> None:
            run.life.done[row["n"]] += 1

        @tumbling(count(2), output="n long")
        def window(rows: Any) -> None:
            run.life.done.update(row["n"] for row in rows)

        @bolt(output="n long")
        class State:
            def init_state(self, state: Any) -> None:
                self.state = run.state = state

            def execute(self, row: Any) -> None:
                run.life.done[row["n"]] += 1
                self.state.put(row["n"], self.state.get(row["n"], 0) + 1)

        @bolt(output="n long")
        def reader(letter: Any) -> None:
            if letters == "refused":
                raise FailedException("never")
            run.life.taken[json.loads(letter["tuples"])[0]["values"]["n"]] += 1

        builder = TopologyBuilder("model").configure(
            enable_message_timeouts=False, max_attempts=self.attempts, max_spout_pending=pending
        )
        builder.set_spout("rows", InputSpout(dict.fromkeys(self.sources, "n long")), tasks)
        declared = builder.set_bolt("picky", picky, 2)
        for stream in self.sources:
            declared.shuffle_grouping("rows", stream)
        last = {"bolts": bolts, "window": window, "state": State}[self.kind]
        builder.set_bolt("last", last).global_grouping("picky")
        if letters != "unread":
            builder.set_bolt("reader", reader).shuffle_grouping("picky", "dead_letters")
        return builder.build()

    def begin(self) -> None:
        self.life = Life()
        for source in self.sources.values():
            source.life = self.life
        self.cluster = self.life.cluster = LocalCluster(
            self.topology, sources={"rows": self.sources}, clock=VirtualClock(), seed=self.seed, states=self.states
        )

    def end(self) -> None:
        """A row that is done or dead in one cluster was executed as often as it may be."""
        life, attempts = self.life, self.attempts
        for n in life.read:
            assert life.done[n] <= life.passed[n] <= 1
            assert life.failures[n] < attempts or not life.passed[n]
            assert life.letters[n] <= (life.failures[n] == attempts)
        for root, emitted in life.failed:
            executed = [n for n in {*life.passed, *life.failures} if n % 1000 <= root.end.get(str(n // 1000), 0)]
            assert len(executed) <= emitted, "no row of a root is emitted after it has failed"

    def step(self, what: str, much: int) -> None:
        if what == "kill":
            self.end()
            self.begin()
        elif what == "close":
            self.cluster.close()
            self.end()
            self.begin()
        elif what == "rounds":
            for _ in range(much):
                self.cluster.step()
        elif what == "span":
            self.cluster.run_for(millis(much * 400))
        elif what == "run":
            self.cluster.run(drain=False)
            if self.kind == "state":  # rows that came during the last checkpoint are for the next run
                for source in self.sources.values():
                    source.later = []
                self.cluster.run(drain=False)
            for source in self.sources.values():
                assert [n for n in source.left() if self.life.passed[n] + self.life.letters[n] != 1] == []
                if self.kind != "window":
                    source.require_all()
        else:
            self.drained()
            self.cluster.close()
            self.end()
            self.begin()

    def drained(self) -> None:
        self.cluster.run()
        for source in self.sources.values():
            source.require_all()


ROWS = st.lists(
    st.tuples(st.integers(1, PARTITIONS), st.booleans() | st.just(True), st.sampled_from([0, 0, 0, 1, math.inf])),
    max_size=14,
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["rounds", "rounds", "span", "run", "kill", "close", "drain"]), st.integers(1, 6)),
    max_size=5,
)


@pytest.mark.parametrize("takes_acks", [False, True])
@pytest.mark.parametrize("kind", ["bolts", "window", "state"])
@given(data=st.data())
def test_each_row_is_delivered_as_promised_and_a_run_ends_where_the_source_ends(
    kind: str, takes_acks: bool, data: st.DataObject
) -> None:
    max_rows, in_one_batch = data.draw(st.sampled_from([None, 1, 2, 3])), data.draw(st.booleans())
    kinds = [takes_acks, *data.draw(st.lists(st.booleans(), max_size=1))]
    sources = [(Queue if acks else Files)(max_rows, in_one_batch) for acks in kinds]

    def rows_of(number: int) -> st.SearchStrategy[Rows]:
        return ROWS.map(lambda rows: [(partition + number * PARTITIONS, *rest) for partition, *rest in rows])

    pending = None if kind == "window" else data.draw(st.sampled_from([None, 1, 2, 5]))
    letters = data.draw(st.sampled_from(["unread", "read", "refused"]))
    for number, source in enumerate(sources):
        source.arrive(data.draw(rows_of(number)))
        source.later = data.draw(st.lists(st.just([]) | rows_of(number), max_size=8))
    run = Run(
        sources,
        kind,
        letters,
        tasks=data.draw(st.integers(1, 4)),
        attempts=data.draw(st.integers(1, 3)),
        pending=pending,
        seed=data.draw(st.none() | st.integers(0, 9)),
    )
    for what, much in data.draw(STEPS):
        run.step(what, much)
        for number, source in enumerate(sources):
            source.arrive(data.draw(rows_of(number)))
    run.drained()
    run.end()
    if run.state is not None:
        assert [n for source in sources for n in source.safe if run.state.get(n, 0) < 1] == []
    run.cluster.close()
