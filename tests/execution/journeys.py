"""Counts of the functions and files that a row passes through, in traced runs that can be repeated.

    python -m tests.execution.journeys             counts
    python -m tests.execution.journeys windowed    the functions too, in the order in which they are first called

Counted are functions of this library (`def`, of a module or a class), and their files, that are called while a started query or
cluster processes a batch: the second batch, so that there is a state, without any error. Lambdas, comprehensions and nested
functions count as part of the enclosing function. Not counted are class bodies, imports, the pickling of functions for Spark's
workers, generated methods, `__del__`, the tests' and the user's own functions.

    windowed    from the rows in the first Python worker to the state and the output of the stateful operator
    trident     from a source's tuples in the first Python worker to committed states and the rows for sinks
    topology    from a spout's rows in the first Python worker to the packets for the sinks, through a bolt behind an exchange
    plain, window, stateful    in LocalCluster: from a spout's tuple to its ack; the bolt has a window, a state

The driver's part, foreachBatch, needs a JVM: tests/spark/test_journeys.py counts it, and the total.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType

import windowing
from tests.execution.chains import Chain
from windowing.execution.plan import Section
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.spark.exchange import (
    CLOCK_BITS,
    TASK_AND_CLOCK,
    ExchangeRow,
    WindowTimestamps,
    record_batches,
    with_max_future,
)
from windowing.spark.operator import _VARIABLES, TaskProcessor
from windowing.spark.output import Encoder, Layout
from windowing.spark.rows import NamedRows
from windowing.spark.shipping import Shipped
from windowing.spark.trident_commits import Attempts
from windowing.spark.trident_stages import TridentBatchStage, TridentSpoutStage
from windowing.spark.window_turn import Packer, TaskStage, window_turn
from windowing.stores.factory import map_state
from windowing.stores.sqlite import SqliteStore
from windowing.stores.states import MemoryStateProvider
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, bolt_of, sliding
from windowing.topology.plan import Topology
from windowing.trident.builtins import Count
from windowing.trident.fence import Life, Progress, owned
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import millis

_ROOT = Path(windowing.__file__).parent
_pickle: Any = cast(Any, CloudPickleSerializer)()
_LOCAL: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", _pickled_broadcast_vars=()))
"""The part of a session that shipping user code needs."""

Step = tuple[str, str]
"""A file under windowing/, and the qualified name of a function in it."""


class Journey:
    """The functions of the library that were called while `traced`, in the order of their first calls.

    >>> journey = Journey()
    >>> with journey.traced():
    ...     _ = millis(5)
    >>> "windows/measures.py" in journey.files, ("windows/measures.py", "millis") in journey.steps
    (True, True)
    """

    def __init__(self) -> None:
        self.steps: dict[Step, int] = {}
        self._known: dict[CodeType, Step | None] = {}

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Count the calls of this thread."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    @property
    def files(self) -> list[str]:
        """The files, in the order of their first calls."""
        return list(dict.fromkeys(file for file, _ in self.steps))

    def __or__(self, other: Journey) -> Journey:
        """The functions of both journeys."""
        both = Journey()
        both.steps = {**self.steps, **other.steps}
        return both

    def __str__(self) -> str:
        return f"{len(self.steps)} functions in {len(self.files)} files"

    def table(self) -> str:
        """Return every file with its functions."""
        lines = []
        for file in self.files:
            names = [name for each, name in self.steps if each == file]
            lines += [f"{file} ({len(names)})", *(f"    {name}" for name in names)]
        return "\n".join(lines)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _step(code)
        step = self._known[code]
        if step is not None:
            self.steps[step] = self.steps.get(step, 0) + 1


def _step(code: CodeType) -> Step | None:
    path = Path(code.co_filename)
    # A class body has no optimized locals; `__del__` is called by the garbage collector, in whatever it interrupts.
    if not path.is_relative_to(_ROOT) or not code.co_flags & 0x1 or code.co_name == "__del__":
        return None
    return path.relative_to(_ROOT).as_posix(), code.co_qualname.split(".<locals>")[0]


# -- A row of `windowed`, in the workers -------------------------------------------------------------------------------------------


@sliding(
    millis(20),
    millis(10),
    timestamp="ts",
    lag=millis(5),
    key="k",
    late_stream="late",
    output="k string, n long, v double",
)
def summed(window: Any) -> Any:
    rows = window.get()
    return window.key, len(rows), sum(row.v for row in rows)


FIELDS = "k string, ts long, v double"
ROWS = [
    [("a", 1, 0.5), ("b", 4, 1.5), ("a", 12, 2.0), ("b", 31, 2.5)],
    [("b", 33, 0.25), ("a", 29, 0.75), ("a", 38, 1.0), ("b", 57, 2.0)],
]


def as_spark_hands_over(rows: list[tuple[Any, ...]], task: int = 0, now: int = 1_000) -> pa.RecordBatch:
    """Return rows of FIELDS, with the column that the JVM adds."""
    columns = list(zip(*rows, strict=True))
    kinds = (pa.string(), pa.int64(), pa.float64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    clock = pa.repeat(pa.scalar(task << CLOCK_BITS | now, pa.int64()), len(rows))
    return pa.RecordBatch.from_arrays([*arrays, clock], names=["c0", "c1", "c2", TASK_AND_CLOCK])


def arrived(function: Any) -> Any:
    """Return what a worker unpickles of what the driver sends with each batch."""
    return _pickle.loads(_pickle.dumps(function))


class _Value:
    def __init__(self) -> None:
        self.data: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        return self.data

    def update(self, data: tuple[Any, ...]) -> None:
        self.data = data


class _Map:
    def __init__(self) -> None:
        self.data: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        return self.data.get(key)

    def updateValue(self, key: tuple[Any, ...], data: tuple[Any, ...]) -> None:  # noqa: N802
        self.data[key] = data

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        self.data.pop(key, None)

    def iterator(self) -> Iterator[Any]:
        return iter(list(self.data.items()))


class Store:
    """The part of Spark's state store for one task; the handle that the operator gets."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}

    def getValueState(self, name: str, _: str) -> _Value:  # noqa: N802
        return cast(_Value, self._variables.setdefault(name, _Value()))

    def getMapState(self, name: str, *_: str) -> _Map:  # noqa: N802
        return cast(_Map, self._variables.setdefault(name, _Map()))


