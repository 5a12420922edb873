"""The fence of a state partition: which attempt may write its rows, and which topology owns the state.

    fence of the partition    txid:attempt that wrote last, and the state's kind, codec, number of partitions, owner and row count
    row of a key              the txid that wrote it, the value, and the value before that txid

    multi_get(keys)           -> the fence and the rows, as of one moment                            one round trip
    multi_put(rows, claim)    -> all rows and the new fence, if the fence is still the expected one   one round trip, atomic

    stored \\ mine 5:1     transactional                    opaque
    none, or txid < 5      NEW         apply                apply
    5:0                    RETRY       keep the rows        undo the rows of 5:0, then apply
    5:1                    DONE        keep, write nothing  keep, write nothing
    5:2, or txid > 5       SUPERSEDED  refuse               refuse

    "keep": the batch reads and returns what it did the first time, computed from the values before txid 5

Laws of a store (BackingMap): fence and rows are written in one transaction. The checksum of a row covers its state, partition and
key, so a damaged or misplaced row is an error that names it; lost rows are detected by the row count. Nothing is ever reset.

Laws of attempts
- The fence only grows. It is compared and written in the store transaction that writes the rows, so a delayed attempt changes
  nothing. (Storm refuses no attempt: a commit of txid 5 that arrives after 6 adds again.)
- A row holds the value before its txid. Undoing an attempt restores that value in every row of the txid, also in rows that the next
  attempt does not touch. (Storm undoes only keys that come again, so a key of the first attempt alone is counted for good.)
- Every attempt commits at every partition, also without tuples; this undoes what an earlier attempt wrote there.
- A replayed transactional batch has the same keys; other keys are an error, and nothing is written.
- Every decision is made from one reading; a claim fails if the stored fence has changed since.
- AttemptLedger claims attempts for a driver without a coordinator (Spark's replayed micro-batches). No two claims are the same, by
  whichever process. A claim whose reply was lost is never used; the next one is taken.

    records of a life    owner "words 5f0c", committed txid 12, states {counts: since 1, totals: since 7}
    fence of counts/0    12:0, owner "words 5f0c/counts"     complete
    fence of counts/1    9:0                                 10 to 12 are lost (an older copy, for example): refused
    totals/0             no fence                            lost, unless committed < 7: then it has not begun

Laws of ownership
- A life of a topology is all its runs over the same records. It has an id, stored with its progress: with the coordinator's
  records, or in Spark's checkpoint. Without records a life ends with its run, and a second run over the same state is refused as
  another life. The second run could not continue above the fence, because its batches are numbered from txid 1 again.
- A state has one writer: a fence of another owner refuses every attempt, whatever its txid. A fence without an owner, of a state
  that was driven by hand, is taken over by a life whose records know the state and match it.
- An owner commits every txid, in order, at every partition. So every fence is at the last committed txid, or at the next one if
  that was begun. A lower fence means lost batches; a higher one is ahead of the records.
- The records also store what the values of a state mean: the fields of its key with their types, and a built-in aggregator with
  its field. Another meaning is refused once a batch was begun; custom code is not compared.
- A state is identified by its name. A state that the records do not know is new: it must be empty, and begins with the next txid. A
  state that was removed from the topology lacks batches, so it cannot be added again.

Source: Storm's `IBackingMap`, `TransactionalValue`, `OpaqueValue`, `TransactionalMap`; the fence is ours.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from windowing.codec import decode_value, encode_value, frame, key_shown, unframe
from windowing.errors import (
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    SupersededError,
    WindowingError,
    quote,
    warn,
)
from windowing.schema.checks import checked_name
from windowing.schema.hashing import have_same_keys
from windowing.trident.kinds import FIRST_TXID, StateType, TransactionAttempt

NO_TXID = 0
"""The txid of a row that a non-transactional state wrote."""

_MAGIC = b"WNDF"
_RESERVED = "_fences"
_MAX_NAME = 50
_PARTS = (bytes, type(None))


def checked_state_name(name: Any) -> str:
    """Return the name of a state. Raises ConfigError for a name that cannot be part of table and key names in a store.

    >>> checked_state_name("word_counts")
    'word_counts'
    """
    checked_name(name, "a state's name", _MAX_NAME)
    if name.lower().endswith(_RESERVED):
        raise ConfigError(
            f"a state's name must not end with {_RESERVED}, got {quote(name)}; a name such as word_counts will do"
        )
    return str(name)


class PartitionId(NamedTuple):
    """A partition of a state; `counts/0` in errors, of the ledger `counts/ledger`."""

    state: str
    partition: int
    partitions: int

    def __str__(self) -> str:
        return f"{self.state}/{'ledger' if self.partition == LEDGER else self.partition}"

    def stored_name(self) -> str:
        """Return the name of the partition in keys and checksums, which never changes: `counts/0`, of the ledger `counts/-1`."""
        return f"{self.state}/{self.partition}"


@lru_cache(maxsize=1024)
def _checksum_of(place: PartitionId) -> int:
    """Return the checksum with which those of a partition's rows begin."""
    return zlib.crc32(place.stored_name().encode())


