"""ProcessedIds: the message ids that one channel has processed, exact for the newest ids; Deduplicator: the same for all channels.

    ids       1 .. 900    901 902 904 907 ...    ... 5012    5013 5020 ...
    known     all         those in blocks                    the newest ids, at least BLOCK of them if there are blocks
              up to the                  903 is not known: it may arrive late, for the first time
              floor

Laws: an id that was added stays known. An id that was not added is unknown while it is at least as great as the REMEMBERED greatest
ids; every id at or below `floor` counts as known, and ids without a gap above the floor raise it. Ids of one call are distinguished
exactly, however many they are.

A stored block never changes: with other ids it is another block. Nearly all ids are greater than those before. So a batch reads and
writes the list of the blocks, the newest ids and now and then a block, however many ids are known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from operator import attrgetter, sub
from typing import Any

from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.windows.key_state import restored_key

REMEMBERED = 65_536
BLOCK = 1_024
"""The ids of a new block; it is split at twice as many, and the lowest block loses ids to the floor."""
DEFAULT_CHANNEL = ""
LoadBlock = Callable[[int], list[int]]
"""Returns what `stored` has returned of a block, by its number."""


@dataclass(slots=True)
class IdBlock:
    """`count` ids from `first` to `last`, in order. number: that of the stored block, None for one that is not stored. ids: None
    until they are needed.
    """

    number: int | None
    first: int
    last: int
    count: int
    ids: list[int] | None

    @classmethod
    def of(cls, ids: list[int]) -> IdBlock:
        return cls(None, ids[0], ids[-1], len(ids), ids)


def block_numbers(data: Any) -> set[int]:
    """Return the numbers of the blocks to which the data of `ProcessedIds.stored` refers."""
    return set(data[0][::4]) if data and type(data[0]) is list else set()


def block_names(data: list[Any]) -> set[tuple[Any, int]]:
    """Return channel and number of the blocks to which the data of `Deduplicator.stored` refers."""
    return {
        (name, number) for channel, ids in data for name in (restored_key(channel),) for number in block_numbers(ids)
    }


class ProcessedIds:
    """A set of whole numbers that keeps the greatest ones and counts all below `floor` as members.

    Cost: O(log ids) an id, and a block for one that is not among the newest. `plain` costs the ids, `stored` the newest ids and the
    changed blocks, and nothing if no id was added since the last call.

    >>> processed = ProcessedIds(remembered=2)
    >>> for id in (1, 3, 7, 8): processed.add(id)
    >>> [id in processed for id in (0, 2, 3, 5, 7, 8)], processed.floor
    ([True, True, True, False, True, True], 3)
    """

    __slots__ = ("_blocks", "_in_blocks", "_load", "_new", "_next", "_ordered", "_remembered", "_stored", "floor")

    def __init__(self, remembered: int = REMEMBERED, load: LoadBlock | None = None) -> None:
        self.floor: int | None = None
        self._blocks: list[IdBlock] = []
        self._in_blocks = 0
        self._ordered: list[int] = []  # the newest ids, greater than those in blocks
        self._new: set[int] = set()  # those of them that are not in `_ordered` yet
        self._next = 0  # the number of the next block
        self._load = load
        self._stored: list[Any] | None = None  # the result of `stored` if it is still right
        self._remembered = remembered

    def __contains__(self, id: int) -> bool:
        if id in self._new or (self.floor is not None and id <= self.floor):
            return True
        ordered = self._ordered
        if self._blocks and id <= self._blocks[-1].last:
            ordered = self._ids_of(self._blocks[self._block_at(id)])
        at = bisect_left(ordered, id)
        return at < len(ordered) and ordered[at] == id

    def __iter__(self) -> Iterator[int]:
        return chain(*map(self._ids_of, self._blocks), self._ordered, self._new)

    def add(self, id: int) -> None:
        """Add an id."""
        if id in self:
            return
        self._stored = None
        if self._blocks and id < self._blocks[-1].last:
            self._add_to_blocks(id)
        else:
            self._new.add(id)
        count = self._in_blocks + len(self._ordered) + len(self._new)
        if count >= 2 * self._remembered:
            self.raise_floor(self._id_at(count - self._remembered - 1))
        elif self.floor is not None and id == self.floor + 1:
            self._pass_neighbours(self.floor)

    def raise_floor(self, floor: int) -> None:
        """Add all ids up to `floor`."""
        if self.floor is None or floor > self.floor:
            self._stored = None
            self._cut_blocks(floor)
            if not self._blocks:
                ordered = self._in_order()
                del ordered[: bisect_right(ordered, floor)]
            self._pass_neighbours(floor)

    def _pass_neighbours(self, floor: int) -> None:
        """Set the floor, above which all ids are, and raise it over those that follow it without a gap."""
        while self._blocks and self._blocks[0].first == floor + 1:
            lowest = self._blocks[0]
            if lowest.last - floor == lowest.count:
                floor = lowest.last
            else:
                floor = next(floor + at for at, id in enumerate(self._ids_of(lowest)) if id > floor + 1 + at)
            self._cut_blocks(floor)
        ordered, new, passed = self._ordered, self._new, 0
        while not self._blocks:
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
        """Return the kept list of the newest ids, with the new ones in their places."""
        ordered, new = self._ordered, sorted(self._new)
        if new:
            is_behind = not ordered or ordered[-1] < new[0]
            ordered += new
            if not is_behind:
                ordered.sort()  # merges the two runs
            self._new.clear()
        return ordered

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _block_at(self, id: int) -> int:
        """Return the position of the block that has the id or will get it: the first one that does not end before it."""
        return bisect_left(self._blocks, id, key=attrgetter("last"))

    def _ids_of(self, block: IdBlock) -> list[int]:
        if block.ids is None:
            assert self._load is not None
            assert block.number is not None
            block.ids = list(accumulate(self._load(block.number)))
            if (block.ids[0], block.ids[-1], len(block.ids)) != (block.first, block.last, block.count):
                raise CorruptStateError(
                    f"block {block.number} of message ids has {len(block.ids)} from {block.ids[0]} to {block.ids[-1]}, wanted "
                    f"{block.count} from {block.first} to {block.last}; restore the checkpoint from a copy, nothing was reset"
                )
        return block.ids

    def _add_to_blocks(self, id: int) -> None:
        at = self._block_at(id)
        ids = self._ids_of(self._blocks[at])
        insort(ids, id)
        parts = [ids] if len(ids) < 2 * BLOCK else [ids[:BLOCK], ids[BLOCK:]]
        self._blocks[at : at + 1] = map(IdBlock.of, parts)
        self._in_blocks += 1

    def _cut_blocks(self, floor: int) -> None:
        """Take out the ids up to a floor."""
        while self._blocks and (lowest := self._blocks[0]).first <= floor:
            kept = self._ids_of(lowest)[bisect_right(self._ids_of(lowest), floor) :] if lowest.last > floor else []
            self._blocks[:1] = [IdBlock.of(kept)] if kept else []
            self._in_blocks -= lowest.count - len(kept)

    def _id_at(self, position: int) -> int:
        for block in self._blocks:
            if position < block.count:
                return self._ids_of(block)[position]
            position -= block.count
        return self._in_order()[position]

    # -- stored ids ----------------------------------------------------------------------------------------------------

    def plain(self) -> list[Any]:
        """Return all ids as plain data: the floor, the smallest id, and the differences between consecutive ids."""
        self._in_order()
        return [self.floor, *_differences(list(self))]

    def stored(self) -> tuple[list[Any], dict[int, list[int]]]:
        """Return the ids as plain data that refers to blocks, and the data of the blocks that are not stored yet, by number; then
        these count as stored, and blocks to which the data does not refer any more may be deleted.

        The data is that of `plain` for few ids; else number, first id, last id and count of each block, and `plain` of the newest.
        It is the same list until an id is added, which leaves it as it is.
        """
        new: dict[int, list[int]] = {}
        if self._stored is None:
            ordered = self._in_order()
            cut = len(ordered) // BLOCK * BLOCK - BLOCK
            for at in range(0, cut, BLOCK):
                self._blocks.append(IdBlock.of(ordered[at : at + BLOCK]))
            if cut > 0:
                del ordered[:cut]
                self._in_blocks += cut
            index: list[int | None] = []
            for block in self._blocks:
                if block.number is None:
                    block.number, self._next = self._next, self._next + 1
                    new[block.number] = _differences(self._ids_of(block))
                index += block.number, block.first, block.last, block.count
            newest = [self.floor, *_differences(ordered)]
            self._stored = [index, newest] if index else newest
        return self._stored, new

    @classmethod
    def of(cls, data: list[Any], load: LoadBlock | None = None) -> ProcessedIds:
        """Restore the ids from the data of `plain`, or of `stored` with a function that reads a block. Methods then raise what it
        raises, and CorruptStateError for a block that is not the one of the data.
        """
        processed = cls(load=load)
        index, newest = data if block_numbers(data) else ([], data)
        each = iter(index)
        for number, first, last, count in zip(each, each, each, each, strict=True):
            processed._blocks.append(IdBlock(number, first, last, count, None))
            processed._in_blocks += count
        processed._next = 1 + max(index[::4], default=-1)
        processed._ordered = list(accumulate(newest[1:]))
        if newest[0] is not None:
            processed.raise_floor(newest[0])
        processed._stored = data if len(newest) <= 2 * BLOCK else None
        return processed


def _differences(ids: Sequence[int]) -> list[int]:
    return [*ids[:1], *map(sub, islice(ids, 1, None), ids)]


def wrong_id(owner: str, id: Any) -> ConfigError:
    """Return the error for a message id that is no whole number."""
    return ConfigError(
        f"{owner}: the message id is {quote(id)}, wanted a whole number that rises on each channel (an offset, say); "
        "filter such rows in front, name another field, or leave message_id= out"
    )


class Deduplicator:
    """Recognises tuples that were processed before, by message id: a whole number that rises on each channel, one for each tuple.

    A channel is what ids are unique on: an upstream task and its stream, or an input stream. `duplicates` counts repeated ids.
    Cost: that of ProcessedIds.

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
                raise wrong_id(self._owner, id)
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

    def stored(self) -> tuple[list[Any], dict[tuple[Any, int], list[int]]]:
        """Return the data of all channels and the new blocks, by channel and number (`ProcessedIds.stored`)."""
        data, new = [], {}
        for channel, processed in self._processed.items():
            of_channel, blocks = processed.stored()
            data.append([channel, of_channel])
            new.update({(channel, number): block for number, block in blocks.items()})
        return data, new

    def restore(
        self, data: list[Any], duplicates: int = 0, load: Callable[[Any, int], list[int]] | None = None
    ) -> None:
        """Restore the ids of all channels from the data of `plain`, or of `stored` with a function that reads a channel's block."""
        channels = ((restored_key(channel), ids) for channel, ids in data)
        self._processed = {channel: ProcessedIds.of(ids, load and partial(load, channel)) for channel, ids in channels}
        self.duplicates = duplicates
