"""A state machine test of one map state: batches, attempts, crashes between store operations, delayed attempts; and the model.

    txid 3    3:0 commits at partition 0, crashes at 1     3:1 commits at both     committed: 3:1 counts, and nothing else
              3:0 may be delayed and commit at any later time

The model is the state of a run without failures: for each key the sum of what the last attempts of all committed batches added.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from windowing.errors import BatchChangedError, StateConflictError, SupersededError
from windowing.stores import Store, map_state
from windowing.trident.fence import BackingMap, Claim, Fence, Owner, PartitionId, Reading, StateRow, counted
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.maps import CachedMap
from windowing.trident.states import MapState

KEYS = [("a",), ("b",), ("c", 1), (True,)]
PARTITIONS = 2


class Crash(Exception):
    """The process died."""


@dataclass
class Fault:
    """Raise `Crash` at the n-th store operation, before or after the operation."""

    at: int
    after: bool

    def step(self, happened: bool) -> None:
        if self.at == 0 and happened == self.after:
            raise Crash
        if happened:
            self.at -= 1


class Faulty:
    """A backing map that crashes at its fault, and counts operations."""

    def __init__(self, backing: BackingMap, fault: Fault | None = None) -> None:
        self.backing = backing
        self.place = backing.place
        self.fault = fault
        self.gets = self.puts = 0

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        self.gets += 1
        return self._do(lambda: self.backing.multi_get(keys, undo))

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        self.puts += 1
        return self._do(lambda: self.backing.multi_put(rows, claim))

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        return self.backing.items()

    def count(self) -> int:
        return self.backing.count()

    def close(self) -> None:
        self.backing.close()

    def _do(self, operation: Callable[[], Any]) -> Any:
        if self.fault is None:
            return operation()
        self.fault.step(happened=False)
        result = operation()
        self.fault.step(happened=True)
        return result


class FaultyStore:
    """A store whose maps share one fault, set by the test."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fault: Fault | None = None
        self.opened: list[Faulty] = []

    def open(self, place: PartitionId) -> Faulty:
        opened = Faulty(self.store.open(place), self.fault)
        self.opened.append(opened)
        return opened

    def close(self) -> None:
        for opened in self.opened:
            opened.close()


