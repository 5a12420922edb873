"""Draws the pictures of docs/concepts/ out of real runs: python tools/pictures.py; tests/test_pictures.py says when one is old."""

from __future__ import annotations

import sys
from pathlib import Path

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


PICTURES = {
    "duration_windows.svg": ten_seconds_every_five,
    "tumbling_windows.svg": ten_seconds,
    "count_windows.svg": three_every_two,
}


def drawn(name: str) -> str:
    return explain(PICTURES[name], BATCHES).svg()


def main() -> int:
    for name in PICTURES:
        (FOLDER / name).write_text(drawn(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
