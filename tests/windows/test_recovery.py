"""After a restart windows continue from the checkpoint; replayed tuples fire nothing, missing ones are waited for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windowing.codec import NAN, decode_value, encode_value
from windowing.errors import ConfigError, CorruptStateError
from windowing.windows import deduplicator
from windowing.windows.config import WindowConfig
from windowing.windows.deduplicator import ProcessedIds, block_numbers
from windowing.windows.events import Activation, Expired, Late
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.key_state import KeyState, Tally
from windowing.windows.measures import Count, Duration, count, millis, seconds
from windowing.windows.queue import ListBuffer
from windowing.windows.recovery import Absorbed, Missed, TuplePosition, WindowRecovery, without
from windowing.windows.watermark import WaterMarkEventGenerator

SPOUT = ("spout", "default", 0)
Payload = tuple[tuple[str, str, int], int, str]
"""The payload of the tests: a channel, an id and a key."""


def recovery_of(config: WindowConfig, streams: Sequence[str] = ("default",)) -> WindowRecovery:
    executor = WindowedBoltExecutor(config, streams, sequenced=True, keep_tuples=True)
    return WindowRecovery(executor, encode=lambda payload: payload, decode=lambda payload: payload)


@dataclass
class Run:
    """A task over a dict of stored rows, each value encoded and decoded; its windows and acks are recorded."""

    config: WindowConfig
    rows: dict[bytes, bytes] = field(default_factory=dict)
    windows: list[Any] = field(default_factory=list)
    late: list[Payload] = field(default_factory=list)
    acked: list[Payload] = field(default_factory=list)
    missed: list[Any] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.recovery = recovery_of(self.config, ["default", "other"] if self.config.event_time else ["default"])
        self.begin()

    def begin(self) -> None:
        """Start from the stored rows: in a new process, or after a rollback."""
        rows = {decode_value(row, "a row"): decode_value(value, "a value") for row, value in self.rows.items()}
        self.recovery.begin(rows.items(), self.now)
        self.offered = {row[1:] for row in rows if row[0] == "waits"}
        for row, value in joined(rows).items():
            if row[0] == "gone":
                assert value[0] is None
                self.offered |= {(row[1], id) for id in accumulate(value[1:])}

    def do(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Activation):
                w = effect.window
                shown = [list(w.get()), list(w.get_new()), list(w.get_expired())]
                self.windows.append([w.key, w.start_timestamp, w.end_timestamp, *shown])
            elif isinstance(effect, Expired):
                self.acked += effect.get() or ()
            elif isinstance(effect, Late):
                self.late += effect.payloads
                self.acked += effect.payloads
            elif isinstance(effect, Absorbed):
                self.acked += effect.payloads
            else:
                assert isinstance(effect, Missed)
                self.missed += effect.identities
        self.recovery.check()

    def send(self, payload: Payload, timestamp: int | None = None) -> None:
        channel, id, key = payload
        self.offered.add((channel, id))
        options = {"stream": channel[1]} | ({"key": key} if self.config.key else {})
        self.do(self.recovery.offer(payload, channel, id, timestamp, now_ms=self.now, **options))

    def checkpoint(self) -> None:
        put, delete, absorbed = self.recovery.changes()
        self.rows = {row: value for row, value in self.rows.items() if row not in set(map(encode_value, delete))}
        self.rows |= {encode_value(row): encode_value(value) for row, value in put.items()}
        self.acked += absorbed.payloads
        if not self.recovery.recovering:
            rows = {decode_value(row, "a row"): decode_value(value, "a value") for row, value in self.rows.items()}
            assert {encode_value(row): encode_value(value) for row, value in joined(rows).items()} == self.whole()

    def whole(self) -> dict[bytes, bytes]:
        """Return the rows of a walk over all keys and tuples, the slow model of `changes`."""
        saved = self.recovery.executor.snapshot()
        states = saved["manager"].pop("tracks")
        rows: dict[Any, Any] = {("machine",): {**saved, "duplicates": self.recovery.duplicates}}
        live = set()
        for state in states:
            tuples = zip(*map(state.pop, ("sequences", "timestamps", "payloads")), strict=True)
            rows["track", state["ordinal"]] = state
            for position, (number, timestamp, payload) in enumerate(tuples, state["base"]):
                if position < state["horizon"]:
                    rows["shown", number] = [timestamp, state["key"], payload]
                else:
                    live.add(payload[:2])
                    rows["waits", *payload[:2]] = [number, timestamp, state["key"]]
        gone: dict[Any, list[int]] = {}
        for channel, id in sorted(self.offered - live):
            gone.setdefault(channel, []).append(id)
        rows |= {
            ("gone", channel): [None, found[0], *(later - id for id, later in pairwise(found))]
            for channel, found in gone.items()
        }
        return {encode_value(row): encode_value(value) for row, value in rows.items()}

    def turn(self) -> None:
        self.do(self.recovery.turn(self.now))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few ids that are gone are in blocks."""
    monkeypatch.setattr(deduplicator, "BLOCK", 2)


