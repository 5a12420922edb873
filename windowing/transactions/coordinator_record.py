"""CoordinatorRecord: what must outlive a coordinator, so that the next one goes on where it was.

    current 7                       txids below 7 are committed
    tries   7: 2, 3, committing     batch 7 was emitted as 7:2 last, failed 3 times as the first, and a commit of it was begun
            8: 1, 0                 8 too was emitted, as 8:1; later txids never were

Laws: an attempt stands here before it is sent. So after a restart every attempt is greater than any that may still be under way,
for all txids (Storm forgets those from `max pending - 1` on). A record that cannot be read is an error, never "start again at 1".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

from windowing.errors import CorruptStateError, StateConflictError, SupersededError, printable, shown
from windowing.transactions.attempt import FIRST_TXID
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["CoordinatorRecord", "StoredRecord", "Tries"]

_FORMAT = 1
_CAUSE_CHARACTERS = 500


class Tries(NamedTuple):
    """What was tried with one batch.

    attempt: the last that was sent. failures: how many of them failed while it was the first, so not because of an earlier txid.
    committing: whether a commit of any of them was begun, so that some state may hold part of it. cause: of the last failure.
    """

    attempt: int
    failures: int = 0
    committing: bool = False
    cause: str = ""

    def failed(self, cause: str) -> Tries:
        """Return the same with one more failure."""
        return self._replace(failures=self.failures + 1, cause=printable(cause, _CAUSE_CHARACTERS))


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """The first txid that is not committed, and the tries of all that were ever sent from it on, by txid."""

    current: int = FIRST_TXID
    tries: Mapping[int, Tries] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data."""
        tries = [[txid, *each] for txid, each in sorted(self.tries.items())]
        return {"format": _FORMAT, "current": self.current, "tries": tries}

    @classmethod
    def of(cls, data: Any) -> CoordinatorRecord:
        """Return the record of plain data, the first one for None. Raises CorruptStateError for anything else.

        >>> record = CoordinatorRecord(7, {7: Tries(2, 3, True, "timeout")})
        >>> CoordinatorRecord.of(record.plain()) == record
        True
        """
        if data is None:
            return cls()
        if not isinstance(data, Mapping) or "format" not in data:
            raise CorruptStateError(
                f"the coordinator's record is {shown(data)}, wanted a format, a txid and tries; {_WAY}"
            )
        if data["format"] != _FORMAT:
            raise CorruptStateError(
                f"the coordinator's record has format {shown(data['format'])}, this library reads {_FORMAT}; use the "
                "version that wrote it"
            )
        current, rows = data.get("current"), data.get("tries")
        if not _whole(current, FIRST_TXID) or not isinstance(rows, list) or not all(map(_is_row, rows)):
            raise CorruptStateError(
                f"the coordinator's record has current {shown(current)} and tries {shown(rows)}, wanted a txid from 1 and "
                f"rows of txid, attempt, failures, committing, cause; {_WAY}"
            )
        txids = [row[0] for row in rows]
        if txids != list(range(current, current + len(rows))):
            raise CorruptStateError(
                f"the coordinator's record has current {current} and tries of {shown(txids)}, wanted those of "
                f"{current}, {current + 1}, ... without a gap; {_WAY}"
            )
        return cls(current, {row[0]: Tries(*row[1:]) for row in rows})


class StoredRecord:
    """Where the record of one coordinator lies. Of two that are alive on one store only one can save.

    >>> from windowing.transactions.transactional_state import MemoryRecordStore
    >>> store = MemoryRecordStore()
    >>> one, other = (StoredRecord(TransactionalState(store, "counts")) for _ in range(2))
    >>> one.load() == other.load() == CoordinatorRecord()
    True
    >>> one.save(CoordinatorRecord(2)); other.save(CoordinatorRecord(3))
    Traceback (most recent call last):
    windowing.errors.SupersededError: [SUPERSEDED] the record counts/coordinator was saved by another coordinator...
    """

    _NAME = "coordinator"

    def __init__(self, state: TransactionalState) -> None:
        self._state = state

    def load(self) -> CoordinatorRecord:
        """Return the record. Raises CorruptStateError."""
        return CoordinatorRecord.of(self._state.read(self._NAME))

    def save(self, record: CoordinatorRecord) -> None:
        """Make the record durable. Raises SupersededError if another coordinator has saved one since this one loaded it."""
        try:
            self._state.write({self._NAME: record.plain()})
        except StateConflictError as problem:
            raise SupersededError(
                f"the record {self._state.root}/{self._NAME} was saved by another coordinator, which goes on; run a topology once "
                "at a time on one store"
            ) from problem


_WAY = "restore it from a copy together with the states; nothing was reset"


def _whole(value: Any, least: int) -> TypeGuard[int]:
    return type(value) is int and value >= least


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 5:
        return False
    return all(_whole(number, 0) for number in row[:3]) and type(row[3]) is bool and type(row[4]) is str
