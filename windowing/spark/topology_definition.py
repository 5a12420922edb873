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

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from windowing.spark.wire import stream_name
from windowing.spark.wiring import Wiring
from windowing.topology.plan import Component

__all__ = ["described", "differences", "is_whole"]

Definition = dict[str, Any]
_PARTS = ("spouts", "partitions", "levels", "free")


def described(wiring: Wiring, partitions: int, acking: Collection[tuple[str, str]] = ()) -> Definition:
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
        "spouts": [[spout.id, list(spout.outputs), *acked(spout.id)] for spout in topology.spouts],
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
        if _plain(stored[part]) != _plain(wanted[part]):
            yield f"{told} were {_said(stored[part])}, now {_said(wanted[part])}"
    old, new = ([[name for name, _ in level] for level in each["levels"]] for each in (stored, wanted))
    if old != new:
        yield f"the bolts behind exchanges were, level by level, {_said(old)}, now {_said(new)}"
        return
    for before, after in zip(stored["levels"], wanted["levels"], strict=True):
        for (name, was), (_, is_now) in zip(before, after, strict=True):
            yield from _bolt_differences(name, was, is_now)


def _fixed(wiring: Wiring, component: Component) -> Definition:
    window = wiring.windows.get(component.id)
    keeps = window is not None or component.stateful
    return {
        "tasks": component.parallelism,
        "stateful": component.stateful,
        "window": None if window is None else window.definition()["fixed"],
        "inputs": [
            [
                stream_name(found.component, found.stream),
                found.grouping.definition(),
                _fields(wiring, found.component, found.stream),
            ]
            for found in component.inputs
            if keeps
        ],
    }


def _fields(wiring: Wiring, component: str, stream: str) -> list[list[str]]:
    schema = wiring.component(component).outputs[stream].schema
    return [list(field) for field in zip(schema.names, schema.types, strict=True)]


def _bolt_differences(name: str, stored: Definition, wanted: Definition) -> Iterator[str]:
    for part in ("tasks", "stateful"):
        if stored[part] != wanted[part]:
            yield f"{part} of bolt {name!r} was {_said(stored[part])}, now {_said(wanted[part])}"
    old, new = stored["window"] or {}, wanted["window"] or {}
    for part in [*old, *(part for part in new if part not in old)]:
        if _plain(old.get(part)) != _plain(new.get(part)):
            yield f"{part} of bolt {name!r} was {_said(old.get(part))}, now {_said(new.get(part))}"
    was = {stream: (grouping, fields) for stream, grouping, fields in stored["inputs"]}
    is_now = {stream: (grouping, fields) for stream, grouping, fields in wanted["inputs"]}
    if list(was) != list(is_now):
        yield f"bolt {name!r} read {', '.join(was) or 'nothing'}, now {', '.join(is_now) or 'nothing'}"
        return
    for stream, (grouping, fields) in was.items():
        yield from _input_differences(f"{stream} into bolt {name!r}", (grouping, fields), is_now[stream])


def _input_differences(what: str, stored: tuple[Any, Any], wanted: tuple[Any, Any]) -> Iterator[str]:
    if _plain(stored[0]) != _plain(wanted[0]):
        yield f"the grouping of {what} was {_said(stored[0])}, now {_said(wanted[0])}"
    types: Mapping[str, str] = dict(wanted[1])
    for name, kind in stored[1]:
        if name not in types:
            yield f"field {name!r} ({kind}) of {what} is gone"
        elif types[name] != kind:
            yield f"field {name!r} of {what} was {kind}, now {types[name]}"


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _said(value: Any) -> str:
    return json.dumps(value)
