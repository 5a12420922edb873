"""The fields of a stream, and the routing of its tuples by a repartition.

    schema   sentence string, n bigint
    rows     ("to be", 1), ("or not", 2)            a row is a plain tuple of values, in the order of the schema

| repartition                | grouping              | tasks of a tuple                                            |
|----------------------------|-----------------------|-------------------------------------------------------------|
| partition_by(fields)       | Fields                | the task of its key                                         |
| shuffle, local_or_shuffle  | Shuffle, LocalOrShuffle | in turn, from a start that depends on the batch           |
| global_                    | Global                | the first                                                   |
| batch_global               | BatchGlobal           | txid mod tasks: the same for a batch, another for the next  |
| broadcast                  | All                   | all tasks                                                   |
| partition(function)        | Custom                | the result of the function of (values, tasks)               |
| identity_partition, and between groups | Identity  | the task of the same number                                 |

Laws: the names of a schema are distinct, ignoring case. Rows are never changed. The target of a tuple depends only on (tuples,
batch, partition), so each attempt sends a tuple to the same task. The order of tuples between two tasks is kept.
Source: Storm's `IndexHashGrouping`, `GlobalGrouping`, `IdentityGrouping`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import did_you_mean, given_names
from windowing.schema.types import Schema
from windowing.topology.groupings import Grouping
from windowing.windows.aggregate import title_of

Row = tuple[Any, ...]
"""The values of one tuple, in the order of its stream's fields."""


def names_of(fields: Any) -> tuple[str, ...]:
    """Return the given names, unchecked; none for None."""
    return () if fields is None else given_names(fields)


def chosen(schema: Schema, names: Iterable[Any]) -> Schema:
    """Return the fields with these names, in their order. Raises ConfigError for an unknown or repeated name.

    >>> chosen(Schema.parse("word string, n long"), ("n",)).ddl
    'n bigint'
    """
    found: list[str] = []
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"there is no field {quote(name)}; {did_you_mean(str(name), schema.names)}")
        if name in found:
            raise ConfigError(f"field {name!r} is named twice; name each field once")
        found.append(name)
    return schema.of(found)


def extended(schema: Schema, new: Schema) -> Schema:
    """Return the fields of `schema` followed by those of `new`. Raises ConfigError for a name in both."""
    taken = {name.lower(): name for name in schema.names}
    for name in new.names:
        if name.lower() in taken:
            raise ConfigError(
                f"field {name!r} is there already ({schema.ddl}), upper and lower case being the same; give the new one "
                "another name, or project the old one away"
            )
    return Schema(schema.names + new.names, schema.types + new.types)


def short_title(target: Any) -> str:
    """Return the name of a function, a class or an object's class, without enclosing functions."""
    return title_of(target).rpartition("<locals>.")[2]


# -- partitions ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdentityGrouping:
    """Partition i of the source sends to partition i of the target; both have the same number of partitions."""

    def __str__(self) -> str:
        return "identity"


@dataclass(frozen=True, slots=True)
class BatchGlobalGrouping:
    """All tuples of a batch go to one partition; consecutive batches go to different partitions."""

    def __str__(self) -> str:
        return "batchGlobal"


Partitioning = Grouping | IdentityGrouping | BatchGlobalGrouping
