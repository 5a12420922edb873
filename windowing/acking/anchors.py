"""Anchors: what one tuple carries of the trees it belongs to, and what its ack says to the acker.

    spout emits a, b:   a {root: e1}   b {root: e2}      init(root, e1 ^ e2)
    bolt anchors c to a:               c {root: e3}      a has made e3
    bolt acks a:                                         ack(root, e1 ^ e3)
    bolt acks c:                                         ack(root, e3)

Laws: edge ids come from the driver's seeded generator, 64 bits, none of them 0. Each delivery of a tuple (to one task, say)
has anchors of its own. A tuple is acked or failed once; what is anchored to it is emitted before that. This is the place
where repeated acks stop: the acker cannot see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import xor

from windowing.errors import AckError, shown

__all__ = ["Anchors", "anchored", "xor_of"]


def xor_of(ids: Iterable[int]) -> int:
    """Return the XOR of edge ids, 0 for none.

    >>> xor_of([0b011, 0b110])
    5
    """
    return reduce(xor, ids, 0)


class Anchors:
    """The edges of one delivered tuple: root -> edge id; an unanchored tuple has none.

    >>> edges = iter([0b001, 0b010, 0b100])
    >>> first = Anchors({7: next(edges)})
    >>> child = anchored([first], lambda: next(edges))
    >>> first.ack(), child.ack()
    ([(7, 3)], [(7, 2)])
    """

    __slots__ = ("_made", "_settled", "edges")

    def __init__(self, edges: dict[int, int]) -> None:
        for edge in edges.values():
            if not 0 < edge < 1 << 64:
                raise AckError(f"an edge id is in (0, 2**64), got {shown(edge)}; draw it with getrandbits(64), 0 again")
        self.edges = edges
        self._made = 0
        self._settled = False

    @property
    def settled(self) -> bool:
        """Whether the tuple was acked or failed; a driver that is lenient with users asks before it acks."""
        return self._settled

    def make(self, edge: int) -> None:
        """Take note of an edge to a tuple that is anchored to this one."""
        self.require_open()
        self._made ^= edge

    def require_open(self) -> None:
        """Raise AckError if the tuple was acked or failed: nothing can be anchored to it any more."""
        if self._settled:
            raise AckError(
                f"a tuple was anchored to one that was acked or failed before (roots {shown(list(self.edges))}); "
                "emit first, then ack"
            )

    def ack(self) -> list[tuple[int, int]]:
        """Settle the tuple; return (root, xor) for each ack message. Raises AckError the second time."""
        self._settle()
        return [(root, edge ^ self._made) for root, edge in self.edges.items()]

    def fail(self) -> list[int]:
        """Settle the tuple; return the roots that fail. Raises AckError the second time."""
        self._settle()
        return list(self.edges)

    def _settle(self) -> None:
        if self._settled:
            raise AckError(
                f"a tuple was acked or failed twice (roots {shown(list(self.edges))}); settle each tuple once, "
                "a BasicBolt does it by itself"
            )
        self._settled = True


def anchored(anchors: Iterable[Anchors], next_edge: Callable[[], int]) -> Anchors:
    """Return the anchors of a tuple emitted to one task and anchored to those of `anchors`, each with an edge of its own.

    Cost: one edge id per anchor and an XOR per root of it. Source: Storm's `BoltOutputCollectorImpl.boltEmit`.
    """
    edges: dict[int, int] = {}
    for anchor in anchors:
        edge = next_edge()
        anchor.make(edge)
        for root in anchor.edges:
            edges[root] = edges.get(root, 0) ^ edge
    return Anchors(edges)
