"""Patient, the common base of clients of servers: time limits; Remote, that of stores: recovery after a lost reply.

    read      connection lost   -> connect, read again
    write     connection lost   -> connect, read the fence:   the expected one   not written (yet): write again, same claim
                                                               my own            written
                                                               another           another writer took over: return its fence

A write that is still running in the server when it is sent again is harmless: only one of the two finds the expected fence.
"""

from __future__ import annotations

import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

from windowing.errors import (
    ConfigError,
    SinkError,
    StoreUnavailableError,
    WindowingError,
    printable,
    quote,
    with_causes,
)
from windowing.schema.checks import checked_wait
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow, checked_state_name
from windowing.trident.kinds import TransactionAttempt

T = TypeVar("T")
_log = logging.getLogger("windowing.stores")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_MASK = "***"
_POSITION = re.compile(r"\nLINE \d+: [^\n]*\n *\^")
"""Where in a statement PostgreSQL has found an error: the statements are the library's."""
_NAMES = r"\w*(?:password|passwd|pwd|secret|token|scram_client_key|scram_server_key)"
_SECRETS = (
    # Atomic, which keeps a long text from taking quadratic time: a later `://` finds no @ that the first does not.
    re.compile(r"\A(?>.*?://[^:/]*:)(?P<secret>.*)@", re.DOTALL),
    re.compile(rf"[?&]{_NAMES}=(?P<secret>[^&]*)", re.IGNORECASE),
    re.compile(rf"\b{_NAMES}\s*=\s*(?P<secret>'(?:[^'\\]|\\.)*(?:'|\Z)|(?:\\.|[^\s&\\])*)", re.IGNORECASE | re.DOTALL),
)


def masked(text: str, address: str = "") -> str:
    """Return a text for messages, with the passwords of addresses in it masked, and those of `address` in every form in which a
    client may write them.

    >>> masked("postgresql://me:s3cr:t@127.0.0.1/db?sslmode=require"), masked("host=h password='a b' user=u")
    ('postgresql://me:***@127.0.0.1/db?sslmode=require', 'host=h password=*** user=u')
    >>> masked("FATAL: no such password as 'a b'", "postgresql://me:a%20b@127.0.0.1/db")
    "FATAL: no such password as '***'"
    """
    for secret in sorted(_secrets_of(address), key=len, reverse=True):
        text = text.replace(secret, _MASK)
    for pattern in _SECRETS:
        text = pattern.sub(_without_secret, text)
    return text


def _without_secret(found: re.Match[str]) -> str:
    start, end = found.span("secret")
    return found.string[found.start() : start] + _MASK + found.string[end : found.end()]


def _secrets_of(address: str) -> set[str]:
    """Return the secrets of an address in all forms: as given, decoded, without quotes and backslashes, escaped, in parts."""
    found: set[str] = set()
    for pattern in _SECRETS:
        for match in pattern.finditer(address):
            given = match["secret"]
            plain = re.sub(r"\\(.)", r"\1", given.removeprefix("'").removesuffix("'"), flags=re.DOTALL)
            for secret in (
                given,
                plain,
                unquote(given),
                percent_encoded(given),
                percent_encoded(unquote(given), safe=""),
                *re.split(r"[/#?@:]", given),  # unescaped, they end what a client takes for the port or the host
            ):
                found |= {secret, printable(secret), repr(secret)[1:-1], ascii(secret)[1:-1]}
    return {secret for secret in found if len(secret) > 2}  # shorter ones occur in any text


def checked_address(address: Any, patience_s: Any, example: str, whose: str = "a store") -> None:
    """Raise ConfigError for text without a scheme or settings of libpq (`host=...`), and for a patience that is no time."""
    if not isinstance(address, str) or not address.strip():
        raise ConfigError(f"the address of {whose} is text, got {quote(address)}; write {example}")
    if "://" not in address and not re.match(r"\s*\w+\s*=", address):
        raise ConfigError(
            f"the address of {whose} has no scheme (not shown, for it may hold a password); write {example}"
        )
    checked_wait(patience_s, f"the patience of {whose}")


