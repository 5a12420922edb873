"""Files of a checkpoint, through the JVM's Hadoop FileSystem, so that a checkpoint can be on any file system that Spark reaches.

Only for small files. A write is atomic: a hidden temporary file (Spark's file sources skip names that start with `_` or `.`), then
a rename over the old file. On an object store, which has no such rename, the file itself is written; it is invisible until it is
closed. Exceptions of the JVM (an unknown bucket or scheme, no permission) become errors of this library that name the folder.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

from pyspark.sql import SparkSession

from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    WindowingError,
    describe_error,
    printable,
    quote,
)
from windowing.spark.session import is_local

# Classes by full name: each package name on the way would be a call of the JVM and a search through all jars.
_PATH = "org.apache.hadoop.fs.Path"
_CONTEXT = "org.apache.hadoop.fs.FileContext"
_FILES = "org.apache.hadoop.fs.FileUtil"
_RENAME = "org.apache.hadoop.fs.Options$Rename"
_ABORTABLE = "fs.capability.outputstream.abortable"
"""The capability of file systems on which a file is invisible until it is closed: S3, by s3a."""
_BYTES = "org.apache.commons.io.IOUtils"
_ARRAYS = "org.apache.commons.lang3.ArrayUtils"
_FILE_SYSTEM = "org.apache.hadoop.fs.FileSystem"
_SETTINGS = "org.apache.hadoop.conf.Configuration"
_IMPATIENT = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "2",
    "fs.s3a.connection.establish.timeout": "5s",
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.timeout": "5000",
    "ipc.client.connect.max.retries.on.timeouts": "1",
}
"""Settings for the first access to a file system; by default each call is retried many times, with growing pauses."""
_CHECKSUM = "org.apache.hadoop.fs.ChecksumException"
_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""The errors of a file system without links, some of those that are mounted over a network or an object store."""
_FROM_FILES = re.compile(
    r"java\.(?:io|net|nio\.file)\.(?!EOF)|org\.apache\.hadoop\.|java\.lang\.ClassNotFoundException: Class org\.apache\.hadoop"
)
_OF_S3_CLIENT = re.compile(r"software\.amazon\.awssdk\.|com\.amazonaws\.")
_FROM_JVM = re.compile(r"java\.(?:io|net|nio)\.|org\.apache\.hadoop\.")
_IN_TASK = re.compile(r"stage failure|\[CANNOT_(?:LOAD|WRITE)_STATE_STORE")
_NO_ANSWER = re.compile(
    r"UnknownHost|ConnectException|NoRouteToHost|Timeout|Unreachable|End of File Exception between|\bsafe ?mode\b",
    re.IGNORECASE,
)
_FILE_SYSTEM_OF = re.compile(r"^[A-Za-z][\w+.-]*:(//[^/]*)?")
_MAX_DEPTH = 20
_SECRET = re.compile(
    r"(//[^/\s:@]*):(?!\d+/)[^\s@]{1,1000}@|((?:sig|token|password|secret)[\w.]{0,100}=)[^&\s]+", re.IGNORECASE
)
"""Keys of Amazon have slashes; a number before a slash is a port. The bounds keep a long text from taking quadratic time."""
_WAYS_OUT = (
    (
        re.compile(r"\bsafe ?mode\b", re.IGNORECASE),
        "it takes no writes now: wait until its NameNode has left safe mode (hdfs dfsadmin -safemode get), then start again",
    ),
    (
        re.compile(r"No FileSystem for scheme|ClassNotFoundException"),
        "Spark has no such file system: correct the path, or give the session its jar (spark.jars.packages) and its settings "
        "(spark.hadoop.fs...) when it starts",
    ),
    (
        re.compile(r"AccessControl|AccessDenied|Permission|Forbidden|\b40[13]\b|Mkdirs failed|Read-only"),
        "give the user of the session the right to make and write it, or choose another folder",
    ),
    (
        re.compile(r"UnknownHost|ConnectException|NoRouteToHost|Timeout|Unreachable|^java\.io\.EOFException$"),
        "see that its server is named rightly and answers",
    ),
    (re.compile(r"No space left|quota", re.IGNORECASE), "make room there"),
    (re.compile(r"Too many open files"), "raise the limit of open files (ulimit -n) of driver and workers"),
    (re.compile(r"not a directory", re.IGNORECASE), "a file is there: give the path of a folder"),
)
_OTHER_WAY_OUT = "see that the bucket or folder above it is there, and that the user of the session may write to it"