class StateRow(NamedTuple):
    """The stored row of a key; None is no value. `previous` is the value before `txid`."""

    txid: int
    value: bytes | None
    previous: bytes | None = None

    def checksum(self, place: PartitionId, key: bytes) -> int:
        """Return the CRC32 over the row, its partition and its key."""
        txid, value, previous = self
        new = b"-" if value is None else b"+%d %b" % (len(value), value)
        old = b"-" if previous is None else b"+%d %b" % (len(previous), previous)
        return zlib.crc32(b" %d %d %b%b%b" % (txid, len(key), key, new, old), _checksum_of(place))

    @classmethod
    def sound(cls, place: PartitionId, key: Any, txid: Any, value: Any, previous: Any, crc: Any) -> StateRow:
        """Return the row that a store holds. Raises CorruptStateError if its checksum does not match."""
        row = cls(txid, value, previous)
        plain = type(txid) is int and type(key) is bytes and type(value) in _PARTS and type(previous) in _PARTS
        if not plain or row.checksum(place, key) != crc:
            raise CorruptStateError(
                f"the row of {key_shown(key)} in the state {place} does not have its checksum; restore the state from a "
                "copy; nothing was reset"
            )
        return row


class Owner(NamedTuple):
    """The writer of a state: an id made of the life of the topology and its step, and the first txid that it commits there.

    counts: whether a partition without a fence has no rows, so that counting rows can begin there. A state that was
    non-transactional before has rows without a fence.
    """

    id: str
    since: int = FIRST_TXID
    counts: bool = True


