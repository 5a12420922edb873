"""The guard of a machine: a call acts at once, its effects must be taken to the end, a window is valid during one effect.

First the guard alone, then in Storm's managers.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import pytest

from windowing.errors import ConfigError, MachineSpentError, SnapshotError, StaleWindowError
from windowing.windows.events import Activation, Event, Expired, ListContent, TupleWindow
from windowing.windows.eviction import (
    Action,
    CountEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
)
from windowing.windows.guard import NO_EFFECTS, Guard, MachineState
from windowing.windows.storm import StormStatefulWindowManager, StormWindowManager
from windowing.windows.trigger import CountTriggerPolicy, WatermarkTimeTriggerPolicy


def activation(*ids: int) -> Activation:
    return Activation(TupleWindow(ListContent(list(ids), [], []), 0, 10))


def expired(*ids: int) -> Expired:
    return Expired(len(ids), lambda: list(ids))


class Machine:
    """Acts when its effects are computed, and records it."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.done: list[str] = []

    def enter(self, *effects: object, fail: bool = False) -> Iterator[object]:
        return self.guard.run(self._run(effects, fail))

    def _run(self, effects: tuple[object, ...], fail: bool) -> Iterator[object]:
        for index, effect in enumerate(effects):
            self.done.append(f"effect {index}")
            yield effect
        if fail:
            raise ZeroDivisionError
        self.done.append("end")


def test_a_call_without_effects_is_finished_without_iterating():
    machine = Machine()
    machine.enter()
    machine.enter()
    assert machine.done == ["end", "end"]
    assert list(machine.enter()) == []


def test_a_call_acts_at_once_up_to_its_first_effect():
    machine = Machine()
    effects = machine.enter("a", "b")
    assert machine.done == ["effect 0"]
    assert machine.guard.state is MachineState.BUSY
    assert list(effects) == ["a", "b"]
    assert machine.done == ["effect 0", "effect 1", "end"]
    assert machine.guard.state is MachineState.FREE


def test_a_call_before_the_last_effects_are_taken_is_refused_and_changes_nothing():
    machine = Machine()
    effects = machine.enter("a", "b")
    for enter in (machine.enter, machine.guard.enter):
        with pytest.raises(MachineSpentError, match="were all taken"):
            enter()
    assert list(effects) == ["a", "b"]
    machine.guard.enter()
    assert list(machine.enter("c")) == ["c"]


def test_a_call_is_finished_only_after_its_iterator_is_exhausted():
    machine = Machine()
    effects = machine.enter("a")
    next(effects)
    with pytest.raises(MachineSpentError):
        machine.enter()
    assert next(effects, None) is None
    machine.enter()


def test_an_exhausted_iterator_does_not_finish_a_later_call():
    machine = Machine()
    first = machine.enter("a")
    list(first)
    second = machine.enter("b", "c")
    assert next(first, None) is None
    first.close()
    assert machine.guard.state is MachineState.BUSY
    assert list(second) == ["b", "c"]


@pytest.mark.parametrize("before", [(), ("a",)])
def test_an_error_inside_a_call_spends_the_machine(before):
    machine = Machine()
    with pytest.raises(ZeroDivisionError):
        list(machine.enter(*before, fail=True))
    assert machine.guard.state is MachineState.SPENT
    for enter in (machine.enter, machine.guard.enter):
        with pytest.raises(MachineSpentError, match="restore it"):
            enter()


def test_closing_the_effects_half_way_spends_the_machine():
    machine = Machine()
    effects = machine.enter("a", "b")
    next(effects)
    effects.close()
    assert machine.guard.state is MachineState.SPENT
    assert list(effects) == []
    assert machine.done == ["effect 0"]


def test_closing_the_effects_before_the_first_one_spends_the_machine():
    machine = Machine()
    machine.enter("a").close()
    assert machine.guard.state is MachineState.SPENT


def test_closing_exhausted_effects_changes_nothing():
    machine = Machine()
    effects = machine.enter("a")
    list(effects)
    effects.close()
    machine.enter()