_answered: set[str] = set()
"""The file systems, by scheme and server or bucket, that this process has reached."""


def checked_folder(option: str, path: Any) -> str:
    """Return the path of a folder given as an option. Raises ConfigError for a value that is not a path."""
    if isinstance(path, str | os.PathLike) and isinstance(text := os.fspath(path), str) and text.strip():
        return text
    raise ConfigError(
        f'{option} is a folder: text or a Path, got {quote(path)}; write {option}="/data/delays", on a file system that Spark '
        "reaches"
    )


class Folder:
    """One directory on a Hadoop file system. Cost of a call: one round trip to the JVM, and one to the file system. Every call
    raises `error` if the file system fails.
    """

    def __init__(self, spark: SparkSession, path: str, error: type[WindowingError] = CheckpointError) -> None:
        self._spark, self._error = spark, error
        self._jvm: Any = cast(Any, spark.sparkContext._jvm)
        self._conf: Any = cast(Any, spark.sparkContext)._jsc.hadoopConfiguration()
        with self._reaching(path):
            self._path_class: Any = getattr(self._jvm, _PATH)
            given: Any = self._path_class(path)
            self._ask(path, given)
            self._fs: Any = given.getFileSystem(self._conf)
            self._path: Any = self._fs.makeQualified(given)

    def __str__(self) -> str:
        return masked_paths(self.path)

    @property
    def path(self) -> str:
        """The directory with its scheme, for example `file:/tmp/checkpoint`."""
        return str(self._path.toString())

    @property
    def is_local(self) -> bool:
        return str(self._path.toUri().getScheme()) == "file"

    def __truediv__(self, name: str) -> Folder:
        below = copy(self)
        below._path = self._file(name)
        return below

    def of(self, name: str) -> str:
        """Return the full path of the file `name`."""
        return str(self._file(name).toString())

    def on_disk(self, name: str) -> str | None:
        """Return the path of the file `name` without a scheme, None if it is not on a local disk."""
        return os.path.join(str(self._path.toUri().getPath()), name) if self.is_local else None

    def make(self) -> None:
        """Create the directory and its parents; an existing one is not changed."""
        with self._reaching():
            self._fs.mkdirs(self._path)

    def names(self) -> list[str]:
        """Return the names in the directory, sorted; none if it does not exist."""
        with self._reaching():
            if not self._fs.exists(self._path):
                return []
            return sorted(self._below(self._fs.listStatus(self._path), 1))

    def having(self, names: list[str], file: str) -> set[str]:
        """Return which of the directories in this one, whose names are all given, have this file. Cost: one call of the JVM; one
        for each name if the path or a name has a colon, which Hadoop's patterns cannot have.
        """
        with self._reaching():
            if ":" in f"{self._path.toUri().getPath()}{names}":
                return {name for name in names if self.exists(f"./{name}/{file}")}
            wanted = self._path_class(f"{literal_path(self.path.rstrip('/'))}/*/{file}")
            return {path.partition("/")[0] for path in self._below(self._fs.globStatus(wanted), 2)}

    def _below(self, found: Any, depth: int) -> list[str]:
        """Return the paths of files at this depth, relative to the directory, by one call of the JVM for all of them."""
        if not found:
            return []
        at = found[0].getPath()
        for _ in range(depth):
            at = at.getParent()
        text = str(getattr(self._jvm, _ARRAYS).toString(getattr(self._jvm, _FILES).stat2Paths(found)))
        return f",{text[1:-1]}".split(f",{str(at.toString()).rstrip('/')}/")[1:]  # no name has a slash

    def files(self) -> list[str]:
        """Return the names of all files below the directory, relative to it, sorted; Hadoop's checksums are hidden."""
        found, start = [], len(self.path) + 1
        with self._reaching():
            listed = self._fs.listFiles(self._path, True)
            while listed.hasNext():
                found.append(str(listed.next().getPath().toString())[start:])
        return sorted(found)

    def exists(self, name: str) -> bool:
        """Return whether there is a file or directory with this name."""
        with self._reaching():
            return bool(self._fs.exists(self._file(name)))

    def read(self, name: str) -> bytes:
        """Return the content of the file `name`. Raises CorruptStateError for a damaged one, `error` for a missing one."""
        with self._reaching():
            stream = self._fs.open(self._file(name))
            try:
                return bytes(getattr(self._jvm, _BYTES).toByteArray(stream))
            except Exception as problem:  # py4j has no types
                if _CHECKSUM not in str(getattr(problem, "java_exception", "")):
                    raise
                raise CorruptStateError(
                    f"{self.of(name)} is damaged, its bytes do not fit its checksum; put the file back from a copy"
                ) from problem
            finally:
                stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Write `content` to the file `name` atomically, in place of an older one."""
        self.make()
        with self._reaching():
            self._write(name, content, replaces=True)

    def create(self, name: str, content: bytes) -> bool:
        """Write `content` to the file `name` atomically, and return True; if there is one, leave it, and return False.

        Of two processes that do this at the same time only one gets True. Both may get it on S3 and on a disk without links, if one
        begins before the other ends.
        """
        self.make()
        with self._reaching():
            try:
                return self._write(name, content, replaces=False)
            except Exception as problem:  # py4j has no types
                if _EXISTS not in str(getattr(problem, "java_exception", "")):
                    raise
                return False

    def _write(self, name: str, content: bytes, replaces: bool) -> bool:
        if self._fs.hasPathCapability(self._path, _ABORTABLE):
            stream = self._fs.create(self._file(name), replaces)
            try:
                stream.write(bytearray(content))
            except BaseException:
                stream.abort()
                raise
            stream.close()
            return True
        hidden = self._file(f"_{name}.{uuid4().hex}.tmp")
        try:
            stream = self._fs.create(hidden, True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
            if self.is_local:
                put = _replace if replaces else _link
                if put(Path(str(self._path.toUri().getPath())), str(hidden.getName()), name):
                    return True
                self._fs.delete(hidden, False)
                return False
            rename: Any = getattr(self._jvm, _RENAME)
            how = cast(Any, self._spark.sparkContext)._gateway.new_array(rename, int(replaces))
            if replaces:
                how[0] = rename.OVERWRITE
            files = getattr(self._jvm, _CONTEXT).getFileContext(hidden.toUri(), self._conf)
            files.rename(hidden, self._file(name), how)
            return True
        except BaseException:
            # What kept it from being written may keep it from being removed; py4j has no types.
            with suppress(Exception):
                self._fs.delete(hidden, False)
            raise

    def unfinished(self, name: str) -> list[str]:
        """Return the names of temporary files that killed writes of the file `name` have left, sorted."""
        return [each for each in self.names() if each.startswith(f"_{name}.") and each.endswith(".tmp")]

    def copy(self, name: str, into: Folder) -> None:
        """Copy the file or directory `name`, recursively, into another folder that has none with this name."""
        into.make()
        with into._reaching():
            getattr(self._jvm, _FILES).copy(self._fs, self._file(name), into._fs, into._file(name), False, self._conf)

    def delete(self, name: str) -> None:
        """Remove the file or directory `name`, recursively; a missing one is no error."""
        with self._reaching():
            self._fs.delete(self._file(name), True)

    def _ask(self, path: str, given: Any) -> None:
        """Access the file system for the first time, with few retries; later calls use the session's settings."""
        at = urlsplit(path)
        root = f"{at.scheme}://{at.netloc}"
        if at.scheme in ("", "file") or root in _answered:
            return
        settings = getattr(self._jvm, _SETTINGS)(self._conf)
        for name, value in _IMPATIENT.items():
            settings.set(name, value)
        asked = getattr(self._jvm, _FILE_SYSTEM).newInstance(given.toUri(), settings)
        try:
            asked.exists(given)
        finally:
            asked.close()
        _answered.add(root)

    def _file(self, name: str) -> Any:
        return self._path_class(self._path, name)

    @contextmanager
    def _reaching(self, path: str | None = None) -> Iterator[None]:
        try:
            yield
        except WindowingError:
            raise
        except Exception as problem:  # py4j has no types
            raise self._error(unreachable(self.path if path is None else path, problem)) from problem


