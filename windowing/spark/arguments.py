"""What a query is given, looked at before anything runs: names, texts, mappings, columns that can travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from windowing.errors import ConfigError, shown
from windowing.spark.hadoop import checked_folder

__all__ = ["names_of", "require_carried", "require_mapping", "require_start"]

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


def require_start(checkpoint: Any, query_name: Any) -> None:
    """Raise ConfigError for a checkpoint that is no path, or a name that Spark cannot give a query."""
    checked_folder("checkpoint", checkpoint)
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        raise ConfigError(f'query_name is a text, got {shown(query_name)}; write query_name="delays"')


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
