"""A bolt's timestamp function, asked for each row: its answers are taken as the values of a field are, its failures are told.

    row --function--> 1_000, 1000.0, a datetime, ...  -->  milliseconds
                      None                            -->  None: the row has no timestamp          (invalid)
                      "soon", KeyError: 'att'         -->  None, and the first such case is kept   (invalid, and a warning)

Both runtimes ask here. With `on_invalid="raise"` the second and the third are an InvalidTimestampError, whose cause is the
function's error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from windowing.errors import InvalidTimestampError, shown
from windowing.topology.blame import blame, file_of
from windowing.topology.bolts import title_of
from windowing.topology.values import InvalidTimestampWarning, timestamp_of

__all__ = ["BOUND", "TIMELESS", "TimestampFunction", "holds_times", "warn_of"]

BOUND = 2**62
"""A usable timestamp lies in (-BOUND, BOUND)."""
TIMELESS = "no value of it is a timestamp; declare it long (milliseconds) or timestamp, or give a function of the tuple"
"""What is wrong with a timestamp field for whose type `holds_times` is False, and the way out."""
_TIMELESS = ("string", "binary", "boolean", "array<", "map<", "struct<")


class TimestampFunction:
    """Called with a row it returns milliseconds since 1970, or None. `problem` is the first failure since it was made.

    >>> stamp = TimestampFunction(lambda row: row["at"], "count")
    >>> stamp({"at": 3.0}), stamp({"at": "soon"}), stamp.problem
    (3, None, "bolt 'count': the timestamp function '<lambda>' gave 'soon' for {'at': 'soon'}")
    """

    def __init__(self, function: Callable[[Any], Any], bolt: str, on_invalid: str = "late") -> None:
        self._function, self._raises = function, on_invalid == "raise"
        self._bolt, self._name, self._file = bolt, title_of(function), file_of(function)
        self.problem: str | None = None

    def __call__(self, row: Any) -> int | None:
        """Ask for the timestamp of a row. Raises InvalidTimestampError with `on_invalid="raise"`. Cost: that of the call."""
        try:
            value = self._function(row)
            stamp = timestamp_of(value)
        except Exception as problem:
            where = f"in the timestamp function {self._name!r} on {shown(row)}"
            text = blame(f"bolt {self._bolt!r}", problem, where, self._file, (__file__,)).args[0]
            self._unusable(text, problem)
            return None
        if stamp is not None and -BOUND < stamp < BOUND:
            return stamp
        if value is None and not self._raises:
            return None
        gave = f"gave {shown(value)} for {shown(row)}"
        self._unusable(f"bolt {self._bolt!r}: the timestamp function {self._name!r} {gave}", None)
        return None

    def warn(self) -> None:
        """Say in the log of this process what the first failure was, if there was one."""
        if self.problem is not None:
            warn_of(self.problem)

    def _unusable(self, text: str, problem: Exception | None) -> None:
        if self._raises:
            raise InvalidTimestampError(
                f"{text}; wanted whole milliseconds since 1970, or a datetime; repair the function, or send such tuples to the "
                'side stream with on_invalid="late"'
            ) from problem
        self.problem = self.problem or text


def holds_times(kind: str) -> bool:
    """Return whether a value of this type, written as in a schema, can be a timestamp: a number, a date or a timestamp.

    >>> holds_times("bigint"), holds_times("decimal(18,0)"), holds_times("date"), holds_times("string")
    (True, True, True, False)
    """
    return not kind.startswith(_TIMELESS)


def warn_of(problem: str) -> None:
    """Warn that rows have no timestamp that can be found."""
    warnings.warn(f"{problem}; such rows are invalid", InvalidTimestampWarning, stacklevel=3)
