"""State in a group: what is written in the commit phase, and what is asked in the processing phase.

    partition_persist   rows --kept--> commit phase: begin_commit, update_state(state, rows), commit --> new values
    state_query         rows --kept--> end of the batch: batch_retrieve(state, rows), one call --> rows with what was found

Laws: a state is written only in the commit phase, so in the order of the txids; every partition claims every batch, one without
tuples too, since an earlier attempt may have left some there. A query sees what was committed before.
Source: Storm's `PartitionPersistProcessor`, `StateQueryProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windowing.errors import BoltError, CheckpointError, StateError, shown
from windowing.topology.makers import copies_of
from windowing.topology.schema import Schema
from windowing.topology.trident.code import TridentOutput, raised
from windowing.topology.trident.fields import Row
from windowing.topology.trident.processors import Batch, TridentProcessor

__all__ = ["PersistProcessor", "QueryProcessor", "StatefulProcessor"]


class StatefulProcessor(TridentProcessor):
    """A node beside a state; the driver hands it the state of its partition, before `prepare`."""

    def __init__(self, who: str, state: str, record: Callable[[Row], Any], output: Schema) -> None:
        self._who, self.state_id, self._record, self._output = who, state, record, output
        self.state: Any = None

    def start_batch(self, batch: Batch) -> tuple[Batch, list[Row]]:
        return batch, []

    def execute(self, slot: tuple[Batch, list[Row]], rows: list[Row], source: int = 0) -> list[Row]:
        slot[1].extend(rows)
        return []

    def finish_batch(self, slot: tuple[Batch, list[Row]]) -> list[Row]:
        batch, rows = slot
        try:
            return self._work(batch, rows)
        except (StateError, CheckpointError):
            raise  # the driver knows it by its type: superseded, lost
        except BaseException as problem:
            raise raised(self._who, problem, f"on the {len(rows)} tuples of batch {shown(batch.id)}") from problem

    def _work(self, batch: Batch, rows: list[Row]) -> list[Row]:
        raise NotImplementedError


class PersistProcessor(StatefulProcessor):
    """Writes the batch into the state and returns what the updater emits: the new values."""

    def __init__(self, who: str, state: str, record: Callable[[Row], Any], output: Schema, updater: Any) -> None:
        super().__init__(who, state, record, output)
        self._updater = updater

    def prepare(self, context: Any) -> None:
        _hook(self._updater, "check_state", self.state)
        self._updater = copies_of(self._updater)()
        _hook(self._updater, "prepare", context)

    def cleanup(self) -> None:
        _hook(self._updater, "cleanup")

    def _work(self, batch: Batch, rows: list[Row]) -> list[Row]:
        collector = TridentOutput(self._output, self.report)
        self.state.begin_commit(batch.id)
        try:
            self._updater.update_state(self.state, list(map(self._record, rows)), collector)
            self.state.commit(batch.id)
        except BaseException:
            _hook(self.state, "rollback")  # else queries would see what was not committed
            raise
        return collector.rows


class QueryProcessor(StatefulProcessor):
    """Asks the state for all tuples of the batch at once, and appends to each what the function makes of its answer."""

    def __init__(self, who: str, state: str, record: Callable[[Row], Any], output: Schema, function: Any) -> None:
        super().__init__(who, state, record, output)
        self._function = function

    def prepare(self, context: Any) -> None:
        self._function = copies_of(self._function)()
        _hook(self._function, "prepare", context)

    def cleanup(self) -> None:
        _hook(self._function, "cleanup")

    def _work(self, batch: Batch, rows: list[Row]) -> list[Row]:
        if not rows:
            return []
        tuples = list(map(self._record, rows))
        state = self.state if batch.as_of is None else _AsOf(self.state, batch.as_of)
        answers = list(self._function.batch_retrieve(state, tuples))
        if len(answers) != len(tuples):
            raise BoltError(
                f"{self._who} was asked for {len(tuples)} tuples and gave {len(answers)} answers; batch_retrieve returns a list "
                "with one answer for each tuple, in their order"
            )
        collector = TridentOutput(self._output, self.report)
        emitted: list[Row] = []
        for row, tuple, answer in zip(rows, tuples, answers, strict=True):
            self._function.execute(tuple, answer, collector)
            emitted += map(row.__add__, collector.take())
        return emitted


class _AsOf:
    """A state as a txid left it; what is not asked by key is as it is."""

    def __init__(self, state: Any, txid: int) -> None:
        self._state, self._txid = state, txid

    def multi_get(self, keys: Any) -> Any:
        return self._state.multi_get(keys, as_of=self._txid)

    def get(self) -> Any:
        return self._state.get(as_of=self._txid)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def _hook(target: Any, method: str, *arguments: Any) -> None:
    written = getattr(target, method, None)
    if written is not None:
        written(*arguments)