def _replace(folder: Path, hidden: str, name: str) -> bool:
    """Rename a written file and its checksum over older ones. Hadoop's FileContext would start eight processes for that.

    The old checksum goes first: a kill between the two renames would leave it beside the new file. A file without one is read too.
    """
    checksum = folder / f".{name}.crc"
    checksum.unlink(missing_ok=True)
    os.replace(folder / hidden, folder / name)
    with suppress(FileNotFoundError):  # not every file system of Hadoop over a local disk writes one
        os.replace(folder / f".{hidden}.crc", checksum)
    return True


def _link(folder: Path, hidden: str, name: str) -> bool:
    """Give a written file, and its checksum, a name that no file has; return False if one has it."""
    checksum = folder / f".{name}.crc"
    if not (folder / name).exists():
        checksum.unlink(missing_ok=True)  # of a file that was deleted
    try:
        os.link(folder / hidden, folder / name)
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        return not (folder / name).exists() and _replace(folder, hidden, name)
    with suppress(FileNotFoundError):
        os.replace(folder / f".{hidden}.crc", checksum)
    (folder / hidden).unlink()
    return True


_SHARED = "a place that all machines see: HDFS, an object store, or a shared folder"


def require_shared(spark: SparkSession, files: Mapping[str, str], same: bool = True, instead: str = _SHARED) -> None:
    """Raise ConfigError if an executor does not see a file of the driver's disk: what the executor writes beside it would be on a
    disk of its own, and lost without an error. files: existing files by what they belong to. same: whether the content is compared
    too. instead: what to give, for the error.

    Cost: on a cluster, a job of a small task for each executor if one of the files is on a local disk.
    """
    local = {what: path.removeprefix("file:") for what, path in files.items() if path.startswith(("file:", "/"))}
    context: Any = spark.sparkContext
    if not local or is_local(str(context.master)):
        return
    wanted = {what: (path, Path(path).read_bytes() if same else None) for what, path in local.items()}
    executors = max(1, context._jsc.sc().getExecutorMemoryStatus().size() - 1)  # the driver counts too
    found = context.parallelize(range(executors), executors).flatMap(partial(_unseen, wanted)).collect()
    for what, host, problem in sorted(found):
        raise ConfigError(
            f"{what} is on a disk of the driver's machine, which an executor on {host} does not see ({problem}): what executors "
            f"write there would be lost; give {instead}"
        )


