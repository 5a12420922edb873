"""Records of coordinators and spouts, over a store of bytes: TransactionalState by name, RotatingTransactionalState by txid.

    user/5      metadata of batch 5              path = root / name / ..., each part of letters, digits and -_.$%
    user/6      metadata of batch 6              blob = frame(magic, version, crc) of [path, value]

    stored     5   6   7          previous(7) is 6's value         cleanup_before(6): 5 is dropped, 6 stays, because 7 builds on it
               |   +-- under way
               +------ committed

Laws
- Damage, a blob of another path and a newer format are each an error that names the path. Nothing is ever reset, and an unreadable
  value is never taken for a missing one. (In Storm it is, and the topology starts again at txid 1.)
- One `write` is atomic: when it returns all its values are durable, or none is. It is refused if another object has written the
  name since this one read or wrote it. So of two instances of a task, for example one that was replaced and still runs, only one
  can write. The value of a txid is also refused if the previous txid's value, on which it builds, has changed.
- `cleanup_before(txid)` is called when `txid` is done; smaller txids are never needed again. A request for one is a message that is
  too late, or comes from a coordinator that lost its record; `is_over` detects it, and nothing is begun again from empty records.
  The next write deletes them, so that they cost no transaction of their own; a restart before it finds them again, and a source may
  then get the ack of the last two batches again.

Source: Storm's classes of these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from windowing.codec import decode_value, encode_value, frame, unframe
from windowing.errors import ConfigError, CorruptStateError, StateConflictError, printable, quote

_MAGIC = b"WNDT"


class RecordStore(Protocol):
    """Bytes under paths. A write is atomic, and durable when it returns."""

    def read(self, path: str) -> bytes | None:
        """Return the value last written under `path`, None if there is none."""

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Write all changes and return True if each path of `expected` has the expected value; else write nothing, return False.

        None stands for a missing path, in `expected` and in `changes` (which deletes it).
        """

    def paths(self, prefix: str) -> Iterable[str]:
        """Return all paths that begin with `prefix`, in any order."""


def checked_records(records: Any) -> RecordStore | None:
    """Return what was given as `records=`. Raises ConfigError for what is no RecordStore."""
    if records is not None and not all(callable(getattr(records, name, None)) for name in ("read", "write", "paths")):
        raise ConfigError(
            f"records is a store of records, got {quote(records)}; give SqliteRecordStore(path), of windowing.stores"
        )
    return records  # type: ignore[no-any-return]


