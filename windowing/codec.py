"""Stored bytes: a frame around every blob, and typed JSON for plain data. There is no pickle, so decoding never runs code.

    frame    magic 4 · version u16 · crc32 u32 · length u64 · body
    value    a value of a type that JSON lacks is a one-entry object: {"$": [kind, text]}

Laws: decoding gives what was encoded, types included (instances of a subclass become the plain type: a namedtuple becomes a tuple;
but a dict or list of a subclass, a Counter say, is refused, because the plain one lacks its methods). A value that cannot be
encoded raises TypeError before anything is stored. Bytes that cannot be decoded raise CorruptStateError and no other error.
"""

from __future__ import annotations

import base64
import json
import operator
import struct
import zlib
from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any

from windowing.errors import CorruptStateError, quote

META_MAGIC = b"WNDM"
CHUNK_MAGIC = b"WNDC"
VERSION = 1
_HEADER = struct.Struct(">4sHIQ")
_MAX_INFLATED = 2**31
_COMPRESS_FROM = 4096
_COMPRESSED = b"x"  # the first byte of zlib data; no JSON text begins with it
# json.dumps makes an encoder for every value; _plain, which comes first, never returns from a circular one.
_json = json.JSONEncoder(ensure_ascii=True, check_circular=False, separators=(",", ":")).encode
_read_json = json.JSONDecoder().decode  # json.loads takes twice the time

NAN = float("nan")
"""The only NaN object in decoded data, so that NaN is a single key of a dict, as it is a single key in Spark."""


Reference = Callable[[Any], Any]
"""Returns plain data to write in place of a value, or None to write the value itself."""


def frame(magic: bytes, body: bytes, version: int = VERSION) -> bytes:
    """Return `body` with a header by which damage, truncation and foreign bytes are detected."""
    return _HEADER.pack(magic, version, zlib.crc32(body), len(body)) + body


def unframe(magic: bytes, blob: bytes | None, what: str, wanted: int = VERSION) -> bytes:
    """Return the body of a frame; `what` names the blob in the CorruptStateError."""
    blob = b"" if blob is None else blob  # of a damaged row
    if len(blob) < _HEADER.size or blob[:4] != magic:
        raise CorruptStateError(
            f"{what} is not ours: it begins with {quote(blob[:4])}, wanted {magic!r}; nothing was reset"
        )
    _, version, crc, length = _HEADER.unpack_from(blob)
    if version != wanted:
        raise CorruptStateError(
            f"{what} has format {version}, this library reads {wanted}; use the version that wrote it"
        )
    body = blob[_HEADER.size :]
    if len(body) != length or zlib.crc32(body) != crc:
        raise CorruptStateError(
            f"{what} is damaged: {len(body)} bytes with crc {zlib.crc32(body):#010x}, wanted {length} with {crc:#010x}; "
            "restore the checkpoint from a copy, nothing was reset"
        )
    return body


def dumps(data: Any, reference: Reference | None = None) -> bytes:
    """Return plain data as compressed, typed JSON; `reference` may name a value by a number instead (a stored row)."""
    return zlib.compress(encode_text(data, reference).encode(), 1)


def encode_value(value: Any, reference: Reference | None = None) -> bytes:
    """Return one small value as typed JSON, compressed from 4 KiB on. Raises TypeError for a value that is not plain data.

    `reference` may replace a value by plain data.

    Used as a store's key, 1, 1.0 and True are three keys, NaN is one key, ("a", 1) and ["a", 1] are two. Cost: 2 us for a number.

    >>> encode_value(("JFK", 3)), decode_value(encode_value(("JFK", 3)), "a key")
    (b'{"$":["tuple",["JFK",3]]}', ('JFK', 3))
    """
    text = encode_text(value, reference).encode()
    return zlib.compress(text, 1) if len(text) >= _COMPRESS_FROM else text


def encode_text(value: Any, reference: Reference | None = None) -> str:
    """Return one value as typed JSON, never compressed: `decode_value` of texts joined by commas in brackets is a list of them."""
    if type(value) is str:  # most keys, at a tenth of the cost
        return encode_basestring_ascii(value)
    if type(value) is int and value.bit_length() < 64:
        return str(value)
    # Keys of several fields.
    if type(value) is tuple and reference is None and _TEXT_OF.keys() >= set(map(type, value)):
        try:
            return '{"$":["tuple",[' + ",".join([_TEXT_OF[type(each)](each) for each in value]) + "]]}"
        except ValueError:  # a long int, as below
            pass
    plain = _plain(value, reference)
    try:
        return _json(plain)
    except ValueError:  # an int with more decimal digits than Python converts
        return _json(_in_hex(plain))


def decode_value(blob: bytes, what: str, resolve: Callable[[Any], Any] | None = None) -> Any:
    """Return the value of `encode_value` or `dumps`; `what` names it in the CorruptStateError, `resolve` undoes the `reference`."""
    if type(blob) is bytes and len(blob) < 19 and blob.isdigit() and blob[:1] != b"0":
        return int(blob)  # most counts, at a tenth of the cost
    try:
        text = str(inflated(blob, what) if blob[:1] == _COMPRESSED else blob, "utf-8", "surrogatepass")
        return _value(_read_json(text), resolve)
    except _UNREADABLE as problem:
        raise CorruptStateError(f"{what} cannot be read: {problem}; nothing was reset") from problem


