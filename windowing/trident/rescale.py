"""Rescaling of a Trident topology: the rows of states, and keyed windows, move to the new partitions of their keys.

    state counts of `before`, 2 partitions                 state of the same step of `after`, 3 partitions, another name or store
      0: JFK 41:7, LGA 40:2   --partition of the key-->      0: LGA 1:2
      1: EWR 41:1             --------------------->         1: JFK 1:7
      ledger 41:0                                            2: EWR 1:1
                                                             ledger 1:0

Everything committed so far becomes txid 1 of the new life. Rows are copied; the old life is not changed and can continue.

Laws
- A key moves to the partition in which the next batch looks for it. The same function is first checked on the old partitions: a key
  that is in another partition than its fields give is refused. A state whose keys are not those of the exchange
  (`partition_persist`) keeps its number of partitions.
- The ledger of the new state is claimed for the new life before the first row is written, and marks the state as complete after the
  last one. A state that another life has begun is refused; the rows of an unfinished rescale of this life are removed and copied
  again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.schema.types import chosen
from windowing.topology.groupings import Chooser, FieldsGrouping
from windowing.trident.fence import (
    LEDGER,
    NO_TXID,
    BackingMap,
    Claim,
    Fence,
    Life,
    Owner,
    PartitionId,
    Progress,
    StatePlan,
    StateRow,
    changed_meaning,
    owned,
)
from windowing.trident.kinds import FIRST_TXID, StateType, TransactionAttempt
from windowing.trident.operations import Aggregate
from windowing.trident.plan import PartitionNode, TridentPlan
from windowing.trident.state_operations import Persist
from windowing.windows.rescale import TaskOf, require_keyed

KEEP = "keep its number of tasks, or begin anew: a new checkpoint, and another name or store for each state"
_AT_ONCE = 1000
_DONE = TransactionAttempt(FIRST_TXID, 0)
_BEGUN = TransactionAttempt(NO_TXID, 0)


@dataclass(frozen=True)
class StateMove:
    """The move of one state from its old to its new partitions. partition_of: None if the partitions stay the same."""

    old: StatePlan
    new: StatePlan
    partition_of: TaskOf | None

    def perform(self, owner: Owner) -> None:
        """Copy the state, as txid 1 of this owner. Raises ConfigError for a new state that another life has begun, and for a key in
        an unexpected partition; CorruptStateError. Cost: O(rows), with a thousand rows per new partition in memory.
        """
        with ExitStack() as stack:

            def opened(number: int) -> _Filling:
                rows = stack.enter_context(closing(self.new.factory.rows(number, self.new.partitions)))
                return _Filling(rows, self._fence(rows.place, _BEGUN, owner), rows.multi_get([]).fence)

            ledger, into = opened(LEDGER), [opened(number) for number in range(self.new.partitions)]
            self._require_own(ledger, into)
            ledger.claim(ledger.begun)
            has_fences = self.new.factory.kind is not StateType.NON_TRANSACTIONAL
            for each in into:
                if has_fences:
                    each.claim(each.begun)
                each.clear()
            counts = self._copy(into)
            for each, count in zip(into, counts, strict=True):
                if has_fences:
                    each.claim(self._fence(each.rows.place, _DONE, owner, count))
            ledger.claim(self._fence(ledger.rows.place, _DONE, owner))

    def _require_own(self, ledger: _Filling, into: Sequence[_Filling]) -> None:
        found = ledger.fence
        if found is not None and found.owner == ledger.begun.owner:
            return
        if found is not None or any(each.fence is not None or each.rows.count() for each in into):
            raise ConfigError(
                f"{self.new.id} of the new topology, {self.new.called}, is not empty; rescale "
                "copies the states, and leaves the old ones as they are: give the new one another name or store"
            )

    def _copy(self, into: Sequence[_Filling]) -> list[int]:
        """Copy all rows with a value; return the number of rows of each new partition."""
        held: list[dict[bytes, StateRow | None]] = [{} for _ in into]
        counts = [0] * len(into)
        txid = NO_TXID if self.new.factory.kind is StateType.NON_TRANSACTIONAL else FIRST_TXID
        for number in range(self.old.partitions):
            with closing(self.old.factory.rows(number, self.old.partitions)) as rows:
                for key, row in rows.items():
                    if row.value is None:  # a removed key: only the undo of its txid needs the row
                        continue
                    to = number if self.partition_of is None else self._partition(key, number)
                    held[to][key] = StateRow(txid, row.value)
                    counts[to] += 1
                    if len(held[to]) == _AT_ONCE:
                        into[to].put(held[to])
                        held[to] = {}
        for each, left in zip(into, held, strict=True):
            each.put(left)
        return counts

    def _partition(self, key: bytes, number: int) -> int:
        assert self.partition_of is not None
        fields = self.old.factory.codec.decode(key, f"a key of the state {self.old.id}")
        if self.partition_of(fields, self.old.partitions) != number:
            raise ConfigError(
                f"{self.old.id} has {quote(fields)} in partition {number}, where tuples with this key are not sent: it cannot be "
                f"told where the key belongs; {KEEP}"
            )
        return self.partition_of(fields, self.new.partitions)

    def _fence(self, place: PartitionId, attempt: TransactionAttempt, owner: Owner, count: int | None = None) -> Fence:
        return Fence(attempt, self.new.factory.kind, self.new.factory.codec.name, place, owner.id, count)


@dataclass
class _Filling:
    """A new partition while it is filled: its rows, the fence to write, and the stored fence."""

    rows: BackingMap
    begun: Fence
    fence: Fence | None

    def claim(self, fence: Fence) -> None:
        """Write this fence. Raises CorruptStateError if another life has written one."""
        self.put({}, fence)

    def clear(self) -> None:
        rows = self.rows.items()
        while keys := [key for key, _ in islice(rows, _AT_ONCE)]:
            self.put(dict.fromkeys(keys))

    def put(self, rows: Mapping[bytes, StateRow | None], fence: Fence | None = None) -> None:
        """Write rows and a fence, by default the stored one, by which some stores count rows."""
        fence = fence or self.fence
        other = self.rows.multi_put(rows, None if fence is None else Claim(self.fence, fence))
        if other not in (None, fence):
            raise CorruptStateError(
                f"the state {self.rows.place} was written by {quote(getattr(other, 'owner', other))} while it was filled; give the "
                "new topology a state of its own, and call rescale again"
            )
        self.fence = fence


def begun(id: str, plan: TridentPlan) -> tuple[Life, dict[str, Owner]]:
    """Return the life with this id in which a plan writes its states from txid 1 on, and the owner of each state by its id."""
    unread = [state._replace(factory=_Named(str(getattr(state.factory, "name", state.id)))) for state in plan.written]
    return owned(Life(id), unread, Progress.unnumbered("", 0, False), claims=True)


@dataclass(frozen=True)
class _Named:
    """A state for `owned` without stored rows to compare."""

    name: str


# -- Which state goes where ------------------------------------------------------------------------------------------------------


def moves(before: TridentPlan, after: TridentPlan) -> list[StateMove]:
    """Return the moves of the states of `before` to those of `after`. Raises ConfigError that names a state that cannot move."""
    old, new = ({state.id: state for state in plan.written} for plan in (before, after))
    if [*old] != [*new]:
        raise ConfigError(
            f"the old topology writes {', '.join(old) or 'no state'}, the new one {', '.join(new) or 'none'}; rescale "
            "changes numbers of tasks only: give it the same steps"
        )
    return [_move(before, old[id], new[id]) for id in old]


def _move(before: TridentPlan, old: StatePlan, new: StatePlan) -> StateMove:
    for state in (old, new):
        if not callable(getattr(state.factory, "rows", None)):
            raise ConfigError(
                f"{state.id} has a factory of its own, {quote(state.factory)}, whose rows cannot be read: only states of "
                f"map_state, snapshot_state and state_table can be moved; {KEEP}"
            )
    if getattr(old.factory, "identity", old.id) == getattr(new.factory, "identity", new.id):
        raise ConfigError(
            f"{new.id} of the new topology is the state of the old one, {new.called}; rescale copies "
            "the states, and leaves the old ones as they are: give the new one another name or store"
        )
    for what, was, now in (
        ("kind", old.factory.kind.value, new.factory.kind.value),
        ("codec", old.factory.codec.name, new.factory.codec.name),
        *changed_meaning(old.meaning, new.meaning, new.partitions),
    ):
        if was != now:
            raise ConfigError(f"the {what} of {old.id} was {quote(was)}, and is {quote(now)}; keep it as it was")
    return StateMove(
        old, new, None if old.partitions == new.partitions else _by_key(before, old.id, old.partitions, new.partitions)
    )


def _by_key(plan: TridentPlan, id: str, partitions: int, now: int) -> TaskOf:
    """Return the function from keys to partitions, derived from the steps that write a state."""
    for number, node in plan.graph.nodes.items():
        if not isinstance(node.operation, Persist) or node.operation.state != id:
            continue
        found = _sent_by(plan, number, node.operation.group)
        if found is None:
            raise ConfigError(
                f"{node.called} has {partitions} partitions, and {now} in the new topology, but does not keep its state by the "
                f"fields that its tuples are sent by, as group_by(...).persistent_aggregate(...) does; {KEEP}"
            )
        return found
    raise AssertionError(f"nobody writes {id}")


def _sent_by(plan: TridentPlan, number: int, key: Sequence[str] | None) -> TaskOf | None:
    """Return the function from keys of these fields to tasks, None if the fields do not determine the task."""
    source = plan.graph.nodes[plan.graph.in_edges[number][0].source]
    while isinstance(source.operation, Aggregate):  # steps of the same group leave the fields of the key unchanged
        source = plan.graph.nodes[plan.graph.in_edges[source.number][0].source]
    if not key or not isinstance(source, PartitionNode) or type(source.grouping) is not FieldsGrouping:
        return None
    fields = source.grouping.fields
    if not {*fields} <= {*key}:
        return None
    schema, choosers = chosen(source.schema, tuple(key)), dict[int, Chooser]()

    def partition(values: Any, partitions: int) -> int:
        choose = choosers.get(partitions)
        if choose is None:
            choose = choosers[partitions] = FieldsGrouping(fields).targets(partitions, schema)
        (found,) = choose(values, [])
        return int(found)

    return partition


# -- Windows -----------------------------------------------------------------------------------------------------------------------


def keys_of_window(plan: TridentPlan, number: int) -> tuple[tuple[str, ...], TaskOf]:
    """Return the fields of the key of a window, and the function from its keys to tasks.

    Raises ConfigError if its windows belong to a task: they have no key, or its fields do not tell the task.
    """
    node = plan.processor(number)
    config = node.operation.bolt(node).config  # type: ignore[attr-defined]
    sent = _sent_by(plan, number, config.key)
    if sent is None:
        raise ConfigError(
            f"the windows of {node.called} belong to a task: its tuples are not sent by the fields of a key, as those of "
            f"group_by(...).window(...) are; {KEEP}"
        )
    require_keyed(config.key, config.eviction is not None or config.trigger is not None, node.called, KEEP)
    single = len(config.key) == 1
    return config.key, lambda key, tasks: sent((key,) if single else key, tasks)
