"""What a query is given, looked at before anything runs: names, texts, columns that can travel, code that can be sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from windowing.errors import ConfigError, shown, told

__all__ = ["names_of", "require_carried", "require_mapping", "require_start", "require_text", "sendable"]

_REFUSED = ("TimeType", "DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType", "VariantType")


def names_of(option: str, given: Any, what: str) -> tuple[str, ...]:
    """Return names that were given as one text or several. Raises ConfigError for anything else.

    >>> names_of("order_by", "at", "columns"), names_of("order_by", ["at", "id"], "columns")
    (('at',), ('at', 'id'))
    >>> names_of("order_by", 5, "columns")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] order_by names columns, as a text or a list of texts, got 5; write order_by=("name",)
    """
    several = (given,) if isinstance(given, str) else given
    if isinstance(several, Iterable) and not isinstance(several, bytes | Mapping):
        names = tuple(several)
        if all(isinstance(name, str) for name in names):
            return names
    raise ConfigError(
        f'{option} names {what}, as a text or a list of texts, got {shown(given)}; write {option}=("name",)'
    )


def require_text(option: str, given: Any, path: bool = False) -> None:
    """Raise ConfigError unless `given` is a text that is not empty, or, of a path, a Path."""
    if not isinstance(given, (str, os.PathLike) if path else str) or not str(given):
        example = "/data/checkpoints/delays" if path else "delays"
        raise ConfigError(f'{option} is a {"path" if path else "text"}, got {shown(given)}; write {option}="{example}"')


def require_start(checkpoint: Any, query_name: Any) -> None:
    """Raise ConfigError for a checkpoint that is no path, or a name that Spark cannot give a query."""
    require_text("checkpoint", checkpoint, path=True)
    if query_name is not None:
        require_text("query_name", query_name)


def require_mapping(option: str, given: Any) -> None:
    """Raise ConfigError unless `given` is a mapping by name."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{option} is a mapping by name, got {shown(given)}; write {option}={{'name': ...}}")


def require_carried(what: str, schema: StructType) -> None:
    """Raise ConfigError for a column of a type whose values Spark does not hand to Python code and back."""
    for field in schema.fields:
        if not _travels(field.dataType):
            kind = field.dataType.simpleString()
            raise ConfigError(
                f"column {shown(field.name)} of {what} is {kind}, which does not travel between Spark and Python; cast it to a "
                f"number or a text, or drop it: .withColumn({field.name!r}, F.col({field.name!r}).cast('string'))"
            )


def _travels(kind: DataType) -> bool:
    if type(kind).__name__ in _REFUSED:
        return False
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    if parts:
        return all(map(_travels, parts))
    try:
        to_arrow_type(kind, timezone="UTC")
    except Exception:  # PySpark has several for it
        return False
    return True


@contextmanager
def sendable(who: str) -> Iterator[None]:
    """Turn what Spark raises over code that cannot be sent to its workers into a ConfigError."""
    try:
        yield
    except Exception as problem:
        if type(problem).__name__ != "PicklingError":  # what Spark raises for whatever goes wrong there
            raise
        raise ConfigError(
            f"the code of {who} cannot be sent to Spark's workers: {told(problem)}; it uses something from around it that belongs "
            "to this process (a lock, a connection, an open file, the Spark session): make that in the bolt's prepare(), or inside "
            "the function"
        ) from problem