loads = decode_value
"""Reads what `dumps` has written."""


def key_shown(key: Any) -> str:
    """Return a stored key as text for messages; bytes that are no encoded value are shown as they are."""
    try:
        return quote(decode_value(key, "a key"))
    except (CorruptStateError, TypeError):
        return quote(key)


_FLAT = frozenset((int, str, bool, float, type(None)))
"""The types that JSON encodes without change; the items of a list of only these types are not visited one by one."""
_TEXT_OF: dict[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: int.__repr__,
    bool: {True: "true", False: "false"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
}
"""What JSON makes of the types of most keys."""
LONG_BITS = 2_000  # below 640 digits, the least that sys.set_int_max_str_digits takes
_UNREADABLE = (zlib.error, ValueError, KeyError, TypeError, ArithmeticError, RecursionError)


def inflated(blob: bytes, what: str) -> bytes:
    """Return decompressed bytes. Raises CorruptStateError if they are cut off, or too many."""
    inflater = zlib.decompressobj()
    text = inflater.decompress(blob, _MAX_INFLATED)
    if inflater.unconsumed_tail or not inflater.eof:
        raise CorruptStateError(f"{what} does not inflate to at most {_MAX_INFLATED} bytes; nothing was reset")
    return text


def _in_hex(plain: Any) -> Any:
    if type(plain) is int and plain.bit_length() > LONG_BITS:
        return {"$": ["int", hex(plain)]}
    if type(plain) is dict:
        return {name: _in_hex(each) for name, each in plain.items()}
    return [_in_hex(each) for each in plain] if type(plain) is list else plain


def _plain(value: Any, reference: Reference | None) -> Any:
    kind = type(value)
    if kind in (int, str, bool, float) or value is None:
        return value
    if kind is list:
        flat = _FLAT.issuperset(map(type, value))
        return value if flat else [_plain(each, reference) for each in value]
    if kind is dict:
        if all(type(name) is str and name != "$" for name in value):
            return {name: _plain(each, reference) for name, each in value.items()}
        return {"$": ["map", [[_plain(k, reference), _plain(v, reference)] for k, v in value.items()]]}
    if kind is tuple and reference is None and _FLAT.issuperset(map(type, value)):  # most keys
        return {"$": ["tuple", list(value)]}
    if reference is not None and (data := reference(value)) is not None:
        return {"$": ["row", _plain(data, reference)]}
    for base, plain in ((int, int), (float, float), (str, str.__str__)):
        if isinstance(value, base):  # numpy's float64, an IntEnum, a str that is an Enum: the plain value is equal
            return plain(value)
    return {"$": _tagged(value, reference)}


def _tagged(value: Any, reference: Reference | None) -> list[Any]:
    match value:
        case tuple():
            return ["tuple", [_plain(each, reference) for each in value]]
        case bytes() | bytearray():
            return ["bytes", base64.b64encode(value).decode()]
        case Decimal():
            return ["decimal", str(value)]
        case date() if value != value:  # pandas' NaT is a datetime, and has no text that can be read
            pass
        case datetime():
            return ["datetime", value.isoformat()]
        case date():
            return ["date", value.isoformat()]
        case timedelta():
            return ["timedelta", [value.days, value.seconds, value.microseconds]]
        case set() | frozenset():
            kind = "set" if isinstance(value, set) else "frozenset"
            return [kind, sorted((_plain(each, reference) for each in value), key=repr)]
    raise TypeError(
        f"a value of type {type(value).__name__} cannot be stored: {quote(value)}; keep plain data in states, policies and "
        "accumulators (None, numbers, strings, bytes, dates, datetimes, timedeltas, Decimals, tuples, lists, sets, dicts)"
        f"{_plain_form(value)}"
    )


def _plain_form(value: Any) -> str:
    """Return the end of a sentence that names the same value as plain data, where an expression gives it."""
    if isinstance(value, dict | list):
        return f", here {'dict' if isinstance(value, dict) else 'list'}(value)"
    if is_dataclass(value) and not isinstance(value, type):
        return ", here dataclasses.asdict(value)"
    return ", here value.tolist()" if type(value).__module__ == "numpy" and hasattr(value, "tolist") else ""


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "bytes": base64.b64decode,
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
}


def _value(data: Any, resolve: Callable[[Any], Any] | None) -> Any:
    if type(data) is list:
        kinds = set(map(type, data))
        flat = kinds <= _FLAT and (float not in kinds or not any(map(operator.ne, data, data)))
        return data if flat else [_value(each, resolve) for each in data]
    if type(data) is not dict:
        return data if data == data else NAN
    if "$" not in data:
        return {name: _value(each, resolve) for name, each in data.items()}
    kind, content = data["$"]
    if kind == "row" and resolve is not None:
        return resolve(_value(content, resolve))
    if kind == "tuple":
        return tuple(_value(each, resolve) for each in content)
    if kind in ("set", "frozenset"):
        return (set if kind == "set" else frozenset)(_value(each, resolve) for each in content)
    if kind == "map":
        return {_value(k, resolve): _value(v, resolve) for k, v in content}
    return _DECODERS[kind](content)
