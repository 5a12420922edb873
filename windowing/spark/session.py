"""The Spark session: `session()` starts a correct one, `require_session()` refuses one that could lose data.

    configure(builder)    sets what is required on the user's builder, and nothing else
    session()             REQUIRED, and settings for one machine; settings given elsewhere (spark-submit, spark-defaults.conf,
                          PYSPARK_SUBMIT_ARGS, a running session) are kept, the master included
    require_session       checks REQUIRED, the packages and the workers' Python, on the driver; every start calls it
    check(spark, bolt)    all that, and a Python worker: versions of packages, whether it can load the bolts (shipping.py)

A session of Spark Connect has no access to the driver's JVM; `WindowedStream.streams` and `check` work without it.

The required settings and their reasons are in one table, `REQUIRED`; docs/operate/deploy.md explains them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext, SparkFiles, TaskContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

from windowing.errors import ConfigError, SessionError, describe_error, quote
from windowing.schema.checks import did_you_mean

MAX_RECORDS_PER_BATCH = 100_000
STATE_SERVER = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"
"""Spark's logger that warns of each key that is not yet in a state, and in each batch of each task without windows."""
_STORE = "spark.sql.streaming.stateStore"
PYTHON = "spark.pyspark.python"
ZONE = "spark.sql.session.timeZone"
_MASTER = "spark.master"
_REGISTERED = "spark.scheduler.minRegisteredResourcesRatio"
"""How many of the executors that were asked for are waited for when the session starts, 30 s at most. A query counts the cores when
it starts: for the number of its tasks, and for the packing of files, which must be repeatable.
"""
_REACH_S = 10.0
_SOCKETS = "spark.python.unix.domain.socket.dir"
_SOCKET_FOLDER_BYTES = 60  # the path of a socket has at most 104 (Linux: 108) bytes, Spark's name of one has 43 of them
_LOCK = "jvm.lock"
_REMOTE = "spark.remote"
_TRACEBACK = "spark.sql.execution.pyspark.udf.simplifiedTraceback"
_FILE = "--properties-file"
_CONNECT = "windowing.spark needs a classic Spark session, got one of Spark Connect; "
_VISIBILITY = "spark.rdd.cache.visibilityTracking.enabled"
_UTC = re.compile(
    r"Z|(?:Etc/)?(?:UTC|UCT|GMT0?|Zulu|Universal|Greenwich)|(?:Etc/GMT|GMT|UTC|UT)?[+-]00?(?::?00){0,2}|UT",
    re.IGNORECASE,
)
"""The names of UTC, and offsets of zero."""


class _Rule(NamedTuple):
    name: str
    wanted: str
    holds: Callable[[str], bool]
    why: str


def _is(value: str) -> Callable[[str], bool]:
    return lambda given: given.lower() == value.lower()


REQUIRED = (
    _Rule(
        f"{_STORE}.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        lambda given: given.endswith("RocksDBStateStoreProvider"),
        "transformWithState runs on RocksDB only",
    ),
    _Rule(
        f"{_STORE}.rocksdb.changelogCheckpointing.enabled",
        "true",
        _is("true"),
        "without it each batch uploads whole state files",
    ),
    _Rule(
        f"{_STORE}.checkpointFormatVersion",
        "2",
        _is("2"),
        "in format 1 the state file of a late attempt can replace the right one",
    ),
    _Rule(
        f"{_STORE}.commitValidation.enabled", "true", _is("true"), "without it a half evaluated batch goes unnoticed"
    ),
    _Rule(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        str(MAX_RECORDS_PER_BATCH),
        lambda given: given.lstrip("-").isdigit() and 0 < int(given) <= MAX_RECORDS_PER_BATCH,
        f"a batch of more than {MAX_RECORDS_PER_BATCH} rows is slower and may not fit into one state row",
    ),
    _Rule(ZONE, "UTC", lambda zone: _UTC.fullmatch(zone) is not None, "timestamps kept in the state carry their zone"),
)


