"""Ownership: which life of a topology writes a state, and what each partition must hold when the topology starts.

    records of a life    owner "words 5f0c", committed txid 12, states {counts: since 1, totals: since 7}
    fence of counts/0    12:0, owner "words 5f0c/counts"     all is there
    fence of counts/1    9:0                                 10 to 12 are lost (an older copy, say): refused
    totals/0             no fence                            lost, unless committed < 7: then it has not begun

Laws
- A life of a topology has an id, kept where its progress is: with the coordinator's records, or in Spark's checkpoint. Without
  records a life ends with its run: a second run over the same state is another life, and is refused. It does not go on above the
  fence, since rows that are given by hand, and spouts that begin anew, are numbered from txid 1.
- Every batch commits at every partition, in the order of txids, with tuples or without. So every fence is at the txid that was
  committed last, or at the one after it, if that was begun. Less is lost; more is ahead of the records.
- A state is known by its name. One that the records do not know is new: it has to be empty, and begins with the next txid. One
  that left the topology is forgotten: it lacks batches, so it cannot come back.
- A fence without an owner (an older version wrote it) is taken over by a life whose own records are as old, and fit it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from windowing.errors import CorruptStateError, SupersededError, shown
from windowing.transactions.attempt import FIRST_TXID, TransactionAttempt
from windowing.transactions.attempt_ledger import LEDGER
from windowing.transactions.fence import check_unbroken, lost
from windowing.transactions.kinds import StateType
from windowing.transactions.rows import NO_TXID, Fence, Owner, Place

__all__ = ["Life", "Progress", "WrittenState", "owned"]

_FORMAT = 1
_ANY = 1 << 62


class Progress(NamedTuple):
    """How far the records of a life are. who: what errors call it, "topology 'words'". committed: the last txid that is committed,
    0 for none. begun: the greatest attempt that may have come to a state."""

    who: str
    committed: int
    begun: TransactionAttempt

    @classmethod
    def of(cls, who: str, committed: int, attempt: int | None) -> Progress:
        """Return the progress with the next txid begun, as this attempt at most; None: it is not begun."""
        begun = TransactionAttempt(committed, _ANY) if attempt is None else TransactionAttempt(committed + 1, attempt)
        return cls(who, committed, begun)

    @classmethod
    def unnumbered(cls, who: str, committed: int, is_begun: bool) -> Progress:
        """Return the same where the records do not know attempts, but the state's ledger does."""
        return cls.of(who, committed, _ANY if is_begun else None)


class WrittenState(NamedTuple):
    """A state that a topology writes: what errors call it, its factory, and the number of its partitions."""

    id: str
    factory: Any
    partitions: int


@dataclass(frozen=True, slots=True)
class Life:
    """What a life keeps beside its progress: its id, and since which txid it writes each state, by name. since is None in records
    of a version that did not keep it."""

    id: str
    since: Mapping[str, int] | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"format": _FORMAT, "id": self.id, "since": dict(self.since or {})}

    @classmethod
    def of(cls, data: Any, new_id: str) -> Life:
        """Return the life of plain data, one with a new id for None. Raises CorruptStateError for anything else."""
        if data is None:
            return cls(new_id)
        since = data.get("since") if isinstance(data, Mapping) and data.get("format") == _FORMAT else None
        is_whole = isinstance(since, Mapping) and isinstance(data.get("id"), str) and bool(data["id"])
        if not is_whole or not all(type(k) is str and type(v) is int and v >= 1 for k, v in since.items()):  # type: ignore[union-attr]
            raise CorruptStateError(
                f"the record of the states' owner is {shown(data)}, wanted format {_FORMAT} with an id and txids by state; restore "
                "it from a copy together with the states; nothing was reset"
            )
        return cls(data["id"], dict(since))  # type: ignore[arg-type]


