"""Groupings: they choose the tasks of a component that get a tuple.

    choose = grouping.targets(tasks, schema)       once per (emitting task, stream, subscriber)
    state  = grouping.start(tasks, seed)           a list of ints: plain data, stored and restored by the driver
    choose(values, state) -> task indexes          0 <= index < tasks

| grouping          | tasks of a tuple                                     | state                          |
|-------------------|------------------------------------------------------|--------------------------------|
| Shuffle           | the next one, round robin from a seeded start        | [next]                         |
| None              | as shuffle (Storm: at random)                        | [next]                         |
| LocalOrShuffle    | as shuffle: no driver has workers with tasks of their own | [next]                    |
| Fields            | pmod(xxhash64(key), tasks)                           | []                             |
| PartialKey        | of the key's two candidates the one with fewer tuples; the first if equal | [tuples for each task] |
| All               | every one                                            | []                             |
| Global            | 0                                                    | []                             |
| Direct            | the one that the emitter names                       | []                             |
| Custom            | the result of a function of (values, tasks)          | []                             |
| Identity          | of Trident: the one with the number of the emitting task  | none                      |
| BatchGlobal       | of Trident: txid mod tasks, for all tuples of a batch     | none                      |

Laws: the choice depends on (values, state) only, so a replay from a saved state makes the same choices; a choice changes only
`state`; n * tasks tuples through a shuffle are n for each task. Source: Storm's `GrouperFactory`, `PartialKeyGrouping`,
`IdentityGrouping`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from windowing.errors import ConfigError, GroupingError, UnreadableValueError, describe_error, quote
from windowing.schema.checks import unbound, uncallable
from windowing.schema.hashing import hasher_of, key_hasher, signed
from windowing.schema.types import Schema
from windowing.windows.aggregate import title_of

Chooser = Callable[[Sequence[Any], list[int]], Sequence[int]]
"""Returns the indexes of the tasks that get a tuple with these values, and updates the state."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The grouping of one subscription, as data; `targets` makes its chooser."""

    kind: ClassVar[str]
    """Its name in plans and definitions."""

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        """Return the chooser among `tasks` tasks for tuples of `schema`."""
        raise NotImplementedError

    def start(self, tasks: int, seed: int = 0) -> list[int]:
        """Return the state before the first tuple; `seed` is the emitting task, so that emitters start with different tasks."""
        return []

    def definition(self) -> dict[str, Any]:
        """Return the grouping as plain JSON data."""
        return {"kind": self.kind}

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class ShuffleGrouping(Grouping):
    """Evenly: the numbers of tuples of two tasks differ by one at most.

    >>> grouping = ShuffleGrouping()
    >>> choose, state = grouping.targets(3, Schema.parse("n long")), grouping.start(3)
    >>> [*choose((7,), state), *choose((7,), state), *choose((7,), state), *choose((7,), state)], state
    ([0, 1, 2, 0], [1])
    """

    kind = "shuffle"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        choices = _single(tasks)

        def choose(values: Sequence[Any], state: list[int]) -> Sequence[int]:
            position = state[0]
            state[0] = position + 1 if position + 1 < tasks else 0
            return choices[position]

        return choose

    def start(self, tasks: int, seed: int = 0) -> list[int]:
        return [seed % tasks]


@dataclass(frozen=True, slots=True)
class NoneGrouping(ShuffleGrouping):
    """The emitter has no preference; it is a shuffle."""

    kind = "none"


@dataclass(frozen=True, slots=True)
class LocalOrShuffleGrouping(ShuffleGrouping):
    """In Storm a shuffle among the tasks in the emitter's own worker; here a shuffle, for there are no such workers."""

    kind = "localOrShuffle"


@dataclass(frozen=True, slots=True)
class FieldsGrouping(Grouping):
    """Equal keys go to one task: the same one in every process and on Spark, for a fixed number of tasks."""

    fields: tuple[str, ...]
    kind = "fields"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        key_hash, choices = _key_hasher(self.fields, schema), _single(tasks)
        return lambda values, state: choices[signed(key_hash(values)) % tasks]

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "fields": list(self.fields)}

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.fields)})"


@dataclass(frozen=True, slots=True)
class PartialKeyGrouping(FieldsGrouping):
    """Each key has two tasks and goes to the one with fewer tuples so far: a skewed key is spread over two partial results.

    The candidates are task h = pmod(hash, tasks), and the task pmod(xxhash64(1, hash), tasks - 1) + 1 after it, modulo tasks.
    Source: "The Power of Both Choices" (Nasir et al., 2015); Storm's `PartialKeyGrouping`.
    """

    kind = "partialKey"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        key_hash, second_hash, choices = _key_hasher(self.fields, schema), hasher_of("int"), _single(tasks)

        def choose(values: Sequence[Any], state: list[int]) -> Sequence[int]:
            chosen = 0
            if tasks > 1:
                first_hash = key_hash(values)
                chosen = signed(first_hash) % tasks
                other = (chosen + 1 + signed(second_hash(1, first_hash)) % (tasks - 1)) % tasks
                if state[other] < state[chosen]:
                    chosen = other
            state[chosen] += 1
            return choices[chosen]

        return choose

    def start(self, tasks: int, seed: int = 0) -> list[int]:
        return [0] * tasks


@dataclass(frozen=True, slots=True)
class AllGrouping(Grouping):
    """Every task gets every tuple."""

    kind = "all"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        every = tuple(range(tasks))
        return lambda values, state: every