def session(app_name: str = "windowing", cores: int | str = "*", **conf: Any) -> SparkSession:
    """Start (or return) a Spark session with all settings that windowed bolts need; on this machine, unless a master was given.

    `cores`: a number or "*". A failed task is tried 4 times, so one crash of a Python worker does not end a query. `conf` adds or
    replaces settings by their Spark names: `session(**{"spark.driver.memory": "4g"})`. Settings of `spark-submit`, the environment
    or a running session are kept, unless they could lose data; with a given master `cores` has no effect. Raises ConfigError for a
    name of `conf` without a dot, SessionError if `conf` could lose data, or if the master cannot be reached. Cost: 6 to 18 seconds.
    """
    if TaskContext.get() is not None:
        raise SessionError(
            "session() was called in a Python worker of Spark, which imports the modules that bolts are in; call it in a function, "
            'or behind `if __name__ == "__main__":`, not at the top of such a module'
        )
    workers = _cores(cores)
    asked = _asked(conf)
    if _REMOTE in asked or os.environ.get("SPARK_REMOTE") or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        raise SessionError(
            _CONNECT
            + "leave out SPARK_REMOTE and spark.remote; if this process has made a session of Spark Connect, start another "
            "one for this, in a process without such a session"
        )
    _require_jvm()
    found = given_settings()
    lossy = {rule.name for rule in REQUIRED if not rule.holds(found.get(rule.name, rule.wanted))}
    given = {name: value for name, value in found.items() if name not in lossy} | asked
    local = is_local(given.get(_MASTER, "local"))
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = given.get(PYTHON, sys.executable)
    else:
        os.environ["PYSPARK_PYTHON"] = given.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable
    on_cluster = {PYTHON: os.environ["PYSPARK_PYTHON"], _REGISTERED: "1.0"}
    settings = _defaults() | (_on_this_machine(cores, workers) if local else on_cluster)
    builder: Any = SparkSession.builder.appName(app_name)
    with ExitStack() as made:
        if local and getattr(SparkContext, "_active_spark_context", None) is None:
            if SparkConf().get(_SOCKETS, None) is None:  # a JVM keeps the settings that it was started with
                settings |= _sockets(made.enter_context(_folder_of_jvm("py-")))
            made.enter_context(_installed_pyspark())
        for name, value in (settings | given).items():
            if name not in given or name in asked:
                builder = builder.config(name, value)
        started = _started(builder, str(given.get(_MASTER, "this machine")))
    started.sparkContext.setLogLevel((settings | given)["spark.log.level"])
    configurator = getattr(cast(Any, started.sparkContext._jvm), "org.apache.logging.log4j.core.config.Configurator")
    configurator.setLevel(STATE_SERVER, "ERROR")
    require_session(started)
    return started


def _asked(conf: Mapping[str, Any]) -> dict[str, str]:
    """Return settings that a user gives as texts. Raises ConfigError for a name that is none, SessionError for one that could lose
    data: before it changes a session that already runs.
    """
    asked = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()}
    for name in asked:
        if "." not in name:
            setting = "spark." + name.replace("_", ".").removeprefix("spark.")
            near = did_you_mean(name, ("app_name", "cores"))
            write = near if near.startswith("did") else f"write session(**{{{setting!r}: ...}})"
            raise ConfigError(f"session() takes settings by Spark's names, got {name}=; {write}")
    for rule in REQUIRED:
        if rule.name in asked and not rule.holds(asked[rule.name]):
            raise SessionError(
                f"{rule.name} is {quote(asked[rule.name])}, wanted {rule.wanted}: {rule.why}; leave it out"
            )
    return asked


def _started(builder: Any, master: str) -> SparkSession:
    """Start the session, or return the running one. An unreachable master is refused at once; Spark would try for a minute."""
    way_out = "start it, give its address as its own page shows it, or leave the master out for this machine"
    if getattr(SparkContext, "_active_spark_context", None) is None and master.startswith("spark://"):
        problems = list(map(_unreached, master.removeprefix("spark://").split(",")))
        if None not in problems:
            raise SessionError(f"no master answers at {master} ({'; '.join(map(str, problems))}); {way_out}")
    try:
        return cast(SparkSession, builder.getOrCreate())
    except Exception as problem:  # py4j has no types
        raise SessionError(
            f"Spark did not start a session on {master}: {describe_error(problem)[:500]}; look at its last words in the log above. "
            f"If that master is not there: {way_out}"
        ) from problem


