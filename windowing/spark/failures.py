"""library_error(): converts the exception that ended a query into an error of this library, by its origin.

a worker       a WindowingError crosses the JVM as text: `marked()` encodes it in one line, as JSON after a mark that only this
               driver and its workers know (Seal); the driver makes an error of the same class again
Kafka          a topic has lost messages that were not read, or its brokers refuse
an input file  is damaged or missing
Spark          a second query on the checkpoint, a cancelled job, a lost worker, a worker that lacks a module, a damaged file of the
               checkpoint (which Spark attributes to the user's function), a file that cannot be written; known by Spark's texts
the driver     the session was stopped; an error that is not an Exception. A user's own exception (of a sink) stays unchanged
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from subprocess import TimeoutExpired
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from windowing import errors
from windowing.errors import (
    BoltError,
    CheckpointError,
    CorruptStateError,
    DefinitionChangedError,
    QueryStoppedError,
    SessionError,
    SourceError,
    WindowingError,
    WorkerLostError,
    describe_error,
    printable,
    quote,
)
from windowing.spark.checkpoint import Checkpoint, damaged_file
from windowing.spark.hadoop import java_causes, names_file_of, refused_by_files, unanswered, unreachable
from windowing.spark.session import other_python
from windowing.topology.user_code import ended_in

_mark = f"windowing-error:{secrets.token_hex(16)}:"
_TRACEBACK = "Traceback (most recent call last)"
_MAX_TRACE, _MAX_CAUSE = 8000, 500
_OUT_OF_MEMORY = 52  # SparkExitCode.OOM
_JVM_ENDS_S = 5
_MAX_DEPTH = 20
_FILE = re.compile(
    r"(?<![^\s'\"()\[\],])[^\s'\"()\[\],]*/(?:state/\d+/(?:\d+|_metadata|_stateSchema)|offsets|commits|sources/\d+)/[^\s'\"()\[\],]+"
)
_DAMAGE = re.compile(
    r"CHECKSUM|[Cc]hecksum|FileNotFoundException|does not exist|MALFORMED_LOG_FILE|Incomplete log file"
    r"|ZipException|EOFException|RocksDBException: (?:Corruption|IO error)"
)
_UNOPENED = re.compile(
    r"FileNotFoundException: ([^\n]*) \((?:Read-only file system|Permission denied|No space left on device|Too many open files)\)"
)
"""What Java says of a file that is there, or may not be made."""
_UNREADABLE = re.compile(
    r"CANNOT_LOAD_STATE_STORE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY"
    r"|STDS_FAILED_TO_READ_OPERATOR_METADATA"  # of Spark 4.1, for a missing folder
)
_NO_ROOM = re.compile(
    r"RocksDBException: ([^\n]*No space left on device)"
    # Called by Spark itself, and not through the file system of a checkpoint or an output.
    r"|IOException: (No space left on device)(?:\n\s+at java\.[^\n]*)*\n\s+at org\.apache\.spark\.(?!sql)"
)
_INTERRUPTED = re.compile(r"java\.[a-z.]+\.(?:Interrupted|InterruptedIO|ClosedByInterrupt)Exception")
_CRASHED = re.compile(
    r"Fatal Python error: ([^\n]*).*?^Current thread ([^\n]*\n(?:  [^\n]*\n)+)", re.DOTALL | re.MULTILINE
)
"""What Python's faulthandler has written in a worker that crashed, which Spark quotes: why, and the frames, the innermost first."""
_FRAME = re.compile(r'^  File "([^"\n]*)", line (\d+) in ([^\n]*)$', re.MULTILINE)
_OUR_FRAME = re.compile(r"/windowing/\w+/\w+\.py$")
_UNREACHED = re.compile(r"Python worker (?:failed )?to connect back|RUNNER_INITIALIZATION_TIMEOUT_FAILURE")
_IN_ANOTHER_ORDER = re.compile("A shuffle map stage with indeterminate output was failed and retried")
_TOO_LARGE = re.compile(r"^[ \t]*pyarrow\.lib\.Arrow(?:Invalid: offset overflow|CapacityError: )", re.MULTILINE)
_NO_MODULE = re.compile(r"^[ \t]*ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_OTHER_MODULE = re.compile(r"^[ \t]*AttributeError: Can't get attribute '([\w.]+)' on <module '([\w.]+)'", re.MULTILINE)
_TRIES = re.compile(r"in stage \S+ failed (\d+) times")
_LOST_IN_KAFKA = re.compile(
    r"Starting offset for \S+ was \d+ but consumer reset to \d+"
    r"|Could not read records in offset \[\d+, \d+\) for topic partition \S+"
    r"|Fetch position FetchPosition\{offset=\d+[^\n]*? is out of range for partition \S+"
    r"|Partition \S+ offset was changed from \d+ to \d+"
    r"|Added partition \S+ starts from \d+ instead of 0"
    r"|Cannot find initial offsets for partitions [^\n]*?deleted"
    r"|Partitions [^\n]*? have been deleted"
)
_KAFKA_LOSS = re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRangeException|Some data may have been lost because they")
_BY_KAFKA = re.compile(r"org\.apache\.kafka\.(?:\w+\.)*(\w+Exception): ([^\n]*)")
_INPUT_FILE = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S.*?)\.\s+(?:(?!SQLSTATE)(\S[^\n]*?))?"
    r"\s*(?:SQLSTATE|\n|$)"
)
_CAUSE = re.compile(r"^Caused by: ([^\n]*)", re.MULTILINE)
_FROM_SPARK = ("pyspark.errors", "py4j")
_OURS = ("windowing", "sortedcontainers", "pyspark", "py4j", "pandas", "pyarrow", "numpy", "google")
_WAY_OUT = (
    "put the checkpoint back from a copy, or start over with a new one and a new output folder (nothing was reset)"
)

