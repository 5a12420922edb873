"""Blame: what a user's code did wrong, as one BoltError in one line that names component, place and line of code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

from windowing.errors import BoltError, told
from windowing.topology.makers import class_of
from windowing.topology.rows import RowError, row_of

__all__ = ["blame", "ended_in", "file_of", "home_of"]

_ENDED = "raised in user code: "
_OURS = (row_of.__code__.co_filename, __file__)


def blame(
    who: str,
    problem: BaseException,
    where: str,
    file: str | None,
    ours: tuple[str, ...] = (),
    home: str | None = None,
) -> BoltError:
    """Return the error of a component that raised `problem`; raise it `from` the problem, which stays its cause.

    who: kind and name, such as "bolt 'count'". where: "in prepare", "on <the window>". file: where the user's code stands,
    as `file_of` says. ours: files of the library that are on the way. home: what to name where no line of the user's was
    running, for a row that was returned, as `home_of` says. KeyboardInterrupt, GeneratorExit and the like may be somebody
    else's: they are raised as they are, with a note of who was running (`ended_in`).
    """
    line = _user_line(problem.__traceback__, file, (*_OURS, *ours)) or home
    at = f" ({line})" if line else ""
    if not isinstance(problem, Exception | SystemExit):
        problem.add_note(f"{_ENDED}{who} failed {where}: {told(problem)}{at}")
        raise problem
    if isinstance(problem, RowError):
        return BoltError(f"{who} emitted a wrong row {where}: {problem.args[0]}{at}")
    return BoltError(f"{who} failed {where}: {told(problem)}{at}")


def ended_in(problem: BaseException) -> BoltError | None:
    """Return the error of the component whose code ended with what is no Exception, None where none did."""
    for note in getattr(problem, "__notes__", ()):
        if note.startswith(_ENDED):
            return BoltError(note.removeprefix(_ENDED))
    return None


def file_of(target: Callable[..., Any], method: str | None = None) -> str | None:
    """Return the file that the user's code stands in, as its frames name it; `method` is what a class is called by."""
    code = _code_of(target, method)
    return None if code is None else str(code.co_filename)


def home_of(target: Callable[..., Any], method: str | None = None) -> str | None:
    """Return file:line of where the user's function, or method, begins."""
    code = _code_of(target, method)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _code_of(target: Callable[..., Any], method: str | None) -> CodeType | None:
    written: Any = target
    if method is not None:
        made = class_of(target) or target
        written = getattr(made, method, made)
    while isinstance(written, functools.partial):
        written = written.func
    if not inspect.isroutine(written):
        written = type(written).__call__ if callable(written) else None
    code = getattr(inspect.unwrap(written), "__code__", None) if written is not None else None
    return code if isinstance(code, CodeType) else None


def _user_line(trace: TracebackType | None, file: str | None, ours: tuple[str, ...]) -> str | None:
    """Return file:line of the innermost frame in the user's file, else of the first frame that is not ours."""
    innermost, first = None, None
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == file:
            innermost = f"{name}:{trace.tb_lineno}"
        elif first is None and name not in ours:
            first = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return innermost or first
