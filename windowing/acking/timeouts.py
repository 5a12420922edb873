"""Maps whose entries expire: Storm's RotatingMap, and the timeouts of the acker, exact or by rotation.

    RotatingMap        put --> | head | ... | tail | --rotate--> expired, as data
                       a key is in one bucket at most; put moves it to the head
    ExactTimeouts      put at t  ->  expires at t + T                  the timeout is constant, so insertion order is
                       | t+T | t+T | t'+T | ...   <- put, at the end   deadline order: no heap, no search
    RotatingTimeouts   put at t  ->  expires in [(n-1) * T, n * T] after t, with n buckets and punctual ticks

Laws: `rotate` returns the entries that were neither put nor removed during the last `num_buckets` rotations, including this one; no
other entry is removed by itself. The owner passes the time, which never falls. A value changed with `replace` keeps its position;
`put` moves it. `expire(now)` removes and returns the entries that are due; none expires before T has passed since its last `put`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from windowing.errors import ConfigError, quote

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RotatingMap(Generic[K, V]):
    """A dict in `num_buckets` parts. Cost: O(num_buckets) for all but `rotate`, which is O(1).

    Source: Storm's `RotatingMap`; its callback at expiry is here the result of `rotate`.

    >>> seen = RotatingMap(num_buckets=2)
    >>> seen.put("a", 1)
    >>> seen.rotate(), seen.rotate(), len(seen)
    ({}, {'a': 1}, 0)
    """

    __slots__ = ("_buckets",)

    def __init__(self, num_buckets: int = 3) -> None:
        if num_buckets < 2:
            raise ConfigError(
                f"num_buckets must be at least 2, got {quote(num_buckets)}: with one, a rotation forgets what has just "
                "been put; Storm has 2 for a spout and 3 for an acker"
            )
        self._buckets: deque[dict[K, V]] = deque({} for _ in range(num_buckets))

    def put(self, key: K, value: V) -> None:
        """Set the value of `key` and move it to the head."""
        for bucket in self._buckets:
            if bucket.pop(key, self) is not self:
                break
        self._buckets[0][key] = value

    def replace(self, key: K, value: V) -> None:
        """Set the value of a key without moving it. Raises KeyError if the key is missing."""
        for bucket in self._buckets:
            if key in bucket:
                bucket[key] = value
                return
        raise KeyError(key)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, None if it is missing."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket[key]
        return None

    def remove(self, key: K) -> V | None:
        """Remove `key` and return its value, None if it is missing."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket.pop(key)
        return None

    def rotate(self) -> dict[K, V]:
        """Remove and return the oldest bucket; a new empty bucket becomes the head."""
        expired = self._buckets.pop()
        self._buckets.appendleft({})
        return expired

    def buckets(self) -> list[list[tuple[K, V]]]:
        """Return all items, oldest bucket first. Cost: O(n)."""
        return [list(bucket.items()) for bucket in reversed(self._buckets)]

    def __contains__(self, key: object) -> bool:
        return any(key in bucket for bucket in self._buckets)

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets)

    def __iter__(self) -> Iterator[K]:
        """Iterate the keys, oldest bucket first, in order of insertion within a bucket."""
        for bucket in reversed(self._buckets):
            yield from bucket

    def check(self) -> None:
        """Assert the invariants."""
        # There are at least two buckets, and a key is in only one of them.
        assert len(self._buckets) >= 2
        assert len(set(self)) == len(self)


# -- timeouts of the acker -------------------------------------------------------------------------------------------------------


