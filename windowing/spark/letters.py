"""Dead letters: what the sink `"bolt.dead_letters"` gets, a row for each window, or each tuple, that failed for good.

bolt   task  window_start  window_end  window_key  error                      tuples (JSON)
count  0     0             10000       the         bolt 'count' failed on...  [{"word": "the", "at": 8000}]
split  1     -             -           -           5 attempts: too long       [{"component": "in", "stream": ...}]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from windowing.core.windows import TupleWindow
from windowing.topology.tuples import Tuple

__all__ = ["DEAD_LETTER_DDL", "Letter", "letter_of", "letter_of_window"]

DEAD_LETTER_DDL = (
    "bolt string, task int, window_start long, window_end long, window_key string, error string, tuples string"
)
Letter = dict[str, Any]
"""A row of these fields, in their order."""


def letter_of(bolt: str, task: int, error: str, tuples: Sequence[Tuple]) -> Letter:
    """Return the dead letter of tuples that failed outside a window."""
    told = [
        {"component": tuple.source_component, "stream": tuple.source_stream, "values": tuple.as_dict()}
        for tuple in tuples
    ]
    return _letter(bolt, task, error, told)


def letter_of_window(bolt: str, task: int, error: str, window: TupleWindow, has_tuples: bool) -> Letter:
    """Return the dead letter of a window; one of partials has no tuples to tell of."""
    told = [row._asdict() for row in window.get()] if has_tuples else None
    key = None if window.key is None else str(window.key)
    return _letter(bolt, task, error, told, window.start_timestamp, window.end_timestamp, key)


def _letter(
    bolt: str,
    task: int,
    error: str,
    told: list[Any] | None,
    start: int | None = None,
    end: int | None = None,
    key: str | None = None,
) -> Letter:
    return {
        "bolt": bolt,
        "task": task,
        "window_start": start,
        "window_end": end,
        "window_key": key,
        "error": error,
        "tuples": None if told is None else json.dumps(told, default=str),
    }
