"""RedisStore: states in Redis, through redis-py (extra `redis`).

    windowing:{<state>/<partition>}:fence     hash: record, txid, attempt, rows (their number)
    windowing:{<state>/<partition>}:rows      hash: key -> crc, txid, value, previous
    windowing:{<state>/<partition>}:touched   set: the keys that the fence's txid wrote

A read is one script, and a commit is one script: Redis executes a script atomically, and logs its effects as one entry. It does not
roll back a script that fails, so a commit first checks the rights of its user (from Redis 7 on). The three keys of a partition are
in one slot of a cluster.

The durability of a commit depends on the server's settings. With `appendonly yes` and `appendfsync always` it is on the disk when
the server answers; with `everysec` a crash of the machine silently loses up to about a second of commits, including the fence.
A server that evicts keys without a time to live (`maxmemory-policy allkeys-*`, and a `maxmemory`) is refused when a connection is
opened, unless its user may not run INFO; rows that are missing are detected by their number.

Cost: one round trip for a read, one for a commit; undoing an attempt reads only the rows it wrote.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from windowing.errors import ConfigError, CorruptStateError, StoreUnavailableError, WindowingError, printable
from windowing.schema.checks import spelled_init
from windowing.stores.remote import Remote, checked_address, masked
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import TransactionAttempt

_HEADER = struct.Struct(">IqBI")  # crc, txid, flags (_HAS_VALUE, _HAS_PREVIOUS), length of the value
_HAS_VALUE, _HAS_PREVIOUS = 1, 2
_PAGE = 1000
_OF_STATE = re.compile(rb"windowing:\{(?P<state>[A-Za-z_]\w*)/(?P<partition>-?\d+)\}:(?P<part>fence|rows)")
_DENIALS = ("NOAUTH", "The user executing the script can't", "ACL failure in script")
_DAMAGED = ("WRONGTYPE", "attempt to ")
"""What Redis says when a key holds something else than a state: of a command, and of Lua."""
FULL = "command not allowed when used memory > 'maxmemory'"
"""What Redis says when its memory is full; redis-py has a class for it, but not for Redis 6 about a command in a script."""

EVICTING = """
local memory = redis.pcall('INFO', 'memory')
local policy = type(memory) == 'string' and memory:match('maxmemory_policy:(allkeys%S*)')
if policy and not memory:match('maxmemory:0\\r') then return {'evicts', policy} end
"""
"""Lua that returns the policy of a server that evicts keys; `evicts` makes an error of it."""

_READ = """
local fence, rows, touched = KEYS[1], KEYS[2], KEYS[3]
local head = redis.call('HMGET', fence, 'record', 'rows', 'txid', 'attempt')
local function values(keys, first)
    local found = {}
    for i = first, #keys, 1000 do
        for _, value in ipairs(redis.call('HMGET', rows, unpack(keys, i, math.min(i + 999, #keys)))) do
            found[#found + 1] = value
        end
    end
    return found
end
local left = {}
if ARGV[1] ~= '0' and head[3] == ARGV[1] and tonumber(head[4]) < tonumber(ARGV[2]) then
    left = redis.call('SMEMBERS', touched)
end
return {head[1], head[2], redis.call('HLEN', rows), values(ARGV, 3), left, values(left, 1)}
"""
_WRITE = """
local fence, rows, touched = KEYS[1], KEYS[2], KEYS[3]
local expected, record, txid, attempt, pairs_end = ARGV[1], ARGV[2], ARGV[3], ARGV[4], 5 + 2 * tonumber(ARGV[5])
if record ~= '' and (redis.call('HGET', fence, 'record') or '') ~= expected then
    return 0
end
if redis.acl_check_cmd then
    for _, each in ipairs({{'HSET', rows, '', ''}, {'HDEL', rows, ''}, {'DEL', touched}, {'SADD', touched, ''}}) do
        if not redis.acl_check_cmd(unpack(each)) then
            return redis.error_reply('NOPERM this user may not run ' .. each[1] .. ' on ' .. each[2])
        end
    end
end
for i = 6, pairs_end, 1000 do
    redis.call('HSET', rows, unpack(ARGV, i, math.min(i + 999, pairs_end)))
end
for i = pairs_end + 1, #ARGV, 1000 do
    redis.call('HDEL', rows, unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
if record ~= '' then
    redis.call('DEL', touched)
    for i = 6, pairs_end, 2 do
        redis.call('SADD', touched, ARGV[i])
    end
    redis.call('HSET', fence, 'record', record, 'txid', txid, 'attempt', attempt, 'rows', redis.call('HLEN', rows))
end
return 1
"""


@spelled_init
@dataclass(frozen=True, repr=False)
class RedisStore:
    """Trident's states in a Redis server (extra `redis`): `map_state(RedisStore("redis://host:6379/0"), "counts")`.

    url: redis://, rediss:// or unix://. Its repr and error messages mask the password. patience_s: seconds to wait for an answer.
    Raises ConfigError for an invalid address.
    """

    url: str
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        checked_address(self.url, self.patience_s, "redis://user:password@host:6379/0")

    def open(self, place: PartitionId) -> RedisMap:
        """Return the rows of one partition, over a connection of its own."""
        return RedisMap(self.url, place, self.patience_s)

    def identity(self, state: str) -> tuple[Any, ...]:
        """Return the identity of the rows of a state: server, database and name, whatever the user.

        Two names of one server have different identities; only the fence detects them as the same.
        """
        parse: Any = redis.connection.parse_url
        try:
            found: dict[str, Any] = dict(parse(self.url))
        except ValueError:
            return "redis", self.url, state
        host = str(found.get("path") or found.get("host") or "localhost").lower()
        where = ("127.0.0.1" if host == "localhost" else host, found.get("port") or 6379, found.get("db") or 0)
        return "redis", *where, state

    def __repr__(self) -> str:
        return f"RedisStore({masked(self.url)!r})"


class RedisMap(Remote):
    """The rows of one partition (BackingMap)."""

    lost: ClassVar[tuple[type[Exception], ...]] = (
        redis.ConnectionError,
        redis.TimeoutError,
        redis.ReadOnlyError,
        redis.InvalidResponse,  # another kind of server
    )
    _is_checked = False

    def __init__(self, url: str, place: PartitionId, patience_s: float) -> None:
        super().__init__(url, place, patience_s)
        self._keys = [f"windowing:{{{place.stored_name()}}}:{part}" for part in ("fence", "rows", "touched")]
        self._client = client_of(url, f"the store of {place}")
        self._read_script = self._client.register_script(_READ)
        self._write_script = self._client.register_script(_WRITE)
        self._eviction_script = self._client.register_script(EVICTING)

    def _connect(self) -> None:
        """Set the timeout of the next connection; the client connects in the first command, which looks for eviction."""
        left_s = self._left_s()
        waits = {"socket_timeout": left_s, "socket_connect_timeout": left_s, "socket_keepalive": True}
        if self._url.startswith("unix"):
            waits.pop("socket_keepalive")
        self._client.connection_pool.connection_kwargs.update(waits)
        if not self._is_checked:
            found: Any = self._eviction_script()
            if found:
                raise evicts(f"the state {self.place} at {masked(self._url)}", found[1])
            self._is_checked = True

    def close(self) -> None:
        self._is_checked = False
        self._client.close()

    def _read(self, keys: Sequence[bytes], undo: TransactionAttempt | None) -> Reading:
        txid, attempt = undo or (0, 0)
        answer: Any = self._read_script(self._keys, [txid, attempt, *keys])
        record, wanted, found, rows, left_keys, left_rows = answer
        if wanted is not None and int(wanted) != found:
            raise CorruptStateError(
                f"the state {self.place} at {masked(self._url)} has {found} rows, its fence says {int(wanted)}: rows "
                "were evicted or changed by somebody else; restore it from a copy, and set maxmemory-policy to noeviction; nothing "
                "was reset"
            )
        fence = None if record is None else Fence.of(record, self.place)
        left = {key: self._unpacked(key, blob) for key, blob in zip(left_keys, left_rows, strict=True)}
        checked = [None if b is None else self._unpacked(k, b) for k, b in zip(keys, rows, strict=True)]
        return Reading(fence, checked, left)

    def _write(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None) -> Fence | None:
        put = [part for key, row in rows.items() if row is not None for part in (key, self._packed(key, row))]
        gone = [key for key, row in rows.items() if row is None]
        head: Iterable[Any] = (b"", b"", 0, 0)
        if claim is not None:
            head = (claim.expected.record() if claim.expected else b"", claim.fence.record(), *claim.fence.attempt)
        written = self._write_script(self._keys, [*head, len(put) // 2, *put, *gone])
        return None if written else self._read([], None).fence

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        hkeys: Callable[[], Any] = partial(self._client.hkeys, self._keys[1])
        names = sorted(self._patiently(hkeys))
        for start in range(0, len(names), _PAGE):
            keys = names[start : start + _PAGE]
            yield from ((k, row) for k, row in zip(keys, self.multi_get(keys).rows, strict=True) if row is not None)

    def count(self) -> int:
        hlen: Callable[[], Any] = partial(self._client.hlen, self._keys[1])
        return int(self._patiently(hlen))

    def _packed(self, key: bytes, row: StateRow) -> bytes:
        has = _HAS_VALUE * (row.value is not None) + _HAS_PREVIOUS * (row.previous is not None)
        value = row.value or b""
        return _HEADER.pack(row.checksum(self.place, key), row.txid, has, len(value)) + value + (row.previous or b"")

    def _unpacked(self, key: bytes, blob: Any) -> StateRow:
        if not isinstance(blob, bytes) or len(blob) < _HEADER.size:
            return StateRow.sound(self.place, key, None, None, None, None)
        crc, txid, has, length = _HEADER.unpack_from(blob)
        end = _HEADER.size + length
        value = blob[_HEADER.size : end] if has & _HAS_VALUE else None
        return StateRow.sound(self.place, key, txid, value, blob[end:] if has & _HAS_PREVIOUS else None, crc)

    def _refused(self, problem: Exception) -> WindowingError | None:
        text, where = self._text(problem), masked(self._url)
        if denies(problem):
            return ConfigError(
                f"Redis at {where} refuses the user: {text}; give the user and password of the server, with the rights to run "
                "scripts and all that they do on the keys windowing:* (ACL SETUSER)"
            )
        if FULL in text:
            return StoreUnavailableError(
                f"Redis at {where} cannot write the state {self.place}: {text}; make room there, or raise maxmemory; nothing was "
                "written"
            )
        if isinstance(problem, self.lost) or not isinstance(problem, redis.ResponseError):
            return None
        if any(each in text for each in _DAMAGED):
            return CorruptStateError(
                f"the keys of the state {self.place} at {where} are not ours, or damaged: {text}; restore them from a copy, or "
                "give the state another name; nothing was reset"
            )
        return StoreUnavailableError(
            f"Redis at {where} cannot serve the state {self.place} now: {text}; see to the server"
        )


def client_of(url: str, whose: str, **waits: float) -> redis.Redis:
    """Return a client that does not retry, as its users first read what was written. Raises ConfigError for a wrong address."""
    try:
        client = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **waits)
        pool: Any = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # refuses unknown options; connects at the first command
    except (ValueError, TypeError):
        raise ConfigError(
            f"the address of {whose} is none of a Redis server (not shown, for it may hold a password); write "
            "redis://user:password@host:6379/0"
        ) from None  # the cause would show the password
    return client


def denies(problem: Exception) -> bool:
    """Return whether the server refuses the user. Redis 6 and Valkey say it of a command in a script only in the text."""
    kinds = redis.exceptions
    return isinstance(problem, kinds.AuthenticationError | kinds.AuthorizationError | kinds.NoPermissionError) or any(
        each in str(problem) for each in _DENIALS
    )


def evicts(what: str, policy: bytes) -> ConfigError:
    """Return the error for a server that evicts keys, from what EVICTING has found."""
    return ConfigError(
        f"{what} is on a server that removes keys when its memory is full (maxmemory-policy {policy.decode()}), and would be lost "
        "in part; CONFIG SET maxmemory-policy noeviction, or give another server"
    )


def stored_states(url: str) -> list[tuple[str, dict[int, int], dict[int, bytes]]]:
    """Return for each state in a database its name, the row counts and the fence records of its partitions, for `windowing states`.

    Raises ConfigError for an invalid address, StoreUnavailableError with the message of the server. Cost: a scan of all keys of the
    database, 1,000 in a call, beside which the server answers other clients.
    """
    found: dict[str, tuple[dict[int, int], dict[int, bytes]]] = {}
    opened = client_of(url, "the states", socket_timeout=5.0, socket_connect_timeout=5.0)
    try:
        with opened as client:
            for key in client.scan_iter(match="windowing:{*/*}:*", count=_PAGE):
                named = _OF_STATE.fullmatch(key)
                if named is None:
                    continue
                rows, fences = found.setdefault(named["state"].decode(), ({}, {}))
                partition = int(named["partition"])
                if named["part"] == b"rows":
                    rows[partition] = client.hlen(key)
                elif (record := client.hget(key, "record")) is not None:
                    fences[partition] = record
    except (redis.RedisError, OSError, ValueError) as problem:
        text = printable(masked(f"{type(problem).__name__}: {problem}", url))
        raise StoreUnavailableError(f"Redis at {masked(url)} cannot be read: {text}") from None
    return [(state, *found[state]) for state in sorted(found)]