LOST_ORDER = "rows without a fixed order were lost within a batch"
"""A reason of `repeatable`."""
GO_ON = "Start it again from checkpoint {}: it goes on from there"


class WorkerError(RuntimeError):
    """Carries an error of this library through the JVM; users never see it."""


class FailedQuery(NamedTuple):
    """The data of an ended query for its error: its bolt or topology, its checkpoint, the current batch. files: the checkpoint, if
    its session and its files are to be checked too.
    """

    name: str
    checkpoint: str
    batch: int | None = None
    files: Checkpoint | None = None

    @property
    def batch_called(self) -> str:
        """The current batch in a sentence: "batch 7"."""
        return "a batch" if self.batch is None else f"batch {self.batch}"


class Seal:
    """Is sent to workers with the query; when it is unpickled there, it sets the mark of this driver for errors of the library.

    The mark has a random number per driver process, so a text in a user's error can never be taken for an error of the library.
    """

    def __reduce__(self) -> tuple[Callable[[str], Seal], tuple[str]]:
        return _adopted, (_mark,)


def _adopted(mark: str) -> Seal:
    global _mark
    _mark = mark
    return Seal()


def end_with_spark() -> None:
    """Make this worker end without a word when Spark ends it, after a minute without a task or with the session; over a Unix domain
    socket it would print a BrokenPipeError.
    """
    daemon: Any = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", "") != "pyspark.daemon" or daemon.worker.__module__ == __name__:
        return
    serve = daemon.worker

    def worker(*of_task: Any) -> int:
        try:
            return int(serve(*of_task))
        except BrokenPipeError:
            os._exit(1)

    daemon.worker = worker


@contextmanager
def marked() -> Iterator[None]:
    """Convert an error of this library from the body into a WorkerError, whose message `raised_in_worker` decodes.

    Errors that Spark cannot transport are converted too: those that are not an Exception (the query would wait for the worker
    forever), and those whose text is not UTF-8.
    """
    try:
        yield
    except WindowingError as error:
        raise WorkerError(_encoded(error)) from (error if is_sendable(error) else None)  # Spark prints causes too
    except BaseException as error:
        found = _carried(error)
        if found is None:
            raise
        raise WorkerError(_encoded(found)) from (found if is_sendable(found) else None)


