"""MasterBatchCoordinator: batches are begun, committed in order, retried, skipped and cleaned up."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from windowing.acking.pending import RetryPolicy
from windowing.errors import ConfigError, CorruptStateError, MachineSpentError
from windowing.topology.config import TopologyConfig
from windowing.trident.coordinator import (
    ANSWERS,
    TRANSITIONS,
    AskReady,
    BatchCause,
    CoordinatorConfig,
    CoordinatorEffect,
    CoordinatorRecord,
    CoordinatorStream,
    EmitOnStream,
    MasterBatchCoordinator,
    OnFailure,
    Readiness,
    SaveRecord,
    Status,
    Stop,
    Tries,
    readiness_of,
)
from windowing.trident.kinds import TransactionAttempt

BATCH, COMMIT, SUCCESS = CoordinatorStream.BATCH, CoordinatorStream.COMMIT, CoordinatorStream.SUCCESS
READY, WAIT, ENDED = Readiness.READY, Readiness.WAIT, Readiness.ENDED


def attempt(text: str) -> TransactionAttempt:
    txid, number = text.split(":")
    return TransactionAttempt(int(txid), int(number))


class Driven:
    """A machine whose effects are recorded; every readiness question is answered with `ready`, which a test may set."""

    def __init__(self, record: CoordinatorRecord | None = None, ready: list[Readiness] | None = None, **config: Any):
        options = {"interval_ms": 0, "retry": RetryPolicy(3, first_ms=100, cap_ms=1_000)} | config
        self.machine = MasterBatchCoordinator(CoordinatorConfig(**options), record)
        self.ready = ready or [READY]
        self.now = 0
        self.sent: list[str] = []
        self.emits: list[EmitOnStream] = []
        self.saved: CoordinatorRecord | None = record
        self.stop: Stop | None = None
        self.asked: list[int] = []
        self.do(self.machine.tick(0))

    def do(self, effects: Any) -> None:
        questions = []
        for effect in effects:
            if isinstance(effect, SaveRecord):
                self.saved = CoordinatorRecord.of(effect.record.plain())
            elif isinstance(effect, EmitOnStream):
                assert self.saved is not None, "it was sent before it was saved"
                self.emits.append(effect)
                self.sent.append(f"{effect.stream.value} {effect.attempt}")
            elif isinstance(effect, Stop):
                self.stop = effect
            else:
                questions.append(effect.txid)
        self.machine.check()
        self.asked += questions
        for txid in questions:
            self.do(self.machine.answered(txid, self.ready, self.now))

    def at(self, now_ms: int) -> None:
        self.now = now_ms
        self.do(self.machine.tick(now_ms))

    def ack(self, stream: CoordinatorStream, *attempts: str) -> None:
        for each in attempts:
            self.do(self.machine.acked(stream, attempt(each), self.now))

    def fail(self, stream: CoordinatorStream, each: str, cause: str = "") -> None:
        self.do(self.machine.failed(stream, attempt(each), self.now, cause))

    def sent_since(self) -> list[str]:
        """Return the messages sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


# -- a batch from its begin to its success --------------------------------------------------------------------------------


def test_a_batch_is_processed_committed_and_reported_as_success_and_then_the_next_begins():
    run = Driven()
    assert run.sent_since() == ["$batch 1:0"]
    run.ack(BATCH, "1:0")
    assert run.sent_since() == ["$commit 1:0"]
    run.ack(COMMIT, "1:0")
    assert run.sent_since() == ["$success 1:0", "$batch 2:0"]


def test_by_default_one_batch_is_pending_and_retries_are_those_of_the_default_settings():
    settings = TopologyConfig()
    assert CoordinatorConfig() == CoordinatorConfig(1, settings.batch_emit_interval_ms, retry=RetryPolicy.of(settings))
    assert Driven().sent == ["$batch 1:0"]


def test_max_pending_batches_are_begun_each_with_the_batch_before_as_predecessor():
    run = Driven(max_pending=3)
    assert run.sent_since() == ["$batch 1:0", "$batch 2:0", "$batch 3:0"]
    assert [emit.after for emit in run.emits] == [None, attempt("1:0"), attempt("2:0")]
    run.ack(BATCH, "2:0")
    assert run.sent_since() == []


