"""TransactionAttempt: the name of a batch (txid), and which try at it this is (attempt).

    1:0  2:0  3:0      2:0 fails, and 3:0 with it      2:1  3:1

Laws: txids are 1, 2, 3, ...; attempts of one txid only grow, so that the greater supersedes the smaller wherever both are seen.
Compared as tuples: by txid, then by attempt.

Source: Storm's `TransactionAttempt`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FIRST_TXID", "TransactionAttempt"]

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
