"""What the local driver reads out of a row: its timestamp, its key, its source. The same rules as on Spark.

A row is a dict, a namedtuple, or any object with attributes. A field that a row lacks is a mistake of whoever feeds it
(ConfigError); a value that cannot be used as a timestamp makes that one tuple invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from windowing.errors import ConfigError, shown

__all__ = ["field_of", "fresh", "key_of", "source_of", "timestamp_ms"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAN = float("nan")


def field_of(row: Any, name: str) -> Any:
    """Return the value of the field `name`, or raise ConfigError if the row has none.

    >>> field_of({"origin": "JFK"}, "origin")
    'JFK'
    """
    if isinstance(row, Mapping):
        if name in row:
            return row[name]
        has = ", ".join(map(str, row))
    else:
        try:
            return getattr(row, name)
        except AttributeError:
            has = ", ".join(getattr(row, "_fields", ())) or "no such attribute"
    raise ConfigError(
        f"field {name!r} is asked for, but a row has {has}: {shown(row)}; name another field, or give every row this one"
    )


def timestamp_ms(row: Any, timestamp: str | Callable[[Any], Any]) -> int | None:
    """Return a row's timestamp in milliseconds since 1970, None where it has no usable one.

    Whole numbers are milliseconds (floats and Decimals too, where they are whole). A datetime is taken in its own zone,
    a naive one and a date as UTC, and rounded down. What a function of the row returns must be an int.

    >>> timestamp_ms({"at": datetime(1970, 1, 1, 0, 0, 1)}, "at"), timestamp_ms({"at": "soon"}, "at")
    (1000, None)
    """
    if isinstance(timestamp, str):
        return _milliseconds(field_of(row, timestamp))
    try:
        value = timestamp(row)
    except Exception:  # the row has no timestamp that this function can find, as on Spark
        return None
    return value if type(value) is int else None


def _milliseconds(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return (aware - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days * 86_400_000
    if isinstance(value, float | Decimal):
        try:
            return int(value) if value == int(value) else None
        except (ValueError, OverflowError):  # NaN, infinity
            return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value)  # numpy's integers


def key_of(row: Any, names: tuple[str, ...]) -> Any:
    """Return the key of a row: a value, or a tuple of them where several fields make it. All NaN are one key."""
    values = tuple(_one_nan(field_of(row, name)) for name in names)
    return values[0] if len(values) == 1 else values


def source_of(row: Any, name: str) -> str | None:
    """Return the source of a row as text, None for none."""
    value = field_of(row, name)
    return None if value is None else str(value)


def fresh(row: Any) -> Any:
    """Return a dict or namedtuple as an object of its own, so that two equal rows can be told apart."""
    if isinstance(row, Mapping):
        return dict(row)
    make = getattr(row, "_make", None)
    return row if make is None else make(row)


def _one_nan(value: Any) -> Any:
    return _NAN if isinstance(value, float) and value != value else value
