"""Rescaling a keyed bolt from N to M tasks: the complete state of each key moves to the task that now owns the key.

    task 0: a c --+              +--> task 0: c
    task 1: b ----+-- task_of ---+--> task 1: a
                                 +--> task 2: b

    of a key     its tuples or partials, its progress              moves with the key
    of a task    arrival numbers, order of first arrival           offset by those of the tasks before, so that they stay unique
                 watermark, largest timestamps                     the same in all tasks of a bolt, or refused
                 counts of tuples by outcome                       live tuples move with their key, past ones to task 0

Laws
- A run that is stopped between two batches, rescaled and continued fires for each key the same windows as an uninterrupted run: the
  same tuples, the same new and expired ones, the same aggregates. The counts over all tasks stay the same.
- State that belongs to a task and not to a key is refused by name: windows without `key=`, a user's policies.
- A key is moved only if `task_of` finds it in the task that holds it; else the next tuples of the key would not meet its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from windowing.errors import CheckpointError, ConfigError, DrainedCheckpointError, quote
from windowing.windows.deduplicator import ProcessedIds
from windowing.windows.key_state import restored_key
from windowing.windows.panes import restored_cells, saved_cells
from windowing.windows.partials import Partial

_COUNTED = ("accepted", "shown", "skipped", "expired", "fired")
Data = dict[str, Any]
TaskOf = Callable[[Any, int], int]
"""Returns the task of a key, given the number of tasks."""


def require_keyed(key: Collection[str] | None, has_policies: bool, called: str, keep: str) -> None:
    """Raise ConfigError for windows whose state belongs to a task: those without a key, and those with policies of a user's.

    called, keep: here and below what the error calls the bolt or step, and its way out.
    """
    if key and not has_policies:
        return
    why = "policies of its own (trigger=, eviction=)" if key else "no key="
    raise ConfigError(f"{called} has {why}, so its windows belong to a task and cannot be dealt out to others; {keep}")


def rescaled(old: Sequence[Data | None], tasks: int, task_of: TaskOf, called: str, keep: str) -> list[Data]:
    """Return the snapshots of `tasks` executors with the state of the executors of `old`, in the order of tasks.

    old: `WindowedBoltExecutor.snapshot()` of each task by its number, with its tuples (for a queue the number of `timestamps` is
    enough); None for a task that has not run. The windows are those that `require_keyed` accepts.

    Raises ConfigError for a key in another task than `task_of` says, DrainedCheckpointError for windows that are closed,
    CheckpointError for tasks that are not those of one bolt after one batch. Cost: O(held tuples).
    """
    found = [each for each in old if each is not None]
    head = _common(found, called)
    machines = [each["manager"] for each in found]
    owners = _owners(old, tasks, task_of, called, keep)
    managers = (_deal_states if "tracks" in machines[0] else _deal_panes)(machines, tasks, owners)
    _deal_tallies([each["tally"] for each in machines], managers)
    side: dict[str, int] = {}
    for each in found:
        for reason, count in each["side"].items():
            side[reason] = side.get(reason, 0) + count
    return [{**head, "manager": each, "side": side if task == 0 else {}} for task, each in enumerate(managers)]


def union_of_ids(tasks: Iterable[list[Any]]) -> list[Any]:
    """Return the message ids of each new task, in the form of `Deduplicator.plain`: the union of the ids of all old tasks.

    An id does not determine its key, so every task gets all of them.

    >>> union_of_ids([[["s", [None, 1, 2]]], [["s", [None, 2]], ["t", [None, 7]]]])
    [['s', [None, 1, 1, 1]], ['t', [None, 7]]]
    """
    known: dict[Any, ProcessedIds] = {}
    for channel, ids in (each for task in tasks for each in task):
        found = ProcessedIds.of(ids)
        into = known.setdefault(restored_key(channel), ProcessedIds())
        if found.floor is not None:
            into.raise_floor(found.floor)
        for id in sorted(found):
            into.add(id)
    return [[channel, ids.plain()] for channel, ids in known.items()]


def _common(old: Sequence[Data], called: str) -> Data:
    """Return the common state of a bolt's tasks; all of them get the same largest timestamps and the same advances."""
    if not old:
        raise CheckpointError(f"{called} has no task with a state: there is nothing to deal out; start anew")
    if any(each["closed"] for each in old):
        raise DrainedCheckpointError(
            f"the windows of {called} were drained: they have fired and are closed; start with a new checkpoint"
        )
    shared = [_shared_state(each) for each in old]
    odd = next((task for task, each in enumerate(shared) if each != shared[0]), None)
    if odd is not None:
        raise CheckpointError(
            f"tasks of {called} are not those of one batch: one has heard {quote(shared[0])}, another "
            f"{quote(shared[odd])}; let the query make a batch and stop it again, or put the checkpoint back from a copy"
        )
    generators = [each["generator"] for each in old]
    generator = {**generators[0], "first_now_ms": _of(min, [each["first_now_ms"] for each in generators])}
    marks: dict[Any, list[Any]] = {}
    for stream, source, largest, last_seen in (mark for each in generators for mark in each["marks"]):
        before = marks.setdefault((stream, source), [stream, source, largest, last_seen])
        before[3] = _of(max, [before[3], last_seen])
    generator["marks"] = list(marks.values())
    return {**old[0], "generator": generator, "now": _of(max, [each["now"] for each in old])}