def test_commits_follow_the_order_of_txids_in_whatever_order_the_batches_are_acked():
    run = Driven(max_pending=3)
    run.sent_since()
    run.ack(BATCH, "3:0", "2:0")
    assert run.sent_since() == []
    run.ack(BATCH, "1:0")
    assert run.sent_since() == ["$commit 1:0"]
    run.ack(COMMIT, "1:0")
    assert run.sent_since() == ["$success 1:0", "$commit 2:0", "$batch 4:0"]
    run.ack(COMMIT, "2:0")
    assert run.sent_since() == ["$success 2:0", "$commit 3:0", "$batch 5:0"]


# -- failures -------------------------------------------------------------------------------------------------------------


def test_a_failed_batch_and_all_later_ones_are_retried():
    run = Driven(max_pending=3)
    run.sent_since()
    run.fail(BATCH, "2:0")
    assert [str(each) for each, _ in run.machine.under_way] == ["1:0"]
    assert run.sent_since() == []
    run.at(100)
    assert run.sent_since() == ["$batch 2:1", "$batch 3:1"]
    assert [emit.after for emit in run.emits[-2:]] == [attempt("1:0"), attempt("2:1")]


def test_a_failed_commit_retries_its_batch():
    run = Driven(max_pending=2)
    run.ack(BATCH, "1:0", "2:0")
    run.sent_since()
    run.fail(COMMIT, "1:0")
    run.at(100)
    assert run.sent_since() == ["$batch 1:1", "$batch 2:1"]
    run.ack(BATCH, "1:1")
    run.ack(COMMIT, "1:1")
    assert run.sent_since() == ["$commit 1:1", "$success 1:1", "$batch 3:0"]


@pytest.mark.parametrize("stream", [BATCH, COMMIT, SUCCESS])
@pytest.mark.parametrize("late", ["2:0", "2:2", "1:0", "9:0"])
def test_acks_and_fails_of_another_attempt_are_ignored(stream, late):  # T1: in Storm a late fail of 2:0 ends 2:1
    run = Driven(max_pending=2)
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    run.fail(BATCH, "2:0")
    run.at(1_000)
    under_way, record = run.machine.under_way, run.machine.record
    assert str(under_way[0][0]) == "2:1"
    run.sent_since()
    run.fail(stream, late)
    run.ack(stream, late)
    assert (run.machine.under_way, run.machine.record, run.sent_since()) == (under_way, record, [])
    assert run.machine.stale == 2


