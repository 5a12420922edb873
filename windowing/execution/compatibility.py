"""What stored states and windows depend on, as plain JSON data, and which differences a later start can live with.

    a bolt that keeps something                                  then
    its tasks; a state gained or lost; its window ("fixed")      refused: keys, places and windows of tasks depend on them
    what it reads, by which grouping, with which fields          refused: tuples would go to other tasks, or lack what they had
    a new field; lag, late stream, on_error, ... ("free")        taken over
    the bolt is gone, or has another name                        refused
    it is new                                                    taken over: it begins empty

Law: what is different and not refused changes nothing of what is stored. Both runtimes ask here (spark/topology_definition.py for
a checkpoint of Spark, local/cluster.py for a store of states).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from windowing.topology.plan import Component, Topology

__all__ = [
    "as_json",
    "bolt_definition",
    "bolt_differences",
    "is_whole",
    "same",
    "states_definition",
    "states_differences",
]


Definition = dict[str, Any]
_FORMAT = 1


def bolt_definition(topology: Topology, component: Component, window: Definition | None, keeps: bool) -> Definition:
    """Return what has to stay of one bolt. `window`: the fixed part of its windowed bolt's definition; `keeps`: whether something
    is stored, so that it matters what it reads.
    """
    return {
        "tasks": component.parallelism,
        "stateful": component.stateful,
        "window": window,
        "inputs": [
            [f"{found.component}:{found.stream}", found.grouping.definition(), _fields(topology, found)]
            for found in component.inputs
            if keeps
        ],
    }


def bolt_differences(name: str, stored: Definition, wanted: Definition) -> Iterator[str]:
    """Yield, as sentences, what keeps a bolt from going on with what another one stored."""
    for part in ("tasks", "stateful"):
        if stored[part] != wanted[part]:
            yield f"{part} of bolt {name!r} was {as_json(stored[part])}, now {as_json(wanted[part])}"
    old, new = stored["window"] or {}, wanted["window"] or {}
    for part in [*old, *(part for part in new if part not in old)]:
        if not same(old.get(part), new.get(part)):
            yield f"{part} of bolt {name!r} was {as_json(old.get(part))}, now {as_json(new.get(part))}"
    was = {stream: (grouping, fields) for stream, grouping, fields in stored["inputs"]}
    is_now = {stream: (grouping, fields) for stream, grouping, fields in wanted["inputs"]}
    if list(was) != list(is_now):
        yield f"bolt {name!r} read {', '.join(was) or 'nothing'}, now {', '.join(is_now) or 'nothing'}"
        return
    for stream, (grouping, fields) in was.items():
        yield from _input_differences(f"{stream} into bolt {name!r}", (grouping, fields), is_now[stream])


def states_definition(topology: Topology) -> Definition:
    """Return what has to stay of a topology whose states and windows lie in a store of their own."""
    kept = [component for component in topology.components.values() if component.checkpointed]
    return {
        "format": _FORMAT,
        "name": topology.name,
        "bolts": {each.id: bolt_definition(topology, each, _kept_window(topology, each), True) for each in kept},
    }


def is_whole(stored: Any) -> bool:
    """Return whether what was read back is a definition of states, of a format that this version reads."""
    return isinstance(stored, dict) and stored.get("format") == _FORMAT and {"name", "bolts"} <= stored.keys()


def states_differences(stored: Definition, wanted: Definition) -> Iterator[str]:
    """Yield, as sentences, what keeps a topology from going on with the states of another."""
    if stored["name"] != wanted["name"]:
        yield f"they are those of topology {stored['name']!r}"
    for name, was in stored["bolts"].items():
        if name in wanted["bolts"]:
            yield from bolt_differences(name, was, wanted["bolts"][name])
        else:
            yield f"bolt {name!r} has stored states, and now there is none of that name that keeps any"


def same(stored: Any, wanted: Any) -> bool:
    """Return whether two values are the same once they are JSON."""
    return bool(json.loads(json.dumps(stored)) == json.loads(json.dumps(wanted)))


def as_json(value: Any) -> str:
    """Return plain data as it stands in a sentence."""
    return json.dumps(value)


def _kept_window(topology: Topology, component: Component) -> Definition | None:
    """Return what has to stay of a window in a store: in pages lie its tuples, in rows the ids of those that come again, for each
    task that they come from.
    """
    if component.window is None:
        return None
    window, paged = (
        replace(component.window, name=component.id),
        component.window.config.max_events_in_memory is not None,
    )
    sources = {found.component: topology.component(found.component).parallelism for found in component.inputs}
    return {
        **window.definition()["fixed"],
        "message_id": window.config.message_id,
        "kept in": "pages" if paged else "rows",
        "tasks upstream": None if window.config.message_id is None else sources,
    }


def _fields(topology: Topology, found: Any) -> list[list[str]]:
    schema = topology.stream(found).schema
    return [list(field) for field in zip(schema.names, schema.types, strict=True)]


def _input_differences(what: str, stored: tuple[Any, Any], wanted: tuple[Any, Any]) -> Iterator[str]:
    if not same(stored[0], wanted[0]):
        yield f"the grouping of {what} was {as_json(stored[0])}, now {as_json(wanted[0])}"
    types: Mapping[str, str] = dict(wanted[1])
    for name, kind in stored[1]:
        if name not in types:
            yield f"field {name!r} ({kind}) of {what} is gone"
        elif types[name] != kind:
            yield f"field {name!r} of {what} was {kind}, now {types[name]}"
