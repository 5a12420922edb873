"""AlignedBarrier: where a checkpoint cuts the input of one task that reads several others.

    channel a  1 2 |P| 3 4          delivered  1 2 5 6    then P    then 3 4
    channel b  5 6 . . . . |P| 7    a is held back from its barrier on, until b has shown it too

What comes before the barrier of every channel is in the checkpoint, and nothing else. (Storm counts the barriers too, but goes on
with tuples from channels that have shown theirs: those are in the state, yet after a failure they come again.)

Laws
- A message is delivered once; messages of one channel stay in order; held ones come out in the order in which they arrived.
- A checkpoint is aligned when every channel has shown it, once.
- A greater attempt ends the alignment of a smaller one, whose barriers count no more (in Storm they do: the next attempt of the
  same txid fires too early). What comes of a smaller attempt later is superseded at once.
- Nothing is held while no checkpoint is being aligned.

Source: Storm's `BaseStatefulBoltExecutor`; the alignment is that of Chandy and Lamport's snapshots, as Flink has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from windowing.errors import CheckpointError, ConfigError, shown
from windowing.transactions.checkpoint import Checkpoint

__all__ = ["Aligned", "AlignedBarrier", "Delivered", "Superseded"]

Channel = Hashable
"""An upstream task, as the driver names it: (component, task), say. Messages of one channel come in order."""


class Delivered(NamedTuple):
    """Execute this message now."""

    channel: Channel
    message: Any


class Aligned(NamedTuple):
    """Every channel has shown the checkpoint: do what it says, send it on, then ack `messages` (or fail them)."""

    checkpoint: Checkpoint
    messages: tuple[Any, ...]


class Superseded(NamedTuple):
    """These barrier messages count no more: fail them, nobody waits for their ack."""

    messages: tuple[Any, ...]


Effect = Delivered | Aligned | Superseded


class AlignedBarrier:
    """The inputs of one task: offer every message, perform the effects that come back, in order.

    `channels` are all upstream tasks that send the checkpoint on. Cost: O(1) a message, the held ones are kept in memory.

    >>> from windowing.transactions.checkpoint import Action
    >>> barrier, prepare = AlignedBarrier(["a", "b"]), Checkpoint(1, 0, Action.PREPARE)
    >>> barrier.arrived("a", prepare, "P"), barrier.offer("a", 3), barrier.offer("b", 6)
    ((), (), (Delivered(channel='b', message=6),))
    >>> [type(effect).__name__ for effect in barrier.arrived("b", prepare, "P")]
    ['Aligned', 'Delivered']
    """

    def __init__(self, channels: Iterable[Channel]) -> None:
        self.channels = frozenset(channels)
        if not self.channels:
            raise ConfigError(
                "a barrier needs at least one upstream task, got none; a task without input has no barrier"
            )
        self._shown: dict[Channel, Any] = {}
        self._checkpoint: Checkpoint | None = None
        self._done: Checkpoint | None = None
        self._attempt = -1
        self._held: list[tuple[Channel, Checkpoint | None, Any]] = []

    @property
    def aligning(self) -> Checkpoint | None:
        """The checkpoint that some channels have shown and others not, None between two."""
        return self._checkpoint

    @property
    def held(self) -> int:
        """How many messages are held back."""
        return len(self._held)

    def waiting(self) -> list[Any]:
        """Return the messages that are held back, in order of arrival."""
        return [message for _, _, message in self._held]

    def offer(self, channel: Channel, message: Any) -> tuple[Effect, ...]:
        """Take a tuple of a channel."""
        return tuple(self._take(channel, None, message))

    def arrived(self, channel: Channel, checkpoint: Checkpoint, message: Any) -> tuple[Effect, ...]:
        """Take the barrier of a channel; `message` is what carries it, and comes back to be acked or failed.

        Raises CheckpointError for a channel that was not declared, and for one that leaves a checkpoint out.
        """
        if channel not in self.channels:
            known = ", ".join(sorted(map(shown, self.channels)))
            raise CheckpointError(
                f"a checkpoint came from {shown(channel)}, but the upstream tasks are {known}; declare all of them"
            )
        if checkpoint.attempt <= self._attempt:
            return tuple(self._take(channel, checkpoint, message))
        self._attempt = checkpoint.attempt
        ended = (Superseded(tuple(self._shown.values())),) if self._shown else ()
        return (*ended, *self._open(), *self._take(channel, checkpoint, message))

    def _take(self, channel: Channel, checkpoint: Checkpoint | None, message: Any) -> Iterator[Effect]:
        if checkpoint is not None and (checkpoint.attempt < self._attempt or checkpoint == self._done):
            yield Superseded((message,))
        elif channel in self._shown:
            self._held.append((channel, checkpoint, message))
        elif checkpoint is None:
            yield Delivered(channel, message)
        else:
            yield from self._show(channel, checkpoint, message)

    def _show(self, channel: Channel, checkpoint: Checkpoint, message: Any) -> Iterator[Effect]:
        if self._checkpoint not in (None, checkpoint):
            raise CheckpointError(
                f"{shown(channel)} sent {shown(checkpoint)} while {shown(self._checkpoint)} is being aligned, in one attempt; "
                "a channel must pass on every checkpoint, in order"
            )
        self._checkpoint = checkpoint
        self._shown[channel] = message
        if len(self._shown) == len(self.channels):
            self._done = checkpoint
            yield Aligned(checkpoint, tuple(self._shown.values()))
            yield from self._open()

    def _open(self) -> Iterator[Effect]:
        """Open all channels, and take what was held once more, as if it arrived now."""
        held, self._held = self._held, []
        self._shown, self._checkpoint = {}, None
        for channel, checkpoint, message in held:
            yield from self._take(channel, checkpoint, message)

    def check(self) -> None:
        """Assert what "correct" means."""
        # A checkpoint is being aligned while some channels, but not all, have shown it.
        assert (self._checkpoint is None) == (not self._shown)
        assert len(self._shown) < len(self.channels)
        # Only what came behind a barrier is held.
        assert all(channel in self._shown for channel, _, _ in self._held)
        # No attempt is aligned but the newest.
        assert self._checkpoint is None or self._checkpoint.attempt == self._attempt
