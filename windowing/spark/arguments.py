"""What a query is given, before anything runs: options looked at, and user code, with all that it closes over, packed for workers.

    driver    Shipped(spark, stages, ...) --pickled once a query--> small: the bytes, inside each function that Spark sends
                                                                    large: a broadcast, and its number in each function
    worker    shipped.value               --when it is first asked for--> loaded; what is large once a worker, and kept there

Spark makes a broadcast of a large function itself (from 1 MiB on, `spark.broadcast.UDFCompressionThreshold`), and the process in
which the driver initializes `transformWithState` knows no broadcasts: STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE. It never asks
for `value`, so a number is all that it has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from windowing.errors import ConfigError, describe_error, quote
from windowing.spark.failures import FailedQuery, Seal, library_error
from windowing.spark.hadoop import checked_folder
from windowing.spark.session import in_worker, is_connect, is_local
from windowing.spark.spouts import arrow_type_in_spark

__all__ = [
    "Shipped",
    "names_of",
    "require_carried",
    "require_mapping",
    "require_start",
]


_REFUSED = ("TimeType", "DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType", "VariantType")


def names_of(option: str, given: Any, what: str) -> tuple[str, ...]:
    """Return names that were given as one text or several. Raises ConfigError for anything else.

    >>> names_of("order_by", "at", "columns"), names_of("order_by", ["at", "id"], "columns")
    (('at',), ('at', 'id'))
    >>> names_of("order_by", 5, "columns")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] order_by names columns, as a text or a list of texts, got 5; write order_by=("name",)
    """
    several = (given,) if isinstance(given, str) else given
    if isinstance(several, Iterable) and not isinstance(several, bytes | Mapping):
        names = tuple(several)
        if all(isinstance(name, str) for name in names):
            return names
    raise ConfigError(
        f'{option} names {what}, as a text or a list of texts, got {quote(given)}; write {option}=("name",)'
    )


def require_start(checkpoint: Any, query_name: Any) -> None:
    """Raise ConfigError for a checkpoint that is no path, or a name that Spark cannot give a query."""
    checked_folder("checkpoint", checkpoint)
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        raise ConfigError(f'query_name is a text, got {quote(query_name)}; write query_name="delays"')


def require_mapping(option: str, given: Any) -> None:
    """Raise ConfigError unless `given` is a mapping by name."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{option} is a mapping by name, got {quote(given)}; write {option}={{'name': ...}}")


def require_carried(what: str, schema: StructType) -> None:
    """Raise ConfigError for a column of a type whose values Spark does not hand to Python code and back."""
    for field in schema.fields:
        if not _travels(field.dataType):
            kind = field.dataType.simpleString()
            raise ConfigError(
                f"column {quote(field.name)} of {what} is {kind}, which does not travel between Spark and Python; cast it to a "
                f"number or a text, or drop it: .withColumn({field.name!r}, F.col({field.name!r}).cast('string'))"
            )


def _travels(kind: DataType) -> bool:
    if type(kind).__name__ in _REFUSED:
        return False
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    if parts:
        return all(map(_travels, parts))
    try:
        arrow_type_in_spark(kind)
    except Exception:  # PySpark has several for it
        return False
    return True


# -- user code on its way to the workers ----------------------------------------------------------------------------------------


T = TypeVar("T")

_spark_s: Any = cast(Any, CloudPickleSerializer)()  # what Spark itself sends functions with
_SMALL_BYTES = 256 << 10
_MB = 1 << 20
_PLAN_BYTES = 16 << 20
_SHARE = 0.5
"""How much of the memory of the driver's JVM a broadcast may take. Measured."""


