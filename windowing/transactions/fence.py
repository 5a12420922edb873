"""The fence: what an attempt may do to a state partition, decided by the attempt that wrote there last.

    found \\ mine 5:1      transactional                    opaque
    none, or txid < 5      NEW         apply                apply
    5:0                    RETRY       keep the rows        undo the rows of 5:0, then apply
    5:1                    DONE        keep, write nothing  keep, write nothing
    5:2, or txid > 5       SUPERSEDED  refuse               refuse

Laws
- The fence only grows. It is compared and written in the store transaction that writes the rows, so that whoever comes too late
  changes nothing, wherever he was held up. (In Storm nobody is refused: a commit of txid 5 that lands after 6 adds again.)
- A row holds the value before its txid. To undo an attempt is to put that back into every row of the txid, also those that the
  next attempt does not touch. (Storm looks only at the keys that come again: what came once only is counted for good.)
- Every attempt commits at every partition, also where it has no tuples: what an earlier attempt left there is undone then.
- A transactional batch comes again with the same keys; other keys are an error, and nothing is written.
- One writer a state: a fence of another owner refuses, whatever its txid (two topologies, two persists, or a life whose records
  were lost have the same txids and mean other batches). A fence without an owner is taken over.
- An owner commits every txid, in order. So a fence that is more than one txid behind has lost what came between: refused.
- Whatever is decided is decided from one reading; a claim fails if that is no longer what is stored.

Source: Storm's `TransactionalMap` and `OpaqueValue`; the fence is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from windowing.errors import BatchChangedError, CorruptStateError, SupersededError, shown
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.kinds import StateType
from windowing.transactions.rows import Fence, Place, Reading, Row

__all__ = ["RULES", "Rule", "Verdict", "base", "judge", "judged", "lost", "undone", "written"]


class Verdict(Enum):
    """What the fence that was found makes of an attempt."""

    NEW = "new"
    RETRY = "retry"
    DONE = "done"
    SUPERSEDED = "superseded"


class Rule(NamedTuple):
    """Whether an attempt applies its updates, whether it first undoes the txid, and whether it writes its fence."""

    apply: bool
    undo: bool
    claim: bool


_TRANSACTIONAL, _OPAQUE = StateType.TRANSACTIONAL, StateType.OPAQUE

RULES: dict[tuple[Verdict, StateType], Rule] = {
    (Verdict.NEW, _TRANSACTIONAL): Rule(apply=True, undo=False, claim=True),
    (Verdict.NEW, _OPAQUE): Rule(apply=True, undo=False, claim=True),
    (Verdict.RETRY, _TRANSACTIONAL): Rule(apply=False, undo=False, claim=True),
    (Verdict.RETRY, _OPAQUE): Rule(apply=True, undo=True, claim=True),
    (Verdict.DONE, _TRANSACTIONAL): Rule(apply=False, undo=False, claim=False),
    (Verdict.DONE, _OPAQUE): Rule(apply=False, undo=False, claim=False),
}
"""All that can happen; who is superseded is refused."""


def judge(found: TransactionAttempt | None, mine: TransactionAttempt) -> Verdict:
    """Return what the attempt is to a partition where `found` wrote last, None if nobody did.

    >>> five = TransactionAttempt(5, 1)
    >>> [judge(found, five).name for found in (None, TransactionAttempt(4, 7), TransactionAttempt(5, 0), five, five.next())]
    ['NEW', 'NEW', 'RETRY', 'DONE', 'SUPERSEDED']
    """
    if found is None or found.txid < mine.txid:
        return Verdict.NEW
    if found == mine:
        return Verdict.DONE
    return Verdict.RETRY if found < mine else Verdict.SUPERSEDED


def judged(found: Fence | None, mine: Fence, since: int | None = None) -> Rule:
    """Return the rule of an attempt, whose fence would be `mine`. since: the first txid that its owner commits here, if it has one.

    Raises SupersededError if it came too late or another owner writes here, CorruptStateError if batches before it were lost,
    DefinitionChangedError if the rows are another kind's, codec's or partitioning's.
    """
    check_owner(found, mine)
    if since is not None and mine.attempt.txid > since:
        check_unbroken(found, mine.attempt.txid - 1, mine.place)
    verdict = judge(None if found is None else found.attempt, mine.attempt)
    if verdict is Verdict.SUPERSEDED:
        assert found is not None
        raise SupersededError(
            f"attempt {mine.attempt} came to the state {mine.place} after {found.attempt}, which supersedes it; nothing was "
            f"written. If the coordinator's record was lost, let it begin above txid {found.attempt.txid}"
        )
    return RULES[verdict, mine.kind]


def check_owner(found: Fence | None, mine: Fence) -> None:
    """Raise DefinitionChangedError for rows of another kind, codec or partitioning, SupersededError for those of another owner."""
    if found is None:
        return
    found.require(mine.kind, mine.codec, mine.place)
    if found.owner and found.owner != mine.owner:
        who = f"by {mine.owner!r}" if mine.owner else "without an owner"
        raise SupersededError(
            f"attempt {mine.attempt} {who} came to the state {mine.place}, which {found.owner!r} writes (last {found.attempt}): a "
            "state has one writer, and both count their batches from 1; give each a state name or a store of its own; nothing was "
            "written"
        )


def check_unbroken(found: Fence | None, committed: int, place: Place) -> None:
    """Raise CorruptStateError if a partition does not hold the batch that was committed last."""
    last = 0 if found is None else found.attempt.txid
    if last < committed:
        raise lost(place, f"is at {'no batch' if found is None else f'txid {last}'}, expected txid {committed}")


def lost(place: Place, what: str) -> CorruptStateError:
    """Return the error of a partition that lacks what was committed there."""
    return CorruptStateError(
        f"the state {place} {what}: what was committed there is lost (its file, tables or keys were deleted, cut, evicted or put "
        "back from an older copy). Put states and records (or checkpoint) back from one copy; or begin anew: new records (or a new "
        "checkpoint) and another name or store for each state; nothing was written"
    )


def check_reading(reading: Reading, place: Place) -> None:
    """Raise CorruptStateError for rows that are newer than their fence: they were not written in one transaction."""
    highest = 0 if reading.fence is None else reading.fence.attempt.txid
    for row in (*reading.rows, *reading.left.values()):
        if row is not None and row.txid > highest:
            raise CorruptStateError(
                f"a row of the state {place} is of txid {row.txid}, but its fence is at {highest}: parts of it come from "
                "different copies; restore all from one; nothing was reset"
            )


def base(row: Row | None, txid: int, rule: Rule) -> bytes | None:
    """Return the value that the updates of this txid start from."""
    if row is None:
        return None
    return row.previous if rule.undo and row.txid == txid else row.value


def written(row: Row | None, txid: int, value: bytes | None, rule: Rule) -> Row:
    """Return the row with the value that this txid gives it; one without a value stays, to tell that the txid was here."""
    return Row(txid, value, base(row, txid, rule))


def undone(left: Mapping[bytes, Row]) -> dict[bytes, Row | None]:
    """Return the rows that an earlier attempt at the txid left as they are without it; None deletes one that was new."""
    return {
        key: None if row.previous is None else Row(row.txid, row.previous, row.previous) for key, row in left.items()
    }


def check_repeated(row: Row | None, txid: int, key: object, place: Place) -> None:
    """Raise BatchChangedError if a transactional batch, of which the rows are there already, did not write this one."""
    if row is None or row.txid != txid:
        raise BatchChangedError(
            f"batch {txid} updates {shown(key)} in the state {place}, which it did not when it was committed there: a "
            "transactional state needs the same batch again; use an opaque state, or a spout that repeats its batches"
        )
