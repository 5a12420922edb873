"""AlignedBarrier: one cut through all channels; nothing is lost, repeated or overtaken."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windowing.errors import CheckpointError, ConfigError
from windowing.execution.checkpoints import Aligned, AlignedBarrier, Checkpoint, CheckpointAction, Delivered, Superseded

PREPARE = Checkpoint(1, 7, CheckpointAction.PREPARE)
COMMIT = Checkpoint(1, 7, CheckpointAction.COMMIT)
ROLLBACK = Checkpoint(2, 7, CheckpointAction.ROLLBACK)


def test_tuples_pass_while_no_checkpoint_is_being_aligned():
    barrier = AlignedBarrier("ab")
    assert barrier.offer("a", 1) == (Delivered("a", 1),)
    assert barrier.offer("b", 2) == (Delivered("b", 2),)


def test_a_channel_is_held_back_from_its_barrier_on_until_all_have_shown_it():
    barrier = AlignedBarrier("abc")
    assert barrier.arrived("a", PREPARE, "Pa") == ()
    assert barrier.offer("a", 1) == ()
    assert barrier.offer("b", 2) == (Delivered("b", 2),)
    assert barrier.arrived("b", PREPARE, "Pb") == ()
    assert barrier.offer("b", 3) == barrier.offer("a", 4) == ()
    assert barrier.offer("c", 5) == (Delivered("c", 5),)
    assert barrier.arrived("c", PREPARE, "Pc") == (
        Aligned(PREPARE, ("Pa", "Pb", "Pc")),
        Delivered("a", 1),
        Delivered("b", 3),
        Delivered("a", 4),
    )
    assert (barrier.held, barrier.aligning) == (0, None)


def test_one_channel_is_aligned_at_once():
    assert AlignedBarrier("a").arrived("a", PREPARE, "P") == (Aligned(PREPARE, ("P",)),)


def test_barriers_of_a_failed_attempt_do_not_count_for_the_next():  # C1 of Storm's
    barrier = AlignedBarrier("ab")
    barrier.arrived("a", PREPARE, "old")
    again = PREPARE._replace(attempt=2)
    assert barrier.arrived("b", again, "new b") == (Superseded(("old",)),)
    assert barrier.arrived("a", again, "new a") == (Aligned(again, ("new b", "new a")),)


def test_what_was_held_for_a_failed_attempt_comes_out_before_the_barrier_of_the_next():
    barrier = AlignedBarrier("ab")
    barrier.arrived("a", PREPARE, "Pa")
    barrier.offer("a", 1)
    assert barrier.arrived("a", ROLLBACK, "Ra") == (Superseded(("Pa",)), Delivered("a", 1))
    assert barrier.offer("a", 2) == ()
    assert barrier.aligning == ROLLBACK
    # The barrier of the failed attempt was slow: it is on channel b still, before that of the next.
    assert barrier.arrived("b", PREPARE, "Pb") == (Superseded(("Pb",)),)
    assert barrier.offer("b", 3) == (Delivered("b", 3),)
    assert barrier.arrived("b", ROLLBACK, "Rb") == (Aligned(ROLLBACK, ("Ra", "Rb")), Delivered("a", 2))


def test_a_barrier_that_comes_twice_is_not_counted_twice():
    barrier = AlignedBarrier("ab")
    barrier.arrived("a", PREPARE, "Pa")
    assert barrier.arrived("a", PREPARE, "again") == ()
    assert barrier.arrived("b", PREPARE, "Pb") == (Aligned(PREPARE, ("Pa", "Pb")), Superseded(("again",)))
    assert barrier.aligning is None


def test_the_next_checkpoint_that_waits_behind_the_barrier_is_taken_after_it():
    barrier = AlignedBarrier("ab")
    barrier.arrived("a", PREPARE, "Pa")
    barrier.arrived("a", COMMIT, "Ca")
    barrier.offer("a", 1)
    assert barrier.arrived("b", PREPARE, "Pb") == (Aligned(PREPARE, ("Pa", "Pb")),)
    assert barrier.arrived("b", COMMIT, "Cb") == (Aligned(COMMIT, ("Ca", "Cb")), Delivered("a", 1))


def test_a_channel_that_leaves_a_checkpoint_out_and_one_that_nobody_knows_are_errors():
    barrier = AlignedBarrier("ab")
    barrier.arrived("a", PREPARE, "Pa")
    with pytest.raises(CheckpointError, match="must pass on every checkpoint"):
        barrier.arrived("b", COMMIT, "Cb")
    with pytest.raises(CheckpointError, match="declare all of them"):
        barrier.arrived("z", PREPARE, "Pz")
    with pytest.raises(ConfigError, match="at least one upstream task"):
        AlignedBarrier([])


# -- any order ------------------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[deque[Any]], list[int]]:
    """Return what each channel sends (tuples are numbers, the newest attempt has every barrier), and an order of arrival."""
    checkpoints = []
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        for txid in range(draw(st.integers(1, 3))):
            checkpoints += [
                Checkpoint(attempt, txid, CheckpointAction.PREPARE),
                Checkpoint(attempt, txid, CheckpointAction.COMMIT),
            ]
    newest = checkpoints[-1].attempt
    channels, number = [], 0
    for _ in range(draw(st.integers(1, 4))):
        sent: deque[Any] = deque()
        lost_from: dict[int, int] = {}  # of a failed attempt a channel shows only the beginning
        for position, checkpoint in enumerate(checkpoints):
            for _ in range(draw(st.integers(0, 2))):
                sent.append(number := number + 1)
            until = lost_from.setdefault(checkpoint.attempt, draw(st.integers(0, len(checkpoints))))
            if checkpoint.attempt == newest or position < until:
                sent.append(checkpoint)
        sent.append(number := number + 1)
        channels.append(sent)
    total = sum(map(len, channels))
    return channels, draw(st.lists(st.integers(0, len(channels) - 1), min_size=total, max_size=3 * total))


@given(history=histories())
@settings(max_examples=2 * settings().max_examples)
def test_in_any_order_of_arrival_there_is_one_cut_and_nothing_is_lost_or_overtaken(history: Any) -> None:
    channels, order = history
    sent = [list(channel) for channel in channels]
    newest = max(each.attempt for channel in sent for each in channel if isinstance(each, Checkpoint))
    barrier = AlignedBarrier(range(len(channels)))
    happened: list[Any] = []
    waiting = [deque(channel) for channel in channels]
    for number in [*order, *(n for n, channel in enumerate(channels) for _ in channel)]:
        if not waiting[number]:
            continue
        item = waiting[number].popleft()
        if isinstance(item, Checkpoint):
            happened += barrier.arrived(number, item, (number, item))
        else:
            happened += barrier.offer(number, item)
        barrier.check()
    assert barrier.held == 0
    for number, channel in enumerate(sent):
        # Each channel's tuples: all, once, in order.
        assert [e.message for e in happened if isinstance(e, Delivered) and e.channel == number] == [
            item for item in channel if not isinstance(item, Checkpoint)
        ]
        # Each barrier message: aligned or superseded, once.
        settled = [m for e in happened if not isinstance(e, Delivered) for m in e.messages if m[0] == number]
        assert sorted(settled, key=str) == sorted(
            [(number, item) for item in channel if isinstance(item, Checkpoint)], key=str
        )
        # The cut: before an aligned checkpoint exactly what the channel sent before its barrier was delivered.
        for at, effect in enumerate(happened):
            if isinstance(effect, Aligned):
                before = [e.message for e in happened[:at] if isinstance(e, Delivered) and e.channel == number]
                cut = channel.index(effect.checkpoint)
                assert before == [item for item in channel[:cut] if not isinstance(item, Checkpoint)]
    # Every checkpoint of the newest attempt is aligned, in order.
    aligned = [e.checkpoint for e in happened if isinstance(e, Aligned) and e.checkpoint.attempt == newest]
    assert aligned == [item for item in sent[0] if isinstance(item, Checkpoint) and item.attempt == newest]
