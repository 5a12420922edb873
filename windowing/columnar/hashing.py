"""The hash of a key over columns: for each row the result of schema/hashing.py for its values, Spark's xxhash64.

    one column after the other; the hash of a row so far is the seed of its next value, and a null leaves it unchanged

    numbers, dates, timestamps    numpy, all rows at once
    texts, bytes, decimals        xxhash, once for each distinct value of the first column, row by row for the others

Law: equal to `key_hash` of each row, to the last bit; a date, a timestamp or a text that Python cannot represent is hashed as by
Spark. Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md (inputs of 4 and of 8 bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.columnar.rows import Numbers
from windowing.schema.hashing import SEED, hasher_of

_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64,
    (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
)
_INTS = {"boolean": pa.int8(), "tinyint": pa.int32(), "smallint": pa.int32(), "int": pa.int32(), "date": pa.int32()}
_LONGS = {"bigint": pa.int64(), "timestamp": pa.int64()}
_FLOATS = {"float": (np.float32, np.uint32), "double": (np.float64, np.uint64)}
_BYTES = ("string", "binary")


def is_hashed(kind: str) -> bool:
    """Return whether this module hashes columns of a type, spelled as in `Schema`.

    >>> is_hashed("decimal(9,2)"), is_hashed("array<int>")
    (True, False)
    """
    return kind in _INTS or kind in _LONGS or kind in _FLOATS or kind in _BYTES or kind.startswith("decimal")


def hashed_columns(columns: Sequence[pa.Array], kinds: Sequence[str], count: int) -> Numbers:
    """Return the hash of each of `count` rows, signed as in Spark.

    >>> hashed_columns([pa.array([1, 1]), pa.array(["storm", None])], ["bigint", "string"], 2).tolist()
    [6608486490729738416, -7001672635703045582]
    """
    hashes = np.full(count, SEED, dtype=np.uint64)
    for number, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
        found = _hashed(column, kind, hashes, first=number == 0)
        hashes = found if valid is None else np.where(valid, found, hashes)
    return hashes.view(np.int64)


def hashes_of_int(value: int, seeds: Numbers) -> Numbers:
    """Return the hash of an int from 0 with each of these signed hashes as the seed, signed.

    >>> hashes_of_int(1, np.array([SEED])).tolist() == hashed_columns([pa.array([1])], ["int"], 1).tolist()
    True
    """
    with np.errstate(over="ignore"):
        return _of_4_bytes(np.array(value, dtype=np.uint64), seeds.view(np.uint64)).view(np.int64)


def _hashed(column: pa.Array, kind: str, seeds: Numbers, first: bool) -> Numbers:
    """Return the hash of each value, with its row's seed; the result for a null is not used."""
    with np.errstate(over="ignore"):
        if kind in _INTS:
            whole = column.cast(_INTS[kind]).fill_null(0).to_numpy(zero_copy_only=False)
            return _of_4_bytes(whole.astype(np.int32).view(np.uint32).astype(np.uint64), seeds)
        if kind in _LONGS:
            whole = column.cast(_LONGS[kind]).fill_null(0).to_numpy(zero_copy_only=False)
            return _of_8_bytes(whole.astype(np.int64).view(np.uint64), seeds)
        if kind in _FLOATS:
            return _of_floats(column, *_FLOATS[kind], seeds)
    values = column.view(pa.binary()) if kind == "string" else column
    return _by_value(values, "binary" if kind == "string" else kind, seeds, first)


def _of_floats(column: pa.Array, floats: Any, bits: Any, seeds: Numbers) -> Numbers:
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(floats) + floats(0)  # turns -0.0 into 0.0
    values = np.where(np.isnan(values), floats(np.nan), values)
    raw: Numbers = values.view(bits).astype(np.uint64)
    return _of_4_bytes(raw, seeds) if bits is np.uint32 else _of_8_bytes(raw, seeds)


def _by_value(column: pa.Array, kind: str, seeds: Numbers, first: bool) -> Numbers:
    """Return the hashes of values that numpy cannot hash."""
    hasher = hasher_of(kind)
    if not first:
        values = column.to_pylist()
        made = (
            seed if value is None else hasher(value, seed) for value, seed in zip(values, seeds.tolist(), strict=True)
        )
        return np.fromiter(made, np.uint64, len(values))
    coded = pc.dictionary_encode(column)
    different = [hasher(value, SEED) for value in coded.dictionary.to_pylist()]
    found: Numbers = np.array([*different, SEED], dtype=np.uint64)[coded.indices.fill_null(len(different)).to_numpy()]
    return found


def _of_4_bytes(values: Numbers, seeds: Numbers) -> Numbers:
    hashes = seeds + _P5 + np.uint64(4) ^ values * _P1
    return _avalanche(_rotated(hashes, 23) * _P2 + _P3)


def _of_8_bytes(values: Numbers, seeds: Numbers) -> Numbers:
    hashes = seeds + _P5 + np.uint64(8) ^ _rotated(values * _P2, 31) * _P1
    return _avalanche(_rotated(hashes, 27) * _P1 + _P4)


def _avalanche(hashes: Numbers) -> Numbers:
    hashes = (hashes ^ hashes >> np.uint64(33)) * _P2
    hashes = (hashes ^ hashes >> np.uint64(29)) * _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _rotated(values: Numbers, bits: int) -> Numbers:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)
