"""The tables of windowing/execution/support.py and option_tables.py: every option has a row, each is true, the docs show them."""

from __future__ import annotations

import collections
import inspect
import linecache
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from tests.execution.chains import chained, clustered
from tests.execution.test_turn import Task
from tests.option_tables import (
    COMPONENT_OPTIONS,
    DECLARER_OPTIONS,
    GROUPINGS,
    SINKS,
    SOURCES,
    START_OPTIONS,
    TRIDENT_OPERATIONS,
)
from tests.trident.test_trident_operations import Given
from tests.trident.test_trident_sections import StageRun
from windowing import (
    Action,
    Count,
    Event,
    EvictionPolicy,
    TimeEvictionPolicy,
    TriggerPolicy,
    bolt_of,
    count,
    millis,
    seconds,
    spark,
    spout,
    windowed_bolt,
)
from windowing.acking.pending import RetryPolicy
from windowing.errors import ConfigError, FailedException
from windowing.execution.support import (
    COORDINATED,
    SETTINGS,
    WINDOW_OPTIONS,
    WORKS,
    Cell,
    LostFieldsWarning,
    Refused,
    Runtime,
    Without,
    announce,
    announce_bolt,
    lost_fields,
    lost_policy,
    settings_without_effect,
    tasks_without_effect,
    windows_without_effect,
)
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.local.run import LocalRun, run_local
from windowing.local.trident_cluster import TridentCluster, run_trident
from windowing.queues import SqliteQueue
from windowing.spark import query, trident_submit
from windowing.spark.context import execution_context
from windowing.spark.rows import NamedRows
from windowing.spark.sinks import require_sink
from windowing.spark.submit import _given, _require_runnable, submit
from windowing.spark.window_turn import TaskStage
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.stores.sqlite import SqliteRecordStore
from windowing.stores.states import MemoryStateProvider, SqliteStateProvider
from windowing.topology import decorators
from windowing.topology.builder import Declarer, TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.config import KEYS, TopologyConfig
from windowing.topology.decorators import bolt
from windowing.topology.groupings import GlobalGrouping
from windowing.topology.plan import Topology
from windowing.trident import builtins
from windowing.trident.coordinator import CoordinatorConfig
from windowing.trident.kinds import SpoutKind
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.trident.transactional_state import MemoryRecordStore
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig, WindowOptions
from windowing.windows.eviction import CountEvictionPolicy
from windowing.windows.trigger import CountTriggerPolicy

DOCS = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
FIELDS = "id long, ts long, key string, v double"
FUSED = ("shuffle_grouping", "none_grouping", "local_or_shuffle_grouping")
"""On Spark a bolt with one of these groupings is fused into the stage of its input."""


# -- no option without a row -------------------------------------------------------------------------------------------


def test_every_option_of_a_windowed_bolt_has_a_row() -> None:
    named = set(inspect.signature(windowed_bolt).parameters) - {"options"}
    assert set(WINDOW_OPTIONS) == named | WindowOptions.__optional_keys__


def test_the_help_of_windowed_bolt_explains_every_option() -> None:
    text = windowed_bolt.__doc__ or ""
    assert not [name for name in WindowOptions.__optional_keys__ if not re.search(rf"\b{name}(, \w+)*[:=]", text)]


def test_every_option_of_spouts_and_bolts_has_a_row() -> None:
    named = {
        f"@{kind} {name}"
        for kind in ("spout", "bolt")
        for name in inspect.signature(getattr(decorators, kind)).parameters
    }
    named -= {f"@{kind} {name}" for kind in ("spout", "bolt") for name in ("target", "function", "bare")}
    assert set(COMPONENT_OPTIONS) == named


def test_every_option_of_a_declarer_has_a_row() -> None:
    added = {
        f"{method} {name}"
        for method in ("set_spout", "set_bolt")
        for name in inspect.signature(getattr(TopologyBuilder, method)).parameters
    }
    added -= {f"{method} {name}" for method in ("set_spout", "set_bolt") for name in ("self", "id", "spout", "bolt")}
    methods = {name for name, what in vars(Declarer).items() if inspect.isfunction(what) and not name.startswith("_")}
    methods -= {"grouping", *GROUPINGS}
    assert set(DECLARER_OPTIONS) == added | methods


def sinks_of_spark() -> dict[str, Any]:
    made = {
        "DeltaSink": spark.DeltaSink("out"),
        "FileSink": spark.FileSink("out"),
        "FunctionSink": spark.FunctionSink(print),
        "KafkaSink": spark.KafkaSink("host:9092", "windows"),
        "MemorySink": spark.MemorySink(),
        "NoopSink": spark.NoopSink(),
        "ParquetSink": spark.ParquetSink("out"),
        "PostgresSink": spark.PostgresSink("postgresql://host/db", "flights", key="origin"),
    }
    assert {name: type(sink).__name__ for name, sink in made.items()} == {name: name for name in made}
    return made


def test_every_sink_of_spark_is_accepted_there() -> None:
    assert set(SINKS) == set(sinks_of_spark())
    for name, sink in sinks_of_spark().items():
        assert [SINKS[name][runtime] for runtime in (Runtime.WINDOWED, Runtime.SUBMIT, Runtime.SUBMIT_TRIDENT)] == [
            WORKS
        ] * 3
        require_sink("default", sink, ["id", "ts"])


def test_a_streaming_dataframe_is_refused_in_one_process() -> None:
    cell = SOURCES["streaming DataFrame"][Runtime.CLUSTER]
    assert isinstance(cell, Refused)
    with pytest.raises(ConfigError, match=re.escape(cell.sentence)):
        LocalCluster(topology(probe(TIME)), sources={"rows": object()})
    trident = TridentTopology("sources")
    trident.new_stream("rows", Rows()).sink("out")
    with pytest.raises(ConfigError, match=re.escape(cell.sentence)):
        run_trident(trident, sources={"rows": object()})


def test_a_sink_of_spark_is_refused_in_one_process_with_the_sentence_of_the_table() -> None:
    topology = TridentTopology("sinks")
    topology.new_stream("rows", Rows()).sink("out")
    for name, sink in sinks_of_spark().items():
        cell = SINKS[name][Runtime.TRIDENT]
        assert isinstance(cell, Refused)
        with pytest.raises(ConfigError) as found:
            run_trident(topology, {"rows": []}, sinks={"out": sink})
        assert cell.sentence in str(found.value)


def test_every_setting_has_a_row() -> None:
    assert set(SETTINGS) == {key.typed for key in KEYS}


# -- supported options have the same effect in every runtime -----------------------------------------------------------

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
    except TypeError:  # without aggregate= there are rows, or with columnar= columns
        pass
    is_columnar = isinstance(window.get(), pa.Table | dict)
    return window.end_timestamp, np.asarray(window.get()["id"]).tolist() if is_columnar else [row.id for row in window]


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


