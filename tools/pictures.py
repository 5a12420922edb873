"""Draws the pictures of docs/concepts/ out of real runs: python tools/pictures.py; tests/test_pictures.py says when one is old."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from windowing import count, seconds, sliding, tumbling
from windowing.local import explain

FOLDER = Path(__file__).parents[1] / "docs" / "concepts"
WORDS = [[("to", 1), ("be", 4), ("or", 8), ("not", 7)], [("to", 11), ("be", 13)], [("or", 9), ("that", 17)]]
BATCHES = [[{"word": word, "at": 1_000 * second} for word, second in batch] for batch in WORDS]


@sliding(seconds(10), seconds(5), timestamp="at", lag=seconds(2), late_stream="late", output="words long")
def ten_seconds_every_five(window):
    return len(window)


@tumbling(seconds(10), timestamp="at", lag=seconds(2), late_stream="late", output="words long")
def ten_seconds(window):
    return len(window)


@sliding(count(3), count(2), timestamp="at", late_stream="late", output="words long")
def three_every_two(window):
    return len(window)


@tumbling(seconds(5), timestamp="at", lag=seconds(2), late_stream="late", output="words long")
def five_seconds(window):
    return len(window)


@sliding(seconds(10), seconds(5), timestamp="at", lateness="window", late_stream="late", output="words long")
def late_by_window(window):
    return len(window)


@sliding(seconds(10), seconds(5), timestamp="at", output="words long")
def until_they_expire(window):
    return len(window)


def at(*batches: list[int]) -> list[list[dict[str, Any]]]:
    """Return tuples at these seconds, called a, b, c and so on."""
    names = iter("abcdefgh")
    return [[{"word": next(names), "at": 1_000 * second} for second in batch] for batch in batches]


PICTURES: dict[str, tuple[str, Any, list[list[dict[str, Any]]]]] = {
    "duration_windows.svg": ("windows.md", ten_seconds_every_five, BATCHES),
    "tumbling_windows.svg": ("windows.md", ten_seconds, BATCHES),
    "count_windows.svg": ("windows.md", three_every_two, BATCHES),
    "watermark.svg": ("watermarks.md", five_seconds, at([3, 9, 4], [8, 6, 12], [18])),
    "late.svg": ("late_tuples.md", late_by_window, at([3, 12], [8, 4], [21])),
    "expiry.svg": ("expiry_and_acks.md", until_they_expire, at([3, 7], [11], [16])),
}
"""The page that shows it, the bolt and its rows."""


def drawn(name: str) -> str:
    _, bolt, rows = PICTURES[name]
    return explain(bolt, rows).svg()


def main() -> int:
    for name in PICTURES:
        (FOLDER / name).write_text(drawn(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