class MemoryRecordStore:
    """A RecordStore in memory, for tests and for topologies that need not outlive their process."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self.blobs.get(path)

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if any(self.blobs.get(path) != blob for path, blob in expected.items()):
            return False
        for path, blob in changes.items():
            if blob is None:
                self.blobs.pop(path, None)
            else:
                self.blobs[path] = blob
        return True

    def paths(self, prefix: str) -> list[str]:
        return sorted(path for path in self.blobs if path.startswith(prefix))


class TransactionalState:
    """The values under `root` of a store. Values are plain data. Cost of a call: one read or write of the store.

    >>> state = TransactionalState(MemoryRecordStore(), "user")
    >>> state.write({"meta/5": ("a", 1)})
    >>> state.read("meta/5"), state.names("meta"), state.read("meta/6")
    (('a', 1), ['5'], None)
    """

    def __init__(self, store: RecordStore, root: str) -> None:
        _check_path(root)
        self._store = store
        self._known: dict[str, dict[str, bytes]] = {}
        """What this object has read or written last, by folder and path."""
        self.root = root

    def at(self, name: str) -> TransactionalState:
        return TransactionalState(self._store, f"{self.root}/{name}")

    def beside(self, name: str) -> TransactionalState:
        """Return the records in the same folder as this root, under another name."""
        return TransactionalState(self._store, f"{self.root.rpartition('/')[0]}/{name}")

    def entry(self, name: str, value: Any) -> tuple[str, bytes]:
        """Return the path of a name, and what is stored there for a value. Raises TypeError for a value that is not plain data."""
        path = self._path(name)
        return path, frame(_MAGIC, encode_value([path, value]))

    def read(self, name: str) -> Any:
        """Return a value, None if there is none. Raises CorruptStateError."""
        path = self._path(name)
        blob = self._store.read(path)
        if blob is None:
            self._beside(path).pop(path, None)
            return None
        self._beside(path)[path] = blob
        what = f"the value of {path}"
        content = decode_value(unframe(_MAGIC, blob, what), what)
        if not isinstance(content, list) or len(content) != 2 or content[0] != path:
            found = content[0] if isinstance(content, list) and content else content
            raise CorruptStateError(
                f"{what} is that of {quote(found)}; put the store back from a copy, nothing was reset"
            )
        return content[1]

    def read_all(self, name: str) -> dict[str, Any]:
        """Return the values directly below a name, and replace what this object knows of them. Raises CorruptStateError."""
        prefix = f"{self._path(name)}/"
        self._beside(prefix).clear()
        while True:
            values = {each: self.read(f"{name}/{each}") for each in self.names(name)}
            if all(prefix + each in self._beside(prefix) for each in values):
                return values
            # Another instance has cleaned up since the names were listed, and may have written later values.

    def write(
        self,
        changes: Mapping[str, Any],
        unchanged: Iterable[str] = (),
        gone: Iterable[str] = (),
        holding: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        """Write all values, and delete the names in `gone`, in one transaction of the store.

        holding: entries, of any root, that must be stored as they are given.

        Raises TypeError, before writing, for a value that is not plain data; StateConflictError if another writer has changed one
        of the names, or one of `unchanged`, on which the values build, or an entry of `holding`. Then read the names again.
        """
        blobs = dict(self.entry(name, value) for name, value in changes.items())
        builds_on = {*blobs, *map(self._path, unchanged)}
        expected = {path: self._beside(path).get(path) for path in builds_on} | dict(holding)
        deleted = dict.fromkeys(map(self._path, gone))
        if not self._store.write({**deleted, **blobs}, expected):
            raise StateConflictError(
                f"one of {quote(sorted(expected))} was written by somebody else since it was read here; the next attempt reads it"
            )
        for path in deleted:
            self._beside(path).pop(path, None)
        for path, blob in blobs.items():
            self._beside(path)[path] = blob

    def names(self, name: str = "") -> list[str]:
        prefix = f"{self._path(name) if name else self.root}/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self._store.paths(prefix)})

    def names_with(self, part: str) -> list[str]:
        """Return the names of all values whose last part is `part`. Cost: O(names)."""
        prefix, end = f"{self.root}/", f"/{part}"
        return [path[len(prefix) :] for path in self._store.paths(prefix) if path.endswith(end)]

    def _beside(self, path: str) -> dict[str, bytes]:
        """Return what is known in the folder of a path."""
        return self._known.setdefault(path.rpartition("/")[0], {})

    def _path(self, name: str) -> str:
        path = f"{self.root}/{name}"
        _check_path(path)
        return path


def part_of(text: str) -> str:
    """Return any text as one part of a path; different texts give different parts.

    >>> part_of("topic/7"), part_of(".."), part_of("p-0")
    ('topic%2f7', '%2e%2e', 'p-0')
    """
    if not text:
        return "%"
    kept = _SAFE if text.strip(".") else frozenset[str]()
    return "".join(c if c in kept else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))


_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.$")


def _check_path(path: str) -> None:
    for part in path.split("/"):
        if not part or not part.strip(".") or not _SAFE.issuperset(part.replace("%", "")):
            raise ConfigError(
                f"{printable(quote(path))} is no path of a store: its parts are letters, digits and -_.$%, none of them empty "
                "or dots only; part_of() makes a part of any text"
            )


# -- RotatingTransactionalState --------------------------------------------------------------------------------------------------


class RotatingTransactionalState:
    """The values of one name, by txid. All are also in memory: one for each batch under way, and a few more. Cost of a `put`: one
    write of the store.

    >>> from windowing.trident.transactional_state import MemoryRecordStore
    >>> state = TransactionalState(MemoryRecordStore(), "spout")
    >>> metas = RotatingTransactionalState(state, "meta")
    >>> metas.put(5, "a"), metas.put(6, "b"), metas.previous(6), metas.last()
    (None, None, 'a', 'b')
    >>> metas.cleanup_before(6)
    >>> metas.txids(), metas.is_over(5), metas.is_over(6)
    ([6], True, False)
    """

    def __init__(self, state: TransactionalState, name: str) -> None:
        self._state = state
        self._name = name
        self._values: dict[int, Any] = {}
        self._gone: list[str] = []
        self.reload()

    def reload(self) -> None:
        """Read all values again, because another task may have written them. Raises CorruptStateError."""
        values = self._state.read_all(self._name)
        for text in values:
            if not (text.isascii() and text.isdigit() and text == str(int(text))):
                raise CorruptStateError(
                    f"{self._state.root}/{self._name} holds {quote(text)}, wanted txids only; put the store back from a copy, "
                    "nothing was reset"
                )
        self._values, self._gone = {int(text): value for text, value in values.items()}, []

    def txids(self) -> list[int]:
        return sorted(self._values)

    def __contains__(self, txid: object) -> bool:
        return txid in self._values

    def get(self, txid: int) -> Any:
        return self._values.get(txid)

    def previous(self, txid: int) -> Any:
        """Return the value of the greatest smaller txid, None if there is none."""
        return self._values[max(below)] if (below := self._below(txid)) else None

    def last(self) -> Any:
        """Return the value of the greatest txid, None if there is none."""
        return self._values[max(self._values)] if self._values else None

    def is_over(self, txid: int) -> bool:
        """Whether a txid is smaller than all stored ones: it was cleaned up, or never existed."""
        return bool(self._values) and txid < min(self._values)

    def put(self, txid: int, value: Any) -> None:
        """Make the value of a txid durable; replaces an earlier value."""
        put_all({self: value}, txid)

    def cleanup_before(self, txid: int) -> None:
        """Drop the values of smaller txids, but keep the last one up to `txid`, on which a later batch builds, also a repeated one.
        The next write deletes them from the store.
        """
        for each in sorted(self._below(txid + 1))[:-1]:
            del self._values[each]
            self._gone.append(self._entry(each))

    def _below(self, txid: int) -> list[int]:
        return [each for each in self._values if each < txid]

    def _entry(self, txid: int) -> str:
        return f"{self._name}/{txid}"

    def check(self, live: Iterable[int] = ()) -> None:
        # Memory and store have the same values, except for those that the next write deletes.
        assert {*map(self._entry, self._values), *self._gone} == {
            f"{self._name}/{each}" for each in self._state.names(self._name)
        }
        assert all(self._state.read(self._entry(txid)) == value for txid, value in self._values.items())
        # Every txid that may still be requested is present.
        assert set(live) <= set(self._values)


def put_all(
    values: Mapping[RotatingTransactionalState, Any], txid: int, holding: Iterable[tuple[str, bytes]] = ()
) -> None:
    """Make values of several names of one TransactionalState durable in one write. holding: as of `TransactionalState.write`.

    Raises StateConflictError if another instance of this task has written one of them or the previous txid; they are then read
    again.
    """
    if not values:
        return
    state = next(iter(values))._state
    try:
        changes = {rotating._entry(txid): value for rotating, value in values.items()}
        builds_on = [rotating._entry(max(below)) for rotating in values if (below := rotating._below(txid))]
        state.write(changes, builds_on, [name for rotating in values for name in rotating._gone], holding)
    except StateConflictError:
        for rotating in values:
            rotating.reload()
        raise
    for rotating, value in values.items():
        rotating._values[txid], rotating._gone = value, []
