"""The Spark session: `session()` makes one that is right, `require_session()` refuses one that could lose data.

The settings and why each is needed are in one table, `REQUIRED`; facts behind them: docs/operate/deploy.md.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from windowing.errors import ConfigError, SessionError, describe_error, quote

__all__ = [
    "MAX_RECORDS_PER_BATCH",
    "require_readable_zone",
    "require_session",
    "require_spark",
    "session",
]


MAX_RECORDS_PER_BATCH = 100_000
_STORE = "spark.sql.streaming.stateStore"
_PYTHON = "spark.pyspark.python"
_ZONE = "spark.sql.session.timeZone"
_UTC = re.compile(
    r"Z|(?:Etc/)?(?:UTC|UCT|GMT0?|Zulu|Universal|Greenwich)|(?:Etc/GMT|GMT|UTC|UT)?[+-]00?(?::?00){0,2}|UT",
    re.IGNORECASE,
)


class _Rule(NamedTuple):
    name: str
    wanted: str
    holds: Callable[[str], bool]
    why: str


def _is_utc(zone: str) -> bool:
    """Whether a time zone is UTC by one of its names, or as an offset of zero."""
    return _UTC.fullmatch(zone) is not None


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
    _Rule(f"{_STORE}.checkpointFormatVersion", "2", _is("2"), "in format 1 a late attempt's state file can win"),
    _Rule(
        f"{_STORE}.commitValidation.enabled", "true", _is("true"), "without it a half evaluated batch goes unnoticed"
    ),
    _Rule(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        str(MAX_RECORDS_PER_BATCH),
        lambda given: given.lstrip("-").isdigit() and 0 < int(given) <= MAX_RECORDS_PER_BATCH,
        f"a batch of more than {MAX_RECORDS_PER_BATCH} rows is slower and may not fit into one state row",
    ),
    _Rule(_ZONE, "UTC", _is_utc, "timestamps kept in the state carry their zone"),
)


def session(app_name: str = "windowing", cores: int | str = "*", **conf: Any) -> SparkSession:
    """Start (or return) a local Spark session with all that windowed bolts need.

    `cores` is a number or "*"; a failed task is tried 4 times, so a dying Python worker does not end a query. `conf`
    adds or replaces settings by their Spark names: `session(**{"spark.driver.memory": "4g"})`. Another `spark.master`
    is one of them. Raises SessionError when a session is already running with settings that could lose data. Cost: 6
    to 18 seconds.
    """
    workers = _cores(cores)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = str(conf.get(_PYTHON, sys.executable))
    settings = _defaults(cores, workers) | {name: _text(value) for name, value in conf.items()}
    builder: Any = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    started: SparkSession = builder.getOrCreate()
    started.sparkContext.setLogLevel(settings["spark.log.level"])
    require_session(started)
    return started


def require_session(spark: SparkSession) -> None:
    """Raise SessionError, naming the setting and the way out, when windowed bolts could lose data in this session."""
    if not hasattr(spark, "sparkContext") or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SessionError(
            "windowed bolts need a classic Spark session, got one of Spark Connect; use windowing.spark.session()"
        )
    if getattr(spark.sparkContext, "_jsc", None) is None:
        raise SessionError("the Spark session was stopped; make another one with windowing.spark.session()")
    _require_packages()
    wrong = [
        problem for problem in (*map(partial(_wrong, spark), REQUIRED), _wrong_python(spark)) if problem is not None
    ]
    if wrong:
        count = "a setting" if len(wrong) == 1 else f"{len(wrong)} settings"
        lines = "".join(f"\n  - {problem}" for problem in wrong)
        raise SessionError(
            f"the session has {count} with which data could be lost; windowing.spark.session() has none:{lines}"
        )


def require_readable_zone(spark: SparkSession) -> None:
    """Raise SessionError where the session calls UTC by a name that Arrow does not know. A started query calls it UTC by itself."""
    zone = spark.conf.get(_ZONE)
    try:
        pa.lib.string_to_tzinfo(zone)
    except Exception as problem:  # of pytz or zoneinfo
        raise SessionError(
            f'{_ZONE} is {quote(zone)}, a name that Arrow does not know; spark.conf.set("{_ZONE}", "UTC") before streams are read '
            "as DataFrames, or use start()"
        ) from problem


def require_spark(since: str, what: str) -> None:
    """Raise SessionError where this PySpark is older than the version from which on `what` works.

    >>> require_spark("4.1", "this library")
    >>> require_spark("99.0", "spout 'numbers'")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    windowing.errors.SessionError: [SESSION] spout 'numbers' needs PySpark 99.0 or newer, this one is ...
    """
    if _version(pyspark.__version__) < _version(since):
        raise SessionError(
            f"{what} needs PySpark {since} or newer, this one is {pyspark.__version__}; install that one here and on the cluster, "
            "or read the rows as a streaming DataFrame"
        )


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, whatever follows them."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def _wrong(spark: SparkSession, rule: _Rule) -> str | None:
    """Return what is wrong with a setting; one that nobody has set is what this Spark takes for it."""
    try:
        given = spark.conf.get(rule.name)
    except Exception:  # not set, and Spark's configuration knows no default of it; py4j has no types
        given = None
    if given is not None and rule.holds(given):
        return None
    return (
        f"{rule.name} is {'not set' if given is None else quote(given)}, wanted {rule.wanted}: {rule.why}; "
        f'spark.conf.set("{rule.name}", "{rule.wanted}") before the start'
    )


def _require_packages() -> None:
    """Refuse packages with which PySpark's state protocol cannot be imported: workers would die of it, and not say why."""
    try:
        import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
    except Exception as problem:  # protobuf's VersionError is no ImportError
        raise SessionError(
            f"PySpark cannot load the protocol of its state server ({describe_error(problem)}); install what this library needs: "
            'pip install --upgrade "windowing[spark]"'
        ) from problem


