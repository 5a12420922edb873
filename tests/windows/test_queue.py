"""The queue of a window in memory, compared with a sorted list; few tuples out of order are inserted, more are spliced into many
that follow them, or sorted with few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.windows import queue
from windowing.windows.queue import ListBuffer

RUNS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9), max_size=12)


@given(RUNS, st.sampled_from([0, 3, 32]), st.sampled_from([0, 1, 10]), st.booleans())
def test_the_queue_is_in_order_of_time_and_arrival_however_many_arrive_at_once(
    runs: list[list[int]], few: int, splice: int, sequenced: bool
) -> None:
    buffer, model, arrived = ListBuffer(sequenced), list[tuple[int, int]](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "_FEW", few)
        patch.setattr(queue, "_SPLICE", splice)
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


class Compared(int):
    """A timestamp that counts how often one is compared with another."""

    times = 0

    def __lt__(self, other: int) -> bool:
        Compared.times += 1
        return int(self) < int(other)


@pytest.mark.parametrize("new", [1, 50, 200])
def test_tuples_out_of_order_do_not_sort_the_many_that_follow_them(new: int) -> None:
    buffer = ListBuffer()
    buffer.stage(list(map(Compared, range(10_000))), list(range(10_000)), 0)
    buffer.settle()
    buffer.stage(list(map(Compared, range(5, 5 + new)))[::-1], ["late"] * new, 10_000)
    Compared.times = 0
    buffer.settle()
    assert Compared.times < 10_000 / 2
    assert buffer.slice(4, 8) == [4, 5, "late", 6]
