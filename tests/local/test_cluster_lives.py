"""A cluster with states, recovered windows and windows on disk under random steps and crashes; the model is a list of ids.

The order of arrival cannot be predicted: failed tuples arrive later, unacked ones are replayed. So the model takes the order from
the windows themselves (the new tuples of each, one window after the other), and derives from it what every window must hold.
Each bolt has a source of its own, and the windows of `recent` stay in its state: otherwise an early ack would be hidden by the
other acks of its tree.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from windowing import count, millis, seconds, windowed_bolt
from windowing.errors import FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.stores.states import SqliteStateProvider
from windowing.testing.invariants import Watch, check_ids
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Spout
from windowing.topology.decorators import bolt, spout

LENGTH, SLIDE = 4, 2


def windows_of(order: list[int]) -> list[list[int]]:
    """The windows over tuples in this order of arrival, the last one at the end of the input."""
    ends = [*range(SLIDE, len(order) + 1, SLIDE), *([len(order) + 1] if len(order) % SLIDE else [])]
    return [order[max(end - LENGTH, 0) : end] for end in ends]


class Killed(BaseException):
    """The death of the process in the middle of a checkpoint."""


class DyingStates(SqliteStateProvider):
    """States whose process dies before write number `left`, where that is not None."""

    left: int | None = None

    def state(self, component: str, task: int, name: str = "state") -> Any:
        fresh = f"{component}/{task}/{name}" not in self._states
        state = super().state(component, task, name)
        if fresh:
            self.watch(state, "prepare_commit")
            self.watch(state, "commit")
        return state

    def pages(self, component: str, task: int) -> Any:
        fresh = (component, task) not in self._pages
        pages = super().pages(component, task)
        if fresh:
            for method in ("write", "flush", "prepare", "commit", "drop"):
                self.watch(pages, method)
        return pages

    def save_record(self, name: str, data: Any) -> None:
        self.die()
        super().save_record(name, data)

    def watch(self, thing: Any, method: str) -> None:
        call = getattr(thing, method)

        def watched(*arguments: Any) -> Any:
            self.die()
            return call(*arguments)

        setattr(thing, method, watched)

    def die(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1


class Refusing:
    """A bolt that refuses the n-th call of the named hook."""

    refused: tuple[str, int] = ("", 0)

    def pre_prepare(self, txid: int) -> None:
        self.agree("pre_prepare")

    def pre_commit(self, txid: int) -> None:
        self.agree("pre_commit")

    def pre_rollback(self) -> None:
        self.agree("pre_rollback")

    def agree(self, hook: str) -> None:
        name, left = Refusing.refused
        if hook == name:
            Refusing.refused = ("", 0) if left == 0 else (name, left - 1)
            if left == 0:
                raise FailedException("refused")


@bolt()
class Counting(Refusing):
    """A state that holds each tuple once, since it looks each up first."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> None:
        self.state.put(tuple["n"], True)


