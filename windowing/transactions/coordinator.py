"""MasterBatchCoordinator: which batch is begun, committed, done or tried again, and when.

    $batch    1:0  2:0  3:0 .  .  .   .  2:1  3:1 .  .  .            max_pending 3
    answers     acked: 1, 3   2 fails               3, then 2
    $commit              1:0                            2:1   3:1    in order, one at a time
    $success                 1:0                           2:1   3:1

Laws
- `TRANSITIONS` (coordinator_rules.py) is all that can happen to a batch. What is under way is `current`, `current + 1`, ... without
  a gap, at most `max_pending` of them; only the first commits.
- Commits are sent in the order of txids, the next after the commit before was acked: each txid is done once, by one attempt.
- When a batch fails, so do all later ones: they may rest on it. Attempts of a txid only grow, also over restarts: the record is
  durable before what rests on it is sent.
- Answers to what is not waited for change nothing: those of earlier attempts (in Storm they end the attempt that is under way), and
  those of the other stream.
- A batch that failed `max_attempts` times while it was the first stops the topology, or is skipped: sent once more, with its tuples
  to the dead letters. One whose commit was begun is never skipped. A later batch is tried again as long as it is not the first: it
  may have failed because of an earlier one. What was sent before is sent again without asking for readiness.
- Time comes in and never falls: a smaller `now_ms` counts as the largest seen. `next_deadline_ms()` goes out.

Source: Storm's `MasterBatchCoordinator`; limits, back-off, skipping, the end of an input and a record of its own are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from windowing.core.guard import Guard
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_record import CoordinatorRecord, Tries
from windowing.transactions.coordinator_rules import (
    ANSWERS,
    TRANSITIONS,
    AskReady,
    Cause,
    CoordinatorConfig,
    Effect,
    Emit,
    OnFailure,
    Readiness,
    Save,
    Status,
    Stop,
    Stream,
    readiness_of,
)

__all__ = ["MasterBatchCoordinator"]


@dataclass(slots=True)
class _Flight:
    """A batch that is under way."""

    attempt: TransactionAttempt
    skips: bool
    status: Status = Status.WAITING


class MasterBatchCoordinator:
    """The coordinator of one topology's batches. An entry has changed the machine wholly when it returns; perform its effects in
    order before the next entry. `record` is what was saved last (None: never). `stale` counts answers that were not waited for.

    Cost: O(batches under way) an entry, and one Save at most.

    >>> coordinator = MasterBatchCoordinator(CoordinatorConfig(interval_ms=0))
    >>> list(coordinator.tick(now_ms=0))
    [AskReady(txid=1)]
    >>> save, batch = coordinator.answered(1, [Readiness.READY], 0)
    >>> batch.stream.value, str(batch.attempt)
    ('$batch', '1:0')
    >>> [effect.stream.value for effect in coordinator.acked(Stream.BATCH, batch.attempt, 5) if isinstance(effect, Emit)]
    ['$commit']
    >>> [effect.stream.value for effect in coordinator.acked(Stream.COMMIT, batch.attempt, 9) if isinstance(effect, Emit)]
    ['$success']
    """

    def __init__(self, config: CoordinatorConfig | None = None, record: CoordinatorRecord | None = None) -> None:
        self.config = config or CoordinatorConfig()
        self.record = record or CoordinatorRecord()
        self.active = True
        self.stopped: Stop | None = None
        self.stale = 0
        self._flights: list[_Flight] = []
        self._asked: int | None = None
        self._ended = False
        self._now_ms = 0
        self._due_ms = 0
        self._guard = Guard()

    # -- what it is at -------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> tuple[tuple[TransactionAttempt, Status], ...]:
        """The attempts that are sent and not done, in the order of txids."""
        return tuple((flight.attempt, flight.status) for flight in self._flights)

    @property
    def over(self) -> bool:
        """Whether every spout has ended and every batch is done."""
        return self._ended and not self.record.tries

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` may have something to do, None if only an answer can change anything."""
        return self._due_ms if self._may_send() else None

    # -- entries -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Take note of the time: begin what is due."""
        return self._enter(now_ms)

    def answered(self, txid: int, answers: Sequence[Readiness], now_ms: int) -> Iterator[Effect]:
        """Take the spouts' answers to `AskReady(txid)`; those to an earlier question change nothing."""
        return self._enter(now_ms, self._answer(txid, answers))

    def acked(self, stream: Stream, attempt: TransactionAttempt, now_ms: int) -> Iterator[Effect]:
        """Take note that everybody has done with what was sent."""
        return self._enter(now_ms, self._ack(stream, attempt))

    def failed(self, stream: Stream, attempt: TransactionAttempt, now_ms: int, cause: str = "") -> Iterator[Effect]:
        """Take note that somebody could not, or that it took too long: this attempt and all later ones are dropped."""
        return self._enter(now_ms, self._fail(stream, attempt, cause))

    def activate(self, now_ms: int) -> Iterator[Effect]:
        """Begin batches again."""
        return self._enter(now_ms, self._switch(True))

    def deactivate(self, now_ms: int) -> Iterator[Effect]:
        """Begin no more batches, also none that failed; those under way are committed."""
        return self._enter(now_ms, self._switch(False))

    def _enter(self, now_ms: int, happens: Iterable[Effect] = ()) -> Iterator[Effect]:
        self._guard.enter()
        if self.stopped is not None:
            return iter(())
        self._now_ms = max(self._now_ms, now_ms)
        before = self.record
        effects: list[Effect] = [*happens, *self._commit_first(), *self._begin_batches()]
        if self.record is not before:
            effects.insert(0, Save(self.record))
        return self._guard.run(iter(effects))

    # -- what happens --------------------------------------------------------------------------------------------------

    def _switch(self, active: bool) -> Iterator[Effect]:
        self.active, self._asked = active, None
        yield from ()

    def _answer(self, txid: int, answers: Sequence[Readiness]) -> Iterator[Effect]:
        if txid != self._asked:
            self.stale += 1
            return
        self._asked = None
        readiness = readiness_of(answers, self.config.ready_when)
        self._ended = readiness is Readiness.ENDED
        if readiness is Readiness.READY:
            yield from self._begin(Tries(0))
        elif readiness is Readiness.WAIT:
            self._due_ms = self._now_ms + self.config.poll_ms

    def _ack(self, stream: Stream, attempt: TransactionAttempt) -> Iterator[Effect]:
        flight = self._waiting_for(stream, attempt)
        if flight is None:
            return
        yield from self._move(flight, Cause.ACKED)
        if flight.status is Status.DONE:
            self._flights.pop(0)
            later = {txid: tries for txid, tries in self.record.tries.items() if txid > attempt.txid}
            self.record = CoordinatorRecord(attempt.txid + 1, later)

    def _fail(self, stream: Stream, attempt: TransactionAttempt, cause: str) -> Iterator[Effect]:
        flight = self._waiting_for(stream, attempt)
        if flight is None:
            return
        place = self._flights.index(flight)
        dropped, self._flights = self._flights[place:], self._flights[:place]
        self._asked = None
        for each in dropped:
            yield from self._move(each, Cause.FAILED if each is flight else Cause.EARLIER_FAILED)
        failures = self._count(attempt, cause) if place == 0 else 1
        if self.stopped is not None:
            yield self.stopped
        self._due_ms = max(self._due_ms, self._now_ms + self.config.retry.delay_ms(failures))

    def _waiting_for(self, stream: Stream, attempt: TransactionAttempt) -> _Flight | None:
        for flight in self._flights:
            if flight.attempt == attempt and ANSWERS.get(flight.status) is stream:
                return flight
        self.stale += 1
        return None

    def _move(self, flight: _Flight, cause: Cause, after: TransactionAttempt | None = None) -> Iterator[Effect]:
        row = TRANSITIONS[flight.status, cause]
        flight.status = row.then
        if row.sends is Stream.BATCH:
            why = self.record.tries[flight.attempt.txid].cause or "an unknown cause"
            yield Emit(row.sends, flight.attempt, after, why if flight.skips else None)
        elif row.sends is not None:
            yield Emit(row.sends, flight.attempt)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def _commit_first(self) -> Iterator[Effect]:
        first = self._flights[0] if self._flights else None
        if first is None or first.status is not Status.PROCESSED:
            return
        if not first.skips:
            self._note(first.attempt.txid, self.record.tries[first.attempt.txid]._replace(committing=True))
        yield from self._move(first, Cause.TURN)

    def _begin_batches(self) -> Iterator[Effect]:
        while self._may_send() and self._now_ms >= self._due_ms:
            txid = self._next_txid
            sent = self.record.tries.get(txid)
            if sent is None:
                self._asked = txid
                yield AskReady(txid)
            else:
                yield from self._begin(sent._replace(attempt=sent.attempt + 1))

    def _may_send(self) -> bool:
        if self.stopped is not None or not self.active or self._asked is not None:
            return False
        if len(self._flights) >= self.config.max_pending:
            return False
        return not self._ended or self._next_txid in self.record.tries

    @property
    def _next_txid(self) -> int:
        return self.record.current + len(self._flights)

    def _begin(self, tries: Tries) -> Iterator[Effect]:
        txid = self._next_txid
        self._note(txid, tries)
        after = self._flights[-1].attempt if self._flights else None
        flight = _Flight(TransactionAttempt(txid, tries.attempt), self._is_to_skip(tries))
        self._flights.append(flight)
        self._due_ms = max(self._due_ms, self._now_ms + self.config.interval_ms)
        yield from self._move(flight, Cause.DUE, after)

    # -- how often -----------------------------------------------------------------------------------------------------

    def _count(self, attempt: TransactionAttempt, cause: str) -> int:
        """Count a failure of the first batch, and stop if it was the last that may be; return how many there were."""
        tries = self._note(attempt.txid, self.record.tries[attempt.txid].failed(cause))
        if self._is_too_often(tries):
            self.stopped = Stop(attempt, tries.failures, tries.committing, tries.cause)
        return tries.failures

    def _note(self, txid: int, tries: Tries) -> Tries:
        self.record = replace(self.record, tries={**self.record.tries, txid: tries})
        return tries

    def _is_to_skip(self, tries: Tries) -> bool:
        if self.config.on_failure is OnFailure.STOP or tries.committing:
            return False
        return tries.failures > 0 and self.config.retry.is_last(tries.failures)

    def _is_too_often(self, tries: Tries) -> bool:
        """Whether no attempt follows; one that skips has as many attempts again."""
        limit = self.config.retry.max_attempts
        if limit is None or (self._is_to_skip(tries) and tries.failures < 2 * limit):
            return False
        return tries.failures >= limit

    def check(self) -> None:
        """Assert what "correct" means."""
        txids = [flight.attempt.txid for flight in self._flights]
        # Under way are the txids from `current` on, without a gap, and no more than may be.
        assert txids == list(range(self.record.current, self.record.current + len(txids)))
        assert len(txids) <= self.config.max_pending
        # Every attempt under way is the last that the record has of its txid.
        assert all(flight.attempt.attempt == self.record.tries[flight.attempt.txid].attempt for flight in self._flights)
        # The record has the tries of no other txids than those sent, again without a gap.
        assert sorted(self.record.tries) == list(
            range(self.record.current, self.record.current + len(self.record.tries))
        )
        assert len(self.record.tries) >= len(txids)
        # Only the first commits; none is waiting or done.
        assert all(flight.status in (Status.PROCESSING, Status.PROCESSED) for flight in self._flights[1:])
        assert all(flight.status not in (Status.WAITING, Status.DONE) for flight in self._flights[:1])
        # What is processed and first has been sent its commit.
        assert not self._flights or self._flights[0].status is not Status.PROCESSED or self.stopped is not None
        # A question is open for the next txid only, and only if there is room.
        assert self._asked is None or (self._asked == self._next_txid and len(txids) < self.config.max_pending)
