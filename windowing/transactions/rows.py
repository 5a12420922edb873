"""Row, Fence, BackingMap: what one partition of a state keeps in a store, and the two calls by which it is reached.

    fence of the partition    txid:attempt that wrote last, and what the state is (kind, codec, number of partitions)
    row of a key              the txid that wrote it, the value, and the value before that txid

    multi_get(keys)           -> the fence and the rows, as of one moment                            one round trip
    multi_put(rows, claim)    -> all rows and the new fence, if the fence is still the expected one   one round trip, atomic

Laws
- Fence and rows are written together or not at all: no row is newer than its fence, and what a fence says was written is there.
- A row has a checksum over its state, partition and key too: one that is damaged, or in another's place, is an error that names it.
- A fence says who wrote it and how many rows there are then: what another writer did, and rows that were lost, are seen.
- Nothing is ever reset.

Source: Storm's `IBackingMap`, `TransactionalValue` and `OpaqueValue`, which know no fence.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from windowing.core.checks import checked_name
from windowing.core.codec import decode_value, encode_value, frame, unframe
from windowing.errors import ConfigError, CorruptStateError, DefinitionChangedError, shown
from windowing.transactions.attempt import FIRST_TXID, TransactionAttempt
from windowing.transactions.kinds import StateType

__all__ = [
    "NO_TXID",
    "BackingMap",
    "Claim",
    "Fence",
    "Owner",
    "Place",
    "Reading",
    "Row",
    "checked_state_name",
    "counted",
]

NO_TXID = 0
"""The txid of a row that a non-transactional state wrote."""

_MAGIC = b"WNDF"
_RESERVED = "_fences"
_MAX_NAME = 50


def checked_state_name(name: Any) -> str:
    """Return the name of a state, which is part of the names of tables and keys in its store.

    >>> checked_state_name("word_counts")
    'word_counts'
    """
    checked_name(name, "a state's name")
    if len(name) > _MAX_NAME or name.lower().endswith(_RESERVED):
        raise ConfigError(
            f"a state's name must have at most {_MAX_NAME} characters and not end with {_RESERVED}, got {shown(name)}; "
            "a name such as word_counts will do"
        )
    return str(name)


class Place(NamedTuple):
    """Which partition of which state; errors call it `counts/0`."""

    state: str
    partition: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.state}/{self.partition}"


class Row(NamedTuple):
    """What is stored under a key; None is no value. `previous` is the value before anything of `txid` was applied."""

    txid: int
    value: bytes | None
    previous: bytes | None = None

    def checksum(self, place: Place, key: bytes) -> int:
        """Return the CRC32 over what the row holds and where it belongs."""
        crc = zlib.crc32(f"{place} {self.txid} {len(key)} ".encode() + key)
        for part in (self.value, self.previous):
            crc = zlib.crc32(b"-" if part is None else b"+%d " % len(part) + part, crc)
        return crc

    @classmethod
    def sound(cls, place: Place, key: Any, txid: Any, value: Any, previous: Any, crc: Any) -> Row:
        """Return the row that a store holds. Raises CorruptStateError unless it is as it was written."""
        row = cls(txid, value, previous)
        plain = type(txid) is int and type(key) is bytes and all(type(p) in (bytes, type(None)) for p in row[1:])
        if not plain or row.checksum(place, key) != crc:
            raise CorruptStateError(
                f"the row of {_key_shown(key)} in the state {place} does not have its checksum; restore the state from a "
                "copy; nothing was reset"
            )
        return row


class Owner(NamedTuple):
    """Who writes a state: the life of a topology and its step, as a text of its own, and the first txid that is committed there.

    counts: whether a partition without a fence has no rows, so that they can be counted from there; a state that was
    non-transactional before has some.
    """

    id: str
    since: int = FIRST_TXID
    counts: bool = True


class Fence(NamedTuple):
    """Who wrote last to a partition, and what its rows are. owner: the id of an Owner, empty for a state that is driven by hand.

    rows: how many there are, those without a value too; None where a version wrote the fence that did not count them.
    """

    attempt: TransactionAttempt
    kind: StateType
    codec: str
    place: Place
    owner: str = ""
    rows: int | None = None

    def record(self) -> bytes:
        """Return the fence as bytes; equal fences are equal bytes."""
        what: dict[str, Any] = {
            "kind": self.kind.value,
            "codec": self.codec,
            "txid": self.attempt.txid,
            "attempt": self.attempt.attempt,
        }
        if self.owner:
            what["owner"] = self.owner
        if self.rows is not None:
            what["rows"] = self.rows
        return frame(_MAGIC, encode_value({**what, **self.place._asdict()}))

    @classmethod
    def of(cls, record: Any, place: Place) -> Fence:
        """Return the fence of a record. Raises CorruptStateError for one that is damaged, newer, or another partition's."""
        what = f"the fence of the state {place}"
        if not isinstance(record, bytes):
            raise CorruptStateError(f"{what} is {shown(record)}, wanted bytes; restore the state from a copy")
        data = decode_value(unframe(_MAGIC, record, what), what)
        try:
            fence = cls(
                TransactionAttempt(int(data["txid"]), int(data["attempt"])),
                StateType(data["kind"]),
                str(data["codec"]),
                Place(str(data["state"]), int(data["partition"]), int(data["partitions"])),
                str(data.get("owner", "")),
                None if data.get("rows") is None else int(data["rows"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise CorruptStateError(f"{what} cannot be read: {shown(data)}; restore the state from a copy") from problem
        if fence.place[:2] != place[:2]:
            raise CorruptStateError(
                f"{what} is that of {fence.place}: rows or files were mixed up; restore the state from a copy; nothing was reset"
            )
        return fence

    def require(self, kind: StateType, codec: str, place: Place) -> None:
        """Raise DefinitionChangedError unless the rows are what the state that reads them makes of them."""
        differences = {
            "kind": (self.kind.value, kind.value),
            "codec": (self.codec, codec),
            "number of partitions": (self.place.partitions, place.partitions),
        }
        for what, (stored, given) in differences.items():
            if stored != given:
                raise DefinitionChangedError(
                    f"the {what} of the state {place} is {shown(stored)}, now it is {shown(given)}; keep it as it was, or give "
                    "the state another name and fill it anew"
                )


class Reading(NamedTuple):
    """What a partition holds, as of one moment: its fence (None: no batch yet), a row or None per key that was asked for,
    and what an earlier attempt at the same txid left, if that was asked for."""

    fence: Fence | None
    rows: Sequence[Row | None]
    left: Mapping[bytes, Row] = {}


class Claim(NamedTuple):
    """Write only if the fence is still the `expected` one (None: there is none yet), and leave this one."""

    expected: Fence | None
    fence: Fence


class BackingMap(Protocol):
    """The rows of one partition in a store. Raises StoreUnavailableError while the store cannot be used."""

    @property
    def place(self) -> Place:
        """Whose rows they are."""

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        """Read the fence and the rows of the keys, as of one moment.

        With `undo`, and if the fence is that of an earlier attempt at the same txid: all rows of that txid, too, as `left`.
        """

    def multi_put(self, rows: Mapping[bytes, Row | None], claim: Claim | None = None) -> Fence | None:
        """Write all rows (None: delete) and the fence, at once and durably; return None, or the fence that was in the way.

        Without a claim the rows are written whatever the fence is. After an answer that got lost the fence is read: if it is the
        claim's own, it is returned too, for nobody can tell whether this call wrote it or a twin of the same attempt.
        """

    def items(self) -> Iterator[tuple[bytes, Row]]:
        """Yield all rows in order of the keys, checked."""

    def count(self) -> int:
        """Return how many rows there are; asked at the start of a topology."""

    def close(self) -> None:
        """Let go of the store."""


def counted(backing: BackingMap) -> tuple[Fence | None, int]:
    """Return the fence of a partition and how many rows there are beside it, as of one moment."""
    while True:
        fence, rows = backing.multi_get([]).fence, backing.count()
        if backing.multi_get([]).fence == fence:
            return fence, rows


def _key_shown(key: Any) -> str:
    try:
        return shown(decode_value(key, "a key"))
    except (CorruptStateError, TypeError):
        return shown(key)
