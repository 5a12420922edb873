"""Schema: the fields that a stream carries, written as in Spark's DDL: "origin string, flights long, mean double".

Grammar: field, field, ...; a field is a name, a blank, a type. Simple types are known by name and kept in one spelling
(long is bigint); a nested type (array<...>, map<...>, struct<...>) is kept as written, once its brackets balance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from windowing.core.checks import DEFAULT_STREAM, checked_name, did_you_mean
from windowing.errors import ConfigError, shown

__all__ = ["Schema", "declare_streams"]

_SIMPLE = {
    "string": "string",
    "boolean": "boolean",
    "byte": "tinyint",
    "tinyint": "tinyint",
    "short": "smallint",
    "smallint": "smallint",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "bigint": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "binary": "binary",
    "decimal": "decimal(10,0)",
}
_NESTED = ("array", "map", "struct")
_DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)
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
        fields = [_field(part, text) for part in _split(text)]
        seen: dict[str, str] = {}
        for name, _ in fields:
            if name.lower() in seen:
                raise ConfigError(
                    f"field {name!r} stands twice in {shown(text)} (upper and lower case are the same to Spark); "
                    "give each field a name of its own"
                )
            seen[name.lower()] = name
        return cls(tuple(name for name, _ in fields), tuple(kind for _, kind in fields))

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


def _split(text: str) -> list[str]:
    """Return `text` cut at the commas that stand in no bracket."""
    closing = {"<": ">", "(": ")"}
    opened: list[str] = []
    parts = [""]
    for character in text:
        if character in closing:
            opened.append(closing[character])
        elif character in (">", ")") and (not opened or opened.pop() != character):
            raise ConfigError(f"the {character!r} in {shown(text)} closes nothing; balance the brackets of each type")
        if character == "," and not opened:
            parts.append("")
        else:
            parts[-1] += character
    if opened:
        raise ConfigError(f"{shown(text)} lacks a {opened[-1]!r}; balance the brackets of each type")
    return parts


def _field(part: str, text: str) -> tuple[str, str]:
    words = part.strip().split(None, 1)
    if not words:
        raise ConfigError(f"a field is missing beside a comma in {shown(text)}; leave out the comma or name the field")
    name = checked_name(words[0], "a field's name")
    if len(words) < 2:
        raise ConfigError(f"field {name!r} has no type in {shown(text)}; write a type behind the name: '{name} string'")
    return name, _type(" ".join(words[1].split()), name)


def _type(written: str, name: str) -> str:
    simple = _SIMPLE.get(written.lower())
    if simple is not None:
        return simple
    decimal = _DECIMAL.fullmatch(written)
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if not (1 <= precision <= 38 and scale <= precision):
            raise ConfigError(
                f"field {name!r} is {written}; a decimal has 1 to 38 digits, of which no more stand behind the point: "
                "write decimal(18,2)"
            )
        return f"decimal({precision},{scale})"
    head, bracket, rest = written.partition("<")
    if bracket and head.strip().lower() in _NESTED and rest.endswith(">") and _one_bracket(rest):
        if not rest[:-1].strip():
            raise ConfigError(f"field {name!r} is {written}, with nothing inside; write for example array<string>")
        return f"{head.strip().lower()}<{rest}"
    if written.lower() in _NESTED:
        raise ConfigError(f"field {name!r} is {written} of what? Write for example array<string> or map<string, long>")
    raise ConfigError(
        f"field {name!r} has an unknown type {shown(written)}; {did_you_mean(written, [*_SIMPLE, *_NESTED])}"
    )


def _one_bracket(rest: str) -> bool:
    """Return whether the bracket opened before `rest` closes with its last character and not before."""
    depth = 1
    for position, character in enumerate(rest):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth == 0:
            return position == len(rest) - 1
    return False
