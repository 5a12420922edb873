"""Mistakes of topologies whose windows outlive their process: what a crash would lose. Part of `RULES` (rules.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windowing.errors import shown
from windowing.topology.drafts import Draft, Facts
from windowing.topology.groupings import LocalOrShuffleGrouping, PartialKeyGrouping, ShuffleGrouping
from windowing.topology.plan import Subscription

__all__ = ["KEPT_RULES"]

_BY_CHANCE = (ShuffleGrouping, LocalOrShuffleGrouping, PartialKeyGrouping)


def ids_find_their_windows(facts: Facts) -> Iterator[str]:
    """With message_id= a tuple that comes again takes the same way: shuffles and partial keys lead to one task only."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        if declared.window.config.message_id is None:
            continue
        for reader, found in _way_to(facts, draft):
            if isinstance(found.grouping, _BY_CHANCE) and reader.parallelism != 1:
                yield (
                    f"{draft.called} knows tuples again by message_id={shown(declared.window.config.message_id)}, but "
                    f"{reader.called} reads {shown(found.component)} by {found.grouping} grouping with {reader.parallelism} "
                    "tasks, so that a tuple that comes again may go to another one; use fields_grouping, or one task"
                )


def ids_come_again(facts: Facts) -> Iterator[str]:
    """With message_id= there is an acker, so that tuples come again."""
    for draft, declared in facts.windowed() if facts.config.acker_executors == 0 else ():
        assert declared.window is not None
        if declared.window.config.message_id is not None and declared.stateful:
            yield (
                f"{draft.called} waits after a restart for tuples that were not acked, but without an acker all are; set "
                "topology.acker.executors to 1 or more"
            )


def disks_feed_disks(facts: Facts) -> Iterator[str]:
    """What a window on disk emits, which no spout sends again, goes to no window in memory, by no way."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        if declared.window.config.max_events_in_memory is not None:
            continue
        for disk in sorted({found.component for _, found in _way_to(facts, draft)}):
            above = facts.declarations.get(disk)
            if above is not None and above.window is not None and above.window.config.max_events_in_memory is not None:
                yield (
                    f"{draft.called} keeps in memory what comes from {shown(disk)}, whose window is on disk and whose tuples were "
                    "acked: after a crash nobody sends that again; give it max_events_in_memory= too"
                )


KEPT_RULES: tuple[Callable[[Facts], Iterator[str]], ...] = (ids_find_their_windows, ids_come_again, disks_feed_disks)
"""All of them, in the order in which their sentences are reported."""


def _way_to(facts: Facts, draft: Draft) -> Iterator[tuple[Draft, Subscription]]:
    """Yield every subscription on the way from the spouts to a bolt, with who reads by it."""
    seen, ahead = {draft.id}, [draft]
    while ahead:
        reader = ahead.pop()
        for found in reader.inputs:
            yield reader, found
            if found.component in facts.drafts and found.component not in seen:
                seen.add(found.component)
                ahead.append(facts.drafts[found.component])
