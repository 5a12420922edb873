"""Scenario: a topology, its data and its faults, all drawn from a seed; and simpler scenarios for shrinking.

    seed 17  -->  Scenario(opaque spout, opaque state, 2 spouts, 1 map, 3 states, ..., faults={CRASHES, ZOMBIES, LOST})
             -->  smaller(): one fault kind less, fewer batches and rows, fewer tasks, ...

    partition x   x0 x1 x2 x3 ...      of a spout, endless; a batch of it is [start, end) of random length; its metadata
                                       is [start, end]

The key and the weight of a row follow from its position alone. A state is correct if each key has the sum of the committed weights.
Law: equal seeds give equal scenarios, and equal scenarios equal runs. A state without a fence is not tested with zombies: a
suspended write puts an old value back, and rows are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from windowing.errors import FailedException
from windowing.stores.factory import map_state
from windowing.topology.decorators import spout
from windowing.trident.builtins import Sum
from windowing.trident.coordinator import OnFailure, Readiness
from windowing.trident.kinds import Guarantee, SpoutKind, StateType, TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import seconds

if TYPE_CHECKING:
    from windowing.testing.simulator.world import World

TREE_MS = 10_000
"""Message timeout: a tree that is not acked by then fails."""


class Fault(StrEnum):
    """Kinds of faults; each kind is on or off for a whole run (swarm testing)."""

    LOST = "messages are lost"
    DELAYED = "messages take up to 40 s, longer than an attempt"
    REPEATED = "messages come twice"
    CRASHES = "tasks die, at any step and between any two store operations"
    ZOMBIES = "tasks are held up, replaced, and go on; so do their writes"
    CLOCKS = "each life has its own monotonic clock, which may be read late; wall clocks jump"
    DAMAGE = "records of coordinators and spouts are damaged"
    STORES = "stores do not answer, or do and the answer is lost"
    FAILURES = "users' code raises FailedException"
    MOVES = "partitions of the source move from task to task, or are left out of a batch"


_PAIRS = [
    (SpoutKind.TRANSACTIONAL, StateType.TRANSACTIONAL),
    (SpoutKind.TRANSACTIONAL, StateType.OPAQUE),
    (SpoutKind.OPAQUE, StateType.OPAQUE),
]
_WEAK_PAIRS = [
    (SpoutKind.NON_TRANSACTIONAL, StateType.OPAQUE),
    (SpoutKind.NON_TRANSACTIONAL, StateType.NON_TRANSACTIONAL),
    (SpoutKind.TRANSACTIONAL, StateType.NON_TRANSACTIONAL),
    (SpoutKind.OPAQUE, StateType.NON_TRANSACTIONAL),
]


@dataclass(frozen=True)
class Scenario:
    """One scenario; immutable.

    chance: the seed of the run. max_rows: maximum rows of a partition in a batch. cache: size, 0 for no cache. attempts: number of
    failures after which `on_failure` applies, None for never. poison: every n-th row fails its batch, 0 for none. sink: a task
    reads the output of the maps and, at the commit, of the states. combines: the state is a persistent aggregate of partial sums.
    quiet_ms: virtual time at which faults stop.
    """

    chance: int
    spout: SpoutKind
    state: StateType
    spouts: int
    maps: int
    states: int
    partitions: int
    keys: int
    max_pending: int
    batches: int
    max_rows: int
    cache: int
    sink: bool
    combines: bool
    attempts: int | None
    on_failure: OnFailure
    poison: int
    quiet_ms: int
    faults: frozenset[Fault]

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """Return the scenario of `seed`.

        >>> Scenario.of(7) == Scenario.of(7)
        True
        """
        pick = Random(seed)
        spout, state = pick.choice(_PAIRS if pick.random() < 0.8 else _WEAK_PAIRS)
        skips = pick.random() < 0.25
        fenced = state is not StateType.NON_TRANSACTIONAL
        attempts = pick.choice((2, 3)) if pick.random() < 0.3 or skips else None
        return cls(
            chance=seed,
            spout=spout,
            state=state,
            spouts=pick.randint(1, 2),
            maps=pick.randint(1, 2),
            states=pick.randint(1, 3),
            partitions=pick.randint(1, 3),
            keys=pick.randint(1, 4),
            max_pending=pick.randint(1, 4),
            batches=pick.randint(2, 6),
            max_rows=pick.randint(1, 3),
            cache=pick.choice((0, 0, 2)),
            sink=(sink := pick.random() < 0.3),
            combines=not sink and pick.random() < 0.4,
            attempts=attempts,
            on_failure=OnFailure.SKIP if skips else OnFailure.STOP,
            poison=pick.choice((0, 5)) if skips else 0,
            quiet_ms=pick.choice((10_000, 30_000, 100_000)),
            faults=frozenset(each for each in Fault if pick.random() < 0.5 and (fenced or each is not Fault.ZOMBIES)),
        )

    def smaller(self) -> Iterator[Scenario]:
        """Yield simpler scenarios, each with one thing less: first fault kinds, then rows, then tasks."""
        for fault in sorted(self.faults, key=lambda fault: fault.name):
            yield replace(self, faults=self.faults - {fault})
        if self.poison:
            yield replace(self, poison=0)
        if self.attempts is not None and not self.poison:
            yield replace(self, attempts=None, on_failure=OnFailure.STOP)
        if self.sink or self.combines:
            yield replace(self, sink=False, combines=False)
        if self.cache:
            yield replace(self, cache=0)
        for name in ("batches", "max_rows", "partitions", "keys", "max_pending", "states", "maps", "spouts"):
            if (value := getattr(self, name)) > 1:
                yield replace(self, **{name: value - 1})

    def __str__(self) -> str:
        faults = ", ".join(sorted(fault.name for fault in self.faults)) or "no faults"
        more = " and a sink" if self.sink else " of sums" if self.combines else ""
        return (
            f"{self.spout.value} spout, {self.state.value} state; {self.spouts} spouts, {self.maps} maps, {self.states} states"
            f"{more}; {self.partitions} partitions, {self.keys} keys, {self.batches} batches of up to "
            f"{self.max_rows} rows a partition, max pending {self.max_pending}, cache {self.cache}, attempts {self.attempts} "
            f"({self.on_failure.value}), poison {self.poison}; until {self.quiet_ms} ms: {faults}"
        )


# -- The topology ----------------------------------------------------------------------------------------------------------------


class SourceRow(NamedTuple):
    """A row of the source: the number of its partition and its offset there."""

    partition: int
    place: int

    @property
    def weight(self) -> int:
        """The amount that the row adds to its key; most rows have different weights."""
        return (self.partition * 40_503 + self.place * 2_654_435_761) % 99_991 + 1

    def key(self, keys: int) -> int:
        """The number of its key."""
        return (self.partition + self.place) % keys


ROWS, SINK, STATE = "rows", "seen", "counts"
FIELDS = "partition long, place long"


def key_of(number: int) -> str:
    """Return the key with this number as it appears in rows."""
    return f"k{number}"


def topology_of(world: World, store: Any) -> TridentPlan:
    """Return the plan of a scenario: rows, maps that compute key and weight, a state by key, and optionally a sink of both.

    rows --shuffle--> map --key--> state (rows one by one, or a persistent aggregate)
                        +--------------- merge <--+-- new values, at the commit         with a sink
    """
    scenario = world.scenario
    topology = TridentTopology("simulated").configure(
        message_timeout=seconds(TREE_MS // 1000), max_batch_size=scenario.max_rows
    )
    rows = topology.new_stream(ROWS, _spout_of(world), output=FIELDS).parallelism_hint(scenario.spouts)
    mapped = rows.shuffle().map(_map_of(world), f"key string, weight long, {FIELDS}").parallelism_hint(scenario.maps)
    factory = map_state(store, STATE, scenario.state, cache=scenario.cache)
    spec = StateSpec(factory, accept=Guarantee.BEST_EFFORT)
    if scenario.combines:
        mapped.group_by("key").persistent_aggregate(spec, "weight", Sum(), "total long").parallelism_hint(
            scenario.states
        )
        return topology.build()
    state = (
        mapped.partition_by("key")
        .partition_persist(spec, None, _Updater(world), FIELDS)
        .parallelism_hint(scenario.states)
    )
    if scenario.sink:
        both = mapped.project("partition", "place").shuffle(), state.new_values_stream().shuffle()
        topology.merge(*both).sink(SINK).parallelism_hint(1)
    return topology.build()


def _spout_of(world: World) -> Any:
    if world.scenario.spout is SpoutKind.NON_TRANSACTIONAL:
        return _queue_of(world)
    return OpaqueSource(world) if world.scenario.spout is SpoutKind.OPAQUE else TransactionalSource(world)


def _map_of(world: World) -> Callable[[Any], tuple[str, int, int, int]]:
    scenario = world.scenario

    def keyed(row: Any) -> tuple[str, int, int, int]:
        world.fail_by_chance()
        found = SourceRow(row.partition, row.place)
        if scenario.poison and found.place % scenario.poison == scenario.poison - 1:
            raise FailedException("poison")
        return key_of(found.key(scenario.keys)), found.weight, *found

    return keyed


class _Add:
    """The updater of one value: adds a weight."""

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.weight


class _Updater:
    """Adds the weights in two halves, between which its task may die or be suspended, and emits the rows."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __deepcopy__(self, memo: object) -> _Updater:
        return self

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        self._world.fail_by_chance()
        for half in (tuples[: len(tuples) // 2], tuples[len(tuples) // 2 :]):
            state.multi_update([(row.key,) for row in half], [_Add(row.weight) for row in half])
            self._world.step()
            for row in half:
                collector.emit((row.partition, row.place))
        self._world.fail_by_chance()


def _queue_of(world: World) -> type:
    """Return a user's spout of single tuples from a queue that outlives its task; a tuple stays there until it is acked."""

    @spout(output=FIELDS)
    class SimulatedQueue:
        def open(self, context: Any, collector: Any) -> None:
            self._task, self._collector = context.task_index, collector
            self._queue = world.queues.setdefault(self._task, [])
            self._flying: set[SourceRow] = set()

        def next_tuple(self) -> None:
            if world.chance.random() < 0.2:
                return
            row = next((row for row in self._queue if row not in self._flying), None)
            if row is None:
                row = SourceRow(self._task, world.rows_made)
                world.rows_made += 1
                self._queue.append(row)
            self._flying.add(row)
            world.emits(row)
            self._collector.emit(tuple(row), message_id=row)

        def ack(self, row: SourceRow) -> None:
            world.checks.row_acked(row)
            if row in self._queue:
                self._queue.remove(row)

        def fail(self, row: SourceRow) -> None:
            self._flying.discard(row)

    return SimulatedQueue


class SimulatedSource(PartitionedCoordinator, PartitionedEmitter):
    """A user's partitioned spout: coordinator and emitters in one stateless object."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scenario = world.scenario
        self._names = [chr(ord("x") + number) for number in range(world.scenario.partitions)]

    def get_coordinator(self) -> SimulatedSource:
        return self

    def get_emitter(self) -> SimulatedSource:
        return self

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= self._scenario.batches else Readiness.ENDED

    def get_partitions_for_batch(self) -> list[str]:
        names = self._names
        if len(names) > 1 and self._world.luck(Fault.MOVES, 0.3):
            names = names[1:] + names[:1]
        return names

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        metadata = [start, start + self._world.chance.randint(0, self._scenario.max_rows)]
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        self._world.fail_by_chance()
        for place in range(*metadata):
            row = SourceRow(ord(partition) - ord("x"), place)
            self._world.emits(row)
            collector.emit(tuple(row))
        self._world.fail_by_chance()


class TransactionalSource(SimulatedSource, IPartitionedTridentSpout):
    """A SimulatedSource whose replayed batches have the same rows."""


class OpaqueSource(SimulatedSource, IOpaquePartitionedTridentSpout):
    """A SimulatedSource whose replayed batches may end at another offset, or lack a partition."""

    def get_partitions_for_batch(self) -> list[str]:
        names = super().get_partitions_for_batch()
        return names[1:] if len(names) > 1 and self._world.luck(Fault.MOVES, 0.1) else names
