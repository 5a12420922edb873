"""Every type of a field has a place in each table of types; a type that was forgotten in one of them fails here, by its name."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tests.execution.test_columnar_bolts import EVERY as IN_BATCHES
from tests.topology.test_groupings import BY_TYPE as HASHED
from windowing.codec import decode_value, encode_value
from windowing.columnar.bolts import table_of
from windowing.columnar.hashing import hashed_columns, is_hashed
from windowing.schema.hashing import hashable, key_hash
from windowing.schema.messages import row_of_json, row_of_texts, typed_row
from windowing.schema.types import _EXAMPLES, _SIMPLE, FieldType, Schema
from windowing.schema.values import converter_of

AT = datetime.datetime(2026, 1, 31, 12, 30, tzinfo=datetime.UTC)


class Sample(NamedTuple):
    """A value of a type, the same in a JSON message, and in a message of texts, if that is not its JSON."""

    value: Any
    in_json: Any
    text: bytes | None = None


SAMPLES: dict[str, Sample] = {
    "string": Sample("cow", "cow", b"cow"),
    "boolean": Sample(True, True),
    "tinyint": Sample(-7, -7),
    "smallint": Sample(300, 300),
    "int": Sample(70_000, 70_000),
    "bigint": Sample(2**60 + 1, 2**60 + 1),
    "float": Sample(0.5, 0.5),
    "double": Sample(0.1, 0.1),
    "date": Sample(AT.date(), "2026-01-31", b"2026-01-31"),
    "timestamp": Sample(AT, "2026-01-31T12:30:00Z", b"2026-01-31T12:30:00Z"),
    "binary": Sample(b"\xff\0", "/wA=", b"\xff\0"),
    "decimal(9,2)": Sample(Decimal("1.25"), "1.25", b"1.25"),
    "array<date>": Sample([AT.date(), None], ["2026-01-31", None]),
    "map<string,bigint>": Sample({"a": 1}, {"a": 1}),
    "struct<x:int,at:timestamp>": Sample({"x": 1, "at": AT}, {"x": 1, "at": "2026-01-31T12:30:00Z"}),
}

each_type = pytest.mark.parametrize("kind", SAMPLES)


def kinds_in(*ddl: str) -> set[str]:
    return {FieldType.parse(kind).kind for kind in ddl}


KINDS = {*_SIMPLE.values(), "decimal", *_EXAMPLES}


def test_every_type_of_a_field_has_a_sample_here() -> None:
    assert kinds_in(*SAMPLES) == KINDS


@each_type
def test_a_value_of_every_type_is_accepted_as_it_is(kind: str) -> None:
    assert converter_of(kind)(SAMPLES[kind].value) == SAMPLES[kind].value


@each_type
def test_a_value_of_every_type_comes_back_from_stored_bytes_and_from_a_column(kind: str) -> None:
    value = SAMPLES[kind].value
    assert decode_value(encode_value(value), "a value") == value
    column = table_of([(value,), (None,)], Schema.parse(f"v {kind}")).column("v")
    assert column.to_pylist(maps_as_pydicts="strict") == [value, None]


@each_type
def test_a_value_of_every_type_is_read_from_json_and_from_text(kind: str) -> None:
    value, in_json, text = SAMPLES[kind]
    schema = Schema.parse(f"v {kind}")
    assert row_of_json(json.dumps({"v": in_json}).encode(), schema) == (value,)
    assert typed_row([in_json], schema) == (value,)
    assert row_of_texts({b"v": json.dumps(in_json).encode() if text is None else text}, schema) == (value,)


@each_type
def test_every_type_has_a_hash_of_keys_the_same_over_columns_or_a_reason_why_not(kind: str) -> None:
    value = SAMPLES[kind].value
    if hashable(kind) is not None:
        assert FieldType.parse(kind).kind in ("map", "struct")
        return
    found = key_hash((kind,), (value,))
    assert found != key_hash((kind,), (None,))
    if is_hashed(kind):
        column = table_of([(value,)], Schema.parse(f"v {kind}")).column("v").combine_chunks()
        assert isinstance(column, pa.Array)
        assert hashed_columns([column], [kind], 1).tolist() == [found]


def test_the_tests_over_all_types_have_every_type() -> None:
    """That the hashes are Spark's, and that batches pass through a bolt with columnar=."""
    assert kinds_in(*HASHED) == KINDS - {"map", "struct"}
    assert kinds_in(*Schema.parse(IN_BATCHES).types) == KINDS
