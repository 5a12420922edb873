"""SeenIds: which message ids of one channel a window has seen, exactly for the newest ones.

    ids       1 .. 900    901 902 904 907 ...
    known     all         those that are in the set       903 is not: it may come for the first time, late as it is

Laws: an id that was added is known for good. One that was not is unknown as long as it is among the REMEMBERED greatest, at least;
below `floor` all are taken for known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

__all__ = ["REMEMBERED", "SeenIds"]

REMEMBERED = 65_536


class SeenIds:
    """A set of whole numbers that forgets how far below its greatest ones others are. Cost: O(1) an id, amortised.

    >>> seen = SeenIds(remembered=2)
    >>> for id in (1, 3, 7, 8): seen.add(id)
    >>> [id in seen for id in (0, 2, 3, 5, 7, 8)], seen.floor
    ([True, True, True, False, True, True], 3)
    """

    __slots__ = ("_ids", "_remembered", "floor")

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.floor: int | None = None
        self._ids: set[int] = set()
        self._remembered = remembered

    def __contains__(self, id: int) -> bool:
        return id in self._ids or (self.floor is not None and id <= self.floor)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def add(self, id: int) -> None:
        """Take note of an id."""
        if id in self:
            return
        self._ids.add(id)
        if len(self._ids) >= 2 * self._remembered:
            ordered = sorted(self._ids)
            self.floor = ordered[-self._remembered - 1]
            self._ids = set(ordered[-self._remembered :])

    def plain(self) -> list[Any]:
        """Return the ids as plain data: the floor, the smallest id, and the steps from one to the next."""
        ordered = sorted(self._ids)
        return [self.floor, *ordered[:1], *(two - one for one, two in pairwise(ordered))]

    @classmethod
    def of(cls, data: list[Any]) -> SeenIds:
        """Return the ids of `plain`."""
        seen = cls()
        seen.floor = data[0]
        seen._ids = set(accumulate(data[1:]))
        return seen
