"""ProcessedIds: the message ids that one channel has processed, exact for the newest ids; Deduplicator: the same for all channels.

    ids       1 .. 900    901 902 904 907 ...
    known     all         those in the set                903 is not: it may arrive late, for the first time

Laws: an id that was added stays known. An id that was not added is unknown while it is at least as great as the REMEMBERED greatest
ids; every id at or below `floor` counts as known, and ids without a gap above the floor raise it. Ids of one call are distinguished
exactly, however many they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import sub
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.windows.key_state import restored_key

REMEMBERED = 65_536
DEFAULT_CHANNEL = ""


class ProcessedIds:
    """A set of whole numbers that keeps the greatest ones and counts all below `floor` as members.

    Cost: O(log ids) an id; `plain` costs the ids, and nothing if none was added since the last call.

    >>> processed = ProcessedIds(remembered=2)
    >>> for id in (1, 3, 7, 8): processed.add(id)
    >>> [id in processed for id in (0, 2, 3, 5, 7, 8)], processed.floor
    ([True, True, True, False, True, True], 3)
    """

    __slots__ = ("_new", "_ordered", "_plain", "_remembered", "floor")

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.floor: int | None = None
        self._ordered: list[int] = []
        self._new: set[int] = set()  # the ids that are not in `_ordered` yet
        self._plain: list[Any] | None = None  # the result of `plain` if it is still right
        self._remembered = remembered

    def __contains__(self, id: int) -> bool:
        if id in self._new or (self.floor is not None and id <= self.floor):
            return True
        at = bisect_left(self._ordered, id)
        return at < len(self._ordered) and self._ordered[at] == id

    def __iter__(self) -> Iterator[int]:
        return chain(self._ordered, self._new)

    def add(self, id: int) -> None:
        """Add an id."""
        if id in self:
            return
        self._plain = None
        self._new.add(id)
        if len(self._ordered) + len(self._new) >= 2 * self._remembered:
            self.raise_floor(self._in_order()[-self._remembered - 1])
        elif self.floor is not None and id == self.floor + 1:
            self._pass_neighbours(self.floor)

    def raise_floor(self, floor: int) -> None:
        """Add all ids up to `floor`."""
        if self.floor is None or floor > self.floor:
            self._plain = None
            ordered = self._in_order()
            del ordered[: bisect_right(ordered, floor)]
            self._pass_neighbours(floor)

    def _pass_neighbours(self, floor: int) -> None:
        """Set the floor, above which all ids are, and raise it over those that follow it without a gap."""
        ordered, new, passed = self._ordered, self._new, 0
        while True:
            if passed < len(ordered) and ordered[passed] == floor + 1:
                passed += 1
            elif floor + 1 in new:
                new.remove(floor + 1)
            else:
                break
            floor += 1
        del ordered[:passed]
        self.floor = floor

    def _in_order(self) -> list[int]:
        """Return the kept list of the ids, with the new ones in their places."""
        ordered, new = self._ordered, sorted(self._new)
        if new:
            is_behind = not ordered or ordered[-1] < new[0]
            ordered += new
            if not is_behind:
                ordered.sort()  # merges the two runs
            self._new.clear()
        return ordered

    def plain(self) -> list[Any]:
        """Return the ids as plain data: the floor, the smallest id, and the differences between consecutive ids.

        It is the same list until an id is added, which leaves it as it is.
        """
        if self._plain is None:
            ordered = self._in_order()
            self._plain = [self.floor, *ordered[:1], *map(sub, islice(ordered, 1, None), ordered)]
        return self._plain

    @classmethod
    def of(cls, data: list[Any]) -> ProcessedIds:
        """Restore the ids from the data of `plain`."""
        processed = cls()
        processed._ordered = list(accumulate(data[1:]))
        if data[0] is not None:
            processed.raise_floor(data[0])
        processed._plain = data
        return processed


class Deduplicator:
    """Recognises tuples that were processed before, by message id: a whole number that rises on each channel, one for each tuple.

    A channel is what ids are unique on: an upstream task and its stream, or an input stream. `duplicates` counts repeated ids.
    Cost: O(log ids) an id; `plain` costs the ids of the channels with new ones.

    >>> known = Deduplicator("bolt 'count'")
    >>> known.new_positions([1, 2, 2, 3]), known.new_positions([3, 4]), known.duplicates
    ([0, 1, 3], [1], 2)
    """

    def __init__(self, owner: str) -> None:
        self.duplicates = 0
        self._owner = owner
        self._processed: dict[Hashable, ProcessedIds] = {}

    def new_positions(self, ids: Sequence[Any], channels: Sequence[Hashable] | None = None) -> list[int]:
        """Add the ids and return the positions of the new ones. Raises ConfigError for an id that is no whole number, and then adds
        none.
        """
        for id in ids:
            if type(id) is not int:
                raise ConfigError(
                    f"{self._owner}: the message id is {quote(id)}, wanted a whole number that rises on each channel (an offset, "
                    "say); filter such rows in front, name another field, or leave message_id= out"
                )
        kept: list[int] = []
        new: dict[Hashable, set[int]] = {}
        for at, id in enumerate(ids):
            channel = DEFAULT_CHANNEL if channels is None else channels[at]
            processed, now = self._processed.get(channel), new.setdefault(channel, set())
            if id in now or (processed is not None and id in processed):
                continue
            now.add(id)
            kept.append(at)
        for channel, found in new.items():  # after all ids were looked up, because add may raise the floor
            processed = self._processed.setdefault(channel, ProcessedIds())
            for id in sorted(found):
                processed.add(id)
        self.duplicates += len(ids) - len(kept)
        return kept

    def plain(self) -> list[Any]:
        """Return the ids of all channels as plain data."""
        return [[channel, processed.plain()] for channel, processed in self._processed.items()]

    def restore(self, data: list[Any], duplicates: int = 0) -> None:
        """Restore the ids of all channels from the data of `plain`."""
        self._processed = {restored_key(channel): ProcessedIds.of(ids) for channel, ids in data}
        self.duplicates = duplicates
