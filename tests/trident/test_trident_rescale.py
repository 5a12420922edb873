"""States of a Trident topology are copied to another number of partitions: each value to that of its key, after any kill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError, CorruptStateError
from windowing.schema.types import Schema
from windowing.schema.values import stored_key
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.topology.components import InputSpout
from windowing.topology.groupings import FieldsGrouping
from windowing.trident import builtins as b
from windowing.trident.fence import BackingMap, Claim, Fence, PartitionId, Progress, Reading, StateRow, owned
from windowing.trident.kinds import Guarantee, StateType, TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.rescale import StateMove, begun, moves
from windowing.trident.state_operations import StateSpec
from windowing.trident.states import ReplaceUpdater, TypedJson
from windowing.trident.streams import TridentTopology

FIELDS = "shop string, size double, n long"
KEYS = st.tuples(
    st.one_of(st.none(), st.sampled_from(["", "mall", "port", "zoo"]), st.text(max_size=3)),
    st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1e300]), st.floats(allow_nan=False, width=32)),
)
BATCHES = st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 9)), max_size=6), min_size=1, max_size=4)
NUMBERS = st.integers(1, 5)


def spec(factory: Any, partitions: int | None, kind: StateType) -> StateSpec:
    once = kind is not StateType.NON_TRANSACTIONAL
    return StateSpec(factory, partitions, Guarantee.EXACTLY_ONCE if once else Guarantee.AT_LEAST_ONCE)


def plan_of(
    store: Any,
    partitions: int,
    kind: StateType = StateType.OPAQUE,
    name: str = "sums",
    by: tuple[str, ...] = ("shop", "size"),
    fields: str = FIELDS,
    **options: Any,
) -> TridentPlan:
    topology = TridentTopology("sales")
    stream = topology.new_stream("sales", InputSpout(fields))
    state = spec(map_state(store, name, kind, **options), partitions, kind)
    stream.group_by(*by).persistent_aggregate(state, "n", b.Sum(), "total long")
    return topology.build().by_section()


def committed(plan: TridentPlan, life: str, first: int, batches: Sequence[Mapping[Any, Any]]) -> None:
    """Commit batches from this txid on, as a driver with a ledger does, each value in the partition of its key."""
    (state,) = plan.written
    factory = state.factory.owned_by(begun(life, plan)[1][state.id])
    choose = FieldsGrouping(("shop", "size")).targets(state.partitions, Schema.parse(FIELDS))
    for txid, batch in enumerate(batches, first):
        attempt = factory.claim_attempt(txid, state.partitions)
        assert attempt == TransactionAttempt(txid, 0)
        routed = {number: dict[Any, Any]() for number in range(state.partitions)}
        for key, value in batch.items():
            (to,) = choose(key, [])
            routed[to][stored_key(key)] = value
        for number in range(state.partitions):
            with closing(factory.make_state(number, state.partitions)) as rows:
                rows.begin_commit(attempt)
                rows.multi_update([*routed[number]], [ReplaceUpdater(value) for value in routed[number].values()])
                rows.commit(attempt)


def left(batches: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return the values after these batches."""
    held = {stored_key(key): value for batch in batches for key, value in batch.items()}
    return {key: value for key, value in held.items() if value is not None}


def stored(plan: TridentPlan) -> list[dict[Any, Any]]:
    """Return the values of each partition."""
    (state,) = plan.written
    found = []
    for number in range(state.partitions):
        with closing(state.factory.make_state(number, state.partitions)) as rows:
            found.append(dict(rows.items()))
    return found


def check(plan: TridentPlan, life: str, committed: int) -> None:
    """Check the states as a start does whose records are those of this life."""
    kept, _ = begun(life, plan)
    found, _ = owned(kept, plan.written, Progress.unnumbered("test", committed, False), claims=True)
    assert found == kept


def whole(plan: TridentPlan) -> dict[Any, Any]:
    return {key: value for part in stored(plan) for key, value in part.items()}


def perform(move: StateMove, plan: TridentPlan, life: str = "new") -> None:
    move.perform(begun(life, plan)[1][move.new.id])