def joined(rows: dict[Any, Any]) -> dict[Any, Any]:
    """Return rows with the ids of each channel in one row. Each of its blocks is there, and no other one."""
    blocks = {row[1:]: value for row, value in rows.items() if row[0] == "gone" and len(row) == 3}
    found = {row: value for row, value in rows.items() if row[0] != "gone" or len(row) == 2}
    listed = {row[1]: value for row, value in found.items() if row[0] == "gone"}
    assert blocks.keys() == {(channel, number) for channel, value in listed.items() for number in block_numbers(value)}
    for channel, value in listed.items():
        found["gone", channel] = ProcessedIds.of(value, lambda number, channel=channel: blocks[channel, number]).plain()
    return found


def message(id: int, key: Any = "k", channel: tuple[str, str, int] = SPOUT) -> Payload:
    return channel, id, key


def last(run: Run) -> tuple[int | None, int | None]:
    """(last expired, last evaluated) of the spout: the greatest id that is gone and less than all held ids, and the greatest id."""
    live = [id for _, id in run.recovery._live]
    gone = [*run.recovery._gone.get(SPOUT, ())]
    passed = [id for id in gone if not live or id < min(live)]
    return max(passed, default=None), max([*live, *gone], default=None)


def ids(payloads: list[Payload]) -> list[int]:
    return [payload[1] for payload in payloads]


SLIDING = WindowConfig.of(length=count(10), slide=count(5), message_id="id")


# -- the equivalents of Storm's StatefulWindowedBoltExecutorTest ----------------------------------------------------------


def test_a_stateful_windowed_bolt_without_message_ids_is_refused():  # testPrepare
    with pytest.raises(ConfigError, match="message_id="):
        recovery_of(WindowConfig.of(length=count(10), slide=count(5)))


def test_a_stateful_windowed_bolt_with_message_ids_is_accepted():  # testPrepareWithMsgid
    assert not Run(SLIDING).recovery.recovering


def test_after_the_first_window_nothing_is_expired_and_all_is_evaluated():  # testExecute
    run = Run(SLIDING)
    for id in range(5):
        run.send(message(id))
    run.checkpoint()
    assert [ids(window[3]) for window in run.windows] == [[0, 1, 2, 3, 4]]
    assert last(run) == (None, 4)


def test_expired_tuples_are_skipped_evaluated_ones_refill_the_window_and_new_ones_fire():  # testRecovery
    run = Run(SLIDING)
    for id in range(10):
        run.send(message(id))
    run.checkpoint()
    assert last(run) == (4, 9)
    again = Run(SLIDING, run.rows)
    assert last(again) == (4, 9)
    for id in range(10):
        again.send(message(id))
    assert ids(again.acked) == [0, 1, 2, 3, 4]
    assert (again.windows, again.recovery.recovering) == ([], False)
    for id in range(10, 15):
        again.send(message(id))
    assert [ids(window[3]) for window in again.windows] == [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]
    assert [ids(window[5]) for window in again.windows] == [[0, 1, 2, 3, 4]]
    again.checkpoint()
    assert last(again) == (9, 14)


# -- beyond Storm's tests -------------------------------------------------------------------------------------------------


def recovering(*, clock: int = 0) -> Run:
    """A task after a restart that waits for 5 to 9 of its spout."""
    run = Run(SLIDING)
    for id in range(10):
        run.send(message(id))
    run.checkpoint()
    return Run(SLIDING, run.rows, now=clock)


