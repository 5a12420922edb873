"""Test the processes that tests kill."""

from __future__ import annotations

import gc
import os
from typing import Any

from tests.dying import in_a_child


class EndsTheChild:
    """A client whose threads a fork does not copy: to free it in a child ends the child."""

    def __init__(self, parent: int) -> None:
        self.itself, self.parent, self.end = self, parent, os._exit

    def __del__(self, pid: Any = os.getpid) -> None:
        if pid() != self.parent:
            self.end(70)


def test_a_child_collects_its_own_garbage_and_none_of_its_parent() -> None:
    freed: list[int] = []

    class Own:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            freed.append(1)

    def job() -> None:
        Own()
        gc.collect()
        assert freed

    gc.disable()
    try:
        EndsTheChild(os.getpid())
        assert in_a_child(job) == 0
    finally:
        gc.enable()