def _carried(error: BaseException) -> WindowingError | None:
    """Return an error of the library for one that Spark cannot transport, None for one that it can."""
    found: WindowingError | None = ended_in(error)
    if found is None and not isinstance(error, GeneratorExit):  # a generator that is closed is no failure
        if is_sendable(error):
            return None
        found = BoltError(f"code that the query runs for each row failed: {describe_error(error)}")
    if found is not None:
        found.__cause__ = error
    return found


def library_error(error: BaseException, query: FailedQuery) -> BaseException:
    """Return the error that ended a query as an error of this library, with `error` as its cause.

    The error of a worker has `error` as its context, which Python does not print: a hundred lines that say less than its note.
    `error` itself is returned if it already is one, or if neither a worker nor Spark has raised it (a user's sink, for example).
    Cost: reads the whole checkpoint if Spark failed without a known reason.

    >>> try:
    ...     with marked():
    ...         raise errors.BoltError("bolt 'b' failed on window end=3: ZeroDivisionError")
    ... except WorkerError as problem:
    ...     aborted = RuntimeError(f"Job aborted: {problem} at org.apache.spark")
    >>> library_error(aborted, FailedQuery("b", "/data/checkpoint"))
    BoltError("bolt 'b' failed on window end=3: ZeroDivisionError")
    """
    found = raised_in_worker(error)
    if found is None:
        found = _raised_in_driver(error, query)
        if found is None:
            return error
        found.__cause__ = error
    elif found is not error and query.batch is not None:
        found.add_note(f"In batch {query.batch} of {query.name!r}, which is not committed.")
    return found


def raised_in_worker(error: BaseException) -> WindowingError | None:
    """Return `error` if it is of this library, or the library's error that a worker raised behind it; None if there is none."""
    if isinstance(error, WindowingError):
        return error
    found = _decoded(list(_texts(error)))
    if found is not None:
        found.__context__, found.__suppress_context__ = error, True
    return found


def _raised_in_driver(error: BaseException, query: FailedQuery) -> WindowingError | None:
    if query.files is not None and session_ended(query.files.spark):
        return QueryStoppedError(
            f"the session ended while the query ran{_end_of_jvm(query.files.spark)}. {GO_ON.format(query.checkpoint)}"
        )
    if not isinstance(error, Exception):
        return BoltError(
            f"code that {query.name!r} runs in the driver ended with {describe_error(error)}; let it raise an Exception"
        )
    if not _is_sparks(error):
        return None
    texts = list(map(_shortened, _texts(error)))
    said = _said(texts)
    return (
        _said_by_spark("\n".join(said), query)
        or _said_by_kafka("\n".join(said), query)
        or _said_of_input(said, query)
        or _lacking("\n".join(texts), query)
        or _too_large("\n".join(texts), query)
        or _not_reached(error, said, query)  # its files are not damaged then
        or _without_room(said, query)
        or _damaged(said, query)
        or _not_written(error, query)
    )


def session_ended(spark: SparkSession) -> bool:
    """Return whether the session was stopped; all errors of Spark then follow from that."""
    context: Any = spark.sparkContext
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # the JVM is gone; py4j has no types
        return True


def _end_of_jvm(spark: SparkSession) -> str:
    """Return how the JVM of an ended session ended, "" if it runs, or is not a child of this process."""
    context: Any = spark.sparkContext
    process = None if context._jsc is None else getattr(context._gateway, "proc", None)
    if process is None:
        return ""
    try:
        code = process.wait(_JVM_ENDS_S)
    except TimeoutExpired:
        return ""
    if code == _OUT_OF_MEMORY:
        return (
            ": its JVM ran out of memory; give it more, session(**{'spark.driver.memory': '4g'}), or give a batch fewer rows "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger)"
        )
    return f": its JVM ended with exit code {code}, see the log above"


