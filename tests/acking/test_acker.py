"""The acker: each tuple tree is acked or failed exactly once, never early, in any order of its messages; no entry is left behind.

Edge ids in the property tests are distinct powers of two, so no XOR is zero by accident and every property is exact.
"""

from __future__ import annotations

import itertools
import operator
import tracemalloc
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windowing.acking.acker import (
    TRANSITIONS,
    Acked,
    Acker,
    Anchors,
    Failed,
    Reason,
    RootEvent,
    RootState,
    RootTransition,
    acks_of,
    anchored,
    state_of,
)
from windowing.errors import AckError, ConfigError

T = 100
ROOT, TASK = 7, 3
DOCS = Path(__file__).parents[2] / "docs" / "acker.md"
ROTATIONS = pytest.mark.parametrize("rotation", [None, 2, 3])


@dataclass
class Tree:
    """The messages of one root, the init first."""

    root: int
    messages: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def fails(self) -> set[int]:
        return {index for index, message in enumerate(self.messages) if message[0] == "fail"}


def send(acker: Acker, message: tuple[Any, ...], now: int) -> list[Acked | Failed]:
    kind, root, *rest = message
    if kind == "init":
        return list(acker.init(root, *rest, now))
    if kind == "ack":
        xor, seen = rest
        return list(acker.ack(root, xor, now, seen))
    return list(acker.fail(root, now, *rest))


@st.composite
def forests(draw: st.DrawFn, may_fail: bool = True) -> list[Tree]:
    """Simulate spout and bolts: up to 3 roots, up to 60 edges, tuples anchored to one or two others, failed, or acked alone or with
    others.
    """
    bits = iter([1 << bit for bit in range(64)])
    left = 60
    trees, live = [], []
    for root in range(1, draw(st.integers(1, 3)) + 1):
        deliveries = [Anchors({root: next(bits)}) for _ in range(draw(st.integers(0, 3)))]
        left -= len(deliveries)
        begun = reduce(operator.xor, (tuple_.edges[root] for tuple_ in deliveries), 0)
        trees.append(Tree(root, [("init", root, begun, 10 + root)]))
        live += deliveries
    while live:
        tuple_ = live.pop(draw(st.integers(0, len(live) - 1)))
        for _ in range(draw(st.integers(0, 2))):
            both = [tuple_, *(live[:1] if draw(st.booleans()) else [])]
            if left >= len(both) and len(live) < 6:
                one = len(both) == 1 and draw(st.booleans())
                live.append(tuple_.child(next(bits)) if one else anchored(both, lambda: next(bits)))
                left -= len(both)
        seen = draw(st.sampled_from([None, "split", "count"]))
        if may_fail and draw(st.integers(0, 5)) == 0:
            for root in tuple_.fail():
                trees[root - 1].messages.append(("fail", root, seen))
        else:
            together = [tuple_, *(live.pop() for _ in range(draw(st.integers(0, len(live)))))]
            for root, xor in acks_of(together):
                trees[root - 1].messages.append(("ack", root, xor, seen))
    return trees


# -- properties in any order of arrival --------------------------------------------------------------------------------


@ROTATIONS
@given(data=st.data())
def test_a_tree_is_acked_by_its_last_message_or_failed_by_its_first_fail_but_never_both(
    rotation: int | None, data: st.DataObject
):
    trees = data.draw(forests())
    acker = Acker(T, rotation)
    got: dict[int, set[int]] = {tree.root: set() for tree in trees}
    ended: dict[int, Acked | Failed] = {}
    everything = [(tree, index) for tree in trees for index in range(len(tree.messages))]
    seen: dict[int, str | None] = {}  # the component that the tree's messages named last
    for tree, index in data.draw(st.permutations(everything)):
        message = tree.messages[index]
        if message[0] != "init" and message[-1] is not None:
            seen[tree.root] = message[-1]
        mine = got[tree.root]
        mine.add(index)
        expected: list[Acked | Failed] = []
        if tree.root not in ended and 0 in mine:
            if mine & tree.fails:
                expected = [Failed(tree.root, 10 + tree.root, Reason.FAILED, seen.get(tree.root))]
            elif len(mine) == len(tree.messages):
                expected = [Acked(tree.root, 10 + tree.root)]
        assert send(acker, tree.messages[index], 0) == expected
        ended.update({effect.root: effect for effect in expected})
        acker.check()
    assert ended.keys() == got.keys()
    assert acker.tally.acked + acker.tally.failed == len(trees)
    assert drained(acker) == []


