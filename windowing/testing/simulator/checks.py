"""Invariants of a run, checked when they could break and not only at the end; and the stores of a run.

    | I1 | an acked row of a source is in a state        | at each ack of a single tuple: a committed batch has it            |
    | I2 | states equal those of a run without faults    | at each write, as of the last committed txid; at each commit; last |
    | I3 | a tree is acked or failed once, and acked last | at each effect of the acker, against the edges that are open       |
    | I4 | txids are committed in order, each once        | at each save of the coordinator: its `current` is the commit log   |
    | I5 | a superseded attempt writes nothing            | at each write: it is of the current txid, and newer than the last  |
    | I6 | a reader sees a txid whole or not at all       | with I2: values as of the last committed txid never change         |
    | I7 | after the faults stop, all batches finish      | at the end, after `BOUND_MS` of virtual time                       |
    | I8 | no row is dropped and no damage missed silently | skipped rows are all in the dead letters; damage is found         |
    | I9 | a transactional replay has the same rows       | at each emission, until the batch is done                          |
    | I10| a sink gets each committed batch, whole        | at each save, from the rows that this master has handed to it      |

The run without faults is computed as a fold over the rows that the spouts emitted for each committed attempt. From commit to commit
these rows must be each partition's rows in order, without a gap, each once.

The stores are the library's memory stores with steps at which a task may die, late writes, lost answers and damage. The checks read
the store below these faults.

    task --write--> | step | the store, and the check of the write | step | --> task
                       |
                       +-- the task is suspended, and the same write is performed later
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from windowing.local.trident_tasks import DeadBatch
from windowing.schema.types import Row
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryMap, MemoryStore
from windowing.testing.simulator.scenario import STATE, Scenario, SourceRow, key_of
from windowing.topology.groupings import Chooser
from windowing.trident.coordinator import CoordinatorRecord
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import SpoutKind, StateType, TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.transactional_state import MemoryRecordStore, TransactionalState

if TYPE_CHECKING:
    from windowing.testing.simulator.world import World

BOUND_MS = 1_500_000
"""Virtual time within which all batches must finish after faults have stopped."""
_RECORD, _LIFE = "simulated/master/coordinator", "simulated/master/life"


class Violation(AssertionError):
    """An invariant is violated; the text begins with its number."""


@dataclass
class _CheckedTree:
    open: set[int]
    failed: bool = False
    ended: bool = False


@dataclass
class _Emission:
    """The rows that all spout tasks emitted for one attempt."""

    rows: list[SourceRow] = field(default_factory=list)
    tasks: set[str] = field(default_factory=set)
    skipped: bool = False


class Checks:
    """The history of a run, as far as the invariants need it."""

    def __init__(self, scenario: Scenario, plan: TridentPlan, states: MemoryStore) -> None:
        self._scenario = scenario
        self.record = CoordinatorRecord()
        self.dead: dict[int, list[SourceRow]] = {}
        self._released: dict[tuple[int, TransactionAttempt], list[SourceRow]] = {}
        self._handed: dict[tuple[int, int], list[Row]] = {}
        self.committed_rows = set[SourceRow]()
        self._model = Counter[int]()
        self._ends = dict.fromkeys(range(scenario.partitions), 0)
        self._emissions: dict[TransactionAttempt, _Emission] = {}
        self._first: dict[tuple[int, str], list[SourceRow]] = {}
        self._trees: dict[int, _CheckedTree] = {}
        self._highest: dict[int, TransactionAttempt] = {}
        factory = map_state(states, STATE, scenario.state)
        count = scenario.states
        self._states = [factory.make_state(number, count) for number in range(count)]
        self._places = [states.open(PartitionId(STATE, number, count)) for number in range(count)]
        homes = [_home_of(plan, key_of(key)) for key in range(scenario.keys)]
        self._keys = [[key for key, home in enumerate(homes) if home == number] for number in range(count)]
        self._exact = scenario.state is not StateType.NON_TRANSACTIONAL

    # -- trees ---------------------------------------------------------------------------------------------------------

    def grew(self, root: int, edge: int) -> None:
        """An edge of the tree was sent, the first or a further one."""
        self._trees.setdefault(root, _CheckedTree(set())).open.add(edge)

    def settled(self, root: int, edge: int, is_failed: bool) -> None:
        """A task has acked or failed a tuple."""
        tree = self._trees[root]
        if edge not in tree.open:
            raise Violation(f"I3: edge {edge:x} of {root:x} was settled twice")
        tree.open.discard(edge)
        tree.failed = tree.failed or is_failed

    def ended(self, root: int, is_acked: bool) -> None:
        """The acker has acked or failed a tree."""
        tree = self._trees.setdefault(root, _CheckedTree(set()))
        if tree.ended:
            raise Violation(f"I3: tree {root:x} ended twice")
        if is_acked and (tree.open or tree.failed):
            raise Violation(f"I3: tree {root:x} was acked, but {len(tree.open)} edges are open, failed: {tree.failed}")
        tree.ended = True

    # -- batches -------------------------------------------------------------------------------------------------------

    def emitted(self, attempt: TransactionAttempt, task: str, rows: list[SourceRow], skipped: bool) -> None:
        """A spout task has emitted its whole part of an attempt."""
        emission = self._emissions.setdefault(attempt, _Emission())
        if task in emission.tasks:
            raise Violation(f"I9: {task} emitted {attempt} twice")
        emission.tasks.add(task)
        emission.rows += rows
        emission.skipped = skipped
        # An emitter that was suspended in its first write may write when the batch is done and its records are deleted.
        if self._scenario.spout is SpoutKind.TRANSACTIONAL and attempt.txid >= self.record.current:
            first = self._first.setdefault((attempt.txid, task), rows)
            if first != rows:
                raise Violation(f"I9: {task} emitted {rows} in {attempt}, {first} in an attempt before")

    def released(self, life: int, attempt: TransactionAttempt, dead: list[DeadBatch]) -> None:
        """A life of the master has released the dead letters that were held until the commit of an attempt."""
        self._released[life, attempt] = [SourceRow(*row) for batch in dead for row in batch.rows]

    def handed(self, life: int, txid: int, rows: list[Row]) -> None:
        """A life of the master has passed the rows of a batch to the sink."""
        self._handed[life, txid] = rows

    def saved(self, life: int, record: CoordinatorRecord) -> None:
        """The record of a life of the master is durable."""
        before, self.record = self.record, record
        if record.current not in (before.current, before.current + 1):
            raise Violation(f"I4: the record went from txid {before.current} to {record.current}")
        for txid in before.tries.keys() & record.tries.keys():
            if record.tries[txid].attempt < before.tries[txid].attempt:
                raise Violation(f"I4: attempts of txid {txid} went back to {record.tries[txid].attempt}")
        if record.current > before.current:
            self._done(life, TransactionAttempt(before.current, before.tries[before.current].attempt))

    def _done(self, life: int, attempt: TransactionAttempt) -> None:
        emission = self._emissions.get(attempt, _Emission())
        if len(emission.tasks) < self._scenario.spouts:
            raise Violation(f"I4: {attempt} is done, but not all of its spouts have emitted it")
        for row in sorted(emission.rows):
            self._check_next(attempt, row)
            if not emission.skipped:
                self.committed_rows.add(row)
                self._model[row.key(self._scenario.keys)] += row.weight
        self._check_given(life, attempt, emission)
        for number, place in enumerate(self._places):
            fence = place.multi_get([]).fence
            if self._exact and (fence is None or fence.attempt != attempt):
                found = "nothing" if fence is None else fence.attempt
                raise Violation(f"I4: {attempt} is done, but the state {number} has committed {found} last")
            self._compare(number, attempt.txid)

    def _check_next(self, attempt: TransactionAttempt, row: SourceRow) -> None:
        if self._scenario.spout is SpoutKind.NON_TRANSACTIONAL:
            return
        if row.place != self._ends[row.partition]:
            raise Violation(f"I2: {attempt} is done with {row}, where {self._ends[row.partition]} comes next")
        self._ends[row.partition] += 1

    def _check_given(self, life: int, attempt: TransactionAttempt, emission: _Emission) -> None:
        """Check the dead letters and sink rows that this life of the master released before it recorded the batch as done."""
        rows = sorted(map(tuple, emission.rows))
        dead = self.dead[attempt.txid] = self._released.get((life, attempt), [])
        if sorted(map(tuple, dead)) != (rows if emission.skipped else []):
            raise Violation(f"I8: {attempt} was skipped: {emission.skipped}, but its dead letters are {dead}")
        handed = sorted(self._handed.get((life, attempt.txid), []))
        if handed != ([] if emission.skipped or not self._scenario.sink else sorted([*rows, *rows])):
            raise Violation(
                f"I10: {attempt} is done, but the sink has {handed}: not each row once from a map, once from a state"
            )

    def row_acked(self, row: SourceRow) -> None:
        """A spout of single tuples was notified that a row is done: its source may delete it."""
        dead = (row for rows in self.dead.values() for row in rows)
        if row not in self.committed_rows and row not in dead:
            raise Violation(f"I1: {row} was acked to its source, but no committed batch has it")

    # -- states --------------------------------------------------------------------------------------------------------

    def wrote(self, place: PartitionId, claim: Claim | None) -> None:
        """Rows were written to a partition of the state."""
        if not self._exact:
            return
        if claim is not None:
            attempt, highest = claim.fence.attempt, self._highest.get(place.partition)
            if highest is not None and attempt <= highest:
                raise Violation(f"I5: {attempt} wrote to the state {place} after {highest}")
            if attempt.txid != self.record.current:
                raise Violation(
                    f"I5: {attempt} wrote to the state {place} while {self.record.current} is to be committed"
                )
            self._highest[place.partition] = attempt
        self._compare(place.partition, self.record.current - 1)

    def _compare(self, number: int, txid: int) -> None:
        keys = self._keys[number]
        found = self._states[number].multi_get([(key_of(key),) for key in keys], txid)
        wanted = [self._model[key] for key in keys]
        right = all((value or 0) >= least for value, least in zip(found, wanted, strict=True))
        if self._exact:
            right = [value or 0 for value in found] == wanted
        if not right:
            raise Violation(f"I2: as of txid {txid} the state {number} has {found}, an undisturbed run {wanted}")

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether all batches are done."""
        return self.record.current > self._scenario.batches

    def finish(self) -> None:
        """Check the end of a run: all batches are done and the states are correct."""
        if not self.is_over:
            raise Violation(
                f"I7: txid {self.record.current} is not done {BOUND_MS} ms after the last fault, or never will be"
            )
        for number in range(self._scenario.states):
            self._compare(number, self.record.current - 1)