def _wrong_python(spark: SparkSession) -> str | None:
    """Refuse workers that would start whatever `python3` is on the PATH: they lack this library and die of an
    ImportError.
    """
    context = spark.sparkContext
    named = str(context.getConf().get(_PYTHON, None) or getattr(context, "pythonExec", "python3"))
    if not str(context.master).startswith("local") or named == sys.executable:
        return None
    found = shutil.which(named)
    if found is None or os.path.realpath(found) != os.path.realpath(sys.executable) or not _same_prefix(found):
        return (
            f"{_PYTHON} is {quote(named)}, wanted {sys.executable}: the Python workers would run without this library; "
            "set it (and the environment variable PYSPARK_PYTHON) before the session starts"
        )
    return None


def _same_prefix(executable: str) -> bool:
    """A virtual environment's python is a link to the system's: it is the same one only in the same folder."""
    return os.path.realpath(os.path.dirname(executable)) == os.path.realpath(os.path.dirname(sys.executable))


def _cores(cores: int | str) -> int:
    if cores == "*":
        return os.cpu_count() or 1
    if isinstance(cores, bool) or not str(cores).isdigit() or int(cores) < 1:
        raise ConfigError(f'cores is a number of at least 1 or "*", got {quote(cores)}; for example session(cores=2)')
    return int(cores)


def _defaults(cores: int | str, workers: int) -> dict[str, str]:
    return {
        "spark.master": f"local[{cores},4]",
        _PYTHON: sys.executable,
        **{rule.name: rule.wanted for rule in REQUIRED},
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        f"{_STORE}.rocksdb.boundedMemoryUsage": "true",
        f"{_STORE}.rocksdb.maxMemoryUsageMB": "500",
        "spark.sql.shuffle.partitions": str(workers),
        "spark.python.authenticate.socketTimeout": "60s",  # Spark's 15s are too few for a worker that starts on a busy machine
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