def drained(acker: Acker) -> list[Acked | Failed]:
    """Tick at every deadline until the acker holds no entry; return the effects."""
    effects: list[Acked | Failed] = []
    for _ in range(1_000):
        deadline = acker.next_deadline_ms()
        if deadline is None:
            assert len(acker) == 0
            return effects
        effects += acker.tick(deadline)
        acker.check()
    raise AssertionError(f"after 1,000 deadlines {len(acker)} roots are still held")


@given(forest=forests(may_fail=False), data=st.data())
def test_a_tree_with_a_lost_message_times_out_exactly_one_timeout_after_its_init(
    forest: list[Tree], data: st.DataObject
):
    acker = Acker(T)
    tree = forest[0]
    lost = data.draw(st.sampled_from(range(len(tree.messages))))
    kept = [message for index, message in enumerate(tree.messages) if index != lost]
    effects = []
    now = 0
    for message in data.draw(st.permutations(kept)):
        now += data.draw(st.integers(0, 3))
        effects += send(acker, message, now)
        if message[0] == "init":
            begun = now
    assert effects == []
    if lost == 0:
        assert drained(acker) == []
        assert acker.tally.orphaned == bool(kept)
    else:
        assert acker.next_deadline_ms() <= begun + T
        assert list(acker.tick(begun + T - 1)) == []
        assert [(type(effect), effect.root) for effect in acker.tick(begun + T)] == [(Failed, tree.root)]
        assert drained(acker) == []


@pytest.mark.parametrize("rotation", [2, 3])
@given(begins=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=15))
def test_with_rotation_a_tree_times_out_between_n_minus_1_and_n_timeouts_after_its_init_or_last_reset(
    rotation: int, begins: list[tuple[int, int]]
):
    timeout = 20
    acker = Acker(timeout, rotation)
    last: dict[int, int] = {}
    for now in range(300 + 2 * rotation * timeout):
        for effect in acker.tick(now):
            assert isinstance(effect, Failed)
            assert effect.reason is Reason.TIMEOUT
            assert (rotation - 1) * timeout < now - last.pop(effect.root) <= rotation * timeout
        for root, (begin, reset) in enumerate(begins):
            if now == begin:
                assert list(acker.init(root, 1, TASK, now)) == []
                last[root] = now
            elif now == reset and root in last:
                assert list(acker.reset_timeout(root, now)) == []
                last[root] = now
    assert not last
    drained(acker)


@given(data=st.data())
def test_random_64_bit_edge_ids_ack_the_tree_with_the_last_message(data: st.DataObject):
    random = Random(data.draw(st.integers(0, 2**32)))
    acker = Acker(T)
    edges = [random.getrandbits(64) for _ in range(data.draw(st.integers(1, 30)))]
    messages = [("ack", ROOT, edge, None) for edge in edges] + [("init", ROOT, reduce(operator.xor, edges), TASK)]
    random.shuffle(messages)
    effects = [send(acker, message, 0) for message in messages]
    assert effects == [[]] * len(edges) + [[Acked(ROOT, TASK)]]
    assert len(acker) == 0


