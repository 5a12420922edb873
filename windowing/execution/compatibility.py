"""The definitions on which stored windows and states depend, as plain JSON data, and the changes that a later start may make.

A definition is a header and one part, whose name is its kind: a windowed bolt, a topology, a Trident topology (in a checkpoint
of Spark), the stateful bolts of LocalCluster, the windows of TridentCluster (in their records). `KINDS` says for each field of
each kind what a change means; a field without a row there is a bug, which a test finds.

    compared      a change is a DefinitionChangedError: keys, tasks and windows of the stored data depend on the field
    replay        a change is refused while a batch is half done, because it must be repeated exactly; otherwise it is accepted
    rows          a change is refused while a batch is half done and its rows are in a target that keeps those of the first attempt
    not compared  a later start continues with the new value

The columns or fields of an input may grow: a new one is accepted; one that is missing or has another type is refused.

Laws: a change that is not refused alters no stored data. A change is refused before anything is written. Stored data that
is no definition is a CorruptStateError, and is never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from windowing.errors import CheckpointError, CorruptStateError, DefinitionChangedError, quote
from windowing.topology.bolts import FREE, WindowedBolt
from windowing.topology.plan import Component, Subscription, Topology, stream_name

if TYPE_CHECKING:  # comparing windows alone loads nothing of stages
    from windowing.execution.plan import ExecutionPlan

Definition = dict[str, Any]
"""Plain JSON data."""

FORMAT = 1
"""The format of definitions that runtimes in one process store; a checkpoint of Spark has its own (spark/checkpoint.py)."""
MOST_TASKS = 100_000
"""The largest number of tasks or partitions of a shuffle; the driver tries some 16 keys to find one for each. A larger number in a
stored definition is damage.
"""
PACKED_FOR = "spark.sql.leafNodeDefaultParallelism"
"""The setting of Spark for how many partitions files are packed; by default for the number of cores."""
_DEEPEST = 40
_MOST_NAMED = 20
BROKEN = (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError)
"""The exceptions of reading data of another shape."""


def missing_in_logs(planned: Collection[int], done: Collection[int], has_state: Callable[[], bool]) -> Iterator[str]:
    """Yield the files that are missing in Spark's logs of a checkpoint, as `offsets/7`: each of its last two batches was planned,
    and each follows the commit of the previous one. has_state: says whether there is a state, which only a batch writes;
    called only without a batch.

    >>> [*missing_in_logs({6, 7}, {6, 8}, lambda: True), *missing_in_logs({6, 7}, {5}, lambda: True)]
    ['offsets/8', 'commits/6']
    >>> [*missing_in_logs(set(), set(), lambda: True)]
    ['offsets/0']
    """
    last = max({*planned, *done}, default=None)
    if last is None:
        if has_state():
            yield "offsets/0"
        return
    if last not in planned:
        yield f"offsets/{last}"
    elif last > 0 and last - 1 not in planned:
        yield f"offsets/{last - 1}"
    if last > 0 and last not in done and last - 1 not in done:
        yield f"commits/{last - 1}"


def batches_in(log: Any) -> set[int]:
    """Return the batches that one of Spark's logs, a folder, has; `12.compact` is a batch too, temporary files are not."""
    names = [name.removesuffix(".compact") for name in log.names()]
    return {int(name) for name in names if name.isdecimal()}


def read_log(log: Any, batch: int) -> list[Any]:
    """Return the entries that one of Spark's logs has of a batch, parsed; None for a source without an offset. In the offset log
    the first is Spark's own, and one for each source of the query follows. Raises CorruptStateError for a damaged file.
    """
    version, *entries = log.read(str(batch)).split(b"\n")
    try:
        if not entries or not version.startswith(b"v") or not version[1:].strip().isdigit():
            raise ValueError(version)
        return [None if entry in (b"", b"-") else json.loads(entry) for entry in entries]
    except (ValueError, RecursionError) as problem:
        raise CorruptStateError(f"{log.of(str(batch))} is damaged; put the file back from a copy") from problem


# -- Definitions -----------------------------------------------------------------------------------------------------------------


def of_bolt(
    bolt: Mapping[str, Any],
    tasks: int,
    grouping: str | tuple[str, ...],
    order_by: tuple[str, ...],
    inputs: Mapping[str, list[list[Any]]],
) -> Definition:
    """Return the definition of a windowed bolt alone: `bolt` is `WindowedBolt.definition()`, `inputs` the columns by stream."""
    return {
        "bolt": dict(bolt),
        "tasks": tasks,
        "grouping": grouping if isinstance(grouping, str) else list(grouping),
        "order_by": list(order_by),
        "inputs": dict(sorted(inputs.items())),
    }


