"""xxhash64: the hash that assigns a key to a task, the same in every process, on every machine and on Spark.

    h := 42; for each column: h := h if its value is None else xxh64(bytes of the value, seed h); task = pmod(h, tasks)

| type                     | bytes of a value (little endian)                                      |
|--------------------------|-----------------------------------------------------------------------|
| boolean                  | an int: 1 or 0                                                        |
| tinyint, smallint, int   | 4                                                                     |
| bigint                   | 8                                                                     |
| float, double            | 4, 8: IEEE 754, -0.0 as 0.0, every NaN as one                         |
| string, binary           | UTF-8, as it is                                                       |
| date                     | an int: days since 1970                                               |
| timestamp                | a bigint: microseconds since 1970 in UTC; a naive datetime counts as UTC |
| decimal(p, s)            | p <= 18: the unscaled value as a bigint; else its shortest two's complement, big endian |
| array<...>               | its elements, chained like columns                                    |

Source: Spark's `XxHash64` (`HashExpression`, `InterpretedHashFunction`); tests/topology/test_groupings.py compares the two.
Cost: about 0.2 us for each column (package `xxhash`, written in C).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

from windowing.errors import ConfigError, GroupingError, quote
from windowing.schema.types import Schema

SEED = 42
"""Spark's seed."""

Hasher = Callable[[Any, int], int]
"""(value, seed) -> hash: value is not None, seed and hash are unsigned 64 bits."""

_LONG_DIGITS, _MAX_DIGITS = 18, 38
_HASHED_AS = {"tinyint": "int", "smallint": "int"}
_WIDEST = dict.fromkeys(("tinyint", "smallint", "int"), "bigint") | {"float": "double"}
_EPOCH_DAY = 719_163  # date(1970, 1, 1).toordinal()
_NAN = {"<f": 0x7FC00000.to_bytes(4, "little"), "<d": 0x7FF8000000000000.to_bytes(8, "little")}


