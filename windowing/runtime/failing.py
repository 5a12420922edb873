"""FailedTuples: which tuples have failed, where a bolt says `on_error="fail"`: each once, and none of them is acked.

    window   a  x  x        x is one object that was fed twice: two tuples that only their places tell apart
             .  f  f        the bolt fails on it: both have failed, and a
    window      x  x  b     the same two, so only b fails anew

Law: of tuples that are one object those leave a window first that came first. Which of them expires first cannot be told and does
not matter: as many are not acked as have failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["FailedTuples"]


class FailedTuples:
    """The windows of a run, each shown before it may fail. Cost: O(its tuples) a window, O(1) for each one that expires.

    >>> tuples = FailedTuples()
    >>> tuples.show(None, ["a", 2, 2], new=["a", 2, 2])
    >>> tuples.fail(None, ["a", 2, 2])
    ['a', 2, 2]
    >>> tuples.show(None, [2, 2, "b"], new=["b"])
    >>> tuples.fail(None, [2, 2, "b"]), tuples.expire(["a", 2, "c"])
    (['b'], 2)
    """

    def __init__(self) -> None:
        self._shown: dict[Any, dict[int, list[bool]]] = {}
        """For each key the tuples of its last window: for each object, whether the first, the second, ... of them has failed."""
        self._failed: dict[int, list[Any]] = {}
        """The tuples that have failed and not expired yet, by object; they are kept, so that an id stays their own."""

    def show(self, key: Any, rows: Sequence[Any], new: Sequence[Any]) -> None:
        """Take note of a window and of those of its tuples that the last one of this key did not hold."""
        before = self._shown.get(key, {})
        now = self._shown[key] = {id(row): [] for row in rows}
        for row in rows:
            now[id(row)].append(False)
        for row in new:
            now[id(row)].pop()
        for name, held in now.items():
            if held:
                held[:] = before[name][-len(held) :]
        for row in new:
            now[id(row)].append(False)

    def fail(self, key: Any, rows: Sequence[Any]) -> list[Any]:
        """Fail the tuples of the window that was shown last for this key; return those that had not failed before."""
        failed = []
        for row in rows:
            flags = self._shown[key][id(row)]
            if False in flags:
                flags[flags.index(False)] = True
                failed.append(row)
                self._failed.setdefault(id(row), []).append(row)
        return failed

    def expire(self, rows: Sequence[Any]) -> int:
        """Let tuples go; return how many of them had failed."""
        failed = 0
        for row in rows:
            same = self._failed.get(id(row))
            if same:
                same.pop()
                failed += 1
                if not same:
                    del self._failed[id(row)]
        return failed