class AckerMachine(RuleBasedStateMachine):
    """The acker is compared with a dict: root -> messages received, start of its timeout, effects emitted.

    The clock advances by a drawn step, or to the next deadline; every deadline on the way is ticked, as by a driver.
    """

    @initialize(forest=forests())
    def begin(self, forest: list[Tree]) -> None:
        self.acker = Acker(T)
        self.now = 0
        self.trees = {tree.root: tree for tree in forest}
        self.under_way = [(tree.root, index) for tree in forest for index in range(len(tree.messages))]
        self.model: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, Acked | Failed] = {}

    def expect(self, effects: list[Acked | Failed], expected: list[Acked | Failed]) -> None:
        assert effects == expected
        for effect in effects:
            assert effect.root not in self.ended, "a root ended twice"
            self.ended[effect.root] = effect

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        root, index = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        tree, message = self.trees[root], self.trees[root].messages[index]
        entry = self.model.setdefault(
            root, {"got": set(), "since": self.now, "inited": False, "failed": False, "ended": False, "seen": None}
        )
        if message[0] != "init" and message[-1] is not None:
            entry["seen"] = message[-1]
        expected: list[Acked | Failed] = []
        if not entry["ended"]:
            entry["got"].add(index)
            entry["failed"] |= message[0] == "fail"
            if message[0] == "init":
                entry.update(inited=True, since=self.now)
            elif message[0] == "fail":
                entry["since"] = self.now
            if entry["inited"] and entry["failed"]:
                entry.update(ended=True, since=self.now)
                expected = [Failed(root, 10 + root, Reason.FAILED, entry["seen"])]
            elif len(entry["got"]) == len(tree.messages):
                del self.model[root]
                expected = [Acked(root, 10 + root)]
        self.expect(send(self.acker, message, self.now), expected)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    @rule(root=st.integers(1, 4))
    def reset(self, root: int) -> None:
        self.expect(list(self.acker.reset_timeout(root, self.now)), [])
        entry = self.model.get(root)
        if entry is not None and not entry["ended"]:
            entry["since"] = self.now

    @rule(root=st.integers(1, 3))
    def fail_once_more(self, root: int) -> None:
        """Fail is the only message that may come twice; for an open root it is the first."""
        entry = self.model.get(root)
        if entry is not None and (entry["failed"] or entry["ended"]):
            self.expect(list(self.acker.fail(root, self.now)), [])
            if not entry["ended"]:
                entry["since"] = self.now

    @rule(step=st.integers(0, T))
    def advance(self, step: int) -> None:
        until = self.now + step
        while (deadline := self.acker.next_deadline_ms()) is not None and deadline <= until:
            self.tick(deadline)
        self.tick(until)

    @precondition(lambda self: self.acker.next_deadline_ms() is not None)
    @rule(early=st.integers(0, 1))
    def advance_to_the_deadline(self, early: int) -> None:
        self.tick(max(self.acker.next_deadline_ms() - early, self.now))

    def tick(self, now: int) -> None:
        self.now = now
        expected = []
        for root, entry in list(self.model.items()):
            if entry["since"] + T > now:
                continue
            if entry["inited"] and not entry["ended"]:
                entry.update(ended=True, since=now)
                expected.append(Failed(root, 10 + root, Reason.TIMEOUT, entry["seen"]))
            else:
                del self.model[root]
        self.expect(
            sorted(self.acker.tick(now), key=lambda effect: effect.root), sorted(expected, key=lambda e: e.root)
        )

    @invariant()
    def the_acker_equals_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        self.acker.check()
        assert len(self.acker) == len(self.model)
        assert self.acker.next_deadline_ms() == min((e["since"] + T for e in self.model.values()), default=None)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.advance(2 * T)
            assert len(self.acker) == 0


TestAckerMachine = AckerMachine.TestCase


# -- the transition table ----------------------------------------------------------------------------------------------

PREPARE = {
    RootState.UNKNOWN: [],
    RootState.OPEN: [("init", ROOT, 1, TASK)],
    RootState.EARLY: [("ack", ROOT, 1, None)],
    RootState.DOOMED: [("ack", ROOT, 1, None), ("fail", ROOT)],
    RootState.CLOSED: [("ack", ROOT, 1, None), ("fail", ROOT), ("init", ROOT, 2, TASK)],
}
ALL_PAIRS = [
    (state, cause)
    for state, cause in itertools.product(RootState, RootEvent)
    if (state, cause) != (RootState.UNKNOWN, RootEvent.DEADLINE)
]


def prepared(state: RootState) -> tuple[Acker, int]:
    """Return an acker that holds ROOT in this state since time 0, and its XOR value."""
    acker = Acker(T)
    for message in PREPARE[state]:
        send(acker, message, 0)
    value = {RootState.UNKNOWN: 0, RootState.CLOSED: 3}.get(state, 1)
    return acker, value


