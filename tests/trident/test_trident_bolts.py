"""TridentBoltExecutor: a batch is finished when it is complete, with repeated, late, lost and outdated messages."""

from __future__ import annotations

from typing import Any

import pytest

from windowing.errors import MachineSpentError
from windowing.trident.executors import (
    Ack,
    BatchId,
    Begin,
    CoordSpec,
    Execute,
    Fail,
    Finish,
    Forget,
    Report,
    TridentBoltExecutor,
)
from windowing.trident.kinds import TransactionAttempt

TIMEOUT_MS = 1_000


def attempt(text: str) -> TransactionAttempt:
    txid, number = text.split(":")
    return TransactionAttempt(int(txid), int(number))


class Driven:
    """A task whose effects are recorded as words; its bolt raises FailedException at the items in `fails`."""

    def __init__(self, *specs: CoordSpec, **options: Any) -> None:
        groups = {f"g{number}": spec for number, spec in enumerate(specs)}
        self.machine = TridentBoltExecutor(groups, TIMEOUT_MS, **options)
        self.now = 0
        self.fails: set[Any] = set()
        self.emits: dict[Any, list[str]] = {}
        self.begun: list[BatchId] = []
        self.causes: list[str] = []

    def do(self, effects: Any) -> list[str]:
        words = []
        for effect in effects:
            match effect:
                case Execute(batch, item):
                    words += self.work(batch, item)
                case Finish(batch):
                    words += self.work(batch, "finish")
                case Report(_, target, sent, message):
                    words.append(f"tell {target} {sent} by {message}")
                case Ack(message):
                    words.append(f"ack {message}")
                case Fail(message, cause):
                    words.append(f"fail {message}")
                    self.causes.append(cause)
                case Begin(batch):
                    self.begun.append(batch)
                case Forget(batch):
                    self.begun.remove(batch)
                    words.append("end")
        self.machine.check()
        return words

    def work(self, batch: BatchId, item: str) -> list[str]:
        """Return the call of the bolt."""
        for target in self.emits.get(item, []):
            self.machine.emitted(batch, target)
        if item in self.fails:
            self.machine.failed(batch, f"{item} failed")
        return [item]

    def tuple(self, name: str, sender: str, number: int, item: Any = None, group: str = "g0") -> list[str]:
        item = f"{sender}{number}" if item is None else item
        return self.do(self.machine.arrive(BatchId(group, attempt(name)), sender, number, item, self.now))

    def run(self, name: str, sender: str, first: int, items: str) -> list[str]:
        return [word for number, item in enumerate(items, first) for word in self.tuple(name, sender, number, item)]

    def report(self, name: str, sender: str, sent: int, message: str = "", group: str = "g0") -> list[str]:
        return self.do(
            self.machine.report(BatchId(group, attempt(name)), sender, sent, message or f"r{sender}", self.now)
        )

    def commit(self, name: str, message: str = "c", group: str = "g0") -> list[str]:
        return self.do(self.machine.commit(BatchId(group, attempt(name)), message, self.now))

    def success(self, name: str, group: str = "g0") -> list[str]:
        return self.do(self.machine.success(BatchId(group, attempt(name)), self.now))

    def at(self, now_ms: int) -> list[str]:
        self.now = now_ms
        return self.do(self.machine.tick(now_ms))


# -- a batch without disturbance ------------------------------------------------------------------------------------------


def test_a_batch_is_finished_reported_and_acked_after_its_tuples_and_its_report():
    task = Driven(CoordSpec(["a"], targets=["x", "y"]))
    task.emits = {"a0": ["x"], "a1": ["x", "y"], "finish": ["y"]}
    assert task.tuple("1:0", "a", 0) == ["a0"]
    assert task.tuple("1:0", "a", 1) == ["a1"]
    assert task.report("1:0", "a", 2) == ["finish", "tell x 2 by ra", "tell y 2 by ra", "ack ra", "end"]


def test_a_batch_without_tuples_is_finished_too():
    assert Driven(CoordSpec(["a"])).report("1:0", "a", 0) == ["finish", "ack ra", "end"]


def test_a_batch_is_finished_after_the_reports_of_all_upstream_tasks_and_holds_the_first_report():
    task = Driven(CoordSpec(["a", "b", "c"]))
    assert task.report("1:0", "a", 0) == []
    assert task.report("1:0", "b", 0) == ["ack rb"]
    assert task.report("1:0", "c", 0) == ["finish", "ack ra", "end", "ack rc"]


def test_batches_are_processed_concurrently():
    task = Driven(CoordSpec(["a"]))
    task.tuple("1:0", "a", 0)
    task.tuple("2:0", "a", 0)
    assert task.report("2:0", "a", 1) == ["finish", "ack ra", "end"]
    assert task.report("1:0", "a", 1) == ["finish", "ack ra", "end"]


