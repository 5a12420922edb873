"""Machine: what an executor needs of a window manager, and which manager a definition gets.

aggregate=, Duration/Duration or Count/Count    PaneManager            partials, no tuples kept
eviction= or trigger= of the user's own         PolicyWindowManager    a scan for each window
semantics="storm"                               StormMachine           Storm's own policies, by arrival
everything else                                 WindowManager          ranges over an ordered queue
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from windowing.core.config import WindowConfig
from windowing.core.events import Effect
from windowing.core.manager import WindowManager
from windowing.core.track import Tally

__all__ = ["Machine", "machine_for"]


class Machine(Protocol):
    """Tuples in, windows out. Every entry returns an iterator of effects; see WindowManager for the laws."""

    tally: Tally

    @property
    def watermark(self) -> int | None:
        """W of the last turn."""

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple."""

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; effects come with the position of their cause."""

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Make a watermark turn."""

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time)."""

    def drain(self) -> Iterator[Effect]:
        """Fire what is left and close."""

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late, None while nothing is."""

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data."""

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`."""

    def check(self) -> None:
        """Assert what "correct" means."""


def machine_for(config: WindowConfig, sequenced: bool = False) -> Machine:
    """Return a new machine for `config`."""
    return WindowManager(config, sequenced=sequenced)
