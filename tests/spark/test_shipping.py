"""User code is sent to the workers: small closures in each function, large ones as a broadcast that is loaded when it is used."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from pyspark.serializers import CloudPickleSerializer

from windowing.errors import CheckpointError, ConfigError, SessionError
from windowing.spark.failures import WorkerError, raised_in_worker
from windowing.spark.operator import TaskProcessor, TaskResult, as_sent
from windowing.spark.shipping import Shipped

MB = 1 << 20
held: dict[int, Any] = {}
asked: list[int] = []


pickled: list[Any] = []


class Sent:
    """A broadcast, pickled as its number, as Spark's is; reading the value of an unknown number fails."""

    def __init__(self, value: Any) -> None:
        self.number = len(held)
        held[self.number] = CloudPickleSerializer().dumps(value)

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        pickled.append(self)
        return found, (self.number,)


def found(number: int) -> Any:
    asked.append(number)
    return SimpleNamespace(value=CloudPickleSerializer().loads(held[number]))


def session(heap: int = 1024 * MB) -> Any:
    runtime = SimpleNamespace(maxMemory=lambda: heap)
    jvm = SimpleNamespace(**{"java.lang.Runtime": SimpleNamespace(getRuntime=lambda: runtime)})
    return SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm, broadcast=Sent, _pickled_broadcast_vars=pickled))


def sent(shipped: Shipped[Any]) -> tuple[Shipped[Any], int]:
    """Return the object as a worker receives it, and the number of its pickled bytes."""
    data = CloudPickleSerializer().dumps(shipped)
    return CloudPickleSerializer().loads(data), len(data)


@pytest.mark.parametrize("size", [10, 3 * MB])
def test_a_closure_reaches_the_workers_and_a_large_one_is_sent_as_a_broadcast(size: int) -> None:
    table = bytes(size)
    asked.clear()
    shipped = Shipped(session(), lambda at: len(table) + at, "bolt 'b'", {})
    assert shipped.value(1) == size + 1, "on the driver it is what was given"
    arrived, length = sent(shipped)
    assert length < 4_000
    assert asked == [], "the driver initializes a query in a process that knows no broadcasts"
    assert arrived.value(1) == size + 1
    assert arrived.value is arrived.value
    assert asked == ([] if size < MB else [len(held) - 1]), "loaded once"


@pytest.mark.parametrize("size", [10, 3 * MB])
def test_a_users_broadcast_is_sent_with_each_function_that_has_the_closure(size: int) -> None:
    pickled.clear()
    rates, table = Sent({"EUR": 2}), bytes(size)
    shipped = Shipped(session(), lambda n: (rates, table, n), "bolt 'b'", {})
    for _ in range(2):
        pickled.clear()  # Spark takes the broadcasts that were pickled with a function, and forgets them
        arrived, _ = sent(shipped)
        assert rates in pickled, "Spark sends it with this function"
    assert arrived._users == ()


def test_a_closure_that_cannot_be_pickled_is_refused_and_its_component_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lock = threading.Lock()
    parts: dict[str, Any] = {"bolt 'fine'": len, "bolt 'locks'": lambda: lock}
    with pytest.raises(
        ConfigError,
        match=r"bolt 'locks' closes over 'lock', which cannot be sent .*: TypeError: cannot pickle.*lock.*`prepare`",
    ):
        Shipped(session(), parts, "topology 't'", parts)
    assert capfd.readouterr().err == "", "PySpark's serializer prints the traceback of each attempt"
    with pytest.raises(ConfigError, match="bolt 'early' closes over 'lock'"):
        Shipped(session(), lambda: (later, lock), "bolt 'early'", {})
    later = 1  # has no value before, as a function that is defined further down
    with pytest.raises(ConfigError, match="topology 't' closes over"):
        Shipped(session(), lock, "topology 't'", {})


def test_a_closure_too_large_for_the_driver_is_refused_and_its_component_is_named() -> None:
    table = bytes(3 * MB)
    parts: dict[str, Any] = {"bolt 'fine'": len, "bolt 'looks'": lambda: table}
    wanted = r"bolt 'looks' closes over too much.*topology 't' takes 3 MiB, and the driver's memory of 4 MiB.*spark\.driver\.memory"
    with pytest.raises(ConfigError, match=wanted):
        Shipped(session(4 * MB), parts, "topology 't'", parts)
    full = session()
    full.sparkContext.broadcast = failing("java.lang.OutOfMemoryError: Java heap space")
    with pytest.raises(ConfigError, match=r"bolt 'looks' closes over too much.*with what other queries have sent"):
        Shipped(full, parts, "topology 't'", parts)
    full.sparkContext.broadcast = failing("something else")
    with pytest.raises(RuntimeError, match="something else"):
        Shipped(full, parts, "topology 't'", parts)


