"""The executor compared with the slow model in a state machine: every step is compared, and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.windows.histories import by_op, counts_of
from tests.windows.lossless_model import LosslessModel
from windowing.testing.replay import LosslessReplay, config_of
from windowing.testing.strategies import cases
from windowing.windows import aggregate as agg
from windowing.windows.events import Expired

EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
)
DELTAS = st.sampled_from([0, 1, -1, 2, 5, -3, 10, -10, 30])
KEYS = st.sampled_from("abc")


class Sums(LosslessReplay):
    """The same windows with aggregate=; expiries are numbers, which the counts contain."""

    def _events(self, index: int, effect: Any) -> Iterator[list[Any]]:
        return iter(()) if isinstance(effect, Expired) else super()._events(index, effect)


class EngineBesideModel(RuleBasedStateMachine):
    """Tuples, batches, turns, ticks, drains and restarts, in any order."""

    @initialize(case=cases(mix=None, max_steps=0, drains=False, **EITHER))
    def declare(self, case: dict[str, Any]) -> None:
        self.case = {**case, "ops": []}
        self.run = LosslessReplay(self.case)
        self.model = LosslessModel(self.case)
        self.events: list[Any] = []
        self.ops = 0
        self.ids = 0
        self.front = self.clock = case["clock_start_ms"]
        self.sums = Sums(self.case, config_of(self.case, aggregate=agg.sum()), lambda w: [len(w), w.aggregate])

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(delta=DELTAS, key=KEYS, stream=st.integers(0, 2), source=st.integers(0, 1))
    def add(self, delta: int, key: str, stream: int, source: int) -> None:
        self.apply([self.tuple_op(delta, key, stream, source)])

    @rule(tuples=st.lists(st.tuples(DELTAS, KEYS, st.integers(0, 2), st.integers(0, 1)), min_size=2, max_size=8))
    def add_batch(self, tuples: list[tuple[int, str, int, int]]) -> None:
        self.apply([self.tuple_op(*each) for each in tuples])

    @rule()
    def turn(self) -> None:
        self.apply([["watermark"] if self.case["event_time"] else ["tick"]])

    @rule(delta=st.sampled_from([0, 1, 2, 7, 30]))
    def move_the_clock(self, delta: int) -> None:
        self.clock += delta
        self.apply([["clock", self.clock]])

    @rule()
    @precondition(lambda self: self.ids > 8)
    def drain(self) -> None:
        self.apply([["drain"]])

    @rule()
    def stop_and_resume(self) -> None:
        for run in (self.run, self.sums):
            saved = json.dumps(run.executor.snapshot())
            run.executor = run.build()
            run.executor.restore(json.loads(saved))
            assert json.dumps(run.executor.snapshot()) == saved

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_consistent(self) -> None:
        if not hasattr(self, "run"):
            return
        self.run.executor.check()
        self.sums.executor.check()
        assert self.run.executor.counts() == counts_of(self.model.result()) == self.sums.executor.counts()

    # -- performing operations -----------------------------------------------------------------------------------------

    def tuple_op(self, delta: int, key: str, stream: int, source: int) -> list[Any]:
        self.ids += 1
        options = {"key": key} if self.case.get("keyed") else {}
        if self.case.get("source"):
            options["source"] = source
        event_time = self.case["event_time"]
        if event_time is None:
            return ["add", self.ids, *([options] if options else [])]
        timestamp = self.front + delta
        self.front = max(self.front, timestamp)
        name = event_time["streams"][stream % len(event_time["streams"])]
        return ["tuple", name, self.ids, timestamp, *([options] if options else [])]

    def apply(self, ops: list[list[Any]]) -> None:
        first, seen = self.ops, len(self.model.events)
        for index, op in enumerate(ops, first):
            self.model.apply(index, op)
        self.ops += len(ops)
        expected = by_op(self.model.events[seen:])
        assert by_op(self.run.feed(first, ops)) == expected
        sums = [event[2:] for event in self.sums.feed(first, ops) if event[1] == "activate"]
        windows = [window for op in sorted(expected) for window in expected[op][0]]
        assert sums == [[len(current), sum(current), end] for current, _, _, end in windows]


TestEngineBesideModel = EngineBesideModel.TestCase
TestEngineBesideModel.settings = settings(stateful_step_count=40)
