"""A failure is raised as an error of this library that names bolt, window and cause, or the damaged file."""

from __future__ import annotations

import ctypes
import glob
import importlib
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

from windowing import errors
from windowing.errors import (
    BoltError,
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    GroupingError,
    SessionError,
    SinkError,
    SourceError,
    WindowingError,
    WorkerLostError,
)
from windowing.spark import FunctionSink, MemorySink, ParquetSink, checkpoint, failures, windowed
from windowing.spark.checkpoint import Checkpoint, damaged_file
from windowing.spark.failpoints import hit
from windowing.spark.failures import FailedQuery, WorkerError, library_error, marked
from windowing.spark.hadoop import Folder
from windowing.topology.decorators import bolt_of, tumbling
from windowing.topology.user_code import BoltRunner
from windowing.windows.events import ListContent, TupleWindow
from windowing.windows.measures import count, seconds

OK = [{"k": "a", "ts": ts, "v": 1.0} for ts in (500, 2500)]


def bolt(value: Any = None, output: str = "n long", **options: Any) -> Any:
    @tumbling(seconds(1), timestamp="ts", output=output, name="checked", **options)
    def checked(window: Any) -> Any:
        if value == "exit":
            os._exit(3)
        if value == "crash":
            ctypes.string_at(0)
        if value == "raise":
            raise ZeroDivisionError("none\nleft")
        return (len(window),) if value is None else (value,)

    return checked


SUMS = FailedQuery("sums", "/data/checkpoint", 7)


def encoded(error: WindowingError) -> str:
    with pytest.raises(WorkerError) as caught, marked():
        raise error
    return str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        *(kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__),
        GroupingError,
    ],
)
def test_every_error_class_crosses_the_jvm_unchanged(kind: type[WindowingError]) -> None:
    original = kind("what, wanted, the way out: \"'{}\n\\ é")
    spark = RuntimeError(f"Job aborted due to stage failure\n  {encoded(original)}\n\tat org.apache.spark.Foo")
    found = library_error(spark, SUMS)
    assert type(found) is type(original)
    assert found.args == original.args
    assert (found.__cause__, found.__context__) == (None, spark)
    assert "Traceback" in found.__notes__[0]


def test_an_error_of_an_unknown_class_becomes_its_nearest_known_base_class() -> None:
    class Special(BoltError):
        pass

    assert type(library_error(RuntimeError(encoded(Special("x"))), SUMS)) is BoltError


@pytest.mark.parametrize(
    "text",
    ["windowing-error:", "windowing-error:{", "windowing-error:[1]", 'windowing-error:{"class": "os"} x', "boom"],
)
def test_text_that_resembles_an_encoded_error_is_handled(text: str) -> None:
    found = library_error(RuntimeError(text), SUMS)
    assert isinstance(found, RuntimeError) or type(found) is WindowingError


def test_the_text_of_a_user_exception_is_never_taken_for_an_error_of_the_library() -> None:
    def forged(text: str) -> BaseException:
        problem = BoltError("bolt 'b' failed")
        problem.__cause__ = ValueError(text)
        trace = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  ValueError: "
        return RuntimeError(f"Job aborted: {trace}{text}\n{encoded(problem)}\n\tat org.apache.spark.Foo")

    for text in (
        '[DRAINED] checkpoint c was drained: windowing-error:{"class": "DrainedCheckpointError", "message": "no", "trace": ""}',
        "[CONCURRENT_QUERY] Multiple streaming jobs detected",
        "Python worker exited unexpectedly",
        "Job 3 cancelled",
        "file:/ck/state/0/1/2.delta does not exist",
    ):
        found = library_error(forged(text), SUMS)
        assert (type(found), found.args) == (BoltError, ("bolt 'b' failed",))
        raw = PySparkRuntimeError(
            f"Job aborted: PythonException: Traceback (most recent call last):\nValueError: {text}\n\tat org"
        )
        assert library_error(raw, SUMS) is raw
        own = ValueError(text)
        assert library_error(own, SUMS) is own, "the driver does not look for Spark's words in a sink's"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error while reading file file:///in/a%20b.0.parquet. Could not "
            "read footer. Please ensure that the file is in either ORC or Parquet format.\nIf not, convert it. SQLSTATE: KD001",
            "'sums' cannot read a file of its input, file:///in/a%20b.0.parquet: Could not read footer. Please ensure that the "
            "file is in either ORC or Parquet format; nothing of the batch was committed. Repair the file or put it back, "
            "correct the schema of the source if it does not fit the file, or leave such files out by "
            "spark.sql.files.ignoreCorruptFiles=true. Start it again from checkpoint",
        ),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/in/x.json. File does not exist. It is "
            "possible the underlying files have been updated.\nYou can ... SQLSTATE: KD001",
            "or leave such files out by spark.sql.files.ignoreMissingFiles=true",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/in/x.json.  SQLSTATE: KD001\n\tat org.x\n"
            "Caused by: java.lang.A: b\n\tat y\nCaused by: java.io.EOFException: Unexpected end of input\n\tat z",
            "a file of its input, file:/in/x.json: java.io.EOFException: Unexpected end of input; nothing",
        ),
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/in/x.json.  SQLSTATE: KD001",
            "a file of its input, file:/in/x.json: Spark does not say why; nothing",
        ),
    ],
)
def test_an_unreadable_input_file_is_named_with_the_setting_that_ignores_it(said: str, sentence: str) -> None:
    query = FailedQuery("sums", "/data/checkpoint")
    found = library_error(PySparkRuntimeError(f"Job aborted due to stage failure: Lost task 0.0: x\n{said}"), query)
    assert isinstance(found, SourceError)
    assert sentence in str(found)
    own = said.replace("/in/", "/data/checkpoint/windowing/control/")
    assert not isinstance(library_error(PySparkRuntimeError(own), query), SourceError), (
        "a file of the checkpoint is no input"
    )


