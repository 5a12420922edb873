"""Checks of the arguments of a query, and Shipped: user code with its closures, pickled for the workers.

    driver    Shipped(spark, stages, ...) --pickled once a query--> small: the bytes, inside each function that Spark sends
                                                                    large: a broadcast, and its number in each function
    worker    shipped.value               --loaded on first access--> a large value once per worker, and cached there

Large values are broadcast here, because Spark would broadcast a large function itself (from 1 MiB on,
`spark.broadcast.UDFCompressionThreshold`), and the process in which the driver initializes `transformWithState` has no broadcasts:
STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE. That process never reads `value`, so the number of the broadcast is enough there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from windowing.errors import ConfigError, quote
from windowing.spark.failures import FailedQuery, Seal, library_error
from windowing.spark.hadoop import checked_folder
from windowing.spark.session import in_worker, is_connect, is_local, unsendable
from windowing.spark.spouts import arrow_type_in_spark

_REFUSED = (
    *("TimeType", "DayTimeIntervalType", "YearMonthIntervalType", "CalendarIntervalType"),
    *("VariantType", "GeometryType", "GeographyType"),
)


def names_of(option: str, given: Any, what: str) -> tuple[str, ...]:
    """Return names given as one text or as several. Raises ConfigError for anything else.

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


def require_start(checkpoint: Any, query_name: Any) -> str:
    """Return the path of the checkpoint. Raises ConfigError for an invalid path, or an invalid query name."""
    path = checked_folder("checkpoint", checkpoint)
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        raise ConfigError(f'query_name is a text, got {quote(query_name)}; write query_name="delays"')
    return path


def require_mapping(option: str, given: Any) -> None:
    """Raise ConfigError unless `given` is a mapping by name."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{option} is a mapping by name, got {quote(given)}; write {option}={{'name': ...}}")


def require_carried(what: str, schema: StructType) -> None:
    """Raise ConfigError for a column of a type whose values Spark cannot transfer to Python code and back."""
    for field in schema.fields:
        if not _is_transferable(field.dataType):
            kind = field.dataType.simpleString()
            shape = kind.startswith(("geometry", "geography"))
            cast_to = f"F.expr('st_asbinary(`{field.name}`)')" if shape else f"F.col({field.name!r}).cast('string')"
            raise ConfigError(
                f"column {quote(field.name)} of {what} is {kind}, which does not travel between Spark and Python; cast it to "
                f"{'binary' if shape else 'a number or a text'}, or drop it: .withColumn({field.name!r}, {cast_to})"
            )


def _is_transferable(kind: DataType) -> bool:
    if type(kind).__name__ in _REFUSED:
        return False
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    parts += [field.dataType for field in getattr(kind, "fields", ())]
    if parts:
        return all(map(_is_transferable, parts))
    try:
        arrow_type_in_spark(kind)
    except Exception:  # PySpark raises several classes
        return False
    return True


# -- user code for the workers ---------------------------------------------------------------------------------------------------


T = TypeVar("T")

_serializer: Any = cast(Any, CloudPickleSerializer)()  # Spark's own serializer of functions
_SMALL_BYTES = 256 << 10
_MB = 1 << 20
_PLAN_BYTES = 16 << 20
_SHARE = 0.5
"""Maximum share of the driver JVM's memory for a broadcast. Measured."""


class Shipped(Generic[T]):
    """A value with users' code, pickled once per query on the driver; `value` is available there and in the workers.

    parts: users' code in it by component name, for error messages. Raises ConfigError for a value that cannot be pickled or sent,
    and on a cluster SessionError for one that an executor cannot load. Cost: pickled once; up to 256 KiB it is sent with each task,
    above that once to each executor; each worker loads it once and shares it between batches. On a cluster one small job.
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
        """Return a Shipped for a value that is not sent to another process."""
        found = cls.__new__(cls)
        found._value, found._is_loaded, found._load, found._broadcast = value, True, (), None
        return found

    @property
    def value(self) -> T:
        """The value; a worker loads it on first access."""
        if not self._is_loaded:
            load, argument = self._load
            self._value, self._is_loaded = load(argument), True
        return self._value

    def load(self) -> None:
        """Load the value unless it is loaded."""
        assert self.value is not None

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling the broadcast registers it, so that Spark sends it with the function.
        load = self._load if self._broadcast is None else (_of_broadcast, self._broadcast.__reduce__())
        return _arrived, (Seal(), *load)


def _arrived(seal: Seal, load: Callable[[Any], T], argument: Any) -> Shipped[T]:
    found = Shipped.here(cast(T, None))
    found._is_loaded, found._load = False, (load, argument)
    return found


def _loaded(data: bytes) -> Any:
    return _serializer.loads(data)


def _of_broadcast(reference: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    """Return the value of a broadcast that was sent with the function; Spark caches it for the worker's next tasks."""
    find, arguments = reference
    return find(*arguments).value


def _require_loadable(spark: SparkSession, shipped: Shipped[Any], what: str) -> None:
    """Load a value on an executor before the first batch. Raises SessionError for a library or module that is missing there."""
    try:
        in_worker(spark, shipped.load)
    except Exception as problem:  # py4j has no types
        found = library_error(problem, FailedQuery(what, "", spark=None))
        if found is problem:
            raise
        raise found from problem


class _Packed:
    """Bytes that unpickle to their content: the pickler of broadcasts cannot pickle users' functions."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self._data,)


def _pickled(value: Any, what: str, parts: Mapping[str, Any]) -> bytes:
    try:
        return bytes(_serializer.dumps(value))
    except Exception as problem:
        who = next((name for name, part in parts.items() if _size(part) is None), what)
        raise ConfigError(unsendable(who, problem)) from problem


def _require_sendable(data: bytes, what: str, parts: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that is too large for a plan: Spark Connect has no broadcasts, and its server accepts 128 MiB
    per message.
    """
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
    """Return the pickled size of a part in bytes, None if it cannot be pickled."""
    try:
        return len(_serializer.dumps(part))
    except Exception:
        return None
