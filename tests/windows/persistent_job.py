"""A process with one persistent window: it is killed at named points, or anywhere, and restarted until it has finished.

source (a function of the position) --> executor --> windows.jsonl, truncated to the committed checkpoint
record.json: the checkpoint that counts, written between prepare and commit, as a coordinator does
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from windowing.stores.pages import SqlitePages
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Late
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import count, millis
from windowing.windows.pages import PageRows
from windowing.windows.persistent import PersistentWindowedBoltExecutor

EVENTS = 6_000
TURN_EVERY = 300
CHECKPOINT_EVERY = 500
SENT_AGAIN = 120
"""How many tuples before the checkpoint's the source sends again after a restart, with message ids."""

DEFINITIONS: dict[str, dict[str, Any]] = {
    "time": {"length": millis(2_000), "slide": millis(500), "lag": millis(400)},
    "count": {"length": count(2_500), "slide": count(400), "lag": millis(400)},
    "window": {"length": millis(2_000), "slide": millis(500), "lag": millis(50), "lateness": "window"},
    "mixed": {"length": count(1_500), "slide": millis(700), "lag": millis(400), "key": "k"},
}
POINTS = (
    "opened",
    "restored",
    "evicting",
    "evicted",
    "dropping",
    "flushing",
    "flushed",
    "window",
    "pages",
    "prepared",
    "recorded",
    "committed",
    "collected",
)


def definition(name: str, **more: Any) -> WindowConfig:
    return WindowConfig.of(timestamp="at", **DEFINITIONS[name], **more)


def tuples() -> list[tuple[int, int, float, str]]:
    """The source: (id, timestamp, value, key), out of order by up to 250 ms, a few by much more; random doubles."""
    chance = random.Random(7)

    def behind() -> int:
        return chance.randint(0, 3_000) if chance.random() < 0.02 else chance.randint(-250, 250)

    return [(n, n - behind(), chance.random(), chance.choice("ab")) for n in range(1, EVENTS + 1)]


def lines_of(effects: Iterable[Any], at: Callable[[str], None] = lambda point: None) -> Iterator[str]:
    """Yield the output lines of windows and late tuples; the order of the doubles counts."""
    for effect in effects:
        if isinstance(effect, Activation):
            window = effect.window
            values = [sum(row[2] for row in part) for part in (window.get_new(), window, window.get_expired())]
            at("window")
            ends = [window.get()[0][0], window.get()[-1][0], len(window)]
            yield json.dumps([window.key, window.start_timestamp, window.end_timestamp, *ends, *values])
        elif isinstance(effect, Late):
            yield from (json.dumps(["late", row[0]]) for row in effect.payloads)


def undisturbed(name: str) -> list[str]:
    """The lines of a run without a kill, in memory, without a checkpoint."""
    executor = WindowedBoltExecutor(definition(name))
    lines: list[str] = []
    for row in tuples():
        lines += lines_of(executor.add(row, row[1], key=row[3] if name == "mixed" else None))
        if row[0] % TURN_EVERY == 0:
            lines += lines_of(executor.turn())
    return [*lines, *lines_of(executor.drain())]


class Failpoints:
    """Kills the process when a point is reached for the n-th time."""

    def __init__(self, wanted: str) -> None:
        self.point, _, hit = wanted.partition(":")
        self.left = int(hit or 1)

    def at(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class WatchedPages(SqlitePages):
    def __init__(self, path: Path, at: Callable[[str], None]) -> None:
        self.at = at
        super().__init__(path)

    def write(self, page_id: int, rows: PageRows) -> None:
        self.at("evicting")
        super().write(page_id, rows)
        self.at("evicted")

    def drop(self, page_ids: Collection[int]) -> None:
        super().drop(page_ids)
        self.at("dropping")

    def flush(self) -> None:
        self.at("flushing")
        super().flush()
        self.at("flushed")


class Job:
    """One run of the process."""

    def __init__(self, folder: Path, name: str, ids: bool, failpoints: Failpoints) -> None:
        self.at = failpoints.at
        self.name, self.ids = name, ids
        self.record, self.out = folder / "record.json", (folder / "windows.jsonl").open("ab")
        self.store = WatchedPages(folder / "bolt-0.pages", self.at)
        self.at("opened")
        self.executor = PersistentWindowedBoltExecutor(definition(name, max_events_in_memory=1_000), self.store)

    def recover(self) -> tuple[int, int]:
        """Return the next txid and the position after the last checkpoint, once its state was restored."""
        txid = json.loads(self.record.read_text()) if self.record.exists() else 0
        if txid:
            self.store.commit(txid)
        self.store.rollback()
        found = self.store.committed()
        assert (found[0] if found else 0) == txid
        state = found[1] if found else {"manifest": None, "next": 0, "size": 0}
        self.executor.restore(state["manifest"])
        self.executor.check()
        self.out.truncate(state["size"])
        self.at("restored")
        return txid + 1, state["next"]

    def run(self) -> None:
        txid, done = self.recover()
        for row in tuples()[max(done - SENT_AGAIN, 0) if self.ids else done :]:
            more = {"message_id": row[0]} if self.ids else {}
            self.write(self.executor.add(row, row[1], key=row[3] if self.name == "mixed" else None, **more))
            if row[0] <= done:
                continue  # which tuples are late depends on where turns are made: the turns before are not repeated
            if row[0] % TURN_EVERY == 0:
                self.write(self.executor.turn())
            if row[0] % CHECKPOINT_EVERY == 0:
                self.checkpoint(txid, row[0])
                txid += 1
        self.write(self.executor.drain())
        self.out.close()

    def write(self, effects: Iterable[Any]) -> None:
        for line in lines_of(effects, self.at):
            self.out.write(line.encode() + b"\n")

    def checkpoint(self, txid: int, position: int) -> None:
        self.out.flush()
        os.fsync(self.out.fileno())
        manifest = self.executor.prepare()
        self.at("pages")
        self.store.prepare(txid, {"manifest": manifest, "next": position, "size": self.out.tell()})
        self.at("prepared")
        fresh = self.record.with_suffix(".new")
        fresh.write_text(json.dumps(txid))
        fresh.replace(self.record)
        self.at("recorded")
        self.store.commit(txid)
        self.at("committed")
        self.executor.committed()
        self.at("collected")
