"""LoopedCluster: runs the tasks of a cluster in one process, round by round; the life cycle of such a cluster.

    round    read the clock; each task: tick if something is due, then one step      in a fixed order, or in a random one
    wait     until the nearest deadline: a VirtualClock is set to it, with any other clock the thread sleeps
    life     made --first call--> begun: every task opened --an error, close()--> over: everything closed, no more rounds

    thread A   run_for --round--round--+--------+--round--+---------+--round--> over      Turns: the calls of many threads
    thread B          ask() ------------> in A -> answer   |         |
    thread C                                 close() ------> in A -> |

Laws
- The same tasks, messages, seed and clock give the same rounds.
- One thread at a time runs the loop, and calls all user code. What other threads ask for meanwhile it does between two rounds: all
  that waits then, in order, and then a round follows. So neither a busy stream nor many requests stop the other.
- A thread that leaves the loop gives it to the first one that waits for it. No call waits for a loop that nobody runs.
- An exception that leaves a task ends the cluster. Then every opened task and every other held resource is closed exactly once,
  even if closing raises; the first exception is the one that is raised.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial, wraps
from threading import Event, Lock, get_ident
from typing import Any, ClassVar, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from windowing.errors import ConfigError, WindowingError, quote
from windowing.execution.metrics import LateLog
from windowing.local.clock import Clock, VirtualClock, clock_of, whole_ms
from windowing.local.router import Router
from windowing.local.tasks import NO_TIMEOUT_MS, Task
from windowing.schema.checks import StormNames, is_whole
from windowing.windows.measures import Duration, as_duration_ms

_LONGEST_SLEEP_MS = 86_400_000
_STILL_S = 10.0
"""A VirtualClock that stands still for so long, because tasks have messages, is reported once."""
_RUN = "with LocalCluster(topology) as cluster: cluster.run(). Name and settings are TopologyBuilder(name).configure({...})"
_END = "close(), or leave the with block"
_KEEP_LATE = "late_stream= of a bolt, and late_stream() of a window of Trident, keep them"
_CLOSED = "it was closed"
_log = logging.getLogger("windowing")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound="LoopedCluster")


class _WaitingCall:
    """A call that waits. work: what the thread that runs the loop does between two rounds; None for a call that runs the loop
    itself. ready: it is done, or `leads`: its thread has the loop now.
    """

    __slots__ = ("leads", "problem", "ready", "result", "thread", "work")

    def __init__(self, work: Callable[[], Any] | None) -> None:
        self.work, self.thread, self.ready = work, get_ident(), Event()
        self.leads = False
        self.result: Any = None
        self.problem: BaseException | None = None


class Turns:
    """Gives a loop to one thread at a time, first come, first served, and keeps the calls that wait. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.owner: int | None = None
        """The thread that has the loop."""
        self.arrival = Event()
        """Set while calls wait to be done between two rounds."""
        self._waiting: deque[_WaitingCall] = deque()

    def leave(self) -> None:
        """Give the loop to the first call that waits."""
        with self._lock:
            self.owner = None
            if self._waiting:
                first = self._waiting.popleft()
                self.owner, first.leads = first.thread, True
                first.ready.set()

    def done(self, work: Callable[[], _R], patience_s: float | None) -> _R:
        """Do `work` in this thread if the loop is free, else in the thread that has it; return its result. Raises TimeoutError if
        that is not done after `patience_s`.
        """
        if self.owner == get_ident():
            return work()
        call = self.enter(work)
        if call is None or self.wait(call, patience_s):
            try:
                return work()
            finally:
                self.leave()
        if call.problem is not None:
            raise call.problem
        result: _R = call.result
        return result

    def arrived(self) -> list[_WaitingCall]:
        """Take the calls to be done now."""
        with self._lock:
            self.arrival.clear()
            found = [call for call in self._waiting if call.work is not None]
            self._waiting = deque(call for call in self._waiting if call.work is None)
        return found

    def put_back(self, calls: Iterable[_WaitingCall]) -> None:
        """Let calls wait again, before all others: the thread that took them cannot do them."""
        with self._lock:
            self._waiting.extendleft([*calls][::-1])
            self.arrival.set()

    def sleep(self, seconds: float) -> None:
        """Sleep, until a call arrives."""
        self.arrival.wait(seconds)

    def enter(self, work: Callable[[], Any] | None) -> _WaitingCall | None:
        """Take the loop if it is free; else return a call that waits."""
        with self._lock:
            if self.owner is None:
                self.owner = get_ident()
                return None
            call = _WaitingCall(work)
            self._waiting.append(call)
            if work is not None:
                self.arrival.set()
            return call

    def wait(self, call: _WaitingCall, patience_s: float | None) -> bool:
        """Wait until the call is done; return True if this thread has the loop instead. Raises TimeoutError."""
        try:
            if not call.ready.wait(patience_s):
                raise TimeoutError
        except BaseException:
            with self._lock:
                if call in self._waiting:
                    self._waiting.remove(call)
            if call.leads:
                self.leave()
            raise
        return call.leads


