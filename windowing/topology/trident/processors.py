"""TridentProcessor: what one node of a group does with the tuples of a batch, as a machine; and the processors of single tuples.

    slot = start_batch(batch)
    execute(slot, rows, source) -> rows      any number of times; `source` is the input that the rows come from
    finish_batch(slot) -> rows               once, after all rows; of a committer: in the commit phase, in the order of the txids

Laws: all that a batch leaves behind until it is finished lies in its slot, so batches may run side by side, and one that fails
is dropped with its slot; rows may come in pieces of any size, with the same result; nothing here knows who runs it.
Source: Storm's `TridentProcessor`, `ProcessorContext`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from windowing.errors import shown
from windowing.topology.bolts import CallStyle
from windowing.topology.rows import RowError, refuse_awaitable
from windowing.topology.schema import Schema
from windowing.topology.trident.code import Code, Report, RowMaker, TaskCode, TridentOutput, unheard
from windowing.topology.trident.fields import Row
from windowing.transactions.attempt import TransactionAttempt

__all__ = [
    "Batch",
    "EachProcessor",
    "FilterProcessor",
    "KeepProcessor",
    "MapProcessor",
    "PeekProcessor",
    "PickProcessor",
    "TridentProcessor",
    "UserProcessor",
]


class Batch(NamedTuple):
    """Which batch a task works on: `id` is its attempt, or for a request of DRPC what the driver calls it.

    now_ms: the driver's clock, the same in every task and at every replay; None where it keeps none. as_of: the txid that was
    committed last, if no later one can be committed before this batch is; then queries see the states as that left them, at a
    replay too. None: as they are. drain: it is the last one, at the end of the input, so that windows fire what is left.
    """

    id: TransactionAttempt | Any
    now_ms: int | None = None
    as_of: int | None = None
    drain: bool = False

    @property
    def txid(self) -> int:
        """The number of the batch; 0 for a request of DRPC, which is no transaction."""
        return self.id.txid if isinstance(self.id, TransactionAttempt) else 0


class TridentProcessor:
    """A node of one task; by itself it lets pass what comes. report: takes what users' code reports, set by whoever drives it."""

    report: Report = staticmethod(unheard)

    def prepare(self, context: Any) -> None:
        """Get ready for batches: make the instances of the user's code. `context` is a TaskContext."""

    def start_batch(self, batch: Batch) -> Any:
        """Return the slot of a batch: what it keeps until it is finished."""

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        """Take in rows of one input and return what is emitted now."""
        return rows

    def finish_batch(self, slot: Any) -> list[Row]:
        """Return what is emitted at the end of a batch."""
        return []

    def take_late(self, slot: Any) -> list[Row]:
        """Return the late tuples of the batch that was just finished, each with its reason; only windows have some."""
        return []

    def cleanup(self) -> None:
        """Give back what `prepare` took."""


class KeepProcessor(TridentProcessor):
    """Lets everything pass: a merge, whose inputs have the same fields."""


class PickProcessor(TridentProcessor):
    """Some of the fields of each row."""

    def __init__(self, pick: Callable[[Row], Row]) -> None:
        self._pick = pick

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        return list(map(self._pick, rows))


class UserProcessor(TridentProcessor):
    """Calls a user's code on each row. `who` is what errors call it, `record` makes of a row what the code sees."""

    def __init__(self, who: str, code: Code, record: Callable[[Row], Any]) -> None:
        self._who, self._code, self._record = who, code, record
        self._task: TaskCode
        self._call: Callable[..., Any]

    def prepare(self, context: Any) -> None:
        self._task = self._code.open(self._who, context)
        self._call = self._task.call

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        emitted: list[Row] = []
        row: Row = ()
        try:
            for row in rows:
                self._one(row, emitted)
        except BaseException as problem:
            raise self._task.blame(problem, f"on {shown(self._record(row))}") from problem
        return emitted

    def cleanup(self) -> None:
        self._task.cleanup()

    def _one(self, row: Row, emitted: list[Row]) -> None:
        """Call the code on one row and append what comes of it."""
        raise NotImplementedError


class FilterProcessor(UserProcessor):
    """The rows of which the code says true."""

    def _one(self, row: Row, emitted: list[Row]) -> None:
        keeps = self._call(self._record(row))
        refuse_awaitable(keeps)
        if keeps:
            emitted.append(row)


class PeekProcessor(UserProcessor):
    """All rows, each shown to the code."""

    def _one(self, row: Row, emitted: list[Row]) -> None:
        refuse_awaitable(self._call(self._record(row)))
        emitted.append(row)


class MapProcessor(UserProcessor):
    """One new row for each."""

    def __init__(self, who: str, code: Code, record: Callable[[Row], Any], output: Schema) -> None:
        super().__init__(who, code, record)
        self._make = RowMaker(output).one

    def _one(self, row: Row, emitted: list[Row]) -> None:
        returned = self._call(self._record(row))
        if type(returned) is not tuple:
            refuse_awaitable(returned)
        emitted.append(self._make(returned))


class EachProcessor(UserProcessor):
    """For each row the rows that the code makes of it; with `keep` they are appended to the fields that are there."""

    def __init__(self, who: str, code: Code, record: Callable[[Row], Any], output: Schema, keep: bool) -> None:
        super().__init__(who, code, record)
        self._keep, self._output = keep, output
        self._collects = code.style is CallStyle.COLLECTOR
        self._make = RowMaker(output).rows

    def _one(self, row: Row, emitted: list[Row]) -> None:
        tuple = self._record(row)
        made = self._collected(tuple) if self._collects else self._make(self._call(tuple))
        emitted.extend(map(row.__add__, made) if self._keep else made)

    def _collected(self, tuple: Any) -> list[Row]:
        collector = TridentOutput(self._output, self.report)
        returned = self._call(tuple, collector)
        refuse_awaitable(returned)
        if returned is not None:
            raise RowError(f"it takes a collector, yet it returned {shown(returned)}; emit rows and return nothing")
        return collector.take()
