"""Stored values round-trip with their types; damage is an error and never another value."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, namedtuple
from contextlib import suppress
from dataclasses import make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windowing import codec
from windowing.codec import NAN, decode_value, dumps, encode_text, encode_value, loads
from windowing.errors import CorruptStateError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes(timezones=st.just(UTC) | st.none())
    | st.timedeltas()
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
PLAIN = st.recursive(
    HASHABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=12,
)
Pair = namedtuple("Pair", "left right")


class Carrier(str, Enum):  # noqa: UP042 - its str() is not its value
    UNITED = "UA"


class Level(IntEnum):
    HIGH = 3


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal and of equal types: 1 and True are different."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, list | tuple):
        return all(map(same, left, right))
    return not isinstance(left, dict) or all(map(same, left.items(), right.items()))


@given(value=PLAIN)
def test_values_round_trip_with_their_types(value: Any) -> None:
    assert same(decode_value(encode_value(value), "a value"), value)
    assert same(loads(dumps(value), "a value"), value)


LONG = st.sampled_from([2**63, -(2**64), 2**2001, 10**5000])
"""Whole numbers that JSON writes, and one that it does not."""


@given(
    value=st.lists(st.none() | st.booleans() | st.integers() | LONG | st.text() | st.floats(), max_size=4).map(tuple)
)
@example(value=(2**2001, 10**5000))
@example(value=("\ud800", True, None, -1))
def test_a_key_of_several_fields_is_written_without_json_as_json_writes_it(value: tuple[Any, ...]) -> None:
    by_json = encode_text(value, lambda each: None)  # a reference is asked for each value that is not plain
    assert encode_text(value) == by_json


@given(value=PLAIN)
def test_encoding_is_deterministic(value: Any) -> None:
    assert encode_value(decode_value(encode_value(value), "a value")) == encode_value(value)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Pair(1, "b"), (1, "b")),
        (bytearray(b"\x00"), b"\x00"),
        ("\ud800", "\ud800"),
        (Carrier.UNITED, "UA"),
        (Level.HIGH, 3),
    ],
)
def test_a_value_of_a_subclass_is_read_as_its_plain_type(value: Any, read: Any) -> None:
    assert same(decode_value(encode_value(value), "a value"), read)


def test_nan_is_a_single_key_and_equal_values_of_different_types_are_different_keys() -> None:
    found = decode_value(encode_value({float("nan"): 1}), "a value")
    assert [math.isnan(key) for key in found] == [True]
    assert decode_value(encode_value([float("nan"), 1.5]), "a value")[0] is NAN
    assert len({encode_value(key) for key in (1, True, 1.0, "1", (1,), [1])}) == 6


@pytest.mark.parametrize("key", ["a", 'ü "\\ \n', 0, -7, 2**63 - 1])
def test_a_key_of_one_text_or_number_has_the_text_of_the_encoder_without_its_cost(
    key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = codec._json(key)
    monkeypatch.delattr(codec, "_json")
    assert encode_text(key) == text


@pytest.mark.parametrize("value", [0, 7, 10**17, 10**18, 2**63 - 1, 10**30, -1])
def test_a_whole_number_that_is_read_without_the_decoder_is_the_same(value: int) -> None:
    assert decode_value(encode_value(value), "a count") == value
    with pytest.raises(CorruptStateError, match="a count cannot be read"):
        decode_value(b"0" + encode_value(value), "a count")


def test_a_long_value_is_compressed_and_a_short_one_is_plain_json() -> None:
    assert encode_value({"word": "storm"}) == b'{"word":"storm"}'
    assert len(encode_value(["storm"] * 10_000)) < 1_000


@pytest.mark.parametrize("value", [object(), lambda: 0, {"a": object()}, [{1: print}], pd.NaT, Counter("a")])
def test_a_value_that_is_not_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="keep plain data"):
        encode_value(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), "value.tolist()"),
        (np.arange(3), "value.tolist()"),
        (Counter("a"), "dict(value)"),
        (type("Rows", (list,), {})(), "list(value)"),
        (make_dataclass("Point", ["x"])(1), "dataclasses.asdict(value)"),
    ],
)
def test_the_refusal_says_what_to_write_for_a_value_with_a_plain_form(value: Any, plain: str) -> None:
    with pytest.raises(TypeError, match=f"here {re.escape(plain)}$"):
        encode_value(value)
    encode_value(eval(plain, {"value": value, "dataclasses": dataclasses}))


DAMAGED = [
    b"",
    b"\xff",
    b"{",
    b"x\x9c",
    b'{"$":1}',
    b'{"$":["row",1]}',
    b'{"$":["pickle","gASV"]}',
    b'{"$":["date","soon"]}',
    b'{"$":["set",[[1]]]}',
    b'{"$":["timedelta",[1e999,0,0]]}',
    b"[" * 100_000,
    encode_value(["storm"] * 10_000)[:-3],
]


@pytest.mark.parametrize("blob", DAMAGED)
def test_invalid_bytes_are_corrupt_state_and_the_value_is_named(blob: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the count of 'storm'"):
        decode_value(blob, "the count of 'storm'")


@given(
    blob=st.binary(max_size=60) | PLAIN.map(encode_value).flatmap(lambda b: st.integers(0, len(b)).map(lambda n: b[:n]))
)
def test_decoding_any_bytes_gives_a_value_or_corrupt_state(blob: bytes) -> None:
    with suppress(CorruptStateError):  # any other error fails the test
        decode_value(blob, "a value")


def test_every_kind_of_value_named_in_the_docs_can_be_stored() -> None:
    named = {
        "number": 1.5,
        "text": "a",
        "bytes": b"a",
        "date": date(2024, 1, 1),
        "money": Decimal("1.50"),
        "list": [1],
        "dict": {},
    }
    named |= {
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "span": timedelta(days=1),
        "tuple": (1, 2),
        "set": {1},
        "none": None,
    }
    assert same(decode_value(encode_value(named), "a value"), named)
