"""Users' code on its way to the Python workers: whether it can be sent, whether they can load it, and how it is sent.

    driver    Shipped(spark, stages, ...) --pickled once a query--> small: the bytes, inside each function that Spark sends
                                                                    large: a broadcast, and its number in each function
    worker    shipped.value               --loaded on first access--> a large value once per worker, and cached there

Broadcasts of the user that the code refers to are sent with each of these functions, and loaded with the code.

Large values are broadcast here, because Spark would broadcast a large function itself (from 1 MiB on,
`spark.broadcast.UDFCompressionThreshold`), and the process in which the driver initializes `transformWithState` has no broadcasts:
STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE. That process never reads `value`, so the number of the broadcast is enough there.
"""

from __future__ import annotations

import builtins
import io
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from traceback import extract_tb
from types import CellType, FunctionType
from typing import Any, Generic, TypeVar, cast

import pyspark
from pyspark.serializers import CloudPickleSerializer, pickle_protocol
from pyspark.sql import SparkSession

from windowing.errors import LIBRARY, ConfigError, SessionError, WindowingError, describe_error, printable, quote
from windowing.spark.failures import FailedQuery, Seal, library_error, marked
from windowing.spark.session import (
    PYTHON,
    in_worker,
    is_connect,
    is_local,
    other_python,
    require_open,
    share_modules,
    wrong_here,
)

T = TypeVar("T")

serializer: Any = cast(Any, CloudPickleSerializer)()
"""Spark's own serializer of functions."""

# -- Code that cannot be sent ----------------------------------------------------------------------------------------------------


def _bytes_of(value: Any) -> bytes:
    """Return the bytes that Spark's serializer of functions makes, without the tracebacks that it prints for an error."""
    return bytes(cast(Any, pyspark).cloudpickle.dumps(value, pickle_protocol))


def unsendable(who: str, part: Any, problem: Exception) -> str:
    """Return the sentence about a part of a job that cannot be pickled, with the variable by which a function refers to it."""
    functions: list[Any] = []
    pickler: Any = cast(Any, pyspark).cloudpickle.Pickler

    def noted(self: Any, value: Any) -> Any:
        if isinstance(value, FunctionType):
            functions.append(value)
        return pickler.reducer_override(self, value)

    with suppress(Exception):
        type("Tracing", (pickler,), {"reducer_override": noted})(io.BytesIO(), pickle_protocol).dump(part)
    names = (name for function in reversed(functions) for name, value in _referred(function) if _size(value) is None)
    name = next(names, None)
    what = "what" if name is None else f"{quote(name)}, which"
    return (
        f"{who} closes over {what} cannot be sent to Spark's workers: {describe_error(problem)}; make it where it is used: "
        "in the function, or in `prepare` of a class"
    )