def test_a_second_ack_of_a_batch_does_not_complete_its_commit():
    run = Driven()
    run.ack(BATCH, "1:0", "1:0")
    assert run.sent_since() == ["$batch 1:0", "$commit 1:0"]
    run.fail(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    assert run.sent_since() == ["$success 1:0", "$batch 2:0"]


def test_the_delay_of_retries_grows_up_to_its_cap():
    run = Driven(retry=RetryPolicy(None, first_ms=100, cap_ms=300))
    waits = []
    for number in range(4):
        run.fail(BATCH, f"1:{number}")
        deadline = run.machine.next_deadline_ms()
        assert deadline is not None
        waits.append(deadline - run.now)
        run.at(deadline - 1)
        assert run.sent[-1] == f"$batch 1:{number}"
        run.at(deadline)
        assert run.sent[-1] == f"$batch 1:{number + 1}"
    assert waits == [100, 200, 300, 300]


def test_a_batch_that_is_retried_because_an_earlier_one_failed_counts_no_failure():
    run = Driven(max_pending=2, retry=RetryPolicy(2, first_ms=0, cap_ms=0))
    run.fail(BATCH, "1:0")
    assert run.machine.record.tries == {1: Tries(1, 1), 2: Tries(1, 0)}


def test_failures_count_only_once_all_earlier_batches_are_done():
    run = Driven(max_pending=2, retry=RetryPolicy(2, first_ms=10, cap_ms=50))
    for number in range(5):
        run.fail(BATCH, f"2:{number}")
        run.at(run.now + 10)
    assert (run.stop, run.machine.record.tries[2]) == (None, Tries(5))
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    run.fail(BATCH, "2:5")
    run.at(run.now + 10)
    run.fail(BATCH, "2:6")
    assert run.stop == Stop(attempt("2:6"), 2, False, "")


# -- limits ---------------------------------------------------------------------------------------------------------------


def test_a_batch_that_failed_too_often_stops_the_topology_with_the_cause():
    run = Driven(retry=RetryPolicy(2, first_ms=0, cap_ms=0))
    run.fail(BATCH, "1:0", "a timeout")
    run.fail(BATCH, "1:1", "no such host\n")
    assert run.stop == Stop(attempt("1:1"), 2, False, "no such host\\n")
    assert "batch 1:1 failed 2 times, at last because of no such host" in str(run.stop)
    run.at(10_000)
    run.ack(BATCH, "1:1")
    assert run.sent == ["$batch 1:0", "$batch 1:1"]
    assert run.machine.next_deadline_ms() is None


def test_a_restart_after_a_stop_tries_the_batch_once_more():
    run = Driven(retry=RetryPolicy(2, first_ms=0, cap_ms=0))
    run.fail(BATCH, "1:0")
    run.fail(BATCH, "1:1")
    again = Driven(run.saved, retry=RetryPolicy(2, first_ms=0, cap_ms=0))
    assert again.sent == ["$batch 1:2"]
    again.fail(BATCH, "1:2")
    assert again.stop == Stop(attempt("1:2"), 3, False, "")


def test_a_skipped_batch_is_emitted_once_more_with_the_cause_and_committed_like_any_other():
    run = Driven(retry=RetryPolicy(2, first_ms=0, cap_ms=0), on_failure=OnFailure.SKIP)
    run.fail(BATCH, "1:0", "x")
    run.fail(BATCH, "1:1", "y")
    assert [(str(emit.attempt), emit.skip) for emit in run.emits] == [("1:0", None), ("1:1", None), ("1:2", "y")]
    run.ack(BATCH, "1:2")
    run.ack(COMMIT, "1:2")
    assert run.sent[-3:] == ["$commit 1:2", "$success 1:2", "$batch 2:0"]
    assert run.emits[-1].skip is None


def test_the_decision_to_skip_survives_a_restart():
    run = Driven(retry=RetryPolicy(2, first_ms=0, cap_ms=0), on_failure=OnFailure.SKIP)
    run.fail(BATCH, "1:0")
    run.fail(BATCH, "1:1", "y")
    again = Driven(run.saved, retry=RetryPolicy(2, first_ms=0, cap_ms=0), on_failure=OnFailure.SKIP)
    assert (str(again.emits[0].attempt), again.emits[0].skip) == ("1:3", "y")


def test_a_skip_without_a_cause_says_unknown():
    run = Driven(retry=RetryPolicy(1, first_ms=0, cap_ms=0), on_failure=OnFailure.SKIP)
    run.fail(BATCH, "1:0")
    assert run.emits[-1].skip == "an unknown cause"


def test_a_skip_that_fails_too_often_stops_the_topology():
    run = Driven(retry=RetryPolicy(3, first_ms=0, cap_ms=0), on_failure=OnFailure.SKIP)
    for number in range(5):
        run.fail(BATCH, f"1:{number}")
    assert run.stop is None
    run.ack(BATCH, "1:5")
    run.fail(COMMIT, "1:5")
    assert run.stop == Stop(attempt("1:5"), 6, False, "")


def test_a_batch_whose_commit_has_begun_is_never_skipped_even_after_a_restart():
    options: dict[str, Any] = {"retry": RetryPolicy(2, first_ms=0, cap_ms=0), "on_failure": OnFailure.SKIP}
    run = Driven(**options)
    run.ack(BATCH, "1:0")
    again = Driven(run.saved, **options)
    again.fail(BATCH, "1:1")
    again.fail(BATCH, "1:2")
    assert again.stop == Stop(attempt("1:2"), 2, True, "")
    assert "cannot be skipped" in str(again.stop)


@pytest.mark.parametrize(
    "later",
    [{"retry": RetryPolicy(5, first_ms=0, cap_ms=0), "on_failure": OnFailure.SKIP}, {"on_failure": OnFailure.STOP}],
)
def test_a_skip_whose_commit_has_begun_stays_a_skip_after_a_restart_with_other_settings(later):
    """Some partitions may have committed the batch without its tuples: the others must not get them."""
    run = Driven(retry=RetryPolicy(1, first_ms=0, cap_ms=0), on_failure=OnFailure.SKIP)
    run.fail(BATCH, "1:0", "x")
    run.ack(BATCH, "1:1")
    assert run.sent[-1] == "$commit 1:1"
    again = Driven(run.saved, **later)
    assert [(str(emit.attempt), emit.skip) for emit in again.emits] == [("1:2", "x")]
    again.fail(BATCH, "1:2", "y")
    again.at(1_000)
    assert (str(again.emits[-1].attempt), again.emits[-1].skip) == ("1:3", "y")
    again.ack(BATCH, "1:3")
    again.ack(COMMIT, "1:3")
    assert again.emits[-1].skip is None


# -- restarts -------------------------------------------------------------------------------------------------------------


def test_after_a_restart_every_attempt_is_greater_than_all_before():  # T2: Storm sends 3:0 again
    run = Driven(max_pending=3)
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    again = Driven(run.saved, max_pending=3)
    assert again.sent == ["$batch 2:1", "$batch 3:1", "$batch 4:1"]


def test_a_restart_with_a_smaller_max_pending_still_uses_greater_attempts():  # T2, with max pending not set
    run = Driven(max_pending=3)
    again = Driven(run.saved, max_pending=1)
    again.ack(BATCH, "1:1")
    again.ack(COMMIT, "1:1")
    assert again.sent == ["$batch 1:1", "$commit 1:1", "$success 1:1", "$batch 2:1"]


def test_a_successful_batch_is_not_repeated_after_a_restart():
    run = Driven()
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    assert run.saved == CoordinatorRecord(2, {2: Tries(0)})
    assert Driven(run.saved).sent == ["$batch 2:1"]


def test_each_call_saves_the_record_once_before_it_emits():
    machine = MasterBatchCoordinator(CoordinatorConfig(max_pending=2, interval_ms=0))
    list(machine.tick(0))
    list(machine.answered(1, [READY], 0))
    list(machine.answered(2, [READY], 0))
    for entry in (
        lambda: machine.acked(BATCH, attempt("1:0"), 0),
        lambda: machine.acked(BATCH, attempt("2:0"), 0),
        lambda: machine.acked(COMMIT, attempt("1:0"), 0),
    ):
        effects: list[CoordinatorEffect] = list(entry())
        kinds = [type(effect) for effect in effects]
        assert kinds.count(SaveRecord) == (1 if EmitOnStream in kinds else 0)
        assert SaveRecord not in kinds[1:]


def test_a_coordinator_whose_effects_were_lost_must_be_restarted_from_its_record():
    machine = MasterBatchCoordinator(CoordinatorConfig(interval_ms=0))
    list(machine.tick(0))
    machine.answered(1, [READY], 0)
    with pytest.raises(MachineSpentError):
        machine.tick(1)


# -- time -----------------------------------------------------------------------------------------------------------------


def test_batches_begin_one_interval_apart_even_below_max_pending():
    run = Driven(max_pending=3, interval_ms=500)
    assert run.machine.next_deadline_ms() == 500
    run.at(499)
    assert run.sent_since() == ["$batch 1:0"]
    run.at(500)
    assert run.sent_since() == ["$batch 2:0"]
    run.at(5_000)
    assert run.sent_since() == ["$batch 3:0"]
    assert run.machine.next_deadline_ms() is None


def test_a_clock_that_goes_back_delays_nothing():
    run = Driven(interval_ms=500)
    run.at(600)
    run.now = -3_600_000
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    assert run.sent_since() == ["$batch 1:0", "$commit 1:0", "$success 1:0", "$batch 2:0"]
    run.fail(BATCH, "2:0")
    assert run.machine.next_deadline_ms() == 1_100


# -- readiness ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ([READY, READY], READY),
        ([WAIT, READY], READY),
        ([WAIT, WAIT], WAIT),
        ([ENDED, READY], READY),
        ([WAIT, ENDED], WAIT),
        ([ENDED, ENDED], ENDED),
    ],
)
def test_a_batch_begins_when_at_least_one_spout_is_ready(answers, wanted):
    assert readiness_of(answers) == wanted
    run = Driven(ready=answers)
    assert run.sent == (["$batch 1:0"] if wanted is READY else [])
    assert run.machine.over == (wanted is ENDED)