def _unseen(wanted: Mapping[str, tuple[str, bytes | None]], executor: int) -> list[tuple[str, str, str]]:
    """Return what an executor does not see: the name, the host, and the problem; runs in a worker."""
    found = []
    for what, (path, content) in wanted.items():
        try:
            with open(path, "rb") as file:
                problem = "" if content is None or file.read() == content else "it has another file there"
        except OSError as error:
            problem = describe_error(error)
        if problem:
            found.append((what, gethostname(), problem))
    return found


def unreachable(path: str, problem: BaseException) -> str:
    """Return the message for a path at which the JVM failed: the path, the JVM's reason in one line, and what to do.

    >>> unreachable("s3a://me:key@b/x", OSError('No FileSystem for scheme "s3a"')).partition("; ")[0]
    's3a://me:***@b/x cannot be used: No FileSystem for scheme "s3a"'
    >>> unreachable("/tmp/words.txt", OSError("Destination exists and is not a directory: /tmp/words.txt")).partition("; ")[2]
    'a file is there: give the path of a folder'
    >>> unreachable("s3a://b/x", OSError("refused fs.s3a.secret.key=abc")).partition("; ")[0]
    's3a://b/x cannot be used: refused fs.s3a.secret.key=***'
    """
    causes = java_causes(problem)
    said = (causes[-1] if causes else str(problem)).partition("\n")[0] or type(problem).__name__
    way_out = next((way for pattern, way in _WAYS_OUT if pattern.search(said)), _OTHER_WAY_OUT)
    where = path or "an empty path"
    return printable(masked_paths(f"{where} cannot be used: {said}"), 1000) + f"; {way_out}"


