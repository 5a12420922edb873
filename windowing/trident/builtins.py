"""The aggregators, filters and queries that Trident provides.

| Count, Sum, Min, Max | combiners: the number of tuples; sum, smallest, largest of one field |
| MinBy, MaxBy         | aggregators: the tuple with the smallest, the largest value of a field, or of a function of the tuple |
| FirstN               | an assembly: the first n tuples of a batch, in some order |
| FilterNull, Equals, Negate, Debug | filters |
| MapGet, SnapshotGet, TupleCollectionGet | queries: the value of a key, the single value, all keys and values |

Laws: None is no value: Sum, Min and Max ignore it, Count counts tuples. Among equal values the first one is kept. The methods of
aggregators and queries are those of states.py.
Source: Storm's `org.apache.storm.trident.operation.builtin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Never

from windowing.errors import ConfigError, quote
from windowing.schema.values import stored_key
from windowing.trident.processors import call_hook, code_of, refuse_unrun
from windowing.windows.aggregate import exact_sum, short_title

if TYPE_CHECKING:
    from windowing.trident.streams import Stream


@dataclass(frozen=True, slots=True)
class Count:
    """The number of tuples; 0 for none."""

    def init(self, tuple: Any) -> int:
        return 1

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a field; 0 for no tuples. A sum of Decimals is exact, as that of `windowing.aggregate.sum`."""

    def init(self, tuple: Any) -> Any:
        value = tuple[0]
        return 0 if value is None else value

    def combine(self, a: Any, b: Any) -> Any:
        total = a + b
        return exact_sum((a, b)) if type(total) is Decimal else total

    def zero(self) -> Any:
        return 0


@dataclass(frozen=True, slots=True, init=False)
class Min:
    """The smallest value of a field; None for no tuples. NaN is larger than every number, as in Spark."""

    def __init__(self, *field: Never) -> None:
        if field:
            kind = type(self).__name__
            raise ConfigError(
                f"{kind}({quote(field[0])}) of Storm, which emits the whole tuple, is {kind.lower()}_by({quote(field[0])}) of a "
                f"stream; {kind}() takes no field: aggregate names it"
            )

    def init(self, tuple: Any) -> Any:
        return tuple[0]

    def combine(self, a: Any, b: Any) -> Any:
        return b if _before(b, a) else a

    def zero(self) -> Any:
        return None


@dataclass(frozen=True, slots=True, init=False)
class Max(Min):
    """The largest value of a field; None for no tuples."""

    def combine(self, a: Any, b: Any) -> Any:
        return b if _behind(b, a) else a


OF_ONE_FIELD = (Sum.init, Min.init)
"""They read the first field: more, such as all of a stream with several, are refused when the topology is built."""


