"""RedisStream: a Redis stream, read in a consumer group; its entries are acked when all their tuples are done (extra `redis`).

    orders                             the stream; producers XADD to it
    windowing:{orders}:<group>/<consumer>:held      sorted set: ids of taken, unacked entries, by offset
                                         :facts     hash: identity, names, last offset, query, acked:<partition>
                                         :attempts  hash: entry id -> attempt, for entries that were failed
    windowing:{orders}:<group>:dead    a stream: the dead letters, each with a component or a reason

    take    XREADGROUP (new entries), XCLAIM (entries of an idle consumer): each gets the next offset
    ack     XACK, and removal from `held`
    fail    the entries of the root get the next offsets; after `max_attempts` they become dead letters and are acked

Laws
- Two consumers have no key in common but the dead letters of their group. With slashes in their names the keys would be the same
  (`a/b/c`): so the facts have the names, and the second one is refused.
- An entry id (milliseconds-sequence) does not fit a long. Offsets are assigned here: 1, 2, 3, ..., in the order of taking, each
  once.
- Each call runs one Lua script, which Redis executes atomically. A script that is repeated because its answer was lost has no
  second effect.
- A taken entry stays pending in the group until it is acked. After a kill the same consumer reads it again, by its offset. Another
  consumer of the group claims it only after this one has been idle for `claim_after`.
- An entry that was trimmed or deleted before its ack raises a SourceError that names it, or with `on_gap="skip"` is skipped with a
  warning. The same holds for an entry claimed from an idle consumer. (XAUTOCLAIM is not used: it removes deleted entries from the
  pending list of the group silently, those of live consumers too.)
- Redis does not roll back a script that fails. The script that takes entries therefore first runs the commands that assign offsets,
  without an effect: if the user lacks the right to one of them, nothing is taken.
- A server that has lost its newest data (a replica that was behind) would assign numbers again that count as read. If the last
  number is less than one that was read, nothing is taken, and SourceError is raised.

Durability depends on the server's settings (`appendonly yes`, `appendfsync always`). Cost: one script for each page of 1,000
entries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import redis

from windowing.columnar.bolts import table_of
from windowing.errors import ConfigError, SourceError, WindowingError, printable, quote
from windowing.queues.spout import Offsets, PartitionedSpout, Root, one_of, refuse_forgotten, taken_over, whole_number
from windowing.schema.checks import spelled
from windowing.schema.messages import BadMessage, row_of_texts
from windowing.schema.types import Schema
from windowing.stores.redis import EVICTING, FULL, RedisMap, client_of, denies, evicts
from windowing.stores.remote import Patient, checked_address, masked
from windowing.windows.measures import Duration, as_duration_ms

_log = logging.getLogger("windowing.queues")

# KEYS: stream, held, facts, attempts, dead. ARGV: group, consumer, then the arguments of the script.

_FIRST = """
return {redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES'), redis.call('HGET', KEYS[3], 'last')}
"""
_LOST = """
local function fields(flat)
    local found = {}
    for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
    return found
end
local function removed()
    local stream = fields(redis.call('XINFO', 'STREAM', KEYS[1]))
    return stream['entries-added'] and stream['entries-added'] - stream['length']
end
local function lost()
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
        local its = fields(each)
        local gone = its['name'] == ARGV[1] and its['entries-read'] and removed()
        if gone and gone > its['entries-read'] then
            return gone - its['entries-read'], its['last-delivered-id'], gone
        end
    end
    return 0
end
"""
_TAKE = """
local group, consumer, claim_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('HGET', KEYS[3], 'identity') ~= ARGV[4] then return {-1} end
local last = redis.call('HGET', KEYS[3], 'last') or '0'
if tonumber(last) < tonumber(ARGV[6]) then return {-3, last} end
local held = claim_ms > 0 and redis.call('XPENDING', KEYS[1], group)[1] or 0
redis.call('HINCRBY', KEYS[3], 'last', 0)
redis.call('ZADD', KEYS[2], 'XX', 0, '')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken = 0
local function number(id)
    if not redis.call('ZSCORE', KEYS[2], id) then
        redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[3], 'last', 1), id)
    end
