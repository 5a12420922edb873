"""Fields, Values, Tuple: the data that components exchange. Source: Storm's classes of these names.

    Fields   names in order, once for each stream       Fields("word", "count")
    Values   the values of one tuple, in that order     Values("storm", 3)
    Tuple    values and their origin                    tuple["word"], tuple[0], tuple.word

Laws: a Tuple never changes; Tuples compare by identity (as in Storm), so that a set of tuples is
cheap. All Tuples of a task's stream share one Origin; a Tuple consists of four pointers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from windowing.errors import ConfigError, quote
from windowing.schema.checks import DEFAULT_STREAM, StormNames, checked_name, did_you_mean, getters, missing

SYSTEM, TICK = "__system", "__tick"
"""The component and the stream of tick tuples."""

_NO_IDS: Mapping[int, int] = {}
_IN_STORM = getters("tuple") | {
    "contains": '"word" in tuple.get_fields()',
    "fieldIndex": 'tuple.get_fields().index("word")',
    "getSourceStreamId": "source_stream",
    **dict.fromkeys(("getSourceGlobalStreamId", "getSourceGlobalStreamid"), "source_component and source_stream"),
    "getContext": "the context that prepare(context) gets",
    "values": "get_values()",
    "get": 'tuple["word"], or tuple.as_dict().get("word") for a field that may be missing',
}
NO_TASKS: Mapping[str, range] = {}


class Fields(StormNames):
    """Names in order, each once; a lookup costs one dict access.

    >>> Fields("word", "count").index("count"), "word" in Fields(["word"]), list(Fields("a", "b"))
    (1, True, ['a', 'b'])
    """

    __slots__ = ("_index", "names")

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "size": "len(fields)",
        "get": "fields.names[0]",
        "fieldIndex": 'fields.index("word")',
        "contains": '"word" in fields',
        "iterator": "iter(fields)",
        "toList": "list(fields)",
    }

    def __init__(self, *names: str | Iterable[str]) -> None:
        if len(names) == 1 and not isinstance(names[0], str):
            names = tuple(names[0]) if isinstance(names[0], Iterable) else names
        self.names: tuple[str, ...] = tuple(checked_name(name, "a field's name") for name in names)
        self._index = {name: position for position, name in enumerate(self.names)}
        if len(self._index) < len(self.names):
            raise ConfigError(f"a field stands twice in {', '.join(self.names)}; name each field once")

    def index(self, name: str) -> int:
        """Return the position of a field. Raises ConfigError, which names the nearest field."""
        position = self._index.get(name)
        if position is None:
            raise ConfigError(f"there is no field {quote(name)}; {did_you_mean(str(name), self.names)}")
        return position

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"Fields({', '.join(map(repr, self.names))})"


Names = Fields | str | Iterable[str]
"""Fields as arguments: one name, several names, or Storm's Fields."""


@lru_cache(maxsize=1024)
def fields_of(names: tuple[str, ...]) -> Fields:
    """Return the Fields with these names, for code that needs them again in each batch."""
    return Fields(names)


class Values(tuple[Any, ...]):
    """The values of one tuple, in the order of its fields, written as in Storm; a Python tuple.

    >>> Values("storm", 3)
    ('storm', 3)
    """

    __slots__ = ()

    def __new__(cls, *values: Any) -> Values:
        return super().__new__(cls, values)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)  # a copy, and an unpickled object, is made of single values too


class Origin:
    """The origin of tuples: a task of a component and one of its streams; made once, shared by all its tuples.

    task: the task's index in the component, which does not depend on other components. id: its id in the topology, from `task_ids`;
    the index if the component is not in it.
    """

    __slots__ = ("component", "fields", "id", "stream", "task")

    def __init__(
        self,
        component: str,
        task: int,
        fields: Fields,
        stream: str = DEFAULT_STREAM,
        task_ids: Mapping[str, range] = NO_TASKS,
    ) -> None:
        ids = task_ids.get(component)
        self.component = component
        self.task = task
        self.id = task if ids is None else ids.start + task
        self.stream = stream
        self.fields = fields

    def __repr__(self) -> str:
        return f"{self.component}:{self.stream}[{self.task}]"


