"""The files that `windowing new NAME` writes: bolts, some rows, a test and a job, which run unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from windowing.cli.loading import CommandRefused, write

_BOLTS = '''\
"""The windows of @NAME@."""

from windowing import TupleWindow, seconds, sliding


@sliding(seconds(10), seconds(5), timestamp="at", lag=seconds(2), late_stream="late", output="ends long, words long, text string")
def count_words(window: TupleWindow) -> tuple[int | None, int, str]:
    """The last 10 s, every 5 s, by the time in `at`; rows may come up to 2 s out of order."""
    rows = window.get()
    return window.end_timestamp, len(rows), " ".join(row.word for row in rows)
'''

_ROWS = """\
[
  [{"word": "to", "at": 1000}, {"word": "be", "at": 4000}, {"word": "or", "at": 8000}, {"word": "not", "at": 7000}],
  [{"word": "to", "at": 11000}, {"word": "be", "at": 13000}],
  [{"word": "late", "at": 9000}, {"word": "that", "at": 17000}]
]
"""

_TEST = '''\
"""python -m pytest"""

from bolts import count_words

from windowing.local import run_local


def test_a_window_holds_the_last_ten_seconds() -> None:
    rows = [{"word": "to", "at": 1_000}, {"word": "be", "at": 8_000}]
    result = run_local(count_words, [rows])
    assert result["default"] == [(5_000, 1, "to"), (10_000, 2, "to be"), (15_000, 1, "be")]


def test_a_late_row_is_not_lost() -> None:
    result = run_local(count_words, [[{"word": "to", "at": 20_000}], [{"word": "be", "at": 1_000}]])
    assert result["late"] == [("be", 1_000, "late")]
'''

_JOB = '''\
"""The job: in one process, or with --spark as a query.

python job.py
python job.py --spark
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bolts import count_words

from windowing import InputSpout, Topology, TopologyBuilder
from windowing.local import run_local

BATCHES = json.loads(Path(__file__).with_name("rows.json").read_text())  # a list of rows for each micro-batch


def topology() -> Topology:
    """The same bolt in a topology: windowing run job.py:topology --rows batches.json"""
    builder = TopologyBuilder("@NAME@")
    builder.set_spout("sentences", InputSpout("word string, at long"))
    builder.set_bolt("count", count_words).shuffle_grouping("sentences")
    return builder.build()


def in_one_process() -> list[Sequence[tuple[Any, ...]]]:
    result = run_local(count_words, BATCHES)
    return [result["default"], result["late"]]


def on_spark() -> list[Sequence[tuple[Any, ...]]]:
    from windowing.spark import MemorySink, session, windowed

    spark, folder = session("@NAME@"), tempfile.mkdtemp()
    for batch in BATCHES:  # a file for each micro-batch
        spark.createDataFrame(batch, "word string, at long").coalesce(1).write.mode("append").json(f"{folder}/in")
    rows = spark.readStream.schema("word string, at long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    sinks = {"default": MemorySink(), "late": MemorySink()}
    query = windowed(count_words, rows, order_by="at").start(sinks, checkpoint=f"{folder}/checkpoint", drain=True)
    query.await_end()
    return [[tuple(row) for row in sink.rows] for sink in sinks.values()]


if __name__ == "__main__":
    shown, late = on_spark() if "--spark" in sys.argv else in_one_process()
    for row in shown:
        print(*row)
    print("late:", late)
'''

_BATCHES = """\
{"sentences": [[["to", 1000], ["be", 4000], ["or", 8000], ["not", 7000]], [["to", 11000], ["be", 13000]],
 [["late", 9000], ["that", 17000]]]}
"""

_FILES = {"bolts.py": _BOLTS, "rows.json": _ROWS, "batches.json": _BATCHES, "test_bolts.py": _TEST, "job.py": _JOB}


def write_project(folder: Path) -> list[Path]:
    """Write the files into a new folder and return their paths. Raises CommandRefused if the folder exists."""
    if not folder.name.isidentifier():
        raise CommandRefused(f"{folder.name!r} is no name for a job; take letters, digits and _, for example my_job")
    if folder.exists():
        raise CommandRefused(f"{folder} is there already, and nothing of it was changed; take another name")
    folder.mkdir(parents=True)
    try:
        for name, text in _FILES.items():
            write(folder / name, text.replace("@NAME@", folder.name).encode())
    except BaseException:
        shutil.rmtree(folder)  # it would be refused the next time
        raise
    return [folder / name for name in _FILES]