_SENT: Mapping[str, type[WindowingError]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WindowingError)
}
"""The errors that keep their class on the way from a worker, by name; another one becomes the nearest of its bases."""


def _encoded(error: WindowingError) -> str:
    trace = _trace(error)[-_MAX_TRACE:]
    message = error.args[0] if error.args else ""
    known = next(kind for kind in type(error).__mro__ if _SENT.get(kind.__name__) is kind)
    return _mark + json.dumps({"class": known.__name__, "message": str(message), "trace": trace})


def _trace(error: BaseException) -> str:
    """Return the traceback of an error with its causes, of a BoltError only those; bytes that are not UTF-8 are escaped."""
    shown = error.__cause__ if isinstance(error, BoltError) and error.__cause__ is not None else error
    try:
        text = "".join(traceback.format_exception(shown))
    except Exception as problem:  # an error of a user's whose text cannot be made
        text = f"(its traceback cannot be made: {describe_error(problem)})"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_sendable(error: BaseException) -> bool:
    """Return whether Spark can transport an error: it is an Exception, and its text and those of its causes are UTF-8."""
    if not isinstance(error, Exception):
        return False
    try:
        "".join(traceback.format_exception(error)).encode("utf-8")
    except Exception:
        return False
    return True


def text_for_jvm(error: BaseException) -> str | None:
    """Return the text to send to the JVM in place of an error of foreachBatch, None to send the error itself.

    Py4J cannot send an error that Spark cannot transport, and the JVM would wait for an answer forever. In the error of a call that
    was interrupted because the query is stopped, Spark searches for the interruption with a pattern that overflows the stack on the
    long trace of a JVM; so it gets the first line of each cause.
    """
    if not is_sendable(error):
        return describe_error(error)
    causes = "\n".join(cause.partition("\n")[0][:_MAX_CAUSE] for cause in java_causes(error))
    call: str | None = getattr(error, "errmsg", None)  # of Py4JJavaError; py4j has no types
    if call is not None and _INTERRUPTED.search(causes):
        return f"py4j.protocol.Py4JJavaError: {call}: {causes}"
    return None


def repeatable(error: BaseException) -> str | None:
    """Return why a batch can be repeated at once: a Python worker was started and did not connect in time, or lost rows without a
    fixed order would have been made again in another one. None for all other errors.
    """
    said = "\n".join(_said(_texts(error))) if _is_sparks(error) else ""
    if _UNREACHED.search(said):
        return "a Python worker did not connect in time"
    if _IN_ANOTHER_ORDER.search(said) or isinstance(raised_in_worker(error), WorkerLostError):
        return LOST_ORDER
    return None


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.startswith(_FROM_SPARK)


def _shortened(text: str) -> str:
    """Return a text of Spark without the middle of long lines and of a long text, but with each cause. They quote values of rows,
    and the patterns here take quadratic time in the length of a line.
    """
    lines = [line if len(line) <= 2000 else f"{line[:1000]} ... {line[-1000:]}" for line in text.split("\n")]
    if len(lines) > 1000:
        lines[500:-500] = filter(_CAUSE.match, lines[500:-500])
    return "\n".join(lines)


def _said(texts: Iterable[str]) -> list[str]:
    """Return the texts of Spark itself, without tracebacks, which contain the texts of user errors."""
    return [text.partition(_TRACEBACK)[0] for text in texts]


def _decoded(texts: list[str]) -> WindowingError | None:
    for text in texts:
        start = text.find(_mark)
        while start >= 0:
            found = _parsed(text[start + len(_mark) :])
            if found is not None:
                return found
            start = text.find(_mark, start + 1)
    return None


