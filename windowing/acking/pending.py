"""SpoutPending: the messages of a spout task in flight, their retries with back-off, and the decision to give them up.

    emitted --> FLYING --acked------------------> Done
                FLYING --failed, attempts left--> WAITING --back-off over--> Retry --> (emitted again, attempt + 1)
                FLYING --failed, the last one---> GivenUp

    attempt 1 fails, wait first_ms; 2 fails, wait 2 * first_ms; ... never more than cap_ms; attempt `max_attempts` fails: given
    up

Laws
- A tree that was emitted ends in exactly one of Done, Retry, GivenUp; an answer for a tree that has ended, or is unknown, is
  `stale`: it is counted and has no effect.
- Every emission has its own root; a message is identified by its id, which may be in flight several times (one message on two
  streams). Each of its trees ends on its own; the attempts are those of the message.
- The n-th failure in a row of a message leads to Retry(attempt=n+1) after the back-off (RetryPolicy, without randomness), or to
  GivenUp if n is the limit. The count is reset by Done and GivenUp, and FORGET_MS after the last failure or Retry.
- The spout is called for more tuples only while there is `room`: trees in flight and waiting messages are fewer than `max_pending`.
  (Storm does not count waiting ones, so the pending map of a failing source grows without bound.) A Retry is emitted even without
  room.
- A dead letter names the component of the tree's last message, if the acker knows it. Only the acker's timeout applies, which
  suffices where an init cannot be lost on its way to the acker, as in one process; otherwise such a tree would never end. (Storm's
  spout has a timeout of its own.)
- A tree in flight at a `restart` that then fails is emitted again without a delay, in the order of the emissions, and the failure
  is not counted: the states were rolled back, its message has not failed by itself.
- When an entry returns, its change to the machine is complete; its effects are data.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from windowing.acking.timeouts import ExactTimeouts
from windowing.errors import AckError, ConfigError, quote


class _Settings(Protocol):
    """The settings of a topology that define retries."""

    @property
    def max_attempts(self) -> int | None: ...
    @property
    def retry_delay_ms(self) -> int: ...
    @property
    def retry_delay_max_ms(self) -> int: ...


FORGET_MS = 3_600_000
"""How long the failures of a message are counted after its Retry if it is not emitted again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Frozen; `max_attempts` includes the first emission: None (as in Storm) means no limit, 1 means no retry.

    >>> policy = RetryPolicy(max_attempts=5, first_ms=100, cap_ms=350)
    >>> [policy.delay_ms(attempt) for attempt in range(1, 5)], policy.is_last(5)
    ([100, 200, 350, 350], True)
    """

    max_attempts: int | None = 5
    first_ms: int = 1_000
    cap_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.max_attempts is not None and (type(self.max_attempts) is not int or self.max_attempts < 1):
            raise ConfigError(
                f"max_attempts counts the first emission too and is a whole number from 1, got {quote(self.max_attempts)}; "
                "give 1 for no retry, None for no limit"
            )
        for name, value in (("first_ms", self.first_ms), ("cap_ms", self.cap_ms)):
            if type(value) is not int:
                raise ConfigError(
                    f"{name} of a RetryPolicy is whole milliseconds, got {quote(value)}; write 1_000 for a second"
                )
        if not 0 <= self.first_ms <= self.cap_ms < FORGET_MS:
            raise ConfigError(
                f"a back-off wants 0 <= first_ms <= cap_ms < {FORGET_MS}, got {quote(self)}; for a constant delay they are equal"
            )

    @classmethod
    def of(cls, settings: _Settings) -> RetryPolicy:
        """Return the policy of a topology's settings."""
        return cls(settings.max_attempts, settings.retry_delay_ms, cap_ms=settings.retry_delay_max_ms)

    def delay_ms(self, attempt: int) -> int:
        """Return the delay after `attempt` (from 1) has failed: twice that of the attempt before, at most `cap_ms`."""
        return min(self.first_ms << min(attempt - 1, FORGET_MS.bit_length()), self.cap_ms)

    def is_last(self, attempt: int) -> bool:
        """Return whether no attempt follows `attempt`."""
        return self.max_attempts is not None and attempt >= self.max_attempts


# -- SpoutPending ----------------------------------------------------------------------------------------------------------------