def test_two_batch_groups_with_the_same_txid_are_independent():  # T7
    task = Driven(CoordSpec(["a"]), CoordSpec(["a"]))
    task.tuple("1:5", "a", 0, group="g0")
    assert task.report("1:0", "a", 0, group="g1") == ["finish", "ack ra", "end"]
    assert task.report("1:5", "a", 1, group="g0") == ["finish", "ack ra", "end"]


# -- commits --------------------------------------------------------------------------------------------------------------


def test_a_committer_acks_the_complete_batch_and_finishes_it_at_the_commit():
    task = Driven(CoordSpec(["a"], commits=True, targets=["x"]))
    task.emits = {"finish": ["x"]}
    task.tuple("1:0", "a", 0)
    assert task.report("1:0", "a", 1) == ["ack ra"]
    assert task.commit("1:0") == ["finish", "tell x 1 by c", "ack c", "end"]


def test_the_commit_of_a_batch_that_is_not_complete_here_is_failed():
    task = Driven(CoordSpec(["a"], commits=True))
    assert task.commit("1:0") == ["fail c"]
    task.tuple("2:0", "a", 0)
    assert task.commit("2:0") == ["fail c"]


def test_the_commit_of_a_greater_attempt_than_the_complete_one_is_failed():
    task = Driven(CoordSpec(["a"], commits=True))
    task.report("1:0", "a", 0)
    assert task.commit("1:1") == ["end", "fail c"]
    assert task.commit("1:0") == ["fail c"]


def test_a_repeated_commit_is_done_once():
    task = Driven(CoordSpec(["a"], commits=True))
    task.report("1:0", "a", 0)
    assert task.commit("1:0") == ["finish", "ack c", "end"]
    assert task.commit("1:0") == []


def test_a_failed_commit_fails_its_message_and_is_not_repeated():
    task = Driven(CoordSpec(["a"], commits=True, targets=["x"]))
    task.fails = {"finish"}
    task.report("1:0", "a", 0)
    assert task.commit("1:0") == ["finish", "fail c", "end"]
    assert task.commit("1:0", "c2") == ["fail c2"]


def test_a_task_downstream_of_a_committer_and_another_task_acks_the_batch_before_the_commit():  # STORM-481: such a batch never ends
    task = Driven(CoordSpec(["a"], commit_reports=["p"], targets=["x"]))
    task.tuple("1:0", "a", 0)
    assert task.report("1:0", "a", 1) == ["ack ra"]
    assert task.tuple("1:0", "p", 0) == ["p0"]
    assert task.report("1:0", "p", 1) == ["finish", "tell x 0 by rp", "ack rp", "end"]


def test_a_task_downstream_of_committers_only_starts_at_the_commit():
    task = Driven(CoordSpec(commit_reports=["p", "q"]))
    assert task.report("1:0", "p", 0) == []
    assert task.report("1:0", "q", 0) == ["finish", "ack rp", "end", "ack rq"]


@pytest.mark.parametrize("commit_first", [True, False])
def test_a_committer_downstream_of_a_committer_finishes_after_the_commit_and_the_report(commit_first):
    task = Driven(CoordSpec(["a"], commits=True, commit_reports=["p"]))
    task.report("1:0", "a", 0)
    if commit_first:
        assert task.commit("1:0") == []
        assert task.report("1:0", "p", 0) == ["finish", "ack c", "end", "ack rp"]
    else:
        assert task.report("1:0", "p", 0) == ["ack rp"]
        assert task.commit("1:0") == ["finish", "ack c", "end"]


# -- lost, late, repeated and reordered messages --------------------------------------------------------------------------


def test_a_lost_tuple_fails_the_batch_at_its_report():
    task = Driven(CoordSpec(["a", "b"]))
    task.report("1:0", "b", 0)
    task.tuple("1:0", "a", 1)
    assert task.report("1:0", "a", 2) == ["fail rb", "end", "ack ra"]
    assert task.causes == ["1 of 2 tuples of batch 1:0 of g0 came from 'a'"]


def test_a_lost_and_a_repeated_tuple_do_not_add_up():
    task = Driven(CoordSpec(["a"]))
    assert task.tuple("1:0", "a", 0) == ["a0"]
    assert task.tuple("1:0", "a", 0) == []
    assert task.report("1:0", "a", 2) == ["fail ra", "end"]


def test_a_repeated_report_counts_once_and_is_not_answered_again():
    task = Driven(CoordSpec(["a", "b"]))
    assert task.report("1:0", "a", 0) == []
    assert task.report("1:0", "a", 0) == []
    assert task.report("1:0", "b", 0) == ["finish", "ack ra", "end", "ack rb"]
    assert task.report("1:0", "b", 0) == []


def test_messages_after_the_end_of_a_batch_change_nothing():
    task = Driven(CoordSpec(["a"]))
    task.report("1:0", "a", 0)
    assert task.tuple("1:0", "a", 0) == []
    task.success("1:0")
    assert task.tuple("1:0", "a", 0) == []
    assert task.report("1:0", "a", 0) == ["fail ra"]
    assert len(task.machine._tracked) == 0


