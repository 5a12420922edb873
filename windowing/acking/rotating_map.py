"""RotatingMap: a map that forgets by rotation, several keys at once.

    put --> | head | ... | tail | --rotate--> expired, as data
               a key is in one bucket at most; put moves it to the head

Laws: `rotate` returns what was neither put nor removed during the last `num_buckets` rotations, counting this one; nothing
else leaves unasked. There is no clock here: who rotates every T keeps a key for (T * (num_buckets - 1), T * num_buckets].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from windowing.errors import ConfigError, shown

__all__ = ["RotatingMap"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RotatingMap(Generic[K, V]):
    """A dict in `num_buckets` parts. Cost: O(num_buckets) for all but `rotate`, which is O(1).

    Source: Storm's `RotatingMap`, whose callback at expiry is here the result of `rotate`.

    >>> seen = RotatingMap(num_buckets=2)
    >>> seen.put("a", 1)
    >>> seen.rotate(), seen.rotate(), len(seen)
    ({}, {'a': 1}, 0)
    """

    __slots__ = ("_buckets",)

    def __init__(self, num_buckets: int = 3) -> None:
        if num_buckets < 2:
            raise ConfigError(
                f"num_buckets must be at least 2, got {shown(num_buckets)}: with one, a rotation forgets what has just "
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
        """Set the value of a key that is there, without moving it; raises KeyError if it is not."""
        for bucket in self._buckets:
            if key in bucket:
                bucket[key] = value
                return
        raise KeyError(key)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, None if it is not there."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket[key]
        return None

    def remove(self, key: K) -> V | None:
        """Forget `key` and return its value, None if it was not there."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket.pop(key)
        return None

    def rotate(self) -> dict[K, V]:
        """Take off the oldest bucket and return it; a new empty one is the head."""
        expired = self._buckets.pop()
        self._buckets.appendleft({})
        return expired

    def buckets(self) -> list[list[tuple[K, V]]]:
        """Return all items, oldest bucket first. Cost: O(n)."""
        return [list(bucket.items()) for bucket in reversed(self._buckets)]

    def load(self, buckets: Iterable[Iterable[tuple[K, V]]]) -> None:
        """Become what `buckets` returned; a number of buckets of its own comes with it."""
        self._buckets = deque(dict(items) for items in buckets)
        self._buckets.reverse()

    def __contains__(self, key: object) -> bool:
        return any(key in bucket for bucket in self._buckets)

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets)

    def __iter__(self) -> Iterator[K]:
        """Iterate the keys, oldest bucket first, in order of insertion within a bucket."""
        for bucket in reversed(self._buckets):
            yield from bucket

    def check(self) -> None:
        """Assert what always holds."""
        # There are at least two buckets, and a key is in one of them only.
        assert len(self._buckets) >= 2
        assert len(set(self)) == len(self)
