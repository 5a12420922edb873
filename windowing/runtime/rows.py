"""What the local driver reads out of a row: its timestamp, its key, its source. The same rules as on Spark.

A row is a record or another mapping, a namedtuple, or any object with attributes. A key or a source that a row lacks is a
mistake of whoever feeds it (ConfigError); a timestamp that is missing, or cannot be used, makes that one tuple invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from windowing.core.codec import NAN
from windowing.errors import ConfigError, shown
from windowing.topology.records import Record
from windowing.topology.values import timestamp_of

__all__ = ["field_of", "key_of", "source_of", "timestamp_ms", "timestamps_of"]


def field_of(row: Any, name: str) -> Any:
    """Return the value of the field `name`, or raise ConfigError if the row has none.

    >>> field_of({"origin": "JFK"}, "origin")
    'JFK'
    """
    if isinstance(row, Mapping | Record):
        values = row._asdict() if isinstance(row, Record) else row
        if name in values:
            return values[name]
        has = ", ".join(map(str, values))
    else:
        try:
            return getattr(row, name)
        except AttributeError:
            has = ", ".join(getattr(row, "_fields", ())) or "no such attribute"
    raise ConfigError(
        f"field {name!r} is asked for, but a row has {has}: {shown(row)}; name another field, or give every row this one"
    )


def timestamp_ms(row: Any, timestamp: str | Callable[[Any], Any]) -> int | None:
    """Return a row's timestamp in milliseconds since 1970, None where it has no usable one, by the rules of `timestamp_of`.

    A row without the field has none, and neither has one on which the function raises.

    >>> timestamp_ms({"at": 1.0}, "at"), timestamp_ms({"at": "soon"}, "at"), timestamp_ms({}, lambda row: row["at"])
    (1, None, None)
    """
    return timestamps_of([row], timestamp)[0][0]


def timestamps_of(
    rows: Iterable[Any], timestamp: str | Callable[[Any], Any]
) -> tuple[list[int | None], list[Exception]]:
    """Return the timestamp of each row, as `timestamp_ms` does, and why rows have none: what was raised on them, in order."""
    ask: Callable[[Any], Any] = partial(field_of, name=timestamp) if isinstance(timestamp, str) else timestamp
    found: list[int | None] = []
    problems: list[Exception] = []
    for row in rows:
        try:
            found.append(timestamp_of(ask(row)))
        except Exception as problem:  # the row has no timestamp that can be found, as on Spark
            found.append(None)
            problems.append(problem)
    return found, problems


def key_of(row: Any, names: tuple[str, ...]) -> Any:
    """Return the key of a row: a value, or a tuple of them where several fields make it. All NaN are one key."""
    values = tuple(_one_nan(field_of(row, name)) for name in names)
    return values[0] if len(values) == 1 else values


def source_of(row: Any, name: str) -> str | None:
    """Return the source of a row as text, None for none."""
    value = field_of(row, name)
    return None if value is None else str(value)


def _one_nan(value: Any) -> Any:
    return NAN if isinstance(value, float) and value != value else value