def _referred(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables outside of a function to which it refers, as far as they have a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():  # it has a value
            yield name, cell.cell_contents
    known = function.__globals__
    yield from ((name, known[name]) for name in function.__code__.co_names if name in known)


def _size(value: Any) -> int | None:
    """Return the pickled size in bytes, None if it cannot be pickled."""
    try:
        return len(_bytes_of(value))
    except Exception:
        return None


# -- Code that a worker cannot load ----------------------------------------------------------------------------------------------


_PACKAGES = ("pyspark", "pyarrow", "pandas", "protobuf", "windowing", "sortedcontainers", "xxhash")
_LOCALLY = ("pyspark", "pyarrow", "protobuf", "windowing")
"""Packages that must have the same version in all processes that exchange rows and states."""


def check(spark: SparkSession, *bolts: Any) -> None:
    """Check the driver and a Python worker of an executor. Raises SessionError with a line for each problem.

    In the worker it checks the library, the versions of the packages used, and whether `bolts` (windowed bolts, topologies,
    functions) can be loaded with the modules that they import. Cost: a Spark job of one task.
    """
    require_open(spark)
    wrong = [*wrong_here(spark), *_wrong_there(spark, bolts)]
    if wrong:
        raise SessionError("windowed bolts cannot run in this session:" + "".join(f"\n  - {each}" for each in wrong))


def _probe(packages: Sequence[str], bolts: Sequence[tuple[str, bytes]]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the packages of a Python worker, and the bolts that it cannot load, with the reason.

    It is sent by value, because the library may be missing there.
    """
    import sys
    from importlib import import_module
    from importlib.metadata import version

    found: dict[str, Any] = {"Python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    for package in packages:
        try:
            import_module({"protobuf": "google.protobuf"}.get(package, package))
        except Exception as problem:
            found[package] = f"missing ({type(problem).__name__}: {problem})"
            continue
        try:
            found[package] = version(package)
        except Exception:  # it is on the path, and not installed: by --py-files
            found[package] = "there"
    lost = []
    for name, data in bolts:
        try:
            import_module("pyspark.cloudpickle").loads(data)
        except Exception as problem:
            lost.append((name, f"{type(problem).__name__}: {problem}"))
    return found, lost


def _wrong_there(spark: SparkSession, bolts: Sequence[Any]) -> list[str]:
    """Return the problems in a worker of an executor, compared with this process."""
    if not is_connect(spark):
        share_modules(spark)
    probe = FunctionType(_probe.__code__, {"__builtins__": builtins}, "probe")
    probe.__module__ = "__main__"  # so that it is pickled by value
    sent, kept_here = [], []
    for bolt in bolts:
        name = str(getattr(bolt, "name", None) or getattr(bolt, "__name__", bolt))
        try:
            sent.append((name, _bytes_of(bolt)))
        except Exception as problem:  # of the user's objects
            kept_here.append(unsendable(name, bolt, problem))
    try:
        found, lost = in_worker(spark, lambda: probe(_PACKAGES, sent))
    except Exception as problem:  # py4j has no types
        lost = re.search(r"No module named '[\w.]+'", str(problem))
        why = other_python(str(problem)) or (lost[0] if lost else describe_error(problem))
        return [
            *kept_here,
            f"a Python worker does not start: {printable(why)}; {PYTHON} has to name, on every worker, a Python of version "
            f"{sys.version_info[0]}.{sys.version_info[1]} with windowing[spark]",
        ]
    not_loaded = [
        f"bolt {quote(name)} cannot be loaded in the Python workers: {why}; install its module there, send it by --py-files, or by "
        "value: pyspark.cloudpickle.register_pickle_by_value(module)"
        for name, why in lost
    ]
    return [*kept_here, *_packages_there(found), *not_loaded]


def _packages_there(found: Mapping[str, str]) -> list[str]:
    wrong = []
    for package in _PACKAGES:
        there = found[package]
        if there.startswith("missing"):
            way_out = "install windowing[spark] there, or send it along (--py-files, --archives)"
            wrong.append(f"package {package} is {there} in the Python workers; {way_out}")
        elif package in _LOCALLY and there not in ("there", version(package)):
            wrong.append(
                f"package {package} is {there} in the Python workers and {version(package)} here; install the same one there"
            )
    return wrong


# -- Sending ---------------------------------------------------------------------------------------------------------------------


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
        self.value, self._what = value, what
        data = _pickled(value, what, parts)
        self._load: tuple[Any, ...] = (serializer.loads, data)
        self._broadcast: Any = None
        self._users: tuple[Any, ...] = ()
        connect = is_connect(spark)
        if connect:
            _require_sendable(data, what, parts)
        else:
            context: Any = spark.sparkContext
            self._users = tuple(context._pickled_broadcast_vars)
            if len(data) > _SMALL_BYTES:
                self._broadcast = _broadcast(spark, data, what, parts)
                self._load = ()
        if connect or not is_local(str(getattr(spark.sparkContext, "master", "local"))):
            _require_loadable(spark, self, what)

    @cached_property
    def value(self) -> T:
        """The value; a worker loads it on first access. Raises SessionError, with the user's line, if code that loading runs fails
        there: that of the user's modules, or `__setstate__`.
        """
        load, argument = self._load
        try:
            found: T = load(argument)
        except (WindowingError, ImportError, AttributeError):  # `library_error` says what the worker lacks
            raise
        except Exception as problem:
            line = _users_line(problem)
            at = "" if line is None else f" ({line})"
            raise SessionError(
                f"a Python worker cannot load the code of {self._what}: {describe_error(problem)}{at}; what it uses is imported "
                "and unpickled again there, so it must need nothing that only this process has"
            ) from problem
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a broadcast registers it, so that Spark sends it with the function.
        for users in self._users:
            users.__reduce__()
        load = self._load if self._broadcast is None else (_of_broadcast, self._broadcast.__reduce__())
        return {"_seal": Seal(), "_load": load, "_broadcast": None, "_users": (), "_what": self._what}


def _users_line(problem: Exception) -> str | None:
    """Return file:line of the innermost frame of the user's code, else of an installed package; None if there is neither."""
    paths = sysconfig.get_paths()
    packages = (paths["purelib"], paths["platlib"])
    own, installed = None, None
    for each in extract_tb(problem.__traceback__):
        file, line = each.filename, f"{each.filename}:{each.lineno}"
        if file.startswith((LIBRARY, *pyspark.__path__, "<frozen")) or file.endswith(".pyx"):
            continue
        if file.startswith(packages):
            installed = line
        elif not file.startswith((paths["stdlib"], paths["platstdlib"])):
            own = line
    return own or installed


def _of_broadcast(reference: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    """Return the value of a broadcast that was sent with the function; Spark caches it for the worker's next tasks."""
    find, arguments = reference
    return find(*arguments).value


def _require_loadable(spark: SparkSession, shipped: Shipped[Any], what: str) -> None:
    """Load a value on an executor before the first batch. Raises SessionError for a library or module that is missing there."""

    def load() -> bool:
        with marked():
            return shipped.value is None

    try:
        in_worker(spark, load)
    except Exception as problem:  # py4j has no types
        found = library_error(problem, FailedQuery(what, ""))
        if found is problem:
            raise
        raise found from found.__cause__


class _Packed:
    """Bytes that unpickle to their content: the pickler of broadcasts cannot pickle users' functions."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return serializer.loads, (self._data,)


def _pickled(value: Any, what: str, parts: Mapping[str, Any]) -> bytes:
    try:
        return _bytes_of(value)
    except Exception as problem:
        who, part = next((each for each in parts.items() if _size(each[1]) is None), (what, value))
        raise ConfigError(unsendable(who, part, problem)) from problem


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