@dataclass(frozen=True, slots=True)
class MinBy:
    """The whole tuple with the smallest value of a field, or of `key(tuple)` with the field None.

    Source: Storm's `Min`, `MinWithComparator`.
    """

    field: str | None
    key: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.field is None and self.key is None:
            name = type(self).__name__
            raise ConfigError(
                f"{name} has neither a field nor a key= to compare by; write {name}('amount'), or {name}(None, key=...) with a "
                "function of (row)"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that it reads by name."""
        return () if self.field is None else (self.field,)

    def init(self, batch_id: Any, collector: Any) -> list[Any]:
        return []

    def aggregate(self, value: list[Any], tuple: Any, collector: Any) -> None:
        found = tuple if self.field is None else tuple[self.field]
        seen = found if self.key is None or found is None else self.key(found)
        if not value or self._better(seen, value[0]):
            value[:] = seen, tuple

    def complete(self, value: list[Any], collector: Any) -> None:
        if value:
            collector.emit(tuple(value[1]))

    def _better(self, new: Any, old: Any) -> bool:
        return _before(new, old)


@dataclass(frozen=True, slots=True)
class MaxBy(MinBy):
    """The whole tuple with the largest value of a field. Source: Storm's `Max`, `MaxWithComparator`."""

    def _better(self, new: Any, old: Any) -> bool:
        return _behind(new, old)


@dataclass(frozen=True, slots=True)
class FirstN:
    """The first n tuples of a batch, in order of arrival or by a field: `stream.apply_assembly(FirstN(3, "delay", reverse=True))`.

    Source: Storm's `FirstN`, which is an Assembly too.
    """

    n: int
    field: str | None = None
    reverse: bool = False

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 0:
            raise ConfigError(f"FirstN keeps a whole number of tuples, 0 or more, got {quote(self.n)}; write FirstN(3)")
        if self.reverse and self.field is None:
            raise ConfigError(
                "FirstN has reverse=True but no field to order by; write FirstN(3, 'delay', reverse=True)"
            )

    def __call__(self, stream: Stream) -> Stream:
        """Return the stream of the first n tuples. Each partition selects its own first n before the exchange."""
        return stream.partition_aggregate(None, self).global_().partition_aggregate(None, self)

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that it reads by name."""
        return () if self.field is None else (self.field,)

    def init(self, batch_id: Any, collector: Any) -> list[Any]:
        return []

    def aggregate(self, value: list[Any], tuple: Any, collector: Any) -> None:
        value.append(tuple)
        if len(value) >= 2 * self.n + 64:
            value[:] = self._first(value)

    def complete(self, value: list[Any], collector: Any) -> None:
        for row in self._first(value):
            collector.emit(tuple(row))

    def _first(self, rows: list[Any]) -> list[Any]:
        if self.field is not None:
            field = self.field
            rows = sorted(rows, key=lambda row: _Order(row[field], self.reverse))
        return rows[: self.n]


class _Order:
    """A sort key: None comes last in both directions."""

    __slots__ = ("_reverse", "_value")

    def __init__(self, value: Any, reverse: bool) -> None:
        self._value, self._reverse = value, reverse

    def __lt__(self, other: _Order) -> bool:
        return (_behind if self._reverse else _before)(self._value, other._value)


@dataclass(frozen=True, slots=True)
class FilterNull:
    """Keeps tuples without None."""

    def keep(self, tuple: Any) -> bool:
        return all(value is not None for value in tuple)


@dataclass(frozen=True, slots=True)
class Equals:
    """Keeps tuples whose values are all equal."""

    def keep(self, tuple: Any) -> bool:
        return all(value == tuple[0] for value in tuple)


@dataclass(frozen=True, slots=True)
class Negate:
    """Keeps what another filter drops: a function of (tuple), an object or a class with `keep`. Raises ConfigError for others."""

    filter: Any

    def __post_init__(self) -> None:
        code_of(self.filter, "keep", returns=True)

    def prepare(self, context: Any) -> None:
        if isinstance(self.filter, type):
            object.__setattr__(self, "filter", self.filter())  # each task has its own copy of this object
        call_hook(self.filter, "prepare", context)

    def keep(self, tuple: Any) -> bool:
        keeps = getattr(self.filter, "keep", self.filter)(tuple)
        refuse_unrun(keeps)
        return not keeps

    def cleanup(self) -> None:
        call_hook(self.filter, "cleanup")


@dataclass(frozen=True, slots=True)
class Debug:
    """Keeps every tuple and prints it, or calls `write` with its text: `Debug()`, `Debug(log.info, "words")`."""

    write: Callable[[str], Any] = print
    label: str = "DEBUG"

    def __post_init__(self) -> None:
        if not callable(self.write):
            label = self.write if isinstance(self.write, str) else "words"
            raise ConfigError(
                f"Debug calls a function of a text, got {quote(self.write)}; write Debug(print, {quote(label)})"
            )

    def keep(self, tuple: Any) -> bool:
        self.write(f"{self.label}: {tuple}")
        return True

    def __repr__(self) -> str:
        return f"Debug({short_title(self.write)}, {self.label!r})"


@dataclass(frozen=True, slots=True)
class MapGet:
    """The value of a key, where the key is the tuple of the inputs, also of one: `("a",)`; None if there is none."""

    def batch_retrieve(self, state: Any, tuples: Sequence[Any]) -> Sequence[Any]:
        values: Sequence[Any] = _read_by(state, "multi_get", _NO_MAP)([stored_key(row) for row in tuples])
        return values

    def execute(self, tuple: Any, result: Any, collector: Any) -> None:
        collector.emit((result,))


@dataclass(frozen=True, slots=True)
class SnapshotGet:
    """The single value of a state that is aggregated without keys."""

    def batch_retrieve(self, state: Any, tuples: Sequence[Any]) -> Sequence[Any]:
        return [_read_by(state, "get", _NO_VALUE)()] * len(tuples)

    def execute(self, tuple: Any, result: Any, collector: Any) -> None:
        collector.emit((result,))


@dataclass(frozen=True, slots=True)
class TupleCollectionGet:
    """All keys with their values, for each tuple. Broadcast the tuples, because each partition has only some of the keys."""

    def batch_retrieve(self, state: Any, tuples: Sequence[Any]) -> Sequence[Any]:
        return [list(_read_by(state, "items", _NO_MAP)())] * len(tuples)

    def execute(self, tuple: Any, result: Any, collector: Any) -> None:
        for key, value in result:
            collector.emit((*key, value))


_NO_MAP = "no map; query a state of one value by state_query(state, None, SnapshotGet(), 'n long')"
_NO_VALUE = "no single value; query a map by state_query(state, 'word', MapGet(), 'n long')"


def _read_by(state: Any, method: str, instead: str) -> Any:
    """Return the method by which a query reads a state. Raises TypeError with the query to use instead for a state without it."""
    read = getattr(state, method, None)
    if read is None:
        raise TypeError(f"the state has no {method}, so it is {instead}")
    return read


def _before(new: Any, old: Any) -> bool:
    """Return whether `new` is smaller than `old`; None is no value, NaN is the largest."""
    if new is None or new != new:
        return False if new is None else old is None
    return old is None or old != old or new < old


def _behind(new: Any, old: Any) -> bool:
    """Return whether `new` is larger than `old`; None is no value, NaN is the largest."""
    if new is None or old is None:
        return new is not None
    return bool(new > old) if new == new else old == old