class ExactTimeouts(Generic[K, V]):
    """Every value expires at its own deadline. Cost: O(1) a call, O(expired items) for `expire`.

    `deadline_of` returns the deadline that a value contains. `get`, and `replace` and `remove` of an existing key, are as in
    RotatingMap; `add` is `put` of a new key, for loops over a batch.

    >>> held = ExactTimeouts(30, deadline_of=lambda value: value[1])
    >>> held.put("a", ("x", held.deadline(5)), 5)
    >>> held.next_deadline_ms(), held.expire(34), held.expire(35)
    (35, [], [('a', ('x', 35))])
    """

    __slots__ = ("_deadline_of", "_items", "_timeout_ms", "add", "get", "remove", "replace")

    def __init__(self, timeout_ms: int, deadline_of: Callable[[V], int]) -> None:
        self._timeout_ms = timeout_ms
        self._deadline_of = deadline_of
        items: OrderedDict[K, V] = OrderedDict()
        self._items = items
        # The calls of the hot path are methods of the dict itself, because one more Python frame would double their cost.
        self.get: Callable[[K], V | None] = items.get
        self.replace: Callable[[K, V], None] = items.__setitem__
        self.add: Callable[[K, V], None] | None = items.__setitem__  # a new key is the last one
        self.remove: Callable[[K], V | None] = items.pop

    def deadline(self, now_ms: int) -> int:
        """Return the deadline of a value that is put now; the value contains it."""
        return now_ms + self._timeout_ms

    def put(self, key: K, value: V, now_ms: int) -> None:
        """Set the value of a key; its timeout begins now."""
        self._items[key] = value
        self._items.move_to_end(key)

    def expire(self, now_ms: int) -> list[tuple[K, V]]:
        """Remove and return the items that are due, oldest first."""
        items, deadline_of, expired = self._items, self._deadline_of, []
        while items:
            key = next(iter(items))
            if deadline_of(items[key]) > now_ms:
                break
            expired.append((key, items.pop(key)))
        return expired

    def next_deadline_ms(self) -> int | None:
        items = self._items
        return self._deadline_of(items[next(iter(items))]) if items else None

    def buckets(self) -> list[list[tuple[K, V]]]:
        return [list(self._items.items())]

    def __len__(self) -> int:
        return len(self._items)

    def check(self) -> None:
        # The order of the items is the order of their deadlines.
        deadlines = [self._deadline_of(value) for value in self._items.values()]
        assert deadlines == sorted(deadlines)


class RotatingTimeouts(Generic[K, V]):
    """Values expire in whole buckets and have no deadlines of their own: `deadline` is 0, and there is no `add`. The other methods
    are those of ExactTimeouts. Cost: O(buckets) a call, O(1) for `expire`.

    One `expire` rotates at most once, and the next rotation is due T after it, so that a driver that was stopped for several T
    drops nothing early. Source: the rotations of Storm's `Acker` (3 buckets) and `SpoutExecutor` (2).
    """

    __slots__ = ("_map", "_next_rotation_ms", "_timeout_ms", "add", "get", "remove", "replace")

    def __init__(self, timeout_ms: int, num_buckets: int) -> None:
        self._timeout_ms = timeout_ms
        self._next_rotation_ms: int | None = None
        self._map: RotatingMap[K, V] = RotatingMap(num_buckets)
        self.get: Callable[[K], V | None] = self._map.get
        self.replace: Callable[[K, V], None] = self._map.replace
        self.add: Callable[[K, V], None] | None = None
        self.remove: Callable[[K], V | None] = self._map.remove

    def deadline(self, now_ms: int) -> int:
        return 0

    def put(self, key: K, value: V, now_ms: int) -> None:
        if self._next_rotation_ms is None:
            self._next_rotation_ms = now_ms + self._timeout_ms
        self._map.put(key, value)

    def expire(self, now_ms: int) -> list[tuple[K, V]]:
        if self._next_rotation_ms is None or now_ms < self._next_rotation_ms:
            return []
        self._next_rotation_ms = now_ms + self._timeout_ms
        return list(self._map.rotate().items())

    def next_deadline_ms(self) -> int | None:
        return self._next_rotation_ms if len(self._map) else None

    def buckets(self) -> list[list[tuple[K, V]]]:
        return self._map.buckets()

    def __len__(self) -> int:
        return len(self._map)

    def check(self) -> None:
        self._map.check()
        # If the map has items, a rotation is scheduled.
        assert not len(self._map) or self._next_rotation_ms is not None


Timeouts = ExactTimeouts[K, V] | RotatingTimeouts[K, V]
"""The map of an acker."""


def timeouts_of(timeout_ms: int, rotation: int | None, deadline_of: Callable[[V], int]) -> Timeouts[K, V]:
    """Return the map for a timeout: exact, or with `rotation` buckets. Raises ConfigError."""
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms <= 0:
        raise ConfigError(
            f"timeout_ms is a positive whole number of milliseconds, got {quote(timeout_ms)}; Storm's default is 30000"
        )
    if rotation is None:
        return ExactTimeouts(timeout_ms, deadline_of)
    return RotatingTimeouts(timeout_ms, rotation)