def _parsed(text: str) -> WindowingError | None:
    try:
        record, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    found = _SENT.get(str(record.get("class")), WindowingError)(str(record.get("message")))
    found.add_note(f"In a Python worker:\n{record.get('trace')}")
    return found


_AGAIN = "{batch} is not committed: start again from the checkpoint"
_SAID_BY_SPARK: Sequence[tuple[re.Pattern[str], type[WindowingError], str]] = (
    (
        re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming jobs detected|\[CONCURRENT_QUERY\]"),
        CheckpointError,
        "another query writes to checkpoint {checkpoint}; one query at a time can have it: stop the other one and "
        "start this one again, or give it a checkpoint of its own",
    ),
    (
        re.compile(
            r"Wrong basePath \S+ for the root path: \S+|No usable value for offset"
            r"|There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\]"
        ),
        DefinitionChangedError,
        "{name!r} reads other sources than checkpoint {checkpoint} has read: {found}; give it the same folders and topics, in the "
        "same order, or start with a new checkpoint and a new output folder",
    ),
    (
        re.compile(r"Stateful operators in the metadata: [^\n]*?Stateful operators in current batch: \[[^\]]*\]"),
        DefinitionChangedError,
        "{name!r} has other operators of Spark with a state (dropDuplicates, a join) before its bolts than checkpoint "
        "{checkpoint}: {found}; give it the source as it was, or start with a new checkpoint and a new output folder",
    ),
    (
        re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled"),
        QueryStoppedError,
        "a job of {name!r} was cancelled from outside (Ctrl-C, or cancelAllJobs), which ends the query. "
        + GO_ON.format("{checkpoint}"),
    ),
    (
        re.compile(r"Python worker process terminated due to idle timeout \(timeout: (\d+) seconds\)"),
        WorkerLostError,
        "a Python worker of {name!r} gave nothing for {found} s, and Spark ended it{times} (spark.python.worker.killOnIdleTimeout) "
        "while making {batch}; look for a bolt that hangs, or, if one call may take that long, raise "
        "spark.python.worker.idleTimeoutSeconds. " + _AGAIN,
    ),
    (
        re.compile(r"Python worker exited unexpectedly|driver worker exited unexpectedly"),
        WorkerLostError,
        "a Python worker of {name!r} died ({crash}){times} while making {batch}; look at its last words in the log above. If "
        "memory ran out, give it fewer rows a batch, more tasks or more memory; if a package there is older than here (protobuf), "
        "bring it up to date; a bolt must not end its process (os._exit). " + _AGAIN,
    ),
    (
        re.compile(r"ExecutorLostFailure \([^\n]*?Reason: ([^\n]*)"),
        WorkerLostError,
        "an executor of {name!r} was lost{times} while making {batch}: {found}; look at the log of that executor. If memory ran "
        "out, give it more, or give it fewer rows a batch. " + _AGAIN,
    ),
    (
        _UNREACHED,
        WorkerLostError,
        "a Python worker of {name!r} did not connect in time when it was started for {batch}: the machine is too busy, "
        "or the worker cannot start (see the log above); set spark.python.authenticate.socketTimeout to more seconds (Spark's "
        "default is 15s) when the session starts, or use fewer cores. " + _AGAIN,
    ),
    (
        _IN_ANOTHER_ORDER,
        WorkerLostError,
        "rows of {name!r} behind a shuffle were lost while {batch} was made, and came again in another order; look for "
        "what ends executors, or give such rows a fixed order (order_by= of windowed()). " + _AGAIN,
    ),
)
"""What Spark says, with the error for it; the first one counts. found: what the group of the pattern matches, or all of it."""


def _said_by_spark(said: str, query: FailedQuery) -> WindowingError | None:
    """Return the error for a second query on the checkpoint, for other sources or a lost Python worker, None for other texts."""
    for pattern, kind, sentence in _SAID_BY_SPARK:
        match = pattern.search(said)
        if match is not None:
            tries = _TRIES.search(said)
            return kind(
                sentence.format(
                    name=query.name,
                    checkpoint=query.checkpoint,
                    batch=query.batch_called,
                    found=printable(match[match.lastindex or 0]),
                    times="" if tries is None else f" {tries[1]} times",
                    crash=_crash(said) or "crashed, or was killed",
                )
            )
    return None