_UNLIMITED = 1 << 62


class Done(NamedTuple):
    """Notify the spout that the message was acked."""

    message_id: Hashable
    payload: Any


@dataclass(frozen=True, slots=True)
class Retry:
    """Notify the spout that the message failed, or emit it again with a new root; `attempt` counts by message id."""

    message_id: Hashable
    payload: Any
    attempt: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The message is given up: make a dead letter of it. `seen` and `reason` are those of Failed."""

    message_id: Hashable
    payload: Any
    attempts: int
    reason: str
    seen: str | None


PendingEffect = Done | Retry | GivenUp


class _Tree(NamedTuple):
    """A tree in flight; `attempt` counts from 1."""

    message_id: Hashable
    payload: Any
    attempt: int


_new: Any = tuple.__new__
"""Makes a NamedTuple without the Python frame of its `__new__`, because one is made for each message."""


class _Count(NamedTuple):
    """How many times in a row a message has failed."""

    failures: int
    deadline_ms: int


class SpoutPending:
    """The emissions of one spout task. Cost: O(1) a call, O(log n) for each waiting message.

    Message ids are hashable. Payloads belong to the driver and are returned with the effects, as IAckValueSpout and IFailValueSpout
    need them. Source: the pending map of Storm's `SpoutExecutor`; limit, back-off and dead letters are ours.

    >>> pending = SpoutPending(max_pending=1, retry=RetryPolicy(max_attempts=2, first_ms=100))
    >>> pending.emitted(root=1, message_id="m", now_ms=0)
    >>> pending.room, list(pending.failed(1, now_ms=5, reason="failed", seen="count")), pending.next_deadline_ms()
    (0, [], 105)
    >>> list(pending.tick(105)), pending.room
    ([Retry(message_id='m', payload=None, attempt=2)], 1)
    >>> pending.emitted(root=2, message_id="m", now_ms=106)
    >>> list(pending.failed(2, now_ms=130, reason="timeout", seen="count"))[0].seen
    'count'
    """

    def __init__(self, max_pending: int | None = None, retry: RetryPolicy | None = None) -> None:
        if max_pending is not None and max_pending < 1:
            raise ConfigError(
                f"max_pending is at least 1, or None for no limit, got {quote(max_pending)}; with less no tuple is emitted"
            )
        self.stale = 0
        self._max_pending = max_pending
        self._retry = retry or RetryPolicy()
        self._now_ms = 0
        self._order = 0
        self._flying: dict[int, _Tree] = {}
        self._restarted: dict[int, int] = {}  # of the trees in flight at a restart: their order, by root
        self._waiting: list[tuple[int, int, _Tree]] = []
        self._counts: ExactTimeouts[Hashable, _Count] = ExactTimeouts(FORGET_MS, lambda count: count.deadline_ms)

    # -- entries -------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more messages may be emitted, 0 or less for none."""
        return _UNLIMITED if self._max_pending is None else self._max_pending - len(self)

    def emitted(self, root: int, message_id: Hashable, now_ms: int, payload: Any = None) -> None:
        """Record an emission, before its first message reaches the acker. Raises AckError for a root in flight."""
        self.emitted_all([(root, message_id, payload)], now_ms)

    def emitted_all(self, emissions: Iterable[tuple[int, Hashable, Any]], now_ms: int) -> None:
        """Process `emitted` for each (root, message id, payload) of a batch."""
        self._now_ms = max(self._now_ms, now_ms)
        flying = self._flying
        count_of = self._counts.get if len(self._counts) else None
        attempt = 1
        for root, message_id, payload in emissions:
            if root in flying:
                raise AckError(f"root {quote(root)} is in flight already; every emission needs a root id of its own")
            if count_of is not None:
                count = count_of(message_id)
                attempt = 1 if count is None else count.failures + 1
            flying[root] = _new(_Tree, (message_id, payload, attempt))

    def acked_all(self, roots: Iterable[int], now_ms: int) -> list[Done]:
        """Process `acked` for each root of a batch; return the effects, in order."""
        self._now_ms = max(self._now_ms, now_ms)
        remove, done = self._flying.pop, []
        counts = self._counts if len(self._counts) else None
        for root in roots:
            tree = remove(root, None)
            if tree is None:
                self.stale += 1
                continue
            message_id, payload, _ = tree
            if counts is not None and counts.get(message_id) is not None:
                counts.remove(message_id)
            done.append(_new(Done, (message_id, payload)))
        return done

    def failed(self, root: int, now_ms: int, reason: str, seen: str | None = None) -> Iterator[PendingEffect]:
        self._now_ms = max(self._now_ms, now_ms)
        tree = self._flying.pop(root, None)
        if tree is None:
            self.stale += 1
            return iter(())
        order = self._restarted.pop(root, None) if self._restarted else None
        if order is not None:
            again = tree._replace(attempt=tree.attempt - 1)
            heapq.heappush(self._waiting, (self._now_ms, order, again))
            return iter(())
        return self._end(tree, reason, seen)

    def restart(self) -> None:
        """The states are rolled back, which fails the trees whose effects were not committed. Cost: O(trees in flight)."""
        self._restarted = {root: order for order, root in enumerate(self._flying, self._order)}
        self._order += len(self._flying)

    def restarted(self) -> None:
        """All trees that the rollback fails have failed: what fails from now on does so by itself."""
        self._restarted = {}

    def tick(self, now_ms: int) -> Iterator[PendingEffect]:
        """Return a Retry for each message whose back-off is over, remove old counts."""
        self._now_ms = max(self._now_ms, now_ms)
        effects: list[PendingEffect] = []
        while self._waiting and self._waiting[0][0] <= self._now_ms:
            _, _, tree = heapq.heappop(self._waiting)
            self._count(tree)
            effects.append(Retry(tree.message_id, tree.payload, tree.attempt + 1))
        self._counts.expire(self._now_ms)
        return iter(effects)

    def next_deadline_ms(self) -> int | None:
        deadlines = [self._counts.next_deadline_ms(), self._waiting[0][0] if self._waiting else None]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def next_retry_ms(self) -> int | None:
        """Return when the back-off of the first waiting message is over, None if no message waits."""
        return self._waiting[0][0] if self._waiting else None

    def payload(self, root: int) -> Any:
        """Return the payload of a tree in flight, None for another root."""
        tree = self._flying.get(root)
        return None if tree is None else tree.payload

    @property
    def waiting(self) -> int:
        """The number of failed messages that wait for their back-off."""
        return len(self._waiting)

    def not_again(self) -> int:
        """Return how many failed messages came back as a Retry and are not emitted again yet. Cost: O(trees) after a failure."""
        if not len(self._counts):
            return 0
        held = {tree.message_id for tree in self._flying.values()} | {tree.message_id for *_, tree in self._waiting}
        return sum(message_id not in held for bucket in self._counts.buckets() for message_id, _ in bucket)

    def __len__(self) -> int:
        """Return how many trees are in flight or wait for their retry."""
        return len(self._flying) + len(self._waiting)

    # -- the end of a tree ---------------------------------------------------------------------------------------------

    def _end(self, tree: _Tree, reason: str, seen: str | None) -> Iterator[PendingEffect]:
        """Schedule the retry of a failed tree, or give its message up."""
        if self._retry.is_last(tree.attempt):
            if self._counts.get(tree.message_id) is not None:
                self._counts.remove(tree.message_id)
            return iter((GivenUp(tree.message_id, tree.payload, tree.attempt, reason, seen),))
        self._count(tree)
        due_ms = self._now_ms + self._retry.delay_ms(tree.attempt)
        heapq.heappush(self._waiting, (due_ms, self._order, tree))
        self._order += 1
        return iter(())

    def _count(self, tree: _Tree) -> None:
        """Store the number of failures of the tree's message, for FORGET_MS from now on."""
        count = self._counts.get(tree.message_id)
        failures = tree.attempt if count is None else max(tree.attempt, count.failures)
        deadline_ms = self._counts.deadline(self._now_ms)
        self._counts.put(tree.message_id, _Count(failures, deadline_ms), self._now_ms)

    def check(self) -> None:
        self._counts.check()
        # Attempts count from 1.
        assert all(tree.attempt >= 1 for tree in self._flying.values())
        # The waiting messages are a heap: the first is due first.
        assert all(self._waiting[0][:2] <= item[:2] for item in self._waiting)
