"""Dead letters: messages, tuples and windows that were given up, on the stream `dead_letters` of every component, on both runtimes.

    component  task  attempts  error                      window_start  window_end  window_key  tuples (JSON)
    split      1     5         too long                   -             -           -           [{"component": "in", ...}]
    count      0     1         bolt 'count' failed on...  0             10000       the         [{"word": "the", "at": 8000}]

A message, or a tuple, that failed in every attempt (in one process also one that no spout sends again) goes to the stream of the
component that failed it, or in which its tree was last seen. A window that failed goes, with `on_error="dead_letter"`, to the
stream of its bolt; if its tuples fail, those that no spout sends again do. Bolts subscribe to it like to any other stream.

Law: the source's tuple of a dead letter is acked only when all subscribers have acked the dead letter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windowing.codec import LONG_BITS
from windowing.errors import ConfigError, UnreadableValueError, represented
from windowing.schema.rows import field_names
from windowing.schema.tuples import Tuple
from windowing.schema.types import Schema
from windowing.windows.events import TupleWindow

DEAD_LETTERS = "dead_letters"
"""The name of the stream; no component may declare a stream of this name."""

DEAD_LETTER_FIELDS = Schema.parse(
    "component string, task int, attempts int, error string, window_start long, window_end long, window_key string, "
    "tuples string"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message, tuple or window that was given up.

    task: None for a message, of which only the component is known. tuples: the rows of a window, None if it holds partials; else
    the one Tuple that failed, or for a message of a spout the Tuple that the spout emitted under `message_id`. error: the exception
    of the bolt, or the reason in words. window_end: None if it is not a window.

    >>> letter = DeadLetter(component="count", task=0, error="no", tuples=[{"n": 1}], window_start=0, window_end=10)
    >>> letter.row()
    ('count', 0, 1, 'no', 0, 10, None, '[{"n": 1}]')
    """

    component: str
    task: int | None
    attempts: int = 1
    error: BaseException | str
    tuples: Sequence[Any] | None
    window_start: int | None = None
    window_end: int | None = None
    window_key: Any = None
    message_id: Any = None

    @classmethod
    def of_window(cls, bolt: str, task: int, error: BaseException | str, window: TupleWindow) -> DeadLetter:
        """Return the dead letter of a window on which a bolt failed; it copies the tuples and does not keep the window."""
        return cls(
            component=bolt,
            task=task,
            error=error,
            tuples=None if (held := tuples_of(window)) is None else list(held),
            window_start=window.start_timestamp,
            window_end=window.end_timestamp,
            window_key=window.key,
        )

    @property
    def is_window(self) -> bool:
        """Whether a window failed, and not a single tuple."""
        return self.window_end is not None

    @property
    def is_message(self) -> bool:
        """Whether it is a message of a spout, given up after attempts of its whole tree."""
        return self.task is None

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the single tuple that failed. Raises ConfigError for a window."""
        if self.is_window or self.tuples is None:
            raise ConfigError(
                f"a window of {self.component!r} failed, which has no values of its own; its rows are in tuples"
            )
        return tuple(self.tuples[0])

    def row(self) -> tuple[Any, ...]:
        """Return the row of the stream. Cost: JSON of its tuples."""
        rows = None if self.tuples is None else [self._as_plain(each) for each in self.tuples]
        return (
            self.component,
            self.task,
            self.attempts,
            as_json(self.error),
            self.window_start,
            self.window_end,
            None if self.window_key is None else as_json(self.window_key),
            None if rows is None else json.dumps(_plain(rows), default=as_json),
        )

    def _as_plain(self, row: Any) -> Any:
        """Return a row as a dict by name, where it has names; a single tuple with its component and stream."""
        if isinstance(row, Tuple) and not self.is_window:
            return {"component": row.source_component, "stream": row.source_stream, "values": _named(row)}
        return _named(row)


def as_json(value: Any) -> str:
    """Return a value as text that UTF-8 can encode, even if its `__str__` raises."""
    return represented(value, str).encode("utf-8", "backslashreplace").decode("utf-8")


def _named(row: Any) -> Any:
    """Return the values of a row by name; a value that cannot be read (spark/unreadable.py) is replaced by its repr."""
    by_name = getattr(row, "_asdict", None)
    try:
        return row if by_name is None else by_name()
    except UnreadableValueError:
        return dict(zip(field_names(row), tuple.__iter__(row._values if isinstance(row, Tuple) else row), strict=True))


def _plain(value: Any) -> Any:
    """Return a value as JSON data: keys of a map become texts, and so do ints with too many digits, NaN and infinity, as Spark
    reads them.
    """
    if isinstance(value, Mapping):
        names = list(map(as_json, value))
        if len({*names}) < len(names):  # 1 and "1", say
            names = list(map(repr, value))
        return dict(zip(names, map(_plain, value.values()), strict=True))
    if type(value) is int and value.bit_length() > LONG_BITS:
        return as_json(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def tuples_of(window: TupleWindow) -> Sequence[Any] | None:
    """Return the tuples of a window, None if it holds partials."""
    try:
        tuples: Sequence[Any] = window.get()
    except TypeError:  # panes of an aggregate hold no tuples
        return None
    return tuples