def runs_loop(method: Callable[Concatenate[_C, _P], _R]) -> Callable[Concatenate[_C, _P], _R]:
    """Mark a method of a cluster that runs its loop: it waits until no other thread does. Refused within a round."""

    @wraps(method)
    def call(self: _C, /, *arguments: _P.args, **named: _P.kwargs) -> _R:
        if self.turns.owner == get_ident():
            if self._within:
                self.refuse_within(method.__name__)
            return method(self, *arguments, **named)
        waiting = self.turns.enter(None)
        if waiting is not None:
            self.turns.wait(waiting, None)
        try:
            result = method(self, *arguments, **named)
            if self.turns.arrival.is_set():
                self._serve()
            return result
        finally:
            self.turns.leave()

    return call


def checked_seed(seed: Any) -> int | None:
    """Return the seed of a run's order of steps, None for the fixed order. Raises ConfigError for anything but a whole number."""
    if seed is not None and not is_whole(seed):
        raise ConfigError(
            f"seed is a whole number, or None for the fixed order of steps, got {quote(seed)}; write seed=7"
        )
    return seed


class LoopedCluster(StormNames, ABC):
    """A cluster that runs its tasks round by round; a context manager.

    Any thread may call its methods: those with `runs_loop` take turns, the others are done between two rounds. After a `close` in
    there `run_for` returns what it has, and other calls raise WindowingError. User code within a round cannot run the loop; the
    cluster is closed after the round if it calls `close`.

    clock: default is the system's clock. seed: None keeps the fixed order of steps; with a number the router's random generator
    picks which task steps next and how many messages it takes.
    """

    tasks: Sequence[Task]
    """All tasks, in the order of a round; a subclass makes them."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "submitTopology submitTopologyWithOpts": _RUN,
        "killTopology killTopologyWithOpts shutdown": _END,
        "advanceClusterTime advanceTime": "run_for(seconds(10)), with clock=VirtualClock()",
        "rebalance": "max_task_parallelism= of the settings, and begin again",
    }

    def __init__(self, name: str, clock: Clock | None, router: Router, seed: int | None) -> None:
        self.clock = clock_of(clock)
        self._name, self._router, self._shuffled = name, router, seed is not None
        router.clock, router.now_ms = self.clock, whole_ms(self.clock.now_ms())
        self._opened: list[Task] = []
        router.late_log = LateLog(_log.warning, name, "result.late", _KEEP_LATE)
        self._closes: list[Callable[[], object]] = [router.late_log.end]
        """The close functions of all resources other than tasks, in the order of their calls."""
        self.turns = Turns()
        self._begun = False
        self._within = 0  # the calls of tasks and user code that are under way
        self._closing = False
        self._cause: BaseException | None = None
        self._reported_still = False
        self._quiet_polls = 0  # polls of idle spouts since a task handled a message
        self._over: str | None = None

    @abstractmethod
    def _take_hold(self) -> None:
        """Open the resources that must exist before any task is opened."""

    @abstractmethod
    def _switch(self, active: bool) -> None:
        """Begin if need be, and pause or resume the spouts."""

    @abstractmethod
    def _emissions(self) -> int:
        """Return how many tuples or batches the spouts have emitted so far; an endless spout adds to it in each round."""

    def __repr__(self) -> str:
        state = self._over or ("running" if self._begun else "not started")
        return f"{type(self).__name__}({self._name!r}, {len(self.tasks)} tasks, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @runs_loop
    def step(self) -> bool:
        """Make one round; return whether any task handled a message. It moves no VirtualClock: `run_for` does."""
        self._begin()
        return bool(self._guarded(self._round, self.tasks))

    def activate(self) -> None:
        """Resume the spouts; a Trident topology begins batches again."""
        self.turns.done(partial(self._switch, True), None)

    def deactivate(self) -> None:
        """Pause the spouts; messages in flight continue, and batches under way."""
        self.turns.done(partial(self._switch, False), None)

    def close(self) -> None:
        """Close everything without draining. Idempotent."""
        if self.turns.owner == get_ident() and self._within:
            self._closing = True
            self.turns.arrival.set()
        elif self._over is None:
            self.turns.done(self._close, None)

    def refuse_within(self, call: str) -> NoReturn:
        """Raise ConfigError: the thread that runs the loop calls this method from user code."""
        raise ConfigError(
            f"{call}() was called by user code within a round of topology {self._name!r}, and would wait for the end of this "
            "round; call it when step(), run_for() or run() has returned, or from a thread that nothing here waits for"
        )

    def _close(self) -> None:
        problem = None if self._over is not None else self._end(_CLOSED)
        if problem is not None:
            raise problem

    def _over_error(self) -> WindowingError:
        kind = type(self).__name__
        return WindowingError(
            f"the cluster of topology {self._name!r} is over: {self._over or 'it was stopped'}; make another {kind}"
        )

    def _begin(self) -> None:
        """Open everything at the first call. Raises WindowingError if the cluster is over."""
        if self._over is not None:
            raise self._over_error()
        if not self._begun:
            self._begun = True
            self._guarded(self._take_hold)
            for task in reversed(self.tasks):  # readers are opened before the tasks that emit to them
                self._opened.append(task)
                self._guarded(task.open)

    def _serve(self) -> None:
        """Do what other threads wait for, and close the cluster if user code has asked for it. An error that ends the cluster is
        raised here, and the thread that waits is told that the cluster is over.
        """
        calls = self.turns.arrived()
        for number, call in enumerate(calls):
            try:
                assert call.work is not None
                call.result = call.work()
            except BaseException as problem:
                call.problem = problem
                if problem is self._cause or not isinstance(problem, Exception):
                    call.problem = self._over_error()
                    self.turns.put_back(calls[number + 1 :])
                    raise
            finally:
                call.ready.set()
        if calls:
            time.sleep(0)  # the threads that wait get Python's lock now, not 5 ms later
        if self._closing:
            self._close()

    def _served(self) -> bool:
        """Serve other threads; return True. Raises WindowingError if that has closed the cluster."""
        self._serve()
        if self._over is not None:
            raise self._over_error()
        return True

    def _report_endless(self, began_s: float) -> None:
        """Log once that a call has taken long under a VirtualClock, because its spouts still emit."""
        if self._reported_still or not isinstance(self.clock, VirtualClock) or time.monotonic() - began_s < _STILL_S:
            return
        self._reported_still = True
        _log.warning(
            "topology %r: run() has taken %g s and %g s of the VirtualClock, and its spouts still emit; with a spout that does not "
            "end, call run_for(seconds(10)), which ends",
            self._name,
            _STILL_S,
            self.clock.now_ms() / 1000,
        )

    def _busy(self) -> None:
        """Make rounds until no task handles a message, and serve other threads before each."""
        self._begin()
        until_s = (
            math.inf
            if self._reported_still or not isinstance(self.clock, VirtualClock)
            else time.monotonic() + _STILL_S
        )
        while (not self.turns.arrival.is_set() or self._served()) and self._guarded(self._round, self.tasks):
            if time.monotonic() >= until_s:
                until_s, self._reported_still = math.inf, True
                _log.warning(
                    "topology %r: its tasks have had messages for %g s, and the VirtualClock stands still meanwhile: no window "
                    "over the clock fires, and nothing times out. With a spout that does not end, call run_for(seconds(10)), "
                    "which moves the clock and ends",
                    self._name,
                    _STILL_S,
                )

    def _round(self, tasks: Sequence[Task]) -> bool:
        """Tick each task that has something due, then let each task step; return whether any task handled a message."""
        router = self._router
        router.now_ms = max(router.now_ms, whole_ms(self.clock.now_ms()))
        for task in tasks:
            deadline_ms = task.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= router.now_ms:
                task.tick()
        if self._shuffled:
            order = router.random.sample(tasks, len(tasks))
            moved = sum(task.step(router.random.randint(1, 4)) for task in order) > 0
        else:
            moved = sum(task.step(None) for task in tasks) > 0
        if moved:
            self._quiet_polls = 0
        return moved

    def _wait(self, tasks: Iterable[Task], *more: int | None) -> bool:
        """Wait until the nearest deadline of the tasks and of `more`; return False if there is no deadline."""
        now_ms = self.clock.now_ms()
        nearest_ms = self._nearest_ms((*(task.next_deadline_ms() for task in tasks), *more))
        if nearest_ms is None:
            return False
        until_ms = max(now_ms, nearest_ms)
        if isinstance(self.clock, VirtualClock):
            self.clock.set(until_ms)
        else:
            self.turns.sleep(min(until_ms - now_ms, _LONGEST_SLEEP_MS) / 1000)
        return True

    def _nearest_ms(self, deadlines: Iterable[int | None]) -> int | None:
        """Return the nearest deadline; those of trees without a timeout are none."""
        last_ms = self.clock.now_ms() + NO_TIMEOUT_MS // 2
        return min((ms for ms in deadlines if ms is not None and ms < last_ms), default=None)

    def _pass_time(self, end_ms: int | None = None) -> bool:
        """Wait until the next deadline, but not past `end_ms`; return False if there is no deadline."""
        return self._wait(self.tasks, end_ms)

    def _run_for(self, span: Duration | timedelta) -> None:
        """Run for `span` of the clock. A VirtualClock moves 1 ms in each round that emits: an endless spout would stop time."""
        self._begin()
        end_ms = self.clock.now_ms() + as_duration_ms(span, "span")
        while self._over is None and self.clock.now_ms() < end_ms:
            before = self._emissions()
            if not self.step():
                self._pass_time(end_ms)
            elif isinstance(self.clock, VirtualClock) and self._emissions() > before:
                self.clock.set(self.clock.now_ms() + 1)
            if self.turns.arrival.is_set():
                self._serve()

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function; an exception from it ends the cluster."""
        self._within += 1
        try:
            return call(*arguments)
        except BaseException as problem:
            if self._over is None:  # the first exception is the cause
                self._cause = problem
                self._end(f"it ended with {type(problem).__name__}")
            raise
        finally:
            self._within -= 1

    def _end(self, why: str) -> BaseException | None:
        """Close everything that was opened, even if closing raises; return the first exception, or None."""
        self._over = why
        problems = []
        for close in (*(task.close for task in reversed(self._opened)), *self._closes):
            try:
                close()
            except BaseException as problem:
                problems.append(problem)
        return problems[0] if problems else None