def _home_of(plan: TridentPlan, key: str) -> int:
    """Return the partition of the state that holds a key, by the exchange into the state."""
    [state] = plan.states.values()
    [exchange] = plan.into(str(state.group))
    row = (key, *(0 for _ in exchange.schema.names[1:]))
    choose: Chooser = exchange.grouping.targets(state.partitions, exchange.schema)
    [home] = choose(row, exchange.grouping.start(state.partitions))
    return home


# -- The stores of a run ---------------------------------------------------------------------------------------------------------


class Records:
    """The RecordStore of coordinators and spouts. `damaged` holds the original content of damaged records."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.beneath = MemoryRecordStore()
        self.damaged: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        blob: bytes | None = self._world.in_store(partial(self._read, path), is_write=False)
        return blob

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        return bool(self._world.in_store(partial(self._write, dict(changes), dict(expected))))

    def _read(self, path: str) -> bytes | None:
        if path in self.damaged:
            self._world.misreads(path)
        return self.beneath.read(path)

    def paths(self, prefix: str) -> list[str]:
        return sorted(self.beneath.paths(prefix))

    def _write(self, changes: dict[str, bytes | None], expected: dict[str, bytes | None]) -> bool:
        if not self.beneath.write(changes, expected):
            return False
        for path in changes:
            self.damaged.pop(path, None)
        if _RECORD in changes:
            root, name = _RECORD.rsplit("/", 1)
            self._world.checks.saved(
                self._world.writer, CoordinatorRecord.of(TransactionalState(self.beneath, root).read(name))
            )
        return True

    def damage(self, chance: Random) -> str | None:
        """Damage a record: flip a bit, truncate it, or replace it by another record. Return its path, None without records."""
        blobs = self.beneath.blobs
        if set(blobs) <= {_LIFE} or self.damaged:
            return None
        path = chance.choice(sorted(set(blobs) - {_LIFE}))
        was, place = blobs[path], chance.randrange(len(blobs[path]))
        others = [blob for name, blob in sorted(blobs.items()) if name != path]
        flipped = was[:place] + bytes([was[place] ^ 1 << chance.randrange(8)]) + was[place + 1 :]
        self.damaged[path] = was
        blobs[path] = chance.choice([flipped, was[:place], *others[:1]])
        return path

    def repair(self) -> None:
        """Restore the damaged records from a copy, as the error sentence says."""
        self.beneath.blobs.update(self.damaged)
        self.damaged.clear()


class States:
    """The Store of the states."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.beneath = MemoryStore()

    def open(self, place: PartitionId) -> StateRows:
        return StateRows(self._world, self.beneath.open(place))


class StateRows:
    """One partition (BackingMap)."""

    def __init__(self, world: World, beneath: MemoryMap) -> None:
        self._world = world
        self._beneath = beneath
        self.place = beneath.place

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        reading: Reading = self._world.in_store(partial(self._beneath.multi_get, list(keys), undo), is_write=False)
        return reading

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        refused: Fence | None = self._world.in_store(partial(self._put, dict(rows), claim))
        return refused

    def _put(self, rows: dict[bytes, StateRow | None], claim: Claim | None) -> Fence | None:
        refused = self._beneath.multi_put(rows, claim)
        if refused is None:
            self._world.checks.wrote(self.place, claim)
        return refused

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        return self._beneath.items()

    def count(self) -> int:
        return self._beneath.count()

    def close(self) -> None:
        self._beneath.close()
