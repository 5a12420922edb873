"""The key-value state of one task of a stateful bolt: read from Spark's store when asked, written once, with the batch.

    get(key), items() --> this batch's writes, over the store      put, delete --> kept here --> written at the end of the turn

Laws: nothing reaches the store before the whole turn was computed. `begin` and `undo` take back what one failed tuple has
written. Keys and values are plain data in typed JSON; a key is compared by type and value, so 1 and "1" and 1.0 are three.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from windowing.core.codec import decode_value, encode_value, frame, unframe

__all__ = ["TaskValues"]

_MAGIC = b"WNDV"
_ABSENT: Any = object()


class TaskValues:
    """What `init_state` is handed: a State. `load` reads the store, by key bytes; `scan` reads all of it, in any order.

    >>> store = {}
    >>> values = TaskValues(store.get, store.items, "state of bolt 'count', task 0")
    >>> values.put("storm", 2), values.get("storm"), values.get("spark", 0)
    (None, 2, 0)
    >>> "storm" in values, list(values.items())
    (True, [('storm', 2)])
    >>> [len(values.puts), values.drops]
    [1, []]

    A value that was got and then changed (a list, say) is not written by that: put it. Cost: a round trip to the JVM for the
    first read of a key in a batch, one for each key written; `items` reads the whole state of the task.
    """

    def __init__(
        self,
        load: Callable[[bytes], bytes | None],
        scan: Callable[[], Iterable[tuple[bytes, bytes]]],
        what: str,
    ) -> None:
        self._load, self._scan, self._what = load, scan, what
        self._stored: dict[bytes, Any] = {}
        self._changed: dict[bytes, Any] = {}
        self._journal: list[tuple[bytes, Any]] = []

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, a copy of its own; `default` where there is none."""
        found = self._found(encode_value(key))
        return default if found is _ABSENT else copy.deepcopy(found)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key. Raises TypeError for what is no plain data."""
        encode_value(value)
        self._set(encode_value(key), copy.deepcopy(value))

    def delete(self, key: Any) -> Any:
        """Remove a key; return the value that it had, or None."""
        name = encode_value(key)
        found = self._found(name)
        if found is _ABSENT:
            return None
        self._set(name, _ABSENT)
        return found

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values, copies of their own, as they are at the first step, in the order of the keys' bytes."""
        over = dict(self._changed)
        under = dict(self._scan())
        for name in sorted({*over, *under}):
            value = over[name] if name in over else self._decoded(under[name])
            if value is not _ABSENT:
                yield decode_value(name, f"a key in the {self._what}"), copy.deepcopy(value)

    def __contains__(self, key: object) -> bool:
        return self._found(encode_value(key)) is not _ABSENT

    def begin(self) -> None:
        """Begin a step that can be undone."""
        self._journal.clear()

    def undo(self) -> None:
        """Take back all writes since `begin`."""
        while self._journal:
            name, before = self._journal.pop()
            if before is None:
                del self._changed[name]
            else:
                (self._changed[name],) = before

    @property
    def puts(self) -> dict[bytes, bytes]:
        """What is to be written, by key bytes, in the order of the keys."""
        changed = self._changed
        kept = sorted(name for name, value in changed.items() if value is not _ABSENT)
        return {name: frame(_MAGIC, encode_value(changed[name])) for name in kept}

    @property
    def drops(self) -> list[bytes]:
        """The keys to remove, in order."""
        return sorted(name for name, value in self._changed.items() if value is _ABSENT)

    def _found(self, name: bytes) -> Any:
        if name in self._changed:
            return self._changed[name]
        if name not in self._stored:
            blob = self._load(name)
            self._stored[name] = _ABSENT if blob is None else self._decoded(blob)
        return self._stored[name]

    def _decoded(self, blob: bytes) -> Any:
        return decode_value(unframe(_MAGIC, blob, self._what), self._what)

    def _set(self, name: bytes, value: Any) -> None:
        self._journal.append((name, (self._changed[name],) if name in self._changed else None))
        self._changed[name] = value
