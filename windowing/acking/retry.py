"""RetryPolicy: how often a failed message is asked for again, and after how long; deterministic, without chance.

attempt 1 fails, wait first_ms; 2 fails, wait first_ms * factor; ... never more than cap_ms; attempt `max_attempts` fails: over
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from windowing.errors import ConfigError, shown

__all__ = ["RetryPolicy"]


class _Settings(Protocol):
    """What the settings of a topology say of retries."""

    @property
    def max_attempts(self) -> int | None: ...
    @property
    def retry_delay_ms(self) -> int: ...
    @property
    def retry_delay_max_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Frozen; `max_attempts` counts the first emission too, None (as in Storm) is no limit, 1 is no retry.

    forget_ms: how long the count of a message is kept that was asked for again and has not come.

    >>> policy = RetryPolicy(max_attempts=5, first_ms=100, cap_ms=350)
    >>> [policy.delay_ms(attempt) for attempt in range(1, 5)], policy.is_last(5)
    ([100, 200, 350, 350], True)
    """

    max_attempts: int | None = 5
    first_ms: int = 1_000
    factor: int = 2
    cap_ms: int = 60_000
    forget_ms: int = 3_600_000

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError(
                f"max_attempts counts the first emission too and is at least 1, got {shown(self.max_attempts)}; "
                "give 1 for no retry, None for no limit"
            )
        if self.first_ms < 0 or self.cap_ms < self.first_ms or self.factor < 1 or self.forget_ms <= self.cap_ms:
            raise ConfigError(
                f"a back-off wants 0 <= first_ms <= cap_ms, factor >= 1 and forget_ms > cap_ms, got {shown(self)}; "
                "for a constant delay give factor=1"
            )

    @classmethod
    def of(cls, settings: _Settings) -> RetryPolicy:
        """Return the policy that the settings of a topology ask for."""
        return cls(settings.max_attempts, settings.retry_delay_ms, cap_ms=settings.retry_delay_max_ms)

    def delay_ms(self, attempt: int) -> int:
        """Return how long to wait after `attempt` (from 1) failed. Cost: O(log(cap_ms / first_ms))."""
        delay_ms = self.first_ms
        if self.factor == 1:
            return delay_ms
        for _ in range(attempt - 1):
            if not 0 < delay_ms < self.cap_ms:
                break
            delay_ms *= self.factor
        return min(delay_ms, self.cap_ms)

    def is_last(self, attempt: int) -> bool:
        """Whether no attempt follows `attempt`."""
        return self.max_attempts is not None and attempt >= self.max_attempts
