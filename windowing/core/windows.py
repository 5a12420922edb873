"""TupleWindow: what a bolt sees when its window fires.

    length 4, slide 2         queue   1  2  3  4  5  6
    previous window  (2, 4]           [--------]
    this window      (4, 6]                 [--------]
                                      expired  ·  new

Law: previous - expired + new == current, for every firing of the same queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from windowing.core.fields import column_of
from windowing.core.storm_names import StormNames
from windowing.errors import StaleWindowError, represented

__all__ = ["ListContent", "TupleWindow", "WindowContent"]


class WindowContent(Protocol):
    """Where a window gets its tuples from when, and only when, it is asked for them."""

    def __len__(self) -> int: ...
    def current(self) -> Sequence[Any]: ...
    def new(self) -> Sequence[Any]: ...
    def expired(self) -> Sequence[Any]: ...
    def aggregate(self) -> Any: ...


class ListContent:
    """Content that is already at hand as lists (Storm semantics, a user's own policies)."""

    __slots__ = ("_current", "_expired", "_new")

    def __init__(self, current: list[Any], new: list[Any], expired: list[Any]) -> None:
        self._current, self._new, self._expired = current, new, expired

    def __len__(self) -> int:
        return len(self._current)

    def current(self) -> list[Any]:
        return self._current

    def new(self) -> list[Any]:
        return self._new

    def expired(self) -> list[Any]:
        return self._expired

    def aggregate(self) -> Any:
        raise TypeError("this window keeps tuples, not an aggregate; declare the bolt with aggregate=...")


class TupleWindow(StormNames):
    """The tuples of one firing, in (timestamp, arrival) order, with the new and the expired ones at hand.

    Valid until the bolt's `execute` returns; asked later it raises StaleWindowError, so copy what must live longer:
    `list(window.get())`. `start_timestamp` is exclusive (None for a length in tuples), `end_timestamp` inclusive: the end of the
    window, or the timestamp of the tuple that made a Count slide fire. `key` is the key of a keyed window.

    Cost: each of `get`, `get_new`, `get_expired` is one slice, made when asked and not before. Source: Storm's `TupleWindow`.
    """

    __slots__ = ("_content", "_valid", "end_timestamp", "key", "start_timestamp")

    _elsewhere = {"getIter": "iter(window)"}  # noqa: RUF012 - nobody changes it

    def __init__(
        self, content: WindowContent, start_timestamp: int | None, end_timestamp: int, key: Any = None
    ) -> None:
        self._content = content
        self._valid = True
        self.start_timestamp = start_timestamp
        self.end_timestamp = end_timestamp
        self.key = key

    def get(self) -> Sequence[Any]:
        """Return all tuples of the window."""
        return self._live().current()

    def get_new(self) -> Sequence[Any]:
        """Return the tuples that the last fired window did not hold."""
        return self._live().new()

    def get_expired(self) -> Sequence[Any]:
        """Return the tuples of the last fired window that this one does not hold."""
        return self._live().expired()

    def column(self, name: str) -> Sequence[Any]:
        """Return one field of all tuples of the window: a list, or of a bolt with `columnar=` a view without a copy."""
        content = self._live()
        own = getattr(content, "column", None)
        found: Sequence[Any] = own(name) if own is not None else column_of(name, content.current(), "column()")
        return found

    @property
    def aggregate(self) -> Any:
        """The result of the bolt's `aggregate=` over the window: a value, or a dict of them by name."""
        return self._live().aggregate()

    def __len__(self) -> int:
        return len(self._live())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def invalidate(self) -> None:
        """End the window's life; the machine calls this when the driver takes the next effect."""
        self._valid = False

    def _live(self) -> WindowContent:
        self._refuse_if_stale()
        return self._content

    def _refuse_if_stale(self) -> None:
        if not self._valid:
            raise StaleWindowError(
                f"{self!r} was asked after its execute had returned; copy what you need while it runs: list(window.get())"
            )

    def __repr__(self) -> str:
        start = "" if self.start_timestamp is None else f"start={self.start_timestamp}, "
        key = "" if self.key is None else f", key={represented(self.key)}"
        return f"TupleWindow({start}end={self.end_timestamp}{key})"
