"""The Spark session: `session()` makes one that is right, `require_session()` refuses one that could lose data.

The settings and why each is needed are in one table, `REQUIRED`; facts behind them: docs/spark.md.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from windowing.errors import ConfigError, SessionError, shown

__all__ = ["MAX_RECORDS_PER_BATCH", "require_session", "session"]

MAX_RECORDS_PER_BATCH = 100_000
_STORE = "spark.sql.streaming.stateStore"
_PYTHON = "spark.pyspark.python"


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
    _Rule("spark.sql.session.timeZone", "UTC", _is("utc"), "timestamps kept in the state carry their zone"),
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
    for rule in REQUIRED:
        given = spark.conf.get(rule.name, None)
        if given is None or not rule.holds(given):
            raise SessionError(
                f"{rule.name} is {shown(given)}, wanted {rule.wanted}: {rule.why}; "
                f'set it with spark.conf.set("{rule.name}", "{rule.wanted}") before the start, or use windowing.spark.session()'
            )
    _require_python(spark)


def _require_python(spark: SparkSession) -> None:
    """Refuse workers that would start whatever `python3` is on the PATH: they lack this library and die of an
    ImportError.
    """
    context = spark.sparkContext
    named = str(context.getConf().get(_PYTHON, None) or getattr(context, "pythonExec", "python3"))
    if not str(context.master).startswith("local") or named == sys.executable:
        return
    found = shutil.which(named)
    if found is None or os.path.realpath(found) != os.path.realpath(sys.executable) or not _same_prefix(found):
        raise SessionError(
            f"{_PYTHON} is {shown(named)}, wanted {sys.executable}: the Python workers would run without this library; "
            "set it (and the environment variable PYSPARK_PYTHON) before the session starts, or use windowing.spark.session()"
        )


def _same_prefix(executable: str) -> bool:
    """A virtual environment's python is a link to the system's: it is the same one only in the same folder."""
    return os.path.realpath(os.path.dirname(executable)) == os.path.realpath(os.path.dirname(sys.executable))


def _cores(cores: int | str) -> int:
    if cores == "*":
        return os.cpu_count() or 1
    if isinstance(cores, bool) or not str(cores).isdigit() or int(cores) < 1:
        raise ConfigError(f'cores is a number of at least 1 or "*", got {shown(cores)}; for example session(cores=2)')
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
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