def of_topology(
    topology: Topology,
    plan: ExecutionPlan,
    windows: Mapping[str, WindowedBolt],
    partitions: int,
    acking: Collection[tuple[str, str]] = (),
    when_done: bool = False,
) -> Definition:
    """Return the definition of a topology; fused bolts are not part of it.

    windows: the windowed bolts by component. acking: the streams of spouts with acks, as (component, stream); when_done: they are
    acked when their batch is complete, else at once.
    """

    def acked(spout: str) -> list[Any]:
        """Return the entry of a spout with acks, which other checkpoints do not have: its streams, and when they are acked."""
        mine = [stream for component, stream in acking if component == spout]
        return [[*mine, "when done" if when_done else "at once"]] if mine else []

    def entry_of(component: Component) -> Definition:
        window = windows.get(component.id)
        fixed = None if window is None else window.definition()["fixed"]
        return _component(topology, component, fixed, window is not None or component.stateful)

    return {
        "topology": {
            "name": topology.name,
            "partitions": partitions,
            "spouts": [[spout.id, list(spout.declaration.outputs), *acked(spout.id)] for spout in topology.spouts],
            "levels": [
                [
                    [task.component, entry_of(topology.components[task.component])]
                    for task in plan.tasks_at(depth)
                    if not task.task
                ]
                for depth in sorted({stage.depth for stage in plan.stages.values()} - {0})
            ],
            "free": {name: bolt.definition()["free"] for name, bolt in windows.items()},
        }
    }


def of_states(topology: Topology) -> Definition:
    """Return the definition of a topology whose states and windows are in a store."""
    kept = [component for component in topology.components.values() if component.checkpointed]
    return {
        "format": FORMAT,
        "name": topology.name,
        "bolts": {each.id: _component(topology, each, _stored_window(topology, each), True) for each in kept},
    }


def _component(topology: Topology, component: Component, window: Definition | None, keeps: bool) -> Definition:
    """Return the part of a bolt that must not change. `window`: the fixed part of its windowed bolt's definition; `keeps`: whether
    it has stored data, so that its inputs matter.
    """
    return {
        "tasks": component.parallelism,
        "stateful": component.stateful,
        "window": window,
        "inputs": [
            [stream_name(found.component, found.stream), found.grouping.definition(), _fields(topology, found)]
            for found in component.inputs
            if keeps
        ],
    }


def _stored_window(topology: Topology, component: Component) -> Definition | None:
    """Return the part of a stored window that must not change: pages contain its tuples, rows the ids of tuples that are sent
    again, for each upstream task.
    """
    if component.window is None:
        return None
    config = component.window.config
    sources = {found.component: topology.component(found.component).parallelism for found in component.inputs}
    return {
        **component.window.definition()["fixed"],
        "message_id": config.message_id,
        "kept in": "rows" if config.max_events_in_memory is None else "pages",
        "tasks upstream": None if config.message_id is None else sources,
    }


def _fields(topology: Topology, found: Subscription) -> list[list[str]]:
    return [list(field) for field in topology.stream(found).schema.kinds.items()]


# -- Differences -----------------------------------------------------------------------------------------------------------------


Compared = Callable[[Any, Any], Iterator[str]]
"""Yields the differences between a stored and a wanted value, as sentences."""


class FieldRule(NamedTuple):
    """One field of a definition; `field` is its path, with dots.

    compared: None if every change is accepted. replay: for a field on which only a half-done batch depends; returns whether it does
    for the wanted definition.
    """

    field: str
    compared: Compared | None = None
    replay: Callable[[Definition], bool] | None = None


class Kind(NamedTuple):
    """One kind of definition. `writer`: what wrote it, for sentences; `rows`: what the rows of a half-done batch depend on."""

    writer: str
    rules: tuple[FieldRule, ...]
    rows: tuple[FieldRule, ...] = ()


