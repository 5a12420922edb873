"""StatefulBoltExecutor: hooks, state and acks in their order."""

from __future__ import annotations

from typing import Any

import pytest

from windowing.errors import AckError
from windowing.execution.checkpoints import (
    Checkpoint,
    CheckpointAction,
    CommitState,
    ExecuteTuple,
    FailTuples,
    Hook,
    Init,
    PassOn,
    Prepare,
    Refuse,
    ReleaseAcks,
    Rollback,
    StatefulBoltExecutor,
)

INIT = Checkpoint(1, -1, CheckpointAction.INITSTATE)
PREPARE = Checkpoint(1, 0, CheckpointAction.PREPARE)
COMMIT = Checkpoint(1, 0, CheckpointAction.COMMIT)
ROLLBACK = Checkpoint(2, 0, CheckpointAction.ROLLBACK)


def started(*tuples: str) -> StatefulBoltExecutor:
    """A task that has its state and was handed some tuples."""
    task = StatefulBoltExecutor()
    done(task, INIT)
    for each in tuples:
        assert list(task.execute(each)) == [ExecuteTuple(each)]
    return task


def done(task: StatefulBoltExecutor, checkpoint: Checkpoint) -> list[Any]:
    effects = list(task.checkpoint(checkpoint))
    task.check()
    return effects


# -- the equivalents of Storm's StatefulBoltExecutorTest ------------------------------------------------------------------


def test_a_tuple_before_the_state_is_not_executed():  # testHandleTupleBeforeInit
    task = StatefulBoltExecutor()
    assert list(task.execute("a")) == []


def test_it_is_executed_when_the_state_comes():  # testHandleTuple
    task = StatefulBoltExecutor()
    list(task.execute("a"))
    assert done(task, INIT) == [Init(-1), ExecuteTuple("a"), PassOn(INIT)]
    assert list(task.execute("b")) == [ExecuteTuple("b")]


def test_a_rollback_undoes_the_state_fails_the_tuples_and_hands_the_state_out_again():  # testRollback
    task = started("a", "b", "c")
    task.acked("a")
    done(task, PREPARE)
    task.acked("b")
    assert done(task, ROLLBACK) == [
        Hook("pre_rollback", ()),
        Rollback(),
        FailTuples(("a", "b", "c")),
        Init(-1),
        PassOn(ROLLBACK),
    ]
    assert task.held == 0


def test_a_commit_calls_the_hook_commits_and_lets_the_acks_out():  # testCommit, testPrepareAndCommit
    task = started("a", "b")
    task.acked("a")
    assert done(task, PREPARE) == [Hook("pre_prepare", (0,)), Prepare(0), PassOn(PREPARE)]
    task.acked("b")
    assert done(task, COMMIT) == [Hook("pre_commit", (0,)), CommitState(0), ReleaseAcks(("a",)), PassOn(COMMIT)]


def test_a_prepare_before_the_state_is_refused_a_rollback_is_done():  # testPrepareAndRollbackBeforeInitstate
    task = StatefulBoltExecutor()
    list(task.execute("a"))
    assert done(task, PREPARE) == [Refuse(PREPARE)]
    assert done(task, ROLLBACK) == [Rollback(), PassOn(ROLLBACK)]
    assert done(task, INIT) == [Init(-1), ExecuteTuple("a"), PassOn(INIT)]


def test_a_commit_before_the_state_finishes_what_another_process_prepared():  # testCommitBeforeInitstate
    assert done(StatefulBoltExecutor(), COMMIT) == [CommitState(0), PassOn(COMMIT)]


# -- what Storm does not do -----------------------------------------------------------------------------------------------


def test_a_commit_that_comes_again_is_passed_on_and_repeats_nothing():
    task = started("a")
    task.acked("a")
    done(task, PREPARE)
    done(task, COMMIT)
    again = COMMIT._replace(attempt=2)
    assert done(task, again) == [PassOn(again)]


def test_acks_that_a_hook_gives_belong_to_the_checkpoint():
    task = started("a")
    for effect in task.checkpoint(PREPARE):
        if isinstance(effect, Hook):
            task.acked("a")
    assert ReleaseAcks(("a",)) in done(task, COMMIT)


def test_a_tuple_that_the_bolt_fails_is_failed_at_once_and_never_again():
    task = started("a")
    assert task.failed("a") == FailTuples(("a",))
    done(task, PREPARE)
    assert done(task, ROLLBACK) == [Hook("pre_rollback", ()), Rollback(), Init(-1), PassOn(ROLLBACK)]


def test_a_tuple_is_settled_once_and_not_after_a_rollback():
    task = started("a", "b")
    task.acked("a")
    done(task, ROLLBACK)
    for late in ("a", "b"):
        assert not task.is_open(late)
        with pytest.raises(AckError, match="forget the tuples at hand in pre_rollback"):
            task.acked(late)


def test_the_state_comes_once_unless_it_was_rolled_back():
    task = started()
    assert done(task, INIT._replace(attempt=2)) == [PassOn(INIT._replace(attempt=2))]