class Shipped(Generic[T]):
    """A value with users' code, made once a query on the driver; `value` is it, there and in the workers.

    parts: what users have written of it, by the component's name, for errors. Raises ConfigError for what cannot be pickled or
    sent, and on a cluster SessionError for what an executor cannot load. Cost: it is pickled once; up to 256 KiB it travels with
    each task, above that once to each executor, and is loaded once by each worker, whose batches share it then. On a cluster one
    small job.
    """

    def __init__(self, spark: SparkSession, value: T, what: str, parts: Mapping[str, Any]) -> None:
        self._value, self._is_loaded = value, True
        data = _pickled(value, what, parts)
        self._load: tuple[Any, ...] = (_loaded, data)
        self._broadcast: Any = None
        connect = is_connect(spark)
        if connect:
            _require_sendable(data, what, parts)
        elif len(data) > _SMALL_BYTES:
            self._broadcast = _broadcast(spark, data, what, parts)
            self._load = ()
        if connect or not is_local(str(getattr(spark.sparkContext, "master", "local"))):
            _require_loadable(spark, self, what)

    @classmethod
    def here(cls, value: T) -> Shipped[T]:
        """Return a value that stays in this process."""
        found = cls.__new__(cls)
        found._value, found._is_loaded, found._load, found._broadcast = value, True, (), None
        return found

    @property
    def value(self) -> T:
        """The value; in a worker it is loaded when it is first asked for."""
        if not self._is_loaded:
            load, argument = self._load
            self._value, self._is_loaded = load(argument), True
        return self._value

    def load(self) -> None:
        """Load the value if it is not loaded yet."""
        assert self.value is not None

    def __reduce__(self) -> tuple[Any, ...]:
        # The broadcast notes, when it is pickled, that it has to go along with the function.
        load = self._load if self._broadcast is None else (_of_broadcast, self._broadcast.__reduce__())
        return _arrived, (Seal(), *load)


def _arrived(seal: Seal, load: Callable[[Any], T], argument: Any) -> Shipped[T]:
    found = Shipped.here(cast(T, None))
    found._is_loaded, found._load = False, (load, argument)
    return found


def _loaded(data: bytes) -> Any:
    return _spark_s.loads(data)


def _of_broadcast(reference: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    """Return the value of a broadcast that has come with the function; Spark keeps it for the worker's next tasks."""
    find, arguments = reference
    return find(*arguments).value


def _require_loadable(spark: SparkSession, shipped: Shipped[Any], what: str) -> None:
    """Load a value on an executor, before the first batch. Raises SessionError for a library or a module that is missing there."""
    try:
        in_worker(spark, shipped.load)
    except Exception as problem:  # py4j has no types
        found = library_error(problem, FailedQuery(what, "", spark=None))
        if found is problem:
            raise
        raise found from problem


class _Packed:
    """Bytes that are loaded as what was pickled into them: a broadcast's own pickling knows no functions of users'."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._data,)


def _pickled(value: Any, what: str, parts: Mapping[str, Any]) -> bytes:
    try:
        return bytes(_spark_s.dumps(value))
    except Exception as problem:
        who = next((name for name, part in parts.items() if _size(part) is None), what)
        raise ConfigError(
            f"{who} closes over what cannot be sent to Spark's workers: {describe_error(problem)}; make it where it is used: "
            "in the function, or in `prepare` of a class"
        ) from problem


def _require_sendable(data: bytes, what: str, parts: Mapping[str, Any]) -> None:
    """Raise ConfigError for what is too much for a plan: Spark Connect has no broadcasts, and its server takes 128 MiB at once."""
    if len(data) > _PLAN_BYTES:
        who, size = _largest(parts, what), len(data) / _MB
        raise ConfigError(
            f"{who} closes over too much to be sent through Spark Connect: {what} takes {size:.0f} MiB, and a plan carries at most "
            f"{_PLAN_BYTES / _MB:.0f}. Read it from a file in `prepare` of a class"
        )


def _largest(parts: Mapping[str, Any], what: str) -> str:
    sizes = {name: _size(part) or 0 for name, part in parts.items()}
    return max(sizes, key=lambda name: sizes[name], default=what)


def _broadcast(spark: SparkSession, data: bytes, what: str, parts: Mapping[str, Any]) -> Any:
    context: Any = spark.sparkContext
    heap = int(getattr(context._jvm, "java.lang.Runtime").getRuntime().maxMemory())
    if len(data) > heap * _SHARE:
        raise _too_large(data, heap, what, parts)
    try:
        return context.broadcast(_Packed(data))
    except Exception as problem:  # py4j has no types
        if "OutOfMemoryError" not in str(problem):
            raise
        raise _too_large(data, heap, what, parts) from problem


def _too_large(data: bytes, heap: int, what: str, parts: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f"{_largest(parts, what)} closes over too much to be sent to Spark's workers: {what} takes {len(data) / _MB:.0f} MiB, "
        f"and the driver's memory of {heap / _MB:.0f} MiB takes at most {heap * _SHARE / _MB:.0f}, with what other queries have "
        "sent. Start the session with a larger spark.driver.memory (and spark.executor.memory), or read it from a file in "
        "`prepare` of a class"
    )


def _size(part: Any) -> int | None:
    """Return how many bytes a part takes, None where it cannot be pickled."""
    try:
        return len(_spark_s.dumps(part))
    except Exception:
        return None