class Tuple:
    """One tuple, as a bolt gets it; a field is read by position, by name, or as an attribute if no method has that name.

    `tuple[name]` always finds the field; `tuple.name` does unless the field is called `select`, `as_dict` or like another
    attribute below. Source: `TupleImpl`.

    >>> word = Tuple(("storm", 3), Origin("split", 1, Fields("word", "count")))
    >>> word["word"], word[1], word.count, word.source_component, len(word)
    ('storm', 3, 3, 'split', 2)
    """

    __slots__ = ("__weakref__", "_ids", "_origin", "_values")

    _by_name = True  # see Record
    _positions: ClassVar[Mapping[str, int]] = {}
    """The positions of the fields in a class that `tuple_type` has made."""
    _kind: type[Tuple] | None = None
    """The class from which `tuple_type` has made this class."""

    def __init__(self, values: tuple[Any, ...], origin: Origin, ids: Mapping[int, int] = _NO_IDS) -> None:
        self._values = values
        self._origin = origin
        self._ids = ids

    def get_values(self) -> tuple[Any, ...]:
        """Return the values, in order."""
        return self._values

    def get_fields(self) -> Fields:
        """Return the names of the values, in order."""
        return self._origin.fields

    def get_message_id(self) -> Mapping[int, int]:
        """Return the edge id for each root to which the tuple belongs; empty for an unanchored one."""
        return self._ids

    @property
    def source_component(self) -> str:
        """The id of the component that emitted the tuple."""
        return self._origin.component

    @property
    def source_stream(self) -> str:
        """The stream on which it was emitted."""
        return self._origin.stream

    @property
    def source_task(self) -> int:
        """The id of the task that emitted it."""
        return self._origin.id

    def select(self, fields: Fields | Iterable[str]) -> tuple[Any, ...]:
        """Return the values of these fields, in their order."""
        index = self._origin.fields.index
        return tuple(self._values[index(name)] for name in fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(zip(self._origin.fields.names, self._values, strict=True))

    _asdict = as_dict  # the name in a namedtuple, which is what a row is on Spark

    def __getitem__(self, key: int | str) -> Any:
        if not isinstance(key, str):
            return self._values[key]
        fields = self._origin.fields
        position = fields._index.get(key)
        if position is None and is_tick(self):
            raise ConfigError(f"a tick has no field {quote(key)}; test is_tick(tuple) before you read fields")
        return self._values[fields.index(key) if position is None else position]

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are no attribute; while an object is copied also for slots that are not set yet.
        if name[:1] == "_" and (name.startswith("__") or name in Tuple.__slots__):
            raise AttributeError(name)
        position = self._origin.fields._index.get(name)
        if position is None:
            sentence = f"a tuple of {self._origin!r} has no field {name!r}"
            if is_tick(self):
                raise AttributeError(f"a tick has no field {name!r}; test is_tick(tuple) before you read fields")
            is_method = name in _IN_STORM or re.match("get[A-Z]", name) or hasattr(Tuple, name.removeprefix("get_"))
            raise missing(Tuple, name, _IN_STORM, sentence, None if is_method else self._origin.fields.names)
        return self._values[position]

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(self)
        return _blank, (kind._kind or kind, self._origin.fields.names), object.__getstate__(self)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __repr__(self) -> str:
        named = zip(self._origin.fields.names, tuple.__iter__(self._values), strict=True)
        return f"Tuple({self._origin!r}, {quote(dict(named))})"


T = TypeVar("T", bound=Tuple)


@lru_cache(maxsize=1024)
def tuple_type(kind: type[T], names: tuple[str, ...]) -> type[T]:
    """Return a subclass of `kind`, a class of tuples, for these fields; equal fields give the same class.

    For code that makes many tuples: an attribute is found in a tenth of the time, an item in half. It is optional.
    """
    named: dict[Any, int] = {name: position for position, name in enumerate(names)}
    positions = named | {position: position for position in range(-len(names), len(names))}

    def item(self: Any, key: Any) -> Any:
        try:
            return self._values[positions[key]]
        except (KeyError, TypeError):  # a slice, or no field
            return kind.__getitem__(self, key)

    own = {name: property(_reader(position)) for position, name in enumerate(names) if not hasattr(kind, name)}
    parts = {
        "__slots__": (),
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__getitem__": item,
        "_positions": named,
        "_kind": kind,
    }
    return type(kind.__name__, (kind,), own | parts)


def _reader(position: int) -> Callable[[Any], Any]:
    return lambda tuple: tuple._values[position]


def _blank(kind: type[Tuple], names: tuple[str, ...]) -> Tuple:
    """Return an empty tuple to be filled, so that a copy or an unpickled tuple has its own class."""
    made: Tuple = object.__new__(tuple_type(kind, names))  # type: ignore[arg-type]  # mypy: a class of a TypeVar is hashable
    return made


def is_tick(tuple: Tuple) -> bool:
    """Return whether a tuple is a tick of the clock (`topology.tick.tuple.freq.secs`). Source: `TupleUtils.isTick`."""
    return tuple.source_component == SYSTEM and tuple.source_stream == TICK
