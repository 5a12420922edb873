"""The Arrow types of declared fields, without a JVM: what Spark's own conversion gives (a test compares the two)."""

from __future__ import annotations

import pyarrow as pa

from windowing.topology.schema import Schema
from windowing.topology.types import FieldType

__all__ = ["arrow_schema", "arrow_type"]

_SIMPLE = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the fields of a stream as Arrow has them; each may be null.

    >>> arrow_schema(Schema.parse("word string, n long")).types
    [DataType(string), DataType(int64)]
    """
    named = zip(schema.names, schema.types, strict=True)
    return pa.schema([pa.field(name, arrow_type(FieldType.parse(kind))) for name, kind in named])


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a field."""
    inner = [arrow_type(each) for each in kind.inner]
    match kind.kind:
        case "decimal":
            return pa.decimal128(*kind.digits)
        case "array":
            return pa.list_(pa.field("element", inner[0]))
        case "map":
            return pa.map_(*inner)
        case "struct":
            return pa.struct([pa.field(name, each) for name, each in zip(kind.names, inner, strict=True)])
    return _SIMPLE[kind.kind]
