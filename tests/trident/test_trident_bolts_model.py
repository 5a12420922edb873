"""TridentBoltExecutor compared with a slow model that keeps every message and examines all of them each time."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

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

TIMEOUT_MS = 50
SIZE = 2


class Model:
    """One attempt: all its messages."""

    def __init__(self, begun_ms: int) -> None:
        self.begun_ms = begun_ms
        self.numbers: dict[str, set[int]] = {}
        self.reports: set[str] = set()
        self.commit = False
        self.ended = ""

    def has_all_of(self, senders: Any) -> bool:
        return all(each in self.reports and self.numbers.get(each, set()) == set(range(SIZE)) for each in senders)


class OneTask(RuleBasedStateMachine):
    """Every upstream task sends two tuples of a batch. `open` are the messages that were neither acked nor failed."""

    @initialize(
        reports=st.sets(st.sampled_from("ab")),
        commit_reports=st.sets(st.sampled_from("pq")),
        commits=st.booleans(),
    )
    def begin(self, reports: set[str], commit_reports: set[str], commits: bool) -> None:
        if not reports and not commit_reports:
            reports = {"a"}
        self.spec = CoordSpec(reports, commits=commits, commit_reports=commit_reports, targets=["x"])
        self.machine = TridentBoltExecutor({"g": self.spec}, TIMEOUT_MS)
        self.models: dict[int, tuple[int, Model]] = {}
        self.over = 0
        self.begun: set[Any] = set()
        self.open: dict[str, TransactionAttempt] = {}
        self.sent: list[tuple[Any, ...]] = []
        self.now = 0
        self.count = 0

    # -- messages ------------------------------------------------------------------------------------------------------

    @rule(
        txid=st.integers(1, 2), attempt=st.integers(0, 1), which=st.integers(0, 3), fails=st.sampled_from([0, 0, 0, 1])
    )
    def a_tuple_arrives(self, txid: int, attempt: int, which: int, fails: int) -> None:
        senders = sorted(self.spec.reports | self.spec.commit_reports)
        self.feed("tuple", TransactionAttempt(txid, attempt), senders[which % len(senders)], which % SIZE, bool(fails))

    @rule(txid=st.integers(1, 2), attempt=st.integers(0, 1), first=st.integers(0, 3))
    def all_messages_of_a_task_arrive(self, txid: int, attempt: int, first: int) -> None:
        senders = sorted(self.spec.reports | self.spec.commit_reports)
        sender = senders[first % len(senders)]
        for number in range(SIZE):
            self.feed("tuple", TransactionAttempt(txid, attempt), sender, (number + first) % SIZE, False)
        self.feed("report", TransactionAttempt(txid, attempt), sender, self.new_message(), False)

    @rule(txid=st.integers(1, 2), attempt=st.integers(0, 1), which=st.integers(0, 3))
    def a_report_arrives(self, txid: int, attempt: int, which: int) -> None:
        senders = sorted(self.spec.reports | self.spec.commit_reports)
        self.feed("report", TransactionAttempt(txid, attempt), senders[which % len(senders)], self.new_message(), False)

    @rule(txid=st.integers(1, 2), attempt=st.integers(0, 1), fails=st.booleans())
    @precondition(lambda self: self.spec.commits)
    def a_commit_arrives(self, txid: int, attempt: int, fails: bool) -> None:
        self.feed("commit", TransactionAttempt(txid, attempt), "", self.new_message(), fails)

    @rule(ms=st.sampled_from([1, 20, TIMEOUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        for txid, (_, model) in list(self.models.items()):
            if self.now - model.begun_ms >= TIMEOUT_MS:
                del self.models[txid]
        seen = self.do(self.machine.tick(self.now), False)
        assert not seen & {"execute", "finish", "ack"}

    @rule(txid=st.integers(1, 2), attempt=st.integers(0, 1), rare=st.integers(0, 5))
    def a_success_arrives(self, txid: int, attempt: int, rare: int) -> None:
        if not rare:
            self.over = max(self.over, txid)
            self.models = {each: model for each, model in self.models.items() if each > txid}
            self.do(self.machine.success(BatchId("g", TransactionAttempt(txid, attempt)), self.now), False)

    # -- the model -----------------------------------------------------------------------------------------------------

    def new_message(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def feed(self, kind: str, attempt: TransactionAttempt, sender: str, rest: Any, fails: bool) -> None:
        txid, number = attempt
        known = self.models.get(txid)
        late = txid <= self.over or (known is not None and known[0] > number)
        if not late and (known is None or known[0] < number):
            self.models[txid] = number, Model(self.now)
        model = None if late else self.models[txid][1]
        repeated = model is not None and self.note(model, kind, sender, rest)
        if kind != "tuple" and not repeated:
            self.open[rest] = attempt
        if kind == "tuple":
            effects = self.machine.arrive(BatchId("g", attempt), sender, rest, rest, self.now)
        elif kind == "report":
            effects = self.machine.report(BatchId("g", attempt), sender, SIZE, rest, self.now)
        else:
            effects = self.machine.commit(BatchId("g", attempt), rest, self.now)
        seen = self.do(effects, fails)
        if model is None:
            assert not seen & {"execute", "finish", "begin"}
            assert rest not in self.open
            return
        self.compare(model, kind, sender, rest, repeated, fails, seen)

    def note(self, model: Model, kind: str, sender: str, rest: Any) -> bool:
        """Record a message; return whether it was received before."""
        if kind == "tuple":
            repeated = rest in model.numbers.get(sender, set())
            if not model.ended:
                model.numbers.setdefault(sender, set()).add(rest)
            return repeated
        if kind == "report":
            repeated = sender in model.reports
            model.reports.add(sender)
            return repeated
        return model.commit and model.ended != "failed"

    def compare(
        self, model: Model, kind: str, sender: str, rest: Any, repeated: bool, fails: bool, seen: set[str]
    ) -> None:
        assert ("execute" in seen) == (kind == "tuple" and not model.ended and not repeated)
        if repeated or model.ended:
            assert "finish" not in seen
            assert model.ended != "failed" or repeated or rest not in self.open
            return
        spec, arrived = self.spec, model.has_all_of(self.spec.reports)
        if kind == "commit":
            if not arrived:
                assert rest not in self.open, "what has not arrived is not committed"
                return
            model.commit = True
        lost = kind == "report" and model.numbers.get(sender, set()) != set(range(SIZE))
        failed = lost or ("execute" in seen and fails)
        complete = arrived and (model.commit or not spec.commits) and model.has_all_of(spec.commit_reports)
        assert ("finish" in seen) == (complete and not failed)
        if failed or ("finish" in seen and fails):
            model.ended = "failed"
        elif complete:
            model.ended = "finished"
            assert seen >= {"finish", "report", "ack", "forget"}

    def do(self, effects: Any, fails: bool) -> set[str]:
        seen = set()
        for effect in effects:
            seen.add(type(effect).__name__.lower())
            match effect:
                case Begin(batch):
                    assert batch not in self.begun
                    self.begun.add(batch)
                case Forget(batch):
                    self.begun.remove(batch)
                case Execute(batch, _) | Finish(batch):
                    assert batch in self.begun
                    if fails:
                        self.machine.failed(batch, "x")
                case Report(_, _, _, message):
                    assert message in self.open
                case Ack(message) | Fail(message, _):
                    del self.open[message]
        self.machine.check()
        assert len(self.open) <= 2 * len(self.models) + 1
        return seen

    def teardown(self) -> None:
        """After the timeout no message is open and no batch is held."""
        if hasattr(self, "machine"):
            self.time_passes(TIMEOUT_MS)
            assert (self.open, self.begun, len(self.machine._tracked)) == ({}, set(), 0)


TestOneTask = OneTask.TestCase
TestOneTask.settings = settings(stateful_step_count=40)
