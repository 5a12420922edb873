"""What the two machines of panes have in common: the content of their windows, and which snapshots they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from windowing.core.partials import Aggregation, Partial
from windowing.errors import SnapshotError, shown

__all__ = ["NO_TUPLES", "PaneContent", "refuse_foreign"]

NO_TUPLES = (
    "a window with aggregate= keeps no tuples: use window.aggregate and len(window); or leave out aggregate= to have "
    "window.get(), get_new() and get_expired()"
)


class PaneContent:
    """The content of a window as partials, oldest first; the result is made when asked for."""

    __slots__ = ("_aggregation", "_partials")

    def __init__(self, partials: Sequence[Partial], aggregation: Aggregation) -> None:
        self._partials, self._aggregation = partials, aggregation

    def __len__(self) -> int:
        return sum(partial[0] for partial in self._partials)

    def current(self) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def new(self) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def expired(self) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def aggregate(self) -> Any:
        return self._aggregation.result(self._partials)


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
