"""ProcessedIds compared with a plain set: every processed id is known, and the newest ones are distinguished exactly, however they
are cut into blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.codec import decode_value, encode_value
from windowing.errors import CorruptStateError
from windowing.windows import deduplicator
from windowing.windows.deduplicator import BLOCK, Deduplicator, ProcessedIds, block_names, block_numbers


class SortedAnew:
    """The slow model: a set that is sorted whenever its order matters."""

    def __init__(self, remembered: int) -> None:
        self.floor: int | None = None
        self.ids: set[int] = set()
        self.remembered = remembered

    def __contains__(self, id: int) -> bool:
        return id in self.ids or (self.floor is not None and id <= self.floor)

    def add(self, id: int) -> None:
        if id not in self:
            self.ids.add(id)
            if len(self.ids) >= 2 * self.remembered:
                self.floor = sorted(self.ids)[-self.remembered - 1]
            self._raised()

    def raise_floor(self, floor: int) -> None:
        self.floor = floor if self.floor is None else max(floor, self.floor)
        self._raised()

    def _raised(self) -> None:
        while self.floor is not None and self.floor + 1 in self.ids:
            self.floor += 1
        self.ids = {id for id in self.ids if self.floor is None or id > self.floor}

    def plain(self) -> list[int | None]:
        ordered = sorted(self.ids)
        return [self.floor, *ordered[:1], *(later - id for id, later in pairwise(ordered))]


class Stored:
    """What is stored of ids: only bytes survive `restart`. A block is written once and stays as it is while it is referred to."""

    def __init__(self, ids: ProcessedIds) -> None:
        self.remembered = ids._remembered
        self.blocks: dict[int, bytes] = {}
        self.loaded: list[int] = []
        self.store(ids)

    def store(self, ids: ProcessedIds) -> int:
        """Store the ids; return how many bytes were written."""
        data, new = ids.stored()
        assert ids.stored() == (data, {}), "it is the same until an id is added"
        assert not new.keys() & self.blocks.keys()
        index, newest = data if block_numbers(data) else ([], data)
        assert max([*index[3::4], len(newest) - 1]) < 2 * deduplicator.BLOCK
        written = {number: encode_value(block) for number, block in new.items()}
        self.data = encode_value(data)
        self.blocks = {
            number: blob for number, blob in {**self.blocks, **written}.items() if number in block_numbers(data)
        }
        assert self.blocks.keys() == block_numbers(data)
        return len(self.data) + sum(map(len, written.values()))

    def restart(self) -> ProcessedIds:
        self.loaded.clear()
        ids = ProcessedIds.of(decode_value(self.data, "ids"), self.load)
        ids._remembered = self.remembered
        return ids

    def load(self, number: int) -> Any:
        self.loaded.append(number)
        return decode_value(self.blocks[number], "a block")


STEPS = ["add"] * 12 + ["plain", "floor", "store", "restart", "restart", "without blocks", "look"]


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(-20, 60), st.integers(1, 12)), max_size=60),
    st.integers(1, 20),
    st.integers(1, 4),
)
def test_what_is_known_and_stored_of_ids_is_that_of_a_set_that_is_sorted_anew(
    steps: list[tuple[str, int, int]], remembered: int, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicator, "BLOCK", block)
        ids, model = ProcessedIds(remembered), SortedAnew(remembered)
        stored = Stored(ids)
        for at, (step, offset, run) in enumerate([*steps, ("restart", 0, 0), ("plain", 0, 0), ("look", 0, 0)]):
            id = 6 * at + offset  # they rise, on the whole
            if step == "add":
                for each in range(id, id + 2 * run, 2):
                    assert (each in ids) == (each in model)
                    ids.add(each)
                    model.add(each)
            elif step == "floor":
                ids.raise_floor(id)
                model.raise_floor(id)
            elif step in ("store", "restart"):
                stored.store(ids)
                ids = stored.restart() if step == "restart" else ids
            elif step == "without blocks":  # as 0.2.0 stored them
                ids = ProcessedIds.of(decode_value(encode_value(ids.plain()), "ids"))
                ids._remembered = remembered
                stored = Stored(ids)
            elif step == "plain":
                assert ids.plain() == model.plain()
            else:  # not after each step, because it loads all blocks
                assert sorted(ids) == sorted(model.ids)
            assert ids.floor == model.floor


def gapped(count: int) -> ProcessedIds:
    ids = ProcessedIds()
    for id in range(0, 3 * count, 3):
        ids.add(id)
    return ids


def test_new_ids_cost_the_newest_ones_and_a_late_id_costs_a_block_however_many_are_known() -> None:
    few, many = Stored(gapped(20 * BLOCK)), Stored(gapped(120 * BLOCK))
    for stored, last in ((few, 60 * BLOCK), (many, 360 * BLOCK)):
        ids = stored.restart()
        assert last - 2 not in ids
        ids.add(last)
        assert last in ids
        assert stored.store(ids) < 10_000
        assert stored.loaded == []
        late = stored.restart()
        assert [id in late for id in (3 * BLOCK, 3 * BLOCK + 1)] == [True, False]
        late.add(3 * BLOCK + 1)
        assert stored.store(late) < 10_000
        assert len(stored.loaded) == 1


def test_many_new_ids_are_cut_into_blocks_and_the_newest_stay_beside_them() -> None:
    stored = Stored(gapped(5 * BLOCK + 7))
    index, newest = decode_value(stored.data, "ids")
    assert (len(stored.blocks), index[1:4], len(newest)) == (4, [0, 3 * BLOCK - 3, BLOCK], 1 + BLOCK + 7)


def test_a_block_that_is_not_the_one_of_the_data_is_refused() -> None:
    stored = Stored(gapped(5 * BLOCK))
    stored.blocks[2] = stored.blocks[1]
    ids = stored.restart()
    with pytest.raises(
        CorruptStateError,
        match=rf"block 2 of message ids has {BLOCK} from {3 * BLOCK} to .*, wanted {BLOCK} from {6 * BLOCK} to .*nothing was reset",
    ):
        ids.add(6 * BLOCK + 1)


def test_blocks_of_channels_have_a_channel_and_a_number() -> None:
    known = Deduplicator("bolt 'count'")
    known.new_positions([*range(0, 9 * BLOCK, 3)] * 2, ["a"] * 3 * BLOCK + [("b", 1)] * 3 * BLOCK)
    data, new = known.stored()
    assert (
        {*new}
        == block_names(decode_value(encode_value(data), "ids"))
        == {("a", 0), ("a", 1), (("b", 1), 0), (("b", 1), 1)}
    )
    again = Deduplicator("bolt 'count'")
    again.restore(decode_value(encode_value(data), "ids"), 3, load=lambda channel, number: new[channel, number])
    assert again.new_positions([3, 4, 5, 6], ["a", "a", ("b", 1), ("b", 1)]) == [1, 2]
    assert (again.duplicates, again.plain() == known.plain()) == (5, False)


def test_what_is_stored_stays_the_same_list_until_an_id_is_added_and_then_as_it_is() -> None:
    ids = ProcessedIds()
    for id in (3, 1):
        ids.add(id)
    stored, _ = ids.stored()
    ids.add(3)
    assert ids.stored()[0] is stored
    ids.add(2)
    assert (ids.stored()[0], stored) == ([None, 1, 1, 1], [None, 1, 2])
    data = [3, 5]
    restored = ProcessedIds.of(data)
    assert restored.stored()[0] is data
    restored.add(4)
    assert (restored.stored()[0], data) == ([5], [3, 5])


@given(st.lists(st.integers(-20, 200)), st.integers(1, 8), st.integers(0, 50))
def test_processed_ids_are_known_and_the_newest_ones_exactly(ids: list[int], remembered: int, at: int) -> None:
    seen, model = ProcessedIds(remembered), set[int]()
    for number, id in enumerate(ids):
        if number == at:
            stored = ProcessedIds.of(decode_value(encode_value(seen.plain()), "ids"))
            assert stored.plain() == seen.plain()
            stored._remembered = remembered
            seen = stored
        seen.add(id)
        model.add(id)
        assert all(id in seen for id in model)
        newest = sorted(model)[-remembered:]
        near = range(newest[0], newest[-1] + 2)
        assert {each for each in near if each in seen} == {each for each in near if each in model}
        assert len(list(seen)) < 2 * remembered


def test_ids_without_gaps_are_stored_as_their_end() -> None:
    seen = ProcessedIds(100)
    for id in (*range(150), 151, *range(152, 1_000), 150):
        seen.add(id)
    assert seen.plain() == [999]
    seen.add(1_001)
    assert seen.plain() == [999, 1_001]
