"""Classes as users write them with type hints; `make types` checks them with mypy --strict, and nothing runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, assert_type

import pyarrow as pa

from windowing import Bolt, OutputCollector, TopologyContext, Tuple, TupleWindow, bolt, seconds, tumbling
from windowing.stores import map_state
from windowing.trident import (
    BackingMap,
    Claim,
    CombinerAggregator,
    Fence,
    PartitionId,
    QueryFunction,
    Reading,
    State,
    StateFactory,
    StateRow,
    StateType,
    StateUpdater,
    TransactionAttempt,
    TridentCollector,
)


@tumbling(seconds(10), timestamp="at", output="n long")
def count(window: TupleWindow) -> int:
    return len(window)


@bolt(output="word string")
class Split(Bolt):
    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector

    def execute(self, row: Tuple) -> None:
        for word in row["sentence"].split():
            self.collector.emit((word,), anchors=row)
        self.collector.ack(row)


class Length(CombinerAggregator[int]):
    def init(self, row: Any) -> int:
        return len(row.word)

    def combine(self, one: int, other: int) -> int:
        return one + other

    def zero(self) -> int:
        return 0


class Table(State):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def begin_commit(self, txid: TransactionAttempt) -> None:
        pass

    def commit(self, txid: TransactionAttempt) -> None:
        pass


class Tables(StateFactory[Table]):
    kind = StateType.NON_TRANSACTIONAL

    def make_state(self, partition: int, partitions: int) -> Table:
        return Table()


class CountWords(StateUpdater[Table]):
    def update_state(self, state: Table, rows: Sequence[Any], collector: TridentCollector) -> None:
        for row in rows:
            state.counts[row.word] = state.counts.get(row.word, 0) + 1


class Counts(QueryFunction[Table]):
    def batch_retrieve(self, state: Table, rows: Sequence[Any]) -> list[int | None]:
        return [state.counts.get(row.word) for row in rows]

    def execute(self, row: Any, result: Any, collector: TridentCollector) -> None:
        collector.emit((result,))


class Text:
    name = "text"

    def encode(self, value: Any) -> bytes:
        return str(value).encode()

    def decode(self, blob: bytes, where: str) -> str:
        return blob.decode()


class Rows(BackingMap):
    def __init__(self, place: PartitionId) -> None:
        self.place = place
        self.fence: Fence | None = None
        self.rows: dict[bytes, StateRow] = {}

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        return Reading(self.fence, [self.rows.get(key) for key in keys])

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        self.rows.update({key: row for key, row in rows.items() if row is not None})
        return None

    def items(self) -> Any:
        return iter(sorted(self.rows.items()))

    def count(self) -> int:
        return len(self.rows)

    def close(self) -> None:
        pass


class Store:
    def open(self, place: PartitionId) -> Rows:
        return Rows(place)


made = [Split(), Length(), Tables(), CountWords(), Counts(), map_state(Store(), "counts", codec=Text())]


@tumbling(seconds(10), timestamp="at", columnar="numpy", output="total double, new long")
def total(window: TupleWindow) -> tuple[float, int]:
    return float(window.column("v").sum()), len(window.get_new()["v"])


@tumbling(seconds(10), timestamp="at", columnar="arrow", output="total double")
def total_of_frame(window: TupleWindow) -> float:
    return float(window.get().to_pandas()["v"].sum())


@tumbling(seconds(10), timestamp="at", columnar="arrow", output="rows long")
def rows_of_table(window: TupleWindow[pa.Table]) -> int:
    return int(window.get().num_rows)


class Order(NamedTuple):
    at: int
    amount: float


@tumbling(seconds(10), timestamp="at", output="most double")
def most(window: TupleWindow[Sequence[Order]]) -> float:
    return max(order.amount for order in window.get())


@tumbling(seconds(10), timestamp="at", output="first double, total double")
def totals(window: TupleWindow[Sequence[Order]]) -> tuple[float, float]:
    assert_type(window[:2], Sequence[Order])
    return window[0].amount, sum(assert_type(order, Order).amount for order in window)


@tumbling(seconds(10), timestamp="at", output="at long")
def wrong_field(window: TupleWindow[Sequence[Order]]) -> int:
    return int(window.get_new()[0].when)  # type: ignore[attr-defined] # an unused ignore is an error: so the checker knows the type


@tumbling(seconds(10), timestamp="at", on_error="skipp", output="n long")  # type: ignore[arg-type] # one of the words of OnError
def wrong_word(window: TupleWindow) -> int:
    return len(window)
