"""The Trident flights job on one day: it passes its own check, the check fails on wrong data, and a kill changes no result."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import flights_trident  # noqa: E402
from flights_check import STATES, Difference, check_totals  # noqa: E402
from flights_data import DAY_MS, HOUR_MS, Folder, batch_of, read_flights, stage  # noqa: E402
from flights_run import CrashError  # noqa: E402
from flights_trident import PARTITIONS, States  # noqa: E402

from windowing.spark import ParquetSink  # noqa: E402
from windowing.trident.fence import Owner  # noqa: E402
from windowing.trident.kinds import TransactionAttempt  # noqa: E402
from windowing.trident.states import ReplaceUpdater  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def options(out: Path, *more: str) -> argparse.Namespace:
    return flights_trident.arguments(["--month", "1", "--days", "1", "--every", "1", "--out", str(out), *more])


class FullSink(ParquetSink):
    """A sink that fails in the second batch, after its states were written and before Spark commits it."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            raise OSError("the disk is full")
        super().write(rows, batch_id)


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """The folder of a run over the flights of 1 January 2013; it fails in its second batch, of 2 January, and is restarted."""
    chosen = options(tmp_path_factory.mktemp("flights"))
    folder = flights_trident.folder_of(chosen)
    folder.begin()
    flights = read_flights(month=1, days=1)
    files = stage(flights, folder.input, batch_of(flights["landing"], chosen.every))
    cloudpickle.register_pickle_by_value(flights_trident)  # the workers cannot import it, just like a script
    try:
        states = flights_trident.states_of(chosen, folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flights_trident, "ParquetSink", FullSink)
            with pytest.raises(OSError, match="the disk is full"):
                flights_trident.stream_all(spark, folder, states, len(files))
        assert states.attempts() == {"2:0": 3 * PARTITIONS}
        flights_trident.stream_all(spark, folder, states, len(files))
    finally:
        cloudpickle.unregister_pickle_by_value(flights_trident)
    yield folder
    folder.close()


def states_in(folder: Folder) -> States:
    return flights_trident.states_of(options(folder.path.parent), folder)


def check(spark: SparkSession, folder: Folder) -> list[str]:
    states = states_in(folder)
    return check_totals(spark, folder, {name: states.values(name) for name in STATES})


def set_in(states: States, name: str, carrier: str, value: int) -> None:
    """Put a value into a state, as a batch after the last one would."""
    for partition in range(PARTITIONS):
        with closing(states.state(name).make_state(partition, PARTITIONS)) as part:
            if (carrier,) in dict(part.items()):
                fence = part.backing.multi_get([]).fence
                attempt = TransactionAttempt(fence.attempt.txid + 1, 0)
                part.own(Owner(fence.owner))
                part.begin_commit(attempt)
                part.multi_update([(carrier,)], [ReplaceUpdater(value)])
                part.commit(attempt)


def test_the_states_equal_spark_sql_after_a_replayed_batch(spark: SparkSession, done: Folder) -> None:
    found = check(spark, done)
    assert len(found) == 7
    assert found[-1] == f"{len(read_flights(1, 1))} flights went in, and {len(read_flights(1, 1))} were counted"
    assert states_in(done).attempts() == {"2:1": 3 * PARTITIONS}
    assert flights_trident.attempts_of(done) == {1: 0, 2: 1}


