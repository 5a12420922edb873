"""What the two machines of panes have in common: their windows, and which snapshots they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from windowing.core.partials import Aggregation, Partial
from windowing.core.windows import TupleWindow
from windowing.errors import SnapshotError, shown

__all__ = ["NO_TUPLES", "PaneWindow", "refuse_foreign"]

NO_TUPLES = (
    "a window with aggregate= keeps no tuples: use window.aggregate and len(window); or leave out aggregate= to have "
    "window.get(), get_new() and get_expired()"
)


class PaneWindow(TupleWindow):
    """A window of partials, oldest first; the result is made when asked for."""

    __slots__ = ("_aggregation", "_partials")

    def __init__(
        self, partials: Sequence[Partial], aggregation: Aggregation, start: int | None, end: int, key: Any
    ) -> None:
        # Not by way of TupleWindow's: this is made for each key and window, and needs no content of its own.
        self._partials, self._aggregation, self._valid = partials, aggregation, True
        self.start_timestamp, self.end_timestamp, self.key = start, end, key

    @property
    def aggregate(self) -> Any:
        """The result of the bolt's `aggregate=` over the window: a value, or a dict of them by name."""
        return self._aggregation.result(self._partials) if self._valid else self._live()

    def __len__(self) -> int:
        return sum(partial[0] for partial in self._partials) if self._valid else len(self._live())

    def _live(self) -> NoReturn:
        self._refuse_if_stale()
        raise TypeError(NO_TUPLES)


def refuse_foreign(data: dict[str, Any], kind: str, version: int, spec: Any) -> None:
    """Raise SnapshotError for a snapshot of another machine, another format, or another aggregation."""
    if data.get("format") != version or data.get("machine") != kind:
        raise SnapshotError(
            f"a {kind} snapshot of format {version} was wanted, got {data.get('machine')!r} of format "
            f"{data.get('format')!r}; read it with the version of the library that wrote it"
        )
    if data.get("aggregate") != spec:
        raise SnapshotError(
            f"the snapshot holds partials of {shown(data.get('aggregate'))}, this bolt declares aggregate="
            f"{shown(spec)}; restore it into a bolt of the same definition"
        )
