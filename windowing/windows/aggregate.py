"""Aggregators for `aggregate=`: they compute the result of a window without keeping its tuples.

    from windowing import aggregate as agg

    aggregate={"n": agg.count(), "mean": agg.mean("delay")}     window.aggregate is a dict by name
    aggregate=agg.sum("delay")                                  window.aggregate is the value

count, sum, mean, min and max of a field are built in; fold makes one of functions; an object with `init`, `add`, `merge` and
`result` (AggregateFunction) is one too. None is ignored, as in SQL: `count("f")` counts the values that are not None; sum, mean,
min and max of no values are None. NaN is larger than every number, as in Spark SQL, so min and max do not depend on order. With
`field=None` the value is the whole tuple.

Laws, for every aggregator that is used with panes:

    add_many(acc, [a, b, c])   == add(add(add(acc, a), b), c)      exactly, floats included
    merge(x, init())           == x == merge(init(), x)
    merge(x, merge(y, z))      == merge(merge(x, y), z)            (exactly for ints; up to rounding for floats)

An accumulator is plain data (numbers, lists, None) and is never changed in place, so that windows can share a partial.

A spec describes the user's own part of a definition as plain JSON data; stored definitions are compared by it:

    agg.max("delay")               {"kind": "max", "field": "delay"}
    agg.fold(list, push, join)     {"kind": "fold", "field": None, "parameters": {"start": "list", "step": "push", ...}}
    eviction=lambda: LastOf(5)     {"kind": "LastOf", "parameters": {"n": 5}}, from the policy that it makes

The same code gives the same spec in every process (no addresses, no order of sets). A function is identified by its name, an object
by its class and its parameters: the fields of a dataclass, else the attributes whose name does not begin with an underscore.

`count`, `sum`, `min` and `max` hide Python's only in this module.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    Context,
    Decimal,
    DecimalException,
    Inexact,
    InvalidOperation,
    getcontext,
    setcontext,
)
from enum import Enum
from functools import reduce
from itertools import chain, repeat
from operator import add as _plus
from operator import is_not, ne
from typing import TYPE_CHECKING, Any, Protocol

from windowing.errors import ConfigError, by_name, quote
from windowing.schema.rows import Record
from windowing.windows.guard import made

__all__ = ["AggregateFunction", "count", "fold", "max", "mean", "min", "sum"]


def title_of(target: Any) -> str:
    """Return the readable name of a function, a class, a functools.partial of either, or the class of an object.

    >>> title_of(functools.partial(title_of, 1)), title_of(lambda: 0), title_of(3)
    ('title_of', '<lambda>', 'int')
    """
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(inspect.unwrap(target), "__qualname__", None)
    return name if isinstance(name, str) else type(target).__qualname__


def short_title(target: Any) -> str:
    """Return `title_of` without the enclosing functions."""
    return title_of(target).rpartition("<locals>.")[2]


def spec_of(aggregator: AggregateFunction | Mapping[str, AggregateFunction]) -> dict[str, Any]:
    """Return the spec of an aggregator: its kind, its field, and its parameters if it has some; by name for a mapping.

    >>> spec_of({"flights": count(), "worst": max("delay")})
    {'flights': {'kind': 'count', 'field': None}, 'worst': {'kind': 'max', 'field': 'delay'}}
    """
    if isinstance(aggregator, Mapping):
        return {name: spec_of(part) for name, part in aggregator.items()}
    kind = getattr(type(aggregator), "kind", None)
    parameters = _parameters(aggregator)
    field = parameters.pop("field", getattr(aggregator, "field", None))
    spec = {"kind": kind if isinstance(kind, str) else type(aggregator).__qualname__, "field": field}
    return spec | ({"parameters": parameters} if parameters else {})


def policy_spec(factory: Callable[[], Any], option: str, component: str) -> str | dict[str, Any]:
    """Return the spec of the policies of `eviction=` or `trigger=`: their class, and their parameters if they have some.

    The factory is called once to get a policy.

    >>> from windowing import CountEvictionPolicy
    >>> policy_spec(lambda: CountEvictionPolicy(3), "eviction", "count")
    'CountEvictionPolicy'
    """
    policy = made(factory, option, component)
    kind, parameters = type(policy).__qualname__, _parameters(policy)
    return {"kind": kind, "parameters": parameters} if parameters else kind


def _parameters(made: Any) -> dict[str, Any]:
    if is_dataclass(made):
        found = {field.name: getattr(made, field.name) for field in fields(made)}
    else:
        slots = (getattr(each, "__slots__", ()) for each in reversed(type(made).__mro__))
        names = [name for each in slots for name in ([each] if isinstance(each, str) else each) if hasattr(made, name)]
        names += getattr(made, "__dict__", ())
        found = {name: getattr(made, name) for name in names if not name.startswith("_")}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """Return a parameter as JSON data; a value without a JSON form becomes a text that is the same in every process."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(map(repr, value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__qualname__, "parameters": _parameters(value)}
    written = repr(value)
    return title_of(value) if callable(value) or " at 0x" in written else written


