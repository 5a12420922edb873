"""Machine: what an executor needs of a window manager, and which manager a definition gets (`machine_for`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from windowing.core.config import Semantics, WindowConfig
from windowing.core.events import Effect
from windowing.core.guard import Guard
from windowing.core.manager import WindowManager
from windowing.core.measures import Duration
from windowing.core.paged_manager import PagedWindowManager
from windowing.core.pages import PageStore
from windowing.core.panes import NumberPaneManager
from windowing.core.partials import Aggregation
from windowing.core.policies import PolicyWindowManager
from windowing.core.storm_machine import StormMachine
from windowing.core.time_panes import TimePaneManager
from windowing.core.track import Tally
from windowing.errors import ConfigError

__all__ = ["Machine", "machine_for", "refuse_tables"]


class Machine(Protocol):
    """Tuples in, windows out. Every entry returns an iterator of effects; see WindowManager for the laws."""

    guard: Guard

    @property
    def tally(self) -> Tally:
        """What became of the tuples."""

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

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed: the machine is free, and has not failed."""

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late, None while nothing is."""

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data."""

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`."""

    def check(self) -> None:
        """Assert what "correct" means."""


def refuse_tables(config: WindowConfig, component: str) -> None:
    """Raise ConfigError for a bolt with `aggregate=` and `columnar=`, where its tuples are kept for acks, or for a restart."""
    if config.columnar is not None and config.aggregate is not None:
        raise ConfigError(
            f"bolt {component!r} is handed the aggregates of all keys in columns, and keeps no tuples, neither for acks nor for a "
            "restart; leave out columnar=, or run it where nothing asks for them: on LocalCluster with acker_executors=0 and "
            "without a state, on Spark behind spouts that take no acks"
        )


def machine_for(
    config: WindowConfig,
    sequenced: bool = False,
    keep_tuples: bool = False,
    pages: PageStore | None = None,
    component: str = "bolt",
) -> Machine:
    """Return a new machine for `config`, the first of the table that fits:

        semantics="storm"                                   StormMachine          Storm's policies, by arrival, its losses
        eviction= or trigger=                               PolicyWindowManager   a scan for each window
        max_events_in_memory=                               PagedWindowManager    ranges over pages, most of them in `pages`
        aggregate=, both Durations                          TimePaneManager       partials by pane, no tuples kept
        aggregate=, both Counts                             NumberPaneManager     partials by key, no tuples kept
        else, with or without aggregate=                    WindowManager         ranges over an ordered queue

    `sequenced` is for a driver that stores the tuples of a WindowManager itself, `keep_tuples` for one that has to know
    which tuples an aggregating window holds, to ack them: then no panes. `pages` is where a PagedWindowManager puts its pages.
    `component` names the bolt in errors.
    """
    if config.semantics is Semantics.STORM:
        return StormMachine(config, component=component)
    if keep_tuples:
        refuse_tables(config, component)
    fold = None if config.aggregate is None else Aggregation(config.aggregate, component).fold
    if config.eviction is not None or config.trigger is not None:
        return PolicyWindowManager(config, fold=fold, component=component)
    if config.max_events_in_memory is not None:
        if pages is None:
            raise ConfigError(
                f"max_events_in_memory={config.max_events_in_memory} needs a place for the pages that are not in memory; give "
                "pages= a PageStore (windowing.runtime.pages.SqlitePages), or leave max_events_in_memory= out"
            )
        return PagedWindowManager(config, pages)
    if fold is not None and type(config.length) is type(config.slide) and not keep_tuples:
        return (TimePaneManager if isinstance(config.length, Duration) else NumberPaneManager)(config, component)
    return WindowManager(config, sequenced=sequenced, fold=fold)