@pytest.mark.parametrize("join", [lambda column: column.take([1, 0]), lambda column: column.combine_chunks()])
def test_a_batch_of_two_gigabytes_for_a_task_is_told_with_a_way_out(join: Callable[[Any], Any]) -> None:
    part = pa.array(["x" * 2**28])
    with pytest.raises(pa.ArrowException) as caught:
        join(pa.chunked_array([part] * 8))
    trace = "".join(traceback.format_exception(caught.value))
    found = library_error(
        PySparkRuntimeError(f"[PYTHON_EXCEPTION] An exception was thrown: {trace} SQLSTATE: 38000"), SUMS
    )
    assert type(found) is SourceError
    assert "batch 7 of 'sums' has 2 GiB or more in one column for one task" in str(found)
    assert "maxFilesPerTrigger" in str(found)


def test_the_jvm_gets_the_first_lines_of_an_interrupted_call_and_other_errors_whole(spark: SparkSession) -> None:
    java: Any = spark._jvm.java  # type: ignore[union-attr]
    java.lang.Thread.currentThread().interrupt()
    with pytest.raises(Py4JJavaError) as interrupted:
        java.lang.Thread.sleep(1)
    told = failures.text_for_jvm(interrupted.value)
    assert told is not None
    assert re.fullmatch(  # the words that Spark searches for
        r"py4j\.protocol\.Py4JJavaError: An error occurred while calling \S+\s*: java\.lang\.InterruptedException: sleep .*",
        told,
    )
    with pytest.raises(Py4JJavaError) as other:
        java.lang.Class.forName("no.such")
    for error in (other.value, BoltError("java.lang.InterruptedException")):
        assert failures.text_for_jvm(error) is None


def test_errors_are_decoded_only_with_the_mark_of_this_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    seal, ours = cloudpickle.dumps(failures.Seal()), failures._mark
    monkeypatch.setattr(failures, "_mark", "windowing-error:of another process:")
    elsewhere = RuntimeError(encoded(BoltError("x")))
    pickle.loads(seal)
    assert failures._mark == ours
    assert library_error(elsewhere, SUMS) is elsewhere
    assert type(library_error(RuntimeError(encoded(BoltError("x"))), SUMS)) is BoltError


class Ends(BaseException):
    pass


@pytest.mark.parametrize(
    "problem",
    [KeyboardInterrupt("now"), GeneratorExit("now"), SystemExit("now"), Ends("now"), ValueError("\udc80 now")],
)
def test_any_exception_of_a_bolt_leaves_its_worker_as_an_ascii_worker_error(problem: BaseException) -> None:
    @tumbling(count(1), timestamp="ts", output="n long", name="raises")
    def raises(window: Any) -> Any:
        raise problem

    runner = BoltRunner(bolt_of(raises))
    runner.open()
    with pytest.raises(WorkerError) as caught, marked():
        runner.run(TupleWindow(ListContent([1], [1], []), None, 3, None))
    assert str(caught.value).isascii()
    assert caught.value.__suppress_context__, "Spark would tell of the causes, in words that may be no UTF-8"
    found = library_error(RuntimeError(str(caught.value)), SUMS)
    assert type(found) is BoltError
    assert f"bolt 'raises' failed on TupleWindow(end=3): {type(problem).__name__}: " in str(found)


def test_other_exceptions_in_a_worker_pass_unchanged_unless_spark_cannot_carry_them() -> None:
    for passes in (ValueError("plain é"), GeneratorExit()):
        with pytest.raises(type(passes)) as caught, marked():
            raise passes
        assert caught.value is passes
    for problem, words in (
        (ValueError("\udc80"), "ValueError: \\\\udc80"),
        (KeyboardInterrupt("now"), "KeyboardInterrupt: now"),
    ):
        with pytest.raises(WorkerError) as told, marked():
            raise problem
        assert words in str(told.value)


def test_an_error_of_the_library_is_returned_unchanged() -> None:
    original = ConfigError("x")
    assert library_error(original, SUMS) is original