TRIED_ELSEWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "late_stream": ({**TIME, "late_stream": "late"}, "execution/test_turn.py"),
    "watermark_interval": ({**TIME, "watermark_interval": millis(5)}, "local/test_clock.py"),
    "idle_timeout": ({**TIME, "idle_timeout": seconds(1)}, "local/test_clock.py"),
    "max_future": ({**TIME, "max_future": seconds(1)}, "execution/test_turn.py"),
    "max_repeats": ({**TIME, "length": Count(2), "repeat": True, "max_repeats": 7}, "windows/test_manager.py"),
    "on_error": ({**TIME, "on_error": "skip"}, "execution/test_turn.py"),
    "on_invalid": ({**TIME, "on_invalid": "raise"}, "windows/test_executor.py"),
    "max_events_in_memory": ({**TIME, "max_events_in_memory": 1_000}, "windows/test_paged.py"),
    "recovery_timeout": (
        {**TIME, "message_id": "id", "recovery_timeout": seconds(9)},
        "local/test_cluster_restarts.py",
    ),
    "columnar": ({**TIME, "columnar": "arrow"}, "columnar/test_columnar.py"),
}
"""The options that are not in CHANGES, with the tests of their effect."""
OPTIONS = {
    **{option: {**usual, **change} for option, (usual, change) in CHANGES.items()},
    **{option: options for option, (options, _) in TRIED_ELSEWHERE.items()},
}
"""Each option of a window, with a value that is not its default, among those that it needs."""

MACHINES: dict[str, Any] = {
    "semantics": "storm",
    "aggregate": agg.sum("id"),
    "eviction": lambda: CountEvictionPolicy(1),
    "trigger": lambda: CountTriggerPolicy(3),
    "max_events_in_memory": 1_000,
    "message_id": "id",
    "columnar": "arrow",
}
"""The options for which another machine runs the windows, or a part is added to it."""
LOSSLESS = "aggregate eviction trigger max_events_in_memory message_id columnar"
BESIDE: dict[str, str] = {
    **dict.fromkeys(("length", "slide", "timestamp", "lag", "watermark_interval"), f"semantics {LOSSLESS}"),
    **dict.fromkeys(("late_stream", "on_error", "on_invalid"), f"semantics {LOSSLESS}"),
    **dict.fromkeys(("source", "key", "key_ttl", "idle_timeout", "max_future"), LOSSLESS),
    "offset": "aggregate eviction max_events_in_memory message_id columnar",
    "lateness": "aggregate max_events_in_memory message_id columnar",
    **dict.fromkeys(("repeat", "max_repeats"), "semantics aggregate eviction max_events_in_memory message_id columnar"),
    **dict.fromkeys(("semantics", "eviction"), "trigger"),
    "trigger": "semantics aggregate eviction",
    "aggregate": "trigger message_id",
    "message_id": "aggregate max_events_in_memory",
    "max_events_in_memory": "message_id",
    "recovery_timeout": "aggregate max_events_in_memory message_id",
    "columnar": "",
}
"""The MACHINES that accept each option of OPTIONS; the others refuse it."""


def guides() -> str:
    files = (file for name in ("concepts", "guides") for file in (DOCS.parents[1] / name).glob("*.md"))
    return "".join(file.read_text(encoding="utf-8") for file in files)


def accepted(option: str, machine: str) -> bool:
    options = {**OPTIONS[option], machine: MACHINES[machine]}
    if machine == "trigger":
        options.pop("slide", None)
    try:
        WindowConfig.of(**options)
    except ConfigError:
        return False
    return True


def test_every_option_of_a_window_is_tried_with_each_machine_and_in_the_docs() -> None:
    assert OPTIONS.keys() == {"length", "slide", *WindowOptions.__optional_keys__}
    found = {
        option: " ".join(each for each in MACHINES if each != option and accepted(option, each)) for option in OPTIONS
    }
    assert found == BESIDE, "say whether each machine does what the option says, or refuses it (windows/checks.py)"
    folder = Path(__file__).parent
    for option, (_, file) in TRIED_ELSEWHERE.items():
        assert re.search(rf"\b{option}=|\"{option}\":", (folder / file).read_text(encoding="utf-8")), (option, file)
    pages = guides()
    assert [option for option in OPTIONS if not re.search(rf"`{option}=?|\b{option}=", pages)] == []


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_a_window_reaches_its_config(option: str) -> None:
    config, usual = WindowConfig.of(**OPTIONS[option]), WindowConfig(length=Count(1), slide=Count(1))
    name = option if hasattr(usual, option) else f"{option}_ms"
    assert getattr(config, name) != getattr(usual, name)


@pytest.mark.parametrize(
    ("option", "machine"),
    [
        (option, machine)
        for option in CHANGES
        for machine in ("max_events_in_memory", "columnar")
        if machine in BESIDE[option].split()
    ],
)
def test_an_option_has_the_same_effect_on_disk_and_over_columns(option: str, machine: str) -> None:
    options = OPTIONS[option]
    wanted = sorted(alone(probe(options), True))
    assert sorted(alone(probe({**options, machine: MACHINES[machine]}), True)) == wanted


@pytest.mark.parametrize("option", CHANGES)
def test_an_option_changes_the_windows_in_the_same_way_in_every_runtime(option: str) -> None:
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


def test_a_window_repeats_until_its_key_ends_in_every_runtime() -> None:
    options = {**TIME, "length": Count(2), "repeat": True, "key": "key", "key_ttl": millis(15)}
    for machine in ("max_events_in_memory", "columnar", "eviction", None):
        bolt = probe(options if machine is None else {**options, machine: MACHINES[machine]})
        wanted = sorted(alone(bolt, True))
        assert max(end for end, ids in wanted if 8 in ids) == 40, "its tuple is of 34, and W goes from 34 to 61"
    for run in (in_cluster, windowed_on_spark, submitted, lambda bolt, drain: in_trident(options)):
        assert sorted(run(bolt, True)) == wanted


def in_trident(options: Mapping[str, Any]) -> list[Any]:
    """Return the windows of ROWS, drained, in one partition."""
    given = {"slide": None, **options}
    topology = TridentTopology("windows")
    stream: Any = topology.new_stream("rows", Rows()).global_()
    if "key" in given:
        stream = stream.group_by(given.pop("key"))
    length, slide = given.pop("length"), given.pop("slide")
    stream.window(length, slide, None, told, "end long, ids array<long>", **given).sink("out")
    run = TridentRun(topology.build())
    return [row for n, rows in enumerate(ROWS, 1) for row in run.batch({"rows": rows}, drain=n == len(ROWS))["out"]]


class Rows:
    kind = SpoutKind.OPAQUE
    output = FIELDS


@pytest.mark.parametrize("option", CHANGES)
def test_a_window_option_has_the_same_effect_in_trident_or_is_refused_with_the_sentence_of_the_table(
    option: str,
) -> None:
    usual, change = CHANGES[option]
    cells = {WINDOW_OPTIONS[option][runtime] for runtime in (Runtime.TRIDENT, Runtime.SUBMIT_TRIDENT)}
    if cells == {WORKS}:
        assert sorted(in_trident({**usual, **change})) == sorted(alone(probe({**usual, **change}), True))
        return
    (cell,) = cells
    assert isinstance(cell, Refused)
    with pytest.raises(ConfigError) as found:
        in_trident({**usual, **change})
    assert cell.sentence in str(found.value)


REFUSED_IN_TRIDENT = {
    "late_stream": "late",
    "recovery_timeout": seconds(9),
    "max_events_in_memory": 1_000,
    "watermark_interval": millis(5),
    "on_error": "fail",
    "columnar": "arrow",
}


def test_options_of_bolts_are_refused_in_trident_with_the_sentences_of_the_table() -> None:
    refused = {name for name, row in WINDOW_OPTIONS.items() if isinstance(row.get(Runtime.TRIDENT), Refused)}
    assert refused == REFUSED_IN_TRIDENT.keys() | {"message_id", "semantics", "aggregate"}
    for option, value in REFUSED_IN_TRIDENT.items():
        cell = WINDOW_OPTIONS[option][Runtime.TRIDENT]
        assert isinstance(cell, Refused)
        with pytest.raises(ConfigError) as found:
            in_trident({**TIME, option: value})
        assert cell.sentence in str(found.value), option