def apply_event(acker: Acker, cause: RootEvent, value: int, now: int) -> list[Acked | Failed]:
    xor = value if cause in (RootEvent.INIT_ZERO, RootEvent.ACK_ZERO) else value ^ 4
    if cause in (RootEvent.INIT, RootEvent.INIT_ZERO):
        return list(acker.init(ROOT, xor, TASK, now))
    if cause in (RootEvent.ACK, RootEvent.ACK_ZERO):
        return list(acker.ack(ROOT, xor, now))
    if cause is RootEvent.FAIL:
        return list(acker.fail(ROOT, now))
    return list(acker.reset_timeout(ROOT, now) if cause is RootEvent.RESET else acker.tick(T))


@pytest.mark.parametrize(("state", "cause"), ALL_PAIRS, ids=lambda each: each.name)
def test_each_state_and_event_follow_the_transition_table(state: RootState, cause: RootEvent):
    acker, value = prepared(state)
    row = TRANSITIONS.get((state, cause))
    if row is None:
        before = ledger(acker)
        with pytest.raises(AckError, match="already"):
            apply_event(acker, cause, value, 10)
        assert ledger(acker) == before
        return
    effects = apply_event(acker, cause, value, 10)
    if row.effect is Acked:
        assert effects == [Acked(ROOT, TASK)]
    else:
        assert effects == ([] if row.effect is None else [Failed(ROOT, TASK, row.effect, None)])
    assert held_state(acker) is row.then
    if row.then is not RootState.UNKNOWN:
        now = T if cause is RootEvent.DEADLINE else 10
        assert acker.next_deadline_ms() == (now if row.renews else 0) + T
    acker.check()


def ledger(acker: Acker) -> list[Any]:
    """Return all that an acker holds but the time."""
    counts = {name: getattr(acker.tally, name) for name in acker.tally.__slots__}
    return [acker._held.buckets(), acker._names, counts]


def held_state(acker: Acker) -> RootState:
    cell = acker._held.get(ROOT)
    return RootState.UNKNOWN if cell is None else state_of(cell)


def test_the_only_pairs_without_a_transition_are_a_second_init():
    assert set(ALL_PAIRS) - TRANSITIONS.keys() == {
        (state, cause)
        for state in (RootState.OPEN, RootState.CLOSED)
        for cause in (RootEvent.INIT, RootEvent.INIT_ZERO)
    }


def test_every_transition_that_ends_a_tree_is_one_of_three():
    ends = {row for row in TRANSITIONS.values() if row.effect is not None}
    assert ends == {
        RootTransition(RootState.UNKNOWN, Acked),
        RootTransition(RootState.CLOSED, Reason.FAILED, renews=True),
        RootTransition(RootState.CLOSED, Reason.TIMEOUT, renews=True),
    }


def mermaid() -> str:
    """Return TRANSITIONS as a state diagram, as in the docs."""
    edges: dict[tuple[RootState, RootState, str], list[str]] = {}
    for (state, cause), row in TRANSITIONS.items():
        if isinstance(row.effect, Reason):
            effect = f" / Failed({row.effect.name})"
        elif row.effect is Acked:
            effect = " / Acked"
        else:
            effect = " / new timeout" if row.renews and state is row.then else ""
        edges.setdefault((state, row.then, effect), []).append(cause.value.replace(", value 0", " to 0"))
    lines = ["stateDiagram-v2", "    [*] --> unknown"]
    for (state, then, effect), causes in edges.items():
        lines.append(f"    {state.value} --> {then.value}: {', '.join(causes)}{effect}")
    return "\n".join(lines)


def test_the_state_diagram_in_the_docs_equals_the_transition_table():
    assert f"```mermaid\n{mermaid()}\n```" in DOCS.read_text(encoding="utf-8")


# -- single cases ------------------------------------------------------------------------------------------------------


def test_the_tree_of_the_jstorm_article_is_acked_with_the_last_of_six_messages():
    acker = Acker(T)
    messages = [("init", 1 ^ 2), ("ack", 1 ^ 3), ("ack", 2 ^ 4), ("ack", 3), ("ack", 4)]
    tree = [(kind, ROOT, *rest, TASK) if kind == "init" else (kind, ROOT, *rest, None) for kind, *rest in messages]
    assert [send(acker, message, 0) for message in tree] == [[], [], [], [], [Acked(ROOT, TASK)]]
    assert len(acker) == 0