def test_a_failing_bolt_ends_the_query_with_bolt_window_and_cause_and_a_restart_loses_no_row(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    source = feed().add([OK[0]], [OK[1]])
    with pytest.raises(BoltError) as caught:
        run(bolt("raise"), source.read())
    message = str(caught.value)
    assert "bolt 'checked' failed on TupleWindow(start=0, end=1000): ZeroDivisionError: none\\nleft" in message
    assert "\n" not in message
    assert "Py4J" not in message
    assert type(caught.value.__context__).__module__.startswith("pyspark")
    printed = "".join(traceback.format_exception(caught.value))
    assert "pyspark" not in printed.partition("In a Python worker:")[0], "Spark's words would hide ours"
    assert "ZeroDivisionError: none" in printed.partition("In a Python worker:")[2]
    assert printed.rstrip().endswith("In batch 1 of 'checked', which is not committed.")
    assert len(printed.splitlines()) < 40
    assert sorted(os.listdir(tmp_path / "checkpoint/commits"))[-1] == "0", "the failed batch is not committed"
    assert run(bolt(), source.read(), drain=True).rows() == [(1,), (1,)]


@pytest.mark.parametrize(
    ("value", "why"),
    [("exit", "crashed, or was killed"), ("crash", rf"Segmentation fault in checked, {re.escape(__file__)}:\d+")],
)
def test_a_crashed_worker_ends_the_query_with_bolt_line_and_batch_and_a_restart_loses_no_row(
    feed: Callable[..., Any], run: Callable[..., Any], value: str, why: str
) -> None:
    source = feed().add([OK[0]], [OK[1]])
    with pytest.raises(WorkerLostError) as caught:
        run(bolt(value), source.read())
    message = str(caught.value)
    assert re.search(rf"a Python worker of 'checked' died \({why}\) 4 times while making batch 1; look at", message)
    assert "memory" in message
    assert "os._exit" in message
    assert "\n" not in message
    assert "Python worker exited unexpectedly" in str(caught.value.__cause__)
    assert run(bolt(), source.read(), drain=True).rows() == [(1,), (1,)]


def test_a_worker_that_connects_too_late_is_retried_and_no_row_is_lost(
    spark: SparkSession,
    feed: Callable[..., Any],
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = tmp_path / "python"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *driver_worker*) mkdir {tmp_path}/was-slow 2>/dev/null && sleep 11 ;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(slow))
    monkeypatch.setattr(sys, "executable", str(slow))
    assert run(bolt(), feed().add([OK[0]], [OK[1]]).read(), drain=True).rows() == [(1,), (1,)]
    assert (tmp_path / "was-slow").exists()


def test_messages_of_spark_about_a_lost_worker_become_worker_lost_errors() -> None:
    for text, sentence in (
        (
            "Task 0 in stage 2.0 failed 4 times, most recent failure: ...: Python worker exited unexpectedly",
            "4 times while",
        ),
        (
            "Task 0 in stage 2.0 failed 4 times, most recent failure: Lost task 0.3 in stage 2.0 (TID 9) (host executor 29): "
            "ExecutorLostFailure (executor 29 exited caused by one of the running tasks) Reason: Command exited with code 137",
            "lost 4 times while making batch 7: Command exited with code 137; look",
        ),
        (
            "Task 0 in stage 2.0 failed 4 times, most recent failure: ...PythonWorkerException: Python worker process terminated "
            "due to idle timeout (timeout: 15 seconds)",
            "gave nothing for 15 s, and Spark ended it 4 times .*killOnIdleTimeout.* making batch 7; look for a bolt that hangs",
        ),
        ("TransformWithStateInPySpark driver worker exited unexpectedly (crashed)", r"killed\) while making batch 7"),
        (
            "failed 4 times, most recent failure: Lost task: SparkException: Python worker exited unexpectedly (crashed): Fatal "
            "Python error: Segmentation fault\n\nThread 0x07 (most recent call first):\n"
            '  File "/jobs/other.py", line 1 in wait\n\nCurrent thread 0x08 (most recent call first):\n'
            '  File "/lib/ctypes/__init__.py", line 519 in string_at\n  File "/jobs/delays.py", line 12 in mean\n'
            '  File "/jobs/delays.py", line 7 in held\n  File "/lib/windowing/topology/user_code.py", line 9 in call\n\n'
            "Extension modules: numpy",
            r"died \(Segmentation fault in mean, /jobs/delays\.py:12\) while making batch 7",
        ),
        (
            "Python worker exited unexpectedly (crashed): Fatal Python error: Aborted\n\nCurrent thread 0x08 (most recent call "
            "first):\n  <no Python frame>\n\n",
            r"died \(Aborted\) while making batch 7",
        ),
        ("Python worker exited unexpectedly (crashed): \n", r"died \(crashed, or was killed\) while making batch 7"),
        ("SparkException: Python worker failed to connect back.", r"in time .* batch 7: .*authenticate\.socketTimeout"),
        ("Timed out while waiting for the Python worker to connect back", "the machine is too busy"),
        (
            "A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot rollback",
            r"behind a shuffle .* batch 7 was made, and came again in another order.*order_by=",
        ),
    ):
        spark = PySparkRuntimeError(f"An error occurred while calling o12.first.\n: {text}\n\tat org.apache.spark.Foo")
        found = library_error(spark, SUMS)
        assert isinstance(found, WorkerLostError)
        assert found.__cause__ is spark
        with pytest.raises(
            WorkerLostError,
            match=f"(?:a Python worker|an executor|rows) of 'sums' .*{sentence}.*start again from the checkpoint",
        ):
            raise found