def windowed_in_workers(found: list[Any] | None = None) -> Journey:
    """Run two batches as WindowedStream plans them. found: collects the output of each."""
    declared = bolt_of(summed)
    bounded = replace(declared, config=with_max_future(declared.config))
    schemas = {
        "default": StructType().add("k", "string").add("n", "long").add("v", "double"),
        "late": StructType().add("k", "string").add("ts", "long").add("v", "double").add("reason", "string"),
    }
    layout, names = Layout(schemas), ("k", "ts", "v")
    shipped = Shipped(_LOCAL, TaskStage(bounded, NamedRows(names)), "bolt", {})
    packer = Packer("default", names, 1, WindowTimestamps.of_windows(declared.name, bounded.config))
    encoder, store, journey = Encoder(declared.name, layout), Store(), Journey()
    for rows in ROWS:
        journey = Journey()
        stage, processor = arrived(packer), TaskProcessor(arrived(partial(window_turn, shipped, encoder)), [0])
        processor.take([getattr(store, kind)(*named) for kind, *named in _VARIABLES])
        given = iter([as_spark_hands_over(rows)])
        with journey.traced():
            sent = list(stage(given))
        frames = [batch.to_pandas() for batch in sent]
        with journey.traced():
            output = list(processor.handleInputRows((0,), iter(frames), None))
        if found is not None:
            found.append(output)
    return journey


# -- A Trident batch, in the workers -----------------------------------------------------------------------------------------------


def words_topology(store: Any) -> TridentTopology:
    """Words are counted in a state, and the new values go to a sink."""
    topology = TridentTopology("journey")
    stream = topology.new_stream("words", InputSpout("k string, ts long, v double"))
    counted = (
        stream.filter(_is_word).group_by("k").persistent_aggregate(map_state(store, "counts"), None, Count(), "n long")
    )
    counted.new_values_stream().sink("counts")
    return topology


