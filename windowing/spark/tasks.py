"""One task of a bolt without windows, within one batch: tuples in, rows out; what fails is tried again at once.

    tuple --> execute --> acked    its rows go out
                 ^  |
                 |  +---> failed   its rows are dropped, its writes to the state undone
                 +--------+        at most `max_attempts` times, then an error, or a dead letter

Laws: a batch is done or it is not: what a tuple has led to leaves with the batch. A failed attempt leaves nothing but what
the user's code did outside. Nobody waits for an ack beyond the batch: a Bolt that has neither acked nor failed a tuple when
its task has no more of them has failed it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from windowing.acking.retry import RetryPolicy
from windowing.core.checks import DEFAULT_STREAM
from windowing.errors import BoltError, FailedException, ReportedFailedException, shown
from windowing.spark.edges import NO_ROOTS, Roots, merged
from windowing.spark.values import TaskValues
from windowing.spark.wiring import Arrival
from windowing.topology.calls import BoltCaller, Emitted
from windowing.topology.context import TaskContext
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component
from windowing.topology.tuples import Tuple

__all__ = ["BoltTask", "Failure", "Letter", "letter_of"]

Failure = tuple[Tuple, str]
Letter = dict[str, Any]

_log = logging.getLogger("windowing.spark")
_UNSETTLED = "it was neither acked nor failed when its task had no more tuples"


class BoltTask:
    """A task of a BASIC_BOLT or a BOLT; `emit` takes its rows, each with the roots of what it is anchored to, `letter` the
    records of tuples that failed for good.

    letter None: such a tuple is an error. values: the task's state, if the bolt is stateful. Cost: a call of the user's code
    for each attempt, and the waits of `retry` between them.
    """

    def __init__(
        self,
        component: Component,
        context: TaskContext,
        retry: RetryPolicy,
        emit: Callable[[Emitted, Roots], None],
        letter: Callable[[Letter], None] | None,
        values: TaskValues | None = None,
    ) -> None:
        self._component, self._context, self._retry = component, context, retry
        self._emit, self._letter, self._values = emit, letter, values
        self._caller = BoltCaller(component)
        self._by_itself = component.kind is ComponentKind.BOLT
        self._collector = _Collector(self._caller, component.id)
        self.taken = self.failed = 0
        self._caller.open(context, self._collector)
        if values is not None:
            self._caller.hook("init_state", values)
            self._caller.prepare(context, self._collector)

    def take(self, tuples: Iterable[Tuple]) -> None:
        """Hand each tuple to the bolt, and again while it fails. Raises BoltError."""
        for tuple in tuples:
            self.taken += 1
            self._try(tuple)

    def close(self) -> None:
        """End the task's part of the batch: whatever is not settled now has failed; then `cleanup`."""
        for tuple in self._collector.unsettled():
            self._give_up(tuple, 1, _UNSETTLED)
        self._caller.close()

    def commit(self, txid: int) -> None:
        """Call the hooks of a stateful bolt before its state is written. Source: Storm's `IStatefulComponent`."""
        self._caller.hook("pre_prepare", txid)
        self._caller.hook("pre_commit", txid)

    def _try(self, tuple: Tuple) -> None:
        todo = [(tuple, 1)]
        while todo:
            current, attempt = todo.pop()
            for failed, reason in self._attempt(current):
                self.failed += 1
                number = attempt if failed is current else 1
                if self._retry.is_last(number):
                    self._give_up(failed, number, reason)
                    continue
                delay_ms = self._retry.delay_ms(number)
                if delay_ms:
                    time.sleep(delay_ms / 1000)
                todo.append((failed, number + 1))

    def _attempt(self, tuple: Tuple) -> list[Failure]:
        """Call the bolt once; return the tuples that it failed, with the reasons. Rows go out if this one did not fail."""
        if self._values is not None:
            self._values.begin()
        self._collector.begin(tuple if self._by_itself else None)
        failures: list[Failure] = []
        try:
            rows = self._caller.execute(tuple)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                _log.warning("bolt %r, task %d: %s", self._component.id, self._context.task, problem)
            rows, failures = [], [(tuple, shown(str(problem)))]
            self._collector.forget(tuple)
        own, failed = self._collector.end()
        failures += [(each, "the bolt failed it") for each in failed if not any(each is f for f, _ in failures)]
        if any(each is tuple for each, _ in failures):
            if self._values is not None:
                self._values.undo()
            return failures
        for row in rows:
            self._emit(row, _roots_of(tuple))
        for row, roots in own:
            self._emit(row, roots)
        return failures

    def _give_up(self, tuple: Tuple, attempts: int, reason: str) -> None:
        if self._letter is None:
            raise BoltError(
                f"bolt {self._component.id!r} failed {shown(tuple)} in each of {attempts} attempts: {reason}; the batch is "
                f"not committed. To go on without such tuples give them a sink: "
                f"sinks={{'{self._component.id}.dead_letters': ...}}"
            )
        self._letter(letter_of(self._component.id, self._context.task, f"{attempts} attempts: {reason}", [tuple]))


