"""Schema: the fields that a stream carries, written as in Spark's DDL: "origin string, flights long, mean double".

Grammar: field, field, ...; a field is a name, a blank (or a colon), a type. Types are read to their innermost part and kept in
one spelling (long is bigint), see types.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windowing.core.checks import DEFAULT_STREAM, checked_name
from windowing.errors import ConfigError, shown
from windowing.topology.types import named_types

__all__ = ["Schema", "declare_streams"]

_EXAMPLE = "write for example output='origin string, flights long, mean double'"


@dataclass(frozen=True, slots=True)
class Schema:
    """The names and types of a stream's fields, in order; `types[i]` is the type of `names[i]`, as Spark prints it.

    >>> Schema.parse("origin string, flights long").ddl
    'origin string, flights bigint'
    >>> Schema.parse("origin strin")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] field 'origin' has an unknown type 'strin'; did you mean 'string'?
    """

    names: tuple[str, ...]
    types: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Return the schema that `text` declares; ConfigError says which field is wrong. Cost: O(len(text))."""
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"a schema is a text of fields with their types, got {shown(text)}; {_EXAMPLE}")
        fields = list(named_types(text))
        return cls(tuple(name for name, _ in fields), tuple(str(kind) for _, kind in fields))

    @property
    def ddl(self) -> str:
        """The schema as a text that Spark reads, and that `parse` reads back to an equal schema."""
        return ", ".join(f"{name} {kind}" for name, kind in zip(self.names, self.types, strict=True))

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        return self.ddl


def declare_streams(output: str | Schema | Mapping[str, str | Schema]) -> dict[str, Schema]:
    """Return the declared streams by name, "default" first: a text is the default stream, a mapping names several.

    >>> declare_streams({"slow": "origin string", "default": "n int"})
    {'default': Schema(names=('n',), types=('int',)), 'slow': Schema(names=('origin',), types=('string',))}
    """
    if isinstance(output, str | Schema):
        return {DEFAULT_STREAM: _schema(output)}
    if not isinstance(output, Mapping) or not output:
        raise ConfigError(
            f"output is a text of fields, or a mapping of streams to such texts, got {shown(output)}; {_EXAMPLE}"
        )
    streams = {}
    for stream, fields in output.items():
        name = checked_name(stream, "a stream in output")
        try:
            streams[name] = _schema(fields)
        except ConfigError as problem:
            raise ConfigError(f"stream {name!r}: {problem.args[0]}") from None
    lowered = [name.lower() for name in streams]
    if len(set(lowered)) < len(lowered):
        raise ConfigError(
            f"two streams of output differ only in upper and lower case, got {', '.join(streams)}; "
            "each stream becomes a column and a folder, so give each a name of its own"
        )
    return {name: streams[name] for name in sorted(streams, key=lambda name: name != DEFAULT_STREAM)}


def _schema(fields: str | Schema) -> Schema:
    return fields if isinstance(fields, Schema) else Schema.parse(fields)
