"""What the records keep beside the coordinator's: the definition of the windows, and whose the states are.

    windows    no batch was begun: stored    the same: goes on    another, or none: refused, nothing is changed
    states     compared with the records, partition by partition, before the first batch (transactions/ownership.py)

States compare their own kinds and partitions too, and spouts go by the names of their streams.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from windowing.errors import DefinitionChangedError, StateConflictError, SupersededError, shown
from windowing.topology.trident.graph import ProcessorNode
from windowing.topology.trident.operations import Operation
from windowing.topology.trident.plan import TridentPlan
from windowing.topology.trident.windowed import Window
from windowing.transactions.coordinator_record import StoredRecord
from windowing.transactions.kinds import StateType
from windowing.transactions.ownership import Life, Progress, owned
from windowing.transactions.rows import Owner
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["keep_definition", "owners_of", "windows_of"]

_NAME = "definition"
_LIFE = "life"


def owners_of(plan: TridentPlan, state: TransactionalState) -> dict[str, Owner]:
    """Return who writes each state in this life of the topology, which is stored before any batch.

    Raises SupersededError for a state that another life writes, CorruptStateError for one that lacks what the records know.
    """
    if not plan.written:
        return {}
    stored = state.read(_LIFE)
    record = StoredRecord(state).load()
    tries = record.tries.get(record.current)
    progress = Progress.of(f"topology {plan.name!r}", record.current - 1, None if tries is None else tries.attempt)
    life, owners = owned(Life.of(stored, f"{plan.name} {uuid4().hex}"), plan.written, progress, claims=False)
    if life.plain() != stored:
        try:
            state.write({_LIFE: life.plain()})
        except StateConflictError as problem:
            raise SupersededError(
                f"topology {plan.name!r} was started twice at the same time on the records {state.root}; run it once at a time"
            ) from problem
    for written in plan.written:
        if written.factory.kind is StateType.NON_TRANSACTIONAL and callable(getattr(written.factory, "mark", None)):
            written.factory.mark(written.partitions)
    return owners


def windows_of(plan: TridentPlan) -> dict[str, Any]:
    """Return what is kept of a plan's windows, as plain data: by task group and node, with the number of tasks."""
    found = {}
    for group in plan.groups.values():
        for number in group.nodes:
            node = plan.graph.nodes[number]
            operation: Operation | None = node.operation if isinstance(node, ProcessorNode) else None
            if isinstance(node, ProcessorNode) and isinstance(operation, Window):
                definition = operation.bolt(node.inputs[0], node.schema).definition()
                found[f"{group.id}, {node.called}"] = {"tasks": group.parallelism, "window": definition}
    return found


def keep_definition(plan: TridentPlan, state: TransactionalState, begun: bool) -> None:
    """Store the definition of the windows; if batches were begun before, raise DefinitionChangedError unless it is the same."""
    stored, wanted = state.read(_NAME), windows_of(plan)
    if not begun:
        if (stored or {}) != wanted:
            state.write({_NAME: wanted})
        return
    stored = stored or {}
    for name in sorted({*stored, *wanted}):
        if stored.get(name) != wanted.get(name):
            raise DefinitionChangedError(
                f"the windows kept for topology {plan.name!r}: {name} was {shown(stored.get(name))}, is {shown(wanted.get(name))}; "
                "restore the old topology, or begin with new records and new states; nothing was reset"
            )
