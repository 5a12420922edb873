"""The bolt of `windowing doctor`, in a module of its own because Spark's workers import it."""

from __future__ import annotations

from typing import Any

from windowing.topology.decorators import tumbling
from windowing.windows.measures import seconds

__all__ = [
    "sums_of_three",
]


@tumbling(seconds(3), timestamp="at", output="ends long, total long")
def sums_of_three(window: Any) -> tuple[int, int]:
    """Return the end of a window of three seconds and the sum of `n` over its rows."""
    return window.end_timestamp, sum(row.n for row in window)
