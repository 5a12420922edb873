"""The columns of the rows in the folder of a file sink: what `_schema.json` says of them, and which stream may go on there.

    {"type": "struct", "fields": [...]}                             the stream's schema at the last start, as Spark writes one
    {"type": "struct", "fields": [...], "batches": [LAST, ALL]}     if a batch had others: those of the last one; of all together

A reader reads the batches with the columns of the last start. So a column may come, go, or become wider; a start with other changes
is refused while there are batches. It is compared with the batches only, so a start that made none can be undone.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.spark.hadoop import Folder

SCHEMA_FILE = "_schema.json"


class WrittenColumns(NamedTuple):
    """The columns of a stream: of the last start, which may have made no batch; of the last batch; of all batches together."""

    started: StructType
    last: StructType
    every: StructType

    @classmethod
    def of(cls, schema: StructType, before: WrittenColumns | None = None) -> WrittenColumns:
        """Return those after a batch with these columns. before: those before it."""
        return cls(schema, schema, schema if before is None else _united(before.every, schema))

    def record(self) -> bytes:
        """Return the content of the file."""
        content = self.started.jsonValue()
        if any(each.simpleString() != self.started.simpleString() for each in self[1:]):
            content["batches"] = [each.jsonValue() for each in self[1:]]
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def written_columns(folder: Folder) -> WrittenColumns | None:
    """Return what the file of a folder says, None for a new folder. Raises CorruptStateError."""
    if not folder.exists(SCHEMA_FILE):
        return None
    try:
        found = json.loads(folder.read(SCHEMA_FILE))
        last, every = found.get("batches", (found, found))
        return WrittenColumns(*(nullable(StructType.fromJson(each)) for each in (found, last, every)))
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CorruptStateError(f"{folder / SCHEMA_FILE} is no schema: {quote(str(problem))}; delete it") from problem


def nullable(schema: StructType) -> StructType:
    """Make all columns of a schema nullable, and return it."""
    for field in schema.fields:
        field.nullable = True
    return schema


def require_readable(folder: Folder, name: str, schema: StructType, way_out: str) -> None:
    """Raise ConfigError if a column of the batches in a folder has another name or type in the stream: it would be read as null.
    name: that of the stream.
    """
    kept = written_columns(folder)
    if kept is None:
        return
    # A column that went while another one came was renamed. One that went earlier may come back, as what it was.
    for there, wanted in (kept.last, schema), (kept.every, _united(kept.every, schema)):
        if _is_readable(there, wanted):
            continue
        old, new = ({field.name: field.dataType for field in each} for each in (there, wanted))
        same = {name for name in old.keys() & new.keys() if _is_readable(old[name], new[name])}
        gone, come = (
            ", ".join(f"{name} {kind.simpleString()}" for name, kind in each.items() if name not in same)
            for each in (old, new)
        )
        raise ConfigError(
            f"{folder} holds batches with {gone}, and {name} has {come} in its place, which would be null or unreadable in the old "
            f"ones; {way_out}"
        )


_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
"""The types as which a column of a type is read from files of each format."""


def _is_readable(there: DataType, wanted: DataType) -> bool:
    """Return whether files with a type are read as another one: equal or wider; of a struct, fields only came or only went."""
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        old, new = ({field.name: field.dataType for field in each} for each in (there, wanted))
        return (old.keys() <= new.keys() or old.keys() >= new.keys()) and all(
            _is_readable(old[name], new[name]) for name in old.keys() & new.keys()
        )
    if isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        return _is_readable(there.elementType, wanted.elementType)
    if isinstance(there, MapType) and isinstance(wanted, MapType):
        return _is_readable(there.keyType, wanted.keyType) and _is_readable(there.valueType, wanted.valueType)
    old_type, new_type = there.simpleString(), wanted.simpleString()
    return old_type == new_type or new_type in _WIDER.get(old_type, ())


def _united(old: Any, new: Any) -> Any:
    """Return a type with the fields that an older one has besides, at any depth."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        was, fields = ({field.name: field.dataType for field in each} for each in (old, new))
        fields |= {name: _united(kind, fields.get(name, kind)) for name, kind in was.items()}
        return StructType([StructField(*each) for each in fields.items()])
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_united(old.elementType, new.elementType))
    if isinstance(old, MapType) and isinstance(new, MapType):
        return MapType(_united(old.keyType, new.keyType), _united(old.valueType, new.valueType))
    return new
