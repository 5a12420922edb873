"""The spout's pending messages: who may emit, what is retried and when, what is given up; then spout, acker and bolts together."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.acking.acker import Acked, Acker, Anchors, Failed, Reason, anchored
from windowing.acking.pending import FORGET_MS, Done, GivenUp, Retry, RetryPolicy, SpoutPending
from windowing.errors import AckError, ConfigError
from windowing.windows.measures import seconds

POLICY = RetryPolicy(max_attempts=3, first_ms=100, cap_ms=150)


def test_an_acked_message_is_done_and_returns_its_payload():
    pending = SpoutPending()
    pending.emitted(1, "m", 10, payload=("the", 3))
    assert list(pending.acked_all((1,), 35)) == [Done("m", ("the", 3))]
    assert (len(pending), pending.next_deadline_ms()) == (0, None)


def test_a_failed_message_is_retried_with_growing_delays_then_given_up():
    pending = SpoutPending(retry=POLICY)
    pending.emitted(1, "m", 0, payload="row")
    assert list(pending.failed(1, 5, Reason.FAILED, "split")) == []
    assert pending.next_deadline_ms() == 105
    assert list(pending.tick(104)) == []
    assert list(pending.tick(105)) == [Retry("m", "row", attempt=2)]
    pending.emitted(2, "m", 200, payload="row")
    assert list(pending.failed(2, 200, Reason.FAILED, "split")) == []
    assert pending.next_deadline_ms() == 350
    assert list(pending.tick(350)) == [Retry("m", "row", attempt=3)]
    pending.emitted(3, "m", 350, payload="row")
    assert list(pending.failed(3, 400, Reason.TIMEOUT, "count")) == [GivenUp("m", "row", 3, Reason.TIMEOUT, "count")]
    assert (len(pending), pending.next_deadline_ms()) == (0, None)


def test_an_ack_resets_the_count_of_failures():
    pending = SpoutPending(retry=POLICY)
    for root in (1, 2):
        pending.emitted(root, "m", 0)
        list(pending.failed(root, 0, Reason.FAILED))
        assert [effect.attempt for effect in pending.tick(1_000 * root)] == [root + 1]
    pending.emitted(3, "m", 3_000)
    list(pending.acked_all((3,), 3_000))
    pending.emitted(4, "m", 3_000)
    list(pending.failed(4, 3_000, Reason.FAILED))
    assert [effect.attempt for effect in pending.tick(9_000)] == [2]


def test_messages_that_fail_together_are_retried_in_the_order_of_their_failures():
    pending = SpoutPending(retry=POLICY)
    for root, message_id in enumerate(("z", 1, "a")):
        pending.emitted(root, message_id, 0)
        list(pending.failed(root, 0, Reason.FAILED))
    assert [effect.message_id for effect in pending.tick(100)] == ["z", 1, "a"]


def test_trees_in_flight_at_a_restart_are_emitted_again_at_once_in_their_order_and_no_attempt_is_counted():
    pending = SpoutPending(retry=RetryPolicy(max_attempts=2, first_ms=100))
    for root in (1, 2, 3):
        pending.emitted(root, f"m{root}", now_ms=0)
    assert list(pending.failed(2, now_ms=5, reason="failed")) == []
    pending.restart()
    for root in (3, 1):
        assert list(pending.failed(root, now_ms=10, reason="failed")) == []
    assert pending.next_retry_ms() == 10
    assert [(retry.message_id, retry.attempt) for retry in pending.tick(10)] == [("m1", 1), ("m3", 1)]
    pending.restarted()
    assert [(retry.message_id, retry.attempt) for retry in pending.tick(105)] == [("m2", 2)]
    for root, message in ((4, "m1"), (5, "m2")):
        pending.emitted(root, message, now_ms=110)
    assert list(pending.failed(4, now_ms=120, reason="failed")) == [], "its first failure"
    assert [type(each) for each in pending.failed(5, now_ms=120, reason="failed")] == [GivenUp]
    pending.check()


def test_without_max_attempts_a_message_is_retried_forever_as_in_storm():
    policy = RetryPolicy(max_attempts=None, first_ms=0)
    assert not policy.is_last(10**9)
    assert policy.delay_ms(10**9) == 0
    assert RetryPolicy(first_ms=1, cap_ms=60_000).delay_ms(10**9) == 60_000
    assert RetryPolicy(first_ms=7, cap_ms=7).delay_ms(10**9) == 7


def test_acks_and_fails_of_a_finished_tree_are_ignored_and_counted_as_stale():
    pending = SpoutPending()
    pending.emitted(1, "m", 0)
    list(pending.acked_all((1,), 0))
    assert list(pending.acked_all((1,), 0)) == []
    assert list(pending.failed(1, 0, Reason.FAILED)) == []
    assert pending.stale == 2


def test_trees_in_flight_and_waiting_retries_count_towards_max_pending():
    pending = SpoutPending(max_pending=2, retry=POLICY)
    pending.emitted(1, "a", 0)
    assert pending.room == 1
    pending.emitted(2, "b", 0)
    assert pending.room == 0
    list(pending.failed(1, 0, Reason.FAILED))
    assert pending.room == 0
    assert [effect.message_id for effect in pending.tick(100)] == ["a"]
    assert pending.room == 1


def test_two_trees_of_one_message_are_retried_separately_and_count_as_one_attempt():
    pending = SpoutPending(retry=POLICY)
    for root in (1, 2):
        pending.emitted(root, "m", 0, payload=root)
    for root in (1, 2):
        list(pending.failed(root, 0, Reason.FAILED))
    assert list(pending.tick(100)) == [Retry("m", 1, 2), Retry("m", 2, 2)]


def test_a_retry_that_the_spout_never_emits_is_forgotten():
    pending = SpoutPending(retry=RetryPolicy(first_ms=10, cap_ms=10))
    pending.emitted(1, "m", 0)
    list(pending.failed(1, 0, Reason.FAILED))
    assert len(list(pending.tick(10))) == 1
    assert pending.next_deadline_ms() == 10 + FORGET_MS
    assert list(pending.tick(10 + FORGET_MS)) == []
    assert pending.next_deadline_ms() is None


def test_emitting_a_root_id_in_flight_again_is_refused():
    pending = SpoutPending()
    pending.emitted(1, "a", 0)
    with pytest.raises(AckError, match="root id of its own"):
        pending.emitted(1, "b", 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SpoutPending(max_pending=0),
        lambda: RetryPolicy(max_attempts=1.5),  # type: ignore[arg-type]
        lambda: RetryPolicy(max_attempts=True),
        lambda: RetryPolicy(first_ms=seconds(1)),  # type: ignore[arg-type]
        lambda: RetryPolicy(cap_ms=60_000.0),  # type: ignore[arg-type]
        lambda: RetryPolicy(max_attempts=0),
        lambda: RetryPolicy(first_ms=-1),
        lambda: RetryPolicy(first_ms=10, cap_ms=5),
        lambda: RetryPolicy(cap_ms=FORGET_MS),
    ],
)
def test_invalid_limits_are_refused(make: Any):
    with pytest.raises(ConfigError):
        make()


class World:
    """A spout, an acker and bolts, driven by a seed: channels reorder and lose messages, and bolts fail.

    A message whose number is divisible by 5 is poison: a bolt fails it every time.
    """

    def __init__(self, seed: int, options: dict[str, Any]) -> None:
        self.random = Random(seed)
        self.now = 0
        self.roots = 0
        self.source = list(range(20))
        rotation = options["rotation"]
        self.acker = Acker(options["timeout_ms"], rotation and rotation + 1)
        self.pending = SpoutPending(options["max_pending"], RetryPolicy(max_attempts=4, first_ms=10, cap_ms=30))
        self.to_acker: list[tuple[Any, ...]] = []
        self.to_bolts: list[Anchors] = []
        self.poison: set[int] = set()
        self.live: dict[int, set[Anchors]] = {}  # root -> tuples that are neither acked nor failed
        self.ended: Counter[int] = Counter()
        self.outcomes: list[Done | GivenUp] = []

    def edge(self) -> int:
        return self.random.getrandbits(64)

    def emit(self, message: int) -> None:
        self.roots += 1
        tuples = [Anchors({self.roots: self.edge()}) for _ in range(self.random.randint(1, 2))]
        self.live[self.roots] = set(tuples)
        if message % 5 == 0:
            self.poison.add(self.roots)
        self.pending.emitted(self.roots, message, self.now, payload=f"row {message}")
        xor = 0
        for tuple_ in tuples:
            xor ^= tuple_.edges[self.roots]
        self.to_acker.append(("init", self.roots, xor, 1))
        self.to_bolts += tuples

    def bolt(self) -> None:
        tuple_ = self.to_bolts.pop(self.random.randrange(len(self.to_bolts)))
        if self.random.random() < 0.05:
            return  # lost on the way: only the timeout finds it
        fails = self.poison & tuple_.edges.keys() or self.random.random() < 0.05
        others = [t for t in self.to_bolts if t.edges.keys() <= self.live.keys()]
        for _ in range(0 if fails else self.random.choice([0, 0, 1, 2])):
            child = anchored(
                [tuple_, *self.random.sample(others, min(len(others), self.random.randint(0, 1)))], self.edge
            )
            for root in child.edges:
                self.live[root].add(child)
            self.to_bolts.append(child)
        if fails:
            self.to_acker += [("fail", root, "count") for root in tuple_.fail()]
        else:
            for root in tuple_.edges:
                self.live[root].discard(tuple_)
            self.to_acker += [("ack", root, xor, "split") for root, xor in tuple_.ack()]

    def hand_over(self) -> None:
        kind, root, *rest = self.to_acker.pop(self.random.randrange(len(self.to_acker)))
        if self.random.random() < 0.03 and kind != "init":
            return  # a spout gets no effect for a tree whose init was lost
        if kind == "init":
            self.receive(self.acker.init(root, *rest, self.now))
        elif kind == "ack":
            self.receive(self.acker.ack(root, rest[0], self.now, rest[1]))
        else:
            self.receive(self.acker.fail(root, self.now, *rest))

    def receive(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Acked | Failed):
                self.ended[effect.root] += 1
                assert not isinstance(effect, Acked) or not self.live[effect.root], "acked before all edges were"
                self.receive(
                    self.pending.acked_all((effect.root,), self.now)
                    if isinstance(effect, Acked)
                    else self.pending.failed(effect.root, self.now, effect.reason, effect.seen)
                )
            elif isinstance(effect, Retry):
                self.emit(int(str(effect.message_id)))
            else:
                self.outcomes.append(effect)

    def wake(self) -> int | None:
        deadlines = [self.acker.next_deadline_ms(), self.pending.next_deadline_ms()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def step(self) -> bool:
        """Do one possible step; return whether there was any."""
        can: list[Any] = []
        if self.source and self.pending.room > 0:
            can.append(lambda: self.emit(self.source.pop()))
        can += [self.bolt] * (3 * bool(self.to_bolts)) + [self.hand_over] * (3 * bool(self.to_acker))
        if not can and self.wake() is None:
            return False
        if not can or self.random.random() < 0.1:
            wake = self.wake()
            self.now = max(self.now, wake) if not can and wake is not None else self.now + self.random.randint(0, 9)
            self.receive(self.pending.tick(self.now))
            self.receive(self.acker.tick(self.now))
        else:
            self.random.choice(can)()
        self.acker.check()
        self.pending.check()
        return True


@given(
    seed=st.integers(0, 2**32),
    rotation=st.sampled_from([None, 2]),
    timeout_ms=st.sampled_from([50, 500]),
    max_pending=st.sampled_from([None, 1, 5]),
)
def test_every_message_is_done_or_a_dead_letter_exactly_once_and_none_stays_pending(
    seed: int, rotation: int | None, timeout_ms: int, max_pending: int | None
):
    world = World(seed, {"rotation": rotation, "timeout_ms": timeout_ms, "max_pending": max_pending})
    for _ in range(100_000):
        if not world.step():
            break
    else:
        raise AssertionError("the world does not come to rest")
    assert len(world.acker) == 0
    assert all(count == 1 for count in world.ended.values())
    outcomes = Counter(outcome.message_id for outcome in world.outcomes)
    assert all(count == 1 for count in outcomes.values())
    letters = [outcome for outcome in world.outcomes if isinstance(outcome, GivenUp)]
    assert all(letter.attempts == 4 and letter.payload == f"row {letter.message_id}" for letter in letters)
    assert {letter.message_id for letter in letters} >= {message for message in outcomes if message % 5 == 0}
    assert len(world.pending) == 0
    assert sorted(outcomes) == list(range(20))


# -- batches -------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["emit", "ack", "fail", "tick"]), st.lists(st.integers(0, 6), max_size=5)),
        max_size=25,
    )
)
def test_a_batch_of_emits_and_acks_equals_the_same_messages_one_by_one(steps):
    fast, slow = (SpoutPending(3, POLICY) for _ in range(2))
    root, now_ms = 0, 0
    for step, ids in steps:
        now_ms += 40
        if step == "emit":
            batch = [(root + number, f"m{id}", id) for number, id in enumerate(ids)]
            root += len(batch)
            fast.emitted_all(batch, now_ms)
            for each, message_id, payload in batch:
                slow.emitted(each, message_id, now_ms, payload)
        elif step == "ack":
            roots = [max(root - id, 0) for id in ids]
            assert fast.acked_all(roots, now_ms) == [done for each in roots for done in slow.acked_all((each,), now_ms)]
        elif step == "fail":
            for id in ids:
                failed = [list(one.failed(root - id, now_ms, Reason.FAILED)) for one in (fast, slow)]
                assert failed[0] == failed[1]
        else:
            assert list(fast.tick(now_ms)) == list(slow.tick(now_ms))
        assert (len(fast), fast.stale) == (len(slow), slow.stale)
        assert (fast.room, fast.waiting, fast.next_deadline_ms()) == (slow.room, slow.waiting, slow.next_deadline_ms())
        assert [fast.payload(each) for each in range(root)] == [slow.payload(each) for each in range(root)]
        fast.check()


def test_a_root_id_in_flight_is_refused_in_a_batch_too():
    pending = SpoutPending()
    pending.emitted(1, "m", 0)
    with pytest.raises(AckError, match="root 1 is in flight already"):
        pending.emitted_all([(1, "n", None)], 0)
    with pytest.raises(AckError, match="root 2 is in flight already"):
        pending.emitted_all([(2, "n", None), (2, "o", None)], 0)