def test_tuples_of_overlapping_runs_are_executed_once():
    task = Driven(CoordSpec(["a"]))
    assert task.run("1:0", "a", 0, "ab") == ["a", "b"]
    assert task.run("1:0", "a", 4, "ef") == ["e", "f"]
    assert task.run("1:0", "a", 1, "bcde") == ["c", "d"]
    assert task.report("1:0", "a", 6) == ["finish", "ack ra", "end"]
    assert task.run("1:0", "a", 0, "ab") == []


def test_a_run_stops_at_the_tuple_that_fails():
    task = Driven(CoordSpec(["a"]))
    task.fails = {"b"}
    assert task.run("1:0", "a", 0, "abc") == ["a", "b", "end"]


# -- attempts -------------------------------------------------------------------------------------------------------------


def test_a_greater_attempt_supersedes_and_fails_a_smaller_one():
    task = Driven(CoordSpec(["a", "b"]))
    task.tuple("1:0", "a", 0)
    task.report("1:0", "a", 1)
    assert task.tuple("1:1", "a", 0, "new") == ["fail ra", "end", "new"]
    assert task.report("1:1", "a", 1, "m") == []
    assert task.report("1:1", "b", 0) == ["finish", "ack m", "end", "ack rb"]


def test_messages_of_a_smaller_attempt_are_failed_and_not_executed():  # T5: in Storm it is left without an answer
    task = Driven(CoordSpec(["a"], commits=True))
    task.report("1:1", "a", 0)
    assert task.tuple("1:0", "a", 0) == []
    assert task.report("1:0", "a", 1) == ["fail ra"]
    assert task.commit("1:0") == ["fail c"]
    assert task.commit("1:1") == ["finish", "ack c", "end"]


# -- failures -------------------------------------------------------------------------------------------------------------


def test_a_failing_tuple_ends_the_batch_at_once():  # T4, and Storm executes the rest of the tuples
    task = Driven(CoordSpec(["a", "b"], targets=["x"]))
    task.fails = {"a0"}
    task.report("1:0", "b", 0)
    assert task.tuple("1:0", "a", 0) == ["a0", "fail rb", "end"]
    assert task.tuple("1:0", "a", 1) == []
    assert task.report("1:0", "a", 2) == ["fail ra"]
    assert task.causes == ["a0 failed", "a0 failed"]


def test_a_failure_before_any_report_fails_the_first_report():
    task = Driven(CoordSpec(["a"]))
    task.fails = {"a0"}
    assert task.tuple("1:0", "a", 0) == ["a0", "end"]
    assert task.report("1:0", "a", 1) == ["fail ra"]


def test_a_failing_finish_reports_to_no_downstream_task():
    task = Driven(CoordSpec(["a"], targets=["x"]))
    task.fails = {"finish"}
    assert task.report("1:0", "a", 0) == ["finish", "fail ra", "end"]


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_an_incomplete_batch_is_failed_after_its_timeout_with_the_missing_upstream_tasks():
    task = Driven(CoordSpec(["a", "b"]))
    task.report("1:0", "a", 0)
    assert task.machine.next_deadline_ms() == TIMEOUT_MS
    assert task.at(TIMEOUT_MS - 1) == []
    assert task.at(TIMEOUT_MS) == ["fail ra", "end"]
    assert task.causes == ["batch 1:0 of g0 took more than 1000 ms: not all has come from 'b'"]
    assert (len(task.machine._tracked), task.machine.next_deadline_ms()) == (0, None)


def test_a_batch_that_waits_for_its_commit_expires_after_the_timeout_and_the_commit_fails():
    task = Driven(CoordSpec(["a"], commits=True))
    task.report("1:0", "a", 0)
    assert task.at(TIMEOUT_MS) == ["end"]
    assert task.commit("1:0") == ["fail c"]


def test_a_success_removes_the_batch_and_all_earlier_ones_of_its_group():
    task = Driven(CoordSpec(["a"]), CoordSpec(["a"]))
    for group in ("g0", "g1"):
        for name in ("1:0", "2:0", "3:0"):
            task.tuple(name, "a", 0, group=group)
    assert task.success("2:0") == ["end", "end"]
    assert len(task.machine._tracked) == 4


def test_every_batch_that_was_begun_is_removed_exactly_once():
    task = Driven(CoordSpec(["a"]))
    task.tuple("1:0", "a", 0)
    task.tuple("1:1", "a", 0)
    task.tuple("2:0", "a", 0)
    task.fails = {"a0"}
    task.tuple("3:0", "a", 0)
    task.success("1:1")
    task.at(TIMEOUT_MS)
    assert task.begun == []


# -- refusals -------------------------------------------------------------------------------------------------------------


def test_after_a_message_of_an_undeclared_upstream_task_the_machine_is_spent():
    task = Driven(CoordSpec(["a"]))
    with pytest.raises(KeyError):
        task.tuple("1:0", "b", 0)
    with pytest.raises(MachineSpentError):
        task.tuple("1:0", "a", 0)
