"""StateCodec: how keys and values become the bytes that a store keeps. TypedJson is the one that states use unless told.

    ("JFK", 3)  --encode-->  {"$":["tuple",["JFK",3]]}  --decode-->  ("JFK", 3)

Laws
- What is read is what was written, types included; what cannot be written is a TypeError, before anything is stored.
- Bytes never become code: only types that were registered come back as objects, through the function given for them.
- A codec has a name, which is stored beside the values: another one is refused before a value is read by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from windowing.core.checks import checked_name
from windowing.core.codec import decode_value, encode_value
from windowing.errors import ConfigError, CorruptStateError, shown

__all__ = ["StateCodec", "TypedJson"]


_DIGITS = 18
_SMALL = 10**_DIGITS


class StateCodec(Protocol):
    """What a user's own codec has (for msgpack, say)."""

    @property
    def name(self) -> str:
        """What is stored to tell whose bytes these are; another format is another name."""

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes, equal values as equal bytes. Raises TypeError for one it cannot write."""

    def decode(self, blob: bytes, what: str) -> Any:
        """Return the value; `what` names it in the CorruptStateError for bytes that are none."""


class _Type(NamedTuple):
    name: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


class TypedJson:
    """Plain data as typed JSON, and objects of the types that were registered, wherever in the data they are.

    Plain data are numbers, strings, bytes, dates, Decimals, lists, tuples, sets, dicts. Cost: 2 us for a number.

    >>> from fractions import Fraction
    >>> codec = TypedJson().register("fraction", Fraction, str, Fraction)
    >>> codec.decode(codec.encode([Fraction(1, 3)]), "a value")
    [Fraction(1, 3)]
    """

    def __init__(self) -> None:
        self._by_type: dict[type, _Type] = {}
        self._by_name: dict[str, _Type] = {}

    @property
    def name(self) -> str:
        """`json`: types may be added to those of a state, so their names are with the values."""
        return "json"

    def register(
        self, name: str, kind: type, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]
    ) -> TypedJson:
        """Write objects of exactly this type as plain data, under a name that must stay; return the codec.

        Raises ConfigError for a type or a name that is registered already.
        """
        checked_name(name, "a type's name")
        if kind in self._by_type or name in self._by_name:
            raise ConfigError(
                f"{shown(kind.__name__)} cannot be registered as {shown(name)}: the type or the name is registered "
                "already; register each once, on one codec"
            )
        self._by_type[kind] = self._by_name[name] = _Type(name, to_plain, from_plain)
        return self

    def encode(self, value: Any) -> bytes:
        if type(value) is int and -_SMALL < value < _SMALL:  # what most states hold: ten times faster than by JSON
            return b"%d" % value
        return encode_value(value, self._named if self._by_type else None)

    def decode(self, blob: bytes, what: str) -> Any:
        if blob.isdigit() and len(blob) < _DIGITS:
            return int(blob)
        return decode_value(blob, what, lambda content: self._object(content, what))

    def _named(self, value: Any) -> Any:
        kind = self._by_type.get(type(value))
        return None if kind is None else [kind.name, kind.to_plain(value)]

    def _object(self, content: Any, what: str) -> Any:
        name, plain = content
        if name not in self._by_name:
            raise CorruptStateError(
                f"{what} is of the type {shown(name)}, which is not registered here; register it as where it was written; "
                "nothing was reset"
            )
        return self._by_name[name].from_plain(plain)
