"""WindowConfig: the complete declaration of a window, checked when it is made.

One frozen value holds Storm's options (`BaseWindowedBolt.with...`) and ours. Intervals: a window holds the events of
`(end - length, end]`; its time ends are the multiples of the slide plus the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypedDict, Unpack

from windowing.errors import ConfigError, warn
from windowing.windows import checks
from windowing.windows.measures import Count, Duration, Measure, Span, describe_measure


class Semantics(Enum):
    """`lossless` is this library's own semantics; `storm` reproduces Storm exactly, its losses included."""

    LOSSLESS = "lossless"
    STORM = "storm"


class Lateness(Enum):
    """The limit below which a tuple is late: the watermark, or the last window end that could still hold the tuple."""

    WATERMARK = "watermark"
    WINDOW = "window"


class OnError(Enum):
    """What happens when the user's function raises on a window. What the call had emitted, or written to its state, is dropped.

    RAISE ends the run with a BoltError. SKIP leaves the window out. DEAD_LETTER sends it to the stream `dead_letters`. FAIL fails
    its tuples, so that their spout sends them again.
    """

    RAISE = "raise"
    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class SkippedTuplesWarning(UserWarning):
    """The slide is longer than the length: tuples between two windows are accepted and counted, but are in no window."""


def refuse_drain(windows: Iterable[WindowConfig]) -> None:
    """Raise ConfigError if one of these windows has Storm's semantics, which know no end of a stream."""
    if any(each.semantics is Semantics.STORM for each in windows):
        raise ConfigError(
            'drain=True fires the windows that are open at the end of the input, and semantics="storm" cannot drain: Storm has no '
            'end of a stream; write drain=False, or use semantics="lossless" with a new checkpoint'
        )


class WindowOptions(TypedDict, total=False):
    """The options of `WindowConfig.of` and of the decorators, without length and slide; None means not given."""

    timestamp: str | Callable[[Any], int] | None
    lag: Span | None
    watermark_interval: Span | None
    late_stream: str | None
    offset: Span | None
    lateness: Literal["watermark", "window"] | Lateness | None
    repeat: bool | None
    max_repeats: int | None
    source: str | None
    idle_timeout: Span | None
    max_future: Span | None
    key: str | Sequence[str] | None
    key_ttl: Span | None
    on_error: Literal["raise", "fail", "skip", "dead_letter"] | OnError | None
    on_invalid: Literal["late", "raise"] | None
    semantics: Literal["lossless", "storm"] | Semantics | None
    aggregate: Mapping[str, Any] | Any | None
    eviction: Callable[[], Any] | None
    trigger: Callable[[], Any] | None
    max_events_in_memory: int | None
    message_id: str | None
    recovery_timeout: Span | None
    columnar: Literal["arrow", "numpy"] | None