def test_the_printed_table_has_the_values_of_the_states(done: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    flights_trident.show(states_in(done))
    flights = read_flights(1, 1).query("carrier == 'UA'")["delay"]
    late = f"{(flights > 15).mean():.0%}"
    assert re.search(
        rf"^UA +{len(flights)} +{flights.sum():,} +{flights.mean():.1f} +{late}", capsys.readouterr().out, re.MULTILINE
    )


@pytest.mark.parametrize("name", ["flights", "minutes", "delayed"])
def test_the_check_fails_if_one_flight_is_counted_twice(spark: SparkSession, done: Folder, name: str) -> None:
    states = states_in(done)
    right = states.values(name)["UA"]
    set_in(states, name, "UA", right + 1)
    try:
        with pytest.raises(
            Difference, match=f"state {name}: values differ from Spark SQL: 1 only in the job's output, 1 only"
        ):
            check(spark, done)
    finally:
        set_in(states, name, "UA", right)


@pytest.mark.parametrize("name", ["running", "batches"])
def test_the_check_fails_if_a_batch_of_a_sink_is_missing(
    spark: SparkSession, done: Folder, tmp_path: Path, name: str
) -> None:
    last = sorted((done.output / "carriers" / name).glob("batch_id=*"))[-1]
    last.rename(tmp_path / last.name)
    try:
        with pytest.raises(Difference, match=f"sink {name}: rows differ from Spark SQL: 0 only"):
            check(spark, done)
    finally:
        (tmp_path / last.name).rename(last)


# -- without Spark --------------------------------------------------------------------------------------------------------


def test_a_batch_has_the_landings_of_some_days() -> None:
    landing = pd.Series([DAY_MS - 1, DAY_MS, 3 * DAY_MS - 1, 3 * DAY_MS, 9 * DAY_MS]) + 19 * HOUR_MS
    assert list(batch_of(landing, 1)) == [0, 1, 2, 3, 9]
    assert list(batch_of(landing + DAY_MS, 3)) == [0, 0, 0, 1, 3]
    year, days = read_flights()["landing"], flights_trident.arguments([]).every
    assert batch_of(year, days).nunique() == 13


def test_each_run_on_a_given_store_has_its_own_states(tmp_path: Path) -> None:
    chosen = options(tmp_path, "--store", str(tmp_path / "theirs.db"))
    folder = flights_trident.folder_of(chosen)
    folder.begin()
    first = flights_trident.states_of(chosen, folder)
    assert first == flights_trident.states_of(chosen, folder), "a run that goes on has the same ones"
    folder.close()
    folder.begin()
    second = flights_trident.states_of(chosen, folder)
    folder.close()
    assert first.state("flights").name != second.state("flights").name


class Killed:
    """Replaces the two processes: the first writes a batch to the states, the second records which attempt counts."""

    def __init__(self, counts: int, code: int = -signal.SIGKILL) -> None:
        self.counts, self.code = counts, code

    def __call__(self, script: Path, chosen: Any, out: Path, *more: str, failpoint: str | None = None) -> int:
        folder = flights_trident.folder_of(chosen)
        if failpoint is None:
            assert "--resume" in more
            batch = folder.output / "carriers" / "batches" / "batch_id=000000000001"
            batch.mkdir(parents=True)
            pq.write_table(pa.table({"txid": [2], "attempt": [self.counts]}), batch / "part-0.parquet")
            return 0
        assert failpoint == "after_commits:1", "the middle one of two batches"
        (folder.checkpoints / "carriers" / "commits").mkdir(parents=True)
        (folder.checkpoints / "carriers" / "commits" / "0").touch()
        states = flights_trident.states_of(chosen, folder)
        for name in ("flights", "minutes", "delayed"):
            for partition in range(PARTITIONS):
                with closing(states.state(name).make_state(partition, PARTITIONS)) as part:
                    part.begin_commit(TransactionAttempt(2, 0))
                    part.commit(TransactionAttempt(2, 0))
        return self.code


def test_a_kill_is_reported_with_both_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flights_trident, "run_job", Killed(counts=1))
    flights_trident.crash(options(tmp_path, "--crash"))
    text = capsys.readouterr().out
    assert "Spark has committed 1 of 2 batches; the states hold 0 flights, last written by attempt 2:0." in text
    assert "batch 2 was written by attempt 2:0 before the kill and counts as attempt 2:1" in text


@pytest.mark.parametrize(
    ("killed", "why"), [(Killed(0), "2:0 was killed, and 2:0 counts"), (Killed(1, 0), "ended with 0")]
)
def test_a_kill_that_proves_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Killed, why: str
) -> None:
    monkeypatch.setattr(flights_trident, "run_job", killed)
    with pytest.raises(CrashError, match=f"{why}.*nothing was proven"):
        flights_trident.crash(options(tmp_path, "--crash"))


# -- real kills -----------------------------------------------------------------------------------------------------------


def started(*arguments: str) -> tuple[int, str]:
    """Run the job to its end; return its exit code and output. The process is ended if the test is interrupted."""
    command = [sys.executable, str(EXAMPLES / "flights_trident.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate()
        finally:
            process.terminate()
    return process.returncode, said


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.parametrize(
    ("point", "before", "attempt"),
    [
        ("after_commits", "was written by attempt 2:0 before the kill", 1),
        ("before_claim", "was not in the states at the kill", 0),
    ],
)
def test_a_killed_and_restarted_job_counts_each_flight_once(
    tmp_path: Path, point: str, before: str, attempt: int
) -> None:
    code, said = started(
        "--month", "1", "--days", "2", "--every", "1", "--crash-at", f"{point}:1", "--out", str(tmp_path)
    )
    assert code == 0, said
    assert f"batch 2 {before} and counts as attempt 2:{attempt}; the states equal Spark SQL" in said
    flights = len(read_flights(month=1, days=2))
    assert f"{flights:,} flights went in, and {flights:,} were counted" in said
