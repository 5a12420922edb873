"""Aggregation: the aggregators of a bolt as one, from payloads to what `window.aggregate` says.

    payloads   {"delay": 3, "carrier": "UA"}   {"delay": 5, "carrier": "AA"}
    values     3                               5                              one field is read: the value itself
               (3, "UA")                       (5, "AA")                      several are: a row of them
    partial    [8, 2]                                                         one accumulator for each aggregator

Laws: a payload is asked once, on arrival, for the fields that are read and nothing else is kept of it; a partial is plain
data; adding in one run or in several gives the same, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

from windowing.core.aggregate import Aggregator, Counted, add_many, field_of, spec_of
from windowing.core.faults import fault
from windowing.errors import BoltError, ConfigError, shown

__all__ = ["Aggregation", "Partial", "plain"]

Partial = list[Any]
"""One accumulator for each aggregator."""

_SCALARS = (int, float, str, bool, type(None))
_NOTHING = ""  # in place of a field: an aggregator that asks for no value, count()


class Aggregation:
    """What `aggregate=` declares. Field access: a mapping's or a record's item, else an attribute; no field: the payload
    itself.

    >>> from windowing.core import aggregate as agg
    >>> both = Aggregation({"flights": agg.count(), "worst": agg.max("delay")})
    >>> both.fold([{"delay": 3}, {"delay": 5}])
    {'flights': 2, 'worst': 5}
    """

    __slots__ = ("_columns", "_component", "_fields", "_names", "_parts", "spec")

    def __init__(self, aggregate: Mapping[str, Aggregator] | Aggregator, component: str = "bolt") -> None:
        self._component = component
        self.spec = spec_of(aggregate)
        self._names = list(aggregate) if isinstance(aggregate, Mapping) else None
        self._parts: list[Aggregator] = list(aggregate.values()) if isinstance(aggregate, Mapping) else [aggregate]
        read = [_NOTHING if type(part) is Counted and part.field is None else field_of(part) for part in self._parts]
        self._fields = list(dict.fromkeys(read))
        self._columns = [self._fields.index(field) for field in read]

    def values(self, payloads: Sequence[Any]) -> list[Any]:
        """Return what is read of each payload. Raises ConfigError for a payload without the field. Cost: C speed."""
        columns = [_column(field, payloads) for field in self._fields]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def init(self) -> Partial:
        """Return the partial of nothing."""
        return [part.init() for part in self._parts]

    def add(self, partial: Partial, value: Any) -> None:
        """Add one value to a partial, in place."""
        single = len(self._fields) == 1
        at = 0
        try:
            for at, part in enumerate(self._parts):
                partial[at] = part.add(partial[at], value if single else value[self._columns[at]])
        except Exception as problem:
            raise self._fault(at, shown(value), problem) from problem

    def add_many(self, partial: Partial, values: Sequence[Any]) -> None:
        """Add values in order to a partial, in place: the same as one `add` for each."""
        columns = [values] if len(self._fields) == 1 else list(zip(*values, strict=True))
        at = 0
        try:
            for at, part in enumerate(self._parts):
                partial[at] = add_many(part, partial[at], columns[self._columns[at]])
        except Exception as problem:
            raise self._fault(at, f"{len(values)} values", problem) from problem

    def _fault(self, at: int, given: str, problem: Exception) -> BoltError:
        name = "" if self._names is None else f" {self._names[at]!r}"
        field = field_of(self._parts[at])
        of = "" if field is None else f" of field {field!r}"
        return fault(self._component, f"its aggregate{name}{of}, given {given}", problem)

    def result(self, partials: Iterable[Partial]) -> Any:
        """Return what the bolt sees of all partials together, oldest first: a value, or a dict of them by name."""
        # From init on: a partial itself never gets into the hands of a bolt that might keep it.
        merged = [
            reduce(part.merge, of_part, part.init())
            for part, of_part in zip(self._parts, zip(*partials, strict=True), strict=True)
        ]
        results = [part.result(acc) for part, acc in zip(self._parts, merged, strict=True)]
        return results[0] if self._names is None else dict(zip(self._names, results, strict=True))

    def fold(self, payloads: Sequence[Any]) -> Any:
        """Return what the bolt sees of these payloads."""
        partial = self.init()
        self.add_many(partial, self.values(payloads))
        return self.result([partial])


def plain(partial: Partial) -> Partial:
    """Return a copy that shares nothing with `partial`, for a snapshot."""
    return [acc if isinstance(acc, _SCALARS) else deepcopy(acc) for acc in partial]


def _column(field: str | None, payloads: Sequence[Any]) -> list[Any]:
    if field is None:
        return list(payloads)
    if field == _NOTHING:
        return list(repeat(None, len(payloads)))
    kinds = set(map(type, payloads))
    try:
        if len(kinds) == 1:
            return list(map(_reader(kinds.pop(), field), payloads))
        return [_reader(type(payload), field)(payload) for payload in payloads]
    except (KeyError, AttributeError) as missing:
        raise ConfigError(
            f"aggregate= reads the field {field!r}, which a tuple does not have: {shown(missing.args)}; name one of its fields"
        ) from missing


def _reader(kind: type, field: str) -> Callable[[Any], Any]:
    by_name = issubclass(kind, Mapping) or getattr(kind, "_by_name", False)
    return itemgetter(field) if by_name else attrgetter(field)