def _crash(said: str) -> str | None:
    """Return why a Python worker crashed, and the user's function and line that it was in, None if Spark does not say."""
    crash = _CRASHED.search(said)
    if crash is None:
        return None
    frames = _FRAME.findall(crash[2])
    inner = list(takewhile(lambda frame: not _OUR_FRAME.search(frame[0]), frames)) or frames[:1]
    # The library has called the last of them, which is the user's, and may have called code of a package.
    at = [f" in {function}, {file}:{line}" for file, line, function in inner if file == inner[-1][0]]
    return printable(crash[1] + "".join(at[:1]))


def _said_by_kafka(said: str, query: FailedQuery) -> WindowingError | None:
    """Return the error for lost messages of a topic, or for a refusal of its brokers, None for other texts."""
    lost, refused = _LOST_IN_KAFKA.search(said), _BY_KAFKA.search(said)
    if _KAFKA_LOSS.search(said) is not None:
        what = "messages are gone" if lost is None else printable(lost[0])
        return SourceError(
            f"a topic that {query.name!r} reads has lost messages that were not read: {what}; nothing was skipped, and the batch "
            f"is not committed. Put the topic back, or go on without them with another checkpoint than {query.checkpoint}; "
            "a longer retention.ms keeps more"
        )
    if refused is None:
        return None
    return SourceError(
        f"a topic that {query.name!r} reads cannot be read: {refused[1]}: {printable(refused[2])}; see whether the brokers run, "
        f"the topic is there and the user may read it. {GO_ON.format(query.checkpoint)}"
    )


def _said_of_input(said: list[str], query: FailedQuery) -> WindowingError | None:
    """Return the error for an input file that is damaged, of another schema or missing, None for other texts."""
    found = next((each for each in map(_INPUT_FILE.search, said) if each is not None), None)
    if found is None or query.checkpoint.rstrip("/").rpartition(":")[2] in found[2]:
        return None
    causes = _CAUSE.findall(found.string, found.end())
    why = printable(found[3] or (causes[-1] if causes else "Spark does not say why")).rstrip(".")
    leave_out = "ignoreMissingFiles" if found[1] == "FILE_NOT_EXIST" else "ignoreCorruptFiles"
    return SourceError(
        f"{query.name!r} cannot read a file of its input, {printable(found[2])}: {why}; nothing of the batch was "
        "committed. Repair the file or put it back, correct the schema of the source if it does not fit the file, or leave such "
        f"files out by spark.sql.files.{leave_out}=true. " + GO_ON.format(query.checkpoint)
    )


def _lacking(said: str, query: FailedQuery) -> WindowingError | None:
    """Return the error for what a Python worker lacks to load the bolts: the library, a user's module, a version; else None."""
    missing, changed, other = _NO_MODULE.search(said), _OTHER_MODULE.search(said), other_python(said)
    python = "the Python that spark.pyspark.python names on every worker, or another one named there"
    if missing is not None and missing[1].partition(".")[0] in _OURS:
        lack = f"no module {missing[1]!r}; install windowing[spark] into {python}, or send one that has it (spark.archives)"
    elif missing is not None:
        lack = (
            f"no module {missing[1]!r}, which is imported here; install it on every worker, send its file with spark-submit "
            "--py-files, or send it by value: pyspark.cloudpickle.register_pickle_by_value(module) before the start"
        )
    elif changed is not None:
        lack = (
            f"a module {changed[2]!r} without {changed[1]!r}: another version than here; install the same one on every worker, or "
            "send it along: pyspark.cloudpickle.register_pickle_by_value(module) before the start"
        )
    elif other is not None:
        lack = f"another environment: {printable(other)}; install the same Python and packages as here into {python}"
    else:
        return None
    return SessionError(
        f"the Python workers of {query.name!r} have {lack}. Nothing of the batch was committed: start again then"
    )