def test_spouts_that_are_not_ready_are_asked_again_after_the_poll_interval():
    run = Driven(ready=[WAIT], poll_ms=50)
    assert (run.asked, run.machine.next_deadline_ms()) == ([1], 50)
    run.ready = [READY]
    run.at(49)
    assert run.sent == []
    run.at(50)
    assert run.sent == ["$batch 1:0"]


def test_a_retried_batch_is_emitted_without_asking_for_readiness():
    run = Driven(max_pending=2)
    run.ready = [WAIT]
    run.fail(BATCH, "1:0")
    run.at(100)
    assert run.sent[-2:] == ["$batch 1:1", "$batch 2:1"]
    assert run.asked == [1, 2]


def test_an_outdated_readiness_answer_is_ignored():
    machine = MasterBatchCoordinator(CoordinatorConfig(max_pending=2, interval_ms=0))
    list(machine.tick(0))
    list(machine.answered(1, [READY], 0))
    list(machine.failed(BATCH, attempt("1:0"), 0))
    assert list(machine.answered(2, [READY], 0)) == []
    assert machine.stale == 1
    machine.check()


def test_after_all_spouts_have_ended_pending_batches_finish_and_the_coordinator_is_over():
    run = Driven(max_pending=2)
    run.ready = [ENDED]
    run.ack(BATCH, "1:0", "2:0")
    run.ack(COMMIT, "1:0")
    assert run.asked == [1, 2, 3]
    assert not run.machine.over
    run.fail(COMMIT, "2:0")
    run.at(100)
    run.ack(BATCH, "2:1")
    run.ack(COMMIT, "2:1")
    assert run.machine.over
    assert run.machine.next_deadline_ms() is None
    assert run.sent[-3:] == ["$batch 2:1", "$commit 2:1", "$success 2:1"]