def _is_word(row: Any) -> bool:
    return bool(row.k)


def trident_in_workers(folder: Path, found: list[Any] | None = None) -> Journey:
    """Run two batches as TridentCommits plans them. found: collects the exchange rows of each batch for the driver."""
    plan = words_topology(SqliteStore(folder / "states.db")).build().by_section()
    plan = plan.owned_by(owned(Life("journey"), plan.written, Progress.of("journey", 0, None), claims=True)[1])
    attempts = Attempts(plan)
    shipped = Shipped(_LOCAL, plan, "topology", {})
    journey = Journey()
    for number, rows in enumerate(ROWS):
        journey, attempt = Journey(), attempts.claim(number + 1)
        spout = arrived(TridentSpoutStage(shipped, plan.spouts[0].number, keep=False))
        with journey.traced():
            wire = list(spout.pack(iter([as_spark_hands_over(rows)]), 0, number))
        depths = [*plan.depths(Section.BATCH), *plan.depths(Section.COMMIT)]
        for position, depth in enumerate(depths):
            begun = [ExchangeRow(each.number, "begin", "", 0, 0, 0, None, 0, None) for each in plan.tasks_at(depth)]
            stage = arrived(TridentBatchStage(shipped, depth, depths[:position], attempt))
            given = iter([*wire, *record_batches(begun)])
            with journey.traced():
                wire = list(stage.pack(given, 0, number))
        if found is not None:
            found.append([ExchangeRow(*row.values()) for batch in wire for row in batch.to_pylist()])
    return journey


# -- Tuples of a topology on Spark -------------------------------------------------------------------------------------------------


def topology_in_workers() -> Journey:
    """Run two batches as `submit` plans them."""
    chain, journey = Chain(topology_with(doubled)), Journey()
    for rows in ROWS:
        journey = Journey()
        with journey.traced():
            found = chain.run({"source": rows})
        assert len(found["work"]) == len(rows)
    return journey


# -- A tuple in LocalCluster -------------------------------------------------------------------------------------------------------


@bolt(output="k string, v double")
def doubled(tuple: Any) -> Any:
    return tuple["k"], tuple["v"] * 2


@bolt(output="k string, n long")
class Counting:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        times = self.state.get(tuple["k"], 0) + 1
        self.state.put(tuple["k"], times)
        return tuple["k"], times


def topology_with(declared: Any) -> Topology:
    builder = TopologyBuilder("journey")
    builder.set_spout("source", InputSpout(FIELDS))
    builder.set_bolt("work", declared, 2).fields_grouping("source", "k")
    return builder.build()


def in_local_cluster(declared: Any, states: Any = None) -> Journey:
    """Run two batches; the second is traced, until all of its tuples are acked that can be."""
    journey = Journey()
    with LocalCluster(topology_with(declared), clock=VirtualClock(), states=states) as cluster:
        for rows in ROWS:
            journey = Journey()
            with journey.traced():
                cluster.run_batch({"source": rows})
        assert cluster.result.acked > len(ROWS[0])
    return journey


def local_stateful() -> Journey:
    return in_local_cluster(Counting, MemoryStateProvider())


def trident() -> Journey:
    with TemporaryDirectory() as folder:
        return trident_in_workers(Path(folder))


JOURNEYS: Mapping[str, Callable[[], Journey]] = {
    "windowed": windowed_in_workers,
    "topology": topology_in_workers,
    "plain": lambda: in_local_cluster(doubled),
    "window": lambda: in_local_cluster(summed),
    "stateful": local_stateful,
    "trident": trident,
}


def main(asked: Iterable[str]) -> None:
    """Print the counts; for the journeys named in the arguments every function too."""
    wanted = list(asked)
    for name in wanted or JOURNEYS:
        journey = JOURNEYS[name]()
        print(f"{name}: {journey}")
        if wanted:
            print(journey.table())


if __name__ == "__main__":
    main(sys.argv[1:])
