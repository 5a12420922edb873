"""Schema: the fields and types of a stream, written as in Spark's DDL."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from windowing.errors import ConfigError
from windowing.schema.types import Schema, declare_streams

_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
_simple = st.sampled_from(["string", "boolean", "BYTE", "short", "Integer", "long", "real", "double", "decimal(7, 2)"])
_types = st.recursive(
    _simple,
    lambda inner: st.one_of(
        inner.map("array<{}>".format),
        st.tuples(_simple, inner).map(lambda kinds: f"map<{kinds[0]}, {kinds[1]}>"),
        st.tuples(_names, inner, inner).map(lambda parts: "struct<{0}:{1},{0}_ {2}>".format(*parts)),
    ),
    max_leaves=4,
)


def refused(output: Any, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declare_streams(output)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).count("[CONFIG]") == 1


def test_fields_keep_their_order_and_type_names_are_normalised() -> None:
    schema = Schema.parse("origin string, flights LONG,\n mean  double, share decimal ( 5 , 2 ), n integer, d decimal")
    assert schema.names == ("origin", "flights", "mean", "share", "n", "d")
    assert schema.types == ("string", "bigint", "double", "decimal(5,2)", "int", "decimal(10,0)")
    assert len(schema) == 6
    assert Schema.parse("n long") == Schema.parse("n bigint")


def test_nested_type_names_are_normalised_too() -> None:
    schema = Schema.parse("a array<struct<x: INT, y decimal(5, 2)>>, b map<string, array<Long>>, c MAP<string,int>")
    assert schema.types == (
        "array<struct<x:int,y:decimal(5,2)>>",
        "map<string,array<bigint>>",
        "map<string,int>",
    )
    assert Schema.parse("a array<long>") == Schema.parse("a array< bigint >")


def test_a_colon_after_a_field_name_is_accepted_as_in_spark() -> None:
    assert Schema.parse("a: long, b : string,c:int") == Schema.parse("a long, b string, c int")


@given(st.lists(st.tuples(_names, _types), min_size=1, max_size=5, unique_by=lambda field: field[0].lower()))
def test_a_schema_printed_as_ddl_is_read_back_equal(fields: list[tuple[str, str]]) -> None:
    schema = Schema.parse(", ".join(f"{name} {kind}" for name, kind in fields))
    assert schema.names == tuple(name for name, _ in fields)
    assert Schema.parse(schema.ddl) == schema


@given(st.text(alphabet="ab ,<>()15:", max_size=12))
def test_any_text_is_a_valid_schema_or_a_config_error(text: str) -> None:
    try:
        schema = Schema.parse(text)
    except ConfigError:
        return
    assert Schema.parse(schema.ddl) == schema


def test_an_error_names_the_wrong_field() -> None:
    refused("", "a text of fields", "output='origin string")
    refused("a string, b", "field 'b' has no type")
    refused("a string,, b int", "a field is missing")
    refused("a string,", "a field is missing")
    refused("a strng", "unknown type 'strng'", "did you mean 'string'?")
    refused("a numeric(10,2)", "unknown type 'numeric(10,2)'; did you mean 'decimal'?")
    refused("a variant", "did you mean 'string'?")
    refused("struct<a:bigint,b:array<int>>", "the fields alone", "write 'a:bigint,b:array<int>'")
    refused("a array", "array of what?")
    refused("a array<>", "nothing inside")
    refused("a array<int>>", "closes nothing")
    refused("a array<int", "lacks a '>'")
    refused("a array<int)", "closes nothing")
    refused("a array<int> b array<int>", "unknown type 'array<int> b array<int>'")
    refused("a list<string>", "unknown type 'list<string>'; did you mean 'array<string>'?")
    refused("a dict<string, int>", "did you mean 'map<string, int>'?")
    refused("a array<strng>", "field 'a' has an unknown type 'strng'", "did you mean 'string'?")
    refused("a int64", "unknown type 'int64'", "did you mean 'long'?")
    refused("a float64", "unknown type 'float64'", "did you mean 'double'?")
    refused("a map<string>", "a map has a key and a value", "map<string, long>")
    refused("a array<int, int>", "an array has one type")
    refused("a map<map<int, int>, int>", "no map as the key of a map")
    refused("a struct<x>", "field 'x' has no type")
    refused("a struct<x: int, X: int>", "field 'X' stands twice")
    refused("a struct<x: array<strng>>", "field 'x' has an unknown type 'strng'")
    refused("1: long", "a field's name must be a name", "such as late_flights")
    refused("a decimal(39,2)", "1 to 38 digits")
    refused("a decimal(3,4)", "1 to 38 digits")
    refused("a-b string", "must be a name")
    refused("počet long", "of ASCII letters, digits and underscores")


def test_field_names_that_differ_only_in_case_are_refused() -> None:
    refused("n int, N long", "field 'N' stands twice")


def test_a_single_schema_declares_the_default_stream() -> None:
    assert declare_streams("n int") == {"default": Schema(("n",), ("int",))}
    assert declare_streams(Schema.parse("n int")) == declare_streams("n int")


def test_a_mapping_declares_named_streams_with_the_default_first() -> None:
    streams = declare_streams({"slow": "n int", "default": "m int", "fast": Schema.parse("k int")})
    assert list(streams) == ["default", "slow", "fast"]


def test_an_error_names_the_wrong_stream() -> None:
    refused({}, "mapping of streams")
    refused(["n int"], "mapping of streams")
    refused(StructType([StructField("n", LongType(), False)]), "mapping of streams", "write 'n:bigint'")
    refused({"a/b": "n int"}, "a stream in output must be a name")
    refused({"slow": "n in"}, "stream 'slow': field 'n' has an unknown type")
    refused({"n": "int"}, "(the names in a mapping are those of streams, not of fields)")
    refused({"slow": "n int", "Slow": "n int"}, "upper and lower case")