def test_new_tuples_wait_until_all_missing_ones_are_replayed_in_any_order():
    run = recovering()
    for id in (10, 9, 7, 11, 5, 12, 13, 6):
        run.send(message(id))
    assert (run.windows, run.recovery.recovering) == ([], True)
    run.send(message(8))
    assert not run.recovery.recovering
    run.send(message(14))
    assert [ids(window[3]) for window in run.windows] == [list(range(5, 15))]


def test_missing_tuples_are_waited_for_until_the_timeout_after_the_last_tuple():
    run = recovering(clock=1_000)
    assert run.recovery.next_deadline_ms() == 31_000
    run.now = 20_000
    for id in (5, 6, 10, 11):
        run.send(message(id))
    assert run.recovery.next_deadline_ms() == 50_000
    run.do(run.recovery.tick(49_999))
    assert run.recovery.recovering
    run.now = 50_000
    run.do(run.recovery.tick(50_000))
    assert not run.recovery.recovering
    assert run.missed == [(SPOUT, 7), (SPOUT, 8), (SPOUT, 9)]
    for id in range(12, 15):
        run.send(message(id))
    assert [ids(window[3]) for window in run.windows] == [[5, 6, 10, 11, 12, 13, 14]]
    run.send(message(8))  # too late: it was given up, and acked
    assert 8 in ids(run.acked)


def test_a_duplicate_of_a_held_tuple_is_shown_once_and_acked_when_that_expires():
    run = Run(WindowConfig.of(length=count(2), slide=count(2), message_id="id"))
    run.send(message(0))
    run.send(message(0))
    run.checkpoint()
    assert run.acked == []
    run.send(message(1))
    assert [ids(window[3]) for window in run.windows] == [[0, 1]]
    run.checkpoint()
    assert Counter(ids(run.acked)) == {0: 2, 1: 1}


def test_a_duplicate_during_recovery_is_shown_once_and_acked_twice():
    run = recovering()
    for id in (5, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14):
        run.send(message(id))
    for id in range(15, 20):
        run.send(message(id))
    assert [ids(window[3]) for window in run.windows] == [list(range(5, 15)), list(range(10, 20))]
    run.checkpoint()
    assert Counter(ids(run.acked))[5] == 2


def test_an_unseen_tuple_is_new_although_greater_ids_were_evaluated():
    run = Run(SLIDING)
    for id in (0, 1, 3, 4):
        run.send(message(id))
    run.checkpoint()
    run = Run(SLIDING, run.rows)
    for id in (0, 1, 3, 4, 2):  # 2 had failed before it reached this bolt
        run.send(message(id))
    assert [ids(window[3]) for window in run.windows] == [[0, 1, 3, 4, 2]]


def test_a_rollback_equals_a_restart_in_the_same_process():
    run = Run(SLIDING)
    for id in range(5):
        run.send(message(id))
    run.checkpoint()
    for id in range(5, 12):
        run.send(message(id))
    rows = [(decode_value(row, "a row"), decode_value(value, "a value")) for row, value in run.rows.items()]
    run.recovery.begin(rows, run.now)
    run.windows.clear()
    for id in range(12):
        run.send(message(id))
    assert [ids(window[3]) for window in run.windows] == [list(range(10))]


def test_a_checkpoint_during_recovery_changes_nothing():
    run = recovering()
    for id in (5, 6, 10):
        run.send(message(id))
    before = dict(run.rows)
    run.checkpoint()
    assert run.rows == before
    again = Run(SLIDING, run.rows)
    for id in range(5, 15):
        again.send(message(id))
    assert [ids(window[3]) for window in again.windows] == [list(range(5, 15))]


def test_an_advance_that_waits_has_what_other_tasks_had_reached_until_then():
    run = Run(WindowConfig(length=millis(10), slide=millis(10), timestamp="at", message_id="id"))
    run.send(message(1), 5)
    run.checkpoint()
    run.begin()
    others = WaterMarkEventGenerator(["default", "other"])
    for reached in (25, 95):
        for stream in ("default", "other"):
            others.track(stream, reached)
        run.recovery.executor.generator.merge(others)
        if reached == 25:
            run.do(run.recovery.turn(run.now))
    assert run.windows == []
    run.send(message(1), 5)
    assert [window[2:4] for window in run.windows] == [[10, [message(1)]]]
    assert run.recovery.executor.watermark == 25


