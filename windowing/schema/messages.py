"""Conversion of texts by name (an entry of a Redis stream), a JSON object (a message body) or a row of a JSON file to a row.

| type | as text | in JSON |
|---|---|---|
| string | as it is | a string |
| date, timestamp | ISO 8601: 2026-01-31, 2026-01-31T12:00:00Z | the same, as a string |
| decimal | 12.50 | the same, as a string, or a whole number |
| binary | the bytes | Base64, as a string |
| others | JSON: 7, 0.5, true, [1, 2], {"n": 7} | the value |

A field that is missing in a message is null, and one that is not declared is left out. A message with none of the declared fields
is invalid. A row of a file has the declared fields, no less and no more.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from types import MappingProxyType
from typing import Any

from windowing.errors import quote
from windowing.schema.rows import RowError, row_of
from windowing.schema.types import FieldType, Schema


class BadMessage(ValueError):
    """A message is not a row of the declared fields; the text states why."""


def row_of_texts(
    texts: Mapping[bytes, bytes], schema: Schema, more: Mapping[str, str] = MappingProxyType({})
) -> tuple[Any, ...]:
    """Return the row of fields given as UTF-8 texts. Raises BadMessage. more: further fields that are not in the message.

    >>> row_of_texts({b"word": b"cow", b"n": b"3"}, Schema.parse("word string, n long, at timestamp"))
    ('cow', 3, None)
    """
    named = [(name, FieldType.parse(kind)) for name, kind in zip(schema.names, schema.types, strict=True)]
    if not any(name.encode() in texts for name in schema.names):
        given = quote([name.decode(errors="replace") for name in texts])
        raise BadMessage(f"it has the fields {given}, none of {', '.join(schema.names)}")
    of_all = {name.encode(): text.encode() for name, text in more.items()} | dict(texts)
    found = [(name, kind, of_all.get(name.encode())) for name, kind in named]
    return _checked([_of_text(name, kind, text) for name, kind, text in found], schema)


def row_of_json(body: bytes, schema: Schema) -> tuple[Any, ...]:
    """Return the row of a JSON object in UTF-8. Raises BadMessage.

    >>> row_of_json(b'{"word": "cow", "at": "2026-01-31T12:00:00Z"}', Schema.parse("word string, at timestamp"))
    ('cow', datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.timezone.utc))
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadMessage(f"it is {quote(body)}, no JSON") from None
    if not isinstance(found, dict) or not any(name in found for name in schema.names):
        raise BadMessage(f"it is {quote(found)}, no object with one of the fields {', '.join(schema.names)}")
    named = zip(schema.names, schema.types, strict=True)
    return _checked([_of_json(name, FieldType.parse(kind), found.get(name)) for name, kind in named], schema)


def typed_row(row: Any, schema: Schema) -> Any:
    """Return a row of a JSON file, a list of values or an object, with its values in the types of the fields. A wrong number of
    values, and names of no field, are left as they are, for the checks of rows. Raises BadMessage.

    >>> typed_row(["cow", "2026-01-31"], Schema.parse("word string, day date"))
    ('cow', datetime.date(2026, 1, 31))
    >>> typed_row({"day": "2026-01-31", "n": 7}, Schema.parse("word string, day date"))
    {'day': datetime.date(2026, 1, 31), 'n': 7}
    """
    kinds = {name: FieldType.parse(kind) for name, kind in schema.kinds.items()}
    if isinstance(row, dict):
        return {name: _of_json(name, kinds.get(name, _UNKNOWN), value, True) for name, value in row.items()}
    values = row if isinstance(row, list) else [row]
    if len(values) == len(kinds):
        values = [_of_json(name, kind, value, True) for (name, kind), value in zip(kinds.items(), values, strict=True)]
    return tuple(values) if isinstance(row, list) else values[0]


def _checked(values: list[Any], schema: Schema) -> tuple[Any, ...]:
    try:
        return row_of(tuple(values), schema, "queue")
    except RowError as problem:
        raise BadMessage(str(problem.args[0])) from None


def _of_text(name: str, kind: FieldType, text: bytes | None) -> Any:
    if text is None or kind.kind == "binary":
        return text
    try:
        value = text.decode()
    except UnicodeDecodeError:
        raise BadMessage(f"its field {name} is no UTF-8: {quote(text)}") from None
    if kind.kind == "string":
        return value
    if kind.kind in _OF_STRINGS:
        return _of_string(name, kind, value)
    try:
        return _of_json(name, kind, json.loads(value))
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, BadMessage):
            raise
        raise BadMessage(f"its field {name} is {quote(value)}, no {kind.kind}") from None


def _of_json(name: str, kind: FieldType, value: Any, exact: bool = False) -> Any:
    """Return a JSON value as the Python value of the field type, with nested ones. exact: a struct keeps its names."""
    if value is None:
        return None
    if kind.kind in _OF_STRINGS and isinstance(value, str):
        return _of_string(name, kind, value)
    if kind.kind == "array" and isinstance(value, list):
        return [_of_json(name, kind.inner[0], each, exact) for each in value]
    if kind.kind == "map" and isinstance(value, dict):
        of_key, of_value = kind.inner
        return {_key(name, of_key, key): _of_json(name, of_value, each, exact) for key, each in value.items()}
    if kind.kind == "struct" and isinstance(value, dict):
        inner = dict(zip(kind.names, kind.inner, strict=True))
        names = value if exact else inner
        return {each: _of_json(name, inner.get(each, _UNKNOWN), value.get(each), exact) for each in names}
    return value


def _key(name: str, kind: FieldType, key: str) -> Any:
    if kind.kind == "string":
        return key
    found = _of_text(name, kind, key.encode(errors="surrogatepass"))
    if isinstance(found, list | dict):
        raise BadMessage(f"its field {name} has the key {quote(key)} in a map, no {kind.kind}")
    return found


def _of_string(name: str, kind: FieldType, value: str) -> Any:
    try:
        return _OF_STRINGS[kind.kind](value)
    except (ValueError, InvalidOperation, binascii.Error):
        raise BadMessage(f"its field {name} is {quote(value)}, no {kind.kind}") from None


_UNKNOWN = FieldType("unknown")
_OF_STRINGS: Mapping[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "decimal": Decimal,
    "binary": partial(base64.b64decode, validate=True),
}
