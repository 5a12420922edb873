"""A time in a declared `timestamp` field has one form, a datetime in UTC with its zone, wherever user code or a reader sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.execution.chains import chained, clustered
from tests.execution.test_turn import Task
from tests.trident.test_trident_sections import StageRun
from windowing.codec import decode_value, encode_value
from windowing.columnar.bolts import table_of
from windowing.columnar.rows import decode_table, encode_table, values_of
from windowing.local.run import run_local
from windowing.schema.messages import row_of_json, row_of_texts
from windowing.schema.rows import row_of
from windowing.schema.types import Schema
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.stores.pages import decode_page, encode_page
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, bolt_of, tumbling
from windowing.trident import builtins
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.windows.measures import count
from windowing.windows.pages import PageRows

AT = datetime(2024, 2, 29, 12, tzinfo=UTC)
FORMS: dict[str, Any] = {
    "without a zone": datetime(2024, 2, 29, 12),
    "in UTC": AT,
    "in UTC by name": datetime(2024, 2, 29, 12, tzinfo=ZoneInfo("UTC")),
    "with an offset": datetime(2024, 2, 29, 14, tzinfo=timezone(timedelta(hours=2))),
    "in a zone": datetime(2024, 2, 29, 7, tzinfo=ZoneInfo("America/Havana")),
    "of pandas": pd.Timestamp("2024-02-29 12:00"),
    "of pandas with a zone": pd.Timestamp("2024-02-29 14:00+02:00"),
    "of numpy": np.datetime64("2024-02-29T12:00:00", "us"),
}
"""The same time in each form in which a spout or a bolt may give it."""
TIMES = "form string, at timestamp, held struct<at: timestamp, all: array<timestamp>>"


def given_as(form: str) -> tuple[Any, ...]:
    return form, FORMS[form], {"at": FORMS[form], "all": [FORMS[form]]}


def shown(*times: Any) -> str:
    """Return what code can tell of times: their class, their fields, their zone."""
    assert all(isinstance(each, datetime) and each > datetime(2024, 1, 1, tzinfo=UTC) for each in times)
    return " ".join(f"{type(each).__name__} {each.isoformat()} {each.tzname()}" for each in times)


def shown_of(row: Any) -> str:
    return shown(row["at"], row["held"]["at"], *row["held"]["all"])


ALL = shown(AT, AT, AT)

# -- topologies ------------------------------------------------------------------------------------------------------------------


@bolt(output=TIMES)
def makes(tuple: Any) -> Any:
    return given_as(tuple.form)


SEEN = "form string, at timestamp, seen string, stored string"


@bolt(output=SEEN)
class Sees:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        stored = [(key, value) for key, value in self.state.items() if value[0] == tuple.form]
        self.state.put((tuple.at, tuple.form), (tuple.form, tuple.at))
        return tuple.form, tuple.at, shown_of(tuple), "".join(shown(key[0], value[1]) for key, value in stored)


@tumbling(count(1), key="at", output=SEEN)
def windows(window: Any) -> Any:
    (row,) = window.get()
    return row.form, FORMS[row.form], shown_of(row), shown(window.key)


@pytest.mark.parametrize("target", [Sees, windows])
@pytest.mark.parametrize("emits", ["a spout", "a bolt"])
@pytest.mark.parametrize("runtime", [clustered, chained])
def test_bolts_states_keys_and_sinks_of_a_topology_have_it(runtime: Any, emits: str, target: Any) -> None:
    builder = TopologyBuilder("times").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout(TIMES))
    builder.set_bolt("makes", makes).shuffle_grouping("in")
    builder.set_bolt("sees", target, 2).fields_grouping("in" if emits == "a spout" else "makes", "at")
    in_arrow = [(form, AT, {"at": AT, "all": [AT]}) for form in FORMS]  # a DataFrame of Spark has no other form
    rows = in_arrow if runtime is chained else list(map(given_as, FORMS))
    first, second, *_ = runtime(builder.build(), {"in": [rows, rows]})
    for number, batch in enumerate((first, second)):
        assert [row[0] for row in batch["sees"]] == list(FORMS)
        for form, at, seen, stored in batch["sees"]:
            assert shown(at) == shown(AT), form
            assert seen == ALL, form
            assert stored == (shown(AT) if target is windows else shown(AT, AT) * number), form


# -- windows alone -----------------------------------------------------------------------------------------------------------------


@tumbling(count(1), output="at timestamp")
def alone(window: Any) -> Any:
    return list(FORMS.values())


def on_spark(target: Any) -> list[Any]:
    ran = Task(bolt_of(target)).run([{"id": 1, "ts": 1, "key": "a", "v": 1.0}])
    return [(values["at"],) for stream, values in ran.rows if stream == "default"]


@pytest.mark.parametrize("run", [lambda target: run_local(target, [[{"id": 1}]])["default"], on_spark])
def test_the_output_of_a_window_has_it(run: Callable[[Any], Sequence[Any]]) -> None:
    assert [shown(*row) for row in run(alone)] == [shown(AT)] * len(FORMS)


def test_a_row_without_declared_fields_has_the_time_that_was_given() -> None:
    @tumbling(count(1), output="seen string")
    def seen(window: Any) -> Any:
        return repr(window.get()[0].at)

    found = run_local(seen, [[{"at": at} for at in FORMS.values()]])["default"]
    assert found == [(repr(at),) for at in FORMS.values()]


def test_a_column_of_times_with_a_zone_is_in_utc_whatever_zone_the_first_one_has() -> None:
    @tumbling(count(2), columnar="arrow", output="type string, at timestamp")
    def typed(window: Any) -> Any:
        column = window.get()["at"]
        return [(str(column.type), each) for each in column.to_pylist()]

    rows = [{"at": FORMS[form]} for form in ("in a zone", "with an offset", "in UTC", "in a zone")]
    found = run_local(typed, [rows], drain=True)["default"]
    assert found == [("timestamp[us, tz=UTC]", AT)] * len(rows)


# -- Trident -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("emits", ["the spout", "a step"])
def test_steps_groups_and_states_of_trident_have_it(emits: str) -> None:
    def topology(sink: Callable[[Any], Any]) -> Any:
        made = TridentTopology("times")
        stream = made.new_stream("in", InputSpout(TIMES))
        if emits == "a step":
            stream = stream.map(lambda row: given_as(row.form), TIMES)
        sink(stream).sink("out")
        counts = map_state(MemoryStore(), "last")
        stream.group_by("at", "form").persistent_aggregate(counts, "at", builtins.Max(), "last timestamp")
        return made.build()

    def next_step(stream: Any) -> Any:
        return stream.each(None, lambda row: (shown_of(row),), "seen string").project("at", "seen")

    def groups(stream: Any) -> Any:
        return stream.group_by("at").aggregate("form", builtins.Count(), "n long")

    rows = list(map(given_as, FORMS))
    for sink, wanted in ((next_step, [(AT, ALL)] * len(FORMS)), (groups, [(AT, len(FORMS))])):
        run = TridentRun(topology(sink))
        found = run.batch({"in": rows})["out"]
        assert found == wanted
        assert {shown(row[0]) for row in found} == {shown(AT)}
        states = [item for parts in run.states.values() for part in parts for item in part.items()]
        assert sorted(states) == sorted(((AT, form), AT) for form in FORMS)
        assert {shown(key[0], value) for key, value in states} == {shown(AT, AT)}
    if emits == "a step":
        assert StageRun(topology(next_step).by_section()).batch(1, rows) == [(AT, ALL)] * len(FORMS)


# -- exchanges and codecs ----------------------------------------------------------------------------------------------------------


ZONES = st.one_of(
    st.none(),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
    st.sampled_from(["UTC", "America/Havana"]).map(ZoneInfo),
)
SCHEMA = Schema.parse("at timestamp, all array<timestamp>, held struct<at: timestamp>, by map<timestamp, int>")


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES))
@example(datetime(2, 1, 1))
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999))
@example(datetime(2024, 11, 3, 0, 30, fold=1, tzinfo=ZoneInfo("America/Havana")))
def test_a_row_survives_every_exchange_and_codec_in_this_form(time: datetime) -> None:
    moment = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    row = row_of((time, [time, None], {"at": time}, {time: 1}), SCHEMA, "default")
    assert row == (moment, [moment, None], {"at": moment}, {moment: 1})
    assert row_of(row, SCHEMA, "default") == row
    packed = decode_table(encode_table(table_of([row], SCHEMA)))
    page = encode_page(1, PageRows([0], [row], [1]))
    text = time.isoformat()
    message = {"at": text, "all": [text, None], "held": {"at": text}, "by": {text: 1}}
    texts = {name.encode(): json.dumps(value).encode() for name, value in message.items()} | {b"at": text.encode()}
    for found in (
        row,
        tuple(values_of(column)[0] for column in packed.columns),
        decode_value(encode_value(row), "a row"),
        decode_page(1, page, "a page").payloads[0],
        row_of_json(json.dumps(message).encode(), SCHEMA),
        row_of_texts(texts, SCHEMA),
    ):
        assert found == row
        (key,) = found[3]
        times = found[0], found[1][0], found[2]["at"], key
        assert {each.isoformat() for each in times} == {moment.isoformat()}


def test_columns_without_a_zone_become_it_too() -> None:
    naive = pa.table({"at": pa.array([FORMS["without a zone"], None], pa.timestamp("us"))})
    frame = pd.DataFrame({"at": [FORMS["of pandas"]]})

    for returned, form in ((naive, "arrow"), (frame, "pandas")):

        @bolt(output="at timestamp", columnar=form)
        def times(batch: Any, returned: Any = returned) -> Any:
            return returned

        builder = TopologyBuilder("columns").configure({"topology.enable.message.timeouts": False})
        builder.set_spout("in", InputSpout("n int"))
        builder.set_bolt("times", times).shuffle_grouping("in")
        for run in (clustered, chained):
            found = [row[0] for row in run(builder.build(), {"in": [[(1,)]]})[0]["times"]]
            assert [shown(each) for each in found if each is not None] == [shown(AT)]