def test_only_changed_rows_are_written():
    run = Run(WindowConfig.of(length=count(1000), slide=count(500), message_id="id"))
    for id in range(900):
        run.send(message(id))
    assert len(run.recovery.changes().put) > 900
    run.send(message(900))
    put, delete, _ = run.recovery.changes()
    assert (len(put), delete) == (3, [])  # the tuple, its queue, the machine


def test_a_checkpoint_looks_only_at_keys_that_have_changed(monkeypatch: pytest.MonkeyPatch):
    run = Run(WindowConfig.of(length=count(4), slide=count(2), key="k", message_id="id"))
    for id in range(300):
        run.send(message(id, f"k{id // 3}"))
    run.checkpoint()
    looked_at: list[Any] = []
    snapshot = KeyState.snapshot

    def counted(state: KeyState, events: bool) -> dict[str, Any]:
        looked_at.append(state.key)
        return snapshot(state, events)

    monkeypatch.setattr(KeyState, "snapshot", counted)
    list(run.recovery.offer(message(300, "k7"), SPOUT, 300, now_ms=0, key="k7"))
    put, delete, _ = run.recovery.changes()
    assert set(looked_at) == {"k7"}
    assert ({row[0] for row in put}, len(delete)) == ({"machine", "track", "waits", "shown", "gone"}, 2)
    looked_at.clear()
    assert run.recovery.changes() == ({}, [], Absorbed(()))
    assert looked_at == []


def test_a_checkpoint_with_few_new_ids_writes_few_blocks_and_one_without_blocks_is_continued():
    run = Run(WindowConfig.of(length=count(1), slide=count(1), message_id="id"))
    for id in range(0, 200, 2):
        run.send(message(id))
    run.checkpoint()
    rows = {decode_value(row, "a row"): decode_value(value, "a value") for row, value in run.rows.items()}
    assert len([row for row in rows if row[0] == "gone"]) > 40
    of_before = {encode_value(row): encode_value(value) for row, value in joined(rows).items()}  # as 0.2.0 stored them
    for stored in (run.rows, of_before):
        again = Run(run.config, stored)
        again.send(message(100))
        again.send(message(101))
        assert ids([payload for window in again.windows for payload in window[3]]) == [101]
        again.checkpoint()
    again = Run(run.config, again.rows)
    again.send(message(103))
    put, delete, _ = again.recovery.changes()
    assert [len([row for row in rows if row[0] == "gone"]) for rows in (put, delete)] == [2, 1]


def test_a_block_of_ids_that_is_deleted_before_it_was_read_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ProcessedIds.__init__, "__defaults__", (10, None))  # how many ids are remembered
    run = Run(WindowConfig.of(length=count(1), slide=count(1), message_id="id"))
    for id in range(0, 38, 2):
        run.send(message(id))
    run.checkpoint()
    again = Run(run.config, run.rows)
    for id in range(38, 80, 2):
        again.send(message(id))
    _, delete, _ = again.recovery.changes()
    assert ("gone", SPOUT, 0) in delete
    again.recovery.check()