class Fence(NamedTuple):
    """The last writer of a partition, and the format of its rows. owner: the id of an Owner, empty for a state used by hand.

    rows: the number of rows, including those without a value; None if the fence was written by a version that did not count them.
    """

    attempt: TransactionAttempt
    kind: StateType
    codec: str
    place: PartitionId
    owner: str = ""
    rows: int | None = None

    def record(self) -> bytes:
        """Return the fence as bytes; equal fences are equal bytes."""
        what: dict[str, Any] = {
            "kind": self.kind.value,
            "codec": self.codec,
            "txid": self.attempt.txid,
            "attempt": self.attempt.attempt,
        }
        if self.owner:
            what["owner"] = self.owner
        if self.rows is not None:
            what["rows"] = self.rows
        return frame(_MAGIC, encode_value({**what, **self.place._asdict()}))

    @classmethod
    def of(cls, record: Any, place: PartitionId) -> Fence:
        """Return the fence of a record. Raises CorruptStateError if it is damaged, of a newer version, or of another partition."""
        what = f"the fence of the state {place}"
        if not isinstance(record, bytes):
            raise CorruptStateError(f"{what} is {quote(record)}, wanted bytes; restore the state from a copy")
        data = decode_value(unframe(_MAGIC, record, what), what)
        try:
            fence = cls(
                TransactionAttempt(int(data["txid"]), int(data["attempt"])),
                StateType(data["kind"]),
                str(data["codec"]),
                PartitionId(str(data["state"]), int(data["partition"]), int(data["partitions"])),
                str(data.get("owner", "")),
                None if data.get("rows") is None else int(data["rows"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise CorruptStateError(f"{what} cannot be read: {quote(data)}; restore the state from a copy") from problem
        if fence.place[:2] != place[:2]:
            raise CorruptStateError(
                f"{what} is that of {fence.place}: rows or files were mixed up; restore the state from a copy; nothing was reset"
            )
        return fence

    def require(self, kind: StateType, codec: str, place: PartitionId) -> None:
        """Raise DefinitionChangedError unless the rows have this kind, codec and number of partitions."""
        differences = {
            "kind": (self.kind.value, kind.value),
            "codec": (self.codec, codec),
            "number of partitions": (self.place.partitions, place.partitions),
        }
        for what, (stored, given) in differences.items():
            if stored != given:
                raise DefinitionChangedError(
                    f"the {what} of the state {place} is {quote(stored)}, now it is {quote(given)}; keep it as it was, or give "
                    "the state another name and fill it anew"
                )


class Reading(NamedTuple):
    """The contents of a partition as of one moment: its fence (None: no batch yet), the row or None of each requested key, and, if
    requested, the rows that an earlier attempt at the same txid left."""

    fence: Fence | None
    rows: Sequence[StateRow | None]
    left: Mapping[bytes, StateRow] = {}


class Claim(NamedTuple):
    """A condition of a write: the fence must still be the `expected` one (None: no fence yet); it is replaced by the new one."""

    expected: Fence | None
    fence: Fence


class BackingMap(Protocol):
    """The rows of one partition in a store. All methods raise StoreUnavailableError while the store cannot be used."""

    place: PartitionId
    """The partition of these rows."""

    @abstractmethod
    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        """Read the fence and the rows of the keys, as of one moment.

        With `undo`, if the fence is that of an earlier attempt at the same txid, the reading also has all rows of that txid as
        `left`.
        """

    @abstractmethod
    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        """Write all rows (None: delete) and the fence atomically and durably; return None, or the fence that failed the claim.

        Without a claim the rows are written whatever the fence is. After a lost reply the fence is read again. If it is the claim's
        own fence, it is returned, because this call or another process with the same attempt may have written it.
        """

    @abstractmethod
    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        """Yield all rows in order of the keys, checked."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of rows; called at the start of a topology."""

    @abstractmethod
    def close(self) -> None:
        """Release the store."""


def counted(backing: BackingMap) -> tuple[Fence | None, int]:
    """Return the fence of a partition and its number of rows, as of one moment."""
    while True:
        fence, rows = backing.multi_get([]).fence, backing.count()
        if backing.multi_get([]).fence == fence:
            return fence, rows


# -- the fence -------------------------------------------------------------------------------------------------------------------


class Verdict(Enum):
    """How an attempt relates to the stored fence."""

    NEW = "new"
    RETRY = "retry"
    DONE = "done"
    SUPERSEDED = "superseded"


class Rule(NamedTuple):
    """Whether an attempt stores its updates, in place of those of an earlier attempt, and whether it writes its fence."""

    apply: bool
    claim: bool


_TRANSACTIONAL, _OPAQUE = StateType.TRANSACTIONAL, StateType.OPAQUE

RULES: dict[tuple[Verdict, StateType], Rule] = {
    (Verdict.NEW, _TRANSACTIONAL): Rule(apply=True, claim=True),
    (Verdict.NEW, _OPAQUE): Rule(apply=True, claim=True),
    (Verdict.RETRY, _TRANSACTIONAL): Rule(apply=False, claim=True),
    (Verdict.RETRY, _OPAQUE): Rule(apply=True, claim=True),
    (Verdict.DONE, _TRANSACTIONAL): Rule(apply=False, claim=False),
    (Verdict.DONE, _OPAQUE): Rule(apply=False, claim=False),
}
"""All cases; a superseded attempt is refused and has no rule."""


def judge(found: TransactionAttempt | None, mine: TransactionAttempt) -> Verdict:
    """Return how attempt `mine` relates to a partition that attempt `found` wrote last; None: no attempt has written.

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
    """Return the rule of an attempt with the new fence `mine`. since: the first txid that its owner commits here, if there is an
    owner.

    Raises SupersededError if the attempt is too late or another owner writes here, CorruptStateError if earlier batches are lost,
    DefinitionChangedError if the rows have another kind, codec or number of partitions.
    """
    check_owner(found, mine, since)
    verdict = judge(None if found is None else found.attempt, mine.attempt)
    if verdict is Verdict.SUPERSEDED:
        assert found is not None
        raise SupersededError(
            f"attempt {mine.attempt} came to the state {mine.place} after {found.attempt}, which supersedes it; nothing was "
            f"written. If the coordinator's record was lost, let it begin above txid {found.attempt.txid}"
        )
    return RULES[verdict, mine.kind]


def check_owner(found: Fence | None, mine: Fence, since: int | None) -> None:
    """Raise DefinitionChangedError for rows of another kind, codec or partitioning, SupersededError for those of another owner,
    CorruptStateError for a partition that lacks the batch before. since: as in `judged`.
    """
    if found is not None:
        found.require(mine.kind, mine.codec, mine.place)
    if found is not None and found.owner and found.owner != mine.owner:
        who = f"by {mine.owner!r}" if mine.owner else "without an owner"
        raise SupersededError(
            f"attempt {mine.attempt} {who} came to the state {mine.place}, which {found.owner!r} writes (last {found.attempt}): a "
            "state has one writer, and both count their batches from 1; give each a state name or a store of its own; nothing was "
            "written"
        )
    if since is not None and mine.attempt.txid > since:
        check_unbroken(found, mine.attempt.txid - 1, mine.place)


def check_unbroken(found: Fence | None, committed: int, place: PartitionId) -> None:
    """Raise CorruptStateError if a partition lacks the last committed batch."""
    last = 0 if found is None else found.attempt.txid
    if last < committed:
        raise lost(place, f"is at {'no batch' if found is None else f'txid {last}'}, expected txid {committed}")


def lost(place: PartitionId, what: str) -> CorruptStateError:
    """Return the error of a partition that lacks committed batches."""
    return CorruptStateError(
        f"the state {place} {what}: what was committed there is lost (its file, tables or keys were deleted, cut, evicted or put "
        "back from an older copy). Put states and records (or checkpoint) back from one copy; or begin anew: new records (or a new "
        "checkpoint) and another name or store for each state; nothing was written"
    )


def check_reading(reading: Reading, place: PartitionId) -> None:
    """Raise CorruptStateError for rows that are newer than their fence, which means they were not written in one transaction."""
    highest = 0 if reading.fence is None else reading.fence.attempt.txid
    for row in (*reading.rows, *reading.left.values()):
        if row is not None and row.txid > highest:
            raise CorruptStateError(
                f"a row of the state {place} is of txid {row.txid}, but its fence is at {highest}: parts of it come from "
                "different copies; restore all from one; nothing was reset"
            )


def base(row: StateRow | None, txid: int) -> bytes | None:
    """Return the value from which the updates of this txid start, in each of its attempts."""
    if row is None:
        return None
    return row.previous if row.txid == txid else row.value


def undone(left: Mapping[bytes, StateRow]) -> dict[bytes, StateRow | None]:
    """Return the rows of an earlier attempt at the txid, restored to their values before it; None deletes a row that was new."""
    return {
        key: None if row.previous is None else StateRow(row.txid, row.previous, row.previous)
        for key, row in left.items()
    }


# -- AttemptLedger ---------------------------------------------------------------------------------------------------------------


LEDGER = -1
"""The partition number under which a state stores its claims."""


class AttemptLedger:
    """The claims of one state, in partition LEDGER of its store. Cost of a claim: one read and one write."""

    def __init__(self, backing: BackingMap, kind: StateType, codec: str, owner: Owner | None = None) -> None:
        self._backing = backing
        self._kind = kind
        self._codec = codec
        self._owner = owner

    def claim(self, txid: int, at_least: int = 0) -> TransactionAttempt:
        """Claim the next attempt at a batch, durably, and return it; its number is at least `at_least`.

        Raises SupersededError if a later batch was begun or the state has another owner, CorruptStateError if earlier claims are
        lost, DefinitionChangedError if the state has another kind or number of partitions.
        """
        name, since = ("", None) if self._owner is None else self._owner[:2]
        while True:
            found = self._backing.multi_get([]).fence
            mine = Fence(TransactionAttempt(txid, at_least), self._kind, self._codec, self._backing.place, name)
            check_owner(found, mine, since)
            mine = mine._replace(attempt=self._next(found, txid, at_least))
            if self._backing.multi_put({}, Claim(found, mine)) is None:
                return mine.attempt

    def mark(self) -> None:
        """Write a fence before the first txid, unless there is one, to record that the state was begun."""
        found = self._backing.multi_get([]).fence
        if found is None:
            mine = Fence(TransactionAttempt(NO_TXID, 0), self._kind, self._codec, self._backing.place)
            self._backing.multi_put({}, Claim(None, mine))

    def close(self) -> None:
        self._backing.close()

    def _next(self, found: Fence | None, txid: int, at_least: int) -> TransactionAttempt:
        if found is None:
            return TransactionAttempt(txid, at_least)
        if found.attempt.txid > txid:
            raise SupersededError(
                f"batch {txid} of the state {self._backing.place.state} was to begin after batch {found.attempt.txid}: another "
                f"process went on, or the checkpoint is older than the state; begin above txid {found.attempt.txid}"
            )
        after = found.attempt.attempt + 1 if found.attempt.txid == txid else 0
        return TransactionAttempt(txid, max(after, at_least))


# -- ownership -------------------------------------------------------------------------------------------------------------------


_FORMAT = 1
_ANY = 1 << 62


class Progress(NamedTuple):
    """The progress in the records of a life. who: its name in errors, "topology 'words'". committed: the last committed txid, 0 for
    none. begun: the greatest attempt that may have reached a state."""

    who: str
    committed: int
    begun: TransactionAttempt

    @classmethod
    def of(cls, who: str, committed: int, attempt: int | None) -> Progress:
        """Return the progress where the next txid was begun, up to this attempt; None: it was not begun."""
        begun = TransactionAttempt(committed, _ANY) if attempt is None else TransactionAttempt(committed + 1, attempt)
        return cls(who, committed, begun)

    @classmethod
    def unnumbered(cls, who: str, committed: int, is_begun: bool) -> Progress:
        """Return the progress where attempts are not in the records but in the state's ledger."""
        return cls.of(who, committed, _ANY if is_begun else None)


class StatePlan(NamedTuple):
    """A state of a plan: its name in errors, its factory, its number of partitions, and the group whose task i holds partition i
    (None: no node uses it). is_written: by a step. meaning: what is known of the values that it writes: `key`, its
    type, `aggregator` and `field`, as plain JSON data.
    """

    id: str
    factory: Any
    partitions: int
    group: str | None = None
    is_written: bool = False
    meaning: Mapping[str, Any] = {}

    @property
    def called(self) -> str:
        """Its name in its store, for messages."""
        store = getattr(self.factory, "store", None)
        return quote(self.factory) if store is None else f"{self.factory.name} in {quote(store)}"


@dataclass(frozen=True, slots=True)
class Life:
    """The stored identity of a life: its id, and by the name of each state its first txid and the meaning of its values."""

    id: str
    since: Mapping[str, int] = field(default_factory=dict)
    meanings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        meanings = {"meanings": dict(self.meanings)} if self.meanings else {}
        return {"format": _FORMAT, "id": self.id, "since": dict(self.since), **meanings}

    @classmethod
    def of(cls, data: Any, new_id: str) -> Life:
        """Return the life of plain data; None gives a life with the new id. Raises CorruptStateError for damaged data."""
        if data is None:
            return cls(new_id)
        since = data.get("since") if isinstance(data, Mapping) and data.get("format") == _FORMAT else None
        meanings = data.get("meanings", {}) if isinstance(since, Mapping) else None
        is_whole = isinstance(meanings, Mapping) and isinstance(data.get("id"), str) and bool(data["id"])
        is_whole = is_whole and all(isinstance(each, Mapping) for each in meanings.values())  # type: ignore[union-attr]
        if not is_whole or not all(type(k) is str and type(v) is int and v >= 1 for k, v in since.items()):  # type: ignore[union-attr]
            raise CorruptStateError(
                f"the record of the states' owner is {quote(data)}, wanted format {_FORMAT} with an id and txids by state; restore "
                "it from a copy together with the states; nothing was reset"
            )
        return cls(data["id"], dict(since), dict(meanings))  # type: ignore[arg-type]


def owned(
    life: Life, states: Iterable[StatePlan], progress: Progress, *, claims: bool
) -> tuple[Life, dict[str, Owner]]:
    """Compare the records with the fence of each partition; return the life to store, and the owner of each state by its id.

    claims: whether attempts are claimed in the ledgers of the states (Spark). A factory without `stored` is not compared. Raises
    DefinitionChangedError for a state whose values would get another meaning; SupersededError for a state of another life, or one
    that is ahead of the records; CorruptStateError for a state that lacks batches. Warns of a state that may have been renamed.
    Cost: one read and one count of rows per partition.
    """
    since, owners, meanings = dict[str, int](), dict[str, Owner](), dict[str, Mapping[str, Any]]()
    names = Counter[str]()
    for state in states:
        name = str(getattr(state.factory, "name", state.id))
        names[name] += 1
        key = name if names[name] == 1 else f"{name}.{names[name]}"
        known = life.since.get(key)
        owner = Owner(f"{life.id}/{key}", progress.committed + 1 if known is None else known, counts=False)
        # Without a name a state is known by its position, which may change.
        if state.meaning and hasattr(state.factory, "name"):
            meanings[key] = state.meaning
            if progress.begun.txid >= owner.since:
                require_meaning(state, life.meanings.get(key, {}))
        if callable(getattr(state.factory, "stored", None)):
            is_counted = _compare(state, owner, progress, is_known=known is not None, claims=claims)
            owner = owner._replace(counts=is_counted)
        since[key] = owner.since
        owners[state.id] = owner
    gone, new = life.since.keys() - since.keys(), since.keys() - life.since.keys()
    if gone and new and progress.committed:
        warn(
            f"{progress.who}: the state {', '.join(map(repr, sorted(gone)))}, written up to txid {progress.committed}, is not "
            f"written any more, and {', '.join(map(repr, sorted(new)))} begins empty with txid {progress.committed + 1}; if it was "
            "renamed, put records (or checkpoint) and states back from one copy, and give it its old name"
        )
    return Life(life.id, since, meanings), owners


def kept_by(states: Iterable[StatePlan], txid: int) -> Iterator[str]:
    """Yield the names of the transactional states with a partition at this txid, which keeps its values if the batch comes again.
    Cost: one read and one count of rows per partition of such a state.
    """
    for state in states:
        if state.factory.kind is StateType.TRANSACTIONAL and callable(getattr(state.factory, "stored", None)):
            found = [fence for place, fence, _ in state.factory.stored(state.partitions) if place.partition != LEDGER]
            if any(fence is not None and fence.attempt.txid == txid for fence in found):
                yield f"{state.id} ({state.called})"


TYPE_OF_KEY = "type of the key"


def require_meaning(state: StatePlan, stored: Mapping[str, Any]) -> None:
    """Raise DefinitionChangedError if the values of a state meant something else; a part that is not known of both is accepted."""
    for what, was, now in changed_meaning(stored, state.meaning, state.partitions):
        would = (
            "its keys would be others, or be sent to other partitions"
            if what == TYPE_OF_KEY
            else "its values would get another meaning"
        )
        raise DefinitionChangedError(
            f"the {what} of {state.id} ({state.called}) is {quote(was)}, now it is {quote(now)}: {would}; keep it as it was, "
            "also by name, or give the state another name and fill it anew"
        )


def changed_meaning(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], partitions: int
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each part of the meaning of values that is known of both and differs: its name, the stored and the wanted one."""
    for what, now in wanted.items():
        was = stored.get(what, now)
        if was != now and not (what == TYPE_OF_KEY and _have_same_keys(was, now, partitions)):
            yield what, was, now


def _have_same_keys(stored: Any, wanted: str, partitions: int) -> bool:
    try:
        return have_same_keys(stored.split(", "), wanted.split(", "), partitions)
    except (AttributeError, ValueError, WindowingError):  # what is stored names no types
        return False


def _compare(state: StatePlan, owner: Owner, progress: Progress, *, is_known: bool, claims: bool) -> bool:
    """Compare the partitions of one state; return whether its partitions without a fence have no rows."""
    is_counted, is_fenced = True, state.factory.kind is not StateType.NON_TRANSACTIONAL
    found = list(state.factory.stored(state.partitions))
    for place, fence, _ in found:
        if fence is not None:  # of all partitions first: one without a fence is lost only in a state of this kind
            fence.require(state.factory.kind, fence.codec, place)
    for place, fence, rows in found:
        is_counted = is_counted and (fence is not None or not rows)
        if fence is not None:
            if not is_fenced and (not claims or fence.attempt.txid == NO_TXID):
                continue
            _refuse_foreign(state, owner, progress, fence, is_known)
            if fence.attempt > progress.begun:
                raise SupersededError(
                    f"{progress.who}: {state.id}, partition {fence.place}, is at {fence.attempt}, but by the records txid "
                    f"{progress.committed} was committed last: they are older than the state, or belong to another; put records "
                    "(or checkpoint) and states back from one copy"
                )
            if fence.rows is not None and fence.rows != rows:
                raise lost(place, f"has {rows} rows, expected {fence.rows} by its fence ({fence.attempt})")
        # Whether the partition must have a fence after the first commit.
        is_expected = is_fenced if place.partition != LEDGER else claims or not is_fenced
        if is_known and progress.committed >= owner.since and is_expected:
            check_unbroken(fence, progress.committed if is_fenced or claims else 0, place)
            if fence is None:
                raise lost(place, f"has no sign that it was begun, but txid {progress.committed} is committed")
    return is_counted


def _refuse_foreign(state: StatePlan, owner: Owner, progress: Progress, fence: Fence, is_known: bool) -> None:
    if fence.owner == owner.id and not is_known:
        raise SupersededError(
            f"{progress.who}: {state.id} ({state.called}) holds batches up to {fence.attempt} of this topology, which has "
            f"gone on without it to txid {progress.committed}: the batches between are missing in it; give the state another name "
            "or store"
        )
    if fence.owner == owner.id or (not fence.owner and is_known):
        return
    which, of_older = f"another run, {fence.owner!r}", ""
    if not fence.owner:
        which, of_older = "another run, without an owner", "; if version 0.1 wrote them, let 0.2.0 run on them first"
    raise SupersededError(
        f"{progress.who} {'has no batch of it' if progress.committed else 'is new'}, but {state.id} ({state.called}) holds "
        f"batches already: partition {fence.place} was written by attempt {fence.attempt} of {which}. Both count their batches "
        "from 1, so the state could not tell them apart; to continue that run, start with its records (state_path=, records=) or "
        f"its checkpoint{of_older}; for a new run, give the state another name or store"
    )