def test_dropped_effects_still_block_the_next_call():
    machine = Machine()
    next(machine.enter("a", "b"))
    with pytest.raises(MachineSpentError):
        machine.enter()


def test_a_restore_frees_the_machine_and_ends_earlier_iterators():
    machine = Machine()
    old = machine.enter("a", "b")
    next(old)
    machine.guard.reset()
    assert list(old) == []
    new = machine.enter("c", "d")
    old.close()
    assert list(new) == ["c", "d"]
    assert "effect 1" in machine.done


def test_a_failed_call_can_spend_the_guard_itself():
    machine = Machine()
    machine.guard.fail()
    with pytest.raises(MachineSpentError):
        machine.enter()
    machine.guard.reset()
    machine.enter()


def test_a_policy_cannot_call_the_machine_that_calls_it():
    guard = Guard()

    def effects() -> Iterator[object]:
        guard.run(NO_EFFECTS)
        yield "never"

    with pytest.raises(MachineSpentError):
        guard.run(effects())
    assert guard.state is MachineState.SPENT


def test_a_window_is_valid_until_the_next_effect_is_taken():
    machine = Machine()
    effects = machine.enter(activation(1, 2), expired(1), activation(3))
    first = next(effects).window
    assert first.get() == [1, 2]
    assert next(effects).get() == [1]
    with pytest.raises(StaleWindowError, match=r"list\(window.get\(\)\)"):
        first.get()
    last = next(effects).window
    assert last.get() == [3]
    assert next(effects, None) is None
    with pytest.raises(StaleWindowError):
        last.get()


def test_a_window_becomes_stale_when_its_iterator_is_closed():
    machine = Machine()
    effects = machine.enter(activation(1))
    window = next(effects).window
    effects.close()
    with pytest.raises(StaleWindowError):
        window.get()


def test_a_window_becomes_stale_when_the_machine_is_restored():
    machine = Machine()
    window = next(machine.enter(activation(1))).window
    machine.guard.reset()
    with pytest.raises(StaleWindowError):
        window.get()


def test_windows_in_pairs_with_positions_become_stale_too():
    guard = Guard()
    pairs = guard.run(iter([(4, activation(1)), (7, expired(1))]), positions=True)
    position, effect = next(pairs)
    assert position == 4
    assert effect.window.get() == [1]
    assert next(pairs)[0] == 7
    with pytest.raises(StaleWindowError):
        effect.window.get()


def test_closing_the_effects_closes_their_generator():
    closed = []

    def effects() -> Iterator[object]:
        try:
            yield activation(1)
        finally:
            closed.append(True)

    Guard().run(effects()).close()
    assert closed == [True]


# -- iterator windows -------------------------------------------------------------------------------------------------