# -- activate and deactivate ----------------------------------------------------------------------------------------------


def test_a_deactivated_coordinator_commits_pending_batches_and_begins_none():
    run = Driven(max_pending=2)
    run.do(run.machine.deactivate(0))
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    run.fail(BATCH, "2:0")
    run.at(10_000)
    assert run.sent == ["$batch 1:0", "$batch 2:0", "$commit 1:0", "$success 1:0"]
    assert run.machine.next_deadline_ms() is None
    run.do(run.machine.activate(10_000))
    assert run.sent[-2:] == ["$batch 2:1", "$batch 3:0"]


def test_spouts_that_have_ended_are_asked_again_by_activate():
    run = Driven(max_pending=1)
    run.ready = [ENDED]
    run.ack(BATCH, "1:0")
    run.ack(COMMIT, "1:0")
    run.do(run.machine.deactivate(0))
    assert run.machine.over
    run.ready = [READY]
    run.do(run.machine.activate(0))
    assert (run.machine.over, run.asked[-1], run.sent[-1]) == (False, 2, "$batch 2:0")


# -- the record -----------------------------------------------------------------------------------------------------------


def test_success_removes_the_tries_of_the_batch_from_the_record():
    run = Driven(max_pending=3)
    for txid in range(1, 50):
        run.ack(BATCH, f"{txid}:0")
        run.ack(COMMIT, f"{txid}:0")
        assert run.saved is not None
        assert sorted(run.saved.tries) == [txid + 1, txid + 2, txid + 3]


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        "x",
        b"\x80\x05",
        {"format": 2, "current": 1, "tries": []},
        {"format": 1, "current": 0, "tries": []},
        {"format": 1, "current": "1", "tries": []},
        {"format": 1, "current": True, "tries": []},
        {"format": 1, "tries": []},
        {"format": 1, "current": 1},
        {"format": 1, "current": 1, "tries": {"1": 0}},
        {"format": 1, "current": 1, "tries": [[1, 0]]},
        {"format": 1, "current": 1, "tries": [[1, -1, 0, False, ""]]},
        {"format": 1, "current": 1, "tries": [[1, 0, 0, 0, ""]]},
        {"format": 1, "current": 1, "tries": [[1, 0, 0, False, None]]},
        {"format": 1, "current": 1, "tries": [[1, 0, 1, False, "", False]]},
        {"format": 1, "current": 1, "tries": [[1, 0, 1, True, "", True]]},
        {"format": 1, "current": 1, "tries": [[1, 0, 1, False, "", True, True]]},
        {"format": 1, "current": 2, "tries": [[1, 0, 0, False, ""]]},
        {"format": 1, "current": 1, "tries": [[1, 0, 0, False, ""], [3, 0, 0, False, ""]]},
    ],
)
def test_a_damaged_coordinator_record_is_an_error_and_resets_nothing(data):
    with pytest.raises(CorruptStateError, match=r"nothing was reset|use the version that wrote it"):
        CoordinatorRecord.of(data)