# -- refused options ---------------------------------------------------------------------------------------------------


def refusal(runtime: Runtime, options: dict[str, Any]) -> str:
    def start() -> None:
        if runtime is Runtime.WINDOWED:
            TaskStage(bolt_of(probe(options)), NamedRows(("id", "ts", "key", "v")))
        else:
            chained(topology(probe(options)), {"rows": ROWS})

    with pytest.raises(ConfigError) as found:
        start()
    return str(found.value)


@pytest.mark.parametrize(
    ("option", "options"),
    [("on_error", {"on_error": "fail"}), ("max_events_in_memory", {"max_events_in_memory": 1_000})],
)
def test_an_unsupported_option_is_refused_with_the_sentence_of_the_table(option: str, options: dict[str, Any]) -> None:
    of_bolts = (Runtime.LOCAL, Runtime.CLUSTER, Runtime.WINDOWED, Runtime.SUBMIT)
    cells = {runtime: WINDOW_OPTIONS[option][runtime] for runtime in of_bolts}
    refused = {runtime: cell for runtime, cell in cells.items() if isinstance(cell, Refused)}
    assert refused
    for runtime, cell in refused.items():
        for part in cell.sentence.split(", "):
            assert part in refusal(runtime, {**TIME, **options}), runtime.value


def test_the_refused_options_of_bolts_are_those_tested_here() -> None:
    of_bolts = (Runtime.LOCAL, Runtime.CLUSTER, Runtime.WINDOWED, Runtime.SUBMIT)
    refused = {
        name for name, row in WINDOW_OPTIONS.items() if any(isinstance(row[runtime], Refused) for runtime in of_bolts)
    }
    assert refused == {"on_error", "max_events_in_memory", "direct"}  # direct: tests/execution/test_task_ids.py


# -- options without effect --------------------------------------------------------------------------------------------


def test_a_setting_without_effect_is_reported_in_its_runtime() -> None:
    assert list(settings_without_effect(Runtime.SUBMIT, TopologyConfig(debug=True, max_spout_pending=3))) == [
        "topology.max.spout.pending has no effect in Spark submit: the trigger and the source decide how much is in flight",
        "topology.debug has no effect in Spark submit: only LocalCluster logs each tuple",
    ]
    assert list(settings_without_effect(Runtime.CLUSTER, TopologyConfig(debug=True, max_spout_pending=3))) == []


