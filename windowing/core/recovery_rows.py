"""The rows in which the windows of a stateful bolt are stored, and how a machine goes on without tuples that were lost.

("machine",)             the executor without its queues         ("waits", channel, id)  [sequence, timestamp, key]
("track", ordinal)       one queue's numbers, without tuples     ("shown", sequence)     [timestamp, key, tuple]
("gone", channel)        the ids that are gone (seen.py)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from windowing.core.track import key_of

__all__ = ["GONE", "MACHINE", "SHOWN", "TRACK", "WAITS", "Place", "RowKey", "without"]

RowKey = tuple[Any, ...]

MACHINE: RowKey = ("machine",)
TRACK, WAITS, SHOWN, GONE = "track", "waits", "shown", "gone"


class Place(NamedTuple):
    """Where a tuple stands: its arrival number, its timestamp, and the key whose queue it is in."""

    sequence: int
    timestamp: int
    key: Any


def without(manager: dict[str, Any], held: Iterable[Place], lost: Iterable[Place]) -> dict[str, Any]:
    """Return a manager's snapshot as if the `lost` tuples had expired: `held` are the others that it held.

    Numbers that were given stay given, so count windows go on at the number where they were: before a lost tuple that had its
    number the others move up by one, behind one that had none they move down. What no window had shown counts as skipped.
    """
    gone = list(lost)
    tally = dict(manager["tally"])
    tracks = []
    for track in manager["tracks"]:
        key = key_of(track["key"])
        here = sorted((place.timestamp, place.sequence) for place in (*held, *gone) if place.key == key)
        out = {
            track["base"] + bisect_left(here, (place.timestamp, place.sequence)): place.sequence
            for place in gone
            if place.key == key
        }
        positions = sorted(out)
        # With lateness="window" one may have come, after the last firing, to a place that windows have passed.
        strangers = sum(at < track["covered"] and number >= track["fired_at"] for at, number in out.items())
        tally["skipped"] += sum(at >= track["covered"] for at in positions) + strangers
        tally["expired"] += len(positions)
        tracks.append(_closed_up(track, positions))
    return {**manager, "tracks": tracks, "tally": tally}


def _closed_up(track: dict[str, Any], positions: Sequence[int]) -> dict[str, Any]:
    numbered = [position for position in positions if position < track["mark"]]
    behind = positions[len(numbered) :]

    def moved(position: int) -> int:
        return position + len(numbered) - bisect_left(numbered, position) - bisect_left(behind, position)

    low, high = track["last_window"]
    return {
        **track,
        "base": track["base"] + len(numbered),
        "mark": moved(track["mark"]),
        "horizon": moved(track["horizon"]),
        "covered": moved(track["covered"]),
        "last_window": [moved(low), moved(high)],
    }