def differences(stored: Definition, wanted: Definition, replay: bool = False) -> Iterator[str]:
    """Yield the refused differences, as sentences and in the order of the table; with `replay` those that are refused while a batch
    is half done. Cost: O(both).
    """
    kind = _kind(wanted)
    if _kind(stored) != kind:
        yield f"it was written by {KINDS[_kind(stored)].writer}, not by {KINDS[kind].writer}"
        return
    for rule in KINDS[kind].rules:
        applies = not replay if rule.replay is None else replay and rule.replay(wanted)
        if applies and rule.compared is not None:
            yield from rule.compared(_at(stored, rule.field), _at(wanted, rule.field))


def _differences_of_rows(stored: Definition, wanted: Definition) -> Iterator[str]:
    for rule in KINDS[_kind(wanted)].rows:
        if rule.compared is not None:  # an older version has fewer fields
            yield from rule.compared(_at(stored, rule.field, {}), _at(wanted, rule.field, {}))


def same_json(stored: Any, wanted: Any) -> bool:
    """Return whether two values are equal as JSON."""
    return bool(json.loads(json.dumps(stored)) == json.loads(json.dumps(wanted)))


def _kind(definition: Definition) -> str:
    found = next((kind for kind in KINDS if kind in definition), None)
    if found is None:
        raise ValueError(f"none of {', '.join(KINDS)}")
    return found


def _at(definition: Definition, path: str, *default: Any) -> Any:
    found: Any = definition
    for name in path.split("."):
        found = found.get(name, *default) if default else found[name]
    return found


