"""What a checkpoint of a topology was written with: the part of `definition.json` that `submit` compares.

differs                                                      then
levels: placed bolts, their order, tasks, windows, states    refused: places and stored windows depend on them
what a bolt with windows or a state reads, by which grouping refused
a field of that which is gone or of another type             refused
the spouts, their streams and their order                    refused: a checkpoint knows its sources by position
which of them take acks                                      refused: tuples in windows know their roots, or do not
partitions                                                   refused
a new field, fused bolts, lag, late stream, on_error, ...    taken over
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from windowing.execution.compatibility import as_json, bolt_definition, bolt_differences, same
from windowing.spark.context import ExecutionContext
from windowing.topology.plan import Component

__all__ = [
    "described",
    "differences",
    "is_whole",
]


Definition = dict[str, Any]
_PARTS = ("spouts", "partitions", "levels", "free")


def described(wiring: ExecutionContext, partitions: int, acking: Collection[tuple[str, str]] = ()) -> Definition:
    """Return what has to stay, and under "free" what need not, as plain JSON data. `acking`: names of the streams of spouts that
    take acks.
    """
    topology = wiring.stages.topology

    def acked(spout: str) -> list[Any]:
        """What a checkpoint without acks does not have: those who wait for them, and when they are acked."""
        mine = [stream for component, stream in acking if component == spout]
        return [[*mine, "when done" if wiring.acks else "at once"]] if mine else []

    return {
        "name": topology.name,
        "partitions": partitions,
        "spouts": [[spout.id, list(spout.own_outputs), *acked(spout.id)] for spout in topology.spouts],
        "levels": [
            [[name, _fixed(wiring, topology.components[name])] for name in level] for level in wiring.stages.levels[1:]
        ],
        "free": {name: bolt.definition()["free"] for name, bolt in wiring.windows.items()},
    }


def is_whole(stored: Any) -> bool:
    """Return whether what was read back has all its parts."""
    return isinstance(stored, dict) and all(part in stored for part in _PARTS)


def differences(stored: Definition, wanted: Definition) -> Iterator[str]:
    """Yield, as sentences, what keeps a topology from going on with the state of another."""
    for part, told in (("spouts", "the spouts with their streams"), ("partitions", "partitions")):
        if not same(stored[part], wanted[part]):
            yield f"{told} were {as_json(stored[part])}, now {as_json(wanted[part])}"
    old, new = ([[name for name, _ in level] for level in each["levels"]] for each in (stored, wanted))
    if old != new:
        yield f"the bolts behind exchanges were, level by level, {as_json(old)}, now {as_json(new)}"
        return
    for before, after in zip(stored["levels"], wanted["levels"], strict=True):
        for (name, was), (_, is_now) in zip(before, after, strict=True):
            yield from bolt_differences(name, was, is_now)


def _fixed(wiring: ExecutionContext, component: Component) -> Definition:
    window = wiring.windows.get(component.id)
    fixed = None if window is None else window.definition()["fixed"]
    return bolt_definition(wiring.stages.topology, component, fixed, window is not None or component.stateful)