@dataclass(frozen=True, slots=True)
class GlobalGrouping(Grouping):
    """The lowest task gets every tuple."""

    kind = "global"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        return lambda values, state: (0,)


@dataclass(frozen=True, slots=True)
class DirectGrouping(Grouping):
    """The emitter names the task by its id (`emit_direct`, see `direct_targets`); a plain `emit` raises."""

    kind = "direct"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        def choose(values: Sequence[Any], state: list[int]) -> Sequence[int]:
            raise GroupingError(
                "a plain emit on a direct stream names no task; call emit_direct(task, values), or declare the stream without "
                "direct="
            )

        return choose


@dataclass(frozen=True, slots=True)
class CustomGrouping(Grouping):
    """A function of (values, tasks), or an object with `choose_tasks(values, tasks)`: it returns an index or several.

    Its result must depend on its arguments only, so that a replay sends each tuple to the same tasks. Every exception of it, a
    FailedException too, is a GroupingError, which ends the run: a tuple fails in the bolt that emits it.
    """

    choose: Any
    kind = "custom"

    def targets(self, tasks: int, schema: Schema) -> Chooser:
        written = getattr(self.choose, "choose_tasks", self.choose)

        def choose(values: Sequence[Any], state: list[int]) -> Sequence[int]:
            try:
                returned = written(values, tasks)
            except UnreadableValueError:
                raise
            except Exception as problem:
                raise GroupingError(
                    f"{self} failed on {quote(values)} with {describe_error(problem)}; return the index of a task for any tuple"
                ) from problem
            chosen = (returned,) if isinstance(returned, int) else returned
            if not isinstance(chosen, list | tuple | range):
                raise GroupingError(f"{self} returned {quote(returned)}; return the index of a task, or a list of them")
            for task in chosen:
                if not isinstance(task, int) or isinstance(task, bool) or not 0 <= task < tasks:
                    raise GroupingError(
                        f"{self}: there is no task {quote(task)}, tasks are counted from 0 to {tasks - 1}; emit to one"
                    )
            return tuple(chosen)

        return choose

    def mistake(self) -> str | None:
        """Return why it cannot choose, None if it can."""
        if isinstance(self.choose, type) or not callable(getattr(self.choose, "choose_tasks", self.choose)):
            return "give a function of (values, tasks), or an object with choose_tasks(values, tasks)"
        if callable(getattr(self.choose, "prepare", None)):
            return "it has prepare, which nothing calls; leave it out: choose_tasks(values, tasks) is given the number of tasks"
        written = getattr(self.choose, "choose_tasks", self.choose)
        problem = uncallable(written, ("values", "tasks"))
        second_is_values = unbound(written, ("task",), ["values"]) is None
        takes_any_name = unbound(written, ("task",), ["other"]) is None
        if problem is None and second_is_values and not takes_any_name:
            problem = "takes the values second, as in Storm; write a function of (values, tasks)"
        return problem if problem is None else f"it {problem}"

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "function": title_of(self.choose)}

    def __str__(self) -> str:
        return f"{self.kind}({title_of(self.choose)})"


@dataclass(frozen=True, slots=True)
class IdentityGrouping:
    """Partition i of the source sends to partition i of the target; both have the same number of partitions."""

    def __str__(self) -> str:
        return "identity"


@dataclass(frozen=True, slots=True)
class BatchGlobalGrouping:
    """All tuples of a batch go to one partition; consecutive batches go to different partitions."""

    def __str__(self) -> str:
        return "batchGlobal"


Partitioning = Grouping | IdentityGrouping | BatchGlobalGrouping
"""What a repartition of Trident may be."""


@lru_cache(maxsize=64)
def _single(tasks: int) -> tuple[tuple[int], ...]:
    """Return the choice of each task alone. All emitting tasks share it."""
    return tuple((task,) for task in range(tasks))


def direct_targets(task: Any, readers: Mapping[str, range]) -> tuple[str, int]:
    """Return the subscriber of a direct stream that has the task with this id, and the task's index there, or raise GroupingError.

    >>> direct_targets(5, {"count": range(2, 4), "report": range(4, 6)})
    ('report', 1)
    """
    for reader, ids in readers.items():
        if isinstance(task, int) and not isinstance(task, bool) and task in ids:
            return reader, ids.index(task)
    has = ", ".join(f"{reader!r} has {ids.start} to {ids.stop - 1}" for reader, ids in readers.items())
    raise GroupingError(
        f"there is no task {quote(task)} that reads it: {has}; give an id, as "
        "context.component_tasks(component) and emit give them"
    )


def unrouted(problem: GroupingError, component: str, stream: str) -> GroupingError:
    """Return the error of a grouping with the component and the stream that emitted the tuple."""
    return GroupingError(f"stream {stream!r} of {component!r}: {problem.args[0]}")


def _key_hasher(fields: tuple[str, ...], schema: Schema) -> Callable[[Sequence[Any]], int]:
    """Return a function from a tuple's values to the unsigned hash of its key."""
    missing = [name for name in fields if name not in schema.names]
    if missing:
        raise ConfigError(f"the key names {quote(missing[0])}, the stream has {schema.ddl}; name fields that are there")
    positions = [schema.names.index(name) for name in fields]
    return key_hasher(tuple((position, schema.types[position]) for position in positions))
