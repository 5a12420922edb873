"""Spooled with a broker in memory; and the conversion of a message to a row."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from windowing import bolt
from windowing.errors import ConfigError, SourceError
from windowing.local import VirtualClock, run_topology
from windowing.queues import Message, MessageSource, Root, Spooled, SqliteQueue
from windowing.schema.messages import BadMessage, row_of_json, row_of_texts
from windowing.schema.types import Schema
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout

WORDS = "word string, n long"


class Broker(MessageSource):
    """Keeps messages until they are confirmed; the first `lost` confirmations do not arrive."""

    fields, name = WORDS, "a broker in memory"

    def __init__(self, messages: Sequence[Message]) -> None:
        self.waiting, self.taken = list(messages), 0
        self.lost = self.closed = 0
        self.after: list[str | None] = []

    def take(self, limit: int, after: str | None) -> Sequence[Message]:
        self.after.append(after)
        self.taken = min(limit, 3, len(self.waiting))
        return self.waiting[: self.taken]

    def confirm(self) -> None:
        if self.lost:
            self.lost -= 1
            return
        del self.waiting[: self.taken]

    def close(self) -> None:
        self.closed += 1


def message(word: Any, n: Any, id: str | None = None) -> Message:
    return Message(json.dumps({"word": word, "n": n}).encode(), id)


def test_messages_leave_the_broker_once_they_are_spooled_and_the_spool_once_they_are_acked(tmp_path: Path) -> None:
    seen: list[int] = []

    @bolt(output="n long")
    def looks(tuple: Any) -> Any:
        seen.append(len(Spooled(broker, log=spool.path)))
        assert broker.waiting == []
        return tuple.n

    broker = Broker([message("w", n, str(n)) for n in range(7)])
    spool = Spooled(broker, log=tmp_path / "spool.db", max_rows=2)
    builder = TopologyBuilder("spooled")
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("looks", looks).shuffle_grouping("words")
    found = run_topology(builder.build(), sources={"words": spool}, clock=VirtualClock())
    assert found["looks"] == [(n,) for n in range(7)]
    assert seen[0] == 7
    assert len(spool) == 0
    assert broker.after[:4] == [None, "2", "5", "6"]


def test_a_sender_faster_than_the_spool_does_not_block_batches(tmp_path: Path) -> None:
    class Endless(Broker):
        def take(self, limit: int, after: str | None) -> Sequence[Message]:
            self.waiting += [message("more", len(self.after), f"more {len(self.after)} {n}") for n in range(3)]
            return super().take(limit, after)

        def backlog(self) -> int:
            return len(self.waiting)

    spool = Spooled(Endless([message("w", n, str(n)) for n in range(7)]), log=tmp_path / "spool.db")
    assert spool.latest() == {"0": 9}, "those that waited when it was asked, and the rest of a page"
    assert spool.rows()[:7] == [("w", n) for n in range(7)]
    assert spool.latest()["0"] >= 18


def test_a_redelivered_message_is_spooled_once_if_it_has_an_id(tmp_path: Path) -> None:
    broker = Broker([message("a", 1, "x"), message("a", 1, "y"), message("b", 2, None), message("c", 3, "z")])
    broker.lost = 2
    spool = Spooled(broker, log=tmp_path / "spool.db")
    spool.latest()
    assert spool.rows() == [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("b", 2), ("c", 3)]
    again = Spooled(Broker([message("a", 1, "x"), message("d", 4, "d")]), log=spool.path)
    again.latest()
    assert again.rows()[6:] == [("d", 4)]


def test_an_empty_id_is_none_and_one_that_is_no_text_is_refused_before_the_message_is_confirmed(tmp_path: Path) -> None:
    broker = Broker([message("a", n, "") for n in range(3)])
    spool = Spooled(broker, log=tmp_path / "spool.db")
    spool.latest()
    assert spool.rows() == [("a", n) for n in range(3)]
    assert (broker.waiting, broker.after) == ([], [None, None])
    odd: Any = 7
    broker.waiting = [message("b", 3, odd)]
    with pytest.raises(
        SourceError, match=r"a broker in memory has the id 7, wanted text; write Message\(body, str\(id\)\)"
    ):
        spool.latest()
    assert len(broker.waiting) == 1
    assert len(Spooled(broker, log=spool.path).rows()) == 3


def test_a_spool_keeps_a_bounded_number_of_ids_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windowing.queues.spooled._REMEMBERED", 3)
    broker = Broker([message("w", n, str(n)) for n in range(10)])
    spool = Spooled(broker, log=tmp_path / "spool.db")
    spool.latest()
    with closing(sqlite3.connect(spool.path)) as db:
        assert db.execute("SELECT id FROM taken ORDER BY n").fetchall() == [("7",), ("8",), ("9",)]
    broker.waiting = [message("w", n, str(n)) for n in (6, 7, 9)]
    spool.latest()
    assert [n for _, n in spool.rows()] == [*range(10), 6]
    spool.close()
    assert broker.closed == 1


def test_a_message_that_is_no_row_stays_at_the_broker_or_goes_to_the_dead_messages(tmp_path: Path) -> None:
    messages = [message("a", 1), message("b", "many", "odd"), message("c", 3)]
    broker = Broker(messages)
    with pytest.raises(
        SourceError, match=r"message 'odd' of a broker in memory is no row of word string, n bigint: .*'many'"
    ):
        Spooled(broker, log=tmp_path / "spool.db").latest()
    assert broker.waiting == messages
    assert broker.closed == 1, "what was taken goes back"
    assert len(Spooled(broker, log=tmp_path / "spool.db")) == 0
    broker.waiting.append(Message(b'{"word": \xff}', None))
    lenient = Spooled(broker, log=tmp_path / "spool.db", on_invalid="dead")
    lenient.latest()
    assert lenient.rows() == [("a", 1), ("c", 3)]
    assert lenient.dead == [('{"word": "b", "n": "many"}',), ('{"word": \ufffd}',)]


def test_a_message_has_as_many_attempts_as_a_row_of_a_queue(tmp_path: Path) -> None:
    spool = Spooled(Broker([message("a", 1)]), log=tmp_path / "spool.db", max_attempts=2)
    assert spool.latest() == {"0": 1}
    spool.fail(Root(0, {"0": 0}, {"0": 1}), "counts")
    assert (spool.latest(), spool.rows(), spool.dead) == ({"0": 2}, [("a", 1)], [])
    spool.fail(Root(1, {"0": 1}, {"0": 2}), "counts")
    assert (spool.rows(), spool.dead) == ([], [("a", 1)])


def test_wrong_arguments_of_a_spool_are_refused(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", WORDS)
    with pytest.raises(ConfigError, match="a PartitionedSpout needs no spool: give it as it is"):
        Spooled(queue, log=tmp_path / "spool.db")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="on_invalid of a Spooled is 'raise' or 'dead', got 'skip'"):
        Spooled(Broker([]), log=tmp_path / "spool.db", on_invalid="skip")
    Spooled(Broker([]), log=tmp_path / "spool.db")
    other = Broker([])
    other.name = "another broker"
    with pytest.raises(
        ConfigError, match="was made for a broker in memory, now another broker; give each source a log="
    ):
        Spooled(other, log=tmp_path / "spool.db")


# -- messages ------------------------------------------------------------------------------------------------------------


FIELDS = (
    "s string, i int, d double, b boolean, day date, at timestamp, money decimal(6,2), raw binary, "
    "many array<timestamp>, told map<int, date>, whole struct<at: timestamp, n: long>"
)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROW = (
    "x",
    7,
    0.5,
    True,
    date(2026, 1, 31),
    NOON,
    Decimal("12.50"),
    b"\x00\xff",
    [NOON],
    {3: date(2026, 1, 31)},
    {"at": NOON, "n": 1},
)
PLAIN = {
    "s": "x",
    "i": 7,
    "d": 0.5,
    "b": True,
    "day": "2026-01-31",
    "at": "2026-01-31T12:00:00Z",
    "money": "12.50",
    "raw": base64.b64encode(b"\x00\xff").decode(),
    "many": ["2026-01-31T13:00:00+01:00"],
    "told": {"3": "2026-01-31"},
    "whole": {"at": "2026-01-31T12:00:00", "n": 1},
}


def test_a_message_is_converted_to_values_of_the_declared_types() -> None:
    schema = Schema.parse(FIELDS)
    assert row_of_json(json.dumps(PLAIN).encode(), schema) == ROW
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in PLAIN.items()}
    raw = {name.encode(): text.encode() for name, text in texts.items()} | {b"raw": b"\x00\xff"}
    assert row_of_texts(raw, schema) == ROW
    assert row_of_texts({b"s": b"7", b"more": b"y"}, Schema.parse("s string, i int")) == ("7", None)
    assert row_of_texts({b"i": b"7"}, Schema.parse("entry_id string, i int"), {"entry_id": "1-0"}) == ("1-0", 7)


@pytest.mark.parametrize(
    ("fields", "text", "why"),
    [
        ("n int", b"7.5", "7.5"),
        ("n int", b"seven", "its field n is 'seven', no int"),
        ("n int", b"\xff", "its field n is no UTF-8"),
        ("n date", b"31.1.2026", "its field n is '31.1.2026', no date"),
        ("n timestamp", b"noon", "its field n is 'noon', no timestamp"),
        ("n decimal(4,2)", b"much", "its field n is 'much', no decimal"),
        ("n boolean", b"yes", "its field n is 'yes', no boolean"),
        ("n array<int>", b"[1, 2.5]", "2.5"),
        ("n array<int>", b"[" * 100_000, "no array"),
        ("n map<int, int>", b'{"\\ud800": 1}', "its field n is no UTF-8"),
        ("n map<bigint, bigint>", b'{"[]": 1}', r"its field n has the key '\[\]' in a map, no bigint"),
        ("m int", b"7", r"it has the fields \['n'\], none of m"),
    ],
)
def test_a_text_that_is_no_value_of_its_type_is_refused_with_the_reason(fields: str, text: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        row_of_texts({b"n": text}, Schema.parse(fields))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "no JSON"),
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"n": ' * 100_000, "no JSON"),
        (b"[1]", "no object"),
        (b'{"m": 1}', "no object with one of the fields n"),
    ],
    ids=["cut", "empty", "no UTF-8", "too deep", "a list", "others"],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        row_of_json(body, Schema.parse("n int"))