def signed(value: int) -> int:
    """Return an unsigned 64-bit value as Spark shows it, signed.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return value - (1 << 64) if value >> 63 else value


def hashable(kind: str) -> str | None:
    """Return why a field of this type cannot be part of a key, None if it can.

    >>> hashable("bigint"), hashable("array<map<string, int>>")
    (None, 'maps that are equal may be stored in another order')
    """
    if kind.startswith("map"):
        return "maps that are equal may be stored in another order"
    if kind.startswith("struct"):
        return "a struct is many values; put the ones that make the key into fields of their own"
    return hashable(_element(kind)) if kind.startswith("array") else None


def have_same_keys(types: Iterable[str], others: Iterable[str], tasks: int | None = None) -> bool:
    """Return whether equal values of these types are one key: equal, and sent to the same one of `tasks`, or of any number of them.

    >>> have_same_keys(["smallint"], ["int"]), have_same_keys(["int"], ["bigint"]), have_same_keys(["int"], ["bigint"], tasks=1)
    (True, False, True)
    """
    return [_key_type(kind, tasks) for kind in types] == [_key_type(kind, tasks) for kind in others]


def _key_type(kind: str, tasks: int | None) -> str:
    """Return one type for all types that have the same keys; a type without a hash is itself."""
    if kind.startswith("array"):
        return f"array<{_key_type(_element(kind), tasks)}>"
    if kind.startswith("decimal"):
        precision, scale = _digits(kind)
        return f"decimal({_LONG_DIGITS if precision <= _LONG_DIGITS and tasks != 1 else _MAX_DIGITS},{scale})"
    return (_WIDEST if tasks == 1 else _HASHED_AS).get(kind, kind)


def key_hash(types: tuple[str, ...], values: tuple[Any, ...]) -> int:
    """Return Spark's `xxhash64(columns)` of one key, signed.

    >>> key_hash(("bigint", "string"), (1, "storm"))
    6608486490729738416
    """
    return signed(key_hasher(tuple(enumerate(types)))(values))


@cache
def key_hasher(columns: tuple[tuple[int, str], ...]) -> Callable[[Sequence[Any]], int]:
    """Return a function from a row to the unsigned hash of its key: the columns with these positions and types, in this order."""
    hashers = [(position, hasher_of(kind)) for position, kind in columns]

    def key_hash(values: Sequence[Any]) -> int:
        result = SEED
        for position, hasher in hashers:
            value = values[position]
            if value is not None:
                result = hasher(value, result)
        return result

    return key_hash


@cache
def hasher_of(kind: str) -> Hasher:
    """Return the hash function of one type, spelled as in `Schema`; it raises GroupingError for a value of another type.

    Raises ConfigError where the package `xxhash` is missing.
    """
    reason = hashable(kind)
    if reason is not None:
        raise ConfigError(f"a field of type {kind} cannot be part of a key: {reason}")
    digest = _xxh64()
    to_bytes = None if kind.startswith("array") else _to_bytes(kind)
    if to_bytes is None:
        element = hasher_of(_element(kind))

        def fold(value: Any, seed: int) -> int:
            if not isinstance(value, list | tuple):
                value = getattr(value, "raw", value)
            if not isinstance(value, list | tuple):
                raise GroupingError(f"a key of type {kind} is a list, got {quote(value)}; emit a list of values")
            for item in value:
                if item is not None:
                    seed = element(item, seed)
            return seed

        return fold

    def hashed(value: Any, seed: int) -> int:
        try:
            return digest(to_bytes(value), seed)
        except (struct.error, TypeError, ValueError, AttributeError, OverflowError) as problem:
            raw = getattr(value, "raw", None)  # a value of Spark that Python cannot represent (spark/unreadable.py)
            if raw is not None and kind in _RAW:
                return digest(_RAW[kind](raw), seed)
            raise GroupingError(
                f"a key of type {kind} cannot be made of {quote(value)}: {problem}; emit a value that fits the "
                "declared type, or declare the type of what is emitted"
            ) from None

    return hashed


def _xxh64() -> Callable[[bytes, int], int]:
    try:
        from xxhash import xxh64_intdigest
    except ImportError:
        raise ConfigError(
            "a grouping by fields needs the package xxhash here; pip install 'windowing[topology]' (Spark needs none)"
        ) from None
    return xxh64_intdigest


def _element(kind: str) -> str:
    """Return the element type of an array, in the spelling of `Schema`."""
    return Schema.parse(f"element {kind[kind.index('<') + 1 : -1]}").types[0]


def _to_bytes(kind: str) -> Callable[[Any], bytes]:
    if kind.startswith("decimal"):
        precision, scale = _digits(kind)
        return lambda value: _decimal(value, precision, scale)
    return _BYTES[kind]


def _digits(kind: str) -> tuple[int, int]:
    """Return precision and scale of a decimal."""
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _floating(layout: str) -> Callable[[Any], bytes]:
    pack, nan = struct.Struct(layout).pack, _NAN[layout]
    # Adding 0.0 turns -0.0 into 0.0 and changes no other value.
    return lambda value: pack(value + 0.0) if value == value else nan


def _boolean(value: Any) -> bytes:
    if value is not True and value is not False:
        raise TypeError("it is neither True nor False")
    return b"\1\0\0\0" if value else b"\0\0\0\0"


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("it is no bytes")
    return bytes(value)


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("it is no str")
    return value.encode()


def _date(value: Any) -> bytes:
    return _INT(value.toordinal() - _EPOCH_DAY)


def _timestamp(value: Any) -> bytes:
    seconds = (value.toordinal() - _EPOCH_DAY) * 86_400 + value.hour * 3600 + value.minute * 60 + value.second
    micros = seconds * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    if offset is not None:
        micros -= (offset.days * 86_400 + offset.seconds) * 1_000_000 + offset.microseconds
    return _LONG(micros)


def _decimal(value: Any, precision: int, scale: int) -> bytes:
    """Return the bytes of a Decimal or an int, exactly; a value that the type cannot hold raises and is never rounded."""
    if not isinstance(value, Decimal | int) or isinstance(value, bool):
        raise TypeError("it is no Decimal")
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("it is no finite number")
    unscaled, shift = int("".join(map(str, digits)) or "0"), exponent + scale
    if shift < 0:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise ValueError(f"it has more than {scale} digits behind the point")
    elif unscaled:
        if shift > precision:
            raise ValueError(f"it has more than {precision} digits")
        unscaled *= 10**shift
    if unscaled >= 10**precision:
        raise ValueError(f"it has more than {precision} digits")
    unscaled = -unscaled if sign else unscaled
    if precision <= _LONG_DIGITS:
        return _LONG(unscaled)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


_INT, _LONG = struct.Struct("<i").pack, struct.Struct("<q").pack
_BYTES: dict[str, Callable[[Any], bytes]] = {
    "boolean": _boolean,
    "tinyint": _INT,
    "smallint": _INT,
    "int": _INT,
    "bigint": _LONG,
    "float": _floating("<f"),
    "double": _floating("<d"),
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
}
_RAW: dict[str, Callable[[Any], bytes]] = {"string": bytes, "date": _INT, "timestamp": _LONG}
