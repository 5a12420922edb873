"""MasterBatchCoordinator compared with a slow model: answers in any order, lost, repeated and late, clock jumps and crashes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windowing.acking.pending import RetryPolicy
from windowing.trident.coordinator import (
    AskReady,
    CoordinatorConfig,
    CoordinatorRecord,
    CoordinatorStream,
    EmitOnStream,
    MasterBatchCoordinator,
    OnFailure,
    Readiness,
    SaveRecord,
    Stop,
)
from windowing.trident.kinds import TransactionAttempt

BATCH, COMMIT, SUCCESS = CoordinatorStream.BATCH, CoordinatorStream.COMMIT, CoordinatorStream.SUCCESS
Sent = tuple[CoordinatorStream, TransactionAttempt]


class CoordinatorAlone(RuleBasedStateMachine):
    """`sent` holds the messages of all lives. The model: `done`, the attempts of `flight`, and the answer that each waits for."""

    @initialize(
        max_pending=st.integers(1, 4),
        interval_ms=st.sampled_from([0, 0, 100]),
        limit=st.sampled_from([None, 1, 2]),
        on_failure=st.sampled_from(OnFailure),
    )
    def begin(self, max_pending: int, interval_ms: int, limit: int | None, on_failure: OnFailure) -> None:
        self.options: dict[str, Any] = {"interval_ms": interval_ms}
        self.choose(max_pending, limit, on_failure)
        self.now = 0
        self.sent: list[Sent] = []
        self.skips: set[TransactionAttempt] = set()
        self.processed_skips: set[int] = set()
        self.failures: Counter[int] = Counter()
        self.durable: Any = None
        self.start()

    def choose(self, max_pending: int, limit: int | None, on_failure: OnFailure) -> None:
        retry = RetryPolicy(limit, first_ms=10, cap_ms=50)
        self.options |= {"max_pending": max_pending, "retry": retry, "on_failure": on_failure}
        self.limit = limit

    def start(self) -> None:
        record = CoordinatorRecord.of(self.durable)
        self.done = record.current - 1
        self.flight: list[TransactionAttempt] = []
        self.waits: dict[TransactionAttempt, CoordinatorStream | None] = {}
        self.stop: Stop | None = None
        self.question: int | None = None
        self.last_batch_at: int | None = None
        self.machine = MasterBatchCoordinator(CoordinatorConfig(**self.options), record)
        self.latest = 0
        self.do(self.machine.tick(self.now))

    def do(self, effects: Any, crash_after: int | None = None) -> None:
        """Perform the effects; or only the first of them, and then the process dies."""
        self.latest = max(self.latest, self.now)
        for number, effect in enumerate(effects):
            if number == crash_after:
                self.start()
                return
            if isinstance(effect, SaveRecord):
                self.durable = effect.record.plain()
            elif isinstance(effect, EmitOnStream):
                {BATCH: self.on_batch, COMMIT: self.on_commit, SUCCESS: self.on_success}[effect.stream](effect)
                assert (effect.stream, effect.attempt) not in self.sent, "sent twice"
                self.sent.append((effect.stream, effect.attempt))
            elif isinstance(effect, AskReady):
                assert effect.txid == self.done + len(self.flight) + 1
                self.question = effect.txid
            else:
                self.stop = effect
        self.machine.check()

    # -- checks of each message sent -----------------------------------------------------------------------------------

    def on_batch(self, emit: EmitOnStream) -> None:
        attempt = emit.attempt
        assert attempt.txid == self.done + len(self.flight) + 1, (
            "a txid is left out, or is sent again while it is under way"
        )
        assert emit.after == (self.flight[-1] if self.flight else None)
        assert all(each < attempt for _, each in self.sent if each.txid == attempt.txid), "attempts only grow"
        commits = [each for stream, each in self.sent if stream is COMMIT and each.txid == attempt.txid]
        if emit.skip is not None:
            if attempt.txid not in self.processed_skips:  # the commit of such a one may have been begun
                assert self.options["on_failure"] is OnFailure.SKIP
                assert self.limit is not None
                assert self.failures[attempt.txid] >= self.limit
            assert set(commits) <= self.skips, "what may be committed in part is skipped"
            self.skips.add(attempt)
        else:
            assert not self.skips.intersection(commits), "what may be committed in part without its tuples gets them"
        if self.last_batch_at is not None:
            assert self.latest - self.last_batch_at >= self.options["interval_ms"]
        self.last_batch_at = self.latest
        self.flight.append(attempt)
        self.waits[attempt] = BATCH

    def on_commit(self, emit: EmitOnStream) -> None:
        assert emit.attempt == self.flight[0], "commits come in the order of txids"
        assert emit.attempt.txid == self.done + 1
        assert self.waits[emit.attempt] is None, "it is not processed"
        self.waits[emit.attempt] = COMMIT

    def on_success(self, emit: EmitOnStream) -> None:
        assert emit.attempt == self.flight.pop(0)
        assert self.waits.pop(emit.attempt) is None, "a success before everybody has committed"
        self.done += 1
        assert emit.attempt.txid == self.done

    # -- rules ---------------------------------------------------------------------------------------------------------

    def waited_for(self) -> list[Sent]:
        return [(stream, attempt) for attempt, stream in self.waits.items() if stream is not None]

    @rule(which=st.integers(0, 3), crash_after=st.sampled_from([None, None, None, None, 0, 1, 2]))
    @precondition(lambda self: self.waited_for() and self.stop is None)
    def all_answer_ack(self, which: int, crash_after: int | None) -> None:
        waiting = self.waited_for()
        stream, attempt = waiting[which % len(waiting)]
        self.waits[attempt] = None
        if attempt in self.skips:
            self.processed_skips.add(attempt.txid)
        self.do(self.machine.acked(stream, attempt, self.now), crash_after)

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: self.waited_for() and self.stop is None)
    def one_fails(self, which: int) -> None:
        waiting = self.waited_for()
        stream, attempt = waiting[which % len(waiting)]
        self.failures[attempt.txid] += attempt == self.flight[0]
        self.flight = [each for each in self.flight if each < attempt]
        self.waits = {each: self.waits[each] for each in self.flight}
        self.question = None
        self.do(self.machine.failed(stream, attempt, self.now, "x"))
        assert self.limit is not None or self.stop is None
        assert self.limit is None or self.failures[attempt.txid] < 2 * self.limit or self.stop is not None

    @rule(which=st.integers(0, 99), good=st.booleans())
    @precondition(lambda self: self.sent and self.stop is None)
    def an_unexpected_answer_arrives(self, which: int, good: bool) -> None:
        stream, attempt = self.sent[-1 - which % len(self.sent)]
        if self.waits.get(attempt) is stream:
            return
        stale, under_way = self.machine.stale, self.machine.under_way
        self.do((self.machine.acked if good else self.machine.failed)(stream, attempt, self.now))
        assert self.machine.stale == stale + 1
        assert self.machine.under_way[: len(under_way)] == under_way

    @rule(ready=st.sampled_from([Readiness.READY, Readiness.READY, Readiness.READY, Readiness.WAIT]))
    @precondition(lambda self: self.question is not None)
    def the_spouts_answer(self, ready: Readiness) -> None:
        txid, self.question = self.question, None
        assert txid is not None
        self.do(self.machine.answered(txid, [ready], self.now))

    @rule(ms=st.sampled_from([1, 10, 60, 100, 1_000, -500]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.do(self.machine.tick(self.now))

    @rule(active=st.sampled_from([True, True, False]))
    def the_coordinator_is_switched(self, active: bool) -> None:
        self.question = None
        self.do(self.machine.activate(self.now) if active else self.machine.deactivate(self.now))

    @rule(
        max_pending=st.integers(1, 4),
        rare=st.integers(0, 3),
        limit=st.sampled_from([None, 1, 2, 3]),
        on_failure=st.sampled_from(OnFailure),
    )
    def the_process_dies(self, max_pending: int, rare: int, limit: int | None, on_failure: OnFailure) -> None:
        if not rare:
            self.choose(max_pending, limit, on_failure)
            self.start()

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def pending_batches_equal_the_model_and_stay_below_max_pending(self) -> None:
        if not hasattr(self, "machine") or self.stop is not None:
            return
        assert [attempt for attempt, _ in self.machine.under_way] == self.flight
        assert len(self.flight) <= self.options["max_pending"]
        assert self.machine.record.current == self.done + 1
        assert len(self.machine.record.tries) <= 4

    def teardown(self) -> None:
        """Answer everything with ack: every batch that was begun succeeds."""
        if not hasattr(self, "machine") or self.stop is not None:
            return
        begun = max((attempt.txid for _, attempt in self.sent), default=0)
        self.the_coordinator_is_switched(True)
        for _ in range(100):
            if self.done >= begun:
                return
            self.now = max(self.now, self.latest, self.machine.next_deadline_ms() or 0)
            self.do(self.machine.tick(self.now))
            if self.question is not None:
                self.the_spouts_answer(Readiness.READY)
            while self.waited_for():
                self.all_answer_ack(0, None)
        raise AssertionError("it does not come to an end")


TestCoordinatorAlone = CoordinatorAlone.TestCase
TestCoordinatorAlone.settings = settings(stateful_step_count=40)
