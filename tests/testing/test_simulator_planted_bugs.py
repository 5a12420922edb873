"""The simulator detects bugs: each bug planted in the library breaks an invariant within 5,000 seeds: in the machines of the
library, and in the tasks of the local driver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from windowing.acking.acker import Acker
from windowing.errors import CorruptStateError, FailedException, StateConflictError
from windowing.execution.plan import Exchange
from windowing.local import trident_cluster, trident_tasks
from windowing.local.clock import SystemClock
from windowing.local.router import ACKS, Router
from windowing.local.trident_cluster import MasterTask
from windowing.local.trident_spouts import CoordinatorTask, EmitterTask
from windowing.local.trident_tasks import GroupTask, PieceWriter, TridentRouter
from windowing.stores.memory import MemoryMap
from windowing.testing.simulator import simulate
from windowing.testing.simulator.scenario import Scenario
from windowing.trident import executors, fence, maps, spouts
from windowing.trident.coordinator import (
    TRANSITIONS,
    BatchCause,
    CoordinatorRecord,
    CoordinatorStream,
    MasterBatchCoordinator,
    SaveRecord,
    Status,
    StoredRecord,
    Tries,
)
from windowing.trident.executors import Ack, BatchId, Fail, Finish, TridentBoltExecutor, TridentSpoutExecutor
from windowing.trident.fence import RULES, Claim, Fence, StateRow, Verdict
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.maps import CachedBatchReadsMap, CachedMap
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[Plant] = []
SEEDS = 5_000
OPAQUE, TRANSACTIONAL = StateType.OPAQUE, StateType.TRANSACTIONAL


def planted(plant: Plant) -> Plant:
    PLANTED.append(plant)
    return plant


def ack_refused_commits(patch: pytest.MonkeyPatch, executor: type[TridentSpoutExecutor | TridentBoltExecutor]) -> None:
    """Let an executor ack the commits that it refuses."""
    commit: Any = executor._commit

    def willing(self: Any, batch: Any, message: Any) -> Iterator[Any]:
        for effect in commit(self, batch, message):
            yield Ack(message) if isinstance(effect, Fail) else effect

    patch.setattr(executor, "_commit", willing)


# -- the coordinator ---------------------------------------------------------------------------------------------------


@planted
def any_processed_batch_commits(patch: pytest.MonkeyPatch) -> None:
    def commit_any(self: MasterBatchCoordinator) -> Iterator[Any]:
        for flight in [each for each in self._flights if each.status is Status.PROCESSED]:
            self._note(flight.attempt.txid, self.record.tries[flight.attempt.txid]._replace(committing=True))
            yield from self._move(flight, BatchCause.TURN)

    patch.setattr(MasterBatchCoordinator, "_commit_first", commit_any)
    patch.setattr(MasterBatchCoordinator, "check", lambda self: None)


@planted
def only_the_failed_batch_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def fail_one(
        self: MasterBatchCoordinator, stream: CoordinatorStream, attempt: TransactionAttempt, cause: str
    ) -> Iterator[Any]:
        flight = self._waiting_for(stream, attempt)
        if flight is None:
            return
        yield from self._move(flight, BatchCause.FAILED)
        tries = self.record.tries[attempt.txid]
        flight.attempt = attempt.next()
        self._note(attempt.txid, tries._replace(attempt=tries.attempt + 1))
        place = self._flights.index(flight)
        yield from self._move(flight, BatchCause.DUE, self._flights[place - 1].attempt if place else None)

    patch.setattr(MasterBatchCoordinator, "_fail", fail_one)


@planted
def an_answer_to_an_earlier_attempt_counts(patch: pytest.MonkeyPatch) -> None:
    def waiting_for(self: MasterBatchCoordinator, stream: CoordinatorStream, attempt: TransactionAttempt) -> Any:
        return next((each for each in self._flights if each.attempt.txid == attempt.txid), None)

    def moved(self: Any, flight: Any, cause: BatchCause, after: Any = None) -> Iterator[Any]:
        yield from move(self, flight, cause, after) if (flight.status, cause) in TRANSITIONS else ()

    move = MasterBatchCoordinator._move
    patch.setattr(MasterBatchCoordinator, "_waiting_for", waiting_for)
    patch.setattr(MasterBatchCoordinator, "_move", moved)


@planted
def the_next_txid_is_recorded_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    plain = CoordinatorRecord.plain

    def ahead(self: CoordinatorRecord) -> dict[str, Any]:
        first = self.tries.get(self.current)
        if first is not None and first.committing:
            rest = {txid: tries for txid, tries in self.tries.items() if txid > self.current}
            return plain(CoordinatorRecord(self.current + 1, rest))
        return plain(self)

    patch.setattr(CoordinatorRecord, "plain", ahead)


@planted
def attempts_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    load = StoredRecord.load

    def forgetful(self: StoredRecord) -> CoordinatorRecord:
        record = load(self)
        return replace(record, tries={txid: tries._replace(attempt=-1) for txid, tries in record.tries.items()})

    patch.setattr(StoredRecord, "load", forgetful)


@planted
def the_record_is_saved_after_the_messages_are_sent(patch: pytest.MonkeyPatch) -> None:
    enter = MasterBatchCoordinator._enter

    def saved_last(self: MasterBatchCoordinator, now_ms: int, happens: Any = ()) -> Iterator[Any]:
        effects = list(enter(self, now_ms, happens))
        return iter(sorted(effects, key=lambda effect: isinstance(effect, SaveRecord)))

    patch.setattr(MasterBatchCoordinator, "_enter", saved_last)


@planted
def a_damaged_record_is_read_as_none(patch: pytest.MonkeyPatch) -> None:
    read = TransactionalState.read

    def lenient(self: TransactionalState, name: str) -> Any:
        try:
            return read(self, name)
        except CorruptStateError:
            return None

    patch.setattr(TransactionalState, "read", lenient)


@planted
def two_coordinators_can_both_save(patch: pytest.MonkeyPatch) -> None:
    def unfenced(self: StoredRecord, record: CoordinatorRecord) -> None:
        self._state.read(self._NAME)
        self._state.write({self._NAME: record.plain()})

    patch.setattr(StoredRecord, "save", unfenced)


@planted
def a_batch_is_skipped_after_its_commit_was_begun(patch: pytest.MonkeyPatch) -> None:
    def skip_all(self: MasterBatchCoordinator, tries: Tries) -> bool:
        is_stop = self.config.on_failure.value == "stop"
        return not is_stop and tries.failures > 0 and self.config.retry.is_last(tries.failures)

    patch.setattr(MasterBatchCoordinator, "_is_to_skip", skip_all)


@planted
def a_failed_batch_is_never_retried(patch: pytest.MonkeyPatch) -> None:
    may_send = MasterBatchCoordinator._may_send
    patch.setattr(
        MasterBatchCoordinator,
        "_may_send",
        lambda self: (
            may_send(self)
            and not (self._next_txid in self.record.tries and self.record.tries[self._next_txid].failures)
        ),
    )


@planted
def timeouts_follow_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SystemClock, "now_ms", lambda self: self._wall_ns() // 1_000_000)


# -- the acker ---------------------------------------------------------------------------------------------------------


@planted
def a_tree_is_acked_before_its_xor_is_zero(patch: pytest.MonkeyPatch) -> None:
    def masked(real: Any) -> Any:
        return lambda self, pairs, *rest: real(self, [(root, xor & 3) for root, xor in pairs], *rest)

    patch.setattr(Acker, "init_all", masked(Acker.init_all))
    patch.setattr(Acker, "ack_all", masked(Acker.ack_all))


@planted
def a_fail_is_handled_as_an_ack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Router, "fail", lambda self, anchors, component, reason="": self.ack(anchors, component))


@planted
def the_acker_gets_every_message_twice(patch: pytest.MonkeyPatch) -> None:
    def twice(self: Router, anchors: Any, component: str) -> None:
        for root, xor in [] if anchors is None else anchors.ack():
            self.tell(root, (ACKS, [(root, xor), (root, xor)], component))

    patch.setattr(Router, "ack", twice)


# -- spouts ------------------------------------------------------------------------------------------------------------


@planted
def a_replay_of_a_transactional_spout_reads_other_rows(patch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, batch: Any, collector: Any) -> None:
        attempt = batch.attempt
        self.take(attempt.txid, batch.metadata)
        new = {}
        for partition in self.mine:
            stored = self.stored(partition, attempt.txid)
            last = self.previous(stored, partition, batch)
            new[stored] = self._emitter.emit_partition_batch_new(attempt, collector, partition, last)
        spouts.put_all(new, attempt.txid)

    patch.setattr(spouts._TransactionalEmitter, "emit_batch", changed)


@planted
def a_batch_may_overtake_its_predecessor_at_its_coordinator(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(executors.TridentSpoutCoordinator, "_check_order", lambda self, attempt, after: None)


@planted
def a_batch_may_overtake_its_predecessor_at_its_spout(patch: pytest.MonkeyPatch) -> None:
    previous = spouts._Reader.previous
    patch.setattr(
        spouts._Reader,
        "previous",
        lambda self, stored, partition, batch: previous(self, stored, partition, batch._replace(after=None)),
    )


@planted
def an_opaque_spout_commits_a_batch_that_it_has_not_emitted(patch: pytest.MonkeyPatch) -> None:
    ack_refused_commits(patch, TridentSpoutExecutor)


@planted
def two_lives_of_a_spout_can_both_write(patch: pytest.MonkeyPatch) -> None:
    write = TransactionalState.write

    def unfenced(
        self: TransactionalState,
        changes: Mapping[str, Any],
        unchanged: Any = (),
        gone: Iterable[str] = (),
        holding: Iterable[tuple[str, bytes]] = (),
    ) -> None:
        if "/emitter" not in self.root:
            write(self, changes, unchanged, gone, holding)
            return
        for name in changes:
            self.read(name)
        write(self, changes, gone=gone)

    patch.setattr(TransactionalState, "write", unfenced)


@planted
def a_spout_that_fails_reports_the_batch_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TridentSpoutExecutor, "failed", lambda self, attempt, cause: None)


@planted
def the_end_of_the_last_batch_is_removed_at_its_success(patch: pytest.MonkeyPatch) -> None:
    def all_of_it(self: RotatingTransactionalState, txid: int) -> None:
        gone = [each for each in self._values if each <= txid]
        self._state.write({}, gone=map(self._entry, gone))
        for each in gone:
            del self._values[each]

    patch.setattr(RotatingTransactionalState, "cleanup_before", all_of_it)


@planted
def the_end_of_a_partition_is_dropped_when_a_batch_that_did_not_list_it_is_done(patch: pytest.MonkeyPatch) -> None:
    def except_the_last(self: RotatingTransactionalState, txid: int) -> None:
        last = max(self._values, default=0)
        for each in self._below(txid):
            if each != last:
                del self._values[each]
                self._gone.append(self._entry(each))

    patch.setattr(RotatingTransactionalState, "cleanup_before", except_the_last)


@planted
def a_spout_of_tuples_acks_all_pending_messages(patch: pytest.MonkeyPatch) -> None:
    def success(self: Any, attempt: TransactionAttempt) -> None:
        for txid in sorted(txid for txid in self._pending if txid <= attempt.txid):
            self._settle(self._spout.ack, self._pending.pop(txid)[1])

    patch.setattr(spouts._RichEmitter, "success", success)


# -- bolts -------------------------------------------------------------------------------------------------------------


@planted
def a_new_attempt_continues_with_the_tuples_of_the_old_one(patch: pytest.MonkeyPatch) -> None:
    track = TridentBoltExecutor._track

    def reused(self: TridentBoltExecutor, batch: BatchId) -> Iterator[Any]:
        group, attempt = batch
        known = self._tracked.get((group, attempt.txid))
        if known is not None and known.stage is executors.BatchStage.RECEIVING:
            known.batch = batch
            return known
        return (yield from track(self, batch))

    patch.setattr(TridentBoltExecutor, "_track", reused)


@planted
def an_unknown_batch_is_acked_at_its_commit(patch: pytest.MonkeyPatch) -> None:
    ack_refused_commits(patch, TridentBoltExecutor)


@planted
def repeated_tuples_count_twice(patch: pytest.MonkeyPatch) -> None:
    def take(self: Any, number: int) -> bool:
        self.next += 1
        return True

    patch.setattr(executors.Incoming, "take", take)


@planted
def a_batch_is_complete_when_all_have_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(executors.Incoming, "complete", property(lambda self: self.sent is not None))


@planted
def a_state_commits_when_its_batch_is_complete(patch: pytest.MonkeyPatch) -> None:
    go_on = TridentBoltExecutor._go_on

    def eager(self: TridentBoltExecutor, tracked: executors.TrackedBatch) -> Iterator[Any]:
        is_new = not tracked.cause and tracked.stage is executors.BatchStage.RECEIVING
        if is_new and tracked.spec.commits and tracked.has_arrived():
            yield Finish(tracked.batch)
        yield from go_on(self, tracked)

    patch.setattr(TridentBoltExecutor, "_go_on", eager)


@planted
def a_bolt_that_fails_finishes_the_batch_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TridentBoltExecutor, "failed", lambda self, batch, cause: None)


# -- states ------------------------------------------------------------------------------------------------------------


@planted
def a_state_ignores_txids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence, "judge", lambda found, mine: Verdict.NEW)


@planted
def a_state_does_not_distinguish_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        fence, "judge", lambda found, mine: Verdict.NEW if not found or found.txid < mine.txid else Verdict.DONE
    )


@planted
def an_opaque_state_stores_no_previous_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(maps, "StateRow", lambda txid, value, *previous: StateRow(txid, value, *(value for _ in previous)))


@planted
def an_opaque_state_works_as_in_storm(patch: pytest.MonkeyPatch) -> None:
    """A row of this txid starts from its previous value, and nothing else is checked: no fence, no attempts, no other keys."""
    patch.setattr(fence, "judge", lambda found, mine: Verdict.NEW)
    patch.setattr(maps, "undone", lambda left: {})
    _unfenced(patch)


@planted
def only_repeated_keys_are_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(maps, "undone", lambda left: {})


@planted
def a_retry_adds_to_the_current_value(patch: pytest.MonkeyPatch) -> None:
    for kind in (OPAQUE, TRANSACTIONAL):
        patch.setitem(RULES, (Verdict.RETRY, kind), RULES[Verdict.NEW, kind])
    patch.setattr(maps, "base", lambda row, txid: None if row is None else row.value)


@planted
def an_empty_partition_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    commit = CachedBatchReadsMap.commit
    patch.setattr(CachedBatchReadsMap, "commit", lambda self: commit(self) if self.written else None)


@planted
def a_store_has_no_fence(patch: pytest.MonkeyPatch) -> None:
    _unfenced(patch)


@planted
def a_store_compares_rows_instead_of_the_fence(patch: pytest.MonkeyPatch) -> None:
    put, counted = MemoryMap.multi_put, CachedBatchReadsMap._counted

    def by_row(self: CachedBatchReadsMap, reading: Any, changes: Any) -> int | None:
        read = {key: self.stored(key) for key in self.written}
        stored = self._backing.multi_get(list(read)).rows
        if list(stored) != list(read.values()):
            raise StateConflictError("a row is not as it was read")
        return counted(self, reading, changes)

    def unfenced(self: MemoryMap, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        return put(self, rows, claim and Claim(self._partition.fence, claim.fence))

    patch.setattr(CachedBatchReadsMap, "_counted", by_row)  # the last step before the write
    patch.setattr(MemoryMap, "multi_put", unfenced)


@planted
def rows_are_written_before_their_fence(patch: pytest.MonkeyPatch) -> None:
    counted = CachedBatchReadsMap._counted

    def torn(self: CachedBatchReadsMap, reading: Any, changes: Any) -> int | None:
        self._backing.multi_put(changes, None)
        return counted(self, reading, changes)

    patch.setattr(CachedBatchReadsMap, "_counted", torn)  # the last step before the write


@planted
def a_cache_stores_rows_before_they_are_written(patch: pytest.MonkeyPatch) -> None:
    def eager(self: CachedMap, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        self._fence = self._fence if claim is None else claim.fence
        self._remember(rows)
        return self.beneath.multi_put(rows, claim)

    patch.setattr(CachedMap, "multi_put", eager)


# -- the local driver's own tasks --------------------------------------------------------------------------------------


@planted
def the_master_sends_before_it_saves(patch: pytest.MonkeyPatch) -> None:
    perform = MasterTask._perform
    patch.setattr(
        MasterTask,
        "_perform",
        lambda self, found: perform(self, iter(sorted(found, key=lambda effect: isinstance(effect, SaveRecord)))),
    )


@planted
def the_master_hands_out_sink_rows_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    handle, hand_out = MasterTask.handle, MasterTask._hand_out

    def early(self: MasterTask, message: Any) -> None:
        stream, attempt = self._roots.get(message.root, (None, None))
        if stream is CoordinatorStream.BATCH and (attempt, Status.PROCESSING) in self.machine.under_way:
            hand_out(self, attempt)
        handle(self, message)

    patch.setattr(MasterTask, "handle", early)
    patch.setattr(MasterTask, "_hand_out", lambda self, attempt: None)


@planted
def emitters_get_no_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trident_cluster, "ICommitterTridentSpout", type("Nobody", (), {}))


@planted
def a_coordinator_makes_new_metadata_for_a_replay(patch: pytest.MonkeyPatch) -> None:
    send = CoordinatorTask._send

    def anew(self: CoordinatorTask, batch: Any, skip: str | None, anchors: Any) -> None:
        if batch.attempt.attempt and batch.metadata:
            batch = batch._replace(metadata=[*batch.metadata[1:], batch.metadata[0]])
        send(self, batch, skip, anchors)

    patch.setattr(CoordinatorTask, "_send", anew)


@planted
def an_emitter_answers_a_superseded_attempt(patch: pytest.MonkeyPatch) -> None:
    perform = EmitterTask._perform
    patch.setattr(
        EmitterTask,
        "_perform",
        lambda self, effect: perform(self, Ack(effect.message) if isinstance(effect, Fail) else effect),
    )


@planted
def an_emitter_emits_a_batch_that_must_be_skipped(patch: pytest.MonkeyPatch) -> None:
    emit = EmitterTask._emit
    patch.setattr(EmitterTask, "_emit", lambda self, batch, skip: emit(self, batch, None))


@planted
def a_tuple_is_delivered_to_the_wrong_task(patch: pytest.MonkeyPatch) -> None:
    post = PieceWriter._post

    def astray(self: PieceWriter, exchange: Exchange, task: int, *rest: Any) -> None:
        post(self, exchange, (task + 1) % self._plan.stages[exchange.target].parallelism, *rest)

    patch.setattr(PieceWriter, "_post", astray)


@planted
def a_group_commits_without_a_commit_message(patch: pytest.MonkeyPatch) -> None:
    def eager(plan: Any, group: Any) -> Any:
        return {name: replace(spec, commits=False) for name, spec in specs(plan, group).items()}

    specs = trident_tasks.coord_specs
    patch.setattr(trident_tasks, "coord_specs", eager)
    patch.setattr(trident_cluster, "coord_specs", eager)


@planted
def a_group_acks_a_batch_that_its_operations_failed(patch: pytest.MonkeyPatch) -> None:
    commit = GroupTask._commit

    def lenient(self: GroupTask, batch: Any) -> None:
        with suppress(FailedException):
            commit(self, batch)

    patch.setattr(GroupTask, "_commit", lenient)


@planted
def a_sink_gets_the_rows_of_failed_attempts(patch: pytest.MonkeyPatch) -> None:
    hold, release = TridentRouter.hold, TridentRouter.release
    first = TransactionAttempt(1, 0)
    patch.setattr(
        TridentRouter, "hold", lambda self, attempt, *rest: hold(self, first._replace(txid=attempt.txid), *rest)
    )
    patch.setattr(TridentRouter, "release", lambda self, attempt: release(self, first._replace(txid=attempt.txid)))


@planted
def dead_letters_of_failed_attempts_count(patch: pytest.MonkeyPatch) -> None:
    def kept(self: TridentRouter, attempt: TransactionAttempt, dead: Any) -> None:
        for number in range(attempt.attempt, attempt.attempt + 3):
            hold_dead(self, attempt._replace(attempt=number), dead)

    hold_dead = TridentRouter.hold_dead
    patch.setattr(TridentRouter, "hold_dead", kept)


def _unfenced(patch: pytest.MonkeyPatch) -> None:
    put = MemoryMap.multi_put

    def unfenced(self: MemoryMap, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        return put(self, rows, claim and Claim(self._partition.fence, claim.fence))

    patch.setattr(MemoryMap, "multi_put", unfenced)


def seeds_until_found(limit: int = SEEDS) -> tuple[int, str] | None:
    """Return the number of seeds until a problem was found, and the problem."""
    for seed in itertools.islice(itertools.count(), limit):
        run = simulate(Scenario.of(seed))
        if run.problem is not None:
            return seed + 1, run.problem
    return None


@pytest.mark.crash
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_simulator_finds_a_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = seeds_until_found()
    assert found is not None, f"{plant.__name__} survived {SEEDS} seeds"
    assert "TypeError" not in found[1], f"{plant.__name__} does not fit the code that it replaces: {found[1]}"
