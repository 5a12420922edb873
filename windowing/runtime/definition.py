"""The definition of what a store of states holds: a record beside the states, compared before a cluster opens any of them.

    start    record "definition"    record "checkpoint"     then
             none                   none                    the store is new
             ...                    nothing was committed   the store is as good as new
             there                  something was           compared (topology/kept.py); a readable difference is taken over
             none                   something was           refused: what the states are of cannot be known

Law: what is refused is refused before anything is written; a definition is durable before the first state is prepared.
"""

from __future__ import annotations

from windowing.errors import CheckpointError, CorruptStateError, DefinitionChangedError, shown
from windowing.runtime.checkpoints import RECORD
from windowing.topology.kept import is_whole, same, states_definition, states_differences
from windowing.topology.plan import Topology
from windowing.transactions.checkpoint import CheckPointState
from windowing.transactions.state import NEVER, StateProvider

__all__ = ["DEFINITION", "compare_definition", "keep_definition"]

DEFINITION = "definition"
"""The name of the durable record."""


def compare_definition(topology: Topology, states: StateProvider) -> None:
    """Raise DefinitionChangedError if the stored states are not those of this topology (what differs, and the way out),
    CorruptStateError or CheckpointError if their definition is damaged or missing. Nothing is written.
    """
    if CheckPointState.of(states.record(RECORD)).txid == NEVER:
        return
    stored = states.record(DEFINITION)
    if stored is None:
        raise CheckpointError(
            f"the stored states of topology {topology.name!r} have checkpoints but no definition of what they are of; restore all "
            "of the store from one copy, or begin with new states; nothing was reset"
        )
    if not is_whole(stored):
        raise CorruptStateError(
            f"the definition of the stored states of topology {topology.name!r} is {shown(stored)}, which this version cannot "
            "read; restore the store from a copy, or use the version that wrote it; nothing was reset"
        )
    difference = next(states_differences(stored, states_definition(topology)), None)
    if difference is not None:
        raise DefinitionChangedError(
            f"the stored states of topology {topology.name!r}: {difference}; restore the old definition, or begin with new states "
            "(another state_path=, say); nothing was reset"
        )


def keep_definition(topology: Topology, states: StateProvider) -> None:
    """Store the definition of a topology that may go on with the states, unless it is there."""
    wanted = states_definition(topology)
    if not same(states.record(DEFINITION), wanted):
        states.save_record(DEFINITION, wanted)