def test_a_coordinator_record_is_plain_data_and_is_read_back_equal():
    record = CoordinatorRecord(7, {7: Tries(3, 2, True, "x"), 8: Tries(1), 9: Tries(1, 2, False, "x", True)})
    assert CoordinatorRecord.of(record.plain()) == record
    assert record.plain()["tries"][:2] == [[7, 3, 2, True, "x"], [8, 1, 0, False, ""]], "as earlier versions read them"
    assert CoordinatorRecord.of(None) == CoordinatorRecord(1, {})


# -- the table and the config ---------------------------------------------------------------------------------------------


def test_every_status_that_waits_for_an_answer_has_a_transition_for_ack_and_fail():
    for status, cause in product(ANSWERS, (BatchCause.ACKED, BatchCause.FAILED)):
        assert (status, cause) in TRANSITIONS


def test_each_stream_is_emitted_by_exactly_one_transition():
    sends = [row.sends for row in TRANSITIONS.values() if row.sends]
    assert sorted(sends, key=lambda stream: stream.value) == sorted(CoordinatorStream, key=lambda stream: stream.value)


def test_every_failure_transition_leads_back_to_waiting():
    for (status, cause), row in TRANSITIONS.items():
        assert (cause in (BatchCause.FAILED, BatchCause.EARLIER_FAILED)) == (row.then is Status.WAITING)
        assert status is not Status.DONE


def mermaid() -> str:
    """Return TRANSITIONS as a state diagram, as in the docs."""
    lines = ["stateDiagram-v2", f"    [*] --> {Status.WAITING.value}"]
    for (status, cause), row in TRANSITIONS.items():
        sends = f" / {row.sends.value}" if row.sends else ""
        lines.append(f"    {status.value} --> {row.then.value}: {cause.value}{sends}")
    return "\n".join([*lines, f"    {Status.DONE.value} --> [*]"])


def test_the_state_diagram_in_the_docs_equals_the_transition_table():
    page = (Path(__file__).parents[2] / "docs" / "inside_trident.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{mermaid()}\n```" in page


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"max_pending": 0}, r"topology\.max\.spout\.pending"),
        ({"max_pending": True}, "max_pending"),
        ({"interval_ms": -1}, r"topology\.trident\.batch\.emit\.interval\.millis"),
        ({"poll_ms": 0}, "poll_ms"),
        ({"interval_ms": 0.5}, "interval_ms"),
        (
            {"on_failure": "stop"},
            r"on_failure is OnFailure\.STOP or OnFailure\.SKIP, got 'stop'; write OnFailure\.STOP",
        ),
        (
            {"on_failure": "Skip"},
            r"on_failure is OnFailure\.STOP or OnFailure\.SKIP, got 'Skip'; write OnFailure\.SKIP",
        ),
        ({"retry": None}, r"retry is a RetryPolicy, got None; .*RetryPolicy\(None\) for no limit"),
        ({"retry": 3}, "retry is a RetryPolicy, got 3"),
        ({"on_failure": True}, r"on_failure is OnFailure\.STOP or OnFailure\.SKIP, got True; write OnFailure\.STOP"),
    ],
)
def test_an_invalid_setting_is_refused(option, named):
    with pytest.raises(ConfigError, match=named):
        CoordinatorConfig(**option)


def test_readiness_is_asked_once_until_it_is_answered():
    machine = MasterBatchCoordinator(CoordinatorConfig(interval_ms=0))
    assert list(machine.tick(0)) == [AskReady(1)]
    assert list(machine.tick(1_000)) == []
    assert machine.next_deadline_ms() is None