def refused_by_files(problem: BaseException) -> bool:
    """Return whether Spark could not write because of a file system, and not because of a task or its Python worker."""
    causes = java_causes(problem)
    return (
        bool(causes)
        and _FROM_FILES.match(causes[-1]) is not None
        and not any("ython worker" in said for said in causes)
    )


def failed_in_task(problem: BaseException, folder: str) -> bool:
    """Return whether a job that evaluates and writes has ended because of a task, for a reason other than files of `folder`."""
    causes = java_causes(problem)
    return any(_IN_TASK.search(said) for said in causes) and not names_file_of(folder, causes[-1])


def _path_of(folder: str) -> str:
    """Return the path of a folder without its file system, as HDFS uses it in messages.

    >>> [_path_of(each) for each in ("hdfs://node:8020/jobs/a/", "file:/tmp/a", "/tmp/a:b")]
    ['/jobs/a', '/tmp/a', '/tmp/a:b']
    """
    return _FILE_SYSTEM_OF.sub("", folder).rstrip("/")


def names_file_of(folder: str, said: str) -> bool:
    """Return whether a message of the JVM has the path of a folder, or of a file in it. S3's client writes keys, without a slash.

    >>> names_file_of("s3a://bucket/jobs/a", "jobs/a/commits/2: Access Denied"), names_file_of("/jobs/a", "jobs/a/commits/2")
    (True, False)
    """
    path = _path_of(folder)
    return (path.removeprefix("/") if folder.startswith("s3") else path) in said


def unanswered(problem: BaseException, folder: str) -> bool:
    """Return whether the JVM's exception means that the file system of a folder does not answer or accepts no writes now."""
    server = urlsplit(folder).netloc.rpartition("@")[2]
    causes = java_causes(problem)
    if not server or not any(_FROM_JVM.match(said) and _NO_ANSWER.search(said) for said in causes[-2:]):
        return False
    # A message has the name of an address.
    port = rf":{server.rpartition(':')[2]}\b" if ":" in server else re.escape(server)
    path = _path_of(folder) or server
    return any(server in said or re.search(port, said) or path in said for said in causes)


def java_causes(problem: BaseException) -> list[str]:
    """Return the messages of a JVM exception and its causes, the outermost first. Those of Amazon's client are left out at the end:
    the file system's exception before them repeats their text, and names the file.
    """
    raised = getattr(problem, "java_exception", None) or getattr(problem, "_origin", None)
    found: list[str] = []
    while raised is not None and len(found) < _MAX_DEPTH:
        try:
            found.append(str(raised.toString()))
            raised = raised.getCause()
        except Exception:  # the JVM is gone: return the messages so far
            break
    while len(found) > 1 and _OF_S3_CLIENT.match(found[-1]) and _FROM_FILES.match(found[-2]):
        found.pop()
    return found


def masked_paths(text: str) -> str:
    """Return a text for messages, with the passwords in addresses of file systems masked.

    >>> masked_paths("ftp://me:secret@host/out"), masked_paths("hdfs://node:8020/a@b")
    ('ftp://me:***@host/out', 'hdfs://node:8020/a@b')
    >>> masked_paths("s3a://id:k/e+y@bucket/out"), masked_paths("wasbs://c@a/out?sv=1&sig=k%2Fy")
    ('s3a://id:***@bucket/out', 'wasbs://c@a/out?sv=1&sig=***')
    """
    return _SECRET.sub(lambda found: f"{found[1]}:***@" if found[1] is not None else f"{found[2]}***", text)


def literal_path(path: str) -> str:
    """Return `path` escaped for Spark's readers, which treat `*`, `?`, `[` and `{` as patterns.

    >>> literal_path("/data/[new]")
    '/data/\\\\[new\\\\]'
    """
    return re.sub(r"([\\*?{}\[\]])", r"\\\1", path)