def seq(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def stateful_manager() -> StormStatefulWindowManager:
    manager = StormStatefulWindowManager(CountEvictionPolicy(3), CountTriggerPolicy(5))
    for payload in seq(1, 4):
        manager.add(payload, 0)
    return manager


def test_an_iterator_window_is_scanned_while_it_is_iterated():
    manager = stateful_manager()
    (effect,) = [(list(effect.window), len(effect.window), effect.window.get()[0]) for effect in manager.add(5, 0)]
    assert effect == ([3, 4, 5], 3, 3)
    assert manager.snapshot()["payloads"] == [3, 4, 5]


def test_an_unread_iterator_window_is_scanned_up_to_its_first_tuple():
    manager = StormStatefulWindowManager(WatermarkTimeEvictionPolicy(10), WatermarkTimeTriggerPolicy(10))
    for payload, timestamp_ms in ((1, 1), (2, 12), (3, 2)):
        manager.add(payload, timestamp_ms)
    assert len(list(manager.advance(12))) == 1
    assert [list(effect.window) for effect in manager.advance(20)] == [[2]]
    assert manager.snapshot()["payloads"] == [2]


def test_two_iterators_of_one_window_are_independent():
    for effect in stateful_manager().add(5, 0):
        first, second = iter(effect.window.get()), iter(effect.window.get())
        assert [next(first), next(second), next(second), next(first), next(first)] == [3, 3, 4, 4, 5]
        assert (list(first), list(second)) == ([], [5])


def test_of_two_iterators_of_one_window_the_later_one_skips_what_the_other_has_expired():
    manager = StormStatefulWindowManager(WatermarkTimeEvictionPolicy(10), WatermarkTimeTriggerPolicy(10))
    for payload, timestamp_ms in ((1, 12), (2, 2), (3, 15)):
        manager.add(payload, timestamp_ms)
    shown = [
        (list(zip(effect.window.get(), effect.window.get(), strict=True)), len(effect.window.get()))
        for effect in manager.advance(20)
    ]
    assert shown == [([(2, 2)], 1), ([(1, 1), (3, 3)], 2)]


def test_an_iterator_window_has_no_new_or_expired_tuples():
    for effect in stateful_manager().add(5, 0):
        asked = attrgetter("aggregate")
        for ask in (type(effect.window).get_new, type(effect.window).get_expired, asked):
            with pytest.raises(TypeError):
                ask(effect.window)


def test_an_iterator_becomes_stale_with_its_window():
    manager = stateful_manager()
    kept = []
    for effect in manager.add(5, 0):
        kept.append(iter(effect.window.get()))
        assert next(kept[0]) == 3
        kept.append(iter(effect.window.get()))
    for iterator in kept:
        with pytest.raises(StaleWindowError):
            next(iterator)


# -- a machine that fails ---------------------------------------------------------------------------------------------


def test_storms_manager_refuses_to_drain():
    with pytest.raises(ConfigError, match="lossless"):
        stateful_manager().drain()


def test_a_batch_needs_a_timestamp_for_each_tuple():
    manager = stateful_manager()
    with pytest.raises(ConfigError, match="2 tuples and 1 timestamps"):
        manager.add_batch([1, 2], [1])
    manager.add(0, 0).close()


def test_a_failing_policy_spends_the_machine_until_a_restore():
    class Fails(CountEvictionPolicy):
        def evict(self, event: Event) -> Action:
            if event.payload == "bad":
                raise ZeroDivisionError
            return super().evict(event)

    manager = StormWindowManager(Fails(2), CountTriggerPolicy(2))
    manager.add("good", 0)
    saved = manager.snapshot()
    with pytest.raises(ZeroDivisionError):
        manager.add("bad", 0)
    for enter in (lambda: manager.add("x", 0), lambda: manager.tick(0), lambda: manager.advance(0), manager.snapshot):
        with pytest.raises(MachineSpentError):
            enter()
    manager.restore(saved)
    assert [effect.window.get() for effect in manager.add("fine", 0)] == [["good", "fine"]]


def test_a_damaged_snapshot_or_one_of_another_window_is_refused():
    manager = StormWindowManager(CountEvictionPolicy(2), CountTriggerPolicy(2))
    saved = manager.snapshot()
    others = [(CountEvictionPolicy(3), CountTriggerPolicy(2)), (CountEvictionPolicy(2), CountTriggerPolicy(3)),
              (WatermarkCountEvictionPolicy(2), CountTriggerPolicy(2))]  # fmt: skip
    for policies in others:
        with pytest.raises(SnapshotError, match="same definition"):
            StormWindowManager(*policies).restore(saved)
    with pytest.raises(SnapshotError, match="same definition"):
        StormStatefulWindowManager(CountEvictionPolicy(2), CountTriggerPolicy(2)).restore(saved)
    for damaged in ({**saved, "timestamps": [1]}, {**saved, "previous": [0]}, {**saved, "eviction": None}):
        with pytest.raises(SnapshotError, match="damaged"):
            manager.restore(damaged)
    with pytest.raises(MachineSpentError):
        manager.add("x", 0)
    manager.restore(saved)
    manager.add("x", 0)
