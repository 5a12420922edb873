"""Types of fields, and Schema: the fields of a stream, written as in Spark's DDL.

    "origin string, flights long, mean double"         field, field, ...; a field is a name, a space (or a colon), a type

    "array<struct<x: long, y decimal(5, 2)>>"
        array --of--> struct --x--> bigint
                             --y--> decimal(5,2)          prints array<struct<x:bigint,y:decimal(5,2)>>

Laws: every spelling of a type gives the same tree (long is bigint), so equal types compare equal; `parse` reads the output of
`str` back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import DEFAULT_STREAM, checked_name, did_you_mean

_SIMPLE = {
    "string": "string",
    "text": "string",
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
}
WHOLE_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""The types of whole numbers, with their bits."""
_ELSEWHERE = {
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "number": "double",
    "str": "string",
    **dict.fromkeys(("varchar", "char", "variant", "interval", "json", "uuid"), "string"),
    **dict.fromkeys(("numeric", "dec"), "decimal"),
    "bool": "boolean",
    "bytes": "binary",
    "datetime": "timestamp",
    "list": "array",
    "dict": "map",
}
"""Types of Python, pandas, Arrow and SQL, and what they are here; a name of them alone would suggest another type."""
_EXAMPLES = {"array": "array<string>", "map": "map<string, long>", "struct": "struct<x: long, y: double>"}
_DECIMAL = re.compile(r"decimal(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.IGNORECASE)
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_NAMED = re.compile(r"\s*([^\s:]+)(?:\s*:\s*|\s+|\s*$)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type: its kind in Spark's spelling, and the types inside.

    `inner`: the element of an array, key and value of a map, or the fields of a struct, named by `names`. `digits`: precision
    and scale of a decimal.

    >>> str(FieldType.parse("Map<string, array<LONG>>", "delays"))
    'map<string,array<bigint>>'
    >>> FieldType.parse("array<strng>", "carriers")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] field 'carriers' has an unknown type 'strng'; did you mean 'string'?
    """

    kind: str
    inner: tuple[FieldType, ...] = ()
    names: tuple[str, ...] = ()
    digits: tuple[int, int] = (0, 0)

    @staticmethod
    @cache
    def parse(written: str, field: str = "value") -> FieldType:
        """Return the type that `written` means. Raises ConfigError, which names the `field`. Cost: O(len(written)), once."""
        written = written.strip()
        simple = _SIMPLE.get(written.lower())
        if simple is not None:
            return FieldType(simple)
        decimal = _DECIMAL.fullmatch(written)
        if decimal is not None:
            return _decimal(int(decimal[1] or 10), int(decimal[2] or 0), written, field)
        nested = _NESTED.fullmatch(written)
        if nested is not None and _one_bracket(nested[2]):
            return _nested(nested[1].lower(), nested[2], written, field)
        if written.lower() in _EXAMPLES:
            raise ConfigError(f"field {field!r} is {written} of what? Write for example {_EXAMPLES[written.lower()]}")
        if written.lower().endswith(" not null"):
            raise ConfigError(f"field {field!r} is declared NOT NULL; every field may be None, so leave it out")
        if " " in written and written.partition(" ")[0].lower() in _SIMPLE:
            raise ConfigError(
                f"field {field!r} has an unknown type {quote(written)}; write a comma between fields, as in "
                "'word string, n long'"
            )
        outer, bracket, inside = written.partition("<")
        meant = _ELSEWHERE.get(re.split(r"[\s(]", outer)[0].lower())
        hint = did_you_mean(meant or written, [*_SIMPLE, "decimal", *_EXAMPLES])
        if bracket and meant in _EXAMPLES:
            hint = f"did you mean {quote(f'{meant}<{inside}')}?"
        raise ConfigError(f"field {field!r} has an unknown type {quote(written)}; {hint}")

    def __str__(self) -> str:
        if self.kind == "decimal":
            return "decimal({},{})".format(*self.digits)
        if self.kind == "struct":
            fields = zip(self.names, self.inner, strict=True)
            return f"struct<{','.join(f'{name}:{kind}' for name, kind in fields)}>"
        return f"{self.kind}<{','.join(map(str, self.inner))}>" if self.inner else self.kind


def _decimal(precision: int, scale: int, written: str, field: str) -> FieldType:
    if not (1 <= precision <= 38 and scale <= precision):
        raise ConfigError(
            f"field {field!r} is {written}; a decimal has 1 to 38 digits, of which no more stand behind the point: "
            "write decimal(18,2)"
        )
    return FieldType("decimal", digits=(precision, scale))


def _nested(kind: str, inside: str, written: str, field: str) -> FieldType:
    if not inside.strip():
        raise ConfigError(f"field {field!r} is {written}, with nothing inside; write for example {_EXAMPLES[kind]}")
    if kind == "struct":
        fields = list(named_types(inside))
        return FieldType(kind, tuple(each for _, each in fields), tuple(name for name, _ in fields))
    parts = cut(inside)
    if len(parts) != (2 if kind == "map" else 1):
        raise ConfigError(
            f"field {field!r} is {written}; {'a map has a key and a value' if kind == 'map' else 'an array has one type'}: "
            f"write for example {_EXAMPLES[kind]}"
        )
    inner = tuple(FieldType.parse(part, field) for part in parts)
    if kind == "map" and "map<" in str(inner[0]):
        raise ConfigError(f"field {field!r} is {written}, but Spark takes no map as the key of a map; write a struct")
    return FieldType(kind, inner)


def _one_bracket(inside: str) -> bool:
    """Return whether no bracket in `inside` closes one from before it, so that the text is not two adjacent types."""
    depth = 0
    for character in inside:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if depth < 0:
            return False
    return True


def named_types(text: str) -> Iterator[tuple[str, FieldType]]:
    """Yield the fields of a text such as "origin string, flights: long", each name once (upper and lower case are one)."""
    seen: set[str] = set()
    for part in cut(text):
        found = _NAMED.fullmatch(part)
        if found is None:
            raise ConfigError(
                f"a field is missing beside a comma in {quote(text)}; leave out the comma or name the field"
            )
        name = checked_name(found[1], "a field's name")
        if not found[2].strip():
            raise ConfigError(
                f"field {name!r} has no type in {quote(text)}; write a type behind the name: '{name} string'"
            )
        if name.lower() in seen:
            raise ConfigError(
                f"field {name!r} stands twice in {quote(text)} (upper and lower case are the same to Spark); "
                "give each field a name of its own"
            )
        seen.add(name.lower())
        yield name, FieldType.parse(" ".join(found[2].split()), name)


def cut(text: str) -> list[str]:
    """Return `text` split at the commas outside of brackets."""
    closing = {"<": ">", "(": ")"}
    opened: list[str] = []
    parts = [""]
    for character in text:
        if character in closing:
            opened.append(closing[character])
        elif character in (">", ")") and (not opened or opened.pop() != character):
            raise ConfigError(f"the {character!r} in {quote(text)} closes nothing; balance the brackets of each type")
        if character == "," and not opened:
            parts.append("")
        else:
            parts[-1] += character
    if opened:
        raise ConfigError(f"{quote(text)} lacks a {opened[-1]!r}; balance the brackets of each type")
    return parts


# -- Schema ----------------------------------------------------------------------------------------------------------------------

Row = tuple[Any, ...]
"""The values of one tuple, in the order of its stream's fields."""

_EXAMPLE = "write for example output='origin string, flights long, mean double'"


def _fields_of(given: Any) -> str:
    """Return what to write in place of a StructType of Spark, or of its text; for anything else an example."""
    simple = getattr(given, "simpleString", None)
    whole = _NESTED.fullmatch(str(simple() if callable(simple) else given).strip())
    return _EXAMPLE if whole is None or whole[1].lower() != "struct" else f"write {whole[2]!r}"


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
        """Return the schema that `text` declares. Raises ConfigError, which names the wrong field. Cost: O(len(text))."""
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"a schema is a text of fields with their types, got {quote(text)}; {_fields_of(text)}")
        if text.lstrip().lower().startswith("struct<"):
            raise ConfigError(f"a schema is the fields alone, got the struct of them; {_fields_of(text)}")
        fields = list(named_types(text))
        return cls(tuple(name for name, _ in fields), tuple(str(kind) for _, kind in fields))

    def of(self, names: Iterable[str]) -> Schema:
        """Return the schema of some of the fields, in the given order."""
        kinds, chosen = self.kinds, tuple(names)
        return Schema(chosen, tuple(kinds[name] for name in chosen))

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each field by its name, in order."""
        return dict(zip(self.names, self.types, strict=True))

    @property
    def ddl(self) -> str:
        """The schema as a text that Spark reads, and that `parse` converts back to an equal schema."""
        return ", ".join(f"{name} {kind}" for name, kind in zip(self.names, self.types, strict=True))

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        return self.ddl


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
    taken = {name.lower() for name in schema.names}
    for name in new.names:
        if name.lower() in taken:
            raise ConfigError(
                f"field {name!r} is there already ({schema.ddl}), upper and lower case being the same; give the new one "
                "another name, or project the old one away"
            )
    return Schema(schema.names + new.names, schema.types + new.types)


def declare_streams(output: str | Schema | Mapping[str, str | Schema]) -> dict[str, Schema]:
    """Return the declared streams by name, "default" first: a text is the default stream, a mapping names several.

    >>> declare_streams({"slow": "origin string", "default": "n int"})
    {'default': Schema(names=('n',), types=('int',)), 'slow': Schema(names=('origin',), types=('string',))}
    """
    if isinstance(output, str | Schema):
        return {DEFAULT_STREAM: _schema(output)}
    if not isinstance(output, Mapping) or not output:
        raise ConfigError(
            f"output is a text of fields, or a mapping of streams to such texts, got {quote(output)}; {_fields_of(output)}"
        )
    streams = {}
    for stream, fields in output.items():
        name = checked_name(stream, "a stream in output")
        try:
            streams[name] = _schema(fields)
        except ConfigError as problem:
            raise ConfigError(
                f"stream {name!r}: {problem.args[0]} (the names in a mapping are those of streams, not of fields)"
            ) from None
    lowered = [name.lower() for name in streams]
    if len(set(lowered)) < len(lowered):
        raise ConfigError(
            f"two streams of output differ only in upper and lower case, got {', '.join(streams)}; "
            "each stream becomes a column and a folder, so give each a name of its own"
        )
    return {name: streams[name] for name in sorted(streams, key=lambda name: name != DEFAULT_STREAM)}


def _schema(fields: str | Schema) -> Schema:
    return fields if isinstance(fields, Schema) else Schema.parse(fields)