def failing(words: str) -> Callable[[Any], Any]:
    def broadcast(value: Any) -> Any:
        raise RuntimeError(words)

    return broadcast


class Handle:
    """A handle of Spark's state server; the value of each variable is its name."""

    def getValueState(self, *named: str) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(get=lambda: (named[0].encode(),))

    def getMapState(self, *named: str) -> Any:  # noqa: N802 - Spark's name
        return named


AS_SPARK_ASKS_FOR_VARIABLES = """
import json, pickle, sys
import pyspark.sql.streaming.transform_with_state_driver_worker

class Handle:
    def __getattr__(self, kind):
        return lambda name, *schemas: print(json.dumps([kind, name]))

before = set(sys.modules)
pickle.loads(sys.stdin.buffer.read()).init(Handle())
assert set(sys.modules) == before, sorted(set(sys.modules) - before)[:20]
"""


@pytest.mark.parametrize(("has_values", "count"), [(True, 3), (False, 2)])
def test_the_process_that_declares_state_variables_does_not_import_the_library_or_pandas(
    has_values: bool, count: int
) -> None:
    data = CloudPickleSerializer().dumps(as_sent(TaskProcessor(a_turn, [0, 1]), has_values))
    asked = subprocess.run(
        [sys.executable, "-c", AS_SPARK_ASKS_FOR_VARIABLES], input=data, capture_output=True, check=False
    )
    assert asked.returncode == 0, asked.stderr.decode()
    assert [json.loads(line) for line in asked.stdout.decode().splitlines()] == [
        ["getValueState", "metadata"], ["getMapState", "chunks"], ["getMapState", "values"],
    ][:count]  # fmt: skip


def test_an_operator_gets_the_state_variables_that_were_declared_before_it_was_unpickled() -> None:
    arrived = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(as_sent(TaskProcessor(a_turn, [0, 1]))))
    arrived.init(Handle())
    with pytest.raises(WorkerError, match="the turn of task 1, with b'metadata'"):
        arrived.handleInputRows((1,), iter([]), None)


def a_turn(task: int, rows: Any, stored: Any, batch: int) -> Any:
    raise ConfigError(f"the turn of task {task}, with {stored.metadata}")


def test_a_failed_write_to_the_state_store_is_a_checkpoint_error_of_the_task() -> None:
    class Gone:
        """A state variable of Spark after its server has ended, for example because of a full disk."""

        def get(self) -> None:
            return None

        def update(self, value: Any) -> None:
            raise EOFError

    processor = TaskProcessor(lambda *of_task: TaskResult(metadata=b"state"), [0])
    processor.take([Gone(), None, None])
    with pytest.raises(WorkerError) as raised:
        processor.handleInputRows((0,), iter([]), None)
    found = raised_in_worker(raised.value)
    assert isinstance(found, CheckpointError)
    assert "the state of task 0 could not be written" in str(found)


class Settings:
    """What only the driver has."""

    here: dict[str, int] | None = {"port": 7}  # noqa: RUF012

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.port = self.here["port"]  # type: ignore[index]


def test_code_that_a_worker_cannot_load_is_named_with_the_line_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    settings.port = 1
    received, _ = sent(Shipped(session(), lambda: settings.port, "bolt 'count'", {}))
    assert sent(received)[0].value() == 7
    monkeypatch.setattr(Settings, "here", None)
    with pytest.raises(
        SessionError,
        match=r"a Python worker cannot load the code of bolt 'count': TypeError: .*not subscriptable \(.*test_shipping\.py:\d+\);",
    ):
        _ = sent(received)[0].value


class Rules:
    """What is read by a package and the standard library where it is loaded."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.found = pd.Series([state["text"]]).map(json.loads)


def test_the_line_of_the_users_is_named_where_a_package_or_the_standard_library_failed() -> None:
    rules = Rules("no JSON")
    received, _ = sent(Shipped(session(), lambda: rules.text, "bolt 'count'", {}))
    with pytest.raises(SessionError, match=r"JSONDecodeError: .*\(\S+test_shipping\.py:\d+\);"):
        _ = received.value


def test_a_module_that_a_worker_lacks_stays_the_error_of_that_module() -> None:
    def load(_: Any) -> None:
        raise ModuleNotFoundError("No module named 'mine'")

    received, _ = sent(Shipped(session(), 1, "bolt 'count'", {}))
    received.__dict__["_load"] = load, b""
    with pytest.raises(ModuleNotFoundError):
        _ = received.value
