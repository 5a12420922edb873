"""TopologyConfig: the settings of a topology, by Storm's keys or by typed names, as one frozen value.

    configure({"topology.message.timeout.secs": 30})  ==  configure(message_timeout=seconds(30))

`KEYS` is the table: each row has a Storm key, its typed name here, the kind of value, and the scopes in which it is allowed. A
Storm key without a meaning here is refused with the reason. A user's own key (it has a dot, and does not begin with "topology." or
"windowing.") is kept in `own` for the components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, NoReturn

from windowing.errors import ConfigError, by_name, quote
from windowing.schema.checks import StormNames, did_you_mean, is_whole
from windowing.windows.measures import as_duration_ms

Setting = tuple[Any, Any]
"""A key as it was written, with its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyConfig(StormNames):
    """The settings of a whole topology; the defaults are Storm's where nothing else is stated.

    message_timeout_ms: a tuple tree fails after it. max_spout_pending: how many tuples of a spout task may be in
    flight (None: no limit). acker_executors: with 0, tuples are acked when they are emitted. acker_rotation: None for exact
    deadlines, else Storm's rotation of so many buckets. max_attempts, retry_delay_ms, retry_delay_max_ms: how often a message is
    emitted before it is a dead letter (None: no limit, as in Storm), and how long a failed one waits. tick_tuple_freq_ms: how often
    bolts get a tick (None: never). state_provider: None is "sqlite" where the cluster has a path, else "memory".
    max_task_parallelism: an upper bound for every component. batch_emit_interval_ms, max_batch_size: for Trident in one process,
    the minimum time between batches (Storm's is 500), and the number of tuples of a batch from a spout of single tuples. own: the
    user's own keys.

    >>> from windowing import seconds
    >>> TopologyConfig.of({"topology.max.spout.pending": 1000}, message_timeout=seconds(0.5)).message_timeout_ms
    500
    """

    message_timeout_ms: int = 30_000
    enable_message_timeouts: bool = True
    max_spout_pending: int | None = None
    acker_executors: int = 1
    acker_rotation: int | None = None
    max_attempts: int | None = 5
    retry_delay_ms: int = 1000
    retry_delay_max_ms: int = 60_000
    tick_tuple_freq_ms: int | None = None
    state_checkpoint_interval_ms: int = 1000
    state_provider: str | None = None
    max_task_parallelism: int | None = None
    sleep_spout_wait_ms: int = 1
    batch_emit_interval_ms: int = 0
    max_batch_size: int = 1000
    debug: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "get keys values items containsKey": (
            "config.own for keys of your own; a setting is an attribute, such as config.max_spout_pending"
        )
    }

    def __getitem__(self, key: object) -> NoReturn:
        raise ConfigError(
            f"a config is no mapping, and it was asked for {quote(key)}; write config.own[{quote(key)}] for a key of your own, and "
            "an attribute for a setting, such as config.max_spout_pending"
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None = None, /, **typed: Any) -> TopologyConfig:
        """Return the config of the settings, or raise ConfigError with a sentence for each wrong one."""
        values, problems = read_settings(settings_of(settings, typed), "topology")
        if problems:
            raise ConfigError("; ".join(problems))
        return cls(**values)

    @property
    def timeouts(self) -> bool:
        """Whether tuple trees can time out: message timeouts are on, and there is an acker to detect them."""
        return self.enable_message_timeouts and self.acker_executors > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentConfig:
    """The settings of one component: those in `given`, None values too, and the user's own; the others are the topology's."""

    max_spout_pending: int | None = None
    tick_tuple_freq_ms: int | None = None
    debug: bool | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ComponentConfig:
        """Return the config with the result of `read_settings`."""
        return cls(**values, given=frozenset(values) - {"own"})


class SettingKind(NamedTuple):
    """How a value is parsed: for Storm's key (`read`), and for its typed name (`read_typed`, None for the same way).

    Both raise ValueError for a value that does not match `wanted`, or `wanted_typed`.
    """

    wanted: str
    read: Callable[[Any], Any]
    wanted_typed: str = ""
    read_typed: Callable[[Any], Any] | None = None


class Key(NamedTuple):
    """One row of the table; `scopes` are where the key is allowed: "topology", "spout", "bolt"."""

    storm: str
    typed: str
    kind: SettingKind
    scopes: tuple[str, ...] = ("topology",)

    @property
    def attribute(self) -> str:
        """The field of TopologyConfig: the typed name, for a span of time with its unit."""
        return self.typed if hasattr(TopologyConfig, self.typed) else f"{self.typed}_ms"


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not is_whole(value, least):
            raise ValueError
        return value

    return read


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _seconds(value: Any) -> int:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError
    if round(value * 1000) <= 0 or abs(round(value * 1000) - value * 1000) > 1e-6:
        raise ValueError
    return round(value * 1000)


