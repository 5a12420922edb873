"""What a checkpoint of a Trident topology was written with: the part of `definition.json` that `submit_trident` compares.

differs                                                       then
the streams with their sources, and their order               refused: a checkpoint knows its sources by position
the units of the stream: groups, tasks, steps, windows        refused: places and stored windows depend on them
partitions                                                    refused
lag, late stream, on_error, ... of a window ("free")          taken over
everything behind the windows                                 taken over; a state refuses another number of partitions itself
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from windowing.execution.compatibility import as_json, same
from windowing.execution.stages import Section

if TYPE_CHECKING:
    from windowing.execution.trident_stages import TridentStages

__all__ = [
    "described",
    "differences",
    "is_whole",
]


Definition = dict[str, Any]
_PARTS = {"streams": "the streams", "partitions": "the number of partitions", "stream": "what keeps or feeds windows"}


def described(units: TridentStages, partitions: int) -> Definition:
    """Return what has to stay, as plain JSON data."""
    definition = units.plan.definition()["groups"]
    return {
        "name": units.plan.name,
        "partitions": partitions,
        "streams": [[str(spout.source.name), spout.schema.ddl] for spout in units.plan.spouts],
        "stream": [
            [
                unit.group.id,
                unit.group.parallelism,
                [_fixed(node) for node in definition[unit.group.id]["nodes"] if node["node"] in unit.nodes],
            ]
            for unit in units.units
            if unit.section is Section.STREAM
        ],
    }


def is_whole(stored: Any) -> bool:
    """Return whether what was read back has all its parts."""
    return isinstance(stored, dict) and all(part in stored for part in _PARTS)


def differences(stored: Definition, wanted: Definition) -> Iterator[str]:
    """Yield, as sentences, what keeps a topology from going on with the checkpoint of another."""
    for part, what in _PARTS.items():
        if not same(stored[part], wanted[part]):
            yield f"{what} of the Trident topology was {as_json(stored[part])}, now {as_json(wanted[part])}"


def _fixed(node: Definition) -> Definition:
    window = node.get("window")
    kept = {"node": node["node"], "fields": node["fields"]}
    return kept if window is None else {**kept, "window": window["fixed"]}