WINDOWS_OUTSIDE_TRIDENT: Mapping[str, str] = {
    "late_stream": "the late tuples of a Trident window are a stream: ask what window() returns for .late_stream()",
    "message_id": "batches are known by their txid, so no tuple has to be",
    "recovery_timeout": "batches are known by their txid, so no tuple is waited for",
    "max_events_in_memory": "the windows of a batch go back when its commit fails, which those on disk cannot",
    "semantics": "Storm's Trident windows differ from those of its bolts; the windows here lose nothing",
    "watermark_interval": "a turn is a batch",
    "aggregate": "the aggregator of a Trident window is what window() is given",
    "on_error": "here a batch fails whole, by a FailedException (on_error='raise'), or goes on without the window ('skip')",
    "columnar": "here a window is rows, of which window.column() gives a list",
}
"""The options that a Trident window refuses, with the reason; "raise" and "skip" of on_error are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """One window definition. Build it with `WindowConfig.of`, which accepts Durations, timedeltas and names of choices.

    The fields are the options of `windowed_bolt`, which says what they mean; spans are in milliseconds. max_repeats counts the
    repeats of one watermark advance: with repeat= in all its gaps together; with a user's policies and in storm semantics in a
    row, because a window with a new tuple begins at 0 again.
    """

    length: Measure | None
    slide: Measure
    timestamp: str | Callable[[Any], int] | None = None
    lag_ms: int = 0
    watermark_interval_ms: int = 1000
    late_stream: str | None = None
    offset_ms: int = 0
    lateness: Lateness = Lateness.WATERMARK
    repeat: bool = False
    max_repeats: int = 10_000
    source: str | None = None
    idle_timeout_ms: int | None = None
    max_future_ms: int | None = None
    key: tuple[str, ...] | None = None
    key_ttl_ms: int | None = None
    on_error: OnError = OnError.RAISE
    on_invalid: str = "late"
    semantics: Semantics = Semantics.LOSSLESS
    aggregate: Mapping[str, Any] | Any | None = None
    eviction: Callable[[], Any] | None = None
    trigger: Callable[[], Any] | None = None
    max_events_in_memory: int | None = None
    message_id: str | None = None
    recovery_timeout_ms: int = 30_000
    columnar: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for values with which no machine can run, also where `of` was not used."""
        checks.workable(self.length, self.slide, self.eviction is not None)

    @property
    def event_time(self) -> bool:
        """Whether windows use the tuples' own timestamps (else the clock at arrival)."""
        return self.timestamp is not None

    @property
    def measures(self) -> str:
        """The length of the windows, and when they fire, for drawings: "1 h / 15 min"."""
        fires = describe_measure(self.slide) if self.trigger is None else "trigger"
        return f"{describe_measure(self.length)} / {fires}"

    @property
    def about(self) -> str:
        """A one-line description of the windows for people.

        >>> from windowing import minutes, hours
        >>> WindowConfig.of(length=hours(1), slide=minutes(15), timestamp="departure", key="carrier").about
        '1 h every 15 min, by departure, key carrier'
        """
        by = self.timestamp if isinstance(self.timestamp, str) else "a function" if self.timestamp else "the clock"
        fires = f"every {describe_measure(self.slide)}" if self.trigger is None else "at each trigger"
        parts = [f"{describe_measure(self.length)} {fires}", f"by {by}"]
        if self.lag_ms:
            parts.append(f"lag {describe_measure(Duration(self.lag_ms))}")
        if self.key:
            parts.append(f"key {', '.join(self.key)}")
        return ", ".join(parts)

    @classmethod
    def of(
        cls,
        /,
        *,
        length: Count | Span | None = None,
        slide: Count | Span | None = None,
        **options: Unpack[WindowOptions],
    ) -> WindowConfig:
        """Return the definition that a user wrote, or raise ConfigError with a sentence that says what to write instead.

        A `slide` left out is Count(1), as in Storm; `length` may be left out only with an `eviction` of the user's own. Spans
        of time are Durations or timedeltas, choices are names ("storm", "window", "skip"); WindowOptions lists all options.
        Warns (SkippedTuplesWarning) when the slide is longer than the length. Source: Storm's `BaseWindowedBolt`.

        >>> from windowing import minutes, hours
        >>> WindowConfig.of(length=hours(1), slide=minutes(15), timestamp="departure", lag=hours(6)).lag_ms
        21600000
        >>> WindowConfig.of(length=hours(1), lag=hours(6))
        Traceback (most recent call last):
        windowing.errors.ConfigError: [CONFIG] lag=Duration(ms=21600000) needs timestamp=: ...
        """
        checks.refuse_unknown(options, {"length", "slide", *WindowOptions.__optional_keys__})
        given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
        semantics = checks.choice(Semantics, given, "semantics", Semantics.LOSSLESS)
        lateness = checks.choice(Lateness, given, "lateness", Lateness.WATERMARK)
        held, step = checks.measures(length, slide, given)
        checks.event_time(given)
        checks.policies(given, slide, lateness is Lateness.WINDOW)
        checks.aggregators(given)
        if semantics is Semantics.STORM:
            checks.storm(given, length, lateness is Lateness.WINDOW)
        checks.mix(held, step, given, lateness is Lateness.WINDOW)
        if "trigger" not in given:
            checks.bounds(held, step)
            gap = checks.gap(held, step)
            if gap is not None:
                warn(gap, SkippedTuplesWarning)
        storm_repeats = semantics is Semantics.STORM and isinstance(held, Count) and isinstance(step, Duration)
        aggregate = given.get("aggregate")
        on_error = checks.choice(OnError, given, "on_error", OnError.RAISE)
        checks.message_id(given, semantics is Semantics.STORM)
        return cls(
            length=held,
            slide=step,
            timestamp=given.get("timestamp"),
            lag_ms=checks.span(given, "lag") or 0,
            watermark_interval_ms=checks.span(given, "watermark_interval", positive=True) or 1000,
            late_stream=checks.late_stream(given),
            offset_ms=checks.offset(given, step),
            lateness=lateness,
            repeat=checks.repeat(given) or storm_repeats,
            max_repeats=checks.max_repeats(given, storm_repeats),
            source=checks.field(given, "source"),
            idle_timeout_ms=checks.span(given, "idle_timeout", positive=True),
            max_future_ms=checks.span(given, "max_future"),
            key=checks.key(given),
            key_ttl_ms=checks.key_ttl(given, held, step),
            on_error=on_error,
            on_invalid=checks.on_invalid(given),
            semantics=semantics,
            aggregate=dict(aggregate) if isinstance(aggregate, Mapping) else aggregate,
            eviction=given.get("eviction"),
            trigger=given.get("trigger"),
            max_events_in_memory=checks.max_events_in_memory(given, semantics is Semantics.STORM, on_error.value),
            message_id=checks.field(given, "message_id"),
            recovery_timeout_ms=checks.span(given, "recovery_timeout", positive=True) or 30_000,
            columnar=checks.columnar(given, semantics is Semantics.STORM, on_error.value, (held, step)),
        )
