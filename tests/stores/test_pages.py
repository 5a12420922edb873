"""Stored pages round-trip, or raise an error that names the page; checkpoints are atomic."""

from __future__ import annotations

import datetime
import math
import sqlite3
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.memory_pages import MemoryPages
from windowing.errors import CheckpointError, CorruptStateError
from windowing.schema.rows import record_type
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.stores.pages import SqlitePages, decode_page, encode_page
from windowing.windows.pages import PageRows, PageStore

ROWS = PageRows([3, 3, 7], [("a", 1), ("b", 2.5), ("c", None)], [0, 4, 2])

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
MOMENTS = st.datetimes(allow_imaginary=False).map(lambda at: at.replace(fold=0))
PLAIN = st.recursive(
    SCALARS | MOMENTS | st.dates() | st.timedeltas() | st.binary(max_size=4) | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=1)
    ),
    max_leaves=6,
)
OF_ONE_KIND = (
    st.lists(SCALARS)
    | st.lists(st.tuples(SCALARS, SCALARS))
    | st.lists(st.fixed_dictionaries({"a": SCALARS, "$": SCALARS}))
    | st.lists(st.tuples())
    | st.lists(st.dictionaries(st.sampled_from("ab"), SCALARS))
    | st.lists(PLAIN)
)
NUMBERS = st.integers(-(2**62), 2**62)


def same(one: Any, two: Any) -> bool:
    """Compare values and types, nested too: 1, 1.0 and True are three values."""
    return repr(one) == repr(two) and one == two


@given(payloads=OF_ONE_KIND.filter(len), data=st.data())
def test_a_page_round_trips(payloads, data):
    numbers = st.lists(NUMBERS, min_size=len(payloads), max_size=len(payloads))
    rows = PageRows(sorted(data.draw(numbers)), payloads, data.draw(numbers))
    found = decode_page(7, encode_page(7, rows), "page 7")
    assert all(same(one, two) for one, two in zip(found, rows, strict=True))


def test_special_floats_and_lone_surrogates_round_trip():
    payloads = [math.inf, -math.inf, -0.0, 5e-324, "\ud800", "\x00", 2**200]
    found = decode_page(0, encode_page(0, PageRows([0] * 7, payloads, list(range(7)))), "page 0")
    assert repr(found.payloads) == repr(payloads)
    [nan] = decode_page(0, encode_page(0, PageRows([0], [math.nan], [0])), "page 0").payloads
    assert math.isnan(nan)


def test_tuples_of_a_topology_keep_their_fields_source_component_task_and_stream():
    words = Origin("split", 3, Fields("word", "at"), "words")
    numbers = Origin("count", 0, Fields("n"))
    tuples = [Tuple(("storm", 1), words), Tuple((datetime.date(1970, 1, 1),), numbers), Tuple(("spark", 2), words)]
    found = decode_page(1, encode_page(1, PageRows([1, 2, 3], tuples, [0, 1, 2])), "page 1").payloads
    assert [each.as_dict() for each in found] == [each.as_dict() for each in tuples]
    assert [each.source_component for each in found] == ["split", "count", "split"]
    assert (found[0].source_task, found[0].source_stream, found[2].word) == (3, "words", "spark")


def test_records_and_namedtuples_are_read_as_records():
    record, point = record_type(("origin", "flight no")), namedtuple("Point", "x y")
    rows = [record("JFK", 7), point(1, 2), record("LGA", None), point([1], {"a": 2})]
    found = decode_page(1, encode_page(1, PageRows([1] * 4, rows, [0, 1, 2, 3])), "page 1").payloads
    assert found == rows
    assert [each._fields for each in found] == [each._fields for each in rows]
    assert (found[0]["flight no"], found[1].x, found[3]["y"], found[3][0]) == (7, 1, {"a": 2}, [1])
    with pytest.raises(TypeError, match="rows with names and one without"):
        encode_page(1, PageRows([1, 1], [point(1, 2), (1, 2)], [0, 1]))


def test_a_payload_that_is_not_plain_data_is_refused_before_anything_is_stored(tmp_path):
    with SqlitePages(tmp_path / "p") as pages:
        with pytest.raises(TypeError, match="cannot be stored"):
            pages.write(0, PageRows([1], [object()], [0]))
        assert pages.ids() == []


@given(at=st.integers(0), bit=st.integers(0, 7))
def test_every_flipped_bit_is_detected_and_the_page_is_named(at, bit):
    body = bytearray(encode_page(12, ROWS))
    body[at % len(body)] ^= 1 << bit
    with pytest.raises(CorruptStateError, match="page 12 "):
        decode_page(12, bytes(body), "page 12")


@given(length=st.integers(0))
def test_every_truncated_page_is_detected(length):
    body = encode_page(12, ROWS)
    with pytest.raises(CorruptStateError, match="page 12 "):
        decode_page(12, body[: length % len(body)], "page 12")