def owned(
    life: Life, states: Iterable[WrittenState], progress: Progress, *, claims: bool
) -> tuple[Life, dict[str, Owner]]:
    """Compare what the records know with what each partition holds; return what to keep, and who writes each state, by its id.

    claims: whether attempts are claimed in the ledgers of the states (Spark). A factory without `stored` is not compared. Raises
    SupersededError for a state of another life, or one that is ahead of the records; CorruptStateError for one that is lost.
    Cost: a read and a count of rows for each partition.
    """
    since, owners = dict[str, int](), dict[str, Owner]()
    names = Counter[str]()
    for state in states:
        name = str(getattr(state.factory, "name", state.id))
        names[name] += 1
        key = name if names[name] == 1 else f"{name}.{names[name]}"
        is_older = life.since is None and progress.begun.txid >= FIRST_TXID
        known = FIRST_TXID if is_older else (life.since or {}).get(key)
        owner = Owner(f"{life.id}/{key}", progress.committed + 1 if known is None else known, counts=False)
        if callable(getattr(state.factory, "stored", None)):
            is_counted = _compare(state, owner, progress, is_known=known is not None, is_older=is_older, claims=claims)
            owner = owner._replace(counts=is_counted)
        since[key] = owner.since
        owners[state.id] = owner
    return Life(life.id, since), owners


def _compare(
    state: WrittenState, owner: Owner, progress: Progress, *, is_known: bool, is_older: bool, claims: bool
) -> bool:
    """Return whether partitions without a fence have no rows."""
    is_counted, is_fenced = True, state.factory.kind is not StateType.NON_TRANSACTIONAL
    for place, fence, rows in state.factory.stored(state.partitions):
        is_counted = is_counted and (fence is not None or not rows)
        if fence is not None:
            fence.require(state.factory.kind, fence.codec, place)
            if not is_fenced and (not claims or fence.attempt.txid == NO_TXID):
                continue
            _refuse_foreign(state, owner, progress, fence, is_known)
            _refuse_ahead(state, progress, fence)
            if fence.rows is not None and fence.rows != rows:
                raise lost(place, f"has {rows} rows, expected {fence.rows} by its fence ({fence.attempt})")
        if is_known and progress.committed >= owner.since and _is_expected(place, is_fenced, claims, is_older):
            check_unbroken(fence, progress.committed if is_fenced or claims else 0, place)
            if fence is None:
                raise lost(place, f"has no sign that it was begun, but txid {progress.committed} is committed")
    return is_counted


def _is_expected(place: Place, is_fenced: bool, claims: bool, is_older: bool) -> bool:
    """Whether a partition has a fence once something is committed."""
    if place.partition != LEDGER:
        return is_fenced
    return claims or not (is_fenced or is_older)


def _refuse_foreign(state: WrittenState, owner: Owner, progress: Progress, fence: Fence, is_known: bool) -> None:
    if fence.owner == owner.id and not is_known:
        raise SupersededError(
            f"{progress.who}: {state.id} ({_named(state)}) holds batches up to {fence.attempt} of this topology, which has "
            f"gone on without it to txid {progress.committed}: the batches between are missing in it; give the state another name "
            "or store"
        )
    if fence.owner == owner.id or (not fence.owner and is_known):
        return
    which = f"another, {fence.owner!r}," if fence.owner else "another or an older version"
    raise SupersededError(
        f"{progress.who} {'has no batch of it' if progress.committed else 'is new'}, but {state.id} ({_named(state)}) was "
        f"written by attempt {fence.attempt} of {which} at partition {fence.place}: its batches would be taken for those; go on "
        "with the records (state_path=, records=) or the checkpoint of that one, or give the state another name or store"
    )


def _named(state: WrittenState) -> str:
    """Return what a factory writes to, in a message."""
    factory = getattr(state.factory, "values", None) or getattr(state.factory, "factory", state.factory)
    store = getattr(factory, "store", None)
    return shown(factory) if store is None else f"{factory.name} in {shown(store)}"


def _refuse_ahead(state: WrittenState, progress: Progress, fence: Fence) -> None:
    if fence.attempt > progress.begun:
        raise SupersededError(
            f"{progress.who}: {state.id}, partition {fence.place}, is at {fence.attempt}, but by the records txid "
            f"{progress.committed} was committed last: they are older than the state, or belong to another; put records (or "
            "checkpoint) and states back from one copy"
        )