# -- aggregators -----------------------------------------------------------------------------------------------------------------


# From Python 3.12 on, sum() of floats compensates rounding, so its result differs from adding one by one.
_SUM_IS_SEQUENTIAL = builtins.sum([1e16, 1.0, 1.0]) == (1e16 + 1.0) + 1.0


class AggregateFunction(Protocol):
    """The protocol of a user's own aggregator; `field` (None: the whole tuple) selects the value that `add` gets."""

    @property
    def field(self) -> str | None:
        """The field whose values are added, None for the tuple itself."""

    @abstractmethod
    def init(self) -> Any:
        """Return the accumulator of nothing."""

    @abstractmethod
    def add(self, acc: Any, value: Any) -> Any:
        """Return `acc` with one more value; `acc` may not be used afterwards."""

    @abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """Return the accumulator of the values of `a` followed by those of `b`; neither is changed."""

    @abstractmethod
    def result(self, acc: Any) -> Any:
        """Return the value that the bolt gets; `acc` is not changed."""


def is_aggregator(value: Any) -> bool:
    """Return whether `value` is an object with the four methods of an aggregator (a class with them is not one).

    >>> is_aggregator(mean("delay")), is_aggregator(3), is_aggregator(Counted)
    (True, False, False)
    """
    methods = ("init", "add", "merge", "result")
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def field_of(aggregator: AggregateFunction) -> str | None:
    """Return the aggregator's field; None, the whole tuple, where it names no field."""
    field: str | None = getattr(aggregator, "field", None)
    return field


def aggregated_fields(aggregate: Mapping[str, AggregateFunction] | AggregateFunction) -> tuple[str | None, ...]:
    """Return the field that each aggregator reads, None for the whole tuple. A count without a field reads none and is left out."""
    parts = list(aggregate.values()) if isinstance(aggregate, Mapping) else [aggregate]
    return tuple(field_of(part) for part in parts if not (type(part) is Counted and part.field is None))


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _numbers(values: Sequence[Any]) -> Sequence[Any]:
    return [value for value in values if value == value] if True in builtins.map(ne, values, values) else values


def _number(value: Any) -> Any:
    if not isinstance(value, str | bytes | bytearray | Record):
        return value
    raise TypeError(f"a sum adds numbers, got {quote(value)}; give a field that holds numbers")


def _total(start: Any, values: Iterable[Any]) -> Any:
    """Return `start` plus the values, from left to right; uses the fast sum() only where the result is equal to the last bit. Of
    Decimals it is any Decimal: `exact_sum` has to add them.
    """
    try:
        if _SUM_IS_SEQUENTIAL:
            return builtins.sum(values, start)
        values = list(values)
        total = builtins.sum(values, start) if type(start) is int else None
        return total if type(total) is int else reduce(_plus, values, start)
    except DecimalException:  # the program's context traps what it rounds
        return Decimal()


_EXACT = Context(prec=2_000, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation, Inexact])
"""Enough digits for the sum of any Decimals that are made of floats; those of a declared type have at most 38."""
_MEANS = Context(prec=28, traps=[InvalidOperation]), Context(prec=38, traps=[InvalidOperation])


def exact_sum(values: Iterable[Any]) -> Any:
    """Return the sum of at least one value without rounding, for sums that are Decimals: Python rounds them to the digits of the
    program's `decimal` context. Raises ValueError where it has too many digits for that.

    >>> exact_sum([Decimal("123456789012345678901234567890.12"), 1])
    Decimal('123456789012345678901234567891.12')
    """
    before, rest = getcontext(), iter(values)
    setcontext(_EXACT)  # half the cost of a call of `_EXACT.add` for each value
    try:
        return builtins.sum(rest, next(rest))
    except Inexact:
        raise ValueError(
            f"a sum of Decimals has more than {_EXACT.prec} digits; leave out values that are so far from the others"
        ) from None
    finally:
        setcontext(before)


