"""Entries: how a machine of built-in windows is entered, whatever it keeps of its tuples.

    add, add_batch        accept tuples                          (each machine's own)
    advance(W), tick      a turn: W rises, what is due fires     _turn(since, until)
    drain()               the end: all that is left fires        _end()

Laws: those of WindowManager (manager.py). An entry changes the machine at once and returns its effects; one that raises half way,
or is entered before its effects are taken, is what the guard is for (guard.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from windowing.core.config import Semantics, WindowConfig
from windowing.core.events import Effect
from windowing.core.guard import Guard, no_effects
from windowing.core.mixes import Mix, mix_of
from windowing.core.track import Tally
from windowing.errors import ConfigError, WindowingError, shown

__all__ = ["Entries", "refuse_options"]


_MACHINES = {
    "semantics": "StormMachine",
    "eviction": "PolicyWindowManager",
    "trigger": "PolicyWindowManager",
    "max_events_in_memory": "PagedWindowManager",
}
"""The machine that does what an option says."""


def refuse_options(config: WindowConfig, machine: str, options: Iterable[str]) -> None:
    """Raise ConfigError for an option of these that the definition has and that `machine` would not do."""
    for option in options:
        value = getattr(config, option)
        if value is not None and value is not Semantics.LOSSLESS:
            name = value.value if isinstance(value, Semantics) else value
            raise ConfigError(
                f"a {machine} does not do {option}={shown(name)}, a {_MACHINES[option]} does; make the machine by "
                "machine_for(config) (windowing.core.machines), which chooses it"
            )


class Entries(ABC):
    """What all machines of built-in lengths and slides have in common. Raises ConfigError for what another machine does."""

    not_done: ClassVar[tuple[str, ...]] = tuple(_MACHINES)
    """Options that are those of other machines."""

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self._tally = Tally()
        self.watermark: int | None = None
        self.closed = False
        self.guard = Guard()
        self._mix: Mix = mix_of(config)
        refuse_options(config, type(self).__name__, self.not_done)

    @abstractmethod
    def _turn(self, since: int | None, until: int) -> Iterator[Effect]:
        """Yield what a turn from the watermark `since` to `until` does."""

    @abstractmethod
    def _end(self) -> Iterator[Effect]:
        """Yield what the end of the input does."""

    @abstractmethod
    def _take_in(self) -> None:
        """Take in what lies in the machine's inbox, where it has one (WindowManager.inbox)."""

    @property
    def tally(self) -> Tally:
        """What became of the tuples."""
        self._take_in()
        return self._tally

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Make a turn: raise W to `watermark` (nothing happens if that does not raise it) and fire what falls due.

        Cost: O(log n) and what is handed over for each queue that has something due; other keys cost nothing.
        """
        self._open()
        since = self.watermark
        if since is not None and watermark <= since:
            return no_effects()
        self.watermark = watermark
        return self.guard.run(self._turn(since, watermark))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time): W = clock - 1 ms, since this millisecond may bring more tuples."""
        return self.advance(now_ms - 1)

    def drain(self) -> Iterator[Effect]:
        """Close the machine: fire what is left (the short last windows too), let everything expire. Idempotent."""
        self.enter()
        if self.closed:
            return no_effects()
        self.closed = True
        return self.guard.run(self._end())

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed."""
        self.guard.enter()
        self._take_in()

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late, None while nothing is."""
        return self._mix.late_below(self.watermark)

    def _open(self) -> None:
        self.enter()
        if self.closed:
            raise WindowingError("the window manager was drained: its windows are closed for good; build a new one")