def test_a_window_option_without_effect_is_reported_in_its_runtime() -> None:
    bolt = bolt_of(probe({**TIME, "watermark_interval": millis(5)}))
    assert list(windows_without_effect(Runtime.LOCAL, bolt)) == []
    assert list(windows_without_effect(Runtime.WINDOWED, bolt)) == [
        "watermark_interval= of bolt 'probe' has no effect in Spark windowed: windows advance after each micro-batch; "
        "trigger= sets how often"
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


class Gathering:
    def prepare(self, context: Any) -> None:
        self.counts: Counter[str] = Counter()
        self.seen = collections.deque[str]()
        self.client, self.open = context.client, set[str]()

    def execute(self, window: Any) -> None:
        self.counts.update(row.word for row in window)
        self.by_name["a"].append(window)
        self.seen.append("a word")
        self.open.add("a word")
        self.client.update("an object that the bolt did not make")
        words = list(window)
        words.append("local")
        also, self_less, read = self.by_key, self.called(), self.limits
        also["a"] = read["a"]
        last = self.lasts
        last.append(words)
        self_less.append(words)

    def called(self) -> list[Any]:
        return []

    def __init__(self) -> None:
        self.by_name: dict[str, list[Any]] = collections.defaultdict(list)
        self.by_key: dict[str, int] = {}
        self.lasts, self.limits = collections.deque[Any](), {"a": 1}


class OfClass:
    counts: ClassVar[dict[str, int]] = {}
    total = calls = 0

    def execute(self, tuple: Any) -> None:
        self.counts.update({tuple.word: 1})
        type(self).total += 1
        self.__class__.calls += 1
        type(tuple).other = 1


class Prepared:
    defaults: ClassVar[dict[str, int]] = {"n": 3}

    def __init__(self) -> None:
        self.limit = 3

    def prepare(self, context: Any) -> None:
        self.context = context

    def execute(self, tuple: Any) -> int:
        tuple.n = self.limit
        row = self.defaults
        row = {**row}
        row["n"] = 4  # of the copy
        return self.limit


def test_attributes_that_a_bolt_sets_in_execute_are_reported_with_the_remedy() -> None:
    sentence = lost_fields("count", Counting, False)
    assert sentence is not None
    for field in ("self.counts", "self.last", "self.total"):
        assert field in sentence
    assert "init_state(self, state)" in sentence


def test_collections_that_a_bolt_changes_in_execute_are_reported() -> None:
    sentence = lost_fields("gather", Gathering, False)
    assert sentence is not None
    for field in ("self.counts", "self.seen", "self.by_name", "self.open", "self.by_key", "self.lasts"):
        assert field in sentence
    assert not any(name in sentence for name in ("client", "limits", "called"))


def test_class_attributes_that_a_bolt_changes_in_execute_are_reported() -> None:
    assert "sets self.counts, self.total, self.calls in execute" in str(lost_fields("of class", OfClass, False))


def test_attributes_set_in_init_or_prepare_or_of_a_stateful_bolt_are_not_reported() -> None:
    assert lost_fields("prepared", Prepared, False) is None
    assert lost_fields("count", Counting, True) is None
    assert lost_fields("function", told, False) is None


class Forgetful(TriggerPolicy):
    """Keeps the last timestamp in a field, and has no `get_state`."""

    last = 0

    def track(self, event: Event) -> None:
        self.last = event.timestamp


class HalfRemembering(Forgetful):
    def get_state(self) -> int:
        return self.last


class Remembering(HalfRemembering):
    def restore_state(self, state: int) -> None:
        self.last = state


class ByContext(EvictionPolicy):
    def evict(self, event: Event) -> Action:
        return Action.KEEP if self.get_context() is None else Action.PROCESS


class Later(TimeEvictionPolicy):
    def evict(self, event: Event) -> Action:
        return super().evict(event)


def test_a_policy_that_sets_fields_and_has_no_state_is_reported() -> None:
    sentence = lost_policy("count", "trigger", Forgetful)
    assert sentence is not None
    assert "trigger=Forgetful of bolt 'count' sets self.last" in sentence
    assert "get_state(self)" in sentence
    assert lost_policy("count", "trigger", partial(Forgetful)) == sentence
    assert lost_policy("count", "trigger", HalfRemembering) == sentence.replace("Forgetful", "HalfRemembering")


def test_a_policy_without_fields_or_with_a_state_is_not_reported() -> None:
    for made in (Remembering, ByContext, partial(Later, 5), lambda: Forgetful(), None):
        assert lost_policy("count", "trigger", made) is None


@pytest.mark.parametrize("runtime", [Runtime.WINDOWED, Runtime.LOCAL])
def test_only_a_start_on_spark_warns_of_the_fields_of_a_policy(runtime: Runtime) -> None:
    @windowed_bolt(count(3), trigger=Forgetful, timestamp="at", output="n long")
    def counted(window: Any) -> int:
        return len(window)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        announce_bolt(runtime, str, bolt_of(counted))
    wanted = [(LostFieldsWarning, __file__)] if runtime is Runtime.WINDOWED else []
    assert [(each.category, each.filename) for each in told] == wanted


def test_a_window_of_trident_with_a_policy_that_loses_its_fields_is_reported_at_the_start() -> None:
    topology = TridentTopology("forgets")
    stream = topology.new_stream("rows", Rows())
    stream.window(count(3), None, None, told, "end long, ids array<long>", timestamp="ts", trigger=Forgetful).sink(
        "out"
    )
    with pytest.warns(
        LostFieldsWarning, match=r"sets self.last, and a batch that is tried again, or .*: they begin"
    ) as told_of:
        run_trident(topology, {"rows": ROWS})
    assert told_of[0].filename == __file__
    with pytest.warns(LostFieldsWarning, match=r"sets self.last, and on Spark a policy lives for one batch"):
        announce(Runtime.SUBMIT_TRIDENT, str, "forgets", topology.build().config, windows=topology.build().windowed)


class OncePerWord:
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def keep(self, row: Any) -> bool:
        is_new = row[0] not in self.seen
        self.seen.add(row[0])
        return is_new


class Numbers:
    def prepare(self, context: Any) -> None:
        self.n = 0

    def execute(self, row: Any, collector: Any) -> None:
        self.n += 1
        collector.emit((self.n,))


class Repeats:
    def prepare(self, context: Any) -> None:
        self.times = 2

    def execute(self, row: Any) -> Any:
        return [row] * self.times


def test_functions_of_trident_that_set_their_fields_are_reported_at_a_start_on_spark_alone() -> None:
    topology = TridentTopology("forgets")
    stream = topology.new_stream("rows", InputSpout("word string")).filter(OncePerWord())
    stream = stream.each("word", Numbers(), "n long").flat_map(Repeats(), "word string, n long")
    stream.map(lambda row: row.word, "word string").sink("out")
    plan = topology.build()
    with warnings.catch_warnings(record=True) as told_of:
        warnings.simplefilter("always")
        run_trident(topology, {"rows": [[("a",)]]})
        assert not told_of, "there an instance lives as long as the run"
        announce(Runtime.SUBMIT_TRIDENT, str, "forgets", plan.config, functions=plan.functions)
    for each, fields in zip(told_of, ("self.seen in keep", "self.n in execute"), strict=True):
        assert (each.category, each.filename) == (LostFieldsWarning, __file__)
        assert f" sets {fields}, and on Spark an instance lives for one batch" in str(each.message)
        assert "keep what is to last in a state (persistent_aggregate" in str(each.message)


def test_a_bolt_whose_file_has_changed_since_its_import_is_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    code = "class Edited:\n    def execute(self, tuple):\n        self.n = (1)\n"
    file.write_text(code)
    names: dict[str, Any] = {"__name__": "edited"}
    exec(compile(code, str(file), "exec"), names)
    assert "self.n" in str(lost_fields("edited", names["Edited"], False))
    file.write_text(code.replace("(1)", "(1"))
    linecache.checkcache(str(file))
    assert lost_fields("edited", names["Edited"], False) is None


# -- groupings ---------------------------------------------------------------------------------------------------------


@bolt(output="task int, id long, key string")
class Where:
    def prepare(self, context: Any) -> None:
        self.task = context.task_index

    def execute(self, tuple: Any) -> Any:
        return self.task, tuple["id"], tuple["key"]


@bolt(output="id long, ts long, key string, v double", direct="default")
class Directs:
    def prepare(self, context: Any) -> None:
        self.tasks = context.component_tasks("where")

    def execute(self, tuple: Any, collector: Any) -> None:
        collector.emit_direct(self.tasks[tuple["id"] % 3], tuple.get_values())


IDS = list(range(1, 13))
GROUPED: dict[str, tuple[tuple[Any, ...], Any]] = {
    **dict.fromkeys(
        ("shuffle_grouping", "none_grouping", "local_or_shuffle_grouping"),
        ((), lambda found: {task for task, _, _ in found} == {0, 1, 2}),
    ),
    "fields_grouping": (("key",), lambda found: len({(key, task) for task, _, key in found}) == 4),
    "partial_key_grouping": (("key",), lambda found: 4 < len({(key, task) for task, _, key in found}) <= 8),
    "all_grouping": ((), lambda found: sorted(id for task, id, _ in found if task == 1) == IDS),
    "global_grouping": ((), lambda found: {task for task, _, _ in found} == {0}),
    "direct_grouping": ((), lambda found: all(task == id % 3 for task, id, _ in found)),
    "custom_grouping": (
        (lambda values, tasks: values[0] % tasks,),
        lambda found: all(t == id % 3 for t, id, _ in found),
    ),
}


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_grouping_chooses_the_right_tasks_in_every_runtime(grouping: str) -> None:
    arguments, holds = GROUPED[grouping]
    builder = TopologyBuilder("where").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("rows", InputSpout(FIELDS))
    if grouping == "direct_grouping":
        builder.set_bolt("directs", Directs).shuffle_grouping("rows")
    read = "directs" if grouping == "direct_grouping" else "rows"
    getattr(builder.set_bolt("where", Where, 3), grouping)(read, *arguments)
    rows = [[(id, id, "abcd"[id % 4], 1.0) for id in IDS]]
    for run, runtime in ((clustered, Runtime.CLUSTER), (chained, Runtime.SUBMIT)):
        found = [row for output in run(builder.build(), {"rows": rows}) for row in output.get("where", [])]
        wanted = IDS * 3 if grouping == "all_grouping" else IDS
        assert sorted(id for _, id, _ in found) == sorted(wanted), runtime.value
        spread = runtime is Runtime.CLUSTER or grouping not in FUSED
        assert holds(found) or not spread, (runtime.value, found)
        assert GROUPINGS[grouping][runtime] == WORKS


# -- declarers ---------------------------------------------------------------------------------------------------------


@bolt(output="task int, id long, source int")
class Sources:
    def prepare(self, context: Any) -> None:
        self.task = context.task_index

    def execute(self, tuple: Any) -> Any:
        return self.task, tuple["id"], tuple.source_task


def declared(spouts: int = 1, bolts: int = 1, *, by_key: bool = True, change: Any = None) -> Topology:
    builder = TopologyBuilder("declared")
    builder.set_spout("rows", InputSpout(FIELDS), spouts)
    declarer = builder.set_bolt("where", Sources, bolts)
    declarer = declarer.fields_grouping("rows", "key") if by_key else declarer.shuffle_grouping("rows")
    if change is not None:
        change(declarer)
    return builder.build()


def ran(run: Any, topology: Topology) -> list[Any]:
    rows = [[(id, id, "abcdefgh"[id % 8], 1.0) for id in IDS]]
    return [row for output in run(topology, {"rows": rows}) for row in output.get("where", [])]


def test_the_number_of_tasks_has_an_effect_or_is_reported_as_the_table_says() -> None:
    set_later = declared(change=lambda declarer: declarer.set_num_tasks(3))
    for several in (declared(bolts=3), declared(bolts=3, by_key=False), set_later):
        for run in (clustered, chained):
            assert {task for task, _, _ in ran(run, several)} == {0, 1, 2}
        for runtime in (Runtime.CLUSTER, Runtime.SUBMIT):
            assert list(tasks_without_effect(runtime, several.components.values())) == []
    spouts = declared(spouts=3)
    assert len({source for _, _, source in ran(clustered, spouts)}) == 3
    assert len({source for _, _, source in ran(chained, spouts)}) == 1, "the source has one partition"
    cell = DECLARER_OPTIONS["set_spout parallelism"][Runtime.SUBMIT]
    assert isinstance(cell, Without)
    sentence = f"parallelism=3 of 'rows' has no effect in Spark submit: {cell.reason}"
    assert list(tasks_without_effect(Runtime.SUBMIT, spouts.components.values())) == [sentence]
    assert list(tasks_without_effect(Runtime.CLUSTER, spouts.components.values())) == []


def test_a_setting_of_one_component_has_an_effect_or_is_reported_as_the_table_says() -> None:
    for change in (
        lambda declarer: declarer.configure(debug=True),
        lambda declarer: declarer.configure({"topology.debug": True}),
        lambda declarer: declarer.add_configuration("topology.debug", True),
    ):
        topology = declared(change=change)
        assert topology.component("where").config.debug is True
        components = topology.components.values()
        assert list(settings_without_effect(Runtime.CLUSTER, topology.config, components)) == []
        assert list(settings_without_effect(Runtime.SUBMIT, topology.config, components)) == [
            "topology.debug of 'where' has no effect in Spark submit: only LocalCluster logs each tuple"
        ]


# -- operations of Trident ---------------------------------------------------------------------------------------------


def counted(stream: Any) -> Any:
    return stream.partition_aggregate(None, builtins.Count(), "n long")


def stored() -> Any:
    return map_state(MemoryStore(), "counts")


def repartitioned(method: str, *arguments: Any) -> Any:
    return lambda topology, stream: counted(getattr(stream, method)(*arguments))


def with_late_tuples(topology: Any, stream: Any) -> Any:
    windows = stream.global_().tumbling_window(Count(1), "n", builtins.Sum(), "n long", timestamp="n")
    windows.sink("windows")
    return windows.late_stream().project("k", "n")


def windows_of(method: str, *measures: Any) -> Any:
    def declare(topology: Any, stream: Any) -> Any:
        return getattr(stream.global_(), method)(*measures, "n", builtins.Sum(), "n long", timestamp="n")

    return declare


def queried(topology: Any, stream: Any) -> Any:
    grouped = stream.group_by("k")
    totals = grouped.persistent_aggregate(stored(), "n", builtins.Sum(), "t long")
    return stream.partition_by("k").state_query(totals, "k", builtins.MapGet(), "t long").project("k", "t")


def asked_of_a_static_state(topology: Any, stream: Any) -> Any:
    state = topology.new_static_state(stored())
    return stream.partition_by("k").state_query(state, "k", builtins.MapGet(), "t long").project("k", "t")


class Writes:
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        collector.emit((len(tuples),))


# The operations over PAIRS, in both runtimes; GIVEN has their results.
PAIRS: list[list[tuple[str, int]]] = [[("a", 5), ("b", 6), ("a", 7), ("b", 8)], [("a", 1)]]
SAME = [[("a", 5), ("a", 7), ("b", 6), ("b", 8)], [("a", 1)]]
EVEN = [[(2,), (2,)], [(0,), (1,)]]
TOTALS = [[("a", 12), ("b", 14)], [("a", 1)]]
PEEKED: list[Any] = []
TRIED: dict[str, Any] = {
    "each": lambda t, s: s.each("n", lambda row: row.n * 2, "m long").project("m"),
    "filter": lambda t, s: s.filter(lambda row: row.n > 6),
    "map": lambda t, s: s.map(lambda row: (row.k, row.n * 2)),
    "flat_map": lambda t, s: s.flat_map(lambda row: [(row.k, row.n)] * 2),
    "peek": lambda t, s: s.peek(PEEKED.append),
    "project": lambda t, s: s.project("n"),
    "name": lambda t, s: s.name("called"),
    "parallelism_hint": lambda t, s: counted(s.shuffle().map(lambda row: (row.k, row.n)).parallelism_hint(3)),
    "apply_assembly": lambda t, s: s.apply_assembly(lambda each: each.project("n")),
    "sink": lambda t, s: s,
    "partition_by": repartitioned("partition_by", "k"),
    "shuffle": repartitioned("shuffle"),
    "local_or_shuffle": repartitioned("local_or_shuffle"),
    "global_": repartitioned("global_"),
    "batch_global": repartitioned("batch_global"),
    "broadcast": repartitioned("broadcast"),
    "identity_partition": repartitioned("identity_partition"),
    "partition": repartitioned("partition", lambda values, tasks: 1),
    "repartition": repartitioned("repartition", GlobalGrouping()),
    "partition_aggregate": lambda t, s: counted(s),
    "aggregate": lambda t, s: s.aggregate("n", builtins.Sum(), "n long"),
    "chained_agg": lambda t, s: (
        s.chained_agg().aggregate(None, builtins.Count(), "c long").aggregate("n", builtins.Sum(), "t long").chain_end()
    ),
    "chain_end": lambda t, s: s.group_by("k").chained_agg().aggregate("n", builtins.Sum(), "t long").chain_end(),
    "min_by": lambda t, s: s.min_by("n"),
    "max_by": lambda t, s: s.max_by("n"),
    "group_by": lambda t, s: s.group_by("k").aggregate("n", builtins.Sum(), "t long"),
    "to_stream": lambda t, s: s.group_by("k").each("n", lambda row: row.n, "m long").to_stream().project("m"),
    "window": windows_of("window", Count(3), Count(2)),
    "tumbling_window": windows_of("tumbling_window", Count(2)),
    "sliding_window": windows_of("sliding_window", Count(2), Count(1)),
    "late_stream": with_late_tuples,
    "partition_persist": lambda t, s: s.partition_persist(stored(), "n", Writes(), "n long").new_values_stream(),
    "persistent_aggregate": lambda t, s: (
        s.group_by("k").persistent_aggregate(stored(), "n", builtins.Sum(), "t long").new_values_stream()
    ),
    "new_values_stream": lambda t, s: s.persistent_aggregate(
        stored(), "n", builtins.Sum(), "t long"
    ).new_values_stream(),
    "state_query": queried,
    "new_static_state": asked_of_a_static_state,
    "merge": lambda t, s: t.merge(s, s.filter(lambda row: row.n == 7)),
    "join": lambda t, s: t.join([s, s.map(lambda row: (row.k, row.n), "k string, m long")], "k").project("n", "m"),
    "new_stream": lambda t, s: s,
    "configure": lambda t, s: (t.configure(max_attempts=7), s)[1],
}

# The result of each operation: the rows of the two batches.
GIVEN: dict[str, list[list[tuple[Any, ...]]]] = {
    "each": [[(10,), (12,), (14,), (16,)], [(2,)]],
    "filter": [[("a", 7), ("b", 8)], []],
    "map": [[("a", 10), ("a", 14), ("b", 12), ("b", 16)], [("a", 2)]],
    "flat_map": [[row for row in SAME[0] for _ in range(2)], [("a", 1), ("a", 1)]],
    "project": [[(5,), (6,), (7,), (8,)], [(1,)]],
    "parallelism_hint": [[(1,), (1,), (2,)], [(0,), (0,), (1,)]],
    "apply_assembly": [[(5,), (6,), (7,), (8,)], [(1,)]],
    **dict.fromkeys(("partition_by", "shuffle", "local_or_shuffle", "identity_partition"), EVEN),
    **{name: [[(0,), (4,)], [(0,), (1,)]] for name in ("global_", "batch_global", "partition", "repartition")},
    "broadcast": [[(4,), (4,)], [(1,), (1,)]],
    "partition_aggregate": EVEN,
    "partition_persist": [[(2,), (2,)], [(1,)]],
    "aggregate": [[(26,)], [(1,)]],
    "chained_agg": [[(4, 26)], [(1, 1)]],
    **dict.fromkeys(("chain_end", "group_by"), TOTALS),
    "min_by": [[("a", 5), ("b", 6)], [("a", 1)]],
    "max_by": [[("a", 7), ("b", 8)], [("a", 1)]],
    "to_stream": [[(5,), (6,), (7,), (8,)], [(1,)]],
    "window": [[(11,), (21,)], []],
    "tumbling_window": [[(11,), (15,)], []],
    "sliding_window": [[(5,), (11,), (13,), (15,)], []],
    "late_stream": [[], [("a", 1)]],
    "persistent_aggregate": [TOTALS[0], [("a", 13)]],
    "new_values_stream": [[(26,)], [(27,)]],
    "state_query": [[("a", None), ("a", None), ("b", None), ("b", None)], [("a", 12)]],
    "new_static_state": [[("a", None), ("a", None), ("b", None), ("b", None)], [("a", None)]],
    "merge": [[("a", 5), ("a", 7), ("a", 7), ("b", 6), ("b", 8)], [("a", 1)]],
    "join": [[(5, 5), (5, 7), (6, 6), (6, 8), (7, 5), (7, 7), (8, 6), (8, 8)], [(1, 1)]],
    **dict.fromkeys(("peek", "name", "sink", "new_stream", "configure"), SAME),
}


def trident_plan(operation: str) -> Any:
    topology = TridentTopology("tried")
    stream = topology.new_stream("in", Given()).parallelism_hint(2)
    TRIED[operation](topology, stream).sink("out").parallelism_hint(2)
    return topology.build()


@pytest.mark.parametrize("operation", TRIED)
def test_a_trident_operation_has_the_expected_result_in_both_runtimes(operation: str) -> None:
    PEEKED.clear()
    plan = trident_plan(operation)
    alone, cut = TridentRun(plan), StageRun(trident_plan(operation).by_section())
    for txid, (rows, wanted) in enumerate(zip(PAIRS, GIVEN[operation], strict=True), 1):
        assert sorted(alone.batch({"in": rows})["out"]) == wanted, Runtime.TRIDENT.value
        assert sorted(cut.batch(txid, rows)) == wanted, Runtime.SUBMIT_TRIDENT.value
    assert set(TRIDENT_OPERATIONS[operation].values()) == {WORKS}
    assert len(PEEKED) == (10 if operation == "peek" else 0)
    assert plan.config.max_attempts == (7 if operation == "configure" else 5)
    assert ("called" in {node.name for node in plan.graph.nodes.values()}) == (operation == "name")


def test_every_trident_operation_and_grouping_is_tested_here() -> None:
    assert set(TRIED) == set(GIVEN) == TRIDENT_OPERATIONS.keys() - {"new_drpc_stream"}
    assert set(GROUPED) == set(GROUPINGS)


def test_a_drpc_stream_is_refused_on_spark_with_the_sentence_of_the_table() -> None:
    topology = TridentTopology("asked")
    topology.new_drpc_stream("words").map(lambda row: row.args, "word string")
    cell = TRIDENT_OPERATIONS["new_drpc_stream"][Runtime.SUBMIT_TRIDENT]
    assert isinstance(cell, Refused)
    with pytest.raises(ConfigError, match=cell.sentence):
        trident_submit._require_runnable(topology.build())


def test_a_store_in_the_memory_of_the_process_is_refused_on_spark_by_its_name() -> None:
    class OwnStore(MemoryStore):
        pass

    for store in (MemoryStore(), OwnStore()):
        topology = TridentTopology("kept")
        topology.new_stream("in", Given()).persistent_aggregate(
            map_state(store, "counts"), "n", builtins.Sum(), "t long"
        )
        with pytest.raises(
            ConfigError, match=f"'kept' lies in a {type(store).__name__}, in the memory of this process"
        ):
            trident_submit._require_runnable(topology.build())


# -- settings ----------------------------------------------------------------------------------------------------------

CHANGED: dict[str, Any] = {
    "message_timeout": seconds(7),
    "enable_message_timeouts": False,
    "max_spout_pending": 3,
    "acker_executors": 0,
    "acker_rotation": 3,
    "max_attempts": 3,
    "retry_delay": millis(7),
    "retry_delay_max": seconds(70),
    "tick_tuple_freq": seconds(1),
    "state_checkpoint_interval": millis(700),
    "state_provider": "sqlite",
    "max_task_parallelism": 3,
    "sleep_spout_wait": millis(7),
    "batch_emit_interval": millis(7),
    "max_batch_size": 7,
    "debug": True,
}


def configured(runtime: Runtime, setting: str) -> TopologyConfig:
    """Declare a topology with the setting, with the checks that a runtime makes before it runs."""
    if runtime in (Runtime.TRIDENT, Runtime.SUBMIT_TRIDENT):
        trident = TridentTopology("set")
        trident.new_stream("in", Given()).sink("out")
        return trident.configure(**{setting: CHANGED[setting]}).build().config
    builder = TopologyBuilder("set").configure(**{setting: CHANGED[setting]})
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("where", Where, 9).shuffle_grouping("rows")
    built = builder.build()
    if runtime is Runtime.SUBMIT:
        _require_runnable(execution_context(built))
    assert built.component("where").parallelism == (3 if setting == "max_task_parallelism" else 9)
    return built.config


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_has_an_effect_is_refused_or_reported_as_the_table_says(setting: str) -> None:
    (key,) = (key for key in KEYS if key.typed == setting)
    for runtime, cell in SETTINGS[setting].items():
        if isinstance(cell, Refused):
            with pytest.raises(ConfigError) as refused:
                configured(runtime, setting)
            assert cell.sentence in str(refused.value), runtime.value
            continue
        config = configured(runtime, setting)
        assert getattr(config, key.attribute) != getattr(TopologyConfig(), key.attribute)
        wanted = [f"{key.storm} has no effect in {runtime.value}: {cell[0]}"] if isinstance(cell, Without) else []
        assert list(settings_without_effect(runtime, config)) == wanted


def test_settings_that_coordination_replaces_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    trident = TridentTopology("set").configure(
        **{name: CHANGED[name] for name in COORDINATED}, message_timeout=seconds(7)
    )
    trident.new_stream("in", Given()).sink("out")
    plan = trident.build()
    TridentCluster(plan, batches={"in": []}, clock=VirtualClock()).close()
    assert caplog.records == []
    TridentCluster(plan, batches={"in": []}, clock=VirtualClock(), coordination=CoordinatorConfig()).close()
    keys = [key.storm for key in KEYS if key.typed in COORDINATED]
    assert [record.getMessage() for record in caplog.records] == [
        f"topology 'set': {key} has no effect in TridentCluster: coordination= is given and replaces it" for key in keys
    ]


def test_a_python_spout_is_refused_on_spark_with_the_sentence_of_the_table() -> None:
    @decorators.spout(output="n long")
    def numbers() -> Any:
        yield 1

    builder = TopologyBuilder("numbers")
    builder.set_spout("numbers", numbers)
    for option in ("@spout output", "@spout direct"):
        cell = COMPONENT_OPTIONS[option][Runtime.SUBMIT]
        assert isinstance(cell, Refused)
        with pytest.raises(ConfigError, match=cell.sentence):
            _given(builder.build(), {})


# -- arguments of a start ----------------------------------------------------------------------------------------------

STARTS: dict[Runtime, tuple[Any, ...]] = {
    Runtime.LOCAL: (run_local,),
    Runtime.CLUSTER: (LocalCluster, run_topology),
    Runtime.TRIDENT: (TridentCluster, run_trident),
    Runtime.WINDOWED: (query.windowed, query.WindowedStream.start),
    Runtime.SUBMIT: (submit,),
    Runtime.SUBMIT_TRIDENT: (trident_submit.submit_trident,),
}


@pytest.mark.parametrize("runtime", STARTS)
def test_the_table_has_exactly_the_arguments_of_each_start_function(runtime: Runtime) -> None:
    named = {name for start in STARTS[runtime] for name in inspect.signature(start).parameters}
    assert named - {"self", "bolt", "topology", "spark"} == {
        option for option, row in START_OPTIONS.items() if runtime in row
    }


TIMED: dict[str, Any] = {"length": Count(1), "slide": Count(1)}


def rows_of(result: Any) -> Any:
    return result.outputs["probe"]


def local(start: Mapping[str, Any], options: Mapping[str, Any] = TIME) -> Any:
    batches = [[dict(zip(("id", "ts", "key", "v"), row, strict=True)) for row in batch] for batch in ROWS]
    return run_local(probe(options), **{"batches": batches, **start})["default"]


def cluster(start: Mapping[str, Any], options: Mapping[str, Any] = TIME) -> Any:
    return run_topology(topology(probe(options)), **{"batches": {"rows": ROWS}, "clock": VirtualClock(), **start})


@windowed_bolt(Count(1), Count(1), output="calls long")
class Calls:
    def __init__(self) -> None:
        self.calls = 0

    def execute(self, window: Any) -> int:
        self.calls += 1
        return self.calls


named = [{"default": [dict(zip(("id", "ts", "key", "v"), row, strict=True)) for row in batch]} for batch in ROWS]


@bolt
class Kept:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> None:
        self.state.put(tuple["id"], 1)


def stateful(**start: Any) -> None:
    builder = TopologyBuilder("kept")
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("kept", Kept).global_grouping("rows")
    run_topology(builder.build(), {"rows": ROWS}, clock=VirtualClock(), **start)


def states_of_a_cluster(folder: Path) -> None:
    states = MemoryStateProvider()
    stateful(states=states)
    assert len(dict(states.state("kept", 0).items())) == 10


def path_of_a_cluster(folder: Path) -> None:
    stateful(state_path=folder / "kept.db")
    with SqliteStateProvider(folder / "kept.db", "kept") as states:
        assert len(dict(states.state("kept", 0).items())) == 10


def order_of(start: Any, seed: int | None) -> list[Any]:
    PEEKED.clear()
    start(seed)
    return list(PEEKED)


def source_of_a_cluster(folder: Path) -> None:
    queue = SqliteQueue(folder / "queue.db", FIELDS)
    queue.put(row for batch in ROWS for row in batch)
    assert rows_of(cluster({"batches": None, "sources": {"rows": queue}})) != rows_of(cluster({"batches": {}}))
    assert len(queue) == 0


def source_of_trident(folder: Path) -> None:
    queue = SqliteQueue(folder / "queue.db", "key string, n long")
    queue.put([("a", 1), ("b", 2)])
    topology = TridentTopology("sources")
    topology.new_stream("rows", FixedBatchSpout("key string, n long", 9, [("c", 3)])).sink("out")
    usual = run_trident(topology, clock=VirtualClock())["out"]
    assert run_trident(topology, sources={"rows": queue}, clock=VirtualClock())["out"] != usual
    assert len(queue) == 0


def cluster_by_seed(seed: int | None) -> None:
    builder = TopologyBuilder("seeded")
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("peeks", bolt(lambda tuple: PEEKED.append(tuple["id"])), 4).shuffle_grouping("rows")
    run_topology(builder.build(), {"rows": ROWS}, clock=VirtualClock(), seed=seed)


def sinks_of(
    declare: Any = None, batches: Any = None, run_drain: bool = True, clock: Any = None, **start: Any
) -> dict[str, Any]:
    trident = TridentTopology("started")
    stream = trident.new_stream("in", Given())
    (stream if declare is None else declare(stream)).sink("out")
    given = {"in": PAIRS} if batches is None else batches
    return run_trident(trident, given, drain=run_drain, clock=clock or VirtualClock(), **start).sinks


def trident_by_seed(seed: int | None) -> None:
    sinks_of(lambda stream: stream.shuffle().peek(PEEKED.append).parallelism_hint(4), seed=seed)


def records_of_trident(folder: Path) -> None:
    store = MemoryRecordStore()
    sinks_of(records=store)
    assert store.blobs


def path_of_trident(folder: Path) -> None:
    sinks_of(state_path=folder / "records.db")
    with closing(SqliteRecordStore(folder / "records.db")) as store:
        assert store.paths("started/")


def sinks_of_trident(folder: Path) -> None:
    written: list[Any] = []
    assert sinks_of(sinks={"out": lambda txid, rows: written.append((txid, sorted(rows)))}) == {}
    assert written == list(enumerate(SAME, 1))


def coordination_of_trident(folder: Path) -> None:
    failures = [FailedException("first")]

    def fails_once(row: Any) -> None:
        while failures:
            raise failures.pop()

    assert len(sinks_of(lambda stream: stream.peek(fails_once))["out"]) == 5
    failures.append(FailedException("again"))
    once = CoordinatorConfig(retry=RetryPolicy(max_attempts=1))
    with pytest.raises(FailedException, match="failed 1 times"):
        sinks_of(lambda stream: stream.peek(fails_once), coordination=once)


def windows_of_trident(stream: Any) -> Any:
    return stream.global_().window(Count(1), Count(1), None, lambda window: window.end_timestamp, "end long")


def differ(one: Any, other: Any) -> Any:
    return lambda folder: pytest.fail("the argument is without effect") if one() == other() else None


def seeded(start: Any) -> Any:
    def tried(folder: Path) -> None:
        usual = order_of(start, None)
        assert any(order_of(start, seed) != usual for seed in range(20))
        assert order_of(start, 7) == order_of(start, 7)

    return tried


STARTED: dict[Runtime, dict[str, Any]] = {
    Runtime.LOCAL: {
        "batches": differ(lambda: local({}), lambda: local({"batches": []})),
        "drain": differ(lambda: local({}), lambda: local({"drain": False})),
        "clock": differ(
            lambda: local({"clock": VirtualClock(5)}, TIMED), lambda: local({"clock": VirtualClock(6)}, TIMED)
        ),
        "streams": differ(
            lambda: local({"drain": False}),
            lambda: local({"drain": False, "batches": named, "streams": ("default", "b")}),
        ),
        "restarts": differ(
            lambda: run_local(Calls, [["a"], ["b"]]).rows, lambda: run_local(Calls, [["a"], ["b"]], restarts=True).rows
        ),
    },
    Runtime.CLUSTER: {
        "batches": differ(lambda: rows_of(cluster({})), lambda: rows_of(cluster({"batches": {"rows": []}}))),
        "drain": differ(lambda: rows_of(cluster({})), lambda: rows_of(cluster({"drain": False}))),
        "clock": differ(
            lambda: rows_of(cluster({"clock": VirtualClock(5)}, TIMED)),
            lambda: rows_of(cluster({"clock": VirtualClock(6)}, TIMED)),
        ),
        "outputs": differ(lambda: set(cluster({}).outputs), lambda: set(cluster({"outputs": ["rows"]}).outputs)),
        "seed": seeded(cluster_by_seed),
        "sources": source_of_a_cluster,
        "states": states_of_a_cluster,
        "state_path": path_of_a_cluster,
    },
    Runtime.TRIDENT: {
        "batches": differ(sinks_of, lambda: sinks_of(batches={"in": []})),
        "drain": differ(
            lambda: sinks_of(lambda stream: windows_of("window", Count(3), Count(3))(None, stream)),
            lambda: sinks_of(lambda stream: windows_of("window", Count(3), Count(3))(None, stream), run_drain=False),
        ),
        "clock": differ(
            lambda: sinks_of(windows_of_trident, clock=VirtualClock(5)),
            lambda: sinks_of(windows_of_trident, clock=VirtualClock(6)),
        ),
        "seed": seeded(trident_by_seed),
        "sources": source_of_trident,
        "records": records_of_trident,
        "state_path": path_of_trident,
        "sinks": sinks_of_trident,
        "coordination": coordination_of_trident,
    },
}


@pytest.mark.parametrize(
    ("runtime", "option"), [(runtime, option) for runtime, tried in STARTED.items() for option in tried]
)
def test_each_argument_of_a_start_function_has_an_effect(runtime: Runtime, option: str, tmp_path: Path) -> None:
    STARTED[runtime][option](tmp_path)


@pytest.mark.parametrize("runtime", Runtime)
def test_every_argument_of_a_start_function_is_tested(runtime: Runtime) -> None:
    given = {option for option, row in START_OPTIONS.items() if runtime in row}
    if runtime in STARTED:
        assert STARTED[runtime].keys() == given
    else:  # arguments of queries are tested in these folders
        folder = Path(__file__).parent
        text = "".join(
            file.read_text(encoding="utf-8") for name in ("spark", "crash") for file in (folder / name).glob("*.py")
        )
        assert {option for option in given if not re.search(rf"\b{option}=|\"{option}\":", text)} == set()


@pytest.mark.parametrize("runtime", [Runtime.LOCAL, Runtime.WINDOWED])
def test_component_configuration_of_a_single_windowed_bolt_is_refused_or_reported(
    runtime: Runtime,
) -> None:
    @windowed_bolt(length=Count(2), output="n long")
    class Asks:
        settings: ClassVar[dict[str, Any]] = {}

        def get_component_configuration(self) -> dict[str, Any]:
            return self.settings

        def execute(self, window: Any) -> list[tuple[int]]:
            return []

    said: list[str] = []

    def announced() -> list[str]:
        said.clear()
        announce_bolt(runtime, lambda form, *values: said.append(form % values), bolt_of(Asks))
        return said

    assert announced() == []
    Asks.settings = {"my.key": 1}
    assert [sentence for sentence in announced() if "'my.key' (get_component_configuration)" in sentence] == said
    assert len(said) == 1
    for ticks in ({"topology.tick.tuple.freq.secs": 1}, {"tick_tuple_freq": seconds(1)}):
        Asks.settings = ticks
        with pytest.raises(
            ConfigError, match=r"'Asks' asks for ticks .* a window over the clock fires in time by itself"
        ):
            announced()


@spout(output=FIELDS)
class OwnRows:
    def next_tuple(self) -> None:
        raise AssertionError("its rows are given")


def test_an_option_without_effect_is_logged_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    LocalRun(probe({**TIME, "message_id": "id", "recovery_timeout": seconds(9)}, stateful=True)).close()
    assert [record.getMessage() for record in caplog.records] == [
        "recovery_timeout= of bolt 'probe' has no effect in run_local: a run has no restart"
    ]
    caplog.clear()
    builder = TopologyBuilder("fed").configure(max_spout_pending=3, enable_message_timeouts=False)
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_spout("own", OwnRows).configure(max_spout_pending=2)
    builder.set_bolt("where", Where).shuffle_grouping("rows").shuffle_grouping("own")
    builder.set_bolt("probe", probe({**TIME, "watermark_interval": millis(5)})).shuffle_grouping("rows")
    builder.set_bolt("usual", probe(TIME)).shuffle_grouping("rows")
    LocalCluster(builder.build(), clock=VirtualClock()).close()
    assert caplog.records == []
    LocalCluster(builder.build(), batches={"rows": ROWS}, clock=VirtualClock()).close()
    unused = "topology 'fed': watermark_interval= of bolt 'probe' has no effect: windows advance after each batch"
    assert [record.getMessage() for record in caplog.records] == [
        "topology 'fed': topology.max.spout.pending has no effect on the rows of batches=: a batch comes whole",
        unused,
    ]
    caplog.clear()
    LocalCluster(builder.build(), batches={"own": ROWS}, clock=VirtualClock()).close()
    sentence = (
        "topology 'fed': max_spout_pending= of spout 'own' has no effect on the rows of batches=: a batch comes whole"
    )
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1
    caplog.clear()
    builder = TopologyBuilder("fed").configure(enable_message_timeouts=False)
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("probe", probe({**TIME, "watermark_interval": millis(5)})).shuffle_grouping("rows")
    LocalCluster(builder.build(), clock=VirtualClock()).close()
    assert [record.getMessage() for record in caplog.records] == [unused]


def test_why_windows_advance_within_the_rows_of_run_batch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def said(*windowed: Any, limit: int | None = 3) -> list[str]:
        caplog.clear()
        builder = TopologyBuilder("fed").configure(enable_message_timeouts=False)
        builder.set_spout("rows", InputSpout(FIELDS))
        builder.set_spout("other", InputSpout(FIELDS)).configure(max_spout_pending=limit)
        builder.set_bolt("where", Where).shuffle_grouping("rows").shuffle_grouping("other")
        for each in windowed:
            builder.set_bolt("probe", each).shuffle_grouping("rows")
        with LocalCluster(builder.build(), clock=VirtualClock()) as cluster:
            cluster.run_batch({"rows": ROWS[0]})
            cluster.run_batch({"rows": ROWS[1]})
        return [text for record in caplog.records if "late or unusable tuples" not in (text := record.getMessage())]

    assert said(probe(TIME)) == [
        "topology 'fed': max_spout_pending of spout 'other' lets rows of run_batch wait, so the windows of bolt 'probe' advance by "
        "the clock too, each task with a watermark of its own; leave it out, and they advance after each batch"
    ]
    assert said(probe(TIME), limit=None) == []
    assert said() == []


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
    alike: dict[tuple[str, ...], list[str]] = {}
    for runtime in Runtime:
        if any(runtime in row for row in rows.values()):
            alike.setdefault(tuple(shown(row.get(runtime)) for row in rows.values()), []).append(runtime.value)
    names: dict[tuple[str, ...], list[str]] = {}
    for name, cells in zip(rows, zip(*alike, strict=True), strict=True):
        names.setdefault(cells, []).append(f"`{name}`")
    lines = [[title, *(", ".join(runtimes) for runtimes in alike.values())], ["---"] * (len(alike) + 1)]
    lines += [[", ".join(named), *cells] for cells, named in names.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def test_the_guides_have_every_sink_source_grouping_and_operation() -> None:
    pages = guides()
    named = {*SINKS, *SOURCES, *GROUPINGS, *TRIDENT_OPERATIONS}
    assert [name for name in named if not re.search(rf"\b{name}\b", pages)] == []


def test_the_docs_show_the_tables() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for title, rows in (
        ("window", WINDOW_OPTIONS),
        ("component", COMPONENT_OPTIONS),
        ("declarer", DECLARER_OPTIONS),
        ("grouping", GROUPINGS),
        ("operation", TRIDENT_OPERATIONS),
        ("setting", SETTINGS),
        ("start", START_OPTIONS),
        ("sink", SINKS),
        ("source", SOURCES),
    ):
        assert table(title, rows) in text, f"\n{table(title, rows)}"
    flowing = " ".join(text.split())
    for explained in re.findall(r"^    - (.*(?:\n      .*)*)", windowed_bolt.__doc__ or "", re.MULTILINE):
        assert f"- {' '.join(explained.split())}" in flowing
