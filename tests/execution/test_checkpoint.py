"""CheckpointSpout: prepare, commit, roll back, recover, in this order and no other."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windowing.errors import ConfigError, CorruptStateError
from windowing.execution.checkpoints import (
    ACTIONS,
    TRANSITIONS,
    Checkpoint,
    CheckpointAction,
    CheckpointCause,
    CheckpointEffect,
    CheckpointPhase,
    CheckpointSpout,
    CheckPointState,
    EmitCheckpoint,
    SaveCheckpoint,
    TxState,
    mermaid,
)

INTERVAL_MS = 1000


class Driven:
    """A machine whose effects are written down; time passes an interval before each tick, so that what waits is sent."""

    def __init__(self, record: CheckPointState | None = None) -> None:
        self.spout = CheckpointSpout(INTERVAL_MS, record)
        self.now = 0
        self.sent: list[tuple[int, str]] = []
        self.saved: list[tuple[int, str]] = []
        self.do(self.spout.start(0))

    def do(self, effects: tuple[CheckpointEffect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, SaveCheckpoint):
                self.saved.append((effect.record.txid, effect.record.state.value))
            else:
                self.sent.append((effect.checkpoint.txid, effect.checkpoint.action.name))
        self.spout.check()

    def ack(self) -> None:
        assert self.spout.waits_for is not None
        self.do(self.spout.ack(self.spout.waits_for, self.now))

    def fail(self) -> None:
        assert self.spout.waits_for is not None
        self.do(self.spout.fail(self.spout.waits_for, self.now))

    def tick(self) -> None:
        self.now += INTERVAL_MS
        self.do(self.spout.tick(self.now))


def preparing(txid: int) -> CheckPointState:
    return CheckPointState(txid, TxState.PREPARING)


# -- the equivalents of Storm's CheckpointSpoutTest -----------------------------------------------------------------------


def test_the_first_start_tells_the_bolts_to_take_their_states():  # testInitState
    assert Driven().sent == [(-1, "INITSTATE")]


def test_when_they_have_them_the_first_checkpoint_is_prepared():  # testPrepare
    run = Driven()
    run.ack()
    run.tick()
    assert run.sent == [(-1, "INITSTATE"), (0, "PREPARE")]


def test_a_prepare_that_fails_is_rolled_back_and_prepared_again():  # testPrepareWithFail
    run = Driven()
    run.ack()
    run.tick()
    run.ack()
    run.ack()
    run.tick()
    run.fail()
    run.fail()
    run.tick()
    run.ack()
    run.ack()
    run.tick()
    assert run.sent == [
        (-1, "INITSTATE"),
        (0, "PREPARE"),
        (0, "COMMIT"),
        (1, "PREPARE"),
        (1, "ROLLBACK"),
        (1, "ROLLBACK"),
        (0, "INITSTATE"),
        (1, "PREPARE"),
    ]


def test_a_commit_that_fails_is_sent_again():  # testCommit
    run = Driven()
    run.ack()
    run.tick()
    run.ack()
    run.fail()
    assert run.sent == [(-1, "INITSTATE"), (0, "PREPARE"), (0, "COMMIT"), (0, "COMMIT")]


def test_a_start_in_the_middle_of_a_prepare_rolls_it_back():  # testRecoveryRollback
    assert Driven(preparing(100)).sent == [(100, "ROLLBACK")]


def test_after_the_rollback_the_txid_before_is_current_and_the_same_is_prepared_anew():  # testRecoveryRollbackAck
    run = Driven(preparing(100))
    run.ack()
    run.ack()
    run.tick()
    assert run.sent == [(100, "ROLLBACK"), (99, "INITSTATE"), (100, "PREPARE")]
    assert run.saved == [(100, "preparing"), (99, "committed"), (100, "preparing")]


def test_a_start_in_the_middle_of_a_commit_goes_on_with_it():  # testRecoveryCommit
    run = Driven(CheckPointState(100, TxState.COMMITTING))
    run.ack()
    run.ack()
    assert run.sent == [(100, "COMMIT"), (100, "INITSTATE")]
    assert (run.spout.phase, run.spout.record.txid) == (CheckpointPhase.COMMITTED, 100)


# -- what Storm does not do -----------------------------------------------------------------------------------------------


def test_an_ack_or_fail_of_an_earlier_attempt_or_action_changes_nothing():
    run = Driven()
    run.ack()
    run.tick()
    prepare = run.spout.waits_for
    run.fail()
    rollback = run.spout.waits_for
    assert prepare is not None
    assert rollback is not None
    for stale in (
        prepare,
        rollback._replace(attempt=1),
        rollback._replace(action=CheckpointAction.COMMIT),
        prepare._replace(txid=7),
    ):
        assert run.spout.ack(stale, run.now) == run.spout.fail(stale, run.now) == ()
    assert run.spout.waits_for == rollback
    assert run.spout.stale == 8


def test_every_checkpoint_is_sent_once_and_a_later_attempt_is_greater():
    run = Driven()
    sent: list[Checkpoint] = []
    for step in [
        "ack",
        "tick",
        "fail",
        "fail",
        "tick",
        "ack",
        "fail",
        "tick",
        "ack",
        "tick",
        "ack",
        "fail",
        "ack",
        "ack",
    ]:
        assert run.spout.waits_for not in sent[:-1]
        if run.spout.waits_for is not None:
            sent.append(run.spout.waits_for)
        getattr(run, step)()
    assert [each.attempt for each in sent] == sorted(each.attempt for each in sent)


def test_the_record_is_durable_before_what_rests_on_it_is_sent():
    spout = CheckpointSpout(INTERVAL_MS, preparing(4))
    effects = spout.start(0)
    assert effects == (
        SaveCheckpoint(CheckPointState(4, TxState.PREPARING, 1)),
        EmitCheckpoint(Checkpoint(1, 4, CheckpointAction.ROLLBACK)),
    )
    # A process that dies between the two begins with a greater attempt, so that nothing late of this one is taken for its own.
    assert CheckpointSpout(INTERVAL_MS, effects[0].record).start(0)[0] == SaveCheckpoint(
        CheckPointState(4, TxState.PREPARING, 2)
    )


def test_a_recovery_that_fails_is_tried_again_after_an_interval_and_not_at_once():
    run = Driven()
    run.fail()
    assert run.sent == [(-1, "INITSTATE")]
    assert run.spout.next_deadline_ms() == INTERVAL_MS
    run.tick()
    assert run.sent == [(-1, "INITSTATE")] * 2


def test_prepares_are_one_interval_apart_however_long_a_checkpoint_takes():
    run = Driven()
    run.ack()
    run.tick()
    run.now = 1_400
    run.ack()
    run.ack()
    assert run.spout.next_deadline_ms() == 2_000
    assert run.spout.tick(1_999) == ()
    assert len(run.spout.tick(2_000)) == 2


def test_a_checkpoint_can_be_asked_for_and_comes_at_once_or_when_the_one_under_way_is_done():
    run = Driven()
    run.do(run.spout.request(3))
    run.now = 3
    run.ack()
    run.do(run.spout.tick(3))
    assert run.sent[-1] == (0, "PREPARE")
    run.do(run.spout.request(4))
    run.ack()
    run.ack()
    assert run.spout.next_deadline_ms() == 3
    run.do(run.spout.tick(4))
    assert run.sent[-1] == (1, "PREPARE")
    run.ack()
    run.ack()
    run.do(run.spout.request(9))
    assert run.sent[-1] == (2, "PREPARE")


def test_an_interval_under_100_ms_is_refused():
    with pytest.raises(ConfigError, match=r"topology\.state\.checkpoint\.interval\.ms"):
        CheckpointSpout(99)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        "x",
        {"format": 2, "txid": 1, "state": "committed", "attempt": 1},
        {"format": 1, "txid": 1, "state": "done"},
    ],
)
def test_a_record_that_is_no_record_is_an_error_and_never_a_start_from_nothing(data: Any):
    with pytest.raises(CorruptStateError, match="nothing was reset"):
        CheckPointState.of(data)


@pytest.mark.parametrize(("txid", "attempt"), [(-2, 0), (1, -1), ("1", 0), (1, None), (True, 0)])
def test_a_record_with_impossible_numbers_is_an_error(txid: Any, attempt: Any):
    with pytest.raises(CorruptStateError, match="nothing was reset"):
        CheckPointState.of({"format": 1, "txid": txid, "state": "committed", "attempt": attempt})


def test_a_record_is_plain_data_and_comes_back():
    record = CheckPointState(7, TxState.COMMITTING, 3)
    assert CheckPointState.of(record.plain()) == record
    assert CheckPointState.of(None) == CheckPointState(-1, TxState.COMMITTED, 0)


# -- the table ------------------------------------------------------------------------------------------------------------


def test_a_phase_that_waits_for_an_answer_has_a_row_for_each_answer():
    for phase, cause in product(ACTIONS, (CheckpointCause.ACK, CheckpointCause.FAIL)):
        assert (phase, cause) in TRANSITIONS
    assert (CheckpointPhase.COMMITTED, CheckpointCause.DUE) in TRANSITIONS


def test_the_drawing_in_the_docs_is_that_of_the_table():
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{mermaid()}\n```" in page


class AnyOrderOfAnswers(RuleBasedStateMachine):
    """Acks, fails, ticks and restarts in any order, beside what the bolts would have done."""

    @initialize()
    def begin(self) -> None:
        self.durable: CheckPointState | None = None
        self.now = 0
        self.prepared: int | None = None
        self.committed = -1
        self.old: list[Checkpoint] = []
        self.restart()

    def do(self, effects: tuple[CheckpointEffect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, SaveCheckpoint):
                self.durable = effect.record
            else:
                assert self.durable is not None
                self.old.append(effect.checkpoint)

    @rule()
    def restart(self) -> None:
        self.spout = CheckpointSpout(INTERVAL_MS, self.durable)
        self.do(self.spout.start(self.now))

    @rule()
    @precondition(lambda self: self.spout.waits_for is not None)
    def every_task_does_it(self) -> None:
        done = self.spout.waits_for
        assert done is not None
        if done.action is CheckpointAction.PREPARE:
            assert self.prepared is None, "one is prepared while another is"
            assert done.txid == self.committed + 1
            self.prepared = done.txid
        elif done.action is CheckpointAction.COMMIT:
            assert done.txid in (self.prepared, self.committed)
            self.prepared, self.committed = None, done.txid
        elif done.action is CheckpointAction.ROLLBACK:
            assert done.txid == self.committed + 1, "what is committed is rolled back"
            self.prepared = None
        else:
            assert done.txid == self.committed
        self.do(self.spout.ack(done, self.now))

    @rule()
    @precondition(lambda self: self.spout.waits_for is not None)
    def some_task_fails(self) -> None:
        failed = self.spout.waits_for
        assert failed is not None
        if failed.action is CheckpointAction.PREPARE:
            self.prepared = failed.txid  # some tasks have prepared it
        self.do(self.spout.fail(failed, self.now))

    @rule(number=st.integers(0, 50), good=st.booleans())
    def an_old_answer_comes(self, number: int, good: bool) -> None:
        old = self.old[number % len(self.old)]
        if old != self.spout.waits_for:
            before = (self.spout.phase, self.spout.record, self.spout.next_deadline_ms())
            assert (self.spout.ack if good else self.spout.fail)(old, self.now) == ()
            assert (self.spout.phase, self.spout.record, self.spout.next_deadline_ms()) == before

    @rule(ms=st.sampled_from([0, 1, INTERVAL_MS - 1, INTERVAL_MS]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.do(self.spout.tick(self.now))

    @rule()
    def a_checkpoint_is_asked_for(self) -> None:
        self.do(self.spout.request(self.now))

    @invariant()
    def everything_is_in_order(self) -> None:
        if hasattr(self, "spout"):
            self.spout.check()
            assert self.durable == self.spout.record
            assert len(set(self.old)) == len(self.old)


TestAnyOrderOfAnswers = AnyOrderOfAnswers.TestCase
TestAnyOrderOfAnswers.settings = settings(stateful_step_count=40)
