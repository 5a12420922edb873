"""The errors of the library: one class tree; each error has a stable code.

A message says what was given, what was wanted, and what to do. Text that comes from data is escaped and shortened, so an error
message is always one readable line.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

LIBRARY = __file__.removesuffix("errors.py")
"""The folder of this library, with which the names of its files begin."""


def quote(value: Any, limit: int = 200) -> str:
    """Return `value` for use in a message: its repr on one line, at most `limit` characters.

    >>> quote("a\\nb")
    "'a\\\\nb'"
    >>> len(quote("x" * 1000))
    200
    """
    text = " ".join(map(str.strip, represented(value, ascii).splitlines()))  # the repr of a DataFrame has several lines
    return text if len(text) <= limit else text[: limit - 3] + "..."


def represented(value: Any, make: Callable[[Any], str] = repr) -> str:
    """Return the repr of `value`, also for an int with more digits than Python prints, and for a `__repr__` that raises.

    >>> represented("a"), represented(10**5000)
    ("'a'", '<an int of 16610 bits>')
    """
    try:
        return make(value)
    except Exception as problem:
        if type(value) is int:
            return f"<an int of {value.bit_length()} bits>"
        return f"<a {type(value).__name__} whose repr raised {type(problem).__name__}>"


def printable(text: str, limit: int = 500) -> str:
    """Return `text` on one line, with unprintable characters as \\x.. escapes, at most `limit` characters."""
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def by_name(answers: Mapping[str, str]) -> dict[str, str]:
    """Return the answer for each name in a table whose keys are one name, or several with spaces between.

    >>> by_name({"size count": "len(window)", "rows": "get()"})
    {'size': 'len(window)', 'count': 'len(window)', 'rows': 'get()'}
    """
    return {name: answer for names, answer in answers.items() for name in names.split()}


def cause_of(problem: BaseException) -> str:
    """Return the message of a FailedException without its code."""
    return str(problem.args[0]) if problem.args and problem.args[0] else "it failed"


def describe_error(problem: BaseException) -> str:
    """Return the name and the message of `problem` on one line.

    >>> describe_error(KeyError("k")), describe_error(ValueError())
    ("KeyError: 'k'", 'ValueError')
    """
    try:
        message = str(problem)
    except Exception:
        message = "(its message cannot be made)"
    return f"{type(problem).__name__}: {printable(message)}" if message else type(problem).__name__


def with_causes(problem: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it, outermost first, each once."""
    seen: list[BaseException] = []
    found: BaseException | None = problem
    while found is not None and all(found is not each for each in seen):
        yield found
        seen.append(found)
        found = found.__cause__ or found.__context__


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that led here: that of the nearest caller outside this library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARY):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class WindowingError(Exception):
    """Base of every error that this library raises on purpose; `code` names its kind for programs."""

    code: ClassVar[str] = "WINDOWING"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"


class ConfigError(WindowingError, ValueError):
    """A window, a bolt or a query is declared in a way that cannot work."""

    code = "CONFIG"


class InvalidTimestampError(WindowingError, ValueError):
    """A tuple has no usable timestamp, and the bolt has `on_invalid="raise"`."""

    code = "TS_INVALID"


class UnreadableValueError(WindowingError, ValueError):
    """A bolt read a value that Spark holds and Python cannot: a date outside the years 1 to 9999, text that is not UTF-8."""

    code = "UNREADABLE"
    field: str | None = None
    """The field that was read."""


class RepeatLimitError(WindowingError):
    """A repeating Count/Duration window would fire more often in one turn than `max_repeats` allows."""

    code = "REPEAT_LIMIT"


class MachineSpentError(WindowingError, RuntimeError):
    """A machine was entered before its last effects were taken, or after one of them failed."""

    code = "SPENT"


class StaleWindowError(WindowingError, RuntimeError):
    """A `TupleWindow` was read after the bolt's `execute` had returned."""

    code = "STALE_WINDOW"


class SnapshotError(WindowingError, ValueError):
    """A snapshot has another format, version or window definition than the machine that restores it."""

    code = "SNAPSHOT"


UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AssertionError)
"""The exceptions that reading a damaged snapshot can raise."""


def damaged(problem: Exception, what: str = "the snapshot", remedy: str = "restore the one before it") -> SnapshotError:
    """Return the error of a snapshot whose reading raised `problem`, one of UNREADABLE; raise it `from` the problem."""
    return SnapshotError(f"{what} is damaged ({problem!r}); {remedy}")


class AckError(WindowingError, ValueError):
    """A message about a tuple tree is impossible: a root begun twice, an id out of range, a second ack."""

    code = "ACK"


class GroupingError(WindowingError):
    """A tuple cannot be sent on: its key has no hash, or its grouping names no task."""

    code = "GROUPING"


class BoltError(WindowingError):
    """User code of a bolt failed; the message names the bolt, the window or tuple, and the cause."""

    code = "BOLT"


class FailedException(WindowingError):
    """Raise it in a bolt to fail the tuple, or the tuples of the window: their spout is notified, and the run continues.

    Source: Storm's `FailedException`.
    """

    code = "FAILED"


class ReportedFailedException(FailedException):
    """A FailedException that is also reported as an error. Source: Storm's `ReportedFailedException`."""

    code = "REPORTED"


class SessionError(WindowingError):
    """The Spark session lacks what windowed bolts need: a setting, a package, or a module on its Python workers."""

    code = "SESSION"


class WorkerLostError(WindowingError):
    """A Python worker of Spark died, or did not answer when it was started, without a Python error."""

    code = "WORKER_LOST"


class QueryStoppedError(WindowingError):
    """A bounded query was stopped from outside before it had read all its input; it did not drain, and nothing is lost."""

    code = "STOPPED"


class SinkError(WindowingError):
    """The target of a sink cannot be reached, written or read."""

    code = "SINK"


class SourceError(WindowingError):
    """A source of rows failed or is inconsistent: its offsets went back, or its rows do not fit its schema."""

    code = "SOURCE"


class CheckpointError(WindowingError):
    """A checkpoint cannot be used in the requested way."""

    code = "CHECKPOINT"


class DefinitionChangedError(CheckpointError):
    """The bolt, window, schema or number of tasks differs from the definition stored in the checkpoint."""

    code = "INCOMPATIBLE"


class DrainedCheckpointError(CheckpointError):
    """The checkpoint belongs to a query that was drained: its windows are closed for good."""

    code = "DRAINED"


class CorruptStateError(CheckpointError):
    """A piece of stored state is damaged, missing or foreign. State is never reset to empty instead."""

    code = "CORRUPT"


class StateError(WindowingError):
    """A Trident state cannot be used in the requested way."""

    code = "STATE"


class SupersededError(StateError):
    """A commit came too late: a later attempt or a later batch has claimed the state partition. Nothing was written."""

    code = "SUPERSEDED"


class BatchChangedError(StateError):
    """A batch of a transactional state was replayed with other keys. Nothing was written."""

    code = "BATCH_CHANGED"


class StateConflictError(FailedException):
    """Another writer changed the state partition between this attempt's read and write; the next attempt reads again."""

    code = "CONFLICT"


class StoreUnavailableError(FailedException):
    """A store does not answer or cannot write; the next attempt finds out whether a write arrived."""

    code = "STORE_UNAVAILABLE"
