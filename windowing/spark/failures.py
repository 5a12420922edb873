"""Errors find their way back: what went wrong in a Python worker or in the JVM comes out as an error of this library.

A WindowingError raised in a worker crosses the JVM as text. `marked()` puts it on one line, as JSON behind a mark that only
this driver and its workers know (Seal); `unwrapped()` finds that line in whatever Spark raised and makes the same class again,
Spark's error as its `__cause__`. Damaged files of the state store, which Spark blames on the user's function, become
CorruptStateError and name the file; a second query on the checkpoint, a lost Python worker, one that lacks a module, and a
checkpoint that Spark cannot write are known by what Spark says of them.
"""

from __future__ import annotations

import io
import json
import logging
import re
import secrets
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from pyspark.sql import SparkSession

from windowing import errors
from windowing.errors import (
    BoltError,
    CheckpointError,
    CorruptStateError,
    QueryStoppedError,
    SessionError,
    WindowingError,
    WorkerLostError,
    describe_error,
    printable,
    quote,
)
from windowing.spark.hadoop import Folder, refused_by_files, unreachable
from windowing.topology.user_code import ended_in

__all__ = [
    "About",
    "Seal",
    "WorkerError",
    "damaged_file",
    "is_of_spark",
    "is_sendable",
    "marked",
    "raised_in_worker",
    "unwrapped",
]


