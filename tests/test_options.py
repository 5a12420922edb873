"""The table of windowing/execution/support.py: every option has a row, a row says what is true, and the docs show the table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.execution.chains import chained, clustered
from tests.execution.test_turn import Task
from windowing import Count, bolt_of, millis, windowed_bolt
from windowing.errors import ConfigError
from windowing.execution.support import (
    COMPONENT_OPTIONS,
    SETTINGS,
    WINDOW_OPTIONS,
    WORKS,
    Cell,
    Refused,
    Runtime,
    lost_fields,
    settings_without_effect,
    windows_without_effect,
)
from windowing.local.run import run_local
from windowing.spark.operator import TaskStage
from windowing.topology import decorators
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.config import KEYS, TopologyConfig
from windowing.topology.plan import Topology
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowOptions
from windowing.windows.eviction import CountEvictionPolicy
from windowing.windows.trigger import CountTriggerPolicy

DOCS = Path(__file__).parents[1] / "docs" / "options.md"
FIELDS = "id long, ts long, key string, v double"


# -- no option without a row -------------------------------------------------------------------------------------------


def test_every_option_of_a_windowed_bolt_has_a_row() -> None:
    named = set(inspect.signature(windowed_bolt).parameters) - {"options"}
    assert set(WINDOW_OPTIONS) == named | WindowOptions.__optional_keys__


def test_every_option_of_spouts_and_bolts_has_a_row() -> None:
    named = {
        f"@{kind} {name}"
        for kind in ("spout", "bolt")
        for name in inspect.signature(getattr(decorators, kind)).parameters
    }
    named -= {f"@{kind} {name}" for kind in ("spout", "bolt") for name in ("target", "function", "bare")}
    assert set(COMPONENT_OPTIONS) == named


def test_every_setting_has_a_row() -> None:
    assert set(SETTINGS) == {key.typed for key in KEYS}


# -- what works does something, the same everywhere --------------------------------------------------------------------

ROWS = [
    [(1, 1, "a", 1.0), (2, 4, "b", 2.0), (3, 9, "a", 3.0), (4, 12, "b", 4.0)],
    [(5, 15, "a", 5.0), (5, 15, "a", 5.0), (6, 11, "a", 6.0), (7, 33, "b", 7.0)],
    [(8, 34, "a", 8.0), (9, 61, "b", 9.0), (10, 13, "a", 1.0)],
]
TIME: dict[str, Any] = {"length": millis(10), "slide": millis(10), "timestamp": "ts"}
COUNT: dict[str, Any] = {"length": Count(2), "slide": Count(2), "timestamp": "ts"}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "length": (TIME, {"length": millis(20)}),
    "slide": (TIME, {"slide": millis(5)}),
    "timestamp": (TIME, {"timestamp": lambda row: row.ts // 2}),
    "lag": (TIME, {"lag": millis(30)}),
    "offset": (TIME, {"offset": millis(3)}),
    "lateness": (TIME | {"length": millis(40)}, {"lateness": "window"}),
    "repeat": (TIME | {"length": Count(2)}, {"repeat": True}),
    "source": (TIME, {"source": "key"}),
    "key": (COUNT, {"key": "key"}),
    "key_ttl": (COUNT | {"length": Count(3), "slide": Count(3), "key": "key"}, {"key_ttl": millis(10)}),
    "semantics": (TIME | {"length": Count(2)}, {"semantics": "storm"}),
    "aggregate": (TIME, {"aggregate": agg.sum("id")}),
    "eviction": (
        {"slide": millis(10), "timestamp": "ts", "length": millis(10)},
        {"eviction": lambda: CountEvictionPolicy(1)},
    ),
    "trigger": ({"length": Count(4), "timestamp": "ts"}, {"trigger": lambda: CountTriggerPolicy(3)}),
    "message_id": (TIME, {"message_id": "id"}),
}


def told(window: Any) -> tuple[int, list[int]]:
    try:
        return window.end_timestamp, [window.aggregate]
    except TypeError:  # without aggregate= there are rows
        return window.end_timestamp, [row.id for row in window]


def probe(options: Mapping[str, Any], stateful: bool = False) -> Any:
    declare = windowed_bolt(name="probe", output="end long, ids array<long>", **options)
    if not stateful:
        return declare(lambda window: told(window))

    class Stateful:
        def init_state(self, state: Any) -> None: ...

        def execute(self, window: Any) -> Any:
            return told(window)

    return declare(Stateful)


def topology(bolt: Any) -> Topology:
    builder = TopologyBuilder("probe").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("probe", bolt).global_grouping("rows")
    return builder.build()


def alone(bolt: Any, drain: bool) -> list[Any]:
    batches = [[dict(zip(("id", "ts", "key", "v"), row, strict=True)) for row in batch] for batch in ROWS]
    return run_local(bolt, batches, drain=drain)["default"]


def in_cluster(bolt: Any, drain: bool) -> list[Any]:
    outputs = clustered(topology(bolt), {"rows": ROWS}, drain)
    return [row for output in outputs for row in output.get("probe", [])]


def windowed_on_spark(bolt: Any, drain: bool) -> list[Any]:
    task = Task(bolt_of(bolt))
    found = []
    for batch in ROWS:
        found += task.run([dict(zip(("id", "ts", "key", "v"), row, strict=True)) for row in batch]).rows
    found += task.run([], drain=True).rows if drain else []
    return [(values["end"], values["ids"]) for stream, values in found if stream == "default"]


def submitted(bolt: Any, drain: bool) -> list[Any]:
    outputs = chained(topology(bolt), {"rows": ROWS}) if drain else _without_drain(bolt)
    return [row for output in outputs for row in output.get("probe", [])]


def _without_drain(bolt: Any) -> list[Any]:
    from tests.execution.chains import Chain

    chain = Chain(topology(bolt))
    return [chain.run({"rows": batch}) for batch in ROWS]


@pytest.mark.parametrize("option", CHANGES)
def test_an_option_changes_the_windows_and_in_every_runtime_alike(option: str) -> None:
    usual, change = CHANGES[option]
    drain = option != "semantics"  # Storm has no end of the input
    bolt = probe({**usual, **change})
    placed = probe({**usual, **change}, stateful=option == "message_id")  # topologies ask for a state with it
    wanted = alone(bolt, drain)
    assert wanted != alone(probe(usual), drain), "the option is without effect"
    by_end = sorted(wanted)
    for run, runtime in (
        (in_cluster, Runtime.CLUSTER),
        (windowed_on_spark, Runtime.WINDOWED),
        (submitted, Runtime.SUBMIT),
    ):
        assert WINDOW_OPTIONS[option][runtime] == WORKS
        if runtime is Runtime.WINDOWED and option in ("timestamp", "source"):
            continue  # the packer reads them: tests/spark/test_pack.py
        assert sorted(run(bolt if runtime is Runtime.WINDOWED else placed, drain)) == by_end, runtime.value


# -- what is refused is refused by its sentence ------------------------------------------------------------------------


def refusal(runtime: Runtime, options: dict[str, Any]) -> str:
    def start() -> None:
        if runtime is Runtime.WINDOWED:
            TaskStage(bolt_of(probe(options)), ("id", "ts", "key", "v"))
        else:
            chained(topology(probe(options)), {"rows": ROWS})

    with pytest.raises(ConfigError) as found:
        start()
    return str(found.value)


@pytest.mark.parametrize(
    ("option", "options"),
    [("on_error", {"on_error": "fail"}), ("max_events_in_memory", {"max_events_in_memory": 1_000})],
)
def test_an_option_that_is_refused_is_refused_by_the_sentence_of_the_table(
    option: str, options: dict[str, Any]
) -> None:
    refused = {runtime: cell for runtime, cell in WINDOW_OPTIONS[option].items() if isinstance(cell, Refused)}
    assert refused
    for runtime, cell in refused.items():
        for part in cell.sentence.split(", "):
            assert part in refusal(runtime, {**TIME, **options}), runtime.value


def test_only_what_is_tried_above_is_refused() -> None:
    refused = {name for name, row in WINDOW_OPTIONS.items() if any(isinstance(cell, Refused) for cell in row.values())}
    assert refused == {"on_error", "max_events_in_memory"}


# -- what is without effect is said ------------------------------------------------------------------------------------


def test_a_setting_without_effect_is_said_where_it_is_given() -> None:
    assert list(settings_without_effect(Runtime.SUBMIT, TopologyConfig(debug=True, max_spout_pending=3))) == [
        "topology.max.spout.pending has no effect in Spark submit: the trigger and the source say how much is in flight",
        "topology.debug has no effect in Spark submit: only LocalCluster logs each tuple",
    ]
    assert list(settings_without_effect(Runtime.CLUSTER, TopologyConfig(debug=True, max_spout_pending=3))) == []


def test_an_option_of_a_window_without_effect_is_said_where_it_is_given() -> None:
    bolt = bolt_of(probe({**TIME, "watermark_interval": millis(5)}))
    assert list(windows_without_effect(Runtime.LOCAL, bolt)) == []
    assert list(windows_without_effect(Runtime.WINDOWED, bolt)) == [
        "watermark_interval= of bolt 'probe' has no effect in Spark windowed: there is a turn after each micro-batch; trigger= "
        "says how often there is one"
    ]


class Counting:
    def prepare(self, context: Any) -> None:
        self.counts: dict[str, int] = {}
        self.last = None

    def execute(self, tuple: Any) -> None:
        self.note(tuple.word)
        words = [tuple.word]
        words[0] = "local"

    def note(self, word: str) -> None:
        self.counts[word] = self.counts.get(word, 0) + 1
        self.last, (self.total, _) = word, (1, 2)


class Prepared:
    def __init__(self) -> None:
        self.limit = 3

    def prepare(self, context: Any) -> None:
        self.context = context

    def execute(self, tuple: Any) -> int:
        tuple.n = self.limit
        return self.limit


def test_fields_that_a_bolt_sets_while_it_runs_are_named_with_the_way_out() -> None:
    sentence = lost_fields("count", Counting, False)
    assert sentence is not None
    for field in ("self.counts", "self.last", "self.total"):
        assert field in sentence
    assert "init_state(self, state)" in sentence


def test_fields_of_init_and_prepare_and_those_of_a_stateful_bolt_are_no_alarm() -> None:
    assert lost_fields("prepared", Prepared, False) is None
    assert lost_fields("count", Counting, True) is None
    assert lost_fields("function", told, False) is None


# -- the docs ----------------------------------------------------------------------------------------------------------


def shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return (
        cell
        if isinstance(cell, str)
        else f"refused: {cell[0]}"
        if isinstance(cell, Refused)
        else f"no effect: {cell[0]}"
    )


def table(title: str, rows: Mapping[str, Mapping[Runtime, Cell]]) -> str:
    runtimes = [runtime for runtime in Runtime if any(runtime in row for row in rows.values())]
    lines = [[title, *(runtime.value for runtime in runtimes)], ["---"] * (len(runtimes) + 1)]
    lines += [[f"`{name}`", *(shown(row.get(runtime)) for runtime in runtimes)] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_the_docs_show_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for title, rows in (("window", WINDOW_OPTIONS), ("component", COMPONENT_OPTIONS), ("setting", SETTINGS)):
        assert table(title, rows) in text, f"\n{table(title, rows)}"
