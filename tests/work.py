"""The work of a call, as a number that does not depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def lines_of(call: Callable[[], T]) -> tuple[T, int]:
    """Return what a call returns, and how many lines of Python it runs."""
    lines = 0

    def of_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return of_line

    before = sys.gettrace()
    sys.settrace(of_line)
    try:
        returned = call()
    finally:
        sys.settrace(before)
    return returned, lines