_mark = f"windowing-error:{secrets.token_hex(16)}:"
_TRACEBACK = "Traceback (most recent call last)"
_MAX_TRACE = 8000
_MAX_DEPTH = 20
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.2
_FILE = re.compile(
    r"[^\s'\"()\[\],]*/(?:state/\d+/(?:\d+|_metadata|_stateSchema)|offsets|commits|sources/\d+)/[^\s'\"()\[\],]+"
)
_DAMAGE = re.compile(
    r"CHECKSUM|[Cc]hecksum|FileNotFoundException|does not exist|MALFORMED_LOG_FILE|Incomplete log file"
    r"|ZipException|EOFException|RocksDBException: (?:Corruption|IO error)"
)
_UNREADABLE = re.compile(r"CANNOT_LOAD_STATE_STORE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY")
_SHARED = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming jobs detected|\[CONCURRENT_QUERY\]")
_CANCELLED = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled")
_DEAD = re.compile(r"Python worker exited unexpectedly|driver worker exited unexpectedly")
_UNREACHED = re.compile(r"Python worker (?:failed )?to connect back|RUNNER_INITIALIZATION_TIMEOUT_FAILURE")
_NO_MODULE = re.compile(r"^\s*ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_OTHER_MODULE = re.compile(r"^\s*AttributeError: Can't get attribute '([\w.]+)' on <module '([\w.]+)'", re.MULTILINE)
_OTHER_PYTHON = re.compile(r"\[(?:PYTHON_VERSION_MISMATCH|UNSUPPORTED_PACKAGE_VERSION|PACKAGE_NOT_INSTALLED)\][^\n]*")
_TRIES = re.compile(r"in stage \S+ failed (\d+) times")
_TIMEOUT = "spark.python.authenticate.socketTimeout"
_FROM_SPARK = ("pyspark.errors", "py4j")
_OURS = ("windowing", "sortedcontainers", "pyspark", "py4j", "pandas", "pyarrow", "numpy", "google")
_WAY_OUT = (
    "put the checkpoint back from a copy, or start over with a new one and a new output folder (nothing was reset)"
)

_log = logging.getLogger("windowing.spark")


class WorkerError(RuntimeError):
    """Carries an error of this library through the JVM; users never see it."""


class About(NamedTuple):
    """What an error may say of the query that it ended: its bolt or topology, its checkpoint, the batch in hand."""

    name: str
    checkpoint: str
    batch: int | None = None


class Seal:
    """Travels with what a query sends to its workers: unpickled there, it tells them how this driver knows errors of the library.

    The driver's mark holds a number that is drawn anew in each process, so no text of a user's error, however it reads, is taken
    for an error of ours.
    """

    def __reduce__(self) -> tuple[Callable[[str], Seal], tuple[str]]:
        return _adopted, (_mark,)


def _adopted(mark: str) -> Seal:
    global _mark
    _mark = mark
    return Seal()


@contextmanager
def marked() -> Iterator[None]:
    """Raise an error of this library from the body as a WorkerError whose message `unwrapped` understands.

    So is what Spark cannot carry: whatever is no Exception (a query would wait for the worker for ever), and text that is no UTF-8.
    """
    try:
        yield
    except WindowingError as error:
        raise WorkerError(_encoded(error)) from (error if is_sendable(error) else None)  # Spark tells of causes too
    except BaseException as error:
        found = _carried(error)
        if found is None:
            raise
        raise WorkerError(_encoded(found)) from (found if is_sendable(found) else None)


def _carried(error: BaseException) -> WindowingError | None:
    """Return an error of ours for what Spark cannot carry, None for what it can."""
    found: WindowingError | None = ended_in(error)
    if found is None and not isinstance(error, GeneratorExit):  # a generator that is closed is no failure
        if is_sendable(error):
            return None
        found = BoltError(f"code that the query runs for each row failed: {describe_error(error)}")
    if found is not None:
        found.__cause__ = error
    return found


def unwrapped(
    error: BaseException, locate: Callable[[], str | None] = lambda: None, about: About | None = None
) -> BaseException:
    """Return the error of this library that hides in `error`, with `error` as its cause, or `error` itself.

    `locate` is asked for a damaged file where Spark has failed for a reason that is not ours. Without `about` only an error
    that was raised in a worker, or damage, is known.

    >>> try:
    ...     with marked():
    ...         raise errors.BoltError("bolt 'b' failed on window end=3: ZeroDivisionError")
    ... except WorkerError as problem:
    ...     found = unwrapped(RuntimeError(f"Job aborted: {problem} at org.apache.spark"))
    >>> found
    BoltError("bolt 'b' failed on window end=3: ZeroDivisionError")
    """
    if isinstance(error, WindowingError):
        return error
    texts = list(_texts(error))
    found = _decoded(texts)
    if found is None:
        said = [text.partition(_TRACEBACK)[0] for text in texts]  # what is behind it are words of a user's error
        found = (
            (about and _said_by_spark(said, about))
            or (about and _lacking(error, texts, about))
            or _damaged(error, said, locate)
            or (about and _not_written(error, said, about))
        )
    if found is None:
        return error
    found.__cause__ = error
    return found


def raised_in_worker(error: BaseException) -> WindowingError | None:
    """Return the error of this library that was raised in a worker and is behind `error`, None where there is none."""
    found = _decoded(list(_texts(error)))
    if found is not None:
        found.__cause__ = error
    return found


def is_of_spark(error: BaseException) -> bool:
    """Return whether Spark has raised it, and no code of a user's in the driver."""
    return type(error).__module__.startswith(_FROM_SPARK)


def damaged_file(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the first file of a checkpoint that is missing, or whose bytes do not fit their checksum (Hadoop's, or the
    one that Spark put beside it); None where there is none, or where the checkpoint cannot be read.

    Tasks of the failed batch may still be writing: what is damaged stays so, so two looks have to agree on it.
    Cost: reads the whole checkpoint, twice where something is damaged; asked only after Spark has failed.
    """
    before: list[str] = []
    for _ in range(_LOOKS):
        try:
            found = _damaged_files(spark, checkpoint)
        except Exception as problem:  # a file may vanish while it is listed; py4j has no types
            _log.warning(
                "checkpoint %s cannot be looked through for damaged files: %s", checkpoint, describe_error(problem)
            )
        else:
            agreed = [name for name in found if name in before]
            if agreed or not found:
                return agreed[0] if agreed else None
            before = found
        time.sleep(_BETWEEN_LOOKS_S)
    return None


def _damaged_files(spark: SparkSession, checkpoint: str) -> list[str]:
    home = Folder(spark, checkpoint)
    files = home.files()
    crc = cast(Any, spark.sparkContext._jvm).java.util.zip.CRC32C
    found = [name for name in _listed(home, files) if name not in files]
    found += [name for name in files if not _intact(home, name, files, crc)]
    return [home.of(name) for name in found]


def _listed(home: Folder, files: list[str]) -> Iterator[str]:
    """Yield the files that others name: by a checksum, the tables of RocksDB in its snapshots, the operator's metadata."""
    for name in files:
        if name.endswith(".crc"):
            yield name.removesuffix(".crc")
        if not name.startswith("state/"):
            continue
        yield "/".join([*name.split("/")[:2], "_metadata/v2/0"])
        if name.endswith(".zip"):
            try:
                with zipfile.ZipFile(io.BytesIO(home.read(name))) as snapshot:
                    tables = json.loads(snapshot.read("metadata").partition(b"\n")[2])["sstFiles"]
                yield from (f"{name.rpartition('/')[0]}/SSTs/{table['dfsSstFileName']}" for table in tables)
            except Exception:  # it is damaged itself, and found by its checksum
                continue


def _intact(home: Folder, name: str, files: list[str], crc: Any) -> bool:
    try:
        content = home.read(name)
        if f"{name}.crc" not in files:
            return True
        wanted = json.loads(home.read(f"{name}.crc"))
        found = crc()
        found.update(bytearray(content))
        return bool(wanted["algorithm"] != "CRC32C" or (found.getValue() ^ wanted["value"]) & 0xFFFFFFFF == 0)
    except Exception:  # a file that cannot even be read, and whatever the JVM says about that
        return False


def _encoded(error: WindowingError) -> str:
    trace = _trace(error)[-_MAX_TRACE:]
    message = error.args[0] if error.args else ""
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return _mark + json.dumps({"class": known.__name__, "message": str(message), "trace": trace})


def _trace(error: BaseException) -> str:
    """Return the traceback of an error, with its causes; what is no UTF-8 is escaped."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as problem:  # an error of a user's whose text cannot be made
        text = f"(its traceback cannot be made: {describe_error(problem)})"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_sendable(error: BaseException) -> bool:
    """Return whether Spark can carry an error: it is an Exception, and its text, with those of its causes, is UTF-8."""
    if not isinstance(error, Exception):
        return False
    try:
        "".join(traceback.format_exception(error)).encode("utf-8")
    except Exception:
        return False
    return True


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
    kind = getattr(errors, str(record.get("class")), None)
    if not (isinstance(kind, type) and issubclass(kind, WindowingError)):
        kind = WindowingError
    found = kind(str(record.get("message")))
    found.add_note(f"In a Python worker:\n{record.get('trace')}")
    return found


def _said_by_spark(texts: list[str], about: About) -> WindowingError | None:
    """Return what Spark says of a second query on the checkpoint, or of a lost Python worker, as an error of ours."""
    said = "\n".join(texts)
    if _SHARED.search(said) is not None:
        return CheckpointError(
            f"another query writes to checkpoint {about.checkpoint}; one query at a time can have it: stop the other one and "
            "start this one again, or give it a checkpoint of its own"
        )
    if _CANCELLED.search(said) is not None:
        return QueryStoppedError(
            f"a job of {about.name!r} was cancelled from outside (Ctrl-C, or cancelAllJobs), which ends the query. Start it again "
            f"from checkpoint {about.checkpoint}: it goes on from there"
        )
    batch = "a batch" if about.batch is None else f"batch {about.batch}"
    again = f"{batch} is not committed: start again from the checkpoint"
    if _DEAD.search(said) is not None:
        tries = _TRIES.search(said)
        return WorkerLostError(
            f"a Python worker of {about.name!r} died (crashed, or was killed){f' {tries[1]} times' if tries else ''} while making "
            f"{batch}; look at its last words in the log above. If memory ran out, give it fewer rows a batch, more tasks or more "
            f"memory; if a package there is older than here (protobuf), bring it up to date; a bolt must not end its process "
            f"(os._exit). {again}"
        )
    if _UNREACHED.search(said) is not None:
        return WorkerLostError(
            f"a Python worker of {about.name!r} did not connect in time when it was started for {batch}: the machine is too busy, "
            f"or the worker cannot start (see the log above); set {_TIMEOUT} to more seconds (Spark's default is 15s) when the "
            f"session starts, or use fewer cores. {again}"
        )
    return None


def _lacking(error: BaseException, texts: list[str], about: About) -> WindowingError | None:
    """Return what a Python worker lacks to load the bolts as an error of ours: the library, a module of the user's, a version."""
    if not type(error).__module__.startswith(_FROM_SPARK):
        return None
    said = "\n".join(texts)
    missing, changed, other = _NO_MODULE.search(said), _OTHER_MODULE.search(said), _OTHER_PYTHON.search(said)
    python = "the Python that spark.pyspark.python names on every worker, or another one named there"
    if missing is not None and missing[1].partition(".")[0] in _OURS:
        lack = f"no module {missing[1]!r}; install windowing[spark] into {python}, or send one that has it (spark.archives)"
    elif missing is not None:
        lack = (
            f"no module {missing[1]!r}, which is imported here; install it on every worker, or send it along: "
            "pyspark.cloudpickle.register_pickle_by_value(module) before the start"
        )
    elif changed is not None:
        lack = (
            f"a module {changed[2]!r} without {changed[1]!r}: another version than here; install the same one on every worker, or "
            "send it along: pyspark.cloudpickle.register_pickle_by_value(module) before the start"
        )
    elif other is not None:
        lack = f"another environment: {printable(other[0])}; install the same Python and packages as here into {python}"
    else:
        return None
    return SessionError(
        f"the Python workers of {about.name!r} have {lack}. Nothing of the batch was committed: start again then"
    )


def _not_written(error: BaseException, texts: list[str], about: About) -> WindowingError | None:
    """Return an error of ours where a file system refuses what Spark itself writes into the checkpoint."""
    folder = about.checkpoint.rstrip("/").rpartition(":")[2]
    if not refused_by_files(error) or not (folder in texts[-1] or "No space left" in texts[-1]):
        return None
    return CheckpointError(
        f"checkpoint {unreachable(about.checkpoint, error)}; nothing of the batch was committed: start again then"
    )


def _damaged(error: BaseException, texts: list[str], locate: Callable[[], str | None]) -> WindowingError | None:
    """Name the damaged or missing file of the checkpoint, if that is what happened: Spark blames others, or names none."""
    known = locate() if is_of_spark(error) else None
    if known is not None:
        return CorruptStateError(f"a file of the checkpoint is damaged or missing: {known}; {_WAY_OUT}")
    for text in reversed(texts):  # the deepest message knows best
        for line in text.splitlines():
            file = _FILE.search(line)
            if file is not None and _DAMAGE.search(line) is not None:
                return CorruptStateError(
                    f"a file of the checkpoint is damaged or missing: {file[0].rstrip('.:;')} ({quote(line.strip())}); {_WAY_OUT}"
                )
    if any(_UNREADABLE.search(text) for text in texts):
        return CorruptStateError(f"the state store cannot be loaded, Spark does not say why; {_WAY_OUT}")
    return None


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the messages of an error and of all its causes, Python's and the JVM's, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MAX_DEPTH:
        seen.add(id(current))
        yield _text(current)
        for attribute in ("java_exception", "_origin"):
            yield from _java_texts(getattr(current, attribute, None))
        current = getattr(current, "_cause", None) or current.__cause__ or current.__context__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a captured Spark error asks the JVM for its text, which may be gone
        return repr(error.args)


def _java_texts(throwable: Any) -> Iterator[str]:
    for _ in range(_MAX_DEPTH):
        if throwable is None:
            return
        try:
            yield str(throwable.toString())
            throwable = throwable.getCause()
        except Exception:  # the JVM is gone: what it said so far is all there is
            return
