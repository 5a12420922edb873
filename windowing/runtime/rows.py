"""What the local driver reads out of a row: its timestamp, its key, its source. The same rules as on Spark.

A row is a record or another mapping, a namedtuple, or any object with attributes. A key or a source that a row lacks is a
mistake of whoever feeds it (ConfigError); a timestamp that is missing, or cannot be used, makes that one tuple invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from windowing.core.codec import NAN
from windowing.errors import ConfigError, InvalidTimestampError, shown, told
from windowing.topology.records import Record
from windowing.topology.stamps import TimestampFunction
from windowing.topology.values import timestamp_of

__all__ = ["field_of", "key_of", "require_hash", "source_of", "timestamps_of"]


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
        except AttributeError:  # any other error is the user's own code's
            has = ", ".join(getattr(row, "_fields", ())) or "no such attribute"
    raise ConfigError(
        f"field {name!r} is asked for, but a row has {has}: {shown(row)}; name another field, or give every row this one"
    )


def timestamps_of(
    rows: Iterable[Any], timestamp: str | Callable[[Any], Any], bolt: str, on_invalid: str = "late"
) -> tuple[list[int | None], str | None]:
    """Return the timestamp of each row, None where it has no usable one, and what was wrong the first time.

    A row without the field has none, and neither has one on which the function fails: with `on_invalid="raise"` that is an
    InvalidTimestampError. What a field holds is judged by the windows.

    >>> timestamps_of([{"at": 1.0}, {"at": "soon"}], "at", "count"), timestamps_of([{}], lambda row: row["at"], "count")[0]
    (([1, None], None), [None])
    """
    if not isinstance(timestamp, str):
        stamp = TimestampFunction(timestamp, bolt, on_invalid)
        return [stamp(row) for row in rows], stamp.problem
    found: list[int | None] = []
    first: str | None = None
    for row in rows:
        try:
            found.append(timestamp_of(field_of(row, timestamp)))
        except Exception as problem:
            text = f"bolt {bolt!r}: {told(problem)}"
            if on_invalid == "raise":
                raise InvalidTimestampError(text) from problem
            found.append(None)
            first = first or text
    return found, first


def key_of(row: Any, names: tuple[str, ...]) -> Any:
    """Return the key of a row: a value, or a tuple of them where several fields make it. All NaN are one key."""
    values = tuple(_one_nan(field_of(row, name)) for name in names)
    return values[0] if len(values) == 1 else values


def require_hash(bolt: str, names: tuple[str, ...], keys: Iterable[Any]) -> None:
    """Raise ConfigError for the first of these keys that has no hash. To be asked when one has failed: most have."""
    for key in keys:
        for name, value in zip(names, key if len(names) > 1 else (key,), strict=True):
            try:
                hash(value)
            except Exception as problem:
                why = "" if isinstance(problem, TypeError) else f" (its __hash__ raised {told(problem)})"
                raise ConfigError(
                    f"key of bolt {bolt!r} names field {name!r}, which is {shown(value)} in a row, a {type(value).__name__} "
                    f"without a hash{why}; give a field of plain values, or of tuples of such"
                ) from None


def source_of(row: Any, name: str) -> str | None:
    """Return the source of a row as text, None for none."""
    value = field_of(row, name)
    try:
        return None if value is None else str(value)
    except Exception as problem:
        raise ConfigError(
            f"source= names field {name!r}, which is {shown(value)} in a row: no text, {told(problem)}; give one of plain values"
        ) from problem


def _one_nan(value: Any) -> Any:
    return NAN if isinstance(value, float) and value != value else value