def test_a_fail_before_the_init_wins_over_a_zero_xor():
    acker = Acker(T)
    assert list(acker.fail(ROOT, 0, seen="count")) == []
    assert list(acker.ack(ROOT, 5, 0)) == []
    assert list(acker.init(ROOT, 5, TASK, 0)) == [Failed(ROOT, TASK, Reason.FAILED, "count")]


def rotated(rotation: int | None, *messages: str, xor: int = 5) -> list[Any]:
    """Return the effects of an acker for these messages of one root; each tick is one timeout after the one before."""
    acker, now, effects = Acker(T, rotation), 0, []
    for message in messages:
        if message == "tick":
            now += T
            effects.append(list(acker.tick(now)))
        elif message == "init":
            effects.append(list(acker.init(ROOT, xor, TASK, now)))
        elif message == "reset":
            effects.append(list(acker.reset_timeout(ROOT, now)))
        else:
            effects.append(list(acker.ack(ROOT, 1, now) if message == "ack" else acker.fail(ROOT, now)))
        acker.check()
    return effects


FAILED, TIMED_OUT = [Failed(ROOT, TASK, Reason.FAILED, None)], [Failed(ROOT, TASK, Reason.TIMEOUT, None)]


def test_a_fail_before_the_init_is_kept_for_a_whole_timeout_after_the_fail():
    acker = Acker(T)
    assert list(acker.ack(ROOT, 1, 0)) == []
    assert list(acker.tick(T - 1)) == list(acker.fail(ROOT, T - 1)) == []
    assert list(acker.tick(2 * T - 2)) == []
    assert list(acker.init(ROOT, 5, TASK, 2 * T - 2)) == FAILED


def test_with_rotation_a_fail_before_the_init_is_kept_as_long_as_in_storm():
    assert rotated(3, "ack", "tick", "tick", "fail", "tick", "init")[-1] == FAILED
    assert rotated(3, "fail", "tick", "tick", "fail", "tick", "tick", "init")[-1] == FAILED
    assert rotated(3, "fail", "tick", "tick", "reset", "tick", "tick", "init")[-1] == FAILED
    assert rotated(3, "fail", "tick", "tick", "tick", "init")[-1] == []


def test_with_rotation_an_init_does_not_renew_the_entry_of_an_early_ack_as_in_storm():
    assert rotated(3, "ack", "tick", "init", "tick", "tick")[-2:] == [[], TIMED_OUT]
    assert rotated(3, "init", "ack", "tick", "tick", "tick")[-2:] == [[], TIMED_OUT]


def test_an_exact_timeout_starts_at_the_init_even_after_an_early_ack():
    acker = Acker(T)
    list(acker.ack(ROOT, 1, 0))
    list(acker.init(ROOT, 5, TASK, T - 1))
    assert list(acker.tick(2 * T - 2)) == []
    assert list(acker.tick(2 * T - 1)) == TIMED_OUT


@ROTATIONS
def test_a_timeout_reset_emits_nothing_and_creates_no_entry_for_an_unknown_root(rotation: int | None):
    acker = Acker(T, rotation)
    assert list(acker.reset_timeout(ROOT, 0)) == []
    assert len(acker) == 0
    list(acker.init(ROOT, 5, TASK, 0))
    assert list(acker.reset_timeout(ROOT, 10)) == []


@pytest.mark.parametrize(("rotation", "ticks"), [(2, 2), (3, 3)])
def test_with_rotation_the_acker_times_out_a_tree_after_as_many_ticks_as_it_has_buckets(rotation: int, ticks: int):
    """Storm's spout has its own rotation of two buckets and times out first: `rotation=2` is what a user of Storm sees."""
    assert rotated(rotation, "init", *["tick"] * ticks)[1:] == [[]] * (ticks - 1) + [TIMED_OUT]


@pytest.mark.parametrize("how", ["fail", "fail before init", "timeout"])
def test_late_messages_of_a_failed_tree_are_counted_and_their_entry_expires(how: str):
    acker = Acker(T)
    effects = list(acker.fail(ROOT, 0)) if how == "fail before init" else []
    effects += acker.init(ROOT, 5, TASK, 0)
    if how != "fail before init":
        effects += acker.fail(ROOT, T) if how == "fail" else acker.tick(T)
    assert [type(effect) for effect in effects] == [Failed]
    since = 0 if how == "fail before init" else T
    for now in (since, since + 50, since + T - 1):
        assert list(acker.ack(ROOT, 5, now)) == []
        assert list(acker.fail(ROOT, now)) == []
        assert list(acker.reset_timeout(ROOT, now)) == []
    assert acker.tally.late == 9
    assert acker.next_deadline_ms() == since + T
    assert list(acker.tick(since + T)) == []
    assert len(acker) == 0


