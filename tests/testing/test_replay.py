"""`replay` refuses an invalid case with an error that names the wrong part, before anything is replayed."""

from __future__ import annotations

from typing import Any

import pytest

from windowing.errors import ConfigError
from windowing.testing import replay

PAIRS: dict[str, Any] = {"length": {"count": 2}, "slide": {"count": 2}, "event_time": None, "clock_start_ms": 0}
TIMED: dict[str, Any] = PAIRS | {"event_time": {"lag_ms": 0, "streams": ["a"]}}
SEMANTICS = pytest.mark.parametrize("semantics", ["storm", "lossless"])


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ([], "a case is a mapping"),
        ({}, "a case lacks length, slide, event_time, clock_start_ms, ops; an event_time of None is processing time"),
        (PAIRS, "a case lacks ops"),
        (PAIRS | {"ops": 7}, "the ops of a case are a list, got 7"),
        (PAIRS | {"ops": [], "length": 5}, r'the length of a case is \{"count": n\} or \{"duration_ms": n\}, got 5'),
        (PAIRS | {"ops": [], "slide": {"count": 1, "duration_ms": 2}}, "the slide of a case is"),
        (PAIRS | {"ops": [], "slide": {"counts": 1}}, "the slide of a case is"),
        (PAIRS | {"ops": [], "event_time": {"lag_ms": 0}}, "the event_time of a case is"),
        (PAIRS | {"ops": [], "event_time": {"lag_ms": -1, "streams": ["a"]}}, "the event_time of a case is"),
        (PAIRS | {"ops": [], "event_time": {"lag_ms": 0, "streams": "ab"}}, "the event_time of a case is"),
        (PAIRS | {"ops": [], "event_time": {"lag_ms": 0, "streams": []}}, "the event_time of a case is"),
        (PAIRS | {"ops": [], "clock_start_ms": "now"}, "clock_start_ms is whole milliseconds, got 'now'"),
        (PAIRS | {"ops": [["add"]]}, r"op 0 is \['add'\], wanted one such as \['add', 'an id'\]"),
        (PAIRS | {"ops": [["add", 1], ["add", 2, 3]]}, "op 1 is"),
        (PAIRS | {"ops": [["adds", 1]]}, "an op is a list that begins with clock, add, tuple"),
        (PAIRS | {"ops": [[]]}, "an op is a list that begins with"),
        (PAIRS | {"ops": ["add"]}, "an op is a list that begins with"),
        (PAIRS | {"ops": [[["add"], 1]]}, "an op is a list that begins with"),
        (PAIRS | {"ops": [["clock", None]]}, r"wanted one such as \['clock', 0\]"),
        (PAIRS | {"ops": [["tuple", "a", 1, 5]]}, "needs an event time"),
        (TIMED | {"ops": [["tuple", "b", 1, 5]]}, "is of stream 'b', which event_time does not name"),
        (TIMED | {"ops": [["tuple", "a", 1]]}, "wanted one such as"),
    ],
)
@SEMANTICS
def test_an_invalid_case_is_refused_with_its_wrong_part(case: Any, said: str, semantics: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replay(case | {"semantics": semantics} if isinstance(case, dict) else case)


def test_a_timestamp_of_none_is_refused_under_storm_semantics_and_late_otherwise() -> None:
    case = TIMED | {"ops": [["tuple", "a", 1, None]]}
    with pytest.raises(ConfigError, match="has the timestamp None, wanted whole milliseconds"):
        replay(case)
    assert replay(case | {"semantics": "lossless"}) == [[0, "late", 1]]


def test_a_watermark_of_storm_needs_an_event_time() -> None:
    case = PAIRS | {"ops": [["watermark"]]}
    with pytest.raises(ConfigError, match="needs an event time"):
        replay(case)
    assert replay(case | {"semantics": "lossless"}) == []


def test_a_tuple_over_event_time_needs_a_timestamp() -> None:
    with pytest.raises(ConfigError, match=r'write \["tuple", stream, id, ts_ms\]'):
        replay(TIMED | {"ops": [["add", 1]], "semantics": "lossless"})


@SEMANTICS
def test_the_windows_of_a_case_without_stateful_have_new_and_expired_tuples(semantics: str) -> None:
    events = replay(PAIRS | {"ops": [["add", 1], ["add", 2]], "semantics": semantics})
    assert events[0] == [1, "activate", [1, 2], [1, 2], [], 0]
