"""The checks that `WindowConfig.of` makes of a window definition, its policies and its options.

    length=   the tuples that are held   eviction=   chooses among them, or among all tuples where there is no length
    slide=    when windows fire          trigger=    decides this instead

Each check returns a value or raises ConfigError with a sentence. `given` holds the options that the user wrote, without those that
are None. This module does not import WindowConfig and holds no state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from windowing.errors import ConfigError, by_name, quote
from windowing.schema.checks import DEFAULT_STREAM, checked_name, did_you_mean, is_whole, is_written, unbound
from windowing.windows.aggregate import is_aggregator
from windowing.windows.guard import does_nothing
from windowing.windows.measures import Count, Duration, Measure, as_duration_ms, as_measure

MAX_WINDOWS_PER_TUPLE = 10_000
"""A time window that puts one tuple into more windows than this is refused."""

MIN_EVENTS_IN_MEMORY = 1_000
"""With fewer tuples in memory, a window on disk would read and write pages too often."""

_Member = TypeVar("_Member", bound=Enum)


_ELSEWHERE = {
    "session session_gap gap gap_duration": (
        "trigger= and eviction=, policies of your own; the manual has sessions in 'Custom policies'"
    ),
    "allowed_lateness watermark watermark_delay delay delay_threshold max_delay grace grace_period": (
        "lag=seconds(5), the time that rows may be out of order"
    ),
    "group_by by key_by partition_by": "key='user'",
    "size duration": "length=seconds(10)",
    "every hop step interval period": "slide=seconds(5)",
    "agg aggs": "aggregate={'n': aggregate.count()}",
    "late late_output side_output": "late_stream='late'",
    "ts time time_column event_time": "timestamp='at'",
    "outputs out schema fields": "output='user string, n long'",
    "start_time startTime timezone tz": "offset=hours(1), by which the ends of windows are shifted from UTC",
    "tasks parallelism": "windowed(bolt, rows, tasks=4) on Spark, set_bolt(id, bolt, 4) in a topology",
    "grouping order_by": "windowed(bolt, rows, order_by=...)",
    "sinks checkpoint drain trigger_interval": "windowed(bolt, rows).start(sinks, checkpoint=..., trigger=seconds(10))",
}
"""What to write in place of options that other libraries have, and of arguments that stand elsewhere."""


def refuse_unknown(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise for an unknown option, and name what to write, or the nearest known one."""
    for option in options:
        if option not in known:
            write = by_name(_ELSEWHERE).get(option)
            hint = did_you_mean(option, known) if write is None else f"write {write}"
            raise ConfigError(f"unknown option {quote(option)} of a window; {hint}")


def choice(kind: type[_Member], given: Mapping[str, Any], option: str, default: _Member) -> _Member:
    """Return the member of `kind` that an option names, or `default` where it is not given."""
    value = given.get(option, default)
    if isinstance(value, kind):
        return value
    names = [str(member.value) for member in kind]
    if value not in names:
        near = did_you_mean(value, names) if isinstance(value, str) else ""
        hint = near if near.startswith("did you mean") else "write one of these"
        raise ConfigError(f"{option} is one of {', '.join(map(repr, names))}, got {quote(value)}; {hint}")
    return kind(value)


def measures(length: Any, slide: Any, given: Mapping[str, Any]) -> tuple[Measure | None, Measure]:
    """Return the length (None with a user's own eviction) and the slide (Count(1) where left out) as positive measures."""
    held = None if length is None else as_measure(length, "length")
    step = Count(1) if slide is None else as_measure(slide, "slide")
    workable(held, step, "eviction" in given)
    return held, step


def workable(length: Measure | None, slide: Measure, own_eviction: bool) -> None:
    """Raise for a slide that is not positive, and for a window without a bound."""
    for measure, what in ((length, "length"), (slide, "slide")):
        if measure is not None:
            as_measure(measure, what)
    if length is None and not own_eviction:
        raise ConfigError(
            "a window needs a length, got none; write length=count(100), length=minutes(5), "
            "or give eviction= a policy of your own"
        )