end
local function claim(ids)
    ids[#ids + 1] = 'JUSTID'
    redis.call('XCLAIM', KEYS[1], group, consumer, 0, unpack(ids))
end
local from = redis.call('HGET', KEYS[3], 'cursor') or '-'
if claim_ms > 0 and now - tonumber(redis.call('HGET', KEYS[3], 'beat') or '0') > claim_ms / 3 then
    redis.call('HSET', KEYS[3], 'beat', now)
    local mine_from = '-'
    while true do
        local mine = redis.call('XPENDING', KEYS[1], group, mine_from, '+', 500, consumer)
        if #mine == 0 then break end
        local ids = {}
        for i, each in ipairs(mine) do ids[i] = each[1] end
        mine_from = '(' .. ids[#ids]
        claim(ids)
    end
elseif from == '-' then
    claim_ms = 0
end
if claim_ms > 0 then
    local idle = redis.call('XPENDING', KEYS[1], group, 'IDLE', claim_ms, from, '+', 500)
    local ids = {}
    for i, each in ipairs(idle) do ids[i] = each[1] end
    if #ids > 0 then
        from = '(' .. ids[#ids]
        claim(ids)
        for i = 1, #idle do number(ids[i]) end
        taken = taken + #idle
    else
        from = '-'
    end
    redis.call('HSET', KEYS[3], 'cursor', from)
end
local gone, last_id, upto = lost()
if gone > 0 then
    if ARGV[5] == 'raise' then return {-2, gone, last_id} end
    redis.call('XGROUP', 'SETID', KEYS[1], group, last_id, 'ENTRIESREAD', upto)
end
local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1000, 'STREAMS', KEYS[1], '>')
if read then
    for _, entry in ipairs(read[1][2]) do
        number(entry[1])
        taken = taken + 1
    end
end
return {taken, redis.call('HGET', KEYS[3], 'last') or '0', redis.call('XLEN', KEYS[1]) + held, gone, last_id}
"""
_READ = """
local found = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[3], ARGV[4], 'WITHSCORES', 'LIMIT', 0, 1000)
local n, partition, entries = tonumber(ARGV[5]), tonumber(ARGV[6]), {}
for i = 1, #found, 2 do
    if tonumber(found[i + 1]) % n == partition then
        local entry = redis.call('XRANGE', KEYS[1], found[i], found[i])
        entries[#entries + 1] = {found[i], entry[1] and entry[1][2] or false}
    end
end
return {found[#found] or false, entries}
"""
_ROOT = """
local n, first = tonumber(ARGV[3]), 7
local query = redis.call('HGET', KEYS[3], 'query')
local refused = (ARGV[6] or '') ~= '' and query ~= ARGV[6] and (query and -1 or -2)
local function each(work)
    for i = first, #ARGV, 3 do
        local found = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[i + 1], ARGV[i + 2], 'WITHSCORES')
        for at = 1, #found, 2 do
            if tonumber(found[at + 1]) % n == tonumber(ARGV[i]) then work(found[at]) end
        end
    end
end
local function over(id)
    redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[4], id)
end
local function bury(id, why)
    local entry = redis.call('XRANGE', KEYS[1], id, id)
    if entry[1] then
        local fields = entry[1][2]
        redis.call('XADD', KEYS[5], '*', '__id', id, '__why', why, unpack(fields, 1, math.min(#fields, 7000)))
    end
    over(id)
end
"""
_ACK = f"""{_ROOT}
if refused then return refused end
for i = first, #ARGV, 3 do
    local name = 'acked:' .. ARGV[i]
    if tonumber(redis.call('HGET', KEYS[3], name) or '0') < tonumber(ARGV[i + 2]) then
        redis.call('HSET', KEYS[3], name, ARGV[i + 2])
    end
end
each(over)
"""
_FAIL = f"""{_ROOT}
if refused then return refused end
local most = tonumber(ARGV[4])
each(function(id)
    local attempt = tonumber(redis.call('HGET', KEYS[4], id) or '1')
    if attempt >= most then
        bury(id, ARGV[5])
    else
        redis.call('HSET', KEYS[4], id, attempt + 1)
        redis.call('ZADD', KEYS[2], redis.call('HINCRBY', KEYS[3], 'last', 1), id)
    end
end)
"""
_BURY = f"""{_ROOT}
if redis.call('ZSCORE', KEYS[2], ARGV[4]) then bury(ARGV[4], ARGV[5]) end
"""
_MADE = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then return {'kind', kind} end
local there = false
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if group[2] == ARGV[1] then there = true end
end
local known = redis.call('HGET', KEYS[3], 'identity')
local group, consumer = redis.call('HGET', KEYS[3], 'group'), redis.call('HGET', KEYS[3], 'consumer')
if group and (group ~= ARGV[1] or consumer ~= ARGV[2]) then return {'whose', group, consumer} end
if known and not there then return {'gone', known} end
if not there then
    local gone = removed()
    if gone then
        redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'ENTRIESREAD', gone)
    else
        redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
    end
end
if not known then
    redis.call('HSET', KEYS[3], 'identity', ARGV[3], 'fields', ARGV[4], 'partitions', ARGV[5], 'last', 0)
end
redis.call('HSET', KEYS[3], 'group', ARGV[1], 'consumer', ARGV[2])
return {'facts', unpack(redis.call('HGETALL', KEYS[3]))}
"""
_BEGIN = """
local query = redis.call('HGET', KEYS[3], 'query') or ''
if query ~= ARGV[3] and query ~= ARGV[4] then return 0 end
if ARGV[5] == '1' then
    for _, name in ipairs(redis.call('HKEYS', KEYS[3])) do
        if string.sub(name, 1, 6) == 'acked:' then redis.call('HDEL', KEYS[3], name) end
    end
end
redis.call('HSET', KEYS[3], 'query', ARGV[4])
return 1
"""


class RedisStream(PartitionedSpout, Patient):
    """The stream with the key `stream` on the server at `url` (redis://, rediss://, unix://), read in a consumer group.

    A group that does not exist is created at the first entry of the stream. fields: the wanted fields of an entry, and `entry_id
    string` for its id; windowing/schema/messages.py lists how texts are converted. consumer: the name of the reader; each query
    needs its own, because a taken entry belongs to its consumer. claim_after: entries of another consumer of the group that has
    been idle this long are claimed (None: never). max_rows, partitions, max_attempts: as of a SqliteQueue. on_gap="skip": entries
    that were trimmed before their ack are skipped with a warning. on_invalid="dead": entries that are not valid rows become dead
    letters. patience_s: seconds to wait for an answer, also of a server that restarts.

    Raises ConfigError for a key that is not a stream, for a server that evicts keys (maxmemory-policy allkeys-*), and for a
    consumer that was created with other fields or partitions, or has the keys of another one. Every method raises SourceError for a
    server that cannot be reached or refuses.
    """

    lost = RedisMap.lost

    @spelled
    def __init__(
        self,
        url: str,
        stream: str,
        fields: str,
        *,
        group: str = "windowing",
        consumer: str = "windowing",
        partitions: int = 1,
        max_rows: int | None = None,
        max_attempts: int = 5,
        claim_after: Duration | timedelta | None = Duration(ms=60_000),
        on_gap: Literal["raise", "skip"] = "raise",
        on_invalid: Literal["raise", "dead"] = "raise",
        patience_s: float = 30.0,
    ) -> None:
        checked_address(url, patience_s, "redis://user:password@host:6379/0", "a RedisStream")
        self._partitions = whole_number("partitions", partitions)
        self._max_attempts = whole_number("max_attempts", max_attempts)
        self.max_rows = None if max_rows is None else whole_number("max_rows", max_rows) * partitions
        for name, text in (("stream", stream), ("group", group), ("consumer", consumer)):
            if not isinstance(text, str) or not text or set(text) & set("{}"):
                raise ConfigError(f"the {name} of a RedisStream is a text without braces, got {quote(text)}")
        self._on_gap = one_of("on_gap", "RedisStream", on_gap, ("raise", "skip"))
        self._on_invalid = one_of("on_invalid", "RedisStream", on_invalid, ("raise", "dead"))
        self._schema = Schema.parse(fields)
        self.fields, self.name, self._group, self._consumer = self._schema.ddl, stream, group, consumer
        self._claim_ms = 0 if claim_after is None else as_duration_ms(claim_after, "claim_after")
        Patient.__init__(self, url, patience_s)
        self._open: redis.Redis | None = None
        self._last = 0  # the last offset that `begin` or `latest` has seen
        self._query: str | None = None  # the name of the query that has called `begin`
        self.path = f"{stream} of {masked(url)}"
        base = f"windowing:{{{stream}}}:{group}"
        mine = f"{base}/{consumer}"
        self._keys = (stream, f"{mine}:held", f"{mine}:facts", f"{mine}:attempts", f"{base}:dead")
        self.identity = self._made()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def __repr__(self) -> str:
        return f"RedisStream({masked(self._url)!r}, {self.name!r})"

    # -- inspection ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of entries that are taken and not acked."""
        return int(self._call("ZCARD", self._keys[1]))

    @property
    def dead(self) -> list[tuple[str, str, dict[str, str]]]:
        """The dead letters, oldest first: (entry id, component or reason, fields). They are stored in a stream on the server."""
        found = []
        for _, fields in self._script("return redis.call('XRANGE', KEYS[5], '-', '+')"):
            (_, id, _, why), rest = fields[:4], fields[4:]  # by place: an entry may have fields of these names too
            texts = {_text(name): _text(value) for name, value in _pairs(rest).items()}
            found.append((_text(id), _text(why), texts))
        return found

    # -- the spout -----------------------------------------------------------------------------------------------------

    def initial(self) -> Offsets:
        """Return the offset before the oldest entry that is held, for each partition."""
        first, last = self._script(_FIRST)
        if last is None:
            raise self._another()
        return self._each(int(float(first[1])) - 1 if first else int(last))

    def latest(self) -> Offsets:
        """Take about as many entries as are new or of idle consumers; return the offset assigned last, by partition."""
        # The bound counts entries of the stream and of the group: those that an idle consumer holds may be deleted from the stream.
        total, bound = 0, None
        while True:
            asked = self._claim_ms, self.identity or "", self._on_gap, self._last
            taken, *rest = self._script(_LOST + _TAKE, *asked)
            if taken == -1:
                raise self._another()
            if taken == -3:
                raise self._behind(int(rest[0]), self._last)
            if taken < 0:
                self._note_lost(*rest)
            last, there, *lost = rest
            self._last = int(last)
            self._note_lost(*lost)
            total, bound = total + taken, there if bound is None else bound
            if taken == 0 or total >= bound:
                return self._each(self._last)

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets in (start, end] whose offset modulo `partitions` is the partition's number."""
        while start < end:
            last, found = self._script(_READ, start, end, self._partitions, partition)
            if last is None:
                return
            start = int(float(last))
            rows = [row for id, fields in found for row in self._row(_text(id), fields)]
            yield from table_of(rows, self._schema).to_batches()

    def begin(self, query: str, end: Offsets | None) -> None:
        """Record the query that reads. Raises CheckpointError if the checkpoint is older than the last ack, SourceError if the
        server has lost what the checkpoint has read.
        """
        facts = {_text(k): _text(v) for k, v in _pairs(self._script("return redis.call('HGETALL', KEYS[3])")).items()}
        if facts.get("identity") != self.identity:
            raise self._another()
        self._last, read = int(facts.get("last", 0)), max((end or {}).values(), default=0)
        if self._last < read:
            raise self._behind(self._last, read)
        acked = {name.partition(":")[2]: int(at) for name, at in facts.items() if name.startswith("acked:")}
        known = {"query": facts.get("query"), "acked": acked}
        anew = refuse_forgotten(f"the stream {self.path}", known, query, end)
        if not self._script(_BEGIN, facts.get("query", ""), query, int(anew)):
            raise SourceError(
                f"two queries begin at once as consumer {self._consumer!r} of the stream {self.path}; give each a consumer= of its "
                "own"
            )
        self._query = query

    def ack(self, root: Root) -> None:
        """Ack the entries of a root. Cost: one script."""
        self._end(_ACK, root)

    def fail(self, root: Root, component: str) -> None:
        """Assign the next offsets to the entries of a root; after their last attempt they become dead letters."""
        self._end(_FAIL, root, self._max_attempts, component)

    def close(self) -> None:
        """Close the connection. The next call connects again."""
        found, self._open = self._open, None
        if found is not None:
            found.close()

    def _end(self, script: str, root: Root, most: int = 0, component: str = "") -> None:
        bounds = [each for name, (start, end) in sorted(root.ranges.items()) for each in (name, start, end)]
        refused = self._script(script, self._partitions, most, component, self._query or "", *bounds)
        if refused:
            raise (
                taken_over(f"the stream {self.path} as consumer {self._consumer!r}")
                if refused == -1
                else self._another()
            )

    def _each(self, offset: int) -> Offsets:
        return {str(number): offset for number in range(self._partitions)}

    def _row(self, id: str, fields: Any) -> list[tuple[Any, ...]]:
        if not fields:
            if self._on_gap == "skip":
                _log.warning(
                    "entry %s of the stream %s was trimmed or deleted before it was acked: left out", id, self.path
                )
                return []
            raise SourceError(
                f"entry {id} of the stream {self.path} was trimmed or deleted before it was acked, so its row is lost; trim no "
                'more than is acked (XTRIM MINID, not MAXLEN), and go on without it by on_gap="skip"'
            )
        try:
            return [row_of_texts(_pairs(fields), self._schema, {"entry_id": id})]
        except BadMessage as problem:
            if self._on_invalid == "dead":
                self._script(_BURY, self._partitions, id, str(problem))
                return []
            raise SourceError(
                f"entry {id} of the stream {self.path} is no row of {self.fields}: {problem}; declare what its fields are, or have "
                'such entries put among the dead by on_invalid="dead"'
            ) from problem

    # -- the server ----------------------------------------------------------------------------------------------------

    def _note_lost(self, entries: int = 0, after: bytes = b"") -> None:
        """Raise or log that entries were trimmed or deleted before the group read them. Redis 6 does not report their number."""
        if not entries:
            return
        what = (
            f"{entries} entries of the stream {self.path} behind {_text(after)} were trimmed or deleted before group "
            f"{self._group!r} has read them"
        )
        if self._on_gap == "raise":
            raise SourceError(
                f"{what}, so their rows are lost; trim no more than is acked (XTRIM MINID, not MAXLEN), and go on without them by "
                'on_gap="skip"'
            )
        _log.warning("%s: left out", what)

    def _made(self) -> str:
        kind, *found = self._script(EVICTING + _LOST + _MADE, uuid4().hex, self.fields, self._partitions)
        if kind == b"evicts":
            raise evicts(f"the stream {self.path}", found[0])
        if kind == b"kind":
            what = (
                "is not there: XADD its first entry"
                if found[0] == b"none"
                else f"is a {_text(found[0])}, no stream: give the key of one"
            )
            raise ConfigError(f"the key {self.name!r} of {masked(self._url)} {what}")
        if kind == b"whose":
            group, consumer = map(_text, found)
            raise ConfigError(
                f"the stream {self.path}: the keys of consumer {self._consumer!r} of group {self._group!r} would be those of "
                f"consumer {consumer!r} of group {group!r}, as a slash separates the names; give another consumer="
            )
        if kind == b"gone":
            raise self._another()
        facts = _pairs(found)
        for name, wanted in (("fields", self.fields), ("partitions", str(self._partitions))):
            was = _text(facts[name.encode()])
            if was != wanted:
                raise ConfigError(
                    f"consumer {self._consumer!r} of the stream {self.path} was made with {name} {quote(was)}, now {wanted!r}; "
                    "give another consumer="
                )
        return _text(facts[b"identity"])

    def _another(self) -> SourceError:
        return SourceError(
            f"the stream {self.path} is not the one that consumer {self._consumer!r} has read: its group {self._group!r}, or what "
            "is held of it, was deleted since; put the server's data back from a copy, or begin with another consumer= and a new "
            "checkpoint"
        )

    def _behind(self, last: int, read: int) -> SourceError:
        return SourceError(
            f"the stream {self.path} ends at offset {last}, and was read up to {read}: the server's newest data is lost (a "
            "failover to a replica that was behind, an older copy), and new entries would get offsets that count as read; put back "
            "newer data, or begin with another consumer= and a new checkpoint; nothing was taken"
        )

    def _script(self, text: str, *arguments: str | int) -> Any:
        return self._call("EVAL", text, len(self._keys), *self._keys, self._group, self._consumer, *arguments)

    def _call(self, *command: Any) -> Any:
        def ask() -> Any:
            assert self._open is not None
            return self._open.execute_command(*command)  # type: ignore[no-untyped-call]

        return self._patiently(ask)

    def _connect(self) -> None:
        if self._open is None:
            self._open = client_of(
                self._url,
                f"the stream {self.name}",
                socket_timeout=self._patience_s,
                socket_connect_timeout=min(self._patience_s, 5.0),
            )

    def _unanswered(self, text: str) -> WindowingError:
        return SourceError(
            f"the stream {self.path}: the server cannot be reached: {text}; start it, or give another URL; nothing is lost"
        )

    def _refused(self, problem: Exception) -> WindowingError | None:
        where, said = f"the stream {self.path}", printable(masked(str(problem), self._url))
        if denies(problem):
            return SourceError(
                f"{where}: the server refuses who asks: {said}; give user and password in the URL, with rights to its keys"
            )
        if isinstance(problem, self.lost):
            return None
        if "NOGROUP" in said or "no such key" in said:
            return self._another()
        if FULL in said:
            said += f"; trim acked entries (XTRIM {self.name} MINID), or raise maxmemory, and start again"
        return SourceError(f"{where}: the server says: {said}; what was taken is still pending there")


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _pairs(flat: Any) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