def test_a_stray_message_for_an_acked_root_has_no_effect_and_expires_after_one_timeout():
    acker = Acker(T)
    list(acker.init(ROOT, 5, TASK, 0))
    assert list(acker.ack(ROOT, 5, 0)) == [Acked(ROOT, TASK)]
    assert list(acker.fail(ROOT, 10)) == []
    assert list(acker.tick(10 + T)) == []
    assert len(acker) == 0
    assert acker.tally.orphaned == 1


def test_a_timeout_names_the_component_that_last_acked_a_tuple_of_the_tree():
    acker = Acker(T)
    list(acker.init(ROOT, 0b110, TASK, 0))
    list(acker.ack(ROOT, 0b1010, 5, seen="split"))
    list(acker.ack(ROOT, 0b10000, 6))
    assert list(acker.tick(T)) == [Failed(ROOT, TASK, Reason.TIMEOUT, "split")]


def test_a_clock_that_goes_back_counts_as_the_largest_time_seen():
    acker = Acker(T)
    list(acker.tick(1_000))
    list(acker.init(ROOT, 5, TASK, 10))
    assert list(acker.tick(500)) == []
    assert acker.next_deadline_ms() == 1_000 + T
    acker.check()


def test_an_init_between_two_effects_of_one_tick_is_safe():
    acker = Acker(T)
    for root in (1, 2):
        list(acker.init(root, 5, TASK, 0))
    effects = acker.tick(T)
    assert next(effects).root == 1
    list(acker.init(3, 5, TASK, T))
    assert next(effects).root == 2
    acker.check()


@pytest.mark.parametrize(("xor", "task"), [(-1, 0), (2**64, 0), (1, -1), (1, 2**24)])
def test_an_xor_or_task_id_out_of_range_is_refused_and_changes_nothing(xor: int, task: int):
    acker = Acker(T)
    with pytest.raises(AckError, match="getrandbits"):
        acker.init(ROOT, xor, task, 0)
    assert len(acker) == 0
    if task == 0:
        with pytest.raises(AckError, match="getrandbits"):
            acker.ack(ROOT, xor, 0)


def test_more_component_names_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("windowing.acking.acker.MAX_COMPONENTS", 2)
    acker = Acker(T)
    for name in ("a", "b", "a"):
        acker.fail(ROOT, 0, seen=name)
    with pytest.raises(AckError, match="not of a tuple"):
        acker.fail(ROOT, 0, seen="c")


@pytest.mark.parametrize("options", [{"timeout_ms": 0}, {"rotation": 1}])
def test_an_invalid_timeout_or_rotation_is_refused(options: dict[str, int]):
    with pytest.raises(ConfigError):
        Acker(**options)


@pytest.mark.parametrize("roots", [3_000, 11_000, 30_000])
def test_a_root_in_flight_takes_at_most_250_bytes(roots: int):
    random = Random(1)
    acker = Acker()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(roots):
            acker.init(random.getrandbits(64), random.getrandbits(64), TASK, 1_700_000_000_000 + number)
        assert (tracemalloc.get_traced_memory()[0] - before) / roots <= 250
    finally:
        tracemalloc.stop()


# -- anchors -----------------------------------------------------------------------------------------------------------


def test_acking_or_failing_a_tuple_twice_is_an_error():
    tuple_ = Anchors({ROOT: 1})
    assert tuple_.ack() == [(ROOT, 1)]
    assert tuple_.settled
    with pytest.raises(AckError, match="twice"):
        tuple_.fail()


def test_emitting_a_tuple_anchored_to_an_acked_tuple_is_an_error():
    tuple_ = Anchors({ROOT: 1})
    tuple_.ack()
    with pytest.raises(AckError, match="emit first"):
        anchored([tuple_], lambda: 2)


@pytest.mark.parametrize("edge", [0, -1, 2**64])
def test_an_edge_id_of_zero_or_out_of_range_is_refused(edge: int):
    with pytest.raises(AckError, match="edge id"):
        Anchors({ROOT: edge})


