"""A machine implements all options of its definition, or refuses it: a machine built by hand has no other windows than declared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stores.memory_pages import MemoryPages
from windowing.columnar import ColumnarMachines, ColumnarPaneManager, ColumnarWindowManager, TablePaneManager
from windowing.errors import ConfigError
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.eviction import CountEvictionPolicy
from windowing.windows.executor import machine_for
from windowing.windows.manager import StatefulWindowManager, WindowManager
from windowing.windows.measures import Count, millis
from windowing.windows.paged_manager import PagedWindowManager
from windowing.windows.panes import NumberPaneManager, TimePaneManager
from windowing.windows.policies import PolicyWindowManager
from windowing.windows.storm import StormMachine
from windowing.windows.trigger import CountTriggerPolicy

TIMES: dict[str, Any] = {"length": millis(10), "slide": millis(10), "timestamp": "ts"}
COUNTS: dict[str, Any] = {"length": Count(2), "slide": Count(2), "timestamp": "ts"}


def storm(**options: Any) -> WindowConfig:
    return WindowConfig.of(**options, semantics="storm")


@pytest.mark.parametrize("machine", [WindowManager, StatefulWindowManager, ColumnarWindowManager, PolicyWindowManager])
def test_a_lossless_machine_refuses_storm_semantics(machine: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"does not do semantics='storm', a StormMachine does; .*machine_for\(config\)"
    ):
        machine(storm(**TIMES))


def test_machines_of_panes_or_pages_refuse_storm_semantics() -> None:
    # Declared together they are refused; a WindowConfig made by hand is not.
    from windowing.windows.config import Semantics

    for machine, options in ((TimePaneManager, TIMES), (ColumnarPaneManager, TIMES), (NumberPaneManager, COUNTS)):
        with pytest.raises(ConfigError, match="a StormMachine does"):
            machine(WindowConfig(**options, aggregate=agg.sum(), semantics=Semantics.STORM))
    with pytest.raises(ConfigError, match="a StormMachine does"):
        PagedWindowManager(WindowConfig(**COUNTS, max_events_in_memory=1_000, semantics=Semantics.STORM), MemoryPages())


def test_storms_machine_refuses_lossless_semantics() -> None:
    with pytest.raises(ConfigError, match="says semantics='lossless'"):
        StormMachine(WindowConfig.of(**COUNTS))


@pytest.mark.parametrize(
    ("options", "does"),
    [
        ({"trigger": lambda: CountTriggerPolicy(3)}, "trigger=.* a PolicyWindowManager does"),
        ({"eviction": lambda: CountEvictionPolicy(3)}, "eviction=.* a PolicyWindowManager does"),
        ({"max_events_in_memory": 1_000}, "max_events_in_memory=1000, a PagedWindowManager does"),
    ],
)
def test_a_window_manager_refuses_options_of_other_machines(options: dict[str, Any], does: str) -> None:
    slide = {} if "trigger" in options else {"slide": Count(2)}
    with pytest.raises(ConfigError, match=does):
        WindowManager(WindowConfig.of(length=Count(2), timestamp="ts", **slide, **options))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (storm(**TIMES), StormMachine),
        (WindowConfig.of(**TIMES), WindowManager),
        (WindowConfig.of(**TIMES, aggregate=agg.sum()), TimePaneManager),
        (WindowConfig.of(**COUNTS, aggregate=agg.sum()), NumberPaneManager),
        (WindowConfig.of(length=Count(2), timestamp="ts", trigger=lambda: CountTriggerPolicy(3)), PolicyWindowManager),
        (WindowConfig.of(**COUNTS, max_events_in_memory=1_000), PagedWindowManager),
    ],
)
def test_machine_for_returns_the_machine_of_the_definition(config: WindowConfig, kind: Any) -> None:
    assert type(machine_for(config, pages=MemoryPages())) is kind


TOTAL = {"total": agg.sum("v")}


@pytest.mark.parametrize(
    ("options", "columns", "kind"),
    [
        ({**TIMES, "columnar": "arrow"}, ColumnarMachines(), ColumnarWindowManager),
        ({**TIMES, "columnar": "arrow"}, ColumnarMachines(None), WindowManager),
        ({**TIMES, "columnar": "arrow"}, None, WindowManager),
        (TIMES, ColumnarMachines(), WindowManager),
        ({**TIMES, "aggregate": TOTAL}, ColumnarMachines(), ColumnarPaneManager),
        ({**TIMES, "aggregate": TOTAL}, ColumnarMachines(None), ColumnarPaneManager),
        ({**TIMES, "aggregate": TOTAL, "columnar": "numpy"}, ColumnarMachines(None), TablePaneManager),
        ({**COUNTS, "aggregate": TOTAL}, ColumnarMachines(), NumberPaneManager),
        ({**TIMES, "semantics": "storm"}, ColumnarMachines(), StormMachine),
    ],
)
def test_machine_for_also_chooses_among_the_columnar_machines(
    options: dict[str, Any], columns: ColumnarMachines | None, kind: Any
) -> None:
    machine = machine_for(WindowConfig.of(**options), columns=columns)
    assert type(machine) is kind
    assert machine.shows_columns == (kind in (ColumnarWindowManager, TablePaneManager))
    assert machine.takes_columns == (kind not in (WindowManager, StormMachine))
    assert (machine.numbered is machine) == (kind in (WindowManager, ColumnarWindowManager))
    assert machine.keeps_tuples == ("aggregate" not in options)


def test_tables_of_aggregates_without_columnar_machines_are_refused() -> None:
    config = WindowConfig.of(**TIMES, aggregate=TOTAL, columnar="arrow")
    with pytest.raises(ConfigError, match=r"bolt 'totals' is handed .*; give columns=ColumnarMachines\(\)"):
        machine_for(config, component="totals")
    # Where tuples are kept there is no table, with columns or without.
    for columns in (None, ColumnarMachines(None)):
        with pytest.raises(ConfigError, match="keeps no tuples, neither for acks nor for a restart"):
            machine_for(config, keep_tuples=True, columns=columns)
