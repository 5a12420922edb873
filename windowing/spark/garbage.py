"""Python's cycle collector during a turn: it looks at what is alive over and over while a turn makes what will live.

A turn makes an object or more for each key and window, hardly any of them in a cycle; looking every 700 objects, as CPython does,
took a fifth of the time of a turn of 500,000 rows. Every 50,000 costs next to nothing and still bounds what cycles of a bolt's
own can hold.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_collected"]

_OBJECTS = 50_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector look less often, in this process, until the end; one that is off stays off.

    >>> with seldom_collected():
    ...     gc.get_threshold()[0] >= 50_000
    True
    """
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _OBJECTS) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
