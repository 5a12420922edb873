"""MasterBatchCoordinator: decides when each batch is begun, committed, done or tried again; its record and its transitions.

    $batch    1:0  2:0  3:0 .  .  .   .  2:1  3:1 .  .  .            max_pending 3
    reports     acked: 1, 3   2 fails               3, then 2
    $commit              1:0                            2:1   3:1    in order, one at a time
    $success                 1:0                           2:1   3:1

    waiting --due / $batch--> processing --acked--> processed --is first / $commit--> committing --acked / $success--> done
       ^                          |                     |                                 |
       +------- failed, or an earlier one failed -------+------------- failed ------------+

    current 7                       txids below 7 are committed                                                 CoordinatorRecord
    tries   7: 2, 3, committing     the last attempt at batch 7 was 7:2; it failed 3 times as the first; a commit of it was begun
            8: 1, 0                 the last attempt at batch 8 was 8:1; later txids were never sent
            (skipping               a commit of the batch without its tuples was begun)

Laws
- `TRANSITIONS` lists everything that can happen to a batch; `ANSWERS` is the stream whose ack a status waits for. The batches under
  way are `current`, `current + 1`, ... without a gap, at most `max_pending` of them; only the first one commits.
- Commits are sent in the order of txids, each after the previous commit was acked. So each txid is done once, by one attempt.
- When a batch fails, all later ones are dropped, because they may build on it. An attempt is durable in the record before it is
  sent. So the attempts of a txid only grow, and after a restart every attempt is greater than any that may still be under way
  (Storm forgets the attempts from `max pending - 1` on). An unreadable record is an error, never "start again at 1".
- An ack or fail that is not waited for is stale and changes nothing: those of earlier attempts (in Storm they end the current
  attempt), and those of the other stream.
- A batch that failed `max_attempts` times while it was the first stops the topology, or is skipped: it is sent once more with its
  tuples to the dead letters. A batch whose commit was begun is never skipped, and a skip whose commit was begun stays one, whatever
  the settings of a later run: some tasks may have committed it. A later batch is retried without limit, because it
  may have failed due to an earlier one. A batch that was sent before is sent again without asking the spouts for readiness.
- Time is an argument and never goes back: a smaller `now_ms` counts as the largest so far. `next_deadline_ms()` returns the next
  time at which `tick` is needed.

Source: Storm's `MasterBatchCoordinator`; limits, back-off, skipping, the end of an input and the single record are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from windowing.acking.pending import RetryPolicy
from windowing.errors import ConfigError, CorruptStateError, StateConflictError, SupersededError, printable, quote
from windowing.schema.checks import is_whole
from windowing.trident.kinds import FIRST_TXID, TransactionAttempt
from windowing.trident.transactional_state import TransactionalState
from windowing.windows.guard import Guard

_FORMAT = 1
_CAUSE_CHARACTERS = 500


class Tries(NamedTuple):
    """The attempts at one batch so far.

    attempt: the last one that was sent. failures: the number of failures while the batch was the first, so not because of an
    earlier txid. committing: whether a commit of any attempt was begun, so that a state may hold part of it. cause: of the last
    failure. skipping: whether a commit of the skipped batch was begun, so that a state may have committed it without its tuples.
    """

    attempt: int
    failures: int = 0
    committing: bool = False
    cause: str = ""
    skipping: bool = False

    def failed(self, cause: str) -> Tries:
        return self._replace(failures=self.failures + 1, cause=printable(cause, _CAUSE_CHARACTERS))


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """The first uncommitted txid, and the tries of all txids from it on that were ever sent."""

    current: int = FIRST_TXID
    tries: Mapping[int, Tries] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        # Earlier versions read rows without the last part, and refuse one that has it.
        tries = [[txid, *(each if each.skipping else each[:-1])] for txid, each in sorted(self.tries.items())]
        return {"format": _FORMAT, "current": self.current, "tries": tries}

    @classmethod
    def of(cls, data: Any) -> CoordinatorRecord:
        """Return the record of plain data; None gives the initial record. Raises CorruptStateError for damaged data.

        >>> record = CoordinatorRecord(7, {7: Tries(2, 3, True, "timeout")})
        >>> CoordinatorRecord.of(record.plain()) == record
        True
        """
        if data is None:
            return cls()
        if not isinstance(data, Mapping) or "format" not in data:
            raise CorruptStateError(
                f"the coordinator's record is {quote(data)}, wanted a format, a txid and tries; {_WAY}"
            )
        if data["format"] != _FORMAT:
            raise CorruptStateError(
                f"the coordinator's record has format {quote(data['format'])}, this library reads {_FORMAT}; use the "
                "version that wrote it"
            )
        current, rows = data.get("current"), data.get("tries")
        if not is_whole(current, FIRST_TXID) or not isinstance(rows, list) or not all(map(_is_row, rows)):
            raise CorruptStateError(
                f"the coordinator's record has current {quote(current)} and tries {quote(rows)}, wanted a txid from 1 and "
                f"rows of txid, attempt, failures, committing, cause; {_WAY}"
            )
        txids = [row[0] for row in rows]
        if txids != list(range(current, current + len(rows))):
            raise CorruptStateError(
                f"the coordinator's record has current {current} and tries of {quote(txids)}, wanted those of "
                f"{current}, {current + 1}, ... without a gap; {_WAY}"
            )
        return cls(current, {row[0]: Tries(*row[1:]) for row in rows})


class StoredRecord:
    """The stored record of a coordinator. Of two coordinators on one store only one can save.

    >>> from windowing.trident.transactional_state import MemoryRecordStore
    >>> store = MemoryRecordStore()
    >>> one, other = (StoredRecord(TransactionalState(store, "counts")) for _ in range(2))
    >>> one.load() == other.load() == CoordinatorRecord()
    True
    >>> one.save(CoordinatorRecord(2)); other.save(CoordinatorRecord(3))
    Traceback (most recent call last):
    windowing.errors.SupersededError: [SUPERSEDED] the record counts/coordinator was saved by another coordinator...
    """

    _NAME = "coordinator"

    def __init__(self, state: TransactionalState) -> None:
        self._state = state

    def load(self) -> CoordinatorRecord:
        return CoordinatorRecord.of(self._state.read(self._NAME))

    def save(self, record: CoordinatorRecord) -> None:
        """Make the record durable. Raises SupersededError if another coordinator has saved since this one loaded the record."""
        try:
            self._state.write({self._NAME: record.plain()})
        except StateConflictError as problem:
            raise SupersededError(
                f"the record {self._state.root}/{self._NAME} was saved by another coordinator, which goes on; run a topology once "
                "at a time on one store"
            ) from problem


_WAY = "restore it from a copy together with the states; nothing was reset"


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) not in (5, 6):
        return False
    if len(row) == 6 and (row[3] is not False or row[5] is not True):
        return False
    return all(is_whole(number, 0) for number in row[:3]) and type(row[3]) is bool and type(row[4]) is str


# -- rules of MasterBatchCoordinator ---------------------------------------------------------------------------------------------


class CoordinatorStream(Enum):
    """The streams of the coordinator. The tuple trees of the first two are acked or failed; `$success` is only sent."""

    BATCH = "$batch"
    COMMIT = "$commit"
    SUCCESS = "$success"


class Status(Enum):
    """The status of a batch."""

    WAITING = "waiting"
    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"
    DONE = "done"


class BatchCause(Enum):
    """An event of a batch; ACKED and FAILED are of the stream that its status waits for."""

    DUE = "due"
    ACKED = "acked"
    TURN = "its turn"
    FAILED = "failed"
    EARLIER_FAILED = "an earlier one failed"


class BatchTransition(NamedTuple):
    """The result of an event: the next status, and the stream on which the batch is sent."""

    then: Status
    sends: CoordinatorStream | None = None


_WAITING, _PROCESSING, _PROCESSED = Status.WAITING, Status.PROCESSING, Status.PROCESSED
_COMMITTING, _DONE = Status.COMMITTING, Status.DONE

TRANSITIONS: dict[tuple[Status, BatchCause], BatchTransition] = {
    (_WAITING, BatchCause.DUE): BatchTransition(_PROCESSING, CoordinatorStream.BATCH),
    (_PROCESSING, BatchCause.ACKED): BatchTransition(_PROCESSED),
    (_PROCESSING, BatchCause.FAILED): BatchTransition(_WAITING),
    (_PROCESSING, BatchCause.EARLIER_FAILED): BatchTransition(_WAITING),
    (_PROCESSED, BatchCause.TURN): BatchTransition(_COMMITTING, CoordinatorStream.COMMIT),
    (_PROCESSED, BatchCause.EARLIER_FAILED): BatchTransition(_WAITING),
    (_COMMITTING, BatchCause.ACKED): BatchTransition(_DONE, CoordinatorStream.SUCCESS),
    (_COMMITTING, BatchCause.FAILED): BatchTransition(_WAITING),
}

ANSWERS = {_PROCESSING: CoordinatorStream.BATCH, _COMMITTING: CoordinatorStream.COMMIT}
"""The stream whose ack or fail a status waits for. In Storm a second ack of a `$batch` completes its commit."""


class Readiness(Enum):
    """The answer of a spout's coordinator to whether there is a new batch."""

    READY = "ready"
    WAIT = "wait"
    ENDED = "ended"
    """There will never be another batch."""