def has_batch(target: object, query: str, batch_id: int, written: int) -> bool:
    """Return whether a target of a query's rows has a batch. written: the last one in it, -1 for none. Raises SinkError for a later
    one.
    """
    if written > batch_id:
        raise SinkError(
            f"{target} holds batch {written} of query {query}, and batch {batch_id} came: another driver went on with the "
            "checkpoint, or it is an older copy; nothing was written"
        )
    return written == batch_id


class Patient(ABC):
    """A client of a server with its own connection, which is opened at the first use. Not thread-safe.

    `patience_s`: the longest time that a call waits, for a connection, a lock, a reply, or a server that restarts. (A connection
    attempt takes at least 2 s, and the system's name look-up is not limited.) No attempt begins later than that after the first one
    failed. An outage is logged when it begins, and when it ends.
    """

    lost: ClassVar[tuple[type[Exception], ...]]
    """The exceptions of the client after which the outcome of a command is unknown."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._url = url
        self._patience_s = patience_s
        self._deadline = 0.0  # of the current call, by the monotonic clock

    @abstractmethod
    def _connect(self) -> None:
        """Connect, unless there is a connection."""

    @abstractmethod
    def close(self) -> None: ...

    def _lose(self) -> None:
        """Called after an error of `lost`."""
        self.close()

    @abstractmethod
    def _refused(self, problem: Exception) -> WindowingError | None:
        """Return the library's error for an error of the server, None for an unknown one."""

    @abstractmethod
    def _unanswered(self, text: str) -> WindowingError:
        """Return the error for a server that did not answer in time; `text` is the last message."""

    def _renew(self) -> None:
        """Let the current call wait the whole patience from now on."""
        self._deadline = time.monotonic() + self._patience_s

    def _patiently(self, do: Callable[[], T]) -> T:
        self._renew()
        pause, last, since = _FIRST_PAUSE_S, math.inf, math.inf
        while True:
            try:
                self._connect()
                answer = do()
                if since < math.inf:
                    _log.warning("%s answers again, after %.1f s", self, time.monotonic() - since)
                return answer
            except WindowingError:
                raise
            except Exception as problem:
                failed = problem
            refused = self._refused(failed)
            if refused is not None:
                raise refused from self._cause(failed)
            if not isinstance(failed, self.lost):
                raise failed
            self._lose()
            last = min(last, time.monotonic() + self._patience_s)  # an attempt may renew the deadline
            if time.monotonic() + pause > min(last, self._deadline):
                raise self._unanswered(self._text(failed)) from self._cause(failed)
            if since == math.inf:
                since = time.monotonic()
                _log.warning(
                    "%s does not answer, and is asked again for %g s: %s", self, self._patience_s, self._text(failed)
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _left_s(self) -> float:
        return max(0.05, self._deadline - time.monotonic())

    def _masked(self, text: str) -> str:
        """Return a text for messages, without secrets."""
        return masked(text, self._url)

    def _text(self, problem: Exception) -> str:
        return printable(self._masked(_POSITION.sub("", f"{type(problem).__name__}: {problem}".strip())))

    def _cause(self, problem: BaseException) -> BaseException | None:
        """Return an error as the cause of ours, or None if it or one of its causes contains a secret."""
        has_secret = any(self._masked(str(each)) != str(each) for each in with_causes(problem))
        return None if has_secret else problem


class Remote(Patient):
    """One partition (BackingMap) over its own connection. Raises StoreUnavailableError when the time is over."""

    def __init__(self, url: str, place: PartitionId, patience_s: float) -> None:
        checked_state_name(place.state)
        super().__init__(url, patience_s)
        self.place = place

    def __str__(self) -> str:
        return f"the store of the state {self.place} at {masked(self._url)}"

    @abstractmethod
    def _read(self, keys: Sequence[bytes], undo: TransactionAttempt | None) -> Reading: ...

    @abstractmethod
    def _write(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None) -> Fence | None: ...

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        return self._patiently(lambda: self._read(keys, undo))

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
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

    def _unanswered(self, text: str) -> WindowingError:
        return StoreUnavailableError(
            f"{self} did not answer for {self._patience_s:g} s: {text}; see whether the server runs and takes writes, and who "
            "holds locks; what was under way is looked up by the next attempt"
        )