def _sum(a: Any, b: Any) -> Any:
    total = _total(a, (b,))
    return exact_sum((a, b)) if type(total) is Decimal else total


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of tuples, or, with a field, of values that are not None. Accumulator: an int."""

    field: str | None = None

    kind = "count"

    def init(self) -> int:
        return 0

    def add(self, acc: int, value: Any) -> int:
        return acc if value is None and self.field is not None else acc + 1

    def add_many(self, acc: int, values: Sequence[Any]) -> int:
        return acc + (len(values) if self.field is None else builtins.sum(builtins.map(is_not, values, repeat(None))))

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


@dataclass(frozen=True, slots=True)
class _Single:
    """An aggregator whose accumulator is the result so far, None before the first value."""

    field: str | None = None

    def init(self) -> Any:
        return None

    def result(self, acc: Any) -> Any:
        return acc


@dataclass(frozen=True, slots=True)
class Summed(_Single):
    """The sum of the values, added in order; of Decimals an exact one. Accumulator: the sum so far, None before the first value."""

    kind = "sum"

    def add(self, acc: Any, value: Any) -> Any:
        if value is None:
            return acc
        return _number(value) if acc is None else _sum(acc, value)

    def add_many(self, acc: Any, values: Sequence[Any]) -> Any:
        rest = iter(values)
        try:
            total = _total(_number(next(rest)) if acc is None else acc, rest)
        except (TypeError, StopIteration):  # there is no value, a None, or a value that is not a number
            rest = iter(_present(values))
            if acc is None:
                total = next((_total(_number(first), rest) for first in rest), None)
            else:
                total = _total(acc, rest)
        if type(total) is Decimal:
            return exact_sum(_present(values) if acc is None else [acc, *_present(values)])
        return total

    def of_each(self, runs: Collection[Sequence[Any]]) -> list[Any]:
        """Return `add_many` of no values and each of these runs, none of them empty. Raises TypeError for a None, or a value that
        is not a number, which `add_many` accepts or explains.
        """
        if not _SUM_IS_SEQUENTIAL:
            return [self.add_many(None, run) for run in runs]
        totals = [_total(next(rest), rest) for rest in map(iter, runs)]
        return totals if {int, float}.issuperset(map(type, totals)) else [self.add_many(None, run) for run in runs]

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return _sum(a, b)


@dataclass(frozen=True, slots=True)
class Averaged(_Single):
    """The mean of the values. Accumulator: [sum, count], None before the first value; a sum of Decimals is exact."""

    kind = "mean"

    def add(self, acc: list[Any] | None, value: Any) -> list[Any] | None:
        if value is None:
            return acc
        if acc is None:
            return [_number(value), 1]
        return [_sum(acc[0], value), acc[1] + 1]

    def add_many(self, acc: list[Any] | None, values: Sequence[Any]) -> list[Any] | None:
        present = _present(values)
        if not present:
            return acc
        total = _total(_number(present[0]), present[1:]) if acc is None else _total(acc[0], present)
        if type(total) is Decimal:
            total = exact_sum(present if acc is None else [acc[0], *present])
        return [total, len(present) if acc is None else acc[1] + len(present)]

    def merge(self, a: list[Any] | None, b: list[Any] | None) -> list[Any] | None:
        if a is None or b is None:
            return b if a is None else a
        return [_sum(a[0], b[0]), a[1] + b[1]]

    def result(self, acc: list[Any] | None) -> Any:
        if acc is None:
            return None
        total, count = acc
        if type(total) is Decimal:
            short, long = _MEANS
            return (long if len(total.as_tuple().digits) > short.prec else short).divide(total, count)
        return total / count


@dataclass(frozen=True, slots=True)
class Smallest(_Single):
    """The smallest value, the first of equal ones; NaN only where no value is a number. Accumulator: that value, or None."""

    kind = "min"

    def add(self, acc: Any, value: Any) -> Any:
        if acc is None or value is None:
            return value if acc is None else acc
        if value != value:
            return acc
        return value if acc != acc or value < acc else acc

    def add_many(self, acc: Any, values: Sequence[Any]) -> Any:
        present = _present(values)
        numbers = _numbers(present)
        if acc is None or acc != acc:
            return builtins.min(numbers) if numbers else self.add(acc, present[0]) if present else acc
        return builtins.min(chain((acc,), numbers))

    def merge(self, a: Any, b: Any) -> Any:
        return self.add(a, b)


@dataclass(frozen=True, slots=True)
class Largest(_Single):
    """The largest value, the first of equal ones; NaN where a value is NaN. Accumulator: that value, or None."""

    kind = "max"

    def add(self, acc: Any, value: Any) -> Any:
        if acc is None or value is None:
            return value if acc is None else acc
        if acc != acc:
            return acc
        return value if value != value or value > acc else acc

    def add_many(self, acc: Any, values: Sequence[Any]) -> Any:
        present = _present(values)
        if len(_numbers(present)) < len(present):
            return reduce(self.add, present, acc)
        if acc is None:
            return builtins.max(present) if present else None
        return acc if acc != acc else builtins.max(chain((acc,), present))

    def merge(self, a: Any, b: Any) -> Any:
        return self.add(a, b)


def _identity(acc: Any) -> Any:  # its name is in stored definitions, as the `finish` of a fold
    return acc


@dataclass(frozen=True, slots=True)
class Fold:
    """A user's own aggregator, made by `fold`. Its `add` gets every value, None included."""

    start: Callable[[], Any]
    step: Callable[[Any, Any], Any]
    join: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any] = _identity
    field: str | None = None

    kind = "fold"

    def init(self) -> Any:
        return self.start()

    def add(self, acc: Any, value: Any) -> Any:
        return self.step(acc, value)

    def add_many(self, acc: Any, values: Sequence[Any]) -> Any:
        return reduce(self.step, values, acc)

    def merge(self, a: Any, b: Any) -> Any:
        return self.join(a, b)

    def result(self, acc: Any) -> Any:
        return self.finish(acc)