def readiness_of(answers: Iterable[Readiness]) -> Readiness:
    """Return the combined readiness of several spouts: as in Storm, a batch needs one that is ready. Spouts that have ended are
    left out.

    >>> readiness_of([Readiness.READY, Readiness.WAIT]).name
    'READY'
    """
    found = set(answers)
    return next((each for each in (Readiness.READY, Readiness.WAIT) if each in found), Readiness.ENDED)


class OnFailure(Enum):
    """What to do with a batch whose last attempt has failed."""

    STOP = "stop"
    SKIP = "skip"
    """Send the batch once more, with its tuples to the dead letters instead of into the topology."""


def checked_on_failure(given: Any) -> OnFailure:
    """Return an OnFailure. Raises ConfigError for anything else, its text among them."""
    if not isinstance(given, OnFailure):
        meant = "SKIP" if str(given).upper() == "SKIP" else "STOP"
        raise ConfigError(
            f"on_failure is OnFailure.STOP or OnFailure.SKIP, got {quote(given)}; write OnFailure.{meant}"
        )
    return given


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """The settings of a coordinator; frozen. Times are in milliseconds of the driver's clock.

    They take the place of the settings of a topology. max_pending: the largest number of batches under way. interval_ms: the least
    time from one `$batch` to the next. poll_ms: the time after which a spout that was not ready is asked again. retry: the number
    of attempts and their back-off. on_failure: OnFailure.STOP ends the topology after the last attempt, OnFailure.SKIP goes on
    without the batch. Raises ConfigError.
    """

    max_pending: int = 1
    interval_ms: int = 0
    poll_ms: int = 50
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    on_failure: OnFailure = OnFailure.STOP

    def __post_init__(self) -> None:
        for name, least, way in (
            ("max_pending", 1, "topology.max.spout.pending counts the batches under way"),
            ("interval_ms", 0, "topology.trident.batch.emit.interval.millis is 0 for no throttle"),
            ("poll_ms", 1, "a spout that has nothing to give must not be asked without a pause"),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} is a whole number from {least}, got {quote(value)}; {way}")
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigError(
                f"retry is a RetryPolicy, got {quote(self.retry)}; write RetryPolicy(5), or RetryPolicy(None) for no limit"
            )
        checked_on_failure(self.on_failure)


