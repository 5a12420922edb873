"""Histories: the events of a replayed case in a form in which two runs of it can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.windows.lossless_model import ModelResult
from windowing.testing.replay import LosslessReplay, runs_of

History = dict[int, tuple[list[Any], list[Any], list[Any]]]
"""By op: activations in order, expired ids sorted, late ids in order."""


def by_op(events: Iterable[list[Any]]) -> History:
    """Return events by op; the order of expiries within one op is free, that of windows is not.

    >>> by_op([[3, "expire", [2, 1]], [3, "activate", [2], [2], [], 9], [3, "expire", [0]]])
    {3: ([[[2], [2], [], 9]], [0, 1, 2], [])}
    """
    history: History = {}
    for op, kind, *what in events:
        activations, expired, late = history.setdefault(op, ([], [], []))
        if kind == "activate":
            activations.append(what)
        elif kind == "expire":
            expired.extend(what[0])
        else:
            late.append(what[0])
    for _, expired, _ in history.values():
        expired.sort()
    return history


def counts_of(result: ModelResult) -> dict[str, int]:
    """Return the counts of a case by the model, in the form of WindowedBoltExecutor.counts."""
    shown, skipped, pending, late = (
        len(ids) for ids in (result.shown, result.skipped, result.pending, result.late_reasons)
    )
    return {
        "in": shown + skipped + pending + late,
        "shown": shown,
        "skipped": skipped,
        "pending": pending,
        "expired": len(result.expired),
        "late": late,
        "fired": sum(event[1] == "activate" for event in result.events),
    }


def moved(case: Mapping[str, Any], by_ms: int) -> dict[str, Any]:
    """Return the case with all its times moved by `by_ms`."""
    time_at = {"clock": 1, "tuple": 3}
    ops = [
        [*op[:at], op[at] + by_ms, *op[at + 1 :]] if (at := time_at.get(op[0])) is not None else op
        for op in case["ops"]
    ]
    return {**case, "clock_start_ms": case["clock_start_ms"] + by_ms, "ops": ops}


FAR_MS = [2**62 - 10**14, -(2**62) + 10**14]
"""Cases that are moved by so much are near the largest or the smallest timestamp."""


def run_steps(case: Mapping[str, Any], run: LosslessReplay | None = None) -> Iterator[list[list[Any]]]:
    """Yield the events of each op (of each batch in a batched case), and `check` the executor after it."""
    run = run or LosslessReplay(case)
    for first, ops in runs_of(case):
        events = run.feed(first, ops)
        run.executor.check()
        yield events
