"""The definition of the windows that are kept: compared with the topology's before any of them is restored.

    no batch was begun: stored    the same: goes on    another, or none: refused, nothing is changed

States compare their own partitions, and spouts go by the names of their streams.
"""

from __future__ import annotations

from typing import Any

from windowing.errors import DefinitionChangedError, shown
from windowing.topology.trident.graph import ProcessorNode
from windowing.topology.trident.operations import Operation
from windowing.topology.trident.plan import TridentPlan
from windowing.topology.trident.windowed import Window
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["keep_definition", "windows_of"]

_NAME = "definition"


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