def _differ(wording: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the difference between two plain values; `wording` is the beginning of its sentence."""
    if not same_json(old, new):
        yield f"{wording} {json.dumps(old)}, now {json.dumps(new)}"


def _number(wording: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the difference between two numbers of tasks or partitions of a checkpoint on Spark, and how to get the wanted one."""
    yield from (f"{found} (`windowing rescale` makes a checkpoint with {new})" for found in _differ(wording, old, new))


def _parts(of: str, old: Definition, new: Definition) -> Iterator[str]:
    for part in [*old, *(part for part in new if part not in old)]:
        yield from _differ(f"{part} of {of} was", old.get(part), new.get(part))


def _bolt(old: Any, new: Any) -> Iterator[str]:
    yield from _window(f"bolt {quote(old.get('name'))}", old, new)


def _window(of: str, old: Definition, new: Definition) -> Iterator[str]:
    """Yield the differences between two windowed bolts. Their output may change, as that of other bolts: it is not stored with
    the windows. The bolts that store it compare their input, and sinks what they have written.
    """
    yield from _parts(of, *({part: value for part, value in each.items() if part != "outputs"} for each in (old, new)))


def _message_id(of: str, old: Definition, new: Definition) -> Iterator[str]:
    """Yield the difference between two fields of message ids: the remembered ids are those of the old one. The option may come, or
    go.
    """
    was, is_now = old.get("message_id"), new.get("message_id")
    if was is not None and is_now is not None:
        yield from _differ(f"message_id{of} was", was, is_now)


def _other_rows(of: str, old: Definition, new: Definition) -> Iterator[str]:
    for option, decides_rows in FREE.items():
        if decides_rows and option in old:  # an older version has fewer options
            yield from _differ(f"{option}{of} was", old[option], new.get(option))


def _of_bolts(compared: Callable[[str, Any, Any], Iterator[str]], old: Any, new: Any) -> Iterator[str]:
    for name in old:
        yield from compared(f" of bolt {name!r}", old[name], new.get(name, {}))


def _other_rows_of_windows(old: Any, new: Any) -> Iterator[str]:
    for name in old:
        yield from _other_rows(f" of {name}", old[name]["window"]["free"], new[name]["window"]["free"])


def _columns(old: Any, new: Any) -> Iterator[str]:
    if list(old) != list(new):
        yield f"the input streams were {', '.join(old)}, now {', '.join(new)}"
        return
    for stream in old:
        of = f"of input stream {stream!r}"
        was = {name: kind for name, kind, _ in old[stream]}
        now = {name: kind for name, kind, _ in new[stream]}
        yield from _narrowed("column", of, was, now, *_WITH_COLUMN)
        for name, kind, nullable in new[stream]:
            if name not in was and not nullable:
                yield f"column {name!r} ({kind}) {of} is new, and must be nullable for the tuples that are stored"


_WITH_COLUMN = (
    " (.withColumn({0!r}, F.lit(None).cast({1!r})) gives it as null)",
    " (.withColumn({0!r}, F.col({0!r}).cast({1!r})) gives it as before)",
)


def _narrowed(
    what: str, of: str, old: Mapping[str, str], new: Mapping[str, str], if_gone: str = "", if_other: str = ""
) -> Iterator[str]:
    for name, kind in old.items():
        if name not in new:
            yield f"{what} {name!r} ({kind}) {of} is gone{if_gone.format(name, kind)}"
        elif new[name] != kind:
            yield f"{what} {name!r} {of} was {kind}, now {new[name]}{if_other.format(name, kind)}"


def _levels(old: Any, new: Any) -> Iterator[str]:
    names_then, names_now = ([[name for name, _ in level] for level in levels] for levels in (old, new))
    if names_then != names_now:
        yield f"the bolts behind exchanges were, level by level, {json.dumps(names_then)}, now {json.dumps(names_now)}"
        return
    for before, after in zip(old, new, strict=True):
        for (name, was), (_, is_now) in zip(before, after, strict=True):
            yield from _number(f"tasks of bolt {name!r} was", was["tasks"], is_now["tasks"])
            yield from _stored_bolt(name, was, is_now)


def _bolts(old: Any, new: Any) -> Iterator[str]:
    for name, was in old.items():
        if name in new:
            yield from _differ(f"tasks of bolt {name!r} was", was["tasks"], new[name]["tasks"])
            yield from _stored_bolt(name, was, new[name])
        else:
            yield f"bolt {name!r} has stored states, and now there is none of that name that keeps any"


def _stored_bolt(name: str, stored: Definition, wanted: Definition) -> Iterator[str]:
    """Yield the differences for which the tasks of a bolt, at the same number, cannot continue with their stored data."""
    yield from _differ(f"stateful of bolt {name!r} was", stored["stateful"], wanted["stateful"])
    yield from _window(f"bolt {name!r}", stored["window"] or {}, wanted["window"] or {})
    old = {stream: (grouping, fields) for stream, grouping, fields in stored["inputs"]}
    new = {stream: (grouping, fields) for stream, grouping, fields in wanted["inputs"]}
    if list(old) != list(new):
        yield f"bolt {name!r} read {', '.join(old) or 'nothing'}, now {', '.join(new) or 'nothing'}"
        return
    for stream, (grouping, fields) in old.items():
        what = f"of {stream} into bolt {name!r}"
        yield from _differ(f"the grouping {what} was", grouping, new[stream][0])
        yield from _narrowed("field", what, dict(fields), dict(new[stream][1]))


def _owner(old: Any, new: Any) -> Iterator[str]:
    if old != new:
        yield f"they are those of topology {old!r}"


def _windows(old: Any, new: Any) -> Iterator[str]:
    """Yield the differences between the windows of two plans, known by group, step and title. Of those that are in one plan only,
    equal ones have moved, then those of one step have changed.
    """
    gone, came = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    pairs = [(name, name) for name in sorted(old.keys() & new.keys())]
    for kept in (_but_for_step, lambda name, _: _step_of(name)[0]):
        for was in [*gone]:
            now = next((name for name in came if kept(name, new[name]) == kept(was, old[was])), None)
            if now is not None:
                gone.remove(was)
                came.remove(now)
                pairs.append((was, now))
    for was, now in pairs:
        yield from _changed_window(was, now, old[was], new[now])
    yield from (f"{name} is gone" for name in gone)
    yield from (f"{name} is new" for name in came)


def _changed_window(was: str, now: str, old: Definition, new: Definition) -> Iterator[str]:
    """Yield the differences between two windows, of one step or equal but for their step."""
    (step, title), (step_now, title_now) = _step_of(was), _step_of(now)
    yield from _differ(f"tasks of {was} was", old["tasks"], new["tasks"])
    if step != step_now:
        yield f"{now} was {step}: put new branches behind the window, and keep the order of branches and .name()"
        return
    parts = [*_parts(was, old["window"]["fixed"], new["window"]["fixed"])]
    yield from parts
    if title != title_now and (not parts or title.partition(" with ")[2] != title_now.partition(" with ")[2]):
        yield f"{was} is now {title_now}"


def _but_for_step(name: str, window: Definition) -> str:
    """Return what stays of a window whose step gets another number, as text."""
    return json.dumps({**window["window"]["fixed"], "name": _step_of(name)[1]}, sort_keys=True)


def _step_of(name: str) -> tuple[str, str]:
    """Return the group and step, and the title, of a window in the records of a TridentCluster.

    >>> _step_of("b_1, step 7, window 5 tuples / 5 tuples with Sum")
    ('b_1, step 7', 'window 5 tuples / 5 tuples with Sum')
    """
    group, _, rest = name.partition(", ")
    step, _, title = rest.partition(", ")
    return f"{group}, {step}", title


def _packing(old: Any, new: Any) -> Iterator[str]:
    for name, now in new.items():
        if now != old.get(name):
            cores = (
                f" ({PACKED_FOR}={old.get(name)} packs files as before)"
                if name == "parallelism" and name in old
                else ""
            )
            yield f"{name} was {old.get(name)}, now {now}, and without order_by rows would arrive in another order{cores}"


def _column_order(old: Any, new: Any) -> Iterator[str]:
    for stream, columns in new.items():
        was, now = ([name for name, *_ in each] for each in (old[stream], columns))
        yield from _differ(f"the columns of input stream {stream!r} were", was, now)


def _ordered(wanted: Definition) -> bool:
    return bool(wanted["order_by"])


_ORDER = (
    FieldRule("order_by", partial(_differ, "order_by was"), bool),
    FieldRule("packing", _packing, lambda wanted: not _ordered(wanted)),
)
KINDS: Mapping[str, Kind] = {
    "bolt": Kind(
        "a windowed bolt",
        (
            FieldRule("bolt.fixed", _bolt),
            FieldRule("bolt.free", partial(_message_id, "")),
            FieldRule("tasks", partial(_number, "tasks was")),
            FieldRule("grouping", partial(_differ, "grouping was")),
            FieldRule("inputs", _columns),
            *_ORDER,  # the order of columns decides ties and tasks
            FieldRule("inputs", _column_order, lambda wanted: _ordered(wanted) or wanted["grouping"] == "shuffle"),
        ),
        rows=(FieldRule("bolt.free", partial(_other_rows, "")),),
    ),
    "topology": Kind(
        "a topology",
        (
            FieldRule("topology.name"),
            # Spouts are identified by their position.
            FieldRule("topology.spouts", partial(_differ, "the spouts with their streams were")),
            FieldRule("topology.partitions", partial(_number, "partitions were")),
            FieldRule("topology.levels", _levels),
            FieldRule("topology.free", partial(_of_bolts, _message_id)),
            *_ORDER,
        ),
        rows=(FieldRule("topology.free", partial(_of_bolts, _other_rows)),),
    ),
    "trident": Kind(
        "a Trident topology",
        (
            FieldRule("trident.name"),
            FieldRule("trident.streams", partial(_differ, "the streams of the Trident topology was")),
            FieldRule("trident.partitions", partial(_number, "the number of partitions of the Trident topology was")),
            FieldRule("trident.stream", partial(_differ, "what keeps or feeds windows of the Trident topology was")),
            FieldRule("trident.states"),  # trident/fence.py compares the writers
            *_ORDER,
        ),
        rows=(FieldRule("trident.free", partial(_of_bolts, _other_rows)),),
    ),
    "bolts": Kind("LocalCluster", (FieldRule("name", _owner), FieldRule("bolts", _bolts))),
    "windows": Kind(
        "TridentCluster", (FieldRule("windows", _windows),), rows=(FieldRule("windows", _other_rows_of_windows),)
    ),
}
"""The kinds by the name of their part of a definition."""


# -- Stored definitions ----------------------------------------------------------------------------------------------------------


class DefinitionLocation(NamedTuple):
    """The location of a stored definition, for errors: `what` begins the sentence about a difference, `path` the one about damage.

    The ways out: `anew` for a difference, `copy` for damage, `older` for a format before `format`, after a drain. record: errors
    show the data instead of the problem.
    """

    what: str
    path: str
    anew: str = "restore the old definition"
    copy: str = "put back a copy"
    record: bool = False
    format: int = FORMAT
    older: str = ""

    def damaged(self, found: Any, problem: str) -> CorruptStateError:
        """Return the error for data that is no definition."""
        if self.record:
            return CorruptStateError(f"{self.path} is {quote(found)}, which this version cannot read; {self.copy}")
        return CorruptStateError(f"{self.path} {problem}; {self.copy}")

    def unreadable(self, found: Any, problem: Exception) -> CorruptStateError:
        """Return the error for data of another shape. problem: one of `BROKEN`, of reading it."""
        return self.damaged(found, f"is no definition of a windowing query ({quote(str(problem))})")


def parsed(content: bytes, where: DefinitionLocation) -> Definition:
    """Return the definition in a file. Raises as `read`, and CorruptStateError for a file that is no JSON."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise where.unreadable(None, problem) from problem
    return read(found, where)


def read(found: Any, where: DefinitionLocation) -> Definition:
    """Return stored data if it is a complete definition of a format that this version reads.

    Raises DefinitionChangedError for another format, CorruptStateError for any other defect.
    """
    try:
        known = found["format"] == where.format
        if _depth(found) > _DEEPEST:
            raise ValueError(f"lists in lists, more than {_DEEPEST} deep")
        lacking = next(_lacking(found), None) if known else None
        numbers = [*_numbers(found)] if known else []
        if known and lacking is None:
            _require_shape(found)
    except BROKEN as problem:
        raise where.unreadable(found, problem) from problem
    if not known and not where.record:
        wrote = f"the version {quote(found.get('library'))} that wrote it"
        older = isinstance(found["format"], int) and found["format"] < where.format
        raise DefinitionChangedError(
            f"{where.path} has format {quote(found['format'])}, this version reads {where.format}; "
            + (f"drain it with {wrote}{where.older}" if older else f"use {wrote}")
        )
    if lacking is not None or not known:
        raise where.damaged(found, "is an incomplete definition of a windowing query")
    for name, number in numbers:
        if type(number) is not int or not 1 <= number <= MOST_TASKS:
            raise where.damaged(
                found, f"says that {name} is {quote(number)}, wanted a whole number from 1 to {MOST_TASKS}"
            )
    return dict(found)


def compare(
    stored: Definition,
    wanted: Definition,
    where: DefinitionLocation,
    half_done: Callable[[], int | None] | None = None,
) -> None:
    """Raise DefinitionChangedError, which names the refused changes, CheckpointError for those that a half-done batch does not
    allow, and CorruptStateError for a part of another shape. half_done: returns that batch; called only where it matters.
    """
    refused = _found(differences(stored, wanted), stored, where)
    if refused:
        raise DefinitionChangedError(f"{where.what}: {refused}; {where.anew}")
    other = "" if half_done is None else _found(differences(stored, wanted, True), stored, where)
    batch = half_done() if other and half_done is not None else None
    if batch is not None:
        raise CheckpointError(
            f"{where.what}: batch {batch} was left half done and has to be made again exactly, but {other}; start once as before "
            "to finish it"
        )


def compare_rows(
    stored: Definition, wanted: Definition, where: DefinitionLocation, batch: int, holders: Iterable[str]
) -> None:
    """Raise CheckpointError for a change that gives a half-done batch other rows. holders: the names of what keeps the rows of its
    first attempt; read only where it matters.
    """
    other = _found(_differences_of_rows(stored, wanted), stored, where)
    names = " and ".join(holders) if other else ""
    if names:
        raise CheckpointError(
            f"{where.what}: batch {batch} was left half done, and its rows are in {names} for good, but the batch "
            f"would be made again with other windows: {other}; start once with the old value, let the batch end, then change it"
        )


def _found(differences: Iterator[str], stored: Definition, where: DefinitionLocation) -> str:
    """Return the refused differences, up to a part of another shape, which is an error if it is the first one."""
    found: list[str] = []
    try:
        for each in islice(differences, _MOST_NAMED + 1):
            found.append(each)
    except BROKEN as problem:
        if not found:
            raise where.unreadable(stored, problem) from problem
    if len(found) > _MOST_NAMED:
        found[-1] = "and there are more"
    return "; ".join(found)


def _lacking(found: Definition) -> Iterator[str]:
    """Yield the fields that a definition of its kind has and this one lacks."""
    for rule in KINDS[_kind(found)].rules:
        part, _, name = rule.field.rpartition(".")
        if name not in (found[part] if part else found):
            yield rule.field


def _require_shape(found: Definition) -> None:
    """Raise one of `BROKEN` for a part of another shape: what compares a definition reads all of its parts."""
    for _ in chain(
        differences(found, found), differences(found, found, replay=True), _differences_of_rows(found, found)
    ):
        pass


def _numbers(found: Definition) -> Iterator[tuple[str, Any]]:
    for part in (found, *(dict(found.get(name, {})) for name in ("topology", "trident", "packing"))):
        yield from ((name, part[name]) for name in ("tasks", "partitions", "parallelism") if name in part)


def _depth(data: Any) -> int:
    """Return the depth of nested lists and objects."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return 1 + max(map(_depth, inner), default=-1)