class SaveRecord(NamedTuple):
    """Make the record durable before the next effect is performed."""

    record: CoordinatorRecord


class AskReady(NamedTuple):
    """Ask the coordinators of all spouts whether there is a batch `txid`, and call `answered` with their answers."""

    txid: int


class EmitOnStream(NamedTuple):
    """Send an attempt on a stream; the ack or fail of its tree is reported with the same stream and attempt.

    after: the attempt under way that a `$batch` builds on, None if all earlier txids are committed. skip: the reason why the tuples
    of the batch go to the dead letters, None if they go into the topology.
    """

    stream: CoordinatorStream
    attempt: TransactionAttempt
    after: TransactionAttempt | None = None
    skip: str | None = None


class Stop(NamedTuple):
    """The last attempt of a batch has failed: end the topology with an error. A new start tries the batch once more.

    committing: whether a commit of the batch was begun; then it cannot be skipped, because a state may hold part of it.
    """

    attempt: TransactionAttempt
    failures: int
    committing: bool
    cause: str

    def __str__(self) -> str:
        where = (
            "a commit of it was begun, so that it cannot be skipped"
            if self.committing
            else "nothing of it is committed"
        )
        return (
            f"batch {self.attempt} failed {self.failures} times, at last because of {self.cause or 'an unknown cause'}; {where}; "
            "repair the cause and start again, or allow more attempts"
        )