def letter_of(bolt: str, task: int, error: str, tuples: Sequence[Tuple]) -> Letter:
    """Return the dead letter of tuples that failed outside a window, as DEAD_LETTER_DDL has it."""
    told = [
        {"component": tuple.source_component, "stream": tuple.source_stream, "values": tuple.as_dict()}
        for tuple in tuples
    ]
    return {
        "bolt": bolt,
        "task": task,
        "window_start": None,
        "window_end": None,
        "window_key": None,
        "error": error,
        "tuples": json.dumps(told, default=str),
    }


def _roots_of(tuple: Tuple) -> Roots:
    return tuple.roots if isinstance(tuple, Arrival) else NO_ROOTS


def _anchored_to(anchors: Tuple | Iterable[Tuple]) -> Roots:
    if isinstance(anchors, Tuple):
        return _roots_of(anchors)
    return merged(map(_roots_of, anchors))


_Anchored = tuple[Emitted, Roots]
_Ended = tuple[list[_Anchored], list[Tuple]]


class _Collector:
    """What a Bolt that acks by itself emits to. Of the anchors only the roots are kept: within the batch the batch is the tree."""

    def __init__(self, caller: BoltCaller, component: str) -> None:
        self._caller, self._who = caller, component
        self._open: dict[int, Tuple] = {}
        self._rows: list[_Anchored] = []
        self._failed: list[Tuple] = []

    def emit(
        self, values: Any, *, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit a row; it has no tasks to tell of yet, so the answer is empty."""
        row = Emitted(stream, self._caller.outlet.checked(values, stream, False))
        self._rows.append((row, _anchored_to(anchors)))
        return ()

    def emit_direct(
        self, task: int, values: Any, *, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a row to the task of this index."""
        row = Emitted(stream, self._caller.outlet.checked(values, stream, True), task)
        self._rows.append((row, _anchored_to(anchors)))

    def ack(self, tuple: Tuple) -> None:
        """Settle a tuple as done."""
        self._settle(tuple, "acked")

    def fail(self, tuple: Tuple) -> None:
        """Settle a tuple as failed: it is tried again when `execute` has returned."""
        self._settle(tuple, "failed")
        self._failed.append(tuple)

    def reset_timeout(self, tuple: Tuple) -> None:
        """Do nothing: a batch has no timeout."""

    def report_error(self, error: BaseException) -> None:
        """Log the error; nothing stops."""
        _log.warning("bolt %r reports %s: %s", self._who, type(error).__name__, error)

    def begin(self, tuple: Tuple | None) -> None:
        if tuple is not None:
            self._open[id(tuple)] = tuple

    def end(self) -> _Ended:
        rows, failed, self._rows, self._failed = self._rows, self._failed, [], []
        return rows, failed

    def forget(self, tuple: Tuple) -> None:
        self._open.pop(id(tuple), None)

    def unsettled(self) -> list[Tuple]:
        left = list(self._open.values())
        self._open.clear()
        return left

    def _settle(self, tuple: Tuple, how: str) -> None:
        if self._open.pop(id(tuple), None) is None:
            raise BoltError(
                f"bolt {self._who!r} {how} {shown(tuple)}, which is not open: it was settled before, or is no tuple of this "
                "batch; settle each tuple once"
            )