@bolt()
class Sink:
    """Keeps every window, and how often it arrived."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> None:
        key = tuple.source_component, tuple.source_task, tuple["number"]
        times = self.state.get(key, (0,))[0]
        self.state.put(key, (times + 1, tuple["shown"], tuple["new"], tuple["expired"]))


class Numbering(Refusing):
    """Numbers its windows in its state, and keeps them there or emits them."""

    emits = False

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, window: Any) -> Any:
        number = self.state.get("windows", 0)
        self.state.put("windows", number + 1)
        parts = [[row["n"] for row in part] for part in (window.get(), window.get_new(), window.get_expired())]
        if self.emits:
            return number, *parts
        self.state.put(number, (1, *parts))
        return None


def numbering(output: bool, **options: Any) -> type[Numbering]:
    fields = "number int, shown array<long>, new array<long>, expired array<long>"

    @windowed_bolt(length=count(LENGTH), slide=count(SLIDE), output=fields, name="numbering", **options)
    class Declared(Numbering):
        emits = output

    return Declared


BOLTS = "count", "recent", "disk"


class LivesMachine(RuleBasedStateMachine):
    """Steps, failures, checkpoints, crashes; in the end every tuple is in every state and window once."""

    @initialize(seed=st.one_of(st.none(), st.integers(0, 1000)), tasks=st.integers(1, 2), ids=st.booleans())
    def begin(self, seed: int | None, tasks: int, ids: bool) -> None:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.seed, self.tasks, self.ids = seed, tasks, ids
        self.clock = VirtualClock()
        self.waiting: dict[str, list[int]] = {name: [] for name in BOLTS}  # the queues: messages that are not acked
        self.fresh: dict[str, list[int]] = {}  # messages that this process has not emitted yet
        self.emitted = self.crashes = 0
        self.failing: set[int] = set()
        self.start()

    def queue(self, name: str) -> type[Spout]:
        waiting, fresh = self.waiting[name], self.fresh[name]

        @spout(output="n long")
        class Queue(Spout):
            def next_tuple(self) -> None:
                if fresh:
                    n = fresh.pop(0)
                    self.collector.emit(n, message_id=n)

            def ack(self, message_id: int) -> None:
                waiting.remove(message_id)

            def fail(self, message_id: int) -> None:
                fresh.append(message_id)

        return Queue

    def topology(self) -> Any:
        machine = self

        @bolt(output="n long")
        def failing(tuple: Any) -> int:
            if tuple["n"] in machine.failing:
                raise FailedException(str(tuple["n"]))
            return int(tuple["n"])

        builder = TopologyBuilder("lives").configure(
            message_timeout=seconds(600),
            max_attempts=None,
            retry_delay=millis(30),
            state_checkpoint_interval=millis(100),
        )
        known = {"message_id": "n"} if self.ids else {}
        disk = numbering(output=True, max_events_in_memory=1_000, **known)
        bolts = dict(zip(BOLTS, (Counting, numbering(output=False, message_id="n"), disk), strict=True))
        for name, declared in bolts.items():
            builder.set_spout(f"to_{name}", self.queue(name))
            builder.set_bolt(f"failing_{name}", failing, 2).fields_grouping(f"to_{name}", "n")
            builder.set_bolt(name, declared, self.tasks).fields_grouping(f"failing_{name}", "n")
        builder.set_bolt("sink", Sink).global_grouping("disk")
        return builder.build()

    def start(self) -> None:
        self.fresh = {name: list(waiting) for name, waiting in self.waiting.items()}
        Refusing.refused = ("", 0)
        self.states = DyingStates(self.folder / "states", "lives")
        self.cluster = LocalCluster(self.topology(), clock=self.clock, seed=self.seed, states=self.states)
        self.watch = Watch(self.cluster)

    @rule(fates=st.lists(st.booleans(), min_size=1, max_size=6))
    def feed(self, fates: list[bool]) -> None:
        """More tuples, some of which fail until `mend`."""
        new = range(self.emitted, self.emitted + len(fates))
        self.failing.update(n for n, fate in zip(new, fates, strict=True) if not fate)
        self.emitted += len(fates)
        for name in BOLTS:
            self.waiting[name] += new
            self.fresh[name] += new

    @rule()
    def mend(self) -> None:
        self.failing.clear()

    @rule(rounds=st.integers(1, 6))
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.step()

    @rule(ms=st.integers(1, 150))
    def pass_time(self, ms: int) -> None:
        self.cluster.run_for(millis(ms))

    @rule()
    def checkpoint(self) -> None:
        self.cluster.checkpoint()

    @rule(hook=st.sampled_from(["pre_prepare", "pre_commit"]), which=st.integers(0, 4), rounds=st.integers(0, 4))
    def refuse_a_checkpoint(self, hook: str, which: int, rounds: int) -> None:
        """The checkpoint is rolled back, or committed once more, in the running tasks; that may be refused too."""
        self.cluster.step()
        coordinator = self.cluster.task_set.coordinator
        assert coordinator is not None
        Refusing.refused = hook, which
        self.crashes += 1
        coordinator.take()
        Refusing.refused = ("pre_rollback" if hook == "pre_prepare" else hook), which
        for _ in range(rounds):
            self.cluster.step()
        self.cluster.checkpoint()
        Refusing.refused = ("", 0)

    @rule(rounds=st.integers(1, 6))
    def crash_after_a_checkpoint(self, rounds: int) -> None:
        """The checkpoint is taken in the middle of the work, and nothing comes after it."""
        for _ in range(rounds):
            self.cluster.step()
        coordinator = self.cluster.task_set.coordinator
        assert coordinator is not None
        coordinator.take()
        self.crash()

    @rule(writes=st.integers(0, 30))
    def crash_in_a_checkpoint(self, writes: int) -> None:
        """The process dies before a write, or before a page is written, and loses everything unprepared."""
        self.states.left = writes
        with pytest.raises(Killed):
            self.checkpoint_repeatedly()
        self.crash()

    def checkpoint_repeatedly(self) -> None:
        while True:
            self.cluster.checkpoint()

    @rule()
    def crash(self) -> None:
        self.states.close()
        self.crashes += 1
        self.start()

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "watch"):
            self.watch.check()
            errors = self.cluster.result.errors
            assert [error for error in errors if str(error.error.__cause__) != "[FAILED] refused"] == []

    def teardown(self) -> None:
        if not hasattr(self, "watch"):
            return
        try:
            self.failing.clear()
            self.cluster.run()
            self.watch.check()
            self.cluster.close()
            self.states.close()
            assert self.waiting == {name: [] for name in BOLTS}
            self.check_states()
        finally:
            shutil.rmtree(self.folder)

    def check_states(self) -> None:
        everything = range(self.emitted)
        with SqliteStateProvider(self.folder / "states", "lives") as states:
            counted = [n for task in range(self.tasks) for n, _ in states.state("count", task).items()]
            check_ids(everything, counted)
            emitted = sorted(states.state("sink", 0).items())
            disk = [[value for (_, of, _), value in emitted if of == id] for id in self.topology().task_ids["disk"]]
            states_of = [dict(states.state("recent", task).items()) for task in range(self.tasks)]
            recent = [[state[n] for n in range(state.get("windows", 0))] for state in states_of]
        assert sorted(n for found in recent for n in self.check_windows(found)) == list(everything)
        arrived = [n for found in disk for n in self.check_windows(found)]
        if self.ids or not self.crashes:
            assert sorted(arrived) == list(everything)
        else:  # without ids a tuple that was not acked in time is there twice
            assert set(arrived) == set(everything)

    def check_windows(self, found: list[Any]) -> list[int]:
        """Assert that these are all windows of one task, each once; return the order of arrival."""
        assert {times for times, *_ in found} <= {1}
        order = [n for _, _, new, _ in found for n in new]
        assert [shown for _, shown, _, _ in found] == windows_of(order)
        before: list[int] = []
        for _, shown, new, expired in found:
            assert shown == before[len(expired) :] + new
            assert expired == before[: len(expired)]
            before = shown
        return order


LivesMachine.TestCase.settings = settings(
    deadline=None, stateful_step_count=25, max_examples=max(settings().max_examples // 3, 10)
)
test_a_cluster_that_dies_by_chance_keeps_its_promises = LivesMachine.TestCase
