"""Attempts: the number under which a batch is evaluated, claimed before it begins, so that whoever comes too late is known.

    batch 5 (txid 6)   6:0 fails   6:1 fails   6:2 commits          a crash, another process: 6:3

Each store of states hands out its own numbers. The last state's counts; the others are asked first, so that it is above theirs.
"""

from __future__ import annotations

from typing import Any

from windowing.errors import ConfigError, shown
from windowing.topology.trident.plan import TridentPlan
from windowing.topology.trident.stateful import SnapshotFactory
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.kinds import StateType

__all__ = ["Attempts"]


class Attempts:
    """The attempts of one query. Without a state that keeps a ledger (non-transactional ones need none) they are counted here.

    Raises ConfigError for a transactional or opaque state whose factory keeps none: after a restart numbers would come again.
    """

    def __init__(self, plan: TridentPlan) -> None:
        self._ledgers: list[tuple[str, Any, int]] = []
        for id, factory, partitions in sorted(plan.written):
            own = factory.factory if isinstance(factory, SnapshotFactory) else factory
            if callable(getattr(own, "claim_attempt", None)):
                self._ledgers.append((id, factory, partitions))
            elif factory.kind is not StateType.NON_TRANSACTIONAL:
                raise ConfigError(
                    f"{id} of topology {plan.name!r} is {shown(factory.kind)}, and its factory {shown(own)} has no "
                    "claim_attempt(txid, partitions, at_least): attempts could not be told apart after a restart; use map_state, "
                    "or add it (AttemptLedger)"
                )
        self._last = TransactionAttempt(0, 0)

    def claim(self, txid: int) -> TransactionAttempt:
        """Return the next attempt at a batch. Raises SupersededError if another process has begun a later one.

        Cost: a read and a write of each store that is written to.
        """
        attempt = self._last.next() if self._last.txid == txid else TransactionAttempt(txid, 0)
        for _, factory, partitions in self._ledgers:
            attempt = factory.claim_attempt(txid, partitions, attempt.attempt)
        self._last = attempt
        return attempt
