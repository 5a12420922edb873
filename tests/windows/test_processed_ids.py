"""ProcessedIds compared with a plain set: every processed id is known, and the newest ones are distinguished exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windowing.codec import decode_value, encode_value
from windowing.windows.deduplicator import ProcessedIds


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