class Add:
    """The updater of the tests: adds a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.number


Batch = list[list[tuple[int, int]]]
"""The additions for each partition: (index of the key, number)."""


def batch_of(number: int) -> Batch:
    """Return the batch of a seed: 0 gives an empty batch; the parts of other batches may be empty too."""
    chance = random.Random(number)
    size = min(number, 5)
    return [
        [(chance.randrange(len(KEYS)), chance.randint(1, 100)) for _ in range(chance.randint(0, size))]
        for _ in range(PARTITIONS)
    ]


batches: st.SearchStrategy[Batch] = st.integers(0, 10_000).map(
    batch_of
)  # one draw: lists of tuples take a second per example
faults = st.none() | st.builds(Fault, at=st.integers(0, 2), after=st.booleans())


def update(state: MapState, attempt: TransactionAttempt, part: list[tuple[int, int]]) -> list[int]:
    """Begin an attempt and update in two calls, so that the second call reads the results of the first."""
    state.begin_commit(attempt)
    half = len(part) // 2
    results = []
    for piece in (part[:half], part[half:]):
        results += state.multi_update([KEYS[key] for key, _ in piece], [Add(number) for _, number in piece])
    return results


class StateWorld(RuleBasedStateMachine):
    """The state machine; a subclass defines the store, the kind of state, and whether rows are cached."""

    kind = StateType.OPAQUE
    cache = 0

    def make_store(self) -> Store:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.store = FaultyStore(self.make_store())
        self.factory = map_state(self.store, "counts", self.kind, cache=self.cache).owned_by(Owner("world"))
        self.states = [self.factory.make_state(p, PARTITIONS) for p in range(PARTITIONS)]
        uncached = map_state(self.store, "counts", self.kind)
        self.readers = [uncached.make_state(p, PARTITIONS) for p in range(PARTITIONS)]
        self.model: list[Counter[Any]] = [Counter() for _ in range(PARTITIONS)]
        self.attempt = TransactionAttempt(1, 0)
        self.batch: Batch | None = None
        self.done: set[int] = set()
        self.zombies: list[tuple[TransactionAttempt, MapState, bool]] = []
        self.refused = self.crashes = 0

    # -- rules ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.batch is None)
    @rule(batch=batches)
    def a_batch_comes(self, batch: Batch) -> None:
        self.batch = batch

    @precondition(lambda self: self.batch is not None)
    @rule(partition=st.integers(0, PARTITIONS - 1), fault=faults, fresh=st.booleans(), again=batches)
    def a_partition_commits(self, partition: int, fault: Fault | None, fresh: bool, again: Batch) -> None:
        """Commit a partition, also repeatedly, or up to a crash, or in another process, which makes the cache of this one stale."""
        assert self.batch is not None
        self.store.fault = fault
        state = self.factory.make_state(partition, PARTITIONS) if fresh or fault else self.states[partition]
        self.store.fault = None
        part = self.batch[partition]
        try:
            results = update(state, self.attempt, part)
            state.commit(self.attempt)
        except Crash:
            self.crashes += 1
            self.fails(again)
            return
        except StateConflictError:
            assert self.cache, "nobody writes between a read and a write here, but a cache may be behind"
            self.fails(again)
            return
        if partition not in self.done:
            expected = self.after(partition)
            assert {KEYS[key]: value for (key, _), value in zip(part, results, strict=True)} == {
                KEYS[key]: expected[KEYS[key]] for key, _ in part
            }
        self.done.add(partition)

    @precondition(lambda self: self.batch is not None)
    @rule(partition=st.integers(0, PARTITIONS - 1), again=batches)
    def an_attempt_is_delayed_before_it_writes(self, partition: int, again: Batch) -> None:
        assert self.batch is not None
        state = self.factory.make_state(partition, PARTITIONS)
        update(state, self.attempt, self.batch[partition])
        self.zombies.append((self.attempt, state, partition in self.done))
        self.fails(again)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def a_delayed_attempt_commits(self, data: st.DataObject) -> None:
        attempt, state, is_twin = self.zombies.pop(data.draw(st.integers(0, len(self.zombies) - 1), "which"))
        assert attempt < self.attempt
        try:
            state.commit(attempt)
        except (SupersededError, StateConflictError):
            self.refused += 1
        else:
            assert is_twin or attempt.txid == self.attempt.txid, "it was not refused, though it had something to write"

    @precondition(lambda self: len(self.done) == PARTITIONS)
    @rule()
    def the_batch_is_committed(self) -> None:
        for partition in range(PARTITIONS):
            self.model[partition] = self.after(partition)
        self.attempt, self.batch, self.done = TransactionAttempt(self.attempt.txid + 1, 0), None, set()

    @precondition(lambda self: self.batch is not None and self.done)
    @rule(again=batches)
    def the_batch_fails_elsewhere(self, again: Batch) -> None:
        self.fails(again)

    @precondition(lambda self: self.kind is StateType.TRANSACTIONAL and self.done)
    @rule(data=st.data())
    def a_transactional_batch_that_changed_is_refused(self, data: st.DataObject) -> None:
        assert self.batch is not None
        partition = data.draw(st.sampled_from(sorted(self.done)))
        strange = set(range(len(KEYS))) - {key for key, _ in self.batch[partition]}
        state = self.factory.make_state(partition, PARTITIONS)
        for key in strange:
            try:
                update(state, self.attempt, [(key, 1)])
            except BatchChangedError:
                continue
            raise AssertionError("a batch with another key was taken for the same")

    def fails(self, again: Batch) -> None:
        """Begin the next attempt: with the same tuples if the spout is transactional, with any tuples if it is opaque."""
        self.attempt, self.done = self.attempt.next(), set()
        if self.kind is StateType.OPAQUE:
            self.batch = again

    def after(self, partition: int) -> Counter[Any]:
        assert self.batch is not None
        added = Counter(self.model[partition])
        for key, number in self.batch[partition]:
            added[KEYS[key]] += number
        return added

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def values_as_of_the_last_committed_txid_match_the_model(self) -> None:
        for reader, model in zip(self.readers, self.model, strict=True):
            values = reader.multi_get(KEYS, as_of=self.attempt.txid - 1)
            assert [value or 0 for value in values] == [model[key] for key in KEYS]
            assert dict(reader.items(as_of=self.attempt.txid - 1)) == dict(model)

    @invariant()
    def between_batches_the_state_matches_the_model(self) -> None:
        if self.batch is None:
            for reader, model in zip(self.readers, self.model, strict=True):
                assert dict(reader.items()) == dict(model)

    @invariant()
    def a_fence_has_the_owner_and_the_number_of_rows(self) -> None:
        for reader in self.readers:
            fence, rows = counted(reader.backing)
            assert fence is None or (fence.owner, fence.rows) == ("world", rows)

    @invariant()
    def caches_are_consistent(self) -> None:
        for state in self.states:
            backing = state.backing
            if isinstance(backing, CachedMap):
                backing.check()

    def teardown(self) -> None:
        self.store.close()
