"""The life of a query around Spark's own: what the watching thread does when something is raised in it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from windowing.errors import SourceError
from windowing.spark.failures import About
from windowing.spark.running import WindowedQuery


class Query:
    """Spark's query, which runs until it is stopped."""

    id = "the query"
    recentProgress = ()  # noqa: N815

    def __init__(self, stop_fails: bool = False) -> None:
        self.stopped, self._stop_fails = 0, stop_fails

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        return self.stopped > 0

    def stop(self) -> None:
        self.stopped += 1
        if self._stop_fails:
            raise RuntimeError("the JVM has gone")


class Raising:
    def settle(self) -> None:
        raise SourceError("spout 'in' raised in ack of batch 3")


def watched(query: Query, acks: Any) -> WindowedQuery:
    writer = SimpleNamespace(acks=acks, failure=None, about=lambda checkpoint: About("sums", checkpoint))
    plan: Any = SimpleNamespace(run=lambda: query, writer=writer, spark=None, checkpoint="")
    found = WindowedQuery(plan, drain=False, finish=False, done=threading.Event())
    found._thread.start()
    return found


@pytest.mark.parametrize("stop_fails", [False, True])
def test_a_spout_that_raises_in_ack_ends_the_query_for_good(stop_fails: bool) -> None:
    query = Query(stop_fails)
    found = watched(query, Raising())
    with pytest.raises(SourceError, match="raised in ack of batch 3"):
        found.await_end(10)
    assert not found.is_active
    assert query.stopped == 1, "nobody watches it any more"


def test_a_query_that_ends_by_itself_is_not_stopped() -> None:
    query = Query()
    query.awaitTermination = lambda timeout=None: True  # type: ignore[method-assign]
    found = watched(query, None)
    assert found.await_end(10)
    assert query.stopped == 0