@pytest.mark.parametrize("length", [millis(10), millis(20)])
def test_a_key_whose_last_tuples_are_given_up_is_forgotten_with_all_its_rows(length: Duration):
    run = Run(WindowConfig.of(length=length, slide=millis(10), timestamp="ts", key="k", message_id="id"))
    for id, (at, key) in enumerate([(5, "lost"), (6, "kept"), (15, "lost"), (16, "kept")]):
        run.send(message(id, key), at)
    run.send(message(9, "kept", ("spout", "other", 0)), 16)
    run.turn()
    run.checkpoint()
    again = Run(run.config, run.rows)
    for id in (1, 3):
        again.send(message(id, "kept"), (6, 16)[id // 2])
    again.send(message(9, "kept", ("spout", "other", 0)), 16)
    again.now = 30_000
    again.do(again.recovery.tick(again.now))
    assert [id for _, id in again.missed] == ([2] if length == millis(10) else [0, 2])
    again.checkpoint()
    rows = [decode_value(row, "a row") for row in again.rows]
    assert [row[0] for row in rows].count("track") == 1
    assert {decode_value(value, "a value")[1] for row, value in again.rows.items() if b"shown" in row} <= {"kept"}
    assert {state["key"] for state in again.recovery.executor.snapshot()["manager"]["tracks"]} == {"kept"}
    for id, (at, stream) in enumerate([(25, "default"), (45, "default"), (45, "other")], 10):
        again.send(message(id, "lost", ("spout", stream, 0)), at)
    again.turn()
    assert next(window[:3] for window in again.windows if window[0] == "lost") == ["lost", 30 - length.ms, 30]
    Run(run.config, again.rows)


def test_a_missing_block_of_ids_is_named():
    run = Run(WindowConfig.of(length=count(1), slide=count(1), message_id="id"))
    for id in range(0, 20, 2):
        run.send(message(id))
    run.checkpoint()
    del run.rows[encode_value(("gone", SPOUT, 0))]
    rows = {decode_value(row, "a row"): decode_value(value, "a value") for row, value in run.rows.items()}
    run.recovery.begin(rows.items(), 0)
    with pytest.raises(
        CorruptStateError, match=r"bolt 'bolt': block 0 of the message ids of \('spout', .* is missing; restore"
    ):
        run.recovery.offer(message(1), SPOUT, 1, now_ms=0)


def test_a_tuple_that_first_arrives_after_greater_ids_expired_is_accepted_and_an_expired_one_is_not():
    run = Run(WindowConfig.of(length=count(2), slide=count(2), message_id="id"))
    for id in (1, 2, 4, 5):  # 3 failed on its way
        run.send(message(id))
    run.checkpoint()
    again = Run(run.config, run.rows)
    for sent in (run, again):
        sent.windows.clear()
        for id in (5, 3, 2, 6):
            sent.send(message(id))
        assert [ids(window[3]) for window in sent.windows] == [[3, 6]]


@pytest.mark.parametrize("id", [None, "7", 1.5, True])
def test_an_id_that_is_no_whole_number_is_an_error(id: Any):
    with pytest.raises(ConfigError, match="wanted a whole number that rises on each channel"):
        Run(SLIDING).recovery.offer("a", SPOUT, id, now_ms=0)


# -- crash anywhere: the same windows -------------------------------------------------------------------------------------

CHANNELS = [("spout", "default", 0), ("spout", "default", 1), ("late", "other", 0)]


@st.composite
def definitions(draw: st.DrawFn) -> WindowConfig:
    measures = st.integers(1, 6).map(Count) | st.integers(1, 12).map(lambda ms: Duration(ms=ms))
    length, slide = draw(measures), draw(measures)
    options: dict[str, Any] = {"message_id": "id"}
    if draw(st.booleans()):
        options |= {"timestamp": "at", "lag": millis(draw(st.sampled_from([0, 3])))}
        if isinstance(length, Duration) and isinstance(slide, Duration) and draw(st.booleans()):
            options["lateness"] = "window"
    if draw(st.booleans()):
        options["key"] = "key"
        if (isinstance(length, Count) or isinstance(slide, Count)) and draw(st.booleans()):
            options["key_ttl"] = millis(20)
    return WindowConfig.of(length=length, slide=slide, **options)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Return operations: ("add", payload, timestamp), ("turn",), ("clock", ms), ("checkpoint",)."""
    chance = random.Random(draw(st.integers(0, 10**6)))  # long histories, which Hypothesis seldom draws by itself
    found: list[tuple[Any, ...]] = []
    keys, front, now, next_id = chance.choice(["ab", "abcdefgh"]), 50, 50, Counter[Any]()
    for _ in range(draw(st.integers(1, 80))):
        kind = chance.choice(["add"] * 6 + ["turn", "clock", "checkpoint"])
        if kind == "add":
            channel = chance.choice(CHANNELS)
            next_id[channel] += chance.randint(1, 3)
            front += chance.choice([0, 0, 1, 2, 7])
            key = chance.choice(keys)
            at = front - chance.choice([0, 0, 1, 4, 15])
            found.append(("add", (channel, next_id[channel], key), at))
        elif kind == "clock":
            now += chance.choice([1, 3, 10])
            found.append(("clock", now))
        else:
            found.append((kind,))
    return found


def perform(run: Run, op: tuple[Any, ...]) -> None:
    if op[0] == "add":
        _, payload, at = op
        if not run.config.event_time:
            payload = ((payload[0][0], "default", payload[0][2]), *payload[1:])
        run.send(payload, at if run.config.event_time else None)
    elif op[0] == "clock":
        run.now = op[1]
    elif op[0] == "turn":
        run.turn()
    else:
        run.checkpoint()


@pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")
@given(config=definitions(), history=histories(), crash=st.integers(1, 100), seed=st.integers(0, 1000))
def test_after_a_crash_anywhere_the_windows_equal_those_of_a_run_without_it(
    config: WindowConfig, history: list[tuple[Any, ...]], crash: int, seed: int
) -> None:
    history = [*history, ("clock", 500), ("turn",)]
    undisturbed = Run(config)
    for op in history:
        perform(undisturbed, op)
    undisturbed.do(undisturbed.recovery.drain())

    chance = random.Random(seed)
    run, committed, durable = Run(config), 0, ([], [])
    acked: list[Payload] = []
    crash = len(history) * crash // 100
    for number, op in enumerate(history[:crash]):
        perform(run, op)
        if op == ("checkpoint",):
            committed, durable, acked = number + 1, (run.windows[:], run.late[:]), run.acked[:]
            rows = dict(run.rows)
    again = Run(config, rows if committed else {}, now=0)
    again.now = max([op[1] for op in history[:committed] if op[0] == "clock"], default=0)
    # The sources replay unacked messages, and some acked ones (whose ack was lost), in any order.
    sent = [op for op in history[:committed] if op[0] == "add"]
    known = [perform_payload(config, op) for op in sent]
    replay = [op for op, payload in zip(sent, known, strict=True) if payload not in acked or chance.random() < 0.3]
    chance.shuffle(replay)
    rest = list(history[committed:])
    while replay or rest:
        take = replay if replay and (not rest or chance.random() < 0.4) else rest
        perform(again, take.pop(0))
    again.do(again.recovery.drain())
    assert again.missed == []
    assert [*durable[0], *again.windows] == undisturbed.windows
    assert Counter([*durable[1], *again.late]) == Counter(undisturbed.late)
    assert set(acked) | set(again.acked) == set(undisturbed.acked)
    assert again.recovery.executor.counts() == undisturbed.recovery.executor.counts()


UNTIL_ITS_WINDOWS_PASSED = WindowConfig.of(
    length=millis(6),
    slide=millis(1),
    timestamp="at",
    lag=millis(3),
    lateness="window",
    message_id="id",
    recovery_timeout=seconds(30),
)
STRANGERS: list[tuple[Any, ...]] = [
    ("add", (("late", "other", 0), 1, "a"), 47),
    ("clock", 53),
    ("turn",),
    ("add", (("spout", "default", 0), 2, "b"), 47),
    ("add", (("late", "other", 0), 3, "a"), 37),
    ("add", (("spout", "default", 1), 1, "a"), 37),
    ("add", (("spout", "default", 1), 4, "b"), 52),
    ("checkpoint",),
    ("add", (("spout", "default", 1), 6, "a"), 58),
    ("add", (("late", "other", 0), 4, "b"), 61),
    ("turn",),
    ("checkpoint",),
    ("add", (("spout", "default", 0), 5, "a"), 61),
    ("checkpoint",),
    ("turn",),
    ("checkpoint",),
    ("add", (("spout", "default", 1), 8, "b"), 54),
]
"""The last tuple falls into a range that a window has passed, is in no window yet, and is not replayed."""


def perform_payload(config: WindowConfig, op: tuple[Any, ...]) -> Payload:
    payload: Payload = op[1]
    return payload if config.event_time else ((payload[0][0], "default", payload[0][2]), *payload[1:])


@pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")
@given(config=definitions(), history=histories(), seed=st.integers(0, 1000))
@example(config=UNTIL_ITS_WINDOWS_PASSED, history=STRANGERS, seed=0)
def test_tuples_that_are_never_replayed_are_named_and_the_rest_continues_in_order(
    config: WindowConfig, history: list[tuple[Any, ...]], seed: int
) -> None:
    chance, run = random.Random(seed), Run(config)
    for op in [*history, ("checkpoint",)]:
        perform(run, op)
    again = Run(config, run.rows, now=run.now)
    missing = sorted(again.recovery.missing)
    lost = {identity for identity in missing if chance.random() < 0.5}
    for op in history:
        if op[0] == "add" and perform_payload(config, op)[:2] in set(missing) - lost:
            perform(again, op)
    before = again.recovery.executor.counts() if not again.recovery.recovering else None
    again.now += 30_000
    again.do(again.recovery.tick(again.now))
    assert set(again.missed) == lost
    assert before is None or not lost
    for op in history:  # everything is replayed: nothing is accepted twice
        if op[0] == "add":
            perform(again, op)
    fresh = [op for op in history if op[0] == "add"][-3:]
    for op in fresh:
        (channel, id, key), at = op[1], op[2]
        perform(again, ("add", (channel, id + 1000, key), at + 100))
    again.turn()
    again.do(again.recovery.drain())
    again.checkpoint()
    shown = {payload[:2] for window in again.windows for payload in window[3]}
    assert not shown & lost
    counts = again.recovery.executor.counts()
    assert counts["pending"] == 0
    assert counts["in"] == counts["shown"] + counts["skipped"] + counts["late"]


def test_a_checkpoint_holds_no_tuple_that_was_given_up():
    run = Run(WindowConfig.of(length=count(10), slide=count(5), message_id="id", key="k"))
    for id in range(12):
        run.send(message(id, "ab"[id % 2]))
    run.checkpoint()
    run.begin()
    for id in range(5):
        run.send(message(id, "ab"[id % 2]))
    run.now = 30_000
    run.do(run.recovery.tick(run.now))
    assert len(run.missed) == 7
    run.checkpoint()  # compares the rows
    assert sum(decode_value(row, "a row")[0] == "waits" for row in run.rows) == 5


@pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")
@given(config=definitions(), history=histories(), seed=st.integers(0, 10**6))
def test_the_rows_of_each_checkpoint_are_those_of_all_keys_and_tuples_in_any_life(
    config: WindowConfig, history: list[tuple[Any, ...]], seed: int
) -> None:
    """The slow model is `whole`, to which `checkpoint` compares the rows; with restarts, rollbacks, and tuples that are lost."""
    chance, run, sent = random.Random(seed), Run(config), list[tuple[Any, ...]]()
    for op in [*history, ("checkpoint",)]:
        perform(run, op)
        sent += [op] if op[0] == "add" else []
        if chance.random() < 0.1:
            if chance.random() < 0.5:
                run = Run(config, run.rows, now=run.now)
            else:
                run.begin()
            share = chance.choice([1.0, 0.5])
            replay = [each for each in sent if chance.random() < share]
            chance.shuffle(replay)
            for each in replay:
                perform(run, each)
            if chance.random() < share < 1:
                run.now += 30_000
                run.do(run.recovery.tick(run.now))
                run.checkpoint()
    if chance.random() < 0.5:
        run.do(run.recovery.drain())
        run.checkpoint()


def test_a_lost_tuple_with_the_key_nan_leaves_the_other_tuples_of_that_key_in_their_places():
    config = WindowConfig.of(length=count(4), slide=count(2), message_id="id", key="k")
    run = Run(config)
    for id in range(3):
        run.send(message(id, NAN))
    run.checkpoint()
    again = Run(config, run.rows)
    for id in (0, 2):
        again.send(message(id, NAN))
    again.now = 30_000
    again.do(again.recovery.tick(again.now))
    assert again.missed == [(SPOUT, 1)]
    for id in (3, 4):
        again.send(message(id, NAN))
    assert [ids(window[3]) for window in again.windows] == [[0, 2, 3]]


def test_to_give_up_tuples_of_many_keys_examines_each_tuple_a_few_times():
    class Key(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Key.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    states = [KeyState(Key(key), key, ListBuffer(), 0).snapshot(events=False) for key in range(300)]
    entries = [TuplePosition(number, number, Key(number % 300)) for number in range(600)]
    without({"tracks": states, "tally": asdict(Tally())}, entries[:300], entries[300:])
    assert Key.compared < 10_000
