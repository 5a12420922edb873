"""The queue of a window in memory, compared with a sorted list; few tuples out of order are inserted, many are sorted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.windows import queue
from windowing.windows.queue import ListBuffer

RUNS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9), max_size=12)


@given(RUNS, st.sampled_from([0, 3, 32]), st.booleans())
def test_the_queue_is_in_order_of_time_and_arrival_however_many_arrive_at_once(
    runs: list[list[int]], few: int, sequenced: bool
) -> None:
    buffer, model, arrived = ListBuffer(sequenced), list[tuple[int, int]](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "_FEW", few)
        for run in runs:
            buffer.stage(run, list(range(arrived, arrived + len(run))), arrived)
            arrived += len(run)
            buffer.settle()
            buffer.check()
            model = sorted([*model, *zip(run, range(arrived - len(run), arrived), strict=True)])
            assert buffer.slice(0, buffer.end) == [number for _, number in model]
            assert buffer.timestamps == [timestamp for timestamp, _ in model]
            if sequenced:
                assert list(buffer.sequences_from(0)) == [number for _, number in model]


def test_one_tuple_out_of_order_moves_no_other_by_a_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ListBuffer()
    buffer.stage(list(range(100)), list(range(100)), 0)
    buffer.settle()
    buffer.stage_one(5, "late", 100)
    monkeypatch.setattr(queue, "stable_order", None)
    buffer.settle()
    assert buffer.slice(4, 8) == [4, 5, "late", 6]