def _span(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        ms = as_duration_ms(value, "a span")
        if ms < least:
            raise ValueError
        return ms

    return read


def _provider(value: Any) -> str:
    if value not in ("memory", "sqlite"):
        raise ValueError
    return str(value)


def _count(least: int) -> SettingKind:
    return SettingKind(f"a whole number, {least} or more", _whole(least))


def _limit(least: int) -> SettingKind:
    return SettingKind(f"a whole number, {least} or more, or None for no limit", _optional(_whole(least)))


def _millis(least: int) -> SettingKind:
    wanted = f"a whole number of milliseconds, {least} or more"
    return SettingKind(wanted, _whole(least), _A_SPAN.format(least), _span(least))


_A_SPAN = "a span of {} ms or more, such as seconds(1)"
_BOOLEAN = SettingKind("True or False", _flag)
_SECONDS = SettingKind("a positive number of seconds, in whole milliseconds", _seconds, _A_SPAN.format(1), _span(1))
_TICKS = SettingKind(
    f"{_SECONDS.wanted}, or None for no ticks",
    _optional(_seconds),
    f"{_SECONDS.wanted_typed}, or None for no ticks",
    _optional(_span(1)),
)
_ROTATION = SettingKind("a whole number of buckets, 2 or more, or None for exact deadlines", _optional(_whole(2)))
_PROVIDER = SettingKind("'memory' or 'sqlite'", _provider)


KEYS = (
    Key("topology.message.timeout.secs", "message_timeout", _SECONDS),
    Key("topology.enable.message.timeouts", "enable_message_timeouts", _BOOLEAN),
    Key("topology.max.spout.pending", "max_spout_pending", _limit(1), ("topology", "spout")),
    Key("topology.acker.executors", "acker_executors", _count(0)),
    Key("windowing.acker.rotation", "acker_rotation", _ROTATION),
    Key("windowing.max.attempts", "max_attempts", _limit(1)),
    Key("windowing.retry.delay.ms", "retry_delay", _millis(0)),
    Key("windowing.retry.delay.max.ms", "retry_delay_max", _millis(0)),
    Key("topology.tick.tuple.freq.secs", "tick_tuple_freq", _TICKS, ("topology", "bolt")),
    Key("topology.state.checkpoint.interval.ms", "state_checkpoint_interval", _millis(100)),
    Key("topology.state.provider", "state_provider", _PROVIDER),
    Key("topology.max.task.parallelism", "max_task_parallelism", _limit(1)),
    Key("topology.sleep.spout.wait.strategy.time.ms", "sleep_spout_wait", _millis(0)),
    Key("topology.trident.batch.emit.interval.millis", "batch_emit_interval", _millis(0)),
    Key("topology.spout.max.batch.size", "max_batch_size", _count(1)),
    Key("topology.debug", "debug", _BOOLEAN, ("topology", "spout", "bolt")),
)
"""Every key that has a meaning here."""

REFUSED_PREFIXES = {
    "topology.tasks": "the number of tasks is the parallelism= of set_spout and set_bolt, or set_num_tasks",
    "topology.name": "the name is given to TopologyBuilder",
    "topology.kryo topology.skip.missing.kryo": "tuples travel as Arrow, nothing is serialized by Kryo",
    "topology.bolts.": "windows are declared by @windowed_bolt(length=..., slide=..., timestamp=..., lag=...)",
    "topology.state.kryo": "a value of a state is plain data, stored as JSON",
    "topology.state.provider.": "state_path= or states= of LocalCluster says where states are; on Spark, the checkpoint",
    "topology.blobstore.": "there is no blob store; open files in prepare, which spark.files of a session distributes",
    "topology.auto.task.hooks": "there are no hooks of tasks; write the code in prepare",
    "topology.transactional.": "a Trident stream keeps its progress under its name in new_stream",
}
"""Prefixes of Storm's keys without a meaning here that change results or the topology there, with what to do instead."""

WITHOUT_EFFECT = by_name(
    {
        "topology.workers": "LocalCluster is one process; on Spark the session's executors and cores decide",
        "topology.stats.": "every tuple is counted: see the run's result, and the metrics on Spark",
        "topology.worker. topology.classpath topology.environment": (
            "there are no worker processes of Storm's: LocalCluster is one process, on Spark configure the session"
        ),
        "topology.component. topology.acker.resources. topology.acker.cpu.": "memory and cores are the session's on Spark",
        (
            "topology.executor. topology.transfer. topology.backpressure. topology.disruptor. topology.producer. "
            "topology.batch.flush. topology.flush.tuple. topology.spout.recvq. topology.bolts.outgoing.overflow."
        ): "there are no queues between threads; a spout stops at topology.max.spout.pending",
        "topology.disable.loadaware topology.localityaware. topology.upstream.feedback.": "a shuffle goes round all tasks",
        "topology.bolt.wait.": "the loop waits for the next deadline",
        "topology.sleep.spout.wait.strategy topology.spout.wait.": (
            "a spout that has nothing is asked again after topology.sleep.spout.wait.strategy.time.ms"
        ),
        "topology.trident.windowing.": "a window keeps its tuples itself, in the process or in Spark's state store",
        "topology.fall.back.on.java.": "values are of declared types, nothing is serialized by Java",
        "topology.testing.": "tuples are checked against the declared types",
        "topology.tuple.serializer": "tuples travel as Arrow",
        "topology.eventlogger. topology.event.logger.": "there is no event logger",
        (
            "topology.metrics. topology.enable.v2.metrics. topology.enable.send.iconnection. topology.v2.metrics. "
            "topology.builtin.metrics. topology.serialized.message.size.metrics"
        ): "see the run's result, and the metrics on Spark",
        "topology.error.throttle. topology.max.error.report.": (
            "at most 5 errors of a component in 10 s are logged, and the result of the run has all"
        ),
        "topology.logging.": "logs are Python's and Spark's, which have settings of their own",
        "topology.multilang. topology.shellbolt. topology.subprocess.": "components are Python, there is no ShellBolt",
        "topology.priority topology.scheduler. topology.spread. topology.ras. topology.isolate.": (
            "there is no scheduler of Storm's"
        ),
        "topology.submitter.": "the process and the session have a user of their own",
        (
            "topology.users topology.groups topology.readonly. topology.version topology.min.replication. "
            "topology.max.replication. topology.state.synchronization. topology.auto-credentials"
        ): "there is no Nimbus",
        (
            "storm. nimbus. supervisor. drpc. logviewer. pacemaker. ui.host ui.port ui.childopts ui.actions. ui.filter "
            "ui.header. ui.http worker.childopts worker.gc. worker.heap. worker.heartbeat. worker.log. worker.max. "
            "worker.metrics worker.profiler. blacklist.scheduler. java.library.path client.jartransformer."
        ): "a setting of a cluster of Storm's, not of a topology",
    }
)
"""Prefixes of Storm's keys that change no result, with the reason: they are accepted, and logged once."""


def without_effect(names: Iterable[str]) -> str | None:
    """Return the sentence about the keys without effect here, None if there are none.

    >>> without_effect(["topology.workers", "app.host"])
    "without effect: topology.workers (LocalCluster is one process; on Spark the session's executors and cores decide)"
    """
    found = {name: reason for name in names if (reason := _no_effect_reason(name)) is not None}
    listed = "; ".join(f"{name} ({reason})" for name, reason in sorted(found.items()))
    return f"without effect: {listed}" if listed else None


def _no_effect_reason(name: str) -> str | None:
    return next((reason for beginning, reason in WITHOUT_EFFECT.items() if name.startswith(beginning)), None)


class Misplaced(NamedTuple):
    """Settings that one kind of topology refuses: the reason for each attribute, and the end of the sentence."""

    reasons: Mapping[str, str]
    ending: str

    def sentence(self, attribute: str) -> str:
        """Return the part of the refusal that follows the name of the setting."""
        return f"({self.reasons[attribute]}) {self.ending}"


IN_TRIDENT = Misplaced(
    {
        "acker_executors": "batches have an acker of their own",
        "acker_rotation": "the trees of batches have exact deadlines",
        "tick_tuple_freq_ms": "operations are handed tuples of batches alone; a window over the clock fires with the next batch",
        "state_checkpoint_interval_ms": "states are committed with each batch",
        "state_provider": "a state is where its factory says, such as map_state(SqliteStore(path), 'counts')",
        "sleep_spout_wait_ms": "topology.trident.batch.emit.interval.millis says how long a new batch waits",
        "debug": "tuples travel in batches and are not logged; use .peek(print)",
    },
    "has no meaning in a Trident topology",
)
OUTSIDE_TRIDENT = Misplaced(
    dict.fromkeys(("batch_emit_interval_ms", "max_batch_size"), "nothing makes batches but Trident"),
    "is for a TridentTopology",
)


def refused_settings(config: TopologyConfig, misplaced: Misplaced) -> Iterator[str]:
    """Yield a sentence for each refused setting whose value is not its default."""
    defaults = TopologyConfig()
    for key in KEYS:
        if key.attribute in misplaced.reasons and getattr(config, key.attribute) != getattr(defaults, key.attribute):
            yield f"{key.storm} {misplaced.sentence(key.attribute)}; leave it out"


def unordered_delays(config: TopologyConfig) -> Iterator[str]:
    """Yield a sentence if the longest delay of a retry is less than the first one, or not less than an hour."""
    if not config.retry_delay_ms <= config.retry_delay_max_ms < 3_600_000:
        yield (
            f"a failed message waits {config.retry_delay_ms} ms at first and {config.retry_delay_max_ms} ms at most; give "
            "windowing.retry.delay.max.ms a value of at least windowing.retry.delay.ms and less than an hour"
        )


_OURS = ("topology.", "windowing.")
"""The beginnings of keys that are no user's own."""

_NO_MAPPING = object()
"""Stands in place of a key for settings that are no mapping, which are its value."""


def settings_of(settings: Any, typed: Mapping[str, Any], stray: tuple[Any, ...] = ()) -> list[Setting]:
    """Return what `configure` is given, as pairs; what is no mapping, or more than one, is a wrong key, which `build` reports."""
    if stray:
        return [(_NO_MAPPING, (settings, *stray)), *typed.items()]
    if settings is None or isinstance(settings, Mapping):
        return [*(settings or {}).items(), *typed.items()]
    return [(_NO_MAPPING, settings), *typed.items()]


def read_settings(settings: Iterable[Setting], scope: str) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the config of a scope ("topology", "spout" or "bolt") and a sentence for each wrong setting; a later
    setting wins.
    """
    keys = {key.storm: key for key in KEYS} | {key.typed: key for key in KEYS}
    values: dict[str, Any] = {}
    own: dict[str, Any] = {}
    problems = []
    for name, value in settings:
        key = keys.get(name) if isinstance(name, str) else None
        if key is None:
            problem = _problem_of_own_key(name, value)
            if problem is None:
                own[name] = value
        elif scope not in key.scopes:
            problem = _misplaced(key, name, scope)
        else:
            problem = _read_setting(key, name, value, values)
        problems += [] if problem is None else [problem]
    return values | {"own": own}, problems


def _read_setting(key: Key, name: str, value: Any, values: dict[str, Any]) -> str | None:
    wanted, read, wanted_typed, read_typed = key.kind
    if name == key.typed and read_typed is not None:
        wanted, read = wanted_typed, read_typed
    try:
        values[key.attribute] = read(value)
    except (ValueError, OverflowError):  # ConfigError is a ValueError
        return f"{name} is {wanted}, got {quote(value)}; give such a value, or leave it out for the default"
    return None


def _misplaced(key: Key, name: str, scope: str) -> str:
    if key.scopes == ("topology",):
        return f"{name} holds for the whole topology, not for one {scope}; give it to TopologyBuilder.configure"
    where = " or ".join(f"a {spot}" for spot in key.scopes if spot != "topology")
    return f"{name} is for {where}, not for a {scope}; leave it out here"


def _problem_of_own_key(name: Any, value: Any) -> str | None:
    """Return the problem with a key that is not in the table, None for a valid key of the user's own."""
    if name is _NO_MAPPING:
        return f"configure takes a mapping of settings, got {quote(value)}; write configure({{'topology.workers': 2}})"
    if not isinstance(name, str) or not name:
        return f"a key is a text such as 'topology.max.spout.pending', got {quote(name)}; write one"
    if _no_effect_reason(name) is None:
        for beginning, reason in by_name(REFUSED_PREFIXES).items():
            if name.startswith(beginning):
                return f"{name} has no meaning here: {reason}"
        dotted = name.lower().replace("_", ".") if name.isupper() else name  # a constant of Storm's Config
        first, _, rest = dotted.partition(".")
        meant = get_close_matches(f"{first.lower()}.", _OURS, n=1, cutoff=0.85)
        if "." not in name or meant:
            return _unknown(name, f"{meant[0]}{rest}" if meant else dotted, value)
    return None if _is_plain(value) else f"{name} is plain data (text, numbers, lists, dicts), got {quote(value)}"


def _unknown(name: str, dotted: str, value: Any) -> str:
    """Return the problem with a key that begins as one of Storm's or of this library's, or has no dot. dotted: as in Storm."""
    if isinstance(value, Mapping):  # a section of a file, such as Flux's
        return f"unknown key {quote(name)}, a mapping; if these are the settings, write configure(file[{quote(name)}])"
    ours = dotted.startswith(_OURS)
    known = [key.storm if ours else key.typed for key in KEYS] + [
        each for each in WITHOUT_EFFECT if each.startswith(_OURS) and each[-1] != "."
    ]
    own = "begins with a word of yours" if ours else "needs a dot"
    return f"unknown key {quote(name)}; {did_you_mean(dotted, known)} (a key of your own {own}: 'app.host')"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float | bool)
