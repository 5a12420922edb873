"""Record: a row as a bolt sees it, the same in one process and on Spark.

    row.delay        row["delay"]        row[2]        origin, delay = row        row._asdict()

Laws: `row[name]` finds every field, whatever it is called; `row.name` does where the name is an identifier of Python that begins
with no underscore. A record is a tuple of its values, equal to any other tuple of them, and never changes.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from windowing.core.checks import did_you_mean
from windowing.core.storm_names import StormNames, getters

__all__ = ["Record", "record_of", "record_type"]


class Record(StormNames):
    """What every record can do; `record_type` makes the class for the fields of a stream.

    >>> row = record_type(("origin", "flight no"))("JFK", 7)
    >>> row.origin, row["origin"], row["flight no"], row[1]
    ('JFK', 'JFK', 7, 7)
    >>> row["orign"]
    Traceback (most recent call last):
    KeyError: "no field 'orign'; did you mean 'origin'?"
    """

    __slots__ = ()

    _by_name = True
    """Tells `aggregate=` to read fields by item (windowing/core/partials.py); an attribute may be called otherwise."""
    _positions: ClassVar[Mapping[str, int]]
    _elsewhere = getters("row") | {
        "getValues": "tuple(row)",
        "getFields": "row._fields",
        "get_values": "tuple(row)",
        "get_fields": "row._fields",
        "as_dict": "row._asdict()",
        "contains": '"word" in row._fields',
    }

    def __getitem__(self, key: Any) -> Any:
        if type(key) is not str:
            return super().__getitem__(key)  # type: ignore[misc]
        try:
            return super().__getitem__(self._positions[key])  # type: ignore[misc]
        except KeyError:
            raise KeyError(f"no field {key!r}; {did_you_mean(key, self._positions)}") from None

    def _asdict(self) -> dict[str, Any]:
        """Return the values by name, by the real names."""
        return dict(zip(self._positions, self, strict=True))  # type: ignore[call-overload]


@lru_cache(maxsize=1024)
def record_type(names: tuple[str, ...]) -> Any:
    """Return the class of records with these fields, a namedtuple (`_make`, `_fields`). The same names give the same class."""
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # the names are known at run time only
    positions = {name: position for position, name in enumerate(names)}
    return type("Row", (Record, base), {"__slots__": (), "_positions": positions, "__doc__": "A row of a stream."})


def record_of(row: Any) -> Any:
    """Return a mapping with names as keys as a record of its own; any other row as it is.

    >>> record_of({"origin": "JFK", "delay": 3})
    Row(origin='JFK', delay=3)
    """
    if not isinstance(row, Mapping) or not all(type(name) is str for name in row):
        return row
    return record_type(tuple(row))._make(row.values())
