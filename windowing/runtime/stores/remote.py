"""Remote: what stores behind a connection share: patience, and what to do when an answer gets lost.

    read      connection lost   -> connect, read again
    write     connection lost   -> connect, read the fence:   the expected one   nothing arrived (yet): write again, same claim
                                                               my own            it arrived
                                                               another           somebody else goes on: tell the caller

A write that is still under way in the server when it is sent again does no harm: only one of the two finds the expected fence.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

from windowing.errors import StoreUnavailableError, WindowingError, printable
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.rows import Claim, Fence, Place, Reading, Row, checked_state_name

__all__ = ["Remote", "masked"]

T = TypeVar("T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_SECRETS = (
    (re.compile(r"(://[^:/@]*):.*@"), r"\1:***@"),
    (re.compile(r"\b(password|passwd|pwd)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]*)", re.IGNORECASE), r"\1=***"),
)


def masked(url: str) -> str:
    """Return an address as it may stand in messages: without its password.

    >>> masked("postgresql://me:s3cr:t@127.0.0.1/db?sslmode=require"), masked("host=h password='a b' user=u")
    ('postgresql://me:***@127.0.0.1/db?sslmode=require', 'host=h password=*** user=u')
    """
    for secret, stars in _SECRETS:
        url = secret.sub(stars, url)
    return url


class Remote(ABC):
    """One partition (BackingMap) over a connection of its own, made at the first use. For one thread at a time.

    `patience_s` is for how long a store that does not answer is asked again before StoreUnavailableError.
    """

    lost: ClassVar[tuple[type[Exception], ...]]
    """What the client raises when it does not know what became of a command."""

    def __init__(self, url: str, place: Place, patience_s: float) -> None:
        checked_state_name(place.state)
        self.place = place
        self._url = url
        self._patience_s = patience_s

    @abstractmethod
    def _connect(self) -> None:
        """Have a connection; nothing happens if there is one."""

    @abstractmethod
    def items(self) -> Iterator[tuple[bytes, Row]]: ...

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _read(self, keys: Sequence[bytes], undo: TransactionAttempt | None) -> Reading: ...

    @abstractmethod
    def _write(self, rows: Mapping[bytes, Row | None], claim: Claim | None) -> Fence | None: ...

    @abstractmethod
    def _refused(self, problem: Exception) -> WindowingError | None:
        """Return what an error of the server means, None if it is not one that is known."""

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        return self._patiently(lambda: self._read(keys, undo))

    def multi_put(self, rows: Mapping[bytes, Row | None], claim: Claim | None = None) -> Fence | None:
        sent = False

        def write() -> Fence | None:
            nonlocal sent
            if sent and claim is not None:
                found = self._read([], None).fence
                if found != claim.expected:
                    return found
            sent = True
            return self._write(rows, claim)

        return self._patiently(write)

    def _patiently(self, do: Callable[[], T]) -> T:
        deadline, pause = time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                self._connect()
                return do()
            except WindowingError:
                raise
            except Exception as problem:
                if (refused := self._refused(problem)) is not None:
                    raise refused from problem
                if not isinstance(problem, self.lost):
                    raise
                self.close()
                if time.monotonic() + pause > deadline:
                    raise StoreUnavailableError(
                        f"the store of the state {self.place} at {masked(self._url)} did not answer for {self._patience_s:g} s: "
                        f"{self._told(problem)}; see whether the server runs; what was under way is looked up by the next attempt"
                    ) from problem
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _told(self, problem: Exception) -> str:
        return printable(masked(f"{type(problem).__name__}: {problem}".strip()))