def _too_large(said: str, query: FailedQuery) -> WindowingError | None:
    """Return the error for a batch with more rows for a task than Arrow can join, None for other texts."""
    if _TOO_LARGE.search(said) is None:
        return None
    return SourceError(
        f"{query.batch_called} of {query.name!r} has 2 GiB or more in one column for one task, which Arrow cannot hold. Nothing "
        "of it was committed. A batch that was begun keeps its size: start with a new checkpoint, and with more tasks or fewer "
        "rows a batch (maxFilesPerTrigger, maxOffsetsPerTrigger)"
    )


def _not_written(error: BaseException, query: FailedQuery) -> WindowingError | None:
    """Return the error for a file system that refuses Spark's own writes to the checkpoint, else None."""
    if not refused_by_files(error):
        return None
    said = java_causes(error)
    # A full disk is named without a path; the job that writes an output, that of a FunctionSink for example, names its folder.
    of_output = "[TASK_WRITE_FAILED]" in said[0] and not any("STATE_STORE" in each for each in said)
    full = "No space left" in said[-1] and not of_output
    return _unusable(error, query) if full or names_file_of(query.checkpoint, said[-1]) else None


def _not_reached(error: BaseException, said: list[str], query: FailedQuery) -> WindowingError | None:
    """Return the error for a file system of the checkpoint that does not answer, or does not let a file be opened, else None."""
    unopened = (found[1] for text in said for found in _UNOPENED.finditer(text))
    refused = any(names_file_of(query.checkpoint, file) for file in unopened)
    return _unusable(error, query) if refused or unanswered(error, query.checkpoint) else None


def _without_room(said: list[str], query: FailedQuery) -> WindowingError | None:
    """Return the error for a full local disk, which Spark reports as a state that cannot be loaded or committed, or without a path;
    else None.
    """
    found = next((each for each in map(_NO_ROOM.search, said) if each is not None), None)
    if found is None:
        return None
    what = "the rows of a shuffle to spark.local.dir" if found[1] is None else "the working copy of its state"
    return CheckpointError(
        f"{query.name!r} cannot write {what}: {printable(found[1] or found[2])}; make room there, or set "
        "spark.local.dir to a larger disk; nothing of the batch was committed: start again then"
    )


def _unusable(error: BaseException, query: FailedQuery) -> WindowingError:
    return CheckpointError(
        f"checkpoint {unreachable(query.checkpoint, error)}; nothing of the batch was committed: start again then"
    )


def _damaged(said: list[str], query: FailedQuery) -> WindowingError | None:
    """Return the error that names a damaged or missing file of the checkpoint, else None; Spark attributes it to other code."""
    known = None if query.files is None else damaged_file(query.files)
    if known is not None:
        return CorruptStateError(f"a file of the checkpoint is damaged or missing: {known}; {_WAY_OUT}")
    for text in reversed(said):  # the innermost message is the most precise
        for line in text.splitlines():
            file = _FILE.search(line)
            if file is not None and _DAMAGE.search(line) is not None:
                return CorruptStateError(
                    f"a file of the checkpoint is damaged or missing: {file[0].rstrip('.:;')} ({quote(line.strip())}); {_WAY_OUT}"
                )
    if any(_UNREADABLE.search(text) for text in said):
        return CorruptStateError(f"the state store cannot be loaded, Spark does not say why; {_WAY_OUT}")
    return None


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the messages of an error and of all its causes, Python's and the JVM's, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MAX_DEPTH:
        seen.add(id(current))
        yield _text(current)
        yield from java_causes(current)
        current = getattr(current, "_cause", None) or current.__cause__ or current.__context__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a captured Spark error asks the JVM for its text, which may be gone
        return repr(error.args)