def test_a_page_stored_under_the_id_of_another_is_detected():
    with pytest.raises(CorruptStateError, match="page 12 holds page 13 instead"):
        decode_page(12, encode_page(13, ROWS), "page 12")


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageStore]:
    if request.param == "memory":
        yield MemoryPages()
        return
    with SqlitePages(tmp_path / "count-0.pages") as pages:
        yield pages


def test_a_page_store_copies_pages_on_write_and_on_read(store):
    rows = PageRows([1, 2], [{"n": 1}, {"n": Decimal("2.50")}], [5, 6])
    store.write(0, rows)
    rows.timestamps.append(3)
    found = store.read(0)
    assert found == PageRows([1, 2], [{"n": 1}, {"n": Decimal("2.50")}], [5, 6])
    found.payloads.clear()
    assert len(store.read(0).payloads) == 2


def test_writing_a_page_twice_is_refused(store):
    store.write(0, ROWS)
    with pytest.raises(CheckpointError, match="page 0 is already written, and pages never change"):
        store.write(0, ROWS)


def test_dropped_pages_are_deleted_and_reading_one_names_it(store):
    for page_id in range(5):
        store.write(page_id, ROWS)
    store.drop([1, 3, 99])
    store.flush()
    assert sorted(store.ids()) == [0, 2, 4]
    with pytest.raises(CorruptStateError, match="page 3 is missing"):
        store.read(3)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_only_flushed_pages_are_there_after_a_reopen(tmp_path):
    with SqlitePages(tmp_path / "p") as pages:
        pages.write(0, ROWS)
        pages.flush()
        pages.write(1, ROWS)
    with SqlitePages(tmp_path / "p") as pages:
        assert pages.ids() == [0]
        assert pages.read(0) == ROWS


def test_a_checkpoint_is_prepared_and_then_committed_or_rolled_back(tmp_path):
    with SqlitePages(tmp_path / "p") as pages:
        assert pages.committed() is None
        pages.prepare(1, {"n": [1, ("a", 2)]})
    with SqlitePages(tmp_path / "p") as pages:
        assert pages.committed() is None
        pages.commit(1)
        pages.commit(1)
        assert pages.committed() == (1, {"n": [1, ("a", 2)]})
        pages.prepare(2, "two")
        pages.prepare(3, "three")
        assert pages.committed() == (1, {"n": [1, ("a", 2)]})
        with pytest.raises(CheckpointError, match="checkpoint 2 was never prepared"):
            pages.commit(2)
        pages.rollback()
    with SqlitePages(tmp_path / "p") as pages:
        with pytest.raises(CheckpointError, match="checkpoint 3 was never prepared"):
            pages.commit(3)
        with pytest.raises(CheckpointError, match="checkpoint 1 is committed"):
            pages.prepare(1, "again")
        pages.prepare(3, "three")
        pages.commit(3)
    with SqlitePages(tmp_path / "p") as pages:
        assert pages.committed() == (3, "three")


def test_a_file_in_use_by_another_process_is_refused(tmp_path):
    script = "import sys; from windowing.stores.pages import SqlitePages; SqlitePages(sys.argv[1])"
    with SqlitePages(tmp_path / "p") as pages:
        pages.write(0, ROWS)
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "p")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "[CHECKPOINT]" in done.stderr
        assert "in use by another process" in done.stderr
        assert pages.read(0) == ROWS


def test_a_damaged_page_or_checkpoint_is_named_and_nothing_is_reset(tmp_path):
    path = tmp_path / "p"
    with SqlitePages(path) as pages:
        pages.write(4, ROWS)
        pages.prepare(1, "one")
        pages.commit(1)
    db = sqlite3.connect(path)
    db.execute("UPDATE page SET body = CAST(substr(body, 1, 30) || x'00' || substr(body, 32) AS BLOB)")
    db.execute("UPDATE checkpoint SET body = x'00'")
    db.commit()
    db.close()
    with SqlitePages(path) as pages:
        with pytest.raises(CorruptStateError, match=r"p: page 4 is damaged.*nothing was reset"):
            pages.read(4)
        with pytest.raises(CorruptStateError, match=r"p: checkpoint 1 is not ours"):
            pages.committed()
        assert pages.ids() == [4]


def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(b"no database at all, but a text " * 50)
    with pytest.raises(CorruptStateError, match="file is not a database"):
        SqlitePages(path)
    assert path.read_bytes().startswith(b"no database")
    with closing(sqlite3.connect(tmp_path / "other")) as db:
        db.execute("CREATE TABLE page (a, b, c)")
    with (
        SqlitePages(tmp_path / "other") as pages,
        pytest.raises(CorruptStateError, match="page 0 cannot be written: table"),
    ):
        pages.write(0, PageRows([1], [1], [0]))
    with pytest.raises(CheckpointError, match=r"cannot be opened: .*; look at the disk and the rights of the file"):
        SqlitePages(tmp_path / "no folder" / "p")
