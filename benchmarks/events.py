"""Seeded events, the same for every contender: keys, timestamps and values, as columns, as rows, and in batches.

One event every `step_ms`; with disorder the events arrive in the order of timestamp + random 0..disorder_ms. Values are whole
numbers as floats, so that sums are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

START_MS = 1_700_000_040_000
"""A multiple of a minute, so that windows of every shape start together; the first event is a millisecond later."""

Row = tuple[int, int, float]
Batch = tuple[list[int], list[int], list[float]]


@dataclass(frozen=True, eq=False)
class Events:
    """Events in order of arrival: `keys[i]`, `stamps[i]` (milliseconds) and `values[i]` are one event, `rows[i]` too."""

    keys: list[int]
    stamps: list[int]
    values: list[float]
    batch: int

    @cached_property
    def rows(self) -> list[Row]:
        return list(zip(self.keys, self.stamps, self.values, strict=True))

    @cached_property
    def batches(self) -> list[Batch]:
        parts = (slice(start, start + self.batch) for start in range(0, len(self), self.batch))
        return [(self.keys[part], self.stamps[part], self.values[part]) for part in parts]

    def __len__(self) -> int:
        return len(self.stamps)


@lru_cache(maxsize=8)
def events(
    number: int, keys: int = 100, disorder_ms: int = 0, step_ms: int = 1, batch: int = 10_000, seed: int = 1
) -> Events:
    """Return `number` events; the same arguments give the same events in every process."""
    random = Random(seed)
    stamps = [START_MS + 1 + step_ms * event for event in range(number)]
    if disorder_ms:
        arrival = [stamp + random.randint(0, disorder_ms) for stamp in stamps]
        stamps = [stamps[event] for event in sorted(range(number), key=arrival.__getitem__)]
    whose = random.choices(range(keys), k=number)
    values = [float(random.randrange(1000)) for _ in range(number)]
    return Events(whose, stamps, values, batch)