CoordinatorEffect = SaveRecord | AskReady | EmitOnStream | Stop


# -- MasterBatchCoordinator ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Flight:
    """A batch that is under way."""

    attempt: TransactionAttempt
    skips: bool
    status: Status = Status.WAITING


class MasterBatchCoordinator:
    """The coordinator of the batches of one topology.

    An entry has changed the machine completely when it returns; perform its effects in order before the next entry. `record`: the
    last saved record, None if there is none. `stale`: the number of acks and fails that were not waited for.

    Cost of an entry: O(batches under way), and at most one SaveRecord.

    >>> coordinator = MasterBatchCoordinator(CoordinatorConfig(interval_ms=0))
    >>> list(coordinator.tick(now_ms=0))
    [AskReady(txid=1)]
    >>> save, batch = coordinator.answered(1, [Readiness.READY], 0)
    >>> batch.stream.value, str(batch.attempt)
    ('$batch', '1:0')
    >>> for acked in (CoordinatorStream.BATCH, CoordinatorStream.COMMIT):
    ...     effects = coordinator.acked(acked, batch.attempt, now_ms=5)
    ...     print([effect.stream.value for effect in effects if isinstance(effect, EmitOnStream)])
    ['$commit']
    ['$success']
    """

    def __init__(self, config: CoordinatorConfig | None = None, record: CoordinatorRecord | None = None) -> None:
        self.config = config or CoordinatorConfig()
        self.record = record or CoordinatorRecord()
        self.active = True
        self.held = False
        """Whether no batch begins for the time being, and none is tried again; those under way go on."""
        self.stopped: Stop | None = None
        self.stale = 0
        self._flights: list[_Flight] = []
        self._asked: int | None = None
        self._ended = False
        self._now_ms = 0
        self._due_ms = 0
        self._guard = Guard()

    # -- the present state ---------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> tuple[tuple[TransactionAttempt, Status], ...]:
        """The attempts that were sent and are not done, in the order of txids."""
        return tuple((flight.attempt, flight.status) for flight in self._flights)

    @property
    def over(self) -> bool:
        """Whether every spout has ended and every batch is done."""
        return self._ended and not self.record.tries

    def half_committed(self) -> int | None:
        """Return the last committed txid if a commit of the next one was begun, so that states may hold a part of it; else None."""
        tries = self.record.tries.get(self.record.current)
        return self.record.current - 1 if tries is not None and (tries.committing or tries.skipping) else None

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick` may have something to do, None if only another event can change anything."""
        return self._due_ms if self._may_send() else None

    # -- entries -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Iterator[CoordinatorEffect]:
        """Set the time and begin the batches that are due."""
        return self._enter(now_ms)

    def answered(self, txid: int, answers: Sequence[Readiness], now_ms: int) -> Iterator[CoordinatorEffect]:
        """Handle the spouts' answers to `AskReady(txid)`; answers to an earlier question change nothing."""
        return self._enter(now_ms, self._answer(txid, answers))

    def acked(self, stream: CoordinatorStream, attempt: TransactionAttempt, now_ms: int) -> Iterator[CoordinatorEffect]:
        """Handle the ack of the tree of an attempt on a stream."""
        return self._enter(now_ms, self._ack(stream, attempt))

    def failed(
        self, stream: CoordinatorStream, attempt: TransactionAttempt, now_ms: int, cause: str = ""
    ) -> Iterator[CoordinatorEffect]:
        """Handle the failure or timeout of an attempt: it and all later ones are dropped."""
        return self._enter(now_ms, self._fail(stream, attempt, cause))

    def activate(self, now_ms: int) -> Iterator[CoordinatorEffect]:
        """Begin new batches again; spouts that have ended are asked again."""
        return self._enter(now_ms, self._switch(True))

    def deactivate(self, now_ms: int) -> Iterator[CoordinatorEffect]:
        """Begin no more batches, and retry no failed ones; batches under way are committed."""
        return self._enter(now_ms, self._switch(False))

    def _enter(self, now_ms: int, happens: Iterable[CoordinatorEffect] = ()) -> Iterator[CoordinatorEffect]:
        self._guard.enter()
        if self.stopped is not None:
            return iter(())
        self._now_ms = max(self._now_ms, now_ms)
        before = self.record
        effects: list[CoordinatorEffect] = [*happens, *self._commit_first(), *self._begin_batches()]
        if self.record is not before:
            effects.insert(0, SaveRecord(self.record))
        return self._guard.run(iter(effects))

    # -- transitions ---------------------------------------------------------------------------------------------------

    def _switch(self, active: bool) -> Iterator[CoordinatorEffect]:
        self.active, self._asked, self._ended = active, None, self._ended and not active
        yield from ()

    def _answer(self, txid: int, answers: Sequence[Readiness]) -> Iterator[CoordinatorEffect]:
        if txid != self._asked:
            self.stale += 1
            return
        self._asked = None
        readiness = readiness_of(answers)
        self._ended = readiness is Readiness.ENDED
        if readiness is Readiness.READY:
            yield from self._begin(Tries(0))
        elif readiness is Readiness.WAIT:
            self._due_ms = self._now_ms + self.config.poll_ms

    def _ack(self, stream: CoordinatorStream, attempt: TransactionAttempt) -> Iterator[CoordinatorEffect]:
        flight = self._waiting_for(stream, attempt)
        if flight is None:
            return
        yield from self._move(flight, BatchCause.ACKED)
        if flight.status is Status.DONE:
            self._flights.pop(0)
            later = {txid: tries for txid, tries in self.record.tries.items() if txid > attempt.txid}
            self.record = CoordinatorRecord(attempt.txid + 1, later)

    def _fail(self, stream: CoordinatorStream, attempt: TransactionAttempt, cause: str) -> Iterator[CoordinatorEffect]:
        flight = self._waiting_for(stream, attempt)
        if flight is None:
            return
        place = self._flights.index(flight)
        dropped, self._flights = self._flights[place:], self._flights[:place]
        self._asked = None
        for each in dropped:
            yield from self._move(each, BatchCause.FAILED if each is flight else BatchCause.EARLIER_FAILED)
        failures = self._count(attempt, cause) if place == 0 else 1
        if self.stopped is not None:
            yield self.stopped
        self._due_ms = max(self._due_ms, self._now_ms + self.config.retry.delay_ms(failures))

    def _waiting_for(self, stream: CoordinatorStream, attempt: TransactionAttempt) -> _Flight | None:
        for flight in self._flights:
            if flight.attempt == attempt and ANSWERS.get(flight.status) is stream:
                return flight
        self.stale += 1
        return None

    def _move(
        self, flight: _Flight, cause: BatchCause, after: TransactionAttempt | None = None
    ) -> Iterator[CoordinatorEffect]:
        row = TRANSITIONS[flight.status, cause]
        flight.status = row.then
        if row.sends is CoordinatorStream.BATCH:
            why = self.record.tries[flight.attempt.txid].cause or "an unknown cause"
            yield EmitOnStream(row.sends, flight.attempt, after, why if flight.skips else None)
        elif row.sends is not None:
            yield EmitOnStream(row.sends, flight.attempt)

    # -- due batches ---------------------------------------------------------------------------------------------------

    def _commit_first(self) -> Iterator[CoordinatorEffect]:
        first = self._flights[0] if self._flights else None
        if first is None or first.status is not Status.PROCESSED:
            return
        tries = self.record.tries[first.attempt.txid]
        begun = tries._replace(skipping=True) if first.skips else tries._replace(committing=True)
        self._note(first.attempt.txid, begun)
        yield from self._move(first, BatchCause.TURN)

    def _begin_batches(self) -> Iterator[CoordinatorEffect]:
        while self._may_send() and self._now_ms >= self._due_ms:
            txid = self._next_txid
            sent = self.record.tries.get(txid)
            if sent is None:
                self._asked = txid
                yield AskReady(txid)
            else:
                yield from self._begin(sent._replace(attempt=sent.attempt + 1))

    def _may_send(self) -> bool:
        if self.stopped is not None or self.held or not self.active or self._asked is not None:
            return False
        if len(self._flights) >= self.config.max_pending:
            return False
        return not self._ended or self._next_txid in self.record.tries

    @property
    def _next_txid(self) -> int:
        return self.record.current + len(self._flights)

    def _begin(self, tries: Tries) -> Iterator[CoordinatorEffect]:
        txid = self._next_txid
        self._note(txid, tries)
        after = self._flights[-1].attempt if self._flights else None
        flight = _Flight(TransactionAttempt(txid, tries.attempt), self._is_to_skip(tries))
        self._flights.append(flight)
        self._due_ms = max(self._due_ms, self._now_ms + self.config.interval_ms)
        yield from self._move(flight, BatchCause.DUE, after)

    # -- limits --------------------------------------------------------------------------------------------------------

    def _count(self, attempt: TransactionAttempt, cause: str) -> int:
        """Count a failure of the first batch, and stop if it was the last attempt; return the number of failures."""
        tries = self._note(attempt.txid, self.record.tries[attempt.txid].failed(cause))
        limit = self.config.retry.max_attempts
        # With skipping, the skip itself has as many attempts again.
        if limit is not None and tries.failures >= (2 * limit if self._is_to_skip(tries) else limit):
            self.stopped = Stop(attempt, tries.failures, tries.committing, tries.cause)
        return tries.failures

    def _note(self, txid: int, tries: Tries) -> Tries:
        self.record = replace(self.record, tries={**self.record.tries, txid: tries})
        return tries

    def _is_to_skip(self, tries: Tries) -> bool:
        if tries.skipping:
            return True
        if self.config.on_failure is OnFailure.STOP or tries.committing:
            return False
        return tries.failures > 0 and self.config.retry.is_last(tries.failures)

    def check(self) -> None:
        """Assert the invariants."""
        txids = [flight.attempt.txid for flight in self._flights]
        # The txids under way begin with `current`, have no gap, and are at most `max_pending`.
        assert txids == list(range(self.record.current, self.record.current + len(txids)))
        assert len(txids) <= self.config.max_pending
        # A batch is committed with its tuples or without them, never in part with each.
        assert not any(tries.committing and tries.skipping for tries in self.record.tries.values())
        # Every attempt under way is the last one of its txid in the record.
        assert all(flight.attempt.attempt == self.record.tries[flight.attempt.txid].attempt for flight in self._flights)
        # The record has the tries of exactly the txids that were sent, without a gap.
        assert sorted(self.record.tries) == list(
            range(self.record.current, self.record.current + len(self.record.tries))
        )
        assert len(self.record.tries) >= len(txids)
        # Only the first batch commits; no batch under way is waiting or done.
        assert all(flight.status in (Status.PROCESSING, Status.PROCESSED) for flight in self._flights[1:])
        assert all(flight.status not in (Status.WAITING, Status.DONE) for flight in self._flights[:1])
        # A first batch that is processed has been sent its commit.
        assert not self._flights or self._flights[0].status is not Status.PROCESSED or self.stopped is not None
        # A readiness question is open only for the next txid, and only if there is room for it.
        assert self._asked is None or (self._asked == self._next_txid and len(txids) < self.config.max_pending)