@pytest.mark.parametrize("before", [0, 600, 5000])
def test_a_cause_in_the_middle_of_a_long_text_of_spark_is_found(before: int) -> None:
    frames = ["\tat org.apache.spark.Foo"] * before
    cause = 'Caused by: java.io.IOException: Cannot run program "/opt/python": error=2'
    spark = PySparkRuntimeError("\n".join(["Job aborted due to stage failure", *frames, cause, *frames]))
    with pytest.raises(SessionError, match='another environment: Cannot run program "/opt/python"'):
        raise library_error(spark, SUMS)


def test_an_encoded_error_of_a_worker_has_precedence_over_spark_s_message() -> None:
    spark = PySparkRuntimeError(f"Python worker exited unexpectedly: {encoded(BoltError('x'))}")
    assert type(library_error(spark, SUMS)) is BoltError


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "\n",
        "a\n",
        "a/state/",
        "ExecutorLostFailure (",
        "FileNotFoundException: /",
        "Partitions ",
        "RocksDBException: ",
        "org.apache.kafka.",
        "Fetch position FetchPosition{offset=1",
        "Error from python worker:\n",
        "[FAILED_READ_FILE.A] x. ",
    ],
)
def test_an_error_of_spark_that_quotes_a_long_value_is_read_at_once(value: str) -> None:
    long = value * (300_000 // len(value))
    started = time.process_time()
    for said in (
        long,
        long.replace("\n", ""),
        f"[CAST_INVALID_INPUT] The value '{long}' cannot be cast to \"BIGINT\".",
    ):
        error = PySparkRuntimeError(said)
        assert library_error(error, SUMS) is error
    assert time.process_time() - started < 2


def test_a_module_missing_in_the_workers_is_named_and_registered_by_value_the_query_continues(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "modules" / "a_module_of_the_drivers_alone.py"
    module.parent.mkdir()
    module.write_text(
        "from windowing import seconds, tumbling\n\n\n"
        "@tumbling(seconds(1), timestamp='ts', output='n long')\n"
        "def counted(window):\n    return len(window)\n"
    )
    monkeypatch.syspath_prepend(str(module.parent))
    imported = importlib.import_module(module.stem)
    sys.path.remove(str(module.parent))  # a local worker finds modules where the driver does
    counted = imported.counted
    source = feed().add(OK)
    with pytest.raises(
        SessionError, match=r"workers of 'counted' have no module 'a_module_of.*register_pickle_by_value\(module\)"
    ) as caught:
        run(counted, source.read())
    assert "\n" not in str(caught.value)
    assert type(caught.value.__cause__).__module__.startswith("pyspark")
    cloudpickle.register_pickle_by_value(imported)
    assert run(counted, source.read(), drain=True).rows() == [(1,), (1,)]
    cloudpickle.unregister_pickle_by_value(imported)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "ModuleNotFoundError: No module named 'windowing'",
            r"no module 'windowing'; install windowing\[spark\] into the Python",
        ),
        ("ModuleNotFoundError: No module named 'windowing.spark'", r"install windowing\[spark\]"),
        ("ModuleNotFoundError: No module named 'pandas'", r"install windowing\[spark\]"),
        ("ModuleNotFoundError: No module named 'mine.own'", r"no module 'mine\.own', .*register_pickle_by_value"),
        (
            "AttributeError: Can't get attribute 'f' on <module 'mine' from 'x'>",
            "'mine' without 'f': another version than here",
        ),
        (
            "pyspark.errors: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            "PYTHON_VERSION_MISMATCH",
        ),
    ],
)
def test_a_missing_package_or_module_in_a_worker_is_named_without_spark_s_plan(said: str, sentence: str) -> None:
    text = f"[STREAM_FAILED] Query terminated: Traceback\n  File x\n    return cloudpickle.loads(obj)\n{said}\n\n=== Query ===\nx"
    spark = PySparkRuntimeError(text)
    found = library_error(spark, SUMS)
    assert isinstance(found, SessionError)
    assert found.__cause__ is spark
    with pytest.raises(SessionError, match=f"the Python workers of 'sums' have .*{sentence}"):
        raise found
    assert "\n" not in str(found)
    own = RuntimeError(said)
    assert library_error(own, SUMS) is own, "a sink of the user's lacks a module on the driver"