@given(st.sampled_from(list(StateType)), BATCHES, NUMBERS, NUMBERS, BATCHES)
def test_each_value_moves_to_the_partition_of_its_key_and_later_batches_find_it(
    kind: StateType, batches: Any, old: int, new: int, rest: Any
) -> None:
    store = MemoryStore()
    before, after = plan_of(store, old, kind), plan_of(store, new, kind, "sums_again")
    committed(before, "old", 1, batches)
    was = stored(before)
    (move,) = moves(before, after)
    perform(move, after)
    assert stored(before) == was
    assert whole(after) == left(batches)
    (state,) = after.written
    assert sum(rows for _, _, rows in state.factory.stored(new)) == len(left(batches)), (
        "what was taken out is not copied"
    )
    choose = FieldsGrouping(("shop", "size")).targets(new, Schema.parse(FIELDS))
    for number, part in enumerate(stored(after)):
        assert all(choose(key, []) == (number,) for key in part)
    check(after, "new", 1)
    committed(after, "new", 2, rest)  # the batches until now are txid 1 of the new life
    assert whole(after) == left([*batches, *rest])
    check(after, "new", 1 + len(rest))


# -- interruptions ---------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Like SIGKILL, it is not caught."""


class Dying:
    """A store whose writer dies before or after one of its writes."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.left, self.behind = store, -1, False

    def open(self, place: PartitionId) -> BackingMap:
        return DyingMap(self, self.store.open(place))

    def identity(self, state: str) -> tuple[Any, ...]:
        return self.store.identity(state)


class DyingMap:
    def __init__(self, of: Dying, rows: Any) -> None:
        self.of, self.rows, self.place = of, rows, rows.place

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        return self.rows.multi_get(keys, undo)  # type: ignore[no-any-return]

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        self.of.left -= 1
        if self.of.left == 0 and not self.of.behind:
            raise Killed
        found: Fence | None = self.rows.multi_put(rows, claim)
        if self.of.left == 0:
            raise Killed
        return found

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        return self.rows.items()  # type: ignore[no-any-return]

    def count(self) -> int:
        return int(self.rows.count())

    def close(self) -> None:
        self.rows.close()


@given(st.sampled_from(list(StateType)), BATCHES, NUMBERS, NUMBERS, st.integers(1, 12), st.booleans(), BATCHES)
def test_a_kill_at_any_write_leaves_the_old_state_intact_and_the_copy_is_repeated(
    kind: StateType, batches: Any, old: int, new: int, dies_at: int, behind: bool, more: Any
) -> None:
    dying = Dying(MemoryStore())
    before, after = plan_of(dying, old, kind), plan_of(dying, new, kind, "sums_again")
    committed(before, "old", 1, batches)
    was = stored(before)
    (move,) = moves(before, after)
    dying.left, dying.behind = dies_at, behind
    with suppress(Killed):
        perform(move, after)
    writes, dying.left = dies_at - dying.left, -1
    assert stored(before) == was
    if writes > 1 or behind:
        with pytest.raises(ConfigError, match="is not empty; rescale copies the states"):
            perform(move, after, "another")
    committed(before, "old", 1 + len(batches), more)  # the old topology continues; then the copy is repeated
    perform(move, after)
    assert whole(after) == left([*batches, *more])
    check(after, "new", 1)


def test_an_incomplete_copy_of_a_state_is_refused_by_the_new_topology() -> None:
    dying = Dying(MemoryStore())
    before, after = plan_of(dying, 2), plan_of(dying, 3, name="sums_again")
    committed(before, "old", 1, [{("mall", 1.0): 3, ("port", 2.0): 4}])
    (move,) = moves(before, after)
    for dies_at in range(1, 20):
        dying.left, dying.behind = dies_at, True
        try:
            perform(move, after)
        except Killed:
            dying.left = -1
            (state,) = after.written
            if state.factory.stored(3)[0][1].attempt.txid == 1:
                break
            with pytest.raises(CorruptStateError, match="what was committed there is lost"):
                check(after, "new", 1)
    else:
        raise AssertionError("the last write was not reached")
    check(after, "new", 1)


# -- refusals --------------------------------------------------------------------------------------------------------------------


def test_a_state_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    store = MemoryStore()
    before = plan_of(store, 2)
    with pytest.raises(ConfigError, match=r"is the state of the old one, sums in .*; rescale copies the states"):
        moves(before, plan_of(store, 3))
    with pytest.raises(ConfigError, match="the kind of state1 was 'opaque', and is 'transactional'; keep it"):
        moves(before, plan_of(store, 3, StateType.TRANSACTIONAL, "other"))
    with pytest.raises(ConfigError, match="the key of state1 was 'shop, size', and is 'shop'; keep it"):
        moves(before, plan_of(store, 3, name="other", by=("shop",)))
    single = FIELDS.replace("double", "float")
    with pytest.raises(ConfigError, match="the type of the key of state1 was 'string, double', and is 'string, float'"):
        moves(before, plan_of(store, 3, name="other", fields=single))
    assert moves(before, plan_of(store, 1, name="other", fields=single)), (
        "the keys are the same, and one partition has all"
    )
    with pytest.raises(ConfigError, match="the old topology writes state1, the new one none; rescale changes numbers"):
        moves(before, TridentTopologies.without_states())

    driven = plan_of(store, 3, name="driven")
    with closing(driven.written[0].factory.make_state(2, 3)) as rows:
        rows.begin_commit(TransactionAttempt(1, 0))
        rows.multi_put([("mall", 1.0)], [3])
        rows.commit(TransactionAttempt(1, 0))
    with pytest.raises(ConfigError, match=r"driven in .* is not empty"):
        perform(moves(before, driven)[0], driven)

    class Other(TypedJson):
        name = "other"

    with pytest.raises(ConfigError, match="the codec of state1 was 'json', and is 'other'; keep it"):
        moves(before, plan_of(store, 3, name="other", codec=Other()))

    class Own:
        kind = StateType.OPAQUE

        def make_state(self, partition: int, partitions: int) -> Any:
            raise AssertionError

    with pytest.raises(ConfigError, match=r"state1 has a factory of its own, .*Own.*, whose rows cannot be read"):
        moves(TridentTopologies.persisting(Own(), 2), TridentTopologies.persisting(Own(), 3))


def test_a_state_whose_keys_do_not_determine_their_partition_is_copied_with_the_same_number_of_partitions() -> None:
    store = MemoryStore()
    before, after, more = (
        TridentTopologies.persisting(map_state(store, name), partitions)
        for name, partitions in (("kept", 2), ("kept_again", 2), ("more", 3))
    )
    with pytest.raises(
        ConfigError, match="has 2 partitions, and 3 in the new topology, but does not keep its state by"
    ):
        moves(before, more)
    committed(before, "old", 1, [{("mall", 1.0): 3, ("port", 2.0): 4, ("zoo", 2.0): 5}])
    (move,) = moves(before, after)
    perform(move, after)
    assert stored(after) == stored(before)
    check(after, "new", 1)


def test_a_key_that_is_not_in_the_partition_of_its_fields_is_refused() -> None:
    store = MemoryStore()
    before, after = plan_of(store, 2), plan_of(store, 3, name="sums_again")
    committed(before, "old", 1, [{("mall", 1.0): 3, ("port", 2.0): 4, ("zoo", 2.0): 5}])
    store._partitions["sums", 0], store._partitions["sums", 1] = (
        store._partitions["sums", 1],
        store._partitions["sums", 0],
    )
    (move,) = moves(before, after)
    with pytest.raises(ConfigError, match=r"state1 has .* in partition \d, where tuples with this key are not sent"):
        perform(move, after)


def test_a_state_that_another_life_begins_while_it_is_filled_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    before, after = plan_of(store, 2), plan_of(store, 3, name="sums_again")
    committed(before, "old", 1, [{("mall", 1.0): 3}])
    (move,) = moves(before, after)
    require_own = StateMove._require_own

    def beginning(move: StateMove, ledger: Any, into: Any) -> None:
        require_own(move, ledger, into)
        monkeypatch.undo()
        perform(move, after, "other")

    monkeypatch.setattr(StateMove, "_require_own", beginning)
    with pytest.raises(CorruptStateError, match=r"the state .* was written by 'other.*' while it was filled"):
        perform(move, after)
    check(after, "other", 1)
    assert whole(after) == whole(before)


class TridentTopologies:
    """Other topologies over the same tuples."""

    @staticmethod
    def without_states() -> TridentPlan:
        topology = TridentTopology("sales")
        topology.new_stream("sales", InputSpout(FIELDS)).sink("all")
        return topology.build().by_section()

    @staticmethod
    def persisting(factory: Any, partitions: int) -> TridentPlan:
        topology = TridentTopology("sales")
        stream = topology.new_stream("sales", InputSpout(FIELDS)).partition_by("shop")
        stream.partition_persist(StateSpec(factory, partitions), None, Last())
        return topology.build().by_section()


class Last:
    """Keeps the last number of each shop and size."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        state.multi_put([(row.shop, row.size) for row in tuples], [row.n for row in tuples])