def _named(field: Any, maker: str) -> str | None:
    if field is not None and not (isinstance(field, str) and field.strip()):
        raise ConfigError(f"{maker}() takes the name of a field, got {quote(field)}; write agg.{maker}('delay')")
    name: str | None = field
    return name


def count(field: str | None = None) -> Counted:
    """Count tuples, or the values of `field` that are not None.

    >>> count().add_many(0, [5, None]), count("f").add_many(0, [5, None])
    (2, 1)
    """
    return Counted(_named(field, "count"))


def sum(field: str | None = None) -> Summed:
    """Add up the values of `field`; the result without values is None. A sum of Decimals is exact, whatever the program's `decimal`
    context says.

    >>> sum("delay").add_many(None, [1, None, 2])
    3
    """
    return Summed(_named(field, "sum"))


def mean(field: str | None = None) -> Averaged:
    """Average the values of `field`; the result without values is None. A mean of Decimals is rounded to 28 digits, and to 38 if
    their sum has more than 28.

    >>> mean("delay").result(mean("delay").add_many(None, [1, None, 2]))
    1.5
    """
    return Averaged(_named(field, "mean"))


def min(field: str | None = None) -> Smallest:
    """Keep the smallest value of `field`; the result without values is None.

    >>> min("delay").add_many(None, [3, None, 2])
    2
    """
    return Smallest(_named(field, "min"))


def max(field: str | None = None) -> Largest:
    """Keep the largest value of `field`; the result without values is None.

    >>> max("delay").add_many(None, [3, None, 2])
    3
    """
    return Largest(_named(field, "max"))


def fold(
    init: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] = _identity,
    field: str | None = None,
) -> Fold:
    """Make an aggregator of four functions. `merge` must not change its arguments; accumulators must be plain data. The result must
    not depend on the order of the values, which is that of arrival where windows hold partial results, else that of time.

    >>> longest = fold(lambda: 0, lambda acc, word: builtins.max(acc, len(word)), builtins.max, field="word")
    >>> longest.merge(longest.add_many(0, ["to", "be"]), 5)
    5
    """
    for name, function in (("init", init), ("add", add), ("merge", merge), ("result", result)):
        if not callable(function):
            raise ConfigError(f"fold() takes functions, got {name}={quote(function)}; write {name}=lambda ...: ...")
    return Fold(init, add, merge, result, _named(field, "fold"))


_ELSEWHERE = {
    "avg average": "write mean(field)",
    "first": "write window.get()[0] in a bolt without aggregate=, whose windows are in order of time",
    "last": "write window.get()[-1] in a bolt without aggregate=, whose windows are in order of time",
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept every name

    def __getattr__(name):
        end = by_name(_ELSEWHERE).get(
            name, "there are count, fold, max, mean, min, sum; write another one as a fold(...)"
        )
        raise AttributeError(f"aggregate has no {name!r}; {end}")
