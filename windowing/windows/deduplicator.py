"""ProcessedIds: which message ids of one channel a window has seen, exactly for the newest; Deduplicator: of all channels.

    ids       1 .. 900    901 902 904 907 ...
    known     all         those that are in the set       903 is not: it may come for the first time, late as it is

Laws: an id that was added is known for good. One that was not is unknown as long as it is among the REMEMBERED greatest, at least;
below `floor` all are taken for known. Ids that came together are told apart exactly, however many they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.windows.key_state import key_of

__all__ = [
    "DEFAULT_CHANNEL",
    "REMEMBERED",
    "Deduplicator",
    "ProcessedIds",
]


REMEMBERED = 65_536
DEFAULT_CHANNEL = ""


class ProcessedIds:
    """A set of whole numbers that forgets how far below its greatest ones others are. Cost: O(1) an id, amortised.

    >>> seen = ProcessedIds(remembered=2)
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
    def of(cls, data: list[Any]) -> ProcessedIds:
        """Return the ids of `plain`."""
        seen = cls()
        seen.floor = data[0]
        seen._ids = set(accumulate(data[1:]))
        return seen


class Deduplicator:
    """Which tuples came before, by message id: whole numbers that rise on each channel, each its own tuple's.

    A channel is whatever ids are unique on: an upstream task and its stream, an input stream. `duplicates` counts what came again.
    Cost: O(1) an id; `plain` is O(ids).

    >>> known = Deduplicator("bolt 'count'")
    >>> known.fresh([1, 2, 2, 3]), known.fresh([3, 4]), known.duplicates
    ([0, 1, 3], [1], 2)
    """

    def __init__(self, who: str) -> None:
        self.duplicates = 0
        self._who = who
        self._seen: dict[Hashable, ProcessedIds] = {}

    def fresh(self, ids: Sequence[Any], channels: Sequence[Hashable] | None = None) -> list[int]:
        """Take note of ids; return the positions of those that are new. Raises ConfigError for one that is no whole number; nothing
        has changed then.
        """
        for id in ids:
            if type(id) is not int:
                raise ConfigError(
                    f"{self._who}: the message id is {quote(id)}, wanted a whole number that rises on each channel (an offset, "
                    "say); name another field, or leave message_id= out"
                )
        kept: list[int] = []
        new: dict[Hashable, set[int]] = {}
        for at, id in enumerate(ids):
            channel = DEFAULT_CHANNEL if channels is None else channels[at]
            seen, now = self._seen.get(channel), new.setdefault(channel, set())
            if id in now or (seen is not None and id in seen):
                continue
            now.add(id)
            kept.append(at)
        for channel, found in new.items():  # only now may the oldest be forgotten
            seen = self._seen.setdefault(channel, ProcessedIds())
            for id in sorted(found):
                seen.add(id)
        self.duplicates += len(ids) - len(kept)
        return kept

    def plain(self) -> list[Any]:
        """Return the ids of all channels as plain data."""
        return [[channel, seen.plain()] for channel, seen in self._seen.items()]

    def restore(self, data: list[Any], duplicates: int = 0) -> None:
        """Become what `plain` returned."""
        self._seen = {key_of(channel): ProcessedIds.of(ids) for channel, ids in data}
        self.duplicates = duplicates