PLACES = {
    "nosuch://bucket/x": "No FileSystem for scheme",
    "s3a://me:key@bucket/x": r"s3a://me:\*\*\*@bucket/x cannot be used: .*spark\.jars\.packages",
    "hdfs://127.0.0.1:1/x": "ConnectException.* answers",
    "{file}/x": "not a directory.*; a file is there: give the path of a folder",
    "/proc/x": "Mkdirs failed.* the right to make and write it",
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unreachable_checkpoint_or_output_folder_is_named_before_anything_starts(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    path, source = place.format(file=tmp_path / "file"), feed().add(OK)
    with pytest.raises(CheckpointError, match=PLACES[place]) as refused:
        windowed(bolt(), source.read()).start(MemorySink(), path)
    with pytest.raises(SinkError, match=PLACES[place]) as written:
        run(bolt(), source.read(), sinks={"default": ParquetSink(path)})
    assert "\n" not in f"{refused.value}{written.value}"
    if "://" in path:
        with pytest.raises(SinkError, match=PLACES[place]):
            ParquetSink(path).read(spark)
    assert not (tmp_path / "checkpoint/offsets").exists()


def test_a_file_system_error_during_a_query_is_a_sink_or_checkpoint_error(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    class Lost(ParquetSink):
        def write(self, rows: Any, batch_id: int) -> None:
            shutil.rmtree(self.path)
            Path(self.path).touch()
            super().write(rows, batch_id)

    source = feed().add(OK)
    with pytest.raises(
        SinkError, match=r"out has nothing of stream .*default.* any more: since the query started it was deleted"
    ):
        run(bolt(), source.read(), sinks={"default": Lost(str(tmp_path / "out"))})

    def without_commits(*_: Any) -> None:
        shutil.rmtree(tmp_path / "checkpoint/commits")
        (tmp_path / "checkpoint/commits").touch()

    with pytest.raises(CheckpointError, match=r"checkpoint .*checkpoint cannot be used: .*commits; .*start again"):
        run(bolt(), source.read(), sinks={"default": FunctionSink(without_commits)})


def test_other_sources_on_a_checkpoint_are_a_changed_definition(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    one, other = feed(name="one").add(OK), feed(name="other").add(OK)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    two = str(tmp_path / "two" / "checkpoint")
    run(bolt(), one.read())
    run(bolt(), one.read().union(other.read()), checkpoint=two)
    for rows, given in (
        (other.read(), None),  # another folder
        (rate.selectExpr("'a' k", "value ts", "0D v"), None),  # another kind
        (other.read(), two),  # one fewer
    ):
        with pytest.raises(
            DefinitionChangedError, match=r"reads other sources than checkpoint .*checkpoint has read: \w+"
        ):
            run(bolt(), rows, checkpoint=given)
    with pytest.raises(
        DefinitionChangedError, match=r"has other operators of Spark with a state .*: .* dedupe\)\]; give it"
    ):
        run(bolt(), one.add(OK).read().dropDuplicates(["k"]))


def test_an_exception_of_a_sink_has_a_note_with_its_stream_and_batch(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    def down(rows: Any, batch_id: int) -> None:
        raise RuntimeError("the database is down")

    with pytest.raises(RuntimeError, match="the database is down") as caught:
        run(bolt(), feed().add(OK).read(), sinks={"default": FunctionSink(down)})
    assert caught.value.__notes__ == [
        "In the sink of stream 'default' of 'checked', on batch 0, which is not committed."
    ]


class Java:
    """An exception of the JVM."""

    def __init__(self, said: str, cause: Java | None = None) -> None:
        self.toString, self.getCause = lambda: said, lambda: cause


REFUSED = "java.net.ConnectException: Call From vm/127.0.0.1 to localhost:{} failed on connection exception"
GONE = {
    "stopped": (
        Java(REFUSED.format(8020), Java("java.net.ConnectException: Connection refused")),
        "Connection refused; see that its server is named rightly and answers; nothing of the batch was committed",
    ),
    "killed while it answered": (
        Java(
            'java.io.EOFException: End of File Exception between local host is: "vm/127.0.0.1"; destination host is: '
            '"localhost":8020; : java.io.EOFException; For more details see: http://wiki.apache.org/hadoop/EOFException',
            Java("java.io.EOFException"),
        ),
        "java.io.EOFException; see that its server is named rightly and answers; nothing of the batch was committed",
    ),
    "read-only": (
        Java(
            "org.apache.hadoop.ipc.RemoteException(SafeModeException): Cannot create file/jobs/c/state/0/0/.3. Name node is in "
            "safe mode.\nIt was turned on manually."
        ),
        "safe mode.; it takes no writes now: wait until its NameNode has left safe mode",
    ),
}


@pytest.mark.parametrize("what", GONE)
def test_an_unavailable_file_system_is_not_reported_as_damaged_state(what: str) -> None:
    cause, sentence = GONE[what]
    error: Any = PySparkRuntimeError("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.")
    error.java_exception = Java("org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]", cause)
    found = library_error(error, FailedQuery("sums", "hdfs://127.0.0.1:8020/jobs/c"))
    assert isinstance(found, CheckpointError)
    assert sentence in str(found)
    assert "\n" not in str(found)
    other = library_error(error, FailedQuery("sums", "hdfs://127.0.0.1:9020/other"))
    assert isinstance(other, CorruptStateError), "another store has gone"


@pytest.mark.parametrize(
    "said", ["[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED]", "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT]"]
)
def test_a_full_local_disk_is_not_reported_as_damaged_state(said: str) -> None:
    full = "While appending to file: /local/workingDir-259e0c92/MANIFEST-000001: No space left on device"
    error: Any = PySparkRuntimeError(
        f"An error occurred while calling o429.save.\n: org.apache.spark.SparkException: {said}"
    )
    error.java_exception = Java(
        f"org.apache.spark.SparkException: {said}", Java(f"org.rocksdb.RocksDBException: {full}")
    )
    found = library_error(error, SUMS)
    assert isinstance(found, CheckpointError)
    assert not isinstance(found, CorruptStateError)
    assert f"'sums' cannot write the working copy of its state: {full}; make room there" in str(found)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            "org.apache.spark.storage.TimeTrackingOutputStream.write(TimeTrackingOutputStream.java:59)",
            "'sums' cannot write the rows of a shuffle to spark.local.dir: No space left on device; make room there",
        ),
        (
            "org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java:412)",
            f"checkpoint {SUMS.checkpoint} cannot be used: java.io.IOException: No space left on device; make room there",
        ),
    ],
)
def test_a_disk_that_a_shuffle_fills_is_not_reported_as_that_of_the_checkpoint(frame: str, said: str) -> None:
    full = "java.io.IOException: No space left on device"
    trace = f"{full}\n\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n\tat {frame}"
    shuffle = "\n\tat org.apache.spark.shuffle.ShuffleWriteProcessor.write(ShuffleWriteProcessor.scala:58)"
    aborted = f"org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.3: {trace}{shuffle}"
    error: Any = PySparkRuntimeError(f"An error occurred while calling o421.save.\n: {aborted}")
    error.java_exception = Java(aborted, Java(full))
    found = library_error(error, SUMS)
    assert isinstance(found, CheckpointError)
    assert said in str(found)


@pytest.mark.parametrize("state", [False, True])
def test_a_full_disk_that_the_function_of_a_sink_writes_to_is_not_reported_as_that_of_the_checkpoint(
    state: bool,
) -> None:
    full = Java(
        "org.apache.hadoop.fs.FSError: java.io.IOException: No space left", Java("java.io.IOException: No space left")
    )
    if state:
        full = Java("org.apache.spark.SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT]", full)
    written = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/full/out."
    error: Any = PySparkRuntimeError(f"An error occurred while calling o421.save.\n: {written}")
    error.java_exception = Java(written, full)
    found = library_error(error, SUMS)
    assert (SUMS.checkpoint in str(found)) is state
    assert (found is error) is not state, "Spark's own error names the folder"


@pytest.mark.parametrize("said", ["CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT", "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"])
@pytest.mark.parametrize(
    ("why", "way_out"),
    [
        ("Read-only file system", "give the user of the session the right to make and write it"),
        ("Permission denied", "give the user of the session the right to make and write it"),
        ("No space left on device", "make room there"),
        ("Too many open files", "raise the limit of open files"),
    ],
)
def test_a_file_of_the_state_that_cannot_be_opened_is_not_reported_as_damaged(
    why: str, way_out: str, said: str
) -> None:
    def failed(why: str) -> Any:
        cause = f"java.io.FileNotFoundException: {SUMS.checkpoint}/state/0/0/.1_2a0c.changelog.2442.tmp ({why})"
        error: Any = PySparkRuntimeError(f"An error occurred while calling o429.save.\n: [{said}]\nCaused by: {cause}")
        error.java_exception = Java(f"org.apache.spark.SparkException: [{said}]", Java(cause))
        return error

    found = library_error(failed(why), SUMS)
    assert type(found) is CheckpointError
    assert f"({why}); {way_out}" in str(found)
    assert type(library_error(failed("No such file or directory"), SUMS)) is CorruptStateError


KEY = "java.nio.file.AccessDeniedException: jobs/c/{0}: Writing Object on jobs/c/{0}: S3Exception: Access Denied:AccessDenied"
CLIENT = "software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Service: S3, Status Code: 403)"


@pytest.mark.parametrize("file", ["commits/.2.6a012e2d.tmp", "state/0/0/.3_de067c80.changelog.a89a529a.tmp"])
def test_a_write_to_s3_that_is_denied_during_a_query_is_a_checkpoint_error(file: str) -> None:
    error: Any = PySparkRuntimeError("[STREAM_FAILED] Query terminated")
    error.java_exception = Java("org.apache.spark.SparkException: x", Java(KEY.format(file), Java(CLIENT)))
    found = library_error(error, FailedQuery("sums", "s3a://bucket/jobs/c"))
    assert isinstance(found, CheckpointError)
    assert str(found).startswith(
        f"[CHECKPOINT] checkpoint s3a://bucket/jobs/c cannot be used: {KEY.format(file)}; give the user"
    )
    assert library_error(error, FailedQuery("sums", "s3a://bucket/other")) is error, "a file of something else"


def test_values_of_every_type_round_trip_and_late_rows_are_unchanged(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    import datetime
    from decimal import Decimal

    noon = datetime.datetime(2020, 2, 29, 12, 0, 0, 123456, datetime.UTC)
    row = (
        *(None, 2**63 - 1, float("nan"), -0.0, "é\x00\n", b"\x00\xff", True, noon, datetime.date(9999, 12, 31)),
        *(Decimal("1.50"), [1, None], {"a": None}, [float("nan"), None], {"a": float("nan")}, {"x": 1, "y": None}),
    )
    output = (
        "a long, b long, c double, d double, e string, f binary, g boolean, h timestamp, i date, "
        "j decimal(10,2), k array<int>, l map<string,int>, m array<double>, n map<string,float>, o struct<x:int,y:string>"
    )

    @tumbling(count(1), timestamp="ts", output=output, late_stream="late")
    def typed(window: Any) -> Any:
        return row

    schema = "ts timestamp, f double, i int, m map<string,int>, a array<struct<x:double,t:timestamp>>, b binary"
    odd = {"ts": None, "f": float("nan"), "i": None, "m": [("x", 1)], "a": [{"x": 1.0, "t": noon}, None], "b": b"\xff"}
    odd["a"] += [{"x": float("nan"), "t": None}]
    done = run(typed, feed(schema).add([odd, odd | {"ts": noon}]).read())
    (found,) = done.rows()
    assert repr(found[:14]) == repr(row[:14]).replace("b'\\x00\\xff'", repr(found[5]))
    assert bytes(found[5]) == row[5]
    assert found[14].asDict() == row[14]
    (late,) = done.sinks["late"].rows
    assert repr(late["f"]) == "nan"
    assert (late["i"], late["m"], bytes(late["b"]), late["reason"]) == (None, {"x": 1}, b"\xff", "invalid")
    assert repr([entry and tuple(entry) for entry in late["a"]]) == repr([(1.0, noon), None, (float("nan"), None)])


def test_a_failing_sink_ends_the_query_with_its_own_error_and_the_batch_is_replayed(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    source = feed().add(OK)

    def full(rows: Any, batch_id: int) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(bolt(), source.read(), sinks={"default": FunctionSink(full)})
    assert run(bolt(), source.read()).rows() == [(1,)]


def test_a_damaged_state_file_is_reported_as_corrupt_and_named(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    """Spark raises CANNOT_LOAD_STATE_STORE from foreachBatch, or "Stream is corrupted", without the name of the file."""
    source = feed().add([OK[0]], [OK[0]])
    run(bolt(), source.read(), checkpoint=str(tmp_path / "good"))
    source.add(OK)

    def broken(name: str, damage: Callable[[str], None]) -> str:
        shutil.copytree(tmp_path / "good", tmp_path / name)
        file = max(glob.glob(str(tmp_path / name / "state/0/0/2_*.changelog")))
        damage(file)
        with pytest.raises(CorruptStateError) as caught:
            run(bolt(), source.read(), checkpoint=str(tmp_path / name))
        assert os.path.basename(file) in str(caught.value)
        return str(caught.value)

    assert "nothing was reset" in broken("flipped", _flip)
    assert "nothing was reset" in broken("truncated", lambda file: os.truncate(file, 20))
    assert "nothing was reset" in broken("deleted", os.remove)


@pytest.mark.parametrize(
    "written",
    [
        {"2_killed.changelog.crc": b'{"algorithm": "CRC32C", "value": 1}'},
        {"3_killed.changelog.crc": b'{"algorithm": "CRC32C", "value": 1}'},
        {"3_killed.zip": b"half", "3_killed.zip.crc": b"half", ".3_killed.zip.crc.crc": b"crc\0\0\0\2\0other"},
        {".3_killed.changelog.7.tmp": b"half", "..3_killed.changelog.7.tmp.crc": b"crc\0\0\0\2\0other"},
    ],
    ids=["of a batch that was repeated", "of a batch that is repeated now", "and its checksum", "not yet renamed"],
)
def test_a_half_written_state_of_an_attempt_that_was_not_committed_is_not_reported_as_damaged(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, written: Mapping[str, bytes]
) -> None:
    def broken(rows: Any, batch_id: int) -> None:
        rows.selectExpr("no_such_column").collect()

    source = feed().add([OK[0]], [OK[0]])
    run(bolt(), source.read())
    for name, content in written.items():
        (tmp_path / "checkpoint/state/0/0" / name).write_bytes(content)
    source.add(OK)
    with pytest.raises(AnalysisException, match="no_such_column"):
        run(bolt(), source.read(), sinks={"default": FunctionSink(broken)})


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("state", "checkpoint/state/0 is missing; put"),
        ("state/0", "checkpoint/state/0 is missing; put"),
        ("state/0/0", r"checkpoint is damaged or missing: file:.*/checkpoint/state/0/0/1_[^ ]*\.changelog"),
    ],
)
def test_a_missing_folder_of_the_state_is_named(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, lost: str, named: str
) -> None:
    source, out = feed().add(OK), tmp_path / "out"
    run(bolt(), source.read(), sinks={"default": ParquetSink(str(out))})
    shutil.rmtree(tmp_path / "checkpoint" / lost)
    source.add(OK)
    with pytest.raises(CorruptStateError, match=named):
        run(bolt(), source.read(), sinks={"default": ParquetSink(str(out))})


def test_files_that_change_while_the_checkpoint_is_scanned_are_not_reported_as_damaged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a failed batch still write for a moment: a listing fails, or a checksum exists before its file."""
    (tmp_path / "good").write_text("x")
    whole, looks = Folder.files, iter(["vanished", "half written", "half written elsewhere", ""])

    def files(folder: Folder) -> list[str]:
        look = next(looks)
        if look == "vanished":
            raise RuntimeError("ls: cannot access '.2_x.changelog.tmp'")
        return [*whole(folder), *([f"{look}.crc"] if look else [])]

    monkeypatch.setattr(Folder, "files", files)
    assert damaged_file(Checkpoint(spark, str(tmp_path))) is None
    assert next(looks, None) is None

    (tmp_path / "bad.crc").write_text("no checksum of a file that is there")
    looks = iter(["vanished", "half written", "vanished", ""])
    assert damaged_file(Checkpoint(spark, str(tmp_path))) == f"file:{tmp_path}/bad"


@pytest.mark.parametrize(
    ("name", "whole", "cut"),
    [
        ("sources/0/3", 'v1\n{"path":"file:///a","timestamp":1,"batchId":3}', 'v1\n{"path":"file:///a","timest'),
        ("sources/0/9.compact", 'v1\n{"path":"a"}\n{"path":"b"}', 'v1\n{"path":"a"}\n{"pa'),
        ("state/0/_metadata/v2/0", 'v2\n{"operatorInfo":{}}', "v"),
        ("sources/1/0", "v1\n17", ""),
        ("sources/2/0", '\0v1\n{"flights":{"0":17}}', '\0v1\n{"fli'),
        ("sources/2/0", '\0v1\n{"flights":{"0":17}}', "\0v1"),
        ("sources/3/0", '{"offset":17}', '{"off'),
    ],
)
def test_a_file_of_a_log_that_was_cut_is_damaged_also_without_a_checksum(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole: str, cut: str
) -> None:
    monkeypatch.setattr(checkpoint, "_BETWEEN_LOOKS_S", 0.0)
    (tmp_path / name).parent.mkdir(parents=True)
    for content, damaged in ((whole, None), (cut, f"file:{tmp_path}/{name}")):
        (tmp_path / name).write_text(content)
        assert damaged_file(Checkpoint(spark, str(tmp_path))) == damaged


def test_a_failure_is_raised_even_if_the_checkpoint_cannot_be_scanned(
    feed: Callable[..., Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Folder) -> list[str]:
        raise RuntimeError("permission denied")

    monkeypatch.setattr(checkpoint, "_BETWEEN_LOOKS_S", 0.0)
    monkeypatch.setattr(Folder, "files", refused)
    source = feed().add(OK).read().selectExpr("k", "ts", "raise_error('a broken source') as v")
    with pytest.raises(Exception, match="a broken source"):
        run(bolt(), source)


def _flip(file: str) -> None:
    """Flip a bit after the header, and remove the checksum file of Hadoop's local file system."""
    content = bytearray(Path(file).read_bytes())
    content[len(content) // 2] ^= 1
    Path(file).write_bytes(content)
    Path(file).with_name(f".{Path(file).name}.crc").unlink(missing_ok=True)


def test_a_failpoint_kills_only_at_its_batch_and_only_once(tmp_path: Path) -> None:
    told = {"WINDOWING_FAILPOINT": "in_sink:3", "WINDOWING_FAILPOINT_ONCE": str(tmp_path / "once")}
    lives = [{}, told, told, {"WINDOWING_FAILPOINT": "kill_worker:3"}]
    code = f"""
import os
from windowing.spark.failpoints import hit  # once: each life is a fork
for told in {lives}:
    if (child := os.fork()) == 0:
        os.setpgrp()
        os.environ.update(told, WINDOWING_FAILPOINT_GROUP=str(os.getpgrp()))
        hit("in_sink", 2); hit("before_batch", 3); print("alive", flush=True)
        hit("in_sink", 3); print("past", flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    whole, killed = ["alive", "past", "0"], ["alive", str(-signal.SIGKILL)]
    assert said == [*whole, *killed, *whole, *whole]


@pytest.mark.parametrize("wanted", ["", "in_sink", "nowhere:1", "in_sink:x"])
def test_a_misspelt_failpoint_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDOWING_FAILPOINT", wanted)
    with pytest.raises(ConfigError, match="WINDOWING_FAILPOINT"):
        hit("in_sink", 1)