def _shared_state(executor: Data) -> Data:
    manager, generator = executor["manager"], executor["generator"]
    return {
        "machine": manager["machine"],
        "watermark": [manager["watermark"], generator["watermark"]],
        "aggregate": manager.get("aggregate"),
        "largest": sorted(([mark[0], mark[1], mark[2]] for mark in generator["marks"]), key=repr),
    }


def _of(choose: Callable[[list[int]], int], times: list[int | None]) -> int | None:
    known = [each for each in times if each is not None]
    return choose(known) if known else None


def _owners(old: Sequence[Data | None], tasks: int, task_of: TaskOf, called: str, keep: str) -> dict[Any, int]:
    """Return the new task of each key, in order of the old tasks. Raises ConfigError for a key in another task than its own."""
    owners: dict[Any, int] = {}
    for number, each in enumerate(old):
        manager = {"keys": ()} if each is None else each["manager"]
        for saved in manager["keys"] if "keys" in manager else [state["key"] for state in manager["tracks"]]:
            key = restored_key(saved)
            if task_of(key, len(old)) != number:
                raise ConfigError(
                    f"key {quote(key)} of {called} is in task {number}, where tuples with this key are not sent: it cannot be "
                    f"told where the key belongs; {keep}"
                )
            owners[key] = task_of(key, tasks)
    return owners


# -- Queues, and panes of numbers: a state for each key --------------------------------------------------------------------------


def _deal_states(old: Sequence[Data], tasks: int, owners: Mapping[Any, int]) -> list[Data]:
    dealt: list[list[Data]] = [[] for _ in range(tasks)]
    sequence = ordinal = 0
    for each in old:
        for state in each["tracks"]:
            dealt[owners[restored_key(state["key"])]].append(_offset_numbers(state, sequence, ordinal))
        sequence += each["sequence"]
        ordinal += each["ordinal"]
    return [
        {
            **old[0],
            "sequence": sequence,
            "ordinal": ordinal,
            "tracks": states,
            "tally": _sum(map(_live_and_pending, states)),
        }
        for states in dealt
    ]


def _offset_numbers(state: Data, sequence: int, ordinal: int) -> Data:
    """Return a key's state with its arrival numbers and order of arrival offset by those of the tasks before its own."""
    moved = {**state, "ordinal": state["ordinal"] + ordinal}
    if "fired_at" in state:
        moved["fired_at"] = state["fired_at"] + sequence
    if state.get("sequences") is not None:
        moved["sequences"] = [number + sequence for number in state["sequences"]]
    return moved


def _live_and_pending(state: Data) -> tuple[int, int]:
    """Return how many tuples of a key have not expired, and how many of these no window has shown or skipped."""
    if "panes" in state:
        panes = state["panes"]
        end = panes["base"] + len(panes["timestamps"])
        return end - state["horizon"], end - panes["covered"]
    end = state["base"] + len(state["timestamps"])
    return end - state["horizon"], end - state["covered"] + state["strangers"]


# -- Panes of time: a cell for each pane and key ---------------------------------------------------------------------------------


def _deal_panes(old: Sequence[Data], tasks: int, owners: Mapping[Any, int]) -> list[Data]:
    cells: dict[int, list[dict[Any, Partial]]] = {}
    shown: dict[int, int] = {}
    for end, shown_count, *of_pane in (pane for each in old for pane in each["panes"]):
        dealt = cells.setdefault(end, [{} for _ in range(tasks)])
        shown[end] = shown.get(end, 0) + shown_count
        for key, partial in restored_cells(*of_pane).items():
            dealt[owners[key]][key] = partial
    managers = []
    for task in range(tasks):
        panes, tallies = [], []
        for end in sorted(cells):
            if not (of_task := cells[end][task]):
                continue
            # The snapshot does not say which tuples of a pane were shown; the next window shows the rest of all of them.
            count = sum(partial[0] for partial in of_task.values())
            shown_count = min(count, shown[end])
            shown[end] -= shown_count
            panes.append([end, shown_count, *saved_cells(of_task)])
            tallies.append((count, count - shown_count))
        keys = [key for key, owner in owners.items() if owner == task]
        managers.append({**old[0], "keys": keys, "panes": panes, "tally": _sum(tallies)})
    return managers


# -- Counts of tuples by outcome -------------------------------------------------------------------------------------------------


def _sum(tallies: Iterable[tuple[int, int]]) -> tuple[int, int]:
    live = pending = 0
    for one, other in tallies:
        live += one
        pending += other
    return live, pending


def _deal_tallies(old: Sequence[Data], managers: list[Data]) -> None:
    """Replace (live, pending) of each manager by its tally: its own live tuples, and for task 0 all past ones too."""
    rest = {name: sum(each[name] for each in old) for name in _COUNTED}
    for manager in managers[:0:-1]:
        live, pending = manager["tally"]
        shown = min(live - pending, rest["shown"])
        own = {"accepted": live, "shown": shown, "skipped": live - pending - shown, "expired": 0, "fired": 0}
        manager["tally"] = own
        rest = {name: rest[name] - own[name] for name in _COUNTED}
    managers[0]["tally"] = rest
