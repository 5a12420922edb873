"""One place's turn in one batch, without Spark: rows of the wire in, rows of the wire out.

    rows, max, begin --> Subtopology of the unit: execute, learn, finish, commit --> rows, out, max, metric
    stored windows   -->                                                         --> stored windows

Law: what comes out is a function of (rows, batch, stored windows, states) alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from windowing.core.codec import dumps, frame, loads, unframe
from windowing.errors import CorruptStateError, ReportedFailedException
from windowing.spark.trident.packets import Packets, told, unpacked
from windowing.spark.wire import PLACES, Row
from windowing.topology.trident.processors import Batch
from windowing.topology.trident.subtopology import GroupBatch, Subtopology
from windowing.topology.trident.units import TridentUnits, UnitPlace

__all__ = ["TurnResult", "opened", "turn"]

_MAGIC = b"WNDT"
_IN_BATCH = ("fired", "late", "skipped", "expired")


class TurnResult(NamedTuple):
    """What a turn gave. windows: to be stored; None for a unit without windows."""

    rows: list[Row]
    windows: bytes | None


def turn(
    units: TridentUnits,
    place: UnitPlace,
    rows: list[Row],
    batch: Batch,
    states: Mapping[str, Any],
    windows: bytes | None,
    reported: list[BaseException],
) -> TurnResult:
    """Work on the rows of one place. Raises FailedException where the attempt fails, BoltError for other errors of users' code.

    states: the partitions that the place holds; windows: what the turn before has stored. reported: takes what users' code
    reports, in an attempt that fails too.
    """
    unit = place.unit
    subtopology = Subtopology(units.plan, unit.group.id, place.task, states, nodes=unit.nodes, out=unit.out)
    subtopology.prepare()
    try:
        what = f"windows of {unit.group.id}, task {place.task}"
        _restore(subtopology, windows, what)
        before = _counts(subtopology)
        packets = Packets(units, place.task, PLACES + place.number, batch, max(row.now for row in rows))
        for group in unit.group.batch_groups:
            found = subtopology.start_batch(group, batch)
            _feed(units, found, [row for row in rows if row.kind in ("rows", "max")])
            found.finish_batch()
            found.commit_batch()
            packets.emit(found.take())
        made = list(packets.finish())
        if not unit.keeps_window:
            return TurnResult(made, None)
        after = _counts(subtopology)
        numbers = {name: after[name] - before[name] for name in _IN_BATCH} | {"pending": after["pending"]}
        made += [told("metric", unit.group.id, number, source=name) for name, number in numbers.items()]
        return TurnResult(made, _snapshot(subtopology))
    except ReportedFailedException as problem:
        reported.append(problem)
        raise
    finally:
        reported[:0] = subtopology.take_reports()
        subtopology.cleanup()


@contextmanager
def opened(units: TridentUnits, place: UnitPlace) -> Iterator[dict[str, Any]]:
    """Open the partitions of states that a place holds; close them all at the end."""
    with ExitStack() as stack:
        states = {}
        for id in place.unit.states:
            plan = units.plan.states[id]
            state = states[id] = plan.spec.factory.make_state(place.task, plan.partitions)
            stack.callback(state.close)
        yield states


def _feed(units: TridentUnits, batch: GroupBatch, rows: list[Row]) -> None:
    for row in sorted(rows, key=lambda row: (int(row.stream), row.sender, row.sequence)):
        link = units.links[int(row.stream)]
        if link.batch_group != batch.batch_group:
            continue
        if row.kind == "rows":
            batch.execute(link, unpacked(row))
        else:
            batch.learn(link, {row.source: row.value})


def _restore(subtopology: Subtopology, stored: bytes | None, what: str) -> None:
    if stored is None:
        return
    kept = loads(unframe(_MAGIC, stored, what), what)
    for number, window in subtopology.windows().items():
        if str(number) not in kept:
            raise CorruptStateError(f"the {what} lack those of step {number}; put the checkpoint back from a copy")
        now = kept[str(number)]
        window.restore({"txid": now["txid"], "before": now["windows"], "now": now["windows"]})


def _snapshot(subtopology: Subtopology) -> bytes:
    kept = {}
    for number, window in subtopology.windows().items():
        found = window.snapshot()
        kept[str(number)] = {"txid": found["txid"], "windows": found["now"]}
    return frame(_MAGIC, dumps(kept))


def _counts(subtopology: Subtopology) -> dict[str, int]:
    """Return what became of the tuples of all windows of the unit, added up."""
    total: dict[str, int] = {}
    for window in subtopology.windows().values():
        for name, number in window.counts().items():
            total[name] = total.get(name, 0) + number
    return total