_NEEDS_TIMESTAMP = {
    "late_stream": "over the clock no tuple is ever late",
    "lag": "it holds back the watermark, which follows the tuples' own timestamps",
    "watermark_interval": "windows over the clock have no watermark",
    "source": "it gives each source a watermark of its own",
    "idle_timeout": "it releases a watermark that waits for a silent stream",
    "max_future": "only a timestamp of the tuple's own can be ahead of the clock",
    "lateness": "over the clock no tuple is ever late",
    "on_invalid": "only a timestamp of the tuple's own can be invalid",
}


def event_time(given: Mapping[str, Any]) -> None:
    """Raise for an invalid timestamp=, and for options that have no meaning without one."""
    timestamp = given.get("timestamp")
    if timestamp is not None:
        if not callable(timestamp) and not (isinstance(timestamp, str) and timestamp.strip()):
            raise ConfigError(
                f"timestamp is a field's name or a function of the tuple, got {quote(timestamp)}; "
                "write timestamp='departure' or timestamp=lambda row: row['departure']"
            )
        return
    for option, why in _NEEDS_TIMESTAMP.items():
        if option in given:
            raise ConfigError(
                f"{option}={quote(given[option])} needs timestamp=: {why}; "
                f"add timestamp='field' for event time, or leave {option} out"
            )


def storm(given: Mapping[str, Any], length: Any, by_window: bool) -> None:
    """Raise for options that Storm's windows do not have."""
    if "eviction" in given and length is not None:
        raise ConfigError(
            f"semantics='storm' has one eviction policy, which is a length's or your own, got length={quote(length)} with "
            f"eviction={quote(given['eviction'])}; leave out one"
        )
    lacks = [o for o in ("offset", "source", "idle_timeout", "max_future", "key", "key_ttl", "aggregate") if o in given]
    if by_window:
        lacks.append("lateness")
    if lacks:
        raise ConfigError(
            f"semantics='storm' does exactly what Storm does, and Storm has no {lacks[0]}, got "
            f"{lacks[0]}={quote(given[lacks[0]])}; leave out {lacks[0]}=, or leave out semantics= for lossless windows"
        )
    if given.get("repeat") is False:
        raise ConfigError(
            "semantics='storm' repeats a Count window at every end of a gap, got repeat=False; "
            "leave out repeat=, or leave out semantics= for lossless windows, which do not repeat"
        )


def mix(length: Measure | None, slide: Measure, given: Mapping[str, Any], by_window: bool) -> None:
    """Raise for options that only one mix of Count and Duration has."""
    if by_window and not (isinstance(length, Duration) and isinstance(slide, Duration)):
        raise ConfigError(
            f"lateness='window' asks which time windows can still hold a tuple, so length and slide must both be "
            f"Durations, got length={length!r}, slide={slide!r}; use lateness='watermark' or give both in time"
        )
    if given.get("repeat") and not (isinstance(length, Count) and isinstance(slide, Duration)):
        raise ConfigError(
            f"repeat=True is for a Count length with a Duration slide (the last N tuples, shown every S), "
            f"got length={length!r}, slide={slide!r}; leave out repeat="
        )