@contextmanager
def _installed_pyspark() -> Iterator[None]:
    """Make the JVM start Python workers that import the installed pyspark, if there is one, instead of the copy in SPARK_HOME.

    Spark puts SPARK_HOME/python/lib/pyspark.zip before installed packages, and Python compiles the modules of a zip at each import:
    0.8 s of CPU for each process that Spark starts, one of them at each start of a query. So the JVM gets a SPARK_HOME of links
    without `python`, and removes it when it ends.
    """
    context = cast(Any, SparkContext)
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    if (
        context._gateway is not None
        or {"SPARK_HOME", "PYSPARK_GATEWAY_PORT"} & set(os.environ)
        or os.environ["PYSPARK_PYTHON"] != sys.executable
        or Path(pyspark.__path__[0]).parent not in installed
    ):
        yield
        return
    there = Path(_find_spark_home())
    with _folder_of_jvm("spark-home-") as home:
        for entry in there.iterdir():
            if entry.name != "python":
                (home / entry.name).symlink_to(entry)
        os.environ["SPARK_HOME"] = str(home)
        try:
            yield
        finally:
            del os.environ["SPARK_HOME"]


@contextmanager
def _folder_of_jvm(prefix: str) -> Iterator[Path]:
    """Make a folder that only this user may enter. The JVM that the body starts removes it when it ends.

    A JVM that is killed cannot: the next call removes the folder. So the JVM holds a lock on a file in it, and before that
    this process.
    """
    _remove_unlocked(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    opened = _lock(folder)
    try:
        yield folder
    finally:
        gateway = cast(Any, SparkContext)._gateway
        if gateway is None:
            shutil.rmtree(folder)
        else:
            held = locked_by_jvm(gateway, str(folder / _LOCK))
            _held.append(opened if held is None else held)
            file_of = getattr(gateway.jvm, "java.io.File")
            for path in (folder, *folder.iterdir()):
                file_of(str(path)).deleteOnExit()
        if opened not in _held:
            os.close(opened)


_held: list[Any] = []
"""The locks of folders: channels of the JVM, which closes one that no variable here has. Where it cannot lock, our descriptors."""


def _machine() -> bytes:
    """Return the content of a lock: which start of which machine; other containers on it see its locks too."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"windowing {boot.read_text() if boot.exists() else socket.gethostname()}".encode()


def _lock(folder: Path) -> int:
    """Put a file into a folder that is locked from its appearance until the returned descriptor is closed."""
    opened = os.open(folder / "new", os.O_CREAT | os.O_WRONLY, 0o600)
    with suppress(OSError):  # where there are no locks, the file keeps a name that nobody looks for
        os.write(opened, _machine())
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "new").rename(folder / _LOCK)
    return opened


def locked_by_jvm(gateway: Any, path: str) -> Any:
    """Return a channel of the JVM that holds a shared lock on a file or directory until it is closed or the JVM ends; None if it
    cannot be locked.
    """
    try:
        options = gateway.new_array(getattr(gateway.jvm, "java.nio.file.OpenOption"), 0)
        channel = getattr(gateway.jvm, "java.nio.channels.FileChannel").open(
            getattr(gateway.jvm, "java.io.File")(path).toPath(), options
        )
    except Exception:  # py4j has no types
        return None
    with suppress(Exception):  # a network's file system may have no locks
        if channel.tryLock(0, sys.maxsize, True) is not None:
            return channel
    channel.close()
    return None


def _remove_unlocked(prefix: str) -> None:
    """Remove the folders of this user whose JVM has ended, on this machine: a network's file system may show the locks of no other
    one.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            opened = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # no folder of this function, or it is gone
            continue
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the process that starts the JVM
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the JVM
            if os.read(opened, 100) == _machine():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use
            pass
        finally:
            os.close(opened)


def _unreached(address: str) -> str | None:
    """Return why a host and port cannot be reached, None if they can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, ValueError) as problem:
        return f"{address}: {describe_error(problem)}"
    return None


Builder = TypeVar("Builder")


def configure(builder: Builder) -> Builder:
    """Set the required settings on your own builder, and nothing else: no master, no memory, no address. Return the builder.

    `configure(SparkSession.builder.appName("job")).getOrCreate()`
    """
    changed: Any = builder
    for name, value in _required().items():
        changed = changed.config(name, value)
    return cast(Builder, changed)


def is_local(master: str) -> bool:
    """Return whether a master runs tasks in the driver's process.

    >>> is_local("local[2,4]"), is_local("local-cluster[2,1,1024]"), is_local("spark://127.0.0.1:7077")
    (True, False, False)
    """
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def is_connect(spark: Any) -> bool:
    """Return whether a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that the cluster runs at once, as it reports it; on Spark Connect this takes a small job."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    return spark.range(1 << 20).select(F.spark_partition_id()).distinct().count()


def in_worker(spark: SparkSession, function: Callable[[], Any]) -> Any:
    """Run a function in a Python worker of an executor and return its result, sent as JSON. Cost: a job of one task."""
    if not is_connect(spark):
        return spark.sparkContext.parallelize([0], 1).map(lambda _: function()).collect()[0]

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"found": [json.dumps(function())]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(once, "found string").collect()
    return json.loads(row["found"])


def require_session(spark: SparkSession, connect: bool = False) -> None:
    """Raise SessionError, with the setting and what to do, if windowed bolts could lose data in this session.

    connect: whether a session of Spark Connect is accepted.
    """
    (require_open if connect else require_classic)(spark)
    _require_packages()
    wrong = wrong_here(spark)
    if wrong:
        count = "a setting" if len(wrong) == 1 else f"{len(wrong)} settings"
        lines = "".join(f"\n  - {problem}" for problem in wrong)
        raise SessionError(
            f"the session has {count} with which data could be lost; use windowing.spark.session(), or "
            f"configure(builder) for a builder of your own, or change what each line names:{lines}"
        )
    if not is_connect(spark):
        share_modules(spark)


def require_readable_zone(spark: SparkSession) -> None:
    """Raise SessionError if the session's name of UTC is unknown to Arrow. A started query uses the name UTC itself."""
    zone = spark.conf.get(ZONE)
    try:
        pa.lib.string_to_tzinfo(zone)
    except Exception as problem:  # of pytz or zoneinfo
        raise SessionError(
            f'{ZONE} is {quote(zone)}, a name that Arrow does not know; spark.conf.set("{ZONE}", "UTC") before streams are read '
            "as DataFrames, or use start()"
        ) from problem


def require_spark(since: str, what: str, instead: str = "") -> None:
    """Raise SessionError if this PySpark is older than `since`, the first version with `what`. instead: an alternative to name.

    >>> require_spark("4.1", "this library")
    >>> require_spark("99.0", "spout 'numbers'")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    windowing.errors.SessionError: [SESSION] spout 'numbers' needs PySpark 99.0 or newer, this one is ...
    """
    if _version(pyspark.__version__) < _version(since):
        raise SessionError(
            f"{what} needs PySpark {since} or newer, this one is {pyspark.__version__}; install {since} or newer here and on the "
            f"cluster{instead and f', or {instead}'}"
        )


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def require_classic(spark: SparkSession) -> None:
    """Raise SessionError unless this is an open classic session of PySpark 4.1 or later.

    >>> require_classic(None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    windowing.errors.SessionError: [SESSION] windowing.spark needs a Spark session, got None; make one with ...
    """
    require_spark("4.1", "windowing.spark")
    if is_connect(spark):
        raise SessionError(_CONNECT + "use windowing.spark.session()")
    if not isinstance(spark, SparkSession):
        raise SessionError(
            f"windowing.spark needs a Spark session, got {quote(spark)}; make one with windowing.spark.session()"
        )
    if getattr(spark.sparkContext, "_jsc", None) is None:
        raise SessionError("the Spark session was stopped; make another one with windowing.spark.session()")
    _require_jvm()


def _require_jvm() -> None:
    """Raise SessionError if this process has started a JVM that has ended."""
    jvm: Any = cast(Any, SparkContext)._jvm
    try:
        if jvm is not None:
            jvm.System.nanoTime()
    except Exception as problem:  # py4j has no types
        raise SessionError(
            "the JVM of this process has ended (killed, or out of memory: see the log above), and the Spark session with it; start "
            "this program again, because a process has one JVM"
        ) from problem


def require_open(spark: SparkSession) -> None:
    """Raise SessionError unless this is an open session of PySpark 4.1 or later, classic or of Spark Connect."""
    if not is_connect(spark):
        require_classic(spark)
        return
    require_spark("4.1", "windowing.spark")
    if getattr(spark, "is_stopped", False):
        raise SessionError("the session of Spark Connect was stopped; connect again")


def wrong_here(spark: SparkSession) -> list[str]:
    """Return the problems on the driver, by the table. With Spark Connect the workers' Python can be checked only in a worker."""
    wrong = []
    for rule in REQUIRED:
        try:
            given = spark.conf.get(rule.name)
        except Exception:  # not set, and without a default in Spark; py4j has no types
            given = None
        if given is None or not rule.holds(given):
            wrong.append(
                f"{rule.name} is {'not set' if given is None else quote(given)}, wanted {rule.wanted}: {rule.why}; "
                f'spark.conf.set("{rule.name}", "{rule.wanted}") before the start'
            )
    of_context = [] if is_connect(spark) else [_wrong_python(spark), _wrong_speculation(spark)]
    return wrong + [problem for problem in of_context if problem is not None]


def counts_once(spark: SparkSession) -> bool:
    """Return whether what a task counts is right if its rows are kept in memory (persist), as they are while sinks write.

    If a second attempt at a task finds the rows that the first one has kept, and ends before it, Spark counts none of them
    (SPARK-41497), unless a row is found only after it was counted. Speculation makes such attempts; rarely, so do a lost shuffle
    file, whose stage begins again beside its running tasks, and an executor that moves its blocks before it ends.
    """
    return str(_of_context(spark).get(_VISIBILITY, "false")).lower() == "true"


def _of_context(spark: SparkSession) -> Any:
    """Return the settings of the context. `getConf` would copy all of them, in three calls of the JVM each."""
    return cast(Any, spark.sparkContext)._conf


def _wrong_speculation(spark: SparkSession) -> str | None:
    """Return the problem of speculation, None without one: a batch with windows would fail if Spark does not count a task. Under a
    local master Spark does not speculate.
    """
    given = _of_context(spark)
    speculates = given.get("spark.speculation", "false").lower() == "true" and not is_local(given.get(_MASTER, "local"))
    if not speculates or counts_once(spark):
        return None
    return (
        f"{_VISIBILITY} is {given.get(_VISIBILITY, 'not set')}, wanted true with spark.speculation: otherwise rows that two "
        "attempts share are not counted; give it before the session starts (spark-submit --conf), or leave out spark.speculation"
    )


def _require_packages() -> None:
    """Raise SessionError if what PySpark runs windows with is missing here, or too old: workers would die without a reason."""
    try:
        require_minimum_pandas_version()
        require_minimum_pyarrow_version()
        import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
    except Exception as problem:  # protobuf's VersionError is not an ImportError
        raise SessionError(
            f"this Python, {sys.executable}, cannot load what PySpark needs for windows ({describe_error(problem)}); install what "
            'this library needs: pip install "windowing[spark]"'
        ) from problem


def _wrong_python(spark: SparkSession) -> str | None:
    """Return the problem of the workers' Python, None without one: another `python3` of the PATH may lack this library."""
    context = spark.sparkContext
    local, begun_with = is_local(str(context.master)), getattr(context, "pythonExec", "python3")
    # From a program that spark-submit did not start, the setting reaches no worker: functions run in the Python of the context.
    named = str(begun_with if local else spark.conf.get(PYTHON, None) or begun_with)
    if named == sys.executable:
        return None
    found = shutil.which(named)
    if not local:
        if found is not None:
            return None
        return (
            f"{PYTHON} is {quote(named)}, which the driver does not have, where Spark starts one worker too; in client mode "
            "unpack the environment of --archives there too (mkdir environment && tar -xzf environment.tar.gz -C environment)"
        )
    # The python of every virtual environment links to the system's, so the folders are compared too.
    places = {
        (os.path.realpath(each), os.path.realpath(os.path.dirname(each))) for each in (found or "", sys.executable)
    }
    if found is None or len(places) > 1:
        return (
            f"{PYTHON} (the workers' Python) is {quote(named)}, wanted {sys.executable}: they would run without this "
            "library; set the environment variable PYSPARK_PYTHON before the session starts (the setting alone does not reach "
            "them), or use windowing.spark.session(); a session that runs keeps its Python"
        )
    return None


def _cores(cores: int | str) -> int:
    if cores == "*":
        return os.cpu_count() or 1
    if isinstance(cores, bool) or not str(cores).isdigit() or int(cores) < 1:
        raise ConfigError(f'cores is a number of at least 1 or "*", got {quote(cores)}; for example session(cores=2)')
    return int(cores)


# -- given settings ---------------------------------------------------------------------------------------------------------------


def given_settings() -> dict[str, str]:
    """Return the settings of the running context, of the JVM that spark-submit has started, or those that a new JVM will get."""
    running: Any = getattr(SparkContext, "_active_spark_context", None)
    if running is not None:
        return dict(running.getConf().getAll())
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        cast(Any, SparkContext)._ensure_initialized()
        submitted = dict(SparkConf().getAll())
        system = cast(Any, SparkContext)._jvm.System
        named = system.getenv("MASTER") is not None or _names_master(str(system.getProperty("sun.java.command")))
        if submitted.get(_MASTER) == "local[*]" and not named:
            del submitted[_MASTER]  # spark-submit's default
        return submitted
    try:
        arguments = _of_words(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    except ValueError as problem:  # PySpark would raise it when it starts the JVM
        raise SessionError(
            f"the environment variable PYSPARK_SUBMIT_ARGS cannot be split into arguments: {problem}; close its quotes, or unset it"
        ) from None
    return _of_file(arguments.pop(_FILE, None)) | arguments


def _names_master(command: str) -> bool:
    """Return whether a master was given to spark-submit: in its command, or a file of settings.

    >>> _names_master("org.apache.spark.deploy.SparkSubmit --master local[*] --name x job.py")
    True
    >>> _names_master("org.apache.spark.deploy.SparkSubmit --name x job.py --master local[*]")
    False
    """
    # The launcher puts settings first; the arguments of the job follow its name.
    options = _of_words(command.partition(".py")[0].split())
    return _MASTER in options | _of_file(options.get(_FILE))


def _of_file(named: str | None = None) -> dict[str, str]:
    """Return the settings of a file, by default those of spark-defaults.conf."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    file = Path(named or Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf")
    lines = file.read_text().splitlines() if file.is_file() else []
    found = [re.match(r"\s*(spark\.[\w.-]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$", line) for line in lines]
    return {each[1]: each[2] for each in found if each is not None}


def _of_words(words: Sequence[str]) -> dict[str, str]:
    """Return the settings among arguments of spark-submit.

    >>> _of_words("--master spark://h:7077 --conf spark.ui.enabled=true pyspark-shell".split())
    {'spark.master': 'spark://h:7077', 'spark.ui.enabled': 'true'}
    """
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    found: dict[str, str] = {}
    for option, value in pairwise(parts):
        if option in ("--master", _FILE):
            found[_MASTER if option == "--master" else _FILE] = value
        elif option in ("--conf", "-c") and "=" in value:
            name, _, setting = value.partition("=")
            found[name] = setting
    return found


# -- the Python workers -----------------------------------------------------------------------------------------------------------


def share_modules(spark: SparkSession) -> None:
    """Give Spark's Python processes on the driver the module path of this process.

    Spark starts one of them there for each query, which does not use --py-files and addPyFile; with a local master the workers run
    there too. A folder that an executor does not have has no effect there.

    SPARK_SIMPLIFIED_TRACEBACK is set here, so that all stages share workers: Spark has separate workers for each set of environment
    variables, and sets this one for all stages but stateful ones.
    """
    context: Any = spark.sparkContext
    root, paths = SparkFiles.getRootDirectory(), sysconfig.get_paths()
    installed = tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    local = is_local(str(context.master))
    for name in map(os.path.basename, str(spark.conf.get("spark.submit.pyFiles", "")).split(",")):
        # Spark sends a wheel, and puts only zips on the path.
        if name.endswith(".whl") and name not in context._python_includes:
            context._python_includes.append(name)
            sys.path.insert(1, os.path.join(root, name))
    shared = [
        path
        for path in map(os.path.abspath, sys.path)
        if os.path.exists(path) and (path.startswith(root) or (local and not path.startswith(installed)))
    ]
    before = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    known = [path for path in before if path]
    context.environment["PYTHONPATH"] = os.pathsep.join([*known, *(path for path in shared if path not in known)])
    if spark.conf.get(f"{_TRACEBACK}.enabled", "true") == "true":
        context.environment.setdefault("SPARK_SIMPLIFIED_TRACEBACK", "1")


_OTHER_PYTHON = (
    re.compile(r"\[(?:PYTHON_VERSION_MISMATCH|UNSUPPORTED_PACKAGE_VERSION|PACKAGE_NOT_INSTALLED)\][^\n]*"),
    re.compile(r"Cannot run program [^\n]*"),
    re.compile(
        r"Error from python worker:\n(?:.*\n)*?\s*(\w+(?:Error|Exception): (?!No module named)[^\n]*)\n*PYTHONPATH was:"
    ),
)


def other_python(said: str) -> str | None:
    """Return Spark's message about a Python worker that has another version or other packages, or does not start.

    >>> other_python("Caused by: java.io.IOException: Cannot run program \\"/opt/python\\": error=2\\n at java.lang")
    'Cannot run program "/opt/python": error=2'
    >>> other_python("Error from python worker:\\n  Traceback:\\n    x = y\\n  NameError: name 'y'\\nPYTHONPATH was:\\n  /lib")
    "NameError: name 'y'"
    >>> other_python("a task failed")
    """
    found = next((match for pattern in _OTHER_PYTHON if (match := pattern.search(said)) is not None), None)
    return None if found is None else found[found.lastindex or 0]


# -- what session() sets -----------------------------------------------------------------------------------------------------------


def _on_this_machine(cores: int | str, workers: int) -> dict[str, str]:
    return {
        _MASTER: f"local[{cores},4]",
        PYTHON: sys.executable,
        "spark.sql.shuffle.partitions": str(workers),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _sockets(folder: Path) -> dict[str, str]:
    """Return the settings of the sockets to Python workers, in a folder. Over TCP, Linux delays an ACK in a small batch by 40 ms.

    Spark asks for no secret at such a socket, and a worker runs what it is sent: so only this user may enter the folder. Its
    name is short: macOS has the temporary files of a user in a folder whose name has 48 bytes.

    >>> _sockets(Path("/tmp"))[_SOCKETS], _sockets(Path("/a/folder" * 10))
    ('/tmp', {})
    """
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", _SOCKETS: str(folder)}


def _required() -> dict[str, str]:
    return {rule.name: rule.wanted for rule in REQUIRED} | {_VISIBILITY: "true"}


def _defaults() -> dict[str, str]:
    return {
        **_required(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        f"{_STORE}.rocksdb.boundedMemoryUsage": "true",
        f"{_STORE}.rocksdb.maxMemoryUsageMB": "500",
        "spark.python.authenticate.socketTimeout": "60s",  # Spark's 15s are too few for a worker that starts on a busy machine
        "spark.python.worker.faulthandler.enabled": "true",  # the error of a crash has its line; costs a task 16 us on Spark 4.1
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
