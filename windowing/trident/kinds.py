"""Attempts; the kinds of spouts and states, and the guarantee of each pair.

    1:0  2:0  3:0      2:0 fails, and 3:0 with it      2:1  3:1        txid:attempt, a TransactionAttempt

Laws of attempts: txids are 1, 2, 3, ...; the attempt numbers of a txid only grow, and the greater attempt supersedes the smaller.
Attempts are compared by txid, then by attempt number.

                        state   NON_TRANSACTIONAL   TRANSACTIONAL   OPAQUE
    spout NON_TRANSACTIONAL     at least once       best effort     at least once
          TRANSACTIONAL         at least once       exactly once    exactly once
          OPAQUE                at least once       best effort     exactly once

Why: a transactional state skips a batch that it has already applied; this is correct only if a replay has the same tuples. An
opaque state first undoes what it applied for the txid; this is correct for any replay, as long as each tuple is in one committed
batch. A non-transactional state applies every attempt.

Law of pairs: a pair that cannot be exactly-once is refused when the topology is built, unless the weaker guarantee is requested by
name. (In Storm this table is only in the manual.) Source: Storm's `TransactionAttempt`, `StateType`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from windowing.errors import ConfigError, printable

FIRST_TXID = 1
"""The txid of the first batch of a topology."""


class TransactionAttempt(NamedTuple):
    """One try at one batch; `txid` from 1, `attempt` from 0.

    >>> first = TransactionAttempt(2, 0)
    >>> str(first), first < first.next() < TransactionAttempt(3, 0)
    ('2:0', True)
    """

    txid: int
    attempt: int

    def next(self) -> TransactionAttempt:
        """Return the attempt that supersedes this one."""
        return TransactionAttempt(self.txid, self.attempt + 1)

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt}"


class Phase(Enum):
    """When a node works: when a batch's tuples arrive, in any order of batches, or when the batch is committed, in txid order."""

    PROCESS = "process"
    COMMIT = "commit"


# -- SpoutKind, StateType --------------------------------------------------------------------------------------------------------


class SpoutKind(Enum):
    """Which tuples a replay of a batch has."""

    NON_TRANSACTIONAL = "non-transactional"
    """Any tuples; a tuple may be in two committed batches."""
    TRANSACTIONAL = "transactional"
    """The same tuples, also after a restart."""
    OPAQUE = "opaque"
    """Possibly other tuples, but each tuple is in one committed batch."""


class StateType(Enum):
    """What a state does with a batch whose txid it has already applied. Source: Storm's `StateType`."""

    NON_TRANSACTIONAL = "non-transactional"
    """Applies it again."""
    TRANSACTIONAL = "transactional"
    """Skips it, because the replay has the same tuples."""
    OPAQUE = "opaque"
    """Undoes the earlier attempt and applies the new one."""


class Guarantee(Enum):
    """How often a tuple counts in a state."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    """Once or more. A non-transactional state has no fence, so this holds only if no delayed write of a replaced task arrives
    later; such a write would restore an old value."""
    BEST_EFFORT = "best_effort"
    """Zero, one or more times."""


_ONCE, _MORE, _NONE = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.BEST_EFFORT
_STRENGTH = (_NONE, _MORE, _ONCE)

GUARANTEES: dict[tuple[SpoutKind, StateType], Guarantee] = {
    (SpoutKind.NON_TRANSACTIONAL, StateType.NON_TRANSACTIONAL): _MORE,
    (SpoutKind.NON_TRANSACTIONAL, StateType.TRANSACTIONAL): _NONE,
    (SpoutKind.NON_TRANSACTIONAL, StateType.OPAQUE): _MORE,
    (SpoutKind.TRANSACTIONAL, StateType.NON_TRANSACTIONAL): _MORE,
    (SpoutKind.TRANSACTIONAL, StateType.TRANSACTIONAL): _ONCE,
    (SpoutKind.TRANSACTIONAL, StateType.OPAQUE): _ONCE,
    (SpoutKind.OPAQUE, StateType.NON_TRANSACTIONAL): _MORE,
    (SpoutKind.OPAQUE, StateType.TRANSACTIONAL): _NONE,
    (SpoutKind.OPAQUE, StateType.OPAQUE): _ONCE,
}


def check_guarantee(
    spout: SpoutKind,
    state: StateType,
    *,
    accept: Guarantee = Guarantee.EXACTLY_ONCE,
    names: tuple[str, str] = ("the spout", "the state"),
) -> Guarantee:
    """Return the guarantee of a pair. Raises ConfigError if it is weaker than `accept`; `names` are used in the message.

    >>> check_guarantee(SpoutKind.TRANSACTIONAL, StateType.OPAQUE).name
    'EXACTLY_ONCE'
    >>> check_guarantee(SpoutKind.OPAQUE, StateType.NON_TRANSACTIONAL, accept=Guarantee.AT_LEAST_ONCE).name
    'AT_LEAST_ONCE'
    """
    given = GUARANTEES[spout, state]
    if _STRENGTH.index(given) >= _STRENGTH.index(accept):
        return given
    raise ConfigError(
        f"{printable(names[0])} is {spout.value} and {printable(names[1])} is {state.value}: tuples count {_READS[given]}, wanted "
        f"{_READS[accept]}; {_WAY_OUT[spout]}, or say accept=Guarantee.{given.name}"
    )


_READS = {_ONCE: "exactly once", _MORE: "at least once", _NONE: "any number of times"}
_WAY_OUT = {
    SpoutKind.NON_TRANSACTIONAL: "read it through a transactional or opaque spout",
    SpoutKind.TRANSACTIONAL: "give it a transactional or opaque state",
    SpoutKind.OPAQUE: "give it an opaque state",
}