def bounds(length: Measure | None, slide: Measure) -> None:
    """Raise for a time window that puts one tuple into more than MAX_WINDOWS_PER_TUPLE windows."""
    if isinstance(length, Duration) and isinstance(slide, Duration):
        windows = -(-length.ms // slide.ms)
        if windows > MAX_WINDOWS_PER_TUPLE:
            raise ConfigError(
                f"length={length!r} with slide={slide!r} puts each tuple into {windows} windows, more than "
                f"{MAX_WINDOWS_PER_TUPLE}; give a longer slide or a shorter length"
            )


def gap(length: Measure | None, slide: Measure) -> str | None:
    """Return the warning for a slide longer than the length, or None."""
    if isinstance(length, Count) and isinstance(slide, Count) and slide.value > length.value:
        which = f"of every {slide.value} tuples the first {slide.value - length.value} are skipped"
    elif isinstance(length, Duration) and isinstance(slide, Duration) and slide.ms > length.ms:
        which = f"of every {slide.ms} ms the tuples of the first {slide.ms - length.ms} ms are skipped"
    else:
        return None
    return (
        f"slide={slide!r} is longer than length={length!r}: {which} (accepted and counted, but in no window); "
        "for adjacent windows make the slide equal to the length"
    )


def span(given: Mapping[str, Any], option: str, positive: bool = False) -> int | None:
    """Return an option that is a span of time, in milliseconds, or None where it is not given."""
    if option not in given:
        return None
    ms = as_duration_ms(given[option], option)
    if positive and ms == 0:
        raise ConfigError(
            f"{option} must be positive, got {given[option]!r}; give a span such as seconds(1), or leave it out"
        )
    return ms


def late_stream(given: Mapping[str, Any]) -> str | None:
    """Return the name of the late stream, None where there is none."""
    if "late_stream" not in given:
        return None
    name = checked_name(given["late_stream"], "late_stream")
    if name == DEFAULT_STREAM:
        raise ConfigError("late_stream='default' is where the bolt's own rows go; give it another name, such as 'late'")
    return name


def offset(given: Mapping[str, Any], slide: Measure) -> int:
    """Return by how many milliseconds the ends are shifted, in [0, slide)."""
    if "offset" not in given:
        return 0
    offset = given["offset"]
    if not isinstance(slide, Duration):
        raise ConfigError(
            f"offset shifts the ends of a Duration slide, got offset={quote(offset)} with slide={slide!r}; "
            "leave out offset=, or give the slide in time"
        )
    same: Any = None
    if getattr(offset, "days", 0) < 0:  # a negative timedelta: as_duration_ms would not name the equivalent offset
        same = offset % type(offset)(milliseconds=slide.ms)
    elif (ms := as_duration_ms(offset, "offset")) >= slide.ms:
        same = Duration(ms % slide.ms)
    else:
        return ms
    raise ConfigError(
        f"offset must be at least 0 and less than the slide, got {offset!r} with slide={slide!r}; "
        f"the same ends come with offset={same!r}"
    )


def repeat(given: Mapping[str, Any]) -> bool:
    """Return whether a last-N window fires again at every end of a gap."""
    repeat = given.get("repeat", False)
    if not isinstance(repeat, bool):
        raise ConfigError(f"repeat is True or False, got {quote(repeat)}; how often at most is said by max_repeats=")
    return repeat


def max_repeats(given: Mapping[str, Any], storm_repeats: bool) -> int:
    """Return how many repeats one watermark advance may have."""
    limit = given.get("max_repeats", 10_000)
    if not is_whole(limit, 1):
        raise ConfigError(f"max_repeats is a positive whole number, got {quote(limit)}; the default is 10000")
    repeats = given.get("repeat") or storm_repeats or "eviction" in given or "trigger" in given
    if "max_repeats" in given and not repeats:
        raise ConfigError(
            f"max_repeats={limit} limits repeats, but nothing repeats here; add repeat=True or leave it out"
        )
    return limit


def field(given: Mapping[str, Any], option: str) -> str | None:
    """Return an option that names a field."""
    name = given.get(option)
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise ConfigError(f"{option} is the name of a field, got {quote(name)}; write {option}='partition'")
    return name


def key(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the fields that make the key, None for windows without a key."""
    if "key" not in given:
        return None
    key = given["key"]
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(
            f"key is a field's name or a list of them, got {quote(key)}; write key='origin' or key=['a', 'b']"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"key names a field twice, got {quote(key)}; name each field once")
    return names


def key_ttl(given: Mapping[str, Any], length: Measure | None, slide: Measure) -> int | None:
    """Return after how many milliseconds without a tuple a key is forgotten, None for never."""
    if "key_ttl" not in given:
        return None
    if "key" not in given:
        raise ConfigError(
            f"key_ttl={quote(given['key_ttl'])} needs key=: it says when a key is forgotten; add key='field'"
        )
    if isinstance(length, Duration) and isinstance(slide, Duration):
        raise ConfigError(
            f"key_ttl is for windows with a Count, whose keys would else live for ever, got length={length!r}, "
            f"slide={slide!r}; leave it out: a key of a time window is forgotten when its last window has passed"
        )
    return span(given, "key_ttl", positive=True)


def on_invalid(given: Mapping[str, Any]) -> str:
    """Return what happens to a tuple without a usable timestamp: "late" or "raise"."""
    choice = given.get("on_invalid", "late")
    if choice not in ("late", "raise"):
        raise ConfigError(
            f"on_invalid is 'late' or 'raise', got {quote(choice)}; 'late' sends a tuple without a usable timestamp "
            "to the late stream, 'raise' stops there"
        )
    return str(choice)


_NOT_IN_PAGES = {
    "aggregate": "which keeps partial results, so there are no tuples to put on disk",
    "eviction": "which looks at every tuple at every firing",
    "trigger": "which is asked about every tuple, one by one",
    "semantics": "which scans all tuples at every firing, as Storm's queue does",
    "on_error": "which needs the tuples of a failed window, all of them, in memory",
}


def max_events_in_memory(given: Mapping[str, Any], storm: bool, on_error: str) -> int | None:
    """Return how many tuples of a task may be in memory, None for all. Raises where an option of _NOT_IN_PAGES is given too."""
    if "max_events_in_memory" not in given:
        return None
    limit = given["max_events_in_memory"]
    if type(limit) is not int or limit < MIN_EVENTS_IN_MEMORY:
        raise ConfigError(
            f"max_events_in_memory is a whole number of at least {MIN_EVENTS_IN_MEMORY}, got {quote(limit)}; "
            "write 50_000, say; a window that fits into memory needs none"
        )
    _refuse_beside(f"max_events_in_memory={limit}", given, _NOT_IN_PAGES, storm, on_error)
    return limit


def _refuse_beside(
    what: str, given: Mapping[str, Any], excluded: Mapping[str, str], storm: bool, on_error: str | None = None
) -> None:
    """Raise for an option that cannot go with `what`; `excluded` gives the reason for each.

    Of `semantics` only "storm" is excluded, of `on_error` only what needs the tuples of a failed window.
    """
    for option, why in excluded.items():
        lossless = option == "semantics" and not storm
        forgets_tuples = option == "on_error" and on_error not in ("fail", "dead_letter")
        if option in given and not lossless and not forgets_tuples:
            raise ConfigError(f"{what} cannot go with {option}={quote(given[option])}, {why}; leave out one")


_NOT_IN_RECOVERY = {
    "eviction": "whose memory of tuples is its own",
    "trigger": "whose memory of tuples is its own",
    "semantics": "whose windows depend on when its queue was scanned",
}


def message_id(given: Mapping[str, Any], storm: bool) -> None:
    """Raise for options of recovery without message_id=, and for windows that cannot be refilled by message ids."""
    if "message_id" not in given:
        if "recovery_timeout" in given:
            raise ConfigError(
                f"recovery_timeout={quote(given['recovery_timeout'])} needs message_id=: it says how long a stateful bolt "
                "waits for its tuples to come again; add message_id='field', or leave it out"
            )
        return
    _refuse_beside(f"message_id={quote(given['message_id'])}", given, _NOT_IN_RECOVERY, storm)


# -- checks of policies, aggregates and columns ----------------------------------------------------------------------------------


def policies(given: Mapping[str, Any], slide: Any, by_window: bool) -> None:
    """Raise for an eviction or a trigger that is not a factory, and for options that have no meaning with such a policy."""
    for option in ("eviction", "trigger"):
        if option in given:
            _maker(given, option)
            if by_window:
                raise ConfigError(
                    f"lateness='window' asks which windows can still hold a tuple, which a policy of your own cannot say, got "
                    f"{option}={quote(given[option])}; leave out lateness="
                )
    beside = {"slide": slide, "offset": given.get("offset"), "repeat": given.get("repeat")}
    for option, value in beside.items() if "trigger" in given else ():
        if value:
            raise ConfigError(
                f"a trigger of your own says when windows fire, so {option}= would say nothing, got {option}={quote(value)} too; "
                "leave out one (write @windowed_bolt(length, trigger=...), whose slide may be left out)"
            )


_POLICY_IN_STORM = {"getState": "get_state", "restoreState": "restore_state", "setContext": "set_context"}


def _maker(given: Mapping[str, Any], option: str) -> None:
    factory = given[option]
    if not callable(factory):
        raise ConfigError(
            f"{option} is what makes the policy, a class or a function without arguments, got {quote(factory)}; "
            f"each task needs a policy of its own: write {option}=lambda: {type(factory).__name__}(...)"
        )
    found = unbound(factory)
    if found is not None:
        raise ConfigError(
            f"{option} must be callable without arguments, but {quote(factory)} says: {found[1]}; "
            f"write {option}=functools.partial(...) or a lambda that fills them in"
        )
    for name, here in _POLICY_IN_STORM.items():
        if callable(getattr(factory, name, None)) and not is_written(factory, here):
            raise ConfigError(f"{option} {quote(factory)} has {name}, which nothing calls; write {here}")
    lacks = does_nothing(factory, option) if isinstance(factory, type) else None
    if lacks is not None:
        raise ConfigError(f"{option} {quote(factory)} {lacks}; write it")


def aggregators(given: Mapping[str, Any]) -> None:
    """Raise for an aggregate= with a value that is no aggregator, and for one together with a user's own eviction."""
    aggregate = given.get("aggregate")
    if aggregate is None:
        return
    if "eviction" in given:
        raise ConfigError(
            "aggregate keeps no tuples, so there is nothing that a custom eviction could look at; "
            "leave out eviction=, or aggregate inside the bolt over window.get()"
        )
    if isinstance(aggregate, Mapping):
        parts = {checked_name(name, "a name in aggregate"): part for name, part in aggregate.items()}
        if not parts:
            raise ConfigError(
                "aggregate names nothing to compute, got {}; write aggregate={'flights': aggregate.count()}"
            )
    else:
        parts = {"aggregate": aggregate}
    for name, part in parts.items():
        if not is_aggregator(part):
            raise ConfigError(
                f"{name} must be an aggregator (init, add, merge, result), got {quote(part)}; write aggregate.count(), "
                "aggregate.mean('delay') or aggregate.fold(...), with from windowing import aggregate"
            )


_NOT_IN_COLUMNS = {
    "eviction": "which looks at tuples one by one",
    "trigger": "which is asked about every tuple, one by one",
    "semantics": "which scans its tuples one by one, as Storm does",
    "max_events_in_memory": "which keeps its tuples in pages of rows",
    "message_id": "which knows its tuples again one by one",
    "on_error": "which lists the tuples of a window one by one",
}


def columnar(given: Mapping[str, Any], storm: bool, on_error: str, measures: Sequence[Measure | None]) -> str | None:
    """Return the form in which windows are passed to the bolt: "arrow", "numpy", or None for rows. `measures`: length and slide.

    Raises where an option of _NOT_IN_COLUMNS is given too.
    """
    form: str | None = given.get("columnar")
    if form is None:
        return None
    if form not in ("arrow", "numpy"):
        raise ConfigError(
            f"columnar is 'arrow' or 'numpy', got {quote(form)}; window.get() is then a pyarrow.Table, which has "
            "to_pandas(), or numpy arrays by name"
        )
    _refuse_beside(f"columnar={form!r}", given, _NOT_IN_COLUMNS, storm, on_error)
    if given.get("aggregate") is not None:
        _one_table(given, form, measures)
    return form


def _one_table(given: Mapping[str, Any], form: str, measures: Sequence[Measure | None]) -> None:
    """Raise where the results of all keys at an end cannot form a table with a column for each key field and each result."""
    aggregate = given["aggregate"]
    if not isinstance(aggregate, Mapping):
        raise ConfigError(
            f"columnar={form!r} makes a column of aggregate=, which needs a name; write aggregate={{'total': ...}}"
        )
    if not all(isinstance(measure, Duration) for measure in measures):
        raise ConfigError(
            f"columnar={form!r} with aggregate= hands over all keys whose windows end together, got length={measures[0]!r}, "
            f"slide={measures[1]!r}; give Durations, or leave out columnar="
        )
    twice = next((name for name in key(given) or () if name in aggregate), None)
    if twice is not None:
        raise ConfigError(
            f"columnar={form!r} would make two columns named {twice!r}, one of key= and one of aggregate=; rename the aggregate"
        )
