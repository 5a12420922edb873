"""ProcessedIds compared with a plain set: every processed id is known, and the newest ones are distinguished exactly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from windowing.codec import decode_value, encode_value
from windowing.windows.deduplicator import ProcessedIds


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


@given(
    st.lists(st.tuples(st.sampled_from(["add"] * 8 + ["plain", "restore", "floor"]), st.integers(-20, 200))),
    st.integers(1, 8),
)
def test_what_is_stored_of_ids_is_that_of_a_set_that_is_sorted_anew(
    steps: list[tuple[str, int]], remembered: int
) -> None:
    ids, model = ProcessedIds(remembered), SortedAnew(remembered)
    for step, id in [*steps, ("plain", 0)]:
        if step == "add":
            assert (id in ids) == (id in model)
            ids.add(id)
            model.add(id)
        elif step == "floor":
            ids.raise_floor(id)
            model.raise_floor(id)
        elif step == "restore":
            ids = ProcessedIds.of(decode_value(encode_value(ids.plain()), "ids"))
            ids._remembered = remembered
        else:
            assert ids.plain() == model.plain()
        assert (sorted(ids), ids.floor) == (sorted(model.ids), model.floor)


def test_what_is_stored_stays_the_same_list_until_an_id_is_added_and_then_as_it_is() -> None:
    ids = ProcessedIds()
    for id in (3, 1):
        ids.add(id)
    stored = ids.plain()
    ids.add(3)
    assert ids.plain() is stored
    ids.add(2)
    assert (ids.plain(), stored) == ([None, 1, 1, 1], [None, 1, 2])
    data = [3, 5]
    restored = ProcessedIds.of(data)
    assert restored.plain() is data
    restored.add(4)
    assert (restored.plain(), data) == ([5], [3, 5])


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
