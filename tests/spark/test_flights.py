"""The flights job on one day: it passes its own check, and the check fails if an output is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import flights  # noqa: E402
from flights_check import Difference, check_windows  # noqa: E402
from flights_data import DAY_MS, HOUR_MS, Folder, FolderError, batch_of, read_flights, stage  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a run over the first day of 2013."""
    folder = Folder(tmp_path_factory.mktemp("flights") / "out")
    folder.begin()
    table = read_flights(month=1, days=1)
    files = stage(table, folder.input, batch_of(table["landing"], 1))
    cloudpickle.register_pickle_by_value(flights)  # the workers cannot import it, just like a script
    try:
        flights.stream_all(spark, folder, len(files))
    finally:
        cloudpickle.unregister_pickle_by_value(flights)
        folder.close()
    return folder


@pytest.fixture
def changed() -> Iterator[Callable[[Path, Callable[[pa.Table], pa.Table]], None]]:
    """Change a Parquet file, and put it back at the end of the test."""
    kept: dict[Path, bytes] = {}

    def change(path: Path, how: Callable[[pa.Table], pa.Table]) -> None:
        crc = path.with_name(f".{path.name}.crc")
        for each in (path, crc):
            kept[each] = each.read_bytes()
        pq.write_table(how(pq.read_table(path)), path)
        crc.unlink()

    yield change
    for path, content in kept.items():
        path.write_bytes(content)


def _part(folder: Folder, bolt: str, stream: str) -> Path:
    return sorted((folder.output / bolt / stream).glob("batch_id=*/*.parquet"))[-1]


def _set(column: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a change of the first row's value of a column."""

    def change(table: pa.Table) -> pa.Table:
        values = [value, *table.column(column).to_pylist()[1:]]
        index = table.schema.get_field_index(column)
        return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))

    return change


def _wrong_and_twice(table: pa.Table) -> pa.Table:
    """Change a value of the first row, and duplicate the last row."""
    return _set("mean_delay", 3.0000001)(pa.concat_tables([table, table.slice(len(table) - 1)]))


def test_the_job_agrees_with_spark_sql_on_one_day(spark: SparkSession, done: Folder) -> None:
    found = check_windows(spark, done)
    assert found[0] == "flights: 2 files in 2 batches, in the order of landing"
    assert len(found) == 7
    assert not any(": 0 late" in line for line in found)
    assert any("the short last window of a carrier" in line for line in found)


@pytest.mark.parametrize(
    ("bolt", "stream", "change", "more"),
    [
        ("departures", "windows", _wrong_and_twice, 2),
        ("punctuality", "windows", _set("last_row", 1), 1),
        ("departures", "late", _set("dest", "LAX"), 1),
    ],
)
def test_the_check_fails_if_one_value_is_wrong_or_a_window_is_written_twice(
    spark: SparkSession, done: Folder, changed: Any, bolt: str, stream: str, change: Any, more: int
) -> None:
    changed(_part(done, bolt, stream), change)
    with pytest.raises(Difference, match=f"{bolt}: .* differ from Spark SQL: {more} only in the job's output, 1 only"):
        check_windows(spark, done, [bolt])


def test_the_check_fails_if_a_batch_read_another_file(spark: SparkSession, done: Folder) -> None:
    log = done.checkpoints / "flights" / "sources" / "0" / "1"
    kept = log.read_text()
    entry = json.loads(kept.splitlines()[1])
    log.write_text(kept.replace(entry["path"], entry["path"].replace("0001", "0002")))
    try:
        with pytest.raises(Difference, match="took the files in another order"):
            check_windows(spark, done, ["departures"])
    finally:
        log.write_text(kept)


def test_compare_finds_two_outputs_with_another_order_of_rows(done: Folder, changed: Any, tmp_path: Path) -> None:
    copy = Folder(tmp_path / "copy")
    copy.path.mkdir()
    copy.output.symlink_to(done.output)
    rows, batches = flights.compare(done, copy)
    assert rows > 0
    assert batches > 0
    copy.output.unlink()
    for part in done.output.glob("*/*/batch_id=*/*"):
        target = copy.output / part.relative_to(done.output)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(part.read_bytes())
    changed_part = _part(copy, "punctuality", "windows")
    pq.write_table(pq.read_table(changed_part)[::-1], changed_part)
    with pytest.raises(Difference, match="the outputs differ after the crash"):
        flights.compare(done, copy)


def test_the_year_is_split_into_53_weekly_batches_that_end_at_seven_in_the_evening() -> None:
    landing = read_flights()["landing"]
    assert len(landing) == 327_346
    batches = batch_of(landing, flights.arguments([]).every)
    assert list(batches.unique()) == list(range(53))
    ends = landing.groupby(batches).max()
    assert (landing.groupby(batches).min() % DAY_MS)[1:].min() >= 19 * HOUR_MS
    assert (ends % DAY_MS)[:-1].max() < 19 * HOUR_MS


def test_a_folder_that_the_demo_did_not_create_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "mine.txt").write_text("mine")
    with pytest.raises(FolderError, match="was not made by this demo"):
        Folder(tmp_path).begin()
    assert (tmp_path / "input" / "mine.txt").read_text() == "mine"


def test_a_second_run_removes_only_files_of_the_first(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    folder.begin()
    folder.input.mkdir()
    (folder.path / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match="another run is at work"):
        Folder(tmp_path / "out").begin()
    folder.close()
    folder.begin()
    folder.close()
    assert not folder.input.exists()
    assert (folder.path / "notes.txt").exists()