def test_an_unanchored_tuple_belongs_to_no_tree():
    assert Anchors({}).ack() == []
    assert anchored([], lambda: 1).fail() == []


# -- batches -------------------------------------------------------------------------------------------------------------


PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["init", "ack", "fail", "reset", "tick"]),
            PAIRS,
            st.sampled_from([None, "a", "b"]),
            st.sampled_from([60, 60, -90]),
        ),
        max_size=25,
    ),
    st.sampled_from([None, 3]),
)
def test_a_batch_of_messages_equals_the_same_messages_one_by_one(steps, rotation):
    fast, slow = Acker(300, rotation), Acker(300, rotation)
    begun, now_ms, latest_ms = 0, 0, 0
    for step, pairs, seen, passed_ms in steps:
        now_ms += passed_ms
        latest_ms = max(latest_ms, now_ms)
        if step == "init":  # each root gets only one init
            inits = [(begun + number, xor) for number, (_, xor) in enumerate(pairs)]
            begun += len(inits)
            expected = [effect for root, xor in inits for effect in slow.init(root, xor, 7 + root % 2, now_ms)]
            found = [effect for init in inits for effect in fast.init_all([init], 7 + init[0] % 2, now_ms)]
            assert found == expected
        elif step == "ack":
            acks = [(max(begun - 4 + root, 0), xor) for root, xor in pairs]  # some acks come before their init
            acked = [effect for root, xor in acks for effect in slow.ack(root, xor, now_ms, seen)]
            by_task = fast.ack_all(acks, now_ms, seen)
            assert {task: [each.root for each in acked if each.task == task] for task in by_task} == by_task
            assert len(acked) == sum(map(len, by_task.values()))
        elif step == "tick":
            assert list(fast.tick(now_ms)) == list(slow.tick(now_ms))
        else:
            for root, _ in pairs:
                at = max(begun - 3 + root, 0)
                both = [
                    list(one.fail(at, now_ms, seen) if step == "fail" else one.reset_timeout(at, now_ms))
                    for one in (fast, slow)
                ]
                assert both[0] == both[1]
        assert ledger(fast) == ledger(slow)
        assert fast._now_ms == slow._now_ms == latest_ms  # a clock that goes back counts as the largest time
        fast.check()


@pytest.mark.parametrize("xor", [-1, 2**64])
def test_an_invalid_xor_or_a_second_init_is_refused_in_a_batch_too(xor):
    with pytest.raises(AckError, match="XOR of edge ids"):
        Acker().init_all([(1, 1), (2, xor)], 0, 0)
    with pytest.raises(AckError, match="XOR of edge ids"):
        Acker().ack_all([(1, xor)], 0)
    with pytest.raises(AckError, match="is open already"):
        Acker().init_all([(1, 1), (1, 2)], 0, 0)


def test_a_child_of_one_tuple_has_an_edge_in_each_tree_of_that_tuple():
    one, two = Anchors({1: 5, 2: 6}), Anchors({1: 5, 2: 6})
    child, the_acker_equals_the_model = one.child(8), anchored([two], lambda: 8)
    assert (child.edges, one.ack(), child.ack()) == (
        the_acker_equals_the_model.edges,
        two.ack(),
        the_acker_equals_the_model.ack(),
    )
    with pytest.raises(AckError, match="emit first"):
        one.child(9)


def test_tuples_of_the_same_trees_are_acked_by_one_message_for_each_tree():
    parent = Anchors({1: 5, 2: 6})
    rows = [parent.child(edge) for edge in (8, 16, 32)]
    grandchild = rows[0].child(64)
    assert {id(each.roots) for each in (*rows, grandchild)} == {id(parent.roots)}
    assert acks_of(rows) == [(1, 8 ^ 16 ^ 32 ^ 64), (2, 8 ^ 16 ^ 32 ^ 64)]
    # The parent has another edge in each tree, so it is not acked together with its child.
    assert acks_of([grandchild, parent]) == [(1, 5 ^ 8 ^ 16 ^ 32), (2, 6 ^ 8 ^ 16 ^ 32), (1, 64), (2, 64)]
    with pytest.raises(AckError, match="twice"):
        acks_of([rows[1]])
